"""Transfer functions and second arrays on GPUs: one plan, and the answers of NumPy and SciPy."""

import dask.array as da
import numpy as np
import pytest
import scipy.signal
from devices.blocks import NEEDS_GPU

from dask_bigfft import plan, signal
from dask_bigfft.errors import ArgumentError
from dask_bigfft.gpu.cuda import cupy
from dask_bigfft.graph.layer import transforms_in
from dask_bigfft.signal import convolution
from dask_bigfft.testing.strategies import random_array

pytestmark = NEEDS_GPU

#: Shapes and chunks of the input, and chunks of a transfer function.
GRIDS = [
    ((64, 32, 48), (64, 32, 48), (64, 32, 48)),
    ((64, 32, 48), (16, 32, 48), (64, 32, 5)),
    ((64, 32, 48), (16, 16, 24), (10, 32, 25)),
    ((1 << 14,), (1 << 11,), (1000,)),
    ((45, 63), (10, 63), (45, 7)),
    ((17, 1, 9), (5, 1, 9), (17, 1, 9)),
    ((512, 1024), (128, 1024), (512, 100)),
]


def on_gpu(array, chunks=None):
    """Return a lazy array of CuPy blocks, or a CuPy array without chunks."""
    if chunks is None:
        return cupy().asarray(array)
    lazy = da.from_array(array, chunks=chunks)
    return lazy.map_blocks(cupy().asarray, meta=cupy().empty((0,) * array.ndim, array.dtype))


def close(result, expected):
    """Compare a result on any device with NumPy's."""
    values = result.get() if hasattr(result, "get") else result
    assert values.dtype == expected.dtype
    error = 2e-5 if values.dtype.char in "fF" else 1e-11
    np.testing.assert_allclose(values, expected, rtol=0, atol=error * np.abs(expected).max())


def filtered_by_numpy(x, h):
    axes = range(x.ndim)
    if x.dtype.kind == "c":
        return np.fft.ifftn(np.fft.fftn(x) * h).astype(x.dtype)
    return np.fft.irfftn(np.fft.rfftn(x) * h, s=x.shape, axes=axes).astype(x.dtype)


def values_for(x, dtype, seed=5):
    """Return random values that may multiply a spectrum of an array."""
    shape = x.shape
    if x.dtype.kind != "c":
        shape = (*shape[:-1], shape[-1] // 2 + 1)
        if np.dtype(dtype).kind == "c":  # the spectrum of a real array is Hermitian
            return np.fft.rfftn(random_array(x.shape, "f8", seed)).astype(dtype)
    return random_array(shape, dtype, seed)


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("x_on_gpu", [False, True])
@pytest.mark.parametrize("dtypes", ["f4 f4", "f8 c16", "c8 c8", "c16 f8", "f4 c16"])
@pytest.mark.parametrize(("shape", "chunks", "cuts"), GRIDS)
def test_a_transfer_function_on_a_gpu(shape, chunks, cuts, dtypes, x_on_gpu, lazy):
    dtype, own_dtype = dtypes.split()
    x = random_array(shape, dtype, 1)
    h = values_for(x, own_dtype)
    array = on_gpu(x, chunks) if x_on_gpu else da.from_array(x, chunks=chunks)
    if x.dtype.kind != "c":
        cuts = (*cuts[:-1], min(cuts[-1], h.shape[-1]))
    result = signal.fourier_filter(array, on_gpu(h, cuts if lazy else None))
    values = result.compute(scheduler="threads")
    assert isinstance(values, cupy().ndarray) is x_on_gpu
    close(values, filtered_by_numpy(x, h))


@pytest.mark.parametrize("x_on_gpu", [False, True])
@pytest.mark.parametrize("shape", [(1, 1, 25), (32, 1), (1,), ()])
def test_a_transfer_function_that_broadcasts(shape, x_on_gpu):
    x = random_array((64, 32, 48), "f4", 1)
    h = random_array(shape, "f4", 2)
    array = on_gpu(x, (16, 32, 48)) if x_on_gpu else da.from_array(x, chunks=(16, 32, 48))
    result = signal.fourier_filter(array, on_gpu(h))
    close(result.compute(scheduler="threads"), filtered_by_numpy(x, h))


@pytest.mark.parametrize("x_on_gpu", [False, True])
@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("shape", [(64, 32), (512, 1024)])
def test_values_that_are_not_finite(shape, lazy, x_on_gpu):
    x = random_array(shape, "c8", 1)
    h = np.ones(shape, "c8")
    h[3, 4] = np.nan
    array = on_gpu(x, (16, shape[1])) if x_on_gpu else da.from_array(x, chunks=(16, shape[1]))
    result = signal.fourier_filter(array, on_gpu(h, (8, shape[1]) if lazy else None))
    with pytest.raises(ArgumentError, match="finite"):
        result.compute(scheduler="threads")


#: Shapes and chunks of both inputs: a small kernel, two long arrays, one axis.
PAIRS = [
    ((64, 48), (16, 48), (5, 7), (5, 7)),
    ((64, 48), (16, 48), (60, 40), (20, 40)),
    ((64, 48), (64, 48), (60, 40), (60, 40)),
    ((31, 37), (10, 37), (31, 37), (31, 20)),
    ((20_000,), (3_000,), (15_001,), (4_000,)),
    ((400, 600), (100, 600), (333, 500), (100, 500)),
]


@pytest.mark.parametrize("is_long", [False, True])
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("places", [(True, True), (True, False), (False, True)])
@pytest.mark.parametrize("dtype", ["f4", "c16"])
@pytest.mark.parametrize(("shape", "chunks", "other_shape", "other_chunks"), PAIRS)
def test_second_arrays(
    monkeypatch,
    shape,
    chunks,
    other_shape,
    other_chunks,
    dtype,
    places,
    mode,
    is_long,
):
    """One plan has both transforms; a long array has rounds of its own in it."""
    if is_long:
        monkeypatch.setattr(convolution, "is_small", lambda plan, shape: False)
    x = random_array(shape, dtype, 1)
    y = random_array(other_shape, dtype, 2)
    arrays = []
    for values, cuts, is_on_gpu in ((x, chunks, places[0]), (y, other_chunks, places[1])):
        arrays.append(on_gpu(values, cuts) if is_on_gpu else da.from_array(values, chunks=cuts))
    for name in ("fftconvolve", "correlate"):
        options = {} if name == "fftconvolve" else {"method": "fft"}
        result = getattr(signal, name)(*arrays, mode=mode, **options)
        (one_plan,) = transforms_in(result).values()
        assert one_plan.spec.factor.role == "samples" or not is_long
        values = result.compute(scheduler="threads")
        expected = getattr(scipy.signal, name)(x, y, mode=mode, **options)
        close(values, expected.astype(dtype))


def test_one_plan_has_both_transforms():
    x = random_array((64, 32, 48), "f4", 1)
    array = on_gpu(x, (16, 32, 48))
    h = on_gpu(values_for(x, "f4"))
    chosen = plan(array, "fourier_filter", transfer=h)
    assert "H" in chosen.notation
