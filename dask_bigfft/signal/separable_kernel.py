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

#: Maximum length of an axis whose spectrum is computed when the graph is built.
LONGEST = 1 << 16


def separated(kernel: Array) -> tuple[Array, ...] | None:
    """Return a vector for each axis whose outer product is a kernel; None if there are none.

    The convolution with the outer product differs from that with the kernel by rounding errors of
    the kernel's dtype.

    >>> u, v = separated(np.array([[1.0, 2.0], [2.0, 4.0]]))
    >>> u * v
    array([[1., 2.],
           [2., 4.]])
    >>> separated(np.eye(2)) is None
    True
    """
    peak_place = np.unravel_index(int(np.argmax(np.abs(kernel))), kernel.shape)
    peak = kernel[peak_place]
    if peak == 0:
        return None
    vectors: list[Array] = []
    for axis in range(kernel.ndim):
        line: list[slice] = [slice(place, place + 1) for place in peak_place]
        line[axis] = slice(None)
        through_peak = kernel[tuple(line)]
        vectors.append(through_peak if axis == 0 else through_peak / peak)
    difference = np.abs(math.prod(vectors[1:], start=vectors[0]) - kernel).sum()
    allowed = MOST_ERRORS * np.finfo(kernel.dtype).eps * np.abs(kernel).sum()
    return tuple(vectors) if difference <= allowed else None


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
        """
        spectra: dict[int, Array] = {}
        for axis, vector in enumerate(vectors):
            if axis in lengths:
                length = lengths[axis]
                spectrum = np.fft.fft(vector, length, axis)
                shape = [1] * vector.ndim
                shape[axis] = length
                exponents = np.arange(length) * starts.get(axis, 0)
                phases = unit_roots(exponents, length, +1, np.dtype(np.complex128))
                spectra[axis] = spectrum * phases.reshape(shape)
            else:
                spectra[axis] = vector
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
            factors.append(np.asarray(values.astype(dtype), like=like))
        return SeparableOnTile(tuple(factors))


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
