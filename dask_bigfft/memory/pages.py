"""Page-aligned anonymous memory, in buffers and parts of them.

`system` has the operating system's calls about pages. `arena` decides on the lifetime of buffers.
"""

import mmap
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from dask_bigfft.system import HUGE_PAGE_NBYTES, map_pages, populate_pages, release_pages

# Sizes of buffers between one power of two and the next.
_SIZES_PER_OCTAVE = 8

# Smallest difference between two sizes of buffers.
_LEAST_STEP_NBYTES = 64 * 1024

# One unit of a prefaulting thread's work: large compared with the cost of its dispatch, and small
# enough for balanced threads.
_TOUCH_NBYTES = 16 * HUGE_PAGE_NBYTES


class Buffer:
    """One run of anonymous pages, unmapped when the last reference to it dies.

    The mapping is never closed explicitly. Every user of the pages holds a reference, so pages
    cannot vanish during a read.

    Attributes
    ----------
    memory
        The pages as bytes.
    address
        Address of the first page; a multiple of the page size.
    nbytes
        Number of bytes.
    serial
        Order in which the buffer last became idle, counted by its arena.
    release
        Called before the pages are unmapped, for example to unpin them.
    untouched
        Ranges of bytes, as slices, to prefault before the first write.
    """

    __slots__ = ("address", "memory", "nbytes", "release", "serial", "untouched")

    def __init__(self, nbytes: int) -> None:
        self.release: Callable[[], object] | None = None  # first: the mapping may fail
        self.memory: npt.NDArray[np.uint8] = np.frombuffer(map_pages(nbytes), np.uint8)
        self.address: int = self.memory.__array_interface__["data"][0]
        self.nbytes = nbytes
        self.serial = 0
        self.untouched: deque[slice] = deque()

    def __del__(self) -> None:
        if self.release is not None:
            self.release()


class Part(Buffer):
    """Pages of a divided buffer, which go back to the system when the part dies.

    Attributes
    ----------
    whole
        The buffer; None once its parts are joined again.
    """

    __slots__ = ("whole",)

    def __init__(self, whole: Buffer, low: int, nbytes: int) -> None:
        self.memory = whole.memory[low : low + nbytes]
        self.address = whole.address + low
        self.nbytes = self.memory.nbytes
        self.serial = whole.serial
        self.release = None
        self.untouched = deque()
        self.whole: Buffer | None = whole

    def __del__(self) -> None:
        super().__del__()  # unpins the part
        if self.whole is not None and release_pages is not None:  # None while Python ends
            release_pages(self.address, self.nbytes)


def round_up(nbytes: int) -> int:
    """Return the size of the buffer for a request of `nbytes` bytes.

    There are eight sizes per power of two, so that blocks of nearly equal size reuse each other's
    memory: padded blocks, half spectra, real and complex blocks of one transform.

    Notes
    -----
    ``nbytes <= round_up(nbytes) <= 1.125 nbytes`` for every request of at least 512 KiB.

    Examples
    --------
    >>> [round_up(n * 2**20 + 16) / 2**20 for n in (7, 8, 9)]
    [7.5, 9.0, 10.0]
    """
    step = _LEAST_STEP_NBYTES
    while 2 * step * _SIZES_PER_OCTAVE < nbytes:
        step *= 2
    return -(-nbytes // step) * step


def touch(buffers: Iterable[Buffer], threads: int) -> None:
    """Prefault every page of `buffers` in several threads, without the GIL.

    The contents must not be in use: on systems without support one byte of each page is
    overwritten.
    """
    ranges: list[npt.NDArray[np.uint8]] = []
    for buffer in buffers:
        ranges.extend(buffer.memory[part] for part in ranges_of(buffer))
    with ThreadPoolExecutor(threads, thread_name_prefix="bigfft-prefault") as pool:
        list(pool.map(_touch_range, ranges))


def ranges_of(buffer: Buffer, nbytes: int | None = None) -> Iterator[slice]:
    """Yield parts of a buffer, of whole huge pages, for one thread each to prefault.

    They cover the first `nbytes` bytes, by default all. A buffer may be larger than its block
    (`round_up`), and unused pages should not be prefaulted.
    """
    last = buffer.nbytes
    if nbytes is not None:
        # up to the end of the last huge page
        padding = -(buffer.address + nbytes) % HUGE_PAGE_NBYTES
        last = min(last, nbytes + padding)
    low = 0
    while low < last:
        misalignment = (buffer.address + low) % HUGE_PAGE_NBYTES
        high = low + _TOUCH_NBYTES - misalignment
        yield slice(low, min(high, last))
        low = high


def _touch_range(memory: npt.NDArray[np.uint8]) -> None:
    """Prefault pages whose contents are not in use, by writing to them if need be."""
    if not populate(memory):
        # Small pages even in memory for huge ones: the system may have had none.
        memory[:: mmap.PAGESIZE] = 0


def populate(memory: npt.NDArray[np.uint8]) -> bool:
    """Prefault pages by ``MADV_POPULATE_WRITE``; return True if the system did it.

    The contents stay, so other threads may write at the same time. `mmap.madvise` would hold the
    GIL.

    Parameters
    ----------
    memory
        Whole pages of a buffer that the caller keeps alive.
    """
    address: int = memory.__array_interface__["data"][0]
    return populate_pages(address, memory.nbytes)
