"""A shuffle on one worker: what is sent from it, what is kept there, and who asks for that.

A shuffle runs like this::

    transfer task   packs what its source block gives to each worker, and sends it
    send, receive   batched and limited by distributed; what stays on a worker takes no socket
    memory          shards wait by target block, as far as there is room
    storage         others wait in files under the worker's directory, tiny ones of several blocks
                    in one file; what cannot be written is a `StorageError`
    barrier task    all source blocks are in
    output task     reads the shards of its block

What is sent is packed by the task itself, so a run knows nothing of the plan. When a worker is
lost, distributed starts the shuffle anew, under another number; so it does where a block is asked
for whose shards were in memory and have gone.

Imports `events` and this room.
"""

import contextlib
import itertools
import mmap
import struct
import time
import weakref
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from dask_bigfft.events import emit
from dask_bigfft.exchange import p2p_shards
from dask_bigfft.exchange.p2p_private import (
    DataUnavailable,
    Reschedule,
    ShuffleRun,
    pack_frames_prelude,
    sync,
    unpickle_bytestream,
)
from dask_bigfft.exchange.p2p_shards import (
    Array,
    Block,
    Kept,
    Message,
    Owner,
    Pack,
    Room,
    StorageError,
)

__all__ = ["ALIGNMENT", "Run", "aligned_frames", "release"]

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
