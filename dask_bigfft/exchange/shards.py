"""Shard arithmetic: what of a source block goes where in a target block.

Every axis is worked out alone, because a block is a product over its axes.  Along one axis::

    block --> boxes of digits         an interval of flattened digits is a head, a body
                                      and a tail: at most 2m - 1 boxes for m digits
    boxes --> boxes of common digits  both layouts' digits are cut at each other's ends
    source box  n  target box         one strided copy: a *piece*

and a shard of an n-dimensional block is the product of its axes' pieces.

Half a spectrum (of real data) is completed by its mirror image, X[N - k] = conj X[k]: the
source's boxes are reflected (negative strides), on the real axis by N - k, on the other
transformed axes by -k modulo their length, and what they add is copied conjugated.

Imports `decomposition`, `kernels` and numpy only: needs neither dask nor an array.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

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
from dask_bigfft.kernels.copies import Segments

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Box:
    """A box of digits inside a block's axis, and where it lies in the block.

    ``ranges`` are the values of every digit, ``dims`` the array dimension (counted within the
    axis) that holds the digit, ``steps`` the distance there from one value to the next
    (negative where mirrored), ``starts`` the place of the box's first element per dimension.
    """

    ranges: Ranges
    dims: tuple[int, ...]
    steps: tuple[int, ...]
    starts: tuple[int, ...]


def flat_strides(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides of flattened digits.

    >>> flat_strides((3, 4, 5))
    (20, 5, 1)
    """
    return tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))


def stored_boxes(layout: AxisLayout, block: int) -> Iterator[Box]:
    """Boxes of a block in the layout's own digits."""
    per_group: list[list[tuple[Ranges, tuple[int, ...], int]]] = []
    for group, chunk in zip(layout.groups, layout.chunk_of(block), strict=True):
        sizes = tuple(digit.size for digit in group.digits)
        found = []
        for low, high, at, step in group.runs(chunk):
            steps = tuple(step * s for s in flat_strides(sizes))
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
    """The box with values v of digits replaced by ``constant - v``.

    By digit: the first v, the one behind the last, and the constant.
    """
    ranges, steps, starts = list(box.ranges), list(box.steps), list(box.starts)
    for i, (low, high, constant) in turned.items():
        starts[box.dims[i]] += (high - 1 - ranges[i][0]) * steps[i]
        ranges[i], steps[i] = (constant - high + 1, constant - low + 1), -steps[i]
    return Box(tuple(ranges), box.dims, tuple(steps), tuple(starts))


def mirror_half(box: Box, digits: tuple[Digit, ...], length: int) -> Iterator[Box]:
    """Where N - k lies for the half spectrum's places k of a box, as far as it is new.

    The digit of stride 1 is partial: of its values only the reflected ones that are not
    stored themselves are given, so nothing is covered twice.
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
    """Where -k modulo N lies for the places k of a box.

    -k keeps the zeros at the low end of k, turns the lowest other digit v into radix - v
    and the higher ones into radix - 1 - v.
    """
    ascending = sorted(range(len(digits)), key=lambda i: digits[i].stride)
    # A lone digit may have room for more than N values (an axis padded by Bluestein's algorithm).
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
    """The box in the finer digits between `points`, sorted by stage and falling stride."""
    order = sorted(range(len(digits)), key=lambda i: (digits[i].stage, -digits[i].stride))
    choices = []
    for i in order:
        sizes = sub_radices(digits[i], points[digits[i].stage])
        flat = flat_strides(sizes)
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

    A table, not one object per box: thousands of small objects would take the interpreter, and its
    garbage collector, longer than the copies do.

    Parameters
    ----------
    blocks : ndarray, (rows,)
        Block of each.
    lows, highs, steps : ndarray, (rows, digits)
        As a `Box` has them.
    starts : ndarray, (rows, dimensions)
        As a `Box` has them.
    dims : tuple of int
        Dimension of each digit, the same in all rows.
    """

    blocks: Ints
    lows: Ints
    highs: Ints
    steps: Ints
    starts: Ints
    dims: tuple[int, ...]

    def of(self, blocks: int | Sequence[int]) -> BoxTable:
        """Return the boxes of some blocks."""
        rows = np.isin(self.blocks, blocks)
        lows, highs, steps = self.lows[rows], self.highs[rows], self.steps[rows]
        return BoxTable(self.blocks[rows], lows, highs, steps, self.starts[rows], self.dims)

    def moved(self, rows: Ints, lows: Ints) -> Ints:
        """Starts of the parts of some boxes that begin at digit values `lows`."""
        starts, distances = self.starts[rows], (lows - self.lows[rows]) * self.steps[rows]
        for digit, dim in enumerate(self.dims):
            starts[:, dim] += distances[:, digit]
        return starts


#: Pieces that the exchange of one axis remembers at most.
MOST_KEPT = 200_000

#: Blocks before or after an exchange up to which others of the same layouts find it worked out.
SHARED_BLOCKS = 128

Block = tuple[int, ...]

#: Copies of an exchange that are remembered at most, and what a product of them counts beside.
MOST_COPIES, EACH = 1 << 15, 1 << 4


@dataclass(frozen=True, eq=False)
class PieceTable:
    """All pieces of one axis of a target block, or of a source block, one row each.

    A piece is one strided copy along the axis.

    Parameters
    ----------
    sources : ndarray, (rows,)
        Source block along the axis (of a source block's pieces: target block).
    counts : ndarray, (rows, digits)
        Number of values of each digit.
    source_steps, target_steps : ndarray, (rows, digits)
        Distance between them in the digit's dimension of the block.
    source_starts, target_starts : ndarray, (rows, dimensions)
        Where the first one is.
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
        """The blocks that are met, in order, and for every row which of them it is.

        Blocks of other axes are combined with the same ones, so it is worked out once.
        """
        different, which = np.unique(self.sources, return_inverse=True)
        return different.tolist(), which.reshape(-1)

    @cached_property
    def size(self) -> int:
        """Number of values."""
        return int(self.counts.prod(axis=1).sum())


def piece_table(
    source: BoxTable, target: BoxTable, *, by_target: bool = False
) -> PieceTable | None:
    """What the boxes of two tables have in common; None if that is nothing.

    The blocks that are met are those of the sources, or `by_target` those of the targets. The
    pieces of two blocks stand in the same order both ways.
    """
    lows = np.maximum(source.lows[:, None], target.lows[None])
    highs = np.minimum(source.highs[:, None], target.highs[None])
    came, goes = np.nonzero((lows < highs).all(axis=2))
    if by_target:
        order = np.argsort(target.blocks[goes], kind="stable")
        came, goes = came[order], goes[order]
    if not len(came):
        return None
    lows, highs = lows[came, goes], highs[came, goes]
    return PieceTable(
        target.blocks[goes] if by_target else source.blocks[came],
        highs - lows,
        source.steps[came],
        target.steps[goes],
        source.moved(came, lows),
        target.moved(goes, lows),
        source.dims,
        target.dims,
    )


class AxisExchange:
    """The pieces of one axis, worked out when asked for and kept.

    Parameters
    ----------
    source, target : AxisLayout
        Layouts of the axis before and after.
    mirror : {"half", "full"} or None
        Whether the source's mirror image is meant, on the real axis or on another one.
    length : int
        N of the real axis, with ``mirror="half"``.
    """

    def __init__(
        self, source: AxisLayout, target: AxisLayout, mirror: str | None = None, length: int = 0
    ) -> None:
        self.source, self.target, self.mirror, self.length = source, target, mirror, length
        #: Ends of the common digits.
        self.points = radix_points(source, target)
        self._tables: dict[Any, PieceTable | None] = {}
        self._kept = 0

    @cached_property
    def _sources(self) -> BoxTable | None:
        """Boxes of all source blocks, reflected where the mirror is meant."""
        return self._boxes(self.source, self.mirror)

    @cached_property
    def _targets(self) -> BoxTable | None:
        return self._boxes(self.target, None)

    def _boxes(self, layout: AxisLayout, mirror: str | None) -> BoxTable | None:
        """Boxes of all blocks of a layout in common digits; None if there is none."""
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

    def table(self, targets: int | Sequence[int], source: int | None = None) -> PieceTable | None:
        """Return the pieces of a target block in one table; None if there is none.

        With a `source`, those that this block gives to the targets, which its `sources` are.
        Tables are remembered while they are few.
        """
        key = source, targets
        if key in (known := self._tables):  # another thread may replace it at any time
            return known[key]
        found = None
        if self._sources is not None and self._targets is not None:
            came = self._sources if source is None else self._sources.of(source)
            found = piece_table(came, self._targets.of(targets), by_target=source is not None)
        self._kept += 0 if found is None else len(found)
        if self._kept > MOST_KEPT:
            self._tables, self._kept = {}, 0
        self._tables[key] = found
        return found


class ExchangeMap:
    """All shards of an exchange between two layouts; made where it is used, never sent.

    Parameters
    ----------
    source, target : Layout
        Layouts before and after.
    mirror : Mirror or None
        How half a spectrum is completed on the way.
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
        #: Exchanges of all axes, as they are and mirrored, and whether that conjugates.
        self.images = [(self.direct, False)]
        if mirror is not None:
            kinds = {mirror.axis: "half"} | dict.fromkeys(mirror.others, "full")
            turned = (AxisExchange(*p, kinds.get(i), mirror.length) for i, p in enumerate(pairs))
            self.images.append((tuple(turned), True))
        self._products: dict[Any, list[Product]] = {}
        self._copies = 0

    def tables(
        self, targets: Sequence[int | Sequence[int]], source: Block | None = None
    ) -> Iterator[tuple[tuple[PieceTable, ...], bool]]:
        """Yield one table per axis for a target block, and whether its product is conjugated.

        With a `source`, for what this block gives to target blocks along each axis.
        """
        numbers = itertools.repeat(None) if source is None else source
        for axes, conjugate in self.images:
            along = map(AxisExchange.table, axes, targets, numbers)
            found = tuple(table for table in along if table is not None)
            if len(found) == len(axes):
                yield found, conjugate

    def products(self, block: Block, packed: bool) -> list[Product]:
        """The copies into a target block, and those of the mirror image; remembered while few.

        In `packed` shards the latter are conjugated already.
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
        """Source blocks of a target block."""
        found: set[tuple[int, ...]] = set()
        for tables, _ in self.tables(block):
            per_axis = [np.unique(table.sources).tolist() for table in tables]
            found.update(itertools.product(*per_axis))
        return found


def exchange_map(source: Layout, target: Layout, mirror: Mirror | None = None) -> ExchangeMap:
    """Return the shards of an exchange.

    Those of few blocks are worked out once in this process: where blocks are small, that takes as
    long as the transform, and the next array has the same chunks. Those of many are too large to be
    kept for anybody else.
    """
    few = max(source.blocks, target.blocks) <= SHARED_BLOCKS
    return _shared_map(source, target, mirror) if few else ExchangeMap(source, target, mirror)


@lru_cache(maxsize=16)
def _shared_map(source: Layout, target: Layout, mirror: Mirror | None) -> ExchangeMap:
    return ExchangeMap(source, target, mirror)


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
    exchange : ExchangeMap
        The shards.
    tables : tuple of PieceTable
        Pieces of each axis; their `sources` number the blocks that are met along it.
    conjugate : bool
        Whether the copies are conjugated.
    """

    def __init__(
        self, exchange: ExchangeMap, tables: tuple[PieceTable, ...], conjugate: bool
    ) -> None:
        self.exchange, self.tables, self.conjugate = exchange, tables, conjugate
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

    def along(self, dim: int) -> int:
        """The one digit that runs along a dimension of the block, counted over all axes, or -1.

        Digits of which every copy has a single value run along nothing: they are those of sources
        in whose memory shards lie one after the other.
        """
        axis, dim = self.exchange.places[dim]
        table = self.tables[axis]
        there = [i for i, d in enumerate(table.target_dims) if d == dim]
        found = [i for i in there if (table.counts[:, i] != 1).any()] or there[-1:]
        if len(found) != 1 or (table.target_steps[:, found[0]] != 1).any():
            return -1
        return sum(len(t.source_dims) for t in self.tables[:axis]) + found[0]

    def in_sources(self, strides: Ints) -> tuple[Ints, Ints]:
        """Starts and strides of all copies in the sources, whose strides have a row per copy.

        One row does for all if the strides are the same.
        """
        return self._places("source", strides)

    def in_target(self, strides: tuple[int, ...]) -> tuple[Ints, Ints]:
        """Starts and strides of all copies in a target with these strides."""
        return self._places("target", np.array([strides], np.int64))

    def _places(self, side: str, strides: Ints) -> tuple[Ints, Ints]:
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
        self, sources: tuple[Ints, Ints], target_strides: tuple[int, ...], dim: int | None
    ) -> Segments:
        """The copies into one target block, starts and strides in bytes.

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
        """The copies from source blocks of some strides, as `rows` has them.

        Blocks lie in memory as they did the last time, so it is worked out once.
        """
        key = source_strides, target_strides, dim
        found = self._gathered.get(key)
        if found is None:
            strides = np.array(source_strides, np.int64)[self.which]
            found = self.rows(self.in_sources(strides), target_strides, dim)
            self._gathered = {key: found}
        return found
