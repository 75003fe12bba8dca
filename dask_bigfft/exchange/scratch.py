"""Scratch files: what an exchange keeps on disk, and the records of what is complete.

::

    <folder>/exchange2/to-0.3.shards    shards of target block (0, 3), one after the other
    <folder>/exchange2/done-1.2.json    record: source block (1, 2) has written all its shards
    <folder>/result/done-0.3.json       record: block (0, 3) of the result is stored

A shards file has its full size before anything is written to it. A record (`records`) is written
elsewhere and moved to its place after the data that it speaks of, so at any instant a record that
is there is true; what has none is written again. With ``sync`` the data are on the disk before the
record, which then also survives a loss of power.

Where shards are large, each begins at a whole unit of `files`, so that they can go around the page
cache.

Imports `errors`, `events`, `files`, `kernels` and this room.
"""

import contextlib
import errno
import hashlib
import json
import os
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import DamagedShardError, ScratchError
from dask_bigfft.events import emit
from dask_bigfft.exchange import folders
from dask_bigfft.exchange.folders import LIFE, PREFIX, run_of
from dask_bigfft.files import File, Underway, allocate, explained, opened, rounded_up
from dask_bigfft.kernels.checks import checksum

Block = tuple[int, ...]

#: Folder of the records of the result's blocks.
RESULT = "result"

#: What a record says of itself, so that no part of it changes unnoticed.
DIGEST = "digest"


def block_name(block: Sequence[int]) -> str:
    """Return a block's index as part of a file's name.

    >>> block_name((3, 0))
    '3.0'
    """
    return ".".join(map(str, block))


def digest_of(found: Mapping[str, Any]) -> str:
    """Return a digest of a record, without the digest that it has."""
    kept = {name: value for name, value in found.items() if name != DIGEST}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def put_record(path: Path, fresh: Path, found: Mapping[str, Any], root: Path | None) -> None:
    """Write a record to a fresh file and move it to its place: all of it is there, or nothing.

    With a `root` it is on the disk then, and the names of all folders down to it from there.
    """
    text = json.dumps({**found, DIGEST: digest_of(found)}).encode()
    flags = os.O_WRONLY | os.O_CREAT
    with opened_file(fresh, flags, direct=False) as file, named(fresh, len(text), len(text)):
        try:
            with open(file.handle, "wb", closefd=False) as whole:
                whole.write(text)
            if root is not None:
                os.fsync(file.handle)
            fresh.replace(path)
            if root is not None:
                folders.sync_folders(path.parent, root)
        except OSError:
            fresh.unlink(missing_ok=True)
            raise


def read_record(path: Path, run: str = "") -> dict[str, Any] | None:
    """Return what a record says; None where there is none, none that is whole, or another run's.

    Parameters
    ----------
    path : Path
        Of the record.
    run : str
        Digest of the run that it has to be of; empty for any.
    """
    try:
        found: dict[str, Any] = json.loads(path.read_bytes())
        whole = _record_name(found["block"]) == path.name and found[DIGEST] == digest_of(found)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError, AttributeError):  # after a loss of power, no record
        return None
    return found if whole and run in ("", found.get("run")) else None


def _record_name(block: Sequence[int]) -> str:
    return f"done-{block_name(block)}.json"


def records(folder: Path, exchange: str, run: str = "") -> dict[Block, dict[str, Any]]:
    """Return the records of an exchange, or of the result (`RESULT`), by their blocks."""
    found = (read_record(path, run) for path in (folder / exchange).glob("done-*.json"))
    return {tuple(record["block"]): record for record in found if record is not None}


Array = npt.NDArray[Any]


@contextlib.contextmanager
def opened_file(path: Path, flags: int, direct: bool = True) -> Iterator[File]:
    """Give an open file, with the folders above it where it is to be made; see `files.opened`."""
    if flags & os.O_CREAT and not path.parent.name.startswith(LIFE):
        make_folder(path.parent)
    with named(path), opened(path, flags, direct) as file:
        yield file


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless they are there."""
    with named(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def reserve(handle: int, path: Path, total: int) -> None:
    """Give a file its full size, unless it has it; one writer at a time."""
    if os.fstat(handle).st_size >= total:
        return
    folders.lock_file(handle)
    if os.fstat(handle).st_size >= total:
        return
    with named(path, total, total):
        allocate(handle, total)


def fill(file: File, path: Path, out: Array, begin: int) -> None:
    """Read as many bytes as `out` has."""
    with named(path):
        done = file.read(out, begin)
    if done < len(out):
        raise ScratchError(errno.EIO, f"the file ends {len(out) - done} bytes early", str(path))


@contextlib.contextmanager
def named(path: Path, total: int = 0, missing: int = 0) -> Iterator[None]:
    """Raise what goes wrong with a scratch file as a `ScratchError`, which names the file.

    Also how many bytes are missing of its `total`, if `missing` were still to be written.
    """
    try:
        yield
    except ScratchError:
        raise
    except OSError as error:
        text = explained(path, error, missing, f"a scratch file of {total}")
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            text = f"{text}: scratch files cannot be written here; set bigfft.scratch.directory"
        elif error.errno == errno.ENOENT and path.parent.name.startswith(LIFE):
            text = f"{text}: another run has gone on with this scratch folder"
        raise ScratchError(error.errno or errno.EIO, text, str(path)) from error


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


@dataclass(frozen=True)
class ShardFile:
    """File of a target block: its exchange's folder and number, from 0, the block, and its size."""

    exchange: str
    number: int
    target: Block
    nbytes: int


#: Parts that are not what was written, and the checksums of what was read.
Mismatches = list[tuple[Part, int]]

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
        self._end: Any = weakref.finalize(self, folders.unlock_folder, handle)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.folder, self.sync, self.kept, self.life)

    def own(self) -> None:
        """Let the folder go with this object, or with the last one that holds it."""
        if self._handle is not None and self._end.detach() is not None:
            self._end = weakref.finalize(self, folders.leave_folder, self.folder, self._handle)

    def close(self) -> None:
        """Let go of the folder; delete it if it is this object's own and nobody else holds it."""
        self._end()

    def path(self, exchange: str, target: Block) -> Path:
        """File of a target block."""
        return self.folder / exchange / f"to-{block_name(target)}.shards"

    # --- shards

    def write(self, whole: ShardFile, begin: int, shard: Array, nbytes: int | None = None) -> int:
        """Write a shard to its place in the target block's file; return its checksum.

        Parameters
        ----------
        whole : ShardFile
            Which file.
        begin : int
            Where the shard begins.
        shard : ndarray, contiguous
            Its values, and what fills the file up to the next shard.
        nbytes : int, optional
            Bytes of the values alone.
        """
        started = time.perf_counter()
        path, total = self.path(whole.exchange, whole.target), whole.nbytes
        data = shard.reshape(-1).view(np.uint8)
        values = data if nbytes is None else data[:nbytes]
        data[len(values) :] = 0
        with opened_file(path, os.O_RDWR | os.O_CREAT) as file:
            reserve(file.handle, path, total)
            with named(path, total, len(data)):
                file.write(data, begin)
                if self.sync:
                    os.fsync(file.handle)
        seconds = time.perf_counter() - started
        emit("scratch_write", index=whole.number + 1, nbytes=len(values), seconds=seconds)
        return checksum(values)

    def read(
        self, whole: ShardFile, parts: Sequence[Part], room: Room, take: Take | None = None
    ) -> None:
        """Read the file of a target block, once and in order, and compare all checksums.

        What does not match is read once more.

        Parameters
        ----------
        whole : ShardFile
            Which file.
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
        path, batches = self.path(whole.exchange, whole.target), list(_batches(parts))
        few = max(2, UNDER_WAY // max(1, *map(_nbytes, batches)))
        turns = threading.Semaphore(len(batches) if take is None else few)

        def read(file: File, some: Sequence[Part]) -> Mismatches:
            try:
                return _read_some(file, path, whole, some, room, take)
            finally:
                turns.release()

        try:
            with opened_file(path, os.O_RDONLY) as file, Underway[Mismatches]() as calls:
                for some in batches:
                    turns.acquire()
                    calls.start(_nbytes(some), partial(read, file, some))
                bad = [found for result in calls.results() for found in result]
        except ScratchError as error:
            if error.errno not in (errno.ENOENT, errno.EIO):
                raise
            raise _damaged(path, whole, parts, error.strerror or "", error.errno) from error
        if bad:
            part, found = bad[0]
            text = f"the shard of block {part.source} is not what was written (checksum "
            text += f"{found:016x}, not {part.checksum:016x})"
            raise _damaged(path, whole, [part for part, _ in bad], text)
        seconds = time.perf_counter() - started
        nbytes = sum(part.nbytes for part in parts)
        emit("scratch_read", index=whole.number + 1, nbytes=nbytes, seconds=seconds)

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

    def record(self, exchange: str, block: Block, what: Mapping[str, Any]) -> None:
        """Say that all shards of a source block are written, or a block of the result (`RESULT`).

        With `what` is known of these.
        """
        path = self._record(exchange, block)
        place = self.folder / self.life if self.life else path.parent
        fresh = place / f"{path.name}.{uuid.uuid4().hex}"
        make_folder(path.parent)
        root = self.folder if self.sync else None
        put_record(path, fresh, {"block": block, **what, "run": run_of(self.life)}, root)

    def recorded(self, exchange: str, block: Block) -> dict[str, Any] | None:
        """Return what is recorded of a block; None if its work is not done."""
        return read_record(self._record(exchange, block), run_of(self.life))

    def forget(self, exchange: str, block: Block) -> None:
        """Take back that the work of a block is done."""
        self._record(exchange, block).unlink(missing_ok=True)

    def _record(self, exchange: str, block: Block) -> Path:
        return self.folder / exchange / _record_name(block)

    def record_shards(
        self, exchange: str, source: Block, targets: Sequence[Block], checksums: Array
    ) -> None:
        """Say that all shards of a source block are written."""
        shards = dict(zip(map(block_name, targets), checksums.tolist(), strict=True))
        self.record(exchange, source, {"shards": shards})

    def recorded_shards(
        self, exchange: str, source: Block, targets: Sequence[Block]
    ) -> Array | None:
        """Return the checksums of a source block's shards, or None if they are not all written."""
        shards = (self.recorded(exchange, source) or {}).get("shards", {})
        found = [shards.get(block_name(target)) for target in targets]
        return None if None in found else np.array(found, np.uint64)


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


def _read_some(
    file: File, path: Path, whole: ShardFile, some: Sequence[Part], room: Room, take: Take | None
) -> Mismatches:
    """Read neighbouring parts and hand them on; return those that do not match twice.

    With their checksums.
    """
    bad = []
    first, end = some[0].begin, some[-1].begin + some[-1].nbytes
    end = min(whole.nbytes, rounded_up(end)) if first == rounded_up(first) else end
    out = room(first, end)
    fill(file, path, out, first)
    for part in some:
        values = out[part.begin - first : part.begin - first + part.nbytes]
        if checksum(values) == part.checksum:
            continue
        emit("mismatch", index=whole.number + 1, nbytes=part.nbytes)
        fill(file, path, values, part.begin)
        if (found := checksum(values)) != part.checksum:
            bad.append((part, found))
    if take is not None and not bad:
        take(some, out)
    return bad


def _damaged(
    path: Path, whole: ShardFile, parts: Sequence[Part], text: str, code: int = errno.EIO
) -> DamagedShardError:
    rest = "a run from file to file makes it once more by itself, other computations start over"
    error = DamagedShardError(code, f"{text}; {rest}", str(path))
    error.exchange, error.number = whole.exchange, whole.number
    error.sources = tuple(part.source for part in parts)
    return error


def _arrived(folder: Path, sync: bool, kept: bool, life: str) -> Scratch:
    """A folder as another process gets to know it."""
    handle = None if kept else folders.hold_folder(folder, make=False)
    return Scratch(folder, sync, kept, handle, life)


@dataclass(frozen=True)
class ScratchPlace:
    """Where the scratch files of a graph go.

    Parameters
    ----------
    directory : str
        Folder of all scratch, or, if it is kept, of this run alone.
    name : str
        Tells this graph's folder from others'.
    sync : bool
        Whether data are on the disk before a record says that they are there.
    kept : bool
        Whether the folder outlives the run, so that another run can go on from it. The results'
        blocks are then stored by whoever writes the records of that.
    needed : int
        Bytes that all files together take at the worst moment.
    memory : int or None
        Bytes of memory that the tasks need meanwhile.
    finished : tuple of (int, frozenset of blocks)
        Blocks that an earlier run has done, by the number of the exchange that they were written
        for; the number of exchanges stands for stored blocks of the result.
    rows : object or None
        The stored array, of which the first round reads rows by itself where the plan says so: has
        `fill`, which puts a region of it into an array, and `anywhere`, whether several may be read
        at a time.
    life : str
        Folder, within a kept one, in which records are written before they move to their places.
    """

    directory: str
    name: str
    sync: bool = False
    kept: bool = False
    needed: int = 0
    memory: int | None = None
    finished: tuple[tuple[int, frozenset[Block]], ...] = ()
    rows: Any = None
    life: str = ""

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        return "dask_bigfft.ScratchPlace", self.directory, self.sync, self.kept, self.life


def open_scratch(place: ScratchPlace, shared: bool) -> Scratch:
    """Return the scratch folder of a run, made if it is not there.

    A folder that is not kept goes when the object returned here is closed or dies, or with the last
    process that holds it.

    Parameters
    ----------
    place : ScratchPlace
        Where.
    shared : bool
        Whether several processes compute the graph: each key then stands for one computation, so
        all use one folder; else every computation has its own.

    Raises
    ------
    ScratchError
        If the folder cannot be made, or the disk has too little room.
    """
    directory = Path(place.directory)
    make_folder(directory)
    if place.kept:
        return Scratch(directory, place.sync, kept=True, life=place.life)
    folders.remove_abandoned(directory)
    folder = directory / f"{PREFIX}{place.name}"
    if not shared:
        folder = folder.with_name(f"{folder.name}-{uuid.uuid4().hex[:8]}")
    folders.check_room(directory, place.needed)
    with named(folder):
        scratch = Scratch(folder, place.sync, False, folders.hold_folder(folder, make=True))
    scratch.own()
    return scratch
