"""Strided copies told to the driver: what it reads there is what would be copied one by one."""

import ctypes

import numpy as np
import pytest

from dask_bigfft.gpu import cuda_planes
from dask_bigfft.gpu.transfer import TO_DEVICE, TO_HOST, copies

HOST, DEVICE = 1, 2


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
    monkeypatch.setattr(cuda_planes, "_driver", driver)
    rng = np.random.default_rng(0)
    blocks = [rng.standard_normal((8, 64)) for _ in range(5)]
    card = np.zeros((5, *blocks[0][cut].shape))
    calls = tuple(copies(blocks[0][cut]))
    hosts = np.array([block[cut].ctypes.data for block in blocks])
    devices = card.ctypes.data + np.arange(5) * card.strides[0]
    assert cuda_planes.planes(calls, hosts, devices, TO_DEVICE, 0) is True
    assert all(np.array_equal(card[i], block[cut]) for i, block in enumerate(blocks))
    card += 1
    expected = [block.copy() for block in blocks]
    for i, block in enumerate(expected):
        block[cut] = card[i]
    assert cuda_planes.planes(calls, hosts, devices, TO_HOST, 0) is True
    assert all(np.array_equal(a, b) for a, b in zip(blocks, expected, strict=True))


@pytest.mark.parametrize(("status", "said"), [(1, False), (2, None)])
def test_what_the_driver_refuses_is_left_to_others(monkeypatch, status, said):
    monkeypatch.setattr(cuda_planes, "_driver", lambda: driver(lambda n: status * (n == 2)))
    values = np.zeros((3, 4))
    places = np.array([values.ctypes.data] * 3)
    assert cuda_planes.planes(tuple(copies(values)), places, places, TO_DEVICE, 0) is said


def test_without_such_a_driver_others_copy(monkeypatch):
    monkeypatch.setattr(cuda_planes, "_driver", lambda: None)
    assert cuda_planes.planes((), np.empty(0, int), np.empty(0, int), TO_DEVICE, 0) is None
