"""Copies of host views: what the calls of the driver, done by hand, bring to the device."""

import ctypes
import random

import numpy as np
import pytest

from dask_bigfft.gpu.transfer import (
    MAX_PITCH_NBYTES,
    TO_DEVICE,
    TO_HOST,
    Memcpy3D,
    calls,
    copies,
    memcpy3d,
    slabs,
)


def taken(view, place=None):
    """What the calls copy, done byte by byte as the driver would; into a place if one is given."""
    block = view if view.base is None else view.base
    while block.base is not None:
        block = block.base
    memory = block.reshape(-1).view(np.uint8)
    start = view.ctypes.data - memory.ctypes.data
    card = np.zeros(view.nbytes, np.uint8)
    begin, strides = 0, None
    if place is not None:
        larger = place.base
        card = larger.reshape(-1).view(np.uint8)
        begin, strides = place.ctypes.data - larger.ctypes.data, place.strides
    seen = 0
    for copy in copies(view, strides):
        assert copy.height == 1 or (copy.pitch >= copy.width <= copy.device_pitch)
        for plane in range(copy.depth):
            for row in range(copy.height):
                host = start + copy.host + plane * copy.plane + row * copy.pitch
                at = begin + copy.device
                at += plane * copy.device_plane + row * copy.device_pitch
                card[at : at + copy.width] = memory[host : host + copy.width]
        seen += copy.nbytes
    assert seen == view.nbytes
    return card.view(view.dtype).reshape(view.shape) if place is None else place


@pytest.mark.parametrize("seed", range(60))
def test_calls_bring_every_view_as_numpy_sees_it(seed):
    rng = random.Random(seed)
    shape = tuple(rng.choice((1, 2, 3, 5)) for _ in range(rng.randint(1, 6)))
    block = np.arange(np.prod(shape), dtype=rng.choice(("f4", "c8", "c16")))
    cut = []
    for n in shape:
        low = rng.randrange(n)
        cut.append(slice(low, rng.randint(low + 1, n)))
    view = block.reshape(shape)[tuple(cut)]
    assert np.array_equal(taken(view), view)
    assert len(list(copies(view))) == calls(view)


@pytest.mark.parametrize("seed", range(60))
def test_calls_bring_every_view_into_a_part_of_a_larger_array(seed):
    rng = random.Random(seed)
    ndim = rng.randint(1, 5)
    views = []
    shape = tuple(rng.choice((1, 2, 3)) for _ in range(ndim))
    for fill in (1, 0):
        whole = tuple(n + rng.randint(0, 2) for n in shape)
        values = fill * np.arange(1, 1 + np.prod(whole), dtype="c16").reshape(whole)
        values = np.ascontiguousarray(values)
        begin = [rng.randint(0, n - m) for n, m in zip(whole, shape, strict=True)]
        part = tuple(slice(low, low + m) for low, m in zip(begin, shape, strict=True))
        views.append((values, part))
    (block, from_), (card, to) = views
    view, there = block[from_], card[to]
    expected = card.copy()
    expected[to] = view
    taken(view, there)
    assert np.array_equal(card, expected)
    assert len(list(copies(view, there.strides))) == calls(view, there.strides)


def test_nothing_is_copied_of_an_empty_view():
    view = np.zeros((4, 0, 3))
    assert list(copies(view)) == []
    assert calls(view) == 0
    assert list(slabs(view, 100)) == []


def test_rows_further_apart_than_the_driver_allows_take_a_call_each():
    far = np.lib.stride_tricks.as_strided(np.zeros(4), (3, 2), (MAX_PITCH_NBYTES + 1, 8))
    found = list(copies(far))
    assert [copy.host for copy in found] == [0, MAX_PITCH_NBYTES + 1, 2 * MAX_PITCH_NBYTES + 2]
    assert {(copy.height, copy.width) for copy in found} == {(1, 16)}


@pytest.mark.parametrize("direction", [TO_DEVICE, TO_HOST])
def test_the_structure_of_a_three_dimensional_copy(direction):
    (copy,) = copies(np.zeros((8, 6, 4), "f8")[:, :3, :2])
    found = memcpy3d(copy, 1 << 20, 1 << 30, direction)
    assert ctypes.sizeof(Memcpy3D) == 160
    offsets = [getattr(Memcpy3D, name).offset for name, _ in Memcpy3D._fields_]
    assert offsets == [0, 8, 32, 64, 72, 96, 128, 152]
    apart, dense = found.srcPtr, found.dstPtr
    if direction == TO_HOST:
        apart, dense = dense, apart
    assert (apart.ptr, apart.pitch, apart.ysize) == (1 << 20, 32, 6)
    assert (dense.ptr, dense.pitch, dense.ysize) == (1 << 30, 16, 3)
    assert (found.extent.width, found.extent.height, found.extent.depth) == (16, 3, 8)


@pytest.mark.parametrize("nbytes", [1, 8, 24, 64, 100, 10**6])
def test_slabs_are_a_view_in_the_order_of_its_dense_copy(nbytes):
    view = np.arange(5 * 7 * 3, dtype="f8").reshape(5, 7, 3)[1:, ::1, :2]
    dense, end = np.ascontiguousarray(view).reshape(-1), 0
    for part, at in slabs(view, nbytes):
        values = view[part]
        assert values.nbytes <= max(nbytes, view.itemsize)
        assert at == end
        end += values.nbytes
        assert np.array_equal(values.reshape(-1), dense[at // 8 : end // 8])
    assert end == view.nbytes
