"""Names of the tasks of a graph, and groups: which blocks of an exchange have anything in common.

Imports `decomposition`, `planner` and `dask_private`.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dask_bigfft.decomposition.rounds import AxisComponents, axis_components
from dask_bigfft.graph.dask_private import TaskRef
from dask_bigfft.planner.plan import Plan, ShiftPlan
from dask_bigfft.planner.plan_data import Exchange

Block = tuple[int, ...]
Key = Any  # a dask key: a name, or a name and a block index
Graph = dict[Key, Any]


@dataclass(frozen=True)
class Names:
    """Names of a graph's tasks. Dask's dashboard shows what comes before the token."""

    token: str
    part: str = ""

    def round(self, number: int, common: bool = False, sent: bool = False) -> str:
        """Of the tasks of a round, from 0.

        Those that write to common memory, or send their blocks on, have names that no other plan
        takes for its own.
        """
        mark = "0-" * common + "1-" * sent
        return f"bigfft_{self.part}round{number + 1}-{mark}{self.token}"

    def common(self, number: int) -> str:
        """Of the memory in which the blocks before a round lie together, from 0."""
        return f"bigfft_{self.part}common{number + 1}-{self.token}"

    def barrier(self, number: int) -> str:
        """Of the barriers before a round, from 0."""
        return f"bigfft_{self.part}barrier{number + 1}-{self.token}"

    def pack(self, number: int) -> str:
        """Of the shards before a round, from 0."""
        return f"bigfft_{self.part}pack{number + 1}-{self.token}"

    def shuffle(self, number: int, group: Block, sent: bool = False) -> str:
        """Of the shuffle of a group before a round, from 0, and of one that rounds send to."""
        mark = "1-" * sent
        return f"bigfft-{self.part}{number + 1}-{mark}{self.token}-{'_'.join(map(str, group))}"

    @property
    def rows(self) -> str:
        """Of the stored array that the first round reads rows of."""
        return f"bigfft_{self.part}rows-{self.token}"

    @property
    def own(self) -> str:
        """Of the blocks that came in and are overwritten."""
        return f"bigfft_{self.part}own-{self.token}"

    def settled(self, number: int) -> str:
        """Of these blocks after a round, from 0."""
        return f"bigfft_{self.part}settled{number + 1}-{self.token}"

    @property
    def unpack(self) -> str:
        """Of the gathers after the last round."""
        return f"bigfft_{self.part}unpack-{self.token}"

    @property
    def plan(self) -> str:
        """Of the plan itself."""
        return f"bigfft_{self.part}plan-{self.token}"


#: How the names of plans of transforms begin; their token follows.
PLAN_NAME = Names("").plan


def block_ref(name: str, block: Block) -> TaskRef:
    """Return what stands for a block of an array among the inputs of a task."""
    key: Key = (name, *block)
    return TaskRef(key)


class Groups:
    """Groups of blocks that an exchange connects.

    Parameters
    ----------
    exchange : Exchange
        Between two rounds.
    most : int, optional
        How many there may be; where there are more, some are taken together.
    """

    def __init__(self, exchange: Exchange, most: int | None = None) -> None:
        self.exchange, self.most = exchange, most

    @cached_property
    def axes(self) -> list[AxisComponents]:
        """Groups along each axis; those of the array are their products."""
        found = self._connected()
        if self.most is None:
            return found
        count = math.prod(axis.count for axis in found)
        for i in sorted(range(len(found)), key=lambda i: -found[i].count):
            if count <= self.most:
                break
            fewer = taken_together(found[i], -(-count // self.most))
            count, found[i] = count // found[i].count * fewer.count, fewer
        return found

    def _connected(self) -> list[AxisComponents]:
        exchange = self.exchange
        pairs = zip(exchange.source.axes, exchange.target.axes, strict=True)
        if exchange.mirror is not None:
            negated = {exchange.mirror.axis, *exchange.mirror.others}
        else:
            negated = set()
        return [
            _one_group(a.blocks, b.blocks) if i in negated else axis_components(a, b)
            for i, (a, b) in enumerate(pairs)
        ]

    def __iter__(self) -> Iterator[tuple[Block, list[Block], list[Block]]]:
        """Index of each group, its source blocks and its target blocks."""
        for group in itertools.product(*(range(axis.count) for axis in self.axes)):
            sources = [axis.sources[i] for axis, i in zip(self.axes, group, strict=True)]
            yield group, list(itertools.product(*sources)), self.targets(group)

    def targets(self, group: Block) -> list[Block]:
        """Target blocks of a group, row-major."""
        found = [axis.targets[i] for axis, i in zip(self.axes, group, strict=True)]
        return list(itertools.product(*found))

    def group_of(self, source: Block) -> Block | None:
        """Group of a source block; None if the block is not used."""
        group = tuple([along[i] for along, i in zip(self._of_source, source, strict=True)])
        return None if -1 in group else group

    @cached_property
    def _of_source(self) -> list[list[int]]:
        """Groups of source blocks along each axis, as lists: there may be very many questions."""
        return [axis.of_source.tolist() for axis in self.axes]

    def targets_of(self, source: Block) -> list[Block]:
        """Target blocks of a source block's group; none if the block is not used."""
        group = self.group_of(source)
        return [] if group is None else self.targets(group)


def taken_together(axis: AxisComponents, width: int) -> AxisComponents:
    """Return groups that are each made of `width` neighbours along an axis.

    >>> few = taken_together(AxisComponents(3, np.array([0, 1, 2, -1]), np.array([2, 1, 0])), 2)
    >>> few.count, few.of_source.tolist(), few.of_target.tolist()
    (2, [0, 0, 1, -1], [1, 0, 0])
    """
    return AxisComponents(-(-axis.count // width), axis.of_source // width, axis.of_target // width)


def _one_group(sources: int, targets: int) -> AxisComponents:
    return AxisComponents(1, np.zeros(sources, np.int64), np.zeros(targets, np.int64))


@dataclass(frozen=True)
class Known:
    """A plan whose first rounds another one has in common with it, and its token.

    A spectrum and its shifted form share these rounds: their tasks have the same names.
    """

    plan: Plan
    token: str

    def shared(self, plan: Plan | ShiftPlan) -> int:
        """Number of first rounds that a plan of the same source has in common with this one."""
        if self.plan.source != plan.source or self.plan.inside:
            return 0
        pairs = zip(self.plan.rounds, plan.rounds, strict=False)
        same = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        # A last round whose blocks are the result's flattens them, and has the result's name.
        ends = self.plan.ends_in_round or plan.ends_in_round
        return same - 1 if ends and same == len(plan.rounds) else same
