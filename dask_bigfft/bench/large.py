"""Large transforms on many threads: forecasts beside times, round by round.

``python -m dask_bigfft.bench.large`` calibrates this machine with all its threads, or takes the
profile it is given, and runs transforms of 64 MiB to 4 GiB that calibration does not know, on the
CPU: once, so that they are warm, and some times more. Of each round it says what was forecast and
what threads took for copies, FFTs and the rest, for how long of that they had a processor, and how
long they were without a block. What is timed is `persist` of an array whose blocks are in memory.

With ``--out`` there is also a file ``.trace.jsonl`` of what each probe of the calibration took, and
some with fewer threads, by which other models can be tried afterwards. Everything is written after
each problem.

Imports `calibration`, `planner`, `kernels` and this folder.
"""

import argparse
import contextlib
import json
import logging
import math
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import dask.array as da
import dask.config

from dask_bigfft import calibration, config
from dask_bigfft.bench import machine
from dask_bigfft.bench.model import ERROR
from dask_bigfft.bench.model_problems import Problem, machine_of
from dask_bigfft.calibration import Effort
from dask_bigfft.calibration.probes import Probe, measured_stages
from dask_bigfft.calibration.timelines import Timeline, taken
from dask_bigfft.kernels.libraries import available
from dask_bigfft.planner.plan import Machine
from dask_bigfft.planner.profile import Profile

__all__ = ["LARGE", "main", "markdown"]

#: Of each kind of bound: memory and FFTs of rows, more and fewer blocks than threads, exchanges.
#: Small ones first, in which what Python does matters most.
LARGE = (
    Problem("plane of 64 MiB", "fftn", (2100, 2000), (66, 2000)),
    Problem("line of 128 MiB", "fftn", (1 << 23,), (1 << 19,)),
    Problem("cube of 128 MiB, single", "fftn", (256, 256, 256), (16, 256, 256), "complex64"),
    Problem("plane of 512 MiB, 4 blocks", "fftn", (6000, 5600), (1500, 5600)),
    Problem("rows of 200", "fftn", (160_000, 200), (5000, 200), axes=(1,)),
    Problem("real cube of 1 GiB", "rfftn", (512, 500, 525), (16, 500, 525), "float64"),
    Problem("rows of 64, 1 GiB, single", "fftn", (1 << 21, 64), (1 << 17, 64), "complex64",
            axes=(1,)),
    Problem("cube of 1 GiB", "fftn", (400, 400, 420), (25, 400, 420)),
    Problem("plane of 2 GiB", "fftn", (12000, 11200), (750, 11200)),
    Problem("line of 2 GiB", "fftn", (1 << 27,), (1 << 23,)),
    Problem("rows of 256", "fftn", (3 << 18, 256), (1 << 15, 256), axes=(1,)),
    Problem("rows of 256, 8 blocks", "fftn", (1 << 20, 256), (1 << 17, 256), axes=(1,)),
    Problem("rows of 64, single", "fftn", (3 << 21, 64), (1 << 18, 64), "complex64", axes=(1,)),
    Problem("rows of 16384", "fftn", (1 << 14, 1 << 14), (1 << 10, 1 << 14), axes=(1,)),
    Problem("large plane", "fftn", (15000, 16000), (940, 16000)),
    Problem("large cube", "fftn", (512, 500, 600), (32, 500, 600)),
    Problem("large cube, single", "fftn", (512, 768, 768), (32, 768, 768), "complex64"),
    Problem("large line", "fftn", (3 << 26,), (3 << 22,)),
)

#: Planes in small and in large blocks, which the trace has by fewer threads, too: how many threads
#: wait for the interpreter.
CROWDS = tuple(
    Probe("fftn", shape, "c16", 0, ways, (((0, shape[0]),), ((1, shape[1]),)))
    for shape, ways in (((512, 4096), 128), ((2048, 8192), 64)))

#: Numbers of a round that are kept beside its forecast.
SPAN = ("before", "idle", "tail", "busy", "copies", "ffts")

#: How long threads had a processor for blocks, and for these parts of them.
WORKED = ("worked", "worked_copies", "worked_ffts")


def _round(timelines: Sequence[Timeline], number: int) -> dict[str, float]:
    """Medians of what a round took."""
    spans = [line.spans[number] for line in timelines]
    found = {name: statistics.median(getattr(span, name) for span in spans) for name in SPAN}
    worked = map(statistics.median, zip(*(span.worked for span in spans), strict=True))
    return found | dict(zip(WORKED, worked, strict=True))


def measured(
    problem: Problem, x: da.Array, kernel: str, on: Machine, repeat: int
) -> dict[str, Any]:
    """Return the forecast of a problem beside what some runs took.

    Parameters
    ----------
    problem : Problem
        What is planned and run.
    x : dask.array.Array
        Of it, in memory.
    kernel : str
        FFT library.
    on : Machine
        Where it is run.
    repeat : int
        Runs that count, after one that does not.
    """
    plan = problem.plan(x, kernel, on)
    runs = [taken(x, plan) for _ in range(repeat + 1)][1:]
    times = [run.seconds for run in runs]
    seconds = statistics.median(times)
    rounds = [
        {"round": found.index, "blocks": found.blocks, "seconds_forecast": found.seconds,
         "copies_forecast": found.gather, "ffts_forecast": found.fft,
         "python_forecast": found.handling, **_round(runs, number)}
        for number, found in enumerate(plan.expected.rounds)
    ]
    return {"problem": problem.name, "kernel": kernel, "rounds": plan.notation,
            "shape": list(problem.shape), "dtype": problem.dtype, "blocks": x.npartitions,
            "forecast": plan.expected.seconds, "seconds": seconds, "times": times,
            "error": plan.expected.seconds / seconds - 1,
            "spread": (max(times) - min(times)) / 2 / seconds, "phases": rounds}


def markdown(found: dict[str, Any]) -> str:
    """Return the tables of what was found."""
    about, rows = found["machine"], found["rows"]
    within = sum(abs(row["error"]) <= max(ERROR, row["spread"]) for row in rows)
    lines = [
        "# Large transforms on many threads: forecasts against the clock", "",
        f"{about['cpu']}, {found['threads']} threads, calibrated in "
        f"{found['calibrated']:.0f} s, load {found['load_before']} before and "
        f"{found['load_after']} after. {within} of {len(rows)} forecasts are within "
        f"{100 * ERROR:.0f} %, or the spread.", "",
        "| problem | blocks | library | rounds | forecast, s | measured, s | error | spread |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['problem']} | {row['blocks']} | {row['kernel']} | `{row['rounds']}` | "
        f"{row['forecast']:.3f} | {row['seconds']:.3f} | {100 * row['error']:+.0f} % | "
        f"{100 * row['spread']:.0f} % |" for row in rows
    ]
    lines += [
        "", "Rounds: seconds of all threads, forecast and measured, and those without a block; "
        "`worked` is for how long of them they had a processor.", "",
        "| problem | library | round | blocks | copies | | worked | FFTs | | worked | the rest | | "
        "worked | without |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        for one in row["phases"]:
            rest = one["busy"] - one["copies"] - one["ffts"]
            worked = one["worked"] - one["worked_copies"] - one["worked_ffts"]
            numbers = (one["copies_forecast"], one["copies"], one["worked_copies"],
                       one["ffts_forecast"], one["ffts"], one["worked_ffts"],
                       one["python_forecast"], rest, worked, one["idle"] + one["tail"])
            lines.append(
                f"| {row['problem']} | {row['kernel']} | {one['round']} | {one['blocks']} | "
                + " | ".join(f"{number:.3f}" for number in numbers) + " |")
    return "\n".join(lines) + "\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dask_bigfft.bench.large")
    add = parser.add_argument
    add("--threads", type=int, default=0, metavar="N", help="threads of dask (default: all cores)")
    add("--problems", metavar="TEXT", default="", help="problems whose name contains this")
    add("--kernels", default="", metavar="A,B", help="FFT libraries (default: scipy and ducc0)")
    add("--repeat", type=int, default=5, metavar="N", help="runs that count (default: 5)")
    add("--scale", type=float, default=1.0, metavar="X", help="part of the first axis")
    add("--most", type=float, default=math.inf, metavar="GIB",
        help="leave out larger arrays, before --scale (default: none)")
    add("--profile", type=Path, metavar="PATH", help="speeds, instead of measuring them now")
    add("--seconds", type=float, default=300.0, metavar="S",
        help="no problem is begun after these (default: 300)")
    add("--out", type=Path, metavar="PATH",
        help="JSON of everything; tables and the profile go beside it")
    return parser


def _profile(args: argparse.Namespace, threads: int, kernels: Sequence[str]) -> Profile:
    if args.profile is not None:
        return Profile.from_json(args.profile.read_text(encoding="utf-8"))
    effort = Effort(threads, calibration.usual_nbytes(threads))
    return calibration.measure(effort, str(config.get("bigfft.scratch.directory")), kernels)


def _crowds(threads: int) -> None:
    """Let one, two, four and so on threads work on the same blocks, for the trace."""
    for probe in CROWDS:
        for power in range(threads.bit_length()):
            measured_stages(probe.plan(threads), 1 << power, 2)


class _Trace(logging.Handler):
    """A file of what calibration says that it has measured, line by line."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.DEBUG)
        self.path = path.with_suffix(".trace.jsonl")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text("", encoding="utf-8")

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno == logging.DEBUG:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(record.getMessage() + "\n")


@contextlib.contextmanager
def _traced(path: Path | None) -> Iterator[None]:
    """Keep what calibration measures beside a file of results, while the context lasts."""
    if path is None:
        yield
        return
    log, trace = logging.getLogger("dask_bigfft.calibration"), _Trace(path)
    level = log.level
    log.setLevel(logging.DEBUG)
    log.addHandler(trace)
    try:
        yield
    finally:
        log.removeHandler(trace)
        log.setLevel(level)


def _write(found: dict[str, Any], profile: Profile, path: Path | None) -> str:
    """Write what was found until now; return its tables."""
    text = markdown({**found, "load_after": machine.load()})
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(found, indent=1), encoding="utf-8")
        path.with_suffix(".md").write_text(text, encoding="utf-8")
        path.with_suffix(".profile.json").write_text(profile.to_json(), encoding="utf-8")
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 0 if every forecast is within bounds, else 1."""
    parser = _parser()
    args = parser.parse_args(argv)
    threads = args.threads or calibration.usual_threads()
    kernels = args.kernels.split(",") if args.kernels else [
        name for name in ("scipy", "ducc0") if name in available()]
    chosen = [p.scaled(args.scale) for p in LARGE
              if args.problems in p.name and p.nbytes <= args.most * (1 << 30)]
    if not chosen:
        parser.error(f"--problems {args.problems}: need part of one of, none above --most: "
                     f"{', '.join(p.name for p in LARGE)}")
    if unknown := [name for name in kernels if name not in available()]:
        parser.error(f"--kernels {unknown[0]}: need some of {', '.join(available())}")
    rows: list[dict[str, Any]] = []
    found = {"schema": 1, "machine": machine.describe(), "threads": threads,
             "load_before": machine.load(), "rows": rows}
    started = time.perf_counter()
    threaded = dask.config.set(scheduler="threads", num_workers=threads, pool=None)
    with _traced(args.out), threaded:
        profile = _profile(args, threads, kernels)
        found["calibrated"] = time.perf_counter() - started
        print(f"{found['calibrated']:4.0f} s  calibrated", flush=True)
        on = machine_of(profile, threads)
        _write(found, profile, args.out)
        if args.out is not None and args.profile is None:
            _crowds(threads)
        for problem in chosen:
            if time.perf_counter() - started > args.seconds:
                break
            x = problem.array()
            rows += [measured(problem, x, kernel, on, args.repeat) for kernel in kernels]
            print(f"{time.perf_counter() - started:4.0f} s  {problem.name}: " + ", ".join(
                f"{row['kernel']} {row['forecast']:.3f} of {row['seconds']:.3f} s"
                for row in rows[-len(kernels):]), flush=True)
            del x
            _write(found, profile, args.out)
    print(_write(found, profile, args.out))
    return int(not all(abs(row["error"]) <= max(ERROR, row["spread"]) for row in rows))


if __name__ == "__main__":
    sys.exit(main())
