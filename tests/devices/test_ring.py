"""The staging ring: values go round through few buffers, and arrive whole, whoever is slow."""

import random
import threading
import time

import numpy as np
import pytest
from support import python

from dask_bigfft.gpu import copy_threads
from dask_bigfft.gpu.copy_threads import CopyPool
from dask_bigfft.gpu.ring import Ring, unfinished


class Mark:
    """The end of a copy of a slow gpu."""

    def __init__(self, work):
        self.thread = threading.Thread(target=work)
        self.thread.start()

    @property
    def done(self):
        return not self.thread.is_alive()

    def synchronize(self):
        self.thread.join()


class Pinned(list):
    """Buffers, as a ring allocates them."""

    def allocate(self, nbytes):
        self.append(np.zeros(nbytes, np.uint8))
        return self[-1]


class GPU:
    """Memory of a GPU that copies in the background, late, in the order of the calls."""

    def __init__(self, shape, buffers, seed):
        self.memory = np.zeros(shape)
        self.buffers = buffers
        self.random = random.Random(seed)
        self.last = None
        self.most = 0

    def checked(self, values):
        owner = values.__array_interface__["data"][0]
        for buffer in self.buffers:
            at = owner - buffer.ctypes.data
            if 0 <= at < buffer.nbytes:
                assert at + values.nbytes <= buffer.nbytes
                assert values.flags.c_contiguous
                return values
        raise AssertionError("values outside of the ring")

    def _later(self, copy):
        before = self.last
        delay = self.random.random() * 2e-3

        def work():
            if before is not None:
                before.synchronize()
            time.sleep(delay)
            copy()

        self.last = Mark(work)

    def take(self, number, values, part):
        def copy():
            self.memory[part] = self.checked(values)

        self._later(copy)

    def give(self, number, values, part):
        def copy():
            self.checked(values)[...] = self.memory[part]

        self._later(copy)


@pytest.mark.parametrize("late", [0, 4e-3])  # the GPU is twice as fast as late threads, at least
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("part", [np.s_[:, 2:7], np.s_[3:40, :], np.s_[5:6, 1:2]])
def test_views_of_any_size_go_round_there_and_back(
    seed,
    part,
    late,
    monkeypatch,
):
    """A buffer is not overwritten before threads have emptied it."""
    buffers = Pinned()
    ring = Ring(buffers.allocate, 3, buffers=2, nbytes=512)
    block = np.random.default_rng(seed).standard_normal((50, 11))
    gpu = GPU(block[part].shape, buffers, seed)
    copy = ring.pool.copy
    ring.load([block[part]], gpu.take, lambda: gpu.last)
    monkeypatch.setattr(ring.pool, "copy", lambda *ends: time.sleep(late) or copy(*ends))
    back = np.zeros_like(block)
    futures = list(ring.store([back[part]], gpu.give, lambda: gpu.last))
    for future in futures:
        future.result()
    expected = np.zeros_like(block)
    expected[part] = block[part]
    assert np.array_equal(back, expected)
    ring.close()


def test_a_small_view_takes_one_buffer():
    buffers = Pinned()
    ring = Ring(buffers.allocate, 2, buffers=4, nbytes=512)
    gpu = GPU((8, 4), buffers, 0)
    for number in range(3):
        values = np.full((8, 4), number + 1.0)
        ring.load([values], gpu.take, lambda: gpu.last)
        gpu.last.synchronize()
        assert np.array_equal(gpu.memory, values)
        assert len(buffers) == number + 1  # in turn
    ring.close()


class Broken:
    """The mark of a GPU that fails."""

    def synchronize(self):
        raise RuntimeError("the GPU fell off")


def test_what_a_scatter_raises_reaches_who_waits():
    ring = Ring(Pinned().allocate, 1, buffers=1, nbytes=64)

    (pending,) = ring.store([np.zeros(8)], lambda *_: None, Broken)
    with pytest.raises(RuntimeError, match="fell off"):
        pending.result()
    assert unfinished([pending]) == (pending,)  # until somebody has heard of it
    out = np.zeros(8)
    gpu = GPU((8,), [ring._out[0].memory], 0)
    gpu.memory[:] = 7
    for future in ring.store([out], gpu.give, lambda: gpu.last):  # by the same buffer
        future.result()
    assert (out == 7).all()
    ring.close()


def test_a_ring_closes_also_where_the_gpu_has_failed():
    before = threading.enumerate()
    ring = Ring(Pinned().allocate, 2, buffers=1, nbytes=64)

    ring.load([np.zeros(8)], lambda *_: None, Broken)
    with pytest.raises(RuntimeError, match="fell off"):
        ring.close()
    assert set(threading.enumerate()) <= set(before)  # those of others may end meanwhile


@pytest.mark.parametrize("error", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("ahead", [False, True])
def test_who_is_interrupted_loses_no_buffer(error, ahead):
    """Where the GPU is asked to copy, or told to tell when it is done."""
    buffers = Pinned()
    ring = Ring(buffers.allocate, 3, buffers=4, nbytes=512)
    views = [np.full((40, 8), i + 1.0) for i in range(2)]
    gpu = GPU((40, 8), buffers, 0)
    requested = []

    def fail(*_):
        requested.append(1)
        if len(requested) % 3 == 0:
            raise error

    for _ in range(10):
        for view in views if ahead else ():
            ring.ahead([view], view)
        with pytest.raises(error):
            ring.load(
                [views[0]],
                fail,
                lambda: fail() or gpu.last,
                source=views[0],
            )
        ring.forget()
        assert len(ring.free) == 4
    for view in views:
        ring.load([view], gpu.take, lambda: gpu.last)
        gpu.last.synchronize()
        assert np.array_equal(gpu.memory, view)
    ring.close()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("count", [2, 4, 6])
def test_what_is_told_of_ahead_comes_whole_in_its_turn(seed, count):
    """Pieces larger and smaller than buffers; some never asked for, some not told of."""
    rng = np.random.default_rng(seed)
    buffers = Pinned()
    ring = Ring(buffers.allocate, 3, buffers=count // 2, nbytes=2048)
    gpu = GPU((1,), buffers, seed)
    pieces = [rng.standard_normal((1 + (7 * i) % 30, 40)) for i in range(24)]
    told = [i for i in range(24) if rng.random() < 0.8]
    requested = [i for i in range(24) if i not in told or rng.random() < 0.9]
    arrived = [np.zeros(piece.shape) for piece in pieces]

    def load(i):
        def take(number, values, part):
            def copy():
                arrived[i][part] = gpu.checked(values)

            gpu._later(copy)

        ring.load(
            [pieces[i]],
            take,
            lambda: gpu.last,
            source=pieces[i],
        )

    def tell(i):
        if i in told:
            ring.ahead([pieces[i]], pieces[i])

    tell(0)
    for i in range(24):
        tell(i + 1)
        if i in requested:
            load(i)
    ring.forget()
    assert len(ring.free) == count // 2  # also those with what nobody has asked for
    ring.close()
    for i in range(24):
        assert np.array_equal(arrived[i], pieces[i]) is (i in requested)


def test_copies_are_done_before_their_arrays_go_at_exit():
    """The collector waits for them when modules are gone already."""
    text = """
import numpy as np
from dask_bigfft.gpu.copy_threads import CopyPool
pool = CopyPool(2)
source = np.ones(4_000_000)
targets = [np.empty_like(source) for _ in range(8)]
begun = [pool.copy(target, source) for target in targets]
"""
    assert python("-c", text).stderr == ""


@pytest.mark.parametrize("least", [2048, 1 << 20])
@pytest.mark.parametrize(
    "part", [np.s_[:], np.s_[3:91, 1:], np.s_[:, 5:6], np.s_[::2, 100:700], np.s_[7:7]]
)
def test_threads_copy_all_of_an_array_and_nothing_else(part, least, monkeypatch):
    monkeypatch.setattr(copy_threads, "SHARE_NBYTES", 4096)
    monkeypatch.setattr(copy_threads, "STREAMED_NBYTES", least)
    pool = CopyPool(3)
    block = np.random.default_rng(0).standard_normal((120, 1024))
    out = np.zeros_like(block)
    pool.copy(out[part], block[part]).result()
    expected = np.zeros_like(block)
    expected[part] = block[part]
    assert np.array_equal(out, expected)
    pool.close()


@pytest.mark.parametrize("width", [1, 7, 63, 64, 65, 200, 4096])
@pytest.mark.parametrize("shift", [(0, 0), (1, 0), (0, 3), (16, 40), (63, 1)])
@pytest.mark.parametrize("least", [1, 1 << 20])
def test_rows_of_any_width_and_place(
    width,
    shift,
    least,
    monkeypatch,
):
    monkeypatch.setattr(copy_threads, "STREAMED_NBYTES", least)
    source = np.random.default_rng(width).integers(
        0,
        256,
        40_000,
        np.uint8,
    )
    target = np.zeros(60_000, np.uint8)
    pool = CopyPool(1)
    shape = (2, 3, width)
    rows = (25_000, 5000, 1), (18_000, 4500, 1)
    ends = (target[shift[0] :], source[shift[1] :])
    to, from_ = (
        np.lib.stride_tricks.as_strided(end, shape, strides)
        for end, strides in zip(ends, rows, strict=True)
    )
    pool.copy(to, from_).result()
    pool.close()
    assert np.array_equal(to, from_)
    assert np.count_nonzero(target) == np.count_nonzero(from_)
