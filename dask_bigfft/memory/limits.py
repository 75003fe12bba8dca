"""Limits of the arena and of a worker's memory, from the settings and the worker."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import dask.config
import psutil
from dask.utils import format_bytes, parse_bytes

from dask_bigfft import config
from dask_bigfft.events import current_worker
from dask_bigfft.memory.arena import configure, default_arena
from dask_bigfft.system import DECODED_NBYTES, memory_limit, return_freed

#: Share of the process's memory that the arena may hold if no limit is set.
ARENA_SHARE = 0.4

#: Minimum memory limit of a worker that loads compiled code, in bytes: numba and the loops take 110
#: to 180 MiB, and plans for smaller workers need these for blocks.
COMPILES_NBYTES = 1 << 30

#: Maximum size in bytes from which freed blocks are returned to the system while a plan keeps to a
#: limit, and the size as a part of the plan's memory. Smaller blocks are temporary arrays of tiles,
#: such as the values of a function of frequencies, and would take fresh pages for every tile. Each
#: thread keeps twice as many bytes of them.
RETURNED_NBYTES = 4 << 20
RETURNED_PART = 1 / 64

#: What was applied last: limit of the arena, address of the worker, prefaulting, and the memory of
#: the plan that keeps to a limit.
_applied: tuple[int, str | None, bool, int | None] | None = None

#: True if the memory of this process suffices for compiled code.
_fits_compiled_code = [True]


def fits_compiled_code() -> bool:
    """Return whether this process, or the worker in it, has the memory to load compiled code."""
    return _fits_compiled_code[0]


def configure_arena(worker: Any = None, most: int | None = None) -> None:
    """Apply the settings ``bigfft.memory`` to the arena of this process.

    It is cheap when nothing has changed, so it may be called before every task. Without a limit in
    the settings the arena may hold `ARENA_SHARE` of the memory limit of the distributed worker, or
    else of the machine's memory. On a worker, idle memory is released to the system while the
    process is above the worker's memory target.

    While a plan keeps to a limit, large blocks of other tasks return to the system when they are
    freed. Threads would keep more than forecasts leave room for.

    Parameters
    ----------
    worker : distributed.Worker, optional
        Worker of this process, for calls outside its tasks.
    most : int, optional
        Memory that the current plan may need, in bytes; the arena keeps no more.
    """
    global _applied
    if worker is None:
        worker = current_worker()
    worker_nbytes = None if worker is None else worker.memory_manager.memory_limit
    _fits_compiled_code[0] = worker_nbytes is None or worker_nbytes >= COMPILES_NBYTES
    limit = _arena_limit(worker_nbytes, most)
    address = None if worker is None else str(worker.address)
    prefault = config.get("bigfft.memory.prefault")
    values = (limit, address, prefault, most)
    if values == _applied:
        return
    worker_pressure = None if worker is None else pressure(worker)
    configure(limit, pressure=worker_pressure, prefault=prefault)
    if most is not None:
        _return_freed(most)
    _applied = values


def _return_freed(most: int) -> None:
    """Return large freed blocks to the system while a plan keeps to a limit in bytes."""
    nbytes = min(RETURNED_NBYTES, int(RETURNED_PART * most))
    if nbytes > DECODED_NBYTES:
        return_freed(nbytes, 2 * nbytes)
    else:  # the plan has no room for what threads would keep
        return_freed()


def _arena_limit(worker_nbytes: int | None, most: int | None) -> int:
    """Return the limit of the arena in bytes; 0 if it is switched off.

    Parameters
    ----------
    worker_nbytes : int or None
        Memory limit of the worker; None without a worker or a limit.
    most : int or None
        Memory that the current plan may need, in bytes.
    """
    limit: int | None = config.get("bigfft.memory.arena-limit")
    if not config.get("bigfft.memory.arena"):
        return 0
    if limit is None:
        process_nbytes = worker_nbytes if worker_nbytes else machine_nbytes()
        limit = int(ARENA_SHARE * process_nbytes)
    return limit if most is None else min(limit, most)


@cache
def machine_nbytes() -> int:
    """Return the size of the machine's memory, or the memory limit of the container or job.

    It is the limit of distributed's workers on this machine, without the import of distributed.
    """
    nbytes = int(psutil.virtual_memory().total)
    return min(nbytes, memory_limit() or nbytes)


#: Minimum memory of Python, imported libraries and compiled code in a worker, in bytes.
IMPORTS_NBYTES = 256 << 20

#: Memory of shuffles without a bound, in bytes.
UNBOUNDED_NBYTES = 1 << 62

#: Name of the metric by which a worker tells its memory with each heartbeat.
MEMORY_METRIC = "bigfft-memory"

#: Minimum step in bytes to which measured memory is rounded up, so that plans are reproducible.
STEP_NBYTES = 16 << 20

#: The step as a part of the worker's limit, if that is more.
STEP_PART = 1 / 64


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
        return (
            f"a worker with a memory limit of {format_bytes(self.limit)} stops at "
            f"{format_bytes(self.stop)} (distributed.worker.memory.pause), of which libraries, and "
            f"what else it holds beside blocks, take {format_bytes(self.used)}"
        )


def assumed_memory(limit: int) -> WorkerMemory:
    """Return the assumed memory of a worker with a memory limit that does not answer.

    >>> assumed_memory(4 << 30).budget < 0.8 * (4 << 30)
    True
    """
    pause = dask.config.get("distributed.worker.memory.pause", default=0.8)
    return WorkerMemory(limit, _stop(limit, pause, True), IMPORTS_NBYTES)


class MemoryMetric:
    """Metric of a worker's heartbeats: the numbers of its `WorkerMemory`, none without a limit."""

    def __init__(self) -> None:
        #: `WorkerMemory.used` of the last answer.
        self.used = 0

    def __call__(self, worker: Any) -> dict[str, int]:
        """Return the present numbers of the worker of this process."""
        limit = worker.memory_manager.memory_limit
        if limit is None:
            return {}
        step = max(STEP_NBYTES, int(STEP_PART * limit))
        used = -(-self._used_nbytes(worker) // step) * step
        # Memory that is one step less may soon be one step more.
        if used != self.used - step:
            self.used = used
        pause = worker.memory_manager.memory_pause_fraction
        stop = _stop(limit, pause, bool(worker.nanny))
        return WorkerMemory(limit, stop, self.used)._asdict()

    def _used_nbytes(self, worker: Any) -> int:
        """Return the bytes that the worker holds now beside blocks, at least those of libraries."""
        arena = default_arena().counters()
        spilled, _ = getattr(worker.data, "spilled_total", (0, 0))
        # Some blocks are both in the arena and known to the worker.
        data = max(int(worker.state.nbytes) - spilled, arena.allocated_bytes) + arena.idle_bytes
        used = psutil.Process().memory_info().rss - data
        if worker.state.executing_count:
            # Memory that running tasks take for a short time does not count.
            used = min(used, max(self.used, 2 * IMPORTS_NBYTES))
        return max(int(used), IMPORTS_NBYTES)


def memory_of_worker(worker: Any) -> WorkerMemory | tuple[()]:
    """Return the present memory of the worker of this process; empty without a limit.

    From now on the worker's heartbeats have it, too.
    """
    metric = worker.metrics.setdefault(MEMORY_METRIC, MemoryMetric())
    numbers = metric(worker)
    return WorkerMemory(**numbers) if numbers else ()


def _stop(limit: int, pause: float | None, has_nanny: bool) -> int:
    """Return the process memory at which a worker is paused, or else terminated, in bytes.

    Parameters
    ----------
    limit : int
        Memory limit of the worker in bytes.
    pause : float or None
        Share of the limit at which it is paused; 0 or None if it never is.
    has_nanny : bool
        True if a nanny terminates the worker.
    """
    if pause:
        return int(limit * pause)
    terminate = dask.config.get("distributed.worker.memory.terminate", default=0.95)
    return int(limit * terminate) if has_nanny and terminate else int(limit)


def shuffle_nbytes() -> int:
    """Return the memory of shuffles in bytes."""
    if not dask.config.get("distributed.p2p.storage.disk"):
        return UNBOUNDED_NBYTES  # all shards stay in memory
    sizes = (dask.config.get(f"distributed.p2p.{name}.buffer") for name in ("comm", "storage"))
    return sum(map(parse_bytes, sizes))


def pressure(worker: Any) -> Callable[[], bool] | None:
    """Return a function that tells whether the process exceeds the worker's memory target.

    The result is None if the worker has no target.
    """
    manager = worker.memory_manager
    if not manager.memory_target_fraction or not manager.memory_limit:
        return None
    target_nbytes = manager.memory_target_fraction * manager.memory_limit
    process = psutil.Process()
    return lambda: bool(process.memory_info().rss > target_nbytes)
