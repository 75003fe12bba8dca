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
        Offset of the logarithms of the output's points.
    bias : float
        Exponent of the power law that is divided out first.
    """
    return _hankel(a, dln, mu, offset, bias, inverse=False)


def ifht(A: da.Array, dln: float, mu: float, offset: float = 0.0, bias: float = 0.0) -> da.Array:
    """Return the inverse of `fht`; parameters are those of `fht`."""
    return _hankel(A, dln, mu, offset, bias, inverse=True)


def _hankel(
    a: da.Array, dln: float, mu: float, offset: float, bias: float, inverse: bool
) -> da.Array:
    n, first = a.shape[-1], _first_coefficient(mu, bias)
    if first == (0.0 if inverse else math.inf):
        kind = "inverse transform" if inverse else "transform"
        warnings.warn(f"singular {kind}; consider changing the bias", stacklevel=3)
        first = math.inf if inverse else 0.0
    slope = bias * dln if inverse else -bias * dln
    spectrum = fft.rfft(_times_power(a, slope, bias * offset if inverse else 0.0))
    places = da.arange(n // 2 + 1, dtype=float)
    parameters = {"n": n, "first": first, "dln": dln, "mu": mu, "offset": offset, "bias": bias}
    u: da.Array = places.map_blocks(_coefficients, dtype=np.complex128, **parameters)
    spectrum = spectrum / da.conj(u) if inverse else spectrum * u
    found = fft.irfft(spectrum, n)[..., ::-1]
    return _times_power(found, slope, 0.0 if inverse else -bias * offset)


def _times_power(x: da.Array, slope: float, constant: float) -> da.Array:
    """Return x times exp(slope * distance from the middle + constant) along the last axis."""
    if slope == 0 and constant == 0:
        return x
    n = x.shape[-1]
    places = da.arange(n, chunks=(x.chunks[-1],), dtype=float)
    found: da.Array = x * da.exp(slope * (places - (n - 1) / 2) + constant)
    return found


def _first_coefficient(mu: float, bias: float) -> float:
    """Return the coefficient u_0; a transform is singular if it is infinite or 0."""
    high, low = (mu + 1 + bias) / 2, (mu + 1 - bias) / 2
    found = np.exp(loggamma(complex(high)) - loggamma(complex(low))) * 2.0**bias
    if np.isfinite(found):
        return float(found.real)
    return float(2.0**bias * poch(low, high - low))


def _coefficients(
    m: Array, n: int, first: float, dln: float, mu: float, offset: float, bias: float
) -> Array:
    """Return u_m for an array of indices m in 0..n//2."""
    y = math.pi * m / (n * dln)
    high = loggamma((mu + 1 + bias) / 2 + 1j * y)
    low = loggamma((mu + 1 - bias) / 2 + 1j * y)
    phase = high.imag + low.imag + 2 * y * (math.log(2.0) - offset)
    u: Array = np.exp(high.real - low.real + math.log(2.0) * bias + 1j * phase)
    u[m == 0] = first
    if n % 2 == 0:
        u[m == n // 2] = u[m == n // 2].real
    return u
