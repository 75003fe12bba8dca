"""Host memory that is reserved once and lent to one block after another.

A block in fresh pages costs more than the transform that fills it: the system clears each page
and enters it into the page table at first touch. So blocks come from an arena, and go back to it
when their array dies::

            lend                          last view dies
    idle ----------> block (ndarray) -----------------------> returned
     ^ ^                 .base = Loan      Loan.__del__:         |
     | |                                   one deque.append      |
     | +-- fresh pages, while lent + idle <= limit               |
     |                                                           |
     +-----------------------------------------------------------+
              drain: the next lend, trim, prefault or counters

Python may run a finalizer inside any allocation, so also in a thread that holds the arena's lock
at that moment. Therefore `Loan.__del__` takes no lock and touches no books: it appends to a deque,
which is atomic, and whoever holds the lock next does the rest (`books`).

The arena never waits for memory to come back. Beyond its limit it gives idle memory to the system,
and if that is not enough lends ordinary memory and counts it.

It imports NumPy, the package's errors, and `blocks`, `books`, `counters`, `pages` and `pinned` of
this folder.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import parse_count
from dask_bigfft.memory.blocks import NUMERIC_KINDS, Loan, loan_of, ordinary_block, parse_shape
from dask_bigfft.memory.books import Books
from dask_bigfft.memory.counters import ArenaCounters
from dask_bigfft.memory.pages import Buffer, populate, ranges_of, round_up, touch
from dask_bigfft.memory.pinned import Pinner

SMALL_NBYTES = 512 * 1024
"""Requests below this are ordinary memory: the allocator of the C library reuses it by itself."""


class HostArena:
    """Memory lent as NumPy arrays, which return by themselves when they die.

    Parameters
    ----------
    limit
        The most bytes held at a time, lent and idle together. An arena of limit 0 is switched
        off: it lends ordinary memory and counts nothing.
    pressure
        Tells whether the process holds too much memory. If so, idle memory goes back to the
        system. It is asked now and then when a block is lent or the counters are read, never
        while the arena is locked, and may itself use the arena.
    pressure_interval_seconds
        The least time between two such questions.
    clock
        Seconds, never running backwards; a test may pass its own.

    Raises
    ------
    ArgumentTypeError
        If `limit` is not an integer.
    ArgumentError
        If `limit` is negative.

    Notes
    -----
    An arena serves any number of threads of the process that made it. After a fork the child
    needs one of its own, as `default_arena` arranges.

    Examples
    --------
    >>> arena = HostArena(64 * 1024**2)
    >>> block = arena.lend((512, 1024), "complex128")
    >>> arena.counters().lent_bytes == block.nbytes == 8 * 1024**2
    True
    >>> del block
    >>> again = arena.lend((1024, 512), "complex128")
    >>> arena.counters().reuses
    1
    """

    def __init__(
        self,
        limit: int,
        *,
        pressure: Callable[[], bool] | None = None,
        pressure_interval_seconds: float = 0.1,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._books = Books(parse_count("limit", limit, 0))
        self._pressure = pressure
        self._pressure_interval_seconds = pressure_interval_seconds
        self._pressure_due_seconds = -math.inf
        self._clock = clock
        self._pinner: Pinner | None = None
        self._prefaults = True

    def __del__(self) -> None:
        # A constructor that refused its limit leaves an arena without books.
        books = getattr(self, "_books", None)
        if books is not None:
            # In this order: a block that dies in between clears the deque itself.
            books.returned.abandoned = True
            books.returned.clear()

    def __repr__(self) -> str:
        return (
            f"<HostArena: {self._books.lent_bytes} bytes lent, {self._books.idle.nbytes} idle, "
            f"limit {self._books.limit}>"
        )

    @property
    def limit(self) -> int:
        """The most bytes held at a time, lent and idle together."""
        return self._books.limit

    def lend(
        self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: npt.DTypeLike
    ) -> npt.NDArray[Any]:
        """Return an uninitialised C-contiguous array, in memory of the arena if it is large.

        Memory returns when the array and all its views have died; there is nothing to call.

        Parameters
        ----------
        shape
            Lengths of the axes.
        dtype
            Of the elements. Types that are not numeric get ordinary memory.

        Returns
        -------
        numpy.ndarray
            A plain array. Numeric ones are aligned to `ALIGNMENT_NBYTES`, large ones to a page.

        Raises
        ------
        ArgumentError
            If a length is negative.
        MemoryError
            If the system has no memory left.
        """
        dtype = np.dtype(dtype)
        lengths = parse_shape(shape)
        nbytes = math.prod(lengths) * dtype.itemsize
        if nbytes < SMALL_NBYTES or dtype.kind not in NUMERIC_KINDS or not self._books.limit:
            return ordinary_block(lengths, dtype)
        buffer = self._take(nbytes)
        if buffer is None:
            block = ordinary_block(lengths, dtype)
        else:
            block = np.asarray(Loan(buffer, self._books.returned, lengths, dtype.str))
            if self._pinner is not None:
                self._pinner.pin(buffer)
        # Only now, so that what this block could use is not thrown away just before.
        if self._pressure is not None:
            self._relieve_when_due()
        return block

    def prefault(self, nbytes: int, *, count: int = 1, threads: int = 1) -> int:
        """Return the bytes taken from the system so that `count` blocks of `nbytes` are idle.

        Idle memory that such a block would be lent counts; what is missing is mapped and
        touched, by `threads` threads at a time. Never drops idle memory, never exceeds the limit:
        fewer blocks are then ready.

        Parameters
        ----------
        nbytes
            Of one block.
        count
            How many blocks are wanted.
        threads
            How many threads touch pages.

        Raises
        ------
        ArgumentError
            If an argument is out of range.
        """
        parse_count("nbytes", nbytes, 0)
        parse_count("count", count, 0)
        parse_count("threads", threads, 1)
        if nbytes < SMALL_NBYTES:
            return 0
        size = round_up(nbytes)
        fresh, doomed = self._books.map_more(nbytes, count)
        del doomed
        # Until now these count as lent. They go back like any block, also when interrupted.
        try:
            touch(fresh, threads)
            self._books.count_prefaulted(size * len(fresh))
            if self._pinner is not None:
                for buffer in fresh:
                    self._pinner.pin(buffer)
        finally:
            self._books.returned.extend(fresh)
        return size * len(fresh)

    def fault_in(self, block: npt.NDArray[Any]) -> int:
        """Return the bytes of a lent block that this call has had backed by memory.

        For those who are about to fill a block in fresh pages, before they begin: each thread that
        calls takes a part that nobody has taken yet, until none is left. What another thread has
        taken may not be there yet when this one returns; nothing that was written is lost. Does
        nothing for memory that was used before, and where the system cannot do it (it takes Linux
        5.14): pages then come one by one, as they are written to.

        Parameters
        ----------
        block
            A block of this arena, or a view of one: all of the block's pages are meant. Nothing
            happens with others.
        """
        loan = loan_of(block)
        if loan is None or not loan.buffer.untouched:
            return 0
        buffer, done = loan.buffer, 0
        while buffer.untouched:
            try:
                part = buffer.untouched.popleft()
            except IndexError:  # another thread has taken the last one just now
                break
            if not populate(buffer.memory[part]):
                buffer.untouched.clear()
                break
            done += part.stop - part.start
        self._books.count_prefaulted(done)
        return done

    def trim(self, target_bytes: int = 0) -> int:
        """Return the bytes given to the system so that at most `target_bytes` stay idle.

        The least recently used buffers go first.

        Raises
        ------
        ArgumentError
            If `target_bytes` is negative.
        """
        parse_count("target_bytes", target_bytes, 0)
        return sum(buffer.nbytes for buffer in self._books.evict(target_bytes))

    def resize(self, limit: int) -> None:
        """Change the limit; idle memory above it goes back to the system.

        Blocks that are lent stay as they are, and their memory is dropped on its return as long
        as the arena holds more than the new limit.

        Raises
        ------
        ArgumentTypeError
            If `limit` is not an integer.
        ArgumentError
            If `limit` is negative.
        """
        self._books.resize(parse_count("limit", limit, 0))

    def watch(self, pressure: Callable[[], bool] | None) -> None:
        """Ask `pressure` from now on whether idle memory has to go, or nobody."""
        self._pressure = pressure
        self._pressure_due_seconds = -math.inf

    def prefaults(self, wanted: bool) -> None:
        """Let `fault_in` do something with blocks that are lent from now on, or nothing."""
        self._prefaults = wanted

    def pin(self, pinner: Pinner | None) -> None:
        """Have buffers pinned from now on before they are lent, or no more.

        What is pinned already stays so until its memory goes back to the system, or the pinner is
        closed.
        """
        self._pinner = pinner

    def relieve(self) -> int:
        """Return the bytes given to the system, all that is idle, if the process is under pressure.

        For callers with a clock of their own: a worker that has paused because it holds too much
        memory runs no task, so nothing would be lent and nothing given back.
        """
        pressure = self._pressure
        return self.trim(0) if pressure is not None and pressure() else 0

    def counters(self) -> ArenaCounters:
        """Return what the arena holds, with all blocks that have died counted as idle."""
        if self._pressure is not None:
            self._relieve_when_due()
        snapshot, doomed = self._books.counters()
        del doomed
        return snapshot

    def _relieve_when_due(self) -> None:
        now = self._clock()
        if now >= self._pressure_due_seconds:
            # Two threads may both come through here; asking twice does no harm.
            self._pressure_due_seconds = now + self._pressure_interval_seconds
            self.relieve()

    def _take(self, nbytes: int) -> Buffer | None:
        """Return a buffer that counts as lent, or None beyond the limit."""
        divide = self._pinner is None  # what is pinned is one range
        buffer, fresh, doomed = self._books.take(nbytes, divide=divide)
        # Unmapping takes its time, so it waits until the lock is free again.
        del doomed
        if buffer is not None and fresh and self._prefaults and self._pinner is None:
            # Pinning would fault them in, too.
            buffer.untouched.extend(ranges_of(buffer, nbytes))
        return buffer
