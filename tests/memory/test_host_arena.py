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
