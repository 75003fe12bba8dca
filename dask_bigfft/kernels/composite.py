"""`Composite`: a block that is only read, as shards of source blocks that lie where they are.

Whoever copies a block anyway, piece by piece, as a device does, need not gather it first: every
piece is a few strided views of source blocks::

    block (n1, n2 of one chunk)       piece: all n1, some n2
      rows n1 = 0..7   in source 0      view of source 0: 8 rows apart, n2 side by side
      rows n1 = 8..15  in source 1      view of source 1
      ...

Along each axis of the array a block is a product of *edges* (one per common digit of both sides,
joined where one continues another), and a source block has boxes of them: all of most edges, and a
stretch of one, where it ends between two values of a digit; else a row that begins within the
digit, rows that it has whole, and one that ends within it. What is in no box is padding, and zero.

Imports `decomposition` and `copy` of this room.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.layout import Ranges, interval_boxes
from dask_bigfft.kernels.copies import strided_view
from dask_bigfft.memory import lend

Array = npt.NDArray[np.generic]
Ints = npt.NDArray[np.int64]
Block = tuple[int, ...]


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
    """The boxes of an axis, no two of which overlap, in one table, a row each.

    Each lies in one source block, as far as an axis decides that. A table, since a block may have
    thousands of them, and as many small objects for each block would take the interpreter longer
    than copies take.

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
        Place in each of these at which the box begins.
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
        """Number of values of each."""
        found: Ints = np.prod(self.highs - self.lows, axis=1)
        return found

    def rows(self, chosen: slice | Ints) -> "Stretches":
        """Some of them."""
        return replace(
            self,
            lows=self.lows[chosen],
            highs=self.highs[chosen],
            blocks=self.blocks[chosen],
            starts=self.starts[chosen],
        )

    def within(self, ends: Ints) -> tuple[Ints, Ints, Ints]:
        """Those that meet a part of a block: which, and what they have of it, from where to where.

        `ends` are those of the part along all edges of the block, two rows.
        """
        first, last = ends[:, list(self.edges)]
        lows, highs = np.maximum(self.lows, first), np.minimum(self.highs, last)
        met = (lows < highs).all(axis=1).nonzero()[0]
        return met, lows[met], highs[met]


@dataclass(frozen=True, eq=False)
class Windowed:
    """A block that ends within digits, and one around it that has them whole.

    Parameters
    ----------
    around : Composite
        The block around it; what no source has of it is nothing.
    bounds : tuple of (int, int)
        First value of the block along each dimension of the other, and the one behind the last.
    """

    around: "Composite"
    bounds: tuple[tuple[int, int], ...]

    @property
    def inner(self) -> bool:
        """Whether the block ends within digits at all."""
        ends = zip(self.bounds, self.around.shape, strict=True)
        return any(bound != (0, n) for bound, n in ends)


@dataclass(frozen=True, eq=False)
class Shards:
    """Shards of one form: views of as many source blocks that differ in where they begin.

    Parameters
    ----------
    block : Composite
        The block that they are of.
    part : tuple of slice
        The part of it that they make up, maybe with others; one slice per edge.
    shape, strides : tuple of int
        Of each view, one number per edge; strides in bytes.
    sources : list of ndarray
        The source block of each.
    starts, addresses : ndarray, (shards,)
        Where each begins: bytes after the source block's first element, and in memory.
    places : ndarray, (shards, edges)
        Where each belongs in the part.
    flipped : frozenset of int or None
        Edges along which the values belong there in reverse, and conjugated; None where they do
        as they are.
    """

    block: "Composite"
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
        """All of them, each with its place in the part."""
        columns = self.places.tolist(), self.sources, self.starts.tolist()
        for place, source, start in zip(*columns, strict=True):
            yield tuple(place), strided_view(source, start, self.shape, self.strides)


@dataclass(frozen=True, eq=False)
class Composite:
    """A block made of shards of source blocks; see the module.

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
        As `axes`, of the mirror image of half a spectrum, which is conjugated; where there is one.
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
        """Of the block."""
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

    def shards(self, part: tuple[slice, ...]) -> Iterator[Shards]:
        """The shards that make up a part, a slice of each edge; those of one form together."""
        yield from self._shards(part, self.axes, None)
        if self.image:
            yield from self._shards(part, self.image, self.flipped)

    def _shards(
        self, part: tuple[slice, ...], axes: tuple[Stretches, ...], flipped: frozenset[int] | None
    ) -> Iterator[Shards]:
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
            lows[:, edges], counts[:, edges] = low[each], (high - low)[each]
            firsts[:, edges], at[:, list(axis.dims)] = first[each], axis.starts[met][each]
            columns.append(axis.blocks[met][each].tolist())
        blocks, places = list(zip(*columns, strict=True)), lows - ends[0]
        forms = dict[tuple[tuple[int, ...], ...], list[int]]()
        for row, form in enumerate(map(tuple, counts.tolist())):
            forms.setdefault((self.sources[blocks[row]].strides, form), []).append(row)
        for (distances, shape), rows in forms.items():
            strides = tuple([edge.step * distances[edge.dim] for edge in self.edges])
            starts = at[rows] @ distances + firsts[rows] @ strides
            addresses = starts + [self._bases[blocks[row]] for row in rows]
            sources = [self.sources[blocks[row]] for row in rows]
            yield Shards(
                self, part, shape, strides, sources, starts, addresses, places[rows], flipped
            )

    def views(self, part: tuple[slice, ...]) -> Iterator[tuple[tuple[int, ...], Array]]:
        """The views of source blocks that make up a part, a slice of each edge.

        Each comes with its place in the part, one number per edge.
        """
        for shards in self.shards(part):
            yield from shards.views()

    @cached_property
    def _bases(self) -> dict[Block, int]:
        """Where each source block begins."""
        return {i: int(found.__array_interface__["data"][0]) for i, found in self.sources.items()}

    @cached_property
    def full(self) -> bool:
        """Whether all of the block is in shards; what is not is padding."""
        return math.prod(self.sizes) == sum(
            math.prod(int(axis.sizes.sum()) for axis in axes) for axes in self._layers
        )

    @property
    def order(self) -> tuple[int, ...] | None:
        """Edges by falling distance of their values in the sources; None where these differ."""
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
        """Edges along which some shard has several values: its strides along others are nothing."""
        return frozenset(
            e
            for axis in itertools.chain.from_iterable(self._layers)
            for place, e in enumerate(axis.edges)
            if (axis.highs[:, place] - axis.lows[:, place] > 1).any()
        )

    @property
    def falls(self) -> bool:
        """Whether values lie in the sources in the order of the block's dimensions."""
        return self.order == tuple(range(len(self.edges)))

    def turned(self, order: tuple[int, ...]) -> "Composite":
        """The same values with the edges in another order, each a dimension of the block."""
        place = {e: i for i, e in enumerate(order)}
        axes, image = (
            tuple(replace(axis, edges=tuple(place[e] for e in axis.edges)) for axis in found)
            for found in (self.axes, self.image)
        )
        flipped = frozenset(place[e] for e in self.flipped)
        edges = tuple(self.edges[e] for e in order)
        return Composite(edges, (1,) * len(order), axes, self.sources, image, flipped)

    def split(self, factors: tuple[tuple[int, ...], ...]) -> "Composite | None":
        """The same block with its dimensions taken apart into factors; each is a dimension then.

        None where dimensions of several edges are taken apart.
        """
        if all(len(split) == 1 for split in factors):
            return self
        edges: list[Edge] = []
        groups: list[int] = []
        made: list[tuple[int, ...]] = []  # of each edge: the new ones that it falls into
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
        return Composite(tuple(edges), tuple(groups), axes, self.sources, image, flipped)

    @staticmethod
    def _fallen(
        axis: Stretches, edges: list[Edge], made: list[tuple[int, ...]], flipped: frozenset[int]
    ) -> Stretches:
        """The boxes of an axis in the edges that its edges fall into."""
        own = tuple(new for e in axis.edges for new in made[e])
        if len(own) == len(axis.edges):
            return replace(axis, edges=own)
        into = [[edges[i] for i in made[e]] for e in axis.edges]
        flips, fine = [e in flipped for e in axis.edges], list[_Fine]()
        for row in range(len(axis)):
            box = list(zip(axis.lows[row].tolist(), axis.highs[row].tolist(), strict=True))
            fine += ((row, *found) for found in _apart(box, into, flips))
        came = [row for row, *_ in fine]
        ranges = np.array([found for _, found, _ in fine], np.int64).reshape(-1, len(own), 2)
        starts = axis.starts[came]
        for number, found in enumerate(into):
            starts[:, axis.dims.index(found[0].dim)] += [moved[number] for *_, moved in fine]
        return Stretches(own, ranges[..., 0], ranges[..., 1], axis.blocks[came], axis.dims, starts)

    def part(self, cuts: tuple[slice, ...]) -> tuple[slice, ...] | None:
        """Slices of the edges from slices of the dimensions, which cut no dimension of several.

        None where one of these is not taken whole.
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


#: A box in finer edges: the row that it comes from, its ranges, and how much later it begins in the
#: source block by each of the edges that it fell from.
_Fine = tuple[int, Ranges, tuple[int, ...]]


def _apart(
    box: Sequence[tuple[int, int]], into: list[list[Edge]], flips: list[bool]
) -> Iterator[tuple[Ranges, tuple[int, ...]]]:
    """A box of some edges as boxes of those that each of them falls into."""
    choices = [
        list(interval_boxes(low, high, tuple(edge.size for edge in fine)))
        for (low, high), fine in zip(box, into, strict=True)
    ]
    for chosen in itertools.product(*choices):
        moved = list[int]()
        for (low, high), fine, flip, found in zip(box, into, flips, chosen, strict=True):
            unit, pairs = fine[-1].step, list(zip(found, fine, strict=True))
            if flip:
                moved.append((high - 1) * unit - sum((r[1] - 1) * edge.step for r, edge in pairs))
            else:
                moved.append(sum(r[0] * edge.step for r, edge in pairs) - low * unit)
        yield tuple(itertools.chain.from_iterable(chosen)), tuple(moved)


@dataclass(frozen=True)
class Stacked:
    """How a block is stacked.

    Parameters
    ----------
    dim : int
        Dimension of the block that is cut.
    width : int
        Of a shard along it; divides the block.
    """

    dim: int
    width: int

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of the view, from that of the block.

        >>> Stacked(1, 8).shape((5, 32, 2))
        (5, 4, 8, 2)
        """
        count = shape[self.dim] // self.width
        return (*shape[: self.dim], count, self.width, *shape[self.dim + 1 :])

    def lent(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Composite:
        """A block of some shape in lent memory, as its shards, to be written to."""
        whole = self.shape(shape)
        memory = lend((whole[self.dim], *whole[: self.dim], *whole[self.dim + 1 :]), dtype)
        axes, sources = list[Stretches](), dict[Block, Array]()
        for dim, n in enumerate(shape):
            width = self.width if dim == self.dim else n
            lows = np.arange(0, n, width)[:, None]
            starts = np.zeros_like(lows)
            axes.append(Stretches((dim,), lows, lows + width, np.arange(len(lows)), (dim,), starts))
        for i, shard in enumerate(memory):
            sources[tuple(i if dim == self.dim else 0 for dim in range(len(shape)))] = shard
        edges = tuple(Edge(n, dim, dim, 1) for dim, n in enumerate(shape))
        return Composite(edges, (1,) * len(shape), tuple(axes), sources)

    def whole(self, block: Composite) -> Array:
        """The block as a view of its memory, from its shards."""
        first = next(iter(block.sources.values()))
        shape, step = (len(block.sources), *first.shape), first.nbytes
        memory = strided_view(first, 0, shape, (step, *first.strides))
        return np.moveaxis(memory, 0, self.dim)
