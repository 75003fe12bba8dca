"""``python -m dask_bigfft.bench``: runs the named problems and writes what it found.

Exit status: 0 all answers right, 1 something wrong or not run (the report says what), 2 an argument
that is not allowed. What was measured until then is written after every problem, so a run that is
stopped, by ``--budget-seconds`` or by Ctrl-C, counts.

Imports the rest of this folder.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from dask_bigfft.bench import children, machine, report
from dask_bigfft.bench.peers import PEERS, PLANNING_SECONDS
from dask_bigfft.bench.problems import PROBLEMS, Problem, select
from dask_bigfft.bench.targets import best_kernel
from dask_bigfft.errors import ArgumentError, refuse

__all__ = ["main"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m dask_bigfft.bench", description=f"Problems: {' '.join(PROBLEMS)}"
    )
    add = parser.add_argument
    add("--list", action="store_true", help="name the problems and end")
    add("--only", nargs="+", default=[], metavar="NAME", help="problems, by name or pattern: '3d*'")
    add("--peers", nargs="*", metavar="NAME", help=f"of: {', '.join(PEERS)} (default: all)")
    add("--kernels", nargs="*", metavar="NAME", help="FFT libraries of ours (default: installed)")
    add("--repeat", type=_count, default=5, metavar="N", help="warm rounds that count (default: 5)")
    add("--slow-rounds", type=int, metavar="N",
        help="warm rounds of those that take over four times as long as the fastest (default: all)")
    add("--quick", action="store_true",
        help="three rounds, checked once; slow ones run once; no cold runs but those asked for")
    add("--merge", action="store_true",
        help="keep what --out has of other problems; the table says when each was measured")
    add("--planning-seconds", type=float, default=PLANNING_SECONDS, metavar="S",
        help="FFTW's planner stops trying after that time (default: %(default)g)")
    add("--cold", type=int, metavar="N", help="cold runs of each mode (default: 3)")
    add("--threads", type=_count, default=2, metavar="N", help="threads of everybody (default: 2)")
    add("--scale", type=float, default=1.0, metavar="F", help="shrink all arrays, to try things")
    add("--budget-seconds", type=float, default=math.inf, metavar="S",
        help="begin nothing after that time")
    add("--out", type=Path, default=Path("ci/results/cpu.json"), metavar="PATH",
        help="JSON; table and picture go beside it (default: ci/results/cpu.json)")
    add("--child", help=argparse.SUPPRESS)
    return parser


def _count(text: str) -> int:
    found = int(text)
    if found < 1:
        raise argparse.ArgumentTypeError(f"{text} is not allowed: need a number of at least 1")
    return found


def _described(problem: Problem) -> dict[str, Any]:
    extra = {"size": problem.size, "nbytes": problem.nbytes, "flops": problem.flops}
    return {**asdict(problem), **extra}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _kept(args: argparse.Namespace, chosen: Sequence[Problem]) -> list[dict[str, Any]]:
    """What an earlier run has found of problems that are not measured now.

    Raises
    ------
    ArgumentError
        If it was done with another number of threads, or on another scale.
    """
    if not args.merge or not args.out.exists():
        return []
    before = json.loads(args.out.read_text(encoding="utf-8"))
    same = {"schema": report.SCHEMA, "threads": args.threads, "scale": args.scale}
    if any(before.get(key) != value for key, value in same.items()):
        refuse("merge", str(args.out), f"results with {same}")
    names = {problem.name for problem in chosen}
    found = [entry for entry in before["problems"] if entry["problem"]["name"] not in names]
    for entry in found:
        then = {"started": before["started"], "repeat": before["repeat"]}
        entry.setdefault("measured", then)
    return found


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _cold(args: argparse.Namespace, entry: dict[str, Any], until: float) -> None:
    """Add the cold runs with the kernel that was fastest warm, and how fast pages came by then."""
    kernel, problem = best_kernel(entry), entry["problem"]
    shared = {"problem": problem["name"], "scale": args.scale, "kernel": kernel}
    tasks = ({"task": "touch"}, *({"task": "cold", "mode": m} for m in ("persist", "compute")))
    for _ in range(args.cold if kernel is not None else 0):
        touched: dict[str, Any] = {}
        for task in tasks:
            left = until - time.monotonic()
            if left <= 0:
                return
            children.make_dirty(4 * problem["nbytes"])
            found = children.call({**shared, **task}, args.threads, left)
            if task["task"] == "touch":
                touched = found
            else:  # without a rate it is of no use
                entry["cold"].append(touched | found if "error" not in touched else touched)


def _measure(
    args: argparse.Namespace, problem: Problem, until: float, wisdom: list[str]
) -> dict[str, Any]:
    """Return all that is measured of one problem; FFTW's `wisdom` grows."""
    entry: dict[str, Any] = {
        "problem": _described(problem.scaled(args.scale)),
        "measured": {"started": _now(), "repeat": args.repeat,
                     "planning_seconds": args.planning_seconds},
        "cold": [],
    }
    task = {"task": "warm", "problem": problem.name, "scale": args.scale, "peers": args.peers,
            "kernels": args.kernels, "repeat": args.repeat, "wisdom": wisdom,
            "slow_rounds": args.slow_rounds, "quick": args.quick,
            "planning_seconds": args.planning_seconds}
    entry["warm"] = children.call(task, args.threads, until - time.monotonic())
    wisdom[:] = entry["warm"].pop("wisdom", wisdom)
    _cold(args, entry, until)
    entry["derived"] = report.derive(entry)
    return entry


def _line(entry: dict[str, Any]) -> str:
    """What is said of a problem on the terminal."""
    name, derived = entry["problem"]["name"], entry["derived"]
    best = derived["best_kernel"]
    if best is None:
        return f"{name}: {entry['warm'].get('error', 'nothing of ours could be timed')}"
    peers = ", ".join(
        f"{peer} {kernels[best]['median']:.2f}" for peer, kernels in derived["ratios"].items()
    )
    reached = sum(target["met"] for target in derived["targets"])
    return f"{name}: {best}; {peers}; {reached} of {len(derived['targets'])} targets"


def _run(args: argparse.Namespace) -> dict[str, Any]:
    started = time.monotonic()
    until = started + args.budget_seconds
    chosen = select(args.only)
    wisdom: list[str] = []
    results: dict[str, Any] = {
        "schema": report.SCHEMA,
        "started": _now(),
        "complete": False,
        "seconds": 0.0,
        "threads": args.threads,
        "repeat": args.repeat,
        "scale": args.scale,
        "load_before": machine.load(),
        "load_after": machine.load(),
        "machine": children.call({"task": "describe"}, args.threads, math.inf),
        "problems": _kept(args, chosen),
    }
    order = list(PROBLEMS)
    for number, problem in enumerate(chosen, 1):
        if time.monotonic() > until:
            _say("the time is up; the rest is left out")
            break
        entry = _measure(args, problem, until, wisdom)
        results["problems"].append(entry)
        results["problems"].sort(key=lambda found: order.index(found["problem"]["name"]))
        results["complete"] = number == len(chosen)
        results["seconds"] = time.monotonic() - started
        results["load_after"] = machine.load()
        report.write(results, args.out)
        _say(_line(entry))
    return results


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark with arguments as on the command line; return the exit status."""
    args = _parser().parse_args(argv)
    if args.quick:
        args.repeat, args.slow_rounds = 3, 0
    if args.cold is None:
        args.cold = 0 if args.quick else 3
    if args.child is not None:
        children.serve(args.child)
        return 0
    if args.list:
        for problem in PROBLEMS.values():
            print(f"{problem.name:28} {problem.nbytes / 2**20:6.0f} MiB  {problem.family}")
        return 0
    try:
        results = _run(args)
    except ArgumentError as error:
        _say(str(error))
        return 2
    except KeyboardInterrupt:
        _say("interrupted; what was measured is written")
        return 1
    found = report.faults(results)
    for fault in found:
        _say(fault)
    if args.out.exists():
        _say(f"written: {args.out}, .md, .png")
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
