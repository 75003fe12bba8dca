"""Forecasts against the clock: seconds, the plan that is ranked first, the tuner, and paper.

errors    Before each turn the machine is calibrated and each problem is planned; the medians of
          forecasts and of measured seconds are compared.
ranking   The cheapest of the planner's candidates, in memory and by disk, and a sample of the
          others are run once, the fastest of them again. Then the plan ranked first and the
          fastest one take turns, which alone is judged.
tuner     ``planner="measure"`` against ``planner="estimate"``, in alternating turns.
paper     Forecasts for machines that nobody has here, by assumed speeds.
"""

import itertools
import math
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import dask
import dask.array as da
import numpy as np

import dask_bigfft
from benchmarks import core
from benchmarks.problems import Problem, alternate, data_of, graph_of, plan_of, seconds_of, settings
from dask_bigfft.graph.layer import transformed_array
from dask_bigfft.machine.environment import known_profile
from dask_bigfft.machine.tuner import region
from dask_bigfft.memory.limits import machine_nbytes
from dask_bigfft.planner.candidates import Candidates
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.plan_data import Machine, Request
from dask_bigfft.planner.profile import DEFAULT, DeviceProfile
from dask_bigfft.planner.search import all_whole, find_plan, finished, ladder
from dask_bigfft.transforms.spec import TransformSpec, transform_spec

#: Problems of both sizes, of lengths that calibration does not measure.
SMALL = {
    "line of 3 x 2^20": Problem("fftn", (3 << 20,), "c16", 16),
    "line of 2^22, single": Problem("fftn", (1 << 22,), "c8", 16),
    "plane in rows": Problem("fftn", (1536, 2048), "c16", 16),
    "plane in rows, single": Problem("fftn", (3000, 1250), "c8", 12),
    "plane in squares": Problem("fftn", (1800, 1600), "c16", (4, 4)),
    "tall plane": Problem("fftn", (49152, 60), "c16", 12),
    "slabs": Problem("fftn", (144, 150, 160), "c16", 12),
    "pencils": Problem("fftn", (144, 144, 144), "c16", (4, 4)),
    "real slabs": Problem("rfftn", (160, 180, 192), "f8", 10),
    "one axis of a batch": Problem("fftn", (768, 4096), "c16", (8, 8), (1,)),
}
LARGE = {
    "plane of 64 MiB": Problem("fftn", (2100, 2000), "c16", 32),
    "line of 128 MiB": Problem("fftn", (1 << 23,), "c16", 16),
    "cube of 128 MiB, single": Problem("fftn", (256, 256, 256), "c8", 16),
    "plane of 512 MiB, 4 blocks": Problem("fftn", (6000, 5600), "c16", 4),
    "rows of 200": Problem("fftn", (160_000, 200), "c16", 32, (1,)),
    "real cube of 1 GiB": Problem("rfftn", (512, 500, 525), "f8", 32),
    "rows of 64, 1 GiB, single": Problem("fftn", (1 << 21, 64), "c8", 16, (1,)),
    "cube of 1 GiB": Problem("fftn", (400, 400, 420), "c16", 16),
    "plane of 2 GiB": Problem("fftn", (12000, 11200), "c16", 16),
    "line of 2 GiB": Problem("fftn", (1 << 27,), "c16", 16),
}
GPU = {
    "box of 4 GiB": Problem("fftn", (512, 512, 1024), "c16", 8),
    "line of 2^27": Problem("fftn", (1 << 27,), "c16", 8),
    "plane of 2 GiB in squares": Problem("fftn", (16384, 8192), "c16", (4, 2)),
}

#: Allowed error of a forecast, and of the plan ranked first against the fastest.
ERROR = 0.30
BEHIND = 0.15

#: How many times as long as the fastest a plan may take before it drops out of the ranking.
HOPELESS = 3.0

#: Cheapest plans in memory and by disk that are run, those of all others, finalists, their turns,
#: and turns of the last two.
BY_CARRIER = {"shared": 40, "disk": 5}
DROPPED = 40
FINALISTS = 6
FINALS = 9
DUELS = 31


def calibrate(args: Any, results: core.Results) -> None:
    """Measure the machine's speeds, unless common ones are wanted."""
    if not args.no_calibration:
        results.content["calibration_seconds"], _ = seconds_of(dask_bigfft.calibrate)


# --- errors -----------------------------------------------------------------------------------


def errors(args: Any, results: core.Results, problems: dict[str, Problem]) -> None:
    """Add the errors of forecasts; calibration is repeated before each turn."""
    found: dict[str, list[tuple[float, float]]] = {}
    for turn in range(args.turns):
        if turn and results.over:
            break
        calibrate(args, results)
        for name, kernel in itertools.product(problems, args.kernels):
            problem = problems[name]
            row = f"{name}, {kernel}"
            array, truth = data_of(problem)
            plan = plan_of(problem, array, kernel=kernel, device="cpu")
            y = graph_of(problem, array, kernel=kernel, device="cpu")
            check = truth.check(y.persist())
            times = alternate({"seconds": y.persist}, args.repeat)["seconds"]
            found.setdefault(row, []).append((plan.expected.seconds, statistics.median(times)))
            forecast, measured = map(statistics.median, zip(*found[row], strict=True))
            off = core.ratio(*zip(*found[row], strict=True))
            results.add(
                "errors",
                row,
                rounds=plan.notation,
                forecast=forecast,
                seconds=measured,
                forecast_over_measured=off,
                within=abs(off["ratio"] - 1) <= ERROR,
                **core.outcome(check),
            )


# --- ranking ----------------------------------------------------------------------------------


def every_plan(spec: TransformSpec, request: Request, machine: Machine) -> tuple[Plan, ...]:
    """Return the plans in memory of all candidates, in blocks of the first size that has any.

    Memory limits and Bluestein's algorithm are left out.
    """
    search = Candidates(spec, request, machine)
    search.dearer = math.inf
    for sizes in ladder(spec, request):
        whole = all_whole(search) and sizes.target >= search.largest_in
        if candidates := search.in_place() if whole else search.splits(sizes):
            return tuple(finished(search, candidate) for candidate in candidates)
    return ()


def candidates(problem: Problem, array: da.Array, args: Any) -> list[tuple[Plan, str]]:
    """Return plans with the carriers that they run by, cheapest by the model first."""
    spec = transform_spec(problem.kind, problem.shape, np.dtype(problem.dtype), None, problem.axes)
    on = Machine(machine_nbytes(), args.threads, 1, profile=known_profile(""), shared=True)
    found: list[tuple[Plan, str]] = []
    for carrier, where in (("shared", "memory"), ("disk", "disk")):
        request = Request(array.chunks, kernel=args.kernels[0], storage=where, device="cpu")
        trials = region(spec, request, on, args.kernels)[: BY_CARRIER[carrier]]
        found += [(trial.plan, carrier) for trial in trials]
    known = {(plan.rounds, plan.result) for plan, _ in found}
    request = Request(array.chunks, kernel=args.kernels[0], storage="memory", device="cpu")
    rest = [p for p in every_plan(spec, request, on) if (p.rounds, p.result) not in known]
    dropped = random.Random(0).sample(rest, min(DROPPED, len(rest)))
    found.sort(key=lambda pair: pair[0].expected.seconds)
    return found + [(plan, "shared") for plan in dropped]


def ranking(args: Any, results: core.Results, problems: dict[str, Problem]) -> None:
    """Add how far the plan ranked first is from the fastest of all."""
    calibrate(args, results)
    for name in results.missing("ranking", problems):
        array, truth = data_of(problems[name])
        plans = candidates(problems[name], array, args)

        def run(number: int, plans: Any = plans, array: da.Array = array) -> Any:
            plan, carrier = plans[number]
            with dask.config.set(settings(carrier=carrier)):
                return transformed_array(array, plan, carrier).persist()

        check = truth.check(run(0))
        first = {number: seconds_of(lambda n=number: run(n))[0] for number in range(len(plans))}
        best = min(first.values())
        fast = [n for n in sorted(first, key=first.__getitem__) if first[n] <= HOPELESS * best]
        finalists = dict.fromkeys([0, *fast[:FINALISTS]])
        finals = alternate({str(n): lambda n=n: run(n) for n in finalists}, FINALS)
        winner = min(finals, key=lambda n: statistics.median(finals[n]))
        behind = {"ratio": 1.0, "low": 1.0, "high": 1.0, "n": FINALS}
        if winner != "0":
            both = alternate({n: lambda n=n: run(int(n)) for n in ("0", winner)}, DUELS)
            behind = core.ratio(both["0"], both[winner])
        results.add(
            "ranking",
            name,
            plans=len(plans),
            first=described(*plans[0]),
            first_seconds=statistics.median(finals["0"]),
            fastest=described(*plans[int(winner)]),
            fastest_seconds=statistics.median(finals[winner]),
            first_over_fastest=behind,
            within=behind["ratio"] <= 1 + BEHIND,
            **core.outcome(check),
        )


def described(plan: Plan, carrier: str) -> str:
    return f"{plan.notation} {plan.kernel}, {carrier}"


# --- tuner ------------------------------------------------------------------------------------


def tuner(args: Any, results: core.Results, problems: dict[str, Problem]) -> None:
    """Add what the plan found by measuring gains over the first one by the model."""
    options: dict[str, Any] = {"device": args.device}
    if args.device == "gpu":
        options["device_memory_limit"] = int((1 << 30) * min(1.0, args.scale * 64))
    calibrate(args, results)
    modes = ("estimate", "measure")
    for name in results.missing("tuner", problems):
        problem = problems[name]
        array, truth = data_of(problem)
        started = time.perf_counter()
        graphs = {mode: graph_of(problem, array, planner=mode, **options) for mode in modes}
        planning = time.perf_counter() - started
        check = truth.check(graphs["measure"].persist())
        times = alternate({mode: y.persist for mode, y in graphs.items()}, args.repeat)
        plans = {mode: plan_of(problem, array, planner=mode, **options) for mode in modes}
        results.add(
            "tuner",
            name,
            device=args.device,
            tuning_seconds=planning,
            **{mode: f"{plan.notation} {plan.kernel}" for mode, plan in plans.items()},
            seconds=statistics.median(times["measure"]),
            gain=core.ratio(times["estimate"], times["measure"]),
            **core.outcome(check),
        )


# --- paper ------------------------------------------------------------------------------------


def paper(args: Any, results: core.Results, problems: dict[str, Problem]) -> None:
    """Add forecasts for large machines, whose speeds are assumed."""
    network = replace(DEFAULT, threads=16, network=1e10, sent_task=1e-4, sent_shard=5e-5)
    cpus = replace(network, network=4e10)
    gpus = replace(cpus, devices=(DeviceProfile(),))
    pencils = ((128,) * 256, (128,) * 256, (1 << 16,))
    slabs = ((4,) * 4096, (16384,), (16384,))
    cases = {
        "1 PiB over 4,096 workers, 10 GB/s each": (pencils, "c16", 4096, 0, 1 << 40, network),
        "16384^3 on 512 H200, 40 GB/s each": (slabs, "c8", 512, 1, 1 << 39, gpus),
        "16384^3 on the CPUs of these workers": (slabs, "c8", 512, 0, 1 << 39, cpus),
    }
    for name, (chunks, dtype, workers, gpus, memory, profile) in cases.items():
        spec = transform_spec("fftn", tuple(map(sum, chunks)), np.dtype(dtype))
        machine = Machine(memory, 16, workers, 1 << 30, profile, gpus)
        plan = find_plan(spec, Request(chunks, device="gpu" if gpus else "cpu"), machine)
        found = plan.forecast(profile, workers=workers, threads=16, gpus=gpus)
        results.add(
            "paper",
            name,
            rounds=plan.notation,
            seconds=found.seconds,
            tasks=found.tasks,
            exchanged_tib=found.bytes_exchanged / 2**40,
            bounds=", ".join(one.bound for one in found.rounds),
            peak_gib=found.peak_host / 2**30,
        )


PARTS = {"errors": errors, "ranking": ranking, "tuner": tuner, "paper": paper}


def main(argv: Sequence[str]) -> int:
    parser = core.arguments("forecasts", __doc__)
    add = parser.add_argument
    add("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART")
    add("--large", action="store_true", help="problems for many threads")
    add("--device", choices=("cpu", "gpu"), default="cpu", help="of the tuner")
    add("--turns", type=int, default=5, metavar="N", help="calibrations (default: 5)")
    add("--no-calibration", action="store_true", help="use common speeds, to try things")
    args = parser.parse_args(argv)
    named = GPU if args.device == "gpu" else LARGE if args.large else SMALL
    problems = {name: named[name].scaled(args.scale) for name in core.chosen(named, args.only)}
    results = core.Results(args, "forecasts", error=ERROR, behind=BEHIND)
    threads = {"scheduler": "threads", "num_workers": args.threads}
    with (
        tempfile.TemporaryDirectory() as folder,
        dask.config.set(threads | {"bigfft.wisdom.directory": folder} | settings(scratch=folder)),
    ):
        for part in args.parts:
            PARTS[part](args, results, problems)
    return int(not results.ok)
