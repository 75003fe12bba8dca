"""From a plan to tasks, exchange by exchange.

::

    source blocks -> barrier -> gather + round -> barrier -> gather + round -> (barrier -> unpack)

A barrier serves one connected group of an exchange: it needs p + q edges, all-to-all needs p*q.
Blocks with few source blocks, as in a shift, depend on these directly. Between processes shards
are sent::

    tasks   source blocks -> a task for every shard -> gather + round
    p2p     source blocks -> pack and send -> shuffle barrier -> collect + gather + round (+ send)
    disk    source blocks -> write -> barrier -> read + gather + round + write -> barrier -> ...

With scratch files a task returns the checksums of the shards that it has written, not a block.
Exchanges without communication, and those with few source blocks per block, need no barrier
with any carrier.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dask_bigfft import config
from dask_bigfft.arrays import Block
from dask_bigfft.dask_private import Alias, DataNode, Task, TaskRef
from dask_bigfft.errors import CarrierError
from dask_bigfft.exchange.scratch import ScratchPlace
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.graph import carriers, disk, tasks
from dask_bigfft.graph.carriers import (
    ON_GPUS,
    Cut,
    Graph,
    Groups,
    Key,
    Known,
    Names,
    Shuffles,
    block_ref,
    p2p,
    shuffles_of,
)
from dask_bigfft.graph.tasks import PlanRun
from dask_bigfft.planner.plan_data import Operand, PlanData, SharedAxis
from dask_bigfft.transforms.rounds import shared_blocks

Function = Callable[..., Any]

#: Maximum number of shard tasks of one exchange with the `tasks` carrier.
MAX_SHARD_TASKS = 2_000_000

#: Maximum number of tasks that send the blocks of a round: with more blocks, each sends several.
MOST_SENDERS = 1 << 13

#: Maximum bytes of source blocks of such a task, which needs them at the same time.
MOST_TOGETHER = 4 << 20

#: Maximum number of source blocks on which a target block depends directly.
FEW = 8


class Builder:
    """Builder of the tasks of a plan, or of one of its filters, exchange by exchange.

    Parameters
    ----------
    graph : dict
        Graph to which tasks are added.
    plan : PlanData
        Plan of the tasks.
    names : list of Names
        Names of the tasks, by exchange.
    carrier, wanted, place
        See `build_graph`. A filter has no place.
    alone : bool
        Whether only this plan reads the blocks between two rounds. These may then share memory, and
        the rounds may send them.
    """

    def __init__(
        self,
        graph: Graph,
        plan: PlanData,
        names: list[Names],
        carrier: str,
        wanted: bool,
        alone: bool = False,
        place: ScratchPlace | None = None,
    ) -> None:
        self.graph, self.plan, self.carrier, self.wanted = graph, plan, carrier, wanted
        self.names_of, self.run = names, TaskRef(names[-1]("plan"))
        self.on_disk, self.in_process = carrier == "disk", carrier == "shared"
        private = alone and carrier == "shared"
        none, in_place = (None,) * len(names), config.get("bigfft.exchange.in-place")
        #: Shared memory of the blocks of each exchange, and its shuffles; None where there is none,
        #: and after the last exchange.
        shared = plan.shared_layouts.exchanges if private and in_place else none
        self.shared_layouts = (*shared, None)
        shuffles = shuffles_of(plan.exchanges, names, wanted, alone) if carrier == "p2p" else none
        self.shuffles, self.onward = (*shuffles, None), None
        #: Blocks that the next task makes and sends, with the function and the number of inputs of
        #: each; and the inputs of all.
        self.batch, self.inputs = list[tuple[Block, Function, int]](), list[Any]()
        #: Names of filters by axis, by the exchange before the round that multiplies by them.
        self.filters: dict[int, dict[int, str]] = {}
        #: Blocks that an earlier run has finished, by the exchange for which they are written.
        self.place = place if self.on_disk else None
        self.finished = dict(self.place.finished) if self.place is not None else {}

    def start(self, token: str, source: str) -> str:
        """Add the plan and the tasks that take the source blocks; return the blocks' name."""
        key, run, names = self.run.key, PlanRun(self.plan, token), self.names_of[-1]
        if self.place is not None:
            self.graph[key] = Task(key, disk.start_run, run, replace(self.place, rows=None), key)
        elif self.on_disk:  # a filter uses the folder of its plan
            parent = TaskRef(Names(names.token)("plan"))
            self.graph[key] = Task(key, disk.start_filter, parent, run, names.part)
        else:
            self.graph[key] = DataNode(key, run)
        if self.plan.inside:
            return self.add_sources(tasks.own_block, 0, names("own"), source)
        if self.plan.from_rows and self.place is not None:
            self.graph[names("rows")] = DataNode(names("rows"), self.place.rows)
        elif self.place is not None and self.plan.moves[0]:
            return self.add_sources(disk.write_source, -1, names("pack", 0), source)
        return source

    def add_sources(self, function: Function, number: int, name: str, source: str) -> str:
        """Add the tasks of the plan's source blocks, which read an array; return their name."""
        self.number, self.name = number, name
        for block in self.plan.exchanges[0].source.indices():
            self._task(block, function, block_ref(source, block))
        return name

    def add_operand(self, operand: Operand) -> None:
        """Add the tasks of an operand."""
        plan, axis = operand.plan, operand.axis
        names = Names(self.names_of[operand.number].token, f"filter{axis}_")
        names_of = [names] * len(plan.exchanges)
        builder = Builder(self.graph, plan, names_of, self.carrier, self.wanted)
        builder.start(f"{names.token}-filter{axis}", "")
        builder.number, builder.name = 0, names("round", 0)
        for block in plan.source.indices():
            builder._task(block, tasks.generate_filter, operand.values)
        name = builder.name
        for number in range(1, len(plan.exchanges)):
            name = builder.add(number, name)
        self.filters.setdefault(operand.number, {})[axis] = name

    def add(self, number: int, before: str) -> str:
        """Add an exchange of the blocks `before` and its round; return the name of its blocks."""
        self.number, self.exchange, self.before = number, self.plan.exchanges[number], before
        self.shared_layout, self.following = self.shared_layouts[number : number + 2]
        self.homes, made = None, self.following
        if made is not None and made.home == number + 1:
            self.homes = shared_blocks(made.layout, self.plan.rounds[number].target)
        shuffles, onward = self.shuffles[number : number + 2]
        self.onward = onward if onward is not None and onward.sent else None
        self.width = -(-self.exchange.target.blocks // MOST_SENDERS)
        if shuffles is None:  # source blocks of a task are in memory at the same time
            size = self.exchange.shape.fan_in * self.exchange.source.largest
            nbytes = max(1, size * np.dtype(self.exchange.source_dtype).itemsize)
            self.width = max(1, min(self.width, MOST_TOGETHER // nbytes))
        self.names, last = self.names_of[number], number == len(self.plan.rounds)
        self.run = TaskRef(self.names("plan"))
        mark = "0-" * (self.following is not None) + "1-" * (self.onward is not None)
        self.name = self.names("unpack") if last else self.names("round", number, mark)
        moves = self.plan.moves[number] if self.on_disk else not self.exchange.local
        if self.plan.inside and not last:
            return self._add_inside()
        if self.on_disk and number == 0 and self.plan.from_rows:
            for block in self.exchange.target.indices():
                self._task(block, disk.run_block_of_file, TaskRef(self.names("rows")))
        elif self._has_few_sources(moves):
            self._from_few()
        elif not moves or self._has_one_target():
            for _, sources, targets in Groups(self.exchange):
                self._from_blocks(targets, sources, self._refs(sources))
        elif self.on_disk or self.in_process:
            self._through_barriers()
        elif shuffles is not None:
            self._through_shuffles(shuffles)
        else:
            self._through_shards()
        self._end_batch()
        return self.name

    def _add_inside(self) -> str:
        """Add a round that overwrites its source blocks; return the new name of these blocks."""
        after, step = self.names("settled", self.number), (self.run, self.number)
        for group, sources, targets in Groups(self.exchange):
            inputs = *step, tuple(sources), self.wanted, None, *self._refs(sources)
            handle = self._put(self.names("barrier", self.number), group, tasks.barrier, *inputs)
            done = [self._put(self.name, b, tasks.run_inside, *step, b, handle) for b in targets]
            settled = self._put(f"{after}-all", group, tasks.settled, handle, *done)
            for block in sources:
                self._put(after, block, operator.getitem, settled, block)
        return after

    def _put(self, name: str, index: Block, function: Function, *inputs: Any) -> TaskRef:
        """Add a task; return the reference to its result."""
        key: Key = (name, *index)
        self.graph[key] = Task(key, function, *inputs)
        return TaskRef(key)

    def _task(self, block: Block, function: Function, *inputs: Any) -> None:
        """Add the task of a target block and its round: a call of a function with some inputs."""
        filters = self.filters.get(self.number, {})
        spectra = [block_ref(name, (block[axis],)) for axis, name in filters.items()]
        if block in self.finished.get(self.number + 1, ()):  # the task only looks up its result
            spectra, inputs = [], ()
        arguments = tuple(filters), *spectra, *inputs
        if self.onward is None:
            self._put(self.name, block, function, self.run, self.number, block, *arguments)
            return
        if self.batch and self.batch[0][1:] != (function, len(arguments)):
            self._end_batch()
        self.batch.append((block, function, len(arguments)))
        self.inputs += arguments
        if len(self.batch) >= self.width:
            self._end_batch()

    def _end_batch(self) -> None:
        """Add the task that makes and sends the blocks of the batch, one after the other."""
        if not self.batch or self.onward is None:
            return
        blocks = [block for block, _, _ in self.batch]
        shuffles = [self.onward.of_source(block) for block in blocks]
        names, function = tuple(shuffle.name for shuffle in shuffles), self.batch[0][1]
        step = self.run, self.number, function, tuple(blocks), names
        made = self._put(self.name, blocks[0], carriers.run_and_send_blocks, *step, *self.inputs)
        for shuffle in {shuffle.name: shuffle for shuffle in shuffles}.values():
            shuffle.senders.append(made)
        self.batch, self.inputs = [], []

    def _from_blocks(
        self, targets: Iterable[Block], sources: Iterable[Block] | None, refs: Sequence[TaskRef]
    ) -> None:
        """Add the tasks of blocks that read source blocks, or the handle of a barrier."""
        indices, into = None if sources is None else tuple(sources), None
        for block in targets:
            if self.homes is not None and self.following is not None:
                group = tuple(home[i] for home, i in zip(self.homes, block, strict=True))
                into = self._shared_buffer(self.following, group)
            self._task(block, tasks.run_block, indices, into, *refs)

    def _shared_buffer(self, shared: SharedAxis, group: Block) -> TaskRef:
        """Return the shared memory of a group of blocks; add its task."""
        name = self.names("common", shared.home)
        if (name, *group) not in self.graph:
            self._put(name, group, tasks.shared_memory, self.run, shared.home, group)
        return block_ref(name, group)

    def _refs(self, sources: Iterable[Block]) -> list[TaskRef]:
        return [block_ref(self.before, block) for block in sources]

    def _through_barriers(self) -> None:
        name = self.names("barrier", self.number)
        for group, sources, targets in Groups(self.exchange):
            before, after, refs = tuple(sources), tuple(targets), self._refs(sources)
            if self.on_disk:
                written = self._put(name, group, disk.Written, before, after, *refs)
                for block in targets:
                    self._task(block, disk.run_block_of_file, written)
                continue
            into = None
            if self.shared_layout is not None:
                into = self._shared_buffer(self.shared_layout, group)
            elif len(targets) == 1 or len(sources) <= 1:
                self._from_blocks(targets, sources, refs)
                continue
            inputs = self.run, self.number, before, self.wanted, into, *refs
            self._from_blocks(targets, None, [self._put(name, group, tasks.barrier, *inputs)])

    def _through_shuffles(self, shuffles: Shuffles) -> None:
        pack = self.names("pack", self.number)
        for shuffle in shuffles.by_group.values():
            if not shuffle.travels:
                self._from_blocks(shuffle.targets, shuffle.sources, self._refs(shuffle.sources))
                continue
            for block in () if shuffles.sent else shuffle.sources:
                inputs = self.run, self.number, block, shuffle.name, block_ref(self.before, block)
                shuffle.senders.append(self._put(pack, block, carriers.send_block, *inputs))
            width = 1 if self.onward is None else self.width
            barrier = p2p().barrier_task(
                shuffle.name,
                shuffle.senders,
                targets=shuffle.along,
                before=shuffle.before,
                plan=self.names.token,
                number=self.number,
                output=self.name,
                width=width,
            )
            attempt = TaskRef(barrier.key)
            self.graph[barrier.key] = barrier
            for count, block in enumerate(shuffle.targets, shuffle.before + 1):
                self._task(block, carriers.run_block_of_shuffle, shuffle.name, attempt)
                if count % width == 0:
                    self._end_batch()
            self._end_batch()

    def _has_one_target(self) -> bool:
        """Return whether each group has one target block, which then depends on its sources."""
        if self.on_disk or self.shared_layout is not None:
            return False
        pairs = zip(Groups(self.exchange).axes, self.exchange.target.axes, strict=True)
        return all(axis.count == after.blocks for axis, after in pairs)

    def _has_few_sources(self, moves: bool) -> bool:
        """Return whether target blocks have few source blocks and no round follows.

        On disk, whether they are parts of source blocks.
        """
        if self.on_disk:
            return not moves and not self.exchange.local
        axes = zip(self.exchange.source.axes, self.exchange.target.axes, strict=True)
        flat = all(a.digits == b.digits and len(a.groups) == 1 for a, b in axes)
        last = self.number == len(self.plan.rounds) and self.exchange.mirror is None
        near = self.in_process or self.exchange.local
        free = near and self.shared_layout is None and flat and last
        return free and self.exchange.shape.fan_in <= FEW

    def _from_few(self) -> None:
        shards = ExchangeMap(self.exchange.source, self.exchange.target)
        for block in self.exchange.target.indices():
            sources = sorted(shards.sources(block))
            if not self.on_disk and len(sources) == 1 and _is_copy(shards, block, sources[0]):
                key: Key = (self.name, *block)
                self.graph[key] = Alias(key, *self._refs(sources))
            else:
                self._from_blocks([block], sources, self._refs(sources))

    def _through_shards(self) -> None:
        expected, step = self.exchange.shape.shards, (self.run, self.number)
        if expected > MAX_SHARD_TASKS:
            raise CarrierError(
                f"exchange {self.number} needs {expected} shard tasks, more than "
                f"{MAX_SHARD_TASKS}: use larger chunks"
            )
        name = self.names("pack", self.number)
        shards = ExchangeMap(self.exchange.source, self.exchange.target, self.exchange.mirror)
        for block in self.exchange.target.indices():
            sources, packed = tuple(sorted(shards.sources(block))), []
            for source, values in zip(sources, self._refs(sources), strict=True):
                inputs = *step, block, source, values
                packed.append(self._put(name, (*block, *source), tasks.pack_shard, *inputs))
            self._task(block, tasks.run_block_of_shards, sources, *packed)


def _is_copy(shards: ExchangeMap, block: Block, source: Block) -> bool:
    """Return whether a target block equals its only source block."""
    ((axes, _),) = shards.pieces(block)
    for pieces in axes:
        before, after = pieces.sides
        if len(pieces) != 1 or (before.steps != after.steps).any():
            return False
    shape = tuple(pieces.size for pieces in axes)
    return shards.source.shape(source) == shards.target.shape(block) == shape


def _names(plan: PlanData, token: str) -> Names:
    return Names(token, "" if plan.is_transform else f"{plan.spec.name}_")


def output_name(plan: PlanData, token: str) -> str:
    """Return the name of the result's blocks."""
    names = _names(plan, token)
    return names("round", len(plan.rounds) - 1) if plan.ends_in_round else names("unpack")


def build_graph(
    plan: PlanData,
    token: str,
    source: str,
    carrier: str,
    wanted: bool,
    known: Known | None = None,
    place: ScratchPlace | None = None,
    alone: bool = True,
    cuts: Sequence[Cut] | None = None,
) -> Graph:
    """Return all tasks of a plan.

    Parameters
    ----------
    plan : PlanData
        Plan of the tasks.
    token : str
        Unique part of the task names.
    source : str
        Name of the source array.
    carrier : {"shared", "tasks", "p2p", "disk"} or str
        Carrier of all exchanges. `ON_GPUS` followed by a transport is for GPUs of this process.
    wanted : bool
        Whether the user named the carrier. If not, p2p carries only exchanges for which it pays.
    known : Known, optional
        Plan of the same source whose tasks are reused where they are equal.
    place : ScratchPlace, optional
        Location of the scratch files.
    alone : bool
        Whether no other plan uses tasks of this one, so that rounds may work in place.
    cuts : sequence of Cut, optional
        Parts of the source array's blocks, if blocks on GPUs are still to be cut.
    """
    on_disk = carrier == "disk"
    if on_disk and place is not None and place.rows is None and plan.from_rows:
        plan = replace(plan, from_rows=False)  # not in files here
    graph: Graph = {}
    if carrier.startswith(ON_GPUS):
        cuts = cuts or [(block, block, ()) for block in plan.source.indices()]
        blocks = list(dict.fromkeys(origin for _, origin, _ in cuts))
        parts = tuple((block, blocks.index(origin), cut) for block, origin, cut in cuts)
        inputs = PlanRun(plan, token), parts, carrier.removeprefix(ON_GPUS)
        output, refs = output_name(plan, token), [block_ref(source, block) for block in blocks]
        key = f"{output}-all"
        graph[key] = Task(key, tasks.transform_on_gpus, *inputs, *refs)
        ones: list[Key] = [(output, *block) for block in plan.result.indices()]
        return graph | {one: Task(one, operator.getitem, TaskRef(key), one[1:]) for one in ones}
    names = [_names(plan, token)] * len(plan.exchanges)
    if known is not None and not on_disk and (count := known.shared(plan)):
        names[:count] = [Names(known.token)] * count
        shared = names[0]("plan")
        graph[shared] = DataNode(shared, PlanRun(known.plan, known.token))
    alone = alone and known is None and not plan.inside
    builder = Builder(graph, plan, names, carrier, wanted, alone, place)
    for operand in plan.operands:
        builder.add_operand(operand)
    before = builder.start(token, source)
    for number in range(len(plan.exchanges)):
        before = builder.add(number, before)
    if len(graph) == 2:  # on a cluster, a task that brings the plan would double the time
        node, task = graph.values()
        if isinstance(node, DataNode) and isinstance(task, Task):
            return {task.key: Task(task.key, task.func, node.value, *task.args[1:])}
    return graph
