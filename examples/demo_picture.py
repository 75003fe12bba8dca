"""The picture of examples/demo.py: memory over time, a filtered chart, heights with holes."""

import io

import numpy as np
from extras import extra
from larger_than_memory import ENDS

with extra("demo"):
    import matplotlib
    from PIL import Image

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

#: Colour of each process.
COLOURS = ("tab:red", "tab:blue", "tab:green")

#: How the panels of the sea are coloured, and the part of each edge that they show.
SEA = {
    "height": ("RdBu", 1),
    "large scales": ("RdBu", 1),
    "swell": ("RdBu", 1 / 3),
    "envelope of the swell": ("viridis", 1),
}


def draw_memory(place, summary):
    """Draw the memory of each process over time, and what it may have."""
    for (name, process), colour in zip(summary["processes"].items(), COLOURS, strict=True):
        gib = np.array(process.memory) / 2**30
        label = f"{name}: {ENDS.get(process.end, process.end)}"
        place.plot(process.seconds, gib, color=colour, label=label)
        if process.end in ("killed", "out of memory") and len(gib):
            place.plot(process.seconds[-1], gib[-1], "x", ms=10, mew=3, color=colour)
    limit = summary["allowed"] / 2**30
    place.axhline(limit, color="black", ls="--", label="what a process may have")
    place.set_ylabel("memory [GiB]", fontsize=8)
    place.set_xlabel("time after imports [s]", fontsize=8)
    place.set_ylim(0, 1.4 * limit)
    place.legend(fontsize=8, loc="upper center", ncols=4)
    place.tick_params(labelsize=7)


def show(place, values, title, colours):
    """Draw an image with its colours explained."""
    image = place.imshow(np.asarray(values), cmap=colours)
    place.set_title(title, fontsize=9)
    place.set(xticks=[], yticks=[])
    bar = place.figure.colorbar(image, ax=place, shrink=0.85, pad=0.02)
    bar.ax.tick_params(labelsize=6)


def draw_sea(places, sea):
    """Draw the sea with the borders of its chunks, and what filters take out of it."""
    for place, (name, values) in zip(places, sea["pictures"].items(), strict=True):
        colours, part = SEA[name]
        margins = [round(edge * (1 - part) / 2) for edge in values.shape]
        window = tuple(slice(margin, -margin or None) for margin in margins)
        title = f"{name} [m]" if part == 1 else f"{name}, the middle [m]"
        show(place, np.asarray(values)[window], title, colours)
    row_edges, column_edges = (np.cumsum(chunks)[:-1] for chunks in sea["chunks"])
    for edge in row_edges:
        places[0].axhline(edge - 0.5, color="black", lw=0.8)
    for edge in column_edges:
        places[0].axvline(edge - 0.5, color="black", lw=0.8)


def draw_holes(places, heights):
    """Draw heights and a smooth model with holes, each before and after."""
    mask = heights["mask"]
    pictures = {
        "heights with holes [m]": np.where(mask, np.nan, heights["heights"]),
        "smoothed around the holes [m]": heights["smooth"],
        "a smooth model with holes [m]": np.where(mask, np.nan, heights["model"]),
        "its holes filled [m]": heights["filled"],
    }
    for place, (title, values) in zip(places, pictures.items(), strict=True):
        show(place, values, title, "terrain")


def draw(path, large, sea, heights):
    """Save the picture, in few enough colours to be small."""
    edges = " x ".join(map(str, large["shape"]))
    figure = plt.figure(figsize=(13, 9.5), layout="constrained")
    upper, middle, lower = figure.subfigures(3, 1, height_ratios=(2.2, 3, 2.7))
    gib = large["resumed"].read / 2**30
    field = f"a field of {gib:.2g} GiB, {edges} complex64 in Zarr"
    upper.suptitle(f"1. Larger than memory: {field}, all axes", fontsize=10)
    draw_memory(upper.subplots(), large)
    middle.suptitle("2. Filters by wavelength, each one plan, of a chart in chunks", fontsize=10)
    draw_sea(middle.subplots(1, 4), sea)
    lower.suptitle("3. Data with holes: smoothed, or filled", fontsize=10)
    draw_holes(lower.subplots(1, 4), heights)
    with io.BytesIO() as file:
        figure.savefig(file, dpi=72)
        plt.close(figure)
        image = Image.open(file).convert("RGB").quantize(192, kmeans=2, dither=Image.Dither.NONE)
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, optimize=True)
