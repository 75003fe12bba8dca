"""Gathering a block: its shards copied out of the source blocks into memory of its own.

Imports `decomposition`, `kernels`, `memory` and this room.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.events import measured
from dask_bigfft.exchange.shards import ExchangeMap, Piece, PieceTable, Shard
from dask_bigfft.kernels.copy import CopyTable, Rows, compiles
from dask_bigfft.kernels.cpu import Whole, parts
from dask_bigfft.memory import lend

Array = npt.NDArray[Any]
Block = tuple[int, ...]


def _joined(
    shape_dims: list[int], pieces: tuple[Piece, ...], strides: tuple[int, ...], side: str
) -> tuple[int, list[int]]:
    """Start and strides in bytes of the product of one piece per axis, on one side."""
    start, steps = 0, []
    for first, piece in zip(shape_dims, pieces, strict=True):
        starts = piece.source_starts if side == "source" else piece.target_starts
        dims = piece.source_dims if side == "source" else piece.target_dims
        counts = piece.source_steps if side == "source" else piece.target_steps
        start += sum(n * strides[first + d] for d, n in enumerate(starts))
        steps += [n * strides[first + d] for d, n in zip(dims, counts, strict=True)]
    return start, steps


def _firsts(dims: tuple[int, ...]) -> list[int]:
    """First array dimension of each axis, from the number of dimensions of each."""
    return [0, *itertools.accumulate(dims)][:-1]


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
        Source block of a block index. Source blocks are only read.
    """

    def __init__(
        self,
        exchange: ExchangeMap,
        block: Block,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        source_of: Callable[[Block], Array],
    ) -> None:
        self.exchange, self.shape, self.dtype = exchange, shape, dtype
        self.products = [Product(tables, conj) for tables, conj in exchange.tables(block)]
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
        firsts = _firsts(self.exchange.target_dims)
        axis = max(a for a, first in enumerate(firsts) if first <= dim)
        return axis, dim - firsts[axis]

    def _tiles_along(self, dim: int) -> bool:
        """Whether every piece is one run along a dimension, so that it can be cut there."""
        axis, inner = self._axis_dim(dim)
        return all(product.along(axis, inner) >= 0 for product in self.products) and all(
            compiles(source, self.dtype) for found in self.sources for source in found
        )

    def _fill(self, table: CopyTable, dim: int | None) -> None:
        """Enter all copies into a table, to be cut along a dimension if one is named."""
        cut = None if dim is None else self._axis_dim(dim)
        for product, sources in zip(self.products, self.sources, strict=True):
            strides = np.array([source.strides for source in sources], np.int64)
            rows = product.rows(self.exchange, strides, table.target.strides, cut)
            table.extend(sources, product.which, rows)


class Product:
    """All copies into a target block: every combination of one piece per axis.

    Parameters
    ----------
    tables : tuple of PieceTable
        Pieces of each axis.
    conjugate : bool
        Whether the copies are conjugated.
    """

    def __init__(self, tables: tuple[PieceTable, ...], conjugate: bool) -> None:
        self.tables, self.conjugate = tables, conjugate
        #: For every copy, the piece of each axis.
        self.chosen = np.indices([len(table) for table in tables]).reshape(len(tables), -1)
        blocks = np.stack(
            [table.sources[i] for table, i in zip(tables, self.chosen, strict=True)], axis=-1
        )
        different, which = np.unique(blocks, axis=0, return_inverse=True)
        #: Source blocks, and for every copy which of them.
        self.blocks: list[Block] = [tuple(row) for row in different.tolist()]
        self.which = which.reshape(-1)

    @property
    def size(self) -> int:
        """Number of values copied."""
        return math.prod(int(table.counts.prod(axis=1).sum()) for table in self.tables)

    def along(self, axis: int, dim: int) -> int:
        """The one digit that runs along a dimension of an axis, counted over all axes, or -1."""
        table = self.tables[axis]
        found = [i for i, d in enumerate(table.target_dims) if d == dim]
        if len(found) != 1 or (table.target_steps[:, found[0]] != 1).any():
            return -1
        return sum(len(t.source_dims) for t in self.tables[:axis]) + found[0]

    def rows(
        self,
        exchange: ExchangeMap,
        source_strides: npt.NDArray[np.int64],
        target_strides: tuple[int, ...],
        cut: tuple[int, int] | None,
    ) -> Rows:
        """Starts and strides in bytes of all copies.

        `source_strides` has a row for every source block. `cut` is the axis, and the dimension
        within it, along which the target is cut into tiles.
        """
        strides = source_strides[self.which]
        wide = np.array([target_strides], np.int64)
        parts: dict[str, list[npt.NDArray[np.int64]]] = {"n": [], "s": [], "t": []}
        starts = [np.zeros(len(strides), np.int64), np.zeros(len(strides), np.int64)]
        firsts, along, step = np.zeros(len(strides), np.int64), -1, 0
        sides = zip(
            self.tables, self.chosen, _firsts(exchange.source_dims), _firsts(exchange.target_dims),
            strict=True,
        )
        for axis, (table, i, s, t) in enumerate(sides):
            to = table.target_starts[i]
            if cut is not None and cut[0] == axis:
                firsts, along = to[:, cut[1]], self.along(*cut)
                step = int(target_strides[t + cut[1]])
                starts[1] = starts[1] - firsts * step
            come = table.source_starts[i]
            starts[0] = starts[0] + (come * strides[:, s : s + come.shape[1]]).sum(axis=1)
            starts[1] = starts[1] + (to * wide[:, t : t + to.shape[1]]).sum(axis=1)
            parts["n"].append(table.counts[i])
            from_dims, to_dims = np.array(table.source_dims) + s, np.array(table.target_dims) + t
            parts["s"].append(table.source_steps[i] * strides[:, from_dims])
            parts["t"].append(table.target_steps[i] * wide[:, to_dims])
        counts, from_strides, to_strides = (np.concatenate(parts[k], axis=1) for k in "nst")
        return Rows(
            counts, starts[0], from_strides, starts[1], to_strides, firsts,
            self.conjugate, along, step,
        )


def _pieces_in_order(shards: list[Shard]) -> Iterator[tuple[Shard, tuple[Piece, ...], int, int]]:
    """Every product of pieces, with the place where it begins and ends in a packed shard."""
    at = 0
    for shard in shards:
        for pieces in itertools.product(*shard.pieces):
            size = math.prod(piece.size for piece in pieces)
            yield shard, pieces, at, at + size
            at += size


def _dense(counts: list[int], itemsize: int) -> list[int]:
    """Row-major strides in bytes."""
    strides = [itemsize] * len(counts)
    for i in range(len(counts) - 2, -1, -1):
        strides[i] = strides[i + 1] * counts[i + 1]
    return strides


def pack(
    exchange: ExchangeMap, block: Block, source: Block, values: Array, dtype: np.dtype[Any]
) -> Array:
    """Return what a source block gives to a target block, as one contiguous array.

    The values stay in the source's dtype, which may be half as wide, unless the target is real.
    """
    values = np.asarray(values)
    kept = dtype if values.dtype.kind == "c" and dtype.kind != "c" else values.dtype
    shards = list(exchange.shards_from(block, source))
    layout = list(_pieces_in_order(shards))
    packed = np.empty(layout[-1][3] if layout else 0, kept)
    table = CopyTable(packed)
    firsts = _firsts(exchange.source_dims)
    for shard, pieces, begin, _ in layout:
        counts = [n for piece in pieces for n in piece.counts]
        start, steps = _joined(firsts, pieces, values.strides, "source")
        dense = _dense(counts, packed.itemsize)
        table.add(values, counts, start, steps, begin * packed.itemsize, dense, shard.conjugate)
    table.run()
    return packed


def unpack(
    exchange: ExchangeMap,
    block: Block,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    shards: dict[Block, Array],
) -> Array:
    """Return a block put together from the packed shards of its sources."""
    out = lend(shape, dtype)
    table, firsts = CopyTable(out), _firsts(exchange.target_dims)
    layouts = {}
    for source in shards:
        found = list(exchange.shards_from(block, source))
        layouts[source] = list(_pieces_in_order(found))
    covered = sum(layout[-1][3] for layout in layouts.values() if layout)
    if covered < out.size:
        out.fill(0)
    for source, packed in shards.items():
        for _, pieces, begin, _ in layouts[source]:
            counts = [n for piece in pieces for n in piece.counts]
            start, steps = _joined(firsts, pieces, out.strides, "target")
            dense = _dense(counts, packed.itemsize)
            table.add(packed, counts, begin * packed.itemsize, dense, start, steps)
    table.run()
    return out
