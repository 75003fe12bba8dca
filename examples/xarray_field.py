"""xarray's arrays, and code that was written for dask's own FFTs: examples/xarray_field.py

A field with coordinates, in chunks along all of its dimensions, is smoothed by the names of its
dimensions. Then `install()` lets functions that know nothing of this library, here those of NumPy
and of dask, take axes in many chunks.
"""

import argparse

import dask.array as da
import numpy as np
from extras import extra

import dask_bigfft

with extra("xarray"):
    import xarray as xr

    import dask_bigfft.xarray  # gives arrays the attribute .bigfft


def made_up_field(n):
    """A wave of 8 km on noise, every 250 m, twice a day."""
    random = da.random.default_rng(0)
    places = {"y": np.arange(n) * 0.25, "x": np.arange(n + n // 4) * 0.25}
    noise = random.standard_normal((4, n, n + n // 4), chunks=(2, n // 4, n // 3))
    field = xr.DataArray(noise, dims=("time", "y", "x"), name="height", attrs={"units": "m"})
    field["time"] = np.datetime64("2026-03-01", "ns") + np.arange(4) * np.timedelta64(12, "h")
    for name, values in places.items():
        field[name] = xr.DataArray(values, dims=name, attrs={"units": "km"})
    wave = np.cos(2 * np.pi * (0.6 * field.x + 0.8 * field.y) / 8)
    return (field + 3 * wave).chunk(dict(zip(field.dims, noise.chunks, strict=True)))


def main():
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=480, help="length of the shorter side")
    n = parser.parse_args().n

    field = made_up_field(n)
    print(f"The field: {dict(field.sizes)} in chunks {field.data.chunksize}.\n")

    spectrum = field.bigfft.rfft(["y", "x"])
    print(f"field.bigfft.rfft(['y', 'x']) has the dimensions {spectrum.dims}, lazily;")
    print(f"freq_x is in {spectrum.freq_x.units}, and time is as it was.\n")

    power = (abs(spectrum) ** 2).mean("time").compute()
    peak = power.isel(power.argmax(...))
    length = 1 / np.hypot(peak.freq_x, peak.freq_y).item()
    print(f"Its largest power is at a wavelength of {length:.2f} km.")

    low = np.hypot(spectrum.freq_y, spectrum.freq_x) < 0.2
    smooth = (spectrum * low).bigfft.irfft()
    print(f"Smoothed, it has its coordinates again: {list(smooth.coords)}.\n")

    print("With dask_bigfft.installed(), NumPy's and dask's own functions take the array:")
    with dask_bigfft.installed():
        ours = np.fft.rfft2(field.data), da.fft.rfft2(field.data)
    print(f"    {ours[0]}")
    try:
        da.fft.rfft2(field.data)
    except ValueError as error:
        print("Without, dask says:", " ".join(str(error).split()).partition(". An FFT")[0])

    values = field.values
    wanted = np.fft.rfft2(values)
    wanted_smooth = np.fft.irfft2(wanted * low.values, s=values.shape[1:])
    pairs = [(spectrum, wanted), (ours[0], wanted), (ours[1], wanted), (smooth, wanted_smooth)]
    worst = max(np.linalg.norm(np.asarray(a) - b) / np.linalg.norm(b) for a, b in pairs)
    print(f"The largest relative L2 distance from numpy.fft is {worst:.1e}.")
    if not (worst < 1e-14 and abs(length - 8) < 0.2 and np.array_equal(smooth.x, field.x)):
        raise SystemExit("the answer is wrong")


if __name__ == "__main__":
    main()
