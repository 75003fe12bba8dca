"""Coherence and transfer functions against ratios of SciPy's spectra."""

import dask.array as da
import numpy as np
import pytest
import scipy.signal
from hypothesis import given
from hypothesis import strategies as st
from records import CASES

from dask_bigfft import signal
from dask_bigfft.errors import ArgumentError
from dask_bigfft.testing.strategies import chunkings, random_array

pytestmark = pytest.mark.usefixtures("small")


@CASES
@given(data=st.data(), dtype=st.sampled_from(["f8", "f4", "c16"]))
def test_ratios_of_averaged_spectra(data, dtype):
    n = data.draw(st.integers(24, 90))
    axis = data.draw(st.sampled_from([-1, 0]))
    shape = (2, n) if axis == -1 else (n, 2)
    x = random_array(
        shape,
        dtype,
        1,
    )
    y = random_array(
        shape,
        dtype,
        2,
    )
    options = {"nperseg": data.draw(st.integers(8, 16)), "fs": 5.0, "axis": axis}
    a = da.from_array(x, data.draw(chunkings(shape)))
    b = da.from_array(y, data.draw(chunkings(shape)))
    frequencies, ratio = signal.coherence(
        a,
        b,
        **options,
    )
    expected_frequencies, expected = scipy.signal.coherence(
        x,
        y,
        **options,
    )
    np.testing.assert_allclose(frequencies, expected_frequencies)
    error = {"rtol": 1e-3 if dtype == "f4" else 1e-9, "atol": 1e-5 if dtype == "f4" else 1e-12}
    np.testing.assert_allclose(
        ratio,
        expected,
        **error,
    )
    cross = scipy.signal.csd(
        x,
        y,
        **options,
    )[1]
    _, response = signal.transfer_function(
        a,
        b,
        **options,
    )
    np.testing.assert_allclose(
        response,
        cross / scipy.signal.welch(x, **options)[1],
        **error,
    )
    _, response = signal.transfer_function(
        a,
        b,
        estimator="H2",
        **options,
    )
    of_y = scipy.signal.welch(y, **options)[1]
    np.testing.assert_allclose(
        response,
        of_y / cross.conj(),
        **error,
    )


@pytest.mark.parametrize("estimator", ["H1", "H2"])
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8"])
def test_the_response_of_an_array_to_itself_is_complex(dtype, estimator):
    x = da.from_array(random_array((200,), dtype, 0), chunks=60)
    _, response = signal.transfer_function(
        x,
        x,
        nperseg=50,
        detrend=False,
        estimator=estimator,
    )
    assert response.dtype == np.result_type(dtype, np.complex64)
    np.testing.assert_allclose(response, np.ones(response.shape), rtol=1e-6)


REFUSED = [
    (
        signal.transfer_function,
        {"y": da.ones(20), "estimator": "H3"},
        ArgumentError,
        "estimator",
    ),
    (
        signal.coherence,
        {"y": da.ones(3)},
        ArgumentError,
        "`y`",
    ),
]


@pytest.mark.parametrize(("function", "changed", "kind", "named"), REFUSED)
def test_wrong_arguments_are_named(
    function,
    changed,
    kind,
    named,
):
    with pytest.raises(kind, match=named):
        function(**{"x": da.ones(20, chunks=6), **changed})
