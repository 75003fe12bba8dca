"""Weighted sums and energies against NumPy, with and without twiddles."""

import numpy as np
import pytest

from dask_bigfft.kernels.sums import WIDTH, Turn, Weights, energy, weighted_sum

RNG = np.random.default_rng(4)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("shape", [(5, 130), (6, 9000), (3, 70, 4), (4, 6, 700), (1, 1), (2, 3, 1)])
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("turned", [False, True])
def test_weighted_sums(dtype, shape, dim, turned):
    values = RNG.standard_normal(shape)
    if dtype[0] == "c":
        values = values + 1j * RNG.standard_normal(shape)
    elif turned:
        pytest.skip("what has a twiddle is complex")
    values = values.astype(dtype)
    n, outer = shape[dim], int(np.prod(shape[:dim]))
    outer_weights, inner = (np.exp(2j * np.pi * RNG.random(k)) for k in (-(-n // WIDTH), WIDTH))
    weights = np.outer(outer_weights, inner).ravel()[:n]
    turn, factors = None, np.ones((outer, n))
    if turned:
        rest = RNG.integers(0, 97, outer)
        turn = Turn(rest, 97 * n, -1)
        factors = np.exp(-2j * np.pi * np.outer(rest, np.arange(n)) / (97 * n))
    lines = values.astype(complex).reshape(outer, n, -1)
    wanted = np.einsum("onk,on,n->ok", lines, factors, weights)
    found, total = weighted_sum(values, dim, Weights(weights, values.dtype), turn)
    eps = np.finfo(values.dtype).eps
    assert found.shape == shape[:dim] + shape[dim + 1 :]
    np.testing.assert_allclose(found.ravel(), wanted.ravel(), atol=200 * eps * np.sqrt(n))
    np.testing.assert_allclose(total, np.linalg.norm(values.astype(complex)) ** 2, rtol=100 * eps)
    np.testing.assert_allclose(energy(values), total, rtol=100 * eps)


def test_not_a_number_is_seen():
    values = np.ones((4, 5000))
    values[3, 4999] = np.nan
    assert np.isnan(weighted_sum(values, 1, Weights(np.ones(5000), values.dtype))[1])
    assert np.isnan(energy(values))
