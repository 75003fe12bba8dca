"""The carrier `disk`: exchanges go through scratch files.

The task of a source block writes its shards and returns a *receipt*, their checksums. The barrier
of a group collects the receipts. The task of a target block reads its file, computes the round and
writes the shards of the next exchange, so that no block waits in memory::

    source block -> write -> barrier -> read + round + write -> barrier -> read + round -> result

If the plan says so, the first round reads rows of the stored array instead of a file of shards,
and the chunks of the result are cut from the last round's blocks without a file between them.

Work that is recorded as written is not repeated, neither by another worker nor by a run that
resumes a killed one. Files stay as long as a cluster needs the key of the task that opened their
folder (`scratch_lifetime`).
"""

import itertools
import multiprocessing
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from dask_bigfft import config
from dask_bigfft.arrays import Array, Block, Ints
from dask_bigfft.carriers.base import Carrier, Stage
from dask_bigfft.carriers.groups import Groups
from dask_bigfft.carriers.names import Graph, Names, block_ref
from dask_bigfft.carriers.run import (
    Operands,
    PlanRun,
    TaskFunction,
    block_task,
    checked,
)
from dask_bigfft.carriers.scratch_lifetime import hold
from dask_bigfft.dask_private import DataNode, Task, TaskRef
from dask_bigfft.events import current_worker, emit
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
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.files import LEAST, UNIT, Underway, places
from dask_bigfft.kernels.views import BlockView
from dask_bigfft.memory import allocate
from dask_bigfft.planner.memory import PACKED, arena_nbytes
from dask_bigfft.planner.plan import Plan

#: Maximum number of cached shard sizes of one exchange.
MAX_CACHED_SIZES = 1 << 22


def exchange_folder(part: str, number: int) -> str:
    """Return the name of an exchange's folder; `part` is the prefix of a filter's folders."""
    return f"{part}exchange{number + 1}"


def scratch_place(plan: Plan) -> ScratchPlace:
    """Return the location of a plan's scratch files according to the settings."""
    directory = config.get("bigfft.scratch.directory")
    sync = config.get("bigfft.scratch.sync")
    return ScratchPlace(
        directory,
        name="",
        sync=sync,
        needed=plan.expected.scratch,
        memory=arena_nbytes(plan) if plan.is_transform else None,
    )


class Disk(Carrier):
    """Carrier whose exchanges go through scratch files."""

    storage = "disk"
    reuses_tasks = False

    def __post_init__(self) -> None:
        #: Blocks that an earlier run has finished, by the exchange for which they are written.
        self.finished = dict(self.place.finished) if self.place is not None else {}

    @staticmethod
    def new_place(plan: Plan) -> ScratchPlace:
        """Return the location of a plan's scratch files according to the settings."""
        return scratch_place(plan)

    @staticmethod
    def fitted(plan: Plan, place: ScratchPlace | None) -> Plan:
        """Return the plan, which reads rows only where the array is in files."""
        if plan.from_rows and place is not None and place.rows is None:
            return replace(plan, from_rows=False)
        return plan

    def add_plan(self, graph: Graph, run: PlanRun) -> None:
        """Add the task that opens the folder of the files; a filter uses the folder of its plan."""
        names = self.names[-1]
        key = names("plan")
        if self.place is None:
            parent = TaskRef(Names(names.token)("plan"))
            graph[key] = Task(
                key,
                start_filter,
                parent,
                run,
                names.part,
            )
        else:
            graph[key] = Task(
                key,
                start_run,
                run,
                replace(self.place, rows=None),
                key,
            )

    def add_sources(self, graph: Graph, source_name: str) -> str:
        """Add the tasks that write source blocks, or the array whose rows are read."""
        names = self.names[-1]
        if self.plan.from_rows and self.place is not None:
            graph[names("rows")] = DataNode(names("rows"), self.place.rows)
            return source_name
        if not self.plan.moves[0]:
            return source_name
        stage = Stage(
            graph,
            self.plan,
            number=-1,
            names=names,
            source_name=source_name,
            name=names("pack", 0),
        )
        for block in self.plan.exchanges[0].source.indices():
            self.add_block(
                stage,
                block,
                write_source,
                block_ref(source_name, block),
            )
        return stage.name

    def add(self, stage: Stage) -> str:
        """Add the tasks of a stage; return the name of the blocks for the next one."""
        if stage.number == 0 and self.plan.from_rows:
            rows = TaskRef(stage.names("rows"))
            for block in stage.exchange.target.indices():
                self.add_block(
                    stage,
                    block,
                    run_block_of_file,
                    rows,
                )
        elif self.plan.moves[stage.number]:
            self.add_travelling(stage)
        elif stage.exchange.local:
            self.add_groups(stage)
        else:
            self._add_cut_blocks(stage)
        return stage.name

    def _add_cut_blocks(self, stage: Stage) -> None:
        """Add target blocks that are parts of source blocks."""
        shards = ExchangeMap(stage.exchange.source, stage.exchange.target)
        for block in stage.exchange.target.indices():
            self.add_direct(stage, [block], sorted(shards.sources(block)))

    def add_travelling(self, stage: Stage) -> None:
        """Add the tasks of an exchange through files, and of its round.

        Each group has a barrier, on which the tasks depend that read the files of its target
        blocks.
        """
        name = stage.names("barrier", stage.number)
        for group, sources, targets in Groups(stage.exchange):
            receipts = stage.refs(sources)
            written = stage.put(
                name,
                group,
                Written,
                tuple(sources),
                tuple(targets),
                *receipts,
            )
            for block in targets:
                self.add_block(
                    stage,
                    block,
                    run_block_of_file,
                    written,
                )

    def add_block(self, stage: Stage, block: Block, function: TaskFunction, *inputs: Any) -> None:
        """Add the task of a target block; that of a finished one only looks up its result."""
        if block in self.finished.get(stage.number + 1, ()):
            stage.put_block(block, function, [tuple(stage.operands)])
        else:
            super().add_block(
                stage,
                block,
                function,
                *inputs,
            )


# --- tasks ----------------------------------------------------------------------------------


class Written:
    """Handle of a barrier: checksums of all shards of a group."""

    def __init__(
        self,
        sources: Sequence[Block],
        targets: Sequence[Block],
        *receipts: Array,
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
    arena_nbytes : int or None
        Maximum number of bytes that the arena keeps meanwhile.
    key : str
        Key of the task that opened the folder; a cluster needs the files as long as this key.
    """

    def __init__(
        self,
        run: PlanRun,
        scratch: Scratch,
        part: str,
        arena_nbytes: int | None,
        key: str,
    ) -> None:
        super().__init__(run.plan, run.token)
        self.scratch = scratch
        self.part = part
        self.arena_nbytes = arena_nbytes
        self.key = key
        self._sizes: dict[tuple[int, Block], Ints] = {}

    def __reduce__(self) -> Any:
        run = PlanRun(self.plan, self.token)
        return DiskRun, (run, self.scratch, self.part, self.arena_nbytes, self.key)

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
        sizes = self._sizes.get((number, target))
        if sizes is None:
            sizes = shard_sizes(self.map(number), target).ravel()
            exchange = self.exchange(number)
            if exchange.source.blocks * exchange.target.blocks <= MAX_CACHED_SIZES:
                self._sizes[number, target] = sizes
        return sizes

    def file(self, number: int, target: Block) -> tuple[ShardFile, Ints]:
        """Return the file of a target block, and the first byte of each source's shard in it."""
        itemsize = self.exchange(number).shard_dtype.itemsize
        begins = places(self.sizes(number, target) * itemsize)
        return ShardFile(
            self.folder(number),
            number,
            target,
            int(begins[-1]),
        ), begins

    def parts(self, number: int, target: Block, written: Written | None) -> list[Part]:
        """Return the shards of a target block's file in the order of the source blocks.

        Empty shards are left out. Without a record of what was `written`, checksums are 0.
        """
        exchange = self.exchange(number)
        _, begins = self.file(number, target)
        nbytes = self.sizes(number, target) * exchange.shard_dtype.itemsize
        parts = []
        for place in np.flatnonzero(nbytes).tolist():
            source = tuple(int(i) for i in np.unravel_index(place, exchange.source.grid))
            checksum = 0 if written is None else written.checksum(source, target)
            parts.append(
                Part(
                    source,
                    int(begins[place]),
                    int(nbytes[place]),
                    checksum,
                )
            )
        return parts

    def write_shard(
        self,
        number: int,
        target: Block,
        place: int,
        shard: Array,
        nbytes: int,
    ) -> tuple[Block, int]:
        """Write a shard to the file of its target block; return the block and the checksum.

        `place` is the number of the source block. Padding may follow the `nbytes` of the shard; it
        becomes 0, also in its memory, and is no part of the checksum.
        """
        file, begins = self.file(number, target)
        begin = int(begins[place])
        padded_nbytes = int(begins[place + 1]) - begin
        data = shard.reshape(-1).view(np.uint8)[:padded_nbytes]
        checksum = self.scratch.write(
            file,
            begin,
            data,
            nbytes,
        )
        return target, checksum

    def recorded(self, number: int, block: Block) -> tuple[Any] | None:
        """Return the recorded result of the task of a block, in a tuple, or None.

        The result of a block that is stored already is None, in a tuple. `number` is the exchange
        from which the task gathers, -1 for source blocks. From the first call on this worker keeps
        the files for the others, too.
        """
        hold(self.scratch, self.key)
        following = number + 1
        if self.spills(following):
            targets = self.targets(following, block)
            receipt = self.scratch.recorded_shards(self.folder(following), block, targets)
            return None if receipt is None else (receipt,)
        is_result = following == len(self.plan.exchanges) and not self.part
        is_stored = is_result and self.scratch.kept and self.scratch.recorded(RESULT, block)
        return (None,) if is_stored else None

    def deliver(self, number: int, block: Block, values: Array) -> Array:
        """Return the result of a task: a receipt after its shards are written, or the block.

        The source file is deleted once the receipt is recorded. If the block itself is returned,
        its task may be repeated, after the loss of a worker or because dask has fused it with two
        others. Its file therefore stays until the end.
        """
        if not self.spills(number + 1):
            return values
        receipt = _write(
            self,
            number + 1,
            block,
            values,
        )
        if self.spills(number):
            self.scratch.free(self.folder(number), block)
        return receipt


def start_run(run: PlanRun, place: ScratchPlace, key: str) -> DiskRun:
    """Return a run with a scratch folder, which is deleted when `key` is no longer needed."""
    is_shared = current_worker() is not None or multiprocessing.parent_process() is not None
    scratch = open_scratch(place, is_shared)
    hold(scratch, key)
    return DiskRun(
        run,
        scratch,
        part="",
        arena_nbytes=place.memory,
        key=key,
    )


def start_filter(parent: DiskRun, run: PlanRun, part: str) -> DiskRun:
    """Return the run of a filter, whose files are in the folder of its plan."""
    return DiskRun(
        run,
        parent.scratch,
        part,
        parent.arena_nbytes,
        parent.key,
    )


@block_task
def write_source(
    run: DiskRun,
    number: int,
    block: Block,
    operands: Operands,
    values: Any,
) -> Array:
    """Return a source block, whose shards are then written."""
    return checked(
        run,
        0,
        block,
        values,
    )


@block_task
def run_block_of_file(
    run: DiskRun,
    number: int,
    block: Block,
    operands: Operands,
    stored: Any,
) -> Array:
    """Return a block read from its file, or before the first round from an array, after its round.

    `stored` is the handle of the block's group, or the stored array; see `ScratchPlace`. The task
    passes its inputs by `block_task`, which also returns a receipt where the block is recorded.
    """
    read = _read if isinstance(stored, Written) else _read_rows
    return run.finish(
        number,
        block,
        lambda: read(
            run,
            number,
            block,
            stored,
        ),
        operands,
    )


# --- files ----------------------------------------------------------------------------------


def _write(
    run: DiskRun,
    number: int,
    source: Block,
    values: Array,
) -> Array:
    """Write all shards of a source block, then a record of them; return their checksums."""
    exchange = run.exchange(number)
    itemsize = exchange.shard_dtype.itemsize
    place = int(np.ravel_multi_index(source, exchange.source.grid))
    targets = run.targets(number, source)
    nbytes = {target: int(run.sizes(number, target)[place]) * itemsize for target in targets}
    part_of = dict(zip(targets, _parts(list(nbytes.values())), strict=True))
    # Large shards are aligned to whole units, in memory and in the file.
    is_large = UNIT % itemsize == 0 and sum(nbytes.values()) >= LEAST * len(targets)
    unit = UNIT // itemsize if is_large else 1
    checksums = dict.fromkeys(targets, 0)
    started = time.perf_counter()
    parts = packed(
        run.map(number),
        tuple(map(range, exchange.target.grid)),
        source,
        np.asarray(values).astype(exchange.source_dtype, copy=False),
        np.dtype(exchange.dtype),
        owner_of=part_of.__getitem__,
        unit=unit,
    )
    with Underway[tuple[Block, int]]() as calls:
        for _, blocks, bounds, shards in parts:
            seconds = time.perf_counter() - started
            emit(
                "pack",
                index=number + 1,
                nbytes=shards.nbytes,
                seconds=seconds,
            )
            checksums |= calls.results()  # wait until the previous shards are written
            for index, cut in zip(blocks.tolist(), itertools.pairwise(bounds), strict=True):
                target = tuple(index)
                shard = shards[slice(*cut)]
                write = partial(
                    run.write_shard,
                    number,
                    target,
                    place,
                    shard,
                    nbytes[target],
                )
                calls.start(shard.nbytes, write)
            del shards, shard, write
            started = time.perf_counter()
        checksums |= calls.results()
    receipt = np.array([checksums[target] for target in targets], np.uint64)
    run.scratch.record_shards(
        run.folder(number),
        source,
        targets,
        receipt,
    )
    return receipt


def _parts(nbytes: list[int]) -> list[int]:
    """Return a part number for each shard, so that a buffer of limited size holds each part.

    >>> _parts([PACKED // 2, PACKED // 2, 1, 2 * PACKED])
    [0, 0, 1, 2]
    """
    numbers = []
    part = 0
    part_nbytes = 0
    for size in nbytes:
        if part_nbytes and part_nbytes + size > PACKED:
            part += 1
            part_nbytes = 0
        numbers.append(part)
        part_nbytes += size
    return numbers


def _read(
    run: DiskRun,
    number: int,
    target: Block,
    written: Written,
) -> BlockView:
    """Return the view of a block whose shards are read from its file in order."""
    file, _ = run.file(number, target)
    parts = run.parts(number, target, written)
    exchange = run.exchange(number)
    if not run.plan.assembles:
        memory = allocate((file.nbytes,), np.uint8)
        run.scratch.read(file, parts, lambda begin, end: memory[begin:end])
        shards = _shards(
            parts,
            memory,
            0,
            exchange.shard_dtype,
        )
        return run.view(
            number,
            target,
            shards.__getitem__,
            packed=True,
        )
    dtype = np.dtype(exchange.dtype)
    incremental = IncrementalGather(
        run.map(number),
        target,
        dtype,
        exchange.shard_dtype,
    )

    def take(some_parts: Sequence[Part], data: Array) -> None:
        shards = _shards(
            some_parts,
            data,
            some_parts[0].begin,
            exchange.shard_dtype,
        )
        incremental.take(shards)

    run.scratch.read(
        file,
        parts,
        lambda begin, end: allocate((end - begin,), np.uint8),
        take,
    )
    return _assembled_view(
        run,
        number,
        target,
        incremental.values,
    )


def _read_rows(
    run: DiskRun,
    number: int,
    target: Block,
    stored: Any,
) -> BlockView:
    """Return the view of a block whose shards are read as rows of the stored array."""
    started = time.perf_counter()
    exchange = run.exchange(number)
    memory: Array | dict[Block, Array]
    if run.plan.assembles:
        memory = fresh_block(run.map(number), target, np.dtype(exchange.dtype))
        view = _assembled_view(
            run,
            number,
            target,
            memory,
        )
    else:
        file, _ = run.file(number, target)
        data = allocate((file.nbytes,), np.uint8)
        memory = _shards(
            run.parts(number, target, None),
            data,
            0,
            exchange.shard_dtype,
        )
        view = run.view(
            number,
            target,
            memory.__getitem__,
            packed=True,
        )
    with Underway[object]() as calls:
        for region, place in stored_regions(run.map(number), target, memory):
            concurrent_nbytes = place.nbytes if stored.anywhere else 0
            calls.start(concurrent_nbytes, partial(stored.fill, region, place))
        calls.results()
    nbytes = int(run.sizes(number, target).sum()) * exchange.shard_dtype.itemsize
    emit("source_read", nbytes=nbytes, seconds=time.perf_counter() - started)
    return view


def _assembled_view(
    run: DiskRun,
    number: int,
    block: Block,
    values: Array,
) -> BlockView:
    """Return the view of an assembled block; the following round works in place if possible."""
    if number == len(run.plan.rounds):
        return BlockView.of(values, owned=True)
    shape_after = run.plan.rounds[number].target.shape(block)
    dtype_after = np.dtype(run.plan.dtypes[2 * number + 1])
    fits = shape_after == values.shape and dtype_after == values.dtype
    return BlockView.of(values, target=values if fits else None)


def _shards(
    parts: Sequence[Part],
    memory: Array,
    first: int,
    dtype: np.dtype[Any],
) -> dict[Block, Array]:
    """Return shards by block as views of memory that holds their file from byte `first` on."""
    shards = {}
    for part in parts:
        begin = part.begin - first
        shards[part.source] = memory[begin : begin + part.nbytes].view(dtype)
    return shards
