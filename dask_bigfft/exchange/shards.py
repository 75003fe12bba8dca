"""Shard arithmetic: the strided copies from source blocks to target blocks.

Every axis is treated separately, because a block is a product over its axes.  Along one axis::

    block --> boxes of digits         an interval of flattened digits is a head, a body
                                      and a tail: at most 2m - 1 boxes for m digits
    boxes --> boxes of common digits  both layouts' digits are cut at each other's ends
    source box  n  target box         one strided copy: a *piece*

and a shard of an n-dimensional block is the product of its axes' pieces.

The half spectrum of real data is completed by its mirror image, X[N - k] = conj X[k]. The boxes of
the source are reflected (negative strides): by N - k on the real axis, and by -k modulo the length
on the other transformed axes. Their values are copied conjugated.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from dask_bigfft.arrays import Block, Ints
from dask_bigfft.decomposition.layout import (
    AxisLayout,
    Digit,
    Layout,
    Ranges,
    interval_boxes,
    radix_points,
    sub_radices,
)
from dask_bigfft.decomposition.rounds import Mirror
from dask_bigfft.gpu.operations import dense
from dask_bigfft.kernels.copies import Segments


@dataclass(frozen=True, slots=True)
class Box:
    """Box of digits inside a block's axis, and its position in the block.

    ``ranges`` are the values of every digit, and ``dims`` the array dimension (counted within the
    axis) that holds the digit. ``steps`` are the distances there between two values (negative if
    mirrored), and ``starts`` the position of the box's first element per dimension.
    """

    ranges: Ranges
    dims: tuple[int, ...]
    steps: tuple[int, ...]
    starts: tuple[int, ...]


def stored_boxes(layout: AxisLayout, block: int) -> Iterator[Box]:
    """Yield the boxes of a block in the layout's own digits."""
    per_group: list[list[tuple[Ranges, tuple[int, ...], int]]] = []
    for group, chunk in zip(layout.groups, layout.chunk_of(block), strict=True):
        sizes = tuple(digit.size for digit in group.digits)
        found = []
        for low, high, at, step in group.runs(chunk):
            steps = tuple(step * s for s in dense(sizes, 1))
            for ranges in interval_boxes(low, high, sizes):
                at_first = at + sum(r[0] * s for r, s in zip(ranges, steps, strict=True))
                found.append((ranges, steps, at_first - low * step))
        per_group.append(found)
    dims = tuple(d for d, group in enumerate(layout.groups) for _ in group.digits)
    for parts in itertools.product(*per_group):
        columns: Any = zip(*parts, strict=True)
        ranges, steps, starts = columns
        yield Box(tuple(itertools.chain(*ranges)), dims, tuple(itertools.chain(*steps)), starts)


def _reflected(box: Box, turned: dict[int, tuple[int, int, int]]) -> Box:
    """Return the box with values v of digits replaced by ``constant - v``.

    `turned` has for each digit the first v, one more than the last v, and the constant.
    """
    ranges, steps, starts = list(box.ranges), list(box.steps), list(box.starts)
    for i, (low, high, constant) in turned.items():
        starts[box.dims[i]] += (high - 1 - ranges[i][0]) * steps[i]
        ranges[i], steps[i] = (constant - high + 1, constant - low + 1), -steps[i]
    return Box(tuple(ranges), box.dims, tuple(steps), tuple(starts))


def mirror_half(box: Box, digits: tuple[Digit, ...], length: int) -> Iterator[Box]:
    """Yield the box of N - k for the indices k of a box of the half spectrum.

    The digit of stride 1 is partial. Only its reflected values that are not stored are included, so
    nothing is covered twice.
    """
    partial = next(i for i, digit in enumerate(digits) if digit.stride == 1)
    digit = digits[partial]
    period = length if len(digits) == 1 else digit.radix
    low, high = box.ranges[partial]
    low, high = max(low, 1), min(high, period - digit.size + 1)
    if low >= high:
        return
    turned = {i: (*box.ranges[i], digit.radix - 1) for i, digit in enumerate(digits)}
    yield _reflected(box, turned | {partial: (low, high, period)})


def mirror_full(box: Box, digits: tuple[Digit, ...]) -> Iterator[Box]:
    """Yield the boxes of -k modulo N for the indices k of a box.

    -k keeps the zeros at the low end of k, turns the lowest other digit v into radix - v
    and the higher ones into radix - 1 - v.
    """
    ascending = sorted(range(len(digits)), key=lambda i: digits[i].stride)
    # The radix of a single digit may exceed N (an axis padded for Bluestein's algorithm).
    moduli = [digit.size if len(digits) == 1 else digit.radix for digit in digits]
    zeros = box
    for place, i in enumerate(ascending):
        low, high = zeros.ranges[i]
        start = max(low, 1)
        if start < high:
            higher = {h: (*zeros.ranges[h], digits[h].radix - 1) for h in ascending[place + 1 :]}
            yield _reflected(zeros, {i: (start, high, moduli[i])} | higher)
        if low > 0:
            return
        zeros = replace(zeros, ranges=(*zeros.ranges[:i], (0, 1), *zeros.ranges[i + 1 :]))
    yield zeros


def refined(
    box: Box, digits: tuple[Digit, ...], points: dict[int, tuple[int, ...]]
) -> Iterator[Box]:
    """Yield the boxes in the finer digits between `points`, sorted by stage and falling stride."""
    order = sorted(range(len(digits)), key=lambda i: (digits[i].stage, -digits[i].stride))
    choices = []
    for i in order:
        sizes = sub_radices(digits[i], points[digits[i].stage])
        flat = dense(sizes, 1)
        low, high = box.ranges[i]
        choices.append([(i, ranges, flat) for ranges in interval_boxes(low, high, sizes)])
    for parts in itertools.product(*choices):
        ranges: list[tuple[int, int]] = []
        dims: list[int] = []
        steps: list[int] = []
        starts = list(box.starts)
        for i, found, flat in parts:
            first = sum(r[0] * f for r, f in zip(found, flat, strict=True))
            starts[box.dims[i]] += (first - box.ranges[i][0]) * box.steps[i]
            ranges += found
            dims += [box.dims[i]] * len(found)
            steps += [box.steps[i] * f for f in flat]
        yield Box(tuple(ranges), tuple(dims), tuple(steps), tuple(starts))


@dataclass(frozen=True, eq=False)
class BoxTable:
    """Boxes of an axis in common digits, one row each, in the order of their blocks.

    Thousands of small objects would cost more time in the interpreter and its garbage collector
    than the copies, hence a table.

    Parameters
    ----------
    blocks : ndarray, (rows,)
        Block of each box.
    lows, highs, steps : ndarray, (rows, digits)
        Ranges and steps, see `Box`.
    starts : ndarray, (rows, dimensions)
        See `Box`.
    dims : tuple of int
        Dimension of each digit, the same in all rows.
    """

    blocks: Ints
    lows: Ints
    highs: Ints
    steps: Ints
    starts: Ints
    dims: tuple[int, ...]

    def of(self, blocks: int | Sequence[int]) -> "BoxTable":
        """Return the boxes of some blocks."""
        rows = np.isin(self.blocks, blocks)
        lows, highs, steps = self.lows[rows], self.highs[rows], self.steps[rows]
        return BoxTable(self.blocks[rows], lows, highs, steps, self.starts[rows], self.dims)

    def moved(self, rows: Ints, lows: Ints) -> Ints:
        """Return the starts of the parts of some boxes that begin at digit values `lows`."""
        starts, distances = self.starts[rows], (lows - self.lows[rows]) * self.steps[rows]
        for digit, dim in enumerate(self.dims):
            starts[:, dim] += distances[:, digit]
        return starts


#: Maximum number of cached pieces of one axis.
MOST_KEPT = 200_000

#: Maximum number of blocks before or after an exchange for which all plans share its tables.
SHARED_BLOCKS = 128


#: Maximum number of cached copies of an exchange, and the overhead of a product in copies.
MOST_COPIES, EACH = 1 << 15, 1 << 4


@dataclass(frozen=True, eq=False)
class ShardTable:
    """Pieces of one axis of a target block, or of a source block, one row each.

    A piece is one strided copy along the axis.

    Parameters
    ----------
    sources : ndarray, (rows,)
        Source block along the axis (for the pieces of a source block: target block).
    counts : ndarray, (rows, digits)
        Number of values of each digit.
    source_steps, target_steps : ndarray, (rows, digits)
        Distance between values in the digit's dimension of the block.
    source_starts, target_starts : ndarray, (rows, dimensions)
        Position of the first value.
    source_dims, target_dims : tuple of int
        Dimension of each digit, the same in all rows.
    """

    sources: Ints
    counts: Ints
    source_steps: Ints
    target_steps: Ints
    source_starts: Ints
    target_starts: Ints
    source_dims: tuple[int, ...]
    target_dims: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.sources)

    @cached_property
    def met(self) -> tuple[list[int], Ints]:
        """Different blocks of the rows, in order, and the number of the block of each row.

        All blocks of other axes use the same numbers, so they are cached.
        """
        different, which = np.unique(self.sources, return_inverse=True)
        return different.tolist(), which.reshape(-1)

    @cached_property
    def size(self) -> int:
        """Number of values."""
        return int(self.counts.prod(axis=1).sum())


def piece_table(source: BoxTable, target: BoxTable, *, by_target: bool) -> ShardTable | None:
    """Return the intersections of the boxes of two tables; None if there are none.

    `ShardTable.sources` are the source blocks, or with `by_target` the target blocks. The pieces
    between two blocks have the same order in both cases.
    """
    lows = np.maximum(source.lows[:, None], target.lows[None])
    highs = np.minimum(source.highs[:, None], target.highs[None])
    sources, targets = np.nonzero((lows < highs).all(axis=2))  # rows of both tables
    if by_target:
        order = np.argsort(target.blocks[targets], kind="stable")
        sources, targets = sources[order], targets[order]
    if not len(sources):
        return None
    lows, highs = lows[sources, targets], highs[sources, targets]
    return ShardTable(
        target.blocks[targets] if by_target else source.blocks[sources],
        highs - lows,
        source.steps[sources],
        target.steps[targets],
        source.moved(sources, lows),
        target.moved(targets, lows),
        source.dims,
        target.dims,
    )


class AxisExchange:
    """Pieces of one axis, computed on demand and cached.

    Parameters
    ----------
    source, target : AxisLayout
        Layouts of the axis before and after.
    mirror : {"half", "full"} or None
        Mirror image of the source, on the real axis or on another one; None for the source itself.
    length : int
        N of the real axis, with ``mirror="half"``.
    """

    def __init__(
        self, source: AxisLayout, target: AxisLayout, mirror: str | None = None, length: int = 0
    ) -> None:
        self.source, self.target, self.mirror, self.length = source, target, mirror, length
        #: Ends of the common digits.
        self.points = radix_points(source, target)
        self._tables: dict[Any, ShardTable | None] = {}
        self._kept = 0

    @cached_property
    def _sources(self) -> BoxTable | None:
        """Boxes of all source blocks, reflected for a mirror image."""
        return self._boxes(self.source, self.mirror)

    @cached_property
    def _targets(self) -> BoxTable | None:
        return self._boxes(self.target, None)

    def _boxes(self, layout: AxisLayout, mirror: str | None) -> BoxTable | None:
        """Return the boxes of all blocks of a layout in common digits; None if there is none."""
        digits, blocks, found = layout.digits, list[int](), list[Box]()
        for block in range(layout.blocks):
            for box in stored_boxes(layout, block):
                images = iter((box,))
                if mirror == "half":
                    images = mirror_half(box, digits, self.length)
                elif mirror == "full":
                    images = mirror_full(box, digits)
                for image in images:
                    found += refined(image, digits, self.points)
            blocks += [block] * (len(found) - len(blocks))
        if not found:
            return None
        ranges = np.array([box.ranges for box in found], np.int64)
        steps, starts = (np.array([getattr(b, n) for b in found]) for n in ("steps", "starts"))
        numbers = np.array(blocks, np.int64)
        return BoxTable(numbers, ranges[..., 0], ranges[..., 1], steps, starts, found[0].dims)

    def table(self, targets: int | Sequence[int], source: int | None = None) -> ShardTable | None:
        """Return the pieces of a target block in one table; None if there is none.

        With a `source`, return its pieces for several targets, whose numbers are in `sources`.
        Tables are cached while they are few.
        """
        key = source, targets
        if key in (known := self._tables):  # another thread may replace the dict at any time
            return known[key]
        found = None
        if self._sources is not None and self._targets is not None:
            boxes = self._sources if source is None else self._sources.of(source)
            found = piece_table(boxes, self._targets.of(targets), by_target=source is not None)
        self._kept += 0 if found is None else len(found)
        if self._kept > MOST_KEPT:
            self._tables, self._kept = {}, 0
        self._tables[key] = found
        return found


class ExchangeMap:
    """Shards of an exchange between two layouts; never sent between processes.

    Parameters
    ----------
    source, target : Layout
        Layouts before and after.
    mirror : Mirror or None
        Completion of a half spectrum, if there is one.
    """

    def __init__(self, source: Layout, target: Layout, mirror: Mirror | None = None) -> None:
        self.source, self.target = source, target
        pairs = list(zip(source.axes, target.axes, strict=True))
        #: Array dimensions of each axis of a source block, and of a target block.
        self.source_dims = tuple(len(axis.groups) for axis in source.axes)
        self.target_dims = tuple(len(axis.groups) for axis in target.axes)
        #: Axis of each dimension of a target block, and the dimension within the axis.
        self.places = [(axis, dim) for axis, n in enumerate(self.target_dims) for dim in range(n)]
        self.direct = tuple(AxisExchange(a, b) for a, b in pairs)
        #: Exchanges of all axes, direct and mirrored, and whether values are conjugated.
        self.images = [(self.direct, False)]
        if mirror is not None:
            kinds = {mirror.axis: "half"} | dict.fromkeys(mirror.others, "full")
            turned = (AxisExchange(*p, kinds.get(i), mirror.length) for i, p in enumerate(pairs))
            self.images.append((tuple(turned), True))
        self._products: dict[Any, list[Product]] = {}
        self._copies = 0

    def tables(
        self, targets: Sequence[int | Sequence[int]], source: Block | None = None
    ) -> Iterator[tuple[tuple[ShardTable, ...], bool]]:
        """Yield one table per axis for a target block, and whether its product is conjugated.

        With a `source`, yield its tables for several target blocks along each axis.
        """
        numbers = itertools.repeat(None) if source is None else source
        for axes, conjugate in self.images:
            along = map(AxisExchange.table, axes, targets, numbers)
            found = tuple(table for table in along if table is not None)
            if len(found) == len(axes):
                yield found, conjugate

    def products(self, block: Block, packed: bool) -> "list[Product]":
        """Return the copies into a target block, also of the mirror image; cached while few.

        In `packed` shards the mirror image is already conjugated.
        """
        found = self._products.get((block, packed))
        if found is None:
            found = [Product(self, t, conj and not packed) for t, conj in self.tables(block)]
            size = sum(EACH + len(product.which) for product in found)
            if self._copies + size > MOST_COPIES:
                self._products, self._copies = {}, 0
            if size <= MOST_COPIES:
                self._products[block, packed] = found
                self._copies += size
        return found

    def sources(self, block: tuple[int, ...]) -> set[tuple[int, ...]]:
        """Return the source blocks of a target block."""
        products = (Product(self, tables, False).blocks for tables, _ in self.tables(block))
        return set(itertools.chain.from_iterable(products))


def exchange_map(source: Layout, target: Layout, mirror: Mirror | None = None) -> ExchangeMap:
    """Return the shards of an exchange.

    They are cached for all plans if there are few blocks: for small blocks their computation takes
    as long as the transform. The shards of many blocks are too large to be cached.
    """
    few = max(source.blocks, target.blocks) <= SHARED_BLOCKS
    return _shared_map(source, target, mirror) if few else ExchangeMap(source, target, mirror)


_shared_map = lru_cache(maxsize=16)(ExchangeMap)


def firsts(dims: tuple[int, ...]) -> list[int]:
    """Return the first array dimension of each axis, from the number of dimensions of each.

    >>> firsts((1, 2, 1))
    [0, 1, 3]
    """
    return [0, *itertools.accumulate(dims)][:-1]


class Product:
    """Copies of a block: every combination of one piece per axis.

    Parameters
    ----------
    exchange : ExchangeMap
        Shards of the exchange.
    tables : tuple of ShardTable
        Pieces of each axis; their `sources` are the other blocks along the axis.
    conjugate : bool
        Whether the copies are conjugated.
    """

    def __init__(
        self, exchange: ExchangeMap, tables: tuple[ShardTable, ...], conjugate: bool
    ) -> None:
        self.exchange, self.tables, self.conjugate = exchange, tables, conjugate
        self._gathered: dict[Any, Segments] = {}
        #: Other blocks of the copies: every combination of those of the axes.
        self.blocks: list[Block] = list(itertools.product(*(table.met[0] for table in tables)))

    @cached_property
    def chosen(self) -> Ints:
        """Number of the piece of each axis, for every copy."""
        return np.indices([len(table) for table in self.tables]).reshape(len(self.tables), -1)

    @cached_property
    def which(self) -> Ints:
        """Position in `blocks` of the other block, for every copy."""
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

    def along(self, dim: int) -> int:
        """Return the only digit along a dimension of the block, counted over all axes, or -1.

        Digits with a single value in every copy do not count. They belong to sources in which
        shards are stored one after the other.
        """
        axis, dim = self.exchange.places[dim]
        table = self.tables[axis]
        there = [i for i, d in enumerate(table.target_dims) if d == dim]
        found = [i for i in there if (table.counts[:, i] != 1).any()] or there[-1:]
        if len(found) != 1 or (table.target_steps[:, found[0]] != 1).any():
            return -1
        return sum(len(t.source_dims) for t in self.tables[:axis]) + found[0]

    def in_target(self, strides: tuple[int, ...]) -> tuple[Ints, Ints]:
        """Return starts and strides of all copies in a target with these strides."""
        return self.copies_in("target", np.array([strides], np.int64))

    def copies_in(self, side: str, strides: Ints) -> tuple[Ints, Ints]:
        """Return starts and strides of all copies in the ``"source"`` or ``"target"``.

        `strides` has one row per copy, or a single row for all.
        """
        starts, found = np.zeros(len(self.which), np.int64), []
        begins = firsts(getattr(self.exchange, f"{side}_dims"))
        for table, i, d in zip(self.tables, self.chosen, begins, strict=True):
            places, steps, dims = (
                getattr(table, f"{side}_{n}") for n in ("starts", "steps", "dims")
            )
            starts += (places[i] * strides[:, d : d + places.shape[1]]).sum(axis=1)
            found.append(steps[i] * strides[:, np.array(dims) + d])
        return starts, np.concatenate(found, axis=1)

    def in_packed(self, used: dict[Block, int]) -> tuple[Ints, Ints]:
        """Return starts and strides of all copies in packed shards, in elements.

        `used` has the number of elements in each block's shard before this product, which is added.
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
        self, sources: tuple[Ints, Ints], target_strides: tuple[int, ...], dim: int | None
    ) -> Segments:
        """Return the copies into one target block, with starts and strides in bytes.

        `sources` are starts and strides of the copies in the sources. `dim` is the dimension along
        which the target is cut into tiles.
        """
        count = len(self.which)
        starts, steps = self.in_target(target_strides)
        begins, along, step = np.zeros(count, np.int64), -1, 0
        if dim is not None:
            axis, inner = self.exchange.places[dim]
            begins = self.tables[axis].target_starts[self.chosen[axis]][:, inner]
            along, step = self.along(dim), int(target_strides[dim])
            starts = starts - begins * step
        return Segments(self.counts, *sources, starts, steps, begins, self.conjugate, along, step)

    def gathered(
        self,
        source_strides: tuple[tuple[int, ...], ...],
        target_strides: tuple[int, ...],
        dim: int | None,
    ) -> Segments:
        """Return the copies from source blocks with these strides, see `rows`.

        The result is cached, because the strides are usually the same on the next call.
        """
        key = source_strides, target_strides, dim
        found = self._gathered.get(key)
        if found is None:
            strides = np.array(source_strides, np.int64)[self.which]
            found = self.rows(self.copies_in("source", strides), target_strides, dim)
            self._gathered = {key: found}
        return found
