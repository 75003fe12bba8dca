"""Progress of runs, counted by tasks and shown as a bar, as lines of text, or in a notebook.

A run has stages: reading, one for each round, ``unpack``, writing. The name of a task gives its
stage, and the weight of a stage is the bytes of its results. The bytes of a stage that dask has
fused count in the next stage. The plan of a task is its argument, a task that it depends on, or the
token in its name. A task that dask has fused belongs to all runs that have tasks in it.

::

    tasks of a graph -> Board -> PlanProgress -> summary -> BarDisplay, LineDisplay, NotebookDisplay
    (dask's callbacks: LocalProgress; a scheduler: cluster)      -> page, JSON route, gauges
"""

import re
import sys
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from html import escape
from importlib.util import find_spec
from typing import Any, NamedTuple, TextIO

import numpy as np
from dask.callbacks import Callback
from dask.utils import format_bytes, format_time

from dask_bigfft.carriers.names import PLAN_NAME
from dask_bigfft.dask_private import Alias, DataNode, unfused
from dask_bigfft.events import add_sink, remove_sink
from dask_bigfft.graph.layer import plans_among, run_of
from dask_bigfft.planner.explain import human_count, speed_text
from dask_bigfft.planner.phases import plan_summary
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.seconds import flops

READ = "read"
WRITE = "write"
PLAN = "plan"

#: Minimum seconds of compilation to be shown.
COMPILED = 0.05

#: Number of runs that a board keeps.
KEPT_RUNS = 24

#: Seconds between lines of a log, and between updates of a notebook.
SPARSE = 10.0
OFTEN = 0.3

_STAGE = re.compile(r"bigfft_(round\d+|unpack)(?=-|$)")
_OURS = re.compile(r"bigfft_\w+-")

#: A run as `Run.summary` returns it.
Summary = Mapping[str, Any]


class Stage(NamedTuple):
    """A part of a run: its name in task names, its label, its bytes and its operations."""

    key: str
    label: str
    nbytes: int
    flops: float = 0.0


class StageProgress(NamedTuple):
    """Finished tasks of a stage.

    The bytes include those of preceding stages without tasks, which are fused into it.
    """

    stage: Stage
    nbytes: int
    finished: int
    tasks: int


def stages(plan: Plan) -> list[Stage]:
    """Return the stages of a run that reads an array, transforms it and writes the result."""
    dtype = np.dtype(plan.spec.dtype)
    last = len(plan.rounds)
    in_order = [Stage(READ, "reading", plan.source.size * dtype.itemsize)]
    for number, exchange in enumerate(plan.exchanges, 1):
        if number <= last:
            label = f"round {number} of {last}"
            in_order.append(
                Stage(
                    f"round{number}",
                    label,
                    exchange.nbytes,
                    flops(plan.rounds[number - 1]),
                )
            )
        else:
            in_order.append(Stage("unpack", "last exchange", exchange.nbytes))
    in_order.append(Stage(WRITE, "writing", plan.result.size * plan.spec.out_dtype.itemsize))
    return in_order


def stage_of(name: str) -> str | None:
    """Return the key of a task's stage, by its name; None for auxiliary tasks.

    >>> stage_of("bigfft_round2-store-map-0a1b"), stage_of("array-0a1b"), stage_of("store-map-0a1b")
    ('round2', 'read', 'write')
    """
    match = _STAGE.search(name)
    if match:
        return match[1]
    if name.startswith("store-map"):
        return WRITE
    return READ if name.startswith("array-") else None


def name_of(key: Any) -> str:
    """Return the name in a task's key."""
    return str(key[0] if isinstance(key, tuple) else key)


def _needs(task: Any) -> set[str]:
    """Return the names of the tasks that a task depends on."""
    return {name_of(key) for key in getattr(task, "dependencies", ())}


class PlanProgress:
    """The progress of one transform.

    Parameters
    ----------
    plan : Plan
        The plan that runs.
    token : str
        Token of the plan in task names.
    now : callable
        Returns the time in seconds.
    """

    def __init__(self, plan: Plan, token: str, now: Callable[[], float] = time.time) -> None:
        self.plan = plan
        self.token = token
        self.now = now
        self.stages = stages(plan)
        #: Number of tasks of each stage: total, and finished.
        self.total = Counter[str]()
        self.finished = Counter[str]()
        self.started = now()
        self.begun = False
        self.stopped: float | None = None
        #: Seconds of compilation, and whether it is going on.
        self.compiled = 0.0
        self.compiling = False
        #: Failure of a stopped run: ``"erred"`` or ``"cancelled"``.
        self.failure: str | None = None

    def begin(self) -> None:
        """Start the clock, unless a task has done so."""
        if not self.begun:
            self.begun = True
            self.started = self.now()

    def count(self, stage: str) -> None:
        """Count a finished task of a stage."""
        self.finished[stage] += 1
        if all(self.finished[key] >= count for key, count in self.total.items()):
            self.stop()

    def stop(self, failure: str | None = None) -> None:
        """Stop the clock, unless it is stopped."""
        if self.stopped is None:
            self.failure = failure
            self.stopped = self.now()

    def _progress(self) -> Iterator[StageProgress]:
        """Yield the progress of each stage with tasks."""
        nbytes = 0
        for stage in self.stages:
            nbytes += stage.nbytes
            tasks = self.total[stage.key]
            if tasks:
                yield StageProgress(
                    stage,
                    nbytes,
                    min(self.finished[stage.key], tasks),
                    tasks,
                )
                nbytes = 0

    def summary(self) -> dict[str, Any]:
        """Return the state of the run as names and numbers.

        `elapsed` excludes compilation. `left` is the remaining time at the speed so far, or None
        while it is unknown.
        """
        progress = list(self._progress())
        total_nbytes = sum(part.nbytes for part in progress)
        nbytes = sum(part.nbytes * part.finished // part.tasks for part in progress)
        flops = sum(part.stage.flops * part.finished / part.tasks for part in progress)
        is_running = self.stopped is None
        end = self.now() if self.stopped is None else self.stopped
        elapsed = max(0.0, end - self.started - self.compiled)
        return {
            "token": self.token,
            **plan_summary(self.plan),
            "state": self.failure or ("running" if is_running else "done"),
            "stage": self._stage_label(progress),
            "started": self.started,
            "elapsed": elapsed,
            "compiled": self.compiled,
            "left": _seconds_left(nbytes, total_nbytes, elapsed) if is_running else None,
            "bytes_done": nbytes,
            "bytes_total": total_nbytes,
            "bytes_per_second": nbytes / elapsed if elapsed > 0 else 0.0,
            "flops_per_second": flops / elapsed if elapsed > 0 else 0.0,
            "stages": [
                {**part.stage._asdict(), "done": part.finished, "total": part.tasks}
                for part in progress
            ],
        }

    def _stage_label(self, progress: Sequence[StageProgress]) -> str:
        """Return the label of the active stage."""
        if self.compiling and self.stopped is None:
            return "compiling"
        for part in progress:
            if part.finished < part.tasks:
                return part.stage.label
        return "done" if self.total else "starting"


class Board:
    """The runs of one scheduler, the latest last."""

    def __init__(self) -> None:
        self.runs: OrderedDict[str, PlanProgress] = OrderedDict()
        #: Stage of tasks in each of their runs, by task name and by the token of the run.
        self._stages: dict[str, dict[str, str]] = {}

    def expect(self, tasks: Iterable[tuple[Any, Any]]) -> list[PlanProgress]:
        """Add the tasks of a graph; return the runs that begin in it.

        Tasks are pairs of a key and a task of dask's task specification, with its dependencies.
        """
        tasks = list(tasks)
        runs = [self._begin(plan, token) for token, plan in plans_among(tasks).items()]
        if not runs:
            return []
        working = [(k, task) for k, task in tasks if not isinstance(task, Alias | DataNode)]
        counts = Counter(name_of(key) for key, _ in working)
        # one task represents all tasks of its name
        self._assign(counts, {name_of(key): task for key, task in reversed(working)})
        return runs

    def _begin(self, plan: Plan, token: str) -> PlanProgress:
        """Add a run, and forget the oldest if there are many."""
        run = PlanProgress(plan, token)
        self.runs[token] = run
        self.runs.move_to_end(token)
        while len(self.runs) > KEPT_RUNS:
            self.runs.popitem(last=False)
        for name, stages in list(self._stages.items()):
            remaining = {t: stage for t, stage in stages.items() if t in self.runs}
            self._stages[name] = remaining
            if not remaining:
                del self._stages[name]
        self._stages[f"{PLAN_NAME}{token}"] = {token: PLAN}
        return run

    def _assign(self, counts: Mapping[str, int], tasks: Mapping[str, Any]) -> None:
        """Assign a run and a stage to every task name, first to those of rounds."""
        sources: dict[str, str] = {}
        for name, fused_task in tasks.items():
            stages = self._stages_of_rounds(name, fused_task, sources)
            if stages:
                self._enter(name, stages, counts[name])
        for name, task in tasks.items():
            stage = stage_of(name)
            if stage == READ and name in sources:
                self._enter(name, {sources[name]: READ}, counts[name])
            stored = _needs(task) & self._stages.keys()
            if stage == WRITE and stored:
                *_, last_token = self._stages[stored.pop()]
                self._enter(name, {last_token: WRITE}, counts[name])

    def _stages_of_rounds(self, name: str, fused: Any, sources: dict[str, str]) -> dict[str, str]:
        """Return the stages of a task by the token of their run.

        The names of the tasks that these depend on are added to `sources`.
        """
        stages: dict[str, str] = {}
        for key, task in unfused(name, fused):
            token = self._token_of(name_of(key), task)
            if token is None:
                continue
            sources.update(dict.fromkeys(_needs(task), token))
            stage = stage_of(name_of(key))
            if stage is not None:
                stages[token] = stage
        return stages

    def _token_of(self, name: str, task: Any) -> str | None:
        """Return the token of the run to which a task belongs, or None."""
        if not _OURS.search(name):
            return None
        run = run_of(task)
        tokens = [] if run is None else [run.token]
        tokens.append(name.rpartition("-")[2])
        tokens += [n.removeprefix(PLAN_NAME) for n in _needs(task) if n.startswith(PLAN_NAME)]
        return next((token for token in tokens if token in self.runs), None)

    def _enter(self, name: str, stages: dict[str, str], count: int) -> None:
        """Add tasks of a name to the stages of their runs, which are given by token."""
        self._stages[name] = stages
        for token, stage in stages.items():
            self.runs[token].total[stage] += count

    def take(self, key: Any, state: str) -> bool:
        """Record the new state of a task; return True if it belongs to a run.

        States have the names of distributed. A run whose plan is forgotten counts as cancelled.
        """
        stages = self._stages.get(name_of(key), {})
        for token, stage in stages.items():
            run = self.runs[token]
            if state == "erred":
                run.stop("erred")
            elif stage == PLAN and state == "forgotten":
                run.stop("cancelled")
            elif stage != PLAN and state == "processing":
                run.begin()
            elif stage != PLAN and state == "memory":
                run.count(stage)
        return bool(stages)

    def hear(self, name: str, numbers: Mapping[str, Any]) -> bool:
        """Record an event of this process; return True if the display changes."""
        run = self.runs.get(str(numbers.get("plan", "")).partition("-")[0])
        if run is None or name not in ("compiling", "compile"):
            return False
        run.compiling = name == "compiling"
        run.compiled += numbers.get("seconds", 0.0)
        return True

    def summaries(self) -> list[dict[str, Any]]:
        """Return the summaries of all runs."""
        return [run.summary() for run in self.runs.values()]


# --- displays -------------------------------------------------------------------------------


def is_running(runs: Sequence[Summary]) -> bool:
    """Return True if any run is active."""
    return any(run["state"] == "running" for run in runs)


def _bytes_of(runs: Sequence[Summary]) -> tuple[int, int]:
    """Return the finished and the total bytes of runs."""
    return sum(run["bytes_done"] for run in runs), sum(run["bytes_total"] for run in runs)


def _seconds_left(nbytes: int, total: int, elapsed: float) -> float | None:
    """Return the remaining time at the speed so far; None while that is unknown."""
    if not total or nbytes / total <= 0.02 or elapsed <= 1:
        return None
    return elapsed * (total / nbytes - 1)


def _times(elapsed: float, compiled: float, left: float | None) -> str:
    """Return the elapsed time of runs, the time of compilation before, and the remaining time."""
    text = f"{format_time(elapsed)} elapsed"
    if compiled >= COMPILED:
        text += f", {format_time(compiled)} of compiling before"
    return text if left is None else f"{text}, {format_time(left)} left"


def line_of(runs: Sequence[Summary]) -> str:
    """Return one line with the progress of runs."""
    if not runs:
        return f"{'starting':13}   0 %"
    nbytes, total = _bytes_of(runs)
    started = min(run["started"] for run in runs)
    elapsed = max(run["started"] + run["elapsed"] for run in runs) - started
    share = nbytes / total if total else 0.0
    text = f"{label_of(runs)} {100 * share:3.0f} %  {format_bytes(nbytes)} of {format_bytes(total)}"
    if elapsed > 0:
        text += f", {speed_text(nbytes / elapsed)}"
    is_unfinished = is_running(runs) and share < 1
    left = _seconds_left(nbytes, total, elapsed) if is_unfinished else None
    return f"{text}, {_times(elapsed, sum(run['compiled'] for run in runs), left)}"


def label_of(runs: Sequence[Summary]) -> str:
    """Return the active stage; of several runs also the number of the active one."""
    running = [run for run in runs if run["state"] == "running"]
    begun = [run for run in running if run["bytes_done"]]
    stage = (*begun, *running, runs[-1])[0]["stage"]
    if len(runs) == 1:
        return f"{stage:13}"
    number = min(len(runs) - len(running) + 1, len(runs))
    return f"transform {number} of {len(runs)}, {stage:13}"


class LineDisplay:
    """Display in a file or a log: a line when a stage begins, and every few seconds.

    Parameters
    ----------
    stream : text stream
        Output stream.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._shown = -1e9
        self._label = ""

    def show(self, runs: Sequence[Summary], last: bool = False) -> None:
        """Print a line if the stage is another one, or if the last line is old enough."""
        now = time.monotonic()
        label = label_of(runs) if runs else ""
        if label == self._label and now - self._shown < SPARSE:
            return
        if runs or not last:
            print(line_of(runs), file=self.stream, flush=True)
        self._shown = now
        self._label = label


class BarDisplay:
    """Display on a terminal: a bar of tqdm that counts the bytes of all transforms.

    Parameters
    ----------
    stream : text stream
        The terminal.
    """

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self._bar: Any = None
        self._label = ""

    def show(self, runs: Sequence[Summary], last: bool = False) -> None:
        """Update the bar, which begins with the first run; the last call ends its line."""
        if not runs:
            return
        nbytes, total = _bytes_of(runs)
        label = label_of(runs).rstrip()
        if self._bar is None:
            self._bar = self._new_bar(label, nbytes, total)
        bar = self._bar
        bar.total = total
        compiled = sum(run["compiled"] for run in runs)
        if compiled >= COMPILED:
            bar.set_postfix_str(f"{format_time(compiled)} of compiling", refresh=False)
        bar.set_description(label, refresh=label != self._label)
        self._label = label
        bar.update(nbytes - bar.n)
        if last:
            bar.close()
            self._bar = None

    def _new_bar(self, label: str, nbytes: int, total: int) -> Any:
        """Return a bar of bytes."""
        from tqdm import tqdm

        return tqdm(
            desc=label,
            initial=nbytes,
            total=total,
            file=self.stream,
            unit="B",
            unit_scale=True,
            unit_divisor=1024,
            miniters=0,
            dynamic_ncols=True,
        )


class NoDisplay:
    """Display of a process that has no streams, such as a daemon: nothing is shown."""

    def show(self, runs: Sequence[Summary], last: bool = False) -> None:
        """Show nothing."""


def text_display(stream: TextIO | None) -> "Display":
    """Return a bar if the stream is a terminal and tqdm is installed, else lines.

    Without a stream nothing is shown: `sys.stderr` is None in daemons and under ``pythonw``.
    """
    if stream is None:
        return NoDisplay()
    if stream.isatty() and find_spec("tqdm") is not None:
        return BarDisplay(stream)
    return LineDisplay(stream)


class NotebookDisplay:
    """Notebook display: a table with a bar for every stage, updated in place.

    Bars of tqdm and rich for notebooks need ipywidgets. This table needs IPython alone, and a saved
    notebook and its HTML keep it.

    Parameters
    ----------
    display : callable
        IPython's `display`.
    html : type
        IPython's `HTML`.
    """

    def __init__(self, display: Callable[..., Any], html: Callable[[str], Any]) -> None:
        self._html = html
        self._shown = -1e9
        self._handle = display(html(runs_html([])), display_id=True)

    def show(self, runs: Sequence[Summary], last: bool = False) -> None:
        """Update the table, if the last update is old enough; remove it at the end without runs."""
        now = time.monotonic()
        if last or now - self._shown >= OFTEN:
            self._shown = now
            self._handle.update(self._html("" if last and not runs else runs_html(runs)))


Display = BarDisplay | LineDisplay | NoDisplay | NotebookDisplay


def run_html(run: Summary) -> str:
    """Return a run as HTML: a line of numbers, and a bar for each stage."""
    stage = f" ({run['stage']})" if run["state"] == "running" else ""
    rows = "".join(
        f'<tr><td>{escape(stage["label"])}</td><td><progress value="{stage["done"]}" '
        f'max="{stage["total"]}"></progress></td><td>{stage["done"]} of {stage["total"]} '
        f"blocks</td><td>&ensp;{format_bytes(stage['nbytes'])}</td></tr>"
        for stage in run["stages"]
    )
    return (
        f"<p><b>{escape(run['title'])}: {escape(run['rounds'])}</b><br>"
        f"{escape(run['state'] + stage)}, "
        f"{format_bytes(run['bytes_done'])} of {format_bytes(run['bytes_total'])}, "
        f"{speed_text(run['bytes_per_second'])}, "
        f"{human_count(run['flops_per_second'], 'FLOP/s')}, "
        f"{_times(run['elapsed'], run['compiled'], run['left'])}; "
        f"needs {format_bytes(run['forecast']['peak_host'])} of memory per process</p>"
        f"<table>{rows}</table>"
    )


def runs_html(runs: Sequence[Summary]) -> str:
    """Return runs as HTML, one after the other."""
    tables = "".join(map(run_html, runs))
    return f'<div class="bigfft-progress">{tables or "<p>starting</p>"}</div>'


def display_here(stream: TextIO | None = None) -> Display:
    """Return a display for this environment: a notebook's cell, or text on `stream` (stderr)."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if stream is None and shell is not None and hasattr(shell, "kernel"):
        return NotebookDisplay(ipython.display.display, ipython.display.HTML)  # type: ignore[union-attr]
    return text_display(sys.stderr if stream is None else stream)


class LocalProgress(Callback):  # type: ignore[misc, unused-ignore]
    """Callback that shows the transforms of a scheduler in this process.

    Parameters
    ----------
    display : Display
        Display of the progress.
    """

    def __init__(self, display: Display) -> None:
        super().__init__()  # type: ignore[no-untyped-call, unused-ignore]
        self.display = display
        self.board = Board()
        self._lock = threading.Lock()

    def _show(self, changed: Any) -> None:
        if changed:
            with self._lock:
                self.display.show(self.board.summaries())

    def _hear(self, name: str, numbers: Mapping[str, Any]) -> None:
        """Show an event; called in the thread of a task."""
        self._show(self.board.hear(name, numbers))

    def _start_state(self, dsk: Mapping[Any, Any], state: Any) -> None:
        add_sink(self._hear)
        self._show(self.board.expect(dsk.items()))

    def _pretask(self, key: Any, dsk: Any, state: Any) -> None:
        self.board.take(key, "processing")

    def _posttask(
        self,
        key: Any,
        value: Any,
        dsk: Any,
        state: Any,
        worker: Any,
    ) -> None:
        self._show(self.board.take(key, "memory"))

    def _finish(self, dsk: Any, state: Any, failed: bool) -> None:
        remove_sink(self._hear)
        if failed:
            for run in self.board.runs.values():
                run.stop("erred")
        runs = self.board.summaries()
        if not is_running(runs):
            self.display.show(runs, last=True)
