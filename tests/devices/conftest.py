"""Fixtures that several files of tests of devices share."""

import sys

import pytest
from devices.kernel_text import kernels_of
from devices.test_blocks_on_a_gpu import cupy_of_cards

from dask_bigfft.gpu import cuda, kernels


@pytest.fixture(scope="session")
def kernel_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def cards_of_kernels(monkeypatch, kernel_folder):
    """Arrays of a stand-in for CuPy, whose kernels run on the CPU."""
    monkeypatch.setitem(sys.modules, "cupy", cupy_of_cards(set()))
    cuda.cupy.cache_clear()
    monkeypatch.setattr(kernels, "kernel", kernels_of(kernel_folder))
    yield
    cuda.cupy.cache_clear()
