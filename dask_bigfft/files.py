"""Large files around the page cache, where system, file and memory permit that.

What is read once and written once gains nothing from being kept in the page cache, and loses much:
every byte is copied once more, and inside a memory limit each fresh page has to wait until an old
one has been thrown away. So large pieces go straight between disk and memory (``O_DIRECT``); what
is not aligned, the rest behind the last whole unit, and everything on file systems that refuse,
goes the ordinary way.

Imports NumPy and `config`; errors are the system's.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft import config

__all__ = ["LEAST", "UNIT", "File", "opened", "places", "rounded_up"]

Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]

#: Places in files, sizes and addresses have to be multiples of this to go around the page cache.
UNIT = 4096

#: Bytes from which on going around the page cache is worth it.
LEAST = 256 << 10

#: Bytes that one call of the system moves.
PIECE = 8 << 20

_DIRECT: int = getattr(os, "O_DIRECT", 0)


def rounded_up(nbytes: int) -> int:
    """Return a number of bytes rounded up to whole units.

    >>> rounded_up(1), rounded_up(8192)
    (4096, 8192)
    """
    return -(-nbytes // UNIT) * UNIT


def places(nbytes: Ints) -> Ints:
    """Return where pieces of some sizes begin in a file, and where the file ends, in bytes.

    Large ones begin at whole units.

    >>> places(np.array([10, 0, 20])).tolist()
    [0, 10, 10, 30]
    >>> places(np.array([1_000_000, 1_000_000])).tolist()
    [0, 1003520, 2007040]
    """
    ends = np.zeros(len(nbytes) + 1, np.int64)
    large = int(nbytes.sum()) >= LEAST * max(1, int(np.count_nonzero(nbytes)))
    np.cumsum(-(-nbytes // UNIT) * UNIT if large else nbytes, out=ends[1:])
    return ends


class File:
    """An open file.

    Parameters
    ----------
    handle : int
        Of the file, opened the ordinary way.
    direct : int or None
        Of the same file, opened around the page cache.
    """

    def __init__(self, handle: int, direct: int | None) -> None:
        self.handle, self.direct = handle, direct

    def read(self, out: Array, begin: int) -> int:
        """Fill an array of bytes from a place in the file on; return how many were there."""
        return self._move(os.preadv, out, begin)

    def write(self, values: Array, begin: int) -> int:
        """Write an array of bytes to a place in the file; return how many."""
        return self._move(os.pwritev, values, begin)

    def _move(self, call: Any, values: Array, begin: int) -> int:
        done, size, data = 0, len(values), values.data
        straight = self._straight(values, begin)
        while done < size:
            end = min(size, done + PIECE)
            around = self.direct is not None and done < straight
            try:
                if around:
                    found = call(self.direct, [data[done : min(end, straight)]], begin + done)
                else:
                    found = call(self.handle, [data[done:end]], begin + done)
            except OSError as error:
                if around and error.errno == errno.EINVAL:  # other units than ours
                    straight = done
                    continue
                raise
            if not found:
                break
            done += found
            if around and found % UNIT:  # at the end of the file
                straight = done
        return done

    def _straight(self, values: Array, begin: int) -> int:
        """How many bytes can go around the page cache."""
        if self.direct is None or len(values) < LEAST or not values.flags.c_contiguous:
            return 0
        if begin % UNIT or values.ctypes.data % UNIT:
            return 0
        return len(values) // UNIT * UNIT


@contextlib.contextmanager
def opened(path: Path, flags: int, direct: bool = True) -> Iterator[File]:
    """Give an open file.

    Parameters
    ----------
    path : Path
        Where.
    flags : int
        As `os.open` takes them; a file that is made is its owner's alone.
    direct : bool
        Whether large pieces may go around the page cache, if `bigfft.scratch.direct` says so.
    """
    handle = os.open(path, flags, 0o600)
    around = None
    try:
        if direct and _DIRECT and config.get("bigfft.scratch.direct"):
            with contextlib.suppress(OSError):
                around = os.open(path, (flags & ~os.O_CREAT) | _DIRECT)
        yield File(handle, around)
    finally:
        os.close(handle)
        if around is not None:
            os.close(around)
