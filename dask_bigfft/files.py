"""Large files around the page cache, where system, file and memory permit that.

What is read once and written once gains nothing from being kept in the page cache, and loses much:
every byte is copied once more, and inside a memory limit each fresh page has to wait until an old
one has been thrown away. So large pieces go straight between disk and memory (``O_DIRECT``); what
is not aligned, the rest behind the last whole unit, and everything on file systems that refuse,
goes the ordinary way.

A call around the page cache waits for the disk, which could do several at a time. So a task hands
what it reads and writes to a few threads of the process (`Underway`), and does other work, or waits
for all of it.

Imports NumPy and `config`; errors are the system's.
"""

import contextlib
import contextvars
import errno
import json
import logging
import os
import platform
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from dask_bigfft import config

T = TypeVar("T")
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


def sync_path(path: str | Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def explained(path: Path, error: OSError, missing: int, what: str) -> str:
    """Return why a file could not be written, and what a full disk lacks for it.

    Parameters
    ----------
    path : Path
        The file.
    error : OSError
        Why.
    missing : int
        Bytes that were still to be written.
    what : str
        What the file is.
    """
    text = error.strerror or str(error)
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return text
    folder = next((one for one in path.parents if one.is_dir()), path.parent)
    with contextlib.suppress(OSError):
        disk = os.statvfs(folder)
        if disk.f_files and not disk.f_favail:
            return f"{text}: no inode is left for {what} on the disk of {folder}"
        missing = max(missing - disk.f_bavail * disk.f_frsize, 0) or missing
    return f"{text}: {missing} bytes are missing for {what}"


# --- several at a time ----------------------------------------------------------------------

#: Says of a thread that it is one of those that read and write; they never wait for each other.
_inside = threading.local()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Return the threads of this process that read and write for its tasks."""
    return ThreadPoolExecutor(threads, "bigfft-files", partial(setattr, _inside, "yes", True))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)


class Underway(Generic[T]):
    """Reads and writes of one task that are under way; at the end of the block none is any more.

    Small ones, and those of a process without such threads (`bigfft.scratch.threads`), are done
    where they are started. They must not start others that they wait for.

    Examples
    --------
    >>> with Underway() as calls:
    ...     for text in ("one", "other"):
    ...         calls.start(LEAST, partial(len, text))
    ...     calls.results()
    [3, 5]
    """

    def __init__(self) -> None:
        self._calls: list[Future[T]] = []

    def start(self, nbytes: int, call: Callable[[], T]) -> None:
        """Start a call that moves so many bytes."""
        threads = config.get("bigfft.scratch.threads")
        if nbytes < LEAST or threads < 2 or hasattr(_inside, "yes"):
            done = Future[T]()
            done.set_result(call())
        else:
            run = contextvars.copy_context().run  # events name the task's plan and round
            done = _pool(threads).submit(run, call)
        self._calls.append(done)

    def results(self) -> list[T]:
        """Wait for all that has been started, and return what the calls have returned, in order.

        The first error is raised; the end of the block waits for the others.
        """
        wait(self._calls, return_when=FIRST_EXCEPTION)
        found = [call.result() for call in self._calls]
        self._calls = []  # only now: whoever is interrupted leaves them to the end of the block
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for call in self._calls:
            call.cancel()
        wait(self._calls)


# --- files ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class File:
    """An open file.

    Parameters
    ----------
    handle : int
        Of the file, opened the ordinary way.
    direct : int or None
        Of the same file, opened around the page cache.
    """

    handle: int
    direct: int | None

    def read(self, out: Array, begin: int) -> int:
        """Fill an array of bytes from a place in the file on; return how many were there."""
        return self._move_all(os.preadv, out, begin)

    def write(self, values: Array, begin: int) -> int:
        """Write an array of bytes to a place in the file; return how many."""
        return self._move_all(os.pwritev, values, begin)

    def _move_all(self, call: Any, values: Array, begin: int) -> int:
        """Move an array, several pieces of it at a time, around the page cache if that can be."""
        around = self.direct is not None and len(values) >= LEAST and values.flags.c_contiguous
        around = around and not (begin % UNIT or values.ctypes.data % UNIT)
        if len(values) <= PIECE:  # the common case: no pool is asked
            return self._move(call, values, begin, around)
        with Underway[int]() as calls:
            for low in range(0, len(values), PIECE):
                piece = values[low : low + PIECE]
                calls.start(len(values), partial(self._move, call, piece, begin + low, around))
            return sum(calls.results())

    def _move(self, call: Any, values: Array, begin: int, around: bool) -> int:
        """Move a piece, as far as it can be around the page cache."""
        done, size, data = 0, len(values), values.data
        straight = size // UNIT * UNIT if around else 0
        while done < size:
            to = self.direct if done < straight else self.handle
            end = straight if done < straight else size
            try:
                found = call(to, [data[done:end]], begin + done)
            except OSError as error:
                if done < straight and error.errno == errno.EINVAL:  # other units than ours
                    straight = done
                    continue
                raise
            if not found:
                break
            done += found
            if found % UNIT:  # at the end of the file
                straight = 0
        return done


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


def allocate(handle: int, nbytes: int) -> None:
    """Give a file a size, and room for it on the disk where the system can reserve that."""
    if nbytes and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, nbytes)
    os.ftruncate(handle, nbytes)


# --- files of JSON --------------------------------------------------------------------------

log = logging.getLogger(__name__)

#: What is raised where a file of JSON is not what was written.
_DAMAGED = OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError


@cache
def _cpu() -> str:
    """Model of the processor, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor())


def machine() -> list[Any]:
    """Return what tells this machine from others: architecture, processor, number of cores."""
    return [platform.machine(), _cpu(), os.cpu_count()]


def read(path: Path, schema: int, checked: Callable[[Any], T]) -> T | None:
    """Return what a file holds, or None; a damaged one is reported and ignored.

    Parameters
    ----------
    path : Path
        The file.
    schema : int
        Version of the file that is understood; others are ignored.
    checked : callable
        Returns what the JSON stands for, or raises `ValueError`, `TypeError`, `KeyError` or
        `AttributeError`.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return checked(found) if found["schema"] == schema else None
    except FileNotFoundError:
        return None
    except (*_DAMAGED, RecursionError) as error:
        log.warning("%s is damaged and ignored: %r", path, error)
        return None


def write(path: Path, content: Any) -> bool:
    """Replace a file at once; return whether it could be written."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(content, indent=1), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        log.info("%s cannot be written: %s", path, error)
        return False
    return True
