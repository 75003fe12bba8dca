import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_bigfft.decomposition.factors import transposed_digits, transposed_index


def in_rounds(x, digits, half=False):
    """Transform x digit by digit as a plan would, by its definition; leave the output digits."""
    n = x.size
    first, *others = digits
    if not others:
        return np.fft.fft(x)[: n // 2 + 1] if half else np.fft.fft(x)
    matrix = np.fft.fft(x.reshape(first, -1), axis=0)
    matrix *= np.exp(-2j * np.pi * np.outer(np.arange(first), np.arange(n // first)) / n)
    rows = matrix[: first // 2 + 1] if half else matrix
    return np.concatenate([in_rounds(row, others) for row in rows])


LENGTHS = [1, 2, 4, 7, 8, 12, 30, 36, 49, 64, 97, 100, 105, 194, 256, 1000]


@pytest.mark.parametrize("n", LENGTHS)
def test_real_spectra(n):
    x = np.random.default_rng(n).standard_normal(n)
    index = transposed_index(n, real=True)
    first, *others = transposed_digits(n)
    assert index.size == (first // 2 + 1) * math.prod(others)
    expected = np.fft.fft(x)[index]
    spectrum = in_rounds(x, transposed_digits(n), half=True)
    np.testing.assert_allclose(spectrum, expected, atol=1e-12 * n)
    # every frequency is there, itself or as the conjugate of its mirror
    assert set(index) | set(-index % n) == set(range(n))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_places_by_their_definition(digits):
    n = math.prod(digits)
    expected = []
    for place in itertools.product(*map(range, digits)):  # row-major
        frequency, weight = 0, 1
        for k, digit in zip(place, digits, strict=True):
            frequency, weight = frequency + weight * k, weight * digit
        expected.append(frequency)
    index = transposed_index(n, digits=tuple(digits))
    assert index.dtype == np.int64
    assert index.tolist() == expected
    assert sorted(index) == list(range(n))
