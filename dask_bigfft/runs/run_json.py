"""The record of a run that can be resumed, `run.json`: its plan, its source, and who computes it.

The scratch folder of such a run::

    <scratch>/run.json      what is pinned, written before anything else
    <scratch>/lock          held while the run goes on
    <scratch>/exchange2/..  scratch files and their records
    <scratch>/result/..     records of stored blocks
    <scratch>/life-../..    records that are being written

Imports `gpu`, `errors`, `exchange`, `files` and `planner`.
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
from dask_bigfft.exchange.folders import ENDED, LIFE, LOCK, sync_folders
from dask_bigfft.exchange.scratch import (
    DIGEST,
    RESULT,
    Scratch,
    Stored,
    digest_of,
    failed,
    recorded_blocks,
    signed,
)
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.gpu.dispatch import takes
from dask_bigfft.graph.disk import exchange_folder
from dask_bigfft.kernels.checks import checksum
from dask_bigfft.planner.plan import Plan
from dask_bigfft.runs import run_json
from dask_bigfft.storage.formats import UNREADABLE, PlainChunks, plain_chunks
from dask_bigfft.storage.targets import Target

RECORD = "run.json"

#: Version of what `RECORD` holds.
FORMAT = 3

#: Names of the folders that a run puts into its scratch folder.
_OURS = re.compile(rf"(\w*filter\w*)?exchange\d+|{RESULT}|({LIFE}|{ENDED})[0-9a-f-]+")

#: Packages whose versions decide about the last bit of a result.
PACKAGES = ("numpy", "scipy", "numba")


def on_devices(plan: Plan) -> bool:
    """Whether devices would do a round of a plan, where there are some."""
    for number, round_ in enumerate(plan.rounds):
        before, after = plan.dtypes[2 * number : 2 * number + 2]
        sizes = (
            round_.source.largest * np.dtype(before).itemsize,
            round_.target.largest * np.dtype(after).itemsize,
        )
        if takes(plan.device, max(sizes), before, after):
            return True
    return False


def versions(kernel: str) -> dict[str, str]:
    """Return the versions of everything that computes on the host, in this process."""
    found = {}
    for name in dict.fromkeys((*PACKAGES, kernel)):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "unknown"
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
        text = (scratch / RECORD).read_bytes()
    except FileNotFoundError:
        found_there = scratch.iterdir() if scratch.is_dir() else ()
        others = [p.name for p in found_there if p.name != LOCK and not _is_fresh(p)]
        if others:
            refuse("scratch", str(scratch), f"{allowed}; this one holds {others[0]}")
        return None
    except OSError as error:
        refuse("scratch", str(scratch), f"{allowed} ({error})")
    try:
        found = json.loads(text)
        _check_record(found)
    except (ValueError, KeyError, TypeError) as error:
        refuse("scratch", str(scratch), f"{allowed}; {RECORD} cannot be read ({error})")
    return dict(found)


def _check_record(found: Any) -> None:
    """Raise what is wrong with a record."""
    if found["format"] != FORMAT:
        raise ValueError(f"it is of format {found['format']}, not {FORMAT}")
    if found[DIGEST] != digest_of(found):
        raise ValueError("it is not what its run has written; delete the folder to start over")
    source = found["source"]
    texts = found["run"], found["partial"], source["path"], found["plan"]
    tables = found["asked"], found["versions"], source["files"]
    if not all(isinstance(text, str) for text in texts) or not all(
        isinstance(table, dict) for table in tables
    ):
        raise TypeError("it holds other types than are written")
    Plan.from_json(found["plan"])


def _is_fresh(path: Path) -> bool:
    """Whether a file is a record that a killed run, or a full disk, has left before its place."""
    return path.name.startswith(f"{RECORD}.")


def digest(scratch: Path) -> str:
    """Return the digest of a scratch folder's run, which the records of its shards carry."""
    return str(json.loads((scratch / RECORD).read_bytes())[DIGEST])


def has_begun(scratch: Path) -> bool:
    """Whether a scratch folder keeps a run that can be resumed."""
    try:
        return (scratch / RECORD).is_file()
    except OSError:  # nobody may look there
        return False


def write_record(scratch: Path, found: Mapping[str, Any]) -> None:
    """Pin what a run is, all or nothing, and wait until that is on the disk.

    Raises
    ------
    ScratchError
        If it cannot be written: which file, and how many bytes are missing.
    """
    fresh = scratch / f"{RECORD}.{uuid.uuid4().hex}"
    text = signed({"format": FORMAT, **found})
    for left in filter(_is_fresh, list(scratch.iterdir())):
        left.unlink()
    try:
        with fresh.open("wb", buffering=0) as handle:
            while text[handle.tell() :]:
                handle.write(text[handle.tell() :])
            os.fsync(handle.fileno())
        fresh.replace(scratch / RECORD)
        sync_folders(scratch, scratch.parent)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        failed(fresh, error, len(text), len(text))


def refuse_another_run(scratch: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Refuse to go on with other arguments, or other libraries, than those that are pinned.

    Raises
    ------
    ArgumentError
        Naming the first argument, or library, that differs.
    """
    asked, was = json.loads(json.dumps(now["asked"])), before["asked"]
    for name in sorted(asked.keys() | was.keys()):
        if asked.get(name) != was.get(name):
            refuse(
                name,
                asked.get(name),
                f"{was.get(name)!r} as in the run that is resumed, or "
                f"another scratch folder than {scratch}",
            )
    for name in sorted(now["versions"].keys() | before["versions"].keys()):
        found, pinned = now["versions"].get(name), before["versions"].get(name)
        if found != pinned:
            wanted = f"no {name}" if pinned is None else f"{name} {pinned}"
            refuse(
                "resume",
                True,
                f"{wanted}, which the run in {scratch} began with, for "
                f"the same result to the bit; this is {found or 'none'}",
            )


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


Block = tuple[int, ...]


def file_size(path: Path) -> int | None:
    """Return the bytes of a file; None if there is none."""
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


def lost_blocks(
    target: Target, plan: Plan, recorded: Mapping[Block, Stored], synced: bool = False
) -> list[Block]:
    """Return the blocks of a result that are recorded as stored, and are lost; their files go.

    Values of files that were on the disk before their record are compared only if `synced` is true.

    So do files that nothing is recorded of and that may not be whole: of a shard that is there Zarr
    reads the index before it writes it anew.
    """
    lost: dict[Block, Path] = {}
    plain = plain_chunks(target.array, target.partial)
    for block in plan.result.indices():
        path = target.partial / str(target.array.metadata.encode_chunk_key(block))
        if block in recorded and _is_whole(target, plain, block, path, recorded[block], synced):
            continue
        path.unlink(missing_ok=True)
        if block in recorded:
            lost[block] = path
    if lost:
        path = next(iter(lost.values()))
        warnings.warn(
            f"{len(lost)} files of the result are not what they were when they were "
            f"stored, and are made once more: {path}",
            RuntimeWarning,
            stacklevel=4,
        )
    return list(lost)


def _is_whole(
    target: Target, plain: PlainChunks | None, block: Block, path: Path, file: Stored, synced: bool
) -> bool:
    """Whether the file of a block is as it was stored."""
    if file.nbytes is None or file.nbytes != file_size(path):
        return file.nbytes is None
    if file.checksum is None or (file.synced and not synced):
        return True
    array = target.array
    shape = array.shards or array.chunks
    region = tuple(
        slice(i * n, min(i * n + n, size))
        for i, n, size in zip(block, shape, array.shape, strict=True)
    )
    try:
        values = None if plain is None else plain.read(region)
        values = np.asarray(array[region]) if values is None else values
    except UNREADABLE:
        return False
    return checksum(np.ascontiguousarray(values)) == file.checksum


def finished_blocks(
    scratch: Path, plan: Plan
) -> tuple[tuple[int, frozenset[tuple[int, ...]]], ...]:
    """Return what is done, by the number of the exchange that it was done for."""
    run = run_json.digest(scratch)
    found = [
        (number, recorded_blocks(scratch, exchange_folder("", number), run))
        for number, moves in enumerate(plan.moves)
        if moves
    ]
    return (*found, (len(plan.exchanges), recorded_blocks(scratch, None, run)))


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
    files = _without_finished(scratch, plan)
    for block in error.sources:
        files.forget(exchange_folder("", error.number), block)
    _forget_sources(files, plan, error.number - 1, set(error.sources))


def _without_finished(scratch: Path, plan: Plan) -> Scratch:
    """Return the scratch files, of which those of finished blocks are gone.

    What an earlier repair has left of them is not whole.
    """
    files = Scratch(scratch, sync=False, kept=True)
    for finished, done in finished_blocks(scratch, plan):
        for block in done if finished else ():
            files.free(exchange_folder("", finished - 1), block)
    return files


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
    files = _without_finished(scratch, plan)
    number, parts = result_files(plan)
    if number is not None:
        made_of = {parts.get(block, block) for block in lost}
        for block in made_of:
            files.free(exchange_folder("", number), block)
        _forget_sources(files, plan, number, made_of)
    for block in lost:
        files.forget_stored(block)
