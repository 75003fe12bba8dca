"""Analytic signals, derivatives, shifts and sampling rates against SciPy and formulas."""

import dask.array as da
import numpy as np
import pytest
import scipy.signal
from hypothesis import given
from hypothesis import strategies as st
from records import CASES, DTYPES, REAL, records, require_close
from responses import squared_frequencies

from dask_bigfft import signal
from dask_bigfft.errors import ArgumentError, ArgumentTypeError
from dask_bigfft.testing.strategies import chunkings, random_array

pytestmark = pytest.mark.usefixtures("small")


@CASES
@given(data=st.data(), record=records(REAL))
def test_the_analytic_signal_is_that_of_scipy(data, record):
    x, chunks, axis = record
    a = da.from_array(x, chunks)
    length = data.draw(st.sampled_from([None, 5, 8, 40]))
    expected = scipy.signal.hilbert(
        x.astype("f8"),
        length,
        axis=axis,
    )
    require_close(
        signal.hilbert(
            a,
            length,
            axis=axis,
        ),
        expected,
        x.dtype,
    )
    amplitude = np.abs(scipy.signal.hilbert(x.astype("f8"), axis=axis))
    require_close(
        signal.envelope(a, (None, None), residual=None, axis=axis),
        amplitude,
        x.dtype,
    )
    require_close(
        signal.envelope(
            a,
            (None, None),
            squared=True,
            residual=None,
            axis=axis,
        ),
        amplitude**2,
        x.dtype,
    )


def multiplied(x, axis, factors):
    """Return an array after its spectrum along an axis is multiplied, in double precision."""
    along = [1] * x.ndim
    along[axis] = -1
    spectrum = np.fft.fft(x.astype("c16"), axis=axis)
    result = np.fft.ifft(spectrum * factors.reshape(along), axis=axis)
    return result if x.dtype.kind == "c" else result.real


def derived(
    x,
    axis,
    order,
    distance,
):
    """Return a derivative of an array; an odd one is 0 at frequency N/2."""
    n = x.shape[axis]
    factors = (2j * np.pi * np.fft.fftfreq(n, distance)) ** order
    if n % 2 == 0 and order % 2:
        factors[n // 2] = 0
    return multiplied(x, axis, factors)


@CASES
@given(record=records(), order=st.integers(1, 4))
def test_derivatives_multiply_the_spectrum(record, order):
    x, chunks, axis = record
    result = signal.derivative(
        da.from_array(x, chunks),
        axis,
        order,
        d=0.5,
    )
    require_close(
        result,
        derived(
            x,
            axis,
            order,
            0.5,
        ),
        x.dtype,
        1e-10,
    )


@CASES
@given(data=st.data(), record=records(most=3))
def test_derivatives_along_several_axes(data, record):
    x, chunks, _ = record
    axes = data.draw(st.permutations(range(x.ndim)))
    axes = axes[: data.draw(st.integers(1, x.ndim))]
    distances = [0.5 + axis for axis in axes]
    a = da.from_array(x, chunks)
    laplacian = np.zeros(x.shape)
    slopes = signal.gradient(a, axes, d=distances)
    for axis, distance, slope in zip(
        axes,
        distances,
        slopes,
        strict=True,
    ):
        expected = derived(
            x,
            axis,
            1,
            distance,
        )
        require_close(
            slope,
            expected,
            x.dtype,
            1e-10,
        )
        laplacian = laplacian + derived(
            x,
            axis,
            2,
            distance,
        )
    require_close(
        signal.laplacian(a, axes, d=distances),
        laplacian,
        x.dtype,
        1e-10,
    )
    squares = squared_frequencies(
        x.shape,
        axes,
        distances,
    )
    with np.errstate(divide="ignore"):
        inverse = np.where(squares > 0, -1 / (2 * np.pi) ** 2 / squares, 0)
    potential = np.fft.ifftn(np.fft.fftn(x.astype("c16"), axes=axes) * inverse, axes=axes)
    require_close(
        signal.poisson(a, axes, d=distances),
        potential if x.dtype.kind == "c" else potential.real,
        x.dtype,
        1e-10,
    )


@CASES
@given(data=st.data(), record=records())
def test_shifts_interpolate_by_waves(data, record):
    x, chunks, axis = record
    distances = st.sampled_from([0.0, 0.5, -1.25, 3.0, 1e9 + 0.5])
    distance = data.draw(distances | st.floats(-40, 40))
    n = x.shape[axis]
    index = np.fft.fftfreq(n, 1 / n)
    turns = np.array([float(k * (distance / 0.5) / n % 1) for k in index])
    factors = np.exp(-2j * np.pi * turns)
    if n % 2 == 0 and x.dtype.kind != "c":
        factors[n // 2] = factors[n // 2].real
    result = signal.shift(
        da.from_array(x, chunks),
        distance,
        axis,
        spacing=0.5,
    )
    require_close(
        result,
        multiplied(x, axis, factors),
        x.dtype,
        1e-6,
    )


def test_whole_shifts_roll():
    x = random_array(
        (6, 9),
        "f8",
        0,
    )
    shifted = signal.shift(da.from_array(x, chunks=(4, 2)), (2, -3))
    np.testing.assert_allclose(
        shifted,
        np.roll(
            x,
            (2, -3),
            (0, 1),
        ),
        atol=1e-12,
    )


@CASES
@given(
    data=st.data(),
    record=records(),
    domain=st.sampled_from(["time", "freq"]),
)
def test_resampling_is_that_of_scipy(
    data,
    record,
    domain,
):
    x, chunks, axis = record
    num = data.draw(st.sampled_from([1, 2, 3, 8, 15, 31, 60, 64]))
    n = x.shape[axis]
    windows = [None, "hann", ("kaiser", 3.0), np.arange(1.0, n + 1), lambda f: 1 - f**2]
    window = data.draw(st.sampled_from(windows))
    t = data.draw(st.sampled_from([None, np.arange(n) * 0.5 + 3])) if n > 1 else None
    if domain == "freq":
        x = x.astype("c8" if x.dtype.char in "fF" else "c16")
    wide = x.astype("c16" if x.dtype.kind == "c" else "f8")
    expected = scipy.signal.resample(
        wide,
        num,
        t,
        axis,
        window,
        domain,
    )
    result = signal.resample(
        da.from_array(x, chunks),
        num,
        t,
        axis,
        window,
        domain,
    )
    if t is not None:
        np.testing.assert_allclose(result[1], expected[1])
        result = result[0]
        expected = expected[0]
    require_close(
        result,
        expected,
        x.dtype,
    )


@pytest.mark.parametrize("dtype", ["?", "i2", "f2", ">f4", ">c8", "f8"])
def test_every_sample_by_a_factor_of_one_is_as_precise_as_by_two(dtype):
    a = da.ones((6, 4), chunks=3, dtype=dtype)
    same = signal.downsample(a, 1, chunks=2)
    assert same.dtype == same.compute().dtype == signal.downsample(a, 2).dtype
    assert same.chunks == ((2, 2, 2), (2, 2))
    np.testing.assert_array_equal(same, np.ones((6, 4)))


@CASES
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_every_sample_of_an_array_without_aliases(data, dtype):
    factors = [data.draw(st.integers(1, 4)) for _ in range(2)]
    shape = [data.draw(st.integers(1, 20)) for _ in range(2)]
    x = random_array(
        shape,
        dtype,
        0,
    )
    result = signal.downsample(da.from_array(x, data.draw(chunkings(shape))), factors)
    limited = x.astype("c16" if x.dtype.kind == "c" else "f8")
    for axis, count in enumerate(factors):
        index = np.abs(np.fft.fftfreq(shape[axis], 1 / shape[axis])).round()
        keeps = 2 * index * count <= shape[axis]
        limited = multiplied(limited, axis, keeps)
    expected = limited[:: factors[0], :: factors[1]]
    is_unchanged = factors == [1, 1]
    if is_unchanged:
        np.testing.assert_array_equal(result, x)
    else:
        require_close(
            result,
            expected,
            dtype,
        )


def test_downsampling_by_a_divisor_is_resampling():
    x = random_array(
        (60, 3),
        "f8",
        0,
    )
    a = da.from_array(x, chunks=(7, 2))
    expected = scipy.signal.resample(
        x,
        15,
        axis=0,
    )
    np.testing.assert_allclose(
        signal.downsample(
            a,
            4,
            0,
        ),
        expected,
        atol=1e-12,
    )


REFUSED = [
    (
        signal.hilbert,
        {"x": da.zeros(4, dtype=complex)},
        ArgumentTypeError,
        "`x`",
    ),
    (
        signal.hilbert,
        {"N": 0},
        ArgumentError,
        "N",
    ),
    (
        signal.derivative,
        {"order": 0},
        ArgumentError,
        "order",
    ),
    (
        signal.derivative,
        {"axis": 3},
        ArgumentError,
        "axis",
    ),
    (
        signal.shift,
        {"distance": np.nan},
        ArgumentError,
        "distance",
    ),
    (
        signal.shift,
        {"distance": [1, 2]},
        ArgumentError,
        "distance",
    ),
    (
        signal.resample,
        {"num": 0},
        ArgumentError,
        "num",
    ),
    (
        signal.resample,
        {"num": 3, "window": "tall"},
        ArgumentError,
        "window",
    ),
    (
        signal.resample,
        {"num": 3, "window": np.ones(3)},
        ArgumentError,
        "window",
    ),
    (
        signal.resample,
        {"num": 3, "t": [1]},
        ArgumentError,
        "`t`",
    ),
    (
        signal.resample,
        {"num": 3, "domain": "space"},
        ArgumentError,
        "domain",
    ),
    (
        signal.downsample,
        {"factor": 0},
        ArgumentError,
        "factor",
    ),
    (
        signal.downsample,
        {"factor": [2, 2]},
        ArgumentError,
        "factor",
    ),
]


@pytest.mark.parametrize(("function", "changed", "kind", "named"), REFUSED)
def test_wrong_arguments_are_named(
    function,
    changed,
    kind,
    named,
):
    with pytest.raises(kind, match=named):
        function(**{"x": da.ones(20, chunks=6), **changed})
