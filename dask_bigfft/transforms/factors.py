"""Factors of an axis length, and the digits of its transposed order.

All functions are pure functions of integers, so independent plans agree on the digits of an axis.
"""

import itertools
import math
import operator
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import ArgumentTypeError, parse_count, parse_flag, raise_invalid

#: Lengths up to here are factored at once; a longer axis than 4 EiB elements is a mistake.
MAX_LENGTH = 2**62

#: The widest rectangle N2/N1 that `smooth_length` accepts.
MAX_RATIO = 4

_SIEVE = 1000
_SMALL_PRIMES = tuple(
    p for p in range(2, _SIEVE) if all(p % q for q in range(2, math.isqrt(p) + 1))
)
# Miller-Rabin with these bases is a proof below 3.3e24 (Sorenson and Webster, 2015).
_WITNESSES = _SMALL_PRIMES[:12]


@lru_cache(maxsize=4096)
def factorize(n: int) -> Mapping[int, int]:
    """Return the prime factors of `n` in ascending order, with their exponents.

    Parameters
    ----------
    n
        A number in 1..2**62.

    Notes
    -----
    n = prod(p**e). Trial division below 1000, then Pollard's rho with a deterministic sequence,
    so that the same call always takes the same path; the worst case, two primes near 2**31, takes
    a fraction of a second.

    Examples
    --------
    >>> factorize(360)
    {2: 3, 3: 2, 5: 1}
    >>> factorize(2**33 + 1)
    {3: 2, 67: 1, 683: 1, 20857: 1}
    >>> factorize(1)
    {}
    """
    if not 1 <= n <= MAX_LENGTH:
        raise_invalid("n", n, f"1..{MAX_LENGTH}")
    exponents = Counter[int]()
    cofactor = int(n)
    for p in _SMALL_PRIMES:
        if p * p > cofactor:
            break
        while cofactor % p == 0:
            exponents[p] += 1
            cofactor //= p
    unfactored = [cofactor] if cofactor > 1 else []
    while unfactored:
        m = unfactored.pop()
        if _is_prime(m):
            exponents[m] += 1
        else:
            d = _divisor(m)
            unfactored += [d, m // d]
    return dict(sorted(exponents.items()))


@lru_cache(maxsize=256)
def divisors(n: int) -> tuple[int, ...]:
    """Return all divisors of `n` in ascending order, 1 and `n` included.

    Examples
    --------
    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    products = [1]
    for p, exponent in factorize(n).items():
        products = [d * p**k for k in range(exponent + 1) for d in products]
    return tuple(sorted(products))


@lru_cache(maxsize=4096)
def balanced_split(n: int, parts: int = 2) -> tuple[int, ...] | None:
    """Return `parts` factors of `n`, ascending and as equal as possible.

    Each is at least 2; a single factor is `n` itself, which may be 1.

    Parameters
    ----------
    n
        A number in 1..2**62.
    parts
        Number of factors.

    Returns
    -------
    tuple of int or None
        Their product is `n`, their largest is as small as it can be, then the second largest, and
        so on. None where `n` has fewer than `parts` prime factors.

    Examples
    --------
    >>> balanced_split(24), balanced_split(24, 3), balanced_split(2**10, 3)
    ((4, 6), (2, 3, 4), (8, 8, 16))
    >>> balanced_split(7) is None
    True
    """
    if parts == 1:
        return (n,)
    if sum(factorize(n).values()) < parts:
        return None
    # In ascending order, the first divisor whose cofactor splits below it is the smallest possible
    # largest factor. n itself has one, because it has enough prime factors.
    for largest in divisors(n):
        if largest**parts < n:
            continue
        smaller = balanced_split(n // largest, parts - 1)
        if smaller is not None and smaller[-1] <= largest:
            return (*smaller, largest)
    raise AssertionError(f"{n} has no split into {parts} factors")


def parse_factors(argument: str, factors: Any, product: int | None = None) -> tuple[int, ...]:
    """Return factors as a tuple of integers, each at least 1.

    Parameters
    ----------
    argument
        Name of the argument, as the caller wrote it.
    factors
        A sequence, or an array of one axis.
    product
        Required product, if any.

    Examples
    --------
    >>> parse_factors("digits", [4, 2], 8)
    (4, 2)
    """
    allowed = "a sequence of integers of at least 1"
    if product is not None:
        allowed += f", whose product is {product}"
    if isinstance(factors, str | bytes | Mapping):
        raise_invalid(argument, factors, allowed, kind=ArgumentTypeError)
    try:
        integers = tuple(operator.index(factor) for factor in factors)
    except TypeError:
        raise_invalid(argument, factors, allowed, kind=ArgumentTypeError)
    if not integers or min(integers) < 1:
        raise_invalid(argument, factors, allowed)
    if product is not None and math.prod(integers) != product:
        raise_invalid(argument, factors, allowed)
    return integers


def transposed_digits(n: int) -> tuple[int, ...]:
    """Return the digits of an axis of length `n` in transposed order.

    Parameters
    ----------
    n
        Length of the axis.

    Returns
    -------
    tuple of int
        ``(N1, N2)``, the most balanced pair of divisors with 2 <= N1 <= N2, if N1**3 >= n;
        ``(n,)`` otherwise: then transposed order is natural order.

    Notes
    -----
    The digits depend on the length alone, never on chunks, budgets, profiles or wisdom. So spectra
    in transposed order from different plans can be multiplied element by element. The bound
    N1**3 >= n (that is N2 <= N1**2) makes the first digit worth a round: below it the columns are
    short, and the rows are nearly as long as the axis.

    Examples
    --------
    >>> transposed_digits(2**26), transposed_digits(1000), transposed_digits(12)
    ((8192, 8192), (25, 40), (3, 4))
    >>> transposed_digits(10), transposed_digits(10007)
    ((10,), (10007,))
    """
    pair = balanced_split(n)
    if pair is not None and pair[0] ** 3 >= n:
        return pair
    return (n,)


def smooth_length(n: int) -> int:
    """Return the smallest length from `n` on with no prime above 5 that splits nearly square.

    Parameters
    ----------
    n
        The least length wanted, in 1..2**60.

    Returns
    -------
    int
        A length whose `transposed_digits` are two with N2 <= 4*N1.

    Examples
    --------
    >>> smooth_length(2 * 10007 - 1), transposed_digits(20250)
    (20250, (135, 150))
    >>> smooth_length(1), smooth_length(2**26)
    (4, 67108864)
    """
    if not 1 <= n <= MAX_LENGTH // 4:
        raise_invalid("n", n, f"1..{MAX_LENGTH // 4}")
    from scipy.fft import next_fast_len  # takes 0.2 s, which errors of the command line need not

    length = int(next_fast_len(n, real=True))
    while not _is_nearly_square(transposed_digits(length)):
        length = int(next_fast_len(length + 1, real=True))
    return length


def _is_nearly_square(digits: tuple[int, ...]) -> bool:
    """Return True for two digits, the second of which is at most `MAX_RATIO` times the first."""
    return len(digits) == 2 and digits[1] <= MAX_RATIO * digits[0]


def _is_prime(n: int) -> bool:
    """Return True for a prime `n` > 1; a composite `n` has no factor below 1000."""
    if n < _SIEVE**2:
        return True
    # n - 1 = odd * 2**twos; the lowest bit that is set has the value 2**twos.
    lowest_bit = (n - 1) & -(n - 1)
    twos = lowest_bit.bit_length() - 1
    odd = (n - 1) >> twos
    return all(_is_probable_prime(n, base, odd, twos) for base in _WITNESSES)


def _is_probable_prime(
    n: int,
    base: int,
    odd: int,
    twos: int,
) -> bool:
    """Return True if an odd `n` with n - 1 = odd * 2**twos passes the Miller-Rabin test."""
    x = pow(base, odd, n)
    if x in (1, n - 1):
        return True
    for _ in range(twos - 1):
        x = x * x % n
        if x == n - 1:
            return True
    return False


def _divisor(n: int) -> int:
    """Return a divisor of a composite `n` other than 1 and `n`."""
    for c in itertools.count(1):
        divisor = _rho(n, c)
        if divisor is not None:
            return divisor
    raise AssertionError  # the count has no end


def _rho(n: int, c: int) -> int | None:
    """Return a divisor of a composite n other than 1 and n (Pollard's rho), or None.

    Taken from the cycle of y -> y*y + c.
    """
    slow = fast = 2
    divisor = 1
    while divisor == 1:
        slow = (slow * slow + c) % n
        fast = (fast * fast + c) % n
        fast = (fast * fast + c) % n
        divisor = math.gcd(abs(slow - fast), n)
    return None if divisor == n else divisor


def transposed_index(
    n: int, *, real: bool = False, digits: Sequence[int] | None = None
) -> npt.NDArray[np.int64]:
    """Return the frequency of each element of a spectrum in transposed order.

    Parameters
    ----------
    n
        Length of the axis of the signal.
    real
        Whether the spectrum is that of a real signal. Then the first output digit runs over
        0..N1//2 only, so there are (N1//2 + 1)*(n//N1) elements. Some frequencies are stored twice,
        as k and as its mirror n - k (the conjugate): element-wise products are valid, sums over
        elements are not. A single digit gives the usual n//2 + 1 elements.
    digits
        Digits N1..Nm of the spectrum, if the transform was given `digits`. The default are the
        digits of every spectrum of this length.

    Returns
    -------
    ndarray of int64
        Element k1*N2*...*Nm + ... + km (row-major in the output digits) has the frequency
        k1 + N1*k2 + N1*N2*k3 + ...

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If an argument is not allowed.

    Notes
    -----
    ``spectrum_transposed = spectrum_natural[transposed_index(n)]``.

    Examples
    --------
    >>> transposed_index(6)
    array([0, 2, 4, 1, 3, 5])
    >>> transposed_index(9, real=True)
    array([0, 3, 6, 1, 4, 7])
    >>> transposed_index(7, real=True)
    array([0, 1, 2, 3])
    >>> transposed_index(8, digits=(2, 2, 2))
    array([0, 4, 2, 6, 1, 5, 3, 7])
    """
    n = parse_count("n", n)
    real = parse_flag("real", real)
    digits = transposed_digits(n) if digits is None else parse_factors("digits", digits, n)
    counts = list(digits)
    if real:
        counts[0] = digits[0] // 2 + 1
    index: npt.NDArray[Any] = np.zeros(1, dtype=np.int64)
    weight = 1  # of the digit in the frequency
    for count, radix in zip(counts, digits, strict=True):
        contributions = weight * np.arange(count, dtype=np.int64)
        index = np.add.outer(index, contributions).ravel()
        weight *= radix
    return index
