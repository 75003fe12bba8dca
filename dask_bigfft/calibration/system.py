"""Speeds of what is around the blocks: fresh pages, the scheduler of one process, the disk.

Imports `fft`, `events`, `memory` and this room.
"""

import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
from dask.order import order

from dask_bigfft import fft
from dask_bigfft.events import add_sink, remove_sink
from dask_bigfft.memory.pages import Buffer, touch

__all__ = ["disk_speeds", "fresh_pages", "outside", "page_speed", "pair_seconds",
           "scheduling_costs", "was_read", "written"]

#: Bytes that the disk is tried with, and pages, in buffers of so many.
DISK_NBYTES, PAGES_NBYTES, PAGE_NBYTES = 256 << 20, 128 << 20, 4 << 20

#: Blocks of a graph that tells what a task costs, and runs of tiny graphs that count, at least.
MANY, FEW = 256, 4


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
    """Return the bytes per second at which fresh pages come to all threads together.

    The second time: a virtual machine may first have to be given memory itself.
    """
    for _ in range(2):
        taken = fresh_pages(threads, nbytes)
    return nbytes / max(taken, 1e-9)


def fresh_pages(threads: int, nbytes: int) -> float:
    """Take so many bytes of fresh pages, and give them back; return the seconds to take them."""
    sizes = [min(PAGE_NBYTES, nbytes - at) for at in range(0, nbytes, PAGE_NBYTES)]
    buffers = [Buffer(size) for size in sizes]
    started = time.perf_counter()
    touch(buffers, threads)
    return time.perf_counter() - started


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


def _blocks(shape: tuple[int, ...], ways: int) -> da.Array:
    values = np.ones(shape, complex)
    chunks = (-(-shape[0] // ways), *shape[1:])
    found: da.Array = da.from_array(values, chunks=chunks, name=False)
    return found


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


class _Reported:
    """A sink that adds up what threads say that blocks took them."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def take(self, name: str, numbers: Mapping[str, Any]) -> None:
        if name in ("round", "unpack"):
            self.seconds += float(numbers["seconds"])


def outside(y: da.Array, repeat: int) -> float:
    """Return the seconds of a computation by one thread that it does not spend on blocks.

    The least of some runs, after one that does not count.

    Parameters
    ----------
    y : dask.array.Array
        What is computed.
    repeat : int
        Runs that count.
    """
    found = []
    with dask.config.set(scheduler="threads", num_workers=1):
        for _ in range(repeat + 1):
            reported = _Reported()
            add_sink(reported.take)
            try:
                started = time.perf_counter()
                blocks = y.persist()
                wall = time.perf_counter() - started
            finally:
                remove_sink(reported.take)
            del blocks
            found.append(max(wall - reported.seconds, 0.0))
    return min(found[1:])


def scheduling_costs(repeat: int = 3) -> dict[str, float]:
    """Return what graphs cost beside their blocks, in seconds, by names of a `Profile`'s fields.

    Of tiny transforms, what threads report of their blocks is left out: the model counts that by
    blocks, shards and tiles. One block tells what a graph costs, many blocks apart what a task
    does, few blocks that exchange everything what an exchange does, and what it does by a task for
    each shard what these do. By one thread: several would wait for each other, which the model
    reckons with.

    Parameters
    ----------
    repeat : int
        Times that count, if more than a few.
    """

    def taken(
        shape: tuple[int, ...], ways: int, axes: tuple[int, ...], carrier: str = "auto"
    ) -> float:
        x = _blocks(shape, ways).persist()
        with dask.config.set({"bigfft.exchange.carrier": carrier}):
            y = fft.fftn(x, axes=axes, kernel="scipy", device="cpu")
        return outside(y, max(FEW, repeat))

    one, many = taken((4, 4), 1, (1,)), taken((MANY, 4), MANY, (1,))
    task = max(many - one, 0.0) / (MANY - 1)
    start = max(0.0, one - task)
    few = taken((4, 64), 4, (0, 1))
    shape, ways, axes = (16, 256), 16, (0, 1)
    packed = taken(shape, ways, axes, "tasks") - taken(shape, ways, axes)
    return {
        "start": start, "task": task, "packed": max(0.0, packed / ways**2),
        "exchange": max(0.0, few - start - 8 * task), "pair": pair_seconds(repeat),
    }
