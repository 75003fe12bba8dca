"""Host threads that copy arrays, a share each, with few words to the interpreter.

What a share costs apart from its bytes is paid with the interpreter's lock held, by all threads in
turn: a pool of `concurrent.futures` takes some 70 us for each, in which a bus moves 4 MiB. Here a
share is a number in a queue, and a whole copy has one future.

Imports `kernels` and this room.
"""

import math
import threading
from concurrent.futures import Future
from queue import SimpleQueue

from dask_bigfft.devices.protocol import Array
from dask_bigfft.devices.transfer import runs
from dask_bigfft.kernels.streaming import Rows

#: Bytes below which a share of the copying is not worth a thread.
SHARE_NBYTES = 1024**2

#: Bytes of a row from which on it is stored around the caches.
STREAMED_NBYTES = 2048

#: Shares are multiples of it: a thread begins where a line of the caches does.
_UNIT = 4096


def rows_of(target: Array, source: Array, streamed: bool = True) -> Rows:
    """Return a copy of one array to another of the same shape, as rows.

    Stores go around the caches where rows are wide, if that is wanted: what was copied belongs to
    a device, or came from one.
    """
    width, outer = runs(source, target.strides)
    rows = [(run.count, run.place, run.stride) for run in outer]
    return Rows(target, source, width, rows, streamed and width >= STREAMED_NBYTES)


class Copying:
    """A copy that threads are at: the future of the whole, and how many shares are left."""

    def __init__(self, rows: Rows, shares: int) -> None:
        self.rows, self.done, self._left = rows, Future[None](), shares
        self._lock = threading.Lock()
        self._error: BaseException | None = None

    def share(self, low: int, high: int) -> None:
        """Do a share of it; the last one ends it."""
        try:
            self.rows.copy(low, high)
        except BaseException as error:  # reaches who waits
            self._error = error
        with self._lock:
            self._left -= 1
            last = self._left == 0
        if last and self._error is not None:
            self.done.set_exception(self._error)
        elif last:
            self.done.set_result(None)


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
        self._shares: SimpleQueue[tuple[Copying, int, int] | None] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"bigfft-copier-{i}", daemon=True)
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def copy(self, target: Array, source: Array, streamed: bool = True) -> "Future[None]":
        """Copy an array to another of its shape, and return what is done when all of it is."""
        rows = rows_of(target, source, streamed)
        nbytes = rows.nbytes
        half = max(1, len(self._threads) // 2)  # the others go the other way
        share = max(SHARE_NBYTES, math.ceil(nbytes / half))
        share = -(-share // _UNIT) * _UNIT
        lows = range(0, nbytes, share)
        copying = Copying(rows, max(1, len(lows)))
        for low in lows or (0,):
            self._shares.put((copying, low, min(nbytes, low + share)))
        return copying.done

    def _work(self) -> None:
        while (found := self._shares.get()) is not None:
            copying, low, high = found
            copying.share(low, high)
            del copying, found  # arrays may die while it waits

    def close(self) -> None:
        """End the threads when all that was asked for is done."""
        for _ in self._threads:
            self._shares.put(None)
        for thread in self._threads:
            thread.join()
