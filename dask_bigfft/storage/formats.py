"""Zarr chunks that are files of nothing but their values, read and written without zarr.

A chunk that is neither compressed nor in a shard lies in its file as it lies in memory. Zarr reads
such a file by way of the page cache and two more copies in fresh memory. Here it goes from the disk
to where the block is, and the other way round; only the rows that are wanted are read.

Imports `files` and `memory`.
"""

import base64
import binascii
import errno
import itertools
import math
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Number
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, NoReturn, cast
from zipfile import BadZipFile, ZipFile

import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import refuse
from dask_bigfft.files import Underway, opened
from dask_bigfft.memory import lend

Array = npt.NDArray[Any]
Region = tuple[slice, ...]


#: Bytes below which a chunk that would be written in many runs is left to zarr, which copies it.
FEW_BYTES = 8 << 20


@dataclass(frozen=True)
class PlainChunks:
    """The chunks of an array, each a file of its values in row-major order.

    Parameters
    ----------
    folder : Path
        Of the array.
    array : Zarr array
        Says what the files are called.
    """

    folder: Path
    array: Any

    def path(self, chunk: tuple[int, ...]) -> Path:
        """File of a chunk."""
        return self.folder / str(self.array.metadata.encode_chunk_key(chunk))

    def read(self, region: Any) -> Array | None:
        """Return a region's values in lent memory.

        None where the index is not a slice with both ends for each axis.
        """
        if not is_region(region, self.array.shape):
            return None
        out = lend(tuple(s.stop - s.start for s in region), self.array.dtype)
        self.fill(region, out)
        return out

    def fill(self, region: Region, out: Array) -> None:
        """Read a region into an array of its shape and dtype; the fill value without a file."""
        pieces = list(chunk_pieces(region, self.array.chunks))
        alone = len(pieces) == 1  # of which the file itself is read in several parts at a time
        with Underway[None]() as calls:
            for chunk, inside, place in pieces:
                part = out[place]
                calls.start(0 if alone else part.nbytes, partial(self._read, chunk, inside, part))
            calls.results()

    def _read(self, chunk: tuple[int, ...], inside: Region, out: Array) -> None:
        shape, path = self.array.chunks, self.path(chunk)
        if not path.exists():  # as zarr has it
            out[...] = self.array.fill_value
            return
        with opened(path, os.O_RDONLY) as file:
            for begin, part in _runs(inside, shape, out):
                target = part if part.flags.c_contiguous else lend(part.shape, part.dtype)
                data, at = target.reshape(-1).view(np.uint8), begin * out.itemsize
                found = file.read(data, at)
                if found < len(data):
                    raise OSError(
                        errno.EIO, f"the chunk ends {len(data) - found} bytes early", str(path)
                    )
                if target is not part:
                    part[...] = target

    def write(self, region: Region, values: Array) -> bool:
        """Write a region that is one chunk; return False, and do nothing, if it is not.

        Of a chunk at the end of an axis that is all that the array has of it; 0 follows.
        """
        shape, ends = self.array.chunks, self.array.shape
        whole = all(
            s.start % n == 0 and s.stop == min(s.start + n, end)
            for s, n, end in zip(region, shape, ends, strict=True)
        )
        if not whole or values.dtype != self.array.dtype or not values.flags.c_contiguous:
            return False
        inside = tuple(slice(0, s.stop - s.start) for s in region)
        runs = list(_runs(inside, shape, values))
        clipped = values.shape != shape
        if clipped and self.array.fill_value != 0:
            return False
        if len(runs) > 1 and values.nbytes < FEW_BYTES:
            return False
        path = self.path(tuple(s.start // n for s, n in zip(region, shape, strict=True)))
        path.parent.mkdir(parents=True, exist_ok=True)
        nbytes = math.prod(shape) * values.itemsize
        with opened(path, os.O_RDWR | os.O_CREAT) as file:
            if hasattr(os, "posix_fallocate") and nbytes:
                os.posix_fallocate(file.handle, 0, nbytes)
            os.ftruncate(file.handle, nbytes)
            for begin, part in runs:
                file.write(part.reshape(-1).view(np.uint8), begin * values.itemsize)
        return True


def plain_chunks(array: Any, folder: Path) -> PlainChunks | None:
    """Return the chunks of a Zarr array of version 3 in a local folder, if they are plain files."""
    metadata = array.metadata
    codecs = [codec.to_dict() for codec in getattr(metadata, "codecs", ())]
    little: Any = {"name": "bytes", "configuration": {"endian": "little"}}
    plain = codecs in ([little], [{"name": "bytes"}])  # the latter of elements of one byte
    native = array.dtype.isnative and array.dtype.kind in "biufc" and array.dtype.str[0] in "<|"
    if not plain or not native or not folder.is_dir() or not math.prod(array.shape):
        return None
    return PlainChunks(folder, array) if array.ndim else None


def is_region(index: Any, shape: tuple[int, ...]) -> bool:
    """Whether an index is a slice with both ends, within an array, for each axis."""
    return (
        isinstance(index, tuple)
        and len(index) == len(shape)
        and all(
            isinstance(cut, slice)
            and cut.step in (None, 1)
            and cut.start is not None
            and cut.stop is not None
            and 0 <= cut.start <= cut.stop <= n
            for cut, n in zip(index, shape, strict=True)
        )
    )


def chunk_pieces(
    region: Region, shape: tuple[int, ...]
) -> Iterator[tuple[tuple[int, ...], Region, Region]]:
    """Chunks that a region meets: which, what of each, and where that is in the region.

    >>> [p for p in chunk_pieces((slice(3, 9),), (4,))]  # doctest: +NORMALIZE_WHITESPACE
    [((0,), (slice(3, 4, None),), (slice(0, 1, None),)),
     ((1,), (slice(0, 4, None),), (slice(1, 5, None),)),
     ((2,), (slice(0, 1, None),), (slice(5, 6, None),))]
    """
    axes = []
    for cut, n in zip(region, shape, strict=True):
        along = []
        for i in range(cut.start // n, -(-cut.stop // n)):
            low, high = max(cut.start, i * n), min(cut.stop, (i + 1) * n)
            along.append(
                (i, slice(low - i * n, high - i * n), slice(low - cut.start, high - cut.start))
            )
        axes.append(along)
    for chosen in itertools.product(*axes):
        yield tuple(c[0] for c in chosen), tuple(c[1] for c in chosen), tuple(c[2] for c in chosen)


def few_chunks(
    region: Region, shape: tuple[int, ...], most: int
) -> Iterator[tuple[Region, Region]]:
    """Parts of a region of at most `most` elements, or of one chunk, and where they are in it.

    >>> list(few_chunks((slice(3, 9),), (4,), 5))  # doctest: +NORMALIZE_WHITESPACE
    [((slice(3, 4, None),), (slice(0, 1, None),)),
     ((slice(4, 9, None),), (slice(1, 6, None),))]
    """
    parts = [region]
    while parts:
        part = parts.pop()
        between = [  # the chunk that begins in the middle of the first axis with more than one
            (axis, n * ((cut.start // n + -(-cut.stop // n)) // 2))
            for axis, (cut, n) in enumerate(zip(part, shape, strict=True))
            if cut.start // n + 1 < -(-cut.stop // n)
        ]
        if not between or math.prod(cut.stop - cut.start for cut in part) <= most:
            yield (
                part,
                tuple(
                    slice(cut.start - whole.start, cut.stop - whole.start)
                    for cut, whole in zip(part, region, strict=True)
                ),
            )
            continue
        axis, middle = between[0]
        for low, high in ((middle, part[axis].stop), (part[axis].start, middle)):
            parts.append((*part[:axis], slice(low, high), *part[axis + 1 :]))


def _runs(inside: Region, shape: tuple[int, ...], out: Array) -> Iterator[tuple[int, Array]]:
    """Parts of a chunk that lie in one run of its file: where, in elements, and their place."""
    whole = len(shape)
    while whole and inside[whole - 1] == slice(0, shape[whole - 1]):
        whole -= 1
    cut = max(0, whole - 1)  # from here on a run is whole, but for this dimension
    strides = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    first = inside[cut].start * strides[cut]
    for index in itertools.product(*(range(s.start, s.stop) for s in inside[:cut])):
        begin = first + sum(i * stride for i, stride in zip(index, strides, strict=False))
        place = tuple(i - s.start for i, s in zip(index, inside, strict=False))
        yield begin, out[place]


#: What is raised by NumPy, h5py and zarr where they read a file that is damaged.
UNREADABLE = (
    OSError,
    RuntimeError,
    ValueError,
    TypeError,
    KeyError,
    EOFError,
    BadZipFile,
    TokenError,
    zlib.error,
)


DType = np.dtype[Any]

#: Names of the attributes that say how a variable is packed.
ATTRIBUTES = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")


@dataclass(frozen=True)
class Packing:
    """Conversion of stored numbers to values.

    Parameters
    ----------
    variable : str
        Name of the variable, for errors.
    stored : dtype
        Of the stored numbers, after `_Unsigned`.
    dtype : dtype
        Of the values.
    scale, offset : number or None
        Factor of the stored numbers, and what is added to the product.
    fills : tuple of numbers
        Stored numbers that stand for missing values.
    masked : bool
        Whether values may be missing; NaN then stands for a missing value, too.
    missing : float or None
        Value that replaces missing ones; None refuses them.
    """

    variable: str
    stored: DType
    dtype: DType
    scale: Any
    offset: Any
    fills: tuple[Any, ...]
    masked: bool
    missing: float | None

    def decode(self, raw: Array, begin: tuple[int, ...]) -> Array:
        """Return the values of stored numbers, which are overwritten where the dtype is the same.

        Parameters
        ----------
        raw : array
            The stored numbers.
        begin : tuple of int
            Index of the first of them in the variable.

        Raises
        ------
        ArgumentError
            If values are missing and no number was given for them.
        """
        raw = raw.astype(self.stored, copy=False)
        absent = np.isnan(raw) if self.masked else np.zeros((), bool)
        for fill in self.fills:
            absent |= raw == fill
        found = bool(absent.any())
        if found and self.missing is None:
            self._refuse(absent, begin)
        values = raw.astype(self.dtype, copy=False)
        if found:
            values[absent] = np.nan  # which no scale makes too large
        if self.scale is not None:
            values *= self.scale
        if self.offset is not None:
            values += self.offset
        if found:
            values[absent] = self.missing
        return values

    def _refuse(self, absent: Array, begin: tuple[int, ...]) -> NoReturn:
        """Refuse missing values: how many of a block, and the index of the first."""
        first = np.unravel_index(int(absent.argmax()), absent.shape)
        index = tuple(int(i) + start for i, start in zip(first, begin, strict=True))
        refuse(
            "missing",
            "refuse",
            "a number that replaces missing values: "
            f"{np.count_nonzero(absent)} of {absent.size} values of {self.variable} that were read "
            f"together are missing, the first at index {index}",
        )


def packing_of(
    variable: str, attributes: Mapping[str, Any], dtype: DType, missing: float | None
) -> Packing | None:
    """Return how a variable is packed; None if its stored numbers are its values.

    Parameters
    ----------
    variable : str
        Its name, for errors.
    attributes : mapping
        Its attributes, of which `ATTRIBUTES` are looked at.
    dtype : dtype
        Of the stored numbers.
    missing : float or None
        Value that replaces missing ones; None refuses them.

    Raises
    ------
    ArgumentError
        If an attribute that has to be a number is none.

    Examples
    --------
    >>> packing_of("t", {"scale_factor": np.float32(0.1)}, np.dtype("i2"), None).dtype
    dtype('float32')
    >>> packing_of("t", {"units": "K"}, np.dtype("i2"), None)
    """
    if dtype.kind not in "iufc":
        return None
    numbers = {name: _numbers(variable, name, attributes.get(name)) for name in ATTRIBUTES[:-1]}
    scale, offset = (
        _single(variable, name, numbers.pop(name)) for name in ("scale_factor", "add_offset")
    )
    given = [np.asarray(fill).item() for found in numbers.values() for fill in found]
    stored = _with_sign(dtype, attributes.get("_Unsigned"))
    fills = tuple(_wrapped(fill, dtype, stored) for fill in given if fill == fill)  # not NaN
    masked = bool(given if dtype.kind in "fc" else fills)  # integers are never NaN
    packed, decoded = scale is not None or offset is not None, stored
    if packed and (fills or not masked):  # floating-point numbers beside NaN keep their dtype
        decoded = _scaled_dtype(stored, scale, offset)
    elif fills and stored.kind in "iu":
        decoded = np.dtype("f4" if stored.itemsize <= 2 else "f8")
    if not packed and not masked and stored == dtype:
        return None
    return Packing(variable, stored, decoded, scale, offset, fills, masked, missing)


def _numbers(variable: str, name: str, value: Any) -> list[Any]:
    """The numbers of an attribute, each in the type in which it was written; none without one."""
    if value is None:
        return []
    found = list(value) if isinstance(value, np.ndarray | list | tuple) else [value]
    if not all(isinstance(v, Number) and not isinstance(v, bool) for v in found):
        need = f"a variable whose attribute {name} is a number, not {value!r}"
        refuse("source", variable, need)
    return found


def _single(variable: str, name: str, found: list[Any]) -> Any:
    """The number of an attribute that holds one; None where it holds none."""
    if len(found) > 1:
        refuse("source", variable, f"a variable whose attribute {name} is one number, not {found}")
    return found[0] if found else None


def _with_sign(dtype: DType, unsigned: Any) -> DType:
    """The dtype of integers whose attribute `_Unsigned` says that they have another sign."""
    other = {("i", "true"): "u", ("u", "false"): "i"}.get((dtype.kind, str(unsigned)))
    return dtype if other is None else np.dtype(f"{other}{dtype.itemsize}")


def _wrapped(fill: Any, dtype: DType, stored: DType) -> Any:
    """A fill value of integers of one dtype as it is where they are read as another.

    >>> _wrapped(-1, np.dtype("i1"), np.dtype("u1"))
    255
    """
    if stored == dtype or fill % 1:  # no integer
        return fill
    return np.array(int(fill)).astype(dtype).astype(stored).item()


def _scaled_dtype(dtype: DType, scale: Any, offset: Any) -> DType:
    """The dtype of scaled numbers, as xarray chooses it; float64 where it would take integers."""
    types = [np.dtype(type(number)) for number in (scale, offset) if number is not None]
    found = types[0]
    if offset is not None and not (len(types) == 2 and types[0] == types[1]):
        found = np.dtype("f8")  # an offset may need all of its digits
    elif offset is not None and dtype.kind in "iu" and dtype.itemsize == 4:
        found = np.dtype("f8")
    return found if found.kind in "fc" else np.dtype("f8")


def zarr_attributes(array: Any) -> dict[str, Any]:
    """Return the attributes of a Zarr array as they would be in a NetCDF file.

    xarray writes the fill value of a variable as that of the array where the format is version 2,
    and else as an attribute, for floating-point numbers in base64. An array of version 2 that has
    no names of dimensions was not written by xarray: its fill value is then an ordinary value.
    """
    found = dict(array.attrs)
    if array.metadata.zarr_format == 2:
        if "_ARRAY_DIMENSIONS" in found and array.fill_value is not None:
            found["_FillValue"] = array.fill_value
    elif "_FillValue" in found and array.dtype.kind in "fc":
        found["_FillValue"] = _from_base64(found["_FillValue"])
    return found


def _from_base64(value: Any) -> Any:
    """A floating-point number that xarray has written, or two for a complex one; others as is.

    >>> _from_base64("AAAAAAAA8D8="), _from_base64(["AAAAAAAA8D8=", "AAAAAAAAAAA="])
    (1.0, (1+0j))
    """
    texts = value if isinstance(value, list) else [value]
    try:
        parts = [struct.unpack("<d", base64.standard_b64decode(text))[0] for text in texts]
    except (TypeError, binascii.Error, struct.error):
        return value
    return complex(*parts) if isinstance(value, list) else cast("float", parts[0])


Shape = tuple[int, ...]

#: What to do where they are missing because whoever wrote them has left them out.
LEFT_OUT = (
    "where they were left out because they hold nothing but the fill value, missing_chunks='fill' "
    "(--missing-chunks fill) reads them so"
)

#: What an index says of an inner chunk that is not there.
_NONE = np.uint64(2**64 - 1)


@dataclass(frozen=True)
class _Index:
    """Where the index of a shard lies, and what it is of.

    Parameters
    ----------
    shape : tuple of int
        Of an inner chunk.
    grid : tuple of int
        Inner chunks of a shard, by axis.
    order : str
        Of its numbers: ``"<"`` or ``">"``.
    crc : int
        Bytes that follow the numbers.
    first : bool
        Whether it lies at the beginning.
    inner : _Index, optional
        That of inner chunks which are shards.
    """

    shape: Shape
    grid: Shape
    order: str
    crc: int
    first: bool
    inner: "_Index | None"

    @property
    def smallest(self) -> Shape:
        """Shape of the chunks that are no shards."""
        return self.shape if self.inner is None else self.inner.smallest

    def lost(
        self, file: IO[bytes], begin: int, nbytes: int, extent: Shape
    ) -> Iterator[tuple[int, str]]:
        """What a shard lacks: how many of the smallest chunks, and the name of the first.

        Nothing where it is too short to tell: Zarr says what is wrong with it where it reads it.

        Parameters
        ----------
        file : file
            In which the shard lies.
        begin, nbytes : int
            Where it begins, and its bytes.
        extent : tuple of int
            Elements of it that are within the array; chunks beyond its end need not be there.
        """
        places = self._read(file, begin, nbytes)
        if places is None:
            return
        places = places[tuple(map(slice, _counts(extent, self.shape)))]
        there = (places != _NONE).any(axis=-1)
        for place in _indices(~there):
            part = _part(place, self.shape, extent)
            yield math.prod(_counts(part, self.smallest)), f"chunk {place}"
        if self.inner is None:
            return
        for place in _indices(there):
            offset, length = places[place].tolist()
            if offset + length <= nbytes:
                part = _part(place, self.shape, extent)
                for count, name in self.inner.lost(file, begin + offset, length, part):
                    yield count, f"{name} of chunk {place}"

    def _read(self, file: IO[bytes], begin: int, nbytes: int) -> npt.NDArray[np.uint64] | None:
        """Where each inner chunk begins in a shard, and its bytes."""
        size = 16 * math.prod(self.grid)
        if nbytes < size + self.crc:
            return None
        file.seek(begin if self.first else begin + nbytes - size - self.crc)
        found = np.frombuffer(file.read(size), f"{self.order}u8")
        return found.reshape(*self.grid, 2)


def _indices(chosen: npt.NDArray[np.bool_]) -> Iterator[Shape]:
    """Where an array is true."""
    return map(tuple, np.argwhere(chosen).tolist())


def _part(place: Shape, shape: Shape, extent: Shape) -> Shape:
    """Shape of what a chunk has of an array, or of the part of one that lies in a shard."""
    return tuple(min(c, n - i * c) for i, c, n in zip(place, shape, extent, strict=True))


def _counts(extent: Shape, shape: Shape) -> Shape:
    """Chunks of a shape that so many elements lie in, by axis."""
    return tuple(-(-n // c) for n, c in zip(extent, shape, strict=True))


def refuse_missing(path: Path, component: str | None, array: Any) -> None:
    """Refuse a Zarr array some of whose chunks are not in its folder or ``.zip`` file.

    Raises
    ------
    ArgumentError
        Saying how many, and naming the first.
    """
    name = (component or "").strip("/")
    start = f"{name}/" if name else ""
    index = _index_of(array)
    if path.is_dir():
        missing = list(_missing(array, index, _Folder(path / start)))
    else:
        with ZipFile(path) as archive:
            missing = list(_missing(array, index, _Archive(archive, start)))
    if missing:
        of = math.prod(_counts(array.shape, _smallest(array, index)))
        count = sum(number for number, _ in missing)
        refuse(
            "source",
            str(path),
            f"an array whose chunks are all there: {count} of {of} are "
            f"missing, the first of them {missing[0][1]}; {LEFT_OUT}",
        )


def _smallest(array: Any, index: _Index | None) -> Shape:
    """Shape of the smallest chunks that are looked for."""
    return tuple(array.chunks) if index is None else index.smallest


def _missing(
    array: Any, index: _Index | None, files: "_Folder | _Archive"
) -> Iterator[tuple[int, str]]:
    """What an array lacks: how many chunks each time, and the name of the first."""
    shape = array.shards or array.chunks
    for block in itertools.product(*map(range, _counts(array.shape, shape))):
        key = str(array.metadata.encode_chunk_key(block))
        extent = _part(block, shape, array.shape)
        if not files.has(key):
            yield math.prod(_counts(extent, _smallest(array, index))), key
        elif index is not None:
            with files.open(key) as file:
                nbytes = file.seek(0, os.SEEK_END)
                for count, name in index.lost(file, 0, nbytes, extent):
                    yield count, f"{name} in the shard {key}"


def _index_of(array: Any) -> _Index | None:
    """How the shards of an array are indexed; None without shards, or where we cannot read it."""
    if array.shards is None:
        return None
    return _indexed(array.shards, [codec.to_dict() for codec in array.metadata.codecs])


def _indexed(shape: Shape, codecs: Sequence[Any]) -> _Index | None:
    """Return the index of chunks of a shape, None unless they are shards and nothing else.

    Codecs are as `zarr.json` has them: their objects differ between versions of zarr.
    """
    if [codec["name"] for codec in codecs] != ["sharding_indexed"]:
        return None
    sharding = codecs[0]["configuration"]
    first, *others = sharding["index_codecs"]
    if first["name"] != "bytes" or [codec["name"] for codec in others] not in ([], ["crc32c"]):
        return None
    order = first.get("configuration", {}).get("endian", "little")
    inner = tuple(sharding["chunk_shape"])
    return _Index(
        inner,
        _counts(shape, inner),
        ">" if order == "big" else "<",
        4 * len(others),
        sharding["index_location"] == "start",
        _indexed(inner, sharding["codecs"]),
    )


class _Folder:
    """Files of an array in a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def has(self, key: str) -> bool:
        """Whether there is a file."""
        return (self.path / key).is_file()

    def open(self, key: str) -> IO[bytes]:
        """Open a file."""
        return (self.path / key).open("rb")


class _Archive:
    """Files of an array in a ``.zip`` file."""

    def __init__(self, archive: ZipFile, start: str) -> None:
        self.archive, self.start, self.names = archive, start, set(archive.namelist())

    def has(self, key: str) -> bool:
        """Whether there is a file."""
        return self.start + key in self.names

    def open(self, key: str) -> IO[bytes]:
        """Open a file."""
        return self.archive.open(self.start + key)
