"""Copies of host views: what the calls of the driver, done by hand, bring to the device."""

import ctypes
import random

import numpy as np
import pytest

from dask_bigfft.gpu import cupy_gpu
from dask_bigfft.gpu.cupy_gpu import (
    MAX_PITCH_NBYTES,
    TO_DEVICE,
    TO_HOST,
    View,
    copies,
    submit_2d,
)
from dask_bigfft.gpu.operations import dense

HOST, DEVICE = 1, 2


def form(view, places=None):
    return View(view.shape, view.strides, view.itemsize, places or dense(view.shape, view.itemsize))


def taken(view, place):
    """Do what the calls copy into a place, byte by byte as the driver would."""
    block = view if view.base is None else view.base
    while block.base is not None:
        block = block.base
    memory = block.reshape(-1).view(np.uint8)
    start = view.ctypes.data - memory.ctypes.data
    larger = place.base
    card = larger.reshape(-1).view(np.uint8)
    begin = place.ctypes.data - larger.ctypes.data
    seen = 0
    for copy in copies(form(view, place.strides)):
        assert copy.height == 1 or (copy.pitch >= copy.width <= copy.device_pitch)
        for plane in range(copy.depth):
            for row in range(copy.height):
                host = start + copy.host + plane * copy.plane + row * copy.pitch
                at = begin + copy.device
                at += plane * copy.device_plane + row * copy.device_pitch
                card[at : at + copy.width] = memory[host : host + copy.width]
        seen += copy.width * copy.height * copy.depth
    assert seen == view.nbytes


@pytest.mark.parametrize("seed", range(60))
def test_calls_bring_every_view_into_a_part_of_a_larger_array(seed):
    rng = random.Random(seed)
    dtype = rng.choice(("f4", "c8", "c16"))
    shape, views = tuple(rng.choice((1, 2, 3, 5)) for _ in range(rng.randint(1, 5))), []
    for fill in (1, 0):
        whole = tuple(n + rng.randint(0, 2) for n in shape)
        values = fill * np.arange(1, 1 + np.prod(whole), dtype=dtype).reshape(whole)
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


def test_nothing_is_copied_of_an_empty_view():
    view = np.zeros((4, 0, 3))
    assert copies(form(view)) == ()


def test_rows_further_apart_than_the_driver_allows_take_a_call_each():
    far = np.lib.stride_tricks.as_strided(np.zeros(4), (3, 2), (MAX_PITCH_NBYTES + 1, 8))
    found = copies(form(far))
    assert [copy.host for copy in found] == [0, MAX_PITCH_NBYTES + 1, 2 * MAX_PITCH_NBYTES + 2]
    assert {(copy.height, copy.width) for copy in found} == {(1, 16)}


def driver(status_of=lambda number: 0):
    """A driver that copies at once, as the structure says, and may refuse."""
    seen = []

    def copy(address, stream):
        seen.append(address)
        if status_of(len(seen)):
            return status_of(len(seen))
        words = np.ctypeslib.as_array(ctypes.cast(address, ctypes.POINTER(ctypes.c_uint64)), (16,))
        words = [int(word) for word in words]
        kinds = {HOST: 1, DEVICE: 2}
        assert {words[2], words[9]} == {HOST, DEVICE}
        source, target = words[2 + kinds[words[2]]], words[9 + kinds[words[9]]]
        for row in range(words[15]):
            ctypes.memmove(target + row * words[13], source + row * words[6], words[14])
        return 0

    return copy


@pytest.mark.parametrize("cut", [np.s_[2:5, 3:40], np.s_[1:3], np.s_[:, 7:8]])
def test_shards_of_one_form_are_copied_there_and_back(monkeypatch, cut):
    monkeypatch.setattr(cupy_gpu, "_driver", driver)
    rng = np.random.default_rng(0)
    blocks = [rng.standard_normal((8, 64)) for _ in range(5)]
    there = np.zeros((5, *blocks[0][cut].shape))
    calls = copies(form(blocks[0][cut]))
    hosts = np.array([block[cut].ctypes.data for block in blocks])
    devices = there.ctypes.data + np.arange(5) * there.strides[0]
    assert submit_2d(calls, hosts, devices, TO_DEVICE, 0) is True
    assert all(np.array_equal(there[i], block[cut]) for i, block in enumerate(blocks))
    there += 1
    expected = [block.copy() for block in blocks]
    for i, block in enumerate(expected):
        block[cut] = there[i]
    assert submit_2d(calls, hosts, devices, TO_HOST, 0) is True
    assert all(np.array_equal(a, b) for a, b in zip(blocks, expected, strict=True))


@pytest.mark.parametrize(("status", "said"), [(1, False), (2, None)])
def test_what_the_driver_refuses_is_left_to_others(monkeypatch, status, said):
    monkeypatch.setattr(cupy_gpu, "_driver", lambda: driver(lambda n: status * (n == 2)))
    values = np.zeros((3, 4))
    places = np.array([values.ctypes.data] * 3)
    assert submit_2d(copies(form(values)), places, places, TO_DEVICE, 0) is said


def test_without_such_a_driver_others_copy(monkeypatch):
    monkeypatch.setattr(cupy_gpu, "_driver", lambda: None)
    assert submit_2d((), np.empty(0, int), np.empty(0, int), TO_DEVICE, 0) is None
