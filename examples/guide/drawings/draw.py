"""Draw the pictures of the guide and the chart of the README: ``python draw.py``.

The charts show figures of ``ci/results``. Needs matplotlib. The same version of it writes the same
files.
"""

import json
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

COLORS = ("#7fb2e5", "#f2b56b", "#8fce9b", "#d99bc6")
GREY = "#e8e8e8"
DARK = "#333333"

#: Lines of charts.
BLUE = "#2a6fb0"
RED = "#c8553d"
GREEN = "#4b9b5a"
LINE = {"lw": 2, "ms": 5}

#: An arrow.
ARROW = {"arrowstyle": "-|>", "mutation_scale": 14, "color": DARK, "lw": 1.2}

mpl.rcParams |= {
    "svg.hashsalt": "dask_bigfft",
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 11,
}


def picture(width, height):
    """Return an empty figure and its axes, whose units are squares."""
    figure = Figure(figsize=(width * 0.45, height * 0.45))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, width), ylim=(height, 0), aspect="equal")
    axes.axis("off")
    return figure, axes


def box(
    axes,
    x,
    y,
    width,
    height,
    text="",
    color=GREY,
    line=1.0,
):
    """Draw a rectangle with a text in its middle."""
    patch = Rectangle((x, y), width, height, facecolor=color, edgecolor=DARK, lw=line)
    axes.add_patch(patch)
    label(axes, x + width / 2, y + height / 2, text)


def label(axes, x, y, text, **keywords):
    """Write a text around a point."""
    axes.text(x, y, text, **{"ha": "center", "va": "center", "color": DARK, **keywords})


def arrow(axes, start, end, text="", above=0.45):
    """Draw an arrow with a text above its middle."""
    axes.add_patch(FancyArrowPatch(start, end, **ARROW))
    middle_x = (start[0] + end[0]) / 2
    middle_y = (start[1] + end[1]) / 2
    label(axes, middle_x, middle_y - above, text)


def layouts():
    """Blocks before and after an exchange: each new one has a shard of each old one."""
    figure, axes = picture(25, 9.5)
    label(axes, 4, 0.6, "before: block b has row n1 = b")
    label(axes, 20, 0.6, "after: block b has column n2 = b")
    for row in range(4):
        for column in range(4):
            n = 4 * row + column
            color = COLORS[row]
            box(axes, 1 + 1.5 * column, 1.5 + 1.7 * row, 1.5, 1.2, f"{n}", color)
            box(axes, 16 + 2 * column, 1.9 + 1.5 * row, 1.4, 1.5, f"{n}", color)
        box(axes, 1, 1.5 + 1.7 * row, 6, 1.2, color="none", line=2.2)
        label(axes, 0.4, 2.1 + 1.7 * row, f"{row}")
    for column in range(4):
        box(axes, 16 + 2 * column, 1.9, 1.4, 6, color="none", line=2.2)
        label(axes, 16.7 + 2 * column, 1.4, f"{column}")
    arrow(axes, (8.5, 4.9), (14.5, 4.9), "exchange of 16 shards")
    label(axes, 11.5, 5.6, "one from each block")
    label(axes, 11.5, 6.3, "to each block")
    label(axes, 4, 8.9, "FFT over n2 is local")
    label(axes, 20, 8.9, "FFT over n1 is local")
    return figure


def loop():
    """The tile loop: load, transform, store, for each tile of a block."""
    figure, axes = picture(26, 8.5)
    label(axes, 3.2, 0.6, "source view: segments")
    for i, color in enumerate(COLORS):
        box(axes, 0.6 + 1.3 * i, 1.3, 1.3, 5.2, color=color)
    box(axes, 0.6, 2.6, 5.2, 1.3, "tile", color="none", line=2.6)
    label(axes, 13, 0.6, "buffer, as large as a cache or a part of the GPU")
    box(axes, 10, 2.6, 6, 1.3, "tile, contiguous", color="#f7f2c4")
    label(axes, 22.6, 0.6, "target view: the new block")
    box(axes, 20, 1.3, 5.2, 5.2)
    box(axes, 20, 2.6, 5.2, 1.3, "tile", color="#f7f2c4", line=2.6)
    arrow(axes, (5.9, 3.25), (9.9, 3.25), "load")
    arrow(axes, (16.1, 3.25), (19.9, 3.25), "store")
    bow = FancyArrowPatch((15.4, 4.0), (10.6, 4.0), connectionstyle="arc3,rad=-0.6", **ARROW)
    axes.add_patch(bow)
    label(axes, 13, 6.2, "transform: FFT, twiddle, check")
    label(axes, 13, 7.8, "repeated for each tile; several threads take tiles of one block")
    return figure


def passes():
    """A block larger than the memory of a GPU crosses the bus twice each way."""
    figure, axes = picture(26, 10.5)
    label(axes, 4, 0.6, "block in host memory")
    label(axes, 21.5, 0.6, "buffers on the GPU")
    for row, name in enumerate(["pass 1: {Y1}", "pass 2: {Y2, X}"]):
        top = 1.4 + 4.6 * row
        box(axes, 1, top, 6, 3.6)
        for i in range(4):
            if row == 0:
                box(axes, 1 + 1.5 * i, top, 1.5, 3.6, f"{i + 1}", COLORS[i])
            else:
                box(axes, 1, top + 0.9 * i, 6, 0.9, f"{i + 1}", COLORS[i])
        for i in range(3):
            box(axes, 18.6 + 2 * i, top + 1, 1.7, 1.6, f"{i + 1}", COLORS[i])
        arrow(axes, (7.3, top + 1.1), (18.3, top + 1.1), "host to device")
        arrow(axes, (18.3, top + 2.5), (7.3, top + 2.5), "device to host")
        label(axes, 12.8, top - 0.2, name, weight="bold")
    return figure


def overlap():
    """Load, transform and store of different tiles at the same time."""
    figure, axes = picture(26, 7)
    for row, name in enumerate(["load", "transform", "store"]):
        label(axes, 2.2, 1.5 + 1.6 * row, name)
        for tile in range(6):
            x = 4.4 + 2.5 * (tile + row)
            box(axes, x, 0.9 + 1.6 * row, 2.4, 1.2, f"tile {tile + 1}", COLORS[tile % 3])
    arrow(axes, (4.4, 6.0), (25, 6.0))
    label(axes, 14.7, 6.5, "time; a color is a buffer, used again by every third tile")
    return figure


def main():
    """Write all pictures."""
    folder = Path(__file__).resolve().parent
    for draw in (layouts, loop, passes, overlap, limited, several_gpus, by_hand):
        file = folder / f"{draw.__name__}.svg"
        draw().savefig(file, metadata={"Date": None, "Creator": None})
        text = file.read_text(encoding="utf-8")
        lines = "\n".join(line.rstrip() for line in text.splitlines())
        file.write_text(f"{lines}\n", encoding="utf-8")


def results(program, section):
    """Return the rows of a section of a program's results."""
    file = Path(__file__).resolve().parents[3] / "ci" / "results" / f"{program}.json"
    return json.loads(file.read_text(encoding="utf-8"))["sections"][section]


def style(axes, xlabel):
    """Give an axes its label, a grid, and no frame above and on the right."""
    axes.set_xlabel(xlabel, size=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=9)


def panel(axes, title, xlabel, ticks):
    """Give an axes its title and ticks."""
    axes.set_title(title, size=10, loc="left")
    axes.set_xticks(ticks, map(str, ticks))
    style(axes, xlabel)


def plot(axes, points, marker, color, label=None):
    """Draw a line through points."""
    x, y = zip(*points, strict=True)
    axes.plot(x, y, marker, color=color, label=label, **LINE)


def several_gpus():
    """Time against the number of GPUs: ours, and torch with NCCL."""
    figure = Figure(figsize=(8.6, 3.3), layout="constrained", facecolor="white")
    same_size, growing = figure.subplots(1, 2)
    shapes = ("1024x1024x1024", "2048x1024x2048", "2048x2048x2048")
    for shape, color in zip(shapes, (BLUE, RED, GREEN), strict=True):
        plot_gpus(same_size, shape, color)
    finish_gpus(same_size, "same array: milliseconds", [10, 20, 40, 80, 120])
    plot_gpus(growing, "1024x1024x{}", BLUE)
    finish_gpus(growing, "array grows with the GPUs: milliseconds", [20, 25, 30, 35])
    return figure


def plot_gpus(axes, shape, color):
    """Draw the milliseconds of ours and of torch for an array, against the number of GPUs."""
    rows = {row["name"]: row for row in results("on_gpus", "several")}
    name = shape.format("1024p").replace("x", " x ")
    for key, marker, author in (("bigfft", "o-", "ours"), ("by_hand", "s:", "torch, NCCL")):
        points = []
        for count in (1, 2, 4, 6, 8):
            array = shape.format(1024 * count)
            row = rows.get(f"{count} GPUs, {array} c8, {count} blocks, auto", {})
            if key in row:
                points.append((count, 1e3 * row[key]))
        if points:
            plot(axes, points, marker, color, f"{name}, {author}")


def finish_gpus(axes, title, ticks):
    """Give a panel of GPUs logarithmic axes, a title and ticks of milliseconds."""
    axes.set(xscale="log", yscale="log")
    axes.minorticks_off()
    panel(axes, title, "GPUs", [1, 2, 4])
    axes.set_yticks(ticks, map(str, ticks))
    axes.legend(fontsize=7.5, frameon=False)


def by_hand():
    """Time of a transform by a GPU against settings that are made by hand."""
    lines = lines_by_hand()
    figure = Figure(figsize=(8.6, 3.1), layout="constrained", facecolor="white")
    tiles, buffers, share = figure.subplots(1, 3)
    tiles.set_xscale("log", base=2)
    plot_settings(tiles, lines["tiles"], "tiles of a block (passes)")
    plot_settings(buffers, lines["buffers"], "buffers")
    plot_settings(share, lines["share"], "the CPU's share R")
    tiles.legend(fontsize=8, frameon=False)
    buffers.legend(fontsize=8, frameon=False)
    return figure


def lines_by_hand():
    """Return points of value and seconds, by setting and by the kind of streams."""
    lines = {"tiles": {}, "buffers": {}, "share": {}}
    for row in results("gpu", "by_hand"):
        setting, *streams = row["name"].split(", ")
        name, value = setting.split()
        kind = name.rpartition(".")[2].removeprefix("cpu-")
        streams_of_row = streams[0].split()[1] if streams else ""
        points = lines[kind].setdefault(streams_of_row, [])
        points.append((float(value), row["seconds"]))
    return lines


def plot_settings(axes, lines, xlabel):
    """Draw seconds against a setting, with a line for each kind of streams."""
    labels = {"role": "a stream for each role", "tile": "a stream for each tile"}
    for (streams, points), color in zip(lines.items(), (BLUE, RED), strict=False):
        marker = "s--" if streams == "tile" else "o-"
        plot(axes, points, marker, color, labels.get(streams))
        values = [int(value) if value == int(value) else value for value, _ in points]
    panel(axes, "seconds", xlabel, values)
    axes.set_ylim(0)


def limited():
    """Time and peak memory of an axis of growing length, in processes that may use 1 GiB."""
    rows = results("limited", "one axis")
    sizes = [mib_of(row) for row in rows]
    figure = Figure(figsize=(8.6, 3.3), layout="constrained", facecolor="white")
    seconds, peaks = figure.subplots(1, 2)

    by_dask = points_of(rows, "seconds", "da.fft")
    killed_at = sizes[len(by_dask)]
    _, last_seconds = by_dask[-1]
    plot_killed(seconds, by_dask, (killed_at, last_seconds), (12, -12), "left")
    plot_ours(seconds, points_of(rows, "seconds", "ours"), -46)
    finish_sizes(seconds, sizes)
    seconds.set(yscale="log", ylim=(0.7, 40))
    seconds.set_yticks([1, 3, 10, 30], ["1", "3", "10", "30"])
    seconds.set_title("seconds, Zarr to Zarr", size=10, loc="left")

    plot_killed(peaks, points_of(rows, "peak_gib", "da.fft"), (killed_at, 1.0), (-2, 10), "center")
    plot_ours(peaks, points_of(rows, "peak_gib", "ours"), -24)
    finish_sizes(peaks, sizes)
    peaks.axhline(1, color=DARK, lw=1, ls="--")
    note(peaks, "limit: 1 GiB", (sizes[-1], 1), (0, 5), ha="right", color=DARK)
    peaks.set(ylim=(0, 1.4))
    peaks.set_title("peak memory (GiB)", size=10, loc="left")
    return figure


def mib_of(row):
    """Return the size of the array of a row."""
    return int(row["name"].split()[0])


def points_of(rows, key, contestant):
    """Return sizes and figures of a contestant, where it was not killed."""
    return [(mib_of(row), row[key][contestant]) for row in rows if contestant in row[key]]


def plot_killed(axes, points, end, offset, side):
    """Draw the figures of `da.fft`, and a mark where it was killed."""
    plot(axes, points, "o-", RED)
    x, y = zip(points[-1], end, strict=True)
    axes.plot(x, y, ":", color=RED, lw=2)
    axes.plot(*end, "X", color=RED, ms=11)
    text = f"da.fft.rfft(x.rechunk(-1))\nkilled at {end[0]} MiB"
    note(axes, text, end, offset, ha=side, color=RED)


def plot_ours(axes, points, above):
    """Draw our figures, and the call above or below the last one."""
    plot(axes, points, "o-", BLUE)
    note(axes, "dask_bigfft.fft.rfft(x)", points[-1], (0, above), ha="right", color=BLUE)


def note(axes, text, point, offset, **keywords):
    """Write a text at a distance from a point."""
    axes.annotate(text, point, offset, textcoords="offset points", size=9, **keywords)


def finish_sizes(axes, sizes):
    """Give a panel the sizes of arrays below."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes, [f"{n} MiB" if n < 1024 else f"{n // 1024} GiB" for n in sizes])
    style(axes, "size of the array")


if __name__ == "__main__":
    main()
