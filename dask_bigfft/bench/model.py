"""How right the cost model is: forecasts against times, and its choice against all others.

``python -m dask_bigfft.bench.model`` does both, on problems that calibration does not know:

*errors*
    In turn, again and again: the machine is calibrated, each problem is planned with what was
    found, and run: once, so that it is warm, and three times. The medians of forecasts and times
    (of each turn the median) are compared; an error is within bounds if it
    is at most 15 percent, or the spread of the times (half of least to most, over the median).
*sweep*
    For each problem every plan of a grid is run: sizes of blocks, rounds, carriers and FFT
    libraries. The plan whose forecast is the least is held against the fastest one. All are run
    once, then the best ones and the model's choice in turn, several times each.

What is timed is `persist` of an array whose blocks are in memory, warm. Imports `calibration`,
`tuning`, `graph`, `planner` and `machine`.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dask.array as da
import dask.config
import numpy as np

from dask_bigfft import config
from dask_bigfft.bench import machine
from dask_bigfft.calibration import Effort, measure
from dask_bigfft.graph.layer import transformed_array
from dask_bigfft.kernels.libraries import available
from dask_bigfft.memory_settings import machine_nbytes
from dask_bigfft.planner.plan import Machine, Plan
from dask_bigfft.planner.profile import Profile
from dask_bigfft.planner.request import Request
from dask_bigfft.planner.search import find_plan
from dask_bigfft.planner.seconds import Model
from dask_bigfft.transforms.spec import transform_spec
from dask_bigfft.tuning import SCALES, region

__all__ = ["PROBLEMS", "Problem", "errors", "main", "markdown", "sweep"]

#: Errors that are allowed, and how far the model's choice may be from the fastest plan.
ERROR, BEHIND = 0.15, 0.10

#: Carriers of the sweep, and the carrier of the plan that each needs.
CARRIERS = {"shared": "memory", "tasks": "memory", "disk": "disk"}

#: Plans of a sweep that are run more than once, and how often.
FINALISTS, FINALS = 6, 5

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
        """An array of ones in memory."""
        x: Any = self.lazy().persist()
        return x  # type: ignore[no-any-return]

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


def _machine(profile: Profile, threads: int) -> Machine:
    together = config.get("bigfft.exchange.in-place")
    return Machine(machine_nbytes(), threads, 1, profile=profile, shared=together)


# --- errors ---------------------------------------------------------------------------------


def errors(
    problems: Sequence[Problem], effort: Effort, kernels: Sequence[str], repeat: int,
    note: Callable[[str, list[dict[str, Any]]], None] = lambda text, rows: None,
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
    """
    folder = str(config.get("bigfft.scratch.directory"))
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    arrays = {problem.name: problem.array() for problem in problems}
    for turn in range(repeat + 1):
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

    @property
    def seconds(self) -> float:
        return statistics.median(self.times)

    def row(self) -> dict[str, Any]:
        factors = [list(program.factors) for program in self.plan.programs]
        return {"rounds": self.plan.notation, "factors": factors, "kernel": self.plan.kernel,
                "carrier": self.carrier, "scale": self.scale, "forecast": self.forecast,
                "times": self.times, "seconds": self.seconds}


def _grid(
    problem: Problem, x: da.Array, kernels: Sequence[str], on: Machine
) -> Iterator[_Run]:
    """All plans of a problem: blocks, rounds and libraries, by all carriers."""
    spec = transform_spec(problem.kind, problem.shape, np.dtype(problem.dtype), None, problem.axes)
    for carrier, place in CARRIERS.items():
        request = problem.request(x, kernels[0], place)
        for plan, trial in region(spec, request, on, kernels):
            forecast = plan.forecast.seconds
            if carrier == "tasks":
                model = Model(on, plan.kernel, spec.work_dtype.name, "tasks", "cpu")
                result = None if plan.ends_in_round else plan.result
                rounds = model.route(plan.source, plan.rounds, result)
                forecast = on.profile.start + sum(found.seconds for found in rounds)
            yield _Run(plan, carrier, trial.scale, forecast, [])


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
    return {"problem": problem.name, "plans": len(runs), "scales": list(SCALES),
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
        met = sum(row["met"] for row in swept)
        lines += [
            "", f"## Sweep: on {met} of {len(swept)} problems the plan ranked first is within "
            f"{100 * BEHIND:.0f} % of the fastest", "",
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
        help="no sweep is begun after these (default: 1200)")
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
    args = _parser().parse_args(argv)
    kernels = args.kernels.split(",") if args.kernels else [
        name for name in ("scipy", "ducc0") if name in available()
    ]
    chosen = [p.scaled(args.scale) for p in PROBLEMS if args.problems in p.name]
    effort = Effort(args.threads, int(max(1 << 18, args.scale * (32 << 20))), 1)
    found: dict[str, Any] = {"schema": 1, "machine": machine.describe(), "threads": args.threads,
                             "repeat": args.repeat, "load_before": machine.load()}
    started = time.perf_counter()
    with dask.config.set(scheduler="threads", num_workers=args.threads):
        if args.only != "sweep":
            def note(text: str, rows: list[dict[str, Any]]) -> None:
                print(text, flush=True)
                found["errors"] = rows
                _write({**found, "load_after": machine.load()}, args.out)

            errors(chosen, effort, kernels, args.repeat, note)
        if args.only != "errors":
            profile = measure(replace(effort, repeat=3), config.get("bigfft.scratch.directory"),
                              kernels)
            found["profile"] = json.loads(profile.to_json())
            found["sweep"] = []
            for problem in chosen:
                if time.perf_counter() - started > args.seconds:
                    print(f"sweep: {problem.name} is left out, the time is over")
                    continue
                found["sweep"].append(sweep(problem, effort, kernels, profile))
                print(f"sweep: {problem.name} behind by {found['sweep'][-1]['behind']:.2f}",
                      flush=True)
                _write({**found, "load_after": machine.load()}, args.out)
    found |= {"load_after": machine.load(), "seconds": time.perf_counter() - started}
    print(_write(found, args.out))
    return int(not all(row["met"] for part in ("errors", "sweep") for row in found.get(part, [])))


if __name__ == "__main__":
    sys.exit(main())
