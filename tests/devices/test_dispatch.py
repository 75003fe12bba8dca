"""How a block reaches the device: in its dtype, by several threads, or not copied at all."""

import numpy as np
import pytest
from devices.blocks import job_of, values

from dask_bigfft.devices import dispatch
from dask_bigfft.devices.dispatch import LEAST_NBYTES, Place, converted, on_device
from dask_bigfft.kernels.incoming import Whole


@pytest.mark.parametrize("size", [0, 1, 1000, 3 * dispatch.SHARED_ELEMENTS + 5])
def test_conversion_by_threads_is_numpys(size):
    x = np.arange(2 * size, dtype="f4").reshape(2, -1)
    got = converted(x, np.dtype("c8"), 4)
    assert got.dtype == "c8"
    np.testing.assert_array_equal(got, x.astype("c8"))
    assert converted(x, x.dtype, 4) is x


def test_without_a_device_nothing_is_touched():
    x = values(4, LEAST_NBYTES // 16)
    job, _ = job_of(x, "fft2")

    class Untouched(Whole):
        def whole(self, out=None, *, threads=1):
            raise AssertionError("gathered")

    assert on_device(job, Untouched(x), None, Place("cpu")) is None
