"""Laws of one kind of lazy arrays, and of xarray on it.

`test_kinds.py` runs them in processes of their own, because what arrays are is decided when they
are imported. BIGFFT_ARRAYS names the library: `dask.array` (the default) or `dask_array`.
"""

import importlib
import importlib.util
import os

import cloudpickle
import dask
import numpy as np
import pytest
import scipy.fft
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from laws.law import PLANNED, planned, scipy_own
from support import ROOT

import dask_bigfft
import dask_bigfft.xarray
from dask_bigfft import fft
from dask_bigfft.testing.oracles import relative_l2
from dask_bigfft.testing.strategies import cases, random_array

LIBRARY = os.environ.get("BIGFFT_ARRAYS", "dask.array")
da = importlib.import_module(LIBRARY)
IS_EXPRESSION = LIBRARY == "dask_array" or da.array_expr_enabled()

# The folder of this module has the name of another one, in Python's library.
_SPEC = importlib.util.spec_from_file_location("options", ROOT / "tests/signal/test_options.py")
_OPTIONS = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(_OPTIONS)
SIGNAL_FUNCTIONS = _OPTIONS.BY_SPECTRA | _OPTIONS.BY_BLOCK

WAYS = st.sampled_from(list(PLANNED))
FEWER = settings(max_examples=15)

needs_expressions = pytest.mark.skipif(not IS_EXPRESSION, reason="these arrays are graphs")


def lazy(values, chunks):
    return da.from_array(values, chunks=chunks)


def transformed(case, x):
    array = lazy(x, case.chunks)
    return getattr(fft, case.name)(array, **case.arguments, **case.options)


def is_right(ours, expected):
    """Return whether values, shape and precision are those that are expected."""
    ours = np.asarray(ours)
    eps = np.finfo(expected.dtype).eps if expected.dtype.kind in "fc" else 0
    is_alike = ours.shape == expected.shape and ours.dtype == expected.dtype
    return is_alike and relative_l2(ours, expected) <= 200 * eps


@pytest.fixture(autouse=True)
def one_thread(small):
    """Axes of a few elements fall apart, and tasks run one after the other."""


# --- transforms -------------------------------------------------------------------------------


@FEWER
@given(case=cases(max_axes=3), how=WAYS)
def test_any_transform(case, how):
    x = case.array
    with planned(how):
        y = transformed(case, x)
        expected = scipy_own(case, x)
        assert type(y) is da.Array
        assert (y.shape, y.dtype) == (expected.shape, expected.dtype)
        assert relative_l2(y.compute(), expected) <= 50 * np.finfo(expected.dtype).eps


def index_of_axis(length):
    """Return indices of an axis: numbers, and slices with any step."""
    if length == 0:
        return st.just(slice(None))
    places = st.integers(-length, length - 1)
    steps = st.sampled_from([None, 1, 1, 2, 3, -1, -2])
    stepped = st.builds(slice, places, places, steps)
    return st.one_of(places, st.just(slice(None)), st.slices(length), stepped)


@settings(max_examples=50)
@given(data=st.data(), case=cases(max_axes=3), how=WAYS, shifts=st.booleans())
def test_any_slice(
    data,
    case,
    how,
    shifts,
):
    """A slice is the same part, wherever it is cut: before, by or after the transform."""
    x = case.array
    with planned(how):
        y = transformed(case, x)
        expected = scipy_own(case, x)
        if shifts:
            axes = data.draw(st.sampled_from([None, *range(x.ndim)]))
            y = fft.fftshift(y, axes)
            expected = np.fft.fftshift(expected, axes)
        index = tuple(data.draw(index_of_axis(n)) for n in expected.shape)
        part = y[index]
        values = np.asarray(part.compute())
    assert part.shape == values.shape == expected[index].shape
    assert sum(map(sum, part.chunks)) == sum(part.shape)
    scale = np.linalg.norm(expected)
    error = np.linalg.norm(values - expected[index])
    assert error <= 50 * np.finfo(expected.dtype).eps * scale


def test_slices_of_shifted_images():
    """Images of a series, each with its zero frequency in the middle, before and after."""
    x = random_array((6, 24, 20), "c16", 1)
    array = lazy(x, (2, 8, 10))
    axes = (1, 2)
    y = fft.fftshift(fft.fft2(fft.ifftshift(array, axes)), axes)
    expected = np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(x, axes)), axes)
    for index in [3, (slice(2, 4), 5), (0, slice(4, 20), slice(10)), (..., slice(None, None, 3))]:
        assert is_right(y[index].compute(), expected[index])


def test_precision_and_empty_batches():
    for dtype in ("f2", "f4", "f8", "i2", "c8"):
        x = random_array((0, 12), dtype, 2)
        y = fft.fft(lazy(x, (1, 5)))
        assert y.compute().shape == (0, 12)
        x = random_array((3, 1), "f8", 3).astype(dtype)
        assert is_right(fft.fft(lazy(x, (2, 1)))[1:].compute(), np.fft.fft(x)[1:].astype(y.dtype))


@needs_expressions
def test_only_the_input_that_a_slice_needs_is_read():
    rows = []

    def noting(block, block_id=None):
        rows.append(block_id[0])
        return block

    x = random_array((8, 60), "f8", 4)
    array = lazy(x, (2, 12)).map_blocks(noting, dtype=x.dtype, meta=np.empty((0, 0)))
    y = fft.fft(array)
    rows.clear()
    assert is_right(y[3:4].compute(), np.fft.fft(x)[3:4])
    assert set(rows) == {1}
    rows.clear()
    assert is_right((y * 2)[7].compute(), 2 * np.fft.fft(x)[7])
    assert set(rows) <= ({3} if LIBRARY == "dask_array" else set(range(4)))
    rows.clear()
    both = dask.compute(y[0:2], y.real)  # another reader needs all of it
    assert is_right(both[0], np.fft.fft(x)[:2])
    assert set(rows) == set(range(4))


@needs_expressions
def test_an_interval_of_frequencies_is_a_band():
    x = random_array((8, 240), "f8", 5)
    y = fft.fft(lazy(x, (8, 24)))
    band = y[:, 30:45]
    assert is_right(band.compute(), np.fft.fft(x)[:, 30:45])
    (run,) = dask_bigfft.report(band).runs
    assert run.plan.spec.out_shape == (8, 15)
    ends = dask.compute(y[:, :3], y[:, -3:])  # two parts of one spectrum need one transform
    assert is_right(np.hstack(ends), np.fft.fft(x)[:, [0, 1, 2, -3, -2, -1]])


# --- uses -------------------------------------------------------------------------------------


def test_uses():
    x = random_array((24, 30), "f8", 6)
    array = lazy(x, ((5, 7, 12), (8, 8, 14)))
    y = fft.fft2(array)
    expected = np.fft.fft2(x)
    kept = y.persist()
    assert kept.chunks == y.chunks
    assert is_right(kept.compute(), expected)
    assert is_right(dask.optimize(y)[0].compute(), expected)
    assert is_right(cloudpickle.loads(cloudpickle.dumps(y)).compute(), expected)
    assert is_right(y.compute(scheduler="threads"), expected)
    assert is_right(y.compute(optimize_graph=False), expected)
    assert is_right((abs(y) ** 2).sum(axis=0).compute(), (abs(expected) ** 2).sum(axis=0))
    assert is_right(y.map_blocks(np.conj).compute(), expected.conj())
    assert is_right(y.T.compute(), expected.T)
    assert is_right(y.rechunk(11).compute(), expected)
    spectra = dask.compute(y, fft.ifft2(y).real, y[3])
    assert is_right(spectra[0], expected)
    assert is_right(spectra[1], x)
    assert is_right(spectra[2], expected[3])


def test_plans_progress_and_reports(capsys):
    x = random_array((64, 6), "f8", 7)
    array = lazy(x, (8, 3))
    plan = dask_bigfft.plan(array, "fft", axis=0)
    y = fft.fft(array, axis=0)
    assert plan.chunks == y.chunks
    assert "fft of (64, 6)" in str(plan.explain())
    computed = dask_bigfft.progress(y)
    assert type(computed) is da.Array
    assert is_right(computed.compute(), np.fft.fft(x, axis=0))
    assert "fft of (64, 6)" in str(dask_bigfft.report(y))
    assert "fft" in (str(y.expr) if IS_EXPRESSION else repr(y))
    if LIBRARY == "dask_array":
        y.pprint()
        assert "└ From" in capsys.readouterr().out.split("fft", 1)[1]
    capsys.readouterr()


def test_shifts_and_frequencies():
    x = random_array((5, 9), "f8", 8)
    array = lazy(x, (2, 4))
    for shift in ("fftshift", "ifftshift"):
        shifted = getattr(fft, shift)(array)
        assert type(shifted) is da.Array
        np.testing.assert_array_equal(shifted.compute(), getattr(np.fft, shift)(x))
    frequencies = fft.frequencies_of(fft.fftshift(fft.fft(array)), d=0.5)
    assert type(frequencies) is da.Array
    np.testing.assert_allclose(frequencies.compute(), np.fft.fftshift(np.fft.fftfreq(9, 0.5)))


def test_cosines():
    x = random_array((10, 21), "f8", 9)
    for name in ("dct", "dst", "idct", "dctn"):
        y = getattr(fft, name)(lazy(x, (4, 5)))
        assert type(y) is da.Array
        assert is_right(y.compute(), getattr(scipy.fft, name)(x))


def test_files(tmp_path):
    x = random_array((32, 10), "f8", 10)
    array = lazy(x, (8, 5))
    done = dask_bigfft.run(array, tmp_path / "out.zarr", "rfft", axis=0)
    import zarr

    assert is_right(zarr.open_array(done.path)[:], np.fft.rfft(x, axis=0))


# --- functions of signals ---------------------------------------------------------------------


def parts_of(result):
    """Return the arrays of a result, which may be one or several."""
    return list(result) if isinstance(result, tuple | list) else [result]


def computed(array):
    return array.compute() if hasattr(array, "compute") else array


@needs_expressions  # for others, tests/signal has them
@pytest.mark.parametrize("name", SIGNAL_FUNCTIONS)
def test_function_of_signals(name):
    """The result has the kind of the argument, and the values that a NumPy array gives."""
    x = random_array((32, 40), "f8", 11)
    function = SIGNAL_FUNCTIONS[name]
    ours = parts_of(function(lazy(x, (10, 13))))
    expected = parts_of(function(x))
    assert type(ours[-1]) is da.Array
    for mine, other in zip(ours, expected, strict=True):
        np.testing.assert_allclose(computed(mine), computed(other), rtol=1e-9, atol=1e-9)
    part = computed(ours[-1][..., 2:5])
    np.testing.assert_allclose(part, computed(expected[-1])[..., 2:5], rtol=1e-9, atol=1e-9)


# --- xarray -----------------------------------------------------------------------------------


@pytest.fixture
def field():
    """A labelled field in chunks of this kind, and the same in memory."""
    coords = {"t": np.arange(12.0), "x": np.arange(20) / 4}
    values = xr.DataArray(random_array((12, 20), "f8", 12), coords, ("t", "x"), name="field")
    if LIBRARY != "dask_array":
        yield values.chunk(t=5, x=6), values
        return
    managers = xr.namedarray.parallelcompat.list_chunkmanagers()
    before = dict(managers)
    importlib.import_module("dask_array.xarray").register()
    yield values.chunk(t=5, x=6), values
    managers.clear()
    managers.update(before)


XARRAY_CALLS = {
    "one dimension": lambda a: a.bigfft.fft("x"),
    "detrended": lambda a: a.bigfft.fft("x", detrend="linear", window="hann"),
    "all, and back": lambda a: a.bigfft.fft().bigfft.ifft(),
    "power": lambda a: a.bigfft.power_spectrum("x"),
    "filter": lambda a: a.bigfft.lowpass("x", cutoff=0.5),
    "derivative": lambda a: a.bigfft.derivative("t"),
    "segments": lambda a: a.bigfft.welch("t", nperseg=4),
    "padded": lambda a: a.bigfft.pad("x", width=3).bigfft.fft("x"),
    "part": lambda a: a.bigfft.fft("x").isel(t=3, freq_x=slice(4, 9)),
}

#: Calls of functions that dask does not have for expressions.
NOT_PLANNED = ("detrended", "padded")


@pytest.mark.parametrize("name", XARRAY_CALLS)
def test_xarray(field, name):
    if IS_EXPRESSION and LIBRARY == "dask.array" and name in NOT_PLANNED:
        pytest.skip("dask lacks a function with query planning")
    chunked, values = field
    ours = XARRAY_CALLS[name](chunked)
    expected = XARRAY_CALLS[name](values)
    assert type(ours.data) is da.Array
    xr.testing.assert_allclose(ours.compute(), expected.compute(), atol=1e-9)
