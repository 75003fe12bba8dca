"""Pinned memory: buffers of the arena that a card reads and writes by itself.

A copy engine works at the speed of the bus, and beside everything else, only on pages that cannot
move. Pinning pages costs about what copying them once does, so it is done once for each buffer
that the arena takes from the system, and undone when the buffer goes back there::

    fresh buffer --touched by several threads, registered--> pinned --> lent, returned, lent ...

One buffer is one registered range: a strided copy may not reach over the border of two ranges, so
a block must lie in one. That also keeps each step short: registering holds locks of the driver
that are shared by all processes of the machine, and belongs neither on an event loop nor under the
arena's lock. It happens in the thread of the task that is lent the buffer, or of whoever prefaults.

Arrays of others are pinned where they are, if they own their memory: an array whose end is
watched cannot be freed or resized behind our back, so they are let go before that.

The driver is handed in as two functions. If it refuses, the block is lent as it is, and travels
through a staging ring. Imports numpy, the standard library and `pages` of this folder.
"""

import contextlib
import os
import threading
import weakref
from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.memory.pages import HUGE_PAGE_NBYTES, Buffer, touch

#: The driver refuses larger ranges at some size below 512 GiB.
MAX_RANGE_NBYTES = 64 * 1024**3

#: Refusals after which no more is tried.
MAX_FAILURES = 3

#: Arrays of others that are smaller travel through the ring: they are often made for one use.
LEAST_ADOPTED_NBYTES = 16 * 1024**2


@dataclass(frozen=True, slots=True)
class PinnedCounters:
    """What is pinned now, and what was not.

    Attributes
    ----------
    pinned_bytes
        Bytes of all pinned buffers.
    adopted_bytes
        Bytes of the arrays of others that are pinned.
    ranges
        Number of pinned buffers and arrays.
    refused_bytes
        Bytes of the buffers that stayed as they were, because of the limit or of the driver.
    failures
        How often the driver refused.
    """

    pinned_bytes: int
    adopted_bytes: int
    ranges: int
    refused_bytes: int
    failures: int


class Pinning:
    """Hold of a buffer on its registered pages; a buffer gives it back before it is unmapped."""

    __slots__ = ("address", "adopted", "nbytes", "owner")

    def __init__(self, address: int, nbytes: int, owner: "Pinner", adopted: bool = False) -> None:
        self.address, self.nbytes, self.owner, self.adopted = address, nbytes, owner, adopted

    def release(self) -> None:
        """Let the pages go, once."""
        self.owner.release(self)


class Pinner:
    """Pins buffers up to a limit, and knows what is pinned.

    Parameters
    ----------
    register, unregister : callable
        Of the driver: ``register(address, nbytes)`` and ``unregister(address)``. They raise if
        they cannot; what they raise is one of `errors`.
    limit : int
        The most bytes of buffers that are pinned at a time.
    adopted : int
        The most bytes of arrays of others that are pinned beside.
    errors : tuple of exception classes
        What the driver raises where it refuses.
    least : int
        Smaller buffers are left alone.
    threads : int
        How many threads touch a buffer's pages before it is registered; the driver would do it
        with one.

    Examples
    --------
    >>> pinned = Pinner(lambda address, nbytes: None, lambda address: None, 1 << 30)
    >>> buffer = Buffer(4 << 20)
    >>> pinned.pin(buffer)
    >>> pinned.covers(buffer.address + 4096, 8192), pinned.covers(buffer.address, 5 << 20)
    (True, False)
    """

    def __init__(
        self,
        register: Callable[[int, int], object],
        unregister: Callable[[int], object],
        limit: int,
        *,
        adopted: int = 0,
        errors: tuple[type[BaseException], ...] = (OSError, MemoryError),
        least: int = HUGE_PAGE_NBYTES,
        threads: int = min(8, os.cpu_count() or 1),
    ) -> None:
        self._register, self._unregister, self._errors = register, unregister, errors
        self.limit, self.most_adopted, self.least, self.threads = limit, adopted, least, threads
        # Reentrant: a buffer may die, and so be released, in any allocation of the holder.
        self._lock = threading.RLock()
        self._starts: list[int] = []
        self._ranges: dict[int, Pinning] = {}
        self._pinned_bytes = self._adopted_bytes = self._refused_bytes = self._failures = 0
        #: Arrays that are watched, by their identity: adopted, or refused for good.
        self._watched: dict[int, weakref.ref[Any]] = {}
        self._process = os.getpid()
        self._closed = False

    def pin(self, buffer: Buffer) -> None:
        """Pin a buffer, whose contents may be lost, unless that is refused or has been done."""
        if buffer.held is not None or not self.least <= buffer.nbytes <= MAX_RANGE_NBYTES:
            return
        with self._lock:
            room = self._pinned_bytes + buffer.nbytes <= self.limit
            if self._closed or not room or self._failures >= MAX_FAILURES:
                self._refused_bytes += buffer.nbytes
                return
            self._pinned_bytes += buffer.nbytes
        try:
            touch([buffer], self.threads)
            self._register(buffer.address, buffer.nbytes)
        except self._errors:
            with self._lock:
                self._pinned_bytes -= buffer.nbytes
                self._refused_bytes += buffer.nbytes
                self._failures += 1
            return
        except BaseException:
            with self._lock:
                self._pinned_bytes -= buffer.nbytes
            raise
        buffer.held = self._held(Pinning(buffer.address, buffer.nbytes, self))

    def _held(self, hold: Pinning) -> Pinning:
        """Know a range that was registered."""
        with self._lock:
            self._ranges[hold.address] = hold
            insort(self._starts, hold.address)
        return hold

    def adopt(self, array: npt.NDArray[Any]) -> bool:
        """Pin the memory of an array of others until it goes; return whether that was done.

        Small ones, those whose memory belongs to something else than an array, and those beyond
        the limit are left alone.
        """
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        nbytes, number = owner.nbytes, id(owner)
        if not owner.flags.owndata or not LEAST_ADOPTED_NBYTES <= nbytes <= MAX_RANGE_NBYTES:
            return False
        with self._lock:
            room = self._adopted_bytes + nbytes <= self.most_adopted
            if self._closed or not room or number in self._watched:
                return False
            self._adopted_bytes += nbytes
            self._watched[number] = weakref.ref(owner, lambda _: self._gone(number, None))
        address = int(owner.__array_interface__["data"][0])
        try:
            self._register(address, nbytes)
        except self._errors:
            with self._lock:
                self._adopted_bytes -= nbytes
                self._refused_bytes += nbytes
            return False
        except BaseException:
            with self._lock:
                self._adopted_bytes -= nbytes
                self._watched.pop(number, None)
            raise
        hold = self._held(Pinning(address, nbytes, self, adopted=True))
        self._watched[number] = weakref.ref(owner, lambda _: self._gone(number, hold))
        return True

    def _gone(self, number: int, hold: Pinning | None) -> None:
        """Forget an array of others whose end has come; its memory is still there."""
        with self._lock:
            self._watched.pop(number, None)
        if hold is not None:
            self.release(hold)

    def covers(self, address: int, nbytes: int) -> bool:
        """Whether all of these bytes lie in one pinned range."""
        with self._lock:
            at = bisect_right(self._starts, address) - 1
            if at < 0:
                return False
            found = self._ranges[self._starts[at]]
            return address + nbytes <= found.address + found.nbytes

    def release(self, hold: Pinning) -> None:
        """Unregister a range, unless that has been done."""
        with self._lock:
            if self._ranges.get(hold.address) is not hold:
                return
            del self._ranges[hold.address]
            self._starts.remove(hold.address)
            if hold.adopted:
                self._adopted_bytes -= hold.nbytes
            else:
                self._pinned_bytes -= hold.nbytes
        if os.getpid() == self._process:  # a fork has the pages, but not the card
            # The driver may have gone before us, as happens when the interpreter ends.
            with contextlib.suppress(*self._errors):
                self._unregister(hold.address)

    def close(self) -> None:
        """Unregister everything, and pin nothing more."""
        with self._lock:
            self._closed = True
            held = list(self._ranges.values())
        for hold in held:
            self.release(hold)

    def counters(self) -> PinnedCounters:
        """Return what is pinned now."""
        with self._lock:
            return PinnedCounters(
                self._pinned_bytes,
                self._adopted_bytes,
                len(self._ranges),
                self._refused_bytes,
                self._failures,
            )
