"""A watch on workers that are paused: they give idle memory back, and do not wait for ever.

A worker that holds too much memory is paused until it holds less. Where all workers of a cluster
are, and none works or gives memory back any more, nobody would ever go on. The tasks of transforms
that wait there then fail, with the numbers.

Imports `errors` and `memory`; calls methods of a distributed worker.
"""

import time
from typing import Any

from distributed.core import Status, error_message
from tornado.ioloop import PeriodicCallback

from dask_bigfft.errors import ClusterError
from dask_bigfft.memory import default_arena

#: Name of the watch among a worker's periodic callbacks.
NAME = "bigfft-paused"

#: Seconds between two looks at a worker, and seconds after which tasks of paused workers fail.
EVERY, PATIENCE = 1.0, 20.0

#: Bytes: process memory that falls by less does not fall.
NOTHING = 1 << 20

#: In the names of all tasks of transforms.
OURS = "bigfft"

#: States of tasks that a worker has not begun.
WAITING = frozenset({"waiting", "ready", "constrained"})


def watch_worker(worker: Any) -> None:
    """Look at a worker from now on, once it is paused; call this in its event loop."""
    if NAME not in worker.periodic_callbacks:
        callback = PeriodicCallback(_Watch(worker).look, 1000 * EVERY)
        worker.periodic_callbacks[NAME] = callback
        callback.start()


def watch_worker_of_task(worker: Any) -> None:
    """Look at the worker that runs the calling task from now on, once it is paused."""
    if NAME not in worker.periodic_callbacks:
        worker.loop.add_callback(watch_worker, worker)


class _Watch:
    """How long a worker has been paused without getting anywhere."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self.since, self.least = 0.0, 0

    async def look(self) -> None:
        """Give idle memory of a paused worker back; fail its tasks if no worker can go on."""
        worker, now = self.worker, time.monotonic()
        if worker.status != Status.paused:
            self.since = 0.0
            return
        default_arena().trim()
        memory = worker.monitor.get_process_memory()
        moves = memory < self.least - NOTHING or worker.state.executing_count > 0
        if not self.since or moves:
            self.since, self.least = now, memory
        if now - self.since >= PATIENCE:
            self.since = now  # the next try is as late as this one
            if await self._for_ever() and worker.status == Status.paused:
                self._fail(memory)

    async def _for_ever(self) -> bool:
        """Whether transforms wait, all workers of the cluster are paused, and no task runs."""
        scheduler = self.worker.scheduler
        workers = (await scheduler.identity(n_workers=-1))["workers"].values()
        for found in workers:
            executing = found["metrics"].get("task_counts", {}).get("executing")
            if found["status"] != "paused" or executing:
                return False
        prefixes = await scheduler.get_task_prefix_states()
        ours = [states for name, states in prefixes.items() if OURS in name]
        return any(states["waiting"] + states["processing"] > 0 for states in ours)

    def _fail(self, memory: int) -> None:
        """Tell the scheduler that tasks have failed which this worker will never begin.

        Those of transforms, or, where none has come so far, what they wait for.
        """
        worker, mib, arena = self.worker, 1 << 20, default_arena().counters()
        there = [task for task in worker.state.tasks.values() if task.state in WAITING]
        waiting = [task for task in there if OURS in str(task.key)] or there
        limit = worker.memory_manager.memory_limit or 0
        error = ClusterError(
            f"all workers have been paused for {PATIENCE:.0f} s, and none can go on: worker "
            f"{worker.address} uses {memory // mib} MiB of its memory limit of {limit // mib} MiB, "
            f"of which {arena.lent_bytes // mib} MiB are blocks; {len(waiting)} of its tasks wait. "
            "Give workers more memory or fewer threads, or transforms smaller chunks or a smaller "
            "memory_limit"
        )
        said = {key: value for key, value in error_message(error).items() if key != "status"}
        said |= {"op": "task-erred", "thread": None, "startstops": []}
        said["stimulus_id"] = f"bigfft-paused-{time.time()}"
        for task in waiting:
            worker.batched_send({**said, "key": task.key, "run_id": task.run_id})
