"""Indices of digits at the places of a block, from the terms of programs."""

from collections.abc import Sequence

import numpy as np

from dask_bigfft.arrays import Array
from dask_bigfft.tiles.program import Index, axis_terms
from dask_bigfft.transforms.layout import AxisLayout


def place_of_index(
    value: int,
    index: Index,
    first: int,
    lows: Sequence[int],
    shape: Sequence[int],
) -> int | None:
    """Return the place, in C order, at which terms add up to a value; None if none of them does.

    Parameters
    ----------
    value : int
        The value.
    index, first, lows, shape
        As `index_table` takes them.

    Examples
    --------
    >>> from dask_bigfft.tiles.program import NO_MODULUS, Term
    >>> index = (Term(0, 1, NO_MODULUS, 1), Term(1, 1, NO_MODULUS, 3))
    >>> index_table(index, 0, (0, 1), (3, 3)).tolist(), place_of_index(7, index, 0, (0, 1), (3, 3))
    ([[3, 6, 9], [4, 7, 10], [5, 8, 11]], 4)
    """
    positions = dict.fromkeys(range(first, first + len(shape)), 0)
    remainder = value
    for term in sorted(index, key=lambda term: -term.stride):
        digit = min(remainder // term.stride, term.modulus - 1)
        remainder -= digit * term.stride
        positions[term.dim] += digit * term.divisor
    if remainder:
        return None
    for term in index:
        if term.offset:
            positions[term.dim] = (positions[term.dim] - term.offset) % term.size
    place = 0
    for position, low, count in zip(
        positions.values(),
        lows,
        shape,
        strict=True,
    ):
        if not low <= position < low + count:
            return None
        place = place * count + position - low
    return place


def index_table(
    index: Index,
    first: int,
    lows: Sequence[int],
    shape: Sequence[int],
    like: Array | None = None,
) -> Array:
    """Return the sum of the terms at all places of some dimensions of a block; it is read-only.

    Parameters
    ----------
    index : tuple of Term
        Terms of these dimensions.
    first : int
        The first of the dimensions.
    lows, shape : sequence of int
        First place and number of places of each dimension.
    like : array, optional
        Array on the device of the result, by default a NumPy array.
    """
    table = None
    for term in index:
        at = term.dim - first
        end = lows[at] + shape[at]
        values = np.arange(lows[at], end, dtype=np.int64, like=like)
        if term.offset:
            values += term.offset
            values %= term.size
            end = term.size
        if term.divisor > 1:
            values //= term.divisor
        if end > term.divisor * term.modulus:
            values %= term.modulus
        if term.stride != 1:
            values *= term.stride
        values = values.reshape([-1 if d == at else 1 for d in range(len(shape))])
        table = values if table is None else table + values
    if table is None:
        table = np.zeros((1,) * len(shape), np.int64, like=like)
    return np.broadcast_to(table, shape)


def axis_index(
    axis: AxisLayout,
    block: int,
    stage: int,
    skip: int | None = None,
) -> Array:
    """Return the index of an axis' digits of one stage, for each place of a block as stored.

    Digits of other stages are ignored, and group number `skip` is left out.
    """
    shape = list(axis.shape(block))
    if skip is not None:
        shape[skip] = 1
    lows = [low for low, _ in axis.intervals(block)]
    return index_table(
        axis_terms(
            axis,
            stage,
            0,
            skip,
        ),
        0,
        lows,
        shape,
    ).ravel()
