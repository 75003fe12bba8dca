"""Readers of Zarr arrays, HDF5 datasets and ``.npy`` files.

A block holds whole chunks of the file, as many as its size allows, in the order of the file. A
`Reader` also reads single rows. zarr is imported only when it is needed.
"""

import contextlib
import errno
import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import dask.array as da
import numpy as np
from dask.base import tokenize

from dask_bigfft import config
from dask_bigfft.arrays import Array
from dask_bigfft.errors import raise_invalid
from dask_bigfft.events import emit
from dask_bigfft.memory import allocate
from dask_bigfft.planner.rows import DECODED, Stored
from dask_bigfft.storage.formats import (
    LEFT_OUT,
    UNREADABLE,
    DType,
    Packing,
    PlainChunks,
    chunk_of,
    few_chunks,
    is_region,
    package,
    packing_of,
    plain_chunks,
    refuse_absent,
    refuse_missing,
    zarr_attributes,
)
from dask_bigfft.storage.hdf5 import H5Dataset, is_hdf5, open_hdf5
from dask_bigfft.system import return_freed

#: Maximum size of a block of several chunks, and minimum size of a task's block, in bytes.
LARGEST = 128 << 20
SMALLEST = 4 << 20

#: Minimum number of blocks of an array, unless they would be smaller than `SMALLEST`.
FEWEST = 16

#: Maximum number of blocks where `block_size` is given: each is a task.
MOST = 1 << 20

#: Bytes of values that are decoded in place at a time.
IN_PLACE = 1 << 20

#: Lock for parsing the header of an ``.npy`` file: concurrent parsing in Python 3.11 may end in a
#: SystemError.
_parsing = threading.Lock()

#: Held while a task reads a block of plain files. One task at a time has the whole disk, and others
#: compute meanwhile: tasks that read together also compute together, and the disk is idle then.
_reading = threading.Lock()


def zarr_package() -> Any:
    """Return the zarr package."""
    return package("zarr", "Zarr arrays", "zarr")


def local_store(folder: Path, read_only: bool = False) -> Any:
    """Return the Zarr store of a folder. zarr may take a plain text (``a::b``) for an address."""
    return zarr_package().storage.LocalStore(folder, read_only=read_only)


class NpyFile:
    """``.npy`` file for dask: it is memory-mapped again for every block.

    Parameters
    ----------
    path : Path
        The file; its header is read at once.

    Raises
    ------
    ValueError
        If it cannot be read, or has another size than its header implies.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        mapped = self._mapped()
        nbytes = path.stat().st_size
        implied = mapped.offset + mapped.nbytes
        if nbytes != implied:  # NumPy itself refuses shorter files, but not longer ones
            raise ValueError(f"it has {nbytes} bytes, and {implied} by its header")
        self.shape = mapped.shape
        self.dtype = mapped.dtype
        self.ndim = mapped.ndim
        self.is_fortran_order = mapped.flags.f_contiguous and not mapped.flags.c_contiguous

    def _mapped(self) -> "np.memmap[Any, DType]":
        with _parsing:
            return np.lib.format.open_memmap(self.path, mode="r")

    def __getitem__(self, index: Any) -> Array:
        return np.asarray(self._mapped()[index])

    def __dask_tokenize__(self) -> tuple[str, str, int, int]:
        status = self.path.stat()
        return "dask_bigfft.NpyFile", str(self.path), status.st_size, status.st_mtime_ns


@dataclass(eq=False)
class Reader:
    """Stored array whose reads are counted.

    Parameters
    ----------
    stored
        Array with shape and dtype, which returns NumPy arrays for slices.
    unit : tuple of int or None
        Shape of a chunk or shard, which is read as a whole; None for an array without chunks.
    plain : PlainChunks, optional
        Chunks of the array, if their files hold nothing but values.
    last_first : bool
        True if the last axis is contiguous.
    packing : Packing, optional
        Decoder of the stored numbers. By default they are the values.
    few : bool
        True if chunks that are decoded are read a few at a time. That needs less memory, but more
        time with one thread.
    """

    stored: Any
    unit: tuple[int, ...] | None
    plain: PlainChunks | None = None
    last_first: bool = True
    packing: Packing | None = None
    few: bool = False

    def __post_init__(self) -> None:
        self.shape = self.stored.shape
        self.ndim = self.stored.ndim
        self.dtype = (self.packing or self.stored).dtype

    @property
    def anywhere(self) -> bool:
        """True if any rows can be read without their neighbours."""
        return self.plain is not None or (self.unit is None and self.last_first)

    @property
    def described(self) -> Stored:
        """Layout of the files for the planner."""
        itemsize = self.dtype.itemsize
        decoded = 0 if self.dtype == self.stored.dtype else itemsize
        if self.plain is None and self.unit is not None:
            decoded = math.prod(self.unit) * itemsize
        return Stored(
            self.unit or self.shape,
            self.anywhere,
            config.get("bigfft.scratch.row-size"),
            int(decoded),
            dims=self.dims,
        )

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the dimensions; empty unless the file names all of them."""
        names: Any = getattr(self.stored, "dims", None)  # of HDF5
        if hasattr(self.stored, "metadata"):
            names = _zarr_dims(self.stored)
        if not names or not all(names):
            return ()
        has_unique_names = len(names) == len(set(names)) == self.ndim
        return tuple(map(str, names)) if has_unique_names else ()

    def fill(self, region: tuple[slice, ...], out: Array) -> None:
        """Read a region into an array of its shape and any dtype. The caller counts the read.

        Rows of numbers that are stored as they are go straight into the array. Other values are
        decoded a few chunks at a time, as plans forecast.
        """
        reads_rows = self.plain is not None or self.unit is None
        in_place = out.dtype == self.dtype == self.stored.dtype
        if reads_rows and in_place:
            self._fill_in_place(region, out)
            return
        unit = (1,) * self.ndim
        if self.unit and not reads_rows:
            unit = self.unit
        most = DECODED // self.dtype.itemsize
        for part, place in few_chunks(region, unit, most):
            values = out[place] if place else out
            raw = values if in_place else allocate(values.shape, self.stored.dtype)
            self._read_into(part, raw)
            self._decode(part, raw, values)

    def _fill_in_place(self, region: tuple[slice, ...], out: Array) -> None:
        """Read rows of numbers at once, and decode them a few at a time."""
        self._read_into(region, out)
        if self.packing is None:
            return
        unit = (1,) * self.ndim
        most = IN_PLACE // self.dtype.itemsize
        for part, place in few_chunks(region, unit, most):
            values = out[place] if place else out
            self._decode(part, values, values)

    def _decode(self, region: tuple[slice, ...], raw: Array, values: Array) -> None:
        """Write the values of a region's stored numbers, which may be the same array."""
        decoded = raw
        if self.packing is not None:
            return_freed()
            begin = tuple(cut.start for cut in region)
            decoded = self.packing.decode(raw, begin)
        if decoded is not values:
            values[...] = decoded

    def __getitem__(self, index: Any) -> Array:
        started = time.perf_counter()
        is_whole = is_region(index, self.shape)
        if self.packing is not None and not is_whole:
            whole_region = tuple(slice(0, n) for n in self.shape)
            return np.asarray(self[whole_region][index])
        if is_whole and self._reads_into_blocks:
            shape = tuple(cut.stop - cut.start for cut in index)
            values = allocate(shape, self.dtype)
            with _reading if self._is_bound_by_disk else contextlib.nullcontext():
                self.fill(index, values)
        else:
            with self._errors(index):
                values = np.asarray(self.stored[index])
        seconds = time.perf_counter() - started
        emit("source_read", nbytes=values.nbytes, seconds=seconds)
        return values

    @property
    def _reads_into_blocks(self) -> bool:
        """True if `fill` reads a block; else the package of the file returns a new array."""
        if self.packing is not None or self.plain is not None:
            return True
        return isinstance(self.stored, H5Dataset) if self.unit is None else self.few

    @property
    def _is_bound_by_disk(self) -> bool:
        """True if values are read as they are, so that the processor has nothing to do."""
        return self.plain is not None and self.packing is None

    def _read_into(self, region: tuple[slice, ...], out: Array) -> None:
        """Read stored numbers into an array of their dtype; an `OSError` names the chunk."""
        if self.plain is not None:
            self.plain.fill(region, out)
            return
        with self._errors(region):
            if isinstance(self.stored, H5Dataset) and out.size and out.flags.c_contiguous:
                self.stored.read_into(region, out)
            else:
                out[...] = self.stored[region]

    @contextlib.contextmanager
    def _errors(self, index: Any) -> Iterator[None]:
        """Raise an `OSError` with the chunk's name if a package cannot read values."""
        if self.unit is not None:
            return_freed()
        try:
            yield
        except UNREADABLE as error:
            place = self._bad_chunk(index) or f"values {index}"
            text = f"{place} cannot be read ({type(error).__name__}: {error})"
            name = getattr(self.stored, "store_path", getattr(self.stored, "path", None))
            raise OSError(errno.EIO, text, str(name)) from error

    def _bad_chunk(self, index: Any) -> str | None:
        """Return the name of the first unreadable chunk or shard of a region, or None."""
        key = getattr(getattr(self.stored, "metadata", None), "encode_chunk_key", None)
        if key is None or self.unit is None:
            return None
        for part, _ in few_chunks(index, self.unit, 0):
            try:
                self.stored[part]
            except UNREADABLE:
                return f"chunk {key(chunk_of(part, self.unit))}"
        return None

    def __dask_tokenize__(self) -> tuple[str, str]:
        return "dask_bigfft.Reader", tokenize(self.stored, str(self.packing))

    def array(
        self,
        nbytes: int | None = None,
        *,
        keep: bool = False,
        chunks: Any = None,
    ) -> da.Array:
        """Return the lazy dask array of whole stored chunks.

        Packed variables are decoded, see `Packing`.

        Parameters
        ----------
        nbytes : int, optional
            Size of blocks; by default a sixteenth of the array, from 4 to 128 MiB.
        keep : bool
            True if each stored chunk becomes a block.
        chunks : tuple of chunks, optional
            Blocks to use instead.

        Raises
        ------
        ArgumentError
            If the blocks are too small.
        """
        itemsize = max(1, self.dtype.itemsize)
        if keep and self.unit:
            block = self.unit
        else:
            block = grown(
                self.shape,
                self.unit or (1,) * self.ndim,
                itemsize,
                nbytes or block_bytes(math.prod(self.shape) * itemsize),
                last_first=self.last_first,
            )
        pairs = zip(self.shape, block, strict=True)
        count = math.prod(-(-n // size) for n, size in pairs)
        if nbytes is not None and count > MOST:
            need = f"larger blocks: the array may have {MOST} at most, not {count}"
            raise_invalid("block_size", nbytes, need)
        return cast("da.Array", da.from_array(self, chunks=chunks or block))


def stored_reader(source: Any, x: da.Array) -> Reader | None:
    """Return a reader of a dask array's files, if the array is a Zarr array in a folder.

    Parameters
    ----------
    source : object
        Source of the dask array, if no operation has been applied to it.
    x : dask.array.Array
        The array, as `dask.array.from_zarr` returns it.
    """
    if isinstance(source, Reader):
        return source
    if type(source).__module__.partition(".")[0] != "zarr" or not hasattr(source, "metadata"):
        return None
    root = _folder_of(source.store)
    if root is None or source.shape != x.shape or source.dtype != x.dtype:
        return None
    return _zarr_reader(source, root / source.path)


def _zarr_dims(stored: Any) -> Any:
    """Return the names of the dimensions of a Zarr array of version 3 or 2; None without them."""
    names = getattr(stored.metadata, "dimension_names", None)
    return names or stored.attrs.get("_ARRAY_DIMENSIONS")


def _folder_of(store: Any) -> Path | None:
    """Return the local folder of a Zarr store, or None."""
    root = getattr(store, "root", None)
    if isinstance(root, Path):
        return root
    system = getattr(store, "fs", None)
    system = getattr(system, "sync_fs", system)  # dask opens stores through fsspec
    names = np.ravel(getattr(system, "protocol", ())).tolist()  # one name, or several
    return Path(store.path) if "file" in names else None


def _zarr_reader(stored: Any, folder: Path, packing: Packing | None = None) -> Reader:
    """Return the reader of a Zarr array, which reads whole shards, or whole chunks.

    Chunks that are plain files are read in any rows, without their neighbours.
    """
    return Reader(
        stored,
        unit=stored.shards or stored.chunks,
        plain=plain_chunks(stored, folder),
        last_first=stored.order == "C",
        packing=packing,
    )


def grown(
    shape: Sequence[int],
    unit: Sequence[int],
    itemsize: int,
    nbytes: int,
    *,
    last_first: bool,
) -> tuple[int, ...]:
    """Return chunks of about `nbytes` that are whole multiples of `unit`.

    One axis after the other is taken whole, the last one first if the file is row-major. The axis
    that does not fit is cut into even parts.

    Examples
    --------
    >>> grown((8, 100, 64), (1, 1, 1), 8, 64 * 30 * 8, last_first=True)
    (1, 25, 64)
    >>> grown((64, 64), (10, 10), 8, 64 * 20 * 8, last_first=True)
    (20, 64)
    """
    chunks = [max(1, min(u, n)) for u, n in zip(unit, shape, strict=True)]
    axes = range(len(shape))
    for axis in reversed(axes) if last_first else axes:
        room = nbytes // (math.prod(chunks) * itemsize)
        units = -(-shape[axis] // chunks[axis])
        if room < 2:
            break
        parts = -(-units // min(room, units)) if units else 1
        units_of_part = -(-units // parts)
        chunks[axis] = min(shape[axis], chunks[axis] * units_of_part) or 1
        if parts > 1:
            break
    return tuple(chunks)


def block_bytes(nbytes: int) -> int:
    """Return the default size of the blocks of an array of `nbytes`."""
    return min(LARGEST, max(SMALLEST, nbytes // FEWEST))


def array_folder(path: Path, component: str | None) -> Path:
    """Return the folder of the array within a Zarr group; the path itself without a component.

    >>> array_folder(Path("a.zarr"), "/deep/er/")
    PosixPath('a.zarr/deep/er')
    """
    return path / (component or "").strip("/")


def open_reader(path: Path, component: str | None = None, missing: float | None = None) -> Reader:
    """Return a reader of the array in a file.

    Parameters
    ----------
    path : Path
        ``.npy`` or HDF5 file, or folder or ``.zip`` file of a Zarr array or group (version 2 or 3).
    component : str, optional
        Array within a Zarr group or HDF5 file.
    missing : float, optional
        Value that replaces missing ones; by default reading these is an error.

    Raises
    ------
    ArgumentError
        If there is no such array.
    """
    refuse_absent(path)
    stored: Any
    name = str(path) if component is None else f"{component} in {path}"
    if path.is_dir() or path.suffix == ".zip":
        stored = _open_zarr(path, component)
        packing = packing_of(
            name,
            zarr_attributes(stored),
            stored.dtype,
            missing,
        )
        return _zarr_reader(stored, array_folder(path.resolve(), component), packing)
    if is_hdf5(path):
        stored = open_hdf5(path, component)
        packing = packing_of(
            name,
            stored.attributes,
            stored.dtype,
            missing,
        )
        return Reader(stored, stored.chunks, packing=packing)
    if component is not None:
        raise_invalid("component", component, "none: only Zarr groups and HDF5 files have them")
    try:
        stored = NpyFile(path.resolve())
    except UNREADABLE as error:
        need = f"a Zarr array, an HDF5 file, or an .npy file of numbers ({error})"
        raise_invalid("source", str(path), need)
    return Reader(stored, None, last_first=not stored.is_fortran_order)


def refuse_missing_chunks(path: Path, component: str | None = None) -> None:
    """Raise an error if parts of an array are missing: they would be read as the fill value.

    Raises
    ------
    ArgumentError
        For missing chunks of a Zarr array, and missing parts of a virtual HDF5 dataset or of one
        in plain files. It has their number and the name of the first.
    """
    if path.is_dir() or path.suffix == ".zip":
        refuse_missing(path, component, _open_zarr(path, component))
        return
    if not path.is_file() or not is_hdf5(path):
        return
    missing = open_hdf5(path, component).places().missing
    if missing:
        need = f"an array that is all there: {len(missing)} of the parts that it is put together"
        need += f" of are missing, the first of them {missing[0]}; {LEFT_OUT}"
        raise_invalid("source", str(path), need)


def source_files(path: Path, component: str | None = None) -> dict[str, Path]:
    """Return all files of an array's values by name.

    The name of a Zarr array's file is its path in the array's folder, also behind a link. A single
    file has an empty name; other files have their absolute paths.
    """
    root = path.resolve()
    files_by_name: dict[str, Path] = {}
    if root.is_file():
        files_by_name[""] = root
        places = open_hdf5(root, component).places() if is_hdf5(root) else None
        for file in places.files if places is not None else ():
            if file != root:
                files_by_name[str(file)] = file
        return files_by_name
    folder = array_folder(root, component)
    if folder.is_dir():
        for file in _files_below(folder):
            files_by_name[str(file.relative_to(folder))] = file
    return files_by_name


def _files_below(folder: Path, above: frozenset[Path] = frozenset()) -> Iterator[Path]:
    """Yield all files below a folder, also through links, which readers of the array follow.

    Links may form a cycle, so a folder in `above`, the folders on the way, is skipped.
    """
    own = folder.resolve()
    if own in above:
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from _files_below(path, above | {own})
        else:
            yield path


def _open_zarr(path: Path, component: str | None) -> Any:
    """Return the Zarr array in a folder or ``.zip`` file, or in the group that this holds."""
    zarr = zarr_package()
    store = _zarr_store(path)
    try:
        node = zarr.open(store, mode="r", path=component or "")
        if not isinstance(node, zarr.Group):
            return node
        reason = f"the group {path}"
    except UNREADABLE as error:
        if component is None:
            need = f"a Zarr array, an HDF5 file or an .npy file ({error})"
            raise_invalid("source", str(path), need)
        reason = str(path)
    names = ""
    with contextlib.suppress(*UNREADABLE):  # no group
        names = ": " + (", ".join(_variables(store)) or "none")
    raise_invalid("component", component, f"the name of an array in {reason}{names}")


def _zarr_store(path: Path) -> Any:
    """Return the store of a Zarr array or group in a folder or ``.zip`` file."""
    root = path.resolve()
    if root.is_dir():
        return local_store(root, True)
    return zarr_package().storage.ZipStore(root, mode="r")


def _variables(store: Any) -> list[str]:
    """Return the names of the arrays of a Zarr group that are not the coordinate of a dimension."""
    zarr = zarr_package()
    names = []
    for name, member in zarr.open_group(store, mode="r").members(max_depth=None):
        if not isinstance(member, zarr.Array):
            continue
        own_name = name.rpartition("/")[2]
        if list(_zarr_dims(member) or ()) != [own_name]:
            names.append(name)
    return sorted(names)


def only_variable(path: Path) -> str | None:
    """Return the name of the only array of a Zarr group that is not the coordinate of a dimension.

    It is None if there are others, and for other files. `open_reader` takes the only dataset of an
    HDF5 file itself.
    """
    if not path.is_dir() and not (path.suffix == ".zip" and path.is_file()):
        return None
    with contextlib.suppress(*UNREADABLE):  # no group
        names = _variables(_zarr_store(path))
        return names[0] if len(names) == 1 else None
    return None
