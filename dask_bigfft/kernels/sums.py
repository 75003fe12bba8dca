"""Sums that checks are made of: the energy of values, and weighted sums along a dimension.

Both in one pass over the values, which cost more to load than to add up. Twiddles that stand
between the values and their weights are multiplied with the weights, row by row.

Imports numba and this room.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.phases import phase_table
from dask_bigfft.kernels.compiled import compiled
from dask_bigfft.kernels.twiddle import twiddle

__all__ = ["WIDTH", "Turn", "energy", "weighted_sum"]

Array = npt.NDArray[Any]

#: Values that are summed in their own precision before the sum is added to the others in double.
STRETCH = 4096

#: Width of the strips in which lines are added up: both sums stay in L1.
STRIP = 512

#: Values of a line whose weights are the same in each stretch of so many, but for one factor.
WIDTH = 128

#: What the compiler may do with sums; not that it may take NaN for impossible.
_FAST = {"reassoc", "contract", "nsz", "arcp"}


class Turn(NamedTuple):
    """Twiddles ``exp(sign*2j*pi*rest[l]*f/modulus)`` of rows l and places f.

    The weights that go with them are products: that of place i * `WIDTH` + j is the one of place
    i * `WIDTH` times the one of j, over the first.
    """

    rest: npt.NDArray[np.int64]
    modulus: int
    sign: int


def _squares(x):  # type: ignore[no-untyped-def]
    total = x.dtype.type(0)
    for i in range(len(x)):
        v = x[i]
        total += v * v
    return total


def _dot(x, a, b):  # type: ignore[no-untyped-def]
    """Sums of a line with two sets of weights, and its energy."""
    s, t, e = x.dtype.type(0), x.dtype.type(0), x.dtype.type(0)
    for i in range(len(x)):
        v = x[i]
        s += a[i] * v
        t += b[i] * v
        e += v * v
    return s, t, e


def _add(x, a, b, p, q):  # type: ignore[no-untyped-def]
    """Add a line times two weights to two sums; return its energy."""
    e = x.dtype.type(0)
    for i in range(len(x)):
        v = x[i]
        p[i] += a * v
        q[i] += b * v
        e += v * v
    return e


_fast_squares = compiled(_squares, fastmath=_FAST)
_fast_dot = compiled(_dot, fastmath=_FAST)
_fast_add = compiled(_add, fastmath=_FAST)


@compiled
def _squares_of_lines(x):  # type: ignore[no-untyped-def]
    """Sum of squares of all lines, in double precision."""
    total = 0.0
    for i in range(x.shape[0]):
        for start in range(0, x.shape[1], STRETCH):
            total += _fast_squares(x[i, start : start + STRETCH])
    return total


@compiled
def _dots(x, a, b, out):  # type: ignore[no-untyped-def]
    """Sums of each line with two sets of weights; return the energy of all."""
    total = 0.0
    for o in range(x.shape[0]):
        s, t = 0.0, 0.0
        for start in range(0, x.shape[1], STRETCH):
            stop = start + STRETCH
            u, v, e = _fast_dot(x[o, start:stop], a[start:stop], b[start:stop])
            s += u
            t += v
            total += e
        out[o, 0], out[o, 1] = s, t
    return total


@compiled
def _turned_dots(x, outer, inner, rest, coarse, fine, shift, mask, out):  # type: ignore[no-untyped-def]
    """Sums of each line of complex numbers with weights times twiddles; return all energy.

    The weight of place i * len(inner) + j is outer[i] * inner[j], and so is the twiddle a product:
    each line has sums of stretches with the same weights, and then a sum of these.
    """
    n, width, total = x.shape[1] // 2, len(inner), 0.0
    a, b = np.empty(2 * width, x.dtype), np.empty(2 * width, x.dtype)
    for o in range(x.shape[0]):
        r, found = rest[o], 0j
        for j in range(min(width, n)):
            w = inner[j] * coarse[(r * j) >> shift] * fine[(r * j) & mask]
            a[2 * j], a[2 * j + 1] = w.real, -w.imag
            b[2 * j], b[2 * j + 1] = w.imag, w.real
        for i in range(len(outer)):
            start, stop = 2 * i * width, min(2 * (i + 1) * width, 2 * n)
            s, t, e = _fast_dot(x[o, start:stop], a, b)
            place = r * i * width
            w = outer[i] * coarse[place >> shift] * fine[place & mask]
            found += w * complex(s, t)
            total += e
        out[o, 0], out[o, 1] = found.real, found.imag
    return total


@compiled
def _line_sums(x, a, b, one, other):  # type: ignore[no-untyped-def]
    """Sums over the lines of each plane with two sets of weights; return the energy of all.

    There are weights for each plane, or the same for all.
    """
    width, total = x.shape[2], 0.0
    for o in range(x.shape[0]):
        row = min(o, a.shape[0] - 1)
        for low in range(0, width, STRIP):
            high = min(width, low + STRIP)
            p, q = one[o, low:high], other[o, low:high]
            for j in range(x.shape[1]):
                total += _fast_add(x[o, j, low:high], a[row, j], b[row, j], p, q)
    return total


def weighted_sum(
    values: Array, dim: int, weights: Array, turn: Turn | None = None
) -> tuple[Array, float]:
    """Return the values summed with weights along one dimension, and their energy.

    Parameters
    ----------
    values : ndarray, contiguous
        Of single or double precision, real or complex.
    dim : int
        Dimension.
    weights : ndarray of complex
        One for each place along it.
    turn : Turn, optional
        Twiddles that the weights, which are products, are multiplied with, for rows of complex
        values.

    Returns
    -------
    tuple of (ndarray of complex, float)
        Without the dimension; the sum of squared magnitudes.
    """
    shape, kept = values.shape, values.real.dtype
    outer, n, inner = math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :])
    is_complex = values.dtype.kind == "c"
    weights = weights.astype(complex)
    rest = None if turn is None else np.tile(turn.rest, outer // len(turn.rest))
    sums = np.empty((outer, 2), kept)
    if inner == 1 and turn is not None and rest is not None:
        table = phase_table(turn.modulus, turn.sign)
        parts = table.coarse, table.fine, table.shift, table.mask
        lines = values.view(kept).reshape(outer, -1)
        every, first = weights[::WIDTH].copy(), weights[:WIDTH] / weights[0]
        total = _turned_dots(lines, every, first, rest, *parts, sums)
        found = sums.view(np.result_type(kept, np.complex64))
    elif inner == 1:
        re, im = weights.real.astype(kept), weights.imag.astype(kept)
        if is_complex:
            along = weights.astype(values.dtype)
            re, im = along.conj().view(kept), (1j * along.conj()).view(kept)
        total = _dots(values.view(kept).reshape(outer, -1), re, im, sums)
        found = sums.view(np.result_type(kept, np.complex64))
    else:
        along = weights[None, :]
        if turn is not None and rest is not None:
            rows = np.repeat(weights[None, :, None], outer, axis=0)
            twiddle(rows, rest, turn.modulus, turn.sign)
            along = rows[:, :, 0]
        re, im = (np.ascontiguousarray(part, kept) for part in (along.real, along.imag))
        one, other = (np.zeros((outer, inner * (1 + is_complex)), kept) for _ in range(2))
        total = _line_sums(values.reshape(outer, n, inner).view(kept), re, im, one, other)
        if is_complex:
            one, other = one.view(values.dtype), other.view(values.dtype)
        found = one + 1j * other
    return found.reshape(shape[:dim] + shape[dim + 1 :]), float(total)


def energy(values: Array, dim: int = 0) -> float:
    """Return the sum of squared magnitudes of an array that is contiguous from `dim` on.

    >>> energy(np.array([[3 + 4j, 0], [0, 1j]]))
    26.0
    """
    lines = values.reshape(math.prod(values.shape[:dim]), math.prod(values.shape[dim:]))
    if values.dtype.char in "FDfd" and lines.size and lines.strides[1] == lines.itemsize:
        return float(_squares_of_lines(lines.view(lines.real.dtype)))
    wide = lines.astype(np.result_type(lines.dtype, np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        return float((wide.real**2 + wide.imag**2).sum())
