"""Arrays on disk: Zarr arrays, HDF5 datasets and ``.npy`` files to read, a Zarr array to write.

Reading: blocks hold whole chunks of the file, as many as make a block of a good size, and follow
the order in which the file lies. Writing: an array grows beside its place and moves there when it
is complete and on the disk::

    OUT.partial-<pid>     being written, marked incomplete
    OUT                   the old one, if any, until the new one takes its place

so an interrupted run leaves nothing that looks complete. Imports `errors`, `events`, `chunk_files`
and dask; zarr and h5py only when they are needed.
"""

import contextlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn, cast

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.base import tokenize

from dask_bigfft.chunk_files import PlainChunks, plain_chunks, refuse_missing
from dask_bigfft.errors import refuse
from dask_bigfft.events import emit

#: Largest block that chunks are put together to, and the smallest worth a task of its own.
LARGEST, SMALLEST = 128 << 20, 4 << 20

#: Blocks that an array is cut into at least, unless they would be smaller than `SMALLEST`.
FEWEST = 16

#: Attribute of written arrays that says how they came to be, and whether they are complete.
ATTRIBUTE = "dask_bigfft"

#: Beginning of an address that is no path, as `Path` writes it.
_URL = re.compile(r"\w+:/")

_ZARR_FILES = ("zarr.json", ".zarray", ".zgroup")


def _zarr() -> Any:
    """Return the zarr package."""
    try:
        return import_module("zarr")
    except ImportError as error:
        text = "Zarr arrays need the package zarr: pip install 'dask-bigfft[zarr]'"
        raise ImportError(text) from error


# --- reading --------------------------------------------------------------------------------


class NpyFile:
    """An ``.npy`` file as dask reads it: memory-mapped anew wherever a block of it is needed.

    Parameters
    ----------
    path : Path
        The file; its header is read at once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        mapped = self._map()
        self.shape, self.dtype, self.ndim = mapped.shape, mapped.dtype, mapped.ndim
        self.columns_first = mapped.flags.f_contiguous and not mapped.flags.c_contiguous

    def _map(self) -> npt.NDArray[Any]:
        try:
            return cast("npt.NDArray[Any]", np.lib.format.open_memmap(self.path, mode="r"))
        except ValueError as error:
            if "mmap an empty" not in str(error):
                raise
            return cast("npt.NDArray[Any]", np.load(self.path))

    def __getitem__(self, index: Any) -> npt.NDArray[Any]:
        return np.asarray(self._map()[index])

    def __dask_tokenize__(self) -> tuple[str, str, int, int]:
        found = self.path.stat()
        return "dask_bigfft.NpyFile", str(self.path), found.st_size, found.st_mtime_ns


class H5Dataset:
    """A dataset of an HDF5 file as dask reads it: the file is opened anew for every block.

    Parameters
    ----------
    path : Path
        The file.
    name : str
        Of the dataset.
    """

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name = path, name
        with _h5py().File(path, "r") as file:
            found = file[name]
            self.shape, self.dtype, self.ndim = found.shape, found.dtype, found.ndim
            self.chunks = found.chunks or (1,) * found.ndim

    def __getitem__(self, index: Any) -> npt.NDArray[Any]:
        with _h5py().File(self.path, "r") as file:
            return np.asarray(file[self.name][index])

    def __dask_tokenize__(self) -> tuple[str, str, str, int, int]:
        found = self.path.stat()
        return "H5Dataset", str(self.path), self.name, found.st_size, found.st_mtime_ns


class Reader:
    """A stored array whose reads are counted.

    Parameters
    ----------
    stored
        Has shape and dtype, and gives NumPy arrays for slices.
    plain : PlainChunks, optional
        Its chunks, where they are files of nothing but their values.
    """

    def __init__(self, stored: Any, plain: PlainChunks | None = None) -> None:
        self.stored, self.plain = stored, plain
        self.shape, self.dtype, self.ndim = stored.shape, stored.dtype, stored.ndim

    def __getitem__(self, index: Any) -> npt.NDArray[Any]:
        started = time.perf_counter()
        values = None if self.plain is None else self.plain.read(index)
        if values is None:
            values = np.asarray(self.stored[index])
        emit("source_read", nbytes=values.nbytes, seconds=time.perf_counter() - started)
        return values

    def __dask_tokenize__(self) -> tuple[str, str]:
        return "dask_bigfft.Reader", tokenize(self.stored)


def _h5py() -> Any:
    """Return the h5py package."""
    try:
        return import_module("h5py")
    except ImportError as error:
        text = "HDF5 files need the package h5py: pip install 'dask-bigfft[hdf5]'"
        raise ImportError(text) from error


def grown(
    shape: Sequence[int], unit: Sequence[int], itemsize: int, nbytes: int, *, last_first: bool
) -> tuple[int, ...]:
    """Return chunks of about `nbytes` that are whole multiples of `unit`.

    Axes are taken whole one after the other, the last first where the file is row-major, and the
    one that does not fit is cut into even parts.

    Examples
    --------
    >>> grown((8, 100, 64), (1, 1, 1), 8, 64 * 30 * 8, last_first=True)
    (1, 25, 64)
    >>> grown((64, 64), (10, 10), 8, 64 * 20 * 8, last_first=True)
    (20, 64)
    """
    chunks = [max(1, min(u, n)) for u, n in zip(unit, shape, strict=True)]
    for axis in range(len(shape))[:: -1 if last_first else 1]:
        room = nbytes // (math.prod(chunks) * itemsize)
        units = -(-shape[axis] // chunks[axis])
        if room < 2:
            break
        parts = -(-units // min(room, units)) if units else 1
        chunks[axis] = min(shape[axis], chunks[axis] * -(-units // parts)) or 1
        if parts > 1:
            break
    return tuple(chunks)


def block_bytes(nbytes: int) -> int:
    """Return the size of blocks in which an array of `nbytes` is read."""
    return min(LARGEST, max(SMALLEST, nbytes // FEWEST))


def open_source(
    path: Path, component: str | None = None, *, nbytes: int | None = None, keep: bool = False
) -> da.Array:
    """Return the array in a file, lazily, in blocks that hold whole chunks of it.

    Parameters
    ----------
    path : Path
        ``.npy`` or HDF5 file, or folder of a Zarr array or group (version 2 or 3).
    component : str, optional
        Array within a Zarr group or HDF5 file.
    nbytes : int, optional
        Size of blocks; by default a sixteenth of the array, from 4 to 128 MiB.
    keep : bool
        Whether each chunk of a Zarr array stays a block.

    Raises
    ------
    ArgumentError
        If there is no such array.
    """
    if not path.exists():
        hint = "; only local paths are read" if _URL.match(str(path)) else ""
        refuse("IN", str(path), f"a file or folder that exists{hint}")
    stored: Any
    plain = None
    if path.is_dir() or path.suffix == ".zip":
        stored = _open_zarr(path, component)
        plain = plain_chunks(stored, path.resolve() / (component or ""))
        unit = stored.shards or stored.chunks
        last_first = stored.order == "C"
    elif _is_hdf5(path):
        stored = _open_hdf5(path, component)
        unit, last_first = stored.chunks, True
    else:
        if component is not None:
            refuse("component", component, "none: only Zarr groups and HDF5 files have them")
        stored = _open_npy(path)
        unit, keep, last_first = (1,) * stored.ndim, False, not stored.columns_first
    itemsize, shape = max(1, stored.dtype.itemsize), stored.shape
    wanted = nbytes or block_bytes(math.prod(shape) * itemsize)
    chunks = unit if keep else grown(shape, unit, itemsize, wanted, last_first=last_first)
    return cast("da.Array", da.from_array(Reader(stored, plain), chunks=chunks))


def refuse_missing_chunks(path: Path, component: str | None = None) -> None:
    """Refuse a Zarr array some of whose chunks are missing; other files are not looked at."""
    if path.is_dir():
        refuse_missing(path, component, _open_zarr(path, component))


def _is_hdf5(path: Path) -> bool:
    with path.open("rb") as handle:
        return handle.read(8) == b"\x89HDF\r\n\x1a\n"


def _open_hdf5(path: Path, component: str | None) -> H5Dataset:
    h5py, names = _h5py(), []
    try:
        with h5py.File(path, "r") as file:
            file.visititems(lambda name, found: names.append(name)
                            if isinstance(found, h5py.Dataset) else None)
    except OSError as error:
        refuse("IN", str(path), f"an HDF5 file that can be read ({error})")
    if component is None and len(names) == 1:
        return H5Dataset(path.resolve(), names[0])
    if component is None or component.strip("/") not in names:
        refuse("component", component, f"the name of a dataset in {path}: "
               + (", ".join(sorted(names)) or "none"))
    return H5Dataset(path.resolve(), component)


def _open_npy(path: Path) -> NpyFile:
    try:
        return NpyFile(path.resolve())
    except (ValueError, EOFError) as error:
        refuse("IN", str(path), f"a Zarr array or an .npy file of numbers ({error})")


def _open_zarr(path: Path, component: str | None) -> Any:
    zarr = _zarr()
    try:
        found = zarr.open(str(path.resolve()), mode="r", path=component or "")
    except (FileNotFoundError, KeyError, ValueError) as error:
        if component is not None:
            refuse("component", component, f"an array in {path}")
        refuse("IN", str(path), f"a Zarr array or an .npy file ({error})")
    if isinstance(found, zarr.Group):
        names = sorted(name for name, _ in found.arrays()) or ["none"]
        refuse("component", component, f"the name of an array in the group {path}: "
               + ", ".join(names))
    return found


# --- writing --------------------------------------------------------------------------------


def uniform(chunks: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
    """Return the chunk shape that a Zarr array needs for these chunks, or None if none will do.

    >>> uniform(((4, 4, 2), (5,))), uniform(((4, 2, 4), (5,)))
    ((4, 5), None)
    """
    for found in chunks:
        if any(c != found[0] for c in found[:-1]) or found[-1] > found[0]:
            return None
    return tuple(max(1, found[0]) for found in chunks)


def check_target(path: Path, source: Path, *, overwrite: bool) -> None:
    """Refuse a place that an array cannot be written to, or must not.

    Raises
    ------
    ArgumentError
        If the folder above is missing, if something is there that is not to be replaced, or if
        the source is inside.
    """
    if _URL.match(str(path)):
        refuse("OUT", str(path), "a local path")
    if not path.parent.is_dir():
        refuse("OUT", str(path), f"a folder that exists, which {path.parent} is not")
    if not os.path.lexists(path):
        return
    if not overwrite:
        refuse("OUT", str(path), "a path where nothing is yet, or --overwrite")
    if path.resolve() in source.resolve().parents:
        refuse("OUT", str(path), "another path: IN lies inside of it")
    if path.is_symlink() or not path.is_dir() or not _is_array(path):
        refuse("OUT", str(path), "a Zarr array, if it is to be replaced; this is something else")


def _is_array(path: Path) -> bool:
    """Whether a folder holds a Zarr array of version 2 or 3."""
    if (path / ".zarray").is_file():
        return True
    try:
        found = json.loads((path / "zarr.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("node_type") == "array"


@dataclass
class Target:
    """A Zarr array that grows beside the place it is meant for.

    Parameters
    ----------
    path : Path
        Where the complete array will be.
    partial : Path
        Where it grows.
    array : Zarr array
        To write to.
    """

    path: Path
    partial: Path
    array: Any

    def finish(self) -> None:
        """Mark the array complete, wait until it is on the disk, and move it to its place."""
        record = dict(self.array.attrs[ATTRIBUTE]) | {"complete": True}
        _flush(self.partial)
        self.array.attrs[ATTRIBUTE] = record
        _flush(self.partial, files=_ZARR_FILES)
        old = self.partial.with_name(f"{self.path.name}.replaced-{os.getpid()}")
        replaces = os.path.lexists(self.path)
        if replaces:
            self.path.rename(old)
        try:
            self.partial.rename(self.path)
        except BaseException:
            if replaces and not self.path.exists():
                old.rename(self.path)
            raise
        if replaces:
            shutil.rmtree(old)

    def discard(self) -> None:
        """Remove what has been written, also what a task that still runs adds meanwhile."""
        for _ in range(20):
            shutil.rmtree(self.partial, ignore_errors=True)
            time.sleep(0.05)
            if not self.partial.exists():
                break


def _flush(folder: Path, files: Sequence[str] | None = None) -> None:
    """Wait until the files of a folder are on the disk."""
    for root, folders, names in os.walk(folder):
        found = [n for n in names if files is None or n in files]
        for name in [*found, "."]:
            handle = os.open(os.path.join(root, name), os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
        if files is not None:
            folders.clear()


def created(
    path: Path, partial: Path, shape: tuple[int, ...], blocks: tuple[int, ...],
    dtype: np.dtype[Any], record: dict[str, Any], inner: tuple[int, ...] | None = None,
) -> Target:
    """Return a new Zarr array in `partial`, meant for `path`; what was there before goes.

    Parameters
    ----------
    path : Path
        Checked by `check_target`.
    partial : Path
        Where it grows.
    shape, blocks, dtype
        Of the array. It is not compressed: spectra hardly can be.
    record : dict
        What to write into the array's attributes, beside whether it is complete.
    inner : tuple of int, optional
        Shape of chunks if each block is a shard of several.

    Raises
    ------
    ArgumentError
        For a dtype that Zarr cannot store, or inner chunks that do not divide the blocks.
    """
    check_inner(inner, blocks)
    shutil.rmtree(partial, ignore_errors=True)
    zarr = _zarr()
    try:
        array = zarr.create_array(
            str(partial), shape=shape, chunks=inner or blocks, shards=blocks if inner else None,
            dtype=dtype, compressors=None, attributes={ATTRIBUTE: record | {"complete": False}},
            config={"write_empty_chunks": True},
        )
    except (TypeError, ValueError) as error:
        _refuse_dtype(dtype, error)
    return Target(path, partial, array)


def check_inner(inner: tuple[int, ...] | None, blocks: tuple[int, ...]) -> None:
    """Refuse chunks that do not divide the shards they are to lie in."""
    if inner is not None and (len(inner) != len(blocks) or any(
        n < 1 or block % n for n, block in zip(inner, blocks, strict=True)
    )):
        refuse("inner_chunks", inner, f"divisors of the blocks' shape, {blocks}")


def reopened(path: Path, partial: Path) -> Target:
    """Return an array that an earlier run has begun, to be gone on with."""
    return Target(path, partial, _zarr().open_array(str(partial), mode="r+"))


def read_attributes(path: Path) -> dict[str, Any]:
    """Return what `dask_bigfft` has written into an array's attributes; nothing if it has not."""
    if not path.is_dir() or not _is_array(path):
        return {}
    found = _zarr().open_array(str(path), mode="r").attrs.get(ATTRIBUTE)
    return dict(found) if isinstance(found, dict) else {}


@contextlib.contextmanager
def writing(
    path: Path, shape: tuple[int, ...], blocks: tuple[int, ...], dtype: np.dtype[Any],
    record: dict[str, Any], inner: tuple[int, ...] | None = None,
) -> Iterator[Target]:
    """Give a Zarr array that becomes `path` when all goes well, and vanishes when it does not.

    Parameters
    ----------
    path, shape, blocks, dtype, record, inner
        As `created` takes them.
    """
    partial = path.with_name(f"{path.name}.partial-{os.getpid()}")
    target = Target(path, partial, None)
    try:
        target = created(path, partial, shape, blocks, dtype, record, inner)
        yield target
        target.finish()
    except BaseException:
        target.discard()
        raise


def _refuse_dtype(dtype: np.dtype[Any], error: Exception) -> NoReturn:
    refuse("IN", f"of which the result is {dtype}", f"a dtype that Zarr can store ({error})")


def leftovers(path: Path) -> list[Path]:
    """Return what runs that were killed have left beside `path`."""
    start = f"{path.name}.partial-"
    found = (p for p in path.parent.iterdir() if p.name.startswith(start))
    return sorted(p for p in found if not _alive(p.name.removeprefix(start)))


def _alive(number: str) -> bool:
    """Whether a process of this number runs; what is no number counts as running."""
    if not number.isdigit():
        return True
    try:
        os.kill(int(number), 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
