"""Workers with little memory: plans leave room for what stops them, and nobody waits for ever."""

import time

import dask
import dask.array as da
import numpy as np
import pytest
from distributed import Client
from support import local, slowed

import dask_bigfft
import dask_bigfft.cluster
from dask_bigfft import fft
from dask_bigfft.errors import ClusterError, PlanError
from dask_bigfft.graph import paused
from dask_bigfft.memory_settings import IMPORTS_NBYTES
from dask_bigfft.testing.clusters import Processes

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
        with pytest.raises(PlanError, match=r"300 MiB.* 240 MiB .*pause.* \d+ MiB"):
            fft.fft(x)
        assert dask_bigfft.plan(x, "fft", memory_limit="8 MiB").machine.memory_limit == 8 * MIB


def pause(dask_worker):
    paused.PATIENCE = 2.0
    dask_worker.memory_manager.memory_pause_fraction = 1e-9


def go_on(dask_worker):
    dask_worker.memory_manager.memory_pause_fraction = 0.8


@pytest.mark.parametrize("carrier", ["tasks", "p2p"])
def test_workers_that_all_stay_paused_are_an_error(tmp_path, carrier):
    a = np.random.default_rng(1).standard_normal(2**14)
    with (
        Processes(tmp_path, 2) as cluster,
        Client(scheduler_file=cluster.file) as client,
        dask.config.set({"bigfft.exchange.carrier": carrier}),
    ):
        client.wait_for_workers(2, timeout=60)
        x = slowed(da.from_array(a, chunks=2**9), 0.1)
        future = client.compute(fft.fft(x))
        time.sleep(0.5)
        client.run(pause)
        with pytest.raises(ClusterError, match=r"all workers .* paused .* MiB of its memory limit"):
            future.result(timeout=60)
        client.cancel(future)
        client.run(go_on)
        np.testing.assert_allclose(fft.fft(2 * x).compute(), np.fft.fft(2 * a), atol=1e-9)


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
            assert "420 MiB" in str(error)  # noqa: PT017
            return
        found = client.compute(y).result(timeout=120)  # 20 s on an idle machine
    assert found == pytest.approx(21536223054.6519, rel=1e-9)
