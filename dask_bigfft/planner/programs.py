"""Programs of all axes: lengths of their digits, and the ways to put their steps into rounds.

Pure: imports `transforms`, `decomposition` and this room.
"""

import itertools
import math
from collections.abc import Iterator, Sequence

from dask_bigfft.decomposition.factors import balanced_split, divisors, transposed_digits
from dask_bigfft.decomposition.layout import AxisLayout, Chunks, Group, Layout
from dask_bigfft.decomposition.steps import AxisProgram, axis_program, flat_digits
from dask_bigfft.planner.layouts import Assignment
from dask_bigfft.transforms.spec import TransformSpec

Factors = tuple[int, ...]


def nearest_divisors(n: int, ideal: float) -> list[int]:
    """The divisors of n next to `ideal` on either side, 1 and n left out."""
    inner = [d for d in divisors(n) if 1 < d < n]
    below = [d for d in inner if d <= ideal][-1:]
    above = [d for d in inner if d > ideal][:1]
    return below + above


def factor_choices(
    spec: TransformSpec, axis: int, places: tuple[int, ...], whole: dict[int, int], variant: str
) -> list[Factors]:
    """Lengths of the digits of a split axis worth trying.

    The digits of the order that is asked for come first. `whole` is the product of the lengths
    of the unsplit axes in each round: digits are chosen so that rounds are of like size (Gu,
    Siegel, Li 2011, section 6.2).
    """
    n = spec.lengths[spec.axes.index(axis)]
    count = len(places)
    found: list[Factors] = []
    i = spec.axes.index(axis)
    for order, backwards in ((spec.orders_in[i], True), (spec.orders_out[i], False)):
        digits = spec.digits_of(axis) or transposed_digits(n)
        if order == "transposed" and len(digits) == count:
            found.append(digits[::-1] if backwards else digits)
    if count == 2:
        ideal = math.sqrt(n * whole.get(places[1], 1) / whole.get(places[0], 1))
        found += [(d, n // d) for d in nearest_divisors(n, ideal)]
    split = balanced_split(n, count)
    if split is not None:
        found += [split, split[::-1]]
        if count > 2:
            found.append((*split[: count // 2], split[-1], *split[count // 2 : -1]))
    if variant == "pease":
        found = [f for f in found if len(set(f)) == 1]
    return list(dict.fromkeys(found))


def few_source_factors(n: int, most: int) -> list[Factors]:
    """Return three digits of an axis in very many chunks, for blocks of few source blocks each.

    A block of the first round is gathered from at least as many chunks as its digit is long. The
    second digit is short, too: a chunk of the first round has many of its values, and much of the
    third digit.

    Parameters
    ----------
    n : int
        Length of the axis.
    most : int
        Blocks that a block may be gathered from.

    Examples
    --------
    >>> few_source_factors(2**39, 4096)[0], few_source_factors(7, 4096)
    ((4096, 512, 262144), [])
    """
    first = max((d for d in divisors(n) if d <= most), default=1)
    seconds = {d for ideal in (512, 1536) for d in nearest_divisors(n // first, ideal)}
    return [(first, d, n // first // d) for d in sorted(seconds) if first > 1]


def wide_factors(n: int, room: int, blocks: int) -> list[Factors]:
    """Return two digits of an axis that leave rows wide: the first as short as it can be.

    A piece of the first round, and one that puts the result into its order, has rows of what fits
    it beside the whole first digit. Every block has some of the first digit in the second round,
    whose digit has to fit a piece.

    Parameters
    ----------
    n : int
        Length of the axis.
    room : int
        Elements of a piece of a device.
    blocks : int
        Blocks along the axis.

    Examples
    --------
    >>> wide_factors(2**30, 2**24, 64), wide_factors(2**30, 2**24, 1024), wide_factors(7, 4, 2)
    ([(256, 4194304)], [(1024, 1048576)], [])
    >>> wide_factors(11, 2**24, 1)
    []
    """
    least = max(2, blocks, -(-n // max(1, room)), math.isqrt(math.isqrt(n)))
    found = next((d for d in divisors(n) if least <= d < n), None)
    return [] if found is None else [(found, n // found)]


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


def assignments(spec: TransformSpec, steps: dict[int, int], rounds: int) -> Iterator[Assignment]:
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
