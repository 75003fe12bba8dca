"""Prices of a CPU, fitted to whole transforms.

A forecast is linear in the prices of a profile (`planner.seconds`). Calibration runs a few dozen
small transforms of different shapes, chunks and FFT libraries. Non-negative least squares of the
relative errors gives the prices. Weak priors keep poorly determined prices near those of a common
machine and near separately measured FFT speeds. (Chen and Li, Proc. ICPADS, 2013, also calibrate by
whole runs.)
"""

import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np
from scipy.optimize import nnls

from dask_bigfft.front import plan
from dask_bigfft.kernels.copies import compile_at_once
from dask_bigfft.kernels.fastest import measured_rates
from dask_bigfft.kernels.libraries import get_library
from dask_bigfft.planner.profile import MOST, LibrarySpeeds, Profile
from dask_bigfft.tuning import Trial, timer_for

#: Complex dtypes to measure libraries in.
DTYPES = ("complex128", "complex64")

#: Prices of a profile in seconds on a common machine.
PRICES = {
    **{"copy": 2e-10, "run": 2e-8, "move": 1.5e-10, "start": 1e-3},
    **{"task": 1e-4, "tile": 3e-5, "shard": 1e-5, "exchange": 1e-3},
}

#: Weight of a prior relative to that of a run.
PRIOR = 0.25

#: Held while dask has other settings: such changes that overlap would not be undone.
_measuring = threading.Lock()

#: Seconds after which the remaining libraries run each problem only once.
ENOUGH = 12.0


class Problem(NamedTuple):
    """A small transform: its kind, shape, blocks along the first axis, and transformed axes."""

    kind: str
    shape: tuple[int, ...]
    blocks: int
    axes: tuple[int, ...]

    def array(self, dtype: str) -> da.Array:
        """Return the lazy input, in blocks along the first axis."""
        real = np.empty(0, dtype).real.dtype if self.kind == "rfftn" else np.dtype(dtype)
        chunks = (-(-self.shape[0] // self.blocks), *self.shape[1:])
        array: da.Array = da.ones(self.shape, chunks=chunks, dtype=real)
        return array


def problems(elements: int, threads: int, few: bool) -> list[Problem]:
    """Return problems with different costs: lines, planes, boxes, large and tiny blocks."""
    side = max(4, int(elements**0.5) // 4 * 4)
    cube, column = max(4, round(elements ** (1 / 3)) // 2 * 2), max(8, elements // 48)
    plane = (side, elements // side)
    found = [
        Problem("fftn", plane, 4 * threads, (1,)),
        Problem("fftn", plane, 2 * threads, (0, 1)),
        Problem("fftn", (elements // 1000 * 1000,), 8 * threads, (0,)),
        Problem("fftn", (cube, cube, cube), 4 * threads, (0, 1, 2)),
        Problem("fftn", (threads, side, elements // side // threads), threads, (1, 2)),
        # The others are for the first library alone.
        Problem("fftn", plane, min(16 * threads, side), (0, 1)),
        Problem("fftn", (elements,), 2 * threads, (0,)),
        Problem("fftn", (column, 48), 8 * threads, (0, 1)),
        Problem("fftn", (48, column), 4 * threads, (0,)),
        Problem("rfftn", (cube, cube, 2 * cube), 4 * threads, (0, 1, 2)),
        Problem("fftn", (256, 4), 256, (1,)),
        Problem("fftn", (64, 64), 32, (0, 1)),
        Problem("fftn", (4, 4), 1, (1,)),
    ]
    return found[:5] if few else found


def _run(problem: Problem, dtype: str, kernel: str, verify: str, repeat: int) -> Trial:
    """Time a transform, after one warm-up run."""
    keywords: Any = {"axes": problem.axes, "kernel": kernel, "device": "cpu", "verify": verify}
    found = plan(problem.array(dtype), problem.kind, **keywords)
    timer = timer_for(found)
    _, *taken = (timer(found) for _ in range(repeat + 1))
    return Trial(found, measured=tuple(taken))


def _price(run: Trial, library: tuple[str, str] | None, name: str, threads: int) -> float:
    """Return the forecast seconds of a run if one price or speed is 1 and all other costs are 0.

    The speeds of a library count in its own runs only.
    """
    kernel, dtype = run.plan.kernel, run.plan.spec.work_dtype.name
    if library not in (None, (kernel, dtype)):
        return 0.0
    fast = {"flops": MOST, "large_flops": MOST}
    free: dict[str, Any] = dict.fromkeys((*PRICES, "pair"), 0.0) | {"copy": MOST, "flops": MOST}
    (fast if name in fast else free)[name] = 1.0
    out = get_library(kernel).supports_out
    free["libraries"] = (LibrarySpeeds(kernel, dtype, supports_out=out, **fast),)
    return run.plan.forecast(Profile(**free), threads=threads).seconds


def thread_prices(threads: int, nbytes: int, repeat: int, kernels: Sequence[str]) -> dict[str, Any]:
    """Measure transforms, and return the fields of a `Profile` for CPU threads: prices and speeds.

    Parameters
    ----------
    threads : int
        Number of concurrent tasks.
    nbytes : int
        Bytes of a typical problem.
    repeat : int
        Number of timed runs.
    kernels : sequence of str
        FFT libraries, the most important one first.
    """
    elements, began, runs = max(1 << 10, nbytes // 16), time.perf_counter(), []
    rates: dict[tuple[str, str], float] = {}
    compile_at_once()
    pool = ThreadPoolExecutor(threads)  # not shut down, as tasks of other threads may use it
    with _measuring, dask.config.set(scheduler="threads", pool=pool):
        for dtype in DTYPES:
            names = [name for name in kernels if np.dtype(dtype) in get_library(name).dtypes]
            for kernel in names:
                late = time.perf_counter() - began > ENOUGH
                few = dtype != DTYPES[0] or kernel != kernels[0]
                runs += [
                    _run(problem, dtype, kernel, "none", 1 if late else repeat)
                    for problem in problems(elements, threads, few)
                ]
            rates |= {(name, dtype): r for name, r in measured_rates(names, dtype).items()}
        checked = _checked(elements, threads, kernels[0], repeat)
    return {**fitted(runs, threads, rates), **checked}


def fitted(
    runs: Sequence[Trial], threads: int, rates: Mapping[tuple[str, str], float]
) -> dict[str, Any]:
    """Return the prices that fit the seconds of all runs best.

    Parameters
    ----------
    runs : sequence of Trial
        Measured runs.
    threads : int
        Number of concurrent tasks.
    rates : mapping of (str, str) to float
        Separately measured flops per second of each library and dtype.
    """
    own = [(key, name) for key in rates for name in ("flops", "large_flops")]
    columns = [*((None, name) for name in PRICES), *own]
    seconds = np.array([max(run.seconds, 1e-9) for run in runs])
    rows = np.array([[_price(run, *column, threads) for column in columns] for run in runs])
    usual = np.array([*PRICES.values(), *(1 / rates[key] for key, _ in own)])
    # In units of the priors, each of which is an additional, weak observation.
    system = np.vstack([rows * usual / seconds[:, None], PRIOR * np.eye(len(usual))])
    wanted = np.repeat([1.0, PRIOR], [len(runs), len(usual)])
    ratios = nnls(system, wanted)[0]
    prices = dict(zip(columns, map(float, ratios * usual), strict=True))
    speeds = dict(zip(columns, map(float, 1 / (np.maximum(ratios, 0.1) * usual)), strict=True))
    libraries = tuple(
        LibrarySpeeds(
            *key, speeds[key, "flops"], speeds[key, "large_flops"], get_library(key[0]).supports_out
        )
        for key in rates
    )
    found = {name: prices[None, name] for name in PRICES}
    return {**found, "copy": speeds[None, "copy"], "libraries": libraries}


def _checked(elements: int, threads: int, kernel: str, repeat: int) -> dict[str, float]:
    """Return the speeds of checks, from the time that they add to a transform of a plane."""
    plane = problems(elements, threads, True)[0]
    seconds = {
        mode: _run(plane, DTYPES[0], kernel, mode, max(3, repeat)).seconds
        for mode in ("none", "energy", "checksum")
    }
    plain, nbytes = seconds.pop("none"), 2 * 16 * plane.shape[0] * plane.shape[1] / threads
    return {mode: nbytes / max(found - plain, 0.01 * plain) for mode, found in seconds.items()}
