"""xarray's arrays, and code that was written for dask's own FFTs: examples/xarray_field.py

A field with coordinates, in chunks along all of its dimensions, is smoothed by the names of its
dimensions. Then `install()` lets functions that know nothing of this library, here those of NumPy
and of dask, take axes in many chunks.

With `--gib 2` a field of 2 GiB goes from Zarr to Zarr too, in a process that may allocate 1 GiB.
"""

import argparse
import multiprocessing
import resource
import tempfile
import time
from pathlib import Path

import dask.array as da
import numpy as np
from extras import extra

import dask_bigfft

with extra("xarray"):
    import xarray as xr

    import dask_bigfft.xarray  # gives arrays the attribute .bigfft


def made_up_field(n):
    """Return a wave of 8 km on noise, every 250 m, twice a day."""
    random = da.random.default_rng(0)
    places = {"y": np.arange(n) * 0.25, "x": np.arange(n + n // 4) * 0.25}
    noise = random.standard_normal((4, n, n + n // 4), chunks=(2, n // 4, n // 3))
    field = xr.DataArray(noise, dims=("time", "y", "x"), name="height", attrs={"units": "m"})
    field["time"] = np.datetime64("2026-03-01", "ns") + np.arange(4) * np.timedelta64(12, "h")
    for name, values in places.items():
        field[name] = xr.DataArray(values, dims=name, attrs={"units": "km"})
    wave = np.cos(2 * np.pi * (0.6 * field.x + 0.8 * field.y) / 8)
    return (field + 3 * wave).chunk(dict(zip(field.dims, noise.chunks, strict=True)))


# --- larger than memory -----------------------------------------------------------------------


def status(name):
    """Return an entry of the memory of this process (Linux) in GiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 2**20


def store_field(path, gib):
    """Store white noise of a size in Zarr, in chunks along both axes."""
    n = round((gib * 2**27) ** 0.5 / 16) * 16
    noise = da.random.default_rng(0).standard_normal((n, n), chunks=n // 8)
    places = {d: (d, np.arange(n) * 0.25, {"units": "km"}) for d in ("y", "x")}
    xr.Dataset({"height": (("y", "x"), noise, {"units": "m"})}, places).to_zarr(path)


def transform(source, target):
    """Transform a stored field in 1 GiB above what this process has after its imports."""
    base = status("VmRSS")
    allowed = int((status("VmData") + 1) * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (allowed, allowed))
    started = time.perf_counter()
    field = xr.open_zarr(source).height
    spectrum = field.bigfft.rfft(["y", "x"], memory_limit="300 MiB")
    spectrum.to_dataset().to_zarr(target)
    seconds = time.perf_counter() - started
    peak = status("VmHWM") - base
    print(f"From Zarr to Zarr in {seconds:.1f} s; peak memory {peak:.2f} GiB above the imports.")


def larger_than_memory(gib):
    """Transform a field of a size in another process, and check its lowest frequencies along y."""
    with tempfile.TemporaryDirectory(dir=".") as folder:
        source = f"{folder}/field.zarr"
        target = f"{folder}/spectrum.zarr"
        store_field(source, gib)
        process = multiprocessing.get_context("spawn").Process(
            target=transform, args=(source, target)
        )
        process.start()
        process.join()
        spectrum = xr.open_zarr(target).height
        lowest = spectrum[0].values
        expected = np.fft.rfft(xr.open_zarr(source).height.sum("y").values)
        error = abs(lowest - expected).max() / abs(lowest).max()
        units = spectrum.freq_x.attrs["units"]
        print(f"Frequencies and units as stored: {units}, error {error:.1e}.")
        if process.exitcode or not error < 1e-12:
            raise SystemExit("the answer is wrong")


def relative_error(values, expected):
    """Return the relative L2 distance."""
    return np.linalg.norm(np.asarray(values) - expected) / np.linalg.norm(expected)


def main():
    parser = argparse.ArgumentParser(description=__doc__ and __doc__.splitlines()[0])
    parser.add_argument("--n", type=int, default=480, help="length of the shorter side")
    parser.add_argument("--gib", type=float, default=0, help="size of a field larger than memory")
    arguments = parser.parse_args()
    if arguments.gib:
        larger_than_memory(arguments.gib)
    n = arguments.n

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
        by_numpy = np.fft.rfft2(field.data)
        by_dask = da.fft.rfft2(field.data)
    print(f"    {by_numpy}")
    try:
        da.fft.rfft2(field.data)
    except ValueError as error:
        print("Without, dask says:", " ".join(str(error).split()).partition(". An FFT")[0])

    values = field.values
    expected = np.fft.rfft2(values)
    expected_smooth = np.fft.irfft2(expected * low.values, s=values.shape[1:])
    errors = [relative_error(result, expected) for result in (spectrum, by_numpy, by_dask)]
    worst = max(*errors, relative_error(smooth, expected_smooth))
    print(f"The largest relative L2 distance from numpy.fft is {worst:.1e}.")
    if not (worst < 1e-14 and abs(length - 8) < 0.2 and np.array_equal(smooth.x, field.x)):
        raise SystemExit("the answer is wrong")


if __name__ == "__main__":
    main()
