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

Imports `decomposition` and numpy only: needs neither dask nor an array.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

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

Ints = npt.NDArray[np.int64]

#: Pieces that the exchange of one axis remembers at most.
MOST_KEPT = 50_000

_UNKNOWN = object()


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


@dataclass(frozen=True, slots=True)
class Piece:
    """One strided copy along one axis.

    ``counts[i]`` values, ``source_steps[i]`` apart in dimension ``source_dims[i]`` of the
    source block and likewise in the target block, from ``source_starts`` (one entry per
    dimension of the axis) to ``target_starts``.
    """

    counts: tuple[int, ...]
    source_dims: tuple[int, ...]
    source_steps: tuple[int, ...]
    source_starts: tuple[int, ...]
    target_dims: tuple[int, ...]
    target_steps: tuple[int, ...]
    target_starts: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(self.counts)


def _flat_strides(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides of flattened digits.

    >>> _flat_strides((3, 4, 5))
    (20, 5, 1)
    """
    return tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))


def _stored_boxes(layout: AxisLayout, block: int) -> Iterator[Box]:
    """Boxes of a block in the layout's own digits."""
    per_group: list[list[tuple[Ranges, tuple[int, ...], int]]] = []
    for group, chunk in zip(layout.groups, layout.chunk_of(block), strict=True):
        sizes = tuple(digit.size for digit in group.digits)
        found = []
        for low, high, at, step in group.runs(chunk):
            steps = tuple(step * s for s in _flat_strides(sizes))
            for ranges in interval_boxes(low, high, sizes):
                at_first = at + sum(r[0] * s for r, s in zip(ranges, steps, strict=True))
                found.append((ranges, steps, at_first - low * step))
        per_group.append(found)
    dims = tuple(d for d, group in enumerate(layout.groups) for _ in group.digits)
    for parts in itertools.product(*per_group):
        yield Box(
            tuple(r for part in parts for r in part[0]),
            dims,
            tuple(s for part in parts for s in part[1]),
            tuple(part[2] for part in parts),
        )


def _reflected(box: Box, digit: int, low: int, high: int, constant: int) -> Box:
    """The box with one digit's values v replaced by ``constant - v``, v in low..high-1."""
    (start, _), step, dim = box.ranges[digit], box.steps[digit], box.dims[digit]
    starts = list(box.starts)
    starts[dim] += (high - 1 - start) * step
    ranges, steps = list(box.ranges), list(box.steps)
    ranges[digit] = (constant - high + 1, constant - low + 1)
    steps[digit] = -step
    return Box(tuple(ranges), box.dims, tuple(steps), tuple(starts))


def _complemented(box: Box, digits: tuple[Digit, ...], which: list[int]) -> Box:
    """The box with the values v of some digits replaced by radix - 1 - v."""
    for i in which:
        low, high = box.ranges[i]
        box = _reflected(box, i, low, high, digits[i].radix - 1)
    return box


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
    others = [i for i in range(len(digits)) if i != partial]
    yield _complemented(_reflected(box, partial, low, high, period), digits, others)


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
            turned = _reflected(zeros, i, start, high, moduli[i])
            yield _complemented(turned, digits, ascending[place + 1 :])
        if low > 0:
            return
        ranges = list(zeros.ranges)
        ranges[i] = (0, 1)
        zeros = Box(tuple(ranges), zeros.dims, zeros.steps, zeros.starts)
    yield zeros


def _refined(
    box: Box, digits: tuple[Digit, ...], points: dict[int, tuple[int, ...]]
) -> Iterator[Box]:
    """The box in the finer digits between `points`, sorted by stage and falling stride."""
    order = sorted(range(len(digits)), key=lambda i: (digits[i].stage, -digits[i].stride))
    choices = []
    for i in order:
        sizes = sub_radices(digits[i], points[digits[i].stage])
        flat = _flat_strides(sizes)
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


def _moved(box: Box, lows: tuple[int, ...]) -> tuple[int, ...]:
    """Starts of the part of a box that begins at digit values `lows`."""
    starts = list(box.starts)
    for low, (first, _), step, dim in zip(lows, box.ranges, box.steps, box.dims, strict=True):
        starts[dim] += (low - first) * step
    return tuple(starts)


def meet(source: Box, target: Box) -> Piece | None:
    """The copy of what two boxes of the same digits have in common, if anything."""
    lows = tuple(max(a[0], b[0]) for a, b in zip(source.ranges, target.ranges, strict=True))
    highs = tuple(min(a[1], b[1]) for a, b in zip(source.ranges, target.ranges, strict=True))
    if any(low >= high for low, high in zip(lows, highs, strict=True)):
        return None
    return Piece(
        tuple(high - low for low, high in zip(lows, highs, strict=True)),
        source.dims,
        source.steps,
        _moved(source, lows),
        target.dims,
        target.steps,
        _moved(target, lows),
    )


@dataclass(frozen=True, eq=False)
class PieceTable:
    """All pieces of one axis of a target block, one row each.

    Parameters
    ----------
    sources : ndarray, (rows,)
        Source block along the axis.
    counts, source_steps, target_steps : ndarray, (rows, digits)
        As a `Piece` has them.
    source_starts, target_starts : ndarray, (rows, dimensions)
        As a `Piece` has them.
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


def piece_table(pieces: dict[int, list[Piece]]) -> PieceTable | None:
    """The pieces of a target block in one table; None if there are none."""
    rows = [(source, piece) for source, found in pieces.items() for piece in found]
    if not rows:
        return None

    def column(name: str) -> Ints:
        return np.array([getattr(piece, name) for _, piece in rows], np.int64)

    return PieceTable(
        np.array([source for source, _ in rows], np.int64),
        column("counts"),
        column("source_steps"),
        column("target_steps"),
        column("source_starts"),
        column("target_starts"),
        rows[0][1].source_dims,
        rows[0][1].target_dims,
    )


@dataclass
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

    source: AxisLayout
    target: AxisLayout
    mirror: str | None = None
    length: int = 0
    _source_boxes: dict[int, list[Box]] = field(default_factory=dict, repr=False)
    _pieces: dict[int, dict[int, list[Piece]]] = field(default_factory=dict, repr=False)
    _tables: dict[int, PieceTable | None] = field(default_factory=dict, repr=False)
    _kept: int = 0

    @cached_property
    def points(self) -> dict[int, tuple[int, ...]]:
        """Ends of the common digits."""
        return radix_points(self.source, self.target)

    def source_boxes(self, block: int) -> list[Box]:
        """Boxes of a source block in common digits, reflected where the mirror is meant."""
        found = self._source_boxes.get(block)
        if found is None:
            digits = self.source.digits
            found = []
            for box in _stored_boxes(self.source, block):
                for image in self._images(box, digits):
                    found += _refined(image, digits, self.points)
            self._source_boxes[block] = found
        return found

    def _images(self, box: Box, digits: tuple[Digit, ...]) -> Iterator[Box]:
        if self.mirror is None:
            return iter((box,))
        if self.mirror == "half":
            return mirror_half(box, digits, self.length)
        return mirror_full(box, digits)

    def target_boxes(self, block: int) -> list[Box]:
        """Boxes of a target block in common digits."""
        digits = self.target.digits
        return [
            fine
            for box in _stored_boxes(self.target, block)
            for fine in _refined(box, digits, self.points)
        ]

    def pieces(self, block: int) -> dict[int, list[Piece]]:
        """Source blocks of a target block, each with its pieces."""
        found = self._pieces.get(block)
        if found is None:
            found = self._pieces[block] = self._met(block)
            self._keep(found)
        return found

    def _met(self, block: int) -> dict[int, list[Piece]]:
        """Source blocks of a target block, each with its pieces, worked out."""
        targets, found = self.target_boxes(block), dict[int, list[Piece]]()
        for candidate in self._candidates(targets):
            pairs = itertools.product(self.source_boxes(candidate), targets)
            met = [piece for a, b in pairs if (piece := meet(a, b)) is not None]
            if met:
                found[candidate] = met
        return found

    def table(self, block: int) -> PieceTable | None:
        """The pieces of a target block in one table.

        Where only this is asked for, the pieces are not kept: thousands of small objects that live
        long are what Python's garbage collector goes through, again and again.
        """
        found = self._tables.get(block, _UNKNOWN)
        if found is _UNKNOWN:  # another thread may empty the memory at any time
            known = self._pieces.get(block)
            pieces = self._met(block) if known is None else known
            found = self._tables[block] = piece_table(pieces)
            self._keep(pieces)
        return found  # type: ignore[return-value]

    def between(self, block: int, source: int) -> list[Piece] | None:
        """The pieces that one source block gives to a target block, or None."""
        known = self._pieces.get(block)
        if known is not None:
            return known.get(source)
        pairs = itertools.product(self.source_boxes(source), self.target_boxes(block))
        return [piece for a, b in pairs if (piece := meet(a, b)) is not None] or None

    def _keep(self, found: dict[int, list[Piece]]) -> None:
        """Remember pieces while they are few: blocks of other axes ask for the same ones."""
        self._kept += sum(map(len, found.values()))
        if self._kept > MOST_KEPT:
            self._pieces.clear()
            self._tables.clear()
            self._source_boxes.clear()
            self._kept = 0

    def _candidates(self, targets: list[Box]) -> Iterator[int]:
        """Source blocks that may meet any of the target's boxes."""
        if not targets:
            return iter(())
        if self.mirror is not None:
            return iter(range(self.source.blocks))
        order = self._places()
        lows = [min(box.ranges[i][0] for box in targets) for i in range(len(order))]
        highs = [max(box.ranges[i][1] for box in targets) for i in range(len(order))]
        ranges = []
        for dim, group in enumerate(self.source.groups):
            mine = [(i, stride) for i, (d, stride) in enumerate(order) if d == dim]
            first = sum(lows[i] * stride for i, stride in mine)
            last = sum((highs[i] - 1) * stride for i, stride in mine)
            ranges.append(group.chunks_touching(first, min(last + 1, group.size)))
        return map(self.source.block_of, itertools.product(*ranges))

    def _places(self) -> list[tuple[int, int]]:
        """Dimension and flat stride in the source of every common digit."""
        digits = self.source.digits
        dims = [d for d, group in enumerate(self.source.groups) for _ in group.digits]
        strides = [
            s
            for group in self.source.groups
            for s in _flat_strides(tuple(digit.size for digit in group.digits))
        ]
        order = sorted(range(len(digits)), key=lambda i: (digits[i].stage, -digits[i].stride))
        places = []
        for i in order:
            flat = _flat_strides(sub_radices(digits[i], self.points[digits[i].stage]))
            places += [(dims[i], strides[i] * f) for f in flat]
        return places


@dataclass(frozen=True)
class Shard:
    """What one source block gives to a target block: pieces per axis, conjugated or not."""

    source: tuple[int, ...]
    pieces: tuple[list[Piece], ...]
    conjugate: bool = False


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
        self.direct = tuple(AxisExchange(a, b) for a, b in pairs)
        self.mirrored: tuple[AxisExchange, ...] = ()
        if mirror is not None:
            kinds = {mirror.axis: "half"} | dict.fromkeys(mirror.others, "full")
            self.mirrored = tuple(
                AxisExchange(a, b, kinds.get(i), mirror.length) for i, (a, b) in enumerate(pairs)
            )

    @property
    def images(self) -> Iterator[tuple[tuple[AxisExchange, ...], bool]]:
        """Exchanges of all axes, as they are and mirrored, and whether that conjugates."""
        yield self.direct, False
        if self.mirrored:
            yield self.mirrored, True

    def tables(self, block: tuple[int, ...]) -> Iterator[tuple[tuple[PieceTable, ...], bool]]:
        """One table per axis for a target block, and whether its product is conjugated."""
        for axes, conjugate in self.images:
            found = [axis.table(i) for axis, i in zip(axes, block, strict=True)]
            if all(table is not None for table in found):
                yield tuple(table for table in found if table is not None), conjugate

    def sources(self, block: tuple[int, ...]) -> set[tuple[int, ...]]:
        """Source blocks of a target block."""
        found: set[tuple[int, ...]] = set()
        for axes, _ in self.images:
            per_axis = [axis.pieces(i) for axis, i in zip(axes, block, strict=True)]
            found.update(itertools.product(*per_axis))
        return found

    def shards(self, block: tuple[int, ...]) -> Iterator[Shard]:
        """Shards of a target block, source by source, the mirrored ones after the direct."""
        for axes, conjugate in self.images:
            per_axis = [axis.pieces(i) for axis, i in zip(axes, block, strict=True)]
            for chosen in itertools.product(*(found.items() for found in per_axis)):
                source = tuple(i for i, _ in chosen)
                yield Shard(source, tuple(pieces for _, pieces in chosen), conjugate)
