"""Sums that checks are made of: the energy of values, and their sum with weights.

Both in one pass over the values, which cost more to load than to add up. Values are taken as lines,
each with a weight, of places with weights: lines are added up first, a strip at a time, and
multiplied with the weights of places once. Twiddles that stand between the values and their
weights are multiplied with the weights, row by row.

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

#: Width of the strips in which lines are added up: the sums stay in L1.
STRIP = 512

#: Bytes of a line of the caches.
LINE = 64

#: Bytes of a page. Two strips begin half a page apart, or that and whole pages: a load from one
#: whose place in its page is that of a store to the other just before is taken to depend on it.
PAGE = 4096

#: Widths in double precision up to which two sums are made one after the other: short loops with
#: one sum take less than half the time of those with two (of 32 values 0.56 of it, of 128 0.9).
NARROW = 128

#: Lines that are added up before the sum is added to the others in double precision.
ROWS = 1024

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


def _dot(x, a, b):  # type: ignore[no-untyped-def]
    """Sums of a line with two sets of weights."""
    s, t = x.dtype.type(0), x.dtype.type(0)
    for i in range(len(x)):
        v = x[i]
        s += a[i] * v
        t += b[i] * v
    return s, t


def _weighed_dot(x, a, b):  # type: ignore[no-untyped-def]
    """Sums of a line with two sets of weights, and its energy."""
    s, t, e = x.dtype.type(0), x.dtype.type(0), x.dtype.type(0)
    for i in range(len(x)):
        v = x[i]
        s += a[i] * v
        t += b[i] * v
        e += v * v
    return s, t, e


def _adding(twice: bool) -> Any:
    """Return what adds four lines, each times a weight or `twice`, to one sum or two.

    It returns their energy. Compiled for each case: asking in the loop takes up to a tenth more.
    """

    def add(x, at, step, n, a, b, row, p, q):  # type: ignore[no-untyped-def]
        # Places are unsigned: numba tests signed ones for being negative at every access.
        e = x.dtype.type(0)
        a0, a1, a2, a3 = a[row], a[row + 1], a[row + 2], a[row + 3]
        b0, b1, b2, b3 = (b[row], b[row + 1], b[row + 2], b[row + 3]) if twice else (a0, a1, a2, a3)
        at1, at2, at3 = at + step, at + step + step, at + step + step + step
        for i in range(np.uintp(n)):
            j = np.uintp(i)
            k, m, o, u = x[at + j], x[at1 + j], x[at2 + j], x[at3 + j]
            p[j] += (a0 * k + a1 * m) + (a2 * o + a3 * u)
            if twice:
                q[j] += (b0 * k + b1 * m) + (b2 * o + b3 * u)
            e += (k * k + m * m) + (o * o + u * u)
        return e

    return compiled(add, fastmath=FAST)


def _add_again(x, at, step, n, b, row, q):  # type: ignore[no-untyped-def]
    """Add four lines, each times a weight, to a sum."""
    b0, b1, b2, b3 = b[row], b[row + 1], b[row + 2], b[row + 3]
    at1, at2, at3 = at + step, at + step + step, at + step + step + step
    for i in range(np.uintp(n)):
        j = np.uintp(i)
        q[j] += (b0 * x[at + j] + b1 * x[at1 + j]) + (b2 * x[at2 + j] + b3 * x[at3 + j])


_fast_dot = compiled(_dot, fastmath=FAST)
_fast_weighed_dot = compiled(_weighed_dot, fastmath=FAST)
_fast_add_four, _fast_add_four_twice = _adding(False), _adding(True)
_fast_add_again = compiled(_add_again, fastmath=FAST)


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
def _add_rows(x, first, last, low, n, step, a, b, p, q):  # type: ignore[no-untyped-def]
    """Add a strip of some lines, four at a time, to one sum, or to two if weights are complex.

    Return the energy.
    """
    total, narrow = 0.0, x.itemsize == 8 and n <= NARROW
    for j in range(first, last, 4):
        at = np.uintp(j) * step + np.uintp(low)
        if len(b) and not narrow:
            total += _fast_add_four_twice(x, at, step, n, a, b, j, p, q)
        else:
            total += _fast_add_four(x, at, step, n, a, b, j, p, q)
            if len(b):
                _fast_add_again(x, at, step, n, b, j, q)
    return total


@compiled
def _strips(x, width):  # type: ignore[no-untyped-def]
    """Room for two strips of values like those of `x`, each from the beginning of a cache line on.

    Vectors that reach across the end of a line are loaded and stored in two.
    """
    half = PAGE // 2
    apart = ((width * x.itemsize + half - 1) // PAGE * PAGE + half) // x.itemsize
    room = np.empty(apart + width + LINE // x.itemsize, x.dtype)
    skip = (LINE - room.ctypes.data % LINE) % LINE // x.itemsize
    return room[skip : skip + width], room[skip + apart : skip + apart + width]


@compiled
def _sum_of_rows(x, rows, a, b, one, other):  # type: ignore[no-untyped-def]
    """Sum of lines with weights, real parts and imaginary parts, if there are any, and of places.

    Also the energy of all.
    """
    width, re, im, total = len(one), 0.0, 0.0, 0.0
    (ours, theirs), step = _strips(x, STRIP), np.uintp(len(one))
    for first in range(0, rows, ROWS):
        last = min(rows, first + ROWS)
        done = last - (last - first) % 4
        for low in range(0, width, STRIP):
            high = min(width, low + STRIP)
            u, v, n = one[low:high], other[low:high], high - low
            if done > first:
                p, q = ours[:n], theirs[:n]
                p[:], q[:] = 0, 0
                total += _add_rows(x, first, done, low, n, step, a, b, p, q)
                s, t = _fast_dot(p, u, v)
                re += s
                im += t
                if len(b):
                    s, t = _fast_dot(q, u, v)
                    re -= t
                    im += s
            for j in range(done, last):
                s, t, e = _fast_weighed_dot(x[j * width + low : j * width + high], u, v)
                re += a[j] * s
                im += a[j] * t
                total += e
                if len(b):
                    re -= b[j] * t
                    im += b[j] * s
    return re, im, total


@compiled
def _sum_of_turned(x, a, outer, inner, rest, coarse, fine, shift, mask):  # type: ignore[no-untyped-def]
    """Sum of lines with a weight each, and weights of places times twiddles; and all energy.

    The weight of place i * len(inner) + j is outer[i] * inner[j], and so is the twiddle a product:
    each line has sums of stretches with the same weights, and then a sum of these.
    """
    n, width, total, found = x.shape[1] // 2, len(inner), 0.0, 0j
    one, other = _strips(x, 2 * width)
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
