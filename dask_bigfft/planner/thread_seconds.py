"""What threads take for a round: copies, FFTs and checks, and the Python around them.

A thread gathers a block tile by tile and transforms it, so the two add up; blocks are worked on
side by side, as many as there are threads, in waves. Threads of a process wait for its interpreter
(`interpreter`), and share its memory.

Pure: imports `decomposition` and this room.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dask_bigfft.decomposition.layout import Layout
from dask_bigfft.decomposition.rounds import ExchangeShape, Round, exchange_shape
from dask_bigfft.planner.interpreter import block_seconds
from dask_bigfft.planner.joints import Joint
from dask_bigfft.planner.machine import Machine
from dask_bigfft.planner.profile import LibrarySpeeds
from dask_bigfft.planner.traffic import Traffic, block_of, fastest_dim, tiles_of, traffic
from dask_bigfft.planner.work import is_real, is_turned, step_flops

__all__ = ["ThreadModel", "adrift", "cpu_block_seconds"]

#: Seconds of a thread for a shard that is a write of its own in a scratch file: measured with
#: shards of 32 KiB to 1 MiB in turn beside ones of 4 MiB, 0.13 to 0.35 ms on a loaded machine.
DISK_SHARD = 2e-4

#: Bytes of elements in which copies are measured.
WIDE = 16


def adrift(lanes: int) -> float:
    """Part of a block that threads wait for the last one, on the whole, after several blocks each.

    They end at any time within one block, since nothing keeps them in step: of n such times the
    last is n / (n + 1) of it, the mean one half.

    >>> adrift(1), adrift(3)
    (0.0, 0.25)
    """
    return lanes / (lanes + 1) - 0.5


@dataclass(frozen=True)
class ThreadModel:
    """What rounds cost the threads of a machine.

    Parameters
    ----------
    machine : Machine
        Where it runs, and how fast that is.
    kernel : str
        FFT library inside the blocks.
    dtype : str
        Of complex values.
    carrier : {"memory", "disk", "tasks"}
        Where blocks are between rounds; ``"tasks"`` if each shard is a task.
    verify : {"none", "energy", "checksum"}
        What is checked.
    """

    machine: Machine
    kernel: str = "scipy"
    dtype: str = "complex128"
    carrier: str = "memory"
    verify: str = "none"

    @cached_property
    def itemsize(self) -> int:
        """Bytes of a complex number."""
        return np.dtype(self.dtype).itemsize

    @cached_property
    def library(self) -> LibrarySpeeds:
        """How fast the FFT library is."""
        return self.machine.profile.library(self.kernel, np.dtype(self.dtype).name)

    # --- side by side ------------------------------------------------------------------------

    def waves_of(self, blocks: int, lanes: int) -> int:
        """How many blocks the busiest lane of a process works on."""
        return math.ceil(math.ceil(blocks / self.machine.workers) / max(1, lanes))

    def waves(self, blocks: int) -> int:
        """How many blocks the busiest CPU thread works on."""
        return self.waves_of(blocks, self.lanes(blocks))

    def lanes(self, blocks: int) -> int:
        """Threads of a process that work at a time."""
        return max(1, min(self.machine.threads, -(-blocks // self.machine.workers)))

    def _fewer(self, lanes: int, alone: float) -> float:
        """How many times as fast a thread is because fewer work than when it was measured.

        They share the memory, of which one alone takes `alone` times as much as each of them all.
        """
        busy = max(1, lanes * self.machine.workers)  # which may all be on one machine
        return max(1.0, min(alone, self.machine.profile.threads / busy))

    def _alone(self, lanes: int) -> float:
        """How many times as fast copies are because fewer threads work."""
        return self._fewer(lanes, self.machine.profile.alone)

    def _ffts(self, lanes: int) -> float:
        """How many times as fast a lane's FFTs are because there are more threads than lanes.

        The library uses those that have no block, but all together have no more memory than all
        have when each works on a block of its own.
        """
        threads, most = self.machine.threads, self.machine.profile.threads
        own = self._fewer(lanes, self.library.alone)
        spare = 1 + (threads // lanes - 1) * self.library.spare
        return min(own * spare, max(threads // lanes, most / lanes, own))

    def side_by_side(
        self, blocks: int, copies: float, ffts: float, python: float, woken: float = 0.0,
        later: float = 0.0,
    ) -> float:
        """Seconds of the threads of a process for its blocks, each of which takes so long.

        Python takes `woken` seconds more where others wait for the interpreter, and `later` seconds
        more for blocks after the first wave, whose tasks are handed out one by one. What is left
        for the last wave may be less than there are threads: these wait less for it, and for
        memory. Some threads wait for the last block: where each has one, since some take longer,
        and where each has had several by `adrift`, unless those that are ready take what is left.
        """
        own, lanes = -(-blocks // self.machine.workers), self.lanes(blocks)
        full, rest = divmod(own, lanes)
        profile, library = self.machine.profile, self.library
        seconds = last = 0.0
        for waves, busy, handed in ((1, lanes, python), (full - 1, lanes, python + later),
                                    (1, rest, python + later)):
            if waves and busy:
                copied = copies * self._alone(lanes) / self._alone(busy)
                done = ffts * self._fewer(lanes, library.alone) / self._fewer(busy, library.alone)
                free = profile.slack * library.company * (profile.company * copied + done)
                last = block_seconds(busy, free, handed, woken)
                seconds += waves * last
        waits = profile.uneven if own <= lanes else adrift(lanes) if not rest else 0.0
        return seconds + (waits * last if lanes > 1 else 0.0)

    # --- seconds of one thread that does everything ------------------------------------------

    def flow(
        self, before: Layout, round_: Round, reads: Joint | None = None,
        writes: Joint | None = None, inside: bool = False,
    ) -> Traffic:
        """What of a round's blocks is copied: see `traffic`."""
        return traffic(round_, self.itemsize, self.library.elsewhere, reads, writes, inside,
                       before == round_.source, self.machine.threads)

    def gather(
        self, shape: ExchangeShape, before: Layout, after: Layout, round_: Round | None,
        flow: Traffic | None = None,
    ) -> float:
        """Seconds of gathering all blocks of an exchange."""
        itemsize = self.itemsize // 2 if is_real(round_) else self.itemsize
        profile, nbytes = self.machine.profile, after.size * itemsize
        if round_ is not None and flow is None:
            flow = self.flow(before, round_)
        seconds = 0.0
        if flow is None or flow.read == "shards":
            seconds += nbytes * self._narrow(is_turned(before, after), itemsize)
            seconds *= self._shards_byte(shape, before, after, round_)
        elif flow.read == "block":
            seconds += nbytes / profile.copy
        elif flow.read == "lying":
            curve = profile.lying_turned if flow.turned else profile.lying
            seconds += nbytes * self._narrow(flow.turned, itemsize) / curve.at(flow.row)
        seconds /= self._alone(self.lanes(after.blocks))
        if self.carrier == "tasks" and not shape.local:
            seconds += nbytes / profile.copy  # shards are packed first
        if self.carrier == "disk" and not shape.local:
            seconds += shape.shards * DISK_SHARD
        return seconds

    def store(self, round_: Round, flow: Traffic) -> float:
        """Seconds of storing what comes of all blocks of a round, apart from where it was made."""
        if not flow.stored:
            return 0.0
        goes = self.itemsize // 2 if is_real(round_, after=True) else self.itemsize
        seconds = round_.target.size * goes / self.machine.profile.stored.at(flow.stored)
        return seconds * self._narrow(False, goes) / self._alone(self.lanes(round_.target.blocks))

    def _narrow(self, turned: bool, itemsize: int) -> float:
        """How many times as long bytes take to be copied because of the size of elements."""
        profile = self.machine.profile
        if itemsize >= WIDE:
            return 1.0
        return profile.narrow_turned if turned else profile.narrow

    def _shards_byte(
        self, shape: ExchangeShape, before: Layout, after: Layout, round_: Round | None
    ) -> float:
        """Seconds for each byte that is gathered from shards."""
        profile, turned = self.machine.profile, is_turned(before, after)
        curve = profile.turned if turned else profile.straight
        if not self.in_tiles(round_):
            curve = profile.turned_whole if turned else profile.straight_whole
        byte = 1 / curve.at(self.row_nbytes(shape, after, round_))
        if shape.local and not turned:  # which reads one block from its beginning to its end
            byte = max(1 / profile.copy, byte + 1 / profile.copy - 1 / curve.points[-1][1])
        return byte

    def handling(
        self, shape: ExchangeShape, flow: Traffic | None = None, tiled: bool = True
    ) -> float:
        """Seconds of Python for all blocks of an exchange, and their shards and tiles."""
        profile, blocks = self.machine.profile, shape.blocks_out
        tiles = blocks * flow.tiles * profile.tile if tiled and flow is not None else 0.0
        if flow is not None and flow.lies:
            return blocks * profile.lying_block + tiles
        if flow is not None and flow.read != "shards":
            return blocks * profile.block + tiles
        shards = 0 if shape.local or self.carrier == "disk" else shape.shards
        gathered = blocks * profile.gathered_block + shards * profile.shard
        return gathered + tiles + (profile.tables if blocks else 0.0)

    def row_nbytes(self, shape: ExchangeShape, after: Layout, round_: Round | None) -> float:
        """Bytes of the rows that a gather reads: the exchange's, or narrower ones of tiles."""
        itemsize = self.itemsize // 2 if is_real(round_) else self.itemsize
        row = min(shape.width, self._tile_row(after, round_)) * itemsize
        return float(max(row, 1))

    def _tile_row(self, after: Layout, round_: Round | None) -> int:
        """Elements that a tile of a block has in a row, which a gather reads at a time at most."""
        block = block_of(after)
        if (found := self._tiles(round_)) is None:
            return max(1, math.prod(block))
        dim, width = found
        return max(1, width * math.prod(block[dim + 1 :]))

    def in_tiles(self, round_: Round | None) -> bool:
        """Whether blocks are gathered tile by tile, and not whole."""
        return self._tiles(round_) is not None

    def _tiles(self, round_: Round | None) -> tuple[int, int] | None:
        if round_ is None:
            return None
        if round_ not in self._cut:
            self._cut[round_] = tiles_of(
                round_, self.itemsize, self.library.elsewhere, self.machine.threads)
        return self._cut[round_]

    @cached_property
    def _cut(self) -> dict[Round, tuple[int, int] | None]:
        """How blocks of rounds are cut into tiles, which is asked several times."""
        return {}

    def transform(self, round_: Round, flow: Traffic | None = None) -> float:
        """Seconds of a round's FFTs on all blocks, and of the twiddles that follow."""
        library, profile = self.library, self.machine.profile
        flow = self.flow(round_.source, round_) if flow is None else flow
        block = block_of(round_.source)
        last = fastest_dim(round_.source)
        uncut, alone, inner = not self.in_tiles(round_), len(round_.steps) == 1, False
        first = next(iter(sorted(round_.steps, key=lambda step: step.kind != "r2c")), None)
        seconds = beside = 0.0
        for step, count in step_flops(round_):
            # The first FFT of a tile reads where it lies, the others what that has left in a cache,
            # which is as fast as memory at least: one call does all of them.
            read = flow.direct and (uncut or step == first)
            inner = round_.dim(step) == last and not (read and flow.turned)
            factor = 1.0 if step.kind == "c2c" else library.real.at(step.length)
            direct = read or (uncut and alone and not inner)
            apart = flow.steps[round_.dim(step)] if read else 0
            rate = library.rate(
                step.length, innermost=inner, direct=direct, away=flow.away, step=apart)
            if flow.direct and not read:
                rate = max(rate, library.rate(step.length, innermost=inner, direct=True))
            seconds += factor * count / rate
            passes = sum(x is not None for x in (step.twiddle, step.convolve))
            passes += 2 * sum(x is not None for x in (step.chirp_in, step.chirp_out))
            beside += passes * round_.target.size * WIDE / profile.twiddle
        if uncut and (not alone or (inner and not flow.direct)):
            seconds /= library.whole.at(max(1, math.prod(block)) * self.itemsize)
        return seconds / self._ffts(self.lanes(round_.source.blocks)) + beside

    def checking(self, round_: Round) -> float:
        """Seconds of verifying all blocks of a round."""
        if self.verify == "none":
            return 0.0
        profile, nbytes = self.machine.profile, round_.source.size + round_.target.size
        speed = profile.energy if self.verify == "energy" else profile.checksum
        return nbytes * self.itemsize / speed


def cpu_block_seconds(
    round_: Round, before: Layout | None, machine: Machine, kernel: str, dtype: str
) -> float:
    """Seconds of one thread for a block of a round, while the other threads work, too.

    Parameters
    ----------
    round_ : Round
        What is done.
    before : Layout or None
        The blocks that its blocks are gathered from; None where they lie as the round has them.
    machine : Machine
        How fast it is.
    kernel, dtype : str
        FFT library, and complex dtype.
    """
    model = ThreadModel(machine, kernel, dtype)
    source = round_.source if before is None else before
    shape = exchange_shape(source, round_.source)
    flow = model.flow(source, round_)
    seconds = model.gather(shape, source, round_.source, round_, flow)
    seconds += model.transform(round_, flow) + model.store(round_, flow)
    seconds = machine.profile.slack * seconds + model.handling(shape, flow)
    return seconds / max(1, round_.source.blocks)
