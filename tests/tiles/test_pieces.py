"""Tables of boxes against every single value of random layouts."""

import itertools
import math

import numpy as np
import pytest
from exchange.layouts import axis_pairs
from hypothesis import given
from hypothesis import strategies as st

from dask_bigfft.tiles.pieces import interval_table, refined, stored
from dask_bigfft.transforms.layout import radix_points


def values_by_brute_force(layout):
    """The block and the place of each value, by the values of the layout's digits."""
    values = {}
    for block in range(layout.blocks):
        ranges = [range(n) for n in layout.shape(block)]
        for place in itertools.product(*ranges):
            digits = []
            for group, chunk, position in zip(
                layout.groups, layout.chunk_of(block), place, strict=True
            ):
                flat = group.bounds[chunk] + position
                if flat >= group.size:
                    break  # cropped
                sizes = [digit.size for digit in group.digits]
                digits += [int(digit) for digit in np.unravel_index(flat, sizes)]
            else:
                values[tuple(digits)] = (block, place)
    return values


def values_of(pieces, side):
    """The block and the place of each value of all boxes on a side, by the values of the digits."""
    places = pieces.sides[side]
    values = {}
    for row in range(len(pieces)):
        ranges = [range(*pair) for pair in zip(pieces.lows[row], pieces.highs[row], strict=True)]
        for digits in itertools.product(*ranges):
            place = places.starts[row].copy()
            for digit, dim in enumerate(places.dims):
                steps = digits[digit] - pieces.lows[row, digit]
                place[dim] += steps * places.steps[row, digit]
            key = tuple(map(int, digits))
            assert key not in values
            values[key] = (int(places.blocks[row]), tuple(map(int, place)))
    return values


@given(pair=axis_pairs(largest=40))
def test_boxes_of_a_layout_hold_each_value_once(pair):
    for layout in pair:
        assert values_of(stored(layout), 0) == values_by_brute_force(layout)


@given(pair=axis_pairs(largest=40), data=st.data())
def test_pieces_join_the_places_of_both_layouts(pair, data):
    source, target = pair
    points = radix_points(source, target)
    tables = [refined(stored(layout), layout.digits, points) for layout in pair]
    before, after = (values_of(table, 0) for table in tables)
    block = data.draw(st.integers(0, target.blocks - 1))
    pieces = tables[0].meet(tables[1].of_blocks(block))
    common = {digits for digits in before if digits in after and after[digits][0] == block}
    assert values_of(pieces, 0) == {digits: before[digits] for digits in common}
    assert values_of(pieces, 1) == {digits: after[digits] for digits in common}


@given(pair=axis_pairs(largest=40))
def test_a_reflected_digit_counts_backwards(pair):
    layout = pair[1]
    table = stored(layout)
    size = layout.digits[0].size
    straight = values_of(table, 0)
    reflected = values_of(table.reflected(0, size - 1), 0)
    assert reflected == {
        (size - 1 - first, *others): where for (first, *others), where in straight.items()
    }


@pytest.mark.parametrize("sizes", [(7,), (3, 4), (2, 3, 4), (1, 5, 1, 2)])
def test_boxes_of_all_intervals(sizes):
    total = math.prod(sizes)
    for low, high in itertools.combinations(range(total + 1), 2):
        rows, lows, highs = interval_table(np.array([low]), np.array([high]), sizes)
        assert len(rows) <= 2 * len(sizes) - 1
        flat = []
        for first, last in zip(lows, highs, strict=True):
            ranges = [range(*pair) for pair in zip(first, last, strict=True)]
            flat += [
                int(np.ravel_multi_index(digits, sizes)) for digits in itertools.product(*ranges)
            ]
        assert flat == list(range(low, high))
