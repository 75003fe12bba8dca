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
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.layout import interval_boxes
from dask_bigfft.kernels.copy import strided_view

Array = npt.NDArray[np.generic]
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


@dataclass(frozen=True)
class Stretch:
    """A box of the edges of an axis that lies in one source block, as far as an axis decides that.

    Parameters
    ----------
    lows, highs : tuple of int
        First value along each edge of the axis, and the one behind the last.
    block : int
        Source block along the axis.
    starts : tuple of (int, int)
        Dimensions of the source block and the place in each at which the box begins.
    """

    lows: tuple[int, ...]
    highs: tuple[int, ...]
    block: int
    starts: tuple[tuple[int, int], ...]

    @property
    def size(self) -> int:
        """Number of values."""
        return math.prod(map(operator.sub, self.highs, self.lows))


@dataclass(frozen=True)
class Stretches:
    """The boxes of an axis, no two of which overlap, and the edges that they are of."""

    edges: tuple[int, ...]
    parts: tuple[Stretch, ...]


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
    starts, addresses : list of int
        Where each begins: bytes after the source block's first element, and in memory.
    places : list of tuple of int
        Where each belongs in the part, one number per edge.
    flipped : frozenset of int or None
        Edges along which the values belong there in reverse, and conjugated; None where they do
        as they are.
    """

    block: "Composite"
    part: tuple[slice, ...]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    sources: list[Array]
    starts: list[int]
    addresses: list[int]
    places: list[tuple[int, ...]]
    flipped: frozenset[int] | None = None

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Dtype of all values."""
        return self.sources[0].dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all shards."""
        return len(self.sources) * math.prod(self.shape) * self.dtype.itemsize

    def view(self, number: int) -> Array:
        """One of them."""
        return strided_view(self.sources[number], self.starts[number], self.shape, self.strides)

    def views(self) -> Iterator[tuple[tuple[int, ...], Array]]:
        """All of them, each with its place in the part."""
        for number, place in enumerate(self.places):
            yield place, self.view(number)


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
        return sum(math.prod(len(axis.parts) for axis in axes) for axes in self._layers)

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
        cuts = [[*self._met(axis, part)] for axis in axes]
        edges, sources, bases = [axis.edges for axis in axes], self.sources, self._bases
        lows, counts, places = [0] * len(part), [0] * len(part), [0] * len(part)
        found: dict[tuple[tuple[int, ...], ...], tuple[list[int], Shards]] = {}
        for chosen in itertools.product(*cuts):
            block = tuple([stretch.block for stretch in chosen])
            source = sources[block]
            distances = source.strides
            start = 0
            for own, stretch in zip(edges, chosen, strict=True):
                for e, begins, ends in zip(own, stretch.lows, stretch.highs, strict=True):
                    cut = part[e]
                    low, high = max(cut.start, begins), min(cut.stop, ends)
                    first = ends - high if flipped and e in flipped else low - begins
                    lows[e], counts[e], places[e] = first, high - low, low - cut.start
                for dim, place in stretch.starts:
                    start += place * distances[dim]
            form = distances, tuple(counts)
            known = found.get(form)
            if known is None:
                strides = [edge.step * distances[edge.dim] for edge in self.edges]
                shards = Shards(self, part, form[1], tuple(strides), [], [], [], [], flipped)
                known = found[form] = strides, shards
            strides, shards = known
            start += sum(map(operator.mul, lows, strides))
            shards.sources.append(source)
            shards.starts.append(start)
            shards.addresses.append(bases[block] + start)
            shards.places.append(tuple(places))
        for _, shards in found.values():
            yield shards

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

    def _met(self, axis: Stretches, part: tuple[slice, ...]) -> Iterator[Stretch]:
        cuts = [(part[e].start, part[e].stop) for e in axis.edges]
        for found in axis.parts:
            sides = zip(cuts, found.lows, found.highs, strict=True)
            if all(max(first, low) < min(last, high) for (first, last), low, high in sides):
                yield found

    @cached_property
    def full(self) -> bool:
        """Whether all of the block is in shards; what is not is padding."""
        return math.prod(self.sizes) == sum(
            math.prod(sum(part.size for part in axis.parts) for axis in axes)
            for axes in self._layers
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
            if any(part.highs[place] - part.lows[place] > 1 for part in axis.parts)
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
        into = [[edges[i] for i in made[e]] for e in axis.edges]
        flips = [e in flipped for e in axis.edges]
        parts = tuple(fine for found in axis.parts for fine in _apart(found, into, flips))
        return Stretches(tuple(new for e in axis.edges for new in made[e]), parts)

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


def _apart(box: Stretch, into: list[list[Edge]], flips: list[bool]) -> Iterator[Stretch]:
    """A box of some edges as boxes of those that each of them falls into."""
    choices = [
        list(interval_boxes(low, high, tuple(edge.size for edge in fine)))
        for low, high, fine in zip(box.lows, box.highs, into, strict=True)
    ]
    for chosen in itertools.product(*choices):
        ranges = list(itertools.chain.from_iterable(chosen))
        starts = dict(box.starts)
        sides = zip(box.lows, box.highs, into, flips, chosen, strict=True)
        for low, high, fine, flip, found in sides:
            unit, pairs = fine[-1].step, list(zip(found, fine, strict=True))
            if flip:
                before = (high - 1) * unit - sum((r[1] - 1) * edge.step for r, edge in pairs)
            else:
                before = sum(r[0] * edge.step for r, edge in pairs) - low * unit
            if before:
                starts[fine[0].dim] += before
        yield Stretch(
            tuple(low for low, _ in ranges), tuple(high for _, high in ranges),
            box.block, tuple(starts.items()),
        )
