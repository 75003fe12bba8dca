"""Watch on paused workers: they release idle memory, and waiting tasks fail after some time.

Distributed pauses a worker that holds too much memory until it holds less. If all workers of a
cluster are paused and none runs a task or releases memory, the computation would hang. Waiting
tasks of transforms then fail with an error that gives the numbers.
"""

import time
from typing import Any

from dask_bigfft.errors import ClusterError
from dask_bigfft.memory import default_arena

#: Key of the watch in a worker's periodic callbacks.
NAME = "bigfft-paused"

#: Seconds between two checks of a worker, and seconds after which tasks of paused workers fail.
EVERY, PATIENCE = 1.0, 20.0

#: Minimum decrease of process memory, in bytes, that counts as progress.
NOTHING = 1 << 20

#: Part of the names of all tasks of transforms.
OURS = "bigfft"

#: States of tasks that a worker has not begun.
WAITING = frozenset({"waiting", "ready", "constrained"})


def watch_worker(worker: Any) -> None:
    """Watch a worker from now on; call this in its event loop."""
    from tornado.ioloop import PeriodicCallback  # distributed, which has it, takes 0.2 s to import

    if NAME not in worker.periodic_callbacks:
        worker.periodic_callbacks[NAME] = PeriodicCallback(_Watch(worker).look, 1000 * EVERY)
        worker.periodic_callbacks[NAME].start()


def watch_worker_of_task(worker: Any) -> None:
    """Watch the worker that runs the calling task from now on."""
    if NAME not in worker.periodic_callbacks:
        worker.loop.add_callback(watch_worker, worker)


class _Watch:
    """Time for which a worker has been paused without progress."""

    def __init__(self, worker: Any) -> None:
        self.worker = worker
        self.since, self.least = 0.0, 0

    async def look(self) -> None:
        """Release idle memory of a paused worker; fail its tasks if no worker can continue."""
        worker, now = self.worker, time.monotonic()
        if worker.status.name != "paused":
            self.since = 0.0
            return
        default_arena().trim()
        memory = worker.monitor.get_process_memory()
        moves = memory < self.least - NOTHING or worker.state.executing_count > 0
        if not self.since or moves:
            self.since, self.least = now, memory
        if now - self.since >= PATIENCE:
            self.since = now  # wait as long before the next try
            if await self._for_ever() and worker.status.name == "paused":
                self._fail(memory)

    async def _for_ever(self) -> bool:
        """Return whether transforms wait, all workers are paused, and no task runs."""
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
        """Report waiting tasks of this worker to the scheduler as failed.

        These are the tasks of transforms, or, if there are none here yet, all waiting tasks.
        """
        from distributed.core import error_message

        worker, mib, arena = self.worker, 1 << 20, default_arena().counters()
        there = [task for task in worker.state.tasks.values() if task.state in WAITING]
        waiting = [task for task in there if OURS in str(task.key)] or there
        limit = worker.memory_manager.memory_limit or 0
        error = ClusterError(
            f"all workers have been paused for {PATIENCE:.0f} s, and none can go on: worker "
            f"{worker.address} uses {memory // mib} MiB of its memory limit of {limit // mib} MiB, "
            f"of which {arena.allocated_bytes // mib} MiB are blocks; {len(waiting)} of its tasks "
            "wait. Give workers more memory or fewer threads, or transforms smaller chunks or a "
            "smaller memory_limit"
        )
        said = {key: value for key, value in error_message(error).items() if key != "status"}
        said |= {"op": "task-erred", "thread": None, "startstops": []}
        said["stimulus_id"] = f"bigfft-paused-{time.time()}"
        for task in waiting:
            worker.batched_send({**said, "key": task.key, "run_id": task.run_id})
