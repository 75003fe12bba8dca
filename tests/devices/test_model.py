"""What the clock of a dry device says of the schedules: how near they come to the bus."""

import dask
import dask.array as da
import numpy as np
import pytest

from dask_bigfft.devices.jobs import Job
from dask_bigfft.devices.walk import walk_on, walked_seconds
from dask_bigfft.front import plan
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.testing.devices import simulated_devices

MIB = 1 << 20


def seconds(shape, nbytes, tasks=1):
    """Time of some blocks through a device with an H200's speeds; no data is touched."""
    found = plan(da.zeros(shape, chunks=-1, dtype="c16"), "fftn", memory_limit="1 TiB")
    (round_,) = found.rounds
    job = Job(round_, (0,) * len(shape), *found.dtypes[:2])
    return walked_seconds(job, DeviceProfile(), nbytes, tasks)


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


def test_explain_shows_the_walk():
    """What a plan's rounds are said to take on a device is what the walk says."""
    x = da.zeros((1 << 11, 1 << 12), chunks=(1 << 8, 1 << 12), dtype="c16")
    slow = DeviceProfile(h2d=1e9, d2h=1e9)
    with dask.config.set({"bigfft.wisdom.directory": "/nonexistent"}), simulated_devices(64 * MIB):
        known = plan(x, "fftn", device="gpu")
    walk = walk_on((DeviceProfile(),), None, "<c16")
    device = [found.device for found in known.expected.rounds]
    assert device[0] == walk(known.rounds[0]) > 0
    assert f"bound by\n    round 1 {{{known.notation[1]}}}" in known.explain()
    assert walk_on((slow,), None, "<c16")(known.rounds[0]) > 10 * device[0]
    assert walk_on((), None, "<c16") is None
    assert walk_on((slow,), None, np.dtype("G").str) is None
    assert walk_on((slow,), 1 << 14, "<c16")(known.rounds[0]) is None


def test_small_blocks_overlap():
    """Eight blocks one after the other are as fast for their size as a large one."""
    one, eight = seconds((1 << 11, 1 << 11), 32 * MIB), seconds((1 << 11, 1 << 11), 32 * MIB, 8)
    assert eight < 8.2 * one
    floor = 2 * 8 * (1 << 26) / DeviceProfile().h2d
    assert floor / eight >= 0.8
