"""Boxes of digits that a block is along one axis, as it lies or mirrored, one by one and in tables.

Imports `decomposition` and numpy only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.layout import AxisLayout, Digit, Ranges, interval_boxes, sub_radices

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Box:
    """A box of digits inside a block's axis, and where it lies in the block.

    ``ranges`` are the values of every digit, ``dims`` the array dimension (counted within the
    axis) that holds the digit, ``steps`` the distance there from one value to the next
    (negative where mirrored), ``starts`` the place of the box's first element per dimension.
    """

    ranges: Ranges
    dims: tuple[int, ...]
    steps: tuple[int, ...]
    starts: tuple[int, ...]


def flat_strides(sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides of flattened digits.

    >>> flat_strides((3, 4, 5))
    (20, 5, 1)
    """
    return tuple(math.prod(sizes[i + 1 :]) for i in range(len(sizes)))


def stored_boxes(layout: AxisLayout, block: int) -> Iterator[Box]:
    """Boxes of a block in the layout's own digits."""
    per_group: list[list[tuple[Ranges, tuple[int, ...], int]]] = []
    for group, chunk in zip(layout.groups, layout.chunk_of(block), strict=True):
        sizes = tuple(digit.size for digit in group.digits)
        found = []
        for low, high, at, step in group.runs(chunk):
            steps = tuple(step * s for s in flat_strides(sizes))
            for ranges in interval_boxes(low, high, sizes):
                at_first = at + sum(r[0] * s for r, s in zip(ranges, steps, strict=True))
                found.append((ranges, steps, at_first - low * step))
        per_group.append(found)
    dims = tuple(d for d, group in enumerate(layout.groups) for _ in group.digits)
    for parts in itertools.product(*per_group):
        yield Box(
            tuple(r for part in parts for r in part[0]),
            dims,
            tuple(s for part in parts for s in part[1]),
            tuple(part[2] for part in parts),
        )


def _reflected(box: Box, digit: int, low: int, high: int, constant: int) -> Box:
    """The box with one digit's values v replaced by ``constant - v``, v in low..high-1."""
    (start, _), step, dim = box.ranges[digit], box.steps[digit], box.dims[digit]
    starts = list(box.starts)
    starts[dim] += (high - 1 - start) * step
    ranges, steps = list(box.ranges), list(box.steps)
    ranges[digit] = (constant - high + 1, constant - low + 1)
    steps[digit] = -step
    return Box(tuple(ranges), box.dims, tuple(steps), tuple(starts))


def _complemented(box: Box, digits: tuple[Digit, ...], which: list[int]) -> Box:
    """The box with the values v of some digits replaced by radix - 1 - v."""
    for i in which:
        low, high = box.ranges[i]
        box = _reflected(box, i, low, high, digits[i].radix - 1)
    return box


def mirror_half(box: Box, digits: tuple[Digit, ...], length: int) -> Iterator[Box]:
    """Where N - k lies for the half spectrum's places k of a box, as far as it is new.

    The digit of stride 1 is partial: of its values only the reflected ones that are not
    stored themselves are given, so nothing is covered twice.
    """
    partial = next(i for i, digit in enumerate(digits) if digit.stride == 1)
    digit = digits[partial]
    period = length if len(digits) == 1 else digit.radix
    low, high = box.ranges[partial]
    low, high = max(low, 1), min(high, period - digit.size + 1)
    if low >= high:
        return
    others = [i for i in range(len(digits)) if i != partial]
    yield _complemented(_reflected(box, partial, low, high, period), digits, others)


def mirror_full(box: Box, digits: tuple[Digit, ...]) -> Iterator[Box]:
    """Where -k modulo N lies for the places k of a box.

    -k keeps the zeros at the low end of k, turns the lowest other digit v into radix - v
    and the higher ones into radix - 1 - v.
    """
    ascending = sorted(range(len(digits)), key=lambda i: digits[i].stride)
    # A lone digit may have room for more than N values (an axis padded by Bluestein's algorithm).
    moduli = [digit.size if len(digits) == 1 else digit.radix for digit in digits]
    zeros = box
    for place, i in enumerate(ascending):
        low, high = zeros.ranges[i]
        start = max(low, 1)
        if start < high:
            turned = _reflected(zeros, i, start, high, moduli[i])
            yield _complemented(turned, digits, ascending[place + 1 :])
        if low > 0:
            return
        ranges = list(zeros.ranges)
        ranges[i] = (0, 1)
        zeros = Box(tuple(ranges), zeros.dims, zeros.steps, zeros.starts)
    yield zeros


def refined(
    box: Box, digits: tuple[Digit, ...], points: dict[int, tuple[int, ...]]
) -> Iterator[Box]:
    """The box in the finer digits between `points`, sorted by stage and falling stride."""
    order = sorted(range(len(digits)), key=lambda i: (digits[i].stage, -digits[i].stride))
    choices = []
    for i in order:
        sizes = sub_radices(digits[i], points[digits[i].stage])
        flat = flat_strides(sizes)
        low, high = box.ranges[i]
        choices.append([(i, ranges, flat) for ranges in interval_boxes(low, high, sizes)])
    for parts in itertools.product(*choices):
        ranges: list[tuple[int, int]] = []
        dims: list[int] = []
        steps: list[int] = []
        starts = list(box.starts)
        for i, found, flat in parts:
            first = sum(r[0] * f for r, f in zip(found, flat, strict=True))
            starts[box.dims[i]] += (first - box.ranges[i][0]) * box.steps[i]
            ranges += found
            dims += [box.dims[i]] * len(found)
            steps += [box.steps[i] * f for f in flat]
        yield Box(tuple(ranges), tuple(dims), tuple(steps), tuple(starts))


@dataclass(frozen=True, eq=False)
class BoxTable:
    """Boxes of an axis in common digits, one row each.

    Parameters
    ----------
    blocks : ndarray, (rows,)
        Block of each.
    lows, highs, steps : ndarray, (rows, digits)
        As a `Box` has them.
    starts : ndarray, (rows, dimensions)
        As a `Box` has them.
    dims : tuple of int
        Dimension of each digit, the same in all rows.
    """

    blocks: Ints
    lows: Ints
    highs: Ints
    steps: Ints
    starts: Ints
    dims: tuple[int, ...]

    def moved(self, rows: Ints, lows: Ints) -> Ints:
        """Starts of the parts of some boxes that begin at digit values `lows`."""
        starts, distances = self.starts[rows], (lows - self.lows[rows]) * self.steps[rows]
        for digit, dim in enumerate(self.dims):
            starts[:, dim] += distances[:, digit]
        return starts


def box_table(boxes: list[tuple[int, Box]]) -> BoxTable:
    """Boxes of an axis in one table, each with its block."""
    ranges = np.array([box.ranges for _, box in boxes], np.int64)
    return BoxTable(
        np.array([block for block, _ in boxes], np.int64),
        ranges[..., 0],
        ranges[..., 1],
        np.array([box.steps for _, box in boxes], np.int64),
        np.array([box.starts for _, box in boxes], np.int64),
        boxes[0][1].dims,
    )
