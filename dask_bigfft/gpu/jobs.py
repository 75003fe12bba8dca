"""`Job`: a round on a block, as an engine is asked to do it; and `Source`, the block.

A block is gathered when it is needed, or read as shards of others. A length with nothing to split
that is larger than a GPU becomes a convolution (`convolving`).

Imports `decomposition`, `planner`, `kernels`, `memory`, `errors` and this room.
"""

import contextlib
import itertools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from dask_bigfft.decomposition.factors import factorize, smooth_length
from dask_bigfft.decomposition.layout import AxisLayout, Digit, Layout, plain, whole
from dask_bigfft.decomposition.rounds import Round, transformed
from dask_bigfft.decomposition.steps import Step, axis_program
from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.gpu.half_spectrum import Window
from dask_bigfft.gpu.operations import Array, dense
from dask_bigfft.gpu.ring import runs
from dask_bigfft.gpu.tile_work import Block, BlockTiles
from dask_bigfft.kernels.composite import Composite, Stacked
from dask_bigfft.kernels.twiddle import chirp_filter
from dask_bigfft.kernels.views import intervals
from dask_bigfft.memory import lend
from dask_bigfft.planner.passes import find_tile_plan
from dask_bigfft.planner.tile_plan import (
    AS_IS,
    MOST_PRIME,
    DeviceSettings,
    Scheme,
    TileLimits,
    TilePlan,
    apart,
    in_turn,
    request_of,
)

#: Shards of other blocks are read in place if the rows of a tile are this part of
#: `run_nbytes` in the mean (1 KiB: a kernel reads them at the speed of the bus): below it, threads
#: gather the block faster.
NARROWEST = 1 / 8

#: Elements that a thread converts at least.
SHARED_ELEMENTS = 1 << 18

#: Values of a filter that are made at a time.
FILTER_VALUES = 1 << 20


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


# --- where the block is ----------------------------------------------------------------------


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


# --- lengths with nothing to split -----------------------------------------------------------
#
# A block that holds a whole axis is transformed by an FFT of just its length, whatever that is.
# Where that is larger than the GPU and has no digits that are not, Bluestein's algorithm takes its
# place: FFTs of a smooth length of at least twice as much, which fall apart. The block itself has
# only the first values of those digits, and only the first of the result go back::
#
#     block of 11 values        12 * 2 digits of 24 on the GPU, in three passes
#       x0 x1 ... x10     ->      x0  x1
#                                 ..  ..
#                                 x10  0       chirp, FFT, filter, FFT back, chirp
#
# The spectrum of the filter is made in the same way, from a chirp of the smooth length.
#
# A digit of a cut axis is no different: its own index is that of the convolution, and the digits
# that are still to come make the twiddle that follows. Half a spectrum is not completed. Real
# values are
#
#     x[n] = Re(X[0] + 2 X[1] w^n + 2 X[2] w^2n + ...),    w = exp(2i pi / N),
#
# with no factor 2 for X[N/2], so that half as many values come, and the real parts go.


def is_hard(job: Job) -> bool:
    """Whether some length of a job has a prime factor for which FFT libraries have no kernel."""
    return any(max(factorize(step.length), default=1) > MOST_PRIME for step in job.round.steps)


def convolving(job: Job) -> Job | None:
    """Return a job that does the same as a convolution; None where there is no such.

    What is a convolution already, with a filter of an axis, is none here.
    """
    if len(job.round.steps) != 1 or not is_hard(job):
        return None
    (step,) = job.round.steps
    if any(found is not None for found in (step.convolve, step.chirp_in, step.chirp_out)):
        return None
    n, padded = step.length, smooth_length(2 * step.length - 1)
    (found,) = axis_program(step.axis, n, (padded,), sign=step.sign, bluestein=True).steps
    chirped = replace(
        found,
        sign=-step.sign,  # there; back with the sign of the step, which is that of its twiddle
        source=Digit(0, 1, step.source.size, padded),
        target=Digit(found.target.stage, 1, step.target.size, padded),
        divisor=step.divisor,
        twiddle=step.twiddle,
    )
    axes = list(job.round.source.axes)
    axes[step.axis] = _beside(axes[step.axis], step, chirped)
    layout = Layout(tuple(axes))
    round_ = Round((chirped,), layout, transformed(layout, (chirped,)))
    source = max(job.source, job.target, key=lambda name: np.dtype(name).kind == "c")
    return Job(round_, job.block, source, job.target, settings=job.settings, convolves=True)


def _beside(axis: AxisLayout, step: Step, chirped: Step) -> AxisLayout:
    """An axis in which the digit of a step is one of its own, with as many stages as it needs.

    The digits that the twiddle is of are of the last stage but one, as those of all twiddles are.
    """

    def staged(digit: Digit) -> Digit:
        stage = chirped.target.stage
        return replace(digit, stage=stage - 1 if digit.stage == step.source.stage else stage + 1)

    groups = []
    for group in axis.groups:
        own = group.digits == (step.source,)
        digits = tuple(map(staged, group.digits))
        groups.append(whole(chirped.source) if own else replace(group, digits=digits))
    return AxisLayout(tuple(groups))


def filter_job(job: Job) -> Job:
    """The job that makes the spectrum of the filter of a job that convolves."""
    (step,) = job.round.steps
    layout = Layout((plain(step.length, (step.length,)),))
    (own,) = axis_program(0, step.length, (step.length,)).steps
    round_ = Round((own,), layout, transformed(layout, (own,)))
    return Job(round_, (0,), job.source, job.source, settings=job.settings)


def filter_of(job: Job) -> Array:
    """The filter of a job that convolves."""
    (step,) = job.round.steps
    assert step.convolve is not None
    found = lend((step.length,), np.dtype(job.source))
    for part in intervals(step.length, FILTER_VALUES):
        places = np.arange(part.start, part.stop, dtype=np.int64)
        found[part] = chirp_filter(
            places.shape, places, step.length, step.convolve.length, step.convolve.sign, found.dtype
        )
    return found
