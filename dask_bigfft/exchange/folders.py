"""Folders of scratch files: room for them, whose they are, and what dead processes have left.

Imports `errors`.
"""

import contextlib
import errno
import os
import shutil
from pathlib import Path

from dask_bigfft.errors import ScratchError

try:
    import fcntl
except ImportError:  # where files cannot be locked: nobody tells what a dead process has left
    fcntl = None  # type: ignore[assignment, unused-ignore]

#: Bytes kept free for records and folders when room is looked for.
MARGIN = 1 << 20

#: Beginning of the names of folders that are not kept, and the file by which one is locked.
PREFIX, LOCK = "bigfft-", "lock"


def lock_file(handle: int) -> None:
    """Wait until no other process has locked a file; it is let go where it is closed."""
    if fcntl is not None:
        fcntl.flock(handle, fcntl.LOCK_EX)


def check_room(directory: Path, needed: int) -> None:
    """Refuse a directory on whose disk scratch files have no room."""
    free = shutil.disk_usage(directory).free
    if free < needed + MARGIN:
        raise ScratchError(
            errno.ENOSPC,
            f"{needed + MARGIN - free} bytes are missing: scratch files take {needed} bytes, and "
            f"{free} are free; set bigfft.scratch.directory to a larger disk",
            str(directory),
        )


def lock_folder(folder: Path) -> int | None:
    """Return a handle that says this process uses a folder; None if another one does.

    -1 where files cannot be locked.
    """
    if fcntl is None:
        return -1
    handle = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        return None
    return handle


def unlock_folder(handle: int | None) -> None:
    """Let another process use a folder."""
    if handle is not None and handle >= 0:
        os.close(handle)


def remove_folder(folder: Path, handle: int | None) -> None:
    """Delete a folder, and let go what locks it."""
    shutil.rmtree(folder, ignore_errors=True)
    unlock_folder(handle)


def remove_abandoned(directory: Path) -> list[Path]:
    """Delete the folders that killed processes of this machine have left, and return them."""
    found = []
    for folder in directory.glob(f"{PREFIX}*"):
        if fcntl is None or not (folder / LOCK).is_file():
            continue
        with contextlib.suppress(OSError):
            handle = lock_folder(folder)
            if handle is not None:
                remove_folder(folder, handle)
                found.append(folder)
    return found
