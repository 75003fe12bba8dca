"""The simulated device: what is left open goes wrong, what is not is NumPy's answer."""

import numpy as np
import pytest
from devices.blocks import values

from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.gpu.operations import (
    FFT,
    DeviceArray,
    Multiply,
    Strided,
    transposed,
)
from dask_bigfft.kernels.twiddle import unit_roots
from dask_bigfft.testing.gpus import SimulatedGpus
from dask_bigfft.testing.simulated import SimulatedGPU, multiplied
from dask_bigfft.tiles.program import ChirpFactor, Term, Twiddle
from dask_bigfft.transforms.steps import Chirp

BIG = 10**9
NBYTES = 1 << 12


@pytest.fixture
def device():
    simulated = SimulatedGPU(NBYTES)
    simulated.reserve(NBYTES)
    return simulated


def test_multiply_makes_factors_from_terms():
    x = values(4, 6, 5)
    # own: place along 1 from 6 on; others: the second digit (of 3 values) of the place along 0
    twiddle = Twiddle(97, -1, (Term(1, 1, BIG, 1),), (Term(0, 2, 3, 4),))
    chirp = ChirpFactor(Chirp(13, 1), (Term(0, 1, BIG, 2),), (Term(2, 1, BIG, 1),))
    op = Multiply(x.shape, x.dtype.str, 0.5, True, (twiddle, chirp), origin=(5, 6, 0))
    product = multiplied(op, x)
    for (i, j, k), value in np.ndenumerate(product):
        power = (6 + j) * ((5 + i) // 2 % 3 * 4)
        n = (5 + i) * 2 + k
        factor = 0.5 * unit_roots(power, 97, -1) * (n < 13) * unit_roots(n * n, 26, 1)
        assert abs(value - np.conj(x[i, j, k]) * factor) < 1e-14


def strided(
    counts=(2,),
    source=(1,),
    source_start=0,
    dtype="<c16",
    by=None,
    target=(1,),
):
    return Strided(
        counts,
        source,
        source_start,
        target,
        0,
        dtype,
        by,
    )


LINE = DeviceArray(0, (24,), "<c16")
OTHER = DeviceArray(512, (8,), "<c16")


@pytest.mark.parametrize(
    ("op", "source", "target", "named"),
    [
        *(
            (strided(**wrong), LINE, OTHER, "Strided")
            for wrong in (
                {"source_start": 23},
                {"source": (-1,)},
                {"target": (8,)},
                {"dtype": "<c8"},
                {"by": Multiply((3,), "<c16")},
                {"by": Multiply((2,), "<c8")},
            )
        ),
        (strided(), LINE, LINE, "overlap"),
        (transposed((4, 6), (1, 0), "<c16"), LINE, LINE, "Strided"),
        (Multiply((8,), "<c16"), DeviceArray(0, (8,), "<c16"), OTHER, "works in place"),
        (FFT("c2c", (8,), (8,), (0,), -1, "<c16"), OTHER, OTHER, "no plan was made"),
        (FFT("c2c", (24,), (24,), (0,), -1, "<c16"), LINE, LINE, "work area of 0"),
    ],
)
def test_operations_that_do_not_fit_are_refused(
    device,
    op,
    source,
    target,
    named,
):
    device.work_nbytes(FFT("c2c", (24,), (24,), (0,), -1, "<c16"))
    with pytest.raises(DeviceError, match=named):
        device.compute(
            device.stream("compute"),
            op,
            source,
            target,
        )


def test_only_events_order_two_streams():
    """Without the wait some seed copies back before the array has come."""

    def copied(seed, wait):
        device = SimulatedGPU(NBYTES, seed)
        device.reserve(NBYTES)
        upload = device.stream("h2d")
        download = device.stream("d2h")
        loaded = device.event("loaded")
        end = device.event("end")
        device.wait(download, loaded)  # no mark yet: holds nothing up
        x = np.arange(64.0)
        y = np.zeros(64)
        device.h2d(upload, x, DeviceArray(0, x.shape, "<f8"))
        device.record(loaded, upload)
        if wait:
            device.wait(download, loaded)
        device.d2h(download, DeviceArray(0, y.shape, "<f8"), y)
        device.record(end, download)
        device.synchronize(end)
        return np.array_equal(x, y)

    assert all(copied(seed, True) for seed in range(20))
    assert not all(copied(seed, False) for seed in range(20))


def test_memory_is_limited_and_holds_nan_until_something_is_written(device):
    assert device.memory().free == 0
    out = np.zeros(8, "c16")
    stream = device.stream("d2h")
    device.d2h(stream, DeviceArray(256, out.shape, "<c16"), out)
    device.synchronize_all()
    assert np.isnan(out).all()
    for array in (DeviceArray(0, (16,), "<c16"), DeviceArray(0, (8,), "<c8")):
        with pytest.raises(DeviceError, match="copy"):
            device.h2d(stream, out, array)
    with pytest.raises(DeviceError, match="fall"):
        device.h2d(stream, values(4, 4).T, DeviceArray(0, (4, 4), "<c16"))
    device.h2d(stream, np.zeros(513), DeviceArray(0, (513,), "<f8"))
    with pytest.raises(DeviceError, match="does not lie"):
        device.synchronize_all()
    device.release()
    assert device.memory().free == device.peak == NBYTES
    with pytest.raises(DeviceMemoryError):
        device.reserve(NBYTES + 1)


def test_plans_are_made_while_nothing_runs(device):
    stream = device.stream("compute")
    op = FFT(
        "c2c",
        (8,),
        (8,),
        (0,),
        -1,
        "<c16",
    )
    device.work_nbytes(op)
    device.compute(stream, op, OTHER, OTHER)
    device.synchronize_all()
    while not stream.waiting:  # one in ten runs at once
        device.record(device.event("end"), stream)
    with pytest.raises(DeviceError, match="not idle"):
        device.work_nbytes(op)


def test_an_array_on_another_gpu_takes_its_bytes_along():
    gpus = SimulatedGpus((1000, 1000))
    x = gpus.empty(0, 100, np.dtype("u1"))
    y = gpus.empty(0, 10, np.dtype("u1"))
    gpus.put(0, x)
    assert gpus.used == [110, 0]
    gpus.put(1, x)
    assert (gpus.home(x), gpus.used, gpus.peak) == (1, [10, 100], [110, 100])
    del x
    assert gpus.used == [10, 0]
    del y
    assert gpus.used == [0, 0]
