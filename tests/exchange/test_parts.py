"""Blocks as composites of their sources: the gathered block, in views of what is there."""

import random

import dask.array as da
import numpy as np
import pytest

from dask_bigfft import plan
from dask_bigfft.exchange.gather import Gathering
from dask_bigfft.exchange.shards import ExchangeMap

#: Per case, the exchanges whose blocks are composites.
CASES = {
    "columns of slabs": ("fft2", (60, 48), (13, 48), {}, {0, 1}),
    "3D": ("fftn", (16, 12, 20), (5, 12, 20), {}, {0, 1}),
    "rows of columns": ("fft2", (60, 48), (60, 11), {}, {0, 1}),
    "pencils": ("fftn", (16, 12, 20), (5, 7, 20), {}, {0, 1}),
    "1D": ("fft", (4096,), (500,), {"rounds": [64, 64]}, {0, 1, 2}),
    "1D transposed": ("fft", (4096,), (512,), {"rounds": [64, 64], "order": "transposed"}, {0, 1}),
    "real": ("rfft", (4096,), (512,), {"rounds": [64, 64]}, {0, 1}),
    "padded": ("fft2", (60, 48), (13, 48), {"s": (64, 50)}, {0, 1}),
    "cropped": ("fft2", (60, 48), (13, 48), {"s": (51, 40)}, {0, 1}),
    "1D, ends within digits": ("fft", (4095,), (455,), {"rounds": [63, 65]}, {0, 1}),
    "1D, padded": ("fft", (4000,), (455,), {"rounds": [63, 65], "n": 4095}, {0, 1}),
    "half": ("irfft", (2049,), (300,), {"rounds": [64, 64]}, {0, 1}),
    "half, odd": ("irfft", (2048,), (300,), {"rounds": [63, 65], "n": 4095}, {0, 1}),
    "half, little": ("irfft", (4,), (2,), {"rounds": [2, 3]}, {0, 1, 2}),
    "half, cropped": ("irfft", (2049,), (300,), {"rounds": [62, 64], "n": 3968}, {0, 1}),
    "half of two axes": ("irfft2", (12, 61), (5, 13), {"rounds": [{0: 12, 1: 10}, {1: 12}]},
                         {0, 1, 2}),
    "1D, padded far": ("fft", (100,), (30,), {"rounds": [64, 64], "n": 4096}, {0, 1, 2}),
    "rows, padded": ("fft2", (20, 60), (7, 11), {"rounds": [{0: 4, 1: 8}, {0: 6, 1: 8}],
                                                "s": (24, 64)}, {0, 1, 2}),
}


def composites(name, shape, chunks, keywords):
    """Every exchange's gathered blocks and, where there are any, their composites."""
    x = da.zeros(shape, chunks=chunks, dtype="f8" if name == "rfft" else "c16")
    for number, exchange in enumerate(plan(x, name, **keywords).exchanges):
        rng, dtype = np.random.default_rng(1), np.dtype(exchange.dtype)
        source = {}
        for block in exchange.source.indices():
            values = rng.standard_normal((2, *exchange.source.shape(block)))
            found = values[0] + 1j * values[1] if dtype.kind == "c" else values[0]
            source[block] = found.astype(dtype)
        map_ = ExchangeMap(exchange.source, exchange.target, exchange.mirror)
        for block in exchange.target.indices():
            shape_ = exchange.target.shape(block)
            gathering = Gathering(map_, block, shape_, dtype, source.__getitem__)
            yield number, gathering.whole(), gathering.composite(), source


def together(found, part):
    """A part of a composite, put together from its views."""
    out = np.full([cut.stop - cut.start for cut in part], np.nan, found.dtype)
    count = 0
    for shards in found.shards(part):
        for place, view in shards.views():
            box = tuple(slice(low, low + n) for low, n in zip(place, view.shape, strict=True))
            assert np.isnan(out[box]).all()  # nothing is copied twice
            if shards.flipped is not None:
                view = np.flip(view, tuple(shards.flipped)).conj()
            out[box] = view
            count += view.size
    assert found.full <= (count == out.size)
    return np.nan_to_num(out)  # padding


@pytest.mark.parametrize("case", CASES)
def test_composites_are_the_gathered_block(case):
    rng = random.Random(case)
    seen = set()
    for number, whole, found, source in composites(*CASES[case][:4]):
        if found is None:
            continue
        seen.add(number)
        assert found.shape == whole.shape
        sizes = found.sizes
        everything = tuple(slice(0, n) for n in sizes)
        np.testing.assert_array_equal(together(found, everything), whole.reshape(sizes))
        lows = [rng.randrange(n) for n in sizes]
        ends = [rng.randint(low + 1, n) for low, n in zip(lows, sizes, strict=True)]
        part = tuple(map(slice, lows, ends))
        np.testing.assert_array_equal(together(found, part), whole.reshape(sizes)[part])
        for _, view in found.views(part):
            assert any(np.shares_memory(view, values) for values in source.values())
        order = tuple(rng.sample(range(len(sizes)), len(sizes)))
        turned = found.turned(order)
        part = tuple(part[e] for e in order)
        expected = whole.reshape(sizes).transpose(order)[part]
        np.testing.assert_array_equal(together(turned, part), expected)
    assert seen == CASES[case][4]


def test_shards_of_one_form_come_together():
    for number, whole, found, _ in composites("fft", (4096,), (256,), {}):
        if number == 0:
            continue
        everything = tuple(slice(0, n) for n in found.sizes)
        (shards,) = found.shards(everything)  # all chunks are alike
        assert len(shards.places) == len(found.sources) == 16
        assert shards.nbytes == whole.nbytes
        for address, (_, view) in zip(shards.addresses, shards.views(), strict=True):
            assert address == view.ctypes.data


@pytest.mark.parametrize("factors", [
    ((3, 4, 5), (16,)), ((60,), (2, 8)), ((6, 10), (4, 4)),
    ((2, 30), (16,)), ((5, 2, 6), (2, 2, 4)),  # source blocks end after 20, within a factor
])
def test_dimensions_are_taken_apart(factors):
    fits = 0
    for number, whole, found, _ in composites("fft2", (60, 48), (20, 48), {}):
        if number == 0:  # rows, as they come
            continue
        apart = found.split(factors)
        fits += 1
        sizes = tuple(n for split in factors for n in split)
        assert apart.shape == sizes
        part = tuple(slice(0, n) for n in sizes)
        np.testing.assert_array_equal(together(apart, part), whole.reshape(sizes))
        part = tuple(slice(n // 3, n - n // 4) for n in sizes)
        np.testing.assert_array_equal(together(apart, part), whole.reshape(sizes)[part])
    assert fits > 0


def test_slices_of_a_dimension_made_of_several_edges():
    """The natural order of a split axis: k = k1 + N1*k2, where k1 goes from block to block."""
    checked = 0
    for number, whole, found, _ in composites("fft", (4096,), (512,), {"rounds": [64, 64]}):
        if number == 2:
            assert (found.groups, found.sizes) == ((2,), (8, 64))
            assert found.part((slice(0, 512),)) == (slice(0, 8), slice(0, 64))
            assert found.part((slice(0, 64),)) is None
            assert found.split(((8, 64),)) is None
            assert not found.falls
            assert found.turned(found.order).falls
            checked += 1
            assert whole.shape == (512,)
    assert checked == 8


def test_other_dtypes_and_gaps_are_gathered():
    x = da.zeros((60, 48), chunks=(13, 48), dtype="c16")
    exchange = plan(x, "fft2").exchanges[1]
    map_ = ExchangeMap(exchange.source, exchange.target)
    block = next(iter(exchange.target.indices()))
    shape = exchange.target.shape(block)
    narrow = {b: np.zeros(exchange.source.shape(b), "c8") for b in exchange.source.indices()}
    found = Gathering(map_, block, shape, np.dtype("c16"), narrow.__getitem__)
    assert found.composite() is None
