"""The main jobs, on real data and on fields of a gibibyte, with a picture: examples/demo.py

Runs `elevation.py`, `large_field.py`, `transposed_order.py` and `larger_than_memory.py`, and fails
if an answer is wrong.
"""

import argparse
import io
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path

import elevation
import large_field
import larger_than_memory
import numpy as np
import transposed_order
from extras import extra

with extra("demo"):
    import matplotlib
    from PIL import Image

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt


def show(
    place,
    image,
    title,
    colours,
    low=None,
    high=None,
    extent=None,
):
    """Draw an image with its colours explained."""
    drawn = place.imshow(image, cmap=colours, vmin=low, vmax=high, extent=extent, aspect="auto")
    place.set_title(title, fontsize=9)
    place.tick_params(labelsize=6)
    if extent is None:
        place.set(xticks=[], yticks=[])
    bar = place.figure.colorbar(drawn, ax=place, shrink=0.85, pad=0.02)
    bar.ax.tick_params(labelsize=6)
    bar.ax.yaxis.get_offset_text().set_fontsize(6)


def brightest(image, size=140):
    """Return an image of about `size` x `size` that shows the highest value of each part."""
    rows, columns = (max(1, n // size) for n in image.shape)
    height = image.shape[0] // rows
    width = image.shape[1] // columns
    whole_parts = image[: height * rows, : width * columns]
    return whole_parts.reshape(height, rows, width, columns).max(axis=(1, 3))


def draw_elevation(places, summary):
    spectrum = np.log10(brightest(summary["spectrum"]) + 1)
    show(places[0], summary["input"], "Jacksboro fault: heights [m]", "terrain")
    show(places[1], spectrum, "spectrum [log10]", "magma", *np.percentile(spectrum, [1, 99.9]))
    show(places[2], summary["result"], "slopes, smoothed in the spectrum, in the sun", "gray", 0, 1)
    show(places[3], brightest(summary["difference"]), "slopes minus SciPy's", "viridis")


def draw_field(places, summary):
    rows, columns = summary["shape"]
    height, width = summary["spectrum"].shape
    spectrum = np.log10(brightest(summary["spectrum"]))
    extent = (0, width / columns, height / 2 / rows, -height / 2 / rows)
    low, high = np.percentile(summary["truth"], [0, 100])
    size = f"{rows} x {columns}"
    show(places[0], summary["input"], f"corner of a field of {size} [m]", "terrain", low, high)
    show(
        places[1],
        spectrum,
        "spectrum [log10]: the peaks are stripes",
        "magma",
        np.percentile(spectrum, 20),
        np.percentile(spectrum, 99.9),
        extent,
    )
    for ky, kx in large_field.stripe_frequencies(summary["shape"]):
        for sign in (1, -1):
            places[1].plot(sign * kx / columns, sign * ky / rows, "o", ms=9, mfc="none", mec="w")
    places[1].set(xlim=extent[:2], ylim=extent[2:], xlabel="cycles per sample")
    places[1].xaxis.label.set_size(7)
    show(places[2], summary["result"], "without stripes and noise [m]", "terrain", low, high)
    show(
        places[3],
        summary["result"] - summary["truth"],
        "minus the true terrain [m]",
        "RdBu",
        -10,
        10,
    )


def draw_record(places, summary):
    first = summary["places"][0]
    samples = np.arange(max(0, first - 6000), min(summary["n"], first + 10000))
    places[0].plot(samples / 1e6, summary["record"][samples], lw=0.3)
    end = first + transposed_order.CHIRP
    places[0].axvspan(first / 1e6, end / 1e6, color="tab:orange", alpha=0.3)
    places[0].set_title("part of a record [millions of samples]; coloured: an echo", fontsize=9)
    n = summary["n"]
    heights = summary["correlation"][: n // 2048 * 2048].reshape(-1, 2048).max(axis=1)
    places[1].plot(np.linspace(0, n / 1e6, heights.size), heights, lw=0.8)
    places[1].set_title("its correlation with the chirp [standard deviations]: echoes", fontsize=9)
    for place in places:
        place.tick_params(labelsize=6)
        place.margins(x=0)


def draw(path, heights, field, record):
    """Save the picture, in few enough colours to be small."""
    figure = plt.figure(figsize=(13, 7.6), layout="constrained")
    images, lines = figure.subfigures(2, 1, height_ratios=(4, 1.1))
    upper, lower = images.subplots(2, 4)
    draw_elevation(upper, heights)
    draw_field(lower, field)
    draw_record(lines.subplots(1, 2), record)
    with io.BytesIO() as file:
        figure.savefig(file, dpi=72)
        plt.close(figure)
        image = Image.open(file).convert("RGB").quantize(192, kmeans=2, dither=Image.Dither.NONE)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, optimize=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    large_field.add_arguments(parser)
    parser.add_argument("--n", type=int, default=2**24, help="length of the record, default 2^24")
    parser.add_argument("--picture", type=Path, default=large_field.FOLDER / "demo.png")
    arguments = parser.parse_args()
    start = time.perf_counter()

    print("1. Real data: an elevation model, smoothed and differentiated in its spectrum")
    heights = elevation.run()
    print("2. A large field in Zarr: stripes and noise are taken out of its spectrum")
    with large_field.scratch(arguments.folder) as folder:
        field = large_field.run(arguments.gib, folder)
    print("3. A long record: echoes are found by a product of two spectra", flush=True)
    record = transposed_order.run(arguments.n)
    draw(arguments.picture, heights, field, record)
    print("4. A field larger than its memory limit: killed and resumed", flush=True)
    with large_field.scratch(arguments.folder) as folder:
        large = larger_than_memory.run(arguments.gib, folder)

    print("\nResults, times, and distances from SciPy:\n")
    parts = [
        (elevation, heights),
        (large_field, field),
        (transposed_order, record),
        (larger_than_memory, large),
    ]
    for part, summary in parts:
        part.report(summary)
    print(
        f"\nAll in {time.perf_counter() - start:.0f} s on {os.cpu_count()} cores."
        f" The picture is {arguments.picture}"
    )
    libraries = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "dask"))
    print(f"Python {platform.python_version()}, {libraries}")
    if not all(part.right(summary) for part, summary in parts):
        raise SystemExit("an answer is wrong")


if __name__ == "__main__":
    main()
