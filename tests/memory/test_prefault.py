"""Pages of the arena that are there before they are written to."""

import ctypes
import sys
import threading

import numpy as np
import pytest
from memory.arenas import MIB, address
from support import in_threads

from dask_bigfft import system
from dask_bigfft.memory import pages

# Prefault


@pytest.mark.skipif(sys.platform != "linux", reason="counts page faults")
@pytest.mark.parametrize("threads", [1, 2])
def test_prefaulted_pages_do_not_fault_again(arena, threads):
    import resource

    arena.prefault(32 * MIB, threads=threads)
    block = arena.allocate(32 * MIB, np.uint8)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt  # others may do anything
    block.fill(1)
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before < 16


POPULATES = pages.populate(pages.Buffer(MIB).memory)
needs_populate = pytest.mark.skipif(not POPULATES, reason="takes Linux 5.14")


def pages_there(block):
    """Bytes of a block's pages that lie in memory, asked of the system."""
    count = -(-block.nbytes // 4096)
    resident = (ctypes.c_ubyte * count)()
    where = ctypes.c_void_p(address(block))
    assert ctypes.CDLL(None).mincore(where, ctypes.c_size_t(block.nbytes), resident) == 0
    return 4096 * sum(page & 1 for page in resident)


@needs_populate
def test_a_block_is_faulted_in_once_and_no_other(arena):
    block = arena.allocate(40 * MIB, np.uint8)
    other = arena.allocate(10 * MIB, np.uint8)
    assert pages_there(block) == 0
    view = block[5 * MIB :].reshape(5, -1).T  # all of its memory is meant
    assert arena.fault_in(view) == 40 * MIB
    assert pages_there(block) == 40 * MIB
    assert pages_there(other) == 0
    assert arena.fault_in(block) == 0
    del block, view
    again = arena.allocate(40 * MIB, np.uint8)  # was used before
    assert arena.fault_in(again) == 0


@needs_populate
def test_threads_share_a_block_and_lose_nothing(arena, monkeypatch):
    arena.resize(1 << 30)
    block = arena.allocate(200 * MIB, np.uint8)
    ranges_by_thread = {}
    all_begun = threading.Barrier(3)

    def slowly(memory):
        own = ranges_by_thread.setdefault(threading.get_ident(), [])
        if not own:
            all_begun.wait(30)
        own.append((address(memory) - address(block), memory.nbytes))
        block[address(memory) - address(block)] = 7  # while nobody knows whether pages are there
        return populated(memory)

    populated = pages.populate
    monkeypatch.setattr("dask_bigfft.memory.arena.populate", slowly)
    assert sum(in_threads(3, lambda _: arena.fault_in(block))) == block.nbytes
    assert len(ranges_by_thread) == 3
    ranges = sorted(part for own in ranges_by_thread.values() for part in own)
    assert [low for low, _ in ranges] == [0, *np.cumsum([n for _, n in ranges])[:-1]]
    assert all(block[low] == 7 for low, _ in ranges)
    assert pages_there(block) == block.nbytes  # the rest of its buffer as well


def test_where_the_system_cannot_pages_come_as_they_are_written_to(arena, monkeypatch):
    monkeypatch.setattr(system, "_madvise", lambda *_: -1)
    block = arena.allocate(40 * MIB, np.uint8)
    assert arena.fault_in(block) == arena.fault_in(block) == 0
    assert arena.prefault(3 * MIB) == 3 * MIB
