"""Gathering a block: its shards copied into memory of its own, from source blocks or packed.

Imports `kernels`, `memory` and this room.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.events import measured
from dask_bigfft.exchange.product import Block, Product, firsts
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.kernels.copy import CopyTable, compiles
from dask_bigfft.kernels.cpu import Whole, parts
from dask_bigfft.memory import lend

Array = npt.NDArray[Any]


class Gathering:
    """A block that is being gathered: whole, or tile by tile while a round works on it.

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
    """

    def __init__(
        self,
        exchange: ExchangeMap,
        block: Block,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        source_of: Callable[[Block], Array],
        packed: bool = False,
    ) -> None:
        self.exchange, self.shape, self.dtype, self.packed = exchange, shape, dtype, packed
        self.products = [
            Product(tables, conj and not packed) for tables, conj in exchange.tables(block)
        ]
        self.sources = [
            [np.asarray(source_of(index)) for index in product.blocks] for product in self.products
        ]
        #: Whether there are places that no source covers (zero padding).
        self.padded = sum(product.size for product in self.products) < math.prod(shape)

    def place(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Memory for the block after the round."""
        return lend(shape, dtype)

    def whole(self, out: Array | None = None) -> Array:
        """The block, in `out` or in memory of its own."""
        if out is None:
            out = lend(self.shape, self.dtype)
        if self.padded:
            out.fill(0)
        table = CopyTable(out)
        with measured("gather", out.nbytes):
            self._fill(table, None)
            table.run()
        return out

    def tiles(self, dim: int, width: int, out: Array) -> Iterator[tuple[slice, Array]]:
        """Tiles, gathered one after the other; where `out` has their shape, in it."""
        if not self._tiles_along(dim):
            yield from self._whole_tiles(dim, width, out)
            return
        fits = out.shape == self.shape and out.dtype == self.dtype
        inside = fits and math.prod(self.shape[:dim]) == 1
        shape = (*self.shape[:dim], min(width, self.shape[dim]), *self.shape[dim + 1 :])
        target = out if inside else lend(shape, self.dtype)
        table = CopyTable(target)
        self._fill(table, dim)
        for part in parts(self.shape[dim], width):
            if inside:
                tile = out[(slice(None),) * dim + (part,)]
            elif part.stop - part.start == shape[dim]:
                tile = target
            else:  # the last tile may be narrower, which moves its rows together
                yield part, np.ascontiguousarray(self._narrow(table, target, dim, part))
                return
            with measured("gather", tile.nbytes):
                if self.padded:
                    tile.fill(0)
                table.run(part.start, part.stop, 0 if inside else part.start)
            yield part, tile

    def _narrow(self, table: CopyTable, target: Array, dim: int, part: slice) -> Array:
        with measured("gather", target.nbytes):
            if self.padded:
                target.fill(0)
            table.run(part.start, part.stop, part.start)
        return target[(slice(None),) * dim + (slice(part.stop - part.start),)]

    def _whole_tiles(self, dim: int, width: int, out: Array) -> Iterator[tuple[slice, Array]]:
        fits = out.shape == self.shape and out.dtype == self.dtype
        whole = self.whole(out if fits else None)
        yield from Whole(whole).tiles(dim, width, out)

    def _axis_dim(self, dim: int) -> tuple[int, int]:
        """Axis of a target dimension, and the dimension within the axis."""
        begins = firsts(self.exchange.target_dims)
        axis = max(a for a, first in enumerate(begins) if first <= dim)
        return axis, dim - begins[axis]

    def _tiles_along(self, dim: int) -> bool:
        """Whether every piece is one run along a dimension, so that it can be cut there."""
        axis, inner = self._axis_dim(dim)
        return all(product.along(axis, inner) >= 0 for product in self.products) and all(
            compiles(source, self.dtype) for found in self.sources for source in found
        )

    def _fill(self, table: CopyTable, dim: int | None) -> None:
        """Enter all copies into a table, to be cut along a dimension if one is named."""
        cut = None if dim is None else self._axis_dim(dim)
        used: dict[Block, int] = {}
        for product, sources in zip(self.products, self.sources, strict=True):
            if self.packed:
                sizes = np.array([source.itemsize for source in sources], np.int64)[product.which]
                starts, steps = product.in_packed(used)
                places = starts * sizes, steps * sizes[:, None]
            else:
                strides = np.array([source.strides for source in sources], np.int64)
                places = product.in_sources(self.exchange, strides[product.which])
            rows = product.rows(self.exchange, places, table.target.strides, cut)
            table.extend(sources, product.which, rows)


def unpack(
    exchange: ExchangeMap,
    block: Block,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    shards: Mapping[Block, Array],
) -> Array:
    """Return a block put together from the packed shards of its sources."""
    return Gathering(exchange, block, shape, dtype, shards.__getitem__, packed=True).whole()
