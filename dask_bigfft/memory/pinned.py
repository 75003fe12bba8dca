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
from functools import partial
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
class PinnedRange:
    """A range of addresses that is registered."""

    address: int
    nbytes: int
    #: Whether it is an array of others.
    adopted: bool = False


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

    Attributes
    ----------
    ranges : dict of int to PinnedRange
        What is pinned now, by address.
    pinned_bytes, adopted_bytes : int
        Bytes of all pinned buffers, and of the arrays of others.
    failures : int
        How often the driver refused a buffer.

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
        self.ranges: dict[int, PinnedRange] = {}
        self.pinned_bytes = self.adopted_bytes = self.failures = 0
        #: Arrays that are watched, by their identity: adopted, or refused for good.
        self._watched: dict[int, weakref.ref[Any]] = {}
        self._process = os.getpid()
        self._closed = False

    def pin(self, buffer: Buffer) -> None:
        """Pin a buffer, whose contents may be lost, unless that is refused or has been done."""
        if buffer.release is not None or not self.least <= buffer.nbytes <= MAX_RANGE_NBYTES:
            return
        with self._lock:
            room = self.pinned_bytes + buffer.nbytes <= self.limit
            if self._closed or not room or self.failures >= MAX_FAILURES:
                return
            self.pinned_bytes += buffer.nbytes
        try:
            touch([buffer], self.threads)
            self._register(buffer.address, buffer.nbytes)
        except self._errors:
            with self._lock:
                self.pinned_bytes -= buffer.nbytes
                self.failures += 1
            return
        except BaseException:
            with self._lock:
                self.pinned_bytes -= buffer.nbytes
            raise
        buffer.release = self._added(PinnedRange(buffer.address, buffer.nbytes))

    def _added(self, found: PinnedRange) -> Callable[[], None]:
        """Enter a range that was registered; return what unregisters it."""
        with self._lock:
            self.ranges[found.address] = found
            insort(self._starts, found.address)
        return partial(self._release, found)

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
            room = self.adopted_bytes + nbytes <= self.most_adopted
            if self._closed or not room or number in self._watched:
                return False
            self.adopted_bytes += nbytes
            self._watched[number] = weakref.ref(owner, lambda _: self._gone(number, lambda: None))
        address = int(owner.__array_interface__["data"][0])
        try:
            self._register(address, nbytes)
        except self._errors:
            with self._lock:
                self.adopted_bytes -= nbytes
            return False
        except BaseException:
            with self._lock:
                self.adopted_bytes -= nbytes
                self._watched.pop(number, None)
            raise
        release = self._added(PinnedRange(address, nbytes, adopted=True))
        self._watched[number] = weakref.ref(owner, lambda _: self._gone(number, release))
        return True

    def _gone(self, number: int, release: Callable[[], None]) -> None:
        """Forget an array of others whose end has come; its memory is still there."""
        with self._lock:
            self._watched.pop(number, None)
        release()

    def covers(self, address: int, nbytes: int) -> bool:
        """Whether all of these bytes lie in one pinned range."""
        with self._lock:
            at = bisect_right(self._starts, address) - 1
            if at < 0:
                return False
            found = self.ranges[self._starts[at]]
            return address + nbytes <= found.address + found.nbytes

    def _release(self, found: PinnedRange) -> None:
        """Unregister a range, unless that has been done."""
        with self._lock:
            if self.ranges.get(found.address) is not found:
                return
            del self.ranges[found.address]
            self._starts.remove(found.address)
            if found.adopted:
                self.adopted_bytes -= found.nbytes
            else:
                self.pinned_bytes -= found.nbytes
        if os.getpid() == self._process:  # a fork has the pages, but not the card
            # The driver may have gone before us, as happens when the interpreter ends.
            with contextlib.suppress(*self._errors):
                self._unregister(found.address)

    def close(self) -> None:
        """Unregister everything, and pin nothing more."""
        with self._lock:
            self._closed = True
            held = list(self.ranges.values())
        for found in held:
            self._release(found)
