"""Tasks of averages over segments: spectra of the segments of a block, edges of blocks, medians.

SciPy computes the spectra of a few segments at a time, so that a task takes little memory beside
its block.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from dask_bigfft.arrays import Array
from dask_bigfft.gpu.cuda import scipy_signal
from dask_bigfft.gpu.own_gpu import on_own_gpu
from dask_bigfft.kernels.views import is_on_gpu, plain_array

#: Samples of the segments that are transformed at a time, which fit a cache. For 2^23 samples this
#: took 0.14 s, a quarter as many 0.31 s, and all at once 0.78 s.
TILE_SAMPLES = 1 << 16

#: The same on a GPU, where a call has to be worth its launches.
GPU_TILE_SAMPLES = 1 << 22


class TileSpectra(Protocol):
    """Spectra of the segments of a tile, or of their products."""

    @property
    def nperseg(self) -> int:
        """Samples of a segment."""

    @property
    def nfft(self) -> int:
        """Length of the FFT of a segment."""

    @property
    def tile_samples(self) -> int:
        """Samples of the segments that are transformed at a time, at least one segment."""

    @property
    def summed(self) -> bool:
        """True for the sum over segments in place of all spectra."""

    def of_tile(self, tiles: list[Array]) -> Array:
        """Return the spectra of segments along the last axis of one or two arrays.

        The result has segments along the second-last axis and frequencies along the last.
        """


@dataclass(frozen=True)
class SpectraOfSegments:
    """Spectra that SciPy computes of segments.

    Parameters
    ----------
    axis : int
        Axis of the samples in a block.
    keywords : dict
        SciPy's keywords, with `nperseg`, `noverlap`, `nfft` and `return_onesided`.
    frequencies : int
        Number of frequencies.
    dtype : numpy.dtype
        Of the result: complex for cross spectra.
    summed : bool
        True for the sum over the segments of a block in place of all spectra.
    tile_samples : int
        Samples of the segments that are transformed at a time, at least one segment.
    """

    axis: int
    keywords: dict[str, Any]
    frequencies: int
    dtype: np.dtype[Any]
    summed: bool
    tile_samples: int = TILE_SAMPLES

    @property
    def nperseg(self) -> int:
        """Samples of a segment."""
        return int(self.keywords["nperseg"])

    @property
    def nfft(self) -> int:
        """Length of the FFT of a segment."""
        return int(self.keywords["nfft"])

    def of_tile(self, tiles: list[Array]) -> Array:
        """Return the spectra of segments along the last axis of one or two arrays.

        The result has segments along the second-last axis and frequencies along the last.
        """
        common = np.result_type(*(tile.dtype for tile in tiles))
        spectra = [
            scipy_signal(tile).spectrogram(tile.astype(common), mode="complex", **self.keywords)[2]
            for tile in tiles
        ]
        products: Array
        if len(spectra) == 1:
            products = spectra[0].real ** 2 + spectra[0].imag ** 2
        else:
            products = np.conjugate(spectra[0], out=spectra[0])
            products *= spectra[1]
        if self.keywords["return_onesided"]:  # add the power of the missing half
            stop = -1 if self.keywords["nfft"] % 2 == 0 else None
            products[..., 1:stop, :] *= 2
        return np.swapaxes(products, -2, -1).astype(self.dtype, copy=False)


def tile_slices(shape: tuple[int, ...], most: int) -> Iterator[tuple[slice, ...]]:
    """Yield the slices of parts of an array of some shape that have at most some elements.

    >>> list(tile_slices((2, 3), 2))[:2]
    [(slice(0, 1, None), slice(0, 2, None)), (slice(0, 1, None), slice(2, 4, None))]
    """
    lengths = [1] * len(shape)
    left = most
    for dim in reversed(range(len(shape))):
        lengths[dim] = max(1, min(shape[dim], left))
        left //= lengths[dim]
    starts = (range(0, size, length) for size, length in zip(shape, lengths, strict=True))
    for corner in itertools.product(*starts):
        pairs = zip(corner, lengths, strict=True)
        yield tuple(slice(start, start + length) for start, length in pairs)


@on_own_gpu
def spectra_of_block(
    *blocks: Array,
    block_id: tuple[int, ...],
    starts: list[range],
    work: SpectraOfSegments,
) -> Any:
    """Return the spectra of the segments that begin in a block, or their sum.

    Parameters
    ----------
    *blocks : ndarray
        Blocks of one or two arrays.
    block_id : tuple of int
        Index of the block.
    starts : list of range
        First samples of the segments within each block along the axis.
    work : SpectraOfSegments
        What is computed.

    Returns
    -------
    ndarray
        Segments, or one sum, run along the axis of the samples, and frequencies along a new last
        axis.
    """
    source_id = block_id[:-1]  # the result has an axis more, that of the frequencies
    own_starts = starts[block_id[work.axis]]
    lines = [line_view(block, work.axis, source_id) for block in blocks]
    count = 1 if work.summed else len(own_starts)
    shape = (*lines[0].shape[:-1], count, work.frequencies)
    spectra: Any = np.zeros_like(lines[0], work.dtype, shape=shape)
    fill_spectra(spectra, lines, own_starts, work)
    return np.moveaxis(spectra, -2, work.axis)


def line_view(block: Array, axis: int, block_id: tuple[int, ...]) -> Array:
    """Return a view of a block with an axis moved to the end."""
    plain = block if is_on_gpu(block) else plain_array(block, block_id)
    return np.moveaxis(plain, axis, -1)


def fill_spectra(
    spectra: Any,
    lines: Sequence[Array],
    starts: range,
    work: TileSpectra,
) -> None:
    """Write the spectra of segments, or add them to their sum.

    Parameters
    ----------
    spectra : ndarray
        Written: segments, or one sum, along the second-last axis and frequencies along the last.
    lines : sequence of ndarray
        Samples of one or two arrays along the last axis.
    starts : range
        First samples of the segments.
    work : TileSpectra
        What is computed.
    """
    rows = lines[0].shape[:-1]
    width = max(work.nperseg, work.nfft)
    most = max(1, work.tile_samples // width)
    for first in range(0, len(starts), most):
        group = starts[first : first + most]
        samples = slice(group[0], group[-1] + work.nperseg)
        for part in tile_slices(rows, most // len(group)):
            tile = work.of_tile([line[(*part, samples)] for line in lines])
            if work.summed:
                spectra[(*part, 0)] += np.sum(tile, axis=-2)
            else:
                spectra[(*part, slice(first, first + len(group)))] = tile


@on_own_gpu
def edges_of_block(
    block: Array,
    axis: int,
    count: int,
    block_id: tuple[int, ...],
) -> Any:
    """Return copies of the first and of the last `count` samples of a block, end to end."""
    if not is_on_gpu(block):
        block = plain_array(block, block_id)
    before = (slice(None),) * axis
    size = block.shape[axis]
    first = block[(*before, slice(count))]
    last = block[(*before, slice(size - count, size))]
    return np.concatenate([first, last], axis=axis)


@on_own_gpu
def median_of_block(
    spectra: Array,
    axis: int,
    bias: float,
    tile_samples: int,
) -> Any:
    """Return the medians of real and imaginary parts along an axis, whose length becomes 1.

    Parameters
    ----------
    spectra : ndarray
        Spectra of segments; only read.
    axis : int
        Axis of the segments.
    bias : float
        Divisor of the medians.
    tile_samples : int
        Numbers that are copied and sorted at a time, at least the numbers of one median.
    """
    lines = np.moveaxis(spectra, axis, -1)
    shape = lines.shape[:-1]
    medians: Any = np.empty_like(lines, shape=shape)
    most = max(1, tile_samples // lines.shape[-1])
    for part in tile_slices(shape, most):
        medians.real[part] = median_of_lines(lines.real[part])
        if medians.dtype.kind == "c":
            medians.imag[part] = median_of_lines(lines.imag[part])
    medians /= bias
    return np.expand_dims(medians, axis)


def median_of_lines(lines: Array) -> Any:
    """Return the medians along the last axis, from one contiguous copy."""
    contiguous = np.copy(lines, order="C")
    return np.median(contiguous, axis=-1, overwrite_input=True)


def without_mean(segments: Array) -> Any:
    """Return segments minus their mean along the last axis.

    The mean is computed in double precision. Its digits beyond the precision of the segments are
    subtracted, too: those of a large mean can exceed the signal.
    """
    wide = np.result_type(segments.dtype, np.float64)
    mean = np.mean(segments, axis=-1, keepdims=True, dtype=wide)
    dtype = segments.dtype if segments.dtype.kind in "fc" else wide
    rounded = mean.astype(dtype)
    centred = segments - rounded
    centred -= (mean - rounded).astype(dtype)
    return centred


def without_line(segments: Array) -> Any:
    """Return segments minus the line of least squares along the last axis.

    `scipy.signal.detrend` solves for it by LAPACK, whose threads would compete with dask's.
    """
    centred = without_mean(segments)
    count = segments.shape[-1]
    places = np.arange(count) - (count - 1) / 2
    time = np.asarray(places.astype(centred.real.dtype), like=segments)
    norm = count * (count**2 - 1) / 12 or 1.0  # the sum of squares of the times
    slope = np.sum(centred * time, axis=-1, keepdims=True) / norm
    centred -= slope * time
    return centred
