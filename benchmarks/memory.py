"""Transforms of data in memory against other FFT libraries, in one process for each problem.

Contestants take turns after a first one that does not count and whose results are checked. Graphs
and plans are made before, inputs lie in memory, and peers write into memory that exists: ``out=``
where they have it. Of ours ``persist()`` leaves blocks and ``compute()`` assembles them. Who takes
more than four times as long as the fastest runs once. ``--cold N`` adds first transforms of N new
processes, with their peak memory.
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import dask
import dask.array as da
import numpy as np

from benchmarks import core
from benchmarks.problems import (
    Problem,
    Truth,
    alternate,
    data_of,
    fill,
    graph_of,
    lazy,
    peak_of,
    plan_of,
    seconds_of,
    worst,
)
from benchmarks.rows import ARRAYS

#: How many times as long as the fastest a slow contestant takes.
SLOW = 4.0

#: Arrays beside those of the guard: name, kind, shape, dtype.
OTHERS = (
    ("1d-2p24", "fftn", (1 << 24,), "c16"),
    ("1d-2p26-single", "fftn", (1 << 26,), "c8"),
    ("1d-prime", "fftn", (4194301,), "c16"),
    ("2d-1024x65536", "fftn", (1024, 65536), "c16"),
    ("real-512x512x512-single", "rfftn", (512, 512, 512), "f4"),
    ("real-512x512x256", "rfftn", (512, 512, 256), "f8"),
)

PROBLEMS = {
    f"{name}-x{ways}": Problem(kind, shape, dtype, ways)
    for name, kind, shape, dtype in (
        *((name, "fftn", shape, dtype) for name, shape, dtype in ARRAYS),
        *OTHERS,
    )
    for ways in (16, 64)
}


@dataclass
class Contestant:
    """Who transforms the input: `run` is timed, `before` is not."""

    run: Callable[[], Any]
    before: Callable[[], Any] | None = None


def scipy(problem: Problem, x: np.ndarray, out: np.ndarray, threads: int) -> Contestant:
    import scipy.fft

    transform = getattr(scipy.fft, problem.kind)
    if problem.real:
        return Contestant(lambda: transform(x, workers=threads))
    return Contestant(
        lambda: transform(out, overwrite_x=True, workers=threads), lambda: np.copyto(out, x)
    )


def ducc0(problem: Problem, x: np.ndarray, out: np.ndarray, threads: int) -> Contestant:
    from ducc0.fft import c2c, r2c

    transform = r2c if problem.real else c2c
    axes = tuple(range(x.ndim))
    return Contestant(lambda: transform(x, axes=axes, out=out, nthreads=threads))


def mkl_fft(problem: Problem, x: np.ndarray, out: np.ndarray, threads: int) -> Contestant:
    import mkl_fft as mkl

    return Contestant(lambda: getattr(mkl, problem.kind)(x, out=out))


def fftw(problem: Problem, x: np.ndarray, out: np.ndarray, threads: int) -> Contestant:
    import pyfftw

    axes, flags = tuple(range(x.ndim)), ("FFTW_ESTIMATE",)
    made = pyfftw.FFTW(x, out, axes=axes, flags=flags, threads=threads, planning_timelimit=60.0)

    def run() -> np.ndarray:
        made.execute()
        return out

    return Contestant(run)


def dask_fft(problem: Problem, x: np.ndarray, out: np.ndarray, threads: int) -> Contestant:
    array = lazy(x, problem.chunks)
    if x.ndim == 1:
        return Contestant(da.fft.fft(array.rechunk({0: -1})).persist)
    inner = tuple(range(1, x.ndim))
    y = (da.fft.rfftn if problem.real else da.fft.fftn)(array, axes=inner)
    y = da.fft.fft(y.rechunk({0: -1, **dict.fromkeys(inner, "auto")}), axis=0)
    return Contestant(y.persist)


def copy(problem: Problem, x: np.ndarray, out: np.ndarray, threads: int) -> Contestant:
    """Copy the input with all threads: what one pass over memory takes."""
    a, b = (array.reshape(-1).view(np.uint8)[: min(x.nbytes, out.nbytes)] for array in (x, out))
    pool = ThreadPoolExecutor(threads)

    def run() -> None:
        list(pool.map(np.copyto, np.array_split(b, threads), np.array_split(a, threads)))

    return Contestant(run)


#: Peers by name: the module that each needs, and how it is made.
PEERS: dict[str, tuple[str, Callable[[Problem, np.ndarray, np.ndarray, int], Contestant]]] = {
    "scipy": ("scipy", scipy),
    "ducc0": ("ducc0", ducc0),
    "mkl_fft": ("mkl_fft", mkl_fft),
    "FFTW (ESTIMATE)": ("pyfftw", fftw),
    "da.fft": ("dask", dask_fft),
    "copy": ("numpy", copy),
}


def contestants(
    problem: Problem, x: np.ndarray, out: np.ndarray, task: dict[str, Any]
) -> Iterator[tuple[str, Contestant]]:
    """Yield peers that are installed, then ours with each FFT library."""
    for name in task["peers"]:
        module, make = PEERS[name]
        if find_spec(module) is not None:
            yield name, make(problem, x, out, task["threads"])
    for kernel in task["kernels"]:
        y = graph_of(problem, lazy(x, problem.chunks), kernel=kernel)
        yield f"{kernel}/persist", Contestant(y.persist)
        yield f"{kernel}/compute", Contestant(y.compute)


def measured(problem: Problem, task: dict[str, Any]) -> dict[str, Any]:
    """Return the medians of all contestants, and ratios of peers to the best of ours."""
    x = np.zeros(problem.shape, problem.dtype)
    out = np.zeros(problem.out_shape, problem.out_dtype)
    made = dict(contestants(problem, x, out, task))  # FFTW's planner overwrites the arrays
    fill(x)
    truth, first, checks = Truth.of(problem, x), {}, []
    for name, one in made.items():
        for _ in range(1 + ("/" in name)):  # copies of ours are compiled in the first
            if one.before is not None:
                one.before()
            first[name], result = seconds_of(one.run)
        if name != "copy":
            checks.append({**truth.check(result), "by": name})
        del result
    fast = SLOW * min(seconds for name, seconds in first.items() if name != "copy")
    racing = {n: one for n, one in made.items() if first[n] <= fast or "/" in n}
    times = {name: [seconds] for name, seconds in first.items() if name not in racing}
    times |= alternate(
        {name: one.run for name, one in racing.items()},
        task["repeat"],
        before={name: one.before for name, one in racing.items() if one.before is not None},
    )
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    best = min((n for n in medians if n.endswith("/persist")), key=medians.__getitem__)
    kernel = best.partition("/")[0]
    ours, check = times[best], worst(checks)
    return {
        "kernel": kernel,
        "rounds": plan_of(problem, lazy(x, problem.chunks), kernel=kernel).notation,
        "seconds": medians,
        "n": {name: len(seconds) for name, seconds in times.items()},
        "peers": {
            name: core.ratio(seconds if len(seconds) > 1 else seconds * len(ours), ours)
            for name, seconds in times.items()
            if "/" not in name and name != "copy"
        },
        "compute": core.ratio(times[f"{kernel}/compute"], ours),
        **core.outcome(check),
        "worst": check["by"],
    }


def cold(problem: Problem, task: dict[str, Any]) -> dict[str, Any]:
    """Return seconds and peak memory of the first transform of this process."""
    x, truth = data_of(problem)
    y = graph_of(problem, x, kernel=task["kernels"][0])
    seconds, (peak, result) = seconds_of(lambda: peak_of(y.persist))
    return {"first": seconds, "peak": peak / problem.nbytes, **truth.check(result)}


def in_process(way: str, name: str, task: dict[str, Any]) -> dict[str, Any]:
    """Return what `cold` or `measured` finds in this process."""
    problem = PROBLEMS[name].scaled(task["scale"])
    with dask.config.set(scheduler="threads", num_workers=task["threads"]):
        return {"cold": cold, "measured": measured}[way](problem, task)


def main(argv: Sequence[str]) -> int:
    parser = core.arguments("memory", __doc__)
    peers = list(PEERS)
    parser.add_argument("--peers", nargs="*", choices=peers, default=peers, metavar="NAME")
    parser.add_argument("--cold", type=int, default=0, metavar="N", help="processes")
    args = parser.parse_args(argv)
    results = core.Results(args, "memory")
    task = {key: getattr(args, key) for key in ("scale", "threads", "repeat", "peers", "kernels")}
    for name in results.missing("problems", core.chosen(PROBLEMS, args.only)):
        row = core.call(in_process, "measured", name, task, threads=args.threads)
        if "ok" not in row:
            row = {"failed": row["error"]}
        elif args.cold:
            once = ("cold", name, {**task, "kernels": [row["kernel"]]})
            runs = [core.call(in_process, *once, threads=args.threads) for _ in range(args.cold)]
            row["ok"] &= all(run.get("ok", False) for run in runs)
            for key in ("first", "peak"):
                row[key] = core.median([run[key] for run in runs if key in run])
        results.add("problems", name, **row)
    return int(not results.ok)
