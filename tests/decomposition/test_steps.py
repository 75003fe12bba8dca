"""Programs, read as the sums that they stand for."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dask_bigfft.decomposition.factors import transposed_digits
from dask_bigfft.decomposition.order import transposed_index
from dask_bigfft.decomposition.steps import axis_program, flat_digits, half

FACTORS = st.lists(st.integers(1, 6), min_size=1, max_size=4).map(tuple)


def executed(program, x, sign):
    """A program run on one line: an array with one dimension per digit, step by step."""
    digits = [step.source for step in program.steps]
    found = np.asarray(x, complex).reshape([d.radix for d in digits])
    for step in program.steps:
        dim = digits.index(step.source)
        roots = np.exp(
            sign * 2j * np.pi * np.multiply.outer(*[np.arange(step.length)] * 2) / step.length
        )
        found = np.moveaxis(np.tensordot(roots, found, (1, dim)), 0, dim)
        digits[dim] = step.target
        if step.twiddle is None:
            continue
        for place in np.ndindex(found.shape):
            rest = sum(
                v * d.stride
                for v, d in zip(place, digits, strict=True)
                if d.stage == step.source.stage
            )
            found[place] *= np.exp(sign * 2j * np.pi * place[dim] * rest / step.twiddle)
    out = np.empty(math.prod(found.shape), complex)
    for place in np.ndindex(found.shape):
        out[sum(v * d.stride for v, d in zip(place, digits, strict=True))] = found[place]
    return out


@given(factors=FACTORS, sign=st.sampled_from([-1, 1]))
def test_a_program_is_a_fourier_transform(factors, sign):
    n = math.prod(factors)
    x = np.random.default_rng(n).standard_normal(n)
    program = axis_program(0, n, factors, sign=sign)
    assert all(step.sign == sign for step in program.steps)
    expected = np.fft.fft(x) if sign < 0 else np.fft.ifft(x) * n
    np.testing.assert_allclose(executed(program, x, sign), expected, atol=1e-9)


@pytest.mark.parametrize("n", [1, 2, 7, 10, 12, 36, 97, 1000, 2**13])
@pytest.mark.parametrize("real", [False, True])
def test_flat_digits_are_the_transposed_index(n, real):
    digits = flat_digits(1, n, "transposed", real=real)
    assert tuple(d.radix for d in digits) == transposed_digits(n)
    index = np.zeros(1, int)
    for digit in digits:
        index = np.add.outer(index, digit.stride * np.arange(digit.size)).ravel()
    np.testing.assert_array_equal(index, transposed_index(n, real=real))
    (natural,) = flat_digits(1, n, "natural", real=real)
    assert (natural.size, natural.radix) == (half(n) if real else n, n)


@given(factors=st.lists(st.integers(2, 6), min_size=2, max_size=4).map(tuple))
def test_bluesteins_digits_come_back_to_where_they_were(factors):
    """The reordering between the forward and the inverse FFT never happens."""
    length = (math.prod(factors) + 1) // 2
    program = axis_program(0, length, factors, bluestein=True)
    digits = [s.source for s in program.steps[: len(factors)]]
    for step in program.steps:
        digits[digits.index(step.source)] = step.target
    stride = 1
    for digit in digits[::-1]:
        assert (digit.stage, digit.stride) == (2, stride)
        stride *= digit.radix
