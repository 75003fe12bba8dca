"""Plain Zarr chunks without zarr, packed variables, and missing chunks.

The file of a chunk that is neither compressed nor in a shard holds its values in row-major order.
Zarr reads such a file through the page cache, with two more copies in fresh memory. This module
reads the wanted rows straight into the block, and writes a block straight to its file.
"""

import base64
import errno
import itertools
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from numbers import Number
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, NoReturn
from zipfile import BadZipFile
from zipfile import Path as ZipPath

import numpy as np

from dask_bigfft.arrays import Array, Region
from dask_bigfft.errors import raise_invalid
from dask_bigfft.files import URL, Underway, opened
from dask_bigfft.memory import allocate
from dask_bigfft.system import preallocate

DType = np.dtype[Any]
Shape = tuple[int, ...]

#: Bytes of a chunk that zarr pads and copies in the time of a call, measured 2 to 5 KiB. Zarr
#: writes chunks whose values have more runs.
RUN_NBYTES = 4 << 10


@dataclass(frozen=True)
class PlainChunks:
    """Chunks of an array, each a file of its values in row-major order.

    Parameters
    ----------
    folder : Path
        Folder of the array.
    array : Zarr array
        The array, which names the files.
    """

    folder: Path
    array: Any

    @property
    def chunk_nbytes(self) -> int:
        """Size in bytes of a whole chunk, also at the end of an axis."""
        return int(math.prod(self.array.chunks) * self.array.dtype.itemsize)

    def path(self, chunk: Shape) -> Path:
        """Return the file of a chunk."""
        return self.folder / str(self.array.metadata.encode_chunk_key(chunk))

    def fill(self, region: Region, out: Array) -> None:
        """Read a region into an array of its shape and dtype.

        Chunks without a file hold the fill value.
        """
        pieces = list(few_chunks(region, self.array.chunks, 0)) if out.size else []
        alone = len(pieces) == 1  # its file is read in several parts at a time
        with Underway[None]() as calls:
            for piece, place in pieces:
                part = out[place]
                calls.start(0 if alone else part.nbytes, partial(self._read, piece, part))
            calls.results()

    def _read(self, region: Region, out: Array) -> None:
        """Read a region of one chunk.

        Raises
        ------
        OSError
            If the file has another size than the metadata imply. One of both is then damaged.
        """
        shape = self.array.chunks
        path = self.path(chunk_of(region, shape))
        if not path.exists():  # as zarr does
            out[...] = self.array.fill_value
            return
        region_in_chunk = []
        for cut, n, count in zip(region, shape, out.shape, strict=True):
            start = cut.start % n
            region_in_chunk.append(slice(start, start + count))
        with opened(path, os.O_RDONLY) as file:
            nbytes = os.fstat(file.handle).st_size
            if nbytes != self.chunk_nbytes:
                raise self._size_error(path, nbytes)
            for begin, part in _runs_of_region(tuple(region_in_chunk), shape, out):
                is_direct = part.flags.c_contiguous
                target = part if is_direct else allocate(part.shape, part.dtype)
                data = target.reshape(-1).view(np.uint8)
                read_nbytes = file.read(data, begin * out.itemsize)
                if read_nbytes < len(data):  # the file was cut since it was opened
                    raise self._size_error(path, os.fstat(file.handle).st_size)
                if not is_direct:
                    part[...] = target

    def _size_error(self, path: Path, nbytes: int) -> OSError:
        """Return the error for the file of a chunk that has another size than a chunk."""
        chunk = path.relative_to(self.folder)
        text = f"the chunk {chunk} has {nbytes} bytes, and {self.chunk_nbytes} by the metadata "
        text += f"(chunks of {self.array.chunks}, {self.array.dtype}), so one of them is damaged"
        return OSError(errno.EIO, text, str(path))

    def write(self, region: Region, values: Array) -> bool:
        """Write a region that is one whole chunk; return False and write nothing otherwise.

        A chunk at the end of an axis may be clipped to the array. Its file is padded with zeros.
        """
        shape = self.array.chunks
        dtype = self.array.dtype
        chunk = chunk_of(region, shape)
        is_whole = region == chunk_region(chunk, shape, self.array.shape)
        if not is_whole or values.dtype != dtype or not values.flags.c_contiguous:
            return False
        whole_region = tuple(slice(0, n) for n in values.shape)
        runs = list(_runs_of_region(whole_region, shape, values))
        zero_follows = values.shape == shape or self.array.fill_value == 0
        has_many_runs = len(runs) > 1 and self.chunk_nbytes < RUN_NBYTES * len(runs)
        if not zero_follows or has_many_runs:
            return False
        path = self.path(chunk)
        path.parent.mkdir(parents=True, exist_ok=True)
        with opened(path, os.O_RDWR | os.O_CREAT) as file:
            preallocate(file.handle, self.chunk_nbytes)
            for begin, part in runs:
                data = part.reshape(-1).view(np.uint8)
                file.write(data, begin * values.itemsize)
        return True


def plain_chunks(array: Any, folder: Path) -> PlainChunks | None:
    """Return the chunks of a Zarr array in a local folder if they are plain files, else None."""
    if not folder.is_dir() or not array.ndim or not math.prod(array.shape):
        return None
    dtype = array.dtype
    is_little_endian = dtype.isnative and dtype.str[0] in "<|"
    if not is_little_endian or dtype.kind not in "biufc":
        return None
    codecs = [codec.to_dict() for codec in getattr(array.metadata, "codecs", ())]
    little_endian: Any = {"name": "bytes", "configuration": {"endian": "little"}}
    single_bytes: Any = {"name": "bytes"}  # elements of one byte have no order
    if codecs not in ([little_endian], [single_bytes]):
        return None
    return PlainChunks(folder, array)


def is_region(index: Any, shape: Shape) -> bool:
    """Return True if an index has a slice with both ends, within the array, for each axis."""
    if not isinstance(index, tuple) or len(index) != len(shape):
        return False
    return all(
        isinstance(cut, slice)
        and cut.step in (None, 1)
        and None not in (cut.start, cut.stop)
        and 0 <= cut.start <= cut.stop <= n
        for cut, n in zip(index, shape, strict=True)
    )


def chunk_of(region: Region, shape: Shape) -> Shape:
    """Return the index of the chunk that a region begins in."""
    return tuple(cut.start // n for cut, n in zip(region, shape, strict=True))


def chunk_region(chunk: Shape, shape: Shape, extent: Shape) -> Region:
    """Return the region of a chunk in an array, clipped to the array."""
    region = []
    for number, length, size in zip(
        chunk,
        shape,
        extent,
        strict=True,
    ):
        start = number * length
        region.append(slice(start, min(start + length, size)))
    return tuple(region)


def few_chunks(
    region: Region,
    shape: Shape,
    most: int,
    start: Shape | None = None,
) -> Iterator[tuple[Region, Region]]:
    """Yield parts of a region, of at most `most` elements or one chunk, and their places in it.

    `start` is the first index of the whole region. The default is the start of this region.

    >>> list(few_chunks((slice(3, 9),), (4,), 5))  # doctest: +NORMALIZE_WHITESPACE
    [((slice(3, 4, None),), (slice(0, 1, None),)),
     ((slice(4, 9, None),), (slice(1, 6, None),))]
    """
    if start is None:
        start = tuple(cut.start for cut in region)
    if math.prod(cut.stop - cut.start for cut in region) > most:
        for axis, (cut, n) in enumerate(zip(region, shape, strict=True)):
            first_chunk = cut.start // n
            end_chunk = -(-cut.stop // n)
            middle = n * ((first_chunk + end_chunk) // 2)
            if middle > cut.start:  # the first axis with several chunks
                for half in (slice(cut.start, middle), slice(middle, cut.stop)):
                    part = (*region[:axis], half, *region[axis + 1 :])
                    yield from few_chunks(
                        part,
                        shape,
                        most,
                        start,
                    )
                return
    place = []
    for cut, begin in zip(region, start, strict=True):
        place.append(slice(cut.start - begin, cut.stop - begin))
    yield region, tuple(place)


def _runs_of_region(region: Region, shape: Shape, out: Array) -> Iterator[tuple[int, Array]]:
    """Yield contiguous runs of a chunk's file: offset in elements, and part of `out`.

    Parameters
    ----------
    region : tuple of slice
        Part of the chunk.
    shape : tuple of int
        Shape of a whole chunk.
    out : ndarray
        Array of the part.

    Examples
    --------
    >>> out = np.zeros((2, 2, 4))
    >>> region = (slice(1, 3), slice(0, 2), slice(0, 4))
    >>> [(begin, part.shape) for begin, part in _runs_of_region(region, (3, 5, 4), out)]
    [(20, (2, 4)), (40, (2, 4))]
    """
    # The region has all values of the dimensions from `dims` on.
    dims = len(shape)
    while dims and region[dims - 1] == slice(0, shape[dims - 1]):
        dims -= 1
    # A run is contiguous if it has one value of each dimension before the last cut one.
    outer_dims = max(0, dims - 1)
    starts = [cut.start for cut in region]
    for place in np.ndindex(out.shape[:outer_dims]):
        first = list(starts)  # index of the first value of the run in the chunk
        for dim, number in enumerate(place):
            first[dim] += number
        yield int(np.ravel_multi_index(first, shape)), out[place]


#: Exceptions that NumPy, h5py and zarr raise for a damaged file.
UNREADABLE: tuple[type[Exception], ...] = (OSError, RuntimeError, ValueError, TypeError, KeyError)
UNREADABLE += (EOFError, BadZipFile, TokenError, zlib.error)

#: Names of the attributes that describe how a variable is packed.
ATTRIBUTES = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")


@dataclass(frozen=True)
class Packing:
    """Conversion of stored numbers to values.

    Parameters
    ----------
    variable : str
        Name of the variable, for errors.
    stored : dtype
        Type of the stored numbers, after `_Unsigned` is applied.
    dtype : dtype
        Type of the values.
    scale, offset : number or None
        Factor of the stored numbers, and summand of the product.
    fills : tuple of numbers
        Stored numbers that mark missing values.
    masked : bool
        True if values may be missing. NaN then marks a missing value, too.
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

    def decode(self, raw: Array, begin: Shape) -> Array:
        """Return the values of stored numbers. If the dtype is the same they are overwritten.

        Parameters
        ----------
        raw : array
            The stored numbers.
        begin : tuple of int
            Index of the first number in the variable.

        Raises
        ------
        ArgumentError
            If values are missing and no replacement was given.
        """
        raw = raw.astype(self.stored, copy=False)
        absent = np.isnan(raw) if self.masked else np.zeros((), bool)
        for fill in self.fills:
            absent |= raw == fill
        has_absent = bool(absent.any())
        if has_absent and self.missing is None:
            self._refuse(absent, begin)
        values = raw.astype(self.dtype, copy=False)
        if has_absent:
            values[absent] = np.nan  # no scale makes NaN overflow
        if self.scale is not None:
            values *= self.scale
        if self.offset is not None:
            values += self.offset
        if has_absent:
            values[absent] = self.missing
        return values

    def _refuse(self, absent: Array, begin: Shape) -> NoReturn:
        """Raise an error for missing values, with their number and the index of the first."""
        place = np.unravel_index(int(absent.argmax()), absent.shape)
        first = tuple(int(i) + start for i, start in zip(place, begin, strict=True))
        count = np.count_nonzero(absent)
        need = f"a number that replaces missing values: {count} of {absent.size} values of "
        need += f"{self.variable} that were read together are missing"
        raise_invalid("missing", "refuse", f"{need}, the first at index {first}")


def packing_of(
    variable: str,
    attributes: Mapping[str, Any],
    dtype: DType,
    missing: float | None,
) -> Packing | None:
    """Return the packing of a variable; None if its stored numbers are its values.

    Parameters
    ----------
    variable : str
        Name of the variable, for errors.
    attributes : mapping
        Attributes of the variable; those in `ATTRIBUTES` count.
    dtype : dtype
        Type of the stored numbers.
    missing : float or None
        Value that replaces missing ones; None refuses them.

    Raises
    ------
    ArgumentError
        If an attribute that has to be a number is something else.

    Examples
    --------
    >>> packing_of("t", {"scale_factor": np.float32(0.1)}, np.dtype("i2"), None).dtype
    dtype('float32')
    >>> packing_of("t", {"units": "K"}, np.dtype("i2"), None)
    """
    if dtype.kind not in "iufc":
        return None
    numbers: dict[str, list[Any]] = {}
    for name in ATTRIBUTES[:-1]:
        numbers[name] = _numbers(variable, name, attributes.get(name))
    scale = _single(variable, "scale_factor", numbers["scale_factor"])
    offset = _single(variable, "add_offset", numbers["add_offset"])
    stored = _declared_integers(dtype, attributes.get("_Unsigned"))
    marks = numbers["_FillValue"] + numbers["missing_value"]
    fills = []
    for mark in marks:
        fill = np.asarray(mark).item()
        if fill == fill:  # not NaN
            fills.append(_wrapped(fill, dtype, stored))
    # A mark that is NaN means that values may be NaN, which integers never are.
    masked = bool(marks if dtype.kind in "fc" else fills)
    if scale is None and offset is None and not masked and stored == dtype:
        return None
    decoded = _decoded_dtype(
        stored,
        scale,
        offset,
        fills,
        masked,
    )
    return Packing(
        variable,
        stored=stored,
        dtype=decoded,
        scale=scale,
        offset=offset,
        fills=tuple(fills),
        masked=masked,
        missing=missing,
    )


def _single(variable: str, name: str, numbers: Sequence[Any]) -> Any:
    """Return the number of an attribute, or None; an error if it has several."""
    if len(numbers) > 1:
        need = f"a variable whose attribute {name} is one number, not {numbers}"
        raise_invalid("source", variable, need)
    return numbers[0] if numbers else None


def _declared_integers(dtype: DType, unsigned: Any) -> DType:
    """Return the dtype of integers that the attribute `_Unsigned` declares with another sign."""
    if dtype.kind == "i" and str(unsigned) == "true":
        return np.dtype(f"u{dtype.itemsize}")
    if dtype.kind == "u" and str(unsigned) == "false":
        return np.dtype(f"i{dtype.itemsize}")
    return dtype


def _decoded_dtype(
    stored: DType,
    scale: Any,
    offset: Any,
    fills: Sequence[Any],
    masked: bool,
) -> DType:
    """Return the dtype of a variable's values, see `Packing` for the parameters."""
    if scale is not None or offset is not None:
        if masked and not fills:  # floating-point numbers beside NaN keep their dtype
            return stored
        return _scaled_dtype(stored, scale, offset)
    if fills and stored.kind in "iu":
        return np.dtype("f4" if stored.itemsize <= 2 else "f8")
    return stored


def _numbers(variable: str, name: str, value: Any) -> list[Any]:
    """Return the numbers of an attribute in their own types; an empty list for None."""
    if value is None:
        return []
    numbers = list(value) if isinstance(value, np.ndarray | list | tuple) else [value]
    if not all(isinstance(v, Number) and not isinstance(v, bool) for v in numbers):
        need = f"a variable whose attribute {name} is a number, not {value!r}"
        raise_invalid("source", variable, need)
    return numbers


def _wrapped(fill: Any, dtype: DType, stored: DType) -> Any:
    """Return a fill value after the bits of its dtype are read as another integer dtype.

    >>> _wrapped(-1, np.dtype("i1"), np.dtype("u1"))
    255
    """
    is_integer = fill % 1 == 0
    if stored == dtype or not is_integer:
        return fill
    number = np.array(int(fill)).astype(dtype)
    return number.astype(stored).item()


def _scaled_dtype(dtype: DType, scale: Any, offset: Any) -> DType:
    """Return the dtype that xarray chooses for scaled numbers; float64 if that is an integer."""
    double = np.dtype("f8")
    number = offset if scale is None else scale
    number_dtype = np.dtype(type(number))
    if offset is not None:
        is_wide = dtype.kind in "iu" and dtype.itemsize == 4
        if scale is None or is_wide or np.dtype(type(offset)) != number_dtype:
            return double  # the sum may need all digits
    return number_dtype if number_dtype.kind in "fc" else double


def zarr_attributes(array: Any) -> dict[str, Any]:
    """Return the attributes of a Zarr array in the form that a NetCDF file has.

    In Zarr version 2, xarray stores the fill value of a variable as that of the array. In version 3
    it is an attribute; floating-point numbers are encoded in base64. A version 2 array without
    names of dimensions was not written by xarray, and its fill value is an ordinary value.
    """
    attributes = dict(array.attrs)
    if array.metadata.zarr_format == 2:
        if "_ARRAY_DIMENSIONS" in attributes and array.fill_value is not None:
            attributes["_FillValue"] = array.fill_value
    elif "_FillValue" in attributes and array.dtype.kind in "fc":
        attributes["_FillValue"] = _from_base64(attributes["_FillValue"])
    return attributes


def _from_base64(value: Any) -> Any:
    """Return a number that xarray has encoded, from two texts if it is complex; others unchanged.

    >>> _from_base64("AAAAAAAA8D8="), _from_base64(["AAAAAAAA8D8=", "AAAAAAAAAAA="])
    (1.0, (1+0j))
    """
    is_complex = isinstance(value, list)
    texts = value if is_complex else [value]
    try:
        data = b"".join(map(base64.standard_b64decode, texts))
        return np.frombuffer(data, "<c16" if is_complex else "<f8").item()
    except (TypeError, ValueError):
        return value


#: Advice for chunks that the writer left out on purpose.
LEFT_OUT = (
    "where they were left out because they hold nothing but the fill value, missing_chunks='fill' "
    "(--missing-chunks fill) reads them so"
)

#: Mark of a missing inner chunk in the index of a shard.
_NONE = np.uint64(2**64 - 1)


def package(name: str, what: str, extra: str) -> Any:
    """Return an optional package."""
    try:
        return import_module(name)
    except ImportError as error:
        text = f"{what} need the package {name}: pip install 'dask-bigfft[{extra}]'"
        raise ImportError(text) from error


def refuse_absent(source: Path) -> None:
    """Raise an error for a path without a file or folder."""
    if not source.exists():
        hint = "; only local paths are read" if URL.match(str(source)) else ""
        raise_invalid("source", str(source), f"a file or folder that exists{hint}")


def refuse_missing(path: Path, component: str | None, array: Any) -> None:
    """Raise an error if chunks of a Zarr array are missing in its folder or ``.zip`` file.

    Raises
    ------
    ArgumentError
        With the number of missing chunks and the name of the first.
    """
    codecs = [codec.to_dict() for codec in getattr(array.metadata, "codecs", ())]
    levels = list(_levels(codecs))
    smallest = tuple(levels[-1]["chunk_shape"] if levels else array.chunks)
    folder: Any = ZipPath(path) if path.is_file() else path
    name = (component or "").strip("/")
    if name:
        folder = folder / name
    missing = list(
        _missing_chunks(
            array,
            folder,
            levels,
            smallest,
        )
    )
    if missing:
        total = math.prod(_counts(array.shape, smallest))
        count = sum(n for n, _ in missing)
        need = f"an array whose chunks are all there: {count} of {total} are missing, the first of"
        raise_invalid("source", str(path), f"{need} them {missing[0][1]}; {LEFT_OUT}")


def _missing_chunks(
    array: Any,
    folder: Any,
    levels: Sequence[Any],
    smallest: Shape,
) -> Iterator[tuple[int, str]]:
    """Yield the number of smallest chunks, and the name, of each missing file or inner chunk."""
    shape = array.shards or array.chunks
    for block in itertools.product(*map(range, _counts(array.shape, shape))):
        key = str(array.metadata.encode_chunk_key(block))
        extent = _part(block, shape, array.shape)
        if not (folder / key).is_file():
            yield math.prod(_counts(extent, smallest)), key
        elif levels:
            with (folder / key).open("rb") as file:
                nbytes = file.seek(0, os.SEEK_END)
                for count, chunk in _missing_in_shard(
                    file,
                    0,
                    nbytes,
                    levels,
                    shape,
                    extent,
                ):
                    yield count, f"{chunk} in the shard {key}"


def _levels(codecs: Sequence[Any]) -> Iterator[Any]:
    """Yield the sharding configuration of each level of shards, the outermost first.

    Codecs have the form of `zarr.json`, because their objects differ between versions of zarr.
    """
    if [codec["name"] for codec in codecs] != ["sharding_indexed"]:
        return
    sharding = codecs[0]["configuration"]
    index_codecs = [codec["name"] for codec in sharding["index_codecs"]]
    if index_codecs in (["bytes"], ["bytes", "crc32c"]):
        yield sharding
        yield from _levels(sharding["codecs"])


def _missing_in_shard(
    file: IO[bytes],
    begin: int,
    nbytes: int,
    levels: Sequence[Any],
    shard: Shape,
    part: Shape,
) -> Iterator[tuple[int, str]]:
    """Yield the number of smallest chunks, and the name, of each missing chunk of a shard.

    A shard that is too short for its index yields nothing: zarr reports it when it is read.
    Chunks outside of the array do not count.

    Parameters
    ----------
    file : file
        Opened file that contains the shard.
    begin, nbytes : int
        First byte of the shard in the file, and its number of bytes.
    levels : sequence of dict
        Sharding configurations, that of the shard first, then those of shards inside of it.
    shard : tuple of int
        Shape of the whole shard.
    part : tuple of int
        Shape of its part that is inside of the array, smaller at the array's ends.
    """
    sharding = levels[0]
    inner_levels = levels[1:]
    smallest = tuple(levels[-1]["chunk_shape"])
    shape = tuple(sharding["chunk_shape"])
    places = _shard_index(
        file,
        begin,
        nbytes,
        sharding,
        _counts(shard, shape),
    )
    if places is None:
        return
    places = places[tuple(map(slice, _counts(part, shape)))]
    absent = (places == _NONE).all(axis=-1)
    for place in map(tuple, np.argwhere(absent).tolist()):
        chunk = _part(place, shape, part)
        yield math.prod(_counts(chunk, smallest)), f"chunk {place}"
    if not inner_levels:
        return
    for place in map(tuple, np.argwhere(~absent).tolist()):
        offset, length = places[place].tolist()
        if offset + length > nbytes:
            continue
        chunk = _part(place, shape, part)
        for count, name in _missing_in_shard(
            file,
            begin + offset,
            length,
            inner_levels,
            shape,
            chunk,
        ):
            yield count, f"{name} of chunk {place}"


def _shard_index(
    file: IO[bytes],
    begin: int,
    nbytes: int,
    sharding: Mapping[str, Any],
    grid: Shape,
) -> Array | None:
    """Return offset and length of each chunk in a shard of `nbytes`; None if it is too short."""
    first, *others = sharding["index_codecs"]
    index_nbytes = 16 * math.prod(grid)
    crc_nbytes = 4 * len(others)
    if nbytes < index_nbytes + crc_nbytes:
        return None
    if sharding["index_location"] == "start":
        file.seek(begin)
    else:
        file.seek(begin + nbytes - index_nbytes - crc_nbytes)
    order = ">" if first.get("configuration", {}).get("endian") == "big" else "<"
    return np.frombuffer(file.read(index_nbytes), f"{order}u8").reshape(*grid, 2)


def _part(place: Shape, shape: Shape, extent: Shape) -> Shape:
    """Return the shape of a chunk, clipped to an array or to its part in a shard."""
    lengths = []
    for number, length, size in zip(
        place,
        shape,
        extent,
        strict=True,
    ):
        lengths.append(min(length, size - number * length))
    return tuple(lengths)


def _counts(extent: Shape, shape: Shape) -> Shape:
    """Return the number of chunks along each axis of an extent."""
    return tuple(-(-n // c) for n, c in zip(extent, shape, strict=True))
