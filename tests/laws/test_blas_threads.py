"""Tasks start no threads of BLAS inside dask's threads, with BLAS set up as users have it."""

import json

import pytest
from support import python

#: What is computed, by name: `x` has a long axis, `image` two axes.
CASES = {
    "rows of a kernel": "signal.fftconvolve(x, da.ones(10_000))",
    "frequencies of a kernel": "signal.fftconvolve(image, np.ones((31, 31)))",
    "long sums of products": "signal.convolve(x[:24_000], np.ones(12_000), method='direct')",
    "overlap": "signal.oaconvolve(x, np.ones(100))",
    "a derivative": "signal.gradient(x, 0)",
    "a power spectrum": "signal.power_spectrum(x)",
    "directions": "signal.radial_power_spectrum(image)[1]",
    "means of segments": "signal.welch(x, nperseg=4096)[1]",
    "lines of segments": "signal.welch(x, nperseg=4096, detrend='linear')[1]",
    "medians of segments": "signal.csd(x, 2 * x, nperseg=4096, average='median')[1]",
    "a checked transform": "fft.fft(x, verify='checksum')",
    "a transform of a prime": "fft.fft(x[:131_071])",
    "cosines": "dask_bigfft.cosines.dct(x)",
    "a plane": "dask_bigfft.xarray.fft(labelled, detrend='linear').data",
}

PROGRAM = """
import json, os, sys
import numpy as np
import scipy.linalg
from pathlib import Path

me = str(os.getpid())
threads = {name for name in os.listdir("/proc/self/task") if name != me}


def busy():
    times = [Path("/proc/self/task", name, "schedstat").read_text() for name in threads]
    return sum(int(text.split()[0]) for text in times)


import dask, dask.array as da, xarray as xr
import dask_bigfft, dask_bigfft.xarray
from dask_bigfft import fft, signal

dask.config.set({"scheduler": "sync", "bigfft.planner.whole-axis-floor": 1})
x = da.random.default_rng(0).standard_normal(2**18, chunks=2**15)
image = da.random.default_rng(0).standard_normal((1024, 1024), chunks=256)
labelled = xr.DataArray(image, dims=("y", "x"))
spent = {}
for name, text in json.loads(sys.argv[1]).items():
    before = busy()
    eval(text).compute()
    spent[name] = busy() - before
before = busy()
square = np.ones((512, 512))
square @ square
print(json.dumps([spent, busy() - before]))
"""


def test_no_task_starts_threads_of_blas():
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "4")
    process = python(
        "-c",
        PROGRAM,
        json.dumps(CASES),
        env=counts,
    )
    spent, control = json.loads(process.stdout)
    if not control:
        pytest.skip("BLAS has no threads that can be watched here")
    assert {name: time for name, time in spent.items() if time} == {}
