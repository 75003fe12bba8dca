"""Other sampling rates in one plan: every carrier, device and check, against NumPy and SciPy."""

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.signal
from lazy import plans_of

from dask_bigfft import signal
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.strategies import random_array

#: Shapes, chunks, and factors by axis; the new lengths are even, odd and 1.
DOWNSAMPLED = [
    ((64,), (64,), {0: 4}),
    ((30,), (7,), {0: 2}),
    ((12, 30), (5, 7), {0: 3, 1: 2}),
    ((12, 30), (5, 7), {1: 5}),
    ((16, 18, 20), (4, 18, 20), {0: 2, 1: 3, 2: 2}),
    ((16, 8, 8), (4, 8, 8), {1: 2, 2: 4}),
    ((7, 1, 12), (2, 1, 5), {0: 7, 2: 4}),
    ((4, 6, 4, 3, 8), (2, 3, 2, 2, 3), {0: 2, 1: 3, 2: 2, 4: 2}),
]

#: Shapes, chunks, axis and new length.
RESAMPLED = [
    ((40,), (40,), 0, 25),
    ((40,), (9,), 0, 26),
    ((41,), (9,), 0, 60),
    ((40,), (9,), 0, 64),
    ((3, 17), (1, 17), 1, 40),
    ((6, 31), (2, 8), 1, 7),
    ((1, 2), (1, 1), 1, 1),
    ((5, 1, 9), (2, 1, 9), 2, 2),
    ((41,), (9,), 0, 40),
    ((9, 3), (9, 2), 0, 8),
    ((4, 3), (3, 3), 1, 2),
]

#: Dtypes and errors relative to the largest value.
DTYPES = [("f8", 1e-13), ("c16", 1e-13), ("f4", 1e-5), ("c8", 1e-5), ("i2", 1e-13)]


def split(**settings):
    """Plans as for large arrays: nothing is gathered whole that can be split."""
    small = {"bigfft.planner.small": 0, "bigfft.planner.whole-axis-floor": 1}
    return dask.config.set({**small, **settings, "scheduler": "sync"})


def require_close(result, expected, error):
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=0, atol=error * np.abs(expected).max())


def every_sample(x, factors):
    """Every q-th sample of an array without higher frequencies, in double precision."""
    limited = x.astype("c16")
    for axis, factor in factors.items():
        n = x.shape[axis]
        index = np.fft.fftfreq(n, 1 / n).round()
        shape = [-1 if a == axis else 1 for a in range(x.ndim)]
        is_low = (2 * np.abs(index) * factor <= n).reshape(shape)
        limited = np.fft.ifft(np.fft.fft(limited, axis=axis) * is_low, axis=axis)
    index = tuple(slice(None, None, factors.get(axis)) for axis in range(x.ndim))
    return limited[index] if x.dtype.kind == "c" else limited[index].real


@pytest.mark.parametrize(("dtype", "error"), DTYPES)
@pytest.mark.parametrize(("shape", "chunks", "factors"), DOWNSAMPLED)
def test_every_sample(
    shape,
    chunks,
    factors,
    dtype,
    error,
):
    x = random_array(shape, dtype, 1)
    a = da.from_array(x, chunks=chunks)
    with split():
        lazy = signal.downsample(a, list(factors.values()), list(factors))
        (plan,) = plans_of(lazy)
        result = lazy.compute()
    assert lazy.dtype == result.dtype
    assert plan.spec.lengths_back
    require_close(result, every_sample(x, factors), error)


@pytest.mark.parametrize(("dtype", "error"), DTYPES)
@pytest.mark.parametrize(("shape", "chunks", "axis", "num"), RESAMPLED)
def test_other_rates(
    shape,
    chunks,
    axis,
    num,
    dtype,
    error,
):
    x = random_array(shape, dtype, 2)
    wide = x.astype("c16" if x.dtype.kind == "c" else "f8")
    for window in (None, "hann"):
        with split():
            lazy = signal.resample(da.from_array(x, chunks=chunks), num, axis=axis, window=window)
            result = lazy.compute()
        expected = scipy.signal.resample(wide, num, axis=axis, window=window)
        require_close(result, expected, error)


@pytest.mark.pairs
@pytest.mark.parametrize("verify", ["none", "energy", "checksum"])
@pytest.mark.parametrize("carrier", ["shared", "tasks", "disk"])
@pytest.mark.parametrize("dtype", ["f8", "c8"])
def test_carriers_and_checks(dtype, carrier, verify, tmp_path):
    x = random_array((16, 18, 20), dtype, 3)
    settings = {"bigfft.exchange.carrier": carrier, "bigfft.scratch.directory": str(tmp_path)}
    a = da.from_array(x, chunks=(4, 6, 20))
    with split(**settings):
        fewer = signal.downsample(a, (2, 3, 5), verify=verify, chunks=(8, 2, 4))
        assert fewer.chunks == ((8,), (2,) * 3, (4,))
        more = signal.resample(a, 27, axis=1, verify=verify)
        one_less = signal.resample(a[..., :19], 18, axis=2, verify=verify)
        fewer, more, one_less = dask.compute(fewer, more, one_less)
    error = 1e-5 if dtype == "c8" else 1e-13
    require_close(fewer, every_sample(x, {0: 2, 1: 3, 2: 5}), error)
    wide = x.astype("c16" if dtype == "c8" else "f8")
    require_close(more, scipy.signal.resample(wide, 27, axis=1), error)
    require_close(one_less, scipy.signal.resample(wide[..., :19], 18, axis=2), error)


@pytest.mark.parametrize("device", ["gpu", "hybrid"])
@pytest.mark.parametrize("dtype", ["f8", "c8"])
@pytest.mark.parametrize(("shape", "chunks", "factors"), DOWNSAMPLED)
def test_on_devices(
    shape,
    chunks,
    factors,
    dtype,
    device,
):
    x = random_array(shape, dtype, 4)
    limits = TileLimits(0, least=256, run_nbytes=64)
    with split(), simulated_devices(1 << 14, limits=limits):
        a = da.from_array(x, chunks=chunks)
        lazy = signal.downsample(a, list(factors.values()), list(factors), device=device)
        result = lazy.compute()
    require_close(result, every_sample(x, factors), 1e-5 if dtype == "c8" else 1e-13)


@pytest.mark.parametrize("device", ["gpu", "hybrid"])
@pytest.mark.parametrize(("shape", "chunks", "axis", "num"), RESAMPLED)
def test_other_rates_on_devices(shape, chunks, axis, num, device):
    x = random_array(shape, "f8", 5)
    limits = TileLimits(0, least=256, run_nbytes=64)
    with split(), simulated_devices(1 << 14, limits=limits):
        a = da.from_array(x, chunks=chunks)
        result = signal.resample(a, num, axis=axis, device=device).compute()
    require_close(result, scipy.signal.resample(x, num, axis=axis), 1e-13)


def test_less_is_exchanged():
    """An axis is cropped where it is transformed."""
    x = da.zeros((256, 256, 256), chunks=(32, 256, 256), dtype="f4")
    lazy = signal.downsample(x, 4)
    (plan,) = plans_of(lazy)
    assert plan.expected.bytes_exchanged <= x.nbytes / 8
    assert lazy.chunks == ((8,) * 8, (64,), (64,))


def test_where_one_axis_is_transformed_the_product_stands_at_the_end_of_its_round():
    lazy = signal.resample(da.zeros((8, 100), chunks=(2, 100)), 50, axis=1)
    (plan,) = plans_of(lazy)
    assert plan.notation == "{X H} {X'}"
    assert not plan.travelling
    assert "after the product" in " ".join(plan.explain().split())
