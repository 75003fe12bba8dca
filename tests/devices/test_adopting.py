"""Arrays of others are pinned once, and whoever asks meanwhile waits until they are."""

import threading
from concurrent.futures import ThreadPoolExecutor, wait

import dask
import numpy as np
import pytest

from dask_bigfft.gpu import cuda
from dask_bigfft.memory.pinned import LEAST_ADOPTED_NBYTES, Pinner


@pytest.mark.parametrize("refused", [False, True])
def test_who_asks_while_an_array_is_being_pinned_waits(monkeypatch, refused):
    begun = threading.Event()
    go_on = threading.Event()

    def register(address, nbytes):
        begun.set()
        assert go_on.wait(20)
        if refused:
            raise OSError("no")

    pinner = Pinner(
        register,
        lambda address: None,
        1 << 30,
        adopted=1 << 30,
    )
    monkeypatch.setattr(cuda.pins, "_pinner", pinner)
    monkeypatch.setattr(
        cuda, "is_pinned", lambda view: pinner.covers(view.ctypes.data, view.nbytes)
    )
    array = np.empty(LEAST_ADOPTED_NBYTES, np.uint8)
    half = array.size // 2
    with dask.config.set({"bigfft.memory.pin-arrays": True}), ThreadPoolExecutor(2) as pool:
        first = pool.submit(cuda.reachable, array[:half])
        assert begun.wait(20)
        second = pool.submit(cuda.reachable, array[half:])
        assert not wait([second], 0.05).done
        go_on.set()
        assert first.result() is second.result() is not refused
    with dask.config.set({"bigfft.memory.pin-arrays": False}):
        other = np.empty(LEAST_ADOPTED_NBYTES, np.uint8)
        assert not cuda.reachable(other)
    pinner.close()
