"""Speeds of GPUs, measured through the device protocol and by the device's clock.

A simulated device therefore gives back the speeds that it was made with.
"""

import logging
import math
import timeit
from collections.abc import Callable

import numpy as np

from dask_bigfft.arrays import Array
from dask_bigfft.gpu.executor import Device
from dask_bigfft.gpu.operations import FFT, DeviceArray, Multiply
from dask_bigfft.memory import allocate
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.planner.tile_plan import aligned

log = logging.getLogger(__name__)

#: Length of the timed FFTs.
LENGTH = 1024

#: Bytes of the narrow rows.
ROW_NBYTES = 4096

#: Repetitions of an operation in one measurement.
COUNT = 8


def device_speeds(device: Device, nbytes: int = 1 << 28) -> DeviceProfile:
    """Return the measured speeds of an idle device.

    Parameters
    ----------
    device : Device
        An open device without a reserved arena.
    nbytes : int
        Bytes of the largest copy. Up to three times as much memory is reserved.

    Raises
    ------
    DeviceMemoryError
        If the device has too little free memory.
    """
    nbytes = min(nbytes, device.memory().free // 4)
    nbytes = max(1 << 12, nbytes // 4096 * 4096)
    device.reserve(3 * aligned(nbytes))
    try:
        bus_speeds = _bus(device, nbytes)
        compute_speeds = _compute(device, nbytes)
    finally:
        device.synchronize_all()
        device.release()
        device.drop_caches()
    return DeviceProfile(
        name=device.name,
        nbytes=device.memory().total,
        **bus_speeds,
        **compute_speeds,
    )


def _seconds(device: Device, work: Callable[[], object], count: int = COUNT) -> float:
    """Return the mean seconds of a call by the device's clock, the least of three measurements."""

    def calls() -> None:
        for _ in range(count):
            work()
        device.synchronize_all()

    seconds = timeit.repeat(
        calls,
        setup=device.synchronize_all,
        timer=device.clock,
        repeat=3,
        number=1,
    )
    return max(min(seconds) / count, 1e-12)


def _bus(device: Device, nbytes: int) -> dict[str, float]:
    """Return the duplex speed of the bus, and the extra cost of a narrow row."""
    up = device.stream("h2d")
    down = device.stream("d2h")
    source = allocate((nbytes,), np.dtype("u1"))
    target = allocate((nbytes,), np.dtype("u1"))
    source.fill(1)
    target.fill(1)

    def speed(source: Array, target: Array) -> float:
        """Return the bytes per second of a copy to the device, beside one of as many bytes back."""
        loaded = DeviceArray(0, source.shape, "|u1")
        stored = DeviceArray(aligned(nbytes), source.shape, "|u1")

        def copies() -> None:
            device.h2d(up, source, loaded)
            device.d2h(down, stored, target)

        seconds = _seconds(device, copies)
        return float(source.nbytes) / seconds

    row_nbytes = min(ROW_NBYTES, nbytes // 4)
    rows = nbytes // (2 * row_nbytes)

    def narrow_rows(array: Array) -> Array:
        """Return the first half of every two rows: rows with gaps as long as they are."""
        two_rows = array[: rows * 2 * row_nbytes].reshape(rows, 2 * row_nbytes)
        return two_rows[:, :row_nbytes]

    wide = speed(source, target)
    narrow_source = narrow_rows(source)
    narrow_target = narrow_rows(target)
    narrow = speed(narrow_source, narrow_target)
    extra_seconds = row_nbytes / narrow - row_nbytes / wide
    return {
        "h2d": wide,
        "d2h": wide,
        "run": max(0.0, extra_seconds),
    }


def _compute(device: Device, nbytes: int) -> dict[str, float]:
    """Return the speeds of the device's memory and FFTs, and the latency of an operation.

    The arena has three times `nbytes`. Without memory for FFTs, the profile has a default speed of
    them, and a warning says so.
    """
    stream = device.stream("compute")
    elements = nbytes // 16

    def scaling_seconds(length: int, count: int) -> float:
        array = DeviceArray(0, (length,), "<c16")
        op = Multiply((length,), "<c16", 1.0)

        def scale() -> None:
            device.compute(stream, op, array, array)

        return _seconds(device, scale, count)

    call_seconds = scaling_seconds(16, 64 * COUNT)
    pass_seconds = scaling_seconds(elements, COUNT)
    pass_nbytes = 2 * 16 * elements  # read and written
    speeds = {"call": call_seconds, "memory": pass_nbytes / pass_seconds}
    n = min(LENGTH, elements)
    lines = elements // n
    values = DeviceArray(0, (lines, n), "<c16")
    op = FFT(
        kind="c2c",
        source=values.shape,
        target=values.shape,
        dims=(1,),
        sign=-1,
        dtype="<c16",
    )
    device.synchronize_all()
    work_nbytes = device.work_nbytes(op)
    if work_nbytes > nbytes:
        log.warning(
            "FFTs of %s were not measured: they need %d bytes, and %d are free",
            device.name,
            work_nbytes,
            nbytes,
        )
        return speeds
    work = DeviceArray(2 * aligned(nbytes), (work_nbytes,), "|u1")

    def transform() -> None:
        device.compute(stream, op, values, values, work)

    fft_seconds = _seconds(device, transform)
    flops = 5 * lines * n * math.log2(max(n, 2))
    speeds["flops"] = flops / fft_seconds
    return speeds
