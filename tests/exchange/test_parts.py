"""Blocks as slabs of their sources: the gathered block, in views of what is there."""

import dask.array as da
import numpy as np
import pytest

from dask_bigfft import plan
from dask_bigfft.exchange.gather import Gathering
from dask_bigfft.exchange.shards import ExchangeMap

CASES = {
    "columns of slabs": ("fft2", (60, 48), (13, 48), {}),
    "3D": ("fftn", (16, 12, 20), (5, 12, 20), {}),
    "rows of columns": ("fft2", (60, 48), (60, 11), {}),
    "pencils": ("fftn", (16, 12, 20), (5, 7, 20), {}),
    "1D": ("fft", (4096,), (500,), {"rounds": [64, 64]}),
    "1D transposed": ("fft", (4096,), (512,), {"rounds": [64, 64], "order": "transposed"}),
    "real": ("rfft", (4096,), (512,), {"rounds": [64, 64]}),
    "padded": ("fft2", (60, 48), (13, 48), {"s": (64, 50)}),
}


@pytest.mark.parametrize("case", CASES)
def test_slabs_make_up_the_gathered_block(case):
    name, shape, chunks, keywords = CASES[case]
    x = da.zeros(shape, chunks=chunks, dtype="f8" if name == "rfft" else "c16")
    found_any = False
    for exchange in plan(x, name, **keywords).exchanges:
        rng, dtype = np.random.default_rng(1), np.dtype(exchange.dtype)
        source = {
            block: rng.standard_normal(exchange.source.shape(block)).astype(dtype)
            for block in exchange.source.indices()
        }
        map_ = ExchangeMap(exchange.source, exchange.target, exchange.mirror)
        for block in exchange.target.indices():
            shape_ = exchange.target.shape(block)
            gathering = Gathering(map_, block, shape_, dtype, source.__getitem__)
            slabs = gathering.slabs()
            if slabs is None:
                continue
            found_any = True
            dim = next((d for d, n in enumerate(shape_) if n > 1), 0)
            ends = [begin + part.shape[dim] for begin, part in slabs]
            assert [begin for begin, _ in slabs] == [0, *ends[:-1]]
            together = np.concatenate([part for _, part in slabs], axis=dim)
            np.testing.assert_array_equal(together, gathering.whole())
            for _, part in slabs:
                assert any(np.shares_memory(part, found) for found in source.values())
                steps = [s for n, s in zip(part.shape, part.strides, strict=True) if n > 1]
                assert steps == sorted(steps, reverse=True)
    # a split axis is stored in another order than it comes in, padding lies nowhere
    assert found_any == (case in ("columns of slabs", "3D", "rows of columns", "pencils"))


def test_other_dtypes_and_gaps_are_gathered():
    x = da.zeros((60, 48), chunks=(13, 48), dtype="c16")
    exchange = plan(x, "fft2").exchanges[1]
    map_ = ExchangeMap(exchange.source, exchange.target)
    block = next(iter(exchange.target.indices()))
    shape = exchange.target.shape(block)
    narrow = {b: np.zeros(exchange.source.shape(b), "c8") for b in exchange.source.indices()}
    found = Gathering(map_, block, shape, np.dtype("c16"), narrow.__getitem__)
    assert found.slabs() is None
