"""A run in a scratch folder: begun, killed at any time, and gone on with.

Imports `config`, `exchange`, `graph`, `planning`, `storage` and this room.
"""

import contextlib
import errno
import os
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import dask.array as da
import dask.config

from dask_bigfft import config
from dask_bigfft.errors import ArgumentError, DamagedShardError, ScratchError, refuse
from dask_bigfft.exchange.folders import (
    begin_life,
    check_room,
    has_lock,
    lock_folder,
    unlock_folder,
)
from dask_bigfft.exchange.records import stored_blocks
from dask_bigfft.exchange.scratch import Scratch
from dask_bigfft.exchange.scratch_place import ScratchPlace
from dask_bigfft.graph.disk import exchange_folder
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planning.environment import device_software, told_everywhere
from dask_bigfft.runs import identity, run_json
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
from dask_bigfft.runs.lost import lost_blocks
from dask_bigfft.runs.sink import Sink, Store
from dask_bigfft.runs.source import refuse_changed_source, source_identity
from dask_bigfft.runs.undone import finished_blocks, forget_damaged, forget_lost, result_files
from dask_bigfft.storage import targets
from dask_bigfft.storage.chunk_files import plain_chunks
from dask_bigfft.storage.damaged import UNREADABLE

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
        there = identity.altered(
            identity.read(asked.destination), _in_place(asked), asked.destination
        )
        ours = there is None
    if found is None and resume and (made := identity.read(asked.destination)) is not None:
        there = identity.compared(
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
    made = identity.written(found["asked"], found["source"], found["plan"], _has_content(found))
    try:
        target.finish(overwrite, {identity.IDENTITY: made})
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
    return identity.in_place(asked.source, asked.component, asked.destination)


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
