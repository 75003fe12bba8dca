"""Cosine and sine transforms of blocks in host memory go through GPUs."""

import dask
import dask.array as da
import pytest
import scipy.fft

from dask_bigfft import fft
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.oracles import relative_l2
from dask_bigfft.testing.strategies import random_array

#: A prime, so that the axis goes through chirps; the limit is too small for whole lines.
LENGTH = 20011
OPTIONS = {"bigfft.device": "gpu", "bigfft.memory-limit": "780 KiB"}


@pytest.mark.parametrize(("name", "type_"), [("dct", 2), ("dst", 1), ("idct", 4)])
def test_a_split_axis_is_transformed_on_a_device(small, name, type_):
    x = random_array((LENGTH,), "f8", 1)
    with dask.config.set(OPTIONS), simulated_devices(1 << 16) as devices:
        y = getattr(fft, name)(da.from_array(x, chunks=1000), type_, norm="ortho")
        values = y.compute()
    assert relative_l2(values, getattr(scipy.fft, name)(x, type_, norm="ortho")) < 1e-14
    assert devices[0].peak > 0
