"""A chart of the sea, filtered by names and units: examples/filters.py

A made-up sea surface on a grid of degrees has swell, eddies and noise. Filters of the accessor
`.bigfft` take wavelengths in kilometres or metres along the dimensions by name: a low-pass shows
the eddies, a band-pass the swell, its envelope how high the swell is, and a derivative the slope.
Everything is lazy and in chunks, and NumPy does the same without chunks. With matplotlib,
``--picture PATH`` draws it.
"""

import argparse
import importlib
import math

import dask
import numpy as np
from extras import extra

with extra("xarray"):
    import xarray as xr

    import dask_bigfft.xarray  # noqa: F401  gives arrays the attribute .bigfft

SEED = 8
LATITUDE = 30.0  # degrees, of the middle
STEP = 0.02  # degrees
METRES = 6_371_000 * math.pi / 180  # of a degree of latitude
SWELL = 40_000.0  # metres


def sea(n):
    """Return the height of a sea of n by n places, in metres; opposite edges fit."""
    places = (np.arange(n) - n // 2) * STEP
    latitude = LATITUDE + places
    narrowing = math.cos(math.radians((latitude[0] + latitude[-1]) / 2))
    y = places[:, None] * METRES
    x = places * METRES * narrowing
    height = n * STEP * METRES
    width = height * narrowing
    eddies = np.cos(4 * np.pi * y / height) * np.sin(6 * np.pi * x / width)
    bell = np.exp(-((x / width) ** 2 + (y / height) ** 2) * 30)
    swell = 0.4 * bell * np.cos(2 * np.pi * (0.8 * x + 0.6 * y) / SWELL)
    noise = 0.1 * np.random.default_rng(SEED).standard_normal((n, n))
    return xr.DataArray(
        eddies + swell + noise,
        {
            "lat": ("lat", latitude, {"units": "degrees_north"}),
            "lon": ("lon", places, {"units": "degrees_east"}),
        },
        ("lat", "lon"),
        "height",
        attrs={"units": "m"},
    )


def distance(a, b):
    """Return the relative L2 distance."""
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def run(n):
    """Return what a picture can show, and how far it is from NumPy."""
    height = sea(n)
    lazy = height.chunk({"lat": -(-n // 4), "lon": -(-n // 3)})
    both = ["lat", "lon"]
    large = lazy.bigfft.lowpass(both, cutoff=3 * SWELL, by="wavelength", metres=True)
    band = [0.7 * SWELL, 1.5 * SWELL]
    swell = lazy.bigfft.bandpass(both, band=band, by="wavelength", metres=True, edge="cosine")
    amplitude = swell.bigfft.envelope("lon")
    slope = large.bigfft.derivative("lat", metres=True)
    coarse = large.bigfft.downsample(both, factor=4)
    large, swell, amplitude, slope, coarse = dask.compute(large, swell, amplitude, slope, coarse)

    fy = np.fft.fftfreq(n, STEP * METRES)[:, None]
    middle = float(height.lat.min() + height.lat.max()) / 2
    fx = np.fft.fftfreq(n, STEP * METRES * math.cos(math.radians(middle)))
    response = 0.5 ** ((fy**2 + fx**2) * (3 * SWELL) ** 2)
    smooth = np.fft.fft2(height.values) * response
    expected_slope = np.fft.ifft2(2j * np.pi * np.where(2 * fy == -fy, 0, fy) * smooth).real
    return {
        "n": n,
        "chunks": lazy.chunks,
        "pictures": {
            "height": height,
            "large scales": large,
            "swell": swell,
            "envelope of the swell": amplitude,
        },
        "coarse": coarse,
        "slope_unit": slope.units,
        "errors": {
            "large scales, against NumPy": distance(large.values, np.fft.ifft2(smooth).real),
            "slope, against NumPy": distance(slope.values, expected_slope),
        },
        "highest": float(amplitude.max()),
    }


def report(summary):
    """Print what each filter is for, and how far it is from NumPy."""
    rows, columns = map(len, summary["chunks"])
    kilometres = SWELL / 1000
    worst = max(summary["errors"].values())
    print(f"A sea of {summary['n']} x {summary['n']} points in {rows} x {columns} chunks:")
    print(f"  lowpass: what is longer than {3 * kilometres:.0f} km, the eddies")
    print(
        f"  bandpass: waves of {0.7 * kilometres:.0f} to {1.5 * kilometres:.0f} km, the swell;"
        f" envelope: it is up to {summary['highest']:.2f} m high, 0.40 m was made"
    )
    print(
        f"  derivative: a slope in {summary['slope_unit']};"
        f" downsample: every fourth point, {summary['coarse'].shape}"
    )
    print(f"  Relative distance from NumPy without chunks: {worst:.0e}.")


def right(summary):
    """Return whether the answers are what is known."""
    return max(summary["errors"].values()) < 1e-9 and 0.3 < summary["highest"] < 0.6


def draw(summary, path):
    """Draw the sea, its large scales, its swell, and how high the swell is."""
    with extra("demo"):
        plt = importlib.import_module("matplotlib.pyplot")
    figure, axes = plt.subplots(2, 2, figsize=(9, 8))
    for place, (title, values) in zip(axes.flat, summary["pictures"].items(), strict=True):
        picture = place.pcolormesh(values.lon, values.lat, values, rasterized=True)
        place.set(title=f"{title}, m")
        figure.colorbar(picture, ax=place)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=400, help="edge of the sea, default 400")
    parser.add_argument("--picture", help="where to draw the result, with matplotlib")
    arguments = parser.parse_args()
    summary = run(arguments.n)
    report(summary)
    if arguments.picture:
        draw(summary, arguments.picture)
    if not right(summary):
        raise SystemExit("the answer is wrong")


if __name__ == "__main__":
    main()
