"""Transforms on distributed: first tasks, tiny blocks, p2p against threads, and more workers.

Workers have one thread each and listen on the loopback device. First tasks are measured in new
processes, with small blocks merged as the settings say and with none merged.
"""

import dataclasses
import itertools
import multiprocessing
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
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
    rows, columns = TINY_BLOCK
    problem = Problem("fft2", (side, side), "c16", ways=(side // rows, side // columns))
    x, truth = data_of(problem)
    with tempfile.TemporaryDirectory() as folder, cluster(2, Path(folder)) as client:
        x_on_workers = client.persist(x)

        def transform() -> Any:
            return graph_of(problem, x_on_workers).compute()

        def add_1() -> Any:
            return (x_on_workers + 1).compute()

        first_seconds, result = seconds_of(transform)
        check = truth.check(result)
        times = alternate({"transform": transform, "add_1": add_1}, repeat)
    return {
        "blocks": x_on_workers.npartitions,
        "first": first_seconds,
        "transform": statistics.median(times["transform"]),
        "add_1": statistics.median(times["add_1"]),
        **core.outcome(check),
    }


def against_threads(nbytes: int, workers: int, repeat: int) -> dict[str, Any]:
    """Measure p2p between workers against as many threads of this process."""
    problem = Problem("fftn", (nbytes // (8 << 16), 256, 256), "c8", 8 * workers)
    with on_workers(problem, workers) as array:
        values = array.client.compute(array.x).result()
        options = {"scheduler": "threads", "num_workers": workers, **settings(carrier="auto")}

        def by_threads() -> Any:
            with dask.config.set(options):
                x = da.from_array(values, chunks=problem.chunks, name=False)
                return graph_of(problem, x).persist()

        works = {"p2p": array.transform, "threads": by_threads}
        alternate(works, 2)
        times = alternate(works, repeat)
    return {
        "nbytes": problem.nbytes,
        "p2p": statistics.median(times["p2p"]),
        "threads": statistics.median(times["threads"]),
        "against_threads": core.ratio(times["p2p"], times["threads"]),
        **core.outcome(array.check),
    }


#: Copies of a process, of which it tells the mean seconds.
COPIES = 4


def copy_at_once(nbytes: int, barrier: Any, times: Any) -> None:
    """Copy memory when all processes are ready; put the seconds of a copy into a queue."""
    source = np.ones(nbytes // 8)
    target = np.zeros_like(source)
    barrier.wait()
    started = time.perf_counter()
    for _ in range(COPIES):
        np.copyto(target, source)
    times.put((time.perf_counter() - started) / COPIES)


def copy_seconds(processes: int, nbytes: int) -> float:
    """Return the seconds of processes that copy as many bytes each at the same time."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(processes)
    times = context.Queue()
    children = []
    for _ in range(processes):
        child = context.Process(target=copy_at_once, args=(nbytes, barrier, times))
        child.start()
        children.append(child)
    seconds = [times.get(timeout=120) for _ in children]
    for child in children:
        child.join()
    return float(max(seconds))


def scaling(workers: int, nbytes: int, repeat: int) -> dict[str, Any]:
    """Measure workers with the same bytes each: seconds, copies, balance and memory."""
    planes = workers * nbytes // (8 << 16)
    problem = Problem("fftn", (planes, 256, 256), "c8", 8 * workers)
    with on_workers(problem, workers) as array:
        y = array.transform()
        owners = Counter(itertools.chain.from_iterable(array.client.who_has(y).values()))
        del y
        times: dict[str, list[float]] = {"seconds": [], "copy": []}
        for _ in range(repeat):
            times["seconds"].append(seconds_of(array.transform)[0])
            times["copy"].append(copy_seconds(workers, nbytes))
        peaks = array.client.run(status, "VmHWM")
    return {
        "workers": workers,
        "bytes_each": nbytes,
        "seconds": statistics.median(times["seconds"]),
        "copy": statistics.median(times["copy"]),
        "blocks_by_worker": sorted(owners.values()),
        "peak_gib": max(peaks.values()) / GIB,
        **core.outcome(array.check),
    }


def jobs(args: Any) -> dict[tuple[str, str], Callable[[], dict[str, Any]]]:
    """Return what measures each row, by section and name."""
    nbytes = max(1 << 20, int(256 * MIB * args.scale))
    by_row: dict[tuple[str, str], Callable[[], dict[str, Any]]] = {}
    for name in FIRST:
        by_row["first", f"{name} blocks"] = partial(first, args, name, merge=True)
        by_row["first", f"{name} blocks, none merged"] = partial(first, args, name, merge=False)
    for name, side in TINY.items():
        scaled_side = side if args.scale >= 1 else 64
        by_row["tiny", name] = partial(tiny_blocks, scaled_side, args.repeat)
    by_row["p2p", "2 workers"] = partial(against_threads, 2 * nbytes, 2, args.repeat)
    for workers in (1, 2, 4):
        repeat = args.repeat if workers < 4 else 1
        by_row["scale", f"{workers} workers"] = partial(scaling, workers, nbytes, repeat)
    return by_row


def first(args: Any, name: str, merge: bool) -> dict[str, Any]:
    """Measure a first task with the client in a new process."""
    with tempfile.TemporaryDirectory() as folder:
        task = Task(args.scale, args.threads, 1, "auto", Path(folder))
        row = core.call(first_of, name, merge, dataclasses.asdict(task))
    return {"failed": row["error"]} if "error" in row else row


def first_of(name: str, merge: bool, fields: dict[str, Any]) -> dict[str, Any]:
    """Measure a first task with the client in this process."""
    shape, chunks = FIRST[name]
    figures, check = first_task(shape, chunks, Task(**fields), merge)
    client_gib = figures["client bytes"] / GIB
    return {"seconds": figures["seconds"], "client_gib": client_gib, **check}


def main(argv: Sequence[str]) -> int:
    args = core.arguments("clusters", __doc__).parse_args(argv)
    results = core.Results(args, "clusters")
    by_label = {f"{section}: {name}": job for (section, name), job in jobs(args).items()}
    for label in core.chosen(by_label, args.only):
        section, name = label.split(": ")
        if results.lacks(section, name):
            results.add(section, name, **by_label[label]())
    return int(not results.ok)
