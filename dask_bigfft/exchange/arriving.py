"""A block that is put together from packed shards as they arrive, a few at a time.

Shards that have been put in their places go, so that a task that reads a block from files has it
in memory once, and not beside all of its shards. Nothing is left to be gathered: the round that
follows works on the block where it lies.

Imports `kernels` and this room.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.events import measured
from dask_bigfft.exchange.product import Block, Product, products_of
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.kernels.copies import CopyTable
from dask_bigfft.kernels.views import prefault
from dask_bigfft.memory import lend

Array = npt.NDArray[Any]


class Arriving:
    """A block whose shards arrive a few at a time, in any order.

    Parameters
    ----------
    exchange : ExchangeMap
        The shards.
    block : tuple of int
        Which target block.
    shape, dtype
        Of the target block.
    shard_dtype
        Of the packed shards, in which mirrored copies are conjugated already.

    Attributes
    ----------
    values : ndarray
        The block; what no shard covers is 0.
    """

    def __init__(
        self,
        exchange: ExchangeMap,
        block: Block,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        shard_dtype: np.dtype[Any],
    ) -> None:
        self.values = fresh_block(exchange, block, shape, dtype)
        used: dict[Block, int] = {}
        self._copies = [
            _Copies(exchange, product, used, self.values.strides, shard_dtype.itemsize)
            for product in products_of(exchange, block, packed=True)
        ]

    def take(self, shards: Mapping[Block, Array]) -> None:
        """Copy shards to their places; several threads may do so at a time, each with others."""
        table = CopyTable(self.values)
        for copies in self._copies:
            copies.enter(table, shards)
        with measured("gather", sum(shard.nbytes for shard in shards.values())):
            table.run()


class _Copies:
    """The copies of a product from packed shards, in the order of the blocks that these are of.

    Parameters are those of `Arriving` and `Product.in_packed`; strides and `itemsize` in bytes.
    """

    def __init__(
        self,
        exchange: ExchangeMap,
        product: Product,
        used: dict[Block, int],
        strides: tuple[int, ...],
        itemsize: int,
    ) -> None:
        starts, steps = product.in_packed(used)
        self._rows = product.rows(exchange, (starts * itemsize, steps * itemsize), strides, None)
        self._order = np.argsort(product.which, kind="stable")
        numbers = np.arange(len(product.blocks) + 1)
        self._ends = np.searchsorted(product.which[self._order], numbers).tolist()
        self._numbers = dict(zip(product.blocks, numbers.tolist(), strict=False))

    def enter(self, table: CopyTable, shards: Mapping[Block, Array]) -> None:
        """Enter what is to be copied from some shards into a table."""
        found = {
            self._numbers[block]: shard for block, shard in shards.items() if block in self._numbers
        }
        parts = [self._order[self._ends[i] : self._ends[i + 1]] for i in found]
        if parts:
            which = np.repeat(np.arange(len(parts)), list(map(len, parts)))
            table.extend(list(found.values()), which, self._rows.taken(np.concatenate(parts)))


def fresh_block(
    exchange: ExchangeMap, block: Block, shape: tuple[int, ...], dtype: np.dtype[Any]
) -> Array:
    """Return memory for a target block, 0 where there are places that no source covers."""
    values = prefault(lend(shape, dtype))
    if sum(product.size for product in products_of(exchange, block, packed=True)) < values.size:
        values.fill(0)
    return values
