"""Transforms by the names of dimensions: values, names, coordinates, attributes, and chunks."""

import tracemalloc

import dask.array as da
import numpy as np
import pytest
import xarray as xr
from support import python

import dask_bigfft
import dask_bigfft.xarray as bx
from dask_bigfft import report, transposed_index
from dask_bigfft.errors import ArgumentError, ArgumentTypeError
from dask_bigfft.xarray import coordinates

RNG = np.random.default_rng(24)


def field(chunks=None, **changed):
    coords = {
        "time": np.datetime64("2026-03-01T12:00", "ns") + np.arange(4) * np.timedelta64(6, "h"),
        "y": ("y", 10 - 0.5 * np.arange(30), {"units": "km", "axis": "Y"}),
        "x": ("x", 3 + 2 * np.arange(24), {"units": "m s-1"}),
        "depth": ("time", np.arange(4.0)),
        "mask": (("y", "x"), np.ones((30, 24), bool)),
        "run": 7,
    }
    attrs = {"units": "K", "history": "made up"}
    values = RNG.standard_normal((4, 30, 24))
    array = xr.DataArray(
        values,
        dims=("time", "y", "x"),
        coords=coords | changed,
        name="T",
        attrs=attrs,
    )
    return array if chunks is None else array.chunk(chunks)


CHUNKS = {
    "time": 3,
    "y": 7,
    "x": 10,
}


@pytest.mark.parametrize("lazy", [True, False])
def test_values_dimensions_coordinates_and_attributes(lazy):
    a = field(CHUNKS if lazy else None)
    spectrum = bx.fft(a, ["y", "x"])
    assert isinstance(spectrum.data, da.Array if lazy else np.ndarray)
    assert spectrum.dims == ("time", "freq_y", "freq_x")
    assert (spectrum.name, spectrum.attrs) == ("T", a.attrs)
    assert set(spectrum.coords) == {"time", "depth", "run", "freq_y", "freq_x"}
    assert spectrum.run == 7
    xr.testing.assert_identical(spectrum.time, a.time.drop_vars("run").assign_coords(run=7))
    np.testing.assert_allclose(spectrum.freq_y, np.fft.fftfreq(30, -0.5))
    np.testing.assert_allclose(spectrum.freq_x, np.fft.fftfreq(24, 2))
    assert spectrum.freq_y.units == "1/km"
    assert spectrum.freq_x.units == "1/(m s-1)"
    np.testing.assert_allclose(spectrum.values, np.fft.fftn(a.values, axes=(1, 2)), atol=1e-12)


def assert_restored(a, restored, dims):
    """Require an array that was transformed along `dims` and back to be as it was.

    Other coordinates of these dimensions are lost, and of a coordinate's attributes all but units.
    """
    lost = set()
    if {"x", "y"} & set(dims):
        lost.add("mask")
    if "time" in dims:
        lost.add("depth")
    expected = a.drop_vars(lost)
    for d in dims:
        units = {k: v for k, v in a[d].attrs.items() if k == "units"}
        expected[d].attrs = units
        assert restored[d].dtype == a[d].dtype
        assert restored[d].attrs == units
    values = restored.real if restored.dtype.kind == "c" else restored
    xr.testing.assert_allclose(values, expected)
    assert restored.dims == a.dims
    assert restored.attrs == a.attrs
    assert isinstance(restored.data, da.Array)


def test_there_and_back_restores_all_but_other_coordinates_of_the_dimensions():
    a = field(CHUNKS)
    shifted = {
        "x": (True,),
        "time": (False,),
        ("x", "y"): (True,),
        ("y", "time", "x"): (False, True),
        None: (False, True),
    }
    for dim, shifts in shifted.items():
        # The last dimension named is the real one; the inverse takes them in that order.
        if dim is None:
            dims = a.dims
        elif isinstance(dim, str):
            dims = (dim,)
        else:
            dims = dim
        named = list(dim) if isinstance(dim, tuple) else dim
        frequencies = [f"freq_{d}" for d in dims]
        for shift in shifts:
            complex_spectrum = a.bigfft.fft(named, shift=shift)
            assert_restored(a, complex_spectrum.bigfft.ifft(frequencies), dims)
            half_spectrum = a.bigfft.rfft(named, shift=shift)
            assert_restored(a, half_spectrum.bigfft.irfft(frequencies), dims)


def test_times_give_hertz():
    a = field(CHUNKS)
    spectrum = bx.rfft(a, "time")
    np.testing.assert_allclose(spectrum.freq_time, np.fft.rfftfreq(4, 6 * 3600.0))
    assert spectrum.freq_time.units == "Hz"
    seconds = xr.DataArray(np.ones(5), dims="t", coords={"t": ("t", np.arange(5), {"units": "s"})})
    assert bx.fft(seconds).freq_t.units == "Hz"
    steps = np.arange(5).astype("m8[s]") * 7
    durations = xr.DataArray(np.ones(5), dims="t", coords={"t": steps})
    np.testing.assert_allclose(bx.fft(durations).freq_t, np.fft.fftfreq(5, 7.0))
    restored = bx.ifft(bx.fft(durations)).t
    np.testing.assert_array_equal(restored, steps)
    assert restored.dtype == durations.t.dtype


def test_without_coordinates_frequencies_are_in_cycles_per_sample():
    spectrum = bx.fft(xr.DataArray(np.ones(12), dims="n").chunk(n=5))
    assert spectrum.freq_n.units == "cycles/sample"
    back = bx.ifft(spectrum)
    assert back.dims == ("n",)
    assert not back.coords


@pytest.mark.parametrize("n", [8, 9])
@pytest.mark.parametrize("name", ["fft", "rfft"])
def test_shifted_results_ascend_and_the_inverse_knows(n, name):
    x = RNG.standard_normal((n, n))
    a = xr.DataArray(x, dims=("y", "x")).chunk({"y": 3, "x": 4})
    spectrum = getattr(bx, name)(a, ["y", "x"], shift=True)
    axes = (0, 1) if name == "fft" else (0,)
    wanted = np.fft.fftshift(getattr(np.fft, f"{name}n")(x), axes)
    np.testing.assert_allclose(spectrum.values, wanted, atol=1e-12)
    assert np.all(np.diff(spectrum.freq_y) > 0)
    assert np.all(np.diff(spectrum.freq_x) > 0)
    back = getattr(bx, f"i{name}")(spectrum)
    np.testing.assert_allclose(back.values, x, atol=1e-12)
    later = bx.fftshift(getattr(bx, name)(a, ["y", "x"]), ["freq_y", "freq_x"][: len(axes)])
    xr.testing.assert_allclose(later, spectrum)
    xr.testing.assert_allclose(bx.ifftshift(later), bx.ifftshift(spectrum))
    assert later.chunks == spectrum.chunks


def test_a_plan_names_dimensions():
    a = xr.DataArray(RNG.standard_normal((8, 9)), dims=("lat", "lon")).chunk(lat=3)
    (run,) = report(a.bigfft.rfft().data).runs
    assert run.title.startswith("rfftn of (lat: 8, lon: 9) float64: ")
    assert "{Y = lat: 8, X = lon: 9}" in run.plan.explain(details=True)


def test_transposed_order_there_and_back():
    n = 4096
    a = xr.DataArray(RNG.standard_normal(n), dims="t", coords={"t": np.arange(n) / 8}).chunk(t=256)
    reordered = a.bigfft.rfft("t", order="transposed")
    k = transposed_index(n, real=True)
    np.testing.assert_allclose(reordered.freq_t, np.where(k > n // 2, k - n, k) / n * 8)
    back = reordered.bigfft.irfft("freq_t", order="transposed")
    xr.testing.assert_allclose(back, a)
    low = reordered.where(abs(reordered.freq_t) < 1, 0).bigfft.irfft("freq_t", order="transposed")
    spectrum = np.fft.rfft(a.values)
    spectrum[np.fft.rfftfreq(n, 1 / 8) >= 1] = 0
    np.testing.assert_allclose(low.values, np.fft.irfft(spectrum, n), atol=1e-12)


#: Calls that are refused, and what the error names.
REFUSED = [
    (lambda: bx.fft(field(CHUNKS, x=np.arange(24.0) ** 2), "x"), "coordinate x"),  # uneven
    (lambda: bx.fft(field(CHUNKS, x=np.ones(24)), "x"), "coordinate x"),
    (lambda: bx.fft(field(CHUNKS, x=list("abcdefghijklmnopqrstuvwx")), "x"), "coordinate x"),
    (lambda: bx.fft(field(CHUNKS), "z"), "dim"),
    (lambda: bx.fft(field(CHUNKS), []), "dim"),
    (lambda: bx.fft(field(CHUNKS), ["x", "x"]), "dim"),
    (lambda: bx.fft(field(CHUNKS).rename(y="freq_x"), "x"), "dim"),
    (lambda: bx.ifft(field(CHUNKS)), "dim"),
    (lambda: bx.ifft(bx.rfft(field(CHUNKS), "x")), "freq_x.*of 13 frequencies"),
    (lambda: bx.fft(np.ones(4)), "array"),
    (lambda: bx.welch(field(CHUNKS)), "dim"),
    (lambda: bx.cross_spectrum(field(CHUNKS), field(CHUNKS).isel(x=slice(1, None))), "other"),
    (lambda: bx.fft(field(CHUNKS), "x", nonsense=1), "nonsense"),
    (lambda: bx.fft(field(CHUNKS), "x", shift="no"), "`shift`='no'"),
    (lambda: bx.fft(field(CHUNKS), "x", order="transposed", shift=True), "shift"),
    *[(lambda n=n: bx.irfft(bx.rfft(field(), "x"), n=n), "`n`=") for n in (0, -1, 1.5, "8")],
    (lambda: dataset().bigfft.fft(["time", "x"]), r"\['station'\] .* try .*\['u', 'v'\]"),
    (lambda: dataset().bigfft.fft("y"), "dim.*y"),
    (lambda: dataset().bigfft.ifft(), "dim"),
    (lambda: xr.Dataset().bigfft.fft(), "`array`=.*variables"),
    (lambda: xr.Dataset({"u": field(), "freq_x": ("k", [1])}).bigfft.fft("x"), "dim.*freq_x"),
    (lambda: bx.fft(field().assign_coords(freq_x=("y", range(30))), "x"), "dim.*freq_x"),
    (lambda: xr.Dataset({"t": ("x", np.array(["2026"], "M8[s]"))}).bigfft.fft("x"), "t of dtype"),
    (lambda: xr.Dataset({"t": ("x", ["a", "b"])}).bigfft.rfft("x"), "t of dtype"),
    (
        lambda: bx.fft(xr.DataArray(np.ones(3), {"x": [0, 1, np.inf]}, "x")),
        "coordinate x.*infinite",
    ),
    (lambda: bx.lowpass(xr.DataArray(np.ones(2), {"x": [-np.inf, 1]}, "x"), cutoff=1), "infinite"),
    (lambda: bx.fft({"u": 1}, "x"), r"or xarray\.Dataset"),
]


@pytest.mark.parametrize(("call", "named"), REFUSED)
def test_what_is_refused(call, named):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=named):
        call()


#: Calls with a mistake, the argument that the error names, and the right one in its text.
MISTAKES = [
    (lambda a: a.bigfft.rfft(dims=["x"]), "dims", "`dim`"),
    (lambda a: a.bigfft.rfft(axis=0), "axis", "`dim`"),
    (lambda a: a.bigfft.fftshift(axes=0), "axes", "`dim`"),
    (lambda a: a.bigfft.csd(a, "x", axis=0), "axis", "`dim`"),
    (lambda a: a.to_dataset().bigfft.ifft(axes=0), "axes", "`dim`"),
    (lambda a: a.bigfft.power_spectrum("x", detrent="linear"), "detrent", "`detrend`"),
    (lambda a: a.bigfft.cross_spectrum(a, "x", scalling=1), "scalling", "`scaling`"),
    (lambda a: a.bigfft.welch("x", nsperseg=8), "nsperseg", "`nperseg`"),
    (lambda a: a.bigfft.isotropic_power_spectrum("x", bin=3), "bin", "`bins`"),
    (lambda a: a.bigfft.dct("x", typ=2), "typ", "`type`"),
    (lambda a: a.bigfft.fft("x", work=2), "work", "memory_limit"),
    (lambda a: a.bigfft.irfft(), "array", "dim="),
    (lambda a: a.to_dataset().bigfft.irfft(), "array", "dim="),
    (lambda a: a.bigfft.rfft("x").drop_attrs().bigfft.irfft(), "array", "freq_x"),
    (lambda a: a.bigfft.rfft("x").bigfft.irfft(chunks={"z": 2}), "chunks", "'x'"),
    (dask_bigfft.plan, "a", r"plan\(a\.data\)"),
]


@pytest.mark.parametrize(("call", "argument", "right"), MISTAKES)
def test_an_error_names_the_mistake_and_the_right_argument(call, argument, right):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=rf"`{argument}`=.*{right}"):
        call(field(CHUNKS))


def test_chunks_take_names_from_before_and_after_the_transform():
    a = field(CHUNKS)
    spectrum = a.bigfft.rfft(["y", "x"], chunks={"freq_y": 15, "x": 5, "time": 2})
    assert spectrum.chunks == ((2, 2), (15, 15), (5, 5, 3))
    back = spectrum.bigfft.irfft(chunks={"y": 10, "freq_x": 12, 0: 4})
    assert back.chunks == ((4,), (10, 10, 10), (12, 12))
    xr.testing.assert_allclose(back.drop_attrs(), a.drop_vars(["mask"]).drop_attrs())
    both = spectrum.to_dataset().bigfft.irfft(chunks={"y": 10})
    assert both["T"].chunks[1] == (10, 10, 10)


@pytest.mark.parametrize(
    "kept",
    [
        slice(3, None),
        slice(None, None, 2),
        slice(None, None, -1),
    ],
)
@pytest.mark.parametrize("name", ["fft", "rfft"])
def test_a_spectrum_that_has_lost_frequencies_is_refused(name, kept):
    """Those that are left would be taken for others."""
    spectrum = getattr(bx, name)(field(CHUNKS), "x").isel(freq_x=kept)
    with pytest.raises(ArgumentError, match=r"freq_x.*transform of 24 samples.*drop_vars"):
        getattr(bx, f"i{name}")(spectrum)
    bare = getattr(bx, f"i{name}")(spectrum.drop_vars("freq_x"), "freq_x")
    wanted = getattr(np.fft, f"i{name}")(spectrum.values)
    np.testing.assert_allclose(bare.values, wanted, atol=1e-12)


def test_of_real_data_a_whole_spectrum_may_be_taken_for_half_of_it():
    a = field(CHUNKS)
    np.testing.assert_allclose(bx.irfft(bx.fft(a, "x")).values, a.values, atol=1e-12)


@pytest.mark.parametrize("n", [25, 48])
def test_low_frequencies_alone_and_other_lengths_fill_the_same_interval(n):
    a = field(CHUNKS)
    low = bx.rfft(a, "x").isel(freq_x=slice(0, 5))
    restored = bx.irfft(low, n=n)
    np.testing.assert_allclose(restored.values, np.fft.irfft(low.values, n), atol=1e-12)
    np.testing.assert_allclose(restored.x, a.x[0].item() + np.arange(n) * (24 * 2.0) / n)
    np.testing.assert_array_equal(bx.irfft(low).x, a.x)


def test_without_xarray_the_error_says_what_to_install():
    code = (
        "import sys; sys.modules['xarray'] = None\nimport dask_bigfft\n"
        "try:\n    dask_bigfft.xarray\nexcept ImportError as error:\n    print(error)\n"
    )
    assert "pip install 'dask-bigfft[xarray]'" in python("-c", code).stdout


@pytest.mark.parametrize("name", ["fft", "rfft"])
@pytest.mark.parametrize("rounds", [[4, -1], [2, 8, -1]])
def test_frequencies_in_transposed_order_know_named_digits(name, rounds):
    n = 64
    x = RNG.standard_normal(n)
    a = xr.DataArray(da.from_array(x, chunks=16), dims="t", coords={"t": np.arange(n) * 0.5})
    digits = {0: (*rounds[:-1], n // int(np.prod(rounds[:-1])))}
    named = {"order": "transposed", "digits": digits}
    spectrum = getattr(bx, name)(
        a,
        "t",
        rounds=rounds,
        **named,
    )
    waves = np.exp(-2j * np.pi * np.outer(spectrum.freq_t, a.t))
    np.testing.assert_allclose(spectrum.values, waves @ x, atol=1e-11)
    back = getattr(bx, f"i{name}")(spectrum, **named)
    np.testing.assert_allclose(back.values, x, atol=1e-12)


# --- datasets -------------------------------------------------------------------------------


def dataset():
    rng = np.random.default_rng(0)
    place = ("x", list("abcdefghij" * 2))
    coords = {"time": np.arange(4), "x": np.arange(20) * 0.5, "place": place}
    both = {
        name: (("time", "x"), da.from_array(rng.standard_normal((4, 20)), chunks=(2, 5)))
        for name in ("u", "v")
    }
    return xr.Dataset(both | {"station": ("time", [3, 1, 2, 0])}, coords, {"title": "flow"})


def test_of_a_dataset_each_variable_with_the_dimension_is_transformed():
    whole = dataset()
    spectra = whole.bigfft.rfft("x")
    assert list(spectra.data_vars) == ["u", "v", "station"]
    assert spectra.attrs == whole.attrs
    assert set(spectra.coords) == {"time", "freq_x"}
    for name in "uv":
        assert isinstance(spectra[name].data, da.Array)
        xr.testing.assert_identical(spectra[name].compute(), bx.rfft(whole[name], "x").compute())
    xr.testing.assert_identical(spectra.station, whole.station)
    back = bx.irfft(bx.ifftshift(bx.fftshift(spectra)))
    assert set(back.coords) == {"time", "x"}
    xr.testing.assert_allclose(back.compute(), whole.drop_vars("place").compute())


def test_of_a_dataset_that_dimension_is_halved_that_is_halved_of_an_array():
    """Also where those with coordinates come first in the dataset, and variables are turned."""
    values = np.random.default_rng(0).standard_normal((3, 15, 4))
    coords = {"x": np.arange(3.0), "z": np.arange(4.0)}
    u = xr.DataArray(
        values,
        coords,
        ("x", "y", "z"),
        "u",
    )
    whole = xr.Dataset({"u": u, "v": u.transpose("z", "y", "x")})
    assert tuple(whole.dims)[-1] != "z"
    spectra = bx.rfft(whole)
    xr.testing.assert_identical(spectra.u, bx.rfft(u))
    assert spectra.v.sizes["freq_z"] == 3
    xr.testing.assert_allclose(bx.irfft(spectra), whole)


def test_a_spectrum_goes_through_zarr(tmp_path):
    a = field(CHUNKS)
    a.bigfft.rfft(["time", "y", "x"]).to_zarr(tmp_path / "spectrum.zarr", consolidated=False)
    stored = xr.open_zarr(tmp_path / "spectrum.zarr", consolidated=False).T
    back = stored.bigfft.irfft(["freq_time", "freq_y", "freq_x"])
    xr.testing.assert_allclose(back.drop_attrs(), a.drop_vars(["depth", "mask"]).drop_attrs())
    assert {dim: back[dim].dtype for dim in a.dims} == {dim: a[dim].dtype for dim in a.dims}


# --- products of spectra --------------------------------------------------------------------


def radius(spectrum):
    return np.hypot(spectrum.freq_y, spectrum.freq_x)


def own_filter(spectrum):
    """A filter with attributes and coordinates of its own."""
    attrs = {"long_name": "filter", "units": "1", "order": 4}
    coords = {dim: spectrum[dim].values for dim in ("freq_y", "freq_x")}
    values = np.ones((30, 13), "f4")
    return xr.DataArray(
        values,
        coords,
        ["freq_y", "freq_x"],
        "filter",
        attrs,
    )


#: Products of a spectrum that change no value, by their form.
PRODUCTS = {
    "mask": lambda s: s * (radius(s) < np.inf),
    "mask first": lambda s: (s.freq_y**2 + s.freq_x**2 < np.inf) * s,
    "mask in place": lambda s: s.where(radius(s) < np.inf, 0),
    "frequencies": lambda s: s * (s.freq_x * 0 + 1) * (s.freq_y * 0 + 1),
    "own": lambda s: s * own_filter(s),
    "spectrum": lambda s: s * (s.conj() * 0 + 1),
    "number": lambda s: 2 * s / 2,
}


@pytest.mark.parametrize("keep_attrs", ["default", True, False])
@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize(
    "attrs",
    [
        {},
        {"units": "K", "flags": np.array([1, 2], "i1")},
    ],
)
def test_the_inverse_of_a_product_has_the_attributes_of_the_source(product, attrs, keep_attrs):
    """Versions of xarray drop attributes of products, or merge those of both factors."""
    a = field(CHUNKS, x=("x", np.arange(24) + 3, {"units": "m"}))
    a.attrs = attrs
    with xr.set_options(keep_attrs=keep_attrs):
        filtered = PRODUCTS[product](a.bigfft.rfft(["y", "x"]))
        back = filtered.bigfft.irfft().transpose(*a.dims)
    assert back.attrs.keys() == a.attrs.keys()
    for name, value in attrs.items():
        assert type(back.attrs[name]) is type(value)
        np.testing.assert_array_equal(back.attrs[name], value)
    for dim in ("y", "x"):
        assert back[dim].attrs == {"units": a[dim].units}
        np.testing.assert_array_equal(back[dim], a[dim])
    np.testing.assert_allclose(back.values, a.values, atol=1e-12)


@pytest.mark.parametrize("keep_attrs", ["default", False])
def test_variables_of_a_dataset_get_their_own_attributes_back(keep_attrs):
    whole = dataset().drop_vars(["station", "place"])
    whole.u.attrs = {"units": "m/s", "axis": "X"}
    whole.v.attrs = {"units": "km/h", "axis": "X"}
    with xr.set_options(keep_attrs=keep_attrs):
        spectrum = whole.bigfft.rfft("x")
        filtered = spectrum * (abs(spectrum.freq_x) < np.inf)
        back = filtered.bigfft.irfft()
        alone = (spectrum.u.rename(None) * 2).bigfft.irfft()
    for name in ("u", "v"):
        assert back[name].attrs == whole[name].attrs
    assert not back.attrs.keys() - whole.attrs.keys()  # older versions of xarray drop all
    assert alone.attrs["axis"] == "X"


def test_attributes_that_were_changed_on_a_spectrum_stay():
    """Such as those of another quantity on the same frequencies."""
    spectrum = field(CHUNKS).bigfft.rfft(["y", "x"])
    slope = spectrum * (2j * np.pi * spectrum.freq_x)
    slope.attrs = {"units": "K/m", "axis": "x"}
    assert slope.bigfft.irfft().attrs == slope.attrs
    pair = xr.Dataset({"T": spectrum, "slope": slope}).bigfft.irfft()
    assert (pair["T"].attrs, pair.slope.attrs) == (spectrum.attrs, slope.attrs)


def test_phases_and_amplitudes_keep_name_and_attributes():
    a = field(CHUNKS)
    with xr.set_options(keep_attrs=False):
        spectrum = a.bigfft.fft("x", true_phase=True, true_amplitude=True)
        back = spectrum.bigfft.ifft(true_phase=True, true_amplitude=True)
    assert (spectrum.name, spectrum.attrs) == (back.name, back.attrs) == (a.name, a.attrs)


def test_filters_keep_single_precision():
    spectrum = field(CHUNKS).astype("f4").bigfft.rfft(["y", "x"])
    for product in ("mask", "mask first", "mask in place", "own"):
        filtered = PRODUCTS[product](spectrum)
        assert filtered.dtype == np.complex64
        assert filtered.bigfft.irfft().dtype == np.float32


# --- times in any unit ----------------------------------------------------------------------


def series(
    first,
    step,
    dtype,
    n=12,
):
    times = np.datetime64(first).astype(dtype) + np.arange(n) * np.timedelta64(step, "s")
    return xr.DataArray(np.arange(n) % 5.0, dims="t", coords={"t": times.astype(dtype)})


CASES = [(day, unit) for day in ("0001-01-01", "3500-01-01") for unit in ("s", "ms", "us")]
TIMES = [series(day, 86400, f"M8[{unit}]").t.values for day, unit in CASES]
NAMES = "noleap", "julian"
TIMES += [xr.date_range("0001", periods=12, calendar=name, use_cftime=True) for name in NAMES]


@pytest.mark.parametrize("times", TIMES)
def test_times_that_nanoseconds_do_not_reach_and_calendars(times):
    x = xr.DataArray(np.arange(12) % 5.0, {"t": times}, ["t"])
    spectrum = bx.fft(x)
    np.testing.assert_allclose(spectrum.freq_t, np.fft.fftfreq(12, 86400.0), rtol=1e-14)
    assert spectrum.freq_t.attrs["units"] == "Hz"
    again = bx.ifft(spectrum)
    assert again.t.dtype == x.t.dtype
    np.testing.assert_array_equal(again.t, x.t)
    assert len(set(bx.irfft(spectrum, n=24).t.values) - set(times)) == 12


def test_more_samples_than_whole_seconds():
    times = bx.irfft(bx.rfft(series("2026-01-01", 1, "M8[s]")), n=24).t.values
    assert times.dtype == np.dtype("M8[ms]")
    assert set(np.diff(times)) == {np.timedelta64(500, "ms")}
    third = bx.irfft(bx.rfft(series("2026-01-01", 1, "M8[s]")), n=36).t.values
    assert third.dtype == np.dtype("M8[ns]")
    assert len(set(third)) == 36


# --- uneven coordinates ---------------------------------------------------------------------


def on(values, **attrs):
    values = np.asarray(values)
    return xr.DataArray(RNG.standard_normal(len(values)), {"t": ("t", values, attrs)}, ["t"])


MONTHS = xr.date_range("2001-01-31", periods=24, freq="ME")
NOLEAP = xr.date_range(
    "0001",
    periods=12,
    calendar="noleap",
    freq="MS",
    use_cftime=True,
)
HOURS = xr.date_range("2026-01-01", periods=20, freq="6h")
KILOMETRES = np.arange(20) * 0.5

#: Uneven samples, what their error names, and a repair.
UNEVEN = [
    (on(MONTHS), ["calendar month", "28 to 31 days"], "even"),
    (on(NOLEAP), ["calendar month", "28 to 31 days"], "drop"),
    (on(MONTHS.delete([3, 4])), ["calendar month", "gap after 2001-03-31"], "even"),
    (on(MONTHS[::3]), ["3 calendar months", "days"], "even"),
    (on(xr.date_range("2001", periods=9, freq="YS")), ["year", "365 to 366 days"], "even"),
    (on(HOURS.delete([4, 5])), ["gap of 18 hours after 2026-01-01T18:00", "6 hours"], "even"),
    (on(HOURS[::-1].delete(2)), ["gap of 12 hours", "6 hours"], "even"),
    (on(np.delete(KILOMETRES, 4), units="km"), ["gap of 1 km after 1.5", "0.5 km"], "even"),
    (on(KILOMETRES**2, units="km"), ["0.25 to 9.25 km"], "even"),
    (on(KILOMETRES**2), ["0.25 to 9.25"], "drop"),
    (on([0.0, 1, 1, 2]), ["two samples at 1", "drop_duplicates"], "duplicates"),
    (on([0.0, 1, 3, 2]), ["3", "sortby"], "sort"),
    (on([0.0, 1, np.nan, 2]), ["missing", "notnull"], "missing"),
]


def even(a):
    first, last = a.t.values[[0, -1]]
    if a.t.dtype.kind == "M":
        return a.interp(t=xr.date_range(first, last, periods=40))
    return a.interp(t=np.linspace(first, last, 40))


REPAIRS = {
    "even": even,
    "drop": lambda a: a.drop_vars("t"),
    "duplicates": lambda a: a.drop_duplicates("t"),
    "sort": lambda a: a.sortby("t"),
    "missing": lambda a: a.isel(t=a.t.notnull()),
}


@pytest.mark.parametrize(("a", "named", "repair"), UNEVEN)
def test_uneven_coordinates_are_named_and_can_be_repaired(a, named, repair):
    with pytest.raises(ArgumentError, match="coordinate t") as error:
        bx.fft(a)
    for text in named:
        assert text in str(error.value)
    assert bx.fft(REPAIRS[repair](a)).dims == ("freq_t",)


def even(kind):
    """Coordinates of samples that are evenly spaced, of a kind whose numbers may be large."""
    hours = np.arange(12) * 3_600_000_000_000
    if kind == "cftime":
        return xr.date_range(
            "0850-02-27", periods=12, freq="6h", calendar="noleap", use_cftime=True
        )
    return {
        "dates": np.datetime64("2021-01-01", "ns") + hours.astype("m8[ns]"),
        "old dates": np.datetime64("-0120-03-01", "s") + np.arange(12).astype("m8[s]"),
        "durations": 10 * hours[-1] + hours.astype("m8[ns]"),
        "integers": 2**40 + np.arange(12),
        "numbers": 2.5e20 + 2.0**40 * np.arange(12),
    }[kind]


KINDS = ["dates", "old dates", "durations", "cftime", "integers", "numbers"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_spectrum_goes_through_netcdf_3(kind, tmp_path):
    """Its attributes have no integers of 64 bits."""
    a = xr.DataArray(np.random.default_rng(4).standard_normal(12), {"x": even(kind)}, ["x"], "T")
    spectrum = a.bigfft.rfft("x")
    parts = xr.Dataset({"re": spectrum.real, "im": spectrum.imag})
    path = tmp_path / "spectrum.nc"
    parts.to_netcdf(path, engine="scipy")
    with xr.open_dataset(path, engine="scipy") as stored:
        stored.load()
    back = (stored.re + 1j * stored.im).bigfft.irfft("freq_x")
    np.testing.assert_allclose(back, a, atol=1e-12)
    xr.testing.assert_equal(back.x, a.x)
    assert back.x.dtype == a.x.dtype


@pytest.mark.parametrize("kind", ["dates", "old dates", "durations", "integers"])
def test_a_first_sample_as_an_integer_is_understood(kind):
    a = xr.DataArray(np.arange(12.0), {"x": even(kind)}, ["x"])
    spectrum = a.bigfft.rfft("x")
    spectrum.freq_x.attrs["direct_first"] = int(a.x.values[0].astype(np.int64))
    xr.testing.assert_allclose(spectrum.bigfft.irfft(), a)


# --- long coordinates -----------------------------------------------------------------------


@pytest.mark.parametrize("place", range(1, 11))
def test_a_gap_is_found_in_any_piece_of_a_coordinate(place, monkeypatch):
    monkeypatch.setattr("dask_bigfft.xarray.steps.PIECE", 4)
    bx.fft(on(HOURS[:12]))
    with pytest.raises(ArgumentError, match="gap of 12 hours"):
        bx.fft(on(HOURS[:12].delete(place)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_coordinate_that_is_made_in_pieces(kind, monkeypatch):
    monkeypatch.setattr("dask_bigfft.xarray.coordinates.PIECE", 5)
    a = xr.DataArray(np.arange(12.0), {"x": even(kind)}, ["x"])
    back = bx.irfft(bx.rfft(a))
    xr.testing.assert_equal(back.x, a.x)
    assert back.x.dtype == a.x.dtype


@pytest.mark.parametrize("places", [[0, 2**64 - 1], [-(2**63), 0, 2**63 - 1]])
def test_steps_of_integers_that_overflow(places):
    a = xr.DataArray(np.zeros(len(places)), {"x": places}, ["x"])
    assert bx.fft(a).freq_x.attrs["direct_step"] == 2.0**64 / (len(places) - 1)


LENGTH = 2**22
LONG = {
    "dates": np.datetime64("2026-01-01", "ns") + np.arange(LENGTH).astype("m8[ms]"),
    "durations": np.arange(LENGTH).astype("m8[us]"),
    "integers": np.arange(LENGTH, dtype=np.int32),
    "numbers": np.arange(LENGTH) / 1000,
}


#: Memory beside the coordinate, in parts of it; that of `rfft` includes the frequencies and a copy.
BESIDE = {"spectrogram": 0.5, "welch": 0.5, "rfft": 1.25}


@pytest.mark.parametrize("kind", LONG)
@pytest.mark.parametrize("name", BESIDE)
def test_memory_beside_a_long_coordinate(kind, name):
    a = xr.DataArray(da.zeros(LENGTH, chunks=2**18), {"x": LONG[kind]}, ["x"])
    arguments = {
        "spectrogram": {"win": np.hanning(256), "hop": 256},
        "welch": {"nperseg": 256},
        "rfft": {},
    }[name]
    method = getattr(a[: 2**12].bigfft, name)
    method(**arguments)  # imports
    method = getattr(a.bigfft, name)
    tracemalloc.start()
    try:
        method(**arguments)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < LENGTH * 8 * BESIDE[name]


EXACT = {
    "multiples": 40 + 0.01 * np.arange(1000),
    "quotients": np.arange(1000) / 48000,
    "part of quotients": (np.arange(1000) / 10)[300:],
    "arange": np.arange(40, 50, 0.01),
    "linspace": np.linspace(-3, 7, 1001),
    "linspace with another end": np.linspace(0.1, 3.7, 7),
    "decimals": np.round(40 + 0.01 * np.arange(1000), 2),
    "latitudes": np.linspace(-89.95, 89.95, 1800),
    "latitudes of 32 bits": np.linspace(89.95, -89.95, 1800).astype("f4"),
}


@pytest.mark.parametrize("values", EXACT.values(), ids=EXACT)
def test_the_inverse_aligns_with_the_source(values, monkeypatch):
    monkeypatch.setattr(coordinates, "PIECE", 300)
    a = xr.DataArray(np.ones(len(values)), {"x": values}, "x")
    back = a.bigfft.rfft().bigfft.irfft()
    assert back.x.dtype == values.dtype
    np.testing.assert_array_equal(back.x, values)
    padded = a.bigfft.fft(n=len(values) + 100).bigfft.ifft()
    np.testing.assert_array_equal(padded.x[: len(values) - 1], values[:-1])
    np.testing.assert_allclose(padded.x[: len(values)], values)
