"""Settings of a device's pipeline that are tried with a plan.

Buffers, passes and streams are tried one after the other, then the ring for memory that is not
pinned, and the parts in which each round uses the ring's buffers: rounds whose exchanges read the
same rows (C runs of W elements) together. The best of one group is kept for the next, and all for
a class of problems as the plan is (streams and passes found by search: Gu, Siegel, Li, 2011).

Imports `devices` and `planner`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from dask_bigfft.devices.ring import BUFFER_NBYTES
from dask_bigfft.planner.device_settings import DeviceSettings
from dask_bigfft.planner.plan import Plan

__all__ = ["Group", "choices", "groups", "on_devices"]

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
