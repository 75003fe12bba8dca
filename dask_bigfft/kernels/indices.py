"""Indices of digits at the places of a block, from the terms of programs."""

from collections.abc import Sequence

import numpy as np

from dask_bigfft.arrays import Array
from dask_bigfft.tiles.program import Index, axis_terms
from dask_bigfft.transforms.layout import AxisLayout


def index_table(
    index: Index,
    first: int,
    lows: Sequence[int],
    shape: Sequence[int],
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
    """
    table = np.zeros((1,) * len(shape), np.int64)
    for term in index:
        at = term.dim - first
        places = np.arange(lows[at], lows[at] + shape[at], dtype=np.int64)
        if term.offset:
            places = (places + term.offset) % term.size
        values = places // term.divisor % term.modulus * term.stride
        table = table + values.reshape([-1 if d == at else 1 for d in range(len(shape))])
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
