"""Envelopes against SciPy, where it has them, and against the analytic signal."""

import dask.array as da
import numpy as np
import pytest
import scipy.signal
from hypothesis import given
from hypothesis import strategies as st
from records import CASES

from dask_bigfft import signal
from dask_bigfft.errors import ArgumentError, ArgumentTypeError
from dask_bigfft.testing.strategies import chunkings, random_array

pytestmark = pytest.mark.usefixtures("small")


@st.composite
def bands(draw, n):
    """Return the first bin of a band and its end, which may be None."""
    low = -(n // 2)
    high = (n + 1) // 2
    start = draw(st.integers(low, high - 1))
    stop = draw(st.integers(start + 1, high))
    if stop == 0:  # SciPy takes the end of the array for it
        stop = 1
    return (
        draw(st.sampled_from([start, start, None])),
        draw(st.sampled_from([stop, stop, None])),
    )


@CASES
@given(data=st.data(), dtype=st.sampled_from(["f8", "f4", "c16", "c8", "i2"]))
def test_envelopes_are_those_of_scipy(data, dtype):
    if not hasattr(scipy.signal, "envelope"):
        pytest.skip("this SciPy has no envelope()")
    ndim = data.draw(st.integers(1, 3))
    axis = data.draw(st.integers(-ndim, ndim - 1))
    shape = [data.draw(st.integers(1, 3)) for _ in range(ndim)]
    n = data.draw(st.sampled_from([1, 2, 3, 7, 16, 31, 60]))
    shape[axis] = n
    z = random_array(shape, dtype, data.draw(st.integers(0, 9)))
    options = {
        "bp_in": data.draw(bands(n)),
        "n_out": data.draw(st.sampled_from([None, n, 1, 5, 8, 2 * n, n + 1])),
        "squared": data.draw(st.booleans()),
        "residual": data.draw(st.sampled_from(["lowpass", "all", None])),
        "axis": axis,
    }
    wide = z.astype("c16" if z.dtype.kind == "c" else "f8")
    expected = scipy.signal.envelope(wide, **options)
    result = signal.envelope(da.from_array(z, data.draw(chunkings(shape))), **options)
    is_single = dtype in ("f4", "c8")
    assert result.shape == expected.shape
    assert result.dtype.itemsize * (2 if is_single else 1) == expected.dtype.itemsize
    values = result.compute()
    assert values.dtype == result.dtype
    error = 2e-4 if is_single else 1e-11
    largest = np.abs(expected).max(initial=1)
    np.testing.assert_allclose(values, expected, rtol=0, atol=error * largest)


def test_envelope_and_residual_can_be_unpacked():
    time = np.arange(400) / 400
    drift = np.cos(2 * np.pi * time)
    carrier = (2 + np.cos(4 * np.pi * time)) * np.cos(2 * np.pi * 50 * time)
    lazy = da.from_array(drift + carrier, chunks=90)
    amplitude, rest = signal.envelope(lazy, (10, None), residual="all")
    np.testing.assert_allclose(amplitude, 2 + np.cos(4 * np.pi * time), atol=1e-12)
    np.testing.assert_allclose(rest, drift, atol=1e-12)
    assert amplitude.chunks == rest.chunks


def test_chunks_are_those_of_the_envelope():
    lazy = da.ones(40, chunks=7)
    assert signal.envelope(lazy, n_out=20, chunks=5).chunks == ((1, 1), (5,) * 4)


REFUSED = [
    ({"squared": 2}, ArgumentTypeError, "squared"),
    ({"bp_in": (3, 1)}, ArgumentError, "bp_in"),
    ({"bp_in": (-9, None)}, ArgumentError, "bp_in"),
    ({"bp_in": 1}, ArgumentTypeError, "bp_in"),
    ({"bp_in": (1, 2.5)}, ArgumentTypeError, "bp_in"),
    ({"n_out": 0}, ArgumentError, "n_out"),
    ({"residual": "high"}, ArgumentError, "residual"),
]


@pytest.mark.parametrize(("changed", "kind", "named"), REFUSED)
def test_wrong_arguments_are_named(changed, kind, named):
    with pytest.raises(kind, match=named):
        signal.envelope(da.ones(8, chunks=3), **changed)
