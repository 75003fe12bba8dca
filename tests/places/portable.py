"""Work without what only Linux has: names are removed before the package is imported.

Other libraries are imported first, with all that they find. Locks of ranges stand in for those of
Windows.
"""

import ctypes
import fcntl
import mmap
import os
import shutil
import sys
import types
from collections import namedtuple
from pathlib import Path

import dask.array  # noqa: F401
import distributed  # noqa: F401
import numpy  # noqa: F401
import psutil  # noqa: F401
import scipy.fft  # noqa: F401
import zarr  # noqa: F401

MISSING = {
    os: """O_DIRECT RTLD_DEEPBIND RTLD_NOLOAD fork nice posix_fadvise posix_fallocate preadv pwritev
        register_at_fork sched_getaffinity statvfs""",
    sys: "getdlopenflags setdlopenflags",
    mmap: "MADV_DONTNEED MADV_HUGEPAGE MAP_PRIVATE MAP_ANONYMOUS",
}

#: Folders of Linux.
FOLDERS = ("/proc/", "/sys/fs/cgroup/")

Usage = namedtuple("Usage", "total used free")

plain_cdll = ctypes.CDLL
plain_read_text = Path.read_text
plain_statvfs = os.statvfs


class CDLL(plain_cdll):
    """Library of C; without a name it is none, as on Windows."""

    def __init__(self, name, *arguments, **options):
        if name is None:
            raise TypeError("expected a name")
        super().__init__(name, *arguments, **options)


def read_text(path, *arguments, **options):
    """Return the text of a file; those of Linux about its processes are missing."""
    if str(path).startswith(FOLDERS):
        raise FileNotFoundError(path)
    return plain_read_text(path, *arguments, **options)


def disk_usage(path):
    """Return the bytes of a disk, which other systems tell without `os.statvfs`."""
    disk = plain_statvfs(path)
    total = disk.f_blocks * disk.f_frsize
    free = disk.f_bavail * disk.f_frsize
    return Usage(total, total - free, free)


def locking(handle, mode, nbytes):
    """Lock a range from a file's position on, like the function of Windows."""
    fcntl.lockf(handle, mode, nbytes, 0, os.SEEK_CUR)


def main():
    windows = types.ModuleType("msvcrt")
    windows.locking = locking
    windows.LK_NBLCK = fcntl.LOCK_EX | fcntl.LOCK_NB
    windows.LK_UNLCK = fcntl.LOCK_UN
    sys.modules["msvcrt"] = windows
    sys.modules["fcntl"] = None
    for module, names in MISSING.items():
        for name in names.split():
            delattr(module, name)
    if hasattr(os, "process_cpu_count"):  # from Python 3.13 on
        os.process_cpu_count = os.cpu_count
    ctypes.CDLL = CDLL
    Path.read_text = read_text
    shutil.disk_usage = disk_usage
    sys.platform = "portable"

    import work

    from dask_bigfft import system

    assert system.fcntl is None
    assert not system.return_freed()
    assert system.processors() == os.cpu_count()
    work.work()
    print("worked")


if __name__ == "__main__":
    main()
