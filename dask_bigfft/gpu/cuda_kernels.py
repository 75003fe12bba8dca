"""Kernels of a CUDA device: which one an operation takes, and the numbers that it is called with.

They take addresses, and run in the current stream. Imports `kernels` and this room.
"""

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dask_bigfft.gpu.cuda import cupy
from dask_bigfft.gpu.operations import Multiply, Product, Strided, Term, Transpose
from dask_bigfft.kernels.gpu_factors import Factor, Factors, Found, Place, Weighing
from dask_bigfft.kernels.gpu_plans import WIDE
from dask_bigfft.kernels.gpu_source import (
    AT_A_TIME,
    KERNEL,
    OPTIONS,
    THREADS,
    TILE,
    Multiplying,
    copy_source,
    multiply_source,
    product_source,
    transpose_source,
)

#: Blocks of the grid of a kernel that runs over device memory: enough to fill any card.
GRID = 132 * 16

#: A modulus from here on leaves every place as it is.
_NO_MODULUS = 1 << 53

#: The longest group of dimensions whose indices have 32 bits.
_NARROW = (1 << 32) - 1


@functools.cache
def kernel(source: str) -> Any:
    """Return the compiled kernel of a source."""
    return cupy().RawKernel(source, KERNEL, options=OPTIONS)


def _grid(count: int) -> tuple[int]:
    return (max(1, min(GRID, -(-count // THREADS))),)


class Kernels:
    """What kernels do to arrays on a device."""

    def multiply(self, op: Multiply, array: int) -> None:
        """Multiply by computed factors in the current stream."""
        count = math.prod(op.shape)
        if not count:
            return
        factors, numbers = multiplication(op)
        structure = Multiplying(len(op.shape), count >= WIDE, factors)
        lengths = [np.uint64(n) for n in op.shape]
        arguments = (np.uint64(array), np.uint64(count), *lengths, *numbers)
        kernel(multiply_source(structure))(_grid(count), (THREADS,), arguments)

    def product(self, op: Product, array: int, other: int) -> None:
        """Multiply by another array in the current stream."""
        count = math.prod(op.shape)
        if not count:
            return
        repeated = tuple(n == 1 for n in op.other)
        source = product_source(repeated, np.dtype(op.dtype).itemsize == 16)
        lengths = [np.uint64(n) for n in op.shape]
        arguments = (np.uint64(array), np.uint64(count), *lengths, np.uint64(other))
        kernel(source)(_grid(count), (THREADS,), arguments)

    def transpose(self, op: Transpose, source: int, target: int) -> None:
        """Copy with the dimensions in another order in the current stream."""
        if not math.prod(op.shape):
            return
        groups, axes = together(op.shape, op.axes)
        last = len(groups) - 1
        move = _copy if axes[last] == last else _turn
        move(op, groups, axes, source, target)

    def strided(self, op: Strided, source: int, target: int) -> None:
        """Copy elements to other places of another array in the current stream."""
        if not math.prod(op.counts):
            return
        itemsize = np.dtype(op.dtype).itemsize
        # Dimensions that are close together in the target last, so that writes are dense.
        order = sorted(range(len(op.counts)), key=lambda d: -abs(op.target[d]))
        dims = [(op.counts[d], op.source[d], op.target[d]) for d in order]
        source += op.source_start * itemsize
        target += op.target_start * itemsize
        by = weighing(op.by, [(d,) for d in order])
        strided_copy(dims, itemsize, source, target, GRID, by=by)


def multiplication(op: Multiply) -> tuple[Factors, list[Any]]:
    """Return the structure of factors, and their numbers as kernels take them.

    Examples
    --------
    >>> multiplication(Multiply((4, 8), "<c16", 0.5))
    (Factors(double=True, conjugate=False, factors=()), [np.float64(0.5)])
    """
    factors: list[Factor] = []
    numbers: list[Any] = [np.float64(op.scale)]
    for twiddle in op.twiddles:
        left, right = _places(twiddle.left, op.shape), _places(twiddle.right, op.shape)
        factors.append(Factor(left, right))
        numbers += [np.uint64(twiddle.modulus), np.float64(twiddle.sign)]
        numbers += _numbers(twiddle.left, left) + _numbers(twiddle.right, right)
    for chirp in op.chirps:
        places = _places(chirp.place, op.shape)
        factors.append(Factor(places, None, chirp.half))
        numbers += [np.uint64(chirp.length), np.float64(chirp.sign)]
        numbers += _numbers(chirp.place, places)
    double = np.dtype(op.dtype).itemsize == 16
    return Factors(double, op.conjugate, tuple(factors)), numbers


#: Structure of factors in a kernel that copies, and their numbers as it takes them.
By = tuple[Weighing, list[Any]]


def weighing(by: Multiply | None, groups: Sequence[tuple[int, ...]]) -> By | None:
    """Return how a kernel that goes through groups of dimensions multiplies what it copies.

    Parameters
    ----------
    by : Multiply or None
        The factors, if there are any.
    groups : sequence of tuple of int
        Dimensions that the kernel goes through as one, those of length 1 left out.

    Examples
    --------
    >>> from dask_bigfft.gpu.operations import Twiddle
    >>> left, right = (Term(dim, 0, 1, 1 << 62, 1) for dim in (0, 2))
    >>> op = Multiply((4, 8, 2), "<c8", twiddles=(Twiddle(8, -1, (left,), (right,)),))
    >>> found, numbers = weighing(op, [(1, 2), (0,)])
    >>> found.found[1], numbers[-1]
    (Found(dim=2, group=0, divided=False, reduced=True), np.uint32(2))
    """
    if by is None:
        return None
    factors, numbers = multiplication(by)
    of = {dim: number for number, dims in enumerate(groups) for dim in dims}
    wide = any(math.prod(by.shape[d] for d in dims) > _NARROW for dims in groups)
    kind, found = np.uint64 if wide else np.uint32, list[Found]()
    for dim in factors.used:
        if dim not in of:
            found.append(Found(dim, None))
            continue
        dims = groups[of[dim]]
        before, behind = dims[: dims.index(dim)], dims[dims.index(dim) + 1 :]
        found.append(Found(dim, of[dim], bool(behind), bool(before)))
        numbers += [kind(math.prod(by.shape[d] for d in behind))] if behind else []
        numbers += [kind(by.shape[dim])] if before else []
    return Weighing(factors, tuple(found), wide), numbers


def _places(terms: tuple[Term, ...], shape: tuple[int, ...]) -> tuple[Place, ...]:
    """Which terms are digits of their place, and not the place itself."""
    return tuple(
        Place(
            term.dim,
            term.divisor != 1 or term.start + shape[term.dim] > min(term.modulus, _NO_MODULUS),
        )
        for term in terms
    )


def _numbers(terms: tuple[Term, ...], places: tuple[Place, ...]) -> list[Any]:
    found: list[Any] = []
    for term, place in zip(terms, places, strict=True):
        found += [np.uint64(term.start), np.uint64(term.stride)]
        if place.digit:
            found += [np.uint64(term.divisor), np.uint64(term.modulus)]
    return found


def together(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> tuple[list[tuple[int, ...]], tuple[int, ...]]:
    """Return which dimensions stay together in a permuted copy, and how these groups change places.

    There is one group at least; no dimension of length 1 is in any.

    >>> together((2, 1, 3, 4), (3, 0, 1, 2))
    ([(0, 2), (3,)], (1, 0))
    """
    kept = [axis for axis in axes if shape[axis] != 1]
    groups: list[tuple[int, ...]] = []
    for axis in kept:
        before = groups[-1][-1] if groups else None
        between = range(before + 1, axis) if before is not None and axis > before else None
        if between is not None and all(shape[a] == 1 for a in between):
            groups[-1] += (axis,)
        else:
            groups.append((axis,))
    order = sorted(range(len(groups)), key=lambda g: groups[g][0])
    axes = tuple(order.index(g) for g in range(len(groups)))
    return [groups[g] for g in order] or [()], axes or (0,)


def _strides(shape: tuple[int, ...], axes: tuple[int, ...]) -> tuple[list[int], list[int]]:
    """Stride of each source dimension in the source, and in the target."""
    source = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    after = [shape[axis] for axis in axes]
    target = [0] * len(shape)
    for place, axis in enumerate(axes):
        target[axis] = math.prod(after[place + 1 :])
    return source, target


def _lengths(op: Transpose, groups: list[tuple[int, ...]]) -> tuple[int, ...]:
    return tuple(math.prod(op.shape[dim] for dim in dims) for dims in groups)


def _copy(
    op: Transpose, groups: list[tuple[int, ...]], axes: tuple[int, ...], source: int, target: int
) -> None:
    """Permute with the last dimension left last: rows keep together."""
    shape = _lengths(op, groups)
    from_, to = _strides(shape, axes)
    # In the order of the target, so that writes are dense.
    dims = [(shape[a], from_[a], to[a]) for a in axes]
    by = weighing(op.by, [groups[a] for a in axes])
    strided_copy(dims, np.dtype(op.dtype).itemsize, source, target, GRID, by=by)


def strided_copy(
    dims: list[tuple[int, int, int]],
    itemsize: int,
    source: int,
    target: int,
    blocks: int,
    passing: str = "",
    by: By | None = None,
) -> None:
    """Copy elements in the current stream by a kernel.

    Parameters
    ----------
    dims
        Length and both strides of each dimension, in elements.
    itemsize
        Bytes of an element: 2, 4, 8 or 16; both addresses are multiples of it.
    blocks
        Most blocks of the grid.
    passing
        Sides of which the cache keeps nothing, of "s" and "t".
    by
        What elements are multiplied by on the way; its groups are `dims`.
    """
    count = math.prod(n for n, _, _ in dims)
    numbers = [number for n, s, t in dims for number in (np.uint64(n), np.int64(s), np.int64(t))]
    structure, factors = (None, []) if by is None else by
    arguments = (np.uint64(source), np.uint64(target), np.uint64(count), *numbers, *factors)
    grid = (max(1, min(blocks, -(-count // (AT_A_TIME * THREADS)))),)
    kernel(copy_source(len(dims), itemsize, passing, structure))(grid, (THREADS,), arguments)


def _turn(
    op: Transpose, groups: list[tuple[int, ...]], axes: tuple[int, ...], source: int, target: int
) -> None:
    """Permute with another dimension last: tiles of the two last ones are turned."""
    shape = _lengths(op, groups)
    from_, to = _strides(shape, axes)
    column, row = len(shape) - 1, axes[-1]  # what is dense before, and what is dense after
    others = [d for d in range(len(shape)) if d not in (row, column)]
    n, m = shape[row], shape[column]
    numbers = [
        number
        for d in others
        for number in (np.uint64(shape[d]), np.int64(from_[d]), np.int64(to[d]))
    ]
    by = weighing(op.by, [groups[d] for d in (*others, row, column)])
    structure, factors = (None, []) if by is None else by
    arguments = (
        np.uint64(source),
        np.uint64(target),
        np.uint64(n),
        np.uint64(m),
        np.int64(from_[row]),
        np.int64(to[column]),
        *numbers,
        *factors,
    )
    tiles, batch = -(-n // TILE) * -(-m // TILE), math.prod(shape[d] for d in others)
    grid = (min(tiles, GRID), max(1, min(batch, GRID // min(tiles, GRID))))
    itemsize = np.dtype(op.dtype).itemsize
    kernel(transpose_source(len(others), itemsize, structure))(grid, (THREADS,), arguments)
