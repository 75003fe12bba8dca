"""Threads that are idle because a round has fewer blocks than there are: lent to the FFT library.

Where every thread has a block of its own, the library keeps to one in each. A round of one block
would leave all others idle, so there the library uses its own.

Imports `kernels` and `threads`.
"""

import threading

from dask_bigfft.kernels.libraries import FFTLibrary
from dask_bigfft.threads import task_threads

__all__ = ["with_spare_threads"]

_lock = threading.Lock()
_running = 0


class with_spare_threads:
    """Give out the library as a round on one of some blocks may use it, while that is done.

    Parameters
    ----------
    library : FFTLibrary
        Makes the FFTs.
    blocks : int
        Of the round. Where blocks of other rounds are worked on meanwhile, these count as well.
    """

    __slots__ = ("blocks", "library")

    def __init__(self, library: FFTLibrary, blocks: int) -> None:
        self.library, self.blocks = library, blocks

    def __enter__(self) -> FFTLibrary:
        threads = task_threads()
        global _running
        with _lock:
            _running += 1
            at_work = max(self.blocks, _running)
        return self.library.using(max(1, threads // at_work))

    def __exit__(self, *_: object) -> None:
        global _running
        with _lock:
            _running -= 1
