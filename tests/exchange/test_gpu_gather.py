"""Gathering on several GPUs: every transport brings the same values, in the paper's bytes."""

from types import SimpleNamespace

import dask.array as da
import numpy as np
import pytest
from support import heard

from dask_bigfft import plan
from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.exchange.gather import TRANSPORTS, Crossing, transport_of, view_of
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.gpu.on_gpu import home_of
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.testing.gpus import SimulatedGpus, several_gpus
from dask_bigfft.testing.strategies import random_array

#: Bytes moved for each that has to be, on two GPUs.
RATIO = {"host": 2.0, "staged": 1.5, "swap": 1.0, "direct": 1.0}


def slabs(n, batches):
    """The exchange of a 3D transform in slabs of equal size."""
    x = da.zeros((n, n, n), chunks=(n // batches, n, n), dtype="c16")
    exchange = plan(x, "fftn", device="cpu").exchanges[1]
    return ExchangeMap(exchange.source, exchange.target, exchange.mirror)


def homes_of(layout, count):
    blocks = list(layout.indices())
    return {b: home_of(i, len(blocks), count) for i, b in enumerate(blocks)}


def move(exchange, gpus, transport, upload=np.array):
    """All target blocks, equal to those gathered on the host, and bytes by event."""
    rng, count = np.random.default_rng(2), gpus.count
    kept, blocks, made, moved = {}, {}, {}, {"peer_host": 0, "peer_direct": 0}
    for block, home in homes_of(exchange.source, count).items():
        shape = exchange.source.shape(block)
        kept[block] = random_array(shape, "c16", rng)
        blocks[block] = upload(kept[block])
        gpus.put(home, blocks[block])

    sides = SimpleNamespace(source=exchange.source, target=exchange.target)
    sides.dtype = sides.source_dtype = "c16"
    with several_gpus(gpus), heard(*moved) as seen:
        homes = homes_of(exchange.source, count)
        crossing = Crossing(exchange, sides, homes, blocks, lambda source, target: transport)
        crossing.take(blocks)
        for block, home in homes_of(exchange.target, count).items():
            made[block] = crossing.arrived(block).array
            assert gpus.home(made[block]) == home
    for event, numbers in seen:
        moved[event] += int(numbers["nbytes"])
    for block, values in made.items():
        values = values.get() if hasattr(values, "get") else values
        expected = view_of(exchange, block, np.dtype("c16"), kept.__getitem__).gather()
        np.testing.assert_array_equal(values, expected)
    return made, moved


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize(("devices", "batches"), [(2, 2), (2, 4), (3, 6), (4, 4)])
def test_bytes_and_memory_of_each_transport(devices, batches, transport):
    """Nandapalan's bytes; at most source and target blocks, and a message; sources are freed."""
    size, gpus = 12**3 * 16, SimulatedGpus((1 << 30,) * devices)
    made, moved = move(slabs(12, batches), gpus, transport)
    total = moved["peer_host"] + moved["peer_direct"]
    assert total == RATIO[transport] * size * (devices - 1) // devices
    assert sum(gpus.crossed.values()) == (0 if transport == "direct" else total)
    data, block = size // devices, size // batches
    assert gpus.used == [data] * devices  # all but the target blocks was given back
    most = 2 * data + (0 if transport == "direct" else block)
    assert all(2 * data <= peak <= most for peak in gpus.peak)
    del made
    assert gpus.used == [0] * devices


def test_no_two_gpus_write_to_the_same_one_at_a_time(monkeypatch):
    written, gpus = {}, SimulatedGpus((1 << 30,) * 4)
    copied = gpus.copy_aside

    def noted(home, segments, events):  # those of a block to a GPU together
        written.setdefault(gpus.home(segments[0].source), []).append(home)
        return copied(home, segments, events)

    monkeypatch.setattr(gpus, "copy_aside", noted)
    move(slabs(16, 8), gpus, "direct")
    assert [sorted(homes) for homes in zip(*written.values(), strict=True)] == [[0, 1, 2, 3]] * 8


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_gpu_without_memory_refuses(transport):
    data = 16**3 * 16 // 2
    with pytest.raises(DeviceMemoryError, match="simulated GPU"):
        move(slabs(16, 8), SimulatedGpus((2 * data - 16,) * 2), transport)


@pytest.mark.parametrize(("one", "other"), [(0, 1), (1, 0)])
def test_the_copy_engine_reads_no_gpu_that_the_target_cannot_read(one, other):
    gpus = SimulatedGpus((1 << 30,) * 2, {(one, other)})
    with pytest.raises(DeviceError, match="cannot read"):
        move(slabs(12, 4), gpus, "swap")
    gpus.crossed.clear()
    move(slabs(12, 4), gpus, "staged")
    assert gpus.crossed.keys() == {(other, "host"), ("host", one), (one, other)}


def test_transports_are_chosen_pair_by_pair():
    bus = DeviceProfile().h2d
    gpus = SimulatedGpus((1, 1, 1, 1), {(0, 3), (3, 0), (1, 3)})
    gpus.speeds = {(0, 1): bus, (1, 0): 4 * bus, (0, 2): 1e9}
    # By a bus, by a link of its own, by a slow link, by none at all, and one way only.
    wanted = {(0, 1): "swap", (1, 0): "direct", (0, 2): "host", (0, 3): "host", (1, 3): "staged"}
    assert {pair: transport_of(gpus, *pair) for pair in wanted} == wanted
