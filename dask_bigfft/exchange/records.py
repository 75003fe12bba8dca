"""Records of what is complete in a folder of scratch files: their names, and what makes one whole.

Imports nothing of the package.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Block = tuple[int, ...]

#: Folder of the records of the result's blocks.
RESULT = "result"

#: What a record says of itself, so that no part of it changes unnoticed.
DIGEST = "digest"

#: A checksum as records have it.
CHECKSUM = re.compile("[0-9a-f]{16}")


def block_name(block: Block) -> str:
    """Return a block's index as part of a file's name.

    >>> block_name((3, 0))
    '3.0'
    """
    return ".".join(map(str, block))


def digest_of(found: Mapping[str, Any]) -> str:
    """Return a digest of a record, without the digest that it has."""
    kept = {name: value for name, value in found.items() if name != DIGEST}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:16]


def signed(found: Mapping[str, Any]) -> bytes:
    """Return the JSON of a record with its digest."""
    return json.dumps({**found, DIGEST: digest_of(found)}).encode()


def read_record(path: Path, run: str = "") -> dict[str, Any] | None:
    """Return what a record says; None where there is none, none that is whole, or another run's.

    Parameters
    ----------
    path : Path
        Of the record.
    run : str
        Digest of the run that it has to be of; empty for any.
    """
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:  # after a loss of power, without `sync`
        return None
    return found if _is_record(path, found) and run in ("", found.get("run")) else None


def _is_record(path: Path, found: Any) -> bool:
    """Whether what a file holds is the record that its name says; what is none is done again."""
    start, _, name = path.stem.partition("-")
    block = found.get("source" if start == "from" else "block") if isinstance(found, dict) else None
    if not isinstance(block, list) or block_name(tuple(block)) != name:
        return False
    if found.get(DIGEST) != digest_of(found):  # changed since it was written
        return False
    if not isinstance(found.get("nbytes"), int | None):
        return False
    shards = found.get("shards", {} if start == "stored" else None)
    sums = [] if found.get("checksum") is None else [found["checksum"]]
    return isinstance(shards, dict) and all(
        isinstance(value, str) and CHECKSUM.fullmatch(value) for value in (*sums, *shards.values())
    )


def recorded_blocks(folder: Path, exchange: str | None, run: str = "") -> frozenset[Block]:
    """Return the source blocks of an exchange that are recorded; of the result for None."""
    if exchange is None:
        return frozenset(stored_blocks(folder, run))
    return frozenset(tuple(found["source"]) for found in _records(folder / exchange, "from-", run))


@dataclass(frozen=True)
class Stored:
    """What is known of the file of a block of the result, as it was stored.

    Parameters
    ----------
    nbytes : int or None
        Its size, if it is a file.
    checksum : int or None
        Of its values, if it was taken.
    synced : bool
        Whether it was on the disk before.
    """

    nbytes: int | None = None
    checksum: int | None = None
    synced: bool = False


def stored_blocks(folder: Path, run: str = "") -> dict[Block, Stored]:
    """Return the blocks of the result that are recorded, and what is known of their files."""
    found = {}
    for record in _records(folder / RESULT, "stored-", run):
        text = record.get("checksum")
        found[tuple(record["block"])] = Stored(
            record.get("nbytes"),
            None if text is None else int(text, 16),
            record.get("synced") is True,
        )
    return found


def _records(folder: Path, start: str, run: str) -> list[dict[str, Any]]:
    try:
        paths = list(folder.glob(f"{start}*.json"))
    except FileNotFoundError:
        return []
    return [found for path in paths if (found := read_record(path, run)) is not None]
