"""Indices at places of a block, and the places of an index."""

import math

import numpy as np
import pytest

from dask_bigfft.kernels.indices import axis_index
from dask_bigfft.transforms.layout import AxisLayout, Digit, Group, plain, whole

TWO_DIGITS = (Digit(1, 1, 3, 3), Digit(1, 3, 4, 4))

AXES = {
    "plain": plain(12, (5, 0, 7)),
    "one value": plain(1, (1,)),
    "prime": plain(13, (13,)),
    "two groups": AxisLayout((Group((Digit(0, 4, 3, 3),), (1, 2)), whole(Digit(0, 1, 4, 4)))),
    "flattened": AxisLayout((Group(TWO_DIGITS, (4, 8)),)),
    "shifted": AxisLayout((Group((Digit(0, 1, 12, 12),), (5, 7), offset=7),)),
    "shifted digits": AxisLayout((Group(TWO_DIGITS, (4, 8), offset=5),)),
    "two groups, shifted": AxisLayout(
        (Group((Digit(1, 1, 3, 3),), (1, 2)), Group((Digit(1, 3, 4, 4),), (4,), offset=3))
    ),
}


@pytest.mark.parametrize("name", AXES)
def test_the_place_of_an_index_is_where_a_table_has_it(name: str) -> None:
    axis = AXES[name]
    stage = max(digit.stage for digit in axis.digits)
    for block in range(axis.blocks):
        index = axis_index(axis, block, stage)
        values = index.table().ravel()
        first_places: dict[int, int] = {}
        for place, value in enumerate(values.tolist()):
            first_places.setdefault(value, place)
        for value in range(math.prod(digit.size for digit in axis.digits)):
            assert index.place_of(value) == first_places.get(value), (block, value)


@pytest.mark.parametrize("name", AXES)
def test_whole_rows_have_the_indices_of_their_places(name: str) -> None:
    axis = AXES[name]
    stage = max(digit.stage for digit in axis.digits)
    for block in range(axis.blocks):
        index = axis_index(axis, block, stage)
        values = index.table().ravel()
        outer, *inner = [count for count in index.shape if count != 1] or [1]
        row = math.prod(inner)
        for first in range(outer):
            part = index.rows(first * row, row)
            assert part is not None
            assert np.array_equal(part.table().ravel(), values[first * row :][:row])
        if row > 1:
            assert index.rows(1, row) is None
            assert index.rows(0, row + 1) is None
