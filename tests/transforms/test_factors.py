import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_bigfft.transforms.factors import factorize, smooth_length, transposed_digits

SMALL = st.integers(1, 5000)


@pytest.mark.parametrize(
    ("n", "expected"),
    [
        (2**62, {2: 62}),
        (2**61 - 1, {2**61 - 1: 1}),
        ((2**31 - 1) ** 2, {2**31 - 1: 2}),
        ((2**31 - 1) * (2**31 - 19), {2**31 - 19: 1, 2**31 - 1: 1}),
        (1009**3 * 1013, {1009: 3, 1013: 1}),
        (
            2**33 + 1,
            {
                3: 2,
                67: 1,
                683: 1,
                20857: 1,
            },
        ),
        # strong pseudoprimes: to bases 2..7, to bases 2..11, and to bases 2..29
        (3215031751, {151: 1, 751: 1, 28351: 1}),
        (2152302898747, {6763: 1, 10627: 1, 29947: 1}),
        (3825123056546413051, {149491: 1, 747451: 1, 34233211: 1}),
    ],
)
def test_hard_numbers(n, expected):
    assert factorize(n) == expected


@given(SMALL)
def test_transposed_digits_by_their_definition(n):
    pairs = [(d, n // d) for d in range(2, math.isqrt(n) + 1) if n % d == 0]
    best = max(pairs, default=None)
    expected = best if best is not None and best[0] ** 3 >= n else (n,)
    assert transposed_digits(n) == expected


def test_transposed_digits_of_named_lengths():
    # A change here changes what every stored spectrum in transposed order means.
    table = {
        1: (1,),
        2: (2,),
        4: (2, 2),
        8: (2, 4),
        16: (4, 4),
        27: (3, 9),
        97: (97,),
        100: (10, 10),
        2 * 97: (194,),
        12**3: (36, 48),
        2**25: (4096, 8192),
        10**9: (31250, 32000),
        2**33 + 1: (62571, 137283),
        2**40: (2**20, 2**20),
    }
    assert {n: transposed_digits(n) for n in table} == table


def brute_smooth_length(n):
    while True:
        digits = transposed_digits(n)
        only = max(factorize(n), default=1) <= 5
        if only and len(digits) == 2 and digits[1] <= 4 * digits[0]:
            return n
        n += 1


@given(SMALL)
def test_smooth_length_against_counting_up(n):
    assert smooth_length(n) == brute_smooth_length(n)
