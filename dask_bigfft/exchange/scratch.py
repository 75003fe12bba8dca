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
import re
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
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

#: A checksum as records have it.
CHECKSUM = re.compile("[0-9a-f]{16}")


def block_name(block: Block) -> str:
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
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:  # after a loss of power, without `sync`
        return None
    return found if _is_record(path, found) and run in ("", found.get("run")) else None


def _is_record(path: Path, found: Any) -> bool:
    """Whether what a file holds is the record that its name says; what is none is done again."""
    start, _, name = path.stem.partition("-")
    block = found.get("source" if start == "from" else "block") if isinstance(found, dict) else None
    if not isinstance(block, list) or block_name(tuple(block)) != name:
        return False
    if found.get(DIGEST) != digest_of(found):  # changed since it was written
        return False
    if not isinstance(found.get("nbytes"), int | None):
        return False
    shards = found.get("shards", {} if start == "stored" else None)
    sums = [] if found.get("checksum") is None else [found["checksum"]]
    return isinstance(shards, dict) and all(
        isinstance(value, str) and CHECKSUM.fullmatch(value) for value in (*sums, *shards.values())
    )


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
    nbytes : int or None
        Its size, if it is a file.
    checksum : int or None
        Of its values, if it was taken.
    synced : bool
        Whether it was on the disk before.
    """

    nbytes: int | None = None
    checksum: int | None = None
    synced: bool = False


def stored_blocks(folder: Path, run: str = "") -> dict[Block, Stored]:
    """Return the blocks of the result that are recorded, and what is known of their files."""
    found = {}
    for record in _records(folder / RESULT, "stored-", run):
        text = record.get("checksum")
        found[tuple(record["block"])] = Stored(
            record.get("nbytes"),
            None if text is None else int(text, 16),
            record.get("synced") is True,
        )
    return found


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
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(opened(path, flags, direct))
        except FileNotFoundError as error:
            if not flags & os.O_CREAT or path.parent.name.startswith(LIFE):
                failed(path, error, 0, 0)
            make_folder(path.parent)
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
