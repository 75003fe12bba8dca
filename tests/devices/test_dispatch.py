"""How a block reaches the device: in its dtype, by several threads, or not copied at all."""

import itertools

import dask.array as da
import numpy as np
import pytest
from devices.blocks import SMALL, distance, job_of, scipys, values

from dask_bigfft import fft
from dask_bigfft.events import add_sink, remove_sink
from dask_bigfft.gpu import dispatch
from dask_bigfft.gpu.dispatch import LEAST_NBYTES, Place, on_device
from dask_bigfft.gpu.engine import SHARED_ELEMENTS, converted
from dask_bigfft.kernels.views import BlockView
from dask_bigfft.testing.simulated import SimulatedGPU

#: Bytes of a device.
NBYTES = 1 << 14


@pytest.mark.parametrize("size", [0, 1, 1000, 3 * SHARED_ELEMENTS + 5])
def test_conversion_by_threads_is_numpys(size):
    x = np.arange(2 * size, dtype="f4").reshape(2, -1)
    got = converted(x, np.dtype("c8"), 4)
    assert got.dtype == "c8"
    np.testing.assert_array_equal(got, x.astype("c8"))
    assert converted(x, x.dtype, 4) is x


def test_without_a_device_nothing_is_touched():
    x = values(4, LEAST_NBYTES // 16)
    job, _ = job_of(x, "fft2")

    class Untouched(BlockView):
        def gather(self, out=None, threads=1):
            raise AssertionError("gathered")

    assert on_device(job, Untouched.of(x), None, Place("cpu")) is None


@pytest.mark.parametrize("name", ["fft2", "rfft2"])
def test_memory_that_cannot_be_had_is_asked_for_in_order_and_then_the_cpu_works(name):
    """All that is kept goes back; pieces are halved, and halved again; the CPU takes the block."""
    asked, events = [], []

    def refuses(operation, nbytes):
        asked.append(nbytes)
        return operation == "reserve"

    def listening(event, numbers):
        if event == "fallback":
            events.append(numbers["nbytes"])

    device = SimulatedGPU(NBYTES, refuses=refuses)
    x = values(64, 48, dtype="f8" if name == "rfft2" else "c16")
    dispatch.use([device], SMALL, NBYTES)
    add_sink(listening)
    try:
        lazy = getattr(fft, name)(da.from_array(x, chunks=-1), device="gpu")
        got = lazy.compute(scheduler="sync")
        assert device.peak == 0
        assert device.dropped == 1
    finally:
        remove_sink(listening)
        dispatch.use(None)
    assert distance(got, scipys(x, name)) < 1e-15
    *halved, block = events
    assert halved[:3] == [NBYTES, NBYTES, NBYTES // 2]
    assert all(a == 2 * b for a, b in itertools.pairwise(halved[1:]))
    assert block == x.nbytes
    assert asked
