"""Descriptions of operations on a device's arena and views of blocks, without arrays or addresses.

The operations are keys for cached FFT plans and compiled kernels. Offsets count from the start of
a tile's buffer until the executor places the tile in the arena.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.tiles.digits import Box, interval_boxes
from dask_bigfft.tiles.program import ChirpFactor, Term, Twiddle
from dask_bigfft.transforms.steps import Kind

Block = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """C-ordered array in the device's arena, dense by default.

    Parameters
    ----------
    offset : int
        Bytes from the start of the arena, a multiple of `ALIGNMENT`.
    shape : tuple of int
        Lengths of the dimensions.
    dtype : str
        As in ``numpy.dtype.str``, such as ``"<c16"``.
    strides : tuple of int, optional
        Strides of a part of a larger array in bytes, for copies to and from the host only.
    """

    offset: int
    shape: Block
    dtype: str
    strides: Block | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.size * np.dtype(self.dtype).itemsize

    @property
    def span(self) -> int:
        """Bytes from the first element to the end of the last one."""
        if self.strides is None or not self.size:
            return self.nbytes
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return last + np.dtype(self.dtype).itemsize


def dense(shape: Block, itemsize: int) -> Block:
    """Return the strides of a dense C-ordered array in bytes.

    >>> dense((8, 6, 4), 8)
    (192, 32, 8)
    """
    return tuple(itemsize * math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


#: Dimension of a copy: its length, the strides on both sides, and its axes.
Dim = tuple[int, int, int, Block]


def joined(dims: Iterable[Dim]) -> list[Dim]:
    """Return the fewest dimensions, without those of length 1.

    >>> joined([(2, 12, 3, (0,)), (3, 4, 1, (1,)), (1, 9, 9, (2,))])
    [(6, 4, 1, (0, 1))]
    """
    found: list[Dim] = []
    for n, stride, other, axes in dims:
        if n == 1:
            continue
        if found and found[-1][1:3] == (n * stride, n * other):
            found[-1] = found[-1][0] * n, stride, other, (*found[-1][3], *axes)
        else:
            found.append((n, stride, other, axes))
    return found


def runs(
    shape: Block,
    strides: Block,
    itemsize: int,
    places: Block,
) -> tuple[int, list[Block]]:
    """Return the width in bytes of rows that are contiguous on both sides, and their repetition.

    The repetition is (count, stride, stride on the other side), outermost first, in the fewest
    dimensions. A view with a non-contiguous last dimension has rows of one element.

    >>> runs((8, 2, 4), (192, 32, 8), 8, (64, 32, 8))
    (64, [(8, 192, 64)])
    >>> runs((8, 6, 1), (192, 32, 8), 8, (48, 8, 8))
    (8, [(48, 32, 8)])
    """
    dims = zip(
        shape,
        strides,
        places,
        itertools.repeat(()),
        strict=False,
    )
    merged: list[Block] = [dim[:3] for dim in joined(dims)]
    if merged and merged[-1][1:] == (itemsize, itemsize):
        return merged[-1][0] * itemsize, merged[:-1]
    return itemsize, merged


@dataclass(frozen=True, slots=True)
class FFT:
    """FFTs along some dimensions of a dense array, not normalised.

    Parameters
    ----------
    kind : {"c2c", "r2c", "c2r"}
        ``c2c`` works in place or from one array to another; ``r2c`` and ``c2r`` from one array
        to another, and ``c2r`` may overwrite its source.
    source, target : tuple of int
        Shapes before and after.
    dims : tuple of int
        Transformed dimensions in ascending order; the last one is halved.
    sign : {-1, 1}
        Sign in the exponent: always -1 for ``r2c`` and +1 for ``c2r``.
    dtype : str
        Dtype of the complex side.
    """

    kind: Kind
    source: Block
    target: Block
    dims: Block
    sign: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Multiply:
    """Factors of a complex array, applied in place in one pass.

    Each element becomes ``(its conjugate, if conjugate) * scale * every factor``; 0 behind the end
    of a chirp, even for NaN. Factors are computed in double precision. They divide by nothing: that
    is part of the scale.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array.
    dtype : str
        Dtype of the array.
    scale : float
        Factor of all elements.
    conjugate : bool
        True to conjugate the elements first.
    factors : tuple of Twiddle or ChirpFactor
        Factors that depend on the positions of the elements. The product of the indices of a
        twiddle is below its modulus <= 2**53, or below four times that where a chirp zeroes the
        values behind its end.
    origin : tuple of int
        Position of the first element along each dimension; empty for zeros.
    """

    shape: Block
    dtype: str
    scale: float = 1.0
    conjugate: bool = False
    factors: tuple[Twiddle | ChirpFactor, ...] = ()
    origin: Block = ()

    def start(self, term: Term) -> int:
        """Return the position of the first element along the dimension of a term."""
        return self.origin[term.dim] + term.offset if self.origin else term.offset


@dataclass(frozen=True, slots=True)
class Product:
    """Product in place with another array, whose dimensions of length 1 are broadcast."""

    shape: Block
    other: Block
    dtype: str


@dataclass(frozen=True, slots=True)
class Strided:
    """Strided copy of elements between two arrays.

    Element (i, j, ...) of a box is read from ``start + i*strides[0] + j*strides[1] + ...`` of one
    array and written to the like position of the other, in elements. Targets are distinct.

    Parameters
    ----------
    counts : tuple of int
        Shape of the box.
    source, target : tuple of int
        Strides in each array; negative for a reversed dimension.
    source_start, target_start : int
        Position of the first element.
    dtype : str
        Dtype of both arrays.
    by : Multiply, optional
        Factors for an array of shape `counts`, applied during the copy.
    """

    counts: Block
    source: Block
    source_start: int
    target: Block
    target_start: int
    dtype: str
    by: Multiply | None = None


Compute = FFT | Multiply | Product | Strided


def transposed(
    shape: Block,
    axes: Block,
    dtype: str,
    by: Multiply | None = None,
) -> Strided:
    """Return a copy with the dimensions in another order: ``target = source.transpose(axes)``.

    >>> transposed((2, 3), (1, 0), "<c16").target
    (1, 2)
    """
    target = [0] * len(shape)
    steps = dense(tuple(shape[axis] for axis in axes), 1)
    for axis, step in zip(axes, steps, strict=True):
        target[axis] = step
    return Strided(
        shape,
        dense(shape, 1),
        0,
        tuple(target),
        0,
        dtype,
        by,
    )


# --- host blocks in digits: blocks that end within digits, and half spectra ----------------------
#
# Digits d1, d2, ... of a dimension, outermost first, make the index d1*s1 + d2*s2 + .... A block in
# host memory holds the indices between two bounds. A tile is a box of digits, so it is read from or
# written to a few boxes of the block (`HostView`). Half a spectrum of real values is completed by
# X[N - n] = conj X[n], which needs a few more boxes, each reversed::
#
#     N = 3*4, 7 values given          n2: 0 1 2 3      0 1 2 3
#                                n1 = 0    0 1 2 3      . . . .
#                                n1 = 1    4 5 6 .      . . . 5*
#                                n1 = 2    . . . .      4*3*2*1*

Slices = tuple[slice, ...]


def shape_of(part: Slices) -> Block:
    """Return the shape of a part of an array."""
    return tuple(cut.stop - cut.start for cut in part)


@dataclass(frozen=True)
class HostView:
    """View in digits of a contiguous block in host memory, which may have a part of them.

    Parameters
    ----------
    digits : tuple of tuple of int
        Radices of the digits of each dimension of the block, outermost first.
    bounds : tuple of (int, int)
        First and end value of the block along each dimension.
    """

    digits: tuple[Block, ...]
    bounds: Box

    @staticmethod
    @lru_cache(maxsize=256)  # since a block has many tiles
    def of(shape: Block) -> "HostView":
        """Return the view of a whole block, with one digit per dimension."""
        return HostView(tuple((n,) for n in shape), tuple((0, n) for n in shape))

    def joined(self, first: int, radices: Block, length: int) -> "HostView":
        """Return the view of a block with the first values of some digits joined in a dimension.

        Parameters
        ----------
        first : int
            Dimension of the first digit.
        radices : tuple of int
            Radices of the digits of a whole spectrum or padded axis, outermost first.
        length : int
            Number of values in the block.
        """
        digits = list(self.digits)
        bounds = list(self.bounds)
        own = slice(first, first + len(radices))
        digits[own] = [radices]
        bounds[own] = [(0, length)]
        return HostView(tuple(digits), tuple(bounds))

    @property
    def shape(self) -> Block:
        """Radices of all digits: the shape of the view."""
        return tuple(itertools.chain.from_iterable(self.digits))

    @cached_property
    def _places(self) -> tuple[int, Block]:
        """Position of the view's first element in the block, and strides, in elements."""
        steps = dense(tuple(high - low for low, high in self.bounds), 1)
        pairs = zip(self.digits, steps, strict=True)
        strides = (n * step for radices, step in pairs for n in dense(radices, 1))
        first = -sum(low * step for (low, _), step in zip(self.bounds, steps, strict=True))
        return first, tuple(strides)

    def part(self, block: npt.NDArray[Any], part: Slices) -> npt.NDArray[Any]:
        """Return a part of the view, contained in the block, as a NumPy view.

        A block that is not contiguous has no digits.
        """
        if not block.flags.c_contiguous:
            return block[part]
        first, strides = self._places
        first += sum(cut.start * step for cut, step in zip(part, strides, strict=True))
        # Unlike `as_strided`, this checks bounds and keeps the owner of the memory.
        distances = [step * block.itemsize for step in strides]
        start = first * block.itemsize
        return np.ndarray(
            shape_of(part),
            block.dtype,
            block,
            start,
            distances,
        )

    def parts(self, part: Slices) -> Iterator[Slices]:
        """Yield the boxes of a part of the view that are in the block."""
        cuts = iter(part)
        choices = []
        for radices, (low, high) in zip(self.digits, self.bounds, strict=True):
            own_cuts = tuple(itertools.islice(cuts, len(radices)))
            boxes = [cut_box(box, own_cuts) for box in interval_boxes(radices, low, high)]
            choices.append([box for box in boxes if box])
        for chosen in itertools.product(*choices):
            yield tuple(itertools.chain.from_iterable(chosen))


def cut_box(box: Box, part: Slices) -> Slices:
    """Return the part of a box inside slices, or an empty tuple if there is none.

    >>> cut_box(((0, 2), (1, 4)), (slice(1, 5), slice(0, 2)))
    (slice(1, 2, None), slice(1, 2, None))
    """
    slices = []
    for (low, high), cut in zip(box, part, strict=True):
        first = max(low, cut.start)
        last = min(high, cut.stop)
        if first >= last:
            return ()
        slices.append(slice(first, last))
    return tuple(slices)


def image_of(
    box: Box,
    part: Slices,
    starts: Block,
    steps: Block,
) -> Slices:
    """Return the mirror image of a part of a box.

    `starts` and `steps` are those of `mirror_boxes`.

    >>> image_of(((2, 3), (1, 4)), (slice(2, 3), slice(2, 4)), (0, 3), (-1, -1))
    (slice(0, 1, None), slice(1, 3, None))
    """
    slices = []
    for (low, _), cut, start, step in zip(
        box,
        part,
        starts,
        steps,
        strict=True,
    ):
        first = start + step * (cut.start - low)
        last = start + step * (cut.stop - 1 - low)
        slices.append(slice(min(first, last), max(first, last) + 1))
    return tuple(slices)
