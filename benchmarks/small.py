"""Small calls, warm: ours against `da.fft` after ``rechunk(-1)``; starts of processes.

Ours and `da.fft` run in processes of their own, which take turns. `da.fft` runs with glibc's
defaults, which give freed memory back to the system ("freed"), and with settings that keep it
("kept"). Each call is made `WARM_UP` times before those that count. In the JSON `graph` is the time
in which ours plans and makes the lazy result, part of its seconds. One result of each call is
compared with NumPy's.
"""

import itertools
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import dask
import dask.array as da
import numpy as np

from benchmarks import core
from benchmarks.problems import alternate, seconds_of
from benchmarks.rows import cluster
from dask_bigfft import fft

#: Calls that do not count.
WARM_UP = 3


@dataclass(frozen=True)
class Call:
    """A transform of a small array.

    Attributes
    ----------
    kind : str
        Function of `dask_bigfft.fft`.
    shape, dtype, chunks
        The array.
    axis : int, optional
        Transformed axis, where that is not the last one or all.
    """

    kind: str
    shape: tuple[int, ...]
    dtype: str
    chunks: int | tuple[int, ...]
    axis: int | None = None

    @property
    def name(self) -> str:
        """Name of the row."""
        name = f"{self.kind} {self.shape} {self.dtype} {self.chunks}"
        return name if self.axis is None else f"{name} {self.axis}"

    @property
    def options(self) -> dict[str, Any]:
        """Arguments of the transform beside the array."""
        return {} if self.axis is None else {"axis": self.axis}

    @property
    def whole_axes(self) -> dict[int, int]:
        """Argument of `rechunk` that brings each transformed axis into one chunk."""
        ndim = len(self.shape)
        if self.kind.endswith("n"):
            return dict.fromkeys(range(ndim), -1)
        if self.kind.endswith("2"):
            return {ndim - 2: -1, ndim - 1: -1}
        return {-1 if self.axis is None else self.axis: -1}


CALLS = [
    Call("fft", (1000,), "c16", 100),
    Call("fft", (1 << 12,), "c16", 1 << 10),
    Call("fft", (10_007,), "c16", 1001),
    Call("fft", (10_000,), "c8", 1000),
    Call("rfft", (100_000,), "f8", 10_000),
    Call("irfft", (50_001,), "c16", 5001),
    Call("fft", (1 << 16,), "c16", 1 << 12),
    Call("fft", (1 << 18,), "c16", 1 << 14),
    Call("rfft", (1 << 20,), "f8", 1 << 17),
    Call("fft", (1 << 20,), "c8", 1 << 17),
    Call("fft", (1 << 20,), "c16", 1 << 16),
    Call("fft", (1 << 22,), "c16", 1 << 19),
    Call("fft", (1 << 22,), "c16", 1 << 22),
    Call("fft", (1 << 16,), "c16", 1 << 16),
    Call("fft", (100, 1000), "c16", (10, 1000)),
    Call("fft", (100, 1000), "c16", (10, 100)),
    Call("rfft", (1000, 4096), "f4", (100, 1024)),
    Call("fft", (64, 1 << 14), "c16", (8, 1 << 12)),
    Call("fft", (1000, 1000), "c16", (250, 250), 0),
    Call("fft2", (256, 256), "c16", 64),
    Call("fft2", (1000, 1000), "c16", 250),
    Call("rfft2", (1000, 1000), "f8", 250),
    Call("fft2", (1009, 1013), "c16", 300),
    Call("ifft2", (2048, 2048), "c8", 512),
    Call("fft2", (20, 500, 500), "c16", (1, 250, 250)),
    Call("rfft2", (50, 256, 256), "f4", (10, 128, 128)),
    Call("fftn", (64, 64, 64), "c16", 32),
    Call("fftn", (100, 100, 100), "c8", 50),
    Call("rfftn", (128, 128, 128), "f4", (64, 128, 128)),
    Call("fftn", (128, 128, 128), "c16", 64),
]


#: Arguments of an interpreter, by name.
STARTS = {
    "import dask_bigfft.fft": ("-c", "import dask_bigfft.fft"),
    "help": ("-m", "dask_bigfft", "--help"),
    "error": ("-m", "dask_bigfft", "plan", ".", "--kind", "none"),
}

#: Calls by the names of their rows.
NAMES = {call.name: call for call in CALLS}

CONTESTANTS = ("ours", *(f"da.fft, memory {mode}" for mode in core.MEMORY))


def start(words: Sequence[str], repeat: int) -> dict[str, Any]:
    """Return the seconds of a process of ours, and of one that imports `dask.array`."""

    def run(*arguments: str) -> None:
        subprocess.run([sys.executable, *arguments], capture_output=True, check=False)

    works = {
        "ours": partial(run, *words),
        "dask": partial(run, "-c", "import dask.array"),
    }
    times = alternate(works, repeat)
    return {"ours": core.median(times["ours"]), "dask": core.median(times["dask"]), "ok": True}


def input_of(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    """Return random numbers."""
    pairs = np.random.default_rng(1).standard_normal((*shape, 2))
    values = pairs.view("c16")[..., 0]
    if dtype[0] == "f":
        values = values.real
    return values.astype(dtype)


def measure(contestant: str, call: Call, repeat: int) -> dict[str, Any]:
    """Return the seconds of warm calls, and the error of a result."""
    values = input_of(call.shape, call.dtype)
    x = da.from_array(values, chunks=call.chunks, name=False).persist()

    def lazy_result() -> da.Array:
        if contestant == "ours":
            return getattr(fft, call.kind)(x, **call.options)
        return getattr(da.fft, call.kind)(x.rechunk(call.whole_axes), **call.options)

    def compute() -> np.ndarray:
        return lazy_result().compute()

    double = values.astype(np.result_type(values, "f8"))
    truth = getattr(np.fft, call.kind)(double, **call.options)
    error = float(np.linalg.norm(compute() - truth) / np.linalg.norm(truth))
    tolerance = 1e-5 if values.dtype.char in "fF" else 1e-13
    seconds_of_calls(compute, WARM_UP)
    return {
        "seconds": seconds_of_calls(compute, repeat),
        "graph": core.median(seconds_of_calls(lazy_result, repeat)),
        "error": error,
        "ok": error < tolerance,
    }


def seconds_of_calls(work: Callable[[], Any], repeat: int) -> list[float]:
    """Return the seconds of as many calls, without their results."""
    return [seconds_of(work)[0] for _ in range(repeat)]


def in_process(
    contestant: str,
    place: str,
    names: Sequence[str],
    threads: int,
    repeat: int,
) -> dict[str, Any]:
    """Return what `measure` finds of each call in this process, on its threads or workers."""
    with TemporaryDirectory() as folder:
        if place == "workers":
            setting: Any = cluster(threads, Path(folder))
        else:
            setting = dask.config.set(scheduler="threads", num_workers=threads)
        with setting:
            return {name: measure(contestant, NAMES[name], repeat) for name in names}


def measured(place: str, names: Sequence[str], args: Any) -> dict[str, list[dict[str, Any]]]:
    """Return the answers of `in_process` of each contestant's processes."""

    def run(contestant: str) -> dict[str, Any]:
        memory = core.memory_mode(contestant)
        return core.call(
            in_process,
            contestant,
            place,
            names,
            args.threads,
            args.repeat,
            memory=memory,
        )

    return core.in_turns(CONTESTANTS, args.processes, run)


def failure_of(runs: dict[str, list[dict[str, Any]]]) -> str | None:
    """Return the error of the first process that failed, with its contestant."""
    for contestant, processes in runs.items():
        for run in processes:
            if "error" in run:
                return f"{contestant}: {run['error']}"
    return None


def row_of(name: str, runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return the medians of a call by contestant, and the ratios of ours to the others."""
    failure = failure_of(runs)
    if failure is not None:
        return {"failed": failure}
    seconds = {}
    for contestant, processes in runs.items():
        seconds[contestant] = pooled([process[name]["seconds"] for process in processes])
    costs = {}
    for contestant in runs:
        if contestant != "ours":
            costs[contestant] = core.ratio(seconds["ours"], seconds[contestant])
    measurements = [process[name] for process in pooled(runs.values())]
    return {
        "warm": {contestant: core.median(values) for contestant, values in seconds.items()},
        "n": len(seconds["ours"]),
        "graph": statistics.median(process[name]["graph"] for process in runs["ours"]),
        "cost": costs,
        "error": max(measurement["error"] for measurement in measurements),
        "ok": all(measurement["ok"] for measurement in measurements),
    }


def pooled(lists: Iterable[list[Any]]) -> list[Any]:
    """Return the entries of some lists in one."""
    return list(itertools.chain.from_iterable(lists))


def main(argv: Sequence[str]) -> int:
    parser = core.arguments("small", __doc__, repeat=10)
    parser.add_argument("--processes", type=int, default=3, metavar="N", help="of each contestant")
    args = parser.parse_args(argv)
    results = core.Results(args, "small")
    chosen = core.chosen([*NAMES, *STARTS], args.only)
    starts = [name for name in chosen if name in STARTS]
    calls = [name for name in chosen if name in NAMES]
    for name in results.missing("start", starts):
        results.add("start", name, **start(STARTS[name], args.repeat))
    for place in ("threads", "workers"):
        names = list(results.missing(place, calls))
        if names:
            runs = measured(place, names, args)
            for name in names:
                results.add(place, name, **row_of(name, runs))
    return int(not results.ok)
