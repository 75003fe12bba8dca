"""Memory forecast of a plan: a walk over its stages that adds what is allocated and freed.

In memory, the walk follows all blocks of a process::

    blocks before   |------------|
    new blocks          |------------ ...  are the next stage's blocks before
    work                |----|             blocks and tiles of the running tasks

With scratch files it follows one task, because blocks between rounds are in files. Each thread runs
one of these tasks at a time.
"""

import math
from dataclasses import dataclass

import numpy as np

from dask_bigfft.planner.library_memory import library_bytes
from dask_bigfft.planner.merging import UNEVEN, merging
from dask_bigfft.planner.passes import tile_plans
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.request import Machine
from dask_bigfft.planner.rows import BY_CALLER, DECODED
from dask_bigfft.planner.seconds import Model, shuffled
from dask_bigfft.planner.stages import Exchange, Stage
from dask_bigfft.tiles.way import Way
from dask_bigfft.transforms.layout import Layout, admitted, tile_bytes_of
from dask_bigfft.transforms.rounds import Round


class MemoryWalk:
    """Bytes that are allocated while a plan runs, and the peak of their sum.

    >>> memory = MemoryWalk()
    >>> memory.allocate("blocks", 10)
    >>> memory.allocate("tiles", 2)
    >>> memory.free("tiles")
    >>> memory.allocate("blocks", 5)
    >>> memory.peak
    12
    """

    def __init__(self) -> None:
        self._live: dict[str, float] = {}
        #: Largest sum of bytes so far.
        self.peak: float = 0

    def allocate(self, name: str, nbytes: float) -> None:
        """Allocate bytes under a name, in place of those that have the name."""
        self._live[name] = nbytes
        self.peak = max(self.peak, sum(self._live.values()))

    def free(self, *names: str) -> None:
        """Free the bytes of some names, or without any all bytes."""
        for name in names or tuple(self._live):
            self._live.pop(name, None)


#: Maximum tiles of a task in memory: input and result of an FFT, and copies of both for checks.
TILES = 4

#: Maximum arrays as large as a kernel on the way to its spectrum.
KERNEL_COPIES = 4

#: Bytes of shards that are packed at a time for scratch files, while the previous ones are written.
PACKED = 8 << 20

#: Maximum bytes of a thread's chunk codecs, which take half a chunk. Measured with
#: Zarr's default compression at both ends: 4 to 6 MiB beside blocks and chunks.
CODEC = 8 << 20


def _stored(layout: Layout, itemsize: int) -> int:
    """Return the bytes of all blocks of a layout, in the arena's buffers of whole pages."""
    largest = layout.largest * itemsize
    granule = (2 << 20) if largest >= (8 << 20) else (64 << 10)
    spare = -largest % granule if largest >= (512 << 10) else 0
    return layout.size * itemsize + layout.blocks * spare


def peak_host(plan: Plan, model: Model) -> int:
    """Return the peak bytes of host memory per process, without those of imports.

    `model` is the cost model of the plan (`model_of`).

    In memory, the blocks before and after an exchange exist together, because of its barrier. Every
    thread also holds the result of its task, and tiles. A round in place only adds its tiles.
    Between processes shards in flight count once more, and blocks are spread unevenly. A shuffle
    limits its shards in memory and spills the others to files. With scratch files only the data of
    the running tasks are in memory. FFT libraries copy long lines and cache roots of unity.
    """
    blocks = _peak_on_disk(plan, model) if plan.storage == "disk" else _peak_in_memory(plan, model)
    if plan.machine.gpus and plan.device == "gpu":
        return blocks
    itemsize = plan.spec.work_dtype.itemsize
    return blocks + library_bytes(
        plan.kernel,
        plan.rounds,
        itemsize,
        plan.machine.threads,
    )


# --- work of a task -------------------------------------------------------------------------


def _tiles_nbytes(plan: Plan) -> int:
    """Return the bytes of the tiles that a task works on at a time."""
    return TILES * tile_bytes_of(plan.machine.threads)


def _work_nbytes(
    plan: Plan,
    model: Model,
    stage: Stage,
    way: Way | None = None,
) -> int:
    """Return the bytes that a task takes beside its block and the result of its round.

    They are those of tiles, or of copies of a block that is not cut; a block without copies counts
    as its tiles. Rows of tiles in memory are padded, by up to a quarter; those on disk are not. The
    spectrum of a small kernel is computed for a tile. Between its steps are arrays as large as the
    kernel or the tile.

    Parameters
    ----------
    plan, model
        The plan, and its cost model.
    stage : Stage
        Exchange and round of the task.
    way : Way, optional
        Way of the block through the round; the default is the one of the cost model.
    """
    block = stage.exchange.block_nbytes
    padded = block if plan.storage == "disk" else block * 5 // 4  # rows of tiles are padded
    tiles = min(padded, _tiles_nbytes(plan))
    round_ = stage.round_
    if round_ is None:
        return tiles
    if plan.machine.holding and not (round_.takes_real or round_.makes_real):
        return tiles  # a GPU transforms its own blocks in place
    if way is None:
        way = model.way(stage)
    if way.tiling is not None:
        kernel = _kernel_nbytes(plan, round_)
        return tiles + max(tiles, kernel) if kernel else tiles
    copies = _uncut_nbytes(
        plan,
        stage,
        round_,
        way,
        is_repeated=model.repeats(round_),
    )
    return copies if copies else tiles


def _uncut_nbytes(
    plan: Plan,
    stage: Stage,
    round_: Round,
    way: Way,
    is_repeated: bool,
) -> int:
    """Return the bytes of the copies of a block that is not cut into tiles."""
    result_itemsize = np.dtype(stage.result_dtype).itemsize
    nbytes = way.copied_nbytes(
        stage.exchange.block_nbytes,
        round_.without_windows.target.largest * result_itemsize,
        is_repeated=is_repeated,
    )
    kernel = _kernel_nbytes(plan, round_)
    has_half_between = any(step.kind != step.last_kind for step in round_.steps)
    if not kernel and not has_half_between:
        return nbytes
    spectrum = round_.spectrum.largest * plan.spec.work_dtype.itemsize
    if has_half_between:
        nbytes += spectrum  # half a spectrum between real values before and after the round
    if kernel:
        nbytes += max(kernel, 2 * spectrum)
    return nbytes


def _kernel_nbytes(plan: Plan, round_: Round) -> int:
    """Return the bytes of arrays as large as the small kernel by whose spectrum a round multiplies.

    Tasks compute its spectrum. The number is 0 without such a kernel.
    """
    factor = plan.spec.factor
    if not round_.multiplies or factor is None or factor.role != "kernel":
        return 0
    return KERNEL_COPIES * math.prod(factor.shape) * plan.spec.work_dtype.itemsize


def _writing_nbytes(plan: Plan) -> int:
    """Return the bytes beside a chunk of the result while a task writes it."""
    chunk = math.prod(max(cut, default=0) for cut in plan.chunks) * plan.spec.out_dtype.itemsize
    has_ends = any(cut[-1:] != cut[:1] for cut in plan.chunks)
    return plan.writing.nbytes(chunk, has_ends)


def arena_nbytes(plan: Plan) -> int:
    """Return the bytes that the arena may keep while a plan with scratch files runs.

    They are those of the forecast, without what tasks after the plan take beside its result. Such
    tasks have ordinary memory, which would be added to idle memory of the arena.
    """
    nbytes = plan.expected.peak_host
    if plan.writing == BY_CALLER:
        return nbytes
    return nbytes - plan.machine.threads * _writing_nbytes(plan)


# --- blocks in memory ----------------------------------------------------------------------


@dataclass(frozen=True)
class _StageMemory:
    """Bytes of the blocks and tiles of an exchange and the round that follows it.

    Parameters
    ----------
    gathered, results : int
        All blocks after the exchange, and after the round.
    blocks, threads : int
        Number of blocks, and of tasks at a time.
    share : float
        Largest share of the blocks in one process.
    work : int
        Tiles and copies of all running tasks.
    """

    gathered: int
    results: int
    blocks: int
    threads: int
    share: float
    work: int

    @property
    def largest(self) -> int:
        """Bytes of all blocks after the exchange or after the round, whichever are more."""
        return max(self.results, self.gathered)


def _stage_memory(plan: Plan, model: Model, stage: Stage) -> _StageMemory:
    """Return the bytes of an exchange and its round."""
    machine = plan.machine
    exchange = stage.exchange
    blocks = exchange.target.blocks
    threads = min(machine.threads, blocks)
    if machine.gpus and plan.device == "gpu":  # GPUs admit only a few tasks
        threads = min(threads, admitted(exchange.block_nbytes) * machine.gpus)
    # A process has whole blocks: with few of them, more than its even share.
    own_blocks = -(-blocks // machine.workers)
    return _StageMemory(
        gathered=_stored(exchange.target, np.dtype(exchange.dtype).itemsize),
        results=_stored(stage.target, np.dtype(stage.result_dtype).itemsize),
        blocks=blocks,
        threads=threads,
        share=own_blocks / max(1, blocks),
        work=threads * _work_nbytes(plan, model, stage),
    )


def _peak_in_memory(plan: Plan, model: Model) -> int:
    """Return the peak bytes of blocks, tiles and shards."""
    memory = MemoryWalk()
    before = _stored(plan.source, np.dtype(plan.spec.dtype).itemsize)
    stages = plan.forecast_stages
    for number, stage in enumerate(stages):
        memory.free()
        following = stages[number + 1] if number + 1 < len(stages) else None
        if following is None and plan.writing != BY_CALLER:
            result_blocks = math.prod(map(len, plan.chunks))
            writers = min(plan.machine.threads, result_blocks)
            memory.allocate("chunks that are written", writers * _writing_nbytes(plan))
        if plan.inside and stage.round_ is not None:  # rounds work inside the input
            memory.allocate("blocks", before)
            continue
        nbytes = _stage_memory(plan, model, stage)
        if stage.works_in_shared:
            memory.allocate("blocks", before)
            memory.allocate("work", nbytes.work)
        elif _keeps_blocks(
            plan,
            model,
            stage,
            is_first=number == 0,
        ):
            memory.allocate("blocks", nbytes.share * before)
            if plan.machine.holding:  # as large as the block at most
                memory.allocate("work area of cuFFT", nbytes.share * before)
            memory.allocate("work", nbytes.work)
        else:
            _walk_to_new_blocks(
                plan,
                stage,
                following,
                before,
                nbytes,
                memory,
            )
            before = nbytes.results
    return math.ceil(memory.peak + operand_bytes(plan)) + merging(plan).nbytes


def _keeps_blocks(
    plan: Plan,
    model: Model,
    stage: Stage,
    is_first: bool,
) -> bool:
    """Return whether blocks before an exchange stay where they are until after its round.

    An exchange without a round keeps blocks that the rounds before it wrote inside the input. The
    first round may write its results into the input blocks that it reads.
    """
    if not stage.exchange.is_identity:
        return False
    if stage.round_ is None:
        return plan.inside
    return is_first and _overwrites_input(plan, model, stage)


def _overwrites_input(plan: Plan, model: Model, stage: Stage) -> bool:
    """Return whether the first round writes its results into the input blocks that it reads."""
    if not plan.overwrite or plan.verify != "none" or plan.device == "hybrid":
        return False
    if plan.shares or stage.writes is not None:
        return False
    if not model.way(stage).memory.keeps_form:
        return False
    return plan.device == "cpu" or _fits_gpus_in_place(plan, stage)


def _fits_gpus_in_place(plan: Plan, stage: Stage) -> bool:
    """Return whether all GPUs have the memory for tiles of a round that works in place."""
    assert stage.round_ is not None
    for device in plan.machine.devices:
        nbytes = plan.device_memory_limit or device.nbytes
        if not tile_plans(
            stage.round_,
            stage.exchange.dtype,
            nbytes,
            plan.settings,
            inside=True,
        ):
            return False
    return True


def _walk_to_new_blocks(
    plan: Plan,
    stage: Stage,
    following: Stage | None,
    before: int,
    nbytes: _StageMemory,
    memory: MemoryWalk,
) -> None:
    """Follow an exchange and a round whose results have memory of their own.

    Parameters
    ----------
    plan : Plan
        The plan.
    stage, following : Stage
        The exchange and its round, and the stage after it, if there is one.
    before : int
        Bytes of all blocks before the exchange.
    nbytes : _StageMemory
        Bytes of its blocks and tiles.
    memory : MemoryWalk
        The walk.
    """
    machine = plan.machine
    exchange = stage.exchange
    memory.allocate("work", nbytes.work)
    if _all_at_once(plan, nbytes.blocks):  # the results are those of the running tasks
        memory.allocate("blocks", before)
        memory.allocate("new blocks", nbytes.results)
        return
    memory.allocate("gathered blocks of tasks", nbytes.threads * exchange.block_nbytes)
    if stage.round_ is not None and (following is None or following.reads is None):
        memory.allocate("results of tasks", nbytes.threads * stage.result_block_nbytes)
    if machine.workers > 1 and not exchange.local:
        _walk_between_processes(
            machine,
            stage,
            before,
            nbytes,
            memory,
            is_last=following is None,
        )
        return
    # Local blocks are replaced one by one. Others wait for the barrier.
    memory.allocate("blocks", 0 if exchange.local else nbytes.share * before)
    memory.allocate("new blocks", nbytes.share * nbytes.largest)


def _walk_between_processes(
    machine: Machine,
    stage: Stage,
    before: int,
    nbytes: _StageMemory,
    memory: MemoryWalk,
    is_last: bool,
) -> None:
    """Follow the blocks and shards of an exchange between processes.

    Parameters
    ----------
    machine : Machine
        The machine.
    stage : Stage
        The exchange and its round.
    before : int
        Bytes of all blocks before the exchange.
    nbytes : _StageMemory
        Bytes of its blocks.
    memory : MemoryWalk
        The walk.
    is_last : bool
        Whether no stage follows, so that the new blocks stay.
    """
    exchange = stage.exchange
    if machine.buffers is not None and shuffled(exchange.shape):
        packed = 2 * exchange.source.largest * exchange.shard_dtype.itemsize
        memory.allocate("packed shards", machine.threads * packed)
        in_flight = min(machine.buffers, nbytes.share * exchange.shard_nbytes)
        memory.allocate("shards in flight", in_flight)
        # Other shards are in files, from which blocks are gathered one by one.
        memory.allocate("new blocks", nbytes.share * nbytes.results if is_last else 0)
        return
    share = min(1.0, nbytes.share * UNEVEN)  # of an uneven distribution
    memory.allocate("blocks", share * before)
    memory.allocate("shards in flight", share * before)
    memory.allocate("new blocks", share * nbytes.largest)


def _all_at_once(plan: Plan, blocks: int) -> bool:
    """Return whether CPU threads of one process work on all blocks of a round at the same time."""
    machine = plan.machine
    if machine.workers > 1 or machine.holding or blocks > machine.threads:
        return False
    if plan.verify != "none":  # a block without checksums is transformed twice and compared
        return False
    return plan.device == "cpu" or (plan.device != "hybrid" and not machine.gpus)


# --- tasks with scratch files --------------------------------------------------------------


def _peak_on_disk(plan: Plan, model: Model) -> int:
    """Return the peak bytes of host memory with scratch files.

    A task first holds what it has read and the block that it makes. Then it holds this block and
    some of its shards, or what writing it takes. A task that assembles a block while shards arrive
    holds the block and some shards, and works in place if possible. A block from another task stays
    in memory all the while. A task that reads an input block holds it twice, or three times where
    chunks are decoded, beside the codecs' memory. It holds it once, beside a few chunks, where the
    array is reopened. Dask's schedulers keep the last result of a task until another one returns.
    """
    input_block = 0
    if not plan.from_rows:
        input_block = plan.source.largest * np.dtype(plan.spec.dtype).itemsize
    memory = MemoryWalk()
    memory.allocate("block", input_block)
    memory.allocate("read or written beside it", _beside(plan, input_block))
    memory.free()
    if plan.merges:
        memory.allocate("neighbours", input_block)
        memory.allocate("block", input_block)
        memory.allocate("shards", min(input_block, 2 * PACKED))
        memory.free()
    block = input_block
    for number, stage in enumerate(plan.forecast_stages):
        _walk_task_on_disk(
            plan,
            model,
            stage,
            number,
            block,
            memory,
        )
        block = stage.result_block_nbytes
    last = max(input_block, plan.result.largest * plan.spec.out_dtype.itemsize)
    tiles = min(last, _tiles_nbytes(plan))
    task = math.ceil(memory.peak) + min(CODEC, plan.stored.decoded // 2)
    tasks = plan.machine.threads * task
    return tasks + last + tiles + _operand_on_disk(plan) + merging(plan).nbytes


def _walk_task_on_disk(
    plan: Plan,
    model: Model,
    stage: Stage,
    number: int,
    block: int,
    memory: MemoryWalk,
) -> None:
    """Follow the task of a stage from the block before it to the written result.

    Nothing is allocated when this returns. Its effect is on the peak of the walk.

    Parameters
    ----------
    plan, model, stage, number
        The plan, its cost model, the stage, and its number.
    block : int
        Bytes of the block before the stage.
    memory : MemoryWalk
        The walk.

    Notes
    -----
    A stage that moves nothing works on a block of another task, except the first one of a plan that
    reads rows. Others gather all shards first, or assemble a block while shards arrive if the plan
    `assembles` blocks, which takes a block less.
    """
    reads_rows = number == 0 and plan.from_rows
    decoding = 0
    if reads_rows and plan.stored.decoded:  # chunks: stored, decoded, and returned
        decoding = 3 * max(DECODED, plan.stored.decoded)
    if not stage.moves and not reads_rows:
        memory.allocate("block of another task", block)
        _walk_gathering(
            plan,
            model,
            stage,
            decoding,
            memory,
        )
    elif plan.assembles:
        in_flight = min(stage.exchange.block_nbytes, _under_way(stage.exchange))
        _walk_assembling(
            plan,
            model,
            stage,
            decoding if reads_rows else in_flight,
            memory,
        )
    else:
        shard_nbytes = stage.exchange.target.largest * stage.exchange.shard_dtype.itemsize
        memory.allocate("shards", shard_nbytes)
        _walk_gathering(
            plan,
            model,
            stage,
            decoding,
            memory,
        )
        memory.free("shards")
    memory.allocate("written beside the result", _written_nbytes(plan, number))
    memory.free()


def _walk_gathering(
    plan: Plan,
    model: Model,
    stage: Stage,
    decoding: int,
    memory: MemoryWalk,
) -> None:
    """Follow a task that has its whole input before it begins a block, up to its result.

    The work of the round is the way's (`_work_nbytes`), and decoding is over when it begins. If the
    round changes the shape or the type of blocks, the arena has idle memory of an earlier block
    before it, which is too small or too large for a result.
    """
    work = _work_nbytes(plan, model, stage)
    idle = 0
    if stage.round_ is not None and not model.way(stage).memory.keeps_form:
        idle = stage.exchange.block_nbytes
    memory.allocate("result", stage.result_block_nbytes)
    memory.allocate("work, decoded chunks or idle memory", max(work, decoding, idle))
    memory.free("work, decoded chunks or idle memory")


def _walk_assembling(
    plan: Plan,
    model: Model,
    stage: Stage,
    in_flight: int,
    memory: MemoryWalk,
) -> None:
    """Follow a task that assembles a block while shards arrive from files, up to its result.

    Parameters
    ----------
    plan, model, stage
        The plan, its cost model, and the stage of the task.
    in_flight : int
        Bytes of the shards, or of chunks that are decoded.
    memory : MemoryWalk
        The walk.
    """
    memory.allocate("assembled block", stage.exchange.block_nbytes)
    memory.allocate("shards", in_flight)
    memory.free("shards")
    if stage.round_ is None:
        memory.allocate("work", _work_nbytes(plan, model, stage))
    else:
        way = model.way_of_assembled(stage)
        work = _work_nbytes(
            plan,
            model,
            stage,
            way,
        )
        if not way.memory.is_overwritten:
            work += stage.result_block_nbytes
        memory.allocate("work", work)
    memory.free("work", "assembled block")
    memory.allocate("result", stage.result_block_nbytes)


def _under_way(exchange: Exchange) -> int:
    """Return the bytes of shards that a task packs and writes, or reads and places, at a time."""
    images = 1 if exchange.mirror is None else 2
    return 2 * max(PACKED, images * exchange.shape.largest * exchange.shard_dtype.itemsize)


def _written_nbytes(plan: Plan, number: int) -> int:
    """Return the bytes beside the result of a round while it is written to files."""
    stages = plan.forecast_stages
    block_nbytes = stages[number].result_block_nbytes
    if number + 1 < len(stages):
        following = stages[number + 1]
        return min(block_nbytes, _under_way(following.exchange)) if following.moves else 0
    cut_nbytes = 0 if plan.outgoing is None else block_nbytes
    return max(cut_nbytes, _writing_nbytes(plan))


def _beside(plan: Plan, block: int) -> int:
    """Return the bytes beside an input block while it is read or its shards are written."""
    if not plan.reopened:
        return 2 * block if plan.stored.decoded else block
    units = plan.stored.read_beside(plan.spec.shape)
    reading = block if units is None else units
    return max(reading, min(block, _under_way(plan.stages[0].exchange)))


def operand_bytes(plan: Plan) -> int:
    """Return the bytes of the operands of products, which are made twice as large on the way."""
    return 2 * sum(operand.nbytes for operand in plan.operands)


def _operand_on_disk(plan: Plan) -> int:
    """Return the bytes of operands in memory while blocks between rounds are in files.

    The spectrum of a filter is in memory as a whole, because its blocks are waited for, and so is a
    lazy array each of whose blocks multiplies several others. Of other lazy arrays whose blocks are
    exchanged, the tasks read a block each, and hold its shards beside it.
    """
    nbytes = 0
    for operand in plan.operands:
        if operand.plan is None or operand.factor is None:
            nbytes += operand.nbytes
            continue
        if plan.rounds[operand.stage].spectrum.blocks > operand.plan.result.blocks:
            nbytes += operand.nbytes
        itemsize = np.dtype(operand.factor.dtype).itemsize
        if operand.plan.rounds:
            itemsize = plan.spec.work_dtype.itemsize
        block = max(operand.plan.source.largest, operand.plan.result.largest) * itemsize
        nbytes += 2 * plan.machine.threads * block
    return nbytes


def model_of(plan: Plan) -> Model:
    """Return the cost model of a plan's machine and kernel."""
    return Model(
        machine=plan.machine,
        kernel=plan.kernel,
        dtype=plan.spec.work_dtype.name,
        storage=plan.storage,
        verify=plan.verify,
        device=plan.device,
    )
