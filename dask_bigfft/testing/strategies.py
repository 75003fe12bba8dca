"""Hypothesis strategies for transforms: shapes, chunks, kinds, lengths, dtypes, orders, rounds.

A `Case` is one call of the `numpy.fft` interface on one chunked array, whose values come from a
seed. Its one-line representation is enough to run it again. This needs hypothesis (the extra
``test``).
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from dask_bigfft.arrays import Array
from dask_bigfft.transforms.spec import FAMILIES

Chunks = tuple[int, ...]
Shape = tuple[int, ...]
Rounds = tuple[dict[int, int], ...]

_COMPLEX_DTYPES = ("c16", "c8")
_REAL_DTYPES = ("f8", "f4", "i8", "i2", "u1", "?")

#: Largest length of an axis, by the number of axes, so that an array stays small.
LARGEST = {
    1: 400,
    2: 60,
    3: 16,
    4: 8,
}


def _is_prime(n: int) -> bool:
    """Return True for a prime."""
    return all(n % divisor for divisor in range(2, math.isqrt(n) + 1))


_PRIMES = tuple(filter(_is_prime, range(2, 400)))
_SQUARES = tuple(n * n for n in range(2, 21))
_SMOOTH = tuple(sorted({2**a * 3**b for a in range(9) for b in range(5)}))


def sizes(largest: int) -> st.SearchStrategy[int]:
    """Return lengths of an axis: 1, primes, squares, smooth and arbitrary numbers."""
    special = []
    for numbers in (_PRIMES, _SQUARES, _SMOOTH):
        possible = [n for n in numbers if n <= largest]
        if possible:
            special.append(st.sampled_from(possible))
    return st.one_of(st.integers(1, largest), *special, st.just(1))


@st.composite
def shapes(draw: st.DrawFn, max_axes: int = 4) -> Shape:
    """Return shapes of 1 to `max_axes` axes, with shorter axes for more dimensions."""
    ndim = draw(st.integers(1, max_axes))
    lengths = sizes(LARGEST[ndim])
    return tuple(draw(lengths) for _ in range(ndim))


@st.composite
def chunks_of(
    draw: st.DrawFn,
    size: int,
    most: int = 12,
) -> Chunks:
    """Return an irregular cut of an axis into at most `most` chunks, some of them empty."""
    if size < 1:
        return (0,)
    style = draw(st.sampled_from(["whole", "even", "irregular", "irregular", "empty"]))
    if style == "whole":
        return (size,)
    if style == "even":
        width = draw(st.integers(max(1, size // most), size))
        return tuple(min(width, size - start) for start in range(0, size, width))
    inner_ends = draw(st.sets(st.integers(1, size), max_size=most - 2))
    ends = sorted({0, size} | inner_ends)
    chunks = [high - low for low, high in itertools.pairwise(ends)]
    if style == "empty":
        chunks.insert(draw(st.integers(0, len(chunks))), 0)
    return tuple(chunks)


@st.composite
def chunkings(draw: st.DrawFn, shape: Shape) -> tuple[Chunks, ...]:
    """Return chunks of an array, with fewer chunks along each axis for more dimensions."""
    most_by_ndim = {1: 14, 2: 8, 3: 5}
    most = most_by_ndim.get(len(shape), 4)
    chunks = []
    for length in shape:
        chunks.append(draw(chunks_of(length, most)))
    return tuple(chunks)


def norms() -> st.SearchStrategy[str | None]:
    """Return all norms, None included."""
    return st.sampled_from([None, "backward", "ortho", "forward"])


def orders(count: int) -> st.SearchStrategy[tuple[str, ...]]:
    """Return one order for each transformed axis."""
    order = st.sampled_from(["natural", "transposed"])
    return st.tuples(*[order] * count)


def random_array(
    shape: Sequence[int],
    dtype: npt.DTypeLike,
    seed: int | np.random.Generator,
) -> Array:
    """Return normally distributed values, truncated for integers, signs for bools."""
    rng = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    values: Array = 3 * rng.standard_normal(shape)
    if dtype.kind == "c":
        values = values + 3j * rng.standard_normal(shape)
    if dtype.kind == "b":
        return np.asarray(values > 0)
    if dtype.kind == "u":
        values = np.abs(values)
    return values.astype(dtype)


@dataclass(frozen=True)
class Case:
    """Call of one transform on one chunked array.

    Parameters
    ----------
    family : str
        One of `FAMILIES`.
    shape, dtype, chunks
        Properties of the array.
    axes, lengths
        Transformed axes and the length N of each.
    norm, variant
        Arguments of the call.
    rounds : tuple of dict of axis to factor, or None
        The decomposition, None for the default.
    seed : int
        Seed of the values.
    """

    family: str
    shape: Shape
    dtype: str
    chunks: tuple[Chunks, ...]
    axes: tuple[int, ...]
    lengths: tuple[int, ...]
    norm: str | None
    variant: str
    rounds: Rounds | None
    seed: int

    @property
    def name(self) -> str:
        """Name of the call for any number of axes."""
        return self.family + "n"

    @property
    def kind(self) -> str:
        """Kind of the transform: "r2c" takes only real values, the result of "c2r" is real."""
        return FAMILIES[self.family][0]

    @property
    def forward(self) -> bool:
        """True if `order` refers to the result, False if to the input."""
        return FAMILIES[self.family][2]

    @property
    def array(self) -> Array:
        """The values."""
        return random_array(self.shape, self.dtype, self.seed)

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments that NumPy and SciPy take, too."""
        return {"s": self.lengths, "axes": self.axes, "norm": self.norm}

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of this library."""
        rounds = None if self.rounds is None else list(self.rounds)
        return {"variant": self.variant, "rounds": rounds}


def _case(
    draw: st.DrawFn,
    family: str,
    shape: list[int],
    axes: tuple[int, ...],
    lengths: tuple[int, ...],
    rounds: Rounds | None,
    resize: bool,
) -> Case:
    """Return a call with the given axes; its other properties are drawn.

    `shape` has the lengths of the other axes.
    """
    kind = FAMILIES[family][0]
    dtypes = _REAL_DTYPES if kind == "r2c" else (*_COMPLEX_DTYPES, *_REAL_DTYPES)
    input_lengths = list(lengths)
    if kind == "c2r":
        input_lengths[-1] = lengths[-1] // 2 + 1
    for axis, length in zip(axes, input_lengths, strict=True):
        shape[axis] = length
        if resize and draw(st.integers(0, 3)) == 0:  # padded or cropped
            shape[axis] = draw(sizes(LARGEST[len(shape)]))
    return Case(
        family=family,
        shape=tuple(shape),
        dtype=draw(st.sampled_from(dtypes)),
        chunks=draw(chunkings(tuple(shape))),
        axes=axes,
        lengths=lengths,
        norm=draw(norms()),
        variant=draw(st.sampled_from(["auto", "auto", "dif", "dit", "stockham"])),
        rounds=rounds,
        seed=draw(st.integers(0, 2**16)),
    )


@st.composite
def cases(
    draw: st.DrawFn,
    *,
    families: Iterable[str] = FAMILIES,
    max_axes: int = 4,
    resize: bool = True,
) -> Case:
    """Return calls of any kind on arrays of up to `max_axes` axes.

    Parameters
    ----------
    families
        Kinds of transform.
    max_axes
        Maximum number of axes.
    resize
        True if the input may be padded or cropped to the lengths.
    """
    family = draw(st.sampled_from(tuple(families)))
    shape = list(draw(shapes(max_axes)))
    permutation = draw(st.permutations(range(len(shape))))
    axes = tuple(permutation[: draw(st.integers(1, len(shape)))])
    return _case(
        draw,
        family=family,
        shape=shape,
        axes=axes,
        lengths=tuple(shape[axis] for axis in axes),
        rounds=None,
        resize=resize,
    )


@st.composite
def round_cases(
    draw: st.DrawFn,
    *,
    families: Iterable[str] = FAMILIES,
    resize: bool = True,
) -> Case:
    """Return calls with given rounds: ordered factors of 1 to 3 axes in 2 to 4 rounds."""
    family = draw(st.sampled_from(tuple(families)))
    ndim = draw(st.integers(1, 3))
    most_rounds = {1: 4, 2: 3, 3: 2}[ndim]
    count = draw(st.integers(2, most_rounds))
    permutation = draw(st.permutations(range(ndim)))
    axes_count = draw(st.integers(1, ndim))
    axes = tuple(permutation[:axes_count])
    largest_factor = {1: 7, 2: 5, 3: 4}[ndim]
    rounds: list[dict[int, int]] = [{} for _ in range(count)]
    lengths = []
    for axis in axes:
        kind = FAMILIES[family][0] if axis == axes[-1] else "c2c"
        numbers = draw(_round_numbers(count, kind))
        factors = draw(st.tuples(*[st.integers(2, largest_factor)] * len(numbers)))
        for number, factor in zip(numbers, factors, strict=True):
            rounds[number][axis] = factor
        lengths.append(math.prod(factors))
    return _case(
        draw,
        family=family,
        shape=[draw(st.integers(1, 4)) for _ in range(ndim)],
        axes=axes,
        lengths=tuple(lengths),
        rounds=tuple(factors for factors in rounds if factors),
        resize=resize,
    )


@st.composite
def _round_numbers(draw: st.DrawFn, count: int, kind: str) -> list[int]:
    """Return the rounds, out of `count`, in which an axis has a digit.

    A real axis has one in the first round, and an axis with a real result in the last round.
    """
    numbers = sorted(draw(st.sets(st.integers(0, count - 1), min_size=1)))
    if kind == "r2c":
        numbers[0] = 0
    if kind == "c2r":
        numbers[-1] = count - 1
    return numbers
