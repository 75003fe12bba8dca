"""Filters of a band against NumPy: the others of its frequencies are zeros."""

import itertools
import random

import dask
import dask.array as da
import numpy as np
import pytest
from lazy import plans_of

from dask_bigfft import fft, signal
from dask_bigfft.errors import ArgumentError
from dask_bigfft.planner.tile_plan import TileLimits
from dask_bigfft.testing.devices import simulated_devices
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


def delayed(*frequencies):
    """Hermitian, and different at all frequencies."""
    phase = sum((0.7 + i) * f for i, f in enumerate(frequencies))
    return np.exp(-2j * np.pi * phase) / (1.5 + sum(f**2 for f in frequencies))


class Case:
    """An array with random chunks, axes and bands, and what NumPy makes of it."""

    def __init__(self, seed):
        draw = random.Random(seed)
        ndim = draw.choice([1, 1, 2, 2, 3, 3, 4, 5])
        most = {1: 150, 2: 60, 3: 24, 4: 8, 5: 5}[ndim]
        lengths = [n for n in (1, 2, 3, 4, 5, 7, 8, 12, 15, 16, 36, 59, 64, 97, 144) if n <= most]
        shape = [draw.choice(lengths) for _ in range(ndim)]
        dtype = draw.choice(["f8", "c16", "f4", "c8", "i2"])
        self.x = random_array(shape, dtype, seed)
        self.axes = tuple(draw.sample(range(ndim), draw.randint(1, ndim)))
        most_cuts = {1: 9, 2: 9, 3: 3, 4: 2, 5: 1}[ndim]  # so that there are at most 100 blocks
        self.chunks = tuple(self._chunks(draw, n, most_cuts) for n in shape)
        self.error = 1e-5 if dtype in ("f4", "c8") else 1e-12
        #: The frequencies that are kept, as indices with signs.
        self.kept = {}
        for axis in draw.sample(self.axes, draw.randint(1, len(self.axes))):
            n = shape[axis]
            ends = sorted(draw.choices(range(n // 2 + 1), k=2))
            if dtype in ("c16", "c8"):
                ends = sorted(draw.choices(range(-(n // 2), (n - 1) // 2 + 1), k=2))
            elif axis != self.axes[-1]:
                ends[0] = -ends[1]
            self.kept[axis] = tuple(ends)

    @staticmethod
    def _chunks(draw, n, most_cuts):
        count = min(n - 1, most_cuts, draw.choice([0, 1, 3, 9]))
        cuts = sorted(draw.sample(range(1, n), count))
        return tuple(np.diff([0, *cuts, n]).tolist())

    def lazy(self, transfer=delayed, **options):
        bands = {}
        for axis, (low, high) in self.kept.items():
            bands[axis] = (low / self.x.shape[axis], high / self.x.shape[axis])
        return signal.fourier_filter(
            da.from_array(self.x, chunks=self.chunks), transfer, self.axes, band=bands, **options
        )

    def expected(self):
        """The product of the whole spectrum with zeros outside of the bands, and back."""
        is_complex = self.x.dtype.kind == "c"
        inside = np.ones((), bool)
        for axis, (low, high) in self.kept.items():
            index = np.rint(self._frequencies(axis, -1) * self.x.shape[axis])
            if not is_complex and axis == self.axes[-1]:
                index = np.abs(index)
            inside = inside & (index >= low) & (index <= high)
        spectrum = np.fft.fftn(self.x, axes=self.axes) * inside
        signs = [-1] if is_complex else [-1, 1]  # the mean over both for real results
        values = [
            delayed(*map(self._frequencies, self.axes, signs_of_axes))
            for signs_of_axes in itertools.product(signs, repeat=len(self.axes))
        ]
        whole = np.fft.ifftn(spectrum * (sum(values) / len(values)), axes=self.axes)
        return whole if is_complex else whole.real

    def _frequencies(self, axis, sign):
        """Frequencies along an axis, with one of the signs of N/2."""
        frequency = np.fft.fftfreq(self.x.shape[axis])
        frequency[frequency == -0.5] *= -sign
        return frequency.reshape([-1 if a == axis else 1 for a in range(self.x.ndim)])


@pytest.mark.parametrize("seed", range(60))
def test_one_plan_of_any_band(seed, tmp_path, sync):
    case = Case(seed)
    carrier = ("shared", "tasks", "disk")[seed % 3]
    settings = {
        "bigfft.exchange.carrier": carrier,
        "bigfft.scratch.directory": str(tmp_path),
        "bigfft.planner.whole-axis-floor": 1,
        "bigfft.planner.small": 0,
    }
    with dask.config.set(settings):
        lazy = case.lazy(verify=("none", "energy", "checksum")[seed % 4 % 3])
        (plan,) = plans_of(lazy)
        result = lazy.compute()
    assert plan.spec.transfer
    assert "the product has a band" in " ".join(plan.explain().split())
    expected = case.expected()
    assert result.shape == expected.shape
    assert np.linalg.norm(result - expected) <= case.error * max(np.linalg.norm(expected), 1e-9)


@pytest.mark.parametrize("device", ["gpu", "hybrid"])
@pytest.mark.parametrize("seed", range(60, 80))
def test_on_devices(seed, device, sync):
    case = Case(seed)
    settings = {"bigfft.planner.whole-axis-floor": 1, "bigfft.planner.small": 0}
    limits = TileLimits(0, least=256, run_nbytes=64)
    with dask.config.set(settings), simulated_devices(1 << 14, limits=limits):
        result = case.lazy(device=device).compute()
    expected = case.expected()
    assert np.linalg.norm(result - expected) <= case.error * max(np.linalg.norm(expected), 1e-9)


@pytest.mark.parametrize("chunks", [48, 6])
def test_values_outside_of_a_band_do_not_count(chunks, sync):
    """Neither those of a function that are not finite, nor those of an array."""
    x = random_array((48,), "f8", 4)
    places = np.arange(25)
    with dask.config.set({"bigfft.planner.whole-axis-floor": 1, "bigfft.planner.small": 0}):
        a = da.from_array(x, chunks=chunks)
        by_function = signal.fourier_filter(
            a, lambda f: np.where(np.abs(np.abs(f) - 0.25) < 1e-9, np.nan, 2.0), band=(0, 10 / 48)
        )
        by_array = signal.fourier_filter(a, np.where(places > 10, np.inf, 2.0), band=(0, 10 / 48))
        results = dask.compute(by_function, by_array)
    spectrum = np.fft.rfft(x) * 2
    spectrum[11:] = 0
    for result in results:
        np.testing.assert_allclose(result, np.fft.irfft(spectrum, 48), atol=1e-13)


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


@pytest.mark.parametrize("chunks", [(6, 7), (12, 5), (3, 30)])
def test_places_in_ascending_order_are_a_band(chunks):
    x = random_array((12, 30), "f8", 2)

    def slope(fy, fx):
        return 1 + fx + 0 * fy

    lazy = signal.fourier_filter(
        da.from_array(x, chunks=chunks),
        slope,
        band={0: (-0.25, 0.25)},
        band_index={1: (2, 9)},
        real=False,
    )
    fy = np.fft.fftfreq(12)[:, np.newaxis]
    fx = np.fft.fftfreq(30)
    in_band = (np.abs(fy) <= 0.25) & (fx >= -13 / 30 - 1e-9) & (fx <= -7 / 30 + 1e-9)
    expected = np.fft.ifft2(np.fft.fft2(x) * slope(fy, fx) * in_band)
    np.testing.assert_allclose(lazy.compute(), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize(
    ("band_index", "named"),
    [
        ({0: (0, 4)}, "band_index.*symmetric"),
        ({1: (4, 99)}, "band_index.*99"),
        ({1: (4, 4)}, "band_index.*start < stop"),
        ({2: (0, 4)}, "band_index"),
    ],
)
def test_wrong_places_are_named(band_index, named):
    with pytest.raises(ArgumentError, match=named):
        signal.fourier_filter(da.zeros((12, 30)), delayed, band_index=band_index)
    with pytest.raises(ArgumentError, match=r"`band_index`.*no axis of `band`"):
        signal.fourier_filter(
            da.zeros((12, 30)),
            delayed,
            band={1: (0, 0.25)},
            band_index={1: (0, 4)},
        )
