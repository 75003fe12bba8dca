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
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import DamagedShardError, ScratchError
from dask_bigfft.events import emit
from dask_bigfft.exchange.folders import (
    LIFE,
    PREFIX,
    check_room,
    hold_folder,
    leave_folder,
    lock_file,
    remove_abandoned,
    run_of,
    sync_folders,
    unlock_folder,
)
from dask_bigfft.files import File, Underway, opened, room_missing, rounded_up
from dask_bigfft.kernels.checks import checksum

Block = tuple[int, ...]

#: Folder of the records of the result's blocks.
RESULT = "result"

#: What a record says of itself, so that no part of it changes unnoticed.
DIGEST = "digest"


#: What is raised where a file is no record: after a loss of power, without `sync`.
NO_RECORD = ValueError, TypeError, KeyError, AttributeError


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


def signed(found: Mapping[str, Any]) -> bytes:
    """Return the JSON of a record with its digest."""
    return json.dumps({**found, DIGEST: digest_of(found)}).encode()


def put_record(path: Path, fresh: Path, found: Mapping[str, Any], root: Path | None) -> None:
    """Write a record to a fresh file and move it to its place: all of it is there, or nothing.

    With a `root` it is on the disk then, and the names of all folders down to it from there.
    """
    text = signed(found)
    with opened_file(fresh, os.O_WRONLY | os.O_CREAT, direct=False) as file:
        try:
            done = 0
            while done < len(text):  # a disk that is full takes a part first
                done += os.write(file.handle, text[done:])
            if root is not None:
                os.fsync(file.handle)
            fresh.replace(path)
            if root is not None:
                sync_folders(path.parent, root)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            failed(fresh, error, len(text), len(text))


def read_record(path: Path, run: str = "") -> dict[str, Any] | None:
    """Return what a record says; None where there is none, none that is whole, or another run's.

    Parameters
    ----------
    path : Path
        Of the record.
    run : str
        Digest of the run that it has to be of; empty for any.
    """
    start, _, name = path.stem.partition("-")
    try:
        found = json.loads(path.read_bytes())
        named = block_name(found["source" if start == "from" else "block"]) == name
        whole = named and found[DIGEST] == digest_of(found)
    except (FileNotFoundError, NotADirectoryError, *NO_RECORD):
        return None
    return dict(found) if whole and run in ("", found.get("run")) else None


def recorded_blocks(folder: Path, exchange: str | None, run: str = "") -> frozenset[Block]:
    """Return the source blocks of an exchange that are recorded; of the result for None."""
    if exchange is None:
        return frozenset(stored_blocks(folder, run))
    return frozenset(tuple(found["source"]) for found in _records(folder / exchange, "from-", run))


@dataclass(frozen=True)
class Stored:
    """What is known of the file of a block of the result, as it was stored.

    Parameters
    ----------
    nbytes : int
        Its size.
    checksum : int
        Of its values.
    synced : bool
        Whether it was on the disk before.
    """

    nbytes: int = 0
    checksum: int = 0
    synced: bool = False


def stored_blocks(folder: Path, run: str = "") -> dict[Block, Stored]:
    """Return the blocks of the result that are recorded, and what is known of their files."""
    return {
        tuple(found["block"]): Stored(found["nbytes"], found["checksum"], found["synced"])
        for found in _records(folder / RESULT, "stored-", run)
    }


def _records(folder: Path, start: str, run: str) -> list[dict[str, Any]]:
    try:
        paths = list(folder.glob(f"{start}*.json"))
    except FileNotFoundError:
        return []
    return [found for path in paths if (found := read_record(path, run)) is not None]


Array = npt.NDArray[Any]


@contextlib.contextmanager
def opened_file(path: Path, flags: int, direct: bool = True) -> Iterator[File]:
    """Give an open file, with the folders above it where it is to be made; see `files.opened`."""
    if flags & os.O_CREAT and not path.parent.name.startswith(LIFE):
        make_folder(path.parent)
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(opened(path, flags, direct))
        except OSError as error:
            failed(path, error, 0, 0)
        yield file


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless they are there."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        failed(folder, error, 0, 0)


def reserve(handle: int, path: Path, total: int) -> None:
    """Give a file its full size, unless it has it; one writer at a time."""
    if os.fstat(handle).st_size >= total:
        return
    lock_file(handle)
    if os.fstat(handle).st_size >= total:
        return
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, total)
        else:
            os.ftruncate(handle, total)
    except OSError as error:
        failed(path, error, total, total)


def fill(file: File, path: Path, out: Array, begin: int) -> None:
    """Read as many bytes as `out` has."""
    try:
        done = file.read(out, begin)
    except OSError as error:
        failed(path, error, 0, 0)
    if done < len(out):
        raise ScratchError(errno.EIO, f"the file ends {len(out) - done} bytes early", str(path))


def failed(path: Path, error: OSError, total: int, missing: int) -> NoReturn:
    """Raise what went wrong with a scratch file: which, and how many bytes are missing."""
    text = error.strerror or str(error)
    if (lack := room_missing(path, error, missing)) is not None:
        text = f"{text}: {lack} for a scratch file of {total}"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
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
            try:
                file.write(data, begin)
                if self.sync:
                    os.fsync(file.handle)
            except OSError as error:
                failed(path, error, total, len(data))
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

        def read(file: File, some: Sequence[Part]) -> list[tuple[Part, int]]:
            try:
                return _read_some(file, path, whole, some, room, take)
            finally:
                turns.release()

        try:
            with (
                opened_file(path, os.O_RDONLY) as file,
                Underway[list[tuple[Part, int]]]() as calls,
            ):
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

    def record(
        self, exchange: str, source: Block, targets: Sequence[Block], checksums: Array
    ) -> None:
        """Say that all shards of a source block are written."""
        shards = dict(zip(map(block_name, targets), checksums.tolist(), strict=True))
        found = {"source": source, "shards": shards}
        self._write_record(self._written(exchange, source), found)

    def recorded(self, exchange: str, source: Block, targets: Sequence[Block]) -> Array | None:
        """Return the checksums of a source block's shards, or None if they are not all written."""
        found = read_record(self._written(exchange, source), run_of(self.life))
        shards, names = {} if found is None else found["shards"], list(map(block_name, targets))
        if not all(name in shards for name in names):
            return None
        return np.array([shards[name] for name in names], np.uint64)

    def forget(self, exchange: str, source: Block) -> None:
        """Take back that a source block's shards are written."""
        self._written(exchange, source).unlink(missing_ok=True)

    def record_stored(self, block: Block, file: Stored) -> None:
        """Say that a block of the result is stored, and what is known of its file."""
        self._write_record(self._stored(block), {"block": block, **asdict(file)})

    def stored(self, block: Block) -> bool:
        """Whether a block of the result is stored."""
        return read_record(self._stored(block), run_of(self.life)) is not None

    def forget_stored(self, block: Block) -> None:
        """Take back that a block of the result is stored."""
        self._stored(block).unlink(missing_ok=True)

    def _written(self, exchange: str, source: Block) -> Path:
        return self.folder / exchange / f"from-{block_name(source)}.json"

    def _stored(self, block: Block) -> Path:
        return self.folder / RESULT / f"stored-{block_name(block)}.json"

    def _write_record(self, path: Path, found: dict[str, Any]) -> None:
        place = self.folder / self.life if self.life else path.parent
        fresh = place / f"{path.name}.{uuid.uuid4().hex}"
        make_folder(path.parent)
        root = self.folder if self.sync else None
        put_record(path, fresh, {**found, "run": run_of(self.life)}, root)


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
) -> list[tuple[Part, int]]:
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
    return Scratch(folder, sync, kept, None if kept else hold_folder(folder, make=False), life)


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
    remove_abandoned(directory)
    folder = directory / f"{PREFIX}{place.name}"
    if not shared:
        folder = folder.with_name(f"{folder.name}-{uuid.uuid4().hex[:8]}")
    check_room(directory, place.needed)
    try:
        scratch = Scratch(folder, place.sync, False, hold_folder(folder, make=True))
    except OSError as error:
        failed(folder, error, 0, 0)
    scratch.own()
    return scratch
