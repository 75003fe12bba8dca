"""Convolutions as operators of one plan, against SciPy: with kernels, and of two long arrays."""

import math

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.signal
from dask.order import order
from laws.law import small_tiles

from dask_bigfft import signal
from dask_bigfft.graph.layer import transforms_in
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.signal.kernel_spectrum import AxisSpectrum
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.strategies import random_array

#: Shape of an array, its chunks, and the shape of the other array.
CASES = [
    ((96,), 8, (7,)),
    ((101,), (7, 50, 3, 41), (101,)),
    ((1024,), 64, (300,)),
    ((97,), 97, (5,)),
    ((24, 30), (5, 7), (3, 4)),
    ((32, 64), (4, 64), (9, 9)),
    ((40, 64), (10, 16), (1, 5)),
    ((13, 1, 24), (2, 1, 5), (4, 1, 24)),
    ((16, 8, 9), (2, 8, 9), (3, 3, 3)),
    ((4, 6, 5, 3, 8), (2, 3, 2, 2, 3), (2, 3, 1, 3, 2)),
]

MODES = ("full", "same", "valid")


def split(**settings):
    """Plans as for large arrays: nothing is gathered whole that can be split."""
    small = {"bigfft.planner.small": 0, "bigfft.planner.whole-axis-floor": 1}
    return dask.config.set({**small, **settings})


def require_close(result, expected, error):
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype
    scale = np.abs(expected).max(initial=0)
    np.testing.assert_allclose(result, expected, rtol=0, atol=error * scale)


def one_plan(lazy):
    (plan,) = transforms_in(lazy).values()
    assert plan.spec.transfer
    return plan


@pytest.mark.pairs
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtypes", [("f8", "f8"), ("f4", "c8"), ("c16", "f4")])
@pytest.mark.parametrize(("shape", "chunks", "kernel"), CASES)
def test_against_scipy(
    shape,
    chunks,
    kernel,
    dtypes,
    mode,
    monkeypatch,
):
    small_tiles(monkeypatch, 1 << 13)
    x = random_array(shape, dtypes[0], 1)
    h = random_array(kernel, dtypes[1], 2)
    axes = [axis for axis, n in enumerate(shape) if (n, kernel[axis]) not in ((24, 24), (3, 3))]
    wide_h = h.astype("c16" if h.dtype.kind == "c" else "f8")
    expected = scipy.signal.fftconvolve(x, wide_h, mode, axes)
    is_single = {*dtypes} <= {"f4", "c8"}
    if is_single:
        expected = expected.astype("c8" if "c8" in dtypes else "f4")
    for lazy_h in (h, da.from_array(h, chunks=2)):
        with split():
            lazy = signal.fftconvolve(da.from_array(x, chunks=chunks), lazy_h, mode, axes)
            result = lazy.compute(scheduler="sync")
        if math.prod(kernel) < math.prod(shape) / 4:
            one_plan(lazy)
        require_close(result, expected, 1e-5 if is_single else 1e-13)


@pytest.mark.pairs
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize(("shape", "chunks", "kernel"), CASES[::2])
def test_correlations(
    shape,
    chunks,
    kernel,
    swapped,
    dtype,
    mode,
):
    x = random_array(shape, dtype, 1)
    h = random_array(kernel, dtype, 2)
    pair = (da.from_array(x, chunks=chunks), da.from_array(h, chunks=3))
    expected = scipy.signal.correlate(*((h, x) if swapped else (x, h)), mode, "fft")
    with split():
        lazy = signal.correlate(*(pair[::-1] if swapped else pair), mode, "fft")
        result = lazy.compute(scheduler="sync")
    require_close(result, expected, 1e-13)


#: Shapes and chunks of two arrays whose spectra meet in the product.
LONG = [
    ((500,), 50, (300,), (7, 100, 193)),
    ((101,), 10, (101,), 30),
    ((24, 30), (5, 30), (20, 9), (4, 9)),
    ((24, 30), (5, 7), (24, 30), (24, 3)),
    ((16, 1, 9), (2, 1, 9), (9, 1, 9), (2, 1, 3)),
    ((16, 8, 9), (2, 8, 9), (9, 8, 4), (2, 3, 3)),
    ((4, 6, 5, 3, 8), (2, 3, 2, 2, 3), (4, 4, 5, 3, 7), 2),
]


@pytest.fixture
def no_kernels(monkeypatch):
    """Tiles so small that no array is a kernel."""
    small_tiles(monkeypatch, 1 << 7)


@pytest.mark.pairs
@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtypes", [("f8", "f8"), ("f4", "c8"), ("c16", "f4")])
@pytest.mark.parametrize(("shape", "chunks", "other_shape", "other_chunks"), LONG)
def test_two_long_arrays(
    shape,
    chunks,
    other_shape,
    other_chunks,
    dtypes,
    mode,
):
    x = random_array(shape, dtypes[0], 1)
    y = random_array(other_shape, dtypes[1], 2)
    wide_y = y.astype("c16" if y.dtype.kind == "c" else "f8")
    expected = scipy.signal.correlate(x, wide_y, mode, "fft")
    is_single = {*dtypes} <= {"f4", "c8"}
    if is_single:
        expected = expected.astype("c8")
    with split():
        lazy = signal.correlate(
            da.from_array(x, chunks=chunks),
            da.from_array(y, chunks=other_chunks),
            mode,
            "fft",
        )
        (operand,) = one_plan(lazy).operands
        result = lazy.compute(scheduler="sync")
    assert operand.plan.rounds
    require_close(result, expected, 1e-5 if is_single else 1e-13)


#: Shapes and chunks of two arrays, of which the second one is the same for all rows, and the axes.
BROADCAST = [
    ((5, 500), (2, 50), (1, 300), (1, 100), (1,)),
    ((2, 101), (2, 10), (1, 101), (1, 30), (1,)),
    ((6, 24, 30), (2, 5, 30), (1, 20, 9), (1, 4, 9), (1, 2)),
    ((24, 3, 30), (5, 2, 7), (20, 1, 30), (20, 1, 3), (0, 2)),
    ((24, 30, 2), (5, 7, 1), (24, 30, 1), (24, 3, 1), (1, 0)),
    ((3, 16, 2, 9, 1), (2, 2, 1, 9, 1), (1, 9, 1, 9, 1), (1, 2, 1, 3, 1), (1, 3)),
]


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("carrier", ["shared", "tasks", "disk"])
@pytest.mark.parametrize(("shape", "chunks", "other_shape", "other_chunks", "axes"), BROADCAST)
def test_a_long_array_for_all_rows(
    shape,
    chunks,
    other_shape,
    other_chunks,
    axes,
    carrier,
    tmp_path,
):
    mode, dtype = {"shared": ("full", "c16"), "tasks": ("same", "f4"), "disk": ("valid", "f8")}[
        carrier
    ]
    x = random_array(shape, dtype, 1)
    y = random_array(other_shape, dtype, 2)
    places = {"bigfft.exchange.carrier": carrier, "bigfft.scratch.directory": str(tmp_path)}
    with split(**places):
        lazy = signal.fftconvolve(
            da.from_array(x, chunks=chunks),
            da.from_array(y, chunks=other_chunks),
            mode,
            axes,
        )
        (operand,) = one_plan(lazy).operands
        result = lazy.compute(scheduler="sync")
    assert operand.plan.rounds
    expected = scipy.signal.fftconvolve(x.astype("c16"), y, mode, axes)
    expected = (expected if dtype == "c16" else expected.real).astype(dtype)
    require_close(result, expected, 1e-5 if dtype == "f4" else 1e-13)


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", ["f8", "c16", "f4"])
@pytest.mark.parametrize("name", ["correlate", "convolve"])
@pytest.mark.parametrize(
    ("shape", "chunks"),
    [((500,), 50), ((101,), 101), ((24, 30), (5, 30)), ((16, 8, 9), (2, 8, 9)), ((9, 8), (3, 3))],
)
def test_an_array_with_itself(shape, chunks, name, dtype):
    x = random_array(shape, dtype, 1)
    lazy_x = da.from_array(x, chunks=chunks)
    for mode in MODES:
        with split():
            lazy = getattr(signal, name)(lazy_x, lazy_x, mode, "fft")
            assert one_plan(lazy).spec.factor is None
            result = lazy.compute(scheduler="sync")
        expected = getattr(scipy.signal, name)(x, x, mode, "fft")
        require_close(result, expected, 1e-5 if dtype == "f4" else 1e-13)


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("device", ["gpu", "hybrid"])
def test_two_long_arrays_on_devices(device):
    x = random_array((24, 30), "f8", 1)
    y = random_array((20, 30), "f8", 2)
    limits = TileLimits(0, least=256, run_nbytes=64)
    with split(), simulated_devices(1 << 20, limits=limits):
        lazy = signal.fftconvolve(
            da.from_array(x, chunks=(6, 30)),
            da.from_array(y, chunks=(5, 10)),
            device=device,
        )
        result = lazy.compute(scheduler="sync")
    require_close(result, scipy.signal.fftconvolve(x, y), 1e-13)


@pytest.mark.usefixtures("no_kernels")
@pytest.mark.parametrize("device", ["gpu", "hybrid"])
def test_lines_that_a_device_splits(device):
    """A part of a line has frequencies of both signs, of which stored values have only one."""
    x = random_array((4096,), "f8", 1)
    y = random_array((4096,), "f8", 2)
    limits = TileLimits(0, least=256, run_nbytes=64)
    gathered_whole = {"bigfft.planner.small": "1 MiB", "bigfft.planner.whole-axis-floor": "1 MiB"}
    with dask.config.set(gathered_whole), simulated_devices(1 << 16, limits=limits):
        lazy = signal.fftconvolve(
            da.from_array(x, chunks=256),
            da.from_array(y, chunks=256),
            device=device,
        )
        assert one_plan(lazy).notation == "{X H X'}"
        result = lazy.compute(scheduler="sync")
    require_close(result, scipy.signal.fftconvolve(x, y), 1e-13)


def test_two_arrays_larger_than_memory(tmp_path):
    """Blocks of both spectra meet one at a time, as a scheduler orders the tasks."""
    x = da.zeros(1 << 21, chunks=1 << 17, dtype="c16")
    y = da.ones(1 << 20, chunks=1 << 17, dtype="c16")
    with split(**{"bigfft.scratch.directory": str(tmp_path)}):
        lazy = signal.fftconvolve(x, y, "same", memory_limit="45 MiB")
        plan = one_plan(lazy)
        assert plan.storage == "disk"
        assert plan.expected.peak_host <= 45 << 20
        graph = dict(lazy.__dask_graph__())
    places = order(graph)
    (operand,) = plan.operands
    number = operand.stage + 1
    blocks = [places[key] for key in graph if f"transfer_round{number}-" in str(key)]
    rounds = [places[key] for key in graph if f"bigfft_round{number}-" in str(key)]
    assert len(blocks) == len(rounds) > 8
    waiting = [sum(b < time for b in blocks) - sum(r < time for r in rounds) for time in rounds]
    assert max(waiting) <= 2


@pytest.mark.pairs
@pytest.mark.parametrize("verify", ["none", "checksum"])
@pytest.mark.parametrize("carrier", ["shared", "tasks", "disk"])
@pytest.mark.parametrize("kernel", [(5, 4), (24, 36)])
@pytest.mark.parametrize("dtype", ["f8", "c8"])
def test_carriers_and_checks(
    dtype,
    kernel,
    carrier,
    verify,
    tmp_path,
    no_kernels,
):
    x = random_array((24, 36), dtype, 1)
    h = random_array(kernel, dtype, 2)
    places = {"bigfft.exchange.carrier": carrier, "bigfft.scratch.directory": str(tmp_path)}
    with split(**places):
        lazy = signal.fftconvolve(
            da.from_array(x, chunks=(6, 7)),
            da.from_array(h, chunks=(5, 8)),
            "same",
            verify=verify,
        )
        result = lazy.compute(scheduler="threads", num_workers=2)
    expected = scipy.signal.fftconvolve(x, h, "same")
    require_close(result, expected, 1e-5 if dtype == "c8" else 1e-13)


@pytest.mark.parametrize("carrier", ["p2p", "tasks"])
@pytest.mark.parametrize("kernel", [(5, 4), (24, 36)])
def test_on_a_cluster(kernel, carrier, client, no_kernels):
    x = random_array((24, 36), "f8", 1)
    h = random_array(kernel, "f8", 2)
    with split(**{"bigfft.exchange.carrier": carrier}):
        lazy = signal.fftconvolve(da.from_array(x, chunks=(8, 18)), da.from_array(h, chunks=12))
        require_close(lazy.compute(), scipy.signal.fftconvolve(x, h), 1e-13)


@pytest.mark.parametrize("device", ["gpu", "hybrid"])
@pytest.mark.parametrize(
    ("shape", "chunks", "kernel", "nbytes"),
    [
        ((96,), 8, (9,), 1 << 20),
        ((1024,), 1024, (100,), 1 << 12),
        ((24, 30), (24, 30), (5, 3), 1 << 13),
        ((13, 24), 5, (3, 9), 1 << 20),
    ],
)
def test_on_devices(
    shape,
    chunks,
    kernel,
    nbytes,
    device,
):
    x = random_array(shape, "f8", 1)
    h = random_array(kernel, "f8", 2)
    limits = TileLimits(0, least=256, run_nbytes=64)
    with split(), simulated_devices(nbytes, limits=limits):
        lazy = signal.fftconvolve(da.from_array(x, chunks=chunks), h, "same", device=device)
        one_plan(lazy)
        result = lazy.compute(scheduler="sync")
    require_close(result, scipy.signal.fftconvolve(x, h, "same"), 1e-13)


def test_slabs_are_cropped_by_the_rounds():
    """Two exchanges, and the result in the chunks of the input."""
    x = da.zeros((64, 40, 40), chunks=(8, 40, 40), dtype="f4")
    with split():
        lazy = signal.fftconvolve(x, np.ones((3, 3, 3), "f4"), "same")
    plan = one_plan(lazy)
    assert len(plan.travelling) == 2
    assert plan.ends_in_round
    assert lazy.chunks == x.chunks


@pytest.mark.parametrize("length", [1, 7, 12, 30, 64])
def test_frequencies_of_a_tile_in_any_order(length):
    """The digits of a set of frequencies, and the order of the set."""
    rng = np.random.default_rng(length)
    frequencies = np.arange(length)
    divisors = [n for n in range(1, length + 1) if length % n == 0]
    for columns in divisors:
        stride = length // columns
        residues = rng.permutation(stride)[: 1 + stride // 2]
        index = (residues[:, None] + stride * np.arange(columns)).ravel()
        for places_of_set in (np.arange(index.size), rng.permutation(index.size)):
            own = AxisSpectrum.of(index[places_of_set], length)
            assert own.columns >= columns
            in_order = (
                own.residues[:, None] + length // own.columns * np.arange(own.columns)
            ).ravel()
            places = slice(None) if own.places is None else own.places
            np.testing.assert_array_equal(in_order[places], index[places_of_set])
    assert AxisSpectrum.of(frequencies, length).columns == length
