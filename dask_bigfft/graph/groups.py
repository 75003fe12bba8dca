"""Connected groups of an exchange: which blocks exchange anything with which.

Imports `decomposition` and `planner`.
"""

import itertools
import math
from collections.abc import Iterator
from functools import cached_property

import numpy as np

from dask_bigfft.decomposition.rounds import AxisComponents, axis_components
from dask_bigfft.planner.plan import Exchange

Block = tuple[int, ...]


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
