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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dask_bigfft import config
from dask_bigfft.decomposition.rounds import shared_block
from dask_bigfft.errors import CarrierError
from dask_bigfft.exchange.scratch import ScratchPlace
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.graph import carriers, disk, tasks
from dask_bigfft.graph.carriers import (
    ON_GPUS,
    Block,
    Graph,
    Groups,
    Key,
    Known,
    Names,
    Shuffles,
    block_ref,
    shuffles_of,
)
from dask_bigfft.graph.dask_private import Alias, DataNode, Task, TaskRef
from dask_bigfft.planner.plan import FilterPlan, Plan, ShiftPlan, filter_plans
from dask_bigfft.planner.plan_data import SharedAxis

#: Maximum number of shard tasks of one exchange with the `tasks` carrier.
MAX_SHARD_TASKS = 2_000_000

#: Maximum number of source blocks on which a target block depends directly.
FEW = 8


class Builder:
    """Builder of the tasks of a plan, or of one of its filters, exchange by exchange.

    Parameters
    ----------
    graph : dict
        Graph to which tasks are added.
    plan : Plan, ShiftPlan or FilterPlan
        Plan of the tasks.
    names : list of Names
        Names of the tasks, by exchange.
    carrier, wanted
        See `build_graph`.
    alone : bool
        Whether only this plan reads the blocks between two rounds. These may then share memory, and
        the rounds may send them.
    finished : mapping, optional
        Blocks that an earlier run has finished, by the exchange for which they are written.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan | ShiftPlan | FilterPlan,
        names: list[Names],
        carrier: str,
        wanted: bool,
        alone: bool = False,
        finished: Mapping[int, frozenset[Block]] | None = None,
    ) -> None:
        self.graph, self.plan, self.names_of = graph, plan, names
        self.carrier, self.wanted, self.finished = carrier, wanted, finished or {}
        shared_layouts: Sequence[SharedAxis | None] = (None,) * len(plan.exchanges)
        in_place = alone and carrier == "shared" and config.get("bigfft.exchange.in-place")
        if in_place and isinstance(plan, Plan):
            shared_layouts = plan.shared_layouts.exchanges
        #: Shared memory of the blocks of each exchange, and its shuffles; None where there is none,
        #: and after the last exchange.
        self.shared_layouts = (*shared_layouts, None)
        self.shuffles = (*shuffles_of(plan.exchanges, names, carrier, alone), None)
        #: Names of filters by axis, by the exchange before the round that multiplies by them.
        self.filters: dict[int, dict[int, str]] = {}

    def add(self, number: int, before: str) -> str:
        """Add an exchange of the blocks `before` and its round; return the name of its blocks."""
        self.number, self.exchange, self.before = number, self.plan.exchanges[number], before
        self.shared_layout, self.following = self.shared_layouts[number : number + 2]
        shuffles, onward = self.shuffles[number : number + 2]
        self.names = self.names_of[number]
        self.run = TaskRef(self.names("plan"))
        self.onward = onward if onward is not None and onward.sent else None
        if number == len(self.plan.rounds):
            self.name = self.names("unpack")
        else:
            mark = "0-" * (self.following is not None) + "1-" * (self.onward is not None)
            self.name = self.names("round", number, mark)
        plan, local, on_disk = self.plan, self.exchange.local, self.carrier == "disk"
        near = self.carrier == "shared" or self.carrier.startswith(ON_GPUS) or on_disk or local
        moves = plan.moves[number] if on_disk else not local
        if on_disk and number == 0 and isinstance(plan, Plan) and plan.from_rows:
            for block in self.exchange.target.indices():
                self._task(block, disk.run_block_of_rows, TaskRef(self.names("rows")))
        elif self._few_sources(moves, near):
            self._from_few()
        elif not moves:
            for _, sources, targets in Groups(self.exchange):
                self._from_blocks(targets, sources, self._refs(sources))
        elif near:
            self._through_barriers()
        elif shuffles is not None:
            self._through_shuffles(shuffles)
        else:
            self._through_shards()
        return self.name

    def add_inside(self, number: int, before: str) -> str:
        """Add a round that overwrites the blocks `before`; return the new name of these blocks."""
        names = self.names_of[number]
        plan = TaskRef(names("plan"))
        rounds, after = names("round", number), names("settled", number)
        for group, sources, targets in Groups(self.plan.exchanges[number]):
            here: Key = (names("barrier", number), *group)
            refs = [block_ref(before, block) for block in sources]
            self.graph[here] = Task(
                here, tasks.barrier, plan, number, tuple(sources), self.wanted, None, *refs
            )
            for block in targets:
                key: Key = (rounds, *block)
                self.graph[key] = Task(key, tasks.run_inside, plan, number, block, TaskRef(here))
            there: Key = (f"{after}-all", *group)
            done = [block_ref(rounds, block) for block in targets]
            self.graph[there] = Task(there, tasks.settled, TaskRef(here), *done)
            for block in sources:
                key = (after, *block)
                self.graph[key] = Task(key, operator.getitem, TaskRef(there), block)
        return after

    def add_sources(
        self, function: Callable[..., Any], exchange: int, name: str, source: str
    ) -> str:
        """Add tasks that take the source blocks of the plan; return their name."""
        for block in self.plan.exchanges[0].source.indices():
            key: Key = (name, *block)
            done = block in self.finished.get(exchange + 1, ())
            inputs = [] if done else [block_ref(source, block)]
            run = TaskRef(self.names_of[0]("plan"))
            self.graph[key] = Task(key, function, run, exchange, block, (), *inputs)
        return name

    def _task(self, block: Block, function: Callable[..., Any], *inputs: Any) -> None:
        """Add the task of a target block and its round: a call of a function with some inputs."""
        key: Key = (self.name, *block)
        filters = self.filters.get(self.number, {})
        arguments = self.run, self.number, block, tuple(filters)
        if block in self.finished.get(self.number + 1, ()):  # the task only looks up its result
            self.graph[key] = Task(key, function, *arguments)
            return
        spectra = [block_ref(name, (block[axis],)) for axis, name in filters.items()]
        task = Task(key, function, *arguments, *spectra, *inputs)
        if self.onward is None:
            self.graph[key] = task
        else:
            self.onward.write_send(self.graph, key, block, task)

    def _from_blocks(
        self, targets: Iterable[Block], sources: Sequence[Block] | None, refs: list[TaskRef]
    ) -> None:
        """Add the tasks of blocks that read source blocks, or the handle of a barrier."""
        indices = None if sources is None else tuple(sources)
        for block in targets:
            into = None
            if self.following is not None and self.following.home == self.number + 1:
                made = self.plan.rounds[self.number].target
                into = self._shared_buffer(
                    self.number + 1, shared_block(self.following.layout, made, block)
                )
            self._task(block, tasks.run_block, indices, into, *refs)

    def _shared_buffer(self, number: int, group: Block) -> TaskRef:
        """Return the shared memory of a group of blocks before an exchange; add its task."""
        key: Key = (self.names("common", number), *group)
        if key not in self.graph:
            self.graph[key] = Task(key, tasks.shared_memory, self.run, number, group)
        return TaskRef(key)

    def _refs(self, sources: Sequence[Block]) -> list[TaskRef]:
        return [block_ref(self.before, block) for block in sources]

    def _through_barriers(self) -> None:
        plan, number = self.run, self.number
        for group, sources, targets in Groups(self.exchange):
            key: Key = (self.names("barrier", number), *group)
            refs, before = self._refs(sources), tuple(sources)
            call: tuple[Any, ...]
            if self.carrier == "disk":
                call = disk.Written, before, tuple(targets)
            elif self.carrier.startswith(ON_GPUS):
                transport = self.carrier.removeprefix(ON_GPUS)
                call = tasks.barrier_on_gpus, plan, number, before, tuple(targets), transport
            elif self.shared_layout is not None:
                common = self._shared_buffer(self.shared_layout.home, group)
                call = tasks.barrier, plan, number, before, self.wanted, common
            elif len(targets) == 1 or len(sources) <= 1:
                self._from_blocks(targets, sources, refs)
                continue
            else:
                call = tasks.barrier, plan, number, before, self.wanted, None
            self.graph[key] = Task(key, *call, *refs)
            if self.carrier == "disk":
                for block in targets:
                    self._task(block, disk.run_block_of_file, TaskRef(key))
            else:
                self._from_blocks(targets, None, [TaskRef(key)])

    def _through_shuffles(self, shuffles: Shuffles) -> None:
        for shuffle in shuffles.by_group.values():
            if not shuffle.travels:
                self._from_blocks(shuffle.targets, shuffle.sources, self._refs(shuffle.sources))
                continue
            for block in () if shuffles.sent else shuffle.sources:
                key: Key = (self.names("pack", self.number), *block)
                shuffles.write_send(self.graph, key, block, block_ref(self.before, block))
            attempt = shuffles.write_barrier(self.graph, shuffle, self.name)
            for block in shuffle.targets:
                self._task(block, carriers.run_block_of_shuffle, shuffle.name, attempt)

    def _few_sources(self, moves: bool, near: bool) -> bool:
        """Return whether target blocks have few source blocks and no round follows.

        On disk, whether they are parts of source blocks.
        """
        if self.carrier == "disk":
            return not moves and not self.exchange.local
        axes = zip(self.exchange.source.axes, self.exchange.target.axes, strict=True)
        flat = all(a.digits == b.digits and len(a.groups) == 1 for a, b in axes)
        last = self.number == len(self.plan.rounds) and self.exchange.mirror is None
        free = near and self.shared_layout is None and flat and last
        return free and self.exchange.shape.fan_in <= FEW

    def _from_few(self) -> None:
        shards = ExchangeMap(self.exchange.source, self.exchange.target)
        for block in self.exchange.target.indices():
            sources = sorted(shards.sources(block))
            refs = self._refs(sources)
            if self.carrier != "disk" and len(sources) == 1 and _is_copy(shards, block, sources[0]):
                key: Key = (self.name, *block)
                self.graph[key] = Alias(key, refs[0])
            else:
                self._from_blocks([block], sources, refs)

    def _through_shards(self) -> None:
        expected = self.exchange.shape.shards
        if expected > MAX_SHARD_TASKS:
            raise CarrierError(
                f"exchange {self.number} needs {expected} shard tasks, more than "
                f"{MAX_SHARD_TASKS}: use larger chunks"
            )
        name = self.names("pack", self.number)
        shards = ExchangeMap(self.exchange.source, self.exchange.target, self.exchange.mirror)
        for _, _, targets in Groups(self.exchange):
            for block in targets:
                sources = tuple(sorted(shards.sources(block)))
                refs = []
                for source in sources:
                    key: Key = (name, *block, *source)
                    values = block_ref(self.before, source)
                    self.graph[key] = Task(
                        key, tasks.pack_shard, self.run, self.number, block, source, values
                    )
                    refs.append(TaskRef(key))
                self._task(block, tasks.run_block_of_shards, sources, *refs)


def _is_copy(shards: ExchangeMap, block: Block, source: Block) -> bool:
    """Return whether a target block equals its only source block."""
    ((tables, _),) = shards.tables(block)
    same = all(
        len(table) == 1 and (table.source_steps == table.target_steps).all() for table in tables
    )
    shape = tuple(table.size for table in tables)
    return same and shards.source.shape(source) == shards.target.shape(block) == shape


def _names(plan: Plan | ShiftPlan, token: str) -> Names:
    return Names(token, f"{plan.part}_" if isinstance(plan, ShiftPlan) else "")


def output_name(plan: Plan | ShiftPlan, token: str) -> str:
    """Return the name of the result's blocks."""
    names = _names(plan, token)
    return names("round", len(plan.rounds) - 1) if plan.ends_in_round else names("unpack")


def build_graph(
    plan: Plan | ShiftPlan,
    token: str,
    source: str,
    carrier: str,
    wanted: bool,
    known: Known | None = None,
    place: ScratchPlace | None = None,
    alone: bool = True,
) -> Graph:
    """Return all tasks of a plan.

    Parameters
    ----------
    plan : Plan or ShiftPlan
        Plan of the tasks.
    token : str
        Unique part of the task names.
    source : str
        Name of the source array.
    carrier : {"shared", "tasks", "p2p", "cluster", "disk"} or str
        Carrier of all exchanges. "cluster" chooses tasks or p2p for each exchange. `ON_GPUS`
        followed by a transport is for GPUs of this process.
    wanted : bool
        Whether the user named the carrier.
    known : Known, optional
        Plan of the same source whose tasks are reused where they are equal.
    place : ScratchPlace, optional
        Location of the scratch files.
    alone : bool
        Whether no other plan uses tasks of this one, so that rounds may work in place.
    """
    own, on_disk = _names(plan, token), carrier == "disk"
    alone = alone and known is None and not on_disk
    private, within = carrier == "shared" and alone, False
    names, finished = [own] * len(plan.exchanges), {}
    graph: Graph
    if on_disk:
        assert place is not None
        finished = dict(place.finished)
        if isinstance(plan, Plan) and plan.from_rows and place.rows is None:  # not in files here
            plan = replace(plan, from_rows=False)
        opened = replace(place, rows=None)
        run = tasks.PlanRun(plan, token)
        graph = {own("plan"): Task(own("plan"), disk.start_run, run, opened, own("plan"))}
    else:
        within = isinstance(plan, Plan) and plan.inside
        graph = {own("plan"): DataNode(own("plan"), tasks.PlanRun(plan, token, private))}
        if known is not None and (count := known.shared(plan)):
            names[:count] = [Names(known.token)] * count
            shared = names[0]("plan")
            graph[shared] = DataNode(shared, tasks.PlanRun(known.plan, known.token))
    builder = Builder(graph, plan, names, carrier, wanted, alone and not within, finished)
    if isinstance(plan, Plan):
        for part in filter_plans(plan):
            name = _filter(graph, part, names[part.used_in].token, carrier, wanted)
            builder.filters.setdefault(part.used_in, {})[part.axis] = name
    before = source
    if within:
        before = builder.add_sources(tasks.own_block, 0, own("own"), source)
    elif on_disk and place is not None and isinstance(plan, Plan) and plan.from_rows:
        graph[own("rows")] = DataNode(own("rows"), place.rows)
    elif on_disk and plan.moves[0]:
        before = builder.add_sources(disk.write_source, -1, own("pack", 0), source)
    for number in range(len(plan.exchanges)):
        in_blocks = within and number < len(plan.rounds)
        before = (builder.add_inside if in_blocks else builder.add)(number, before)
    return graph


def _filter(graph: Graph, plan: FilterPlan, token: str, carrier: str, wanted: bool) -> str:
    """Add the tasks of a filter; return the name of its blocks."""
    names = Names(token, f"filter{plan.axis}_")
    key, run = names("plan"), tasks.PlanRun(plan, f"{token}-filter{plan.axis}")
    if carrier == "disk":
        graph[key] = Task(key, disk.start_filter, TaskRef(Names(token)("plan")), run, names.part)
    else:
        graph[key] = DataNode(key, run)
    name = names("round", 0)
    for block in plan.rounds[0].source.indices():
        made: Key = (name, *block)
        graph[made] = Task(made, tasks.generate_filter, TaskRef(key), 0, block, ())
    builder = Builder(graph, plan, [names] * len(plan.exchanges), carrier, wanted)
    for number in range(1, len(plan.exchanges)):
        name = builder.add(number, name)
    return name
