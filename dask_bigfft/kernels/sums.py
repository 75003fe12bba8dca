"""Sums that checks are made of: the energy of values, and their sum with weights.

Both in one pass over the values, which cost more to load than to add up. Values are taken as lines,
each with a weight, of places with weights: four lines at a time are added up with the weights of
places, which are loaded once for all four, and then with their own. Twiddles that stand between the
values and their weights are multiplied with the weights, row by row.

Imports numba and this room.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.phases import phase_table
from dask_bigfft.kernels.compiled import compiled
from dask_bigfft.kernels.squares import FAST, squares, squares_of_lines
from dask_bigfft.kernels.twiddle import twiddle
from dask_bigfft.kernels.weights import Weights

__all__ = ["Turn", "energy", "energy_of_real", "weighted_sum"]

Array = npt.NDArray[Any]

#: Weights of places that are used at a time, for all lines: both parts stay in L1.
STRIP = 1024

#: The dtype of real and imaginary parts, of values that compiled loops add up.
_PARTS: dict[str, np.dtype[Any]] = {
    char: np.dtype(np.float32 if char in "fF" else np.float64) for char in "FDfd"
}


class Turn(NamedTuple):
    """Twiddles ``exp(sign*2j*pi*rest[l]*f/modulus)`` of rows l and places f.

    `rest` may be shorter than there are rows: it then applies again and again.
    """

    rest: npt.NDArray[np.int64]
    modulus: int
    sign: int


def _weighed_dot(x, a, b):  # type: ignore[no-untyped-def]
    """Sums of a line with two sets of weights, and its energy."""
    s, t, e = x.dtype.type(0), x.dtype.type(0), x.dtype.type(0)
    for i in range(len(x)):
        v = x[i]
        s += a[i] * v
        t += b[i] * v
        e += v * v
    return s, t, e


def _weighed_dots(x, at, step, n, a, b):  # type: ignore[no-untyped-def]
    """The same of four lines, and the energy of all: each value and each weight is loaded once."""
    # Places are unsigned: numba tests signed ones for being negative at every access.
    zero = x.dtype.type(0)
    s0, s1, s2, s3, t0, t1, t2, t3, e = zero, zero, zero, zero, zero, zero, zero, zero, zero
    at1, at2, at3 = at + step, at + step + step, at + step + step + step
    for i in range(np.uintp(n)):
        j = np.uintp(i)
        k, m, o, r, u, v = x[at + j], x[at1 + j], x[at2 + j], x[at3 + j], a[j], b[j]
        s0 += u * k
        s1 += u * m
        s2 += u * o
        s3 += u * r
        t0 += v * k
        t1 += v * m
        t2 += v * o
        t3 += v * r
        e += (k * k + m * m) + (o * o + r * r)
    return (s0, s1, s2, s3), (t0, t1, t2, t3), e


_fast_weighed_dot = compiled(_weighed_dot, fastmath=FAST)
_fast_weighed_dots = compiled(_weighed_dots, fastmath=FAST)


@compiled
def _squares_of_ends(x, middle):  # type: ignore[no-untyped-def]
    """Sum of squares of the first line of each plane, and of another one unless it is the first."""
    total = 0.0
    if x.shape[2] == 2:  # lines of one value: calls would take longer than sums
        for o in range(x.shape[0]):
            u, v = float(x[o, 0, 0]), float(x[o, 0, 1])
            s, t = (float(x[o, middle, 0]), float(x[o, middle, 1])) if middle > 0 else (0.0, 0.0)
            total += (u * u + v * v) + (s * s + t * t)
        return total
    for o in range(x.shape[0]):
        total += squares(x[o, 0])
        if middle > 0:
            total += squares(x[o, middle])
    return total


@compiled
def _sum_of_rows(x, rows, a, b, one, other):  # type: ignore[no-untyped-def]
    """Sum of lines with weights, real parts and imaginary parts, if there are any, and of places.

    Also the energy of all.
    """
    width, done, re, im, total = len(one), rows - rows % 4, 0.0, 0.0, 0.0
    for low in range(0, width, STRIP):
        high = min(width, low + STRIP)
        u, v, n = one[low:high], other[low:high], high - low
        for j in range(0, done, 4):
            at, step = np.uintp(j) * np.uintp(width) + np.uintp(low), np.uintp(width)
            s, t, e = _fast_weighed_dots(x, at, step, n, u, v)
            for i in range(4):
                re += float(a[j + i]) * float(s[i])
                im += float(a[j + i]) * float(t[i])
                if len(b):
                    re -= float(b[j + i]) * float(t[i])
                    im += float(b[j + i]) * float(s[i])
            total += e
        for j in range(done, rows):
            s1, t1, e = _fast_weighed_dot(x[j * width + low : j * width + high], u, v)
            re += float(a[j]) * float(s1)
            im += float(a[j]) * float(t1)
            if len(b):
                re -= float(b[j]) * float(t1)
                im += float(b[j]) * float(s1)
            total += e
    return re, im, total


@compiled
def _sum_of_turned(x, a, outer, inner, rest, coarse, fine, shift, mask):  # type: ignore[no-untyped-def]
    """Sum of lines with a weight each, and weights of places times twiddles; and all energy.

    The weight of place i * len(inner) + j is outer[i] * inner[j], and so is the twiddle a product:
    each line has sums of stretches with the same weights, and then a sum of these.
    """
    n, width, total, found = x.shape[1] // 2, len(inner), 0.0, 0j
    one, other = np.empty(2 * width, x.dtype), np.empty(2 * width, x.dtype)
    for o in range(x.shape[0]):
        r, along = rest[o % len(rest)], 0j
        for j in range(min(width, n)):
            w = inner[j] * coarse[(r * j) >> shift] * fine[(r * j) & mask]
            one[2 * j], one[2 * j + 1] = w.real, -w.imag
            other[2 * j], other[2 * j + 1] = w.imag, w.real
        for i in range(len(outer)):
            start, stop = 2 * i * width, min(2 * (i + 1) * width, 2 * n)
            s, t, e = _fast_weighed_dot(x[o, start:stop], one, other)
            place = r * i * width
            along += outer[i] * coarse[place >> shift] * fine[place & mask] * complex(s, t)
            total += e
        found += a[o] * along
    return found.real, found.imag, total


@compiled
def _squares_of_half(planes, middle):  # type: ignore[no-untyped-def]
    """Twice the sum of squares, with those of the ends of planes once."""
    return 2 * squares_of_lines(planes.reshape((1, planes.size))) - _squares_of_ends(planes, middle)


def weighted_sum(
    values: Array, weights: Weights, turn: Turn | None = None
) -> tuple[complex, float]:
    """Return the sum of all values with weights, and their energy.

    Parameters
    ----------
    values : ndarray, contiguous
        Real or complex.
    weights : Weights
        For values of this shape and dtype.
    turn : Turn, optional
        Twiddles that the weights of places, which are products, are multiplied with, for complex
        values.
    """
    rows = values.reshape(len(weights.rows), -1)
    if values.dtype.char not in "FDfd":
        return _wide_sum(rows, weights, turn), energy(values)
    x, count = rows.view(rows.real.dtype), len(rows)
    if turn is not None:
        table = phase_table(turn.modulus, turn.sign)
        turns = turn.rest, table.coarse, table.fine, table.shift, table.mask
        re, im, total = _sum_of_turned(x, weights.rows, weights.every, weights.first, *turns)
    else:
        parts = weights.real, weights.imag, weights.one, weights.other
        re, im, total = _sum_of_rows(x.reshape(-1), count, *parts)
    return complex(re, im), total


def _wide_sum(rows: Array, weights: Weights, turn: Turn | None) -> complex:
    """The sum of values of other precisions, of each line on its own."""
    found = 0j
    for o, row in enumerate(rows):
        line = weights.line
        if turn is not None:
            line = line.copy().reshape(1, -1, 1)
            rest = turn.rest[o % len(turn.rest)]
            twiddle(line, np.array([rest]), turn.modulus, turn.sign)
            line = line.ravel()
        found += weights.rows[o] * complex(row @ line)
    return found


def energy(values: Array, dim: int = 0) -> float:
    """Return the sum of squared magnitudes of an array that is contiguous from `dim` on.

    >>> energy(np.array([[3 + 4j, 0], [0, 1j]]))
    26.0
    """
    part = _PARTS.get(values.dtype.char)
    if part is not None and values.flags.c_contiguous and values.size:
        return float(squares_of_lines(values.reshape(1, -1).view(part)))
    lines = values.reshape(math.prod(values.shape[:dim]), math.prod(values.shape[dim:]))
    if part is not None and lines.size and lines.strides[1] == lines.itemsize:
        return float(squares_of_lines(lines.view(part)))
    wide = lines.astype(np.result_type(lines.dtype, np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        return float((wide.real**2 + wide.imag**2).sum())


def energy_of_real(values: Array, dim: int, n: int, total: float | None = None) -> float:
    """Return the energy of a whole spectrum, of which half is there, since it is symmetric.

    Parameters
    ----------
    values : ndarray of complex
        The half.
    dim : int
        Dimension along which it is half.
    n : int
        Length of the whole; the entries 0 and, if it is even, n/2 have no mirror image.
    total : float, optional
        Energy of the half, if it is known.

    Examples
    --------
    >>> energy_of_real(np.array([1, 2, 3 + 0j]), 0, 4), energy_of_real(np.array([1, 2 + 0j]), 0, 3)
    (18.0, 9.0)
    """
    middle = 0 if n % 2 else n // 2
    if values.dtype.char not in "FD" or not values.size:
        total = energy(values) if total is None else total
        ends = values.take([0, middle] if middle else [0], axis=dim)
        return 2 * total - energy(np.ascontiguousarray(ends))
    shape, dense = values.shape, np.ascontiguousarray(values)
    parts = dense.view(_PARTS[values.dtype.char])
    planes = parts.reshape(math.prod(shape[:dim]), shape[dim], -1)
    if total is None:
        return float(_squares_of_half(planes, middle))
    return 2 * total - float(_squares_of_ends(planes, middle))
