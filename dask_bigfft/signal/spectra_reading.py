"""Blocks of samples, and the spectra of the slices that reach into each.

A block of samples needs the slices that begin in it, and some of those before::

    samples      |a----------------b|c------------------d|
    slices        |------|            |------|
                      |------|            |------|
                          |------|
    of block 0   |p--------q|
    of block 1             |q------------r|

Spectra of a file are read for each block with all slices that reach into it, so that no block waits
for another.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dask.base import tokenize

from dask_bigfft.arrays import Array, Region
from dask_bigfft.signal.slice_reading import ReadBlocks


@dataclass(frozen=True)
class SampleBlocks:
    """Blocks of the samples that slices add up to.

    Parameters
    ----------
    nperseg, hop : int
        Samples of a slice, and from the start of a slice to that of the next one.
    slices : int
        Number of slices.
    bounds : tuple of int
        First sample of each block, counted from the start of the first slice, and the end of the
        last block.

    Examples
    --------
    >>> blocks = SampleBlocks(nperseg=4, hop=2, slices=9, bounds=(1, 7, 13))
    >>> blocks.reaching, blocks.begun
    ((range(0, 4), range(2, 7)), (range(0, 4), range(4, 7)))
    >>> blocks.overlap, blocks.extents([0, 2])
    (2, (range(1, 7), range(3, 9)))
    """

    nperseg: int
    hop: int
    slices: int
    bounds: tuple[int, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Samples of each block."""
        return tuple(high - low for low, high in itertools.pairwise(self.bounds))

    @cached_property
    def reaching(self) -> tuple[range, ...]:
        """Slices that reach into each block, at least one."""
        slices = []
        for low, high in itertools.pairwise(self.bounds):
            first = max(0, (low - self.nperseg) // self.hop + 1)
            first = min(first, self.slices - 1)  # of a block behind the last slice
            end = min(self.slices, -(-high // self.hop))
            slices.append(range(first, max(end, first + 1)))
        return tuple(slices)

    @cached_property
    def begun(self) -> tuple[range, ...]:
        """Slices of `reaching` that reach into no earlier block."""
        slices = []
        first = self.reaching[0].start
        for reaching in self.reaching:
            slices.append(range(first, max(first, reaching.stop)))
            first = slices[-1].stop
        return tuple(slices)

    @property
    def overlap(self) -> int:
        """Most slices of a block that reach into the next one."""
        pairs = zip(self.begun, self.reaching, strict=True)
        return max(begun.start - reaching.start for begun, reaching in pairs)

    def extents(self, firsts: Sequence[int]) -> tuple[range, ...]:
        """Return the samples of each block, counted from the start of a slice.

        Parameters
        ----------
        firsts : sequence of int
            Number of this slice for each block.
        """
        ranges = []
        for first, (low, high) in zip(firsts, itertools.pairwise(self.bounds), strict=True):
            start = first * self.hop
            ranges.append(range(low - start, high - start))
        return tuple(ranges)

    def joined(self) -> "SampleBlocks":
        """Return blocks of which each has all slices before that reach into the next one.

        Those at the end that have fewer slices are joined with the one before.

        >>> SampleBlocks(4, 2, 9, (1, 7, 13, 14)).joined().bounds
        (1, 7, 14)
        """
        least = max(1, self.overlap)
        bounds = [self.bounds[0]]
        count = 0
        for begun, end in zip(self.begun, self.bounds[1:], strict=True):
            count += len(begun)
            if count >= least:
                bounds.append(end)
                count = 0
        if len(bounds) > 1:
            bounds.pop()
        return replace(self, bounds=(*bounds, self.bounds[-1]))


@dataclass(frozen=True, eq=False)
class SpectraBlocks(ReadBlocks):
    """Blocks of the slices of stored spectra.

    Parameters
    ----------
    reader, axis
        The spectra, and the axis of their slices.
    slices : tuple of range
        Slices of each block. Those of two blocks may overlap.
    """

    slices: tuple[range, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Number of slices of each block."""
        return tuple(map(len, self.slices))

    def __getitem__(self, region: Region) -> Array:
        """Return some slices of one block."""
        cut = region[self.axis]
        number = self.number_at(cut.start)
        first = self.slices[number].start - self.places[number]
        cuts = list(region)
        cuts[self.axis] = slice(cut.start + first, cut.stop + first)
        values: Array = self.reader[tuple(cuts)]
        return values

    def __dask_tokenize__(self) -> tuple[str, str]:
        return "dask_bigfft.SpectraBlocks", tokenize(self.reader, self.axis, self.slices)
