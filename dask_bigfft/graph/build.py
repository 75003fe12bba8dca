"""From a plan to tasks, exchange by exchange.

::

    source blocks -> barrier -> gather + round -> barrier -> gather + round -> (barrier -> unpack)

A barrier stands for one connected group of an exchange: p + q edges where all-to-all needs p*q.
Blocks that are made of a few blocks each, as in a shift, depend on these directly. Between
processes shards travel::

    tasks   source blocks -> a task for every shard -> gather + round
    p2p     source blocks -> pack and send -> shuffle barrier -> collect + gather + round (+ send)
    disk    source blocks -> write -> barrier -> read + gather + round + write -> barrier -> ...

With scratch files what a task hands on is not a block but word that its shards are written.
Exchanges that connect nothing, and those in which every block is made of few, go around barriers
whatever the carrier is.

Imports `decomposition`, `planner`, `exchange` and this room.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dask_bigfft import config
from dask_bigfft.decomposition.layout import Layout
from dask_bigfft.decomposition.rounds import joint_block
from dask_bigfft.errors import CarrierError
from dask_bigfft.exchange.scratch import ScratchPlace
from dask_bigfft.exchange.shards import ExchangeMap
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
    run_block_of_shuffle,
    shuffles_of,
)
from dask_bigfft.graph.dask_private import Alias, DataNode, Task, TaskRef
from dask_bigfft.graph.disk import (
    collect,
    recall,
    run_block_here,
    run_block_of_file,
    run_block_of_rows,
    start_filter,
    start_run,
    write_source,
)
from dask_bigfft.graph.inside import own_block, weave_inside
from dask_bigfft.graph.tasks import (
    Run,
    barrier,
    barrier_in_common,
    barrier_on_gpus,
    common_memory,
    generate_filter,
    pack_shard,
    run_block,
    run_block_of_shards,
)
from dask_bigfft.planner.plan import FilterPlan, Plan, ShiftPlan, filter_plans
from dask_bigfft.planner.plan_data import Exchange, Joint

#: Shard tasks of one exchange beyond which the `tasks` carrier refuses.
MAX_SHARD_TASKS = 2_000_000

#: Source blocks of a target block up to which it depends on them directly.
FEW = 8


@dataclass(frozen=True)
class Weave:
    """One exchange being written into a graph."""

    graph: Graph
    names: Names
    number: int
    exchange: Exchange
    before: str
    name: str
    filters: Mapping[int, str]
    finished: frozenset[Block] = frozenset()
    #: How the blocks of this exchange lie together, and those of the next one.
    joint: Joint | None = None
    following: Joint | None = None
    #: Blocks after the round.
    made: Layout | None = None
    #: What carries this exchange between processes, and the next one if the round sends to it.
    shuffles: Shuffles | None = None
    onward: Shuffles | None = None

    def run(self, carrier: str, wanted: bool) -> None:
        """Write the exchange as a carrier has it, which was `wanted` by name or chosen."""
        if carrier == "disk":
            self.on_disk(not self.exchange.local)
            return
        near = carrier == "shared" or carrier.startswith(ON_GPUS) or self.exchange.local
        few = self._few_sources() if near and self.joint is None else None
        if few is not None:
            self._from_few(few)
        elif self.exchange.local:
            self._directly(run_block)
        elif carrier == "shared":
            self._through_barriers(wanted)
        elif carrier.startswith(ON_GPUS):
            self._through_barriers_on_gpus(carrier.removeprefix(ON_GPUS))
        elif self.shuffles is not None:
            self._through_shuffles(self.shuffles)
        else:
            self._through_shards()

    def from_rows(self) -> None:
        """Let every block of the first round be read in rows of the stored array."""
        for block in self.exchange.target.indices():
            self._task(run_block_of_rows, block, TaskRef(self.names.rows), [])

    def on_disk(self, moves: bool) -> None:
        """Write the exchange for scratch files; without any if nothing `moves`."""
        if moves:
            self._through_files()
        elif self.exchange.local:
            self._directly(run_block_here)
        else:  # each block is a part of another one
            shards = ExchangeMap(self.exchange.source, self.exchange.target)
            for block in self.exchange.target.indices():
                sources = sorted(shards.sources(block))
                self._task(run_block_here, block, tuple(sources), self._refs(sources))

    def _task(self, function: Callable[..., Any], block: Block, sources: Any, inputs: Any) -> None:
        key = (self.name, *block)
        if block in self.finished:
            self.graph[key] = Task(key, recall, TaskRef(self.names.plan), self.number, block)
            return
        filters = [block_ref(name, (block[axis],)) for axis, name in self.filters.items()]
        task = Task(
            key,
            function,
            TaskRef(self.names.plan),
            self.number,
            block,
            tuple(self.filters),
            sources,
            *self._into(function, block),
            *filters,
            *inputs,
        )
        if self.onward is None:
            self.graph[key] = task
        else:
            self.onward.write_send(self.graph, key, block, task)

    def _into(self, function: Callable[..., Any], block: Block) -> tuple[Any, ...]:
        """For `run_block`, the common memory that its block goes to, if there is one."""
        if function is not run_block:
            return ()
        joint, following = self.following, self.number + 1
        if joint is None or joint.home != following:
            return (None,)
        assert self.made is not None
        group = joint_block(joint.layout, self.made, block)
        return (self._common(following, group),)

    def _common(self, number: int, group: Block) -> TaskRef:
        """The memory of a group of the blocks before an exchange, and its task."""
        key: Key = (self.names.common(number), *group)
        if key not in self.graph:
            self.graph[key] = Task(key, common_memory, TaskRef(self.names.plan), number, group)
        return TaskRef(key)

    def _refs(self, sources: Sequence[Block]) -> list[Any]:
        return [block_ref(self.before, block) for block in sources]

    def _directly(self, function: Callable[..., Any]) -> None:
        for _, sources, targets in Groups(self.exchange):
            self._make(function, targets, sources)

    def _make(
        self, function: Callable[..., Any], targets: Sequence[Block], sources: Sequence[Block]
    ) -> None:
        """Add the tasks of blocks that are made of some source blocks as they are."""
        for block in targets:
            self._task(function, block, tuple(sources), self._refs(sources))

    def _through_files(self) -> None:
        for group, sources, targets in Groups(self.exchange):
            key: Key = (self.names.barrier(self.number), *group)
            self.graph[key] = Task(
                key, collect, tuple(sources), tuple(targets), *self._refs(sources)
            )
            for block in targets:
                self._task(run_block_of_file, block, TaskRef(key), [])

    def _through_barriers(self, wanted: bool) -> None:
        for group, sources, targets in Groups(self.exchange):
            if self.joint is None and (len(targets) == 1 or len(sources) <= 1):
                self._make(run_block, targets, sources)
                continue
            key: Key = (self.names.barrier(self.number), *group)
            refs = self._refs(sources)
            if self.joint is None:
                token = self.names.token
                self.graph[key] = Task(key, barrier, token, tuple(sources), wanted, *refs)
            else:
                common, plan = self._common(self.joint.home, group), TaskRef(self.names.plan)
                self.graph[key] = Task(
                    key, barrier_in_common, plan, self.number, tuple(sources), wanted, common, *refs
                )
            for block in targets:
                self._task(run_block, block, None, [TaskRef(key)])

    def _through_barriers_on_gpus(self, transport: str) -> None:
        for group, sources, targets in Groups(self.exchange):
            key: Key = (self.names.barrier(self.number), *group)
            self.graph[key] = Task(
                key,
                barrier_on_gpus,
                TaskRef(self.names.plan),
                self.number,
                tuple(sources),
                tuple(targets),
                transport,
                *self._refs(sources),
            )
            for block in targets:
                self._task(run_block, block, None, [TaskRef(key)])

    def _through_shuffles(self, shuffles: Shuffles) -> None:
        for shuffle in shuffles.by_group.values():
            if not shuffle.travels:
                self._make(run_block, shuffle.targets, shuffle.sources)
                continue
            for block in () if shuffles.sent else shuffle.sources:
                key: Key = (self.names.pack(self.number), *block)
                shuffles.write_send(self.graph, key, block, block_ref(self.before, block))
            barrier = shuffles.write_barrier(self.graph, shuffle, self.name)
            for block in shuffle.targets:
                self._task(run_block_of_shuffle, block, shuffle.name, [barrier])

    def _few_sources(self) -> ExchangeMap | None:
        """The shards of an exchange in which every block is made of few, without a round after."""
        axes = zip(self.exchange.source.axes, self.exchange.target.axes, strict=True)
        flat = all(a.digits == b.digits and len(a.groups) == 1 for a, b in axes)
        if not flat or self.name != self.names.unpack or self.exchange.mirror is not None:
            return None
        few = self.exchange.shape.fan_in <= FEW
        return ExchangeMap(self.exchange.source, self.exchange.target) if few else None

    def _from_few(self, exchange: ExchangeMap) -> None:
        for block in self.exchange.target.indices():
            sources = sorted(exchange.sources(block))
            if len(sources) == 1 and self._is_copy(exchange, block, sources[0]):
                key: Key = (self.name, *block)
                self.graph[key] = Alias(key, block_ref(self.before, sources[0]))
            else:
                self._task(run_block, block, tuple(sources), self._refs(sources))

    def _is_copy(self, exchange: ExchangeMap, block: Block, source: Block) -> bool:
        """Whether a target block is its only source block as it is."""
        ((tables, _),) = exchange.tables(block)
        same = all(
            len(table) == 1 and (table.source_steps == table.target_steps).all() for table in tables
        )
        shape = tuple(table.size for table in tables)
        return same and exchange.source.shape(source) == exchange.target.shape(block) == shape

    def _through_shards(self) -> None:
        expected = self.exchange.shape.shards
        if expected > MAX_SHARD_TASKS:
            raise CarrierError(
                f"exchange {self.number} needs {expected} shard tasks, more than "
                f"{MAX_SHARD_TASKS}: use larger chunks"
            )
        shards = ExchangeMap(self.exchange.source, self.exchange.target, self.exchange.mirror)
        for _, _, targets in Groups(self.exchange):
            for block in targets:
                sources = tuple(sorted(shards.sources(block)))
                name = self.names.pack(self.number)
                keys: list[Key] = [(name, *block, *source) for source in sources]
                for key, source in zip(keys, sources, strict=True):
                    self.graph[key] = Task(
                        key,
                        pack_shard,
                        TaskRef(self.names.plan),
                        self.number,
                        block,
                        source,
                        block_ref(self.before, source),
                    )
                refs = [TaskRef(key) for key in keys]
                self._task(run_block_of_shards, block, sources, refs)


def _names(plan: Plan | ShiftPlan, token: str) -> Names:
    return Names(token, f"{plan.part}_" if isinstance(plan, ShiftPlan) else "")


def output_name(plan: Plan | ShiftPlan, token: str) -> str:
    """Name of the result's blocks."""
    names = _names(plan, token)
    return names.round(len(plan.rounds) - 1) if plan.ends_in_round else names.unpack


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
        What to do.
    token : str
        Makes the names unique.
    source : str
        Name of the array that comes in.
    carrier : {"shared", "tasks", "p2p", "cluster", "disk"} or str
        How blocks travel; on a cluster by tasks or p2p, as suits each exchange; `ON_GPUS` and a
        transport between GPUs of this process.
    wanted : bool
        Whether the carrier was asked for by name.
    known : Known, optional
        A plan of the same source whose tasks are used where they are the same.
    place : ScratchPlace, optional
        Where scratch files go.
    alone : bool
        Whether no other plan uses tasks of this one, so that rounds may work in place.
    """
    own = _names(plan, token)
    if carrier == "disk":
        return _graph_on_disk(plan, own, source, place)
    private = carrier == "shared" and alone and known is None
    graph: Graph = {own.plan: DataNode(own.plan, Run(plan, token, private))}
    by_number = [own] * len(plan.exchanges)
    if known is not None and (count := known.shared(plan)):
        by_number[:count] = [Names(known.token)] * count
        graph[by_number[0].plan] = DataNode(by_number[0].plan, Run(known.plan, known.token))
    filters = _filters(graph, plan, by_number, carrier, wanted)
    joints: Sequence[Joint | None] = (None,) * len(plan.exchanges)
    if private and isinstance(plan, Plan) and config.get("bigfft.exchange.in-place"):
        joints = plan.joints.exchanges
    before, inside = source, isinstance(plan, Plan) and plan.inside
    unseen = alone and known is None and not inside
    shuffles = shuffles_of(plan.exchanges, by_number, carrier, unseen)
    if inside:
        before = _own_blocks(graph, plan, own, source)
    for number, (exchange, names) in enumerate(zip(plan.exchanges, by_number, strict=True)):
        last, following = number == len(plan.rounds), (*joints, None)[number + 1]
        if inside and not last:
            before = weave_inside(graph, own, number, exchange, before, wanted)
            continue
        onward = (*shuffles, None)[number + 1]
        if onward is not None and not onward.sent:
            onward = None
        name = (
            names.unpack
            if last
            else names.round(number, common=following is not None, sent=onward is not None)
        )
        weave = Weave(
            graph,
            names,
            number,
            exchange,
            before,
            name,
            filters.get(number, {}),
            joint=joints[number],
            following=following,
            made=None if last else plan.rounds[number].target,
            shuffles=shuffles[number],
            onward=onward,
        )
        weave.run(carrier, wanted)
        before = name
    return graph


def _graph_on_disk(
    plan: Plan | ShiftPlan, names: Names, source: str, place: ScratchPlace | None
) -> Graph:
    """Tasks of a plan whose exchanges go through scratch files."""
    assert place is not None
    if isinstance(plan, Plan) and plan.from_rows and place.rows is None:  # it is not in files here
        plan = replace(plan, from_rows=False)
    run = Run(plan, names.token)
    opened = replace(place, rows=None)
    graph: Graph = {names.plan: Task(names.plan, start_run, run, opened, names.plan)}
    filters = _filters(graph, plan, [names] * len(plan.exchanges), "disk", True)
    before, finished = source, dict(place.finished)
    if from_rows := isinstance(plan, Plan) and plan.from_rows:
        graph[names.rows] = DataNode(names.rows, place.rows)
    elif plan.moves[0]:
        before = _written_source(graph, plan, names, source, finished.get(0, frozenset()))
    for number, exchange in enumerate(plan.exchanges):
        name = names.unpack if number == len(plan.rounds) else names.round(number)
        mine, done = filters.get(number, {}), finished.get(number + 1, frozenset())
        weave = Weave(graph, names, number, exchange, before, name, mine, done)
        if number == 0 and from_rows:  # which are read from the stored array
            weave.from_rows()
        else:
            weave.on_disk(plan.moves[number])
        before = name
    return graph


def _own_blocks(graph: Graph, plan: Plan | ShiftPlan, names: Names, source: str) -> str:
    """Add the tasks that take over the blocks that come in; return the name of these."""
    for block in plan.source.indices():
        key: Key = (names.own, *block)
        graph[key] = Task(key, own_block, TaskRef(names.plan), 0, block, block_ref(source, block))
    return names.own


def _written_source(
    graph: Graph, plan: Plan | ShiftPlan, names: Names, source: str, finished: frozenset[Block]
) -> str:
    """Add the tasks that write the blocks that come in, or know it was done; return their name."""
    for block in plan.source.indices():
        key: Key = (names.pack(0), *block)
        if block in finished:
            graph[key] = Task(key, recall, TaskRef(names.plan), -1, block)
        else:
            graph[key] = Task(
                key, write_source, TaskRef(names.plan), block, block_ref(source, block)
            )
    return names.pack(0)


def _filters(
    graph: Graph, plan: Plan | ShiftPlan, names: Sequence[Names], carrier: str, wanted: bool
) -> dict[int, dict[int, str]]:
    """Add the tasks of all filters of a plan; return the names of their blocks.

    By exchange, of which `names` are, and axis.
    """
    found: dict[int, dict[int, str]] = {}
    for part in filter_plans(plan) if isinstance(plan, Plan) else ():
        name = _filter_graph(graph, part, names[part.used_in].token, carrier, wanted)
        found.setdefault(part.used_in, {})[part.axis] = name
    return found


def _filter_graph(graph: Graph, plan: FilterPlan, token: str, carrier: str, wanted: bool) -> str:
    """Add the tasks of a filter; return the name of its blocks."""
    names = Names(token, f"filter{plan.axis}_")
    run = Run(plan, f"{token}-filter{plan.axis}")
    if carrier == "disk":
        parent = TaskRef(Names(token).plan)
        graph[names.plan] = Task(names.plan, start_filter, parent, run, names.part)
    else:
        graph[names.plan] = DataNode(names.plan, run)
    name = names.round(0)
    for block in plan.rounds[0].source.indices():
        key = (name, *block)
        graph[key] = Task(key, generate_filter, TaskRef(names.plan), block)
    shuffles = shuffles_of(plan.exchanges, [names] * len(plan.exchanges), carrier, unseen=False)
    for number, exchange in enumerate(plan.exchanges[1:], 1):
        before, name = name, names.round(number)
        weave = Weave(graph, names, number, exchange, before, name, {}, shuffles=shuffles[number])
        weave.run(carrier, wanted)
    return name
