"""How a block reaches the device: in its dtype, by several threads, or not copied at all."""

import itertools

import dask.array as da
import numpy as np
import pytest
from devices.blocks import distance, on_devices, scipys, values
from support import heard

from dask_bigfft import fft
from dask_bigfft.gpu.engine import Source
from dask_bigfft.kernels.views import SHARED_NBYTES
from dask_bigfft.testing.simulated import SimulatedGPU

#: Bytes of a device.
NBYTES = 1 << 14


@pytest.mark.parametrize("size", [0, 1, 1000, 3 * SHARED_NBYTES // 8 + 5])
def test_conversion_by_threads_is_numpys(size):
    x = np.arange(2 * size, dtype="f4").reshape(2, -1)
    converted = Source(lambda: x).get(np.dtype("c8"))
    assert converted.dtype == "c8"
    np.testing.assert_array_equal(converted, x.astype("c8"))
    assert Source(lambda: x).get(x.dtype) is x


def test_memory_that_cannot_be_had_is_asked_for_in_order_and_then_the_cpu_works():
    """All that is kept goes back; pieces are halved, and halved again; the CPU takes the block."""
    device = SimulatedGPU(NBYTES, refuses=lambda operation, nbytes: operation == "reserve")
    x = values(64, 48)
    with on_devices(device), heard("fallback") as events:
        spectrum = fft.fft2(da.from_array(x, chunks=-1), device="gpu").compute(scheduler="sync")
    assert device.peak == 0
    assert device.dropped >= 1
    assert distance(spectrum, scipys(x, "fft2")) < 1e-15
    *halved, block = (numbers["nbytes"] for _, numbers in events)
    assert halved[:3] == [NBYTES, NBYTES, NBYTES // 2]
    assert all(a == 2 * b for a, b in itertools.pairwise(halved[1:]))
    assert block == x.nbytes
