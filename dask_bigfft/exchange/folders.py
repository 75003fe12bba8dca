"""Folders of scratch files: room for them, whose they are, and what dead processes have left.

Imports `errors`.
"""

import contextlib
import errno
import os
import shutil
import uuid
from pathlib import Path

from dask_bigfft.errors import ScratchError
from dask_bigfft.files import sync_path

try:
    import fcntl
except ImportError:  # on systems without POSIX locks there are no scratch files
    fcntl = None  # type: ignore[assignment, unused-ignore]

#: Bytes kept free for records and folders when room is looked for.
MARGIN = 1 << 20

#: Beginning of the names of folders that are not kept, and the file by which one is locked.
PREFIX, LOCK = "bigfft-", "lock"

#: Beginning of the names of folders in which the records of a life of a run are written, and of
#: those that are being deleted.
LIFE, ENDED = "life-", "ended-"


def lock_file(handle: int) -> None:
    """Wait until no other process has locked a file; it is let go where it is closed."""
    fcntl.flock(handle, fcntl.LOCK_EX)


def _opened_and_locked(path: Path, flags: int, how: int) -> int:
    """Return a handle of a file that is locked; none stays open where it cannot be."""
    handle = os.open(path, os.O_RDWR | flags, 0o600)
    try:
        fcntl.flock(handle, how)
    except BaseException:
        os.close(handle)
        raise
    return handle


def check_room(directory: Path, needed: int) -> None:
    """Refuse a directory on whose disk scratch files have no room."""
    total, _, free = shutil.disk_usage(directory)
    if free < needed + MARGIN and total:  # some file systems do not tell
        text = f"{needed + MARGIN - free} bytes are missing: scratch files take {needed} bytes, and"
        text += f" {free} are free; choose a larger disk (bigfft.scratch.directory, or a run's"
        raise ScratchError(errno.ENOSPC, f"{text} scratch folder)", str(directory))


def lock_folder(folder: Path) -> int | None:
    """Return a handle that says this process alone uses a folder; None if another one does.

    A folder that is not there is a `FileNotFoundError`.
    """
    try:
        return _locked(folder, os.O_CREAT, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return None


def _locked(folder: Path, flags: int, how: int) -> int:
    """Return a handle of a folder's lock that is locked, and still there then."""
    while True:
        handle = _opened_and_locked(folder / LOCK, flags, how)
        if has_lock(folder, handle):
            return handle
        os.close(handle)  # whoever had locked it has deleted it


def has_lock(folder: Path, handle: int) -> bool:
    """Whether a handle is that of a folder's lock, and not of one that was deleted since."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), (folder / LOCK).stat())
    return False


def hold_folder(folder: Path, make: bool) -> int | None:
    """Return a handle that says this process uses a folder, as others may.

    None if the folder is not there and not to be made.
    """
    handle = None
    while handle is None:
        try:
            handle = _locked(folder, 0, fcntl.LOCK_SH)
        except FileNotFoundError:
            if not make:
                return None
            handle = _held_from_the_first(folder)
    return handle


def _held_from_the_first(folder: Path) -> int | None:
    """Make a folder that is held before others see it; None if one is there by now."""
    fresh = folder.with_name(f"new-{uuid.uuid4().hex}")
    fresh.mkdir(mode=0o700)
    handle = None
    try:
        handle = _opened_and_locked(fresh / LOCK, os.O_CREAT, fcntl.LOCK_SH)
        fresh.rename(folder)
    except OSError as error:
        remove_folder(fresh, handle)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return None
        raise
    return handle


def run_of(life: str) -> str:
    """Return the digest of the run that a life is of, which its records carry; empty for none.

    >>> run_of("life-0123456789abcdef-77"), run_of("")
    ('0123456789abcdef', '')
    """
    return life.removeprefix(LIFE).partition("-")[0]


def begin_life(folder: Path, run: str) -> str:
    """Return the name of a new folder for the records of a run's life; those of others go.

    Records are written there and moved to their places, so from now on nobody who is left over from
    another life, such as a worker whose client was killed, can say that anything is done.
    """
    for old in folder.glob(f"{LIFE}*"):
        old.rename(old.with_name(f"{ENDED}{uuid.uuid4().hex}"))
    for old in folder.glob(f"{ENDED}*"):
        shutil.rmtree(old, ignore_errors=True)
    life = f"{LIFE}{run}-{uuid.uuid4().hex}"
    (folder / life).mkdir(mode=0o700)
    return life


def leave_folder(folder: Path, handle: int) -> None:
    """Let go of a folder that was held, and delete it unless others hold it."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
    else:
        remove_folder(folder, handle)


def unlock_folder(handle: int | None) -> None:
    """Let go of a folder that was locked or held."""
    if handle is not None:
        os.close(handle)


def remove_folder(folder: Path, handle: int | None) -> None:
    """Delete a folder, and let go what locks it."""
    shutil.rmtree(folder, ignore_errors=True)
    unlock_folder(handle)


def remove_abandoned(directory: Path) -> list[Path]:
    """Delete the folders that killed processes of this machine have left, and return them."""
    return [folder for folder in directory.glob(f"{PREFIX}*") if remove_unused(folder)]


def remove_unused(folder: Path) -> bool:
    """Delete a folder that has a lock which nobody holds; whether it went."""
    handle = None
    with contextlib.suppress(OSError):
        handle = lock_folder(folder) if (folder / LOCK).is_file() else None
    if handle is not None:
        remove_folder(folder, handle)
    return handle is not None


def sync_folders(folder: Path, root: Path) -> None:
    """Wait until the names in a folder, and in those above it up to a root, are on the disk."""
    for path in (folder, *folder.parents):
        sync_path(path)
        if path == root:
            return
