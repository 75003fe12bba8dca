"""What the import of the package and a first call load: only what a call on CPUs needs."""

import textwrap

import pytest
from support import python

#: Packages that some users need, each of which takes 0.02 to 0.5 s to import.
PACKAGES = {
    "cupy",
    "distributed",
    "h5py",
    "llvmlite",
    "matplotlib",
    "numba",
    "pandas",
    "xarray",
    "zarr",
}

#: Rooms and files of the package for other calls: files, GPUs, clusters, verification, measuring.
ROOMS = {
    "calibration",
    "carriers.disk",
    "carriers.p2p",
    "carriers.tasks",
    "cluster",
    "gpu.engine",
    "gpu.ffts",
    "gpu.links",
    "kernels.checks",
    "machine.tuner",
    "planner.explain",
    "runs",
    "signal",
    "storage",
    "watch",
    "xarray",
}

#: A process that imports, plans and computes, and says what is loaded then but should not be; then
#: whether functions of signals and files import what takes SciPy 0.5 s before it is needed.
PROGRAM = """
    import sys
    import dask.array as da
    import numpy as np

    before = set(sys.modules)
    packages = set({packages})
    import dask_bigfft.fft

    def unasked():
        loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}} & packages
        return sorted(loaded) + [room for room in {rooms} if "dask_bigfft." + room in sys.modules]

    after_import = unasked()
    x = np.random.default_rng(0).random({shape}).astype("f4")
    y = dask_bigfft.fft.rfftn(da.from_array(x, chunks={chunks}), kernel="scipy")
    planned = unasked()
    values = y.compute(scheduler="threads", num_workers=2)
    np.testing.assert_allclose(values, np.fft.rfftn(x), atol=1e-2)
    assert len(dask_bigfft.fft.fft(y).persist()) == len(x)
    computed = unasked()
    import dask_bigfft.runs
    import dask_bigfft.signal
    print(after_import, planned, computed, "scipy.signal" in sys.modules)
"""


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [((64, 64), -1), ((1,), 1), ((96, 40, 7), (24, 20, 7))],
)
def test_a_call_loads_what_it_needs(shape, chunks, tmp_path):
    code = PROGRAM.format(
        packages=sorted(PACKAGES),
        rooms=sorted(ROOMS),
        shape=shape,
        chunks=chunks,
    )
    env = {"NUMBA_CACHE_DIR": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}
    assert python("-c", textwrap.dedent(code), env=env).stdout == "[] [] [] False\n"
