"""The host arena against what it promises: memory returns by itself, and is never lent twice."""

import gc
import pickle

import numpy as np
import pytest
from memory.arenas import MIB, address

from dask_bigfft.memory.blocks import Loan

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


# When it returns


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


# Which memory is lent


# Limits


def test_a_large_buffer_is_lent_in_parts_and_whole_again(arena):
    arena._books.idle.least_part, arena._books.idle.patience = MIB, 2**62
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


# Pressure


def test_block_that_dies_under_the_lock(arena):
    # What a collection does that starts inside an allocation of a drain.
    blocks = [arena.lend(MIB, np.uint8) for _ in range(3)]
    with arena._books.lock:
        blocks.clear()
    assert arena.counters().idle_bytes == 3 * MIB
