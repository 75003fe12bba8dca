"""Folders of scratch files: free space, locks, and removal of abandoned folders."""

import contextlib
import errno
import os
import shutil
import uuid
from pathlib import Path

from dask_bigfft.errors import ScratchError
from dask_bigfft.files import check_free_space, sync_path
from dask_bigfft.system import lock

#: Bytes kept free for records and folders.
MARGIN = 1 << 20

#: Prefix of the names of temporary folders.
PREFIX = "bigfft-"

#: Name of the lock file of a temporary folder.
LOCK = "lock"

#: Maximum number of attempts to make a folder that others remove.
MOST_TRIES = 100

#: Prefix of the names of folders for new records of a life of a run.
LIFE = "life-"

#: Prefix of the names of folders that are being deleted.
ENDED = "ended-"


def _opened_and_locked(path: Path, flags: int, shared: bool, wait: bool) -> int:
    """Return a handle of a locked file; close the file if it cannot be locked."""
    handle = os.open(path, os.O_RDWR | flags, 0o600)
    try:
        lock(handle, shared, wait)
    except BaseException:
        os.close(handle)
        raise
    return handle


def check_scratch_space(directory: Path, needed: int) -> None:
    """Raise an error if the disk of a directory has too little free space for scratch files."""
    advice = "; choose a larger disk (bigfft.scratch.directory, or a run's scratch folder)"
    check_free_space(
        directory,
        needed + MARGIN,
        "scratch files take",
        advice,
        ScratchError,
    )


def lock_folder(folder: Path) -> int | None:
    """Return a handle that locks a folder for this process; None if another one uses it.

    A missing folder raises `FileNotFoundError`.
    """
    with contextlib.suppress(BlockingIOError):
        return _locked(folder, os.O_CREAT, shared=False, wait=False)
    return None


def make_and_lock_folder(folder: Path) -> int | None:
    """Make and lock a folder, and return the handle of its lock; None if another process has it.

    The previous user of the folder may remove it at any time.
    """
    for attempt in range(1, MOST_TRIES + 1):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            return lock_folder(folder)
        except (FileNotFoundError, FileExistsError):
            if attempt == MOST_TRIES or not folder.parent.is_dir():
                raise
    return None


def _locked(folder: Path, flags: int, shared: bool, wait: bool) -> int:
    """Return a locked handle of a folder's lock file, which has not been deleted meanwhile."""
    while True:
        handle = _opened_and_locked(folder / LOCK, flags, shared, wait)
        if has_lock(folder, handle):
            return handle
        os.close(handle)  # the previous owner has deleted it


def has_lock(folder: Path, handle: int) -> bool:
    """Return whether a handle belongs to the present lock file of a folder."""
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(handle), (folder / LOCK).stat())
    return False


def hold_folder(folder: Path, make: bool) -> int | None:
    """Return a handle that holds a folder for this process, as others may hold it, too.

    Return None if the folder is missing and `make` is false.
    """
    handle = None
    while handle is None:
        try:
            handle = _locked(folder, 0, shared=True, wait=True)
        except FileNotFoundError:
            if not make:
                return None
            handle = _held_from_the_first(folder)
    return handle


def _held_from_the_first(folder: Path) -> int | None:
    """Make a folder that is held before others see it; return None if it already exists."""
    fresh = folder.with_name(f"new-{uuid.uuid4().hex}")
    fresh.mkdir(mode=0o700)
    handle = None
    try:
        handle = _opened_and_locked(fresh / LOCK, os.O_CREAT, shared=True, wait=True)
        fresh.rename(folder)
    except OSError as error:
        remove_folder(fresh, handle)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            return None
        raise
    return handle


def run_of(life: str) -> str:
    """Return the digest of the run of a life, which is in its records; empty for no life.

    >>> run_of("life-0123456789abcdef-77"), run_of("")
    ('0123456789abcdef', '')
    """
    return life.removeprefix(LIFE).partition("-")[0]


def begin_life(folder: Path, run: str) -> str:
    """Return the name of a new folder for the records of a run's life; delete older ones.

    Records are written there and then moved to their places. Leftovers of another life, such as a
    worker whose client was killed, can therefore not record anything from now on.
    """
    for old in folder.glob(f"{LIFE}*"):
        old.rename(old.with_name(f"{ENDED}{uuid.uuid4().hex}"))
    for old in folder.glob(f"{ENDED}*"):
        shutil.rmtree(old, ignore_errors=True)
    life = f"{LIFE}{run}-{uuid.uuid4().hex}"
    (folder / life).mkdir(mode=0o700)
    return life


def leave_folder(folder: Path, handle: int) -> None:
    """Release a folder, and delete it unless others hold it."""
    try:
        lock(handle, wait=False)
    except BlockingIOError:
        os.close(handle)
    else:
        remove_folder(folder, handle)


def unlock_folder(handle: int | None) -> None:
    """Release a folder that was locked or held."""
    if handle is not None:
        os.close(handle)


def remove_folder(folder: Path, handle: int | None) -> None:
    """Delete a folder, and release its lock."""
    shutil.rmtree(folder, ignore_errors=True)
    unlock_folder(handle)


def remove_abandoned(directory: Path) -> list[Path]:
    """Delete the folders of killed processes of this machine, and return them."""
    return [folder for folder in directory.glob(f"{PREFIX}*") if remove_unused(folder)]


def remove_unused(folder: Path) -> bool:
    """Delete a folder whose lock file is not locked; return whether it was deleted."""
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
