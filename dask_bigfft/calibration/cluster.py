"""Speeds of what lies between the workers of a cluster, measured through its client.

A client is handed in; nothing is imported but NumPy.
"""

import time
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["network_speeds", "workers_of"]

#: Tasks, and pieces that travel between two workers, that are timed.
TASKS, PIECES = 200, 64


def workers_of(client: Any) -> dict[str, Any]:
    """Return what a client's scheduler knows of its workers, by their addresses."""
    found: dict[str, Any] = dict(client.scheduler_info(n_workers=-1)["workers"])
    return found


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
