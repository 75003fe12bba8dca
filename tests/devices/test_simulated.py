"""The simulated device: what is left open goes wrong, what is not is NumPy's answer."""

import numpy as np
import pytest

from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.gpu.operations import (
    FFT,
    ChirpFactor,
    DeviceArray,
    Multiply,
    Strided,
    Term,
    Twiddle,
    transposed,
)
from dask_bigfft.kernels.twiddle import unit_roots
from dask_bigfft.testing.simulated import SimulatedGPU, multiplied

RNG = np.random.default_rng(3)
BIG = 10**9


def complex_values(*shape, dtype="c16"):
    return (RNG.standard_normal(shape) + 1j * RNG.standard_normal(shape)).astype(dtype)


def test_multiply_makes_factors_from_terms():
    x = complex_values(4, 6, 5)
    # left: place along 1 from 6 on; right: the second digit (of 3 values) of the place along 0
    twiddle = Twiddle(97, -1, (Term(1, 6, 1, BIG, 1),), (Term(0, 5, 2, 3, 4),))
    chirp = ChirpFactor(13, 1, (Term(0, 5, 1, BIG, 2), Term(2, 0, 1, BIG, 1)))
    op = Multiply(x.shape, x.dtype.str, 0.5, True, (twiddle,), (chirp,))
    got = multiplied(op, x)
    for (i, j, k), value in np.ndenumerate(got):
        power, n = (6 + j) * ((5 + i) // 2 % 3 * 4), (5 + i) * 2 + k
        factor = 0.5 * unit_roots(power, 97, -1) * (n < 13) * unit_roots(n * n, 26, 1)
        assert abs(value - np.conj(x[i, j, k]) * factor) < 1e-14


def on_the_way(shape, dtype="<c16"):
    """Factors of an array whose last two dimensions they depend on."""
    last = len(shape) - 1
    twiddle = Twiddle(97, -1, (Term(last, 6, 1, BIG, 1),), (Term(last - 1, 5, 2, 3, 4),))
    return Multiply(shape, dtype, 0.5, True, (twiddle,))


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
