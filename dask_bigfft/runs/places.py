"""Where a run may write: not into what it reads, and not into what it deletes.

Imports `errors` and `storage`.
"""

import errno
from pathlib import Path

from dask_bigfft.errors import refuse
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
    read = _whole("source", source)
    if component is not None and read.is_dir():  # which may be a link, too
        read = _whole("component", array_folder(read, component))
    written = _whole("destination", destination)
    if read.is_dir() and read in written.parents:
        refuse("destination", str(destination), f"a path outside of the source, {source}")
    if scratch is None:
        return
    if URL.match(str(scratch)):
        refuse("scratch", str(scratch), "a local path")
    folder = _whole("scratch", scratch)
    for name, place in {"source": read, "destination": written}.items():
        if place in (folder, *folder.parents) and not place.is_file():
            refuse("scratch", str(scratch), f"a folder outside of the {name}, {place}")
    if folder in written.parents:
        refuse(
            "destination",
            str(destination),
            f"a path outside of the scratch folder, {scratch}, which is deleted at the end",
        )


def _whole(argument: str, path: Path) -> Path:
    """The whole path that an argument means, of which the system can tell what is there."""
    try:
        found = path.resolve()
        found.exists()
        return found
    except (ValueError, RuntimeError) as error:  # null bytes, or links that go round in a circle
        reason: Exception = error
    except OSError as error:
        if error.errno != errno.ENAMETOOLONG:
            raise
        reason = OSError(error.strerror)
    refuse(argument, str(path), f"a path that a file can have ({reason})")
