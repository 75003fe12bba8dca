"""Rounds whose digits lie as a device wants them, done on the CPU all the same.

A device transforms a digit where it is; the CPU's kernel wants it last in its axis. A block of
such a round is turned, transformed, and turned back: two copies more, for blocks that no device
could take.

Imports `decomposition` and this room.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.layout import AxisLayout, Layout
from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.kernels import cpu
from dask_bigfft.kernels.incoming import Incoming, Whole
from dask_bigfft.kernels.libraries import FFTLibrary

__all__ = ["run_round"]

Array = npt.NDArray[Any]
Block = tuple[int, ...]
Orders = tuple[tuple[int, ...], ...]


@lru_cache(maxsize=256)
def _orders(round_: Round) -> Orders | None:
    """Of each axis, its groups with that of the step last; None if all of them are so."""
    steps = {step.axis: step.source for step in round_.steps}
    found = []
    for number, axis in enumerate(round_.source.axes):
        last = steps.get(number)
        order = sorted(range(len(axis.groups)), key=lambda g: axis.groups[g].digits == (last,))
        found.append(tuple(order))
    return None if all(order == tuple(sorted(order)) for order in found) else tuple(found)


def _turned(layout: Layout, orders: Orders) -> Layout:
    pairs = zip(layout.axes, orders, strict=True)
    return Layout(tuple(AxisLayout(tuple(a.groups[g] for g in order)) for a, order in pairs))


def run_round(
    round_: Round,
    block: Block,
    incoming: Incoming,
    library: FFTLibrary,
    out_dtype: np.dtype[Any],
    filters: Mapping[int, Array] | None = None,
) -> Array:
    """Return a block after a round, as `kernels.cpu.run_round`, wherever its digits lie."""
    orders = _orders(round_)
    if orders is None:
        return cpu.run_round(round_, block, incoming, library, out_dtype, filters)
    there, back, first = [], [], 0
    for order in orders:
        there += [first + g for g in order]
        back += [first + order.index(g) for g in range(len(order))]
        first += len(order)
    source, target = _turned(round_.source, orders), _turned(round_.target, orders)
    moved = Round(round_.steps, source, target)
    place = []
    for axis, after, i, order in zip(
        round_.source.axes, source.axes, block, orders, strict=True
    ):
        chunks = axis.chunk_of(i)
        place.append(after.block_of(tuple(chunks[g] for g in order)))
    values = np.ascontiguousarray(incoming.whole().transpose(there))
    done = cpu.run_round(moved, tuple(place), Whole(values), library, out_dtype, filters)
    return np.ascontiguousarray(done.transpose(back))
