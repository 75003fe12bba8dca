"""Host memory on its way to a GPU: wide rows both ways, and tiles that fit staging buffers."""

import threading
import time

import dask
import dask.array as da
import numpy as np
import pytest
from devices.blocks import distance, engine, job_of, on_devices, values
from support import in_threads

from dask_bigfft import fft
from dask_bigfft.gpu.dispatch import GETTING_READY, Leases
from dask_bigfft.gpu.engine import Engine, Source
from dask_bigfft.gpu.operations import dense, runs
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.testing.simulated import SimulatedGPU


class Heard(SimulatedGPU):
    """Writes down the bytes of what it is asked to copy, and of the rows in host memory."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.rows, self.came = {"h2d": [], "d2h": []}, []

    def _copy(self, stream, way, host, device):
        # A view whose rows lie side by side in host memory has them as one.
        places = dense(host.shape, host.itemsize)
        self.rows[way].append(runs(host.shape, host.strides, host.itemsize, places)[0])
        super()._copy(stream, way, host, device)

    def h2d(self, stream, source, target):
        self.came.append(source.nbytes)
        super().h2d(stream, source, target)


@pytest.fixture
def heard():
    with on_devices(Heard(64 << 20), limits=None, nbytes=None) as (device,):
        yield device


@pytest.mark.parametrize("dtype", ["c16", "c8"])
@pytest.mark.parametrize(("threads", "verify"), [(1, "none"), (4, "energy"), (4, "checksum")])
def test_rows_in_host_memory_are_wide_both_ways(heard, dtype, threads, verify):
    x = values(256, 4096, dtype=dtype)
    lazy = fft.fft2(da.from_array(x, (32, -1)), device="gpu", norm="ortho", verify=verify)
    with dask.config.set(scheduler="threads", num_workers=threads):
        got = lazy.compute()
    assert got.dtype == x.dtype
    assert distance(got, np.fft.fft2(x, norm="ortho")) < (1e-15 if dtype == "c16" else 5e-7)
    narrow = 512 * x.itemsize  # what a target block has of a row
    assert min(heard.rows["h2d"]) > narrow
    assert min(heard.rows["d2h"]) > narrow


def test_blocks_that_another_array_takes_as_well_are_not_stacked(heard):
    x = da.from_array(values(256, 4096), chunks=(32, -1))
    both, one = dask.compute(fft.fft2(x, device="gpu"), fft.fft(x, device="gpu"))
    assert distance(both, np.fft.fft2(x.compute())) < 1e-15
    assert distance(one, np.fft.fft(x.compute())) < 1e-15


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("seed", range(2))
def test_what_is_not_pinned_comes_in_tiles_that_fit_half_of_the_ring(axes, seed):
    x, came = values(256, 256, seed=seed), []
    for pageable in (False, True):
        device = Heard(1 << 18, seed, pageable=pageable)
        device.ring = 64 << 10
        limits = TileLimits(0, least=4 << 10, call_nbytes=1 << 10)
        job, _ = job_of(x, "fftn", axes=axes)
        used = engine(1 << 18, device=device, limits=limits)
        found = used.run(job, Source(lambda: x.copy())).reshape(x.shape)
        assert distance(found, np.fft.fftn(x, axes=axes)) < 1e-14
        came.append(max(device.came))
    assert came[0] > 32 << 10 >= came[1]


def test_few_tasks_get_ready_at_a_time_and_a_lease_ends_their_turn():
    leases = Leases([Engine(SimulatedGPU(1000), 1000)])
    inside, most, all_leased = [], [], threading.Barrier(8, timeout=20)

    def take(_):
        for _ in range(2):  # nobody leaves twice, which would let too many in
            with leases.getting_ready():
                inside.append(1)
                most.append(len(inside))
                time.sleep(1e-3)
                inside.pop()
                with leases.lease(8):
                    all_leased.wait()

    in_threads(8, take)
    assert max(most) <= GETTING_READY
