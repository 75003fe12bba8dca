"""Direct I/O of large files, concurrent reads and writes, and small JSON files.

Data that is read or written once gains nothing from the page cache. The cache costs a copy of
every byte, and inside a memory limit each fresh page waits for the eviction of an old one. So large
transfers bypass it (``O_DIRECT``). Data that is not aligned, the rest after the last whole unit,
and file systems without direct I/O use ordinary calls.

A direct call waits for the disk, which can do several at a time. So a task hands its reads and
writes to a thread pool of the process (`Underway`) and does other work meanwhile. A task that ends
with a write need not wait for it (`WriteBehind`), so that the disk is busy while tasks compute.
"""

import contextlib
import contextvars
import errno
import json
import logging
import os
import platform
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Generic, Self, TypeVar

import numpy as np
from dask.utils import format_bytes

from dask_bigfft import config, system
from dask_bigfft.arrays import Array, Ints

T = TypeVar("T")

#: Beginning of a URL after `Path` has normalized it.
URL = re.compile(r"\w+:/")

#: Alignment in bytes of file offsets, sizes and addresses for direct I/O.
UNIT = 4096

#: Minimum size in bytes of a direct transfer.
LEAST = 256 << 10

#: Bytes of one system call.
PIECE = 8 << 20


def rounded_up(nbytes: int) -> int:
    """Return a number of bytes rounded up to whole units.

    >>> rounded_up(1), rounded_up(8192)
    (4096, 8192)
    """
    return -(-nbytes // UNIT) * UNIT


def places(nbytes: Ints) -> Ints:
    """Return the offsets of consecutive parts of a file, and its end, in bytes.

    Large parts begin at whole units.

    >>> places(np.array([10, 0, 20])).tolist()
    [0, 10, 10, 30]
    >>> places(np.array([1_000_000, 1_000_000])).tolist()
    [0, 1003520, 2007040]
    """
    parts = int(np.count_nonzero(nbytes))
    if int(nbytes.sum()) >= LEAST * max(1, parts):
        nbytes = -(-nbytes // UNIT) * UNIT
    ends = np.zeros(len(nbytes) + 1, np.int64)
    np.cumsum(nbytes, out=ends[1:])
    return ends


def sync_path(path: Path) -> None:
    """Sync a file, or the names in a folder, to disk."""
    if path.is_dir():
        system.sync_directory(path)
        return
    with opened(path, os.O_RDONLY, direct=False) as file:
        os.fsync(file.handle)


def explained(
    path: Path,
    error: OSError,
    missing: int,
    what: str,
) -> str:
    """Return an error text for a file that could not be written, with the missing disk space.

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
    folder = next((parent for parent in path.parents if parent.is_dir()), path.parent)
    with contextlib.suppress(OSError):
        if system.free_inodes(folder) == 0:
            return f"{text}: no inode is left for {what} on the disk of {folder}"
        free = shutil.disk_usage(folder).free
        if missing > free:
            missing -= free
    return f"{text}: {format_bytes(missing)} are missing for {what}"


def check_free_space(
    path: Path,
    nbytes: int,
    what: str,
    advice: str = "",
    kind: type[OSError] = OSError,
) -> None:
    """Raise an error of a `kind` if a path, or its folder, has too little free space on its disk.

    The error says `what` takes the space, and gives some `advice`.
    """
    total, _, free = shutil.disk_usage(path if path.is_dir() else path.parent)
    if free >= nbytes or not total:  # some file systems report zeros
        return
    text = f"{format_bytes(nbytes - free)} are missing: {what} {format_bytes(nbytes)}, "
    text += f"and {format_bytes(free)} are free{advice}"
    raise kind(errno.ENOSPC, text, str(path))


# --- concurrent calls -----------------------------------------------------------------------

#: Has `is_one` in the threads of the pool, which never wait for each other.
_pool_threads = threading.local()


@cache
def _pool(threads: int) -> ThreadPoolExecutor:
    """Return the thread pool of this process for reads and writes."""
    return ThreadPoolExecutor(threads, "bigfft-files", _mark_thread)


def _mark_thread() -> None:
    """Mark the calling thread as one of the pool."""
    _pool_threads.is_one = True


system.after_fork(_pool.cache_clear)


def _started(nbytes: int, call: Callable[[], T]) -> Future[T]:
    """Start a call that reads or writes `nbytes` in the pool, or make it at once."""
    threads = config.get("bigfft.scratch.threads")
    if nbytes < LEAST or threads < 2 or hasattr(_pool_threads, "is_one"):
        future = Future[T]()
        future.set_result(call())
        return future
    run = contextvars.copy_context().run  # events name the task's plan and round
    return _pool(threads).submit(run, call)


class Underway(Generic[T]):
    """Concurrent reads and writes of one task, all of which end with the ``with`` block.

    Small calls, and calls in a process without a pool (`bigfft.scratch.threads`), run at once in
    the calling thread. So do calls that a thread of the pool starts.

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
        """Start a call that reads or writes `nbytes`."""
        self._calls.append(_started(nbytes, call))

    def results(self) -> list[T]:
        """Wait for all started calls and return their results in order.

        The first error is raised. The end of the ``with`` block waits for the other calls.
        """
        wait(self._calls, return_when=FIRST_EXCEPTION)
        results = [call.result() for call in self._calls]
        self._calls = []  # after an interruption __exit__ waits for them
        return results

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for call in self._calls:
            call.cancel()
        wait(self._calls)


class WriteBehind:
    """Writes of many tasks, which go on while the tasks compute, until the ``with`` block ends.

    A task that is still running then, after an error of another one, cannot start any.

    Writes run at once where those of `Underway` do. They also do in other processes: a copy of this
    object lets none wait.

    Parameters
    ----------
    most : int
        Maximum number of writes under way. A task that starts another one waits for one of them.
        With 0 all writes run at once.

    Examples
    --------
    >>> with WriteBehind(2) as writes:
    ...     for text in ("one", "other"):
    ...         writes.start(LEAST, partial(len, text))
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._free = threading.Semaphore(most)
        self._errors: list[BaseException] = []
        self._is_over = False

    def start(self, nbytes: int, call: Callable[[], object]) -> None:
        """Start a call that writes `nbytes`; raise the error of an earlier one.

        Raises
        ------
        RuntimeError
            If the ``with`` block has ended.
        """
        if not self.most:
            call()
            return
        self._free.acquire()
        try:
            if self._is_over:
                raise RuntimeError("no block is written: the run has ended")
            self._raise_error()
            write = _started(nbytes, call)
        except BaseException:
            self._free.release()
            raise
        write.add_done_callback(self._end)

    def _end(self, write: "Future[Any]") -> None:
        """Take note of a write that has ended."""
        error = write.exception()
        if error is not None:
            self._errors.append(error)
        self._free.release()

    def _raise_error(self) -> None:
        """Raise the error of the first write that failed, if any."""
        if self._errors:
            raise self._errors[0]

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (0,)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        taken = 0
        try:
            while taken < self.most:  # all writes have ended once all places are free
                self._free.acquire()
                taken += 1
        finally:
            self._is_over = True
            if taken:
                self._free.release(taken)
        if kind is None:
            self._raise_error()


# --- files ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class File:
    """Open file.

    Parameters
    ----------
    handle : int
        Descriptor for ordinary calls.
    direct : int or None
        Descriptor of the same file for direct I/O.
    """

    handle: int
    direct: int | None

    def read(self, out: Array, begin: int) -> int:
        """Fill an array of bytes from an offset in the file; return the number of bytes read."""
        return self._move_all(system.read_at, out, begin)

    def write(self, values: Array, begin: int) -> int:
        """Write an array of bytes at an offset in the file; return the number of bytes."""
        return self._move_all(system.write_at, values, begin)

    def _move_all(self, call: Any, values: Array, begin: int) -> int:
        """Read or write an array in concurrent system calls, by direct I/O if possible."""
        direct = self._allows_direct(values, begin)
        if len(values) <= PIECE:  # the common case needs no pool
            return self._move(call, values, begin, direct)
        with Underway[int]() as calls:
            for low in range(0, len(values), PIECE):
                piece = values[low : low + PIECE]
                calls.start(len(values), partial(self._move, call, piece, begin + low, direct))
            return sum(calls.results())

    def _allows_direct(self, values: Array, begin: int) -> bool:
        """Return True if an array at an offset in the file is large and aligned for direct I/O."""
        if self.direct is None or len(values) < LEAST or not values.flags.c_contiguous:
            return False
        return begin % UNIT == 0 and values.ctypes.data % UNIT == 0

    def _move(
        self,
        call: Any,
        values: Array,
        begin: int,
        direct: bool,
    ) -> int:
        """Read or write part of an array, its whole units by direct I/O if `direct` is true."""
        size = len(values)
        data = values.data
        direct_end = size // UNIT * UNIT if direct else 0
        moved = 0
        while moved < size:
            is_direct = moved < direct_end
            handle = self.direct if is_direct else self.handle
            end = direct_end if is_direct else size
            try:
                count = call(handle, data[moved:end], begin + moved)
            except OSError as error:
                if is_direct and error.errno == errno.EINVAL:  # other alignment needed
                    direct_end = moved
                    continue
                raise
            if not count:
                break
            moved += count
            if count % UNIT:  # at the end of the file
                direct_end = 0
        return moved


@contextlib.contextmanager
def opened(path: Path, flags: int, direct: bool = True) -> Iterator[File]:
    """Yield an open file.

    Parameters
    ----------
    path : Path
        Path of the file.
    flags : int
        Flags of `os.open`. Only the owner can access a new file.
    direct : bool
        True allows direct I/O, if `bigfft.scratch.direct` is true as well.
    """
    with contextlib.ExitStack() as stack:
        handle = os.open(path, flags | system.BINARY, 0o600)
        stack.callback(os.close, handle)
        direct_handle: int | None = None
        if direct and system.DIRECT and config.get("bigfft.scratch.direct"):
            with contextlib.suppress(OSError):
                direct_handle = os.open(path, (flags & ~os.O_CREAT) | system.DIRECT)
                stack.callback(os.close, direct_handle)
        yield File(handle, direct_handle)


# --- files of JSON --------------------------------------------------------------------------

log = logging.getLogger(__name__)

#: Exceptions for damaged JSON files.
_DAMAGED = (
    OSError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


def machine() -> list[Any]:
    """Return architecture, processor and number of cores of this machine."""
    return [platform.machine(), system.processor_model(), os.cpu_count()]


def read_json(path: Path, schema: int, checked: Callable[[Any], T]) -> T | None:
    """Return the content of a JSON file, or None. A damaged file is logged and ignored.

    Parameters
    ----------
    path : Path
        The file.
    schema : int
        Supported version of the file; others are ignored.
    checked : callable
        Converts the JSON value, or raises `ValueError`, `TypeError`, `KeyError` or
        `AttributeError`.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["schema"] != schema:
            return None
        return checked(content)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return None
    except _DAMAGED as error:
        log.warning("%s is damaged and ignored: %r", path, error)
        return None


def write_json(path: Path, content: Any) -> bool:
    """Replace a JSON file atomically; return False if it cannot be written."""
    part = path.with_name(f"{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(content, indent=1), encoding="utf-8")
        part.replace(path)
    except OSError as error:
        log.info("%s cannot be written: %s", path, error)
        return False
    return True
