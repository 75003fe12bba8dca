"""Rounds and exchanges: simultaneous steps, and the layouts of blocks before and after them.

Each block holds all values of the digits of a round. The algorithms of the literature are
partitions of the steps of all axes into rounds. The planner chooses the partition; this module
defines rounds and exchanges, and the cost of gathering an exchange::

    input --exchange 0--> round 1 --exchange 1--> ... round R --exchange R--> output

An exchange is *local*, without transfers, if every block is made from one block.
"""

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np

from dask_bigfft.arrays import Block, Ints
from dask_bigfft.decomposition.layout import (
    AxisLayout,
    Digit,
    Group,
    HashedOnce,
    Layout,
    common_digits,
    contiguous,
    radix_points,
)
from dask_bigfft.decomposition.steps import AxisProgram, Divisor, Step


@dataclass(frozen=True)
class Round(HashedOnce):
    """Local FFTs over one digit each of some axes.

    Parameters
    ----------
    steps : tuple of Step
        At most one per axis.
    source, target : Layout
        Blocks before and after; the same but for the digits that the steps replace. Where the
        target has an offset of such a digit, its values are stored cyclically shifted.
    """

    steps: tuple[Step, ...]
    source: Layout
    target: Layout

    @cached_property
    def rolls(self) -> tuple[tuple[int, int], ...]:
        """Dimensions of a block that are stored cyclically shifted, with their offsets."""
        groups = [group for axis in self.target.axes for group in axis.groups]
        dims = map(self.dim, self.steps)
        return tuple((dim, groups[dim].offset) for dim in dims if groups[dim].offset)

    @cached_property
    def begins_with_ffts(self) -> bool:
        """True if complex FFTs of one sign come first, so that one library call does them all."""
        begins = {(step.kind, step.sign, step.chirp_in) for step in self.steps}
        return begins in ({("c2c", -1, None)}, {("c2c", 1, None)})

    def dim(self, step: Step) -> int:
        """Return the dimension of a block that holds the step's digit."""
        before = sum(len(axis.groups) for axis in self.source.axes[: step.axis])
        digits = [group.digits for group in self.source.axes[step.axis].groups]
        return before + digits.index((step.source,))


@dataclass(frozen=True)
class Mirror:
    """Completion of half a spectrum.

    ``axis`` is the real axis, and ``length`` its N. ``others`` are the axes transformed together
    with it, whose index is negated, too.
    """

    axis: int
    length: int
    others: tuple[int, ...]


def packed_dtype(source: np.dtype[Any], target: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of packed shards: the source's, unless only the target is real.

    >>> packed_dtype(np.dtype("f4"), np.dtype("c8")), packed_dtype(np.dtype("c8"), np.dtype("f4"))
    (dtype('float32'), dtype('float32'))
    """
    return target if source.kind == "c" and target.kind != "c" else source


def transformed(layout: Layout, steps: tuple[Step, ...]) -> Layout:
    """Return the layout after steps: each step's target digit replaces its source digit."""
    axes = list(layout.axes)
    for step in steps:
        axes[step.axis] = _made(axes[step.axis], step.source, step.target)
    return Layout(tuple(axes))


@lru_cache(maxsize=1024)
def _made(axis: AxisLayout, source: Digit, target: Digit) -> AxisLayout:
    """Return the axis with one digit replaced by another."""
    made = Group((target,), (target.size,))
    return AxisLayout(tuple(made if group.digits == (source,) else group for group in axis.groups))


def _extents(layout: AxisLayout, points: dict[int, tuple[int, ...]]) -> list[tuple[int, int, int]]:
    """Return stage, stride and extent in a full block of each common digit, in stored order."""
    found: list[tuple[int, int, int]] = []
    for group in layout.groups:
        length, inner = max(group.chunks, default=0), 1
        extents = []
        for stage, stride, room in reversed(common_digits(group, points)):
            extents.append((stage, stride, max(1, min(room, -(-length // inner)))))
            inner *= room or 1
        found += reversed(extents)
    return found


@lru_cache(maxsize=1024)
def _met(source: AxisLayout, target: AxisLayout) -> tuple[tuple[int, int], ...]:
    """Return extents of common digits in full blocks before and after, innermost first."""
    points = radix_points(source, target)
    want = {(stage, stride): extent for stage, stride, extent in _extents(target, points)}
    return tuple(
        (extent, want.get((stage, stride), extent))
        for stage, stride, extent in reversed(_extents(source, points))
    )


@dataclass(frozen=True)
class ExchangeShape:
    """Cost figures of an exchange, for a full block.

    Parameters
    ----------
    fan_in : int
        Number of source blocks that a target block is gathered from.
    runs, width : int
        C and W: number of contiguous runs that a gather reads, and their width in elements.
    groups : int
        Connected groups of blocks: blocks of different groups exchange nothing.
    blocks_in, blocks_out : int
        Number of blocks before and after.
    local : bool
        True if each block is made from one block that no other block reads.
    largest : int
        Elements of the largest shard of a block that is not mirrored, at most.
    """

    fan_in: int
    runs: int
    width: int
    groups: int
    blocks_in: int
    blocks_out: int
    local: bool
    largest: int

    @property
    def shards(self) -> int:
        """Number of shards of the whole exchange."""
        return self.fan_in * self.blocks_out


@lru_cache(maxsize=1024)
def exchange_shape(source: Layout, target: Layout) -> ExchangeShape:
    """Return the figures of the exchange between two layouts, from their full blocks.

    They are exact for even chunks, and estimates for irregular ones, which count at their largest.
    """
    fan_in, width, closed, elements, largest = 1, 1, False, 1, 1
    for a, b in reversed(list(zip(source.axes, target.axes, strict=True))):
        for extent, need in _met(a, b):
            shard = min(extent, need)
            fan_in *= -(-need // shard)
            elements *= need
            largest *= shard
            if not closed:
                width *= shard
                closed = shard < extent
        if a.digits == b.digits and a.groups[0].offset != b.groups[0].offset:
            fan_in *= min(2, a.blocks)
    components = [axis_components(a, b) for a, b in zip(source.axes, target.axes, strict=True)]
    local = all(c.one_to_one for c in components)
    return ExchangeShape(
        fan_in=1 if local else min(fan_in, source.blocks),
        runs=max(1, elements // width) if width else 0,
        width=width,
        groups=math.prod(c.count for c in components),
        blocks_in=source.blocks,
        blocks_out=target.blocks,
        local=local,
        largest=largest,
    )


@dataclass(frozen=True, eq=False)
class AxisComponents:
    """Connected groups of an exchange along one axis.

    ``of_source[i]`` is the group of source block i (-1: unused), ``of_target[j]`` that of
    target block j. The groups of an n-dimensional exchange are the products of its axes'.
    """

    count: int
    of_source: Ints
    of_target: Ints

    @cached_property
    def sources(self) -> tuple[tuple[int, ...], ...]:
        """Source blocks of each group."""
        return _members(self.of_source, self.count)

    @cached_property
    def targets(self) -> tuple[tuple[int, ...], ...]:
        """Target blocks of each group."""
        return _members(self.of_target, self.count)

    @cached_property
    def one_to_one(self) -> bool:
        """True if every group has at most one block on either side."""
        return all(
            np.bincount(of[of >= 0], minlength=1).max() <= 1
            for of in (self.of_source, self.of_target)
        )


def _members(groups: Ints, count: int) -> tuple[tuple[int, ...], ...]:
    found: list[list[int]] = [[] for _ in range(count)]
    for block, group in enumerate(groups.tolist()):
        if group >= 0:
            found[group].append(block)
    return tuple(map(tuple, found))


def _interval_components(source: Group, target: Group) -> AxisComponents:
    """Return the groups of two cuts of the same flattened digits, split at common bounds."""
    if source.offset != target.offset:
        return _rolled_components(source, target)
    size = source.size
    of_source, of_target = (np.minimum(group.bounds, size) for group in (source, target))
    # Behind the stored values there is padding, which any cut of the target splits.
    stored = np.union1d(of_source, of_target[of_target >= of_source[-1]])
    common = np.union1d(np.intersect1d(stored, of_target), [0, size])

    def groups_of(bounds: Ints) -> Ints:
        found = np.searchsorted(common, bounds[:-1], side="right") - 1
        return np.minimum(found, max(0, len(common) - 2))

    used = np.where(np.diff(of_source) > 0, groups_of(of_source), -1)
    return AxisComponents(max(1, len(common) - 1), used, groups_of(of_target))


def _rolled_components(source: Group, target: Group) -> AxisComponents:
    """Return the groups of digits cyclically shifted against one another: cuts of a circle."""
    cut, cut_after = (
        (np.array(group.bounds[:-1], np.int64) + group.offset) % source.size
        for group in (source, target)
    )
    common = np.intersect1d(cut, cut_after)
    count = max(1, len(common))

    def groups_of(places: Ints) -> Ints:
        return (np.searchsorted(common, places, side="right") - 1) % count

    used = np.where(np.array(source.chunks) > 0, groups_of(cut), -1)
    return AxisComponents(count, used, groups_of(cut_after))


def unflattened(layout: AxisLayout) -> AxisLayout:
    """Return the layout with groups of several digits split where the chunks allow it.

    >>> one = Group((Digit(1, 1, 3, 3), Digit(1, 3, 4, 4)), (4, 8))
    >>> [group.chunks for group in unflattened(AxisLayout((one,))).groups]
    [(1, 2), (4,)]
    """
    groups: list[Group] = []
    for group in layout.groups:
        first, *inner = group.digits
        width = math.prod(digit.size for digit in inner)
        is_uneven = group.offset or group.bounds[-1] != group.size
        if inner and not is_uneven and not any(c % width for c in group.chunks):
            groups.append(Group((first,), tuple(c // width for c in group.chunks)))
            groups += [Group((digit,), (digit.size,)) for digit in inner]
        else:
            groups.append(group)
    return AxisLayout(tuple(groups))


@lru_cache(maxsize=256)
def axis_components(source: AxisLayout, target: AxisLayout) -> AxisComponents:
    """Return the connected groups of an exchange along one axis.

    Groups of digits with the same chunks in both layouts separate the blocks. All other blocks are
    assumed to be connected, so the result may be coarser than necessary.
    """
    if any(group.arrangement for group in (*source.groups, *target.groups)):
        return AxisComponents(1, *(np.zeros(side.blocks, np.int64) for side in (source, target)))
    source, target = unflattened(source), unflattened(target)
    if len(source.groups) == len(target.groups) == 1 and source.digits == target.digits:
        return _interval_components(source.groups[0], target.groups[0])
    kept = [group for group in source.groups if group in target.groups and len(group.chunks) > 1]
    grid = tuple(len(group.chunks) for group in kept)

    def groups_of(layout: AxisLayout) -> Ints:
        chunks = np.indices(layout.grid).reshape(len(layout.grid), -1)
        found = np.zeros(layout.blocks, np.int64)
        for group, count in zip(kept, grid, strict=True):
            found = found * count + chunks[layout.groups.index(group)]
        return found

    return AxisComponents(math.prod(grid), groups_of(source), groups_of(target))


Scale = Literal["none", "ortho", "full"]


def _bearer(program: AxisProgram) -> Step:
    """Return the best step for the division: the last chirp, the first twiddle or the last FFT."""
    last = program.steps[-1]
    if last.chirp_out is not None:
        return last
    return next((step for step in program.steps if step.twiddle is not None), last)


def divided(
    programs: tuple[AxisProgram, ...], rounds: tuple[Round, ...], scale: Scale
) -> tuple[tuple[AxisProgram, ...], tuple[Round, ...]]:
    """Return programs and rounds with the scale of a transform in their steps.

    Parameters
    ----------
    programs : tuple of AxisProgram
        Programs of all transformed axes.
    rounds : tuple of Round
        All rounds in order.
    scale : {"none", "ortho", "full"}
        Factor 1, 1/sqrt(N) or 1/N with N the product of all lengths.
    """
    if scale == "none" or not programs:
        return programs, rounds
    exact = scale == "full" and all(p.length & (p.length - 1) == 0 for p in programs)
    together = len(rounds) == 1 and all(step.kind == "c2c" for step in rounds[0].steps)
    if exact or together:
        lengths = {_bearer(program): program.length for program in programs}
    else:

        def cost(program: AxisProgram) -> tuple[bool, int]:
            """Return whether to divide is an extra pass, and the number of rounds after it."""
            step = _bearer(program)
            after = next(n for n, found in enumerate(reversed(rounds)) if step in found.steps)
            return step.chirp_out is None and step.twiddle is None, after

        best = min(programs, key=cost)
        lengths = {_bearer(best): math.prod(program.length for program in programs)}
    divisors = {s: Divisor(1, n) if scale == "ortho" else Divisor(n) for s, n in lengths.items()}
    new = {step: replace(step, divisor=divisor) for step, divisor in divisors.items()}
    return (
        tuple(replace(p, steps=tuple(new.get(s, s) for s in p.steps)) for p in programs),
        tuple(replace(r, steps=tuple(new.get(s, s) for s in r.steps)) for r in rounds),
    )


def merged(digits: tuple[Digit, ...]) -> tuple[Digit, ...]:
    """Return the digits, with neighbours joined that form one digit of the index.

    >>> merged((Digit(1, 4, 3, 3), Digit(1, 1, 4, 4)))
    (Digit(stage=1, stride=1, size=12, radix=12),)
    """
    found: list[Digit] = []
    for digit in digits:
        last = found[-1] if found else None
        follows = last is not None and last.stage == digit.stage and not digit.is_partial
        if last is not None and follows and last.stride == digit.stride * digit.radix:
            size, radix = last.size * digit.size, last.radix * digit.radix
            found[-1] = Digit(digit.stage, digit.stride, size, radix)
        else:
            found.append(digit)
    return tuple(found)


def _plain(group: Group) -> bool:
    """Return True if a group stores each value once, in order, and without empty chunks."""
    whole = group.bounds[-1] == group.size and min(group.chunks, default=0) > 0
    return whole and not group.offset and not group.arrangement


def _alike(a: AxisLayout, b: AxisLayout) -> bool:
    """Return True if two layouts of an axis have the same dimensions, in any order."""
    one, other = ({group.digits for group in axis.groups} for axis in (a, b))
    return one == other and len(one) == len(a.groups) == len(b.groups)


@lru_cache(maxsize=1024)
def _fits(shared_layout: AxisLayout, axis: AxisLayout) -> bool:
    """Return True if every block of an axis layout is a view of one block of the shared layout."""
    if not all(map(_plain, (*shared_layout.groups, *axis.groups))):
        return False
    if _alike(shared_layout, axis):
        cuts = {group.digits: set(group.bounds) for group in axis.groups}
        return all(set(group.bounds) <= cuts[group.digits] for group in shared_layout.groups)
    one = len(axis.groups) == shared_layout.blocks == 1
    return one and merged(shared_layout.digits) == merged(axis.digits)


def fits(shared_layout: Layout, layout: Layout) -> bool:
    """Return True if every block of a layout is a view of one block of the shared layout."""
    return all(_fits(a, b) for a, b in zip(shared_layout.axes, layout.axes, strict=True))


def shared_layout_of(before: Layout, after: Layout, layout: Layout | None = None) -> Layout | None:
    """Return the shared layout of two layouts, with one block for each connected group, or None.

    Only `layout` counts if the first blocks share it already. A new one has its digits in the order
    of the first layout, so that whole rows are written.
    """
    axes, held = [], [None] * len(before.axes) if layout is None else layout.axes
    for own, a, b in zip(held, before.axes, after.axes, strict=True):
        axis = own or _shared_axis(a, b)
        fitting = axis is not None and _fits(axis, a) and _fits(axis, b)
        if axis is None or not fitting or axis_components(a, b).count != axis.blocks:
            return None
        axes.append(axis)
    return Layout(tuple(axes))


def _shared_axis(a: AxisLayout, b: AxisLayout) -> AxisLayout | None:
    if _alike(a, b):
        cuts = {group.digits: set(group.bounds) for group in b.groups}
        kept = ((g.digits, sorted(cuts[g.digits] & set(g.bounds))) for g in a.groups)
        pairs = ((digits, itertools.pairwise(bounds)) for digits, bounds in kept)
        return AxisLayout(tuple(Group(d, tuple(high - low for low, high in p)) for d, p in pairs))
    if len(b.groups) == 1:  # flat: the digits in the order that they have there
        falling = sorted(a.groups, key=lambda group: -group.digits[0].stride)
        return AxisLayout(tuple(Group(g.digits, (g.size,)) for g in falling))
    return None


@dataclass(frozen=True)
class Place:
    """Position of a block inside a block of a shared layout.

    Parameters
    ----------
    shape : tuple of int
        Shape of the shared layout's block, with those dimensions merged that are one in the block.
    cuts : tuple of slice
        Slices of the block in these dimensions.
    order : tuple of int
        Dimension of the shared layout's block for each dimension of the block.
    """

    shape: tuple[int, ...]
    cuts: tuple[slice, ...]
    order: tuple[int, ...]

    @property
    def written(self) -> tuple[int, ...]:
        """Dimensions of the block in the order of the shared layout's block."""
        return tuple(sorted(range(len(self.order)), key=self.order.__getitem__))

    @property
    def width(self) -> int:
        """Elements of each contiguous run of the block in the shared layout's block."""
        return contiguous(self.shape, [cut.stop - cut.start for cut in self.cuts])


def shared_blocks(shared_layout: Layout, layout: Layout) -> list[list[int]]:
    """Return the shared layout's block that contains each block of a layout, by axis."""
    axes = zip(shared_layout.axes, layout.axes, strict=True)
    return [
        [a.block_of(tuple(k for k, _ in _cuts(a, b, i))) for i in range(b.blocks)] for a, b in axes
    ]


@lru_cache(maxsize=4096)
def place_of(shared_layout: Layout, layout: Layout, block: Block) -> Place:
    """Return the position of a block in its block of the shared layout, if it `fits`."""
    shape: list[int] = []
    cuts: list[slice] = []
    order: list[int] = []
    for a, b, i in zip(shared_layout.axes, layout.axes, block, strict=True):
        first = len(shape)
        if not _alike(a, b):
            (interval,) = b.intervals(i)
            shape.append(a.size)
            cuts.append(slice(*interval))
            order.append(first)
            continue
        found = list(_cuts(a, b, i))
        shape += [group.chunks[k] for group, (k, _) in zip(a.groups, found, strict=True)]
        cuts += [cut for _, cut in found]
        dims = {group.digits: first + d for d, group in enumerate(a.groups)}
        order += [dims[group.digits] for group in b.groups]
    return Place(tuple(shape), tuple(cuts), tuple(order))


def _cuts(shared_layout: AxisLayout, axis: AxisLayout, block: int) -> Iterator[tuple[int, slice]]:
    """Yield, for each group of the shared layout, the chunk with a block and the slice in it."""
    if not _alike(shared_layout, axis):
        yield from ((0, slice(0, group.size)) for group in shared_layout.groups)
        return
    intervals = dict(zip((g.digits for g in axis.groups), axis.intervals(block), strict=True))
    for group in shared_layout.groups:
        low, high = intervals[group.digits]
        chunk = bisect_right(group.bounds, low) - 1
        yield chunk, slice(low - group.bounds[chunk], high - group.bounds[chunk])
