"""Registered plugins make workers ready, count what they do, and leave nothing behind."""

import asyncio
import io
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster, wait

import dask_bigfft
from dask_bigfft.cluster import register, registry, unregister
from dask_bigfft.cluster.follow import follow, following, state
from dask_bigfft.cluster.records import cluster_records
from dask_bigfft.cluster.scheduler import WatchScheduler
from dask_bigfft.cluster.worker import WatchWorker
from dask_bigfft.errors import ArgumentError, ArgumentTypeError, ClusterError

ROOT = Path(dask_bigfft.__file__).resolve().parents[1]
FIELD = np.random.default_rng(7).standard_normal((64, 96))


def blocks(seed=0):
    """A field that has a name of its own, so that each test has its own run."""
    return da.from_array(FIELD + seed, chunks=(8, 96))


def token_of(y):
    return y.name.partition("-")[2]


def waited(client, token, ready, timeout=30.0):
    """The run of a plan, as soon as it is as wanted: heartbeats come twice a second."""
    end = time.monotonic() + timeout
    while True:
        runs = state(client, {token})["runs"]
        if runs and ready(runs[0]):
            return runs[0]
        assert time.monotonic() < end, runs
        time.sleep(0.05)


def rounds_counted(run, plan):
    counted = {row["index"]: row["count"] for row in run["phases"] if row["phase"] == "round"}
    return counted == {i: r.target.blocks for i, r in enumerate(plan.rounds, 1)}


def test_workers_count_every_block_and_byte(client):
    x = blocks(1)
    y, plan = dask_bigfft.fft.fft2(x), dask_bigfft.plan(x, "fft2")
    assert np.allclose(y.compute(), np.fft.fft2(FIELD + 1))
    run = waited(client, token_of(y), lambda found: rounds_counted(found, plan))
    assert run["state"] == "done"
    assert run["rounds"] == plan.notation
    for row in run["phases"]:
        if row["phase"] == "round":
            assert row["nbytes"] == plan.rounds[row["index"] - 1].target.size * 16
            assert row["seconds"] > 0
            assert row["limit"] > 0
    assert {"gather", "fft", "round"} <= {row["phase"] for row in run["phases"]}
    total = sum(done["nbytes"] for done in run["balance"].values())
    assert total == sum(r.target.size * 16 for r in plan.rounds)


def test_a_second_run_of_the_same_array_begins_at_nothing(client):
    x = blocks(2)
    y, plan = dask_bigfft.fft.fft2(x), dask_bigfft.plan(x, "fft2")
    y.compute()
    waited(client, token_of(y), lambda found: rounds_counted(found, plan))
    y.compute()
    again = waited(client, token_of(y), lambda found: rounds_counted(found, plan))
    assert again["bytes_done"] == again["bytes_total"]


def test_registering_again_changes_nothing(client):
    def plugins(dask_worker):
        return {name: id(dask_worker.plugins[name]) for name in dask_worker.plugins}

    before = client.run(plugins)
    register(client)
    register(client, prefault=0, pinned=None)
    assert client.run(plugins) == before
    assert client.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.plugins)).count(
        "bigfft") == 1


def test_what_plans_ask_of_workers_is_told_when_register_returns(cluster, client):
    """And not with some heartbeat: a plan made before would count one device for each worker."""
    def silent(dask_worker):
        dask_worker.periodic_callbacks["heartbeat"].stop()

    def told(dask_scheduler):
        return [set(ws.metrics) >= {"bigfft", "bigfft-streams"}
                for ws in dask_scheduler.workers.values()]

    unregister(client)
    client.restart()
    client.run(silent)
    assert client.run_on_scheduler(told) == [False, False]
    register(client)
    assert client.run_on_scheduler(told) == [True, True]
    client.restart()  # with heartbeats


def test_fine_performance_metrics_have_the_phases(client):
    dask_bigfft.fft.fft2(blocks(3)).compute()

    def labels(dask_scheduler):
        return {key[2:] for key in dask_scheduler.cumulative_worker_metrics if len(key) == 4}

    end = time.monotonic() + 30
    wanted = {("bigfft-fft", "seconds"), ("bigfft-gather", "seconds"), ("bigfft-round", "bytes")}
    while not wanted <= client.run_on_scheduler(labels):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert ("bigfft-round", "seconds") not in client.run_on_scheduler(labels)


def test_a_worker_that_comes_later_is_made_ready_and_counts(cluster, client):
    cluster.scale(3)
    client.wait_for_workers(3, timeout=60)
    try:
        ready = client.run(lambda dask_worker: "bigfft" in dask_worker.metrics)
        assert list(ready.values()) == [True] * 3
        x = blocks(4)
        y = dask_bigfft.fft.fft2(x)
        y.compute()
        run = waited(client, token_of(y), lambda r: rounds_counted(r, dask_bigfft.plan(x, "fft2")))
        assert set(run["balance"]) <= set(ready)
    finally:
        cluster.scale(2)
        while len(client.scheduler_info(n_workers=-1)["workers"]) > 2:
            time.sleep(0.05)
    kept = state(client, {token_of(y)})["runs"][0]
    assert kept["balance"] == run["balance"]  # what a worker did stays when it has gone


def test_workers_that_are_restarted_are_made_ready_again(client):
    client.restart()
    ready = client.run(lambda dask_worker: "bigfft" in dask_worker.metrics)
    assert list(ready.values()) == [True, True]


def test_a_run_that_is_cancelled_or_fails_says_so(client):
    def broken(block):
        raise RuntimeError("no")

    x = blocks(5).map_blocks(broken, dtype=float, meta=np.empty((0, 0)))
    y = dask_bigfft.fft.fft2(x)
    with pytest.raises(RuntimeError, match="no"):
        follow(client, lambda: client.compute([y]), None)
    waited(client, token_of(y), lambda run: run["state"] != "running")

    def slow(block):
        time.sleep(0.2)
        return block

    z = dask_bigfft.fft.fft2(blocks(6).map_blocks(slow, dtype=float, meta=np.empty((0, 0))))
    futures = client.compute([z])
    waited(client, token_of(z), lambda run: True)
    client.cancel(futures)
    del futures
    assert waited(client, token_of(z), lambda run: run["state"] != "running")["left"] is None


def test_what_is_there_already_is_no_new_run(client):
    y = dask_bigfft.fft.fft2(blocks(10))
    kept = y.persist()
    wait(kept)
    first = waited(client, token_of(y), lambda run: run["state"] == "done")
    client.compute(dask_bigfft.fft.fft2(blocks(10))).result()
    again = state(client, {token_of(y)})["runs"][0]
    assert (again["state"], again["started"]) == ("done", first["started"])
    total = float((abs(y) ** 2).sum().compute())
    assert np.isclose(total, ((FIELD + 10) ** 2).sum() * FIELD.size)
    assert state(client, {token_of(y)})["runs"][0]["state"] == "done"
    del kept


class Seen:
    def __init__(self):
        self.runs = []

    def show(self, runs):
        self.runs.append(runs)

    close = show


def test_following_shows_the_runs_that_begin_meanwhile(client):
    dask_bigfft.fft.fft2(blocks(7)).compute()
    y, seen = dask_bigfft.fft.fft2(blocks(8)), Seen()
    with following(client, seen):
        y.compute()
    assert [run["token"] for run in seen.runs[-1]] == [token_of(y)]
    assert seen.runs[-1][0]["state"] == "done"


def test_several_workers_in_one_process_are_told_apart():
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=False,
                     dashboard_address="127.0.0.1:0") as one,
        Client(one) as client,
    ):
        register(client)
        x = blocks(9)
        y, plan = dask_bigfft.fft.fft2(x), dask_bigfft.plan(x, "fft2")
        y.compute()
        run = waited(client, token_of(y), lambda found: rounds_counted(found, plan))
        total = sum(done["nbytes"] for done in run["balance"].values())
        assert total == sum(r.target.size * 16 for r in plan.rounds)
        unregister(client)


def test_unregistering_gives_everything_back():
    def left(dask_worker):
        from dask_bigfft import events
        from dask_bigfft.memory.default import default_arena
        from dask_bigfft.record import RECORD

        sinks = [sink.__name__ for sink in events._sinks]
        counted = len(RECORD.counters(dask_worker.address))
        idle = default_arena().counters().idle_bytes
        return "bigfft" in dask_worker.metrics, sinks, counted, idle

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0") as one,
        Client(one) as client,
    ):
        register(client, prefault=1 << 22)
        for seed in (1, 2):
            dask_bigfft.fft.fft2(blocks(seed)).compute()
        ((there, sinks, counted, idle),) = client.run(left).values()
        assert there
        assert counted == 2  # runs are remembered as long as somebody may ask
        assert "digest" in sinks
        assert idle >= 1 << 22
        unregister(client)
        unregister(client)
        ((there, sinks, counted, idle),) = client.run(left).values()
        assert (there, sinks, counted, idle) == (False, ["take"], 0, 0)
        assert "bigfft" not in client.run_on_scheduler(
            lambda dask_scheduler: list(dask_scheduler.plugins))


def test_registering_again_with_other_numbers_makes_other_memory_ready():
    """Only that: what the worker has counted stays, and a number left out is the one before."""
    def ready(dask_worker):
        from dask_bigfft.memory.default import default_arena

        plugins = {name: plugin.nbytes for name, plugin in dask_worker.plugins.items()
                   if hasattr(plugin, "nbytes")}
        return default_arena().counters().idle_bytes, id(dask_worker.plugins["bigfft"]), plugins

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address="127.0.0.1:0") as one,
        Client(one) as client,
    ):
        register(client, prefault=1 << 23)
        ((most, watch, numbers),) = client.run(ready).values()
        assert most >= 1 << 23
        assert numbers == {"bigfft-prefault": 1 << 23, "bigfft-pinned": 0}
        register(client)
        ((most, same, numbers),) = client.run(ready).values()
        assert most >= 1 << 23
        assert (same, numbers["bigfft-prefault"]) == (watch, 1 << 23)
        register(client, prefault=1 << 21)
        ((least, same, numbers),) = client.run(ready).values()
        assert (1 << 21) <= least < (1 << 23)
        assert (same, numbers) == (watch, {"bigfft-prefault": 1 << 21, "bigfft-pinned": 0})
        register(client, pinned=1 << 20)  # no device here, so that there is nothing to pin
        ((least, same, numbers),) = client.run(ready).values()
        assert least >= 1 << 21
        assert (same, numbers) == (watch, {"bigfft-prefault": 1 << 21, "bigfft-pinned": 1 << 20})
        one.scale(2)
        client.wait_for_workers(2, timeout=60)
        assert [found[2] for found in client.run(ready).values()] == [numbers] * 2


def test_versions_that_differ_are_said_process_by_process(client, monkeypatch):
    with pytest.raises(ClusterError, match=r"has version 9\.9, and its cluster \(the scheduler: "):
        registry.check_versions(client, "9.9")
    monkeypatch.setattr(registry, "_ASK", "__import__('dask_bigfft_that_is_not_there').x")
    with pytest.raises(ClusterError, match=r"worker tcp://[^ ]*: not there"):
        register(client)


def test_a_worker_that_comes_with_another_version_says_so(caplog):
    plugin = WatchWorker("9.9")
    plugin._prepare = lambda: None
    asyncio.run(plugin.setup(SimpleNamespace(address="tcp://10.0.0.7:1", metrics={})))
    plugin.teardown(plugin.worker)
    (said,) = (record.getMessage() for record in caplog.records)
    assert "tcp://10.0.0.7:1 has dask_bigfft" in said
    assert "the client that registered it has 9.9" in said


def test_what_is_no_client_or_number_is_refused(client):
    with pytest.raises(ArgumentError, match="`client`='here'"):
        register("here")
    for wrong, kind in ((-1, ArgumentError), (True, ArgumentTypeError), ("1", ArgumentTypeError)):
        with pytest.raises(kind, match="`prefault`="):
            register(client, prefault=wrong)


def test_asynchronous_clients_compute_and_are_refused_where_somebody_would_have_to_wait():
    async def run():
        async with (
            LocalCluster(n_workers=2, threads_per_worker=1, processes=False, asynchronous=True,
                         dashboard_address="127.0.0.1:0") as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            y = dask_bigfft.fft.fft2(blocks(17))
            assert np.allclose(await client.compute(y), np.fft.fft2(FIELD + 17))
            for asked in (
                lambda: register(client), lambda: unregister(client),
                lambda: dask_bigfft.progress(y, stream=io.StringIO()),
                lambda: cluster_records(client, token_of(y)),
                lambda: dask_bigfft.calibrate(client),
                lambda: dask_bigfft.run("in.npy", "out.zarr", scratch="s"),
            ):
                with pytest.raises((ValueError, TypeError), match="`client`="):
                    asked()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_dask_worker_processes(tmp_path):
    """Scheduler and worker as users start them, in processes that know nothing of each other."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    address = tmp_path / "scheduler.json"

    def started(*arguments):
        return subprocess.Popen(
            [sys.executable, "-m", "dask", *arguments], cwd=tmp_path, env=environment,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )

    scheduler = started("scheduler", "--host", "127.0.0.1", "--port", "0", "--scheduler-file",
                        str(address), "--dashboard-address", "127.0.0.1:0")
    worker = started("worker", "--scheduler-file", str(address), "--nthreads", "1",
                     "--no-dashboard", "--host", "127.0.0.1")
    try:
        end = time.monotonic() + 60
        while not address.exists():
            assert time.monotonic() < end
            time.sleep(0.05)
        with Client(scheduler_file=str(address), timeout=60) as client:
            client.wait_for_workers(1, timeout=60)
            register(client)
            x = blocks(10)
            y, plan = dask_bigfft.fft.fft2(x), dask_bigfft.plan(x, "fft2")
            assert np.allclose(y.compute(), np.fft.fft2(FIELD + 10))
            waited(client, token_of(y), lambda found: rounds_counted(found, plan))
    finally:
        for process in (worker, scheduler):
            process.terminate()
        for process in (worker, scheduler):
            process.wait(30)


def test_a_scheduler_forgets_what_belongs_to_no_run_it_shows():
    """It may live for months, and each plan has a token of its own."""
    watch = WatchScheduler("1")
    worker = SimpleNamespace(metrics={"bigfft": {"counters": {"shown": {}, "gone": {}}}})
    watch.scheduler = SimpleNamespace(workers={"here": worker})
    watch.board = SimpleNamespace(meters={"shown": None})
    watch.seen = {"here": {}, "left": {"shown": {}}, "long gone": {"gone": {}}}
    watch.baselines = {"shown": {}, "gone": {}}
    watch._collect()
    assert watch.seen == {"here": {"shown": {}}, "left": {"shown": {}}}
    assert watch.baselines == {"shown": {}}
