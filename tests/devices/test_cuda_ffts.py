"""FFTs by cuFFT: its batches, done by SciPy at their strides in memory, are SciPy's transforms."""

import contextlib
import math
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.fft
from devices.blocks import memory

from dask_bigfft.errors import DeviceError
from dask_bigfft.gpu import ffts, kernels
from dask_bigfft.gpu.ffts import FFTPlans, fft_calls
from dask_bigfft.gpu.operations import FFT
from dask_bigfft.testing.strategies import random_array

RNG = np.random.default_rng(5)
GUARD = 64


def elements(
    address,
    n,
    embed,
    stride,
    distance,
    count,
    dtype,
):
    """Every element of every transform of a batch, as a view of its memory."""
    steps = [math.prod(embed[axis + 1 :]) * stride for axis in range(len(n))]
    shape, steps = (count, *n), (distance, *steps)
    size = 1 + sum((length - 1) * step for length, step in zip(shape, steps, strict=True))
    flat = memory(address, (size,), dtype)
    return np.lib.stride_tricks.as_strided(flat, shape, [s * flat.itemsize for s in steps])


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


class Plan:
    """A plan of cuFFT's that is done by SciPy."""

    handle = 0

    def __init__(
        self,
        n,
        source,
        target,
        kind,
        count,
    ):
        self.n = n
        self.sides = (source, target)
        self.kind = kind
        self.count = count

    def fft(self, come, go, direction):
        half = (*self.n[:-1], self.n[-1] // 2 + 1)
        ends = []
        for side, array, kind in zip(self.sides, (come, go), self.kind.split("2"), strict=True):
            real = kind in "DR"
            assert array.data.ptr % (16 if kind in "DZ" else 8) == 0  # cuFFT refuses others
            n = self.n if real or self.kind in ("Z2Z", "C2C") else half
            dtype = {
                "Z": "c16",
                "C": "c8",
                "D": "f8",
                "R": "f4",
            }[kind]
            ends.append(elements(array.data.ptr, n, *side, self.count, dtype))
        x, y = ends
        if self.kind in ("D2Z", "R2C"):
            y[...] = scipy.fft.rfft(x, axis=1)
        elif self.kind in ("Z2D", "C2R"):
            y[...] = scipy.fft.irfft(
                x,
                self.n[0],
                axis=1,
                norm="forward",
            )
        else:
            y[...] = scipy.fft.fftn(x, axes=range(1, x.ndim))


class GPU:
    """As much of CuPy as FFTs take; counts the plans of each kind, and how often it waits."""

    def __init__(self, plan_nbytes=0):
        self.plans = Counter()
        self.waits = 0
        self.free = 1 << 30
        self.plan_nbytes = plan_nbytes
        self.allocate = None
        kinds = {f"CUFFT_{name}": name for name in ("C2C", "R2C", "C2R", "Z2Z", "D2Z", "Z2D")}
        stream = SimpleNamespace(synchronize=self.wait)
        pointers = {"UnownedMemory": lambda at, n, owner: n, "MemoryPointer": lambda n, at: n}
        self.cuda = SimpleNamespace(
            cufft=SimpleNamespace(
                PlanNd=self.plan, XtPlanNd=self.wide, CUFFT_FORWARD=-1, CUFFT_INVERSE=1, **kinds
            ),
            memory=SimpleNamespace(**pointers),
            Stream=SimpleNamespace(null=stream),
            runtime=SimpleNamespace(memGetInfo=lambda: (self.free, 1 << 30)),
            using_allocator=self.using,
            get_current_stream=lambda: None,
        )

    def wait(self):
        self.waits += 1

    @contextlib.contextmanager
    def using(self, allocate):
        self.allocate = allocate
        yield
        self.allocate = None

    def plan(self, n, e0, s0, d0, e1, s1, d1, kind, count, *rest):
        self.plans["of 32 bits"] += 1
        if self.plan_nbytes:
            assert self.allocate(1000) == 1000
        self.free -= self.plan_nbytes
        return Plan(
            n,
            (e0, s0, d0),
            (e1, s1, d1),
            kind,
            count,
        )

    def wide(self, *arguments, **keywords):
        self.plans["of 64 bits"] += 1
        return Plan(*[None] * 5)


@pytest.fixture
def gpu(monkeypatch):
    stand_in = GPU()
    monkeypatch.setattr(ffts, "cupy", lambda: stand_in)
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
    assert [own.prepare(op) for op in (*ops[:3], ops[0])] == [1024] * 4
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
