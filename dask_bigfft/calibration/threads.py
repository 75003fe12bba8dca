"""Prices of a CPU, fitted to whole transforms.

A forecast is linear in the prices of a profile (`planner.seconds`). Calibration runs a few dozen
small transforms of different shapes, chunks and FFT libraries. Non-negative least squares of the
relative errors gives the prices. Weak priors keep poorly determined prices near those of a common
machine and near separately measured FFT speeds. (Chen and Li, Proc. ICPADS, 2013, also calibrate by
whole runs.)
"""

import math
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, NamedTuple

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from dask_bigfft.kernels.copies import compile_at_once
from dask_bigfft.kernels.fastest import measured_rates
from dask_bigfft.kernels.libraries import get_library
from dask_bigfft.machine.tuner import Trial, timer_for
from dask_bigfft.planner.profile import MOST, LibrarySpeeds, Profile
from dask_bigfft.plans import plan

#: Complex dtypes to measure libraries in.
DTYPES = ("complex128", "complex64")

#: Prices of a profile in seconds on a common machine.
PRICES = {
    "copy": 2e-10,
    "run": 2e-8,
    "move": 1.5e-10,
    "start": 1e-3,
    "task": 1e-4,
    "tile": 3e-5,
    "shard": 1e-5,
    "exchange": 1e-3,
}

#: Weight of a prior relative to that of a run.
PRIOR = 0.25

#: Held while dask has other settings: such changes that overlap would not be undone.
_measuring = threading.Lock()

#: Seconds after which the remaining libraries run each problem only once.
LATE_SECONDS = 12.0

#: Number of problems for other libraries than the most important one, and for all of them in
#: complex64.
FEW_PROBLEMS = 5

#: Name of a library and a dtype.
Library = tuple[str, str]

#: A price, or a speed of a library.
Column = tuple[Library | None, str]

#: Checks of a transform.
Verify = Literal["none", "energy", "checksum"]


class Problem(NamedTuple):
    """A small transform: its kind, shape, blocks along the first axis, and transformed axes."""

    kind: str
    shape: tuple[int, ...]
    blocks: int
    axes: tuple[int, ...]

    def array(self, dtype: str) -> da.Array:
        """Return the lazy input, in blocks along the first axis."""
        value_dtype = np.dtype(dtype)
        if self.kind == "rfftn":
            value_dtype = np.empty(0, dtype).real.dtype
        first, *others = self.shape
        rows = -(-first // self.blocks)
        array: da.Array = da.ones(
            self.shape,
            chunks=(rows, *others),
            dtype=value_dtype,
        )
        return array


def problems(
    elements: int,
    threads: int,
    few: bool,
) -> list[Problem]:
    """Return problems with different costs: lines, planes, boxes, large and tiny blocks.

    Parameters
    ----------
    elements : int
        Values of the large problems, about: 1,024 at the least.
    threads : int
        Threads of the machine, which the numbers of blocks follow.
    few : bool
        True for the first `FEW_PROBLEMS` alone: those of all libraries but the first, and of
        complex64.

    Examples
    --------
    >>> min(min(problem.shape) for problem in problems(1024, 64, few=True))
    2
    """
    side = max(4, int(elements**0.5) // 4 * 4)
    cube = max(4, round(elements ** (1 / 3)) // 2 * 2)
    column = max(8, elements // 48)
    plane = (side, elements // side)
    all_problems = [
        Problem("fftn", plane, 4 * threads, (1,)),
        Problem("fftn", plane, 2 * threads, (0, 1)),
        Problem("fftn", (elements // 1000 * 1000,), 8 * threads, (0,)),
        Problem("fftn", (cube, cube, cube), 4 * threads, (0, 1, 2)),
        Problem("fftn", (threads, side, max(2, elements // side // threads)), threads, (1, 2)),
        # The others are for the first library alone, in complex128.
        Problem("fftn", plane, min(16 * threads, side), (0, 1)),
        Problem("fftn", (elements,), 2 * threads, (0,)),
        Problem("fftn", (column, 48), 8 * threads, (0, 1)),
        Problem("fftn", (48, column), 4 * threads, (0,)),
        Problem("rfftn", (cube, cube, 2 * cube), 4 * threads, (0, 1, 2)),
        Problem("fftn", (256, 4), 256, (1,)),
        Problem("fftn", (64, 64), 32, (0, 1)),
        Problem("fftn", (4, 4), 1, (1,)),
    ]
    return all_problems[:FEW_PROBLEMS] if few else all_problems


def _run(
    problem: Problem,
    dtype: str,
    kernel: str,
    verify: Verify,
    repeat: int,
) -> Trial:
    """Time a transform, after one warm-up run."""
    chosen_plan = plan(
        problem.array(dtype),
        problem.kind,
        axes=problem.axes,
        kernel=kernel,
        device="cpu",
        verify=verify,
    )
    timer = timer_for(chosen_plan)
    timer(chosen_plan)
    seconds = tuple(timer(chosen_plan) for _ in range(repeat))
    return Trial(chosen_plan, measured=seconds)


def _price(
    run: Trial,
    library: Library | None,
    name: str,
    threads: int,
) -> float:
    """Return the forecast seconds of a run if one price or speed is 1 and all other costs are 0.

    The speeds of a library count in its own runs only.
    """
    kernel = run.plan.kernel
    dtype = run.plan.spec.work_dtype.name
    if library not in (None, (kernel, dtype)):
        return 0.0
    prices: dict[str, Any] = dict.fromkeys((*PRICES, "pair"), 0.0)
    prices["copy"] = MOST  # a speed
    prices["flops"] = MOST
    library_speeds = {"flops": MOST, "large_flops": MOST}
    if name in library_speeds:
        library_speeds[name] = 1.0
    else:
        prices[name] = 1.0
    speeds = LibrarySpeeds(
        kernel,
        dtype,
        supports_out=get_library(kernel).supports_out,
        **library_speeds,
    )
    profile = Profile(libraries=(speeds,), **prices)
    return run.plan.forecast(profile, threads=threads).seconds


def thread_prices(
    threads: int,
    nbytes: int,
    repeat: int,
    kernels: Sequence[str],
) -> dict[str, Any]:
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
    elements = max(1 << 10, nbytes // 16)
    began = time.perf_counter()
    runs: list[Trial] = []
    rates: dict[Library, float] = {}
    compile_at_once()
    # dask's settings are global, so other threads may have begun to use the pool when it is no
    # longer the setting: it is not shut down.
    pool = ThreadPoolExecutor(threads)
    with _measuring, dask.config.set(scheduler="threads", pool=pool):
        for dtype in DTYPES:
            names = [name for name in kernels if np.dtype(dtype) in get_library(name).dtypes]
            for kernel in names:
                is_late = time.perf_counter() - began > LATE_SECONDS
                times = 1 if is_late else repeat
                few = dtype != DTYPES[0] or kernel != kernels[0]
                for problem in problems(elements, threads, few):
                    run = _run(
                        problem,
                        dtype=dtype,
                        kernel=kernel,
                        verify="none",
                        repeat=times,
                    )
                    runs.append(run)
            for name, rate in measured_rates(names, dtype).items():
                rates[name, dtype] = rate
        check_speeds = _check_speeds(elements, threads, kernels[0], repeat)
    return fitted(runs, threads, rates) | check_speeds


def fitted(
    runs: Sequence[Trial],
    threads: int,
    rates: Mapping[Library, float],
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
    columns: list[Column] = [(None, name) for name in PRICES]
    usual_prices = list(PRICES.values())
    for library, rate in rates.items():
        columns += [(library, "flops"), (library, "large_flops")]
        usual_prices += [1 / rate, 1 / rate]
    ratios = _fitted_ratios(
        runs,
        threads=threads,
        columns=columns,
        usual_prices=np.array(usual_prices),
    )
    prices: dict[Column, float] = {}
    speeds: dict[Column, float] = {}
    for column, usual, ratio in zip(columns, usual_prices, ratios, strict=True):
        prices[column] = float(ratio * usual)
        speeds[column] = float(1 / (max(ratio, 0.1) * usual))
    fields: dict[str, Any] = {name: prices[None, name] for name in PRICES}
    fields["copy"] = speeds[None, "copy"]
    libraries = []
    for library in rates:
        name, dtype = library
        library_speeds = LibrarySpeeds(
            name,
            dtype,
            flops=speeds[library, "flops"],
            large_flops=speeds[library, "large_flops"],
            supports_out=get_library(name).supports_out,
        )
        libraries.append(library_speeds)
    fields["libraries"] = tuple(libraries)
    return fields


def _fitted_ratios(
    runs: Sequence[Trial],
    threads: int,
    columns: Sequence[Column],
    usual_prices: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """Return the fitted prices of some columns, divided by their usual ones."""
    seconds = np.empty((len(runs), len(columns)))  # of each run per unit of each price
    for number, run in enumerate(runs):
        for place, (library, name) in enumerate(columns):
            seconds[number, place] = _price(run, library, name, threads)
    measured_seconds = np.array([max(run.seconds, 1e-9) for run in runs])
    # In units of the usual prices and of the measured seconds, the sum of a row is to be 1.
    observations = seconds * usual_prices / measured_seconds[:, None]
    # Each price is to be the usual one, which is an additional, weak observation.
    priors = PRIOR * np.eye(len(columns))
    matrix = np.vstack([observations, priors])
    expected = np.repeat([1.0, PRIOR], [len(runs), len(columns)])
    ratios, _ = nnls(matrix, expected)
    return np.asarray(ratios)


def _check_speeds(
    elements: int,
    threads: int,
    kernel: str,
    repeat: int,
) -> dict[str, float]:
    """Return the speeds of checks, from the time that they add to a transform of a plane."""
    plane = problems(elements, threads, few=True)[0]
    thread_elements = math.prod(plane.shape) / threads
    nbytes = 2 * 16 * thread_elements  # read and written

    def seconds(verify: Verify) -> float:
        run = _run(
            plane,
            dtype=DTYPES[0],
            kernel=kernel,
            verify=verify,
            repeat=max(3, repeat),
        )
        return run.seconds

    plain_seconds = seconds("none")

    def speed(verify: Verify) -> float:
        added_seconds = seconds(verify) - plain_seconds
        return nbytes / max(added_seconds, 0.01 * plain_seconds)

    return {"energy": speed("energy"), "checksum": speed("checksum")}
