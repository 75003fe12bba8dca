"""Calibration stores the machine code of all loops that later calls need."""

import dask
import dask.array as da
import numpy as np
import pytest
from support import python

from dask_bigfft import calibration, fft, signal
from dask_bigfft.calibration import loops
from dask_bigfft.kernels import copies
from dask_bigfft.kernels.compiled import compiled
from dask_bigfft.planner.profile import DEFAULT


def types_of(arguments):
    """Types of the arguments of a loop, as far as machine code depends on them."""
    types = []
    for argument in arguments:
        if isinstance(argument, np.ndarray):
            flags = argument.flags
            layout = (argument.ndim, flags.c_contiguous, flags.aligned)
            types.append((argument.dtype.str, *layout))
        else:
            types.append(type(argument).__name__)
    return tuple(types)


@pytest.fixture
def needed(monkeypatch):
    """Loops that are called, with the types of their arguments; NumPy does their work."""
    calls = set()

    def call(loop, arguments, may_compile):
        calls.add((loop.path, types_of(arguments)))
        return False

    monkeypatch.setattr(compiled, "call", call)
    monkeypatch.setattr(copies, "_left", [0])
    with dask.config.set(scheduler="sync"):
        yield calls


def transforms(dtype):
    """Yield lazy results on irregular chunks, of all kinds of transforms."""
    rng = np.random.default_rng(0)

    def array(shape, chunks, kind=dtype):
        values = rng.standard_normal(shape)
        return da.from_array(values.astype(kind), chunks=chunks)

    real = np.dtype(dtype).kind == "f"
    forward = fft.rfftn if real else fft.fftn
    single = np.dtype(dtype).itemsize == (4 if real else 8)
    wide = "c8" if single else "c16"
    for verify in ("none", "energy", "checksum"):
        yield forward(array((12, 9, 10), (5, 9, 4)), verify=verify)
        yield forward(array((3, 1013), (3, 100)), axes=[1], verify=verify)
        yield forward(array((2, 1, 3, 2, 8), (1, 1, 2, 2, 3)), verify=verify)
        yield fft.irfft(array((900,), (64,), wide), n=1798, verify=verify)
        yield fft.ifft(array((1021,), (50,), wide), overwrite_x=True, verify=verify)
    yield fft.fft(array((2048,), (128,)), order="transposed")
    yield fft.fftshift(fft.fft2(array((33, 40), (8, 40))))
    yield fft.fft(array((4096,), (100,)), band=(0.1, 0.2))
    yield signal.fftconvolve(array((300, 7), (50, 7)), array((31, 7), -1), axes=0)
    if real:
        yield fft.dctn(array((60, 32), (10, 32)))
        yield signal.gradient(array((64, 40), (16, 40)))[0]
        yield signal.welch(array((5000,), (700,)))[1]


@pytest.mark.parametrize("dtype", loops.DTYPES)
def test_all_loops_of_transforms_are_stored(needed, dtype):
    loops.use_copies()
    loops.use_transforms()
    loops.use_chirps()
    stored = set(needed)
    needed.clear()
    for floor in (1, 1 << 20):  # with Bluestein's algorithm, and without
        with dask.config.set({"bigfft.planner.whole-axis-floor": floor}):
            for result in transforms(dtype):
                result.compute()
    names = {path.partition(":")[2] for path, _ in needed}
    assert names >= {"copy_rows", "_twiddle_rows", "_chirp_rows", "_filter_values"}
    assert needed <= stored


def test_calibration_stores_loops_before_it_measures(monkeypatch, tmp_path):
    steps = []

    def measure(*arguments):
        steps.append("measure")
        return DEFAULT

    monkeypatch.setattr(calibration, "store_loops", lambda: steps.append("store"))
    monkeypatch.setattr(calibration, "measure", measure)
    calibration.calibrate(path=tmp_path / "profile.json", nbytes=1 << 14)
    assert steps == ["store", "measure"]


#: A process that stores the loops of some transforms, or loads them, and says what it compiled.
STORING = """
from dask_bigfft import events
from dask_bigfft.calibration import loops
from dask_bigfft.kernels.copies import compile_at_once
compiled = []
events.add_sink(lambda event, numbers: compiled.append(event) if event == "compile" else None)
compile_at_once()
loops.use_transforms(dtypes=["c8"], checks=["none"])
print(len(compiled))
"""


def test_nothing_is_compiled_after_loops_are_stored(tmp_path):
    """`test_all_loops_of_transforms_are_stored` says that calibration stores all of them."""
    env = {"NUMBA_CACHE_DIR": str(tmp_path), "DASK_SCHEDULER": "synchronous"}
    assert int(python("-c", STORING, env=env).stdout) > 0
    assert int(python("-c", STORING, env=env).stdout) == 0
