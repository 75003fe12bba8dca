"""What the clock of a simulated device knows of the ring: who waits for a buffer, and for whom."""

from dataclasses import replace

import numpy as np
import pytest
from devices.blocks import distance, job_of, one_round, scipys, values

from benchmarks.rows import ROUNDS, even_shape
from dask_bigfft.devices.engine import Engine
from dask_bigfft.devices.jobs import Source
from dask_bigfft.devices.limits import PieceLimits
from dask_bigfft.devices.operations import DeviceArray
from dask_bigfft.devices.pipeline import Carve, Coming, Pipeline
from dask_bigfft.devices.simulated import SimulatedDevice
from dask_bigfft.devices.simulated_ring import RingClock
from dask_bigfft.devices.walk import _untouched, walked_seconds
from dask_bigfft.planner.device_settings import DeviceSettings
from dask_bigfft.planner.profile import DeviceProfile

MIB, GIB = 1 << 20, 1 << 30


class Card:
    """A card that copies a byte in two seconds, one copy after the other, and takes no call."""

    def __init__(self):
        self.free, self.copies = 0.0, []

    def copy(self, nbytes, now):
        started = max(self.free, now)
        self.free = started + 2 * nbytes
        self.copies.append((started, self.free))
        return self.free, now


def test_a_gather_waits_for_its_buffer_and_the_submitter_for_the_gather():
    """Threads copy a byte in a second, buffers have 10; times by hand."""
    ring, card = RingClock(1.0, 2, 10), Card()
    now = ring.load("a", 40, 0.0, card.copy)
    # full at 10, 20; the first buffer is free at 30, full at 40; the second at 50, full at 60
    assert card.copies == [(10, 30), (30, 50), (50, 70), (70, 90)]
    assert now == 60


def test_one_buffer_is_filled_and_emptied_in_turn():
    ring, card = RingClock(1.0, 1, 10), Card()
    assert ring.load("a", 30, 0.0, card.copy) == 70
    assert card.copies == [(10, 30), (40, 60), (70, 90)]


def test_parts_of_buffers_come_and_go_sooner():
    ring, card = RingClock(1.0, 2, 10), Card()
    ring.use(5)
    now = ring.load("a", 20, 0.0, card.copy)
    # full at 5, 10; the first buffer is free at 15, full at 20; the second at 25, full at 30
    assert card.copies == [(5, 15), (15, 25), (25, 35), (35, 45)]
    assert now == 30
    ring.use(99)  # no more than there is
    assert ring.store(10, 100.0, Card().copy) == (130, 100)
    ring.use(None)
    assert ring.part == 10


def test_what_was_told_of_is_gathered_meanwhile():
    told, untold = RingClock(1.0, 4, 10), RingClock(1.0, 4, 10)
    for ring in (told, untold):
        if ring is told:
            ring.ahead("a", 20, 0.0)
            ring.ahead("b", 20, 0.0)  # one of its buffers: the last one stays free
        card = Card()
        now = ring.load("a", 20, 100.0, card.copy)
        assert card.copies[0][0] == (100 if ring is told else 110)
        now = ring.load("b", 20, now, card.copy)
        assert now == (110 if ring is told else 140)  # three parts were there, or none
    told.ahead("c", 20, 0.0)
    told.ahead("d", 10, 0.0)
    told.load("d", 10, 1e3, Card().copy)  # c does not come any more: its buffers are there again
    assert told.load("e", 40, 1e4, Card().copy) == 1e4 + 40


def test_the_way_back_waits_for_buffers_that_threads_have_not_emptied():
    ring, card = RingClock(0.25, 2, 10), Card()
    stored, now = ring.store(30, 0.0, card.copy)
    # there at 20, 40; scattered at 60, 100; the third part goes when the first buffer is empty
    assert card.copies == [(0, 20), (20, 40), (60, 80)]
    assert (stored, now) == (140, 60)


def test_values_are_there_when_threads_have_scattered_them():
    profile = DeviceProfile(h2d=1e9, d2h=1e9, ring=5e8, call=0.0)
    device = SimulatedDevice(MIB, profile=profile, pageable=True)
    device.reserve(MIB)
    block, place = np.zeros(1000, "u1"), DeviceArray(0, (1000,), "|u1")
    stream = device.stream("d2h")
    device.clear(stream, place)
    cleared = device._engines["compute"]
    device.d2h(stream, place, block)
    copied, stored = device.event("copied"), device.event("stored")
    device.record(copied, stream, stored=False)
    device.record(stored, stream)
    device.synchronize(copied)
    assert device.clock() == pytest.approx(cleared + 1e-6)
    other = device.stream("h2d")
    device.wait(other, stored)
    device.h2d(other, block, place)  # what was stored is gathered again: the host waits for it
    assert device.clock() == pytest.approx(cleared + 3e-6 + 2e-6)


@pytest.mark.parametrize("streams", ["role", "piece"])
@pytest.mark.parametrize("slots", [1, 2, 3])
def test_a_block_is_done_when_all_of_it_is_scattered(streams, slots):
    """Whatever stream a piece goes in; and a piece comes to where one was that is not scattered."""
    profile = DeviceProfile(
        h2d=1e12, d2h=1e12, ring=1e6, run=0.0, flops=1e18, memory=1e15, call=0.0
    )
    device = SimulatedDevice(1 << 20, profile=profile, pageable=True)
    engine = Engine(device, 1 << 20, PieceLimits(0, least=256, pieces=8, call_nbytes=0))
    x = values(48, 256)
    settings = DeviceSettings(buffers=slots, passes=8, streams=streams)
    job = replace(job_of(x, "fft")[0], settings=settings)
    pieces = engine.pieces(job)[0].pieces
    assert pieces > 1
    got = engine.run(job, Source(x.copy))
    assert distance(got, scipys(x, "fft")) < 1e-14
    # gathered one after the other, and scattered beside that, the last piece at the end; one
    # stream's gathers wait for what it scattered before
    one_way = x.nbytes / profile.ring
    most = 1 + 1 / pieces if streams == "role" else 2
    assert one_way * (1 + 0.9 / pieces) < device.clock() < one_way * most * 1.05


@pytest.mark.parametrize("mib", [4096, 256])
@pytest.mark.parametrize("scheme", ROUNDS, ids=lambda scheme: scheme[0])
def test_rounds_take_what_they_took_on_a_card(scheme, mib):
    """0.60 to 0.71 of the floor on an H200 whose ring went at 31 GB/s."""
    _, ndim, axes = scheme
    shape, blocks = even_shape(mib * MIB // 16, ndim), 4096 // mib
    job = one_round(shape, axes, "c16", blocks=blocks)
    card = DeviceProfile(h2d=50.1e9, d2h=50.1e9, ring=31.4e9, call=16e-6)
    seconds = walked_seconds(job, card, 2 * GIB, blocks, pageable=True)
    crossings = {"1D": 3, "2D": 2, "3D": 2}.get(scheme[0], 1) if mib == 4096 else 1
    floor = crossings * 4 * GIB / 50.1e9
    assert 0.55 < floor / seconds < 0.75


def test_pieces_larger_than_the_ring_hold_up_who_submits_them():
    """Rounds reached half as much before pieces were cut to fit half of the ring."""
    card = DeviceProfile(h2d=50.1e9, d2h=50.1e9, ring=31.4e9, call=16e-6)
    job = one_round((4096, 16384), (0,), "c16", blocks=4)

    def seconds(most):
        device = SimulatedDevice(card.nbytes, profile=card, dry=True, pageable=True)
        limits = PieceLimits(2 * GIB, most=most, least=most, pieces=1, finer=(1,))
        plan = job.plan(limits)
        carve = Carve(3, plan.schedule.slot_nbytes, plan.schedule.slot_nbytes)
        pipeline, block = Pipeline(device), _untouched((1, 4096, 16384), "<c16")
        for op in plan.ffts:
            device.work_nbytes(op)
        pipeline.prepare(carve, carve.nbytes)
        for _ in range(4):
            end = pipeline.submit(Coming(plan, [block, block], {}))
        device.synchronize(end)
        return device.clock()

    assert seconds(512 * MIB) > 1.15 * seconds(128 * MIB)


def test_the_clock_reckons_with_the_ring_that_is_set():
    card = DeviceProfile(h2d=1e9, d2h=1e9, ring=1e9, call=1e-6)
    device = SimulatedDevice(MIB, profile=card, pageable=True)
    for buffers, nbytes in ((2, 1 << 10), (8, 1 << 12), (None, None)):
        device.stage(buffers, nbytes)
        wanted = (buffers or 4) * (nbytes or 64 * MIB)
        assert device.ring_nbytes(np.zeros(1)) == wanted
