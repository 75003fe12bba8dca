import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_bigfft.decomposition.layout import (
    AxisLayout,
    Digit,
    Group,
    Layout,
    even_chunks,
    plain,
    radix_points,
    sub_radices,
    whole,
)
from dask_bigfft.testing.strategies import chunks_of


@st.composite
def axes(draw):
    groups = []
    for stride in range(draw(st.integers(1, 3))):
        size = draw(st.integers(1, 9))
        groups.append(Group((Digit(0, stride + 1, size, size),), draw(chunks_of(size, 4))))
    return AxisLayout(tuple(groups))


@given(size=st.integers(0, 300), parts=st.integers(1, 320))
def test_even_chunks(size, parts):
    chunks = even_chunks(size, parts)
    assert sum(chunks) == size
    assert len(chunks) <= max(parts, 1)
    assert len(set(chunks[:-1])) <= 1
    if size:
        assert 0 < chunks[-1] <= chunks[0] == -(-size // min(parts, size))
    else:
        assert chunks == (0,)


@given(axis=axes())
def test_blocks_are_numbered_row_major(axis):
    for block, chunks in enumerate(itertools.product(*map(range, axis.grid))):
        assert axis.chunk_of(block) == chunks
        assert axis.block_of(chunks) == block
    assert axis.blocks == math.prod(axis.grid)


@given(found=st.lists(axes(), min_size=1, max_size=3))
def test_shapes_and_sizes(found):
    layout = Layout(tuple(found))
    shapes = [layout.shape(block) for block in layout.indices()]
    assert len(shapes) == layout.blocks
    assert sum(map(math.prod, shapes)) == layout.size
    assert max(map(math.prod, shapes)) == layout.largest
    for block, shape in zip(layout.indices(), shapes, strict=True):
        flat = layout.flat_shape(block)
        assert len(flat) == len(found)
        assert math.prod(flat) == math.prod(shape)


@pytest.mark.parametrize(
    ("chunks", "intervals"),
    [
        ((4, 6), [(0, 4), (4, 10)]),
        ((4, 3), [(0, 4), (4, 7)]),  # padded
        ((4, 9, 5), [(0, 4), (4, 10), (10, 10)]),  # cropped
        ((0, 10, 0), [(0, 0), (0, 10), (10, 10)]),
    ],
)
def test_intervals_of_padded_and_cropped_axes(chunks, intervals):
    axis = plain(10, chunks)
    assert [axis.intervals(i)[0] for i in range(axis.blocks)] == intervals
    assert [axis.shape(i)[0] for i in range(axis.blocks)] == list(chunks)


@given(size=st.integers(1, 40), data=st.data())
def test_chunks_that_touch_an_interval(size, data):
    group = plain(size, data.draw(chunks_of(size))).groups[0]
    low = data.draw(st.integers(0, size + 3))
    high = data.draw(st.integers(0, size + 3))
    found = set(group.chunks_touching(low, high))
    needed = {
        i for i, (a, b) in enumerate(itertools.pairwise(group.bounds)) if max(a, low) < min(b, high)
    }
    assert needed <= found
    # beyond what is needed only empty chunks may be named
    assert all(group.chunks[i] == 0 for i in found - needed)


def test_common_digits():
    coarse = plain(24, (24,))
    fine = AxisLayout(
        (whole(Digit(0, 12, 2, 2)), whole(Digit(0, 4, 3, 3)), whole(Digit(0, 1, 4, 4)))
    )
    points = radix_points(coarse, fine)
    assert points == {0: (1, 4, 12, 24)}
    assert sub_radices(coarse.digits[0], points[0]) == (2, 3, 4)
    assert sub_radices(fine.digits[1], points[0]) == (3,)


def test_stages_are_kept_apart():
    layout = AxisLayout((whole(Digit(1, 1, 3, 3)), whole(Digit(0, 1, 4, 4))))
    assert radix_points(layout, layout) == {1: (1, 3), 0: (1, 4)}


def test_digits_without_a_common_refinement_are_refused():
    two = AxisLayout((whole(Digit(0, 2, 3, 3)), whole(Digit(0, 1, 2, 2))))
    three = AxisLayout((whole(Digit(0, 3, 2, 2)), whole(Digit(0, 1, 3, 3))))
    with pytest.raises(ValueError, match="no common refinement"):
        radix_points(two, three)
