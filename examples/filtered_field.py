"""The filter of the README on real heights, and its picture: examples/filtered_field.py

The model is the Jacksboro fault (Tennessee), 344 x 403 heights that come with matplotlib, with
noise added, in single precision, in kilometres, and in chunks along both axes. The low-pass keeps
wavelengths above one kilometre. NumPy does the same without chunks. ``--picture PATH`` draws the
heights, the spectrum and the filtered heights.
"""

import argparse
import io
import math
from pathlib import Path

import numpy as np
from extras import extra

with extra("xarray"):
    import xarray as xr

    import dask_bigfft.xarray  # noqa: F401  gives arrays the attribute .bigfft

with extra("demo"):
    import matplotlib
    from matplotlib.cbook import get_sample_data
    from matplotlib.figure import Figure
    from PIL import Image

SEED = 5
NOISE = 60.0  # metres
CUTOFF = 1.0  # cycles per kilometre
CHUNKS = {"y": 86, "x": 101}


def noisy_heights():
    """Return noisy heights in metres, with coordinates in kilometres, in chunks."""
    with get_sample_data("jacksboro_fault_dem.npz") as model:
        heights = model["elevation"][::-1].astype("float32")
        step_y = 111.2 * float(model["dy"])
        step_x = 111.2 * float(model["dx"]) * math.cos(math.radians(float(model["ymin"])))
    noise = np.random.default_rng(SEED).standard_normal(heights.shape, "float32")
    rows, columns = heights.shape
    km = {"units": "km"}
    coordinates = {
        "y": ("y", np.arange(rows) * step_y, km),
        "x": ("x", np.arange(columns) * step_x, km),
    }
    field = xr.DataArray(
        heights + np.float32(NOISE) * noise,
        coordinates,
        ("y", "x"),
        "height",
        attrs={"units": "m"},
    )
    return field.chunk(CHUNKS)


def filtered_by_numpy(field):
    """Return the filtered values of a field, computed by NumPy in one chunk."""
    values = field.values.astype(float)
    frequency_y = np.fft.fftfreq(values.shape[0], float(field.y[1] - field.y[0]))
    frequency_x = np.fft.rfftfreq(values.shape[1], float(field.x[1] - field.x[0]))
    lowpass = np.hypot(frequency_y[:, None], frequency_x) < CUTOFF
    return np.fft.irfft2(np.fft.rfft2(values) * lowpass, s=values.shape)


def run():
    """Return the field, its spectrum, the filtered field, and its distance from NumPy's."""
    field = noisy_heights()
    spectrum = field.bigfft.rfft(["y", "x"])
    lowpass = np.hypot(spectrum.freq_y, spectrum.freq_x) < CUTOFF
    smooth = (spectrum * lowpass).bigfft.irfft()

    expected = filtered_by_numpy(field)
    difference = np.linalg.norm(smooth.values - expected)
    return {
        "field": field,
        "spectrum": spectrum.bigfft.fftshift("freq_y"),
        "smooth": smooth,
        "error": float(difference / np.linalg.norm(expected)),
    }


def report(summary):
    """Print what a run did, and how far from NumPy it is."""
    rows, columns = summary["field"].shape
    chunks = " x ".join(map(str, summary["field"].data.numblocks))
    print(f"{rows} x {columns} heights in {chunks} chunks: {summary['smooth'].dtype}")
    print(f"  filtered: relative L2 distance from NumPy {summary['error']:.1e}")


def right(summary):
    """Return whether the answer is NumPy's in single precision."""
    return summary["smooth"].dtype == np.float32 and summary["error"] < 1e-6


def draw_heights(axes, heights, title):
    """Draw heights over kilometres, in the colors of an atlas."""
    extent = (0, float(heights.x[-1]), 0, float(heights.y[-1]))
    image = axes.imshow(
        heights.values,
        cmap="terrain",
        vmin=150,
        vmax=1000,
        extent=extent,
        origin="lower",
    )
    axes.set_title(title, size=10)
    axes.set_xlabel("x [km]", size=9)
    axes.tick_params(labelsize=8)
    return image


def draw_chunks(axes, field):
    """Draw the borders of the chunks of a field."""
    for edge in np.cumsum(field.chunks[0])[:-1]:
        axes.axhline(float(field.y[edge]), color="black", lw=0.8)
    for edge in np.cumsum(field.chunks[1])[:-1]:
        axes.axvline(float(field.x[edge]), color="black", lw=0.8)


def draw_spectrum(axes, spectrum):
    """Draw the logarithm of a half spectrum, and the cutoff."""
    power = np.log10(np.abs(spectrum.values) + 1)
    highest_y = float(abs(spectrum.freq_y).max())
    highest_x = float(spectrum.freq_x.max())
    extent = (0, highest_x, -highest_y, highest_y)
    axes.imshow(
        power,
        cmap="magma",
        vmin=3,
        extent=extent,
        origin="lower",
        aspect="auto",
    )
    angles = np.linspace(-math.pi / 2, math.pi / 2, 100)
    axes.plot(CUTOFF * np.cos(angles), CUTOFF * np.sin(angles), color="white", lw=1.5)
    axes.set(xlim=(0, 3 * CUTOFF), ylim=(-3 * CUTOFF, 3 * CUTOFF))
    axes.set_title("its spectrum; inside: kept", size=10)
    axes.set_xlabel("freq_x [1/km]", size=9)
    axes.set_ylabel("freq_y [1/km]", size=9)
    axes.tick_params(labelsize=8)


def draw(summary, path):
    """Save the picture, in few enough colors to be small."""
    figure = Figure(figsize=(10.5, 3.4), layout="constrained", facecolor="white")
    left, middle, right_axes = figure.subplots(1, 3, width_ratios=(1, 0.75, 1))
    draw_heights(left, summary["field"], "height [m] in 4 x 4 chunks, with noise")
    draw_chunks(left, summary["field"])
    draw_spectrum(middle, summary["spectrum"])
    image = draw_heights(right_axes, summary["smooth"], "smooth: wavelengths above 1 km")
    bar = figure.colorbar(image, ax=right_axes, shrink=0.9, pad=0.02)
    bar.ax.tick_params(labelsize=8)
    with io.BytesIO() as file:
        figure.savefig(file, dpi=80)
        image = Image.open(file).convert("RGB")
        image = image.quantize(96, kmeans=2, dither=Image.Dither.NONE)
    image.save(path, optimize=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--picture", type=Path, help="where to draw the result, as PNG")
    arguments = parser.parse_args()
    matplotlib.rcParams["font.family"] = "DejaVu Sans"  # comes with matplotlib
    summary = run()
    report(summary)
    if arguments.picture:
        draw(summary, arguments.picture)
    if not right(summary):
        raise SystemExit("the answer is wrong")


if __name__ == "__main__":
    main()
