"""One exchange between several GPUs, without the transform around it."""

from types import SimpleNamespace

import dask.array as da
import numpy as np
from support import heard

from dask_bigfft import plan
from dask_bigfft.exchange.gather import view_of
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.gpu.gather import Crossing
from dask_bigfft.gpu.links import home_of
from dask_bigfft.testing.gpus import several_gpus
from dask_bigfft.testing.strategies import random_array

#: Bytes moved for each that has to be, on two GPUs.
RATIO = {
    "host": 2.0,
    "staged": 1.5,
    "swap": 1.0,
    "direct": 1.0,
}


def slabs(n, batches):
    """The exchange of a 3D transform in slabs of equal size."""
    x = da.zeros((n, n, n), chunks=(n // batches, n, n), dtype="c16")
    exchange = plan(x, "fftn", device="cpu").exchanges[1]
    return ExchangeMap(exchange.source, exchange.target, exchange.mirror)


def homes_of(layout, count):
    blocks = list(layout.indices())
    return {b: home_of(i, len(blocks), count) for i, b in enumerate(blocks)}


def move(
    exchange,
    gpus,
    transport,
    upload=np.array,
):
    """All target blocks, equal to those gathered on the host, and bytes by event."""
    rng = np.random.default_rng(2)
    count = gpus.count
    host_blocks = {}
    blocks = {}
    arrived = {}
    moved = {"peer_host": 0, "peer_direct": 0}
    for block, home in homes_of(exchange.source, count).items():
        shape = exchange.source.shape(block)
        host_blocks[block] = random_array(shape, "c16", rng)
        blocks[block] = upload(host_blocks[block])
        gpus.put(home, blocks[block])

    sides = SimpleNamespace(source=exchange.source, target=exchange.target)
    sides.dtype = sides.source_dtype = "c16"
    with several_gpus(gpus), heard(*moved) as seen:
        homes = homes_of(exchange.source, count)
        crossing = Crossing(
            exchange,
            sides,
            homes,
            blocks,
            lambda source, target: transport,
        )
        crossing.take(blocks)
        for block, home in homes_of(exchange.target, count).items():
            arrived[block] = crossing.arrived(block).array
            assert gpus.home(arrived[block]) == home
    for event, numbers in seen:
        moved[event] += int(numbers["nbytes"])
    for block, values in arrived.items():
        values = values.get() if hasattr(values, "get") else values
        expected = view_of(
            exchange,
            block,
            np.dtype("c16"),
            host_blocks.__getitem__,
        ).gather()
        np.testing.assert_array_equal(values, expected)
    return arrived, moved
