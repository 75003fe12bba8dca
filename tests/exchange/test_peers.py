"""Exchanges between devices: every route brings every element home, and moves the paper's bytes."""

import itertools
import math

import dask.array as da
import numpy as np
import pytest

from dask_bigfft import plan
from dask_bigfft.devices.peers import SimulatedPeers
from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.exchange.gather import Gathering
from dask_bigfft.exchange.peers import (
    ROUTES,
    fits,
    home,
    pairs_up,
    peer_exchange,
    route_of,
    shards_of,
)
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.planner.profile import DeviceProfile, Peer, Profile

RATIO = {"host": 2.0, "staged": 1.5, "swap": 1.0, "kernel": 1.0}


def slabs(n, batches, kind="fftn"):
    """A 3D transform in slabs: two rounds, one exchange, the same number of blocks."""
    x = da.zeros((n, n, n), chunks=(n // batches, n, n), dtype="c16")
    return plan(x, kind)


def homes_of(layout, devices):
    blocks = list(layout.indices())
    return {b: home(i, len(blocks), devices) for i, b in enumerate(blocks)}


def exchange_of(found, number=1):
    exchange = found.exchanges[number]
    return ExchangeMap(exchange.source, exchange.target, exchange.mirror)


def put(peers, homes, layout, values_of):
    """Blocks on their home devices."""
    found = {}
    for block in layout.indices():
        values = np.ascontiguousarray(values_of(block))
        memory = peers.empty(homes[block], values.size, values.dtype)
        memory[...] = values.reshape(-1)
        found[block] = memory.reshape(values.shape)
    return found


def gathered(exchange, blocks, target):
    """What a target block has to be, gathered on the host."""
    shape = exchange.target.shape(target)
    return Gathering(exchange, target, shape, np.dtype("c16"), blocks.__getitem__).whole()


def move(found, peers, devices, route, *, inside=True, number=1):
    exchange = exchange_of(found, number)
    source, target = homes_of(exchange.source, devices), homes_of(exchange.target, devices)
    count = itertools.count(1)

    def numbered(block):
        size = math.prod(exchange.source.shape(block))
        start = next(count) * 10_000_000
        return (start + np.arange(size)).astype("c16").reshape(exchange.source.shape(block))

    blocks = put(peers, source, exchange.source, numbered)
    wanted = {b: v.copy() for b, v in blocks.items()}
    moved, traffic = peer_exchange(
        exchange, blocks, source.__getitem__, target.__getitem__, peers, lambda a, b: route,
        inside=inside,
    )
    for block, values in moved.items():
        np.testing.assert_array_equal(values, gathered(exchange, wanted, block))
    return traffic, moved


@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("devices", "batches"), [(2, 2), (2, 4), (3, 6), (4, 4)])
def test_batches_and_pencils(devices, batches, route, inside):
    """Every element arrives, in the paper's number of bytes, from batches of slabs."""
    found = slabs(12, batches)
    assert pairs_up(exchange_of(found), shards_of(exchange_of(found), 16)) is not None
    peers = SimulatedPeers((1 << 30,) * devices)
    traffic, moved = move(found, peers, devices, route, inside=inside)
    size = 12**3 * 16
    assert traffic.net == size * (devices - 1) // devices
    assert traffic.ratio == RATIO[route]
    crossed = sum(peers.crossed.values()) + (traffic.direct if route == "kernel" else 0)
    assert crossed == traffic.host + traffic.direct
    assert peers.used == [size // devices] * devices  # everything else was given back
    assert {b: v.shape for b, v in moved.items()} == {
        b: exchange_of(found).target.shape(b) for b in exchange_of(found).target.indices()
    }


@pytest.mark.parametrize("route", ROUTES)
def test_memory_of_each_route(route):
    """The second buffer of the swap doubles it; in place there is one block more at a time."""
    devices, batches = 2, 8
    data, block = 16**3 * 16 // devices, 16**3 * 16 // batches
    peers = SimulatedPeers((1 << 30,) * devices)
    move(slabs(16, batches), peers, devices, route)
    if route == "swap":
        assert all(2 * data <= peak <= 2 * data + block for peak in peers.peak)
    else:
        assert all(peak <= data + block for peak in peers.peak)


def test_a_size_that_fits_by_the_kernel_and_not_by_the_swap():
    devices, batches = 2, 8
    data, block = 16**3 * 16 // devices, 16**3 * 16 // batches
    found = slabs(16, batches)
    with pytest.raises(DeviceMemoryError, match="simulated device"):
        move(found, SimulatedPeers((data + block,) * devices), devices, "swap")
    peers = SimulatedPeers((data + block,) * devices)
    traffic, _ = move(found, peers, devices, "kernel")
    assert traffic.ratio == 1.0
    exchange = exchange_of(found)
    homes = homes_of(exchange.target, devices)
    room = SimulatedPeers((data + block,) * devices, used=[0, 0])
    room.used = [data] * devices
    assert not fits(exchange, homes.__getitem__, room, 16)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(
    ("shape", "chunks", "name", "number"),
    [
        ((12, 10, 14), (5, 10, 14), "fftn", 1),  # uneven slabs
        ((12, 10, 14), (5, 10, 14), "rfftn", 1),
        ((4096,), (256,), "fft", 1),
        ((4096,), (256,), "fft", 2),
        ((4096,), (256,), "rfft", 2),  # completed by conjugates
        ((24, 24, 24), (12, 12, 24), "fftn", 1),
    ],
)
def test_other_exchanges(shape, chunks, name, number, route):
    dtype = "f8" if name.startswith("r") else "c16"
    found = plan(da.zeros(shape, chunks=chunks, dtype=dtype), name, rounds=None)
    if number >= len(found.exchanges):
        pytest.skip("as many exchanges as there are")
    move(found, SimulatedPeers((1 << 30,) * 3), 3, route, number=number)


def test_routes_are_chosen_pair_by_pair():
    bus = DeviceProfile().h2d
    profile = Profile(
        devices=(DeviceProfile(),) * 3,
        peers=(Peer(0, 1, bus), Peer(1, 0, 4 * bus), Peer(0, 2, 1e9)),
    )
    peers = SimulatedPeers((1, 1, 1, 1), {(0, 3), (3, 0), (1, 3)})
    assert route_of(profile, peers, 0, 1, second_buffer=True) == "swap"
    assert route_of(profile, peers, 0, 1, second_buffer=False) == "kernel"
    assert route_of(profile, peers, 1, 0, second_buffer=True) == "kernel"  # a link of its own
    assert route_of(Profile(), peers, 1, 0, second_buffer=True) == "swap"  # nothing is known
    assert route_of(profile, peers, 0, 2, second_buffer=True) == "host"  # a slow link
    assert route_of(profile, peers, 0, 3, second_buffer=True) == "host"  # none at all
    assert route_of(profile, peers, 1, 3, second_buffer=True) == "staged"  # one way only
