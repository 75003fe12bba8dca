"""Target blocks of an exchange in digits: each dimension of a block as digits of its places.

Along each axis, the pieces of an exchange are boxes of the digits that are common to source and
target. The digits of a dimension of the block are those of its places, too, so that a piece is a
box of the block. If a block ends within a digit, the pieces are boxes of a larger block around it,
which has whole digits::

    block of 7..18, digits of 4        . . . 7       around it: 4..19, of which the block has
                                       8 ...11       3..14
                                      12 ...15
                                      16 17 18 .

Digits that follow one another in the sources are joined.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np

from dask_bigfft.arrays import Block, Ints
from dask_bigfft.tiles.pieces import (
    Pieces,
    Side,
    digit_weights,
    interval_table,
    negated,
    stacked,
)
from dask_bigfft.transforms.layout import Digit

#: Maximum ratio of the size with whole digits to the size of a block. Only values of the block
#: cross the bus.
MOST_AROUND = 2


#: First and end value of each digit.
Box = tuple[tuple[int, int], ...]

#: Part of a block in digits: a slice of each digit.
Slices = tuple[slice, ...]


@dataclass(frozen=True)
class BlockDigits:
    """Digits of the dimensions of a block, which may have a part of their values.

    Digits d1, d2, ... of a dimension, outermost first, make the place d1*s1 + d2*s2 + ....

    Parameters
    ----------
    radices : tuple of tuple of int
        Radices of the digits of each dimension, outermost first.
    bounds : tuple of (int, int)
        First place of the block along each dimension of the digits, and the one behind the last.
    """

    radices: tuple[Block, ...]
    bounds: Box

    @staticmethod
    @lru_cache(maxsize=256)  # since a block has many tiles
    def of(shape: Block) -> "BlockDigits":
        """Return the form of a whole block with one digit per dimension."""
        radices = tuple((length,) for length in shape)
        bounds = tuple((0, length) for length in shape)
        return BlockDigits(radices, bounds)

    def joined(self, first: int, radices: Block, length: int) -> "BlockDigits":
        """Return the form of a block with the first values of some digits joined in a dimension.

        Parameters
        ----------
        first : int
            Dimension of the first digit.
        radices : tuple of int
            Radices of the digits of a whole spectrum or padded axis, outermost first.
        length : int
            Number of values in the block.
        """
        radices_of_dims = list(self.radices)
        bounds = list(self.bounds)
        own = slice(first, first + len(radices))
        radices_of_dims[own] = [radices]
        bounds[own] = [(0, length)]
        return BlockDigits(tuple(radices_of_dims), tuple(bounds))

    @cached_property
    def sizes(self) -> Block:
        """Radices of all digits."""
        return tuple(itertools.chain.from_iterable(self.radices))

    @property
    def shape(self) -> Block:
        """Shape of the block with whole digits."""
        return tuple(map(math.prod, self.radices))

    @property
    def is_whole(self) -> bool:
        """True if the block has all values of the digits."""
        return self.bounds == tuple((0, length) for length in self.shape)

    @cached_property
    def places(self) -> tuple[int, Block]:
        """Place of the first values of all digits in a contiguous block, and the digits' strides.

        The place is negative if the block does not have these values.
        """
        lengths = [high - low for low, high in self.bounds]
        dim_strides = digit_weights(lengths).tolist()
        strides: list[int] = []
        first = 0
        for radices, (low, _), dim_stride in zip(
            self.radices,
            self.bounds,
            dim_strides,
            strict=True,
        ):
            first -= low * dim_stride
            digit_strides = digit_weights(radices) * dim_stride
            strides += digit_strides.tolist()
        return first, tuple(strides)

    def parts(self, part: Slices) -> Iterator[Slices]:
        """Yield the boxes of a part of the digits that are in the block."""
        first_digit = 0
        boxes_of_dims = []
        for radices, (low, high) in zip(self.radices, self.bounds, strict=True):
            end_digit = first_digit + len(radices)
            cuts = part[first_digit:end_digit]
            first_digit = end_digit
            boxes = []
            for box in interval_boxes(radices, low, high):
                cut = cut_box(box, cuts)
                if cut:
                    boxes.append(cut)
            boxes_of_dims.append(boxes)
        for boxes_of_digits in itertools.product(*boxes_of_dims):
            yield tuple(itertools.chain.from_iterable(boxes_of_digits))


@dataclass(frozen=True, eq=False)
class AxisDigits:
    """Axis of a block as boxes of its digits.

    Parameters
    ----------
    boxes : tuple of Pieces
        The boxes of each table, in the digits of all dimensions; their only side is the source
        blocks.
    form : BlockDigits
        Digits of the dimensions of the axis.
    """

    boxes: tuple[Pieces, ...]
    form: BlockDigits

    @property
    def are_slabs(self) -> bool:
        """True if the boxes fill the block, and each has all values of all digits but one.

        There is one table.
        """
        (boxes,) = self.boxes
        sizes = self.form.sizes
        fill_block = boxes.size == math.prod(sizes)
        if not self.form.is_whole or not fill_block:
            return False
        is_cut = (boxes.counts < np.array(sizes, np.int64)).any(axis=0)
        return int(np.count_nonzero(is_cut)) < 2


def axis_in_digits(tables: Sequence[Pieces], shape: Block) -> AxisDigits | None:
    """Return an axis of a target block in its digits, or None if its places are not made of digits.

    It is None, too, if a piece is reflected, or if the block around the digits would have more than
    `MOST_AROUND` times as many values.

    A digit of which no piece has several values is left out; the pieces' places tell it.

    Parameters
    ----------
    tables : sequence of Pieces
        Pieces into the block, and those of the mirror image; side 0 is the source blocks, side 1
        the target block.
    shape : tuple of int
        Lengths of the dimensions of the block that belong to the axis.
    """
    pieces = stacked(tables)
    digits: list[int] = []
    lows: list[Ints] = []
    radices: list[Block] = []
    bounds: list[tuple[int, int]] = []
    for dim, length in enumerate(shape):
        dimension = _dimension_in_digits(pieces, dim, length)
        if dimension is None:
            return None
        digits += dimension.digits
        lows.append(dimension.lows)
        radices.append(dimension.radices)
        bounds.append(dimension.bounds)
    first_values = np.concatenate(lows, axis=1)
    last_values = first_values + pieces.counts[:, digits]
    side = pieces.sides[0].of_digits(digits)
    boxes, joined_radices = _joined(Pieces(first_values, last_values, (side,)), radices)
    if math.prod(map(math.prod, joined_radices)) > MOST_AROUND * math.prod(shape):
        return None
    form = BlockDigits(tuple(joined_radices), tuple(bounds))
    if len(tables) == 1:
        return AxisDigits((boxes,), form)
    boxes_of_tables = []
    first_row = 0
    for table in tables:
        end_row = first_row + len(table)
        boxes_of_tables.append(boxes.rows(slice(first_row, end_row)))
        first_row = end_row
    return AxisDigits(tuple(boxes_of_tables), form)


@dataclass(frozen=True, eq=False)
class _Dimension:
    """Digits of a dimension of a block.

    Parameters
    ----------
    digits : list of int
        Their numbers among the digits of the pieces, outermost first.
    lows : ndarray, (pieces, digits)
        First value of each digit in each piece.
    radices : tuple of int
        Radices of the digits.
    bounds : (int, int)
        Bounds of the block in the places that the digits make.
    """

    digits: list[int]
    lows: Ints
    radices: Block
    bounds: tuple[int, int]


def _dimension_in_digits(pieces: Pieces, dim: int, length: int) -> _Dimension | None:
    """Return the digits of a dimension of a block, or None if its places are not made of digits.

    The outermost one is the first of which some piece has several values. It is whole around the
    block.
    """
    target = pieces.sides[1]
    own_digits = [digit for digit, own_dim in enumerate(target.dims) if own_dim == dim]
    own_digits.sort(key=lambda digit: -target.steps[0, digit])
    has_several = np.any(pieces.counts > 1, axis=0).tolist()
    digits = list(itertools.dropwhile(lambda digit: not has_several[digit], own_digits))
    digits = digits or own_digits[-1:]
    steps = target.steps[0, digits]
    is_reflected = steps[-1] < 1
    if is_reflected or (target.steps[:, digits] != steps).any():
        return None
    outer_step = int(steps[0])
    inner_radices = (steps[:-1] // steps[1:]).tolist()
    # Whole digits around the block begin `offset` places before it: 0 where the block has whole
    # digits, else the place of the block within its outermost digit.
    first_value = int(pieces.lows[0, own_digits] @ target.steps[0, own_digits])
    first_place = int(target.starts[0, dim])
    offsets = [(first_value - first_place) % outer_step]
    if length % outer_step == 0:
        offsets.insert(0, 0)
    for offset in offsets:
        end = offset + length
        outer_radix = -(-end // outer_step)
        radices = (outer_radix, *inner_radices)
        lows = _values(
            target.starts[:, dim] + offset,
            pieces.counts[:, digits],
            radices,
            steps,
        )
        if lows is not None:
            return _Dimension(
                digits,
                lows,
                radices,
                bounds=(offset, end),
            )
    return None


def _values(
    places: Ints,
    counts: Ints,
    radices: Block,
    steps: Ints,
) -> Ints | None:
    """Return the first values of digits of boxes at places; None if the boxes exceed the digits."""
    if (digit_weights(radices) != steps).any():
        return None
    sizes = np.array(radices, np.int64)
    lows = places[:, None] // steps
    lows[:, 1:] %= sizes[1:]
    is_inside = (lows + counts <= sizes).all()
    is_box = is_inside and (lows @ steps == places).all()
    return lows if is_box else None


def _joined(boxes: Pieces, radices: Sequence[Block]) -> tuple[Pieces, list[Block]]:
    """Return boxes with digits of a dimension joined that follow one another in the sources.

    The radices of the new digits of each dimension are returned, too.
    """
    digits: list[int] = []
    lows: list[Ints] = []
    highs: list[Ints] = []
    joined_radices: list[Block] = []
    digit = 0
    for radices_of_dim in radices:
        new_radices: list[int] = []
        for radix in radices_of_dim:
            low = boxes.lows[:, digit]
            high = boxes.highs[:, digit]
            if new_radices and _follows(
                boxes,
                digits[-1],
                digit,
                highs[-1] - lows[-1],
                radix,
            ):
                new_radices[-1] *= radix
                digits[-1] = digit
                lows[-1] = lows[-1] * radix + low
                highs[-1] = (highs[-1] - 1) * radix + high
            else:
                new_radices.append(radix)
                digits.append(digit)
                lows.append(low)
                highs.append(high)
            digit += 1
        joined_radices.append(tuple(new_radices))
    if len(digits) == digit:
        return boxes, joined_radices
    side = boxes.sides[0].of_digits(digits)
    all_lows = np.stack(lows, axis=1)
    all_highs = np.stack(highs, axis=1)
    return Pieces(all_lows, all_highs, (side,)), joined_radices


def _follows(
    boxes: Pieces,
    outer: int,
    digit: int,
    outer_counts: Ints,
    radix: int,
) -> bool:
    """Return whether all boxes are boxes of one digit in place of two neighbours, too.

    `outer_counts` are the values of the outer digit, which may have been joined before.
    """
    (source,) = boxes.sides
    if source.dims[outer] != source.dims[digit]:
        return False
    outer_steps = source.steps[:, outer]
    steps = source.steps[:, digit]
    if (np.abs(outer_steps) != radix * np.abs(steps)).any():
        return False
    is_whole = boxes.counts[:, digit] == radix
    continues = is_whole & ((radix == 1) | (outer_steps == radix * steps))
    return bool(((outer_counts == 1) | continues).all())


# --- few boxes for many tiles -------------------------------------------------------------------
#
# A dimension of a block has few boxes of digits, and many tiles cut them: as lists, not as tables.
# A tile is a box of digits, so it is read from or written to a few boxes of the block. Half a
# spectrum of real values is completed by X[N - n] = conj X[n], which needs a few more boxes, each
# reversed::
#
#     N = 3*4, 7 values given          n2: 0 1 2 3      0 1 2 3
#                                n1 = 0    0 1 2 3      . . . .
#                                n1 = 1    4 5 6 .      . . . 5*
#                                n1 = 2    . . . .      4*3*2*1*


@lru_cache(maxsize=256)
def interval_boxes(radices: Block, low: int, high: int) -> tuple[Box, ...]:
    """Return the boxes of digits with an index in [low, high).

    >>> interval_boxes((3, 4), 0, 7)
    (((0, 1), (0, 4)), ((1, 2), (0, 3)))
    """
    begins = np.array([low])
    ends = np.array([high])
    _, lows, highs = interval_table(begins, ends, radices)
    return _boxes(lows, highs)


@lru_cache(maxsize=256)
def mirror_boxes(radices: Block, end: int) -> tuple[tuple[Box, Block, Block], ...]:
    """Return the boxes of digits of the nonzero indices n whose mirror image N - n is below `end`.

    N is the product of the radices. Each box comes with the digits of the image of its first value,
    and with their steps: -1 for a reversed digit.

    >>> mirror_boxes((3, 4), 5)
    ((((2, 3), (1, 4)), (0, 3), (-1, -1)), (((2, 3), (0, 1)), (1, 0), (-1, 1)))
    """
    digits = []
    for stride, radix in zip(digit_weights(radices).tolist(), radices, strict=True):
        digit = Digit(
            stage=0,
            stride=stride,
            size=radix,
            radix=radix,
        )
        digits.append(digit)
    _, lows, highs = interval_table(np.array([0]), np.array([end]), radices)
    side = Side(
        blocks=np.zeros(len(lows), np.int64),
        starts=lows,
        steps=np.ones_like(lows),
        dims=tuple(range(len(radices))),
    )
    images = negated(Pieces(lows, highs, (side,)), digits)
    is_not_zero = (images.highs > 1).any(axis=1)
    images = images.rows(np.flatnonzero(is_not_zero))
    (side,) = images.sides
    boxes = []
    for box, start, step in zip(
        _boxes(images.lows, images.highs),
        side.starts.tolist(),
        side.steps.tolist(),
        strict=True,
    ):
        boxes.append((box, tuple(start), tuple(step)))
    return tuple(boxes)


def _boxes(lows: Ints, highs: Ints) -> tuple[Box, ...]:
    """Return the rows of a table of boxes."""
    boxes = []
    for row_lows, row_highs in zip(lows.tolist(), highs.tolist(), strict=True):
        bounds_of_digits = zip(row_lows, row_highs, strict=True)
        boxes.append(tuple(bounds_of_digits))
    return tuple(boxes)


def shape_of(part: Slices) -> Block:
    """Return the shape of a part of an array."""
    return tuple(cut.stop - cut.start for cut in part)


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
