"""What is worked out once: the copies of a block, and those of exchanges that are alike."""

import dask
import dask.array as da
import numpy as np
import pytest

from dask_bigfft import fft
from dask_bigfft.exchange import shards


@pytest.fixture(autouse=True)
def nothing_kept():
    shards._shared_map.cache_clear()
    yield
    shards._shared_map.cache_clear()


def computed(y):
    """A result, worked out in this thread."""
    with dask.config.set(scheduler="synchronous"):
        return y.compute()


def test_blocks_that_lie_otherwise_are_copied_otherwise():
    """The same chunks, in memory the other way round."""
    x = np.random.default_rng(0).standard_normal((60, 60))
    for values in (x, np.asfortranarray(x), x[::-1], x):
        y = computed(fft.fft(da.from_array(values, chunks=(20, 20), asarray=False), axis=0))
        np.testing.assert_allclose(y, np.fft.fft(values, axis=0), atol=1e-10)
