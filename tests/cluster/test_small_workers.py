"""Workers with little memory: plans leave room for what stops them, and nobody waits for ever."""

import asyncio
import sys
import time

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, worker_client
from distributed.core import Status
from support import local, slowed

import dask_bigfft
import dask_bigfft.cluster
from dask_bigfft import fft
from dask_bigfft.errors import ClusterError, PlanError
from dask_bigfft.events import workers_of
from dask_bigfft.kernels.copies import compile_at_once
from dask_bigfft.memory import paused
from dask_bigfft.memory.limits import IMPORTS_NBYTES
from dask_bigfft.testing.clusters import Processes
from dask_bigfft.testing.traps import until

MIB = 2**20


def budget():
    return dask_bigfft.plan(da.zeros(64, chunks=8), "fft").machine.memory_limit


@pytest.mark.parametrize(("pause", "part"), [(0.5, 0.5), (False, 1.0)])
def test_a_plan_stays_below_what_pauses_the_workers(pause, part):
    """As it is set there; workers that nothing pauses, or restarts, have all of their limit."""
    limit = 16384 * MIB  # they run in this process, which other tests have made large
    settings = {"distributed.worker.memory.pause": pause}
    with dask.config.set(settings), local(memory_limit=limit):
        assert part * limit - 4096 * MIB <= budget() <= part * limit - IMPORTS_NBYTES
        y = fft.fft(da.from_array(np.arange(64.0), chunks=8))
        np.testing.assert_allclose(y.compute(), np.fft.fft(np.arange(64.0)), atol=1e-10)


def test_workers_too_small_for_any_plan_are_refused():
    with local(memory_limit=300 * MIB):
        x = da.zeros(64, chunks=8)
        with pytest.raises(PlanError, match=r"300\.00 MiB.* 240\.00 MiB .*pause.* \d+\.\d\d MiB"):
            fft.fft(x)
        assert dask_bigfft.plan(x, "fft", memory_limit="8 MiB").machine.memory_limit == 8 * MIB


def hold(nbytes, dask_worker):
    """Let a worker hold memory that no task knows."""
    dask_worker.ballast = np.ones(nbytes // 8)


def tells(client, condition):
    """Wait until heartbeats tell memory of the only worker for which a condition holds."""

    def memory():
        (worker,) = workers_of(client).values()
        return worker["metrics"]["memory"]

    until(lambda: condition(memory()))


def test_a_plan_knows_what_the_workers_hold_now():
    with local(1, processes=True, memory_limit=2048 * MIB) as client:
        first = budget()
        assert budget() == first
        client.run(hold, 640 * MIB)
        tells(client, lambda nbytes: nbytes > 700 * MIB)
        least = 2048 * MIB // 16  # what libraries may take besides
        assert first - 640 * MIB - least <= budget() <= first - 640 * MIB + IMPORTS_NBYTES
        client.run(hold, 0)
        tells(client, lambda nbytes: nbytes < 500 * MIB)
        assert budget() == first


def test_a_small_worker_works_before_and_after_it_is_registered():
    a = np.random.default_rng(4).standard_normal((512, 768))
    with local(1, processes=True, memory_limit=400 * MIB) as client:
        client.run(hold, 64 * MIB)  # modules of its user
        for number in range(3):
            if number == 1:
                dask_bigfft.cluster.register(client)
            x = da.from_array(a + number, chunks=(128, 768))
            spectrum = client.compute(fft.fft2(x)).result(timeout=100)
            np.testing.assert_allclose(spectrum, np.fft.fft2(a + number), atol=1e-8)


def test_a_full_worker_among_others_is_left_out():
    a = np.random.default_rng(7).standard_normal((64, 64))
    with local(2, processes=True, memory_limit=640 * MIB) as client:
        first = budget()
        full, _ = workers_of(client)
        client.run(hold, 400 * MIB, workers=[full])
        wait_until_paused(client, 1)
        assert budget() == first
        y = fft.fft2(da.from_array(a, chunks=(16, 64)))
        np.testing.assert_allclose(client.compute(y).result(timeout=60), np.fft.fft2(a), atol=1e-9)


def loaded_code(dask_worker):
    return "llvmlite" in sys.modules


@pytest.mark.parametrize(("limit", "loads"), [(400, False), (4000, True)])
def test_compiled_code_leaves_small_workers_their_memory(limit, loads):
    """Otherwise, after many transforms, no plan fits any more."""
    a = np.random.default_rng(6).standard_normal((64, 64))
    with local(1, processes=True, memory_limit=limit * MIB) as client:
        client.run(compile_at_once)
        y = fft.fft2(da.from_array(a, chunks=(16, 64)))
        np.testing.assert_allclose(y.compute(), np.fft.fft2(a), atol=1e-9)
        assert list(client.run(loaded_code).values()) == [loads]


def pause(dask_worker):
    """Pause a worker that the memory monitor does not resume."""
    dask_worker.memory_manager.memory_pause_fraction = False
    dask_worker.status = Status.paused


def go_on(dask_worker):
    dask_worker.memory_manager.memory_pause_fraction = 0.8
    dask_worker.status = Status.running


def be_quick(dask_scheduler):
    paused.PATIENCE = 2.0


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Two workers in processes of their own, whose scheduler soon loses its patience."""
    with Processes(tmp_path_factory.mktemp("two"), 2) as cluster:
        with Client(scheduler_file=cluster.file) as client:
            client.wait_for_workers(2, timeout=60)
            client.run_on_scheduler(be_quick)
        yield cluster


@pytest.fixture
def client(two):
    with Client(scheduler_file=two.file) as connected:
        yield connected
        connected.run(go_on)


PAUSED = r"all workers .* paused .* [MG]iB of its memory limit"
LINE = np.random.default_rng(1).standard_normal(2**14)


def wait_until_paused(client, count):
    def are_paused():
        states = [worker["status"] for worker in workers_of(client).values()]
        return states.count("paused") == count

    until(are_paused)


@pytest.mark.parametrize("carrier", ["tasks", "p2p"])
def test_workers_that_all_get_paused_are_an_error(client, carrier):
    with dask.config.set({"bigfft.exchange.carrier": carrier}):
        x = slowed(da.from_array(LINE, chunks=2**9), 0.1)
        future = client.compute(fft.fft(x))
        time.sleep(0.5)
        client.run(pause)
        with pytest.raises(ClusterError, match=PAUSED):
            future.result(timeout=60)
        client.cancel(future)
        client.run(go_on)
        np.testing.assert_allclose(fft.fft(2 * x).compute(), np.fft.fft(2 * LINE), atol=1e-9)


@pytest.mark.parametrize(
    "moment", ["without a client", "before", "after", "with memory_limit", "into tasks"]
)
def test_workers_that_were_paused_before_are_an_error(tmp_path, moment):
    """They have none of the tasks, and may never have heard of this package."""
    x = da.from_array(LINE, chunks=2**11)
    with Processes(tmp_path, 1) as cluster:
        if moment == "without a client":
            y = fft.fft(x)
        with Client(scheduler_file=cluster.file) as client:
            client.wait_for_workers(1, timeout=60)
            if moment == "before":
                y = fft.fft(x)
            client.run(pause)
            wait_until_paused(client, 1)
            client.run_on_scheduler(be_quick)
            if moment == "after":
                y = fft.fft(x)
            elif moment == "with memory_limit":
                y = fft.fft(x, memory_limit="100 MiB")
            elif moment == "into tasks":
                (y,) = dask.optimize(fft.fft(x, memory_limit="100 MiB"))
            future = client.compute(y)
            with pytest.raises(ClusterError, match=PAUSED):
                future.result(timeout=60)
            client.cancel(future)
            client.run(go_on)
            np.testing.assert_allclose(y.compute(), np.fft.fft(LINE), atol=1e-9)


async def have_gpu(dask_worker):
    await dask_worker.set_resources(GPU=1)


@pytest.mark.parametrize("carrier", ["tasks", "p2p"])
@pytest.mark.parametrize("by", ["workers", "resources"])
def test_paused_workers_that_alone_may_run_a_transform_are_an_error(client, by, carrier):
    """Another worker runs, and goes on with other work and other transforms."""
    chosen, other = workers_of(client)
    client.run(have_gpu, workers=[chosen])
    limits = {"workers": [chosen]} if by == "workers" else {"resources": {"GPU": 1}}
    with dask.config.set({"bigfft.exchange.carrier": carrier}):
        y = fft.fft(da.from_array(LINE + 2, chunks=2**11))
        client.run(pause, workers=[chosen])
        wait_until_paused(client, 1)
        stranded = client.compute(y, optimize_graph=False, **limits)
        z = fft.fft(slowed(da.from_array(LINE + 3, chunks=2**11), 0.1))
        going = client.compute(z, workers=[other])
        with pytest.raises(ClusterError, match=PAUSED):
            stranded.result(timeout=60)
        np.testing.assert_allclose(going.result(timeout=60), np.fft.fft(LINE + 3), atol=1e-9)
        client.cancel(stranded)
        client.run(go_on)
        again = client.compute(2 * y, optimize_graph=False, **limits).result(timeout=60)
        np.testing.assert_allclose(again, 2 * np.fft.fft(LINE + 2), atol=1e-9)


@pytest.mark.parametrize("carrier", ["tasks", "p2p"])
def test_a_paused_worker_among_others_delays_nobody_for_ever(client, carrier):
    """What it has not begun is done by others, or by itself if it goes on in time."""
    first, _ = workers_of(client)
    with dask.config.set({"bigfft.exchange.carrier": carrier}):
        client.run(pause, workers=[first])
        wait_until_paused(client, 1)
        spectrum = client.compute(fft.fft(da.from_array(LINE + 4, chunks=2**11))).result(timeout=60)
        np.testing.assert_allclose(spectrum, np.fft.fft(LINE + 4), atol=1e-9)


@pytest.mark.parametrize("carrier", ["tasks", "p2p"])
def test_a_worker_that_gets_paused_alone_keeps_nobody_waiting(client, carrier):
    """Others do what it was given and has not begun, unless a shuffle has sent it the data."""
    first, _ = workers_of(client)

    def is_given_tasks():
        return len(client.processing(workers=[first])[first]) > 1

    with dask.config.set({"bigfft.exchange.carrier": carrier}):
        x = slowed(da.from_array(LINE + 5, chunks=2**11), 0.3)
        future = client.compute(fft.fft(x))
        until(is_given_tasks)
        client.run(pause, workers=[first])
        try:
            spectrum = future.result(timeout=60)
            np.testing.assert_allclose(spectrum, np.fft.fft(LINE + 5), atol=1e-9)
        except ClusterError:
            assert carrier == "p2p"
        client.cancel(future)


def test_an_asynchronous_client_gets_the_error(monkeypatch):
    monkeypatch.setattr(paused, "PATIENCE", 2.0)

    async def run():
        options = {"processes": False, "asynchronous": True, "dashboard_address": "127.0.0.1:0"}
        async with (
            LocalCluster(n_workers=1, threads_per_worker=1, **options) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            await client.run(pause)
            (y,) = dask.optimize(fft.fft(da.from_array(LINE + 7, chunks=2**11)))
            with pytest.raises(ClusterError, match=PAUSED):
                await client.compute(y)

    asyncio.run(asyncio.wait_for(run(), 60))


def outer(values):
    """Compute a transform in a task, which waits for it outside of its worker's threads."""
    with worker_client() as inner:
        y = fft.fft(da.from_array(values, chunks=2**11), memory_limit="100 MiB")
        inner.run(pause)
        return inner.compute(y).result(timeout=60)


def test_a_task_that_waits_for_a_transform_gets_its_error(client):
    future = client.submit(outer, LINE + 6)
    with pytest.raises(ClusterError, match=PAUSED):
        future.result(timeout=100)


SLOW = [(False, False), (True, True), (True, False)]


@pytest.mark.parametrize(
    ("registered", "pauses"),
    [(False, True), *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW)],
)
def test_a_transform_that_workers_hardly_hold_ends(registered, pauses):
    """With its result, or before it begins."""
    settings = {} if pauses else {"distributed.worker.memory.pause": False}
    with dask.config.set(settings), local(processes=True, memory_limit=420 * MIB) as client:
        if registered:
            dask_bigfft.cluster.register(client)
        x = da.random.default_rng(2).standard_normal(2**23, chunks=2**18) + 0j
        try:
            y = abs(fft.fft(x)).sum()
        except PlanError as error:
            assert "420.00 MiB" in str(error)  # noqa: PT017
            return
        spectrum = client.compute(y).result(timeout=120)  # 20 s on an idle machine
    assert spectrum == pytest.approx(21536223054.6519, rel=1e-9)
