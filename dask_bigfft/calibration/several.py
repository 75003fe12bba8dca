"""One profile for several workers: of each quantity what the slowest of them has.

Nearly every exchange waits for the last block of a round, so a transform goes on at the pace of
whoever is slowest at what is done just then: in copies that may be another worker than in FFTs.
Forecasts by such a profile are those of no worker, but not shorter than any one's.

Imports the planner's profiles.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from typing import Any

from dask_bigfft.planner.profile import DeviceProfile, Peer, Profile

__all__ = ["slowest"]

#: What takes longer the larger it is: seconds, and how many times as long something takes. All
#: other numbers are speeds, and how many times as fast something is. Threads are those of the
#: worker that has most, as in plans.
LARGER = frozenset({
    "threads", "run", "move", "start", "task", "tile", "shard", "exchange", "pair", "sent_task",
    "sent_shard", "shared_round", "call",
})


def slowest(profiles: Sequence[Profile]) -> Profile:
    """Return the profile of a cluster of workers, which have at least one each.

    Libraries are those that all workers have.

    Parameters
    ----------
    profiles : sequence of Profile
        Of the workers; the name is the first one's.

    Examples
    --------
    >>> found = slowest([Profile(copy=3e9, tile=2e-5), Profile(copy=2e9, tile=1e-5)])
    >>> found.copy, found.tile
    (2000000000.0, 2e-05)
    """
    found: Profile = _slowest(profiles)
    known = [{(one.name, one.dtype): one for one in profile.libraries} for profile in profiles]
    common = [key for key in known[0] if all(key in of_worker for of_worker in known)]
    return replace(
        found, libraries=tuple(_slowest([of_worker[key] for of_worker in known]) for key in common),
        devices=_devices(profiles), peers=_peers(profiles))


def _slowest(things: Sequence[Any]) -> Any:
    """One of several alike, with the slowest of each number that they have."""
    worst: dict[str, Any] = {}
    for field in fields(things[0]):
        values = [getattr(one, field.name) for one in things]
        if all(isinstance(value, int | float) for value in values) and not isinstance(
                values[0], bool):
            worst[field.name] = _worst(field.name, values)
    return replace(things[0], **worst)


def _worst(name: str, values: Sequence[float]) -> float:
    """The slowest of some numbers of a name."""
    chosen: Callable[[Sequence[float]], float] = max if name in LARGER else min
    return chosen(values)


def _devices(profiles: Sequence[Profile]) -> tuple[DeviceProfile, ...]:
    """Devices by their place in a worker: of each the slowest of all workers that have it."""
    most = max(len(profile.devices) for profile in profiles)
    return tuple(
        _slowest([profile.devices[i] for profile in profiles if i < len(profile.devices)])
        for i in range(most))


def _peers(profiles: Sequence[Profile]) -> tuple[Peer, ...]:
    """Pairs of devices that see each other in all workers that have both."""
    found: dict[tuple[int, int], list[Peer]] = {}
    for profile in profiles:
        for pair in profile.peers:
            found.setdefault((pair.source, pair.target), []).append(pair)
    return tuple(
        _slowest(pairs) for ends, pairs in sorted(found.items())
        if len(pairs) == sum(max(ends) < len(profile.devices) for profile in profiles))
