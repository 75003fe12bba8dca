"""Coherence and transfer functions against ratios of SciPy's spectra."""

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.signal
from hypothesis import given
from hypothesis import strategies as st
from records import CASES, DTYPES

from dask_bigfft import signal
from dask_bigfft.errors import ArgumentError
from dask_bigfft.testing.strategies import chunkings, random_array

pytestmark = pytest.mark.usefixtures("small")


def ratios_of_scipy(x, y, **options):
    """Return SciPy's coherence, and its response by both estimators."""
    _, coherence = scipy.signal.coherence(
        x,
        y,
        **options,
    )
    _, cross = scipy.signal.csd(
        x,
        y,
        **options,
    )
    _, power_x = scipy.signal.welch(x, **options)
    _, power_y = scipy.signal.welch(y, **options)
    return coherence, cross / power_x, power_y / cross.conj()


@CASES
@given(data=st.data(), dtype=st.sampled_from(DTYPES))
def test_ratios_of_averaged_spectra(data, dtype):
    ndim = data.draw(st.integers(1, 3))
    axis = data.draw(st.integers(-ndim, ndim - 1))
    shape = [data.draw(st.integers(1, 3)) for _ in range(ndim)]
    shape[axis] = data.draw(st.integers(24, 90))
    x = random_array(shape, dtype, 1)
    y = random_array(shape, dtype, 2)
    options = {
        "nperseg": data.draw(st.integers(8, 16)),
        "fs": 5.0,
        "axis": axis,
    }
    a = da.from_array(x, data.draw(chunkings(shape)))
    b = da.from_array(y, data.draw(chunkings(shape)))
    results = [signal.coherence(a, b, **options)]
    for estimator in ("H1", "H2"):
        response = signal.transfer_function(
            a,
            b,
            estimator=estimator,
            **options,
        )
        results.append(response)
    wide_dtype = "c16" if x.dtype.kind == "c" else "f8"
    expected = ratios_of_scipy(
        x.astype(wide_dtype),
        y.astype(wide_dtype),
        **options,
    )
    is_single = np.result_type(x, "c8") == "c8"  # as SciPy has it
    frequencies = np.fft.rfftfreq(options["nperseg"], 1 / 5.0)
    if x.dtype.kind == "c":
        frequencies = np.fft.fftfreq(options["nperseg"], 1 / 5.0)
    computed = dask.compute(*(ratio for _, ratio in results))
    for values, result, model in zip(
        computed,
        results,
        expected,
        strict=True,
    ):
        np.testing.assert_allclose(result[0], frequencies)
        assert result[1].dtype == values.dtype
        assert (values.real.dtype == "f4") == is_single
        np.testing.assert_allclose(
            values,
            model,
            rtol=1e-3 if is_single else 1e-9,
            atol=1e-5 if is_single else 1e-12,
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
