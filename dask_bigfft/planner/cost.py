"""What a plan costs: seconds by a simple model, bytes and tasks by counting.

The model prices every byte that is copied, every contiguous run that a gather begins, every
shard, every task, and every floating point operation; what can run side by side is divided by
the number of threads. Its constants are those of a common two-core machine: plans are compared
by it, so ratios matter and absolute times do not.

Pure: imports `decomposition` and this room.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from dask_bigfft.decomposition.layout import Layout
from dask_bigfft.decomposition.rounds import ExchangeShape, Round, exchange_shape
from dask_bigfft.planner.plan import Forecast, Machine, Plan


@dataclass(frozen=True)
class Prices:
    """Seconds for one unit of everything that a plan does.

    Parameters
    ----------
    byte : float
        Copying a byte in memory (read and written).
    gathered_byte : float
        What gathering a byte from many blocks costs beside that. Set so that an exchange more
        has to save two passes over memory: exchanges are what does not scale.
    sent_byte : float
        Sending a byte to another process.
    run : float
        Beginning a contiguous run.
    shard : float
        Preparing a shard.
    task : float
        Scheduling a task (never in parallel).
    flop : float
        A floating point operation of an FFT in cache.
    exchange : float
        Waiting for the last block of an exchange (never in parallel).
    sent_shard : float
        Scheduling a shard that travels between processes (never in parallel).
    pair : float
        One pair of blocks for dask's ordering of an exchange (never in parallel).
    disk_byte : float
        Writing a byte to the disk and reading it again (never in parallel).
    """

    byte: float = 1.5e-10
    gathered_byte: float = 4e-10
    sent_byte: float = 1e-9
    run: float = 1e-8
    shard: float = 3e-5
    task: float = 3e-4
    flop: float = 1e-10
    exchange: float = 2e-2
    sent_shard: float = 1e-4
    pair: float = 2.5e-8
    disk_byte: float = 0.0


PRICES = Prices()

#: Shards of a connected group from which on, between processes, a shuffle is quicker than tasks.
SHUFFLE_SHARDS = 64

#: Bytes of the tiles that a task works on at a time.
TILES = 8 << 20

#: Prices of exchanges through scratch files: nothing is sent, and a shard is a write of its own.
DISK_PRICES = Prices(sent_byte=0.0, sent_shard=0.0, shard=1e-4, disk_byte=2e-9)


def prices_of(carrier: str) -> Prices:
    """Return the prices of a plan's carrier, ``"memory"`` or ``"disk"``."""
    return DISK_PRICES if carrier == "disk" else PRICES


def _parallel(machine: Machine, blocks: int) -> int:
    return max(1, min(machine.threads * machine.workers, blocks))


def exchange_seconds(
    shape: ExchangeShape, elements: int, itemsize: int, machine: Machine, prices: Prices = PRICES
) -> float:
    """Seconds that an exchange of `elements` elements takes."""
    nbytes = elements * itemsize
    tasks = shape.blocks_out + (0 if shape.local else shape.groups)
    seconds = nbytes * prices.byte + shape.blocks_out * shape.runs * prices.run
    if not shape.local:
        seconds += nbytes * prices.gathered_byte + shape.shards * prices.shard
        if machine.workers > 1:
            seconds += nbytes * (1 - 1 / machine.workers) * prices.sent_byte
    sent = shape.shards * prices.sent_shard if machine.workers > 1 and not shape.local else 0.0
    pairs = shape.blocks_in * shape.blocks_out / max(1, shape.groups) ** 2
    return (
        seconds / _parallel(machine, shape.blocks_out)
        + tasks * prices.task
        + pairs * prices.pair
        + sent
        + (0 if shape.local else prices.exchange + nbytes * prices.disk_byte)
    )


def flops(round_: Round) -> float:
    """Floating point operations of a round's FFTs: 5 n log2 n for n complex values."""
    halved = min(round_.source.size, round_.target.size)
    whole = max(round_.source.size, round_.target.size)
    total = 0.0
    for step in round_.steps:
        passes = 2 if step.convolve is not None else 1
        elements = halved if step.kind == "c2c" else whole / 2
        total += passes * 5 * elements * math.log2(max(step.length, 2))
    return total


def round_seconds(round_: Round, machine: Machine, prices: Prices = PRICES) -> float:
    """Seconds that a round's FFTs take."""
    return flops(round_) * prices.flop / _parallel(machine, round_.source.blocks)


def route_seconds(
    source: Layout, rounds: Iterable[Round], result: Layout | None, itemsize: int,
    machine: Machine, prices: Prices = PRICES,
) -> float:
    """Seconds that rounds and the exchanges between them take."""
    total, before = 0.0, source
    for round_ in rounds:
        shape = exchange_shape(before, round_.source)
        total += exchange_seconds(shape, round_.source.size, itemsize, machine, prices)
        total += round_seconds(round_, machine)
        before = round_.target
    if result is not None:
        shape = exchange_shape(before, result)
        total += exchange_seconds(shape, result.size, itemsize, machine, prices)
    return total


def _itemsizes(plan: Plan) -> list[int]:
    return [np.dtype(dtype).itemsize for dtype in plan.dtypes]


#: How unevenly the scheduler spreads blocks over processes that nobody has assigned to one.
UNEVEN = 1.5


def shuffled(shape: ExchangeShape) -> bool:
    """Whether an exchange between processes is large enough for a shuffle to pay."""
    return shape.shards >= SHUFFLE_SHARDS * shape.groups


def _stored(layout: Layout, itemsize: int) -> int:
    """Bytes of all blocks of a layout, in buffers of whole pages as the arena has them."""
    largest = layout.largest * itemsize
    granule = (2 << 20) if largest >= (8 << 20) else (64 << 10)
    spare = -largest % granule if largest >= (512 << 10) else 0
    return layout.size * itemsize + layout.blocks * spare


def peak_host(plan: Plan) -> int:
    """Bytes of host memory at the worst moment, per process, beside what imports take.

    In memory, the blocks before and after an exchange are there together, since a barrier lies
    between them; every thread holds what its task makes beside that, and tiles. Between processes
    shards in flight are counted once more, and blocks lie unevenly; in a shuffle they wait in
    files, and what is in flight is limited. With scratch files only what the tasks of the moment
    work on is there.
    """
    if plan.carrier == "disk":
        return _peak_on_disk(plan)
    machine, sizes = plan.machine, _itemsizes(plan)
    stages = [0.0]
    before = _stored(plan.source, np.dtype(plan.spec.dtype).itemsize)
    for i, exchange in enumerate(plan.exchanges):
        after = _stored(exchange.target, np.dtype(exchange.dtype).itemsize)
        block = exchange.target.largest * np.dtype(exchange.dtype).itemsize
        made, out = after, 0
        if i < len(plan.rounds):
            round_ = plan.rounds[i]
            made = _stored(round_.target, sizes[2 * i + 1])
            out = round_.target.largest * sizes[2 * i + 1]
        work = machine.threads * (block + out + min(block, TILES))
        # A process has whole blocks: with few of them, more than its even share.
        blocks = exchange.target.blocks
        share = -(-blocks // machine.workers) / max(1, blocks)
        if machine.workers == 1 or exchange.local:
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
    return math.ceil(max(stages) + filter_bytes(plan))


def _peak_on_disk(plan: Plan) -> int:
    """Bytes of host memory while blocks come from scratch files and go to them.

    A task holds what it has read beside the block that it makes of it; then that beside its
    shards, or beside what the sink makes of it. A block that comes from another task stays there
    all the while. Whoever reads a block that comes in has it twice. Dask's schedulers keep the
    last block that a task has returned until another one returns.
    """
    sizes, exchanges = _itemsizes(plan), plan.exchanges
    here = plan.source.largest * np.dtype(plan.spec.dtype).itemsize
    last = max(here, plan.result.largest * plan.spec.out_dtype.itemsize)
    stages = [2 * here]
    for i, exchange in enumerate(exchanges):
        if not exchange.local:
            here = exchange.target.largest * exchange.shard_dtype.itemsize
        gathered = exchange.target.largest * np.dtype(exchange.dtype).itemsize
        made, work = gathered, min(gathered, TILES)
        if i < len(plan.rounds):
            round_ = plan.rounds[i]
            made = round_.target.largest * sizes[2 * i + 1]
            if (made, round_.source.largest) != (gathered, round_.target.largest):
                work = gathered  # where tiles cannot be cut
        handed = 0 if i + 1 < len(exchanges) and exchanges[i + 1].local else made
        kept = here if exchange.local else 0
        stages += [here + made + work, kept + made + handed]
        here = made
    filters = filter_bytes(plan) // 2  # one spectrum, whole, while its blocks are waited for
    return plan.machine.threads * max(stages) + last + min(last, TILES) + filters


def scratch_bytes(plan: Plan) -> int:
    """Bytes of scratch files at the worst moment: those that are read, and those being written."""
    if plan.carrier != "disk":
        return 0
    spilled = [0 if e.local else e.shard_nbytes for e in plan.exchanges]
    worst = max(a + b for a, b in itertools.pairwise([0, *spilled, 0]))
    return worst + filter_bytes(plan)


def filter_bytes(plan: Plan) -> int:
    """Bytes of the spectra of all Bluestein filters."""
    itemsize = plan.spec.work_dtype.itemsize
    return sum(2 * math.prod(p.factors) * itemsize for p in plan.programs if p.bluestein)


def task_count(plan: Plan) -> int:
    """Number of tasks of the graph."""
    total = 1
    if plan.carrier == "disk" and not plan.exchanges[0].local:
        total += plan.source.blocks  # each writes its shards
    for exchange in plan.exchanges:
        shape = exchange.shape
        total += shape.blocks_out + (0 if exchange.local else shape.groups)
    return total


def forecast(plan: Plan) -> Forecast:
    """What a plan is expected to need."""
    machine, itemsize = plan.machine, plan.spec.work_dtype.itemsize
    result = None if plan.ends_in_round else plan.result
    return Forecast(
        bytes_exchanged=sum(exchange.nbytes for exchange in plan.travelling),
        peak_host=peak_host(plan),
        scratch=scratch_bytes(plan),
        tasks=task_count(plan),
        flops=sum(map(flops, plan.rounds)),
        seconds=route_seconds(
            plan.source, plan.rounds, result, itemsize, machine, prices_of(plan.carrier)
        ),
    )


def largest_fan_in(source: Layout, rounds: Iterable[Round], result: Layout | None) -> int:
    """Largest number of blocks that a block of any exchange is gathered from."""
    found, before = 1, source
    for round_ in rounds:
        found = max(found, exchange_shape(before, round_.source).fan_in)
        before = round_.target
    return found if result is None else max(found, exchange_shape(before, result).fan_in)

