"""Leases: which task may use a device now, first come, first served.

A few tasks are admitted to a device: while the pieces of one go back those of another come.
A task that waits holds no block. What a task has to look up before it may wait, it looks up in
turn with the others: it takes the interpreter, and many at once would keep each other, and the
device, waiting. What tasks need of a device's memory is added up, once for tasks
that divide the arena alike, and stays within what may be used; so a task never waits for memory
that another one waits with. A task has one lease at a time.

Imports `planner`, `events` and this room.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.events import emit
from dask_bigfft.gpu.engine import Engine
from dask_bigfft.planner.cost import ADMITTED
from dask_bigfft.planner.tile_plan import TileLimits

#: Tasks that get ready for a device at a time.
GETTING_READY = 2


@dataclass(frozen=True)
class Need:
    """What a task needs of a device; tasks with equal needs use the same slots.

    Parameters
    ----------
    slots, slot_nbytes : int
        How the arena is divided.
    tasks : int
        Tasks that are admitted together, at most.
    """

    slots: int
    slot_nbytes: int
    tasks: int = ADMITTED

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return self.slots * self.slot_nbytes


@dataclass
class _Desk:
    """An engine and the needs of the tasks that use it."""

    engine: Engine
    needs: list[Need] = field(default_factory=list)

    def admits(self, need: Need) -> bool:
        used = sum(found.nbytes for found in {*self.needs, need})
        return len(self.needs) < need.tasks and used <= self.engine.limits.nbytes


@dataclass(eq=False)
class _Ticket:
    """A task that waits: for what, and the desk that serves it. Only that task is woken up."""

    need: Need
    served: threading.Event = field(default_factory=threading.Event)
    desk: _Desk | None = None


class Leases:
    """The devices of a process and who uses them.

    Parameters
    ----------
    engines : sequence of Engine
        One per device.
    """

    def __init__(self, engines: Sequence[Engine]) -> None:
        self.engines = tuple(engines)
        self._desks = [_Desk(engine) for engine in engines]
        self._lock = threading.Lock()
        self._waiting: deque[_Ticket] = deque()
        self._own = threading.local()
        self._door = threading.Semaphore(GETTING_READY)

    @contextlib.contextmanager
    def getting_ready(self) -> Iterator[None]:
        """Let this task look at its block and then wait for a lease, in turn with others.

        The turn is over when the task has its lease, at `ready`, or at the end.
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
        """Lend an engine, when it is this task's turn.

        Parameters
        ----------
        need : Need
            Of the device's memory.
        timeout : float, optional
            Seconds to wait at most.

        Raises
        ------
        DeviceMemoryError
            If no device has as much to lend, ever.
        DeviceError
            If this thread has a lease already.
        TimeoutError
            If the time is over.
        """
        if getattr(self._own, "leased", False):
            raise DeviceError("a task may not take a second lease")
        most = max((desk.engine.limits.nbytes for desk in self._desks), default=0)
        if need.nbytes > most:
            raise DeviceMemoryError(f"{need.nbytes} bytes of a device asked, {most} to be had")
        desk = self._wait(need, timeout)
        self._own.leased = True
        self.ready()
        try:
            yield desk.engine
        finally:
            self._own.leased = False
            with self._lock:
                desk.needs.remove(need)
                self._serve()

    def _wait(self, need: Need, timeout: float | None) -> _Desk:
        ticket, started = _Ticket(need), time.perf_counter()
        with self._lock:
            self._waiting.append(ticket)
            self._serve()
        try:
            ticket.served.wait(timeout)
        except BaseException:  # interrupted
            with self._lock:
                if ticket.desk is not None:
                    ticket.desk.needs.remove(need)
                self._withdraw(ticket)
            raise
        with self._lock:
            self._withdraw(ticket)
        if ticket.desk is None:
            raise TimeoutError(f"no device was free within {timeout} s")
        emit("lease_wait", nbytes=need.nbytes, seconds=time.perf_counter() - started)
        return ticket.desk

    def _withdraw(self, ticket: _Ticket) -> None:
        """Let a task that waits no longer be passed over; with the lock."""
        if ticket in self._waiting:
            self._waiting.remove(ticket)
        self._serve()

    def _serve(self) -> None:
        """Give those who are first what they wait for, as far as there is; with the lock."""
        while self._waiting:
            need = self._waiting[0].need
            free = [desk for desk in self._desks if desk.admits(need)]
            if not free:
                return
            ticket = self._waiting.popleft()
            ticket.desk = min(free, key=lambda desk: len(desk.needs))
            ticket.desk.needs.append(need)
            ticket.served.set()

    def limits(self, nbytes: int | None) -> TileLimits:
        """What pieces may need on every device, within `nbytes` if that is less."""
        found = (engine.within(nbytes) for engine in self.engines)
        return min(found, key=lambda limits: limits.nbytes)

    @property
    def in_use(self) -> int:
        """Number of leases."""
        with self._lock:
            return sum(len(desk.needs) for desk in self._desks)

    def close(self) -> None:
        """Close all engines."""
        for engine in self.engines:
            engine.close()
