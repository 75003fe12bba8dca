"""What a source block gives away, packed: one contiguous array for everyone who gets something.

Imports `decomposition`, `gpu`, `kernels` and this room.
"""

import functools
from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.rounds import packed_dtype
from dask_bigfft.exchange.gather import table_for
from dask_bigfft.exchange.shards import Block, ExchangeMap, Ints, Product
from dask_bigfft.kernels.checks import checksum
from dask_bigfft.kernels.copies import Segments

Array = npt.NDArray[Any]

#: What the checksum of a shard's place counts beside that of its values.
NAMES = 0xD1342543DE82EF95


def shard_sizes(exchange: ExchangeMap, block: Block) -> Ints:
    """Return how many elements each source block gives to a target block, in the source's grid."""
    grid = exchange.source.grid
    total = np.zeros(grid, np.int64)
    for tables, _ in exchange.tables(block):
        pairs = zip(tables, grid, strict=True)
        along = [np.bincount(table.sources, table.counts.prod(axis=1), n) for table, n in pairs]
        total += functools.reduce(np.multiply.outer, along).astype(np.int64)
    return total


def shard_checksum(shard: Array, number: int, source: Block, block: Block) -> int:
    """Return the checksum of a shard and of what it is, so that shards that change places differ.

    Parameters
    ----------
    shard : ndarray, contiguous
        The values.
    number : int
        Exchange.
    source, block : tuple of int
        Source block and target block.
    """
    known = np.array([number, *source, *block], np.int64)
    return (checksum(shard) + NAMES * checksum(known)) % (1 << 64)


def packed(
    exchange: ExchangeMap,
    targets: tuple[Sequence[int], ...],
    source: Block,
    values: Array,
    dtype: np.dtype[Any],
    owner_of: Callable[[Block], Hashable],
    unit: int = 1,
) -> Iterator[tuple[Any, Ints, Ints, Array]]:
    """Give each owner of target blocks and what a source block gives these, one by one.

    The blocks, one row each; where the shard of each begins, and where the last one ends, in
    elements; and the shards, one after the other in one array.

    Parameters
    ----------
    exchange : ExchangeMap
        The shards.
    targets : tuple of sequences of int
        Target blocks along each axis; what goes to others is left out.
    source : tuple of int
        Which block.
    values : ndarray
        The block; only read.
    dtype : dtype
        Of the target blocks.
    owner_of : callable
        Owner of a target block.
    unit : int
        Elements of which each shard takes a whole multiple; what is behind it is left as it was.
    """
    used: dict[Block, int] = {}
    copies = []
    for tables, conjugate in exchange.tables(targets, source):
        product = Product(exchange, tables, conjugate)
        sources = product.in_sources(np.array([values.strides], np.int64))
        copies.append((product, sources, product.in_packed(used)))
    owners: dict[Any, list[Block]] = {}
    for block in used:
        owners.setdefault(owner_of(block), []).append(block)
    kept = packed_dtype(values.dtype, dtype)
    for owner, blocks in owners.items():
        bounds = np.zeros(len(blocks) + 1, np.int64)
        np.cumsum([-(-used[block] // unit) * unit for block in blocks], out=bounds[1:])
        table = table_for(values, int(bounds[-1]), kept)
        begins = dict(zip(blocks, bounds.tolist(), strict=False))
        for product, sources, (starts, steps) in copies:
            base = np.array([begins.get(b, -1) for b in product.blocks], np.int64)[product.which]
            mine, none = np.flatnonzero(base >= 0), np.zeros(len(base), np.int64)
            if len(mine):
                places = (starts + base) * kept.itemsize, steps * kept.itemsize
                rows = Segments(product.counts, *sources, *places, none, product.conjugate)
                table.extend([values], none[mine], rows.taken(mine))
        table.run()
        yield owner, np.array(blocks, np.int64), bounds, table.target


def pack(
    exchange: ExchangeMap, block: Block, source: Block, values: Array, dtype: np.dtype[Any]
) -> Array:
    """Return what a source block gives to a target block, as one contiguous array."""
    targets = tuple((i,) for i in block)
    for *_, found in packed(exchange, targets, source, values, dtype, lambda _: None):
        return found
    return np.empty(0, packed_dtype(values.dtype, dtype))
