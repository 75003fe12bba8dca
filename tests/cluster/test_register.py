"""Registered plugins make workers ready, count what they do, and leave nothing behind."""

import asyncio
import io

import dask.array as da
import numpy as np
import psutil
import pytest
from distributed import Client, LocalCluster, wait
from support import failing, local, slowed

import dask_bigfft
from dask_bigfft import cluster as room
from dask_bigfft.cluster import cluster_records, register, state, unregister, wait_for
from dask_bigfft.errors import ArgumentError, ArgumentTypeError, ClusterError
from dask_bigfft.events import workers_of
from dask_bigfft.testing.clusters import Processes
from dask_bigfft.testing.traps import until

FIELD = np.random.default_rng(7).standard_normal((64, 96))


def blocks(seed=0):
    """A field that has a name of its own, so that each test has its own run."""
    return da.from_array(FIELD + seed, chunks=(8, 96))


def token_of(y):
    return y.name.partition("-")[2]


def run_of(client, token):
    return next((run for run in state(client)["runs"] if run["token"] == token), None)


def waited(client, token, ready):
    """The run of a plan, as soon as it is as wanted: heartbeats come twice a second."""

    def found():
        run = run_of(client, token)
        return run and ready(run) and run

    return until(found)


def rounds_counted(run, plan):
    counted = {row["index"]: row["count"] for row in run["phases"] if row["phase"] == "round"}
    return counted == {i: r.target.blocks for i, r in enumerate(plan.rounds, 1)}


def test_workers_count_every_block_and_byte(client):
    x = blocks(1)
    y = dask_bigfft.fft.fft2(x)
    plan = dask_bigfft.plan(x, "fft2")
    assert np.allclose(y.compute(), np.fft.fft2(FIELD + 1))
    run = waited(client, token_of(y), lambda run_: rounds_counted(run_, plan))
    assert run["state"] == "done"
    assert run["rounds"] == plan.notation
    for row in run["phases"]:
        if row["phase"] == "round":
            assert row["nbytes"] == plan.rounds[row["index"] - 1].target.size * 16
            assert row["seconds"] > 0
    assert {"gather", "fft", "round"} <= {row["phase"] for row in run["phases"]}
    total = sum(work["nbytes"] for work in run["balance"].values())
    assert total == sum(r.target.size * 16 for r in plan.rounds)


def test_registering_again_changes_nothing(client):
    def of_worker(dask_worker):
        return {name: id(dask_worker.plugins[name]) for name in dask_worker.plugins}

    def of_scheduler(dask_scheduler):
        return {name: id(plugin) for name, plugin in dask_scheduler.plugins.items()}

    before = client.run(of_worker), client.run_on_scheduler(of_scheduler)
    register(client)
    register(client, prefault=0, pinned=None)
    assert (client.run(of_worker), client.run_on_scheduler(of_scheduler)) == before


def test_what_plans_ask_of_workers_is_told_when_register_returns(cluster, client):
    """And not with some heartbeat: a plan made before would count one device for each worker."""

    def silent(dask_worker):
        dask_worker.periodic_callbacks["heartbeat"].stop()

    def told(dask_scheduler):
        return [
            set(ws.metrics) >= {"bigfft", "bigfft-streams"}
            for ws in dask_scheduler.workers.values()
        ]

    unregister(client)
    client.restart()
    client.run(silent)
    assert client.run_on_scheduler(told) == [False, False]
    register(client)
    assert client.run_on_scheduler(told) == [True, True]
    client.restart()  # with heartbeats
    ready = client.run(lambda dask_worker: "bigfft" in dask_worker.metrics)
    assert list(ready.values()) == [True, True]  # again


def test_fine_performance_metrics_have_the_phases(client):
    dask_bigfft.fft.fft2(blocks(3)).compute()

    def labels(dask_scheduler):
        return {key[2:] for key in dask_scheduler.cumulative_worker_metrics if len(key) == 4}

    wanted = {("bigfft-fft", "seconds"), ("bigfft-gather", "seconds"), ("bigfft-round", "bytes")}
    until(lambda: wanted <= client.run_on_scheduler(labels))
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
        until(lambda: len(workers_of(client)) == 2)
    before = run_of(client, token_of(y))
    assert before["balance"] == run["balance"]  # what a worker did stays when it has gone


def test_a_run_that_is_cancelled_or_fails_says_so(client):
    y = dask_bigfft.fft.fft2(failing(blocks(5)))
    with pytest.raises(RuntimeError, match="broken"):
        wait_for(client, client.compute([y]))
    waited(client, token_of(y), lambda run: run["state"] != "running")
    z = dask_bigfft.fft.fft2(slowed(blocks(6), 0.2))
    futures = client.compute([z])
    waited(client, token_of(z), lambda run: True)
    client.cancel(futures)
    del futures
    assert waited(client, token_of(z), lambda run: run["state"] != "running")["left"] is None


def test_what_is_there_already_is_no_new_run(client):
    y = dask_bigfft.fft.fft2(blocks(10))
    persisted = y.persist()
    wait(persisted)
    first = waited(client, token_of(y), lambda run: run["state"] == "done")
    client.compute(dask_bigfft.fft.fft2(blocks(10))).result()
    again = run_of(client, token_of(y))
    assert (again["state"], again["started"]) == ("done", first["started"])
    total = float((abs(y) ** 2).sum().compute())
    assert np.isclose(total, ((FIELD + 10) ** 2).sum() * FIELD.size)
    assert run_of(client, token_of(y))["state"] == "done"
    del persisted


@pytest.fixture(scope="module")
def alone():
    with local(workers=1, processes=True) as cluster:
        yield cluster


def test_unregistering_gives_everything_back(alone):
    def left(dask_worker):
        from dask_bigfft import events
        from dask_bigfft.events import RECORD
        from dask_bigfft.memory.arena import default_arena

        counted = len(RECORD.counters(dask_worker.address))
        idle = default_arena().counters().idle_bytes
        return "bigfft" in dask_worker.metrics, len(events._sinks), counted, idle

    register(alone, prefault=1 << 22)
    for seed in (1, 2):
        dask_bigfft.fft.fft2(blocks(seed)).compute()
    ((registered, sinks, counted, idle),) = alone.run(left).values()
    assert (registered, sinks, counted) == (True, 2, 2)  # as long as somebody may ask
    assert idle >= 1 << 22
    unregister(alone)
    unregister(alone)
    assert list(alone.run(left).values()) == [(False, 1, 0, 0)]
    plugins = alone.run_on_scheduler(lambda dask_scheduler: list(dask_scheduler.plugins))
    assert "bigfft" not in plugins


def test_registering_again_with_other_numbers_makes_other_memory_ready(alone):
    """Only that: what the worker has counted stays, and a number left out is the one before."""

    def ready(dask_worker):
        from dask_bigfft.memory.arena import default_arena

        plugins = dask_worker.plugins
        numbers = list(plugins["bigfft-memory"].numbers[:2])
        return default_arena().counters().idle_bytes, id(plugins["bigfft"]), numbers

    register(alone, prefault=1 << 23)
    ((_, watch, _),) = alone.run(ready).values()
    for given, wanted, least in (
        ({}, [1 << 23, 0], 1 << 23),
        ({"prefault": 1 << 21}, [1 << 21, 0], 1 << 21),
        ({"pinned": 1 << 20}, [1 << 21, 1 << 20], 1 << 21),  # no device, so nothing to pin
    ):
        register(alone, **given)
        ((idle, same, numbers),) = alone.run(ready).values()
        assert (same, numbers) == (watch, wanted)
        assert idle >= least
        assert "prefault" not in given or idle < 1 << 23
    alone.cluster.scale(2)
    alone.wait_for_workers(2, timeout=60)
    assert [answer[2] for answer in alone.run(ready).values()] == [numbers] * 2
    unregister(alone)


def memory_of_process(dask_worker):
    return psutil.Process().memory_info().rss


def import_transforms(dask_worker):
    import dask_bigfft.fft  # noqa: F401 (as its first task does)


@pytest.mark.parametrize("works", [False, True])
def test_registering_takes_little_memory_of_a_worker(works):
    """Of a fresh process, and of one that has all modules that transforms need."""
    with local(workers=1, processes=True) as client:
        if works:
            client.run(import_transforms)
        (before,) = client.run(memory_of_process).values()
        register(client)
        (after,) = client.run(memory_of_process).values()
        assert after - before <= 30 * 2**20
        y = dask_bigfft.fft.fft2(blocks(20))
        assert np.allclose(y.compute(), np.fft.fft2(FIELD + 20))


def test_versions_that_differ_are_said_process_by_process(client, monkeypatch):
    with pytest.raises(ClusterError, match=r"has version 9\.9, and its cluster \(the scheduler: "):
        room.check_versions(client, "9.9")
    monkeypatch.setattr(room, "_ASK", room._ASK.replace("dask_bigfft", "not_there_at_all"))
    with pytest.raises(ClusterError, match=r"worker tcp://[^ ]*: not there"):
        register(client)


def test_what_is_no_client_or_number_is_refused_before_the_cluster_is_asked(client, monkeypatch):
    monkeypatch.delattr(room, "check_versions")
    with pytest.raises(ArgumentError, match="`client`='here'"):
        register("here")
    for wrong, kind in ((-1, ArgumentError), (True, ArgumentTypeError), ("1", ArgumentTypeError)):
        with pytest.raises(kind, match="`prefault`="):
            register(client, prefault=wrong)


def test_asynchronous_clients_compute_and_are_refused_where_somebody_would_have_to_wait():
    async def run():
        options = {"processes": False, "asynchronous": True, "dashboard_address": "127.0.0.1:0"}
        async with (
            LocalCluster(n_workers=2, threads_per_worker=1, **options) as cluster,
            Client(cluster, asynchronous=True) as client,
        ):
            y = dask_bigfft.fft.fft2(blocks(17))
            assert np.allclose(await client.compute(y), np.fft.fft2(FIELD + 17))
            # no worker can be asked for its libraries
            assert dask_bigfft.plan(blocks(17), "fft2", kernel="auto").kernel == "scipy"
            for requested in (
                lambda: register(client),
                lambda: unregister(client),
                lambda: dask_bigfft.progress(y, stream=io.StringIO()),
                lambda: cluster_records(client, token_of(y)),
                lambda: dask_bigfft.calibrate(client),
                lambda: dask_bigfft.run("in.npy", "out.zarr", scratch="s"),
            ):
                with pytest.raises((ValueError, TypeError), match="`client`="):
                    requested()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_scheduler_and_a_client_in_processes_of_their_own(tmp_path):
    with Processes(tmp_path, 1) as cluster, Client(scheduler_file=cluster.file) as client:
        client.wait_for_workers(1, timeout=60)
        register(client)
        x = blocks(10)
        y = dask_bigfft.fft.fft2(x)
        plan = dask_bigfft.plan(x, "fft2")
        assert np.allclose(y.compute(), np.fft.fft2(FIELD + 10))
        waited(client, token_of(y), lambda run: rounds_counted(run, plan))
