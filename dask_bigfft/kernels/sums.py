"""Sums that checks are made of: the energy of values, and their sum with weights.

Both in one pass over the values, which cost more to load than to add up. Values are taken as lines,
each with a weight, of places with weights: four lines at a time are added up with the weights of
places, which are loaded once for all four, and then with their own. Twiddles between the values and
their weights are multiplied with the weights, row by row.

A value after the round has a product of seeded random numbers as its weight, one for its place in
each dimension. Its weight before follows: along a dimension that is transformed, the weights before
are the transform of those after::

    sum_k r[k] * FFT(x)[k] = sum_n FFT(r)[n] * x[n]

The numbers are real, of random sign and of modulus 0.5 to 1.5, which costs half as much as complex
ones would. Where twiddles follow a transform they are complex, of modulus one, and products
themselves, so that twiddles can be multiplied with them at little cost.

Source: J.-Y. Jou and J. A. Abraham, Proc. IEEE 74, 1986.

Imports `decomposition` and this room.
"""

import math
from collections.abc import Mapping
from functools import lru_cache, reduce
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy.fft

from dask_bigfft.decomposition.phases import phase_table
from dask_bigfft.decomposition.steps import Step, half
from dask_bigfft.kernels.compiled import FAST, compiled, squares, squares_of_lines
from dask_bigfft.kernels.twiddle import twiddle

__all__ = [
    "PhaseFactors",
    "Weights",
    "energy",
    "energy_of_real",
    "split",
    "weighted_sum",
    "weights_of",
    "with_rows",
]

Array = npt.NDArray[Any]

#: Values of a line whose weights are the same in each stretch of so many, but for one factor.
WIDTH = 128

#: Values that a line has at least, where the tile allows it.
LINE = 16


class Weights(NamedTuple):
    """Weights of a tile taken as lines: a factor for each line and one for each place in it.

    Real and imaginary parts lie after one another as those of the values do, so that both parts of
    a sum are sums of real products.
    """

    #: Of each line, and of each place, real or complex.
    rows: Array
    line: Array
    #: Both parts of those of lines; no imaginary part if all are real.
    real: Array
    imag: Array
    #: What a place counts in the real part of the sum, and in the imaginary part.
    one: Array
    other: Array
    #: Weights of places that are products: of place i * `WIDTH` + j one of each.
    every: Array
    first: Array


@lru_cache(maxsize=256)
def _signed(dim: int, length: int, size: int) -> Array:
    """Seeded real weights of the first `size` of `length` places."""
    rng = np.random.default_rng([dim, length, size])
    found: Array = rng.uniform(0.5, 1.5, size) * rng.choice([-1.0, 1.0], size)
    return found


@lru_cache(maxsize=64)
def _products(length: int, size: int) -> Array:
    """Seeded complex weights that are products."""
    rng = np.random.default_rng([length, size])
    outer, inner = (np.exp(2j * np.pi * rng.random(n)) for n in (-(-size // WIDTH), WIDTH))
    found: Array = np.outer(outer, inner).ravel()[:size]
    return found


def _after(step: Step, dim: int) -> Array:
    """Weights of what a step makes."""
    if step.twiddle is None:
        return _signed(dim, step.length, step.target.size)
    return _products(step.length, step.target.size)


@lru_cache(maxsize=64)
def _before(step: Step, dim: int) -> Array:
    """Weights of what a step takes."""
    n, weights = step.length, _after(step, dim)
    found: Array
    if step.kind == "c2r":
        found = scipy.fft.fft(weights) if step.sign < 0 else n * scipy.fft.ifft(weights)
        found = 2 * found[: half(n)]
        found[0] /= 2
        if n % 2 == 0:
            found[n // 2] /= 2
        return found
    padded = np.zeros(n, complex)
    padded[: step.target.size] = weights
    return scipy.fft.fft(padded) if step.sign < 0 else n * scipy.fft.ifft(padded)


def split(shape: tuple[int, ...], twiddled: frozenset[int]) -> int:
    """Dimension from which on a tile's values make up lines.

    Twiddles are multiplied with weights of lines, or, where they belong to the last dimension,
    with those of places.

    >>> split((4, 256, 256), frozenset()), split((4, 100, 8), frozenset())
    (2, 1)
    >>> split((4, 256, 2), frozenset({1})), split((9, 8), frozenset({1}))
    (2, 1)
    """
    first = len(shape)
    while first > 0:
        here = first - 1
        if here in twiddled and math.prod(shape[first:]) > 1:
            break
        first = here
        if here in twiddled or math.prod(shape[first:]) >= LINE:
            break
    return first


@lru_cache(maxsize=32)
def weights_of(
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    first: int,
    steps: tuple[tuple[int, Step], ...],
    inward: bool,
) -> Weights:
    """Return the weights of a tile, without twiddles.

    Parameters
    ----------
    shape, dtype
        Of the tile.
    first : int
        Dimension from which on its values make up lines.
    steps : tuple of (int, Step)
        Steps with their dimensions.
    inward : bool
        Whether the tile comes before them.
    """
    made: Mapping[int, Step] = dict(steps)
    along = []
    for dim, size in enumerate(shape):
        step = made.get(dim)
        if step is None:
            along.append(_signed(dim, 0, size))
        else:
            along.append(_before(step, dim) if inward else _after(step, dim))
    rows, line = (
        reduce(lambda a, b: np.outer(a, b).ravel(), part, np.ones(1))
        for part in (along[:first], along[first:])
    )
    kept, wide = np.empty(0, dtype).real.dtype, line.astype(np.result_type(line, np.complex128))
    one, other = wide.real, wide.imag
    if dtype.kind == "c":
        one, other = wide.conj().view(float), (1j * wide.conj()).view(float)
    one, other = (np.ascontiguousarray(part, kept) for part in (one, other))
    return Weights(rows, wide, *_parts(rows, kept), one, other, wide[::WIDTH].copy(), _first(wide))


def _parts(rows: Array, kept: np.dtype[Any]) -> tuple[Array, Array]:
    """Real and imaginary part of weights of lines, the latter empty where these are real."""
    imag = rows.imag if rows.dtype.kind == "c" else rows[:0]
    return np.ascontiguousarray(rows.real, kept), np.ascontiguousarray(imag, kept)


def _first(line: Array) -> Array:
    """First stretch of a line's weights, over the first one."""
    return line[:WIDTH] / line[0] if len(line) else line


def with_rows(weights: Weights, rows: Array) -> Weights:
    """Return weights with others of lines."""
    real, imag = _parts(rows, weights.real.dtype)
    return weights._replace(rows=rows, real=real, imag=imag)


#: Weights of places that are used at a time, for all lines: both parts stay in L1.
STRIP = 1024

#: The dtype of real and imaginary parts, of values that compiled loops add up.
_PARTS: dict[str, np.dtype[Any]] = {
    char: np.dtype(np.float32 if char in "fF" else np.float64) for char in "FDfd"
}


class PhaseFactors(NamedTuple):
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
def _sum_of_twiddled(x, a, outer, inner, rest, coarse, fine, shift, mask):  # type: ignore[no-untyped-def]
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
    values: Array, weights: Weights, factors: PhaseFactors | None = None
) -> tuple[complex, float]:
    """Return the sum of all values with weights, and their energy.

    Parameters
    ----------
    values : ndarray, contiguous
        Real or complex.
    weights : Weights
        For values of this shape and dtype.
    factors : PhaseFactors, optional
        Twiddles that the weights of places, which are products, are multiplied with, for complex
        values.
    """
    rows = values.reshape(len(weights.rows), -1)
    if values.dtype.char not in "FDfd":
        return _wide_sum(rows, weights, factors), energy(values)
    x, count = rows.view(rows.real.dtype), len(rows)
    if factors is not None:
        table = phase_table(factors.modulus, factors.sign)
        twiddles = factors.rest, table.coarse, table.fine, table.shift, table.mask
        re, im, total = _sum_of_twiddled(x, weights.rows, weights.every, weights.first, *twiddles)
    else:
        parts = weights.real, weights.imag, weights.one, weights.other
        re, im, total = _sum_of_rows(x.reshape(-1), count, *parts)
    return complex(re, im), total


def _wide_sum(rows: Array, weights: Weights, factors: PhaseFactors | None) -> complex:
    """The sum of values of other precisions, of each line on its own."""
    found = 0j
    for o, row in enumerate(rows):
        line = weights.line
        if factors is not None:
            line = line.copy().reshape(1, -1, 1)
            rest = factors.rest[o % len(factors.rest)]
            twiddle(line, np.array([rest]), factors.modulus, factors.sign)
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
