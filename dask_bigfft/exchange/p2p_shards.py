"""Shards of a shuffle that wait on a worker until they are put together: in memory, or in files.

They are kept in memory as far as there is `Room`, which all shuffles of a worker share, and go to
files otherwise; each target block's go when it has been put together, so that those of the next
exchange find room. What comes from another process lies in memory of that connection, at any
address, together with shards of other blocks: it is copied once, into memory of the arena.

Imports `files` and `memory`.
"""

import errno
import itertools
import threading
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_bigfft.files import room_missing
from dask_bigfft.memory import lend

__all__ = [
    "MOST_OPEN", "Array", "Block", "Files", "Gone", "Kept", "Message", "Owner", "Pack",
    "Room", "StorageError", "Waiting", "cannot_keep",
]

Array = npt.NDArray[Any]
Block = tuple[int, ...]

#: Target blocks, bounds of their shards, the shards in one array, and their checksums (0: none).
Message = tuple[Array, Array, Array, Array]

#: Whom shards are packed for: the worker that puts their target blocks together; or, on that worker
#: itself, the block with which others wait in one piece of memory or one file.
Owner = str | Block

#: Packs a source block: takes who owns a target block, and the target blocks along each axis;
#: returns a message for each owner.
Pack = Callable[[Callable[[Block], Owner], tuple[Sequence[int], ...]], dict[Owner, Message]]

#: Files of several target blocks of which a worker remembers what is in them.
MOST_OPEN = 4


class Kept(NamedTuple):
    """What a source block gives to some target blocks, as it waits to be put together."""

    source: Block
    blocks: list[Block]
    #: Where each one's shard begins, and where the last one ends.
    bounds: list[int]
    checksums: list[int]
    values: Array

    def copy(self) -> "Kept":
        """The same in memory of its own, aligned."""
        values = lend(self.values.shape, self.values.dtype)
        values.view(np.uint8)[:] = self.values.view(np.uint8)
        return self._replace(values=values)


class StorageError(RuntimeError):
    """A worker cannot keep shards in its files; has errno, text and path of an `OSError`.

    It is none itself: of an `OSError` distributed believes that a connection was lost, and sends
    the same again and again for minutes.
    """


def cannot_keep(path: Path, error: OSError, missing: int, worker: str) -> StorageError:
    """Return what is to be raised where a worker's file cannot be written."""
    text = error.strerror or str(error)
    lack = room_missing(path, error, missing)
    if lack is not None:
        text += f": {lack} for shards that wait on the worker {worker}"
    text += "; give workers a `local_directory` with more room (dask's temporary-directory)"
    return StorageError(error.errno or errno.EIO, text, str(path))


class Gone(Exception):
    """Shards that are asked for were in memory, and their block has been put together."""


class Room:
    """Bytes of shards that wait in a worker's memory, of all its shuffles together.

    Parameters
    ----------
    most : int
        Bytes that may wait there.
    pressed : callable, optional
        Whether the worker has too little memory for more.
    """

    def __init__(self, most: int, pressed: Callable[[], bool] | None = None) -> None:
        self.most, self.nbytes = most, 0
        self._pressed, self._lock = pressed, threading.Lock()

    def take(self, nbytes: int) -> bool:
        """Count some bytes as taken, if there is room for them; return whether there is."""
        with self._lock:
            if self.nbytes + nbytes > self.most or (self._pressed is not None and self._pressed()):
                return False
            self.nbytes += nbytes
            return True

    def give_back(self, nbytes: int) -> None:
        """Count some bytes as free again."""
        with self._lock:
            self.nbytes -= nbytes


class Waiting:
    """Shards of one shuffle that wait in memory, by the file that they would wait in.

    Parameters
    ----------
    room : Room or None
        What they take; None where there is no limit.
    """

    def __init__(self, room: Room | None) -> None:
        self._room, self._lock = room, threading.Lock()
        self._parts: dict[Block, list[Kept]] = {}
        self._gone: set[Block] = set()
        self._closed = False

    def keep(self, name: Block, part: Kept, copy: bool) -> bool:
        """Keep a part, or a copy of it, if there is room; return whether it is kept."""
        if self._room is not None and not self._room.take(part.values.nbytes):
            return False
        done = False
        try:
            kept = part.copy() if copy else part
            with self._lock:
                done = not self._closed
                if done:
                    self._parts.setdefault(name, []).append(kept)
        finally:
            if not done:
                self._give_back([part])
        return done

    def parts(self, name: Block) -> list[Kept]:
        """What waits under a name.

        Raises
        ------
        Gone
            If it was released.
        """
        with self._lock:
            if name in self._gone:
                raise Gone
            return list(self._parts.get(name, ()))

    def release(self, name: Block) -> None:
        """Forget what waits under a name: its blocks have been put together."""
        with self._lock:
            parts = self._parts.pop(name, None)
            if parts is not None:
                self._gone.add(name)
        self._give_back(parts or ())

    def close(self) -> None:
        """Forget everything, and take in nothing more."""
        with self._lock:
            parts, self._parts, self._closed = self._parts, {}, True
        self._give_back(itertools.chain.from_iterable(parts.values()))

    def _give_back(self, parts: Iterable[Kept]) -> None:
        if self._room is not None:
            self._room.give_back(sum(part.values.nbytes for part in parts))


class Files:
    """Which target blocks' shards wait in one file: tiny ones of several, which costs less.

    Parameters
    ----------
    blocks : iterable of tuple of int
        Target blocks of this worker, in order; of others each has a file of its own.
    together : int
        How many of them share a file.
    """

    def __init__(self, blocks: Iterable[Block], together: int) -> None:
        self._name: dict[Block, Block] = {}
        for number, block in enumerate(blocks):
            if number % together == 0:
                first = block
            self._name[block] = first
        #: How many blocks of a file that several share have not been put together.
        self._left = Counter(self._name.values())
        self._done: set[Block] = set()
        self._lock = threading.Lock()
        self._read: OrderedDict[Block, dict[Block, list[tuple[Block, int, Array]]]] = OrderedDict()

    def parts(self, source: Block, message: Message) -> Iterator[tuple[Block, Kept]]:
        """Give the file of each part of a message, and the part."""
        blocks, bounds, values, checksums = message
        names = [tuple(block) for block in blocks.tolist()]
        ends, sums, low = bounds.tolist(), checksums.tolist(), 0
        for name, run in itertools.groupby(names, self.name):
            mine = list(run)
            high = low + len(mine)
            begins = [end - ends[low] for end in ends[low : high + 1]]
            yield name, Kept(source, mine, begins, sums[low:high], values[ends[low] : ends[high]])
            low = high

    def name(self, block: Block) -> Block:
        """The file of a target block: named by the first block in it."""
        return self._name.get(block, block)

    def done(self, block: Block) -> Block | None:
        """Note that a target block has been put together; return its file if all of that are."""
        name = self._name.get(block)
        if name is None:
            return block
        with self._lock:
            self._left[name] -= block not in self._done
            self._done.add(block)
            if self._left[name] > 0:
                return None
            self._read.pop(name, None)
            return name

    def shards_of(
        self, block: Block, read: Callable[[Block], Iterable[Kept]]
    ) -> list[tuple[Block, int, Array]]:
        """Source, checksum and values of all shards of a target block; `read` gives a file's."""
        name = self._name.get(block)
        if name is None:
            return _by_block(read(block)).get(block, [])
        with self._lock:
            found = self._read.get(name)
            if found is None:
                found = self._read[name] = _by_block(read(name))
                if len(self._read) > MOST_OPEN:
                    self._read.popitem(last=False)
        return found.get(block, [])


def _by_block(parts: Iterable[Kept]) -> dict[Block, list[tuple[Block, int, Array]]]:
    found: dict[Block, list[tuple[Block, int, Array]]] = defaultdict(list)
    for source, blocks, bounds, checksums, values in parts:
        for i, block in enumerate(blocks):
            found[block].append((source, checksums[i], values[bounds[i] : bounds[i + 1]]))
    return found
