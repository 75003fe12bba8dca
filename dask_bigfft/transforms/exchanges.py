"""Exchanges: what moves between two layouts of blocks.

An exchange gathers each block of a layout from blocks of the layout before it. Its figures say how
many source blocks that takes, and how long the contiguous runs are (C and W of the cost model). Its
connected groups are the blocks that exchange values with one another, and with no others. An
exchange is *local*, without transfers, if every block is made from one block.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from dask_bigfft.arrays import Ints
from dask_bigfft.transforms.layout import (
    AxisLayout,
    Group,
    Layout,
    common_digits,
    radix_points,
    size_of,
    whole,
)


@dataclass(frozen=True)
class Mirror:
    """Completion of half a spectrum.

    ``axis`` is the real axis, and ``length`` its N. ``others`` are the axes transformed together
    with it, whose index is negated, too.
    """

    axis: int
    length: int
    others: tuple[int, ...]


def packed_dtype(source: np.dtype[Any], target: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of packed shards: the source's, unless only the target is real.

    >>> packed_dtype(np.dtype("f4"), np.dtype("c8")), packed_dtype(np.dtype("c8"), np.dtype("f4"))
    (dtype('float32'), dtype('float32'))
    """
    return target if source.kind == "c" and target.kind != "c" else source


@dataclass(frozen=True)
class ExchangeShape:
    """Cost figures of an exchange, for a full block.

    Parameters
    ----------
    fan_in : int
        Number of source blocks that a target block is gathered from.
    runs, width : int
        C and W: number of contiguous runs that a gather reads, and their width in elements.
    groups : int
        Connected groups of blocks: blocks of different groups exchange nothing.
    blocks_in, blocks_out : int
        Number of blocks before and after.
    local : bool
        True if each block is made from one block that no other block reads.
    largest : int
        Elements of the largest shard of a block that is not mirrored, at most.
    """

    fan_in: int
    runs: int
    width: int
    groups: int
    blocks_in: int
    blocks_out: int
    local: bool
    largest: int

    @property
    def shards(self) -> int:
        """Number of shards of the whole exchange."""
        return self.fan_in * self.blocks_out


@lru_cache(maxsize=1024)
def exchange_shape(source: Layout, target: Layout) -> ExchangeShape:
    """Return the figures of the exchange between two layouts, from their full blocks.

    They are exact for even chunks, and estimates for irregular ones, which count at their largest.
    """
    pairs = list(zip(source.axes, target.axes, strict=True))
    components = [axis_components(before, after) for before, after in pairs]
    local = all(axis.one_to_one for axis in components)
    fan_in = _shift_fan_in(pairs)
    width = 1
    run_has_ended = False
    elements = 1  # of a target block
    largest = 1
    for before, after in reversed(pairs):
        for extent_before, extent_after in _paired_extents(before, after):
            extent = min(extent_before, extent_after)  # of a shard
            fan_in *= -(-extent_after // extent)
            elements *= extent_after
            largest *= extent
            # A run goes on to the next digit outwards if it has all of this one in its block.
            if not run_has_ended:
                width *= extent
                run_has_ended = extent < extent_before
    return ExchangeShape(
        fan_in=1 if local else min(fan_in, source.blocks),
        runs=max(1, elements // width) if width else 0,
        width=width,
        groups=math.prod(axis.count for axis in components),
        blocks_in=source.blocks,
        blocks_out=target.blocks,
        local=local,
        largest=largest,
    )


@lru_cache(maxsize=1024)
def _paired_extents(source: AxisLayout, target: AxisLayout) -> tuple[tuple[int, int], ...]:
    """Return extents of common digits in full blocks before and after, innermost first.

    >>> from dask_bigfft.transforms.layout import Digit, plain
    >>> rows = AxisLayout((whole(Digit(0, 4, 2, 2)), whole(Digit(0, 1, 4, 4))))
    >>> _paired_extents(plain(8, (2, 2, 2, 2)), rows)
    ((2, 4), (1, 2))
    """
    points = radix_points(source, target)
    extents_after = {}
    for stage, stride, extent in _extents(target, points):
        extents_after[stage, stride] = extent
    pairs = []
    for stage, stride, extent in _extents(source, points):
        extent_after = extents_after.get((stage, stride), extent)
        pairs.append((extent, extent_after))
    return tuple(pairs)


def _extents(layout: AxisLayout, points: dict[int, tuple[int, ...]]) -> list[tuple[int, int, int]]:
    """Return stage, stride and extent in a full block of each common digit, innermost first."""
    extents: list[tuple[int, int, int]] = []
    for group in reversed(layout.groups):
        length = max(group.chunks, default=0)
        inner = 1  # values of the group per value of the digit
        for stage, stride, size in reversed(common_digits(group, points)):
            extent = min(size, -(-length // inner))
            extents.append((stage, stride, max(1, extent)))
            inner *= max(1, size)
    return extents


def _shift_fan_in(pairs: Sequence[tuple[AxisLayout, AxisLayout]]) -> int:
    """Return the source blocks of a block due to cyclic shifts: two along each shifted axis."""
    fan_in = 1
    for before, after in pairs:
        is_shift = before.digits == after.digits
        if is_shift and before.groups[0].offset != after.groups[0].offset:
            fan_in *= min(2, before.blocks)
    return fan_in


@dataclass(frozen=True, eq=False)
class AxisComponents:
    """Connected groups of an exchange along one axis.

    ``of_source[i]`` is the group of source block i (-1: unused), ``of_target[j]`` that of
    target block j. The groups of an n-dimensional exchange are the products of its axes'.
    """

    count: int
    of_source: Ints
    of_target: Ints

    @cached_property
    def sources(self) -> tuple[tuple[int, ...], ...]:
        """Source blocks of each group."""
        return _members(self.of_source, self.count)

    @cached_property
    def targets(self) -> tuple[tuple[int, ...], ...]:
        """Target blocks of each group."""
        return _members(self.of_target, self.count)

    @cached_property
    def one_to_one(self) -> bool:
        """True if every group has at most one block on either side."""
        for group_of in (self.of_source, self.of_target):
            used_groups = group_of[group_of >= 0]
            block_counts = np.bincount(used_groups, minlength=1)
            if block_counts.max() > 1:
                return False
        return True


def _members(group_of: Ints, count: int) -> tuple[tuple[int, ...], ...]:
    """Return the blocks of each of `count` groups, given the group of each block.

    >>> _members(np.array([0, 1, -1, 0]), 2)
    ((0, 3), (1,))
    """
    members: list[list[int]] = [[] for _ in range(count)]
    for block, group in enumerate(group_of.tolist()):
        if group >= 0:
            members[group].append(block)
    return tuple(map(tuple, members))


@lru_cache(maxsize=256)
def axis_components(source: AxisLayout, target: AxisLayout) -> AxisComponents:
    """Return the connected groups of an exchange along one axis.

    Groups of digits with the same chunks in both layouts separate the blocks. All other blocks are
    assumed to be connected, so the result may be coarser than necessary.
    """
    if any(group.arrangement for group in (*source.groups, *target.groups)):
        of_source = np.zeros(source.blocks, np.int64)
        of_target = np.zeros(target.blocks, np.int64)
        return AxisComponents(1, of_source, of_target)
    source = unflattened(source)
    target = unflattened(target)
    has_one_dim = len(source.groups) == len(target.groups) == 1
    if has_one_dim and source.digits == target.digits:
        return _interval_components(source.groups[0], target.groups[0])
    separating = []
    for group in source.groups:
        if len(group.chunks) > 1 and group in target.groups:
            separating.append(group)
    count = math.prod(len(group.chunks) for group in separating)
    of_source = _numbers_in(separating, source)
    of_target = _numbers_in(separating, target)
    return AxisComponents(count, of_source, of_target)


def unflattened(layout: AxisLayout) -> AxisLayout:
    """Return the layout with groups of several digits split where the chunks allow it.

    >>> from dask_bigfft.transforms.layout import Digit
    >>> flat = Group((Digit(1, 1, 3, 3), Digit(1, 3, 4, 4)), (4, 8))
    >>> [group.chunks for group in unflattened(AxisLayout((flat,))).groups]
    [(1, 2), (4,)]
    """
    groups: list[Group] = []
    for group in layout.groups:
        groups += _split_group(group)
    return AxisLayout(tuple(groups))


def _split_group(group: Group) -> list[Group]:
    """Return a group for each digit if the chunks cut only the outermost one, else the group."""
    outer, *inner_digits = group.digits
    if not inner_digits or not group.is_whole:
        return [group]
    width = size_of(inner_digits)
    if any(chunk % width for chunk in group.chunks):
        return [group]
    outer_chunks = tuple(chunk // width for chunk in group.chunks)
    return [Group((outer,), outer_chunks), *map(whole, inner_digits)]


def _numbers_in(separating: Sequence[Group], layout: AxisLayout) -> Ints:
    """Return the number of each block among the chunks of some groups of digits, row-major."""
    chunks = np.indices(layout.grid).reshape(len(layout.grid), -1)
    numbers = np.zeros(layout.blocks, np.int64)
    for group in separating:
        place = layout.groups.index(group)
        numbers = numbers * len(group.chunks) + chunks[place]
    return numbers


def _interval_components(source: Group, target: Group) -> AxisComponents:
    """Return the groups of two cuts of the same flattened digits, split at common bounds.

    >>> from dask_bigfft.transforms.layout import Digit
    >>> digits = (Digit(0, 1, 8, 8),)
    >>> components = _interval_components(Group(digits, (4, 4)), Group(digits, (2, 2, 4)))
    >>> components.sources, components.targets
    (((0,), (1,)), ((0, 1), (2,)))
    """
    if source.offset != target.offset:
        return _rolled_components(source, target)
    size = source.size
    source_bounds = np.minimum(source.bounds, size)
    target_bounds = np.minimum(target.bounds, size)
    # Behind the stored values there is padding, which any cut of the target splits.
    padding_bounds = target_bounds[target_bounds >= source_bounds[-1]]
    source_cuts = np.union1d(source_bounds, padding_bounds)
    common_cuts = np.intersect1d(source_cuts, target_bounds)
    # Group i is between ends i and i + 1.
    last = max(source_bounds[-1], target_bounds[-1])
    ends = np.union1d(common_cuts, [0, last])
    count = max(1, len(ends) - 1)

    def groups_of(bounds: Ints) -> Ints:
        """Return the group of each chunk between some bounds."""
        groups = np.searchsorted(ends, bounds[:-1], side="right") - 1
        return np.minimum(groups, count - 1)

    has_values = np.diff(source_bounds) > 0
    of_source = np.where(has_values, groups_of(source_bounds), -1)
    of_target = groups_of(target_bounds)
    return AxisComponents(count, of_source, of_target)


def _rolled_components(source: Group, target: Group) -> AxisComponents:
    """Return the groups of digits cyclically shifted against one another: cuts of a circle.

    Blocks between two common cuts are a group. Without a common cut all blocks are one group.
    """
    size = source.size

    def first_values(group: Group) -> Ints:
        """Return the value at the first place of each chunk."""
        places = np.array(group.bounds[:-1], np.int64)
        return (places + group.offset) % size

    source_cuts = first_values(source)
    target_cuts = first_values(target)
    common_cuts = np.intersect1d(source_cuts, target_cuts)
    count = max(1, len(common_cuts))

    def groups_of(cuts: Ints) -> Ints:
        """Return the group of each chunk that begins at a cut."""
        groups = np.searchsorted(common_cuts, cuts, side="right") - 1
        return groups % count  # values before the first common cut belong to the last group

    has_values = np.array(source.chunks) > 0  # no target block needs an empty one
    of_source = np.where(has_values, groups_of(source_cuts), -1)
    of_target = groups_of(target_cuts)
    return AxisComponents(count, of_source, of_target)
