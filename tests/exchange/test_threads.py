"""Gathering a block by several threads: the block that one thread gathers."""

import dask.array as da
import numpy as np
import pytest

from dask_bigfft import plan
from dask_bigfft.exchange import gather
from dask_bigfft.exchange.shards import ExchangeMap


def gathered(exchange, source, threads):
    """All target blocks of an exchange, from blocks whose elements are all different."""
    map_, dtype = ExchangeMap(exchange.source, exchange.target, exchange.mirror), exchange.dtype
    for block in exchange.target.indices():
        shape = exchange.target.shape(block)
        found = gather.Gathering(map_, block, shape, np.dtype(dtype), source.__getitem__)
        yield found.whole(threads=threads)


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
    monkeypatch.setattr(gather, "SHARED_NBYTES", 0)
    x = da.zeros(shape, chunks=chunks, dtype="f8" if name == "rfft" else "c16")
    shared = []
    original = gather.Gathering._shared_dim

    def watched(self, threads, nbytes):
        found = original(self, threads, nbytes)
        shared.append(found is not None)
        return found

    monkeypatch.setattr(gather.Gathering, "_shared_dim", watched)
    for exchange in plan(x, name, **keywords).exchanges:
        rng, source = np.random.default_rng(2), {}
        for block in exchange.source.indices():
            values = rng.standard_normal(exchange.source.shape(block)).astype(exchange.dtype)
            source[block] = values
        pairs = zip(gathered(exchange, source, 1), gathered(exchange, source, threads), strict=True)
        for one, several in pairs:
            np.testing.assert_array_equal(one, several)
    assert any(shared)
