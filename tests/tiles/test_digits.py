"""Blocks in digits, and their mirror images, against every single value."""

import itertools
import math

import numpy as np
import pytest
from exchange.layouts import pairs
from hypothesis import given
from hypothesis import strategies as st

from dask_bigfft.exchange.gather import view_of
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.tiles.digits import mirror_boxes


def part_by_shards(view, part):
    """The values of a part of a block in digits; 0 where no shard is."""
    values = np.zeros([cut.stop - cut.start for cut in part])
    for shards in view.shards(part):
        for place, shard in shards.views():
            cuts = zip(place, shard.shape, strict=True)
            values[tuple(slice(low, low + count) for low, count in cuts)] += shard
    return values


@given(pair=pairs(max_axes=3), data=st.data())
def test_shards_of_any_part_have_the_values_of_the_block(pair, data):
    source, target = pair
    exchange = ExchangeMap(source, target)
    generator = np.random.default_rng(0)
    order = data.draw(st.sampled_from("CF"))
    blocks = {
        index: np.asarray(generator.uniform(1, 2, source.shape(index)), order=order)
        for index in source.indices()
    }
    block = data.draw(st.sampled_from(list(target.indices())))
    block_view = view_of(
        exchange,
        block,
        np.dtype("f8"),
        blocks.__getitem__,
    )
    view = block_view.boxes(True)
    if view is None:
        return
    whole = part_by_shards(view, tuple(slice(0, size) for size in view.sizes))
    inside = whole.reshape(view.shape)[tuple(itertools.starmap(slice, view.form.bounds))]
    np.testing.assert_array_equal(inside, block_view.gather())
    part = []
    for size in view.sizes:
        low = data.draw(st.integers(0, size))
        part.append(slice(low, data.draw(st.integers(low, size))))
    np.testing.assert_array_equal(part_by_shards(view, tuple(part)), whole[tuple(part)])


@pytest.mark.parametrize("radices", [(3, 4), (4, 3, 2), (1, 5, 1, 2)])
def test_mirror_boxes_have_each_index_whose_image_is_stored(radices):
    length = math.prod(radices)
    for end in range(length + 1):
        images = {}
        for box, starts, steps in mirror_boxes(radices, end):
            for digits in itertools.product(*(range(low, high) for low, high in box)):
                image = []
                for digit, (low, _), start, step in zip(digits, box, starts, steps, strict=True):
                    image.append(start + step * (digit - low))
                index = int(np.ravel_multi_index(digits, radices))
                assert index not in images
                images[index] = int(np.ravel_multi_index(image, radices))
        assert images == {length - n: n for n in range(1, end)}
