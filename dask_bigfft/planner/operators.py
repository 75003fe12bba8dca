"""Operators: the rounds of the inverse transform, which mirror those of the forward one.

::

    {Y, X}  {Z1}  {Z2 H Z2'}  {Z1'}  {Y', X'}

The last forward round has the product in it. The rounds after it transform the digits in reverse
order, in the same blocks, so that the result has the blocks of the first round. If only a window of
the result is returned, a round stores that window of each axis that it leaves in the order of the
result.

Of an axis with a band only the band is stored, from its last forward step to its first inverse one,
which is padded with zeros. If the inverse transform has another length, the band has the
frequencies of both lengths. It is that of the other spectrum in the exchange before the inverse
step. Where such an axis is in the last forward round, the product stands at the end of the round,
and the inverse steps have a round of their own::

    {Z}  {Y, X H}  {Y', X'}  {Z'}
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from dask_bigfft.transforms.bands import AxisBand, Window
from dask_bigfft.transforms.layout import AxisLayout, Digit, Group, Layout, scaled, size_of, whole
from dask_bigfft.transforms.rounds import Round, StoredWindow, transformed
from dask_bigfft.transforms.steps import AxisProgram, Step

#: Stages of the indices of an operator: of its input, and of its result.
INPUT = 0
RESULT = 2


def with_inverse(
    programs: Mapping[int, AxisProgram],
    forward: tuple[Round, ...],
    windows: Mapping[int, Window],
    bands: tuple[AxisBand, ...] = (),
) -> tuple[Round, ...]:
    """Return the rounds of an operator: those of its forward transform, then those of its inverse.

    Parameters
    ----------
    programs : mapping of int to AxisProgram
        Program of each transformed axis.
    forward : tuple of Round
        The forward rounds. In the last one, all steps transform back, too, or none does.
    windows : mapping of int to (int, int)
        Start and count of the values that are returned along some axes.
    bands : tuple of AxisBand
        Frequencies that the product keeps.
    """
    *earlier, last = forward
    turns_back = any(step.between is not None for step in last.steps)
    middle = replace(
        last,
        target=_in_windows(last.target, programs, windows),
        multiplies=True,
        # Bands of other lengths are not set to 0, because nothing else is stored.
        bands=tuple(band for band in bands if band.length_back is None),
    )
    if turns_back:
        mirrored = tuple(earlier)
        spectrum = last.source
    else:
        mirrored = forward
        spectrum = last.target
    rounds = [*earlier, middle]
    for round_ in reversed(mirrored):
        round_back = _inverse_round(programs, round_, spectrum)
        round_back = replace(
            round_back,
            source=_in_windows(round_back.source, programs, windows),
            target=_in_windows(round_back.target, programs, windows),
        )
        rounds.append(round_back)
        spectrum = round_.source
    return tuple(rounds)


def _inverse_round(
    programs: Mapping[int, AxisProgram],
    round_: Round,
    spectrum: Layout,
) -> Round:
    """Return the round that transforms back the digits of a forward round.

    Parameters
    ----------
    programs : mapping of int to AxisProgram
        Program of each transformed axis.
    round_ : Round
        The forward round.
    spectrum : Layout
        Blocks in which the next forward round takes the digits of this one. They may store a band
        of a digit.
    """
    axes = list(round_.target.axes)
    for axis, program in programs.items():
        axes[axis] = _of_result(axes[axis], program.length, program.target[0])
    steps_back: list[Step] = []
    windows_in: list[StoredWindow] = []
    for step in round_.steps:
        step_back = _inverse(programs[step.axis], step)
        steps_back.append(step_back)
        axes[step.axis] = _padded(axes[step.axis], step.target, step_back.source)
        window = _window_of_band(
            spectrum.axes[step.axis],
            step.target,
            step_back.source,
            dim=round_.dim(step),
        )
        if window is not None:
            windows_in.append(window)
    source = Layout(tuple(axes))
    return Round(
        tuple(steps_back),
        source,
        target=transformed(source, tuple(steps_back)),
        windows_in=tuple(windows_in),
    )


def _inverse(program: AxisProgram, step: Step) -> Step:
    """Return the step of an operator that transforms back the digit of a forward step."""
    return program.steps[-1 - program.steps.index(step)]


def _padded(
    axis: AxisLayout,
    digit: Digit,
    digit_back: Digit,
) -> AxisLayout:
    """Return the layout of an axis with all values of a digit that is transformed back.

    `digit` is the one after the forward step, and `digit_back` the one before the inverse step.
    They differ if the inverse transform has another length.
    """
    groups: list[Group] = []
    for group in axis.groups:
        if group.digits == (digit,):
            group = whole(digit_back)
        groups.append(group)
    return AxisLayout(tuple(groups))


def _window_of_band(
    axis: AxisLayout,
    digit: Digit,
    digit_back: Digit,
    dim: int,
) -> StoredWindow | None:
    """Return the window of a digit that the spectrum stores; None if it stores all values.

    `dim` is the dimension of a block that has the digit when it is transformed back. For the digits
    see `_padded`.
    """
    for group in axis.groups:
        if group.digits != (digit,):
            continue
        band = _of_length(group, digit_back)
        if band.stored < band.size:
            return StoredWindow(
                dim,
                first=band.offset,
                count=band.stored,
                size=band.size,
            )
    return None


def blocks_before_next(
    rounds: Sequence[Round],
    lengths_back: Sequence[tuple[int, int]],
) -> list[Layout]:
    """Return the blocks after each round, as the exchange after it takes them.

    The exchange before the inverse step of an axis whose length changes takes its frequencies as
    those of the other length.

    Parameters
    ----------
    rounds : sequence of Round
        All rounds of a plan; there may be none.
    lengths_back : sequence of (int, int)
        Axes whose length changes, and the other length.
    """
    layouts = [round_.target for round_ in rounds]
    if not lengths_back:
        return layouts
    for number, (round_, next_round) in enumerate(itertools.pairwise(rounds)):
        axes = list(round_.target.axes)
        for axis, _ in lengths_back:
            (group,) = axes[axis].groups
            (next_group,) = next_round.source.axes[axis].groups
            (digit,) = group.digits
            (next_digit,) = next_group.digits
            if digit.stage == next_digit.stage:
                axes[axis] = AxisLayout((_of_length(group, next_digit),))
        layouts[number] = Layout(tuple(axes))
    return layouts


def _of_length(group: Group, digit: Digit) -> Group:
    """Return a group of frequencies in ascending order as one of a spectrum of another length.

    >>> _of_length(Group((Digit(1, 1, 8, 8),), (2, 2), offset=6), Digit(1, 1, 4, 4)).offset
    2
    """
    (own_digit,) = group.digits
    if own_digit == digit or own_digit.stage == INPUT:
        return group
    lowest = group.offset
    if lowest > own_digit.radix // 2:  # negative frequencies are stored last
        lowest -= own_digit.radix
    return Group((digit,), group.chunks, lowest % digit.radix)


def _in_windows(
    layout: Layout,
    programs: Mapping[int, AxisProgram],
    windows: Mapping[int, Window],
) -> Layout:
    """Return a layout that stores a window of each axis in the order of the result."""
    axes = list(layout.axes)
    for axis, (start, count) in windows.items():
        digits = programs[axis].target
        if [group.digits for group in axes[axis].groups] != [digits]:
            continue
        (group,) = axes[axis].groups
        axes[axis] = AxisLayout((Group(digits, scaled(group.chunks, count), start),))
    return Layout(tuple(axes))


@lru_cache(maxsize=1024)
def _of_result(
    axis: AxisLayout,
    length: int,
    result: Digit,
) -> AxisLayout:
    """Return the layout of an axis with digits of the result in place of those of the input.

    Padding was not stored; what has become of it is.

    Parameters
    ----------
    axis : AxisLayout
        The axis in a forward round.
    length : int
        Length of its forward transform.
    result : Digit
        All of the result along the axis.
    """
    groups = []
    for group in axis.groups:
        digits = tuple(_digit_of_result(digit, length, result) for digit in group.digits)
        if digits != group.digits:
            size = size_of(digits)
            group = Group(digits, scaled(group.chunks, size))
        groups.append(group)
    return AxisLayout(tuple(groups))


def _digit_of_result(
    digit: Digit,
    length: int,
    result: Digit,
) -> Digit:
    """Return a digit of the result for one of the input, and others unchanged."""
    if digit.stage != INPUT:
        return digit
    if digit.radix == length:
        return result
    return replace(digit, stage=RESULT, size=digit.radix)
