"""Shared layouts: memory that the blocks before and after an exchange have in common.

If every block before and after an exchange is a box of the same larger block, the exchange copies
nothing: the blocks are views of a shared buffer. The shared layout has a block for each connected
group of the exchange.
"""

import itertools
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from dask_bigfft.arrays import Block
from dask_bigfft.transforms.exchanges import axis_components
from dask_bigfft.transforms.layout import AxisLayout, Digit, Group, Layout, contiguous


def merged(digits: tuple[Digit, ...]) -> tuple[Digit, ...]:
    """Return the digits, with neighbours joined that form one digit of the index.

    >>> merged((Digit(1, 4, 3, 3), Digit(1, 1, 4, 4)))
    (Digit(stage=1, stride=1, size=12, radix=12),)
    """
    result: list[Digit] = []
    for digit in digits:
        if result and _is_inner(digit, result[-1]):
            outer = result.pop()
            size = outer.size * digit.size
            radix = outer.radix * digit.radix
            digit = Digit(
                digit.stage,
                digit.stride,
                size,
                radix,
            )
        result.append(digit)
    return tuple(result)


def _is_inner(digit: Digit, outer: Digit) -> bool:
    """Return True if a digit and its outer neighbour form one digit of the index."""
    follows = outer.stage == digit.stage and outer.stride == digit.stride * digit.radix
    return follows and not digit.is_partial


def _is_plain(group: Group) -> bool:
    """Return True if a group stores each value once, in order, and without empty chunks."""
    if group.offset or group.arrangement:
        return False
    return group.bounds[-1] == group.size and min(group.chunks, default=0) > 0


def _has_same_dims(a: AxisLayout, b: AxisLayout) -> bool:
    """Return True if two layouts of an axis have the same dimensions, in any order."""
    dims = {group.digits for group in a.groups}
    other_dims = {group.digits for group in b.groups}
    return dims == other_dims and len(dims) == len(a.groups) == len(b.groups)


@lru_cache(maxsize=1024)
def _fits(shared_layout: AxisLayout, axis: AxisLayout) -> bool:
    """Return True if every block of an axis layout is a view of one block of the shared layout."""
    if not all(_is_plain(group) for group in (*shared_layout.groups, *axis.groups)):
        return False
    if not _has_same_dims(shared_layout, axis):
        is_flat = len(axis.groups) == 1 and shared_layout.blocks == 1
        return is_flat and merged(shared_layout.digits) == merged(axis.digits)
    bounds = {group.digits: set(group.bounds) for group in axis.groups}
    return all(bounds[group.digits].issuperset(group.bounds) for group in shared_layout.groups)


def fits(shared_layout: Layout, layout: Layout) -> bool:
    """Return True if every block of a layout is a view of one block of the shared layout."""
    return all(_fits(a, b) for a, b in zip(shared_layout.axes, layout.axes, strict=True))


def shared_layout_of(before: Layout, after: Layout, layout: Layout | None = None) -> Layout | None:
    """Return the shared layout of two layouts, with one block for each connected group, or None.

    Only `layout` counts if the first blocks share it already. A new one has its digits in the order
    of the first layout, so that whole rows are written.
    """
    if layout is not None:
        shared_axes: Sequence[AxisLayout | None] = layout.axes
    else:
        shared_axes = list(map(_shared_axis, before.axes, after.axes))
    axes = []
    for axis, a, b in zip(
        shared_axes,
        before.axes,
        after.axes,
        strict=True,
    ):
        if axis is None or not _fits(axis, a) or not _fits(axis, b):
            return None
        if axis_components(a, b).count != axis.blocks:
            return None
        axes.append(axis)
    return Layout(tuple(axes))


def _shared_axis(a: AxisLayout, b: AxisLayout) -> AxisLayout | None:
    """Return the candidate for the shared layout of an axis, in the dimensions of the first."""
    groups = []
    if _has_same_dims(a, b):
        bounds_after = {group.digits: group.bounds for group in b.groups}
        for group in a.groups:
            common_bounds = sorted({*group.bounds} & {*bounds_after[group.digits]})
            chunks = tuple(high - low for low, high in itertools.pairwise(common_bounds))
            groups.append(Group(group.digits, chunks))
        return AxisLayout(tuple(groups))
    if len(b.groups) == 1:  # flat: the digits in the order that they have there
        for group in sorted(a.groups, key=lambda group: -group.digits[0].stride):
            groups.append(Group(group.digits, (group.size,)))
        return AxisLayout(tuple(groups))
    return None


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


@lru_cache(maxsize=4096)
def place_of(shared_layout: Layout, layout: Layout, block: Block) -> Place:
    """Return the position of a block in its block of the shared layout, if it `fits`."""
    shape: list[int] = []
    cuts: list[slice] = []
    order: list[int] = []
    for shared_axis, axis, number in zip(
        shared_layout.axes,
        layout.axes,
        block,
        strict=True,
    ):
        first_dim = len(shape)
        if not _has_same_dims(shared_axis, axis):
            ((low, high),) = axis.intervals(number)
            shape.append(shared_axis.size)
            cuts.append(slice(low, high))
            order.append(first_dim)
            continue
        dim_of = {}
        pairs = zip(shared_axis.groups, _cuts(shared_axis, axis, number), strict=True)
        for dim, (group, (chunk, cut)) in enumerate(pairs, first_dim):
            shape.append(group.chunks[chunk])
            cuts.append(cut)
            dim_of[group.digits] = dim
        order += [dim_of[group.digits] for group in axis.groups]
    return Place(tuple(shape), tuple(cuts), tuple(order))


def _cuts(shared_layout: AxisLayout, axis: AxisLayout, block: int) -> Iterator[tuple[int, slice]]:
    """Yield, for each group of the shared layout, the chunk with a block and the slice in it."""
    if not _has_same_dims(shared_layout, axis):
        for group in shared_layout.groups:
            yield 0, slice(0, group.size)
        return
    digits = [group.digits for group in axis.groups]
    intervals = dict(zip(digits, axis.intervals(block), strict=True))
    for group in shared_layout.groups:
        low, high = intervals[group.digits]
        chunk = bisect_right(group.bounds, low) - 1
        start = group.bounds[chunk]
        yield chunk, slice(low - start, high - start)
