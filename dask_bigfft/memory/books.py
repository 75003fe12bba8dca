"""The books of an arena: what is lent and what is idle, within its limit, and one lock for them.

Buffers of blocks that have died wait in a deque until somebody who holds the lock *drains* it. What
is to go back to the system is returned to the caller, who lets go of it without the lock: unmapping
takes its time.

It imports `blocks`, `counters`, `idle` and `pages` of this folder.
"""

import threading

from dask_bigfft.memory.blocks import Returned
from dask_bigfft.memory.counters import ArenaCounters
from dask_bigfft.memory.idle import Idle
from dask_bigfft.memory.pages import Buffer, round_up


class Books:
    """What an arena holds; its methods may be called by any number of threads.

    Parameters
    ----------
    limit
        The most bytes held at a time, lent and idle together.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.lock = threading.Lock()
        self.returned = Returned()
        self.idle = Idle()
        self.lent_bytes = 0
        self._peak_bytes = 0
        self._fresh_bytes = 0
        self._reused_bytes = 0
        self._overflow_bytes = 0
        self._prefaulted_bytes = 0
        self._lends = 0
        self._reuses = 0
        self._overflows = 0

    def take(self, nbytes: int, *, divide: bool) -> tuple[Buffer | None, bool, list[Buffer]]:
        """Return a buffer that counts as lent, or None beyond the limit.

        Parameters
        ----------
        nbytes
            Of the block.
        divide
            Whether it may be a part of a larger one.

        Returns
        -------
        Buffer or None
            The buffer.
        bool
            Whether its pages are fresh.
        list of Buffer
            What is to be let go of.
        """
        size = round_up(nbytes)
        with self.lock:
            doomed = self._drain()
            self._lends += 1
            buffer = self.idle.take(size, _largest_fit(nbytes), divide=divide)
            if buffer is not None:
                self.lent_bytes += buffer.nbytes
                self._reuses += 1
                self._reused_bytes += buffer.nbytes
                return buffer, False, doomed
            doomed += self.idle.evict(max(0, self.limit - self.lent_bytes - size))
            if self._held_bytes + size <= self.limit:
                buffer = self._map(size)
            if buffer is None:
                self._overflows += 1
                self._overflow_bytes += nbytes
            return buffer, buffer is not None, doomed

    def map_more(self, nbytes: int, count: int) -> tuple[list[Buffer], list[Buffer]]:
        """Return fresh buffers, counted as lent, that are missing so that `count` would be idle.

        No more than the limit has room for, and what is to be let go of.
        """
        size, fresh = round_up(nbytes), list[Buffer]()
        with self.lock:
            doomed = self._drain()
            ready = self.idle.count(size, _largest_fit(nbytes))
            while ready + len(fresh) < count and self._held_bytes + size <= self.limit:
                buffer = self._map(size)
                if buffer is None:
                    break
                fresh.append(buffer)
        return fresh, doomed

    def count_prefaulted(self, nbytes: int) -> None:
        """Note bytes that were backed by memory before anybody wrote to them."""
        with self.lock:
            self._prefaulted_bytes += nbytes

    def evict(self, target_bytes: int) -> list[Buffer]:
        """Return what is to be let go of, so that no more than `target_bytes` stay idle."""
        with self.lock:
            return self._drain() + self.idle.evict(target_bytes)

    def resize(self, limit: int) -> list[Buffer]:
        """Change the limit; return what is to be let go of."""
        with self.lock:
            self.limit = limit
            return self._drain()

    def counters(self) -> tuple[ArenaCounters, list[Buffer]]:
        """Return what is held, with all blocks that have died, and what is to be let go of."""
        with self.lock:
            doomed = self._drain()
            return ArenaCounters(
                lent_bytes=self.lent_bytes,
                idle_bytes=self.idle.nbytes,
                peak_bytes=self._peak_bytes,
                fresh_bytes=self._fresh_bytes,
                reused_bytes=self._reused_bytes,
                overflow_bytes=self._overflow_bytes,
                prefaulted_bytes=self._prefaulted_bytes,
                lends=self._lends,
                reuses=self._reuses,
                overflows=self._overflows,
            ), doomed

    # The methods below need the lock; the caller holds it.

    @property
    def _held_bytes(self) -> int:
        return self.lent_bytes + self.idle.nbytes

    def _map(self, size: int) -> Buffer | None:
        """Return fresh pages that count as lent, or None if the system grants none."""
        try:
            buffer = Buffer(size)
        except (OSError, MemoryError):
            # Out of address space or mappings. The C library may still have some.
            return None
        self.lent_bytes += size
        self._fresh_bytes += size
        self._peak_bytes = max(self._peak_bytes, self._held_bytes)
        return buffer

    def _drain(self) -> list[Buffer]:
        """Make the buffers of dead blocks idle; return those above a limit that has shrunk."""
        returned = self.returned
        while returned:
            buffer = returned.popleft()
            self.idle.keep(buffer)
            self.lent_bytes -= buffer.nbytes
        if self._held_bytes > self.limit:
            return self.idle.evict(max(0, self.limit - self.lent_bytes))
        return []


def _largest_fit(nbytes: int) -> int:
    """Return the largest buffer that a block of `nbytes` bytes may occupy: half as much again.

    What is larger than need be is still cheaper than fresh pages beside pages that stay idle.
    """
    return nbytes + nbytes // 2
