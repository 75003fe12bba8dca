"""Speeds of devices, measured through their protocol and by their own clock.

So a simulated device is measured as a card is, and gives back the speeds that it was made with.

Imports `devices`, `memory` and this room.
"""

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_bigfft.devices.crossings import aligned
from dask_bigfft.devices.protocol import FFT, Array, Device, DeviceArray, Multiply
from dask_bigfft.memory import lend
from dask_bigfft.planner.profile import Curve, DeviceProfile

__all__ = ["device_speeds"]

#: Lengths of FFTs, and bytes of rows, that are measured where they fit.
LENGTHS = (64, 1024, 8192, 65536, 1 << 20)
ROWS = (4096, 16384, 65536, 262144)
SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 28)

#: Times that an operation is done while the clock runs.
COUNT = 8


@dataclass(frozen=True)
class _Bench:
    """A device with an arena of three areas: what comes, what goes, and room for FFTs."""

    device: Device
    nbytes: int

    @property
    def came(self) -> int:
        return 0

    @property
    def goes(self) -> int:
        return aligned(self.nbytes)

    @property
    def work(self) -> int:
        return 2 * aligned(self.nbytes)

    def seconds(self, work: Callable[[], object], count: int = COUNT) -> float:
        """Seconds of one of many calls, by the device's clock; the least of three rounds."""
        found = []
        for _ in range(3):
            self.device.synchronize_all()
            started = self.device.clock()
            for _ in range(count):
                work()
            self.device.synchronize_all()
            found.append((self.device.clock() - started) / count)
        return max(min(found), 1e-12)


def _duplex(bench: _Bench, view_in: Array, view_out: Array) -> float:
    """Bytes per second each way while copies go both ways."""
    device, (up, down) = bench.device, (bench.device.stream("h2d"), bench.device.stream("d2h"))
    shape = view_in.shape
    there, back = (DeviceArray(at, shape, view_in.dtype.str) for at in (bench.came, bench.goes))

    def both() -> None:
        device.h2d(up, view_in, there)
        device.d2h(down, back, view_out)

    return view_in.nbytes / bench.seconds(both)


def _copies(bench: _Bench) -> dict[str, Any]:
    """Speeds of the bus, by the bytes of a copy and by those of its rows."""
    whole = [lend((bench.nbytes,), np.dtype("u1")) for _ in range(2)]
    for array in whole:
        array.fill(1)
    by_size = {
        size: _duplex(bench, whole[0][:size], whole[1][:size])
        for size in (*(s for s in SIZES if s < bench.nbytes), bench.nbytes)
    }
    most, by_row, runs = max(by_size.values()), {}, []
    for row in ROWS:
        rows = bench.nbytes // (2 * row)
        if rows < 2:
            continue
        views = [array[: rows * 2 * row].reshape(rows, 2 * row)[:, :row] for array in whole]
        by_row[row] = _duplex(bench, views[0], views[1])
        runs.append(max(0.0, (1 / by_row[row] - 1 / most) * row))
    return {
        "h2d": most, "d2h": most, "run": statistics.median(runs) if runs else 0.0,
        "by_size": Curve(tuple((float(s), v) for s, v in sorted(by_size.items()))),
        "by_row": Curve(tuple((float(r), v) for r, v in by_row.items())) if by_row else None,
    }


def _kernels(bench: _Bench) -> dict[str, Any]:
    """Speeds of the device's memory and FFTs, and what the start of an operation costs."""
    device, stream = bench.device, bench.device.stream("compute")
    elements = bench.nbytes // 16
    array = DeviceArray(bench.came, (elements,), "<c16")
    small = DeviceArray(bench.came, (16,), "<c16")
    call = bench.seconds(
        lambda: device.multiply(stream, Multiply((16,), "<c16", 1.0), small), 64 * COUNT
    )
    memory = 2 * array.nbytes / bench.seconds(
        lambda: device.multiply(stream, Multiply((elements,), "<c16", 1.0), array)
    )
    lengths: dict[float, float] = {}
    for n in LENGTHS:
        rows = elements // n
        if rows < 1:
            continue
        values = DeviceArray(bench.came, (rows, n), "<c16")
        op = FFT("c2c", values.shape, values.shape, (1,), -1, "<c16")
        device.synchronize_all()
        need = device.work_nbytes(op)
        if need > bench.nbytes:
            continue
        work = DeviceArray(bench.work, (need,), "|u1")
        taken = bench.seconds(lambda: device.fft(stream, op, values, values, work))  # noqa: B023
        lengths[float(n)] = 5 * rows * n * math.log2(n) / taken
    found: dict[str, Any] = {"call": call, "memory": memory}
    if lengths:
        found |= {"flops": max(lengths.values()), "lengths": Curve(tuple(lengths.items()))}
    return found


def device_speeds(device: Device, nbytes: int = 1 << 28) -> DeviceProfile:
    """Return the speeds of a device that nobody else uses now.

    Parameters
    ----------
    device : Device
        Open, with no arena reserved.
    nbytes : int
        Bytes of the largest copy; four times as many are reserved.

    Raises
    ------
    DeviceMemoryError
        If the device has no room for that.
    """
    free = device.memory().free
    bench = _Bench(device, max(1 << 12, min(nbytes, free // 4) // 4096 * 4096))
    device.reserve(3 * aligned(bench.nbytes))
    try:
        found = {**_copies(bench), **_kernels(bench)}
    finally:
        device.synchronize_all()
        device.release()
        device.drop_caches()
    return DeviceProfile(name=device.name, nbytes=device.memory().total, **found)
