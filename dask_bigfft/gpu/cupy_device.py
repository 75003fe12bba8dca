"""A CUDA device as the engine sees it: streams, events, an arena, and copies of host views.

What it does is in `cuda_operations`, how host memory travels in `cuda_copies`.

Imports `kernels`, `errors` and this room.
"""

import contextlib
import functools
import math
import time
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.gpu.cuda import available, cupy, current, free_pinned, reason, software
from dask_bigfft.gpu.cuda_copies import CupyStream, HostCopies
from dask_bigfft.gpu.cuda_operations import Operations
from dask_bigfft.gpu.cuda_pins import pins
from dask_bigfft.gpu.operations import (
    FFT,
    Array,
    DeviceArray,
    Multiply,
    Product,
    Strided,
    Transpose,
    each,
)
from dask_bigfft.gpu.protocol import DeviceMemory, Event, Stream
from dask_bigfft.gpu.transfer import TO_DEVICE, TO_HOST
from dask_bigfft.kernels.composite import Composite, Shards

_OUT_OF_MEMORY = 2

#: Bytes of device memory that kernels and plans take beside the arena: cuFFT's and our kernels 20
#: MiB, plans of most lengths 2 MiB each or nothing (H200, CUDA 13). What plans take beyond that is
#: counted.
LIBRARIES_NBYTES = 64 << 20

#: Bytes of plans that are reckoned in with the libraries.
_FEW_PLANS_NBYTES = 32 << 20


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
def errors_of_cuda() -> Iterator[None]:
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
        self._closed = False
        self._arena: Any = None
        self._base = self._nbytes = 0
        self._streams: list[CupyStream] = []
        self._operations = Operations(tiled=True)
        self._marks: list[tuple[str, str, Any, Any, int]] = []
        self._copies = HostCopies()
        with self._device, errors_of_cuda():
            self._rt.free(0)  # makes the context
            properties = self._rt.getDeviceProperties(ordinal)
            self._origin = self._cupy.cuda.Event()
            self._origin.record()
        self._name = str(properties["name"].decode())
        pins.begin()

    @property
    def name(self) -> str:
        """Name of the hardware."""
        return self._name

    @property
    def software(self) -> dict[str, str]:
        """What the card is, and the versions of CuPy and cuFFT."""
        return software([self.ordinal])

    # --- memory -----------------------------------------------------------------------------

    @property
    def libraries(self) -> int:
        """Bytes that kernels and plans of most lengths take."""
        return LIBRARIES_NBYTES

    @property
    def tables(self) -> int:
        """Bytes that plans take beyond that."""
        return max(0, self._operations.tables - _FEW_PLANS_NBYTES)

    def memory(self) -> DeviceMemory:
        """Memory in all and free now."""
        with self._device, errors_of_cuda():
            free, total = self._rt.memGetInfo()
            return DeviceMemory(int(total), int(free))

    def reserve(self, nbytes: int) -> None:
        """Reserve the arena."""
        if self._arena is not None:
            raise DeviceError("an arena is reserved already")
        with self._device, errors_of_cuda():
            self._arena = self._cupy.cuda.alloc(nbytes)
        self._base, self._nbytes = int(self._arena.ptr), nbytes

    def release(self) -> None:
        """Give the arena back once all is done."""
        self.synchronize_all()
        self._copies.forget()
        self._arena, self._base, self._nbytes = None, 0, 0
        self._free_pool()

    def drop_caches(self) -> None:
        """Give plans and pools back."""
        with self._device, errors_of_cuda():
            self._operations.drop_plans()
        self._free_pool()

    def _free_pool(self) -> None:
        """Give back what CuPy keeps for later, pinned memory as well: exchanges take it."""
        free_pinned()
        with self._device, errors_of_cuda():
            self._cupy.get_default_memory_pool().free_all_blocks()

    def close(self) -> None:
        """Give everything back."""
        self.release()
        self.drop_caches()
        self._copies.close()
        self._streams.clear()
        if not self._closed:
            self._closed = True
            pins.end()

    @property
    def address(self) -> int:
        """Where the arena begins, by the driver's count."""
        return self._base

    def _address(self, array: DeviceArray) -> int:
        if array.offset < 0 or array.offset + array.span > self._nbytes:
            raise DeviceError(f"{array} does not lie in an arena of {self._nbytes} bytes")
        return self._base + array.offset

    # --- streams and events -----------------------------------------------------------------

    def stream(self, name: str) -> CupyStream:
        """Make a stream that nothing but events orders."""
        with self._device, errors_of_cuda():
            found = CupyStream(name)
            self._streams.append(found)
            return found

    def event(self, name: str) -> CupyEvent:
        """Make an event; who waits for it on the host sleeps."""
        with self._device, errors_of_cuda():
            return CupyEvent(name, self._cupy.cuda.Event(block=True, disable_timing=True))

    def record(self, event: Event, stream: Stream, stored: bool = True) -> None:
        """Put a mark into a stream."""
        assert isinstance(event, CupyEvent)
        assert isinstance(stream, CupyStream)
        with self._device, errors_of_cuda():
            event.raw.record(stream.raw)
        event.pending = (*stream.unfinished.now(), *stream.awaited.now()) if stored else ()

    def wait(self, stream: Stream, event: Event) -> None:
        """Let a stream wait for the event's latest mark."""
        assert isinstance(event, CupyEvent)
        assert isinstance(stream, CupyStream)
        with self._device, errors_of_cuda():
            stream.raw.wait_event(event.raw)
        if event.pending:
            stream.awaited.add(event.pending)

    def synchronize(self, event: Event) -> None:
        """Wait for the event's latest mark, and for the values that belong to it."""
        assert isinstance(event, CupyEvent)
        pending = event.pending
        with errors_of_cuda():
            event.raw.synchronize()
        for future in pending:
            future.result()

    def synchronize_all(self) -> None:
        """Wait until all streams are idle."""
        for stream in self._streams:
            with errors_of_cuda():
                stream.raw.synchronize()
            stream.unfinished.wait()

    @contextlib.contextmanager
    def _in(self, stream: Stream, operation: str, nbytes: int) -> Iterator[CupyStream]:
        """Submit to a stream: its device and stream are the current ones."""
        assert isinstance(stream, CupyStream)
        stream.awaited.wait()
        with current(self._device), stream.raw, errors_of_cuda():
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

    def stage(self, buffers: int | None, nbytes: int | None, part: int | None = None) -> None:
        """Set the ring for what is not pinned; another one is made when it is needed next."""
        self._copies.stage(buffers, nbytes, part)

    def ring_nbytes(self, host: Array | Composite) -> int:
        """Bytes of the ring, one way, if host memory is not pinned and cannot be."""
        with current(self._device), errors_of_cuda():
            return self._copies.ring_nbytes(host)

    @property
    def staged(self) -> int:
        """How often the ring was needed."""
        return self._copies.staged

    def ahead(self, stream: Stream, source: Array | Shards) -> None:
        """Gather into the ring what will be copied later, if it goes that way."""
        assert isinstance(stream, CupyStream)
        stream.awaited.wait()
        with current(self._device), errors_of_cuda():
            self._copies.ahead(source)

    def h2d(self, stream: Stream, source: Array | Shards, target: DeviceArray) -> None:
        """Copy a host view, or shards, to the device."""
        self._travel(stream, source, target, TO_DEVICE)

    def d2h(self, stream: Stream, source: DeviceArray, target: Array | Shards) -> None:
        """Copy to a host view, or to shards."""
        self._travel(stream, target, source, TO_HOST)

    def _travel(
        self, stream: Stream, host: Array | Shards, array: DeviceArray, direction: int
    ) -> None:
        name = "h2d" if direction == TO_DEVICE else "d2h"
        address = self._address(array)
        if isinstance(host, Shards):
            with self._in(stream, name, host.nbytes) as found:
                if self._copies.travel_together(found, host, address, direction):
                    return
            for view, part in each(host, array):
                self._travel(stream, view, part, direction)
            return
        if host.shape != array.shape or host.dtype.str != array.dtype:
            raise DeviceError(f"copy between {host.shape} {host.dtype.str} and {array}")
        if not host.size:
            return
        with self._in(stream, name, host.nbytes) as found:
            self._copies.travel(found, host, address, direction, array.strides)

    def clear(self, stream: Stream, array: DeviceArray) -> None:
        """Put zeros there."""
        address = self._address(array)
        if not array.nbytes:
            return
        with self._in(stream, "clear", array.nbytes) as found:
            self._rt.memsetAsync(address, 0, array.nbytes, found.raw.ptr)

    # --- computing --------------------------------------------------------------------------

    def work_nbytes(self, op: FFT) -> int:
        """Make the plan, and return the bytes of work area that it needs."""
        with self._device, errors_of_cuda():
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

    def product(self, stream: Stream, op: Product, array: DeviceArray, other: DeviceArray) -> None:
        """Multiply by another array."""
        with self._in(stream, "product", 2 * array.nbytes):
            self._operations.product(op, self._address(array), self._address(other))

    def transpose(
        self, stream: Stream, op: Transpose, source: DeviceArray, target: DeviceArray
    ) -> None:
        """Copy with the dimensions in another order."""
        with self._in(stream, "transpose", 2 * source.nbytes):
            self._operations.transpose(op, self._address(source), self._address(target))

    def strided(
        self, stream: Stream, op: Strided, source: DeviceArray, target: DeviceArray
    ) -> None:
        """Copy elements to other places of another array."""
        with self._in(stream, "transpose", 2 * math.prod(op.counts) * np.dtype(op.dtype).itemsize):
            self._operations.strided(op, self._address(source), self._address(target))


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
