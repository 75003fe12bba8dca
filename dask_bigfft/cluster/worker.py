"""Plugins of workers: one makes a worker ready for transforms and counts what it does.

`WatchWorker` opens devices, configures the arena and loads compiled code before the first task, in
a thread, because these take seconds and the worker has to answer meanwhile. Its measurements go to
the scheduler with every heartbeat, and to dask's page of fine performance metrics. `MemoryPlugin`
makes host memory ready, which devices opened before have pinned.

Devices, the arena and sinks belong to the process: where several workers share one
(``processes=False``), the last that leaves gives them back.

Imports `memory`, `events`, `planner`, `graph` and `gpu`.
"""

import asyncio
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from dask.local import get_sync
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.metrics import context_meter

from dask_bigfft.events import PHASES, RECORD, SUBPHASES, add_sink, current_worker, remove_sink
from dask_bigfft.gpu import dispatch
from dask_bigfft.graph.build import build_graph, output_name
from dask_bigfft.kernels.copies import compile_at_once
from dask_bigfft.memory.arena import default_arena
from dask_bigfft.memory_settings import configure_arena
from dask_bigfft.planner.plan_data import Machine, Request
from dask_bigfft.planner.search import find_plan
from dask_bigfft.transforms.spec import transform_spec

#: Name of the plugins, and of the metric in a worker's heartbeats.
METRIC = "bigfft"

#: Seconds of these go to dask's fine performance metrics: none contains another.
_LEAVES = frozenset((*SUBPHASES, *PHASES, "lease_wait")) - {"round"}

#: Addresses of the workers of this process that are watched. They share an event loop.
_watched: set[str] = set()


def digest(name: str, numbers: Mapping[str, Any]) -> None:
    """Hand an event to dask's fine performance metrics: a sink of `events`.

    They are told the time of each part of a round, and the bytes of every phase. Events that do not
    come from a task are left out.
    """
    if (name not in _LEAVES and name != "round") or current_worker() is None:
        return
    label = f"{METRIC}-{name.replace('_', '-')}"
    if name in _LEAVES and "seconds" in numbers:
        context_meter.digest_metric(label, float(numbers["seconds"]), "seconds")
    if "nbytes" in numbers:
        context_meter.digest_metric(label, int(numbers["nbytes"]), "bytes")


def warm_up() -> None:
    """Run small transforms, so that compiled code and FFT libraries are there when work comes."""
    compile_at_once()
    for dtype, kind in (("c16", "fft"), ("c8", "fft"), ("f8", "rfft")):
        values = np.ones(64, dtype)
        request = Request(chunks=((16,) * 4,), floor_bytes=1)
        plan = find_plan(transform_spec(kind, values.shape, values.dtype), request, Machine())
        graph = build_graph(plan, "warm_up", "warm_up", "shared", False)
        graph |= {("warm_up", i): values[16 * i : 16 * i + 16] for i in range(4)}
        name = output_name(plan, "warm_up")
        get_sync(graph, [(name, *block) for block in plan.result.indices()])


def own_version() -> str:
    """Return the version of the package in this process."""
    return str(sys.modules["dask_bigfft"].__version__)


class MemoryPlugin(WorkerPlugin):  # type: ignore[misc, unused-ignore]
    """Makes memory of a worker's arena ready before its first task: taken, and touched.

    Parameters
    ----------
    prefault, pinned : int
        Bytes for all workers, and for those that have devices.
    block : int
        Bytes of the blocks that they are for.
    """

    name = f"{METRIC}-memory"
    idempotent = True

    def __init__(self, prefault: int, pinned: int, block: int) -> None:
        self.prefault, self.pinned, self.block = prefault, pinned, block

    async def setup(self, worker: Any) -> None:
        """Make the memory ready, in a thread."""
        await asyncio.get_running_loop().run_in_executor(None, self._prepare, worker)

    def _prepare(self, worker: Any) -> None:
        """Take buffers of the size of blocks, which alone fit them, and one for the rest."""
        configure_arena(worker)
        pinned = self.pinned if self.pinned and dispatch.leases() is not None else 0
        for nbytes in filter(None, (pinned, self.prefault)):
            count, rest = divmod(nbytes, self.block)
            default_arena().prefault(self.block, count=count, threads=worker.state.nthreads)
            default_arena().prefault(rest, threads=worker.state.nthreads)

    def teardown(self, worker: Any) -> None:
        """Give back the memory that no block uses."""
        if self.prefault or self.pinned:
            default_arena().trim()


class WatchWorker(WorkerPlugin):  # type: ignore[misc, unused-ignore]
    """Makes a worker ready for transforms and counts what it does."""

    name = METRIC
    idempotent = True

    async def setup(self, worker: Any) -> None:
        """Prepare in a thread, so that the worker goes on answering."""
        _watched.add(str(worker.address))
        add_sink(digest)
        #: When a heartbeat last told of a device, and its seconds of work until then.
        self._told: dict[int, tuple[float, float]] = {}
        self.devices = await asyncio.get_running_loop().run_in_executor(None, self._prepare, worker)
        worker.metrics |= {METRIC: self.metrics, dispatch.METRIC: self.device_metrics}

    def _prepare(self, worker: Any) -> list[str]:
        """Open the devices, and load compiled code; return the devices' names."""
        found = dispatch.leases()
        configure_arena(worker)
        warm_up()
        return [] if found is None else [engine.device.name for engine in found.engines]

    def metrics(self, worker: Any) -> dict[str, Any]:
        """Return the worker's measurements, as plain numbers, for a heartbeat."""
        return {
            "version": own_version(),
            "counters": RECORD.counters(str(worker.address)),
            "arena": asdict(default_arena().counters()),
        }

    def device_metrics(self, worker: Any) -> dict[str, Any]:
        """Return the devices, and how much of each is used, for a heartbeat.

        ``busy_share`` is the part of the time since the heartbeat before.
        """
        now, devices = time.perf_counter(), []
        for place, use in enumerate(dispatch.uses()):
            then, busy = self._told.get(place, (now, use["busy_seconds"]))
            share = (use["busy_seconds"] - busy) / (now - then) if now > then else 0.0
            self._told[place] = now, use["busy_seconds"]
            devices.append(use | {"busy_share": min(1.0, max(0.0, share))})
        return {"devices": devices, "in_use": dispatch.in_use()}

    def teardown(self, worker: Any) -> None:
        """Give back what the plugin has taken: metrics, counters, devices, idle memory."""
        for name in (METRIC, dispatch.METRIC):
            worker.metrics.pop(name, None)
        RECORD.forget(str(worker.address))
        _watched.discard(str(worker.address))
        if not _watched:
            remove_sink(digest)
            dispatch.release()
            default_arena().trim()
