"""Memory forecast of a plan: a walk over its stages that adds what is allocated and freed.

In memory, the walk follows all blocks of a process::

    blocks before   |------------|
    new blocks          |------------ ...  are the next stage's blocks before
    work                |----|             blocks and tiles of the running tasks

With scratch files it follows one task, because blocks between rounds are in files. Each thread runs
one of these tasks at a time.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dask_bigfft.planner.merging import UNEVEN, merging
from dask_bigfft.planner.passes import tile_plans
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.rows import BY_CALLER, DECODED
from dask_bigfft.planner.seconds import Model, shuffled
from dask_bigfft.planner.stages import Exchange, Stage
from dask_bigfft.transforms.factors import factorize
from dask_bigfft.transforms.layout import LONG_BYTES, Layout, admitted, tile_bytes_of
from dask_bigfft.transforms.rounds import Round
from dask_bigfft.transforms.steps import Step


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


@dataclass(frozen=True)
class _Lines:
    """Temporary memory of an FFT library, in complex lines: a base, and more for each lane pair.

    A lane pair is 16 bytes of a vector register: one pair in double precision, two in single.

    Parameters
    ----------
    rows, columns, real, chirp
        For contiguous lines, strided lines, real lines, and lengths with a large prime factor.
    cached, cached_chirp : float
        Lines per length that the library caches in the process.
    """

    rows: tuple[float, float]
    columns: tuple[float, float]
    real: tuple[float, float]
    chirp: tuple[float, float]
    cached: float
    cached_chirp: float


_LIBRARIES = {
    "scipy": _Lines(
        rows=(0, 4),
        columns=(0, 4),
        real=(0, 2),
        chirp=(0, 8),
        cached=1,
        cached_chirp=6,
    ),
    "ducc0": _Lines(
        rows=(1, 0),
        columns=(1, 4),
        real=(0, 8),
        chirp=(6, 4),
        cached=0,
        cached_chirp=0,
    ),
    "mkl_fft": _Lines(
        rows=(2, 0),
        columns=(10, 0),
        real=(10, 0),
        chirp=(16, 0),
        cached=0,
        cached_chirp=0,
    ),
    "pyfftw": _Lines(
        rows=(1, 0),
        columns=(1, 0),
        real=(1, 0),
        chirp=(6, 0),
        cached=1,
        cached_chirp=1,
    ),
}

_UNKNOWN = _Lines(
    rows=(2, 4),
    columns=(10, 4),
    real=(10, 8),
    chirp=(16, 8),
    cached=1,
    cached_chirp=6,
)


def _has_large_prime(n: int) -> bool:
    """Return whether libraries may make a convolution of a length.

    >>> _has_large_prime(2**20), _has_large_prime(999983)
    (False, True)
    """
    return max(factorize(n), default=1) ** 2 > n > 64


def library_bytes(
    kernel: str,
    rounds: Iterable[Round],
    itemsize: int,
    threads: int = 1,
) -> int:
    """Return the bytes that an FFT library takes: temporary ones of each thread, and cached ones.

    Parameters
    ----------
    kernel : str
        Name of the library.
    rounds : iterable of Round
        Rounds of the plan.
    itemsize : int
        Bytes of a complex number.
    threads : int
        Tasks at a time. With fewer blocks each block uses several threads of the library.
    """
    library = _LIBRARIES.get(kernel, _UNKNOWN)
    temporary = 0.0
    cached = dict[tuple[int, bool], float]()
    for round_ in rounds:
        for step in round_.steps:
            concurrent_calls = threads
            if _line_count(round_, step) == 1:  # which no two threads share
                concurrent_calls = min(threads, round_.target.blocks)
            lines = _temporary_lines(library, round_, step, itemsize, threads)
            temporary = max(temporary, concurrent_calls * step.length * lines)
            is_real = step.kind != "c2c"
            cached_lines = library.cached / 2 if is_real else library.cached
            if _has_large_prime(step.length):
                cached_lines = library.cached_chirp
            cached[step.length, is_real] = step.length * cached_lines
    return math.ceil((temporary + sum(cached.values())) * itemsize)


def _line_count(round_: Round, step: Step) -> int:
    """Return the number of lines of a block that a step transforms."""
    shape = round_.source.full_shape
    dim = round_.dim(step)
    return math.prod(shape[:dim]) * math.prod(shape[dim + 1 :])


def _temporary_lines(
    library: _Lines,
    round_: Round,
    step: Step,
    itemsize: int,
    threads: int,
) -> float:
    """Return the complex lines that a call for a step takes in one thread of the library."""
    lanes = max(1, 16 // itemsize)
    is_contiguous = math.prod(round_.source.full_shape[round_.dim(step) + 1 :]) <= 1
    base, per_lane = library.rows if is_contiguous else library.columns
    blocks_fill_threads = round_.target.blocks >= threads
    if is_contiguous and blocks_fill_threads and step.length * itemsize >= LONG_BYTES:
        base = max(base, 1)
        per_lane = 0  # one line at a time
    if step.kind != "c2c":
        base, per_lane = library.real
    if _has_large_prime(step.length):
        base, per_lane = library.chirp
        return base + per_lane * lanes
    count = _line_count(round_, step)
    lines = base + per_lane * lanes
    if count == 1:
        return min(lines, 1)
    return min(lines, 2) if count < 2 * lanes else lines


#: Maximum tiles of a task in memory: input and result of an FFT, and copies of both for checks.
TILES = 4

#: Bytes of shards that are packed at a time for scratch files, while the previous ones are written.
PACKED = 8 << 20


def _gathered_nbytes(plan: Plan, number: int) -> int:
    """Return the bytes of the largest block after an exchange."""
    exchange = plan.exchanges[number]
    return exchange.target.largest * np.dtype(exchange.dtype).itemsize


def _result_nbytes(plan: Plan, number: int) -> int:
    """Return the bytes of the largest block after an exchange and its round, if it has one."""
    if number == len(plan.rounds):
        return _gathered_nbytes(plan, number)
    itemsize = np.dtype(plan.dtypes[2 * number + 1]).itemsize
    return plan.rounds[number].target.largest * itemsize


def _computed_nbytes(plan: Plan, number: int) -> int:
    """Return the bytes of the largest block after a round, windows of which may be stored."""
    if number == len(plan.rounds):
        return _gathered_nbytes(plan, number)
    itemsize = np.dtype(plan.dtypes[2 * number + 1]).itemsize
    return plan.rounds[number].without_windows.target.largest * itemsize


#: Maximum bytes of a thread's chunk codecs, which take half a chunk. Measured with
#: Zarr's default compression at both ends: 4 to 6 MiB beside blocks and chunks.
CODEC = 8 << 20


def _stored(layout: Layout, itemsize: int) -> int:
    """Return the bytes of all blocks of a layout, in the arena's buffers of whole pages."""
    largest = layout.largest * itemsize
    granule = (2 << 20) if largest >= (8 << 20) else (64 << 10)
    spare = -largest % granule if largest >= (512 << 10) else 0
    return layout.size * itemsize + layout.blocks * spare


def peak_host(plan: Plan) -> int:
    """Return the peak bytes of host memory per process, without those of imports.

    In memory, the blocks before and after an exchange exist together, because of its barrier. Every
    thread also holds the result of its task, and tiles. A round in place only adds its tiles.
    Between processes shards in flight count once more, and blocks are spread unevenly. A shuffle
    limits its shards in memory and spills the others to files. With scratch files only the data of
    the running tasks are in memory. FFT libraries copy long lines and cache roots of unity.
    """
    blocks = _peak_on_disk(plan) if plan.storage == "disk" else _peak_in_memory(plan)
    if plan.machine.gpus and plan.device == "gpu":
        return blocks
    itemsize = plan.spec.work_dtype.itemsize
    return blocks + library_bytes(plan.kernel, plan.rounds, itemsize, plan.machine.threads)


# --- blocks in memory ----------------------------------------------------------------------


@dataclass(frozen=True)
class _StageMemory:
    """Bytes of the blocks and tiles of an exchange and the round that follows it.

    Parameters
    ----------
    gathered, results : int
        All blocks after the exchange, and after the round.
    block, result : int
        The largest block after the exchange, and the one after the round; 0 without a round.
    blocks, threads : int
        Number of blocks, and of tasks at a time.
    share : float
        Largest share of the blocks in one process.
    tiles : int
        Tiles of all running tasks.
    """

    gathered: int
    results: int
    block: int
    result: int
    blocks: int
    threads: int
    share: float
    tiles: int


def _stage_memory(plan: Plan, number: int) -> _StageMemory:
    """Return the bytes of an exchange and its round."""
    machine = plan.machine
    exchange = plan.exchanges[number]
    gathered = _stored(exchange.target, np.dtype(exchange.dtype).itemsize)
    results = gathered
    block = _gathered_nbytes(plan, number)
    result = 0
    if number < len(plan.rounds):
        itemsize = np.dtype(plan.dtypes[2 * number + 1]).itemsize
        results = _stored(plan.rounds[number].target, itemsize)
        result = _result_nbytes(plan, number)
    blocks = exchange.target.blocks
    threads = min(machine.threads, blocks)
    if machine.gpus and plan.device == "gpu":  # GPUs admit only a few tasks
        threads = min(threads, admitted(block) * machine.gpus)
    # A process has whole blocks: with few of them, more than its even share.
    own_blocks = -(-blocks // machine.workers)
    return _StageMemory(
        gathered=gathered,
        results=results,
        block=block,
        result=result,
        blocks=blocks,
        threads=threads,
        share=own_blocks / max(1, blocks),
        tiles=threads * _tiles(plan, number, block),
    )


def _peak_in_memory(plan: Plan) -> int:
    """Return the peak bytes of blocks, tiles and shards."""
    memory = MemoryWalk()
    before = _stored(plan.source, np.dtype(plan.spec.dtype).itemsize)
    stages = plan.forecast_stages
    for number in range(len(stages)):
        memory.free()
        if number == len(stages) - 1 and plan.writing != BY_CALLER:
            result_blocks = math.prod(map(len, plan.chunks))
            writers = min(plan.machine.threads, result_blocks)
            memory.allocate("chunks that are written", writers * _writing_nbytes(plan))
        if plan.inside and number < len(plan.rounds):  # rounds work inside the input
            memory.allocate("blocks", before)
            continue
        stage = _stage_memory(plan, number)
        if _stays_in_place(plan, number):
            memory.allocate("blocks", stage.share * before)
            if plan.machine.holding:  # as large as the block at most
                memory.allocate("work area of cuFFT", stage.share * before)
            memory.allocate("tiles", stage.tiles)
        elif _works_in_shared(stages[number]):
            memory.allocate("blocks", before)
            memory.allocate("tiles", stage.threads * _copied_in_place(plan, number, stage.block))
        else:
            following = stages[number + 1] if number + 1 < len(stages) else None
            _walk_to_new_blocks(
                plan,
                stages[number].exchange,
                following,
                before,
                stage,
                memory,
            )
            before = stage.results
    return math.ceil(memory.peak + operand_bytes(plan)) + merging(plan).nbytes


def _works_in_shared(stage: Stage) -> bool:
    """Return whether blocks share the memory of those before an exchange, and keep it."""
    if stage.reads is None:
        return False
    return stage.round_ is None or stage.works_in_place


def _walk_to_new_blocks(
    plan: Plan,
    exchange: Exchange,
    following: Stage | None,
    before: int,
    stage: _StageMemory,
    memory: MemoryWalk,
) -> None:
    """Follow an exchange and a round whose results have memory of their own.

    Parameters
    ----------
    plan : Plan
        The plan.
    exchange : Exchange
        The exchange.
    following : Stage or None
        Exchange and round after the round.
    before : int
        Bytes of all blocks before the exchange.
    stage : _StageMemory
        Bytes of its blocks and tiles.
    memory : MemoryWalk
        The walk.
    """
    machine = plan.machine
    memory.allocate("tiles", stage.tiles)
    if _all_at_once(plan, stage.blocks):  # the results are those of the running tasks
        memory.allocate("blocks", before)
        memory.allocate("new blocks", stage.results)
        return
    memory.allocate("gathered blocks of tasks", stage.threads * stage.block)
    if following is None or following.reads is None:
        memory.allocate("results of tasks", stage.threads * stage.result)
    larger = max(stage.results, stage.gathered)
    if machine.workers == 1 or exchange.local:
        # Local blocks are replaced one by one. Others wait for the barrier.
        memory.allocate("blocks", 0 if exchange.local else stage.share * before)
        memory.allocate("new blocks", stage.share * larger)
        return
    if machine.buffers is not None and shuffled(exchange.shape):
        shard_itemsize = exchange.shard_dtype.itemsize
        packed = machine.threads * 2 * exchange.source.largest * shard_itemsize
        memory.allocate("packed shards", packed)
        in_flight = min(machine.buffers, stage.share * exchange.shard_nbytes)
        memory.allocate("shards in flight", in_flight)
        if following is None:
            memory.allocate("new blocks", stage.share * stage.results)
        return
    share = min(1.0, stage.share * UNEVEN)  # of an uneven distribution
    memory.allocate("blocks", share * before)
    memory.allocate("shards in flight", share * before)
    memory.allocate("new blocks", share * larger)


def _all_at_once(plan: Plan, blocks: int) -> bool:
    """Return whether CPU threads of one process work on all blocks of a round at the same time."""
    machine = plan.machine
    if machine.workers > 1 or machine.holding or blocks > machine.threads:
        return False
    if plan.verify != "none":  # a block without checksums is transformed twice and compared
        return False
    return plan.device == "cpu" or (plan.device != "hybrid" and not machine.gpus)


def _writing_nbytes(plan: Plan) -> int:
    """Return the bytes beside a chunk of the result while a task writes it."""
    chunk = math.prod(max(cut, default=0) for cut in plan.chunks) * plan.spec.out_dtype.itemsize
    has_ends = any(cut[-1:] != cut[:1] for cut in plan.chunks)
    return plan.writing.nbytes(chunk, has_ends)


def _stays_in_place(plan: Plan, number: int) -> bool:
    """Return whether blocks become those after an exchange and its round in their own memory."""
    exchange = plan.exchanges[number]
    if exchange.source != exchange.target or exchange.dtype != exchange.source_dtype:
        return False
    if exchange.mirror is not None or number == len(plan.rounds):
        return plan.inside
    return number == 0 and _overwrites_input(plan)


def _overwrites_input(plan: Plan) -> bool:
    """Return whether the first round writes its results into the input blocks that it reads."""
    if not plan.overwrite or plan.verify != "none" or plan.device == "hybrid" or plan.shares:
        return False
    if any(shared is not None for shared in plan.shared_layouts.exchanges[1:2]):
        return False
    round_ = plan.rounds[0]
    if any(step.kind != "c2c" or step.convolve is not None for step in round_.steps):
        return False
    if not _keeps_first_shape(round_):
        return False
    return plan.device == "cpu" or _fits_gpus_in_place(plan, round_)


def _fits_gpus_in_place(plan: Plan, round_: Round) -> bool:
    """Return whether all GPUs have the memory for tiles of a round that works in place."""
    dtype = plan.exchanges[0].dtype
    for device in plan.machine.devices:
        nbytes = plan.device_memory_limit or device.nbytes
        if not tile_plans(round_, dtype, nbytes, plan.settings, inside=True):
            return False
    return True


def _keeps_first_shape(round_: Round) -> bool:
    """Return whether the first block of a round has the same shape before and after it."""
    first = (0,) * len(round_.source.axes)
    return round_.source.shape(first) == round_.target.shape(first)


def _tiles_nbytes(plan: Plan) -> int:
    """Return the bytes of the tiles that a task works on at a time."""
    return TILES * tile_bytes_of(plan.machine.threads)


def _tiles(plan: Plan, number: int, block: int) -> int:
    """Return the bytes of a task's tiles in a round, or of copies of a block that is not cut.

    Such a block is copied, unless it is gathered directly into its result. Libraries without
    `supports_out`, and rounds that store windows, have spectra of real values, and these blocks, in
    fresh memory.
    """
    padded = min(block * 5 // 4, _tiles_nbytes(plan))  # rows of tiles are padded
    if number >= len(plan.rounds) or _is_cut(plan, number):
        return padded
    computed = _computed_nbytes(plan, number)
    if _compares(plan, number):
        return _compared(plan, number, block, computed)
    round_ = plan.rounds[number]
    if _keeps_shape(round_):
        return padded
    block += _spectrum_nbytes(plan, round_)
    is_written = model_of(plan).library.supports_out and not round_.windows
    return block if is_written else block + computed


def _spectrum_nbytes(plan: Plan, round_: Round) -> int:
    """Return the bytes of half a spectrum between real values before and after a round."""
    if all(step.kind == step.last_kind for step in round_.steps):
        return 0
    return round_.spectrum.largest * plan.spec.work_dtype.itemsize


def _is_cut(plan: Plan, number: int) -> bool:
    """Return whether the blocks of a round are cut into tiles."""
    dtype, result_dtype = plan.dtypes[2 * number : 2 * number + 2]
    tiles = model_of(plan).tiles(plan.rounds[number], dtype, result_dtype)
    return tiles is not None


def _keeps_shape(round_: Round) -> bool:
    """Return whether a block after a round takes the memory of the block before it."""
    if any(step.kind != "c2c" for step in round_.steps):
        return False
    return round_.source.largest == round_.target.largest


def _compares(plan: Plan, number: int) -> bool:
    """Return whether the tiles of a round are transformed twice and compared."""
    return plan.verify != "none" and not plan.rounds[number].keeps_energy


def _compared(
    plan: Plan,
    number: int,
    block: int,
    result: int,
) -> int:
    """Return the bytes of two copies of a block that is not cut, and of their results."""
    round_ = plan.rounds[number]
    if _keeps_shape(round_):
        return 2 * block
    return block + 2 * result + _spectrum_nbytes(plan, round_)


def _copied_in_place(plan: Plan, number: int, block: int) -> int:
    """Return the bytes of a task's tiles in a round in place, or of copies of an uncut block.

    Checks leave the block intact until its result is known to be right.
    """
    tiles = _tiles_nbytes(plan)
    if number == len(plan.rounds) or plan.verify == "none":
        return min(block, tiles)
    copies = 2 * block if _compares(plan, number) else block
    return min(copies, tiles) if _is_cut(plan, number) else copies


# --- tasks with scratch files --------------------------------------------------------------


def _decoding_nbytes(plan: Plan, number: int) -> int:
    """Return the bytes of chunks that a task decodes: stored, decoded, and returned."""
    if number > 0 or not plan.from_rows or not plan.stored.decoded:
        return 0
    return 3 * max(DECODED, plan.stored.decoded)


def _walk_gathering(plan: Plan, number: int, memory: MemoryWalk) -> None:
    """Follow a task that has its whole input before it begins a block, up to its result."""
    gathered = _gathered_nbytes(plan, number)
    result = _result_nbytes(plan, number)
    work = min(gathered, _tiles_nbytes(plan))
    if number < len(plan.rounds):
        round_ = plan.rounds[number]
        if result != gathered or round_.source.largest != round_.target.largest:
            work = gathered  # tiles cannot be cut
            if round_.windows and not _is_cut(plan, number):
                work += _computed_nbytes(plan, number)
        if _compares(plan, number) and not _is_cut(plan, number):
            computed = _computed_nbytes(plan, number)
            work = max(work, _compared(plan, number, gathered, computed))
    memory.allocate("result", result)
    # Decoding needs memory beside that which the arena keeps for the result of the round.
    memory.allocate("work", max(work, _decoding_nbytes(plan, number)))
    memory.free("work")


def _walk_assembling(plan: Plan, number: int, memory: MemoryWalk) -> None:
    """Follow a task that assembles a block while shards arrive from files, up to its result."""
    gathered = _gathered_nbytes(plan, number)
    memory.allocate("assembled block", gathered)
    if number == 0 and plan.from_rows:
        in_flight = _decoding_nbytes(plan, number)
    else:
        in_flight = min(gathered, _under_way(plan.exchanges[number]))
    memory.allocate("shards", in_flight)
    memory.free("shards")
    work = min(gathered, _tiles_nbytes(plan))
    result = _result_nbytes(plan, number)
    if number < len(plan.rounds):
        works_in_place = result == gathered and _keeps_first_shape(plan.rounds[number])
        needs_copy = not works_in_place or plan.verify != "none"
        if needs_copy and not _is_cut(plan, number):
            work = gathered
            if plan.rounds[number].windows:
                work += _computed_nbytes(plan, number)
            if _compares(plan, number):
                computed = _computed_nbytes(plan, number)
                work = max(work, _compared(plan, number, gathered, computed))
        if not works_in_place:
            work += result
    memory.allocate("work", work)
    memory.free("work", "assembled block")
    memory.allocate("result", result)


def _under_way(exchange: Exchange) -> int:
    """Return the bytes of shards that a task packs and writes, or reads and places, at a time."""
    images = 1 if exchange.mirror is None else 2
    return 2 * max(PACKED, images * exchange.shape.largest * exchange.shard_dtype.itemsize)


def _peak_on_disk(plan: Plan) -> int:
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
    for number, moves in enumerate(plan.moves):
        _walk_task_on_disk(plan, number, moves, block, memory)
        block = _result_nbytes(plan, number)
    last = max(input_block, plan.result.largest * plan.spec.out_dtype.itemsize)
    one_operand = operand_bytes(plan) // 2  # a spectrum, whole, while its blocks are waited for
    tiles = min(last, _tiles_nbytes(plan))
    task = math.ceil(memory.peak) + min(CODEC, plan.stored.decoded // 2)
    return plan.machine.threads * task + last + tiles + one_operand + merging(plan).nbytes


def _walk_task_on_disk(
    plan: Plan,
    number: int,
    moves: bool,
    block: int,
    memory: MemoryWalk,
) -> None:
    """Follow the task of an exchange and its round, given the bytes of the block before it."""
    is_from_task = not moves and not (number == 0 and plan.from_rows)
    exchange = plan.exchanges[number]
    if is_from_task:
        memory.allocate("block of another task", block)
        _walk_gathering(plan, number, memory)
    elif plan.assembles:
        _walk_assembling(plan, number, memory)
    else:
        shard_nbytes = exchange.target.largest * exchange.shard_dtype.itemsize
        memory.allocate("shards", shard_nbytes)
        _walk_gathering(plan, number, memory)
        memory.free("shards")
    memory.allocate("written beside the result", _written_nbytes(plan, number))
    memory.free()


def _written_nbytes(plan: Plan, number: int) -> int:
    """Return the bytes beside the result of a round while it is written to files."""
    result = _result_nbytes(plan, number)
    if number + 1 < len(plan.exchanges):
        if plan.moves[number + 1]:
            return min(result, _under_way(plan.exchanges[number + 1]))
        return 0
    cut_nbytes = 0 if plan.outgoing is None else result
    return max(cut_nbytes, _writing_nbytes(plan))


def _beside(plan: Plan, block: int) -> int:
    """Return the bytes beside an input block while it is read or its shards are written."""
    if not plan.reopened:
        return 2 * block if plan.stored.decoded else block
    units = plan.stored.read_beside(plan.spec.shape)
    reading = block if units is None else units
    return max(reading, min(block, _under_way(plan.exchanges[0])))


def operand_bytes(plan: Plan) -> int:
    """Return the bytes of the operands of products, which are made twice as large on the way."""
    nbytes = 0
    for operand in plan.operands:
        nbytes += 2 * operand.nbytes
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
