"""`Job`: a round on a block, as an engine is asked to do it.

Imports `decomposition`, `planner`, `errors` and this room.
"""

import contextlib
import itertools
from dataclasses import dataclass, replace

import numpy as np

from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.gpu.half_spectrum import Window
from dask_bigfft.gpu.tile_work import Block, BlockTiles
from dask_bigfft.planner.passes import find_tile_plan
from dask_bigfft.planner.tile_plan import (
    AS_IS,
    DeviceSettings,
    Scheme,
    TileLimits,
    TilePlan,
    apart,
    in_turn,
    request_of,
)


@dataclass(frozen=True)
class Job:
    """A round on a block.

    Parameters
    ----------
    round : Round
        What to do.
    block : tuple of int
        Which block.
    source, target : str
        Dtype of the block before and after.
    inside : bool
        Whether to do without host memory apart from the block, where that is possible.
    order : tuple of int
        Of a round without steps: dimensions of the block in the order in which they are written.
    shards : int
        Source blocks that the block is read from.
    mirrored : bool
        Whether some of these lie backwards: the mirror image of half a spectrum.
    stores : int
        Shards in which the block is written.
    settings : DeviceSettings
        What is set of the pipeline.
    convolves : bool
        Whether values are multiplied by the spectrum of a filter that the engine makes.
    window : Window, optional
        Of a round without steps: what the block has of the one around it that is read.
    scheme : Scheme, optional
        The decomposition, if it is set by hand.
    """

    round: Round
    block: Block
    source: str
    target: str
    inside: bool = False
    order: tuple[int, ...] = ()
    shards: int = 1
    mirrored: bool = False
    stores: int = 1
    settings: DeviceSettings = AS_IS
    convolves: bool = False
    window: Window | None = None
    scheme: Scheme | None = None

    def tiles(self, limits: TileLimits, work: int = 0) -> BlockTiles:
        """Return the block in tiles within some limits, beside some work areas.

        Raises
        ------
        DeviceMemoryError
            If tiles cannot be made small enough.
        DeviceError
            If the values are not of single or double precision.
        """
        shape, limits = self.round.source.shape(self.block), limits.tuned(self.settings)
        request = request_of(self.round, shape, self.source, self.target, scheme=self.scheme)
        other = replace(request, order=self.order, shards=self.shards, stores=self.stores)
        wishes = [replace(request, inside=True)] * self.inside
        wishes += [replace(other, mirrored=True)] * self.mirrored
        for wish in wishes:
            with contextlib.suppress(DeviceMemoryError):
                return self._in_tiles(find_tile_plan(wish, limits, work))
        return self._in_tiles(find_tile_plan(other, limits, work))

    def _in_tiles(self, plan: TilePlan) -> BlockTiles:
        return BlockTiles(self.round, self.block, self.source, self.target, plan, self.window)

    def apart(self) -> tuple["Job", ...]:
        """Return jobs that do the same one after the other: real values alone with their axis."""
        return self._links(apart(self.round))

    def singly(self) -> tuple["Job", ...]:
        """Return jobs that do one step each."""
        return self._links(in_turn(self.round, [(step,) for step in self.round.steps]))

    def _links(self, rounds: tuple[Round, ...]) -> tuple["Job", ...]:
        """Return the jobs of rounds that follow one another."""
        if len(rounds) < 2:
            return (self,)
        whole = max(self.source, self.target, key=lambda name: np.dtype(name).kind == "c")
        dtypes = [self.source, *[whole] * (len(rounds) - 1), self.target]
        found = [
            Job(round_, self.block, *ends, settings=self.settings)
            for round_, ends in zip(rounds, itertools.pairwise(dtypes), strict=True)
        ]
        return (replace(found[0], shards=self.shards, mirrored=self.mirrored), *found[1:])
