"""Pieces that travel through staging buffers fit these, and rows that threads gather are cheap."""

from dataclasses import replace

import numpy as np
import pytest
from devices.blocks import distance, engine, job_of, values

from dask_bigfft.gpu.sources import Source
from dask_bigfft.planner.tile_plan import DeviceSettings, TileLimits
from dask_bigfft.testing.simulated import SimulatedGPU

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
RING = DeviceSettings(ring_buffers=4, ring_nbytes=16 * KIB)
LIMITS = TileLimits(0, least=4 * KIB, call_nbytes=KIB)


class Recording(SimulatedGPU):
    """A device that writes down the bytes of the pieces that come."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.came = []

    def h2d(self, stream, source, target):
        self.came.append(source.nbytes)
        super().h2d(stream, source, target)


def went(x, axes, settings, pageable, seed=0, nbytes=MIB):
    """Bytes of the pieces of a transform of one block, which is right."""
    device = Recording(nbytes, seed, pageable=pageable)
    used = engine(nbytes, device=device, limits=LIMITS)
    job, _ = job_of(x, "fftn", axes=axes)
    job = replace(job, settings=settings)
    found = used.run(job, Source(lambda: x.copy())).reshape(x.shape)
    assert distance(found, np.fft.fftn(x, axes=axes)) < 1e-14
    return device.came


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
@pytest.mark.parametrize("seed", range(2))
def test_what_is_not_pinned_comes_in_pieces_that_fit_half_of_the_ring(axes, seed):
    x = values(256, 256, seed=seed)
    pinned, staged = (went(x, axes, RING, pageable, seed, MIB // 4) for pageable in (False, True))
    assert max(pinned) > 32 * KIB >= max(staged)
