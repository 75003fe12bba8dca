"""Prices of a CPU, found from whole transforms.

A forecast is linear in the prices of a profile (`planner.seconds`). So a few dozen small transforms
of different shapes, chunks and FFT libraries are run by dask as users run them, and the prices that
explain their seconds best are found by non-negative least squares of relative errors. Prices that
these transforms tell apart badly stay near those of copies and FFTs measured alone. (Chen and Li,
Proc. ICPADS, 2013, calibrate by whole runs, too.)

Imports `fft`, the planner, `planning`, dask and SciPy.
"""

import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from dask_bigfft import fft
from dask_bigfft.front import plan
from dask_bigfft.kernels.copies import compile_at_once, copy_array
from dask_bigfft.kernels.libraries import get_library
from dask_bigfft.kernels.wisdom import measured_rates
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.profile import MOST, LibrarySpeeds, Profile
from dask_bigfft.planning.trials import in_memory

__all__ = ["DTYPES", "PRICES", "Problem", "Run", "fitted", "problems", "thread_prices"]

#: Complex dtypes that libraries are measured in.
DTYPES = ("complex128", "complex64")

#: Elements of the usual problem. The sizes below are scaled from it.
ELEMENTS = 1 << 21

#: Prices of a profile, with what they are on a common machine.
PRICES = {
    "copy": 3e-10,
    "run": 5e-9,
    "move": 1e-10,
    "start": 1e-3,
    "task": 1e-4,
    "tile": 3e-5,
    "shard": 1e-5,
    "exchange": 1e-3,
}

#: Weight of a price that is as measured alone, against a run that takes as long as forecast.
PRIOR = 0.25

#: Seconds after which a library is measured by a single run of each problem.
ENOUGH = 12.0

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Problem:
    """A small transform: its kind, shape, blocks along the first axis, and transformed axes."""

    kind: str
    shape: tuple[int, ...]
    blocks: int
    axes: tuple[int, ...]

    def array(self, dtype: str) -> da.Array:
        """Return the input, one block after the other along the first axis, in memory."""
        real = np.empty(0, dtype).real.dtype if self.kind == "rfftn" else np.dtype(dtype)
        chunks = (-(-self.shape[0] // self.blocks), *self.shape[1:])
        return in_memory(da.ones(self.shape, chunks=chunks, dtype=real))


def problems(elements: int, threads: int, few: bool) -> Iterator[Problem]:
    """Yield problems that tell prices apart: lines, planes, boxes, large blocks, many tiny ones."""
    side = max(4, int(elements**0.5) // 4 * 4)
    cube = max(4, round(elements ** (1 / 3)) // 2 * 2)
    many = min(16 * threads, side)
    yield Problem("fftn", (side, elements // side), 4 * threads, (1,))
    yield Problem("fftn", (side, elements // side), 2 * threads, (0, 1))
    yield Problem("fftn", (elements // 1000 * 1000,), 8 * threads, (0,))
    yield Problem("fftn", (cube, cube, cube), 4 * threads, (0, 1, 2))
    yield Problem("fftn", (threads, side, elements // side // threads), threads, (1, 2))
    if few:
        return
    yield Problem("fftn", (side, elements // side), many, (0, 1))
    yield Problem("fftn", (elements,), 2 * threads, (0,))
    yield Problem("fftn", (max(8, elements // 48), 48), 8 * threads, (0, 1))
    yield Problem("fftn", (48, max(8, elements // 48)), 4 * threads, (0,))
    yield Problem("rfftn", (cube, cube, 2 * cube), 4 * threads, (0, 1, 2))
    yield Problem("fftn", (256, 4), 256, (1,))
    yield Problem("fftn", (64, 64), 32, (0, 1))
    yield Problem("fftn", (4, 4), 1, (1,))


@dataclass(frozen=True)
class Run:
    """A transform that was run: its plan, without a profile, and the median of its seconds."""

    plan: Plan
    seconds: float
    library: str
    dtype: str


def _run(problem: Problem, dtype: str, kernel: str, verify: str, repeat: int) -> Run:
    """Run a transform as a user would, after one run that does not count."""
    x = problem.array(dtype)
    keywords: Any = {"axes": problem.axes, "kernel": kernel, "device": "cpu", "verify": verify}
    taken = []
    for _ in range(repeat + 1):
        y = getattr(fft, problem.kind)(x, **keywords)
        started = time.perf_counter()
        blocks = y.persist()
        taken.append(time.perf_counter() - started)
        del y, blocks
    found = plan(x, problem.kind, **keywords)
    return Run(found, statistics.median(taken[1:]), kernel, dtype)


def _price(run: Run, name: str, threads: int) -> float:
    """Return the seconds of a run where the price `name` is 1 and everything else is free."""
    free: dict[str, Any] = dict.fromkeys((*PRICES, "pair"), 0.0)
    free |= dict.fromkeys(("copy", "flops", "energy", "checksum"), MOST)
    fast = {"flops": MOST, "large_flops": MOST} | ({name: 1.0} if "flops" in name else {})
    out = get_library(run.library).supports_out
    library = LibrarySpeeds(run.library, run.dtype, supports_out=out, **fast)
    if "flops" not in name:
        free[name] = 1.0
    profile = replace(Profile(libraries=(library,)), **free)
    return run.plan.forecast(profile, threads=threads).seconds


def thread_prices(threads: int, nbytes: int, repeat: int, kernels: Sequence[str]) -> dict[str, Any]:
    """Return what a `Profile` says of threads, by the names of its fields.

    Parameters
    ----------
    threads : int
        Tasks that run at a time.
    nbytes : int
        Bytes of a usual problem.
    repeat : int
        Runs that count.
    kernels : sequence of str
        FFT libraries, the most important one first.
    """
    elements, began, runs = max(1 << 10, nbytes // 16), time.perf_counter(), []
    compile_at_once()
    with ThreadPoolExecutor(threads) as pool, dask.config.set(scheduler="threads", pool=pool):
        for dtype in DTYPES:
            for kernel in kernels:
                if np.dtype(dtype) not in get_library(kernel).dtypes:
                    continue
                late = time.perf_counter() - began > ENOUGH
                few = dtype != DTYPES[0] or kernel != kernels[0]
                runs += [
                    _run(problem, dtype, kernel, "none", 1 if late else repeat)
                    for problem in problems(elements, threads, few)
                ]
        checked = _checked(elements, threads, kernels[0], repeat)
        alone = _alone(threads, pool)
    rates: dict[tuple[str, str], float] = {}
    for dtype in DTYPES:
        names = list(dict.fromkeys(run.library for run in runs if run.dtype == dtype))
        rates |= {(name, dtype): rate for name, rate in measured_rates(names, dtype).items()}
    return {**fitted(runs, threads, alone, rates), **checked}


def _alone(threads: int, pool: ThreadPoolExecutor) -> dict[str, float]:
    """Return prices with those of copies in wide, narrow and transposed rows, all threads busy."""
    side = 1 << 10
    pairs = [
        (np.ones((side, side), complex), np.empty((side, side), complex)) for _ in range(threads)
    ]

    def seconds(view: Callable[[Array], Array], into: Callable[[Array], Array]) -> float:
        """Seconds of a copy for each byte, the least of some."""

        def repeated(pair: tuple[Array, Array]) -> None:
            for _ in range(4):
                copy_array(into(pair[1]), view(pair[0]))

        taken = []
        for _ in range(4):
            started = time.perf_counter()
            list(pool.map(repeated, pairs))
            taken.append(time.perf_counter() - started)
        return min(taken) / 4 / view(pairs[0][0]).nbytes

    wide = seconds(lambda x: x, lambda x: x)
    narrow = seconds(lambda x: x[:, :4], lambda x: x[: side // 4].reshape(-1, 4)[:side])
    turned = seconds(lambda x: x, lambda x: x.T)  # as in most exchanges
    return {
        **PRICES,
        "copy": wide,
        "run": max(64 * (narrow - wide), PRICES["run"] / 10),
        "move": max(turned - wide, PRICES["move"] / 10),
    }


def fitted(
    runs: Sequence[Run],
    threads: int,
    alone: Mapping[str, float],
    rates: Mapping[tuple[str, str], float],
) -> dict[str, Any]:
    """Return the prices that explain the seconds of all runs best.

    Parameters
    ----------
    runs : sequence of Run
        What was measured.
    threads : int
        Tasks that ran at a time.
    alone : mapping of str to float
        Prices measured alone, or usual ones: those of `PRICES`.
    rates : mapping of (str, str) to float
        Flops per second of each library and dtype, measured alone.
    """
    own = [(key, name) for key in rates for name in ("flops", "large_flops")]
    seconds = np.array([max(run.seconds, 1e-9) for run in runs])
    rows = np.array(
        [
            [_price(run, name, threads) for name in alone]
            + [
                _price(run, name, threads) if (run.library, run.dtype) == key else 0.0
                for key, name in own
            ]
            for run in runs
        ]
    )
    usual = np.array([*alone.values(), *(1 / rates[key] for key, _ in own)])
    # In units of the usual prices, each of which is one more, weak observation.
    system = np.vstack([rows * usual / seconds[:, None], PRIOR * np.eye(len(usual))])
    wanted = np.concatenate([np.ones(len(runs)), np.full(len(usual), PRIOR)])
    prices = nnls(system, wanted)[0] * usual
    found: dict[str, Any] = dict(zip(alone, map(float, prices), strict=False))
    found["copy"] = 1 / max(found["copy"], 0.1 * alone["copy"])
    flops = {
        key: 1 / max(float(price), 0.1 / rates[key[0]])
        for key, price in zip(own, prices[len(alone) :], strict=True)
    }
    found["libraries"] = tuple(
        LibrarySpeeds(
            *key, flops[key, "flops"], flops[key, "large_flops"], get_library(key[0]).supports_out
        )
        for key in rates
    )
    return found


def _checked(elements: int, threads: int, kernel: str, repeat: int) -> dict[str, float]:
    """Return the speeds of checks, from what they add to a plane's transform."""
    plane = next(problems(elements, threads, True))
    runs = {
        mode: _run(plane, DTYPES[0], kernel, mode, max(3, repeat))
        for mode in ("none", "energy", "checksum")
    }
    plain = runs["none"].seconds
    nbytes = 2 * 16 * plane.shape[0] * plane.shape[1] / threads
    return {
        mode: nbytes / max(runs[mode].seconds - plain, 0.01 * plain)
        for mode in ("energy", "checksum")
    }
