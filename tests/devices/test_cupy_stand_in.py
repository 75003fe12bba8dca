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
from devices.blocks import copied, distance, fft_at, on_devices, values
from devices.kernel_text import kernels_of, needs_compiler
from support import ROOT, heard, python

from dask_bigfft import fft
from dask_bigfft.gpu import cuda, cupy_gpu, kernels
from dask_bigfft.gpu.cupy_gpu import MAX_PITCH_NBYTES, View, copies
from dask_bigfft.gpu.operations import DeviceArray

pytestmark = needs_compiler

HOST = 1
DEVICE = 2


class Everything(contextlib.AbstractContextManager):
    """A stream, an event or a device: all that is asked of it is done already."""

    ptr = 0
    done = True

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


def copy_2d(
    target,
    to,
    source,
    from_,
    width,
    height,
    kind,
    stream,
):
    for row in range(height):
        ctypes.memmove(target + row * to, source + row * from_, width)


def copy_3d(address, stream):
    words = [int(w) for w in (ctypes.c_uint64 * 20).from_address(address)]
    (source, sp, _, sy) = words[4:8]
    (target, tp, _, ty) = words[12:16]
    width, height, depth = words[16:19]
    for plane in range(depth):
        copy_2d(
            target + plane * tp * ty,
            tp,
            source + plane * sp * sy,
            sp,
            width,
            height,
            0,
            0,
        )


def driver(status_of=lambda number: 0):
    """The driver's copy, done at once as its structure says; some calls may be refused."""
    seen = []

    def copy(address, stream):
        seen.append(address)
        status = status_of(len(seen))
        if status:
            return status
        words = [int(w) for w in (ctypes.c_uint64 * 16).from_address(address)]
        kinds = {HOST: 1, DEVICE: 2}
        assert {words[2], words[9]} == {HOST, DEVICE}
        source = words[2 + kinds[words[2]]]
        target = words[9 + kinds[words[9]]]
        copy_2d(
            target,
            words[13],
            source,
            words[6],
            words[14],
            words[15],
            0,
            0,
        )
        return 0

    return copy


class Plans:
    """FFTs by SciPy at addresses."""

    taken = 0

    def __init__(self, most):
        self.executed = 0

    def prepare(self, op):
        return 0

    def fft(
        self,
        op,
        source,
        target,
        work,
    ):
        fft_at(op, source, target)
        self.executed += 1

    def drop(self):
        pass


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@contextlib.contextmanager
def stand_in(monkeypatch, folder, pinned):
    """Yield a device on the stand-in for CuPy, whose host memory is pinned or not."""
    errors = {name: type(name, (Exception,), {"status": 0}) for name in ("memory", "run", "fft")}
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
    monkeypatch.setattr(cuda, "_visible_devices", lambda: ((0,), None))
    monkeypatch.setattr(kernels, "kernel", kernels_of(folder))
    monkeypatch.setattr(cupy_gpu, "FFTPlans", Plans)
    monkeypatch.setattr(cupy_gpu, "_driver", driver)
    monkeypatch.setattr(cupy_gpu, "BUFFER_NBYTES", 1 << 16)
    with dask.config.set({"bigfft.memory.pin-arrays": False}):
        cupy_device = cupy_gpu.CupyGPU(0)
        cupy_device.pinned = pinned
        yield cupy_device
        cupy_device.close()
    cuda.cupy.cache_clear()


@pytest.fixture(params=["pinned", "pageable"])
def gpu(monkeypatch, folder, request):
    with stand_in(monkeypatch, folder, request.param == "pinned") as device:
        yield device


def part_of(rng, shape):
    """A larger array of random values, and where it has one of some shape."""
    whole = [n + rng.integers(3) for n in shape]
    lows = [rng.integers(n - m + 1) for n, m in zip(whole, shape, strict=True)]
    part = tuple(slice(low, low + m) for low, m in zip(lows, shape, strict=True))
    return rng.integers(1, 1 << 20, whole), part


def test_views_travel_between_parts_of_larger_arrays(gpu):
    gpu.reserve(1 << 21)
    rng = np.random.default_rng(0)
    shapes = [(16, 12, 600), (2, 4, 300, 3), (3, 0)]
    shapes += [tuple(rng.choice((1, 2, 3, 5), rng.integers(1, 6))) for _ in range(20)]
    for shape in shapes:
        dtype = rng.choice(("f4", "c8", "c16"))
        (x, from_), (between, place), (out, to) = (part_of(rng, shape) for _ in range(3))
        x, between, out = (values.astype(dtype) for values in (x, between, out))
        expected = (between.copy(), out.copy())
        larger = DeviceArray(0, between.shape, between.dtype.str)
        offset = between[place].ctypes.data - between.ctypes.data if between[place].size else 0
        seen = DeviceArray(
            offset,
            between[place].shape,
            between.dtype.str,
            between.strides,
        )
        copied(
            gpu,
            (between, larger),
            (x[from_], seen),
            (seen, out[to]),
            (larger, between),
        )
        for right, part, copy in zip(expected, (place, to), (between, out), strict=True):
            right[part] = x[from_]
            assert np.array_equal(copy, right)
    assert (gpu._ring is None) is gpu.pinned


@pytest.mark.parametrize("status", [0, 1, 2])
@pytest.mark.parametrize(
    ("shape", "chunks"),
    [
        ((20, 64), (4, 64)),
        ((24, 40), (24, 7)),
        ((16, 30, 8), (4, 30, 8)),
    ],
)
def test_shards_of_one_form_travel_in_one_call(
    gpu,
    monkeypatch,
    shape,
    chunks,
    status,
):
    """By the driver in one call, and by others where it refuses one of them."""
    engine = "engine" if gpu.pinned else "ring"
    refused = []

    def status_of(number):
        refused.append(number == 2)
        return status * refused[-1]

    monkeypatch.setattr(cupy_gpu, "_driver", lambda: driver(status_of))
    monkeypatch.setattr(cupy_gpu, "route", lambda form, *_: (engine, copies(form)))
    x = values(*shape)
    floor = {"bigfft.planner.whole-axis-floor": 1}
    with on_devices(gpu, nbytes=1 << 16), dask.config.set(floor):
        lazy = fft.fftn(da.from_array(x, chunks), device="gpu")
        with heard("gather", "round") as events:
            result = lazy.compute(scheduler="sync")
    assert distance(result, scipy.fft.fftn(x)) < 1e-14
    rounds = {numbers["index"] for event, numbers in events if event == "round"}
    gathered = {numbers["index"] for event, numbers in events if event == "gather"}
    assert not rounds & gathered  # shards are read where they lie
    assert any(refused) == gpu.pinned


def test_rows_further_apart_than_the_driver_allows_take_a_call_each():
    strides = (MAX_PITCH_NBYTES + 1, 8)
    row = (16, 1)
    planned = copies(View((3, 2), strides, 8, (16, 8)))
    assert [(copy.host, copy.width, copy.height) for copy in planned] == [
        (i * strides[0], *row) for i in range(3)
    ]


@pytest.mark.parametrize("name", ["fftn", "rfft2", "irfftn"])
def test_transforms(gpu, name):
    x = values(
        16,
        30,
        8,
        dtype="f8" if name == "rfft2" else "c16",
    )
    with on_devices(gpu, nbytes=1 << 16):
        transformed = getattr(fft, name)(da.from_array(x, (8, 30, 8)), device="gpu").compute()
    assert gpu._plans.executed
    assert distance(transformed, getattr(scipy.fft, name)(x)) < 1e-14


#: A first call on a GPU in a new process, which says what it loaded of the compiler of loops.
FIRST_CALL = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import dask.array as da
import pytest
import scipy.fft
from dask_bigfft import fft
from devices.blocks import distance, on_devices, values
from devices.test_cupy_stand_in import stand_in

pinned = sys.argv[3] == "pinned"
with pytest.MonkeyPatch.context() as patch, stand_in(patch, Path(sys.argv[2]), pinned) as device:
    x = values(16, 30, 8)
    with on_devices(device, nbytes=1 << 16):
        y = fft.fftn(da.from_array(x, (8, 30, 8)), device="gpu").compute(scheduler="sync")
        assert (device._ring is None) is pinned
assert distance(y, scipy.fft.fftn(x)) < 1e-14
print("numba" in sys.modules)
"""


@pytest.mark.parametrize("memory", ["pinned", "pageable"])
def test_a_first_call_does_not_wait_for_the_compiler(folder, memory, tmp_path):
    env = {"NUMBA_CACHE_DIR": str(tmp_path)}
    assert python("-c", FIRST_CALL, ROOT / "tests", folder, memory, env=env).stdout == "False\n"
