import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_bigfft.transforms.factors import transposed_digits, transposed_index


@pytest.mark.parametrize("n", [1, 2, 4, 7, 8, 12, 30, 36, 49, 97, 100, 105, 194, 1000])
def test_half_a_spectrum_is_the_first_rows_of_the_whole(n):
    first = transposed_digits(n)[0]
    index = transposed_index(n, real=True)
    rows = transposed_index(n).reshape(first, -1)[: first // 2 + 1]
    np.testing.assert_array_equal(index, rows.ravel())
    # every frequency is there, itself or as the conjugate of its mirror
    assert set(index) | set(-index % n) == set(range(n))


@given(st.lists(st.integers(1, 6), min_size=1, max_size=4))
def test_places_by_their_definition(digits):
    n = math.prod(digits)
    expected = []
    for place in itertools.product(*map(range, digits)):  # row-major
        frequency = 0
        weight = 1
        for k, digit in zip(place, digits, strict=True):
            frequency, weight = frequency + weight * k, weight * digit
        expected.append(frequency)
    index = transposed_index(n, digits=tuple(digits))
    assert index.dtype == np.int64
    assert index.tolist() == expected
    assert sorted(index) == list(range(n))
