"""Heights with holes: smoothed, filled, and their power spectrum: examples/holes.py

The model is the Jacksboro fault (Tennessee), 344 x 403 heights that come with matplotlib. Three
tenths of them are taken away. `convolve_masked` smooths what is left without a trace of the holes,
`power_spectrum` allows for them, and `fill_gaps` finds the missing heights of a smooth model again.
Everything is lazy and in chunks, and the answers are held against the whole model.
"""

import argparse
import importlib

import dask
import dask.array as da
import numpy as np
import scipy.signal
from extras import extra

from dask_bigfft import signal

with extra("demo"):
    from matplotlib.cbook import get_sample_data

SEED = 3
BAND = 0.02  # cycles per sample


def heights():
    """Return heights in metres above their mean."""
    with get_sample_data("jacksboro_fault_dem.npz") as model:
        values = model["elevation"].astype(float)
    return values - values.mean()


def gaussian(size, width):
    """Return the values of a round kernel."""
    places = np.arange(size) - size // 2
    bell = np.exp(-(places**2) / (2 * width**2))
    return bell[:, None] * bell


def distance(a, b):
    """Return the relative L2 distance."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def run(chunk=120, iterations=40):
    """Return what a picture can show, and how far it is from what is known."""
    values = heights()
    mask = np.random.default_rng(SEED).random(values.shape) < 0.3
    damaged = da.from_array(np.where(mask, np.nan, values), chunks=chunk, name=False)
    kernel = gaussian(21, 4.0)
    smooth = signal.convolve_masked(damaged, kernel)
    power = signal.power_spectrum(damaged, mask=mask, scaling="spectrum")

    model = signal.lowpass(da.from_array(values, chunks=chunk, name=False), BAND, edge="sharp")
    holed = da.where(da.from_array(mask, chunks=chunk), np.nan, model)
    filled, misfits = signal.fill_gaps(holed, band=BAND, iterations=iterations)
    results = dask.compute(smooth, power, model, filled, misfits)
    smooth, power, model, filled, misfits = results

    # The sum that defines the convolution, of the values and of their weights.
    weights = scipy.signal.convolve(~mask * 1.0, kernel, "same", "direct")
    sums = scipy.signal.convolve(np.where(mask, 0, values), kernel, "same", "direct")
    outside = kernel.sum() - scipy.signal.convolve(np.ones(mask.shape), kernel, "same", "direct")
    return {
        "shape": values.shape,
        "blocks": damaged.numblocks,
        "heights": values,
        "mask": mask,
        "smooth": smooth,
        "misfits": misfits,
        "power": float(power.sum() / np.mean(values[~mask] ** 2)),
        "errors": {
            "smoothed, against sums": distance(smooth, sums / (weights + outside)),
        },
        "model": model,
        "filled": filled,
        "gap_error": distance(filled[mask], model[mask]),
    }


def report(summary):
    """Print what each function is for, and how far it is from what is known."""
    edges = " x ".join(map(str, summary["shape"]))
    chunks = " x ".join(map(str, summary["blocks"]))
    missing = summary["mask"].mean()
    mean_error = max(summary["errors"].values())
    gap_error = summary["gap_error"]
    print(f"{edges} heights in {chunks} chunks, {missing:.0%} missing:")
    print(f"  convolve_masked: means of the known heights; distance from sums {mean_error:.0e}")
    print(
        f"  power_spectrum: its sum is {summary['power']:.6f} times the mean square of the known"
        " heights"
    )
    print(f"  fill_gaps: what is missing in a smooth model is found again; error {gap_error:.0e}")


def right(summary):
    """Return whether the answers are what is known."""
    return (
        max(summary["errors"].values()) < 1e-10
        and abs(summary["power"] - 1) < 1e-9
        and summary["gap_error"] < 1e-3
    )


def draw(summary, path):
    """Draw the heights with holes, smoothed, and the convergence of the filled model."""
    with extra("demo"):
        plt = importlib.import_module("matplotlib.pyplot")
    figure, axes = plt.subplots(2, 2, figsize=(9, 8))
    mask = summary["mask"]
    pictures = {
        "heights with holes": np.where(mask, np.nan, summary["heights"]),
        "convolve_masked": summary["smooth"],
        "smooth model, fill_gaps": summary["filled"],
    }
    for place, (title, values) in zip(axes.flat, pictures.items(), strict=False):
        place.imshow(values, cmap="terrain")
        place.set(title=title, xticks=[], yticks=[])
    axes[1, 1].semilogy(summary["misfits"])
    axes[1, 1].set(xlabel="iteration", title="misfit at known values")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--chunk", type=int, default=120, help="edge of a chunk, default 120")
    parser.add_argument("--picture", help="where to draw the result, with matplotlib")
    arguments = parser.parse_args()
    summary = run(arguments.chunk)
    report(summary)
    if arguments.picture:
        draw(summary, arguments.picture)
    if not right(summary):
        raise SystemExit("the answer is wrong")


if __name__ == "__main__":
    main()
