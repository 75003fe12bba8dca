"""Plans of a problem that are all run, to see how far the one ranked first is from the fastest.

A grid of blocks, rounds, carriers and FFT libraries: the candidates that the planner keeps, by all
carriers, and a seeded sample of those that it drops as too dear. Every plan of it is run::

    all          once; who takes `HOPELESS` times as long as the fastest until then is stopped
    `AGAIN`      the fastest ones once more, since a first time is a cold one
    `FINALISTS`  the fastest ones of these, and the model's choice, in turn, `FINALS` times each
    `DUELS`      the fastest one of all, and the model's choice, in turn; only this is judged

Of several plans that take the same time, the one that is fastest in a race was lucky there: so a
race says which one is fastest, and times that were not used for that say by how much. A plan that
was stopped has taken at least the seconds that are noted of it. Most of the time of a grid would go
to plans that take ten times as long as the best one.

Imports `graph`, `planner`, `planning` and this folder.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

import dask.array as da
import dask.config
import numpy as np
from dask.callbacks import Callback

from dask_bigfft.bench.model_problems import Problem, machine_of
from dask_bigfft.bench.targets import ratio
from dask_bigfft.graph.layer import transformed_array
from dask_bigfft.planner import cost
from dask_bigfft.planner.plan import Machine, Plan
from dask_bigfft.planner.profile import Profile
from dask_bigfft.planner.search import every_plan
from dask_bigfft.planner.seconds import Model
from dask_bigfft.planning.trials import SCALES, region
from dask_bigfft.transforms.spec import transform_spec

__all__ = ["BEHIND", "FINALS", "HOPELESS", "Run", "Threads", "grid", "sweep"]

#: How far the model's choice may be from the fastest plan.
BEHIND = 0.10

#: Carriers of the grid, and the carrier of the plan that each needs.
CARRIERS = {"shared": "memory", "tasks": "memory", "disk": "disk"}

#: How many times as long as the fastest plan until then one may take before it is stopped.
HOPELESS = 3.0

#: Plans that are run twice, those that are run more often, and how often.
AGAIN, FINALISTS, FINALS = 24, 6, 15

#: Turns of the model's choice and the fastest plan, of which the median counts.
DUELS = 31

#: Dropped candidates that are run as well, and the sizes of blocks that they are taken from.
DROPPED, DROPPED_SCALES = 40, (1.0, 4.0)


class _Stopped(Exception):
    """A computation took too long."""


class Threads:
    """Threads of dask, on which computations can be stopped that take too long.

    Parameters
    ----------
    count : int
        How many tasks run at a time.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._pool = self._ready()

    def _ready(self) -> ThreadPoolExecutor:
        """A pool whose threads have begun."""
        pool = ThreadPoolExecutor(self.count)
        list(pool.map(time.sleep, [1e-3] * self.count))
        return pool

    def close(self) -> None:
        """Wait for what still runs, and end."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def seconds(self, work: Callable[[], object], limit: float | None = None) -> tuple[float, bool]:
        """Return how long a computation took, and whether it went to its end.

        One that is stopped begins no further task; those that run are waited for, outside the
        clock.

        Parameters
        ----------
        work : callable
            Computes with dask's threaded scheduler.
        limit : float, optional
            Seconds after which it is stopped; by default never.
        """
        started, elapsed = time.perf_counter(), 0.0

        def look(*_: object) -> None:
            nonlocal elapsed
            elapsed = time.perf_counter() - started
            if limit is not None and elapsed > limit:
                raise _Stopped

        watch = {} if limit is None else {"posttask": look}
        with dask.config.set(scheduler="threads", num_workers=self.count, pool=self._pool):
            try:
                with Callback(**watch):
                    work()
            except _Stopped:
                self.close()
                self._pool = self._ready()
                return elapsed, False
        return time.perf_counter() - started, True


@dataclass
class Run:
    """A plan of the grid, by one carrier.

    Parameters
    ----------
    plan, carrier
        What is run, and how blocks travel.
    scale : float
        Size of blocks, in units of those that come in.
    forecast : float
        Seconds by the model.
    dropped : bool
        Whether the planner drops it.
    times : list of float
        Seconds of its runs.
    stopped : bool
        Whether it was hopeless, so that it takes longer than what is noted.
    """

    plan: Plan
    carrier: str
    scale: float
    forecast: float
    dropped: bool = False
    times: list[float] = field(default_factory=list)
    stopped: bool = False

    @property
    def seconds(self) -> float:
        """The median of its runs."""
        return statistics.median(self.times)

    def row(self) -> dict[str, Any]:
        """What is kept of it."""
        factors = [list(program.factors) for program in self.plan.programs]
        return {"rounds": self.plan.notation, "factors": factors, "kernel": self.plan.kernel,
                "carrier": self.carrier, "scale": self.scale, "forecast": self.forecast,
                "times": self.times, "seconds": self.seconds, "dropped": self.dropped,
                "stopped": self.stopped}


def grid(problem: Problem, x: da.Array, kernels: Sequence[str], on: Machine) -> Iterator[Run]:
    """Plans of a problem: blocks, rounds and libraries, by all carriers.

    Parameters
    ----------
    problem : Problem
        What is planned.
    x : dask.array.Array
        What comes in.
    kernels : sequence of str
        FFT libraries.
    on : Machine
        By which plans are ranked.
    """
    spec = transform_spec(problem.kind, problem.shape, np.dtype(problem.dtype), None, problem.axes)
    kept: set[Any] = set()
    for carrier, place in CARRIERS.items():
        request = problem.request(x, kernels[0], place)
        for plan, trial in region(spec, request, on, kernels):
            forecast = plan.expected.seconds
            if carrier == "tasks":
                model = Model(on, plan.kernel, spec.work_dtype.name, "tasks", device="cpu")
                result = None if plan.ends_in_round else plan.result
                rounds = model.route(plan.source, plan.rounds, result)
                forecast = on.profile.start + sum(found.seconds for found in rounds)
            kept.add((plan.rounds, plan.result))
            yield Run(plan, carrier, trial.scale, forecast)
    others = {
        (plan.rounds, plan.result): (plan, scale) for scale in DROPPED_SCALES
        for plan in every_plan(spec, replace(problem.request(x, kernels[0]), scale=scale), on)
    }
    rest = [found for key, found in others.items() if key not in kept]
    chosen = random.Random(problem.name)
    for plan, scale in chosen.sample(rest, min(DROPPED, len(rest))):
        one = replace(plan, kernel=chosen.choice(kernels))
        one = replace(one, expected=cost.forecast(one))
        yield Run(one, "shared", scale, one.expected.seconds, dropped=True)


def timed(threads: Threads, x: da.Array, run: Run, limit: float | None = None) -> bool:
    """Run a plan once and note how long it took; return whether it went to its end.

    Parameters
    ----------
    threads : Threads
        That compute.
    x : dask.array.Array
        What comes in.
    run : Run
        What is run.
    limit : float, optional
        Seconds after which it is stopped.
    """
    with dask.config.set({"bigfft.exchange.carrier": run.carrier}):
        result: Any = transformed_array(x, run.plan, run.carrier)
        kept: list[Any] = []
        seconds, ended = threads.seconds(lambda: kept.append(result.persist()), limit)
    run.times.append(seconds)
    run.stopped = not ended
    return ended


def raced(threads: Threads, x: da.Array, runs: Sequence[Run], chosen: Run) -> list[Run]:
    """Run all plans, the better ones more often; return those that were run to the last.

    Parameters
    ----------
    threads : Threads
        That compute.
    x : dask.array.Array
        What comes in.
    runs : sequence of Run
        All plans; times are entered.
    chosen : Run
        One of them that is run to the last whatever it takes.
    """
    timed(threads, x, chosen)
    chosen.times.clear()  # which makes memory and compiled code ready
    best = float("inf")
    for run in (chosen, *(run for run in runs if run is not chosen)):
        if timed(threads, x, run, None if run is chosen else HOPELESS * best):
            best = min(best, run.times[0])
    rest = sorted((run for run in runs if not run.stopped), key=lambda run: run.times[0])
    for run in rest[:AGAIN]:
        timed(threads, x, run)
    finalists = sorted(rest[:AGAIN], key=lambda run: min(run.times))[:FINALISTS]
    if chosen not in finalists:
        finalists.append(chosen)
    for run in finalists:
        run.times.clear()  # the first time is a cold one
    for turn in range(FINALS):
        for run in finalists if turn % 2 else reversed(finalists):
            timed(threads, x, run)
    return finalists


def dueled(threads: Threads, x: da.Array, chosen: Run, best: Run) -> dict[str, float]:
    """Run two plans in turn, and return the median of their ratios less 1, and its interval.

    Their times are those of these turns then.

    Parameters
    ----------
    threads : Threads
        That compute.
    x : dask.array.Array
        What comes in.
    chosen, best : Run
        The model's choice, and the plan that was fastest in a race; maybe the same.
    """
    if chosen is best:
        return {"behind": 0.0, "low": 0.0, "high": 0.0}
    for run in (chosen, best):
        run.times.clear()
    for turn in range(DUELS):
        for run in (chosen, best) if turn % 2 else (best, chosen):
            timed(threads, x, run)
    found = ratio(chosen.times, best.times)
    return {"behind": found.median - 1, "low": found.low - 1, "high": found.high - 1}


def sweep(
    problem: Problem, count: int, kernels: Sequence[str], profile: Profile,
) -> dict[str, Any]:
    """Return what all plans of a problem took, and how far the model's choice is from the best.

    Parameters
    ----------
    problem : Problem
        What is run.
    count : int
        Threads.
    kernels : sequence of str
        FFT libraries.
    profile : Profile
        By which plans are ranked.
    """
    started = time.perf_counter()
    x, on = problem.array(), machine_of(profile, count)
    runs = list(grid(problem, x, kernels, on))
    chosen = min(runs, key=lambda run: run.forecast)
    planned = time.perf_counter() - started
    threads = Threads(count)
    try:
        finalists = raced(threads, x, runs, chosen)
        best = min(finalists, key=lambda run: run.seconds)
        duel = dueled(threads, x, chosen, best)
    finally:
        threads.close()
    return {"problem": problem.name, "plans": len(runs),
            "dropped": sum(run.dropped for run in runs),
            "stopped": sum(run.stopped for run in runs), "scales": list(SCALES),
            "kernels": list(kernels), "carriers": list(CARRIERS), "chosen": chosen.row(),
            "best": best.row(), **duel, "met": duel["behind"] <= BEHIND,
            "planning": planned, "seconds": time.perf_counter() - started,
            "runs": [run.row() for run in sorted(runs, key=lambda run: run.seconds)]}
