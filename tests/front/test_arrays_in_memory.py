"""Transforms of NumPy arrays: values of the call, copied by several threads."""

import dask
import dask.array as da
import numpy as np
import pytest

from dask_bigfft import fft
from dask_bigfft.graph.assembly import SHARED_NBYTES

#: Bytes of a chunk, so that the arrays here have several.
CHUNK_NBYTES = 1 << 21

SHAPES = [(1_080_000,), (1, 1_100_000), (1031, 1021), (3, 101, 61, 67, 1)]


def array_of(shape, dtype="f4"):
    """Return random numbers."""
    rng = np.random.default_rng(len(shape))
    values = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
    return values.astype(dtype) if np.dtype(dtype).kind == "c" else values.real.astype(dtype)


LAYOUTS = {
    "contiguous": lambda x: x,
    "by columns": np.asfortranarray,
    "reversed": lambda x: x[::-1],
    "every second": lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
}


@pytest.mark.pairs
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["f4", "c16", ">f8"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_array_is_copied_in_blocks(shape, dtype, layout):
    x = LAYOUTS[layout](array_of(shape, dtype))
    assert x.nbytes >= SHARED_NBYTES
    x.flags.writeable = False
    with dask.config.set({"array.chunk-size": CHUNK_NBYTES, "scheduler": "threads"}):
        chunks = fft.fftshift(x).chunks
        of_dask = fft.fft(da.from_array(x, chunks=chunks), axis=0)
        lazy = fft.fft(x, axis=0)
        expected = of_dask.compute()
        assert lazy.chunks == of_dask.chunks
        assert lazy.dtype == of_dask.dtype
        np.testing.assert_array_equal(lazy.compute(), expected)
        np.testing.assert_array_equal(lazy.compute(), expected)  # the copy is only read, too


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_blocks_are_equal_parts_of_the_first_axis_if_it_is_long_enough(shape):
    x = array_of(shape)
    with dask.config.set({"array.chunk-size": CHUNK_NBYTES}):
        chunks = fft.fftshift(x).chunks
        of_dask = da.from_array(x).chunks
    if x.nbytes > len(x) * CHUNK_NBYTES:
        assert chunks == of_dask
        return
    assert chunks[1:] == tuple((n,) for n in shape[1:])
    assert max(chunks[0]) - min(chunks[0]) <= 1
    assert x[: max(chunks[0])].nbytes < 1.01 * CHUNK_NBYTES


@pytest.mark.parametrize("overwrite_x", [False, True])
def test_the_result_is_that_of_the_values_at_the_call(overwrite_x):
    x = array_of((1031, 1021), "c8")
    expected = np.fft.fftn(x)
    lazy = fft.fftn(x, overwrite_x=overwrite_x)
    x[:] = 0
    distance = np.linalg.norm(lazy.compute(scheduler="threads") - expected)
    assert distance < 1e-6 * np.linalg.norm(expected)
    assert not x.any()
