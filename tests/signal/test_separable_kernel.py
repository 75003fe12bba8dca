"""Kernels that are products of a vector for each axis."""

import dask.array as da
import numpy as np
import pytest
import scipy.signal

from dask_bigfft import signal
from dask_bigfft.graph.layer import transforms_in
from dask_bigfft.signal.separable_kernel import separated

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
