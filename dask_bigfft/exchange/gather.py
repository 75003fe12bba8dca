"""Views of the target blocks of an exchange, whose shards are in source blocks or packed.

A GPU reads a block as boxes of digits in its source blocks, without a gather (`segmented_view`). A
view of a block of the result may end within a digit.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dask_bigfft.arrays import Array, Block, Ints, Region
from dask_bigfft.exchange.shards import ExchangeMap, Product
from dask_bigfft.kernels.copies import Segments, regular_strides, strided_view
from dask_bigfft.kernels.segmented import SegmentedView
from dask_bigfft.kernels.views import BlockView, is_on_gpu
from dask_bigfft.tiles.digits import AxisDigits, BlockDigits, axis_in_digits
from dask_bigfft.tiles.pieces import Pieces
from dask_bigfft.transforms.layout import Layout


class SegmentTable:
    """Segments of a block: the shards of a product, in source blocks or packed.

    It joins the pieces of a product, which know no memory, and the arrays that a task has got. The
    segments are worked out when it is known where they are copied to.

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

    def boxes(partial: bool) -> SegmentedView | None:
        """Return the block as a view of boxes of its sources.

        None if it is packed, needs a cast, or is not made of digits. With `partial` it may end
        within a digit.
        """
        sources: dict[Block, Array] = {}
        for table in tables:
            sources.update(zip(table.product.blocks, table.sources, strict=True))
        if packed or any(source.dtype != dtype for source in sources.values()):
            return None
        return segmented_view(
            products,
            exchange.target,
            sources,
            block,
            partial,
        )

    return BlockView(
        shape,
        dtype,
        tables=tables,
        boxes=boxes,
    )


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
        Slices of the stored array, and a view of that shape in `memory`. Padding has no region.
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
            runs, widths, strides = _stored_runs(
                product,
                copy,
                steps[copy].tolist(),
                values,
            )
            for axis_runs in itertools.product(*runs):
                lows = [low for low, _ in axis_runs]
                region = tuple(slice(low, low + n) for low, n in zip(lows, widths, strict=True))
                place = start + sum(offset for _, offset in axis_runs)
                yield (
                    region,
                    strided_view(
                        values,
                        place,
                        widths,
                        strides,
                    ),
                )


def _stored_runs(
    product: Product,
    copy: int,
    steps: list[int],
    values: Array,
) -> tuple[list[list[tuple[int, int]]], list[int], list[int]]:
    """Return the runs of a copy along each axis of the stored array, see `_runs_of_piece`.

    `steps` are the strides of all digits in `values`, which are the memory of the copy.
    """
    source = product.blocks[product.which[copy]]
    runs = []
    widths = []
    strides = []
    first_digit = 0
    for axis, pieces in enumerate(product.axes):
        digit_count = pieces.counts.shape[1]
        origin = product.exchange.source.axes[axis].groups[0].bounds[source[axis]]
        own_steps = steps[first_digit : first_digit + digit_count]
        row = int(product.chosen[axis, copy])
        own_runs, width, stride = _runs_of_piece(
            pieces,
            row,
            origin,
            own_steps,
            values.itemsize,
        )
        runs.append(own_runs)
        widths.append(width)
        strides.append(stride)
        first_digit += digit_count
    return runs, widths, strides


def _runs_of_piece(
    pieces: Pieces,
    row: int,
    origin: int,
    memory_steps: list[int],
    itemsize: int,
) -> tuple[list[tuple[int, int]], int, int]:
    """Return the runs of a piece: its contiguous intervals along an axis of the stored array.

    Digits are outermost first. The innermost ones are joined to a run as long as each continues the
    ones inside of it in the stored array, and their values have one common stride in memory.

    Parameters
    ----------
    pieces : Pieces
        Table of pieces. Its side 0 is a source block, a part of the stored array.
    row : int
        Row of the piece in the table.
    origin : int
        Index in the stored array at which this block begins.
    memory_steps : list of int
        Stride of each digit in the memory that is filled, in bytes. The strides of side 0 are those
        in the stored array, in values.
    itemsize : int
        Bytes of a value.

    Returns
    -------
    list of (int, int)
        First value of each run, and its offset in memory in bytes.
    int, int
        Number of values in a run, and their stride in memory in bytes.
    """
    source = pieces.sides[0]
    source_steps = source.steps[row].tolist()
    digits = zip(
        pieces.counts[row].tolist(),
        source_steps,
        memory_steps,
        strict=True,
    )
    outer_digits = [digit for digit in digits if digit[0] != 1]
    width = 1
    stride = itemsize
    while outer_digits:
        count, step, memory_step = outer_digits[-1]
        continues = step == width and (width == 1 or memory_step == width * stride)
        if not continues:
            break
        if width == 1:
            stride = memory_step
        width *= count
        outer_digits.pop()
    runs = [(origin + int(source.starts[row, 0]), 0)]
    for count, step, memory_step in outer_digits:
        runs = [
            (low + i * step, offset + i * memory_step) for low, offset in runs for i in range(count)
        ]
    return runs, width, stride


# --- blocks in digits -----------------------------------------------------------------------

#: Maximum number of shards of a segmented view; blocks with more are gathered.
MOST_SHARDS = 4096


def segmented_view(
    products: Sequence[Product],
    target: Layout,
    sources: Mapping[Block, Array],
    block: Block,
    partial: bool,
) -> SegmentedView | None:
    """Return a target block as boxes of digits in its sources, or None.

    It is None if the block is not made of digits, has no elements or more than `MOST_SHARDS`
    shards, or begins with values that have to be conjugated.

    Parameters
    ----------
    products : sequence of Product
        Copies that fill the block: the shards, and those of the conjugated mirror image.
    target : Layout
        Layout after the exchange.
    sources : mapping of block index to ndarray
        Source blocks, of the block's dtype.
    block : tuple of int
        Index of the target block.
    partial : bool
        Whether the block may end within a digit.
    """
    if not _are_few(products) or not math.prod(target.shape(block)):
        return None
    axes: list[AxisDigits] = []
    for axis, layout in enumerate(target.axes):
        tables = [product.axes[axis] for product in products]
        axis_digits = _ascending_digits(tables, layout.shape(block[axis]))
        if axis_digits is None:
            return None
        axes.append(axis_digits)
    radices: list[Block] = []
    bounds: list[tuple[int, int]] = []
    digits: list[Block] = []
    numbers = itertools.count()
    for axis_digits in axes:
        radices += axis_digits.form.radices
        bounds += axis_digits.form.bounds
        digits.append(tuple(itertools.islice(numbers, len(axis_digits.form.sizes))))
    images = []
    for number, product in enumerate(products):
        boxes = tuple(axis_digits.boxes[number] for axis_digits in axes)
        images.append((boxes, product.conjugate))
    view = SegmentedView(
        form=BlockDigits(tuple(radices), tuple(bounds)),
        images=tuple(images),
        digits=tuple(digits),
        sources=sources,
    )
    return view if partial or view.form.is_whole else None


def _are_few(products: Sequence[Product]) -> bool:
    """Return whether there are copies, not too many, the first ones not conjugated."""
    if not products or products[0].conjugate:
        return False
    return sum(math.prod(map(len, product.axes)) for product in products) <= MOST_SHARDS


def _ascending_digits(tables: Sequence[Pieces], shape: Block) -> AxisDigits | None:
    """Return an axis of a block in its digits; None if pieces that are no image are reversed."""
    if not len(tables[0]) or (tables[0].sides[0].steps <= 0).any():
        return None
    return axis_in_digits(tables, shape)


def all_segmented(source: Layout, target: Layout) -> bool:
    """Return whether every block of an exchange consists of slabs of its sources.

    A slab includes all values of every digit except one.
    """
    for along in ExchangeMap(source, target).direct:
        for block in range(along.target.blocks):
            axis_digits = _ascending_digits([along.into(block)], along.target.shape(block))
            if axis_digits is None or not axis_digits.are_slabs:
                return False
    return True
