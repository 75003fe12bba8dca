"""Chunks of a local Zarr array that are not there: zarr reads them as the fill value.

A chunk, or a shard, is missing where it has no file. An inner chunk is missing where its shard's
index has no place for it. The index lies at the end of a shard, or at its beginning: for each inner
chunk where it begins and how many bytes it has, all ones for none, and then often a CRC.

Imports `errors`.
"""

import itertools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import refuse

__all__ = ["LEFT_OUT", "refuse_missing"]

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
    grid : tuple of int
        Inner chunks of a shard, by axis.
    order : str
        Of its numbers: ``"<"`` or ``">"``.
    crc : int
        Bytes that follow the numbers.
    first : bool
        Whether it lies at the beginning.
    """

    grid: tuple[int, ...]
    order: str
    crc: int
    first: bool

    def read(self, file: IO[bytes]) -> npt.NDArray[np.bool_]:
        """Whether each inner chunk is there; all are where the file is too short to tell.

        Zarr says what is wrong with such a file where it reads it.
        """
        nbytes = 16 * math.prod(self.grid)
        there = np.ones(self.grid, np.bool_)
        size = file.seek(0, os.SEEK_END)
        if size >= nbytes + self.crc:
            file.seek(0 if self.first else size - nbytes - self.crc)
            found = np.frombuffer(file.read(nbytes), f"{self.order}u8")
            there = (found.reshape(*self.grid, 2) != _NONE).any(axis=-1)
        return there


def refuse_missing(path: Path, component: str | None, array: Any) -> None:
    """Refuse a Zarr array some of whose chunks are not in its folder or ``.zip`` file.

    Raises
    ------
    ArgumentError
        Saying how many, and naming the first.
    """
    shape = array.shards or array.chunks
    grid = [-(-n // c) for n, c in zip(array.shape, shape, strict=True)]
    start = f"{component.strip('/')}/" if component else ""
    if path.is_dir():
        missing = list(_missing(array, grid, _Folder(path / start)))
    else:
        with ZipFile(path) as archive:
            missing = list(_missing(array, grid, _Archive(archive, start)))
    if missing:
        of = math.prod(-(-n // c) for n, c in zip(array.shape, array.chunks, strict=True))
        count = sum(number for number, _ in missing)
        refuse("source", str(path), f"an array whose chunks are all there: {count} of {of} are "
               f"missing, the first of them {missing[0][1]}; {LEFT_OUT}")


def _missing(
    array: Any, grid: list[int], files: "_Folder | _Archive"
) -> Iterator[tuple[int, str]]:
    """Each file of an array that lacks chunks: how many, and the name of the first."""
    index = _index_of(array)
    for block in itertools.product(*map(range, grid)):
        key = str(array.metadata.encode_chunk_key(block))
        inside = _inside(array, block)
        if not files.has(key):
            yield math.prod(inside), key
        elif index is not None:
            with files.open(key) as file:
                there = index.read(file)[tuple(slice(n) for n in inside)]
            if len(lost := np.argwhere(~there)):
                first = tuple(lost[0].tolist())
                yield len(lost), f"chunk {first} in the shard {key}"


def _inside(array: Any, block: tuple[int, ...]) -> tuple[int, ...]:
    """Chunks of a shard that are within the array, by axis; those beyond its end need not be."""
    shape = array.shards or array.chunks
    left = (min(s, n - i * s) for n, s, i in zip(array.shape, shape, block, strict=True))
    return tuple(-(-n // c) for n, c in zip(left, array.chunks, strict=True))


def _index_of(array: Any) -> _Index | None:
    """How the shards of an array are indexed; None without shards, or where we cannot read it."""
    codecs = [found for found in getattr(array.metadata, "codecs", ())
              if type(found).__name__ == "ShardingCodec"]
    if array.shards is None or len(codecs) != 1 or len(array.metadata.codecs) != 1:
        return None
    names = [type(found).__name__ for found in codecs[0].index_codecs]
    if names not in (["BytesCodec"], ["BytesCodec", "Crc32cCodec"]):
        return None
    order = str(getattr(codecs[0].index_codecs[0].endian, "value", "little"))
    grid = tuple(s // c for s, c in zip(array.shards, array.chunks, strict=True))
    first = str(codecs[0].index_location.value) == "start"
    return _Index(grid, ">" if order == "big" else "<", 4 * (len(names) - 1), first)


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
