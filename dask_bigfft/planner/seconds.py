"""The cost model: seconds of every round and of the exchange before it, from a profile.

A stage has counts (bytes copied, runs, flops, tiles, shards, tasks), and each count has a price in
the profile. The sum is linear in the prices, so that calibration can fit them to whole transforms.

Threads work on blocks in parallel, but their Python code is serial, because of the GIL. On a
cluster the scheduler works at the same time, and the longer of both counts. Network and scratch
files are added. A round on a GPU takes the longer of bus and FFTs, while threads gather the next
block.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Literal

import numpy as np

from dask_bigfft.planner.passes import tile_plans
from dask_bigfft.planner.plan_data import (
    Machine,
    RoundForecast,
    SharedAxis,
    SharedLayouts,
    no_shared_layouts,
)
from dask_bigfft.planner.profile import DeviceProfile, LibrarySpeeds
from dask_bigfft.planner.tile_plan import NARROWEST_NBYTES
from dask_bigfft.tiles.program import program_of
from dask_bigfft.transforms.layout import Layout, tile_bytes_of, tiling
from dask_bigfft.transforms.rounds import ExchangeShape, Place, Round, exchange_shape
from dask_bigfft.transforms.steps import Step

#: Minimum shards of a connected group for which a shuffle between processes is faster than tasks.
SHUFFLE_SHARDS = 64


def shuffled(shape: ExchangeShape) -> bool:
    """Return whether an exchange between processes is large enough for a shuffle to pay."""
    return shape.shards >= SHUFFLE_SHARDS * shape.groups


def step_flops(round_: Round) -> Iterator[tuple[Step, float]]:
    """Yield each step with its floating point operations: 5 n log2 n for n complex values."""
    halved = min(round_.source.size, round_.target.size)
    whole = max(round_.source.size, round_.target.size)
    for step in round_.steps:
        passes = 2 if step.convolve is not None else 1
        elements = halved if step.kind == "c2c" else whole / 2
        yield step, passes * 5 * elements * math.log2(max(step.length, 2))


def flops(round_: Round) -> float:
    """Return the floating point operations of a round's FFTs."""
    return sum(count for _, count in step_flops(round_))


def is_halved(round_: Round) -> bool:
    """Return whether a round makes half a spectrum of real numbers."""
    return any(step.kind == "r2c" for step in round_.steps)


def changes(round_: Round) -> bool:
    """Return whether blocks change their shape or type in a round."""
    if any(step.kind != "c2c" for step in round_.steps):
        return True
    return round_.source.full_shape != round_.target.full_shape


def _begins_with_call(round_: Round) -> bool:
    """Return whether calls of the FFT library come before any other operation of a round."""
    program = program_of(round_)
    return program.begins_with_all or program.begins_with_r2c


def _calls_write_results(round_: Round, tile_is_contiguous: bool) -> bool:
    """Return whether calls of the FFT library can write the results of a round to their place."""
    if any(step.kind == "c2r" for step in round_.steps):
        return True
    takes_place = tile_is_contiguous or program_of(round_).is_one_call
    return takes_place and _begins_with_call(round_)


@dataclass(frozen=True)
class Traffic:
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
    tiles : int
        Tiles of a block: 1 where it is not cut.
    """

    read: Literal["none", "block", "shards", "view"]
    stored: bool
    direct: bool
    tiles: int


#: Copies of an exchange that no round follows.
NO_ROUND = Traffic("shards", stored=False, direct=False, tiles=0)


@dataclass(frozen=True)
class Stage:
    """An exchange and the round that follows it.

    Parameters
    ----------
    before : Layout
        Blocks before the exchange.
    round_ : Round or None
        The round; None for the exchange alone.
    after : Layout
        Blocks after the exchange: the round's source, or those of the result.
    source_dtype, dtype, result_dtype : str
        Dtype of the blocks before the exchange, after it, and after the round.
    reads, writes : SharedAxis or None
        Shared buffer of the exchange, which then copies nothing, and of the blocks after the
        round.
    inside : bool
        Whether the round's results replace in memory what it reads.
    moves : bool
        Whether shards go through scratch files, with storage ``"disk"``.
    """

    before: Layout
    round_: Round | None
    after: Layout
    source_dtype: str
    dtype: str
    result_dtype: str
    reads: SharedAxis | None = None
    writes: SharedAxis | None = None
    inside: bool = False
    moves: bool = True

    @property
    def shape(self) -> ExchangeShape:
        """Fan-in, C, W and groups of the exchange."""
        return exchange_shape(self.before, self.after)

    @property
    def reads_one_array(self) -> bool:
        """True if the round finds each block in one array: an input block or a shared buffer."""
        if self.reads is not None:
            return True
        return self.before == self.after and self.source_dtype == self.dtype

    @property
    def is_done_before(self) -> bool:
        """True for an exchange without a round whose blocks were written to their place."""
        return self.reads is not None and self.round_ is None

    @property
    def nbytes(self) -> int:
        """Bytes of all blocks after the exchange."""
        return self.after.size * np.dtype(self.dtype).itemsize

    @property
    def result_nbytes(self) -> int:
        """Bytes of all blocks after the round."""
        layout = self.after if self.round_ is None else self.round_.target
        return layout.size * np.dtype(self.result_dtype).itemsize

    @property
    def result_place(self) -> Place:
        """Position of a block after the round in its shared buffer, or in memory of its own."""
        if self.inside and self.reads is not None:
            return self.reads.place(self.after)
        layout = self.after if self.round_ is None else self.round_.target
        if self.writes is not None:
            return self.writes.place(layout)
        shape = layout.full_shape
        return Place(shape, tuple(slice(n) for n in shape), tuple(range(len(shape))))


@dataclass(frozen=True)
class _Work:
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

    def tiles(self, round_: Round, dtype: str, result_dtype: str) -> tuple[int, int] | None:
        """Return the dimension and the width of a round's tiles; None where blocks are not cut.

        The dtypes are those of the blocks before and after the round.
        """
        shape = round_.source.full_shape
        read = math.prod(shape) * np.dtype(dtype).itemsize
        written = math.prod(round_.target.full_shape) * np.dtype(result_dtype).itemsize
        fixed = {round_.dim(step) for step in round_.steps}
        has_new_tiles = changes(round_) or dtype != result_dtype
        if self.library.supports_out and is_halved(round_) and not round_.rolls:
            has_new_tiles = False  # spectra are written to the result
        return tiling(shape, fixed, max(read, written, 1), self.machine.threads, has_new_tiles)

    def tiles_of(self, stage: Stage) -> tuple[int, int] | None:
        """Return the dimension and the width of a stage's tiles; None where blocks are not cut."""
        if stage.round_ is None:
            return None
        return self.tiles(stage.round_, stage.dtype, stage.result_dtype)

    def flow(self, stage: Stage) -> Traffic:
        """Return the copies of a block; `kernels.loop.CPUExecutor` makes them."""
        round_ = stage.round_
        if round_ is None:
            return NO_ROUND
        tiles = self.tiles_of(stage)
        shape = round_.target.full_shape
        contiguous = stage.result_place.is_contiguous(shape)
        tile_shape = shape
        tile_count = 1
        if tiles is not None:
            dim, width = tiles
            contiguous = contiguous and math.prod(shape[:dim]) == 1
            tile_shape = (*shape[:dim], min(width, shape[dim]), *shape[dim + 1 :])
            tile_count = -(-round_.source.full_shape[dim] // width)
        if self._reads_in_place(stage, round_, contiguous, tiles is not None):
            if program_of(round_).is_one_call and len(round_.steps) == 1:
                tile_count = 1
            return Traffic(read="none", stored=False, direct=True, tiles=tile_count)
        tile_is_contiguous = stage.result_place.is_contiguous(tile_shape)
        writes_in_place = self._writes_in_place(stage, round_, contiguous, tile_is_contiguous)
        read: Literal["block", "shards", "view"] = "shards"
        if stage.reads is not None:
            read = "view"
        elif stage.before == round_.source:
            read = "block"
        return Traffic(
            read=read,
            stored=not writes_in_place,
            direct=False,
            tiles=tile_count,
        )

    def _reads_in_place(
        self,
        stage: Stage,
        round_: Round,
        contiguous: bool,
        tiled: bool,
    ) -> bool:
        """Return whether the FFTs of a stage's round read blocks in place.

        `contiguous` is true if the result and all its tiles are, `tiled` if the block is cut.
        """
        if self.verify != "none" or round_.rolls or not stage.reads_one_array:
            return False
        is_one_call = program_of(round_).is_one_call
        if not contiguous and not is_one_call:
            return False  # other operations need contiguous tiles
        if stage.inside and contiguous and (is_one_call or not tiled):
            return True  # any library overwrites a block
        return self.library.supports_out and (_begins_with_call(round_) or is_one_call)

    def _writes_in_place(
        self,
        stage: Stage,
        round_: Round,
        contiguous: bool,
        tile_is_contiguous: bool,
    ) -> bool:
        """Return whether FFTs that read copies of tiles leave the result in its place.

        `contiguous` is true if the result and all its tiles are, however wide.
        """
        is_verified = self.verify != "none"
        if round_.rolls or (is_verified and stage.inside):
            return False
        keeps_shape = stage.dtype == stage.result_dtype and not changes(round_)
        if keeps_shape and contiguous and not stage.inside:
            return True  # the copy is in the result's place
        if not self.library.supports_out or (is_verified and not contiguous):
            return False
        return _calls_write_results(round_, tile_is_contiguous)

    def gather(self, stage: Stage, flow: Traffic) -> float:
        """Return the seconds of gathering all blocks of an exchange."""
        shape = stage.shape
        seconds = 0.0
        if flow.read in ("shards", "view"):
            row = shape.width
            tiles = self.tiles_of(stage)
            if tiles is not None:
                dim, width = tiles
                row_of_tile = width * math.prod(stage.after.full_shape[dim + 1 :])
                row = min(row, max(1, row_of_tile))
            row_nbytes = row * np.dtype(stage.dtype).itemsize
            seconds = self._copied(stage.nbytes, row_nbytes, moved=not shape.local)
        elif flow.read == "block":
            seconds = self._copied(stage.nbytes, stage.nbytes)
        if self.storage == "disk" and not shape.local:
            seconds += shape.shards * DISK_SHARD
        return seconds

    def transform(self, stage: Stage, flow: Traffic) -> float:
        """Return the seconds of a round's FFTs on all blocks, with twiddles and checks."""
        round_ = stage.round_
        assert round_ is not None
        profile = self.machine.profile
        source = round_.source
        target = round_.target
        block_nbytes = max(source.largest, target.largest) * self.itemsize
        is_whole = flow.direct or self.tiles_of(stage) is None
        if is_whole and block_nbytes > tile_bytes_of(self.machine.threads):
            speed = self.library.large_flops
        else:
            speed = self.library.flops
        inner_threads = self.machine.threads // self.lanes(source.blocks)
        seconds = flops(round_) / speed
        seconds /= 1 + INNER_THREAD * (inner_threads - 1)
        passes = sum(step.factors for step in round_.steps)
        seconds += passes * target.size * self.itemsize / (2 * profile.copy)
        checked_nbytes = (source.size + target.size) * self.itemsize
        if self.verify == "energy":
            seconds += checked_nbytes / profile.energy
        elif self.verify == "checksum":
            seconds += checked_nbytes / profile.checksum
        return seconds

    def handling(self, shape: ExchangeShape, flow: Traffic) -> float:
        """Return the seconds of Python for all shards and tiles of an exchange and its round."""
        profile = self.machine.profile
        gathers_shards = flow.read == "shards" and self.storage != "disk"
        shards = shape.shards if gathers_shards else shape.blocks_out
        tiles = shape.blocks_out * flow.tiles
        return shards * profile.shard + tiles * profile.tile

    # --- on a device -------------------------------------------------------------------------

    def of_device(self, round_: Round, order: tuple[int, ...] = ()) -> float:
        """Return the seconds of the slowest device for each of many blocks of a round.

        Both directions of the bus and the FFTs of different tiles overlap. `order` has the
        dimensions in the order of writing, if that is another one.
        """
        return max(self._of_device(round_, device, order) for device in self.devices)

    def _of_device(self, round_: Round, device: DeviceProfile, order: tuple[int, ...]) -> float:
        """Return the seconds of a device for each of many blocks of a round."""
        parts = tile_plans(round_, self.dtype, device.nbytes, order=order)
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
        for _, count in step_flops(round_):
            kernels += max(count / blocks / device.flops, 4 * largest_nbytes / device.memory)
        return max(calls, bus, kernels)

    def read(self, shape: ExchangeShape, nbytes: float) -> float | None:
        """Return the seconds of a GPU's direct reads of a block; None if threads gather it."""
        if self.storage == "disk" or self.machine.workers > 1:
            return None
        row_nbytes = shape.width * self.itemsize
        if row_nbytes < NARROWEST_NBYTES:
            return None
        fraction = 1.0 if shape.local else SHARDS
        runs = nbytes / row_nbytes
        return max(
            nbytes / device.h2d / fraction + runs * device.run * BY_KERNEL
            for device in self.devices
        )

    # --- stages ------------------------------------------------------------------------------

    def stage(self, stage: Stage, number: int = 1) -> RoundForecast:
        """Return the forecast of a stage, whose round has a number (from 1).

        Candidates of a search have many stages in common: each is worked out once.
        """
        if stage not in self._stages:
            self._stages[stage] = self._stage(stage, number)
        expected = self._stages[stage]
        return expected if expected.index == number else replace(expected, index=number)

    def _stage(self, stage: Stage, number: int) -> RoundForecast:
        """Return the forecast of a stage."""
        shape = stage.shape
        workers = self.machine.workers
        blocks = max(1, stage.after.blocks)
        runs_on_gpu = self._runs_on_gpu(stage)
        work = self._work_on_gpu(stage) if runs_on_gpu else self._work_on_cpu(stage)
        tasks = shape.blocks_out + (0 if shape.local else shape.groups)
        python = (work.handling + tasks * self.machine.profile.task) / workers
        scheduled, serial = self._scheduling(shape, tasks)
        travel = 0.0
        if stage.moves or self.storage != "disk":
            travel = self._travel(shape, stage.after.size * self.itemsize)
        lanes = self.lanes(blocks) * workers
        parts = {
            "gathering": work.gather / lanes,
            "FFTs": work.fft / lanes,
            "the bus": self.blocks_per_lane(blocks, len(self.devices)) * work.device,
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
            bound=max(parts, key=lambda name: parts[name]),
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
        blocks = max(1, stage.after.blocks)
        gather = 0.0
        handling = 0.0
        if not stage.is_done_before:
            gather = self.gather(stage, self.flow(stage))
            handling = self.handling(stage.shape, NO_ROUND)
        device = 0.0
        if round_ is not None:
            order: tuple[int, ...] = ()
            if stage.writes is not None:
                order = stage.writes.place(round_.target).written
            device = self.of_device(round_, order)
            read = self.read(stage.shape, stage.after.size * self.itemsize / blocks)
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
        blocks = max(1, stage.after.blocks)
        flow = self.flow(stage)
        gather = 0.0
        fft = 0.0
        handling = 0.0
        if not stage.is_done_before:
            gather = self.gather(stage, flow)
            handling = self.handling(stage.shape, flow)
        if stage.round_ is not None:
            fft = self.transform(stage, flow)
            if flow.stored:
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

    def _travel(self, shape: ExchangeShape, nbytes: int) -> float:
        """Return the seconds of the network or the disk for an exchange."""
        profile = self.machine.profile
        workers = self.machine.workers
        if shape.local:
            return 0.0
        if self.storage == "disk":
            return nbytes * (1 / profile.write + 1 / profile.read)
        if workers == 1:
            return 0.0
        return nbytes * (1 - 1 / workers) / (workers * profile.network)

    # --- whole plans -------------------------------------------------------------------------

    def route(
        self,
        source: Layout,
        rounds: Sequence[Round],
        result: Layout | None,
        dtypes: Sequence[str],
        moves: Sequence[bool],
        shared_layouts: SharedLayouts | None = None,
    ) -> tuple[RoundForecast, ...]:
        """Return the forecast of rounds and the exchanges between them.

        Parameters
        ----------
        source, result : Layout
            Blocks of the input and of the result; None if the last round makes the result.
        rounds : sequence of Round
            In order.
        dtypes : sequence of str
            Dtype of the input, of the blocks before and after each round, and of the result.
        moves : sequence of bool
            For each exchange, whether shards go through scratch files, with storage ``"disk"``.
        shared_layouts : SharedLayouts, optional
            Shared buffers of blocks.
        """
        count = len(rounds)
        shared_layouts = shared_layouts or no_shared_layouts(count + 1, count)
        shared = [*shared_layouts.exchanges, None]
        stages: list[Stage] = []
        before = source
        for number, round_ in enumerate(rounds):
            writes = shared[number + 1]
            if writes is not None and writes.home != number + 1:
                writes = None
            stage = Stage(
                before,
                round_,
                round_.source,
                source_dtype=dtypes[2 * number],
                dtype=dtypes[2 * number + 1],
                result_dtype=dtypes[2 * number + 2],
                reads=shared[number],
                writes=writes,
                inside=shared_layouts.inside[number] is not None,
                moves=moves[number],
            )
            stages.append(stage)
            before = round_.target
        if result is not None:
            stage = Stage(
                before,
                None,
                result,
                source_dtype=dtypes[2 * count],
                dtype=dtypes[2 * count + 1],
                result_dtype=dtypes[2 * count + 1],
                reads=shared[count],
                moves=moves[count],
            )
            stages.append(stage)
        return tuple(self.stage(stage, number) for number, stage in enumerate(stages, 1))
