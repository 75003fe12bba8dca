"""The executor: no event too few, engines that work at the same time, an arena within its limit."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from devices import blocks
from devices.blocks import SMALL, distance, job_of, run, scipys, values

from dask_bigfft.gpu.engine import Engine, Source
from dask_bigfft.gpu.executor import BlockRun, Carve
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.planner.tile_plan import DeviceSettings, TileLimits
from dask_bigfft.testing.simulated import SimulatedGPU

SEEDS = range(12)

#: Every wait of the executor by its streams: what waits, and for which event. "host" is the task.
WAITS = {
    "role": [
        ("h2d", "free"),
        ("compute", "loaded"),
        ("d2h", "done"),
        ("h2d", "stored"),
        ("h2d", "cleared"),
        ("host", "stored"),
    ],
    "tile": [
        ("tile", "computed"),
        ("tile", "stored"),
        ("tile", "cleared"),
        ("d2h", "free"),
        ("host", "stored"),
    ],
}

#: Waits of a stream for itself, which is in order anyway.
OWN = {("tile", name) for name in ("free", "loaded", "done")}


class Deaf(SimulatedGPU):
    """A device that does not wait in one place."""

    def __init__(self, memory, seed, deaf=None):
        super().__init__(memory, seed)
        self.deaf = deaf
        self.waited = set()

    def wait(self, stream, event):
        self.waited.add((stream.name, event.name))
        if (stream.name, event.name) != self.deaf:
            super().wait(stream, event)

    def synchronize(self, event):
        self.waited.add(("host", event.name))
        if ("host", event.name) != self.deaf:
            super().synchronize(event)


#: Two blocks whose tiles are of different sizes, two passes each, by the number of buffers.
SHAPES = {3: [(64, 48), (2048,)], 2: [(2048,), (64, 48)]}


@pytest.fixture(params=SHAPES)
def buffers(request):
    return request.param


def transform_two(device, buffers, streams):
    """Two blocks one after the other.

    Returns whether both answers are right when the host has them.
    """
    engine = Engine(device, 1 << 14, SMALL)
    engine.executor.prepare(Carve(1, 1 << 14, 0, streams), 1 << 14)  # so that it is divided anew
    inputs = [values(*shape) for shape in SHAPES[buffers]]
    settings = DeviceSettings(buffers=buffers, streams=streams)
    jobs = [replace(job_of(x, "fftn")[0], settings=settings) for x in inputs]
    plans = [engine.tiles(job) for job in jobs]  # this waits for the device
    tasks = []
    for x, job, tiles in zip(inputs, jobs, plans, strict=True):
        assert len(tiles.plan.passes) > 1
        block = np.array(x).reshape(job.round.source.shape(job.block))
        last = tiles.plan.passes[-1]
        out = np.full([last.after[dim] for dim in last.order], np.nan, complex)
        arrays = [block] * len(tiles.plan.passes) + [out]
        engine.executor.prepare(engine.carve(tiles, tiles.ffts), 1 << 14)
        tasks.append((x, job, arrays, engine.executor.run(BlockRun(tiles, arrays, {}))))
    right = True
    for x, job, arrays, end in tasks:
        device.synchronize(end)
        spectrum = arrays[-1].reshape(job.round.target.shape(job.block)).reshape(x.shape).copy()
        right &= bool(distance(spectrum, scipys(x, "fftn")) < 1e-14)
    return right


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("streams", WAITS)
def test_any_order_that_events_permit_is_right(streams, seed, buffers):
    device = Deaf(1 << 14, seed)
    assert transform_two(device, buffers, streams)
    assert device.waited - OWN == set(WAITS[streams])  # so that the next test leaves none out


@pytest.mark.parametrize(("streams", "deaf"), [(s, wait) for s in WAITS for wait in WAITS[s]])
def test_without_any_one_wait_some_order_is_wrong(streams, deaf, buffers):
    assert not all(transform_two(Deaf(1 << 14, seed, deaf), buffers, streams) for seed in SEEDS)


def test_copies_both_ways_and_computing_overlap():
    """Twelve pieces take hardly longer than their copies in one direction."""
    profile = DeviceProfile(
        h2d=1e6,
        d2h=1e6,
        run=0.0,
        flops=1e9,
        memory=1e9,
        call=0.0,
    )
    device = SimulatedGPU(1 << 20, profile=profile)
    limits = TileLimits(
        0,
        least=256,
        pieces=12,
        run_nbytes=0,
        call_nbytes=512,
    )
    engine = Engine(device, 1 << 20, limits)
    x = values(48, 256)
    job, _ = job_of(x, "fft")
    engine.run(job, Source(x.copy))
    one_way = x.nbytes / 1e6
    assert device.clock() == pytest.approx(one_way * 14 / 12, rel=0.1)
    busy = {span.engine for span in device.trace}
    assert busy == {"h2d", "compute", "d2h"}


@pytest.mark.parametrize("name", ["fftn", "ifftn", "rfftn", "irfftn", "hfftn", "ihfftn"])
@pytest.mark.parametrize(
    "shape",
    [
        (30, 7, 13),
        (5, 4, 3, 2, 6),
        (411,),
        (60, 40),
    ],
)
def test_few_buffers(name, shape):
    x = values(*shape, dtype="f8" if name in ("rfftn", "ihfftn") else "c16")
    for seed, buffers in itertools.product(range(3), (1, 2)):
        small_engine = blocks.engine(1 << 14, seed, limits=replace(SMALL, slots=buffers))
        assert distance(run(small_engine, x, name), scipys(x, name)) < 1e-14


def test_a_block_that_is_known_late_is_still_gathered_ahead(monkeypatch):
    """Known once the last tile is being loaded; its first tile is then told of before its turn."""
    device = SimulatedGPU(1 << 20)
    told = []
    loaded = []
    engine = Engine(device, 1 << 20, SMALL)
    x = values(12, 16)
    tiles = engine.tiles(job_of(x, "fft")[0])
    first, second, other = (BlockRun(tiles, [x.copy(), np.empty_like(x)], {}) for _ in range(3))
    count = len(list(other.tiles(0)))
    load = engine.executor.load
    monkeypatch.setattr(device, "ahead", lambda stream, source: told.append(source))
    monkeypatch.setattr(engine.executor, "load", lambda *of: loaded.append(load(*of)))
    engine.executor.prepare(engine.carve(tiles, tiles.ffts), 1 << 20)
    engine.executor.run(first, lambda: second if len(loaded) == count else None)
    assert told[-1] is second.first.loads[0][0]
