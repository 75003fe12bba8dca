"""Operators: the rounds of the inverse transform, which mirror those of the forward one.

::

    {Y, X}  {Z1}  {Z2 H Z2'}  {Z1'}  {Y', X'}

The last forward round has the product in it. The rounds after it transform the digits in reverse
order, in the same blocks, so that the result has the blocks of the first round. If only a window of
the result is returned, a round stores that window of each axis that it leaves in the order of the
result.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from dask_bigfft.transforms.bands import Window
from dask_bigfft.transforms.layout import AxisLayout, Digit, Group, Layout, scaled
from dask_bigfft.transforms.rounds import Round, transformed
from dask_bigfft.transforms.steps import AxisProgram, Step

#: Stages of the indices of an operator: of its input, and of its result.
INPUT = 0
RESULT = 2


def with_inverse(
    programs: Mapping[int, AxisProgram],
    forward: tuple[Round, ...],
    windows: Mapping[int, Window],
) -> tuple[Round, ...]:
    """Return the rounds of an operator: those of its forward transform, then those of its inverse.

    Parameters
    ----------
    programs : mapping of int to AxisProgram
        Program of each transformed axis.
    forward : tuple of Round
        The forward rounds, in the last of which each step transforms back, too.
    windows : mapping of int to (int, int)
        Start and count of the values that are returned along some axes.
    """
    *others, last = forward
    target = _in_windows(last.target, programs, windows)
    rounds = [*others, replace(last, target=target, multiplies=True)]
    for round_ in reversed(others):
        axes = list(round_.target.axes)
        for axis in programs:
            axes[axis] = _of_result(axes[axis])
        source = _in_windows(Layout(tuple(axes)), programs, windows)
        steps = tuple(_inverse(programs[step.axis], step) for step in round_.steps)
        target = _in_windows(transformed(source, steps), programs, windows)
        rounds.append(Round(steps, source, target))
    return tuple(rounds)


def _in_windows(
    layout: Layout,
    programs: Mapping[int, AxisProgram],
    windows: Mapping[int, Window],
) -> Layout:
    """Return a layout that stores a window of each axis in the order of the result."""
    axes = list(layout.axes)
    for axis, (start, count) in windows.items():
        groups = axes[axis].groups
        if len(groups) != 1 or groups[0].digits != programs[axis].target:
            continue
        chunks = groups[0].chunks
        if sum(chunks) != count:
            chunks = scaled(chunks, count)
        axes[axis] = AxisLayout((Group(groups[0].digits, chunks, start),))
    return Layout(tuple(axes))


def _inverse(program: AxisProgram, step: Step) -> Step:
    """Return the step of an operator that transforms back the digit of a forward step."""
    return program.steps[-1 - program.steps.index(step)]


@lru_cache(maxsize=1024)
def _of_result(axis: AxisLayout) -> AxisLayout:
    """Return the layout of an axis with digits of the result in place of those of the input.

    Padding was not stored; what has become of it is.
    """
    groups = []
    for group in axis.groups:
        digits = tuple(map(_digit_of_result, group.digits))
        chunks = group.chunks
        if digits != group.digits and group.bounds[-1] != group.size:
            chunks = scaled(chunks, group.size)
        groups.append(Group(digits, chunks))
    return AxisLayout(tuple(groups))


def _digit_of_result(digit: Digit) -> Digit:
    """Return a digit of the result for one of the input, and others unchanged."""
    if digit.stage != INPUT:
        return digit
    return replace(digit, stage=RESULT, size=digit.radix)
