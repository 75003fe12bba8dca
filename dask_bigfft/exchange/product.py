"""All copies between a block and the blocks that it meets: one piece of every axis at a time.

The same product serves both directions. Seen from a target block, the blocks that it meets are its
sources; seen from a source block, they are the targets that it gives something to.

A *packed* shard is what one source block gives to one target block, in contiguous memory: its
copies one after the other (those of the mirror image last), each dense::

    source block  --pack-->  | copy | copy | mirrored copy |  --gather-->  target block

Both ends find a copy's place by counting the copies before it, in the order that the pieces have
on their axes, so nothing about the places travels.

Imports `exchange.shards` and `kernels`.
"""

import itertools
import math
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.exchange.shards import ExchangeMap, PieceTable
from dask_bigfft.kernels.copies import Segments

Block = tuple[int, ...]
Ints = npt.NDArray[np.int64]

#: Copies of an exchange that are remembered at most, and what a product of them counts beside.
MOST_KEPT, EACH = 1 << 15, 1 << 4


def firsts(dims: tuple[int, ...]) -> list[int]:
    """First array dimension of each axis, from the number of dimensions of each.

    >>> firsts((1, 2, 1))
    [0, 1, 3]
    """
    return [0, *itertools.accumulate(dims)][:-1]


class Product:
    """All copies of a block: every combination of one piece per axis.

    Parameters
    ----------
    tables : tuple of PieceTable
        Pieces of each axis; their `sources` number the blocks that are met along it.
    conjugate : bool
        Whether the copies are conjugated.
    """

    def __init__(self, tables: tuple[PieceTable, ...], conjugate: bool) -> None:
        self.tables, self.conjugate = tables, conjugate
        self._gathered: dict[Any, Segments] = {}
        #: The blocks that are met: every combination of those of the axes.
        self.blocks: list[Block] = list(itertools.product(*(table.met[0] for table in tables)))

    @cached_property
    def chosen(self) -> Ints:
        """For every copy, the piece of each axis."""
        return np.indices([len(table) for table in self.tables]).reshape(len(self.tables), -1)

    @cached_property
    def which(self) -> Ints:
        """For every copy, which of the blocks that are met."""
        found = np.zeros(1, np.int64)
        for different, along in (table.met for table in self.tables):
            found = np.add.outer(found * len(different), along).reshape(-1)
        return found

    @property
    def size(self) -> int:
        """Number of values copied."""
        return math.prod(table.size for table in self.tables)

    @cached_property
    def counts(self) -> Ints:
        """Number of values of every copy along every digit, axis after axis."""
        found = [t.counts[i] for t, i in zip(self.tables, self.chosen, strict=True)]
        return np.concatenate(found, axis=1)

    def along(self, axis: int, dim: int) -> int:
        """The one digit that runs along a dimension of an axis, counted over all axes, or -1.

        Digits of which every copy has a single value run along nothing: they are those of sources
        in whose memory shards lie one after the other.
        """
        table = self.tables[axis]
        there = [i for i, d in enumerate(table.target_dims) if d == dim]
        found = [i for i in there if (table.counts[:, i] != 1).any()] or there[-1:]
        if len(found) != 1 or (table.target_steps[:, found[0]] != 1).any():
            return -1
        return sum(len(t.source_dims) for t in self.tables[:axis]) + found[0]

    def in_sources(self, exchange: ExchangeMap, strides: Ints) -> tuple[Ints, Ints]:
        """Starts and strides of all copies in the sources, whose strides have a row per copy."""
        tables = [(t.source_starts, t.source_steps, t.source_dims) for t in self.tables]
        return self._places(tables, firsts(exchange.source_dims), strides)

    def in_targets(self, exchange: ExchangeMap, strides: Ints) -> tuple[Ints, Ints]:
        """Starts and strides of all copies in the targets, whose strides have a row per copy."""
        tables = [(t.target_starts, t.target_steps, t.target_dims) for t in self.tables]
        return self._places(tables, firsts(exchange.target_dims), strides)

    def _places(self, tables: list[Any], begins: list[int], strides: Ints) -> tuple[Ints, Ints]:
        starts, found = np.zeros(len(self.which), np.int64), []
        for (places, steps, dims), i, d in zip(tables, self.chosen, begins, strict=True):
            starts += (places[i] * strides[:, d : d + places.shape[1]]).sum(axis=1)
            found.append(steps[i] * strides[:, np.array(dims) + d])
        return starts, np.concatenate(found, axis=1)

    def in_packed(self, used: dict[Block, int]) -> tuple[Ints, Ints]:
        """Starts and strides of all copies in packed shards, in elements.

        `used` says how much of the shard of a block is taken already; this product is added.
        """
        counts = self.counts
        steps = np.ones_like(counts)
        steps[:, :-1] = np.cumprod(counts[:, :0:-1], axis=1)[:, ::-1]
        sizes = counts.prod(axis=1)
        order = np.argsort(self.which, kind="stable")
        before = np.cumsum(sizes[order]) - sizes[order]
        first = np.searchsorted(self.which[order], np.arange(len(self.blocks)))
        taken = np.array([used.get(block, 0) for block in self.blocks], np.int64)
        starts = np.empty(len(sizes), np.int64)
        starts[order] = before - before[first][self.which[order]]
        starts += taken[self.which]
        np.add.at(taken, self.which, sizes)
        used.update(zip(self.blocks, taken.tolist(), strict=True))
        return starts, steps

    def rows(
        self,
        exchange: ExchangeMap,
        sources: tuple[Ints, Ints],
        target_strides: tuple[int, ...],
        cut: tuple[int, int] | None,
    ) -> Segments:
        """The copies into one target block, starts and strides in bytes.

        `sources` are starts and strides of the copies in the sources. `cut` is the axis, and the
        dimension within it, along which the target is cut into tiles.
        """
        count = len(self.which)
        starts, steps = self.in_targets(exchange, np.array([target_strides] * count, np.int64))
        begins, along, step = np.zeros(count, np.int64), -1, 0
        if cut is not None:
            axis, dim = cut
            begins = self.tables[axis].target_starts[self.chosen[axis]][:, dim]
            along = self.along(axis, dim)
            step = int(target_strides[firsts(exchange.target_dims)[axis] + dim])
            starts = starts - begins * step
        return Segments(
            self.counts, sources[0], sources[1], starts, steps, begins, self.conjugate, along, step
        )

    def gathered(
        self,
        exchange: ExchangeMap,
        source_strides: tuple[tuple[int, ...], ...],
        target_strides: tuple[int, ...],
        cut: tuple[int, int] | None,
    ) -> Segments:
        """The copies from source blocks of some strides, as `rows` has them.

        Blocks lie in memory as they did the last time, so it is worked out once.
        """
        key = source_strides, target_strides, cut
        found = self._gathered.get(key)
        if found is None:
            strides = np.array(source_strides, np.int64)[self.which]
            found = self.rows(exchange, self.in_sources(exchange, strides), target_strides, cut)
            self._gathered = {key: found}
        return found


def products_of(exchange: ExchangeMap, block: Block, packed: bool) -> list[Product]:
    """Return the copies into a target block, and those of the mirror image; remembered while few.

    In `packed` shards the latter are conjugated already.
    """
    found: list[Product] | None = exchange.known.get((block, packed))
    if found is None:
        found = [Product(tables, conj and not packed) for tables, conj in exchange.tables(block)]
        size = sum(EACH + len(product.which) for product in found)
        if exchange.known_size + size > MOST_KEPT:
            exchange.known, exchange.known_size = {}, 0
        if size <= MOST_KEPT:
            exchange.known[block, packed] = found
            exchange.known_size += size
    return found
