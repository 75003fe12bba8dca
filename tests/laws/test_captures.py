"""300 random expressions of a spectrum between two transforms, against long double and SciPy.

All of them become one plan. Its results are as accurate as SciPy's by the same steps.
"""

import dask.array as da
import numpy as np
import pytest
import scipy.fft
from laws.law import FACTOR, exact_transform, planned
from lazy import plan_of

from dask_bigfft import fft
from dask_bigfft.testing.oracles import relative_l2
from dask_bigfft.testing.strategies import random_array

#: Forward and inverse transforms, and the kind of their input.
PAIRS = [
    ("rfftn", "irfftn", "f"),
    ("fftn", "ifftn", "c"),
    ("fftn", "ifftn", "f"),
    ("ifftn", "fftn", "c"),
    ("rfft", "irfft", "f"),
    ("fft", "ifft", "c"),
    ("ihfft", "hfft", "f"),
]

#: Shapes and chunks.
LAYOUTS = [
    ((24,), 5),
    ((35,), (10, 20, 5)),
    ((13,), 4),
    ((1,), 1),
    ((12, 15), (5, 4)),
    ((16, 8), (4, 8)),
    ((7, 18), (7, 5)),
    ((6, 5, 8), (2, 3, 8)),
    ((3, 1, 4, 2, 6), (2, 1, 4, 2, 3)),
]

#: Steps of an expression: its value so far, a complex and a real factor, a mask, and a number.
STEPS = {
    "v * h": lambda v, h, r, m, a: v * h,
    "h * v": lambda v, h, r, m, a: h * v,
    "v / h": lambda v, h, r, m, a: v / h,
    "v + h": lambda v, h, r, m, a: v + h,
    "h - v": lambda v, h, r, m, a: h - v,
    "a * v": lambda v, h, r, m, a: a * v,
    "v * r + a": lambda v, h, r, m, a: v * r + a,
    "v * exp(-r)": lambda v, h, r, m, a: v * np.exp(-r),
    "v * 1j * r": lambda v, h, r, m, a: v * (1j * r),
    "conj(v) * h": lambda v, h, r, m, a: np.conj(v) * h,
    "multiply(-v, r)": lambda v, h, r, m, a: np.multiply(-v, r),
    "where(m, v, 0)": lambda v, h, r, m, a: np.where(m, v, 0),
    "where(m, v, h)": lambda v, h, r, m, a: np.where(m, v, h),
    "real(v) + 1j * imag(v) * r": lambda v, h, r, m, a: v.real + 1j * (v.imag * r),
    "sqrt(abs(v))": lambda v, h, r, m, a: np.sqrt(abs(v)),
}

#: Last steps that are not linear, and may follow others.
LAST_STEPS = {
    "v": lambda v: v,
    "abs(v)**2": lambda v: abs(v) ** 2,
    "v * conj(v)": lambda v: v * np.conj(v),
}


class RandomFactors:
    """Factors of a spectrum, as NumPy arrays and as what a user may have in their place."""

    def __init__(self, rng, shape, is_single):
        self.rng = rng
        self.shape = shape
        self.complex = "c8" if is_single else "c16"
        self.real = "f4" if is_single else "f8"

    def factor_shape(self):
        """The shape of the spectrum, of some of its axes, or of the last one alone."""
        kind = self.rng.integers(4)
        if kind == 0:
            return self.shape[-1:]
        if kind == 1:
            return tuple(n if self.rng.integers(2) else 1 for n in self.shape)
        return self.shape

    def factor(self, dtype):
        """Values of sizes from 1/2 to 3/2."""
        shape = self.factor_shape()
        values = 0.5 + self.rng.random(shape)
        if np.dtype(dtype).kind == "c":
            values = values * np.exp(2j * np.pi * self.rng.random(shape))
        return values.astype(dtype)

    def wrapped(self, values):
        """A NumPy array, a dask array of it in chunks of three kinds, or one that is computed."""
        kind = self.rng.integers(5)
        if kind == 0:
            return values
        if kind == 1:
            return da.from_array(values)
        if kind == 2:
            return da.from_array(values, chunks=tuple(max(1, n // 2) for n in values.shape))
        if kind == 3:
            return da.from_array(values, chunks=3).rechunk(2)
        return da.from_array(values, chunks=3).map_blocks(np.copy)

    def arguments(self):
        """Arguments of a step: for NumPy, and for dask."""
        values = [self.factor(self.complex), self.factor(self.real)]
        values.append(self.factor(self.real) > 0.8)
        number = [0.5, 2, -1.5, 1 - 0.5j][self.rng.integers(4)]
        return (*values, number), (*map(self.wrapped, values), number)


def random_expression(rng, shape, is_single):
    """A function of a spectrum for NumPy, the same for dask, and its text."""
    factors = RandomFactors(rng, shape, is_single)
    names = list(rng.choice(list(STEPS), rng.integers(1, 4)))
    arguments = [factors.arguments() for _ in names]
    last = str(rng.choice(list(LAST_STEPS), p=[0.7, 0.15, 0.15]))

    def value(v, number):
        for name, own in zip(names, arguments, strict=True):
            v = STEPS[name](v, *own[number])
        return LAST_STEPS[last](v)

    return lambda y: value(y, 0), lambda y: value(y, 1), "; ".join([*names, last])


def scipy_transform(name, x, arguments):
    return getattr(scipy.fft, name)(x, **arguments)


def arguments_of(rng, name, x):
    """Axes, lengths and norms of both transforms."""
    norms = [str(norm) for norm in rng.choice(["backward", "ortho", "forward"], 2)]
    if not name.endswith("n"):
        axis = int(rng.integers(x.ndim))
        n = x.shape[axis] + int(rng.integers(3)) * int(rng.integers(2))
        shared = {"axis": axis, "n": n}
        exact = {"axes": (axis,), "lengths": (n,)}
    else:
        count = int(rng.integers(1, x.ndim + 1))
        axes = tuple(int(axis) for axis in rng.permutation(x.ndim)[:count])
        lengths = tuple(x.shape[axis] for axis in axes)
        shared = {"axes": axes, "s": lengths}
        exact = {"axes": axes, "lengths": lengths}
    return [({**shared, "norm": norm}, {**exact, "norm": norm}) for norm in norms]


def check(seed):
    """Compare one random case."""
    rng = np.random.default_rng(seed)
    forward, inverse, kind = PAIRS[rng.integers(len(PAIRS))]
    shape, chunks = LAYOUTS[rng.integers(len(LAYOUTS))]
    is_single = bool(rng.integers(2))
    dtype = {"f": ["f8", "f4"], "c": ["c16", "c8"]}[kind][is_single]
    x = random_array(shape, dtype, rng)
    (there, exact_there), (back, exact_back) = arguments_of(rng, forward, x)
    spectrum = scipy_transform(forward, x, there)
    in_numpy, in_dask, text = random_expression(rng, spectrum.shape, is_single)

    transform = getattr(fft, forward)
    product = in_dask(transform(da.from_array(x, chunks=chunks), **there))
    assert product.dtype.char in ("fF" if is_single else "dD"), text
    lazy = getattr(fft, inverse)(product, **back)
    assert plan_of(lazy).spec.transfer, (seed, text, plan_of(lazy).reason)
    result = lazy.compute()

    with np.errstate(all="ignore"):
        own_product = in_numpy(spectrum)
        own = scipy_transform(inverse, own_product, back)
        exact_product = in_numpy(exact_transform(forward, x, **exact_there))
        expected = exact_transform(inverse, exact_product, **exact_back)
    assert (result.shape, result.dtype) == (own.shape, own.dtype)
    require_accurate(result, own, expected, own_product, f"{seed}: {text}")


def require_accurate(
    result,
    own,
    expected,
    product,
    text,
):
    """The rule of all transforms, relative to what the real result drops, too."""
    eps = float(np.finfo(result.dtype).eps)
    size = float(np.linalg.norm(expected.astype(complex)))
    if size == 0:
        np.testing.assert_allclose(result, own, atol=1e-5)
        return
    error = relative_l2(result, expected)
    theirs = relative_l2(own, expected)
    # What is dropped is rounded, too.
    cancelled = float(np.linalg.norm(product)) / max(float(np.linalg.norm(own)), 1e-30)
    scale = np.sqrt(result.size)
    amplification = max(1.0, cancelled / scale, cancelled / result.size, 1.0)
    assert error <= FACTOR * theirs + 4 * amplification * eps, (
        f"{text}: error {error / eps:.1f} eps, SciPy's {theirs / eps:.1f} eps"
    )


@pytest.mark.parametrize("how", ["split", "short axes whole", "whole"])
@pytest.mark.parametrize("part", range(10))
def test_random_expressions(part, how):
    with planned(how):
        for number in range(10):
            check(seed=[part, number, len(how)])
