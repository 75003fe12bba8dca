"""Random arrays with chunks and an axis, and a comparison in the precision of their dtype."""

import numpy as np
from hypothesis import Phase, settings
from hypothesis import strategies as st

from dask_bigfft.testing.strategies import chunkings, random_array

#: Random cases of a function: at least 100, and more where the profile asks for more.
CASES = settings(max_examples=max(100, settings.default.max_examples), phases=[Phase.generate])
REAL = ["f8", "f4", "i2"]
DTYPES = [*REAL, "c16", "c8"]


def require_close(
    result,
    expected,
    dtype,
    error=1e-12,
):
    """Fail where values or the precision differ."""
    is_single = np.dtype(dtype).char in "fF"
    assert result.shape == expected.shape
    real_dtype = np.empty(0, result.dtype).real.dtype
    assert real_dtype == ("f4" if is_single else "f8")
    assert (result.dtype.kind == "c") == (expected.dtype.kind == "c")
    largest = np.abs(expected).max(initial=1e-3)
    tolerance = largest * (2e-5 if is_single else error)
    np.testing.assert_allclose(
        result.compute(),
        expected,
        rtol=0,
        atol=tolerance,
    )


@st.composite
def records(
    draw,
    dtypes=DTYPES,
    most=2,
):
    """Return an array, its chunks and an axis."""
    ndim = draw(st.integers(1, most))
    axis = draw(st.integers(-ndim, ndim - 1))
    shape = [draw(st.integers(1, 6)) for _ in range(ndim)]
    shape[axis] = draw(st.sampled_from([1, 2, 3, 4, 16, 31, 60]))
    dtype = draw(st.sampled_from(dtypes))
    return (
        random_array(
            shape,
            dtype,
            draw(st.integers(0, 9)),
        ),
        draw(chunkings(shape)),
        axis,
    )
