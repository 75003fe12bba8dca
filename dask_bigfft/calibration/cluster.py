"""Speeds of a cluster: the slowest worker, the disks, and the network.

Nearly every exchange waits for the last block of a round, so the slowest worker sets the pace. It
may be one worker for copies and another for FFTs. Workers share the network, the scheduler, and
the disk of their host. One process counts as a cluster of one worker without a network.
"""

import itertools
import os
import time
import timeit
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dask_bigfft.planner.profile import PRICES, LibrarySpeeds, Profile

#: Bytes to measure the disk of a host with, and the minimum for each of its workers.
DISK_NBYTES, DISK_EACH = 256 << 20, 16 << 20

#: Number of timed tasks, and of timed arrays sent between two workers.
TASKS, PIECES = 200, 64

#: Quantities whose maximum counts: prices in seconds, and the number of threads, as in plans. All
#: other quantities are speeds.
LARGER = PRICES | {"threads"}

#: Calls a function on several workers at the same time; arguments and results are by address.
Each = Callable[[Callable[..., Any], Mapping[str, tuple[Any, ...]]], dict[str, Any]]


def on_workers(
    client: Any, work: Callable[..., Any], arguments: Mapping[str, tuple[Any, ...]]
) -> dict[str, Any]:
    """Call a function on the workers of a client's cluster: an `Each` with the client bound.

    Without a client, this process is the only worker.
    """
    if client is None:
        return {address: work(*given) for address, given in arguments.items()}
    futures = [
        client.submit(work, *given, workers=[address], allow_other_workers=False, pure=False)
        for address, given in arguments.items()
    ]
    return dict(zip(arguments, client.gather(futures), strict=True))


def slowest(profiles: Sequence[Profile]) -> Profile:
    """Return the combined profile of a cluster's workers.

    It has the libraries that all workers have. Devices of workers are matched by their position. A
    pair of devices counts if it has access in every worker that has both.

    Parameters
    ----------
    profiles : sequence of Profile
        Profiles of the workers, at least one; the result has the name of the first one.

    Examples
    --------
    >>> found = slowest([Profile(copy=3e9, tile=2e-5), Profile(copy=2e9, tile=1e-5)])
    >>> found.copy, found.tile
    (2000000000.0, 2e-05)
    """
    libraries = defaultdict[tuple[str, str], list[LibrarySpeeds]](list)
    for one in itertools.chain.from_iterable(profile.libraries for profile in profiles):
        libraries[one.name, one.dtype].append(one)
    devices = itertools.zip_longest(*(profile.devices for profile in profiles))
    found: Profile = _slowest(profiles)
    return replace(
        found,
        libraries=tuple(_slowest(o) for o in libraries.values() if len(o) == len(profiles)),
        devices=tuple(_slowest(list(filter(None, each))) for each in devices),
    )


def _slowest(things: Sequence[Any]) -> Any:
    """Return the first of several objects, with each number replaced by the slowest one."""
    worst = {}
    for name, value in vars(things[0]).items():
        if type(value) in (int, float):
            worst[name] = (max if name in LARGER else min)(getattr(one, name) for one in things)
    return replace(things[0], **worst)


def disk_speeds(
    each: Each, hosts: Mapping[str, Sequence[str]], folder: str, nbytes: int = DISK_NBYTES
) -> dict[str, float]:
    """Return the bytes per second of the slowest host's disk: ``write`` and ``read``.

    All workers write at the same time, and then all read, as in a run. The slowest worker of a host
    determines the time of the host.

    Parameters
    ----------
    each : Each
        Function that calls the cluster's workers.
    hosts : mapping of str to list of str
        Addresses of the workers of each host.
    folder : str
        Folder for the files.
    nbytes : int
        Bytes written by all workers of a host together.
    """
    least = min(nbytes, DISK_EACH)
    sizes = {a: max(least, nbytes // len(host)) for host in hosts.values() for a in host}
    name = f"bigfft-calibration-{uuid.uuid4().hex[:12]}"
    files = {address: (Path(folder) / f"{name}-{i}",) for i, address in enumerate(sizes)}
    try:
        wrote = each(written, {address: (*path, sizes[address]) for address, path in files.items()})
        seconds = {"write": wrote, "read": each(was_read, files)}
    finally:
        each(Path.unlink, {address: (*path, True) for address, path in files.items()})

    def speed(found: Mapping[str, float], host: Sequence[str]) -> float:
        return sum(sizes[a] for a in host) / max(found[a] for a in host)

    return {what: min(speed(s, host) for host in hosts.values()) for what, s in seconds.items()}


def written(path: Path, nbytes: int) -> float:
    """Write a file of `nbytes` bytes; return the seconds until it is on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = np.random.default_rng(0).bytes(min(nbytes, 1 << 24))
    started = time.perf_counter()
    with path.open("wb") as file:
        for at in range(0, nbytes, len(part)):
            file.write(part[: nbytes - at])
        file.flush()
        os.fsync(file.fileno())
        wrote = time.perf_counter() - started
        if hasattr(os, "posix_fadvise"):  # drop it from the page cache before it is read
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return max(wrote, 1e-9)


def was_read(path: Path) -> float:
    """Read a file; return the seconds."""
    started = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 24):
            pass
    return max(time.perf_counter() - started, 1e-9)


def _ring_seconds(client: Any, addresses: list[str], nbytes: int, pieces: int) -> float:
    """Return the seconds until every worker has received the arrays of its predecessor."""
    made = [
        [client.submit(np.ones, nbytes, "u1", workers=[a], pure=False) for _ in range(pieces)]
        for a in addresses
    ]

    def seconds(places: list[str]) -> float:
        started, pairs = time.perf_counter(), zip(places, made, strict=True)
        client.gather([client.submit(len, m, workers=[a], pure=False) for a, m in pairs])
        return time.perf_counter() - started

    seconds(addresses)  # waits until all arrays are made
    return seconds([*addresses[1:], addresses[0]])


def network_speeds(client: Any, addresses: list[str], nbytes: int, repeat: int) -> dict[str, float]:
    """Return the fields of a `Profile` that only a cluster has.

    Parameters
    ----------
    client : distributed.Client
        Client of the cluster.
    addresses : list of str
        Addresses of its workers. The network is measured with two or more.
    nbytes : int
        Bytes sent to each worker.
    repeat : int
        Number of measurements; the shortest counts.
    """

    def tasks() -> None:
        client.gather(client.map(abs, range(-TASKS, 0), pure=False))

    found = {"sent_task": min(timeit.repeat(tasks, repeat=repeat, number=1)) / TASKS}
    if len(addresses) < 2:
        return found
    empty, small, large = (
        min(_ring_seconds(client, addresses, size, count) for _ in range(repeat))
        for size, count in ((1, 1), (1, PIECES), (nbytes, 1))
    )
    found["sent_shard"] = max(0.0, (small - empty) / (PIECES - 1))
    found["network"] = nbytes / max(large - empty, 1e-6)
    return found
