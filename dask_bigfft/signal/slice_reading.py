"""Blocks of a stored record that have all samples of their slices, so that none needs another.

Each block is read from the first sample of its first slice to the last sample of its last one.
Samples before and behind the record are padded::

    samples    padding|-----------------------------|padding
    block 0    |-----------------|
    block 1                  |-----------------|
    block 2                                |-----------------|
"""

import bisect
import itertools
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import dask.array as da
import numpy as np
from dask.base import tokenize

from dask_bigfft.arrays import Array, Region
from dask_bigfft.events import emit
from dask_bigfft.memory import allocate
from dask_bigfft.storage.sources import Reader


@dataclass(frozen=True)
class Extent:
    """Samples of all slices of a record, counted from the first sample of the first slice.

    Parameters
    ----------
    low, high : int
        Part of the record that has samples of slices.
    before, after : int
        Samples that are padded before and behind this part.
    length : int
        Samples of the slices. It may be less than that of the padded part.
    """

    low: int
    high: int
    before: int
    after: int
    length: int

    @property
    def size(self) -> int:
        """Samples of the record."""
        return self.high - self.low

    @property
    def is_padded_at_ends(self) -> bool:
        """True if padding reflects no sample more than once."""
        return self.size > max(self.before, self.after)


@dataclass(frozen=True, eq=False)
class ReadBlocks:
    """Blocks of a source for `dask.array.from_array`, end to end along an axis.

    Two blocks may have values of the source in common.

    Parameters
    ----------
    reader : Reader
        The source.
    axis : int
        The axis.
    """

    reader: Reader
    axis: int

    @property
    def lengths(self) -> tuple[int, ...]:
        """Length of each block along the axis."""
        raise NotImplementedError

    @cached_property
    def places(self) -> tuple[int, ...]:
        """Place of the start of each block in the array of all blocks, and its length."""
        return (0, *itertools.accumulate(self.lengths))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array of all blocks."""
        shape = list(self.reader.shape)
        shape[self.axis] = self.places[-1]
        return tuple(shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return int(self.reader.ndim)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Dtype of the source."""
        return cast("np.dtype[Any]", self.reader.dtype)

    def number_at(self, place: int) -> int:
        """Return the number of the block that has a place in the array of all blocks."""
        return bisect.bisect_right(self.places, place) - 1

    def array(self, chunks: tuple[tuple[int, ...], ...]) -> da.Array:
        """Return the lazy array of all blocks; `chunks` has any chunks along the axis."""
        own_chunks = list(chunks)
        own_chunks[self.axis] = self.lengths
        return cast("da.Array", da.from_array(self, chunks=tuple(own_chunks), asarray=True))


@dataclass(frozen=True, eq=False)
class SliceBlocks(ReadBlocks):
    """Blocks of the samples of a record, with padding before and behind it.

    Parameters
    ----------
    reader, axis
        The record, and the axis of its samples.
    extent : Extent
        Samples of all slices.
    starts, counts : tuple of int
        First sample of each block, counted from that of the first slice, and number of samples.
    padding : mapping
        Keywords of `numpy.pad`.
    """

    extent: Extent
    starts: tuple[int, ...]
    counts: tuple[int, ...]
    padding: Mapping[str, Any]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of samples of each block."""
        return self.counts

    def __getitem__(self, region: Region) -> Array:
        """Return the samples of some rows of one block."""
        cut = region[self.axis]
        number = self.number_at(cut.start)
        first = self.starts[number] + cut.start - self.places[number] - self.extent.before
        end = first + cut.stop - cut.start
        samples = allocate(tuple(cut.stop - cut.start for cut in region), self.dtype)
        # Samples of the record's part that the block has, counted from the first one of the part.
        low = max(first, 0)
        high = min(end, self.extent.size)
        if low < high:
            self._fill(region, slice(low, high), samples[self._along(low - first, high - first)])
        if first < 0:
            stop = min(end, 0)
            samples[self._along(0, stop - first)] = self._before(region, first, stop)
        if end > self.extent.size:
            start = max(first, self.extent.size)
            samples[self._along(start - first, end - first)] = self._behind(region, start, end)
        return samples

    def _fill(self, region: Region, part: slice, out: Array) -> None:
        """Read samples of the record's part for some rows."""
        started = time.perf_counter()
        cuts = list(region)
        cuts[self.axis] = slice(self.extent.low + part.start, self.extent.low + part.stop)
        self.reader.fill(tuple(cuts), out)
        emit("source_read", nbytes=out.nbytes, seconds=time.perf_counter() - started)

    def _before(self, region: Region, start: int, stop: int) -> Array:
        """Return padded samples before the record's part for some rows.

        `start` and `stop` are counted from the first sample of the part, which is longer than the
        padding. They are at most 0.
        """
        before = self.extent.before
        padded = self._padded(region, slice(0, before + 1), (before, 0))
        return padded[self._along(start + before, stop + before)]

    def _behind(self, region: Region, start: int, stop: int) -> Array:
        """Return padded samples behind the record's part for some rows.

        `start` and `stop` are counted from the first sample of the part, which is longer than the
        padding.
        """
        first = self.extent.size - self.extent.after - 1
        padded = self._padded(
            region,
            slice(first, self.extent.size),
            (0, self.extent.after),
        )
        return padded[self._along(start - first, stop - first)]

    def _padded(self, region: Region, part: slice, counts: tuple[int, int]) -> Array:
        """Return samples of the record's part for some rows, with padding before and behind."""
        shape = [cut.stop - cut.start for cut in region]
        shape[self.axis] = part.stop - part.start
        samples = allocate(tuple(shape), self.dtype)
        self._fill(region, part, samples)
        widths = [(0, 0)] * self.ndim
        widths[self.axis] = counts
        padded: Array = np.pad(samples, widths, **self.padding)
        return padded

    def _along(self, start: int, stop: int) -> Region:
        """Return the index of samples along the axis."""
        return (*(slice(None) for _ in range(self.axis)), slice(start, stop))

    def __dask_tokenize__(self) -> tuple[str, str]:
        numbers = (self.axis, vars(self.extent), self.starts, self.counts, dict(self.padding))
        return "dask_bigfft.SliceBlocks", tokenize(self.reader, numbers)
