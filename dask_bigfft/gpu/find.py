"""The devices of this process, and the leases of the tasks that use them.

Devices are found when first needed, one engine each, and given back at exit: graphs are built on
machines without one. `use` registers other devices in their place, such as simulated ones.

A task that waits for a lease holds no block. Tasks come first, first served. What they need of a
device's memory is added up, once for tasks that divide the arena alike, and stays within what may
be used; so a task never waits for memory that another one waits with. A few tasks are admitted to a
device: while the tiles of one go back those of another come.

Imports `planner`, `events`, `errors` and this room.
"""

import atexit
import contextlib
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.events import emit
from dask_bigfft.gpu import cuda
from dask_bigfft.gpu.cupy_gpu import open_gpu
from dask_bigfft.gpu.engine import Engine
from dask_bigfft.gpu.executor import Device
from dask_bigfft.gpu.on_gpu import forget_plans
from dask_bigfft.planner.cost import ADMITTED
from dask_bigfft.planner.tile_plan import TileLimits

__all__ = [
    "METRIC",
    "count",
    "in_use",
    "known_nbytes",
    "leases",
    "missing",
    "release",
    "software",
    "use",
]

#: Name under which a worker tells its scheduler of its devices.
METRIC = "bigfft-streams"


#: Tasks that get ready for a device at a time.
GETTING_READY = 2


# --- leases ---------------------------------------------------------------------------------


class Need(NamedTuple):
    """What a task needs of a device; tasks with equal needs use the same buffers.

    `tasks` is how many of them are admitted together, at most.
    """

    buffers: int
    buffer_nbytes: int
    tasks: int = ADMITTED

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return self.buffers * self.buffer_nbytes


class Leases:
    """The devices of a process and who uses them.

    Parameters
    ----------
    engines : sequence of Engine
        One per device.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = tuple(engines)
        self._needs: list[list[Need]] = [[] for _ in engines]
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()
        self._own = threading.local()
        self._door = threading.Semaphore(GETTING_READY)

    @contextlib.contextmanager
    def getting_ready(self) -> Iterator[None]:
        """Let this task look at its block and then wait for a lease, in turn with others.

        That takes the GIL: many at once would keep each other, and the device, waiting. The turn is
        over when the task has its lease, at `ready`, or at the end.
        """
        self._door.acquire()
        self._own.entered = True
        try:
            yield
        finally:
            self.ready()

    def ready(self) -> None:
        """End this task's turn to get ready, if it has one."""
        if getattr(self._own, "entered", False):
            self._own.entered = False
            self._door.release()

    @contextlib.contextmanager
    def lease(self, need: Need, timeout: float | None = None) -> Iterator[Engine]:
        """Give an engine to this task, when it is its turn.

        Parameters
        ----------
        need : Need
            Of the device's memory.
        timeout : float, optional
            Seconds to wait at most.

        Raises
        ------
        DeviceMemoryError
            If no device will ever have as much.
        DeviceError
            If this thread has a lease already.
        TimeoutError
            If the time is over.
        """
        if getattr(self._own, "leased", False):
            raise DeviceError("a task may not take a second lease")
        most = max((engine.limits.nbytes for engine in self.engines), default=0)
        if need.nbytes > most:
            raise DeviceMemoryError(f"{need.nbytes} bytes of a device asked, {most} to be had")
        number = self._wait(need, timeout)
        self._own.leased = True
        self.ready()
        try:
            yield self.engines[number]
        finally:
            self._own.leased = False
            with self._changed:
                self._needs[number].remove(need)
                self._changed.notify_all()

    def _wait(self, need: Need, timeout: float | None) -> int:
        """Wait for a device, and return its number."""
        ticket, started = object(), time.perf_counter()
        with self._changed:
            self._waiting.append(ticket)
            try:
                if not self._changed.wait_for(
                    lambda: self._waiting[0] is ticket and self._admitting(need), timeout
                ):
                    raise TimeoutError(f"no device was free within {timeout} s")
                number = min(self._admitting(need), key=lambda i: len(self._needs[i]))
                self._needs[number].append(need)
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()
        emit("lease_wait", nbytes=need.nbytes, seconds=time.perf_counter() - started)
        return number

    def _admitting(self, need: Need) -> list[int]:
        """The devices that admit a need now; with the lock."""
        found = []
        for i, (engine, needs) in enumerate(zip(self.engines, self._needs, strict=True)):
            used = sum(one.nbytes for one in {*needs, need})
            if len(needs) < need.tasks and used <= engine.limits.nbytes:
                found.append(i)
        return found

    def limits(self, nbytes: int | None) -> TileLimits:
        """Return what tiles may need on every device, within `nbytes` if that is less."""
        found = (engine.within(nbytes) for engine in self.engines)
        return min(found, key=lambda limits: limits.nbytes)

    @property
    def in_use(self) -> int:
        """Number of leases."""
        with self._changed:
            return sum(map(len, self._needs))

    def close(self) -> None:
        """Close all engines."""
        for engine in self.engines:
            engine.close()


# --- the devices of the process ---------------------------------------------------------------


@dataclass
class _Process:
    """What the process has: devices that were handed in, and the leases of all devices."""

    given: tuple[Device, ...] | None = None
    limits: TileLimits | None = None
    nbytes: int | None = None
    leases: Leases | None = None
    failure: str | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start_afresh(self) -> None:
        """Forget what a fork inherits: a device works only in the process that opened it."""
        self.given = self.limits = self.nbytes = self.leases = self.failure = None
        self.lock = threading.Lock()


_process = _Process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.start_afresh)


def missing() -> str | None:
    """Return what keeps this process from using a GPU, and how to get it; None if nothing does."""
    if _process.given:
        return None
    return _process.failure or cuda.reason()


def count() -> int:
    """Return how many devices this process may use; opens none."""
    if _process.given is not None:
        return len(_process.given)
    return 0 if _process.failure else len(cuda.available())


def software() -> dict[str, str]:
    """Return what decides about the last bit of what this process' devices compute, by name.

    Opens none; nothing where there is no device.
    """
    if _process.given is not None:
        return {name: text for device in _process.given for name, text in device.software.items()}
    return cuda.software(cuda.available()) if count() else {}


def leases() -> Leases | None:
    """Return the leases of this process' devices, which are opened now if need be; None: no device.

    Where a device cannot be opened the answer is None as well, and `missing` says why.
    """
    if _process.leases is not None:
        return _process.leases
    with _process.lock:
        if _process.leases is None and _process.failure is None:
            nbytes, limits = _process.nbytes, _process.limits
            devices = _opened() if _process.given is None else _process.given
            if devices:
                _process.leases = Leases(
                    [Engine(device, nbytes, limits, i) for i, device in enumerate(devices)]
                )
        return _process.leases


def _opened() -> tuple[Device, ...]:
    """Open the devices that this process may use; none where one of them does not work."""
    devices: list[Device] = []
    try:
        for ordinal in cuda.available():
            devices.append(open_gpu(ordinal))
    except DeviceError as error:
        for device in devices:
            device.close()
        _process.failure = f"a device does not work ({error})"
        warnings.warn(f"rounds are done on the CPU: {_process.failure}", stacklevel=2)
        return ()
    return tuple(devices)


def staged() -> int:
    """Return how often memory that is not pinned has gone to or from this process' devices."""
    found = _process.leases
    return 0 if found is None else sum(engine.device.staged for engine in found.engines)


def known_nbytes() -> int | None:
    """Return the bytes of each device that was handed in; None where devices were found."""
    return _process.nbytes


def in_use() -> int:
    """Return how many tasks use this process' devices now; opens none."""
    return 0 if _process.leases is None else _process.leases.in_use


@dataclass(frozen=True)
class DeviceUse:
    """How a device is used at one moment.

    Parameters
    ----------
    name : str
        Of the device.
    memory, budget : int
        Bytes of its memory that are reserved, and that may be.
    busy_seconds : float
        How long it has had work since it was opened.
    """

    name: str
    memory: int
    budget: int
    busy_seconds: float


def uses() -> tuple[DeviceUse, ...]:
    """Return how this process' devices are used now; opens none, and waits for none."""
    found = _process.leases
    return tuple(
        DeviceUse(e.device.name, e.executor.arena_nbytes, e.limits.nbytes, e.busy_seconds)
        for e in (() if found is None else found.engines)
    )


def use(
    devices: Sequence[Device] | None, limits: TileLimits | None = None, nbytes: int | None = None
) -> None:
    """Use these devices from now on; None: those that are found.

    Parameters
    ----------
    devices : sequence of Device or None
        Open devices; they are closed when others take their place.
    limits : TileLimits, optional
        How blocks are cut into tiles; its number of bytes is replaced.
    nbytes : int, optional
        Bytes of each device that may be used, by default a share of what is free.
    """
    release()
    with _process.lock:
        _process.given = None if devices is None else tuple(devices)
        _process.limits, _process.nbytes, _process.failure = limits, nbytes, None


def release() -> None:
    """Close all devices, and drop the plans of blocks that live on GPUs; all come when needed."""
    with _process.lock:
        held, _process.leases = _process.leases, None
    forget_plans()
    if held is not None:
        held.close()


atexit.register(release)
