import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_bigfft.kernels.twiddle import chirp, mulmod, unit_roots

LONG = 2**33 + 1
MODULI = [1, 2, 3, 8, 360, 4096, 10007, 2**20 + 7, LONG, 2**52, 2**59 + 3, 2**60]
EPS = np.finfo(np.float64).eps


def by_long_double(t, m, sign):
    """Roots of unity from Python integers reduced to an eighth of a turn, in long double."""
    eighth_turn = np.arctan(np.longdouble(1))
    result = []
    for k in t:
        octant, rest = divmod(8 * (int(k) % m), m)
        if octant % 2:
            octant, rest = octant + 1, rest - m
        angle = eighth_turn * (np.longdouble(rest) / np.longdouble(m))
        real, imag = np.cos(angle), np.sin(angle)
        for _ in range(octant // 2):
            real, imag = -imag, real
        result.append(real + 1j * sign * imag)
    return np.array(result, dtype=np.clongdouble)


def sample(m, count=300, seed=0):
    """Numbers below m: random ones, and those near 0, m and the eighths of m."""
    rng = np.random.default_rng(seed)
    edges = [m * j // 8 + d for j in range(9) for d in (-2, -1, 0, 1, 2)]
    t = np.concatenate([rng.integers(0, m, count), np.array(edges, dtype=np.int64)])
    return t % m


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("m", MODULI)
def test_roots_against_long_double(m, sign):
    t = sample(m)
    expected = by_long_double(t, m, sign)
    for dtype, eps in [(np.complex64, 2.0**-23), (np.complex128, EPS)]:
        roots = unit_roots(t, m, sign, dtype)
        assert roots.dtype == dtype
        assert np.abs(roots - expected).max() < 1.0 * eps


@pytest.mark.parametrize("m", MODULI)
def test_roots_against_mpmath(m):
    mpmath = pytest.importorskip("mpmath")
    t = sample(m, 100)
    eps = {np.complex128: EPS, np.clongdouble: float(np.finfo(np.longdouble).eps)}
    with mpmath.workprec(200):
        expected = [mpmath.expjpi(mpmath.mpf(-2 * int(k)) / m) for k in t]
        for dtype, unit in eps.items():
            for root, exact in zip(unit_roots(t, m, -1, dtype), expected, strict=True):
                for part, exact_part in [(root.real, exact.real), (root.imag, exact.imag)]:
                    high = float(part)
                    error = mpmath.mpf(high) + mpmath.mpf(float(part - high)) - exact_part
                    # relative to the part, so that small sines are held to it as well
                    assert abs(error) <= 2.5 * unit * abs(exact_part)


NEAR = [1, 2, 2**31, 2**34, 2**42, 2**59]


@given(st.data())
def test_mulmod_against_python(data):
    near = data.draw(st.sampled_from(NEAR))
    m = data.draw(st.integers(max(1, near - 1000), near + 1000) | st.integers(1, 2**60))
    numbers = st.lists(st.integers(0, m - 1) | st.integers(max(0, m - 3), m - 1), min_size=1)
    a = np.array(data.draw(numbers), dtype=np.int64)
    b = np.array(data.draw(numbers), dtype=np.int64)
    product = mulmod(a[:, None], b, m)
    assert product.dtype == np.int64
    assert product.tolist() == [[int(x) * int(y) % m for y in b] for x in a]


@pytest.mark.parametrize("length", [1, 2, 7, 10**5 + 3, 2**32, LONG, 2**59 - 1])
@pytest.mark.parametrize("sign", [-1, 1])
def test_chirps_against_long_double(length, sign):
    n = sample(2 * length)
    expected = by_long_double([int(k) ** 2 for k in n], 2 * length, sign)
    np.testing.assert_allclose(chirp(n, length, sign), expected, rtol=0, atol=EPS)
    np.testing.assert_array_equal(chirp(-n, length, sign), chirp(n, length, sign))
    assert chirp(n, length, sign, np.complex64).dtype == np.complex64
