"""Runs from file to file, which can be resumed if they have a scratch folder."""

import base64
import contextlib
import errno
import hashlib
import json
import os
import time
import uuid
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import dask.array as da
import numpy as np
from dask.utils import format_bytes

from dask_bigfft import config
from dask_bigfft.api.calls import applied
from dask_bigfft.arrays import Block
from dask_bigfft.errors import (
    ArgumentError,
    ArgumentTypeError,
    DamagedShardError,
    ScratchError,
    raise_invalid,
)
from dask_bigfft.events import emit, raise_if_asynchronous, running_client
from dask_bigfft.exchange import folders
from dask_bigfft.exchange.folders import unlock_folder
from dask_bigfft.exchange.scratch import RESULT, Scratch, ScratchPlace, records
from dask_bigfft.files import check_free_space, explained, sync_path
from dask_bigfft.gpu.dispatch import takes
from dask_bigfft.graph.disk import exchange_folder
from dask_bigfft.graph.layer import scratch_place
from dask_bigfft.kernels.checks import checksum
from dask_bigfft.machine import environment
from dask_bigfft.planner.plan import Plan
from dask_bigfft.runs import request as requests
from dask_bigfft.runs import run_json
from dask_bigfft.runs.request import Done, RunRequest, layout_of_result
from dask_bigfft.storage import sources, targets
from dask_bigfft.storage.formats import UNREADABLE

#: Maximum number of repairs of one scratch file.
MOST_REPAIRS = 3

#: Maximum number of attempts to make a scratch folder that others remove.
MOST_TRIES = 100


@dataclass(eq=False)
class Sink:
    """Zarr array to which `dask.array.store` writes a block at a time.

    Parameters
    ----------
    target : Target
        Array that is written.
    scratch : Scratch or None
        Scratch folder that records the stored blocks.
    exchange : str or None
        Folder of the scratch files that the blocks are made of. The file of a stored block is
        deleted.
    parts : mapping of block to block
        Block of the last round for each block that is a part of one. Its file is deleted once all
        parts are stored.
    """

    target: targets.Target
    scratch: Scratch | None = None
    exchange: str | None = None
    parts: Mapping[Block, Block] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._parts_of = dict[Block, list[Block]]()
        array = self.target.array
        self.shape = array.shape
        self.dtype = array.dtype
        self.ndim = array.ndim
        for part, whole in self.parts.items():
            self._parts_of.setdefault(whole, []).append(part)

    def __dask_tokenize__(self) -> str:
        return uuid.uuid4().hex

    def __setitem__(self, index: tuple[slice, ...], values: Any) -> None:
        started = time.perf_counter()
        pairs = zip(index, self.target.blocks, strict=True)
        block = tuple((s.start or 0) // n for s, n in pairs)
        path = self.target.chunk_file(block)
        try:
            self.target.write(index, values)
        except OSError as error:  # zarr names no file
            what = f"a chunk of the result of {format_bytes(values.nbytes)}"
            text = explained(path, error, values.nbytes, what)
            raise OSError(error.errno, text, str(path)) from error
        if self.scratch is not None:
            self._record(self.scratch, block, path, values)
        emit("sink_write", nbytes=values.nbytes, seconds=time.perf_counter() - started)

    def _record(self, scratch: Scratch, block: Block, path: Path, values: Any) -> None:
        """Record a stored block, and delete its scratch file if no other block needs it.

        With `sync` the block's file and folders are synced first. Otherwise its checksum shows
        later if it has reached the disk.
        """
        whole = checksum(np.ascontiguousarray(values, self.dtype))
        if scratch.sync:
            sync_path(path)
            folders.sync_folders(path.parent, self.target.partial)
        file = {"nbytes": path.stat().st_size, "checksum": whole, "synced": scratch.sync}
        scratch.record(RESULT, block, file)
        made_of = self.parts.get(block, block)
        # Other workers, or earlier attempts, may have stored the other parts.
        others = self._parts_of.get(made_of, ())
        if self.exchange is not None and all(scratch.recorded(RESULT, part) for part in others):
            scratch.free(self.exchange, made_of)


#: Function that stores a whole result in a sink before it returns.
Store = Callable[[da.Array, Sink], object]


def store_now(result: da.Array, sink: Sink) -> None:
    """Store a result with the current scheduler."""
    da.store(result, cast("Any", sink), lock=False)


def execute(request: RunRequest, store: Store = store_now) -> Done:
    """Do a run and return its report."""
    raise_if_asynchronous(running_client())
    if request.array is None:
        requests.refuse_places(request)
    if request.scratch is not None:
        with locked(request.scratch) as folder:
            return _go_on(request, store, folder)
    for name in ("resume", "checksum"):
        if getattr(request, name):
            raise_invalid(name, True, "a scratch folder beside it", kind=ArgumentTypeError)
    targets.check_target(request.destination, request.source, overwrite=request.overwrite)
    started = time.perf_counter()
    x, plan = _checked_plan(request)
    stored = request.array is None
    before = source_identity(request, content=False) if stored else {}
    rows = request.reader() if stored and plan.from_rows else None
    place = None if rows is None else replace(scratch_place(plan), rows=rows)
    partial = targets.partial_of(request.destination, targets.name_of_run())
    try:
        target = _created(request, x, plan, partial, {})
        try:
            store(applied(x, plan, place), Sink(target))
        except DamagedShardError as error:  # its files are gone: repeat everything
            _warn(error)
            store(applied(x, plan, place), Sink(target))
        if stored:
            refuse_changed_source(before, source_identity(request, content=False), kept=False)
        target.finish(request.overwrite)
    except BaseException:
        targets.discard(partial)
        raise
    return request.done(plan, started)


def _checked_plan(request: RunRequest) -> tuple[da.Array, Plan]:
    """Return the source array and the plan, after checks of the source and the result."""
    if request.missing_chunks == "refuse" and request.array is None:
        sources.refuse_missing_chunks(request.source, request.component)
    x, plan = requests.planned_input(request)
    shape, blocks, dtype = layout_of_result(plan, x)
    targets.check_dtype(dtype)
    targets.check_inner(request.inner_chunks, blocks)
    nbytes = int(np.prod(shape, dtype=object) * dtype.itemsize)
    _check_space_of_result(request, nbytes, dtype)
    return x, plan


def _check_space_of_result(request: RunRequest, nbytes: int, dtype: np.dtype[Any]) -> None:
    """Raise an error if the disk is too small for a result, or warn if that is compressed."""
    try:
        check_free_space(request.destination, nbytes, "the result takes")
    except OSError as error:
        if not targets.parse_compressors(request.compressors, dtype):
            raise
        text = f"{error.strerror}, before it is compressed: {request.destination}"
        warnings.warn(text, RuntimeWarning, stacklevel=5)


def _created(
    request: RunRequest, x: da.Array, plan: Plan, partial: Path, more: Mapping[str, Any]
) -> targets.Target:
    """Return a new, empty result."""
    shape, blocks, dtype = layout_of_result(plan, x)
    return targets.created(
        request.destination,
        partial,
        shape,
        blocks,
        dtype,
        record={**requests.attributes(plan, request.norm), **more},
        inner=request.inner_chunks,
        labels=request.labels(plan),
        compressors=request.compressors,
    )


def _warn(error: DamagedShardError) -> None:
    """Warn that scratch files were damaged and are made again."""
    warnings.warn(f"{error.strerror}: {error.filename}", RuntimeWarning, stacklevel=4)


# --- identity of sources and results --------------------------------------------------------


def source_identity(request: RunRequest, content: bool) -> dict[str, Any]:
    """Return a JSON value that differs for a changed source.

    It has the size in bytes, the time of the last change in ns, and the CRC-32 or None of each
    file. With `content` all files are read for the CRC-32.
    """
    files = {}
    for name, path in sources.source_files(request.source, request.component).items():
        found = path.stat()
        files[name] = [found.st_size, found.st_mtime_ns, _crc(path) if content else None]
    return {"path": str(request.source.resolve()), "component": request.component, "files": files}


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as handle:
        while data := handle.read(1 << 22):
            crc = zlib.crc32(data, crc)
    return crc


def refuse_changed_source(
    before: Mapping[str, Any], now: Mapping[str, Any], kept: bool = True
) -> None:
    """Raise an error if the source has changed since the run began.

    Both identities are from `source_identity`. `kept` is true for a run with a scratch folder.

    Raises
    ------
    ArgumentError
        With the name of a changed file.
    """
    allowed = "the source as it was when the run began"
    allowed += "; delete the scratch folder to start over" if kept else ""
    path = str(now["path"])
    if (before["path"], before["component"]) != (now["path"], now["component"]):
        raise_invalid("source", path, f"{before['path']}, which the scratch folder is of")
    was = before["files"]
    found = now["files"]
    for name in sorted(was.keys() | found.keys()):
        if was.get(name) != found.get(name):
            what = "is gone" if name not in found else "has changed" if name in was else "is new"
            folder = sources.array_folder(Path(path), before["component"])
            raise_invalid("source", path, f"{allowed}: {folder / name if name else path} {what}")


#: Name of the attribute with the identity of a result's run.
IDENTITY = "identity"


def _identity(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity of a run for its result; `Target.finish` adds a digest of the files."""
    source = found["source"]
    return {
        "arguments": _arguments(found["asked"], source["path"], source["component"]),
        "source": _digest(source["files"]),
        "checksum": _has_content(found),
        "plan": base64.b64encode(zlib.compress(found["plan"].encode(), 9)).decode(),
    }


def _arguments(requested: Mapping[str, Any], path: str, component: str | None) -> str:
    return _digest([requested, path, (component or "").strip("/")])


def _digest(found: Any) -> str:
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()


def _read_identity(path: Path) -> dict[str, Any] | None:
    """Return the identity of a complete result's run; None if it is absent or invalid."""
    record = targets.read_attributes(path)
    try:
        found = record[IDENTITY]
        plan = zlib.decompress(base64.b64decode(found["plan"])).decode()
        made = {**found, "plan": Plan.from_json(plan), "checksum": found["checksum"]}
    except (ValueError, KeyError, TypeError, zlib.error):
        return None
    return made if record.get("complete") else None


def _another(made: Mapping[str, Any], request: RunRequest) -> str | None:
    """Return the reason why a result is not that of a request; None if it is.

    Raises
    ------
    ArgumentError
        If the result has replaced its source and has changed: it may be a new source. Also if it
        has replaced its source, and the request wants checksums that its run has not recorded.
    """
    path = str(request.source.resolve())
    if made.get("arguments") != _arguments(request.pinned, path, request.component):
        return "what is there was made with other arguments, or of another source"
    if request.checksum and not made["checksum"]:
        if request.in_place:
            need = f"False, as in the run that has made {request.destination}, and the source"
            raise_invalid("checksum", True, f"{need} that it was made of is gone")
        return "what is there was made without checksum=True"
    if not request.in_place:
        files = source_identity(request, bool(made["checksum"]))["files"]
        if made.get("source") != _digest(files):
            return "what is there was made of the source as it was before it changed"
    return _altered(made, request)


def _altered(made: Mapping[str, Any] | None, request: RunRequest) -> str | None:
    """Return an error text if a result has changed since its run; None if it has not.

    A changed result that has replaced its source raises an error, see `_another`.
    """
    path = request.destination
    if made is not None and made.get("files") == targets.files_digest(path):
        return None
    if request.in_place:
        need = f"{path} as this run has left it, but it has changed; without resume=True and with"
        raise_invalid("resume", True, f"{need} a new scratch folder, it is transformed again")
    return "what is there has been changed since it was made"


# --- runs in a scratch folder ---------------------------------------------------------------


@contextlib.contextmanager
def locked(scratch: Path) -> Iterator[Path]:
    """Yield a locked scratch folder."""
    folder = scratch.resolve()
    if folder.exists() and not folder.is_dir():
        raise_invalid("scratch", str(scratch), "a folder, or a name that nothing has")
    try:
        for left in reversed(range(MOST_TRIES)):  # its previous user may remove it at any time
            try:
                folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                handle = folders.lock_folder(folder)
                break
            except (FileNotFoundError, FileExistsError):
                if not left:
                    raise
    except OSError as error:
        code = error.errno or errno.EIO
        text = f"`scratch`={str(scratch)!r} cannot be a scratch folder: {os.strerror(code)}"
        raise ScratchError(code, text, str(folder)) from error
    if handle is None:
        raise_invalid("scratch", str(scratch), "a folder that no other run is using now")
    try:
        yield folder
    finally:
        if folders.has_lock(folder, handle) and not (folder / run_json.RECORD).exists():
            run_json.leave(folder)  # the run is complete, or never began
        unlock_folder(handle)


@dataclass(frozen=True)
class ScratchRun:
    """Run with a record in its scratch folder.

    Parameters
    ----------
    request : RunRequest
        Request of the run.
    scratch : Path
        Locked scratch folder.
    found : mapping
        Content of the record.
    """

    request: RunRequest
    scratch: Path
    found: Mapping[str, Any]

    @cached_property
    def plan(self) -> Plan:
        """Plan in the record."""
        return Plan.from_json(self.found["plan"])

    @property
    def is_complete(self) -> bool:
        """True if the result is at its final path, and only cleaning up is left."""
        record = targets.read_attributes(self.request.destination)
        return bool(record.get("run") == self.found["run"] and record.get("complete"))

    def check(self, complete: bool) -> None:
        """Raise an error if the record is not that of the requested run.

        A source that a complete result has replaced is not checked.
        """
        has_content = _has_content(self.found)
        if self.request.checksum and not has_content:
            need = "False as in the run that is resumed, or another scratch folder than"
            raise_invalid("checksum", True, f"{need} {self.scratch}")
        if not complete or not self.request.in_place:
            now = source_identity(self.request, has_content)
            refuse_changed_source(self.found["source"], now)
        now = {"asked": self.request.pinned, "versions": _versions(self.plan)}
        run_json.refuse_another_run(self.scratch, self.found, now)

    def place(self) -> ScratchPlace:
        """Return the scratch folder with its finished blocks, and begin a new life in it."""
        life = folders.begin_life(self.scratch, run_json.digest(self.scratch))
        finished = run_json.finished_blocks(self.scratch, self.plan)
        sync = config.get("bigfft.scratch.sync")
        memory = self.plan.expected.peak_host
        rows = self.request.reader() if self.plan.from_rows else None
        return ScratchPlace(str(self.scratch), "", sync, True, 0, memory, finished, rows, life)

    def target(self, x: da.Array, begun: bool) -> targets.Target:
        """Return the partial result, or a new one if nothing is stored yet."""
        partial = Path(self.found["partial"])
        if not begun:
            more = {"run": self.found["run"]}
            target = _created(self.request, x, self.plan, partial, more)
            target.sync_attributes()
            return target
        allowed = "a folder beside the part of the result that its run has stored"
        if not partial.is_dir():
            allowed += f": {partial} is gone; delete the scratch folder to start over"
            raise_invalid("scratch", str(self.scratch), allowed)
        allowed += f"; {partial} has changed: delete both folders to start over"
        try:
            target = targets.reopened(self.request.destination, partial)
            layout = target.array.shape, target.blocks, target.array.dtype
            codecs = targets.codecs_of(target.array)
        except UNREADABLE as error:
            raise_invalid("scratch", str(self.scratch), f"{allowed} ({error})")
        wanted = targets.parse_compressors(self.request.compressors, target.array.dtype)
        if layout != layout_of_result(self.plan, x) or codecs != wanted:
            raise_invalid("scratch", str(self.scratch), allowed)
        return target

    def sink(self, target: targets.Target, place: ScratchPlace) -> Sink:
        """Return the sink of the result, after unneeded scratch files are deleted."""
        files = Scratch(self.scratch, place.sync, kept=True, life=place.life)
        run_json.free_finished(files, self.plan, place.finished)
        last, parts = run_json.result_files(self.plan)
        return Sink(target, files, None if last is None else exchange_folder("", last), parts)


def _go_on(request: RunRequest, store: Store, scratch: Path) -> Done:
    """Begin or resume a run in its scratch folder."""
    started = time.perf_counter()
    found = run_json.read_record(scratch, request.destination)
    if found is not None and not request.resume:
        raise_invalid("scratch", str(scratch), "a folder where no run has begun, or resume=True")
    run = None if found is None else ScratchRun(request, scratch, found)
    complete = run is not None and run.is_complete
    there = None
    if run is not None:
        targets.end_replacement(Path(run.found["partial"]), complete)
    request.open()  # errors of the source come first
    made = _read_identity(request.destination)
    if complete:
        there = _altered(made, request)
        complete = there is None
    elif run is None and request.resume and made is not None:
        there = _another(made, request)
        if there is None:
            return request.done(made["plan"], started, already=True)
    if not complete:
        source = request.source
        path = request.destination
        targets.check_target(path, source, overwrite=request.overwrite, there=there)
    if run is None:
        run = _begun(request, scratch)
    else:
        run.check(complete)
    if not complete:
        _make(run, store)
    run_json.clear(scratch)
    return request.done(run.plan, started, already=complete)


def _begun(request: RunRequest, scratch: Path) -> ScratchRun:
    """Plan a run and write its record."""
    _, plan = _checked_plan(request)
    folders.check_scratch_space(scratch, plan.expected.scratch)
    run = uuid.uuid4().hex
    found = {
        "run": run,
        "asked": request.pinned,
        "versions": _versions(plan),
        "source": source_identity(request, request.checksum),
        "partial": str(targets.partial_of(request.destination.resolve(), f"r{run[:12]}")),
        "plan": plan.to_json(),
    }
    run_json.write_record(scratch, found)
    return ScratchRun(request, scratch, found)


def _make(run: ScratchRun, store: Store) -> None:
    """Do the unfinished part of a run, and move the result to its final path."""
    plan = run.plan
    scratch = run.scratch
    has_content = _has_content(run.found)
    x = run.request.open(plan)
    place = run.place()
    target = run.target(x, begun=bool(dict(place.finished)[len(plan.exchanges)]))
    recorded = records(scratch, RESULT, run_json.digest(scratch))
    synced = has_content or plan.verify != "none"
    if lost := run_json.remove_damaged_files(target, plan, recorded, synced):
        run_json.forget_lost(scratch, plan, lost)
        place = run.place()
    damaged = Counter[str]()
    while True:
        try:
            sink = run.sink(target, place)
            store(applied(x, plan, place), sink)
            break
        except DamagedShardError as error:
            damaged[str(error.filename)] += 1  # count each file alone
            if damaged[str(error.filename)] > MOST_REPAIRS:
                raise
            run_json.forget_damaged(scratch, plan, error)
            _warn(error)
            place = run.place()
    refuse_changed_source(run.found["source"], source_identity(run.request, has_content))
    try:
        target.finish(run.request.overwrite, {IDENTITY: _identity(run.found)})
    except ArgumentError as error:  # another run was first
        raise type(error)(
            f"{error}; the finished array is in {target.partial}, and its run in "
            f"{scratch}: resume it with overwrite=True, or delete both"
        ) from None


def _versions(plan: Plan) -> dict[str, str]:
    """Return the versions of all software that can change the last bit of a result."""
    found = {"dask_bigfft": config.own_version()}
    found |= environment.broadcast_event(run_json.versions, plan.kernel)
    for number, round_ in enumerate(plan.rounds):
        dtypes = plan.dtypes[2 * number : 2 * number + 2]
        grids = (round_.source, round_.target)
        pairs = zip(grids, dtypes, strict=True)
        largest = max(grid.largest * np.dtype(dtype).itemsize for grid, dtype in pairs)
        if takes(plan.device, largest, *dtypes):
            return found | environment.device_software()
    return found


def _has_content(found: Mapping[str, Any]) -> bool:
    """Return True if the record has checksums of the source."""
    return any(file[2] is not None for file in found["source"]["files"].values())
