"""An FFT library uses threads of its own where a round has fewer blocks than there are threads."""

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft

from dask_bigfft import fft
from dask_bigfft.graph.spare import with_spare_threads
from dask_bigfft.kernels.libraries import FFTLibrary, get_library, usable
from dask_bigfft.threads import task_threads


@pytest.mark.parametrize(("blocks", "threads"), [(1, 4), (2, 2), (3, 1), (4, 1), (9, 1)])
def test_threads_are_shared_among_the_blocks_of_a_round(blocks, threads):
    library = get_library("scipy")
    with dask.config.set(num_workers=4), with_spare_threads(library, blocks) as own:
        assert own._backend.threads == threads
        assert library._backend.threads == 1
    with dask.config.set(num_workers=4, scheduler="sync"):
        assert task_threads() == 1
        with with_spare_threads(library, blocks) as own:
            assert own._backend.threads == 1


def test_other_blocks_at_work_count():
    library = get_library("scipy")
    with dask.config.set(num_workers=4), with_spare_threads(library, 1) as first:
        with with_spare_threads(library, 1) as second, with_spare_threads(library, 1) as third:
            found = [own._backend.threads for own in (first, second, third)]
        with with_spare_threads(library, 1) as again:
            assert again._backend.threads == 2
    assert found == [4, 2, 1]


@pytest.mark.parametrize("kernel", usable())
@pytest.mark.parametrize("kind", ["fft", "fft2", "rfft2"])
def test_a_block_alone_is_right_and_gets_them_all(kernel, kind, monkeypatch):
    asked, using = [], FFTLibrary.using

    def noted(self, threads):
        asked.append(threads)
        return using(self, threads)

    monkeypatch.setattr(FFTLibrary, "using", noted)
    a = np.random.default_rng(1).standard_normal((64, 512))
    with dask.config.set(scheduler="threads", num_workers=3):
        for chunks, threads in (((64, 512), {3}), ((16, 512), {1})):
            found = getattr(fft, kind)(da.from_array(a, chunks=chunks), kernel=kernel).compute()
            assert np.allclose(found, getattr(scipy.fft, kind)(a))
            assert set(asked) == threads
            asked.clear()
