"""Transforms of data in memory against other FFT libraries, first and warm.

Each contestant runs in processes of its own, and these processes take turns. The first run of a
process is told apart from its warm runs. Graphs and plans are made before, inputs lie in memory,
and peers write into memory of the caller: ``out=`` where they have it. Of ours ``persist()`` leaves
blocks and ``compute()`` assembles them. Peers run with glibc's defaults, which give freed memory
back to the system ("freed"), and with settings that keep it ("kept"). Ours keeps its memory itself
and runs with the defaults. The last result of each process is checked.
"""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np

from benchmarks import core
from benchmarks.problems import (
    Problem,
    Truth,
    data_of,
    fill,
    graph_of,
    lazy,
    plan_of,
    seconds_of,
    timed,
    worst,
)
from benchmarks.rows import ARRAYS

#: Seconds of a first run after which a process has only one warm run.
SLOW = 8.0

#: Arrays beside those of the guard: name, kind, shape, dtype.
OTHERS = (
    ("1d-2p24", "fftn", (1 << 24,), "c16"),
    ("1d-2p26-single", "fftn", (1 << 26,), "c8"),
    ("1d-prime", "fftn", (4194301,), "c16"),
    ("2d-1024x65536", "fftn", (1024, 65536), "c16"),
    ("real-512x512x512-single", "rfftn", (512, 512, 512), "f4"),
    ("real-512x512x256", "rfftn", (512, 512, 256), "f8"),
)


def all_problems() -> Iterator[tuple[str, Problem]]:
    """Yield each problem with its name: every array in 16 and in 64 blocks."""
    arrays = [(name, "fftn", shape, dtype) for name, shape, dtype in ARRAYS]
    for name, kind, shape, dtype in (*arrays, *OTHERS):
        for ways in (16, 64):
            yield f"{name}-x{ways}", Problem(kind, shape, dtype, ways)


PROBLEMS = dict(all_problems())


@dataclass
class Contestant:
    """A call that transforms the input: `run` is timed, `before` is not."""

    run: Callable[[], Any]
    before: Callable[[], Any] | None = None


def scipy(
    problem: Problem,
    x: np.ndarray,
    out: np.ndarray,
    threads: int,
) -> Contestant:
    import scipy.fft

    transform = getattr(scipy.fft, problem.kind)
    if problem.real:
        return Contestant(lambda: transform(x, workers=threads))
    return Contestant(
        run=lambda: transform(out, overwrite_x=True, workers=threads),
        before=lambda: np.copyto(out, x),
    )


def ducc0(
    problem: Problem,
    x: np.ndarray,
    out: np.ndarray,
    threads: int,
) -> Contestant:
    from ducc0.fft import c2c, r2c

    transform = r2c if problem.real else c2c
    axes = tuple(range(x.ndim))
    return Contestant(lambda: transform(x, axes=axes, out=out, nthreads=threads))


def mkl_fft(
    problem: Problem,
    x: np.ndarray,
    out: np.ndarray,
    threads: int,
) -> Contestant:
    import mkl_fft as mkl
    from threadpoolctl import threadpool_limits

    threadpool_limits(threads)
    return Contestant(lambda: getattr(mkl, problem.kind)(x, out=out))


def fftw(
    problem: Problem,
    x: np.ndarray,
    out: np.ndarray,
    threads: int,
) -> Contestant:
    import pyfftw

    axes = tuple(range(x.ndim))
    plan = pyfftw.FFTW(x, out, axes=axes, flags=("FFTW_ESTIMATE",), threads=threads)

    def run() -> np.ndarray:
        plan.execute()
        return out

    return Contestant(run)


def dask_fft(
    problem: Problem,
    x: np.ndarray,
    out: np.ndarray,
    threads: int,
) -> Contestant:
    array = lazy(x, problem.chunks)
    if x.ndim == 1:
        return Contestant(da.fft.fft(array.rechunk({0: -1})).persist)
    inner = tuple(range(1, x.ndim))
    transform = da.fft.rfftn if problem.real else da.fft.fftn
    y = transform(array, axes=inner)
    chunks = {0: -1, **dict.fromkeys(inner, "auto")}
    return Contestant(da.fft.fft(y.rechunk(chunks), axis=0).persist)


@dataclass(frozen=True)
class Peer:
    """Another library: the module that it needs, and how its contestant is made."""

    module: str
    contestant: Callable[[Problem, np.ndarray, np.ndarray, int], Contestant]


PEERS = {
    "scipy": Peer("scipy", scipy),
    "ducc0": Peer("ducc0", ducc0),
    "mkl_fft": Peer("mkl_fft", mkl_fft),
    "FFTW (ESTIMATE)": Peer("pyfftw", fftw),
    "da.fft": Peer("dask", dask_fft),
}


def write_truth(name: str, task: dict[str, Any]) -> dict[str, Any]:
    """Write the truth about a problem, which the processes of its contestants read."""
    problem = PROBLEMS[name].scaled(task["scale"])
    _, truth = data_of(problem)
    truth.save(Path(task["truth"]))
    return {"ok": True}


def in_process(name: str, label: str, task: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of one contestant of a problem in this process."""
    problem = PROBLEMS[name].scaled(task["scale"])
    truth = Truth.stored(problem, Path(task["truth"]))
    library, _, way = label.partition(", ")
    with dask.config.set(scheduler="threads", num_workers=task["threads"]):
        if library == "ours":
            return ours(problem, truth, way, task)
        return peer(problem, truth, library, task)


def ours(problem: Problem, truth: Truth, kernel: str, task: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of our transform by an FFT library."""
    x = lazy(fill(np.empty(problem.shape, problem.dtype)), problem.chunks)
    y = graph_of(problem, x, kernel=kernel)
    timing = timed(y.persist, task["repeat"])
    checks = [truth.check(timing.result)]
    timing.result = None
    assembled = []
    whole = None
    for _ in timing.warm:
        del whole
        seconds, whole = seconds_of(y.compute)
        assembled.append(seconds)
    checks.append(truth.check(whole))
    return {
        **timing.figures,
        "nbytes": problem.nbytes,
        "compute": assembled,
        "rounds": plan_of(problem, x, kernel=kernel).notation,
        **worst(checks),
    }


def peer(problem: Problem, truth: Truth, library: str, task: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of another library."""
    x = np.zeros(problem.shape, problem.dtype)
    out = np.zeros(problem.out_shape, problem.out_dtype)
    contestant = PEERS[library].contestant(problem, x, out, task["threads"])
    fill(x)  # only now: FFTW's planner may overwrite the arrays
    timing = timed(contestant.run, task["repeat"], contestant.before, slow=SLOW)
    return {**timing.figures, "nbytes": problem.nbytes, **truth.check(timing.result)}


def labels_of(task: dict[str, Any]) -> list[str]:
    """Return the names of all contestants: library, then FFT library or memory mode."""
    labels = [f"ours, {kernel}" for kernel in task["kernels"]]
    for library in task["peers"]:
        if find_spec(PEERS[library].module) is not None:
            labels += [f"{library}, memory {mode}" for mode in task["memory"]]
    return labels


def measured(
    name: str,
    labels: Sequence[str],
    task: dict[str, Any],
) -> dict[str, list[dict[str, Any]]]:
    """Return the figures of each process by contestant."""
    with tempfile.TemporaryDirectory() as folder:
        task = {**task, "truth": f"{folder}/truth.npz"}
        written = core.call(write_truth, name, task)
        if "error" in written:
            raise RuntimeError(written["error"])

        def run(label: str) -> dict[str, Any]:
            return core.call(in_process, name, label, task, memory=core.memory_mode(label))

        return core.in_turns(labels, task["processes"], run)


def row_of(runs: Sequence[dict[str, Any]], fastest: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a contestant's medians, and its ratio to the runs of the fastest of ours.

    Parameters
    ----------
    runs, fastest : sequence of dict
        Figures of each process, in the order of the turns.
    """
    for run in runs:
        if "error" in run:
            return {"failed": run["error"]}
    row: dict[str, Any] = {
        "first": core.median([run["first"] for run in runs]),
        "warm": warm_median(runs),
        "n": sum(len(run["warm"]) for run in runs),
        "processes": len(runs),
        "faults": max(run["faults"] for run in runs),
        "peak": max(run["peak"] / run["nbytes"] for run in runs),
        **core.outcome(worst(runs)),
    }
    if fastest:
        row["over_ours"] = paired(runs, fastest, "warm")
    if "compute" in runs[0]:
        row["compute"] = core.ratio(pooled(runs, "compute"), pooled(runs, "warm"))
        row["rounds"] = runs[0]["rounds"]
    return row


def pooled(runs: Sequence[dict[str, Any]], key: str) -> list[float]:
    """Return the seconds of all processes."""
    return [seconds for run in runs for seconds in run[key]]


def warm_median(runs: Sequence[dict[str, Any]]) -> float | None:
    return core.median(pooled(runs, "warm"))


def paired(
    runs: Sequence[dict[str, Any]],
    others: Sequence[dict[str, Any]],
    key: str,
) -> dict[str, float]:
    """Return the ratio of the seconds of two contestants, in pairs of processes of one turn."""
    above = []
    below = []
    for run, other in zip(runs, others, strict=True):
        count = min(len(run[key]), len(other[key]))
        above += run[key][:count]
        below += other[key][:count]
    return core.ratio(above, below)


def fastest_of_ours(runs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Return the processes of the FFT library with which ours is fastest when warm."""
    successful = []
    for label, processes in runs.items():
        if label.startswith("ours") and not any("error" in run for run in processes):
            successful.append(processes)
    return min(successful, key=warm_median, default=[])


def main(argv: Sequence[str]) -> int:
    parser = core.arguments("memory", __doc__, repeat=3)
    peers = list(PEERS)
    modes = list(core.MEMORY)
    parser.add_argument("--peers", nargs="*", choices=peers, default=peers, metavar="NAME")
    parser.add_argument("--memory", nargs="*", choices=modes, default=modes, metavar="MODE")
    parser.add_argument("--processes", type=int, default=3, metavar="N", help="of each contestant")
    args = parser.parse_args(argv)
    results = core.Results(args, "memory")
    options = ("scale", "threads", "repeat", "peers", "memory", "kernels", "processes")
    task = {key: getattr(args, key) for key in options}
    for name in core.chosen(PROBLEMS, args.only):
        labels = labels_of(task)
        if not any(results.lacks(name, label) for label in labels):
            continue
        runs = measured(name, labels, task)
        fastest = fastest_of_ours(runs)
        for label in labels:
            results.add(name, label, **row_of(runs[label], fastest))
    return int(not results.ok)
