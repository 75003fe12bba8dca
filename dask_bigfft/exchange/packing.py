"""Packed shards of a source block, one contiguous array for each receiver, and blocks of these."""

import functools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dask_bigfft.arrays import Array, Block, Ints
from dask_bigfft.events import measured
from dask_bigfft.exchange.shards import ExchangeMap, Product
from dask_bigfft.kernels.checks import checksum
from dask_bigfft.kernels.copies import CopyTable, Segments
from dask_bigfft.kernels.views import host_table, prefault
from dask_bigfft.memory import allocate
from dask_bigfft.transforms.exchanges import packed_dtype

#: Factor of the checksum of a shard's indices in the checksum of the shard.
NAMES = 0xD1342543DE82EF95


def shard_sizes(exchange: ExchangeMap, block: Block) -> Ints:
    """Return the number of elements of each shard of a target block, in the grid of its sources."""
    grid = exchange.source.grid
    total = np.zeros(grid, np.int64)
    for axes, _ in exchange.pieces(block):
        along = [
            np.bincount(pieces.sides[0].blocks, pieces.counts.prod(axis=1), blocks)
            for pieces, blocks in zip(axes, grid, strict=True)
        ]
        total += functools.reduce(np.multiply.outer, along).astype(np.int64)
    return total


def shard_checksum(
    shard: Array,
    number: int,
    source: Block,
    block: Block,
) -> int:
    """Return the checksum of a shard and its indices, so that exchanged shards are noticed.

    Parameters
    ----------
    shard : ndarray, contiguous
        Values of the shard.
    number : int
        Number of the exchange.
    source, block : tuple of int
        Indices of the source block and the target block.
    """
    indices = np.array([number, *source, *block], np.int64)
    return (checksum(shard) + NAMES * checksum(indices)) % (1 << 64)


def packed(
    exchange: ExchangeMap,
    targets: tuple[Sequence[int], ...],
    source: Block,
    values: Array,
    dtype: np.dtype[Any],
    owner_of: Callable[[Block], Hashable],
    unit: int = 1,
    new_table: Callable[[int, np.dtype[Any]], Any] = host_table,
) -> Iterator[tuple[Any, Ints, Ints, Array]]:
    """Yield each owner of target blocks with their packed shards of a source block.

    An item has the owner, the target blocks (one row each), the bounds of their shards in elements,
    and an array of all shards.

    Parameters
    ----------
    exchange : ExchangeMap
        Shards of the exchange.
    targets : tuple of sequences of int
        Target blocks along each axis; shards for other blocks are left out.
    source : tuple of int
        Index of the source block.
    values : ndarray
        Values of the source block, which are only read.
    dtype : dtype
        Dtype of the target blocks.
    owner_of : callable
        Returns the owner of a target block.
    unit : int
        Alignment of shards in elements; the padding is not initialised.
    new_table : callable
        Returns an empty table of copies into a new array of a size and dtype.
    """
    shard_dtype = packed_dtype(values.dtype, dtype)
    sizes: dict[Block, int] = {}  # of the shards, in elements
    copies: list[tuple[Product, Segments]] = []
    for axes, conjugate in exchange.pieces(targets, source):
        product = Product(
            exchange,
            axes,
            conjugate,
            other=1,
        )
        segments = _segments_of_shards(
            product,
            values.strides,
            shard_dtype.itemsize,
            sizes,
        )
        copies.append((product, segments))
    # `sizes` has all target blocks now that get values.
    blocks_of_owners: dict[Any, list[Block]] = {}
    for block in sizes:
        blocks_of_owners.setdefault(owner_of(block), []).append(block)
    for owner, blocks in blocks_of_owners.items():
        bounds = np.zeros(len(blocks) + 1, np.int64)
        np.cumsum([-(-sizes[block] // unit) * unit for block in blocks], out=bounds[1:])
        table = new_table(int(bounds[-1]), shard_dtype)
        begins = dict(zip(blocks, (bounds * shard_dtype.itemsize).tolist(), strict=False))
        for product, segments in copies:
            segments_of_owner = _segments_of_owner(product, segments, begins)
            which = np.zeros(len(segments_of_owner.counts), np.int64)  # all copies read `values`
            if len(which):
                table.extend([values], which, segments_of_owner)
        table.run()
        yield owner, np.array(blocks, np.int64), bounds, table.target


def _segments_of_shards(
    product: Product,
    source_strides: Block,
    itemsize: int,
    sizes: dict[Block, int],
) -> Segments:
    """Return the copies of a product from a source block, each into the shard of its target block.

    `sizes` has the elements of each shard in earlier products, and those of this one are added.
    """
    source_starts, source_steps = product.places(0, np.array([source_strides], np.int64))
    starts, steps = product.in_packed(sizes)
    return Segments(
        product.counts,
        source_starts,
        source_steps,
        starts * itemsize,
        steps * itemsize,
        firsts=np.zeros(len(starts), np.int64),
        conjugate=product.conjugate,
    )


def _segments_of_owner(
    product: Product, segments: Segments, begins: Mapping[Block, int]
) -> Segments:
    """Return the copies of a product into an owner's array of shards.

    `begins` has the first byte of the shard of each target block of the owner.
    """
    begins_of_blocks = np.array([begins.get(block, -1) for block in product.blocks], np.int64)
    begins_of_copies = begins_of_blocks[product.which]
    rows = np.flatnonzero(begins_of_copies >= 0)
    in_shards = segments.taken(rows)
    return replace(in_shards, target_starts=in_shards.target_starts + begins_of_copies[rows])


def pack(
    exchange: ExchangeMap,
    block: Block,
    source: Block,
    values: Array,
    dtype: np.dtype[Any],
    new_table: Callable[[int, np.dtype[Any]], Any] = host_table,
) -> Array:
    """Return the shard of a source block for a target block as a contiguous array."""
    targets = tuple((i,) for i in block)
    shards_of_owners = packed(
        exchange,
        targets,
        source,
        values,
        dtype,
        owner_of=lambda _: None,
        new_table=new_table,
    )
    for *_, shard in shards_of_owners:
        return shard
    return np.empty(0, packed_dtype(values.dtype, dtype))


class IncrementalGather:
    """Target block that is assembled while its shards arrive, in any order.

    Parameters
    ----------
    exchange : ExchangeMap
        Shards of the exchange.
    block : tuple of int
        Index of the target block.
    dtype
        Dtype of the target block.
    shard_dtype
        Dtype of the packed shards, in which the mirror image is already conjugated.

    Attributes
    ----------
    values : ndarray
        The block; elements that no shard covers are 0.
    """

    def __init__(
        self,
        exchange: ExchangeMap,
        block: Block,
        dtype: np.dtype[Any],
        shard_dtype: np.dtype[Any],
    ) -> None:
        self.values = fresh_block(exchange, block, dtype)
        used: dict[Block, int] = {}
        self._copies = []
        for product in exchange.products(block, packed=True):
            starts, steps = product.in_packed(used)
            places = starts * shard_dtype.itemsize, steps * shard_dtype.itemsize
            self._copies.append((product, product.rows(places, self.values.strides, None)))

    def take(self, shards: Mapping[Block, Array]) -> None:
        """Copy shards into the block; several threads may do so with different shards."""
        table = CopyTable(self.values)
        for product, rows in self._copies:
            numbers = []
            sources = []
            for number, block in enumerate(product.blocks):
                if block in shards:
                    numbers.append(number)
                    sources.append(shards[block])
            positions = np.array(numbers, np.int64)
            rows_of_shards = np.flatnonzero(np.isin(product.which, positions))
            if len(rows_of_shards):
                which = np.searchsorted(positions, product.which[rows_of_shards])
                table.extend(sources, which, rows.taken(rows_of_shards))
        with measured("gather", sum(shard.nbytes for shard in shards.values())):
            table.run()


def fresh_block(exchange: ExchangeMap, block: Block, dtype: np.dtype[Any]) -> Array:
    """Return memory for a target block, filled with 0 if sources do not cover all of it."""
    values = prefault(allocate(exchange.target.shape(block), dtype))
    if sum(product.size for product in exchange.products(block, packed=True)) < values.size:
        values.fill(0)
    return values
