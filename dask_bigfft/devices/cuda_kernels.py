"""Kernels of a CUDA device: which one an operation takes, and the numbers that it is called with.

They take addresses, and run in the current stream. Imports `kernels` and this room.
"""

import functools
import math
from typing import Any

import numpy as np

from dask_bigfft.devices.cuda import cupy
from dask_bigfft.devices.protocol import Multiply, Product, Strided, Term, Transpose
from dask_bigfft.kernels.gpu_plans import WIDE
from dask_bigfft.kernels.gpu_source import (
    KERNEL,
    OPTIONS,
    THREADS,
    TILE,
    Factor,
    Multiplying,
    Place,
    copy_source,
    multiply_source,
    product_source,
    transpose_source,
)

#: Blocks of the grid of a kernel that runs over device memory: enough to fill any card.
GRID = 132 * 16

#: A modulus from here on leaves every place as it is.
_NO_MODULUS = 1 << 53


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
        structure, numbers = multiplication(op)
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
        itemsize = np.dtype(op.dtype).itemsize
        shape, axes = simplified(op.shape, op.axes)
        last = len(shape) - 1
        if axes[last] == last:
            _copy(shape, axes, itemsize, source, target)
        else:
            _turn(shape, axes, itemsize, source, target)

    def strided(self, op: Strided, source: int, target: int) -> None:
        """Copy elements to other places of another array in the current stream."""
        if not math.prod(op.counts):
            return
        itemsize = np.dtype(op.dtype).itemsize
        # Dimensions that are close together in the target last, so that writes are dense.
        dims = sorted(zip(op.counts, op.source, op.target, strict=True), key=lambda d: -abs(d[2]))
        source += op.source_start * itemsize
        target += op.target_start * itemsize
        strided_copy(dims, itemsize, source, target, GRID)


def multiplication(op: Multiply) -> tuple[Multiplying, list[Any]]:
    """Return the structure of a multiplication, and its numbers as the kernel takes them.

    Examples
    --------
    >>> structure, numbers = multiplication(Multiply((4, 8), "<c16", 0.5))
    >>> structure.ndim, structure.factors, numbers
    (2, (), [np.float64(0.5)])
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
    double, wide = np.dtype(op.dtype).itemsize == 16, math.prod(op.shape) >= WIDE
    structure = Multiplying(len(op.shape), double, wide, op.conjugate, tuple(factors))
    return structure, numbers


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


def simplified(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the same permuted copy with as few dimensions as can be, at least one.

    >>> simplified((2, 1, 3, 4), (3, 0, 1, 2))
    ((6, 4), (1, 0))
    """
    kept = [axis for axis in axes if shape[axis] != 1]
    groups: list[list[int]] = []
    for axis in kept:
        before = groups[-1][-1] if groups else None
        between = range(before + 1, axis) if before is not None and axis > before else None
        if between is not None and all(shape[a] == 1 for a in between):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    order = sorted(range(len(groups)), key=lambda g: groups[g][0])
    lengths = tuple(math.prod(shape[a] for a in groups[g]) for g in order) or (1,)
    return lengths, tuple(order.index(g) for g in range(len(groups))) or (0,)


def _strides(
    shape: tuple[int, ...], axes: tuple[int, ...]
) -> tuple[list[int], list[int]]:
    """Stride of each source dimension in the source, and in the target."""
    source = [math.prod(shape[d + 1 :]) for d in range(len(shape))]
    after = [shape[axis] for axis in axes]
    target = [0] * len(shape)
    for place, axis in enumerate(axes):
        target[axis] = math.prod(after[place + 1 :])
    return source, target


def _copy(
    shape: tuple[int, ...], axes: tuple[int, ...], itemsize: int, source: int, target: int
) -> None:
    """Permute with the last dimension left last: rows keep together."""
    from_, to = _strides(shape, axes)
    # In the order of the target, so that writes are dense.
    dims = [(shape[a], from_[a], to[a]) for a in axes]
    strided_copy(dims, itemsize, source, target, GRID)


def strided_copy(
    dims: list[tuple[int, int, int]], itemsize: int, source: int, target: int, blocks: int,
    passing: str = "",
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
    """
    count = math.prod(n for n, _, _ in dims)
    numbers = [number for n, s, t in dims for number in (np.uint64(n), np.int64(s), np.int64(t))]
    arguments = (np.uint64(source), np.uint64(target), np.uint64(count), *numbers)
    grid = (max(1, min(blocks, -(-count // (4 * THREADS)))),)
    kernel(copy_source(len(dims), itemsize, passing))(grid, (THREADS,), arguments)


def _turn(
    shape: tuple[int, ...], axes: tuple[int, ...], itemsize: int, source: int, target: int
) -> None:
    """Permute with another dimension last: tiles of the two last ones are turned."""
    from_, to = _strides(shape, axes)
    column, row = len(shape) - 1, axes[-1]  # what is dense before, and what is dense after
    others = [d for d in range(len(shape)) if d not in (row, column)]
    n, m = shape[row], shape[column]
    numbers = [
        number for d in others
        for number in (np.uint64(shape[d]), np.int64(from_[d]), np.int64(to[d]))
    ]
    arguments = (
        np.uint64(source), np.uint64(target), np.uint64(n), np.uint64(m),
        np.int64(from_[row]), np.int64(to[column]), *numbers,
    )
    tiles, batch = -(-n // TILE) * -(-m // TILE), math.prod(shape[d] for d in others)
    grid = (min(tiles, GRID), max(1, min(batch, GRID // min(tiles, GRID))))
    kernel(transpose_source(len(others), itemsize))(grid, (THREADS,), arguments)
