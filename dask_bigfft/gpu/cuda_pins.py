"""Which host memory a CUDA device reaches by itself: what is pinned, or becomes so.

The arena's blocks are pinned from the first device of the process to the last; arrays of others
where they are, while they live.

Imports `config`, `memory` and this room.
"""

import threading

from dask_bigfft import config
from dask_bigfft.gpu.cuda import cupy
from dask_bigfft.gpu.operations import Array
from dask_bigfft.memory import Pinner, default_arena, pin_blocks, pinned

#: As a flag of registering: pinned for every device.
_PORTABLE = 1


def make_pinner(limit: int, adopted: int = 0) -> Pinner:
    """Return what pins up to `limit` bytes for all devices of this process.

    Beside them, up to `adopted` bytes of arrays of others.
    """
    runtime = cupy().cuda.runtime

    def register(address: int, nbytes: int) -> None:
        runtime.hostRegister(address, nbytes, _PORTABLE)

    errors = (runtime.CUDARuntimeError,)
    return Pinner(register, runtime.hostUnregister, limit, adopted=adopted, errors=errors)


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
                limit = pinned_limit()
                self._pinner = make_pinner(limit, limit)
                pin_blocks(self._pinner)

    def end(self) -> None:
        with self._lock:
            self._devices -= 1
            if self._devices == 0 and self._pinner is not None:
                pin_blocks(None)
                self._pinner.close()
                self._pinner = None

    def adopt(self, array: Array) -> bool:
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

    def forsake(self) -> None:
        """Let all arrays of others go."""
        if self._pinner is not None:
            self._pinner.forsake()


pins = _Pins()


def pinned_limit() -> int:
    """Return how many bytes of the arena may be pinned: the setting, or all that it may hold."""
    limit = config.get("bigfft.memory.pinned-limit")
    return default_arena().limit if limit is None else int(limit)


def is_pinned(view: Array) -> bool:
    """Whether a view lies in pinned memory: the arena's in one range, or somebody else's."""
    low = int(view.__array_interface__["data"][0])
    last = sum((n - 1) * stride for n, stride in zip(view.shape, view.strides, strict=True))
    if pinned(low, last + view.itemsize):
        return True
    asked = cupy().cuda.pinned_memory.is_memory_pinned
    return bool(asked(low) and asked(low + last + view.itemsize - 1))


def reachable(view: Array) -> bool:
    """Whether the card reaches a view by itself: it is pinned, if only from now on."""
    return is_pinned(view) or (pins.adopt(view) and is_pinned(view))
