"""What is used of distributed's peer-to-peer shuffle that is not its public API.

All such names are in this file, and probed when it is imported: if one has moved, or takes other
parameters, the import fails and `p2p` falls back.

Source of the protocol: `distributed.shuffle` 2026.8 (`_core.py`, `_rechunk.py`).

Imports distributed.
"""

import inspect
from collections.abc import Callable
from typing import Any

from distributed.comm.core import CommClosedError
from distributed.core import Status
from distributed.exceptions import Reschedule
from distributed.protocol.utils import pack_frames_prelude
from distributed.scheduler import Scheduler
from distributed.shuffle._core import (
    P2PBarrierTask,
    ShuffleRun,
    ShuffleSpec,
    barrier_key,
    get_worker_plugin,
    handle_transfer_errors,
    handle_unpack_errors,
    p2p_barrier,
)
from distributed.shuffle._disk import DiskShardsBuffer
from distributed.shuffle._exceptions import DataUnavailable
from distributed.shuffle._limiter import ResourceLimiter
from distributed.shuffle._pickle import unpickle_bytestream
from distributed.shuffle._scheduler_plugin import ShuffleSchedulerPlugin
from distributed.shuffle._worker_plugin import ShuffleWorkerPlugin
from distributed.utils import sync

__all__ = [
    "CommClosedError", "DataUnavailable", "P2PBarrierTask", "Reschedule", "ResourceLimiter",
    "ShuffleRun", "ShuffleSpec", "barrier_key", "get_worker_plugin", "handle_transfer_errors",
    "handle_unpack_errors", "p2p_barrier", "pack_frames_prelude", "scheduler_runs", "schedulers",
    "sync", "unpickle_bytestream",
]

#: Schedulers of this process.
schedulers = Scheduler._instances


def scheduler_runs() -> bool:
    """Whether a scheduler runs in this process."""
    return any(scheduler.status == Status.running for scheduler in schedulers)


#: What this file takes for granted: parameters of a function, by its name.
_EXPECTED: dict[Callable[..., Any], str] = {
    ShuffleRun.__init__: (
        "self id run_id span_id local_address directory executor rpc digest_metric scheduler "
        "memory_limiter_disk memory_limiter_comms disk loop"
    ),
    ShuffleRun._shard_partition: "self data partition_id",
    ShuffleRun._receive: "self data",
    ShuffleRun._get_output_partition: "self partition_id key kwargs",
    ShuffleRun._get_assigned_worker: "self i",
    ShuffleRun._read_from_disk: "self id",
    ShuffleRun._write_to_disk: "self data",
    ShuffleRun.inputs_done: "self",
    ShuffleRun.close: "self",
    ResourceLimiter.__init__: "self limit metrics_label",
    ShuffleRun.send: "self address shards",
    ShuffleRun.receive: "self data",
    ShuffleRun.read: "self path",
    ShuffleRun.deserialize: "self buffer",
    DiskShardsBuffer.__init__: "self directory read memory_limiter",
    DiskShardsBuffer._write_frames: "self frames id",
    ShuffleSpec.__init__: "self id disk",
    ShuffleSpec.pick_worker: "self partition workers",
    ShuffleSpec.create_new_run: "self worker_for span_id",
    ShuffleSchedulerPlugin._set_restriction: "self ts worker",
    ShuffleSpec.create_run_on_worker: "self run_id span_id worker_for plugin",
    ShuffleRun.add_partition: "self data partition_id",
    ShuffleWorkerPlugin.get_or_create_shuffle: "self shuffle_id",
    ShuffleWorkerPlugin.get_output_partition: "self shuffle_id run_id partition_id meta",
    P2PBarrierTask.__init__: "self key func args spec kwargs",
    p2p_barrier: "id run_ids",
    pack_frames_prelude: "frames",
    barrier_key: "shuffle_id",
    handle_transfer_errors: "id",
    handle_unpack_errors: "id",
}


def _probe() -> None:
    """Fail like a missing name does where distributed has another interface than is known here."""
    for function, expected in _EXPECTED.items():
        found = " ".join(inspect.signature(function).parameters)
        if found != expected:
            raise ImportError(f"{function.__qualname__}({found}) has changed")
    abstract = {"output_partitions", "pick_worker", "create_run_on_worker"}
    if ShuffleSpec.__abstractmethods__ != abstract:
        raise ImportError(f"ShuffleSpec leaves open {sorted(ShuffleSpec.__abstractmethods__)}")


_probe()
