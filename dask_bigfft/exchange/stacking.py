"""Which blocks are worth being stacked: those of which the next exchange takes narrow rows.

Imports `decomposition`, `kernels` and `planner`.
"""

from dataclasses import replace

import numpy as np

from dask_bigfft.decomposition.layout import AxisLayout, Digit, Group, Layout
from dask_bigfft.kernels.stacked import Stacked
from dask_bigfft.planner.plan_data import Exchange

#: Rows of shards that copy engines mind, in bytes: beside kernels 8 KiB move at 37 GB/s, 16 KiB at
#: 42 and 32 KiB at 49 of 51; apart on the device only, 2 KiB move at 42 to 45 (H200).
ROW_NBYTES = range(2 << 10, 32 << 10)


def stacking(exchange: Exchange) -> Stacked | None:
    """Return how the source blocks of an exchange had better lie in memory; None: as they are.

    The innermost dimension that the exchange cuts is, if it is whole before and cut evenly, and
    the rows of shards are narrow.
    """
    if exchange.mirror is not None:
        return None
    itemsize = np.dtype(exchange.source_dtype).itemsize
    inner, dim = itemsize, sum(len(axis.groups) for axis in exchange.source.axes)
    pairs = zip(exchange.source.axes, exchange.target.axes, strict=True)
    for came, goes in reversed(list(pairs)):
        dim -= len(came.groups)
        if came == goes:
            inner *= came.largest
            continue
        width = _width(came, goes)
        if width is None or inner * width not in ROW_NBYTES:
            return None
        return Stacked(dim, width)
    return None


def _width(came: AxisLayout, goes: AxisLayout) -> int | None:
    """Width of the chunks into which an axis is cut that was whole; None where it is not so."""
    if len(came.groups) != 1 or len(goes.groups) != 1:
        return None
    (before,), (after,) = came.groups, goes.groups
    whole = len(before.digits) == len(before.chunks) == 1 and before.chunks[0] == before.size
    plain = not (before.offset or before.arrangement or after.offset or after.arrangement)
    even = set(after.chunks)
    if not whole or not plain or before.digits != after.digits or len(even) != 1:
        return None
    if before.digits[0].is_partial:
        return None  # half a spectrum: the place has room for more than the chunks together
    (width,) = even
    return width if 0 < width < before.size and before.size % width == 0 else None


def stacked_layout(layout: Layout, stacked: Stacked) -> Layout:
    """Return the layout of stacked blocks: the cut dimension is two."""
    axes, dim = list(layout.axes), stacked.dim
    for number, axis in enumerate(axes):
        if dim < len(axis.groups):
            (digit,) = axis.groups[dim].digits
            axes[number] = AxisLayout(_apart(digit, stacked.width))
            break
        dim -= len(axis.groups)
    return replace(layout, axes=tuple(axes))


def _apart(digit: Digit, width: int) -> tuple[Group, Group]:
    """A whole digit as two."""
    count = digit.size // width
    outer = Digit(digit.stage, digit.stride * width, count, count)
    inner = Digit(digit.stage, digit.stride, width, width)
    return Group((outer,), (count,)), Group((inner,), (width,))
