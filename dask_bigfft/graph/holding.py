"""How long a cluster keeps the folder of scratch files of a graph: while any worker needs it.

Imports `exchange`; looks a distributed worker up if there is one.
"""

import asyncio
import multiprocessing
import threading
from typing import Any

from dask_bigfft.events import current_worker
from dask_bigfft.exchange.folders import remove_unused
from dask_bigfft.exchange.scratch import Scratch

#: Seconds between two looks whether a cluster still needs a graph's scratch files.
LOOK = 0.5

#: States of a worker that goes on working, and of a key that tasks are still waiting for.
ALIVE = frozenset({"running", "paused", "closing_gracefully"})
NEEDED = frozenset({"waiting", "queued", "no-worker", "processing", "memory"})

_held: dict[tuple[str, str], Scratch] = {}
_lock = threading.Lock()


def hold(scratch: Scratch, key: str) -> None:
    """Keep a folder while a cluster needs a key, however often that is pickled, spilled or lost.

    Every worker that takes part does so: those that are left go on with the files of one that died.
    """
    if scratch.kept:
        return
    worker = current_worker()
    if worker is None and multiprocessing.parent_process() is None:
        return  # one process: the folder goes with the object
    holder = str(scratch.folder), "" if worker is None else str(worker.address)
    with _lock:
        if holder in _held:
            return
        _held[holder] = scratch
    scratch.own()
    if worker is not None:
        worker.loop.add_callback(_watch, worker, holder, key)


async def _watch(worker: Any, holder: tuple[str, str], key: str) -> None:
    """Let go of a folder when its cluster needs it no more; the last one deletes it."""
    while _kept(worker, key) or await _needed(worker, key):
        await asyncio.sleep(LOOK)
    with _lock:
        scratch = _held.pop(holder)
    await asyncio.to_thread(scratch.close)
    while worker.status.name in ALIVE and scratch.folder.exists():
        # The others let go in their own time; objects on their way hold it, too.
        await asyncio.sleep(LOOK)
        await asyncio.to_thread(remove_unused, scratch.folder)


def _kept(worker: Any, key: str) -> bool:
    """Whether this worker has a key or waits for it; not what is left of it beside results."""
    task = worker.state.tasks.get(key)
    return task is not None and task.state != "released"


async def _needed(worker: Any, key: str) -> bool:
    """Whether the scheduler will ask for tasks that use a key which this worker need not keep."""
    try:
        states = await worker.scheduler.get_task_status(keys=[key])
    except OSError:  # no connection just now, or the end of the cluster
        return worker.status.name in ALIVE
    return states.get(key) in NEEDED
