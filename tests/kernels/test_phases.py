import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels.test_twiddle import EPS, LONG, exact

from dask_bigfft.kernels.twiddle import chirp, mulmod, unit_roots

MODULI = [1, 2, 3, 8, 360, 4096, 10007, 2**20 + 7, LONG, 2**52, 2**59 + 3, 2**60]


def sample(m, count=300, seed=0):
    """Numbers below m: random ones, and those near 0, m and the eighths of m."""
    rng = np.random.default_rng(seed)
    edges = [m * j // 8 + d for j in range(9) for d in (-2, -1, 0, 1, 2)]
    t = np.concatenate([rng.integers(0, m, count), np.array(edges, dtype=np.int64)])
    return t % m


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("m", MODULI)
def test_roots_of_unity(m, sign):
    t = sample(m)
    expected = exact(2 * sign * t, m)
    for dtype, eps in EPS.items():
        roots = unit_roots(t, m, sign, np.dtype(dtype))
        assert roots.dtype == dtype
        assert np.abs(roots - expected).max() < eps
        for part, wanted in ((roots.real, expected.real), (roots.imag, expected.imag)):
            # relative to the part, so that small sines are held to it as well
            assert (np.abs(part - wanted) <= 2.5 * eps * np.abs(wanted)).all()


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
def test_chirps(length, sign):
    n = sample(2 * length)
    expected = exact([int(k) ** 2 % (2 * length) * sign for k in n], length)
    np.testing.assert_allclose(
        chirp(n, length, sign),
        expected,
        rtol=0,
        atol=EPS["c16"],
    )
    np.testing.assert_array_equal(chirp(-n, length, sign), chirp(n, length, sign))
    assert chirp(n, length, sign, np.complex64).dtype == np.complex64
