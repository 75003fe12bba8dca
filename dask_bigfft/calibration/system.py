"""Speeds of what is around the blocks: fresh pages and the disk.

Imports `memory`.
"""

import os
import time
import uuid
from pathlib import Path

import numpy as np

from dask_bigfft.memory.pages import Buffer, touch

__all__ = ["disk_speeds", "page_speed", "was_read", "written"]

#: Bytes that the disk is tried with, and pages, in buffers of so many.
DISK_NBYTES, PAGES_NBYTES, PAGE_NBYTES = 256 << 20, 128 << 20, 4 << 20


def page_speed(threads: int, nbytes: int = PAGES_NBYTES) -> float:
    """Return the bytes per second at which all threads together prefault fresh pages.

    The second time: a virtual machine may first have to be given memory itself.
    """
    sizes = [min(PAGE_NBYTES, nbytes - at) for at in range(0, nbytes, PAGE_NBYTES)]
    for _ in range(2):
        buffers = [Buffer(size) for size in sizes]
        started = time.perf_counter()
        touch(buffers, threads)
        taken = time.perf_counter() - started
        del buffers
    return nbytes / max(taken, 1e-9)


def disk_speeds(folder: Path, nbytes: int = DISK_NBYTES) -> dict[str, float]:
    """Return the bytes per second of a folder's disk: ``write`` and ``read``."""
    path = folder / f"bigfft-calibration-{uuid.uuid4().hex[:12]}"
    try:
        wrote, read = written(path, nbytes), was_read(path)
    finally:
        path.unlink(missing_ok=True)
    return {"write": nbytes / wrote, "read": nbytes / read}


def written(path: Path, nbytes: int) -> float:
    """Write a file of so many bytes; return the seconds until the disk has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = np.random.default_rng(0).bytes(min(nbytes, 1 << 24))
    started = time.perf_counter()
    with path.open("wb") as file:
        for at in range(0, nbytes, len(part)):
            file.write(part[: nbytes - at])
        file.flush()
        os.fsync(file.fileno())
        wrote = time.perf_counter() - started
        if hasattr(os, "posix_fadvise"):  # so that it comes from there when it is read
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return max(wrote, 1e-9)


def was_read(path: Path) -> float:
    """Read a file; return the seconds that took."""
    started = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while file.read(1 << 24):
            pass
    return max(time.perf_counter() - started, 1e-9)
