"""How large the arena of this process may be: from the settings and from where it runs."""

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

#: Part of the memory of the process that the arena may hold where no limit is set.
ARENA_SHARE = 0.4

_Applied = tuple[bool, int, str | None, bool]
_applied: _Applied | None = None


def configure_arena(worker: Any = None, most: int | None = None) -> None:
    """Make the arena of this process follow the settings ``bigfft.memory``.

    Cheap when nothing has changed, so it may be called before every task. Without a limit in the
    settings the arena may hold `ARENA_SHARE` of the memory limit of the distributed worker that
    this runs on, or else of the machine's memory. On a worker, idle memory goes back to the system
    while the process is above the worker's memory target.

    Parameters
    ----------
    worker : distributed.Worker, optional
        Which worker, outside of its tasks.
    most : int, optional
        Bytes that the plan at work may need: the arena keeps no more of them.
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


#: Where Linux says how much memory the processes of this container may use.
CGROUP_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@cache
def machine_nbytes() -> int:
    """Return the size of the machine's memory, or of what a container is given of it."""
    found = int(psutil.virtual_memory().total)
    for name in CGROUP_FILES:
        try:
            text = Path(name).read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            continue
        if text.isdigit():
            found = min(found, int(text))
    return found


#: Bytes of a worker's memory that Python, imported libraries and compiled code take at least.
IMPORTS_NBYTES = 256 << 20

#: What is measured of a worker is rounded up to multiples of this, so that plans stay the same.
_MEASURED_NBYTES = 16 << 20


class WorkerMemory(NamedTuple):
    """Memory of a distributed worker.

    Parameters
    ----------
    limit : int
        Its memory limit in bytes.
    stop : int
        Bytes of process memory at which it is paused, or ended where it is never paused.
    used : int
        Bytes that are in use before there is any block.
    """

    limit: int
    stop: int
    used: int

    @property
    def budget(self) -> int:
        """Bytes that a plan may use; 0 or less where no plan can work."""
        return self.stop - self.used

    def __str__(self) -> str:
        mib = 1 << 20
        return (
            f"a worker with a memory limit of {self.limit // mib} MiB stops at "
            f"{self.stop // mib} MiB (distributed.worker.memory.pause), and imported libraries "
            f"take {self.used // mib} MiB of that"
        )


def assumed_memory(limit: int) -> WorkerMemory:
    """Return the memory of a worker with a memory limit that cannot be asked.

    >>> assumed_memory(4 << 30).budget < 0.8 * (4 << 30)
    True
    """
    pause = dask.config.get("distributed.worker.memory.pause", default=0.8)
    return WorkerMemory(limit, _stop(limit, pause, True), IMPORTS_NBYTES)


def measured_memory(worker: Any) -> WorkerMemory | tuple[()]:
    """Return the memory of the worker of this process as it is now; empty without a limit."""
    limit = _memory_limit(worker)
    if limit is None:
        return ()
    pause = getattr(worker.memory_manager, "memory_pause_fraction", None)
    arena = default_arena().counters()
    data = max(int(worker.state.nbytes), arena.lent_bytes) + arena.idle_bytes  # some lie in both
    found = psutil.Process().memory_info().rss - data
    # Not more than twice as much: other transforms may be under way.
    used = min(max(found, IMPORTS_NBYTES), 2 * IMPORTS_NBYTES)
    stop = _stop(limit, pause, bool(getattr(worker, "nanny", None)))
    return WorkerMemory(limit, stop, -(-used // _MEASURED_NBYTES) * _MEASURED_NBYTES)


def _stop(limit: int, pause: float | None, has_nanny: bool) -> int:
    """Bytes at which a worker is paused, or else ended."""
    end = has_nanny and dask.config.get("distributed.worker.memory.terminate", default=0.95)
    return int(limit * (pause or end or 1.0))


def shuffle_nbytes() -> int | None:
    """Return the bytes that shuffles may hold in memory; None where exchanges do not use them."""
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
    """Bytes that the worker may use; None where it has no limit."""
    manager = getattr(worker, "memory_manager", None)
    return getattr(manager, "memory_limit", None) or None


def pressure(worker: Any) -> Callable[[], bool] | None:
    """Return a test for a process above the memory target of its worker."""
    target = getattr(getattr(worker, "memory_manager", None), "memory_target_fraction", None)
    nbytes = _memory_limit(worker)
    if not target or not nbytes:
        return None
    most, process = target * nbytes, psutil.Process()
    return lambda: bool(process.memory_info().rss > most)
