"""Tasks of short-time transforms: spectra of slices of a block, and samples from spectra.

Slice p has the samples from p * hop on. It is multiplied by a window, rolled and transformed. The
inverse multiplies each slice by a dual window and adds where slices overlap::

    samples  |--------------------|        spectra   | p | p+1 | p+2 |
    slices    |------|                     samples   |------|
                 |------|                               |------|
                    |------|                               |------|
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from dask_bigfft.arrays import Array
from dask_bigfft.gpu.cuda import scipy_fft
from dask_bigfft.gpu.own_gpu import on_own_gpu
from dask_bigfft.kernels.views import allocate_like, is_on_gpu, plain_array
from dask_bigfft.signal.segment_tasks import fill_spectra, line_view, tile_slices


@dataclass(frozen=True)
class SliceFFT:
    """FFT of windowed slices, and its inverse.

    Parameters
    ----------
    window : ndarray
        Values that slices are multiplied by.
    hop : int
        Samples from the start of a slice to that of the next one.
    nfft : int
        Length of the FFT, at least that of the window.
    roll : int
        Place in a slice that comes first in its FFT.
    mode : {"onesided", "twosided", "centered"}
        Half of the frequencies, all, or all with frequency 0 in the middle.
    factor : float
        Factor of the spectra at frequencies that have a negative counterpart.
    """

    window: Array
    hop: int
    nfft: int
    roll: int
    mode: str
    factor: float

    @property
    def nperseg(self) -> int:
        """Samples of a slice."""
        return len(self.window)

    @property
    def frequencies(self) -> int:
        """Number of frequencies."""
        return self.nfft // 2 + 1 if self.mode == "onesided" else self.nfft

    @property
    def paired(self) -> slice:
        """Places of the frequencies of half a spectrum that have a negative counterpart."""
        return slice(1, (self.nfft + 1) // 2)

    def forward(self, slices: Array) -> Array:
        """Return the spectra of slices along the last axis, times the window."""
        real_dtype = slices.real.dtype
        dtype = slices.dtype
        window_dtype = real_dtype
        if self.window.dtype.kind == "c":
            dtype = np.result_type(slices, np.complex64)
            window_dtype = dtype
        window = np.asarray(self.window.astype(window_dtype), like=slices)
        rows = slices.shape[:-1]
        frames = np.empty_like(
            slices,
            dtype,
            shape=(*rows, self.nfft),
        )
        end = self.nperseg - self.roll
        frames[..., end : self.nfft - self.roll] = 0
        np.multiply(
            slices[..., self.roll :],
            window[self.roll :],
            out=frames[..., :end],
        )
        if self.roll:
            first = self.nfft - self.roll
            np.multiply(
                slices[..., : self.roll],
                window[: self.roll],
                out=frames[..., first:],
            )
        transforms = scipy_fft(frames)
        if self.mode == "onesided":
            half: Array = transforms.rfft(frames, overwrite_x=True)
            if self.factor != 1:
                half[..., self.paired] *= real_dtype.type(self.factor)
            return half
        spectra: Array = transforms.fft(frames, overwrite_x=True)
        if self.mode == "centered":
            spectra = transforms.fftshift(spectra, axes=-1)
        return spectra

    def inverse(self, spectra: Array) -> Array:
        """Return the slices of spectra along the last axis, times the window."""
        transforms = scipy_fft(spectra)
        if self.mode == "onesided":
            if self.factor != 1:
                factor = spectra.real.dtype.type(self.factor)
                spectra = spectra.copy()
                spectra[..., self.paired] /= factor
            frames = transforms.irfft(spectra, self.nfft)
        else:
            if self.mode == "centered":
                spectra = transforms.ifftshift(spectra, axes=-1)
            frames = transforms.ifft(spectra)
        window_dtype = frames.real.dtype
        if self.window.dtype.kind == "c":
            window_dtype = frames.dtype
        first = self.nfft - self.roll
        end = self.nperseg - self.roll
        slices: Array = np.concatenate(
            [frames[..., first:], frames[..., :end]],
            axis=-1,
        )
        slices *= np.asarray(self.window.astype(window_dtype), like=frames)
        return slices


@dataclass(frozen=True)
class SpectraOfSlices:
    """Spectra of slices, or their products.

    Parameters
    ----------
    fft : SliceFFT
        FFT of a slice.
    axis : int
        Axis of the samples in a block.
    detrend : callable, optional
        Function of slices along the last axis that comes before the window.
    squared : bool
        True for the squares of one spectrum, or the product of one and the conjugate of another.
    work_dtype, dtype : numpy.dtype
        Of the samples that are transformed, and of the result.
    tile_samples : int
        Samples of the slices that are transformed at a time, at least one slice.
    summed : bool
        True if the results of all slices are added up.
    """

    fft: SliceFFT
    axis: int
    detrend: Callable[[Array], Array] | None
    squared: bool
    work_dtype: np.dtype[Any]
    dtype: np.dtype[Any]
    tile_samples: int
    summed: bool = False

    @property
    def nperseg(self) -> int:
        """Samples of a slice."""
        return self.fft.nperseg

    @property
    def nfft(self) -> int:
        """Length of the FFT of a slice."""
        return self.fft.nfft

    def of_tile(self, tiles: list[Array]) -> Array:
        """Return the spectra of slices along the last axis of one or two arrays, or their products.

        Without `squared` it is the spectrum of the first array. The result has slices along the
        second-last axis and frequencies along the last.
        """
        spectra = []
        for tile in tiles:
            samples = tile.astype(self.work_dtype, copy=False)
            windows = sliding_window_view(
                samples,
                self.nperseg,
                axis=-1,
            )
            slices = windows[..., :: self.fft.hop, :]
            if self.detrend is not None:
                slices = self.detrend(slices)
            spectra.append(self.fft.forward(slices))
        if not self.squared:
            return spectra[0]
        if len(spectra) == 1:
            (spectrum,) = spectra
            squares: Array = spectrum.real**2
            squares += spectrum.imag**2
            return squares
        product: Array = spectra[0] * np.conjugate(spectra[1])
        return product


@on_own_gpu
def slices_of_block(
    *blocks: Array,
    block_id: tuple[int, ...],
    inside: list[range],
    across: list[range],
    work: SpectraOfSlices,
    is_even: bool,
) -> Any:
    """Return the spectra of the slices that begin in a block.

    Parameters
    ----------
    *blocks : ndarray
        Blocks of one or two arrays, then the samples around the ends of these blocks, if slices lie
        across edges.
    block_id : tuple of int
        Index of the block.
    inside, across : list of range
        First samples of the slices in each block, and of those in the samples around its end.
    work : SpectraOfSlices
        What is computed.
    is_even : bool
        True if all blocks but the last have one shape, so that one reuses the memory of another.

    Returns
    -------
    ndarray
        Slices run along the axis of the samples, and frequencies along a new last axis. In memory
        they run the other way round, as files have them.
    """
    source_id = block_id[:-1]  # the result has an axis more, that of the frequencies
    number = block_id[work.axis]
    lines = [line_view(block, work.axis, source_id) for block in blocks]
    starts = inside[number]
    starts_across = across[number]
    inside_count = len(starts)
    count = inside_count + len(starts_across)
    shape = list(blocks[0].shape)
    shape[work.axis] = work.fft.frequencies
    shape.append(count)
    if is_even:
        result = allocate_like(lines[0], tuple(shape), work.dtype)
    else:
        result = np.empty_like(
            lines[0],
            work.dtype,
            "C",
            shape=tuple(shape),
        )
    spectra = np.moveaxis(result, work.axis, -1)
    arrays = len(lines)
    if any(across):
        arrays //= 2
    fill_spectra(
        spectra[..., :inside_count, :],
        lines[:arrays],
        starts,
        work,
    )
    if starts_across:
        fill_spectra(
            spectra[..., inside_count:, :],
            lines[arrays:],
            starts_across,
            work,
        )
    return np.swapaxes(result, work.axis, -1)


@dataclass(frozen=True)
class SamplesOfSpectra:
    """Samples that overlapping slices add up to.

    Parameters
    ----------
    fft : SliceFFT
        FFT of a slice, with the dual window.
    dtype : numpy.dtype
        Of the samples.
    tile_samples : int
        Samples of the slices that are computed at a time, at least one slice.
    """

    fft: SliceFFT
    dtype: np.dtype[Any]
    tile_samples: int

    @property
    def pieces(self) -> int:
        """Number of hops that a slice takes, rounded up."""
        return -(-self.fft.nperseg // self.fft.hop)

    def add_slices(
        self,
        hops: Array,
        spectra: Array,
        start: int,
    ) -> None:
        """Add the samples of slices to hops, in place.

        Parameters
        ----------
        hops : ndarray
            Sums of samples, with hops along the second-last axis and samples of a hop along the
            last. A slice is added to as many hops as it takes.
        spectra : ndarray
            Frequencies along the second-last axis, slices along the last.
        start : int
            Hop at which the first slice begins.
        """
        rows = spectra.shape[:-2]
        count = spectra.shape[-1]
        most = max(1, self.tile_samples // self.fft.nfft)
        for first in range(0, count, most):
            end = min(first + most, count)
            length = end - first
            for part in tile_slices(rows, most // length):
                tile = spectra[part][..., first:end]
                slices = self.fft.inverse(np.swapaxes(tile, -1, -2))
                pieces = self._in_pieces(slices)
                own_hops = hops[part]
                for piece in range(self.pieces):
                    low = start + first + piece
                    own_hops[..., low : low + length, :] += pieces[..., piece, :]

    def samples(
        self,
        parts: Sequence[Array],
        slices: int,
        extent: range,
    ) -> Array:
        """Return a part of the samples that slices add up to.

        Parameters
        ----------
        parts : sequence of ndarray
            Spectra of consecutive slices, with frequencies along the second-last axis and slices
            along the last.
        slices : int
            Number of slices. Those before the first one of `parts` are zeros.
        extent : range
            The samples, counted from the start of the first slice.

        Returns
        -------
        ndarray
            Samples along the last axis. The axis of the frequencies has length 1.
        """
        rows = parts[0].shape[:-2]
        hop = self.fft.hop
        count = max(slices + self.pieces - 1, -(-extent.stop // hop))
        hops = allocate_like(parts[0], (*rows, count, hop), self.dtype)
        hops[...] = 0
        start = slices - sum(part.shape[-1] for part in parts)
        for part in parts:
            self.add_slices(hops, part, start)
            start += part.shape[-1]
        samples: Array = hops.reshape(*rows, 1, count * hop)
        return samples[..., extent.start : extent.stop]

    def _in_pieces(self, slices: Array) -> Array:
        """Return slices as pieces of one hop each, the last one padded with zeros.

        Pieces run along the second-last axis, and samples of a piece along the last.
        """
        hop = self.fft.hop
        padding = self.pieces * hop - self.fft.nperseg
        widths = [(0, 0)] * slices.ndim
        widths[-1] = (0, padding)
        padded = np.pad(slices, widths)
        pieces: Array = padded.reshape(
            *slices.shape[:-1],
            self.pieces,
            hop,
        )
        return pieces


@on_own_gpu
def samples_of_block(
    spectra: Array,
    *before: Array,
    block_id: tuple[int, ...],
    extents: Sequence[range],
    axis: int,
    work: SamplesOfSpectra,
) -> Any:
    """Return the samples of a block of the result.

    Parameters
    ----------
    spectra : ndarray
        Frequencies along the second-last axis, slices along the last.
    *before : ndarray
        The last slices of the block before that reach into this one, or nothing.
    block_id : tuple of int
        Index of the block of the result.
    extents : sequence of range
        Samples of each block, counted from the start of its first slice, which is one of `before`
        if that is given.
    axis : int
        Axis of the samples in memory, beside the rows.
    work : SamplesOfSpectra
        What is computed.

    Returns
    -------
    ndarray
        Samples along the last axis. The axis of the frequencies has length 1.
    """
    if not is_on_gpu(spectra):
        spectra = plain_array(spectra, block_id)
    parts = [spectra]
    if before:
        parts.insert(0, before[0])
    if block_id[-1] == 0:  # whose own last slices stand in the place of those before
        parts = parts[-1:]
    earlier = before[0].shape[-1] if before else 0
    extent = extents[block_id[-1]]
    rows = spectra.shape[:-2]
    if math.prod(rows) == 1:
        return work.samples(parts, earlier + spectra.shape[-1], extent)
    order = [*range(len(rows))]
    order.insert(axis, len(rows))
    shape = tuple((*rows, len(extent))[dim] for dim in order)
    result = allocate_like(spectra, shape, work.dtype)
    samples = np.moveaxis(result, axis, -1)[..., None, :]
    most = max(1, work.tile_samples // extent.stop)
    for rows_of_tile in tile_slices(rows, most):
        tile = [part[rows_of_tile] for part in parts]
        samples[rows_of_tile] = work.samples(tile, earlier + spectra.shape[-1], extent)
    return samples


@on_own_gpu
def last_slices(spectra: Array, count: int) -> Any:
    """Return a copy of the last slices of a block."""
    first = spectra.shape[-1] - count
    return spectra[..., first:].copy()
