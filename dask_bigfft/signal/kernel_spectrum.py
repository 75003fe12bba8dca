"""The spectrum of a small kernel, computed block by block without exchanges.

A kernel of m samples, padded to length N = N1*N2, is a matrix of N1 rows of which only the first
R = ceil(m/N2) are not zero. The first digit of its transform is then a sum of R rows, and a block
with some rows k1 of a spectrum in transposed order needs nothing but the kernel::

    H[k1, k2] = FFT over n2 of  W_N^(k1 n2) * sum_{n1 < R} h[n1, n2] W_N1^(k1 n1)

No padded kernel is ever stored, and nothing is exchanged. Along an axis in natural order a block
holds a range of frequencies: the same sum with one row for every sample, or an FFT.

These sums are no matrix products of `numpy.matmul`, because BLAS would start its own threads inside
each of dask's threads. Its number of threads is a setting of the process, or of each thread, by
library, so tasks cannot limit it without a change for the user. Many rows are summed by FFTs, as in
the chirp z-transform (Rabiner, Schafer and Rader, Bell Syst. Tech. J. 48, 1969)::

    k n = (k^2 + n^2 - (k - n)^2) / 2
"""

import math
from typing import Any

import numpy as np

from dask_bigfft.arrays import Array
from dask_bigfft.gpu.on_gpu import on_own_gpu
from dask_bigfft.kernels.libraries import Call, FFTLibrary, get_library
from dask_bigfft.kernels.twiddle import twiddle, unit_roots
from dask_bigfft.kernels.views import allocate_like
from dask_bigfft.signal.arguments import fast_length
from dask_bigfft.signal.transforms import ProductPhase, SpectrumAxis

#: Maximum number of rows of a kernel (samples, in natural order) that are summed directly.
MOST_ROWS = 64

#: Rows that are summed in the time of the two FFTs that sum any number of rows.
SUMMED_ROWS = 8


def _rows(along: SpectrumAxis, samples: int) -> int:
    """Return the number R of rows of a kernel that are not zero, or of samples in natural order."""
    return -(-samples // along.digits[-1]) if len(along.digits) > 1 else samples


def is_local(along: SpectrumAxis, samples: int) -> bool:
    """Return True if a block of a kernel's spectrum is cheap to compute from the kernel."""
    return _rows(along, samples) <= MOST_ROWS or (along.whole and len(along.digits) == 1)


def _padded(x: Array, length: int) -> Array:
    """Return an array with zeros at the end of the last axis, up to some length."""
    widths = [(0, 0)] * (x.ndim - 1)
    widths.append((0, length - x.shape[-1]))
    return np.pad(x, widths)


def _summed_rows(
    x: Array,
    low: int,
    high: int,
    modulus: int,
) -> Array:
    """Return the sums of `_dft_rows` row by row."""
    frequencies = np.arange(low, high, dtype=np.int64)
    rows = np.arange(x.shape[1], dtype=np.int64)
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
    return work[:, :count] * chirp(frequency * frequency)[:, None]


def _dft_rows(
    x: Array,
    low: int,
    high: int,
    modulus: int,
    library: str,
) -> Array:
    """Return sums over the rows n of x with W_modulus^(k n), for k = low..high-1.

    Parameters
    ----------
    x : ndarray
        Of shape (lines, rows, columns).
    low, high : int
        First frequency k, and the end of the frequencies.
    modulus : int
        Order of the root of unity W.
    library : str
        FFT library.

    Returns
    -------
    ndarray
        Complex, of shape (lines, high - low, columns).
    """
    rows = x.shape[1]
    count = high - low
    if rows * count <= SUMMED_ROWS * (rows + count):
        return _summed_rows(
            x,
            low,
            high,
            modulus,
        )
    return _chirped_rows(
        x,
        low,
        high,
        modulus,
        get_library(library),
    )


def _in_digits(
    x: Array,
    along: SpectrumAxis,
    low: int,
    high: int,
    library: str,
) -> Array:
    """Return places low..high-1 of the spectrum in transposed order, along the last axis of x."""
    n1, n2 = along.digits
    lines = math.prod(x.shape[:-1])
    rows = _rows(along, x.shape[-1])
    padded = _padded(x, rows * n2).reshape(lines, rows, n2)
    first = low // n2
    last = -(-high // n2)
    sums = _dft_rows(
        padded,
        first,
        last,
        n1,
        library,
    )
    flat = np.ascontiguousarray(sums).reshape(-1, n2, 1)
    k1 = np.tile(np.arange(first, last, dtype=np.int64), lines)
    twiddle(
        flat,
        k1,
        along.length,
        -1,
    )
    spectrum: Array = get_library(library).c2c(flat, (1,), -1)
    return spectrum.reshape(*x.shape[:-1], -1)[..., low - first * n2 : high - first * n2]


def _in_order(
    x: Array,
    along: SpectrumAxis,
    low: int,
    high: int,
    library: str,
) -> Array:
    """Return frequencies low..high-1 along the last axis of x."""
    if not along.whole and x.shape[-1] <= MOST_ROWS:
        column = x.reshape(-1, x.shape[-1], 1)
        return _dft_rows(
            column,
            low,
            high,
            along.length,
            library,
        ).reshape(*x.shape[:-1], -1)
    padded = _padded(x, along.length)
    if x.dtype.kind != "c" and along.half:
        half: Array = get_library(library).run(Call("r2c", (padded.ndim - 1,), -1), padded)
        return half[..., low:high]
    padded = padded.astype(np.result_type(x.dtype, np.complex64), copy=False)
    return get_library(library).c2c(padded, (padded.ndim - 1,), -1)[..., low:high]


def spectrum_block(
    kernel: Array,
    axes: tuple[SpectrumAxis, ...],
    block: tuple[int, ...],
    library: str,
    dtype: np.dtype[Any],
) -> Array:
    """Return the part of a kernel's spectrum that belongs to a block.

    Parameters
    ----------
    kernel : ndarray
        Real or complex.
    axes : tuple of SpectrumAxis
        The transformed axes.
    block : tuple of int
        Index of the block of the spectrum.
    library : str
        FFT library.
    dtype : dtype
        Dtype of the product.
    """
    real = any(along.half for along in axes) and kernel.dtype.kind != "c"
    input_dtype = np.empty(0, dtype).real.dtype if real else dtype
    spectrum = kernel.astype(input_dtype, copy=False)
    # Half a spectrum needs real input, so its axis comes first. Axes of which a block has only a
    # part come before the others, whose transforms are long.
    for along in sorted(axes, key=lambda a: (not a.half, a.whole)):
        low, high = along.places(block)
        transform = _in_digits if len(along.digits) > 1 else _in_order
        lines = np.moveaxis(spectrum, along.axis, -1)
        spectrum = np.moveaxis(
            transform(
                lines,
                along,
                low,
                high,
                library,
            ),
            -1,
            along.axis,
        )
    return spectrum


@on_own_gpu
def product(
    a: Array,
    b: Array,
    conjugate: bool,
    phase: ProductPhase,
) -> Any:
    """Return the product of two blocks, optionally conjugating the second."""
    shape = np.broadcast_shapes(a.shape, b.shape)
    out = allocate_like(a, shape, np.result_type(a.dtype, b.dtype))
    with phase.measured(out.nbytes):
        if not conjugate:
            return np.multiply(a, b, out=out)
        np.conjugate(b, out=out)
        return np.multiply(out, a, out=out)
