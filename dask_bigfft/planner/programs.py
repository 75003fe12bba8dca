"""Programs of all axes, and the ways to put their steps into rounds.

Pure: imports `transforms`, `decomposition` and this room.
"""

import itertools
from collections.abc import Iterator, Sequence

from dask_bigfft.decomposition.layout import AxisLayout, Chunks, Group, Layout
from dask_bigfft.decomposition.steps import AxisProgram, axis_program, flat_digits
from dask_bigfft.planner.digits import Factors
from dask_bigfft.planner.layouts import Assignment
from dask_bigfft.transforms.spec import TransformSpec


def source_layout(spec: TransformSpec, chunks: tuple[Chunks, ...]) -> Layout:
    """Blocks of the array that comes in."""
    axes = []
    for axis, cut in enumerate(chunks):
        if axis in spec.axes:
            program = program_of(spec, axis, (spec.lengths[spec.axes.index(axis)],))
            digits = program.source
        else:
            digits = flat_digits(0, spec.shape[axis], "natural", real=False)
        axes.append(AxisLayout((Group(digits, cut),)))
    return Layout(tuple(axes))


def program_of(
    spec: TransformSpec, axis: int, factors: Factors, *, bluestein: bool = False
) -> AxisProgram:
    """The program of one axis of a transform."""
    i = spec.axes.index(axis)
    return axis_program(
        axis,
        spec.lengths[i],
        factors,
        kind=spec.kind if axis == spec.axes[-1] else "c2c",
        sign=spec.sign,
        order_in=spec.orders_in[i],
        order_out=spec.orders_out[i],
        digits=spec.digits_of(axis),
        bluestein=bluestein,
        waves=spec.waves if bluestein else None,
    )


def with_padding(source: Layout, programs: dict[int, AxisProgram]) -> Layout:
    """The source with room for the padding that Bluestein's algorithm needs in its digits."""
    axes = [
        AxisLayout((Group(programs[a].source, axis.groups[0].chunks),)) if a in programs else axis
        for a, axis in enumerate(source.axes)
    ]
    return Layout(tuple(axes))


def _places(steps: int, rounds: int) -> list[tuple[int, ...]]:
    """Ways to put an axis' steps, in order, into different rounds."""
    return list(itertools.combinations(range(rounds), steps))


def assignments(
    spec: TransformSpec, steps: dict[int, int], rounds: int
) -> Iterator[Assignment]:
    """Ways to put the steps of all axes into exactly `rounds` rounds.

    Real input is halved in the first round, real output is made in the last.
    """
    choices = []
    for axis in spec.axes:
        places = _places(steps[axis], rounds)
        if axis == spec.real_axis and spec.kind == "r2c":
            places = [p for p in places if p[0] == 0]
        if axis == spec.real_axis and spec.kind == "c2r":
            places = [p for p in places if p[-1] == rounds - 1]
        choices.append(places)
    for chosen in itertools.product(*choices):
        if len({r for places in chosen for r in places}) == rounds:
            yield dict(zip(spec.axes, chosen, strict=True))


def digits_of_splits(axes: Sequence[int], count: int, most: int) -> Iterator[dict[int, int]]:
    """Number of digits per axis, with `count` of the axes split into 2 to `most` digits."""
    for chosen in itertools.combinations(axes, count):
        for numbers in itertools.product(range(2, most + 1), repeat=count):
            digits = dict.fromkeys(axes, 1)
            digits.update(zip(chosen, numbers, strict=True))
            yield digits
