"""The cost model: seconds of every round and of the exchange before it, from a profile.

A stage is counted (bytes copied, runs, flops, tiles, shards, tasks) and each count has its price in
the profile. The sum is linear in the prices, which is how calibration finds them from whole
transforms. Threads work on blocks side by side, while Python's part of all blocks adds up, because
threads wait for the GIL. On a cluster the scheduler goes on meanwhile, and the longer of both
counts. Shards that travel, and scratch files, come on top. A round on a device takes what its bus
or its FFTs take, whichever is longer, while threads gather the next block.

Pure: imports `decomposition` and this room.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from dask_bigfft.decomposition.layout import ROW_BYTES, Layout, tile_bytes_of, tiling
from dask_bigfft.decomposition.rounds import ExchangeShape, Round, exchange_shape, place_of
from dask_bigfft.decomposition.steps import Divisor, Step
from dask_bigfft.planner.passes import tile_plans
from dask_bigfft.planner.plan_data import Joint, Joints, Machine, RoundForecast
from dask_bigfft.planner.profile import DeviceProfile, LibrarySpeeds

#: Shards of a connected group from which on, between processes, a shuffle is quicker than tasks.
SHUFFLE_SHARDS = 64


def shuffled(shape: ExchangeShape) -> bool:
    """Return whether an exchange between processes is large enough for a shuffle to pay."""
    return shape.shards >= SHUFFLE_SHARDS * shape.groups


def step_flops(round_: Round) -> Iterator[tuple[Step, float]]:
    """Floating point operations of each step: 5 n log2 n for n complex values."""
    halved = min(round_.source.size, round_.target.size)
    whole = max(round_.source.size, round_.target.size)
    for step in round_.steps:
        passes = 2 if step.convolve is not None else 1
        elements = halved if step.kind == "c2c" else whole / 2
        yield step, passes * 5 * elements * math.log2(max(step.length, 2))


def flops(round_: Round) -> float:
    """Floating point operations of a round's FFTs."""
    return sum(count for _, count in step_flops(round_))


def is_real(round_: Round | None, after: bool = False) -> bool:
    """Return whether the blocks before a round (or after it) are real numbers."""
    kind = "c2r" if after else "r2c"
    return round_ is not None and any(step.kind == kind for step in round_.steps)


@dataclass(frozen=True)
class Traffic:
    """Copies of a block before and after the FFTs of a round.

    Parameters
    ----------
    read : {"none", "block", "shards", "view"}
        What is copied before: nothing, the block that came in, shards of others, or the block from
        memory that it shares with others.
    stored : bool
        Whether results are copied to where they belong.
    direct : bool
        Whether the FFT library reads blocks in place.
    tiles : int
        Tiles of a block: 1 where it is not cut.
    """

    read: Literal["none", "block", "shards", "view"]
    stored: bool
    direct: bool
    tiles: int


def _contiguous(joint: Joint, layout: Layout) -> bool:
    """Return whether a block is contiguous in the memory that it shares with others."""
    place = place_of(joint.layout, layout, tuple(0 for _ in layout.axes))
    lengths = [cut.stop - cut.start for cut in place.cuts]
    first = next((d for d, n in enumerate(lengths) if n > 1), 0)
    in_order = place.order == tuple(range(len(lengths)))
    return in_order and lengths[first + 1 :] == list(place.shape[first + 1 :])


def _halved(round_: Round, supports_out: bool) -> bool:
    """Return whether a library answers FFTs of real values where their results belong."""
    return supports_out and not round_.rolls and [s.kind for s in round_.steps].count("r2c") == 1


def tiles_of(
    round_: Round, itemsize: int, supports_out: bool = False, threads: int = 1
) -> tuple[int, int] | None:
    """Return the dimension and the width of a round's tiles; None where blocks are not cut.

    `itemsize` is that of complex numbers, `supports_out` and `threads` as `traffic` takes them.
    """
    before, after = round_.source.full_shape, round_.target.full_shape
    kinds = {step.kind for step in round_.steps}
    real = itemsize // 2
    came = math.prod(before) * (real if "r2c" in kinds else itemsize)
    goes = math.prod(after) * (real if "c2r" in kinds else itemsize)
    changes = before != after or bool(kinds & {"r2c", "c2r"})
    fixed = {round_.dim(step) for step in round_.steps}
    most = tile_bytes_of(threads)
    size = tile_bytes_of(threads, changes and not _halved(round_, supports_out))
    return tiling(before, fixed, max(came, goes, 1), size, ROW_BYTES, most)


def _ffts_of(steps: tuple[Step, ...]) -> tuple[bool, bool]:
    """Return whether a round begins with complex FFTs of one kind, and has nothing else."""
    begins = bool(steps) and {(s.kind, s.sign, s.chirp_in) for s in steps} == {
        ("c2c", steps[0].sign, None)
    }
    plain = all(s.twiddle is None and s.convolve is None and s.chirp_out is None for s in steps)
    scaled = all(s.divisor in (Divisor(), Divisor(s.length), Divisor(1, s.length)) for s in steps)
    return begins, begins and plain and scaled


def traffic(
    round_: Round,
    itemsize: int,
    supports_out: bool,
    reads: Joint | None,
    writes: Joint | None,
    inside: bool,
    near: bool,
    threads: int = 1,
) -> Traffic:
    """Return the copies of a round's blocks.

    Parameters
    ----------
    round_ : Round
        The round.
    itemsize : int
        Bytes of a complex number.
    supports_out : bool
        Whether the FFT library can answer in other memory than its own.
    reads, writes : Joint or None
        How blocks lie together that it reads, and those that it writes.
    inside : bool
        Whether results take the places of what was read.
    near : bool
        Whether blocks before the exchange are the round's own, as they are.
    threads : int
        Of a process that work side by side.
    """
    shape, after = round_.source.full_shape, round_.target.full_shape
    begins, only = _ffts_of(round_.steps)
    changes = shape != after or any(step.kind in ("r2c", "c2r") for step in round_.steps)
    found = tiles_of(round_, itemsize, supports_out, threads)
    packed = not inside and (writes is None or _contiguous(writes, round_.target))
    packed = packed and (found is None or math.prod(after[: found[0]]) == 1)
    halved = _halved(round_, supports_out)
    reachable = (near or reads is not None) and supports_out and not round_.rolls
    given = reachable and (begins or halved) and (only or packed)
    tiled = found is not None and not (given and only and len(round_.steps) == 1)
    read: Literal["none", "block", "shards", "view"] = "none"
    if not given:
        read = "view" if reads is not None else "block" if near else "shards"
    in_place = (packed and halved) or (not changes and (given or packed))
    tiles = -(-shape[found[0]] // found[1]) if found is not None and tiled else 1
    return Traffic(read, not in_place, given, tiles)


#: Blocks below it stay on the CPU where nobody has asked for a device: a trip costs more.
LEAST_NBYTES = 1 << 20

#: Part of the speed of the bus at which a device reads shards of many blocks, and of the price of
#: a run where a kernel reads narrow rows, not the copy engine.
SHARDS, BY_KERNEL = 0.9, 0.25

#: Bytes of a row from which on a device reads shards where they lie; threads gather narrower ones.
NARROWEST_NBYTES = 1 << 10

#: Seconds of a thread for a shard that is a write of its own in a scratch file.
DISK_SHARD = 2e-4

#: Passes over the bus, by the bytes of a block, of an axis that has no tiles but as a convolution.
CONVOLUTION_PASSES = 6

#: Speed-up of an FFT for each further thread that the library may use.
INNER_THREAD = 0.7


def device_seconds(round_: Round, dtype: str, device: DeviceProfile) -> float:
    """Return the seconds of a device for each of many blocks of a round.

    Both directions of the bus and the FFTs overlap.

    Parameters
    ----------
    round_ : Round
        The round.
    dtype : str
        Of complex values.
    device : DeviceProfile
        Its speeds and its memory.
    """
    passes = [one for plan in tile_plans(round_, dtype, device.nbytes) for one in plan.passes]
    if not passes:  # a convolution of about twice the length, in three passes
        nbytes = round_.source.largest * np.dtype(dtype).itemsize
        return CONVOLUTION_PASSES * nbytes / min(device.h2d, device.d2h)
    bus = calls = most = 0.0
    for one in passes:
        ends = zip(one.nbytes, one.runs, (device.h2d, device.d2h), strict=True)
        bus += max(
            device.bus_seconds(nbytes, runs * BY_KERNEL, speed) for nbytes, runs, speed in ends
        )
        calls += device.call * (len(round_.steps) + 2) * one.tiles
        most = max(most, *one.nbytes)
    blocks = max(1, round_.source.blocks)
    kernels = sum(
        max(count / blocks / device.flops, 4 * most / device.memory)
        for step, count in step_flops(round_)
    )
    return max(calls, bus, kernels)


@dataclass(frozen=True)
class Model:
    """The cost of transforms on a machine.

    Parameters
    ----------
    machine : Machine
        Where it runs, with its profile.
    kernel : str
        FFT library inside the blocks.
    dtype : str
        Of complex values.
    carrier : {"memory", "disk", "tasks"}
        Where blocks are between rounds; ``"tasks"`` if each shard is a task.
    verify : {"none", "energy", "checksum"}
        What is checked.
    device : {"auto", "cpu", "gpu"}
        Where rounds are done.
    """

    machine: Machine
    kernel: str = "scipy"
    dtype: str = "complex128"
    carrier: str = "memory"
    verify: str = "none"
    device: str = "auto"

    @cached_property
    def itemsize(self) -> int:
        """Bytes of a complex number."""
        return np.dtype(self.dtype).itemsize

    @cached_property
    def library(self) -> LibrarySpeeds:
        """Speeds of the FFT library."""
        return self.machine.profile.library(self.kernel, np.dtype(self.dtype).name)

    @cached_property
    def devices(self) -> tuple[DeviceProfile, ...]:
        """The devices of a process that rounds may be done on."""
        possible = np.dtype(self.dtype).char in "FD" and self.device != "cpu"
        return self.machine.devices if possible else ()

    # --- side by side ------------------------------------------------------------------------

    def waves_of(self, blocks: int, lanes: int) -> int:
        """Return the number of blocks that the busiest lane of a process works on."""
        return math.ceil(math.ceil(blocks / self.machine.workers) / max(1, lanes))

    def lanes(self, blocks: int) -> int:
        """Return the number of threads of a process that work at a time."""
        return max(1, min(self.machine.threads, -(-blocks // self.machine.workers)))

    # --- seconds of one thread that does everything ------------------------------------------

    def _copied(self, nbytes: float, row: float, moved: bool = False) -> float:
        """Seconds of a copy of some bytes in rows of some bytes."""
        profile = self.machine.profile
        return nbytes * (1 / profile.copy + profile.run / max(row, 1) + moved * profile.move)

    def flow(
        self,
        before: Layout,
        round_: Round,
        reads: Joint | None = None,
        writes: Joint | None = None,
        inside: bool = False,
    ) -> Traffic:
        """Return what of a round's blocks is copied: see `traffic`."""
        return traffic(
            round_,
            self.itemsize,
            self.library.supports_out,
            reads,
            writes,
            inside,
            before == round_.source,
            self.machine.threads,
        )

    def gather(
        self,
        shape: ExchangeShape,
        before: Layout,
        after: Layout,
        round_: Round | None,
        flow: Traffic | None = None,
    ) -> float:
        """Return the seconds of gathering all blocks of an exchange."""
        itemsize = self.itemsize // 2 if is_real(round_) else self.itemsize
        nbytes, seconds = after.size * itemsize, 0.0
        if round_ is not None and flow is None:
            flow = self.flow(before, round_)
        if flow is None or flow.read in ("shards", "view"):
            row = min(shape.width, self._tile_row(after, round_)) * itemsize
            seconds += self._copied(nbytes, row, not shape.local)
        elif flow.read == "block":
            seconds += self._copied(nbytes, nbytes)
        if shape.local:
            return seconds
        if self.carrier == "tasks":
            seconds += self._copied(nbytes, shape.width * itemsize)  # shards are packed first
        return seconds + (shape.shards * DISK_SHARD if self.carrier == "disk" else 0.0)

    def _tile_row(self, after: Layout, round_: Round | None) -> int:
        """Contiguous elements of a tile of a block: a gather reads no more at a time."""
        block = after.full_shape
        tiles = None if round_ is None else self._tiles(round_)
        if tiles is None:
            return max(1, math.prod(block))
        dim, width = tiles
        return max(1, width * math.prod(block[dim + 1 :]))

    def _tiles(self, round_: Round) -> tuple[int, int] | None:
        if round_ not in self._cut:
            self._cut[round_] = tiles_of(
                round_, self.itemsize, self.library.supports_out, self.machine.threads
            )
        return self._cut[round_]

    @cached_property
    def _cut(self) -> dict[Round, tuple[int, int] | None]:
        return {}

    def store(self, round_: Round, flow: Traffic) -> float:
        """Return the seconds of storing the results of all blocks, from tiles in a cache."""
        goes = self.itemsize // 2 if is_real(round_, after=True) else self.itemsize
        nbytes = round_.target.size * goes if flow.stored else 0
        return nbytes / (2 * self.machine.profile.copy)

    def transform(self, round_: Round, flow: Traffic) -> float:
        """Return the seconds of a round's FFTs on all blocks, with twiddles and checks."""
        profile, layout = self.machine.profile, round_.source
        block = max(round_.source.largest, round_.target.largest) * self.itemsize
        whole = flow.direct or self._tiles(round_) is None
        large = whole and block > tile_bytes_of(self.machine.threads)
        seconds = flops(round_) / (self.library.large_flops if large else self.library.flops)
        seconds /= 1 + INNER_THREAD * (self.machine.threads // self.lanes(layout.blocks) - 1)
        passes = sum(
            x is not None
            for step in round_.steps
            for x in (step.twiddle, step.convolve, step.chirp_in, step.chirp_out)
        )
        seconds += passes * round_.target.size * self.itemsize / (2 * profile.copy)
        speeds = {"energy": profile.energy, "checksum": profile.checksum}
        checked = (round_.source.size + round_.target.size) * self.itemsize
        return seconds + (checked / speeds[self.verify] if self.verify in speeds else 0.0)

    def handling(self, shape: ExchangeShape, flow: Traffic | None = None) -> float:
        """Return the seconds of Python for all shards and tiles of an exchange and its round."""
        profile, gathered = self.machine.profile, flow is None or flow.read == "shards"
        shards = shape.shards if gathered and self.carrier != "disk" else shape.blocks_out
        tiles = 0 if flow is None else shape.blocks_out * flow.tiles
        return shards * profile.shard + tiles * profile.tile

    def block_seconds(self, round_: Round, before: Layout) -> float:
        """Return the seconds of one of all threads for a block that is gathered from others."""
        shape, flow = exchange_shape(before, round_.source), self.flow(before, round_)
        seconds = self.gather(shape, before, round_.source, round_, flow)
        seconds += self.transform(round_, flow) + self.store(round_, flow)
        return (seconds + self.handling(shape, flow)) / max(1, round_.source.blocks)

    # --- on a device -------------------------------------------------------------------------

    def on_device(self, round_: Round | None) -> bool:
        """Return whether the blocks of a round go to a device."""
        if not self.devices or round_ is None:
            return False
        return self.device == "gpu" or round_.source.largest * self.itemsize >= LEAST_NBYTES

    def of_device(self, round_: Round) -> float:
        """Return the seconds that a device takes for each of many blocks of a round."""
        return max(device_seconds(round_, self.dtype, found) for found in self.devices)

    def read(self, shape: ExchangeShape, nbytes: float) -> float | None:
        """Return the seconds in which a device reads a block's shards; None: they are gathered."""
        row = shape.width * self.itemsize
        in_process = self.carrier != "disk" and self.machine.workers == 1
        if not in_process or row < NARROWEST_NBYTES:
            return None
        part = 1.0 if shape.local else SHARDS
        return max(
            nbytes / found.h2d / part + nbytes / row * found.run * BY_KERNEL
            for found in self.devices
        )

    # --- stages ------------------------------------------------------------------------------

    def stage(
        self,
        number: int,
        before: Layout,
        round_: Round | None,
        result: Layout | None = None,
        reads: Joint | None = None,
        writes: Joint | None = None,
        inside: bool = False,
        moves: bool = True,
    ) -> RoundForecast:
        """Return the forecast of an exchange and the round that follows it.

        Candidates of a search have many stages in common: each is worked out once.

        Parameters
        ----------
        number : int
            Of the round, from 1.
        before : Layout
            Blocks that come in.
        round_ : Round or None
            The round; None for the exchange alone, to the blocks of `result`.
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
        return {}

    def _stage(
        self,
        number: int,
        before: Layout,
        round_: Round | None,
        result: Layout | None,
        reads: Joint | None,
        writes: Joint | None,
        inside: bool,
        moves: bool,
    ) -> RoundForecast:
        after = result if round_ is None else round_.source
        assert after is not None
        profile, workers = self.machine.profile, self.machine.workers
        shape, blocks = exchange_shape(before, after), max(1, after.blocks)
        on_gpu = self.on_device(round_) or (round_ is None and bool(self.devices))
        flow = None if round_ is None else self.flow(before, round_, reads, writes, inside)
        gather = fft = device = handling = 0.0
        if reads is None or round_ is not None:  # else blocks lie where they should be
            gather = self.gather(shape, before, after, round_, flow)
            handling = self.handling(shape, None if on_gpu else flow)
        lanes, waves = self.lanes(blocks), self.waves_of(blocks, self.lanes(blocks))
        tasks = shape.blocks_out + (0 if shape.local else shape.groups)
        if self.carrier == "tasks" and not shape.local:
            tasks += shape.shards
        python = (handling + tasks * profile.task) / workers
        if on_gpu:
            device = 0.0 if round_ is None else self.of_device(round_)
            read = self.read(shape, after.size * self.itemsize / blocks) if round_ else None
            if read is not None:
                gather, device = 0.0, max(device, read)
            # All threads gather a block for a device, which works on the one before meanwhile.
            gathered = self.waves_of(blocks, 1) * gather / blocks / self.machine.threads
            work = self.waves_of(blocks, len(self.devices)) * device
            work = max(work, gathered) + min(device, gathered) + python
        else:
            if round_ is not None and flow is not None:
                fft = self.transform(round_, flow)
                gather += self.store(round_, flow)
            work = waves * (gather + fft) / blocks + python
        scheduled, serial = self._scheduling(shape, tasks)
        files = moves or self.carrier != "disk"
        travel = self._travel(shape, after.size * self.itemsize) if files else 0.0
        parts = {
            "gathering": gather / (lanes * workers),
            "FFTs": fft / (lanes * workers),
            "the bus": self.waves_of(blocks, max(1, len(self.devices))) * device,
            "what travels": travel,
            "scheduling": max(scheduled, python) + serial,
        }
        bound = max(parts, key=lambda name: parts[name])
        share = float(on_gpu and round_ is not None)
        return RoundForecast(
            number,
            blocks,
            max(work, scheduled) + serial + travel,
            gather,
            fft,
            handling,
            device,
            travel,
            parts["scheduling"],
            bound,
            share,
        )

    def _scheduling(self, shape: ExchangeShape, tasks: int) -> tuple[float, float]:
        """Seconds of a scheduler while blocks are worked on, and while they wait for it."""
        profile, workers = self.machine.profile, self.machine.workers
        pairs = shape.blocks_in * shape.blocks_out / max(1, shape.groups) ** 2
        serial = pairs * profile.pair + (0.0 if shape.local else profile.exchange)
        if workers == 1:
            return 0.0, serial
        messages = shape.blocks_in if shuffled(shape) else shape.shards
        serial += 0.0 if shape.local else messages * profile.sent_shard
        return tasks * profile.sent_task, serial

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
        """Return the seconds of an exchange alone: what ways to cut blocks are compared by."""
        return self.stage(1, before, None, after, moves=moves).seconds

    def route(
        self,
        source: Layout,
        rounds: Iterable[Round],
        result: Layout | None,
        joints: Joints | None = None,
        moves: Sequence[bool] = (),
    ) -> tuple[RoundForecast, ...]:
        """Return the forecast of rounds and the exchanges between them.

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
