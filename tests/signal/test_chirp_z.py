"""Chirp z-transforms against SciPy, and against exact sums on long axes."""

import cmath
from fractions import Fraction

import dask.array as da
import mpmath
import numpy as np
import pytest
import scipy.signal
from hypothesis import given
from hypothesis import strategies as st
from lazy import plans_of
from records import CASES

from dask_bigfft import signal
from dask_bigfft.errors import ArgumentError, ArgumentTypeError
from dask_bigfft.signal.chirp_z import turns_of
from dask_bigfft.testing.strategies import chunkings, random_array

pytestmark = pytest.mark.usefixtures("small")

DTYPES = ["f8", "f4", "c16", "c8", "i2"]


@st.composite
def records(draw):
    """Return an array, its chunks, and an axis."""
    ndim = draw(st.integers(1, 3))
    axis = draw(st.integers(-ndim, ndim - 1))
    shape = [draw(st.integers(1, 3)) for _ in range(ndim)]
    shape[axis] = draw(st.sampled_from([1, 2, 3, 16, 31, 60, 97]))
    dtype = draw(st.sampled_from(DTYPES))
    return (
        random_array(
            shape,
            dtype,
            draw(st.integers(0, 9)),
        ),
        draw(chunkings(shape)),
        axis,
    )


def require_close(
    result,
    expected,
    dtype,
):
    """Fail where values or the precision differ."""
    is_single = np.dtype(dtype).char in "fF"
    assert result.dtype == ("c8" if is_single else "c16")
    assert result.shape == expected.shape
    largest = np.abs(expected).max(initial=1)
    error = 2e-5 if is_single else 1e-11
    np.testing.assert_allclose(
        result.compute(),
        expected,
        rtol=0,
        atol=error * largest,
    )


@CASES
@given(data=st.data(), record=records())
def test_the_transform_is_that_of_scipy(data, record):
    x, chunks, axis = record
    m = data.draw(st.sampled_from([None, 1, 2, 50]))
    w = data.draw(st.sampled_from([None, cmath.exp(-0.05j), 1.002 * cmath.exp(0.3j), -1 + 0j]))
    a = data.draw(st.sampled_from([1, 1j, 0.99 * cmath.exp(0.2j)]))
    wide = x.astype("c16")
    expected = scipy.signal.czt(
        wide,
        m,
        w,
        a,
        axis=axis,
    )
    result = signal.czt(
        da.from_array(x, chunks),
        m,
        w,
        a,
        axis=axis,
    )
    require_close(
        result,
        expected,
        x.dtype,
    )


@CASES
@given(data=st.data(), record=records())
def test_a_zoom_is_that_of_scipy(data, record):
    x, chunks, axis = record
    m = data.draw(st.sampled_from([None, 2, 50]))
    fn = data.draw(st.sampled_from([0.7, [0.1, 0.4], (1.5, -0.2), 3.0]))
    endpoint = data.draw(st.booleans())
    if endpoint and x.shape[axis] == 1 and m is None:
        m = 3
    options = {"fs": data.draw(st.sampled_from([2, 10.0])), "endpoint": endpoint, "axis": axis}
    expected = scipy.signal.zoom_fft(
        x.astype("c16"),
        fn,
        m,
        **options,
    )
    result = signal.zoom_fft(
        da.from_array(x, chunks),
        fn,
        m,
        **options,
    )
    require_close(
        result,
        expected,
        x.dtype,
    )


def exact_sum(
    x,
    low,
    step,
    k,
):
    """The spectrum at one frequency in cycles per sample, with exact angles."""
    frequency = Fraction(low) + k * step
    turns = [float(frequency * n % 1) for n in range(len(x))]
    return np.sum(x * np.exp(-2j * np.pi * np.array(turns)))


@pytest.mark.parametrize("m", [20_011, 7])
def test_angles_are_exact_on_a_long_axis(m):
    x = random_array(
        (20_000,),
        "c16",
        0,
    )
    low = 0.1
    high = 0.1 + 1e-4
    spectrum = signal.zoom_fft(
        da.from_array(x, chunks=3000),
        [low, high],
        m,
        fs=1.0,
    ).compute()
    step = (Fraction(high) - Fraction(low)) / m
    for k in (0, m // 3, m - 1):
        expected = exact_sum(
            x,
            low,
            step,
            k,
        )
        assert abs(spectrum[k] - expected) < 1e-12 * np.abs(x).sum()


def test_angles_are_exact_far_from_the_first_sample():
    from dask_bigfft.signal.chirp_z import Chirp

    square = Fraction(0.1234567)
    slope = Fraction(0.3)
    first = 10**12 + 7
    values = Chirp(square, slope).values(first, 3000)
    for j in (0, 1, 1023, 1024, 2999):
        k = first + j
        turn = float((square * k * k / 2 + slope * k) % 1)
        assert abs(values[j] - cmath.exp(2j * cmath.pi * turn)) < 1e-14


@pytest.mark.parametrize("z", [1, -1, 1j, cmath.exp(-2e-9j), 3 - 4j, -0.1 - 1e-12j])
def test_the_argument_of_a_number_has_twice_the_digits(z):
    with mpmath.workdps(60):
        exact = mpmath.arg(mpmath.mpmathify(complex(z))) / (2 * mpmath.pi)
        turns = turns_of(complex(z))
        assert abs(mpmath.mpf(turns.numerator) / turns.denominator - exact) < 1e-30


def test_a_nan_stays_in_its_line():
    x = random_array(
        (3, 40),
        "f8",
        0,
    )
    x[1, 5] = np.nan
    for spectrum in (
        signal.czt(da.from_array(x, chunks=(1, 7))),
        signal.zoom_fft(da.from_array(x, chunks=(3, 7)), 0.3),
    ):
        is_nan = np.isnan(spectrum.compute()).all(axis=1)
        np.testing.assert_array_equal(is_nan, [False, True, False])


@pytest.mark.parametrize("dtype", ["f4", "c8", "f2"])
@pytest.mark.parametrize("modulus", [0.997, 1.003])
def test_single_precision_on_a_spiral(modulus, dtype):
    """The chirp grows by the factor of 1.003 ** (131**2 / 2), 10 to the power of 11."""
    x = random_array(
        (2, 131),
        dtype,
        0,
    )
    w = modulus * cmath.exp(-0.06j * cmath.pi)
    powers = w ** np.outer(np.arange(131), np.arange(19))
    expected = x.astype("c16") @ powers
    spectrum = signal.czt(
        da.from_array(x, chunks=(1, 40)),
        19,
        w,
    )
    require_close(
        spectrum,
        expected,
        "c8",
    )


def test_the_unit_circle_keeps_single_precision():
    """The modulus of a rounded `w` is 1 but for the last digits."""
    x = da.ones(1000, dtype="f4", chunks=300)
    (result,) = plans_of(signal.czt(x, 1000, cmath.exp(-0.001j)))
    assert result.spec.work_dtype == "c8"
    (result,) = plans_of(signal.czt(x, 1000, 1.0001 * cmath.exp(-0.001j)))
    assert result.spec.work_dtype == "c16"


@pytest.mark.parametrize("dtype", ["f4", "f8"])
@pytest.mark.parametrize("lazy", [False, True])
def test_no_rows_have_no_spectra(dtype, lazy):
    x = np.ones((0, 3), dtype)
    if lazy:
        x = da.from_array(x)
    for spectrum in (
        signal.czt(x, 4),
        signal.zoom_fft(x, 0.3, 4),
    ):
        assert spectrum.dtype == np.result_type(dtype, np.complex64)
        assert spectrum.compute().shape == spectrum.shape == (0, 4)


REFUSED = [
    (
        signal.czt,
        {"m": 10_000, "w": 0.99},
        ArgumentError,
        "`w`.*overflow",
    ),
    (
        signal.czt,
        {"m": 0},
        ArgumentError,
        "`m`",
    ),
    (
        signal.czt,
        {"m": 2.5},
        ArgumentTypeError,
        "`m`",
    ),
    (
        signal.czt,
        {"w": 0},
        ArgumentError,
        "`w`",
    ),
    (
        signal.czt,
        {"w": "one"},
        ArgumentTypeError,
        "`w`",
    ),
    (
        signal.czt,
        {"a": np.inf},
        ArgumentError,
        "`a`",
    ),
    (
        signal.czt,
        {"axis": 1},
        ArgumentError,
        "axis",
    ),
    (
        signal.czt,
        {"x": da.zeros(0)},
        ArgumentError,
        "`x`",
    ),
    (
        signal.czt,
        {"workers": 1},
        ArgumentTypeError,
        "workers",
    ),
    (
        signal.zoom_fft,
        {"fn": [1, 2, 3]},
        ArgumentError,
        "fn",
    ),
    (
        signal.zoom_fft,
        {"fn": "low"},
        ArgumentTypeError,
        "fn",
    ),
    (
        signal.zoom_fft,
        {"fn": np.nan},
        ArgumentError,
        "fn",
    ),
    (
        signal.zoom_fft,
        {"fn": 1, "fs": 0},
        ArgumentError,
        "fs",
    ),
    (
        signal.zoom_fft,
        {"fn": 1, "m": 1, "endpoint": True},
        ArgumentError,
        "endpoint",
    ),
    (
        signal.zoom_fft,
        {"fn": 1, "endpoint": "no"},
        ArgumentTypeError,
        "endpoint",
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
        function(**{"x": da.zeros(20, chunks=5), **changed})
