import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_bigfft.decomposition.layout import AxisLayout, Digit, Group, Layout, plain, whole
from dask_bigfft.decomposition.rounds import (
    Round,
    axis_components,
    exchange_shape,
    transformed,
    unflattened,
)
from dask_bigfft.decomposition.steps import axis_program
from dask_bigfft.testing.strategies import chunks_of


def split(n1, n2, first, second):
    """An axis as a matrix of n1 x n2 digits of the input, in chunks."""
    return AxisLayout(
        (Group((Digit(0, n2, n1, n1),), first), Group((Digit(0, 1, n2, n2),), second))
    )


def test_a_step_replaces_its_digit_where_it_lies():
    one, two = axis_program(1, 12, (3, 4)).steps
    layout = Layout((plain(5, (5,)), split(3, 4, (3,), (2, 2))))
    after = transformed(layout, (one,))
    assert after.axes[0] == layout.axes[0]
    assert [g.digits for g in after.axes[1].groups] == [(one.target,), (two.source,)]
    assert [g.chunks for g in after.axes[1].groups] == [(3,), (2, 2)]
    assert Round((one,), layout, after).dim(one) == 1
    with pytest.raises(ValueError, match="no group"):
        Round((one,), after, after).dim(one)


def test_an_exchange_with_itself_is_local():
    for axis in [plain(12, (5, 4, 3)), split(3, 4, (1, 2), (2, 2)), plain(12, (12,))]:
        layout = Layout((axis, plain(4, (2, 2))))
        shape = exchange_shape(layout, layout)
        assert shape.local
        assert shape.fan_in == 1
        assert shape.groups == shape.blocks_out == layout.blocks


@pytest.mark.parametrize(
    ("before", "after", "local", "groups"),
    [
        ((4, 4), (8,), False, 1),
        ((8,), (4, 4), False, 1),
        ((4, 4, 4, 4), (8, 8), False, 2),
        ((4, 0, 4), (4, 4), True, 2),
        ((3, 5), (5, 3), False, 1),
    ],
)
def test_rechunks_of_one_axis(before, after, local, groups):
    n = sum(before)
    shape = exchange_shape(Layout((plain(n, before),)), Layout((plain(n, after),)))
    assert (shape.local, shape.groups) == (local, groups)


def test_a_batch_axis_separates_the_groups_of_an_exchange():
    before = Layout((plain(8, (2,) * 4), plain(6, (2, 2, 2))))
    after = Layout((plain(8, (2,) * 4), plain(6, (6,))))
    shape = exchange_shape(before, after)
    assert (shape.groups, shape.fan_in, shape.shards) == (4, 3, 12)


def test_a_digit_that_stays_cut_separates_the_groups():
    before = split(4, 6, (1,) * 4, (6,))
    after = split(4, 6, (1,) * 4, (3, 3))
    groups = axis_components(before, after)
    assert groups.count == 4
    assert groups.sources == ((0,), (1,), (2,), (3,))
    assert groups.targets == ((0, 1), (2, 3), (4, 5), (6, 7))
    assert not groups.one_to_one


def test_sources_that_nobody_reads_have_no_group():
    cropped = AxisLayout((Group((Digit(0, 1, 6, 6),), (4, 4, 5)),))
    groups = axis_components(cropped, plain(6, (4, 2)))
    assert list(groups.of_source) == [0, 1, -1]
    assert groups.one_to_one
    padded = AxisLayout((Group((Digit(0, 1, 9, 9),), (4, 2)),))
    groups = axis_components(padded, plain(9, (4, 4, 1)))
    assert groups.targets[0] == (0,)
    assert 1 not in groups.sources[0]


@given(data=st.data())
def test_unflattened_blocks_are_the_same_blocks(data):
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    digits = tuple(Digit(1, i + 1, n, n) for i, n in enumerate(sizes))
    total = 1
    for n in sizes:
        total *= n
    before = AxisLayout((Group(digits, data.draw(chunks_of(total, 5))), whole(Digit(0, 1, 2, 2))))
    after = unflattened(before)
    assert after.digits == before.digits
    assert after.blocks == before.blocks
    for block in range(before.blocks):
        a, b = Layout((before,)), Layout((after,))
        assert a.flat_shape((block,)) == b.flat_shape((block,))
