"""The CuPy executor on a stand-in for CuPy: every route of host memory, kernels by their text."""

import contextlib
import ctypes
import sys
from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.fft
from devices.blocks import SMALL, distance, fft_at
from devices.kernel_text import kernels_of, needs_compiler

from dask_bigfft import fft
from dask_bigfft.gpu import cuda, cupy_gpu, dispatch, kernels
from dask_bigfft.gpu.operations import DeviceArray

pytestmark = needs_compiler


class Everything(contextlib.AbstractContextManager):
    """A stream, an event or a device: all that is asked of it is done already."""

    ptr, done = 0, True

    def __init__(self, *_, **__):
        pass

    def __exit__(self, *error):
        pass

    def nothing(self, *_):
        pass

    use = record = synchronize = wait_event = nothing


class Arena:
    def __init__(self, nbytes):
        self.memory = np.full(nbytes, 0xFF, np.uint8)
        self.ptr = self.memory.ctypes.data


def copy_2d(target, to, source, from_, width, height, kind, stream):
    for row in range(height):
        ctypes.memmove(target + row * to, source + row * from_, width)


def copy_3d(address, stream):
    words = [int(w) for w in (ctypes.c_uint64 * 20).from_address(address)]
    (source, sp, _, sy), (target, tp, _, ty) = words[4:8], words[12:16]
    width, height, depth = words[16:19]
    for plane in range(depth):
        copy_2d(target + plane * tp * ty, tp, source + plane * sp * sy, sp, width, height, 0, 0)


class Plans:
    """FFTs by SciPy at addresses."""

    taken = 0

    def __init__(self, tiled=False):
        self.done = 0

    def prepare(self, op):
        return 0

    def fft(self, op, source, target, work):
        fft_at(op, source, target)
        self.done += 1

    def drop(self):
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(params=["pinned", "pageable"])
def gpu(monkeypatch, folder, request):
    errors = {name: type(name, (Exception,), {"status": 0}) for name in ("memory", "run", "fft")}
    pinned = request.param == "pinned"
    pool = SimpleNamespace(free_all_blocks=lambda: None)
    module = SimpleNamespace(
        get_default_memory_pool=lambda: pool,
        get_default_pinned_memory_pool=lambda: pool,
        cuda=SimpleNamespace(
            Device=Everything,
            Stream=Everything,
            Event=Everything,
            alloc=Arena,
            alloc_pinned_memory=bytearray,
            pinned_memory=SimpleNamespace(is_memory_pinned=lambda at: pinned),
            memory=SimpleNamespace(OutOfMemoryError=errors["memory"]),
            cufft=SimpleNamespace(CuFFTError=errors["fft"]),
            runtime=SimpleNamespace(
                CUDARuntimeError=errors["run"],
                free=lambda at: None,
                memGetInfo=lambda: (1 << 30, 1 << 30),
                getDeviceProperties=lambda ordinal: {"name": b"stand-in"},
                hostRegister=lambda *_: (_ for _ in ()).throw(errors["run"]()),
                hostUnregister=lambda at: None,
                memcpyAsync=lambda to, source, nbytes, *_: ctypes.memmove(to, source, nbytes),
                memcpy2DAsync=copy_2d,
                memcpy3DAsync=copy_3d,
                memsetAsync=lambda at, value, nbytes, stream: ctypes.memset(at, value, nbytes),
            ),
        ),
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    cuda.cupy.cache_clear()
    monkeypatch.setattr(cuda, "_found", lambda: ((0,), None))
    monkeypatch.setattr(kernels, "kernel", kernels_of(folder))
    monkeypatch.setattr(cupy_gpu, "FFTPlans", Plans)
    monkeypatch.setattr(cupy_gpu, "_driver", lambda: None)
    monkeypatch.setattr(cupy_gpu, "BUFFER_NBYTES", 1 << 16)
    with dask.config.set({"bigfft.memory.pin-arrays": False}):
        found = cupy_gpu.CupyGPU(0)
        found.pinned = pinned
        yield found
        found.close()
    cuda.cupy.cache_clear()


@pytest.mark.parametrize(
    "cut", [np.s_[:], np.s_[:, 3:9], np.s_[7:9, 2:8, 256:512], np.s_[:, 1:2, 3:4]]
)
def test_views_travel_there_and_back(gpu, cut):
    x = np.random.default_rng(0).standard_normal((16, 12, 700))
    gpu.reserve(1 << 21)
    out, array = np.zeros_like(x), DeviceArray(0, x[cut].shape, "<f8")
    stream, end = gpu.stream("h2d"), gpu.event("end")
    gpu.ahead(stream, view := x[cut])
    gpu.h2d(stream, view, array)
    gpu.d2h(stream, array, out[cut])
    gpu.record(end, stream)
    gpu.synchronize(end)
    assert np.array_equal(out[cut], x[cut])
    assert out.sum() == pytest.approx(x[cut].sum())
    assert bool(gpu.staged) is not gpu.pinned


@pytest.mark.parametrize("name", ["fftn", "rfft2", "irfftn"])
def test_transforms(gpu, name):
    rng = np.random.default_rng(1)
    x = rng.standard_normal((16, 30, 8))
    x = x if name == "rfft2" else x + 1j * rng.standard_normal(x.shape)
    dispatch.use([gpu], SMALL, 1 << 16)
    try:
        got = getattr(fft, name)(da.from_array(x, (8, 30, 8)), device="gpu").compute()
    finally:
        dispatch.use(None)
    assert gpu._plans.done
    assert distance(got, getattr(scipy.fft, name)(x)) < 1e-14
