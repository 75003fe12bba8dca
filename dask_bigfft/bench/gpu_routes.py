"""The ways between two cards: links, exchanges by every route, and whole transforms.

Pencils of two batches change places by every route (Nandapalan et al. 2012, table I: effective
bandwidth is the bytes that had to move over the time taken).

Imports the rest of this folder, `devices` and `exchange`.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np

from dask_bigfft import fft
from dask_bigfft.bench import gpu_bench
from dask_bigfft.devices.cuda import available, cupy
from dask_bigfft.devices.peers import CupyPeers, SimulatedPeers, Traffic
from dask_bigfft.exchange.peers import ROUTES, Route, home, peer_exchange
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.front import plan as plan_of

__all__ = ["between", "links", "routes"]

GIB = 1 << 30

#: Blocks of a transform between cards, and frequencies at which its values are checked.
BLOCKS, CHECKED = 8, 64


def routes(
    bench: gpu_bench.Bench, peers_of: Callable[[], CupyPeers | SimulatedPeers], repeats: int = 3
) -> None:
    """Slabs on two devices that change places by every route, in batches of several sizes."""
    n = 1024
    while n**3 * bench.scale > 1024**3:
        n //= 2
    for batches in (2, 8, 32):
        exchange = _slabs(n, min(batches, n))
        for route in ROUTES:
            if bench.results.over:
                return
            times = []
            for _ in range(repeats + 1):
                peers = peers_of()
                seconds, traffic = _exchanged(exchange, peers, route)
                times.append(seconds)
            least = min(times[1:])
            bench.results.add(
                "peers", n=n, batches=batches, route=route, seconds=least,
                gbs=traffic.net / least / 1e9, moved=traffic.ratio,
                peak_gib=max(peers.peak) / GIB, data_gib=n**3 * 8 / 2 / GIB,
            )


def _exchanged(
    exchange: ExchangeMap, peers: CupyPeers | SimulatedPeers, route: Route
) -> tuple[float, Traffic]:
    """One exchange between two devices, and its time."""
    sources, targets = list(exchange.source.indices()), list(exchange.target.indices())
    homes = {b: home(i, len(sources), 2) for i, b in enumerate(sources)}
    ours = {b: home(i, len(targets), 2) for i, b in enumerate(targets)}
    held = {}
    for b in sources:
        size = int(np.prod(exchange.source.shape(b)))
        held[b] = peers.empty(homes[b], size, np.dtype("c8"))
        _set(held[b])
    began = time.perf_counter()
    _, traffic = peer_exchange(
        exchange, held, homes.__getitem__, ours.__getitem__, peers, lambda a, b: route, inside=True
    )
    return time.perf_counter() - began, traffic


def _set(values: Any) -> None:
    """Touch the memory, and wait for it."""
    if isinstance(values, np.ndarray):
        values.fill(1)
        return
    with values.device:
        values.fill(1)
        cupy().cuda.get_current_stream().synchronize()


def _slabs(n: int, batches: int) -> ExchangeMap:
    """The exchange of a 3D transform between slabs along one axis and slabs along the next."""
    x = da.zeros((n, n, n), chunks=(n // batches, n, n), dtype="c8")
    found = plan_of(x, "fftn", memory_limit="1 TiB", rounds=[{1: -1, 2: -1}, {0: -1}])
    exchange = found.exchanges[1]
    return ExchangeMap(exchange.source, exchange.target, exchange.mirror)


def links(bench: gpu_bench.Bench) -> None:
    """Bytes per second from each card to each other by the copy engine."""
    cp = cupy()
    size = GIB // bench.scale
    for a in available():
        for b in available():
            if a == b:
                continue
            with cp.cuda.Device(a):
                source = cp.ones(size, np.uint8)
            with cp.cuda.Device(b):
                target = cp.empty(size, np.uint8)
            peers = CupyPeers((a, b))
            seconds = gpu_bench.best(lambda p=peers, s=source, t=target: p.send(0, s, 1, t))  # type: ignore[misc]
            bench.results.add("links", source=a, target=b, gbs=size / seconds / 1e9,
                              reads=peers.reaches(1, 0))


# --- whole transforms -----------------------------------------------------------------------


def between(bench: gpu_bench.Bench, repeats: int = 5) -> None:
    """A 3D transform of blocks that live on all cards, by every route."""
    n = 1024
    while n**3 * bench.scale > 1024**3:
        n //= 2
    cards = available()
    x = _spread(n, cards)
    picked = np.random.default_rng(5).integers(0, n, (CHECKED, 3))
    wanted = [_frequency(n, k) for k in picked]
    for route in (*ROUTES, "auto"):
        if bench.results.over:
            return
        times = []
        for _ in range(repeats + 1):
            _pools(cards, "free_all_blocks")
            before = _pools(cards, "total_bytes")
            with dask.config.set({"bigfft.exchange.peer": route}):
                lazy = fft.fftn(x)
            began = time.perf_counter()
            done: Any = lazy.persist(scheduler="threads")
            times.append(time.perf_counter() - began)
            peak = max(a - b for a, b in zip(_pools(cards, "total_bytes"), before, strict=True))
            if len(times) == 1:
                found = [_value(done, k) for k in picked]
            del done, lazy
        off = np.linalg.norm(np.subtract(found, wanted)) / np.linalg.norm(wanted)
        bench.results.add(
            "between", shape=x.shape, blocks=x.npartitions, cards=len(cards), route=route,
            seconds=statistics.median(times[1:]), low=min(times[1:]), peak_gib=peak / GIB,
            data_gib=x.nbytes / len(cards) / GIB, error=float(off),
        )


def _pools(cards: Sequence[int], what: str) -> list[Any]:
    """Ask CuPy's pools of all cards something."""
    found = []
    for card in cards:
        with cupy().cuda.Device(card):
            found.append(getattr(cupy().get_default_memory_pool(), what)())
    return found


def _line(n: int) -> Any:
    """Values of one dimension; the array is the product of three of them."""
    rng = np.random.default_rng(6)
    return rng.standard_normal(n) + 1j * rng.standard_normal(n)


def _frequency(n: int, k: Any) -> complex:
    """The transform of the array at one frequency: a product of three sums."""
    phases = (np.exp(-2j * np.pi * (int(i) * np.arange(n) % n) / n) for i in k)
    return complex(np.prod([np.sum(_line(n) * phase) for phase in phases]))


def _spread(n: int, cards: Sequence[int]) -> da.Array:
    """Slabs of an array whose transform is known, in batches on all cards."""
    cp, rows = cupy(), n // BLOCKS
    name = f"bench-spread-{n}"
    graph = {}
    for i in range(BLOCKS):
        with cp.cuda.Device(cards[home(i, BLOCKS, len(cards))]):
            line = cp.asarray(_line(n))
            part = line[i * rows : (i + 1) * rows, None, None] * line[:, None] * line
            graph[(name, i, 0, 0)] = part.astype("c8")
            del part
    _pools(cards, "free_all_blocks")
    meta = cp.empty((0, 0, 0), "c8")
    return da.Array(graph, name, ((rows,) * BLOCKS, (n,), (n,)), meta=meta)


def _value(done: Any, k: Any) -> complex:
    """One value of a persisted array."""
    return complex(done[tuple(int(i) for i in k)].compute(scheduler="sync").get())
