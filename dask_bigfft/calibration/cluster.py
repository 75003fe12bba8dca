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
from dask_bigfft.system import forget_cached

#: Bytes to measure the disk of a host with.
DISK_NBYTES = 256 << 20

#: Minimum of these bytes for each worker of the host.
LEAST_DISK_NBYTES = 16 << 20

#: Number of timed tasks.
TASKS = 200

#: Number of timed arrays sent between two workers.
PIECES = 64

#: Quantities whose maximum counts: prices in seconds, and the number of threads, as in plans. All
#: other quantities are speeds.
LARGER = PRICES | {"threads"}

#: Calls a function on several workers at the same time; arguments and results are by address.
CallWorkers = Callable[[Callable[..., Any], Mapping[str, tuple[Any, ...]]], dict[str, Any]]


def on_workers(
    client: Any,
    work: Callable[..., Any],
    arguments: Mapping[str, tuple[Any, ...]],
) -> dict[str, Any]:
    """Call a function on the workers of a client's cluster: a `CallWorkers` with the client bound.

    Without a client, this process is the only worker.
    """
    if client is None:
        return {address: work(*inputs) for address, inputs in arguments.items()}
    futures = []
    for address, inputs in arguments.items():
        future = client.submit(
            work,
            *inputs,
            workers=[address],
            allow_other_workers=False,
            pure=False,
        )
        futures.append(future)
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
    >>> profile = slowest([Profile(copy=3e9, tile=2e-5), Profile(copy=2e9, tile=1e-5)])
    >>> profile.copy, profile.tile
    (2000000000.0, 2e-05)
    """
    speeds_by_library = defaultdict[tuple[str, str], list[LibrarySpeeds]](list)
    for profile in profiles:
        for speeds in profile.libraries:
            library = (speeds.name, speeds.dtype)
            speeds_by_library[library].append(speeds)
    libraries = []
    for speeds_of_workers in speeds_by_library.values():
        is_everywhere = len(speeds_of_workers) == len(profiles)
        if is_everywhere:
            libraries.append(_slowest(speeds_of_workers))
    devices = []
    devices_of_workers = [profile.devices for profile in profiles]
    for devices_at_place in itertools.zip_longest(*devices_of_workers):
        existing = [device for device in devices_at_place if device is not None]
        devices.append(_slowest(existing))
    combined: Profile = _slowest(profiles)
    return replace(combined, libraries=tuple(libraries), devices=tuple(devices))


def _slowest(profiles: Sequence[Any]) -> Any:
    """Return the first of several objects, with each number replaced by the slowest one."""
    first = profiles[0]
    slowest_numbers = {}
    for name, value in vars(first).items():
        if type(value) not in (int, float):
            continue
        values = [getattr(profile, name) for profile in profiles]
        slowest_numbers[name] = max(values) if name in LARGER else min(values)
    return replace(first, **slowest_numbers)


def disk_speeds(
    call_workers: CallWorkers,
    hosts: Mapping[str, Sequence[str]],
    folder: str,
    nbytes: int = DISK_NBYTES,
) -> dict[str, float]:
    """Return the bytes per second of the slowest host's disk: ``write`` and ``read``.

    All workers write at the same time, and then all read, as in a run. The slowest worker of a host
    determines the time of the host.

    Parameters
    ----------
    call_workers : CallWorkers
        Function that calls the cluster's workers.
    hosts : mapping of str to list of str
        Addresses of the workers of each host.
    folder : str
        Folder for the files.
    nbytes : int
        Bytes written by all workers of a host together.
    """
    least = min(nbytes, LEAST_DISK_NBYTES)
    sizes: dict[str, int] = {}
    for addresses in hosts.values():
        worker_nbytes = max(least, nbytes // len(addresses))
        sizes |= dict.fromkeys(addresses, worker_nbytes)
    prefix = f"bigfft-calibration-{uuid.uuid4().hex[:12]}"
    paths_and_sizes = {}
    paths = {}
    paths_to_remove = {}
    for number, (address, size) in enumerate(sizes.items()):
        path = Path(folder) / f"{prefix}-{number}"
        paths_and_sizes[address] = (path, size)
        paths[address] = (path,)
        paths_to_remove[address] = (path, True)  # True: it may be missing
    try:
        write_seconds = call_workers(written, paths_and_sizes)
        read_seconds = call_workers(was_read, paths)
    finally:
        call_workers(Path.unlink, paths_to_remove)
    return {
        "write": _slowest_disk(hosts, sizes, write_seconds),
        "read": _slowest_disk(hosts, sizes, read_seconds),
    }


def _slowest_disk(
    hosts: Mapping[str, Sequence[str]],
    sizes: Mapping[str, int],
    seconds: Mapping[str, float],
) -> float:
    """Return the bytes per second of the slowest host, given bytes and seconds of each worker."""
    speeds = []
    for addresses in hosts.values():
        nbytes = sum(sizes[address] for address in addresses)
        longest = max(seconds[address] for address in addresses)
        speeds.append(nbytes / longest)
    return min(speeds)


def written(path: Path, nbytes: int) -> float:
    """Write a file of `nbytes` bytes; return the seconds until it is on the disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part_nbytes = min(nbytes, 1 << 24)
    part = np.random.default_rng(0).bytes(part_nbytes)
    started = time.perf_counter()
    with path.open("wb") as file:
        for offset in range(0, nbytes, part_nbytes):
            file.write(part[: nbytes - offset])
        file.flush()
        os.fsync(file.fileno())
        seconds = time.perf_counter() - started
        forget_cached(file.fileno())  # before it is read
    return max(seconds, 1e-9)


def was_read(path: Path) -> float:
    """Read a file; return the seconds."""
    started = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 24):
            pass
    return max(time.perf_counter() - started, 1e-9)


def _ring_seconds(
    client: Any,
    addresses: list[str],
    nbytes: int,
    pieces: int,
) -> float:
    """Return the seconds until every worker has received the arrays of its predecessor.

    Each worker has a number of arrays, `pieces`, of `nbytes` each.
    """
    arrays_of_workers = []
    for address in addresses:
        arrays = []
        for _ in range(pieces):
            array = client.submit(
                np.ones,
                nbytes,
                "u1",
                workers=[address],
                pure=False,
            )
            arrays.append(array)
        arrays_of_workers.append(arrays)

    def seconds(receivers: list[str]) -> float:
        """Return the seconds until each receiver has the arrays at its place in the list."""
        started = time.perf_counter()
        lengths = []
        for receiver, arrays in zip(receivers, arrays_of_workers, strict=True):
            length = client.submit(  # of the list: a worker fetches the arrays in it first
                len,
                arrays,
                workers=[receiver],
                pure=False,
            )
            lengths.append(length)
        client.gather(lengths)
        return time.perf_counter() - started

    seconds(addresses)  # waits until all arrays are made
    successors = [*addresses[1:], addresses[0]]
    return seconds(successors)


def network_speeds(
    client: Any,
    addresses: list[str],
    nbytes: int,
    repeat: int,
) -> dict[str, float]:
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

    def run_tasks() -> None:
        futures = client.map(abs, range(-TASKS, 0), pure=False)
        client.gather(futures)

    def ring_seconds(piece_nbytes: int, pieces: int) -> float:
        measured = []
        for _ in range(repeat):
            measured.append(_ring_seconds(client, addresses, piece_nbytes, pieces))
        return min(measured)

    task_seconds = min(timeit.repeat(run_tasks, repeat=repeat, number=1))
    speeds = {"sent_task": task_seconds / TASKS}
    if len(addresses) < 2:
        return speeds
    latency = ring_seconds(1, 1)
    small_seconds = ring_seconds(1, PIECES)
    large_seconds = ring_seconds(nbytes, 1)
    speeds["sent_shard"] = max(0.0, (small_seconds - latency) / (PIECES - 1))
    speeds["network"] = nbytes / max(large_seconds - latency, 1e-6)
    return speeds
