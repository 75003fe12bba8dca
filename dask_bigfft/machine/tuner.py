"""The tuner: runs the best plans by the model, and keeps the fastest as wisdom.

The model proposes a small region: its best rounds for a few block sizes, every installed FFT
library, and (unless the caller chose) CPU threads, devices and both together. All of them are run.
The winner is kept for the machine, the versions of the libraries, and the class of the problem. A
class is a transform, dtype and free choices, with lengths and numbers of chunks rounded up to
powers of two.

If devices alone do the rounds, the tuner then tries settings of their pipelines. These settings
hardly matter for rounds that CPU threads share.
"""

import contextlib
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from dask.utils import format_time

from dask_bigfft import config, files
from dask_bigfft.errors import PlanError
from dask_bigfft.graph.layer import transformed_array
from dask_bigfft.kernels.copies import compile_at_once
from dask_bigfft.kernels.libraries import LIBRARIES, version_of
from dask_bigfft.kernels.transfer import LazyTransfer, TileTransfer
from dask_bigfft.machine.environment import device_software, workers_place
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.profile import decode
from dask_bigfft.planner.request import Machine, Request
from dask_bigfft.planner.search import find_plans
from dask_bigfft.planner.tile_plan import DeviceSettings
from dask_bigfft.planner.work_sharing import divided
from dask_bigfft.transforms.spec import TransformSpec

#: Block sizes to try, in units of the input's.
SCALES = (1.0, 0.5, 2.0, 4.0)

#: Maximum number of plans to try.
MOST = 8

#: Maximum cost of plans to try, relative to the cheapest one.
DEARER = 2.0

#: Minimum forecast speed-up of a plan with shared rounds for it to be tried. It is below 1, because
#: measurements decide close cases better than the model.
NEAR = 0.9

#: Timed runs of each plan after a warm-up.
REPEAT = 3

#: Ratio to the fastest plan that drops a plan.
SLOWER = 1.5

Timer = Callable[[Plan], float]

#: Settings of device pipelines, tried one after the other: tiles on a device at a time, tiles of a
#: pass, and streams.
VALUES: dict[str, tuple[Any, ...]] = {
    "buffers": (2, 3, 4, 8),
    "passes": (4, 8, 16, 32),
    "streams": ("role", "tile"),
}


def on_devices(plan: Plan) -> bool:
    """Return True if devices of this process alone do the rounds of a plan."""
    if plan.machine.workers > 1 or plan.machine.gpus == 0:
        return False
    if plan.device not in ("auto", "gpu"):
        return False
    dtype = np.dtype(plan.dtypes[0])
    return dtype.char in "fdFD"


@dataclass(frozen=True)
class Trial:
    """A plan that is tried.

    Parameters
    ----------
    plan : Plan
        The plan, with settings of the devices' pipelines.
    scale : float
        Size of the blocks, in units of the input's.
    measured : tuple of float
        Seconds of its runs.
    """

    plan: Plan
    scale: float = 1.0
    measured: tuple[float, ...] = ()

    @property
    def forecast(self) -> float:
        """The seconds by the model."""
        return self.plan.expected.seconds

    @property
    def seconds(self) -> float:
        """The median of the runs."""
        return statistics.median(self.measured) if self.measured else math.inf

    @property
    def shortest(self) -> float:
        """The seconds of the fastest run."""
        return min(self.measured)

    @property
    def factors(self) -> list[list[int]]:
        """Lengths of the digits of each axis."""
        return [list(program.factors) for program in self.plan.programs]

    @property
    def winner(self) -> dict[str, Any]:
        """The entries of wisdom for the plan."""
        plan = self.plan
        return {
            "notation": plan.notation,
            "kernel": plan.kernel,
            "storage": plan.storage,
            "device": plan.device,
            "scale": self.scale,
            "factors": self.factors,
            "settings": asdict(plan.settings),
        }


# --- what is tried --------------------------------------------------------------------------


def region(
    spec: TransformSpec,
    request: Request,
    machine: Machine,
    kernels: Sequence[str],
) -> list[Trial]:
    """Return different plans worth trying, cheapest by the model first.

    If the request leaves the device open, there are plans for CPU threads, for devices, and for
    both together.

    Parameters
    ----------
    spec, request, machine
        The arguments of `find_plan`.
    kernels : sequence of str
        FFT libraries that may be used.
    """
    trials: dict[Any, Trial] = {}  # the first one of those that run alike
    scales = SCALES if request.rounds is None else (1.0,)
    for scale, kernel in itertools.product(scales, kernels):
        request_of_trial = replace(request, scale=scale, kernel=kernel)
        for plan in _plans(spec, request_of_trial, machine):
            identity = (
                plan.rounds,
                plan.result,
                _cpu_kernel(plan),
                plan.storage,
                plan.device,
            )
            trials.setdefault(identity, Trial(plan, scale))
    return sorted(trials.values(), key=lambda trial: trial.forecast)


def _cpu_kernel(plan: Plan) -> str:
    """Return the FFT library of a plan, or an empty text if GPUs do all rounds."""
    rounds = plan.expected.rounds[: len(plan.rounds)]
    shares_of_gpus = [expected.share for expected in rounds]
    has_gpus_only = bool(rounds) and min(shares_of_gpus) >= 1
    return "" if has_gpus_only else plan.kernel


def _plans(spec: TransformSpec, request: Request, machine: Machine) -> Iterator[Plan]:
    """Yield plans for each allowed choice of devices; none if the chunks are too small.

    Verified rounds are shared between CPU threads and devices only by request.
    """
    is_open = request.device == "auto" and request.verify == "none"
    has_choice = is_open or request.device == "hybrid"
    gpus_can = machine.gpus > 0 and spec.work_dtype.char in "FD"
    with contextlib.suppress(PlanError):
        if not gpus_can or not has_choice:
            yield from find_plans(spec, request, machine)
            return
        request_of_gpus = replace(request, device="auto")
        yield from find_plans(spec, request_of_gpus, machine)
        request_of_cpu = replace(request, device="cpu")
        machine_without_gpus = replace(machine, gpus=0)
        min_speedup = min(NEAR, config.get("bigfft.hybrid.min-speedup"))
        for plan in find_plans(spec, request_of_cpu, machine_without_gpus):
            yield plan
            hybrid_plan = replace(plan, device="hybrid")
            shared_plan = divided(hybrid_plan, machine.gpus, min_speedup)
            if any(0 < share < 1 for share in shared_plan.shares):
                yield shared_plan


# --- measuring ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _ConstantOnTile(TileTransfer):
    """Transfer function 1 on a tile; `like` is an array on its device."""

    like: Any

    def values(self, part: tuple[slice, ...], dtype: Any) -> Any:
        """Return a single 1, which is broadcast to the tile."""
        shape = (1,) * len(part)
        real_dtype = np.empty(0, dtype).real.dtype
        return np.ones(shape, real_dtype, like=self.like)


@dataclass(frozen=True)
class _Constant:
    """Transfer function 1, for operators that are timed; an array of ones is not used."""

    array: Any = None

    def on_tile(self, axes: Mapping[int, Any], like: Any) -> _ConstantOnTile:
        """Return the function on a tile."""
        return _ConstantOnTile(like)


def _transfer_for(spec: TransformSpec) -> Any:
    """Return a transfer function for operators that are timed, and None for transforms."""
    if not spec.transfer:
        return None
    factor = spec.factor
    if factor is None:
        return _Constant()
    ones = da.ones(factor.shape, chunks=factor.chunks, dtype=factor.dtype)
    return LazyTransfer(ones.persist(), factor, _Constant())


def timer_for(plan: Plan) -> Timer:
    """Return a function that times plans of the same input on an array of ones."""
    carrier = config.get("bigfft.exchange.carrier")
    dtype = np.dtype(plan.spec.dtype)
    ones = da.ones(
        plan.spec.shape,
        chunks=plan.chunks_in,
        dtype=dtype,
    )
    # A block of ones is a single broadcast number, which would cost nothing to read.
    blocks_in_memory = ones.map_blocks(
        np.ascontiguousarray,
        dtype=dtype,
        meta=ones._meta,
    )
    array = blocks_in_memory.persist()

    transfer = _transfer_for(plan.spec)

    def timed(plan: Plan) -> float:
        """Return the seconds of a run."""
        result = transformed_array(
            array,
            plan,
            carrier,
            transfer=transfer,
        )
        started = time.perf_counter()
        persisted_array = result.persist()
        graph = getattr(persisted_array, "dask", {})
        for block in dict(graph).values():
            if hasattr(block, "exception"):  # a future of a cluster
                block.exception()  # waits for it
        return time.perf_counter() - started

    return timed


def measured_trials(trials: Sequence[Trial], timer: Timer) -> list[Trial]:
    """Return trials with the seconds of their runs, fastest first.

    The first runs do not count: they warm up compiled code and memory. A plan drops out only if all
    of its runs were slow, so that one disturbed run does not matter.
    """
    compile_at_once()
    for trial in trials:
        timer(trial.plan)
    remaining = [replace(trial, measured=()) for trial in trials]
    dropped: list[Trial] = []
    for number in range(REPEAT):
        is_backwards = number % 2 == 1
        timed_trials = _timed_once(remaining, timer, is_backwards)
        shortest = min(trial.shortest for trial in timed_trials)
        remaining = []
        for trial in timed_trials:
            is_slow = trial.shortest > SLOWER * shortest
            trials_of_kind = dropped if is_slow else remaining
            trials_of_kind.append(trial)

    def rank(trial: Trial) -> tuple[int, float]:
        """Return a smaller number for more runs, and then for a smaller median."""
        return -len(trial.measured), trial.seconds

    return sorted([*remaining, *dropped], key=rank)


def _timed_once(trials: Sequence[Trial], timer: Timer, is_backwards: bool) -> list[Trial]:
    """Return trials with the seconds of one more run each.

    A plan may be slowed down by the one before it, so every second time they run backwards.
    """
    timed_trials: list[Trial] = []
    for trial in reversed(trials) if is_backwards else trials:
        seconds = timer(trial.plan)
        measured = (*trial.measured, seconds)
        timed_trials.append(replace(trial, measured=measured))
    if is_backwards:
        timed_trials.reverse()
    return timed_trials


def measured_settings(trial: Trial, timer: Timer) -> list[Trial]:
    """Return a plan with the tried settings of device pipelines, fastest first.

    Each setting is tried with the best values of the settings before it.
    """
    all_trials: list[Trial] = []
    best = trial
    for name, values in VALUES.items():
        plan = best.plan
        choices = [plan.settings]
        for value in values:
            changed_settings = replace(plan.settings, **{name: value})
            if changed_settings not in choices:
                choices.append(changed_settings)
        trials = []
        for settings in choices:
            plan_with_settings = replace(plan, settings=settings)
            trials.append(replace(best, plan=plan_with_settings))
        measured = measured_trials(trials, timer)
        best = measured[0]
        all_trials = [*measured, *all_trials]
    return all_trials


#: Maximum part of the memory limit that an array and its transform may take to be tried.
SHARE = 0.3

SCHEMA = 5

#: Entries of wisdom that are attributes of the winning plan.
_NAMES = ("notation", "kernel", "storage", "device")

#: Packages whose versions affect the speed of a plan, beside those of devices.
PACKAGES = ("dask", "dask-bigfft", "distributed", "numpy", "numba", *LIBRARIES)


#: The devices that do the rounds, in words, by `Plan.device`.
_EXECUTORS = {
    "auto": "devices",
    "gpu": "devices",
    "cpu": "CPU threads",
    "hybrid": "both",
}


# --- wisdom ---------------------------------------------------------------------------------


def _rounded_sizes(sizes: Iterable[int]) -> str:
    """Return sizes rounded up to powers of two.

    >>> _rounded_sizes([1, 5, 64])
    '2^0x2^3x2^6'
    """
    texts = []
    for size in sizes:
        exponent = max(0, size - 1).bit_length()
        texts.append(f"2^{exponent}")
    return "x".join(texts)


def problem_class(spec: TransformSpec, request: Request, kernels: Sequence[str]) -> str:
    """Return the name of the problems that share their wisdom.

    Lengths and numbers of chunks are rounded up to powers of two. The name contains all choices
    that the caller fixed, such as one FFT library or a limit of device memory.
    """
    orders_of_both_ends = (*spec.orders_in, *spec.orders_out)
    orders = "".join(order[0] for order in orders_of_both_ends)
    result_chunks = "auto" if request.wanted_chunks is None else "chunks"
    transform = f"{spec.name} {spec.dtype} axes {spec.axes} {orders} {result_chunks}"
    choices = (
        request.variant,
        request.storage,
        request.device,
        request.verify,
        request.rounds,
        request.device_nbytes,
    )
    fixed = ",".join(map(str, choices))
    libraries = "|".join(sorted(kernels))
    lengths = _rounded_sizes(spec.shape)
    cuts = _rounded_sizes(map(len, request.chunks))
    return f"{transform} {fixed} by {libraries}: {lengths} in {cuts}"


def _context(machine: Machine) -> dict[str, Any]:
    """Return the conditions under which wisdom holds, beside the problem."""
    versions = device_software() if machine.gpus else {}
    versions |= {name: version_of(name) for name in PACKAGES}
    return {
        "machine": files.machine(),
        "workers": workers_place(),
        "running": [machine.threads, machine.workers, machine.gpus],
        "versions": versions,
        "devices": [device.name for device in machine.devices],
    }


def _path() -> Path:
    return Path(config.get("bigfft.wisdom.directory")) / "plans.json"


def _checked(content: Any) -> dict[str, Any]:
    """Return the entries of a file of wisdom; raise an error for unusable ones."""
    entries = dict(content["plans"])
    for entry in entries.values():
        winner = entry["winner"]
        has_names = all(isinstance(winner[name], str) for name in _NAMES)
        has_context = isinstance(entry["context"], dict)
        if not (has_names and has_context and float(winner["scale"]) > 0):
            raise ValueError("plans")
        decode(DeviceSettings, winner["settings"])
    return entries


def _entries() -> dict[str, Any]:
    return files.read_json(_path(), SCHEMA, _checked) or {}


def _alike(trials: Sequence[Trial], winner: dict[str, Any]) -> Plan | None:
    """Return the plan of the trial that is like the winner of an earlier run; None without one.

    Digits need not be equal, because lengths of one class differ. The settings are the winner's.
    """
    names = (*_NAMES, "scale")
    alike: list[Trial] = []
    same_digits: list[Trial] = []
    for trial in trials:
        entries = trial.winner
        if any(entries[name] != winner[name] for name in names):
            continue
        alike.append(trial)
        if trial.factors == winner.get("factors"):
            same_digits.append(trial)
    if not alike:
        return None
    best = same_digits[0] if same_digits else alike[0]
    settings = decode(DeviceSettings, winner["settings"])
    return replace(best.plan, settings=settings)


# --- all of it ------------------------------------------------------------------------------


def tuned(
    spec: TransformSpec,
    request: Request,
    machine: Machine,
    kernels: Sequence[str],
    timer: Timer | None = None,
) -> Plan | None:
    """Return the plan that runs fastest, from wisdom or by measurements made now.

    None if the array is too large to be tried, or if no plan fits into the memory limit.

    Parameters
    ----------
    spec, request, machine
        The arguments of `find_plan`.
    kernels : sequence of str
        FFT libraries that may be used.
    timer : callable, optional
        Runs a plan and returns the seconds; the default runs it on an array of ones.
    """
    name = problem_class(spec, request, kernels)
    context = _context(machine)
    entry = _entries().get(name, {})
    is_known = entry.get("context") == context
    is_too_large = _is_too_large(spec, machine)
    if is_too_large and not is_known:  # the region takes long for large arrays
        return None
    trials = region(
        spec,
        request,
        machine,
        kernels,
    )
    if is_known:
        plan = _alike(trials, entry["winner"])
        if plan is not None:
            return replace(plan, reason="the fastest when such transforms were measured")
    near_best = _near_best(trials)
    if not near_best or is_too_large:
        return None
    timer = timer or timer_for(near_best[0].plan)
    measured = measured_trials(near_best, timer)
    if on_devices(measured[0].plan):
        measured = [*measured_settings(measured[0], timer), *measured]
    best = measured[0]
    _remember(name, context, best)
    reason = f"the fastest of {len(measured)} that were measured{_settings(best.plan)}: "
    reason += format_time(best.seconds)
    return replace(best.plan, reason=reason, rejected=tuple(_rejected(measured)))


def _is_too_large(spec: TransformSpec, machine: Machine) -> bool:
    """Return whether an array and its transform take too much memory to be tried."""
    if machine.memory_limit is None:
        return False
    return spec.nbytes + spec.out_nbytes > SHARE * machine.memory_limit * machine.workers


def _remember(name: str, context: dict[str, Any], best: Trial) -> None:
    """Write the winner of a class of problems to the file of wisdom."""
    plans = _entries()
    plans[name] = {
        "context": context,
        "winner": best.winner,
    }
    content = {"schema": SCHEMA, "plans": plans}
    files.write_json(_path(), content)


def _near_best(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials to run: those close to the best forecast.

    The best one for each of CPU threads, devices and both is among them if it is close.
    """
    if not trials:
        return []
    most = DEARER * min(trial.forecast for trial in trials)
    near = [trial for trial in trials if trial.forecast <= most]
    best_by_device: dict[str, Trial] = {}
    for trial in reversed(near):  # the last entry, which is the cheapest, stays
        best_by_device[trial.plan.device] = trial
    chosen = near[:MOST]
    for trial in best_by_device.values():
        if trial not in chosen:
            chosen.append(trial)
    return chosen


def _rejected(measured: Sequence[Trial]) -> Iterator[tuple[str, Any]]:
    """Yield the next fastest trials, in words."""
    has_several_devices = len({trial.plan.device for trial in measured}) > 1
    for trial in measured[1:4]:
        plan = trial.plan
        digits = [" x ".join(map(str, factors)) for factors in trial.factors]
        text = f"{plan.notation} with {', '.join(digits)}, {plan.kernel}{_settings(plan)}"
        if has_several_devices:
            text += f", {_EXECUTORS[plan.device]}"
        yield text, plan.expected


def _settings(plan: Plan) -> str:
    """Return the settings of the devices' pipelines that are not left to the engine, in words."""
    settings = asdict(plan.settings).items()
    return "".join(f", {name}: {value}" for name, value in settings if value is not None)
