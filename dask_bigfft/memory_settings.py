"""Limits of the arena and of a worker's memory, from the settings and the worker."""

from collections.abc import Callable
from typing import Any, NamedTuple

import dask.config
import psutil
from dask.utils import parse_bytes

from dask_bigfft import config
from dask_bigfft.events import current_worker
from dask_bigfft.memory.arena import configure, default_arena

#: Share of the process's memory that the arena may hold if no limit is set.
ARENA_SHARE = 0.4

_applied: tuple[int, str | None, bool] | None = None


def configure_arena(worker: Any = None, most: int | None = None) -> None:
    """Apply the settings ``bigfft.memory`` to the arena of this process.

    It is cheap when nothing has changed, so it may be called before every task. Without a limit in
    the settings the arena may hold `ARENA_SHARE` of the memory limit of the distributed worker, or
    else of the machine's memory. On a worker, idle memory is released to the system while the
    process is above the worker's memory target.

    Parameters
    ----------
    worker : distributed.Worker, optional
        Worker of this process, for calls outside its tasks.
    most : int, optional
        Memory that the current plan may need, in bytes; the arena keeps no more.
    """
    global _applied
    limit = config.get("bigfft.memory.arena-limit")
    worker = current_worker() if worker is None else worker
    nbytes = None if worker is None else worker.memory_manager.memory_limit
    if limit is None:
        limit = int(ARENA_SHARE * (nbytes or machine_nbytes()))
    limit = limit if most is None else min(limit, most)
    limit = limit if config.get("bigfft.memory.arena") else 0  # none at all
    prefault = config.get("bigfft.memory.prefault")
    wanted = limit, None if worker is None else str(worker.address), prefault
    if wanted != _applied:
        pressed = None if worker is None else pressure(worker)
        configure(limit, pressure=pressed, prefault=prefault)
        _applied = wanted


def machine_nbytes() -> int:
    """Return the size of the machine's memory, or the memory limit of the container."""
    from distributed.system import MEMORY_LIMIT  # takes 0.2 s, which an import need not

    return int(MEMORY_LIMIT)


#: Minimum memory of Python, imported libraries and compiled code in a worker, in bytes.
IMPORTS_NBYTES = 256 << 20

#: Measured memory is rounded up to multiples of this, so that plans are reproducible.
_MEASURED_NBYTES = 16 << 20


class WorkerMemory(NamedTuple):
    """Memory of a distributed worker.

    Parameters
    ----------
    limit : int
        Memory limit in bytes.
    stop : int
        Process memory in bytes at which the worker is paused, or terminated if it is never paused.
    used : int
        Memory in bytes that is used without any block.
    """

    limit: int
    stop: int
    used: int

    @property
    def budget(self) -> int:
        """Memory that a plan may use, in bytes; 0 or less if there is none."""
        return self.stop - self.used

    def __str__(self) -> str:
        mib = 1 << 20
        return (
            f"a worker with a memory limit of {self.limit // mib} MiB stops at "
            f"{self.stop // mib} MiB (distributed.worker.memory.pause), and imported libraries "
            f"take {self.used // mib} MiB of that"
        )


def assumed_memory(limit: int) -> WorkerMemory:
    """Return the assumed memory of a worker with a memory limit that does not answer.

    >>> assumed_memory(4 << 30).budget < 0.8 * (4 << 30)
    True
    """
    pause = dask.config.get("distributed.worker.memory.pause", default=0.8)
    return WorkerMemory(limit, _stop(limit, pause, True), IMPORTS_NBYTES)


def measured_memory(worker: Any) -> WorkerMemory | tuple[()]:
    """Return the present memory of the worker of this process; empty without a limit."""
    limit, pause = worker.memory_manager.memory_limit, worker.memory_manager.memory_pause_fraction
    if limit is None:
        return ()
    arena = default_arena().counters()
    # Some blocks are both in the arena and known to the worker.
    data = max(int(worker.state.nbytes), arena.allocated_bytes) + arena.idle_bytes
    found = psutil.Process().memory_info().rss - data
    # At most twice the minimum, because other transforms may be running.
    used = min(max(found, IMPORTS_NBYTES), 2 * IMPORTS_NBYTES)
    stop = _stop(limit, pause, bool(worker.nanny))
    return WorkerMemory(limit, stop, -(-used // _MEASURED_NBYTES) * _MEASURED_NBYTES)


def _stop(limit: int, pause: float | None, has_nanny: bool) -> int:
    """Return the process memory at which a worker is paused, or else terminated, in bytes."""
    end = has_nanny and dask.config.get("distributed.worker.memory.terminate", default=0.95)
    return int(limit * (pause or end or 1.0))


def shuffle_nbytes() -> int | None:
    """Return the memory of shuffles in bytes; None if exchanges do not use shuffles."""
    if config.get("bigfft.exchange.carrier") not in ("auto", "p2p"):
        return None
    if not dask.config.get("distributed.p2p.storage.disk"):
        return 1 << 62
    sizes = (dask.config.get(f"distributed.p2p.{name}.buffer") for name in ("comm", "storage"))
    return sum(map(parse_bytes, sizes))


def pressure(worker: Any) -> Callable[[], bool] | None:
    """Return a function that tells whether the process exceeds the worker's memory target."""
    manager, process = worker.memory_manager, psutil.Process()
    if not manager.memory_target_fraction or not manager.memory_limit:
        return None
    most = manager.memory_target_fraction * manager.memory_limit
    return lambda: bool(process.memory_info().rss > most)
