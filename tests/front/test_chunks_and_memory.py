"""Chunks of the result, memory limits, and the arena's settings."""

import dask
import dask.array as da
import numpy as np
import psutil
import pytest
from dask.utils import parse_bytes

import dask_bigfft
from dask_bigfft import fft, memory_settings
from dask_bigfft.errors import PlanError


def numbers(*shape):
    return np.random.default_rng(7).standard_normal(shape)


def check(result, expected, chunks):
    assert result.chunks == chunks
    np.testing.assert_allclose(result.compute(), expected, atol=1e-10)


# --- chunks -----------------------------------------------------------------------------------


def test_preserved_chunks_are_the_inputs():
    x = numbers(12, 20)
    a = da.from_array(x, chunks=((5, 4, 3), (7, 13)))
    for axes in [(0,), (1,), (0, 1)]:
        check(fft.fftn(a, axes=axes, chunks="preserve"), np.fft.fftn(x, axes=axes), a.chunks)


def test_preserved_chunks_are_scaled_where_the_length_changes():
    x = numbers(12, 20)
    a = da.from_array(x, chunks=(4, 5))
    check(fft.fft(a, 40, chunks="preserve"), np.fft.fft(x, 40), ((4, 4, 4), (10, 10, 10, 10)))
    check(fft.fft(a, 10, chunks="preserve"), np.fft.fft(x, 10), ((4, 4, 4), (2, 3, 3, 2)))
    result = fft.rfft(a, chunks="preserve")
    check(result, np.fft.rfft(x), ((4, 4, 4), (3, 3, 2, 3)))
    check(fft.irfft(result, chunks="preserve"), x, ((4, 4, 4), (5, 6, 4, 5)))
    check(fft.fft(a, 2, chunks="preserve"), np.fft.fft(x, 2), ((4, 4, 4), (1, 1)))


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (5, ((5, 5, 2), (5, 5, 5, 5))),
        (-1, ((12,), (20,))),
        ((6, 4), ((6, 6), (4, 4, 4, 4, 4))),
        (((1, 11), (20,)), ((1, 11), (20,))),
        ({1: 10}, ((4, 4, 4), (10, 10))),
        ({-1: -1, 0: (2, 10)}, ((2, 10), (20,))),
        (("auto", 10), ((12,), (10, 10))),
        ("1 kiB", ((8, 4), (8, 8, 4))),
        (np.int64(12), ((12,), (12, 8))),
    ],
)
def test_explicit_chunks(chunks, expected):
    x = numbers(12, 20)
    a = da.from_array(x, chunks=(4, 5))
    for order in ("natural", "transposed"):
        result = fft.fft2(a, chunks=chunks, order=order)
        if chunks == "1 kiB":  # dask decides the shape
            assert max(map(np.prod, [result.chunksize])) * 16 <= 1024
        else:
            assert result.chunks == expected
    natural = fft.fft2(a, chunks=chunks).compute()
    np.testing.assert_allclose(natural, np.fft.fft2(x), atol=1e-10)


def test_auto_leaves_axes_alone_that_are_not_split():
    a = da.zeros((12, 20, 6), chunks=((5, 7), -1, (4, 2)))
    assert fft.fft(a, axis=1).chunks == a.chunks
    assert dask_bigfft.plan(a, "fft", axis=1).travelling == ()


# --- memory limits ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "nbytes"),
    [
        ("1 GiB", 2**30),
        ("1.5GiB", 3 * 2**29),
        ("200 MB", 2 * 10**8),
        (2.0**28, 2**28),
        (np.int64(2**29), 2**29),
        ("123456789", 123456789),
    ],
)
def test_memory_limits_are_read(limit, nbytes):
    x = da.zeros(4096, chunks=512)
    assert dask_bigfft.plan(x, "fft", memory_limit=limit).machine.memory_limit == nbytes
    with dask.config.set({"bigfft.memory-limit": limit if isinstance(limit, str) else nbytes}):
        assert dask_bigfft.plan(x, "fft").machine.memory_limit == nbytes
        assert dask_bigfft.plan(x, "fft", memory_limit=2**27).machine.memory_limit == 2**27


def test_without_a_limit_the_machines_memory_counts():
    machine = dask_bigfft.plan(da.zeros(8), "fft").machine
    assert machine.memory_limit == psutil.virtual_memory().total
    with dask.config.set(scheduler="synchronous"):
        assert dask_bigfft.plan(da.zeros(8), "fft").machine.threads == 1
    with dask.config.set(num_workers=7):
        assert dask_bigfft.plan(da.zeros(8), "fft").machine.threads == 7


def test_a_plan_keeps_to_the_limit_or_is_refused_with_the_least_one():
    x = da.zeros(2**16, chunks=2**12, dtype=complex)
    needed = dask_bigfft.plan(x, "fft").expected.peak_host
    assert dask_bigfft.plan(x, "fft", memory_limit=needed).expected.peak_host <= needed
    with pytest.raises(PlanError, match=r"at least [\d.]+ KiB") as caught:
        fft.fft(x, memory_limit=1000)
    least = parse_bytes(str(caught.value).partition("at least ")[2].partition(" per ")[0])
    assert dask_bigfft.plan(x, "fft", memory_limit=least).expected.peak_host <= least


# --- the arena --------------------------------------------------------------------------------


class Worker:
    def __init__(self, limit, target=0.6):
        self.address = "tcp://127.0.0.1:1"
        self.memory_manager = type("Manager", (), {})()
        self.memory_manager.memory_limit = limit
        self.memory_manager.memory_target_fraction = target


@pytest.fixture
def calls(monkeypatch):
    """Return what the arena was told, in order."""
    found = []

    def record(limit, enabled, *, pressure, prefault):
        found.append((limit, enabled, pressure, prefault))

    monkeypatch.setattr(memory_settings, "configure", record)
    monkeypatch.setattr(memory_settings, "_applied", None)
    return found


def test_the_arena_follows_the_settings(calls):
    total = psutil.virtual_memory().total
    memory_settings.configure_arena()
    memory_settings.configure_arena()
    assert calls == [(int(0.4 * total), True, None, True)]
    with dask.config.set({"bigfft.memory.arena-limit": "64 MiB"}):
        fft.fft(da.zeros(8))
    with dask.config.set({"bigfft.memory.arena": False}):
        fft.fft(da.zeros(8))
    with dask.config.set({"bigfft.memory.prefault": False}):
        fft.fft(da.zeros(8))
    limit = int(0.4 * total)
    assert calls[1:] == [
        (2**26, True, None, True), (limit, False, None, True), (limit, True, None, False),
    ]


def test_the_arena_on_a_worker_follows_its_limit(calls, monkeypatch):
    monkeypatch.setattr(memory_settings, "current_worker", lambda: Worker(10**9))
    memory_settings.configure_arena()
    ((limit, enabled, pressure, prefault),) = calls
    assert (limit, enabled, prefault) == (4 * 10**8, True, True)
    rss = psutil.Process().memory_info().rss
    assert pressure() == (rss > 6 * 10**8)
    for worker, loaded in ((Worker(rss), True), (Worker(100 * rss), False)):
        assert memory_settings.pressure(worker)() is loaded
    assert memory_settings.pressure(Worker(None)) is None
    assert memory_settings.pressure(Worker(10**9, target=False)) is None


def test_planning_alone_leaves_the_arena_alone(calls):
    dask_bigfft.plan(da.zeros(8), "fft")
    assert calls == []
