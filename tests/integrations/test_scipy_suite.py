"""SciPy's own tests of `scipy.fft`, with every array cut into chunks on its way to our backend."""

import inspect
import sys
import threading

import dask.array as da
import numpy as np
import pytest
import scipy.fft
from integrations.scipy_tests import load

from dask_bigfft import scipy_backend

#: Tests that are not run: hundreds of round trips, lengths and permutations of axes, which laws
#: have; whether an array is overwritten, since ours are copies; lists, which are no arrays; threads
#: and processes of their own, which have no backend of ours; `scipy.fftpack`.
LEFT_OUT = {
    *(f"test_identity_{name}" for name in ("1d", "nd", "1d_overwrite", "nd_overwrite")),
    *(f"TestFFT.test_axes_{name}" for name in ("standard", "non_standard")),
    *(f"TestFFT.test_axes_subset_with_shape_{name}" for name in ("standard", "non_standard")),
    *("TestFFT.test_identity_extensive", "TestFFT.test_array_like", "TestFFTThreadSafe"),
    *("test_fftpack_equivalience", "test_multiprocess", "test_fft_with_order"),
    *("test_fht_identity", "test_array_like"),
}


NAMES = "test_basic", "test_real_transforms", "test_fftlog"
MODULES = {name: load(f"scipy.fft.tests.{name}") for name in NAMES}


def found_in(module):
    for name, member in list(vars(module).items()):
        if inspect.isfunction(member) and name.startswith("test_"):
            yield name, member
        elif inspect.isclass(member) and name.startswith("Test"):
            for method in [m for m in vars(member) if m.startswith("test_")]:
                if f"{name}.{method}" in LEFT_OUT:
                    delattr(member, method)
            yield name, member


for _name, _module in MODULES.items():
    for _test, _found in found_in(_module) if _module is not None else ():
        if _test not in LEFT_OUT:
            globals()[f"{_test}_of_{_name}"] = _found


class ThroughDask:
    """A backend that hands NumPy arrays on to ours, in chunks, and computes what comes back."""

    __ua_domain__ = "numpy.scipy.fft"

    def __init__(self):
        self.calls = 0
        self.inside = threading.local()

    def __ua_function__(self, method, args, kwargs):
        if getattr(self.inside, "busy", False):  # the kernels of our own blocks
            return NotImplemented
        x, *others = args
        x = np.asarray(x)
        chunks = tuple(max(1, -(-n // 2)) for n in x.shape)
        a = da.from_array(x, chunks=chunks)
        self.inside.busy = True
        try:
            lazy = scipy_backend.__ua_function__(method, (a, *others), kwargs)
            if lazy is NotImplemented:
                return lazy
            assert isinstance(lazy, da.Array)
            self.calls += 1
            return np.asarray(lazy.compute(scheduler="sync"))
        finally:
            self.inside.busy = False


@pytest.fixture(autouse=True)
def through_dask():
    backend = ThroughDask()
    with scipy.fft.set_backend(backend):
        yield backend


def test_scipys_tests_were_found(through_dask):
    np.testing.assert_allclose(scipy.fft.fft(np.ones(4)), [4, 0, 0, 0], atol=1e-15)
    assert through_dask.calls == 1
    if None in MODULES.values():
        pytest.skip(f"SciPy's tests are not installed in {sys.prefix}")
    known = {name for module in MODULES.values() for name, _ in found_in(module)}
    assert {name for name in LEFT_OUT if "." not in name} <= known
    assert "TestFFT_of_test_basic" in globals()
