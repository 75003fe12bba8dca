"""Frequencies against NumPy and `transposed_index`."""

import dask
import dask.array as da
import numpy as np
import pytest

from dask_bigfft import fft, transposed_index
from dask_bigfft.errors import ArgumentError, ArgumentTypeError

LENGTHS = [1, 2, 3, 4, 7, 8, 12, 36, 1001, 1024]


def signed(k, n, highest):
    return np.where(k > highest, k - n, k)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("d", [1.0, 2 * np.pi, -3])
def test_natural_order_is_numpys(n, d):
    for name in ("fftfreq", "rfftfreq"):
        expected = getattr(np.fft, name)(n, d)
        for chunks in ("auto", -(-n // 40), 5, -1):
            actual = getattr(fft, name)(n, d, chunks=chunks)
            assert actual.dtype == np.float64
            np.testing.assert_array_equal(actual.compute(), expected)


@pytest.mark.parametrize(
    ("n", "digits"),
    [
        *[(n, None) for n in LENGTHS],
        *[(24, digits) for digits in [(2, 12), [12, 2], (2, 3, 4), (24,), (3, np.int64(8))]],
    ],
)
def test_transposed_order_is_that_of_transposed_index(n, digits):
    named = {"order": "transposed", "digits": digits}
    k = transposed_index(n, digits=digits)
    actual = fft.fftfreq(n, 0.25, chunks=7, **named).compute()
    np.testing.assert_array_equal(actual, np.fft.fftfreq(n, 0.25)[k])
    k = transposed_index(n, real=True, digits=digits)
    actual = fft.rfftfreq(n, 0.25, chunks=7, **named).compute()
    np.testing.assert_array_equal(actual, signed(k, n, n // 2) * (1 / (n * 0.25)))
    in_half = k <= n // 2
    np.testing.assert_array_equal(actual[in_half], np.fft.rfftfreq(n, 0.25)[k[in_half]])
    assert np.all(actual[~in_half] < 0)


def test_the_setting_decides_where_no_order_is_given():
    with dask.config.set({"bigfft.order": "transposed"}):
        assert fft.fftfreq(12).compute()[1] == 0.25
        assert fft.fftfreq(12, order="natural").compute()[1] == 1 / 12


def test_frequencies_of_a_huge_axis_are_lazy():
    n = 2**34
    k = fft.fftfreq(n, order="transposed", chunks=2**22)
    assert k.shape == (n,)
    place = 2**33 + 12345
    digit, rest = divmod(place, 2**17)
    assert k[place].compute() == signed(np.int64(digit + 2**17 * rest), n, n // 2 - 1) * (1 / n)


# --- of a spectrum ------------------------------------------------------------------------------


@pytest.mark.parametrize("chunks", [10, 1])
@pytest.mark.parametrize("order", ["natural", "transposed"])
def test_frequencies_of_a_spectrum_in_small_blocks(order, chunks):
    """Which are cut from larger ones after the transform, and shifted after that."""
    n = 300
    spectrum = fft.fft(da.ones(n, chunks=chunks), chunks="preserve", order=order)
    expected = fft.fftfreq(n, order=order).compute()
    frequencies = fft.frequencies_of(spectrum)
    assert frequencies.chunks == spectrum.chunks
    np.testing.assert_array_equal(frequencies, expected)
    shifted = fft.fftshift(spectrum)
    np.testing.assert_array_equal(fft.frequencies_of(shifted), np.fft.fftshift(expected))
    np.testing.assert_array_equal(fft.frequencies_of(fft.ifftshift(shifted)), expected)


def test_what_frequencies_of_refuses():
    a = da.ones((8, 6), chunks=2)
    spectrum = fft.fft(a)
    np.testing.assert_array_equal(fft.frequencies_of(spectrum, -1), np.fft.fftfreq(6))
    computed = [spectrum * 2, spectrum[:, ::-1], spectrum[:0], spectrum.sum(keepdims=True)]
    for wrong in (a, *computed, fft.irfft(spectrum), fft.fftshift(a)):
        with pytest.raises(ArgumentError, match="spectrum"):
            fft.frequencies_of(wrong)
    with pytest.raises(ArgumentTypeError, match="spectrum"):
        fft.frequencies_of(np.ones(4))
    with pytest.raises(ArgumentError, match="axis"):
        fft.frequencies_of(spectrum, 0)
    with pytest.raises(ArgumentError, match="d"):
        fft.frequencies_of(spectrum, d=0)
