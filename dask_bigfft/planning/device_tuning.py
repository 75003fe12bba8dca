"""What of a device's pipeline is tried with a plan: the settings that a walk holds to be good.

Buffers, passes and streams are tried together, then the ring for memory that is not pinned, and in
what parts its buffers are used: by rounds whose crossings read the same rows (C runs of W
elements), one kind after the other. All of them are kept for a class of problems as the plan is.

Imports `devices` and `planner`.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from dask_bigfft.devices.dispatch import job_of
from dask_bigfft.devices.engine import Engine
from dask_bigfft.devices.jobs import Job
from dask_bigfft.devices.pieces import PiecePlan
from dask_bigfft.devices.pipeline import Carve
from dask_bigfft.devices.ring import BUFFER_NBYTES
from dask_bigfft.devices.simulated import SimulatedDevice
from dask_bigfft.devices.walk import placed, walked_seconds
from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.planner.device_settings import DeviceSettings
from dask_bigfft.planner.plan import Plan

__all__ = ["Choice", "Group", "choices", "on_devices", "rounds_by_rows"]

#: Pieces that are on a device at a time, pieces that a crossing is cut into, and streams.
BUFFERS, PASSES = (2, 3, 4, 8), (4, 8, 16, 32)
STREAMS: tuple[Literal["role", "piece"], ...] = ("role", "piece")

#: Buffers each way of the ring, and bytes of each.
RING_BUFFERS, RING_NBYTES = (2, 4, 8), (8 << 20, 32 << 20, 64 << 20)

#: Parts of a buffer that are used at a time.
PARTS = (1, 2, 4, 8)

#: Settings of a group that are tried at most, and blocks of a round that are walked through.
MOST, WALKED = 8, 4

#: What is tried together; rounds stand for the parts of the ring that they use.
Group = Literal["pieces", "ring"] | tuple[int, ...]


@dataclass(frozen=True)
class Choice:
    """Settings that may be tried.

    Parameters
    ----------
    settings : DeviceSettings
        What is set.
    forecast : float
        Seconds that devices take for all rounds, by a walk.
    pieces : str
        What the crossings of each round then are.
    """

    settings: DeviceSettings
    forecast: float
    pieces: str


def on_devices(plan: Plan) -> bool:
    """Whether devices alone do the rounds of a plan, in this process."""
    one = plan.machine.workers == 1 and plan.machine.cards > 0
    return one and plan.device in ("auto", "gpu") and np.dtype(plan.dtypes[0]).char in "fdFD"


def _group(base: DeviceSettings, group: Group, rounds: int = 0) -> Iterator[DeviceSettings]:
    """The settings of a group, the others as they are; `rounds` is how many there are."""
    yield base
    if isinstance(group, tuple):
        buffer = base.ring_nbytes or BUFFER_NBYTES
        for part in (max(1, buffer // n) for n in PARTS):
            parts = list(base.ring_parts or (buffer,) * rounds)
            for number in group:
                parts[number] = part
            yield replace(base, ring_parts=tuple(parts))
    elif group == "pieces":
        for k, passes, streams in itertools.product(BUFFERS, PASSES, STREAMS):
            yield replace(base, buffers=k, passes=passes, streams=streams)
    else:
        for count, nbytes in itertools.product(RING_BUFFERS, RING_NBYTES):
            yield replace(base, ring_buffers=count, ring_nbytes=nbytes)


def _jobs(plan: Plan, settings: DeviceSettings) -> list[Job]:
    """The first block of each round."""
    found = []
    for number, round_ in enumerate(plan.rounds):
        block = round_.source.largest_block
        source, target = (np.dtype(plan.dtypes[2 * number + i]) for i in (0, 1))
        own = settings.of_round(number)
        found.append(replace(job_of(round_, block, source, target), settings=own))
    return found


def _placed(plan: Plan, job: Job, pageable: bool) -> tuple[PiecePlan, Carve]:
    """The pieces of a job on the first device, and how its memory is cut for them."""
    card = plan.machine.devices[0]
    dry = SimulatedDevice(card.nbytes, profile=card, dry=True, pageable=pageable)
    pieces, carve, _ = placed(Engine(dry, plan.device_memory_limit), job)
    return pieces, carve


def rounds_by_rows(plan: Plan, base: DeviceSettings, *, pageable: bool) -> list[tuple[int, ...]]:
    """Return the rounds of a plan, from 0, those together whose crossings read the same rows.

    Parameters
    ----------
    plan, base, pageable
        As `choices` takes them. Nothing is returned where a block does not fit.
    """
    found: dict[tuple[int, ...], list[int]] = {}
    try:
        for number, job in enumerate(_jobs(plan, base)):
            first = _placed(plan, job, pageable)[0].schedule.crossings[0]
            found.setdefault(tuple(first.reads[:2]), []).append(number)
    except (DeviceError, DeviceMemoryError):
        return []
    return [tuple(numbers) for numbers in found.values()]


def _choice(plan: Plan, settings: DeviceSettings, pageable: bool) -> tuple[object, Choice] | None:
    """What settings come to; None where blocks do not fit so. With it, what makes them differ."""
    devices, limit = plan.machine.devices, plan.device_memory_limit
    seconds, texts, same = 0.0, [], []
    try:
        for job in _jobs(plan, settings):
            pieces, carve = _placed(plan, job, pageable)
            same.append((pieces.schedule, carve))
            first = pieces.schedule.crossings[0]
            texts.append(f"{pieces.pieces} of C={first.reads[0]} W={first.reads[1]}")
            slowest = max(
                walked_seconds(job, found, limit, WALKED, pageable=pageable)
                for found in set(devices)
            )
            waves = math.ceil(job.round.source.blocks / len(devices))
            seconds += waves * slowest / WALKED
    except (DeviceError, DeviceMemoryError):
        return None
    whole = (settings.ring_nbytes or BUFFER_NBYTES,) * len(plan.rounds)
    ring = settings.ring_buffers, settings.ring_nbytes, settings.ring_parts or whole
    return (*same, ring), Choice(settings, seconds, "; ".join(texts))


def choices(
    plan: Plan, base: DeviceSettings, group: Group, *, pageable: bool = False
) -> Sequence[Choice]:
    """Return settings worth trying: those that are given, then others, cheapest by a walk first.

    `MOST` at most; settings that cut blocks alike count once.

    Parameters
    ----------
    plan : Plan
        What is done with them.
    base : DeviceSettings
        What is set already.
    group : {"pieces", "ring"} or tuple of int
        What is varied; of rounds, in what parts they use the ring's buffers.
    pageable : bool
        Whether host memory is not pinned, so that it goes through the ring.
    """
    found: dict[object, Choice] = {}
    for settings in _group(base, group, len(plan.rounds)):
        choice = _choice(plan, settings, pageable)
        if choice is not None:
            found.setdefault(*choice)
    first, *others = found.values() if found else (None,)
    if first is None:
        return ()
    return (first, *sorted(others, key=lambda c: c.forecast)[: MOST - 1])
