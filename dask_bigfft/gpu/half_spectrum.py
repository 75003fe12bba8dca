"""Host blocks in digits: blocks that end within digits, and half spectra.

Digits d1, d2, ... of a dimension, outermost first, make the index d1*s1 + d2*s2 + ...; a block in
host memory holds the indices between two bounds. A tile is a box of digits, so it is read from, or
written to, a few boxes of the block (`Window`). Of half a spectrum of real values, the other half
follows from X[N - n] = conj X[n], and that is a few boxes, too, each reversed::

    N = 3*4, 7 values are there      n2: 0 1 2 3      0 1 2 3
                               n1 = 0    0 1 2 3      . . . .
                               n1 = 1    4 5 6 .      . . . 5*
                               n1 = 2    . . . .      4*3*2*1*

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

#: A part of a box, the part that it is the mirror image of, and the last digit that is reversed.
Image = tuple[Box, Box, int]


@dataclass(frozen=True)
class HostView:
    """A contiguous block in host memory, seen in digits.

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
        """Return a part of the view, which the block has got; a view of the block."""
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
    """The part that a block has of one around it, whose dimensions are seen in digits.

    Parameters
    ----------
    digits : tuple of tuple of int
        Radices of the digits of each dimension, outermost first.
    bounds : tuple of (int, int)
        First value of the block along each dimension, and the one behind the last.
    """

    digits: tuple[tuple[int, ...], ...]
    bounds: tuple[tuple[int, int], ...]

    @classmethod
    def of_dimension(
        cls, shape: tuple[int, ...], first: int, radices: tuple[int, ...], length: int
    ) -> "Window":
        """Return the window of a block that has the first values of one dimension.

        Parameters
        ----------
        shape : tuple of int
            Of the block in digits.
        first : int
            Dimension of it in which the first digit is.
        radices : tuple of int
            Of the digits, outermost first; all of the spectrum, or of a padded axis.
        length : int
            Values that the block has.
        """
        before, behind = shape[:first], shape[first + len(radices) :]
        digits = (*((n,) for n in before), radices, *((n,) for n in behind))
        return cls(digits, tuple((0, n) for n in (*before, length, *behind)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the block."""
        return tuple(high - low for low, high in self.bounds)

    @cached_property
    def view(self) -> HostView:
        """The block in digits."""
        steps, first, strides = dense(self.shape, 1), 0, list[int]()
        for radices, (low, _), step in zip(self.digits, self.bounds, steps, strict=True):
            strides += [n * step for n in dense(radices, 1)]
            first -= low * step
        sizes = itertools.chain.from_iterable(self.digits)
        return HostView(tuple(sizes), tuple(strides), first)

    def parts(self, part: Slices) -> Iterator[Slices]:
        """Yield what the block has of a part of the view."""
        cuts, choices = iter(part), []
        for radices, bounds in zip(self.digits, self.bounds, strict=True):
            box = tuple((cut.start, cut.stop) for cut in itertools.islice(cuts, len(radices)))
            choices.append(list(within_bounds(box, radices, *bounds)))
        for chosen in itertools.product(*choices):
            yield tuple(slice(*pair) for pair in itertools.chain.from_iterable(chosen))

    def filled(self, block: Array) -> Array:
        """Return the block around a block, in digits, zero where the block is not."""
        found = np.zeros(self.view.shape, block.dtype)
        for part in self.parts(tuple(slice(0, n) for n in self.view.shape)):
            found[part] = self.view.part(block, part)
        return found


def within_bounds(box: Box, radices: tuple[int, ...], low: int, high: int) -> Iterator[Box]:
    """Yield the boxes that make up what of a box has an index from `low` to below `high`.

    >>> list(within_bounds(((0, 3), (1, 4)), (3, 4), 0, 7))
    [((0, 1), (1, 4)), ((1, 2), (1, 3))]
    """
    for other in interval_boxes(low, high, radices):
        pairs = zip(box, other, strict=True)
        found = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in pairs)
        if all(begin < end for begin, end in found):
            yield found


def _images(box: Box, radices: tuple[int, ...], length: int, last: int) -> Iterator[Image]:
    """Yield what of a box, whose last digit that is not 0 is known, has N - n below a length."""

    def negated(box: Box) -> Box:
        found = [(n - high, n - low) for (low, high), n in zip(box, radices, strict=True)]
        found[last] = found[last][0] + 1, found[last][1] + 1
        return (*found[: last + 1], *box[last + 1 :])

    for image in within_bounds(negated(box), radices, 0, length):
        yield negated(image), image, last


def missing(box: Box, radices: tuple[int, ...], length: int) -> Iterator[Image]:
    """Yield what of a box has an index of at least `length`, more than half of all.

    Examples
    --------
    >>> list(missing(((0, 3), (0, 4)), (3, 4), 7))
    [(((2, 3), (1, 4)), ((0, 1), (1, 4)), 1), (((1, 2), (3, 4)), ((1, 2), (1, 2)), 1), \
(((2, 3), (0, 1)), ((1, 2), (0, 1)), 0)]
    """
    for last in reversed(range(len(box))):
        low, high = max(box[last][0], 1), box[last][1]
        if low < high and all(first == 0 for first, _ in box[last + 1 :]):
            part = (*box[:last], (low, high), *((0, 1) for _ in box[last + 1 :]))
            yield from _images(part, radices, math.prod(radices) - length + 1, last)


def completing(box: Box, radices: tuple[int, ...], length: int) -> Iterator[Image]:
    """Yield what a box of half a spectrum gives by its mirror image to the indices below `length`.

    The last digit is there up to half of its radix. What has an index of its own below `length`,
    and so is written there, is left out.

    Examples
    --------
    >>> list(completing(((0, 4), (0, 2)), (4, 3), 7))
    [(((2, 4), (1, 2)), ((0, 2), (2, 3)), 1)]
    """
    last = len(box) - 1
    low, high = max(box[last][0], 1), min(box[last][1], (radices[last] + 1) // 2)
    if low < high:
        yield from _images((*box[:last], (low, high)), radices, length, last)
