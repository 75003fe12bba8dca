"""The host arena: memory reserved once and lent to one block after another.

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
at that moment. Therefore `Loan.__del__` takes no lock: it appends to a deque, which is atomic, and
whoever holds the lock next does the rest. Idle buffers wait by size class, and the least recently
used go back to the system first. Unmapping takes time, so it happens without the lock.

The arena never waits for memory to come back. Beyond its limit it gives idle memory to the system,
and if that is not enough lends ordinary memory and counts it.

Each process has one default arena, made when it is first asked for; its limit, and when it must
give idle memory back, are handed in through `configure`.

Imports NumPy, the package's errors, and `pages` and `pinned` of this folder.
"""

import math
import operator
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import psutil

from dask_bigfft.errors import parse_count, refuse
from dask_bigfft.memory.pages import Buffer, populate, ranges_of, round_up, touch
from dask_bigfft.memory.pinned import Pinner

#: Every block with a numeric dtype begins at a multiple of this.
ALIGNMENT_NBYTES = 64

#: Requests below this are ordinary memory: the allocator of the C library reuses it by itself.
SMALL_NBYTES = 512 * 1024

#: Kinds of dtypes that are told in full by their string, and whose bytes may hold anything.
NUMERIC_KINDS = frozenset("biufc")


class Returned(deque[Buffer]):
    """Buffers whose block has died and that are not idle yet.

    It outlives its arena as long as a block does; `abandoned` then tells the block's finalizer
    that no drain will come.
    """

    abandoned = False


class Loan:
    """What the base of a lent array is: owns the block's buffer, and gives it back at its end.

    NumPy reads `__array_interface__` to make the array and keeps the loan as its base; every view
    refers to that array, so the loan dies with the last of them. A method `__del__` rather than
    `weakref.finalize`: it needs no registry under a lock, costs a fifth, and what it uses hangs
    on the loan itself, so it is safe while the interpreter shuts down.
    """

    __slots__ = ("__array_interface__", "_returned", "buffer")

    def __init__(
        self, buffer: Buffer, returned: Returned, shape: tuple[int, ...], typestr: str
    ) -> None:
        self.buffer = buffer
        self._returned = returned
        self.__array_interface__ = {
            "version": 3,
            "shape": shape,
            "typestr": typestr,
            "data": (buffer.address, False),
        }

    def __del__(self) -> None:
        returned = self._returned
        returned.append(self.buffer)
        if returned.abandoned:
            returned.clear()


def loan_of(array: npt.NDArray[Any]) -> Loan | None:
    """Return the loan that an array, or what it is a view of, lies in; None if it is not lent."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner if isinstance(owner, Loan) else None


def is_lent(array: npt.NDArray[Any]) -> bool:
    """Whether an array, or what it is a view of, lies in memory of an arena.

    >>> is_lent(np.zeros(3)[1:])
    False
    """
    return loan_of(array) is not None


def parse_shape(shape: SupportsIndex | Sequence[SupportsIndex]) -> tuple[int, ...]:
    """Return the lengths of the axes as a tuple, of one length if `shape` is an integer.

    Raises
    ------
    ArgumentError
        If a length is negative.

    Examples
    --------
    >>> parse_shape(3), parse_shape([2, 3])
    ((3,), (2, 3))
    """
    if not isinstance(shape, tuple) and isinstance(shape, SupportsIndex):
        shape = (shape,)
    lengths = tuple(map(operator.index, shape))
    if lengths and min(lengths) < 0:
        refuse("shape", lengths, "lengths of at least 0")
    return lengths


def ordinary_block(shape: tuple[int, ...], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Return an uninitialised array from the C library, aligned if its bytes may hold anything."""
    nbytes = math.prod(shape) * dtype.itemsize
    if not nbytes or dtype.kind not in NUMERIC_KINDS:
        return np.empty(shape, dtype)
    room = np.empty(nbytes + ALIGNMENT_NBYTES, np.uint8)
    offset = -room.__array_interface__["data"][0] % ALIGNMENT_NBYTES
    return np.ndarray(shape, dtype, room, offset)


@dataclass(slots=True)
class ArenaCounters:
    """What an arena holds at one moment, and what it has done so far.

    Sizes are those of the buffers, up to a half above those of their blocks. Requests below
    `SMALL_NBYTES`, and those with a dtype that is not numeric, never reach the arena and are not
    counted.

    Attributes
    ----------
    lent_bytes
        Memory of the arena that live blocks hold now.
    idle_bytes
        Memory of the arena that waits for the next block now.
    peak_bytes
        The most that `lent_bytes` and `idle_bytes` ever were together.
    fresh_bytes
        Memory taken from the system since the arena was made.
    prefaulted_bytes
        Fresh memory that was faulted in before anybody wrote there, since the arena was made.
    lends
        Blocks lent, of every kind.
    reuses
        Blocks lent in memory that was idle.
    overflows
        Blocks lent in ordinary memory because the limit was reached.
    """

    lent_bytes: int = 0
    idle_bytes: int = 0
    peak_bytes: int = 0
    fresh_bytes: int = 0
    prefaulted_bytes: int = 0
    lends: int = 0
    reuses: int = 0
    overflows: int = 0

    @property
    def held_bytes(self) -> int:
        """Memory of the arena, lent or idle."""
        return self.lent_bytes + self.idle_bytes


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
        self.limit = parse_count("limit", limit, 0)
        self.lock = threading.Lock()
        self.returned = Returned()
        #: Idle buffers by size, the least recently used first.
        self._idle: dict[int, deque[Buffer]] = {}
        self._counters, self._uses = ArenaCounters(), 0
        self._pressure, self._clock = pressure, clock
        self._pressure_interval_seconds = pressure_interval_seconds
        self._pressure_due_seconds = -math.inf
        #: Pins buffers from now on before they are lent. What is pinned already stays so until its
        #: memory goes back to the system, or the pinner is closed.
        self.pinner: Pinner | None = None
        #: Whether `fault_in` does something with blocks that are lent from now on.
        self.prefaults = True

    def __del__(self) -> None:
        returned = getattr(self, "returned", None)  # none where the limit was refused
        if returned is not None:
            # In this order: a block that dies in between clears the deque itself.
            returned.abandoned = True
            returned.clear()

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
        if nbytes < SMALL_NBYTES or dtype.kind not in NUMERIC_KINDS or not self.limit:
            return ordinary_block(lengths, dtype)
        buffer = self._take(nbytes)
        if buffer is None:
            block = ordinary_block(lengths, dtype)
        else:
            block = np.asarray(Loan(buffer, self.returned, lengths, dtype.str))
            if self.pinner is not None:
                self.pinner.pin(buffer)
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
        size, fresh = round_up(nbytes), list[Buffer]()
        with self.lock:
            doomed = self._drain()
            ready = sum(len(self._idle[fit]) for fit in self._idle if size <= fit <= _most(nbytes))
            while ready + len(fresh) < count and self._counters.held_bytes + size <= self.limit:
                buffer = self._map(size)
                if buffer is None:
                    break
                fresh.append(buffer)
        del doomed
        # Until now these count as lent. They go back like any block, also when interrupted.
        try:
            touch(fresh, threads)
            self._count_prefaulted(size * len(fresh))
            if self.pinner is not None:
                for buffer in fresh:
                    self.pinner.pin(buffer)
        finally:
            self.returned.extend(fresh)
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
        self._count_prefaulted(done)
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
        with self.lock:
            doomed = self._drain() + self._evict(target_bytes)
        return sum(buffer.nbytes for buffer in doomed)

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
        limit = parse_count("limit", limit, 0)
        with self.lock:
            self.limit = limit
            doomed = self._drain()
        del doomed

    def watch(self, pressure: Callable[[], bool] | None) -> None:
        """Ask `pressure` from now on whether idle memory has to go, or nobody."""
        self._pressure = pressure
        self._pressure_due_seconds = -math.inf

    def counters(self) -> ArenaCounters:
        """Return what the arena holds, with all blocks that have died counted as idle."""
        if self._pressure is not None:
            self._relieve_when_due()
        with self.lock:
            doomed = self._drain()
            found = replace(self._counters)
        del doomed
        return found

    def _relieve_when_due(self) -> None:
        now = self._clock()
        if now >= self._pressure_due_seconds:
            # Two threads may both come through here; asking twice does no harm.
            self._pressure_due_seconds = now + self._pressure_interval_seconds
            if self._pressure is not None and self._pressure():
                self.trim()

    def _count_prefaulted(self, nbytes: int) -> None:
        with self.lock:
            self._counters.prefaulted_bytes += nbytes

    def _take(self, nbytes: int) -> Buffer | None:
        """Return a buffer that counts as lent, or None beyond the limit."""
        size, counters = round_up(nbytes), self._counters
        with self.lock:
            doomed = self._drain()
            counters.lends += 1
            fits = [fit for fit in self._idle if size <= fit <= _most(nbytes)]
            if fits:
                buffer = self._pop(min(fits), last=True)
                counters.lent_bytes += buffer.nbytes
                counters.reuses += 1
                return buffer
            doomed += self._evict(max(0, self.limit - self._counters.lent_bytes - size))
            fresh = self._map(size) if self._counters.held_bytes + size <= self.limit else None
            counters.overflows += fresh is None
        del doomed
        if fresh is not None and self.prefaults and self.pinner is None:
            # Pinning would fault them in, too.
            fresh.untouched.extend(ranges_of(fresh, nbytes))
        return fresh

    # --- with the lock ---

    def _map(self, size: int) -> Buffer | None:
        """Return fresh pages that count as lent, or None if the system grants none."""
        try:
            buffer = Buffer(size)
        except (OSError, MemoryError):
            # Out of address space or mappings. The C library may still have some.
            return None
        counters = self._counters
        counters.lent_bytes += size
        counters.fresh_bytes += size
        counters.peak_bytes = max(counters.peak_bytes, counters.held_bytes)
        return buffer

    def _pop(self, size: int, last: bool) -> Buffer:
        """Take an idle buffer of a size class, the one used last or the one idle for longest."""
        stack = self._idle[size]
        buffer = stack.pop() if last else stack.popleft()
        if not stack:
            del self._idle[size]
        self._counters.idle_bytes -= buffer.nbytes
        return buffer

    def _evict(self, target: int) -> list[Buffer]:
        """Return buffers, least recently used first, until at most `target` bytes stay idle."""
        doomed: list[Buffer] = []
        while self._counters.idle_bytes > target:
            oldest = min(self._idle, key=lambda size: self._idle[size][0].serial)
            doomed.append(self._pop(oldest, last=False))
        return doomed

    def _drain(self) -> list[Buffer]:
        """Make the buffers of dead blocks idle; return those above a limit that has shrunk."""
        while self.returned:
            buffer = self.returned.popleft()
            self._uses += 1
            buffer.serial = self._uses
            self._idle.setdefault(buffer.nbytes, deque()).append(buffer)
            self._counters.idle_bytes += buffer.nbytes
            self._counters.lent_bytes -= buffer.nbytes
        if self._counters.held_bytes > self.limit:
            return self._evict(max(0, self.limit - self._counters.lent_bytes))
        return []


def _most(nbytes: int) -> int:
    """Return the largest buffer that a block of `nbytes` bytes may occupy: half as much again.

    A larger buffer than needed is still cheaper than fresh pages beside pages that stay idle.
    """
    return nbytes + nbytes // 2


# --- the arena of the process ---------------------------------------------------------------


class _Process:
    """What the process shares: settings, which a fork inherits, and an arena, which it does not."""

    def __init__(self, limit: int) -> None:
        self.limit, self.prefault = limit, True
        self.pressure: Callable[[], bool] | None = None
        self.start_afresh()

    def start_afresh(self) -> None:
        """Forget arena and lock, both of which another thread may have held when we forked."""
        self.lock = threading.Lock()
        self.arena: HostArena | None = None
        self.pinner: Pinner | None = None  # a fork has no card

    def apply(self, arena: HostArena) -> None:
        """Set up an arena as the settings say."""
        arena.watch(self.pressure)
        arena.prefaults, arena.pinner = self.prefault, self.pinner
        arena.resize(self.limit)


#: The limit is a quarter of the machine's memory until somebody knows better.
_process = _Process(psutil.virtual_memory().total // 4)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_process.start_afresh)


def configure(
    limit: int,
    enabled: bool = True,
    *,
    pressure: Callable[[], bool] | None = None,
    prefault: bool = True,
) -> None:
    """Set how much the process's arena holds, now and in processes forked from here.

    Takes effect at once, also on an arena that is in use. Until the first call the limit is a
    quarter of the machine's memory.

    Parameters
    ----------
    limit
        The most bytes held at a time, lent and idle together.
    enabled
        If false, `lend` gives ordinary memory.
    pressure
        Tells whether idle memory has to go back to the system; see `HostArena`.
    prefault
        If false, `fault_in` does nothing.

    Raises
    ------
    ArgumentTypeError
        If `limit` is not an integer.
    ArgumentError
        If `limit` is negative.
    """
    limit = parse_count("limit", limit, 0)
    with _process.lock:
        _process.limit = limit if enabled else 0
        _process.pressure, _process.prefault = pressure, prefault
        if _process.arena is not None:
            _process.apply(_process.arena)


def default_arena() -> HostArena:
    """Return the arena of this process, always the same one; a forked child gets its own."""
    arena = _process.arena
    if arena is not None:
        return arena
    with _process.lock:
        if _process.arena is None:
            arena = HostArena(_process.limit)
            _process.apply(arena)
            _process.arena = arena
        return _process.arena


def pin_blocks(pinner: Pinner | None) -> Pinner | None:
    """Have the arena's buffers pinned before they are lent, and return who did it so far.

    Parameters
    ----------
    pinner
        Pins them; None pins no more.
    """
    with _process.lock:
        previous, _process.pinner = _process.pinner, pinner
        if _process.arena is not None:
            _process.arena.pinner = pinner
        return previous


def pinned(address: int, nbytes: int) -> bool:
    """Whether the arena has pinned all of these bytes, in one range."""
    pinner = _process.pinner
    return pinner is not None and pinner.covers(address, nbytes)


def lend(shape: SupportsIndex | Sequence[SupportsIndex], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Return an uninitialised C-contiguous array from the process's arena.

    Parameters
    ----------
    shape
        Lengths of the axes.
    dtype
        Of the elements.

    See Also
    --------
    HostArena.lend : Says what is guaranteed.

    Examples
    --------
    >>> lend((2, 3), "float32").shape
    (2, 3)
    """
    return default_arena().lend(shape, dtype)


def fault_in(block: npt.NDArray[Any]) -> int:
    """Return the bytes of a block of the process's arena that this call has had backed by memory.

    Parameters
    ----------
    block
        About to be filled.

    See Also
    --------
    HostArena.fault_in : Says what is guaranteed.
    """
    return default_arena().fault_in(block)
