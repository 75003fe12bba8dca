"""Gathering a block: its shards copied out of the source blocks into memory of its own.

Imports `decomposition`, `kernels`, `memory` and this room.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.exchange.shards import ExchangeMap, Piece, Shard
from dask_bigfft.kernels.copy import CopyTable, compiles
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
        self.shards = list(exchange.shards(block))
        self.sources = [np.asarray(source_of(shard.source)) for shard in self.shards]
        covered = sum(
            math.prod(sum(p.size for p in axis) for axis in shard.pieces) for shard in self.shards
        )
        #: Whether there are places that no source covers (zero padding).
        self.padded = covered < math.prod(shape)

    def place(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Memory for the block after the round."""
        return lend(shape, dtype)

    def whole(self) -> Array:
        """The block, in memory of its own."""
        out = lend(self.shape, self.dtype)
        if self.padded:
            out.fill(0)
        table = CopyTable(out)
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
            if self.padded:
                tile.fill(0)
            table.run(part.start, part.stop, 0 if inside else part.start)
            yield part, tile

    def _narrow(self, table: CopyTable, target: Array, dim: int, part: slice) -> Array:
        if self.padded:
            target.fill(0)
        table.run(part.start, part.stop, part.start)
        return target[(slice(None),) * dim + (slice(part.stop - part.start),)]

    def _whole_tiles(self, dim: int, width: int, out: Array) -> Iterator[tuple[slice, Array]]:
        whole = self.whole()
        if out.shape == self.shape and out.dtype == self.dtype:
            out[...] = whole
            whole = out
        yield from Whole(whole).tiles(dim, width, out)

    def _axis_dim(self, dim: int) -> tuple[int, int]:
        """Axis of a target dimension, and the dimension within the axis."""
        firsts = _firsts(self.exchange.target_dims)
        axis = max(a for a, first in enumerate(firsts) if first <= dim)
        return axis, dim - firsts[axis]

    def _tiles_along(self, dim: int) -> bool:
        """Whether every piece is one run along a dimension, so that it can be cut there."""
        axis, inner = self._axis_dim(dim)
        runs = all(
            _along(piece, inner)[1]
            for shard in self.shards
            for piece in shard.pieces[axis]
        )
        return runs and all(compiles(source, self.dtype) for source in self.sources)

    def _fill(self, table: CopyTable, dim: int | None) -> None:
        """Enter all copies into a table, to be cut along a dimension if one is named."""
        exchange, strides = self.exchange, table.target.strides
        source_firsts = _firsts(exchange.source_dims)
        target_firsts = _firsts(exchange.target_dims)
        axis, inner = (-1, -1) if dim is None else self._axis_dim(dim)
        for shard, source in zip(self.shards, self.sources, strict=True):
            for pieces in itertools.product(*shard.pieces):
                counts = [n for piece in pieces for n in piece.counts]
                start, steps = _joined(source_firsts, pieces, source.strides, "source")
                to, to_steps = _joined(target_firsts, pieces, strides, "target")
                along, first, step = -1, 0, 0
                if dim is not None:
                    place, _ = _along(pieces[axis], inner)
                    first = pieces[axis].target_starts[inner]
                    step = strides[dim]
                    to -= first * step
                    if place >= 0:
                        along = place + sum(len(piece.counts) for piece in pieces[:axis])
                table.add(
                    source, counts, start, steps, to, to_steps, shard.conjugate, along, first, step
                )


def _along(piece: Piece, dim: int) -> tuple[int, bool]:
    """The digit of a piece that runs along a dimension (-1: none), and whether it runs evenly."""
    found = [i for i, d in enumerate(piece.target_dims) if d == dim and piece.counts[i] > 1]
    if not found:
        return -1, True
    return found[0], len(found) == 1 and piece.target_steps[found[0]] == 1


def gather(
    exchange: ExchangeMap,
    block: Block,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    source_of: Callable[[Block], Array],
) -> Array:
    """Return a block of the target layout, copied together in memory of its own.

    Arguments as `Gathering` has them. Places that no source block covers are zero.
    """
    return Gathering(exchange, block, shape, dtype, source_of).whole()


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
