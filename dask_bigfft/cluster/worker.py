"""Plugins of workers: preparation for transforms, and counters.

`WatchWorker` opens devices, configures the arena and loads compiled code before the first task.
This takes seconds, so it happens in a thread while the worker stays responsive. The measurements go
to the scheduler with every heartbeat, and to dask's page of fine performance metrics.
`MemoryPlugin` prefaults host memory, which is pinned if devices are open.

Devices, the arena and sinks belong to the process. If several workers share a process
(``processes=False``), the last one to leave releases them.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import dask.array as da
import numpy as np
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.metrics import context_meter

from dask_bigfft.environment import own_version
from dask_bigfft.events import PHASES, RECORD, SUBPHASES, add_sink, current_worker, remove_sink
from dask_bigfft.gpu import dispatch
from dask_bigfft.graph.layer import transformed_array
from dask_bigfft.kernels.copies import compile_at_once
from dask_bigfft.memory.arena import default_arena
from dask_bigfft.memory_settings import configure_arena
from dask_bigfft.planner.plan_data import Machine, Request
from dask_bigfft.planner.search import find_plan
from dask_bigfft.transforms.spec import transform_spec

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
        context_meter.digest_metric(label, float(numbers["seconds"]), "seconds")
    if "nbytes" in numbers:
        context_meter.digest_metric(label, int(numbers["nbytes"]), "bytes")


def warm_up() -> None:
    """Run small transforms to load compiled code and FFT libraries."""
    compile_at_once()
    for dtype, kind in (("c16", "fft"), ("c8", "fft"), ("f8", "rfft")):
        values = np.ones(64, dtype)
        request = Request(chunks=((16,) * 4,), floor_bytes=1)
        plan = find_plan(transform_spec(kind, values.shape, values.dtype), request, Machine())
        blocks = da.from_array(values, chunks=16)
        transformed_array(blocks, plan, "shared").compute(scheduler="sync")


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
        pinned = pinned if pinned and dispatch.leases() is not None else 0
        for nbytes in filter(None, (pinned, prefault)):
            count, rest = divmod(nbytes, block)
            default_arena().prefault(block, count=count, threads=worker.state.nthreads)
            default_arena().prefault(rest, threads=worker.state.nthreads)

    def teardown(self, worker: Any) -> None:
        """Free idle memory."""
        if any(self.numbers[:2]):
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
        await asyncio.get_running_loop().run_in_executor(None, self._prepare, worker)
        worker.metrics |= {METRIC: self.metrics, dispatch.METRIC: self.device_metrics}

    def _prepare(self, worker: Any) -> None:
        """Open the devices, and load compiled code."""
        dispatch.leases()
        configure_arena(worker)
        warm_up()

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
        now, devices = time.perf_counter(), []
        for place, use in enumerate(dispatch.uses()):
            then, busy = self._told.get(place, (now, use["busy_seconds"]))
            share = (use["busy_seconds"] - busy) / (now - then) if now > then else 0.0
            self._told[place] = now, use["busy_seconds"]
            devices.append(use | {"busy_share": min(1.0, max(0.0, share))})
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
