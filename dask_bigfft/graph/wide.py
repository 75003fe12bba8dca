"""Rounds on several blocks at a time, where these lie side by side in common memory.

Between two FFTs the code of a task has left the caches, so that small blocks spend much of their
time in Python. Neighbours that lie together are one larger block of the same memory: a round in
place does them in one call of the FFT library, and hands each of them on as the view that it is::

    barrier -> wide block -> block, block, block, block
            -> wide block -> block, block
            -> wide block -> block

Blocks towards the end are taken in smaller numbers, so that threads end together.

Imports `decomposition`, `planner`, `exchange`, `kernels` and this room.
"""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.joints import fits
from dask_bigfft.decomposition.layout import AxisLayout, Group, Layout
from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.decomposition.tiles import tile_bytes_of, tiling
from dask_bigfft.events import emit
from dask_bigfft.exchange.common import Common, lying, note_result, same_memory
from dask_bigfft.graph.blocks import Blocks
from dask_bigfft.graph.dask_private import Task, TaskRef
from dask_bigfft.graph.names import Names
from dask_bigfft.graph.run import Run
from dask_bigfft.graph.tasks import reported, run_block
from dask_bigfft.kernels.checks import facts_of
from dask_bigfft.kernels.copies import copy_array
from dask_bigfft.kernels.views import BlockView
from dask_bigfft.planner.plan import Plan
from dask_bigfft.threads import task_threads

__all__ = ["Widening", "weave_wide", "widening_of"]

Array = npt.NDArray[Any]
Block = tuple[int, ...]
Parts = dict[Block, Array]

#: Blocks that are taken together at most, and wide blocks that every thread finds at least.
MOST, LEAST_EACH = 4, 8

#: Bytes of a block above which Python is little beside its FFTs.
LARGE_NBYTES = 1 << 25


@dataclass(frozen=True)
class Widening:
    """A round of a plan on wide blocks.

    Parameters
    ----------
    number : int
        The round, from 0.
    round_ : Round
        What is done, on wide blocks.
    axis : int
        Along which blocks are taken together.
    counts : tuple of int
        How many blocks each wide block along that axis is made of.
    """

    number: int
    round_: Round
    axis: int
    counts: tuple[int, ...]

    def members(self, wide: Block) -> list[Block]:
        """The blocks that a wide block is made of."""
        first, axis = sum(self.counts[: wide[self.axis]]), self.axis
        count = self.counts[wide[axis]]
        return [(*wide[:axis], first + i, *wide[axis + 1 :]) for i in range(count)]


def counts_of(blocks: int, most: int) -> tuple[int, ...]:
    """How many of some blocks are taken together at a time: fewer towards the end.

    >>> counts_of(32, 4)
    (4, 4, 4, 4, 4, 4, 2, 2, 1, 1, 1, 1)
    >>> counts_of(7, 2)
    (2, 2, 2, 1)
    """
    found: list[int] = []
    left = blocks
    for width, kept in ((most, blocks // 4), (max(1, most // 2), blocks // 8), (1, 0)):
        while left - width >= kept and left > 0:
            found.append(width)
            left -= width
    return tuple(found)


def widening_of(plan: Any, number: int) -> Widening | None:
    """Return how a round of a plan is done on wide blocks, if it pays and can be.

    It can where the round works in common memory, of which tiles can be done once more. It pays
    where blocks are small, and many for the threads that there are.

    Parameters
    ----------
    plan : Plan or ShiftPlan
        Whose blocks lie in common memory before the round.
    number : int
        The round, from 0; the last exchange has none.
    """
    if not isinstance(plan, Plan) or number >= len(plan.rounds):
        return None
    round_, joint = plan.rounds[number], plan.joints.exchanges[number]
    after = plan.joints.inside[number]
    filtered = any(step.convolve is not None for step in round_.steps)
    if joint is None or after is None or filtered:
        return None
    if round_.source.largest * np.dtype(plan.dtypes[2 * number]).itemsize > LARGE_NBYTES:
        return None
    most = min(MOST, round_.source.blocks // (LEAST_EACH * task_threads()))
    axes = [
        (axis.blocks, i)
        for i, axis in enumerate(round_.source.axes)
        if sum(len(group.chunks) > 1 for group in axis.groups) == 1
    ]
    if most < 2 or not axes:
        return None
    blocks, axis = max(axes)
    counts = counts_of(blocks, most)
    source, target = (_widened(lay, axis, counts) for lay in (round_.source, round_.target))
    if not fits(joint.layout, source) or not fits(after, target):
        return None
    wide = Round(round_.steps, source, target)
    itemsize = np.dtype(plan.dtypes[2 * number]).itemsize
    if plan.verify != "none" and not _in_tiles(wide, itemsize, plan.machine.threads):
        return None
    return Widening(number, wide, axis, counts)


def _in_tiles(round_: Round, itemsize: int, threads: int) -> bool:
    """Whether a round is checked tile by tile; else blocks are copied whole, or done twice."""
    shape = round_.source.shape(next(iter(round_.source.indices())))
    fixed = {round_.dim(step) for step in round_.steps}
    size = tile_bytes_of(threads)
    cut = tiling(shape, fixed, math.prod(shape) * itemsize, size, slice_bytes=size)
    return cut is not None and facts_of(round_).keeps_energy


def _widened(layout: Layout, axis: int, counts: Sequence[int]) -> Layout:
    """The layout with blocks along an axis, one group of which is cut, taken together."""
    axes = list(layout.axes)
    groups = (
        group if len(group.chunks) == 1 else _joined(group, counts) for group in axes[axis].groups
    )
    axes[axis] = AxisLayout(tuple(groups))
    return Layout(tuple(axes))


def _joined(group: Group, counts: Sequence[int]) -> Group:
    chunks, first = [], 0
    for count in counts:
        chunks.append(sum(group.chunks[first : first + count]))
        first += count
    return Group(group.digits, tuple(chunks), group.offset, group.arrangement)


def weave_wide(
    graph: dict[Any, Any],
    names: Names,
    name: str,
    wide: Widening,
    targets: Sequence[Block],
    barrier: TaskRef,
) -> None:
    """Add the tasks of a round on wide blocks.

    Parameters
    ----------
    graph : dict
        Gets them.
    names : Names
        Of the graph's tasks.
    name : str
        Of the round's blocks.
    wide : Widening
        The round.
    targets : sequence of block indices
        Blocks of one connected group.
    barrier : TaskRef
        Its handle.
    """
    wanted, plan = set(targets), TaskRef(names.plan)
    for index in wide.round_.source.indices():
        blocks = tuple(block for block in wide.members(index) if block in wanted)
        if not blocks:
            continue
        together: Any = (names.wide(wide.number), *index)
        graph[together] = Task(together, run_wide, plan, wide, index, blocks, barrier)
        for block in blocks:
            key: Any = (name, *block)
            graph[key] = Task(key, part_of, TaskRef(together), block)


def part_of(parts: Parts, block: Block) -> Array:
    """Return one of the blocks that a wide block is made of."""
    return parts[block]


def run_wide(
    run: Run, wide: Widening, index: Block, blocks: tuple[Block, ...], given: Blocks
) -> Parts:
    """Return blocks after a round that was done on all of them together, or on each in turn.

    Parameters
    ----------
    run : Run
        The plan.
    wide : Widening
        The round on wide blocks.
    index : tuple of int
        Which wide block.
    blocks : tuple of block indices
        What it is made of.
    given : Blocks
        Handle of the blocks before the exchange. If they do not lie together, each is gathered.
    """
    if given.common is None:
        return {
            block: run_block(run, wide.number, block, (), None, None, given) for block in blocks
        }
    found: Parts = _together(run, wide.number, wide, index, blocks, given.common)
    return found


@reported
def _together(
    run: Run, number: int, wide: Widening, index: Block, blocks: tuple[Block, ...], common: Common
) -> Parts:
    joint, after = run.joints.exchanges[number], run.joints.inside[number]
    assert joint is not None
    assert after is not None
    assert common.array is not None
    memory, plan = common.array, run.plan
    round_ = plan.rounds[number]
    last = isinstance(plan, Plan) and plan.ends_in_round and number + 1 == len(plan.rounds)
    layout = plan.result if last and isinstance(plan, Plan) else round_.target

    def work() -> Parts:
        started = time.perf_counter()
        values = lying(memory, joint.layout, wide.round_.source, index)
        incoming = BlockView.of(values, target=values)
        done = run.transformed(number, wide.round_, index, lambda: incoming, {}, blocks)
        if not same_memory(done, values):
            copy_array(values, done)
        seconds = (time.perf_counter() - started) / len(blocks)
        parts = {}
        for block in blocks:
            view = parts[block] = lying(memory, after, layout, block)
            if last:
                note_result(run.token, view)
            emit("round", nbytes=view.nbytes, seconds=seconds)
        return parts

    return common.once(number, blocks[0], work)
