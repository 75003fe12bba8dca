"""Calls that not every operating system has, each with a portable default.

On Linux all of them are the system's own. On macOS, pages are not prefaulted, and file systems give
no direct I/O. On Windows, forks do not exist, and locks are ranges of bytes.

===================  ===========================  ================================================
function             on Linux                     elsewhere, where the call is missing
===================  ===========================  ================================================
`processors`         ``sched_getaffinity``        number of processors
`processor_model`    ``/proc/cpuinfo``            `platform.processor`
`after_fork`         ``register_at_fork``         nothing
`map_pages`          private, huge pages          anonymous pages
`populate_pages`     ``MADV_POPULATE_WRITE``      returns False: the caller touches the pages
`release_pages`      ``MADV_DONTNEED``            nothing: pages go back with their mapping
`return_freed`       glibc's ``mallopt``          returns False
`memory_limit`       control groups, ``ulimit``   ``ulimit``; None: unknown
`read_at`            ``preadv``                   seek and read under a lock
`write_at`           ``pwritev``                  seek and write under a lock
`preallocate`        ``posix_fallocate``          sets the size
`forget_cached`      ``posix_fadvise``            nothing
`free_inodes`        ``statvfs``                  None: unknown
`lock`               ``flock``                    ``msvcrt.locking``
`sync_directory`     ``fsync``                    nothing
`deep_binding`       ``RTLD_DEEPBIND``            nothing
`lower_priority`     ``nice``                     nothing
`loaded_library`     ``RTLD_NOLOAD``              loads it if it is not loaded
===================  ===========================  ================================================
"""

import contextlib
import ctypes
import errno
import mmap
import os
import platform
import random
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

try:
    import fcntl
    import resource
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment, unused-ignore]
    resource = None  # type: ignore[assignment, unused-ignore]

#: Flag of `os.open` for direct I/O, 0 where there is none.
DIRECT: int = getattr(os, "O_DIRECT", 0)

#: Flag of `os.open` for files that are not text, which Windows distinguishes.
BINARY: int = getattr(os, "O_BINARY", 0)

#: Size of a transparent huge page on the machines that have them, in bytes.
HUGE_PAGE_NBYTES = 2 * 1024**2


# --- processors and processes ---------------------------------------------------------------


def processors() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def processor_model() -> str:
    """Return the model of the processor."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()


def after_fork(function: Callable[[], Any]) -> None:
    """Call a function in every child process that is forked from now on."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=function)


def lower_priority() -> None:
    """Give this process the lowest priority."""
    if hasattr(os, "nice"):
        with contextlib.suppress(OSError):
            os.nice(19)


def loaded_library(name: str) -> Any:
    """Return a library that this process has loaded already.

    Raises
    ------
    OSError
        If it has not.
    """
    no_load = getattr(os, "RTLD_NOLOAD", 0)
    return ctypes.CDLL(name, mode=no_load | ctypes.DEFAULT_MODE)


@contextlib.contextmanager
def deep_binding() -> Iterator[None]:
    """Let libraries that are loaded within the context prefer their own symbols."""
    if not hasattr(os, "RTLD_DEEPBIND"):
        yield
        return
    flags = sys.getdlopenflags()
    sys.setdlopenflags(flags | os.RTLD_DEEPBIND)
    try:
        yield
    finally:
        sys.setdlopenflags(flags)


# --- memory ---------------------------------------------------------------------------------


def _function_of_libc(name: str) -> Any:
    """Return a function of the C library, None where it has no such function."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):  # TypeError: Windows
        return None


#: ``madvise``, which runs without the GIL, unlike that of `mmap`.
_madvise = _function_of_libc("madvise") if sys.platform == "linux" else None
if _madvise is not None:
    _madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int

#: ``MADV_DONTNEED``, and ``MADV_POPULATE_WRITE`` of Linux 5.14, which older ones refuse.
_DONT_NEED = 4
_POPULATE_WRITE = 23

#: glibc's ``mallopt``, and the numbers of its options M_TRIM_THRESHOLD and M_MMAP_THRESHOLD.
_mallopt = _function_of_libc("mallopt")
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3

#: Size in bytes from which freed blocks of decoders are returned to the system. zarr decodes in
#: more threads than there are cores, and each keeps smaller ones.
DECODED_NBYTES = 1 << 20


def map_pages(nbytes: int) -> mmap.mmap:
    """Return a new anonymous mapping, in huge pages if it is large enough."""
    if not hasattr(mmap, "MAP_PRIVATE"):
        return mmap.mmap(-1, nbytes)
    # Private, unlike the default: after a fork, parent and child must not share blocks.
    pages = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE") and nbytes >= HUGE_PAGE_NBYTES:
        # A kernel without huge pages refuses; small pages work, too, but slower.
        with contextlib.suppress(OSError):
            pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


def populate_pages(address: int, nbytes: int) -> bool:
    """Prefault whole pages, whose contents stay; return True if the system did it."""
    return _madvise is not None and _madvise(address, nbytes, _POPULATE_WRITE) == 0


def release_pages(address: int, nbytes: int) -> None:
    """Give the memory of whole pages, whose contents are lost, back to the system."""
    if _madvise is not None:
        _madvise(address, nbytes, _DONT_NEED)


#: Bytes of smaller freed blocks that each thread keeps by default, as in glibc.
KEPT_NBYTES = 128 << 10

#: Size from which freed blocks are returned to the system, and bytes of smaller ones that each
#: thread keeps; None before the first call.
_returned: tuple[int, int] | None = None


def return_freed(nbytes: int = DECODED_NBYTES, kept_nbytes: int = KEPT_NBYTES) -> bool:
    """Make the C library return large blocks to the system as soon as they are freed.

    Decoders of file chunks, and NumPy, allocate from that library. By default glibc keeps freed
    blocks of up to 32 MiB for each thread. The setting holds for the whole process.

    Parameters
    ----------
    nbytes, kept_nbytes : int
        Size from which blocks are returned, and bytes of smaller blocks that each thread may keep;
        those of the last call hold.

    Returns
    -------
    bool
        True if the C library accepts the setting.
    """
    global _returned
    if _returned == (nbytes, kept_nbytes):
        return True
    if _mallopt is None or not _mallopt(_MMAP_THRESHOLD, nbytes):
        return False
    _mallopt(_TRIM_THRESHOLD, kept_nbytes)
    _returned = nbytes, kept_nbytes
    return True


#: Files with limits in the root of control groups, of both versions. A container sees its own group
#: there, of which `distributed` also takes the soft limits.
_ROOT_LIMITS = (
    "memory/memory.limit_in_bytes",
    "memory/memory.soft_limit_in_bytes",
    "memory.max",
    "memory.high",
    "memory.low",
)


@cache
def memory_limit() -> int | None:
    """Return the memory limit in bytes of this process and its control groups, None without one.

    A container sees its own group as the root of all. Jobs of batch systems, and services, are in a
    group below the root.
    """
    limits = []
    for name in _ROOT_LIMITS:
        with contextlib.suppress(OSError, ValueError):  # "max"
            limits.append(int(Path("/sys/fs/cgroup", name).read_text(encoding="utf-8")))
    if resource is not None:
        limits.append(resource.getrlimit(resource.RLIMIT_RSS)[1])
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, controllers, group = line.split(":", 2)
            if "memory" in controllers.split(","):
                root = Path("/sys/fs/cgroup/memory")
                name = "memory.limit_in_bytes"
            elif not controllers:  # version 2
                root = Path("/sys/fs/cgroup")
                name = "memory.max"
            else:
                continue
            folder = root / group.strip("/")
            for path in (folder, *folder.parents):
                with contextlib.suppress(OSError, ValueError):  # "max"
                    limits.append(int((path / name).read_text(encoding="utf-8")))
    return min((limit for limit in limits if limit > 0), default=None)  # -1: no limit


# --- files ----------------------------------------------------------------------------------

#: Held between a seek and the read or write after it.
_seeking = threading.Lock()


def read_at(handle: int, buffer: Any, offset: int) -> int:
    """Fill a buffer from an offset in a file; return the number of bytes, 0 at the file's end."""
    if hasattr(os, "preadv"):
        return os.preadv(handle, [buffer], offset)
    with _seeking, open(handle, "rb", buffering=0, closefd=False) as file:
        file.seek(offset)
        return file.readinto(buffer) or 0


def write_at(handle: int, buffer: Any, offset: int) -> int:
    """Write a buffer at an offset in a file; return the number of bytes that were written."""
    if hasattr(os, "pwritev"):
        return os.pwritev(handle, [buffer], offset)
    with _seeking, open(handle, "r+b", buffering=0, closefd=False) as file:
        file.seek(offset)
        return file.write(buffer) or 0


def preallocate(handle: int, nbytes: int) -> None:
    """Set the size of a file, and reserve the disk space if the system can."""
    if nbytes and hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, nbytes)
    os.ftruncate(handle, nbytes)


def forget_cached(handle: int) -> None:
    """Drop a file from the page cache."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)


def free_inodes(folder: Path) -> int | None:
    """Return the number of files that may still be made on a disk, None if that is not limited."""
    if not hasattr(os, "statvfs"):
        return None
    disk = os.statvfs(folder)
    return disk.f_favail if disk.f_files else None


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk."""
    if os.name == "nt":  # which opens no directories
        return
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# --- locks ----------------------------------------------------------------------------------

#: Bytes of a file that locks are made of where there are only locks of ranges, all for one that
#: excludes others. One that others may share is a single byte.
_LOCK_RANGE = 1 << 30

#: Byte that each open file has locked to share it.
_shared_bytes: dict[int, int] = {}


def lock(handle: int, shared: bool = False, wait: bool = True) -> None:
    """Lock an open file until it is closed, in place of a lock that it has.

    Parameters
    ----------
    handle : int
        Descriptor of the file, which may be read and written.
    shared : bool
        Whether others may share the lock.
    wait : bool
        Whether to wait for locks of others.

    Raises
    ------
    BlockingIOError
        If another open file has a lock that excludes this one, and `wait` is False.
    """
    if fcntl is None:
        _lock_range(handle, shared, wait)
        return
    how = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    fcntl.flock(handle, how if wait else how | fcntl.LOCK_NB)


def _lock_range(handle: int, shared: bool, wait: bool) -> None:
    """Lock a file like `lock`, by a range of bytes beyond those that the file has."""
    import msvcrt as windows  # which has locks of ranges alone

    locking: Any = windows.locking  # type: ignore[attr-defined, unused-ignore]
    unlock = windows.LK_UNLCK  # type: ignore[attr-defined, unused-ignore]
    try_lock = windows.LK_NBLCK  # type: ignore[attr-defined, unused-ignore]
    before = _shared_bytes.pop(handle, None)
    if before is not None:
        os.lseek(handle, before, os.SEEK_SET)
        with contextlib.suppress(OSError):  # of a closed file with this descriptor
            locking(handle, unlock, 1)
    while True:
        first = random.randrange(_LOCK_RANGE) if shared else 0
        os.lseek(handle, first, os.SEEK_SET)
        try:
            locking(handle, try_lock, 1 if shared else _LOCK_RANGE)
        except OSError as error:
            if not wait:
                text = "another process has locked the file"
                raise BlockingIOError(errno.EAGAIN, text) from error
            threading.Event().wait(0.05)
        else:
            break
    if shared:
        _shared_bytes[handle] = first
