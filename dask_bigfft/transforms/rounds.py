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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, TypeVar

import numpy as np

from dask_bigfft.arrays import Block, Ints
from dask_bigfft.transforms.bands import AxisBand
from dask_bigfft.transforms.layout import (
    AxisLayout,
    Digit,
    Group,
    HashedOnce,
    Layout,
    common_digits,
    contiguous,
    radix_points,
)
from dask_bigfft.transforms.steps import OPTIONAL, AxisProgram, Divisor, Step


@dataclass(frozen=True)
class StoredWindow:
    """Cyclic window of a dimension of a block, which alone is stored before or after a round.

    Parameters
    ----------
    dim : int
        Dimension of the block.
    first, count : int
        First value that is stored, and number of values.
    size : int
        Number of values of the dimension in the round.
    fold : (int, int) or None
        Two places from the first value on, of which the first one gets the sum.
    """

    dim: int
    first: int
    count: int
    size: int
    fold: tuple[int, int] | None = field(default=None, metadata=OPTIONAL)

    @property
    def share(self) -> float:
        """Share of the values that are stored."""
        return self.count / self.size

    @property
    def cuts(self) -> list[tuple[slice, slice, bool]]:
        """Slices of the dimension, their places in the window, and whether they are added there.

        >>> [source for source, *_ in StoredWindow(0, first=3, count=4, size=5).cuts]
        [slice(3, 5, None), slice(0, 2, None)]
        """
        before_end = min(self.count, self.size - self.first)
        after_end = self.count - before_end
        cuts = [(slice(self.first, self.first + before_end), slice(0, before_end), False)]
        if after_end:
            cuts.append((slice(0, after_end), slice(before_end, self.count), False))
        if self.fold is not None:
            place, other_place = self.fold
            other = (self.first + other_place) % self.size
            cuts.append((slice(other, other + 1), slice(place, place + 1), True))
        return cuts

    @property
    def read(self) -> "StoredWindow":
        """The window of all values that are stored or added to others."""
        count = self.count
        if self.fold is not None:
            count = max(count, self.fold[1] + 1)
        return StoredWindow(
            self.dim,
            self.first,
            count,
            self.size,
        )


@dataclass(frozen=True)
class Round(HashedOnce):
    """Local FFTs over one digit each of some axes.

    Parameters
    ----------
    steps : tuple of Step
        At most one per axis.
    source, target : Layout
        Blocks before and after; the same but for the digits that the steps replace. Of such a
        digit, the target may store a window: from an offset on, and fewer values.
    windows_in : tuple of StoredWindow
        Windows of transformed dimensions outside of which the source has zeros.
    multiplies : bool
        Whether blocks are multiplied by the transfer function of an operator, after the FFTs of
        all steps. Steps with the digit `Step.between` are transformed back afterwards.
    bands : tuple of AxisBand
        Frequencies outside of which the product is 0.
    folded : tuple of int
        Axes whose windows end at a frequency of which both signs are one in the result.
    """

    steps: tuple[Step, ...]
    source: Layout
    target: Layout
    windows_in: tuple[StoredWindow, ...] = field(default=(), metadata=OPTIONAL)
    multiplies: bool = field(default=False, metadata=OPTIONAL)
    bands: tuple[AxisBand, ...] = field(default=(), metadata=OPTIONAL)
    folded: tuple[int, ...] = field(default=(), metadata=OPTIONAL)

    @cached_property
    def windows(self) -> tuple[StoredWindow, ...]:
        """Windows of the transformed dimensions of a block that are stored."""
        groups = [group for axis in self.target.axes for group in axis.groups]
        windows = []
        for step in self.steps:
            dim = self.dim(step)
            group = groups[dim]
            count = group.bounds[-1]
            if group.offset == 0 and count == group.size:
                continue  # all values are stored
            fold = None
            if step.axis in self.folded:
                # Of half a spectrum the last frequency stands for its negative, too.
                fold = (count - 1, count - 1) if step.target.is_partial else (0, count)
            window = StoredWindow(
                dim,
                first=group.offset,
                count=count,
                size=group.size,
                fold=fold,
            )
            windows.append(window)
        return tuple(windows)

    @property
    def crops(self) -> bool:
        """True if a part of the values is stored, and nothing is added to it."""
        if not self.windows:
            return False
        return all(window.count < window.size and window.fold is None for window in self.windows)

    @property
    def leaves_out_lines(self) -> bool:
        """True if some lines are zeros, or are not stored."""
        is_cropped = any(window.count < window.size for window in self.windows)
        return is_cropped or bool(self.windows_in)

    @property
    def takes_real(self) -> bool:
        """True if a step transforms real values into half a spectrum."""
        return any(step.kind == "r2c" for step in self.steps)

    @property
    def makes_real(self) -> bool:
        """True if a step transforms half a spectrum into real values."""
        return any(step.last_kind == "c2r" for step in self.steps)

    @cached_property
    def without_windows(self) -> "Round":
        """The round of all lines, which stores all values."""
        if not self.windows and not self.windows_in:
            return self
        target = transformed(self.source, self.steps)
        return replace(self, target=target, windows_in=())

    @cached_property
    def keeps_energy(self) -> bool:
        """True if the round conserves energy up to a factor.

        Products with transfer functions do not, nor do chirps of Bluestein's algorithm, nor real
        results of complex factors.
        """
        if self.multiplies:
            return False
        for step in self.steps:
            has_chirp = step.chirp_in is not None or step.chirp_out is not None
            if has_chirp or step.convolve is not None:
                return False
        has_real_result = any(step.kind == "c2r" for step in self.steps)
        has_twiddles = any(step.twiddle is not None for step in self.steps)
        return not (has_real_result and has_twiddles)

    @cached_property
    def halves(self) -> tuple["Round", "Round"]:
        """The rounds before and after the product of a round that multiplies."""
        forward_steps: list[Step] = []
        steps_back: list[Step] = []
        for step in self.steps:
            if step.between is None:
                forward_steps.append(step)
                continue
            forward_step, step_back = step.halves
            forward_steps.append(forward_step)
            steps_back.append(step_back)
        spectrum = transformed(self.source, tuple(forward_steps))
        forward = Round(
            tuple(forward_steps),
            self.source,
            spectrum,
            windows_in=self.windows_in,
        )
        return forward, Round(tuple(steps_back), spectrum, self.target)

    @property
    def spectrum(self) -> Layout:
        """Blocks at the product of a round that multiplies."""
        return self.halves[0].target

    def dim(self, step: Step) -> int:
        """Return the dimension of a block that holds the step's digit."""
        own_axis = self.source.axes[step.axis]
        digits = [group.digits for group in own_axis.groups]
        return self.source.first_dims[step.axis] + digits.index((step.source,))


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
        axes[step.axis] = _with_digit(axes[step.axis], step.source, step.target)
    return Layout(tuple(axes))


@lru_cache(maxsize=1024)
def _with_digit(axis: AxisLayout, source: Digit, target: Digit) -> AxisLayout:
    """Return the axis with one digit replaced by another."""
    groups = list(axis.groups)
    for number, group in enumerate(groups):
        if group.digits == (source,):
            groups[number] = Group((target,), (target.size,))
    return AxisLayout(tuple(groups))


def _extents(layout: AxisLayout, points: dict[int, tuple[int, ...]]) -> list[tuple[int, int, int]]:
    """Return stage, stride and extent in a full block of each common digit, in stored order."""
    extents: list[tuple[int, int, int]] = []
    for group in layout.groups:
        length = max(group.chunks, default=0)
        inner = 1  # values of the group per value of the digit
        extents_inside_out = []
        for stage, stride, size in reversed(common_digits(group, points)):
            extent = min(size, -(-length // inner))
            extents_inside_out.append((stage, stride, max(1, extent)))
            inner *= max(1, size)
        extents_inside_out.reverse()
        extents += extents_inside_out
    return extents


@lru_cache(maxsize=1024)
def _paired_extents(source: AxisLayout, target: AxisLayout) -> tuple[tuple[int, int], ...]:
    """Return extents of common digits in full blocks before and after, innermost first."""
    points = radix_points(source, target)
    extents_after = {}
    for stage, stride, extent in _extents(target, points):
        extents_after[stage, stride] = extent
    pairs = []
    for stage, stride, extent in reversed(_extents(source, points)):
        extent_after = extents_after.get((stage, stride), extent)
        pairs.append((extent, extent_after))
    return tuple(pairs)


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
    pairs = list(zip(source.axes, target.axes, strict=True))
    components = [axis_components(before, after) for before, after in pairs]
    local = all(axis.one_to_one for axis in components)
    fan_in = _shift_fan_in(pairs)
    width = 1
    run_has_ended = False
    elements = 1  # of a target block
    largest = 1
    for before, after in reversed(pairs):
        for extent_before, extent_after in _paired_extents(before, after):
            shard = min(extent_before, extent_after)
            fan_in *= -(-extent_after // shard)
            elements *= extent_after
            largest *= shard
            if not run_has_ended:
                width *= shard
                run_has_ended = shard < extent_before
    return ExchangeShape(
        fan_in=1 if local else min(fan_in, source.blocks),
        runs=max(1, elements // width) if width else 0,
        width=width,
        groups=math.prod(axis.count for axis in components),
        blocks_in=source.blocks,
        blocks_out=target.blocks,
        local=local,
        largest=largest,
    )


def _shift_fan_in(pairs: Sequence[tuple[AxisLayout, AxisLayout]]) -> int:
    """Return the source blocks of a block due to cyclic shifts: two along each shifted axis."""
    fan_in = 1
    for before, after in pairs:
        is_shift = before.digits == after.digits
        if is_shift and before.groups[0].offset != after.groups[0].offset:
            fan_in *= min(2, before.blocks)
    return fan_in


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
        for group_of in (self.of_source, self.of_target):
            block_counts = np.bincount(group_of[group_of >= 0], minlength=1)
            if block_counts.max() > 1:
                return False
        return True


def _members(group_of: Ints, count: int) -> tuple[tuple[int, ...], ...]:
    """Return the blocks of each group."""
    members: list[list[int]] = [[] for _ in range(count)]
    for block, group in enumerate(group_of.tolist()):
        if group >= 0:
            members[group].append(block)
    return tuple(map(tuple, members))


def _interval_components(source: Group, target: Group) -> AxisComponents:
    """Return the groups of two cuts of the same flattened digits, split at common bounds."""
    if source.offset != target.offset:
        return _rolled_components(source, target)
    size = source.size
    source_bounds = np.minimum(source.bounds, size)
    target_bounds = np.minimum(target.bounds, size)
    # Behind the stored values there is padding, which any cut of the target splits.
    padding_bounds = target_bounds[target_bounds >= source_bounds[-1]]
    source_cuts = np.union1d(source_bounds, padding_bounds)
    common_cuts = np.intersect1d(source_cuts, target_bounds)
    # Group i is between ends i and i + 1.
    ends = np.union1d(common_cuts, [0, size])
    count = max(1, len(ends) - 1)

    def groups_of(bounds: Ints) -> Ints:
        """Return the group of each chunk between some bounds."""
        groups = np.searchsorted(ends, bounds[:-1], side="right") - 1
        return np.minimum(groups, count - 1)

    has_values = np.diff(source_bounds) > 0
    of_source = np.where(has_values, groups_of(source_bounds), -1)
    of_target = groups_of(target_bounds)
    return AxisComponents(count, of_source, of_target)


def _rolled_components(source: Group, target: Group) -> AxisComponents:
    """Return the groups of digits cyclically shifted against one another: cuts of a circle."""
    size = source.size

    def first_values(group: Group) -> Ints:
        """Return the value at the first place of each chunk."""
        places = np.array(group.bounds[:-1], np.int64)
        return (places + group.offset) % size

    source_cuts = first_values(source)
    target_cuts = first_values(target)
    common_cuts = np.intersect1d(source_cuts, target_cuts)
    count = max(1, len(common_cuts))

    def groups_of(cuts: Ints) -> Ints:
        """Return the group of each chunk that begins at a cut."""
        groups = np.searchsorted(common_cuts, cuts, side="right") - 1
        return groups % count  # values before the first common cut belong to the last group

    has_values = np.array(source.chunks) > 0
    of_source = np.where(has_values, groups_of(source_cuts), -1)
    of_target = groups_of(target_cuts)
    return AxisComponents(count, of_source, of_target)


def unflattened(layout: AxisLayout) -> AxisLayout:
    """Return the layout with groups of several digits split where the chunks allow it.

    >>> flat = Group((Digit(1, 1, 3, 3), Digit(1, 3, 4, 4)), (4, 8))
    >>> [group.chunks for group in unflattened(AxisLayout((flat,))).groups]
    [(1, 2), (4,)]
    """
    groups: list[Group] = []
    for group in layout.groups:
        groups += _split_group(group)
    return AxisLayout(tuple(groups))


def _split_group(group: Group) -> list[Group]:
    """Return a group for each digit if the chunks cut only the outermost one, else the group."""
    outer, *inner_digits = group.digits
    is_whole = group.offset == 0 and group.bounds[-1] == group.size
    if not inner_digits or not is_whole:
        return [group]
    width = math.prod(digit.size for digit in inner_digits)
    if any(chunk % width for chunk in group.chunks):
        return [group]
    outer_chunks = tuple(chunk // width for chunk in group.chunks)
    groups = [Group((outer,), outer_chunks)]
    for digit in inner_digits:
        groups.append(Group((digit,), (digit.size,)))
    return groups


@lru_cache(maxsize=256)
def axis_components(source: AxisLayout, target: AxisLayout) -> AxisComponents:
    """Return the connected groups of an exchange along one axis.

    Groups of digits with the same chunks in both layouts separate the blocks. All other blocks are
    assumed to be connected, so the result may be coarser than necessary.
    """
    if any(group.arrangement for group in (*source.groups, *target.groups)):
        of_source = np.zeros(source.blocks, np.int64)
        of_target = np.zeros(target.blocks, np.int64)
        return AxisComponents(1, of_source, of_target)
    source = unflattened(source)
    target = unflattened(target)
    has_one_dim = len(source.groups) == len(target.groups) == 1
    if has_one_dim and source.digits == target.digits:
        return _interval_components(source.groups[0], target.groups[0])
    separating = []
    for group in source.groups:
        if len(group.chunks) > 1 and group in target.groups:
            separating.append(group)
    count = math.prod(len(group.chunks) for group in separating)
    of_source = _numbers_in(separating, source)
    of_target = _numbers_in(separating, target)
    return AxisComponents(count, of_source, of_target)


def _numbers_in(separating: Sequence[Group], layout: AxisLayout) -> Ints:
    """Return the number of each block among the chunks of some groups of digits, row-major."""
    chunks = np.indices(layout.grid).reshape(len(layout.grid), -1)
    numbers = np.zeros(layout.blocks, np.int64)
    for group in separating:
        place = layout.groups.index(group)
        numbers = numbers * len(group.chunks) + chunks[place]
    return numbers


Scale = Literal["none", "ortho", "full"]


def _bearer(program: AxisProgram) -> Step:
    """Return the best step for the division: the last chirp, the first twiddle or the last FFT.

    In operators it is behind the product, which may not be linear.
    """
    last = program.steps[-1]
    if last.chirp_out is not None:
        return last
    for step in program.steps:
        if step.twiddle is not None and step.target.stage == last.target.stage:
            return step
    return last


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
    new_steps: dict[Step, Step] = {}
    for step, length in _divided_lengths(programs, rounds, scale).items():
        divisor = Divisor(1, length) if scale == "ortho" else Divisor(length)
        new_steps[step] = replace(step, divisor=divisor)
    return _with_steps(programs, new_steps), _with_steps(rounds, new_steps)


_Holder = TypeVar("_Holder", AxisProgram, Round)


def _with_steps(holders: Sequence[_Holder], new_steps: Mapping[Step, Step]) -> tuple[_Holder, ...]:
    """Return programs or rounds with some steps replaced."""
    replaced = []
    for holder in holders:
        steps = tuple(new_steps.get(step, step) for step in holder.steps)
        replaced.append(replace(holder, steps=steps))
    return tuple(replaced)


def numbered(
    programs: tuple[AxisProgram, ...], rounds: tuple[Round, ...]
) -> tuple[tuple[AxisProgram, ...], tuple[Round, ...]]:
    """Return programs and rounds whose convolutions have the numbers of their operands.

    The operands are the filters of the axes that use Bluestein's algorithm, in the order of the
    programs.
    """
    bluestein_programs = [program for program in programs if program.bluestein]
    if len(bluestein_programs) < 2:
        return programs, rounds
    new_steps: dict[Step, Step] = {}
    for number, program in enumerate(bluestein_programs):
        for step in program.steps:
            if step.convolve is not None:
                new_steps[step] = replace(step, operand=number)
    return _with_steps(programs, new_steps), _with_steps(rounds, new_steps)


def _divided_lengths(
    programs: tuple[AxisProgram, ...], rounds: tuple[Round, ...], scale: Scale
) -> dict[Step, int]:
    """Return the steps that bear a divisor, and the length by which each one divides.

    Every axis has its own divisor where that is exact (powers of two), or where one library call
    divides for all axes. Otherwise one step divides by the product of all lengths.
    """
    lengths = [program.length for program in programs]
    is_exact = scale == "full" and all(length & (length - 1) == 0 for length in lengths)
    is_one_call = len(rounds) == 1 and all(step.kind == "c2c" for step in rounds[0].steps)
    if is_exact or is_one_call:
        return {_bearer(program): program.length for program in programs}

    def cost(program: AxisProgram) -> tuple[bool, int]:
        """Return whether the division is an extra pass, and the number of rounds after it."""
        step = _bearer(program)
        is_extra_pass = step.chirp_out is None and step.twiddle is None
        numbers = [number for number, round_ in enumerate(rounds) if step in round_.steps]
        return is_extra_pass, len(rounds) - 1 - numbers[-1]

    cheapest = min(programs, key=cost)
    return {_bearer(cheapest): math.prod(lengths)}


def merged(digits: tuple[Digit, ...]) -> tuple[Digit, ...]:
    """Return the digits, with neighbours joined that form one digit of the index.

    >>> merged((Digit(1, 4, 3, 3), Digit(1, 1, 4, 4)))
    (Digit(stage=1, stride=1, size=12, radix=12),)
    """
    result: list[Digit] = []
    for digit in digits:
        if result and _is_inner(digit, result[-1]):
            outer = result.pop()
            size = outer.size * digit.size
            radix = outer.radix * digit.radix
            digit = Digit(
                digit.stage,
                digit.stride,
                size,
                radix,
            )
        result.append(digit)
    return tuple(result)


def _is_inner(digit: Digit, outer: Digit) -> bool:
    """Return True if a digit and its outer neighbour form one digit of the index."""
    follows = outer.stage == digit.stage and outer.stride == digit.stride * digit.radix
    return follows and not digit.is_partial


def _is_plain(group: Group) -> bool:
    """Return True if a group stores each value once, in order, and without empty chunks."""
    if group.offset or group.arrangement:
        return False
    return group.bounds[-1] == group.size and min(group.chunks, default=0) > 0


def _has_same_dims(a: AxisLayout, b: AxisLayout) -> bool:
    """Return True if two layouts of an axis have the same dimensions, in any order."""
    dims = {group.digits for group in a.groups}
    other_dims = {group.digits for group in b.groups}
    return dims == other_dims and len(dims) == len(a.groups) == len(b.groups)


@lru_cache(maxsize=1024)
def _fits(shared_layout: AxisLayout, axis: AxisLayout) -> bool:
    """Return True if every block of an axis layout is a view of one block of the shared layout."""
    if not all(_is_plain(group) for group in (*shared_layout.groups, *axis.groups)):
        return False
    if not _has_same_dims(shared_layout, axis):
        is_flat = len(axis.groups) == 1 and shared_layout.blocks == 1
        return is_flat and merged(shared_layout.digits) == merged(axis.digits)
    bounds = {group.digits: set(group.bounds) for group in axis.groups}
    return all(bounds[group.digits].issuperset(group.bounds) for group in shared_layout.groups)


def fits(shared_layout: Layout, layout: Layout) -> bool:
    """Return True if every block of a layout is a view of one block of the shared layout."""
    return all(_fits(a, b) for a, b in zip(shared_layout.axes, layout.axes, strict=True))


def shared_layout_of(before: Layout, after: Layout, layout: Layout | None = None) -> Layout | None:
    """Return the shared layout of two layouts, with one block for each connected group, or None.

    Only `layout` counts if the first blocks share it already. A new one has its digits in the order
    of the first layout, so that whole rows are written.
    """
    if layout is not None:
        shared_axes: Sequence[AxisLayout | None] = layout.axes
    else:
        shared_axes = list(map(_shared_axis, before.axes, after.axes))
    axes = []
    for axis, a, b in zip(
        shared_axes,
        before.axes,
        after.axes,
        strict=True,
    ):
        if axis is None or not _fits(axis, a) or not _fits(axis, b):
            return None
        if axis_components(a, b).count != axis.blocks:
            return None
        axes.append(axis)
    return Layout(tuple(axes))


def _shared_axis(a: AxisLayout, b: AxisLayout) -> AxisLayout | None:
    """Return the candidate for the shared layout of an axis, in the dimensions of the first."""
    groups = []
    if _has_same_dims(a, b):
        bounds_after = {group.digits: group.bounds for group in b.groups}
        for group in a.groups:
            common_bounds = sorted({*group.bounds} & {*bounds_after[group.digits]})
            chunks = tuple(high - low for low, high in itertools.pairwise(common_bounds))
            groups.append(Group(group.digits, chunks))
        return AxisLayout(tuple(groups))
    if len(b.groups) == 1:  # flat: the digits in the order that they have there
        for group in sorted(a.groups, key=lambda group: -group.digits[0].stride):
            groups.append(Group(group.digits, (group.size,)))
        return AxisLayout(tuple(groups))
    return None


@dataclass(frozen=True)
class Place:
    """Position of a block inside a block of a shared layout.

    It is the case of a table of pieces (`tiles.pieces`) in which a block is a single piece: a box
    of the dimensions of the shared block. Then no table is needed, and the block is a view::

        shared_block.reshape(shape)[cuts].transpose(order)

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
        extents = [cut.stop - cut.start for cut in self.cuts]
        return contiguous(self.shape, extents)


def shared_blocks(shared_layout: Layout, layout: Layout) -> list[list[int]]:
    """Return the shared layout's block that contains each block of a layout, by axis."""
    numbers_of_axes = []
    for shared_axis, axis in zip(shared_layout.axes, layout.axes, strict=True):
        numbers = []
        for block in range(axis.blocks):
            chunks = tuple(chunk for chunk, _ in _cuts(shared_axis, axis, block))
            numbers.append(shared_axis.block_of(chunks))
        numbers_of_axes.append(numbers)
    return numbers_of_axes


@lru_cache(maxsize=4096)
def place_of(shared_layout: Layout, layout: Layout, block: Block) -> Place:
    """Return the position of a block in its block of the shared layout, if it `fits`."""
    shape: list[int] = []
    cuts: list[slice] = []
    order: list[int] = []
    for shared_axis, axis, number in zip(
        shared_layout.axes,
        layout.axes,
        block,
        strict=True,
    ):
        first_dim = len(shape)
        if not _has_same_dims(shared_axis, axis):
            ((low, high),) = axis.intervals(number)
            shape.append(shared_axis.size)
            cuts.append(slice(low, high))
            order.append(first_dim)
            continue
        dim_of = {}
        pairs = zip(shared_axis.groups, _cuts(shared_axis, axis, number), strict=True)
        for dim, (group, (chunk, cut)) in enumerate(pairs, first_dim):
            shape.append(group.chunks[chunk])
            cuts.append(cut)
            dim_of[group.digits] = dim
        order += [dim_of[group.digits] for group in axis.groups]
    return Place(tuple(shape), tuple(cuts), tuple(order))


def _cuts(shared_layout: AxisLayout, axis: AxisLayout, block: int) -> Iterator[tuple[int, slice]]:
    """Yield, for each group of the shared layout, the chunk with a block and the slice in it."""
    if not _has_same_dims(shared_layout, axis):
        for group in shared_layout.groups:
            yield 0, slice(0, group.size)
        return
    digits = [group.digits for group in axis.groups]
    intervals = dict(zip(digits, axis.intervals(block), strict=True))
    for group in shared_layout.groups:
        low, high = intervals[group.digits]
        chunk = bisect_right(group.bounds, low) - 1
        start = group.bounds[chunk]
        yield chunk, slice(low - start, high - start)
