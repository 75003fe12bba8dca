"""Rounds: simultaneous steps, and the layouts of blocks before and after them.

Each block holds all values of the digits of a round. The algorithms of the literature are
partitions of the steps of all axes into rounds. The planner chooses the partition; this module
defines rounds, and gives the scale of a transform to one of their steps::

    input --exchange 0--> round 1 --exchange 1--> ... round R --exchange R--> output
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple, TypeVar

from dask_bigfft.transforms.bands import AxisBand
from dask_bigfft.transforms.layout import AxisLayout, Digit, Group, HashedOnce, Layout
from dask_bigfft.transforms.steps import OPTIONAL, AxisProgram, Divisor, Step


class WindowCut(NamedTuple):
    """Slice of a dimension that belongs to a window.

    Parameters
    ----------
    source, target : slice
        Places in the dimension, and in the window.
    is_added : bool
        Whether the values are added to those in the window, instead of stored there.
    """

    source: slice
    target: slice
    is_added: bool


@dataclass(frozen=True)
class StoredWindow:
    """Cyclic window of a dimension of a block: of all its values, only these are stored.

    Parameters
    ----------
    dim : int
        Dimension of the block.
    first, count : int
        First value that is stored, and number of values.
    size : int
        Number of values of the dimension in the round.
    fold : (int, int) or None
        Two places from the first value on, whose values are added up. The sum is stored at the
        first one of them. None if no values are added.
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
    def cuts(self) -> list[WindowCut]:
        """Slices of the dimension, from which the window is put together.

        >>> [cut.source for cut in StoredWindow(0, first=3, count=4, size=5).cuts]
        [slice(3, 5, None), slice(0, 2, None)]
        """
        before_end = min(self.count, self.size - self.first)
        after_end = self.count - before_end
        cuts = [
            WindowCut(
                source=slice(self.first, self.first + before_end),
                target=slice(0, before_end),
                is_added=False,
            )
        ]
        if after_end:
            cut_from_start = WindowCut(
                source=slice(0, after_end),
                target=slice(before_end, self.count),
                is_added=False,
            )
            cuts.append(cut_from_start)
        if self.fold is not None:
            place, other_place = self.fold
            other = (self.first + other_place) % self.size
            folded_cut = WindowCut(
                source=slice(other, other + 1),
                target=slice(place, place + 1),
                is_added=True,
            )
            cuts.append(folded_cut)
        return cuts

    @property
    def read(self) -> "StoredWindow":
        """The window of all values that are read: those stored, and those added to them."""
        if self.fold is None:
            return self
        _, other_place = self.fold
        return StoredWindow(
            self.dim,
            self.first,
            count=max(self.count, other_place + 1),
            size=self.size,
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
            is_folded = step.axis in self.folded
            # Half spectra of N and N - 1 samples have one number of frequencies for odd N.
            if group.is_whole and not is_folded:
                continue
            fold = None
            if is_folded:
                fold = (0, group.stored)
                if step.target.is_partial:
                    # Of half a spectrum the last frequency stands for its negative, too.
                    fold = (group.stored - 1, group.stored - 1)
            window = StoredWindow(
                dim,
                first=group.offset,
                count=group.stored,
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

    @cached_property
    def takes_real(self) -> bool:
        """True if a step transforms real values into half a spectrum."""
        return any(step.kind == "r2c" for step in self.steps)

    @cached_property
    def makes_real(self) -> bool:
        """True if a step transforms half a spectrum into real values."""
        return any(step.last_kind == "c2r" for step in self.steps)

    @cached_property
    def without_windows(self) -> "Round":
        """The round of all lines, which stores all values."""
        if not self.windows and not self.windows_in:
            return self
        target = transformed(self.source, self.steps)
        return replace(self, target=target, windows_in=(), folded=())

    @cached_property
    def keeps_energy(self) -> bool:
        """True if the round conserves energy up to a factor.

        Products with transfer functions do not, nor do chirps of Bluestein's algorithm, nor real
        results of complex factors.
        """
        if self.multiplies or any(step.has_chirps for step in self.steps):
            return False
        has_twiddles = any(step.twiddle is not None for step in self.steps)
        return not (self.makes_real and has_twiddles)

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


Scale = Literal["none", "ortho", "full"]


def _dividing_step(program: AxisProgram) -> Step:
    """Return the step of an axis in which a division costs least.

    This is the last chirp, else the first twiddle, because both multiply in any case. Otherwise it
    is the last FFT. In operators it is behind the product, which may not be linear.
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
        return {_dividing_step(program): program.length for program in programs}

    def cost(program: AxisProgram) -> tuple[bool, int]:
        """Return whether the division is an extra pass, and the number of rounds after it."""
        step = _dividing_step(program)
        is_extra_pass = step.chirp_out is None and step.twiddle is None
        numbers = [number for number, round_ in enumerate(rounds) if step in round_.steps]
        return is_extra_pass, len(rounds) - 1 - numbers[-1]

    cheapest = min(programs, key=cost)
    return {_dividing_step(cheapest): math.prod(lengths)}
