"""Oracles: the exact DFT, and arrays whose elements hold their index.

The transform is summed directly from its definition, in long double, with reduced integer phases.
It shares no code with the library, so that both cannot have the same mistake::

    X[k] = scale * sum_n x[n] exp(sign * 2j*pi * (n*k mod N)/N)

On platforms where long double equals double (Windows, Apple silicon) it cannot tell which of two
double precision results is better: see `EXTENDED`.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

#: True if long double is more precise than double on this platform.
EXTENDED: bool = bool(np.finfo(np.longdouble).eps < np.finfo(np.float64).eps)


@lru_cache(maxsize=64)
def _roots(n: int) -> Array:
    """Return exp(-2j*pi*t/n) for t = 0..n-1 in long double, from angles of at most half a turn."""
    t = (np.arange(n) + n // 2) % n - n // 2
    angle = 8 * np.arctan(np.longdouble(1)) * (t.astype(np.longdouble) / np.longdouble(n))
    roots: Array = np.cos(angle) - 1j * np.sin(angle)
    roots.flags.writeable = False
    return roots


def exact_dft(x: npt.ArrayLike, axis: int = -1, sign: int = -1) -> Array:
    """Return the unscaled DFT along one axis, summed directly in long double.

    Parameters
    ----------
    x
        Real or complex; N**2 operations for each line, so N up to a few thousand.
    axis, sign
        Axis, and sign of the exponent.

    Examples
    --------
    >>> exact_dft([1, 0, 0, 0]).astype(complex).tolist()
    [(1+0j), (1+0j), (1+0j), (1+0j)]
    """
    lines = np.moveaxis(np.asarray(x).astype(np.clongdouble), axis, -1)
    n, out = lines.shape[-1], np.zeros(lines.shape, np.clongdouble)
    roots, places = _roots(n) if sign < 0 else _roots(n).conj(), np.arange(n, dtype=np.int64)
    for k in range(n):
        out[..., k] = (roots[places * k % n] * lines).sum(axis=-1)
    return np.moveaxis(out, -1, axis)


def exact_irdft(x: npt.ArrayLike, n: int, axis: int = -1, sign: int = 1) -> Array:
    """Return the unscaled real DFT of length `n` of half a spectrum, in long double.

    Parameters
    ----------
    x
        ``n//2 + 1`` entries along the axis. The imaginary part of the first entry is ignored, and
        for even `n` that of the last one.
    n, axis, sign
        Length of the result, axis, and sign of the exponent.

    Examples
    --------
    >>> exact_irdft([4, 0, 0], 4).astype(float).tolist()
    [4.0, 4.0, 4.0, 4.0]
    """
    half, k = np.moveaxis(np.asarray(x).astype(np.clongdouble), axis, 0), np.arange(n)
    full = half[np.minimum(k, n - k)]
    full[2 * k > n] = full[2 * k > n].conj()
    full[2 * k % n == 0] = full[2 * k % n == 0].real
    return np.moveaxis(exact_dft(full, 0, sign).real, 0, axis)


def relative_l2(found: npt.ArrayLike, exact: npt.ArrayLike) -> float:
    """Return the L2 norm of the difference over that of the exact array.

    If the exact array is zero or empty, the norm of the difference is returned.

    Examples
    --------
    >>> relative_l2([3.0, 4.5], [3.0, 4.0])
    0.1
    """
    a = np.asarray(found).astype(np.clongdouble)
    b = np.asarray(exact).astype(np.clongdouble)
    if a.shape != b.shape:
        raise AssertionError(f"shape {a.shape} where {b.shape} was expected")
    size = np.sqrt(np.sum(np.abs(b) ** 2))
    error = np.sqrt(np.sum(np.abs(a - b) ** 2))
    return float(error / size if size > 0 else error)
