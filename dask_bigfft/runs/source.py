"""What tells a source from a changed one: all the files that its values come from.

Imports `errors` and `storage`.
"""

import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dask_bigfft.errors import refuse
from dask_bigfft.storage.sources import array_folder, source_files

__all__ = ["refuse_changed_source", "source_identity"]


def source_identity(path: Path, component: str | None, content: bool) -> dict[str, Any]:
    """Return what tells a source from a changed one.

    Parameters
    ----------
    path : Path
        File, or folder of a Zarr array or group.
    component : str or None
        Array within a group.
    content : bool
        Whether everything is read, for checksums.

    Returns
    -------
    dict
        Of each file: size in bytes, time of the last change in ns, CRC-32 or None.
    """
    found = source_files(path, component)
    files = {name: _file(file, content) for name, file in found.items()}
    return {"path": str(path.resolve()), "component": component, "files": files}


def _file(path: Path, content: bool) -> list[int | None]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns, _crc(path) if content else None]


def _crc(path: Path) -> int:
    crc = 0
    with path.open("rb") as handle:
        while data := handle.read(1 << 22):
            crc = zlib.crc32(data, crc)
    return crc


def refuse_changed_source(
    before: Mapping[str, Any], now: Mapping[str, Any], kept: bool = True
) -> None:
    """Refuse a source that is not what it was when the run began.

    Parameters
    ----------
    before, now
        As `source_identity` returns them.
    kept : bool
        Whether the run keeps a scratch folder.

    Raises
    ------
    ArgumentError
        Naming the file that has changed.
    """
    allowed = "the source as it was when the run began"
    allowed += "; delete the scratch folder to start over" if kept else ""
    path = str(now["path"])
    if (before["path"], before["component"]) != (now["path"], now["component"]):
        refuse("source", path, f"{before['path']}, which the scratch folder is of")
    was, found = before["files"], now["files"]
    for name in sorted(was.keys() | found.keys()):
        a, b = was.get(name), found.get(name)
        if a == b:
            continue
        what = "is gone" if b is None else "is new" if a is None else "has changed"
        file = array_folder(Path(path), before["component"]) / name if name else path
        refuse("source", path, f"{allowed}: {file} {what}")
