"""Blocks of every round, given an assignment of steps to rounds.

The digits of a round must be whole inside a block, so other digits have to be cut. Groups that
were cut before stay cut, which needs no exchange. An axis keeps its number of parts on another of
its digits. If blocks are still too large, the group with the cheapest gather is cut as well.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from dask_bigfft.decomposition.layout import (
    AxisLayout,
    Chunks,
    Digit,
    Group,
    Layout,
    even_chunks,
    stored_order,
)
from dask_bigfft.decomposition.rounds import Round, transformed
from dask_bigfft.decomposition.steps import AxisProgram, Step

#: Rounds in which the steps of each axis happen, in order.
Assignment = Mapping[int, tuple[int, ...]]


#: Number of partial candidates that are followed from one round to the next.
BEAM = 4


#: Size of a block, in units of the wanted size, beyond which another group is cut.
SLACK = 1.25


@dataclass(frozen=True)
class Sizes:
    """Wanted and largest size of blocks, in complex elements."""

    target: int
    cap: int
    #: Number of input blocks, kept where result blocks are about as large.
    blocks: int = 1
    #: Factor for the size of the last round's blocks, so that there are fewer.
    last: int = 1
    #: Whether Bluestein's algorithm is tried, and whether far smaller chunks are joined.
    bluestein: bool = False
    merge: bool = False

    def times(self, factor: int) -> "Sizes":
        """Return the sizes of blocks that are larger by a factor."""
        return replace(self, target=factor * self.target, cap=factor * self.cap)


@dataclass(frozen=True)
class _Cut:
    """A group of an axis while its chunks are being chosen."""

    digits: tuple[Digit, ...]
    size: int
    chunks: Chunks
    fixed: bool
    offset: int = 0

    @cached_property
    def largest(self) -> int:
        return max(self.chunks, default=0)

    def into(self, parts: int) -> "_Cut":
        return replace(self, chunks=even_chunks(self.size, parts))


def _cut(digits: tuple[Digit, ...], chunks: Chunks | None = None, fixed: bool = False) -> _Cut:
    size = math.prod(digit.size for digit in digits)
    return _Cut(digits, size, (size,) if chunks is None else chunks, fixed)


def _in_digits(
    program: AxisProgram, done: int, step: Step | None, variant: str, in_place: bool
) -> list[_Cut]:
    """Return the groups of an axis in digits: the step's own digit last, or `in_place`.

    A CPU wants the values of a digit contiguous. A GPU transforms them at any stride, and a digit
    that keeps its place leaves wide rows for the next round.
    """
    if in_place:
        fixed = None if step is None else step.source
        return [_cut((digit,), fixed=digit == fixed) for digit in program.in_place(done)]
    digits = [one.source for one in program.steps[: len(program.factors)]]
    for one in program.steps[:done]:
        digits[digits.index(one.source)] = one.target
    others = [digit for digit in digits if step is None or digit != step.source]
    order = "transposed" if len(program.target) > 1 else "natural"
    groups = [_cut((digit,)) for digit in stored_order(others, variant, order)]
    return groups if step is None else [*groups, _cut((step.source,), fixed=True)]


def _flat(digits: tuple[Digit, ...], before: AxisLayout) -> _Cut:
    """Return an axis in one group, cut as before if it was, cropped to its digits.

    Padding is not stored before the round that needs it.
    """
    cut = _cut(digits)
    chunks = before.groups[0].chunks
    if before.digits == digits and len(before.groups) == 1:
        if 0 < sum(chunks) <= cut.size:
            return replace(cut, chunks=chunks, size=sum(chunks))
        width = max(chunks, default=1) or 1
        return cut.into(-(-cut.size // width))
    return cut.into(before.blocks)


def _windowed(digits: tuple[Digit, ...], before: AxisLayout, window: tuple[int, int]) -> _Cut:
    """Return a window of an axis in one group, cut as before if it was."""
    start, count = window
    group = before.groups[0]
    kept = before.groups == (Group(digits, group.chunks, start),) and group.bounds[-1] == count
    chunks = group.chunks if kept else even_chunks(count, before.blocks)
    return _Cut(digits, count, chunks, False, start)


def _in_parts(cuts: list[_Cut], parts: int) -> list[_Cut]:
    """Return the groups of an axis cut into a number of parts, as far as possible."""
    cuts = list(cuts)
    missing = -(-parts // math.prod(len(c.chunks) for c in cuts))
    for i, cut in enumerate(cuts):
        if missing > 1 and not cut.fixed and len(cut.chunks) == 1:
            cuts[i] = cut.into(missing)
            missing = -(-missing // len(cuts[i].chunks))
    return cuts


Cuts = list[list[_Cut]]


def _largest(cuts: Cuts) -> int:
    return math.prod(c.largest for axis in cuts for c in axis)


def _layout(cuts: Cuts) -> Layout:
    return Layout(tuple(_axis_layout(tuple(axis)) for axis in cuts))


@lru_cache(maxsize=1024)
def _axis_layout(cuts: tuple[_Cut, ...]) -> AxisLayout:
    """Return one shared object for all candidates that cut an axis alike."""
    return AxisLayout(tuple(Group(cut.digits, cut.chunks, cut.offset) for cut in cuts))


def _choices(cuts: Cuts, variant: str) -> Iterator[list[tuple[int, int]]]:
    """Yield orders in which groups may be cut further, each with another group first."""
    free = [
        (a, g)
        for a, axis in enumerate(cuts)
        for g, cut in enumerate(axis)
        if not cut.fixed and cut.largest > 1
    ]
    if variant != "auto" or not free:
        yield free
        return
    for i in range(len(free)):
        yield [free[i], *free[:i], *free[i + 1 :]]


def _cut_down(cuts: Cuts, order: list[tuple[int, int]], sizes: Sizes) -> Cuts:
    """Cut groups, in order, until blocks have about `target` elements (or nothing is left).

    Widths are rounded up: a few more elements in a block cost less than many small blocks.
    """
    cuts = [list(axis) for axis in cuts]
    target = sizes.target
    enough: float = target
    for a, g in order:
        largest = _largest(cuts)
        if largest <= enough:
            break
        enough = SLACK * target
        cut = cuts[a][g]
        width = -(-cut.largest * target // largest)
        others = math.prod(len(c.chunks) for axis in cuts for c in axis) // len(cut.chunks)
        alike = -(-cut.size // max(1, -(-sizes.blocks // others)))
        if width < alike <= width * SLACK:
            width = alike
        if width < cut.largest:
            cuts[a][g] = cut.into(-(-cut.size // width))
    return cuts


def _merge(cuts: Cuts, target: int) -> Cuts:
    """Join chunks that are far smaller than blocks should be, along the most cut group."""
    cuts = [list(axis) for axis in cuts]
    while (small := _largest(cuts)) and small * 2 <= target:
        places = [(len(c.chunks), a, g) for a, axis in enumerate(cuts) for g, c in enumerate(axis)]
        parts, a, g = max(places)
        if parts == 1:
            break
        cuts[a][g] = cuts[a][g].into(max(1, -(-parts * small // target)))
    return cuts


def _as_wanted(
    cuts: Cuts,
    wanted: tuple[Chunks, ...],
    programs: Mapping[int, AxisProgram],
    steps: Mapping[int, Step],
    sizes: Sizes,
) -> list[Layout]:
    """Return the last round cut into the wanted blocks of the result; empty if impossible."""
    found: Cuts = []
    for axis, (groups, chunks) in enumerate(zip(cuts, wanted, strict=True)):
        step = steps.get(axis)
        program = programs.get(axis)
        after = [
            step.target if step is not None and cut.digits == (step.source,) else digit
            for cut in groups
            for digit in cut.digits
        ]
        if program is not None and tuple(after) != program.target:
            return []
        if program is not None and len(program.steps) < len(program.target):
            return []  # digits that no round made: plans that make them are as cheap
        first, *inner = groups
        width = math.prod(digit.size for digit in after[len(first.digits) :])
        size = math.prod(digit.size for digit in after[: len(first.digits)])
        if first.fixed and chunks == (size * width,):
            found.append(groups)
        elif first.fixed or any(c % max(width, 1) for c in chunks) or sum(chunks) != size * width:
            return []
        else:
            outer = replace(first, chunks=tuple(c // max(width, 1) for c in chunks))
            found.append([outer, *(replace(cut, chunks=(cut.size,)) for cut in inner)])
    layout = _layout(found)
    return [layout] if layout.largest <= sizes.cap else []


def _ways_to_cut(cuts: Cuts, sizes: Sizes, variant: str) -> list[Layout]:
    """Return different ways to cut blocks down to size."""
    if _largest(cuts) <= sizes.target:
        return [_layout(cuts)]
    options = [_cut_down(cuts, order, sizes) for order in _choices(cuts, variant)]
    fitting = [_layout(option) for option in options if _largest(option) <= sizes.cap]
    return list(dict.fromkeys(fitting))


@dataclass(frozen=True)
class BlockCutter:
    """Blocks of the rounds of candidates, and of their results.

    Parameters
    ----------
    variant : str
        Data movement within an axis.
    windows : mapping
        Start and count of the values that are returned, by axis.
    wanted : tuple of chunks or None
        Chunks of the result. If the last round can make them, an exchange is saved.
    on_gpu : bool
        Whether rounds are done on devices.
    """

    variant: str
    windows: Mapping[int, tuple[int, int]]
    wanted: tuple[Chunks, ...] | None
    on_gpu: bool

    def rounds(
        self,
        programs: Mapping[int, AxisProgram],
        assignment: Assignment,
        source: Layout,
        sizes: Sizes,
        cost: Callable[[Layout, Layout], float],
        bound: float,
    ) -> list[tuple[Round, ...]]:
        """Return rounds with their blocks, for the few cheapest ways to cut them.

        Parameters
        ----------
        programs : mapping
            Program of each transformed axis.
        assignment : mapping
            Round of each step of each axis.
        source : Layout
            Input blocks.
        sizes : Sizes
            Target and largest size of a block.
        cost : callable
            Price of an exchange between two layouts.
        bound : float
            Price beyond which a candidate is not followed any further.

        Returns
        -------
        list of tuples of Round
            Empty if a block gets too large.
        """
        done = dict.fromkeys(programs, 0)
        count = 1 + max(r for rounds in assignment.values() for r in rounds)
        beam: list[tuple[float, tuple[Round, ...]]] = [(0.0, ())]
        for number in range(count):
            last = number == count - 1
            by_axis = {
                axis: programs[axis].steps[done[axis]]
                for axis in sorted(programs)
                if number in assignment[axis][done[axis] : done[axis] + 1]
            }
            steps = tuple(by_axis.values())
            room = sizes
            if any(step.kind == "r2c" for step in steps):  # real elements are half as wide
                room = sizes.times(2)
            fewer = last and sizes.last > 1
            if fewer:
                room = replace(room.times(sizes.last), blocks=-(-sizes.blocks // sizes.last))
            found = []
            for price, rounds in beam:
                before = rounds[-1].target if rounds else source
                cuts = [
                    self._axis_cuts(
                        programs.get(a), done.get(a, 0), by_axis.get(a), axis, source.axes[a]
                    )
                    for a, axis in enumerate(before.axes)
                ]
                if sizes.merge or fewer:
                    cuts = _merge(cuts, room.target)
                ways = _ways_to_cut(cuts, room, self.variant)
                if last and self.wanted is not None:
                    ways = [*_as_wanted(cuts, self.wanted, programs, by_axis, room), *ways]
                for layout in dict.fromkeys(ways):
                    seconds = price + cost(before, layout)
                    if seconds <= bound:
                        done_round = Round(steps, layout, transformed(layout, steps))
                        found.append((seconds, (*rounds, done_round)))
            beam = sorted(found, key=lambda partial: partial[0])[:BEAM]
            for axis in by_axis:
                done[axis] += 1
        return [rounds for _, rounds in beam]

    def result(
        self, programs: Mapping[int, AxisProgram], last: Layout, flat: Layout | None
    ) -> Layout:
        """Return the blocks of the result: as wanted, else what the last round gives.

        An axis that the last round does not leave in the requested order keeps its number of parts.
        If only a window of an axis is returned, the axis keeps the size of its parts.
        """
        axes = []
        for a, axis in enumerate(last.axes):
            program = programs.get(a)
            digits = axis.digits if program is None else program.target
            size = math.prod(d.size for d in digits)
            start, count = self.windows.get(a, (0, size))
            left = None if flat is None else flat.axes[a].groups[0]
            if self.wanted is not None:
                chunks = self.wanted[a]
            elif left and (left.digits, left.offset, left.bounds[-1]) == (digits, start, count):
                chunks = left.chunks
            else:  # as wide as the chunks of the whole axis
                chunks = even_chunks(count, -(-count // max(1, -(-size // axis.blocks))))
            axes.append(AxisLayout((Group(digits, chunks, start),)))
        return Layout(tuple(axes))

    def _axis_cuts(
        self,
        program: AxisProgram | None,
        done: int,
        step: Step | None,
        before: AxisLayout,
        source: AxisLayout,
    ) -> list[_Cut]:
        """Return the groups of an axis in a round, with the chunks that they inherit.

        Values outside a window are dropped as soon as the axis is done. A named variant cuts the
        outermost digits into as many parts as the input has, so that all rounds are cut alike.
        """
        as_before = [_cut(group.digits, group.chunks) for group in before.groups]
        if program is None:
            return as_before
        # Half a spectrum has to be completed before it is split.
        halved = program.mirror is not None and any(d.is_partial for d in program.source)
        whole = program.source == (program.steps[0].source,) or not halved
        if step is None and done == 0 and whole:
            return [_flat(program.source, before)]
        if step is None and done == len(program.steps):
            if program.axis in self.windows:
                return [_windowed(program.target, before, self.windows[program.axis])]
            stored = before.digits
            halved = program.mirror is not None and any(d.is_partial for d in stored)
            kept = halved or stored == program.target
            return as_before if kept else [_flat(program.target, before)]
        in_place = self.on_gpu and self.variant == "auto" and not program.bluestein
        cuts = _in_digits(program, done, step, self.variant, in_place)
        if self.variant != "auto":
            return _in_parts(cuts, source.blocks)
        had = {group.digits: group.chunks for group in before.groups}
        inherited = [c if c.fixed else replace(c, chunks=had.get(c.digits, c.chunks)) for c in cuts]
        return _in_parts(inherited, before.blocks)
