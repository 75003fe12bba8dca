"""CuPy and CUDA: devices of this process, their errors, and pinned host memory.

CuPy is optional and imported at first use, because the import takes long. The arena's blocks are
pinned while the process has a device. Arrays of others are pinned in place while they live.
"""

import contextlib
import ctypes
import functools
import importlib
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft import config
from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.events import current_worker
from dask_bigfft.gpu.copy_threads import loops_are_loaded
from dask_bigfft.kernels.views import is_on_gpu
from dask_bigfft.memory.arena import default_arena, pin_blocks, pinned
from dask_bigfft.memory.pinned import Pinner
from dask_bigfft.system import after_fork

#: Instructions to install CuPy.
INSTALL = (
    "install CuPy for the driver's version of CUDA, such as pip install cupy-cuda13x (CUDA 13) "
    "or cupy-cuda12x (CUDA 12)"
)


#: Values of CUDA_VISIBLE_DEVICES that hide all devices.
_HIDES_ALL = ("", "-1")

_NO_DEVICE = "CUDA sees no device: look at CUDA_VISIBLE_DEVICES and nvidia-smi"

#: Status of a runtime call, and results of cuFFT, that mean too little memory.
_NO_MEMORY = (2, 5)

#: Flag of registration: pinned for every device.
_PORTABLE = 1


@functools.cache
def cupy() -> Any:
    """Return the module `cupy`.

    Raises
    ------
    DeviceError
        If it is missing or does not load, with instructions to install it.
    """
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        cause = error.__cause__ or error  # CuPy wraps it in ten lines
        raise DeviceError(f"CuPy is missing ({cause}): {INSTALL}") from error


@contextlib.contextmanager
def errors_of_cuda() -> Iterator[None]:
    """Convert errors of CUDA and its libraries to ours."""
    cuda = cupy().cuda
    try:
        yield
    except cuda.memory.OutOfMemoryError as error:
        raise DeviceMemoryError(str(error)) from error
    except (cuda.runtime.CUDARuntimeError, cuda.cufft.CuFFTError) as error:
        status = getattr(error, "status", None) or error.result
        if status in _NO_MEMORY:
            raise DeviceMemoryError(str(error)) from error
        raise DeviceError(str(error)) from error


@contextlib.contextmanager
def current(device: Any) -> Iterator[None]:
    """Make a device of CuPy the current one of this thread, and its context with it.

    CuPy makes no call to enter a device that is current, as the first device is in new threads.
    Such a thread may have no context, and then cuFFT fails.
    """
    with device:
        device.use()
        yield


def software(ordinals: Iterable[int]) -> dict[str, str]:
    """Return the library versions and GPU names that decide the last bit of results.

    cuFFT has different kernels for different GPUs.
    """
    cuda = cupy().cuda
    names = {cuda.runtime.getDeviceProperties(i)["name"].decode() for i in ordinals}
    return {
        "card": ", ".join(sorted(names)),
        "cupy": str(cupy().__version__),
        "cufft": str(cuda.cufft.getVersion()),
    }


def in_gpu_memory(values: npt.NDArray[Any]) -> Any:
    """Return an array in host memory as a CuPy array on the current GPU."""
    return cupy().asarray(values)


def passed_by_kernel(values: npt.NDArray[Any]) -> tuple[Any, Any]:
    """Return values on the current GPU, and what has to live until its stream is idle.

    A kernel reads the values from pinned memory. A copy engine would do large copies of other
    streams before.
    """
    cp = cupy()
    pinned_memory = cp.cuda.alloc_pinned_memory(values.nbytes)
    host = np.frombuffer(pinned_memory, values.dtype, values.size).reshape(values.shape)
    host[...] = values
    # Without a device it would be that which was current when the pool allocated the memory.
    device = cp.cuda.Device().id
    memory = cp.cuda.UnownedMemory(host.ctypes.data, values.nbytes, pinned_memory, device)
    source = cp.ndarray(values.shape, values.dtype, cp.cuda.MemoryPointer(memory, 0))
    return cp.positive(source), source


def free_pinned() -> None:
    """Free the cached pinned memory of CuPy's pool."""
    cupy().get_default_pinned_memory_pool().free_all_blocks()


#: Ready once the driver is initialised, if `open_beside` was called.
_driver_is_ready: Future[None] | None = None


def open_beside() -> None:
    """Start to open the first device in a thread, once, because other work can go on meanwhile.

    The driver takes 0.2 s, the context 0.1 s, and loops of the host that copy to pinned memory
    0.1 s (H200). CuPy would hold the GIL meanwhile. It finds the driver and the context ready.
    """
    global _driver_is_ready
    if _driver_is_ready is None and os.environ.get("CUDA_VISIBLE_DEVICES") not in _HIDES_ALL:
        pool = ThreadPoolExecutor(2, thread_name_prefix="bigfft-open")
        _driver_is_ready = pool.submit(_open_driver, pool)


def _open_driver(pool: ThreadPoolExecutor) -> None:
    """Initialise the driver, and start to do what needs it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError:  # CuPy will say so
        return
    if driver.cuInit(0) == 0:
        pool.submit(_open_context, driver)
        pool.submit(loops_are_loaded)
    pool.shutdown(wait=False)


def _open_context(driver: Any) -> None:
    """Create the context of the first device, which the runtime of CUDA shares."""
    device = ctypes.c_int()
    context = ctypes.c_void_p()
    if driver.cuDeviceGet(ctypes.byref(device), 0) == 0:
        driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device)


def _forget_driver() -> None:
    """Forget the thread that opens a device, which a forked process does not have."""
    global _driver_is_ready
    _driver_is_ready = None


after_fork(_forget_driver)


@functools.cache
def _visible_devices() -> tuple[tuple[int, ...], str | None]:
    """Return the ordinals of usable devices, and the reason if there are none."""
    if os.environ.get("CUDA_VISIBLE_DEVICES") in _HIDES_ALL:  # the driver takes long to say so
        return (), _NO_DEVICE
    if _driver_is_ready is not None:
        _driver_is_ready.result()  # without the GIL, which the runtime would hold
    try:
        count = int(cupy().cuda.runtime.getDeviceCount())
    except DeviceError as error:
        return (), str(error)
    except Exception as error:  # from any library of CUDA that fails
        return (), f"CUDA has no device for us ({error}): look at the driver with nvidia-smi"
    if count == 0:
        return (), _NO_DEVICE
    return tuple(range(count)), None


def available() -> tuple[int, ...]:
    """Return the ordinals of the devices that this process may use, maybe none.

    A worker of dask-cuda uses one device, the first one that it sees.
    """
    ordinals, _ = _visible_devices()
    return ordinals[:1] if _under_dask_cuda() else ordinals


def in_pool() -> int:
    """Return the bytes of CuPy arrays on the current device."""
    return int(cupy().get_default_memory_pool().used_bytes())


def synchronize() -> None:
    """Wait for the current stream, unless it is CuPy's default one, which all threads share."""
    stream = cupy().cuda.get_current_stream()
    if stream.ptr:
        stream.synchronize()


def scipy_signal(block: Any) -> Any:
    """Return `scipy.signal`, or CuPy's functions of the same names for a block on a GPU."""
    name = "cupyx.scipy.signal" if is_on_gpu(block) else "scipy.signal"
    return importlib.import_module(name)


def scipy_fft(block: Any) -> Any:
    """Return `scipy.fft`, or CuPy's functions of the same names for a block on a GPU."""
    name = "cupyx.scipy.fft" if is_on_gpu(block) else "scipy.fft"
    return importlib.import_module(name)


def reason() -> str | None:
    """Return the reason for a missing device and the remedy; None if there is a device."""
    _, text = _visible_devices()
    return text


def _under_dask_cuda() -> bool:
    """Return True in a worker started by dask-cuda."""
    if "dask_cuda.initialize" in sys.modules:
        return True
    worker = current_worker() if "dask_cuda" in sys.modules else None
    if worker is None:
        return False
    packages = {type(plugin).__module__.partition(".")[0] for plugin in worker.plugins.values()}
    return "dask_cuda" in packages


# --- pinned memory --------------------------------------------------------------------------


class _Pins:
    """Pinning of the arena's blocks while this process has a device."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._adopting = threading.Lock()
        self._devices = 0
        self._pinner: Pinner | None = None

    def begin(self) -> None:
        """Count a device, and pin blocks from the first one on."""
        with self._lock:
            self._devices += 1
            if self._pinner is None:
                self._pinner = _new_pinner()
                pin_blocks(self._pinner)

    def end(self) -> None:
        """Discount a device, and pin no more blocks after the last one."""
        with self._lock:
            self._devices -= 1
            if self._devices == 0 and self._pinner is not None:
                pin_blocks(None)
                self._pinner.close()
                self._pinner = None

    def adopt(self, array: npt.NDArray[Any]) -> None:
        """Pin an array of others while it lives, if allowed; wait while another one is pinned."""
        pinner = self._pinner
        if pinner is not None and config.get("bigfft.memory.pin-arrays"):
            with self._adopting:
                pinner.adopt(array)


def _new_pinner() -> Pinner:
    """Return a pinner of host memory, with the limit of the settings or of the arena."""
    limit = config.get("bigfft.memory.pinned-limit")
    limit = default_arena().limit if limit is None else int(limit)
    runtime = cupy().cuda.runtime

    def register(address: int, nbytes: int) -> None:
        runtime.hostRegister(address, nbytes, _PORTABLE)

    return Pinner(
        register,
        runtime.hostUnregister,
        limit,
        adopted=limit,
        errors=(runtime.CUDARuntimeError,),
    )


pins = _Pins()


def is_pinned(view: npt.NDArray[Any]) -> bool:
    """Return True for a view of pinned memory, in a range of the arena or of others."""
    low = int(view.__array_interface__["data"][0])
    last = low + sum((n - 1) * stride for n, stride in zip(view.shape, view.strides, strict=True))
    if pinned(low, last - low + view.itemsize):
        return True
    is_memory_pinned = cupy().cuda.pinned_memory.is_memory_pinned
    return bool(is_memory_pinned(low) and is_memory_pinned(last + view.itemsize - 1))


def reachable(view: npt.NDArray[Any]) -> bool:
    """Return True if a GPU can access a view directly, after pinning it if possible."""
    if is_pinned(view):
        return True
    pins.adopt(view)
    return is_pinned(view)
