"""Connected groups of an exchange: which blocks exchange anything with which.

Imports `decomposition` and `planner`.
"""

import itertools
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
    """

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange

    @cached_property
    def axes(self) -> list[AxisComponents]:
        """Groups along each axis; those of the array are their products."""
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

    def targets_of(self, source: Block) -> list[Block]:
        """Target blocks of a source block's group; none if the block is not used."""
        group = tuple(
            int(axis.of_source[i]) for axis, i in zip(self.axes, source, strict=True)
        )
        return [] if -1 in group else self.targets(group)


def _one_group(sources: int, targets: int) -> AxisComponents:
    return AxisComponents(1, np.zeros(sources, np.int64), np.zeros(targets, np.int64))
