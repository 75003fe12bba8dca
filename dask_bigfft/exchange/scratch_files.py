"""One scratch file: opened, given its full size, read, and what is said where that cannot be done.

Imports `errors`, `files` and `folders`.
"""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy.typing as npt

from dask_bigfft.errors import ScratchError
from dask_bigfft.exchange.folders import LIFE, lock_file
from dask_bigfft.files import File, opened, room_missing

__all__ = ["failed", "fill", "make_folder", "opened_file", "reserve"]

Array = npt.NDArray[Any]


@contextlib.contextmanager
def opened_file(path: Path, flags: int, direct: bool = True) -> Iterator[File]:
    """Give an open file, with the folders above it where it is to be made; see `files.opened`."""
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(opened(path, flags, direct))
        except FileNotFoundError as error:
            if not flags & os.O_CREAT or path.parent.name.startswith(LIFE):
                failed(path, error, 0, 0)
            make_folder(path.parent)
            file = stack.enter_context(opened(path, flags, direct))
        except OSError as error:
            failed(path, error, 0, 0)
        yield file


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless they are there."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        failed(folder, error, 0, 0)


def reserve(handle: int, path: Path, total: int) -> None:
    """Give a file its full size, unless it has it; one writer at a time."""
    if os.fstat(handle).st_size >= total:
        return
    lock_file(handle)
    if os.fstat(handle).st_size >= total:
        return
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(handle, 0, total)
        else:
            os.ftruncate(handle, total)
    except OSError as error:
        failed(path, error, total, total)


def fill(file: File, path: Path, out: Array, begin: int) -> None:
    """Read as many bytes as `out` has."""
    try:
        done = file.read(out, begin)
    except OSError as error:
        failed(path, error, 0, 0)
    if done < len(out):
        raise ScratchError(errno.EIO, f"the file ends {len(out) - done} bytes early", str(path))


def failed(path: Path, error: OSError, total: int, missing: int) -> NoReturn:
    """Raise what went wrong with a scratch file: which, and how many bytes are missing."""
    text = error.strerror or str(error)
    if (lack := room_missing(path, error, missing)) is not None:
        text = f"{text}: {lack} for a scratch file of {total}"
    elif error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        text = f"{text}: scratch files cannot be written here; set bigfft.scratch.directory"
    elif error.errno == errno.ENOENT and path.parent.name.startswith(LIFE):
        text = f"{text}: another run has gone on with this scratch folder"
    raise ScratchError(error.errno or errno.EIO, text, str(path)) from error
