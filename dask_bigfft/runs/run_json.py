"""The record of a run that can be resumed, `run.json`, and what is done again for lost files.

The scratch folder of such a run::

    <scratch>/run.json      what is pinned, written before anything else
    <scratch>/lock          held while the run goes on
    <scratch>/exchange2/..  scratch files and their records
    <scratch>/result/..     records of stored blocks
    <scratch>/life-../..    records that are being written

Imports `errors`, `exchange`, `files`, `storage` and `planner`.
"""

import contextlib
import json
import os
import re
import shutil
import uuid
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from dask_bigfft.errors import DamagedShardError, refuse
from dask_bigfft.exchange.folders import ENDED, LIFE, LOCK
from dask_bigfft.exchange.scratch import DIGEST, RESULT, Scratch, digest_of, put_record, records
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.graph.disk import exchange_folder
from dask_bigfft.kernels.checks import checksum
from dask_bigfft.planner.plan import Plan
from dask_bigfft.storage.formats import UNREADABLE
from dask_bigfft.storage.targets import Target

Block = tuple[int, ...]

RECORD = "run.json"

#: Version of what `RECORD` holds.
FORMAT = 5

#: Names of the folders that a run puts into its scratch folder.
_OURS = re.compile(rf"(\w*filter\w*)?exchange\d+|{RESULT}|({LIFE}|{ENDED})[0-9a-f-]+")

#: Packages whose versions decide about the last bit of a result.
PACKAGES = ("numpy", "scipy", "numba")


def versions(kernel: str) -> dict[str, str]:
    """Return the versions of everything that computes on the host, in this process."""
    found = dict.fromkeys((*PACKAGES, kernel), "unknown")
    for name in found:
        with contextlib.suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def read_record(scratch: Path) -> dict[str, Any] | None:
    """Return what a scratch folder's run has pinned, None if there is no run.

    Raises
    ------
    ArgumentError
        If the folder holds something else, or what another version has written.
    """
    allowed = "an empty folder, or the scratch folder of a run"
    try:
        found = json.loads((scratch / RECORD).read_bytes())
        if found["format"] != FORMAT:
            raise ValueError(f"it is of format {found['format']}, not {FORMAT}")
        if found[DIGEST] != digest_of(found):
            raise ValueError("it is not what its run has written; delete the folder to start over")
        Plan.from_json(found["plan"])
        return dict(found)
    except FileNotFoundError:
        there = scratch.iterdir() if scratch.is_dir() else ()
        others = [p.name for p in there if p.name != LOCK and not p.name.startswith(f"{RECORD}.")]
        if others:
            refuse("scratch", str(scratch), f"{allowed}; this one holds {others[0]}")
        return None
    except OSError as error:
        refuse("scratch", str(scratch), f"{allowed} ({error})")
    except (ValueError, KeyError, TypeError) as error:
        refuse("scratch", str(scratch), f"{allowed}; {RECORD} cannot be read ({error})")


def digest(scratch: Path) -> str:
    """Return the digest of a scratch folder's run, which the records of its shards carry."""
    return str(json.loads((scratch / RECORD).read_bytes())[DIGEST])


def has_begun(scratch: Path) -> bool:
    """Whether a scratch folder keeps a run that can be resumed."""
    return os.path.isfile(scratch / RECORD)  # False, too, where nobody may look there


def write_record(scratch: Path, found: Mapping[str, Any]) -> None:
    """Pin what a run is, all or nothing, and wait until that is on the disk.

    Raises
    ------
    ScratchError
        If it cannot be written: which file, and how many bytes are missing.
    """
    for left in scratch.glob(f"{RECORD}.*"):  # of a killed run, or of a full disk
        left.unlink()
    fresh = scratch / f"{RECORD}.{uuid.uuid4().hex}"
    put_record(scratch / RECORD, fresh, {"format": FORMAT, **found}, scratch.parent)


def refuse_another_run(scratch: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with other arguments, or other libraries, than those that are pinned.

    Raises
    ------
    ArgumentError
        Naming the first argument, or library, that differs.
    """
    for what in ("asked", "versions"):
        given, began = json.loads(json.dumps(now[what])), before[what]
        for name in sorted(given.keys() | began.keys()):
            value, was = given.get(name), began.get(name)
            if value == was:
                continue
            if what == "asked":
                need = f"{was!r} as in the run that is resumed, or another scratch folder than"
                refuse(name, value, f"{need} {scratch}")
            need = f"no {name}" if was is None else f"{name} {was}"
            need += f", which the run in {scratch} began with, for the same result to the bit"
            refuse("resume", True, f"{need}; this is {value or 'none'}")


def clear(scratch: Path) -> None:
    """Remove all that a run has put into its scratch folder, but for the lock; the record last."""
    for path in scratch.iterdir():
        if path.is_dir() and _OURS.fullmatch(path.name):
            shutil.rmtree(path)
    for path in sorted(scratch.glob(f"{RECORD}*"), reverse=True):
        path.unlink()


def leave(scratch: Path) -> None:
    """Remove the lock of a folder that no run is of, and the folder if it is empty then.

    It stays where it cannot go: on it a disk may be mounted, or the folder above be another user's.
    """
    (scratch / LOCK).unlink(missing_ok=True)
    if not any(scratch.iterdir()):
        with contextlib.suppress(OSError):
            scratch.rmdir()


# --- what is done, and what is done again ---------------------------------------------------


def lost_blocks(
    target: Target, plan: Plan, recorded: Mapping[Block, Any], synced: bool = False
) -> list[Block]:
    """Return the blocks of a result that are recorded as stored, and are lost; their files go.

    Values of files that were on the disk before their record are compared only if `synced` is true.

    So do files that nothing is recorded of and that may not be whole: of a shard that is there Zarr
    reads the index before it writes it anew.
    """
    bad = [
        block
        for block in plan.result.indices()
        if block not in recorded or not _is_whole(target, block, recorded[block], synced)
    ]
    for block in bad:
        target.chunk_file(block).unlink(missing_ok=True)
    if lost := [block for block in bad if block in recorded]:
        text = f"{len(lost)} files of the result are not what they were when they were stored"
        text += f", and are made once more: {target.chunk_file(lost[0])}"
        warnings.warn(text, RuntimeWarning, stacklevel=4)
    return lost


def _is_whole(target: Target, block: Block, file: Mapping[str, Any], synced: bool) -> bool:
    """Return True if the file of a block is as it was stored."""
    path = target.chunk_file(block)
    if not path.is_file() or path.stat().st_size != file["nbytes"]:
        return False
    if file["synced"] and not synced:
        return True
    try:
        return checksum(np.ascontiguousarray(target.read(block))) == int(file["checksum"])
    except UNREADABLE:
        return False


def finished_blocks(scratch: Path, plan: Plan) -> tuple[tuple[int, frozenset[Block]], ...]:
    """Return what is done, by the number of the exchange that it was done for."""
    run = digest(scratch)
    names = {i: exchange_folder("", i) for i, moves in enumerate(plan.moves) if moves}
    names[len(plan.exchanges)] = RESULT
    return tuple((i, frozenset(records(scratch, name, run))) for i, name in names.items())


def free_finished(
    files: Scratch, plan: Plan, finished: Sequence[tuple[int, frozenset[Block]]]
) -> None:
    """Delete the scratch files of finished blocks, which nobody needs any more.

    What a killed run, or a repair, has left of them may not be whole.
    """
    for number, blocks in finished:
        for block in blocks if number and plan.moves[number - 1] else ():
            files.free(exchange_folder("", number - 1), block)


def forget_damaged(scratch: Path, plan: Plan, error: DamagedShardError) -> None:
    """Take back the records of shards that are damaged, and of all that is needed to make them.

    What a block was made of is deleted once its shards are written, so the blocks before it have
    to write theirs once more, and so on back to a file that is still there, or to the source.
    The spectrum of a filter, which is made from nothing, is made anew as a whole.
    """
    filter_ = error.exchange.removesuffix(exchange_folder("", error.number))
    if filter_:
        for found in scratch.glob(f"{filter_}exchange*"):
            shutil.rmtree(found)
        return
    files = Scratch(scratch, sync=False, kept=True)
    free_finished(files, plan, finished_blocks(scratch, plan))
    for block in error.sources:
        files.forget(exchange_folder("", error.number), block)
    _forget_sources(files, plan, error.number - 1, set(error.sources))


def _forget_sources(files: Scratch, plan: Plan, number: int, blocks: set[Block]) -> None:
    """Take back what files of target blocks of an exchange are made of, where they are gone."""
    while blocks and number >= 0 and plan.moves[number]:
        exchange, folder = plan.exchanges[number], exchange_folder("", number)
        gone = [block for block in blocks if not files.path(folder, block).exists()]
        shards = ExchangeMap(exchange.source, exchange.target, exchange.mirror)
        blocks = {source for block in gone for source in shards.sources(block)}
        for block in blocks:
            files.forget(folder, block)
        number -= 1


def result_files(plan: Plan) -> tuple[int | None, dict[Block, Block]]:
    """Return where the blocks of the result come from and go with.

    Returns
    -------
    int or None
        Exchange whose files they come from, each of which goes when what is made of it is stored.
    dict
        Of each chunk of the result that is a part of a block of the last round, that block.
    """
    last, moves = len(plan.moves) - 1, plan.moves
    if moves[last] or len(moves) <= len(plan.rounds) or plan.exchanges[last].local:
        return (last if moves[last] else None), {}
    shards = ExchangeMap(plan.exchanges[last].source, plan.exchanges[last].target)
    parts = {block: next(iter(shards.sources(block))) for block in plan.result.indices()}
    return (last - 1 if moves[last - 1] else None), parts


def forget_lost(scratch: Path, plan: Plan, lost: Sequence[Block]) -> None:
    """Take back that blocks of the result are stored, and all that is needed to make them.

    Their records go last: a run that is killed meanwhile comes here once more.
    """
    files = Scratch(scratch, sync=False, kept=True)
    free_finished(files, plan, finished_blocks(scratch, plan))
    number, parts = result_files(plan)
    if number is not None:
        made_of = {parts.get(block, block) for block in lost}
        for block in made_of:
            files.free(exchange_folder("", number), block)
        _forget_sources(files, plan, number, made_of)
    for block in lost:
        files.forget(RESULT, block)
