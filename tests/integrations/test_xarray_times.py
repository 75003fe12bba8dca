"""Coordinates of times in any unit, there and back."""

import numpy as np
import pytest
import xarray as xr

import dask_bigfft.xarray as bx


def series(first, step, dtype, n=12):
    times = np.datetime64(first).astype(dtype) + np.arange(n) * np.timedelta64(step, "s")
    return xr.DataArray(np.arange(n) % 5.0, dims="t", coords={"t": times.astype(dtype)})


@pytest.mark.parametrize("dtype", ["M8[s]", "M8[ms]", "M8[us]"])
@pytest.mark.parametrize("first", ["3500-01-01", "0001-01-01"])
def test_times_that_nanoseconds_do_not_reach(first, dtype):
    x = series(first, 86400, dtype)
    spectrum = bx.fft(x)
    np.testing.assert_allclose(spectrum.freq_t, np.fft.fftfreq(12, 86400.0), rtol=1e-14)
    assert spectrum.freq_t.attrs["units"] == "Hz"
    again = bx.ifft(spectrum)
    assert again.t.dtype == x.t.dtype
    np.testing.assert_array_equal(again.t, x.t)


def test_more_samples_than_whole_seconds():
    found = bx.irfft(bx.rfft(series("2026-01-01", 1, "M8[s]")), n=24).t.values
    assert found.dtype == np.dtype("M8[ms]")
    assert set(np.diff(found)) == {np.timedelta64(500, "ms")}
    third = bx.irfft(bx.rfft(series("2026-01-01", 1, "M8[s]")), n=36).t.values
    assert third.dtype == np.dtype("M8[ns]")
    assert len(set(third)) == 36


def test_files_without_a_unit_of_time_have_nanoseconds():
    spectrum = bx.fft(series("2026-01-01", 60, "M8[s]"))
    attrs = spectrum.freq_t.attrs
    del attrs["direct_time_unit"]
    attrs["direct_first"] *= 10**9
    attrs["direct_step"] *= 1e9
    again = bx.ifft(spectrum).t.values
    np.testing.assert_array_equal(again, series("2026-01-01", 60, "M8[s]").t)
