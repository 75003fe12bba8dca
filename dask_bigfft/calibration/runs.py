"""Whole transforms, run by dask: what they take beside their blocks, and what blocks take in them.

Parts are measured one by one. In a graph tasks are put in order before the first one runs, the next
task is handed to a thread while others are at work, and threads wait for the last block of a round:
what lies between the blocks of a few transforms of several sizes of blocks tells how long
(`timelines`), and the blocks themselves whether they take as long as by themselves. (Chen and Li,
Proc. ICPADS, 2013, calibrate by whole runs, too, but by their totals.)

Imports `kernels`, `planner`, `transforms`, `planning` and this room.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dask
import dask.array as da
import numpy as np
from scipy.optimize import nnls

from dask_bigfft import config
from dask_bigfft.calibration.timelines import Span, Timeline, taken
from dask_bigfft.kernels.copies import compile_at_once
from dask_bigfft.planner.cost import forecast_rounds, joints_in, model_of
from dask_bigfft.planner.interpreter import block_seconds
from dask_bigfft.planner.machine import RoundForecast
from dask_bigfft.planner.plan import Machine, Plan
from dask_bigfft.planner.profile import Profile
from dask_bigfft.planner.request import Request
from dask_bigfft.planner.search import find_plan
from dask_bigfft.planner.thread_seconds import adrift
from dask_bigfft.planning.trials import ones
from dask_bigfft.transforms.spec import transform_spec

__all__ = ["between_blocks"]


#: Shapes of about 2^21 numbers, and into how many chunks their first axes are cut for two threads:
#: few, so that nearly all is work, and many, so that Python counts. And a larger one, of a block
#: for each thread: how much longer some take than others, and what all take of memory.
SHAPES = (((1200, 1764), 4), ((1200, 1764), 40), ((2_000_000,), 16), ((120, 130, 128), 12),
          ((2400, 3528), 2))

#: Bytes of these, and chunks that are not exceeded, or one for each thread: what blocks exchange
#: grows with their square, and 32 threads take a second for 600 of them, nearly all of it Python's.
USUAL_NBYTES, MOST_CHUNKS = 32 << 20, 160

#: How many times as long parts may take in a graph as alone, at least and at most, and how many
#: times as long it may take until the next task is handed out.
LEAST, MOST, LONGEST_WAIT = 0.5, 6.0, 12.0

#: Seconds for a task that are reckoned with at least, so that waiting for one can be told in them.
TASK = 2e-5

#: Part of what they work that lanes are without a block, at most, where their tails are looked at.
IDLE = 0.3

#: How far off a round may be, by its logarithm, to count in full: others were held up.
FAR = 0.3

#: Runs of each transform that count, at least; fewer, but `FEWEST`, where there is no time left.
RUNS, FEWEST = 9, 3


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
    slack : float
        As a profile has it.
    """

    forecast: RoundForecast
    span: Span
    local: bool
    slack: float = 1.0

    @property
    def copies(self) -> float:
        """Seconds in which threads had a processor for copies; of the clock where nobody knows."""
        return self.span.worked[1] or self.span.copies

    @property
    def ffts(self) -> float:
        """The same of FFTs."""
        return self.span.worked[2] or self.span.ffts

    @property
    def even(self) -> bool:
        """Whether all lanes have as many blocks, so that they end together but for chance."""
        return self.span.lanes > 0 and self.span.blocks % self.span.lanes == 0

    @property
    def measured(self) -> float:
        """Seconds of a lane for its blocks, and what it waits for between them."""
        return (self.span.busy + self.span.idle) / self.span.lanes

    def lane(self, first: float, later: float) -> float:
        """Seconds of a lane for its blocks where Python takes so long for each, by the model.

        For the first one, and for those after it. Threads have a processor for copies and FFTs for
        as long as they had.
        """
        blocks, lanes = self.span.blocks, self.span.lanes
        handled = self.forecast.handling / blocks
        free = self.slack * (self.copies + self.ffts) / blocks
        woken = self.forecast.woken / blocks
        begun, other = (
            block_seconds(lanes, free, handled + python, woken) for python in (first, later))
        return begun + (blocks / lanes - 1) * other


def _plans(nbytes: int, kernels: Sequence[str], on: Machine) -> Iterator[Plan]:
    for shape, few in SHAPES:
        lanes = min(few * on.threads // 2, max(1, MOST_CHUNKS // on.threads) * on.threads)
        ways = max(few, lanes)
        first = max(2 * ways, round(shape[0] * nbytes / USUAL_NBYTES))
        chunk = -(-first // ways)
        chunks = (*da.core.normalize_chunks(chunk, (first,)), *((n,) for n in shape[1:]))
        spec = transform_spec("fftn", (first, *shape[1:]), np.dtype("c16"))
        for kernel in kernels:
            request = Request(chunks, kernel=kernel, device="cpu")
            yield find_plan(spec, request, on)


def _timelines(
    plans: Sequence[Plan], repeat: int, until: float = math.inf
) -> list[list[Timeline]]:
    """Runs of each plan on ones, warm, of all plans in turn."""
    arrays = {plan.source: ones(plan) for plan in plans}
    found: list[list[Timeline]] = [[] for _ in plans]
    compile_at_once()
    with dask.config.set({"bigfft.exchange.carrier": "shared"}):
        for number in range(max(RUNS, repeat) + 1):
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
    blocks, copies, ffts = map(statistics.median, zip(*(one.worked for one in spans), strict=True))
    return replace(spans[0], lanes=max(1, lanes), worked=(blocks, copies, ffts), **found)


def _seen(plan: Plan, runs: Sequence[Timeline]) -> list[Seen]:
    """The rounds of a plan, by their numbers, as far as they have blocks."""
    rounds = {found.index: found for found in forecast_rounds(plan, model_of(plan))}
    by_number: dict[int, list[Span]] = {}
    for run in runs:
        for span in run.spans:
            by_number.setdefault(span.number, []).append(span)
    profile = plan.machine.profile
    return [
        Seen(rounds[number], _median(spans), plan.exchanges[number - 1].local, profile.slack)
        for number, spans in sorted(by_number.items()) if number in rounds
    ]


def _tasks(plan: Plan) -> int:
    """Tasks of a graph that the model puts into order."""
    together = joints_in(plan).exchanges
    shapes = [
        exchange.shape for i, exchange in enumerate(plan.exchanges)
        if i < len(plan.rounds) or together[i] is None]
    return sum(shape.blocks_out + (0 if shape.local else shape.groups) for shape in shapes)


def _line(points: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Where a straight line through points begins, and how it rises, both at least 0."""
    sizes, values = (np.array(row) for row in zip(*points, strict=True))
    (first, each), _ = nnls(np.stack([np.ones(len(sizes)), sizes], axis=1), values)
    return float(first), float(each)


def _tails(spans: Sequence[Span]) -> tuple[float, float]:
    """Seconds that a lane waits for the last one, and what part of its only block besides.

    Lanes begin one after the other as tasks are handed out, and some blocks take longer; after
    several blocks it is by chance how far apart lanes are. Where they have been without a block
    for long all the time, they are so at the end, which says nothing.
    """
    side_by_side = [span for span in spans if span.lanes > 1]
    known = [span for span in side_by_side if span.idle <= IDLE * span.busy] or side_by_side
    points = []
    for span in known:
        block, one = span.busy / span.blocks, span.blocks <= span.lanes
        waited = span.tail / span.lanes - (0.0 if one else adrift(span.lanes) * block)
        points.append((block if one else 0.0, max(0.0, waited)))
    return _line(points or [(0.0, 0.0)])


def _crossing(rising: Callable[[float], float], most: float) -> float:
    """Where a rising function is 0, between `LEAST` and something."""
    low, high = math.log(LEAST), math.log(most)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (low, middle) if rising(math.exp(middle)) > 0 else (middle, high)
    return math.exp((low + high) / 2)


def _waiting(seen: Sequence[Seen], task: float) -> float:
    """How many times as long handing out a task takes in a graph.

    So that the model is right about what lanes take, on the whole, each round counting as much.
    """
    known = [one for one in seen if one.even and one.copies + one.ffts > 0]

    def more(factor: float) -> float:
        logs = [math.log(one.lane(task, factor * task) / one.measured) for one in known]
        return float(np.clip(logs, -FAR, FAR).sum())

    return _crossing(more, LONGEST_WAIT) if known else 1.0


def _of_library(seen: Sequence[Seen]) -> float:
    """How many times as long copies and FFTs of one library take in a graph.

    By the time for which threads have a processor: what they wait for the interpreter is counted
    elsewhere, and is most of what they take by the clock where there are many. The median of all
    rounds: their lengths are faster or slower than curves have them, the longest round's, too.
    """
    known = [
        (one.copies + one.ffts) / (one.forecast.gather + one.forecast.fft)
        for one in seen if one.copies + one.ffts and one.forecast.gather + one.forecast.fft]
    return min(MOST, max(LEAST, statistics.median(known))) if known else 1.0


def _brief(seen: Sequence[Seen], task: float) -> float:
    """Seconds of a task whose block lies where it should be."""
    known = [
        (one.span.busy + one.span.idle + one.span.tail) / one.span.lanes / one.span.blocks
        for one in seen if not one.forecast.gather + one.forecast.fft]
    return min(task, statistics.median(known)) if known else task


def between_blocks(
    profile: Profile, nbytes: int, repeat: int, kernels: Sequence[str], until: float = math.inf
) -> dict[str, Any]:
    """Return what graphs take beside their blocks, by names of a `Profile`'s fields.

    Parameters
    ----------
    profile : Profile
        Of this machine, whose parts are measured.
    nbytes : int
        Bytes of a transform.
    repeat : int
        Times that each is run, if more than a few.
    kernels : sequence of str
        FFT libraries, at least one. Others of the profile are taken for one in the middle of these.
    until : float
        Time by the performance counter from which on fewer runs do.
    """
    together = config.get("bigfft.exchange.in-place")
    alone = replace(profile, company=1.0, waiting=1.0)
    on = Machine(None, profile.threads, 1, profile=alone, shared=together)
    with dask.config.set(scheduler="threads", num_workers=profile.threads):
        plans = list(_plans(nbytes, kernels, on))
        timelines = _timelines(plans, repeat, until)
    return fitted(profile, plans, timelines)


def fitted(
    profile: Profile, plans: Sequence[Plan], timelines: Sequence[Sequence[Timeline]]
) -> dict[str, Any]:
    """Return what some runs tell, by names of a `Profile`'s fields.

    Parameters
    ----------
    profile : Profile
        Whose parts were measured.
    plans : sequence of Plan
        What was run, on machines of that profile.
    timelines : sequence of sequence of Timeline
        Of each plan, some.
    """
    seen = [_seen(plan, runs) for plan, runs in zip(plans, timelines, strict=True)]
    start, planned = _line(
        (_tasks(plan), rounds[0].span.before + statistics.median(run.after for run in runs))
        for plan, runs, rounds in zip(plans, timelines, seen, strict=True))
    task = max(profile.task - planned, TASK)
    flat = [one for rounds in seen for one in rounds]
    tail, uneven = _tails([one.span for one in flat if one.even])
    waiting = _waiting(flat, task)
    factors = {
        kernel: _of_library(
            [one for plan, rounds in zip(plans, seen, strict=True)
             if plan.kernel == kernel for one in rounds])
        for kernel in dict.fromkeys(plan.kernel for plan in plans)
    }
    others = statistics.median(factors.values())
    waits = [one.span.before for rounds in seen for one in rounds[1:] if not one.local]
    return {
        "start": start + tail, "planned": planned, "task": task,
        "exchange": min(waits or [profile.exchange]) + tail,  # of more blocks it is their tasks'
        "uneven": min(1.0, uneven), "brief": _brief(flat, task), "waiting": waiting,
        "libraries": tuple(
            replace(one, company=factors.get(one.name, others)) for one in profile.libraries),
    }
