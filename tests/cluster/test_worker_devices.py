"""Workers open their devices when they are registered, and give everything back."""

import urllib.request

import dask.array as da
import numpy as np
import pytest
from support import local

from dask_bigfft import fft
from dask_bigfft.cluster import register, state, unregister
from dask_bigfft.errors import ArgumentError
from dask_bigfft.gpu import dispatch
from dask_bigfft.memory.arena import default_arena
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.traps import until

LIMITS = TileLimits(0, least=256, run_nbytes=64)
MIB = 1 << 20


@pytest.fixture
def threads():
    """A cluster of one worker in this process, which has a simulated device."""
    with simulated_devices(1 << 14, limits=LIMITS) as (device,), local(1, 2) as client:
        yield client, device


def worker_of(client):
    return next(iter(client.cluster.workers.values()))


def silent(dask_worker):
    """Let nobody else ask for numbers that are those since the last time."""
    dask_worker.periodic_callbacks["heartbeat"].stop()


def test_devices_are_open_before_the_first_task_and_closed_at_the_end(threads):
    client, device = threads
    register(client, pinned=8 * MIB)
    client.run(silent)
    worker = worker_of(client)
    idle = {"name": "simulated device", "memory": 0, "budget": 1 << 14}
    idle |= {"busy_seconds": 0.0, "busy_share": 0.0}
    assert worker.metrics["bigfft-streams"](worker) == {"in_use": 0, "devices": [idle]}
    assert default_arena().counters().idle_bytes >= 8 * MIB
    x = np.random.default_rng(0).standard_normal((64, 60))
    spectrum = fft.fft2(da.from_array(x, (16, 60)), device="gpu").compute()
    assert np.allclose(spectrum, np.fft.fft2(x))
    assert any(span.operation == "h2d" for span in device.trace)
    assert device.memory().free < device.total
    (told,) = worker.metrics["bigfft-streams"](worker)["devices"]
    assert told["memory"] == device.total - device.memory().free
    assert told["busy_seconds"] > 0
    assert 0 < told["busy_share"] <= 1
    assert worker.metrics["bigfft-streams"](worker)["devices"][0]["busy_share"] == 0  # since then
    unregister(client)
    assert "bigfft-streams" not in worker.metrics
    assert device.closed
    assert device.memory().free == device.total
    assert default_arena().counters().idle_bytes == 0


def test_the_page_the_json_and_the_gauges_have_numbers_of_devices(threads):
    pytest.importorskip("bokeh")
    client, device = threads
    register(client)
    x = np.random.default_rng(1).standard_normal((64, 60))
    fft.fft2(da.from_array(x, (16, 60)), device="gpu").compute()
    until(lambda: any(d["busy_seconds"] for d in state(client)["workers"][0]["devices"]))
    from dask_bigfft.cluster.dashboard import device_bars

    (bar,) = device_bars(state(client)["workers"][0])
    assert bar.name == "0: simulated device 0"
    assert bar.inside == (device.total - device.memory().free) / device.total
    port = client.cluster.scheduler.http_server.port
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        text = answer.read().decode()
    (line,) = [line for line in text.splitlines() if line.startswith("bigfft_device_budget_bytes{")]
    assert line.endswith(" 16384.0")


def test_a_worker_without_a_device_is_left_alone(client):
    if dispatch.missing() is None:
        pytest.skip("there is one here")
    assert [len(worker["devices"]) for worker in state(client)["workers"]] == [0, 0]
    x = np.random.default_rng(0).standard_normal((64, 60))
    lazy = fft.fft2(da.from_array(x, (16, 60)), device="auto")
    assert np.allclose(lazy.compute(), np.fft.fft2(x))


@pytest.mark.parametrize("name", ["pinned", "prefault"])
def test_blocks_take_what_was_made_ready(threads, name):
    """Buffers of their size, whether they could be taken apart for smaller ones or not."""
    client, _ = threads
    default_arena().trim()
    register(client, **{name: 34 * MIB}, block_size=8 * MIB)
    before = default_arena().counters()
    assert 34 * MIB <= before.idle_bytes < 40 * MIB
    blocks = [default_arena().allocate((n, MIB), np.uint8) for n in (8, 7, 6, 8)]
    after = default_arena().counters()
    assert (after.reuses - before.reuses, after.fresh_bytes) == (4, before.fresh_bytes)
    del blocks
    register(client, block_size=16 * MIB)  # which takes the others' place
    block = default_arena().allocate((16, MIB), np.uint8)
    assert default_arena().counters().reuses == after.reuses + 1
    del block
    with pytest.raises(ArgumentError, match="`block_size`=0"):
        register(client, block_size=0)
