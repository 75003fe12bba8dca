"""Transforms on distributed: first tasks, tiny blocks, p2p against threads, and more workers.

Workers have one thread each and listen on the loopback device. First tasks are measured in new
processes, with small blocks merged as the settings say and with none merged.
"""

import dataclasses
import multiprocessing
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np

from benchmarks import core
from benchmarks.problems import (
    GIB,
    MIB,
    Problem,
    alternate,
    data_of,
    graph_of,
    seconds_of,
    settings,
    status,
)
from benchmarks.rows import FIRST, Task, cluster, first_task, on_workers

#: Sides of squares in blocks of `TINY_BLOCK`.
TINY = {"288 blocks": 192, "1,152 blocks": 384, "9,248 blocks": 1088}
TINY_BLOCK = (4, 32)


def tiny_blocks(side: int, repeat: int) -> dict[str, Any]:
    """Measure the transform of a square in tiny blocks, and adding 1 to each of them."""
    problem = Problem("fft2", (side, side), "c16", (side // TINY_BLOCK[0], side // TINY_BLOCK[1]))
    x, truth = data_of(problem)
    with tempfile.TemporaryDirectory() as folder, cluster(2, Path(folder)) as client:
        there = client.persist(x)

        def work() -> Any:
            return graph_of(problem, there).compute()

        first, result = seconds_of(work)
        check = truth.check(result)
        works = {"transform": work, "add 1": lambda: (there + 1).compute()}
        times = alternate(works, repeat)
    return {
        "blocks": there.npartitions,
        "first": first,
        **{name.replace(" ", "_"): statistics.median(found) for name, found in times.items()},
        **core.outcome(check),
    }


def against_threads(nbytes: int, workers: int, repeat: int) -> dict[str, Any]:
    """Measure p2p between workers against as many threads of this process."""
    problem = Problem("fftn", (nbytes // (8 << 16), 256, 256), "c8", 8 * workers)
    with on_workers(problem, workers) as (client, there, work, check):
        here = client.compute(there).result()
        options = {"scheduler": "threads", "num_workers": workers, **settings(carrier="auto")}

        def by_threads() -> Any:
            with dask.config.set(options):
                array = da.from_array(here, chunks=problem.chunks, name=False)
                return graph_of(problem, array).persist()

        works = {"p2p": work, "threads": by_threads}
        alternate(works, 2)
        times = alternate(works, repeat)
    return {
        "nbytes": problem.nbytes,
        **{name: statistics.median(t) for name, t in times.items()},
        "against_threads": core.ratio(times["p2p"], times["threads"]),
        **core.outcome(check),
    }


def copies(nbytes: int, ready: Any, times: Any) -> None:
    source = np.ones(nbytes // 8)
    target = np.zeros_like(source)
    ready.wait()
    started = time.perf_counter()
    for _ in range(4):
        np.copyto(target, source)
    times.put((time.perf_counter() - started) / 4)


def copy_seconds(processes: int, nbytes: int) -> float:
    """Return the seconds of processes that copy as many bytes each at the same time."""
    context = multiprocessing.get_context("spawn")
    ready = context.Barrier(processes)
    times = context.Queue()
    one = {"target": copies, "args": (nbytes, ready, times)}
    children = [context.Process(**one) for _ in range(processes)]
    for child in children:
        child.start()
    found = [times.get(timeout=120) for _ in children]
    for child in children:
        child.join()
    return float(max(found))


def scaling(workers: int, nbytes: int, repeat: int) -> dict[str, Any]:
    """Measure workers with the same bytes each: seconds, copies, balance and memory."""
    planes = workers * nbytes // (8 << 16)
    problem = Problem("fftn", (planes, 256, 256), "c8", 8 * workers)
    with on_workers(problem, workers) as (client, _, work, check):
        y = work()
        owners = [worker for workers in client.who_has(y).values() for worker in workers]
        del y
        times: dict[str, list[float]] = {"seconds": [], "copy": []}
        for _ in range(repeat):
            times["seconds"].append(seconds_of(work)[0])
            times["copy"].append(copy_seconds(workers, nbytes))
        peaks = client.run(status, "VmHWM")
    return {
        "workers": workers,
        "bytes_each": nbytes,
        **{name: statistics.median(found) for name, found in times.items()},
        "blocks_by_worker": sorted(Counter(owners).values()),
        "peak_gib": max(peaks.values()) / GIB,
        **core.outcome(check),
    }


def main(argv: Sequence[str]) -> int:
    args = core.arguments("clusters", __doc__).parse_args(argv)
    results = core.Results(args, "clusters")
    nbytes = max(1 << 20, int(256 * MIB * args.scale))
    jobs: dict[tuple[str, str], Any] = {}
    for name in FIRST:
        for merge in (True, False):
            label = f"{name} blocks" + ("" if merge else ", none merged")
            jobs["first", label] = lambda name=name, merge=merge: first(args, name, merge)
    for name, side in TINY.items():
        side = side if args.scale >= 1 else 64
        jobs["tiny", name] = lambda side=side: tiny_blocks(side, args.repeat)
    jobs["p2p", "2 workers"] = lambda: against_threads(2 * nbytes, 2, args.repeat)
    for workers in (1, 2, 4):
        repeat = args.repeat if workers < 4 else 1
        jobs["scale", f"{workers} workers"] = lambda w=workers, r=repeat: scaling(w, nbytes, r)
    labels = core.chosen([f"{section}: {name}" for section, name in jobs], args.only)
    for section, name in (label.split(": ") for label in labels):
        if results.lacks(section, name):
            results.add(section, name, **jobs[section, name]())
    return int(not results.ok)


def first(args: Any, name: str, merge: bool) -> dict[str, Any]:
    """Measure a first task with the client in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        task = Task(args.scale, args.threads, 1, "auto", Path(folder))
        found = core.call(first_of, name, merge, dataclasses.asdict(task))
    return {"failed": found["error"]} if "error" in found else found


def first_of(name: str, merge: bool, task: dict[str, Any]) -> dict[str, Any]:
    figures, check = first_task(*FIRST[name], Task(**task), merge)
    client = figures["client bytes"] / GIB
    return {"seconds": figures["seconds"], "client_gib": client, **check}
