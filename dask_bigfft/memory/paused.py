"""Watch on paused workers: they free idle memory, and lose their waiting tasks after some time.

Distributed pauses a worker that holds too much memory until it holds less. If a worker stays
paused, and neither runs a task nor frees memory, its tasks would wait for ever. Those of transforms
are given to other workers. If all workers that may run them are paused, they fail with an error
that gives the numbers::

    worker     `_free_idle_memory`  lets a worker go on whose memory is idle
    scheduler  `SchedulerWatch`     knows all tasks, also those that no worker has

Plans and tasks of transforms start both, and a graph starts the scheduler's. So workers may have
been paused before. The scheduler's part uses private parts of distributed: transitions of tasks,
and their restrictions.
"""

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from weakref import WeakSet

from dask.utils import format_bytes

from dask_bigfft.errors import ClusterError
from dask_bigfft.memory import default_arena

log = logging.getLogger(__name__)

#: Key of a watch in the periodic callbacks of a worker or a scheduler.
NAME = "bigfft-paused"

#: Seconds between two checks.
EVERY = 1.0

#: Seconds without progress after which tasks of paused workers are moved, or fail.
PATIENCE = 20.0

#: Minimum decrease of process memory, in bytes, that counts as progress.
NOTHING = 1 << 20

#: Part of the names of all tasks of transforms.
OURS = "bigfft"

#: States of tasks that run as soon as a worker takes them.
RUNNABLE = frozenset({"queued", "no-worker", "processing"})

#: Clients whose scheduler was asked to watch.
_asked: WeakSet[Any] = WeakSet()


def _start(node: Any, look: Callable[[], None]) -> None:
    """Call `look` regularly in the event loop of a worker or a scheduler, until that closes."""
    from tornado.ioloop import PeriodicCallback  # distributed, which has it, takes 0.2 s to import

    node.periodic_callbacks[NAME] = PeriodicCallback(look, 1000 * EVERY)
    node.periodic_callbacks[NAME].start()


# --- on workers -----------------------------------------------------------------------------


def watch_worker(worker: Any) -> None:
    """Watch a worker and its scheduler from now on; call this in the worker's event loop."""
    if NAME not in worker.periodic_callbacks:
        _start(worker, partial(_free_idle_memory, worker))
        worker.loop.add_callback(_watch_scheduler_of, worker)


def watch_worker_of_task(worker: Any) -> None:
    """Watch the worker that runs the calling task, and its scheduler, from now on."""
    if NAME not in worker.periodic_callbacks:
        worker.loop.add_callback(watch_worker, worker)


async def _watch_scheduler_of(worker: Any) -> None:
    """Let the scheduler of a worker watch its workers."""
    from distributed.protocol.pickle import dumps

    try:
        await worker.scheduler.run_function(function=dumps(watch_scheduler), args=(), kwargs={})
    except OSError:
        log.debug("the scheduler of %s does not answer", worker.address)


def _free_idle_memory(worker: Any) -> None:
    """Free the idle memory of a worker's arena while the worker is paused."""
    if worker.status.name == "paused":
        default_arena().trim()


# --- on the scheduler -----------------------------------------------------------------------


def watch_cluster(client: Any) -> None:
    """Let the scheduler of a client watch its workers from now on, without waiting for it."""
    if client not in _asked:
        _asked.add(client)
        client.loop.add_callback(_watch_scheduler_by, client)


async def _watch_scheduler_by(client: Any) -> None:
    """Let the scheduler of a client watch its workers; call this in the client's event loop."""
    if client.status != "running":
        return
    try:
        await client.run_on_scheduler(watch_scheduler)
    except (ImportError, OSError) as error:
        log.debug("the scheduler does not watch for paused workers: %s", error)


def watch_scheduler(dask_scheduler: Any = None) -> None:
    """Watch the workers of the scheduler of this process; call this in its event loop."""
    if NAME not in dask_scheduler.periodic_callbacks:
        _start(dask_scheduler, SchedulerWatch(dask_scheduler).look)


class SchedulerWatch:
    """Watch on all workers of a cluster.

    Parameters
    ----------
    scheduler : distributed.Scheduler
        The scheduler of this process.
    """

    def __init__(self, scheduler: Any) -> None:
        self.scheduler = scheduler
        #: Time since when each paused worker has made no progress, and its memory then, in bytes.
        self.since: dict[Any, tuple[float, int]] = {}

    def look(self) -> None:
        """Move tasks of transforms from paused workers to others; fail those that none can run."""
        stalled = self._stalled_workers(time.monotonic())
        for worker in stalled:  # wait as long before the next try
            del self.since[worker]
        for tasks in self._computations(stalled):
            self._relieve(tasks, stalled)

    def _relieve(self, tasks: list[Any], stalled: set[Any]) -> None:
        """Move the runnable tasks of one computation from stalled workers, or fail all.

        While one of them runs, it may free the memory of stalled workers for the others.
        """
        movable = []
        some_can_run = False
        for task in tasks:
            worker = task.processing_on
            is_stuck = worker in stalled and task not in worker.long_running
            if worker is not None and not is_stuck:
                some_can_run = True
            elif self._may_run_elsewhere(task, stalled):
                some_can_run = True
                if is_stuck:
                    movable.append(task)
        if movable:
            self._move(movable)
        elif not some_can_run:
            self._fail(tasks, stalled)

    def _stalled_workers(self, now: float) -> set[Any]:
        """Return the workers that have been paused for some time and have made no progress."""
        before = self.since
        self.since = {}
        for worker in self.scheduler.workers.values():
            if worker.status.name != "paused":
                continue
            memory = worker.memory.process
            since, least = before.get(worker, (now, memory))
            # A task that has left the worker's threads may itself wait for other tasks.
            works = bool(worker.executing.keys() - worker.long_running)
            if works or memory < least - NOTHING:
                since = now
                least = memory
            self.since[worker] = (since, least)
        return {worker for worker, (since, _) in self.since.items() if now - since >= PATIENCE}

    def _computations(self, stalled: set[Any]) -> Iterator[list[Any]]:
        """Yield the runnable tasks of each computation with a transform and a stalled worker."""
        waiting = set(self._tasks_of(stalled))
        while waiting:
            related = _related_tasks(waiting.pop())
            runnable = [task for task in related if task.state in RUNNABLE]
            waiting.difference_update(runnable)
            if any(OURS in str(task.key) for task in related):
                yield runnable

    def _tasks_of(self, stalled: set[Any]) -> Iterator[Any]:
        """Yield the tasks that stalled workers have, or that only they may run."""
        for worker in stalled:
            yield from worker.processing
        if len(stalled) == len(self.scheduler.workers):
            yield from self.scheduler.queued
        for task in self.scheduler.unrunnable:
            if not stalled.isdisjoint(self._workers_for(task)):
                yield task

    def _may_run_elsewhere(self, task: Any, stalled: set[Any]) -> bool:
        """Return whether the restrictions of a task allow a worker that is not stalled."""
        if not _is_restricted(task):
            return len(stalled) < len(self.scheduler.workers)
        return not stalled.issuperset(self._workers_for(task))

    def _workers_for(self, task: Any) -> set[Any]:
        """Return the workers that the restrictions of a task allow, whatever their state."""
        workers = set(self.scheduler.workers.values())
        if not _is_restricted(task):
            return workers
        addresses = task.worker_restrictions or set()
        hosts = set(map(self.scheduler.coerce_hostname, task.host_restrictions or ()))
        if addresses or hosts:
            workers = {w for w in workers if w.address in addresses or w.host in hosts}
        return {worker for worker in workers if _has_resources(worker, task)}

    def _move(self, tasks: list[Any]) -> None:
        """Let the scheduler choose other workers for tasks that their workers have not begun."""
        stimulus = f"{NAME}-{time.time()}"
        self.scheduler.transitions({task.key: "released" for task in tasks}, stimulus)

    def _fail(self, tasks: list[Any], stalled: set[Any]) -> None:
        """Let tasks fail, and everything that needs them."""
        from distributed.protocol.pickle import dumps

        text = _stalled_message(tasks, stalled)
        log.info(text)
        stimulus = f"{NAME}-{time.time()}"
        exception = dumps(ClusterError(text))
        for task in tasks:
            if task.state not in RUNNABLE:  # the failure of another one has released it
                continue
            place = task.processing_on
            recommendations = self.scheduler.transition(
                task.key,
                "erred",
                stimulus_id=stimulus,
                cause=task.key,
                exception=exception,
            )
            self.scheduler.transitions(recommendations, stimulus)
            if place is not None:
                message = {"op": "free-keys", "keys": [task.key], "stimulus_id": stimulus}
                self.scheduler.worker_send(place.address, message)


def _stalled_message(tasks: list[Any], stalled: set[Any]) -> str:
    """Return the message of tasks that no worker can run, with the memory of the fullest one."""
    worker = max(stalled, key=lambda worker: worker.memory.process / (worker.memory_limit or 1))
    return (
        f"all workers that may run {len(tasks)} waiting tasks have been paused for "
        f"{PATIENCE:.0f} s, and none can go on: worker {worker.address} uses "
        f"{format_bytes(worker.memory.process)} of its memory limit of "
        f"{format_bytes(worker.memory_limit)}, of which {format_bytes(worker.memory.managed)} are "
        "results of tasks. Give workers more memory or fewer threads, or transforms smaller "
        "chunks or a smaller memory_limit"
    )


def _is_restricted(task: Any) -> bool:
    """Return whether not every worker may run a task."""
    if task.loose_restrictions:
        return False
    return bool(task.worker_restrictions or task.host_restrictions or task.resource_restrictions)


def _has_resources(worker: Any, task: Any) -> bool:
    """Return whether a worker has the resources that a task requires."""
    required = task.resource_restrictions or {}
    return all(worker.resources.get(name, 0) >= amount for name, amount in required.items())


def _related_tasks(task: Any) -> set[Any]:
    """Return all tasks of the computations that a task belongs to."""
    related = {task}
    stack = [task]
    while stack:
        current = stack.pop()
        for neighbours in (current.dependencies, current.dependents):
            new = neighbours - related
            related |= new
            stack += new
    return related
