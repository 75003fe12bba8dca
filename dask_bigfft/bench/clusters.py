"""``python -m dask_bigfft.bench.clusters``: what a cluster costs, on this machine's processes.

======  ===========================================================================================
first   how long after `compute` the first task runs, and what memory the client takes: 8,192 blocks
        all-to-all by p2p, and 100,352 blocks as pencils, from source to store; each with the
        settings as they are, which merge such small blocks, and with none merged
tiny    `fft2` of 288 to 9,248 blocks of 2 KiB by p2p between two workers, from blocks there to an
        array here; beside it what dask takes to add 1 to each of these blocks
p2p     a transform that fits into one process: by p2p between single-threaded workers against as
        many threads of one process, in turn
scale   1 and 2 workers of one thread, the same bytes for each, and 4 for bytes, balance and memory:
        an exchange of p2p sends every byte but those that stay, so the time that counts is that of
        a copy, which as many processes make of as many bytes at the same time
======  ===========================================================================================

Workers have one thread each and listen on the loopback device only. A worker's peak is that of a
memory cgroup where one can be made, else sampled (`peaks` says which).

Imports the front door, `machine`, `peaks` and distributed.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt

from dask_bigfft import fft
from dask_bigfft.bench.machine import describe
from dask_bigfft.bench.peaks import watched

__all__ = ["FIRST", "PARTS", "TINY", "first_task", "main", "p2p_overhead", "scaling", "tiny_blocks"]

Array = npt.NDArray[Any]

#: Problems of `first`: shape and chunks.
FIRST: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "8,192 blocks, all to all": ((2**26,), (2**13,)),
    "100,352 blocks, pencils": ((448, 448, 448), (2, 1, 448)),
}

#: Problems of `tiny`: side of a square in blocks of `TINY_BLOCK`, and seconds that are wanted.
TINY: dict[str, tuple[int, float]] = {
    "288 blocks": (192, 2.0), "1,152 blocks": (384, 4.0), "9,248 blocks": (1088, 30.0),
}
TINY_BLOCK = (4, 32)

#: Relative error beyond which an answer is wrong.
WRONG = 1e-13

#: Seconds after which the first task is not waited for any more.
LONGEST = 120.0

#: Bytes for each worker in `scale`, and of the whole array in `p2p`.
WORKER_BYTES, FITTING_BYTES = 256 << 20, 512 << 20


@contextlib.contextmanager
def _cluster(workers: int, folder: str) -> Iterator[tuple[Any, Any]]:
    distributed = import_module("distributed")
    with (
        dask.config.set({"bigfft.exchange.carrier": "p2p", "distributed.worker.memory.spill": False,
                         "distributed.worker.memory.target": False}),
        distributed.LocalCluster(
            n_workers=workers, threads_per_worker=1, host="127.0.0.1",
            dashboard_address="127.0.0.1:0", local_directory=folder, memory_limit=0,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.wait_for_workers(workers)
        yield cluster, client


# --- the first task ---------------------------------------------------------------------------


class _Sink:
    """Takes blocks and keeps none."""

    def __setitem__(self, index: Any, values: Any) -> None:
        pass


def _marking(block: Array, mark: str) -> Array:
    if block.size:  # dask tries the function on an empty block while the graph is built
        with contextlib.suppress(FileExistsError), open(mark, "x") as handle:
            handle.write(str(time.time()))
    return block


def first_task(name: str, merged: bool = False) -> dict[str, Any]:
    """Return seconds from `compute` to the first task, and bytes that the client's memory grows.

    The rest of the graph is not waited for. `merged` leaves it to the settings whether neighbouring
    blocks are merged; without it they stand for large ones.
    """
    shape, chunks = FIRST[name]
    with tempfile.TemporaryDirectory() as folder, _cluster(2, folder) as (_, client):
        mark = Path(folder, "mark")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        x = da.zeros(shape, chunks=chunks, dtype="c8").map_blocks(_marking, str(mark), dtype="c8")
        with dask.config.set({} if merged else {"bigfft.planner.merge-up-to": 0}):
            y = fft.fftn(x, memory_limit="1 TiB")
        stored = da.store(y, cast("Any", _Sink()), lock=False, compute=False)
        started = time.time()
        future = client.compute(stored)
        while not (mark.exists() and mark.read_text()) and time.time() < started + LONGEST:
            time.sleep(0.05)
        found = float(mark.read_text()) - started if mark.exists() else None
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        client.cancel(future, force=True)
        return {"blocks": x.npartitions, "result_blocks": y.npartitions, "seconds": found,
                "client_bytes": after << 10, "client_grew": (after - before) << 10}


# --- tiny blocks ------------------------------------------------------------------------------


def tiny_blocks(side: int, repeat: int) -> dict[str, Any]:
    """Return seconds of the first and of further transforms of a square in tiny blocks.

    Parameters
    ----------
    side : int
        Of the square.
    repeat : int
        Number of further transforms, of other values each; the worst answer is told.
    """
    wait = import_module("distributed").wait
    rng, times, errors = np.random.default_rng(1), [], []
    with tempfile.TemporaryDirectory() as folder, _cluster(2, folder) as (_, client):
        for _ in range(repeat + 1):
            values = rng.standard_normal((side, side, 2)).view("c16")[..., 0]
            x = client.persist(da.from_array(values, chunks=TINY_BLOCK))
            wait(x)
            started = time.perf_counter()
            found = fft.fft2(x).compute()
            times.append(time.perf_counter() - started)
            wanted = np.fft.fft2(values)
            errors.append(float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted)))
        started = time.perf_counter()
        (x + 1).compute()
        added = time.perf_counter() - started
    return {"blocks": x.npartitions, "first": times[0], "seconds": times[1:],
            "plus_one": added, "error": max(errors)}


# --- speeds -----------------------------------------------------------------------------------


def _array(nbytes: int, blocks: int) -> da.Array:
    """Random numbers in slabs, as an array of three axes."""
    side = 1 << 8
    planes = nbytes // (side * side * 8) // blocks * blocks
    rng = da.random.default_rng(1)
    real = rng.standard_normal((planes, side, side * 2), chunks=(planes // blocks, -1, -1),
                               dtype="f4")
    chunks = (real.chunks[0], (side,), (side,))
    return cast("da.Array", real.map_blocks(lambda b: b.view("c8"), dtype="c8", chunks=chunks))


def _seconds(y: da.Array, compute: Callable[[da.Array], Any]) -> float:
    started = time.perf_counter()
    kept = compute(y)
    found = time.perf_counter() - started
    del kept
    return found


def p2p_overhead(workers: int, repeat: int, nbytes: int = FITTING_BYTES) -> dict[str, Any]:
    """Return seconds by p2p between workers and by threads, in turn, and their ratio."""
    wait = import_module("distributed").wait
    ours: list[float] = []
    threads: list[float] = []
    with tempfile.TemporaryDirectory() as folder, _cluster(workers, folder) as (_, client):
        x = _array(nbytes, 8 * workers)
        there = client.persist(x)
        wait(there)
        with dask.config.set(scheduler="threads", num_workers=workers):
            here = x.persist(scheduler="threads", num_workers=workers)
        for _ in range(repeat + 1):
            ours.append(_seconds(fft.fftn(there), lambda y: wait(client.persist(y))))
            with dask.config.set({"bigfft.exchange.carrier": "auto"}):
                threads.append(_seconds(fft.fftn(here), lambda y: y.persist(
                    scheduler="threads", num_workers=workers)))
    ratios = sorted(a / b for a, b in zip(ours[1:], threads[1:], strict=True))
    return {"workers": workers, "nbytes": nbytes, "p2p": ours[1:], "threads": threads[1:],
            "times_as_long": statistics.median(ratios), "range": [ratios[0], ratios[-1]]}


def _copies(nbytes: int, ready: Any, times: Any) -> None:
    source = np.ones(nbytes // 8)
    target = np.zeros_like(source)
    ready.wait()
    started = time.perf_counter()
    for _ in range(4):
        np.copyto(target, source)
    times.put((time.perf_counter() - started) / 4)


def copy_seconds(processes: int, nbytes: int) -> float:
    """Return how long processes take that copy as many bytes each in memory, at the same time."""
    context = multiprocessing.get_context("spawn")
    ready, times = context.Barrier(processes), context.Queue()
    children = [context.Process(target=_copies, args=(nbytes, ready, times))
                for _ in range(processes)]
    for child in children:
        child.start()
    found = [times.get(timeout=120) for _ in children]
    for child in children:
        child.join()
    return float(max(found))


def scaling(workers: int, repeat: int, nbytes: int = WORKER_BYTES) -> dict[str, Any]:
    """Return seconds, bytes sent, balance and peak memory of workers with the same bytes each."""
    wait = import_module("distributed").wait
    times: list[float] = []
    copies: list[float] = []
    peaks: list[Any] = []
    with tempfile.TemporaryDirectory() as folder, _cluster(workers, folder) as (_, client):
        x = client.persist(_array(workers * nbytes, 8 * workers))
        wait(x)
        pids = client.run(os.getpid).values()
        with contextlib.ExitStack() as stack:
            peaks = [stack.enter_context(watched(pid)) for pid in pids]
            for _ in range(repeat + 1):
                y = client.persist(fft.fftn(x))
                started = time.perf_counter()
                wait(y)
                times.append(time.perf_counter() - started)
                holders = client.who_has(y)
                copies.append(copy_seconds(workers, nbytes))
                counts: dict[str, int] = {}
                for names in holders.values():
                    for name in names:
                        counts[name] = counts.get(name, 0) + 1
                del y
    return {
        "workers": workers, "bytes_each": nbytes, "seconds": times[1:], "copy": copies[1:],
        "blocks_by_worker": sorted(counts.values()),
        "bytes_between_workers": int(x.nbytes * (1 - 1 / workers)),
        "peak_by_worker": [peak.nbytes for peak in peaks], "measured_by": peaks[0].how,
    }


def _efficiency(found: dict[str, Any]) -> dict[str, float]:
    """What two workers do of twice what one does, and two processes that copy."""
    one, two = (statistics.median(found[n]["seconds"]) for n in "12")
    lone, both = (statistics.median(found[n]["copy"]) for n in "12")
    return {"ours": one / two, "copy": lone / both, "against_copy": (one / two) / (lone / both)}


PARTS = ("first", "tiny", "p2p", "scale")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; return 0 if all is as wanted.

    The first tasks run within 30 s, the client takes at most 2 GiB, and tiny blocks are right, and
    as fast as `TINY` says.
    """
    parser = argparse.ArgumentParser(prog="python -m dask_bigfft.bench.clusters")
    add = parser.add_argument
    add("--only", nargs="+", default=list(PARTS), choices=PARTS, metavar="PART")
    add("--problem", choices=list(FIRST), metavar="NAME", help="of the part first")
    add("--repeat", type=int, default=5, metavar="N")
    add("--mib", type=int, default=WORKER_BYTES >> 20, metavar="N", help="for each worker")
    add("--out", type=Path, metavar="PATH", help="JSON")
    add("--child", help=argparse.SUPPRESS)
    add("--merged", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    for name in ("repeat", "mib"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} {getattr(args, name)}: need a number of at least 1")
    if args.child:
        print(json.dumps(first_task(args.child, args.merged)))
        return 0
    found: dict[str, Any] = {"machine": describe()}

    def keep(part: str, name: str, result: Any) -> None:
        """What is found is on the disk before anything else begins."""
        found.setdefault(part, {})[name] = result
        print(f"{part}, {name}: {json.dumps(result)}", flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps(found, indent=1) + "\n")

    if "first" in args.only:
        for name in [args.problem] if args.problem else FIRST:
            keep("first", name, _alone(name, merged=True))
            keep("first", f"{name}, none merged", _alone(name, merged=False))
    if "tiny" in args.only:
        for name, (side, _) in TINY.items():
            keep("tiny", name, tiny_blocks(side, args.repeat))
    if "p2p" in args.only:
        keep("p2p", "2 workers", p2p_overhead(2, args.repeat, 2 * args.mib << 20))
    if "scale" in args.only:
        for workers in (1, 2, 4):
            repeat = args.repeat if workers < 4 else 1
            keep("scale", str(workers), scaling(workers, repeat, args.mib << 20))
        keep("scale", "efficiency", _efficiency(found["scale"]))
    late = any(_late(first) for first in found.get("first", {}).values())
    return int(late or any(_slow(*pair) for pair in found.get("tiny", {}).items()))


def _slow(name: str, tiny: dict[str, Any]) -> bool:
    """Whether tiny blocks take longer than wanted, or are wrong."""
    slow = statistics.median(tiny["seconds"]) > TINY[name][1]
    return slow or not tiny["error"] <= WRONG


def _late(first: dict[str, Any]) -> bool:
    """Whether the first task, or the client's memory, is not as wanted."""
    seconds = first["seconds"]
    return seconds is None or seconds > 30 or first["client_bytes"] > 2 << 30


def _alone(name: str, *, merged: bool) -> dict[str, Any]:
    """The first task of a problem, with a client in a process of its own."""
    program = [sys.executable, "-m", "dask_bigfft.bench.clusters", "--child", name]
    done = subprocess.run(program + ["--merged"] * merged, capture_output=True, text=True,
                          check=False, timeout=4 * LONGEST)
    if done.returncode:
        return {"seconds": None, "client_bytes": 0, "error": done.stderr[-500:]}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


if __name__ == "__main__":
    sys.exit(main())
