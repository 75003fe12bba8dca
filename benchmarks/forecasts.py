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
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
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
from dask_bigfft.planner.profile import DEFAULT, DeviceProfile, Profile
from dask_bigfft.planner.request import Machine, Request
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

#: Cheapest plans by each carrier that are run, and a sample of all others.
BY_CARRIER = {"shared": 40, "disk": 5}
DROPPED = 40

#: Fastest plans that run again, their turns, and the turns of the last two.
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
    forecasts: dict[str, list[float]] = defaultdict(list)
    measured: dict[str, list[float]] = defaultdict(list)
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
            forecasts[row].append(plan.expected.seconds)
            measured[row].append(statistics.median(times))
            ratio = core.ratio(forecasts[row], measured[row])
            results.add(
                "errors",
                row,
                rounds=plan.notation,
                forecast=statistics.median(forecasts[row]),
                seconds=statistics.median(measured[row]),
                forecast_over_measured=ratio,
                within=abs(ratio["ratio"] - 1) <= ERROR,
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
        if all_whole(search) and sizes.target >= search.largest_in:
            candidates = search.in_place()
        else:
            candidates = search.splits(sizes)
        if candidates:
            return tuple(finished(search, candidate) for candidate in candidates)
    return ()


def candidates(problem: Problem, array: da.Array, args: Any) -> list[tuple[Plan, str]]:
    """Return plans with the carriers that they run by, cheapest by the model first."""
    spec = transform_spec(problem.kind, problem.shape, np.dtype(problem.dtype), None, problem.axes)
    machine = Machine(
        memory_limit=machine_nbytes(),
        threads=args.threads,
        workers=1,
        profile=known_profile(""),
        shared=True,
    )

    def request(storage: str) -> Request:
        return Request(array.chunks, kernel=args.kernels[0], storage=storage, device="cpu")

    cheapest: list[tuple[Plan, str]] = []
    for carrier, storage in (("shared", "memory"), ("disk", "disk")):
        trials = region(spec, request(storage), machine, args.kernels)
        cheapest += [(trial.plan, carrier) for trial in trials[: BY_CARRIER[carrier]]]
    cheapest.sort(key=lambda pair: pair[0].expected.seconds)
    known = {(plan.rounds, plan.result) for plan, _ in cheapest}
    others = [
        plan
        for plan in every_plan(spec, request("memory"), machine)
        if (plan.rounds, plan.result) not in known
    ]
    dropped = random.Random(0).sample(others, min(DROPPED, len(others)))
    return cheapest + [(plan, "shared") for plan in dropped]


def ranking(args: Any, results: core.Results, problems: dict[str, Problem]) -> None:
    """Add how far the plan ranked first is from the fastest of all."""
    calibrate(args, results)
    for name in results.missing("ranking", problems):
        array, truth = data_of(problems[name])
        plans = candidates(problems[name], array, args)
        runs = [partial(run_plan, array, plan, carrier) for plan, carrier in plans]
        check = truth.check(runs[0]())
        results.add("ranking", name, plans=len(plans), **race(plans, runs), **core.outcome(check))


def run_plan(array: da.Array, plan: Plan, carrier: str) -> da.Array:
    """Return the result of a transform by a plan and a carrier."""
    with dask.config.set(settings(carrier=carrier)):
        return transformed_array(array, plan, carrier).persist()


def race(
    plans: Sequence[tuple[Plan, str]],
    runs: Sequence[Callable[[], Any]],
) -> dict[str, Any]:
    """Return the first plan and the fastest one, with their seconds and the ratio of these."""
    seconds = [seconds_of(run)[0] for run in runs]
    longest = HOPELESS * min(seconds)
    by_seconds = sorted(range(len(runs)), key=seconds.__getitem__)
    fast = [number for number in by_seconds if seconds[number] <= longest]
    finalists = dict.fromkeys([0, *fast[:FINALISTS]])
    finals = alternate({str(number): runs[number] for number in finalists}, FINALS)
    medians = {int(number): statistics.median(times) for number, times in finals.items()}
    winner = min(medians, key=medians.__getitem__)
    behind: dict[str, float] = {"ratio": 1.0, "low": 1.0, "high": 1.0, "n": FINALS}
    if winner != 0:
        duel = alternate({"first": runs[0], "winner": runs[winner]}, DUELS)
        behind = core.ratio(duel["first"], duel["winner"])
    return {
        "first": described(*plans[0]),
        "first_seconds": medians[0],
        "fastest": described(*plans[winner]),
        "fastest_seconds": medians[winner],
        "first_over_fastest": behind,
        "within": behind["ratio"] <= 1 + BEHIND,
    }


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


@dataclass(frozen=True)
class Case:
    """A transform of a cube on a large machine that nobody has here.

    Attributes
    ----------
    chunks : tuple of tuple of int
        Blocks of the input.
    dtype : str
        Of the input.
    workers, gpus : int
        Number of workers, and of GPUs of each.
    memory : int
        Bytes of a worker.
    profile : Profile
        Assumed speeds.
    """

    chunks: tuple[tuple[int, ...], ...]
    dtype: str
    workers: int
    gpus: int
    memory: int
    profile: Profile


def paper_cases() -> dict[str, Case]:
    """Return the cases by the names of their rows."""
    network = replace(DEFAULT, threads=16, network=1e10, sent_task=1e-4, sent_shard=5e-5)
    cpus = replace(network, network=4e10)
    gpus = replace(cpus, devices=(DeviceProfile(),))
    pencils = ((128,) * 256, (128,) * 256, (1 << 16,))
    slabs = ((4,) * 4096, (16384,), (16384,))
    return {
        "1 PiB over 4,096 workers, 10 GB/s each": Case(
            chunks=pencils,
            dtype="c16",
            workers=4096,
            gpus=0,
            memory=1 << 40,
            profile=network,
        ),
        "16384^3 on 512 H200, 40 GB/s each": Case(
            chunks=slabs,
            dtype="c8",
            workers=512,
            gpus=1,
            memory=1 << 39,
            profile=gpus,
        ),
        "16384^3 on the CPUs of these workers": Case(
            chunks=slabs,
            dtype="c8",
            workers=512,
            gpus=0,
            memory=1 << 39,
            profile=cpus,
        ),
    }


def paper(args: Any, results: core.Results, problems: dict[str, Problem]) -> None:
    """Add forecasts for large machines, whose speeds are assumed."""
    for name, case in paper_cases().items():
        shape = tuple(map(sum, case.chunks))
        spec = transform_spec("fftn", shape, np.dtype(case.dtype))
        machine = Machine(
            memory_limit=case.memory,
            threads=16,
            workers=case.workers,
            buffers=1 << 30,
            profile=case.profile,
            gpus=case.gpus,
        )
        device = "gpu" if case.gpus else "cpu"
        plan = find_plan(spec, Request(case.chunks, device=device), machine)
        forecast = plan.forecast(case.profile, workers=case.workers, threads=16, gpus=case.gpus)
        results.add(
            "paper",
            name,
            rounds=plan.notation,
            seconds=forecast.seconds,
            tasks=forecast.tasks,
            exchanged_tib=forecast.bytes_exchanged / 2**40,
            bounds=", ".join(seconds_of_round.bound for seconds_of_round in forecast.rounds),
            peak_gib=forecast.peak_host / 2**30,
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
    all_problems = LARGE if args.large else SMALL
    if args.device == "gpu":
        all_problems = GPU
    names = core.chosen(all_problems, args.only)
    problems = {name: all_problems[name].scaled(args.scale) for name in names}
    results = core.Results(args, "forecasts", error=ERROR, behind=BEHIND)
    with (
        tempfile.TemporaryDirectory() as folder,
        dask.config.set(settings(scratch=folder)),
        dask.config.set({"bigfft.wisdom.directory": folder}),
        dask.config.set(scheduler="threads", num_workers=args.threads),
    ):
        for part in args.parts:
            PARTS[part](args, results, problems)
    return int(not results.ok)
