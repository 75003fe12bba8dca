"""How right the cost model is: forecasts against times, and its choice against other plans.

``python -m dask_bigfft.bench.model`` does both, on problems that calibration does not know:

*errors*
    In turn, again and again: the machine is calibrated, each problem is planned with what was
    found, and run: once, so that it is warm, and five times. The medians of forecasts and times
    (of each turn the median) are compared; an error is within bounds if it
    is at most 15 percent, or the spread of the times (half of least to most, over the median).
*sweep*
    For each problem a grid of plans is run: sizes of blocks, rounds, carriers and FFT libraries.
    It holds the candidates that the planner keeps, by all carriers, and a seeded sample of those
    that it drops as too dear. The plan whose forecast is the least is held against the
    fastest one; `sweep` says how often each is run.

What is timed is `persist` of an array whose blocks are in memory, warm. After each turn, and after
each sweep, everything found until then is written; ``--keep`` goes on with such a file, so that the
parts can be run apart. Imports `calibration`, `graph`, `planner`, `events` and this folder.
"""

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import dask.array as da
import dask.config

from dask_bigfft import config
from dask_bigfft.bench import machine
from dask_bigfft.bench.model_problems import PROBLEMS, Problem, machine_of
from dask_bigfft.bench.sweep import BEHIND, HOPELESS, sweep
from dask_bigfft.calibration import Effort, measure
from dask_bigfft.events import add_sink, remove_sink
from dask_bigfft.graph.layer import transformed_array
from dask_bigfft.kernels.libraries import available
from dask_bigfft.planner.plan import Plan

__all__ = ["PROBLEMS", "Problem", "errors", "main", "markdown", "sweep"]

#: Error that is allowed.
ERROR = 0.15

#: Runs of a problem in each turn, of which the median counts, after one that does not.
RUNS = 5


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
    for found in plan.expected.rounds:
        copies, ffts = (watch.of(found.index, *names) for names in (
            ("gather", "scatter"), ("fft", "twiddle")))
        python = watch.of(found.index, "round", "unpack") - copies - ffts
        rows.append({"round": found.index, "blocks": found.blocks,
                     "seconds_forecast": found.seconds, "scheduling_forecast": found.scheduling,
                     "copies_forecast": found.gather, "copies": copies,
                     "ffts_forecast": found.fft, "ffts": ffts,
                     "python_forecast": found.handling, "python": python})
    return rows


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
        on = machine_of(profile, effort.threads)
        for problem in problems:
            x = arrays[problem.name]
            for kernel in kernels:
                plan = problem.plan(x, kernel, on)
                timed(x, plan, "shared")  # what others have left in memory and caches goes
                seconds = statistics.median(timed(x, plan, "shared") for _ in range(RUNS))
                row = rows.setdefault((problem.name, kernel), {
                    "problem": problem.name, "kernel": kernel, "forecasts": [], "times": [],
                    "rounds": [], "company": [], "unfolded": [],
                })
                if turn:  # the first one makes memory and compiled code ready
                    row["forecasts"].append(plan.expected.seconds)
                    row["times"].append(seconds)
                    row["rounds"].append(plan.notation)
                    row["company"].append([profile.company, profile.waiting])
                    row["unfolded"].append(phases(x, plan))
        judged = [_judged(row) for row in rows.values()] if turn else []
        note(f"errors: turn {turn} of {repeat}", judged)
    return judged


def _judged(row: dict[str, Any]) -> dict[str, Any]:
    """Median, error and spread of a row; phases are those of turns with the last one's rounds."""
    forecast, taken = statistics.median(row["forecasts"]), statistics.median(row["times"])
    spread = (max(row["times"]) - min(row["times"])) / 2 / taken
    error = forecast / taken - 1
    met = abs(error) <= max(ERROR, spread)
    rest = {name: value for name, value in row.items() if name != "unfolded"}
    alike = [rounds for rounds, plan in zip(row["unfolded"], row["rounds"], strict=True)
             if plan == row["rounds"][-1]]
    unfolded = [
        {name: statistics.median(one[name] for one in of_round) for name in of_round[0]}
        for of_round in zip(*alike, strict=True)
    ]
    return {**rest, "phases": unfolded, "forecast": forecast, "seconds": taken, "error": error,
            "spread": spread, "met": met}


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
        met, dropped, stopped, plans = (
            sum(row.get(name, 0) for row in swept)
            for name in ("met", "dropped", "stopped", "plans"))
        lines += [
            "", f"## Sweep: on {met} of {len(swept)} problems the plan ranked first is within "
            f"{100 * BEHIND:.0f} % of the fastest", "",
            f"Of {plans} plans {dropped} are a sample of those that the planner drops; {stopped} "
            f"were stopped when they had taken {HOPELESS:g} times as long as the fastest until "
            "then.", "",
            "Behind: the median of ratios of turns that were not used to say which plan is "
            "fastest, with its interval.", "",
            "| problem | plans | ranked first | s | fastest | s | behind |",
            "|---|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {row['problem']} | {row['plans']} | {_described(row['chosen'])} | "
            f"{row['chosen']['seconds']:.3f} | {_described(row['best'])} | "
            f"{row['best']['seconds']:.3f} | {100 * row['behind']:.0f} % "
            f"({100 * row['low']:.0f} to {100 * row['high']:.0f}) |" for row in swept
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
    rows = found.setdefault("sweep", [])
    known = {row["problem"] for row in rows}
    if all(problem.name in known for problem in problems):
        return
    profile = measure(effort, config.get("bigfft.scratch.directory"), kernels)
    found["profile"] = json.loads(profile.to_json())
    for problem in problems:
        if problem.name in known:
            continue
        if late():
            note(f"sweep: {problem.name} is left out, the time is over")
            continue
        rows.append(sweep(problem, effort.threads, kernels, profile))
        note(f"sweep: {problem.name} behind by {rows[-1]['behind']:.2f}, "
             f"{rows[-1]['seconds']:.0f} s")


def _kept(path: Path | None) -> dict[str, Any]:
    """What a file has of earlier runs: nothing where there is none."""
    if path is None or not path.exists():
        return {}
    found = json.loads(path.read_text(encoding="utf-8"))
    return {name: found[name] for name in ("errors", "sweep", "profile") if name in found}


def _others(before: list[dict[str, Any]], rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of an earlier run whose problems were not run again."""
    again = {(row["problem"], row["kernel"]) for row in rows}
    return [row for row in before if (row["problem"], row["kernel"]) not in again]


if __name__ == "__main__":
    sys.exit(main())
