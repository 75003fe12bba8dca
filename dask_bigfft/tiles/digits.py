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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

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


@dataclass(frozen=True, eq=False)
class AxisDigits:
    """Axis of a block as boxes of its digits.

    Parameters
    ----------
    boxes : tuple of Pieces
        The boxes of each table, in the digits of all dimensions; their only side is the source
        blocks.
    radices : tuple of tuple of int
        Radices of the digits of each dimension, outermost first.
    bounds : tuple of (int, int)
        First place of the block along each dimension of the digits, and the one behind the last.
    """

    boxes: tuple[Pieces, ...]
    radices: tuple[Block, ...]
    bounds: tuple[tuple[int, int], ...]

    @property
    def sizes(self) -> Block:
        """Radices of all digits."""
        return tuple(itertools.chain.from_iterable(self.radices))

    @property
    def are_slabs(self) -> bool:
        """True if the boxes fill the block, and each has all values of all digits but one.

        There is one table.
        """
        volume = math.prod(high - low for low, high in self.bounds)
        (boxes,) = self.boxes
        if not boxes.size == volume == math.prod(self.sizes):
            return False
        is_cut = (boxes.counts < np.array(self.sizes, np.int64)).any(axis=0)
        return int(np.count_nonzero(is_cut)) < 2


def axis_in_digits(tables: Sequence[Pieces], shape: Block) -> AxisDigits | None:
    """Return an axis of a target block in its digits, or None if its places are not made of digits.

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
    if len(tables) == 1:
        return AxisDigits((boxes,), tuple(joined_radices), tuple(bounds))
    ends = list(itertools.accumulate(map(len, tables)))
    boxes_of_tables = tuple(
        boxes.rows(slice(end - len(table), end)) for end, table in zip(ends, tables, strict=True)
    )
    return AxisDigits(boxes_of_tables, tuple(joined_radices), tuple(bounds))


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
    # `first`: places before the block, of those that whole digits make around it. It is 0 where
    # the block has whole digits, else the place of the block within its outermost digit.
    first_value = int(pieces.lows[0, own_digits] @ target.steps[0, own_digits])
    firsts = [(first_value - int(target.starts[0, dim])) % int(steps[0])]
    if length % steps[0] == 0:
        firsts.insert(0, 0)
    for first in firsts:
        outer_radix = -(-(first + length) // int(steps[0]))
        radices = (outer_radix, *(steps[:-1] // steps[1:]).tolist())
        places = target.starts[:, dim] + first
        lows = _values(
            places,
            pieces.counts[:, digits],
            radices,
            steps,
        )
        if lows is not None:
            return _Dimension(
                digits,
                lows,
                radices,
                (first, first + length),
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
    lows = places[:, None] // steps
    lows[:, 1:] %= np.array(radices[1:], np.int64)
    is_box = (lows + counts <= np.array(radices, np.int64)).all() and (lows @ steps == places).all()
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
    joined = Pieces(np.stack(lows, axis=1), np.stack(highs, axis=1), (side,))
    return joined, joined_radices


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

#: First and end value of each digit.
Box = tuple[tuple[int, int], ...]


@lru_cache(maxsize=256)
def interval_boxes(radices: Block, low: int, high: int) -> tuple[Box, ...]:
    """Return the boxes of digits with an index in [low, high).

    >>> interval_boxes((3, 4), 0, 7)
    (((0, 1), (0, 4)), ((1, 2), (0, 3)))
    """
    _, lows, highs = interval_table(np.array([low]), np.array([high]), radices)
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
        digits.append(
            Digit(
                0,
                stride,
                radix,
                radix,
            )
        )
    _, lows, highs = interval_table(np.array([0]), np.array([end]), radices)
    block = np.zeros(len(lows), np.int64)
    side = Side(
        block,
        lows,
        np.ones_like(lows),
        tuple(range(len(radices))),
    )
    images = negated(Pieces(lows, highs, (side,)), digits)
    images = images.rows(np.flatnonzero((images.highs > 1).any(axis=1)))
    (side,) = images.sides
    starts = map(tuple, side.starts.tolist())
    steps = map(tuple, side.steps.tolist())
    return tuple(
        zip(
            _boxes(images.lows, images.highs),
            starts,
            steps,
            strict=True,
        )
    )


def _boxes(lows: Ints, highs: Ints) -> tuple[Box, ...]:
    """Return the rows of a table of boxes."""
    rows = zip(lows.tolist(), highs.tolist(), strict=True)
    return tuple(tuple(zip(low, high, strict=True)) for low, high in rows)
