"""Trends of the known values of arrays with holes.

A trend is a sum of *shapes*, which are 1 and a line along each of some axes. Lines are orthogonal
over all values, but not over the known ones. The coefficients c solve the normal equations of least
squares, whose matrix and right side are sums over the known values, added block by block::

    G c = b    with    G[i, j] = sum of shape[i] * shape[j]    and    b[i] = sum of shape[i] * x
"""

import math
from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np

from dask_bigfft.api.arguments import parse_array
from dask_bigfft.api.calls import by_block
from dask_bigfft.api.kinds import keeps_kind
from dask_bigfft.arrays import Array
from dask_bigfft.gpu.own_gpu import on_own_gpu
from dask_bigfft.signal.arguments import parse_mask
from dask_bigfft.signal.spectra import sum_of_blocks

#: Eigenvalues of the normal equations below this part of the largest one count as 0, as those of
#: lines through a single known value.
LEAST_EIGENVALUE = 1e-14


def line(length: int) -> Array:
    """Return a line along an axis, of mean 0 and mean square 1; of length 1 it is 0.

    >>> line(3).round(4)
    array([-1.2247,  0.    ,  1.2247])
    """
    places = np.arange(length) - (length - 1) / 2
    places /= math.sqrt(np.mean(places**2)) or 1
    return places


@keeps_kind
def trend_of_known(
    x: Any,
    mask: Any,
    axes: Sequence[int],
    is_linear: bool,
) -> da.Array:
    """Return the coefficients of the trend along some axes of values that a mask does not hide.

    They run along the last of the axes, first that of 1, then if `is_linear` that of `line` along
    each of the axes. The other ones of the axes have length 1. Where no value is known, all
    coefficients are 0.
    """
    array = parse_array(x, "fft")
    missing = parse_mask(mask, array)
    last = axes[-1]
    lines = []
    if is_linear:
        for axis in axes:
            shape = [1] * array.ndim
            shape[axis] = array.shape[axis]
            chunks: list[Any] = [1] * array.ndim
            chunks[axis] = array.chunks[axis]
            lines.append(da.from_array(line(shape[axis]).reshape(shape), tuple(chunks)))
    shape_count = 1 + len(lines)
    pair_count = shape_count * (shape_count + 1) // 2
    chunks_of_sums = list(array.chunks)
    for axis in axes:
        length = pair_count + shape_count if axis == last else 1
        chunks_of_sums[axis] = (length,) * array.numblocks[axis]
    dtype = np.result_type(array.dtype, np.float64)
    sums: Any = by_block(
        _sums_over_known,
        array,
        missing,
        *lines,
        dtype=dtype,
        chunks=tuple(chunks_of_sums),
        axes=tuple(axes),
    )
    for axis in axes:
        sums = sum_of_blocks(sums, axis)
    chunks_of_trend = list(sums.chunks)
    chunks_of_trend[last] = (shape_count,)
    return by_block(
        _coefficients,
        sums,
        dtype=dtype,
        chunks=tuple(chunks_of_trend),
        axis=last,
        shape_count=shape_count,
    )


@on_own_gpu
def _sums_over_known(
    block: Array,
    missing: Array,
    *lines: Array,
    axes: tuple[int, ...],
) -> Any:
    """Return sums of products of pairs of shapes, then those of shapes and values, of a block."""
    hidden = np.asarray(missing, like=block)
    known = ~hidden
    values = np.where(hidden, block.dtype.type(0), block)
    shapes = [np.ones_like(block, float, shape=(1,) * block.ndim)]
    shapes += [np.asarray(values_of_line, like=block) for values_of_line in lines]
    pair_sums = []
    value_sums = []
    for number, shape in enumerate(shapes):
        for other in shapes[number:]:
            pair_sums.append((known * (shape * other)).sum(axis=axes, keepdims=True))
        value_sums.append((values * shape).sum(axis=axes, keepdims=True))
    return np.concatenate([*pair_sums, *value_sums], axis=axes[-1])


@on_own_gpu
def _coefficients(sums: Array, axis: int, shape_count: int) -> Any:
    """Return the solution of the normal equations of `_sums_over_known`.

    The sums lie along `axis`. Singular equations have the smallest solution.
    """
    along_last = np.moveaxis(sums, axis, -1)
    rows, columns = np.triu_indices(shape_count)
    pair_count = len(rows)
    pair_sums = along_last[..., :pair_count].real
    matrix = np.empty_like(
        pair_sums,
        shape=(*along_last.shape[:-1], shape_count, shape_count),
    )
    matrix[..., rows, columns] = pair_sums
    matrix[..., columns, rows] = pair_sums
    right_side = along_last[..., pair_count:, np.newaxis]
    solution = np.linalg.pinv(matrix, LEAST_EIGENVALUE) @ right_side
    return np.moveaxis(solution[..., 0], -1, axis)
