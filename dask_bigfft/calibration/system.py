"""Speeds of what is around the blocks: fresh pages, dask's ordering, the disk.

Imports `memory` and dask.
"""

import os
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from dask.order import order

from dask_bigfft.memory.pages import Buffer, touch

__all__ = ["disk_speeds", "page_speed", "pair_seconds", "was_read", "written"]

#: Bytes that the disk is tried with, and pages, in buffers of so many.
DISK_NBYTES, PAGES_NBYTES, PAGE_NBYTES = 256 << 20, 128 << 20, 4 << 20


def seconds_of(work: Callable[[], object], repeat: int) -> float:
    """Return the least seconds of some calls, after one that does not count."""
    work()
    best = float("inf")
    for _ in range(repeat):
        started = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - started)
    return best


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


def pair_seconds(repeat: int) -> float:
    """Return the seconds of dask's ordering for a pair of blocks of an exchange."""

    def ordered(blocks: int) -> float:
        graph: dict[Any, Any] = {("a", i): 1 for i in range(blocks)}
        graph["barrier"] = (len, [("a", i) for i in range(blocks)])
        graph |= {("b", i): (abs, "barrier") for i in range(blocks)}
        return seconds_of(lambda: order(graph), repeat)

    few, many = 64, 512
    # Linear in blocks beside what goes by pairs: a p + b p^2 at two sizes.
    pair = (ordered(many) / many - ordered(few) / few) / (many - few)
    return max(pair, 0.0)
