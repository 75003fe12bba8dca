"""The cost model: seconds of every round and of the exchange before it, from a profile.

A stage has counts (bytes copied, runs, flops, tiles, shards, tasks), and each count has a price in
the profile. The sum is linear in the prices, so that calibration can fit them to whole transforms.

Threads work on blocks in parallel, but their Python code is serial, because of the GIL. On a
cluster the scheduler works at the same time, and the longer of both counts. Network and scratch
files are added. A round on a GPU takes the longer of bus and FFTs, while threads gather the next
block.
"""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np

from dask_bigfft.planner.passes import tile_plans
from dask_bigfft.planner.plan import RoundForecast
from dask_bigfft.planner.profile import DeviceProfile, LibrarySpeeds
from dask_bigfft.planner.request import Machine
from dask_bigfft.planner.stages import Exchange, Stage
from dask_bigfft.planner.tile_plan import NARROWEST_NBYTES
from dask_bigfft.tiles.program import program_of
from dask_bigfft.tiles.way import BlockMemory, Price, Way, is_apart, price, way_of
from dask_bigfft.transforms.exchanges import ExchangeShape
from dask_bigfft.transforms.layout import tile_bytes_of
from dask_bigfft.transforms.rounds import Round

#: Minimum shards of a connected group for which a shuffle between processes is faster than tasks.
SHUFFLE_SHARDS = 64


def shuffled(shape: ExchangeShape) -> bool:
    """Return whether an exchange between processes is large enough for a shuffle to pay."""
    return shape.shards >= SHUFFLE_SHARDS * shape.groups


def price_of(round_: Round) -> Price:
    """Return the work of a round on all its blocks."""
    result_size = round_.without_windows.target.size
    return price(program_of(round_), round_.source.size, result_size)


def flops(round_: Round) -> float:
    """Return the floating point operations of a round's FFTs."""
    return sum(price_of(round_).flops)


def changes(round_: Round) -> bool:
    """Return whether blocks change their shape or type in a round."""
    if round_.takes_real or round_.makes_real:
        return True
    return round_.source.full_shape != round_.target.full_shape


class Traffic(NamedTuple):
    """Copies of a block before and after the FFTs of a round.

    Parameters
    ----------
    read : {"none", "block", "shards", "view"}
        Copies before the FFTs: none, the input block, shards of several blocks, or a view of a
        shared buffer.
    stored : bool
        Whether results are copied to their place.
    direct : bool
        Whether the FFT library reads blocks in place.
    tiling : (int, int) or None
        Dimension and width of the tiles; None where a block is not cut.
    tiles : int
        Tiles of a block: 1 where it is not cut.
    """

    read: Literal["none", "block", "shards", "view"]
    stored: bool
    direct: bool
    tiling: tuple[int, int] | None
    tiles: int


#: Copies of an exchange that no round follows.
NO_ROUND = Traffic(
    "shards",
    stored=False,
    direct=False,
    tiling=None,
    tiles=0,
)


class _Work(NamedTuple):
    """Seconds of the work on all blocks of a stage.

    Parameters
    ----------
    gather, fft, handling : float
        Sums over threads: gathering and storing, FFTs, and Python.
    device : float
        Of a GPU for each block.
    seconds : float
        Wall-clock time without Python.
    """

    gather: float
    fft: float
    handling: float
    device: float
    seconds: float


#: Minimum bytes of a block for a GPU, unless the user chose the GPU.
LEAST_NBYTES = 1 << 20

#: Fraction of the bus speed at which a GPU reads shards of many blocks, and fraction of the price
#: of a run where a kernel, not the copy engine, reads narrow rows.
SHARDS = 0.9
BY_KERNEL = 0.25

#: Seconds of a thread for a shard that is a separate write to a scratch file.
DISK_SHARD = 2e-4

#: Speed-up of an FFT for each further thread that the library may use.
INNER_THREAD = 0.7


@dataclass(frozen=True)
class Model:
    """The cost of transforms on a machine.

    Parameters
    ----------
    machine : Machine
        Machine with its profile.
    kernel : str
        FFT library inside the blocks.
    dtype : str
        Complex dtype.
    storage : {"memory", "disk"}
        Storage of blocks between rounds.
    verify : {"none", "energy", "checksum"}
        Checks of the running transform.
    device : {"auto", "cpu", "gpu"}
        Kind of executor of the rounds.
    """

    machine: Machine
    kernel: str = "scipy"
    dtype: str = "complex128"
    storage: str = "memory"
    verify: str = "none"
    device: str = "auto"
    _stages: dict[Stage, RoundForecast] = field(default_factory=dict, init=False, compare=False)
    _ways: dict[Stage, Way] = field(default_factory=dict, init=False, compare=False)
    _prices: dict[Round, Price] = field(default_factory=dict, init=False, compare=False)

    @cached_property
    def itemsize(self) -> int:
        """Bytes of a complex number."""
        return np.dtype(self.dtype).itemsize

    @cached_property
    def library(self) -> LibrarySpeeds:
        """Speeds of the FFT library."""
        return self.machine.profile.library(self.kernel, self.dtype)

    @cached_property
    def devices(self) -> tuple[DeviceProfile, ...]:
        """The GPUs of a process that may do rounds."""
        if self.device == "cpu" or np.dtype(self.dtype).char not in "FD":
            return ()
        return self.machine.devices

    # --- side by side ------------------------------------------------------------------------

    def blocks_per_lane(self, blocks: int, lanes: int) -> int:
        """Return the number of blocks that the busiest lane of a process works on.

        A lane is a thread or a GPU.
        """
        own_blocks = math.ceil(blocks / self.machine.workers)
        return math.ceil(own_blocks / max(1, lanes))

    def lanes(self, blocks: int) -> int:
        """Return the number of threads of a process that work at a time."""
        return max(1, min(self.machine.threads, -(-blocks // self.machine.workers)))

    # --- seconds of one thread that does everything ------------------------------------------

    def _copied(self, nbytes: float, row_nbytes: float, moved: bool = False) -> float:
        """Return the seconds of a copy, given the bytes of all values and of a row."""
        profile = self.machine.profile
        per_byte = 1 / profile.copy + profile.run / max(row_nbytes, 1)
        if moved:
            per_byte += profile.move
        return nbytes * per_byte

    def repeats(self, round_: Round) -> bool:
        """Return whether some of a round is done twice and compared, to verify it."""
        return self.verify != "none" and not round_.keeps_energy

    def transforms_twice(self, round_: Round) -> bool:
        """Return whether FFTs are done twice, as those beside a product are not."""
        return self.repeats(round_) and not round_.multiplies

    def price(self, round_: Round) -> Price:
        """Return the work of a round on all its blocks, which is worked out once for each round."""
        work = self._prices.get(round_)
        if work is None:
            work = price_of(round_)
            self._prices[round_] = work
        return work

    def flops(self, round_: Round) -> float:
        """Return the floating point operations of a round's FFTs."""
        return sum(self.price(round_).flops)

    def way(self, stage: Stage) -> Way:
        """Return the way of a full block through a round, as `kernels.loop.CPUExecutor` takes it.

        Time and memory of a stage depend on it: it is worked out once for each stage.
        """
        way = self._ways.get(stage)
        if way is None:
            way = self._way(stage, is_assembled=False)
            self._ways[stage] = way
        return way

    def way_of_assembled(self, stage: Stage) -> Way:
        """Return the way of a full block that is assembled in an array of its own.

        The result replaces the block if both are alike.
        """
        return self._way(stage, is_assembled=True)

    def _way(self, stage: Stage, is_assembled: bool) -> Way:
        """Return the way of a full block through a round."""
        round_ = stage.round_
        assert round_ is not None
        exchange = stage.exchange
        keeps_form = exchange.dtype == stage.result_dtype and not changes(round_)
        is_overwritten = keeps_form if is_assembled else stage.works_in_place
        memory = BlockMemory(
            shape=round_.source.full_shape,
            result_shape=round_.target.full_shape,
            result_strides=stage.result_strides,
            nbytes=max(exchange.block_nbytes, stage.result_block_nbytes, 1),
            keeps_form=keeps_form,
            source="array" if is_assembled or stage.reads_one_array else "shards",
            is_overwritten=is_overwritten,
        )
        is_verified = self.verify != "none"
        apart = is_verified and is_apart(is_verified, is_overwritten, round_.keeps_energy)
        return way_of(
            program_of(round_),
            memory,
            threads=self.machine.threads,
            supports_out=self.library.supports_out,
            has_windows=bool(round_.windows),
            checked=is_verified,
            apart=apart,
        )

    def traffic(self, stage: Stage) -> Traffic:
        """Return the copies of a block."""
        round_ = stage.round_
        if round_ is None:
            return NO_ROUND
        way = self.way(stage)
        tile_count = 1
        if way.tiling is not None:
            dim, width = way.tiling
            tile_count = -(-round_.source.full_shape[dim] // width)
        read: Literal["none", "block", "shards", "view"] = "shards"
        if not way.is_copied:
            read = "none"
        elif stage.reads is not None:
            read = "view"
        elif stage.exchange.source == round_.source:
            read = "block"
        return Traffic(
            read=read,
            stored=way.is_stored,
            direct=way.reads_in_place,
            tiling=way.tiling,
            tiles=tile_count,
        )

    def gather(self, stage: Stage, traffic: Traffic) -> float:
        """Return the seconds of gathering all blocks of an exchange."""
        exchange = stage.exchange
        shape = exchange.shape
        seconds = 0.0
        if traffic.read in ("shards", "view"):
            row = shape.width
            if traffic.tiling is not None:
                dim, width = traffic.tiling
                row_of_tile = width * math.prod(exchange.target.full_shape[dim + 1 :])
                row = min(row, max(1, row_of_tile))
            row_nbytes = row * np.dtype(exchange.dtype).itemsize
            seconds = self._copied(exchange.nbytes, row_nbytes, moved=not shape.local)
        elif traffic.read == "block":
            seconds = self._copied(exchange.nbytes, exchange.nbytes)
        if stage.round_ is not None and self.transforms_twice(stage.round_):
            seconds *= 2
        if self.storage == "disk" and not shape.local:
            seconds += shape.shards * DISK_SHARD
        return seconds

    def transform(self, stage: Stage, traffic: Traffic) -> float:
        """Return the seconds of a round's FFTs on all blocks, with twiddles and checks."""
        round_ = stage.round_
        assert round_ is not None
        profile = self.machine.profile
        source = round_.source
        target = round_.target
        block_nbytes = max(source.largest, target.largest) * self.itemsize
        is_whole = traffic.direct or traffic.tiling is None
        if is_whole and block_nbytes > tile_bytes_of(self.machine.threads):
            speed = self.library.large_flops
        else:
            speed = self.library.flops
        inner_threads = self.machine.threads // self.lanes(source.blocks)
        work = self.price(round_)
        seconds = sum(work.flops) / speed
        seconds /= 1 + INNER_THREAD * (inner_threads - 1)
        seconds += work.products * target.size * self.itemsize / (2 * profile.copy)
        if self.transforms_twice(round_):
            return 2 * seconds
        checked_nbytes = (source.size + target.size) * self.itemsize
        if round_.multiplies and self.verify != "none":
            spectrum_nbytes = round_.spectrum.size * self.itemsize
            seconds += spectrum_nbytes / (2 * profile.copy)
            checked_nbytes += 2 * spectrum_nbytes
        if self.verify == "energy":
            seconds += checked_nbytes / profile.energy
        elif self.verify == "checksum":
            seconds += checked_nbytes / profile.checksum
        return seconds

    def handling(self, shape: ExchangeShape, traffic: Traffic) -> float:
        """Return the seconds of Python for all shards and tiles of an exchange and its round."""
        profile = self.machine.profile
        gathers_shards = traffic.read == "shards" and self.storage != "disk"
        shards = shape.shards if gathers_shards else shape.blocks_out
        tiles = shape.blocks_out * traffic.tiles
        return shards * profile.shard + tiles * profile.tile

    # --- on a device -------------------------------------------------------------------------

    def of_device(self, round_: Round, order: tuple[int, ...] = ()) -> float:
        """Return the seconds of the slowest device for each of many blocks of a round.

        Both directions of the bus and the FFTs of different tiles overlap. `order` has the
        dimensions in the order of writing, if that is another one.
        """
        return max(self._of_device(round_, device, order) for device in self.devices)

    def _of_device(self, round_: Round, device: DeviceProfile, order: tuple[int, ...]) -> float:
        """Return the seconds of a device for each of many blocks of a round.

        These are those of its kernels alone if no tile fits the device; callers ask for that first.
        """
        parts = tile_plans(
            round_,
            self.dtype,
            device.nbytes,
            order=order,
        )
        passes = [tile_pass for tiles in parts for tile_pass in tiles.passes]
        blocks = max(1, round_.source.blocks)
        blocks_in_turn = 1
        if len(passes) == 1:
            blocks_in_turn = self.blocks_per_lane(blocks, len(self.devices))
        bus = 0.0
        calls = 0.0
        largest_nbytes = 0
        for tile_pass in passes:
            nbytes_in, nbytes_out = tile_pass.nbytes
            runs_in, runs_out = tile_pass.runs
            loads = nbytes_in / device.h2d + (runs_in * BY_KERNEL - 1) * device.run
            stores = nbytes_out / device.d2h + (runs_out * BY_KERNEL - 1) * device.run
            # Nothing is stored while the first tile is loaded, or loaded while the last is stored.
            bus += max(loads, stores) + min(loads, stores) / (tile_pass.tiles * blocks_in_turn)
            calls += device.call * (len(round_.steps) + 2) * tile_pass.tiles
            largest_nbytes = max(largest_nbytes, nbytes_in, nbytes_out)
        kernels = 0.0
        for count in self.price(round_).flops:
            kernels += max(count / blocks / device.flops, 4 * largest_nbytes / device.memory)
        return max(calls, bus, kernels)

    def read(self, exchange: Exchange, round_: Round | None = None) -> float | None:
        """Return the seconds in which a GPU reads a block after an exchange from those before it.

        The result is None if threads of the host gather the block, because its rows are narrow, or
        because its values are converted: a round without FFTs of real values works on complex ones.
        """
        if self.storage == "disk" or self.machine.workers > 1:
            return None
        dtype = np.dtype(exchange.dtype)
        if round_ is not None:
            is_converted = round_.takes_real != (dtype.kind == "f")
            if is_converted or exchange.source_dtype != exchange.dtype:
                return None
        shape = exchange.shape
        row_nbytes = shape.width * dtype.itemsize
        if row_nbytes < NARROWEST_NBYTES:
            return None
        nbytes = exchange.nbytes / max(1, exchange.target.blocks)
        runs = nbytes / row_nbytes
        fraction = 1.0 if shape.local else SHARDS
        seconds = []
        for device in self.devices:
            seconds.append(nbytes / device.h2d / fraction + runs * device.run * BY_KERNEL)
        return max(seconds)

    # --- stages ------------------------------------------------------------------------------

    def stage(self, stage: Stage, number: int = 1) -> RoundForecast:
        """Return the forecast of a stage, whose round has a number (from 1).

        Candidates of a search have many stages in common: each is worked out once.
        """
        expected = self._stages.get(stage)
        if expected is None:
            expected = self._stage(stage, number)
            self._stages[stage] = expected
        return expected if expected.index == number else replace(expected, index=number)

    def _stage(self, stage: Stage, number: int) -> RoundForecast:
        """Return the forecast of a stage."""
        exchange = stage.exchange
        shape = exchange.shape
        workers = self.machine.workers
        blocks = max(1, exchange.target.blocks)
        runs_on_gpu = self._runs_on_gpu(stage)
        work = self._work_on_gpu(stage) if runs_on_gpu else self._work_on_cpu(stage)
        tasks = shape.blocks_out + (0 if shape.local else shape.groups)
        python = (work.handling + tasks * self.machine.profile.task) / workers
        scheduled, serial = self._scheduling(shape, tasks)
        travel = 0.0
        if stage.moves or self.storage != "disk":
            travel = self._travel(exchange)
        bus = 0.0
        if runs_on_gpu:
            bus = self.blocks_per_lane(blocks, len(self.devices)) * work.device
        lanes = self.lanes(blocks) * workers
        parts = {
            "gathering": work.gather / lanes,
            "FFTs": work.fft / lanes,
            "the bus": bus,
            "what travels": travel,
            "scheduling": max(scheduled, python) + serial,
        }
        return RoundForecast(
            index=number,
            blocks=blocks,
            seconds=max(work.seconds + python, scheduled) + serial + travel,
            gather=work.gather,
            fft=work.fft,
            handling=work.handling,
            device=work.device,
            travel=travel,
            scheduling=parts["scheduling"],
            bound=max(parts, key=parts.__getitem__),
            share=1.0 if runs_on_gpu and stage.round_ is not None else 0.0,
        )

    def _runs_on_gpu(self, stage: Stage) -> bool:
        """Return whether GPUs do a stage; an exchange alone is theirs if there are any."""
        round_ = stage.round_
        if not self.devices or round_ is None:
            return bool(self.devices)
        if self.device != "gpu" and round_.source.largest * self.itemsize < LEAST_NBYTES:
            return False
        return all(tile_plans(round_, self.dtype, device.nbytes) for device in self.devices)

    def _work_on_gpu(self, stage: Stage) -> _Work:
        """Return the work of a stage that GPUs do."""
        round_ = stage.round_
        exchange = stage.exchange
        blocks = max(1, exchange.target.blocks)
        gather = 0.0
        handling = 0.0
        if not stage.is_done_before:
            gather = self.gather(stage, self.traffic(stage))
            handling = self.handling(exchange.shape, NO_ROUND)
        device = 0.0
        if round_ is not None:
            order: tuple[int, ...] = ()
            if stage.writes is not None:
                order = stage.writes.place(round_.target).written
            device = self.of_device(round_, order)
            read = self.read(exchange, round_)
            if read is not None:
                gather = 0.0
                device = max(device, read)
        # All threads gather a block for a device, which works on the one before meanwhile.
        gathered = self.blocks_per_lane(blocks, 1) * gather / blocks / self.machine.threads
        computed = self.blocks_per_lane(blocks, len(self.devices)) * device
        return _Work(
            gather=gather,
            fft=0.0,
            handling=handling,
            device=device,
            seconds=max(computed, gathered) + min(device, gathered),
        )

    def _work_on_cpu(self, stage: Stage) -> _Work:
        """Return the work of a stage that CPU threads do."""
        exchange = stage.exchange
        blocks = max(1, exchange.target.blocks)
        traffic = self.traffic(stage)
        gather = 0.0
        fft = 0.0
        handling = 0.0
        if not stage.is_done_before:
            gather = self.gather(stage, traffic)
            handling = self.handling(exchange.shape, traffic)
        if stage.round_ is not None:
            fft = self.transform(stage, traffic)
            if traffic.stored:
                # Results are copied from tiles in a cache.
                gather += stage.result_nbytes / (2 * self.machine.profile.copy)
        blocks_in_turn = self.blocks_per_lane(blocks, self.lanes(blocks))
        return _Work(
            gather=gather,
            fft=fft,
            handling=handling,
            device=0.0,
            seconds=blocks_in_turn * (gather + fft) / blocks,
        )

    def _scheduling(self, shape: ExchangeShape, tasks: int) -> tuple[float, float]:
        """Return the scheduler's seconds beside the work on blocks, and those before it."""
        profile = self.machine.profile
        pairs = shape.blocks_in * shape.blocks_out / max(1, shape.groups) ** 2
        serial = pairs * profile.pair
        if not shape.local:
            serial += profile.exchange
        if self.machine.workers == 1:
            return 0.0, serial
        if not shape.local:
            messages = shape.blocks_in if shuffled(shape) else shape.shards
            serial += messages * profile.sent_shard
        return tasks * profile.sent_task, serial

    def _travel(self, exchange: Exchange) -> float:
        """Return the seconds of the network or the disk for an exchange."""
        profile = self.machine.profile
        workers = self.machine.workers
        if exchange.shape.local:
            return 0.0
        if self.storage == "disk":
            return exchange.shard_nbytes * (1 / profile.write + 1 / profile.read)
        if workers == 1:
            return 0.0
        return exchange.shard_nbytes * (1 - 1 / workers) / (workers * profile.network)
