"""Views of the target blocks of an exchange, whose shards are in source blocks or packed.

A GPU takes a block as boxes of its source blocks, without a gather (`boxes_of`). Along each axis
the pieces of an exchange are boxes of the block's digits. If a block of the result ends within a
digit, they are boxes of a larger block around it that has whole digits::

    block of 7..18, digits of 4        . . . 7       around it: 4..19, of which the block has
                                       8 ...11       3..14
                                      12 ...15
                                      16 17 18 .

The boxes of a mirror image have negative steps.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dask_bigfft.arrays import Array, Block, Ints, Region
from dask_bigfft.exchange.shards import AxisPieces, ExchangeMap, Product, firsts
from dask_bigfft.kernels.copies import Segments, regular_strides, strided_view
from dask_bigfft.kernels.segmented import Edge, SegmentedView, Stretches, WindowView
from dask_bigfft.kernels.views import BlockView, is_on_gpu
from dask_bigfft.tiles.pieces import Pieces, Side, stacked
from dask_bigfft.transforms.layout import Layout


class SegmentTable:
    """Segments of a block: the shards of a product, in source blocks or packed.

    Parameters
    ----------
    product : Product
        Copies that the segments stand for.
    source_of : callable
        Source block of a block index, or its packed shard.
    used : dict, optional
        Number of elements of each packed shard that belong to earlier products.
    """

    def __init__(
        self, product: Product, source_of: Callable[[Block], Any], used: dict[Block, int] | None
    ) -> None:
        #: Number of the source of each segment.
        self.which = product.which
        self.size = product.size
        self.product = product
        #: Source blocks, with strides of whole elements.
        self.sources = []
        for block in product.blocks:
            source = source_of(block)
            is_regular = is_on_gpu(source) or regular_strides(source)
            self.sources.append(source if is_regular else np.array(source))
        #: Starts and strides of all copies in packed shards.
        self._packed = None if used is None else in_bytes(product, self.sources, used)

    def divides(self, dim: int) -> bool:
        """Return whether every shard is one run along a dimension of the block."""
        return self.product.along(dim) >= 0

    def segments(self, strides: tuple[int, ...], dim: int | None) -> Segments:
        """Return the copies into a block with these strides, to be cut along `dim` if given."""
        if self._packed is None:
            source_strides = tuple(source.strides for source in self.sources)
            return self.product.gathered(source_strides, strides, dim)
        return self.product.rows(self._packed, strides, dim)


def in_bytes(product: Product, shards: Sequence[Any], used: dict[Block, int]) -> tuple[Ints, Ints]:
    """Return starts and strides of all copies in packed shards, in bytes."""
    starts, steps = product.in_packed(used)
    sizes = np.array([shard.itemsize for shard in shards], np.int64)[product.which]
    return starts * sizes, steps * sizes[:, None]


def view_of(
    exchange: ExchangeMap,
    block: Block,
    dtype: np.dtype[Any],
    source_of: Callable[[Block], Any],
    packed: bool = False,
) -> BlockView:
    """Return the view of a target block.

    Parameters
    ----------
    exchange : ExchangeMap
        Shards of the exchange.
    block : tuple of int
        Index of the target block.
    dtype
        Dtype of the target block.
    source_of : callable
        Returns the source block of an index, or its packed shard, which is only read.
    packed : bool
        Whether `source_of` returns packed shards, in which the mirror image is already conjugated.
    """
    used: dict[Block, int] | None = {} if packed else None
    shape = exchange.target.shape(block)
    products = exchange.products(block, packed)
    tables = [SegmentTable(product, source_of, used) for product in products]

    def boxes(partial: bool) -> WindowView | None:
        """Return the block as boxes of its sources."""
        sources: dict[Block, Array] = {}
        for table in tables:
            sources.update(zip(table.product.blocks, table.sources, strict=True))
        if packed or any(source.dtype != dtype for source in sources.values()):
            return None
        return boxes_of(exchange, products, sources, shape, block if partial else None)

    return BlockView(shape, dtype, tables=tables, boxes=boxes)


def stored_regions(
    exchange: ExchangeMap, block: Block, memory: Array | Mapping[Block, Array]
) -> Iterator[tuple[Region, Array]]:
    """Yield the regions of a stored array that make a target block, each with its place in memory.

    Parameters
    ----------
    exchange : ExchangeMap
        Shards of the exchange. Each axis of a source block is one dimension, without a mirror.
    block : tuple of int
        Index of the target block.
    memory : ndarray, or mapping of block to ndarray
        The target block, or the packed shard of each source block.

    Yields
    ------
    region, place
        Slices of the stored array, and a view of that shape in `memory`.
    """
    used: dict[Block, int] = {}
    for product in exchange.products(block, packed=True):
        arrays: Iterable[Array]
        if isinstance(memory, np.ndarray):
            arrays = itertools.repeat(memory)
            starts, steps = product.in_target(memory.strides)
        else:
            shards = [memory[index] for index in product.blocks]
            arrays = (shards[i] for i in product.which.tolist())
            starts, steps = in_bytes(product, shards, used)
        for copy, (values, start) in enumerate(zip(arrays, starts.tolist(), strict=False)):
            runs, widths, strides = _stored_runs(product, copy, steps[copy].tolist(), values)
            for axis_runs in itertools.product(*runs):
                lows = [low for low, _ in axis_runs]
                region = tuple(slice(low, low + n) for low, n in zip(lows, widths, strict=True))
                place = start + sum(offset for _, offset in axis_runs)
                yield region, strided_view(values, place, widths, strides)


def _stored_runs(
    product: Product, copy: int, steps: list[int], values: Array
) -> tuple[list[list[tuple[int, int]]], list[int], list[int]]:
    """Return the runs of a copy along each axis of the stored array, see `_runs`.

    `steps` are the strides of all digits in `values`, which are the memory of the copy.
    """
    source = product.blocks[product.which[copy]]
    runs = []
    widths = []
    strides = []
    first_digit = 0
    for axis, pieces in enumerate(product.axes):
        digits = pieces.counts.shape[1]
        origin = product.exchange.source.axes[axis].groups[0].bounds[source[axis]]
        own_steps = steps[first_digit : first_digit + digits]
        row = int(product.chosen[axis, copy])
        own_runs, width, stride = _runs(pieces, row, origin, own_steps, values.itemsize)
        runs.append(own_runs)
        widths.append(width)
        strides.append(stride)
        first_digit += digits
    return runs, widths, strides


def _runs(
    pieces: Pieces, row: int, origin: int, steps: list[int], itemsize: int
) -> tuple[list[tuple[int, int]], int, int]:
    """Return the contiguous runs of a piece along an axis of the stored array.

    The result is a list of the first value of each run and its offset in memory, in bytes, the
    number of values in a run, and their stride in memory. `steps` are the digits' strides there.
    """
    source = pieces.sides[0]
    columns = (pieces.counts[row].tolist(), source.steps[row].tolist(), steps)
    digits = [digit for digit in zip(*columns, strict=True) if digit[0] != 1]
    width = 1
    stride = itemsize
    while digits and digits[-1][1] == width and (width == 1 or digits[-1][2] == width * stride):
        count, _, step = digits.pop()
        if width == 1:
            stride = step
        width *= count
    runs = [(origin + int(source.starts[row, 0]), 0)]
    for count, step, memory_step in digits:
        runs = [
            (low + i * step, offset + i * memory_step) for low, offset in runs for i in range(count)
        ]
    return runs, width, stride


# --- boxes ----------------------------------------------------------------------------------

#: Maximum number of shards of a composite view; blocks with more are gathered.
MOST_SHARDS = 4096

#: Maximum ratio of the size with whole digits (see above) to the size of the block. Only values of
#: the block cross the bus.
MOST_AROUND = 2

Axis = tuple[list[tuple[Edge, ...]], Stretches]


def boxes_of(
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
    edges: list[Edge] = []
    groups: list[int] = []
    bounds: list[tuple[int, int]] = []
    axes: list[Stretches] = []
    image: list[Stretches] = []
    flipped: set[int] = set()
    source_dims = firsts(exchange.source_dims)
    target_dims = firsts(exchange.target_dims)
    for axis, (pieces, *mirrored) in enumerate(zip(*(p.axes for p in products), strict=True)):
        turned = None if not mirrored else _unflipped(mirrored[0])
        if mirrored and turned is None:
            return None
        both = pieces if turned is None else stacked([pieces, turned[0]])
        first_dim = target_dims[axis]
        sizes = shape[first_dim : first_dim + exchange.target_dims[axis]]
        ends = tuple((0, n) for n in sizes)
        found = _axis(axis, both, source_dims[axis], sizes)
        if found is None and block is not None:
            along = exchange.direct[axis]
            found, ends = _around(axis, both, source_dims[axis], along, block[axis])
        if found is None:
            return None
        per_dim, stretches = found
        bounds += ends
        own = tuple(edge + len(edges) for edge in stretches.edges)
        stretches = replace(stretches, edges=own)
        axes.append(stretches.rows(slice(0, len(pieces))))
        if turned is not None:
            image.append(stretches.rows(slice(len(pieces), None)))
            if turned[1]:
                flipped.update(own)
        edges += [edge for group in per_dim for edge in group]
        groups += [len(group) for group in per_dim]
    view = SegmentedView(
        tuple(edges), tuple(groups), tuple(axes), sources, tuple(image), frozenset(flipped)
    )
    return WindowView(view, tuple(bounds)) if view.count <= MOST_SHARDS else None


def _around(
    axis: int, pieces: Pieces, source_dim: int, along: AxisPieces, block: int
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
    source, target = pieces.sides
    target = replace(target, starts=target.starts + (low - begin))
    around = replace(pieces, sides=(source, target))
    return _axis(axis, around, source_dim, (end - begin,)), ((low - begin, high - begin),)


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


def _unflipped(pieces: Pieces) -> tuple[Pieces, bool] | None:
    """Return pieces with positive steps, and whether they were negative; None if only some were."""
    source, target = pieces.sides
    has_several = pieces.counts > 1
    is_back = (source.steps < 0) & has_several
    if is_back.any() and (has_several & ~is_back).any():
        return None
    starts = source.starts.copy()
    for digit, dim in enumerate(source.dims):
        last = (pieces.counts[:, digit] - 1) * source.steps[:, digit]
        starts[:, dim] += np.minimum(last, 0)
    ascending = Side(source.blocks, starts, np.abs(source.steps), source.dims)
    return replace(pieces, sides=(ascending, target)), bool(is_back.any())


def all_segmented(source: Layout, target: Layout) -> bool:
    """Return whether every block of an exchange consists of slabs of its sources.

    A slab includes all values of every digit except one.
    """
    exchange = ExchangeMap(source, target)
    source_dims = firsts(exchange.source_dims)
    for axis, along in enumerate(exchange.direct):
        for block in range(along.target.blocks):
            pieces = along.into(block)
            if not len(pieces):
                return False
            boxes = _axis(axis, pieces, source_dims[axis], along.target.shape(block))
            if boxes is None or not _are_slabs(*boxes):
                return False
    return True


def _are_slabs(per_dim: list[tuple[Edge, ...]], stretches: Stretches) -> bool:
    sizes = [edge.size for group in per_dim for edge in group]
    cut = np.count_nonzero((stretches.highs - stretches.lows < sizes).any(axis=0))
    return bool(cut < 2) and int(stretches.sizes.sum()) == math.prod(sizes)


def _axis(axis: int, pieces: Pieces, source_dim: int, shape: tuple[int, ...]) -> Axis | None:
    """Return the edges of each dimension of an axis, and its boxes; None if pieces are no boxes."""
    source, target = pieces.sides
    steps = np.stack([source.steps, target.steps])
    if (steps <= 0).any() or (steps != steps[:, :1]).any():
        return None
    per_dim: list[tuple[Edge, ...]] = []
    ranges: list[Ints] = []
    for dim, n in enumerate(shape):
        grid = _grid(axis, pieces, source_dim, dim, n)
        if grid is None:
            return None
        edges, own_ranges = grid
        per_dim.append(edges)
        ranges += own_ranges
    lows, highs = np.moveaxis(np.stack(ranges, axis=1), 2, 0)
    dims = tuple(source_dim + dim for dim in range(source.starts.shape[1]))
    boxes = Stretches(tuple(range(len(ranges))), lows, highs, source.blocks, dims, source.starts)
    return _joined(per_dim, boxes)


def _grid(
    axis: int, pieces: Pieces, source_dim: int, dim: int, n: int
) -> tuple[tuple[Edge, ...], list[Ints]] | None:
    """Return edges of a dimension, and the range of each piece; None if pieces are no boxes."""
    source, target = pieces.sides
    most = pieces.counts.max(axis=0)
    digits = [digit for digit, own_dim in enumerate(target.dims) if own_dim == dim]
    digits.sort(key=lambda digit: (-target.steps[0, digit], -most[digit]))
    edges: list[Edge] = []
    ranges: list[Ints] = []
    rest = target.starts[:, dim]
    outer = n
    for digit in digits:
        step = int(target.steps[0, digit])
        counts = pieces.counts[:, digit]
        if outer % step or outer == step:
            if most[digit] > 1:
                return None
            continue  # the step of a digit with one value is irrelevant
        lows = rest // step
        rest = rest % step
        outer = step
        size = n // step // math.prod(edge.size for edge in edges)
        if (lows + counts > size).any():
            return None
        own_dim = source_dim + source.dims[digit]
        edges.append(Edge(size, axis, own_dim, int(source.steps[0, digit])))
        ranges.append(np.stack([lows, lows + counts], axis=-1))
    if outer > 1 or rest.any():
        return None
    if not edges:
        edges = [Edge(n, axis, source_dim, 1)]
        ranges = [np.tile(np.array([[0, 1]], np.int64), (len(pieces), 1))]
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
