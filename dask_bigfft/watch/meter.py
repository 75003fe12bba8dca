"""How far runs are: stages of a plan weighed by the bytes that they make.

A stage is told by the name of its tasks: reading, one for each round, ``unpack``, writing. Where
dask has fused a stage into the one after it, its bytes count there. Which plan a task belongs to is
told by the token in its name or, where dask has fused the user's own operations into it and given
it another name, by the plan that it depends on.

Imports `planner` and `graph`; what a scheduler has done is handed in task by task.
"""

import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_bigfft.graph.dask_private import Alias, DataNode
from dask_bigfft.graph.layer import plans_among
from dask_bigfft.graph.names import PLAN_NAME
from dask_bigfft.planner.phases import phase_forecasts, plan_card
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.wording import human_bytes, human_count, human_seconds

READ, WRITE = "read", "write"

#: Seconds of compiling from which on they are shown.
SHOWN = 0.05

#: Runs that a board keeps.
KEPT_RUNS = 24

_STAGE = re.compile(r"bigfft_(round\d+|unpack)(?=-|$)")
_OURS = re.compile(r"bigfft_\w+-")


@dataclass(frozen=True)
class Stage:
    """A part of a run: its name in task names, how to call it, its bytes and its operations."""

    key: str
    label: str
    nbytes: int
    flops: float = 0.0


def stages(plan: Plan) -> tuple[Stage, ...]:
    """Return the stages of a run that reads an array, transforms it and writes the result."""
    spec, last = plan.spec, len(plan.rounds)
    work = {phase.index: phase.flops for phase in phase_forecasts(plan) if phase.name == "round"}
    found = [Stage(READ, "reading", plan.source.size * np.dtype(spec.dtype).itemsize)]
    for number, exchange in enumerate(plan.exchanges, 1):
        if number <= last:
            label = f"round {number} of {last}"
            found.append(Stage(f"round{number}", label, exchange.nbytes, work[number]))
        else:
            found.append(Stage("unpack", "last exchange", exchange.nbytes))
    nbytes = plan.result.size * spec.out_dtype.itemsize
    return (*found, Stage(WRITE, "writing", nbytes))


def stage_of(name: str) -> str | None:
    """Return the key of the stage that a task belongs to, by its name; None for small change.

    >>> stage_of("bigfft_round2-store-map-0a1b"), stage_of("array-0a1b"), stage_of("store-map-0a1b")
    ('round2', 'read', 'write')
    """
    ours = _STAGE.search(name)
    if ours is not None:
        return ours[1]
    if name.startswith("store-map"):
        return WRITE
    return READ if name.startswith("array-") else None


def name_of(key: Any) -> str:
    """Return the name in a task's key."""
    return str(key[0] if isinstance(key, tuple) else key)


def clock(seconds: float) -> str:
    """Return a time as minutes and seconds.

    >>> clock(65), clock(7265)
    ('1:05', '2:01:05')
    """
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Meter:
    """How much of a run is done.

    Parameters
    ----------
    plan : Plan
        What runs.
    now : callable
        Gives the time in seconds.
    token : str
        Of the plan in task names.
    """

    def __init__(
        self, plan: Plan, now: Callable[[], float] = time.monotonic, token: str = ""
    ) -> None:
        self.plan, self.token = plan, token
        self.stages = stages(plan)
        self.now = now
        self.started = now()
        self.stopped: float | None = None
        self._begun = False
        self.total: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        #: Seconds that its loops were compiled, and whether one is being compiled.
        self.compiled, self.compiling = 0.0, False
        #: Why a run that stopped is not done: ``"erred"`` or ``"cancelled"``.
        self.failure: str | None = None

    def expect(self, names: Iterable[str]) -> None:
        """Take in the names of all tasks."""
        self.total = Counter(stage for stage in map(stage_of, names) if stage is not None)
        self.done = Counter()

    def add(self, name: str) -> None:
        """Count a task as done."""
        stage = stage_of(name)
        if stage is not None:
            self.count(stage)

    def begin(self) -> None:
        """Take in that a task has begun: from the first one on time is counted."""
        if not self._begun:
            self._begun, self.started = True, self.now()

    def count(self, stage: str) -> None:
        """Count a task of a stage as done."""
        self.done[stage] += 1
        if self.stopped is None and self.finished:
            self.stopped = self.now()

    def fail(self, why: str) -> None:
        """Take in that a run has ended before it was done."""
        if self.stopped is None:
            self.failure, self.stopped = why, self.now()

    @property
    def finished(self) -> bool:
        """Whether every task is done."""
        return bool(self.total) and all(
            self.done[stage] >= count for stage, count in self.total.items()
        )

    @property
    def state(self) -> str:
        """``"running"``, ``"done"``, ``"erred"`` or ``"cancelled"``."""
        return self.failure or ("running" if self.stopped is None else "done")

    def _weights(self) -> list[tuple[Stage, int]]:
        """Stages that have tasks, with the bytes of those before them that have none."""
        found, carried = [], 0
        for stage in self.stages:
            carried += stage.nbytes
            if self.total[stage.key]:
                found.append((stage, carried))
                carried = 0
        return found

    def share(self, stage: str) -> float:
        """Return which part of a stage is done, from 0 to 1."""
        return min(self.done[stage], self.total[stage]) / max(1, self.total[stage])

    @property
    def nbytes(self) -> tuple[int, int]:
        """Bytes done, and bytes in all."""
        weights = self._weights()
        done = sum(
            nbytes * min(self.done[stage.key], self.total[stage.key]) // self.total[stage.key]
            for stage, nbytes in weights
        )
        return done, sum(nbytes for _, nbytes in weights)

    @property
    def flops(self) -> float:
        """Floating point operations done."""
        return sum(stage.flops * self.share(stage.key) for stage in self.stages)

    @property
    def stage(self) -> str:
        """Name of the first stage that is not done."""
        if self.compiling and self.stopped is None:
            return "compiling"
        for stage, _ in self._weights():
            if self.done[stage.key] < self.total[stage.key]:
                return stage.label
        return "done" if self.total else "starting"

    @property
    def elapsed(self) -> float:
        """Seconds that the run has taken, those of compiling left out."""
        end = self.now() if self.stopped is None else self.stopped
        return max(0.0, end - self.started - self.compiled)

    @property
    def left(self) -> float | None:
        """Seconds that the run will still take, at its speed so far; None while that is unknown."""
        done, total = self.nbytes
        if self.stopped is not None or not total or done / total <= 0.02 or self.elapsed <= 1:
            return None
        return self.elapsed * (total / done - 1)

    def as_dict(self) -> dict[str, Any]:
        """Return where the run stands, as names and numbers."""
        done, total = self.nbytes
        elapsed = self.elapsed
        return {
            "token": self.token,
            **plan_card(self.plan),
            "state": self.state,
            "stage": self.stage,
            "started": self.started,
            "elapsed": elapsed,
            "compiled": self.compiled,
            "left": self.left,
            "bytes_done": done,
            "bytes_total": total,
            "bytes_per_second": done / elapsed if elapsed > 0 else 0.0,
            "flops_per_second": self.flops / elapsed if elapsed > 0 else 0.0,
            "stages": [
                {
                    "key": stage.key,
                    "label": stage.label,
                    "nbytes": stage.nbytes,
                    "done": min(self.done[stage.key], self.total[stage.key]),
                    "total": self.total[stage.key],
                }
                for stage in self.stages
                if self.total[stage.key]
            ],
        }

    def line(self) -> str:
        """Return where the run stands, in one line."""
        return line_of([self.as_dict()])


def line_of(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return where runs stand, in one line; they are what `Meter.as_dict` returns."""
    if not runs:
        return f"{'starting':13}   0 %"
    done, total = (sum(run[key] for run in runs) for key in ("bytes_done", "bytes_total"))
    begun = min(run["started"] for run in runs)
    elapsed = max(run["started"] + run["elapsed"] for run in runs) - begun
    share = done / total if total else 0.0
    text = f"{label_of(runs)} {100 * share:3.0f} %  {human_bytes(done)} of {human_bytes(total)}"
    if elapsed > 0:
        text += f", {human_count(done / elapsed, 'B/s')}"
    text += f", {clock(elapsed)} elapsed"
    compiled = sum(run.get("compiled", 0.0) for run in runs)
    if compiled >= SHOWN:
        text += f", {human_seconds(compiled)} of compiling before"
    if is_running(runs) and 0.02 < share < 1 and elapsed > 1:
        text += f", {clock(elapsed * (1 / share - 1))} left"
    return text


def is_running(runs: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any of some runs goes on."""
    return any(run["state"] == "running" for run in runs)


def label_of(runs: Sequence[Mapping[str, Any]]) -> str:
    """Return what is being done: the stage, and of several runs which one."""
    going = [run for run in runs if run["state"] == "running"]
    begun = [run for run in going if run["bytes_done"]]
    stage = (*begun, *going, runs[-1])[0]["stage"]
    if len(runs) == 1:
        return f"{stage:13}"
    number = min(len(runs) - len(going) + 1, len(runs))
    return f"transform {number} of {len(runs)}, {stage:13}"


class Board:
    """The runs of one scheduler, each with a meter, the latest last.

    Parameters
    ----------
    now : callable
        Gives the time in seconds.
    """

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self.now = now
        self.meters: OrderedDict[str, Meter] = OrderedDict()
        self._stages: dict[str, tuple[Meter, str]] = {}

    def expect(self, tasks: Iterable[tuple[Any, Any]]) -> list[Meter]:
        """Take in the tasks of a graph, by key; return the meters of the plans that begin in it.

        Tasks are those of dask's specification: they know their dependencies.
        """
        tasks = list(tasks)
        begun = [self._begin(plan, token) for token, plan in plans_among(tasks).items()]
        if not begun:
            return []
        counts: Counter[str] = Counter()
        first: dict[str, Any] = {}
        for key, task in tasks:
            if not isinstance(task, Alias | DataNode):  # nothing is done for those
                name = name_of(key)
                counts[name] += 1
                first.setdefault(name, task)
        self._assign(counts, first)
        return begun

    def _begin(self, plan: Plan, token: str) -> Meter:
        meter = self.meters[token] = Meter(plan, self.now, token)
        self.meters.move_to_end(token)
        self._stages[f"{PLAN_NAME}{token}"] = meter, "plan"
        while len(self.meters) > KEPT_RUNS:
            self.meters.popitem(last=False)
        kept = set(map(id, self.meters.values()))
        self._stages = {k: found for k, found in self._stages.items() if id(found[0]) in kept}
        return meter

    def _assign(self, counts: Mapping[str, int], first: Mapping[str, Any]) -> None:
        """Find the plan and the stage of every name of tasks that has one."""
        sources: dict[str, Meter] = {}
        for name, task in first.items():
            if _OURS.search(name) is None:
                continue
            needs = {name_of(key) for key in getattr(task, "dependencies", ())}
            meter = self.meters.get(name.rpartition("-")[2]) or self._by_plan(needs)
            if meter is None:
                continue
            sources |= dict.fromkeys((n for n in needs if stage_of(n) == READ), meter)
            stage = stage_of(name)
            if stage is not None:
                self._enter(name, meter, stage, counts[name])
        for name, task in first.items():
            stage = stage_of(name)
            if stage == READ and name in sources:
                self._enter(name, sources[name], READ, counts[name])
            elif stage == WRITE:
                needs = {name_of(key) for key in getattr(task, "dependencies", ())}
                found = next((self._stages[n] for n in needs if n in self._stages), None)
                if found is not None:
                    self._enter(name, found[0], WRITE, counts[name])

    def _by_plan(self, needs: Iterable[str]) -> Meter | None:
        tokens = (name.removeprefix(PLAN_NAME) for name in needs if name.startswith(PLAN_NAME))
        return next((self.meters[token] for token in tokens if token in self.meters), None)

    def _enter(self, name: str, meter: Meter, stage: str, count: int) -> None:
        self._stages[name] = meter, stage
        meter.total[stage] += count

    def begin(self, key: Any) -> None:
        """Take in that a task has begun."""
        found = self._stages.get(name_of(key))
        if found is not None and found[1] != "plan":
            found[0].begin()

    def hear(self, name: str, numbers: Mapping[str, Any]) -> bool:
        """Take in an event of this process; return whether it changes what is shown."""
        meter = self.meters.get(str(numbers.get("plan", "")).partition("-")[0])
        if meter is None or name not in ("compiling", "compile"):
            return False
        meter.compiling = name == "compiling"
        meter.compiled += numbers.get("seconds", 0.0)
        return True

    def add(self, key: Any) -> Meter | None:
        """Count a task as done; return its meter if it belongs to a plan."""
        found = self._stages.get(name_of(key))
        if found is not None and found[1] != "plan":
            found[0].count(found[1])
        return None if found is None else found[0]

    def erred(self, key: Any) -> None:
        """Take in that a task has failed."""
        found = self._stages.get(name_of(key))
        if found is not None:
            found[0].fail("erred")

    def forgotten(self, key: Any) -> None:
        """Take in that nobody wants a task any more: without its plan a run cannot go on."""
        found = self._stages.get(name_of(key))
        if found is not None and found[1] == "plan":
            found[0].fail("cancelled")

    def runs(self, tokens: Set[str] | None = None) -> list[dict[str, Any]]:
        """Return where the runs stand, or those of some plans, by `Meter.as_dict`."""
        found = [m for m in self.meters.values() if tokens is None or m.token in tokens]
        return [meter.as_dict() for meter in found]
