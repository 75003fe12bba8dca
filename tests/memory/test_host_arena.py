"""The host arena against what it promises: memory returns by itself, and is never lent twice."""

import collections
import concurrent.futures
import contextlib
import ctypes
import dataclasses
import doctest
import gc
import importlib
import itertools
import os
import pickle
import random
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

import dask_bigfft.memory as memory
from dask_bigfft.errors import ArgumentError, ArgumentTypeError
from dask_bigfft.memory import ALIGNMENT_NBYTES, SMALL_NBYTES, HostArena, default, pages
from dask_bigfft.memory.blocks import Loan

MIB = 1024**2
PACKAGE_PARENT = Path(memory.__file__).parents[2]


def address(block):
    return block.__array_interface__["data"][0]


def run_python(program):
    """Run `program` in an interpreter of its own; fail on any warning or traceback."""
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", program],
        cwd=PACKAGE_PARENT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@pytest.fixture
def arena():
    return HostArena(64 * MIB)


@pytest.fixture
def fresh_process(monkeypatch):
    """Let the test see the process's arena as a process does that has just begun."""
    process = default._Process(default._Settings(64 * MIB))
    monkeypatch.setattr(default, "_process", process)
    return process


# What is lent


@pytest.mark.parametrize("dtype", ["?", "i1", "<u8", "f2", "f4", ">f8", "g", "F", ">c16", "G"])
@pytest.mark.parametrize("shape", [MIB, (MIB,), [1024, 1024], (64, 1, 128, 128), (np.int64(MIB),)])
def test_lent_is_a_plain_array(arena, shape, dtype):
    block = arena.lend(shape, dtype)
    like = np.empty(shape, dtype)
    assert type(block) is np.ndarray
    assert type(block.base) is Loan
    assert (block.shape, block.strides, block.dtype) == (like.shape, like.strides, like.dtype)
    assert block.flags.c_contiguous
    assert block.flags.writeable
    assert block.flags.aligned
    assert address(block) % 4096 == 0
    block[...] = 1
    assert (block == 1).all()
    assert arena.counters().lends == 1


@pytest.mark.parametrize("nbytes", [2 * MIB, 2 * MIB + 1, 8 * MIB, 9 * MIB])
def test_every_byte_is_usable(arena, nbytes):
    block = arena.lend(nbytes, np.uint8)
    other = arena.lend(nbytes, np.uint8)
    block.fill(3)
    other.fill(4)
    assert (block == 3).all()
    assert (other == 4).all()


@pytest.mark.parametrize("shape", [(), 0, (0,), (3, 0, 5), (10**9, 0), 1, (7, 11)])
def test_small_and_empty_are_ordinary_memory(arena, shape):
    block = arena.lend(shape, np.complex64)
    assert block.shape == np.empty(shape).shape
    assert block.flags.c_contiguous
    assert arena.counters().lends == 0
    if block.size:
        assert address(block) % ALIGNMENT_NBYTES == 0


@pytest.mark.parametrize("dtype", [object, "U40", "M8[s]", [("a", "f8"), ("b", "i4")]])
def test_other_dtypes_are_ordinary_memory(arena, dtype):
    block = arena.lend(MIB, dtype)
    assert block.dtype == np.dtype(dtype)
    assert arena.counters().lends == 0
    if dtype is object:
        assert block[0] is None


@pytest.mark.parametrize("nbytes", [SMALL_NBYTES, MIB])
def test_ordinary_memory_beyond_the_limit_is_aligned(nbytes):
    arena = HostArena(1)
    blocks = [arena.lend(nbytes, np.uint8) for _ in range(20)]
    assert not any(address(block) % ALIGNMENT_NBYTES for block in blocks)
    assert arena.counters().overflow_bytes == 20 * nbytes


def test_refuses_what_numpy_refuses(arena):
    for shape in (-1, (-1024, -1024), (-1, 0)):
        with pytest.raises(ArgumentError, match="shape"):
            arena.lend(shape, np.uint8)
    for shape in (1.5, (2.0, 3), "12", None):
        with pytest.raises(TypeError):
            arena.lend(shape, np.uint8)
    with pytest.raises(TypeError):
        arena.lend(3, "no such dtype")
    with pytest.raises(MemoryError):
        arena.lend(2**60, np.uint8)


def test_refuses_bad_arguments(arena):
    for limit in (1.5, "1 GiB", None):
        with pytest.raises(ArgumentTypeError, match="limit"):
            HostArena(limit)
    for refused in (
        lambda: HostArena(-1),
        lambda: arena.resize(-1),
        lambda: arena.trim(-1),
        lambda: arena.prefault(-1),
        lambda: arena.prefault(1, count=-1),
        lambda: arena.prefault(1, threads=0),
    ):
        with pytest.raises(ArgumentError, match="at least"):
            refused()


def test_behaves_as_any_array(arena):
    block = arena.lend((512, 1024), np.float64)
    block[...] = np.arange(block.size).reshape(block.shape)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(block, protocol))
        assert type(again) is np.ndarray
        np.testing.assert_array_equal(again, block)
    buffers = []
    data = pickle.dumps(block, 5, buffer_callback=buffers.append)
    assert len(data) < 1000
    np.testing.assert_array_equal(pickle.loads(data, buffers=buffers), block)
    assert memoryview(block).nbytes == block.nbytes
    np.testing.assert_array_equal(np.fft.ifft(np.fft.fft(block)).real.round(), block)
    assert block.copy().base is None
    assert not isinstance((block + 1).base, Loan)


def test_dask_sees_its_size(arena):
    sizeof = pytest.importorskip("dask.sizeof").sizeof
    block = arena.lend((512, 1024), np.float64)
    assert sizeof(block) == sizeof(np.empty((512, 1024))) >= block.nbytes


# When it returns


def test_dead_block_is_lent_again(arena):
    block = arena.lend((512, 512), np.complex128)
    where = address(block)
    del block
    assert arena.counters().idle_bytes == 4 * MIB
    block = arena.lend((1024, 1024), np.float32)
    assert address(block) == where
    counters = arena.counters()
    assert (counters.lends, counters.reuses, counters.idle_bytes) == (2, 1, 0)
    assert counters.fresh_bytes == counters.reused_bytes == counters.peak_bytes == 4 * MIB


@pytest.mark.parametrize(
    "make_view",
    [
        lambda block: block[::2].T,
        lambda block: block.view(np.float64)[3:5, ::2],
        lambda block: block.real,
        lambda block: memoryview(block),
        lambda block: np.lib.stride_tricks.sliding_window_view(block, 5, axis=0)[0],
        lambda block: np.frombuffer(block, block.dtype),
        lambda block: np.broadcast_to(block[7, 7:8], (3, 3)),
        lambda block: pickle.PickleBuffer(block),
        lambda block: block.flat,
    ],
    ids=[
        "slice",
        "view",
        "real",
        "memoryview",
        "window",
        "frombuffer",
        "broadcast",
        "pickle",
        "flat",
    ],
)
def test_view_keeps_the_memory(arena, make_view):
    block = arena.lend((512, 512), np.complex128)
    block.fill(7)
    where = address(block)
    view = make_view(block)
    del block
    gc.collect()
    other = arena.lend((512, 512), np.complex128)
    other.fill(8)
    assert address(other) != where
    seen = np.frombuffer(view, np.complex128) if isinstance(view, pickle.PickleBuffer) else view
    assert (np.asarray(seen) == 7).all()
    assert arena.counters().lent_bytes == 8 * MIB
    del view, seen
    gc.collect()
    assert arena.counters().idle_bytes == 4 * MIB


def test_block_in_a_cycle_returns_on_collection(arena):
    block = arena.lend(MIB, np.uint8)
    cycle = [block]
    cycle.append(cycle)
    del block, cycle
    gc.collect()
    assert arena.counters().idle_bytes == MIB


def test_block_that_dies_under_the_lock(arena):
    # What a collection does that starts inside an allocation of a drain.
    blocks = [arena.lend(MIB, np.uint8) for _ in range(3)]
    with arena._lock:
        blocks.clear()
    assert arena.counters().idle_bytes == 3 * MIB


def test_blocks_outlive_their_arena():
    arena = HostArena(64 * MIB)
    early, late = arena.lend(MIB, np.uint8), arena.lend(MIB, np.uint8)
    returned = arena._returned
    late.fill(5)
    del early
    assert len(returned) == 1
    del arena
    assert not returned
    assert (late == 5).all()
    del late
    assert not returned


# Which memory is lent


def test_best_fit_within_half_as_much_again(arena):
    sizes = [18, 10, 12, 16]
    blocks = [arena.lend(size * MIB, np.uint8) for size in sizes]
    where = dict(zip(sizes, map(address, blocks), strict=True))
    del blocks
    best = arena.lend(11 * MIB, np.uint8)
    assert address(best) == where[12]
    # 16 MiB is not more than half as much again as 11 MiB, 18 MiB is.
    next_best = arena.lend(11 * MIB, np.uint8)
    assert address(next_best) == where[16]
    wasteful = arena.lend(11 * MIB, np.uint8)
    assert address(wasteful) not in where.values()


def test_last_used_of_equals_first(arena):
    first, second = arena.lend(MIB, np.uint8), arena.lend(MIB, np.uint8)
    where = address(first)
    del second
    del first
    assert address(arena.lend(MIB, np.uint8)) == where


@pytest.mark.parametrize("nbytes", [SMALL_NBYTES, SMALL_NBYTES + 1, 2 * MIB + 1, 8 * MIB + 1])
def test_rounding_wastes_an_eighth_at_most(nbytes):
    assert nbytes <= pages.round_up(nbytes) <= 1.125 * nbytes


# Limits


def test_a_large_buffer_is_lent_in_parts_and_whole_again(arena):
    arena._idle.least_part, arena._idle.patience = MIB, 2**62
    whole = arena.lend(6 * MIB, np.uint8)
    place = address(whole)
    whole.fill(7)
    del whole
    parts = [arena.lend(MIB, np.uint8) for _ in range(6)]
    assert sorted(map(address, parts)) == [place + i * MIB for i in range(6)]
    assert arena.counters().fresh_bytes == 6 * MIB
    for i, part in enumerate(parts):
        part.fill(i)
    assert [int(part.sum()) for part in parts] == [i * MIB for i in range(6)]
    kept = parts.pop()
    parts.clear()
    del part
    beside = arena.lend(6 * MIB, np.uint8)  # not while a part is lent
    assert address(beside) != place
    del kept, beside
    gc.collect()
    assert arena.trim(6 * MIB) == 6 * MIB
    again = arena.lend(6 * MIB, np.uint8)
    assert arena.counters().fresh_bytes == 12 * MIB
    again.fill(9)
    assert (again == 9).all()


@pytest.mark.skipif(not pages.DIVISIBLE, reason="the system does not take single pages back")
def test_a_part_goes_back_to_the_system_by_itself(arena):
    arena._idle.patience = 2**62
    whole = arena.lend(16 * MIB, np.uint8)
    whole.fill(1)
    del whole
    kept = arena.lend(4 * MIB, np.uint8)
    kept.fill(2)
    assert arena.counters().lent_bytes == 4 * MIB
    before = resident()
    assert arena.trim() == 12 * MIB
    assert before - resident() >= 11 * MIB
    assert (kept == 2).all()
    del kept
    assert arena.counters().idle_bytes == 4 * MIB
    again = arena.lend(16 * MIB, np.uint8)  # it can not be whole any more
    assert arena.counters().fresh_bytes == 32 * MIB
    again.fill(3)
    assert (again == 3).all()


def resident():
    """Bytes of this process in memory."""
    gc.collect()
    return psutil.Process().memory_info().rss


def test_a_few_blocks_leave_a_large_buffer_alone(arena):
    block = arena.lend(64 * MIB // 2, np.uint8)
    place = address(block)
    del block
    few = arena.lend(4 * MIB, np.uint8)
    assert arena.counters().fresh_bytes == 36 * MIB
    many = arena.lend(4 * MIB, np.uint8)
    assert arena.counters().fresh_bytes == 36 * MIB
    assert place <= address(many) < place + 32 * MIB
    assert few.nbytes == many.nbytes


@pytest.mark.parametrize(("nbytes", "least"), [(2 * MIB, 4 * MIB), (SMALL_NBYTES, SMALL_NBYTES)])
def test_small_blocks_leave_large_buffers_alone(arena, nbytes, least):
    arena._idle.least_part, arena._idle.patience = least, 2**62
    block = arena.lend(40 * MIB, np.uint8)
    del block
    small = arena.lend(nbytes, np.uint8)
    assert arena.counters().idle_bytes == 40 * MIB
    assert arena.counters().lent_bytes == small.nbytes


def test_overflow_is_ordinary_memory_and_counted():
    arena = HostArena(4 * MIB)
    block = arena.lend(3 * MIB, np.uint8)
    more = arena.lend(2 * MIB, np.uint8)
    assert isinstance(block.base, Loan)
    assert not isinstance(more.base, Loan)
    del more
    counters = arena.counters()
    assert (counters.overflows, counters.overflow_bytes) == (1, 2 * MIB)
    assert (counters.lent_bytes, counters.idle_bytes) == (3 * MIB, 0)
    assert counters.peak_bytes <= arena.limit


def test_idle_memory_makes_room_least_recently_used_first():
    arena = HostArena(6 * MIB)
    blocks = [arena.lend(2 * MIB, np.uint8) for _ in range(3)]
    where = [address(block) for block in blocks]
    for _ in range(3):
        del blocks[0]  # They return in the order in which they were lent.
    large = arena.lend(4 * MIB, np.uint8)
    assert isinstance(large.base, Loan)
    assert arena.counters().idle_bytes == 2 * MIB
    assert address(arena.lend(2 * MIB, np.uint8)) == where[2]


@pytest.mark.parametrize(("older", "newer"), [(2, 3), (3, 2)])
def test_least_recently_used_goes_first_whatever_its_size(arena, older, newer):
    blocks = [arena.lend(older * MIB, np.uint8), arena.lend(newer * MIB, np.uint8)]
    del blocks[0]
    del blocks[0]
    assert arena.trim(newer * MIB) == older * MIB


def test_system_refuses_memory(arena, monkeypatch):
    def refuse_pages(nbytes):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(pages, "_map", refuse_pages)
    block = arena.lend(MIB, np.uint8)
    assert block.nbytes == MIB
    assert arena.prefault(MIB) == 0
    counters = arena.counters()
    assert (counters.overflows, counters.lent_bytes, counters.fresh_bytes) == (1, 0, 0)


def test_arena_of_limit_zero_is_off():
    arena = HostArena(0)
    block = arena.lend(MIB, np.uint8)
    assert not isinstance(block.base, Loan)
    assert arena.counters() == memory.ArenaCounters(*[0] * 10)


def test_trim_unmaps(arena):
    blocks = [arena.lend(MIB, np.uint8) for _ in range(4)]
    del blocks[1:]
    assert arena.trim(2 * MIB) == MIB
    assert arena.counters().idle_bytes == 2 * MIB
    assert arena.trim() == 2 * MIB
    assert arena.trim() == 0
    assert arena.counters().lent_bytes == MIB


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_trim_lowers_resident_memory(arena):
    def resident_bytes():
        pages_resident = int(Path("/proc/self/statm").read_text().split()[1])
        return pages_resident * 4096

    block = arena.lend(48 * MIB, np.uint8)
    block.fill(1)
    del block
    before = resident_bytes()
    arena.trim()
    assert before - resident_bytes() > 40 * MIB


def test_resize(arena):
    block, other = arena.lend(4 * MIB, np.uint8), arena.lend(4 * MIB, np.uint8)
    del other
    arena.resize(6 * MIB)
    assert arena.counters().idle_bytes == 0
    arena.resize(MIB)
    assert not isinstance(arena.lend(MIB, np.uint8).base, Loan)
    del block
    counters = arena.counters()
    assert (counters.lent_bytes, counters.idle_bytes) == (0, 0)
    assert arena.limit == MIB


def test_ten_thousand_lends_hold_constant_memory(arena):
    rng = random.Random(20)
    shapes = [(512, 1024), (700, 800), (1024, 1024)]
    live = []
    for step in range(10_000):
        live.append(arena.lend(rng.choice(shapes), np.float64))
        if len(live) > 3:
            del live[rng.randrange(len(live))]
        if step == 1000:
            settled = arena.counters()
    counters = arena.counters()
    assert counters.peak_bytes == settled.peak_bytes <= 3 * 4 * 8 * MIB
    assert counters.fresh_bytes == settled.fresh_bytes
    assert counters.reuses > 9_950
    assert counters.overflows == 0
    live.clear()
    assert arena.counters().lent_bytes == 0


# Pressure


class Pressure:
    """A process whose memory and clock the test sets."""

    def __init__(self):
        self.high = False
        self.now = 0.0
        self.asked = 0

    def __call__(self):
        self.asked += 1
        return self.high


def test_pressure_gives_idle_memory_back():
    pressure = Pressure()
    arena = HostArena(
        64 * MIB,
        pressure=pressure,
        pressure_interval_seconds=0.1,
        clock=lambda: pressure.now,
    )
    blocks = [arena.lend(MIB, np.uint8) for _ in range(3)]
    assert pressure.asked == 1
    where = address(blocks[2])
    del blocks[1]
    del blocks[1]
    pressure.high = True
    assert arena.counters().idle_bytes == 2 * MIB  # Not due yet.
    pressure.now = 0.1
    again = arena.lend(MIB, np.uint8)
    assert pressure.asked == 2
    # The block took what it could use, and only the rest was given back.
    assert address(again) == where
    assert arena.counters().idle_bytes == 0
    del again
    pressure.now = 0.2
    assert arena.counters().idle_bytes == 0
    assert pressure.asked == 3


def test_relieve_asks_at_once():
    pressure = Pressure()
    arena = HostArena(64 * MIB, pressure=pressure, clock=lambda: 0.0)
    block = arena.lend(MIB, np.uint8)
    del block
    assert arena.relieve() == 0
    pressure.high = True
    assert arena.relieve() == MIB
    arena.watch(None)
    assert arena.relieve() == 0


def test_pressure_may_use_the_arena_and_may_fail():
    arena = HostArena(64 * MIB)
    arena.watch(lambda: arena.counters().idle_bytes > 0)
    block = arena.lend(MIB, np.uint8)
    del block
    assert arena.relieve() == MIB

    def broken():
        raise RuntimeError("no such process")

    arena.watch(broken)
    with pytest.raises(RuntimeError, match="no such process"):
        arena.lend(MIB, np.uint8)
    arena.watch(None)
    gc.collect()
    assert arena.counters().lent_bytes == 0


# Prefault


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_prefault(arena, threads):
    assert arena.prefault(5 * MIB, count=3, threads=threads) == 15 * MIB
    counters = arena.counters()
    assert (counters.idle_bytes, counters.lent_bytes, counters.lends) == (15 * MIB, 0, 0)
    blocks = [arena.lend(5 * MIB, np.uint8) for _ in range(3)]
    assert arena.counters().reuses == 3
    # What is idle and fits counts, what is lent does not.
    del blocks[0]
    assert arena.prefault(5 * MIB, count=2, threads=threads) == 5 * MIB


def test_prefault_keeps_the_limit_and_idle_memory():
    arena = HostArena(10 * MIB)
    block = arena.lend(2 * MIB, np.uint8)
    other = arena.lend(MIB, np.uint8)
    del other
    assert arena.prefault(4 * MIB, count=5) == 4 * MIB
    counters = arena.counters()
    assert (counters.lent_bytes, counters.idle_bytes) == (block.nbytes, 5 * MIB)
    assert arena.prefault(100) == 0


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults")
@pytest.mark.parametrize("threads", [1, 2])
def test_prefaulted_pages_do_not_fault_again(arena, threads):
    import resource

    arena.prefault(32 * MIB, threads=threads)
    block = arena.lend(32 * MIB, np.uint8)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    block.fill(1)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 16


def test_interrupted_prefault_returns_its_memory(arena, monkeypatch):
    def interrupt(share):
        raise KeyboardInterrupt

    monkeypatch.setattr(pages, "_touch_range", interrupt)
    with pytest.raises(KeyboardInterrupt):
        arena.prefault(MIB, count=2)
    counters = arena.counters()
    assert (counters.lent_bytes, counters.idle_bytes) == (0, 2 * MIB)
    assert counters.prefaulted_bytes == 0


POPULATES = pages.populate(pages.Buffer(MIB).memory)
needs_populate = pytest.mark.skipif(not POPULATES, reason="takes Linux 5.14")


def pages_there(block):
    """Bytes of a block's pages that lie in memory, asked of the system."""
    count = -(-block.nbytes // 4096)
    found = (ctypes.c_ubyte * count)()
    where = ctypes.c_void_p(address(block))
    assert ctypes.CDLL(None).mincore(where, ctypes.c_size_t(block.nbytes), found) == 0
    return 4096 * sum(page & 1 for page in found)


@needs_populate
def test_a_block_is_faulted_in_once_and_no_other(arena):
    block, other = arena.lend(40 * MIB, np.uint8), arena.lend(10 * MIB, np.uint8)
    assert pages_there(block) == 0
    view = block[5 * MIB :].reshape(5, -1).T  # all of its memory is meant
    assert arena.fault_in(view) == 40 * MIB == arena.counters().prefaulted_bytes
    assert pages_there(block) == 40 * MIB
    assert pages_there(other) == 0
    assert arena.fault_in(block) == 0
    del block, view
    again = arena.lend(40 * MIB, np.uint8)  # was used before
    assert arena.fault_in(again) == 0
    assert arena.counters().prefaulted_bytes == 40 * MIB


@needs_populate
def test_of_a_larger_buffer_no_more_is_faulted_in_than_the_block_takes(arena):
    block = arena.lend(37 * MIB, np.uint8)
    assert arena.counters().lent_bytes == 40 * MIB
    assert 37 * MIB <= arena.fault_in(block) <= 39 * MIB
    assert pages_there(block) == 37 * MIB


@needs_populate
def test_threads_share_a_block_and_lose_nothing(arena, monkeypatch):
    arena.resize(1 << 30)
    block, taken, all_begun = arena.lend(200 * MIB, np.uint8), {}, threading.Barrier(3)

    def slowly(memory):
        own = taken.setdefault(threading.get_ident(), [])
        if not own:
            all_begun.wait(30)
        own.append((address(memory) - address(block), memory.nbytes))
        block[address(memory) - address(block)] = 7  # while nobody knows whether pages are there
        return populated(memory)

    populated = pages.populate
    monkeypatch.setattr("dask_bigfft.memory.host.populate", slowly)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        assert sum(pool.map(arena.fault_in, [block] * 3)) == block.nbytes
    assert len(taken) == 3
    ranges = sorted(part for own in taken.values() for part in own)
    assert [low for low, _ in ranges] == [0, *np.cumsum([n for _, n in ranges])[:-1]]
    assert all(block[low] == 7 for low, _ in ranges)
    assert pages_there(block) == block.nbytes  # the rest of its buffer as well


def test_where_the_system_cannot_pages_come_as_they_are_written_to(arena, monkeypatch):
    monkeypatch.setattr(pages, "_madvise", None)
    block = arena.lend(40 * MIB, np.uint8)
    assert arena.fault_in(block) == arena.fault_in(block) == 0
    assert arena.counters().prefaulted_bytes == 0
    assert arena.prefault(3 * MIB) == 3 * MIB == arena.counters().prefaulted_bytes


def test_what_is_not_lent_or_not_wanted_is_left_alone(arena):
    assert arena.fault_in(np.zeros(8 * MIB, np.uint8)) == 0
    arena.prefaults(False)
    assert arena.fault_in(arena.lend(8 * MIB, np.uint8)) == 0
    assert arena.fault_in(arena.lend(7, np.uint8)) == 0
    assert arena.counters().prefaulted_bytes == 0


# Threads


def test_threads_never_share_memory():
    arena = HostArena(24 * MIB)  # Less than the threads want together.
    start = threading.Barrier(8)
    handed = collections.deque()

    def work(seed):
        rng = random.Random(seed)
        mine = []
        start.wait(30)
        for step in range(300):
            nbytes = rng.randrange(SMALL_NBYTES, 3 * MIB)
            block = arena.lend(nbytes, np.uint8)
            mark = (seed * 31 + step) % 251
            block[::509] = mark
            mine.append((mark, block))
            del block
            if rng.random() < 0.1:
                handed.append(mine.pop())  # Dies in another thread.
            if rng.random() < 0.1:
                with contextlib.suppress(IndexError):
                    mine.append(handed.popleft())
            while len(mine) > 3:
                mark, block = mine.pop(rng.randrange(len(mine)))
                assert (block[::509] == mark).all()
                del block
            if step % 50 == 0:
                arena.trim(4 * MIB)
                counters = arena.counters()
                assert counters.lent_bytes + counters.idle_bytes <= arena.limit

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for done in [pool.submit(work, seed) for seed in range(8)]:
                done.result(120)
    finally:
        sys.setswitchinterval(interval)
    for mark, block in handed:
        assert (block[::509] == mark).all()
    handed.clear()
    del block
    gc.collect()
    counters = arena.counters()
    assert counters.lent_bytes == 0
    assert counters.lends == 8 * 300
    assert counters.overflows > 0
    assert counters.reuses > 0
    assert counters.peak_bytes <= arena.limit


# Against a model


@dataclasses.dataclass
class Live:
    """What the model knows of a live block: its marks, and its memory of the arena if any."""

    block: np.ndarray
    mark: int
    buffer_bytes: int

    def check(self):
        assert self.block[0] == self.block[-1] == self.mark


class ArenaAgainstModel(RuleBasedStateMachine):
    """Lends, deaths and trims in any order; the model is the list of live blocks."""

    LIMIT = 12 * MIB

    def __init__(self):
        super().__init__()
        self.pressure = Pressure()
        self.arena = HostArena(self.LIMIT, pressure=self.pressure, clock=lambda: self.pressure.now)
        self.arena._idle.least_part, self.arena._idle.patience = SMALL_NBYTES, 4
        self.live = []
        self.lends = self.overflows = self.overflow_bytes = 0

    @property
    def lent_bytes(self):
        return sum(live.buffer_bytes for live in self.live)

    @rule(nbytes=st.integers(SMALL_NBYTES, 5 * MIB))
    def lend(self, nbytes):
        lent_bytes = self.lent_bytes
        self.lends += 1
        block = self.arena.lend(nbytes, np.uint8)
        assert block.nbytes == nbytes
        mark = self.lends % 251
        block.fill(mark)
        if isinstance(block.base, Loan):
            self.live.append(Live(block, mark, block.base.buffer.nbytes))
        else:
            self.live.append(Live(block, mark, 0))
            self.overflows += 1
            self.overflow_bytes += nbytes
            # Only if no idle memory could have made room.
            assert lent_bytes + pages.round_up(nbytes) > self.LIMIT

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def die(self, data):
        live = self.live.pop(data.draw(st.integers(0, len(self.live) - 1)))
        assert (live.block == live.mark).all()

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def keep_a_view_only(self, data):
        # By number: what is drawn is kept for the report, and would keep the block.
        live = self.live[data.draw(st.integers(0, len(self.live) - 1))]
        live.block = live.block[::1].view(np.int8).view(np.uint8)

    @rule(target_bytes=st.integers(0, LIMIT))
    def trim(self, target_bytes):
        idle = self.arena.counters().idle_bytes
        freed = self.arena.trim(target_bytes)
        assert self.arena.counters().idle_bytes == idle - freed <= target_bytes
        assert freed or idle <= target_bytes

    @rule(nbytes=st.integers(0, 5 * MIB), count=st.integers(0, 3), threads=st.integers(1, 2))
    def prefault(self, nbytes, count, threads):
        before = self.arena.counters()
        made = self.arena.prefault(nbytes, count=count, threads=threads)
        after = self.arena.counters()
        assert after.idle_bytes == before.idle_bytes + made
        assert after.fresh_bytes == before.fresh_bytes + made

    @rule(high=st.booleans())
    def time_passes(self, high):
        self.pressure.now += 1.0
        self.pressure.high = high
        assert self.arena.counters().idle_bytes == 0 or not high

    @invariant()
    def live_blocks_are_apart(self):
        spans = sorted((address(live.block), live.block.nbytes) for live in self.live)
        for (start, nbytes), (following, _) in itertools.pairwise(spans):
            assert start + nbytes <= following
        for live in self.live:
            live.check()
            assert live.buffer_bytes <= 1.5 * live.block.nbytes

    @invariant()
    def counters_add_up(self):
        counters = self.arena.counters()
        held_bytes = counters.lent_bytes + counters.idle_bytes
        assert counters.lent_bytes == self.lent_bytes
        assert held_bytes <= counters.peak_bytes <= min(self.LIMIT, counters.fresh_bytes)
        assert (counters.lends, counters.overflows) == (self.lends, self.overflows)
        assert counters.overflow_bytes == self.overflow_bytes
        assert counters.reuses <= counters.lends - counters.overflows

    @invariant()
    def books_of_idle_memory_agree(self):
        idle = self.arena._idle
        assert idle.sizes == sorted(idle.stacks)
        assert all(idle.stacks.values())
        assert idle.nbytes == sum(size * len(stack) for size, stack in idle.stacks.items())
        serials = [[buffer.serial for buffer in stack] for stack in idle.stacks.values()]
        assert all(stack == sorted(stack) for stack in serials)


TestArenaAgainstModel = ArenaAgainstModel.TestCase
TestArenaAgainstModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


# The process's arena


def test_default_arena_is_one(fresh_process):
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        arenas = set(pool.map(lambda _: memory.default_arena(), range(64)))
    assert arenas == {fresh_process.arena}
    block = memory.lend((512, 512), np.complex64)
    assert isinstance(block.base, Loan)
    assert memory.default_arena().counters().lent_bytes == block.nbytes


def test_configure_before_and_after(fresh_process):
    memory.configure(2 * MIB)
    assert fresh_process.arena is None
    arena = memory.default_arena()
    assert arena.limit == 2 * MIB
    memory.configure(8 * MIB)
    assert memory.default_arena() is arena
    assert arena.limit == 8 * MIB
    block = memory.lend(MIB, np.uint8)
    del block
    memory.configure(8 * MIB, pressure=lambda: True)
    assert arena.counters().idle_bytes == 0
    memory.configure(8 * MIB, enabled=False)
    assert not isinstance(memory.lend(MIB, np.uint8).base, Loan)
    assert memory.default_arena() is arena
    memory.configure(8 * MIB, enabled=True)
    assert isinstance(memory.lend(MIB, np.uint8).base, Loan)


def test_configure_refuses_and_changes_nothing(fresh_process):
    before = fresh_process.settings
    with pytest.raises(ArgumentError, match="limit"):
        memory.configure(-1)
    with pytest.raises(ArgumentTypeError, match="limit"):
        memory.configure("1 GiB")
    assert fresh_process.settings is before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_fork_makes_a_new_arena():
    program = """
import os
import warnings
import numpy as np
from dask_bigfft import memory
from dask_bigfft.memory import default

memory.configure(64 * 2**20)
arena = memory.default_arena()
block = memory.lend(2**20, np.uint8)
idle = memory.lend(2**20, np.uint8)
del idle
block.fill(1)
# Another thread holds every lock at the moment of the fork.
default._process.lock.acquire()
arena._lock.acquire()
# From Python 3.12 on it warns of the threads that NumPy's BLAS has started.
warnings.simplefilter("ignore", DeprecationWarning)
child = os.fork()
if not child:
    try:
        assert (block == 1).all()
        block.fill(2)
        del block
        assert memory.default_arena() is not arena
        assert memory.default_arena().limit == 64 * 2**20
        assert memory.default_arena().counters().lent_bytes == 0
        mine = memory.lend(2**20, np.uint8)
        mine.fill(3)
        assert memory.default_arena().counters().lent_bytes == 2**20
        del arena, mine
    except BaseException:
        import traceback
        traceback.print_exc()
        os._exit(1)
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
arena._lock.release()
assert (block == 1).all()
assert arena.counters().lent_bytes == arena.counters().idle_bytes == 2**20
print("same")
"""
    assert run_python(program) == "same"


# The end of the interpreter


@pytest.mark.parametrize(
    "ending",
    [
        "",
        "del arena",
        "cycle = [block, arena]; cycle.append(cycle)",
        "import sys; sys.modules['kept'] = block",
        "class Late:\n    def __del__(self): self.block.fill(9)\nlate = Late(); late.block = block",
        "import atexit; atexit.register(lambda: arena.lend(2**20, 'u1').fill(1))",
        "import threading, time\n"
        "def work():\n"
        "    while True: arena.lend(2**20, 'u1')[::4096] = 1\n"
        "threading.Thread(target=work, daemon=True).start(); time.sleep(0.05)",
        "raise SystemExit(0)",
    ],
)
def test_interpreter_ends_in_silence(ending):
    program = f"""
from dask_bigfft import memory

arena = memory.default_arena()
block = memory.lend(2**20, "u1")
idle = memory.lend(2**20, "u1")
del idle
views = [block[i::7] for i in range(7)]
{ending}
"""
    assert run_python(program) == ""


@pytest.mark.parametrize("module", ["blocks", "default", "host", "pages"])
def test_docstrings_run(module):
    tested = doctest.testmod(importlib.import_module(f"dask_bigfft.memory.{module}"))
    assert tested.failed == 0
