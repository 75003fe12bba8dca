"""Blocks as composites of their sources: the gathered block, in views of what is there."""

import random

import dask.array as da
import numpy as np
import pytest

from dask_bigfft import plan
from dask_bigfft.exchange.gather import view_of
from dask_bigfft.exchange.shards import ExchangeMap

TWO, BOTH = [{0: 12, 1: 10}, {1: 12}], [{0: 4, 1: 8}, {0: 6, 1: 8}]

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
    "half of two axes": ("irfft2", (12, 61), (5, 13), {"rounds": TWO}, {0, 1, 2}),
    "1D, padded far": ("fft", (100,), (30,), {"rounds": [64, 64], "n": 4096}, {0, 1, 2}),
    "rows, padded": ("fft2", (20, 60), (7, 11), {"rounds": BOTH, "s": (24, 64)}, {0, 1, 2}),
}


def segmented_views(name, shape, chunks, keywords):
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
            view = view_of(map_, block, dtype, source.__getitem__)
            boxes = view.boxes(False)
            yield number, view.gather(), None if boxes is None else boxes.around, source


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
    for number, whole, found, source in segmented_views(*CASES[case][:4]):
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
        for _, view in found.views():
            assert any(np.shares_memory(view, values) for values in source.values())
        order = tuple(rng.sample(range(len(sizes)), len(sizes)))
        turned = found.turned(order)
        part = tuple(part[e] for e in order)
        expected = whole.reshape(sizes).transpose(order)[part]
        np.testing.assert_array_equal(together(turned, part), expected)
    assert seen == CASES[case][4]
