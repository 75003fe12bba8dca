"""Small transforms are done in one block each, by one task that needs no shards."""

import dask
import dask.array as da
import numpy as np
import pytest

from dask_bigfft import fft

CALLS = [
    ("rfft", (100_000,), 10_000, 1),
    ("ifft", (10_007,), 1001, 1),
    ("fft2", (20, 50, 50), (1, 25, 25), 20),
    ("irfftn", (30, 7, 11), (7, 4, 5), 1),
]


@pytest.mark.parametrize("carrier", ["auto", "tasks"])
@pytest.mark.parametrize(("kind", "shape", "chunks", "blocks"), CALLS)
def test_one_block_for_each(
    carrier,
    kind,
    shape,
    chunks,
    blocks,
):
    a = np.random.default_rng(3).standard_normal(shape)
    ours = getattr(fft, kind)
    x = da.from_array(a, chunks=chunks)
    with dask.config.set({"bigfft.planner.small": "8 MiB", "bigfft.exchange.carrier": carrier}):
        y = ours(x)
        preserved = ours(x, chunks="preserve")
        large = fft.fft(da.zeros(2**24, chunks=2**20))
        assert [z.npartitions for z in (y, preserved, large)] == [blocks, x.npartitions, 16]
        assert sum("bigfft" in key[0] for key in dict(y.dask) if isinstance(key, tuple)) == blocks
        both = np.stack(dask.compute(y, preserved))
        wanted = getattr(np.fft, kind)(a)
    np.testing.assert_allclose(
        both,
        [wanted, wanted],
        rtol=1e-12,
        atol=1e-11,
    )
