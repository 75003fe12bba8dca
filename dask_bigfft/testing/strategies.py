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
Rounds = tuple[dict[int, int], ...]

_DTYPES = ("c16", "c8", "f8", "f4", "i8", "i2", "u1", "?")

#: Largest length of an axis, by the number of axes, so that an array stays small.
LARGEST = {1: 400, 2: 60, 3: 16, 4: 8}

_PRIMES = tuple(p for p in range(2, 400) if all(p % q for q in range(2, math.isqrt(p) + 1)))
_SQUARES = tuple(n * n for n in range(2, 21))
_SMOOTH = tuple(sorted({2**a * 3**b for a in range(9) for b in range(5)}))


def sizes(largest: int) -> st.SearchStrategy[int]:
    """Return lengths of an axis: 1, primes, squares, smooth and arbitrary numbers."""
    kinds = [[n for n in found if n <= largest] for found in (_PRIMES, _SQUARES, _SMOOTH)]
    special = [st.sampled_from(found) for found in kinds if found]
    return st.one_of(st.integers(1, largest), *special, st.just(1))


@st.composite
def shapes(draw: st.DrawFn, max_axes: int = 4) -> tuple[int, ...]:
    """Return shapes of 1 to `max_axes` axes, with shorter axes for more dimensions."""
    ndim = draw(st.integers(1, max_axes))
    return tuple(draw(sizes(LARGEST[ndim])) for _ in range(ndim))


@st.composite
def chunks_of(draw: st.DrawFn, size: int, most: int = 12) -> Chunks:
    """Return an irregular cut of an axis into at most `most` chunks, some of them empty."""
    if size < 1:
        return (0,)
    style = draw(st.sampled_from(["whole", "even", "irregular", "irregular", "empty"]))
    if style in ("whole", "even"):
        width = size if style == "whole" else draw(st.integers(max(1, size // most), size))
        return tuple(min(width, size - at) for at in range(0, size, width))
    ends = sorted(draw(st.sets(st.integers(1, size), max_size=most - 2)) | {size})
    chunks = [high - low for low, high in itertools.pairwise((0, *ends))]
    if style == "empty":
        chunks.insert(draw(st.integers(0, len(chunks))), 0)
    return tuple(chunks)


@st.composite
def chunkings(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[Chunks, ...]:
    """Return chunks of an array, with fewer chunks along each axis for more dimensions."""
    most = {1: 14, 2: 8, 3: 5}.get(len(shape), 4)
    return tuple(draw(chunks_of(n, most)) for n in shape)


def norms() -> st.SearchStrategy[str | None]:
    """Return all norms, None included."""
    return st.sampled_from([None, "backward", "ortho", "forward"])


def orders(count: int) -> st.SearchStrategy[tuple[str, ...]]:
    """Return one order for each transformed axis."""
    return st.tuples(*[st.sampled_from(["natural", "transposed"])] * count)


def random_array(
    shape: Sequence[int], dtype: npt.DTypeLike, seed: int | np.random.Generator
) -> Array:
    """Return normally distributed values, truncated for integers, signs for bools."""
    rng, dtype = np.random.default_rng(seed), np.dtype(dtype)
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
    shape: tuple[int, ...]
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
        return {"variant": self.variant, "rounds": self.rounds and list(self.rounds)}


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
    last = lengths[-1] // 2 + 1 if kind == "c2r" else lengths[-1]
    for axis, n in zip(axes, (*lengths[:-1], last), strict=True):
        shape[axis] = n
        if resize and draw(st.integers(0, 3)) == 0:  # padded or cropped
            shape[axis] = draw(sizes(LARGEST[len(shape)]))
    return Case(
        family=family,
        shape=tuple(shape),
        dtype=draw(st.sampled_from(_DTYPES[2 * (kind == "r2c") :])),
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
    draw: st.DrawFn, *, families: Iterable[str] = FAMILIES, max_axes: int = 4, resize: bool = True
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
    axes = tuple(draw(st.permutations(range(len(shape))))[: draw(st.integers(1, len(shape)))])
    lengths = tuple(shape[a] for a in axes)
    return _case(draw, family, shape, axes, lengths, None, resize)


@st.composite
def round_cases(
    draw: st.DrawFn, *, families: Iterable[str] = FAMILIES, resize: bool = True
) -> Case:
    """Return calls with given rounds: ordered factors of 1 to 3 axes in 2 to 4 rounds."""
    family = draw(st.sampled_from(tuple(families)))
    ndim = draw(st.integers(1, 3))
    count = draw(st.integers(2, {1: 4, 2: 3}.get(ndim, 2)))
    axes = tuple(draw(st.permutations(range(ndim)))[: draw(st.integers(1, ndim))])
    rounds: list[dict[int, int]] = [{} for _ in range(count)]
    lengths, largest, kind = [], {1: 7, 2: 5}.get(ndim, 4), FAMILIES[family][0]
    for axis in axes:
        places = sorted(draw(st.sets(st.integers(0, count - 1), min_size=1)))
        if axis == axes[-1] and kind == "r2c":
            places[0] = 0
        if axis == axes[-1] and kind == "c2r":
            places[-1] = count - 1
        factors = draw(st.tuples(*[st.integers(2, largest)] * len(places)))
        for place, factor in zip(places, factors, strict=True):
            rounds[place][axis] = factor
        lengths.append(math.prod(factors))
    shape = [draw(st.integers(1, 4)) for _ in range(ndim)]
    return _case(draw, family, shape, axes, tuple(lengths), tuple(filter(None, rounds)), resize)
