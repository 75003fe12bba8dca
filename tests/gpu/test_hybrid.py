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
from dask_bigfft.devices.engine import Engine
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
    begun, run_part = threading.Event(), Engine.run_part
    x = rng.standard_normal(shape)
    x = x if name == "rfftn" else x + 1j * rng.standard_normal(shape)
    if single:
        x = x.astype("f4" if name == "rfftn" else "c8")

    def sink(event, numbers):
        if event in done:
            done[event] += int(numbers["nbytes"])
        if event == "round_cpu":
            begun.set()

    def later(self, *arguments, **keywords):
        begun.wait(20)  # else the card has done it all before a thread has its first tile
        return run_part(self, *arguments, **keywords)

    monkeypatch.setattr(Engine, "run_part", later)
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
