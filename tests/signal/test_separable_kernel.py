"""Kernels that are products of a vector for each axis."""

import dask.array as da
import numpy as np
import pytest
import scipy.signal

from dask_bigfft import signal
from dask_bigfft.graph.layer import transforms_in
from dask_bigfft.signal.separable_kernel import SeparableSpectrum, separated
from dask_bigfft.testing.oracles import relative_l2
from dask_bigfft.testing.strategies import random_array

pytestmark = pytest.mark.usefixtures("small")


def gaussian(shape):
    kernel = 1.0
    for axis, n in enumerate(shape):
        line = np.exp(-((np.arange(n) - n // 2) ** 2) / n)
        kernel = kernel * np.expand_dims(line, [a for a in range(len(shape)) if a != axis])
    return kernel


@pytest.mark.parametrize("shape", [(5,), (7, 4), (3, 5, 9)])
def test_vectors_have_the_kernel_as_their_outer_product(shape):
    kernel = gaussian(shape)
    vectors = separated(kernel)
    product = np.ones(())
    for vector in vectors:
        product = product * vector
    np.testing.assert_allclose(product, kernel, rtol=1e-14)


@pytest.mark.parametrize("change", [1e-9, -0.1])
def test_other_kernels_have_no_vectors(change):
    kernel = gaussian((7, 7))
    kernel[2, 5] += change
    assert separated(kernel) is None
    assert separated(np.zeros((3, 3))) is None


@pytest.mark.parametrize("boundary", ["fill", "wrap"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_a_plan_multiplies_by_spectra_of_the_vectors(boundary, dtype):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((40, 30)).astype(dtype)
    kernel = gaussian((31, 8))
    means = signal.convolve_masked(
        da.from_array(x, (10, 30)),
        kernel,
        boundary=boundary,
        normalize_kernel=False,
        memory_limit="1 GiB",
    )
    (plan,) = transforms_in(means).values()
    assert plan.spec.factor is None  # the kernel is no operand
    edge = {"fill": "constant", "wrap": "wrap"}[boundary]
    wide = np.pad(x.astype(float), [(31, 31), (8, 8)], mode=edge)
    # The middle of an even length is place n // 2.
    expected = scipy.signal.convolve(wide, np.pad(kernel, [(0, 0), (0, 1)]), "same")[31:-31, 8:-8]
    error = 1e-4 if dtype == "f4" else 1e-11
    np.testing.assert_allclose(means, expected, atol=error)


CONVOLUTIONS = {
    "convolution": (signal.fftconvolve, scipy.signal.fftconvolve),
    "correlation": (signal.correlate, scipy.signal.correlate),
}


def kernel_of(shape, dtype):
    """A separable kernel without symmetry."""
    if dtype == "i4":
        return np.multiply.outer(np.arange(1, 1 + shape[0]), np.arange(shape[1])).astype(dtype)
    kernel = gaussian(shape) * np.linspace(1, 3, shape[0])[:, None]
    if dtype == "c16":
        kernel = kernel * np.exp(1j * np.arange(shape[1]))
    return kernel.astype(dtype)


@pytest.mark.parametrize("function", CONVOLUTIONS)
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("dtypes", ["f8 f8", "f4 f4", "c16 f8", "f8 c16", "f8 i4"])
@pytest.mark.parametrize("is_kernel_first", [False, True])
def test_a_kernel_in_memory_is_taken_apart(
    function,
    mode,
    dtypes,
    is_kernel_first,
):
    dtype, kernel_dtype = dtypes.split()
    x = random_array((48, 30), dtype, 1)
    kernel = kernel_of((13, 6), kernel_dtype)
    ours, expected_by = CONVOLUTIONS[function]
    lazy = da.from_array(x, (12, 30))
    pair = (kernel, lazy) if is_kernel_first else (lazy, kernel)
    options = {"method": "fft"} if function == "correlation" else {}
    y = ours(*pair, mode, **options)
    (plan,) = transforms_in(y).values()
    assert plan.spec.factor is None  # the kernel is no operand
    in_memory = [np.asarray(array) for array in pair]
    expected = expected_by(*in_memory, mode)
    assert y.dtype == expected.dtype
    epsilon = np.finfo("f4" if dtype == "f4" else "f8").eps
    assert relative_l2(y.compute(), expected) < 60 * epsilon


@pytest.mark.parametrize("worst", [np.nan, np.inf])
def test_a_kernel_that_is_not_finite_has_no_vectors(worst):
    kernel = gaussian((5, 5))
    kernel[1, 2] = worst
    assert separated(kernel) is None


def test_rounding_errors_of_single_values_do_not_matter():
    exact = gaussian((33, 33, 33))
    vectors = separated(exact.astype("f4"))
    total = np.prod([vector.sum() for vector in vectors])
    assert vectors[0].dtype == np.float64
    assert abs(total / exact.sum() - 1) < 1e-9


@pytest.mark.parametrize("scale", [1e-300, 1e300, -1.0])
def test_kernels_of_any_magnitude(scale):
    kernel = gaussian((5, 7, 3)) * scale
    vectors = separated(kernel)
    np.testing.assert_allclose(vectors[0] * vectors[1] * vectors[2], kernel, rtol=1e-14)


def test_vectors_that_change_sign():
    kernel = np.multiply.outer([-1.0, 0.0, 1.0], [1.0, -2.0, 1.0])
    vectors = separated(kernel)
    np.testing.assert_allclose(vectors[0] * vectors[1], kernel)


def test_products_of_a_symmetric_kernel_are_no_subnormal_numbers():
    line = np.exp(-((np.arange(65) - 32.0) ** 2) / 128)
    vectors = [np.expand_dims(line, [a for a in range(3) if a != axis]) for axis in range(3)]
    spectrum = SeparableSpectrum.of(
        vectors,
        {0: 96, 1: 96, 2: 96},
        {0: 32, 1: 32, 2: 32},
        conjugated=False,
        dtype=np.dtype("c8"),
    )
    parts = np.concatenate([values.ravel().view("f4") for values in spectrum.spectra.values()])
    magnitudes = np.abs(parts[parts != 0])
    assert magnitudes.min() ** 3 > np.finfo("f4").tiny


def test_a_kernel_is_copied():
    kernel = gaussian((7, 5))
    x = da.from_array(random_array((40, 40), "f8", 2), (10, 40))
    y = signal.fftconvolve(x, kernel)
    expected = scipy.signal.fftconvolve(x.compute(), kernel)
    kernel[:] = 0
    np.testing.assert_allclose(y, expected, atol=1e-12)
