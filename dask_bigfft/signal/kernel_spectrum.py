"""The spectrum of a small kernel, computed for the frequencies of each tile.

The frequencies of a tile along an axis of length N = N1*N2 are k = k1 + N1*k2 for some k1 and all
k2: N2 is the length of the last digit, N or 1 for an axis that is not split. A kernel of m samples
is a matrix of N1 rows of which only the first R = ceil(m/N2) are not zero. Its spectrum is a sum of
R rows and an FFT of length N2 for each k1::

    H[k1, k2] = FFT over n2 of  W_N^(k1 n2) * sum_{n1 < R} h[n1, n2] W_N1^(k1 n1)

No padded kernel is ever stored, and nothing is exchanged.

These sums are no matrix products of `numpy.matmul`, because BLAS would start its own threads inside
each of dask's threads. Its number of threads is a setting of the process, or of each thread, by
library, so tasks cannot limit it without a change for the user. Many rows are summed by FFTs, as in
the chirp z-transform (Rabiner, Schafer and Rader, Bell Syst. Tech. J. 48, 1969)::

    k n = (k^2 + n^2 - (k - n)^2) / 2

On a GPU all samples are summed, along one axis after the other. The last sums are not stored: each
multiplies a value of the tile.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dask_bigfft.arrays import Array, Ints
from dask_bigfft.gpu.transfer_kernels import multiply_by_sums, phases, sums
from dask_bigfft.kernels.libraries import Call, FFTLibrary, get_library
from dask_bigfft.kernels.products import Slices
from dask_bigfft.kernels.transfer import (
    AxisOnTile,
    TileTransfer,
    in_host_memory,
)
from dask_bigfft.kernels.twiddle import twiddle, unit_roots
from dask_bigfft.kernels.views import is_on_gpu
from dask_bigfft.planner.plan import Plan
from dask_bigfft.signal.arguments import fast_length
from dask_bigfft.transforms.layout import tile_bytes_of

#: Maximum number of rows of a kernel that are summed for each frequency of the first digit.
MOST_ROWS = 64

#: Rows that are summed in the time of the two FFTs that sum any number of rows.
SUMMED_ROWS = 8

#: Maximum size of a kernel in tiles: it is transformed for each of them.
MOST_TILES = 8

#: Maximum number of phases of an axis that are computed on a GPU.
MOST_PHASES = 1 << 24

#: Maximum part of an axis' frequencies that are computed without an FFT of the whole axis.
WHOLE_SHARE = 1 / 4


def _padded(x: Array, before: int, length: int) -> Array:
    """Return an array with zeros before and after the samples of the last axis, to some length."""
    widths = [(0, 0)] * (x.ndim - 1)
    widths.append((before, length - before - x.shape[-1]))
    return np.pad(x, widths)


def _summed_rows(
    x: Array,
    first: int,
    frequencies: Ints,
    modulus: int,
) -> Array:
    """Return the sums of `_dft_rows` row by row."""
    rows = np.arange(first, first + x.shape[1], dtype=np.int64)
    wide = np.result_type(x.dtype, np.complex128)
    phases = unit_roots(
        np.multiply.outer(frequencies, rows),
        modulus,
        -1,
        wide,
    )
    narrow = phases.astype(np.result_type(x.dtype, np.complex64), copy=False)
    sums: Array = np.einsum("kr,lrc->lkc", narrow, x)  # not by BLAS, unless told to optimize
    return sums


def _chirped_rows(
    x: Array,
    first: int,
    low: int,
    high: int,
    modulus: int,
    fft: FFTLibrary,
) -> Array:
    """Return the sums of `_dft_rows` by a cyclic convolution with a chirp."""
    lines, rows, columns = x.shape
    count = high - low
    length = fast_length(rows + count - 1, False, False)
    dtype = np.result_type(x.dtype, np.complex64)

    def chirp(exponents: Array) -> Array:
        wide = np.result_type(dtype, np.complex128)
        return unit_roots(
            exponents,
            2 * modulus,
            -1,
            wide,
        ).astype(dtype, copy=False)

    row = np.arange(rows, dtype=np.int64)
    frequency = np.arange(count, dtype=np.int64)
    lag = np.arange(1 - rows, count, dtype=np.int64)
    response = np.zeros(length, dtype)
    response[lag] = np.conjugate(chirp(lag * lag))
    response = fft.c2c(response, (0,), -1)
    work = np.zeros((lines, length, columns), dtype)
    np.multiply(x, chirp(row * row + 2 * low * row)[:, None], out=work[:, :rows])
    work = fft.c2c(work, (1,), -1)
    work *= response[:, None]
    work = fft.c2c(
        work,
        (1,),
        +1,
        "full",
    )
    of_first = 2 * first * (low + frequency)  # the phase of the first row
    return work[:, :count] * chirp(frequency * frequency + of_first)[:, None]


def _dft_rows(
    x: Array,
    first: int,
    frequencies: Ints,
    modulus: int,
    fft: FFTLibrary,
) -> Array:
    """Return sums over the rows n of x with W_modulus^(k n), for some frequencies k.

    Parameters
    ----------
    x : ndarray
        Of shape (lines, rows, columns).
    first : int
        Number n of the first row.
    frequencies : ndarray of int64
        The frequencies.
    modulus : int
        Order of the root of unity W.
    fft : FFTLibrary
        FFT library.

    Returns
    -------
    ndarray
        Complex, of shape (lines, frequencies, columns).
    """
    rows = x.shape[1]
    count = frequencies.size
    if rows * count <= SUMMED_ROWS * (rows + count):
        return _summed_rows(
            x,
            first,
            frequencies,
            modulus,
        )
    jumps = np.flatnonzero(np.diff(frequencies) != 1) + 1
    parts: list[Array] = []
    for run in np.split(frequencies, jumps):
        low = int(run[0])
        if rows * run.size <= SUMMED_ROWS * (rows + run.size):
            parts.append(
                _summed_rows(
                    x,
                    first,
                    run,
                    modulus,
                )
            )
        else:
            parts.append(
                _chirped_rows(
                    x,
                    first,
                    low,
                    low + run.size,
                    modulus,
                    fft,
                )
            )
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


# --- frequencies of an axis -----------------------------------------------------------------


def _columns(ascending: Ints, length: int) -> int:
    """Return the largest N2 for which frequencies are k1 + N1*k2, for some k1 and all k2.

    1 for frequencies without structure.

    >>> _columns(np.array([1, 2, 5, 6, 9, 10]), 12)
    3
    """
    count = ascending.size
    # Of N2*p frequencies, number p is the first one plus N1, for the p values of k1.
    steps = (ascending - ascending[0]) * count == np.arange(count) * length
    for period in (np.flatnonzero(steps[1:]) + 1).tolist():
        stride = int(ascending[period] - ascending[0])
        if count % period or length % stride:
            continue
        if (ascending[period:] - ascending[:-period] == stride).all():
            return count // period
    return 1


@dataclass(frozen=True)
class AxisSpectrum:
    """Frequencies k1 + N1*k2 of an axis of a tile, for some k1 and all k2.

    Parameters
    ----------
    length, columns : int
        Length N of the axis, and N2.
    residues : ndarray of int64
        The frequencies k1.
    places : ndarray of int64 or None
        Place of each frequency of the tile among those of all k1 and k2, row-major; None if they
        have the same order.
    """

    length: int
    columns: int
    residues: Ints
    places: Ints | None

    @staticmethod
    def of(index: Ints, length: int) -> "AxisSpectrum":
        """Return the structure of the frequencies of a tile, which are different from each other.

        >>> axis = AxisSpectrum.of(np.array([1, 5, 9, 2, 6, 10]), 12)
        >>> axis.columns, axis.residues, axis.places
        (3, array([1, 2]), None)
        """
        count = index.size
        step = int(index[1] - index[0]) if count > 1 else 0
        if step > 0 and length % step == 0 and count % (length // step) == 0:
            columns = length // step
            residues = index[::columns]
            if np.array_equal(index, np.add.outer(residues, step * np.arange(columns)).ravel()):
                return AxisSpectrum(length, columns, residues, None)
        ascending = np.sort(index)
        columns = _columns(ascending, length)
        residues = ascending[: count // columns]
        stride = length // columns
        rows = np.searchsorted(residues, index % stride)
        places = rows * columns + (index - residues[rows]) // stride
        in_order = np.array_equal(places, np.arange(count))
        return AxisSpectrum(length, columns, residues, None if in_order else places)

    @property
    def count(self) -> int:
        """Number of frequencies."""
        return self.residues.size * self.columns

    def spectrum(
        self,
        x: Array,
        start: int,
        fft: FFTLibrary,
    ) -> Array:
        """Return the spectrum of samples along the last axis, at the frequencies of the tile.

        Sample `start` is taken as the first one. Those before it belong to the end of the period.
        """
        if self.columns == 1 and self.residues.size > WHOLE_SHARE * self.length:
            in_order = self._of_whole_axis(x, start, fft)
        else:
            in_order = self._in_digits(x, start, fft)
        return in_order if self.places is None else in_order[..., self.places]

    def _of_whole_axis(
        self,
        x: Array,
        start: int,
        fft: FFTLibrary,
    ) -> Array:
        """Return the spectrum by an FFT of the padded samples."""
        padded = np.roll(_padded(x, 0, self.length), -start, -1)
        is_half = 2 * int(self.residues.max()) <= self.length
        if x.dtype.kind != "c" and is_half:
            half: Array = fft.run(Call("r2c", (padded.ndim - 1,), -1), padded)
            return half[..., self.residues]
        padded = padded.astype(np.result_type(x.dtype, np.complex64), copy=False)
        return fft.c2c(padded, (padded.ndim - 1,), -1)[..., self.residues]

    def _in_digits(
        self,
        x: Array,
        start: int,
        fft: FFTLibrary,
    ) -> Array:
        """Return the spectrum by a sum of rows, and FFTs of the length of the last digit."""
        columns = self.columns
        lines = math.prod(x.shape[:-1])
        first_row = -start // columns  # rounded down: the row of the first sample
        before = -start - first_row * columns
        rows = -(-(before + x.shape[-1]) // columns)
        matrix = _padded(x, before, rows * columns).reshape(lines, rows, columns)
        sums = _dft_rows(
            matrix,
            first_row,
            self.residues,
            self.length // columns,
            fft,
        )
        flat = np.ascontiguousarray(sums).reshape(-1, columns, 1)
        if columns > 1:
            twiddle(
                flat,
                np.tile(self.residues, lines),
                self.length,
                -1,
            )
            flat = fft.c2c(flat, (1,), -1)
        return flat.reshape(*x.shape[:-1], -1)


# --- the transfer function ------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class KernelSpectrum:
    """Spectrum of a small kernel as the transfer function of an operator.

    Parameters
    ----------
    lengths : mapping of int to int
        Length N of the transform along each transformed axis.
    starts : mapping of int to int
        First value of the cyclic convolution that is wanted along some axes, 0 along the others.
    conjugated : bool
        Whether the spectrum is conjugated.
    library : str
        FFT library.
    array : ndarray
        Samples of the kernel, with as many axes as the spectrum. Along axes that are not
        transformed it has their length, or length 1.
    """

    lengths: Mapping[int, int]
    starts: Mapping[int, int]
    conjugated: bool
    library: str
    array: Array = field(default_factory=lambda: np.empty(0))

    def start(self, axis: int) -> int:
        """Return the sample of the kernel that is taken as the first one along an axis."""
        start = self.starts.get(axis, 0)
        return -start if self.conjugated else start

    def varies(self, axis: int) -> bool:
        """Return whether the spectrum varies along an axis: that of one sample at 0 does not."""
        return self.array.shape[axis] > 1 or self.start(axis) != 0

    def on_tile(self, axes: Mapping[int, AxisOnTile], like: Array) -> TileTransfer:
        """Return the spectrum at the frequencies of a tile; see `kernels.transfer`."""
        dtype = like.dtype
        if self.array.dtype.kind != "c":
            dtype = np.empty(0, dtype).real.dtype
        samples = self.array.astype(dtype, copy=False)
        if is_on_gpu(like):
            phase_counts = [size * axes[axis].size for axis, size in enumerate(samples.shape)]
            if max(phase_counts) <= MOST_PHASES:
                return self._on_gpu(samples, axes, like)
        indices = {axis: own.host_indices for axis, own in axes.items()}
        spectrum = np.asarray(self._spectrum(in_host_memory(samples), indices), like=like)
        return KernelOnTile(spectrum)

    def _on_gpu(
        self,
        samples: Array,
        axes: Mapping[int, AxisOnTile],
        like: Array,
    ) -> TileTransfer:
        """Return the spectrum at the frequencies of a tile on a GPU."""
        own_samples = np.conj(samples) if self.conjugated else samples
        values = np.asarray(own_samples, like=like)
        dtype = np.result_type(values.dtype, np.complex64)
        tables: dict[int, Array] = {}
        for axis, count in enumerate(samples.shape):
            if not self.varies(axis):
                continue
            index = np.asarray(axes[axis].indices.ravel(), like=like)
            if axis in self.lengths:
                tables[axis] = self._phases_on_gpu(axis, count, index, dtype)
            else:
                values = values.take(index, axis)
        # Arrays between the sums are no larger than the samples or the spectrum.
        order = sorted(tables, key=lambda axis: axes[axis].size / samples.shape[axis])
        is_smaller = any(own.size > 1 and not self.varies(axis) for axis, own in axes.items())
        stored = order if is_smaller else order[:-1]
        for axis in stored:
            values = sums(values, tables[axis], axis, axes[axis].size)
        if stored == order:
            return KernelOnTile(values)
        return KernelSums(values, tables[order[-1]], order[-1])

    def _phases_on_gpu(
        self,
        axis: int,
        count: int,
        index: Array,
        dtype: np.dtype[Any],
    ) -> Array:
        """Return the phases of the samples along an axis, at some frequencies."""
        length = self.lengths[axis]
        first = -self.start(axis)
        if self.conjugated:  # of conjugated samples
            index = -index % length
        table: Array = phases(index, length, range(first, first + count), dtype)
        return table

    def _spectrum(self, samples: Array, indices: Mapping[int, Array]) -> Array:
        """Return the spectrum of samples at the frequencies of a tile."""
        spectrum = samples
        fft = get_library(self.library)
        transformed: list[tuple[int, AxisSpectrum]] = []
        for axis, size in enumerate(samples.shape):
            if axis in self.lengths:
                if self.varies(axis):
                    own = AxisSpectrum.of(indices[axis].ravel(), self.lengths[axis])
                    transformed.append((axis, own))
            elif size > 1:
                spectrum = spectrum.take(indices[axis].ravel(), axis)
        # Arrays between the transforms are no larger than the samples or the spectrum.
        transformed.sort(key=lambda pair: pair[1].count / samples.shape[pair[0]])
        for axis, own in transformed:
            lines = np.moveaxis(spectrum, axis, -1)
            spectrum = np.moveaxis(own.spectrum(lines, self.start(axis), fft), -1, axis)
        return np.conj(spectrum) if self.conjugated else spectrum


@dataclass(frozen=True, eq=False)
class KernelOnTile(TileTransfer):
    """Spectrum of a kernel at the frequencies of a tile.

    Parameters
    ----------
    array : array
        The spectrum, of length 1 along axes along which it does not vary.
    """

    array: Array

    def values(self, part: Slices, dtype: np.dtype[Any]) -> Array:
        """Return the values in a part of the spectrum of the tile; see `kernels.transfer`."""
        return _part_of(self.array, part)


@dataclass(frozen=True, eq=False)
class KernelSums(TileTransfer):
    """Spectrum of a kernel at the frequencies of a tile on a GPU, as sums along an axis.

    Parameters
    ----------
    array : array
        The spectrum along all other axes, with the samples of the kernel along this one.
    table : array
        Phases by which the samples are multiplied, with a column for each frequency.
    axis : int
        The axis.
    """

    array: Array
    table: Array
    axis: int

    def multiply(
        self,
        spectrum: Array,
        part: Slices,
        out: Array,
        scale: float = 1.0,
    ) -> None:
        """Multiply a part of the spectrum of the tile; see `kernels.transfer`."""
        first_column = part[self.axis].start or 0
        others = list(part)
        others[self.axis] = slice(None)
        multiply_by_sums(
            spectrum[part],
            out[part],
            _part_of(self.array, others),
            self.table,
            self.axis,
            first_column,
            scale,
        )


def _part_of(array: Array, part: Sequence[slice]) -> Array:
    """Return a part of an array that is broadcast along its axes of length 1."""
    pairs = zip(array.shape, part, strict=True)
    own_part: Array = array[tuple(slice(None) if size == 1 else cut for size, cut in pairs)]
    return own_part


def is_small(plan: Plan, shape: tuple[int, ...]) -> bool:
    """Return whether the spectrum of a kernel of some shape is cheap to compute for each tile.

    Parameters
    ----------
    plan : Plan
        Plan of the operator.
    shape : tuple of int
        Shape of the kernel.
    """
    (stage,) = (operand.stage for operand in plan.operands)
    round_ = plan.rounds[stage]
    size = math.prod(shape)
    tile_size = tile_bytes_of(plan.machine.threads) // plan.spec.work_dtype.itemsize
    if size > min(MOST_TILES * tile_size, max(tile_size, round_.spectrum.largest)):
        return False
    return all(shape[step.axis] <= MOST_ROWS * step.length for step in round_.steps)
