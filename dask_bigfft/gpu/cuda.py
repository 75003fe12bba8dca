"""CuPy and CUDA: which devices this process has, their errors, and which host memory they reach.

CuPy is imported when a device is first asked for: that takes a while, and where it is missing the
package works without. The arena's blocks are pinned from the first device of the process to the
last; arrays of others where they are, while they live.

Imports `config`, `errors` and `memory`.
"""

import contextlib
import functools
import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterable, Iterator
from typing import Any

import numpy.typing as npt

from dask_bigfft import config
from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.memory import Pinner, default_arena, pin_blocks, pinned

#: How to get CuPy.
INSTALL = (
    "install CuPy for the driver's version of CUDA, such as pip install cupy-cuda13x (CUDA 13) "
    "or cupy-cuda12x (CUDA 12)"
)


_OUT_OF_MEMORY = 2

#: As a flag of registering: pinned for every device.
_PORTABLE = 1


@functools.cache
def cupy() -> Any:
    """Return the module `cupy`.

    Raises
    ------
    DeviceError
        If it is missing or does not load; says how to install it.
    """
    try:
        return importlib.import_module("cupy")
    except ImportError as error:
        cause = error.__cause__ or error  # CuPy says it in ten lines
        raise DeviceError(f"CuPy is missing ({cause}): {INSTALL}") from error


@contextlib.contextmanager
def errors_of_cuda() -> Iterator[None]:
    """Turn what CUDA and its libraries raise into our own."""
    cuda = cupy().cuda
    try:
        yield
    except cuda.memory.OutOfMemoryError as error:
        raise DeviceMemoryError(str(error)) from error
    except cuda.runtime.CUDARuntimeError as error:
        kind = DeviceMemoryError if error.status == _OUT_OF_MEMORY else DeviceError
        raise kind(str(error)) from error
    except cuda.cufft.CuFFTError as error:
        kind = DeviceMemoryError if error.result in (_OUT_OF_MEMORY, 5) else DeviceError
        raise kind(str(error)) from error


@contextlib.contextmanager
def current(device: Any) -> Iterator[None]:
    """Make a device of CuPy the current one of this thread, and its context with it.

    CuPy enters a device that is the current one already, as the first is in every new thread,
    without a call; then the thread may have no context yet, and cuFFT refuses to work there.
    """
    with device:
        device.use()
        yield


def software(ordinals: Iterable[int]) -> dict[str, str]:
    """Return what decides about the last bit of what GPUs compute, by name.

    Those are the versions of libraries, and which GPUs these are: cuFFT has other kernels for
    others.
    """
    found = cupy()
    names = {found.cuda.runtime.getDeviceProperties(i)["name"].decode() for i in ordinals}
    return {
        "card": ", ".join(sorted(names)),
        "cupy": str(found.__version__),
        "cufft": str(found.cuda.cufft.getVersion()),
    }


def free_pinned() -> None:
    """Give back the pinned memory that CuPy's pool keeps for later."""
    cupy().get_default_pinned_memory_pool().free_all_blocks()


@functools.cache
def _found() -> tuple[tuple[int, ...], str | None]:
    """Ordinals of the devices that can be used, or what is missing."""
    if importlib.util.find_spec("cupy") is None:
        return (), f"CuPy is missing: {INSTALL}"
    try:
        count = int(cupy().cuda.runtime.getDeviceCount())
    except DeviceError as error:
        return (), str(error)
    except Exception as error:  # of whichever library of CUDA does not load or answer
        return (), f"CUDA has no device for us ({error}): look at the driver with nvidia-smi"
    if count == 0:
        return (), "CUDA sees no device: look at CUDA_VISIBLE_DEVICES and nvidia-smi"
    return tuple(range(count)), None


def available() -> tuple[int, ...]:
    """Return the ordinals of the devices that this process may use; none without CuPy or a GPU.

    A worker of dask-cuda has one device of its own, the first of those that it sees.
    """
    found = _found()[0]
    return found[:1] if _under_dask_cuda() else found


def number_of(ordinal: int) -> int:
    """Return the number of a device among those of this process, from 0."""
    known = available()
    return known.index(ordinal) if ordinal in known else ordinal


def in_pool() -> int:
    """Return the bytes of the current device that arrays of CuPy's pool take."""
    return int(cupy().get_default_memory_pool().used_bytes())


def reason() -> str | None:
    """Return what is missing and how to get it; None if there is a device."""
    return _found()[1]


def _under_dask_cuda() -> bool:
    """Return True in a worker that dask-cuda has started."""
    distributed = sys.modules.get("distributed")
    if distributed is None or "dask_cuda" not in sys.modules:
        return False
    try:
        worker = distributed.get_worker()
    except ValueError:
        return "dask_cuda.initialize" in sys.modules
    names = {type(plugin).__module__.partition(".")[0] for plugin in worker.plugins.values()}
    return "dask_cuda" in names or "dask_cuda.initialize" in sys.modules


# --- pinned memory --------------------------------------------------------------------------


class _Pins:
    """The pinning of the arena's blocks, from the first device of this process to the last."""

    def __init__(self) -> None:
        self._lock, self._adopting = threading.Lock(), threading.Lock()
        self._devices = 0
        self._pinner: Pinner | None = None

    def begin(self) -> None:
        with self._lock:
            self._devices += 1
            if self._pinner is None:
                limit = config.get("bigfft.memory.pinned-limit")
                limit = default_arena().limit if limit is None else int(limit)
                runtime = cupy().cuda.runtime

                def register(address: int, nbytes: int) -> None:
                    runtime.hostRegister(address, nbytes, _PORTABLE)

                ends = register, runtime.hostUnregister
                errors = (runtime.CUDARuntimeError,)
                self._pinner = Pinner(*ends, limit, adopted=limit, errors=errors)
                pin_blocks(self._pinner)

    def end(self) -> None:
        with self._lock:
            self._devices -= 1
            if self._devices == 0 and self._pinner is not None:
                pin_blocks(None)
                self._pinner.close()
                self._pinner = None

    def adopt(self, array: npt.NDArray[Any]) -> bool:
        """Pin an array of others for as long as it lives, if that can be.

        True as well where another thread was at it, and may have pinned this one.
        """
        pinner = self._pinner
        if pinner is None or not config.get("bigfft.memory.pin-arrays"):
            return False
        waits = not self._adopting.acquire(blocking=False)
        if waits:
            self._adopting.acquire()
        try:
            return pinner.adopt(array) or waits
        finally:
            self._adopting.release()


pins = _Pins()


def is_pinned(view: npt.NDArray[Any]) -> bool:
    """Return True for a view of pinned memory: one range of the arena, or somebody else's."""
    low = int(view.__array_interface__["data"][0])
    last = sum((n - 1) * stride for n, stride in zip(view.shape, view.strides, strict=True))
    if pinned(low, last + view.itemsize):
        return True
    asked = cupy().cuda.pinned_memory.is_memory_pinned
    return bool(asked(low) and asked(low + last + view.itemsize - 1))


def reachable(view: npt.NDArray[Any]) -> bool:
    """Return True if a GPU reaches a view by itself: it is pinned, if only from now on."""
    return is_pinned(view) or (pins.adopt(view) and is_pinned(view))
