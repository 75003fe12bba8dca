"""FFTs by cuFFT: its batches, done by SciPy at their strides in memory, are SciPy's transforms."""

import math

import numpy as np
import pytest
import scipy.fft
from devices.blocks import memory
from devices.cufft import GPU

from dask_bigfft.errors import DeviceError
from dask_bigfft.gpu import batches, ffts, kernels, work_areas
from dask_bigfft.gpu.ffts import FFTPlans, fft_calls
from dask_bigfft.gpu.operations import FFT
from dask_bigfft.testing.strategies import random_array

RNG = np.random.default_rng(5)
GUARD = 64


def copied(dims, itemsize, source, target, **_):
    """Do what a kernel copies."""
    shape = [n for n, *_ in dims]
    views = []
    for side, address in ((1, source), (2, target)):
        steps = [dim[side] for dim in dims]
        size = 1 + sum((n - 1) * step for n, step in zip(shape, steps, strict=True))
        flat = memory(address, (size,), f"V{itemsize}")
        views.append(np.lib.stride_tricks.as_strided(flat, shape, [s * itemsize for s in steps]))
    views[1][...] = views[0]


@pytest.fixture
def gpu(monkeypatch):
    stand_in = GPU(least_nbytes=256)
    for module in (batches, ffts, work_areas):
        monkeypatch.setattr(module, "cupy", lambda: stand_in)
    monkeypatch.setattr(ffts, "work_areas", work_areas.GivenWorkAreas)  # which pass the self-test
    monkeypatch.setattr(work_areas, "_library", lambda: stand_in)
    monkeypatch.setattr(kernels, "copy", copied)
    return stand_in


def aligned(nbytes):
    """Bytes that begin where a GPU's memory would, all of them set."""
    values = np.full(nbytes + 256, 0xFF, np.uint8)
    first = -values.ctypes.data % 256
    return values[first : first + nbytes]


def executed(
    kind,
    x,
    shape,
    dims,
    double=True,
    plans=None,
):
    """The transform of an array, of which nothing beside the result and the work area changes."""
    plans, complex_ = plans or FFTPlans(), np.dtype("c16" if double else "c8")
    op = FFT(
        kind,
        x.shape,
        shape,
        dims,
        1 if kind == "c2r" else -1,
        complex_.str,
    )
    work = aligned(plans.prepare(op) + GUARD)
    goes = complex_ if kind != "c2r" else np.empty(0, complex_).real.dtype
    source, target = (
        aligned(n * size) for n, size in ((x.size, x.itemsize), (math.prod(shape), goes.itemsize))
    )
    source.view(x.dtype)[:] = x.ravel()
    plans.fft(
        op,
        source.ctypes.data,
        target.ctypes.data,
        work.ctypes.data,
    )
    assert (work[-GUARD:] == 0xFF).all()
    return target.view(goes).reshape(shape)


def values(shape, dtype="c16"):
    return random_array(shape, dtype, RNG)


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((6,), (0,)),
        ((4, 6), (0,)),
        ((4, 6), (1,)),
        ((4, 6), (0, 1)),
        ((3, 4, 6), (1,)),
        ((6, 4, 3), (1,)),
        ((2, 3, 4, 5), (1, 2)),
        ((2, 3, 4, 5), (0, 2)),
        ((2, 3, 4, 5), (0, 1)),
        ((2, 3, 4, 5), (2, 3)),
        ((2, 3, 2, 2, 3), (0, 1, 2, 3, 4)),
        ((2, 3, 2, 2, 3), (0, 1, 3, 4)),
        ((1, 7, 1), (1,)),
        ((5, 1, 5), (0, 1, 2)),
    ],
)
def test_complex_batches(gpu, shape, dims):
    x = values(shape)
    np.testing.assert_allclose(
        executed("c2c", x, shape, dims), scipy.fft.fftn(x, axes=dims), atol=1e-12
    )


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize(
    ("shape", "dim"),
    [
        ((8,), 0),
        ((3, 8, 2), 1),
        ((2, 9, 5), 1),
        ((7, 9, 3), 1),
        ((9, 9, 2), 1),
        ((7, 5, 3), 1),
        ((5, 3), 0),
    ],
)
def test_real_batches(
    gpu,
    shape,
    dim,
    double,
):
    """Each begins at a place that cuFFT takes, or is staged."""
    x = RNG.standard_normal(shape).astype("f8" if double else "f4")
    half = (*shape[:dim], shape[dim] // 2 + 1, *shape[dim + 1 :])
    close = 1e-12 if double else 1e-4
    spectrum = executed(
        "r2c",
        x,
        half,
        (dim,),
        double,
    )
    np.testing.assert_allclose(spectrum, scipy.fft.rfft(x, axis=dim), atol=close)
    back = executed(
        "c2r",
        spectrum,
        shape,
        (dim,),
        double,
    )
    np.testing.assert_allclose(back, shape[dim] * x, atol=10 * close)


def test_the_work_area_of_large_batches_is_bounded(gpu):
    for shape, dims in (
        ((96, 64), (1,)),
        ((64, 96), (0,)),
        ((7, 3, 40, 20), (2, 3)),
        ((4, 6, 90), (0, 1)),
        ((1024,), (0,)),
        ((13, 96), (1,)),
    ):
        calls = fft_calls(FFT("c2c", shape, shape, dims, -1, "<c16"), 1 << 12)
        for call in calls:
            assert call.batch.count == 1 or 16 * math.prod(call.batch.n) * call.batch.count <= 4096
        assert sum(call.times for call in calls) > 1 or shape == (1024,)
        x = values(shape)
        expected = scipy.fft.fftn(x, axes=dims)
        transformed = executed(
            "c2c",
            x,
            shape,
            dims,
            plans=FFTPlans(1 << 12),
        )
        np.testing.assert_allclose(transformed, expected, atol=1e-11)


def test_plans_are_made_once_and_before_they_are_needed(gpu):
    """Their tables come in the null stream; their work area is lent at the call."""
    own = FFTPlans(max_plans=3)
    gpu.plan_nbytes = 96
    ops = [FFT("c2c", (n, 8), (n, 8), (1,), -1, "<c16") for n in range(2, 6)]
    assert [own.prepare(op) for op in (*ops[:3], ops[0])] == [256, 512, 512, 256]
    assert gpu.plans == {"of 32 bits": 3}
    assert gpu.waits == 3
    assert own.taken == 3 * 96
    own.prepare(ops[3])  # beside the others: what is under way may need them all
    assert own.taken == 4 * 96
    own.trim()  # without the one that was needed longest ago
    assert own.taken == 3 * 96
    own.prepare(ops[0])
    assert gpu.plans == {"of 32 bits": 4}
    own.drop()
    assert own.taken == 0
    with pytest.raises(DeviceError, match="no plan was made"):
        own.fft(ops[0], 0, 0, 0)


def test_sizes_of_64_bits_have_plans_of_their_own(gpu):
    FFTPlans(1 << 62).prepare(FFT("c2c", (1 << 28, 16), (1 << 28, 16), (1,), -1, "<c8"))
    assert gpu.plans == {"of 64 bits": 1}
    assert gpu.waits == 1
