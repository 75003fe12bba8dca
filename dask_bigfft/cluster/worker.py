"""Plugins of workers: preparation for transforms, and counters.

`WatchWorker` opens devices and configures the arena before the first task. Devices take seconds, so
this happens in a thread while the worker stays responsive. The measurements go to the scheduler
with every heartbeat, and to dask's page of fine performance metrics. `MemoryPlugin` prefaults host
memory, which is pinned if devices are open.

Import nothing here that is large: every registered worker holds it. Dask's arrays take 63 MiB,
numba and compiled code 110.

Devices, the arena and sinks belong to the process. If several workers share a process
(``processes=False``), the last one to leave releases them.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from distributed.diagnostics.plugin import WorkerPlugin
from distributed.metrics import context_meter

from dask_bigfft.config import own_version
from dask_bigfft.events import PHASES, RECORD, SUBPHASES, add_sink, current_worker, remove_sink
from dask_bigfft.gpu import dispatch
from dask_bigfft.memory.arena import default_arena
from dask_bigfft.memory.limits import configure_arena, memory_of_worker
from dask_bigfft.memory.paused import watch_worker

#: Name of the plugins, and of the metric in a worker's heartbeats.
METRIC = "bigfft"

#: Phases with parts, such as FFTs, which have events of their own.
_BRANCHES = frozenset(("round", "product"))

#: Phases whose seconds go to dask's fine performance metrics; they do not overlap.
_LEAVES = frozenset((*SUBPHASES, *PHASES, "lease_wait")) - _BRANCHES

#: Addresses of the monitored workers of this process, which share an event loop.
_watched: set[str] = set()


def digest(name: str, numbers: Mapping[str, Any]) -> None:
    """Pass an event to dask's fine performance metrics: a sink of `events`.

    The metrics get the time of each part of a round and the bytes of every phase. Events outside of
    tasks are ignored.
    """
    if name not in _LEAVES | _BRANCHES or current_worker() is None:
        return
    label = f"{METRIC}-{name.replace('_', '-')}"
    if name in _LEAVES and "seconds" in numbers:
        seconds = float(numbers["seconds"])
        context_meter.digest_metric(label, seconds, "seconds")
    if "nbytes" in numbers:
        nbytes = int(numbers["nbytes"])
        context_meter.digest_metric(label, nbytes, "bytes")


class MemoryPlugin(WorkerPlugin):  # type: ignore[misc, unused-ignore]
    """Plugin that prefaults memory of a worker's arena before its first task.

    Parameters
    ----------
    prefault, pinned : int
        Bytes for all workers, and for workers with devices.
    block : int
        Bytes of the blocks that use this memory.
    """

    name = f"{METRIC}-memory"
    idempotent = True

    def __init__(self, prefault: int, pinned: int, block: int) -> None:
        self.numbers = prefault, pinned, block

    async def setup(self, worker: Any) -> None:
        """Prefault the memory, in a thread."""
        await asyncio.get_running_loop().run_in_executor(None, self._prepare, worker)

    def _prepare(self, worker: Any) -> None:
        """Prefault buffers of the size of blocks, and one for the remaining bytes."""
        configure_arena(worker)
        prefault, pinned, block = self.numbers
        amounts = []
        if pinned and dispatch.leases() is not None:
            amounts.append(pinned)
        if prefault:
            amounts.append(prefault)
        arena = default_arena()
        threads = worker.state.nthreads
        for nbytes in amounts:
            count, remaining_nbytes = divmod(nbytes, block)
            arena.prefault(block, count=count, threads=threads)
            arena.prefault(remaining_nbytes, threads=threads)

    def teardown(self, worker: Any) -> None:
        """Free idle memory."""
        prefault, pinned, _ = self.numbers
        if prefault or pinned:
            default_arena().trim()


class WatchWorker(WorkerPlugin):  # type: ignore[misc, unused-ignore]
    """Plugin that prepares a worker for transforms and counts its work."""

    name = METRIC
    idempotent = True

    async def setup(self, worker: Any) -> None:
        """Prepare the worker in a thread, so that it stays responsive."""
        _watched.add(str(worker.address))
        add_sink(digest)
        #: Time of the last heartbeat of each device, and its busy seconds until then.
        self._told: dict[int, tuple[float, float]] = {}
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(None, self._prepare, worker)
        worker.metrics[METRIC] = self.metrics
        worker.metrics[dispatch.METRIC] = self.device_metrics
        memory_of_worker(worker)
        watch_worker(worker)

    def _prepare(self, worker: Any) -> None:
        """Open the devices, and configure the arena."""
        dispatch.leases()
        configure_arena(worker)

    def metrics(self, worker: Any) -> dict[str, Any]:
        """Return the worker's measurements as plain numbers, for a heartbeat."""
        return {
            "version": own_version(),
            "counters": RECORD.counters(str(worker.address)),
            "arena": asdict(default_arena().counters()),
        }

    def device_metrics(self, worker: Any) -> dict[str, Any]:
        """Return the devices and their usage, for a heartbeat.

        ``busy_share`` is the busy fraction of the time since the last heartbeat.
        """
        now = time.perf_counter()
        devices = []
        for place, use in enumerate(dispatch.uses()):
            busy_seconds = use["busy_seconds"]
            last_time, last_busy_seconds = self._told.get(place, (now, busy_seconds))
            self._told[place] = (now, busy_seconds)
            share = 0.0
            if now > last_time:
                share = (busy_seconds - last_busy_seconds) / (now - last_time)
            device = dict(use)
            device["busy_share"] = min(1.0, max(0.0, share))
            devices.append(device)
        return {"devices": devices, "in_use": dispatch.in_use()}

    def teardown(self, worker: Any) -> None:
        """Release the resources of the plugin: metrics, counters, devices, idle memory."""
        for name in (METRIC, dispatch.METRIC):
            worker.metrics.pop(name, None)
        RECORD.forget(str(worker.address))
        _watched.discard(str(worker.address))
        if not _watched:
            remove_sink(digest)
            dispatch.release()
            default_arena().trim()
