"""Our part in distributed's peer-to-peer shuffle: what is sent, where to, and what is kept.

Every name of distributed's that is not public API is in this file, and probed when it is imported:
if one has moved, the import fails and `p2p` falls back. A shuffle runs like this::

    transfer task   packs what its source block gives to each worker, and sends it
    send, receive   batched and limited by distributed; what stays on a worker takes no socket
    memory          shards wait by target block, as far as there is room
    storage         others wait in files under the worker's directory, tiny ones of several blocks
                    in one file; what cannot be written is a `StorageError`
    barrier task    all source blocks are in
    output task     reads the shards of its block

A `Spec` travels inside the barrier task, makes a `ShuffleRun` on every worker, and says which
worker a target block belongs to. What is sent is packed by the task itself, so neither knows the
plan. When a worker is lost, distributed starts the shuffle anew, under another number; so it does
where a block is asked for whose shards were in memory and have gone.

Source of the protocol: `distributed.shuffle` 2026.8 (`_core.py`, `_rechunk.py`).

Imports distributed, and of this package `config`, `events`, `memory_settings` and this room.
"""

import contextlib
import inspect
import itertools
import math
import mmap
import os
import struct
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
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

from dask_bigfft import config
from dask_bigfft.events import emit
from dask_bigfft.exchange import p2p_shards
from dask_bigfft.exchange.p2p_shards import Array, Block, Kept, Message, Room, StorageError
from dask_bigfft.memory_settings import pressure

__all__ = [
    "CommClosedError", "P2PBarrierTask", "Reschedule", "Run", "Spec", "StorageError", "barrier_key",
    "get_worker_plugin", "handle_transfer_errors", "handle_unpack_errors", "p2p_barrier", "release",
    "scheduler_runs",
]

_schedulers = Scheduler._instances


def scheduler_runs() -> bool:
    """Whether a scheduler runs in this process."""
    return any(scheduler.status == Status.running for scheduler in _schedulers)


#: Whoever gets what is packed for some target blocks: a worker, or here, what waits together.
Owner = str | Block
#: Packs a source block: owners of target blocks and these along each axis in, messages out.
Pack = Callable[[Callable[[Block], Owner], tuple[Sequence[int], ...]], dict[Owner, Message]]

#: Bytes at whole multiples of which the values of a part begin in a file, and so in memory.
ALIGNMENT = 64


def aligned_frames(frames: Iterable[Any], begin: int) -> Iterator[Any]:
    """Give frames of pickled parts with values that begin at whole multiples of `ALIGNMENT`.

    Whoever gathers from a file that is mapped then needs no copy. What fills the gaps is behind
    each pickle, where nobody reads.

    Parameters
    ----------
    frames : iterable of buffers
        Of each pickle a prelude (how many frames follow, and their lengths), the pickle, and the
        values.
    begin : int
        Where in the file the first one will stand, in bytes.
    """
    stream, place = iter(frames), begin
    for prelude in stream:
        (count,) = struct.unpack_from("Q", prelude)
        pickled, *values = itertools.islice(stream, count)
        gap = -(place + len(prelude) + len(pickled)) % ALIGNMENT
        own = [pickled + bytes(gap), *values]
        for frame in (pack_frames_prelude(own), *own):
            place += memoryview(frame).nbytes
            yield frame


class Run(ShuffleRun[Block, Any]):  # type: ignore[misc, unused-ignore]
    """A shuffle on one worker.

    Parameters
    ----------
    worker_for : dict
        Worker of every target block.
    targets : tuple of sequences of int
        Target blocks along each axis.
    plan, number : str, int
        Token of the plan and the exchange, for events.
    disk : bool
        Whether shards wait in files where there is no room in memory.
    together : int
        Number of target blocks whose shards wait in one file.
    room : Room
        Of the worker's memory.
    lasting : bool
        Whether shards stay when their block has been put together, as others want it, too.
    **environment
        What the base class takes.
    """

    def __init__(
        self, *, worker_for: dict[Block, str], targets: tuple[Sequence[int], ...], plan: str,
        number: int, disk: bool, room: Room, together: int = 1, lasting: bool = False,
        **environment: Any,
    ) -> None:
        self._folder = Path(environment["directory"])
        try:
            super().__init__(disk=disk, **environment)
        except OSError as error:  # the folder cannot be made
            worker = environment["local_address"]
            raise p2p_shards.cannot_keep(self._folder, error, 0, worker) from error
        storage: Any = self._disk_buffer
        if disk:
            storage._write_frames = self._write_frames
        self.worker_for = worker_for
        self.targets, self.plan, self.number = targets, plan, number
        self.files = p2p_shards.Files(self._mine() if together > 1 else (), together)
        self.waiting = p2p_shards.Waiting(room if disk else None)
        self._began_anew, self._lasting = 0, lasting
        _runs[self.local_address, self.id, self.run_id] = self

    def _mine(self) -> Iterator[Block]:
        """Target blocks of this worker, row-major."""
        found = (block for block in itertools.product(*self.targets) if block in self.worker_for)
        return (block for block in found if self.worker_for[block] == self.local_address)

    def _owner(self, block: Block) -> Owner:
        worker = self.worker_for[block]
        return self.files.name(block) if worker == self.local_address else worker

    def _shard_partition(
        self, data: Pack, partition_id: Block
    ) -> dict[str, tuple[Block, list[Message]]]:
        found: dict[str, tuple[Block, list[Message]]] = {}
        for owner, message in data(self._owner, self.targets).items():
            worker = owner if isinstance(owner, str) else self.local_address
            found.setdefault(worker, (partition_id, []))[1].append(message)
        return found

    async def send(self, address: str, shards: list[tuple[Block, list[Message]]]) -> Any:
        """Send messages to a worker; those to this one are handed over."""
        started = time.perf_counter()
        if address == self.local_address:
            await self._take_in(shards, copy=False)
            answer: Any = {"status": "OK"}
        else:
            answer = await super().send(address, shards)
        nbytes = sum(message[2].nbytes for _, messages in shards for message in messages)
        seconds = time.perf_counter() - started
        emit("send", plan=self.plan, index=self.number + 1, nbytes=nbytes, seconds=seconds)
        return answer

    async def _receive(self, data: list[tuple[Block, list[Message]]]) -> None:
        await self._take_in(data, copy=True)

    async def _take_in(self, data: list[tuple[Block, list[Message]]], copy: bool) -> None:
        """Keep shards, or copies of them, in memory as far as there is room, and else in files."""
        self.raise_if_closed()
        shards: dict[Block, list[Kept]] = defaultdict(list)
        for source, messages in data:
            if source in self.received:  # sent again because the answer was lost
                continue
            self.received.add(source)
            for message in messages:
                self.total_recvd += message[2].nbytes
                for name, part in self.files.parts(source, message):
                    if not self.waiting.keep(name, part, copy):
                        shards[name].append(part)
        if shards:
            try:
                await self._write_to_disk(shards)
            except StorageError:  # its buffer raises it again for whoever asks for a block
                raise
            except Exception as error:
                self._exception = error
                raise

    async def inputs_done(self) -> None:
        """Wait until all is sent.

        Shards that some worker could not keep are no reason to stop here: of that the scheduler
        would hand on half a text. Tasks are told that send more to that worker, or ask for blocks.
        """
        with contextlib.suppress(StorageError):
            await super().inputs_done()

    def _write_frames(self, frames: Iterable[Any], id: str) -> None:
        """Append to the file of some target blocks."""
        path, parts, before = self._folder / id, list(frames), 0
        try:
            with path.open("ab") as file:
                before = file.tell()
                file.writelines(aligned_frames(parts, before))
        except OSError as error:
            written = 0
            with contextlib.suppress(OSError):
                written = path.stat().st_size - before
            missing = sum(memoryview(part).nbytes for part in parts) - written
            raise p2p_shards.cannot_keep(path, error, missing, self.local_address) from error

    def _get_output_partition(
        self, partition_id: Block, key: Any, **kwargs: Any
    ) -> list[tuple[Block, int, Array]]:
        try:
            found = self.files.shards_of(partition_id, self._parts_in)
        except p2p_shards.Gone:
            sync(self._loop, self._begin_anew, partition_id)
            raise
        self.raise_if_closed()  # else what was in memory may be missing
        return found

    def _parts_in(self, name: Block) -> Iterator[Kept]:
        """What waits in memory and in a file."""
        found = self.waiting.parts(name)
        try:
            stored = self._read_from_disk(name)
        except DataUnavailable:  # nothing was written: whoever asked knows whether that is right
            stored = []
        return itertools.chain(found, *stored)

    def release(self, block: Block) -> None:
        """Forget what waits in memory for a block that has been put together."""
        name = None if self._lasting else self.files.done(block)
        if name is not None:
            self.waiting.release(name)

    async def _begin_anew(self, block: Block) -> None:
        """Have the scheduler begin the shuffle anew, since shards have gone that are asked for.

        That is where a block is lost, or given up by everyone, and wanted again while others have
        not been put together. The task that asked is among those that are done again.
        """
        self._began_anew += 1
        if self._began_anew > MOST_ANEW:
            raise RuntimeError(f"{self}: shards of block {block} have gone")
        with contextlib.suppress(KeyError, ValueError):  # that has happened already
            await self.scheduler.shuffle_barrier(
                id=self.id, run_id=self.run_id, consistent=False
            )
        raise Reschedule

    async def close(self) -> None:
        """Forget all shards."""
        try:
            await super().close()
        finally:
            self.waiting.close()

    def _get_assigned_worker(self, i: Block) -> str:
        return self.worker_for[i]

    def read(self, path: Path) -> tuple[Any, int]:
        """Lists of shards in a file, whose values are mapped and not read yet, and its size."""
        with path.open(mode="r+b") as file:
            buffer = memoryview(mmap.mmap(file.fileno(), 0))
        return list(unpickle_bytestream(buffer)), buffer.nbytes

    def deserialize(self, buffer: Any) -> Any:
        """What was stored."""
        return buffer


#: How often a run may have the scheduler begin anew: it does not while a task has failed.
MOST_ANEW = 8

#: Shuffles of this process by worker, name and attempt.
_runs: weakref.WeakValueDictionary[tuple[str, str, int], Run] = weakref.WeakValueDictionary()


def release(worker: str, shuffle: str, attempt: int, block: Block) -> None:
    """Forget what waits in a worker's memory for a block that has been put together."""
    run = _runs.get((worker, shuffle, attempt))
    if run is not None:
        run.release(block)


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
    width : int
        Number of target blocks that a worker gets in turn.
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
    width: int
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
        """Worker of a target block: in turn, so that none has a turn more than another.

        Distributed hands the workers over in another rotation for every shuffle; sorted, they
        take turns over all groups of an exchange as over the blocks of one.
        """
        return _in_order(tuple(workers))[self.rank(partition) // self.width % len(workers)]

    def create_new_run(self, worker_for: dict[Block, str], span_id: str | None) -> Any:
        """Return the shuffle as the scheduler has it, which knows where target blocks belong.

        Else tasks would be tried on any worker, and sent away one after the other where their turn
        comes, while others wait for them. What has been fused with another task is tried.

        Tasks of several names are those of several computations, which may want the same blocks.
        """
        key, names = barrier_key(self.id), set[Any]()
        for scheduler in list(_schedulers):
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
