"""Work without what only Linux has: names are removed before the package is imported.

Other libraries are imported first, with all that they find. Locks of ranges stand in for those of
Windows.
"""

import ctypes
import fcntl
import mmap
import os
import sys
import types

import dask.array  # noqa: F401
import distributed  # noqa: F401
import numpy  # noqa: F401
import psutil  # noqa: F401
import scipy.fft  # noqa: F401
import zarr  # noqa: F401

MISSING = {
    os: """O_DIRECT RTLD_DEEPBIND RTLD_NOLOAD fork posix_fadvise posix_fallocate preadv pwritev
        register_at_fork sched_getaffinity""",
    sys: "getdlopenflags setdlopenflags",
    mmap: "MADV_DONTNEED MADV_HUGEPAGE MAP_PRIVATE MAP_ANONYMOUS",
}

plain_cdll = ctypes.CDLL


class CDLL(plain_cdll):
    """Library of C; without a name it is none, as on Windows."""

    def __init__(self, name, *arguments, **options):
        if name is None:
            raise TypeError("expected a name")
        super().__init__(name, *arguments, **options)


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
