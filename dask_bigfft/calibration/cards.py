"""Speeds of devices, measured through their protocol and by their own clock.

So a simulated device is measured as a card is, and gives back the speeds that it was made with.

Imports `devices`, `memory`, dask's configuration and this room.
"""

import itertools
import math
import statistics
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import dask.config
import numpy as np

from dask_bigfft.devices.cupy_device import CupyDevice
from dask_bigfft.devices.extents import aligned
from dask_bigfft.devices.operations import FFT, Array, DeviceArray, Multiply
from dask_bigfft.devices.peers import Gpus
from dask_bigfft.devices.protocol import Device
from dask_bigfft.memory import default_arena, lend
from dask_bigfft.planner.profile import Curve, DeviceProfile, Peer

__all__ = ["device_speeds", "ordinals_of", "peer_speeds", "together"]

#: Lengths of FFTs, and bytes of rows, that are measured where they fit.
LENGTHS = (64, 1024, 8192, 65536, 1 << 20)
ROWS = (4096, 16384, 65536, 262144)
SIZES = (1 << 16, 1 << 20, 1 << 24, 1 << 28)

#: Seconds for which threads copy while a device does, bytes that they copy at a time, and how many
#: times as many they go over as the device does.
BESIDE_SECONDS, BESIDE_NBYTES, MORE = 0.2, 8 << 20, 4

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


def _bus_speed(
    bench: _Bench, view_in: Array, view_out: Array, *, ways: Sequence[str] = ("h2d", "d2h")
) -> float:
    """Bytes per second each way while copies go both ways, or one of them."""
    device, (up, down) = bench.device, (bench.device.stream("h2d"), bench.device.stream("d2h"))
    shape = view_in.shape
    there, back = (DeviceArray(at, shape, view_in.dtype.str) for at in (bench.came, bench.goes))

    def copies() -> None:
        if "h2d" in ways:
            device.h2d(up, view_in, there)
        if "d2h" in ways:
            device.d2h(down, back, view_out)

    return view_in.nbytes / bench.seconds(copies)


def _copies(bench: _Bench) -> dict[str, Any]:
    """Speeds of the bus, by the bytes of a copy and by those of its rows."""
    whole = [lend((bench.nbytes,), np.dtype("u1")) for _ in range(2)]
    for array in whole:
        array.fill(1)
    sizes = (*(size for size in SIZES if size < bench.nbytes), bench.nbytes)
    views = {
        "by_size": {size: [array[:size] for array in whole] for size in sizes},
        "by_row": {row: [_in_rows(array, row) for array in whole]
                   for row in ROWS if bench.nbytes >= 4 * row},
    }
    found: dict[str, Any] = {}
    for before, ways in (("", ("h2d", "d2h")), ("h2d_", ("h2d",)), ("d2h_", ("d2h",))):
        for name, pairs in views.items():
            points = tuple(
                (float(n), _bus_speed(bench, *pair, ways=ways)) for n, pair in pairs.items())
            found[before + name] = Curve(points) if points else None
    most, rows = found["by_size"].most, found["by_row"]
    return {"h2d": most, "d2h": most, "run": _run(most, dict(rows.points) if rows else {}), **found}


def _in_rows(array: Array, row: int) -> Array:
    """Rows of some bytes that lie as many apart."""
    rows = array.nbytes // (2 * row)
    return array[: rows * 2 * row].reshape(rows, 2 * row)[:, :row]


def _run(most: float, by_row: Mapping[float, float]) -> float:
    """Seconds that a row costs beside its bytes: what errs least, in parts of what was measured.

    Of wide rows it is a small part, and they say little of it.
    """
    weights = {row: speed / row for row, speed in by_row.items()}
    squares = sum(weight**2 for weight in weights.values())
    excess = sum(weights[row] * (1 - speed / most) for row, speed in by_row.items())
    return max(0.0, excess / squares) if squares else 0.0


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


def _staged(bench: _Bench) -> dict[str, float]:
    """Speed of fresh pinned memory, and of the bus for memory that is not and does not become."""
    default_arena().trim()
    started = time.perf_counter()
    fresh = lend((2 * bench.nbytes,), np.dtype("u1"))
    fresh[::4096] = 1
    pin = fresh.nbytes / (time.perf_counter() - started)
    del fresh
    ordinary = [np.ones(bench.nbytes, np.uint8) for _ in range(2)]
    with dask.config.set({"bigfft.memory.pin-arrays": False}):
        return {"pin": pin, "ring": _bus_speed(bench, *ordinary)}


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
        found = {**_copies(bench), **_kernels(bench), **_staged(bench)}
    finally:
        _returned(device)
    return DeviceProfile(name=device.name, nbytes=device.memory().total, **found)


def together(device: Device, threads: int, copy: float, nbytes: int = 1 << 28) -> float:
    """Return what is left of the speeds of threads that copy, and of a bus, while both work.

    The sum of both rates beside each other over that of both rates alone, at most 1. Threads slow
    a bus down the more they copy: what is measured at the rate of nothing but copies is drawn to
    the one at which the rounds of a profile copy.

    Parameters
    ----------
    device : Device
        Open, with no arena reserved.
    threads : int
        That copy.
    copy : float
        Bytes per second that a thread copies in a round.
    nbytes : int
        Bytes of a copy over the bus; threads copy from `MORE` times as many to as many others, more
        than caches hold.
    """
    bench = _reserved(device, nbytes)
    try:
        here = [lend((bench.nbytes,), np.dtype("u1")) for _ in range(2)]
        theirs = [np.ones(MORE * bench.nbytes, np.uint8) for _ in range(2)]
        alone = _bus_speed(bench, *here)
        rest = _beside(theirs, threads, lambda until: _idle(until))
        both = _beside(theirs, threads, lambda until: _until(bench, here, until))
    finally:
        _returned(device)
    lost = max(0.0, 1 - (both[0] + both[1]) / (alone + rest[0]))
    return 1 - lost * min(1.0, threads * copy / rest[0])


def _idle(until: float) -> float:
    time.sleep(max(0.0, until - time.perf_counter()))
    return 0.0


def _until(bench: _Bench, here: Sequence[Array], until: float) -> float:
    """Speed of the bus up to a moment."""
    speeds = []
    while time.perf_counter() < until:
        speeds.append(_bus_speed(bench, *here))
    return statistics.median(speeds) if speeds else 0.0


def _beside(
    arrays: Sequence[Array], threads: int, work: Callable[[float], float]
) -> tuple[float, float]:
    """Bytes per second that threads copy while something else is done, and what that returns."""
    until, copied = time.perf_counter() + BESIDE_SECONDS, [0] * threads
    starts = range(0, arrays[0].nbytes, BESIDE_NBYTES)

    def copy(number: int) -> None:
        own = itertools.cycle(starts[number::threads] or starts)
        while time.perf_counter() < until:
            low = next(own)
            part = slice(low, low + BESIDE_NBYTES)
            np.copyto(arrays[1][part], arrays[0][part])
            copied[number] += arrays[0][part].nbytes

    running = [threading.Thread(target=copy, args=(number,)) for number in range(threads)]
    started = time.perf_counter()
    for thread in running:
        thread.start()
    found = work(until)
    for thread in running:
        thread.join()
    return sum(copied) / (time.perf_counter() - started), found


def ordinals_of(devices: Sequence[Device]) -> tuple[int, ...]:
    """Return the CUDA devices of this process; none if any device is not CUDA's."""
    found = tuple(device.ordinal for device in devices if isinstance(device, CupyDevice))
    return found if len(found) == len(devices) else ()


def peer_speeds(
    ordinals: Sequence[int], nbytes: int, gpus: Gpus | None = None
) -> tuple[Peer, ...]:
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
