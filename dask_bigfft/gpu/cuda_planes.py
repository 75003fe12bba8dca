"""Many strided copies of one form, put into a stream without letting the interpreter go.

A call of the runtime takes a microsecond, but it lets other threads run meanwhile, and then has to
wait for its turn again: up to 5 ms behind a thread that is busy. A block that is read from 64
others takes 64 calls for each piece. So these are made through the driver with the interpreter's
lock held; none of them waits for the card unless a thousand copies are under way.

Imports NumPy and this room.
"""

import ctypes
import functools
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from dask_bigfft.gpu.transfer import TO_DEVICE, Copy

Ints = npt.NDArray[np.int64]

#: Words of the structure that the driver's two-dimensional copy is told (``CUDA_MEMCPY2D``).
WORDS = 16

_HOST, _DEVICE = 1, 2
_INVALID_VALUE = 1


def table(
    calls: Sequence[Copy], hosts: Ints, devices: Ints, direction: int
) -> npt.NDArray[np.uint64]:
    """What the driver is told for copies from or to these addresses, a row for each.

    Parameters
    ----------
    calls : sequence of Copy
        Copies of one plane, that are made for each pair of addresses.
    hosts, devices : ndarray of int
        Where views begin in host memory and on the device.
    direction : {TO_DEVICE, TO_HOST}
        Where to.

    Examples
    --------
    >>> call = Copy(8, 0, 256, 4, pitch=1024, device_pitch=256)
    >>> told = table([call], np.array([4096]), np.array([512]), TO_DEVICE)
    >>> told[0, [3, 6, 11, 13, 14, 15]].tolist()
    [4104, 1024, 512, 256, 256, 4]
    """
    found = np.zeros((len(hosts), len(calls), WORDS), np.uint64)
    source, target = (0, 7) if direction == TO_DEVICE else (7, 0)
    starts = hosts.astype(np.uint64), devices.astype(np.uint64)
    for number, call in enumerate(calls):
        row = found[:, number]
        row[:, source + 2], row[:, target + 2] = _HOST, _DEVICE
        row[:, source + 3] = starts[0] + np.uint64(call.host)
        row[:, target + 4] = starts[1] + np.uint64(call.device)
        row[:, source + 6] = max(call.pitch, call.width)
        row[:, target + 6] = max(call.device_pitch, call.width)
        row[:, 14], row[:, 15] = call.width, call.height
    return found.reshape(-1, WORDS)


@functools.cache
def _driver() -> Callable[[int, int], int] | None:
    """The driver's asynchronous copy, that keeps the interpreter's lock; None: no such driver."""
    try:
        found = ctypes.PyDLL("libcuda.so.1").cuMemcpy2DAsync_v2
    except (OSError, AttributeError):
        return None
    found.argtypes, found.restype = [ctypes.c_void_p, ctypes.c_void_p], ctypes.c_int
    return found


def planes(
    calls: Sequence[Copy], hosts: Ints, devices: Ints, direction: int, stream: int
) -> bool | None:
    """Put copies into a stream, as `table` describes them.

    Returns whether the driver took all of them; None where there is no such driver, or it refuses
    for another reason than what the memory is, so that others may say what.
    """
    driver = _driver()
    if driver is None:
        return None
    told = table(calls, hosts, devices, direction)
    first, step = told.ctypes.data, told.strides[0]
    for at in range(first, first + len(told) * step, step):
        status = driver(at, stream)
        if status:
            return False if status == _INVALID_VALUE else None
    return True
