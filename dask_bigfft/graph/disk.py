"""Functions of the tasks of a graph whose exchanges go through scratch files.

The task of a source block writes its shards and returns a *receipt*, their checksums. The barrier
of a group collects the receipts. The task of a target block reads its file, computes the round and
writes the shards of the next exchange, so that no block waits in memory::

    source block -> write -> barrier -> read + round + write -> barrier -> read + round -> result

If the plan says so, the first round reads rows of the stored array instead of a file of shards,
and the chunks of the result are cut from the last round's blocks without a file between them.

Work that is recorded as written is not repeated, neither by another worker nor by a run that
resumes a killed one. Files stay as long as a cluster needs the key of the task that opened their
folder (`hold`).
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

from dask_bigfft.arrays import Array, Block, Ints
from dask_bigfft.events import current_worker, emit
from dask_bigfft.exchange.folders import remove_unused
from dask_bigfft.exchange.gather import stored_regions
from dask_bigfft.exchange.packing import IncrementalGather, fresh_block, packed, shard_sizes
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
from dask_bigfft.graph.tasks import Filters, PlanRun, block_task, checked
from dask_bigfft.kernels.views import BlockView
from dask_bigfft.memory import allocate
from dask_bigfft.planner.memory import PACKED

#: Seconds between two checks of whether a cluster still needs a graph's scratch files.
LOOK = 0.5

#: States of a worker that keeps working, and of a key that tasks still need.
ALIVE = frozenset({"running", "paused", "closing_gracefully"})
NEEDED = frozenset({"waiting", "queued", "no-worker", "processing", "memory"})

_held: dict[tuple[str, str], Scratch] = {}
_lock = threading.Lock()


def hold(scratch: Scratch, key: str) -> None:
    """Keep a folder while a cluster needs a key, even if that is pickled, spilled or lost.

    Every worker that takes part does so: if one dies, the others keep its files.
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
    """Release a folder when its cluster no longer needs it; the last worker deletes it."""
    while await _needed(worker, key):
        await asyncio.sleep(LOOK)
    with _lock:
        scratch = _held.pop(holder)
    await asyncio.to_thread(scratch.close)
    while worker.status.name in ALIVE and scratch.folder.exists():
        # Other workers and objects in transit may still hold it.
        await asyncio.sleep(LOOK)
        await asyncio.to_thread(remove_unused, scratch.folder)


async def _needed(worker: Any, key: str) -> bool:
    """Return whether this worker has a key or waits for it, or the scheduler still needs it."""
    task = worker.state.tasks.get(key)
    if task is not None and task.state != "released":
        return True
    try:
        states = await worker.scheduler.get_task_status(keys=[key])
    except OSError:  # connection lost, or the cluster has ended
        return worker.status.name in ALIVE
    return states.get(key) in NEEDED


#: Maximum number of cached shard sizes of one exchange.
MOST_SIZES = 1 << 22


def exchange_folder(part: str, number: int) -> str:
    """Return the name of an exchange's folder; `part` is the prefix of a filter's folders."""
    return f"{part}exchange{number + 1}"


class Written:
    """Handle of a barrier: checksums of all shards of a group."""

    def __init__(
        self, sources: Sequence[Block], targets: Sequence[Block], *receipts: Array
    ) -> None:
        self.sources = {block: i for i, block in enumerate(sources)}
        self.targets = {block: i for i, block in enumerate(targets)}
        self.checksums = np.array(receipts, np.uint64).reshape(len(sources), len(targets))

    def checksum(self, source: Block, target: Block) -> int:
        """Return the checksum of a shard."""
        return int(self.checksums[self.sources[source], self.targets[target]])


class DiskRun(PlanRun):
    """Plan where it is executed, with scratch files.

    Parameters
    ----------
    run : PlanRun
        Plan that is executed.
    scratch : Scratch
        Folder of the files.
    part : str
        Prefix of the names of subfolders.
    most : int or None
        Maximum number of bytes that the arena keeps meanwhile.
    key : str
        Key of the task that opened the folder; a cluster needs the files as long as this key.
    """

    def __init__(
        self, run: PlanRun, scratch: Scratch, part: str, most: int | None, key: str
    ) -> None:
        super().__init__(run.plan, run.token)
        self.scratch, self.part, self.arena_most, self.key = scratch, part, most, key
        self._sizes: dict[tuple[int, Block], Ints] = {}

    def __reduce__(self) -> Any:
        run = PlanRun(self.plan, self.token)
        return DiskRun, (run, self.scratch, self.part, self.arena_most, self.key)

    def folder(self, number: int) -> str:
        """Return the name of an exchange's folder."""
        return exchange_folder(self.part, number)

    def spills(self, number: int) -> bool:
        """Return whether an exchange goes through files."""
        moves = self.plan.moves
        return 0 <= number < len(moves) and moves[number]

    @cached_property
    def _groups(self) -> list[Groups]:
        return [Groups(exchange) for exchange in self.plan.exchanges]

    def targets(self, number: int, source: Block) -> list[Block]:
        """Return the target blocks for which a source block may have shards."""
        groups = self._groups[number]
        group = groups.group_of(source)
        return [] if group is None else groups.targets(group)

    def sizes(self, number: int, target: Block) -> Ints:
        """Return the number of elements of each source block's shard of a target block."""
        found = self._sizes.get((number, target))
        if found is None:
            exchange = self.exchange(number)
            found = shard_sizes(self.map(number), target).ravel()
            if exchange.source.blocks * exchange.target.blocks <= MOST_SIZES:
                self._sizes[number, target] = found
        return found

    def file(self, number: int, target: Block) -> tuple[ShardFile, Ints]:
        """Return the file of a target block, and the first byte of each source's shard in it."""
        begins = places(self.sizes(number, target) * self.exchange(number).shard_dtype.itemsize)
        return ShardFile(self.folder(number), number, target, int(begins[-1])), begins

    def parts(self, number: int, target: Block, written: Written | None) -> list[Part]:
        """Return the shards of a target block's file, in order."""
        exchange, (_, begins) = self.exchange(number), self.file(number, target)
        nbytes, found = self.sizes(number, target) * exchange.shard_dtype.itemsize, []
        for place in np.flatnonzero(nbytes).tolist():
            source = tuple(int(i) for i in np.unravel_index(place, exchange.source.grid))
            crc = 0 if written is None else written.checksum(source, target)
            found.append(Part(source, int(begins[place]), int(nbytes[place]), crc))
        return found

    def done(self, number: int, block: Block) -> tuple[Any] | None:
        """Return the recorded result of the task of a block, in a tuple, or None.

        `number` is the exchange from which the task gathers, -1 for source blocks. From the first
        call on this worker keeps the files for the others, too.
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
        """Return the result of a task: a receipt after its shards are written, or the block.

        The source file is deleted once the receipt is recorded. If the block itself is returned,
        its task may be repeated, after the loss of a worker or because dask has fused it with two
        others. Its file therefore stays until the end.
        """
        if not self.spills(number + 1):
            return values
        receipt = _write(self, number + 1, block, values)
        if self.spills(number):
            self.scratch.free(self.folder(number), block)
        return receipt


# --- tasks ----------------------------------------------------------------------------------


def start_run(run: PlanRun, place: ScratchPlace, key: str) -> DiskRun:
    """Return a run with a scratch folder, which is deleted when `key` is no longer needed."""
    shared = current_worker() is not None or multiprocessing.parent_process() is not None
    scratch = open_scratch(place, shared)
    hold(scratch, key)
    return DiskRun(run, scratch, "", place.memory, key)


def start_filter(parent: DiskRun, run: PlanRun, part: str) -> DiskRun:
    """Return the run of a filter, whose files are in the folder of its plan."""
    return DiskRun(run, parent.scratch, part, parent.arena_most, parent.key)


@block_task
def write_source(run: DiskRun, number: int, block: Block, filters: Filters, values: Any) -> Array:
    """Return a source block, whose shards are then written."""
    return checked(run, 0, block, values)


@block_task
def run_block_of_file(
    run: DiskRun, number: int, block: Block, filters: Filters, stored: Any
) -> Array:
    """Return a block read from its file, or before the first round from an array, after its round.

    `stored` is the handle of the block's group, or the stored array; see `ScratchPlace`.
    """
    read = _read if isinstance(stored, Written) else _read_rows
    return run.finish(number, block, lambda: read(run, number, block, stored), filters)


# --- files ----------------------------------------------------------------------------------


def _write(run: DiskRun, number: int, source: Block, values: Array) -> Array:
    """Write all shards of a source block, then a record of them; return their checksums."""
    exchange, folder = run.exchange(number), run.folder(number)
    place = int(np.ravel_multi_index(source, exchange.source.grid))
    targets, dtype = run.targets(number, source), exchange.shard_dtype
    values = np.asarray(values).astype(exchange.source_dtype, copy=False)
    grid = tuple(map(range, exchange.target.grid))
    nbytes = {target: int(run.sizes(number, target)[place]) * dtype.itemsize for target in targets}
    part_of = dict(zip(targets, _parts(list(nbytes.values())), strict=True))
    # Large shards are aligned to whole units, in memory and in the file.
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
            checksums |= calls.results()  # wait until the previous shards are written
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
    """Return a part number for each shard, so that a buffer of limited size holds each part.

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
    """Return the view of a block whose shards are read from its file in order."""
    (whole, _), parts = run.file(number, target), run.parts(number, target, written)
    exchange = run.exchange(number)
    if not run.plan.assembles:
        packed = allocate((whole.nbytes,), np.uint8)
        run.scratch.read(whole, parts, lambda begin, end: packed[begin:end])
        shards = _shards(parts, packed, 0, exchange.shard_dtype)
        return run.view(number, target, shards.__getitem__, packed=True)
    dtype = np.dtype(exchange.dtype)
    incremental = IncrementalGather(run.map(number), target, dtype, exchange.shard_dtype)

    def take(some: Sequence[Part], out: Array) -> None:
        incremental.take(_shards(some, out, some[0].begin, exchange.shard_dtype))

    run.scratch.read(whole, parts, lambda begin, end: allocate((end - begin,), np.uint8), take)
    return _there(run, number, target, incremental.values)


def _read_rows(run: DiskRun, number: int, target: Block, stored: Any) -> BlockView:
    """Return the view of a block whose shards are read as rows of the stored array."""
    started, exchange = time.perf_counter(), run.exchange(number)
    memory: Array | dict[Block, Array]
    if run.plan.assembles:
        memory = fresh_block(run.map(number), target, np.dtype(exchange.dtype))
        view = _there(run, number, target, memory)
    else:
        packed = allocate((run.file(number, target)[0].nbytes,), np.uint8)
        memory = _shards(run.parts(number, target, None), packed, 0, exchange.shard_dtype)
        view = run.view(number, target, memory.__getitem__, packed=True)
    with Underway[object]() as calls:
        for region, place in stored_regions(run.map(number), target, memory):
            calls.start(place.nbytes if stored.anywhere else 0, partial(stored.fill, region, place))
        calls.results()
    nbytes = int(run.sizes(number, target).sum()) * exchange.shard_dtype.itemsize
    emit("source_read", nbytes=nbytes, seconds=time.perf_counter() - started)
    return view


def _there(run: DiskRun, number: int, block: Block, values: Array) -> BlockView:
    """Return the view of an assembled block; the following round works in place if possible."""
    if number == len(run.plan.rounds):
        return BlockView.of(values, owned=True)
    after = run.plan.rounds[number].target.shape(block)
    same = after == values.shape and np.dtype(run.plan.dtypes[2 * number + 1]) == values.dtype
    return BlockView.of(values, target=values if same else None)


def _shards(
    parts: Sequence[Part], memory: Array, first: int, dtype: np.dtype[Any]
) -> dict[Block, Array]:
    """Return shards by block as views of memory that holds their file from byte `first` on."""
    begins = {part.source: (part.begin - first, part.nbytes) for part in parts}
    return {b: memory[at : at + nbytes].view(dtype) for b, (at, nbytes) in begins.items()}
