"""Frequencies against NumPy and `transposed_index`."""

import dask
import dask.array as da
import numpy as np
import pytest

from dask_bigfft import fft, transposed_index

LENGTHS = [1, 2, 3, 4, 6, 7, 8, 9, 12, 15, 16, 25, 36, 100, 1001, 1024]


def signed(k, n, highest):
    return np.where(k > highest, k - n, k)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("d", [1.0, 0.5, 2 * np.pi, -3])
def test_natural_order_is_numpys(n, d):
    for name in ("fftfreq", "rfftfreq"):
        expected = getattr(np.fft, name)(n, d)
        for chunks in ("auto", 1, 5, -1):
            actual = getattr(fft, name)(n, d, chunks=chunks)
            assert actual.dtype == np.float64
            np.testing.assert_array_equal(actual.compute(), expected)


@pytest.mark.parametrize("n", LENGTHS)
def test_transposed_order_is_that_of_transposed_index(n):
    k = transposed_index(n)
    actual = fft.fftfreq(n, 0.25, chunks=7, order="transposed").compute()
    np.testing.assert_array_equal(actual, np.fft.fftfreq(n, 0.25)[k])
    k = transposed_index(n, real=True)
    actual = fft.rfftfreq(n, 0.25, chunks=7, order="transposed").compute()
    np.testing.assert_array_equal(actual, signed(k, n, n // 2) * (1 / (n * 0.25)))
    kept = k <= n // 2
    np.testing.assert_array_equal(actual[kept], np.fft.rfftfreq(n, 0.25)[k[kept]])
    assert np.all(actual[~kept] < 0)


@pytest.mark.parametrize("digits", [(2, 12), (12, 2), (2, 3, 4), (24,), (3, np.int64(8))])
def test_digits_of_named_rounds(digits):
    digits = tuple(map(int, digits))
    k = transposed_index(24, digits=digits)
    actual = fft.fftfreq(24, order="transposed", digits=digits).compute()
    np.testing.assert_array_equal(actual, np.fft.fftfreq(24)[k])
    k = transposed_index(24, real=True, digits=digits)
    actual = fft.rfftfreq(24, order="transposed", digits=list(digits)).compute()
    np.testing.assert_array_equal(actual, signed(k, 24, 12) * (1 / 24))


@pytest.mark.parametrize("rounds", [None, [6, 4], [2, 3, 4], [{0: 12}, {0: -1}]])
@pytest.mark.parametrize("n", [24, 72])
def test_a_derivative_in_transposed_order(n, rounds):
    rounds = rounds if rounds is None or n == 24 else [*rounds[:-1], -1]
    x = da.from_array(np.cos(2 * np.pi * 3 * np.arange(n) / n), chunks=n // 4)
    named = {"order": "transposed", "rounds": rounds}
    digits = None
    if rounds is not None:
        digits = [next(iter(r.values())) if isinstance(r, dict) else r for r in rounds]
        digits[-1] = n // int(np.prod(digits[:-1]))
    expected = -3 * np.sin(2 * np.pi * 3 * np.arange(n) / n)

    k = fft.fftfreq(n, 1 / n, order="transposed", digits=digits)
    backwards = rounds if rounds is None else [{0: f} for f in digits[::-1]]
    result = fft.ifft(1j * k * fft.fft(x, **named), order="transposed", rounds=backwards)
    np.testing.assert_allclose(result.compute(), expected, atol=1e-12)

    k = fft.rfftfreq(n, 1 / n, order="transposed", digits=digits)
    result = fft.irfft(1j * k * fft.rfft(x, **named), n, order="transposed", rounds=backwards)
    np.testing.assert_allclose(result.compute(), expected, atol=1e-12)


def test_the_setting_decides_where_no_order_is_given():
    with dask.config.set({"bigfft.order": "transposed"}):
        assert (
            fft.fftfreq(12).compute()[1] == fft.fftfreq(12, order="transposed").compute()[1] == 0.25
        )
        assert fft.fftfreq(12, order="natural").compute()[1] == 1 / 12


def test_frequencies_of_a_huge_axis_are_lazy():
    n = 2**34
    k = fft.fftfreq(n, order="transposed", chunks=2**22)
    assert k.shape == (n,)
    place = 2**33 + 12345
    digit, rest = divmod(place, 2**17)
    assert k[place].compute() == signed(np.int64(digit + 2**17 * rest), n, n // 2 - 1) * (1 / n)
