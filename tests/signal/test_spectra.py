"""Spectra and derivatives against SciPy, NumPy and closed forms, and what they exchange."""

import dask.array as da
import numpy as np
import pytest
import scipy.fft
import scipy.signal
from hypothesis import given
from hypothesis import strategies as st
from lazy import plans_of
from records import CASES

from dask_bigfft import signal
from dask_bigfft.errors import ArgumentError, ArgumentTypeError
from dask_bigfft.testing.devices import simulated_devices
from dask_bigfft.testing.oracles import relative_l2
from dask_bigfft.testing.strategies import chunkings, chunks_of, random_array, shapes

pytestmark = pytest.mark.usefixtures("small")


def exchanges(y):
    return [len(plan.travelling) for plan in plans_of(y)]


# --- power and cross spectra ----------------------------------------------------------------


@CASES
@given(
    data=st.data(),
    n=st.sampled_from([1, 2, 97, 144, 225]),
    complex_=st.booleans(),
    scaling=st.sampled_from(["density", "spectrum"]),
    onesided=st.booleans(),
)
def test_a_power_spectrum_is_a_periodogram(
    data,
    n,
    complex_,
    scaling,
    onesided,
):
    x = random_array((n,), "c16" if complex_ else "f8", 1)
    lazy = da.from_array(x, chunks=(data.draw(chunks_of(n)),))
    power = signal.power_spectrum(lazy, d=0.5, scaling=scaling, onesided=onesided)
    both = complex_ or not onesided
    _, expected = scipy.signal.periodogram(
        x, 2.0, detrend=False, scaling=scaling, return_onesided=not both
    )
    expected = expected[: power.shape[0]]
    assert power.dtype == np.dtype("f8")
    assert relative_l2(power.compute(), expected) < 1e-13


@CASES
@given(data=st.data(), n=st.sampled_from([2, 97, 144]), complex_=st.booleans())
def test_a_cross_spectrum_is_that_of_one_segment(data, n, complex_):
    x, y = (random_array((n,), "c16" if complex_ else "f8", i) for i in range(2))
    chunks = [(data.draw(chunks_of(n)),) for _ in range(2)]
    a, b = (da.from_array(v, chunks=c) for v, c in zip((x, y), chunks, strict=True))
    cross = signal.cross_spectrum(a, b)
    _, expected = scipy.signal.csd(x, y, window="boxcar", nperseg=n, detrend=False)
    assert relative_l2(cross.compute(), expected) < 1e-13


# --- segments -------------------------------------------------------------------------------


@CASES
@given(
    data=st.data(),
    n=st.integers(1, 300),
    complex_=st.booleans(),
    average=st.sampled_from(["mean", "median"]),
    detrend=st.sampled_from(["constant", "linear", False, lambda segments: segments - 1]),
    scaling=st.sampled_from(["density", "spectrum"]),
)
def test_segments(
    data,
    n,
    complex_,
    average,
    detrend,
    scaling,
):
    x, y = (random_array((3, n), "c16" if complex_ else "f8", i) for i in range(2))
    nperseg = data.draw(st.integers(1, n))
    options = {
        "fs": 10.0,
        "nperseg": nperseg,
        "noverlap": data.draw(st.integers(0, nperseg - 1)),
        "nfft": data.draw(st.sampled_from([None, nperseg + 3])),
        "detrend": detrend,
        "scaling": scaling,
        "window": data.draw(st.sampled_from(["hann", "boxcar", ("kaiser", 3.0)])),
        "average": average,
    }
    if options["window"] == "hann" and nperseg < 3:  # SciPy divides by a window of zeros
        options["window"] = "boxcar"
    if data.draw(st.booleans()):  # its values
        options["window"] = scipy.signal.get_window(options["window"], nperseg)
    a, b = (da.from_array(v, chunks=((2, 1), data.draw(chunks_of(n)))) for v in (x, y))
    for spectrum, expected in [
        (signal.welch(a, **options), scipy.signal.welch(x, **options)),
        (signal.csd(a, b, **options), scipy.signal.csd(x, y, **options)),
    ]:
        assert np.array_equal(spectrum[0], expected[0])
        assert spectrum[1].shape == expected[1].shape
        assert spectrum[1].dtype == expected[1].dtype
        assert np.allclose(spectrum[1].compute(), expected[1], rtol=1e-9, atol=1e-12)


# --- averages over directions ---------------------------------------------------------------


def by_direction(x, d, edges):
    """The average by its definition, over the whole spectrum."""
    power = abs(scipy.fft.fftn(x)) ** 2 * np.prod(d) / x.size
    axes = [scipy.fft.fftfreq(n, step) for n, step in zip(x.shape, d, strict=True)]
    radius = np.sqrt(sum(f**2 for f in np.meshgrid(*axes, indexing="ij")))
    above_rounding = radius.ravel() + 1e-12  # frequencies on an edge belong to the bin above it
    place = np.searchsorted(edges, above_rounding, side="right") - 1
    count = len(edges) - 1
    inside = (place >= 0) & (place < count)
    total = np.bincount(place[inside], power.ravel()[inside], count)
    with np.errstate(invalid="ignore"):
        return total / np.bincount(place[inside], minlength=count)


@CASES
@given(data=st.data(), shape=shapes(3), complex_=st.booleans(), given_=st.booleans())
def test_radial_averages(
    data,
    shape,
    complex_,
    given_,
):
    x = random_array(shape, "c16" if complex_ else "f8", 1)
    lazy = da.from_array(x, chunks=data.draw(chunkings(shape)))
    d = tuple(0.5 + 0.25 * a for a in range(len(shape)))
    bins = np.array([-0.01, 0.03, 0.2, 0.33, 5.0]) if given_ else None
    frequencies, power = signal.radial_power_spectrum(lazy, d=d, bins=bins)
    if bins is None:
        width = max(1 / (n * step) for n, step in zip(shape, d, strict=True))
        bins = (np.arange(len(frequencies) + 1) - 0.5) * width
    assert np.allclose(power.compute(), by_direction(x, d, bins), rtol=1e-11, equal_nan=True)


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_radial_averages_of_empty_chunks(device):
    x = random_array((3, 4, 5), "f8", 1)
    lazy = da.from_array(x, chunks=((0, 3), (4, 0), (2, 0, 3)))
    with simulated_devices(1 << 20):
        _, power = signal.radial_power_spectrum(lazy, (1, 2), chunks=lazy.chunks, device=device)
        _, expected = signal.radial_power_spectrum(da.from_array(x), (1, 2))
        np.testing.assert_allclose(power.compute(), expected.compute(), rtol=1e-12)


def test_radial_averages_have_the_precision_of_the_input():
    x = random_array((12, 20), "f8", 1)
    single = da.from_array(x.astype("f4"), chunks=5)
    _, power = signal.radial_power_spectrum(single, scaling="spectrum")
    _, wanted_power = signal.radial_power_spectrum(da.from_array(x), scaling="spectrum")
    computed = power.compute()
    assert power.dtype == computed.dtype == np.float32
    np.testing.assert_allclose(computed, wanted_power.compute(), rtol=1e-5)


def test_frequencies_on_an_edge_belong_to_the_bin_that_begins_there():
    # The edges (n + 1/2) / 45 of the shorter axis are frequencies of the other one.
    x = random_array((45, 90), "f8", 2)
    _, power = signal.radial_power_spectrum(da.from_array(x, chunks=16), scaling="spectrum")
    rows, columns = (np.rint(scipy.fft.fftfreq(n, 1 / 90)).astype(int) for n in x.shape)
    squares = rows[:, None] ** 2 + columns**2  # of the frequency times 90
    magnitudes = np.abs(scipy.fft.fft2(x) / x.size) ** 2
    for n, mean in enumerate(power.compute()):
        low, high = (max(0, 2 * n - 1) ** 2, (2 * n + 1) ** 2)
        inside = (squares >= low) & (squares < high)
        assert np.isclose(mean, magnitudes[inside].mean())


@pytest.mark.parametrize("axes", [None, 1, (0, 2)])
def test_radial_averages_of_what_is_known(axes):
    x = random_array((6, 20, 16), "f8", 3)
    missing = random_array(x.shape, "f8", 4) > 0.3
    along = range(3) if axes is None else np.atleast_1d(axes)
    share = 1 - missing.mean(axis=tuple(along), keepdims=True)
    lazy = da.from_array(x, chunks=(3, 10, 5))
    mask = da.from_array(missing, chunks=(6, 7, 16))
    _, power = signal.radial_power_spectrum(lazy, axes, mask=mask)
    known = np.where(missing, 0, x) / np.sqrt(share)
    _, wanted_power = signal.radial_power_spectrum(da.from_array(known), axes)
    np.testing.assert_allclose(power.compute(), wanted_power.compute(), rtol=1e-12)


@pytest.mark.parametrize("axes", [None, 1, (2, 0)])
def test_known_values_have_the_weights_of_windows(axes):
    x = random_array((6, 20, 16), "f8", 5)
    missing = random_array(x.shape, "f8", 6) > 0.3
    along = range(3) if axes is None else np.atleast_1d(axes)
    windows = [np.hanning(x.shape[axis]) for axis in along]
    shapes = [[-1 if axis == own else 1 for axis in range(3)] for own in along]
    weight = np.prod(np.broadcast_arrays(*map(np.reshape, windows, shapes)), axis=0)
    windowed = x * weight
    squares = np.broadcast_to(weight**2, x.shape)
    total = squares.sum(tuple(along), keepdims=True)
    share = np.where(missing, 0, squares).sum(tuple(along), keepdims=True) / total
    wanted = signal.power_spectrum(np.where(missing, 0, windowed) / np.sqrt(share), axes)
    lazy = da.from_array(windowed, chunks=(3, 10, 5))
    power = signal.power_spectrum(lazy, axes, mask=missing, windows=windows)
    np.testing.assert_allclose(power.compute(), wanted.compute(), rtol=1e-12)


@pytest.mark.parametrize("windows", [[np.ones(4)], [np.ones(4), np.ones(3)], 3, ["a", "b"]])
@pytest.mark.parametrize("name", ["power_spectrum", "radial_power_spectrum"])
def test_windows_have_the_lengths_of_the_axes(name, windows):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=r"windows.*4 and 5"):
        getattr(signal, name)(np.ones((4, 5)), windows=windows)


# --- derivatives ----------------------------------------------------------------------------


def waves(shape, lengths):
    """A field with a few waves on a periodic box, its derivatives and its Laplacian."""
    grid = np.meshgrid(
        *(np.arange(n) * (length / n) for n, length in zip(shape, lengths, strict=True)),
        indexing="ij",
    )
    field = np.zeros(shape)
    laplace = np.zeros(shape)
    slopes = [np.zeros(shape) for _ in shape]
    for j, amplitude in enumerate([1.0, 0.5, -0.7], 1):
        k = [2 * np.pi * ((j + a) % 4) / length for a, length in enumerate(lengths)]
        phase = sum(ki * xi for ki, xi in zip(k, grid, strict=True)) + j
        field += amplitude * np.sin(phase)
        laplace -= amplitude * sum(ki**2 for ki in k) * np.sin(phase)
        for slope, ki in zip(slopes, k, strict=True):
            slope += amplitude * ki * np.cos(phase)
    return field, slopes, laplace


@pytest.mark.parametrize("complex_", [False, True])
@pytest.mark.parametrize(
    ("shape", "chunks"),
    [((144,), (12,)), ((97,), (10,)), ((16, 15), (4, 15)), ((10, 9, 12), (5, 9, 4))],
)
def test_derivatives_of_waves(shape, chunks, complex_):
    lengths = tuple(1.0 + a for a in range(len(shape)))
    d = tuple(length / n for n, length in zip(shape, lengths, strict=True))
    field, slopes, laplace = waves(shape, lengths)
    factor = 1 - 2j if complex_ else 1
    lazy = da.from_array(field * factor, chunks=chunks)
    for derivative, slope in zip(signal.gradient(lazy, d=d), slopes, strict=True):
        assert derivative.dtype == lazy.dtype
        assert relative_l2(derivative.compute(), slope * factor) < 1e-12
    assert relative_l2(signal.laplacian(lazy, d=d).compute(), laplace * factor) < 1e-12
    solved = signal.poisson(da.from_array(laplace * factor + 3, chunks=chunks), d=d)
    assert relative_l2(solved.compute(), (field - field.mean()) * factor) < 1e-12


def test_derivatives_take_one_plan_there_and_back():
    x = da.zeros(2**12, chunks=2**8)
    assert exchanges(signal.gradient(x, 0)) == [4]
    slabs = da.zeros((32, 24), chunks=(4, 24))
    assert exchanges(signal.laplacian(slabs)) == [2]
    assert signal.poisson(slabs).chunks == slabs.chunks
    down, along = signal.gradient(slabs)
    assert (sum(exchanges(down)), sum(exchanges(along))) == (1, 0)


@pytest.mark.parametrize(
    "spectrum",
    [
        lambda x: signal.welch(x, nperseg=2),
        lambda x: signal.csd(x, 2 * x, nperseg=2),
        lambda x: signal.csd(x, 2 * x, nperseg=2, average="median"),
        lambda x: signal.radial_power_spectrum(x, -1),
    ],
)
@pytest.mark.parametrize(
    "chunks",
    [((1, 0), (8,)), ((0, 1), (4, 0, 4)), ((2, 0), (8,)), ((0, 2, 0, 1), (0, 5, 3)), ((0,), (8,))],
)
def test_chunks_may_be_empty(chunks, spectrum):
    x = random_array([sum(cut) for cut in chunks], "f8", 0)
    power, whole_power = (spectrum(da.from_array(x, chunks=c))[1] for c in (chunks, -1))
    assert power.compute().shape == power.shape
    np.testing.assert_allclose(power.compute(), whole_power.compute(), atol=1e-14)


def test_a_radial_average_keeps_other_axes_and_stays_transposed():
    x = random_array((3, 900), "f8", 1)
    lazy = da.from_array(x, chunks=((2, 1), 60))
    frequencies, power = signal.radial_power_spectrum(lazy, 1)
    assert power.shape == (3, len(frequencies))
    assert exchanges(power) == [2]
    for row, values in zip(x, power.compute(), strict=True):
        edges = (np.arange(len(frequencies) + 1) - 0.5) / 900
        assert np.allclose(values, by_direction(row, (1.0,), edges))


@pytest.mark.parametrize("function", [signal.power_spectrum, signal.radial_power_spectrum])
def test_keywords_of_xarray_are_named(function):
    with pytest.raises(ArgumentTypeError, match=r"`detrend`='linear'.*\.bigfft"):
        function(np.ones((4, 4)), detrend="linear")
