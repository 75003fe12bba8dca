"""Weighted sums and energies against NumPy, with and without twiddles."""

import numpy as np
import pytest

from dask_bigfft.decomposition.layout import Digit
from dask_bigfft.decomposition.steps import Step
from dask_bigfft.kernels.checks import (
    PhaseFactors,
    energy,
    energy_of_real,
    split,
    weighted_sum,
    weights_of,
)

RNG = np.random.default_rng(4)


def random(shape, dtype):
    values = RNG.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * RNG.standard_normal(shape)
    return values.astype(dtype)


def step(n, twiddle=None):
    digit = Digit(0, 1, n, n)
    return Step(0, digit, digit, twiddle=twiddle)


SHAPES = [(5, 130), (6, 9000), (3, 70, 4), (4, 6, 700), (1, 1), (2, 3, 1), (1100, 64), (7,)]


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16", "G"])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", ["real", "complex"])
@pytest.mark.parametrize("inward", [False, True])
def test_weighted_sums(dtype, shape, rows, inward):
    values, dim = random(shape, dtype), len(shape) - 1
    first = split(shape, frozenset())
    steps = ((dim, step(shape[dim])),)
    weights = weights_of(shape, values.dtype, first, steps, inward)
    if rows == "complex":
        rows = weights.rows * np.exp(2j * np.arange(len(weights.rows)))
        weights = weights._replace(rows=rows)
    lines = values.astype(complex).reshape(len(weights.rows), -1)
    wanted = weights.rows @ lines @ weights.line
    found, total = weighted_sum(values, weights)
    eps = max(np.finfo(values.dtype).eps, np.finfo(float).eps)
    assert abs(found - wanted) < 20 * eps * np.linalg.norm(np.outer(weights.rows, weights.line))
    np.testing.assert_allclose(total, np.linalg.norm(values.astype(complex)) ** 2, rtol=100 * eps)
    np.testing.assert_allclose(energy(values), total, rtol=100 * eps)


@pytest.mark.parametrize("dtype", ["c8", "c16", "G"])
@pytest.mark.parametrize("shape", [(5, 130), (6, 9000), (2, 3, 128), (1, 2), (4, 1)])
def test_sums_of_turned_values(dtype, shape):
    values, n = random(shape, dtype), shape[-1]
    rest, modulus = RNG.integers(0, 97, shape[-2]), 97 * n
    first = split(shape, frozenset({len(shape) - 1}))
    assert first == len(shape) - 1
    steps = ((first, step(n, modulus)),)
    weights = weights_of(shape, values.dtype, first, steps, False)
    turns = np.exp(-2j * np.pi * np.outer(rest, np.arange(n)) / modulus)
    turns = np.tile(turns, (len(weights.rows) // len(rest), 1))
    every = weights.rows[:, None] * weights.line * turns
    found, total = weighted_sum(values, weights, PhaseFactors(rest, modulus, -1))
    eps = max(np.finfo(values.dtype).eps, np.finfo(float).eps)
    wanted = (every.ravel() * values.ravel()).sum()
    assert abs(found - wanted) < 20 * eps * np.linalg.norm(every)
    np.testing.assert_allclose(total, np.linalg.norm(values.astype(complex)) ** 2, rtol=100 * eps)


@pytest.mark.parametrize("n", [1, 2, 5, 64, 300])
@pytest.mark.parametrize("twiddle", [None, 10**6])
@pytest.mark.parametrize("sign", [-1, 1])
def test_weights_before_and_after_belong_together(n, twiddle, sign):
    """Against the transform of values that have nothing to do with how weights are made."""
    shape, steps = (3, n), ((1, Step(0, *(Digit(0, 1, n, n),) * 2, sign=sign, twiddle=twiddle)),)
    x = random(shape, "c16")
    y = np.fft.fft(x) if sign < 0 else n * np.fft.ifft(x)
    first = split(shape, frozenset())
    one, other = (
        weighted_sum(values, weights_of(shape, x.dtype, first, steps, inward))[0]
        for values, inward in ((x, True), (y, False))
    )
    assert abs(one - other) < 1e-13 * n * np.linalg.norm(x)
    assert abs(one) > 1e-3 * np.linalg.norm(x)


@pytest.mark.parametrize("dtype", ["c8", "c16", "G"])
@pytest.mark.parametrize("n", [1, 2, 7, 8])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_half_spectra_count_in_full(dtype, n, dim):
    shape = [3, 4, 5]
    shape[dim] = n
    x = RNG.standard_normal(shape)
    half = np.fft.rfft(x, axis=dim).astype(dtype)
    found = energy_of_real(half, dim, n)
    eps = max(np.finfo(half.dtype).eps, np.finfo(float).eps)
    np.testing.assert_allclose(found, n * (x**2).sum(), rtol=100 * eps)
    assert energy_of_real(half, dim, n, energy(half)) == found


def test_not_a_number_is_seen():
    values = np.ones((4, 5000))
    values[3, 4999] = np.nan
    weights = weights_of(values.shape, values.dtype, 1, ((1, step(5000)),), False)
    assert np.isnan(weighted_sum(values, weights)[1])
    assert np.isnan(energy(values))
