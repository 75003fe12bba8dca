"""Who takes what of the blocks that CPU threads and devices share, on the simulated clock.

The state that runs (`Taking`) is walked through here: devices take what their pipeline takes on the
simulated device's clock, CPU threads what a profile says. No time of this machine counts.
"""

import heapq
import itertools
from dataclasses import dataclass, field

import dask.array as da
import numpy as np
import pytest

from dask_bigfft.devices.engine import Engine
from dask_bigfft.devices.jobs import Job
from dask_bigfft.devices.limits import PieceLimits
from dask_bigfft.devices.simulated import SimulatedDevice
from dask_bigfft.devices.taking import OpenBlock, Taken, Taking
from dask_bigfft.front import plan
from dask_bigfft.planner.balance import FEEDERS
from dask_bigfft.planner.profile import DeviceProfile

MIB = 1 << 20
THREADS, CPU = 2, 1e9  # threads, and bytes per second of all of them
ROWS, ROW = 2048, 64 * 1024  # a block of 128 MiB
TILE = 2 * MIB // ROW


@dataclass
class Taker:
    """One thread: what it does, until when, and how long it had nothing to do."""

    kind: str
    own: OpenBlock | None = None
    taken: Taken | None = None
    start: float = 0.0
    free: float = 0.0
    gaps: list[float] = field(default_factory=list)
    pieces: list[float] = field(default_factory=list)
    portions: list[int] = field(default_factory=list)


class Ready(SimulatedDevice):
    """A device whose plans take no time to make: what counts here are pieces."""

    def fft(self, stream, op, source, target, work):
        self._plans.add(op)
        super().fft(stream, op, source, target, work)


class Walk:
    """Blocks that threads of tasks open one after the other, and all takers that there are."""

    def __init__(self, factor, blocks, believed=1.0, threads=THREADS, taking=Taking, start=0.0):
        speed = factor * CPU
        profile = DeviceProfile(h2d=speed, d2h=speed, run=0, call=0, memory=1e15, flops=1e18)
        self.device = Ready(1 << 30, profile=profile, dry=True)
        self.engine = Engine(self.device, 1 << 30, PieceLimits(0))
        x = da.zeros((ROWS, ROW // 16), chunks=-1, dtype="c16")
        found = plan(x, "fft", axis=1, memory_limit="1 TiB")
        (round_,) = found.rounds
        self.job = Job(round_, (0, 0), *found.dtypes[:2])
        self.prepared = self.engine.prepared(self.job)
        self.engine.pipeline.prepare(self.prepared[1], 1 << 30)
        self.values = np.empty((ROWS, ROW // 16), "c16")  # never touched
        self.cpu_pace, self.left = threads / CPU, blocks
        self.taking = taking({"cpu": threads, "device": FEEDERS})
        self.widths = []  # of a device's pieces
        self.start, self.first = start, 50 * start  # to begin what a device takes, at first longer
        self.believed = {"cpu": threads / CPU, "device": FEEDERS / (believed * CPU)}
        self.takers = [Taker("cpu") for _ in range(threads)]
        self.takers += [Taker("device") for _ in range(FEEDERS)]
        self.done = {"cpu": 0, "device": 0}
        self.walk()

    def walk(self):
        numbers = itertools.count()
        self.events, waiting = [], list(self.takers)
        while True:
            now = self.events[0][0] if self.events else 0.0
            if self.events:
                _, _, taker = heapq.heappop(self.events)
                self.finish(taker, now)
                waiting.append(taker)
            for taker in list(waiting):
                end = self.begin(taker, now)
                if end is not None:
                    waiting.remove(taker)
                    heapq.heappush(self.events, (end, next(numbers), taker))
            if not self.events:
                break
        self.end = max(taker.free for taker in self.takers)
        for taker in self.takers:
            taker.gaps.append(self.end - taker.free)

    def finish(self, taker, now):
        taken = taker.taken
        self.taking.done(taken, now - taker.start)
        self.done[taker.kind] += taken.nbytes
        taker.free = now
        if taken.block.finished:
            self.taking.close(taken.block)

    def begin(self, taker, now):
        """Let a taker take something; when it will be done, or None."""
        if taker.kind == "cpu" and (taker.own is None or taker.own.finished) and self.left:
            self.left -= 1
            extent = self.prepared[0].schedule.crossings[0].extents[0]
            taker.own = OpenBlock(ROWS, ROW, TILE, extent, 4 * MIB // ROW, self.believed)
            self.taking.open(taker.own)
        own = [taker.own] if taker.own in self.taking.blocks else []
        for block in own + self.taking.blocks:
            taken = self.taking.take(taker.kind, block)
            if taken is not None:
                taker.gaps.append(now - taker.free)
                taker.taken, taker.start = taken, now
                taker.portions.append(taken.nbytes)
                self.widths += [taken.width] if taker.kind == "device" else []
                seconds = self.seconds(taken, now)
                taker.pieces.append(seconds * taken.width / (taken.high - taken.low))
                return now + seconds
        return None

    def seconds(self, taken, now):
        if taken.kind == "cpu":
            return taken.nbytes * self.cpu_pace
        self.device.wait_until(now)
        works = self.prepared[0].within(0, taken.low, taken.high, taken.width)
        end = self.engine.pipeline.submit_works(works, self.values, self.values, {})
        begun, self.first = self.start + self.first, 0.0
        return end.time - now + begun

    @property
    def share(self):
        return self.done["device"] / sum(self.done.values())

    @property
    def best(self):
        """The share with which all end together: of a device's first piece only one half counts."""
        nbytes = sum(self.done.values())
        fill = self.widths[0] * ROW
        device = self.device.profile.h2d
        return (nbytes / CPU - fill / device) / (nbytes / CPU + nbytes / device)

    @property
    def longest_gap(self):
        return max(max(taker.gaps) for taker in self.takers)

    @property
    def longest_piece(self):
        return max(max(taker.pieces, default=0) for taker in self.takers)


def assert_nobody_waits(walk):
    assert walk.longest_gap <= 1.001 * walk.longest_piece, (walk.longest_gap, walk.longest_piece)


@pytest.mark.parametrize("factor", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("blocks", [1, 5, 16])
def test_the_share_is_the_best_one_and_nobody_waits(factor, blocks):
    walk = Walk(factor, blocks, believed=factor)
    assert abs(walk.share - walk.best) <= 0.05
    assert_nobody_waits(walk)
    shortest = blocks * ROWS * ROW / ((1 + factor) * CPU)
    assert walk.end <= 1.1 * shortest + walk.longest_piece


@pytest.mark.parametrize("factor", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("believed", [0.25, 1.0, 8.0])
def test_a_wrong_model_is_made_up_for(factor, believed):
    walk = Walk(factor, 16, believed=believed)
    assert abs(walk.share - walk.best) <= 0.05
    assert abs(walk.best - factor / (1 + factor)) <= 0.01
    assert_nobody_waits(walk)


def opened(rows=64, piece=8, least=4, cpu=1e-9, device=1e-9, takers=(2, 2)):
    """A block that has just been opened, of bytes for rows, and who takes of it."""
    block = OpenBlock(rows, 1, 1, piece, least, {"cpu": cpu, "device": device})
    taking = Taking(dict(zip(("cpu", "device"), takers, strict=True)))
    taking.open(block)
    return taking, block


def test_a_device_that_had_no_memory_for_a_part_gets_no_other_of_that_block():
    taking, block = opened()
    lost = taking.take("device", block)
    taking.give_back(lost)
    assert block.left_rows == 64
    assert taking.take("device", block) is None
    assert taking.take("cpu", block) is not None
    taking, block = opened()
    taking.give_back(taking.take("cpu", block))
    assert taking.take("device", block) is not None
