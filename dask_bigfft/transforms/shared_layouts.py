"""Shared layouts: memory that the blocks before and after an exchange have in common.

If every block before and after an exchange is a box of the same larger block, the exchange copies
nothing: the blocks are views of a shared buffer. The shared layout has a block for each connected
group of the exchange.
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from dask_bigfft.arrays import Block
from dask_bigfft.transforms.exchanges import axis_components
from dask_bigfft.transforms.layout import AxisLayout, Digit, Group, Layout, contiguous


def shared_layout_of(before: Layout, after: Layout, layout: Layout | None = None) -> Layout | None:
    """Return the shared layout of two layouts, with a block for each connected group of both.

    None if blocks of one of them are no views of its blocks. Only `layout` is tried if it is given,
    because the blocks before are in a shared buffer already. A new one has its digits in the order
    of the layout before, so that whole rows are written.
    """
    if layout is None:
        shared_axes = list(map(_shared_axis, before.axes, after.axes))
    else:
        shared_axes = list(layout.axes)
    axes = []
    for shared_axis, axis_before, axis_after in zip(
        shared_axes,
        before.axes,
        after.axes,
        strict=True,
    ):
        if shared_axis is None:
            return None
        if not _fits(shared_axis, axis_before) or not _fits(shared_axis, axis_after):
            return None
        if axis_components(axis_before, axis_after).count != shared_axis.blocks:
            return None
        axes.append(shared_axis)
    return Layout(tuple(axes))


def _shared_axis(before: AxisLayout, after: AxisLayout) -> AxisLayout | None:
    """Return the candidate for the shared layout of an axis; None if there is none.

    It has the digits of the layout before. If both have the same dimensions, it is cut where both
    are. If the layout after is flat, it is not cut, and has the digits in the order of the index.
    """
    if _has_same_dims(before, after):
        bounds_after = {group.digits: group.bounds for group in after.groups}
        groups = []
        for group in before.groups:
            common_bounds = sorted({*group.bounds} & {*bounds_after[group.digits]})
            chunks = tuple(high - low for low, high in itertools.pairwise(common_bounds))
            groups.append(Group(group.digits, chunks))
        return AxisLayout(tuple(groups))
    if len(after.groups) == 1:
        outermost_first = sorted(before.groups, key=lambda group: -group.digits[0].stride)
        return AxisLayout(tuple(Group(group.digits, (group.size,)) for group in outermost_first))
    return None


def fits(shared_layout: Layout, layout: Layout) -> bool:
    """Return True if every block of a layout is a view of one block of the shared layout."""
    pairs = zip(shared_layout.axes, layout.axes, strict=True)
    return all(_fits(shared_axis, axis) for shared_axis, axis in pairs)


@lru_cache(maxsize=1024)
def _fits(shared_axis: AxisLayout, axis: AxisLayout) -> bool:
    """Return True if every block of an axis is a view of one block of the shared axis.

    With the same dimensions, the axis is cut wherever the shared axis is. Otherwise the axis is
    flat, and its blocks are intervals of the one shared block.
    """
    groups = (*shared_axis.groups, *axis.groups)
    if not all(map(_is_plain, groups)):
        return False
    if not _has_same_dims(shared_axis, axis):
        is_whole = all(group.is_whole for group in groups)
        is_flat = len(axis.groups) == 1 and shared_axis.blocks == 1
        return is_whole and is_flat and merged(shared_axis.digits) == merged(axis.digits)
    bounds = {group.digits: group.bounds for group in axis.groups}
    for group in shared_axis.groups:
        own_bounds = bounds[group.digits]
        if own_bounds[-1] != group.stored or not set(own_bounds).issuperset(group.bounds):
            return False
    return True


def _is_plain(group: Group) -> bool:
    """Return True if a group stores its first values in order, and has no empty chunks."""
    return group.is_in_order and group.stored <= group.size and min(group.chunks, default=0) > 0


def _has_same_dims(a: AxisLayout, b: AxisLayout) -> bool:
    """Return True if two layouts of an axis have the same dimensions, in any order."""
    dims = {group.digits for group in a.groups}
    other_dims = {group.digits for group in b.groups}
    return dims == other_dims and len(dims) == len(a.groups) == len(b.groups)


def merged(digits: tuple[Digit, ...]) -> tuple[Digit, ...]:
    """Return the digits, with neighbours joined that form one digit of the index.

    >>> merged((Digit(1, 4, 3, 3), Digit(1, 1, 4, 4)))
    (Digit(stage=1, stride=1, size=12, radix=12),)
    """
    joined: list[Digit] = []
    for digit in digits:
        if joined and _is_inner(digit, joined[-1]):
            outer = joined.pop()
            digit = Digit(
                digit.stage,
                digit.stride,
                size=outer.size * digit.size,
                radix=outer.radix * digit.radix,
            )
        joined.append(digit)
    return tuple(joined)


def _is_inner(digit: Digit, outer: Digit) -> bool:
    """Return True if a digit and its outer neighbour form one digit of the index."""
    follows = outer.stage == digit.stage and outer.stride == digit.stride * digit.radix
    return follows and not digit.is_partial


@dataclass(frozen=True)
class Place:
    """Position of a block inside a block of a shared layout.

    It is the case of a table of pieces (`tiles.pieces`) in which a block is a single piece: a box
    of the dimensions of the shared block. Then no table is needed, and the block is a view::

        shared_block.reshape(shape)[cuts].transpose(order)

    Parameters
    ----------
    shape : tuple of int
        Shape of the shared layout's block, with those dimensions merged that are one in the block.
    cuts : tuple of slice
        Slices of the block in these dimensions.
    order : tuple of int
        Dimension of the shared layout's block for each dimension of the block.
    """

    shape: tuple[int, ...]
    cuts: tuple[slice, ...]
    order: tuple[int, ...]

    @property
    def written(self) -> tuple[int, ...]:
        """Dimensions of the block in the order of the shared layout's block."""
        return tuple(sorted(range(len(self.order)), key=self.order.__getitem__))

    @property
    def width(self) -> int:
        """Elements of each contiguous run of the block in the shared layout's block."""
        extents = [cut.stop - cut.start for cut in self.cuts]
        return contiguous(self.shape, extents)


@lru_cache(maxsize=4096)
def place_of(shared_layout: Layout, layout: Layout, block: Block) -> Place:
    """Return the position of a block in its block of the shared layout, which it `fits`.

    An axis with the same dimensions in both is cut in each of them. A flat axis is one dimension.
    """
    shape: list[int] = []
    cuts: list[slice] = []
    order: list[int] = []
    for shared_axis, axis, number in zip(
        shared_layout.axes,
        layout.axes,
        block,
        strict=True,
    ):
        if not _has_same_dims(shared_axis, axis):
            ((low, high),) = axis.intervals(number)
            order.append(len(shape))
            shape.append(shared_axis.size)
            cuts.append(slice(low, high))
            continue
        dim_of = {}
        chunks_and_cuts = _cuts(shared_axis, axis, number)
        for group, (chunk, cut) in zip(shared_axis.groups, chunks_and_cuts, strict=True):
            dim_of[group.digits] = len(shape)
            shape.append(group.chunks[chunk])
            cuts.append(cut)
        order += [dim_of[group.digits] for group in axis.groups]
    return Place(tuple(shape), tuple(cuts), tuple(order))


def shared_blocks(shared_layout: Layout, layout: Layout) -> list[list[int]]:
    """Return the shared layout's block that contains each block of a layout, by axis."""
    numbers_of_axes = []
    for shared_axis, axis in zip(shared_layout.axes, layout.axes, strict=True):
        numbers = []
        for block in range(axis.blocks):
            chunks = tuple(chunk for chunk, _ in _cuts(shared_axis, axis, block))
            numbers.append(shared_axis.block_of(chunks))
        numbers_of_axes.append(numbers)
    return numbers_of_axes


def _cuts(shared_axis: AxisLayout, axis: AxisLayout, block: int) -> Iterator[tuple[int, slice]]:
    """Yield, for each group of the shared axis, the chunk with a block and its slice of the chunk.

    A flat axis, which has other dimensions, is in the one block of the shared axis.
    """
    if not _has_same_dims(shared_axis, axis):
        for group in shared_axis.groups:
            yield 0, slice(0, group.size)
        return
    digits = [group.digits for group in axis.groups]
    intervals = dict(zip(digits, axis.intervals(block), strict=True))
    for group in shared_axis.groups:
        low, high = intervals[group.digits]
        chunk = bisect_right(group.bounds, low) - 1
        start = group.bounds[chunk]
        yield chunk, slice(low - start, high - start)
