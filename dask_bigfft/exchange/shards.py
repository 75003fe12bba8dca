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

Imports `decomposition`, `boxes` of this room and numpy only: needs neither dask nor an array.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, cast

import numpy as np

from dask_bigfft.decomposition.layout import AxisLayout, Digit, Layout, radix_points, sub_radices
from dask_bigfft.decomposition.rounds import Mirror
from dask_bigfft.exchange.boxes import (
    Box,
    BoxTable,
    Ints,
    box_table,
    flat_strides,
    mirror_full,
    mirror_half,
    refined,
    stored_boxes,
)

#: Pieces that the exchange of one axis remembers at most.
MOST_KEPT = 200_000

#: Blocks before or after an exchange up to which others of the same layouts find it worked out.
SHARED_BLOCKS = 128

_UNKNOWN = object()


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


#: Blocks along an axis, and their boxes.
_Stacked = tuple[tuple[int, ...], BoxTable | None]


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
    _tables: dict[Any, PieceTable | None] = field(default_factory=dict, repr=False)
    _kept: int = 0
    #: Blocks and all their boxes in one table: the last ones that were asked for.
    _came: _Stacked = ((), None)
    _goes: _Stacked = ((), None)

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
            for box in stored_boxes(self.source, block):
                for image in self._images(box, digits):
                    found += refined(image, digits, self.points)
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
            for box in stored_boxes(self.target, block)
            for fine in refined(box, digits, self.points)
        ]

    def table(self, block: int) -> PieceTable | None:
        """The pieces of a target block in one table.

        Made of tables of boxes, not box by box: thousands of small objects for every block would
        take the interpreter, and its garbage collector, longer than the copies do.
        """

        def made() -> PieceTable | None:
            targets = self.target_boxes(block)
            sources = self._sources(tuple(self._candidates(targets)))
            if sources is None or not targets:
                return None
            return piece_table(sources, box_table([(block, box) for box in targets]))

        return self._remembered(block, made)

    def given(self, source: int, targets: Sequence[int]) -> PieceTable | None:
        """The pieces that a source block gives to some target blocks, which its `sources` are."""

        def made() -> PieceTable | None:
            came, goes = self._sources((source,)), self._targets(tuple(targets))
            return None if came is None or goes is None else piece_table(came, goes, by_target=True)

        return self._remembered((source, targets), made)

    def _sources(self, blocks: tuple[int, ...]) -> BoxTable | None:
        known, found = self._came
        if known != blocks:
            boxes = [(i, box) for i in blocks for box in self.source_boxes(i)]
            found = box_table(boxes) if boxes else None
            self._came = blocks, found
        return found

    def _targets(self, blocks: tuple[int, ...]) -> BoxTable | None:
        known, found = self._goes
        if known != blocks:
            boxes = [(i, box) for i in blocks for box in self.target_boxes(i)]
            found = box_table(boxes) if boxes else None
            self._goes = blocks, found
        return found

    def _remembered(self, key: Any, made: Callable[[], PieceTable | None]) -> PieceTable | None:
        """Remember a table while they are few: blocks of other axes ask for the same ones."""
        found: Any = self._tables.get(key, _UNKNOWN)
        if found is _UNKNOWN:  # another thread may empty the memory at any time
            found = made()
            self._kept += 0 if found is None else len(found)
            if self._kept > MOST_KEPT:
                self._tables, self._source_boxes, self._kept = {}, {}, 0
            self._tables[key] = found
        return cast("PieceTable | None", found)

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
            for s in flat_strides(tuple(digit.size for digit in group.digits))
        ]
        order = sorted(range(len(digits)), key=lambda i: (digits[i].stage, -digits[i].stride))
        places = []
        for i in order:
            flat = flat_strides(sub_radices(digits[i], self.points[digits[i].stage]))
            places += [(dims[i], strides[i] * f) for f in flat]
        return places


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
        #: What others have worked out from the tables of blocks, and how much it is.
        self.known: dict[Any, Any] = {}
        self.known_size = 0

    def axis_dim(self, dim: int) -> tuple[int, int]:
        """Return the axis of a dimension of a target block, and the dimension within the axis."""
        for axis, count in enumerate(self.target_dims):
            if dim < count:
                return axis, dim
            dim -= count
        raise IndexError(dim)

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
