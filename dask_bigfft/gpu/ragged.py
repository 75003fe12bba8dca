"""Split dimensions of which a host block holds only the first values: half spectra, for example.

Digits d1, d2, ... of a dimension, outermost first, make the index d1*s1 + d2*s2 + ...; a block in
host memory holds the indices below some length. A piece is a box of digits, so it is read from, or
written to, a few boxes of the block. Of half a spectrum of real values, the other half follows from
X[N - n] = conj X[n], and that is a few boxes, too, each reversed::

    N = 3*4, 7 values are there      n2: 0 1 2 3      0 1 2 3
                               n1 = 0    0 1 2 3      . . . .
                               n1 = 1    4 5 6 .      . . . 5*
                               n1 = 2    . . . .      4*3*2*1*

A block that ends within digits is written to in the same way: boxes of one around it (`Window`).

Imports `decomposition`, and `operations` of this room.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dask_bigfft.decomposition.layout import interval_boxes
from dask_bigfft.gpu.operations import Array, dense

Slices = tuple[slice, ...]

#: First value and the one behind the last, of each digit.
Box = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class HostView:
    """How a contiguous block in host memory is seen: in digits.

    Parameters
    ----------
    shape : tuple of int
        Of the view.
    strides : tuple of int, optional
        In elements, where the block has not got all places of the view.
    first : int
        Place of the view's first element in the block: below 0 where the block has not got it.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    first: int = 0

    def part(self, block: Array, part: Slices) -> Array:
        """A part of the view, which the block has got; a view of the block."""
        if self.strides is None:
            return block.reshape(self.shape)[part]
        # Not by `as_strided`: this looks at the bounds, and knows whose memory it is.
        strides = [s * block.itemsize for s in self.strides]
        first = self.first * block.itemsize
        first += sum(cut.start * s for cut, s in zip(part, strides, strict=True))
        shape = tuple(cut.stop - cut.start for cut in part)
        return np.ndarray(shape, block.dtype, block, first, strides)


@dataclass(frozen=True)
class Window:
    """What a block has of one around it, whose dimensions are seen in digits.

    Parameters
    ----------
    digits : tuple of tuple of int
        Radices of the digits of each dimension, outermost first.
    bounds : tuple of (int, int)
        First value of the block along each dimension, and the one behind the last.
    """

    digits: tuple[tuple[int, ...], ...]
    bounds: tuple[tuple[int, int], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the block."""
        return tuple(high - low for low, high in self.bounds)

    @cached_property
    def view(self) -> HostView:
        """How the block is seen."""
        steps, first, strides = dense(self.shape, 1), 0, list[int]()
        for radices, (low, _), step in zip(self.digits, self.bounds, steps, strict=True):
            strides += [n * step for n in dense(radices, 1)]
            first -= low * step
        sizes = itertools.chain.from_iterable(self.digits)
        return HostView(tuple(sizes), tuple(strides), first)

    def parts(self, part: Slices) -> Iterator[Slices]:
        """What of a part of the view the block has."""
        cuts, choices = iter(part), []
        for radices, (low, high) in zip(self.digits, self.bounds, strict=True):
            mine = list(itertools.islice(cuts, len(radices)))
            choices.append(
                [
                    found
                    for box in interval_boxes(low, high, radices)
                    if (found := _common(mine, box)) is not None
                ]
            )
        for chosen in itertools.product(*choices):
            yield tuple(itertools.chain.from_iterable(chosen))

    def filled(self, block: Array) -> Array:
        """The block around a block, in digits, zero where the block is not."""
        everything = tuple(slice(0, n) for n in self.view.shape)
        found = np.zeros(self.view.shape, block.dtype)
        for part in self.parts(everything):
            found[part] = self.view.part(block, part)
        return found


def _common(part: list[slice], box: Box) -> Slices | None:
    """What a part and a box have in common, if anything."""
    pairs = zip(part, box, strict=True)
    found = tuple(slice(max(c.start, low), min(c.stop, high)) for c, (low, high) in pairs)
    return found if all(cut.start < cut.stop for cut in found) else None


def below(box: Box, radices: tuple[int, ...], length: int) -> Iterator[Box]:
    """The boxes that make up what of a box has an index below some length.

    >>> list(below(((0, 3), (1, 4)), (3, 4), 7))
    [((0, 1), (1, 4)), ((1, 2), (1, 3))]
    """
    if length <= 0:
        return
    if not box:
        yield ()
        return
    (low, high), rest = box[0], box[1:]
    full, left = divmod(length, math.prod(radices[1:]))
    if low < min(high, full):
        yield ((low, min(high, full)), *rest)
    if low <= full < high:
        for found in below(rest, radices[1:], left):
            yield ((full, full + 1), *found)


def _negated(box: Box, radices: tuple[int, ...], last: int) -> Box:
    """Indices N - n for those of a box whose digit `last` is not 0, and all later ones are."""
    found = [(n - high, n - low) for (low, high), n in zip(box, radices, strict=True)]
    found[last] = found[last][0] + 1, found[last][1] + 1
    return (*found[: last + 1], *box[last + 1 :])


def _kinds(box: Box) -> Iterator[tuple[int, Box]]:
    """The parts of a box by the last digit that is not 0, but for the index 0."""
    for last in reversed(range(len(box))):
        low, high = max(box[last][0], 1), box[last][1]
        if low < high and all(first == 0 for first, _ in box[last + 1 :]):
            yield last, (*box[:last], (low, high), *((0, 1) for _ in box[last + 1 :]))


def missing(box: Box, radices: tuple[int, ...], length: int) -> Iterator[tuple[Box, Box, int]]:
    """What of a box has an index of at least `length`, more than half of all.

    Yields
    ------
    own, image : Box
        A part of the box, and the indices N - n, which are below `length`.
    last : int
        The digit up to which the image is reversed.

    Examples
    --------
    >>> list(missing(((0, 3), (0, 4)), (3, 4), 7))
    [(((2, 3), (1, 4)), ((0, 1), (1, 4)), 1), (((1, 2), (3, 4)), ((1, 2), (1, 2)), 1), \
(((2, 3), (0, 1)), ((1, 2), (0, 1)), 0)]
    """
    others = math.prod(radices) - length + 1
    for last, part in _kinds(box):
        for image in below(_negated(part, radices, last), radices, others):
            yield _negated(image, radices, last), image, last


def completing(box: Box, radices: tuple[int, ...], length: int) -> Iterator[tuple[Box, Box, int]]:
    """What a box of half a spectrum gives by its mirror image to the indices below `length`.

    The last digit is there up to half of its radix. What has an index of its own below `length`,
    and so is written there, is left out.

    Yields
    ------
    own, image, last
        As `missing` has them.

    Examples
    --------
    >>> list(completing(((0, 4), (0, 2)), (4, 3), 7))
    [(((2, 4), (1, 2)), ((0, 2), (2, 3)), 1)]
    """
    last = len(box) - 1
    low, high = max(box[last][0], 1), min(box[last][1], (radices[last] + 1) // 2)
    if low < high:
        part = (*box[:last], (low, high))
        for image in below(_negated(part, radices, last), radices, length):
            yield _negated(image, radices, last), image, last


def unmirrored(box: Box, radices: tuple[int, ...], length: int) -> Iterator[tuple[Box, Box, int]]:
    """Nothing: what is not in the block is no mirror image of what is."""
    return iter(())


@dataclass(frozen=True)
class Half:
    """A dimension of half a spectrum in digits, in a view of a host block or a piece of it.

    Or one of another part of all values, from the first one on.

    Parameters
    ----------
    first : int
        Dimension of the view in which the first digit lies.
    radices : tuple of int
        Of the digits, outermost first; all of the spectrum, or of a padded axis.
    length : int
        Values that the block has.
    """

    first: int
    radices: tuple[int, ...]
    length: int

    @property
    def behind(self) -> int:
        """The dimension behind the last digit."""
        return self.first + len(self.radices)

    def view(self, shape: tuple[int, ...]) -> HostView:
        """How a block is seen whose view has some shape, apart from these digits."""
        outer, inner = shape[: self.first], shape[self.behind :]
        strides = dense((*outer, self.length, *inner), 1)
        digits = (n * math.prod(inner) for n in dense(self.radices, 1))
        return HostView(
            (*outer, *self.radices, *inner),
            (*strides[: self.first], *digits, *strides[self.first + 1 :]),
        )

    def box(self, part: Slices) -> Box:
        """The digits of a part of the view."""
        return tuple((cut.start, cut.stop) for cut in part[self.first : self.behind])

    def cut(self, part: Slices, box: Box) -> Slices:
        """A part of the view with other digits."""
        digits = (slice(low, high) for low, high in box)
        return (*part[: self.first], *digits, *part[self.behind :])

    def within(self, part: Slices, box: Box) -> Slices:
        """Where in a part some of its digits lie."""
        cuts = zip(self.cut(part, box), part, strict=True)
        return tuple(slice(cut.start - p.start, cut.stop - p.start) for cut, p in cuts)

    def reversed(
        self, shape: tuple[int, ...], part: Slices, box: Box, last: int
    ) -> tuple[int, tuple[int, ...]]:
        """First place and strides, in elements, of digits of a part from their end to their begin.

        Parameters
        ----------
        shape : tuple of int
            Of the array that holds the part.
        part : tuple of slice
            The part.
        box : Box
            Digits of it.
        last : int
            The digit after which nothing is reversed.
        """
        start, strides = 0, list(dense(shape, 1))
        for dim, cut in enumerate(self.within(part, box)):
            if self.first <= dim <= self.first + last:
                start += (cut.stop - 1) * strides[dim]
                strides[dim] *= -1
            else:
                start += cut.start * strides[dim]
        return start, tuple(strides)
