"""Filters of blocks in host memory and on cards: NumPy's answers, and errors that name a value."""

import dask.array as da
import numpy as np
import pytest
from devices.blocks import NEEDS_GPU

from dask_bigfft import signal
from dask_bigfft.errors import ArgumentError
from dask_bigfft.gpu import dispatch
from dask_bigfft.gpu.cuda import cupy
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.testing.strategies import random_array

pytestmark = NEEDS_GPU

KIB = 1 << 10

#: Shapes and chunks: one block, slabs, cubes, one axis in blocks, odd lengths.
CASES = [
    ((64, 32, 48), (64, 32, 48)),
    ((64, 32, 48), (16, 32, 48)),
    ((64, 32, 48), (16, 16, 24)),
    ((1 << 14,), (1 << 11,)),
    ((45, 63), (10, 63)),
]


@pytest.fixture(autouse=True)
def small_pieces():
    """Devices that are opened here cut small blocks, too, and are closed at the end."""
    dispatch.use(None, TileLimits(0, least=16 * KIB))
    yield
    dispatch.use(None)


def delayed(*frequencies):
    """A complex and Hermitian function of all axes."""
    phase = sum((0.7 + i) * f for i, f in enumerate(frequencies))
    return np.exp(-2j * np.pi * phase) / (1.5 + sum(f**2 for f in frequencies))


def inverse(*frequencies):
    """Not finite at zero."""
    return 1 / sum(f**2 for f in frequencies)


def check(x, result):
    """Compare with the same filter of blocks in host memory by NumPy, on the CPU."""
    expected = signal.fourier_filter(da.from_array(x, chunks=x.shape), delayed, device="cpu")
    expected = expected.compute(scheduler="sync")
    error = 1e-5 if x.dtype.char in "fF" else 1e-12
    np.testing.assert_allclose(result, expected, rtol=0, atol=error * np.abs(expected).max())


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("nbytes", [None, 512 * KIB])
@pytest.mark.parametrize(("shape", "chunks"), CASES)
def test_blocks_in_host_memory(shape, chunks, nbytes, dtype):
    x = random_array(shape, dtype, 1)
    lazy = signal.fourier_filter(
        da.from_array(x, chunks=chunks),
        delayed,
        device="gpu",
        device_memory_limit=nbytes,
    )
    check(x, lazy.compute(scheduler="threads"))


@pytest.mark.parametrize("dtype", ["f4", "c16"])
@pytest.mark.parametrize(("shape", "chunks"), CASES)
def test_blocks_on_a_card(shape, chunks, dtype):
    x = random_array(shape, dtype, 2)
    on_card = da.from_array(x, chunks=chunks).map_blocks(cupy().asarray)
    result = signal.fourier_filter(on_card, delayed).compute(scheduler="threads")
    assert isinstance(result, cupy().ndarray)
    check(x, result.get())


@pytest.mark.parametrize("lives_on_card", [False, True])
@pytest.mark.parametrize(("shape", "chunks"), CASES)
def test_values_that_are_not_finite(shape, chunks, lives_on_card):
    def only_at_a_quarter(*frequencies):
        is_quarter = 1.0
        for f in frequencies:
            is_quarter = is_quarter * (f == 0.25)
        return 1 / (1 - is_quarter)

    x = da.from_array(random_array(shape, "c16", 3), chunks=chunks)
    options = {} if lives_on_card else {"device": "gpu"}
    if lives_on_card:
        x = x.map_blocks(cupy().asarray)
    lengths = tuple(4 * (n // 4) for n in shape)
    lazy = signal.fourier_filter(x, only_at_a_quarter, s=lengths, **options)
    with pytest.raises(ArgumentError, match=r"transfer.*0\.25"):
        lazy.compute(scheduler="threads")


def test_a_value_at_zero():
    x = random_array((32, 48), "f8", 4)
    on_card = da.from_array(x, chunks=(8, 48)).map_blocks(cupy().asarray)
    result = signal.fourier_filter(on_card, inverse, at_zero=0).compute(scheduler="threads")
    lazy = signal.fourier_filter(da.from_array(x), inverse, at_zero=0, device="cpu")
    np.testing.assert_allclose(result.get(), lazy.compute(scheduler="sync"), atol=1e-10)
