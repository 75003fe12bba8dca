"""Record of a resumable run, `run.json`, and the work that is repeated for lost files.

The scratch folder of such a run::

    <scratch>/run.json      arguments, source, plan; written before anything else
    <scratch>/lock          locked during the run
    <scratch>/exchange2/..  scratch files and their records
    <scratch>/result/..     records of stored blocks
    <scratch>/life-../..    records that are being written
"""

import contextlib
import json
import os
import re
import shutil
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dask_bigfft.arrays import Block
from dask_bigfft.carriers.disk import exchange_folder
from dask_bigfft.errors import DamagedShardError, raise_invalid
from dask_bigfft.exchange.folders import ENDED, LIFE, LOCK
from dask_bigfft.exchange.scratch import DIGEST, RESULT, Scratch, digest_of, put_record, records
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.kernels.checks import checksum
from dask_bigfft.kernels.libraries import version_of
from dask_bigfft.planner.plan import Plan
from dask_bigfft.storage.formats import UNREADABLE
from dask_bigfft.storage.targets import PARTIAL, Target

RECORD = "run.json"

#: Version of the format of `RECORD`.
FORMAT = 8

#: Names of the folders that a run makes in its scratch folder.
_OURS = re.compile(rf"(\w*filter\w*)?exchange\d+|{RESULT}|({LIFE}|{ENDED})[0-9a-f-]+")

#: Packages whose versions can change the last bit of a result.
PACKAGES = ("numpy", "scipy", "numba")


def versions(kernel: str) -> dict[str, str]:
    """Return the versions of the packages that compute on the host, in this process."""
    return {name: version_of(name) for name in (*PACKAGES, kernel)}


def read_record(scratch: Path, destination: Path) -> dict[str, Any] | None:
    """Return the record of a scratch folder's run; None if there is no run.

    Parameters
    ----------
    scratch
        Scratch folder.
    destination
        Path of the result. An error names what runs have left beside it.

    Raises
    ------
    ArgumentError
        If the folder holds something else, or a record that is damaged or in another format.
    """
    allowed = "an empty folder, or the scratch folder of a run"
    try:
        text = (scratch / RECORD).read_bytes()
    except FileNotFoundError:
        other = _other_file(scratch)
        if other is not None:
            raise_invalid("scratch", str(scratch), f"{allowed}; this one holds {other}")
        return None
    except OSError as error:
        raise_invalid("scratch", str(scratch), f"{allowed}; {RECORD} cannot be read ({error})")
    try:
        return _parsed_record(text)
    except ValueError as error:
        advice = f"{RECORD} cannot be read ({error}); delete the folder to start over"
        for partial in _unfinished_results(destination):
            advice += f", and {partial}, unless another run writes it"
        raise_invalid("scratch", str(scratch), f"{allowed}; {advice}")


def _other_file(scratch: Path) -> str | None:
    """Return the name of a file in a folder that no run has left in it; None if there is none."""
    if not scratch.is_dir():
        return None
    for path in scratch.iterdir():
        if path.name != LOCK and not path.name.startswith(f"{RECORD}."):
            return path.name
    return None


def _parsed_record(text: bytes) -> dict[str, Any]:
    """Return the record in the contents of `RECORD`.

    Raises
    ------
    ValueError
        With the reason why it is not a complete record in the present format.
    """
    try:
        record = json.loads(text)
    except ValueError:
        state = "incomplete" if text.strip() else "empty"
        raise ValueError(f"it is {state}") from None
    if not isinstance(record, dict) or "format" not in record:
        raise ValueError("it is not the record of a run")
    if record["format"] != FORMAT:
        raise ValueError(f"it is of format {record['format']}, not {FORMAT}")
    if record.get(DIGEST) != digest_of(record):
        raise ValueError("it is not what its run has written")
    try:
        Plan.from_json(record["plan"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"its plan cannot be read: {error}") from None
    return record


def _unfinished_results(destination: Path) -> list[Path]:
    """Return the partial results beside a destination of runs with a scratch folder."""
    if not destination.parent.is_dir():
        return []
    name = re.compile(rf"{re.escape(destination.name + PARTIAL)}r[0-9a-f]{{12}}")
    return sorted(path for path in destination.parent.iterdir() if name.fullmatch(path.name))


def digest(scratch: Path) -> str:
    """Return the digest of a scratch folder's run, which is part of its records of shards."""
    return str(json.loads((scratch / RECORD).read_bytes())[DIGEST])


def has_begun(scratch: Path) -> bool:
    """Return True if a scratch folder has a run that can be resumed."""
    return os.path.isfile(scratch / RECORD)  # False without permission


def write_record(scratch: Path, values: Mapping[str, Any]) -> None:
    """Write the record of a run atomically and sync it to disk.

    Raises
    ------
    ScratchError
        If it cannot be written, with the file and the number of missing bytes.
    """
    for left in scratch.glob(f"{RECORD}.*"):  # of a killed run, or of a full disk
        left.unlink()
    fresh = scratch / f"{RECORD}.{uuid.uuid4().hex}"
    put_record(
        scratch / RECORD,
        fresh,
        {"format": FORMAT, **values},
        scratch.parent,
    )


def refuse_another_run(scratch: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise an error if arguments or libraries differ from those in the record.

    Raises
    ------
    ArgumentError
        With the first argument or library that differs.
    """
    for name, value, recorded in _differences(before["asked"], now["asked"]):
        need = f"{recorded!r} as in the run that is resumed, or another scratch folder than"
        raise_invalid(name, value, f"{need} {scratch}")
    for name, version, recorded in _differences(before["versions"], now["versions"]):
        need = f"no {name}" if recorded is None else f"{name} {recorded}"
        need += f", which the run in {scratch} began with, for the same result to the bit"
        raise_invalid("resume", True, f"{need}; this is {version or 'none'}")


def _differences(
    before: Mapping[str, Any],
    now: Mapping[str, Any],
) -> Iterator[tuple[str, Any, Any]]:
    """Yield the names whose values differ, with the new value and that of the record."""
    now = json.loads(json.dumps(now))
    for name in sorted(now.keys() | before.keys()):
        if now.get(name) != before.get(name):
            yield name, now.get(name), before.get(name)


def clear(scratch: Path) -> None:
    """Remove a run's files from its scratch folder, except the lock. The record goes last."""
    for path in scratch.iterdir():
        if path.is_dir() and _OURS.fullmatch(path.name):
            shutil.rmtree(path)
    for path in sorted(scratch.glob(f"{RECORD}*"), reverse=True):
        path.unlink()


def leave(scratch: Path) -> None:
    """Remove the lock of a scratch folder without a run, and the folder if it is then empty.

    The folder stays if it cannot be removed: it may be a mount point, or its parent read-only.
    """
    (scratch / LOCK).unlink(missing_ok=True)
    if not any(scratch.iterdir()):
        with contextlib.suppress(OSError):
            scratch.rmdir()


# --- finished and repeated work -------------------------------------------------------------


def remove_damaged_files(
    target: Target,
    plan: Plan,
    recorded: Mapping[Block, Any],
    compares_synced: bool = False,
) -> list[Block]:
    """Delete files that do not hold a block as recorded, and return the recorded blocks of these.

    Checksums of files that were synced before their record are compared only if `compares_synced`
    is true.
    Files without a record are deleted, too, because they may be incomplete: Zarr would read the
    index of an existing shard before it rewrites the shard.
    """
    lost = []
    for block in plan.result.indices():
        has_record = block in recorded
        if has_record and _is_whole(
            target,
            block,
            recorded[block],
            compares_synced,
        ):
            continue
        target.chunk_file(block).unlink(missing_ok=True)
        if has_record:
            lost.append(block)
    if lost:
        text = f"{len(lost)} files of the result are lost or damaged, and are made again: "
        text += str(target.chunk_file(lost[0]))
        warnings.warn(text, RuntimeWarning, stacklevel=7)
    return lost


def _is_whole(
    target: Target,
    block: Block,
    file: Mapping[str, Any],
    compares_synced: bool,
) -> bool:
    """Return True if the file of a block is as it was stored."""
    path = target.chunk_file(block)
    if not path.is_file() or path.stat().st_size != file["nbytes"]:
        return False
    if file["synced"] and not compares_synced:
        return True
    try:
        return checksum(np.ascontiguousarray(target.read(block))) == int(file["checksum"])
    except UNREADABLE:
        return False


def finished_blocks(scratch: Path, plan: Plan) -> tuple[tuple[int, frozenset[Block]], ...]:
    """Return the finished blocks by the number of their exchange."""
    run = digest(scratch)
    folders = {i: exchange_folder("", i) for i, moves in enumerate(plan.moves) if moves}
    folders[len(plan.exchanges)] = RESULT
    return tuple((i, frozenset(records(scratch, name, run))) for i, name in folders.items())


def free_finished(
    files: Scratch,
    plan: Plan,
    finished: Sequence[tuple[int, frozenset[Block]]],
) -> None:
    """Delete the scratch files that finished blocks were made of.

    A killed run, or a repair, may have left incomplete ones.
    """
    for number, blocks in finished:
        if number == 0 or not plan.moves[number - 1]:
            continue
        for block in blocks:
            files.free(exchange_folder("", number - 1), block)


def forget_damaged(scratch: Path, plan: Plan, error: DamagedShardError) -> None:
    """Invalidate damaged shards and all deleted files that are needed to make them again.

    The files that a block was made of are deleted once its shards are written. So the blocks of
    earlier exchanges have to be written again, back to an existing file or to the source.
    The spectrum of a filter has no source and is made again as a whole.
    """
    filter_ = error.exchange.removesuffix(exchange_folder("", error.number))
    if filter_:
        for folder in scratch.glob(f"{filter_}exchange*"):
            shutil.rmtree(folder)
        return
    files = Scratch(scratch, sync=False, kept=True)
    free_finished(files, plan, finished_blocks(scratch, plan))
    for block in error.sources:
        files.forget(exchange_folder("", error.number), block)
    _forget_sources(
        files,
        plan,
        error.number - 1,
        set(error.sources),
    )


def _forget_sources(
    files: Scratch,
    plan: Plan,
    number: int,
    blocks: set[Block],
) -> None:
    """Invalidate the source blocks of deleted files of an exchange, and of earlier exchanges."""
    while blocks and number >= 0 and plan.moves[number]:
        exchange = plan.exchanges[number]
        folder = exchange_folder("", number)
        shards = ExchangeMap(exchange.source, exchange.target, exchange.mirror)
        sources: set[Block] = set()
        for block in blocks:
            if not files.path(folder, block).exists():
                sources.update(shards.sources(block))
        for source in sources:
            files.forget(folder, source)
        blocks = sources
        number -= 1


def result_files(plan: Plan) -> tuple[int | None, dict[Block, Block]]:
    """Return the exchange and the blocks that the result is made of.

    Returns
    -------
    int or None
        Exchange whose files hold the values. Each is deleted once its blocks are stored.
    dict
        Block of the last round for each chunk of the result that is a part of one.
    """
    moves = plan.moves
    last = len(moves) - 1
    if moves[last]:
        return last, {}
    if len(moves) <= len(plan.rounds) or plan.exchanges[last].local:
        return None, {}
    shards = ExchangeMap(plan.exchanges[last].source, plan.exchanges[last].target)
    parts = {block: next(iter(shards.sources(block))) for block in plan.result.indices()}
    return (last - 1 if moves[last - 1] else None), parts


def forget_lost(scratch: Path, plan: Plan, lost: Sequence[Block]) -> None:
    """Invalidate lost blocks of the result and all deleted files that are needed for them.

    Their own records go last, so that a run that is killed meanwhile repeats this.
    """
    files = Scratch(scratch, sync=False, kept=True)
    free_finished(files, plan, finished_blocks(scratch, plan))
    number, parts = result_files(plan)
    if number is not None:
        made_of = {parts.get(block, block) for block in lost}
        for block in made_of:
            files.free(exchange_folder("", number), block)
        _forget_sources(
            files,
            plan,
            number,
            made_of,
        )
    for block in lost:
        files.forget(RESULT, block)
