"""Zarr arrays that are written beside their final path, and renamed when they are complete.

::

    OUT.partial-<run>     being written, marked incomplete
    OUT                   the old one, if any, until the new one takes its place
    OUT.replaced-<run>    the old one, while the new one takes its place

An interrupted run thus leaves nothing that looks complete. The record of a run with a scratch
folder keeps its name. The name of any other run holds its host and process.
"""

import contextlib
import hashlib
import json
import math
import os
import platform
import re
import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from dask_bigfft.arrays import Array, Region
from dask_bigfft.errors import ArgumentTypeError, raise_invalid
from dask_bigfft.files import URL, sync_path
from dask_bigfft.memory import default_arena
from dask_bigfft.planner.rows import ResultWriting
from dask_bigfft.storage.formats import UNREADABLE, PlainChunks, chunk_region, plain_chunks
from dask_bigfft.storage.sources import local_store, zarr_package
from dask_bigfft.system import return_freed

#: Attribute of written arrays with their transform, and a mark of complete ones.
ATTRIBUTE = "dask_bigfft"

#: Endings of names that announce another file format.
_OTHERS = (".npy", ".npz", ".h5", ".hdf5", ".nc", ".zip")
_ZARR_FILES = ("zarr.json", ".zarray", ".zgroup")

#: Text between the names of a result and of its run, in the names of folders beside it.
PARTIAL = ".partial-"
REPLACED = ".replaced-"


Variable = tuple[Array, dict[str, Any]]

#: Name of this machine in names of runs.
_HOST = re.sub(r"[^\w.-]", "_", platform.node())

#: Addition to errors about a path that `check_target` found free.
_CAME = "; the path was taken while the run went on"


def uniform(chunks: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """Return the chunk shape of a Zarr array with these chunks, or None if there is none.

    >>> uniform(((4, 4, 2), (5,))), uniform(((4, 2, 4), (5,)))
    ((4, 5), None)
    """
    shape = []
    for lengths in chunks:
        *whole_lengths, last_length = lengths
        first_length = lengths[0]
        is_even = all(length == first_length for length in whole_lengths)
        if not is_even or last_length > first_length:
            return None
        shape.append(max(1, first_length))
    return tuple(shape)


def check_target(
    path: Path,
    source: Path,
    *,
    overwrite: bool,
    reason: str | None = None,
) -> None:
    """Raise an error if an array cannot, or must not, be written to a path.

    `reason` describes the array at the path; it is added to the error if that must not be replaced.

    Raises
    ------
    ArgumentError
        If the parent folder is missing, if the path has something that must not be replaced, or if
        it contains the source.
    """
    if URL.match(str(path)):
        raise_invalid("destination", str(path), "a local path")
    if not path.parent.is_dir():
        raise_invalid("destination", str(path), f"a folder that exists, which {path.parent} is not")
    if not os.path.lexists(path):
        if path.suffix.lower() in _OTHERS:
            need = f"a name for a folder: results are Zarr arrays, and {path.suffix} says"
            raise_invalid("destination", str(path), f"{need} something else")
    elif overwrite and path.resolve() in source.resolve().parents:
        raise_invalid("destination", str(path), "another path: the source lies inside of it")
    _refuse_occupied(path, overwrite, f"; {reason}" if reason else "")
    folder = path.with_name(f"{path.name}{REPLACED}{name_of_run()}")
    try:  # test write access
        folder.mkdir()
        folder.rmdir()
    except OSError as error:
        text = f"`destination`={str(path)!r} cannot be made: {os.strerror(error.errno or 0)}"
        raise OSError(error.errno, text, str(path.parent)) from error


def _refuse_occupied(path: Path, overwrite: bool, reason: str) -> None:
    """Raise an error if a result must not replace what a path has."""
    if not os.path.lexists(path) or (overwrite and _is_replaceable(path)):
        return
    need = "a path where nothing exists yet, or overwrite=True"
    if overwrite:
        need = "a Zarr array, if it is to be replaced; this is something else"
    raise_invalid("destination", str(path), need + reason)


def _is_replaceable(path: Path) -> bool:
    """Return True if a path has what a result may replace: a Zarr array, or another result."""
    if path.is_symlink() or not path.is_dir():
        return False
    if (path / ".zarray").is_file():
        return True
    with contextlib.suppress(*UNREADABLE):
        metadata = json.loads((path / "zarr.json").read_text(encoding="utf-8"))
        return bool(metadata["node_type"] == "array" or ATTRIBUTE in metadata["attributes"])
    return False


@dataclass(frozen=True)
class Labels:
    """Names of an array's dimensions, and what is known about them.

    Parameters
    ----------
    names : tuple of str
        Names of the dimensions; empty if they have none.
    attributes : dict
        Attributes of the array, as JSON values.
    coordinates : dict
        Values and attributes of each coordinate by its name.
    variable : str
        Name of the array within a group.
    """

    names: tuple[str, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    coordinates: dict[str, Variable] = field(default_factory=dict)
    variable: str = "spectrum"


@dataclass
class Target:
    """Zarr array that is written beside its final path.

    Parameters
    ----------
    path : Path
        Path of the complete array.
    partial : Path
        Folder in which it is written.
    array : Zarr array
        The array.
    root : Zarr array or group
        The array, or the group that holds it beside its coordinates; has the attributes of the run.
    """

    path: Path
    partial: Path
    array: Any
    root: Any

    @property
    def folder(self) -> Path:
        """Folder of the array."""
        return self.partial / str(self.array.path)

    @property
    def blocks(self) -> tuple[int, ...]:
        """Shape of a block: a shard, or a chunk of an array without shards."""
        return tuple(self.array.shards or self.array.chunks)

    @cached_property
    def plain(self) -> PlainChunks | None:
        """Chunks of the array, if their files hold nothing but values."""
        return plain_chunks(self.array, self.folder)

    @cached_property
    def writing(self) -> ResultWriting:
        """Memory that writing a block takes."""
        in_shards = self.array.shards is not None
        return writing_of(codecs_of(self.array), in_shards=in_shards, is_cast=False)

    def write(self, region: Region, values: Array) -> None:
        """Write a region, which zarr does unless its chunk is a plain file."""
        if self.plain is not None and self.plain.write(region, values):
            return
        if self.plain is None:  # zarr's memory takes the place of idle blocks
            block_nbytes = math.prod(self.blocks) * int(self.array.dtype.itemsize)
            is_partial = values.shape != self.blocks
            zarr_nbytes = self.writing.nbytes(block_nbytes, is_partial)
            return_freed()
            default_arena().trim_by(zarr_nbytes)
        self.array[region] = values

    def read(self, block: tuple[int, ...]) -> Array:
        """Return the values of a block."""
        region = chunk_region(block, self.blocks, self.array.shape)
        return np.asarray(self.array[region])

    def chunk_file(self, block: tuple[int, ...]) -> Path:
        """Return the file of a block."""
        return self.folder / str(self.array.metadata.encode_chunk_key(block))

    def finish(self, overwrite: bool, more: Mapping[str, Any] | None = None) -> None:
        """Sync the array, mark it complete, and move it to its final path.

        The attributes get the entries of `more`, each with the digest of the files.

        Raises
        ------
        ArgumentError
            If the path is no longer free, unless it has an array and `overwrite` is true. The
            complete array then stays in `partial`.
        """
        record = dict(self.root.attrs[ATTRIBUTE])
        record["complete"] = True
        for folder, _, names in os.walk(self.partial):
            for name in names:
                sync_path(Path(folder, name))
            sync_path(Path(folder))
        for name, entry in (more or {}).items():
            record[name] = {**entry, "files": files_digest(self.partial)}
        self.root.attrs[ATTRIBUTE] = record
        self.sync_attributes()
        self._move(overwrite)

    def _move(self, overwrite: bool) -> None:
        """Move the complete array to its final path, and delete the old one."""
        old = _names(self.partial)[1]
        _refuse_occupied(self.path, overwrite, _CAME)
        if overwrite:
            with contextlib.suppress(FileNotFoundError):
                self.path.rename(old)
        try:
            self.partial.rename(self.path)
        except BaseException as error:
            if os.path.lexists(self.path) and isinstance(error, OSError):  # taken meanwhile
                before = f"; {old} was there before" if os.path.lexists(old) else ""
                need = f"a path where nothing exists yet{_CAME}{before}"
                raise_invalid("destination", str(self.path), need)
            if old.exists() and not os.path.lexists(self.path):
                old.rename(self.path)
            raise
        sync_path(self.path.parent)  # before the old array and the scratch files are deleted
        if _is_replaceable(old):
            shutil.rmtree(old)

    def sync_attributes(self) -> None:
        """Sync the attributes and the name of the folder to disk, so that a run can resume it."""
        for folder in {self.folder, self.partial}:
            sync_path(folder / "zarr.json")
            sync_path(folder)
        sync_path(self.partial.parent)


def discard(partial: Path) -> None:
    """Remove a partial array, also files that running tasks add meanwhile."""
    for _ in range(20):
        shutil.rmtree(partial, ignore_errors=True)
        time.sleep(0.05)
        if not partial.exists():
            break


def files_digest(folder: Path) -> str:
    """Return a digest of the names, sizes and times of an array's files, without attributes."""
    digest = hashlib.sha256()
    for root, folders, names in os.walk(folder):
        folders.sort()
        for file in sorted(names):
            path = Path(root, file)
            name = str(path.relative_to(folder))
            if name in _ZARR_FILES or name == ".zattrs":
                continue
            status = path.stat()
            line = json.dumps([name, status.st_size, status.st_mtime_ns])
            digest.update(f"{line}\n".encode())
    return digest.hexdigest()


def _names(partial: Path) -> tuple[Path, Path]:
    """Return the final path of the array in `partial`, and the temporary path of the old one."""
    name, _, run = partial.name.rpartition(PARTIAL)
    return partial.with_name(name), partial.with_name(name + REPLACED + run)


def end_replacement(partial: Path, is_complete: bool) -> None:
    """Finish or undo the replacement of an old array that a killed run had begun.

    The old array is deleted if the run is complete, else it is moved back.

    Raises
    ------
    ArgumentError
        If the old array cannot be moved back, because its path is taken.
    """
    path, old = _names(partial)
    if not old.exists():
        return
    if not os.path.lexists(path):
        old.rename(path)
    elif is_complete:
        shutil.rmtree(old, ignore_errors=True)
    else:
        need = "a path where nothing exists: it was taken after a killed run had moved its array"
        raise_invalid("destination", str(path), f"{need} to {old}")


def created(
    path: Path,
    partial: Path,
    shape: tuple[int, ...],
    blocks: tuple[int, ...],
    dtype: np.dtype[Any],
    record: dict[str, Any],
    inner: tuple[int, ...] | None,
    labels: Labels,
    compressors: Any,
) -> Target:
    """Return a new Zarr array in `partial` for `path`. An earlier one in `partial` is deleted.

    Parameters
    ----------
    path : Path
        Checked by `check_target`; `inner` and `dtype` are checked, too.
    partial : Path
        Folder in which it is written.
    shape, blocks, dtype
        Shape and type of the array, and shape of its blocks.
    record : dict
        Attributes of the array; a mark that it is incomplete is added.
    inner : tuple of int, optional
        Shape of chunks if each block is a shard of several.
    labels : Labels
        Names and further attributes. With coordinates, the array is made in a group of all.
    compressors
        Compressors of the array and of its coordinates, as `zarr.create_array` takes them.
    """
    shutil.rmtree(partial, ignore_errors=True)
    zarr = zarr_package()
    store = local_store(partial)
    grouped = bool(labels.coordinates)
    run_attributes = {ATTRIBUTE: record | {"complete": False}}
    if grouped:
        run_attributes[ATTRIBUTE]["array"] = labels.variable
        root = zarr.create_group(store, attributes=run_attributes)
        for name, (values, attributes) in labels.coordinates.items():
            root.create_array(
                name=name,
                data=values,
                attributes=attributes,
                dimension_names=[name],
                compressors=compressors,
            )
    array = zarr.create_array(
        store,
        name=labels.variable if grouped else None,
        shape=shape,
        chunks=inner or blocks,
        shards=blocks if inner else None,
        dtype=dtype,
        compressors=compressors,
        attributes=labels.attributes if grouped else labels.attributes | run_attributes,
        dimension_names=labels.names or None,
        config={"write_empty_chunks": True},
    )
    return Target(
        path,
        partial,
        array,
        root if grouped else array,
    )


def check_inner(inner: tuple[int, ...] | None, blocks: tuple[int, ...]) -> None:
    """Raise an error if chunks do not divide their shards."""
    if inner is None:
        return
    allowed = f"divisors of the blocks' shape, {blocks}"
    if not isinstance(inner, Sequence) or not all(isinstance(n, Integral) for n in inner):
        raise_invalid(
            "inner_chunks",
            inner,
            allowed,
            kind=ArgumentTypeError,
        )
    pairs = zip(inner, blocks, strict=False)
    if len(inner) != len(blocks) or any(n < 1 or block % n for n, block in pairs):
        raise_invalid("inner_chunks", inner, allowed)


def check_dtype(dtype: np.dtype[Any]) -> None:
    """Raise an error if Zarr cannot store the dtype of a result."""
    zarr = zarr_package()
    try:
        zarr.create_array(
            zarr.storage.MemoryStore(),
            shape=(1,),
            chunks=(1,),
            dtype=dtype,
        )
    except (TypeError, ValueError) as error:
        need = f"a dtype that Zarr can store ({error})"
        raise_invalid("source", f"with a result of {dtype}", need)


#: Exceptions that zarr raises for compressors that it does not accept, or that are not installed.
_REFUSALS: tuple[type[Exception], ...] = (*UNREADABLE, AttributeError, ImportError)


def parse_compressors(compressors: Any, dtype: np.dtype[Any]) -> list[dict[str, Any]]:
    """Return the codecs of an array's compressors in the form that ``zarr.json`` has.

    Parameters
    ----------
    compressors
        Argument of `zarr.create_array`.
    dtype : dtype
        Type of the array.

    Raises
    ------
    ArgumentError
        If zarr does not accept them.
    """
    zarr = zarr_package()
    try:
        array = zarr.create_array(
            zarr.storage.MemoryStore(),
            shape=(1,),
            chunks=(1,),
            dtype=dtype,
            compressors=compressors,
        )
    except _REFUSALS as error:
        need = "'auto' (zarr's default), None, or compressors that zarr.create_array takes"
        raise_invalid("compressors", compressors, f"{need} ({error})")
    return codecs_of(array)


def codecs_of(array: Any) -> list[dict[str, Any]]:
    """Return the codecs of a Zarr array's compressors in the form that ``zarr.json`` has."""
    codecs = [codec.to_dict() for codec in array.metadata.codecs]
    first = codecs[0]
    if first["name"] == "sharding_indexed":
        codecs = list(first["configuration"]["codecs"])
    return codecs[1:]  # the first one makes bytes of numbers


#: Maximum MiB of the tables of zstd by level, up to which it holds. They shrink for small chunks.
ZSTD_TABLES = {
    4: 0,
    6: 4,
    8: 8,
    9: 16,
    11: 32,
    15: 64,
    18: 64,
    19: 96,
    20: 176,
    21: 336,
    22: 656,
}


def writing_of(
    codecs: Sequence[Mapping[str, Any]],
    *,
    in_shards: bool,
    is_cast: bool,
) -> ResultWriting:
    """Return the memory that writing a chunk with some codecs takes.

    Measured for random numbers, which hardly shrink. Tables of other compressors than zstd are
    small and do not count.

    Parameters
    ----------
    codecs : sequence of dict
        Compressors, as `parse_compressors` returns them.
    in_shards : bool
        Whether several chunks are put together to a shard.
    is_cast : bool
        Whether zarr casts the values.

    Examples
    --------
    >>> writing_of([], in_shards=False, is_cast=False).nbytes(100, has_ends=True)
    0
    """
    if in_shards:  # its chunks, and all of them in a row
        copies = 2
        copies_at_ends = 2
    elif codecs:  # the result of a codec, beside that of the one before
        copies = min(len(codecs), 2)
        copies_at_ends = 1 + copies
    else:
        copies = int(is_cast)
        copies_at_ends = copies
    tables = [
        zstd_tables_nbytes(codec["configuration"]["level"])
        for codec in codecs
        if codec["name"] in ("zstd", "numcodecs.zstd")
    ]
    return ResultWriting(copies, copies_at_ends, max(tables, default=0))


def zstd_tables_nbytes(level: int) -> int:
    """Return the maximum size of zstd's tables at a level; 0 above its highest.

    >>> zstd_tables_nbytes(3), zstd_tables_nbytes(7) >> 20
    (0, 8)
    """
    for highest_level, mebibytes in ZSTD_TABLES.items():
        if level <= highest_level:
            return mebibytes << 20
    return 0


def _with_empty_chunks(array: Any) -> Any:
    """Return a Zarr array that stores blocks of zeros as well, as one of `created` does."""
    zarr = zarr_package()
    config = {"write_empty_chunks": True}
    return zarr.Array(
        zarr.AsyncArray(
            array.metadata,
            array.store_path,
            config=config,
        )
    )


def reopened(path: Path, partial: Path) -> Target:
    """Return the array that an earlier run has begun. Zarr's unfinished files are deleted."""
    for left in partial.rglob("*.partial"):
        left.unlink(missing_ok=True)
    zarr = zarr_package()
    root = zarr.open(local_store(partial), mode="r+")
    name = root.attrs[ATTRIBUTE].get("array")
    array = _with_empty_chunks(root[name] if name else root)
    return Target(
        path,
        partial,
        array,
        root if name else array,
    )


def read_attributes(path: Path) -> dict[str, Any]:
    """Return the attributes that `dask_bigfft` has written; an empty dict without any."""
    try:
        store = local_store(path, read_only=True)
        attributes = zarr_package().open(store, mode="r").attrs.get(ATTRIBUTE)
    except UNREADABLE:  # neither array nor group, or a damaged one
        return {}
    return dict(attributes) if isinstance(attributes, dict) else {}


def name_of_run() -> str:
    """Return a unique name for a run of this process.

    >>> ended(name_of_run())
    False
    """
    return f"{_HOST}-{os.getpid()}-{uuid.uuid4().hex[:8]}"


def partial_of(path: Path, run: str) -> Path:
    """Return the folder in which a run writes its array for a path."""
    return path.with_name(f"{path.name}{PARTIAL}{run}")


def leftovers(path: Path, what: str = PARTIAL) -> list[Path]:
    """Return the partial arrays that killed runs have left beside `path`.

    Runs of other hosts, and runs with a scratch folder, may still go on and are left out. With
    `REPLACED` the old arrays of `path` are returned, except those of running processes.
    """
    start = f"{path.name}{what}"
    folders = []
    for sibling in path.parent.iterdir():
        if not sibling.name.startswith(start):
            continue
        run = sibling.name.removeprefix(start)
        has_ended = ended(run)
        if has_ended or (has_ended is None and what == REPLACED):
            folders.append(sibling)
    return sorted(folders)


def ended(run: str) -> bool | None:
    """Return True if the process of a run has ended; None if the name does not tell."""
    match = re.fullmatch(rf"{re.escape(_HOST)}-(\d{{1,9}})-[0-9a-f]+", run)
    return None if match is None else not psutil.pid_exists(int(match[1]))
