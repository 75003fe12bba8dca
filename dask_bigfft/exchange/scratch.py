"""Scratch files: shards of exchanges on disk, and records of complete work.

::

    <folder>/exchange2/to-0.3.shards    shards of target block (0, 3), in order
    <folder>/exchange2/done-1.2.json    record: source block (1, 2) has written all its shards
    <folder>/result/done-0.3.json       record: block (0, 3) of the result is stored

A file of shards has its full size before anything is written to it. A record (`records`) is written
elsewhere and moved to its place after its data, so an existing record is always true. Data without
a record are written again. With ``sync`` the data are on the disk before the record, and both
survive a loss of power.

Large shards are aligned to whole units of `files`, so that they can bypass the page cache.
"""

import contextlib
import errno
import hashlib
import itertools
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
from dask.utils import format_bytes

from dask_bigfft.arrays import Array, Block
from dask_bigfft.errors import DamagedShardError, ScratchError
from dask_bigfft.events import emit
from dask_bigfft.exchange import folders
from dask_bigfft.exchange.folders import LIFE, PREFIX, run_of
from dask_bigfft.files import LEAST, File, Underway, explained, opened, rounded_up
from dask_bigfft.kernels.checks import checksum
from dask_bigfft.system import lock, preallocate

#: Name of the folder for records of the result's blocks.
RESULT = "result"

#: Key of a record's own digest, which reveals changes.
DIGEST = "digest"


def block_name(block: Sequence[int]) -> str:
    """Return a block's index for the name of a file.

    >>> block_name((3, 0))
    '3.0'
    """
    return ".".join(map(str, block))


def digest_of(record: Mapping[str, Any]) -> str:
    """Return the digest of a record without its key `DIGEST`."""
    contents = {name: value for name, value in record.items() if name != DIGEST}
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()[:16]


def put_record(
    path: Path,
    temporary_path: Path,
    record: Mapping[str, Any],
    root: Path | None,
) -> None:
    """Write a record to a temporary file and move that to its place, in one step.

    With a `root` the record is then on the disk, with the names of all folders below the root.
    """
    text = json.dumps({**record, DIGEST: digest_of(record)}).encode()
    flags = os.O_WRONLY | os.O_CREAT
    with (
        opened_file(temporary_path, flags, direct=False) as file,
        named(temporary_path, len(text), len(text)),
    ):
        try:
            with open(file.handle, "wb", closefd=False) as buffered_file:
                buffered_file.write(text)
            if root is not None:
                os.fsync(file.handle)
            temporary_path.replace(path)
            if root is not None:
                folders.sync_folders(path.parent, root)
        except OSError:
            temporary_path.unlink(missing_ok=True)
            raise


def read_record(path: Path, run: str = "") -> dict[str, Any] | None:
    """Return a record; None if it is missing, damaged, or belongs to another run.

    Parameters
    ----------
    path : Path
        Path of the record.
    run : str
        Digest of the run to which it has to belong; empty for any.
    """
    try:
        record: dict[str, Any] = json.loads(path.read_bytes())
        is_intact = _record_name(record["block"]) == path.name
        is_intact = is_intact and record[DIGEST] == digest_of(record)
    # missing, or damaged by a loss of power
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return record if is_intact and run in ("", record.get("run")) else None


def _record_name(block: Sequence[int]) -> str:
    return f"done-{block_name(block)}.json"


def records(folder: Path, exchange: str, run: str = "") -> dict[Block, dict[str, Any]]:
    """Return the records of an exchange, or of the result (`RESULT`), by their blocks."""
    by_block = {}
    for path in (folder / exchange).glob("done-*.json"):
        record = read_record(path, run)
        if record is not None:
            by_block[tuple(record["block"])] = record
    return by_block


@contextlib.contextmanager
def opened_file(path: Path, flags: int, direct: bool = True) -> Iterator[File]:
    """Open a file, in new folders if it may be created and has none; see `files.opened`."""
    with named(path), contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(opened(path, flags, direct))
        except FileNotFoundError:
            if not flags & os.O_CREAT or path.parent.name.startswith(LIFE):
                raise
            make_folder(path.parent)
            file = stack.enter_context(opened(path, flags, direct))
        yield file


def make_folder(folder: Path) -> None:
    """Make a folder and its parents if they are missing."""
    with named(folder):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)


def reserve(handle: int, path: Path, total: int) -> None:
    """Extend a file to its full size if it is smaller; one writer at a time."""
    if os.fstat(handle).st_size >= total:
        return
    lock(handle)
    if os.fstat(handle).st_size >= total:
        return
    with named(path, total, total):
        preallocate(handle, total)


def fill(
    file: File,
    path: Path,
    out: Array,
    begin: int,
) -> None:
    """Fill an array with the bytes of a file from `begin` on; a short file is an error."""
    with named(path):
        read_nbytes = file.read(out, begin)
    if read_nbytes < len(out):
        text = f"the file ends {len(out) - read_nbytes} bytes early"
        raise ScratchError(errno.EIO, text, str(path))


@contextlib.contextmanager
def named(path: Path, total: int = 0, missing: int = 0) -> Iterator[None]:
    """Raise errors of a scratch file as a `ScratchError` that names the file.

    If the disk is full, the error gives the missing bytes: of `total` bytes of the file, `missing`
    are not written yet.
    """
    try:
        yield
    except ScratchError:
        raise
    except OSError as error:
        text = explained(
            path,
            error,
            missing,
            f"a scratch file of {format_bytes(total)}",
        )
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            text = f"{text}: scratch files cannot be written here; set bigfft.scratch.directory"
        elif error.errno == errno.ENOENT and path.parent.name.startswith(LIFE):
            text = f"{text}: another run has gone on with this scratch folder"
        raise ScratchError(error.errno or errno.EIO, text, str(path)) from error


#: Maximum number of bytes of whole shards in one read.
READ_BYTES = 8 << 20

#: Maximum number of bytes of all reads of a task in progress, if their memory is only needed until
#: the shards are copied.
UNDER_WAY = 16 << 20


@dataclass(frozen=True)
class Part:
    """Shard in the file of its target block: its first byte, its size, and its checksum."""

    source: Block
    begin: int
    nbytes: int
    checksum: int


@dataclass(frozen=True)
class ShardFile:
    """File of a target block: folder and number of its exchange, the block, and the file's size."""

    exchange: str
    number: int
    target: Block
    nbytes: int


#: Damaged parts, and the checksums of the data that were read.
Mismatches = list[tuple[Part, int]]

#: Function that returns memory for the bytes of a file between two offsets.
MemoryOf = Callable[[int, int], Array]

#: Function that takes parts that have been read, and their memory from the first part on.
OnRead = Callable[[Sequence[Part], Array], None]


class Scratch:
    """Folder of scratch files.

    A temporary folder is *held* by every process that has such an object, and is not deleted while
    it is held.

    Parameters
    ----------
    folder : Path
        Existing folder.
    sync, kept, life
        See `ScratchPlace`.
    handle : int, optional
        Handle that holds the folder as long as this object lives.
    """

    def __init__(
        self,
        folder: Path,
        sync: bool,
        kept: bool,
        handle: int | None = None,
        life: str = "",
    ) -> None:
        self.folder = folder
        self.sync = sync
        self.kept = kept
        self.life = life
        self._handle = handle
        self._end: Any = weakref.finalize(self, folders.unlock_folder, handle)

    def __reduce__(self) -> tuple[Any, ...]:
        return _arrived, (self.folder, self.sync, self.kept, self.life)

    def own(self) -> None:
        """Delete the folder with this object, or with the last one that holds it."""
        if self._handle is not None and self._end.detach() is not None:
            self._end = weakref.finalize(
                self,
                folders.leave_folder,
                self.folder,
                self._handle,
            )

    def close(self) -> None:
        """Release the folder; delete it if this object owns it and no other one holds it."""
        self._end()

    def path(self, exchange: str, target: Block) -> Path:
        """Return the path of the file of a target block."""
        return self.folder / exchange / f"to-{block_name(target)}.shards"

    # --- shards

    def write(
        self,
        file_of_block: ShardFile,
        begin: int,
        shard: Array,
        nbytes: int | None = None,
    ) -> int:
        """Write a shard to its place in the target block's file; return its checksum.

        Parameters
        ----------
        file_of_block : ShardFile
            File of the target block.
        begin : int
            First byte of the shard in the file.
        shard : ndarray, contiguous
            Values of the shard, followed by padding up to the next shard.
        nbytes : int, optional
            Number of bytes without the padding.
        """
        started = time.perf_counter()
        path = self.path(file_of_block.exchange, file_of_block.target)
        total = file_of_block.nbytes
        data = shard.reshape(-1).view(np.uint8)
        values = data if nbytes is None else data[:nbytes]
        data[len(values) :] = 0
        is_large = len(data) >= LEAST  # no smaller one is written directly
        with opened_file(path, os.O_RDWR | os.O_CREAT, direct=is_large) as file:
            reserve(file.handle, path, total)
            with named(path, total, len(data)):
                file.write(data, begin)
                if self.sync:
                    os.fsync(file.handle)
        seconds = time.perf_counter() - started
        emit(
            "scratch_write",
            index=file_of_block.number + 1,
            nbytes=len(values),
            seconds=seconds,
        )
        return checksum(values)

    def read(
        self,
        file_of_block: ShardFile,
        parts: Sequence[Part],
        memory_of: MemoryOf,
        on_read: OnRead | None = None,
    ) -> None:
        """Read the file of a target block, once and in order, and compare all checksums.

        Shards that do not match are read a second time.

        Parameters
        ----------
        file_of_block : ShardFile
            File of the target block.
        parts : sequence of Part
            All shards, in order.
        memory_of : callable
            Returns memory for the bytes of the file between two offsets.
        on_read : callable, optional
            Called with shards that have been read and their memory, by several reading threads at
            the same time.

        Raises
        ------
        DamagedShardError
            If shards are damaged or missing.
        """
        if not parts:
            return
        started = time.perf_counter()
        path = self.path(file_of_block.exchange, file_of_block.target)
        try:
            mismatches = _read_batches(
                path,
                file_of_block,
                parts,
                memory_of,
                on_read,
            )
        except ScratchError as error:
            if error.errno not in (errno.ENOENT, errno.EIO):
                raise
            raise _damaged(
                path,
                file_of_block,
                parts,
                error.strerror or "",
                error.errno,
            ) from error
        if mismatches:
            part, read_checksum = mismatches[0]
            text = f"the shard of block {part.source} is not what was written (checksum "
            text += f"{read_checksum:016x}, not {part.checksum:016x})"
            raise _damaged(
                path,
                file_of_block,
                [part for part, _ in mismatches],
                text,
            )
        seconds = time.perf_counter() - started
        nbytes = sum(part.nbytes for part in parts)
        emit(
            "scratch_read",
            index=file_of_block.number + 1,
            nbytes=nbytes,
            seconds=seconds,
        )

    def free(self, exchange: str, target: Block) -> None:
        """Delete the file of a target block."""
        path = self.path(exchange, target)
        with contextlib.suppress(FileNotFoundError):
            nbytes = path.stat().st_size
            path.unlink()
            emit("scratch_free", nbytes=nbytes)

    # --- records

    def record(self, exchange: str, block: Block, what: Mapping[str, Any]) -> None:
        """Record that all shards of a source block, or a block of the result, are written.

        `exchange` is `RESULT` for the latter, and `what` is added to the record.
        """
        path = self._record(exchange, block)
        place = self.folder / self.life if self.life else path.parent
        temporary_path = place / f"{path.name}.{uuid.uuid4().hex}"
        make_folder(path.parent)
        root = self.folder if self.sync else None
        put_record(
            path,
            temporary_path,
            {"block": block, **what, "run": run_of(self.life)},
            root,
        )

    def recorded(self, exchange: str, block: Block) -> dict[str, Any] | None:
        """Return the record of a block; None if its work is not done."""
        return read_record(self._record(exchange, block), run_of(self.life))

    def forget(self, exchange: str, block: Block) -> None:
        """Delete the record of a block."""
        self._record(exchange, block).unlink(missing_ok=True)

    def _record(self, exchange: str, block: Block) -> Path:
        return self.folder / exchange / _record_name(block)

    def record_shards(
        self,
        exchange: str,
        source: Block,
        targets: Sequence[Block],
        checksums: Array,
    ) -> None:
        """Record that all shards of a source block are written."""
        shards = dict(zip(map(block_name, targets), checksums.tolist(), strict=True))
        self.record(exchange, source, {"shards": shards})

    def recorded_shards(
        self, exchange: str, source: Block, targets: Sequence[Block]
    ) -> Array | None:
        """Return the checksums of a source block's shards, or None if they are not all written."""
        shards = (self.recorded(exchange, source) or {}).get("shards", {})
        checksums = [shards.get(block_name(target)) for target in targets]
        return None if None in checksums else np.array(checksums, np.uint64)


def _nbytes(parts: Sequence[Part]) -> int:
    """Return the number of bytes from the first of neighbouring parts to the end of the last."""
    return parts[-1].begin + parts[-1].nbytes - parts[0].begin


def _batches(parts: Sequence[Part]) -> Iterator[list[Part]]:
    """Yield lists of neighbouring parts that are read together."""
    batch: list[Part] = []
    for part in parts:
        if batch and part.begin + part.nbytes - batch[0].begin > READ_BYTES:
            yield batch
            batch = []
        batch.append(part)
    if batch:
        yield batch


def _read_batches(
    path: Path,
    file_of_block: ShardFile,
    parts: Sequence[Part],
    memory_of: MemoryOf,
    on_read: OnRead | None,
) -> Mismatches:
    """Read the parts of a file in batches, some at the same time; return damaged parts.

    With `on_read`, the memory of a batch is free afterwards, so few batches are read at a time.
    """
    batches = list(_batches(parts))
    max_batches = len(batches)
    if on_read is not None:
        max_batches = max(2, UNDER_WAY // max(1, max(map(_nbytes, batches), default=1)))
    free_turns = threading.Semaphore(max_batches)

    def read(file: File, batch: Sequence[Part]) -> Mismatches:
        try:
            return _read_batch(
                file,
                path,
                file_of_block,
                batch,
                memory_of,
                on_read,
            )
        finally:
            free_turns.release()

    with opened_file(path, os.O_RDONLY) as file, Underway[Mismatches]() as calls:
        for batch in batches:
            free_turns.acquire()
            calls.start(_nbytes(batch), partial(read, file, batch))
        return list(itertools.chain(*calls.results()))


def _read_batch(
    file: File,
    path: Path,
    file_of_block: ShardFile,
    batch: Sequence[Part],
    memory_of: MemoryOf,
    on_read: OnRead | None,
) -> Mismatches:
    """Read neighbouring parts; return those that do not match twice, with their wrong checksums.

    If all match, they are passed to `on_read`. A read that begins at an aligned place ends at one,
    so that it may bypass the system's cache.
    """
    first = batch[0].begin
    end = first + _nbytes(batch)
    if first == rounded_up(first):
        end = min(file_of_block.nbytes, rounded_up(end))
    data = memory_of(first, end)
    fill(
        file,
        path,
        data,
        first,
    )
    mismatches = []
    for part in batch:
        values = data[part.begin - first : part.begin - first + part.nbytes]
        if checksum(values) == part.checksum:
            continue
        emit("mismatch", index=file_of_block.number + 1, nbytes=part.nbytes)
        fill(
            file,
            path,
            values,
            part.begin,
        )
        read_checksum = checksum(values)
        if read_checksum != part.checksum:
            mismatches.append((part, read_checksum))
    if on_read is not None and not mismatches:
        on_read(batch, data)
    return mismatches


def _damaged(
    path: Path,
    file_of_block: ShardFile,
    parts: Sequence[Part],
    text: str,
    code: int = errno.EIO,
) -> DamagedShardError:
    """Return the error for damaged or missing parts of a file."""
    remedy = "a run from file to file repeats the work, other computations have to start over"
    error = DamagedShardError(code, f"{text}; {remedy}", str(path))
    error.exchange = file_of_block.exchange
    error.number = file_of_block.number
    error.sources = tuple(part.source for part in parts)
    return error


def _arrived(
    folder: Path,
    sync: bool,
    kept: bool,
    life: str,
) -> Scratch:
    """Return the scratch folder in a process that has received it.

    A temporary folder may be gone by then: nothing is held, and reading it will fail.
    """
    handle = None if kept else folders.hold_folder(folder, make=False)
    return Scratch(
        folder,
        sync,
        kept,
        handle,
        life,
    )


@dataclass(frozen=True)
class ScratchPlace:
    """Location of the scratch files of a graph.

    Parameters
    ----------
    directory : str
        Folder of all scratch files, or, if it is kept, of this run alone.
    name : str
        Unique part of the name of this graph's folder.
    sync : bool
        Whether data are on the disk before they are recorded.
    kept : bool
        Whether the folder outlives the run, so that another run can resume it. The writer of the
        records then also stores the result's blocks.
    needed : int
        Maximum size of all files together, in bytes.
    memory : int or None
        Memory that the tasks need meanwhile, in bytes.
    finished : tuple of (int, frozenset of blocks)
        Blocks that an earlier run has finished, by the number of the exchange for which they were
        written. The number of exchanges stands for stored blocks of the result.
    rows : object or None
        Stored array from which the first round reads rows, if the plan says so. Its method `fill`
        reads a region into an array, and `anywhere` says whether several reads may overlap.
    life : str
        Folder, within a kept one, in which records are written before they are moved.
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
    """Return the scratch folder of a run, which is made if it is missing.

    A temporary folder is deleted when the returned object is closed or garbage collected, or with
    the last process that holds it.

    Parameters
    ----------
    place : ScratchPlace
        Location of the folder.
    shared : bool
        Whether several processes compute the graph. All of them then use one folder; otherwise
        every computation has its own.

    Raises
    ------
    ScratchError
        If the folder cannot be made, or the disk has too little free space.
    """
    directory = Path(place.directory)
    make_folder(directory)
    if place.kept:
        return Scratch(
            directory,
            place.sync,
            kept=True,
            life=place.life,
        )
    folders.remove_abandoned(directory)
    folder = directory / f"{PREFIX}{place.name}"
    if not shared:
        folder = folder.with_name(f"{folder.name}-{uuid.uuid4().hex[:8]}")
    folders.check_scratch_space(directory, place.needed)
    with named(folder):
        scratch = Scratch(
            folder,
            place.sync,
            False,
            folders.hold_folder(folder, make=True),
        )
    scratch.own()
    return scratch
