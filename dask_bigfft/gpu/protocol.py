"""The protocol of devices: what the engine needs of one.

Operations (`operations`) are put into streams and return at once. Those of one stream run in order;
those of different streams in any order that the events permit. Nothing here says how: `simulated`
runs NumPy, another file CuPy. A device has one arena, reserved once.

Imports `kernels` and this room.
"""

from dataclasses import dataclass
from typing import Protocol

from dask_bigfft.gpu.operations import (
    FFT,
    Array,
    DeviceArray,
    Multiply,
    Product,
    Strided,
    Transpose,
)
from dask_bigfft.kernels.composite import Composite, Shards


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Bytes of a device's memory: in all, and free for us now."""

    total: int
    free: int


class Stream(Protocol):
    """A queue of operations that run in order."""

    @property
    def name(self) -> str:
        """What it is for: ``"h2d"``, ``"compute"``, ``"d2h"``, or ``"piece"`` for all of it."""


class Event(Protocol):
    """A mark in a stream that other streams and the host can wait for."""

    @property
    def name(self) -> str:
        """What it says, such as ``"loaded"``."""


class Device(Protocol):
    """What the engine needs of a device.

    The engine calls from several threads, one at a time, but for `ring_nbytes` and `synchronize`,
    which any thread may call at any time; the latter must not hold the interpreter's lock while it
    waits. None of the other operations waits for another, but that `h2d` and `d2h` of host memory
    that is not pinned may wait for a staging buffer; an event recorded after a `d2h` is reached
    when the values are in the host array.
    """

    @property
    def name(self) -> str:
        """Name of the hardware."""

    @property
    def software(self) -> dict[str, str]:
        """What decides about the last bit of what it computes, by name: versions of libraries."""

    @property
    def libraries(self) -> int:
        """Bytes of its memory that libraries take beside the arena: kernels, plans of most FFTs."""

    @property
    def tables(self) -> int:
        """Bytes that the plans made so far take beyond that, for lengths with large primes."""

    def memory(self) -> DeviceMemory:
        """Memory in all and free now. What `reserve` holds is not free."""

    def reserve(self, nbytes: int) -> None:
        """Reserve the arena, whose contents are undefined.

        The one before has been released. Raises `DeviceMemoryError` if it does not fit.
        """

    def release(self) -> None:
        """Give the arena back once all that is in the streams is done."""

    def drop_caches(self) -> None:
        """Give back all memory that is kept for later (plans, pools); streams are idle."""

    def close(self) -> None:
        """Give everything back. The device is not used any more."""

    def stream(self, name: str) -> Stream:
        """Make a stream; streams wait for each other only by events."""

    def event(self, name: str) -> Event:
        """Make an event."""

    def record(self, event: Event, stream: Stream, stored: bool = True) -> None:
        """Put a mark into a stream; the event stands for its latest mark.

        Who waits for it finds what was copied to the host there; unless `stored` is false: then
        only the device is done with what it was copied from.
        """

    def wait(self, stream: Stream, event: Event) -> None:
        """Let what follows in a stream wait for the event's latest mark made before this call.

        An event that has no mark holds nothing up.
        """

    def synchronize(self, event: Event) -> None:
        """Wait on the host for the event's latest mark."""

    def synchronize_all(self) -> None:
        """Wait on the host until all streams are idle."""

    def ahead(self, stream: Stream, source: Array | Shards) -> None:
        """Take in what `h2d` will be asked to copy in a stream, in the order of these calls.

        The very same object is passed then. Its values are there when what the stream waits for
        now is reached, and nothing writes to it before it is copied: so a device that stages what
        is not pinned may begin with that.
        """

    def h2d(self, stream: Stream, source: Array | Shards, target: DeviceArray) -> None:
        """Copy a host array of the same shape and dtype to the device, or shards of one.

        The host array may have any strides above 0 that fall from the first dimension to the
        last. The engine keeps it alive and untouched until an event after it is reached. The
        target may be a part of a larger array: its offset is only aligned to its elements then,
        and it may have strides. Shards are copied as `each` says.
        """

    def d2h(self, stream: Stream, source: DeviceArray, target: Array | Shards) -> None:
        """Copy to a host array; as `h2d`."""

    def clear(self, stream: Stream, array: DeviceArray) -> None:
        """Put zeros into a dense array, in any stream."""

    def work_nbytes(self, op: FFT) -> int:
        """Bytes of work area that an FFT needs.

        Called with idle streams before the first `fft` of that description, and the first one after
        `drop_caches`, so that the plan is made here. Raises `DeviceMemoryError` if it does not fit.
        """

    def fft(
        self, stream: Stream, op: FFT, source: DeviceArray, target: DeviceArray, work: DeviceArray
    ) -> None:
        """Transform; `work` are at least `work_nbytes` bytes that hold nothing before and after."""

    def multiply(self, stream: Stream, op: Multiply, array: DeviceArray) -> None:
        """Multiply in place by factors that are computed; the array may begin at any element."""

    def product(self, stream: Stream, op: Product, array: DeviceArray, other: DeviceArray) -> None:
        """Multiply in place by another array."""

    def transpose(
        self, stream: Stream, op: Transpose, source: DeviceArray, target: DeviceArray
    ) -> None:
        """Copy with the dimensions in another order, multiplied on the way if that is asked."""

    def strided(
        self, stream: Stream, op: Strided, source: DeviceArray, target: DeviceArray
    ) -> None:
        """Copy elements to other places of another array, as `transpose`; both begin anywhere."""

    def stage(self, buffers: int | None, nbytes: int | None, part: int | None = None) -> None:
        """Set the ring through which host memory travels that is not pinned.

        `buffers` are those of each way, `nbytes` the bytes of each, and `part` how many of these
        are used at a time, which takes no other ring; None is what the device has by itself, and
        whole buffers. Called when nothing is being submitted.
        """

    def ring_nbytes(self, host: Array | Composite) -> int:
        """Bytes of the ring, one way, if host memory travels through it; else 0.

        Any thread may ask at any time.
        """

    @property
    def staged(self) -> int:
        """How often anything has gone through that ring since the device was opened."""

    def clock(self) -> float:
        """Seconds since some moment, as the host sees them."""
