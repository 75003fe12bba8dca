"""`TransformSpec`: digits and lengths, without dask."""

import numpy as np

from dask_bigfft.decomposition.factors import transposed_digits
from dask_bigfft.transforms.spec import transform_spec


def test_digits_are_those_of_the_length_unless_they_are_named():
    def spec(name, places, digits):
        return transform_spec(name, (places,), np.dtype("d"), order="transposed", digits=digits)

    assert spec("fft", 24, {0: (2, 12)}).digits == ((0, (2, 12)),)
    assert spec("fft", 24, transposed_digits(24)).digits == ()
    # (4//2 + 1) * 6: the digits tell the length
    assert spec("irfft", 18, {-1: (4, 6)}).lengths == (24,)
