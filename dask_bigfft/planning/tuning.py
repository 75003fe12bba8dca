"""The tuner: the best plans by the model are run, and the fastest is kept as wisdom.

The model proposes a small region: the rounds that it ranks best, for a few sizes of blocks and
every installed FFT library, by CPU threads, devices and both together where the caller leaves that
open. All are run. The winner is kept for the machine, the versions of the libraries, and
the class of the problem: transform, dtype, free choices, and lengths and numbers of chunks to the
next power of two. Where devices alone do the rounds, settings of their pipelines are then tried
with the winning plan. Where CPU threads share the rounds, they change next to nothing.

Imports `planner`, `config`, `files` and `environment`.
"""

import importlib.metadata
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import dask.array as da
import numpy as np

from dask_bigfft import config, files
from dask_bigfft.errors import PlanError
from dask_bigfft.gpu import find
from dask_bigfft.gpu.ring import BUFFER_NBYTES
from dask_bigfft.graph.layer import transformed_array
from dask_bigfft.kernels.copies import compile_at_once
from dask_bigfft.planner.explain import human_seconds
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.plan_data import Machine, Request
from dask_bigfft.planner.profile import decode
from dask_bigfft.planner.search import find_plans
from dask_bigfft.planner.tile_plan import AS_IS, DeviceSettings
from dask_bigfft.planner.work_sharing import divided_among
from dask_bigfft.planning.environment import device_software, usable_libraries, workers_place
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

#: Values that are tried: pieces that are on a device at a time, pieces that a crossing is cut into,
#: streams, buffers each way of the ring, and bytes of each.
VALUES: dict[str, tuple[Any, ...]] = {
    "buffers": (2, 3, 4, 8),
    "passes": (4, 8, 16, 32),
    "streams": ("role", "piece"),
    "ring_buffers": (2, 4, 8),
    "ring_nbytes": (8 << 20, 32 << 20, 64 << 20),
}

#: Parts of a buffer that are used at a time.
PARTS = (1, 2, 4, 8)

#: Settings that are varied together: a field, or the rounds (from 0) whose parts of the ring are.
Group = Literal["buffers", "passes", "streams", "ring_buffers", "ring_nbytes"] | tuple[int, ...]


def on_devices(plan: Plan) -> bool:
    """Return whether devices alone do the rounds of a plan, in this process."""
    one = plan.machine.workers == 1 and plan.machine.cards > 0
    return one and plan.device in ("auto", "gpu") and np.dtype(plan.dtypes[0]).char in "fdFD"


def groups(plan: Plan, ring: bool) -> Iterator[Group]:
    """Yield what is varied for a plan, with the ring if it is used."""
    yield from ("buffers", "passes", "streams")
    if ring:
        yield from ("ring_buffers", "ring_nbytes")
        alike: dict[tuple[int, int], list[int]] = {}
        for number, exchange in enumerate(plan.exchanges[: len(plan.rounds)]):
            alike.setdefault((exchange.shape.runs, exchange.shape.width), []).append(number)
        yield from map(tuple, alike.values())


def choices(base: DeviceSettings, group: Group, rounds: int) -> Sequence[DeviceSettings]:
    """Return settings to try: `base`, and those that differ from it in a group.

    Parameters
    ----------
    base : DeviceSettings
        What is set already.
    group : str or tuple of int
        What is varied.
    rounds : int
        Number of rounds of the plan.
    """
    found = [base]
    if isinstance(group, str):
        found += [replace(base, **{group: value}) for value in VALUES[group]]
        return list(dict.fromkeys(found))
    buffer = base.ring_nbytes or BUFFER_NBYTES
    for n in PARTS:
        parts = list(base.ring_parts or (buffer,) * rounds)
        for number in group:
            parts[number] = max(1, buffer // n)
        found.append(replace(base, ring_parts=tuple(parts)))
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class Trial:
    """A plan that was tried.

    Parameters
    ----------
    rounds : str
        In short.
    factors : tuple of tuple of int
        Lengths of the digits of each axis.
    kernel : str
        FFT library.
    carrier : str
        Where blocks were between rounds.
    scale : float
        Size of the blocks, in units of those that came in.
    forecast : float
        Seconds by the model.
    measured : tuple of float
        Seconds of its runs.
    settings : DeviceSettings
        What was set of the devices' pipelines.
    device : str
        Where rounds were done.
    """

    rounds: str
    factors: tuple[tuple[int, ...], ...]
    kernel: str
    carrier: str
    scale: float
    forecast: float
    measured: tuple[float, ...] = ()
    settings: DeviceSettings = AS_IS
    device: str = "auto"

    @property
    def seconds(self) -> float:
        """The median of the runs."""
        return statistics.median(self.measured) if self.measured else math.inf


def _trial(plan: Plan, scale: float) -> Trial:
    factors = tuple(program.factors for program in plan.programs)
    return Trial(
        plan.notation,
        factors,
        plan.kernel,
        plan.carrier,
        scale,
        plan.expected.seconds,
        device=plan.device,
    )


# --- what is tried --------------------------------------------------------------------------


def region(
    spec: TransformSpec, request: Request, machine: Machine, kernels: Sequence[str]
) -> list[tuple[Plan, Trial]]:
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
    found: dict[Any, tuple[Plan, Trial]] = {}
    for scale in SCALES if request.rounds is None else (1.0,):
        for kernel in kernels:
            for fits in _plans(spec, replace(request, scale=scale, kernel=kernel), machine):
                plan = replace(fits, device_memory_limit=request.device_nbytes)
                same = (plan.rounds, plan.result, plan.kernel, plan.carrier, plan.device)
                found.setdefault(same, (plan, _trial(plan, scale)))
    return sorted(found.values(), key=lambda pair: pair[0].expected.seconds)


def _plans(spec: TransformSpec, request: Request, machine: Machine) -> Iterator[Plan]:
    """Plans for all who may do the rounds: none where chunks are too small for such blocks."""
    try:
        if not _open(spec, request, machine):
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
    except PlanError:
        return


def _open(spec: TransformSpec, request: Request, machine: Machine) -> bool:
    """Return whether CPU threads and devices both may do the rounds.

    What is verified is not shared, unless that is asked for.
    """
    possible = machine.cards > 0 and spec.work_dtype.char in "FD"
    unasked = request.device == "auto" and request.verify == "none"
    return possible and (unasked or request.device == "hybrid")


def worth_trying(pairs: list[tuple[Plan, Trial]]) -> list[tuple[Plan, Trial]]:
    """Return the plans that the model holds to be not much dearer than the first.

    Among them the best one for each of CPU threads, devices and both.
    """
    if not pairs:
        return []
    most = DEARER * pairs[0][0].expected.seconds
    near = [pair for pair in pairs if pair[0].expected.seconds <= most]
    best: dict[str, tuple[Plan, Trial]] = {}
    for pair in near:
        best.setdefault(pair[0].device, pair)
    tried = {pair[0].device for pair in near[:MOST]}
    return near[:MOST] + [pair for device, pair in best.items() if device not in tried]


# --- measuring ------------------------------------------------------------------------------


def ones(plan: Plan) -> da.Array:
    """Return an array in memory that a plan can be run on."""
    chunks = tuple(axis.groups[0].chunks for axis in plan.source.axes)
    return in_memory(da.ones(plan.spec.shape, chunks=chunks, dtype=np.dtype(plan.spec.dtype)))


def in_memory(x: da.Array) -> da.Array:
    """Return an array whose blocks have memory of their own.

    Blocks of `da.ones` are a single number that is seen everywhere: reading them costs nothing.
    """
    blocks: Any = x
    found: da.Array = blocks.map_blocks(np.ascontiguousarray, dtype=x.dtype, meta=x._meta).persist()
    return found


def timer_on(x: da.Array) -> Timer:
    """Return what runs a plan on an array, and gives the seconds that it took."""
    carrier = config.get("bigfft.exchange.carrier")

    def timed(plan: Plan) -> float:
        result = transformed_array(x, plan, carrier)
        started = time.perf_counter()
        kept_blocks = result.persist()
        if hasattr(kept_blocks, "dask"):
            _wait(kept_blocks)
        return time.perf_counter() - started

    return timed


def _wait(array: Any) -> None:
    """Wait for the blocks of an array that a cluster has."""
    futures = [value for value in dict(array.dask).values() if hasattr(value, "result")]
    for future in futures:
        getattr(future, "exception", lambda: None)()


def measured_trials(pairs: Sequence[tuple[Plan, Trial]], timer: Timer) -> list[tuple[Plan, Trial]]:
    """Return plans with the seconds of their runs, fastest first.

    The first runs do not count: they make compiled code and memory ready. What drops out was slow
    in all of its runs: one that the machine disturbed is no reason.

    Parameters
    ----------
    pairs : sequence of (Plan, Trial)
        What is tried.
    timer : callable
        Runs a plan and returns the seconds.
    """
    compile_at_once()
    taken: list[list[float]] = [[] for _ in pairs]
    alive = list(range(len(pairs)))
    for number in range(REPEAT + 1):
        for i in alive if number % 2 else reversed(alive):
            seconds = timer(pairs[i][0])
            if number:
                taken[i].append(seconds)
        if number:
            most = SLOWER * min(min(taken[i]) for i in alive)
            alive = [i for i in alive if min(taken[i]) <= most]
    done = [
        (plan, replace(trial, measured=tuple(found)))
        for (plan, trial), found in zip(pairs, taken, strict=True)
    ]
    return sorted(done, key=lambda pair: (-len(pair[1].measured), pair[1].seconds))


def measured_settings(plan: Plan, trial: Trial, timer: Timer) -> list[tuple[Plan, Trial]]:
    """Return a plan with settings of the devices' pipelines that were tried, fastest first.

    The best of one group of settings is what the next group is tried with.
    """
    tried: list[tuple[Plan, Trial]] = []
    best = plan
    for group in groups(plan, _goes_by_ring(plan, timer)):
        pairs = [
            (replace(best, settings=found), replace(trial, settings=found))
            for found in choices(best.settings, group, len(plan.rounds))
        ]
        ring = isinstance(group, str) and group.startswith("ring")
        done = measured_trials(pairs, _again(timer) if ring else timer)
        best, tried = done[0][0], [*done, *tried]
    return tried


def _goes_by_ring(plan: Plan, timer: Timer) -> bool:
    """Return whether the blocks of a plan go through devices' rings.

    If anything has in this process, one more run tells whether that was by this plan.
    """
    before = find.staged()
    if not before:
        return False
    timer(plan)
    return find.staged() > before


def _again(timer: Timer) -> Timer:
    """Run a plan twice, and give the seconds of the second time: the first one makes the ring."""

    def timed(plan: Plan) -> float:
        timer(plan)
        return timer(plan)

    return timed


#: Part of the memory that may be used which an array and its transform may take, to be tried.
SHARE = 0.3

SCHEMA = 4

#: What of a plan that won is kept by its name.
_NAMED = ("rounds", "kernel", "carrier", "device")

#: Packages whose versions decide how fast a plan is, beside those of devices.
PACKAGES = (
    "dask",
    "distributed",
    "numpy",
    "scipy",
    "numba",
    "ducc0",
    "mkl_fft",
    "pyfftw",
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


def _places_differ(trials: Sequence[Trial]) -> bool:
    """Return whether trials differ in who did the rounds."""
    return len({trial.device for trial in trials}) > 1


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
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    running = [machine.threads, machine.workers, machine.cards, *map(list, machine.by_cards)]
    devices = [device.name for device in machine.devices]
    return {
        "machine": files.machine(),
        "workers": workers_place(),
        "running": running,
        "versions": versions,
        "devices": devices,
    }


def _path() -> Path:
    return Path(config.get("bigfft.wisdom.directory")) / "plans.json"


def _checked(found: Any) -> dict[str, Any]:
    entries = dict(found["plans"])
    for entry in entries.values():
        winner, context = entry["winner"], entry["context"]
        if not isinstance(context, dict) or not float(winner["scale"]) > 0:
            raise ValueError("plans")
        if not all(isinstance(winner[name], str) for name in _NAMED):
            raise ValueError("plans")
        decode(DeviceSettings, winner["settings"])
    return entries


def _winner(name: str, machine: Machine) -> dict[str, Any] | None:
    """Return the trial that won before on this machine, if any."""
    entry = (files.read(_path(), SCHEMA, _checked) or {}).get(name)
    if entry is None or entry["context"] != _context(machine):
        return None
    winner: dict[str, Any] = entry["winner"]
    return winner


def _alike(pairs: Sequence[tuple[Plan, Trial]], winner: dict[str, Any]) -> Plan | None:
    """The plan of a region that is like the one that won before."""
    alike = [
        plan
        for plan, trial in pairs
        if trial.scale == winner["scale"]
        and all(getattr(trial, name) == winner[name] for name in _NAMED)
    ]
    exact = [
        plan for plan in alike if [list(p.factors) for p in plan.programs] == winner.get("factors")
    ]
    found = next(iter([*exact, *alike]), None)
    settings = decode(DeviceSettings, winner["settings"])
    return None if found is None else replace(found, settings=settings)


def _remember(name: str, machine: Machine, winner: Trial) -> None:
    entries = files.read(_path(), SCHEMA, _checked) or {}
    entries[name] = {"context": _context(machine), "winner": asdict(winner)}
    files.write(_path(), {"schema": SCHEMA, "plans": entries})


# --- all of it ------------------------------------------------------------------------------


def _too_large(spec: TransformSpec, machine: Machine) -> bool:
    nbytes = math.prod(spec.shape) * np.dtype(spec.dtype).itemsize
    nbytes += math.prod(spec.out_shape) * spec.out_dtype.itemsize
    limit = machine.memory_limit
    return limit is not None and nbytes > SHARE * limit * machine.workers


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
    name = problem_class(spec, request, kernels)
    winner, too_large = _winner(name, machine), _too_large(spec, machine)
    if winner is None and too_large:  # the region takes long for large arrays
        return None
    pairs = region(spec, request, machine, kernels)
    known = None if winner is None else _alike(pairs, winner)
    if known is not None:
        return Tuning(replace(known, reason="the fastest when such transforms were measured"), ())
    tried = worth_trying(pairs)
    if not tried or too_large:
        return None
    timer = timer_on(ones(tried[0][0])) if timer is None else timer
    done = measured_trials(tried, timer)
    set_ = measured_settings(*done[0], timer) if on_devices(done[0][0]) else []
    best, trial = set_[0] if set_ else done[0]
    _remember(name, machine, trial)
    done = [*set_, *done]
    reason = f"the fastest of {len(done)} that were measured: {human_seconds(trial.seconds)}"
    rejected = tuple(_rejected(done))
    return Tuning(
        replace(best, reason=reason, rejected=rejected), tuple(trial for _, trial in done)
    )


def _rejected(done: Sequence[tuple[Plan, Trial]]) -> Iterator[tuple[str, Any]]:
    """Yield the next fastest trials, in words."""
    differ = _places_differ([trial for _, trial in done])
    for plan, trial in done[1:4]:
        digits = ", ".join(" x ".join(map(str, f)) for f in trial.factors)
        place = f", {_DONE_BY[trial.device]}" if differ else ""
        yield f"{trial.rounds} with {digits}, {trial.kernel}{place}", plan.expected


def usable_kernels(kernel: str | None, chosen: str, dtype: np.dtype[Any]) -> tuple[str, ...]:
    """Return the FFT libraries that may be tried: one if it was named, else all that there are."""
    asked = config.get("bigfft.kernel") if kernel is None else kernel
    return usable_libraries(dtype) if asked == "auto" else (chosen,)


def tuned_plan(
    spec: TransformSpec, request: Request, machine: Machine, kernel: str | None
) -> Plan | None:
    """Return the plan that is the fastest when run, as `tuned` finds it, with any usable library.

    Parameters
    ----------
    spec, request, machine
        What is asked, as `find_plan` takes it.
    kernel : str or None
        The FFT library that was asked for, ``"auto"`` or None for that of the settings.
    """
    kernels = usable_kernels(kernel, request.kernel, spec.work_dtype)
    found = tuned(spec, request, machine, kernels)
    return None if found is None else found.plan
