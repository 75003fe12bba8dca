"""An FFT library uses threads of its own where a round has fewer blocks than there are threads."""

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft

from dask_bigfft import fft
from dask_bigfft.kernels.libraries import FFTLibrary, usable


@pytest.mark.parametrize("kernel", usable())
@pytest.mark.parametrize("kind", ["fft", "fft2", "rfft2"])
def test_a_block_alone_is_right_and_gets_them_all(kernel, kind, monkeypatch):
    requested = []
    using = FFTLibrary.using

    def noted(self, threads):
        requested.append(threads)
        return using(self, threads)

    monkeypatch.setattr(FFTLibrary, "using", noted)
    a = np.random.default_rng(1).standard_normal((64, 512))
    with dask.config.set(scheduler="threads", num_workers=3):
        for chunks, threads in (((64, 512), {3}), ((16, 512), {1})):
            transformed = getattr(fft, kind)(
                da.from_array(a, chunks=chunks), kernel=kernel
            ).compute()
            assert np.allclose(transformed, getattr(scipy.fft, kind)(a))
            assert set(requested) == threads
            requested.clear()
