"""Spectra and cosine transforms by the names of dimensions: values, coordinates and units."""

import dask.array as da
import numpy as np
import pytest
import scipy.fft
import scipy.signal
import xarray as xr
import xrft

import dask_bigfft.xarray as bx
from dask_bigfft.errors import ArgumentError, ArgumentTypeError

RNG = np.random.default_rng(32)


def field(chunks=None):
    """Values with a mean and slopes on an even grid of 0.5 km by -2 km, chunked along both."""
    y = 5 + 0.5 * np.arange(20)
    x = 8 - 2.0 * np.arange(27)
    coords = {"y": ("y", y, {"units": "km"}), "x": ("x", x, {"units": "km"})}
    values = RNG.standard_normal((3, 20, 27)) + 300 + y[:, None] - 0.2 * x
    array = xr.DataArray(
        values,
        coords,
        ("time", "y", "x"),
        "T",
        attrs={"units": "K"},
    )
    return array if chunks is None else array.chunk(chunks)


CHUNKS = {"y": 6, "x": 10}


@pytest.mark.pairs
@pytest.mark.parametrize("scaling", ["density", "spectrum"])
@pytest.mark.parametrize("detrend", [None, "constant", "linear"])
@pytest.mark.parametrize("window", [None, "hann", "tukey"])
@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.filterwarnings("ignore:dropping variables using `drop`:FutureWarning")  # by xrft
def test_power_spectra_are_those_of_xrft(
    scaling,
    detrend,
    window,
    lazy,
):
    a = field(CHUNKS if lazy else None)
    keywords = {"scaling": scaling, "detrend": detrend, "window": window}
    keywords["window_correction"] = window is not None
    power = a.bigfft.power_spectrum(["y", "x"], **keywords)
    assert isinstance(power.data, da.Array if lazy else np.ndarray)
    assert (power.dims, power.name) == (("time", "freq_y", "freq_x"), "T")
    assert power.units == ("(K)^2/(1/km)/(1/km)" if scaling == "density" else "(K)^2")
    np.testing.assert_allclose(power.freq_y, np.fft.fftfreq(20, 0.5))
    np.testing.assert_allclose(power.freq_x, np.fft.rfftfreq(27, -2.0))
    np.testing.assert_allclose([power.freq_y.spacing, power.freq_x.spacing], [1 / 10, 1 / 54])
    whole = a.astype(complex).bigfft.power_spectrum(["y", "x"], **keywords)
    whole[..., 1:14] *= 2  # the other half
    atol = 1e-11 * float(abs(whole).max())
    np.testing.assert_allclose(power.values, whole[..., :14], atol=atol)
    full = a.astype(complex).bigfft.power_spectrum(["y", "x"], shift=True, **keywords)
    wanted = xrft.power_spectrum(field().copy(data=a.values), dim=["y", "x"], **keywords)
    np.testing.assert_allclose(full.values, wanted.values, atol=atol)  # not sorted by frequency
    halved = a.bigfft.power_spectrum(
        ["y", "x"],
        real_dim="y",
        onesided=False,
        **keywords,
    )
    assert dict(halved.sizes) == {"time": 3, "freq_y": 11, "freq_x": 27}


def test_the_phase_of_a_cross_spectrum_is_the_delay():
    a = field(CHUNKS).isel(time=0)
    later = a.roll(x=1)  # a step of -2 km
    cross = a.bigfft.cross_spectrum(later.transpose("x", "y"), ["y", "x"])
    np.testing.assert_allclose(
        np.angle(cross[1] / np.exp(-2j * np.pi * cross.freq_x * -2.0)), 0, atol=1e-9
    )


def test_averages_over_directions_and_segments_have_coordinates():
    a = field(CHUNKS)
    isotropic = a.bigfft.isotropic_power_spectrum(["y", "x"], detrend="constant")
    assert (isotropic.dims, isotropic.freq_r.units) == (("time", "freq_r"), "1/km")
    time = np.datetime64("2026-01-01", "ns") + np.arange(400) * np.timedelta64(250, "ms")
    series = xr.DataArray(
        RNG.standard_normal(400),
        {"t": time},
        ["t"],
        attrs={"units": "m"},
    )
    mean = series.chunk(t=90).bigfft.welch(nperseg=64)
    frequencies, power = scipy.signal.welch(series.values, fs=4.0, nperseg=64)
    np.testing.assert_allclose(mean.freq_t, frequencies)
    np.testing.assert_allclose(mean, power)
    assert (mean.units, mean.freq_t.units) == ("(m)^2/(Hz)", "Hz")
    cross = bx.csd(series, series + 1, "t", nperseg=64)
    np.testing.assert_allclose(cross, power)


@pytest.mark.parametrize("kind", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["dct", "dst"])
def test_cosine_and_sine_transforms_have_the_frequencies_of_their_waves(name, kind):
    a = field(CHUNKS).isel(time=0)
    coefficients = getattr(a.bigfft, name)(["y", "x"], type=kind, norm="ortho")
    wanted = getattr(scipy.fft, f"{name}n")(a.values, kind, norm="ortho")
    np.testing.assert_allclose(coefficients.values, wanted, atol=1e-10)
    column = getattr(bx, name)(a.isel(x=0), type=kind)
    k = 3  # the wave of frequency k at samples n + 1/2 (types 2 and 4), n, or n + 1
    n = np.arange(20) + (0.5 if kind in (2, 4) else 1 if name == "dst" and kind == 1 else 0)
    wave = (np.cos if name == "dct" else np.sin)(2 * np.pi * column.freq_y.values[k] * 0.5 * n)
    if (name, kind) in {("dct", 2), ("dct", 4), ("dst", 1), ("dst", 2), ("dst", 4)}:
        np.testing.assert_allclose(column[k], 2 * wave @ a.isel(x=0).values, rtol=1e-9)
    back = getattr(coefficients.bigfft, f"i{name}")(type=kind, norm="ortho")
    xr.testing.assert_allclose(back.drop_attrs(), a.drop_attrs())
    with pytest.raises(ArgumentError, match="freq_y"):
        coefficients.bigfft.ifft()


def test_half_of_a_hermitian_sequence_and_phases_from_position_0():
    lags = xr.DataArray([4.0, 2.0, 1.0], {"lag": ("lag", [0.0, 0.5, 1.0], {"units": "s"})}, ["lag"])
    spectrum = lags.chunk(lag=2).bigfft.hfft(n=5)
    np.testing.assert_allclose(spectrum, scipy.fft.hfft(lags.values, 5))
    np.testing.assert_allclose(spectrum.freq_lag, np.fft.fftfreq(5, 0.5))
    xr.testing.assert_allclose(spectrum.bigfft.ihfft().real, lags)
    a = field(CHUNKS).isel(time=0)
    true = {"true_phase": True, "true_amplitude": True}
    for name in ("fft", "rfft"):
        spectrum = getattr(a.bigfft, name)(["y", "x"], **true)
        waves = np.exp(-2j * np.pi * (spectrum.freq_y * a.y + spectrum.freq_x * a.x))
        xr.testing.assert_allclose((a * waves).sum(["y", "x"]) * 0.5 * 2, spectrum, atol=1e-9)
        back = getattr(spectrum.bigfft, f"i{name}")(**true)
        xr.testing.assert_allclose(back.real.drop_attrs(), a.drop_attrs())
    padded = a.bigfft.rfft("x", n=40)
    np.testing.assert_allclose(padded.values, np.fft.rfft(a.values, 40), atol=1e-9)
    np.testing.assert_allclose(padded.freq_x, np.fft.rfftfreq(40, -2.0))
    pixels = (a % 250).astype("u1")
    flat = bx.power_spectrum(pixels, ["y", "x"], detrend="constant")
    np.testing.assert_allclose(flat[0, 0], 0, atol=1e-20)


def on_units(y, x):
    array = field().isel(time=0)
    array.y.attrs = y
    array.x.attrs = x
    return array


#: Attributes of two coordinates with spellings of one unit, and the unit of their frequencies.
SPELLINGS = [
    ("degrees_north", "degrees_east", "1/degree"),
    ("degree_N", "degreesE", "1/degree"),
    ("degree", "deg", "1/degree"),
    ("m", "metres", "1/m"),
    ("kilometer", "km", "1/km"),
    ("seconds", "s", "Hz"),
    ("furlong", "furlong", "1/furlong"),
]


@pytest.mark.parametrize(("y", "x", "unit"), SPELLINGS)
def test_spellings_of_one_unit_are_one_unit(y, x, unit):
    a = on_units({"units": y}, {"units": x})
    power = a.bigfft.isotropic_power_spectrum(["y", "x"])
    assert power.freq_r.units == unit
    same = on_units({"units": "m"}, {"units": "m"}).bigfft.isotropic_power_spectrum()
    np.testing.assert_array_equal(power.freq_r, same.freq_r)


@pytest.mark.parametrize("x", [{"units": "m"}, {}, {"units": "mm"}])
def test_mixed_units_are_named_and_can_be_converted(x):
    a = on_units({"units": "km"}, x)
    with pytest.raises(ArgumentError, match=r"`dim`.*1/km.*assign_coords.*drop_vars"):
        a.bigfft.isotropic_power_spectrum(["y", "x"])
    converted = a.assign_coords(x=("x", a.x.values / 1000, {"units": "kilometers"}))
    assert converted.bigfft.isotropic_power_spectrum(["y", "x"]).freq_r.units == "1/km"
    bare = a.drop_vars(["y", "x"]).bigfft.isotropic_power_spectrum()
    assert bare.freq_r.units == "cycles/sample"


@pytest.mark.parametrize(
    "function",
    [bx.cross_spectrum, bx.csd, bx.coherence, bx.transfer_function],
)
def test_other_objects_than_arrays_are_refused_by_name(function):
    a = field(CHUNKS)
    for wrong in (a.values, a.data, 3, None, a.to_dataset()):
        with pytest.raises(ArgumentTypeError, match=r"^`other`=.*xarray\.DataArray"):
            function(a, wrong, "x")
        with pytest.raises(ArgumentTypeError, match=r"^`array`=.*xarray\.DataArray"):
            function(wrong, a, "x")
    for unlike in (a.isel(x=slice(5)), a.isel(y=0), a.assign_coords(x=np.arange(27))):
        with pytest.raises(ArgumentError, match=r"^`other`="):
            function(a, unlike, "x")


# --- grids of degrees in metres ---------------------------------------------------------------


def on_degrees(values, chunks=None):
    """Values on an even grid whose latitudes descend from 41.9 to 40 degrees."""
    north = {"units": "degrees_north"}
    east = {"units": "degrees_east"}
    coords = {
        "lat": ("lat", 41.9 - 0.1 * np.arange(20), north),
        "lon": ("lon", 5 + 0.2 * np.arange(30), east),
    }
    array = xr.DataArray(values, coords, ("lat", "lon"), "T", {"units": "K"})
    return array if chunks is None else array.chunk(chunks)


def assigned_metres(array):
    """The same array with coordinates in metres by hand: a step of longitude is that at 40.95."""
    degree = 6_371_000 * np.pi / 180
    metres = {"units": "m"}
    return array.assign_coords(
        lat=("lat", array.lat.values * degree, metres),
        lon=("lon", array.lon.values * degree * np.cos(np.deg2rad(40.95)), metres),
    )


#: Spectra of one array, or of two, with their arguments.
SPECTRA_IN_METRES = {
    "power_spectrum": {"dim": ["lat", "lon"], "window": "hann", "window_correction": True},
    "isotropic_power_spectrum": {"dim": ["lat", "lon"], "detrend": "constant"},
    "cross_spectrum": {"dim": ["lat", "lon"], "shift": True},
    "welch": {"dim": "lon", "nperseg": 10},
    "csd": {"dim": "lat", "nperseg": 10},
    "coherence": {"dim": "lon", "nperseg": 10},
    "transfer_function": {"dim": "lat", "nperseg": 10},
}


@pytest.mark.parametrize("name", SPECTRA_IN_METRES)
@pytest.mark.parametrize("chunks", [None, {"lat": 7, "lon": 12}])
def test_spectra_on_degrees_in_metres(name, chunks):
    """Values, frequencies and units are those of coordinates in metres."""
    values = RNG.standard_normal((2, 20, 30))
    arguments = SPECTRA_IN_METRES[name]
    arrays = [on_degrees(value, chunks) for value in values]
    if name in ("power_spectrum", "isotropic_power_spectrum", "welch"):
        arrays = arrays[:1]
    by_hand = [assigned_metres(array) for array in arrays]
    spectrum = getattr(bx, name)(*arrays, metres=True, **arguments)
    expected = getattr(bx, name)(*by_hand, **arguments)
    others = [dim for dim in spectrum.dims if not str(dim).startswith("freq_")]
    xr.testing.assert_allclose(spectrum.drop_vars(others), expected.drop_vars(others), rtol=1e-9)
    assert spectrum.attrs == expected.attrs
    in_degrees = getattr(bx, name)(*arrays, **arguments)
    for dim in set(spectrum.dims) - set(others):
        assert spectrum[dim].units == "1/m"
        assert not spectrum[dim].equals(in_degrees[dim])
    for dim in others:
        assert spectrum[dim].equals(arrays[0][dim])


def test_degrees_and_kilometres_of_one_array_are_both_in_metres():
    lat = on_degrees(np.ones((20, 30))).lat
    a = field(CHUNKS).assign_coords(y=("y", lat.values, lat.attrs))
    power = a.bigfft.power_spectrum(["y", "x"], metres=True)
    np.testing.assert_allclose(power.freq_x, np.fft.rfftfreq(27, -2000.0))
    assert power.units == "(K)^2/(1/m)/(1/m)"


@pytest.mark.parametrize("name", ["power_spectrum", "isotropic_power_spectrum", "welch"])
def test_dimensions_without_a_length_are_refused_in_metres(name):
    for a in (field(CHUNKS), on_units({"units": "km"}, {"units": "degrees_east"})):
        dim = "time" if "time" in a.dims else "x"
        with pytest.raises(ArgumentError, match=rf"^`metres`=True .*dimension {dim} "):
            getattr(a.bigfft, name)(dim, metres=True)
    with pytest.raises(ArgumentTypeError, match=r"^`metres`=1 "):
        getattr(on_degrees(np.ones((20, 30))).bigfft, name)("lon", metres=1)


def test_a_density_over_rings_of_degrees_has_the_unit_of_its_frequencies():
    rings = on_degrees(np.ones((20, 30))).bigfft.isotropic_power_spectrum()
    assert (rings.units, rings.freq_r.units) == ("(K)^2/(1/degree)/(1/degree)", "1/degree")


# --- trends of known values -----------------------------------------------------------------


def residuals_of_known(values, missing, is_linear):
    """Values of each time minus their fit by least squares to those that are known, else 0."""
    residuals = np.zeros_like(values)
    places = np.meshgrid(*map(np.arange, values.shape[1:]), indexing="ij")
    for image, hidden, rest in zip(values, missing, residuals, strict=True):
        known = ~hidden
        columns = [np.ones(known.sum())]
        if is_linear:
            columns += [along[known] for along in places]
        shapes = np.stack(columns, axis=1)
        coefficients = np.linalg.lstsq(shapes, image[known])[0]
        rest[known] = image[known] - shapes @ coefficients
    return residuals


@pytest.mark.parametrize("detrend", ["constant", "linear"])
@pytest.mark.parametrize("fill", [np.nan, 99.0])
@pytest.mark.parametrize(
    ("chunks", "dtype"),
    [(None, "f8"), ((2, (7, 13), (5, 21, 1)), "f8"), ((1, 20, 10), "f4"), ((3, 6, 27), "c16")],
)
def test_the_trend_is_that_of_known_values(
    detrend,
    fill,
    chunks,
    dtype,
):
    values = field().values.astype(dtype)
    missing = RNG.random(values.shape) < 0.4
    missing[0, :, 3:] = True  # a narrow strip is known
    a = field().copy(data=np.where(missing, np.array(fill, dtype), values))
    mask = a.copy(data=missing)
    if chunks is not None:
        a = a.chunk(dict(zip(a.dims, chunks, strict=True)))
        mask = mask.chunk(y=4)
    residuals = residuals_of_known(
        values.astype(np.result_type(dtype, "f8")), missing, detrend == "linear"
    )
    expected = a.copy(data=residuals).bigfft.power_spectrum(["y", "x"], mask=missing)
    keywords = {"mask": mask.transpose("x", "time", "y"), "detrend": detrend}
    power = a.bigfft.power_spectrum(["y", "x"], **keywords)
    assert power.dtype == np.empty(0, dtype).real.dtype
    tolerance = 1e-3 if dtype == "f4" else 1e-9
    np.testing.assert_allclose(power, expected, atol=tolerance * float(expected.max()))
    isotropic = a.bigfft.isotropic_power_spectrum(["y", "x"], **keywords)
    of_residuals = a.copy(data=residuals).bigfft.isotropic_power_spectrum(["y", "x"], mask=missing)
    np.testing.assert_allclose(isotropic, of_residuals, atol=tolerance * float(of_residuals.max()))


def test_trends_of_few_known_values():
    """One or three of them, or none in some rows: a plane has three coefficients."""
    values = field().values
    missing = np.ones((20, 27), bool)
    missing[4, 5] = False
    a = field(CHUNKS)
    single = a.bigfft.power_spectrum(["y", "x"], mask=missing, detrend="linear")
    np.testing.assert_allclose(single, 0, atol=1e-15)
    missing[4, 6] = missing[9, 6] = False
    three = a.bigfft.power_spectrum(["y", "x"], mask=missing, detrend="linear")
    np.testing.assert_allclose(three, 0, atol=1e-15)
    assert a.bigfft.power_spectrum("x", mask=values > 0, detrend="linear").isnull().all()


def test_a_line_is_fitted_along_an_axis_of_length_1():
    values = np.array([[3.0, np.nan, 7.0, 9.0, 30.0]])
    a = xr.DataArray(values, dims=("y", "x")).chunk(x=2)
    power = a.bigfft.power_spectrum(mask=a.isnull(), detrend="linear")
    expected = residuals_of_known(values[None], np.isnan(values)[None], is_linear=True)[0]
    np.testing.assert_allclose(
        power, bx.power_spectrum(a.copy(data=expected), mask=np.isnan(values))
    )


@pytest.mark.parametrize("correction", [False, True])
@pytest.mark.parametrize("function", ["power_spectrum", "isotropic_power_spectrum"])
def test_a_mask_under_a_window_keeps_the_power_of_white_noise(function, correction):
    """The middle of the window has most of its weight, the ends have little."""
    noise = np.random.default_rng(5).standard_normal((400, 24, 16))
    a = xr.DataArray(noise, dims=("sample", "y", "x")).chunk(sample=100, y=7, x=16)
    keywords = {"window": "hann", "window_correction": correction}
    expected = getattr(a.bigfft, function)(["y", "x"], **keywords).mean().compute()
    for hidden in (slice(8, 16), slice(0, 6), slice(None, None, 3)):
        mask = np.zeros((1, 24, 16), bool)
        mask[:, hidden] = True
        power = getattr(a.bigfft, function)(["y", "x"], mask=mask, **keywords)
        np.testing.assert_allclose(power.mean(), expected, rtol=0.1)


def test_power_where_a_window_hides_all_known_values_is_nan():
    a = xr.DataArray(np.ones((2, 8)), dims=("y", "x"))
    mask = np.ones((2, 8), bool)
    mask[:, 0] = False  # where the window is 0
    mask[1, 3] = False
    power = a.bigfft.power_spectrum("x", mask=mask, window="hann")
    assert power[0].isnull().all()
    assert power[1].notnull().all()


@pytest.mark.parametrize("chunks", [None, 30])
def test_one_sided_power_has_no_inverse(chunks):
    values = RNG.standard_normal(100)
    a = xr.DataArray(values, {"t": 0.5 * np.arange(100)}, "t")
    if chunks is not None:
        a = a.chunk(t=chunks)
    for power in (
        a.bigfft.welch(nperseg=20),
        a.bigfft.csd(2 * a, nperseg=20),
        a.bigfft.power_spectrum(),
        a.bigfft.cross_spectrum(a),
    ):
        with pytest.raises(ArgumentError, match=r"one-sided power along freq_t.*onesided=False"):
            power.bigfft.irfft()
    power = a.bigfft.power_spectrum(scaling="spectrum", onesided=False)
    covariance = [np.mean(values * np.roll(values, lag)) for lag in range(100)]
    np.testing.assert_allclose(power.bigfft.irfft() * 100, covariance, atol=1e-12)
    response = a.bigfft.transfer_function(2 * a, nperseg=20, detrend=False).bigfft.irfft()
    np.testing.assert_allclose(response, [2, *np.zeros(19)], atol=1e-12)
