"""What this package is for, in three steps with a picture: examples/demo.py

A field larger than its memory is transformed, killed and resumed; a chart of the sea is filtered by
wavelength; heights with holes are smoothed and filled. Fails if an answer is wrong.
"""

import argparse
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path

import large_field
import larger_than_memory


def announce(case, answer):
    """Print what a step is about."""
    print(f"\n{case}\n   {answer}\n", flush=True)


def main():
    # The processes of the first step import this file, too, and need none of these.
    import demo_picture
    import filters
    import holes

    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    large_field.add_arguments(parser, gib=1)
    parser.add_argument("--n", type=int, default=1200, help="edge of the sea, default 1200")
    parser.add_argument("--picture", type=Path, default=large_field.FOLDER / "demo.png")
    arguments = parser.parse_args()
    start = time.perf_counter()

    announce(
        "1. You have a field on disk that is larger than the memory of your job.",
        "Dask's own FFT is killed. dask_bigfft finishes, even after it was killed half-way.",
    )
    with large_field.scratch(arguments.folder) as folder:
        large = larger_than_memory.run(arguments.gib, folder)
    larger_than_memory.report(large)

    announce(
        "2. You have a chart in chunks, and want the waves of some lengths.",
        "A filter by name is both transforms in one plan: lazy, whatever the chunks.",
    )
    sea = filters.run(arguments.n)
    filters.report(sea)

    announce(
        "3. Your data have holes: land, clouds, lost samples.",
        "Means leave them out, spectra allow for them, and gaps of smooth data are filled.",
    )
    heights = holes.run()
    holes.report(heights)

    demo_picture.draw(
        arguments.picture,
        large,
        sea,
        heights,
    )
    seconds = time.perf_counter() - start
    print(f"\nAll in {seconds:.0f} s on {os.cpu_count()} cores; picture: {arguments.picture}")
    libraries = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "dask"))
    print(f"Python {platform.python_version()}, {libraries}")
    parts = [(larger_than_memory, large), (filters, sea), (holes, heights)]
    if not all(part.right(summary) for part, summary in parts):
        raise SystemExit("an answer is wrong")


if __name__ == "__main__":
    main()
