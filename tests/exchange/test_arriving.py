"""Blocks that are put together as their shards arrive, or read where an array is stored."""

import math

import numpy as np
import pytest
from exchange.layouts import axis_layouts, fine_places, pairs, plain_layouts
from exchange.test_laws import DTYPES, mirrored_pairs, packed_shards
from hypothesis import given
from hypothesis import strategies as st

from dask_bigfft.decomposition.layout import Layout
from dask_bigfft.decomposition.rounds import packed_dtype
from dask_bigfft.exchange.gather import Arriving, block_regions, fresh_block, shard_regions, view_of
from dask_bigfft.exchange.packing import pack
from dask_bigfft.exchange.shards import ExchangeMap


def arrived(exchange, block, shards, dtype, shard_dtype, rng):
    """A block put together from shards that arrive in any order, some at a time."""
    shape = exchange.target.shape(block)
    arriving = Arriving(exchange, block, shape, dtype, shard_dtype)
    order = rng.permutation(np.array([*shards, None], object)[:-1]).tolist()
    while order:
        some, order = order[: (count := rng.integers(1, 4))], order[count:]
        arriving.take({tuple(source): shards[tuple(source)] for source in some})
    return arriving.values


@given(
    case=st.one_of(st.tuples(pairs(), st.sampled_from(DTYPES)), st.tuples(mirrored_pairs())),
    seed=st.integers(0, 99),
)
def test_a_block_that_arrives_is_gathered(case, seed):
    """Also one that is completed by its mirror image."""
    layouts, dtypes = case if len(case) == 2 else (*case, ("c16", "c16"))
    exchange, rng = ExchangeMap(*layouts), np.random.default_rng(seed)
    blocks = {}
    for block in exchange.source.indices():
        values = 9 * rng.standard_normal((2, *exchange.source.shape(block)))
        complex_ = np.dtype(dtypes[0]).kind == "c"
        blocks[block] = (values[0] + 1j * values[1] if complex_ else values[0]).astype(dtypes[0])
    dtype, shard_dtype = np.dtype(dtypes[1]), packed_dtype(np.dtype(dtypes[0]), np.dtype(dtypes[1]))
    for block in exchange.target.indices():
        shards = packed_shards(exchange, block, blocks, dtype)
        found = arrived(exchange, block, shards, dtype, shard_dtype, rng)
        shape = exchange.target.shape(block)
        wanted = view_of(exchange, block, shape, dtype, blocks.__getitem__).gather()
        np.testing.assert_array_equal(found, wanted)


@st.composite
def stored_pairs(draw):
    """An array as it is stored, and blocks in digits of its axes."""
    source, target = [], []
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
    exchange, dtype = ExchangeMap(source, target), np.dtype(dtypes[0])
    for block in target.indices():
        shape = target.shape(block)
        arguments = exchange, block, shape, dtype
        wanted = view_of(*arguments, blocks.__getitem__).gather()
        if way == "in place":
            found = fresh_block(*arguments)
            regions = block_regions(exchange, block, found)
        else:
            sources = exchange.sources(block)
            sizes = {s: pack(exchange, block, s, blocks[s], dtype).size for s in sources}
            shards = {s: np.empty(size, dtype) for s, size in sizes.items()}
            regions = shard_regions(exchange, block, shards)
        for region, place in regions:
            assert place.shape == tuple(cut.stop - cut.start for cut in region)
            place[...] = stored[region]
        if way == "packed":
            found = view_of(*arguments, shards.__getitem__, packed=True).gather()
        np.testing.assert_array_equal(found, wanted)


def region_of(layout, block):
    """Slices of the array that a block of plain chunks is."""
    bounds = [axis.groups[0].bounds for axis in layout.axes]
    return tuple(slice(b[i], b[i + 1]) for b, i in zip(bounds, block, strict=True))
