"""A run in a scratch folder: begun, killed at any time, and gone on with.

Imports `config`, `exchange`, `graph`, `planning`, `storage` and this room.
"""

import base64
import contextlib
import errno
import hashlib
import json
import os
import sys
import time
import uuid
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn, cast

import dask.array as da
import dask.config
import numpy as np

from dask_bigfft import config
from dask_bigfft.errors import ArgumentError, DamagedShardError, ScratchError, refuse
from dask_bigfft.events import emit
from dask_bigfft.exchange.folders import (
    begin_life,
    check_room,
    has_lock,
    lock_folder,
    sync_folders,
    unlock_folder,
)
from dask_bigfft.exchange.scratch import Scratch, ScratchPlace, Stored, stored_blocks
from dask_bigfft.files import room_missing, sync_path
from dask_bigfft.graph.disk import exchange_folder
from dask_bigfft.kernels.checks import checksum
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planning.environment import device_software, told_everywhere
from dask_bigfft.runs import run_json
from dask_bigfft.runs.asked import (
    Asked,
    Done,
    attributes,
    done_by,
    lazy_result,
    nbytes_of_result,
    open_input,
    open_rows,
    planned_input,
    refuse_missing,
    result_dtype,
    warn,
)
from dask_bigfft.runs.run_json import (
    file_size,
    finished_blocks,
    forget_damaged,
    forget_lost,
    lost_blocks,
    result_files,
)
from dask_bigfft.storage import targets
from dask_bigfft.storage.formats import UNREADABLE, PlainChunks, plain_chunks
from dask_bigfft.storage.sources import array_folder, source_files


def source_identity(path: Path, component: str | None, content: bool) -> dict[str, Any]:
    """Return what tells a source from a changed one.

    Parameters
    ----------
    path : Path
        File, or folder of a Zarr array or group.
    component : str or None
        Array within a group.
    content : bool
        Whether everything is read, for checksums.

    Returns
    -------
    dict
        Of each file: size in bytes, time of the last change in ns, CRC-32 or None.
    """
    found = source_files(path, component)
    files = {name: _file(file, content) for name, file in found.items()}
    return {"path": str(path.resolve()), "component": component, "files": files}


def _file(path: Path, content: bool) -> list[int | None]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, _crc(path) if content else None]


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as handle:
        while data := handle.read(1 << 22):
            crc = zlib.crc32(data, crc)
    return crc


def refuse_changed_source(
    before: Mapping[str, Any], now: Mapping[str, Any], kept: bool = True
) -> None:
    """Refuse a source that is not what it was when the run began.

    Parameters
    ----------
    before, now
        As `source_identity` returns them.
    kept : bool
        Whether the run keeps a scratch folder.

    Raises
    ------
    ArgumentError
        Naming the file that has changed.
    """
    allowed = "the source as it was when the run began"
    allowed += "; delete the scratch folder to start over" if kept else ""
    path = str(now["path"])
    if (before["path"], before["component"]) != (now["path"], now["component"]):
        refuse("source", path, f"{before['path']}, which the scratch folder is of")
    was, found = before["files"], now["files"]
    for name in sorted(was.keys() | found.keys()):
        a, b = was.get(name), found.get(name)
        if a == b:
            continue
        what = "is gone" if b is None else "is new" if a is None else "has changed"
        file = array_folder(Path(path), before["component"]) / name if name else path
        refuse("source", path, f"{allowed}: {file} {what}")


#: Key of all this within what the attributes say of a result.
IDENTITY = "identity"


@dataclass(frozen=True)
class Identity:
    """What a result says of the run that made it, and the files that the result has now.

    Parameters
    ----------
    arguments, source, files : str
        Digests; see above.
    checksum : bool
        Whether `source` is also of the source's contents.
    plan : Plan
        How it was made.
    """

    arguments: str
    source: str
    files: str
    checksum: bool
    plan: Plan


def in_place(source: Path, component: str | None, destination: Path) -> bool:
    """Whether a result takes the place of the array that it is made of."""
    return array_folder(source.resolve(), component).resolve() == destination.resolve()


def written(
    asked: Mapping[str, Any], source: Mapping[str, Any], plan: str, checksum: bool
) -> dict[str, Any]:
    """Return what a result is to say of its run; `Target.finish` adds its files.

    Parameters
    ----------
    asked, source
        As a run pins them.
    plan : str
        As JSON.
    checksum : bool
        Whether the source's contents are pinned.
    """
    packed = base64.b64encode(zlib.compress(plan.encode(), 9)).decode()
    return {
        "arguments": _arguments(asked, source["path"], source["component"]),
        "source": _digest(source["files"]),
        "checksum": checksum,
        "plan": packed,
    }


def _arguments(asked: Mapping[str, Any], path: str, component: str | None) -> str:
    return _digest([asked, path, (component or "").strip("/")])


def _digest(found: Any) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def read(path: Path) -> Identity | None:
    """Return what a complete result says of its run; None if it says nothing, or nonsense."""
    record = targets.read_attributes(path)
    found = record.get(IDENTITY)
    if not record.get("complete") or not isinstance(found, dict):
        return None
    try:
        plan = Plan.from_json(zlib.decompress(base64.b64decode(found["plan"])).decode())
        arguments, source, files = (str(found[name]) for name in ("arguments", "source", "files"))
        return Identity(arguments, source, files, bool(found["checksum"]), plan)
    except (ValueError, KeyError, TypeError, zlib.error):
        return None


def compared(
    found: Identity,
    asked: Mapping[str, Any],
    source: Path,
    component: str | None,
    destination: Path,
    checksum: bool,
) -> str | None:
    """Return what tells a result from that of the run that is asked for; None if nothing does.

    Raises
    ------
    ArgumentError
        If the result has replaced its source and is not what the run has left: nobody can tell
        whether that is to be transformed. Also if it has, and is to be compared with its contents.
    """
    if found.arguments != _arguments(asked, str(source.resolve()), component):
        return "what is there was made with other arguments, or of another source"
    replaced = in_place(source, component, destination)
    if checksum and not found.checksum:
        if replaced:
            refuse(
                "checksum",
                True,
                f"False, as in the run that has made {destination}, and the "
                "source that it was made of is gone",
            )
        return "what is there was made without checksum=True"
    if not replaced:
        now = source_identity(source, component, found.checksum)["files"]
        if found.source != _digest(now):
            return "what is there was made of the source as it was before it changed"
    return altered(found, replaced, destination)


def altered(found: Identity | None, replaced: bool, destination: Path) -> str | None:
    """Return what tells a result from what its run has left; None if nothing does.

    Parameters
    ----------
    found : Identity or None
        What the result says; None if it does not say any more what its run has left.
    replaced : bool
        Whether it has replaced its source.
    destination : Path
        Where it is.

    Raises
    ------
    ArgumentError
        As `compared` does.
    """
    if found is not None and found.files == targets.files_digest(destination):
        return None
    if replaced:
        refuse(
            "resume",
            True,
            f"{destination} as this run has left it, which it is not any more; "
            "without resume=True, in a new scratch folder, it is transformed once more",
        )
    return "what is there has been changed since it was made"


Block = tuple[int, ...]


class Sink:
    """A Zarr array as `dask.array.store` writes to it: a block at a time.

    Parameters
    ----------
    array : Zarr array
        Written to.
    blocks : tuple of int
        Shape of a block: that of a chunk, or of a shard where chunks lie in shards.
    scratch : Scratch or None
        Where to record which blocks are stored.
    exchange : str or None
        Folder of the scratch files that the blocks come from; a stored block's file goes.
    folder : Path or None
        Of the array: where its chunks are files. Their sizes are recorded, and with `sync` they
        are on the disk before.
    plain : PlainChunks or None
        Its chunks, where they are files of nothing but their values.
    parts : mapping of block to block
        Where a block is a part of one of the last round, that one: its file goes with the last of
        its parts that are stored.
    """

    def __init__(
        self,
        array: Any,
        blocks: tuple[int, ...],
        scratch: Scratch | None = None,
        exchange: str | None = None,
        folder: Path | None = None,
        plain: PlainChunks | None = None,
        parts: Mapping[Block, Block] = MappingProxyType({}),
    ) -> None:
        self.array, self.blocks, self.scratch = array, blocks, scratch
        self.exchange, self.folder, self.plain = exchange, folder, plain
        self.shape, self.dtype, self.ndim = array.shape, array.dtype, array.ndim
        self.parts, self._parts_of = dict(parts), dict[Block, list[Block]]()
        for part, whole in parts.items():
            self._parts_of.setdefault(whole, []).append(part)

    def __dask_tokenize__(self) -> str:
        return uuid.uuid4().hex

    def __setitem__(self, index: tuple[slice, ...], values: Any) -> None:
        started = time.perf_counter()
        block = tuple((s.start or 0) // n for s, n in zip(index, self.blocks, strict=True))
        try:
            if self.plain is None or not self.plain.write(index, values):
                self.array[index] = values
        except OSError as error:
            self._fail(error, block, values.nbytes)
        if self.scratch is not None:
            self.scratch.record_stored(block, self._settled(self.scratch, block, values))
            if self.exchange is not None:
                self._free(self.scratch, self.exchange, block)
        emit("sink_write", nbytes=values.nbytes, seconds=time.perf_counter() - started)

    def _fail(self, error: OSError, block: Block, nbytes: int) -> NoReturn:
        """Raise what went wrong with a chunk: which, and how many bytes a full disk lacks.

        Zarr names no file.
        """
        root = getattr(self.array.store, "root", None)
        path = Path(error.filename or "")
        if root is not None:
            path = Path(root, self.array.path, self.array.metadata.encode_chunk_key(block))
        text, lack = error.strerror or str(error), room_missing(path, error, nbytes)
        if lack is not None:
            text = f"{text}: {lack} for a chunk of the result of {nbytes}"
        raise OSError(error.errno, text, str(path)) from error

    def _free(self, scratch: Scratch, exchange: str, block: Block) -> None:
        """Delete the file that a stored block came from, unless others have to come from it.

        Any worker, now or before an interruption, may have stored them: the records say.
        """
        whole = self.parts.get(block, block)
        if all(scratch.stored(part) for part in self._parts_of.get(whole, ())):
            scratch.free(exchange, whole)

    def _settled(self, scratch: Scratch, block: Block, values: Any) -> Stored:
        """Return what there is to be known of a block's file, if it is one.

        With `sync` the file is then on the disk, and the names of all folders down to it; else its
        checksum tells later whether it has come there.
        """
        if self.folder is None:
            return Stored()
        path = self.folder / self.array.metadata.encode_chunk_key(block)
        whole = checksum(np.ascontiguousarray(values, self.dtype))
        if scratch.sync:
            sync_path(path)
            sync_folders(path.parent, self.folder)
        return Stored(file_size(path), whole, scratch.sync)


#: Stores a result in a sink, whole, before it returns.
Store = Callable[[da.Array, Sink], object]


#: How often a damaged scratch file is made once more before a run gives up.
MOST_REPAIRS = 3

#: How often a scratch folder that others remove is made.
MOST_TRIES = 100


@contextlib.contextmanager
def locked(scratch: Path) -> Iterator[Path]:
    """Give a scratch folder that only this process uses, and the disk as carrier."""
    folder = scratch.resolve()
    if folder.exists() and not folder.is_dir():
        refuse("scratch", str(scratch), "a folder, or a name that nothing has")
    try:
        handle = _made_and_locked(folder)
    except OSError as error:
        code = error.errno or errno.EIO
        text = f"`scratch`={str(scratch)!r} cannot be a scratch folder: {os.strerror(code)}"
        raise ScratchError(code, text, str(folder)) from error
    if handle is None:
        refuse("scratch", str(scratch), "a folder that no other run is using now")
    try:
        with dask.config.set({"bigfft.exchange.carrier": "disk"}):
            yield folder
    finally:
        if has_lock(folder, handle) and not (folder / run_json.RECORD).exists():
            run_json.leave(folder)  # all is done, or was refused before anything was begun
        unlock_folder(handle)


def _made_and_locked(folder: Path) -> int | None:
    """Lock a folder, which is made if it is not there; see `lock_folder`.

    Whoever has used it until now may remove it at any time, again and again.
    """
    for left in reversed(range(MOST_TRIES)):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return lock_folder(folder)
        except (FileNotFoundError, FileExistsError):
            if not left:
                raise
    return None


def go_on(
    asked: Asked, store: Store, scratch: Path, resume: bool, overwrite: bool, checksum: bool
) -> Done:
    """Carry out a run in its scratch folder, or what is left of it; see `run` for the arguments."""
    started, found = time.perf_counter(), run_json.read_record(scratch)
    if found is not None and not resume:
        refuse("scratch", str(scratch), "a folder where no run has begun, or resume=True")
    ours, there = found is not None and _complete(asked.destination, found["run"]), None
    if found is not None:
        targets.settle(Path(found["partial"]), ours)
    open_input(asked)  # refused before anything else is looked at
    if ours:
        there = altered(read(asked.destination), _in_place(asked), asked.destination)
        ours = there is None
    if found is None and resume and (made := read(asked.destination)) is not None:
        there = compared(
            made, asked.pinned, asked.source, asked.component, asked.destination, checksum
        )
        if there is None:
            return done_by(asked, made.plan, started, already=True)
    if not ours:
        targets.check_target(asked.destination, asked.source, overwrite=overwrite, there=there)
    if found is None:
        refuse_missing(asked)
        found = _pin(asked, scratch, checksum)
    else:
        _check(asked, found, scratch, ours, checksum)
    plan = Plan.from_json(found["plan"])
    if not ours:
        _make(asked, store, scratch, plan, found, overwrite)
    run_json.clear(scratch)
    return done_by(asked, plan, started, already=ours)


def _make(
    asked: Asked, store: Store, scratch: Path, plan: Plan, found: Mapping[str, Any], overwrite: bool
) -> None:
    """Do what is left of a run, and put the result in its place."""
    x, place = open_input(asked, plan), _place(asked, scratch, plan)
    begun = bool(dict(place.finished)[len(plan.exchanges)])
    target = _target(asked, scratch, x, plan, found, begun)
    recorded = stored_blocks(scratch, run_json.digest(scratch))
    if lost := lost_blocks(target, plan, recorded, _has_content(found) or plan.verify != "none"):
        forget_lost(scratch, plan, lost)
        place = _place(asked, scratch, plan)
    damaged, done = Counter[str](), False
    while not done:
        try:
            store(lazy_result(x, plan, place), _sink(target, plan, scratch, place))
            done = True
        except DamagedShardError as error:
            damaged[str(error.filename)] += 1  # others may be damaged, too
            if damaged[str(error.filename)] > MOST_REPAIRS:
                raise
            forget_damaged(scratch, plan, error)
            warn(error)
            place = _place(asked, scratch, plan)
    now = source_identity(asked.source, asked.component, _has_content(found))
    refuse_changed_source(found["source"], now)
    made = written(found["asked"], found["source"], found["plan"], _has_content(found))
    try:
        target.finish(overwrite, {IDENTITY: made})
    except ArgumentError as error:  # somebody else was first
        raise type(error)(
            f"{error}; the finished array is in {target.partial}, and its run in "
            f"{scratch}: resume it with overwrite=True, or delete both"
        ) from None


def _place(asked: Asked, scratch: Path, plan: Plan) -> ScratchPlace:
    """The scratch folder of a plan, with what is done already, for a life that begins now."""
    life = begin_life(scratch, run_json.digest(scratch))
    finished = finished_blocks(scratch, plan)
    sync, memory = config.get("bigfft.scratch.sync"), plan.expected.peak_host
    rows = open_rows(asked) if plan.from_rows else None
    return ScratchPlace(str(scratch), "", sync, True, 0, memory, finished, rows, life)


def _pin(asked: Asked, scratch: Path, checksum: bool) -> dict[str, Any]:
    """Plan a run and write down what it is."""
    x, plan = planned_input(asked)
    targets.check_dtype(result_dtype(plan, x))
    targets.check_inner(asked.inner_chunks, targets.uniform(plan.chunks) or ())
    check_room(scratch, plan.expected.scratch)
    targets.check_room(asked.destination, nbytes_of_result(plan, x))
    run = uuid.uuid4().hex
    found = {
        "run": run,
        "asked": asked.pinned,
        "versions": _versions(plan),
        "source": source_identity(asked.source, asked.component, checksum),
        "partial": str(
            asked.destination.resolve().with_name(
                f"{asked.destination.name}{targets.PARTIAL}r{run[:12]}"
            )
        ),
        "plan": plan.to_json(),
    }
    run_json.write_record(scratch, found)
    return found


def _check(
    asked: Asked, found: Mapping[str, Any], scratch: Path, ours: bool, checksum: bool
) -> None:
    """Refuse to go on with a run that is not the one that was pinned.

    Where its result (`ours`) has replaced its source, there is no source to be looked at any more.
    """
    if checksum and not _has_content(found):
        refuse(
            "checksum",
            True,
            f"False as in the run that is resumed, or another scratch folder than {scratch}",
        )
    now = {"asked": asked.pinned, "versions": _versions(Plan.from_json(found["plan"]))}
    if not ours or not _in_place(asked):
        source = source_identity(asked.source, asked.component, _has_content(found))
        refuse_changed_source(found["source"], source)
    run_json.refuse_another_run(scratch, found, now)


def _versions(plan: Plan) -> dict[str, str]:
    own = str(sys.modules["dask_bigfft"].__version__)
    cards = device_software() if run_json.on_devices(plan) else {}
    return {"dask_bigfft": own, **told_everywhere(run_json.versions, plan.kernel), **cards}


def _has_content(found: Mapping[str, Any]) -> bool:
    return any(file[2] is not None for file in found["source"]["files"].values())


def _in_place(asked: Asked) -> bool:
    return in_place(asked.source, asked.component, asked.destination)


def _complete(path: Path, run: str) -> bool:
    """Whether the result of a run is in its place already: only cleaning up was left."""
    record = targets.read_attributes(path)
    return bool(record.get("run") == run and record.get("complete"))


def _target(
    asked: Asked, scratch: Path, x: da.Array, plan: Plan, found: Mapping[str, Any], begun: bool
) -> targets.Target:
    """The result as far as it is there; a new one if nothing is stored yet."""
    partial, shape = Path(found["partial"]), targets.uniform(plan.chunks) or ()
    if begun:
        if not partial.is_dir():
            refuse(
                "scratch",
                str(scratch),
                f"a folder beside the part of the result that its run "
                f"has stored: {partial} is gone; delete the scratch folder to start over",
            )
        return _reopened(asked, scratch, x, plan, partial)
    record = attributes(plan, asked.norm) | {"run": found["run"]}
    target = targets.created(
        asked.destination,
        partial,
        plan.spec.out_shape,
        shape,
        result_dtype(plan, x),
        record,
        asked.inner_chunks,
    )
    target.begin()
    return target


def _reopened(
    asked: Asked, scratch: Path, x: da.Array, plan: Plan, partial: Path
) -> targets.Target:
    """The part of a result that a run has stored, unless it is another array's."""
    allowed = (
        f"a folder beside the part of the result that its run has stored; {partial} is not "
        "that any more: delete both folders to start over"
    )
    try:
        target = targets.reopened(asked.destination, partial)
        array = target.array
        found = array.shape, array.shards or array.chunks, array.dtype
    except UNREADABLE as error:
        refuse("scratch", str(scratch), f"{allowed} ({error})")
    if found != (plan.spec.out_shape, targets.uniform(plan.chunks), result_dtype(plan, x)):
        refuse("scratch", str(scratch), allowed)
    return target


def _sink(target: targets.Target, plan: Plan, scratch: Path, place: ScratchPlace) -> Sink:
    """The sink of a run; files that nobody needs any more go."""
    files = Scratch(scratch, place.sync, kept=True, life=place.life)
    folders = [exchange_folder("", i) if moves else None for i, moves in enumerate(plan.moves)]
    for number, blocks in place.finished:
        before = folders[number - 1] if number else None
        for block in blocks if before is not None else ():
            files.free(cast("str", before), block)
    shape, (last, parts) = targets.uniform(plan.chunks) or (), result_files(plan)
    exchange = None if last is None else folders[last]
    plain = plain_chunks(target.array, target.partial)
    return Sink(target.array, shape, files, exchange, target.partial, plain, parts)
