"""Groups of blocks that an exchange connects: blocks of different groups share no values."""

import itertools
import math
from collections.abc import Iterator

import numpy as np

from dask_bigfft.arrays import Block
from dask_bigfft.planner.stages import Exchange
from dask_bigfft.transforms.exchanges import AxisComponents, axis_components


class Groups:
    """Groups of blocks that an exchange connects.

    Parameters
    ----------
    exchange : Exchange
        Exchange between two rounds.
    max_groups : int, optional
        Maximum number of groups; if there are more, neighbours are merged.
    """

    def __init__(self, exchange: Exchange, max_groups: int | None = None) -> None:
        mirrored_axes: set[int] = set()
        if exchange.mirror is not None:
            mirrored_axes = {exchange.mirror.axis, *exchange.mirror.others}
        #: Groups along each axis; those of the array are their products.
        self.axes: list[AxisComponents] = []
        pairs = zip(exchange.source.axes, exchange.target.axes, strict=True)
        for number, (before, after) in enumerate(pairs):
            if number in mirrored_axes:
                self.axes.append(_one_group(before.blocks, after.blocks))
            else:
                self.axes.append(axis_components(before, after))
        if max_groups is not None:
            self._merge(max_groups)
        self._of_source = [axis.of_source.tolist() for axis in self.axes]  # fast to index

    def _merge(self, max_groups: int) -> None:
        """Merge neighbouring groups, first along the axes with most of them."""
        counts = [axis.count for axis in self.axes]
        for i in np.argsort(np.negative(counts), kind="stable").tolist():
            excess = math.prod(axis.count for axis in self.axes) / max_groups
            if excess > 1:
                self.axes[i] = merged_neighbours(self.axes[i], math.ceil(excess))

    def __iter__(self) -> Iterator[tuple[Block, list[Block], list[Block]]]:
        """Yield the index of each group, its source blocks and its target blocks."""
        groups_along = [range(axis.count) for axis in self.axes]
        for group in itertools.product(*groups_along):
            pairs = zip(self.axes, group, strict=True)
            sources = [axis.sources[i] for axis, i in pairs]
            yield group, list(itertools.product(*sources)), self.targets(group)

    def targets(self, group: Block) -> list[Block]:
        """Return the target blocks of a group, row-major."""
        pairs = zip(self.axes, group, strict=True)
        targets = [axis.targets[i] for axis, i in pairs]
        return list(itertools.product(*targets))

    def group_of(self, source: Block) -> Block | None:
        """Return the group of a source block; None if the block is not used."""
        group = tuple([along[i] for along, i in zip(self._of_source, source, strict=True)])
        return None if -1 in group else group


def merged_neighbours(axis: AxisComponents, width: int) -> AxisComponents:
    """Return groups that each merge `width` neighbours along an axis.

    >>> axis = AxisComponents(3, np.array([0, 1, 2, -1]), np.array([2, 1, 0]))
    >>> merged = merged_neighbours(axis, 2)
    >>> merged.count, merged.of_source.tolist(), merged.of_target.tolist()
    (2, [0, 0, 1, -1], [1, 0, 0])
    """
    count = -(-axis.count // width)
    return AxisComponents(count, axis.of_source // width, axis.of_target // width)


def _one_group(sources: int, targets: int) -> AxisComponents:
    """Return one group of all blocks along an axis."""
    of_source = np.zeros(sources, np.int64)
    of_target = np.zeros(targets, np.int64)
    return AxisComponents(1, of_source, of_target)
