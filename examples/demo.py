"""What this package is for, in three steps with a picture: examples/demo.py

A field larger than its memory is transformed, killed and resumed; a chart of the sea is filtered by
wavelength; heights with holes are smoothed and filled. Fails if an answer is wrong.
"""

import argparse
import io
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path

import filters
import holes
import large_field
import larger_than_memory
import numpy as np
from extras import extra

with extra("demo"):
    import matplotlib
    from PIL import Image

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

COLOURS = {"da.fft": "tab:red", "first run": "tab:blue", "resumed run": "tab:green"}


def draw_memory(place, summary):
    """Draw the memory of each process over time, and what it may have."""
    for name, process in summary["processes"].items():
        gib = np.array(process.memory) / 2**30
        label = f"{name if name == 'da.fft' else f'dask_bigfft, {name}'}: {process.end}"
        place.plot(process.seconds, gib, color=COLOURS[name], label=label)
        if process.end in ("killed", "out of memory") and len(gib):
            place.plot(process.seconds[-1], gib[-1], "x", ms=10, mew=3, color=COLOURS[name])
    limit = summary["allowed"] / 2**30
    place.axhline(limit, color="black", ls="--", label="what a process may have")
    field = summary["resumed"].read / 2**30
    place.set_title(f"memory [GiB] over time [s]: a field of {field:.2g} GiB, all axes", fontsize=9)
    place.legend(fontsize=7)
    place.tick_params(labelsize=7)


def show(place, values, title, colours):
    """Draw an image with its colours explained."""
    drawn = place.imshow(np.asarray(values), cmap=colours)
    place.set_title(title, fontsize=9)
    place.set(xticks=[], yticks=[])
    bar = place.figure.colorbar(drawn, ax=place, shrink=0.85, pad=0.02)
    bar.ax.tick_params(labelsize=6)


def draw(path, large, sea, heights):
    """Save the picture, in few enough colours to be small."""
    figure = plt.figure(figsize=(13, 9), layout="constrained")
    upper, middle, lower = figure.subfigures(3, 1, height_ratios=(2, 3, 3))
    draw_memory(upper.subplots(), large)
    places = middle.subplots(1, 4)
    for place, (title, values) in zip(places, sea["pictures"].items(), strict=True):
        show(place, values, f"{title} [m]", "RdBu")
    places = lower.subplots(1, 3)
    with_holes = np.where(heights["mask"], np.nan, heights["heights"])
    show(places[0], with_holes, "heights with holes [m]", "terrain")
    show(places[1], heights["smooth"], "smoothed around the holes [m]", "terrain")
    show(places[2], heights["filled"], "a smooth model, its holes filled [m]", "terrain")
    with io.BytesIO() as file:
        figure.savefig(file, dpi=72)
        plt.close(figure)
        image = Image.open(file).convert("RGB").quantize(192, kmeans=2, dither=Image.Dither.NONE)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, optimize=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    large_field.add_arguments(parser)
    parser.add_argument("--n", type=int, default=1200, help="edge of the sea, default 1200")
    parser.add_argument("--picture", type=Path, default=large_field.FOLDER / "demo.png")
    arguments = parser.parse_args()
    start = time.perf_counter()

    print("1. You have a field on disk that is larger than the memory of your job.", flush=True)
    print("   Dask's own FFT is killed. dask_bigfft finishes, even after it was killed half-way.\n")
    with large_field.scratch(arguments.folder) as folder:
        large = larger_than_memory.run(arguments.gib, folder)
    larger_than_memory.report(large)

    print("\n2. You have a chart in chunks, and want the waves of some lengths.", flush=True)
    print("   A filter is one plan: both transforms and the product; lazy, whatever the chunks.\n")
    sea = filters.run(arguments.n)
    filters.report(sea)

    print("\n3. Your data have holes: land, clouds, lost samples.", flush=True)
    print("   Holes are left out of a smoothing, and filled where the data are smooth.\n")
    heights = holes.run()
    holes.report(heights)

    draw(arguments.picture, large, sea, heights)
    seconds = time.perf_counter() - start
    print(f"\nAll in {seconds:.0f} s on {os.cpu_count()} cores; picture: {arguments.picture}")
    libraries = ", ".join(f"{name} {version(name)}" for name in ("numpy", "scipy", "dask"))
    print(f"Python {platform.python_version()}, {libraries}")
    parts = [(larger_than_memory, large), (filters, sea), (holes, heights)]
    if not all(part.right(summary) for part, summary in parts):
        raise SystemExit("an answer is wrong")


if __name__ == "__main__":
    main()
