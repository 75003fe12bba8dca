"""Zarr chunks that are files of nothing but their values, read and written without zarr.

A chunk that is neither compressed nor in a shard lies in its file as it lies in memory. Zarr reads
such a file by way of the page cache and two more copies in fresh memory. Here it goes from the disk
to where the block is, and the other way round; only the rows that are wanted are read.

Imports `files` and `memory`.
"""

import errno
import itertools
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.files import Underway, opened
from dask_bigfft.memory import lend

__all__ = ["PlainChunks", "chunk_pieces", "few_chunks", "plain_chunks"]

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
