"""The tuner: the best plans by the model are run, and the fastest is kept as wisdom.

The model proposes a small region: the rounds that it ranks best, for a few sizes of blocks and
every installed FFT library, by CPU threads, devices and both together where the caller leaves that
open. All are run (`trials`). The winner is kept for the machine, the versions of the libraries, and
the class of the problem: transform, dtype, free choices, and lengths and numbers of chunks to the
next power of two. Where devices alone do the rounds, settings of their pipelines are then tried
with the winning plan. Where CPU threads share the rounds, they change next to nothing.

Imports `trials`, `libraries`, `planner`, `config`, `kept` and `environment`.
"""

import importlib.metadata
import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from dask_bigfft import config, kept
from dask_bigfft.planner.encoding import decode
from dask_bigfft.planner.plan import Machine, Plan
from dask_bigfft.planner.request import Request
from dask_bigfft.planner.tile_plan import DeviceSettings
from dask_bigfft.planner.wording import human_seconds
from dask_bigfft.planning.environment import device_software, workers_place
from dask_bigfft.planning.libraries import usable_libraries
from dask_bigfft.planning.trials import (
    Timer,
    Trial,
    measured_settings,
    measured_trials,
    on_devices,
    ones,
    region,
    timer_on,
    worth_trying,
)
from dask_bigfft.transforms.spec import TransformSpec

__all__ = ["Tuning", "tuned", "tuned_plan"]

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
        "machine": kept.machine(),
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
    entry = (kept.read(_path(), SCHEMA, _checked) or {}).get(name)
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
    entries = kept.read(_path(), SCHEMA, _checked) or {}
    entries[name] = {"context": _context(machine), "winner": asdict(winner)}
    kept.write(_path(), {"schema": SCHEMA, "plans": entries})


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
