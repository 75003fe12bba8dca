"""Convolutions of long arrays, first and warm, each contestant in processes of its own.

``full`` convolves two float64 arrays of 2^26 samples, ``taps`` one of them with 4,096 taps. A
process makes the inputs, convolves once (*first*, with the peak of memory above the inputs) and
again (*warm*). Ours uses the last of ``--kernels``. Peers run with glibc's defaults, which give
freed memory back to the system ("freed"), and with settings that keep it ("kept"). A peer whose
first run takes longer than `SLOW` seconds has one process with one warm run.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import dask
import dask.array as da
import numpy as np
import scipy.fft
import scipy.signal

from benchmarks import core
from benchmarks.problems import GIB, Problem, check_convolution, fill, lazy, timed, worst
from dask_bigfft import signal

SLOW = 15.0
TAPS = 4096


@dataclass
class Inputs:
    """Two signals as arrays, and in blocks; taps are not cut."""

    x: np.ndarray
    y: np.ndarray
    lazy_x: da.Array
    lazy_y: Any

    @classmethod
    def of(cls, problem: str, samples: int) -> "Inputs":
        """Return random signals."""
        chunks = Problem("fft", (samples,), "f8", 16).chunks
        x = fill(np.empty(samples))
        if problem == "taps":
            taps = fill(np.empty(TAPS), 1)
            return cls(x, taps, lazy(x, chunks), taps)
        y = fill(np.empty(samples), 1)
        return cls(x, y, lazy(x, chunks), lazy(y, chunks))


def by_hand(x: da.Array, y: da.Array) -> da.Array:
    """Compose the convolution of `dask.array.fft`, in blocks again at the end."""
    full = x.shape[0] + y.shape[0] - 1
    n = scipy.fft.next_fast_len(full, True)
    x_spectrum = da.fft.rfft(x.rechunk({0: -1}), n=n)
    y_spectrum = da.fft.rfft(y.rechunk({0: -1}), n=n)
    whole = da.fft.irfft(x_spectrum * y_spectrum, n=n)[:full]
    return whole.rechunk({0: x.chunksize[0]})


def by_fftconvolve(inputs: Inputs) -> da.Array:
    return signal.fftconvolve(inputs.lazy_x, inputs.lazy_y).persist()


def by_oaconvolve(inputs: Inputs) -> da.Array:
    return signal.oaconvolve(inputs.lazy_x, inputs.lazy_y).persist()


def by_dask(inputs: Inputs) -> da.Array:
    return by_hand(inputs.lazy_x, da.asarray(inputs.lazy_y)).persist()


def by_scipy(inputs: Inputs) -> np.ndarray:
    return scipy.signal.fftconvolve(inputs.x, inputs.y)


def by_oaconvolve_of_scipy(inputs: Inputs) -> np.ndarray:
    return scipy.signal.oaconvolve(inputs.x, inputs.y)


#: Ours, and peers. Ours keeps its memory itself, so its processes have glibc's defaults.
OURS: dict[str, Callable[[Inputs], Any]] = {
    "fftconvolve": by_fftconvolve,
    "oaconvolve": by_oaconvolve,
}
PEERS: dict[str, Callable[[Inputs], Any]] = {
    "da.fft": by_dask,
    "scipy": by_scipy,
    "scipy.oaconvolve": by_oaconvolve_of_scipy,
}
PROBLEMS = {
    "full": ("fftconvolve", "da.fft", "scipy"),
    "taps": ("fftconvolve", "oaconvolve", "da.fft", "scipy", "scipy.oaconvolve"),
}


def labels() -> list[str]:
    """Return the names of rows: problem and contestant, and what a peer does with memory."""
    names = []
    for problem, contestants in PROBLEMS.items():
        for contestant in contestants:
            name = f"{problem}: {contestant}"
            if contestant in OURS:
                names.append(name)
            else:
                names += [f"{name}, memory {mode}" for mode in core.MEMORY]
    return names


def names_of(label: str) -> tuple[str, str]:
    """Return problem and contestant of a row.

    >>> names_of("taps: scipy, memory kept")
    ('taps', 'scipy')
    """
    problem, _, contestant = label.partition(", memory ")[0].partition(": ")
    return problem, contestant


def measured(label: str, samples: int, task: dict[str, Any]) -> dict[str, Any]:
    """Return times, memory and a check of one contestant in this process."""
    problem, contestant = names_of(label)
    dask.config.set({"bigfft.kernel": task["kernel"]})
    dask.config.set(scheduler="threads", num_workers=task["threads"])
    convolve = {**OURS, **PEERS}[contestant]
    convolve(Inputs.of("taps", 1 << 14))  # imports
    inputs = Inputs.of(problem, samples)
    slow = SLOW if contestant in PEERS else float("inf")
    timing = timed(lambda: convolve(inputs), task["repeat"], slow=slow)
    return {**timing.figures, **check_convolution(inputs.x, inputs.y, timing.result)}


def main(argv: Sequence[str]) -> int:
    parser = core.arguments("convolution", __doc__, repeat=3)
    parser.add_argument("--processes", type=int, default=2, metavar="N", help="of each contestant")
    args = parser.parse_args(argv)
    task = {"threads": args.threads, "repeat": args.repeat, "kernel": args.kernels[-1]}
    results = core.Results(args, "convolution", kernel=task["kernel"])
    samples = max(2 * TAPS, int((1 << 26) * args.scale))
    for label in results.missing("runs", core.chosen(labels(), args.only)):
        runs: list[dict[str, Any]] = []
        while len(runs) < args.processes and not (runs and results.over):
            run = core.call(measured, label, samples, task, memory=core.memory_mode(label))
            runs.append(run)
            if "error" in run or is_slow(label, run["first"]):
                break
        results.add("runs", label, **summary(runs))
    return int(not results.ok)


def is_slow(label: str, first_seconds: float) -> bool:
    """Return whether a contestant is a peer whose first run took too long to be repeated."""
    _, contestant = names_of(label)
    return contestant in PEERS and first_seconds > SLOW


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of processes."""
    if "error" in runs[-1]:
        return {"failed": runs[-1]["error"]}
    warm = [seconds for run in runs for seconds in run["warm"]]
    return {
        "first": core.median([run["first"] for run in runs]),
        "warm": core.median(warm),
        "n": len(warm),
        "processes": len(runs),
        "peak_gib": max(run["peak"] for run in runs) / GIB,
        "faults": max(run["faults"] for run in runs),
        **core.outcome(worst(runs)),
    }
