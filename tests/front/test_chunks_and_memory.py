"""Chunks of the result, memory limits, and the arena's settings."""

from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import psutil
import pytest
from dask.utils import parse_bytes

import dask_bigfft
from dask_bigfft import fft
from dask_bigfft.errors import ArgumentError, PlanError
from dask_bigfft.machine import environment
from dask_bigfft.memory import default_arena, limits

X = np.random.default_rng(7).standard_normal((12, 20))


def check(result, expected, chunks):
    assert result.chunks == chunks
    np.testing.assert_allclose(result.compute(), expected, atol=1e-10)


def test_preserved_chunks_are_the_inputs_scaled_where_the_length_changes():
    a = da.from_array(X, chunks=((5, 4, 3), (7, 13)))
    for axes in [(0,), (1,), (0, 1)]:
        check(fft.fftn(a, axes=axes, chunks="preserve"), np.fft.fftn(X, axes=axes), a.chunks)
    a = da.from_array(X, chunks=(4, 5))
    for n, chunks in ((40, (10, 10, 10, 10)), (10, (2, 3, 3, 2)), (2, (1, 1))):
        check(fft.fft(a, n, chunks="preserve"), np.fft.fft(X, n), ((4, 4, 4), chunks))
    result = fft.rfft(a, chunks="preserve")
    check(result, np.fft.rfft(X), ((4, 4, 4), (3, 3, 2, 3)))
    check(fft.irfft(result, chunks="preserve"), X, ((4, 4, 4), (5, 6, 4, 5)))


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        (5, ((5, 5, 2), (5, 5, 5, 5))),
        (-1, ((12,), (20,))),
        (((1, 11), (20,)), ((1, 11), (20,))),
        ({-1: -1, 0: (2, 10)}, ((2, 10), (20,))),
        ({0: None, 1: -1}, ((4, 4, 4), (20,))),
        ((-1, None), ((12,), (5, 5, 5, 5))),
        (("auto", 10), ((12,), (10, 10))),
        ("1 kiB", None),  # dask decides the shape
        (np.int64(12), ((12,), (12, 8))),
    ],
)
def test_explicit_chunks(chunks, expected):
    for order in ("natural", "transposed"):
        result = fft.fft2(da.from_array(X, chunks=(4, 5)), chunks=chunks, order=order)
        assert result.chunks == expected or np.prod(result.chunksize) * 16 <= 1024
        if order == "natural":
            np.testing.assert_allclose(result.compute(), np.fft.fft2(X), atol=1e-10)


def test_chunks_name_an_axis_once():
    with pytest.raises(ArgumentError, match="every axis at most once"):
        fft.fft(da.from_array(X, chunks=(4, 5)), chunks={1: 4, -1: 5})


@pytest.mark.parametrize(
    ("limit", "nbytes"),
    [
        ("1.5GiB", 3 * 2**29),
        (2.0**28, 2**28),
        (np.int64(2**29), 2**29),
    ],
)
def test_memory_limits_are_read(limit, nbytes, monkeypatch):
    x = da.zeros(4096, chunks=512)
    assert dask_bigfft.plan(x, "fft", memory_limit=limit).machine.memory_limit == nbytes
    with dask.config.set({"bigfft.memory-limit": limit if isinstance(limit, str) else nbytes}):
        assert dask_bigfft.plan(x, "fft").machine.memory_limit == nbytes
        assert dask_bigfft.plan(x, "fft", memory_limit=2**27).machine.memory_limit == 2**27
    monkeypatch.setattr(environment, "machine_nbytes", lambda: 2**30)  # libraries need a part
    assert dask_bigfft.plan(x, "fft").machine.memory_limit == 2**29


def test_a_plan_keeps_to_the_limit_or_is_refused_with_the_least_one():
    x = da.zeros(2**16, chunks=2**12, dtype=complex)
    needed = dask_bigfft.plan(x, "fft").expected.peak_host
    assert dask_bigfft.plan(x, "fft", memory_limit=needed).expected.peak_host <= needed
    with pytest.raises(PlanError, match=r"at least [\d.]+ kiB") as caught:
        fft.fft(x, memory_limit=1000)
    with dask.config.set({"bigfft.memory-limit": 1000}), pytest.raises(PlanError, match="kiB"):
        fft.fft(x)
    least = parse_bytes(str(caught.value).partition("at least ")[2].partition(" per ")[0])
    assert dask_bigfft.plan(x, "fft", memory_limit=least).expected.peak_host <= least


# --- the arena --------------------------------------------------------------------------------


def test_the_arena_follows_the_settings_with_each_transform_but_no_plan():
    usual = int(0.4 * psutil.virtual_memory().total)
    with dask.config.set({"bigfft.memory.arena-limit": "64 MiB"}):
        fft.fft(da.zeros(8))
        assert default_arena().limit == 2**26
    dask_bigfft.plan(da.zeros(8), "fft")
    assert default_arena().limit == 2**26
    with dask.config.set({"bigfft.memory.arena": False}):
        fft.fft(da.zeros(8))
        before = default_arena().counters().allocations
        block = dask_bigfft.memory.allocate(2**20, np.uint8)
        assert default_arena().counters().allocations == before
    fft.fft(da.zeros(8))
    assert default_arena().limit == usual
    del block


def worker_of(limit, target=0.6):
    manager = SimpleNamespace(memory_limit=limit, memory_target_fraction=target)
    return SimpleNamespace(address="tcp://127.0.0.1:1", memory_manager=manager)


def test_the_arena_on_a_worker_follows_its_limit(monkeypatch):
    monkeypatch.setattr(limits, "current_worker", lambda: worker_of(10**9))
    limits.configure_arena()
    assert default_arena().limit == 4 * 10**8
    monkeypatch.undo()
    limits.configure_arena()
    rss = psutil.Process().memory_info().rss
    for worker, loaded in ((worker_of(rss), True), (worker_of(100 * rss), False)):
        assert limits.pressure(worker)() is loaded
    assert limits.pressure(worker_of(None)) is None
    assert limits.pressure(worker_of(10**9, target=False)) is None
