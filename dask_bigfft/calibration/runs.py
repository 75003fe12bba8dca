"""Whole transforms, run by dask: what they take beyond the sum of their parts.

Parts are measured one by one. In a graph threads wait for each other, for the interpreter and for
memory: least in FFTs, which are few calls of a library, most where they copy, tile by tile, and
where tasks are handed out. A few transforms of several sizes of blocks tell how many times as long
these then take, by the very model that makes forecasts (Chen and Li, Proc. ICPADS, 2013, calibrate
by whole runs).

Imports `graph`, `planner`, `transforms`, `tuning` and SciPy.
"""

import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from dask_bigfft import config
from dask_bigfft.planner.cost import forecast_rounds, model_of
from dask_bigfft.planner.plan import Machine, Plan
from dask_bigfft.planner.profile import Profile
from dask_bigfft.planner.request import Request
from dask_bigfft.planner.search import find_plan
from dask_bigfft.transforms.spec import transform_spec
from dask_bigfft.tuning import ones, timer_on

__all__ = ["company"]

#: Shapes of about 2^21 numbers, and into how many chunks their first axes are cut: few, so that
#: nearly all is work, and many, so that Python counts.
SHAPES = (((1200, 1764), 4), ((1200, 1764), 40), ((2_000_000,), 16), ((120, 130, 128), 12))

#: How many times as long parts may take in company.
LEAST, MOST = 0.5, 6.0

#: How firmly the logarithms of the factors are held to 0, and to each other, in units of that of an
#: error of a forecast; and the error from which on one counts less than it would.
FIRM, ALIKE, OFF = 0.15, 0.1, 0.1

#: Runs of each transform that count, at least.
RUNS = 6


def _plans(nbytes: int, kernels: Sequence[str], on: Machine) -> Iterator[Plan]:
    few = min(1.0, nbytes / (32 << 20))
    for shape, ways in SHAPES:
        first = max(2 * ways, round(shape[0] * few))
        chunk = -(-first // ways)
        chunks = (*da.core.normalize_chunks(chunk, (first,)), *((n,) for n in shape[1:]))
        spec = transform_spec("fftn", (first, *shape[1:]), np.dtype("c16"))
        for kernel in kernels:
            request = Request(chunks, kernel=kernel, device="cpu")
            yield find_plan(spec, request, on)


def _seconds(plans: Sequence[Plan], repeat: int) -> list[float]:
    """Seconds of each plan on ones, warm: medians of runs of all plans in turn."""
    arrays = {plan.source: ones(plan) for plan in plans}
    found: list[list[float]] = [[] for _ in plans]
    with dask.config.set({"bigfft.exchange.carrier": "shared"}):
        for _ in range(max(RUNS, repeat) + 1):
            for plan, times in zip(plans, found, strict=True):
                times.append(timer_on(arrays[plan.source])(plan))
    return [statistics.median(times[1:]) for times in found]


def _forecast(plan: Plan, profile: Profile) -> float:
    """Seconds of a plan by the model, on a machine with another profile."""
    model = replace(model_of(plan), machine=replace(plan.machine, profile=profile))
    return profile.start + sum(found.seconds for found in forecast_rounds(plan, model))


def company(
    profile: Profile, nbytes: int, repeat: int, kernels: Sequence[str]
) -> tuple[float, float]:
    """Return how many times as long copies take in a graph, and handing out tasks.

    They are chosen so that the model is right for some transforms on the whole; one that it is
    wrong about for a reason of its own counts little. Both come of the same waiting, so they are
    alike as far as these transforms allow, and near 1 where they do not tell.

    Parameters
    ----------
    profile : Profile
        Of this machine, whose parts are measured.
    nbytes : int
        Bytes of a transform.
    repeat : int
        Times that each is run, if more than a few.
    kernels : sequence of str
        FFT libraries.
    """
    together = config.get("bigfft.exchange.in-place")
    alone = replace(profile, company=1.0, waiting=1.0)
    on = Machine(None, profile.threads, 1, profile=alone, shared=together)
    with dask.config.set(scheduler="threads", num_workers=profile.threads):
        plans = list(_plans(nbytes, kernels, on))
        taken = _seconds(plans, repeat)

    def errors(factors: npt.NDArray[np.float64]) -> list[float]:
        free, python = map(float, np.exp(factors))
        held = replace(profile, company=free, waiting=python)
        off = [math.log(_forecast(plan, held) / t) for plan, t in zip(plans, taken, strict=True)]
        return [*off, *(FIRM * factors), ALIKE * (factors[0] - factors[1])]

    limits = math.log(LEAST), math.log(MOST)
    found = least_squares(errors, (0.0, 0.0), bounds=limits, loss="soft_l1", f_scale=OFF).x
    free, python = map(float, np.exp(found))
    return free, python
