"""Pieces that travel through staging buffers fit these, and rows that threads gather are cheap."""

from dataclasses import replace

import dask.array as da
import numpy as np
import pytest
from devices.blocks import distance, engine, job_of, values

from dask_bigfft.devices.jobs import Job, Source
from dask_bigfft.devices.limits import PieceLimits
from dask_bigfft.devices.pipeline import Carve
from dask_bigfft.devices.problem import Line, Problem
from dask_bigfft.devices.schedule import find_schedule
from dask_bigfft.devices.simulated import SimulatedDevice
from dask_bigfft.devices.walk import placed, walked_seconds
from dask_bigfft.front import plan
from dask_bigfft.planner.device_settings import AS_IS, DeviceSettings
from dask_bigfft.planner.profile import DeviceProfile

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
RING = DeviceSettings(ring_buffers=4, ring_nbytes=16 * KIB)
LIMITS = PieceLimits(0, least=4 * KIB, call_nbytes=KIB)


class Recording(SimulatedDevice):
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
    pinned, staged = (
        went(x, axes, RING, pageable, seed, MIB // 4) for pageable in (False, True)
    )
    assert max(pinned) > 32 * KIB >= max(staged)


def test_a_ring_and_passes_that_are_set_stay_in_force():
    x = values(256, 256)
    wide = replace(RING, ring_buffers=8)
    assert max(went(x, (0,), wide, True)) > max(went(x, (0,), RING, True))
    assert len(went(x, (0,), replace(RING, passes=4), True)) == 4


def test_no_crossing_more_through_the_ring():
    """The rows that pieces of the ring have are narrow for copy engines only."""
    problem = Problem((1 << 28,), (Line(0, 1 << 28),), 16, inside=True)
    limits = PieceLimits(2 * GIB)
    staged = limits.staged(256 * MIB, AS_IS)
    assert staged.most == 128 * MIB
    assert len(find_schedule(problem, limits, 1).crossings) == 3
    assert len(find_schedule(problem, replace(limits, most=staged.most), 1).crossings) == 4
    found = find_schedule(problem, staged, 1)
    assert len(found.crossings) == 3
    assert max(crossing.places[0] for crossing in found.crossings) <= 128 * MIB


@pytest.mark.parametrize("count", [1, 16])
def test_blocks_of_the_size_of_the_ring_are_cut(count):
    """A piece of all buffers would leave none to gather the next one into."""
    problem = Problem((4096, 4096), (Line(0, 4096),), 16, blocks=count)
    (crossing,) = find_schedule(problem, PieceLimits(2 * GIB).staged(256 * MIB, AS_IS)).crossings
    assert crossing.pieces >= 2
    assert crossing.reads[1] * 16 >= 4 * KIB


def test_a_forecast_cuts_as_the_engine_does():
    """A walk knows of ordinary memory, and of the ring that is set."""
    found = plan(da.zeros((256, 256), chunks=-1, dtype="c16"), "fftn", axes=(0,),
                 memory_limit="1 TiB")
    job = Job(found.rounds[0], (0, 0), "<c16", "<c16", settings=RING)
    came = went(values(256, 256), (0,), RING, True)
    dry = SimulatedDevice(MIB, dry=True, pageable=True)
    pieces, _, arrays = placed(engine(MIB, device=dry, limits=LIMITS), job)
    assert pieces.pieces == len(came)
    assert [array.shape for array in arrays] == [(256, 256)] * 2
    slow = DeviceProfile(call=1e-3, nbytes=MIB)
    few, many = (
        walked_seconds(replace(job, settings=replace(RING, ring_buffers=n)), slow, MIB,
                       limits=LIMITS, pageable=True)
        for n in (64, 2)
    )
    assert few < many


def test_the_arena_stays_where_pieces_are_smaller():
    """Blocks that are pinned and those that are not follow one another without a pause."""
    carve = Carve(3, 512, 256)
    assert carve.holds(Carve(2, 256, 0))
    assert not carve.holds(Carve(3, 768, 0))
    assert not carve.holds(Carve(3, 512, 0, "piece"))

    class Half(Recording):
        """Every other block is pinned."""

        def ring_nbytes(self, host):
            return 64 * KIB if host[0, 0].real == 1 else 0

    device = Half(MIB)
    used, x = engine(MIB, device=device, limits=LIMITS), values(256, 256)
    job, _ = job_of(x, "fftn", axes=(0,))
    largest, kept = [], []
    for number in (0, 1, 0, 1):
        x[0, 0] = number
        device.came.clear()
        assert distance(used.run(job, Source(lambda: x.copy())).reshape(x.shape),
                        np.fft.fft(x, axis=0)) < 1e-14
        largest.append(max(device.came))
        kept.append(used.pipeline.carve)
    assert largest[0] == largest[2] > 32 * KIB >= largest[1] == largest[3]
    assert len(set(kept)) == 1
