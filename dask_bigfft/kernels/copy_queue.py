"""A queue of copies in memory, of which compiled threads take shares without the interpreter.

Whoever hands out shares by the interpreter pays for each with its lock held: some 40 us, in which a
bus moves 2 MiB, and threads that want the lock wait for one another. Here copies stand in a table;
threads that serve it take a share at a time and sleep where there is none, under a mutex of the
operating system's. Python is asked once for a copy, and once to wait for it.

::

    post(copy) --> | copy n-1 | copy n | ...  <-- serve(): a share, and the next one
                     oldest first                  wait(n): until all shares of n are done

Imports numba and this room.
"""

from typing import Any

import numpy as np
from numba import types

from dask_bigfft.kernels.compiled import compiled
from dask_bigfft.kernels.streaming import Rows, copy_rows

__all__ = ["CopyQueue"]

#: Copies that are under way at most: who posts another one waits.
SLOTS = 64

#: Dimensions of rows at most, as many as an array of NumPy's has.
DIMS = 64

#: Numbers of the table's first line.
_POSTED, _FIRST, _CLOSED = range(3)

#: Numbers of a copy; then how often rows repeat, and how far apart they are there and here.
_TARGET, _SOURCE, _WIDTH, _NDIM, _STREAMED, _NBYTES, _SHARE, _NEXT, _LEFT, _ROWS = range(10)

#: Of the addresses: a mutex, and the conditions that there is something to copy, and that a copy is
#: done. And bytes for each, which are fewer everywhere.
_MUTEX, _SOME, _DONE = range(3)
_LOCK_NBYTES = 128

_ONE, _NONE, _SLOTS = np.uint64(1), np.uint64(0), np.uint64(SLOTS)


def _external(name: str, count: int) -> Any:
    """A function of the operating system's that takes addresses and returns an error or 0."""
    return types.ExternalFunction(name, types.int32(*(types.uintp,) * count))


_mutex_init, _cond_init = _external("pthread_mutex_init", 2), _external("pthread_cond_init", 2)
_lock, _unlock = _external("pthread_mutex_lock", 1), _external("pthread_mutex_unlock", 1)
_sleep, _wake = _external("pthread_cond_wait", 2), _external("pthread_cond_broadcast", 1)


@compiled
def _init(at):  # type: ignore[no-untyped-def]
    _mutex_init(at[_MUTEX], _NONE)
    _cond_init(at[_SOME], _NONE)
    _cond_init(at[_DONE], _NONE)


@compiled
def _post(at, table, copy):  # type: ignore[no-untyped-def]
    """Put a copy behind the others, as soon as there is room, and return its number."""
    _lock(at[_MUTEX])
    # Others may post meanwhile, so that it is another slot after each sleep.
    while table[_ONE + table[0, _POSTED] % _SLOTS, _LEFT] > _NONE:
        _sleep(at[_DONE], at[_MUTEX])
    number = table[0, _POSTED]
    table[_ONE + number % _SLOTS, : len(copy)] = copy
    table[0, _POSTED] = number + _ONE
    _wake(at[_SOME])
    _unlock(at[_MUTEX])
    return number


@compiled
def _serve(at, table):  # type: ignore[no-untyped-def]
    """Copy shares until the queue is closed and nothing is left."""
    _lock(at[_MUTEX])
    while True:
        first = table[0, _FIRST]
        if first == table[0, _POSTED]:
            if table[0, _CLOSED]:
                break
            _sleep(at[_SOME], at[_MUTEX])
            continue
        copy = table[_ONE + first % _SLOTS]
        low, nbytes = copy[_NEXT], copy[_NBYTES]
        high = min(nbytes, low + copy[_SHARE])
        copy[_NEXT] = high
        if high == nbytes:
            table[0, _FIRST] = first + _ONE
        _unlock(at[_MUTEX])
        n = copy[_NDIM]
        rows = copy[_ROWS : _ROWS + 3 * n]
        copy_rows(
            copy[_TARGET],
            copy[_SOURCE],
            copy[_WIDTH],
            rows[:n],
            rows[n : 2 * n],
            rows[2 * n :],
            low,
            high,
            copy[_STREAMED] > _NONE,
        )
        _lock(at[_MUTEX])
        copy[_LEFT] -= high - low
        if copy[_LEFT] == _NONE:
            _wake(at[_DONE])
    _unlock(at[_MUTEX])


@compiled
def _wait(at, table, number):  # type: ignore[no-untyped-def]
    """Sleep until a copy is done: nothing of it is left, or another one has its slot."""
    number = np.uint64(number)
    slot = _ONE + number % _SLOTS
    _lock(at[_MUTEX])
    while table[0, _POSTED] - number <= _SLOTS and table[slot, _LEFT] > _NONE:
        _sleep(at[_DONE], at[_MUTEX])
    _unlock(at[_MUTEX])


@compiled
def _close(at, table):  # type: ignore[no-untyped-def]
    _lock(at[_MUTEX])
    table[0, _CLOSED] = _ONE
    _wake(at[_SOME])
    _unlock(at[_MUTEX])


class CopyQueue:
    """Copies that wait for threads, first come, first served.

    Memory that is copied, to and from, has to stay until that is done.

    Examples
    --------
    >>> import threading
    >>> queue, block, out = CopyQueue(), np.arange(8192.0), np.zeros(8192)
    >>> thread = threading.Thread(target=queue.serve)
    >>> thread.start()
    >>> number = queue.post(Rows(out, block, block.nbytes, []), 4096)
    >>> queue.wait(number)
    >>> bool((out == block).all())
    True
    >>> queue.close()
    >>> thread.join()
    """

    def __init__(self) -> None:
        self._table = np.zeros((1 + SLOTS, _ROWS + 3 * DIMS), np.uint64)
        self._locks = np.zeros(4 * _LOCK_NBYTES, np.uint8)
        first = -(-self._locks.ctypes.data // _LOCK_NBYTES) * _LOCK_NBYTES
        self._at = np.array([first + i * _LOCK_NBYTES for i in range(3)], np.uint64)
        _init(self._at)
        self.wait(0)  # loads what waits: it may be asked for when nothing can be loaded any more

    def post(self, rows: Rows, share: int) -> int:
        """Put a copy of at least a byte behind the others and return its number.

        `share` is how many bytes of it a thread copies at a time. Waits while `SLOTS` copies are
        under way.
        """
        target, source, width, counts, to, from_ = rows.numbers
        nbytes, share = rows.nbytes, max(1, share)
        head = (target, source, width, len(counts), rows.streamed, nbytes, share, 0, nbytes)
        copy = np.array((*head, *counts, *to, *from_), np.uint64)
        return int(_post(self._at, self._table, copy))

    def serve(self) -> None:
        """Copy what is posted, with other threads that do so, until the queue is closed."""
        _serve(self._at, self._table)

    def wait(self, number: int) -> None:
        """Wait until a copy is done; threads have to serve the queue."""
        _wait(self._at, self._table, number)

    def close(self) -> None:
        """Let threads that serve it go when all that was posted is done."""
        _close(self._at, self._table)
