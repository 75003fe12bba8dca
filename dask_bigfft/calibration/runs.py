"""Whole transforms, run by dask: what they take beside their blocks, and what blocks take in them.

Parts are measured one by one. In a graph tasks are put in order before the first one runs, the next
task is handed to a thread while others are at work, and threads wait for the last block of a round:
what lies between the blocks of a few transforms of several sizes of blocks tells how long
(`timelines`), and what threads take for all their blocks tells how much longer Python takes while
all of them are at work. (Chen and Li, Proc. ICPADS, 2013, calibrate by whole runs, too, but by
their totals.)

Imports `planner`, `transforms`, `planning` and this room.
"""

import itertools
import math
import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import dask
import dask.array as da
import numpy as np
from scipy.optimize import nnls

from dask_bigfft import config
from dask_bigfft.calibration.timelines import Span, Timeline, taken
from dask_bigfft.planner.cost import forecast_rounds, model_of
from dask_bigfft.planner.interpreter import block_seconds
from dask_bigfft.planner.machine import RoundForecast
from dask_bigfft.planner.plan import Machine, Plan
from dask_bigfft.planner.profile import Profile
from dask_bigfft.planner.request import Request
from dask_bigfft.planner.search import find_plan
from dask_bigfft.planning.trials import ones
from dask_bigfft.transforms.spec import transform_spec

__all__ = ["between_blocks"]

#: Shapes of about 2^21 numbers, and into how many chunks their first axes are cut for two threads:
#: few, so that nearly all is work, and many, so that Python counts.
SHAPES = (((1200, 1764), 4), ((1200, 1764), 40), ((2_000_000,), 16), ((120, 130, 128), 12))

#: Bytes of these.
USUAL_NBYTES = 32 << 20

#: What factors may be: of Python in company, and of handing out a task.
ALLOWED = ((1.0, 40.0), (0.5, 40.0))

#: Where one looks for something better than what is known, and how near to it one ends.
AROUND, FINE = tuple(itertools.product((-2, -1, 0, 1, 2), repeat=2)), 1.0005

#: Seconds for a task that are reckoned with at least, so that waiting for one can be told in them.
TASK = 2e-5

#: Runs of each transform that count; fewer, but `FEWEST`, where the time is over.
RUNS, FEWEST = 9, 2


class Factors(NamedTuple):
    """How many times as long as by themselves some things take in a graph: see `Profile`."""

    company: float
    waiting: float


@dataclass(frozen=True)
class Seen:
    """A round of some runs of a plan, medians of all of them, beside what was forecast.

    Parameters
    ----------
    forecast : RoundForecast
        Of it.
    span : Span
        What it took.
    local : bool
        Whether its blocks wait for no others.
    """

    forecast: RoundForecast
    span: Span
    local: bool

    @property
    def even(self) -> bool:
        """Whether all lanes have as many blocks, so that they end together but for chance."""
        return self.span.lanes > 0 and self.span.blocks % self.span.lanes == 0

    @property
    def lane(self) -> float:
        """Seconds of a lane for its blocks, and between them."""
        return (self.span.busy + self.span.idle) / self.span.lanes

    def expected(self, company: float, task: float) -> float:
        """These by the model: Python in company so slow, and handing out a task."""
        blocks, lanes, found = self.span.blocks, self.span.lanes, self.forecast
        free = max(0.0, self.span.copies + self.span.ffts - found.calls) / blocks
        python = (found.handling + found.calls) / blocks + task
        return blocks / lanes * block_seconds(lanes, free, python, company)


def _plans(nbytes: int, kernels: Sequence[str], on: Machine) -> Iterator[Plan]:
    for shape, few in SHAPES:
        ways = max(few, few * on.threads // 2)
        first = max(2 * ways, round(shape[0] * nbytes / USUAL_NBYTES))
        chunk = -(-first // ways)
        chunks = (*da.core.normalize_chunks(chunk, (first,)), *((n,) for n in shape[1:]))
        spec = transform_spec("fftn", (first, *shape[1:]), np.dtype("c16"))
        for kernel in kernels:
            request = Request(chunks, kernel=kernel, device="cpu")
            yield find_plan(spec, request, on)


def _timelines(plans: Sequence[Plan], until: float) -> list[list[Timeline]]:
    """Runs of each plan on ones, warm, of all plans in turn."""
    arrays = {plan.source: ones(plan) for plan in plans}
    found: list[list[Timeline]] = [[] for _ in plans]
    with dask.config.set({"bigfft.exchange.carrier": "shared"}):
        for number in range(RUNS + 1):
            if number > FEWEST and time.perf_counter() > until:
                break
            for plan, runs in zip(plans, found, strict=True):
                runs.append(taken(arrays[plan.source], plan))
    return [runs[1:] for runs in found]


def _median(spans: Sequence[Span]) -> Span:
    """Medians of all that a round took in some runs."""
    names = ("before", "idle", "tail", "busy", "copies", "ffts")
    found: dict[str, Any] = {
        name: statistics.median(getattr(span, name) for span in spans) for name in names}
    lanes = round(statistics.median(span.lanes for span in spans))
    return replace(spans[0], lanes=max(1, lanes), **found)


def _seen(plan: Plan, runs: Sequence[Timeline]) -> list[Seen]:
    """The rounds of a plan, by their numbers, as far as they have blocks."""
    rounds = {found.index: found for found in forecast_rounds(plan, model_of(plan))}
    by_number: dict[int, list[Span]] = {}
    for run in runs:
        for span in run.spans:
            by_number.setdefault(span.number, []).append(span)
    return [
        Seen(rounds[number], _median(spans), plan.exchanges[number - 1].local)
        for number, spans in sorted(by_number.items()) if number in rounds
    ]


def _tasks(plan: Plan) -> int:
    """Tasks of a graph that the model puts into order."""
    shapes = [exchange.shape for exchange in plan.exchanges]
    return sum(shape.blocks_out + (0 if shape.local else shape.groups) for shape in shapes)


def _line(points: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Where a straight line through points begins, and how it rises, both at least 0."""
    sizes, values = (np.array(row) for row in zip(*points, strict=True))
    (first, each), _ = nnls(np.stack([np.ones(len(sizes)), sizes], axis=1), values)
    return float(first), float(each)


def _factors(seen: Sequence[Seen], task: float) -> Factors:
    """How many times as long Python in company, and handing out a task take in a graph.

    So that what lanes take is what the model says, in the sense of least squares of how far off it
    is in each round.
    """
    known = [
        one for one in seen
        if one.even and one.span.lanes > 1 and one.span.copies + one.span.ffts > 0]
    best, step = Factors(1.0, 1.0), 2.0
    if not known:
        return best

    def off(found: Factors) -> float:
        ratios = (one.expected(found.company, found.waiting * task) / one.lane for one in known)
        return sum(math.log(ratio) ** 2 for ratio in ratios)

    while step > FINE:  # it has no derivative
        around = [
            Factors(*(min(most, max(least, value * step**power))
                      for value, power, (least, most) in zip(best, powers, ALLOWED, strict=True)))
            for powers in AROUND]
        found = min([best, *around], key=off)
        step, best = (math.sqrt(step), best) if found == best else (step, found)
    return best


def between_blocks(
    profile: Profile, nbytes: int, kernels: Sequence[str], until: float = math.inf
) -> dict[str, float]:
    """Return what graphs take beside their blocks, by names of a `Profile`'s fields.

    Parameters
    ----------
    profile : Profile
        Of this machine, whose parts are measured.
    nbytes : int
        Bytes of a transform.
    kernels : sequence of str
        FFT libraries.
    until : float
        When runs should end, by `time.perf_counter`.
    """
    together = config.get("bigfft.exchange.in-place")
    alone = replace(profile, company=1.0, waiting=1.0)
    on = Machine(None, profile.threads, 1, profile=alone, shared=together)
    with dask.config.set(scheduler="threads", num_workers=profile.threads):
        plans = list(_plans(nbytes, kernels, on))
        timelines = _timelines(plans, until)
    seen = [_seen(plan, runs) for plan, runs in zip(plans, timelines, strict=True)]
    start, planned = _line(
        (_tasks(plan), rounds[0].span.before + statistics.median(run.after for run in runs))
        for plan, runs, rounds in zip(plans, timelines, seen, strict=True))
    task = max(profile.task - planned, TASK)
    flat = [one for rounds in seen for one in rounds]
    tail, uneven = _line([(0.0, 0.0), *(
        (one.span.busy / one.span.blocks, one.span.tail / one.span.lanes)
        for one in flat if one.even and one.span.lanes > 1)])
    waits = [one.span.before for rounds in seen for one in rounds[1:] if not one.local]
    return {
        "start": start + tail, "planned": planned, "task": task,
        "exchange": statistics.median(waits or [profile.exchange]) + tail,
        "uneven": min(1.0, uneven),
        **_factors(flat, task)._asdict(),
    }
