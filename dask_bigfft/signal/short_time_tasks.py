"""Tasks of short-time transforms: spectra of slices of a block, and samples from spectra.

Slice p has the samples from p * hop on. It is multiplied by a window, rolled and transformed. The
inverse multiplies each slice by a dual window and adds where slices overlap::

    samples  |--------------------|        spectra   | p | p+1 | p+2 |
    slices    |------|                     samples   |------|
                 |------|                               |------|
                    |------|                               |------|
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_bigfft.arrays import Array
from dask_bigfft.gpu.cuda import scipy_fft
from dask_bigfft.gpu.on_gpu import on_own_gpu
from dask_bigfft.kernels.views import is_on_gpu, plain_array
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
        values = np.asarray(self.window, like=slices)
        dtype = slices.dtype if values.dtype.kind == "f" else np.result_type(slices, np.complex64)
        window = values.astype(real_dtype if values.dtype.kind == "f" else dtype)
        frames = np.zeros_like(slices, dtype, shape=(*slices.shape[:-1], self.nfft))
        end = self.nperseg - self.roll
        np.multiply(slices[..., self.roll :], window[self.roll :], out=frames[..., :end])
        if self.roll:
            first = frames[..., self.nfft - self.roll :]
            np.multiply(slices[..., : self.roll], window[: self.roll], out=first)
        transforms = scipy_fft(frames)
        if self.mode == "onesided":
            half: Array = transforms.rfft(frames, overwrite_x=True)
            if self.factor != 1:
                half[..., self.paired] *= real_dtype.type(self.factor)
            return half
        spectra: Array = transforms.fft(frames, overwrite_x=True)
        return transforms.fftshift(spectra, axes=-1) if self.mode == "centered" else spectra

    def inverse(self, spectra: Array) -> Array:
        """Return the slices of spectra along the last axis, times the window."""
        transforms = scipy_fft(spectra)
        if self.mode == "onesided":
            if self.factor != 1:
                spectra = spectra.copy()
                spectra[..., self.paired] /= spectra.real.dtype.type(self.factor)
            frames = transforms.irfft(spectra, self.nfft)
        elif self.mode == "centered":
            frames = transforms.ifft(transforms.ifftshift(spectra, axes=-1))
        else:
            frames = transforms.ifft(spectra)
        window = np.asarray(self.window, like=frames)
        is_complex = window.dtype.kind == "c"
        window = window.astype(frames.dtype if is_complex else frames.real.dtype)
        first = frames[..., self.nfft - self.roll :]
        rest = frames[..., : self.nperseg - self.roll]
        slices: Array = np.concatenate([first, rest], axis=-1)
        slices *= window
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
        """Return the spectra of slices along the last axis of one or two arrays.

        The result has slices along the second-last axis and frequencies along the last.
        """
        spectra = []
        for tile in tiles:
            samples = tile.astype(self.work_dtype, copy=False)
            windows = np.lib.stride_tricks.sliding_window_view(samples, self.nperseg, axis=-1)
            slices = windows[..., :: self.fft.hop, :]
            if self.detrend is not None:
                slices = self.detrend(slices)
            spectra.append(self.fft.forward(slices))
        if not self.squared:
            return spectra[0]
        if len(spectra) == 1:
            squares: Array = spectra[0].real ** 2 + spectra[0].imag ** 2
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

    Returns
    -------
    ndarray
        Slices run along the axis of the samples, and frequencies along a new last axis.
    """
    source_id = block_id[:-1]  # the result has an axis more, that of the frequencies
    number = block_id[work.axis]
    lines = [line_view(block, work.axis, source_id) for block in blocks]
    starts = inside[number]
    starts_across = across[number] if number < len(across) else range(0)
    count = len(starts) + len(starts_across)
    shape = (*lines[0].shape[:-1], work.fft.frequencies, count)
    spectra: Any = np.empty_like(lines[0], work.dtype, shape=shape)
    by_slice = spectra.swapaxes(-1, -2)
    arrays = len(lines) // 2 if any(across) else len(lines)
    fill_spectra(by_slice[..., : len(starts), :], lines[:arrays], starts, work)
    if starts_across:
        fill_spectra(by_slice[..., len(starts) :, :], lines[arrays:], starts_across, work)
    return np.moveaxis(spectra, (-1, -2), (work.axis, -1))


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
        """Add the samples of slices.

        Parameters
        ----------
        hops : ndarray
            Samples with hops along the second-last axis, and samples of a hop along the last.
        spectra : ndarray
            Frequencies along the second-last axis, slices along the last.
        start : int
            Hop at which the first slice begins.
        """
        rows = spectra.shape[:-2]
        count = spectra.shape[-1]
        most = max(1, self.tile_samples // self.fft.nfft)
        hop = self.fft.hop
        for first in range(0, count, most):
            group = slice(first, min(first + most, count))
            length = group.stop - group.start
            for part in tile_slices(rows, most // length):
                tile = spectra[(*part, slice(None), group)].swapaxes(-1, -2)
                slices = self.fft.inverse(tile)
                padding = self.pieces * hop - self.fft.nperseg
                widths = [(0, 0)] * (slices.ndim - 1) + [(0, padding)]
                parts = np.pad(slices, widths).reshape(*slices.shape[:-1], self.pieces, hop)
                own_hops = hops[part]
                for piece in range(self.pieces):
                    low = start + group.start + piece
                    own_hops[..., low : low + length, :] += parts[..., piece, :]


@on_own_gpu
def samples_of_block(
    spectra: Array,
    *before: Array,
    block_id: tuple[int, ...],
    blocks: int,
    work: SamplesOfSpectra,
) -> Any:
    """Return the samples from the first slice of a block to that of the next block.

    Parameters
    ----------
    spectra : ndarray
        Frequencies along the second-last axis, slices along the last.
    *before : ndarray
        The last slices of the block before that reach into this one, or nothing.
    block_id : tuple of int
        Index of the block of the result.
    blocks : int
        Number of blocks of slices. The last one makes the samples to the end of its last slice.
    work : SamplesOfSpectra
        What is computed.
    """
    if not is_on_gpu(spectra):
        spectra = plain_array(spectra, block_id)
    hop = work.fft.hop
    count = spectra.shape[-1]
    earlier = before[0].shape[-1] if before else 0
    shape = (*spectra.shape[:-2], earlier + count + work.pieces - 1, hop)
    hops = np.zeros_like(spectra, work.dtype, shape=shape)
    if block_id[-1] > 0 and before:
        work.add_slices(hops, before[0], 0)
    work.add_slices(hops, spectra, earlier)
    is_last = block_id[-1] == blocks - 1
    length = count * hop
    if is_last:
        length += work.fft.nperseg - hop
    samples = hops.reshape(*shape[:-2], -1)
    return samples[..., earlier * hop : earlier * hop + length]


@on_own_gpu
def last_slices(spectra: Array, count: int) -> Any:
    """Return a copy of the last slices of a block."""
    return spectra[..., spectra.shape[-1] - count :].copy()
