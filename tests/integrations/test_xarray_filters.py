"""Filters by the names of dimensions: values, coordinates and units."""

import dask.array as da
import numpy as np
import pytest
import scipy.signal
import xarray as xr

import dask_bigfft.xarray as bx
from dask_bigfft import signal
from dask_bigfft.errors import ArgumentError, ArgumentTypeError

CHUNKS = {"y": 7, "x": 10}
DISTANCES = {"spacing": (0.5, 2.0)}


def field(chunks=None, dtype="f8", **changed):
    """Return a field on a grid of 0.5 km by -2 km, with another coordinate along each dimension."""
    coords = {
        "y": ("y", 5 + 0.5 * np.arange(20), {"units": "km"}),
        "x": ("x", 80 - 2.0 * np.arange(30), {"units": "km"}),
        "name": ("x", [f"x{i}" for i in range(30)]),
        **changed,
    }
    values = np.random.default_rng(3).standard_normal((2, 20, 30)).astype(dtype)
    array = xr.DataArray(
        values,
        coords,
        ("time", "y", "x"),
        "T",
        attrs={"units": "K"},
    )
    return array if chunks is None else array.chunk(chunks)


def require_like(
    result,
    array,
    expected,
    units="K",
):
    """Fail where values, dimensions, coordinates or attributes differ."""
    is_lazy = isinstance(array.data, da.Array)
    assert isinstance(result.data, da.Array if is_lazy else np.ndarray)
    assert (result.dims, result.name) == (array.dims, array.name)
    assert result.attrs == ({} if units is None else {"units": units})
    xr.testing.assert_identical(result.coords.to_dataset(), array.coords.to_dataset())
    np.testing.assert_allclose(
        result.values,
        expected,
        atol=1e-10,
    )


@pytest.mark.parametrize("chunks", [None, CHUNKS])
@pytest.mark.parametrize("name", ["lowpass", "highpass", "bandpass", "bandstop"])
def test_filters(name, chunks):
    a = field(chunks)
    keywords = {"by": "wavelength", "edge": "cosine", "width": 0.5}
    cutoff = {"band": (6, 12)} if name.startswith("band") else {"cutoff": 6}
    result = getattr(a.bigfft, name)(
        ["y", "x"],
        **cutoff,
        **keywords,
    )
    expected = getattr(signal, name)(
        field().values,
        *cutoff.values(),
        (1, 2),
        **keywords,
        **DISTANCES,
    )
    require_like(
        result,
        a,
        expected,
    )


@pytest.mark.parametrize("chunks", [None, CHUNKS])
def test_functions_of_one_dimension(chunks):
    a = field(chunks)
    values = field().values
    slope = signal.derivative(
        values,
        2,
        d=2.0,
    ).compute()
    require_like(
        a.bigfft.derivative("x"),
        a,
        -slope,
        "(K)/(km)",
    )
    second = signal.derivative(
        values,
        2,
        2,
        d=2.0,
    )
    require_like(
        a.bigfft.derivative("x", order=2),
        a,
        second,
        "(K)/(km)^2",
    )
    analytic = scipy.signal.hilbert(values, axis=2)
    require_like(
        a.bigfft.hilbert("x"),
        a,
        analytic.conj(),
    )
    require_like(
        a.bigfft.envelope("x"),
        a,
        np.abs(analytic),
    )
    require_like(
        bx.envelope(a, "y"),
        a,
        np.abs(scipy.signal.hilbert(values, axis=1)),
    )


@pytest.mark.parametrize("chunks", [None, CHUNKS])
def test_values_move_towards_higher_coordinates(chunks):
    a = field(chunks)
    moved = a.bigfft.shift(["y", "x"], distance=(1.0, 4.0))
    require_like(
        moved,
        a,
        np.roll(
            field().values,
            (2, -2),
            (1, 2),
        ),
    )
    times = np.datetime64("2026-03-01", "ns") + np.arange(20) * np.timedelta64(2, "s")
    dated = field(chunks, y=times)
    later = dated.bigfft.shift("y", distance=np.timedelta64(4, "s"))
    require_like(
        later,
        dated,
        np.roll(
            field().values,
            2,
            1,
        ),
    )


@pytest.mark.parametrize("chunks", [None, CHUNKS])
def test_convolutions(chunks):
    a = field(chunks)
    values = field().values
    kernel = xr.DataArray(np.arange(15.0).reshape(5, 3), dims=("x", "y"))
    expected = scipy.signal.convolve(
        values,
        kernel.values.T[None],
        "same",
    )
    require_like(
        a.bigfft.convolve(["y", "x"], kernel=kernel),
        a,
        expected,
    )
    require_like(
        a.bigfft.convolve(["x", "y"], kernel=kernel.values),
        a,
        expected,
    )
    mask = xr.DataArray(np.random.default_rng(0).random((30, 20)) < 0.2, dims=("x", "y"))
    masked = signal.convolve_masked(
        values,
        kernel.values.T[None],
        mask.values.T,
    )
    result = a.bigfft.convolve_masked(
        ["y", "x"],
        kernel=kernel,
        mask=mask,
    )
    require_like(
        result,
        a,
        masked,
    )


@pytest.mark.parametrize("chunks", [None, CHUNKS])
def test_power_of_known_values(chunks):
    a = field(chunks)
    mask = np.random.default_rng(0).random((20, 30)) < 0.1
    named = xr.DataArray(mask.T, dims=("x", "y"))
    power = a.bigfft.power_spectrum(["y", "x"], mask=named)
    expected = signal.power_spectrum(
        field().values,
        (1, 2),
        d=(0.5, 2.0),
        mask=mask,
    )
    np.testing.assert_allclose(power, expected)


@pytest.mark.parametrize("chunks", [None, CHUNKS])
def test_gaps(chunks):
    a = field(chunks)
    mask = np.random.default_rng(0).random((20, 30)) < 0.1
    options = {"band": (0.4, 0.1), "iterations": 5, "tolerance": 0.9}
    filled = a.bigfft.fill_gaps(
        ["y", "x"],
        mask=xr.DataArray(mask, dims=("y", "x")),
        **options,
    )
    expected = signal.fill_gaps(
        field().values,
        mask,
        axes=(1, 2),
        **options,
        **DISTANCES,
    )[0]
    require_like(
        filled,
        a,
        expected,
    )


@pytest.mark.parametrize("chunks", [None, CHUNKS])
def test_other_samplings(chunks):
    a = field(chunks)
    values = field().values
    fine = a.bigfft.resample("x", num=45)
    np.testing.assert_allclose(
        fine,
        scipy.signal.resample(
            values,
            45,
            axis=2,
        ),
        atol=1e-10,
    )
    np.testing.assert_allclose(fine.x, 80 - 2.0 * 30 / 45 * np.arange(45))
    assert (set(fine.coords), fine.attrs) == ({"y", "x"}, a.attrs)
    coarse = a.bigfft.downsample(["y", "x"], factor=(2, 3))
    expected = signal.downsample(
        values,
        (2, 3),
        (1, 2),
    )
    xr.testing.assert_identical(coarse.coords.to_dataset(), a[:, ::2, ::3].coords.to_dataset())
    np.testing.assert_allclose(
        coarse,
        expected,
        atol=1e-10,
    )


@pytest.mark.parametrize("chunks", [None, CHUNKS])
@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
def test_padding_and_back(chunks, mode):
    a = field(chunks).drop_vars("name")
    padded = a.bigfft.pad(
        ["y", "x"],
        width={"y": 3, "x": (0, 5)},
        mode=mode,
    )
    expected = np.pad(
        field().values,
        [(0, 0), (3, 3), (0, 5)],
        mode=mode,
    )
    np.testing.assert_array_equal(padded, expected)
    np.testing.assert_allclose(padded.y, 3.5 + 0.5 * np.arange(26))
    np.testing.assert_allclose(padded.x, 80 - 2.0 * np.arange(35))
    xr.testing.assert_identical(padded.bigfft.unpad(), a)
    xr.testing.assert_equal(padded.bigfft.unpad("y", width=3)[:, :, :30], a)


def test_padding_of_times_and_integers():
    times = np.datetime64("2026-03-01", "ns") + np.arange(20) * np.timedelta64(2, "s")
    a = field(y=times, x=np.arange(30) * 3).drop_vars("name")
    padded = a.bigfft.pad(["y", "x"], width=(2, 1))
    assert padded.y.values[0] == times[0] - np.timedelta64(4, "s")
    assert padded.x.dtype == a.x.dtype
    xr.testing.assert_identical(padded.bigfft.unpad(["y", "x"]), a)


def test_ratios_of_two_arrays():
    a = field(CHUNKS)
    b = (a.roll(x=1, roll_coords=False) * 3).assign_attrs(units="m")
    coherent = a.bigfft.coherence(
        b,
        "x",
        nperseg=10,
    )
    _, expected = scipy.signal.coherence(
        a.values,
        b.values,
        0.5,
        nperseg=10,
        axis=2,
    )
    np.testing.assert_allclose(coherent, expected)
    assert coherent.dims == ("time", "y", "freq_x")
    assert "units" not in coherent.attrs
    response = bx.transfer_function(
        a,
        b,
        "x",
        nperseg=10,
    )
    _, expected = signal.transfer_function(
        a.values,
        b.values,
        0.5,
        nperseg=10,
        axis=2,
    )
    np.testing.assert_allclose(response, expected)
    assert response.units == "(m)/(K)"


def test_degrees_in_metres():
    lat = ("y", 40 + 0.1 * np.arange(20), {"units": "degrees_north"})
    lon = ("x", 5 + 0.2 * np.arange(30), {"units": "degrees_east"})
    a = field(
        CHUNKS,
        y=lat,
        x=lon,
    )
    metres = 6_371_000 * np.pi / 180
    middle = np.cos(np.deg2rad(40.95))
    spacing = (0.1 * metres, 0.2 * metres * middle)
    result = a.bigfft.lowpass(
        ["y", "x"],
        cutoff=50_000,
        by="wavelength",
        metres=True,
    )
    expected = signal.lowpass(
        field().values,
        1 / 50_000,
        (1, 2),
        spacing=spacing,
    )
    require_like(
        result,
        a,
        expected,
    )
    slope = a.bigfft.derivative("x", metres=True)
    require_like(
        slope,
        a,
        signal.derivative(
            field().values,
            2,
            d=spacing[1],
        ),
        "(K)/(m)",
    )
    with pytest.raises(ArgumentError, match="metres"):
        a.bigfft.lowpass(
            "time",
            cutoff=3,
            metres=True,
        )


def test_single_precision_stays():
    a = field(CHUNKS, "f4")
    assert a.bigfft.lowpass(["y", "x"], cutoff=0.2).dtype == np.float32
    assert a.bigfft.derivative("x").dtype == np.float32
    assert a.bigfft.convolve(["y", "x"], kernel=np.ones((3, 3), "f4")).dtype == np.float32
    assert a.bigfft.hilbert("x").dtype == np.complex64


def test_datasets():
    a = field(CHUNKS)
    fields = xr.Dataset(
        {
            "T": a,
            "S": 2 * a,
            "of_time": a.isel(
                x=0,
                y=0,
                drop=True,
            ),
        }
    )
    smooth = fields.bigfft.lowpass(["y", "x"], cutoff=0.2)
    xr.testing.assert_identical(smooth.S, fields.S.bigfft.lowpass(["y", "x"], cutoff=0.2))
    xr.testing.assert_identical(smooth.of_time, fields.of_time)
    assert fields.bigfft.downsample("x", factor=2).sizes["x"] == 15


@pytest.mark.parametrize(
    ("name", "arguments", "kind", "named"),
    [
        (
            "lowpass",
            {"cutoff": 3, "bye": 2},
            ArgumentTypeError,
            "bye",
        ),
        (
            "lowpass",
            {"cutoff": 0},
            ArgumentError,
            "cutoff",
        ),
        (
            "lowpass",
            {"cutoff": 1, "metres": 1},
            ArgumentTypeError,
            "metres",
        ),
        (
            "derivative",
            {"dim": ["x", "y"]},
            ArgumentError,
            "dim",
        ),
        (
            "convolve",
            {"kernel": np.ones(3)},
            ArgumentError,
            "kernel",
        ),
        (
            "convolve",
            {"kernel": xr.DataArray([1.0], dims="z")},
            ArgumentError,
            "kernel",
        ),
        (
            "fill_gaps",
            {"band": 1, "mask": xr.DataArray([True], dims="z")},
            ArgumentError,
            "mask",
        ),
        (
            "shift",
            {"distance": (1, 2, 3, 4)},
            ArgumentError,
            "distance",
        ),
        (
            "pad",
            {"width": (1, 2, 3)},
            ArgumentError,
            "width",
        ),
        (
            "pad",
            {"width": {"z": 1}},
            ArgumentError,
            "width",
        ),
        (
            "pad",
            {"width": 1, "mode": "mean"},
            ArgumentError,
            "mode",
        ),
        (
            "unpad",
            {"dim": "x"},
            ArgumentError,
            "width",
        ),
        (
            "unpad",
            {"dim": "x", "width": 15},
            ArgumentError,
            "width",
        ),
    ],
)
def test_wrong_arguments_are_named(
    name,
    arguments,
    kind,
    named,
):
    with pytest.raises(kind, match=named):
        getattr(field().bigfft, name)(**arguments)
