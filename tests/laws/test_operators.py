"""Operators against NumPy: a spectrum times a transfer function, and back, in one plan."""

import itertools

import dask
import dask.array as da
import numpy as np
import pytest
from laws.law import small_tiles

from dask_bigfft import signal
from dask_bigfft.graph.layer import transforms_in
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.strategies import random_array

#: Shapes, chunks and axes whose axes are cut.
CASES = [
    ((96,), 8, None),
    ((90,), (7, 50, 3, 30), None),
    ((101,), 10, None),
    ((1,), 1, None),
    ((13, 1, 24), (2, 1, 5), (2, 1)),
    ((12, 30), (5, 7), None),
    ((32, 64), (4, 64), None),
    ((64, 4), (3, 4), 0),
    ((18, 10, 12), (7, 3, 5), None),
    ((16, 8, 9), (2, 8, 9), (1, 2, 0)),
    ((5, 16, 12), (2, 4, 12), (1, 2)),
    ((4, 6, 5, 3, 8), (2, 3, 2, 2, 3), None),
    ((4, 6, 5, 3, 8), (2, 3, 2, 2, 3), (3, 1)),
]

#: Dtypes of inputs and the error relative to the largest value.
DTYPES = [("f8", 1e-13), ("c16", 1e-13), ("f4", 1e-5), ("c8", 1e-5), ("i2", 1e-13)]


def delayed(*frequencies):
    """A complex and Hermitian function of all axes, of which no two values are equal."""
    phase = sum((0.7 + i) * f for i, f in enumerate(frequencies))
    return np.exp(-2j * np.pi * phase) / (1.5 + sum(f**2 for f in frequencies))


def values_of(shape, axes, signs):
    """Values of `delayed`, with the frequency N/2 of each axis with a sign."""
    frequencies = []
    for axis, sign in zip(axes, signs, strict=True):
        broadcast = [1] * len(shape)
        broadcast[axis] = -1
        frequency = np.fft.fftfreq(shape[axis])
        frequency[frequency == -0.5] *= -sign
        frequencies.append(frequency.reshape(broadcast))
    return delayed(*frequencies)


def expected_of(x, axes):
    """The product of the whole spectrum, and back, in double precision."""
    axes = range(x.ndim) if axes is None else np.atleast_1d(axes)
    signs = [-1] if x.dtype.kind == "c" else [-1, 1]  # the mean over both for real results
    values = [values_of(x.shape, axes, s) for s in itertools.product(signs, repeat=len(axes))]
    spectrum = np.fft.fftn(x, axes=axes) * (sum(values) / len(values))
    whole = np.fft.ifftn(spectrum, axes=axes)
    return whole if x.dtype.kind == "c" else whole.real


def computed(x, chunks, axes, **options):
    """The plan, and the result."""
    lazy = signal.fourier_filter(da.from_array(x, chunks=chunks), delayed, axes, **options)
    (plan,) = transforms_in(lazy).values()
    assert plan.spec.transfer
    return plan, lazy.compute(scheduler="sync")


def require_close(result, expected, error):
    assert result.shape == expected.shape
    np.testing.assert_allclose(result, expected, rtol=0, atol=error * np.abs(expected).max())


def split(**settings):
    """Plans as for large arrays: nothing is gathered whole that can be split."""
    small = {"bigfft.planner.small": 0, "bigfft.planner.whole-axis-floor": 1}
    return dask.config.set({**small, **settings})


@pytest.mark.parametrize(("dtype", "error"), DTYPES)
@pytest.mark.parametrize(("shape", "chunks", "axes"), CASES)
def test_in_rounds_and_tiles(
    shape,
    chunks,
    axes,
    dtype,
    error,
    monkeypatch,
):
    small_tiles(monkeypatch, 1 << 9)
    x = random_array(shape, dtype, 1)
    with split():
        _, result = computed(x, chunks, axes)
    require_close(result, expected_of(x, axes), error)


@pytest.mark.pairs
@pytest.mark.parametrize("kernel", ["scipy", "ducc0"])
@pytest.mark.parametrize("verify", ["none", "energy", "checksum"])
@pytest.mark.parametrize("carrier", ["shared", "tasks", "disk"])
@pytest.mark.parametrize("dtype", ["f8", "c8"])
def test_carriers_libraries_and_checks(dtype, carrier, verify, kernel, tmp_path):
    x = random_array((24, 36), dtype, 2)
    places = {"bigfft.exchange.carrier": carrier, "bigfft.scratch.directory": str(tmp_path)}
    with split(**places):
        plan, result = computed(x, (6, 7), None, verify=verify, kernel=kernel)
    assert len(plan.rounds) > 1
    require_close(result, expected_of(x, None), 1e-5 if dtype == "c8" else 1e-13)


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("chunks", [(24, 36), (5, 36), ((1, 20, 3), (30, 6))])
def test_wanted_chunks(dtype, chunks):
    x = random_array((24, 36), dtype, 3)
    with split():
        lazy = signal.fourier_filter(da.from_array(x, chunks=(6, 9)), delayed, chunks=chunks)
        assert lazy.chunks == da.core.normalize_chunks(chunks, x.shape)
        result = lazy.compute(scheduler="sync")
    require_close(result, expected_of(x, None), 1e-13)


@pytest.mark.pairs
@pytest.mark.parametrize(("n", "s"), [(40, 64), (64, 40), (37, 60), (60, 37)])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("axis", [0, 1])
def test_padding_and_cropping(n, s, dtype, axis):
    shape = (n, 12) if axis == 0 else (12, n)
    x = random_array(shape, dtype, 4)
    lengths = (s, 12) if axis == 0 else (12, s)
    padded = np.zeros(lengths, dtype)
    kept = tuple(map(slice, np.minimum(shape, lengths)))
    padded[kept] = x[kept]
    with split():
        _, result = computed(x, 5, None, s=lengths)
    require_close(result, expected_of(padded, None), 1e-13)


def test_slabs_take_two_exchanges_and_one_axis_four():
    with split():
        slabs = da.zeros((32, 32, 32), chunks=(4, 32, 32))
        (plan,) = transforms_in(signal.fourier_filter(slabs, delayed)).values()
        assert len(plan.travelling) == 2
        assert plan.chunks == slabs.chunks
        line = da.zeros(1 << 14, chunks=1 << 10)
        (plan,) = transforms_in(signal.fourier_filter(line, delayed)).values()
        assert len(plan.travelling) == 4
        assert plan.chunks == line.chunks


@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize(("shape", "chunks", "axes"), CASES)
def test_arrays_in_natural_order(
    shape,
    chunks,
    axes,
    dtype,
    monkeypatch,
):
    small_tiles(monkeypatch, 1 << 9)
    x = random_array(shape, dtype, 5)
    along = range(x.ndim) if axes is None else np.atleast_1d(axes)
    forward, inverse = (np.fft.fftn, np.fft.ifftn)
    if dtype == "f8":
        forward, inverse = (np.fft.rfftn, np.fft.irfftn)
    spectrum = forward(x, axes=along)
    whole = random_array(spectrum.shape, "c16", 6)
    one_axis = whole[tuple(slice(None) if a == along[-1] else slice(1) for a in range(x.ndim))]
    lengths = [shape[axis] for axis in along]
    for h in (whole, one_axis, 0.5):
        with split():
            lazy = signal.fourier_filter(da.from_array(x, chunks=chunks), h, axes)
            (plan,) = transforms_in(lazy).values()
            result = lazy.compute(scheduler="sync")
        assert plan.spec.transfer
        require_close(result, inverse(spectrum * h, lengths, along), 1e-13)


#: Shapes, chunks, and bytes of a device: enough for a block, or too few.
ON_DEVICES = [
    ((96,), 8, 1 << 20),
    ((96,), 96, 1 << 10),
    ((13, 24), (2, 5), 1 << 20),
    ((24, 30), (24, 30), 1 << 13),
    ((8, 6, 9), (3, 3, 5), 1 << 20),
]


@pytest.mark.pairs
@pytest.mark.parametrize("dtype", ["c8", "f8"])
@pytest.mark.parametrize("device", ["gpu", "hybrid"])
@pytest.mark.parametrize(("shape", "chunks", "nbytes"), ON_DEVICES)
def test_on_devices(
    shape,
    chunks,
    nbytes,
    device,
    dtype,
):
    x = random_array(shape, dtype, 7)
    limits = TileLimits(0, least=256, run_nbytes=64)
    with split(), simulated_devices(nbytes, limits=limits):
        _, result = computed(x, chunks, None, device=device)
    require_close(result, expected_of(x, None), 1e-5 if dtype == "c8" else 1e-13)


@pytest.mark.parametrize("carrier", ["p2p", "tasks"])
def test_on_a_cluster(carrier, client):
    x = random_array((24, 36), "f8", 8)
    with split(**{"bigfft.exchange.carrier": carrier}):
        lazy = signal.fourier_filter(da.from_array(x, chunks=(4, 36)), delayed)
        (plan,) = transforms_in(lazy).values()
        assert len(plan.rounds) == 3
        require_close(lazy.compute(), expected_of(x, None), 1e-13)
