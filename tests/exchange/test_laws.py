"""Exchanges of index-valued arrays: after a gather every element is where its digits say."""

import itertools
import math
import random

import dask
import dask.array as da
import numpy as np
import pytest
from exchange.layouts import (
    NOTHING,
    aligned_cuts,
    axis_layouts,
    axis_pairs,
    fine_places,
    half_spectra,
    index_of,
    pairs,
    plain_layouts,
    stage_weights,
    whole_index,
)
from exchange.moving import Moves
from hypothesis import given
from hypothesis import strategies as st
from laws.law import plan

from dask_bigfft import fft
from dask_bigfft.testing.strategies import chunks_of, random_array, round_cases
from dask_bigfft.transforms.exchanges import Mirror, axis_components, exchange_shape
from dask_bigfft.transforms.layout import (
    AxisLayout,
    Digit,
    Group,
    Layout,
    even_chunks,
    half,
    plain_layout,
)

#: Source and target dtypes: compiled copies, NumPy's, and the cast that drops imaginary parts.
DTYPES = [("f8", "f8"), ("f4", "c8"), ("c16", "c16"), ("i8", "f8"), ("c16", "f8"), ("i4", "c16")]


def valued(index, dtype):
    """Blocks whose values are their elements' numbers plus one; nothing there is nan-like."""
    values = np.where(index == NOTHING, -1e9, index + 1.0)
    dtype = np.dtype(dtype)
    return (values - 1j * values).astype(dtype) if dtype.kind == "c" else values.astype(dtype)


def blocks_of(layout, index, dtype):
    blocks = {}
    for block in layout.indices():
        values = valued(index(layout, block), dtype)
        assert values.shape == layout.shape(block)
        values.flags.writeable = False
        blocks[block] = values
    return blocks


def present(layout, index):
    """Numbers of all elements that a layout stores."""
    stored = [index(layout, block).ravel() for block in layout.indices()]
    numbers = np.concatenate(stored)
    numbers = numbers[numbers != NOTHING]
    assert len(np.unique(numbers)) == len(numbers)  # nothing is stored twice
    return numbers


def expected_block(
    source,
    target,
    block,
    index,
    dtypes,
):
    wanted = index(target, block)
    known = np.isin(wanted, present(source, index))
    values = valued(wanted, dtypes[0])
    if np.dtype(dtypes[0]).kind == "c" and np.dtype(dtypes[1]).kind != "c":
        values = values.real
    return np.where(known, values, 0).astype(dtypes[1])


@given(pair=pairs(), dtypes=st.sampled_from(DTYPES))
def test_every_element_is_where_its_digits_say(pair, dtypes):
    """From blocks, and packed and unpacked; each element is copied once."""
    source, target = pair
    index = whole_index(source, target)
    blocks = blocks_of(source, index, dtypes[0])
    moves = Moves(source, target)
    dtype = np.dtype(dtypes[1])
    for block in target.indices():
        gathered = moves.gather(block, dtype, blocks)
        expected = expected_block(
            source,
            target,
            block,
            index,
            dtypes,
        )
        np.testing.assert_array_equal(gathered, expected)
        assert gathered.flags.writeable
        assert gathered.flags.c_contiguous
        assert moves.sizes(block).sum() == np.count_nonzero(expected)
        check_packed(
            moves,
            block,
            blocks,
            dtype,
            expected,
        )


def check_packed(
    moves,
    block,
    blocks,
    dtype,
    expected,
):
    """Gathered from packed shards, at once and as they arrive, a few at a time in any order."""
    sources = moves.sources(block)
    shards = {source: moves.pack(block, source, blocks[source], dtype) for source in sources}
    for source, shard in shards.items():
        assert shard.flags.c_contiguous
        assert shard.ndim == 1
        assert not np.shares_memory(shard, blocks[source])
    np.testing.assert_array_equal(moves.unpack(block, dtype, shards), expected)
    source_dtype = next(iter(blocks.values())).dtype
    batches = in_batches(shards, random.Random(math.prod(expected.shape)))
    values = moves.unpack_some(
        block,
        dtype,
        source_dtype,
        batches,
    )
    np.testing.assert_array_equal(values, expected)


def in_batches(shards, rng):
    """Yield the shards in any order, one to three at a time."""
    order = list(shards)
    rng.shuffle(order)
    while order:
        count = rng.randint(1, 3)
        yield {source: shards[source] for source in order[:count]}
        order = order[count:]


@given(pair=pairs(3), dtypes=st.sampled_from(DTYPES), width=st.integers(1, 9), fits=st.booleans())
def test_tiles_are_the_block(
    pair,
    dtypes,
    width,
    fits,
):
    """Gathered tile by tile along any dimension; a tile may be overwritten before the next."""
    source, target = pair
    blocks = blocks_of(source, whole_index(source, target), dtypes[0])
    moves = Moves(source, target)
    dtype = np.dtype(dtypes[1])
    for block in itertools.islice(target.indices(), 6):
        shape = target.shape(block)
        if math.prod(shape) == 0:
            continue
        expected = moves.gather(block, dtype, blocks)
        room = shape if fits else (*shape, 2)
        for dim in range(len(shape)):
            view = moves.view(block, dtype, blocks)
            seen = 0
            for part, tile in view.tiles(dim, width, view.result(room, dtype)):
                assert part.start == seen
                seen = part.stop
                assert tile.flags.c_contiguous
                assert tile.flags.writeable
                before = (slice(None),) * dim
                np.testing.assert_array_equal(tile, expected[(*before, part)])
                tile[...] = -5
            assert seen == shape[dim]


@given(pair=pairs(3), width=st.integers(1, 9))
def test_a_tile_that_is_repeated_leaves_other_results(pair, width):
    """Results are stored in the block from which tiles may be parts."""
    source, target = pair
    blocks = blocks_of(source, whole_index(source, target), "f8")
    moves = Moves(source, target)
    dtype = np.dtype("f8")
    for block in itertools.islice(target.indices(), 6):
        shape = target.shape(block)
        if math.prod(shape) == 0:
            continue
        expected = moves.gather(block, dtype, blocks)
        for dim in range(len(shape)):
            view = moves.view(block, dtype, blocks)
            out = view.result(shape, dtype)
            for part, _ in view.tiles(dim, width, out):
                place = (*(slice(None),) * dim, part)
                out[place] = -5
                for again, tile in view.tiles(dim, width, out, [part]):
                    assert again == part
                    np.testing.assert_array_equal(tile, expected[place])
                out[place] = -5
            np.testing.assert_array_equal(out, np.full(shape, -5.0))


@pytest.mark.parametrize("dtypes", [("c16", "c16"), ("f4", "c8"), ("c16", "f8")])
@pytest.mark.parametrize("cut", [(1, 16), (16, 1), (4, 4)])
def test_several_threads_gather_what_one_does(dtypes, cut):
    """A block of several MiB in pieces of many, columns of rows among them."""
    shape = (1024, 768)
    source = plain_layout(shape, [even_chunks(n, c) for n, c in zip(shape, cut, strict=True)])
    target = plain_layout(shape, [(1000, 24), (700, 68)])
    values = random_array(shape, dtypes[0], 3)
    blocks = {block: values[region_of(source, block)] for block in source.indices()}
    moves = Moves(source, target)
    dtype = np.dtype(dtypes[1])
    alone = moves.gather((0, 0), dtype, blocks)
    np.testing.assert_array_equal(moves.gather((0, 0), dtype, blocks, threads=3), alone)
    expected = values[:1000, :700]
    np.testing.assert_array_equal(alone, expected if dtype.kind == "c" else expected.real)


# --- half a spectrum completed --------------------------------------------------------------


@st.composite
def mirrored_pairs(draw):
    """Half a spectrum in any layout, the target it is completed to, and the mirror."""
    ndim = draw(st.integers(1, 4))
    largest = {1: 5, 2: 4}.get(ndim, 3)
    real = draw(st.integers(0, ndim - 1))
    others = tuple(a for a in range(ndim) if a != real and draw(st.booleans()))
    source = []
    target = []
    for axis in range(ndim):
        if axis == real:
            a, b, length = draw(real_axes(largest))
        elif axis in others:
            a, b = draw(axis_pairs(largest**2 if ndim < 3 else 6))
            a = draw(st.sampled_from([b, padded(b)])) if draw(st.booleans()) else b
            b = recut(draw, a)
        else:
            a, b = draw(axis_pairs(6))
        source.append(a)
        target.append(b)
    return Layout(tuple(source)), Layout(tuple(target)), Mirror(real, length, others)


def recut(draw, layout):
    """The same groups in other chunks."""
    return AxisLayout(
        tuple(
            Group(group.digits, draw(chunks_of(math.prod(d.size for d in group.digits), 4)))
            for group in layout.groups
        )
    )


def padded(layout):
    """One digit that has room for more values than there are, as Bluestein's algorithm leaves."""
    size = math.prod(d.size for d in layout.digits)
    digit = Digit(1, 1, size, 2 * size + 3)
    return AxisLayout((Group((digit,), (size,)),))


@st.composite
def real_axes(draw, largest):
    """The real axis: half a spectrum, its completion, and N."""
    factors = [draw(st.integers(2, largest + 2)) for _ in range(draw(st.integers(1, 3)))]
    length = math.prod(factors)
    if draw(st.booleans()):  # the result of r2c steps: the rectangle to natural order
        source = draw(half_spectra(factors))
        whole = Digit(1, 1, half(length), length)
        target = AxisLayout((Group((whole,), draw(chunks_of(half(length), 5))),))
        return source, target, length
    # the input of c2r steps: natural order to digits, of which the last is halved
    whole = Digit(0, 1, half(length), length)
    source = AxisLayout((Group((whole,), draw(chunks_of(half(length), 5))),))
    digits = []
    stride = length
    for j, n in enumerate(factors):
        stride //= n
        digits.append(Digit(0, stride, half(n) if j == len(factors) - 1 else n, n))
    groups = draw(st.permutations(digits))
    target = AxisLayout(tuple(Group((digit,), draw(chunks_of(digit.size, 4))) for digit in groups))
    return source, target, length


def axis_numbers(layout, block):
    """Index of each place of an axis' block, of an axis with digits of one stage."""
    weights, _ = stage_weights(layout)
    assert len(weights) == 1
    return index_of(layout, block, weights)


def axis_total(layout):
    """Values of the axis' index: N, also where a digit has room for more."""
    if len(layout.digits) == 1:
        return layout.digits[0].size
    return math.prod(d.radix for d in layout.digits)


@given(case=mirrored_pairs())
def test_half_spectra_are_completed_by_their_mirror_image(case):
    source, target, mirror = case
    if any(len({d.stage for d in axis.digits}) > 1 for axis in source.axes):
        return  # all digits of a spectrum are of one stage
    totals = [axis_total(axis) for axis in source.axes]
    totals[mirror.axis] = mirror.length

    def index(layout, block):
        by_axis = [axis_numbers(axis, i) for axis, i in zip(layout.axes, block, strict=True)]
        stacked = [np.zeros((), np.int64)] * len(by_axis)
        dims = [e.ndim for e in by_axis]
        for a, numbers in enumerate(by_axis):
            shape = (1,) * sum(dims[:a]) + numbers.shape + (1,) * sum(dims[a + 1 :])
            stacked[a] = numbers.reshape(shape)
        return np.broadcast_arrays(*stacked)

    def value(numbers):
        flat = np.zeros(numbers[0].shape, np.int64)
        for n, total in zip(numbers, totals, strict=True):
            flat = flat * total + n
        return flat + 1 - 1j * (flat + 1)

    stored = [present_numbers(axis) for axis in source.axes]
    blocks = {}
    for block in source.indices():
        numbers = index(source, block)
        gone = np.any([n < 0 for n in numbers], axis=0)
        blocks[block] = np.where(gone, -1e9, value(numbers))
        blocks[block].flags.writeable = False
    moves = Moves(source, target, mirror)
    negated = (mirror.axis, *mirror.others)
    for block in target.indices():
        numbers = index(target, block)
        turned = [
            (-n) % total if a in negated else n
            for a, (n, total) in enumerate(zip(numbers, totals, strict=True))
        ]
        direct = np.isin(numbers[mirror.axis], stored[mirror.axis])
        assert np.isin(turned[mirror.axis][~direct], stored[mirror.axis]).all()
        known = np.ones(direct.shape, bool)
        for a, mine in enumerate(stored):
            if a != mirror.axis:
                known &= np.where(direct, np.isin(numbers[a], mine), np.isin(turned[a], mine))
        expected = np.where(direct, value(numbers), value(turned).conj()) * known
        dtype = np.dtype("c16")
        np.testing.assert_array_equal(moves.gather(block, dtype, blocks), expected)
        assert moves.sizes(block).sum() == np.count_nonzero(known)
        check_packed(
            moves,
            block,
            blocks,
            dtype,
            expected,
        )


def present_numbers(axis):
    numbers = np.concatenate([axis_numbers(axis, i).ravel() for i in range(axis.blocks)])
    return numbers[numbers != NOTHING]


# --- where arrays are stored, and other memory ----------------------------------------------


@st.composite
def stored_pairs(draw):
    """An array as it is stored, and blocks in digits of its axes."""
    source = []
    target = []
    for _ in range(draw(st.integers(1, 3))):
        factors = draw(st.lists(st.integers(2, 4), min_size=1, max_size=3))
        source.append(draw(plain_layouts(math.prod(factors))))
        target.append(draw(axis_layouts(fine_places(factors))))
    return Layout(tuple(source)), Layout(tuple(target))


@pytest.mark.parametrize("way", ["in place", "packed"])
@given(pair=stored_pairs(), dtypes=st.sampled_from(DTYPES))
def test_regions_of_a_stored_array_make_a_block(way, pair, dtypes):
    source, target = pair
    shape = tuple(axis.size for axis in source.axes)
    stored = np.arange(math.prod(shape)).reshape(shape).astype(dtypes[0])
    blocks = {b: stored[region_of(source, b)] for b in source.indices()}
    moves = Moves(source, target)
    dtype = np.dtype(dtypes[0])
    for block in target.indices():
        expected = moves.gather(block, dtype, blocks)
        if way == "in place":
            values = moves.read_in_place(block, dtype, stored)
        else:
            values = moves.read_packed(
                block,
                dtype,
                stored,
                blocks,
            )
        np.testing.assert_array_equal(values, expected)


def region_of(layout, block):
    """Slices of the array that a block of plain chunks is."""
    bounds = [axis.groups[0].bounds for axis in layout.axes]
    return tuple(slice(b[i], b[i + 1]) for b, i in zip(bounds, block, strict=True))


def test_blocks_that_lie_otherwise_are_copied_otherwise():
    """The same chunks, in memory the other way round: copies of a block are worked out once."""
    x = np.random.default_rng(0).standard_normal((60, 60))
    with dask.config.set(scheduler="synchronous"):
        for values in (x, np.asfortranarray(x), x[::-1], x):
            y = fft.fft(da.from_array(values, chunks=(20, 20), asarray=False), axis=0).compute()
            np.testing.assert_allclose(y, np.fft.fft(values, axis=0), atol=1e-10)


# --- groups and shapes ----------------------------------------------------------------------


@given(pair=axis_pairs(120))
def test_groups_never_separate_blocks_that_share_a_shard(pair):
    source, target = pair
    weights, _ = stage_weights(source, target)
    mine = [set(index_of(source, i, weights).ravel()) - {NOTHING} for i in range(source.blocks)]
    theirs = [set(index_of(target, j, weights).ravel()) for j in range(target.blocks)]
    groups = axis_components(source, target)
    assert len(groups.of_source) == source.blocks
    assert len(groups.of_target) == target.blocks
    assert set(groups.of_source) <= set(range(-1, groups.count))
    assert set(groups.of_target) <= set(range(groups.count))
    for j, elements in enumerate(theirs):
        sharing = [i for i, other in enumerate(mine) if elements & other]
        assert {groups.of_source[i] for i in sharing} <= {groups.of_target[j]}
        if groups.one_to_one:
            assert len(sharing) <= 1


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [
        ((4, 4, 4), (2, 2, 4, 2, 2), 3),
        ((3, 5), (5, 3), 1),
        ((4, 4), (4, 4), 2),
        ((8,), (8,), 1),
    ],
)
def test_cuts_of_one_axis_meet_where_both_are_cut(before, after, count):
    digit = Digit(0, 1, sum(before), sum(before))
    groups = axis_components(
        AxisLayout((Group((digit,), before),)), AxisLayout((Group((digit,), after),))
    )
    assert groups.count == count


def runs_by_force(
    source,
    target,
    block,
    index,
):
    """Sources, contiguous runs, and the widths of the runs that a target block reads."""
    wanted = index(target, block).ravel()
    sources = 0
    widths = []
    for mine in source.indices():
        read = np.isin(index(source, mine).ravel(), wanted)
        sources += bool(read.any())
        edges = np.flatnonzero(np.diff(np.concatenate([[0], read.astype(np.int8), [0]])))
        widths += list(edges[1::2] - edges[::2])
    return sources, len(widths), widths


@given(case=round_cases(resize=False))
def test_no_shard_of_a_plan_is_larger_than_said(case):
    for exchange in plan(case, case.array).exchanges:
        moves = Moves(exchange.source, exchange.target, exchange.mirror)
        largest = exchange.shape.largest * (1 if exchange.mirror is None else 2)
        for block in itertools.islice(exchange.target.indices(), 16):
            assert moves.sizes(block).max(initial=0) <= largest


@given(pair=pairs(3, cut=aligned_cuts))
def test_shape_of_even_exchanges_against_brute_force(pair):
    source, target = pair
    shape = exchange_shape(source, target)
    index = whole_index(source, target)
    assert shape.blocks_in == source.blocks
    assert shape.blocks_out == target.blocks
    for block in itertools.islice(target.indices(), 4):
        fan_in, runs, widths = runs_by_force(source, target, block, index)
        assert shape.fan_in == fan_in
        assert shape.runs == runs
        assert {shape.width} == set(widths)
        assert shape.largest == Moves(source, target).sizes(block).max()
