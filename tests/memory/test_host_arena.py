"""The host arena against what it promises: memory returns by itself, and is never lent twice."""

import gc
import pickle
from pathlib import Path

import numpy as np
import pytest
from memory.arenas import MIB, Pressure, address

from dask_bigfft.errors import ArgumentError
from dask_bigfft.memory import arena as memory
from dask_bigfft.memory import pages
from dask_bigfft.memory.arena import ALIGNMENT_NBYTES, ArenaBuffer, HostArena

# What is lent


@pytest.mark.parametrize("dtype", ["?", "i1", "<u8", "f2", "f4", ">f8", "g", "F", ">c16", "G"])
@pytest.mark.parametrize("shape", [MIB, (MIB,), [1024, 1024], (64, 1, 128, 128), (np.int64(MIB),)])
def test_lent_is_a_plain_array(arena, shape, dtype):
    block = arena.allocate(shape, dtype)
    like = np.empty(shape, dtype)
    assert type(block) is np.ndarray
    assert type(block.base) is ArenaBuffer
    assert (block.shape, block.strides, block.dtype) == (like.shape, like.strides, like.dtype)
    assert block.flags.c_contiguous
    assert block.flags.writeable
    assert block.flags.aligned
    assert address(block) % 4096 == 0
    block[...] = 1
    assert (block == 1).all()
    assert arena.counters().allocations == 1


SMALL = [
    (),
    0,
    (0,),
    (3, 0, 5),
    (10**9, 0),
    1,
    (7, 11),
]
OTHERS = [object, "U40", "M8[s]", [("a", "f8"), ("b", "i4")]]


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        *((n, "F") for n in SMALL),
        *((MIB, d) for d in OTHERS),
    ],
)
def test_small_and_empty_and_other_dtypes_are_ordinary_memory(arena, shape, dtype):
    block = arena.allocate(shape, dtype)
    assert (block.shape, block.dtype) == (np.empty(shape).shape, np.dtype(dtype))
    assert block.flags.c_contiguous
    assert arena.counters().allocations == 0
    if dtype is object:
        assert block[0] is None
    if dtype == "F" and block.size:
        assert address(block) % ALIGNMENT_NBYTES == 0


def test_refuses_what_numpy_refuses(arena):
    for shape in (-1, (-1024, -1024), (-1, 0)):
        with pytest.raises(ArgumentError, match="shape"):
            arena.allocate(shape, np.uint8)
    for given in ((1.5, "u1"), ((2.0, 3), "u1"), ("12", "u1"), (None, "u1"), (3, "no such dtype")):
        with pytest.raises(TypeError):
            arena.allocate(*given)
    with pytest.raises(MemoryError):
        arena.allocate(2**60, np.uint8)


# When it returns


def test_dead_block_is_lent_again(arena):
    block = arena.allocate((512, 512), np.complex128)
    where = address(block)
    del block
    assert arena.counters().idle_bytes == 4 * MIB
    block = arena.allocate((1024, 1024), np.float32)
    assert address(block) == where
    counters = arena.counters()
    assert (counters.allocations, counters.reuses, counters.idle_bytes) == (2, 1, 0)
    assert counters.fresh_bytes == counters.peak_bytes == 4 * MIB


@pytest.mark.parametrize(
    "make_view",
    [
        lambda block: block[::2].T,
        lambda block: block.real,
        lambda block: memoryview(block),
        lambda block: np.broadcast_to(block[7, 7:8], (3, 3)),
        lambda block: pickle.PickleBuffer(block),
    ],
)
def test_view_keeps_the_memory(arena, make_view):
    block = arena.allocate((512, 512), np.complex128)
    block.fill(7)
    where = address(block)
    view = make_view(block)
    del block
    gc.collect()
    other = arena.allocate((512, 512), np.complex128)
    other.fill(8)
    assert address(other) != where
    seen = np.frombuffer(view, np.complex128) if isinstance(view, pickle.PickleBuffer) else view
    assert (np.asarray(seen) == 7).all()
    assert arena.counters().allocated_bytes == 8 * MIB
    del view, seen
    gc.collect()
    assert arena.counters().idle_bytes == 4 * MIB


def test_block_that_dies_under_the_lock(arena):
    # What a collection does that starts inside an allocation of a drain.
    blocks = [arena.allocate(MIB, np.uint8) for _ in range(3)]
    with arena.lock:
        blocks.clear()
    assert arena.counters().idle_bytes == 3 * MIB


def test_blocks_outlive_their_arena():
    arena = HostArena(64 * MIB)
    early = arena.allocate(MIB, np.uint8)
    late = arena.allocate(MIB, np.uint8)
    returned = arena.returned
    late.fill(5)
    del early
    assert len(returned) == 1
    del arena
    assert not returned
    assert (late == 5).all()
    del late
    assert not returned


# Limits


def test_system_refuses_memory(arena, monkeypatch):
    def refuse_pages(nbytes):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(pages, "map_pages", refuse_pages)
    block = arena.allocate(MIB, np.uint8)
    assert block.nbytes == MIB
    assert arena.prefault(MIB) == 0
    counters = arena.counters()
    assert (counters.overflows, counters.allocated_bytes, counters.fresh_bytes) == (1, 0, 0)


def test_arena_of_limit_zero_is_off():
    arena = HostArena(0)
    block = arena.allocate(MIB, np.uint8)
    assert not isinstance(block.base, ArenaBuffer)
    assert arena.counters() == memory.ArenaCounters()


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def test_trim_lowers_resident_memory(arena):
    block = arena.allocate(48 * MIB, np.uint8)
    block.fill(1)
    del block
    before = resident_bytes()
    arena.trim()
    assert before - resident_bytes() > 40 * MIB


def test_blocks_take_the_memory_of_a_large_one_and_give_it_back():
    arena = HostArena(256 * MIB)
    for _ in range(2):
        arena.allocate(64 * MIB, "u1")  # dies at once
        blocks = [arena.allocate(8 * MIB, "u1") for _ in range(8)]
        for value, block in enumerate(blocks):
            block[:] = value
        assert all((block == value).all() for value, block in enumerate(blocks))
        del blocks, block
    assert arena.counters().peak_bytes == 64 * MIB
    pinned = []
    arena.pinner = memory.Pinner(lambda at, _: pinned.append(at), pinned.remove, 1 << 30)
    pinned_part = arena.allocate(8 * MIB, "u1")  # a part, which is pinned
    pinned_part[:] = 1
    before = resident_bytes() - arena.trim()
    assert resident_bytes() < before + 24 * MIB  # of a divided buffer, too
    assert (pinned_part == 1).all()
    del pinned_part
    assert arena.trim() == 8 * MIB
    assert not pinned


def test_resize(arena):
    block = arena.allocate(4 * MIB, np.uint8)
    other = arena.allocate(4 * MIB, np.uint8)
    del other
    arena.resize(6 * MIB)
    assert arena.counters().idle_bytes == 0
    arena.resize(MIB)
    assert not isinstance(arena.allocate(MIB, np.uint8).base, ArenaBuffer)
    del block
    assert arena.counters().held_bytes == 0
    assert arena.limit == MIB


# Pressure


def test_pressure_gives_idle_memory_back():
    pressure = Pressure()
    arena = HostArena(64 * MIB, clock=lambda: pressure.now)
    arena.watch(pressure)
    blocks = [arena.allocate(MIB, np.uint8) for _ in range(3)]
    assert pressure.requested == 1
    where = address(blocks[2])
    del blocks[1]
    del blocks[1]
    pressure.high = True
    assert arena.counters().idle_bytes == 2 * MIB  # Not due yet.
    pressure.now = 0.1
    again = arena.allocate(MIB, np.uint8)
    assert pressure.requested == 2
    # The block took what it could use, and only the rest was given back.
    assert address(again) == where
    assert arena.counters().idle_bytes == 0
    del again
    pressure.now = 0.2
    assert arena.counters().idle_bytes == 0
    assert pressure.requested == 3


def test_pressure_may_use_the_arena_and_may_fail():
    arena = HostArena(64 * MIB)
    arena.watch(lambda: arena.counters().idle_bytes > 0)
    block = arena.allocate(MIB, np.uint8)
    del block
    arena.watch(lambda: True)
    assert arena.counters().idle_bytes == 0

    def broken():
        raise RuntimeError("no such process")

    arena.watch(broken)
    with pytest.raises(RuntimeError, match="no such process"):
        arena.allocate(MIB, np.uint8)
    arena.watch(None)
    gc.collect()
    assert arena.counters().allocated_bytes == 0
