"""Whether there is a CUDA device and CuPy, which device is ours, and what to do if not.

CuPy is imported when a device is first asked for: that takes a while, and where it is missing the
package works without. Imports `errors` only.
"""

import contextlib
import functools
import importlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any

from dask_bigfft.errors import DeviceError

#: How to get CuPy.
INSTALL = (
    "install CuPy for the driver's version of CUDA, such as pip install cupy-cuda13x (CUDA 13) "
    "or cupy-cuda12x (CUDA 12)"
)


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
def current(device: Any) -> Iterator[None]:
    """Make a device of CuPy the current one of this thread, and its context with it.

    CuPy enters a device that is the current one already, as the first is in every new thread,
    without a call; then the thread may have no context yet, and cuFFT refuses to work there.
    """
    with device:
        device.use()
        yield


def software(ordinals: Iterable[int]) -> dict[str, str]:
    """Return what decides about the last bit of what cards compute, by name.

    Those are the versions of libraries, and which cards these are: cuFFT has other kernels for
    others.
    """
    found = cupy()
    names = {found.cuda.runtime.getDeviceProperties(i)["name"].decode() for i in ordinals}
    return {
        "card": ", ".join(sorted(names)),
        "cupy": str(found.__version__),
        "cufft": str(found.cuda.cufft.getVersion()),
    }


def loaded() -> ModuleType | None:
    """Return `cupy` if somebody has imported it, without importing it."""
    return sys.modules.get("cupy")


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
    """Return the ordinals of the devices that this process may use; none without CuPy or a card.

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
    """Whether this process is a worker that dask-cuda has started."""
    distributed = sys.modules.get("distributed")
    if distributed is None or "dask_cuda" not in sys.modules:
        return False
    try:
        worker = distributed.get_worker()
    except ValueError:
        return "dask_cuda.initialize" in sys.modules
    names = {type(plugin).__module__.partition(".")[0] for plugin in worker.plugins.values()}
    return "dask_cuda" in names or "dask_cuda.initialize" in sys.modules
