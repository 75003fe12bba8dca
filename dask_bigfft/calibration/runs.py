"""Whole transforms, run by dask: what they take beyond the sum of their parts.

Parts are measured one by one. In a graph threads wait for each other, for the interpreter and for
memory. A few transforms of several sizes of blocks tell how many times as long then takes what
threads do without the interpreter, and what Python does (Chen and Li, Proc. ICPADS, 2013, calibrate
by whole runs).

Imports `graph`, `planner`, `transforms` and SciPy.
"""

import statistics
import time
from collections.abc import Iterator, Sequence
from typing import Any

import dask
import dask.array as da
import numpy as np
from scipy.optimize import lsq_linear

from dask_bigfft import config
from dask_bigfft.graph.layer import transformed_array
from dask_bigfft.planner.plan import Machine, Plan
from dask_bigfft.planner.profile import Profile
from dask_bigfft.planner.request import Request
from dask_bigfft.planner.search import find_plan
from dask_bigfft.transforms.spec import transform_spec

__all__ = ["company"]

#: Shapes of about 2^21 numbers, and into how many chunks their first axes are cut.
SHAPES = (((1200, 1764), 4), ((1200, 1764), 40), ((2_000_000,), 16), ((120, 130, 128), 12))

#: How many times as long parts may take in company.
LEAST, MOST = 0.7, 4.0

#: Part of the measured seconds by which the factors are held to be 1.
FIRM = 0.3


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


def _seconds(plan: Plan, repeat: int) -> float:
    """Seconds of a plan on ones, warm."""
    chunks = tuple(axis.groups[0].chunks for axis in plan.source.axes)
    x: Any = da.ones(plan.spec.shape, chunks=chunks, dtype=complex).persist()
    found = []
    for _ in range(repeat + 2):
        result: Any = transformed_array(x, plan, "shared")
        started = time.perf_counter()
        blocks = result.persist()
        found.append(time.perf_counter() - started)
        del blocks
    return statistics.median(found[1:])


def company(
    profile: Profile, nbytes: int, repeat: int, kernels: Sequence[str]
) -> tuple[float, float]:
    """Return how many times as long parts take in a graph: without the interpreter, and with it.

    Parameters
    ----------
    profile : Profile
        Of this machine, whose parts are measured.
    nbytes : int
        Bytes of a transform.
    repeat : int
        Times that each is run, beside two.
    kernels : sequence of str
        FFT libraries.
    """
    together = config.get("bigfft.exchange.in-place")
    on = Machine(None, profile.threads, 1, profile=profile, shared=together)
    rows, ends = [], []
    with dask.config.set(scheduler="threads", num_workers=profile.threads):
        for plan in _plans(nbytes, kernels, on):
            lanes = [min(profile.threads, found.blocks) for found in plan.forecast.rounds]
            pairs = list(zip(plan.forecast.rounds, lanes, strict=True))
            work = sum((found.gather + found.fft) / n for found, n in pairs)
            python = sum((found.handling + found.blocks * profile.task) / n for found, n in pairs)
            taken = _seconds(plan, repeat)
            rows.append([work / taken, python / taken])
            ends.append(1 - min(0.5, profile.start / taken))
    # What is not known well stays near 1.
    rows += [[FIRM, 0.0], [0.0, FIRM]]
    ends += [FIRM, FIRM]
    found = lsq_linear(np.array(rows), np.array(ends), (LEAST, MOST)).x
    return float(found[0]), float(found[1])
