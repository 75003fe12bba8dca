"""Dask's own tests of `dask.array.fft`, run with our transforms installed there."""

import sys

import dask.array as da
import numpy as np
import pytest
from integrations.scipy_tests import load

import dask_bigfft
from dask_bigfft.integrations.installation import NAMES

#: Tests that are not run, and why.
LEFT_OUT = {
    "test_cant_fft_chunked_axis": "asserts that several chunks are an error",
    "test_wrap_bad_kind": "tests dask's fft_wrap, which calls none of our functions",
    "test_wrap_ffts": "tests dask's fft_wrap",
    "test_wrap_fftns": "tests dask's fft_wrap",
    "test_scipy_fftpack_future_warning": "tests dask's fft_wrap",
}

#: Single precision, where dask compares each element with its own size: ours are compared by norm.
BY_NORM = ("test_nd_ffts_axes", "float32")


SUITE = load("dask.array.tests.test_fft")
TESTS = [name for name in dir(SUITE) if name.startswith("test_")]
globals().update({name: getattr(SUITE, name) for name in TESTS if name not in LEFT_OUT})


def assert_close(actual, expected):
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    eps = np.finfo(expected.dtype).eps
    assert np.linalg.norm(actual - expected) <= 4 * eps * np.linalg.norm(expected)


@pytest.fixture(autouse=True)
def ours(request, monkeypatch):
    """Install our transforms where dask's tests look them up; return those that were called."""
    called = []

    def counted(function):
        def call(*args, **kwargs):
            called.append(function.__name__)
            return function(*args, **kwargs)

        return call

    test, dtype = BY_NORM
    if request.node.originalname == test and request.node.callspec.params["dtype"] == dtype:
        monkeypatch.setattr(SUITE, "assert_eq", assert_close)
    with dask_bigfft.installed(), monkeypatch.context() as patch:
        for name in NAMES:
            patch.setattr(da.fft, name, counted(getattr(da.fft, name)))
        yield called
    assert called, "the test did not use our functions"


def test_dasks_tests_were_found(ours):
    ours.append("no call is needed here")
    if SUITE is None:
        pytest.skip(f"dask's tests are not installed in {sys.prefix}")
    assert set(LEFT_OUT) <= set(TESTS)
    assert "test_fft" in globals()
