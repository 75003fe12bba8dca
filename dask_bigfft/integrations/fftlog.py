"""The logarithmic Hankel transforms of `scipy.fft` on dask arrays.

For a(r) on logarithmically spaced r, the Hankel transform of order mu is a convolution, and so a
product with coefficients between two real transforms (A. J. S. Hamilton, MNRAS 312, 257, 2000)::

    r^-q a(r) --rfft--> product with u_m --irfft--> reversed, times k^-q

    u_m = (k r)^(-2 pi i m / L) U(q + 2 pi i m / L),   L = n dln
    U(x) = 2^x Gamma((mu + 1 + x) / 2) / Gamma((mu + 1 - x) / 2)
"""

import math
import warnings

import dask.array as da
import numpy as np
from scipy.special import loggamma, poch

from dask_bigfft import fft
from dask_bigfft.arrays import Array


def fht(
    a: da.Array,
    dln: float,
    mu: float,
    offset: float = 0.0,
    bias: float = 0.0,
) -> da.Array:
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
        Offset of the logarithms of the output's points.
    bias : float
        Exponent of the power law that is divided out first.
    """
    return _hankel(a, dln, mu, offset, bias, inverse=False)


def ifht(
    A: da.Array,
    dln: float,
    mu: float,
    offset: float = 0.0,
    bias: float = 0.0,
) -> da.Array:
    """Return the inverse of `fht`; parameters are those of `fht`."""
    return _hankel(A, dln, mu, offset, bias, inverse=True)


def _hankel(
    a: da.Array,
    dln: float,
    mu: float,
    offset: float,
    bias: float,
    inverse: bool,
) -> da.Array:
    """Return `fht`, or its inverse."""
    n = a.shape[-1]
    first = _first_coefficient(mu, bias)
    if inverse and first == 0:
        warnings.warn("singular inverse transform; consider changing the bias", stacklevel=3)
        first = math.inf
    elif not inverse and first == math.inf:
        warnings.warn("singular transform; consider changing the bias", stacklevel=3)
        first = 0.0
    indices = da.arange(n // 2 + 1, dtype=float)
    u: da.Array = indices.map_blocks(
        _coefficients,
        dtype=np.complex128,
        n=n,
        first=first,
        dln=dln,
        mu=mu,
        offset=offset,
        bias=bias,
    )
    if inverse:
        spectrum = fft.rfft(_times_power(a, bias * dln, bias * offset))
        values = fft.irfft(spectrum / da.conj(u), n)[..., ::-1]
        return _times_power(values, bias * dln, 0.0)
    spectrum = fft.rfft(_times_power(a, -bias * dln, 0.0))
    values = fft.irfft(spectrum * u, n)[..., ::-1]
    return _times_power(values, -bias * dln, -bias * offset)


def _times_power(x: da.Array, slope: float, constant: float) -> da.Array:
    """Return x times exp(slope * distance from the middle + constant) along the last axis."""
    if slope == 0 and constant == 0:
        return x
    n = x.shape[-1]
    indices = da.arange(n, chunks=(x.chunks[-1],), dtype=float)
    distances = indices - (n - 1) / 2
    product: da.Array = x * da.exp(slope * distances + constant)
    return product


def _first_coefficient(mu: float, bias: float) -> float:
    """Return the coefficient u_0; a transform is singular if it is infinite or 0."""
    high = (mu + 1 + bias) / 2
    low = (mu + 1 - bias) / 2
    gamma_ratio = np.exp(loggamma(complex(high)) - loggamma(complex(low)))
    coefficient = gamma_ratio * 2.0**bias
    if np.isfinite(coefficient):
        return float(coefficient.real)
    return float(2.0**bias * poch(low, high - low))


def _coefficients(
    m: Array,
    n: int,
    first: float,
    dln: float,
    mu: float,
    offset: float,
    bias: float,
) -> Array:
    """Return u_m for an array of indices m in 0..n//2."""
    y = math.pi * m / (n * dln)
    high = loggamma((mu + 1 + bias) / 2 + 1j * y)
    low = loggamma((mu + 1 - bias) / 2 + 1j * y)
    log_modulus = high.real - low.real + math.log(2.0) * bias
    phase = high.imag + low.imag + 2 * y * (math.log(2.0) - offset)
    u: Array = np.exp(log_modulus + 1j * phase)
    u[m == 0] = first
    if n % 2 == 0:
        u[m == n // 2] = u[m == n // 2].real
    return u
