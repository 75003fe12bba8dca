"""Arrays whose blocks live on several devices of one process, through the whole graph.

The devices are simulated: their memories are NumPy arrays that count, and rounds are done by CPU
threads. What travels, by which route and how much of it, is what cards would do.
"""

import math

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft

from dask_bigfft import plan, report
from dask_bigfft.devices.peers import SimulatedPeers
from dask_bigfft.events import add_sink, remove_sink
from dask_bigfft.exchange.peers import ROUTES, home
from dask_bigfft.graph import cards
from dask_bigfft.graph.carriers import CARDS
from dask_bigfft.graph.layer import transformed_array
from dask_bigfft.planner.wording import human_bytes

RATIO = {"host": 2.0, "staged": 1.5, "swap": 1.0, "kernel": 1.0}


@pytest.fixture
def on_devices(monkeypatch):
    """Let blocks live on simulated devices: batches of them, in their order."""

    def use(peers):
        def homes(blocks):
            if len(blocks) < 2:
                return None
            count = len(peers.nbytes)
            found = {b: home(i, len(blocks), count) for i, b in enumerate(sorted(blocks))}
            for block, values in blocks.items():
                peers.used[found[block]] += values.nbytes
            return peers, found

        monkeypatch.setattr(cards.FINDER, "homes", homes, raising=False)

    return use


def computed(x, chunks, name, route, **keywords):
    array = da.from_array(x, chunks)
    moved = {}

    def sink(event, numbers):
        if event.startswith("peer_") or event == "barrier":
            moved[event] = moved.get(event, 0) + int(numbers["nbytes"])

    lazy = transformed_array(array, plan(array, name, **keywords), CARDS + route)
    add_sink(sink)
    try:
        return lazy.compute(scheduler="threads"), moved
    finally:
        remove_sink(sink)


@pytest.mark.parametrize("route", [*ROUTES, "auto"])
@pytest.mark.parametrize("devices", [2, 3])
def test_batches_on_several_devices(on_devices, route, devices):
    rng = np.random.default_rng(5)
    x = rng.standard_normal((24, 24, 10)) + 1j * rng.standard_normal((24, 24, 10))
    on_devices(SimulatedPeers((1 << 30,) * devices))
    got, moved = computed(x, (4, 24, 10), "fftn", route)
    expected = scipy.fft.fftn(x)
    assert np.linalg.norm(got - expected) <= 1e-14 * np.linalg.norm(expected)
    total = moved["peer_host"] + moved["peer_direct"]
    assert moved["barrier"] == x.nbytes * (devices - 1) // devices
    assert math.isclose(total / moved["barrier"], RATIO.get(route, 1.0))


@pytest.mark.parametrize("route", ROUTES)
def test_a_report_has_the_most_memory_of_each_device(on_devices, route):
    """As the devices have counted: twice the data and a shard on its way, or a block more."""
    rng = np.random.default_rng(8)
    x = rng.standard_normal((24, 24, 10)) + 1j * rng.standard_normal((24, 24, 10))
    peers = SimulatedPeers((1 << 30,) * 3)
    on_devices(peers)
    array = da.from_array(x, (4, 24, 10))
    lazy = transformed_array(array, plan(array, "fftn"), CARDS + route)
    lazy.compute(scheduler="threads")
    (run,) = report(lazy).runs
    assert run.device_peaks == {("", device): nbytes for device, nbytes in enumerate(peers.peak)}
    data, block = x.nbytes // 3, x.nbytes // 6
    needed = 2 * data + block // 6 if route == "swap" else data + block
    assert list(run.device_peaks.values()) == [needed] * 3
    size = human_bytes(needed)
    line = f"on cards at most {size} of device 0, {size} of device 1, {size} of device 2"
    assert line in str(run)


@pytest.mark.parametrize("route", ["host", "kernel"])
@pytest.mark.parametrize(
    ("shape", "chunks", "name"),
    [
        ((4096,), (256,), "fft"),
        ((4096,), (256,), "rfft"),
        ((24, 36), (5, 36), "ifft2"),
        ((24, 12, 18), (6, 6, 18), "fftn"),
        ((3, 4099), (3, 500), "fft"),
    ],
)
def test_other_transforms(on_devices, shape, chunks, name, route):
    rng = np.random.default_rng(6)
    x = rng.standard_normal(shape)
    x = x if name == "rfft" else x + 1j * rng.standard_normal(shape)
    source = x.copy()
    on_devices(SimulatedPeers((1 << 30,) * 2))
    with dask.config.set({"bigfft.planner.whole-axis-floor": 1}):
        got, _ = computed(x, chunks, name, route)
    expected = getattr(scipy.fft, name)(x)
    assert np.linalg.norm(got - expected) <= 1e-13 * np.linalg.norm(expected)
    np.testing.assert_array_equal(x, source)


@pytest.mark.parametrize("swap", ["refused", "without room for a shard on its way"])
def test_the_kernel_is_taken_where_there_is_no_room_for_the_swap(on_devices, swap):
    x = np.random.default_rng(7).standard_normal((32, 32, 8)) + 0j
    data, block = x.nbytes // 2, x.nbytes // 8
    peers = SimulatedPeers((data + block if swap == "refused" else 2 * data,) * 2)
    on_devices(peers)
    got, moved = computed(x, (4, 32, 8), "fftn", "auto")
    assert np.linalg.norm(got - scipy.fft.fftn(x)) <= 1e-14 * np.linalg.norm(got)
    assert moved["peer_host"] == 0
    assert moved["peer_direct"] == moved["barrier"]
    assert max(peers.peak) <= data + block


def test_blocks_that_live_in_one_place_are_gathered():
    """A route may be named where there is a single card, or none."""
    x = np.random.default_rng(7).standard_normal((24, 24, 10)) + 0j
    got, moved = computed(x, (4, 24, 10), "fftn", "swap")
    expected = scipy.fft.fftn(x)
    assert np.linalg.norm(got - expected) <= 1e-14 * np.linalg.norm(expected)
    assert "peer_host" not in moved
