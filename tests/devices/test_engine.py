"""The engine: leases, threads, and what happens when memory is refused."""

import math
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from devices.blocks import SMALL, distance, job_of, run, scipys, values
from support import heard, in_threads

from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.gpu.dispatch import Leases
from dask_bigfft.gpu.engine import Engine, Part, Source
from dask_bigfft.gpu.operations import Multiply
from dask_bigfft.testing.simulated import SimulatedGPU
from dask_bigfft.transforms.layout import ADMITTED

NBYTES = 1 << 15


def source_of(x, job, **keywords):
    return Source(
        lambda: np.array(x, job.source).reshape(job.round.source.shape(job.block)), **keywords
    )


def check(engine, x, name="fft2", **keywords):
    """A transform by an engine is SciPy's."""
    assert distance(run(engine, x, name, **keywords), scipys(x, name, **keywords)) < 1e-14


@pytest.mark.parametrize(
    ("libraries", "table"),
    [
        (0, 3000),
        (3000, 500),
    ],
)
def test_what_libraries_take_is_a_part_of_the_budget(libraries, table):
    device = SimulatedGPU(NBYTES, libraries=libraries, table=table)
    engine = Engine(device, NBYTES, SMALL)
    for shape, name in (((32, 128), "fft2"), ((128, 60), "fft2"), ((4096,), "fft")):
        check(engine, values(*shape), name)
        assert libraries < device.peak <= NBYTES
    assert bool(device.dropped) == (table > 0)  # the plans of other rounds make room


def test_a_budget_that_libraries_alone_exceed_is_warned_of_once():
    engine = Engine(SimulatedGPU(NBYTES, libraries=1000), NBYTES, SMALL)
    with pytest.warns(UserWarning, match="3.91 kiB"):
        assert engine.within(3999).nbytes == 3999 - 3999 // 4
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        engine.within(3999)
        assert engine.within(4000).nbytes == 3000


@pytest.mark.parametrize(
    ("area", "tiles"),
    [
        (0, 7),
        (1 / 2, 8),
        (1, 9),
    ],
)
def test_tiles_leave_as_much_room_as_a_work_area_needs(monkeypatch, area, tiles):
    def needed(device, op):
        work_nbytes(device, op)  # makes the plan
        return int(math.prod(op.source) * 16 * area)

    work_nbytes = SimulatedGPU.work_nbytes
    monkeypatch.setattr(SimulatedGPU, "work_nbytes", needed)
    engine = Engine(SimulatedGPU(1 << 17), int(3.6 * (64 << 8)), SMALL)  # tiles of 64 columns
    (pass_,) = engine.tiles(job_of(values(16, 512), "fft", axis=0)[0]).plan.passes
    assert pass_.tiles == tiles


@pytest.mark.parametrize("operation", ["reserve", "plan"])
def test_memory_refused_once_is_asked_for_again(operation):
    requested = []

    def refuses(name, nbytes):
        requested.extend([nbytes] * (name == operation))
        return name == operation and len(requested) == 1

    device = SimulatedGPU(NBYTES, refuses=refuses)
    with heard("fallback") as events:
        check(Engine(device, NBYTES, SMALL), values(32, 128))
    assert device.dropped == 1  # first of all, what was kept for later
    assert len(events) == 1
    if operation == "reserve":
        assert requested[0] == requested[1]


class Failing(SimulatedGPU):
    """A device that fails once in the middle of a block: its memory is used up, by default."""

    left = 5
    error = DeviceMemoryError

    def compute(self, stream, op, *arrays):
        self.left -= isinstance(op, Multiply)
        if self.left == 0:
            self.left = -1
            raise self.error("a kernel could not be loaded")
        super().compute(stream, op, *arrays)


def test_a_block_overwritten_when_it_failed_is_gathered_again():
    x = values(32, 128)
    job, _ = job_of(x, "ifft2")
    filled = []
    once = source_of(x, job).gather

    def fill():
        filled.append(once())
        return filled[-1]

    restored = Engine(Failing(NBYTES), NBYTES, SMALL).run(job, Source(fill))
    assert len(filled) == 2
    assert distance(filled[0].reshape(x.shape), x) > 1e-3  # it was overwritten
    assert distance(restored.reshape(x.shape), scipys(x, "ifft2")) < 1e-15


@pytest.mark.parametrize("seed", range(4))
def test_nothing_goes_on_writing_to_a_block_that_has_failed(seed):
    device = Failing(NBYTES, seed)
    x = values(32, 128)
    device.error = DeviceError
    engine = Engine(device, NBYTES, SMALL)
    with pytest.raises(DeviceError, match="not be loaded"):
        run(engine, x, "ifft2")
    assert not any(stream.waiting for stream in device._streams)
    assert engine._users == 0
    check(engine, x, "ifft2")
    device.left = 3
    tiles = engine.tiles(job_of(x, "ifft", axis=1)[0])
    with pytest.raises(DeviceError, match="not be loaded"):
        engine.run_part(
            tiles,
            Part(0, 0, 32, 4),
            x.copy(),
            np.empty_like(x),
        )
    assert not any(stream.waiting for stream in device._streams)
    assert engine._users == 0


def test_a_block_that_cannot_be_gathered_again_is_an_error_not_a_wrong_answer():
    x = values(32, 128)
    job, _ = job_of(x, "ifft2")
    with pytest.raises(DeviceError, match="gathered again"):
        Engine(Failing(NBYTES), NBYTES, SMALL).run(job, source_of(x, job, again=False))


@pytest.mark.parametrize("lengths", [(), (40, 48)])
def test_plans_may_be_made_and_given_back_while_a_block_is_gathered(lengths):
    """By other tasks, between a block's plan and its turn: plans are made again, within the limit.

    A task gives plans back where it has run out of memory.
    """
    calls = []
    x = values(64, 32)
    device = SimulatedGPU(1 << 20, table=2000, refuses=lambda name, nbytes: calls.append(name))
    engine = Engine(device, NBYTES, SMALL)
    (job, _) = job_of(x, "fft2")

    def gather():
        for n in lengths:
            engine.tiles(job_of(values(n, 16), "fft", axis=0)[0])
        if not lengths:
            engine.recover()
        calls.clear()
        return source_of(x, job).gather()

    spectrum = engine.run(job, Source(gather))
    assert distance(spectrum.reshape(x.shape), scipys(x, "fft2")) < 1e-15
    assert "plan" in calls
    assert device.peak <= NBYTES


def test_plans_of_many_rounds_are_not_all_kept():
    """None goes but between blocks, where a card can make it anew."""
    device = SimulatedGPU(NBYTES)
    planned_counts = []
    engine = Engine(device, NBYTES, SMALL, max_ffts=3)
    lengths = (96, 100, 108, 120, 125, 128)
    for n in lengths + lengths:  # each is back when others have taken its place
        check(engine, values(n, 8), "fft", axis=0)
        planned_counts.append(device.planned)
    assert max(planned_counts) <= 3
    assert planned_counts[-1] > 0
    assert device.dropped >= 2
    device = SimulatedGPU(NBYTES)
    engine = Engine(device, NBYTES, SMALL, max_ffts=1)
    check(engine, values(12, 10, 9, 8), "fftn")  # whose pieces alone take more
    assert device.planned > 1


def test_closing_gives_everything_back():
    device = SimulatedGPU(NBYTES)
    engine = Engine(device, NBYTES, SMALL)
    check(engine, values(32, 128))
    assert device.memory().free < device.total
    engine.close()
    engine.close()
    assert (device.memory().free, device.closed) == (device.total, 1)
    with pytest.raises(DeviceError, match="closed"):
        check(engine, values(32, 128))


def test_a_smaller_limit_for_one_task_holds():
    device = SimulatedGPU(NBYTES)
    x = values(64, 64)
    engine = Engine(device, NBYTES, SMALL)
    (job, _) = job_of(x, "fft2")
    for nbytes in (None, NBYTES // 4):
        engine.run(job, source_of(x, job), nbytes=nbytes)
    assert device.total - device.memory().free <= NBYTES // 4


@pytest.mark.parametrize("devices", [1, 2])
def test_many_threads_share_devices(devices):
    """Right answers, two tasks at most on a device, and no block held while waiting."""
    engines = [Engine(SimulatedGPU(NBYTES, seed), NBYTES, SMALL) for seed in range(devices)]
    leases = Leases(engines)
    tasks_now = [0]
    most = [0]
    lock = threading.Lock()
    wrong = []
    shapes = [(32, 128), (64, 64), (4096,)]

    def work(number):
        x = values(*shapes[number % 3], seed=number)
        with leases.lease() as engine:
            with lock:
                tasks_now[0] += 1
                most[0] = max(most[0], tasks_now[0])
            spectrum = run(engine, x, "fftn")
            with lock:
                tasks_now[0] -= 1
        if distance(spectrum, scipys(x, "fftn")) > 1e-14:
            wrong.append(number)

    in_threads(12, work)
    assert not wrong
    assert most[0] <= ADMITTED * devices
    assert leases.in_use == 0
    assert all(e.device.peak <= NBYTES for e in engines)


def test_all_that_wait_are_served_in_the_order_in_which_they_came():
    """Also one that would be admitted beside those that have a lease."""
    leases = Leases([Engine(SimulatedGPU(1000), 1000)])
    order = []
    go = threading.Event()
    threads = []

    def take(name):
        with leases.lease(2 if name == 5 else 1):
            order.append(name)
            go.wait(10)

    for name in range(6):
        threads.append(threading.Thread(target=take, args=(name,)))
        threads[-1].start()
        while len(order) + len(leases._waiting) <= name:
            time.sleep(0.001)
    assert order == [0]
    go.set()
    for thread in threads:
        thread.join(10)
    assert order == list(range(6))


def test_leases_that_cannot_be_given_are_refused():
    leases = Leases([Engine(SimulatedGPU(1000), 1000)])
    for _ in range(2):  # the one before was given back
        with leases.lease(), ThreadPoolExecutor(1) as pool:
            requested = pool.submit(leases.lease(1, timeout=0.01).__enter__)
            assert isinstance(requested.exception(10), TimeoutError)


class Interrupted(SimulatedGPU):
    """A device during whose work somebody presses Ctrl-C, once."""

    pressed = False

    def synchronize(self, event):
        if not self.pressed:
            self.pressed = True
            raise KeyboardInterrupt
        super().synchronize(event)


def test_ctrl_c_leaves_nothing_that_goes_on_writing_and_gives_memory_back():
    device = Interrupted(NBYTES)
    x = values(16, 64)
    engine = Engine(device, NBYTES, SMALL)
    with pytest.raises(KeyboardInterrupt):
        run(engine, x, "fft2")
    assert not any(stream.waiting for stream in device._streams)
    assert device.memory().free == NBYTES
    check(engine, x)
    engine.close()
    assert device.memory().free == NBYTES


def test_a_part_of_a_block_stays_within_its_tasks_share():
    """Also where the engine has more, and has had it."""
    device = SimulatedGPU(1 << 20, table=500)
    engine = Engine(device, NBYTES, SMALL)
    x = values(32, 128)
    job, _ = job_of(x, "ifft", axis=1)
    engine.run(job, source_of(x, job))
    assert device.total - device.memory().free > NBYTES // 2
    out = np.empty_like(x)
    tiles = engine.tiles(job, engine.within(NBYTES // 2))
    for low in (0, 16):
        engine.run_part(
            tiles,
            Part(0, low, low + 16, 2),
            x.copy(),
            out,
            nbytes=NBYTES // 2,
        )
        assert device.total - device.memory().free <= NBYTES // 2
    assert distance(out, scipys(x, "ifft", axis=1)) < 1e-15
