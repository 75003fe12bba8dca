"""Page-aligned anonymous memory, in whole buffers.

The one file that speaks to the operating system about pages. It imports NumPy and the
standard library. Who holds a buffer, and for how long, is the arena's business (`arena`).
"""

import contextlib
import ctypes
import mmap
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

HUGE_PAGE_NBYTES = 2 * 1024**2
"""Size of a transparent huge page on the machines that have them."""

# Sizes of buffers between one power of two and the next, and the least step between two of them.
_SIZES_PER_OCTAVE = 8
_LEAST_STEP_NBYTES = 64 * 1024
# One unit of a prefaulting thread's work: large against the cost of handing it out, small
# enough for the threads to finish together.
_TOUCH_NBYTES = 16 * HUGE_PAGE_NBYTES


# As glibc's mallopt knows it, and from how many bytes on blocks shall be mappings of their own.
# What is smaller may be kept for each thread, and zarr decodes in more than there are cores.
_MMAP_THRESHOLD, _LARGE_NBYTES = -3, 1 << 20


@cache
def return_freed() -> bool:
    """Let the C library give large blocks back to the system as soon as they are freed.

    Whoever decodes a file's chunks takes memory of that library for each. glibc keeps what was
    freed, in blocks of up to 32 MiB and for each thread that had some, unless it is told from which
    size on it shall not. This holds for the whole process, and is said once.

    Returns
    -------
    bool
        Whether the C library takes it.
    """
    try:
        tell = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another library's allocator
        return False
    return bool(tell(_MMAP_THRESHOLD, _LARGE_NBYTES))


class Buffer:
    """One run of anonymous pages, unmapped when the last reference to it dies.

    Nothing ever closes the mapping explicitly: whoever still looks at the pages holds a
    reference, so a buffer that was dropped too early costs memory, never a wrong read.

    Attributes
    ----------
    memory
        The pages as bytes.
    address
        Where the pages begin; a multiple of the page size.
    nbytes
        How many bytes there are.
    serial
        When the buffer last became idle, counted by its arena.
    release
        Called before the pages are unmapped, such as to unpin them.
    untouched
        Ranges of bytes, as slices, that are to be faulted in before somebody writes there.
    """

    __slots__ = ("address", "memory", "nbytes", "release", "serial", "untouched")

    def __init__(self, nbytes: int) -> None:
        self.memory: npt.NDArray[np.uint8] = np.frombuffer(_map(nbytes), np.uint8)
        self.address: int = self.memory.__array_interface__["data"][0]
        self.nbytes = nbytes
        self.serial = 0
        self.release: Callable[[], object] | None = None
        self.untouched: deque[slice] = deque()

    def __del__(self) -> None:
        release = getattr(self, "release", None)  # none where the mapping failed
        if release is not None:
            release()


def round_up(nbytes: int) -> int:
    """Return the size of the buffer that a request for `nbytes` bytes is given.

    Eight sizes from one power of two to the next, so that nearly equal blocks take each other's
    memory: real and complex blocks of one transform, padded ones, half spectra.

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
    """Return once every page of `buffers` is backed by memory of its own.

    The contents must not matter to anybody yet (the caller sees to that): where the system cannot
    be told to do it, one byte a page is overwritten. Either way the interpreter's lock is given up,
    so `threads` of them fault pages in at the same time.
    """
    ranges = [buffer.memory[part] for buffer in buffers for part in ranges_of(buffer)]
    with ThreadPoolExecutor(threads, thread_name_prefix="bigfft-prefault") as pool:
        list(pool.map(_touch_range, ranges))


def ranges_of(buffer: Buffer, nbytes: int | None = None) -> Iterator[slice]:
    """Yield the parts of a buffer that one thread faults in at a time, of whole huge pages.

    Those that its first `nbytes` bytes lie in, by default all: buffers are larger than the blocks
    that they are lent for (`round_up`), and pages that nobody uses are not to be asked for.
    """
    low, last = 0, buffer.nbytes
    if nbytes is not None:
        last = min(last, nbytes + -(buffer.address + nbytes) % HUGE_PAGE_NBYTES)
    while low < last:
        end = low + _TOUCH_NBYTES - (buffer.address + low) % HUGE_PAGE_NBYTES
        yield slice(low, min(end, last))
        low = end


def _touch_range(memory: npt.NDArray[np.uint8]) -> None:
    if not populate(memory):
        # Small pages even where huge ones were asked for: the system may not have had any.
        memory[:: mmap.PAGESIZE] = 0


def populate(memory: npt.NDArray[np.uint8]) -> bool:
    """Have the system back pages with memory of their own; return whether it did.

    What lies there stays, so others may write there meanwhile. Not `mmap.madvise`, which keeps the
    interpreter's lock for as long as it lasts.

    Parameters
    ----------
    memory
        Whole pages of a buffer, which the caller keeps alive.
    """
    if _madvise is None:
        return False
    address: int = memory.__array_interface__["data"][0]
    return bool(_madvise(address, memory.nbytes, _POPULATE_WRITE) == 0)


#: ``MADV_POPULATE_WRITE`` of Linux 5.14, which older ones refuse.
_POPULATE_WRITE = 23


def _system_call() -> Any:
    """``madvise`` of the C library, called without the interpreter's lock; None where it lacks."""
    if sys.platform != "linux":
        return None
    try:
        found = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    found.argtypes, found.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return found


_madvise = _system_call()


def _map(nbytes: int) -> mmap.mmap:
    if sys.platform == "win32":
        return mmap.mmap(-1, nbytes)
    # Private, unlike the default: after a fork, parent and child must not see each other's blocks.
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if sys.platform == "linux" and nbytes >= HUGE_PAGE_NBYTES:
        # A kernel built without huge pages refuses; small ones do, only slower.
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages
