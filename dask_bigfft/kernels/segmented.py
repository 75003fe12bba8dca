"""`SegmentedView`: a read-only block made of strided views of source blocks.

A GPU copies a block tile by tile, so the block need not be gathered first. Every tile is a few
strided views of source blocks::

    block (n1, n2 of one chunk)       tile: all n1, some n2
      rows n1 = 0..7   in source 0      view of source 0: 8 rows apart, n2 side by side
      rows n1 = 8..15  in source 1      view of source 1
      ...

Along each axis of the array a block is a product of *edges*, one per common digit of both sides.
Edges that continue one another are joined. A source block holds boxes of edges. A box has all
values of most edges and a range of one edge. A source block that begins and ends within a digit has
up to three boxes: a first row, the complete rows, and a last row. Values outside all boxes are
padding, and zero.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dask_bigfft.arrays import Array, Block, Ints
from dask_bigfft.kernels.copies import strided_view
from dask_bigfft.transforms.layout import Ranges, interval_boxes


@dataclass(frozen=True)
class Edge:
    """One dimension of a composite.

    Parameters
    ----------
    size : int
        Number of values.
    axis : int
        Axis of the array that it is a part of.
    dim, step : int
        Dimension of the source blocks in which it runs, and elements from value to value there.
    """

    size: int
    axis: int
    dim: int
    step: int


@dataclass(frozen=True, eq=False)
class Stretches:
    """Disjoint boxes of an axis, as a table with one row for each box.

    Along this axis, each box belongs to one source block. A block may have thousands of boxes, and
    a Python object for each would take longer than the copies.

    Parameters
    ----------
    edges : tuple of int
        Edges that the boxes are of.
    lows, highs : ndarray, (rows, edges)
        First value along each edge, and the one behind the last.
    blocks : ndarray, (rows,)
        Source block along the axis.
    dims : tuple of int
        Dimensions of the source blocks that the axis has there.
    starts : ndarray, (rows, dims)
        First place of the box in each of these dimensions.
    """

    edges: tuple[int, ...]
    lows: Ints
    highs: Ints
    blocks: Ints
    dims: tuple[int, ...]
    starts: Ints

    def __len__(self) -> int:
        return len(self.blocks)

    @property
    def sizes(self) -> Ints:
        """Number of values of each box."""
        found: Ints = np.prod(self.highs - self.lows, axis=1)
        return found

    def rows(self, chosen: slice | Ints) -> "Stretches":
        """Return the table of some boxes."""
        names = "lows highs blocks starts"
        return replace(self, **{name: getattr(self, name)[chosen] for name in names.split()})

    def within(self, ends: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the rows of the boxes that intersect a part of a block, and the intersections.

        `ends` has two rows: the first and last ends of the part along all edges of the block.
        """
        first, last = ends[:, list(self.edges)]
        lows = np.maximum(self.lows, first)
        highs = np.minimum(self.highs, last)
        met = (lows < highs).all(axis=1).nonzero()[0]
        return met, lows[met], highs[met]


@dataclass(frozen=True, eq=False)
class WindowView:
    """Block that ends within digits, inside a block with complete digits.

    Parameters
    ----------
    around : SegmentedView
        The surrounding block; its values outside all sources are undefined.
    bounds : tuple of (int, int)
        First value of the block along each dimension of the other, and the one behind the last.
    """

    around: "SegmentedView"
    bounds: tuple[tuple[int, int], ...]

    @property
    def inner(self) -> bool:
        """True if the block ends within digits."""
        ends = zip(self.bounds, self.around.shape, strict=True)
        return any(bound != (0, n) for bound, n in ends)


@dataclass(frozen=True, eq=False)
class ShardView:
    """Shards of one shape and one set of strides, each a view of a source block.

    Parameters
    ----------
    block : SegmentedView
        Block that contains them.
    part : tuple of slice
        Part of the block that contains them, one slice per edge.
    shape, strides : tuple of int
        Of each view, one number per edge; strides in bytes.
    sources : list of ndarray
        The source block of each.
    starts, addresses : ndarray, (shards,)
        Beginning of each: bytes after the source block's first element, and memory address.
    places : ndarray, (shards, edges)
        Place of each in the part.
    flipped : frozenset of int or None
        Edges along which conjugated values are stored in reverse; None for shards that are stored
        unchanged.
    """

    block: "SegmentedView"
    part: tuple[slice, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    sources: list[Array]
    starts: Ints
    addresses: Ints
    places: Ints
    flipped: frozenset[int] | None = None

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Dtype of all values."""
        return self.sources[0].dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return len(self.sources) * math.prod(self.shape) * self.dtype.itemsize

    def views(self) -> Iterator[tuple[tuple[int, ...], Array]]:
        """Yield all views, each with its place in the part."""
        columns = self.places.tolist(), self.sources, self.starts.tolist()
        for place, source, start in zip(*columns, strict=True):
            yield tuple(place), strided_view(source, start, self.shape, self.strides)


@dataclass(frozen=True, eq=False)
class SegmentedView:
    """Block made of shards of source blocks; see the module.

    Parameters
    ----------
    edges : tuple of Edge
        In the order of the block's dimensions.
    groups : tuple of int
        Number of edges of each dimension of the block.
    axes : tuple of Stretches
        One per axis of the array.
    sources : mapping of block index to ndarray
        The source blocks, all of one dtype.
    image : tuple of Stretches
        Boxes of the conjugated mirror image of half a spectrum, empty if there is none.
    flipped : frozenset of int
        Edges along which the boxes of the image are reversed.
    """

    edges: tuple[Edge, ...]
    groups: tuple[int, ...]
    axes: tuple[Stretches, ...]
    sources: Mapping[Block, Array]
    image: tuple[Stretches, ...] = ()
    flipped: frozenset[int] = frozenset()

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Dtype of all values."""
        return next(iter(self.sources.values())).dtype

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of values along each edge."""
        return tuple(edge.size for edge in self.edges)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the block."""
        sizes = iter(self.sizes)
        return tuple(math.prod(itertools.islice(sizes, count)) for count in self.groups)

    @property
    def nbytes(self) -> int:
        """Bytes of the block."""
        return math.prod(self.sizes) * self.dtype.itemsize

    @property
    def count(self) -> int:
        """Number of shards of the whole block."""
        return sum(math.prod(len(axis) for axis in axes) for axes in self._layers)

    @property
    def _layers(self) -> tuple[tuple[Stretches, ...], ...]:
        return (self.axes, self.image) if self.image else (self.axes,)

    def shards(self, part: tuple[slice, ...]) -> Iterator[ShardView]:
        """Yield the shards of a part (a slice of each edge), grouped by shape and strides."""
        yield from self._shards(part, self.axes, None)
        if self.image:
            yield from self._shards(part, self.image, self.flipped)

    def _shards(
        self, part: tuple[slice, ...], axes: tuple[Stretches, ...], flipped: frozenset[int] | None
    ) -> Iterator[ShardView]:
        ends = np.array([(cut.start, cut.stop) for cut in part], np.int64).reshape(-1, 2).T
        cuts = [axis.within(ends) for axis in axes]
        sizes = [len(met) for met, _, _ in cuts]
        count = math.prod(sizes)
        lows, counts, firsts = np.zeros((3, count, len(part)), np.int64)
        at = np.zeros((count, next(iter(self.sources.values())).ndim), np.int64)
        columns = list[list[int]]()
        chosen = np.unravel_index(np.arange(count), sizes)
        for axis, (met, low, high), each in zip(axes, cuts, chosen, strict=True):
            edges = list(axis.edges)
            first = low - axis.lows[met]
            if flipped:
                behind = [e in flipped for e in edges]
                first = np.where(behind, axis.highs[met] - high, first)
            lows[:, edges] = low[each]
            counts[:, edges] = (high - low)[each]
            firsts[:, edges] = first[each]
            at[:, list(axis.dims)] = axis.starts[met][each]
            columns.append(axis.blocks[met][each].tolist())
        blocks = list(zip(*columns, strict=True))
        places = lows - ends[0]
        forms = dict[tuple[tuple[int, ...], ...], list[int]]()
        for row, form in enumerate(map(tuple, counts.tolist())):
            forms.setdefault((self.sources[blocks[row]].strides, form), []).append(row)
        for (distances, shape), rows in forms.items():
            strides = tuple([edge.step * distances[edge.dim] for edge in self.edges])
            starts = at[rows] @ distances + firsts[rows] @ strides
            addresses = starts + [self._bases[blocks[row]] for row in rows]
            sources = [self.sources[blocks[row]] for row in rows]
            yield ShardView(
                self, part, shape, strides, sources, starts, addresses, places[rows], flipped
            )

    def views(self) -> Iterator[tuple[tuple[int, ...], Array]]:
        """Yield all views of source blocks, each with its place in the block by edges."""
        for shards in self.shards(tuple(slice(0, n) for n in self.sizes)):
            yield from shards.views()

    @cached_property
    def _bases(self) -> dict[Block, int]:
        """Address of each source block."""
        return {i: int(found.__array_interface__["data"][0]) for i, found in self.sources.items()}

    @cached_property
    def full(self) -> bool:
        """True if shards cover the block, so that it has no padding."""
        return math.prod(self.sizes) == sum(
            math.prod(int(axis.sizes.sum()) for axis in axes) for axes in self._layers
        )

    @property
    def order(self) -> tuple[int, ...] | None:
        """Edges by decreasing stride in the sources; None if the sources differ in this order."""
        strides = {source.strides for source in self.sources.values()}
        orders = {self._falling(found) for found in strides}
        return orders.pop() if len(orders) == 1 else None

    def _falling(self, strides: tuple[int, ...]) -> tuple[int, ...] | None:
        steps = [edge.step * strides[edge.dim] for edge in self.edges]
        if any(s <= 0 for s, edge in zip(steps, self.edges, strict=True) if edge.size > 1):
            return None
        long = [e for e in range(len(steps)) if e in self._long]
        found = iter(sorted(long, key=lambda e: -steps[e]))
        return tuple(next(found) if e in self._long else e for e in range(len(steps)))

    @cached_property
    def _long(self) -> frozenset[int]:
        """Edges along which some shard has several values; other strides have no effect."""
        return frozenset(
            e
            for axis in itertools.chain.from_iterable(self._layers)
            for place, e in enumerate(axis.edges)
            if (axis.highs[:, place] - axis.lows[:, place] > 1).any()
        )

    @property
    def falls(self) -> bool:
        """True if the sources store values in the order of the block's dimensions."""
        return self.order == tuple(range(len(self.edges)))

    def turned(self, order: tuple[int, ...]) -> "SegmentedView":
        """Return the block with its edges in another order, each as a dimension."""
        place = {e: i for i, e in enumerate(order)}
        axes, image = (
            tuple(replace(axis, edges=tuple(place[e] for e in axis.edges)) for axis in found)
            for found in (self.axes, self.image)
        )
        flipped = frozenset(place[e] for e in self.flipped)
        edges = tuple(self.edges[e] for e in order)
        return SegmentedView(edges, (1,) * len(order), axes, self.sources, image, flipped)

    def split(self, factors: tuple[tuple[int, ...], ...]) -> "SegmentedView | None":
        """Return the block with its dimensions split into factors, each as a dimension.

        The result is None if a dimension of several edges would be split.
        """
        if all(len(split) == 1 for split in factors):
            return self
        edges: list[Edge] = []
        groups: list[int] = []
        made: list[tuple[int, ...]] = []  # the new edges of each edge
        old = iter(self.edges)
        for count, split in zip(self.groups, factors, strict=True):
            if count > 1 and len(split) > 1:
                return None
            for edge in itertools.islice(old, count):
                sizes = split if len(split) > 1 else (edge.size,)
                made.append(tuple(range(len(edges), len(edges) + len(sizes))))
                inner = math.prod(sizes)
                for n in sizes:
                    inner //= n
                    edges.append(replace(edge, size=n, step=edge.step * inner))
            groups += [1] * len(split) if len(split) > 1 else [count]
        axes, image = (
            tuple(self._fallen(axis, edges, made, flips) for axis in found)
            for found, flips in ((self.axes, frozenset[int]()), (self.image, self.flipped))
        )
        flipped = frozenset(new for e in self.flipped for new in made[e])
        return SegmentedView(tuple(edges), tuple(groups), axes, self.sources, image, flipped)

    @staticmethod
    def _fallen(
        axis: Stretches, edges: list[Edge], made: list[tuple[int, ...]], flipped: frozenset[int]
    ) -> Stretches:
        """Return the boxes of an axis in terms of the edges that its edges are split into."""
        own = tuple(new for e in axis.edges for new in made[e])
        if len(own) == len(axis.edges):
            return replace(axis, edges=own)
        into = [[edges[i] for i in made[e]] for e in axis.edges]
        flips = [e in flipped for e in axis.edges]
        fine = list[_Fine]()
        for row in range(len(axis)):
            box = list(zip(axis.lows[row].tolist(), axis.highs[row].tolist(), strict=True))
            fine += ((row, *found) for found in _apart(box, into, flips))
        rows = [row for row, *_ in fine]
        ranges = np.array([found for _, found, _ in fine], np.int64).reshape(-1, len(own), 2)
        starts = axis.starts[rows]
        for number, found in enumerate(into):
            starts[:, axis.dims.index(found[0].dim)] += [moved[number] for *_, moved in fine]
        return Stretches(own, ranges[..., 0], ranges[..., 1], axis.blocks[rows], axis.dims, starts)

    def part(self, cuts: tuple[slice, ...]) -> tuple[slice, ...] | None:
        """Return slices of the edges from slices of the dimensions.

        The result is None if a slice cuts a dimension of several edges.
        """
        found: list[slice] = []
        old = 0
        for count, cut, n in zip(self.groups, cuts, self.shape, strict=True):
            whole = (cut.start, cut.stop) == (0, n)
            if count > 1 and not whole:
                return None
            sizes = self.sizes[old : old + count]
            found += [cut] if count == 1 else [slice(0, size) for size in sizes]
            old += count
        return tuple(found)


#: A box in terms of split edges: its original row, its ranges, and its additional offset in the
#: source block for each of the original edges.
_Fine = tuple[int, Ranges, tuple[int, ...]]


def _apart(
    box: Sequence[tuple[int, int]], into: list[list[Edge]], flips: list[bool]
) -> Iterator[tuple[Ranges, tuple[int, ...]]]:
    """Yield a box as boxes in terms of the edges that its edges are split into."""
    choices = [
        list(interval_boxes(low, high, tuple(edge.size for edge in fine)))
        for (low, high), fine in zip(box, into, strict=True)
    ]
    for chosen in itertools.product(*choices):
        moved = list[int]()
        for (low, high), fine, flip, found in zip(box, into, flips, chosen, strict=True):
            unit = fine[-1].step
            pairs = list(zip(found, fine, strict=True))
            if flip:
                moved.append((high - 1) * unit - sum((r[1] - 1) * edge.step for r, edge in pairs))
            else:
                moved.append(sum(r[0] * edge.step for r, edge in pairs) - low * unit)
        yield tuple(itertools.chain.from_iterable(chosen)), tuple(moved)
