"""Gathering a block by several threads: the block that one thread gathers."""

import dask.array as da
import numpy as np
import pytest

from dask_bigfft import plan
from dask_bigfft.exchange.gather import view_of
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.kernels import views


def gathered(exchange, source, threads):
    """All target blocks of an exchange, from blocks whose elements are all different."""
    map_, dtype = ExchangeMap(exchange.source, exchange.target, exchange.mirror), exchange.dtype
    for block in exchange.target.indices():
        shape = exchange.target.shape(block)
        found = view_of(map_, block, shape, np.dtype(dtype), source.__getitem__)
        yield found.gather(threads=threads)


@pytest.mark.parametrize(
    ("name", "shape", "chunks", "keywords"),
    [
        ("fft", (64, 40), (16, 7), {"axis": 0}),
        ("fftn", (48, 40), (13, 11), {"s": (50, 40), "axes": (0, 1)}),
        ("rfft", (4096,), (512,), {}),
        ("irfft", (2049,), (256,), {}),
        ("fft", (4096,), (512,), {"order": "transposed"}),
    ],
)
@pytest.mark.parametrize("threads", [2, 5])
def test_threads_gather_what_one_does(monkeypatch, name, shape, chunks, keywords, threads):
    monkeypatch.setattr(views, "SHARED_NBYTES", 0)
    x = da.zeros(shape, chunks=chunks, dtype="f8" if name == "rfft" else "c16")
    for exchange in plan(x, name, **keywords).exchanges:
        rng, source = np.random.default_rng(2), {}
        for block in exchange.source.indices():
            values = rng.standard_normal(exchange.source.shape(block)).astype(exchange.dtype)
            source[block] = values
        pairs = zip(gathered(exchange, source, 1), gathered(exchange, source, threads), strict=True)
        for one, several in pairs:
            np.testing.assert_array_equal(one, several)
