"""Direct input and output of large files, and small JSON files.

Data that are read once and written once gain nothing from the page cache. It costs one more copy of
every byte, and under a memory limit each fresh page waits for the eviction of an old one. So large
parts are transferred directly between disk and memory (``O_DIRECT``). Unaligned data, the rest
behind the last whole unit, and file systems without support use the page cache.

A direct call waits for the disk, which can serve several calls at a time. So a task passes its
reads and writes to a few threads of the process (`Underway`).
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
from functools import cache, partial
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np
import numpy.typing as npt

from dask_bigfft import config

T = TypeVar("T")
Array = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]

#: Alignment of offsets, sizes and addresses for direct transfers.
UNIT = 4096

#: Minimum bytes of a direct transfer.
LEAST = 256 << 10

#: Maximum bytes of one system call.
PIECE = 8 << 20

_DIRECT: int = getattr(os, "O_DIRECT", 0)


def rounded_up(nbytes: int) -> int:
    """Return a number of bytes rounded up to whole units.

    >>> rounded_up(1), rounded_up(8192)
    (4096, 8192)
    """
    return -(-nbytes // UNIT) * UNIT


def places(nbytes: Ints) -> Ints:
    """Return the offsets in a file of parts of some sizes, and the size of the file.

    Large parts begin at whole units.

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
    """Flush a file, or the names in a folder, to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def explained(path: Path, error: OSError, missing: int, what: str) -> str:
    """Return the reason why a file could not be written, and the missing space of a full disk.

    Parameters
    ----------
    path : Path
        The file.
    error : OSError
        The error.
    missing : int
        Bytes that remained to be written.
    what : str
        Description of the file.
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

#: Marks the threads of the pool, which never wait for each other.
_inside = threading.local()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Return the pool of this process for reads and writes."""
    return ThreadPoolExecutor(threads, "bigfft-files", partial(setattr, _inside, "yes", True))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)


class Underway(Generic[T]):
    """Concurrent reads and writes of one task; a context manager that waits for all of them.

    Small transfers run in the calling thread, as do all transfers if `bigfft.scratch.threads` is 1.
    A transfer must not wait for another one.

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
        """Start a call that transfers `nbytes` bytes."""
        threads = config.get("bigfft.scratch.threads")
        if nbytes < LEAST or threads < 2 or hasattr(_inside, "yes"):
            done: Future[T] = Future()
            done.set_result(call())
            self._calls.append(done)
            return
        run = contextvars.copy_context().run  # events name the task's plan and round
        self._calls.append(_pool(threads).submit(run, call))

    def results(self) -> list[T]:
        """Wait for all calls and return their results in order.

        The first error is raised when all calls have ended.
        """
        calls = self._calls
        wait(calls, return_when=FIRST_EXCEPTION)
        if any(call.done() and call.exception() for call in calls):
            self.__exit__()
            raise next(e for call in calls if not call.cancelled() and (e := call.exception()))
        self._calls = []  # only now: after an interrupt, `__exit__` waits for the calls
        return [call.result() for call in calls]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for call in self._calls:
            call.cancel()
        wait(self._calls)


# --- files ----------------------------------------------------------------------------------


class File:
    """An open file.

    Parameters
    ----------
    handle : int
        Descriptor of the file.
    direct : int or None
        Descriptor of the same file for direct transfers.
    """

    def __init__(self, handle: int, direct: int | None) -> None:
        self.handle, self.direct = handle, direct

    def read(self, out: Array, begin: int) -> int:
        """Fill an array of bytes from an offset on; return the number of bytes read."""
        return self._in_pieces(os.preadv, out, begin)

    def write(self, values: Array, begin: int) -> int:
        """Write an array of bytes at an offset; return the number of bytes written."""
        return self._in_pieces(os.pwritev, values, begin)

    def _in_pieces(self, call: Any, values: Array, begin: int) -> int:
        """Transfer an array, several parts of it at a time."""
        around = self._goes_around(values, begin)
        if len(values) <= PIECE:
            return self._move(call, values, begin, around)
        with Underway[int]() as calls:
            for low in range(0, len(values), PIECE):
                piece = values[low : low + PIECE]
                calls.start(len(values), partial(self._move, call, piece, begin + low, around))
            return sum(calls.results())

    def _move(self, call: Any, values: Array, begin: int, around: bool) -> int:
        """Transfer a part, directly as far as possible."""
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

    def _goes_around(self, values: Array, begin: int) -> bool:
        """Return True if an array can be transferred directly."""
        if self.direct is None or len(values) < LEAST or not values.flags.c_contiguous:
            return False
        return not (begin % UNIT or values.ctypes.data % UNIT)


@contextlib.contextmanager
def opened(path: Path, flags: int, direct: bool = True) -> Iterator[File]:
    """Context manager of an open file.

    Parameters
    ----------
    path : Path
        Path of the file.
    flags : int
        Flags of `os.open`; a new file is accessible to its owner only.
    direct : bool
        True to allow direct transfers, if `bigfft.scratch.direct` is set.
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
    """Set the size of a file, and reserve its space on the disk if the system can."""
    if nbytes and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, nbytes)
    os.ftruncate(handle, nbytes)


# --- files of JSON --------------------------------------------------------------------------

log = logging.getLogger(__name__)

#: Exceptions raised by damaged JSON files.
_DAMAGED = OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError


@cache
def _cpu() -> str:
    """Return the model of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.processor())


def machine() -> list[Any]:
    """Return architecture, processor and number of cores, which identify a type of machine."""
    return [platform.machine(), _cpu(), os.cpu_count()]


def read(path: Path, schema: int, checked: Callable[[Any], T]) -> T | None:
    """Return the contents of a JSON file, or None; a damaged file is logged and ignored.

    Parameters
    ----------
    path : Path
        The file.
    schema : int
        Supported version of the file; others are ignored.
    checked : callable
        Converts the JSON, or raises `ValueError`, `TypeError`, `KeyError` or `AttributeError`.
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
    """Replace a JSON file atomically; return False if it could not be written."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(content, indent=1), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        log.info("%s cannot be written: %s", path, error)
        return False
    return True
