"""Spectra at chosen points by the names of dimensions: values, coordinates and units."""

import numpy as np
import pytest
import scipy.signal
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from records import CASES

import dask_bigfft.xarray as bx
from dask_bigfft.errors import ArgumentError, ArgumentTypeError
from dask_bigfft.testing.strategies import random_array


def record(
    n=120,
    step=0.5,
    dtype="f8",
    **changed,
):
    """Return a field whose first dimension is sampled evenly in km."""
    coords = {"x": ("x", 5 + step * np.arange(n), {"units": "km"}), "y": np.arange(3), **changed}
    return xr.DataArray(
        random_array((n, 3), dtype, 1),
        coords,
        ("x", "y"),
        "T",
        attrs={"units": "K"},
    )


def spectrum_by_definition(array, frequencies, spacing):
    """Return the sums over samples of the array times waves from the first sample on."""
    places = np.arange(array.sizes["x"]) * spacing
    waves = np.exp(-2j * np.pi * np.outer(frequencies, places))
    return waves @ array.values


@CASES
@given(
    data=st.data(),
    n=st.integers(1, 60),
    step=st.sampled_from([0.5, -0.25, 3.0]),
    dtype=st.sampled_from(["f8", "f4", "c16", "i2"]),
)
def test_a_zoom_has_the_frequencies_of_its_coordinate(
    data,
    n,
    step,
    dtype,
):
    a = record(n, step, dtype)
    if data.draw(st.booleans()):
        a = a.chunk({"x": data.draw(st.integers(1, n)), "y": 2})
    count = data.draw(st.integers(1, 30))
    low = data.draw(st.floats(-2, 2))
    high = data.draw(st.floats(-2, 2))
    zoomed = a.bigfft.zoom_fft("x", fn=(low, high), m=count)
    spacing = step if n > 1 else 1.0
    frequencies = low + (high - low) * np.arange(count) / count
    expected = spectrum_by_definition(a, frequencies, spacing)
    np.testing.assert_allclose(
        zoomed.freq_x,
        frequencies,
        atol=1e-14,
    )
    tolerance = 1e-5 if dtype == "f4" else 1e-12
    np.testing.assert_allclose(
        zoomed.values,
        expected,
        atol=tolerance * (1 + np.abs(a.values).sum()),
    )
    assert zoomed.dtype == ("c8" if dtype == "f4" else "c16")
    assert (zoomed.chunks is None) == (a.chunks is None)
    assert (zoomed.dims, zoomed.name, zoomed.units) == (("freq_x", "y"), "T", "K")
    assert zoomed.freq_x.units == "1/km" or n == 1


def test_a_zoom_into_times_is_in_hertz():
    times = np.datetime64("2026-03-01", "ns") + np.arange(120) * np.timedelta64(250, "ms")
    a = record(x=times)
    zoomed = a.bigfft.zoom_fft(
        "x",
        fn=1.5,
        m=7,
        endpoint=True,
    )
    assert zoomed.freq_x.units == "Hz"
    np.testing.assert_allclose(zoomed.freq_x, np.linspace(0, 1.5, 7))
    expected = spectrum_by_definition(a, zoomed.freq_x.values, 0.25)
    np.testing.assert_allclose(zoomed, expected, atol=1e-10)


def test_frequencies_of_samples_are_those_of_fft():
    a = record()
    zoomed = bx.zoom_fft(a, "x", fn=(0, 2))
    spectrum = bx.fft(a, "x")
    np.testing.assert_allclose(zoomed[:60], spectrum[:60], atol=1e-10)
    with pytest.raises(ArgumentError, match="all frequencies"):
        zoomed.bigfft.ifft()


@CASES
@given(
    data=st.data(),
    n=st.integers(1, 40),
    dtype=st.sampled_from(["f8", "c16"]),
)
def test_a_spiral_has_its_points(data, n, dtype):
    a = record(n, dtype=dtype)
    if data.draw(st.booleans()):
        a = a.chunk({"x": data.draw(st.integers(1, n))})
    count = data.draw(st.integers(1, 30) | st.none())
    angles = st.floats(-3, 3)
    ratio = data.draw(st.none() | angles.map(lambda turn: 0.98 * np.exp(1j * turn)))
    start = 1.02 * np.exp(1j * data.draw(angles))
    spiral = a.bigfft.czt(
        "x",
        m=count,
        w=ratio,
        a=start,
    )
    points = scipy.signal.czt_points(n if count is None else count, ratio, start)
    np.testing.assert_array_equal(spiral.z_x, points)
    powers = points[:, None] ** -np.arange(n)
    expected = powers @ a.values
    error = 1e-11 * (1 + np.abs(powers).max() * np.abs(a.values).sum())
    np.testing.assert_allclose(spiral.values, expected, atol=error)
    assert (spiral.dims, spiral.name) == (("z_x", "y"), "T")


def test_variables_and_chunks_by_name():
    a = record()
    dataset = xr.Dataset({"T": a.chunk({"x": 50}), "S": a.y * 1.0})
    zoomed = dataset.bigfft.zoom_fft(
        "x",
        fn=1,
        m=40,
        chunks={"freq_x": 20},
    )
    assert zoomed["T"].chunks[0] == (20, 20)
    np.testing.assert_allclose(zoomed["T"], a.bigfft.zoom_fft("x", fn=1, m=40), atol=1e-10)
    xr.testing.assert_identical(zoomed["S"], dataset["S"])
    spiral = dataset.bigfft.czt("x", m=40, chunks={"z_x": 20})
    assert spiral["T"].chunks[0] == (20, 20)


REFUSED = [
    ("zoom_fft", {"dim": ["x", "y"]}, ArgumentError, "dim"),
    ("zoom_fft", {"fn": "all"}, ArgumentTypeError, "fn"),
    ("zoom_fft", {"fn": (1, 2, 3)}, ArgumentError, "fn"),
    ("zoom_fft", {"m": 0}, ArgumentError, "m"),
    ("zoom_fft", {"fs": 2}, ArgumentTypeError, "fs"),
    ("zoom_fft", {"chunks": {"z": 2}}, ArgumentError, "chunks"),
    ("czt", {"fn": 1}, ArgumentTypeError, "fn"),
    ("czt", {"w": 0}, ArgumentError, "w"),
]


@pytest.mark.parametrize(("function", "changed", "kind", "named"), REFUSED)
def test_wrong_arguments_are_named(
    function,
    changed,
    kind,
    named,
):
    keywords = {"fn": 1.0} if function == "zoom_fft" else {}
    with pytest.raises(kind, match=named):
        getattr(bx, function)(record(), **{"dim": "x", **keywords, **changed})
