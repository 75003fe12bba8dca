"""Host threads that copy to and from pinned buffers: compiled code, and a queue of copies.

The loops are in `copy_thread_loops`, which only the compiler imports.

Threads take shares of copies from a table, under a mutex of the operating system. Handing out
shares in Python took 40 us of the GIL each, in which a bus moves 2 MiB. Wide rows are stored past
the caches (63 GB/s against 40 with NumPy, 16 threads of the machine in `ci/results/gpu.md`).
"""

import threading
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.gpu.operations import runs
from dask_bigfft.kernels.compiled import compiled

Array = npt.NDArray[Any]

#: Bytes of a share, which a thread copies at a time.
SHARE_NBYTES = 1024**2

#: Smallest row in bytes that is stored past the caches.
STREAMED_NBYTES = 2048

#: Bytes of a cache line.
LINE = 64

#: Largest number of copies in flight; posting another one waits.
SLOTS = 64

#: Largest number of dimensions of rows, as in NumPy.
DIMS = 64

#: Columns of the table's first row.
POSTED, FIRST, CLOSED = range(3)

#: Columns of a copy, followed by the counts and both strides of the rows.
TARGET, SOURCE, WIDTH, NDIM, STREAMED, NBYTES, SHARE, NEXT, LEFT, ROWS = range(10)

#: Addresses of the mutex and the conditions "there is something to copy" and "a copy is done", and
#: bytes for each, more than any platform needs.
MUTEX, SOME, DONE = range(3)
_LOCK_NBYTES = 128

_init = compiled("dask_bigfft.gpu.copy_thread_loops:init")
_post = compiled("dask_bigfft.gpu.copy_thread_loops:post")
_serve = compiled("dask_bigfft.gpu.copy_thread_loops:serve")
_wait = compiled("dask_bigfft.gpu.copy_thread_loops:wait")
_close = compiled("dask_bigfft.gpu.copy_thread_loops:close")


def loops_are_loaded() -> bool:
    """Return whether all loops of a `CopyPool` are loaded, without waiting for the compiler.

    Loops that no file has yet are compiled by another process, one after the other.
    """
    addresses = np.zeros(3, np.uint64)
    table = _new_table()
    number = np.zeros(1, np.uint64)
    calls: list[tuple[compiled, tuple[Any, ...]]] = [
        (_init, (addresses,)),
        (_post, (addresses, table, table[1], number)),
        (_serve, (addresses, table)),
        (_wait, (addresses, table, 0)),
        (_close, (addresses, table)),
    ]
    return all(loop.is_loaded(arguments) for loop, arguments in calls)


def _new_table() -> Array:
    """Return an empty queue."""
    return np.zeros((1 + SLOTS, ROWS + 3 * DIMS), np.uint64)


class CopyPool:
    """Thread pool that copies arrays.

    Parameters
    ----------
    threads : int
        Number of threads.

    Examples
    --------
    >>> pool, block = CopyPool(2), np.arange(12.0).reshape(3, 4)
    >>> part = np.empty((3, 2))
    >>> pool.copy(part, block[:, 1:3]).result()
    >>> part[2].tolist()
    [9.0, 10.0]
    >>> pool.close()
    """

    def __init__(self, threads: int) -> None:
        self._table = _new_table()
        self._locks = np.zeros(4 * _LOCK_NBYTES, np.uint8)
        first = -(-self._locks.ctypes.data // _LOCK_NBYTES) * _LOCK_NBYTES
        self._at = np.array([first + i * _LOCK_NBYTES for i in range(3)], np.uint64)
        _init(self._at)
        self.wait(0)  # loads the wait now, because later calls may come at interpreter exit
        self._threads = [
            threading.Thread(
                target=_serve, args=(self._at, self._table), name=f"bigfft-copy-{i}", daemon=True
            )
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def copy(self, target: Array, source: Array) -> "Copying":
        """Start to copy an array to another of its shape; waits while `SLOTS` copies are in flight.

        Wide rows are stored past the caches, because the CPU does not read them soon.
        """
        nbytes = source.nbytes
        if not nbytes:
            return Copying(self, None, target, source)
        width, rows = runs(source.shape, source.strides, source.itemsize, target.strides)
        # In the order of the columns from `TARGET` on.
        head = (
            target.__array_interface__["data"][0],
            source.__array_interface__["data"][0],
            width,
            len(rows),
            width >= STREAMED_NBYTES,
            nbytes,
            SHARE_NBYTES,
            0,
            nbytes,
        )
        counts = [count for count, _, _ in rows]
        source_steps = [step for _, step, _ in rows]
        target_steps = [step for _, _, step in rows]
        copy = np.array((*head, *counts, *target_steps, *source_steps), np.uint64)
        number = np.empty(1, np.uint64)
        _post(self._at, self._table, copy, number)
        return Copying(self, int(number[0]), target, source)

    def wait(self, number: int) -> None:
        """Wait until a copy is done."""
        _wait(self._at, self._table, number)

    def close(self) -> None:
        """End the threads after all copies are done."""
        _close(self._at, self._table)
        for thread in self._threads:
            thread.join()


class Copying:
    """Copy in flight, which keeps its arrays alive until the end."""

    def __init__(self, pool: CopyPool, number: int | None, *arrays: Array) -> None:
        self._pool = pool
        self._number = number
        self._arrays = arrays

    def result(self) -> None:
        """Wait until the copy is done."""
        if self._number is not None:
            self._pool.wait(self._number)
            self._number = None
            self._arrays = ()

    __del__ = result
