"""What FFT libraries take beside their values: the table against the libraries themselves."""

import json
import os

import dask.array as da
import pytest
from support import ROOT, python

import dask_bigfft
from dask_bigfft.kernels.libraries import usable
from dask_bigfft.planner.library_memory import library_bytes

#: Of small blocks of memory that an allocator keeps.
SPARE = 2 * 2**20

#: Length, rows and columns: contiguous lines, one, columns, a prime.
CASES = [
    (2**18, 8, 1),
    (2**18, 1, 1),
    (2**17, 1, 8),
    (131071, 8, 1),
]


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="no peaks to be had")
@pytest.mark.parametrize("kernel", ["scipy", "ducc0", "mkl_fft", "pyfftw"])
def test_no_library_takes_more_than_the_table_says(kernel):
    if kernel not in usable():
        pytest.skip("not installed")
    program = ROOT / "tests" / "planner" / "peaks_of_ffts.py"
    process = python(program, kernel, json.dumps(CASES))
    for (n, rows, columns), nbytes in zip(CASES, json.loads(process.stdout), strict=True):
        x = da.zeros((rows, n, columns), chunks=-1, dtype=complex)
        rounds = dask_bigfft.plan(
            x,
            "fft",
            axis=1,
            kernel=kernel,
        ).rounds
        assert nbytes <= library_bytes(kernel, rounds, 16) + SPARE, (n, rows, columns)
