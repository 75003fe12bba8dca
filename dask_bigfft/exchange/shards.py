"""Shards of an exchange: the strided copies from source blocks to target blocks.

Every axis is treated separately, because a block is a product over its axes (`tiles.pieces` has the
pieces of an axis). A shard of an n-dimensional block is the product of its axes' pieces.

The half spectrum of real data is completed by its mirror image, X[N - k] = conj X[k]. The boxes of
the source are reflected (negative steps): by N - k on the real axis, and by -k modulo the length on
the other transformed axes. Their values are copied conjugated.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from dask_bigfft.arrays import Block, Ints
from dask_bigfft.kernels.copies import Segments
from dask_bigfft.tiles.pieces import Pieces, negated, negated_half, refined, stored
from dask_bigfft.transforms.exchanges import Mirror
from dask_bigfft.transforms.layout import AxisLayout, Layout, radix_points

#: Maximum number of cached pieces of one axis.
MAX_CACHED_PIECES = 200_000

#: Maximum number of blocks before or after an exchange for which all plans share its tables.
SHARED_BLOCKS = 128


#: Maximum number of cached copies of an exchange.
MAX_CACHED_COPIES = 1 << 15

#: Overhead of a cached product, in copies.
PRODUCT_OVERHEAD = 1 << 4


class AxisPieces:
    """Pieces between the blocks of two layouts of an axis, met on demand and cached.

    Side 0 of the pieces has their places in source blocks, side 1 those in target blocks.

    Parameters
    ----------
    source, target : AxisLayout
        Layouts of the axis before and after.
    image : {"half", "full"} or None
        Mirror image of the source, on the real axis or on another one; None for the source itself.
    length : int
        N of the real axis, with ``image="half"``.
    """

    def __init__(
        self,
        source: AxisLayout,
        target: AxisLayout,
        image: str | None = None,
        length: int = 0,
    ) -> None:
        self.source = source
        self.target = target
        self.image = image
        self.length = length
        #: Ends of the common digits.
        self.points = radix_points(source, target)
        self._cached: dict[Any, Pieces] = {}
        self._cached_rows = 0

    @cached_property
    def _sources(self) -> Pieces:
        """Boxes of all source blocks in common digits."""
        table = stored(self.source)
        if self.image == "half":
            table = negated_half(table, self.source.digits, self.length)
        elif self.image == "full":
            table = negated(table, self.source.digits)
        return refined(table, self.source.digits, self.points)

    @cached_property
    def _targets(self) -> Pieces:
        """Boxes of all target blocks in common digits."""
        return refined(stored(self.target), self.target.digits, self.points)

    def into(self, targets: int | Sequence[int], source: int | None = None) -> Pieces:
        """Return the pieces of a target block, or those of a source block for several targets.

        They are sorted by the blocks of the other side, and those between two blocks have the same
        order in both cases. They are cached while they are few.
        """
        key = source, targets
        pieces = self._cached.get(key)  # another thread may replace the dict at any time
        if pieces is not None:
            return pieces
        target_boxes = self._targets.of_blocks(targets)
        if source is None:
            pieces = self._sources.meet(target_boxes)
        else:
            pieces = self._sources.of_blocks(source).meet(target_boxes)
            pieces = pieces.rows(np.argsort(pieces.sides[1].blocks, kind="stable"))
        self._cached_rows += len(pieces)
        if self._cached_rows > MAX_CACHED_PIECES:
            self._cached = {}
            self._cached_rows = 0
        self._cached[key] = pieces
        return pieces


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
        self.source = source
        self.target = target
        #: Array dimensions of each axis of a source block, and of a target block.
        self.source_dims = tuple(len(axis.groups) for axis in source.axes)
        self.target_dims = tuple(len(axis.groups) for axis in target.axes)
        #: Axis of each dimension of a target block, and the dimension within the axis.
        self.places = [(axis, dim) for axis, n in enumerate(self.target_dims) for dim in range(n)]
        pairs = list(zip(source.axes, target.axes, strict=True))
        self.direct = tuple(AxisPieces(before, after) for before, after in pairs)
        #: Pieces of all axes, direct and mirrored, and whether values are conjugated.
        self.images = [(self.direct, False)]
        if mirror is not None:
            kinds = {mirror.axis: "half"} | dict.fromkeys(mirror.others, "full")
            reflected = tuple(
                AxisPieces(
                    before,
                    after,
                    kinds.get(axis),
                    mirror.length,
                )
                for axis, (before, after) in enumerate(pairs)
            )
            self.images.append((reflected, True))
        self._products: dict[Any, list[Product]] = {}
        self._cached_copies = 0

    def pieces(
        self, targets: Sequence[int | Sequence[int]], source: Block | None = None
    ) -> Iterator[tuple[tuple[Pieces, ...], bool]]:
        """Yield the pieces of each axis of a target block, and whether they are conjugated.

        With a `source`, yield its pieces for several target blocks along each axis.
        """
        sources = [None] * len(self.direct) if source is None else source
        for axes, conjugate in self.images:
            pieces = tuple(
                map(
                    AxisPieces.into,
                    axes,
                    targets,
                    sources,
                )
            )
            if all(map(len, pieces)):
                yield pieces, conjugate

    def products(self, block: Block, packed: bool) -> "list[Product]":
        """Return the copies into a target block, also of the mirror image; cached while few.

        In `packed` shards the mirror image is already conjugated.
        """
        products = self._products.get((block, packed))
        if products is not None:
            return products
        products = [
            Product(self, pieces, conjugate and not packed)
            for pieces, conjugate in self.pieces(block)
        ]
        copies = sum(PRODUCT_OVERHEAD + len(product.which) for product in products)
        if self._cached_copies + copies > MAX_CACHED_COPIES:
            self._products = {}
            self._cached_copies = 0
        if copies <= MAX_CACHED_COPIES:
            self._products[block, packed] = products
            self._cached_copies += copies
        return products

    def sources(self, block: Block) -> set[Block]:
        """Return the source blocks of a target block."""
        blocks: set[Block] = set()
        for pieces, _ in self.pieces(block):
            blocks |= set(Product(self, pieces, False).blocks)
        return blocks


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
    axes : tuple of Pieces
        Pieces of each axis.
    conjugate : bool
        Whether the copies are conjugated.
    other : int
        Side of the pieces that has several blocks: 0 for the copies into a target block, 1 for
        those out of a source block.
    """

    def __init__(
        self,
        exchange: ExchangeMap,
        axes: tuple[Pieces, ...],
        conjugate: bool,
        other: int = 0,
    ) -> None:
        self.exchange = exchange
        self.axes = axes
        self.conjugate = conjugate
        self.other = other
        self._gathered: dict[Any, Segments] = {}
        names = (pieces.sides[other].distinct[0] for pieces in axes)
        #: Blocks of the other side: every combination of those of the axes.
        self.blocks: list[Block] = list(itertools.product(*names))

    @cached_property
    def chosen(self) -> Ints:
        """Number of the piece of each axis, for every copy."""
        sizes = [len(pieces) for pieces in self.axes]
        return np.indices(sizes).reshape(len(sizes), -1)

    @cached_property
    def which(self) -> Ints:
        """Position in `blocks` of the other block, for every copy."""
        positions = np.zeros(1, np.int64)
        for pieces in self.axes:
            names, own_positions = pieces.sides[self.other].distinct
            positions = np.add.outer(positions * len(names), own_positions).reshape(-1)
        return positions

    @property
    def size(self) -> int:
        """Number of values copied."""
        return math.prod(pieces.size for pieces in self.axes)

    @cached_property
    def counts(self) -> Ints:
        """Number of values of every copy along every digit, axis after axis."""
        pairs = zip(self.axes, self.chosen, strict=True)
        return np.concatenate([pieces.counts[rows] for pieces, rows in pairs], axis=1)

    def along(self, dim: int) -> int:
        """Return the only digit along a dimension of the block, counted over all axes, or -1.

        Digits with a single value in every copy do not count. They belong to sources in which
        shards are stored one after the other.
        """
        axis, inner = self.exchange.places[dim]
        pieces = self.axes[axis]
        side = pieces.sides[1]
        digits = [digit for digit, own_dim in enumerate(side.dims) if own_dim == inner]
        several = [digit for digit in digits if (pieces.counts[:, digit] != 1).any()]
        candidates = several or digits[-1:]
        if len(candidates) != 1 or (side.steps[:, candidates[0]] != 1).any():
            return -1
        digits_before = sum(len(before.sides[1].dims) for before in self.axes[:axis])
        return digits_before + candidates[0]

    def in_target(self, strides: tuple[int, ...]) -> tuple[Ints, Ints]:
        """Return starts and strides of all copies in a target with these strides."""
        return self.places(1, np.array([strides], np.int64))

    def places(self, side: int, strides: Ints) -> tuple[Ints, Ints]:
        """Return starts and strides of all copies in the sources (side 0) or in the target (1).

        `strides` has one row per copy, or a single row for all.
        """
        starts = np.zeros(len(self.which), np.int64)
        steps = []
        dims_of_axes = self.exchange.target_dims if side else self.exchange.source_dims
        for pieces, rows, first in zip(
            self.axes,
            self.chosen,
            firsts(dims_of_axes),
            strict=True,
        ):
            own = pieces.sides[side]
            axis_strides = strides[:, first : first + own.starts.shape[1]]
            starts += (own.starts[rows] * axis_strides).sum(axis=1)
            steps.append(own.steps[rows] * axis_strides[:, list(own.dims)])
        return starts, np.concatenate(steps, axis=1)

    def in_packed(self, used: dict[Block, int]) -> tuple[Ints, Ints]:
        """Return starts and strides of all copies in packed shards, in elements.

        `used` has the number of elements in each block's shard before this product, which is added.
        """
        counts = self.counts
        steps = np.ones_like(counts)
        steps[:, :-1] = np.cumprod(counts[:, :0:-1], axis=1)[:, ::-1]
        sizes = counts.prod(axis=1)
        # Copies of a shard follow one another in the order of the copies.
        order = np.argsort(self.which, kind="stable")
        before = np.cumsum(sizes[order]) - sizes[order]
        first = np.searchsorted(self.which[order], np.arange(len(self.blocks)))
        ends = np.array([used.get(block, 0) for block in self.blocks], np.int64)
        starts = np.empty(len(sizes), np.int64)
        starts[order] = before - before[first][self.which[order]]
        starts += ends[self.which]
        np.add.at(ends, self.which, sizes)
        used.update(zip(self.blocks, ends.tolist(), strict=True))
        return starts, steps

    def rows(
        self, sources: tuple[Ints, Ints], target_strides: tuple[int, ...], dim: int | None
    ) -> Segments:
        """Return the copies into one target block, with starts and strides in bytes.

        `sources` are starts and strides of the copies in the sources. `dim` is the dimension along
        which the target is cut into tiles, None if it is not cut; the starts of copies along it are
        `Segments.firsts`, and not part of the target's starts.
        """
        source_starts, source_steps = sources
        starts, steps = self.in_target(target_strides)
        begins = np.zeros(len(self.which), np.int64)
        along = -1
        step = 0
        if dim is not None:
            axis, inner = self.exchange.places[dim]
            begins = self.axes[axis].sides[1].starts[self.chosen[axis], inner]
            along = self.along(dim)
            step = int(target_strides[dim])
            starts = starts - begins * step
        return Segments(
            self.counts,
            source_starts,
            source_steps,
            starts,
            steps,
            begins,
            self.conjugate,
            along,
            step,
        )

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
        segments = self._gathered.get(key)
        if segments is None:
            strides = np.array(source_strides, np.int64)[self.which]
            segments = self.rows(self.places(0, strides), target_strides, dim)
            self._gathered = {key: segments}
        return segments
