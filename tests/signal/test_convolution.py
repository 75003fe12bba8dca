"""Convolution and correlation against `scipy.signal`, and what their plans exchange."""

from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft
import scipy.signal
from hypothesis import given
from hypothesis import strategies as st
from lazy import plans_of
from records import CASES
from support import python

from dask_bigfft import fft, report, signal
from dask_bigfft.errors import ArgumentError
from dask_bigfft.memory import arena as memory
from dask_bigfft.testing.oracles import relative_l2
from dask_bigfft.testing.strategies import chunkings, random_array, sizes

MODES = ("full", "same", "valid")


pytestmark = pytest.mark.usefixtures("small")


def exchanges(y):
    """Exchanges of each plan, those of a second array in it included."""
    counts = []
    for plan in plans_of(y):
        others = [operand.plan for operand in plan.operands if operand.plan is not None]
        counts.append(sum(len(p.travelling) for p in (plan, *others)))
    return counts


def agree(values, expected, eps):
    assert values.shape == expected.shape
    assert values.dtype == expected.dtype
    computed = values.compute()
    assert computed.shape == expected.shape  # chunks say the truth
    assert computed.dtype == expected.dtype
    assert relative_l2(computed, expected) < 60 * eps


@st.composite
def pairs(draw):
    """Two shapes of which mode "valid" makes sense, their chunks, and the axes."""
    ndim = draw(st.integers(1, 3))
    largest = {1: 300, 2: 24, 3: 9}[ndim]
    long = tuple(draw(sizes(largest)) for _ in range(ndim))
    short = tuple(draw(st.integers(1, n)) for n in long)
    axes = draw(st.sets(st.integers(0, ndim - 1), min_size=1).map(sorted))
    for axis in set(range(ndim)) - set(axes):
        n = draw(st.sampled_from([1, long[axis]]))
        short = (*short[:axis], n, *short[axis + 1 :])
    shapes = (long, short) if draw(st.booleans()) else (short, long)
    return shapes, [draw(chunkings(shape)) for shape in shapes], axes


@pytest.mark.parametrize("name", ["fftconvolve", "oaconvolve"])
@CASES
@given(
    pair=pairs(),
    mode=st.sampled_from(MODES),
    dtypes=st.tuples(*[st.sampled_from(["f8", "f4", "c16", "i4"])] * 2),
)
def test_convolution_over_axes(
    name,
    pair,
    mode,
    dtypes,
):
    shapes, chunks, axes = pair
    arrays = [random_array(s, d, i) for i, (s, d) in enumerate(zip(shapes, dtypes, strict=True))]
    lazy = [da.from_array(a, chunks=c) for a, c in zip(arrays, chunks, strict=True)]
    expected = getattr(scipy.signal, name)(*arrays, mode, axes=axes)
    convolution = getattr(signal, name)(*lazy, mode, axes=axes)
    agree(convolution, expected, 1.2e-7 if "f4" in dtypes else 2.2e-16)


@pytest.mark.parametrize("name", ["convolve", "correlate"])
@CASES
@given(
    pair=pairs(),
    mode=st.sampled_from(MODES),
    dtype=st.sampled_from(["f8", "f4", "c16", "c8"]),
    method=st.sampled_from(["auto", "fft", "direct"]),
)
def test_convolution_over_all_axes(
    name,
    pair,
    mode,
    dtype,
    method,
):
    shapes, chunks, _ = pair
    arrays = [random_array(shape, dtype, i) for i, shape in enumerate(shapes)]
    lazy = [da.from_array(a, chunks=c) for a, c in zip(arrays, chunks, strict=True)]
    try:
        expected = getattr(scipy.signal, name)(*arrays, mode)
    except ValueError:  # neither array is the longer one along every axis
        with pytest.raises(ArgumentError, match="valid"):
            getattr(signal, name)(*lazy, mode, method)
        return
    agree(
        getattr(signal, name)(*lazy, mode, method),
        expected,
        1.2e-7 if dtype in ("f4", "c8") else 2.2e-16,
    )


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("shapes", [((500,), (500,)), ((500,), (37,)), ((37,), (500,))])
def test_by_the_definition(shapes, mode):
    """Against the sum itself, in extended precision."""
    a, b = (random_array(s, "f8", i).astype(np.longdouble) for i, s in enumerate(shapes))
    full = np.zeros(len(a) + len(b) - 1, np.longdouble)
    for i, value in enumerate(a):
        full[i : i + len(b)] += value * b
    start = {"full": 0, "same": (len(b) - 1) // 2, "valid": min(len(a), len(b)) - 1}[mode]
    count = {"full": len(full), "same": len(a), "valid": abs(len(a) - len(b)) + 1}[mode]
    expected = full[start : start + count]
    x, y = (da.from_array(v.astype("f8"), chunks=29) for v in (a, b))
    for name in ("fftconvolve", "oaconvolve"):
        convolution = getattr(signal, name)(x, y, mode).compute()
        assert relative_l2(convolution, expected) < 2e-15


@pytest.mark.parametrize("mode", MODES)
def test_exchanges_of_one_axis(mode):
    """Six of one plan with two long arrays; four with a kernel that fits a block."""
    x = da.zeros(2**16, chunks=2**12)
    y = da.zeros(2**15, chunks=2**12)
    for function in (signal.fftconvolve, lambda *a: signal.correlate(*a, method="fft")):
        convolution = function(x, y, mode)
        assert exchanges(convolution) == [6]
        for kernel in (np.ones(100), da.ones(100, chunks=9)):
            assert exchanges(function(x, kernel, mode)) == [4]
        if mode != "same":
            assert exchanges(function(np.ones(100), x, mode)) == [4]


@pytest.mark.parametrize(
    ("shape", "chunks", "mode"),
    [((32, 24), (4, 24), "full"), ((32, 24), (32, 3), "same"), ((8, 8, 8), (2, 8, 8), "full")],
)
def test_exchanges_of_slabs(shape, chunks, mode):
    """One for each transform, windows and padding included; a small kernel has none."""
    x = da.zeros(shape, chunks=chunks)
    y = da.ones(shape, chunks=chunks)
    assert sum(exchanges(signal.fftconvolve(x, y, mode))) <= 3
    kernel = np.ones((3,) * len(shape))
    assert sum(exchanges(signal.correlate(x, kernel, mode, method="fft"))) == 2


def test_an_array_with_itself():
    """One spectrum does for both."""
    x = da.from_array(random_array((2000,), "c16", 0), chunks=125)
    correlation = signal.correlate(x, x)
    assert exchanges(correlation) == [4]
    agree(correlation, scipy.signal.correlate(x.compute(), x.compute()), 2.2e-16)


def test_overlapping_blocks_exchange_nothing():
    x = da.zeros(2**14, chunks=2**11)
    convolution = signal.oaconvolve(x, np.ones(100))
    assert not plans_of(convolution)
    assert convolution.chunks == ((*(2**11,) * 7, 2**11 + 99),)
    assert not plans_of(signal.convolve(x, np.ones(100)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", ["auto", "direct"])
@pytest.mark.parametrize("name", ["convolve", "correlate"])
def test_chunks_may_be_empty(name, method, mode):
    """Dask finds nothing where it reverses an array whose last entry has an empty chunk before."""
    for long, short in [
        ((3,), (1, 0, 1)),
        ((2, 0, 3), (0, 1, 0, 1)),
        ((0, 1), (1, 0, 0)),
        ((1, 0, 2), (4, 0, 1)),
    ]:
        x = np.arange(1.0, sum(long) + 1)
        y = np.arange(1.0, sum(short) + 1) ** 2
        convolution = getattr(signal, name)(
            da.from_array(x, chunks=(long,)), da.from_array(y, chunks=(short,)), mode, method
        )
        expected = getattr(scipy.signal, name)(x, y, mode, method)
        assert convolution.shape == expected.shape
        agree(convolution, expected, 1e-15)


@pytest.mark.parametrize("method", ["oaconvolve", "direct"])
@pytest.mark.parametrize("chunks", [(4, 4), (4, 1, 3), (5, 3), (3, 5)])
@pytest.mark.parametrize("length", [4, 5, 8])
def test_blocks_of_a_valid_convolution_have_samples(method, chunks, length):
    x = random_array((8,), "f8", 0)
    h = random_array((length,), "f8", 1)
    a = da.from_array(x, chunks=(chunks,))
    if method == "direct":
        convolution = signal.convolve(a, h, "valid", "direct")
    else:
        convolution = signal.oaconvolve(a, h, "valid")
    assert min(convolution.chunks[0]) > 0
    agree(convolution, np.convolve(x, h, "valid"), 1e-14)


@pytest.mark.parametrize(
    "settings_", [{"bigfft.exchange.carrier": "tasks"}, {"bigfft.chunks": "preserve"}]
)
def test_under_other_settings_inputs_are_only_read(settings_):
    a = random_array((40, 30), "f8", 0)
    b = random_array((9, 30), "f8", 1)
    a.flags.writeable = b.flags.writeable = False
    with dask.config.set(settings_):
        for name in ("fftconvolve", "oaconvolve", "correlate"):
            x = da.from_array(a, chunks=(7, 11))
            y = da.from_array(b, chunks=(4, 30))
            convolution = getattr(signal, name)(x, y)
            agree(convolution, getattr(scipy.signal, name)(a, b), 2.2e-16)


def test_with_array_expressions():
    """In a process of its own: dask reads the setting when it is imported."""
    process = python(
        Path(__file__).with_name("array_expressions.py"),
        env={"DASK_ARRAY__QUERY_PLANNING": "True", "DASK_BIGFFT__PLANNER__WHOLE_AXIS_FLOOR": "1"},
    )
    assert "array_expr" in process.stdout


class Watching(memory.HostArena):
    """An arena that knows the most that was lent at a time."""

    most = 0

    def allocate(self, shape, dtype):
        block = super().allocate(shape, dtype)
        self.most = max(self.most, self.counters().allocated_bytes)
        return block


def test_blocks_of_a_convolution_take_each_others_memory(monkeypatch):
    """Padded blocks, half spectra and rectangles of nearly one size: hardly any stays idle."""
    arena = Watching(2**31)
    monkeypatch.setattr(memory._process, "arena", arena)
    x, y = (da.full(2**22, value, chunks=2**18) for value in (1.0, 2.0))
    with dask.config.set(scheduler="sync", **{"bigfft.memory.arena-limit": 2**31}):
        total = signal.fftconvolve(x, y).sum().compute()
    assert total == pytest.approx(2.0**45)
    assert arena.most > 2**26
    assert arena.counters().peak_bytes <= 1.1 * arena.most
    half_spectrum = 2**22 * 16
    assert arena.most <= 2.5 * half_spectrum  # one of each, and a few blocks


@pytest.mark.parametrize("mode", MODES)
def test_a_window_shifted(mode):
    """What a last gather takes from anywhere is shifted as any array is."""
    a = random_array((400,), "f8", 0)
    b = random_array((300,), "f8", 1)
    correlation = signal.correlate(da.from_array(a, chunks=50), da.from_array(b, chunks=50), mode)
    expected = scipy.fft.fftshift(scipy.signal.correlate(a, b, mode))
    assert relative_l2(fft.fftshift(correlation).compute(), expected) < 1e-14


@pytest.mark.parametrize("mode", ["full", "same"])
def test_each_array_longer_along_one_axis(mode):
    """A kernel that is longer than all of the other array is no neighbours' affair."""
    a = random_array((17, 9, 4), "f8", 0)
    b = random_array((7, 30, 4), "c16", 1)
    x = da.from_array(a, chunks=(4, 3, 2))
    for axes in (None, (0, 1), (1, 0)):
        convolution = signal.oaconvolve(x, b, mode, axes)
        agree(convolution, scipy.signal.oaconvolve(a, b, mode, axes), 2.2e-16)
    for name in ("convolve", "correlate"):
        convolution = getattr(signal, name)(x, b, mode, "direct")
        agree(convolution, getattr(scipy.signal, name)(a, b, mode), 2.2e-16)


@pytest.mark.pairs
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16", "g"])
@pytest.mark.parametrize(
    ("shape", "chunks", "kernel"),
    [
        ((2**16,), (2**14,), (20 * 256,)),  # twenty rows of an axis in transposed order
        ((2**16,), (2**14,), (2 * 256,)),
        ((600, 40), (100, 40), (40, 9)),  # forty frequencies of an axis in natural order
        ((600, 40), (100, 40), (3, 9)),
    ],
)
def test_kernels_of_few_and_of_many_rows(
    mode,
    dtype,
    shape,
    chunks,
    kernel,
):
    """Rows are summed one by one, or by FFTs."""
    a = random_array(shape, dtype, 0)
    b = random_array(kernel, dtype, 1)
    convolution = signal.fftconvolve(da.from_array(a, chunks=chunks), b, mode)
    assert len(plans_of(convolution)) == 1  # the spectrum of the kernel is made tile by tile
    wide = np.clongdouble if convolution.dtype.kind == "c" else np.longdouble
    expected = scipy.signal.fftconvolve(a.astype(wide), b.astype(wide), mode)
    assert relative_l2(convolution.compute(), expected) < 6 * np.finfo(convolution.dtype).eps


@pytest.mark.parametrize("dtype", ["f8", "c16", "i8"])
def test_sums_of_long_kernels(dtype):
    a = random_array((6000,), dtype, 0)
    b = random_array((5000,), dtype, 1)
    convolution = signal.convolve(da.from_array(a, chunks=6000), b, method="direct")
    agree(convolution, np.convolve(a, b), 2.2e-16)


@pytest.mark.parametrize(
    "work",
    [
        lambda x: signal.power_spectrum(x),
        lambda x: signal.cross_spectrum(x, x + 1),
        lambda x: signal.radial_power_spectrum(x)[1],
    ],
)
def test_reports_have_the_work_on_spectra(work):
    x = da.random.default_rng(3).standard_normal(2**12, chunks=2**9)
    computed = work(x)
    computed.compute()
    products = [row for run in report(computed).runs for row in run.rows if row.phase == "product"]
    assert sum(row.count for row in products) > 0
    assert sum(row.nbytes for row in products) > 0
    assert sum(row.seconds for row in products) > 0
    assert any(span.phase == "product" for run in report(computed).runs for span in run.spans)


@pytest.mark.parametrize(
    "dtypes",
    [
        ("f8", "f4"),
        ("f4", "f8"),
        ("c8", "f8"),
        ("f4", "c16"),
    ],
)
@pytest.mark.parametrize(
    "function",
    [
        signal.convolve,
        signal.correlate,
        signal.oaconvolve,
        signal.fftconvolve,
    ],
)
def test_inputs_of_two_precisions_are_convolved_in_the_higher_one(function, dtypes):
    """SciPy's transforms of one precision each would leave that of the lower one."""
    a = random_array((64,), dtypes[0], 0)
    b = random_array((5,), dtypes[1], 1)
    wide_b = b[::-1].conj() if function is signal.correlate else b
    expected = np.convolve(a.astype("c16"), wide_b.astype("c16"))
    result = function(da.from_array(a, chunks=16), b)
    assert result.dtype == np.result_type(a, b)
    assert relative_l2(result.compute(), expected) < 1e-15


def test_arrays_of_two_precisions_that_are_both_broadcast():
    a = random_array((1, 40), "f8", 0)
    b = random_array((3, 30), "f4", 1)
    c = random_array((3, 1, 40), "f4", 2)
    d = random_array((1, 2, 30), "f8", 3)
    for first, second in ((a, b), (c, d)):
        expected = scipy.signal.fftconvolve(first.astype("f8"), second.astype("f8"), axes=-1)
        result = signal.fftconvolve(da.from_array(first), da.from_array(second), axes=-1)
        agree(result, expected, 2.2e-16)
