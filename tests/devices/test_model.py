"""How near the pipeline comes to the bus, on the clock of a device that touches no memory."""

import re
from types import SimpleNamespace

import dask.array as da
import numpy as np
import pytest
from devices.blocks import job_of_round

from dask_bigfft import plan
from dask_bigfft.gpu.engine import Engine
from dask_bigfft.gpu.executor import BlockRun
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.simulated import SimulatedGPU

MIB = 1 << 20


def untouched(shape, dtype):
    """Return an array of any shape whose memory is a single element."""
    strides = np.cumprod((np.dtype(dtype).itemsize, *shape[:0:-1]))[::-1]
    return np.lib.stride_tricks.as_strided(np.zeros(1, dtype), shape, tuple(strides))


def clocked(shape, nbytes, blocks=1):
    """Return the seconds of some blocks through a device with an H200's speeds."""
    plan_of_block = plan(da.zeros(shape, chunks=-1, dtype="c16"), "fftn", memory_limit="1 TiB")
    (round_,) = plan_of_block.rounds
    engine = Engine(SimulatedGPU(DeviceProfile().nbytes, dry=True), nbytes)
    job = job_of_round(round_, plan_of_block.dtypes[:2])

    def arrays(pieces, _):
        written = range(len(pieces.plan.passes))
        return [
            untouched(shape, "c16"),
            *(untouched(pieces.shape(n), pieces.written(n)) for n in written),
        ]

    pieces, views = engine._placed(job, engine.limits, SimpleNamespace(arrays=arrays))
    tiles = engine.tiles(job)
    carve = engine.carve(tiles, tiles.ffts)
    waiting = [BlockRun(pieces, views, {}) for _ in range(blocks)]
    ends = []
    while waiting:
        block = waiting.pop(0)
        engine.executor.prepare(carve, engine.limits.nbytes)
        ends.append(engine.executor.run(block, lambda: waiting[0] if waiting else None))
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
    floor = crossings * np.prod(shape) * 16 / DeviceProfile().h2d
    assert floor / clocked(shape, nbytes) >= 0.85


def test_small_blocks_overlap():
    """Eight blocks one after the other are as fast for their size as a large one."""
    single = clocked((1 << 11, 1 << 11), 32 * MIB)
    eight = clocked((1 << 11, 1 << 11), 32 * MIB, 8)
    assert eight < 8.2 * single
    floor = 2 * 8 * (1 << 26) / DeviceProfile().h2d
    assert floor / eight >= 0.8


@pytest.mark.parametrize(
    ("shape", "nbytes", "passes"),
    [
        ((1 << 26,), 1 << 33, ["{X} 67108864 direct"]),
        ((1 << 26,), 128 * MIB, ["{X1} 64 strided", "{X2} 8192 direct", "{X3} 128 strided"]),
        ((1 << 13, 1 << 13), 128 * MIB, ["{Y1, X} 128, 8192 strided", "{Y2} 64 direct"]),
    ],
)
def test_the_forecast_and_explain_count_the_passes_over_the_bus(shape, nbytes, passes):
    with simulated_devices(1 << 34):
        x = da.zeros(shape, chunks=-1, dtype="c16")
        gpu_plan = plan(
            x,
            "fftn",
            device="gpu",
            device_memory_limit=nbytes,
            memory_limit="1 TiB",
        )
    (round_,) = gpu_plan.expected.rounds
    crossing = np.prod(shape) * 16 / DeviceProfile().h2d
    ways = max(2, len(passes))  # a single tile goes there before it comes back
    assert round_.device == pytest.approx(ways * crossing, 0.15)
    text = gpu_plan.explain(details=True)
    rows = text.split("passes over the bus")[1].split("\n")[1:]
    parts = r"round 1 ({.*?}) +([\d, ]+?)  .* W = \d+, (\w+) .* W = "
    assert [" ".join(re.search(parts, row).groups()) for row in rows[: len(passes)]] == passes
    assert "3 buffers of" in rows[len(passes)]


@pytest.mark.parametrize(
    ("gpus", "tiles", "ways"),
    [
        (1, 1, 5 / 4),
        (1, 2, 9 / 8),
        (2, 1, 3 / 2),
        (4, 1, 2),
    ],
)
def test_a_tile_overlaps_with_those_of_other_blocks_on_its_gpu(gpus, tiles, ways):
    with simulated_devices(1 << 34, count=gpus):
        x = da.zeros((4 * tiles, 1 << 24), chunks=(tiles, -1), dtype="c16")
        gpu_plan = plan(
            x,
            "fft",
            device="gpu",
            memory_limit="1 TiB",
        )
    (round_,) = gpu_plan.expected.rounds
    crossing = tiles * (1 << 24) * 16 / DeviceProfile().h2d
    assert round_.device == pytest.approx(ways * crossing, 0.01)


@pytest.mark.parametrize(
    ("shape", "dtype", "parts", "digits", "blocks"),
    [
        ((1 << 30,), "c16", 4, (1 << 15, 1 << 15), 64),
        ((1 << 31,), "c8", 4, (1 << 16, 1 << 15), 32),  # of two tiles, whose rows are wide
        ((1 << 31,), "c8", 64, (1 << 16, 1 << 15), 32),
        ((1 << 15, 1 << 15), "c16", 4, (1 << 15,), 4),
    ],
)
def test_blocks_become_tiles_between_rounds_if_an_axis_is_split(
    shape,
    dtype,
    parts,
    digits,
    blocks,
):
    with simulated_devices(1 << 31):
        x = da.zeros(shape, chunks=(shape[0] // parts, *shape[1:]), dtype=dtype)
        gpu_plan = plan(
            x,
            "fftn",
            device="gpu",
            memory_limit="1 TiB",
        )
    assert [round_.source.blocks for round_ in gpu_plan.rounds] == [blocks] * 2
    assert digits == gpu_plan.programs[0].factors
    assert gpu_plan.chunks == x.chunks or not digits[1:]


@pytest.mark.parametrize(
    ("shape", "chunks", "notation"),
    [
        ((4, 1 << 28), (1, 1 << 28), "{X1} {Y, X2}"),  # an X larger than the GPU
        ((4, 1 << 28), (4, 1 << 22), "{X1} {Y, X2}"),
        ((2, 1 << 29), (2, 1 << 24), "{X1} {Y, X2}"),
        ((1 << 15, 1 << 15), (512, 1 << 15), "{X} {Y}"),
        ((1024, 1024, 1024), (16, 1024, 1024), "{Y, X} {Z}"),
    ],
)
def test_two_passes_over_the_bus_are_enough(shape, chunks, notation):
    with simulated_devices(1 << 31):
        x = da.zeros(shape, chunks=chunks, dtype="c16")
        gpu_plan = plan(
            x,
            "fftn",
            device="gpu",
            memory_limit="1 TiB",
        )
    moving = len(gpu_plan.exchanges) - sum(map(bool, gpu_plan.shared_layouts.exchanges))
    passes = gpu_plan.explain(details=True).split("passes over the bus")[1].split("buffers of")[0]
    assert (gpu_plan.notation, moving, passes.count("W =")) == (notation, 2, 4)  # in and out


def test_a_prime_that_no_tile_holds_is_left_to_the_cpu():
    with simulated_devices(1 << 30):
        x = da.zeros(134217689, chunks=-1, dtype="c16")
        gpu_plan = plan(
            x,
            "fft",
            device="gpu",
            memory_limit="1 TiB",
        )
    (round_,) = gpu_plan.expected.rounds
    assert (round_.share, round_.device) == (0, 0)
    assert round_.fft > 0
