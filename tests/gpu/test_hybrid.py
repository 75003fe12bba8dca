"""The CPU and a real GPU in the same rounds."""

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft
from devices.blocks import NEEDS_GPU
from laws.test_devices import values
from laws.test_hybrid import computed

from dask_bigfft import fft
from dask_bigfft.gpu import dispatch

pytestmark = NEEDS_GPU


@pytest.mark.parametrize(
    ("shape", "chunks", "name"),
    [
        ((4096, 4096), (1024, 4096), "fft2"),
        ((4096, 4096), (4096, 1024), "ifft2"),
        ((576, 320, 144), (96, 320, 144), "fftn"),
        ((576, 320, 144), (192, 320, 144), "rfftn"),
        ((1 << 24,), (1 << 22,), "fft"),
    ],
)
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize("cpu_share", [None, 0.5])
def test_both_work_on_it(
    shape,
    chunks,
    name,
    single,
    cpu_share,
):
    """By the forecast a slow GPU, or a small part of it, might take nothing."""
    x = values(
        *shape,
        real=name == "rfftn",
        single=single,
        seed=8,
    )
    dispatch.release()
    with dask.config.set({"bigfft.hybrid.min-speedup": 0, "bigfft.hybrid.cpu-share": cpu_share}):
        part = "16 MiB" if cpu_share is None else None
        array = da.from_array(x, chunks)
        lazy = getattr(fft, name)(array, device="hybrid", device_memory_limit=part)
    transformed, nbytes_of = computed(lazy, scheduler="threads", num_workers=1)
    expected = getattr(scipy.fft, name)(x)
    assert transformed.dtype == expected.dtype
    assert np.linalg.norm(transformed - expected) <= (2e-6 if single else 2e-15) * np.linalg.norm(
        expected
    )
    if cpu_share is not None:
        assert 0.4 < nbytes_of["round_cpu"] / nbytes_of["round"] < 0.6
