"""The lifetime of scratch files: they stay as long as a cluster needs a key of the graph."""

import asyncio
import multiprocessing
import threading
from typing import Any

from dask_bigfft.events import current_worker
from dask_bigfft.exchange.folders import remove_unused
from dask_bigfft.exchange.scratch import Scratch

#: Seconds between two checks of whether a cluster still needs a graph's scratch files.
CHECK_SECONDS = 0.5

#: States of a worker that keeps working.
ALIVE = frozenset({"running", "paused", "closing_gracefully"})

#: States of a key that tasks still need.
NEEDED = frozenset({"waiting", "queued", "no-worker", "processing", "memory"})

#: Folders that this process keeps, by folder and address of the worker.
_kept: dict[tuple[str, str], Scratch] = {}
_lock = threading.Lock()


def hold(scratch: Scratch, key: str) -> None:
    """Keep a folder while a cluster needs a key, even if that is pickled, spilled or lost.

    Every worker that takes part does so: if one dies, the others keep its files.
    """
    worker = current_worker()
    is_only_process = worker is None and multiprocessing.parent_process() is None
    if scratch.kept or is_only_process:  # in one process the folder goes with the object
        return
    holder = str(scratch.folder), "" if worker is None else str(worker.address)
    with _lock:
        if holder in _kept:
            return
        _kept[holder] = scratch
    scratch.own()
    if worker is not None:
        worker.loop.add_callback(
            _watch,
            worker,
            holder,
            key,
        )


async def _watch(worker: Any, holder: tuple[str, str], key: str) -> None:
    """Release a folder when its cluster no longer needs it; the last worker deletes it."""
    while await _is_needed(worker, key):
        await asyncio.sleep(CHECK_SECONDS)
    with _lock:
        scratch = _kept.pop(holder)
    await asyncio.to_thread(scratch.close)
    while worker.status.name in ALIVE and scratch.folder.exists():
        # Other workers and objects in transit may still hold it.
        await asyncio.sleep(CHECK_SECONDS)
        await asyncio.to_thread(remove_unused, scratch.folder)


async def _is_needed(worker: Any, key: str) -> bool:
    """Return whether this worker has a key or waits for it, or the scheduler still needs it."""
    task = worker.state.tasks.get(key)
    if task is not None and task.state != "released":
        return True
    try:
        states = await worker.scheduler.get_task_status(keys=[key])
    except OSError:  # connection lost, or the cluster has ended
        return worker.status.name in ALIVE
    return states.get(key) in NEEDED
