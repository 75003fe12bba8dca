"""Which rows a block is made of where an array is stored, in the order of packed shards.

Imports `exchange.shards`, `exchange.product` and NumPy.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.exchange.product import Block, Product
from dask_bigfft.exchange.shards import ExchangeMap, PieceTable

Array = npt.NDArray[Any]
Region = tuple[slice, ...]

#: Where the outer values of an axis begin, and how many lie side by side from there on.
Runs = tuple[list[int], int]


def shard_regions(
    exchange: ExchangeMap, block: Block, packed: Mapping[Block, Array]
) -> Iterator[tuple[Region, Array]]:
    """Give the regions of the stored array that a target block is made of, and where each goes.

    Parameters
    ----------
    exchange : ExchangeMap
        The shards; each axis of a source block is one dimension, and nothing is mirrored.
    block : tuple of int
        Which target block.
    packed : mapping of block to ndarray
        Memory for what each source block gives.

    Yields
    ------
    region, place
        Slices of the stored array, and an array of that shape in `packed`.
    """
    used: dict[Block, int] = {}
    for tables, _ in exchange.tables(block):
        product = Product(tables, False)
        starts, _ = product.in_packed(used)
        for copy, start in enumerate(starts.tolist()):
            source = product.blocks[product.which[copy]]
            chosen = zip(tables, product.chosen[:, copy].tolist(), strict=True)
            axes = [
                _runs(table, row, exchange.source.axes[a].groups[0].bounds[source[a]])
                for a, (table, row) in enumerate(chosen)
            ]
            size = math.prod(len(begins) * width for begins, width in axes)
            yield from _regions(axes, packed[source][start : start + size])


def _runs(table: PieceTable, row: int, origin: int) -> Runs:
    """Which values of an axis a piece has, as runs of neighbours."""
    first = origin + int(table.source_starts[row, 0])
    digits = list(zip(table.counts[row].tolist(), table.source_steps[row].tolist(), strict=True))
    width = 1
    while digits and (digits[-1][1] == width or digits[-1][0] == 1):
        width *= digits.pop()[0]
    steps = (range(0, count * step, step) for count, step in digits)
    return [first + sum(place) for place in itertools.product(*steps)], width


def _regions(axes: list[Runs], packed: Array) -> Iterator[tuple[Region, Array]]:
    """Boxes of the stored array, and where each goes in a packed copy."""
    shape = [n for begins, width in axes for n in (len(begins), width)]
    values = packed.reshape(shape)
    for index in np.ndindex(*(len(begins) for begins, _ in axes)):
        lows = [begins[i] for (begins, _), i in zip(axes, index, strict=True)]
        region = tuple(
            slice(low, low + width) for low, (_, width) in zip(lows, axes, strict=True)
        )
        yield region, values[tuple(part for i in index for part in (i, slice(None)))]
