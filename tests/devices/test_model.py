"""What the clock of a dry device says of the schedules: how near they come to the bus."""

import dask.array as da
import numpy as np
import pytest

from dask_bigfft.devices.engine import Engine, Job
from dask_bigfft.devices.simulated import DeviceProfile, SimulatedDevice
from dask_bigfft.front import plan

MIB = 1 << 20


def seconds(shape, nbytes, tasks=1):
    """Time of some blocks through a device with an H200's speeds; no data is touched."""
    found = plan(da.zeros(shape, chunks=-1, dtype="c16"), "fftn", memory_limit="1 TiB")
    (round_,) = found.rounds
    job = Job(round_, (0,) * len(shape), *found.dtypes[:2])
    engine = Engine(SimulatedDevice(nbytes, dry=True), nbytes)
    pieces, carve = engine._plan(job, engine.limits)
    engine.pipeline.prepare(carve, nbytes)
    ends = []
    for _ in range(tasks):
        arrays = [np.empty(round_.source.shape(job.block), "c16")]  # never touched
        for crossing in pieces.schedule.crossings:
            after = [crossing.after[dim] for dim in crossing.order]
            arrays.append(np.empty(after, "c16") if crossing.reorders else arrays[-1])
        ends.append(engine.pipeline.submit(pieces, arrays, {}))
    for end in ends:
        engine.device.synchronize(end)
    return engine.device.clock()


@pytest.mark.parametrize(
    ("shape", "nbytes", "crossings"),
    [
        ((1 << 26,), 128 * MIB, 3),  # natural order: reordering is a crossing of its own
        ((1 << 13, 1 << 13), 128 * MIB, 2),
        ((400, 400, 400), 128 * MIB, 2),
        ((16, 1 << 21), 128 * MIB, 2),
    ],
)
def test_near_the_floor(shape, nbytes, crossings):
    """At least 85 percent of what the bus allows, where rows are wide."""
    size = int(np.prod(shape)) * 16
    floor = crossings * size / DeviceProfile().h2d
    assert floor / seconds(shape, nbytes) >= 0.85


def test_small_blocks_overlap():
    """Eight blocks one after the other are as fast for their size as a large one."""
    one, eight = seconds((1 << 11, 1 << 11), 32 * MIB), seconds((1 << 11, 1 << 11), 32 * MIB, 8)
    assert eight < 8.2 * one
    floor = 2 * 8 * (1 << 26) / DeviceProfile().h2d
    assert floor / eight >= 0.8
