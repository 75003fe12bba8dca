"""A block as a composite of its source blocks, so that nothing has to be gathered.

Along each axis the pieces of an exchange form a product of digits with at most one that goes on
from source block to source block; where they do not (a chunk ends in the middle of a digit, there
is padding, or a mirror image), the block is gathered after all.

Imports `decomposition`, `kernels` and this room.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.layout import Layout
from dask_bigfft.exchange.product import firsts
from dask_bigfft.exchange.shards import ExchangeMap, PieceTable
from dask_bigfft.kernels.composite import Block, Composite, Edge, Stretch, Stretches

Array = npt.NDArray[np.generic]

#: Source blocks beyond which a block is gathered all the same.
MOST_SOURCES = 4096

Axis = tuple[list[tuple[Edge, ...]], Stretches]


def composite(
    exchange: ExchangeMap,
    tables: tuple[PieceTable, ...],
    sources: Mapping[Block, Array],
    shape: tuple[int, ...],
) -> Composite | None:
    """Return a block as a composite of its sources, or None where it is not one.

    Parameters
    ----------
    exchange : ExchangeMap
        The shards.
    tables : tuple of PieceTable
        Pieces of each axis, whose product covers the block and is not conjugated.
    sources : mapping of block index to ndarray
        The source blocks, of the block's dtype.
    shape : tuple of int
        Of the block.
    """
    if len(sources) > MOST_SOURCES or not math.prod(shape):
        return None
    edges: list[Edge] = []
    groups: list[int] = []
    axes: list[Stretches] = []
    begins = zip(
        tables, firsts(exchange.source_dims), firsts(exchange.target_dims), exchange.target_dims,
        strict=True,
    )
    for axis, (table, came, goes, dims) in enumerate(begins):
        found = _axis(axis, table, came, shape[goes : goes + dims])
        if found is None:
            return None
        per_dim, stretches = found
        axes.append(replace(stretches, edge=stretches.edge + len(edges)))
        edges += [edge for group in per_dim for edge in group]
        groups += [len(group) for group in per_dim]
    return Composite(tuple(edges), tuple(groups), tuple(axes), sources)


def all_composite(source: Layout, target: Layout) -> bool:
    """Return whether every block of an exchange is a composite of its sources."""
    exchange = ExchangeMap(source, target)
    came = firsts(exchange.source_dims)
    for axis, found in enumerate(exchange.direct):
        for block in range(found.target.blocks):
            table, shape = found.table(block), found.target.shape(block)
            if table is None or _axis(axis, table, came[axis], shape) is None:
                return False
    return True


def _axis(axis: int, table: PieceTable, came: int, shape: tuple[int, ...]) -> Axis | None:
    """Edges of each dimension of an axis, and its stretches; None where there are no such."""
    if (table.source_steps <= 0).any():
        return None
    largest = np.argsort(-table.counts.sum(axis=0), kind="stable")
    for digit in largest.tolist():
        order = _chained(table, digit)
        if order is None:
            continue
        found = _edges(axis, table, came, shape, digit)
        if found is None:
            continue
        per_dim, cutting = found
        stretches, low = [], 0
        for row in order:
            high = low + int(table.counts[row, digit])
            starts = tuple(
                (came + dim, int(place)) for dim, place in enumerate(table.source_starts[row])
            )
            stretches.append(Stretch(low, high, int(table.sources[row]), starts))
            low = high
        return _joined(per_dim, Stretches(cutting, tuple(stretches)))
    return None


def _chained(table: PieceTable, digit: int) -> list[int] | None:
    """Pieces in the order in which they follow one another along a digit, alike in all others."""
    dim, step = table.target_dims[digit], table.target_steps[0, digit]
    order = np.argsort(table.target_starts[:, dim], kind="stable")
    counts, starts = table.counts[order], table.target_starts[order]
    others = np.delete(counts, digit, axis=1)
    alike = (
        (others == others[0]).all()
        and (table.source_steps == table.source_steps[0]).all()
        and (table.target_steps == table.target_steps[0]).all()
        and not np.delete(starts, dim, axis=1).any()
    )
    ends = np.cumsum(counts[:, digit]) * step
    follow = starts[0, dim] == 0 and (starts[1:, dim] == ends[:-1]).all()
    return order.tolist() if alike and follow else None


def _edges(
    axis: int, table: PieceTable, came: int, shape: tuple[int, ...], digit: int
) -> tuple[list[tuple[Edge, ...]], int] | None:
    """Edges of each dimension, and the number of the one that a digit is; None: not dense."""
    sizes = table.counts[0].tolist()
    sizes[digit] = int(table.counts[:, digit].sum())
    steps, cutting, per_dim, before = table.target_steps[0], 0, [], 0
    for dim, n in enumerate(shape):
        inside = [d for d, found in enumerate(table.target_dims) if found == dim]
        # A digit of one value has no step that counts, but the one that is cut is one of many.
        inside = sorted((d for d in inside if sizes[d] > 1 or d == digit), key=lambda d: -steps[d])
        width = 1
        for d in reversed(inside):
            if sizes[d] > 1 and steps[d] != width:
                return None
            width *= sizes[d]
        if width != n:
            return None
        found = tuple(
            Edge(sizes[d], axis, came + table.source_dims[d], int(table.source_steps[0, d]))
            for d in inside
        ) or (Edge(n, axis, came, 1),)
        if digit in inside:
            cutting = before + inside.index(digit)
        per_dim.append(found)
        before += len(found)
    return per_dim, cutting


def _joined(per_dim: list[tuple[Edge, ...]], stretches: Stretches) -> Axis:
    """The same with edges joined that continue one another in the sources."""
    kept: list[tuple[Edge, ...]] = []
    cutting, parts, before, after = stretches.edge, stretches.parts, 0, 0
    edge_now = cutting
    for group in per_dim:
        found: list[Edge] = []
        for number, edge in enumerate(group, before):
            last = found[-1] if found else None
            cut = number == cutting and len(parts) > 1
            if last and not cut and last.dim == edge.dim and last.step == edge.size * edge.step:
                if edge_now == after + len(found) - 1 and number != cutting:
                    parts = tuple(
                        replace(p, low=p.low * edge.size, high=p.high * edge.size) for p in parts
                    )
                found[-1] = replace(edge, size=last.size * edge.size)
            else:
                found.append(edge)
            if number == cutting:
                edge_now = after + len(found) - 1
        before += len(group)
        after += len(found)
        kept.append(tuple(found))
    sizes = list(itertools.chain.from_iterable(kept))
    if len(parts) == 1:  # one source block: any edge can bear it, whole
        parts = (replace(parts[0], low=0, high=sizes[edge_now].size),)
    return kept, Stretches(edge_now, parts)
