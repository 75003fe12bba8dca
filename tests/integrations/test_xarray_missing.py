"""Transforms of xarray objects warn when they are computed and NaN everywhere."""

import warnings

import numpy as np
import pytest
import xarray as xr

import dask_bigfft.xarray  # noqa: F401


def field(chunks=None):
    """Return a field with one NaN."""
    values = np.random.default_rng(0).standard_normal((6, 8))
    values[2, 3] = np.nan
    array = xr.DataArray(values, dims=("y", "x"))
    return array if chunks is None else array.chunk(chunks)


#: Arguments of one slice that has all samples of a line.
SLICE = {
    "win": np.ones(15),
    "hop": 14,
    "p0": 0,
    "p1": 1,
}

CALLS = {
    "fft": lambda a: a.bigfft.fft(["y", "x"]),
    "shifted": lambda a: a.bigfft.fft(["y", "x"], shift=True),
    "rfft": lambda a: a.bigfft.rfft(["y", "x"]),
    "power_spectrum": lambda a: a.bigfft.power_spectrum(["y", "x"]),
    "lowpass": lambda a: a.bigfft.lowpass(["y", "x"], cutoff=0.1),
    "resample": lambda a: a.isel(y=[2]).bigfft.resample("x", num=5),
    "downsample": lambda a: a.bigfft.downsample(["y", "x"], factor=2),
    "stft": lambda a: a.isel(y=[2]).bigfft.stft("x", **SLICE),
    "spectrogram": lambda a: a.isel(y=[2]).bigfft.spectrogram("x", **SLICE),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_result_that_is_nan_everywhere(call):
    with pytest.warns(RuntimeWarning, match="NaN"):
        call(field())
    lazy = call(field({"y": 2, "x": 4}))
    with pytest.warns(RuntimeWarning, match="convolve_masked"):
        result = lazy.compute()
    assert result.isnull().all()


def test_an_inverse():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = field({"y": 2}).bigfft.fft().bigfft.ifft()
    with pytest.warns(RuntimeWarning, match="NaN"):
        back.compute()


@pytest.mark.parametrize("chunks", [None, {"y": 2, "x": 4}])
def test_other_results(chunks):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        lines = field(chunks).bigfft.fft("x").compute()
        whole = field(chunks).fillna(0).bigfft.fft().compute()
    assert lines.isnull().any(dim="freq_x").sum() == 1
    assert not whole.isnull().any()


def test_an_inverse_of_slices():
    line = field({"y": 2}).isel(y=[2]) * np.nan
    window = {"win": np.hanning(8)[1:], "hop": 3}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        back = line.bigfft.stft("x", **window).bigfft.istft(**window)
    with pytest.warns(RuntimeWarning, match="NaN"):
        back.compute()
