"""Several devices of one process: two logical ones on a GPU, and as many GPUs as there are."""

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft
from exchange.test_peers import RATIO, exchange_of, gathered, homes_of, slabs

from dask_bigfft import fft
from dask_bigfft.devices.cuda import available, cupy
from dask_bigfft.devices.peers import CupyPeers
from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.gpu.peer-transports import ROUTES, peer_exchange

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not available(), reason="no CUDA device, or no CuPy"),
    pytest.mark.filterwarnings("ignore:.*:PendingDeprecationWarning"),
]

several = pytest.mark.skipif(len(available()) < 2, reason="one CUDA device")


def move(peers, devices, route, n=16, batches=8):
    """An exchange of slabs, compared with what is gathered on the host."""
    exchange = exchange_of(slabs(n, batches))
    source, target = homes_of(exchange.source, devices), homes_of(exchange.target, devices)
    rng, blocks, kept = np.random.default_rng(2), {}, {}
    for block in exchange.source.indices():
        values = rng.standard_normal(exchange.source.shape(block)) + 0j
        memory = peers.empty(source[block], values.size, values.dtype)
        with memory.device:
            memory.set(values.reshape(-1))
        blocks[block], kept[block] = memory.reshape(values.shape), values
    moved, traffic = peer_exchange(
        exchange, blocks, source.__getitem__, target.__getitem__, peers, lambda a, b: route,
        inside=True,
    )
    for block, values in moved.items():
        assert int(values.device.id) == peers.ordinals[target[block]]
        np.testing.assert_array_equal(values.get(), gathered(exchange, kept, block))
    return traffic


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("ordinals", [(0, 0), pytest.param((0, 1), marks=several)])
def test_routes(ordinals, route):
    peers = CupyPeers(ordinals, (1 << 30, 1 << 30))
    traffic = move(peers, 2, route)
    data, block = 16**3 * 16 // 2, 16**3 * 16 // 8
    assert traffic.ratio == RATIO[route]
    if route == "swap":
        assert all(2 * data <= peak <= 2 * data + block for peak in peers.peak)
    else:
        assert all(peak <= data + block for peak in peers.peak)


@pytest.mark.parametrize("ordinals", [(0, 0), pytest.param((0, 1), marks=several)])
def test_a_size_that_fits_by_the_kernel_and_not_by_the_swap(ordinals):
    room = (16**3 * 16 // 2 + 16**3 * 16 // 8,) * 2
    with pytest.raises(DeviceMemoryError):
        move(CupyPeers(ordinals, room), 2, "swap")
    assert move(CupyPeers(ordinals, room), 2, "kernel").ratio == 1.0


def spread(x, chunks):
    """An array whose blocks live on all GPUs, batch after batch."""
    cp, count = cupy(), len(available())

    def put(block, block_id, total):
        with cp.cuda.Device(available()[block_id[0] * count // total]):
            return cp.asarray(block)

    array = da.from_array(x, chunks=chunks)
    meta = cp.empty((0,) * x.ndim, x.dtype)
    total = array.numblocks[0]
    return array.map_blocks(put, total=total, dtype=x.dtype, meta=meta).persist(scheduler="sync")


@several
@pytest.mark.parametrize("route", [*ROUTES, "auto"])
@pytest.mark.parametrize(
    ("shape", "chunks", "name"),
    [
        ((32, 24, 20), (4, 24, 20), "fftn"),
        ((32, 24, 20), (5, 24, 20), "ifftn"),
        ((1 << 16,), (1 << 12,), "fft"),
        ((64, 48), (8, 48), "rfft2"),
    ],
)
def test_whole_transforms(shape, chunks, name, route):
    rng = np.random.default_rng(4)
    x = rng.standard_normal(shape)
    x = x if name == "rfft2" else x + 1j * rng.standard_normal(shape)
    with dask.config.set({"bigfft.gpu.peer-transport": route}):
        lazy = getattr(fft, name)(spread(x, chunks))
        done = lazy.persist(scheduler="threads")
    expected = getattr(scipy.fft, name)(x)
    homes, got = set(), np.empty_like(expected)
    starts = [np.cumsum((0, *cut)) for cut in done.chunks]
    for key, block in done.dask.items():
        values = getattr(block, "value", block)
        homes.add(int(values.device.id))
        place = tuple(slice(s[i], s[i + 1]) for s, i in zip(starts, key[1:], strict=True))
        got[place] = values.get()
    assert np.linalg.norm(got - expected) <= 2e-15 * np.linalg.norm(expected) * 10
    assert homes == set(available())
