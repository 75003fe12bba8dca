"""Arrays whose blocks live on several GPUs of one process, through the whole graph.

The GPUs are simulated: their memories are NumPy arrays that count, and rounds are done by CPU
threads. What travels, by which transport and how much of it, is what GPUs would do.
"""

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft
from exchange.test_gpu_gather import RATIO
from support import heard

from dask_bigfft import plan, report
from dask_bigfft.exchange.gather import TRANSPORTS
from dask_bigfft.graph.carriers import ON_GPUS
from dask_bigfft.graph.layer import transformed_array
from dask_bigfft.planner.explain import human_bytes
from dask_bigfft.testing.gpus import SimulatedGpus, several_gpus
from dask_bigfft.testing.strategies import random_array


def computed(x, chunks, name, transport, **keywords):
    """The lazy result, the computed one, and the bytes that went between GPUs."""
    array = da.from_array(x, chunks, name=False)  # a report of its own
    lazy = transformed_array(array, plan(array, name, **keywords), ON_GPUS + transport)
    with heard("peer_host", "peer_direct") as events:
        got = lazy.compute(scheduler="threads")
    return lazy, got, sum(int(numbers["nbytes"]) for _, numbers in events)


@pytest.mark.parametrize("transport", [*TRANSPORTS, "auto"])
@pytest.mark.parametrize("devices", [2, 3])
def test_batches_on_several_gpus(transport, devices):
    x = random_array((24, 24, 10), "c16", 5)
    with several_gpus(SimulatedGpus((1 << 30,) * devices)) as gpus:
        lazy, got, moved = computed(x, (4, 24, 10), "fftn", transport)
    expected = scipy.fft.fftn(x)
    assert np.linalg.norm(got - expected) <= 1e-14 * np.linalg.norm(expected)
    needed = x.nbytes * (devices - 1) // devices
    assert moved == RATIO.get(transport, 1.0) * needed
    data, block = x.nbytes // devices, x.nbytes // 6
    assert all(3 * data <= peak <= 3 * data + block for peak in gpus.peak)
    (run,) = report(lazy).runs
    assert run.device_peaks == {("", gpu): nbytes for gpu, nbytes in enumerate(gpus.peak)}
    assert f"at most {human_bytes(gpus.peak[0])} of device 0" in str(run)


@pytest.mark.parametrize("transport", ["host", "direct"])
@pytest.mark.parametrize(
    ("shape", "chunks", "name"),
    [
        ((4096,), (256,), "fft"),
        ((4096,), (256,), "rfft"),
        ((24, 36), (5, 36), "ifft2"),
        ((24, 12, 18), (6, 6, 18), "fftn"),
        ((3, 4099), (3, 500), "fft"),
    ],
)
def test_other_transforms(shape, chunks, name, transport):
    x = random_array(shape, "f8" if name == "rfft" else "c16", 5)
    source = x.copy()
    floor = dask.config.set({"bigfft.planner.whole-axis-floor": 1})
    with several_gpus(SimulatedGpus((1 << 30,) * 2)), floor:
        _, got, moved = computed(x, chunks, name, transport)
    expected = getattr(scipy.fft, name)(x)
    assert np.linalg.norm(got - expected) <= 1e-13 * np.linalg.norm(expected)
    np.testing.assert_array_equal(x, source)
    assert moved > 0
