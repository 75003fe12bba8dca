"""Weights of linear checksums: what each value of a tile counts before and after a round.

A value after the round counts a product of seeded random numbers, one for its place in each
dimension. What it counts before follows: along a dimension that is transformed, the weights
before are the transform of those after::

    sum_k r[k] * FFT(x)[k] = sum_n FFT(r)[n] * x[n]

The numbers are real, of random sign and of modulus 0.5 to 1.5, which costs half as much as complex
ones would; where twiddles follow a transform, complex of modulus one and themselves products, so
that twiddles can be multiplied with them at little cost.

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

from dask_bigfft.decomposition.steps import Step, half

__all__ = ["WIDTH", "Weights", "split", "weights_of", "with_rows"]

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


def split(shape: tuple[int, ...], turned: frozenset[int]) -> int:
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
        if here in turned and math.prod(shape[first:]) > 1:
            break
        first = here
        if here in turned or math.prod(shape[first:]) >= LINE:
            break
    return first


@lru_cache(maxsize=32)
def weights_of(
    shape: tuple[int, ...], dtype: np.dtype[Any], first: int, steps: tuple[tuple[int, Step], ...],
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
