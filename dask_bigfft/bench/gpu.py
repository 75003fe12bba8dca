"""``python -m dask_bigfft.bench.gpu``: what a CUDA card makes of data larger than its memory.

One run on one machine: the bus first, then rounds on blocks, whole transforms, and peers under the
same device budget, while a plain allocation holds the rest of the card. In order of importance, and
written after every case, so a run that is cut short counts. Host memory is pinned once.

``floor`` is the time that the bus needs for the bytes of all crossings at its measured two-way
bandwidth; ``fraction`` is the floor over the time taken. ``allowed`` is the time that the engines,
and the host's memory, need for the very copies that were made, and nothing else (`gpu_floor`);
``of_allowed`` is that over the time taken.

Here are the bus, what fits the card, what stays in its own memory, and the run of it all;
`gpu_transforms` and `gpu_rounds` have the rest.

Imports the rest of this folder, `gpu_peers` with the loops that users write, and `devices`.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np

from dask_bigfft import fft
from dask_bigfft.bench import gpu_peers, machine
from dask_bigfft.bench.gpu_bench import GIB, MIB, Bench, Results, best, held
from dask_bigfft.bench.gpu_columns import columns
from dask_bigfft.bench.gpu_data import even_shape, fill, lazy
from dask_bigfft.bench.gpu_report import write_report
from dask_bigfft.bench.gpu_rounds import inside, one_round, ordinary, rounds, staging
from dask_bigfft.bench.gpu_transforms import Case, asked_of, large, pageable, set_arena, transforms
from dask_bigfft.devices import find
from dask_bigfft.devices.cuda import cupy, reason
from dask_bigfft.devices.cupy_device import CupyDevice, open_device
from dask_bigfft.devices.engine import Engine
from dask_bigfft.devices.transfer import TO_DEVICE
from dask_bigfft.memory import default_arena, lend
from dask_bigfft.planning.arguments import Order

# --- the bus --------------------------------------------------------------------------------


def bus(bench: Bench) -> None:
    """One way and both ways, from and to pinned blocks."""
    cp = cupy()
    rt, size = cp.cuda.runtime, min(GIB // bench.scale, bench.nbytes // 2)
    a, b = (block[:size] for block in bench.blocks(bench.nbytes // 4)[:2])
    card, times = cp.cuda.Memory(2 * size), 8
    streams = [cp.cuda.Stream(non_blocking=True) for _ in range(2)]

    def copy(there: bool, back: bool) -> None:
        for _ in range(times):
            if there:
                rt.memcpyAsync(card.ptr, a.ctypes.data, size, 1, streams[0].ptr)
            if back:
                rt.memcpyAsync(b.ctypes.data, card.ptr + size, size, 2, streams[1].ptr)
        rt.deviceSynchronize()

    for name, there, back in (("H2D", 1, 0), ("D2H", 0, 1), ("duplex, each way", 1, 1)):
        seconds = best(partial(copy, bool(there), bool(back)), 2)
        bench.results.add("bus", name=name, gbs=times * size / seconds / 1e9)
    bench.duplex = times * size / seconds


# --- problems that fit the card, problems in their own memory -------------------------------


def _on_gpu(array: da.Array) -> None:
    fft.fftn(array, device="gpu", norm="ortho").persist(scheduler="threads")


def in_card(bench: Bench) -> None:
    """One block that fits the card whole."""
    find.release()
    for ndim, nbytes in ((1, 4 * GIB), (2, 4 * GIB), (3, 4 * GIB), (2, 256 * MIB)):
        if bench.results.over:
            return
        shape = even_shape(nbytes // bench.scale // 16, ndim)
        x, out = lend(shape, "c16"), lend(shape, "c16")
        fill([x.reshape(-1).view(np.uint8)], "c16")
        array = lazy([x.reshape(-1).view(np.uint8)], shape, "c16")
        times = {"dask_bigfft": best(partial(_on_gpu, array), 4)}
        for name, run in gpu_peers.cpu_libraries(ndim).items():
            times[name] = best(partial(run, x, out), 1)
        times["cupy, pinned"] = best(partial(gpu_peers.whole, x, pinned=True), 2)
        times["cupy, pageable"] = best(partial(gpu_peers.whole, np.array(x), pinned=False), 1)
        bench.results.add("in_card", shape=shape, dtype="c16", seconds=times,
                          floor=x.nbytes / bench.duplex)


def in_place(bench: Bench, nbytes: int, budget: int, blocks: int) -> None:
    """`overwrite_x` on data larger than the card may hold; the host memory beside them."""
    for ndim in (2, 3, 1):
        if bench.results.over:
            return
        shape = even_shape(nbytes // 16, ndim)
        memory = [lend(nbytes // blocks, np.uint8) for _ in range(blocks)]
        for found in memory:
            found.fill(1)
        order: Order = "natural" if ndim > 1 or blocks == 1 else "transposed"
        array, before = lazy(memory, shape, "c16"), default_arena().counters().lent_bytes
        find.release()
        keywords: Any = {"device_memory_limit": budget, "norm": "ortho", "overwrite_x": True}
        with held(budget), dask.config.set(scheduler="threads"):
            began, resident = time.perf_counter(), gpu_peers.resident(peak=False)
            done = fft.fftn(array, device="gpu", order=order, **keywords).persist()
            seconds = time.perf_counter() - began
        beside = gpu_peers.resident(peak=True) - resident
        kept = [np.asarray(block.compute()) for block in done.to_delayed().ravel()]
        same = all(any(np.shares_memory(a, b) for b in memory) for a in kept)
        after = default_arena().counters()
        with held(budget), dask.config.set(scheduler="threads"):
            run = partial(_overwriting, array, order, keywords)
            warm = best(run, 1)
            with asked_of("pinned") as asked:
                run()
            allowed = bench.allowed(asked, warm, inside=memory)
        moved = asked.nbytes(TO_DEVICE)
        bench.results.add(
            "in_place", shape=shape, order=order, blocks=blocks, gib=nbytes / GIB,
            budget_gib=budget / GIB, first=seconds, seconds=warm, same_memory=same,
            lent_beside=after.lent_bytes - before, peak_over_data=1 + beside / nbytes,
            crossings=moved / nbytes, fraction=moved / bench.duplex / warm, **allowed,
        )
        del memory, array, done, kept


def _overwriting(array: da.Array, order: Order, keywords: dict[str, Any]) -> None:
    """Transform an array once more, in its own memory."""
    fft.fftn(array, device="gpu", order=order, **keywords).persist()


def trace(bench: Bench, path: Path) -> None:
    """When each engine works: a picture, and how long two or three of them work at a time."""
    device = CupyDevice(0, traced=True)
    engine = Engine(device, bench.budget)
    blocks = bench.blocks(4 * GIB // bench.scale)[:2]
    shape = even_shape(blocks[0].nbytes // 16, 2)
    job = one_round(shape, (0, 1), "c16")
    try:
        for _ in range(2):
            device.spans()
            with ThreadPoolExecutor(2) as pool:
                views = [block.view("c16").reshape(1, *shape) for block in blocks]
                list(pool.map(partial(inside, engine, job), views))
        spans = device.spans()
    finally:
        engine.close()
    busy = gpu_peers.overlap(spans)
    bench.results.add("trace", shape=shape, blocks=len(blocks), **busy)
    gpu_peers.draw(spans, path)


def peak(bench: Bench) -> None:
    """Device memory that a transform takes at most, beside the budget."""
    cp = cupy()
    find.release()
    shape = even_shape(min(bench.nbytes, 8 * GIB) // 16, 2)
    x = da.zeros(shape, dtype="c16", chunks=(shape[0] // 4, shape[1]))
    fft.fftn(x[:64, :64], device="gpu").compute(scheduler="threads")
    find.release()
    before = int(cp.cuda.runtime.memGetInfo()[0])
    least = gpu_peers.least_free(
        lambda: fft.fftn(x, device="gpu", device_memory_limit=bench.budget).persist(
            scheduler="threads"))
    bench.results.add("peak", budget=bench.budget, used=before - least, shape=shape)


SECTIONS = (
    "bus", "in_card", "transforms", "pageable", "rounds", "ring", "trace", "peak", "in_place",
    "large", "staging", "columns",
)


def others(found: dict[str, Any], only: Sequence[str], gib: float) -> dict[str, Any]:
    """What a file has of other parts than those that are run; the bus is measured each time.

    Two parts write rows of one table: rounds with pinned memory or through the ring, and transforms
    of `gib` GiB or, the large ones, of more.

    >>> found = {"bus": [1], "peak": [2], "rounds": [{"memory": "pinned"}, {"memory": "ring"}]}
    >>> others(found, ["rounds"], 16)
    {'peak': [2], 'rounds': [{'memory': 'ring'}]}
    >>> others({"transforms": [{"gib": 16}, {"gib": 32}], "cpu": [3]}, ["transforms"], 16)
    {'transforms': [{'gib': 32}]}
    """
    writers: dict[str, Callable[[dict[str, Any]], str]] = {
        "rounds": lambda row: "rounds" if row["memory"] == "pinned" else "ring",
        "transforms": lambda row: "transforms" if row["gib"] <= gib else "large",
    }
    gone = {"bus", *only, *(("cpu", "loops") if "transforms" in only else ())}
    kept = {name: rows for name, rows in found.items() if name not in gone or name in writers}
    for name, writer in writers.items():
        rows = [row for row in kept.pop(name, []) if writer(row) not in only]
        kept |= {name: rows} if rows else {}
    return kept


def _card() -> dict[str, Any]:
    """Which card it is, and what drives it."""
    runtime = cupy().cuda.runtime
    properties = runtime.getDeviceProperties(0)
    return {
        "name": properties["name"].decode(), "memory": int(properties["totalGlobalMem"]),
        "cupy": cupy().__version__, "driver": runtime.driverGetVersion(),
    }


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 where there is no card."""
    parser = argparse.ArgumentParser(prog="python -m dask_bigfft.bench.gpu")
    parser.add_argument("--out", type=Path, default=Path("ci/results/gpu.json"))
    parser.add_argument("--only", nargs="*", default=SECTIONS, choices=SECTIONS)
    parser.add_argument("--keep", action="store_true", help="other sections that the file has")
    parser.add_argument("--gib", type=int, default=16, help="of data out of card")
    parser.add_argument("--budget-seconds", type=float, default=540.0)
    parser.add_argument("--scale", type=int, default=1, help="divide all sizes, to try things")
    args = parser.parse_args(argv)
    if reason() is not None:
        print(f"bench: {reason()}", file=sys.stderr)
        return 1
    nbytes, budget = args.gib * GIB // args.scale, 2 * GIB // args.scale
    set_arena(96 * GIB)
    before = json.loads(args.out.read_text(encoding="utf-8")) if args.keep else {}
    kept = others(before, args.only, args.gib / args.scale)
    results = Results(args.out, time.monotonic() + args.budget_seconds, kept)
    results.found |= {"machine": machine.describe(), "gpu": _card()}
    anchor = open_device(0)  # keeps memory pinned from case to case
    bench = Bench(results, args.scale, nbytes, budget)
    bench.blocks(4 * GIB // args.scale)
    bus(bench)
    both, pinned = ("pinned loop", "pageable loop"), ("pinned loop",)
    cases: list[Case] = [(2, "c16", both), (3, "c16", both), (1, "c16", pinned)]
    cases += [(ndim, "c8", pinned) for ndim in (2, 3, 1)]
    steps: dict[str, Callable[[], None]] = {
        "rounds": lambda: rounds(bench),
        "ring": lambda: ordinary(bench),
        "columns": lambda: columns(bench),
        "staging": lambda: staging(bench),
        "trace": lambda: trace(bench, args.out.with_name("gpu_trace.png")),
        "peak": lambda: peak(bench),
        "in_card": lambda: in_card(bench),
        "transforms": lambda: transforms(
            bench, (4 * GIB // args.scale, 256 * MIB // args.scale), cases),
        "pageable": lambda: pageable(bench, (4 * GIB // args.scale, 256 * MIB // args.scale)),
        "in_place": lambda: _in_place(bench, args.scale),
        "large": lambda: large(bench, 2 * nbytes, 2 * budget, 4 * GIB // args.scale),
    }
    for name in args.only:
        if name != "bus" and not results.over:
            steps[name]()
        write_report(results.found, args.out.with_suffix(".md"))  # also if the next one is cut off
    find.release()
    anchor.close()
    return 0


def _in_place(bench: Bench, scale: int) -> None:
    bench.memory = []
    for blocks in (4, 1):
        default_arena().trim()
        in_place(bench, bench.nbytes, bench.budget, blocks)
    default_arena().trim()
    in_place(bench, 2 * bench.nbytes, 4 * GIB // scale, 8)


if __name__ == "__main__":
    sys.exit(main())
