"""A CUDA device as the engine sees it: streams, events, an arena, and copies of host views.

How a copy travels is chosen for each view (`Way`): straight by the copy engines where memory is
pinned and rows are wide; by a kernel that reads or writes pinned memory itself where they are
narrow; through a ring of staging buffers where memory is not pinned.

Imports `config`, `errors`, `memory` and this room.
"""

import contextlib
import ctypes
import functools
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from dask_bigfft import config
from dask_bigfft.devices import ring as staging
from dask_bigfft.devices.cuda import available, cupy, reason
from dask_bigfft.devices.cuda_operations import Operations, strided_copy
from dask_bigfft.devices.protocol import (
    FFT,
    Array,
    DeviceArray,
    DeviceMemory,
    Event,
    Multiply,
    Product,
    Stream,
    Transpose,
)
from dask_bigfft.devices.transfer import (
    TO_DEVICE,
    TO_HOST,
    Copy,
    calls,
    copies,
    memcpy3d,
    row_nbytes,
    runs,
)
from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.memory import Pinner, default_arena, pin_blocks, pinned
from dask_bigfft.memory.pages import Buffer

#: Rows from here on are left to the copy engines; narrower ones are read by a kernel.
ENGINE_ROW_NBYTES = 32 * 1024

#: Narrower rows are not written by a kernel, which the host's memory takes very badly.
KERNEL_WRITE_NBYTES = 4 * 1024

#: Driver calls for one piece from which on a kernel copies it in one.
MANY_CALLS = 256

#: Blocks of the grid of a kernel that copies over the bus: a few keep it busy.
BUS_BLOCKS = 48

_OUT_OF_MEMORY, _INVALID_VALUE = 2, 1


class Way(Enum):
    """How a view of host memory travels."""

    ENGINE = "copy engine"
    KERNEL = "kernel"
    RING = "ring"


def way(view: Array, direction: int, is_pinned: bool) -> Way:
    """Return how a view travels.

    Parameters
    ----------
    view : ndarray
        Host memory.
    direction : {TO_DEVICE, TO_HOST}
        Where to.
    is_pinned : bool
        Whether all of it lies in pinned memory.

    Examples
    --------
    >>> block = np.zeros((64, 8192), "c16")
    >>> way(block[:, :4096], TO_DEVICE, True), way(block[:, :512], TO_DEVICE, True)
    (<Way.ENGINE: 'copy engine'>, <Way.KERNEL: 'kernel'>)
    >>> way(block[:, :64], TO_HOST, True), way(block, TO_DEVICE, False)
    (<Way.ENGINE: 'copy engine'>, <Way.RING: 'ring'>)
    """
    if not is_pinned:
        return Way.RING
    width, many = row_nbytes(view), calls(view) > MANY_CALLS
    if width >= view.nbytes or (width >= ENGINE_ROW_NBYTES and not many):
        return Way.ENGINE
    if direction == TO_HOST and width < KERNEL_WRITE_NBYTES and not many:
        return Way.ENGINE
    return Way.KERNEL


class CupyStream:
    """A stream, and what the host still has to do before that in it is done."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.raw = cupy().cuda.Stream(non_blocking=True)
        self.unfinished, self.awaited = staging.Pending(), staging.Pending()


class CupyEvent:
    """A mark in a stream, with what the host had still to do when it was made."""

    def __init__(self, name: str, raw: Any) -> None:
        self.name, self.raw = name, raw
        self.pending: tuple[Future[None], ...] = ()


@dataclass(frozen=True)
class Span:
    """Something that was done in a stream: when it began and ended, in seconds."""

    engine: str
    operation: str
    start: float
    end: float
    nbytes: int


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    """Turn what CUDA and its libraries raise into our own."""
    cp = cupy()
    try:
        yield
    except cp.cuda.memory.OutOfMemoryError as error:
        raise DeviceMemoryError(str(error)) from error
    except cp.cuda.runtime.CUDARuntimeError as error:
        kind = DeviceMemoryError if error.status == _OUT_OF_MEMORY else DeviceError
        raise kind(str(error)) from error
    except cp.cuda.cufft.CuFFTError as error:
        kind = DeviceMemoryError if error.result in (_OUT_OF_MEMORY, 5) else DeviceError
        raise kind(str(error)) from error


class CupyDevice:
    """A device of the protocol, by CuPy.

    Parameters
    ----------
    ordinal : int
        Which of the devices that CUDA sees.
    traced : bool
        Whether to keep when everything began and ended (`spans`), which costs an event or two
        for each operation.
    """

    def __init__(self, ordinal: int, traced: bool = False) -> None:
        self.ordinal, self.traced = ordinal, traced
        self._cupy = cupy()
        self._rt = self._cupy.cuda.runtime
        self._device = self._cupy.cuda.Device(ordinal)
        self._arena: Any = None
        self._base = self._nbytes = 0
        self._streams: list[CupyStream] = []
        self._operations = Operations()
        self._marks: list[tuple[str, str, Any, Any, int]] = []
        self._ring: staging.Ring | None = None
        self._ring_memory: list[Buffer] = []
        with self._device, _errors():
            self._rt.free(0)  # makes the context
            properties = self._rt.getDeviceProperties(ordinal)
            self._origin = self._cupy.cuda.Event()
            self._origin.record()
        self._name = str(properties["name"].decode())
        self._pinner = Pinner(
            self._register, self._rt.hostUnregister, pinned_limit(),
            errors=(self._rt.CUDARuntimeError,),
        )
        pin_blocks(self._pinner)

    def _register(self, address: int, nbytes: int) -> None:
        with self._device:
            self._rt.hostRegister(address, nbytes, self._rt.hostRegisterPortable)

    @property
    def name(self) -> str:
        """Name of the hardware."""
        return self._name

    # --- memory -----------------------------------------------------------------------------

    def memory(self) -> DeviceMemory:
        """Memory in all and free now."""
        with self._device, _errors():
            free, total = self._rt.memGetInfo()
            return DeviceMemory(int(total), int(free))

    def reserve(self, nbytes: int) -> None:
        """Reserve the arena."""
        if self._arena is not None:
            raise DeviceError("an arena is reserved already")
        with self._device, _errors():
            self._arena = self._cupy.cuda.alloc(nbytes)
        self._base, self._nbytes = int(self._arena.ptr), nbytes

    def release(self) -> None:
        """Give the arena back once all is done."""
        self.synchronize_all()
        self._arena, self._base, self._nbytes = None, 0, 0
        self._free_pool()

    def drop_caches(self) -> None:
        """Give plans and pools back."""
        with self._device, _errors():
            self._operations.drop_plans()
        self._free_pool()

    def _free_pool(self) -> None:
        with self._device, _errors():
            self._cupy.get_default_memory_pool().free_all_blocks()

    def close(self) -> None:
        """Give everything back."""
        self.release()
        self.drop_caches()
        if self._ring is not None:
            self._ring.close()
            self._ring, self._ring_memory = None, []
        if pin_blocks(None) is not self._pinner:
            pin_blocks(self._pinner)  # another device's
        self._pinner.close()
        self._streams.clear()

    def _address(self, array: DeviceArray) -> int:
        if array.offset < 0 or array.offset + array.nbytes > self._nbytes:
            raise DeviceError(f"{array} does not lie in an arena of {self._nbytes} bytes")
        return self._base + array.offset

    # --- streams and events -----------------------------------------------------------------

    def stream(self, name: str) -> CupyStream:
        """Make a stream that nothing but events orders."""
        with self._device, _errors():
            found = CupyStream(name)
            self._streams.append(found)
            return found

    def event(self, name: str) -> CupyEvent:
        """Make an event; who waits for it on the host sleeps."""
        with self._device, _errors():
            return CupyEvent(name, self._cupy.cuda.Event(block=True, disable_timing=True))

    def record(self, event: Event, stream: Stream) -> None:
        """Put a mark into a stream."""
        assert isinstance(event, CupyEvent)
        assert isinstance(stream, CupyStream)
        with self._device, _errors():
            event.raw.record(stream.raw)
        event.pending = stream.unfinished.now()

    def wait(self, stream: Stream, event: Event) -> None:
        """Let a stream wait for the event's latest mark."""
        assert isinstance(event, CupyEvent)
        assert isinstance(stream, CupyStream)
        with self._device, _errors():
            stream.raw.wait_event(event.raw)
        if event.pending:
            stream.awaited.add(event.pending)

    def synchronize(self, event: Event) -> None:
        """Wait for the event's latest mark, and for the values that belong to it."""
        assert isinstance(event, CupyEvent)
        pending = event.pending
        with _errors():
            event.raw.synchronize()
        for future in pending:
            future.result()

    def synchronize_all(self) -> None:
        """Wait until all streams are idle."""
        for stream in self._streams:
            with _errors():
                stream.raw.synchronize()
            stream.unfinished.wait()

    @contextlib.contextmanager
    def _in(self, stream: Stream, operation: str, nbytes: int) -> Iterator[CupyStream]:
        """Submit to a stream: its device and stream are the current ones."""
        assert isinstance(stream, CupyStream)
        stream.awaited.wait()
        with self._device, stream.raw, _errors():
            if not self.traced:
                yield stream
                return
            begin, end = self._cupy.cuda.Event(), self._cupy.cuda.Event()
            begin.record()
            yield stream
            end.record()
            self._marks.append((stream.name, operation, begin, end, nbytes))

    def spans(self) -> list[Span]:
        """When everything began and ended since the last call, where the device is traced."""
        self.synchronize_all()
        since = functools.partial(self._cupy.cuda.get_elapsed_time, self._origin)
        marks, self._marks = self._marks, []
        return [
            Span(stream, operation, since(begin) / 1e3, since(end) / 1e3, nbytes)
            for stream, operation, begin, end, nbytes in marks
        ]

    def clock(self) -> float:
        """Seconds by the host's clock."""
        return time.perf_counter()

    # --- copies -----------------------------------------------------------------------------

    def h2d(self, stream: Stream, source: Array, target: DeviceArray) -> None:
        """Copy a host view to the device."""
        self._travel(stream, source, target, TO_DEVICE)

    def d2h(self, stream: Stream, source: DeviceArray, target: Array) -> None:
        """Copy to a host view."""
        self._travel(stream, target, source, TO_HOST)

    def _travel(self, stream: Stream, view: Array, array: DeviceArray, direction: int) -> None:
        if view.shape != array.shape or view.dtype.str != array.dtype:
            raise DeviceError(f"copy between {view.shape} {view.dtype.str} and {array}")
        if not view.size:
            return
        address, name = self._address(array), "h2d" if direction == TO_DEVICE else "d2h"
        with self._in(stream, name, view.nbytes) as found:
            chosen = way(view, direction, _is_pinned(view))
            if chosen is Way.KERNEL and not self._by_kernel(view, address, direction):
                chosen = Way.ENGINE
            if chosen is Way.ENGINE and not self._by_engine(found, view, address, direction):
                chosen = Way.RING
            if chosen is Way.RING:
                self._by_ring(found, view, address, direction)

    def _by_engine(self, stream: CupyStream, view: Array, device: int, direction: int) -> bool:
        """Copy by the copy engines; whether they took it."""
        host = int(view.ctypes.data)
        try:
            for copy in copies(view):
                self._call(copy, host, device, direction, stream.raw.ptr)
        except self._rt.CUDARuntimeError as error:
            if error.status != _INVALID_VALUE:
                raise
            return False  # somebody else's memory, pinned in parts
        return True

    def _call(self, copy: Copy, host: int, device: int, direction: int, stream: int) -> None:
        ends = host + copy.host, device + copy.device
        target, source = ends[::-1] if direction == TO_DEVICE else ends
        if copy.depth > 1:
            found = memcpy3d(copy, host, device, direction)
            self._rt.memcpy3DAsync(ctypes.addressof(found), stream)
        elif copy.height > 1:
            wide = copy.width, copy.pitch
            to, from_ = wide if direction == TO_DEVICE else wide[::-1]
            self._rt.memcpy2DAsync(
                target, to, source, from_, copy.width, copy.height, direction, stream
            )
        else:
            self._rt.memcpyAsync(target, source, copy.nbytes, direction, stream)

    def _by_kernel(self, view: Array, device: int, direction: int) -> bool:
        """Copy by a kernel that reaches into pinned memory; whether it can."""
        width, outer = runs(view)
        numbers = (width, int(view.ctypes.data), device, *(run.stride for run in outer))
        unit = next((size for size in (16, 8, 4) if not any(n % size for n in numbers)), 0)
        if not unit:
            return False
        dims, dense = [(width // unit, 1, 1)], width // unit
        for run in reversed(outer):
            dims.append((run.count, run.stride // unit, dense))
            dense *= run.count
        host = int(view.ctypes.data)
        if direction == TO_DEVICE:
            strided_copy(dims[::-1], unit, host, device, BUS_BLOCKS)
        else:
            turned = [(n, to, from_) for n, from_, to in reversed(dims)]
            strided_copy(turned, unit, device, host, BUS_BLOCKS)
        return True

    def _by_ring(self, stream: CupyStream, view: Array, device: int, direction: int) -> None:
        """Copy through staging buffers."""
        if self._ring is None:
            self._ring = self._make_ring()
        cuda, raw = self._cupy.cuda, stream.raw

        def copy(address: int, offset: int, nbytes: int) -> Any:
            ends = address, device + offset
            target, source = ends[::-1] if direction == TO_DEVICE else ends
            with self._device:
                self._rt.memcpyAsync(target, source, nbytes, direction, raw.ptr)
                mark = cuda.Event(block=True, disable_timing=True)
                mark.record(raw)
            return mark

        if direction == TO_DEVICE:
            self._ring.load(view, copy)
        else:
            stream.unfinished.add(self._ring.store(view, copy))

    def _make_ring(self) -> staging.Ring:
        """Pin the staging buffers, or find others that the driver has."""
        nbytes = staging.BUFFER_NBYTES
        self._ring_memory = [Buffer(nbytes) for _ in range(2 * staging.BUFFERS)]
        pins = Pinner(
            self._register, self._rt.hostUnregister, len(self._ring_memory) * nbytes,
            errors=(self._rt.CUDARuntimeError,),
        )
        for buffer in self._ring_memory:
            pins.pin(buffer)
        memory = [buffer.memory for buffer in self._ring_memory]
        if pins.counters().failures:
            with _errors():
                memory = [
                    np.frombuffer(self._cupy.cuda.alloc_pinned_memory(nbytes), np.uint8, nbytes)
                    for _ in memory
                ]
        return staging.Ring(memory, max(2, len(os.sched_getaffinity(0))))

    # --- computing --------------------------------------------------------------------------

    def work_nbytes(self, op: FFT) -> int:
        """Make the plan, and return the bytes of work area that it needs."""
        with self._device, _errors():
            return self._operations.work_nbytes(op)

    def fft(
        self, stream: Stream, op: FFT, source: DeviceArray, target: DeviceArray, work: DeviceArray
    ) -> None:
        """Transform."""
        addresses = (self._address(array) for array in (source, target, work))
        with self._in(stream, "fft", source.nbytes + target.nbytes):
            self._operations.fft(op, *addresses)

    def multiply(self, stream: Stream, op: Multiply, array: DeviceArray) -> None:
        """Multiply by computed factors."""
        with self._in(stream, "twiddle", 2 * array.nbytes):
            self._operations.multiply(op, self._address(array))

    def product(
        self, stream: Stream, op: Product, array: DeviceArray, other: DeviceArray
    ) -> None:
        """Multiply by another array."""
        with self._in(stream, "product", 2 * array.nbytes):
            self._operations.product(op, self._address(array), self._address(other))

    def transpose(
        self, stream: Stream, op: Transpose, source: DeviceArray, target: DeviceArray
    ) -> None:
        """Copy with the dimensions in another order."""
        with self._in(stream, "transpose", 2 * source.nbytes):
            self._operations.transpose(op, self._address(source), self._address(target))


def pinned_limit() -> int:
    """Return how many bytes of the arena may be pinned: the setting, or all that it may hold."""
    limit = config.get("bigfft.memory.pinned-limit")
    return default_arena().limit if limit is None else int(limit)


def _is_pinned(view: Array) -> bool:
    """Whether a view lies in pinned memory: the arena's in one range, or somebody else's."""
    low = int(view.ctypes.data)
    last = sum((n - 1) * stride for n, stride in zip(view.shape, view.strides, strict=True))
    if pinned(low, last + view.itemsize):
        return True
    asked = cupy().cuda.pinned_memory.is_memory_pinned
    return bool(asked(low) and asked(low + last + view.itemsize - 1))


def open_device(ordinal: int) -> CupyDevice:
    """Return a device.

    Raises
    ------
    DeviceError
        If this process may not use it; says what is missing.
    """
    if ordinal not in available():
        missing = reason() or f"devices for this process: {available()}"
        raise DeviceError(f"device {ordinal} cannot be used: {missing}")
    return CupyDevice(ordinal)
