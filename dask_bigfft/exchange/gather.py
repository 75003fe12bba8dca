"""Views of the blocks of an exchange: their shards in source blocks, or packed.

Imports `gpu`, `kernels` and this room.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import refuse
from dask_bigfft.exchange.parts import windowed
from dask_bigfft.exchange.product import Block, Product, products_of
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.exchange.tables import Choice, table_for
from dask_bigfft.gpu.on_gpu import as_block, is_on_gpu
from dask_bigfft.kernels.composite import Windowed
from dask_bigfft.kernels.copies import Segments, regular_strides
from dask_bigfft.kernels.views import BlockView

Array = npt.NDArray[Any]


class _Shards:
    """The shards of a product: a `SegmentTable`."""

    def __init__(
        self,
        exchange: ExchangeMap,
        product: Product,
        source_of: Callable[[Block], Any],
        used: dict[Block, int] | None,
    ) -> None:
        self.product, self.which, self.size = product, product.which, product.size
        self.sources = [_readable(source_of(index)) for index in product.blocks]
        self._exchange, self._used = exchange, used
        if used is not None:
            self._packed = product.in_packed(used)

    def divides(self, dim: int) -> bool:
        """Return whether every shard is one run along a dimension of the block."""
        return self.product.along(*self._exchange.axis_dim(dim)) >= 0

    def segments(self, strides: tuple[int, ...], dim: int | None) -> Segments:
        """Return the copies into a block with these strides, to be cut along `dim` if given."""
        cut = None if dim is None else self._exchange.axis_dim(dim)
        if self._used is None:
            found = tuple(source.strides for source in self.sources)
            return self.product.gathered(self._exchange, found, strides, cut)
        sizes = np.array([source.itemsize for source in self.sources], np.int64)[self.which]
        starts, steps = self._packed
        places = starts * sizes, steps * sizes[:, None]
        return self.product.rows(self._exchange, places, strides, cut)


def _readable(values: Any) -> Any:
    """Return a block as an array whose strides are whole elements."""
    block = as_block(values)
    return block if is_on_gpu(block) or regular_strides(block) else np.array(block)


def view_of(
    exchange: ExchangeMap,
    block: Block,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    source_of: Callable[[Block], Any],
    packed: bool = False,
    home: int | None = None,
    choice: Choice | None = None,
) -> BlockView:
    """Return the view of a target block.

    Parameters
    ----------
    exchange : ExchangeMap
        The shards.
    block : tuple of int
        Which target block.
    shape, dtype
        Of the target block.
    source_of : callable
        Source block of a block index, or its packed shard. They are only read.
    packed : bool
        Whether `source_of` gives packed shards, in which mirrored copies are conjugated already.
    home : int, optional
        GPU on which the block is gathered if not that of the first source.
    choice : callable, optional
        Transport from other GPUs.
    """
    used: dict[Block, int] | None = {} if packed else None
    tables = [
        _Shards(exchange, product, source_of, used)
        for product in products_of(exchange, block, packed)
    ]
    sources = [source for table in tables for source in table.sources]
    on_gpu = [is_on_gpu(source) for source in sources]
    if any(on_gpu) and not all(on_gpu):
        kinds = "blocks on a GPU and blocks in host memory"
        refuse("a", kinds, "an array whose blocks are all of one kind")

    def boxes(partial: bool) -> Windowed | None:
        if packed or any(source.dtype != dtype for source in sources):
            return None
        products = [(table.product.tables, table.product.conjugate) for table in tables]
        by_block: dict[Block, Any] = {}
        for table in tables:
            by_block.update(zip(table.product.blocks, table.sources, strict=True))
        return windowed(exchange, products, by_block, shape, block if partial else None)

    if home is None and not any(on_gpu):
        return BlockView(shape, dtype, tables=tables, boxes=boxes)

    def new_table(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        padded = sum(table.size for table in tables) < math.prod(shape)
        return table_for(sources[0] if sources else None, shape, dtype, home, choice, padded)

    found = BlockView(shape, dtype, tables=tables, boxes=boxes, new_table=new_table)
    if not any(on_gpu):  # zeros on the GPU `home`, or the host memory of a simulated one
        array = found.gather()
        found = BlockView.of(array, owned=True)
        found.on_gpu = is_on_gpu(array)
    return found
