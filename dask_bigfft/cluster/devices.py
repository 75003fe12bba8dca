"""What a worker sets up for its devices before the first task, and gives back.

`StreamWorkerPlugin` opens the worker's devices and makes their streams; `PinnedTransferPlugin`
makes host memory ready that a device reads and writes by itself. Both do nothing on a worker
without a device, and transforms work without both: then the first task does it.

Opening a device and pinning memory take seconds and hold locks of the driver, so both happen in a
thread while the worker goes on answering. Devices belong to the process: where several workers
share one (``processes=False``), the last that leaves gives them back.

Imports `worker`, `gpu` and `memory`.
"""

import asyncio
import threading
import time
from dataclasses import asdict
from typing import Any

from distributed.diagnostics.plugin import WorkerPlugin

from dask_bigfft.cluster.worker import make_ready
from dask_bigfft.gpu import find
from dask_bigfft.memory.arena import default_arena

__all__ = ["PinnedTransferPlugin", "StreamWorkerPlugin"]

_users = 0
_lock = threading.Lock()


def _count(change: int) -> int:
    """Count the workers of this process that have devices; return how many there are."""
    global _users
    with _lock:
        _users = max(0, _users + change)
        return _users


class StreamWorkerPlugin(WorkerPlugin):  # type: ignore[misc, unused-ignore]
    """Opens a worker's devices, each with its engine and streams, and closes them at the end."""

    name = find.METRIC
    idempotent = True

    async def setup(self, worker: Any) -> None:
        """Open the devices, in a thread."""
        _count(+1)
        self._told: dict[int, tuple[float, float]] = {}
        self.devices = await asyncio.get_running_loop().run_in_executor(None, self._open)
        worker.metrics[self.name] = self.metrics

    def _open(self) -> list[str]:
        found = find.leases()
        return [] if found is None else [engine.device.name for engine in found.engines]

    def metrics(self, worker: Any) -> dict[str, Any]:
        """Return the devices, and how much of each is used, for a heartbeat.

        The share of the time in which a device had work is that since the heartbeat before.
        """
        now, devices = time.perf_counter(), []
        for place, use in enumerate(find.uses()):
            then, busy = self._told.get(place, (now, use.busy_seconds))
            share = (use.busy_seconds - busy) / (now - then) if now > then else 0.0
            self._told[place] = now, use.busy_seconds
            devices.append(asdict(use) | {"busy_share": min(1.0, max(0.0, share))})
        return {"devices": devices, "in_use": find.in_use()}

    def teardown(self, worker: Any) -> None:
        """Close the devices, unless another worker of the process uses them."""
        worker.metrics.pop(self.name, None)
        if not _count(-1):
            find.release()


class PinnedTransferPlugin(WorkerPlugin):  # type: ignore[misc, unused-ignore]
    """Makes host memory ready for a worker's devices: taken, touched, and pinned.

    Parameters
    ----------
    nbytes : int
        Bytes.
    block : int
        Bytes of the blocks that it is for.
    """

    name = "bigfft-pinned"
    idempotent = True

    def __init__(self, nbytes: int, block: int) -> None:
        self.nbytes, self.block = nbytes, block

    async def setup(self, worker: Any) -> None:
        """Make the memory ready, in a thread."""
        self.worker = worker
        await asyncio.get_running_loop().run_in_executor(None, self._prepare)

    def _prepare(self) -> None:
        if self.nbytes and find.leases() is not None:
            make_ready(self.worker, self.nbytes, self.block)

    def teardown(self, worker: Any) -> None:
        """Give back the memory that no block uses."""
        if self.nbytes:
            default_arena().trim()
