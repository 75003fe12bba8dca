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
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np

from dask_bigfft.errors import refuse
from dask_bigfft.exchange.folders import ENDED, LIFE, LOCK, sync_folders
from dask_bigfft.exchange.records import DIGEST, RESULT, digest_of, signed
from dask_bigfft.exchange.scratch_files import failed
from dask_bigfft.gpu.dispatch import takes
from dask_bigfft.planner.plan import Plan

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
