"""Where a run may write: not into what it reads, and not into what it deletes.

Imports `errors` and `storage`.
"""

from pathlib import Path

from dask_bigfft.errors import is_path, refuse
from dask_bigfft.storage.sources import URL, array_folder

__all__ = ["refuse_places"]


def refuse_places(
    source: Path, component: str | None, destination: Path, scratch: Path | None
) -> None:
    """Refuse places that there cannot be, and those that lie inside of each other.

    Raises
    ------
    ArgumentError
        Naming the one that has to be elsewhere.
    """
    for name, path in {"source": source, "destination": destination, "scratch": scratch}.items():
        if path is not None and not is_path(path):
            refuse(name, str(path), "a path that a file can have, without null bytes")
    read, written = array_folder(source.resolve(), component), destination.resolve()
    if read.is_dir() and read in written.parents:
        refuse("destination", str(destination), f"a path outside of the source, {source}")
    if scratch is None:
        return
    if URL.match(str(scratch)):
        refuse("scratch", str(scratch), "a local path")
    folder = scratch.resolve()
    for name, place in {"source": read, "destination": written}.items():
        if place in (folder, *folder.parents) and not place.is_file():
            refuse("scratch", str(scratch), f"a folder outside of the {name}, {place}")
    if folder in written.parents:
        refuse("destination", str(destination),
               f"a path outside of the scratch folder, {scratch}, which is deleted at the end")
