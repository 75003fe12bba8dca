"""The carrier `p2p`: exchanges on distributed's peer-to-peer rechunk.

A source block is packed once for each worker and sent. A barrier waits until everything has
arrived. Each target block is then assembled from its shards. Distributed batches, limits, sends,
stores and restarts. This module overrides the following, with measured benefits:

- placement: target blocks are assigned to the workers in turn, evenly in any number of dimensions,
  and only to running workers with the resources of the tasks;
- shards for blocks of the same worker do not go through a socket;
- the shards of a source block for one worker are one array instead of one message each;
- shards wait in memory as far as there is room, and are freed block by block;
- shards in memory are aligned, so that a gather needs no further copy;
- a worker that cannot write a file reports the file and the missing room.

This module uses distributed's private names. Its import fails if one is missing, and `try_exchange`
if a block does not travel through them. Exchanges then use the carrier `tasks`, and so do those of
graphs that are built after a worker has met a change that neither of these found (`has_failed`).
"""

import contextlib
import errno
import itertools
import os
import threading
import time
import weakref
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import dask.config
import numpy as np
from distributed.comm.core import CommClosedError
from distributed.exceptions import Reschedule
from distributed.scheduler import Scheduler
from distributed.shuffle._core import (
    P2PBarrierTask,
    ShuffleRun,
    barrier_key,
    get_worker_plugin,
    handle_transfer_errors,
    handle_unpack_errors,
    p2p_barrier,
)
from distributed.shuffle._disk import DiskShardsBuffer
from distributed.shuffle._exceptions import DataUnavailable
from distributed.shuffle._limiter import ResourceLimiter
from distributed.shuffle._rechunk import ArrayRechunkRun, ArrayRechunkSpec
from distributed.shuffle._scheduler_plugin import ShuffleSchedulerPlugin
from distributed.shuffle._worker_plugin import ShuffleWorkerPlugin
from distributed.utils import LoopRunner, sync

from dask_bigfft import config
from dask_bigfft.arrays import Array, Block
from dask_bigfft.carriers.names import TOPIC
from dask_bigfft.errors import CarrierError, ScratchError
from dask_bigfft.events import emit, schedulers_here
from dask_bigfft.files import explained
from dask_bigfft.memory import allocate
from dask_bigfft.memory.limits import pressure

#: Target blocks, bounds of their shards, the shards in one array, and their checksums (0: none).
Message = tuple[Array, Array, Array, Array]

#: Packs a source block, given the worker of a target block and the target blocks along each axis.
Pack = Callable[[Callable[[Block], str], tuple[Sequence[int], ...]], dict[str, Message]]

#: Waiting shard: its source block, its checksum, its values.
Shard = tuple[Block, int, Array]

#: Number of requests to the scheduler of a shuffle before a lost connection is an error.
ATTEMPTS = 3

#: Errors of calls that distributed no longer takes as they are made here.
CHANGED = (AttributeError, ImportError, NotImplementedError, TypeError)


class StorageError(RuntimeError):
    """Failure of a worker to store shards, with errno, text and path of an `OSError`.

    Distributed treats an `OSError` as a lost connection and repeats the send for minutes.
    """

    @classmethod
    def of(
        cls,
        path: Path,
        error: OSError,
        missing: int,
        worker: str,
    ) -> "StorageError":
        """Return the error for a file that could not be written.

        If the disk or a quota is full, or the file too large (ENOSPC, EDQUOT, EFBIG), its text has
        the number of `missing` bytes.
        """
        text = explained(
            path,
            error,
            missing,
            f"shards that wait on the worker {worker}",
        )
        text += "; give workers a `local_directory` with more room (dask's temporary-directory)"
        return cls(error.errno or errno.EIO, text, str(path))


class MemoryBudget:
    """Budget for shards in a worker's memory, which all its shuffles share.

    Parameters
    ----------
    limit : int
        Budget in bytes.
    pressed : callable, optional
        Returns whether the worker has too little memory for more.
    """

    def __init__(self, limit: int, pressed: Callable[[], bool] | None = None) -> None:
        self.limit = limit
        self.nbytes = 0
        self._pressed = pressed
        self._lock = threading.Lock()

    def reserve(self, nbytes: int) -> bool:
        """Reserve `nbytes` bytes; return whether this was possible."""
        with self._lock:
            if self.nbytes + nbytes > self.limit or (self._pressed and self._pressed()):
                return False
            self.nbytes += nbytes
            return True

    def release(self, nbytes: int) -> None:
        """Free reserved bytes."""
        with self._lock:
            self.nbytes -= nbytes


class _Limits:
    """Limits of all shuffles of a worker for shards in flight, being written, and in memory.

    Their sum is the memory that distributed's settings allow for the first two.
    """

    def __init__(self, plugin: Any) -> None:
        comms = plugin.memory_limiter_comms.limit
        disk = plugin.memory_limiter_disk.limit
        in_flight = min(comms, (comms + disk) // 4)
        being_written = min(disk, (comms + disk) // 8)
        self.comms = ResourceLimiter(in_flight, metrics_label="p2p-comms-limiter")
        self.disk = ResourceLimiter(being_written, metrics_label="p2p-disk-limiter")
        self.memory_nbytes = comms + disk - in_flight - being_written
        self.memory = MemoryBudget(self.memory_nbytes, pressure(plugin.worker))


#: Limits by the plugin of each worker.
_limits: weakref.WeakKeyDictionary[Any, _Limits] = weakref.WeakKeyDictionary()


class RechunkRun(ArrayRechunkRun):
    """Shuffle on one worker.

    Parameters
    ----------
    spec : Spec
        Specification of the shuffle.
    budget : MemoryBudget
        Budget for shards in memory.
    **environment
        Parameters of the base class.
    """

    def __init__(self, spec: "Spec", budget: MemoryBudget, **environment: Any) -> None:
        super().__init__(old=(), new=(), **environment)
        self._folder = Path(environment["directory"])
        if environment["disk"]:
            vars(self._disk_buffer)["_write_frames"] = self._write_frames
        self.spec = spec
        self._budget = budget
        self._in_memory: dict[Block, list[Shard]] = {}
        self._freed = set[Block]()

    def _shard_partition(self, data: Any, partition_id: Block) -> dict[str, Any]:
        messages = data(self.worker_for.__getitem__, self.spec.targets)
        return {worker: (partition_id, [message]) for worker, message in messages.items()}

    async def send(self, address: str, shards: list[tuple[Block, list[Message]]]) -> Any:
        """Send messages to a worker; keep messages for this one."""
        started = time.perf_counter()
        answer = dict[str, Any](status="OK")
        if address == self.local_address:
            await self._receive(shards)
        else:
            answer |= await super().send(address, shards)
        nbytes = sum(message[2].nbytes for _, messages in shards for message in messages)
        index = self.spec.number + 1
        seconds = time.perf_counter() - started
        if self.spec.plan:  # a trial has none
            emit(
                "send",
                plan=self.spec.plan,
                index=index,
                nbytes=nbytes,
                seconds=seconds,
            )
        return answer

    async def _receive(self, data: Any) -> None:
        """Keep shards in memory while there is room; the base class stores the others."""
        self.raise_if_closed()
        stored: list[Any] = []
        for source, messages in data:
            if source in self.received:  # sent again because the answer was lost
                continue
            unkept_shards: list[tuple[Block, Shard]] = []
            for message in messages:
                unkept_shards += self._unkept(source, message)
            if unkept_shards:
                stored.append((source, unkept_shards))
            else:
                self.received.add(source)
        await super()._receive(stored)

    def _unkept(self, source: Block, message: Message) -> list[tuple[Block, Shard]]:
        """Return the shards of a message, by target block, that are not kept in memory.

        If there is room for the message all are kept, and none are returned. Each shard has its own
        memory, which is freed with its block.
        """
        blocks, bounds, values, checksums = message
        cuts = itertools.pairwise(bounds.tolist())
        shards: list[tuple[Block, Shard]] = []
        for block, checksum, cut in zip(
            blocks.tolist(),
            checksums.tolist(),
            cuts,
            strict=True,
        ):
            shards.append((tuple(block), (source, checksum, values[slice(*cut)])))
        if not self._budget.reserve(values.nbytes):
            return shards
        copies: list[tuple[Block, Shard]] = []
        try:
            for block, (_, checksum, part) in shards:
                copies.append((block, (source, checksum, _copied(part))))
        except BaseException:
            self._budget.release(values.nbytes)
            raise
        for block, shard in copies:
            self._in_memory.setdefault(block, []).append(shard)
        return []

    async def inputs_done(self) -> None:
        """Wait until everything is sent; the tasks raise storage errors with the whole text."""
        with contextlib.suppress(StorageError):
            await super().inputs_done()

    def _write_frames(self, frames: Iterable[Any], id: str) -> None:
        """Append pickled shards to the file of a target block; name it and its room in errors."""
        path = self._folder / id
        before = 0
        frames = list(frames)
        try:
            with path.open("ab") as file:
                before = file.tell()
                file.writelines(frames)
        except OSError as error:
            missing = sum(memoryview(frame).nbytes for frame in frames)
            with contextlib.suppress(OSError):
                missing -= path.stat().st_size - before
            raise StorageError.of(
                path,
                error,
                missing,
                self.local_address,
            ) from error

    def _get_output_partition(self, partition_id: Block, key: Any, **kwargs: Any) -> Any:
        """Return the shards of a target block, and a function that frees them."""
        in_memory = list(self._in_memory.get(partition_id, ()))
        if partition_id in self._freed:
            sync(self._loop, self._restart)
        stored: list[list[Shard]] = []
        with contextlib.suppress(DataUnavailable):  # nothing was stored
            stored = self._read_from_disk(partition_id)
        self.raise_if_closed()  # otherwise shards in memory may be missing
        return [*in_memory, *itertools.chain(*stored)], lambda: self._free(partition_id)

    def _free(self, block: Block) -> None:
        """Free the shards of a block that has been assembled."""
        if not self.spec.lasting and block in self._in_memory:
            self._freed.add(block)
            self._release(self._in_memory.pop(block))

    def _release(self, shards: list[Shard]) -> None:
        """Release the reserved memory of shards."""
        self._budget.release(sum(values.nbytes for _, _, values in shards))

    async def _restart(self) -> None:
        """Restart the shuffle by the scheduler, because freed shards are needed again."""
        with contextlib.suppress(KeyError, ValueError):  # the shuffle has already been restarted
            await self.scheduler.shuffle_barrier(id=self.id, run_id=self.run_id, consistent=False)
        raise Reschedule

    async def close(self) -> None:
        """Free all shards."""
        try:
            await super().close()
        finally:
            while self._in_memory:
                self._release(self._in_memory.popitem()[1])


def _copied(values: Array) -> Array:
    """Return a copy in aligned memory; received data may have any address."""
    copy = allocate(values.shape, values.dtype)
    copy.view(np.uint8)[:] = values.view(np.uint8)
    return copy


@dataclass(frozen=True)
class Spec(ArrayRechunkSpec):
    """Specification of a shuffle, an attribute of its barrier task.

    Parameters
    ----------
    targets : tuple of sequences of int
        Target blocks along each axis, of one connected group of an exchange.
    before : int
        Number of target blocks in the groups before this one.
    plan : str
        Token of the plan.
    number : int
        Number of the exchange, from 0.
    output : str
        Name of the tasks that assemble target blocks; their keys are this name and the block.
    width : int
        Number of consecutive target blocks that a task assembles; its key has the first one.
    lasting : bool
        Whether shards are kept until the shuffle is over.
    """

    targets: tuple[Sequence[int], ...]
    before: int
    plan: str
    number: int
    output: str = ""
    width: int = 1
    lasting: bool = False

    @property
    def output_partitions(self) -> Generator[Block, None, None]:
        """Yield all target blocks."""
        yield from itertools.product(*self.targets)

    def rank(self, partition: Block) -> int:
        """Return the number of a target block among those of all groups of the exchange."""
        places = [along.index(i) for i, along in zip(partition, self.targets, strict=True)]
        return self.before + int(np.ravel_multi_index(places, [*map(len, self.targets)]))

    def pick_worker(self, partition: Block, workers: Collection[str]) -> str:
        """Return the worker of a target block, in round-robin order.

        Distributed rotates the list of workers for every shuffle. It is sorted here, so that the
        order continues over all groups of an exchange.
        """
        return sorted(workers)[self.rank(partition) // self.width % len(workers)]

    def create_new_run(self, worker_for: dict[Block, str], *arguments: Any, **named: Any) -> Any:
        """Return the scheduler's state of the shuffle, and restrict its tasks to their workers.

        Otherwise tasks are first tried on any worker and rescheduled one by one. Workers that are
        paused, or lack the resources of the tasks, get no blocks: these would wait for them. A
        restarted shuffle frees no shards, because several computations may need the same blocks.
        """
        for scheduler in list(Scheduler._instances):
            barrier = scheduler.tasks.get(barrier_key(self.id))
            if barrier is not None and getattr(barrier.run_spec, "spec", None) is self:
                able = _addresses_able(scheduler, barrier)
                if able and not able.issuperset(worker_for.values()):
                    worker_for = {block: self.pick_worker(block, able) for block in worker_for}
                plugin: Any = scheduler.plugins["shuffle"]
                for task in barrier.dependents:
                    key: Any = task.key  # fused tasks have other names, and no restriction
                    if isinstance(key, tuple) and key[0] == self.output:
                        plugin._set_restriction(task, worker_for[key[1:]])
        state = super(Spec, replace(self)).create_new_run(worker_for, *arguments, **named)
        object.__setattr__(self, "lasting", True)
        return state

    def create_run_on_worker(
        self,
        run_id: int,
        span_id: str | None,
        worker_for: dict[Block, str],
        plugin: Any,
    ) -> RechunkRun:
        """Return the shuffle of a worker."""
        worker = plugin.worker
        limits = _limits.get(plugin)
        if limits is None:
            limits = _Limits(plugin)
            _limits[plugin] = limits
        limit = config.get("bigfft.exchange.shuffle-memory")
        limits.memory.limit = limits.memory_nbytes
        if limit is not None:
            limits.memory.limit = min(limit, limits.memory_nbytes)
        folder = os.path.join(worker.local_directory, f"shuffle-{self.id}-{run_id}")
        try:
            return RechunkRun(
                self,
                limits.memory if self.disk else MemoryBudget(1 << 62),
                worker_for=worker_for,
                id=self.id,
                run_id=run_id,
                span_id=span_id,
                local_address=worker.address,
                directory=folder,
                executor=plugin._executor,
                rpc=worker.rpc,
                digest_metric=worker.digest_metric,
                scheduler=worker.scheduler,
                memory_limiter_disk=limits.disk,
                memory_limiter_comms=limits.comms,
                disk=self.disk,
                loop=worker.loop,
            )
        except OSError as error:  # the folder cannot be made
            raise StorageError.of(
                Path(folder),
                error,
                0,
                worker.address,
            ) from error


def _addresses_able(scheduler: Any, task: Any) -> set[str]:
    """Return the addresses of the running workers that the restrictions of a task allow."""
    able = scheduler.valid_workers(task)
    if able is None:  # there are no restrictions
        able = scheduler.running
    return {worker.address for worker in able if worker in scheduler.running}


def _probe() -> None:
    """Raise if distributed does not have all names that are used here."""
    used = {
        ShuffleRun: "add_partition close inputs_done raise_if_closed receive send",
        ArrayRechunkRun: "_get_output_partition _read_from_disk _receive _shard_partition",
        ArrayRechunkSpec: "create_new_run create_run_on_worker pick_worker",
        DiskShardsBuffer: "_write_frames",
        Scheduler: "_instances valid_workers",
        ShuffleSchedulerPlugin: "_set_restriction",
        ShuffleWorkerPlugin: "get_or_create_shuffle get_output_partition",
    }
    missing = [
        f"{kind.__name__}.{name}"
        for kind, names in used.items()
        for name in names.split()
        if not hasattr(kind, name)
    ]
    if missing or (missing := sorted(getattr(Spec, "__abstractmethods__", ()))):
        raise ImportError(f"distributed has changed: {', '.join(missing)}")


_probe()


class _TrialWorker:
    """Stand-in for a worker and its plugin, with all that a shuffle takes from them."""

    def __init__(self, loop: Any) -> None:
        self.worker = self
        self.loop = loop
        self.address = "trial"
        self.local_directory = ""
        self.rpc = None
        self.scheduler = None
        self.memory_manager = self
        self.memory_target_fraction = False
        self.memory_limiter_comms = ResourceLimiter(1 << 20)
        self.memory_limiter_disk = ResourceLimiter(1 << 20)
        self._executor = None

    def digest_metric(self, name: Any, value: float) -> None:
        """Ignore a number."""


def try_exchange() -> None:
    """Send a block through a shuffle of this process alone; raise if it does not arrive.

    This finds changed parameters of distributed's classes before a shuffle of a user does. It takes
    some milliseconds.
    """
    block = (0,)
    values = np.arange(3.0)
    message = (np.array([block]), np.array([0, 3]), values, np.zeros(1, np.uint64))
    spec = Spec(
        id=cast("Any", "trial"),
        disk=False,
        new=(),
        old=(),
        targets=(range(1),),
        before=0,
        plan="",
        number=0,
    )

    async def make_run() -> RechunkRun:
        return spec.create_run_on_worker(1, None, {block: "trial"}, _TrialWorker(runner.loop))

    def pack(owner_of: Callable[[Block], str], targets: Any) -> dict[str, Message]:
        return {owner_of(block): message}

    runner = LoopRunner()
    runner.start()
    try:
        run: Any = sync(runner.loop, make_run)
        run.add_partition(pack, partition_id=block)
        sync(runner.loop, run.inputs_done)
        shards, free = run.get_output_partition(block, "trial")
        free()
        sync(runner.loop, run.close)
    finally:
        runner.stop()
    spec.create_new_run({block: "trial"}, None)
    if len(shards) != 1 or not np.array_equal(shards[0][2], values):
        raise ImportError("a block does not travel through distributed's shuffle")


def has_failed() -> bool:
    """Return whether a worker has told a scheduler of this process of changed private names."""
    return any(scheduler.get_events(TOPIC) for scheduler in schedulers_here())


@contextlib.contextmanager
def _changes_reported(plugin: Any, of_user: Sequence[BaseException] = ()) -> Iterator[None]:
    """Tell the scheduler of an error by changed private names, unless it is one `of_user`."""
    try:
        yield
    except RuntimeError as error:  # distributed's error names the phase
        cause = error.__cause__
        if not isinstance(cause, CHANGED) or cause in of_user:
            raise
        plugin.worker.log_event(TOPIC, repr(cause))
        raise CarrierError(
            "dask_bigfft does not know this version of distributed's peer-to-peer shuffle "
            f"({cause!r}). Exchanges of graphs that this scheduler receives from now on use tasks: "
            "compute once more"
        ) from error


def _with_retries(call: Callable[[], Any]) -> Any:
    """Return the scheduler's answer to a request, which is repeated if the connection is lost.

    Distributed repeats sends of shards after a lost connection, but not requests to the scheduler.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return call()
        except Exception as error:
            if not any(isinstance(e, CommClosedError) for e in (error, error.__cause__)):
                raise
    return call()


@contextlib.contextmanager
def _storage_errors() -> Iterator[None]:
    """Raise a `StorageError` as a `ScratchError`, which names the file."""
    try:
        yield
    except RuntimeError as error:  # distributed's error names the phase
        cause = error if isinstance(error, StorageError) else error.__cause__
        if isinstance(cause, StorageError):
            raise ScratchError(*cause.args) from cause
        raise


def barrier_task(shuffle: str, transfers: list[Any], **what: Any) -> Any:
    """Return the barrier task of a shuffle.

    Parameters
    ----------
    shuffle : str
        Name of the shuffle: different for each group of each exchange.
    transfers : list of TaskRef
        All transfer tasks.
    **what
        `targets`, `before`, `plan`, `number`, `output` and `width` of `Spec`.
    """
    disk = bool(dask.config.get("distributed.p2p.storage.disk", default=True))
    spec = Spec(
        id=cast("Any", shuffle),
        disk=disk,
        new=(),
        old=(),
        **what,
    )
    return P2PBarrierTask(
        barrier_key(spec.id),
        barrier,
        shuffle,
        *transfers,
        spec=spec,
    )


def barrier(shuffle: str, *sent: Mapping[str, Iterable[int]]) -> int:
    """Wait until all sent shards have arrived; return the number of the attempt.

    `sent` has the attempts of each transfer task by shuffle.

    Raises
    ------
    ScratchError
        If a worker cannot store shards, also in `transfer` and `collect`. The error names the file
        and the number of missing bytes.
    """
    attempts = sorted({attempt for by_shuffle in sent for attempt in by_shuffle[shuffle]})
    with _storage_errors(), _changes_reported(_plugin()):
        return int(_with_retries(lambda: p2p_barrier(cast("Any", shuffle), *attempts)))


def _plugin() -> Any:
    try:
        return get_worker_plugin()
    except RuntimeError as error:
        raise CarrierError(
            "the carrier 'p2p' works on the workers of a cluster only, and this graph runs "
            "elsewhere: set bigfft.exchange.carrier to 'auto' and build it again, or to 'shared' "
            "if a client is there and another scheduler computes"
        ) from error


def transfer(shuffle: str, source: Block, pack: Pack) -> int:
    """Send the shards of a source block to their workers; return the number of the attempt."""
    plugin = _plugin()
    name = cast("Any", shuffle)
    errors_of_pack: list[BaseException] = []

    def guarded(*arguments: Any) -> dict[str, Message]:
        """Pack the block; note an error, which is not distributed's."""
        try:
            return pack(*arguments)
        except Exception as error:
            errors_of_pack.append(error)
            raise

    with (
        _storage_errors(),
        _changes_reported(plugin, errors_of_pack),
        handle_transfer_errors(name),
    ):
        run = _with_retries(lambda: plugin.get_or_create_shuffle(name))
        return int(run.add_partition(guarded, partition_id=source))


def collect(
    shuffle: str, attempt: int, block: Block
) -> tuple[dict[Block, tuple[Array, int]], Callable[[], None]]:
    """Return the packed shards of a target block with checksums, and a function that frees them.

    Raises
    ------
    Reschedule
        On any worker except the block's; the task is then sent there.
    """
    plugin = _plugin()
    name = cast("Any", shuffle)
    with _storage_errors(), _changes_reported(plugin), handle_unpack_errors(name):
        shards, free = _with_retries(lambda: plugin.get_output_partition(name, attempt, block))
        return {tuple(source): (values, checksum) for source, checksum, values in shards}, free
