"""Where files are read, or written, in rows: what is taken for that, and what is not."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_bigfft.decomposition.layout import AxisLayout, Digit, Group, Layout, plain
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.planner.rows import Stored, is_split, reads_rows, row_factors, split_result


def cut(size, width):
    return tuple(min(width, size - low) for low in range(0, size, width))


def digits(*parts, order=None, stage=0):
    """An axis in digits of these lengths, outermost first, each with its width of chunks."""
    stride, found = 1, []
    for n, width in reversed(parts):
        found.append(Group((Digit(stage, stride, n, n),), cut(n, width)))
        stride *= n
    found.reverse()
    return AxisLayout(tuple(found[i] for i in order) if order else tuple(found))


@st.composite
def axes(draw, sizes=((2, 3, 4), (4, 6), (12, 2), (24,), (3, 8))):
    """Two layouts of an axis of length 24, in any digits and cuts."""
    def one():
        parts = [(n, draw(st.integers(1, n))) for n in draw(st.sampled_from(sizes))]
        order = draw(st.permutations(range(len(parts))))
        return digits(*parts, order=order)

    return one(), one()


@given(axes())
def test_a_part_of_one_block_is_that(pair):
    before, after = (Layout((axis,)) for axis in pair)
    if not is_split(before, after):
        return
    shards = ExchangeMap(before, after)
    assert all(len(shards.sources(block)) == 1 for block in after.indices())


def test_parts_are_found():
    flat = Group((Digit(1, 1, 128, 128),), (64, 64))
    result = Layout((AxisLayout((flat,)),))
    outer = Layout((digits((8, 4), (16, 16), order=(1, 0), stage=1),))
    inner = Layout((digits((8, 8), (16, 4), order=(1, 0), stage=1),))
    assert is_split(outer, outer)
    assert is_split(outer, result)
    assert not is_split(inner, result)
    assert is_split(result, result)


def test_the_largest_chunks_that_are_parts():
    """X[k1 + N1 k2] of blocks with some k1 and all k2: rows of neighbouring k1."""
    k1, k2 = Digit(1, 1, 8, 8), Digit(1, 8, 16, 16)
    last = Layout((AxisLayout((Group((k1,), (4, 4)), Group((k2,), (16,)))),))
    result = Layout((AxisLayout((Group((k2, k1), (64, 64)),)),))
    found = split_result(last, result)
    assert found.axes[0].groups[0].chunks == (4,) * 32
    shards = ExchangeMap(last, found)
    assert all(len(shards.sources(block)) == 1 for block in found.indices())


@pytest.mark.parametrize(
    ("unit", "anywhere", "row", "reads"),
    [
        ((2**8,), True, 2**4, True),  # rows of 16
        ((2**8,), True, 2**5, False),
        ((2**8,), False, 2**4, False),  # a chunk would be read by several
        ((2**4,), False, 2**9, True),  # whole chunks
        ((2**3,), False, 2**9, True),
        ((2**4 + 1,), False, 2**9, False),
    ],
)
def test_rows_that_are_wide_enough(unit, anywhere, row, reads):
    source = Layout((plain(2**12, cut(2**12, 2**8)),))
    target = Layout((digits((2**4, 2**4), (2**8, 2**4), order=(1, 0)),))
    assert reads_rows(Stored(unit, anywhere, row), source, target, 1) == reads


def test_what_is_stored_from_another_element_on_is_not_read_in_rows():
    axis = AxisLayout((Group((Digit(0, 1, 64, 64),), (32, 32), offset=3),))
    stored = Stored((32,), True, 1)
    assert not reads_rows(stored, Layout((axis,)), Layout((plain(64, (64,)),)), 16)


@given(st.integers(4, 4000), st.integers(1, 5000), st.integers(1, 50))
def test_digits_that_leave_rows_wide(n, room, row):
    for pair in row_factors(n, room, row):
        assert np.prod(pair) == n
        assert min(pair) * row <= room or max(pair) * row <= room
    for d in itertools.takewhile(lambda d: d * row <= room, range(2, n)):
        if n % d == 0:
            assert max(min(pair) for pair in row_factors(n, room, row)) >= min(d, n // d)


@pytest.mark.parametrize(
    ("unit", "anywhere", "parts"), [((4, 6), False, (4, 6)), ((8, 6), True, (2, 6))]
)
def test_the_smallest_parts_that_are_read_well(unit, anywhere, parts):
    stored = Stored(unit, anywhere, row_nbytes=2 * 6 * 16)
    found = stored.cut((10, 12), 16)
    assert tuple(cuts[0] for cuts in found) == parts
    assert tuple(map(sum, found)) == (10, 12)
