"""What an engine is asked to do: a round on a block, or on a part of it; and where the block is.

Imports `decomposition`, `planner`, `kernels`, `memory`, `errors` and this room.
"""

import contextlib
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from dask_bigfft.decomposition.rounds import Round, transformed
from dask_bigfft.decomposition.steps import Step
from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.gpu.limits import PieceLimits
from dask_bigfft.gpu.operations import Array, dense
from dask_bigfft.gpu.pieces import PiecePlan, piece_plan
from dask_bigfft.gpu.piecework import Block
from dask_bigfft.gpu.ragged import Window
from dask_bigfft.gpu.ring import runs
from dask_bigfft.kernels.composite import Composite
from dask_bigfft.kernels.stacked import Stacked
from dask_bigfft.kernels.views import intervals
from dask_bigfft.memory import lend
from dask_bigfft.planner.device_settings import AS_IS, DeviceSettings

#: Shards of other blocks are read where they lie if the rows of a piece are this part of
#: `run_nbytes` in the mean (1 KiB: a kernel reads them at the speed of the bus): below it, threads
#: gather the block faster.
NARROWEST = 1 / 8

#: Elements that a thread converts at least.
SHARED_ELEMENTS = 1 << 18


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

    @cached_property
    def _plans(self) -> dict[tuple[PieceLimits, int], PiecePlan]:
        return {}

    def apart(self) -> tuple["Job", ...]:
        """Jobs that do the same one after the other: real values are alone with their axis.

        Half a spectrum is completed by its mirror image along one axis, which is only so before
        other axes are transformed (c2r: after them).
        """
        by_kind: dict[str, list[Step]] = {"r2c": [], "c2c": [], "c2r": []}
        for step in self.round.steps:
            by_kind[step.kind].append(step)
        return self._in_turn([tuple(steps) for steps in by_kind.values() if steps])

    def singly(self) -> tuple["Job", ...]:
        """Jobs that do one step each."""
        return self._in_turn([(step,) for step in self.round.steps])

    def _in_turn(self, groups: list[tuple[Step, ...]]) -> tuple["Job", ...]:
        """Jobs that do some steps each, one after the other."""
        found, layout, dtype = list[Job](), self.round.source, self.source
        whole = max(self.source, self.target, key=lambda name: np.dtype(name).kind == "c")
        if len(groups) < 2 or self.order:
            return (self,)
        for number, steps in enumerate(groups, 1):
            last = number == len(groups)
            after = self.round.target if last else transformed(layout, steps)
            made = self.target if last else whole
            round_ = Round(steps, layout, after)
            found.append(Job(round_, self.block, dtype, made, settings=self.settings))
            layout, dtype = after, made
        first = replace(found[0], shards=self.shards, mirrored=self.mirrored)
        return (first, *found[1:])

    def plan(self, limits: PieceLimits, work: int = 0) -> PiecePlan:
        """The pieces within some limits."""
        found = self._plans.get((limits, work))
        if found is None:
            found = self._plans[limits, work] = self._planned(limits, work)
        return found

    def _planned(self, limits: PieceLimits, work: int) -> PiecePlan:
        limits = limits.tuned(self.settings)
        arguments = self.round, self.block, self.source, self.target, limits
        kept: dict[str, Any] = {
            "order": self.order,
            "shards": self.shards,
            "window": self.window,
            "stores": self.stores,
        }
        if self.inside:
            with contextlib.suppress(DeviceMemoryError):
                return piece_plan(*arguments, work=work, inside=True)
        if self.mirrored:
            with contextlib.suppress(DeviceMemoryError):
                return piece_plan(*arguments, work=work, mirrored=True, **kept)
        return piece_plan(*arguments, work=work, **kept)


@dataclass(frozen=True)
class Part:
    """What of a block is taken through a round: from where to where along a dimension.

    ``width`` is that of a piece.
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

    def arrays(self, plan: PiecePlan, limits: PieceLimits) -> list[Array | Composite]:
        """The block before the first crossing and after each, the same one where it can be."""
        shards = self.in_place(plan, limits)
        if shards is not None and (not self.inside or fits_inside(plan)):
            self.gathered = self.gathered or self.inside
            return arrays_of(plan, shards, not self.inside, self.stacked)
        if self.inside:
            raise DeviceMemoryError("no pieces fit that can be written where they were")
        return arrays_of(plan, self.get(), self.borrowed, self.stacked)

    def done(self, last: Array | Composite, shape: tuple[int, ...]) -> Array:
        """The block after a round, from what the last of `arrays` is then."""
        if not isinstance(last, Composite):
            return last.reshape(shape)
        if self.inside or self.stacked is None:
            return np.empty(0, last.dtype)  # it is where it was
        return self.stacked.whole(last)

    def in_place(self, plan: PiecePlan, limits: PieceLimits) -> Composite | None:
        """The block as shards of others, if the device reads them where they lie."""
        return None if self.composite is None else readable(plan, self.composite, limits)

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


def readable(plan: PiecePlan, composite: Composite, limits: PieceLimits) -> Composite | None:
    """A composite in the digits of the first crossing; None where that had better not read it."""
    if composite.dtype.str != plan.source:
        return None
    if composite.image and not plan.schedule.crossings[0].mirrored:
        return None
    factors: list[tuple[int, ...]] = [(n,) for n in composite.shape]
    for dim, digits in zip(plan.dims, plan.schedule.factors, strict=True):
        factors[dim] = digits
        if len(digits) > 1 and math.prod(digits) != composite.shape[dim]:
            return None  # half a spectrum
    found = composite.split(tuple(factors))
    if found is None or not found.falls:
        return None
    part = found.part(tuple(slice(0, n) for n in plan.schedule.crossings[0].extents))
    if part is None:
        return None
    places = dense(tuple(cut.stop - cut.start for cut in part), found.dtype.itemsize)
    nbytes = rows = 0
    for shards in found.shards(part):
        nbytes += shards.nbytes
        width, _ = runs(shards.shape, shards.strides, found.dtype.itemsize, places)
        rows += shards.nbytes // max(1, width)
    return found if nbytes >= NARROWEST * limits.run_nbytes * rows else None


def fits_inside(plan: PiecePlan) -> bool:
    """Whether every crossing writes each piece to where one was read."""
    same = plan.source == plan.target
    return same and not any(crossing.reorders for crossing in plan.schedule.crossings)


def arrays_of(
    plan: PiecePlan, block: Array | Composite, borrowed: bool, stacked: Stacked | None = None
) -> list[Array | Composite]:
    """The block before the first crossing and after each; where it can be, the same array.

    What is borrowed is only read. What is `stacked` is so if it gets memory of its own.
    """
    arrays = [block]
    for number in range(len(plan.schedule.crossings)):
        dtype = plan.written(number)
        shape, before = plan.shape(number), arrays[-1]
        same = math.prod(shape) == math.prod(before.shape) and dtype == before.dtype.str
        if plan.moves(number) or (borrowed and number == 0) or not same:
            crossing = plan.schedule.crossings[number]
            as_read = crossing.swap is None and not crossing.reorders and crossing.after == shape
            if stacked is not None and as_read and number == len(plan.schedule.crossings) - 1:
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
