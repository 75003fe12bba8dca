"""What the clock of a dry device says of the schedules: how near they come to the bus."""

import dask
import dask.array as da
import numpy as np
import pytest

from dask_bigfft.devices.jobs import Job
from dask_bigfft.devices.limits import PieceLimits
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
    with dask.config.set({"bigfft.wisdom.directory": "/nonexistent"}), simulated_devices(1 << 30):
        known = plan(x, "fftn", device="gpu")
    walk = walk_on((DeviceProfile(),), None, "<c16")
    device = [found.device for found in known.expected.rounds]
    assert device[0] == walk(known.rounds[0]) > 0
    assert f"bound by\n    round 1 {{{known.notation[1]}}}" in known.explain()
    assert walk_on((slow,), None, "<c16")(known.rounds[0]) > 10 * device[0]
    assert walk_on((), None, "<c16") is None
    assert walk_on((slow,), None, np.dtype("G").str) is None
    assert walk_on((slow,), 1 << 7, "<c16")(known.rounds[0]) is None


def rows_round(rows, width=1 << 13):
    """The round of FFTs along the rows of one block."""
    found = plan(da.zeros((rows, width), chunks=-1, dtype="c16"), "fft", memory_limit="1 TiB")
    return found.rounds[0]


def test_the_forecast_grows_with_the_pieces():
    """Also where there are more than are walked through."""
    nbytes, width, found = 3 * MIB, 1 << 13, {}
    for pieces in (200, 300, 1000):
        round_ = rows_round(pieces * MIB // (16 * width), width)
        job = Job(round_, (0, 0), "<c16", "<c16")
        assert job.plan(PieceLimits(nbytes)).pieces == pieces
        found[pieces] = walk_on((DeviceProfile(),), nbytes, "<c16")(round_)
        assert found[pieces] == pytest.approx(walked_seconds(job, DeviceProfile(), nbytes), 0.02)
    assert found[300] == pytest.approx(1.5 * found[200], rel=0.03)
    assert found[1000] == pytest.approx(5 * found[200], rel=0.03)


def test_plans_of_other_blocks_are_ranked_as_the_clock_ranks_them():
    """Rows of 2 MiB take three passes through 1 MiB, in pieces of which large blocks have many."""
    nbytes, forecast, walked = MIB, {}, {}
    for rows in (1, 4, 32):
        x = da.zeros((32, 1 << 17), chunks=(rows, -1), dtype="c16")
        with simulated_devices(1 << 30):
            found = plan(x, "fft", device="gpu", device_memory_limit=nbytes, memory_limit="1 TiB")
        (round_,) = found.rounds
        job = Job(round_, (0, 0), "<c16", "<c16")
        walked[rows] = walked_seconds(job, DeviceProfile(), nbytes, blocks=min(4, 32 // rows))
        walked[rows] *= max(1, 32 // rows / 4)
        forecast[rows] = found.expected.rounds[0].device * round_.source.blocks
        assert forecast[rows] == pytest.approx(walked[rows], rel=0.05)
    assert sorted(forecast, key=forecast.get) == sorted(walked, key=walked.get)


def test_small_blocks_overlap():
    """Eight blocks one after the other are as fast for their size as a large one."""
    one, eight = seconds((1 << 11, 1 << 11), 32 * MIB), seconds((1 << 11, 1 << 11), 32 * MIB, 8)
    assert eight < 8.2 * one
    floor = 2 * 8 * (1 << 26) / DeviceProfile().h2d
    assert floor / eight >= 0.8
