"""What this package is for, in three steps with a picture: examples/demo.py

A field larger than its memory is transformed, killed and resumed, beside `da.fft` in the same
memory. A chart of the sea is filtered by wavelength, and one filter is timed beside `da.fft`.
Heights with holes are smoothed and filled. Fails if an answer is wrong.
"""

import argparse
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path

import dask.array as da
import large_field
import larger_than_memory
import numpy as np

from dask_bigfft import signal

#: Cutoff of the filter that is timed, in cycles per sample.
CUTOFF = 0.05


def announce(case, trial):
    """Print what a step is about, and what it tries."""
    print(f"\n{case}\n   {trial}\n", flush=True)


def conclude(meaning):
    """Print what the result of a step means for a user."""
    print(f"\n=> {meaning}", flush=True)


def lowpass_by_dask(image):
    """Return the low-pass of an image by `da.fft`, with a rechunk for each axis."""
    rows, columns = image.shape
    spectrum = da.fft.rfft(image.rechunk({0: "auto", 1: -1}), axis=1)
    spectrum = da.fft.fft(spectrum.rechunk({0: -1, 1: "auto"}), axis=0)
    ky = da.fft.fftfreq(rows, chunks=rows)[:, None]
    kx = da.fft.rfftfreq(columns, chunks=spectrum.chunks[1])
    response = 0.5 ** ((ky**2 + kx**2) / CUTOFF**2)
    product = da.fft.ifft(spectrum * response.astype("float32"), axis=0)
    return da.fft.irfft(product.rechunk({0: "auto", 1: -1}), n=columns, axis=1)


def timed(function, image):
    """Return the seconds of a lazy function of an image, and its result."""
    start = time.perf_counter()
    result = function(image).persist()
    return time.perf_counter() - start, result


def compare_filters(edge):
    """Return the seconds of a low-pass as one plan and by `da.fft`, and how far they differ."""
    random = da.random.default_rng(0)
    chunk = -(-edge // 8)
    image = random.standard_normal((edge, edge), chunks=chunk, dtype="float32").persist()
    seconds = {"one plan": [], "da.fft": []}
    for _ in range(3):
        one_plan_seconds, smooth = timed(lambda x: signal.lowpass(x, CUTOFF), image)
        dask_seconds, expected = timed(lowpass_by_dask, image)
        seconds["one plan"].append(one_plan_seconds)
        seconds["da.fft"].append(dask_seconds)
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    return medians, float(abs(smooth - expected).max())


def report_filters(edge, seconds, difference):
    """Print the times of a low-pass, and what they mean."""
    print(f"A low-pass of {edge} x {edge} float32 in memory, in 8 x 8 chunks, median of three:")
    print(f"  as one plan {seconds['one plan']:.2f} s, by da.fft {seconds['da.fft']:.2f} s")
    print(f"  largest difference {difference:.0e}")
    ratio = seconds["da.fft"] / seconds["one plan"]
    conclude(
        "Name the wavelengths; chunks may be of any shape, and no spectrum is stored.\n"
        f"   da.fft, with a rechunk for each axis, took {ratio:.1f} times as long as one plan."
    )


def main():
    # The processes of the first step import this file, too, and need none of these.
    import demo_picture
    import filters
    import holes

    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    large_field.add_arguments(parser, gib=1)
    parser.add_argument("--n", type=int, default=1200, help="edge of the sea, default 1200")
    parser.add_argument("--edge", type=int, default=4096, help="edge of the image that is timed")
    parser.add_argument("--picture", type=Path, default=large_field.FOLDER / "demo.png")
    arguments = parser.parse_args()
    start = time.perf_counter()

    announce(
        "1. Your field on disk is larger than the memory of your job.",
        "da.fft and dask_bigfft get the same memory. Then dask_bigfft is killed and called again.",
    )
    with large_field.scratch(arguments.folder) as folder:
        large = larger_than_memory.run(arguments.gib, folder)
    larger_than_memory.report(large)
    conclude(larger_than_memory.conclusion(large))

    announce(
        "2. You want the waves of some lengths from a chart in chunks.",
        "A filter by name is one plan: the transform, the product and the transform back.",
    )
    sea = filters.run(arguments.n)
    filters.report(sea)
    seconds, difference = compare_filters(arguments.edge)
    report_filters(arguments.edge, seconds, difference)

    announce(
        "3. Your data have holes: land, clouds, lost samples.",
        "They are smoothed around the holes, or the holes are filled.",
    )
    heights = holes.run()
    holes.report(heights)
    conclude(
        "Means leave holes out, and spectra allow for them. What is missing in smooth data\n"
        f"   is found again: here the error is {heights['gap_error']:.0e}."
    )

    demo_picture.draw(arguments.picture, large, sea, heights)
    seconds = time.perf_counter() - start
    print(f"\nAll in {seconds:.0f} s on {os.cpu_count()} cores; picture: {arguments.picture}")
    libraries = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "dask"))
    print(f"Python {platform.python_version()}, {libraries}")
    parts = [(larger_than_memory, large), (filters, sea), (holes, heights)]
    if difference > 1e-5 or not all(part.right(summary) for part, summary in parts):
        raise SystemExit("an answer is wrong")


if __name__ == "__main__":
    main()
