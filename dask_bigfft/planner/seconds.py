"""The cost model: seconds of every round and of the exchange before it, from a profile.

What threads do stands in `thread_seconds`. A cluster's scheduler goes on meanwhile, one task after
the other: the longer of both counts. Shards that travel, and scratch files, come on top. A round on
a device takes what its bus or its FFTs take, whichever is longer, while threads gather the next
block.

Pure: imports `decomposition` and this room.
"""

import itertools
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np

from dask_bigfft.decomposition.layout import Layout
from dask_bigfft.decomposition.rounds import ExchangeShape, Round, exchange_shape
from dask_bigfft.planner.device_seconds import device_block_seconds
from dask_bigfft.planner.joints import Joint, Joints
from dask_bigfft.planner.machine import RoundForecast
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.planner.thread_seconds import ThreadModel
from dask_bigfft.planner.traffic import calls
from dask_bigfft.planner.work import shuffled

__all__ = ["LEAST_NBYTES", "Model", "Walk"]

#: Blocks below it stay on the CPU where nobody has asked for a device: a trip costs more.
LEAST_NBYTES = 1 << 20

#: Part of the speed of the bus at which a device reads shards of many blocks.
SHARDS = 0.9

#: What each run of narrow rows costs where a kernel reads it: this part of a copy engine's cost.
BY_KERNEL = 0.25

#: Bytes of a row from which on a device reads shards where they lie; threads gather narrower ones.
NARROWEST_NBYTES = 1 << 10


class Walk(Hashable, Protocol):
    """The pipelines of devices, as far as a plan has to know them."""

    def __call__(self, round_: Round) -> float | None:
        """Return the seconds of a device for each of many blocks; None where none can do them."""
        ...

    def divides(self, round_: Round) -> bool:
        """Return whether devices and CPU threads can share the blocks of a round."""
        ...


@dataclass(frozen=True)
class Model(ThreadModel):
    """What a transform costs on a machine.

    Parameters
    ----------
    machine, kernel, dtype, carrier, verify
        As `ThreadModel` takes them.
    device : {"auto", "cpu", "gpu"}
        Where rounds are done.
    walk : callable, optional
        Seconds that a device takes for each of many blocks of a round, by a walk through its
        pipeline; without it, by a formula.
    """

    device: str = "auto"
    walk: Walk | None = None

    @cached_property
    def devices(self) -> tuple[DeviceProfile, ...]:
        """The devices of a process that rounds may be done on."""
        possible = np.dtype(self.dtype).char in "FD" and self.device != "cpu"
        return self.machine.devices if possible else ()

    # --- on a device -------------------------------------------------------------------------

    def on_device(self, round_: Round | None) -> bool:
        """Whether the blocks of a round go to a device."""
        if not self.devices or round_ is None:
            return False
        return self.device == "gpu" or round_.source.largest * self.itemsize >= LEAST_NBYTES

    def of_device(self, round_: Round) -> float:
        """Seconds that a device takes for each of many blocks of a round."""
        walked = None if self.walk is None else self.walk(round_)
        if walked is not None:
            return walked
        return max(device_block_seconds(round_, self.itemsize, found) for found in self.devices)

    def read(self, shape: ExchangeShape, nbytes: float) -> float | None:
        """Seconds in which a device reads a block where its shards lie; None: it is gathered."""
        row = shape.width * self.itemsize
        in_process = self.carrier != "disk" and self.machine.workers == 1
        if not in_process or row < NARROWEST_NBYTES:
            return None
        part = 1.0 if shape.local else SHARDS
        return max(
            nbytes / found.h2d / part + nbytes / row * found.run * BY_KERNEL
            for found in self.devices
        )

    # --- side by side ------------------------------------------------------------------------

    def stage(
        self, number: int, before: Layout, round_: Round | None, result: Layout | None = None,
        reads: Joint | None = None, writes: Joint | None = None, inside: bool = False,
        moves: bool = True,
    ) -> RoundForecast:
        """What an exchange and the round that follows it take; with `result`, only the exchange.

        Candidates of a search have many of them in common: each is worked out once.

        Parameters
        ----------
        number : int
            Of the round, from 1.
        before : Layout
            Blocks that come in.
        round_ : Round or None
            What is done with them.
        result : Layout, optional
            Blocks of the array that goes out, where there is no round.
        reads, writes : Joint, optional
            How the blocks before and after the exchange lie together, which then copies nothing,
            and those after the round.
        inside : bool
            Whether the round's results take the places of what it reads.
        moves : bool
            Whether shards go through scratch files, with carrier ``"disk"``.
        """
        asked = before, round_, result, reads, writes, inside, moves
        if asked not in self._stages:
            self._stages[asked] = self._stage(number, *asked)
        found = self._stages[asked]
        return found if found.index == number else replace(found, index=number)

    @cached_property
    def _stages(self) -> dict[tuple[object, ...], RoundForecast]:
        """What is known of exchanges and rounds."""
        return {}

    def _stage(
        self, number: int, before: Layout, round_: Round | None, result: Layout | None,
        reads: Joint | None, writes: Joint | None, inside: bool, moves: bool,
    ) -> RoundForecast:
        """As `stage` says, worked out."""
        after = result if round_ is None else round_.source
        assert after is not None
        shape = exchange_shape(before, after)
        if reads is not None and round_ is None:
            return self._nothing(number, shape)
        blocks = max(1, after.blocks)
        flow = None if round_ is None else self.flow(before, round_, reads, writes, inside)
        gather = self.gather(shape, before, after, round_, flow)
        on_card = self.on_device(round_) or (round_ is None and bool(self.devices))
        handling = self.handling(shape, flow, tiled=not on_card)
        fft = device = woken = 0.0
        lanes, threads, profile = self.lanes(blocks), self.machine.threads, self.machine.profile
        block = after.size * self.itemsize / blocks
        if on_card:
            if round_ is not None:
                device = self.of_device(round_)
            if (read := self.read(shape, block)) is not None:
                gather, device = 0.0, max(device, read)
            # All threads gather a block for a device, which works on the one before meanwhile.
            work = self.waves_of(blocks, len(self.devices)) * device
            gathered = self.waves_of(blocks, 1) * profile.slack * gather / blocks / threads
            work = max(work, gathered + handling / blocks) + min(device, gathered)
            work += self.waves_of(blocks, lanes) * profile.task
        else:
            if round_ is not None and flow is not None:
                fft = self.transform(round_, flow) + self.checking(round_)
                gather += self.store(round_, flow)
                woken = profile.wake * calls(round_, flow)
            handed = self._handing_out(shape)
            python, later = handling / blocks + handed, (profile.waiting - 1) * handed
            work = self.side_by_side(blocks, gather / blocks, fft / blocks, python, woken, later)
        scheduled, serial = self._scheduling(shape)
        scheduled += handling / self.machine.workers
        files = moves or self.carrier != "disk"
        travel = self._travel(shape, after.size * self.itemsize) if files else 0.0
        seconds = max(work, scheduled) + serial + travel
        parts = {
            "gathering": gather / (lanes * self.machine.workers),
            "FFTs": fft / (lanes * self.machine.workers),
            "the bus": self.waves_of(blocks, max(1, len(self.devices))) * device,
            "what travels": travel,
            "scheduling": scheduled + serial,
        }
        bound = max(parts, key=lambda name: parts[name])
        share = float(on_card and round_ is not None)
        return RoundForecast(number, blocks, seconds, gather, fft, handling, device,
                             travel, scheduled + serial, bound, share, woken * blocks)

    def _nothing(self, number: int, shape: ExchangeShape) -> RoundForecast:
        """What an exchange takes whose blocks lie where they should be: tasks, and none is long.

        One thread does them all, as it is ready again before another one is woken; and they are
        put in order together with those before.
        """
        profile = self.machine.profile
        seconds = shape.blocks_out * profile.brief
        seconds += shape.blocks_in * shape.blocks_out / max(1, shape.groups) ** 2 * profile.pair
        seconds += 0.0 if shape.local else profile.exchange
        return RoundForecast(number, max(1, shape.blocks_out), seconds, 0.0, 0.0, 0.0, 0.0, 0.0,
                             seconds, "scheduling")

    def _handing_out(self, shape: ExchangeShape) -> float:
        """Seconds of the interpreter for the task of a block, and for those of its shards."""
        profile, packs = self.machine.profile, self.carrier == "tasks" and not shape.local
        if self.machine.workers > 1:  # a scheduler elsewhere does it, but for Python around them
            return profile.task
        return profile.task + packs * profile.packed * shape.shards / max(1, shape.blocks_out)

    def _scheduling(self, shape: ExchangeShape) -> tuple[float, float]:
        """Seconds of the scheduler while blocks are worked on, and while they wait for it."""
        profile, workers = self.machine.profile, self.machine.workers
        tasks = shape.blocks_out + (0 if shape.local else shape.groups)
        scheduled = tasks * (profile.task if workers == 1 else profile.sent_task)
        if self.carrier == "tasks" and not shape.local:
            scheduled += shape.shards * (profile.packed if workers == 1 else profile.sent_task)
        pairs = shape.blocks_in * shape.blocks_out / max(1, shape.groups) ** 2
        serial = pairs * profile.pair + (tasks * profile.planned if workers == 1 else 0.0)
        if not shape.local:
            serial += profile.exchange
            if workers > 1:
                messages = shape.blocks_in if shuffled(shape) else shape.shards
                serial += messages * profile.sent_shard
        return scheduled, serial

    def _travel(self, shape: ExchangeShape, nbytes: int) -> float:
        """Seconds of the network or the disk for an exchange."""
        machine, profile = self.machine, self.machine.profile
        if shape.local:
            return 0.0
        if self.carrier == "disk":
            return nbytes * (1 / profile.write + 1 / profile.read)
        if machine.workers == 1:
            return 0.0
        return nbytes * (1 - 1 / machine.workers) / (machine.workers * profile.network)

    # --- whole plans -------------------------------------------------------------------------

    def exchange_seconds(self, before: Layout, after: Layout, moves: bool = True) -> float:
        """Seconds of an exchange alone: what ways to cut blocks are compared by."""
        return self.stage(1, before, None, after, moves=moves).seconds

    def route(
        self, source: Layout, rounds: Iterable[Round], result: Layout | None,
        joints: Joints | None = None, moves: Sequence[bool] = (),
    ) -> tuple[RoundForecast, ...]:
        """What rounds and the exchanges between them take.

        Parameters
        ----------
        source, result : Layout
            Blocks that come in and go out; None for a result that the last round leaves.
        rounds : iterable of Round
            In order.
        joints : Joints, optional
            Which blocks lie together in memory.
        moves : sequence of bool
            For each exchange, whether shards go through scratch files, with carrier ``"disk"``.
        """
        found, before = [], source
        files = itertools.chain(moves, itertools.repeat(True))
        together = [] if joints is None else list(joints.exchanges)
        inside = itertools.chain([] if joints is None else joints.inside, itertools.repeat(None))
        after = itertools.chain(together, itertools.repeat(None))
        reads = next(after)
        for number, (round_, stays) in enumerate(zip(rounds, inside, strict=False), 1):
            follows = next(after)
            writes = follows if follows is not None and follows.home == number else None
            there = reads, writes, stays is not None
            found.append(self.stage(number, before, round_, None, *there, next(files)))
            before, reads = round_.target, follows
        if result is not None:
            number = len(found) + 1
            found.append(self.stage(number, before, None, result, reads, moves=next(files)))
        return tuple(found)
