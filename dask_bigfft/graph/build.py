"""From a plan to tasks.

::

    source blocks -> barrier -> gather + round -> barrier -> gather + round -> (barrier -> unpack)

A barrier stands for one connected group of an exchange: p + q edges where all-to-all needs p*q.
Blocks that are made of a few blocks each, as in a shift, depend on these directly. Between
processes shards travel::

    tasks   source blocks -> a task for every shard -> gather + round
    p2p     source blocks -> pack and send -> shuffle barrier -> collect + gather + round (+ send)
    disk    source blocks -> write -> barrier -> read + gather + round + write -> barrier -> ...

With scratch files what a task hands on is not a block but word that its shards are written.

Imports `planner`, `exchange`, and this room.
"""

from collections.abc import Sequence
from dataclasses import replace

from dask_bigfft.exchange.scratch_place import ScratchPlace
from dask_bigfft.graph.dask_private import DataNode, Task, TaskRef
from dask_bigfft.graph.disk import recall, start_filter, start_run, write_source
from dask_bigfft.graph.filters import generate_filter
from dask_bigfft.graph.inside import own_block, weave_inside
from dask_bigfft.graph.known import Known
from dask_bigfft.graph.names import Block, Graph, Key, Names, block_ref
from dask_bigfft.graph.run import Run
from dask_bigfft.graph.shuffles import shuffles_of
from dask_bigfft.graph.weave import Weave
from dask_bigfft.graph.wide import widening_of
from dask_bigfft.planner.filters import FilterPlan, filter_plans
from dask_bigfft.planner.joints import Joint
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.shifts import ShiftPlan


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
    if private and isinstance(plan, Plan):
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
            wide=widening_of(plan, number) if joints[number] is not None else None,
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
