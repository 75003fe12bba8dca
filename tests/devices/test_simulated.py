"""The simulated device: what is left open goes wrong, what is not is NumPy's answer."""

import numpy as np
import pytest
import scipy.fft

from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.gpu.operations import (
    FFT,
    ChirpFactor,
    DeviceArray,
    Multiply,
    Product,
    Strided,
    Term,
    Twiddle,
    transposed,
)
from dask_bigfft.kernels.twiddle import unit_roots
from dask_bigfft.testing.simulated import SimulatedGPU

RNG = np.random.default_rng(3)
BIG = 10**9


def complex_values(*shape, dtype="c16"):
    return (RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)).astype(dtype)


def planned(device, op):
    """The work area of an FFT whose plan has been made."""
    device.synchronize_all()
    return DeviceArray(1 << 19, (device.work_nbytes(op),), "|u1")


def run(compute, x, out_shape=None, out_dtype=None, others=()):
    """Result of one operation on an array, through the device."""
    device = SimulatedGPU(1 << 20)
    device.reserve(1 << 20)
    streams = device.stream("h2d"), device.stream("compute"), device.stream("d2h")
    loaded, done = device.event("loaded"), device.event("done")
    source = DeviceArray(0, x.shape, x.dtype.str)
    out = np.empty(out_shape or x.shape, out_dtype or x.dtype)
    inside = out_shape is None and out_dtype is None
    target = source if inside else DeviceArray(1 << 18, out.shape, out.dtype.str)
    device.h2d(streams[0], x, source)
    places = []
    for i, other in enumerate(others):
        places.append(DeviceArray((1 << 19) + i * (1 << 17), other.shape, other.dtype.str))
        device.h2d(streams[0], other, places[-1])
    device.record(loaded, streams[0])
    device.wait(streams[1], loaded)
    compute(device, streams[1], source, target, *places)
    device.record(done, streams[1])
    device.wait(streams[2], done)
    device.d2h(streams[2], target, out)
    end = device.event("end")
    device.record(end, streams[2])
    device.synchronize(end)
    return out


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(("shape", "dims"), [((6, 5, 4), (1,)), ((6, 5, 4), (0, 2)), ((7,), (0,))])
def test_fft_is_scipys_without_a_scale(shape, dims, sign):
    x = complex_values(*shape)
    op = FFT("c2c", shape, shape, dims, sign, x.dtype.str)

    def compute(device, stream, source, target):
        work = planned(device, op)
        device.compute(stream, op, source, target, work)

    expected = scipy.fft.fftn(x, axes=dims)
    if sign > 0:
        expected = scipy.fft.ifftn(x, axes=dims, norm="forward")
    np.testing.assert_allclose(run(compute, x), expected, atol=1e-12)


@pytest.mark.parametrize("n", [8, 9, 1])
def test_real_ffts_go_from_one_array_to_another(n):
    x = RNG.standard_normal((3, n, 2))
    half = (3, n // 2 + 1, 2)
    there = FFT("r2c", x.shape, half, (1,), -1, "<c16")
    back = FFT("c2r", half, x.shape, (1,), 1, "<c16")

    def compute(op):
        def submit(device, stream, source, target):
            work = planned(device, op)
            device.compute(stream, op, source, target, work)

        return submit

    spectrum = run(compute(there), x, half, "c16")
    np.testing.assert_allclose(spectrum, scipy.fft.rfft(x, axis=1), atol=1e-12)
    np.testing.assert_allclose(run(compute(back), spectrum, x.shape, "f8"), n * x, atol=1e-12)


def test_multiply_makes_factors_from_terms():
    x = complex_values(4, 6, 5)
    # left: place along 1 from 6 on; right: the second digit (of 3 values) of the place along 0
    twiddle = Twiddle(97, -1, (Term(1, 6, 1, BIG, 1),), (Term(0, 5, 2, 3, 4),))
    chirp = ChirpFactor(13, 1, (Term(0, 5, 1, BIG, 2), Term(2, 0, 1, BIG, 1)))
    op = Multiply(x.shape, x.dtype.str, 0.5, True, (twiddle,), (chirp,))
    got = run(lambda device, stream, array, _: device.compute(stream, op, array, array), x)
    for (i, j, k), value in np.ndenumerate(got):
        power, n = (6 + j) * ((5 + i) // 2 % 3 * 4), (5 + i) * 2 + k
        factor = 0.5 * unit_roots(power, 97, -1) * (n < 13) * unit_roots(n * n, 26, 1)
        assert abs(value - np.conj(x[i, j, k]) * factor) < 1e-14


def test_product_repeats_and_transpose_permutes():
    x, y = complex_values(4, 3, 2), complex_values(1, 3, 1)
    op = Product(x.shape, y.shape, x.dtype.str)
    got = run(lambda d, stream, a, _, other: d.compute(stream, op, other, a), x, others=[y])
    np.testing.assert_allclose(got, x * y)
    turn = transposed(x.shape, (2, 0, 1), x.dtype.str)
    got = run(lambda d, stream, a, b: d.compute(stream, turn, a, b), x, (2, 4, 3))
    np.testing.assert_array_equal(got, x.transpose(2, 0, 1))


def on_the_way(shape, dtype="<c16"):
    """Factors of an array whose last two dimensions they depend on."""
    last = len(shape) - 1
    twiddle = Twiddle(97, -1, (Term(last, 6, 1, BIG, 1),), (Term(last - 1, 5, 2, 3, 4),))
    return Multiply(shape, dtype, 0.5, True, (twiddle,))


def test_copies_multiply_on_the_way():
    x = complex_values(4, 3, 2)
    by = on_the_way(x.shape)
    turn = transposed(x.shape, (2, 0, 1), x.dtype.str, by)
    multiplied = run(lambda d, stream, a, _: d.compute(stream, by, a, a), x)
    got = run(lambda d, stream, a, b: d.compute(stream, turn, a, b), x, (2, 4, 3))
    np.testing.assert_array_equal(got, multiplied.transpose(2, 0, 1))
    by = on_the_way((3, 2))
    multiplied = run(lambda d, stream, a, _: d.compute(stream, by, a, a), x[::-1][:3, 2].copy())
    op = Strided((3, 2), (-6, 1), 22, (1, 3), 0, x.dtype.str, by)
    got = run(lambda d, stream, a, b: d.compute(stream, op, a, b), x, (2, 3))
    np.testing.assert_array_equal(got, multiplied.T)


def test_factors_of_another_array_are_refused():
    device = SimulatedGPU(1 << 12)
    device.reserve(1 << 12)
    stream, arrays = device.stream("compute"), [DeviceArray(0, (3, 2), "<c16")]
    arrays.append(DeviceArray(1024, (2, 3), "<c16"))
    for by in (on_the_way((2, 3)), on_the_way((3, 2), "<c8")):
        with pytest.raises(DeviceError, match="factors of another"):
            device.compute(stream, transposed((3, 2), (1, 0), "<c16", by), *arrays)
        with pytest.raises(DeviceError, match="Strided"):
            device.compute(stream, Strided((3, 2), (2, 1), 0, (1, 3), 0, "<c16", by), *arrays)


def test_strided_copies_stay_within_their_arrays():
    x = complex_values(4, 6)
    op = Strided((3, 2), (-6, 1), 19, (1, 4), 1, x.dtype.str)
    got = run(lambda d, stream, a, b: d.compute(stream, op, a, b), x, (2, 4))
    np.testing.assert_array_equal(got[:, 1:], x[[3, 2, 1], 1:3].T)
    device = SimulatedGPU(4096)
    device.reserve(4096)
    arrays = DeviceArray(0, (24,), "<c16"), DeviceArray(512, (8,), "<c16")
    fits = {"counts": (2,), "source": (1,), "source_start": 0, "target": (1,), "target_start": 0}
    for wrong in ({"source_start": 23}, {"source": (-1,)}, {"target": (8,)}, {"dtype": "<c8"}):
        op = Strided(**({"dtype": "<c16"} | fits | wrong))
        with pytest.raises(DeviceError, match="Strided"):
            device.compute(device.stream("compute"), op, *arrays)
    with pytest.raises(DeviceError, match="overlap"):
        device.compute(
            device.stream("compute"), Strided(dtype="<c16", **fits), arrays[0], arrays[0]
        )


def test_only_events_order_two_streams():
    """Without the wait some seed copies back before the array has come."""

    def copied(seed, wait):
        device = SimulatedGPU(4096, seed)
        device.reserve(4096)
        there, back = device.stream("h2d"), device.stream("d2h")
        loaded, end = device.event("loaded"), device.event("end")
        x, y = np.arange(64.0), np.zeros(64)
        device.h2d(there, x, DeviceArray(0, x.shape, "<f8"))
        device.record(loaded, there)
        if wait:
            device.wait(back, loaded)
        device.d2h(back, DeviceArray(0, y.shape, "<f8"), y)
        device.record(end, back)
        device.synchronize(end)
        return np.array_equal(x, y)

    assert all(copied(seed, True) for seed in range(20))
    assert not all(copied(seed, False) for seed in range(20))


def test_a_wait_means_marks_made_before_it():
    device = SimulatedGPU(4096)
    a, b = device.stream("h2d"), device.stream("compute")
    event, end = device.event("e"), device.event("end")
    device.wait(b, event)  # no mark yet: holds nothing up
    device.record(end, b)
    device.synchronize(end)
    device.record(event, a)
    assert event.made == 1
    device.synchronize(event)


def test_more_than_the_memory_is_refused():
    device = SimulatedGPU(4096)
    with pytest.raises(DeviceMemoryError):
        device.reserve(4097)
    device.reserve(4096)
    assert device.memory().free == 0
    x = np.zeros(513)
    stream = device.stream("h2d")
    device.h2d(stream, x, DeviceArray(0, x.shape, "<f8"))
    with pytest.raises(DeviceError, match="does not lie"):
        device.synchronize_all()
    device.release()
    assert device.memory().free == device.peak == 4096
    busy = SimulatedGPU(4096, refuses=lambda operation, nbytes: operation == "reserve")
    with pytest.raises(DeviceMemoryError):
        busy.reserve(1)


def test_memory_holds_nan_until_something_is_written():
    device = SimulatedGPU(4096)
    device.reserve(4096)
    out = np.zeros(8, "c16")
    stream = device.stream("d2h")
    device.d2h(stream, DeviceArray(256, out.shape, out.dtype.str), out)
    device.synchronize_all()
    assert np.isnan(out).all()


def test_what_does_not_fit_together_is_refused():
    device = SimulatedGPU(1 << 16)
    device.reserve(1 << 16)
    stream = device.stream("h2d")
    x = complex_values(4, 4)
    with pytest.raises(DeviceError, match="copy"):
        device.h2d(stream, x, DeviceArray(0, (16,), "<c16"))
    with pytest.raises(DeviceError, match="fall"):
        device.h2d(stream, x.T, DeviceArray(0, (4, 4), "<c16"))
    turn, array = transposed((4, 4), (1, 0), "<c16"), DeviceArray(0, (4, 4), "<c16")
    with pytest.raises(DeviceError, match="overlap"):
        device.compute(stream, turn, array, array)
    op, line = FFT("c2c", (5,), (5,), (0,), -1, "<c16"), DeviceArray(0, (5,), "<c16")
    device.work_nbytes(op)
    with pytest.raises(DeviceError, match="work area of 0"):
        device.compute(stream, op, line, line, DeviceArray(256, (0,), "|u1"))


def test_plans_are_made_while_nothing_runs_and_before_they_are_needed():
    device = SimulatedGPU(4096)
    device.reserve(4096)
    stream, array = device.stream("compute"), DeviceArray(0, (8,), "<c16")
    op, work = FFT("c2c", (8,), (8,), (0,), -1, "<c16"), DeviceArray(256, (0,), "|u1")
    with pytest.raises(DeviceError, match="no plan was made"):
        device.compute(stream, op, array, array, work)
    device.work_nbytes(op)
    device.compute(stream, op, array, array, work)
    device.synchronize_all()
    device.drop_caches()
    with pytest.raises(DeviceError, match="no plan was made"):
        device.compute(stream, op, array, array, work)
    device.record(device.event("end"), stream)
    while not stream.waiting:  # one in ten runs at once
        device.record(device.event("end"), stream)
    with pytest.raises(DeviceError, match="not idle"):
        device.work_nbytes(op)
