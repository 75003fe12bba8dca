"""Host threads that copy arrays, a share each, of which the interpreter knows nothing.

Imports `kernels` and this room.
"""

import threading

from dask_bigfft.gpu.operations import Array
from dask_bigfft.gpu.transfer import runs
from dask_bigfft.kernels.copy_queue import CopyQueue
from dask_bigfft.kernels.streaming import Rows

#: Bytes that a thread copies at a time, a multiple of a page: it begins where a line of the caches
#: does.
SHARE_NBYTES = 1024**2

#: Bytes of a row from which on it is stored around the caches.
STREAMED_NBYTES = 2048


def rows_of(target: Array, source: Array, streamed: bool = True) -> Rows:
    """Return a copy of one array to another of the same shape, as rows.

    Stores go around the caches where rows are wide, if that is wanted: what was copied belongs to
    a device, or came from one.
    """
    width, outer = runs(source, target.strides)
    rows = [(run.count, run.place, run.stride) for run in outer]
    return Rows(target, source, width, rows, streamed and width >= STREAMED_NBYTES)


class Copying:
    """A copy that threads are at: it keeps the arrays until it is done, also if nobody waits."""

    def __init__(self, queue: CopyQueue, rows: Rows, share: int) -> None:
        self._queue, self._rows = queue, rows
        self._number: int | None = None
        if rows.nbytes:
            self._number = queue.post(rows, share)

    def result(self) -> None:
        """Wait until all of it is done."""
        if self._number is not None:
            self._queue.wait(self._number)
            self._number = None
            del self._rows

    __del__ = result


class Copiers:
    """Threads that copy.

    Parameters
    ----------
    threads : int
        How many.

    Examples
    --------
    >>> import numpy as np
    >>> copiers, block = Copiers(2), np.arange(12.0).reshape(3, 4)
    >>> part = np.empty((3, 2))
    >>> copiers.copy(part, block[:, 1:3]).result()
    >>> part[2].tolist()
    [9.0, 10.0]
    >>> copiers.close()
    """

    def __init__(self, threads: int) -> None:
        self._queue = CopyQueue()
        self._threads = [
            threading.Thread(target=self._queue.serve, name=f"bigfft-copier-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def copy(self, target: Array, source: Array, streamed: bool = True) -> Copying:
        """Begin to copy an array to another of its shape; return what is done when all of it is."""
        return Copying(self._queue, rows_of(target, source, streamed), SHARE_NBYTES)

    def close(self) -> None:
        """End the threads when all that was asked for is done."""
        self._queue.close()
        for thread in self._threads:
            thread.join()
