"""Speeds of GPUs, measured through the device protocol and by the device's clock.

A simulated device therefore gives back the speeds that it was made with.
"""

import math
import timeit
from collections.abc import Callable
from typing import Any

import numpy as np

from dask_bigfft.gpu.executor import Device
from dask_bigfft.gpu.operations import FFT, DeviceArray, Multiply
from dask_bigfft.memory import allocate
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.planner.tile_plan import aligned

#: Length of the timed FFTs, and bytes of the narrow rows.
LENGTH, ROW = 1024, 4096

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
    nbytes = max(1 << 12, min(nbytes, device.memory().free // 4) // 4096 * 4096)
    device.reserve(3 * aligned(nbytes))
    try:
        found = {**_bus(device, nbytes), **_compute(device, nbytes)}
    finally:
        device.synchronize_all()
        device.release()
        device.drop_caches()
    return DeviceProfile(name=device.name, nbytes=device.memory().total, **found)


def _seconds(device: Device, work: Callable[[], object], count: int = COUNT) -> float:
    """Return the mean seconds of a call by the device's clock, the least of three measurements."""

    def calls() -> None:
        for _ in range(count):
            work()
        device.synchronize_all()

    taken = timeit.repeat(calls, device.synchronize_all, device.clock, repeat=3, number=1)
    return max(min(taken) / count, 1e-12)


def _bus(device: Device, nbytes: int) -> dict[str, float]:
    """Return the duplex speed of the bus, and the extra cost of a narrow row."""
    up, down = device.stream("h2d"), device.stream("d2h")
    whole = [allocate((nbytes,), np.dtype("u1")) for _ in range(2)]
    for array in whole:
        array.fill(1)

    def speed(source: Any, target: Any) -> float:
        there, back = (DeviceArray(at, source.shape, "|u1") for at in (0, aligned(nbytes)))

        def copies() -> None:
            device.h2d(up, source, there)
            device.d2h(down, back, target)

        return float(source.nbytes) / _seconds(device, copies)

    row = min(ROW, nbytes // 4)
    rows = nbytes // (2 * row)
    wide = speed(*whole)
    narrow = speed(*(a[: rows * 2 * row].reshape(rows, 2 * row)[:, :row] for a in whole))
    return {"h2d": wide, "d2h": wide, "run": max(0.0, row / narrow - row / wide)}


def _compute(device: Device, nbytes: int) -> dict[str, float]:
    """Return the speeds of the device's memory and FFTs, and the latency of an operation."""
    stream, elements = device.stream("compute"), nbytes // 16

    def scaled(count: int, times: int) -> float:
        array, op = DeviceArray(0, (count,), "<c16"), Multiply((count,), "<c16", 1.0)
        return _seconds(device, lambda: device.compute(stream, op, array, array), times)

    found = {"call": scaled(16, 64 * COUNT), "memory": 32 * elements / scaled(elements, COUNT)}
    n = min(LENGTH, elements)
    values = DeviceArray(0, (elements // n, n), "<c16")
    op = FFT("c2c", values.shape, values.shape, (1,), -1, "<c16")
    device.synchronize_all()
    if (need := device.work_nbytes(op)) <= nbytes:
        work = DeviceArray(2 * aligned(nbytes), (need,), "|u1")
        taken = _seconds(device, lambda: device.compute(stream, op, values, values, work))
        found["flops"] = 5 * values.shape[0] * n * math.log2(max(n, 2)) / taken
    return found
