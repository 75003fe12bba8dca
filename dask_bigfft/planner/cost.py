"""Cost of a plan: memory and tasks by counting, seconds by the cost model (`seconds`)."""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dask_bigfft.decomposition.factors import factorize
from dask_bigfft.decomposition.layout import LONG_BYTES, Layout, admitted, tile_bytes_of
from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.decomposition.steps import Step
from dask_bigfft.planner.passes import tile_plans
from dask_bigfft.planner.plan_data import (
    Exchange,
    Forecast,
    Machine,
    P,
    PlanData,
    SharedLayouts,
    block_count,
    no_shared_layouts,
)
from dask_bigfft.planner.rows import DECODED
from dask_bigfft.planner.seconds import Model, flops, shuffled


@dataclass(frozen=True)
class _Lines:
    """Temporary memory of an FFT library, in complex lines: a base, and more for each lane pair.

    A lane pair is 16 bytes of a vector register: one pair in double precision, two in single.

    Parameters
    ----------
    rows, columns, real, chirp
        For contiguous lines, strided lines, real lines, and lengths with a large prime factor.
    kept, kept_chirp : float
        Lines per length that the library caches in the process.
    """

    rows: tuple[float, float]
    columns: tuple[float, float]
    real: tuple[float, float]
    chirp: tuple[float, float]
    kept: float
    kept_chirp: float


_LIBRARIES = {
    "scipy": _Lines((0, 4), (0, 4), (0, 2), (0, 8), 1, 6),
    "ducc0": _Lines((1, 0), (1, 4), (0, 8), (6, 4), 0, 0),
    "mkl_fft": _Lines((2, 0), (10, 0), (10, 0), (16, 0), 0, 0),
    "pyfftw": _Lines((1, 0), (1, 0), (1, 0), (6, 0), 1, 1),
}

_UNKNOWN = _Lines((2, 4), (10, 4), (10, 8), (16, 8), 1, 6)


def _has_large_prime(n: int) -> bool:
    """Return whether libraries may make a convolution of a length.

    >>> _has_large_prime(2**20), _has_large_prime(999983)
    (False, True)
    """
    return max(factorize(n), default=1) ** 2 > n > 64


def library_bytes(kernel: str, rounds: Iterable[Round], itemsize: int, threads: int = 1) -> int:
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
            cached_lines = library.kept / 2 if is_real else library.kept
            if _has_large_prime(step.length):
                cached_lines = library.kept_chirp
            cached[step.length, is_real] = step.length * cached_lines
    return math.ceil((temporary + sum(cached.values())) * itemsize)


def _line_count(round_: Round, step: Step) -> int:
    """Return the number of lines of a block that a step transforms."""
    shape = round_.source.full_shape
    dim = round_.dim(step)
    return math.prod(shape[:dim]) * math.prod(shape[dim + 1 :])


def _temporary_lines(
    library: _Lines, round_: Round, step: Step, itemsize: int, threads: int
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


def _made(plan: PlanData, number: int) -> tuple[int, int]:
    """Return the arena bytes of all blocks after a round, and the bytes of the largest."""
    blocks, itemsize = plan.rounds[number].target, np.dtype(plan.dtypes[2 * number + 1]).itemsize
    return _stored(blocks, itemsize), blocks.largest * itemsize


#: Maximum bytes of a thread's chunk codecs, which take half a chunk. Measured with
#: Zarr's default compression at both ends: 4 to 6 MiB beside blocks and chunks.
CODEC = 8 << 20

#: Largest share of a process in units of the even share, where the scheduler places blocks.
UNEVEN = 1.5


def _stored(layout: Layout, itemsize: int) -> int:
    """Return the bytes of all blocks of a layout, in the arena's buffers of whole pages."""
    largest = layout.largest * itemsize
    granule = (2 << 20) if largest >= (8 << 20) else (64 << 10)
    spare = -largest % granule if largest >= (512 << 10) else 0
    return layout.size * itemsize + layout.blocks * spare


def peak_host(plan: PlanData) -> int:
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
    itemsize, threads = plan.spec.work_dtype.itemsize, plan.machine.threads
    return blocks + library_bytes(plan.kernel, plan.rounds, itemsize, threads)


def _peak_in_memory(plan: PlanData) -> int:
    """Return the peak bytes of blocks, tiles and shards."""
    machine = plan.machine
    stages, shared_layouts = [0.0], shared_layouts_in(plan)
    before = _stored(plan.source, np.dtype(plan.spec.dtype).itemsize)
    for i, exchange in enumerate(plan.exchanges):
        after = _stored(exchange.target, np.dtype(exchange.dtype).itemsize)
        if plan.inside and i < len(plan.rounds):  # what came in is all there is
            stages.append(float(before))
            continue
        block = exchange.target.largest * np.dtype(exchange.dtype).itemsize
        made, out = _made(plan, i) if i < len(plan.rounds) else (after, 0)
        blocks = exchange.target.blocks
        threads = min(machine.threads, blocks)
        if machine.gpus and plan.device == "gpu":  # which admit only a few tasks
            threads = min(threads, admitted(block) * machine.gpus)
        # A process has whole blocks: with few of them, more than its even share.
        share = -(-blocks // machine.workers) / max(1, blocks)
        tiles = threads * _tiles(plan, i, block, out)
        if _stays_in_place(plan, i):
            area = before if machine.holding else 0  # cuFFT's, as large as the block at most
            stages.append(share * (before + area) + tiles)
            continue
        work = threads * (block + out) + tiles
        if i + 1 < len(plan.exchanges) and shared_layouts.exchanges[i + 1] is not None:
            work -= threads * out  # it is written to common memory
        if shared_layouts.exchanges[i] is not None and (
            i == len(plan.rounds) or shared_layouts.inside[i]
        ):
            stages.append(before + threads * _copied_in_place(plan, i, block))
            continue
        if _all_at_once(plan, blocks):
            stages.append(before + made + tiles)  # results are those of the running tasks
        elif machine.workers == 1 or exchange.local:
            held = 0 if exchange.local else before
            stages.append(share * (held + max(made, after)) + work)
        elif machine.buffers is not None and shuffled(exchange.shape):
            packed = machine.threads * 2 * exchange.source.largest * exchange.shard_dtype.itemsize
            flying = min(machine.buffers, share * exchange.shard_nbytes)
            kept = share * made if i == len(plan.exchanges) - 1 else 0
            stages.append(flying + kept + packed + work)
        else:
            stages.append(min(1.0, share * UNEVEN) * (2 * before + max(made, after)) + work)
        before = made
    return math.ceil(max(stages) + filter_bytes(plan)) + merging(plan)[0]


def _all_at_once(plan: PlanData, blocks: int) -> bool:
    """Return whether CPU threads of one process work on all blocks of a round at the same time."""
    machine = plan.machine
    on_cpu = plan.device == "cpu" or (plan.device != "hybrid" and not machine.gpus)
    done_once = plan.verify == "none"  # what has no checksums is done twice and compared
    return (
        machine.workers == 1
        and not machine.holding
        and on_cpu
        and done_once
        and (blocks <= machine.threads)
    )


def _stays_in_place(plan: PlanData, number: int) -> bool:
    """Return whether blocks become those after an exchange and its round where they are."""
    exchange = plan.exchanges[number]
    same = exchange.source == exchange.target and exchange.dtype == exchange.source_dtype
    if not same or exchange.mirror is not None or number == len(plan.rounds):
        return same and plan.inside
    round_, first = plan.rounds[number], (0,) * len(exchange.source.axes)
    alike = all(step.kind == "c2c" and step.convolve is None for step in round_.steps)
    alike = alike and round_.source.shape(first) == round_.target.shape(first)
    apart = plan.verify != "none" or plan.device == "hybrid" or plan.shares
    written = any(shared is not None for shared in plan.shared_layouts.exchanges[1:2])
    if number or not plan.overwrite or not alike or apart or written:
        return False
    devices = plan.machine.devices if plan.device != "cpu" else ()
    nbytes = [plan.device_memory_limit or found.nbytes for found in devices]
    return all(tile_plans(round_, exchange.dtype, n, plan.settings, inside=True) for n in nbytes)


def _tiles_nbytes(plan: PlanData) -> int:
    """Return the bytes of the tiles that a task works on at a time."""
    return TILES * tile_bytes_of(plan.machine.threads)


def _tiles(plan: PlanData, number: int, block: int, out: int) -> int:
    """Return the bytes of a task's tiles in a round, or of copies of a block that is not cut.

    Such a block is copied, unless it is gathered directly into its result. Libraries without
    `supports_out` allocate spectra of real values, and these blocks, in fresh memory.
    """
    tiled, model = min(block * 5 // 4, _tiles_nbytes(plan)), model_of(plan)  # padded rows
    if number >= len(plan.rounds) or _is_cut(plan, number):
        return tiled
    if _compares(plan, number):
        return _compared(plan, number, block, out)
    spectra = 0 if model.library.supports_out else out
    return tiled if _keeps_shape(plan.rounds[number]) else block + spectra


def _is_cut(plan: PlanData, number: int) -> bool:
    """Return whether the blocks of a round are cut into tiles."""
    dtypes = plan.dtypes
    tiles = model_of(plan).tiles(plan.rounds[number], dtypes[2 * number], dtypes[2 * number + 1])
    return tiles is not None


def _keeps_shape(round_: Round) -> bool:
    """Return whether a block after a round takes the memory of the block before it."""
    real = any(step.kind != "c2c" for step in round_.steps)
    return not real and round_.source.largest == round_.target.largest


def _compares(plan: PlanData, number: int) -> bool:
    """Return whether the tiles of a round are transformed twice and compared."""
    return plan.verify != "none" and not plan.rounds[number].keeps_energy


def _compared(plan: PlanData, number: int, block: int, out: int) -> int:
    """Return the bytes of two copies of a block that is not cut, and of their results."""
    return 2 * block if _keeps_shape(plan.rounds[number]) else block + 2 * out


def _copied_in_place(plan: PlanData, number: int, block: int) -> int:
    """Return the bytes of a task's tiles in a round in place, or of copies of an uncut block.

    Checks leave the block intact until its result is known to be right.
    """
    tiles = _tiles_nbytes(plan)
    if number == len(plan.rounds) or plan.verify == "none":
        return min(block, tiles)
    copies = 2 * block if _compares(plan, number) else block
    return min(copies, tiles) if _is_cut(plan, number) else copies


def shared_layouts_in(plan: PlanData) -> SharedLayouts:
    """Return the shared buffers of a plan on its own machine."""
    if plan.machine.shared and plan.machine.workers == 1:
        return plan.shared_layouts
    return no_shared_layouts(len(plan.exchanges), len(plan.rounds))


def _in_a_round(plan: PlanData, i: int, here: int, is_read: bool) -> tuple[int, int]:
    """Return the peak bytes of a task in a round, and the bytes of the block that it makes.

    `here` is the bytes of the block that it reads, unless that comes from files.
    """
    exchange = plan.exchanges[i]
    gathered = exchange.target.largest * np.dtype(exchange.dtype).itemsize
    made, work = gathered, min(gathered, _tiles_nbytes(plan))
    whole = False
    compared = 0
    if i < len(plan.rounds):
        round_ = plan.rounds[i]
        made = _made(plan, i)[1]
        whole = (made, round_.source.largest) != (gathered, round_.target.largest)
        if _compares(plan, i) and not _is_cut(plan, i):
            compared = _compared(plan, i, gathered, made)
    # As it is stored, as it is decoded, and as it is given out.
    from_rows = i == 0 and plan.from_rows
    decoding = 3 * max(DECODED, plan.stored.decoded) if from_rows and plan.stored.decoded else 0
    if not is_read or not plan.assembles:
        if is_read:
            here = exchange.target.largest * exchange.shard_dtype.itemsize
        if whole:
            work = gathered  # where tiles cannot be cut
        work = max(work, compared)
        # Decoding lies beside the memory that the arena keeps for what the round makes.
        return here + made + max(work, decoding), made
    in_flight = decoding if from_rows else min(gathered, _under_way(exchange))
    inside = True  # the round leaves each block where it was put together
    if i < len(plan.rounds):
        first, source = (0,) * len(round_.source.axes), round_.source
        inside = made == gathered and source.shape(first) == round_.target.shape(first)
        if not (inside and plan.verify == "none") and not _is_cut(plan, i):
            work = max(gathered, compared)  # copies of it
    return max(gathered + in_flight, gathered + work + (0 if inside else made)), made


def _under_way(exchange: Exchange) -> int:
    """Return the bytes of shards that a task packs and writes, or reads and places, at a time."""
    images = 1 if exchange.mirror is None else 2
    return 2 * max(PACKED, images * exchange.shape.largest * exchange.shard_dtype.itemsize)


def _peak_on_disk(plan: PlanData) -> int:
    """Return the peak bytes of host memory with scratch files.

    A task first holds what it has read and the block that it makes. Then it holds this block and
    some of its shards, or the sink's copy. A task that assembles a block while shards arrive holds
    the block and some shards, and works in place if possible. A block from another task stays in
    memory all the while. A task that reads an input block holds it twice, or three times where
    chunks are decoded, beside the codecs' memory. It holds it once, beside a few chunks, where the
    array is reopened. Dask's schedulers keep the last result of a task until another one returns.
    """
    exchanges = plan.exchanges
    here = 0 if plan.from_rows else plan.source.largest * np.dtype(plan.spec.dtype).itemsize
    last = max(here, plan.result.largest * plan.spec.out_dtype.itemsize)
    stages = [here + _beside(plan, here)]
    if plan.merges:  # neighbours, the merged block, and its shards
        stages.append(2 * here + min(here, 2 * PACKED))
    for i, moves in enumerate(plan.moves):
        is_read = moves or (i == 0 and plan.from_rows)
        reading, made = _in_a_round(plan, i, here, is_read)
        handed = 0 if plan.stored.result_as_is and plan.outgoing is None else made
        if i + 1 < len(exchanges):
            handed = min(made, _under_way(exchanges[i + 1])) if plan.moves[i + 1] else 0
        kept = 0 if is_read else here
        stages += [reading, kept + made + handed]
        here = made
    filters = filter_bytes(plan) // 2  # one spectrum, whole, while its blocks are waited for
    tiles = min(last, _tiles_nbytes(plan))
    task = max(stages) + min(CODEC, plan.stored.decoded // 2)
    return plan.machine.threads * task + last + tiles + filters + merging(plan)[0]


def _beside(plan: PlanData, here: int) -> int:
    """Return the bytes beside an input block while it is read or its shards are written."""
    if not plan.reopened:
        return 2 * here if plan.stored.decoded else here
    read = plan.stored.read_beside(plan.spec.shape)
    return max(here if read is None else read, min(here, _under_way(plan.exchanges[0])))


def scratch_bytes(plan: PlanData) -> int:
    """Return the peak bytes of scratch files: those being read and those being written."""
    if plan.storage != "disk":
        return 0
    pairs = zip(plan.exchanges, plan.moves, strict=True)
    spilled = [e.shard_nbytes if moves else 0 for e, moves in pairs]
    worst = max(a + b for a, b in itertools.pairwise([0, *spilled, 0]))
    return worst + filter_bytes(plan)


def filter_bytes(plan: PlanData) -> int:
    """Return the bytes of the spectra of all Bluestein filters."""
    itemsize = plan.spec.work_dtype.itemsize
    return sum(2 * math.prod(p.factors) * itemsize for p in plan.programs if p.bluestein)


def task_count(plan: PlanData) -> int:
    """Return the number of tasks of the graph."""
    total = 1 + merging(plan)[1]
    if plan.storage == "disk" and plan.moves[0]:
        total += plan.source.blocks  # each writes its shards
    pairs = zip(plan.exchanges, plan.moves, strict=True)
    total += sum(e.shape.blocks_out + moves * e.shape.groups for e, moves in pairs)
    shared_layouts = enumerate(shared_layouts_in(plan).exchanges)
    return total + sum(j.layout.blocks for i, j in shared_layouts if j is not None and j.home == i)


def forecast(plan: PlanData) -> Forecast:
    """Return what a plan is expected to need."""
    result = None if plan.ends_in_round else plan.result
    route = model_of(plan).route
    dtypes = (plan.spec.dtype, *plan.dtypes)
    rounds = route(plan.source, plan.rounds, result, dtypes, plan.moves, shared_layouts_in(plan))
    seconds = plan.machine.profile.start + merging(plan)[2] + sum(r.seconds for r in rounds)
    return Forecast(
        bytes_exchanged=sum(exchange.nbytes for exchange in plan.travelling),
        peak_host=peak_host(plan),
        scratch=scratch_bytes(plan),
        tasks=task_count(plan),
        flops=sum(map(flops, plan.rounds)),
        seconds=seconds,
        rounds=rounds,
    )


def with_forecast(plan: P, **changes: Any) -> P:
    """Return a plan with some changes, and with its forecast."""
    found = replace(plan, **changes)
    return replace(found, expected=forecast(found))


def model_of(plan: PlanData) -> Model:
    """Return the cost model of a plan's machine and kernel."""
    dtype = plan.spec.work_dtype.name
    return Model(plan.machine, plan.kernel, dtype, plan.storage, plan.verify, plan.device)


def task_seconds(machine: Machine) -> float:
    """Return the overhead of a task in seconds."""
    profile = machine.profile
    return profile.task if machine.workers == 1 else profile.sent_task


def merge_seconds(machine: Machine, before: int, after: int, nbytes: int) -> float:
    """Return the seconds of merging blocks into fewer, or of cutting them from fewer.

    Parameters
    ----------
    machine : Machine
        Machine of the plan.
    before, after : int
        Number of blocks.
    nbytes : int
        Bytes of all of them.
    """
    lanes = max(1, min(after, machine.threads * machine.workers))
    copied = before * machine.profile.shard + nbytes / machine.profile.copy
    return after * task_seconds(machine) + copied / lanes


def merging(plan: PlanData) -> tuple[int, int, float]:
    """Return the bytes, tasks and seconds of merging incoming blocks and cutting outgoing ones.

    The bytes are host memory of a process: others may keep the input blocks. With scratch
    files these are read as needed and counted with the tasks of the moment.
    """
    machine, spec = plan.machine, plan.spec
    nbytes, tasks, seconds = 0, 0, 0.0
    if plan.incoming is not None and plan.storage != "disk":
        nbytes += spec.nbytes
    if plan.incoming is not None and plan.merges:
        tasks += plan.source.blocks
        blocks = block_count(plan.incoming)
        seconds += merge_seconds(machine, blocks, plan.source.blocks, spec.nbytes)
    if plan.outgoing is not None:
        nbytes += spec.out_nbytes
        tasks += (blocks := block_count(plan.outgoing))
        seconds += merge_seconds(machine, plan.result.blocks, blocks, spec.out_nbytes)
    return math.ceil(nbytes * min(1.0, UNEVEN / machine.workers)), tasks, seconds
