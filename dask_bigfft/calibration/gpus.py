"""Speeds of GPUs, measured through the device protocol and by the device's clock.

A simulated device therefore gives back the speeds that it was made with.

Imports `gpu`, `memory` and the planner's profiles.
"""

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_bigfft.gpu.cupy_gpu import CupyGPU
from dask_bigfft.gpu.executor import Device
from dask_bigfft.gpu.on_gpu import Gpus
from dask_bigfft.gpu.operations import FFT, Array, DeviceArray, Multiply
from dask_bigfft.memory import default_arena, lend
from dask_bigfft.planner.profile import DeviceProfile, Peer
from dask_bigfft.planner.tile_plan import aligned

__all__ = ["device_speeds", "ordinals_of", "peer_speeds"]

#: Length of the FFTs, and bytes of the rows, that are measured.
LENGTH, ROW = 1024, 4096

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


def _bus_speed(bench: _Bench, view_in: Array, view_out: Array) -> float:
    """Bytes per second each way while copies go both ways."""
    device, (up, down) = bench.device, (bench.device.stream("h2d"), bench.device.stream("d2h"))
    shape = view_in.shape
    there, back = (DeviceArray(at, shape, view_in.dtype.str) for at in (bench.came, bench.goes))

    def copies() -> None:
        device.h2d(up, view_in, there)
        device.d2h(down, back, view_out)

    return view_in.nbytes / bench.seconds(copies)


def _copies(bench: _Bench) -> dict[str, float]:
    """Speed of the bus both ways at once, and what a narrow row costs beside its bytes."""
    whole = [lend((bench.nbytes,), np.dtype("u1")) for _ in range(2)]
    for array in whole:
        array.fill(1)
    speed, row = _bus_speed(bench, *whole), min(ROW, bench.nbytes // 4)
    rows = bench.nbytes // (2 * row)
    narrow = _bus_speed(
        bench, *(a[: rows * 2 * row].reshape(rows, 2 * row)[:, :row] for a in whole)
    )
    return {"h2d": speed, "d2h": speed, "run": max(0.0, row / narrow - row / speed)}


def _kernels(bench: _Bench) -> dict[str, Any]:
    """Speeds of the device's memory and FFTs, and what the start of an operation costs."""
    device, stream = bench.device, bench.device.stream("compute")
    elements = bench.nbytes // 16
    array = DeviceArray(bench.came, (elements,), "<c16")
    small = DeviceArray(bench.came, (16,), "<c16")
    call = bench.seconds(
        lambda: device.compute(stream, Multiply((16,), "<c16", 1.0), small, small), 64 * COUNT
    )
    memory = (
        2
        * array.nbytes
        / bench.seconds(
            lambda: device.compute(stream, Multiply((elements,), "<c16", 1.0), array, array)
        )
    )
    found: dict[str, Any] = {"call": call, "memory": memory}
    n = min(LENGTH, elements)
    values = DeviceArray(bench.came, (elements // n, n), "<c16")
    op = FFT("c2c", values.shape, values.shape, (1,), -1, "<c16")
    device.synchronize_all()
    if (need := device.work_nbytes(op)) <= bench.nbytes:
        work = DeviceArray(bench.work, (need,), "|u1")
        taken = bench.seconds(lambda: device.compute(stream, op, values, values, work))
        found["flops"] = 5 * values.shape[0] * n * math.log2(max(n, 2)) / taken
    return found


def _pinning(nbytes: int) -> float:
    """Return the bytes per second at which fresh memory is prefaulted and pinned."""
    default_arena().trim()
    started = time.perf_counter()
    fresh = lend((2 * nbytes,), np.dtype("u1"))
    fresh[::4096] = 1
    return fresh.nbytes / (time.perf_counter() - started)


def _reserved(device: Device, nbytes: int) -> _Bench:
    """A device with room for copies and FFTs of some bytes, or of fewer where it is small."""
    free = device.memory().free
    bench = _Bench(device, max(1 << 12, min(nbytes, free // 4) // 4096 * 4096))
    device.reserve(3 * aligned(bench.nbytes))
    return bench


def _returned(device: Device) -> None:
    device.synchronize_all()
    device.release()
    device.drop_caches()


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
    bench = _reserved(device, nbytes)
    try:
        found = {**_copies(bench), **_kernels(bench), "pin": _pinning(bench.nbytes)}
    finally:
        _returned(device)
    return DeviceProfile(name=device.name, nbytes=device.memory().total, **found)


def ordinals_of(devices: Sequence[Device]) -> tuple[int, ...]:
    """Return the CUDA devices of this process; none if any device is not CUDA's."""
    found = tuple(device.ordinal for device in devices if isinstance(device, CupyGPU))
    return found if len(found) == len(devices) else ()


def peer_speeds(ordinals: Sequence[int], nbytes: int, gpus: Gpus | None = None) -> tuple[Peer, ...]:
    """Return the bandwidth of copies of contiguous memory for each pair of GPUs that can.

    Parameters
    ----------
    ordinals : sequence of int
        The GPUs; a `Peer` names each by its place among them.
    nbytes : int
        Bytes that are sent.
    gpus : Gpus, optional
        The copies, by default those of CuPy.
    """
    found, gpus = [], gpus or Gpus()
    for (a, source), (b, target) in itertools.permutations(enumerate(ordinals), 2):
        if not gpus.reaches(target, source):
            continue
        values, out = (gpus.empty(gpu, nbytes, np.dtype("u1")) for gpu in (source, target))
        times = []
        for _ in range(4):
            started = time.perf_counter()
            gpus.send(source, values, target, out)
            times.append(time.perf_counter() - started)
        found.append(Peer(a, b, nbytes / max(min(times), 1e-9)))
    return tuple(found)
