"""Laws of one kind of lazy arrays, and of xarray on it.

`test_kinds.py` runs them in processes of their own, one for each kind.
"""

import importlib.util

import cloudpickle
import dask
import numpy as np
import pytest
import scipy.fft
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import IS_EXPRESSION, LIBRARY, da, xarray_of_this_kind
from laws.law import PLANNED, planned, scipy_own
from support import ROOT

import dask_bigfft
import dask_bigfft.xarray
from dask_bigfft import fft, signal
from dask_bigfft.testing.oracles import relative_l2
from dask_bigfft.testing.strategies import cases, random_array

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


@needs_expressions
def test_slices_of_shifted_spectra_are_transforms_of_less():
    """Rows are cut before the transform, and an interval around the zero frequency is a band."""
    x = random_array((8, 240), "f8", 17)
    y = fft.fftshift(fft.fft(lazy(x, (2, 24))), axes=1)
    expected = np.fft.fftshift(np.fft.fft(x), axes=1)
    for index, shape in [
        (slice(2, 4), (2, 240)),
        ((slice(None), slice(100, 140)), (8, 40)),
        ((slice(2, 4), slice(120, 125)), (2, 5)),
    ]:
        part = y[index]
        assert is_right(part.compute(), expected[index])
        (run,) = dask_bigfft.report(part).runs
        assert run.plan.spec.out_shape == shape


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
    labelled = xr.DataArray(array, dims=("t", "x"))
    for number, source in enumerate((array, labelled)):
        done = dask_bigfft.run(source, tmp_path / f"{number}.zarr", "rfft", axis=0)
        opened = done.open()
        assert type(opened) is da.Array
        assert is_right(opened.compute(), np.fft.rfft(x, axis=0))
    path = tmp_path / "slices.zarr"
    done = dask_bigfft.run(array, path, "stft", axis=0, win=np.ones(8), hop=4)
    assert type(done.open()) is da.Array


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


def smooth(f):
    return np.exp(-((f / 0.1) ** 2))


WINDOW = np.hanning(8)

#: Functions of rows along axis 1.
OF_ROWS = {
    "fourier_filter": lambda x: signal.fourier_filter(x, smooth, 1),
    "fourier_filter, values": lambda x: signal.fourier_filter(x, np.arange(21.0), 1),
    "lowpass": lambda x: signal.lowpass(x, 0.2, axes=-1, memory_limit="1 GiB"),
    "bandstop": lambda x: signal.bandstop(x, (0.1, 0.2), [1], planner="measure"),
    "derivative": lambda x: signal.derivative(x, 1),
    "gradient": lambda x: signal.gradient(x, (1,))[0],
    "poisson": lambda x: signal.poisson(x, 1),
    "hilbert": lambda x: signal.hilbert(x, 48, chunks=(3, 17)),
    "shift": lambda x: signal.shift(x, 0.3, 1),
    "resample": lambda x: signal.resample(x, 30, axis=1),
    "resample, times": lambda x: signal.resample(x, 30, t=np.arange(40), axis=1)[0],
    "downsample": lambda x: signal.downsample(x, 2, (1,)),
    "stft": lambda x: signal.stft(x, WINDOW, 3, 1.0, mfft=24),
    "spectrogram": lambda x: signal.spectrogram(x, WINDOW, 3, fs=1.0, mfft=24, axis=1),
    "welch": lambda x: signal.welch(x, nperseg=24)[1],
    "power_spectrum": lambda x: signal.power_spectrum(x, 1, mask=np.arange(40) == 7),
    "fftconvolve": lambda x: signal.fftconvolve(in1=x, in2=[[1.0, 2.0, 3.0]], axes=1),
    "oaconvolve": lambda x: signal.oaconvolve(x, np.ones((1, 4)), "same", axes=[-1]),
    "czt": lambda x: signal.czt(x, 12),
    "zoom_fft": lambda x: signal.zoom_fft(x, 0.5, 12),
}


#: Numbers of the rows of chunks that have been read.
ROWS_READ = set()


def noting(block, block_id=None):
    ROWS_READ.add(block_id[0])
    return block


@pytest.fixture
def rows():
    """An array in memory, and the same in chunks that are noted when they are read."""
    x = random_array((8, 40), "f8", 13)
    return x, lazy(x, (2, 9)).map_blocks(noting, dtype=x.dtype, meta=np.empty((0, 0)))


needs_dask_array = pytest.mark.skipif(
    LIBRARY != "dask_array", reason="slices of these arrays are not simplified"
)


@needs_dask_array
@pytest.mark.parametrize("name", OF_ROWS)
def test_slices_of_rows_are_functions_of_less(rows, name):
    x, array = rows
    y = OF_ROWS[name](array)
    expected = computed(OF_ROWS[name](x))
    for index, needed in [
        (3, {1}),
        ((slice(2, 5), slice(4, 9)), {1, 2}),
        ((slice(None, None, 3), ..., 2), {0, 1, 3}),
        ((-1, slice(None, None, -1)), {3}),
        ((slice(None), 5), {0, 1, 2, 3}),
    ]:
        ROWS_READ.clear()
        part = y[index]
        values = part.compute()
        assert part.shape == values.shape
        np.testing.assert_allclose(values, expected[index], rtol=1e-9, atol=1e-9)
        assert needed == ROWS_READ
    assert y[3:3].compute().shape == (0, *y.shape[1:])
    several = dask.compute(y[0], y[4:6].sum(), y[3] + y[2])
    np.testing.assert_allclose(several[2], expected[3] + expected[2], rtol=1e-9, atol=1e-9)


@needs_dask_array
def test_slices_that_overlap_read_each_row_once(rows):
    x, array = rows
    counts = []

    def counting(block):
        counts.append(len(block))
        return block

    y = signal.lowpass(array.map_blocks(counting, dtype=x.dtype, meta=np.empty((0, 0))), 0.2, 1)
    expected = signal.lowpass(x, 0.2, 1).compute()
    difference = y[1:] - y[:-1]  # two filters of seven rows would take longer than one of eight
    np.testing.assert_allclose(difference.compute(), np.diff(expected, axis=0), atol=1e-12)
    assert sum(counts) == 8 * array.numblocks[1]


@needs_dask_array
def test_arguments_that_differ_by_row_are_not_taken_for_another_row(rows):
    x, array = rows
    h = random_array((8, 1), "f8", 14)
    for factors in (h, h.tolist()):
        filtered = signal.fourier_filter(array, factors, 1)
        np.testing.assert_allclose(filtered[5].compute(), x[5] * h[5], rtol=1e-9, atol=1e-9)
    others = random_array((8, 3), "f8", 15)
    full = signal.fftconvolve(array, others, axes=1)
    expected = np.convolve(x[6], others[6])
    np.testing.assert_allclose(full[6].compute(), expected, rtol=1e-9, atol=1e-9)
    holes = random_array((8, 40), "f8", 16) > 0
    power = signal.power_spectrum(array, 1, mask=holes)
    expected = signal.power_spectrum(x, 1, mask=holes).compute()
    np.testing.assert_allclose(power[2:4].compute(), expected[2:4], rtol=1e-9, atol=1e-12)


@needs_dask_array
def test_slices_keep_the_settings_of_the_call(rows):
    x, array = rows
    with dask.config.set({"bigfft.verify": "checksum"}):
        y = signal.lowpass(array, 0.2, axes=1)
    with dask.config.set({"bigfft.memory-limit": "1 kiB"}):  # too small for any plan
        part = y[3:4].compute()
    np.testing.assert_allclose(part, signal.lowpass(x, 0.2, axes=1)[3:4].compute(), atol=1e-12)


# --- xarray -----------------------------------------------------------------------------------


@pytest.fixture
def field():
    """A labelled field in chunks of this kind, and the same in memory."""
    coords = {"t": np.arange(12.0), "x": np.arange(20) / 4}
    values = xr.DataArray(random_array((12, 20), "f8", 12), coords, ("t", "x"), name="field")
    with xarray_of_this_kind():
        yield values.chunk(t=5, x=6), values


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
