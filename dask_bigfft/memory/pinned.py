"""Pinned memory: buffers of the arena that a card reads and writes by itself.

A copy engine works at the speed of the bus, and beside everything else, only on pages that cannot
move. Pinning pages costs about what copying them once does, so it is done once for each buffer
that the arena takes from the system, and undone when the buffer goes back there::

    fresh buffer --touched by several threads, registered--> pinned --> lent, returned, lent ...

One buffer is one registered range: a strided copy may not reach over the border of two ranges, so
a block must lie in one. That also keeps each step short: registering holds locks of the driver
that are shared by all processes of the machine, and belongs neither on an event loop nor under the
arena's lock. It happens in the thread of the task that is lent the buffer, or of whoever prefaults.

The driver is handed in as two functions. If it refuses, the block is lent as it is, and travels
through a staging ring. Imports numpy, the standard library and `pages` of this folder.
"""

import contextlib
import os
import threading
from bisect import bisect_right, insort
from collections.abc import Callable
from dataclasses import dataclass

from dask_bigfft.memory.pages import HUGE_PAGE_NBYTES, Buffer, touch

#: The driver refuses larger ranges at some size below 512 GiB.
MAX_RANGE_NBYTES = 64 * 1024**3

#: Refusals after which no more is tried.
MAX_FAILURES = 3


@dataclass(frozen=True, slots=True)
class PinnedCounters:
    """What is pinned now, and what was not.

    Attributes
    ----------
    pinned_bytes
        Bytes of all pinned buffers.
    ranges
        Number of pinned buffers.
    refused_bytes
        Bytes of the buffers that stayed as they were, because of the limit or of the driver.
    failures
        How often the driver refused.
    """

    pinned_bytes: int
    ranges: int
    refused_bytes: int
    failures: int


class Pinning:
    """Hold of a buffer on its registered pages; a buffer gives it back before it is unmapped."""

    __slots__ = ("address", "nbytes", "owner")

    def __init__(self, address: int, nbytes: int, owner: "Pinner") -> None:
        self.address, self.nbytes, self.owner = address, nbytes, owner

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
        The most bytes that are pinned at a time.
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
        errors: tuple[type[BaseException], ...] = (OSError, MemoryError),
        least: int = HUGE_PAGE_NBYTES,
        threads: int = min(8, os.cpu_count() or 1),
    ) -> None:
        self._register, self._unregister, self._errors = register, unregister, errors
        self.limit, self.least, self.threads = limit, least, threads
        # Reentrant: a buffer may die, and so be released, in any allocation of the holder.
        self._lock = threading.RLock()
        self._starts: list[int] = []
        self._ranges: dict[int, Pinning] = {}
        self._pinned_bytes = self._refused_bytes = self._failures = 0
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
        hold = Pinning(buffer.address, buffer.nbytes, self)
        with self._lock:
            self._ranges[buffer.address] = hold
            insort(self._starts, buffer.address)
        buffer.held = hold

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
                self._pinned_bytes, len(self._ranges), self._refused_bytes, self._failures
            )
