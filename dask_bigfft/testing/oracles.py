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
    half = n // 2
    numerators = (np.arange(n) + half) % n - half
    turns = numerators.astype(np.longdouble) / np.longdouble(n)
    one_turn = 8 * np.arctan(np.longdouble(1))
    angles = one_turn * turns
    roots: Array = np.cos(angles) - 1j * np.sin(angles)
    roots.flags.writeable = False
    return roots


def exact_dft(
    x: npt.ArrayLike,
    axis: int = -1,
    sign: int = -1,
) -> Array:
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
    values = np.asarray(x).astype(np.clongdouble)
    lines = np.moveaxis(values, axis, -1)
    length = lines.shape[-1]
    roots = _roots(length)
    if sign >= 0:
        roots = roots.conj()
    n = np.arange(length, dtype=np.int64)
    spectrum = np.zeros(lines.shape, np.clongdouble)
    for k in range(length):
        phases = roots[n * k % length]
        spectrum[..., k] = (phases * lines).sum(axis=-1)
    return np.moveaxis(spectrum, -1, axis)


def exact_irdft(
    x: npt.ArrayLike,
    n: int,
    axis: int = -1,
    sign: int = 1,
) -> Array:
    """Return the unscaled DFT of a Hermitian sequence of length `n`, given its first half.

    The result is real, in long double.

    Parameters
    ----------
    x
        ``n//2 + 1`` entries along the axis. The imaginary part of the first entry is ignored, and
        for even `n` that of the last one.
    n, axis, sign
        Length of the result, axis, and sign of the exponent.

    Raises
    ------
    ValueError
        If `x` has another number of entries along the axis.

    Examples
    --------
    >>> exact_irdft([4, 0, 0], 4).astype(float).tolist()
    [4.0, 4.0, 4.0, 4.0]
    """
    values = np.asarray(x).astype(np.clongdouble)
    half = np.moveaxis(values, axis, 0)
    if len(half) != n // 2 + 1:
        raise ValueError(
            f"x has {len(half)} entries along axis {axis}; need {n // 2 + 1} for n={n}"
        )
    k = np.arange(n)
    full = half[np.minimum(k, n - k)]
    is_mirrored = 2 * k > n
    full[is_mirrored] = full[is_mirrored].conj()
    is_real = 2 * k % n == 0
    full[is_real] = full[is_real].real
    transform = exact_dft(full, axis=0, sign=sign)
    return np.moveaxis(transform.real, 0, axis)


def relative_l2(found: npt.ArrayLike, exact: npt.ArrayLike) -> float:
    """Return the L2 norm of the difference over that of the exact array.

    If the exact array is zero or empty, the norm of the difference is returned.

    Examples
    --------
    >>> relative_l2([3.0, 4.5], [3.0, 4.0])
    0.1
    """
    computed_values = np.asarray(found).astype(np.clongdouble)
    exact_values = np.asarray(exact).astype(np.clongdouble)
    if computed_values.shape != exact_values.shape:
        shapes = f"shape {computed_values.shape} where {exact_values.shape} was expected"
        raise AssertionError(shapes)
    error = _norm(computed_values - exact_values)
    size = _norm(exact_values)
    return float(error / size if size > 0 else error)


def _norm(values: Array) -> Any:
    """Return the L2 norm of an array in long double."""
    return np.sqrt(np.sum(np.abs(values) ** 2))
