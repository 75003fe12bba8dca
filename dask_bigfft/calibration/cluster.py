"""Speeds of a cluster: the slowest of all workers, and what they share.

Workers share the network, the scheduler, and the disk of each host, measured through a client.
Nearly every exchange waits for the last block of a round, so the slowest worker at each operation
sets the pace: in copies that may be another worker than in FFTs.

Imports the planner's profiles and this room.
"""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.calibration.system import DISK_NBYTES, was_read, written
from dask_bigfft.planner.profile import DeviceProfile, Peer, Profile

__all__ = ["disks_of", "hosts_of", "network_speeds", "slowest", "workers_of"]

#: Bytes that each of many workers of a host writes, at least.
DISK_EACH = 16 << 20

#: Tasks, and pieces that travel between two workers, that are timed.
TASKS, PIECES = 200, 64


def workers_of(client: Any) -> dict[str, Any]:
    """Return what a client's scheduler knows of its workers, by their addresses."""
    found: dict[str, Any] = dict(client.scheduler_info(n_workers=-1)["workers"])
    return found


#: Prices in seconds, which are slower the larger they are; all others are speeds. Threads are those
#: of the worker with most, as in plans.
LARGER = frozenset(
    {
        "threads",
        "run",
        "move",
        "start",
        "task",
        "tile",
        "shard",
        "exchange",
        "pair",
        "sent_task",
        "sent_shard",
        "shared_round",
        "call",
    }
)


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
        found,
        libraries=tuple(_slowest([of_worker[key] for of_worker in known]) for key in common),
        devices=_devices(profiles),
        peers=_peers(profiles),
    )


def _slowest(things: Sequence[Any]) -> Any:
    """Return the first of some values alike, with the slowest of each of their numbers."""
    worst: dict[str, Any] = {}
    for field in fields(things[0]):
        values = [getattr(one, field.name) for one in things]
        if all(isinstance(value, int | float) for value in values) and not isinstance(
            values[0], bool
        ):
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
        for i in range(most)
    )


def _peers(profiles: Sequence[Profile]) -> tuple[Peer, ...]:
    """Pairs of devices that see each other in all workers that have both."""
    found: dict[tuple[int, int], list[Peer]] = {}
    for profile in profiles:
        for pair in profile.peers:
            found.setdefault((pair.source, pair.target), []).append(pair)
    return tuple(
        _slowest(pairs)
        for ends, pairs in sorted(found.items())
        if len(pairs) == sum(max(ends) < len(profile.devices) for profile in profiles)
    )


def hosts_of(workers: Mapping[str, Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the addresses of the workers of each host.

    >>> hosts_of({"a:1": {"host": "a"}, "b:1": {"host": "b"}, "a:2": {"host": "a"}})
    {'a': ['a:1', 'a:2'], 'b': ['b:1']}
    """
    found: dict[str, list[str]] = {}
    for address, info in workers.items():
        found.setdefault(str(info.get("host")), []).append(address)
    return found


def disks_of(
    client: Any, hosts: Mapping[str, list[str]], folder: str, nbytes: int = DISK_NBYTES
) -> dict[str, float]:
    """Return the bytes per second of the slowest host's disk: ``write`` and ``read``.

    All workers write at the same time, and then all read, as they do in a run. What the workers of
    a host move together is the speed of its disk, or its part of one that several hosts share.

    Parameters
    ----------
    client : distributed.Client
        Of the cluster.
    hosts : mapping of str to list of str
        Addresses of the workers of each host.
    folder : str
        Where they write.
    nbytes : int
        Bytes that the workers of a host write together.
    """
    each = {
        address: max(min(nbytes, DISK_EACH), nbytes // len(addresses))
        for addresses in hosts.values()
        for address in addresses
    }
    name = f"bigfft-calibration-{uuid.uuid4().hex[:12]}"
    paths = {address: Path(folder) / f"{name}-{i}" for i, address in enumerate(each)}

    def at_once(work: Any, *arguments: Mapping[str, Any]) -> dict[str, Any]:
        asked = {
            address: client.submit(
                work,
                path,
                *(found[address] for found in arguments),
                workers=[address],
                allow_other_workers=False,
                pure=False,
            )
            for address, path in paths.items()
        }
        return dict(zip(asked, client.gather(list(asked.values())), strict=True))

    try:
        wrote, read = at_once(written, each), at_once(was_read)
    finally:
        at_once(_removed)
    return {
        what: min(
            sum(each[a] for a in addresses) / max(seconds[a] for a in addresses)
            for addresses in hosts.values()
        )
        for what, seconds in (("write", wrote), ("read", read))
    }


def _removed(path: Path) -> None:
    path.unlink(missing_ok=True)


def _array(nbytes: int) -> npt.NDArray[np.uint8]:
    return np.ones(nbytes, np.uint8)


def _total(arrays: Any) -> int:
    return sum(len(array) for array in arrays)


def _ring_seconds(client: Any, addresses: list[str], nbytes: int, pieces: int) -> float:
    """Seconds in which every worker gets arrays of the worker before it."""
    made = {
        address: [
            client.submit(_array, nbytes, workers=[address], pure=False) for _ in range(pieces)
        ]
        for address in addresses
    }
    here = [client.submit(_total, m, workers=[a], pure=False) for a, m in made.items()]
    client.gather(here)
    nexts = [*addresses[1:], addresses[0]]
    started = time.perf_counter()
    taken = [
        client.submit(_total, made[address], workers=[after], pure=False)
        for address, after in zip(addresses, nexts, strict=True)
    ]
    client.gather(taken)
    return time.perf_counter() - started


def network_speeds(client: Any, addresses: list[str], nbytes: int, repeat: int) -> dict[str, float]:
    """Return what a `Profile` says of a cluster, by the names of its fields.

    Parameters
    ----------
    client : distributed.Client
        Of the cluster.
    addresses : list of str
        Its workers. With one there is no network.
    nbytes : int
        Bytes that each worker gets.
    repeat : int
        Times; the least counts.
    """

    def tasks() -> float:
        started = time.perf_counter()
        client.gather(client.map(abs, range(-TASKS, 0), pure=False))
        return (time.perf_counter() - started) / TASKS

    found = {"sent_task": min(tasks() for _ in range(repeat))}
    if len(addresses) < 2:
        return found
    empty, small, large = (
        min(_ring_seconds(client, addresses, size, count) for _ in range(repeat))
        for size, count in ((1, 1), (1, PIECES), (nbytes, 1))
    )
    found["sent_shard"] = max(0.0, (small - empty) / (PIECES - 1))
    found["network"] = nbytes / max(large - empty, 1e-6)
    return found
