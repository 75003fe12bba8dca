"""What a shuffle is, wherever it runs: its target blocks, whose they are, and what it may hold.

A `Spec` travels inside the barrier task. It makes a `Run` on every worker, within buffers that all
shuffles of the worker share, and says which worker a target block belongs to.

Imports `config`, `memory_settings` and this room.
"""

import itertools
import math
import os
import weakref
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from dask_bigfft import config
from dask_bigfft.exchange.p2p_private import ResourceLimiter, ShuffleSpec, barrier_key, schedulers
from dask_bigfft.exchange.p2p_run import Run
from dask_bigfft.exchange.p2p_shards import Block, Room
from dask_bigfft.exchange.turns import Turns
from dask_bigfft.memory_settings import pressure

__all__ = ["Spec"]


class _Buffers:
    """What shuffles of a worker may hold in memory: in flight, before it is written, and waiting.

    All of it is no more than distributed's settings allow for the former two, which it takes a
    quarter and an eighth of at most.
    """

    def __init__(self, plugin: Any) -> None:
        comms, disk = plugin.memory_limiter_comms.limit, plugin.memory_limiter_disk.limit
        flying, writing = min(comms, (comms + disk) // 4), min(disk, (comms + disk) // 8)
        self.comms = ResourceLimiter(flying, metrics_label="p2p-comms-limiter")
        self.disk = ResourceLimiter(writing, metrics_label="p2p-disk-limiter")
        self.most = comms + disk - flying - writing
        self.room = Room(self.most, pressure(plugin.worker))


_buffers: weakref.WeakKeyDictionary[Any, _Buffers] = weakref.WeakKeyDictionary()


def _buffers_of(plugin: Any) -> _Buffers:
    """Buffers of a worker, as large as the settings are now."""
    found = _buffers.get(plugin)
    if found is None:
        found = _buffers[plugin] = _Buffers(plugin)
    wanted = config.get("bigfft.exchange.shuffle-memory")
    found.room.most = found.most if wanted is None else min(wanted, found.most)
    return found


@lru_cache(maxsize=16)
def _in_order(workers: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(workers))


@dataclass(frozen=True)
class Spec(ShuffleSpec[Block]):  # type: ignore[misc, unused-ignore]
    """What a shuffle does, wherever it runs.

    Parameters
    ----------
    targets : tuple of sequences of int
        Target blocks along each axis: those of one connected group of an exchange.
    before : int
        Number of target blocks in the groups before this one.
    turns : Turns
        How workers take turns at the target blocks of all groups.
    plan : str
        Token of the plan.
    number : int
        Exchange of the plan, from 0.
    together : int
        Number of target blocks of a worker whose shards wait in one file.
    output : str
        Name of the tasks that put target blocks together, whose keys it begins.
    lasting : bool
        Whether shards stay until the shuffle is over.
    """

    targets: tuple[Sequence[int], ...]
    before: int
    turns: Turns
    plan: str
    number: int
    together: int = 1
    output: str = ""
    lasting: bool = False

    @property
    def output_partitions(self) -> Generator[Block, None, None]:
        """All target blocks."""
        yield from itertools.product(*self.targets)

    def rank(self, partition: Block) -> int:
        """Number of a target block among those of all groups of the exchange."""
        rank = 0
        for i, along in zip(partition, self.targets, strict=True):
            rank = rank * len(along) + along.index(i)
        return self.before + rank

    def pick_worker(self, partition: Block, workers: Sequence[str]) -> str:
        """Worker of a target block: in turn, so that none has a block more than another.

        Distributed hands the workers over in another rotation for every shuffle; sorted, they
        take turns over all groups of an exchange as over the blocks of one.
        """
        return _in_order(tuple(workers))[self.turns.owner(self.rank(partition), len(workers))]

    def create_new_run(self, worker_for: dict[Block, str], span_id: str | None) -> Any:
        """Return the shuffle as the scheduler has it, which knows where target blocks belong.

        Else tasks would be tried on any worker, and sent away one after the other where their turn
        comes, while others wait for them. What has been fused with another task is tried.

        Tasks of several names are those of several computations, which may want the same blocks.
        """
        key, names = barrier_key(self.id), set[Any]()
        for scheduler in list(schedulers):
            barrier = scheduler.tasks.get(key)
            if barrier is None or getattr(barrier.run_spec, "spec", None) is not self:
                continue
            plugin: Any = scheduler.plugins["shuffle"]
            for task in barrier.dependents:
                found: Any = task.key  # a name, or a name and a block
                names.add(found[0] if isinstance(found, tuple) else found)
                if isinstance(found, tuple) and found[0] == self.output:
                    plugin._set_restriction(task, worker_for[found[1:]])
        shared = replace(self, lasting=len(names) > 1)
        return super(Spec, shared).create_new_run(worker_for, span_id)

    def create_run_on_worker(
        self, run_id: int, span_id: str | None, worker_for: dict[Block, str], plugin: Any
    ) -> Run:
        """Return the shuffle as a worker has it."""
        worker, buffers = plugin.worker, _buffers_of(plugin)
        return Run(
            worker_for=worker_for, targets=self.targets, plan=self.plan, number=self.number,
            disk=self.disk, together=self.together, room=buffers.room, lasting=self.lasting,
            id=self.id,
            run_id=run_id,
            span_id=span_id,
            directory=os.path.join(worker.local_directory, f"shuffle-{self.id}-{run_id}"),
            executor=plugin._executor,
            local_address=worker.address,
            rpc=worker.rpc,
            digest_metric=worker.digest_metric,
            scheduler=worker.scheduler,
            memory_limiter_disk=buffers.disk,
            memory_limiter_comms=buffers.comms,
            loop=worker.loop,
        )

    def __len__(self) -> int:
        return math.prod(map(len, self.targets))
