"""Staging buffers from CuPy's pool of pinned memory go back to the driver, and not only there."""

import gc
import weakref
from types import SimpleNamespace

import numpy as np
import pytest

from dask_bigfft.devices import cuda, cuda_copies
from dask_bigfft.devices.cuda_copies import HostCopies
from dask_bigfft.memory import Pinner

NBYTES = 4 << 20


class Block(bytearray):
    """Memory whose end is seen."""


class Pool:
    """CuPy's pool: what nobody holds any more is kept for later until it is told to free it."""

    def __init__(self):
        self.taken, self.frees = [], 0

    def alloc(self, nbytes):
        block = Block(nbytes)
        self.taken.append(weakref.ref(block))
        return block

    @property
    def in_use(self):
        return sum(found() is not None for found in self.taken)

    def free_all_blocks(self):
        self.frees += 1
        self.taken = [found for found in self.taken if found() is not None]


@pytest.fixture
def pool(monkeypatch):
    """A card whose driver pins nothing of ours, but has pinned memory of its own."""
    pool = Pool()
    module = SimpleNamespace(
        cuda=SimpleNamespace(
            runtime=SimpleNamespace(CUDARuntimeError=OSError),
            alloc_pinned_memory=pool.alloc,
        ),
        get_default_pinned_memory_pool=lambda: pool,
    )
    for room in (cuda, cuda_copies):
        monkeypatch.setattr(room, "cupy", lambda: module)
    return pool


def pinner(register):
    return lambda limit: Pinner(register, lambda address: None, limit)


def refused(address, nbytes):
    raise OSError("no page may be pinned")


def through(ring):
    """Values that go to the card and back by the ring, which keeps them for this."""
    x, card = np.arange(3 * NBYTES, dtype=np.uint8), np.zeros(3 * NBYTES, np.uint8)
    mark = SimpleNamespace(done=True, synchronize=lambda: None)

    def come(number, values, part):
        card[part] = values

    def go(values, part):
        values[...] = card[part]
        return mark

    ring.load([x], come, lambda: mark)
    out = np.empty_like(x)
    for future in ring.store(out, go):
        future.result()
    return np.array_equal(out, x)


@pytest.mark.parametrize("small", [False, True])
def test_staging_buffers_of_the_pool_are_given_back(pool, monkeypatch, small):
    """Without waiting for a collection of cycles: pinned pages are taken from everybody."""
    monkeypatch.setattr(cuda_copies, "make_pinner", pinner(refused))
    copies = HostCopies()
    copies.stage(3, 1 << 16 if small else NBYTES)  # of which the arena's pinner takes no notice
    assert through(copies.ring)  # numba keeps what called it in cycles when it loads its code
    copies.close()
    pool.taken, pool.frees = [], 0
    gc.collect()
    gc.disable()
    try:
        assert through(copies.ring)
        assert len(pool.taken) == pool.in_use == 6
        assert not copies._ring_memory  # nothing beside them
        copies.stage(2, NBYTES)
        assert (pool.frees, pool.taken) == (1, [])
        assert through(copies.ring)
        assert len(pool.taken) == 4
        copies.close()
        assert (pool.frees, pool.taken) == (2, [])
        copies.close()
        assert pool.frees == 2
    finally:
        gc.enable()


def test_a_ring_that_cannot_be_closed_is_not_used_again(pool, monkeypatch):
    monkeypatch.setattr(cuda_copies, "make_pinner", pinner(refused))
    copies = HostCopies()
    copies.stage(3, NBYTES)
    first = copies.ring
    assert through(first)

    def fails(close=first.close):
        close()
        raise OSError("the card is lost")

    monkeypatch.setattr(first, "close", fails)
    with pytest.raises(OSError, match="lost"):
        copies.close()
    assert copies.ring is not first
    assert through(copies.ring)
    copies.close()
