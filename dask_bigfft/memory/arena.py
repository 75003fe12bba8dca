"""The host arena: memory that is reserved once and reused by block after block.

Fresh pages cost more than the transform that fills them: at first touch the system clears each page
and enters it into the page table. Blocks therefore come from an arena, and their memory returns to
it when the array dies::

          allocate                     last view dies
    idle ----------> block (ndarray) ----------------------> returned
     ^ ^             .base = ArenaBuffer   __del__: one append  |
     | |                                   to a deque           |
     | +-- fresh pages, while allocated + idle <= limit         |
     |                                                          |
     +----------------------------------------------------------+
          drain: the next allocation, trim, prefault or counters

Python may run a finalizer inside any allocation, even in a thread that holds the arena's lock.
`ArenaBuffer.__del__` therefore takes no lock. It appends to a deque, which is atomic, and the next
holder of the lock does the rest. Idle buffers are kept by size class, and the least recently used
ones are freed first. Unmapping is slow, so it happens without the lock.

If no idle buffer has the size of a block, one that holds several such blocks is divided. It is
whole again when all its parts are idle and its size is needed. So the blocks of a round take the
memory of an array that held the blocks of the round before, and the other way round.

The arena never waits for memory. Beyond its limit it frees idle memory, and if that is not enough
it allocates ordinary memory and counts that as an overflow.

Each process has one default arena, also after a fork. `configure` sets its limit and the
condition for giving idle memory back.
"""

import math
import operator
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt
import psutil

from dask_bigfft.arrays import Array
from dask_bigfft.errors import parse_count, raise_invalid
from dask_bigfft.memory.pages import Buffer, Part, populate, ranges_of, round_up, touch
from dask_bigfft.memory.pinned import Pinner
from dask_bigfft.system import after_fork

#: Alignment of every block with a numeric dtype.
ALIGNMENT_NBYTES = 64

#: Smaller requests use ordinary memory, which the C library reuses without page faults.
SMALL_NBYTES = 512 * 1024

#: Smallest blocks for which a buffer is divided, since tiles come and go.
LEAST_PART_NBYTES = 4 * 1024**2

#: Maximum parts of a divided buffer.
MOST_PARTS = 64

#: Fraction of a buffer for which fresh pages are taken first: a few small blocks between two large
#: ones should not divide it.
PATIENCE = 1 / 32

#: Minimum time between two tests for memory pressure.
PRESSURE_SECONDS = 0.1

#: Kinds of dtypes that their string describes fully and for which all bytes are valid.
NUMERIC_KINDS = frozenset("biufc")


class Returned(deque[Buffer]):
    """Buffers of dead blocks that are not idle yet.

    The queue outlives its arena while blocks exist. `abandoned` then tells their finalizers that
    nobody will drain it.
    """

    abandoned = False


class ArenaBuffer:
    """Base of an arena array: owns the block's buffer and returns it at the end.

    NumPy makes the array from `__array_interface__` and keeps the buffer as its base. All views
    refer to that array, so the buffer dies with the last view. `__del__` costs a fifth of
    `weakref.finalize`, needs no registry under a lock, and is safe during interpreter shutdown.
    """

    __slots__ = ("__array_interface__", "_returned", "buffer")

    def __init__(
        self,
        buffer: Buffer,
        returned: Returned,
        shape: tuple[int, ...],
        typestr: str,
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


def arena_buffer_of(array: Array) -> ArenaBuffer | None:
    """Return the buffer that owns an array's memory; None for memory outside of arenas."""
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return owner if isinstance(owner, ArenaBuffer) else None


def is_allocated(array: Array) -> bool:
    """Return True if the memory of an array belongs to an arena.

    >>> is_allocated(np.zeros(3)[1:])
    False
    """
    return arena_buffer_of(array) is not None


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
        raise_invalid("shape", lengths, "lengths of at least 0")
    return lengths


def ordinary_block(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return an uninitialised array in ordinary memory, aligned if its dtype is numeric."""
    nbytes = math.prod(shape) * dtype.itemsize
    if not nbytes or dtype.kind not in NUMERIC_KINDS:
        return np.empty(shape, dtype)
    room = np.empty(nbytes + ALIGNMENT_NBYTES, np.uint8)
    offset = -room.__array_interface__["data"][0] % ALIGNMENT_NBYTES
    return np.ndarray(shape, dtype, room, offset)


@dataclass(slots=True)
class ArenaCounters:
    """Current contents of an arena, and its history.

    Sizes are those of the buffers, which are at most 1.5 times those of their blocks. Requests
    below `SMALL_NBYTES` or with a dtype that is not numeric are not counted.

    Attributes
    ----------
    allocated_bytes
        Memory of the arena held by live blocks.
    idle_bytes
        Idle memory of the arena.
    peak_bytes
        Maximum of the sum of `allocated_bytes` and `idle_bytes`.
    fresh_bytes
        Memory taken from the system since the arena was made.
    allocations
        Number of all blocks.
    reuses
        Number of blocks in reused memory.
    overflows
        Number of blocks in ordinary memory because of the limit.
    """

    allocated_bytes: int = 0
    idle_bytes: int = 0
    peak_bytes: int = 0
    fresh_bytes: int = 0
    allocations: int = 0
    reuses: int = 0
    overflows: int = 0

    @property
    def held_bytes(self) -> int:
        """Memory of the arena, allocated or idle."""
        return self.allocated_bytes + self.idle_bytes


class HostArena:
    """Allocator of NumPy arrays whose memory is reused when they die.

    Parameters
    ----------
    limit
        Maximum bytes held at a time, allocated and idle together. An arena of limit 0 is switched
        off: it allocates ordinary memory and counts nothing.
    clock
        Monotonic clock in seconds; a test may pass its own.

    Notes
    -----
    An arena serves any number of threads of the process that made it. After a fork the child
    needs one of its own; the default arena is replaced then.

    Examples
    --------
    >>> arena = HostArena(64 * 1024**2)
    >>> block = arena.allocate((512, 1024), "complex128")
    >>> arena.counters().allocated_bytes == block.nbytes == 8 * 1024**2
    True
    >>> del block
    >>> again = arena.allocate((1024, 512), "complex128")
    >>> arena.counters().reuses
    1
    """

    def __init__(self, limit: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.limit = limit
        self._clock = clock
        self.returned = Returned()
        self.lock = threading.Lock()
        #: Idle buffers by size, the least recently used first.
        self._idle: dict[int, OrderedDict[Buffer, None]] = {}
        #: Divided buffers with their parts.
        self._divided: dict[Buffer, list[Part]] = {}
        #: Bytes requested since the last division while some idle buffer could have been divided.
        self._undivided_nbytes = 0
        self._counters = ArenaCounters()
        self._uses = 0
        self.watch(None)
        #: Pins buffers before they are allocated from now on. Pinned buffers stay pinned until they
        #: are freed or the pinner is closed.
        self.pinner: Pinner | None = None
        #: True if `fault_in` prefaults blocks that are allocated from now on.
        self.prefaults = True

    def __del__(self) -> None:
        # In this order: a block that dies in between clears the deque itself.
        self.returned.abandoned = True
        self.returned.clear()

    def allocate(
        self, shape: SupportsIndex | Sequence[SupportsIndex], dtype: npt.DTypeLike
    ) -> Array:
        """Return an uninitialised C-contiguous array, in memory of the arena if it is large.

        The memory returns to the arena when the array and all its views have died.

        Parameters
        ----------
        shape
            Lengths of the axes.
        dtype
            Dtype of the elements. Dtypes that are not numeric get ordinary memory.

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
            block = np.asarray(ArenaBuffer(buffer, self.returned, lengths, dtype.str))
            if self.pinner is not None:
                self.pinner.pin(buffer)
        # After the allocation, so that this block could still reuse idle memory.
        if self.pressure is not None:
            self._relieve_when_due()
        return block

    def prefault(self, nbytes: int, *, count: int = 1, threads: int = 1) -> int:
        """Make `count` blocks of `nbytes` idle; return the bytes taken from the system.

        Existing idle buffers of suitable size count. Missing buffers are mapped and prefaulted by
        `threads` threads. Idle memory is never dropped for new blocks, and the limit is never
        exceeded; fewer blocks are then ready. Nothing is done for small blocks, which have no
        buffers of their own.

        Parameters
        ----------
        nbytes
            Bytes of one block.
        count
            Number of blocks.
        threads
            Number of threads that touch pages.
        """
        if nbytes < SMALL_NBYTES:
            return 0
        size = round_up(nbytes)
        fresh: list[Buffer] = []
        with self.lock:
            evicted = self._drain()
            ready = sum(len(self._idle[idle]) for idle in self._fitting_sizes(size, nbytes))
            while ready + len(fresh) < count and self._counters.held_bytes + size <= self.limit:
                buffer = self._map(size)
                if buffer is None:
                    break
                fresh.append(buffer)
        del evicted  # buffers are unmapped here, without the lock
        # Until now these count as allocated. They go back like any block, also when interrupted.
        try:
            touch(fresh, threads)
            if self.pinner is not None:
                for buffer in fresh:
                    self.pinner.pin(buffer)
        finally:
            self.returned.extend(fresh)
        return size * len(fresh)

    def fault_in(self, block: Array, threads: int = 1) -> int:
        """Prefault a block's fresh pages; return the bytes prefaulted by this call.

        Threads call this before they fill a block. Each call takes parts of the block that no other
        thread has taken, until all are taken; other threads may still be at work when it returns.
        Written data stay intact. Nothing happens for reused memory, and on systems without support
        (before Linux 5.14), where pages are faulted in one by one at the first write.

        Parameters
        ----------
        block
            A block of this arena or a view of one; all of the block's pages are prefaulted. Other
            arrays are ignored.
        threads
            Number of threads that this call starts for the pages of a large block.
        """
        arena_buffer = arena_buffer_of(block)
        if arena_buffer is None:
            return 0
        buffer = arena_buffer.buffer
        threads = min(threads, len(buffer.untouched))
        if threads <= 1:
            return _fault_in_parts(buffer)
        with ThreadPoolExecutor(threads, thread_name_prefix="bigfft-prefault") as pool:
            return sum(pool.map(_fault_in_parts, [buffer] * threads))

    def trim(self, target_bytes: int = 0) -> int:
        """Free idle memory down to `target_bytes`; return the freed bytes.

        The least recently used buffers are freed first.
        """
        with self.lock:
            evicted = self._drain() + self._evict(target_bytes)
        return sum(buffer.nbytes for buffer in evicted)

    def trim_by(self, nbytes: int) -> int:
        """Free as much idle memory for others, or all of it; return the freed bytes."""
        with self.lock:
            evicted = self._drain()
            evicted += self._evict(max(0, self._counters.idle_bytes - nbytes))
        return sum(buffer.nbytes for buffer in evicted)

    def resize(self, limit: int) -> None:
        """Change the limit and free idle memory above it.

        Live blocks are unaffected. Their memory is freed on its return while the arena is above the
        new limit.
        """
        with self.lock:
            self.limit = limit
            evicted = self._drain()
        del evicted

    def watch(self, pressure: Callable[[], bool] | None) -> None:
        """Set the test for memory pressure; None for no test.

        It returns True if the process uses too much memory; idle memory is then freed. It is called
        at times when a block is allocated or the counters are read, without the arena's lock. It
        may use the arena.
        """
        self.pressure = pressure
        self._pressure_due_seconds = -math.inf

    def counters(self) -> ArenaCounters:
        """Return the counters, with the memory of all dead blocks counted as idle."""
        if self.pressure is not None:
            self._relieve_when_due()
        with self.lock:
            evicted = self._drain()
            counters = replace(self._counters)
        del evicted
        return counters

    def _relieve_when_due(self) -> None:
        """Free idle memory under memory pressure, which is tested at times."""
        now = self._clock()
        if now < self._pressure_due_seconds:
            return
        # Two threads may both get here; a second call does no harm.
        self._pressure_due_seconds = now + PRESSURE_SECONDS
        if self.pressure is not None and self.pressure():
            self.trim()

    def _take(self, nbytes: int) -> Buffer | None:
        """Return a buffer that counts as allocated, or None beyond the limit."""
        size = round_up(nbytes)
        counters = self._counters
        with self.lock:
            evicted = self._drain()
            counters.allocations += 1
            buffer = self._reuse(size, nbytes)
            if buffer is not None:
                return buffer
            evicted += self._evict(max(0, self.limit - counters.allocated_bytes - size))
            if counters.held_bytes + size <= self.limit:
                buffer = self._map(size)
            if buffer is None:
                counters.overflows += 1
        del evicted
        if buffer is not None and self.prefaults and self.pinner is None:
            # Pinning would fault them in, too.
            buffer.untouched.extend(ranges_of(buffer, nbytes))
        return buffer

    # --- with the lock ---

    def _reuse(self, size: int, nbytes: int) -> Buffer | None:
        """Return an idle buffer that counts as allocated from now on; None if none fits."""
        fitting_size = self._fitting_size(size, nbytes)
        if fitting_size is None and (self._join(size) or self._divide(size)):
            fitting_size = self._fitting_size(size, nbytes)
        if fitting_size is None:
            return None
        most_recently_used = next(reversed(self._idle[fitting_size]))
        self._remove(most_recently_used)
        self._counters.allocated_bytes += most_recently_used.nbytes
        self._counters.reuses += 1
        return most_recently_used

    def _map(self, size: int) -> Buffer | None:
        """Return fresh pages that count as allocated, or None if the system has none."""
        try:
            buffer = Buffer(size)
        except (OSError, MemoryError):
            # Out of address space or mappings. The C library may still have some.
            return None
        counters = self._counters
        counters.allocated_bytes += size
        counters.fresh_bytes += size
        counters.peak_bytes = max(counters.peak_bytes, counters.held_bytes)
        return buffer

    def _fitting_size(self, size: int, nbytes: int) -> int | None:
        """Return the size of the smallest idle buffers that fit a block; None if there are none.

        Parameters
        ----------
        size
            Size of a new buffer for the block.
        nbytes
            Bytes of the block.
        """
        return min(self._fitting_sizes(size, nbytes), default=None)

    def _fitting_sizes(self, size: int, nbytes: int) -> list[int]:
        """Return the sizes of all idle buffers that fit a block, at most 1.5 times its size.

        A buffer that is too large costs less than fresh pages.
        """
        return [idle for idle in self._idle if size <= idle <= nbytes + nbytes // 2]

    def _join(self, size: int) -> bool:
        """Make buffers of at least `size` bytes whole whose parts are all idle and unpinned.

        Return True if that was done for any.
        """
        joinable = [
            whole
            for whole, parts in self._divided.items()
            if whole.nbytes >= size and all(map(self._is_idle_and_unpinned, parts))
        ]
        for whole in joinable:
            parts = self._divided.pop(whole)
            for part in parts:
                self._remove(part)
                part.whole = None  # the pages stay
            whole.serial = max(part.serial for part in parts)
            self._add(whole)
        return bool(joinable)

    def _is_idle_and_unpinned(self, buffer: Buffer) -> bool:
        """Return True if a buffer is idle and its pages are not pinned."""
        return buffer.release is None and buffer in self._idle.get(buffer.nbytes, ())

    def _divide(self, size: int) -> bool:
        """Divide the least recently used of the idle buffers that hold several of a size.

        Return True if that was done.
        """
        if size < LEAST_PART_NBYTES:
            return False
        whole = min(self._divisible(size), key=lambda buffer: buffer.serial, default=None)
        if whole is None:
            return False
        self._undivided_nbytes += size
        if self._undivided_nbytes <= PATIENCE * whole.nbytes:
            return False
        self._undivided_nbytes = 0
        self._remove(whole)
        parts = [Part(whole, offset, size) for offset in range(0, whole.nbytes, size)]
        self._divided[whole] = parts
        for part in parts:
            self._add(part)
        return True

    def _divisible(self, size: int) -> Iterator[Buffer]:
        """Yield the whole, unpinned idle buffers that hold 2 to `MOST_PARTS` of a size."""
        for whole_size, buffers in self._idle.items():
            if not 2 * size <= whole_size <= MOST_PARTS * size:
                continue
            for buffer in buffers:
                if buffer.release is None and not isinstance(buffer, Part):
                    yield buffer

    def _add(self, buffer: Buffer) -> None:
        """Make a buffer idle."""
        self._idle.setdefault(buffer.nbytes, OrderedDict())[buffer] = None
        self._counters.idle_bytes += buffer.nbytes

    def _remove(self, buffer: Buffer) -> None:
        """Take an idle buffer from its size class."""
        stack = self._idle[buffer.nbytes]
        del stack[buffer]
        if not stack:
            del self._idle[buffer.nbytes]
        self._counters.idle_bytes -= buffer.nbytes

    def _evict(self, target: int) -> list[Buffer]:
        """Return buffers, least recently used first, until at most `target` bytes stay idle."""
        evicted: list[Buffer] = []
        while self._counters.idle_bytes > target:
            oldest_of_sizes = (next(iter(buffers)) for buffers in self._idle.values())
            oldest = min(oldest_of_sizes, key=lambda buffer: buffer.serial)
            evicted.append(oldest)
            self._remove(oldest)
            if isinstance(oldest, Part) and oldest.whole is not None:
                self._divided.pop(oldest.whole, None)  # never whole again
        return evicted

    def _drain(self) -> list[Buffer]:
        """Make the buffers of dead blocks idle; return those above a limit that has shrunk."""
        while self.returned:
            buffer = self.returned.popleft()
            self._uses += 1
            buffer.serial = self._uses
            self._add(buffer)
            self._counters.allocated_bytes -= buffer.nbytes
        if self._counters.held_bytes > self.limit:
            return self._evict(max(0, self.limit - self._counters.allocated_bytes))
        return []


def _fault_in_parts(buffer: Buffer) -> int:
    """Prefault parts of a buffer that no other thread has taken; return their bytes."""
    prefaulted_nbytes = 0
    while buffer.untouched:
        try:
            part = buffer.untouched.popleft()
        except IndexError:  # another thread has taken the last part
            break
        if not populate(buffer.memory[part]):
            buffer.untouched.clear()
            break
        prefaulted_nbytes += part.stop - part.start
    return prefaulted_nbytes


# --- the arena of the process ---------------------------------------------------------------


class _Process:
    """State of the process: its arena, and a lock for changes of its settings."""

    def __init__(self, limit: int) -> None:
        self.lock = threading.Lock()
        self.arena = HostArena(limit)

    def start_afresh(self) -> None:
        """Replace the lock, which may have been held at the fork, and the arena.

        The new arena has the same settings but no pinner, because a fork has no GPU.
        """
        previous = self.arena
        self.lock = threading.Lock()
        self.arena = HostArena(previous.limit)
        self.arena.watch(previous.pressure)
        self.arena.prefaults = previous.prefaults


#: The limit is a quarter of the machine's memory until `configure` sets another.
_process = _Process(psutil.virtual_memory().total // 4)
after_fork(_process.start_afresh)


def configure(
    limit: int, *, pressure: Callable[[], bool] | None = None, prefault: bool = True
) -> None:
    """Set the limits of the process's arena, also for processes forked from now on.

    They take effect at once, also on an arena in use. Until the first call the limit is a
    quarter of the machine's memory.

    Parameters
    ----------
    limit
        Maximum bytes held at a time, allocated and idle together. With 0 `allocate` allocates
        ordinary memory.
    pressure
        Test for memory pressure, see `HostArena.watch`.
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
        _process.arena.prefaults = prefault
        _process.arena.watch(pressure)
        _process.arena.resize(limit)


def default_arena() -> HostArena:
    """Return the arena of this process; a forked child gets its own."""
    return _process.arena


def pin_blocks(pinner: Pinner | None) -> Pinner | None:
    """Set the pinner of the arena's buffers; return the previous one.

    Parameters
    ----------
    pinner
        The new pinner; None stops pinning.
    """
    with _process.lock:
        previous = _process.arena.pinner
        _process.arena.pinner = pinner
        return previous


def pinned(address: int, nbytes: int) -> bool:
    """Return True if the arena has pinned all of these bytes, in one range."""
    pinner = _process.arena.pinner
    return pinner is not None and pinner.covers(address, nbytes)


def allocate(shape: SupportsIndex | Sequence[SupportsIndex], dtype: npt.DTypeLike) -> Array:
    """Return an uninitialised C-contiguous array from the process's arena.

    Parameters
    ----------
    shape
        Lengths of the axes.
    dtype
        Dtype of the elements.

    See Also
    --------
    HostArena.allocate : Alignment and lifetime.

    Examples
    --------
    >>> allocate((2, 3), "float32").shape
    (2, 3)
    """
    return default_arena().allocate(shape, dtype)


def fault_in(block: Array, threads: int = 1) -> int:
    """Prefault a block of the process's arena; return the bytes prefaulted by this call.

    Parameters
    ----------
    block
        A block that is about to be filled.
    threads
        Number of threads that this call starts for it.

    See Also
    --------
    HostArena.fault_in : Details.
    """
    return default_arena().fault_in(block, threads)
