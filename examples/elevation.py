"""Smooth a real elevation model in its spectrum and light its slopes: examples/elevation.py

The model is the Jacksboro fault (Tennessee), 344 x 403 heights that come with matplotlib. It is cut
into chunks along both axes, which `dask.array.fft` refuses, and goes through `rfft2`, a Gaussian
low-pass times the derivative along each axis, and `irfft2`. SciPy does the same without chunks.
"""

import argparse
import math

import dask
import dask.array as da
import numpy as np
import scipy.fft
from extras import extra

from dask_bigfft import fft

with extra("demo"):
    from matplotlib.cbook import get_sample_data

SMOOTHING = 150.0  # metres, the standard deviation of the Gaussian
SUN = (315.0, 35.0)  # degrees: compass direction and height


def heights_and_steps():
    """Return heights in metres, row 0 in the north, and the distances of rows and columns."""
    with get_sample_data("jacksboro_fault_dem.npz") as model:
        heights = model["elevation"].astype(float)
        dy = 111_200.0 * float(model["dy"])
        dx = 111_200.0 * float(model["dx"]) * math.cos(math.radians(float(model["ymin"])))
    return heights, dy, dx


def slopes(spectrum, fy, fx):
    """Return spectra of the slopes along y and x of the smoothed heights."""
    smoothed = np.exp(-2 * (math.pi * SMOOTHING) ** 2 * (fy**2 + fx**2)) * spectrum
    return 2j * math.pi * fy * smoothed, 2j * math.pi * fx * smoothed


def hillshade(sy, sx):
    """Return how bright the slopes are in the sun, 0..1."""
    direction, height = map(math.radians, SUN)
    uphill = sy * math.cos(direction) - sx * math.sin(direction)
    lit = math.sin(height) + math.cos(height) * uphill
    return np.clip(lit / np.sqrt(1 + sy**2 + sx**2), 0, 1)


def relative_error(values, expected):
    """Return the L2 norm of the difference over that of the expected values."""
    return float(np.linalg.norm(values - expected) / np.linalg.norm(expected))


def run(chunk=150):
    """Return what a picture can show, and how far it is from SciPy."""
    heights, dy, dx = heights_and_steps()
    # The mirror images make opposite edges meet, so that the spectrum sees no cliff there.
    mirrored = np.pad(heights, [(0, n) for n in heights.shape], mode="symmetric")

    x = da.from_array(mirrored, chunks=(chunk, chunk))
    spectrum = fft.rfft2(x)
    fy = fft.fftfreq(x.shape[0], dy)[:, None]
    fx = fft.rfftfreq(x.shape[1], dx)[None, :]
    lazy = [fft.irfft2(s, s=x.shape, axes=(0, 1)) for s in slopes(spectrum, fy, fx)]
    spectrum, sy, sx = dask.compute(spectrum, *lazy)

    reference = scipy.fft.rfft2(mirrored)
    fy = np.fft.fftfreq(x.shape[0], dy)[:, None]
    fx = np.fft.rfftfreq(x.shape[1], dx)[None, :]
    expected_spectra = slopes(reference, fy, fx)

    rows, columns = heights.shape
    ours = np.stack([sy, sx])[:, :rows, :columns]
    expected = np.stack([scipy.fft.irfft2(s, s=x.shape) for s in expected_spectra])
    expected = expected[:, :rows, :columns]
    return {
        "chunks": x.chunks,
        "input": heights,
        "spectrum": np.fft.fftshift(np.abs(spectrum), axes=0),
        "result": hillshade(ours[0], ours[1]),
        "difference": np.hypot(ours[0] - expected[0], ours[1] - expected[1]),
        "errors": {
            "spectrum": relative_error(spectrum, reference),
            "slopes": relative_error(ours, expected),
        },
    }


def report(summary):
    """Print what a run did and how far from SciPy it is."""
    rows, columns = summary["result"].shape
    row_chunks, column_chunks = summary["chunks"]
    print(
        f"{rows} x {columns} heights, mirrored to {sum(row_chunks)} x {sum(column_chunks)},"
        f" in {len(row_chunks)} x {len(column_chunks)} chunks"
    )
    for name, error in summary["errors"].items():
        same = "" if error else ", the same bit for bit"
        print(f"  {name}: relative L2 distance from SciPy {error:.1e}{same}")


def right(summary):
    """Return whether the answer is SciPy's."""
    return max(summary["errors"].values()) < 1e-14


def main():
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--chunk", type=int, default=150, help="edge of a chunk, default 150")
    summary = run(parser.parse_args().chunk)
    report(summary)
    if not right(summary):
        raise SystemExit("the answer is wrong")


if __name__ == "__main__":
    main()
