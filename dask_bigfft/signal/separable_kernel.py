"""The spectrum of a separable kernel: the product of a spectrum for each axis.

Gaussians and boxes are outer products of a vector for each axis, and so are their spectra::

    h[n, m] = u[n] v[m]    -->    H[k, l] = U[k] V[l]

The spectra of the vectors are computed once. A tile looks up its frequencies, which takes neither
FFTs nor memory as large as the tile.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dask_bigfft.arrays import Array
from dask_bigfft.kernels.products import Slices
from dask_bigfft.kernels.transfer import AxisOnTile, TileTransfer
from dask_bigfft.kernels.twiddle import unit_roots

#: Maximum sum of the differences from a separable kernel, in rounding errors of its absolute sum.
MOST_ERRORS = 16

#: Real and imaginary parts of a spectrum are set to 0 below this, in rounding errors of its
#: largest magnitude.
TINY = 1 / 16

#: Maximum number of samples of a kernel that is compared with an outer product.
MOST_SAMPLES = 1 << 22

#: Maximum length of an axis whose spectrum is computed when the graph is built.
LONGEST = 1 << 16


def separated(kernel: Array) -> tuple[Array, ...] | None:
    """Return a vector for each axis whose outer product is a kernel; None if there are none.

    The convolution with the outer product differs from that with the kernel by rounding errors of
    the kernel's dtype. The lines through the largest value are such vectors. Each is then replaced
    by the one whose product with the others has the least squared difference from the kernel, so
    that rounding errors of single values average out.

    >>> u, v = separated(np.array([[1.0, 2.0], [2.0, 4.0]]))
    >>> u * v
    array([[1., 2.],
           [2., 4.]])
    >>> separated(np.eye(2)) is None
    True
    """
    peak_place = np.unravel_index(int(np.argmax(np.abs(kernel))), kernel.shape)
    peak = kernel[peak_place]
    if peak == 0 or not np.isfinite(peak):
        return None
    unit = kernel.astype(np.result_type(kernel.dtype, np.float64)) / peak
    vectors: list[Array] = []
    for axis in range(kernel.ndim):
        line: list[slice] = [slice(place, place + 1) for place in peak_place]
        line[axis] = slice(None)
        vectors.append(unit[tuple(line)])
    for axis in range(kernel.ndim):
        others = _outer_product(vectors[:axis] + vectors[axis + 1 :])
        across = tuple(other for other in range(kernel.ndim) if other != axis)
        projection = (unit * others.conj()).sum(across, keepdims=True)
        vectors[axis] = projection / (np.abs(others) ** 2).sum()
    difference = np.abs(_outer_product(vectors) - unit).sum()
    allowed = MOST_ERRORS * np.finfo(kernel.dtype).eps * np.abs(unit).sum()
    if difference > allowed:
        return None
    vectors[0] = vectors[0] * peak
    return tuple(vectors)


def _outer_product(vectors: Sequence[Array]) -> Array:
    """Return the product of vectors, each along its own axis; 1 if there are none."""
    return np.asarray(math.prod(vectors[1:], start=vectors[0]) if vectors else 1.0)


@dataclass(frozen=True, eq=False)
class SeparableSpectrum:
    """Spectrum of a separable kernel as the transfer function of an operator.

    Parameters
    ----------
    spectra : mapping of int to ndarray
        Spectrum of the vector of each axis at all frequencies, in natural order, or the vector
        itself along an axis that is not transformed. Each broadcasts against the spectrum.
    """

    spectra: Mapping[int, Array]

    @classmethod
    def of(
        cls,
        vectors: Sequence[Array],
        lengths: Mapping[int, int],
        starts: Mapping[int, int],
        conjugated: bool,
        dtype: np.dtype,
    ) -> "SeparableSpectrum":
        """Return the spectrum of the outer product of vectors, each along its own axis.

        Parameters
        ----------
        vectors : sequence of ndarray
            A vector for each axis, of length 1 along the others.
        lengths : mapping of int to int
            Length of the transform along each transformed axis.
        starts : mapping of int to int
            Element of each vector that is taken as its first one, cyclically; 0 by default.
        conjugated : bool
            Whether the spectrum is conjugated, as for a correlation; a start is then the first lag.
        dtype : dtype
            Complex dtype of the spectrum.
        """
        spectra: dict[int, Array] = {}
        for axis, vector in enumerate(vectors):
            if axis in lengths:
                length = lengths[axis]
                spectrum = np.fft.fft(vector, length, axis)
                if conjugated:
                    spectrum = spectrum.conj()
                shape = [1] * vector.ndim
                shape[axis] = length
                exponents = np.arange(length) * starts.get(axis, 0)
                phases = unit_roots(exponents, length, +1, spectrum.dtype)
                shifted = spectrum * phases.reshape(shape)
                spectra[axis] = _without_tiny_parts(shifted.astype(dtype))
            else:
                spectra[axis] = vector.conj() if conjugated else vector
        return cls(spectra)

    def on_tile(self, axes: Mapping[int, AxisOnTile], like: Array) -> "SeparableOnTile":
        """Return the spectrum at the frequencies of a tile; see `kernels.transfer`."""
        real_dtype = np.empty(0, like.dtype).real.dtype
        factors: list[Array] = []
        for axis, spectrum in self.spectra.items():
            dtype = like.dtype if spectrum.dtype.kind == "c" else real_dtype
            values = spectrum
            if spectrum.shape[axis] > 1:
                values = spectrum.take(axes[axis].host_indices.ravel(), axis)
            factors.append(np.asarray(values.astype(dtype, copy=False), like=like))
        return SeparableOnTile(tuple(factors))


def _without_tiny_parts(spectrum: Array) -> Array:
    """Return a spectrum with 0 in place of real and imaginary parts that are rounding errors.

    Spectra of symmetric vectors have such imaginary parts. Products of several of them are
    subnormal numbers, for which a processor takes ten times as long.
    """
    parts = np.ascontiguousarray(spectrum).view(spectrum.real.dtype)
    least = TINY * np.finfo(parts.dtype).eps * np.abs(spectrum).max()
    return np.where(np.abs(parts) < least, parts.dtype.type(0), parts).view(spectrum.dtype)


@dataclass(frozen=True, eq=False)
class SeparableOnTile(TileTransfer):
    """Spectrum of a separable kernel at the frequencies of a tile.

    Parameters
    ----------
    factors : tuple of ndarray
        Factor of each axis, which broadcasts against the tile.
    """

    factors: tuple[Array, ...]

    def values(self, part: Slices, dtype: np.dtype) -> Array:
        """Return the values in a part of the spectrum of the tile; see `kernels.transfer`."""
        factors: list[Array] = []
        for factor in self.factors:
            pairs = zip(factor.shape, part, strict=True)
            own_part = tuple(slice(None) if size == 1 else cut for size, cut in pairs)
            factors.append(factor[own_part])
        product: Array = math.prod(factors[1:], start=factors[0])
        return product
