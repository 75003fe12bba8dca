"""What a worker does for transforms beside running their tasks: it makes ready, and it counts.

`WatchWorker` configures the worker's arena and loads compiled code before the first task, and hands
what the worker has measured to the scheduler with every heartbeat. Dask's own page of fine
performance metrics shows the phases, too. `PrefaultPlugin` makes memory of the arena ready.

Imports `memory`, `record`, `events`, `planner` and `graph`.
"""

import asyncio
import logging
import sys
import threading
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
from dask.local import get_sync
from distributed.diagnostics.plugin import WorkerPlugin
from distributed.metrics import context_meter

from dask_bigfft.events import PHASES, SUBPHASES, add_sink, remove_sink
from dask_bigfft.graph.build import build_graph, output_name
from dask_bigfft.kernels.copies import compile_at_once
from dask_bigfft.memory.arena import default_arena
from dask_bigfft.memory_settings import configure_arena
from dask_bigfft.planner.plan import Machine
from dask_bigfft.planner.request import Request
from dask_bigfft.planner.search import find_plan
from dask_bigfft.record import RECORD, current_worker
from dask_bigfft.transforms.spec import transform_spec

__all__ = ["METRIC", "PrefaultPlugin", "WatchWorker", "digest", "make_ready", "warm_up"]

#: Name of the plugins, and of the metric in a worker's heartbeats.
METRIC = "bigfft"

#: What dask's fine performance metrics get in seconds: parts that do not contain one another.
_LEAVES = frozenset((*SUBPHASES, *PHASES, "lease_wait")) - {"round"}

logger = logging.getLogger(__name__)

_watching = 0
_lock = threading.Lock()


def digest(name: str, numbers: Mapping[str, Any]) -> None:
    """Hand an event to dask's fine performance metrics: a sink of `events`.

    They are told the time of each part of a round, and the bytes of every phase. Events that do not
    come from a task are left out.
    """
    if current_worker() is None or (name not in _LEAVES and name != "round"):
        return
    label = f"bigfft-{name.replace('_', '-')}"
    if name in _LEAVES and "seconds" in numbers:
        context_meter.digest_metric(label, float(numbers["seconds"]), "seconds")
    if "nbytes" in numbers:
        context_meter.digest_metric(label, int(numbers["nbytes"]), "bytes")


def warm_up() -> None:
    """Run small transforms, so that compiled code and FFT libraries are there when work comes."""
    compile_at_once()
    for dtype in ("c16", "c8", "f8"):
        values = np.ones(64, dtype)
        kind = "rfft" if values.dtype.kind == "f" else "fft"
        spec = transform_spec(kind, values.shape, values.dtype)
        request = Request(
            chunks=((16,) * 4,),
            wanted=None,
            rounds=None,
            variant="auto",
            kernel="scipy",
            max_rounds=4,
            floor_bytes=1,
        )
        plan = find_plan(spec, request, Machine())
        graph = build_graph(plan, "warm_up", "warm_up", "shared", False)
        graph |= {("warm_up", i): values[16 * i : 16 * i + 16] for i in range(4)}
        name = output_name(plan, "warm_up")
        get_sync(graph, [(name, *block) for block in plan.result.indices()])


def own_version() -> str:
    """Return the version of the package in this process."""
    return str(sys.modules["dask_bigfft"].__version__)


def make_ready(worker: Any, nbytes: int, block: int) -> None:
    """Take memory for blocks of some size, and touch it; the rest is a buffer of its own.

    Buffers are lent to blocks of about their size: a single one would serve hardly any.
    """
    configure_arena(worker)
    count, rest = divmod(nbytes, block)
    arena, threads = default_arena(), worker.state.nthreads
    arena.prefault(block, count=count, threads=threads)
    arena.prefault(rest, threads=threads)


class PrefaultPlugin(WorkerPlugin):  # type: ignore[misc, unused-ignore]
    """Makes memory of a worker's arena ready before its first task: taken, and touched.

    Parameters
    ----------
    nbytes : int
        Bytes.
    block : int
        Bytes of the blocks that it is for.
    """

    name = f"{METRIC}-prefault"
    idempotent = True

    def __init__(self, nbytes: int, block: int) -> None:
        self.nbytes, self.block = nbytes, block

    async def setup(self, worker: Any) -> None:
        """Make the memory ready, in a thread."""
        self.worker = worker
        await asyncio.get_running_loop().run_in_executor(None, self._prepare)

    def _prepare(self) -> None:
        if self.nbytes:
            make_ready(self.worker, self.nbytes, self.block)

    def teardown(self, worker: Any) -> None:
        """Give back the memory that no block uses."""
        if self.nbytes:
            default_arena().trim()


class WatchWorker(WorkerPlugin):  # type: ignore[misc, unused-ignore]
    """Makes a worker ready for transforms and counts what it does.

    Parameters
    ----------
    version : str
        Of the package, where the client is.
    """

    name = METRIC
    idempotent = True

    def __init__(self, version: str) -> None:
        self.version = version

    async def setup(self, worker: Any) -> None:
        """Prepare in a thread, so that the worker goes on answering."""
        self.worker, here = worker, own_version()
        if here != self.version:
            logger.warning(
                "Worker %s has dask_bigfft %s, the client that registered it has %s: install the "
                "same version in both",
                worker.address,
                here,
                self.version,
            )
        await asyncio.get_running_loop().run_in_executor(None, self._prepare)
        worker.metrics[METRIC] = self.metrics
        _listen(+1)

    def _prepare(self) -> None:
        configure_arena(self.worker)
        warm_up()

    def metrics(self, worker: Any) -> dict[str, Any]:
        """Return what the worker has measured, as plain numbers, for a heartbeat."""
        return {
            "version": own_version(),
            "counters": RECORD.counters(str(worker.address)),
            "arena": asdict(default_arena().counters()),
        }

    def teardown(self, worker: Any) -> None:
        """Give back what the plugin has taken: its metric, what is remembered, idle memory."""
        worker.metrics.pop(METRIC, None)
        RECORD.forget(str(worker.address))
        if not _listen(-1):
            default_arena().trim()


def _listen(change: int) -> int:
    """Count the workers of this process that are watched; return how many there are."""
    global _watching
    with _lock:
        _watching = max(0, _watching + change)
        if _watching:
            add_sink(digest)
        else:
            remove_sink(digest)
        return _watching
