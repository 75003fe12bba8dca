"""Runs from file to file, which can be resumed if they have a scratch folder."""

import base64
import contextlib
import hashlib
import json
import time
import uuid
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np

from dask_bigfft import config
from dask_bigfft.carriers.disk import exchange_folder
from dask_bigfft.errors import (
    ArgumentError,
    ArgumentTypeError,
    DamagedShardError,
    raise_invalid,
)
from dask_bigfft.events import raise_if_asynchronous, running_client
from dask_bigfft.exchange import folders
from dask_bigfft.exchange.folders import unlock_folder
from dask_bigfft.exchange.scratch import RESULT, Scratch, ScratchPlace, records
from dask_bigfft.gpu.dispatch import takes
from dask_bigfft.machine import environment
from dask_bigfft.planner.plan import Plan
from dask_bigfft.runs import request as requests
from dask_bigfft.runs import run_json
from dask_bigfft.runs.request import Done, RunRequest, layout_of_result
from dask_bigfft.runs.short_time import execute_short_time
from dask_bigfft.runs.sinks import Sink, Store, store_now
from dask_bigfft.storage import sources, targets
from dask_bigfft.storage.formats import UNREADABLE

#: Maximum number of repairs of one scratch file.
MOST_REPAIRS = 3


def execute(request: RunRequest, store: Store = store_now) -> Done:
    """Do a run and return its report."""
    raise_if_asynchronous(running_client())
    if request.array is None:
        requests.refuse_places(request)
    if request.is_short_time:
        return execute_short_time(request, store)
    if request.scratch is not None:
        with locked(request.scratch) as folder:
            return _run_in_scratch(request, store, folder)
    for name in ("resume", "checksum"):
        if getattr(request, name):
            raise_invalid(
                name,
                True,
                "a scratch folder beside it",
                kind=ArgumentTypeError,
            )
    return _run_without_scratch(request, store)


def _run_without_scratch(request: RunRequest, store: Store) -> Done:
    """Do a run that cannot be resumed, and return its report."""
    targets.check_target(request.destination, request.source, overwrite=request.overwrite)
    started = time.perf_counter()
    x, plan = _checked_plan(request)
    is_stored = request.array is None
    identity = source_identity(request, content=False) if is_stored else {}
    result = request.result(x, plan)
    partial = targets.partial_of(request.destination, targets.name_of_run())
    try:
        target = _created(
            request,
            x,
            plan,
            partial,
            {},
        )
        try:
            store(result, Sink(target))
        except DamagedShardError as error:  # its files are gone: repeat everything
            _warn(error)
            store(request.result(x, plan), Sink(target))
        if is_stored:
            now = source_identity(request, content=False)
            refuse_changed_source(identity, now, has_scratch=False)
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
    requests.check_space_of_result(request, nbytes, dtype)
    return x, plan


def _created(
    request: RunRequest,
    x: da.Array,
    plan: Plan,
    partial: Path,
    run: Mapping[str, Any],
) -> targets.Target:
    """Return a new, empty result, with attributes of its plan and its run."""
    shape, blocks, dtype = layout_of_result(plan, x)
    return targets.created(
        request.destination,
        partial,
        shape,
        blocks,
        dtype,
        record={**requests.attributes(plan, request.norm), **run},
        inner=request.inner_chunks,
        labels=request.labels(plan),
        compressors=request.compressors,
    )


def _warn(error: DamagedShardError) -> None:
    """Warn that scratch files were damaged and are made again."""
    warnings.warn(f"{error.strerror}: {error.filename}", RuntimeWarning, stacklevel=5)


# --- identity of sources and results --------------------------------------------------------


def source_identity(request: RunRequest, content: bool) -> dict[str, Any]:
    """Return a JSON value that differs for a changed source.

    It has the size in bytes, the time of the last change in ns, and the CRC-32 or None of each
    file. With `content` all files are read for the CRC-32.
    """
    files = {}
    for name, path in sources.source_files(request.source, request.component).items():
        status = path.stat()
        files[name] = [status.st_size, status.st_mtime_ns, _crc(path) if content else None]
    return {
        "path": str(request.source.resolve()),
        "component": request.component,
        "files": files,
    }


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as handle:
        while data := handle.read(1 << 22):
            crc = zlib.crc32(data, crc)
    return crc


def refuse_changed_source(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
    has_scratch: bool = True,
) -> None:
    """Raise an error if the source has changed since the run began.

    Both identities are from `source_identity`. `has_scratch` is true for a run with a scratch
    folder.

    Raises
    ------
    ArgumentError
        With the name of a changed file.
    """
    allowed = "the source as it was when the run began"
    if has_scratch:
        allowed += "; delete the scratch folder to start over"
    path = str(now["path"])
    if (before["path"], before["component"]) != (now["path"], now["component"]):
        raise_invalid("source", path, f"{before['path']}, which the scratch folder is of")
    old_files = before["files"]
    new_files = now["files"]
    for name in sorted(old_files.keys() | new_files.keys()):
        if old_files.get(name) == new_files.get(name):
            continue
        change = "has changed"
        if name not in new_files:
            change = "is gone"
        elif name not in old_files:
            change = "is new"
        folder = sources.array_folder(Path(path), before["component"])
        raise_invalid("source", path, f"{allowed}: {folder / name if name else path} {change}")


#: Name of the attribute with the identity of a result's run.
IDENTITY = "identity"


def _identity(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the identity of a run for its result; `Target.finish` adds a digest of the files."""
    source = record["source"]
    return {
        "arguments": _arguments(record["asked"], source["path"], source["component"]),
        "source": _digest(source["files"]),
        "checksum": _has_content(record),
        "plan": base64.b64encode(zlib.compress(record["plan"].encode(), 9)).decode(),
    }


def _arguments(requested: Mapping[str, Any], path: str, component: str | None) -> str:
    return _digest([requested, path, (component or "").strip("/")])


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _read_identity(path: Path) -> dict[str, Any] | None:
    """Return the identity of a complete result's run; None if it is absent or invalid."""
    attributes = targets.read_attributes(path)
    try:
        stored = attributes[IDENTITY]
        plan = Plan.from_json(zlib.decompress(base64.b64decode(stored["plan"])).decode())
        identity = {**stored, "plan": plan, "checksum": stored["checksum"]}
    except (ValueError, KeyError, TypeError, zlib.error):
        return None
    return identity if attributes.get("complete") else None


def _another(identity: Mapping[str, Any], request: RunRequest) -> str | None:
    """Return the reason why a result is not that of a request; None if it is.

    Raises
    ------
    ArgumentError
        If the result has replaced its source and has changed: it may be a new source. Also if it
        has replaced its source, and the request wants checksums that its run has not recorded.
    """
    path = str(request.source.resolve())
    if identity.get("arguments") != _arguments(request.pinned, path, request.component):
        return "the result there was made with other arguments, or from another source"
    if request.checksum and not identity["checksum"]:
        if request.in_place:
            need = f"False, as in the run that has made {request.destination}, and the source"
            raise_invalid("checksum", True, f"{need} that it was made from is gone")
        return "the result there was made without checksum=True"
    if not request.in_place:
        files = source_identity(request, bool(identity["checksum"]))["files"]
        if identity.get("source") != _digest(files):
            return "the result there was made from the source as it was before it changed"
    return _altered(identity, request)


def _altered(identity: Mapping[str, Any] | None, request: RunRequest) -> str | None:
    """Return an error text if a result has changed since its run; None if it has not.

    A changed result that has replaced its source raises an error, see `_another`.
    """
    path = request.destination
    if identity is not None and identity.get("files") == targets.files_digest(path):
        return None
    if request.in_place:
        need = f"{path} as this run has left it, but it has changed; without resume=True and with"
        raise_invalid("resume", True, f"{need} a new scratch folder, it is transformed again")
    return "the result there has changed since it was made"


# --- runs in a scratch folder ---------------------------------------------------------------


@contextlib.contextmanager
def locked(scratch: Path) -> Iterator[Path]:
    """Yield a locked scratch folder."""
    folder = scratch.resolve()
    if folder.exists() and not folder.is_dir():
        raise_invalid("scratch", str(scratch), "a folder, or a path where nothing exists")
    handle = requests.lock_folder_of(
        "scratch",
        scratch,
        folder,
        purpose="be a scratch folder",
        allowed="a folder that no other run is using now",
    )
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
    record : mapping
        Content of the record.
    """

    request: RunRequest
    scratch: Path
    record: Mapping[str, Any]

    @cached_property
    def plan(self) -> Plan:
        """Plan in the record."""
        return Plan.from_json(self.record["plan"])

    @property
    def is_complete(self) -> bool:
        """True if the result is at its final path, and only cleaning up is left."""
        record = targets.read_attributes(self.request.destination)
        return bool(record.get("run") == self.record["run"] and record.get("complete"))

    def check(self, complete: bool) -> None:
        """Raise an error if the record is not that of the requested run.

        A source that a complete result has replaced is not checked.
        """
        has_content = _has_content(self.record)
        if self.request.checksum and not has_content:
            need = "False as in the run that is resumed, or another scratch folder than"
            raise_invalid("checksum", True, f"{need} {self.scratch}")
        if not complete or not self.request.in_place:
            now = source_identity(self.request, has_content)
            refuse_changed_source(self.record["source"], now)
        now = {"asked": self.request.pinned, "versions": _versions(self.plan)}
        run_json.refuse_another_run(self.scratch, self.record, now)

    def place(self) -> ScratchPlace:
        """Return the scratch folder with its finished blocks, and begin a new life in it."""
        life = folders.begin_life(self.scratch, run_json.digest(self.scratch))
        return ScratchPlace(
            directory=str(self.scratch),
            name="",
            sync=config.get("bigfft.scratch.sync"),
            kept=True,
            needed=0,
            memory=self.plan.expected.peak_host,
            finished=run_json.finished_blocks(self.scratch, self.plan),
            rows=self.request.reader() if self.plan.from_rows else None,
            life=life,
        )

    def target(self, x: da.Array, begun: bool) -> targets.Target:
        """Return the partial result, or a new one if nothing is stored yet."""
        partial = Path(self.record["partial"])
        if begun:
            return self._reopened_target(x, partial)
        target = _created(
            self.request,
            x,
            self.plan,
            partial,
            {"run": self.record["run"]},
        )
        target.sync_attributes()
        return target

    def _reopened_target(self, x: da.Array, partial: Path) -> targets.Target:
        """Return the partial result of an interrupted run; an error if it has changed."""
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
        requested = targets.parse_compressors(self.request.compressors, target.array.dtype)
        if layout != layout_of_result(self.plan, x) or codecs != requested:
            raise_invalid("scratch", str(self.scratch), allowed)
        return target

    def sink(self, target: targets.Target, place: ScratchPlace) -> Sink:
        """Return the sink of the result, after unneeded scratch files are deleted."""
        files = Scratch(
            self.scratch,
            place.sync,
            kept=True,
            life=place.life,
        )
        run_json.free_finished(files, self.plan, place.finished)
        last, parts = run_json.result_files(self.plan)
        return Sink(
            target,
            files,
            None if last is None else exchange_folder("", last),
            parts,
        )


def _run_in_scratch(request: RunRequest, store: Store, scratch: Path) -> Done:
    """Begin or resume a run in its scratch folder."""
    started = time.perf_counter()
    record = run_json.read_record(scratch, request.destination)
    if record is None:
        return _begin(
            request,
            store,
            scratch,
            started,
        )
    if not request.resume:
        raise_invalid("scratch", str(scratch), "a folder where no run has begun, or resume=True")
    return _resume(ScratchRun(request, scratch, record), store, started)


def _begin(
    request: RunRequest,
    store: Store,
    scratch: Path,
    started: float,
) -> Done:
    """Do a new run; `resume` accepts a result that an earlier call has made."""
    request.open()  # errors of the source come first
    identity = _read_identity(request.destination)
    reason = None
    if request.resume and identity is not None:
        reason = _another(identity, request)
        if reason is None:
            return request.done(identity["plan"], started, already=True)
    _check_target(request, reason)
    run = _begun(request, scratch)
    _make(run, store)
    run_json.clear(scratch)
    return request.done(run.plan, started)


def _resume(run: ScratchRun, store: Store, started: float) -> Done:
    """Do the unfinished part of a run; of a complete one, only what is left to clean up."""
    request = run.request
    is_complete = run.is_complete
    targets.end_replacement(Path(run.record["partial"]), is_complete)
    request.open()  # errors of the source come first
    reason = None
    if is_complete:
        reason = _altered(_read_identity(request.destination), request)
        is_complete = reason is None
    if not is_complete:
        _check_target(request, reason)
    run.check(is_complete)
    if not is_complete:
        _make(run, store)
    run_json.clear(run.scratch)
    return request.done(run.plan, started, already=is_complete)


def _check_target(request: RunRequest, reason: str | None) -> None:
    """Raise an error if the result cannot be written, for a reason that may be known."""
    targets.check_target(
        request.destination,
        request.source,
        overwrite=request.overwrite,
        reason=reason,
    )


def _begun(request: RunRequest, scratch: Path) -> ScratchRun:
    """Plan a run and write its record."""
    _, plan = _checked_plan(request)
    folders.check_scratch_space(scratch, plan.expected.scratch)
    run = uuid.uuid4().hex
    record = {
        "run": run,
        "asked": request.pinned,
        "versions": _versions(plan),
        "source": source_identity(request, request.checksum),
        "partial": str(targets.partial_of(request.destination.resolve(), f"r{run[:12]}")),
        "plan": plan.to_json(),
    }
    run_json.write_record(scratch, record)
    return ScratchRun(request, scratch, record)


def _make(run: ScratchRun, store: Store) -> None:
    """Do the unfinished part of a run, and move the result to its final path."""
    plan = run.plan
    scratch = run.scratch
    has_content = _has_content(run.record)
    x = run.request.open(plan)
    place = run.place()
    stored_blocks = dict(place.finished)[len(plan.exchanges)]
    target = run.target(x, begun=bool(stored_blocks))
    recorded = records(scratch, RESULT, run_json.digest(scratch))
    is_compared = has_content or plan.verify != "none"
    lost = run_json.remove_damaged_files(
        target,
        plan,
        recorded,
        is_compared,
    )
    if lost:
        run_json.forget_lost(scratch, plan, lost)
        place = run.place()
    _store_with_repairs(
        run,
        store,
        x,
        target,
        place,
    )
    now = source_identity(run.request, has_content)
    refuse_changed_source(run.record["source"], now)
    try:
        target.finish(run.request.overwrite, {IDENTITY: _identity(run.record)})
    except ArgumentError as error:  # another run was first
        raise type(error)(
            f"{error}; the finished array is in {target.partial}, and its run in "
            f"{scratch}: resume it with overwrite=True, or delete both"
        ) from None


def _store_with_repairs(
    run: ScratchRun,
    store: Store,
    x: da.Array,
    target: targets.Target,
    place: ScratchPlace,
) -> None:
    """Store the result; make damaged scratch files again and go on."""
    damages = Counter[str]()
    while True:
        try:
            store(run.request.result(x, run.plan, place), run.sink(target, place))
            return
        except DamagedShardError as error:
            file = str(error.filename)
            damages[file] += 1  # count each file alone
            if damages[file] > MOST_REPAIRS:
                raise
            run_json.forget_damaged(run.scratch, run.plan, error)
            _warn(error)
            place = run.place()


def _versions(plan: Plan) -> dict[str, str]:
    """Return the versions of all software that can change the last bit of a result."""
    software = {"dask_bigfft": config.own_version()}
    software |= environment.broadcast_event(run_json.versions, plan.kernel)
    for number, round_ in enumerate(plan.rounds):
        dtypes = plan.dtypes[2 * number : 2 * number + 2]
        pairs = zip((round_.source, round_.target), dtypes, strict=True)
        largest = max(grid.largest * np.dtype(dtype).itemsize for grid, dtype in pairs)
        if takes(plan.device, largest, *dtypes):
            return software | environment.device_software()
    return software


def _has_content(record: Mapping[str, Any]) -> bool:
    """Return True if the record has checksums of the source."""
    return any(file[2] is not None for file in record["source"]["files"].values())
