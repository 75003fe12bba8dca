"""The tuner: the best plans by the model are run, and the fastest is kept as wisdom.

The model proposes a small region: the rounds that it ranks best, for a few sizes of blocks and
every installed FFT library, by CPU threads, devices and both together where the caller leaves that
open. All are run. The winner is kept for the machine, the versions of the libraries, and
the class of the problem: transform, dtype, free choices, and lengths and numbers of chunks to the
next power of two. Where devices alone do the rounds, settings of their pipelines are then tried
with the winning plan. Where CPU threads share the rounds, they change next to nothing.

Imports `planner`, `config`, `files` and `environment`.
"""

import contextlib
import importlib.metadata
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import dask.array as da
import numpy as np

from dask_bigfft import config, files
from dask_bigfft.errors import PlanError
from dask_bigfft.graph.layer import transformed_array
from dask_bigfft.kernels.copies import compile_at_once
from dask_bigfft.planner.explain import human_seconds
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.plan_data import Machine, Request
from dask_bigfft.planner.profile import decode
from dask_bigfft.planner.search import find_plans
from dask_bigfft.planner.tile_plan import DeviceSettings
from dask_bigfft.planner.work_sharing import divided_among
from dask_bigfft.planning.environment import device_software, workers_place
from dask_bigfft.transforms.spec import TransformSpec

#: Sizes of blocks that are tried, in units of those that come in.
SCALES = (1.0, 0.5, 2.0, 4.0)

#: Plans that are tried at most, and how much dearer than the cheapest one may be.
MOST, DEARER = 8, 2.0

#: Gain by the model from which on CPU threads and devices share a round of a plan that is tried: of
#: what gains or loses little by it, measuring says more.
NEAR = 0.9

#: Times that each is run after one that does not count; those that took `SLOWER` times as long as
#: the fastest each time are run no more.
REPEAT, SLOWER = 3, 1.5

Timer = Callable[[Plan], float]

#: Settings of devices' pipelines that are tried one after the other: pieces that are on a device at
#: a time, pieces that a crossing is cut into, and streams.
VALUES: dict[str, tuple[Any, ...]] = {
    "buffers": (2, 3, 4, 8),
    "passes": (4, 8, 16, 32),
    "streams": ("role", "tile"),
}


def on_devices(plan: Plan) -> bool:
    """Return whether devices alone do the rounds of a plan, in this process."""
    one = plan.machine.workers == 1 and plan.machine.cards > 0
    return one and plan.device in ("auto", "gpu") and np.dtype(plan.dtypes[0]).char in "fdFD"


@dataclass(frozen=True)
class Trial:
    """A plan that is tried.

    Parameters
    ----------
    plan : Plan
        The plan, with settings of the devices' pipelines.
    scale : float
        Size of the blocks, in units of those that came in.
    measured : tuple of float
        Seconds of its runs.
    """

    plan: Plan
    scale: float = 1.0
    measured: tuple[float, ...] = ()

    @property
    def seconds(self) -> float:
        """The median of the runs."""
        return statistics.median(self.measured) if self.measured else math.inf

    @property
    def factors(self) -> list[list[int]]:
        """Lengths of the digits of each axis."""
        return [list(program.factors) for program in self.plan.programs]

    @property
    def winner(self) -> dict[str, Any]:
        """The entries of wisdom for the plan, had it won."""
        plan = self.plan
        names = dict(
            zip(_NAMED, (plan.notation, plan.kernel, plan.carrier, plan.device), strict=True)
        )
        settings = asdict(plan.settings)
        return {**names, "scale": self.scale, "factors": self.factors, "settings": settings}


# --- what is tried --------------------------------------------------------------------------


def region(
    spec: TransformSpec, request: Request, machine: Machine, kernels: Sequence[str]
) -> list[Trial]:
    """Return different plans worth trying, cheapest by the model first.

    Where it is left open who does the rounds, plans are there for CPU threads, for devices, and for
    both together.

    Parameters
    ----------
    spec, request, machine
        What is asked, as `find_plan` takes it.
    kernels : sequence of str
        FFT libraries that may be used.
    """
    found: dict[Any, Trial] = {}
    for scale in SCALES if request.rounds is None else (1.0,):
        for kernel in kernels:
            for fits in _plans(spec, replace(request, scale=scale, kernel=kernel), machine):
                plan = replace(fits, device_memory_limit=request.device_nbytes)
                same = (plan.rounds, plan.result, plan.kernel, plan.carrier, plan.device)
                found.setdefault(same, Trial(plan, scale))
    return sorted(found.values(), key=lambda trial: trial.plan.expected.seconds)


def _plans(spec: TransformSpec, request: Request, machine: Machine) -> Iterator[Plan]:
    """Plans for all who may do the rounds: none where chunks are too small for such blocks.

    CPU threads and devices share no rounds that are verified, unless that is asked for.
    """
    possible = machine.cards > 0 and spec.work_dtype.char in "FD"
    unasked = request.device == "auto" and request.verify == "none"
    with contextlib.suppress(PlanError):
        if not possible or not (unasked or request.device == "hybrid"):
            yield from find_plans(spec, request, machine)
            return
        yield from find_plans(spec, replace(request, device="auto"), machine)
        bare = replace(machine, cards=0)
        least = min(NEAR, config.get("bigfft.hybrid.min-speedup"))
        for plan in find_plans(spec, replace(request, device="cpu"), bare):
            yield plan
            both = divided_among(replace(plan, device="hybrid"), machine.cards, least)
            if any(0 < share < 1 for share in both.shares):
                yield both


def worth_trying(trials: list[Trial]) -> list[Trial]:
    """Return the plans that the model holds to be not much dearer than the first.

    Among them the best one for each of CPU threads, devices and both.
    """
    most = DEARER * min((trial.plan.expected.seconds for trial in trials), default=0.0)
    near = [trial for trial in trials if trial.plan.expected.seconds <= most]
    best = {trial.plan.device: trial for trial in reversed(near)}
    return list(dict.fromkeys([*near[:MOST], *best.values()]))


# --- measuring ------------------------------------------------------------------------------


def in_memory(x: da.Array) -> da.Array:
    """Return an array whose blocks have memory of their own.

    Blocks of `da.ones` are a single number that is seen everywhere: reading them costs nothing.
    """
    blocks = da.map_blocks(np.ascontiguousarray, x, dtype=x.dtype, meta=x._meta)
    return cast("da.Array", blocks.persist())


def timer_for(plan: Plan) -> Timer:
    """Return a function that runs plans like this one on an array of ones, and returns seconds."""
    chunks, carrier = plan.chunks_in, config.get("bigfft.exchange.carrier")
    x = in_memory(da.ones(plan.spec.shape, chunks=chunks, dtype=np.dtype(plan.spec.dtype)))

    def timed(plan: Plan) -> float:
        result = transformed_array(x, plan, carrier)
        started = time.perf_counter()
        blocks = result.persist()
        for value in dict(getattr(blocks, "dask", {})).values():
            if hasattr(value, "exception"):  # a future of a cluster
                value.exception()
        return time.perf_counter() - started

    return timed


def measured_trials(trials: Sequence[Trial], timer: Timer) -> list[Trial]:
    """Return trials with the seconds of their runs, fastest first.

    The first runs do not count: they make compiled code and memory ready. What drops out was slow
    in all of its runs: one that the machine disturbed is no reason.
    """
    compile_at_once()
    for trial in trials:
        timer(trial.plan)
    alive, slow = [replace(trial, measured=()) for trial in trials], list[Trial]()
    for number in range(REPEAT):
        way = -1 if number % 2 else 1  # what runs before a plan may slow it down
        alive = [replace(t, measured=(*t.measured, timer(t.plan))) for t in alive[::way]][::way]
        most = SLOWER * min(min(trial.measured) for trial in alive)
        slow += [trial for trial in alive if min(trial.measured) > most]
        alive = [trial for trial in alive if min(trial.measured) <= most]
    return sorted([*alive, *slow], key=lambda trial: (-len(trial.measured), trial.seconds))


def measured_settings(trial: Trial, timer: Timer) -> list[Trial]:
    """Return a plan with settings of the devices' pipelines that were tried, fastest first.

    The best value of one setting is what the next setting is tried with.
    """
    tried: list[Trial] = []
    for name, values in VALUES.items():
        settings = trial.plan.settings
        each = dict.fromkeys([settings, *(replace(settings, **{name: v}) for v in values)])
        plans = [replace(trial.plan, settings=found) for found in each]
        done = measured_trials([replace(trial, plan=plan) for plan in plans], timer)
        trial, tried = done[0], [*done, *tried]
    return tried


#: Part of the memory that may be used which an array and its transform may take, to be tried.
SHARE = 0.3

SCHEMA = 4

#: Names of what is kept of a plan that won.
_NAMED = ("rounds", "kernel", "carrier", "device")

#: Packages whose versions decide how fast a plan is, beside those of devices.
PACKAGES = (
    *("dask", "distributed", "numpy", "scipy", "numba", "ducc0", "mkl_fft", "pyfftw"),
    "dask-bigfft",
)


#: Who does the rounds of a plan, by its `Plan.device`, where others would have been possible.
_DONE_BY = {"auto": "devices", "gpu": "devices", "cpu": "CPU threads", "hybrid": "both"}


@dataclass(frozen=True)
class Tuning:
    """The plan that won, and what was tried.

    Parameters
    ----------
    plan : Plan
        The fastest.
    trials : tuple of Trial
        Fastest first; none where wisdom was there already.
    """

    plan: Plan
    trials: tuple[Trial, ...]


# --- wisdom ---------------------------------------------------------------------------------


def _power(n: int) -> int:
    return max(0, n - 1).bit_length()


def problem_class(spec: TransformSpec, request: Request, kernels: Sequence[str]) -> str:
    """Return the name of the problems that share their wisdom.

    Lengths and numbers of chunks count to the next power of two. What won where less could be
    chosen, such as one FFT library, or with less of a device's memory, says nothing of the rest.
    """
    lengths = "x".join(f"2^{_power(n)}" for n in spec.shape)
    cuts = "x".join(f"2^{_power(len(chunks))}" for chunks in request.chunks)
    orders = "".join(order[0] for order in (*spec.orders_in, *spec.orders_out))
    fixed = f"{request.variant},{request.carrier},{request.device},{request.verify}"
    fixed += f",{request.rounds},{request.device_nbytes} by {'|'.join(sorted(kernels))}"
    wanted = "auto" if request.wanted is None else "chunks"
    asked = f"{spec.name} {spec.dtype} axes {spec.axes} {orders} {wanted} {fixed}"
    return f"{asked}: {lengths} in {cuts}"


def _context(machine: Machine) -> dict[str, Any]:
    """Return the conditions of wisdom beside the problem."""
    versions = device_software() if machine.cards else {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "machine": files.machine(),
        "workers": workers_place(),
        "running": [machine.threads, machine.workers, machine.cards, *map(list, machine.by_cards)],
        "versions": versions,
        "devices": [device.name for device in machine.devices],
    }


def _path() -> Path:
    return Path(config.get("bigfft.wisdom.directory")) / "plans.json"


def _checked(found: Any) -> dict[str, Any]:
    entries = dict(found["plans"])
    for entry in entries.values():
        winner, context = entry["winner"], entry["context"]
        named = all(isinstance(winner[name], str) for name in _NAMED)
        if not (named and isinstance(context, dict) and float(winner["scale"]) > 0):
            raise ValueError("plans")
        decode(DeviceSettings, winner["settings"])
    return entries


def _entries() -> dict[str, Any]:
    return files.read(_path(), SCHEMA, _checked) or {}


def _alike(trials: Sequence[Trial], winner: dict[str, Any]) -> Plan | None:
    """The plan of a region that is like the one that won before."""
    names = (*_NAMED, "scale")
    alike = [t for t in trials if all(t.winner[name] == winner[name] for name in names)]
    exact = [trial for trial in alike if trial.factors == winner.get("factors")]
    settings = decode(DeviceSettings, winner["settings"])
    return next((replace(t.plan, settings=settings) for t in (*exact, *alike)), None)


# --- all of it ------------------------------------------------------------------------------


def tuned(
    spec: TransformSpec,
    request: Request,
    machine: Machine,
    kernels: Sequence[str],
    timer: Timer | None = None,
) -> Tuning | None:
    """Return the plan that is the fastest when run, from wisdom or by measuring now.

    None where the array is too large to be tried, or nothing fits into the memory limit.

    Parameters
    ----------
    spec, request, machine
        What is asked, as `find_plan` takes it.
    kernels : sequence of str
        FFT libraries that may be used.
    timer : callable, optional
        Runs a plan and returns the seconds; by default it does so on an array of ones.
    """
    name, context = problem_class(spec, request, kernels), _context(machine)
    limit = machine.memory_limit
    nbytes = math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
    nbytes += math.prod(spec.out_shape) * spec.out_dtype.itemsize
    too_large = limit is not None and nbytes > SHARE * limit * machine.workers
    entry = _entries().get(name, {})
    known = entry.get("context") == context
    if too_large and not known:  # the region takes long for large arrays
        return None
    trials = region(spec, request, machine, kernels)
    plan = _alike(trials, entry["winner"]) if known else None
    if plan is not None:
        return Tuning(replace(plan, reason="the fastest when such transforms were measured"), ())
    tried = worth_trying(trials)
    if not tried or too_large:
        return None
    timer = timer or timer_for(tried[0].plan)
    done = measured_trials(tried, timer)
    if on_devices(done[0].plan):
        done = [*measured_settings(done[0], timer), *done]
    best = done[0]
    plans = {**_entries(), name: {"context": context, "winner": best.winner}}
    files.write(_path(), {"schema": SCHEMA, "plans": plans})
    reason = f"the fastest of {len(done)} that were measured: {human_seconds(best.seconds)}"
    return Tuning(replace(best.plan, reason=reason, rejected=tuple(_rejected(done))), tuple(done))


def _rejected(done: Sequence[Trial]) -> Iterator[tuple[str, Any]]:
    """Yield the next fastest trials, in words."""
    differ = len({trial.plan.device for trial in done}) > 1
    for trial in done[1:4]:
        plan = trial.plan
        digits = ", ".join(" x ".join(map(str, f)) for f in trial.factors)
        place = f", {_DONE_BY[plan.device]}" if differ else ""
        yield f"{plan.notation} with {digits}, {plan.kernel}{place}", plan.expected
