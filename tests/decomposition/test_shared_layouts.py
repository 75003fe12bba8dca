"""Joints against exchanges: what one block writes, the other reads, as a gather would move it."""

import itertools

import dask
import dask.array as da
import numpy as np
import pytest

import dask_bigfft
from dask_bigfft.decomposition.layout import AxisLayout, Digit, Group, Layout, whole
from dask_bigfft.decomposition.rounds import merged, shared_blocks, shared_layout_of
from dask_bigfft.exchange.gather import view_of
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.graph.carriers import Groups
from dask_bigfft.graph.in_place import view_in

PLANS = [
    ((4096,), 512, "fft", {}),
    ((3 * 5 * 7 * 16,), 105, "fft", {}),
    ((4096,), 512, "fft", {"order": "transposed"}),
    ((60, 84), (7, 84), "fft2", {}),
    ((61, 17), (9, 17), "fft2", {}),
    ((24, 30, 20), (5, 30, 20), "fftn", {}),
    ((24, 30, 20), (6, 10, 20), "fftn", {}),
    ((24, 30, 20), (6, 10, 5), "fftn", {}),
    ((32, 48, 20), (8, 48, 20), "rfftn", {}),
    ((64, 64), (8, 64), "ifft2", {"chunks": (16, 16)}),
    ((4096,), 512, "fft", {"rounds": [{0: 16}, {0: 16}, {0: -1}]}),
]


def home(shared, layout, block):
    """The block of a shared layout that contains a block."""
    return tuple(by[i] for by, i in zip(shared_blocks(shared, layout), block, strict=True))


@pytest.mark.parametrize(("shape", "chunks", "kind", "extras"), PLANS)
def test_blocks_find_in_a_joint_what_a_gather_would_bring(shape, chunks, kind, extras):
    x = da.zeros(shape, chunks=chunks, dtype=float if kind[0] == "r" else complex)
    with dask.config.set(scheduler="threads", num_workers=2):
        plan = dask_bigfft.plan(x, kind, **extras)
    found = [j for j in plan.shared_layouts.exchanges if j is not None]
    assert found
    for exchange, shared_layout in zip(plan.exchanges, plan.shared_layouts.exchanges, strict=True):
        if shared_layout is None:
            continue
        layout = shared_layout.layout
        for group, sources, targets in Groups(exchange):  # has one block of the joint
            assert {home(layout, exchange.source, i) for i in sources} == {group}
            assert {home(layout, exchange.target, i) for i in targets} == {group}
        arrays = {i: np.full(layout.shape(i), -1) for i in layout.indices()}
        counter = itertools.count()
        sources = {}
        for block in exchange.source.indices():
            place = view_in(
                arrays[home(layout, exchange.source, block)], layout, exchange.source, block
            )
            size = place.size
            sources[block] = np.arange(size).reshape(place.shape) + next(counter) * plan.source.size
            assert (place == -1).all()  # nobody else writes there
            place[...] = sources[block]
        assert all((array >= 0).all() for array in arrays.values())
        moves = ExchangeMap(exchange.source, exchange.target)
        for block in exchange.target.indices():
            gathered = view_of(moves, block, np.dtype(int), sources.__getitem__).gather()
            array = arrays[home(layout, exchange.target, block)]
            np.testing.assert_array_equal(view_in(array, layout, exchange.target, block), gathered)


def digit(stride, size, radix=0):
    return Digit(1, stride, size, radix or size)


def test_a_partial_digit_is_not_joined():
    half = digit(1, 3, 4)
    assert merged((digit(4, 2), half)) == (digit(4, 2), half)
    assert merged((half, digit(4, 2))) == (half, digit(4, 2))
    assert len(merged((digit(4, 2), digit(1, 4)))) == 1
    a = Layout((AxisLayout((whole(digit(4, 2)), whole(half))),))
    b = Layout((AxisLayout((Group((digit(1, 6),), (6,)),)),))
    assert shared_layout_of(a, b) is None
