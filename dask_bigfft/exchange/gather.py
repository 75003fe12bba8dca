"""Gathering a block: its shards copied into memory of its own, from source blocks or packed.

Imports `devices`, `kernels`, `memory` and this room.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.devices.on_card import as_block, is_on_card
from dask_bigfft.errors import refuse
from dask_bigfft.events import measured
from dask_bigfft.exchange.parts import windowed
from dask_bigfft.exchange.product import Block, firsts, products_of
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.exchange.tables import Choice, GpuTable, Table, table_for
from dask_bigfft.kernels.composite import Composite, Windowed
from dask_bigfft.kernels.copy import CopyTable, all_compile
from dask_bigfft.kernels.incoming import Whole, parts
from dask_bigfft.kernels.lying import destination
from dask_bigfft.memory import lend

Array = npt.NDArray[Any]

#: Blocks from which on several threads gather faster than one, where that is asked for.
SHARED_NBYTES = 1 << 22


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
        self.block = block
        self.products = products_of(exchange, block, packed)
        self.sources = [
            [as_block(source_of(index)) for index in product.blocks] for product in self.products
        ]
        #: The block as it lies in memory, only to be read; whoever knows it sets it.
        self.as_is: Array | None = None
        #: Where the block is to lie after the round, if that matters.
        self.into: Array | None = None
        #: GPU on which the block is gathered if not that of the first source, and the transport.
        self.home: int | None = None
        self.choice: Choice | None = None
        self.weighs = False
        self.energy: float | None = None
        found = [source for sources in self.sources for source in sources]
        #: Whether the sources lie on GPUs, where the block is gathered.
        self.on_card = any(map(is_on_card, found))
        if self.on_card and not all(map(is_on_card, found)):
            kinds = "blocks on a GPU and blocks in host memory"
            refuse("a", kinds, "an array whose blocks are all of one kind")
        self._like = found[0] if found else None
        #: Whether there are places that no source covers (zero padding).
        self.padded = sum(product.size for product in self.products) < math.prod(shape)

    def composite(self) -> Composite | None:
        """The block as shards of its sources, where it is made of such that are only copied."""
        found = self._windowed(None)
        return None if found is None else found.around

    def windowed(self) -> Windowed | None:
        """The block in digits that it may end within, as shards of its sources."""
        return self._windowed(self.block)

    def _windowed(self, block: Block | None) -> Windowed | None:
        if self.packed or any(s.dtype != self.dtype for found in self.sources for s in found):
            return None
        products = [(product.tables, product.conjugate) for product in self.products]
        by_block: dict[Block, Array] = {}
        for product, sources in zip(self.products, self.sources, strict=True):
            by_block.update(zip(product.blocks, sources, strict=True))
        return windowed(self.exchange, products, by_block, self.shape, block)

    def place(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Memory for the block after the round."""
        return destination(self.into, shape, dtype)

    def whole(self, out: Array | None = None, *, threads: int = 1) -> Array:
        """The block, in `out` or in memory of its own; gathered by some threads if it is large."""
        table = CopyTable(out) if out is not None else table_for(
            self._like, self.shape, self.dtype, self.home, self.choice, self.padded
        )
        out, on_gpu = table.target, isinstance(table, GpuTable)
        dim = None if on_gpu else self._shared_dim(threads, out.nbytes)
        with measured("gather", out.nbytes):
            if self.padded and not on_gpu:
                out.fill(0)
            self._fill(table, dim)
            self.energy = None
            if dim is None:
                self.energy = table.run(weigh=True) if self.weighs else table.run()
            else:
                width = -(-self.shape[dim] // threads)
                table.run(0, 0)  # puts the table together
                with ThreadPoolExecutor(threads) as pool:
                    cut = parts(self.shape[dim], width)
                    list(pool.map(lambda part: table.run(part.start, part.stop), cut))
        return out

    def _shared_dim(self, threads: int, nbytes: int) -> int | None:
        """Outermost dimension along which threads can share the copying, where it is worth it."""
        if threads == 1 or nbytes < SHARED_NBYTES:
            return None
        wide = (dim for dim, n in enumerate(self.shape) if n >= threads)
        return next((dim for dim in wide if self._tiles_along(dim)), None)

    def divides(self, dim: int) -> bool:
        """Whether parts along a dimension can be had in any order, each for itself."""
        return not self.on_card and self._tiles_along(dim)

    def filling(self, dim: int, out: Array) -> Callable[[slice], None]:
        """Return what gathers a part along a dimension into its place in `out`, a whole block.

        It can be called by several threads.
        """
        table = CopyTable(out)
        self._fill(table, dim)
        table.run(0, 0)  # puts the table together

        def fill(part: slice) -> None:
            place = out[(slice(None),) * dim + (part,)]
            with measured("gather", place.nbytes):
                if self.padded:
                    place.fill(0)
                table.run(part.start, part.stop)

        return fill

    def tiles(
        self, dim: int, width: int, out: Array, cuts: Iterable[slice] | None = None
    ) -> Iterator[tuple[slice, Array]]:
        """Tiles, gathered one after the other; where `out` has their shape, in it.

        `cuts` are the slices that are wanted, none wider than `width`, if not all.
        """
        if not self._tiles_along(dim):
            yield from self._whole_tiles(dim, width, out)
            return
        fits = out.shape == self.shape and out.dtype == self.dtype
        inside = fits and out.flags.c_contiguous and math.prod(self.shape[:dim]) == 1
        shape = (*self.shape[:dim], min(width, self.shape[dim]), *self.shape[dim + 1 :])
        target = out if inside else lend(shape, self.dtype)
        table = CopyTable(target)
        self._fill(table, dim)
        for part in parts(self.shape[dim], width) if cuts is None else cuts:
            if inside:
                tile = out[(slice(None),) * dim + (part,)]
            elif part.stop - part.start == shape[dim]:
                tile = target
            else:  # the last tile may be narrower, which moves its rows together
                yield part, np.ascontiguousarray(self._narrow(table, target, dim, part))
                continue
            with measured("gather", tile.nbytes):
                if self.padded:
                    tile.fill(0)
                origin = 0 if inside else part.start
                self.energy = table.run(part.start, part.stop, origin, self.weighs)
            yield part, tile

    def _narrow(self, table: CopyTable, target: Array, dim: int, part: slice) -> Array:
        with measured("gather", target.nbytes):
            if self.padded:
                target.fill(0)
            self.energy = table.run(part.start, part.stop, part.start, self.weighs)
        return target[(slice(None),) * dim + (slice(part.stop - part.start),)]

    def _whole_tiles(self, dim: int, width: int, out: Array) -> Iterator[tuple[slice, Array]]:
        fits = out.shape == self.shape and out.dtype == self.dtype
        whole = self.whole(out if fits and out.flags.c_contiguous else None)
        self.energy = None  # of all tiles together
        yield from Whole(whole).tiles(dim, width, out)

    def _axis_dim(self, dim: int) -> tuple[int, int]:
        """Axis of a target dimension, and the dimension within the axis."""
        begins = firsts(self.exchange.target_dims)
        axis = max(a for a, first in enumerate(begins) if first <= dim)
        return axis, dim - begins[axis]

    def _tiles_along(self, dim: int) -> bool:
        """Whether every piece is one run along a dimension, so that it can be cut there."""
        axis, inner = self._axis_dim(dim)
        return all(product.along(axis, inner) >= 0 for product in self.products) and self._compiled

    @cached_property
    def _compiled(self) -> bool:
        """Whether the compiled copy takes all sources."""
        return all(all_compile(found, self.dtype) for found in self.sources)

    def _fill(self, table: Table, dim: int | None) -> None:
        """Enter all copies into a table, to be cut along a dimension if one is named."""
        cut = None if dim is None else self._axis_dim(dim)
        used: dict[Block, int] = {}
        for product, sources in zip(self.products, self.sources, strict=True):
            if self.packed:
                sizes = np.array([source.itemsize for source in sources], np.int64)[product.which]
                starts, steps = product.in_packed(used)
                places = starts * sizes, steps * sizes[:, None]
                rows = product.rows(self.exchange, places, table.target.strides, cut)
            else:
                strides = tuple(source.strides for source in sources)
                rows = product.gathered(self.exchange, strides, table.target.strides, cut)
            table.extend(sources, product.which, rows)
