"""Filters of periodic arrays in memory: one plan, two plans, and scipy.fft by hand.

The transfer function is the sum of the cosines of all axes, so that each value of the result is the
sum of its neighbours, which checks it. A process makes the input, filters it once (*first*, with
the peak of memory above the input) and again (*warm*). Contestants take turns, so that ratios are
those of neighbouring runs. *two plans* is ``irfftn(rfftn(x) * h)`` by this library with the product
block by block, *captured* the same calls as one plan, *scipy* the same on the whole array with all
threads. Memory that SciPy frees is kept.
"""

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import dask
import dask.array as da
import numpy as np
import scipy.fft

from benchmarks import core
from benchmarks.problems import GIB, Problem, fill, lazy, timed, worst
from dask_bigfft import fft, signal

PROBLEMS = {
    "slabs": Problem("rfftn", (512, 512, 512), "f4", 16),
    "blocks of 128^3": Problem("rfftn", (512, 512, 512), "f4", (4, 4, 4)),
    "blocks of 64^3": Problem("rfftn", (512, 512, 512), "f4", (8, 8, 8)),
    "2d": Problem("rfftn", (8192, 8192), "f4", 16),
    "1d": Problem("rfft", (1 << 26,), "f8", 16),
}

#: Samples that are compared.
SAMPLES = 64


def cosines(*frequencies: np.ndarray) -> Any:
    """Return the sum of the cosines of all axes."""
    return sum(2 * np.cos(2 * np.pi * f) for f in frequencies)


def frequencies_of(problem: Problem) -> list[np.ndarray]:
    """Return the frequencies along each axis, for real transforms half of the last one."""
    arrays = []
    halved = len(problem.shape) - 1 if problem.kind != "fftn" else None
    for axis, n in enumerate(problem.shape):
        frequencies = np.fft.rfftfreq(n) if axis == halved else np.fft.fftfreq(n)
        shape = [1] * len(problem.shape)
        shape[axis] = -1
        arrays.append(frequencies.reshape(shape))
    return arrays


def by_one_plan(problem: Problem, x: np.ndarray, blocks: da.Array) -> Any:
    """Filter by one plan."""
    return signal.fourier_filter(blocks, cosines).persist()


def by_two_plans(problem: Problem, x: np.ndarray, blocks: da.Array) -> Any:
    """Filter by a forward plan, a product in blocks, and an inverse plan."""
    with dask.config.set({"bigfft.capture": "never"}):
        return two_plans(problem, blocks).persist()


def by_capture(problem: Problem, x: np.ndarray, blocks: da.Array) -> Any:
    """Filter by the same calls, of which the library makes one plan."""
    with dask.config.set({"bigfft.capture": "always"}):
        return two_plans(problem, blocks).persist()


def two_plans(problem: Problem, blocks: da.Array, **options: Any) -> da.Array:
    """Return the lazy filter with the product between a forward plan and an inverse plan."""
    axes = range(blocks.ndim)
    forward, inverse = (fft.rfftn, fft.irfftn)
    if problem.kind == "fftn":
        forward, inverse = (fft.fftn, fft.ifftn)
    spectrum = forward(blocks, axes=axes, **options)
    factor = cosines(*(lazy_frequencies(f, spectrum.chunks) for f in frequencies_of(problem)))
    product = spectrum * factor.astype(blocks.real.dtype)
    return inverse(product, s=problem.shape, axes=axes, **options)


def by_scipy(problem: Problem, x: np.ndarray, blocks: da.Array) -> Any:
    """Filter the whole array."""
    threads = dask.config.get("num_workers")
    spectrum = scipy.fft.rfftn(x, workers=threads)
    spectrum *= cosines(*frequencies_of(problem)).astype(x.dtype)
    return scipy.fft.irfftn(spectrum, s=problem.shape, workers=threads, overwrite_x=True)


def lazy_frequencies(frequencies: np.ndarray, chunks: Sequence[tuple[int, ...]]) -> da.Array:
    """Return frequencies in the chunks of a spectrum."""
    cuts = [own if n > 1 else (1,) for n, own in zip(frequencies.shape, chunks, strict=True)]
    return da.from_array(frequencies, chunks=tuple(cuts))


CONTESTANTS: dict[str, Callable[[Problem, np.ndarray, da.Array], Any]] = {
    "one plan": by_one_plan,
    "two plans": by_two_plans,
    "captured": by_capture,
    "scipy, memory kept": by_scipy,
}


def neighbours(x: np.ndarray, place: tuple[int, ...]) -> complex:
    """Return the sum of the periodic neighbours of an element."""
    total = 0j
    for axis, n in enumerate(x.shape):
        for shift in (-1, 1):
            other = list(place)
            other[axis] = (place[axis] + shift) % n
            total += complex(x[tuple(other)])
    return total


def check(x: np.ndarray, result: Any) -> dict[str, Any]:
    """Compare samples of a result with sums of neighbours."""
    rng = np.random.default_rng(1)
    values = np.asarray(result)
    errors = []
    for _ in range(SAMPLES):
        place = tuple(int(rng.integers(n)) for n in x.shape)
        errors.append(abs(complex(values[place]) - neighbours(x, place)))
    tolerance = 64 * float(np.finfo(x.dtype).eps) * math.log2(x.size)
    return {"samples": max(errors), "tolerance": tolerance, "ok": max(errors) <= tolerance}


def measured(label: str, scale: float, task: dict[str, Any]) -> dict[str, Any]:
    """Return times, memory and a check of one contestant in this process."""
    name, _, contestant = label.partition(": ")
    problem = PROBLEMS[name].scaled(scale)
    dask.config.set({"bigfft.kernel": task["kernel"]})
    dask.config.set(scheduler="threads", num_workers=task["threads"])
    run = CONTESTANTS[contestant]
    small = np.zeros((8,) * len(problem.shape), problem.dtype)
    run(Problem(problem.kind, small.shape, problem.dtype, 1), small, da.from_array(small))
    x = fill(np.empty(problem.shape, problem.dtype))
    blocks = lazy(x, problem.chunks)
    timing = timed(lambda: run(problem, x, blocks), task["repeat"])
    return {**timing.figures, **check(x, timing.result)}


def main(argv: Sequence[str]) -> int:
    parser = core.arguments("operators", __doc__, repeat=3)
    parser.add_argument("--processes", type=int, default=3, metavar="N", help="of each contestant")
    args = parser.parse_args(argv)
    results = core.Results(args, "operators", kernels=args.kernels)
    names = [f"{name}, {kernel}" for name in PROBLEMS for kernel in args.kernels]
    for name in results.missing("filters", core.chosen(names, args.only)):
        problem, _, kernel = name.rpartition(", ")
        task = {"threads": args.threads, "repeat": args.repeat, "kernel": kernel}
        labels = [f"{problem}: {contestant}" for contestant in CONTESTANTS]

        def run(label: str, task: dict[str, Any] = task) -> dict[str, Any]:
            return core.call(measured, label, args.scale, task, memory=core.memory_mode(label))

        runs = core.in_turns(labels, args.processes, run)
        results.add("filters", name, **summary(runs), state=results.content["state"])
    return int(not results.ok)


def summary(runs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Return medians of the processes of each contestant, and ratios of the others to one plan."""
    failures = [run["error"] for own in runs.values() for run in own if "error" in run]
    if failures:
        return {"failed": failures[0]}
    row: dict[str, Any] = {}
    warm = {
        label.partition(": ")[2]: [s for r in own for s in r["warm"]] for label, own in runs.items()
    }
    for label, own in runs.items():
        contestant = label.partition(": ")[2]
        row[contestant] = {
            "first": core.median([run["first"] for run in own]),
            "warm": core.median(warm[contestant]),
            "peak_gib": max(run["peak"] for run in own) / GIB,
        }
    for contestant in list(warm)[1:]:
        row[f"{contestant} / one plan"] = core.ratio(warm[contestant], warm["one plan"])
    checks = reduce(lambda a, b: a + b, runs.values())
    return {**row, **core.outcome(worst(checks))}
