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

__all__ = ["WIDTH", "Turn", "Weights", "energy", "weighted_sum"]

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


def _add_three(x, y, z, a, b, p, q):  # type: ignore[no-untyped-def]
    """Add three lines, each times two weights, to two sums; return their energy.

    With more of them the compiler would not look whether any two overlap, and take them one by one.
    """
    e = x.dtype.type(0)
    a0, a1, a2 = a[0], a[1], a[2]
    b0, b1, b2 = b[0], b[1], b[2]
    for i in range(len(x)):
        u, v, w = x[i], y[i], z[i]
        p[i] += a0 * u + a1 * v + a2 * w
        q[i] += b0 * u + b1 * v + b2 * w
        e += u * u + v * v + w * w
    return e


_fast_squares = compiled(_squares, fastmath=_FAST)
_fast_dot = compiled(_dot, fastmath=_FAST)
_fast_add = compiled(_add, fastmath=_FAST)
_fast_add_three = compiled(_add_three, fastmath=_FAST)


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
    """Sums of each line with two sets of weights; return the energy of all.

    All lines take their turn with some weights, which stay in L1.
    """
    total = 0.0
    out[:] = 0
    for start in range(0, x.shape[1], STRIP):
        stop = start + STRIP
        for o in range(x.shape[0]):
            s, t, e = _fast_dot(x[o, start:stop], a[start:stop], b[start:stop])
            out[o, 0] += s
            out[o, 1] += t
            total += e
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
            done = x.shape[1] - x.shape[1] % 3
            for j in range(0, done, 3):
                u, v, w = x[o, j, low:high], x[o, j + 1, low:high], x[o, j + 2, low:high]
                total += _fast_add_three(u, v, w, a[row, j : j + 3], b[row, j : j + 3], p, q)
            for j in range(done, x.shape[1]):
                total += _fast_add(x[o, j, low:high], a[row, j], b[row, j], p, q)
    return total


class Weights:
    """Weights along a dimension, made ready for values of a dtype.

    Parameters
    ----------
    values : ndarray of complex
        One for each place.
    dtype : dtype
        Of what they weigh: single or double precision, real or complex.
    """

    def __init__(self, values: Array, dtype: np.dtype[Any]) -> None:
        kept = np.empty(0, dtype).real.dtype
        self.values = values.astype(complex)
        self.real, self.imag = (
            np.ascontiguousarray(part, kept) for part in (self.values.real, self.values.imag)
        )
        #: What values count in both sums, real and imaginary part after one another.
        self.one, self.other = self.real, self.imag
        if dtype.kind == "c":
            along = self.values.astype(dtype).conj()
            self.one, self.other = along.view(kept), (1j * along).astype(dtype).view(kept)
        self.every, self.first = self.values[::WIDTH].copy(), self.values[:WIDTH].copy()
        if len(values):
            self.first /= self.values[0]


def weighted_sum(
    values: Array, dim: int, weights: Weights, turn: Turn | None = None
) -> tuple[Array, float]:
    """Return the values summed with weights along one dimension, and their energy.

    Parameters
    ----------
    values : ndarray, contiguous
        Of single or double precision, real or complex.
    dim : int
        Dimension.
    weights : Weights
        Along it, for values of their dtype.
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
    rest = None if turn is None else turn.rest
    if rest is not None and len(rest) != outer:
        rest = np.tile(rest, outer // len(rest))
    if inner == 1:
        sums, lines = np.empty((outer, 2), kept), values.view(kept).reshape(outer, -1)
        if turn is not None and rest is not None:
            table = phase_table(turn.modulus, turn.sign)
            parts = table.coarse, table.fine, table.shift, table.mask
            total = _turned_dots(lines, weights.every, weights.first, rest, *parts, sums)
        else:
            total = _dots(lines, weights.one, weights.other, sums)
        found = sums.view(np.result_type(kept, np.complex64))
    else:
        re, im = weights.real[None, :], weights.imag[None, :]
        if turn is not None and rest is not None:
            rows = np.repeat(weights.values[None, :, None], outer, axis=0)
            twiddle(rows, rest, turn.modulus, turn.sign)
            re, im = (np.ascontiguousarray(part[:, :, 0], kept) for part in (rows.real, rows.imag))
        is_complex = values.dtype.kind == "c"
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
