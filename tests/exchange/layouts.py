"""Random layouts of one axis in digits, and where every element lies, by brute force."""

import itertools
import math
from dataclasses import dataclass

import numpy as np
from hypothesis import strategies as st

from dask_bigfft.testing.strategies import chunks_of
from dask_bigfft.transforms.layout import AxisLayout, Digit, Group, Layout, even_chunks, half


@dataclass(frozen=True)
class Place:
    """A fine digit of an axis: its stage, stride and radix."""

    stage: int
    stride: int
    radix: int


def fine_places(factors, transformed_count=0):
    """The fine digits of an axis whose first `transformed_count` factors are transformed."""
    total = math.prod(factors)
    places = []
    stride = 1
    for n in factors[:transformed_count]:
        places.append(Place(1, stride, n))
        stride *= n
    rest = total // stride
    for n in factors[transformed_count:]:
        rest //= n
        places.append(Place(0, rest, n))
    return places


def merged(places, shared_layouts):
    """Coarser digits: neighbours of one stage that `shared_layouts` allows are made one."""
    digits = []
    for place, shared_layout in zip(places, [False, *shared_layouts], strict=True):
        last = digits[-1] if digits else None
        if shared_layout and last is not None and last.stage == place.stage:
            stride = min(last.stride, place.stride)
            digits[-1] = Digit(
                place.stage,
                stride,
                last.size * place.radix,
                last.size * place.radix,
            )
        else:
            digits.append(Digit(place.stage, place.stride, place.radix, place.radix))
    return digits


@st.composite
def groupings(draw, digits, *, cut=None):
    """Groups of one to three digits in any order, each cut anyhow, or as `cut` says."""
    digits = draw(st.permutations(digits))
    groups = []
    rest = list(digits)
    while rest:
        count = draw(st.integers(1, min(3, len(rest))))
        mine, rest = tuple(rest[:count]), rest[count:]
        size = math.prod(d.size for d in mine)
        groups.append(Group(mine, draw(chunks_of(size, 5) if cut is None else cut(mine))))
    return AxisLayout(tuple(groups))


@st.composite
def axis_layouts(draw, places, *, cut=None):
    """A layout of an axis in digits that are made of `places`."""
    shared_layouts = draw(
        st.lists(st.booleans(), min_size=len(places) - 1, max_size=len(places) - 1)
    )
    aligned = None if cut is None else lambda digits: cut(digits, places)
    return draw(groupings(merged(places, shared_layouts), cut=aligned))


@st.composite
def plain_layouts(draw, size):
    """A dask axis, which may end before its digit does, or go on after it."""
    stored = size
    if draw(st.integers(0, 2)) == 0:
        stored = max(1, size + draw(st.integers(-4, 4)))
    return AxisLayout((Group((Digit(0, 1, size, size),), draw(chunks_of(stored, 6))),))


@st.composite
def axis_pairs(draw, largest=60, *, cut=None):
    """Two layouts of one axis, which need not have a digit in common."""
    count = draw(st.integers(1, 4))
    factors = [draw(st.integers(2, 5)) for _ in range(count)]
    while math.prod(factors) > largest:
        factors.pop()
    factors = factors or [largest]
    transformed_count = draw(st.integers(0, len(factors)))
    places = fine_places(factors, transformed_count)
    target = draw(axis_layouts(places, cut=cut))
    if transformed_count == 0 and cut is None and draw(st.booleans()):
        return draw(plain_layouts(math.prod(factors))), target
    return draw(axis_layouts(places, cut=cut)), target


@st.composite
def pairs(draw, max_axes=5, *, cut=None):
    """Source and target layouts of an array of 1 to `max_axes` axes."""
    ndim = draw(st.integers(1, max_axes))
    largest = {
        1: 240,
        2: 36,
        3: 16,
        4: 8,
    }.get(ndim, 6)
    axes = [draw(axis_pairs(largest, cut=cut)) for _ in range(ndim)]
    return Layout(tuple(a for a, _ in axes)), Layout(tuple(b for _, b in axes))


def radices_of(digit, places):
    """Radices of the fine digits that a digit is made of, outermost first."""
    inside = [
        p
        for p in places
        if p.stage == digit.stage and digit.stride <= p.stride < digit.stride * digit.radix
    ]
    return [p.radix for p in sorted(inside, key=lambda p: -p.stride)]


@st.composite
def aligned_cuts(draw, digits, places):
    """Equal chunks that divide the flattened digits at the edge of a fine one, or inside of it."""
    radices = [n for digit in digits for n in radices_of(digit, places)]
    inner = draw(st.integers(0, len(radices) - 1))
    divisors = [d for d in range(1, radices[inner] + 1) if radices[inner] % d == 0]
    width = draw(st.sampled_from(divisors)) * math.prod(radices[inner + 1 :])
    size = math.prod(radices)
    return even_chunks(size, size // width)


@st.composite
def half_spectra(draw, factors):
    """A layout of half a spectrum whose first output digit is `factors[0]`, halved."""
    digits = []
    stride = 1
    for j, n in enumerate(factors):
        digits.append(Digit(1, stride, half(n) if j == 0 else n, n))
        stride *= n
    return draw(groupings(digits))


# --- brute force ----------------------------------------------------------------------------

#: No element: stored, but not part of the transform.
NOTHING = -1


def index_of(layout, block, stages):
    """For each place of an axis' block, its index of every stage as one number, or `NOTHING`."""
    numbers = []
    for group, chunk in zip(layout.groups, np.unravel_index(block, layout.grid), strict=True):
        low = sum(group.chunks[:chunk])
        flat = np.arange(low, low + group.chunks[chunk])
        size = math.prod(d.size for d in group.digits)
        total = np.zeros(len(flat), np.int64)
        valid = flat < size
        values = np.unravel_index(flat[valid], [d.size for d in group.digits])
        for digit, value in zip(group.digits, values, strict=True):
            total[valid] += value * digit.stride * stages[digit.stage]
        total[~valid] = NOTHING * 10**9
        numbers.append(total)
    index = numbers[0]
    for more in numbers[1:]:
        index = np.add.outer(index, more)
    return np.where(index < 0, NOTHING, index)


def stage_weights(*layouts):
    """A factor for each stage that keeps the stages' indices apart."""
    weights = {}
    weight = 1
    for digit in itertools.chain.from_iterable(layout.digits for layout in layouts):
        weights.setdefault(digit.stage, 0)
        weights[digit.stage] = max(weights[digit.stage], digit.stride * digit.radix)
    factor_of_stage = {}
    for stage in sorted(weights):
        factor_of_stage[stage], weight = weight, weight * (weights[stage] + 1)
    return factor_of_stage, weight


def whole_index(source, target):
    """Functions that give, for a block of either layout, the number of each place's element."""
    axes = [stage_weights(a, b) for a, b in zip(source.axes, target.axes, strict=True)]
    scales = [math.prod(w for _, w in axes[i + 1 :]) for i in range(len(axes))]

    def index(layout, block):
        total = np.zeros((), np.int64)
        gone = np.zeros((), bool)
        for axis, i, (weights, _), scale in zip(layout.axes, block, axes, scales, strict=True):
            mine = index_of(axis, i, weights)
            total = np.add.outer(total, np.maximum(mine, 0) * scale)
            gone = np.logical_or.outer(gone, mine < 0)
        return np.where(gone, NOTHING, total)

    return index
