"""Calls of `xarray` and `signal` that ci/lint gives to mypy: an ignored line has to be an error."""

from typing import assert_type

import dask.array as da
import xarray as xr

import dask_bigfft.xarray as bx
from dask_bigfft import plan, signal
from dask_bigfft.planner.plan import Plan
from dask_bigfft.signal.segment_plan import SegmentPlan
from dask_bigfft.xarray.accessor import Accessor


def calls_of_arrays(field: xr.DataArray) -> None:
    """Name dimensions and keywords of functions of arrays."""
    spectrum = bx.rfft(field, ["y", "x"], detrend="constant", window="hann", memory_limit="1 GiB")
    assert_type(spectrum, xr.DataArray)
    assert_type(bx.irfft(spectrum, n=5), xr.DataArray)
    assert_type(bx.dct(field, "x", type=3), xr.DataArray)
    assert_type(bx.fft(field, band={"x": (0.0, 0.1)}, chunks={"freq_x": 3}), xr.DataArray)
    assert_type(bx.lowpass(field, "x", cutoff=3.0, by="wavelength"), xr.DataArray)
    assert_type(bx.stft(field, "x", win=[1.0, 1.0], hop=1), xr.DataArray)
    assert_type(bx.csd(field, field, "x", nperseg=8), xr.DataArray)
    assert_type(bx.plan(field, "rfft", ["y", "x"]), Plan)
    bx.rfft(field, detrend="median")  # type: ignore[arg-type]
    bx.rfft(field, windows="hann")  # type: ignore[call-arg]
    bx.lowpass(field)  # type: ignore[call-arg]
    bx.power_spectrum(field, scaling="psd")  # type: ignore[arg-type]


def calls_of_datasets(fields: xr.Dataset) -> None:
    """Transform the variables of a dataset."""
    assert_type(bx.rfft(fields, "x"), xr.Dataset)
    assert_type(bx.welch(fields, "x"), xr.Dataset)
    bx.cross_spectrum(fields, fields)  # type: ignore[arg-type]


def calls_of_the_accessor(field: xr.DataArray, fields: xr.Dataset) -> None:
    """Call methods of an accessor: they return what their function returns."""
    assert_type(Accessor(field).rfft("x", detrend="linear", shift=True), xr.DataArray)
    assert_type(Accessor(fields).lowpass("x", cutoff=3.0), xr.Dataset)
    assert_type(Accessor(field).csd(field, "x", nperseg=8), xr.DataArray)
    assert_type(Accessor(field).plan("lowpass", ["y", "x"], cutoff=3.0), Plan)
    assert_type(Accessor(field).plan("welch", "x", nperseg=8), SegmentPlan)
    Accessor(field).plan(dimension="x", kind=3)  # type: ignore[call-overload]
    Accessor(field).welch("x", npersegment=8)  # type: ignore[call-arg]
    Accessor(field).spectrum("x")  # type: ignore[attr-defined]
    Accessor(fields).csd(fields, "x")  # type: ignore[arg-type, misc]


def calls_of_signals(x: da.Array) -> None:
    """Name keywords of functions of dask arrays."""
    assert_type(signal.lowpass(x, 0.1, axes=0, memory_limit="1 GiB", device="cpu"), da.Array)
    assert_type(signal.welch(x, nperseg=8, chunks="auto")[1], da.Array)
    assert_type(signal.convolve_masked(x, [1.0], verify="energy"), da.Array)
    assert_type(plan(x, "power_spectrum", axes=0), Plan)
    assert_type(plan(x, "welch", nperseg=8), SegmentPlan)
    signal.lowpass(x, 0.1, memory="1 GiB")  # type: ignore[call-arg]
    signal.welch(x, device="tpu")  # type: ignore[arg-type]
    signal.convolve_masked(x, [1.0], planer="measure")  # type: ignore[call-arg]
