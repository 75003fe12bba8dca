"""Host memory on its way to a GPU: tiles that fit staging buffers, and tasks that wait."""

import threading
import time

import numpy as np
import pytest
from devices.blocks import distance, engine, job_of, values
from support import in_threads

from dask_bigfft.gpu.dispatch import Leases
from dask_bigfft.gpu.engine import Engine, Source
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.testing.simulated import SimulatedGPU


class Heard(SimulatedGPU):
    """Writes down the most bytes that it is asked to load at a time."""

    most = 0

    def h2d(self, stream, source, target):
        self.most = max(self.most, source.nbytes)
        super().h2d(stream, source, target)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("seed", range(2))
def test_what_is_not_pinned_comes_in_tiles_that_fit_half_of_the_ring(axes, seed):
    x = values(256, 256, seed=seed)
    came = []
    for pageable in (False, True):
        device = Heard(1 << 18, seed, pageable=pageable)
        device.ring = 64 << 10
        limits = TileLimits(0, least=4 << 10, call_nbytes=1 << 10)
        job, _ = job_of(x, "fftn", axes=axes)
        used = engine(1 << 18, device=device, limits=limits)
        spectrum = used.run(job, Source(lambda: x.copy())).reshape(x.shape)
        assert distance(spectrum, np.fft.fftn(x, axes=axes)) < 1e-14
        came.append(device.most)
    assert came[0] > 32 << 10 >= came[1]


def test_one_task_gets_ready_at_a_time_until_its_block_is_submitted():
    leases = Leases([Engine(SimulatedGPU(1000), 1000)])
    inside = []
    most = []
    all_leased = threading.Barrier(8, timeout=20)

    def take(_):
        for _ in range(2):  # nobody leaves twice, which would let too many in
            with leases.getting_ready():
                inside.append(1)
                with leases.lease(8):
                    most.append(len(inside))
                    time.sleep(1e-3)
                    inside.pop()
                    leases.ready()
                    all_leased.wait()

    in_threads(8, take)
    assert max(most) == 1
