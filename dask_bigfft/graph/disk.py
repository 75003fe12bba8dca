"""What the tasks of a graph run where exchanges go through scratch files.

A source block writes its shards and leaves a *receipt*, their checksums; the barrier of a group
collects the receipts; the task of a target block reads its file, runs the round and writes the
shards of the next exchange at once, so that no block waits in memory::

    source block -> write -> barrier -> read + round + write -> barrier -> read + round -> result

Where the plan says so, the first round reads rows of the stored array instead of a file of shards,
and the chunks of the result are parts of the last round's blocks, without a file between them.

What is recorded as written is not done again: not by a worker that repeats what another one had
done, and not by a run that goes on where a killed one stopped. Files stay as long as a cluster
needs the key of the task that opened their folder (`hold`).

Imports `exchange`, `memory`, `events` and this room; looks a distributed worker up if there is one.
"""

import asyncio
import itertools
import multiprocessing
import threading
import time
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.events import current_worker, emit
from dask_bigfft.exchange.folders import remove_unused
from dask_bigfft.exchange.gather import Arriving, fresh_block, stored_regions
from dask_bigfft.exchange.packing import packed, shard_sizes
from dask_bigfft.exchange.scratch import (
    RESULT,
    Part,
    Scratch,
    ScratchPlace,
    ShardFile,
    open_scratch,
)
from dask_bigfft.files import LEAST, UNIT, Underway, places
from dask_bigfft.graph.carriers import Groups
from dask_bigfft.graph.tasks import Filters, Run, block_task, checked
from dask_bigfft.kernels.views import BlockView
from dask_bigfft.memory import lend
from dask_bigfft.planner.cost import PACKED
from dask_bigfft.planner.plan import Plan

#: Seconds between two looks whether a cluster still needs a graph's scratch files.
LOOK = 0.5

#: States of a worker that goes on working, and of a key that tasks are still waiting for.
ALIVE = frozenset({"running", "paused", "closing_gracefully"})
NEEDED = frozenset({"waiting", "queued", "no-worker", "processing", "memory"})

_held: dict[tuple[str, str], Scratch] = {}
_lock = threading.Lock()


def hold(scratch: Scratch, key: str) -> None:
    """Keep a folder while a cluster needs a key, however often that is pickled, spilled or lost.

    Every worker that takes part does so: those that are left go on with the files of one that died.
    """
    worker = current_worker()
    alone = worker is None and multiprocessing.parent_process() is None
    if scratch.kept or alone:  # in one process the folder goes with the object
        return
    holder = str(scratch.folder), "" if worker is None else str(worker.address)
    with _lock:
        if holder in _held:
            return
        _held[holder] = scratch
    scratch.own()
    if worker is not None:
        worker.loop.add_callback(_watch, worker, holder, key)


async def _watch(worker: Any, holder: tuple[str, str], key: str) -> None:
    """Let go of a folder when its cluster needs it no more; the last one deletes it."""
    while _kept(worker, key) or await _needed(worker, key):
        await asyncio.sleep(LOOK)
    with _lock:
        scratch = _held.pop(holder)
    await asyncio.to_thread(scratch.close)
    while worker.status.name in ALIVE and scratch.folder.exists():
        # The others let go in their own time; objects on their way hold it, too.
        await asyncio.sleep(LOOK)
        await asyncio.to_thread(remove_unused, scratch.folder)


def _kept(worker: Any, key: str) -> bool:
    """Whether this worker has a key or waits for it; not what is left of it beside results."""
    task = worker.state.tasks.get(key)
    return task is not None and task.state != "released"


async def _needed(worker: Any, key: str) -> bool:
    """Whether the scheduler will ask for tasks that use a key which this worker need not keep."""
    try:
        states = await worker.scheduler.get_task_status(keys=[key])
    except OSError:  # no connection just now, or the end of the cluster
        return worker.status.name in ALIVE
    return states.get(key) in NEEDED


Array = npt.NDArray[Any]
Block = tuple[int, ...]

#: Sizes of shards that are remembered at most, of one exchange.
MOST_SIZES = 1 << 22


def exchange_folder(part: str, number: int) -> str:
    """Return the name of an exchange's folder; `part` tells a filter's from the plan's."""
    return f"{part}exchange{number + 1}"


class Written:
    """Handle of a barrier: the checksums of all shards of a group."""

    def __init__(
        self, sources: Sequence[Block], targets: Sequence[Block], *receipts: Array
    ) -> None:
        self.sources = {block: i for i, block in enumerate(sources)}
        self.targets = {block: i for i, block in enumerate(targets)}
        self.checksums = np.array(receipts, np.uint64).reshape(len(sources), len(targets))

    def checksum(self, source: Block, target: Block) -> int:
        """Checksum of a shard."""
        return int(self.checksums[self.sources[source], self.targets[target]])


class DiskRun(Run):
    """A plan where it is executed, with scratch files.

    Parameters
    ----------
    run : Run
        What is executed.
    scratch : Scratch
        Where the files are.
    part : str
        Beginning of the folders' names.
    most : int or None
        Bytes that the arena may keep meanwhile.
    key : str
        Of the task that opened the folder: a cluster needs the files as long as it needs that.
    """

    def __init__(self, run: Run, scratch: Scratch, part: str, most: int | None, key: str) -> None:
        super().__init__(run.plan, run.token)
        self.scratch, self.part, self.arena_most, self.key = scratch, part, most, key
        self._sizes: dict[tuple[int, Block], npt.NDArray[np.int64]] = {}

    def __reduce__(self) -> Any:
        run = Run(self.plan, self.token)
        return DiskRun, (run, self.scratch, self.part, self.arena_most, self.key)

    def folder(self, number: int) -> str:
        """Name of an exchange's folder."""
        return exchange_folder(self.part, number)

    def spills(self, number: int) -> bool:
        """Whether an exchange goes through files."""
        moves = self.plan.moves
        return 0 <= number < len(moves) and moves[number]

    @cached_property
    def _groups(self) -> list[Groups]:
        return [Groups(exchange) for exchange in self.plan.exchanges]

    def targets(self, number: int, source: Block) -> list[Block]:
        """Target blocks that a source block of an exchange may have shards for."""
        groups = self._groups[number]
        group = groups.group_of(source)
        return [] if group is None else groups.targets(group)

    def sizes(self, number: int, target: Block) -> npt.NDArray[np.int64]:
        """Elements of each source block's shard of a target block, row-major."""
        found = self._sizes.get((number, target))
        if found is None:
            exchange = self.exchange(number)
            found = shard_sizes(self.map(number), target).ravel()
            if exchange.source.blocks * exchange.target.blocks <= MOST_SIZES:
                self._sizes[number, target] = found
        return found

    @property
    def assembles(self) -> bool:
        """Whether blocks are put together as shards arrive; a filter's are gathered."""
        return isinstance(self.plan, Plan) and self.plan.assembles

    def file(self, number: int, target: Block) -> tuple[ShardFile, npt.NDArray[np.int64]]:
        """File of a target block of an exchange, and where the shards of all sources begin."""
        begins = places(self.sizes(number, target) * self.exchange(number).shard_dtype.itemsize)
        return ShardFile(self.folder(number), number, target, int(begins[-1])), begins

    def parts(self, number: int, target: Block, written: Written | None) -> list[Part]:
        """Shards of a target block's file, in order."""
        exchange, (_, begins) = self.exchange(number), self.file(number, target)
        nbytes, found = self.sizes(number, target) * exchange.shard_dtype.itemsize, []
        for place in np.flatnonzero(nbytes).tolist():
            source = tuple(int(i) for i in np.unravel_index(place, exchange.source.grid))
            crc = 0 if written is None else written.checksum(source, target)
            found.append(Part(source, int(begins[place]), int(nbytes[place]), crc))
        return found

    def done(self, number: int, block: Block) -> tuple[Any] | None:
        """What the task of a block would return, if its work is recorded as done, else None.

        `number` is the exchange that the task gathers from, -1 for blocks that come in. From the
        first such question on this worker keeps the files for the others, too.
        """
        hold(self.scratch, self.key)
        following = number + 1
        if self.spills(following):
            targets = self.targets(following, block)
            receipt = self.scratch.recorded_shards(self.folder(following), block, targets)
            return None if receipt is None else (receipt,)
        last = following == len(self.plan.exchanges) and not self.part
        stored = last and self.scratch.kept and self.scratch.recorded(RESULT, block)
        return (None,) if stored else None

    def deliver(self, number: int, block: Block, values: Array) -> Array:
        """Hand a block on: its receipt after its shards are written, else the block.

        The file that it came from goes once that is recorded. A block that is handed on itself
        may be asked for again, when a worker is lost or where dask has fused two tasks with this
        one, so its file stays until all are done.
        """
        if not self.spills(number + 1):
            return values
        receipt = _write(self, number + 1, block, values)
        if self.spills(number):
            self.scratch.free(self.folder(number), block)
        return receipt


# --- tasks ----------------------------------------------------------------------------------


def start_run(run: Run, place: ScratchPlace, key: str) -> DiskRun:
    """Return a run with a scratch folder, which goes when the key `key` is needed no more."""
    shared = current_worker() is not None or multiprocessing.parent_process() is not None
    scratch = open_scratch(place, shared)
    hold(scratch, key)
    return DiskRun(run, scratch, "", place.memory, key)


def start_filter(parent: DiskRun, run: Run, part: str) -> DiskRun:
    """Return the run of a filter, whose files lie beside its plan's."""
    return DiskRun(run, parent.scratch, part, parent.arena_most, parent.key)


@block_task
def write_source(run: DiskRun, number: int, block: Block, filters: Filters, values: Any) -> Array:
    """Return a block that comes in, whose shards are then written."""
    return checked(run, 0, block, values)


@block_task
def run_block_of_file(
    run: DiskRun, number: int, block: Block, filters: Filters, written: Written
) -> Array:
    """Return a block read from its file, and taken through its round.

    `written` is the handle of the block's group.
    """
    return run.finish(number, block, lambda: _read(run, number, block, written), filters)


@block_task
def run_block_of_rows(
    run: DiskRun, number: int, block: Block, filters: Filters, stored: Any
) -> Array:
    """Return a block read from a stored array, and taken through the first round.

    `stored` is the array: has `fill`, see `ScratchPlace`.
    """
    return run.finish(number, block, lambda: _read_rows(run, block, stored), filters)


# --- files ----------------------------------------------------------------------------------


def _write(run: DiskRun, number: int, source: Block, values: Array) -> Array:
    """Write all shards of a source block, then say so; return their checksums."""
    exchange, folder = run.exchange(number), run.folder(number)
    place = int(np.ravel_multi_index(source, exchange.source.grid))
    targets, dtype = run.targets(number, source), exchange.shard_dtype
    values = np.asarray(values).astype(exchange.source_dtype, copy=False)
    grid = tuple(map(range, exchange.target.grid))
    nbytes = {target: int(run.sizes(number, target)[place]) * dtype.itemsize for target in targets}
    part_of = dict(zip(targets, _parts(list(nbytes.values())), strict=True))
    # Where shards are large, each one begins at a whole unit, in memory as in the file.
    large = UNIT % dtype.itemsize == 0 and sum(nbytes.values()) >= LEAST * len(targets)
    unit = UNIT // dtype.itemsize if large else 1
    checksums = dict.fromkeys(targets, 0)

    def write(target: Block, shard: Array) -> tuple[Block, int]:
        """Write a shard; return its target and checksum."""
        whole, begins = run.file(number, target)
        begin, end = int(begins[place]), int(begins[place + 1])
        data = shard.reshape(-1).view(np.uint8)[: end - begin]
        return target, run.scratch.write(whole, begin, data, nbytes[target])

    started = time.perf_counter()
    kind = np.dtype(exchange.dtype)
    parts = packed(run.map(number), grid, source, values, kind, part_of.__getitem__, unit)
    with Underway[tuple[Block, int]]() as calls:
        for _, blocks, bounds, shards in parts:
            seconds = time.perf_counter() - started
            emit("pack", index=number + 1, nbytes=shards.nbytes, seconds=seconds)
            checksums |= calls.results()  # what was packed before is written
            for index, cut in zip(blocks.tolist(), itertools.pairwise(bounds), strict=True):
                target, shard = tuple(index), shards[slice(*cut)]
                calls.start(shard.nbytes, partial(write, target, shard))
            del shards, shard
            started = time.perf_counter()
        checksums |= calls.results()
    receipt = np.array([checksums[target] for target in targets], np.uint64)
    run.scratch.record_shards(folder, source, targets, receipt)
    return receipt


def _parts(nbytes: list[int]) -> list[int]:
    """Number shards so that those of one number can be packed in a buffer of limited size.

    >>> _parts([PACKED // 2, PACKED // 2, 1, 2 * PACKED])
    [0, 0, 1, 2]
    """
    found, part, filled = [], 0, 0
    for size in nbytes:
        if filled and filled + size > PACKED:
            part, filled = part + 1, 0
        found.append(part)
        filled += size
    return found


def _read(run: DiskRun, number: int, target: Block, written: Written) -> BlockView:
    """A block's shards, read from its file in one go."""
    (whole, _), parts = run.file(number, target), run.parts(number, target, written)
    exchange = run.exchange(number)
    if not run.assembles:
        packed = lend((whole.nbytes,), np.uint8)
        run.scratch.read(whole, parts, lambda begin, end: packed[begin:end])
        shards = _shards(parts, packed, 0, exchange.shard_dtype)
        return run.view(number, target, shards.__getitem__, packed=True)
    dtype = np.dtype(exchange.dtype)
    arriving = Arriving(run.map(number), target, dtype, exchange.shard_dtype)

    def take(some: Sequence[Part], out: Array) -> None:
        arriving.take(_shards(some, out, some[0].begin, exchange.shard_dtype))

    run.scratch.read(whole, parts, lambda begin, end: lend((end - begin,), np.uint8), take)
    return _there(run, number, target, arriving.values)


def _read_rows(run: DiskRun, target: Block, stored: Any) -> BlockView:
    """A block's shards, read as rows of the stored array."""
    started, exchange = time.perf_counter(), run.exchange(0)
    memory: Array | dict[Block, Array]
    if run.assembles:
        memory = fresh_block(run.map(0), target, np.dtype(exchange.dtype))
        view = _there(run, 0, target, memory)
    else:
        packed = lend((run.file(0, target)[0].nbytes,), np.uint8)
        memory = _shards(run.parts(0, target, None), packed, 0, exchange.shard_dtype)
        view = run.view(0, target, memory.__getitem__, packed=True)
    with Underway[object]() as calls:
        for region, place in stored_regions(run.map(0), target, memory):
            calls.start(place.nbytes if stored.anywhere else 0, partial(stored.fill, region, place))
        calls.results()
    nbytes = int(run.sizes(0, target).sum()) * exchange.shard_dtype.itemsize
    emit("source_read", nbytes=nbytes, seconds=time.perf_counter() - started)
    return view


def _there(run: DiskRun, number: int, block: Block, values: Array) -> BlockView:
    """A block that is put together; the round that follows works in its place, if it can."""
    if number == len(run.plan.rounds):
        return BlockView.of(values, owned=True)
    after = run.plan.rounds[number].target.shape(block)
    same = after == values.shape and np.dtype(run.plan.dtypes[2 * number + 1]) == values.dtype
    return BlockView.of(values, target=values if same else None)


def _shards(
    parts: Sequence[Part], memory: Array, first: int, dtype: np.dtype[Any]
) -> dict[Block, Array]:
    """Shards in memory for bytes of their file from `first` on."""
    begins = {part.source: (part.begin - first, part.nbytes) for part in parts}
    return {b: memory[at : at + nbytes].view(dtype) for b, (at, nbytes) in begins.items()}
