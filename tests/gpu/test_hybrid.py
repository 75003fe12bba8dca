"""CPU threads and a real card in the same rounds."""

import threading

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft

from dask_bigfft import fft
from dask_bigfft.devices import find
from dask_bigfft.devices.cuda import available
from dask_bigfft.devices.taking import Taking
from dask_bigfft.events import add_sink, remove_sink

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not available(), reason="no CUDA device, or no CuPy"),
]


@pytest.mark.parametrize(
    ("shape", "chunks", "name"),
    [
        ((4096, 2048), (1024, 2048), "fft2"),
        ((2048, 4096), (2048, 1024), "ifft2"),
        ((576, 320, 144), (96, 320, 144), "fftn"),
        ((576, 320, 144), (192, 320, 144), "rfftn"),
        ((1 << 23,), (1 << 21,), "fft"),
    ],
)
@pytest.mark.parametrize("single", [False, True])
def test_both_work_on_it(shape, chunks, name, single, monkeypatch):
    rng, done = np.random.default_rng(8), {"round_cpu": 0, "round_device": 0}
    begun, portion, end = threading.Event(), Taking._portion, Taking.done
    x = rng.standard_normal(shape)
    x = x if name == "rfftn" else x + 1j * rng.standard_normal(shape)
    if single:
        x = x.astype("f4" if name == "rfftn" else "c8")

    def sink(event, numbers):
        if event in done:
            done[event] += int(numbers["nbytes"])

    def offered(self, kind, block):
        """To the card nothing before a thread has done a tile: else it may have done it all."""
        return (0, 0) if kind == "device" and not begun.is_set() else portion(self, kind, block)

    def done_with(self, taken, seconds):
        end(self, taken, seconds)
        if taken.kind == "cpu":
            begun.set()

    monkeypatch.setattr(Taking, "_portion", offered)
    monkeypatch.setattr(Taking, "done", done_with)
    find.release()
    crew = find.crew()
    crew.cores = 1  # else a machine with many has done it all before the card has begun
    add_sink(sink)
    try:
        with dask.config.set({"bigfft.hybrid-gain": 0}):
            lazy = getattr(fft, name)(da.from_array(x, chunks), device="hybrid")
        got = lazy.compute(scheduler="threads")
    finally:
        remove_sink(sink)
    expected = getattr(scipy.fft, name)(x)
    assert got.dtype == expected.dtype
    assert np.linalg.norm(got - expected) <= (2e-6 if single else 2e-15) * np.linalg.norm(expected)
    assert done["round_cpu"]
    assert done["round_device"]


def test_a_small_part_of_the_card_is_enough():
    x = np.random.default_rng(9).standard_normal((1024, 1024)) + 0j
    lazy = fft.fft2(da.from_array(x, (256, 1024)), device="hybrid", device_memory_limit="16 MiB")
    got = lazy.compute(scheduler="threads")
    assert np.linalg.norm(got - scipy.fft.fft2(x)) <= 2e-15 * np.linalg.norm(got)
