"""Speeds of what the workers of a cluster share, measured through its client.

That is the network between them, the scheduler, and the disk of each host. A client is handed in.
Imports NumPy and this room.
"""

import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.calibration.system import DISK_NBYTES, was_read, written

__all__ = ["disks_of", "hosts_of", "network_speeds", "workers_of"]

#: Bytes that each of many workers of a host writes, at least.
DISK_EACH = 16 << 20

#: Tasks, and pieces that travel between two workers, that are timed.
TASKS, PIECES = 200, 64


def workers_of(client: Any) -> dict[str, Any]:
    """Return what a client's scheduler knows of its workers, by their addresses."""
    found: dict[str, Any] = dict(client.scheduler_info(n_workers=-1)["workers"])
    return found


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
        for addresses in hosts.values() for address in addresses
    }
    name = f"bigfft-calibration-{uuid.uuid4().hex[:12]}"
    paths = {address: Path(folder) / f"{name}-{i}" for i, address in enumerate(each)}

    def at_once(work: Any, *arguments: Mapping[str, Any]) -> dict[str, Any]:
        asked = {
            address: client.submit(work, path, *(found[address] for found in arguments),
                                   workers=[address], allow_other_workers=False, pure=False)
            for address, path in paths.items()}
        return dict(zip(asked, client.gather(list(asked.values())), strict=True))

    try:
        wrote, read = at_once(written, each), at_once(was_read)
    finally:
        at_once(_removed)
    return {
        what: min(
            sum(each[a] for a in addresses) / max(seconds[a] for a in addresses)
            for addresses in hosts.values())
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


def network_speeds(
    client: Any, addresses: list[str], nbytes: int, repeat: int
) -> dict[str, float]:
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
