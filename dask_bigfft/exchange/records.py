"""Records of what is complete in a folder of scratch files: their names, and what makes one whole.

Imports nothing of the package.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Block = tuple[int, ...]

#: Folder of the records of the result's blocks.
RESULT = "result"

#: A checksum as records have it.
CHECKSUM = re.compile("[0-9a-f]{16}")


def block_name(block: Block) -> str:
    """Return a block's index as part of a file's name.

    >>> block_name((3, 0))
    '3.0'
    """
    return ".".join(map(str, block))


def read_record(path: Path) -> dict[str, Any] | None:
    """Return what a record says; None where there is none, or none that is whole."""
    try:
        found = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError:  # after a loss of power, without `sync`
        return None
    return found if _is_record(path, found) else None


def _is_record(path: Path, found: Any) -> bool:
    """Whether what a file holds is the record that its name says; what is none is done again."""
    start, _, name = path.stem.partition("-")
    block = found.get("source" if start == "from" else "block") if isinstance(found, dict) else None
    if not isinstance(block, list) or block_name(tuple(block)) != name:
        return False
    if not isinstance(found.get("nbytes"), int | None) or not _is_sample(found.get("sample")):
        return False
    shards = found.get("shards", {} if start == "stored" else None)
    return isinstance(shards, dict) and all(
        isinstance(value, str) and CHECKSUM.fullmatch(value) for value in shards.values())


def _is_sample(found: Any) -> bool:
    return found is None or (isinstance(found, str) and CHECKSUM.fullmatch(found) is not None)


def recorded_blocks(folder: Path, exchange: str | None) -> frozenset[Block]:
    """Return the source blocks of an exchange that are recorded; of the result for None."""
    if exchange is None:
        return frozenset(stored_blocks(folder))
    return frozenset(tuple(found["source"]) for found in _records(folder / exchange, "from-"))


@dataclass(frozen=True)
class Stored:
    """What is known of the file of a block of the result, as it was stored.

    Parameters
    ----------
    nbytes : int or None
        Its size, if it is a file.
    sample : int or None
        Checksum of a sample of its values, if one was taken.
    """

    nbytes: int | None = None
    sample: int | None = None


def stored_blocks(folder: Path) -> dict[Block, Stored]:
    """Return the blocks of the result that are recorded, and what is known of their files."""
    found = {}
    for record in _records(folder / RESULT, "stored-"):
        text = record.get("sample")
        found[tuple(record["block"])] = Stored(
            record.get("nbytes"), None if text is None else int(text, 16))
    return found


def _records(folder: Path, start: str) -> list[dict[str, Any]]:
    try:
        paths = list(folder.glob(f"{start}*.json"))
    except FileNotFoundError:
        return []
    return [found for path in paths if (found := read_record(path)) is not None]
