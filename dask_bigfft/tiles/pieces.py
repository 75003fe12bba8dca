"""Index maps between the blocks of two layouts of an axis, as tables of boxes of digits.

A layout stores an axis in blocks: it maps an index to a block and a place in it. In the digits that
are common to two layouts, this map is affine on *boxes*: within ranges of the digits, one more in a
digit is a constant step in one dimension of the block. `Pieces` is a table of boxes. Each of its
*sides* has the places of all boxes in the blocks of one layout::

    box of digits        side 0: source blocks        side 1: target blocks
    d1 2..4, d2 0..8     block 5, start, steps        block 0, start, steps

An interval of flattened digits is a head, a body and a tail: at most 2m - 1 boxes for m digits. One
box of a source that meets one box of a target is a *piece*, a single strided copy.

==================  =======================================  ====================================
`stored`            index -> block, place of a layout        the boxes of all blocks
`Pieces.split`      a digit in finer digits                  digits that are common to two layouts
`Pieces.meet`       intersection with another table          the copies of an exchange
`negated`           -k modulo N in place of k                the mirror image of a half spectrum
==================  =======================================  ====================================

The order of rows is part of the format of packed shards: rows of the first table, then rows of the
second one, then the C order of the axes.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dask_bigfft.arrays import Ints
from dask_bigfft.transforms.layout import AxisLayout, Digit, Group, sub_radices


@dataclass(frozen=True, eq=False)
class Side:
    """Places of boxes in the blocks of a layout, one row each.

    Parameters
    ----------
    blocks : ndarray, (rows,)
        Number of the block along the axis.
    starts : ndarray, (rows, dimensions)
        Place of the first value in each dimension of the block.
    steps : ndarray, (rows, digits)
        Distance of two values of a digit in its dimension; negative for a reflected digit.
    dims : tuple of int
        Dimension of each digit, the same in all rows.
    """

    blocks: Ints
    starts: Ints
    steps: Ints
    dims: tuple[int, ...]

    def rows(self, rows: Ints | slice) -> "Side":
        """Return the side of some boxes."""
        return Side(
            self.blocks[rows],
            self.starts[rows],
            self.steps[rows],
            self.dims,
        )

    def of_digits(self, digits: list[int]) -> "Side":
        """Return the side with its digits in another order; digits of one value may be left out."""
        dims = tuple([self.dims[digit] for digit in digits])
        return Side(
            self.blocks,
            self.starts,
            self.steps[:, digits],
            dims,
        )

    def moved(self, rows: Ints, distances: Ints) -> "Side":
        """Return the side of some boxes, which begin some values later in each digit.

        Parameters
        ----------
        rows : ndarray, (boxes,)
            Rows of the boxes in this table.
        distances : ndarray, (boxes, digits)
            Number of values by which each digit begins later.
        """
        starts = self.starts[rows]
        steps = self.steps[rows]
        offsets = distances * steps
        for digit, dim in enumerate(self.dims):
            starts[:, dim] += offsets[:, digit]
        return Side(
            self.blocks[rows],
            starts,
            steps,
            self.dims,
        )

    @cached_property
    def distinct(self) -> tuple[list[int], Ints]:
        """Different blocks in ascending order, and the position there of the block of each row."""
        names, positions = np.unique(self.blocks, return_inverse=True)
        return names.tolist(), positions.reshape(-1)


@dataclass(frozen=True, eq=False)
class Pieces:
    """Table of boxes of digits of an axis, one row each.

    Parameters
    ----------
    lows, highs : ndarray, (rows, digits)
        First value of each digit, and one more than its last value.
    sides : tuple of Side
        Places of the boxes in the blocks of one or several layouts.
    """

    lows: Ints
    highs: Ints
    sides: tuple[Side, ...]

    def __len__(self) -> int:
        return len(self.lows)

    @cached_property
    def counts(self) -> Ints:
        """Number of values of each digit."""
        return self.highs - self.lows

    @cached_property
    def size(self) -> int:
        """Number of values of all boxes."""
        return int(self.counts.prod(axis=1).sum())

    def rows(self, rows: Ints | slice) -> "Pieces":
        """Return some of the boxes."""
        sides = tuple(side.rows(rows) for side in self.sides)
        return Pieces(self.lows[rows], self.highs[rows], sides)

    def of_blocks(self, blocks: int | Sequence[int]) -> "Pieces":
        """Return the boxes of some blocks of the first side."""
        is_in_blocks = np.isin(self.sides[0].blocks, blocks)
        return self.rows(np.flatnonzero(is_in_blocks))

    def cut(self, rows: Ints, lows: Ints, highs: Ints) -> "Pieces":
        """Return the parts of some boxes between `lows` and `highs`, which lie inside them."""
        distances = lows - self.lows[rows]
        sides = tuple(side.moved(rows, distances) for side in self.sides)
        return Pieces(lows, highs, sides)

    def within(self, lows: Ints, highs: Ints) -> "Pieces":
        """Return the parts of the boxes inside one box, or of each box inside a box of its own."""
        rows, part_lows, part_highs = self.rows_within(lows, highs)
        return self.cut(rows, part_lows, part_highs)

    def rows_within(self, lows: Ints, highs: Ints) -> tuple[Ints, Ints, Ints]:
        """Return the rows of the boxes in `within`, and first and end values of their parts."""
        part_lows = np.maximum(self.lows, lows)
        part_highs = np.minimum(self.highs, highs)
        has_values = np.all(part_lows < part_highs, axis=1)
        rows = np.flatnonzero(has_values)
        return rows, part_lows[rows], part_highs[rows]

    def meet(self, other: "Pieces") -> "Pieces":
        """Return the intersections with the boxes of another table, with the sides of both."""
        meets = np.ones((len(self), len(other)), bool)  # whether two boxes have a common value
        for digit in range(self.lows.shape[1]):
            own_lows = self.lows[:, digit, None]
            own_highs = self.highs[:, digit, None]
            meets &= own_lows < other.highs[:, digit]
            meets &= other.lows[:, digit] < own_highs
        rows, other_rows = meets.nonzero()
        lows = np.maximum(self.lows[rows], other.lows[other_rows])
        highs = np.minimum(self.highs[rows], other.highs[other_rows])
        own_parts = self.cut(rows, lows, highs)
        other_parts = other.cut(other_rows, lows, highs)
        return Pieces(lows, highs, own_parts.sides + other_parts.sides)

    def of_digits(self, digits: Sequence[int]) -> "Pieces":
        """Return the boxes with their digits in another order."""
        order = list(digits)
        sides = tuple(side.of_digits(order) for side in self.sides)
        lows = self.lows[:, order]
        highs = self.highs[:, order]
        return Pieces(lows, highs, sides)

    def split(self, digit: int, sizes: Sequence[int]) -> "Pieces":
        """Return the boxes in terms of finer digits in place of one digit, outermost first.

        Value v of the digit has the fine digits v = d1*w1 + d2*w2 + ..., of which each box becomes
        a few boxes.
        """
        if len(sizes) == 1:
            return self
        weights = digit_weights(sizes)
        rows, fine_lows, fine_highs = interval_table(
            self.lows[:, digit],
            self.highs[:, digit],
            sizes,
        )
        first_values = fine_lows @ weights
        distances = np.zeros((len(rows), self.lows.shape[1]), np.int64)
        distances[:, digit] = first_values - self.lows[rows, digit]
        sides = []
        for side in self.sides:
            moved = side.moved(rows, distances)
            fine_steps = moved.steps[:, digit, None] * weights
            fine_dims = (side.dims[digit],) * len(sizes)
            fine_side = replace(
                moved,
                steps=_with_columns(moved.steps, digit, fine_steps),
                dims=side.dims[:digit] + fine_dims + side.dims[digit + 1 :],
            )
            sides.append(fine_side)
        lows = _with_columns(self.lows[rows], digit, fine_lows)
        highs = _with_columns(self.highs[rows], digit, fine_highs)
        return Pieces(lows, highs, tuple(sides))

    def reflected(self, digit: int, constant: int) -> "Pieces":
        """Return the boxes with values v of a digit replaced by ``constant - v``."""
        lows = self.lows.copy()
        highs = self.highs.copy()
        # The last value becomes the first one: low' = constant - (high - 1).
        lows[:, digit] = constant + 1 - self.highs[:, digit]
        highs[:, digit] = constant + 1 - self.lows[:, digit]
        last_numbers = self.counts[:, digit] - 1
        sides = []
        for side in self.sides:
            starts = side.starts.copy()
            steps = side.steps.copy()
            dim = side.dims[digit]
            starts[:, dim] += last_numbers * steps[:, digit]
            steps[:, digit] *= -1
            sides.append(replace(side, starts=starts, steps=steps))
        return Pieces(lows, highs, tuple(sides))


def stacked(tables: Sequence[Pieces]) -> Pieces:
    """Return the boxes of several tables with the same digits and sides, one after the other."""
    if len(tables) == 1:
        return tables[0]
    sides = []
    sides_of_tables = [table.sides for table in tables]
    for same_side in zip(*sides_of_tables, strict=True):
        stacked_side = Side(
            blocks=np.concatenate([side.blocks for side in same_side]),
            starts=np.concatenate([side.starts for side in same_side]),
            steps=np.concatenate([side.steps for side in same_side]),
            dims=same_side[0].dims,
        )
        sides.append(stacked_side)
    lows = np.concatenate([table.lows for table in tables])
    highs = np.concatenate([table.highs for table in tables])
    return Pieces(lows, highs, tuple(sides))


def _with_columns(table: Ints, place: int, columns: Ints) -> Ints:
    """Return a table with one column replaced by several."""
    before = table[:, :place]
    after = table[:, place + 1 :]
    return np.concatenate([before, columns, after], axis=1)


# --- intervals of flattened digits ---------------------------------------------------------------


def digit_weights(sizes: Sequence[int]) -> Ints:
    """Return the increment of a flattened index per step of each digit, outermost first."""
    weights = []
    for digit in range(len(sizes)):
        inner_sizes = sizes[digit + 1 :]
        weights.append(math.prod(inner_sizes))
    return np.array(weights, np.int64)


def interval_table(lows: Ints, highs: Ints, sizes: Sequence[int]) -> tuple[Ints, Ints, Ints]:
    """Return the boxes of digits that make up many intervals of flattened values.

    Parameters
    ----------
    lows, highs : ndarray, (intervals,)
        First value of each interval, and one more than its last value.
    sizes : sequence of int
        Number of values of each digit, outermost first.

    Returns
    -------
    rows : ndarray, (boxes,)
        The interval of each box.
    lows, highs : ndarray, (boxes, digits)
        First value of each digit, and one more than its last value.

    Examples
    --------
    >>> rows, lows, highs = interval_table(np.array([3]), np.array([11]), (3, 4))
    >>> np.stack([lows, highs], axis=2).tolist()
    [[[0, 1], [3, 4]], [[1, 2], [0, 4]], [[2, 3], [0, 3]]]
    """
    weights = np.maximum(digit_weights(sizes), 1)
    innermost = len(sizes) - 1
    # From its low end to its high end, an interval goes up in whole values of ever coarser digits,
    # and then down again. Each leg of this walk is a box: in 3..10 of digits (3, 4) these are 3,
    # 4..7 and 8..10.
    stop = lows
    stops = [stop]
    for digit in range(innermost, 0, -1):
        weight = weights[digit]
        outer_weight = weights[digit - 1]
        next_outer = -(-stop // outer_weight) * outer_weight
        last_whole = highs // weight * weight
        stop = np.minimum(np.maximum(stop, last_whole), next_outer)
        stops.append(stop)
    for weight in weights:
        last_whole = highs // weight * weight
        stop = np.maximum(stop, last_whole)
        stops.append(stop)
    walk = np.stack(stops, axis=1)
    rows, legs = np.nonzero(walk[:, :-1] < walk[:, 1:])
    first_values = walk[rows, legs]
    last_values = walk[rows, legs + 1] - 1
    first_digits = first_values[:, None] // weights
    last_digits = last_values[:, None] // weights
    inner_sizes = np.maximum(np.array(sizes[1:], np.int64), 1)
    first_digits[:, 1:] %= inner_sizes
    last_digits[:, 1:] %= inner_sizes
    return rows, first_digits, last_digits + 1


# --- tables of layouts ---------------------------------------------------------------------------


def stored(layout: AxisLayout) -> Pieces:
    """Return the boxes of all blocks of an axis in the digits of its layout, sorted by block."""
    first, *others = layout.groups
    table = _stored_group(first)
    for group in others:
        table = _product(table, _stored_group(group), len(group.chunks))
    return table


def _stored_group(group: Group) -> Pieces:
    """Return the boxes of all chunks of one dimension of an axis."""
    sizes = [digit.size for digit in group.digits]
    intervals = _intervals(group)
    rows, lows, highs = interval_table(intervals.begins, intervals.ends, sizes)
    weights = digit_weights(sizes)
    first_values = lows @ weights
    distances = first_values - intervals.begins[rows]
    steps = intervals.steps[rows]
    starts = intervals.places[rows] + distances * steps
    side = Side(
        blocks=intervals.chunks[rows],
        starts=starts[:, None],
        steps=steps[:, None] * weights,
        dims=(0,) * len(sizes),
    )
    return Pieces(lows, highs, (side,))


class _Intervals(NamedTuple):
    """Intervals of values that are stored at one step in a chunk, one row each.

    Parameters
    ----------
    chunks : ndarray, (intervals,)
        Number of the chunk.
    begins, ends : ndarray, (intervals,)
        First value, and one more than the last value.
    places : ndarray, (intervals,)
        Place of the first value in the chunk.
    steps : ndarray, (intervals,)
        Distance of two values in the chunk.
    """

    chunks: Ints
    begins: Ints
    ends: Ints
    places: Ints
    steps: Ints


def _intervals(group: Group) -> _Intervals:
    """Return the intervals of all chunks of a group."""
    count = len(group.chunks)
    if not group.arrangement and not group.offset:
        bounds = np.minimum(np.array(group.bounds, np.int64), group.size)
        return _Intervals(
            chunks=np.arange(count),
            begins=bounds[:-1],
            ends=bounds[1:],
            places=np.zeros(count, np.int64),
            steps=np.ones(count, np.int64),
        )
    rows = []
    for chunk in range(count):
        for begin, end, place, step in group.runs(chunk):
            rows.append((chunk, begin, end, place, step))
    table = np.array(rows, np.int64).reshape(-1, 5)
    return _Intervals(*table.T)


def _product(outer: Pieces, inner: Pieces, chunks: int) -> Pieces:
    """Return the boxes of blocks with the dimensions of two tables, sorted by block.

    The blocks of `inner` are the `chunks` of one more dimension.
    """
    (outer_side,) = outer.sides
    (inner_side,) = inner.sides
    pairs = np.arange(len(outer) * len(inner))
    rows, inner_rows = np.divmod(pairs, max(len(inner), 1))
    blocks = outer_side.blocks[rows] * chunks + inner_side.blocks[inner_rows]
    order = np.argsort(blocks, kind="stable")
    rows = rows[order]
    inner_rows = inner_rows[order]

    def beside(columns: Ints, inner_columns: Ints) -> Ints:
        return np.concatenate([columns[rows], inner_columns[inner_rows]], axis=1)

    first_inner_dim = outer_side.starts.shape[1]
    inner_dims = tuple(first_inner_dim + dim for dim in inner_side.dims)
    side = Side(
        blocks=blocks[order],
        starts=beside(outer_side.starts, inner_side.starts),
        steps=beside(outer_side.steps, inner_side.steps),
        dims=outer_side.dims + inner_dims,
    )
    lows = beside(outer.lows, inner.lows)
    highs = beside(outer.highs, inner.highs)
    return Pieces(lows, highs, (side,))


def refined(
    table: Pieces, digits: Sequence[Digit], points: Mapping[int, tuple[int, ...]]
) -> Pieces:
    """Return a table of boxes in finer digits, into which the digits of a layout are split.

    The digits are sorted by stage and falling stride, so that the tables of two layouts of an axis
    have the same digits in the same order.

    Parameters
    ----------
    table : Pieces
        Boxes in the digits of the layout.
    digits : sequence of Digit
        These digits.
    points : mapping
        For each stage of the digits, the strides at which finer digits begin and end, in ascending
        order, as `radix_points` returns them for two layouts.
    """

    def rank(place: int) -> tuple[int, int]:
        return digits[place].stage, -digits[place].stride

    order = sorted(range(len(digits)), key=rank)
    table = table.of_digits(order)
    fine_place = 0
    for digit in [digits[place] for place in order]:
        radices = sub_radices(digit, points[digit.stage])
        table = table.split(fine_place, radices)
        fine_place += len(radices)
    return table


# --- mirror images -------------------------------------------------------------------------------


def negated_half(table: Pieces, digits: Sequence[Digit], length: int) -> Pieces:
    """Return the boxes of N - k for the indices k of half a spectrum, without stored ones.

    The digit of stride 1 is partial. Only its reflected values that are not stored are included, so
    nothing is covered twice.
    """
    strides = [digit.stride for digit in digits]
    partial = strides.index(1)
    period = length if len(digits) == 1 else digits[partial].radix
    # Value v of the digit has the image period - v, which is stored if it is less than the size.
    first_with_stored_image = period - digits[partial].size + 1
    lows = table.lows.copy()
    highs = table.highs.copy()
    lows[:, partial] = np.maximum(lows[:, partial], 1)
    highs[:, partial] = np.minimum(highs[:, partial], first_with_stored_image)
    images = table.within(lows, highs)
    for place, digit in enumerate(digits):
        constant = period if place == partial else digit.radix - 1
        images = images.reflected(place, constant)
    return images


def negated(table: Pieces, digits: Sequence[Digit]) -> Pieces:
    """Return the boxes of -k modulo N for the indices k of a table.

    -k keeps the zeros at the low end of k, turns the lowest other digit v into radix - v, and the
    higher ones into radix - 1 - v. So a box has an image for each digit that may be the lowest one
    that is not zero, and one more if it contains k = 0. The images of a box stay together.
    """
    ascending = sorted(range(len(digits)), key=lambda place: digits[place].stride)
    images: list[Pieces] = []
    origins: list[Ints] = []  # the rows of the table that images come from
    # Parts of boxes in which all lower digits are zero, and their rows in the table.
    zeros = table
    rows = np.arange(len(table))
    for number, lowest in enumerate(ascending):
        lows = zeros.lows.copy()
        lows[:, lowest] = np.maximum(lows[:, lowest], 1)
        has_image = np.flatnonzero(lows[:, lowest] < zeros.highs[:, lowest])
        image = zeros.cut(has_image, lows[has_image], zeros.highs[has_image])
        # The radix of a single digit may exceed N (an axis padded for Bluestein's algorithm).
        digit = digits[lowest]
        modulus = digit.size if len(digits) == 1 else digit.radix
        image = image.reflected(lowest, modulus)
        for higher in ascending[number + 1 :]:
            image = image.reflected(higher, digits[higher].radix - 1)
        images.append(image)
        origins.append(rows[has_image])
        has_zero = np.flatnonzero(zeros.lows[:, lowest] == 0)
        highs = zeros.highs[has_zero]
        highs[:, lowest] = 1
        zeros = zeros.cut(has_zero, zeros.lows[has_zero], highs)
        rows = rows[has_zero]
    images.append(zeros)  # -0 is 0
    origins.append(rows)
    order = np.argsort(np.concatenate(origins), kind="stable")
    return stacked(images).rows(order)
