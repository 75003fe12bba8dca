"""How right the cost model is: forecasts against times, and its choice against other plans.

``python -m dask_bigfft.bench.model`` does both, on problems that calibration does not know:

*errors*
    In turn, again and again: the machine is calibrated, each problem is planned with what was
    found, and run: once, so that it is warm, and three times. The medians of forecasts and times
    (of each turn the median) are compared; an error is within bounds if it
    is at most 15 percent, or the spread of the times (half of least to most, over the median).
*sweep*
    For each problem a grid of plans is run: sizes of blocks, rounds, carriers and FFT libraries.
    It holds the candidates that the planner keeps, by all carriers, and a seeded sample of those
    that it drops as too dear. The plan whose forecast is the least is held against the
    fastest one. All are run once, then the best ones and the model's choice in turn, several
    times each.

What is timed is `persist` of an array whose blocks are in memory, warm. After each turn, and after
each sweep, everything found until then is written; ``--keep`` goes on with such a file, so that the
parts can be run apart. Imports `calibration`, `tuning`, `graph`, `planner`, `events` and `machine`.
"""

import argparse
import json
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dask.array as da
import dask.config
import numpy as np

from dask_bigfft import config
from dask_bigfft.bench import machine
from dask_bigfft.calibration import Effort, measure
from dask_bigfft.events import add_sink, remove_sink
from dask_bigfft.graph.layer import transformed_array
from dask_bigfft.kernels.libraries import available
from dask_bigfft.memory_settings import machine_nbytes
from dask_bigfft.planner import cost
from dask_bigfft.planner.plan import Machine, Plan
from dask_bigfft.planner.profile import Profile
from dask_bigfft.planner.request import Request
from dask_bigfft.planner.search import every_plan, find_plan
from dask_bigfft.planner.seconds import Model
from dask_bigfft.transforms.spec import transform_spec
from dask_bigfft.tuning import SCALES, in_memory, region

__all__ = ["PROBLEMS", "Problem", "errors", "main", "markdown", "sweep"]

#: Errors that are allowed, and how far the model's choice may be from the fastest plan.
ERROR, BEHIND = 0.15, 0.10

#: Carriers of the sweep, and the carrier of the plan that each needs.
CARRIERS = {"shared": "memory", "tasks": "memory", "disk": "disk"}

#: Plans of a sweep that are run more than once, and how often.
FINALISTS, FINALS = 6, 5

#: Dropped candidates that are run as well, and the sizes of blocks that they are taken from.
DROPPED, DROPPED_SCALES = 40, (1.0, 4.0)

#: Runs of a problem in each turn, of which the median counts, after one that does not.
RUNS = 3


@dataclass(frozen=True)
class Problem:
    """A transform that is planned and run.

    Parameters
    ----------
    name, kind : str
        What it is called, and the transform.
    shape, chunks : tuple of int
        Of the array, and of its largest chunk.
    dtype : str
        Of the array.
    axes : tuple of int or None
        The transformed axes.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str = "complex128"
    axes: tuple[int, ...] | None = None

    def lazy(self) -> da.Array:
        """An array of ones, lazily."""
        x: Any = da.ones(self.shape, chunks=self.chunks, dtype=self.dtype)
        return x  # type: ignore[no-any-return]

    def array(self) -> da.Array:
        """An array of ones whose blocks have memory of their own."""
        return in_memory(self.lazy())

    def scaled(self, scale: float) -> "Problem":
        """The problem with a part of its first axis."""
        if scale >= 1:
            return self
        first = max(2, round(self.shape[0] * scale))
        width = max(1, round(self.chunks[0] * scale))
        shape, chunks = (first, *self.shape[1:]), (width, *self.chunks[1:])
        return replace(self, shape=shape, chunks=chunks)

    def request(self, x: da.Array, kernel: str, carrier: str = "memory") -> Request:
        """What the planner is asked."""
        chunks = tuple(tuple(map(int, cut)) for cut in x.chunks)
        return Request(chunks, kernel=kernel, carrier=carrier, device="cpu")

    def plan(self, x: da.Array, kernel: str, on: Machine) -> Plan:
        """The plan that the model likes best."""
        spec = transform_spec(self.kind, self.shape, np.dtype(self.dtype), None, self.axes)
        return find_plan(spec, self.request(x, kernel), on)


#: None of these lengths and chunks is a probe's.
PROBLEMS = (
    Problem("line of 3 x 2^20", "fftn", (3 << 20,), (3 << 16,)),
    Problem("line of 2^22, single", "fftn", (1 << 22,), (1 << 18,), "complex64"),
    Problem("plane in rows", "fftn", (1536, 2048), (96, 2048)),
    Problem("plane in rows, single", "fftn", (3000, 1250), (250, 1250), "complex64"),
    Problem("plane in squares", "fftn", (1800, 1600), (450, 400)),
    Problem("tall plane", "fftn", (49152, 60), (4096, 60)),
    Problem("slabs", "fftn", (144, 150, 160), (12, 150, 160)),
    Problem("pencils", "fftn", (144, 144, 144), (36, 36, 144)),
    Problem("real slabs", "rfftn", (160, 180, 192), (16, 180, 192), "float64"),
    Problem("one axis of a batch", "fftn", (768, 4096), (96, 512), "complex128", (1,)),
)


def timed(x: da.Array, plan: Plan, carrier: str) -> float:
    """Seconds of a transform by a plan."""
    with dask.config.set({"bigfft.exchange.carrier": carrier}):
        result = transformed_array(x, plan, carrier)
        started = time.perf_counter()
        blocks = result.persist()
        seconds = time.perf_counter() - started
    del blocks
    return seconds


class _Phases:
    """A sink that adds up the seconds of threads, by round: copies, FFTs, and what Python does."""

    def __init__(self) -> None:
        self.seconds: dict[tuple[int, str], float] = {}
        self._lock = threading.Lock()

    def take(self, name: str, numbers: Mapping[str, Any]) -> None:
        if "index" in numbers and "seconds" in numbers:
            key = int(numbers["index"]), name
            with self._lock:
                before = self.seconds.get(key, 0.0)
                self.seconds[key] = before + float(numbers["seconds"])

    def of(self, index: int, *names: str) -> float:
        """Seconds of some phases of a round."""
        return sum(self.seconds.get((index, name), 0.0) for name in names)


def phases(x: da.Array, plan: Plan) -> list[dict[str, float]]:
    """Return what each round took, by phase, beside what was forecast: seconds of threads."""
    watch = _Phases()
    add_sink(watch.take)
    try:
        timed(x, plan, "shared")
    finally:
        remove_sink(watch.take)
    rows = []
    for found in plan.forecast.rounds:
        copies, ffts = (watch.of(found.index, *names) for names in (
            ("gather", "scatter"), ("fft", "twiddle")))
        python = watch.of(found.index, "round", "unpack") - copies - ffts
        rows.append({"round": found.index, "blocks": found.blocks,
                     "copies_forecast": found.gather, "copies": copies,
                     "ffts_forecast": found.fft, "ffts": ffts,
                     "python_forecast": found.handling, "python": python})
    return rows


def _machine(profile: Profile, threads: int) -> Machine:
    together = config.get("bigfft.exchange.in-place")
    return Machine(machine_nbytes(), threads, 1, profile=profile, shared=together)


# --- errors ---------------------------------------------------------------------------------


def errors(
    problems: Sequence[Problem], effort: Effort, kernels: Sequence[str], repeat: int,
    note: Callable[[str, list[dict[str, Any]]], None] = lambda text, rows: None,
    late: Callable[[], bool] = lambda: False,
) -> list[dict[str, Any]]:
    """Return forecasts and times of problems, calibrated anew before each turn.

    Parameters
    ----------
    problems : sequence of Problem
        What is planned and run.
    effort : Effort
        Of each calibration.
    kernels : sequence of str
        FFT libraries; each problem is done with all of them.
    repeat : int
        Turns; at least 7 are wanted.
    note : callable
        Told what goes on, and what is known after each turn.
    late : callable
        Whether the time is over, so that no further turn is begun.
    """
    folder = str(config.get("bigfft.scratch.directory"))
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    arrays = {problem.name: problem.array() for problem in problems}
    judged: list[dict[str, Any]] = []
    for turn in range(repeat + 1):
        if judged and late():
            break
        profile = measure(effort, folder, kernels)
        on = _machine(profile, effort.threads)
        for problem in problems:
            x = arrays[problem.name]
            for kernel in kernels:
                plan = problem.plan(x, kernel, on)
                timed(x, plan, "shared")  # what others have left in memory and caches goes
                seconds = statistics.median(timed(x, plan, "shared") for _ in range(RUNS))
                row = rows.setdefault((problem.name, kernel), {
                    "problem": problem.name, "kernel": kernel, "forecasts": [], "times": [],
                    "rounds": [], "company": [],
                })
                if turn:  # the first one makes memory and compiled code ready
                    row["forecasts"].append(plan.forecast.seconds)
                    row["times"].append(seconds)
                    row["rounds"].append(plan.notation)
                    row["company"].append([profile.company, profile.waiting])
                    row["phases"] = phases(x, plan)
        judged = [_judged(row) for row in rows.values()] if turn else []
        note(f"errors: turn {turn} of {repeat}", judged)
    return judged


def _judged(row: dict[str, Any]) -> dict[str, Any]:
    """Median, error and spread of a row."""
    forecast, taken = statistics.median(row["forecasts"]), statistics.median(row["times"])
    spread = (max(row["times"]) - min(row["times"])) / 2 / taken
    error = forecast / taken - 1
    met = abs(error) <= max(ERROR, spread)
    return {**row, "forecast": forecast, "seconds": taken, "error": error, "spread": spread,
            "met": met}


# --- sweep ----------------------------------------------------------------------------------


@dataclass
class _Run:
    """A plan of the grid, by one carrier."""

    plan: Plan
    carrier: str
    scale: float
    forecast: float
    times: list[float]
    dropped: bool = False

    @property
    def seconds(self) -> float:
        return statistics.median(self.times)

    def row(self) -> dict[str, Any]:
        factors = [list(program.factors) for program in self.plan.programs]
        return {"rounds": self.plan.notation, "factors": factors, "kernel": self.plan.kernel,
                "carrier": self.carrier, "scale": self.scale, "forecast": self.forecast,
                "times": self.times, "seconds": self.seconds, "dropped": self.dropped}


def _grid(
    problem: Problem, x: da.Array, kernels: Sequence[str], on: Machine
) -> Iterator[_Run]:
    """Plans of a problem: blocks, rounds and libraries, by all carriers."""
    spec = transform_spec(problem.kind, problem.shape, np.dtype(problem.dtype), None, problem.axes)
    kept: set[Any] = set()
    for carrier, place in CARRIERS.items():
        request = problem.request(x, kernels[0], place)
        for plan, trial in region(spec, request, on, kernels):
            forecast = plan.forecast.seconds
            if carrier == "tasks":
                model = Model(on, plan.kernel, spec.work_dtype.name, "tasks", "cpu")
                result = None if plan.ends_in_round else plan.result
                rounds = model.route(plan.source, plan.rounds, result)
                forecast = on.profile.start + sum(found.seconds for found in rounds)
            kept.add((plan.rounds, plan.result))
            yield _Run(plan, carrier, trial.scale, forecast, [])
    others = {
        (plan.rounds, plan.result): (plan, scale) for scale in DROPPED_SCALES
        for plan in every_plan(spec, replace(problem.request(x, kernels[0]), scale=scale), on)
    }
    rest = [found for key, found in others.items() if key not in kept]
    chosen = random.Random(problem.name)
    for plan, scale in chosen.sample(rest, min(DROPPED, len(rest))):
        one = replace(plan, kernel=chosen.choice(kernels))
        one = replace(one, forecast=cost.forecast(one))
        yield _Run(one, "shared", scale, one.forecast.seconds, [], dropped=True)


def sweep(
    problem: Problem, effort: Effort, kernels: Sequence[str], profile: Profile,
) -> dict[str, Any]:
    """Return what all plans of a problem took, and how far the model's choice is from the best.

    Parameters
    ----------
    problem : Problem
        What is run.
    effort : Effort
        Threads.
    kernels : sequence of str
        FFT libraries.
    profile : Profile
        By which plans are ranked.
    """
    x, on = problem.array(), _machine(profile, effort.threads)
    runs = list(_grid(problem, x, kernels, on))
    chosen = min(runs, key=lambda run: run.forecast)
    timed(x, chosen.plan, chosen.carrier)
    for run in runs:
        run.times.append(timed(x, run.plan, run.carrier))
    finalists = sorted(runs, key=lambda run: run.times[0])[:FINALISTS]
    if chosen not in finalists:
        finalists.append(chosen)
    for run in finalists:
        run.times.clear()  # the first time is a cold one
    for turn in range(FINALS):
        for run in finalists if turn % 2 else reversed(finalists):
            run.times.append(timed(x, run.plan, run.carrier))
    best = min(finalists, key=lambda run: run.seconds)
    behind = chosen.seconds / best.seconds - 1
    return {"problem": problem.name, "plans": len(runs),
            "dropped": sum(run.dropped for run in runs), "scales": list(SCALES),
            "kernels": list(kernels), "carriers": list(CARRIERS), "chosen": chosen.row(),
            "best": best.row(), "behind": behind, "met": behind <= BEHIND,
            "runs": [run.row() for run in sorted(runs, key=lambda run: run.seconds)]}


# --- tables ---------------------------------------------------------------------------------


def _described(run: dict[str, Any]) -> str:
    return f"`{run['rounds']}` {run['kernel']}, {run['carrier']}, blocks x {run['scale']:g}"


def markdown(found: dict[str, Any]) -> str:
    """Return the tables of what was found."""
    rows, swept = found.get("errors", []), found.get("sweep", [])
    lines = ["# The cost model against the clock", ""]
    about = found["machine"]
    lines += [f"{about['cpu']}, {found['threads']} threads, load {found['load_before']} before and "
              f"{found['load_after']} after.", ""]
    if rows:
        met = sum(row["met"] for row in rows)
        lines += [
            f"## Errors: {met} of {len(rows)} within bounds", "",
            "Calibrated and run in turn; medians of "
            f"{len(rows[0]['times'])}. Allowed: {100 * ERROR:.0f} %, or the spread.", "",
            "| problem | library | forecast, s | measured, s | error | spread | within |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {row['problem']} | {row['kernel']} | {row['forecast']:.3f} | "
            f"{row['seconds']:.3f} | {100 * row['error']:+.0f} % | {100 * row['spread']:.0f} % | "
            f"{'yes' if row['met'] else 'no'} |" for row in rows
        ]
    if swept:
        met, dropped = sum(row["met"] for row in swept), sum(row["dropped"] for row in swept)
        lines += [
            "", f"## Sweep: on {met} of {len(swept)} problems the plan ranked first is within "
            f"{100 * BEHIND:.0f} % of the fastest", "",
            f"Of the plans {dropped} are a sample of those that the planner drops.", "",
            "| problem | plans | ranked first | s | fastest | s | behind |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {row['problem']} | {row['plans']} | {_described(row['chosen'])} | "
            f"{row['chosen']['seconds']:.3f} | {_described(row['best'])} | "
            f"{row['best']['seconds']:.3f} | {100 * row['behind']:.0f} % |" for row in swept
        ]
    return "\n".join(lines) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dask_bigfft.bench.model")
    add = parser.add_argument
    add("--only", choices=("errors", "sweep"), help="one of both (default: both)")
    add("--problems", metavar="TEXT", default="", help="problems whose name contains this")
    add("--repeat", type=int, default=7, metavar="N", help="turns of the errors (default: 7)")
    add("--threads", type=int, default=2, metavar="N", help="threads of dask (default: 2)")
    add("--kernels", default="", metavar="A,B", help="FFT libraries (default: scipy and ducc0)")
    add("--scale", type=float, default=1.0, metavar="X", help="part of the first axis (tests)")
    add("--seconds", type=float, default=1200.0, metavar="S",
        help="no turn and no sweep is begun after these (default: 1200)")
    add("--keep", action="store_true",
        help="go on with the file: what it has and is not asked for stays, sweeps are not repeated")
    add("--out", type=Path, metavar="PATH", help="JSON of everything; tables go beside it")
    return parser


def _write(found: dict[str, Any], path: Path | None) -> str:
    """Write what was found until now; return its tables."""
    text = markdown(found)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1), encoding="utf-8")
        path.with_suffix(".md").write_text(text, encoding="utf-8")
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 if everything that is wanted was reached, else 1."""
    parser = _parser()
    args = parser.parse_args(argv)
    kernels = args.kernels.split(",") if args.kernels else [
        name for name in ("scipy", "ducc0") if name in available()
    ]
    chosen = [p.scaled(args.scale) for p in PROBLEMS if args.problems in p.name]
    if not chosen:
        parser.error(f"--problems {args.problems}: need part of one of: "
                     f"{', '.join(p.name for p in PROBLEMS)}")
    if unknown := [name for name in kernels if name not in available()]:
        parser.error(f"--kernels {unknown[0]}: need some of {', '.join(available())}")
    effort = Effort(args.threads, int(max(1 << 18, args.scale * (32 << 20))), 1)
    found: dict[str, Any] = _kept(args.out) if args.keep else {}
    found |= {"schema": 1, "machine": machine.describe(), "threads": args.threads,
              "repeat": args.repeat, "load_before": machine.load()}
    started = time.perf_counter()

    def late() -> bool:
        return time.perf_counter() - started > float(args.seconds)

    def note(text: str, rows: list[dict[str, Any]] | None = None) -> None:
        print(f"{time.perf_counter() - started:4.0f} s  {text}", flush=True)
        if rows:
            found["errors"] = [*_others(found.get("errors", []), rows), *rows]
        _write({**found, "load_after": machine.load()}, args.out)

    with dask.config.set(scheduler="threads", num_workers=args.threads):
        if args.only != "sweep":
            errors(chosen, effort, kernels, args.repeat, note, late)
        if args.only != "errors":
            _sweeps(chosen, replace(effort, repeat=3), kernels, found, note, late)
    found |= {"load_after": machine.load(), "seconds": time.perf_counter() - started}
    print(_write(found, args.out))
    return int(not all(row["met"] for part in ("errors", "sweep") for row in found.get(part, [])))


def _sweeps(
    problems: Sequence[Problem], effort: Effort, kernels: Sequence[str], found: dict[str, Any],
    note: Callable[[str], None], late: Callable[[], bool],
) -> None:
    """Enter the sweeps of problems that have none."""
    profile = measure(effort, config.get("bigfft.scratch.directory"), kernels)
    found["profile"] = json.loads(profile.to_json())
    rows = found.setdefault("sweep", [])
    for problem in problems:
        if any(row["problem"] == problem.name for row in rows):
            continue
        if late():
            note(f"sweep: {problem.name} is left out, the time is over")
            continue
        rows.append(sweep(problem, effort, kernels, profile))
        note(f"sweep: {problem.name} behind by {rows[-1]['behind']:.2f}")


def _kept(path: Path | None) -> dict[str, Any]:
    """What a file has of earlier runs: nothing where there is none."""
    if path is None or not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return {name: found[name] for name in ("errors", "sweep") if name in found}


def _others(before: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of an earlier run whose problems were not run again."""
    again = {(row["problem"], row["kernel"]) for row in rows}
    return [row for row in before if (row["problem"], row["kernel"]) not in again]


if __name__ == "__main__":
    sys.exit(main())
