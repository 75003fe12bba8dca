"""Without numba the package transforms as with it, by NumPy, and warns once of what is slower."""

import numpy as np
from support import ROOT, python

from dask_bigfft.kernels.checks import checksum

#: Blocks numba as if it were not installed, and counts warnings.
BLOCKED = """
import sys, warnings
sys.modules["numba"] = sys.modules["llvmlite"] = None
from pathlib import Path
sys.path[:0] = [{root!r} + "/tests/places", {root!r} + "/tests"]
import dask, dask.array as da, numpy as np
import dask_bigfft
from dask_bigfft import fft
from dask_bigfft.errors import FallbackWarning
"""

WORK = """
import work
from dask_bigfft.kernels.copies import compile_at_once
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    compile_at_once()
    work.work()
    for verify in ("energy", "checksum"):
        for x in (work.FIELD, work.FIELD.astype("f4"), work.FIELD.astype("c8")):
            y = fft.fft2(da.from_array(x, chunks=(17, 20)), verify=verify)
            spectrum = np.fft.fft2(x)
            assert np.linalg.norm(y.compute() - spectrum) < 1e-5 * np.linalg.norm(spectrum)
(warning,) = [str(one.message) for one in caught if one.category is FallbackWarning]
assert "numba" in warning
print(warning)
"""

CHECKSUMS = """
from dask_bigfft.kernels.checks import checksum
rng = np.random.default_rng(5)
warnings.simplefilter("ignore")
print([checksum(rng.integers(0, 256, n, "u1")) for n in (0, 1, 3, 4, 7, 4096, 70001, 1 << 18)])
"""


def without_numba(program):
    return python("-c", BLOCKED.format(root=str(ROOT)) + program).stdout


def test_all_kinds_of_work():
    assert "numba" in without_numba(WORK)


def test_small_transforms_do_not_warn():
    without_numba('warnings.simplefilter("error")\nfft.fft(da.ones(4096, chunks=100)).compute()')


def test_simulated_devices():
    """The pool of threads that copy has no compiled copies."""
    program = """
warnings.simplefilter("ignore")
from dask_bigfft.testing.devices import simulated_devices
x = np.random.default_rng(0).standard_normal((64, 96))
with simulated_devices(1 << 16):
    y = fft.fft2(da.from_array(x, chunks=(16, 96)), device="gpu").compute()
np.testing.assert_allclose(y, np.fft.fft2(x), atol=1e-10)
"""
    without_numba(program)


def test_checksums_are_those_of_compiled_code():
    """Records of scratch files are read by processes with and without numba."""
    rng = np.random.default_rng(5)
    sizes = (0, 1, 3, 4, 7, 4096, 70001, 1 << 18)
    ours = [checksum(rng.integers(0, 256, n, "u1")) for n in sizes]
    assert without_numba(CHECKSUMS).strip() == str(ours)


def test_copies_are_copied_by_threads():
    """What the ring of pinned buffers uses where nothing can be compiled."""
    program = """
warnings.simplefilter("ignore")
from dask_bigfft.gpu.ring import copy_pool
pool = copy_pool(2)
source = np.arange(24.0).reshape(4, 6)
target = np.empty((2, 6))
pool.copy(target, source[::2]).result()
pool.close()
assert (target == source[::2]).all()
"""
    without_numba(program)
