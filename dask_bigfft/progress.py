"""How far a run is: stages of a plan weighed by the bytes they make, shown as lines of text.

A stage is told by the name of its tasks: reading, one for each round, ``unpack``, writing. Where
dask has fused a stage into the one after it, its bytes count there. Imports dask's callbacks and
`planner`; what a cluster has done is handed in as numbers.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TextIO

import numpy as np
from dask.callbacks import Callback

from dask_bigfft.planner.explain import human_bytes
from dask_bigfft.planner.plan import Plan

READ, WRITE = "read", "write"

#: Seconds between lines where the output is no terminal, and between updates where it is.
SPARSE, OFTEN = 10.0, 0.1

#: Seconds between two looks at a cluster.
POLL = 0.3

#: For each stage how many tasks have ever been done, and how many there are.
Counts = Mapping[str, tuple[int, int]]

_OURS = re.compile(r"bigfft_(round\d+|unpack)")


@dataclass(frozen=True)
class Stage:
    """A part of a run: its name in task names, how to call it, and the bytes that it makes."""

    key: str
    label: str
    nbytes: int


def stages(plan: Plan) -> tuple[Stage, ...]:
    """Return the stages of a run that reads an array, transforms it and writes the result."""
    spec, last = plan.spec, len(plan.rounds)
    found = [Stage(READ, "reading", plan.source.size * np.dtype(spec.dtype).itemsize)]
    for number, exchange in enumerate(plan.exchanges, 1):
        if number <= last:
            found.append(Stage(f"round{number}", f"round {number} of {last}", exchange.nbytes))
        else:
            found.append(Stage("unpack", "last exchange", exchange.nbytes))
    nbytes = plan.result.size * spec.out_dtype.itemsize
    return (*found, Stage(WRITE, "writing", nbytes))


def stage_of(name: str) -> str | None:
    """Return the key of the stage that a task belongs to, by its name; None for small change.

    >>> stage_of("bigfft_round2-store-map-0a1b"), stage_of("array-0a1b"), stage_of("store-map-0a1b")
    ('round2', 'read', 'write')
    """
    ours = _OURS.match(name)
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
    """

    def __init__(self, plan: Plan, now: Callable[[], float] = time.monotonic) -> None:
        self.stages = stages(plan)
        self.now = now
        self.started = now()
        self.total: Counter[str] = Counter()
        self.done: Counter[str] = Counter()

    def expect(self, names: Iterable[str]) -> None:
        """Take in the names of all tasks."""
        self.total = Counter(stage for stage in map(stage_of, names) if stage is not None)
        self.done = Counter()

    def count(self, done: Mapping[str, int]) -> None:
        """Take in how many tasks of each stage are done."""
        self.done = Counter(done)

    def add(self, name: str) -> None:
        """Count a task as done."""
        stage = stage_of(name)
        if stage is not None:
            self.done[stage] += 1

    def _weights(self) -> list[tuple[Stage, int]]:
        """Stages that have tasks, with the bytes of those before them that have none."""
        found, carried = [], 0
        for stage in self.stages:
            carried += stage.nbytes
            if self.total[stage.key]:
                found.append((stage, carried))
                carried = 0
        return found

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
    def stage(self) -> str:
        """Name of the first stage that is not done."""
        for stage, _ in self._weights():
            if self.done[stage.key] < self.total[stage.key]:
                return stage.label
        return "done" if self.total else "starting"

    def line(self) -> str:
        """Return where the run stands, in one line."""
        done, total = self.nbytes
        share = done / total if total else 0.0
        elapsed = self.now() - self.started
        text = (
            f"{self.stage:13} {100 * share:3.0f} %  {human_bytes(done)} of {human_bytes(total)}, "
            f"{clock(elapsed)} elapsed"
        )
        if 0.02 < share < 1 and elapsed > 1:
            text += f", {clock(elapsed * (1 / share - 1))} left"
        return text


class Display:
    """Lines of a meter: one that is rewritten on a terminal, a few of them elsewhere.

    Parameters
    ----------
    meter : Meter
        What is shown.
    stream : text stream
        Where.
    """

    def __init__(self, meter: Meter, stream: TextIO) -> None:
        self.meter, self.stream = meter, stream
        self.terminal = stream.isatty()
        self._shown, self._stage, self._width = -1e9, "", 0

    def update(self) -> None:
        """Show where the run stands, if it is time to."""
        now, stage = self.meter.now(), self.meter.stage
        if self.terminal:
            if now - self._shown >= OFTEN:
                self._rewrite()
                self._shown = now
        elif stage != self._stage or now - self._shown >= SPARSE:
            self.stream.write(f"{self.meter.line()}\n")
            self.stream.flush()
            self._shown, self._stage = now, stage

    def _rewrite(self) -> None:
        done, total = self.meter.nbytes
        filled = 20 * done // total if total else 0
        line = f"[{'#' * filled}{'.' * (20 - filled)}] {self.meter.line()}"
        self.stream.write(f"\r{line.ljust(self._width)}")
        self.stream.flush()
        self._width = len(line)

    def close(self) -> None:
        """Show the last state and end the line."""
        if self.terminal:
            self._rewrite()
            self.stream.write("\n")
            self.stream.flush()


class LocalProgress(Callback):  # type: ignore[misc, unused-ignore]
    """Shows the tasks of a scheduler that runs in this process."""

    def __init__(self, display: Display) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.display = display

    def _start_state(self, dsk: Mapping[Any, Any], state: Any) -> None:
        self.display.meter.expect(map(name_of, dsk))
        self.display.update()

    def _posttask(self, key: Any, value: Any, dsk: Any, state: Any, worker: Any) -> None:
        self.display.meter.add(name_of(key))
        self.display.update()


def scheduler_counts(dask_scheduler: Any) -> dict[str, tuple[int, int]]:
    """Return for each stage how many tasks have ever been done, and how many there are now.

    Runs on the scheduler of a cluster.
    """
    found: dict[str, tuple[int, int]] = {}
    for name, prefix in dask_scheduler.task_prefixes.items():
        stage = stage_of(f"{name}-")
        if stage is not None:
            done, there = found.get(stage, (0, 0))
            now = sum(sum(group.states.values()) for group in prefix.groups)
            found[stage] = done + prefix.state_counts["memory"], there + now
    return found


def _count_cluster(meter: Meter, before: Counts, now: Counts) -> None:
    """Take in what a cluster has done since `before`."""
    done = {}
    for stage, (finished, there) in now.items():
        finished_before, there_before = before.get(stage, (0, 0))
        meter.total[stage] = max(meter.total[stage], there - there_before)
        done[stage] = finished - finished_before
    meter.count(done)


def follow(client: Any, start: Callable[[], list[Any]], display: Display | None) -> None:
    """Wait for what `start` sends to a cluster, and look from time to time how far it is.

    Parameters
    ----------
    client : distributed.Client
        Connected to the cluster.
    start : callable
        Returns the futures.
    display : Display or None
        Where to show it.

    Raises
    ------
    Exception
        What a task has raised; the others are cancelled.
    """
    before = client.run_on_scheduler(scheduler_counts)
    futures = start()
    try:
        while not all(future.done() for future in futures):
            time.sleep(POLL)
            if display is not None:
                _count_cluster(display.meter, before, client.run_on_scheduler(scheduler_counts))
                display.update()
            if any(future.status in ("error", "cancelled", "lost") for future in futures):
                break
        for future in futures:
            future.result()
    except BaseException:
        client.cancel(futures)
        raise
    if display is not None:
        display.meter.count(display.meter.total)
        display.close()
