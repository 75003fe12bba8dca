"""`TransformSpec`: shapes, dtypes and lengths against NumPy, without dask."""

import numpy as np
import pytest

from dask_bigfft.decomposition.factors import transposed_digits
from dask_bigfft.errors import ArgumentError
from dask_bigfft.transforms.spec import transform_spec


def test_digits_are_those_of_the_length_unless_they_are_named():
    def spec(name, places=24, **keywords):
        return transform_spec(name, (places,), np.dtype("d"), order="transposed", **keywords)

    assert spec("fft", digits={0: (2, 12)}).digits == ((0, (2, 12)),)
    assert spec("fft", digits={0: transposed_digits(24)}).digits == ()
    assert spec("fft", factors={0: (2, -1)}, digits={0: (2, 12)}).digits == ((0, (2, 12)),)
    assert spec("ifft", factors={0: (2, 12)}, digits={0: (12, 2)}).digits == ((0, (12, 2)),)
    # (4//2 + 1) * 6: the digits tell the length
    assert spec("irfft", places=18, digits={0: (4, 6)}).lengths == (24,)
    for name, factors in (("fft", (2, 12)), ("ifft", (4, 6)), ("rfft", (24,))):
        with pytest.raises(ArgumentError, match=r"`rounds`.*digits"):
            spec(name, factors={0: factors})
    assert transform_spec("fft", (24,), np.dtype("d"), factors={0: (2, 12)}).digits == ()
