"""Chunks of a local Zarr array that are not there: zarr reads them as the fill value.

A chunk, or a shard, is missing where it has no file. An inner chunk is missing where its shard's
index has no place for it. The index lies at the end of a shard, or at its beginning: for each inner
chunk where it begins and how many bytes it has, all ones for none, and then often a CRC. An inner
chunk may be a shard itself.

Imports `errors`.
"""

import itertools
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import refuse

__all__ = ["LEFT_OUT", "refuse_missing"]

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
