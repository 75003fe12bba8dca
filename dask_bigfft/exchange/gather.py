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
from dask_bigfft.kernels.copy import CopyTable
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


def shard_copies(
    exchange: ExchangeMap,
    shard: Shard,
    source: Array,
    target: Array,
) -> Iterator[tuple[list[int], int, list[int], int, list[int]]]:
    """Counts, starts and strides in bytes of the copies that make up a shard."""
    source_firsts, target_firsts = _firsts(exchange.source_dims), _firsts(exchange.target_dims)
    for pieces in itertools.product(*shard.pieces):
        counts = [n for piece in pieces for n in piece.counts]
        from_start, from_steps = _joined(source_firsts, pieces, source.strides, "source")
        to_start, to_steps = _joined(target_firsts, pieces, target.strides, "target")
        yield counts, from_start, from_steps, to_start, to_steps


def gather(
    exchange: ExchangeMap,
    block: Block,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    source_of: Callable[[Block], Array],
) -> Array:
    """Return a block of the target layout, copied together in memory of its own.

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

    Returns
    -------
    ndarray
        Places that no source block covers (zero padding) are zero.
    """
    out = lend(shape, dtype)
    shards = list(exchange.shards(block))
    covered = sum(math.prod(sum(p.size for p in axis) for axis in s.pieces) for s in shards)
    if covered < out.size:
        out.fill(0)
    table = CopyTable(out)
    for shard in shards:
        source = np.asarray(source_of(shard.source))
        for counts, from_start, from_steps, to_start, to_steps in shard_copies(
            exchange, shard, source, out
        ):
            table.add(source, counts, from_start, from_steps, to_start, to_steps, shard.conjugate)
    table.run()
    return out


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
