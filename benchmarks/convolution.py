"""Convolutions of long arrays: time and memory, each run in a new process.

``full`` convolves two float64 arrays of 2^26 samples, ``taps`` one of them with 4,096 taps. A run
makes the inputs, convolves once (*cold*, with the peak of memory above the inputs) and once more
(*warm*). A peer that takes longer than `SLOW` seconds convolves once.
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np
import scipy.fft
import scipy.signal

from benchmarks import core
from benchmarks.problems import Problem, check_convolution, fill, lazy, peak_of, seconds_of, worst
from dask_bigfft import signal

SLOW, TAPS = 15.0, 4096

Inputs = tuple[np.ndarray, np.ndarray, da.Array, Any]


def by_hand(x: da.Array, y: da.Array) -> da.Array:
    """Compose the convolution of `dask.array.fft`, in blocks again at the end."""
    full = x.shape[0] + y.shape[0] - 1
    n = scipy.fft.next_fast_len(full, True)
    spectra = [da.fft.rfft(a.rechunk({0: -1}), n=n) for a in (x, y)]
    whole = da.fft.irfft(spectra[0] * spectra[1], n=n)[:full]
    return whole.rechunk({0: x.chunksize[0]})


#: What each contestant does with arrays, and with their blocks (taps stay an array).
CONTESTANTS: dict[str, Callable[[Inputs], Any]] = {
    "fftconvolve": lambda i: signal.fftconvolve(i[2], i[3]).persist(),
    "oaconvolve": lambda i: signal.oaconvolve(i[2], i[3]).persist(),
    "da.fft": lambda i: by_hand(i[2], da.asarray(i[3])).persist(),
    "scipy": lambda i: scipy.signal.fftconvolve(i[0], i[1]),
    "scipy.oaconvolve": lambda i: scipy.signal.oaconvolve(i[0], i[1]),
}
PROBLEMS = {"full": ("fftconvolve", "da.fft", "scipy"), "taps": tuple(CONTESTANTS)}


def inputs(problem: str, samples: int) -> Inputs:
    x, y = fill(np.empty(samples)), fill(np.empty(samples if problem == "full" else TAPS), 1)
    cut = Problem("fft", (samples,), "f8", 16).chunks
    return x, y, lazy(x, cut), lazy(y, cut) if problem == "full" else y


def measured(problem: str, name: str, samples: int, threads: int) -> dict[str, Any]:
    """Return times, memory and a check of one contestant in this process."""
    dask.config.set(scheduler="threads", num_workers=threads)
    given, run = inputs(problem, samples), CONTESTANTS[name]
    run(inputs("taps", 1 << 14))  # imports
    cold, (peak, result) = seconds_of(lambda: peak_of(lambda: run(given)))
    warm, slow = cold, cold > SLOW and "aconvolve" not in name
    if not slow:
        del result
        warm, result = seconds_of(lambda: run(given))
    check = check_convolution(given[0], given[1], result)
    return {"cold": cold, "warm": warm, "peak_gib": peak / 2**30, **check}


def main(argv: Sequence[str]) -> int:
    args = core.arguments("convolution", __doc__).parse_args(argv)
    results = core.Results(args, "convolution")
    samples = max(2 * TAPS, int((1 << 26) * args.scale))
    labels = [f"{problem}: {name}" for problem, names in PROBLEMS.items() for name in names]
    for label in results.missing("runs", core.chosen(labels, args.only)):
        problem, _, name = label.partition(": ")
        runs: list[dict[str, Any]] = []
        while len(runs) < args.repeat and not (runs and results.over):
            runs.append(core.call(measured, problem, name, samples, args.threads))
            if "error" in runs[-1] or (runs[-1]["cold"] > SLOW and name != "fftconvolve"):
                break
        results.add("runs", label, **summary(runs))
    return int(not results.ok)


def summary(runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the medians of runs."""
    if "error" in runs[-1]:
        return {"failed": runs[-1]["error"]}
    names = ("warm", "cold", "peak_gib")
    return {
        **{name: statistics.median(run[name] for run in runs) for name in names},
        "n": len(runs),
        **core.outcome(worst(runs)),
    }
