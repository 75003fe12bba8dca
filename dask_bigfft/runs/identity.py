"""What a finished result says of the run that made it: the same run is then not done twice.

In the attributes of a result whose run had a scratch folder, under ``identity``::

    arguments    digest of what was asked, of what source, and of where the result was to go
    source       digest of the source as it was, and whether `checksum` had its contents compared
    files        digest of the result's own files as the run left them
    plan         the plan, packed

All of it is written before the result takes its place. A source that the result has replaced can
be compared with nothing any more; the result's own files then say whether they are still what the
run has left.

Imports `errors`, `planner`, `storage` and `source`.
"""

import base64
import hashlib
import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dask_bigfft.errors import refuse
from dask_bigfft.planner.plan import Plan
from dask_bigfft.runs.source import source_identity
from dask_bigfft.storage import targets
from dask_bigfft.storage.sources import array_folder

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
