"""What a source block gives away, packed: one contiguous array for everyone who gets something.

Imports `decomposition`, `devices`, `kernels` and this room.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.rounds import packed_dtype
from dask_bigfft.devices.on_card import as_block
from dask_bigfft.exchange.product import Block, Ints, Product
from dask_bigfft.exchange.shards import AxisExchange, ExchangeMap, PieceTable
from dask_bigfft.exchange.tables import Table, table_for
from dask_bigfft.kernels.checksums import checksum
from dask_bigfft.kernels.copies import Segments

Array = npt.NDArray[Any]

#: Rows of tables that a `Packing` remembers at most.
MOST_KEPT = 200_000

#: What the checksum of a shard's place counts beside that of its values.
NAMES = 0xD1342543DE82EF95

_UNKNOWN = object()


class Packed(NamedTuple):
    """Shards for several target blocks, one after the other in one array."""

    #: Target blocks, one row each.
    blocks: Ints
    #: Where each one's shard begins, and where the last one ends, in elements.
    bounds: Ints
    #: The shards.
    values: Array

    def shard(self, place: int) -> Array:
        """The shard of one of the blocks, by its row."""
        return self.values[self.bounds[place] : self.bounds[place + 1]]


def shard_sizes(exchange: ExchangeMap, block: Block) -> Ints:
    """Return how many elements each source block gives to a target block, in the source's grid."""
    grid = [axis.source.blocks for axis in exchange.direct]
    total = np.zeros(grid, np.int64)
    for tables, _ in exchange.tables(block):
        found = np.ones((), np.int64)
        for table, blocks in zip(tables, grid, strict=True):
            along = np.zeros(blocks, np.int64)
            np.add.at(along, table.sources, table.counts.prod(axis=1))
            found = np.multiply.outer(found, along)
        total += found
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


class Packing:
    """An exchange seen from its source blocks.

    Parameters
    ----------
    exchange : ExchangeMap
        The shards.
    targets : tuple of sequences of int
        Target blocks along each axis; what goes to others is left out.
    """

    def __init__(self, exchange: ExchangeMap, targets: tuple[Sequence[int], ...]) -> None:
        self.exchange, self.targets = exchange, targets
        self._tables: dict[tuple[int, bool, int], PieceTable | None] = {}
        self._kept = 0

    def pack(
        self,
        source: Block,
        values: Array,
        dtype: np.dtype[Any],
        owner_of: Callable[[Block], Hashable],
    ) -> dict[Any, Packed]:
        """Return what a source block gives away, by the owner of the target blocks.

        As `packed` takes and gives it.
        """
        return dict(self.packed(source, values, dtype, owner_of))

    def packed(
        self,
        source: Block,
        values: Array,
        dtype: np.dtype[Any],
        owner_of: Callable[[Block], Hashable],
        unit: int = 1,
    ) -> Iterator[tuple[Any, Packed]]:
        """Give each owner of target blocks and what a source block gives these, one by one.

        Parameters
        ----------
        source : tuple of int
            Which block.
        values : ndarray
            The block; only read.
        dtype : dtype
            Of the target blocks.
        owner_of : callable
            Owner of a target block.
        unit : int
            Elements of which each shard takes a whole multiple; what is behind it is left as
            it was.
        """
        used: dict[Block, int] = {}
        copies = [self._copies(product, values, used) for product in self._products(source)]
        owners: dict[Any, list[Block]] = {}
        for block in used:
            owners.setdefault(owner_of(block), []).append(block)
        kept = packed_dtype(values.dtype, dtype)
        for owner, blocks in owners.items():
            bounds = np.zeros(len(blocks) + 1, np.int64)
            np.cumsum([-(-used[block] // unit) * unit for block in blocks], out=bounds[1:])
            table = table_for(values, int(bounds[-1]), kept)
            for product, rows in copies:
                begins = dict(zip(blocks, bounds.tolist(), strict=False))
                base = np.array([begins.get(block, -1) for block in product.blocks], np.int64)
                _extend(table, values, rows, base[product.which])
            table.run()
            yield owner, Packed(np.array(blocks, np.int64), bounds, table.target)

    def _copies(
        self, product: Product, values: Array, used: dict[Block, int]
    ) -> tuple[Product, Segments]:
        """A product with its copies; those in the targets' shards in elements."""
        strides = np.array([values.strides] * len(product.which), np.int64)
        starts, steps = product.in_packed(used)
        rows = Segments(
            product.counts,
            *product.in_sources(self.exchange, strides),
            starts,
            steps,
            np.zeros(len(starts), np.int64),
            product.conjugate,
        )
        return product, rows

    def _products(self, source: Block) -> list[Product]:
        found = []
        for axes, conjugate in self.exchange.images:
            numbered = enumerate(zip(axes, source, strict=True))
            tables = [self._table(i, axis, conjugate, j) for i, (axis, j) in numbered]
            if all(table is not None for table in tables):
                found.append(Product(tuple(t for t in tables if t is not None), conjugate))
        return found

    def _table(
        self, number: int, axis: AxisExchange, conjugate: bool, source: int
    ) -> PieceTable | None:
        """Pieces that a source block gives to the targets along one axis, worked out once."""
        key = number, conjugate, source
        found: Any = self._tables.get(key, _UNKNOWN)
        if found is _UNKNOWN:  # another thread may empty the memory at any time
            found = axis.given(source, tuple(self.targets[number]))
            self._kept += 0 if found is None else len(found)
            if self._kept > MOST_KEPT:
                self._tables, self._kept = {}, 0
            self._tables[key] = found
        return found  # type: ignore[no-any-return]


def _extend(table: Table, values: Array, rows: Segments, base: Ints) -> None:
    """Enter those copies whose shard begins at `base`, in elements; -1 is left out."""
    mine = np.flatnonzero(base >= 0)
    if len(mine):
        size = table.target.itemsize
        chosen = Segments(
            rows.counts[mine],
            rows.source_starts[mine],
            rows.source_strides[mine],
            (rows.target_starts + base)[mine] * size,
            rows.target_strides[mine] * size,
            rows.firsts[mine],
            rows.conjugate,
        )
        table.extend([values], np.zeros(len(mine), np.int64), chosen)


def pack(
    exchange: ExchangeMap, block: Block, source: Block, values: Array, dtype: np.dtype[Any]
) -> Array:
    """Return what a source block gives to a target block, as one contiguous array."""
    values = as_block(values)
    packing = Packing(exchange, tuple((i,) for i in block))
    found = packing.pack(source, values, dtype, lambda _: None)
    return found[None].values if found else np.empty(0, packed_dtype(values.dtype, dtype))
