"""The arena under many threads, and against a model of what it holds."""

import collections
import contextlib
import dataclasses
import gc
import itertools
import random
import sys

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from memory.arenas import MIB, Pressure, address
from support import in_threads

from dask_bigfft.memory import pages
from dask_bigfft.memory.arena import SMALL_NBYTES, ArenaBuffer, HostArena

# Threads


def test_threads_never_share_memory():
    arena = HostArena(24 * MIB)  # Less than the threads want together.
    handed = collections.deque()

    def work(seed):
        rng = random.Random(seed)
        mine = []
        for step in range(300):
            nbytes = rng.randrange(SMALL_NBYTES, 3 * MIB)
            block = arena.allocate(nbytes, np.uint8)
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
                assert counters.allocated_bytes + counters.idle_bytes <= arena.limit

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        in_threads(8, work)
    finally:
        sys.setswitchinterval(interval)
    for mark, block in handed:
        assert (block[::509] == mark).all()
    handed.clear()
    block = None
    gc.collect()
    counters = arena.counters()
    assert counters.allocated_bytes == 0
    assert counters.allocations == 8 * 300
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
        self.arena = HostArena(self.LIMIT, clock=lambda: self.pressure.now)
        self.arena.watch(self.pressure)
        self.live = []
        self.allocations = self.overflows = 0

    @property
    def allocated_bytes(self):
        return sum(live.buffer_bytes for live in self.live)

    @rule(nbytes=st.integers(SMALL_NBYTES, 5 * MIB))
    def allocate(self, nbytes):
        allocated_bytes = self.allocated_bytes
        self.allocations += 1
        block = self.arena.allocate(nbytes, np.uint8)
        assert block.nbytes == nbytes
        mark = self.allocations % 251
        block.fill(mark)
        if isinstance(block.base, ArenaBuffer):
            self.live.append(Live(block, mark, block.base.buffer.nbytes))
        else:
            self.live.append(Live(block, mark, 0))
            self.overflows += 1
            # Only if no idle memory could have made room.
            assert allocated_bytes + pages.round_up(nbytes) > self.LIMIT

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
        nbytes_faulted = self.arena.prefault(nbytes, count=count, threads=threads)
        after = self.arena.counters()
        assert after.idle_bytes == before.idle_bytes + nbytes_faulted
        assert after.fresh_bytes == before.fresh_bytes + nbytes_faulted

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
        held_bytes = counters.allocated_bytes + counters.idle_bytes
        assert counters.allocated_bytes == self.allocated_bytes
        assert held_bytes <= counters.peak_bytes <= min(self.LIMIT, counters.fresh_bytes)
        assert (counters.allocations, counters.overflows) == (self.allocations, self.overflows)
        assert counters.reuses <= counters.allocations - counters.overflows


TestArenaAgainstModel = ArenaAgainstModel.TestCase
TestArenaAgainstModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
