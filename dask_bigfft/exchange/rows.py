"""Which rows a block is made of where an array is stored, and where they go.

Imports `kernels` and this room.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.exchange.product import Block, Ints, Product, products_of
from dask_bigfft.exchange.shards import ExchangeMap, PieceTable
from dask_bigfft.kernels.copies import strided_view

Array = npt.NDArray[Any]
Region = tuple[slice, ...]


@dataclass(frozen=True)
class Runs:
    """Which values of an axis a copy takes, as runs of neighbours, and where these go.

    Parameters
    ----------
    begins : list of int
        First value of each run.
    places : list of int
        Where each goes, in bytes.
    width, stride : int
        Values of a run, and bytes from one to the next where they go.
    """

    begins: list[int]
    places: list[int]
    width: int
    stride: int


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
    for product in products_of(exchange, block, packed=True):
        starts, steps = product.in_packed(used)
        sizes = np.array([packed[b].itemsize for b in product.blocks], np.int64)[product.which]
        starts, steps = starts * sizes, steps * sizes[:, None]
        places = (packed[product.blocks[i]] for i in product.which.tolist())
        yield from _regions(exchange, product, places, starts, steps)


def block_regions(
    exchange: ExchangeMap, block: Block, values: Array
) -> Iterator[tuple[Region, Array]]:
    """Give the regions that a target block is made of, and where each goes in the block itself.

    Parameters
    ----------
    exchange, block
        As `shard_regions` takes them.
    values : ndarray
        The block.

    Yields
    ------
    region, place
        Slices of the stored array, and an array of that shape in `values`.
    """
    for product in products_of(exchange, block, packed=True):
        strides = np.array([values.strides] * len(product.which), np.int64)
        starts, steps = product.in_targets(exchange, strides)
        yield from _regions(exchange, product, itertools.repeat(values), starts, steps)


def _regions(
    exchange: ExchangeMap, product: Product, memory: Iterable[Array], starts: Ints, steps: Ints
) -> Iterator[tuple[Region, Array]]:
    """Boxes of the stored array that each copy takes, and where they go in its memory."""
    for copy, (values, start) in enumerate(zip(memory, starts.tolist(), strict=False)):
        source, axes, first = product.blocks[product.which[copy]], [], 0
        for a, (table, chosen) in enumerate(zip(product.tables, product.chosen, strict=True)):
            origin, last = exchange.source.axes[a].groups[0].bounds[source[a]], first
            first += len(table.source_dims)
            strides = steps[copy, last:first].tolist()
            axes.append(_runs(table, int(chosen[copy]), origin, strides, values.itemsize))
        widths, strides = [axis.width for axis in axes], [axis.stride for axis in axes]
        for index in np.ndindex(*(len(axis.begins) for axis in axes)):
            pairs = list(zip(axes, index, strict=True))
            lows = [axis.begins[i] for axis, i in pairs]
            region = tuple(slice(low, low + n) for low, n in zip(lows, widths, strict=True))
            place = start + sum(axis.places[i] for axis, i in pairs)
            yield region, strided_view(values, place, widths, strides)


def _runs(table: PieceTable, row: int, origin: int, strides: list[int], itemsize: int) -> Runs:
    """Which values of an axis a piece has, whose digits go to places of some strides.

    Digits are one run as far as they are neighbours where they are stored, and lie evenly where
    they go.
    """
    counts, source_steps = table.counts[row].tolist(), table.source_steps[row].tolist()
    digits = [d for d in zip(counts, source_steps, strides, strict=True) if d[0] != 1]
    width, stride = 1, itemsize
    while digits and digits[-1][1] == width and (width == 1 or digits[-1][2] == width * stride):
        count, _, step = digits.pop()
        stride = step if width == 1 else stride
        width *= count
    first = origin + int(table.source_starts[row, 0])
    begins, places = [first], [0]
    for count, step, into in digits:
        begins = [begin + i * step for begin in begins for i in range(count)]
        places = [place + i * into for place in places for i in range(count)]
    return Runs(begins, places, width, stride)
