"""Leases: which task may use a device now, first come, first served.

At most two tasks are admitted to a device: one whose pieces go back while those of the other come.
A task that waits holds no block. What tasks need of a device's memory is added up, once for tasks
that divide the arena alike, and stays within what may be used; so a task never waits for memory
that another one waits with. A task has one lease at a time.

Imports `events` and this room.
"""

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from dask_bigfft.devices.crossings import PieceLimits
from dask_bigfft.devices.engine import Engine
from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.events import emit

#: Tasks that are admitted to one device at a time.
ADMITTED = 2


@dataclass(frozen=True)
class Need:
    """What a task needs of a device; tasks with equal needs use the same slots.

    Parameters
    ----------
    slots, slot_nbytes : int
        How the arena is divided.
    """

    slots: int
    slot_nbytes: int

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
        return len(self.needs) < ADMITTED and used <= self.engine.limits.nbytes


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
        self._changed = threading.Condition()
        self._waiting: deque[Any] = deque()
        self._own = threading.local()

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
        try:
            yield desk.engine
        finally:
            self._own.leased = False
            with self._changed:
                desk.needs.remove(need)
                self._changed.notify_all()

    def _wait(self, need: Need, timeout: float | None) -> _Desk:
        ticket, started = object(), time.perf_counter()
        with self._changed:
            self._waiting.append(ticket)
            try:
                if not self._changed.wait_for(lambda: self._turn(ticket, need), timeout):
                    raise TimeoutError(f"no device was free within {timeout} s")
                desk = self._turn(ticket, need)
                assert desk is not None
                desk.needs.append(need)
            finally:
                self._waiting.remove(ticket)
                self._changed.notify_all()  # another one is first now
        emit("lease_wait", nbytes=need.nbytes, seconds=time.perf_counter() - started)
        return desk

    def _turn(self, ticket: object, need: Need) -> _Desk | None:
        """The least used device that admits a need, if it is the ticket's turn."""
        if self._waiting[0] is not ticket:
            return None
        free = [desk for desk in self._desks if desk.admits(need)]
        return min(free, key=lambda desk: len(desk.needs), default=None)

    def limits(self, nbytes: int | None) -> PieceLimits:
        """What pieces may need on every device, within `nbytes` if that is less."""
        found = (engine.within(nbytes) for engine in self.engines)
        return min(found, key=lambda limits: limits.nbytes)

    @property
    def in_use(self) -> int:
        """Number of leases."""
        with self._changed:
            return sum(len(desk.needs) for desk in self._desks)

    def close(self) -> None:
        """Close all engines."""
        for engine in self.engines:
            engine.close()
