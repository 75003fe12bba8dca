"""Memory limits of this process and its workers, and the size of the arena."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import dask.config
import dask.utils
import psutil

from dask_bigfft import config
from dask_bigfft.events import current_worker
from dask_bigfft.memory import configure, default_arena

#: Default limit of the arena, as a fraction of the process's memory limit.
ARENA_SHARE = 0.4

_Applied = tuple[bool, int, str | None, bool]
_applied: _Applied | None = None


def configure_arena(worker: Any = None, most: int | None = None) -> None:
    """Apply the settings ``bigfft.memory`` to the arena of this process.

    The call is cheap if nothing has changed, so it may precede every task. The default limit of the
    arena is `ARENA_SHARE` of the current worker's memory limit, or of the machine's memory. On a
    worker, idle memory is freed while the process is above the worker's memory target.

    Parameters
    ----------
    worker : distributed.Worker, optional
        The worker, for calls outside of its tasks.
    most : int, optional
        Maximum bytes that the current plan needs; the arena keeps no more.
    """
    global _applied
    enabled, limit = config.get("bigfft.memory.arena"), config.get("bigfft.memory.arena-limit")
    worker = current_worker() if worker is None else worker
    nbytes = None if worker is None else _memory_limit(worker)
    if limit is None:
        limit = int(ARENA_SHARE * (nbytes or machine_nbytes()))
    limit = limit if most is None else min(limit, most)
    prefault = config.get("bigfft.memory.prefault")
    wanted = enabled, limit, None if worker is None else str(worker.address), prefault
    if wanted != _applied:
        pressed = None if worker is None else pressure(worker)
        configure(limit, enabled, pressure=pressed, prefault=prefault)
        _applied = wanted


#: Files with the memory limit of a container on Linux.
CGROUP_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@cache
def machine_nbytes() -> int:
    """Return the size of the machine's memory, or the memory limit of its container."""
    found = int(psutil.virtual_memory().total)
    for name in CGROUP_FILES:
        try:
            text = Path(name).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if text.isdigit():
            found = min(found, int(text))
    return found


#: Minimum bytes of Python, imported libraries and compiled code in a worker.
IMPORTS_NBYTES = 256 << 20

#: Unit to which the measured memory of a worker is rounded up, so that plans are reproducible.
_MEASURED_NBYTES = 16 << 20


class WorkerMemory(NamedTuple):
    """Memory of a distributed worker.

    Parameters
    ----------
    limit : int
        Its memory limit in bytes.
    stop : int
        Bytes of process memory at which it is paused, or terminated if it is never paused.
    used : int
        Bytes in use without any block.
    """

    limit: int
    stop: int
    used: int

    @property
    def budget(self) -> int:
        """Bytes that a plan may use; 0 or less if no plan can work."""
        return self.stop - self.used

    def __str__(self) -> str:
        mib = 1 << 20
        return (
            f"a worker with a memory limit of {self.limit // mib} MiB stops at "
            f"{self.stop // mib} MiB (distributed.worker.memory.pause), and imported libraries "
            f"take {self.used // mib} MiB of that"
        )


def assumed_memory(limit: int) -> WorkerMemory:
    """Return the assumed memory of a worker that has not answered, by its memory limit.

    >>> assumed_memory(4 << 30).budget < 0.8 * (4 << 30)
    True
    """
    pause = dask.config.get("distributed.worker.memory.pause", default=0.8)
    return WorkerMemory(limit, _stop(limit, pause, True), IMPORTS_NBYTES)


def measured_memory(worker: Any) -> WorkerMemory | tuple[()]:
    """Return the current memory of the worker in this process; empty without a limit."""
    limit = _memory_limit(worker)
    if limit is None:
        return ()
    pause = getattr(worker.memory_manager, "memory_pause_fraction", None)
    arena = default_arena().counters()
    data = max(int(worker.state.nbytes), arena.lent_bytes) + arena.idle_bytes  # some lie in both
    found = psutil.Process().memory_info().rss - data
    # At most twice as much, because other transforms may be running.
    used = min(max(found, IMPORTS_NBYTES), 2 * IMPORTS_NBYTES)
    stop = _stop(limit, pause, bool(getattr(worker, "nanny", None)))
    return WorkerMemory(limit, stop, -(-used // _MEASURED_NBYTES) * _MEASURED_NBYTES)


def _stop(limit: int, pause: float | None, has_nanny: bool) -> int:
    """Return the bytes at which a worker is paused, or else terminated."""
    end = has_nanny and dask.config.get("distributed.worker.memory.terminate", default=0.95)
    return int(limit * (pause or end or 1.0))


def shuffle_nbytes() -> int | None:
    """Return the bytes that shuffles may hold in memory; None if exchanges do not use shuffles."""
    if config.get("bigfft.exchange.carrier") not in ("auto", "p2p"):
        return None
    if not dask.config.get("distributed.p2p.storage.disk", default=True):
        return 1 << 62
    sizes = {"comm": "1 GiB", "storage": "100 MiB"}
    return sum(
        int(dask.utils.parse_bytes(dask.config.get(f"distributed.p2p.{name}.buffer", default=size)))
        for name, size in sizes.items()
    )


def _memory_limit(worker: Any) -> int | None:
    """Return the memory limit of a worker in bytes; None without one."""
    manager = getattr(worker, "memory_manager", None)
    return getattr(manager, "memory_limit", None) or None


def pressure(worker: Any) -> Callable[[], bool] | None:
    """Return a test that is true while the process is above the worker's memory target."""
    target = getattr(getattr(worker, "memory_manager", None), "memory_target_fraction", None)
    nbytes = _memory_limit(worker)
    if not target or not nbytes:
        return None
    most, process = target * nbytes, psutil.Process()
    return lambda: bool(process.memory_info().rss > most)
