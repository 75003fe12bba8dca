"""Hybrid rounds against the CPU alone and a card alone; and the ways between two cards.

Each problem is transformed by the three of them in turn, several times, so that what slows the
machine down for a while hits all alike. What is claimed is the ratio of the better one of the two
to hybrid, within a turn, with a bootstrap interval of its median.

Ways between cards: pencils of two batches change places by every route (Nandapalan et al. 2012,
table I: effective bandwidth is the bytes that had to move over the time taken).

Imports the rest of this folder, `devices` and `exchange`.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import dask
import dask.array as da
import numpy as np

from dask_bigfft import fft
from dask_bigfft.bench import gpu, gpu_data, machine
from dask_bigfft.bench.gpu_report import table
from dask_bigfft.bench.targets import ratio
from dask_bigfft.devices import find
from dask_bigfft.devices.cuda import available, cupy, reason
from dask_bigfft.devices.cupy_device import open_device
from dask_bigfft.devices.peers import CupyPeers, SimulatedPeers, Traffic
from dask_bigfft.events import add_sink, remove_sink
from dask_bigfft.exchange.peers import ROUTES, Route, home, peer_exchange
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.front import plan as plan_of
from dask_bigfft.memory import configure

GIB, MIB = 1 << 30, 1 << 20
PLACES: tuple[Literal["cpu", "gpu", "hybrid"], ...] = ("cpu", "gpu", "hybrid")

#: Dimensions, dtype, bytes of all data and of a block in MiB, and transformed axes if not all.
Problem = tuple[int, str, int, int, tuple[int, ...] | None]
PROBLEMS: tuple[Problem, ...] = (
    (2, "c16", 4096, 256, (1,)),
    (2, "c16", 4096, 256, None),
    (3, "c16", 4096, 256, None),
    (3, "c8", 4096, 256, None),
    (1, "c16", 4096, 256, None),
    (3, "c16", 8192, 1024, None),
)


class _Counted:
    """Bytes of some events while the context lasts."""

    def __enter__(self) -> dict[str, int]:
        self.found: dict[str, int] = {}
        add_sink(self._take)
        return self.found

    def __exit__(self, *error: object) -> None:
        remove_sink(self._take)

    def _take(self, name: str, numbers: Any) -> None:
        if name.startswith("round"):
            self.found[name] = self.found.get(name, 0) + int(numbers.get("nbytes", 0))


def hybrid(bench: gpu.Bench, turns: int, problems: Sequence[Problem] = PROBLEMS) -> None:
    """Every problem by the CPU, by the card, and by both."""
    for ndim, dtype, mib, block, axes in problems:
        if bench.results.over:
            return
        nbytes, block_nbytes = mib * MIB // bench.scale, block * MIB // bench.scale
        memory = bench.blocks(block_nbytes)[: nbytes // block_nbytes]
        gpu_data.fill(memory, dtype)
        shape = gpu_data.even_shape(nbytes // np.dtype(dtype).itemsize, ndim)
        _one(bench, turns, gpu_data.lazy(memory, shape, dtype), axes)


def _one(bench: gpu.Bench, turns: int, x: Any, axes: tuple[int, ...] | None) -> None:
    keywords: dict[str, Any] = {"norm": "ortho", "axes": axes}
    seconds: dict[str, list[float]] = {place: [] for place in PLACES}
    share, error = 0.0, 0.0
    answers: dict[str, list[Any]] = {}
    for turn in range(turns + 1):
        for place in PLACES:
            began = time.perf_counter()
            with _Counted() as counted:
                done = fft.fftn(x, device=place, **keywords).persist(scheduler="threads")
            if turn:
                seconds[place].append(time.perf_counter() - began)
            else:
                answers[place] = _blocks(done)
            if place == "hybrid" and counted.get("round"):
                share = counted.get("round_device", 0) / counted["round"]
            del done
        if not turn:
            error = max(_off(answers["cpu"], answers[place]) for place in ("gpu", "hybrid"))
            answers.clear()
        if bench.results.over and turn:
            break
    found = plan_of(x, "fftn", device="hybrid", **keywords)
    faster = min(("cpu", "gpu"), key=lambda place: float(np.median(seconds[place])))
    gain = ratio(seconds[faster], seconds["hybrid"])
    bench.results.add(
        "hybrid", shape=x.shape, dtype=str(x.dtype), axes=axes, blocks=x.npartitions,
        rounds=found.notation, turns=len(seconds["hybrid"]), better=faster,
        **{place: float(np.median(values)) for place, values in seconds.items()},
        gain=gain.median, low=gain.low, high=gain.high, share=share,
        forecast=[round(part, 3) for part in found.shares], error=error, seconds=seconds,
    )


def _blocks(done: Any) -> list[Any]:
    """The blocks of a persisted array, in the order of their keys."""
    return [getattr(b, "value", b) for _, b in sorted(done.dask.items(), key=lambda i: i[0])]


def _off(wanted: list[Any], got: list[Any]) -> float:
    """Relative L2 distance of blocks, the largest of all."""
    return max(
        float(np.linalg.norm((a - b).ravel()) / np.linalg.norm(b.ravel()))
        for b, a in zip(wanted, got, strict=True)
    )


# --- the ways between two cards -------------------------------------------------------------


def routes(
    bench: gpu.Bench, peers_of: Callable[[], CupyPeers | SimulatedPeers], repeats: int = 3
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


def links(bench: gpu.Bench) -> None:
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
            seconds = gpu.best(lambda p=peers, s=source, t=target: p.send(0, s, 1, t))  # type: ignore[misc]
            bench.results.add("links", source=a, target=b, gbs=size / seconds / 1e9,
                              reads=peers.reaches(1, 0))


def write_report(found: dict[str, Any], path: Path) -> None:
    """Write the tables beside the results."""
    cards, host = found["gpu"], found["machine"]
    lines = [
        "# CPU threads and cards together, and ways between cards", "",
        f"{cards['count']} x {cards['name']}; host: "
        + ", ".join(f"{k} {v}" for k, v in host.items() if isinstance(v, str | int | float)), "",
        "Written by `ci/bench --gpu-hybrid`. Times are medians in seconds of turns in which CPU, "
        "card and both take turns. `gain` is the time of the faster one alone over that of both, "
        "the median of the turns with a bootstrap interval (95 %); `share` is what the card did.",
        "", "## Hybrid", "",
        *table(found.get("hybrid", []), {
            "shape": "shape", "dtype": "dtype", "axes": "axes", "blocks": "blocks",
            "rounds": "rounds", "cpu": "CPU", "gpu": "GPU", "hybrid": "hybrid", "gain": "gain",
            "low": "low", "high": "high", "share": "share", "forecast": "share by the model",
            "error": "distance from the CPU"}),
        "## From card to card, by the copy engine", "",
        *table(found.get("links", []), {"source": "from", "target": "to", "gbs": "GB/s"}),
        "## Slabs of n x n x n complex64 change places on two devices", "",
        "`GB/s` counts the bytes that had to move; `moved` is what crossed a bus for each of them.",
        "",
        *table(found.get("peers", []), {
            "n": "n", "batches": "batches", "route": "route", "seconds": "seconds",
            "gbs": "GB/s", "moved": "moved", "peak_gib": "peak GiB of a device",
            "data_gib": "data GiB of a device"}),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 where there is no card."""
    parser = argparse.ArgumentParser(prog="python -m dask_bigfft.bench.gpu_hybrid")
    parser.add_argument("--out", type=Path, default=Path("ci/results/gpu_hybrid.json"))
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--budget-seconds", type=float, default=400.0)
    parser.add_argument("--scale", type=int, default=1, help="divide all sizes, to try things")
    args = parser.parse_args(argv)
    if reason() is not None:
        print(f"bench: {reason()}", file=sys.stderr)
        return 1
    configure(72 * GIB)
    dask.config.set({"bigfft.memory.arena-limit": 72 * GIB})
    results = gpu.Results(args.out, time.monotonic() + args.budget_seconds)
    properties = cupy().cuda.runtime.getDeviceProperties(0)
    results.found["machine"] = machine.describe()
    results.found["gpu"] = {"name": properties["name"].decode(), "count": len(available()),
                            "cupy": cupy().__version__}
    anchor = open_device(0)  # keeps memory pinned from case to case
    bench = gpu.Bench(results, args.scale, 8 * GIB // args.scale, 0)
    ordinals = available()
    if len(ordinals) > 1:
        links(bench)
    pair = (ordinals[0], ordinals[-1])  # two logical devices where there is one card
    routes(bench, lambda: CupyPeers(pair))
    for ordinal in set(pair):
        with cupy().cuda.Device(ordinal):
            cupy().get_default_memory_pool().free_all_blocks()
    write_report(results.found, args.out.with_suffix(".md"))
    hybrid(bench, args.turns)
    write_report(results.found, args.out.with_suffix(".md"))
    find.release()
    anchor.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
