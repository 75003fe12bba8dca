"""Lazy arrays as transfer functions of operators, against NumPy: one plan, wherever it runs."""

import dask
import dask.array as da
import numpy as np
import pytest
from dask.order import order
from laws.law import small_tiles

import dask_bigfft.planner.plan
from dask_bigfft import fft, signal
from dask_bigfft.errors import ArgumentError
from dask_bigfft.graph.layer import transforms_in
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.strategies import random_array

#: Shapes, chunks and axes whose axes are cut.
CASES = [
    ((96,), 8, None),
    ((90,), (7, 50, 3, 30), None),
    ((101,), 10, None),
    ((1,), 1, None),
    ((13, 1, 24), (2, 1, 5), (2, 1)),
    ((12, 30), (5, 7), None),
    ((32, 64), (4, 64), None),
    ((64, 4), (3, 4), 0),
    ((18, 10, 12), (7, 3, 5), None),
    ((16, 8, 9), (2, 8, 9), (1, 2, 0)),
    ((4, 6, 5, 3, 8), (2, 3, 2, 2, 3), None),
    ((4, 6, 5, 3, 8), (2, 3, 2, 2, 3), (3, 1)),
]


@pytest.fixture(autouse=True)
def exchanged(monkeypatch):
    """Arrays are exchanged, as large ones are, unless they are smaller than a block."""
    monkeypatch.setattr(dask_bigfft.planner.plan, "WHOLE_NBYTES", 0)
    monkeypatch.setattr(dask_bigfft.signal.transfer, "WHOLE_NBYTES", 0)


def split(**settings):
    """Plans as for large arrays: nothing is gathered whole that can be split."""
    small = {"bigfft.planner.small": 0, "bigfft.planner.whole-axis-floor": 1}
    return dask.config.set({**small, **settings})


def case_of(shape, axes, dtype, h_dtype="c16"):
    """An array, a transfer function of the shape of its spectrum, and the inverse of a product."""
    x = random_array(shape, dtype, 1)
    along = [*range(x.ndim)] if axes is None else [int(a) for a in np.atleast_1d(axes)]
    lengths = [shape[axis] for axis in along]
    forward, inverse = (np.fft.fftn, np.fft.ifftn)
    if x.dtype.kind != "c":
        forward, inverse = (np.fft.rfftn, np.fft.irfftn)
    wide = x.astype("c16" if x.dtype.kind == "c" else "f8")
    spectrum = forward(wide, lengths, along)
    h = random_array(spectrum.shape, h_dtype, 2)
    return x, h, lambda values: inverse(spectrum * values, lengths, along)


def plan_of(lazy):
    (plan,) = transforms_in(lazy).values()
    assert plan.spec.transfer
    return plan


def require_close(result, expected, error=1e-13):
    assert result.shape == expected.shape
    scale = np.abs(expected).max()
    np.testing.assert_allclose(result, expected, rtol=0, atol=error * scale)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize(("shape", "chunks", "axes"), CASES)
def test_values_are_exchanged_into_the_order_of_the_spectrum(
    shape,
    chunks,
    axes,
    dtype,
    monkeypatch,
):
    small_tiles(monkeypatch, 1 << 9)
    x, h, expected_of = case_of(shape, axes, dtype)
    last = -1 if axes is None else np.atleast_1d(axes)[-1]
    along_last = tuple(slice(None) if a == last % x.ndim else slice(1) for a in range(x.ndim))
    along_others = tuple(slice(1) if a == last % x.ndim else slice(None) for a in range(x.ndim))
    for values in (h, h.real, h[along_last], h[along_others]):
        lazy_values = da.from_array(values, chunks=5)
        with split():
            lazy = signal.fourier_filter(da.from_array(x, chunks=chunks), lazy_values, axes)
            plan_of(lazy)
            result = lazy.compute(scheduler="sync")
        require_close(result, expected_of(values))


@pytest.mark.pairs
@pytest.mark.parametrize(("dtype", "error"), [("f4", 1e-5), ("c8", 1e-5), ("i2", 1e-13)])
@pytest.mark.parametrize("h_dtype", ["c16", "f4", "bool"])
@pytest.mark.parametrize("is_whole", [False, True])
def test_dtypes(is_whole, h_dtype, dtype, error):
    x, h, expected_of = case_of((24, 36), None, dtype, h_dtype)
    h = h[:1] if is_whole else h
    with split():
        lazy = signal.fourier_filter(da.from_array(x, chunks=(6, 7)), da.from_array(h, chunks=5))
        plan = plan_of(lazy)
        assert (plan.operands[0].plan is None) == is_whole
        result = lazy.compute(scheduler="sync")
    assert result.dtype == lazy.dtype
    require_close(result, expected_of(h), error)


@pytest.mark.pairs
@pytest.mark.parametrize("verify", ["none", "checksum"])
@pytest.mark.parametrize("carrier", ["shared", "tasks", "disk"])
@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("dtype", ["f8", "c8"])
def test_carriers_and_checks(
    dtype,
    is_whole,
    carrier,
    verify,
    tmp_path,
):
    x, h, expected_of = case_of((24, 36), None, dtype)
    h = h[:1] if is_whole else h
    places = {"bigfft.exchange.carrier": carrier, "bigfft.scratch.directory": str(tmp_path)}
    with split(**places):
        lazy = signal.fourier_filter(
            da.from_array(x, chunks=(6, 7)),
            da.from_array(h, chunks=(5, 8)),
            verify=verify,
        )
        result = lazy.compute(scheduler="threads", num_workers=2)
    require_close(result, expected_of(h), 1e-5 if dtype == "c8" else 1e-13)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize("carrier", ["p2p", "tasks", "disk"])
def test_on_a_cluster(carrier, is_whole, client, tmp_path):
    x, h, expected_of = case_of((24, 36), None, "f8")
    h = h[:1] if is_whole else h
    places = {"bigfft.exchange.carrier": carrier, "bigfft.scratch.directory": str(tmp_path)}
    with split(**places):
        lazy = signal.fourier_filter(da.from_array(x, chunks=(8, 18)), da.from_array(h, chunks=12))
        assert (plan_of(lazy).operands[0].plan is None) == is_whole
        require_close(lazy.compute(), expected_of(h))


@pytest.mark.pairs
@pytest.mark.parametrize("device", ["gpu", "hybrid"])
@pytest.mark.parametrize("is_whole", [False, True])
@pytest.mark.parametrize(
    ("shape", "chunks", "device_nbytes"),
    [
        ((96,), 8, 1 << 20),
        ((96,), 96, 1 << 10),
        ((24, 30), (24, 30), 1 << 13),
        ((13, 24), 5, 1 << 20),
    ],
)
def test_on_devices(
    shape,
    chunks,
    device_nbytes,
    is_whole,
    device,
):
    x, h, expected_of = case_of(shape, None, "f8")
    h = h[:1] if is_whole and h.ndim > 1 else h
    limits = TileLimits(0, least=256, run_nbytes=64)
    with split(), simulated_devices(device_nbytes, limits=limits):
        lazy = signal.fourier_filter(
            da.from_array(x, chunks=chunks),
            da.from_array(h, chunks=4),
            device=device,
        )
        result = lazy.compute(scheduler="sync")
    require_close(result, expected_of(h))


def test_a_plan_with_a_lazy_array_is_text():
    x, h, _ = case_of((24, 36), None, "f8")
    with split():
        lazy = signal.fourier_filter(da.from_array(x, chunks=(6, 7)), da.from_array(h, chunks=5))
    plan = plan_of(lazy)
    assert Plan.from_json(plan.to_json()) == plan
    assert "rechunked like the spectrum" in " ".join(plan.explain().split())
    assert plan.expected.bytes_exchanged > sum(e.nbytes for e in plan.travelling)


def test_slabs_of_an_array_are_those_of_the_spectrum():
    """No exchange for an array in the blocks of the spectrum."""
    x = da.zeros((64, 64, 64), chunks=(8, 64, 64), dtype="f4")
    with split():
        spectrum = fft.rfftn(x)
        h = da.ones(spectrum.shape, chunks=spectrum.chunks, dtype="c8")
        plan = plan_of(signal.fourier_filter(x, h))
        assert not plan.operands[0].plan.travelling
        assert len(plan.travelling) == 2


def test_chunks_of_another_size_make_no_array_whole(tmp_path):
    """Blocks of a large array are in memory one at a time, as a scheduler orders the tasks."""
    x = da.zeros(1 << 22, chunks=1 << 18, dtype="c16")
    h = da.zeros(1 << 22, chunks=1 << 19, dtype="c16")
    with split(**{"bigfft.scratch.directory": str(tmp_path)}):
        lazy = signal.fourier_filter(x, h, memory_limit="80 MiB")
        plan = plan_of(lazy)
        assert plan.storage == "disk"
        assert plan.expected.peak_host <= 80 << 20
        graph = dict(lazy.__dask_graph__())
    places = order(graph)
    (operand,) = plan.operands
    blocks = [places[key] for key in graph if "transfer_unpack" in str(key)]
    rounds = [places[key] for key in graph if f"bigfft_round{operand.stage + 1}-" in str(key)]
    assert len(blocks) == len(rounds) > 8
    waiting = [sum(b < time for b in blocks) - sum(r < time for r in rounds) for time in rounds]
    assert max(waiting) <= 2


def test_values_that_are_not_finite_are_refused():
    values = np.ones(33)
    values[4] = np.nan
    lazy = signal.fourier_filter(da.zeros(64, chunks=8), da.from_array(values, chunks=11))
    with pytest.raises(ArgumentError, match=r"transfer.*finite"):
        lazy.compute()


def test_plans_are_measured(tmp_path):
    x, h, expected_of = case_of((32, 40), None, "f8")
    with split(**{"bigfft.wisdom.directory": str(tmp_path)}):
        lazy = signal.fourier_filter(
            da.from_array(x, chunks=(8, 40)),
            da.from_array(h, chunks=9),
            planner="measure",
        )
        require_close(lazy.compute(), expected_of(h))
