"""Segmented views: a target block as shards of its source blocks, without a gather.

Along each axis the pieces of an exchange are boxes of the block's digits. If a block of the result
ends within a digit, they are boxes of a larger block around it that has whole digits::

    block of 7..18, digits of 4        . . . 7       around it: 4..19, of which the block has
                                       8 ...11       3..14
                                      12 ...15
                                      16 17 18 .

The boxes of a mirror image have negative steps.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.layout import AxisLayout, Digit, Group, Layout
from dask_bigfft.exchange.shards import AxisExchange, ExchangeMap, Product, ShardTable, firsts
from dask_bigfft.kernels.segmented import (
    Block,
    Edge,
    SegmentedView,
    StackedView,
    Stretches,
    WindowView,
)
from dask_bigfft.planner.plan_data import Exchange

Array = npt.NDArray[np.generic]
Ints = npt.NDArray[np.int64]

#: Maximum number of shards of a composite view; blocks with more are gathered.
MOST_SHARDS = 4096

#: Maximum ratio of the size with whole digits (see above) to the size of the block. Only values of
#: the block cross the bus.
MOST_AROUND = 2

Axis = tuple[list[tuple[Edge, ...]], Stretches]


def windowed(
    exchange: ExchangeMap,
    products: list[Product],
    sources: Mapping[Block, Array],
    shape: tuple[int, ...],
    block: Block | None = None,
) -> WindowView | None:
    """Return a block, or a part of a larger one, as a composite of its sources; None if impossible.

    Parameters
    ----------
    exchange : ExchangeMap
        Shards of the exchange.
    products : list of Product
        Copies that fill the block: the shards, and those of the conjugated mirror image.
    sources : mapping of block index to ndarray
        Source blocks, of the block's dtype.
    shape : tuple of int
        Shape of the block.
    block : tuple of int, optional
        Index of the block, if it may end within digits.
    """
    conjugates = [product.conjugate for product in products]
    if not math.prod(shape) or conjugates not in ([False], [False, True]):
        return None
    edges, groups, bounds = list[Edge](), list[int](), list[tuple[int, int]]()
    axes, image, flipped = list[Stretches](), list[Stretches](), set[int]()
    begins = zip(
        zip(*(product.tables for product in products), strict=True),
        firsts(exchange.source_dims),
        firsts(exchange.target_dims),
        exchange.target_dims,
        strict=True,
    )
    for axis, ((table, *mirrored), came, goes, dims) in enumerate(begins):
        turned = None if not mirrored else _unflipped(mirrored[0])
        if mirrored and turned is None:
            return None
        both = table if turned is None else _stacked(table, turned[0])
        ends = tuple((0, n) for n in shape[goes : goes + dims])
        found = _axis(axis, both, came, shape[goes : goes + dims])
        if found is None and block is not None:
            found, ends = _around(axis, both, came, exchange.direct[axis], block[axis])
        if found is None:
            return None
        per_dim, stretches = found
        bounds += ends
        own = tuple(e + len(edges) for e in stretches.edges)
        stretches = replace(stretches, edges=own)
        axes.append(stretches.rows(slice(0, len(table))))
        if turned is not None:
            image.append(stretches.rows(slice(len(table), None)))
            flipped |= set(own) if turned[1] else set()
        edges += [edge for group in per_dim for edge in group]
        groups += [len(group) for group in per_dim]
    made = SegmentedView(
        tuple(edges), tuple(groups), tuple(axes), sources, tuple(image), frozenset(flipped)
    )
    return WindowView(made, tuple(bounds)) if made.count <= MOST_SHARDS else None


def _around(
    axis: int, table: ShardTable, came: int, along: AxisExchange, block: int
) -> tuple[Axis | None, tuple[tuple[int, int], ...]]:
    """Return edges and boxes of the whole digits around an axis block, and its bounds there."""
    (group, *others) = along.target.groups
    if others or len(group.digits) > 1 or group.offset or group.arrangement:
        return None, ()
    low, high = group.interval(block)
    if not 0 < high - low == group.chunks[block]:
        return None, ()
    begin, end = _outer(low, high, along.points[group.digits[0].stage])
    if end - begin > MOST_AROUND * (high - low):
        return None, ()
    moved = replace(table, target_starts=table.target_starts + (low - begin))
    return _axis(axis, moved, came, (end - begin,)), ((low - begin, high - begin),)


def _outer(low: int, high: int, points: tuple[int, ...]) -> tuple[int, int]:
    """Return the smallest interval around another one that begins and ends with whole digits.

    >>> _outer(7, 19, (1, 4, 24)), _outer(5, 7, (1, 4, 24)), _outer(20, 27, (1, 4, 24))
    ((4, 20), (5, 7), (20, 28))
    """
    for number, point in enumerate(points):
        begin, end = low // point * point, -(-high // point) * point
        if all(end - begin <= outer for outer in points[number + 1 :]):
            return begin, end
    return low, high


def _unflipped(table: ShardTable) -> tuple[ShardTable, bool] | None:
    """Return pieces with positive steps, and whether they were negative; None if only some were."""
    back, many = table.source_steps < 0, table.counts > 1
    if (back & many).any() and (~back & many).any():
        return None
    steps, starts = np.abs(table.source_steps), table.source_starts.copy()
    for digit, dim in enumerate(table.source_dims):
        last = (table.counts[:, digit] - 1) * table.source_steps[:, digit]
        starts[:, dim] += np.minimum(last, 0)
    return replace(table, source_steps=steps, source_starts=starts), bool((back & many).any())


def _stacked(table: ShardTable, other: ShardTable) -> ShardTable:
    """Return the pieces of one table followed by those of another."""
    rows = ("sources", "counts", "source_steps", "target_steps", "source_starts", "target_starts")
    both = {n: np.concatenate([getattr(table, n), getattr(other, n)]) for n in rows}
    return replace(table, **both)  # type: ignore[arg-type]


def all_segmented(source: Layout, target: Layout) -> bool:
    """Return whether every block of an exchange consists of slabs of its sources.

    A slab includes all values of every digit except one.
    """
    exchange = ExchangeMap(source, target)
    came = firsts(exchange.source_dims)
    for axis, found in enumerate(exchange.direct):
        for block in range(found.target.blocks):
            table, shape = found.table(block), found.target.shape(block)
            made = None if table is None else _axis(axis, table, came[axis], shape)
            if made is None or not _are_slabs(*made):
                return False
    return True


def _are_slabs(per_dim: list[tuple[Edge, ...]], stretches: Stretches) -> bool:
    sizes = [edge.size for group in per_dim for edge in group]
    cut = np.count_nonzero((stretches.highs - stretches.lows < sizes).any(axis=0))
    return bool(cut < 2) and int(stretches.sizes.sum()) == math.prod(sizes)


def _axis(axis: int, table: ShardTable, came: int, shape: tuple[int, ...]) -> Axis | None:
    """Return the edges of each dimension of an axis, and its boxes; None if pieces are no boxes."""
    steps = np.stack([table.source_steps, table.target_steps])
    if (steps <= 0).any() or (steps != steps[:, :1]).any():
        return None
    per_dim, ranges = list[tuple[Edge, ...]](), list[Ints]()
    for dim, n in enumerate(shape):
        found = _grid(axis, table, came, dim, n)
        if found is None:
            return None
        per_dim.append(found[0])
        ranges += found[1]
    lows, highs = np.moveaxis(np.stack(ranges, axis=1), 2, 0)
    dims = tuple(came + d for d in range(table.source_starts.shape[1]))
    boxes = Stretches(
        tuple(range(len(ranges))), lows, highs, table.sources, dims, table.source_starts
    )
    return _joined(per_dim, boxes)


def _grid(
    axis: int, table: ShardTable, came: int, dim: int, n: int
) -> tuple[tuple[Edge, ...], list[Ints]] | None:
    """Return edges of a dimension, and the range of each piece; None if pieces are no boxes."""
    most = table.counts.max(axis=0)
    inside = [d for d, found in enumerate(table.target_dims) if found == dim]
    inside.sort(key=lambda d: (-table.target_steps[0, d], -most[d]))
    edges, ranges, left, outer = list[Edge](), list[Ints](), table.target_starts[:, dim], n
    for d in inside:
        step, counts = int(table.target_steps[0, d]), table.counts[:, d]
        if outer % step or outer == step:
            if most[d] > 1:
                return None
            continue  # the step of a digit with one value is irrelevant
        lows, left, outer = left // step, left % step, step
        size = n // step // math.prod(edge.size for edge in edges)
        if (lows + counts > size).any():
            return None
        source = came + table.source_dims[d]
        edges.append(Edge(size, axis, source, int(table.source_steps[0, d])))
        ranges.append(np.stack([lows, lows + counts], axis=-1))
    if outer > 1 or left.any():
        return None
    if not edges:
        edges, one = [Edge(n, axis, came, 1)], np.zeros((len(table), 1), np.int64)
        ranges = [np.concatenate([one, one + 1], axis=1)]
    return tuple(edges), ranges


def _joined(per_dim: list[tuple[Edge, ...]], stretches: Stretches) -> Axis:
    """Return an axis with edges joined that are contiguous in the sources, if boxes allow it."""
    kept, lows, highs = list[tuple[Edge, ...]](), list[Ints](), list[Ints]()
    columns = zip(stretches.lows.T, stretches.highs.T, strict=True)
    for group in per_dim:
        found: list[Edge] = []
        for edge in group:
            low, high = next(columns)
            last = found[-1] if found else None
            if last and last.dim == edge.dim and last.step == edge.size * edge.step:
                n = edge.size
                one, whole = highs[-1] - lows[-1] == 1, (low == 0) & (high == n)
                if (one | whole).all():
                    found[-1] = replace(edge, size=last.size * n)
                    lows[-1], highs[-1] = lows[-1] * n + low, (highs[-1] - 1) * n + high
                    continue
            found.append(edge)
            lows.append(low)
            highs.append(high)
        kept.append(tuple(found))
    edges = tuple(range(len(lows)))
    return kept, replace(
        stretches, edges=edges, lows=np.stack(lows, axis=1), highs=np.stack(highs, axis=1)
    )


#: Row sizes of shards that slow down copy engines, in bytes. While kernels run, rows of 8 KiB move
#: at 37 GB/s, 16 KiB at 42 and 32 KiB at 49 of 51. Stacked rows of 2 KiB move at 42 to 45 (H200).
ROW_NBYTES = range(2 << 10, 32 << 10)


def stacking(exchange: Exchange) -> StackedView | None:
    """Return the stacked layout for the source blocks of an exchange; None for the usual layout.

    The innermost dimension that the exchange cuts is stacked, if it is whole before and cut evenly
    and the rows of shards are narrow.
    """
    if exchange.mirror is not None:
        return None
    inner = np.dtype(exchange.source_dtype).itemsize
    dim = sum(len(axis.groups) for axis in exchange.source.axes)
    axes = exchange.source.axes, exchange.target.axes
    for came, goes in zip(*map(reversed, axes), strict=True):
        dim -= len(came.groups)
        if came == goes:
            inner *= came.largest
            continue
        width = _width(came, goes)
        if width is None or inner * width not in ROW_NBYTES:
            return None
        return StackedView(dim, width)
    return None


def _width(came: AxisLayout, goes: AxisLayout) -> int | None:
    """Return the width of the chunks into which a whole axis is cut evenly; None for others."""
    if len(came.groups) != 1 or len(goes.groups) != 1:
        return None
    (before,), (after,) = came.groups, goes.groups
    whole = len(before.digits) == len(before.chunks) == 1 and before.chunks[0] == before.size
    plain = not (before.offset or before.arrangement or after.offset or after.arrangement)
    even = set(after.chunks)
    if not whole or not plain or before.digits != after.digits or len(even) != 1:
        return None
    if before.digits[0].is_partial:
        return None  # half a spectrum: the digit is larger than all chunks together
    (width,) = even
    return width if 0 < width < before.size and before.size % width == 0 else None


def stacked_layout(layout: Layout, stacked: StackedView) -> Layout:
    """Return the layout of stacked blocks: the cut dimension is two."""
    axes, dim = list(layout.axes), stacked.dim
    for number, axis in enumerate(axes):
        if dim < len(axis.groups):
            (digit,) = axis.groups[dim].digits
            axes[number] = AxisLayout(_apart(digit, stacked.width))
            break
        dim -= len(axis.groups)
    return replace(layout, axes=tuple(axes))


def _apart(digit: Digit, width: int) -> tuple[Group, Group]:
    """Return a whole digit as two digits in groups of their own."""
    count = digit.size // width
    outer = Digit(digit.stage, digit.stride * width, count, count)
    inner = Digit(digit.stage, digit.stride, width, width)
    return Group((outer,), (count,)), Group((inner,), (width,))
