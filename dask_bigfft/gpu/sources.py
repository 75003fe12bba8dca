"""Blocks on their way to a GPU: gathered when they are needed, or read as shards of others.

Imports `planner`, `kernels`, `memory`, `errors` and this room.
"""

import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.gpu.operations import Array, dense
from dask_bigfft.gpu.ring import runs
from dask_bigfft.gpu.tile_work import BlockTiles
from dask_bigfft.kernels.composite import Composite
from dask_bigfft.kernels.stacked import Stacked
from dask_bigfft.kernels.views import intervals
from dask_bigfft.memory import lend
from dask_bigfft.planner.tile_plan import TileLimits

#: Shards of other blocks are read in place if the rows of a tile are this part of
#: `run_nbytes` in the mean (1 KiB: a kernel reads them at the speed of the bus): below it, threads
#: gather the block faster.
NARROWEST = 1 / 8

#: Elements that a thread converts at least.
SHARED_ELEMENTS = 1 << 18


@dataclass(frozen=True)
class Part:
    """What of a block is taken through a round: from where to where along a dimension.

    ``width`` is that of a tile.
    """

    dim: int
    low: int
    high: int
    width: int


class Source:
    """A block that is had when it is needed, and again when it was overwritten.

    Parameters
    ----------
    gather : callable
        Returns the block, contiguous.
    again : bool
        Whether it may be called a second time.
    borrowed : bool
        Whether the block is somebody else's, and only to be read.
    composite : Composite, optional
        The block as shards of others, which are read in its place where their rows are wide.
    inside : bool
        Whether the shards are overwritten, and nothing else is done with the block.
    stacked : Stacked, optional
        How the block had better lie in memory of its own in the end.
    """

    def __init__(
        self,
        gather: Callable[[], Array],
        *,
        again: bool = True,
        borrowed: bool = False,
        composite: Composite | None = None,
        inside: bool = False,
        stacked: Stacked | None = None,
    ) -> None:
        self.gather, self.again, self.borrowed = gather, again or borrowed, borrowed
        self.composite, self.inside, self.stacked = composite, inside, stacked
        self.values: Array | None = None
        self.gathered = False

    def arrays(self, tiles: BlockTiles, limits: TileLimits) -> list[Array | Composite]:
        """The block before the first pass and after each, the same one where it can be."""
        shards = self.in_place(tiles, limits)
        if shards is not None and (not self.inside or fits_inside(tiles)):
            self.gathered = self.gathered or self.inside
            return arrays_of(tiles, shards, not self.inside, self.stacked)
        if self.inside:
            raise DeviceMemoryError("no tiles fit that can be written where they were")
        return arrays_of(tiles, self.get(), self.borrowed, self.stacked)

    def done(self, last: Array | Composite, shape: tuple[int, ...]) -> Array:
        """The block after a round, from what the last of `arrays` is then."""
        if not isinstance(last, Composite):
            return last.reshape(shape)
        if self.inside or self.stacked is None:
            return np.empty(0, last.dtype)  # it is where it was
        return self.stacked.whole(last)

    def in_place(self, tiles: BlockTiles, limits: TileLimits) -> Composite | None:
        """The block as shards of others, if the device reads them in place."""
        return None if self.composite is None else readable(tiles, self.composite, limits)

    def get(self) -> Array:
        """The block."""
        if self.values is None:
            self.values, self.gathered = self.gather(), True
        return self.values

    def converted(self, dtype: str) -> "Source":
        """The same block in another dtype, made of it when it is needed."""

        def gather() -> Array:
            values = self.get()
            self.let_go()
            return converted(values, np.dtype(dtype), os.cpu_count() or 1)

        return Source(gather, again=self.again)

    def let_go(self) -> None:
        """From here on the block may be overwritten."""
        self.values = None

    @property
    def lost(self) -> bool:
        """Whether the block was overwritten and cannot be had again."""
        return self.gathered and self.values is None and not self.again


def readable(tiles: BlockTiles, composite: Composite, limits: TileLimits) -> Composite | None:
    """A composite in the digits of the first pass; None where that had better not read it."""
    if composite.dtype.str != tiles.source:
        return None
    if composite.image and not tiles.plan.passes[0].mirrored:
        return None
    factors: list[tuple[int, ...]] = [(n,) for n in composite.shape]
    for dim, digits in zip(tiles.dims, tiles.plan.digits, strict=True):
        factors[dim] = digits
        if len(digits) > 1 and math.prod(digits) != composite.shape[dim]:
            return None  # half a spectrum
    found = composite.split(tuple(factors))
    if found is None or not found.falls:
        return None
    part = found.part(tuple(slice(0, n) for n in tiles.plan.passes[0].tile))
    if part is None:
        return None
    places = dense(tuple(cut.stop - cut.start for cut in part), found.dtype.itemsize)
    nbytes = rows = 0
    for shards in found.shards(part):
        nbytes += shards.nbytes
        width, _ = runs(shards.shape, shards.strides, found.dtype.itemsize, places)
        rows += shards.nbytes // max(1, width)
    return found if nbytes >= NARROWEST * limits.run_nbytes * rows else None


def fits_inside(tiles: BlockTiles) -> bool:
    """Whether every pass writes each tile to where one was read."""
    same = tiles.source == tiles.target
    return same and not any(one.reorders for one in tiles.plan.passes)


def arrays_of(
    tiles: BlockTiles, block: Array | Composite, borrowed: bool, stacked: Stacked | None = None
) -> list[Array | Composite]:
    """The block before the first pass and after each; where it can be, the same array.

    What is borrowed is only read. What is `stacked` is so if it gets memory of its own.
    """
    arrays = [block]
    for number in range(len(tiles.plan.passes)):
        dtype = tiles.written(number)
        shape, before = tiles.shape(number), arrays[-1]
        same = math.prod(shape) == math.prod(before.shape) and dtype == before.dtype.str
        if tiles.moves(number) or (borrowed and number == 0) or not same:
            one = tiles.plan.passes[number]
            as_read = one.swap is None and not one.reorders and one.after == shape
            if stacked is not None and as_read and number == len(tiles.plan.passes) - 1:
                arrays.append(stacked.lent(shape, np.dtype(dtype)))
            else:
                arrays.append(lend(shape, np.dtype(dtype)))
        else:
            arrays.append(before)
    return arrays


def converted(values: Array, dtype: np.dtype[Any], threads: int) -> Array:
    """Return the values in another dtype, by some threads; the array itself if it has it."""
    if values.dtype == dtype:
        return values
    out = lend(values.shape, dtype)
    came, goes = values.reshape(-1), out.reshape(-1)
    width = max(SHARED_ELEMENTS, -(-came.size // threads))
    cut = list(intervals(came.size, width))
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda part: np.copyto(goes[part], came[part]), cut))
    return out
