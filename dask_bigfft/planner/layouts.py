"""Blocks of every round, given an assignment of steps to rounds.

The digits of a round must be whole inside a block, so other digits have to be cut. Groups that
were cut before stay cut, which needs no exchange. An axis keeps its number of parts on another of
its digits. If blocks are still too large, the group with the cheapest gather is cut as well.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from dask_bigfft.transforms.bands import AxisBand, Window, window_of_digit, with_negatives
from dask_bigfft.transforms.layout import (
    AxisLayout,
    Chunks,
    Digit,
    Group,
    Layout,
    even_chunks,
    scaled,
    size_of,
    stored_order,
)
from dask_bigfft.transforms.rounds import Round, StoredWindow, transformed
from dask_bigfft.transforms.steps import AxisProgram, Step

#: Rounds in which the steps of each axis happen, in order.
Assignment = Mapping[int, tuple[int, ...]]


#: Number of partial candidates that are followed from one round to the next.
BEAM = 4


#: Size of a block, in units of the wanted size, beyond which another group is cut.
SLACK = 1.25


#: Maximum share of the values of an axis, or of its last digit, that a round stores without the
#: others, unless an exchange is saved. Blocks that change their shape have smaller tiles.
WINDOW_SHARE = 3 / 4


@dataclass(frozen=True)
class Sizes:
    """Sizes of blocks that are tried.

    Parameters
    ----------
    target, cap : int
        Wanted and largest size of blocks, in complex elements.
    blocks : int
        Number of input blocks, kept where result blocks are about as large.
    last : int
        Factor for the size of the last round's blocks, so that there are fewer.
    bluestein : bool
        True if Bluestein's algorithm is tried.
    merge : bool
        True if far smaller chunks are joined.
    """

    target: int
    cap: int
    blocks: int = 1
    last: int = 1
    bluestein: bool = False
    merge: bool = False

    def times(self, factor: int) -> "Sizes":
        """Return the sizes of blocks that are larger by a factor."""
        return replace(self, target=factor * self.target, cap=factor * self.cap)


@dataclass(frozen=True)
class _Cut:
    """A group of an axis while its chunks are being chosen.

    Parameters
    ----------
    digits : tuple of Digit
        Digits of the group.
    size : int
        Number of values that are stored, which may be a window of those of the digits.
    chunks : tuple of int
        Chunks so far.
    fixed : bool
        Whether the group has to stay in one chunk, because the round transforms it.
    offset : int
        First value of a window.
    """

    digits: tuple[Digit, ...]
    size: int
    chunks: Chunks
    fixed: bool
    offset: int = 0

    @cached_property
    def largest(self) -> int:
        """Size of the largest chunk."""
        return max(self.chunks, default=0)

    def into(self, parts: int) -> "_Cut":
        """Return the group in a number of even chunks."""
        return replace(self, chunks=even_chunks(self.size, parts))


def _uncut(digits: tuple[Digit, ...], fixed: bool = False) -> _Cut:
    """Return a group of digits in one chunk, which is cut later unless it is fixed."""
    size = size_of(digits)
    return _Cut(
        digits,
        size,
        chunks=(size,),
        fixed=fixed,
    )


def _cut_as(group: Group) -> _Cut:
    """Return a group with its chunks."""
    return _Cut(
        group.digits,
        group.stored,
        group.chunks,
        fixed=False,
        offset=group.offset,
    )


def _at_their_places(program: AxisProgram, count: int, step: Step | None) -> list[_Cut]:
    """Return the groups of an axis after its first `count` steps, none of which moves a digit.

    The digit of the next step, if the round has one, is fixed. A GPU transforms it at any stride,
    and a digit that keeps its place leaves wide rows for the next round.
    """
    transformed_digit = None if step is None else step.source
    digits = program.in_place(count)
    return [_uncut((digit,), fixed=digit == transformed_digit) for digit in digits]


def _contiguous_for_step(
    program: AxisProgram,
    count: int,
    step: Step | None,
    variant: str,
) -> list[_Cut]:
    """Return the groups of an axis after its first `count` steps, in the order of a variant.

    The digit of the next step, if the round has one, is fixed and last, because a CPU wants the
    values that it transforms contiguous.
    """
    forward_steps = program.steps[: len(program.factors)]
    digits = [earlier.source for earlier in forward_steps]
    for earlier in program.steps[:count]:
        digits[digits.index(earlier.source)] = earlier.target
    if step is not None:
        digits.remove(step.source)
    order = "transposed" if len(program.target) > 1 else "natural"
    groups = [_uncut((digit,)) for digit in stored_order(digits, variant, order)]
    if step is not None:
        groups.append(_uncut((step.source,), fixed=True))
    return groups


def _flat(digits: tuple[Digit, ...], before: AxisLayout) -> _Cut:
    """Return an axis in one group, cut as before if it was, cropped to its digits.

    Padding is not stored before the round that needs it.
    """
    cut = _uncut(digits)
    if before.digits != digits or len(before.groups) != 1:
        return cut.into(before.blocks)
    (group,) = before.groups
    if 0 < group.stored <= cut.size:
        return _cut_as(group)
    width = max([1, *group.chunks])
    return cut.into(-(-cut.size // width))


def _windowed(digits: tuple[Digit, ...], before: AxisLayout, window: Window) -> _Cut:
    """Return a window of an axis in one group, cut as before if it was."""
    start, count = window
    group = before.groups[0]
    has_same_start = before.groups == (Group(digits, group.chunks, start),)
    if has_same_start and group.stored == count:
        return _cut_as(group)
    return _Cut(
        digits,
        count,
        chunks=even_chunks(count, before.blocks),
        fixed=False,
        offset=start,
    )


def _with_negatives(cut: _Cut, parts: int) -> _Cut:
    """Return an axis in one group that stores -k for every k, modulo its length.

    If it has to store more for that, it is cut into `parts` chunks.
    """
    whole = _uncut(cut.digits, cut.fixed).into(parts)
    window = with_negatives((cut.offset, cut.size), whole.size)
    start, count = window
    if count == whole.size:
        return cut if cut.size == count else whole
    if window == (cut.offset, cut.size):
        return cut
    return _Cut(
        cut.digits,
        count,
        chunks=even_chunks(count, parts),
        fixed=cut.fixed,
        offset=start,
    )


def _in_parts(cuts: list[_Cut], parts: int) -> list[_Cut]:
    """Return the groups of an axis cut into a number of parts, as far as possible."""
    cuts = list(cuts)
    missing = -(-parts // math.prod(len(cut.chunks) for cut in cuts))
    for i, cut in enumerate(cuts):
        if missing > 1 and not cut.fixed and len(cut.chunks) == 1:
            cuts[i] = cut.into(missing)
            missing = -(-missing // len(cuts[i].chunks))
    return cuts


def _cut_as_before(cuts: list[_Cut], before: AxisLayout) -> list[_Cut]:
    """Return the groups of an axis, with the chunks that groups of the same digits had before."""
    chunks_before = {group.digits: group.chunks for group in before.groups}
    inherited = []
    for cut in cuts:
        if not cut.fixed:
            cut = replace(cut, chunks=chunks_before.get(cut.digits, cut.chunks))
        inherited.append(cut)
    return inherited


@dataclass(frozen=True)
class _RoundSteps:
    """Steps of all axes in a round.

    Parameters
    ----------
    steps : mapping of int to Step
        Step of each axis that has one in the round.
    counts : mapping of int to int
        Number of steps of each transformed axis in earlier rounds.
    is_last : bool
        Whether the round is the last one.
    """

    steps: Mapping[int, Step]
    counts: Mapping[int, int]
    is_last: bool


def _steps_of_rounds(
    programs: Mapping[int, AxisProgram],
    assignment: Assignment,
) -> Iterator[_RoundSteps]:
    """Yield the steps of each round, given the round of each step of each axis."""
    last = max(number for numbers in assignment.values() for number in numbers)
    counts = dict.fromkeys(programs, 0)
    for number in range(last + 1):
        steps: dict[int, Step] = {}
        for axis in sorted(programs):
            if number in assignment[axis]:
                steps[axis] = programs[axis].steps[counts[axis]]
        yield _RoundSteps(steps, dict(counts), is_last=number == last)
        for axis in steps:
            counts[axis] += 1


@dataclass(frozen=True)
class _ResultAxis:
    """Values of the result along an axis: a cyclic window of some digits.

    Parameters
    ----------
    digits : tuple of Digit
        The digits.
    start, count : int
        First value of the window, and number of its values.
    """

    digits: tuple[Digit, ...]
    start: int
    count: int

    def is_stored_by(self, axis: AxisLayout) -> bool:
        """Return whether a flat axis has these values in their order."""
        (group,) = axis.groups
        return self == _ResultAxis(group.digits, group.offset, group.stored)

    def in_parts(self, parts: int) -> Chunks:
        """Return chunks that are as wide as those of all values of the digits in some parts."""
        width = -(-size_of(self.digits) // parts)
        return even_chunks(self.count, -(-self.count // max(1, width)))


@dataclass(frozen=True)
class _StoredParts:
    """Parts of axes that are stored between rounds.

    Parameters
    ----------
    windows : mapping
        Windows of axes after their last step.
    has_negatives : bool
        Whether axes store -k for every index k before their first step. Half a spectrum that is
        completed then needs them.
    """

    windows: Mapping[int, Window]
    has_negatives: bool


Cuts = list[list[_Cut]]


def _largest(cuts: Cuts) -> int:
    """Return the elements of the largest block."""
    return math.prod(cut.largest for axis in cuts for cut in axis)


def _layout(cuts: Cuts) -> Layout:
    """Return the layout of all axes."""
    return Layout(tuple(_axis_layout(tuple(axis)) for axis in cuts))


@lru_cache(maxsize=1024)
def _axis_layout(cuts: tuple[_Cut, ...]) -> AxisLayout:
    """Return one shared object for all candidates that cut an axis alike."""
    return AxisLayout(tuple(Group(cut.digits, cut.chunks, cut.offset) for cut in cuts))


def _choices(cuts: Cuts, variant: str) -> Iterator[list[tuple[int, int]]]:
    """Yield orders in which groups may be cut further, each with another group first.

    A group is named by its axis and its number in the axis.
    """
    free: list[tuple[int, int]] = []
    for a, axis in enumerate(cuts):
        free += [(a, g) for g, cut in enumerate(axis) if not cut.fixed and cut.largest > 1]
    if variant != "auto" or not free:
        yield free
        return
    for i in range(len(free)):
        yield [free[i], *free[:i], *free[i + 1 :]]


def _cut_down(cuts: Cuts, order: list[tuple[int, int]], sizes: Sizes) -> Cuts:
    """Cut groups, in order, until blocks have about `target` elements (or no group is left).

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
        # As many blocks as the input has, if these are only a little larger.
        other_parts = math.prod(len(c.chunks) for axis in cuts for c in axis) // len(cut.chunks)
        own_parts = max(1, -(-sizes.blocks // other_parts))
        equal_width = -(-cut.size // own_parts)
        if width < equal_width <= width * SLACK:
            width = equal_width
        if width < cut.largest:
            cuts[a][g] = cut.into(-(-cut.size // width))
    return cuts


def _merge(cuts: Cuts, target: int) -> Cuts:
    """Join chunks that are far smaller than blocks should be, along the most cut group."""
    cuts = [list(axis) for axis in cuts]
    largest = _largest(cuts)
    while largest and largest * 2 <= target:
        groups = [
            (len(cut.chunks), a, g) for a, axis in enumerate(cuts) for g, cut in enumerate(axis)
        ]
        parts, a, g = max(groups)
        if parts == 1:
            break
        cuts[a][g] = cuts[a][g].into(max(1, -(-parts * largest // target)))
        largest = _largest(cuts)
    return cuts


def _as_wanted(
    cuts: Cuts,
    wanted_chunks: tuple[Chunks, ...],
    programs: Mapping[int, AxisProgram],
    steps: Mapping[int, Step],
    windows: Mapping[int, Window],
    sizes: Sizes,
) -> list[Layout]:
    """Return the last round cut into the wanted blocks of the result; empty if impossible."""
    axes: Cuts = []
    for axis, (groups, chunks) in enumerate(zip(cuts, wanted_chunks, strict=True)):
        digits = _digits_after(groups, steps.get(axis))
        program = programs.get(axis)
        if program is not None and digits != program.target:
            return []
        if program is not None and len(program.steps) < len(program.target):
            return []  # digits that no round made: plans that make them are as cheap
        if axis in windows:
            as_wanted = _window_as_wanted(groups, windows[axis], chunks)
        else:
            as_wanted = _axis_as_wanted(groups, digits, chunks)
        if as_wanted is None:
            return []
        axes.append(as_wanted)
    layout = _layout(axes)
    return [layout] if layout.largest <= sizes.cap else []


def _digits_after(groups: list[_Cut], step: Step | None) -> tuple[Digit, ...]:
    """Return the digits of an axis after a round, given those before it."""
    digits: list[Digit] = []
    for cut in groups:
        if step is not None and cut.digits == (step.source,):
            digits.append(step.target)
        else:
            digits += cut.digits
    return tuple(digits)


def _axis_as_wanted(
    groups: list[_Cut],
    digits: tuple[Digit, ...],
    chunks: Chunks,
) -> list[_Cut] | None:
    """Return the groups of an axis in wanted chunks; None if these do not cut the outermost one.

    `digits` are those of all groups after the round, in which `chunks` are counted.
    """
    outer, *inner = groups
    outer_digits = len(outer.digits)
    size = size_of(digits[:outer_digits])
    width = size_of(digits[outer_digits:])
    if outer.fixed:
        return groups if chunks == (size * width,) else None
    is_cut_within = any(chunk % max(width, 1) for chunk in chunks)
    if is_cut_within or sum(chunks) != size * width:
        return None
    outer_chunks = tuple(chunk // max(width, 1) for chunk in chunks)
    outer = replace(outer, chunks=outer_chunks)
    whole_groups = [replace(cut, chunks=(cut.size,)) for cut in inner]
    return [outer, *whole_groups]


def _window_as_wanted(groups: list[_Cut], window: Window, chunks: Chunks) -> list[_Cut] | None:
    """Return the groups of an axis whose window is stored in wanted chunks; None if impossible."""
    (cut,) = groups
    count = window[1]
    if sum(chunks) != count:
        return None
    if cut.fixed:
        return groups if chunks == (count,) else None
    return [replace(cut, chunks=chunks)] if (cut.offset, cut.size) == window else None


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
    windows_in : frozenset of int
        Axes of which the input has a window.
    wanted_chunks : tuple of chunks or None
        Chunks of the result. If the last round can make them, an exchange is saved.
    on_gpu : bool
        Whether rounds are done on devices.
    crops : bool
        Whether rounds store only windows; after rounds on several GPUs the exchange crops.
    like : tuple of chunks or None
        Chunks of the input of an operator, which its result has if an exchange makes it; None for
        transforms.
    bands : mapping of int to AxisBand
        Frequencies that the product of an operator keeps, by axis.
    """

    variant: str
    windows: Mapping[int, Window]
    windows_in: frozenset[int]
    wanted_chunks: tuple[Chunks, ...] | None
    on_gpu: bool
    crops: bool
    like: tuple[Chunks, ...] | None = None
    bands: Mapping[int, AxisBand] = field(default_factory=dict)

    def _stored_parts(self, programs: Mapping[int, AxisProgram]) -> _StoredParts:
        """Return the parts of axes that are stored between rounds.

        If the last exchange completes half a spectrum, windows have the negatives of all indices.
        Those of operators are stored by rounds of the inverse transform.
        """
        if self.like is not None:
            return _StoredParts({}, has_negatives=False)
        has_negatives = any(program.completes_input for program in programs.values())
        if not any(program.completes_result for program in programs.values()):
            return _StoredParts(self.windows, has_negatives)
        windows = {}
        for axis, window in self.windows.items():
            length = programs[axis].length
            wider_window = with_negatives(window, length)
            if wider_window[1] < length:
                windows[axis] = wider_window
        return _StoredParts(windows, has_negatives)

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

        This is a beam search: of the ways to cut the rounds so far, the `BEAM` cheapest go on. An
        axis has at most one step in a round.

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
            Empty if a block gets too large, or if all cost more than `bound`.
        """
        parts = self._stored_parts(programs)
        beam: list[tuple[float, tuple[Round, ...]]] = [(0.0, ())]
        for round_steps in _steps_of_rounds(programs, assignment):
            longer: list[tuple[float, tuple[Round, ...]]] = []
            for seconds, rounds in beam:
                before = rounds[-1].target if rounds else source
                cuts = self._cuts(
                    programs,
                    round_steps,
                    before,
                    source,
                    parts,
                )
                for layout in self._layouts(cuts, programs, round_steps, sizes):
                    total = seconds + cost(before, layout)
                    if total > bound:
                        continue
                    round_ = self._round(
                        programs,
                        round_steps,
                        before,
                        layout,
                        parts,
                    )
                    longer.append((total, (*rounds, round_)))
            longer.sort(key=lambda candidate: candidate[0])
            beam = longer[:BEAM]
        return [rounds for _, rounds in beam]

    def _cuts(
        self,
        programs: Mapping[int, AxisProgram],
        round_steps: _RoundSteps,
        before: Layout,
        source: Layout,
        parts: _StoredParts,
    ) -> Cuts:
        """Return the groups of all axes in a round, with the chunks that they inherit.

        Parameters
        ----------
        programs : mapping
            Program of each transformed axis.
        round_steps : _RoundSteps
            Steps of the round.
        before, source : Layout
            Blocks before the exchange, and of the input.
        parts : _StoredParts
            Parts of axes that are stored between rounds.
        """
        cuts: Cuts = []
        for a, axis in enumerate(before.axes):
            program = programs.get(a)
            if program is None:
                cuts.append([_cut_as(group) for group in axis.groups])
                continue
            axis_cuts = self._axis_cuts(
                program,
                round_steps.counts[a],
                round_steps.steps.get(a),
                before=axis,
                source=source.axes[a],
                parts=parts,
            )
            cuts.append(axis_cuts)
        return cuts

    def _round(
        self,
        programs: Mapping[int, AxisProgram],
        round_steps: _RoundSteps,
        before: Layout,
        layout: Layout,
        parts: _StoredParts,
    ) -> Round:
        """Return a round, with the windows that it finds and stores.

        Parameters
        ----------
        programs : mapping
            Program of each transformed axis.
        round_steps : _RoundSteps
            Steps of the round.
        before, layout : Layout
            Blocks before the exchange, and before the round.
        parts : _StoredParts
            Parts of axes that are stored between rounds.
        """
        steps = round_steps.steps
        target = transformed(layout, tuple(steps.values()))
        if parts.windows or self.bands:
            axes = list(target.axes)
            for axis, step in steps.items():
                axes[axis] = self._stored_axis(
                    axes[axis],
                    programs[axis],
                    step,
                    parts=parts,
                    is_last=round_steps.is_last,
                )
            target = Layout(tuple(axes))
        windows_in = self._nonzero_windows(
            before,
            layout,
            steps,
            parts,
        )
        folded = [axis for axis in steps if axis in self.bands and self.bands[axis].folds]
        return Round(
            tuple(steps.values()),
            layout,
            target,
            windows_in=tuple(windows_in),
            folded=tuple(folded),
        )

    def _stored_axis(
        self,
        axis: AxisLayout,
        program: AxisProgram,
        step: Step,
        parts: _StoredParts,
        is_last: bool,
    ) -> AxisLayout:
        """Return what a round stores of an axis after a step: all values, a window, or a band."""
        number = program.axis
        if number in parts.windows and step == program.steps[-1] and self.crops:
            axis = self._in_window(
                axis,
                program,
                parts.windows[number],
                is_last,
            )
        band = self.bands.get(number)
        if band is None or step.between is not None:
            return axis
        if self.crops or band.length_back is not None:
            axis = self._in_band(axis, program)
        return axis

    def _nonzero_windows(
        self,
        before: Layout,
        layout: Layout,
        steps: Mapping[int, Step],
        parts: _StoredParts,
    ) -> Iterator[StoredWindow]:
        """Yield the windows of transformed dimensions outside of which a round finds zeros."""
        for axis in sorted(self.windows_in & steps.keys()):
            group = before.axes[axis].groups[0]
            if group.digits != (steps[axis].source,):
                continue
            window = (group.offset, group.stored)
            if parts.has_negatives:
                window = with_negatives(window, group.size)
            start, count = window
            if count < group.size:
                yield StoredWindow(
                    layout.first_dims[axis],
                    start,
                    count,
                    group.size,
                )

    def _in_window(
        self,
        axis: AxisLayout,
        program: AxisProgram,
        window: Window,
        is_last: bool,
    ) -> AxisLayout:
        """Return an axis after its last step, of which only a window is stored if that pays."""
        digit = program.steps[-1].target
        is_result = is_last and program.target == (digit,)
        if is_result and self.wanted_chunks is not None:
            is_result = self.wanted_chunks[program.axis] == window[1:]
        if program.target != (digit,):
            length = program.length
            if not program.completes_result:
                length = size_of(program.target)
            window = window_of_digit(window, digit, length)
        if window[1] > WINDOW_SHARE * digit.size and not is_result:
            return axis
        return _with_window(axis, digit, window)

    def _in_band(self, axis: AxisLayout, program: AxisProgram) -> AxisLayout:
        """Return an axis of an operator, with its band alone if it is transformed and that pays."""
        digit = program.steps[len(program.factors) - 1].target
        if digit not in axis.digits:
            return axis
        band = self.bands[program.axis]
        window = (band.start, band.count)
        if band.is_half and len(program.factors) > 1:  # digits of both signs
            window = with_negatives(window, program.length)
        window = window_of_digit(window, digit, program.length)
        if band.length_back is None and window[1] > WINDOW_SHARE * digit.size:
            return axis
        return _with_window(axis, digit, window)

    def _layouts(
        self,
        cuts: Cuts,
        programs: Mapping[int, AxisProgram],
        round_steps: _RoundSteps,
        sizes: Sizes,
    ) -> list[Layout]:
        """Return the ways to cut the blocks of a round."""
        steps = round_steps.steps
        is_last = round_steps.is_last
        if any(step.kind == "r2c" for step in steps.values()):  # real elements are half as wide
            sizes = sizes.times(2)
        has_fewer_blocks = is_last and sizes.last > 1
        if has_fewer_blocks:
            sizes = replace(sizes.times(sizes.last), blocks=-(-sizes.blocks // sizes.last))
        if sizes.merge or has_fewer_blocks:
            cuts = _merge(cuts, sizes.target)
        layouts = _ways_to_cut(cuts, sizes, self.variant)
        if is_last and self.wanted_chunks is not None and self.like is None:
            as_wanted = _as_wanted(
                cuts,
                self.wanted_chunks,
                programs,
                steps,
                self.windows,
                sizes,
            )
            layouts = [*as_wanted, *layouts]
        return list(dict.fromkeys(layouts))

    def result(
        self, programs: Mapping[int, AxisProgram], last: Layout, flat: Layout | None
    ) -> Layout:
        """Return the blocks of the result: as wanted, else what the last round gives.

        An axis that the last round does not leave in the requested order keeps its number of parts.
        If only a window of an axis is returned, the axis keeps the size of its parts.
        """
        targets = [self._result_axis(a, axis, programs.get(a)) for a, axis in enumerate(last.axes)]
        is_made = [False] * len(targets)
        if flat is not None:
            pairs = zip(targets, flat.axes, strict=True)
            is_made = [target.is_stored_by(axis) for target, axis in pairs]
        result_chunks = self._chunks_of_result([target.count for target in targets], all(is_made))
        axes = []
        for a, target in enumerate(targets):
            if result_chunks is not None:
                chunks = result_chunks[a]
            elif flat is not None and is_made[a]:
                chunks = flat.axes[a].groups[0].chunks
            else:
                chunks = target.in_parts(last.axes[a].blocks)
            axes.append(AxisLayout((Group(target.digits, chunks, target.start),)))
        return Layout(tuple(axes))

    def _result_axis(
        self,
        number: int,
        last: AxisLayout,
        program: AxisProgram | None,
    ) -> _ResultAxis:
        """Return the values of the result along an axis, given the axis after the last round."""
        digits = last.digits if program is None else program.target
        start, count = self.windows.get(number, (0, size_of(digits)))
        return _ResultAxis(digits, start, count)

    def _chunks_of_result(self, lengths: Sequence[int], is_made: bool) -> tuple[Chunks, ...] | None:
        """Return the chunks of the result, given its lengths; None if those of the rounds will do.

        The result of an operator has the input's chunks, unless the last round has made it.
        """
        if self.wanted_chunks is None and self.like is not None and not is_made:
            return tuple(map(scaled, self.like, lengths))
        return self.wanted_chunks

    def _axis_cuts(
        self,
        program: AxisProgram,
        count: int,
        step: Step | None,
        before: AxisLayout,
        source: AxisLayout,
        parts: _StoredParts,
    ) -> list[_Cut]:
        """Return the groups of a transformed axis in a round, with the chunks that they inherit.

        A named variant cuts the outermost digits into as many parts as the input has, so that all
        rounds are cut alike.

        Parameters
        ----------
        program : AxisProgram
            Program of the axis.
        count : int
            Number of its steps in earlier rounds.
        step : Step or None
            Its step in this round.
        before, source : AxisLayout
            The axis before the round, and in the input.
        parts : _StoredParts
            Parts of axes that are stored between rounds.
        """
        if step is None:
            flat_cuts = self._flat_cuts(
                program,
                count,
                before,
                parts,
            )
            if flat_cuts is not None:
                return flat_cuts
        if self.variant != "auto":
            cuts = _contiguous_for_step(program, count, step, self.variant)
            return _in_parts(cuts, source.blocks)
        if self.on_gpu and not program.bluestein:
            cuts = _at_their_places(program, count, step)
        else:
            cuts = _contiguous_for_step(program, count, step, self.variant)
        return _in_parts(_cut_as_before(cuts, before), before.blocks)

    def _flat_cuts(
        self,
        program: AxisProgram,
        count: int,
        before: AxisLayout,
        parts: _StoredParts,
    ) -> list[_Cut] | None:
        """Return the groups of an axis without a step in a round; None if it is in digits.

        Parameters
        ----------
        program : AxisProgram
            Program of the axis.
        count : int
            Number of its steps in earlier rounds.
        before : AxisLayout
            The axis before the round.
        parts : _StoredParts
            Parts of axes that are stored between rounds.
        """
        if count == 0 and _is_whole_before(program):
            cut = _flat(program.source, before)
            return [_with_negatives(cut, before.blocks) if parts.has_negatives else cut]
        if count == len(program.steps):
            return self._transformed_cuts(program, before, parts.windows)
        if program.axis not in self.bands:
            return None
        groups = self._in_band(before, program).groups
        if not any(group.offset or group.stored < group.size for group in groups):
            return None
        return [_cut_as(group) for group in groups]

    def _transformed_cuts(
        self,
        program: AxisProgram,
        before: AxisLayout,
        windows: Mapping[int, Window],
    ) -> list[_Cut]:
        """Return the groups of an axis after its last step; values outside a window are dropped."""
        is_as_requested = before.digits == program.target
        if not is_as_requested and _is_half(program, before.digits):
            return [_cut_as(group) for group in before.groups]
        if program.axis in windows:
            return [_windowed(program.target, before, windows[program.axis])]
        if is_as_requested:
            return [_cut_as(group) for group in before.groups]
        return [_flat(program.target, before)]


def _with_window(axis: AxisLayout, digit: Digit, window: Window) -> AxisLayout:
    """Return the layout of an axis that stores a window of a digit.

    The digit has to be a group by itself, which gets one chunk. Other layouts are unchanged.
    """
    start, count = window
    groups: list[Group] = []
    for group in axis.groups:
        is_stored = group.offset == start and group.stored == count
        if group.digits == (digit,) and not is_stored:
            group = Group((digit,), (count,), start)
        groups.append(group)
    return AxisLayout(tuple(groups))


def _is_half(program: AxisProgram, digits: tuple[Digit, ...]) -> bool:
    """Return True for digits of half a spectrum, which has to be completed before it is split."""
    return program.mirror is not None and any(digit.is_partial for digit in digits)


def _is_whole_before(program: AxisProgram) -> bool:
    """Return True if an axis may be stored flat before its first step."""
    return program.source == (program.steps[0].source,) or not _is_half(program, program.source)
