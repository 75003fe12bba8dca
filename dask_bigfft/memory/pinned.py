"""Pinned memory: buffers of the arena that a GPU's copy engines access directly.

A copy engine reaches the speed of the bus, asynchronously, only on pinned pages. Pinning costs
about as much as one copy. So each buffer is pinned once, when the arena takes it from the system,
and unpinned when it is freed::

    fresh buffer --touched by several threads, registered--> pinned --> allocated, returned ...

One buffer is one registered range, because a strided copy must not cross the border of two ranges.
Registering holds locks of the driver that all processes of the machine share. So it happens in
short steps, never on an event loop or under the arena's lock, but in the thread of the task that
allocates the buffer, or in the prefaulting thread.

User arrays that own their memory are pinned in place. A weak reference unpins them before their
memory is freed.

The driver is passed in as two functions. If it refuses a block, the block stays unpinned, and its
copies go through a staging ring.
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
from dask.system import CPU_COUNT

from dask_bigfft.arrays import Array
from dask_bigfft.memory.pages import Buffer, touch
from dask_bigfft.system import HUGE_PAGE_NBYTES

#: Maximum bytes of a range; the driver refuses ranges from some size below 512 GiB on.
MAX_RANGE_NBYTES = 64 * 1024**3

#: Number of refusals after which pinning stops.
MAX_FAILURES = 3

#: Number of threads that prefault a buffer before it is registered; the driver would use one.
THREADS = min(8, CPU_COUNT)

#: Minimum bytes of user arrays; smaller ones are often used once and go through the ring.
LEAST_ADOPTED_NBYTES = 16 * 1024**2


@dataclass(frozen=True, slots=True)
class PinnedRange:
    """A registered range of addresses."""

    address: int
    nbytes: int
    #: True for a user array.
    adopted: bool = False


class Pinner:
    """Pins buffers up to a limit, and keeps a table of pinned ranges.

    Parameters
    ----------
    register, unregister : callable
        Driver functions ``register(address, nbytes)`` and ``unregister(address)``, which raise
        one of `errors` on failure.
    limit : int
        Maximum bytes of pinned buffers.
    adopted : int
        Maximum bytes of pinned user arrays, beside the buffers.
    errors : tuple of exception classes
        Exceptions of the driver on failure.

    Attributes
    ----------
    ranges : dict of int to PinnedRange
        Pinned ranges by address.
    pinned_bytes, adopted_bytes : int
        Bytes of all pinned buffers, and of all pinned user arrays.
    failures : int
        Number of buffers that the driver refused.

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
    ) -> None:
        self._register = register
        self._unregister = unregister
        self._errors = errors
        self.limit = limit
        self.most_adopted = adopted
        # Reentrant: a finalizer may release a buffer in any allocation of the lock's holder.
        self._lock = threading.RLock()
        self._starts: list[int] = []
        self.ranges: dict[int, PinnedRange] = {}
        self.pinned_bytes = 0
        self.adopted_bytes = 0
        self.failures = 0
        #: Weak references to adopted or refused arrays, by their identity.
        self._watched: dict[int, weakref.ref[Any]] = {}
        self._process = os.getpid()
        self._closed = False

    def pin(self, buffer: Buffer) -> None:
        """Pin a buffer unless it is pinned, too small or refused; its contents may be lost.

        A buffer that a pinner pinned which is closed by now is pinned again.
        """
        fits = HUGE_PAGE_NBYTES <= buffer.nbytes <= MAX_RANGE_NBYTES
        if not fits or self.covers(buffer.address, buffer.nbytes):
            return
        with self._lock:
            has_room = self.pinned_bytes + buffer.nbytes <= self.limit
            if self._closed or not has_room or self.failures >= MAX_FAILURES:
                return
            self.pinned_bytes += buffer.nbytes
        pinned_range = PinnedRange(buffer.address, buffer.nbytes)
        buffer.release = self._register_range(pinned_range, partial(touch, [buffer], THREADS))
        if buffer.release is None:
            self.failures += 1

    def _register_range(
        self, pinned_range: PinnedRange, prepare: Callable[[], object]
    ) -> Callable[[], None] | None:
        """Register a range whose bytes count already; return a function that unregisters it.

        `prepare` runs first. The result is None if the driver refuses the range. Other errors, also
        those of `prepare`, are raised. In both cases the bytes no longer count.
        """
        try:
            prepare()
            self._register(pinned_range.address, pinned_range.nbytes)
        except BaseException as error:
            self._count(pinned_range, -pinned_range.nbytes)
            if isinstance(error, self._errors):
                return None
            raise
        with self._lock:
            self.ranges[pinned_range.address] = pinned_range
            insort(self._starts, pinned_range.address)
        return partial(self._release, pinned_range)

    def _count(self, pinned_range: PinnedRange, nbytes: int) -> None:
        """Add bytes of a range to those of user arrays, or of buffers."""
        with self._lock:
            if pinned_range.adopted:
                self.adopted_bytes += nbytes
            else:
                self.pinned_bytes += nbytes

    def adopt(self, array: Array) -> bool:
        """Pin the memory of a user array until it is freed; return True if that was done.

        Small arrays, arrays that do not own their memory, and arrays beyond the limit are not
        pinned.
        """
        owner = array
        while isinstance(owner.base, np.ndarray):
            owner = owner.base
        nbytes = owner.nbytes
        if not owner.flags.owndata or not LEAST_ADOPTED_NBYTES <= nbytes <= MAX_RANGE_NBYTES:
            return False
        number = id(owner)
        with self._lock:
            has_room = self.adopted_bytes + nbytes <= self.most_adopted
            if self._closed or not has_room or number in self._watched:
                return False
            self.adopted_bytes += nbytes
            self._watch(owner, release=lambda: None)
        address = int(owner.__array_interface__["data"][0])
        pinned_range = PinnedRange(address, nbytes, adopted=True)
        release = self._register_range(pinned_range, prepare=lambda: None)
        if release is None:
            return False
        self._watch(owner, release)
        return True

    def _watch(self, owner: Array, release: Callable[[], None]) -> None:
        """Call a function when a user array is about to be freed."""
        number = id(owner)

        def release_adopted(_: object) -> None:
            self._release_adopted(number, release)

        self._watched[number] = weakref.ref(owner, release_adopted)

    def _release_adopted(self, number: int, release: Callable[[], None]) -> None:
        """Unpin a user array that is about to be freed; its memory still exists."""
        with self._lock:
            self._watched.pop(number, None)
        release()

    def covers(self, address: int, nbytes: int) -> bool:
        """Return True if all of these bytes lie in one pinned range."""
        with self._lock:
            index = bisect_right(self._starts, address) - 1
            if index < 0:
                return False
            pinned_range = self.ranges[self._starts[index]]
            return address + nbytes <= pinned_range.address + pinned_range.nbytes

    def _release(self, pinned_range: PinnedRange) -> None:
        """Unregister a range, unless it is unregistered already."""
        address = pinned_range.address
        with self._lock:
            if self.ranges.get(address) is not pinned_range:
                return
            del self.ranges[address]
            self._starts.remove(address)
            self._count(pinned_range, -pinned_range.nbytes)
        if os.getpid() == self._process:  # a fork has the pages, but not the GPU
            # The driver may already be shut down when the interpreter ends.
            with contextlib.suppress(*self._errors):
                self._unregister(address)

    def close(self) -> None:
        """Unregister everything, and pin nothing more."""
        with self._lock:
            self._closed = True
            pinned_ranges = list(self.ranges.values())
        for pinned_range in pinned_ranges:
            self._release(pinned_range)
