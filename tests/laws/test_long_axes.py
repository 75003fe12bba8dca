"""Phases of axes of more than 2**33 elements: the rounds of a plan on a few of its blocks.

The input has one element that is not zero. It is in one block, and so are the nonzero values after
the first round. The exchanges and rounds of the plan run on the blocks that some results need, with
zeros for all other blocks. Blocks of the plan are cut into blocks of a few MiB first.
"""

import functools
import math
from dataclasses import replace

import dask.array as da
import mpmath
import numpy as np

import dask_bigfft
from dask_bigfft.carriers.run import PlanRun, generate_filter
from dask_bigfft.transforms.layout import AxisLayout, Layout

#: Largest number of elements of a block: 8 MiB.
MOST = 1 << 19

#: Errors are relative to values of magnitude 1, or to their root mean square.
ALLOWED = 2e-14

#: A split length, and a prime: Bluestein's algorithm has squares modulo twice as much.
SPLIT = 2**33 + 2**20
PRIME = 2**33 + 17

#: The element that is not zero: its place, counted from the end, and its value.
FROM_END = 123457
VALUE = 0.6 - 0.8j


def cut(layout):
    """A layout of one axis whose first group is cut into blocks of at most `MOST` elements."""
    first, *whole = layout.axes[0].groups
    width = MOST // math.prod(group.size for group in whole)
    count, rest = divmod(first.bounds[-1], width)
    chunks = (width,) * count
    if rest:
        chunks += (rest,)
    return Layout((AxisLayout((replace(first, chunks=chunks), *whole)),))


def cut_rounds(rounds):
    return tuple(replace(r, source=cut(r.source), target=cut(r.target)) for r in rounds)


def run_of(length):
    """The plan of a transform, in small blocks, where it is executed."""
    x = da.zeros(length, chunks=1 << 28, dtype=complex)
    plan = dask_bigfft.plan(x, "fft", memory_limit="4 TiB")
    rounds = cut_rounds(plan.rounds)
    return PlanRun(replace(plan, source=cut(plan.source), rounds=rounds, result=cut(plan.result)))


def block_with(layout, stage, index):
    """The block with an index of one stage; the digits of other stages are whole."""
    axis = layout.axes[0]
    chunks = []
    for group in axis.groups:
        (digit,) = group.digits
        place = index // digit.stride % digit.radix if digit.stage == stage else 0
        chunks.append(int(np.searchsorted(group.bounds, place, "right")) - 1)
    return (axis.block_of(tuple(chunks)),)


def indices_in(layout, block, stage):
    """The index of one stage at all places of a block."""
    axis = layout.axes[0]
    indices = np.zeros((), np.int64)
    for group, (low, high) in zip(axis.groups, axis.intervals(block[0]), strict=True):
        (digit,) = group.digits
        step = digit.stride if digit.stage == stage else 0
        indices = np.add.outer(indices, np.arange(low, high) * step)
    return indices


def after_round(
    run,
    number,
    block,
    known,
    filters=None,
):
    """A block after an exchange and its round, if all unknown source blocks are zero."""
    layout = run.exchange(number).source
    zeros = functools.cache(lambda shape: np.broadcast_to(0j, shape))

    def source_of(index):
        values = known.get(index)
        return zeros(layout.shape(index)) if values is None else values

    return run.finish(
        number,
        block,
        lambda: run.view(number, block, source_of),
        filters or {},
    )


def impulse(run, element):
    """The source block with the only element that is not zero."""
    block = block_with(run.plan.source, 0, element)
    values = np.zeros(run.plan.source.shape(block), complex)
    values[indices_in(run.plan.source, block, 0) == element] = VALUE
    assert np.count_nonzero(values) == 1
    return {block: values}


def first_round(run, element):
    """The block of the first round with values that are not zero."""
    block = block_with(run.plan.rounds[0].source, 0, element)
    return {block: after_round(run, 0, block, impulse(run, element))}


def sampled(
    run,
    number,
    known,
    blocks=4,
    outputs=5,
):
    """Some indices of the result with their values: blocks of a last round, drawn and far ones."""
    target = run.plan.rounds[number].target
    stage = max(digit.stage for group in target.axes[0].groups for digit in group.digits)
    length = run.plan.spec.lengths[0]
    rng = np.random.default_rng(5)
    numbers = [0, target.blocks - 1, *rng.integers(0, target.blocks, blocks - 2).tolist()]
    for block in numbers:
        values = after_round(run, number, (block,), known)
        indices = indices_in(target, (block,), stage)
        inside = np.flatnonzero(indices < length)
        for place in [inside[-1], *rng.choice(inside, outputs - 1)]:
            yield int(indices.flat[place]), values.flat[place]


def assert_near(pairs, phase_of):
    """Assert that results are the element times exp(1j*pi*phase), which mpmath computes."""
    pairs = list(pairs)
    assert len({index for index, _ in pairs}) == 20
    with mpmath.workdps(40):
        for index, value in pairs:
            expected = complex(mpmath.mpc(VALUE) * mpmath.expjpi(phase_of(index)))
            assert abs(value - expected) < ALLOWED, index


def test_a_split_axis():
    run = run_of(SPLIT)
    assert len(run.plan.rounds) == 2
    element = SPLIT - FROM_END
    pairs = sampled(run, 1, first_round(run, element))
    assert_near(pairs, lambda index: mpmath.mpf(-2 * element * index) / SPLIT)


def test_a_convolved_axis():
    """A filter of one frequency, exp(2j*pi*q*n/padded), takes the place of the chirp's spectrum.

    The result is then chirp(k) * sum of x[n] chirp(n) exp(2j*pi*q*(k - n)/padded), with
    chirp(n) = exp(-1j*pi*n**2/length). All of the chirp's spectrum would be needed for one result.
    """
    run = run_of(PRIME)
    assert [program.bluestein for program in run.plan.programs] == [True]
    assert len(run.plan.rounds) == 3
    element = PRIME - FROM_END
    known = first_round(run, element)
    layout = run.plan.rounds[1].source
    padded = layout.size
    block = (layout.blocks - 2,)
    spectrum = np.zeros(layout.shape(block), complex)
    place = (-1, -77)
    spectrum[place] = 1
    digits = [group.digits[0] for group in layout.axes[0].groups]
    row = indices_in(layout, block, 1)[place]
    frequency = int(row) + digits[0].radix * (digits[1].size - 77)
    known = {block: after_round(run, 1, block, known, {0: spectrum})}

    def phase_of(index):
        chirps = mpmath.mpf(-(element**2) - index**2) / PRIME
        return chirps + mpmath.mpf(2 * frequency * (index - element)) / padded

    assert_near(sampled(run, 2, known), phase_of)


def test_the_filter_of_a_convolved_axis():
    """Its first round on one block, against sums of chirps whose phases are exact integers."""
    (operand,) = run_of(PRIME).plan.operands
    run = PlanRun(replace(operand.plan, rounds=cut_rounds(operand.plan.rounds)))
    first = run.plan.rounds[0]
    padded = first.source.size
    block = (2 * first.source.blocks // 3,)
    values = generate_filter(
        run,
        0,
        block,
        (),
        operand.values,
    )
    places = indices_in(first.source, block, 0)
    lags = np.where(2 * places <= padded, places, places - padded).astype(object)
    squares = (lags**2 % (2 * PRIME)).astype(float)
    frequencies = indices_in(first.target, block, 1)
    scale = np.sqrt(np.mean(np.abs(values) ** 2))
    for row, column in [(0, 1), (1, 77), (0, 65537), (1, -1)]:
        frequency = int(frequencies[row, column])
        turns = (places[row].astype(object) * (2 * frequency) % (2 * padded)).astype(float)
        angles = np.pi * (squares[row] / PRIME - turns / padded)
        inside = np.abs(lags[row]) < PRIME
        expected = np.exp(1j * angles)[inside].sum() / padded
        assert abs(values[row, column] - expected) < ALLOWED * scale
