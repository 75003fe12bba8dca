"""The logarithmic Hankel transforms of `scipy.fft` on dask arrays.

For a(r) on logarithmically spaced r, the Hankel transform of order mu is a convolution, and so a
product with coefficients between two real transforms (A. J. S. Hamilton, MNRAS 312, 257, 2000)::

    r^-q a(r) --rfft--> product with u_m --irfft--> reversed, times k^-q

    u_m = (k r)^(-2 pi i m / L) U(q + 2 pi i m / L),   L = n dln
    U(x) = 2^x Gamma((mu + 1 + x) / 2) / Gamma((mu + 1 - x) / 2)

Imports `fft`.
"""

import math
import warnings
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt
from scipy.special import loggamma, poch

from dask_bigfft import fft

__all__ = ["fht", "ifht"]

Array = npt.NDArray[Any]


def fht(a: da.Array, dln: float, mu: float, offset: float = 0.0, bias: float = 0.0) -> da.Array:
    """Return the fast Hankel transform of the last axis, as `scipy.fft.fht` does.

    Parameters
    ----------
    a : dask.array.Array
        Real, on points spaced by `dln` in the logarithm; of any chunking.
    dln : float
        Spacing in the natural logarithm.
    mu : float
        Order.
    offset : float
        Of the logarithms of the output's points.
    bias : float
        Exponent of the power law that is taken off first.
    """
    n = a.shape[-1]
    first = _first_coefficient(mu, bias)
    if math.isinf(first):
        warnings.warn("singular transform; consider changing the bias", stacklevel=2)
        first = 0.0
    plain = _times_power(a, -bias * dln, 0.0)
    u = _coefficients(n, first, dln=dln, mu=mu, offset=offset, bias=bias)
    spectrum = fft.rfft(plain) * u
    return _times_power(fft.irfft(spectrum, n)[..., ::-1], -bias * dln, -bias * offset)


def ifht(A: da.Array, dln: float, mu: float, offset: float = 0.0, bias: float = 0.0) -> da.Array:
    """Return the inverse of `fht`; parameters are those of `fht`."""
    n = A.shape[-1]
    first = _first_coefficient(mu, bias)
    if first == 0:
        text = "singular inverse transform; consider changing the bias"
        warnings.warn(text, stacklevel=2)
        first = math.inf
    plain = _times_power(A, bias * dln, bias * offset)
    u = _coefficients(n, first, dln=dln, mu=mu, offset=offset, bias=bias)
    spectrum = fft.rfft(plain) / da.conj(u)
    return _times_power(fft.irfft(spectrum, n)[..., ::-1], bias * dln, 0.0)


def _times_power(x: da.Array, slope: float, constant: float) -> da.Array:
    """The last axis times exp(slope * distance from the middle + constant), if that is not 1."""
    if slope == 0 and constant == 0:
        return x
    n = x.shape[-1]
    places = da.arange(n, chunks=(x.chunks[-1],), dtype=float)
    found: da.Array = x * da.exp(slope * (places - (n - 1) / 2) + constant)
    return found


def _first_coefficient(mu: float, bias: float) -> float:
    """The coefficient u_0, which may be infinite or 0: then a transform is singular."""
    high, low = (mu + 1 + bias) / 2, (mu + 1 - bias) / 2
    found = np.exp(loggamma(complex(high)) - loggamma(complex(low))) * 2.0**bias
    if np.isfinite(found):
        return float(found.real)
    return float(2.0**bias * poch(low, high - low))


def _coefficients(n: int, first: float, **parameters: float) -> da.Array:
    """u_m for m = 0..n//2."""
    places = da.arange(n // 2 + 1, dtype=float)
    found: da.Array = places.map_blocks(
        _coefficient_block, dtype=np.complex128, n=n, first=first, **parameters
    )
    return found


def _coefficient_block(
    m: Array, n: int, first: float, dln: float, mu: float, offset: float, bias: float
) -> Array:
    y = math.pi * m / (n * dln)
    high = loggamma((mu + 1 + bias) / 2 + 1j * y)
    low = loggamma((mu + 1 - bias) / 2 + 1j * y)
    phase = high.imag + low.imag + 2 * y * (math.log(2.0) - offset)
    u: Array = np.exp(high.real - low.real + math.log(2.0) * bias + 1j * phase)
    u[m == 0] = first
    if n % 2 == 0:
        u[m == n // 2] = u[m == n // 2].real
    return u
