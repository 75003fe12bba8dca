"""Filters of a band against NumPy: the others of its frequencies are zeros."""

import dask
import dask.array as da
import numpy as np
import pytest
from lazy import plans_of

from dask_bigfft import fft, signal
from dask_bigfft.errors import ArgumentError
from dask_bigfft.testing.strategies import random_array


def smooth(*frequencies):
    return np.exp(-3 * sum(f**2 for f in frequencies)) * (1 + 0.5j * sum(frequencies))


def expected_by_numpy(x, transfer, bands, spacing):
    """The filter by whole transforms, with zeros outside of the bands."""
    frequencies = []
    inside = np.ones((), bool)
    for axis, n in enumerate(x.shape):
        shape = [-1 if a == axis else 1 for a in range(x.ndim)]
        f = np.fft.fftfreq(n, spacing).reshape(shape)
        frequencies.append(f)
        if axis in bands:
            low, high = bands[axis]
            size = np.abs(f) if low >= 0 and x.dtype.kind == "f" else f
            inside = inside & (size >= low - 1e-12) & (size <= high + 1e-12)
    values = transfer(*frequencies) if callable(transfer) else transfer
    filtered = np.fft.ifftn(np.fft.fftn(x) * values * inside)
    return filtered if x.dtype.kind == "c" else filtered.real


@pytest.mark.parametrize(
    ("shape", "chunks", "dtype", "bands"),
    [
        ((97,), 10, "f8", {0: (0.0, 0.1)}),
        ((144,), 16, "f4", {0: (0.1, 0.25)}),
        ((144,), 16, "c16", {0: (-0.3, 0.1)}),
        ((24, 30), (6, 30), "f8", {0: (-0.1, 0.1), 1: (0.0, 0.2)}),
        ((24, 30), (24, 5), "c16", {0: (0.1, 0.2)}),
        ((16, 9, 12), (4, 9, 12), "f8", {0: (-0.2, 0.2), 1: (-0.3, 0.3), 2: (0.05, 0.3)}),
    ],
)
def test_a_band_of_a_filter(shape, chunks, dtype, bands, sync):
    x = random_array(shape, dtype, 1)
    a = da.from_array(x, chunks=chunks)
    tolerance = 1e-5 if dtype == "f4" else 1e-12
    by_spacing = {axis: (low / 0.5, high / 0.5) for axis, (low, high) in bands.items()}
    with dask.config.set({"bigfft.planner.whole-axis-floor": 1}):
        result = signal.fourier_filter(a, smooth, band=by_spacing, spacing=0.5)
    expected = expected_by_numpy(x, smooth, by_spacing, 0.5)
    assert result.dtype == x.dtype
    assert np.linalg.norm(result.compute() - expected) <= tolerance * np.linalg.norm(expected)


def test_arrays_as_transfer_functions(sync):
    x = random_array((20, 24), "f8", 2)
    h = random_array((20, 13), "f8", 3)
    bands = {0: (-0.2, 0.2), 1: (0.1, 0.3)}
    spectrum = np.fft.rfftn(x) * h
    rows = np.abs(np.fft.fftfreq(20)) > 0.2 + 1e-12
    columns = np.fft.rfftfreq(24)
    spectrum[rows] = 0
    spectrum[:, (columns < 0.1) | (columns > 0.3)] = 0
    expected = np.fft.irfftn(spectrum, x.shape, axes=(0, 1))
    for transfer in (h, da.from_array(h, chunks=(7, 4))):
        result = signal.fourier_filter(da.from_array(x, chunks=6), transfer, band=bands)
        np.testing.assert_allclose(result.compute(), expected, atol=1e-13)


def test_only_the_band_is_exchanged():
    x = da.zeros((512, 512, 512), chunks=(32, 512, 512), dtype="f4")
    result = signal.fourier_filter(
        x, smooth, band={0: (-0.06, 0.06), 1: (-0.06, 0.06), 2: (0, 0.06)}
    )
    nbytes = sum(plan.expected.bytes_exchanged for plan in plans_of(result))
    assert nbytes <= 0.2 * fft.rfftn(x).nbytes
    assert result.chunks == x.chunks


@pytest.mark.parametrize(
    "band",
    [
        {0: (0.0, 0.2)},  # of a real result not the last axis
        {1: (-0.1, 0.1)},
        {1: (0.1, 0.9)},
        {2: (0.0, 0.1)},
        0.1,
    ],
)
def test_errors_name_the_band(band):
    with pytest.raises((ArgumentError, TypeError), match="`band`"):
        signal.fourier_filter(da.ones((8, 8), chunks=4), smooth, band=band)
