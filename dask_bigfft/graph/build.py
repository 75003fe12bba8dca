"""From a plan to tasks.

::

    source blocks -> barrier -> gather + round -> barrier -> gather + round -> (barrier -> unpack)

A barrier stands for one connected group of an exchange: p + q edges where all-to-all needs p*q.
A block that is made of one block depends on it directly. Between processes shards travel::

    tasks   source blocks -> a task for every shard -> gather + round
    p2p     source blocks -> pack and send -> shuffle barrier -> collect + gather + round

Imports `planner`, `exchange`, and this room.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_bigfft.decomposition.rounds import AxisComponents, axis_components
from dask_bigfft.errors import CarrierError
from dask_bigfft.exchange import p2p
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.graph.dask_private import DataNode, Task, TaskRef
from dask_bigfft.graph.tasks import (
    Run,
    barrier,
    generate_filter,
    pack_shard,
    run_block,
    run_block_of_shards,
    run_block_of_shuffle,
    send_shards,
)
from dask_bigfft.planner.filters import FilterPlan, filter_plans
from dask_bigfft.planner.plan import Exchange, Plan

Block = tuple[int, ...]
Key = Any  # a dask key: a name, or a name and a block index
Graph = dict[Key, Any]

#: Shard tasks of one exchange beyond which the `tasks` carrier refuses.
MAX_SHARD_TASKS = 2_000_000

#: Shards of a connected group from which on, between processes, a shuffle is quicker than tasks.
SHUFFLE_SHARDS = 64


@dataclass(frozen=True)
class Names:
    """Names of a graph's tasks. Dask's dashboard shows what comes before the token."""

    token: str
    part: str = ""

    def round(self, number: int) -> str:
        """Of the tasks of a round, from 0."""
        return f"bigfft_{self.part}round{number + 1}-{self.token}"

    def barrier(self, number: int) -> str:
        """Of the barriers before a round, from 0."""
        return f"bigfft_{self.part}barrier{number + 1}-{self.token}"

    def pack(self, number: int) -> str:
        """Of the shards before a round, from 0."""
        return f"bigfft_{self.part}pack{number + 1}-{self.token}"

    def shuffle(self, number: int, group: Block) -> str:
        """Of the shuffle of a group before a round, from 0."""
        return f"bigfft-{self.part}{number + 1}-{self.token}-{'_'.join(map(str, group))}"

    @property
    def unpack(self) -> str:
        """Of the gathers after the last round."""
        return f"bigfft_{self.part}unpack-{self.token}"

    @property
    def plan(self) -> str:
        """Of the plan itself."""
        return f"bigfft_{self.part}plan-{self.token}"


def output_name(plan: Plan, token: str) -> str:
    """Name of the result's blocks."""
    names = Names(token)
    return names.round(len(plan.rounds) - 1) if plan.ends_in_round else names.unpack


def build_graph(plan: Plan, token: str, source: str, carrier: str, wanted: bool) -> Graph:
    """Return all tasks of a plan.

    Parameters
    ----------
    plan : Plan
        What to do.
    token : str
        Makes the names unique.
    source : str
        Name of the array that comes in.
    carrier : {"shared", "tasks", "p2p", "cluster"}
        How blocks travel; on a cluster by tasks or p2p, as suits each exchange.
    wanted : bool
        Whether the carrier was asked for by name.
    """
    names = Names(token)
    graph: Graph = {names.plan: DataNode(names.plan, Run(plan, token))}
    filters: dict[int, dict[int, str]] = {}
    for found in filter_plans(plan):
        name = _filter_graph(graph, found, token, carrier, wanted)
        filters.setdefault(found.used_in, {})[found.axis] = name
    before = source
    for number, exchange in enumerate(plan.exchanges):
        last = number == len(plan.rounds)
        name = names.unpack if last else names.round(number)
        weave = _Weave(graph, names, number, exchange, before, name, filters.get(number, {}))
        weave.run(carrier, wanted)
        before = name
    return graph


def _filter_graph(
    graph: Graph, plan: FilterPlan, token: str, carrier: str, wanted: bool
) -> str:
    """Add the tasks of a filter; return the name of its blocks."""
    names = Names(token, f"filter{plan.axis}_")
    graph[names.plan] = DataNode(names.plan, Run(plan, f"{token}-filter{plan.axis}"))
    name = names.round(0)
    for block in plan.rounds[0].source.indices():
        key = (name, *block)
        graph[key] = Task(key, generate_filter, TaskRef(names.plan), block)
    for number, exchange in enumerate(plan.exchanges[1:], 1):
        before, name = name, names.round(number)
        _Weave(graph, names, number, exchange, before, name, {}).run(carrier, wanted)
    return name


@dataclass(frozen=True)
class _Weave:
    """One exchange being written into a graph."""

    graph: Graph
    names: Names
    number: int
    exchange: Exchange
    before: str
    name: str
    filters: Mapping[int, str]

    def run(self, carrier: str, wanted: bool) -> None:
        if self.exchange.local:
            self._directly()
        elif carrier == "shared":
            self._through_barriers(wanted)
        elif self._shuffles(carrier) and p2p.usable():
            self._through_shuffles()
        else:
            self._through_shards()

    def _shuffles(self, carrier: str) -> bool:
        shape = self.exchange.shape
        return carrier == "p2p" or (
            carrier == "cluster" and shape.shards >= SHUFFLE_SHARDS * shape.groups
        )

    def _components(self) -> list[AxisComponents]:
        pairs = zip(self.exchange.source.axes, self.exchange.target.axes, strict=True)
        if self.exchange.mirror is not None:
            negated = {self.exchange.mirror.axis, *self.exchange.mirror.others}
        else:
            negated = set()
        return [
            _one_group(a.blocks, b.blocks) if i in negated else axis_components(a, b)
            for i, (a, b) in enumerate(pairs)
        ]

    def _groups(self) -> Iterator[tuple[Block, list[Block], list[Block]]]:
        """Index of each connected group, its source blocks and its target blocks."""
        axes = self._components()
        for group in itertools.product(*(range(axis.count) for axis in axes)):
            sources = [axis.sources[i] for axis, i in zip(axes, group, strict=True)]
            targets = [axis.targets[i] for axis, i in zip(axes, group, strict=True)]
            yield group, list(itertools.product(*sources)), list(itertools.product(*targets))

    def _task(self, function: Callable[..., Any], block: Block, sources: Any, inputs: Any) -> None:
        key = (self.name, *block)
        axes = tuple(self.filters)
        spectra = [_ref(self.filters[axis], (block[axis],)) for axis in axes]
        self.graph[key] = Task(
            key, function, TaskRef(self.names.plan), self.number, block, axes, sources,
            *spectra, *inputs,
        )

    def _refs(self, sources: list[Block]) -> list[Any]:
        return [_ref(self.before, block) for block in sources]

    def _directly(self) -> None:
        for _, sources, targets in self._groups():
            for block in targets:
                self._task(run_block, block, tuple(sources), self._refs(sources))

    def _through_barriers(self, wanted: bool) -> None:
        for group, sources, targets in self._groups():
            if len(targets) == 1 or len(sources) <= 1:
                for block in targets:
                    self._task(run_block, block, tuple(sources), self._refs(sources))
                continue
            key: Key = (self.names.barrier(self.number), *group)
            self.graph[key] = Task(key, barrier, tuple(sources), wanted, *self._refs(sources))
            for block in targets:
                self._task(run_block, block, None, [TaskRef(key)])

    def _through_shuffles(self) -> None:
        before = 0
        axes = self._components()
        for group, sources, targets in self._groups():
            if len(targets) == 1 or not sources:
                for block in targets:
                    self._task(run_block, block, tuple(sources), self._refs(sources))
                continue
            along = tuple(_compact(axis.targets[i]) for axis, i in zip(axes, group, strict=True))
            shuffle, name = self.names.shuffle(self.number, group), self.names.pack(self.number)
            transfers: list[Key] = [(name, *source) for source in sources]
            for key, source in zip(transfers, sources, strict=True):
                self.graph[key] = Task(
                    key, send_shards, TaskRef(self.names.plan), self.number, source, shuffle, along,
                    _ref(self.before, source),
                )
            refs = [TaskRef(key) for key in transfers]
            barrier = p2p.barrier_task(
                shuffle, refs, targets=along, before=before, plan=self.names.token,
                number=self.number,
            )
            self.graph[barrier.key] = barrier
            before += len(targets)
            for block in targets:
                self._shuffled(block, shuffle, TaskRef(barrier.key))

    def _shuffled(self, block: Block, shuffle: str, barrier: Any) -> None:
        key, axes = (self.name, *block), tuple(self.filters)
        spectra = [_ref(self.filters[axis], (block[axis],)) for axis in axes]
        self.graph[key] = Task(
            key, run_block_of_shuffle, TaskRef(self.names.plan), self.number, block, axes, shuffle,
            barrier, *spectra,
        )

    def _through_shards(self) -> None:
        expected = self.exchange.shape.shards
        if expected > MAX_SHARD_TASKS:
            raise CarrierError(
                f"exchange {self.number} needs {expected} shard tasks, more than "
                f"{MAX_SHARD_TASKS}: use larger chunks"
            )
        shards = ExchangeMap(self.exchange.source, self.exchange.target, self.exchange.mirror)
        for _, _, targets in self._groups():
            for block in targets:
                sources = tuple(dict.fromkeys(s.source for s in shards.shards(block)))
                name = self.names.pack(self.number)
                keys: list[Key] = [(name, *block, *source) for source in sources]
                for key, source in zip(keys, sources, strict=True):
                    self.graph[key] = Task(
                        key, pack_shard, TaskRef(self.names.plan), self.number, block, source,
                        _ref(self.before, source),
                    )
                refs = [TaskRef(key) for key in keys]
                self._task(run_block_of_shards, block, sources, refs)


def _ref(name: str, block: Block) -> TaskRef:
    key: Key = (name, *block)
    return TaskRef(key)


def _one_group(sources: int, targets: int) -> AxisComponents:
    return AxisComponents(1, np.zeros(sources, np.int64), np.zeros(targets, np.int64))


def _compact(members: tuple[int, ...]) -> Sequence[int]:
    """The same numbers as a range, where they are one: thousands of tasks hold them.

    >>> _compact((1, 3, 5)), _compact((1, 2, 5))
    (range(1, 6, 2), (1, 2, 5))
    """
    step = members[1] - members[0] if len(members) > 1 else 1
    found = range(members[0], members[-1] + 1, max(1, step))
    return found if tuple(found) == members else members
