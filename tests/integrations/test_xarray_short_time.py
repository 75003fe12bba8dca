"""Short-time transforms by the names of dimensions: values, coordinates and units."""

import numpy as np
import pytest
import scipy.signal
import xarray as xr

import dask_bigfft.xarray as bx
from dask_bigfft.errors import ArgumentError, ArgumentTypeError

WIN = scipy.signal.get_window("hann", 20)
WINDOW = {"win": WIN, "hop": 6}


def record(chunks=None, **changed):
    """Return a field whose second dimension is sampled at 2 per km."""
    coords = {"y": np.arange(3), "x": ("x", 5 + 0.5 * np.arange(200), {"units": "km"}), **changed}
    values = np.random.default_rng(3).standard_normal((3, 200))
    array = xr.DataArray(
        values,
        coords,
        ("y", "x"),
        "T",
        attrs={"units": "K", "note": "made up"},
    )
    return array if chunks is None else array.chunk(chunks)


@pytest.mark.parametrize("chunks", [None, {"x": 33, "y": 2}])
def test_spectra_have_frequencies_and_places(chunks):
    a = record(chunks)
    spectra = a.bigfft.stft(
        "x",
        p0=0,
        k_offset=2,
        **WINDOW,
    )
    transform = scipy.signal.ShortTimeFFT(
        WIN.copy(),
        6,
        2.0,
    )
    expected = transform.stft(
        a.values,
        p0=0,
        k_offset=2,
        axis=1,
    )
    assert spectra.dims == ("y", "freq_x", "x")
    assert (spectra.chunks is None) == (chunks is None)
    np.testing.assert_allclose(
        spectra.values,
        expected,
        atol=1e-12,
    )
    np.testing.assert_allclose(spectra.freq_x, transform.f)
    np.testing.assert_allclose(
        spectra.x,
        5
        + transform.t(
            200,
            p0=0,
            k_offset=2,
        ),
    )
    assert (spectra.freq_x.units, spectra.x.units) == ("1/km", "km")
    assert (spectra.name, spectra.units, spectra.note) == ("T", "K", "made up")
    np.testing.assert_array_equal(spectra.y, a.y)


def test_a_spectrogram_has_units():
    a = record({"x": 33})
    density = bx.spectrogram(
        a,
        "x",
        scale_to="psd",
        **WINDOW,
    )
    assert density.units == "(K)^2/(1/km)"
    assert a.bigfft.spectrogram("x", **WINDOW).units == "(K)^2"
    assert (
        "units"
        not in a.bigfft.stft(
            "x",
            scale_to="psd",
            **WINDOW,
        ).attrs
    )
    transform = scipy.signal.ShortTimeFFT(
        WIN.copy(),
        6,
        2.0,
        scale_to="psd",
    )
    np.testing.assert_allclose(density, transform.spectrogram(record().values, axis=1))


PLACES = {
    "dates": np.datetime64("2026-03-01", "ns") + np.arange(200) * np.timedelta64(250, "ms"),
    "durations": np.arange(200) * np.timedelta64(3, "s"),
    "integers": np.arange(200) * 2 + 7,
    "descending": 100 - 0.5 * np.arange(200),
    "decimal steps": 40 + np.arange(200) * 0.01,
    "arange": np.arange(40, 42, 0.01),
    "quotients": np.arange(200) / 48000,
    "linspace": np.linspace(0.4, 7, 200),
    "named": ("x", np.arange(200.0), {"units": "km", "long_name": "easting", "axis": "X"}),
}


@pytest.mark.parametrize("kind", PLACES)
@pytest.mark.parametrize("chunks", [None, {"x": 33, "y": 2}])
def test_the_inverse_restores_coordinates(kind, chunks):
    a = record(chunks, x=PLACES[kind])
    back = a.bigfft.stft("x", **WINDOW).bigfft.istft(**WINDOW)
    np.testing.assert_allclose(
        back.values,
        a.values,
        atol=1e-12,
    )
    xr.testing.assert_identical(back.x.variable, a.x.variable)
    assert (back.dims, back.name, back.attrs) == (a.dims, a.name, a.attrs)


def test_dates_of_slices():
    a = record(x=PLACES["dates"])
    spectra = a.bigfft.stft("x", **WINDOW)
    assert spectra.freq_x.units == "Hz"
    steps = np.diff(spectra.x.values)
    assert (steps == np.timedelta64(1500, "ms")).all()
    assert np.datetime64("2026-03-01", "ns") in spectra.x.values


def test_a_dimension_without_a_coordinate():
    a = record().drop_vars("x")
    spectra = a.bigfft.stft("x", **WINDOW)
    assert spectra.freq_x.units == "cycles/sample"
    np.testing.assert_array_equal(np.diff(spectra.x), 6)
    back = spectra.bigfft.istft(**WINDOW)
    assert "x" not in back.coords
    np.testing.assert_allclose(
        back.values,
        a.values,
        atol=1e-12,
    )


def test_datasets():
    a = record({"x": 50})
    fields = xr.Dataset({"T": a, "S": 2 * a, "of_y": a.isel(x=0, drop=True)})
    spectra = fields.bigfft.stft("x", **WINDOW)
    assert spectra.T.dims == ("y", "freq_x", "x")
    back = spectra.bigfft.istft(**WINDOW)
    np.testing.assert_allclose(
        back.S,
        fields.S,
        atol=1e-12,
    )
    xr.testing.assert_identical(back.of_y, fields.of_y)
    assert set(fields.bigfft.spectrogram("x", **WINDOW)) == {"T", "S", "of_y"}


@pytest.mark.parametrize(
    ("changed", "kind", "named"),
    [
        (
            {"dim": ["x", "y"]},
            ArgumentError,
            "dim",
        ),
        (
            {"dim": "z"},
            ArgumentError,
            "dim",
        ),
        (
            {"hops": 3},
            ArgumentTypeError,
            "hops",
        ),
        (
            {"win": "hann"},
            ArgumentTypeError,
            "win",
        ),
        (
            {"fs": 3},
            ArgumentTypeError,
            "fs",
        ),
    ],
)
def test_wrong_arguments_are_named(
    changed,
    kind,
    named,
):
    with pytest.raises(kind, match=named):
        bx.stft(record(), **{"dim": "x", **WINDOW, **changed})


def test_an_inverse_needs_slices():
    spectra = record().bigfft.stft("x", **WINDOW)
    with pytest.raises(ArgumentError, match="dim"):
        spectra.rename(x="slice").bigfft.istft(**WINDOW)
    with pytest.raises(ArgumentError, match="dim"):
        record().bigfft.istft(**WINDOW)


OTHER_SLICES = {
    "selected": lambda a: a.bigfft.stft("x", **WINDOW).isel(x=slice(1, None)),
    "every second": lambda a: a.bigfft.stft("x", **WINDOW).isel(x=slice(None, None, 2)),
    "reversed": lambda a: a.bigfft.stft("x", **WINDOW).isel(x=slice(None, None, -1)),
    "p0": lambda a: a.bigfft.stft("x", p0=0, **WINDOW),
    "k_offset": lambda a: a.bigfft.stft("x", k_offset=2, **WINDOW),
    "hop": lambda a: a.bigfft.stft("x", win=WIN, hop=5),
}


@pytest.mark.parametrize("kind", ["dates", "durations", "integers", "decimal steps"])
@pytest.mark.parametrize("slices", OTHER_SLICES.values(), ids=OTHER_SLICES)
def test_an_inverse_refuses_other_slices(slices, kind):
    spectra = slices(record(x=PLACES[kind]))
    with pytest.raises(ArgumentError, match=r"`coordinate x`.*slices.*p0 and k_offset"):
        spectra.bigfft.istft(**WINDOW)


def test_an_inverse_of_the_first_slices():
    a = record()
    spectra = a.bigfft.stft("x", **WINDOW)
    back = spectra.isel(x=slice(20)).bigfft.istft(k1=90, **WINDOW)
    xr.testing.assert_allclose(back, a.isel(x=slice(90)))
    without = spectra.isel(x=slice(1, None)).drop_vars("x")
    assert without.bigfft.istft(k1=90, **WINDOW).sizes["x"] == 90


def test_spectra_of_dated_records_go_through_netcdf_3(tmp_path):
    dates = np.datetime64("2026-03-01", "ns") + np.arange(200) * np.timedelta64(1, "h")
    a = record({"x": 33}, x=dates)
    spectra = a.bigfft.stft("x", **WINDOW)
    parts = xr.Dataset({"re": spectra.real, "im": spectra.imag})
    parts.to_netcdf(tmp_path / "spectra.nc", engine="scipy")
    with xr.open_dataset(tmp_path / "spectra.nc", engine="scipy") as stored:
        stored.load()
    back = (stored.re + 1j * stored.im).bigfft.istft(**WINDOW)
    np.testing.assert_allclose(back, a)
    xr.testing.assert_equal(back.x, a.x)
    power = a.bigfft.spectrogram("x", **WINDOW)
    power.to_netcdf(tmp_path / "power.nc", engine="scipy")
    with xr.open_dataset(tmp_path / "power.nc", engine="scipy") as stored:
        np.testing.assert_allclose(stored[a.name], power)


def test_the_inverse_takes_a_product_with_a_spectrogram_first():
    a = record({"x": 33})
    is_strong = a.bigfft.spectrogram("x", **WINDOW) >= 0
    back = (is_strong * a.bigfft.stft("x", **WINDOW)).bigfft.istft(**WINDOW)
    xr.testing.assert_allclose(back.drop_attrs(), a.drop_attrs())


def test_slices_in_even_chunks_go_through_zarr(tmp_path):
    power = record({"x": 50}).bigfft.spectrogram("x", chunks={"x": 8}, **WINDOW)
    power.to_zarr(tmp_path / "power.zarr", consolidated=False)
    stored = xr.open_zarr(tmp_path / "power.zarr", consolidated=False)
    np.testing.assert_array_equal(stored[power.name], power)
