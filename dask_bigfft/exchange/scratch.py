"""Scratch files: what an exchange keeps on disk, and the records of what is complete.

::

    <folder>/exchange2/to-0.3.shards    shards of target block (0, 3), one after the other
    <folder>/exchange2/from-1.2.json    manifest: source block (1, 2) has written all its shards
    <folder>/result/stored-0.3.json     manifest: block (0, 3) of the result is stored

A shards file has its full size before anything is written to it. A record (`records`) is written
elsewhere and moved to its place after the data that it speaks of, so at any instant a record that
is there is true; what has none is written again. With ``sync`` the data are on the disk before the
record, which then also survives a loss of power.

Where shards are large, each begins at a whole unit of `files`, so that they can go around the page
cache.

Imports `errors`, `events`, `files`, `kernels` and this room.
"""

import errno
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import DamagedShardError, ScratchError
from dask_bigfft.events import emit
from dask_bigfft.exchange.folders import (
    hold_folder,
    leave_folder,
    run_of,
    sync_folders,
    unlock_folder,
)
from dask_bigfft.exchange.records import RESULT, Stored, block_name, read_record, signed
from dask_bigfft.exchange.scratch_files import failed, fill, make_folder, opened_file, reserve
from dask_bigfft.files import File, Underway, rounded_up
from dask_bigfft.kernels.checksums import checksum

Array = npt.NDArray[Any]
Block = tuple[int, ...]

#: Bytes that are read at a time, as far as whole shards make them; and that a task has under way
#: where they are in memory only until they are taken.
READ_BYTES, UNDER_WAY = 8 << 20, 16 << 20


@dataclass(frozen=True)
class Part:
    """A shard in the file of its target block: where it begins, and its size, in bytes."""

    source: Block
    begin: int
    nbytes: int
    checksum: int


#: Gives memory for the bytes of a file from one place to another.
Room = Callable[[int, int], Array]

#: Is told of parts that have been read, and of the memory that they are in, from the first one on.
Take = Callable[[Sequence[Part], Array], None]


class Scratch:
    """A folder of scratch files.

    A folder that is not kept is *held* by every process that has such an object; nobody deletes it
    while it is held.

    Parameters
    ----------
    folder : Path
        Exists.
    sync, kept : bool
        As a `ScratchPlace` has them, like `life`.
    handle : int, optional
        What holds the folder as long as this object lives.
    """

    def __init__(
        self, folder: Path, sync: bool, kept: bool, handle: int | None = None, life: str = ""
    ) -> None:
        self.folder, self.sync, self.kept, self.life = folder, sync, kept, life
        self._handle = handle
        self._end: weakref.finalize[..., Scratch] = weakref.finalize(self, unlock_folder, handle)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.folder, self.sync, self.kept, self.life)

    def own(self) -> None:
        """Let the folder go with this object, or with the last one that holds it."""
        if self._handle is not None and self._end.detach() is not None:
            self._end = weakref.finalize(self, leave_folder, self.folder, self._handle)

    def close(self) -> None:
        """Let go of the folder; delete it if it is this object's own and nobody else holds it."""
        self._end()

    def path(self, exchange: str, target: Block) -> Path:
        """File of a target block."""
        return self.folder / exchange / f"to-{block_name(target)}.shards"

    # --- shards

    def write(
        self,
        exchange: str,
        number: int,
        target: Block,
        total: int,
        begin: int,
        shard: Array,
        nbytes: int | None = None,
    ) -> int:
        """Write a shard to its place in the target block's file; return its checksum.

        Parameters
        ----------
        exchange : str
            Folder of the exchange.
        number : int
            Of the exchange, from 0, for the metrics.
        target : tuple of int
            Which block.
        total : int
            Bytes of the whole file.
        begin : int
            Where the shard begins.
        shard : ndarray, contiguous
            Its values, and what fills the file up to the next shard.
        nbytes : int, optional
            Bytes of the values alone.
        """
        started = time.perf_counter()
        path = self.path(exchange, target)
        data = shard.reshape(-1).view(np.uint8)
        values = data if nbytes is None else data[:nbytes]
        data[len(values) :] = 0
        with opened_file(path, os.O_RDWR | os.O_CREAT) as file:
            reserve(file.handle, path, total)
            try:
                file.write(data, begin)
                if self.sync:
                    os.fsync(file.handle)
            except OSError as error:
                failed(path, error, total, len(data))
        seconds = time.perf_counter() - started
        emit("scratch_write", index=number + 1, nbytes=len(values), seconds=seconds)
        return checksum(values)

    def read(
        self,
        exchange: str,
        number: int,
        target: Block,
        total: int,
        parts: Sequence[Part],
        room: Room,
        take: Take | None = None,
    ) -> None:
        """Read the file of a target block, once and in order, and compare all checksums.

        What does not match is read once more.

        Parameters
        ----------
        exchange, number, target, total
            As `write` takes them.
        parts : sequence of Part
            All shards, in order.
        room : callable
            Gives memory for the bytes of the file from one place to another.
        take : callable, optional
            Is told of shards that have been read into such memory, with that. Threads that read do
            so, several at a time.

        Raises
        ------
        DamagedShardError
            If shards are not what was written, or are not there.
        """
        if not parts:
            return
        started = time.perf_counter()
        path = self.path(exchange, target)
        try:
            bad = self._read(path, number, total, parts, room, take)
        except ScratchError as error:
            if error.errno not in (errno.ENOENT, errno.EIO):
                raise
            text, code = error.strerror or "", error.errno
            raise _damaged(path, exchange, number, parts, text, code) from error
        if bad:
            part, found = bad[0]
            text = (
                f"the shard of block {part.source} is not what was written (checksum "
                f"{found:016x}, not {part.checksum:016x})"
            )
            raise _damaged(path, exchange, number, [part for part, _ in bad], text)
        seconds = time.perf_counter() - started
        nbytes = sum(part.nbytes for part in parts)
        emit("scratch_read", index=number + 1, nbytes=nbytes, seconds=seconds)

    def _read(
        self,
        path: Path,
        number: int,
        total: int,
        parts: Sequence[Part],
        room: Room,
        take: Take | None,
    ) -> list[tuple[Part, int]]:
        """Read all parts; return those that are not what was written, with their checksums."""
        batches = list(_batches(parts))
        few = max(2, UNDER_WAY // max(1, *map(_nbytes, batches)))
        turns = threading.Semaphore(len(batches) if take is None else few)
        with opened_file(path, os.O_RDONLY) as file, Underway[list[tuple[Part, int]]]() as calls:

            def read(some: Sequence[Part]) -> list[tuple[Part, int]]:
                try:
                    return self._read_some(file, path, number, total, some, room, take)
                finally:
                    turns.release()

            for some in batches:
                turns.acquire()
                calls.start(_nbytes(some), partial(read, some))
            return [bad for found in calls.results() for bad in found]

    def _read_some(
        self,
        file: File,
        path: Path,
        number: int,
        total: int,
        some: Sequence[Part],
        room: Room,
        take: Take | None,
    ) -> list[tuple[Part, int]]:
        """Read neighbouring parts, those that do not match twice, and hand them on."""
        bad = []
        first, end = some[0].begin, some[-1].begin + some[-1].nbytes
        end = min(total, rounded_up(end)) if first == rounded_up(first) else end
        out = room(first, end)
        fill(file, path, out, first)
        for part in some:
            values = out[part.begin - first : part.begin - first + part.nbytes]
            if checksum(values) == part.checksum:
                continue
            emit("mismatch", index=number + 1, nbytes=part.nbytes)
            fill(file, path, values, part.begin)
            if (found := checksum(values)) != part.checksum:
                bad.append((part, found))
        if take is not None and not bad:
            take(some, out)
        return bad

    def free(self, exchange: str, target: Block) -> None:
        """Delete the file of a target block."""
        path = self.path(exchange, target)
        try:
            nbytes = path.stat().st_size
            path.unlink()
        except FileNotFoundError:
            return
        emit("scratch_free", nbytes=nbytes)

    # --- records

    def record(
        self, exchange: str, source: Block, targets: Sequence[Block], checksums: Array
    ) -> None:
        """Say that all shards of a source block are written."""
        found = {
            "source": source,
            "shards": {
                block_name(target): f"{crc:016x}"
                for target, crc in zip(targets, checksums.tolist(), strict=True)
            },
        }
        self._write_record(self.folder / exchange / f"from-{block_name(source)}.json", found)

    def recorded(self, exchange: str, source: Block, targets: Sequence[Block]) -> Array | None:
        """Return the checksums of a source block's shards, or None if they are not all written."""
        path = self.folder / exchange / f"from-{block_name(source)}.json"
        found = read_record(path, run_of(self.life))
        shards = {} if found is None else found["shards"]
        if not all(block_name(target) in shards for target in targets):
            return None
        return np.array([int(shards[block_name(t)], 16) for t in targets], np.uint64)

    def forget(self, exchange: str, source: Block) -> None:
        """Take back that a source block's shards are written."""
        (self.folder / exchange / f"from-{block_name(source)}.json").unlink(missing_ok=True)

    def record_stored(self, block: Block, file: Stored) -> None:
        """Say that a block of the result is stored, and what is known of its file."""
        text = None if file.checksum is None else f"{file.checksum:016x}"
        self._write_record(
            self._stored(block),
            {"block": block, "nbytes": file.nbytes, "checksum": text, "synced": file.synced},
        )

    def stored(self, block: Block) -> bool:
        """Whether a block of the result is stored."""
        return read_record(self._stored(block), run_of(self.life)) is not None

    def forget_stored(self, block: Block) -> None:
        """Take back that a block of the result is stored."""
        self._stored(block).unlink(missing_ok=True)

    def _stored(self, block: Block) -> Path:
        return self.folder / RESULT / f"stored-{block_name(block)}.json"

    def _write_record(self, path: Path, found: dict[str, Any]) -> None:
        place = self.folder / self.life if self.life else path.parent
        fresh = place / f"{path.name}.{uuid.uuid4().hex}"
        text = signed({**found, "run": run_of(self.life)})
        with opened_file(fresh, os.O_WRONLY | os.O_CREAT, direct=False) as file:
            try:
                done = 0
                while done < len(text):  # a disk that is full takes a part first
                    done += os.write(file.handle, text[done:])
                if self.sync:
                    os.fsync(file.handle)
            except OSError as error:
                failed(fresh, error, len(text), len(text))
        make_folder(path.parent)
        try:
            fresh.replace(path)
        except OSError as error:
            failed(fresh, error, 0, 0)
        if self.sync:
            sync_folders(path.parent, self.folder)


def _nbytes(some: Sequence[Part]) -> int:
    """Bytes from the first of neighbouring parts to the end of the last."""
    return some[-1].begin + some[-1].nbytes - some[0].begin


def _batches(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Neighbouring parts that are read together."""
    some: list[Part] = []
    for part in parts:
        if some and part.begin + part.nbytes - some[0].begin > READ_BYTES:
            yield some
            some = []
        some.append(part)
    if some:
        yield some


def _damaged(
    path: Path, exchange: str, number: int, parts: Sequence[Part], text: str, code: int = errno.EIO
) -> DamagedShardError:
    rest = "a run from file to file makes it once more by itself, other computations start over"
    error = DamagedShardError(code, f"{text}; {rest}", str(path))
    error.exchange, error.number = exchange, number
    error.sources = tuple(part.source for part in parts)
    return error


def _arrived(folder: Path, sync: bool, kept: bool, life: str) -> Scratch:
    """A folder as another process gets to know it."""
    return Scratch(folder, sync, kept, None if kept else hold_folder(folder, make=False), life)
