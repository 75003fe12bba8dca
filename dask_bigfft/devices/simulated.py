"""A device made of NumPy, on which whatever streams and events leave open goes wrong on purpose.

Operations wait in their streams until the host waits for something. Then they run one by one in an
order drawn from a seed, any that the events permit, and no others: a pipeline with an event too few
gives a wrong answer here, where a card may give the right one for years. Memory that nothing was
written to holds NaN, more memory than there is is refused, and a clock follows a profile: copies
each way and computing are three engines that work at the same time, each in the order of the calls.
Of host memory that is not pinned the clock knows the ring it travels through (`simulated_ring`).

Imports `planner`, `kernels`, `errors` and this room.
"""

import itertools
import math
import random
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from dask_bigfft.devices.numpy_operations import (
    check_arrays,
    check_copy,
    check_strided,
    index_of,
    multiplied,
    places_at,
    transformed,
    work_area,
)
from dask_bigfft.devices.protocol import (
    ALIGNMENT,
    FFT,
    Array,
    DeviceArray,
    DeviceMemory,
    Event,
    Multiply,
    Product,
    Stream,
    Strided,
    Transpose,
    each,
)
from dask_bigfft.devices.ring import BUFFER_NBYTES, BUFFERS
from dask_bigfft.devices.simulated_ring import Copying, RingClock
from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.kernels.composite import Composite, Shards
from dask_bigfft.planner.profile import DeviceProfile

#: What memory is filled with that holds nothing: as floating point numbers, NaN.
POISON = 0xFF

#: Buffers each way of the ring for what is not pinned, and bytes of each.
RING = (BUFFERS, BUFFER_NBYTES)


@dataclass(frozen=True)
class Span:
    """Work that an engine (``h2d``, ``compute`` or ``d2h``) did, and when, by the clock."""

    engine: str
    operation: str
    start: float
    end: float


@dataclass
class SimulatedEvent:
    """A mark: how often it was made, how often it was reached, and when the latest is reached.

    And when the host has what was copied to it before.
    """

    name: str
    made: int = 0
    reached: int = 0
    time: float = 0.0
    stored: float = 0.0


@dataclass
class SimulatedStream:
    """Operations that wait, and when the clock says that they will be done.

    And what the host is to wait for: until all that was copied to it is there, and before it puts
    more into the stream.
    """

    name: str
    waiting: deque[tuple[Callable[[], bool], Callable[[], None]]] = field(default_factory=deque)
    time: float = 0.0
    stored: float = 0.0
    awaited: float = 0.0


def contiguous_runs(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> int:
    """Number of contiguous runs of an array in memory.

    >>> contiguous_runs((3, 4, 5), (400, 40, 8), 8), contiguous_runs((3, 4, 5), (400, 80, 8), 8)
    (3, 12)
    """
    width = itemsize
    left = list(zip(shape, strides, strict=True))
    while left and (left[-1][1] == width or left[-1][0] == 1):
        width *= left.pop()[0]
    return math.prod(n for n, _ in left)


class SimulatedDevice:
    """A device of the protocol, in NumPy.

    Parameters
    ----------
    memory : int
        Bytes of its memory.
    seed : int
        Draws the order in which operations run.
    profile : DeviceProfile
        Speeds, for the clock.
    refuses : callable
        Called with ``"reserve"`` or ``"plan"`` and a number of bytes whenever memory is asked for;
        true stands for memory that cannot be had, as happens where others use the card, too.
    libraries, table : int
        Bytes of its memory that are taken beside the arena: at once, and for every plan.
    dry : bool
        Whether only the clock runs: nothing is copied or computed, so sizes may be any.
    pageable : bool
        Whether host memory is not pinned, so that it travels through a ring of buffers.
    """

    name = "simulated device"

    def __init__(
        self,
        memory: int,
        seed: int = 0,
        profile: DeviceProfile | None = None,
        refuses: Callable[[str, int], bool] = lambda operation, nbytes: False,
        dry: bool = False,
        libraries: int = 0,
        table: int = 0,
        pageable: bool = False,
    ) -> None:
        self.total, self.refuses, self.dry, self.pageable = memory, refuses, dry, pageable
        self.profile = DeviceProfile() if profile is None else profile
        self.ring = RingClock(self.profile.ring, *RING)
        self.libraries, self._table = libraries, table
        self._plans: set[FFT] = set()
        self.peak = 0
        self.trace: list[Span] = []
        self.dropped = self.closed = 0
        self._arena = np.empty(0, np.uint8)
        self._streams: list[SimulatedStream] = []
        self._lock = threading.RLock()
        self._engines = {"h2d": 0.0, "compute": 0.0, "d2h": 0.0}
        self._host_time, self._marks = 0.0, itertools.count()
        self._random = random.Random(seed)
        self._favour: dict[str, float] = {}

    # --- memory -----------------------------------------------------------------------------

    @property
    def tables(self) -> int:
        """Bytes of the plans that are kept."""
        return self._table * len(self._plans)

    def _taken(self) -> int:
        taken = self.libraries + self.tables + self._arena.nbytes
        self.peak = max(self.peak, taken)
        return taken

    def memory(self) -> DeviceMemory:
        """Memory in all, and free."""
        return DeviceMemory(self.total, self.total - self._taken())

    def reserve(self, nbytes: int) -> None:
        """Make the arena, full of NaN."""
        if self._arena.nbytes:
            raise DeviceError("an arena is reserved already")
        if nbytes > self.total - self._taken() or self.refuses("reserve", nbytes):
            raise DeviceMemoryError(f"{nbytes} bytes asked of a device with {self.total}")
        self._arena = np.empty(nbytes, np.uint8)  # which takes no memory until it is written
        if not self.dry:
            self._arena.fill(POISON)
        self._taken()

    def release(self) -> None:
        """Run what waits, and give the arena back."""
        self.synchronize_all()
        self.ring.forget()
        self._arena = np.empty(0, np.uint8)

    def drop_caches(self) -> None:
        """Forget the plans, and count the call."""
        self._plans.clear()
        self.dropped += 1

    def close(self) -> None:
        """Give the arena back."""
        self.release()
        self.closed += 1

    def _array(self, array: DeviceArray, alignment: int = ALIGNMENT) -> Array:
        """The values of an array, after checking that it lies in the arena."""
        end = array.offset + array.span
        if array.offset < 0 or array.offset % alignment or end > self._arena.nbytes:
            raise DeviceError(f"{array} does not lie in an arena of {self._arena.nbytes} bytes")
        values = self._arena[array.offset : end].view(array.dtype)
        if array.strides is None:
            return values.reshape(array.shape)
        return np.lib.stride_tricks.as_strided(values, array.shape, array.strides)

    # --- streams and events -----------------------------------------------------------------

    def stream(self, name: str) -> SimulatedStream:
        """Make a stream."""
        with self._lock:
            stream = SimulatedStream(name)
            self._streams.append(stream)
            # Some streams run far ahead of others, differently for every seed.
            self._favour[name] = self._random.choice((0.01, 1.0, 100.0))
            return stream

    def event(self, name: str) -> SimulatedEvent:
        """Make an event."""
        return SimulatedEvent(name)

    def record(self, event: Event, stream: Stream, stored: bool = True) -> None:
        """Put a mark into a stream."""
        assert isinstance(event, SimulatedEvent)
        assert isinstance(stream, SimulatedStream)
        with self._lock:
            event.made += 1
            event.time = stream.time
            event.stored = max(stream.stored, stream.awaited) if stored else 0.0
            mark = event.made

            def reach() -> None:
                event.reached = max(event.reached, mark)

            stream.waiting.append((lambda: True, reach))

    def wait(self, stream: Stream, event: Event) -> None:
        """Let a stream wait for the event's latest mark."""
        assert isinstance(event, SimulatedEvent)
        assert isinstance(stream, SimulatedStream)
        with self._lock:
            mark = event.made
            stream.time = max(stream.time, event.time)
            stream.awaited = max(stream.awaited, event.stored)
            stream.waiting.append((lambda: event.reached >= mark, lambda: None))

    def synchronize(self, event: Event) -> None:
        """Run what waits until the event's latest mark is reached."""
        assert isinstance(event, SimulatedEvent)
        mark = event.made
        while True:
            with self._lock:
                if event.reached >= mark:
                    self._host_time = max(self._host_time, event.time, event.stored)
                    return
                self._run_one()

    def synchronize_all(self) -> None:
        """Run everything that waits."""
        with self._lock:
            while any(stream.waiting for stream in self._streams):
                self._run_one()
            ends = [max(stream.time, stream.stored) for stream in self._streams]
            self._host_time = max([self._host_time, *ends])

    def _run_one(self) -> None:
        """Run one that may be next."""
        ready = [s for s in self._streams if s.waiting and s.waiting[0][0]()]
        if not ready:
            raise DeviceError("streams wait for each other, or for a mark that was never made")
        weights = [self._favour[stream.name] for stream in ready]
        stream = self._random.choices(ready, weights)[0]
        stream.waiting.popleft()[1]()

    def _put(self, stream: Stream, operation: str, seconds: float, run: Callable[[], None]) -> None:
        """Put an operation into a stream, and its time on the clock of its engine."""
        assert isinstance(stream, SimulatedStream)
        with self._lock:
            self._timed(stream, operation, seconds)
            self._queue(stream, run)

    def _timed(self, stream: SimulatedStream, operation: str, seconds: float) -> float:
        """Let an operation take its time; when it is done."""
        engine = operation if operation in self._engines else "compute"
        self._host_time = max(self._host_time, stream.awaited) + self.profile.call
        start = max(self._engines[engine], stream.time, self._host_time)
        self._engines[engine] = stream.time = start + seconds
        self.trace.append(Span(engine, operation, start, start + seconds))
        return stream.time

    def _queue(self, stream: SimulatedStream, run: Callable[[], None]) -> None:
        """Let an operation wait in a stream; maybe one of all that wait is run."""
        stream.waiting.append((lambda: True, (lambda: None) if self.dry else run))
        if self._random.random() < 0.1:
            self._run_one()

    def clock(self) -> float:
        """Seconds of simulated time that have passed for the host."""
        with self._lock:
            return self._host_time

    def stage(self, buffers: int | None, nbytes: int | None) -> None:
        """Set the ring that the clock reckons with."""
        self.ring = RingClock(self.profile.ring, buffers or RING[0], nbytes or RING[1])

    def ring_nbytes(self, host: Array | Composite) -> int:
        """Bytes of the ring that the clock reckons with, one way, if nothing is pinned."""
        return self.ring.buffers * self.ring.nbytes if self.pageable else 0

    @property
    def staged(self) -> bool:
        """Whether host memory is not pinned."""
        return self.pageable

    def wait_until(self, seconds: float) -> None:
        """Let simulated time pass for the host, up to a moment, while it does something else."""
        with self._lock:
            self._host_time = max(self._host_time, seconds)

    # --- operations -------------------------------------------------------------------------

    def ahead(self, stream: Stream, source: Array | Shards) -> None:
        """Nothing but for the clock, which knows of staging."""
        assert isinstance(stream, SimulatedStream)
        if self.pageable:
            with self._lock:
                self._host_time = max(self._host_time, stream.awaited)
                self.ring.ahead(source, source.nbytes, self._host_time)

    def h2d(self, stream: Stream, source: Array | Shards, target: DeviceArray) -> None:
        """Copy to the device when its time comes."""
        pairs = list(each(source, target)) if isinstance(source, Shards) else [(source, target)]
        assert isinstance(stream, SimulatedStream)
        with self._lock:
            if self.pageable:
                copy = self._staged(stream, "h2d", self.profile.h2d)
                started = max(self._host_time, stream.awaited)
                self._host_time = self.ring.load(source, source.nbytes, started, copy)
            for view, place in pairs:
                self._come(stream, view, place)

    def _come(self, stream: SimulatedStream, source: Array, target: DeviceArray) -> None:
        check_copy(source, target)

        def run() -> None:
            self._array(target, source.itemsize)[...] = source

        if not self.pageable:
            self._timed(stream, "h2d", self._copy_seconds(source, self.profile.h2d))
        self._queue(stream, run)

    def d2h(self, stream: Stream, source: DeviceArray, target: Array | Shards) -> None:
        """Copy to the host when its time comes."""
        if isinstance(target, Shards):
            for view, place in each(target, source):
                self.d2h(stream, place, view)
            return
        check_copy(target, source)

        def run() -> None:
            target[...] = self._array(source, target.itemsize)

        assert isinstance(stream, SimulatedStream)
        with self._lock:
            if self.pageable:
                copy = self._staged(stream, "d2h", self.profile.d2h)
                started = max(self._host_time, stream.awaited)
                stored, self._host_time = self.ring.store(target.nbytes, started, copy)
                stream.stored = max(stream.stored, stored)
            else:
                self._timed(stream, "d2h", self._copy_seconds(target, self.profile.d2h))
            self._queue(stream, run)

    def _copy_seconds(self, host: Array, bandwidth: float) -> float:
        runs = contiguous_runs(host.shape, host.strides, host.itemsize)
        return self.profile.bus_seconds(host.nbytes, runs, bandwidth)

    def _staged(self, stream: SimulatedStream, operation: str, bandwidth: float) -> Copying:
        """What copies between staging buffers and the device, by the clock."""
        def copy(nbytes: int, now: float) -> tuple[float, float]:
            self._host_time = max(self._host_time, now)
            done = self._timed(stream, operation, nbytes / bandwidth)
            return done, self._host_time

        return copy

    def clear(self, stream: Stream, array: DeviceArray) -> None:
        """Put zeros there when its time comes."""
        def run() -> None:
            self._array(array)[...] = 0

        self._put(stream, "clear", array.nbytes / self.profile.memory, run)

    def work_nbytes(self, op: FFT) -> int:
        """As much as the array, unless the lengths are small powers of two."""
        nbytes = work_area(op)
        if self.refuses("plan", nbytes):
            raise DeviceMemoryError(f"no plan could be made for {op}")
        self._plans.add(op)
        self._taken()
        return nbytes

    def fft(
        self, stream: Stream, op: FFT, source: DeviceArray, target: DeviceArray, work: DeviceArray
    ) -> None:
        """Transform when its time comes, if nobody else is at the work area; NaN is left there."""
        check_arrays(op, source, target)
        if op.sign != {"r2c": -1, "c2r": 1}.get(op.kind, op.sign) or work.nbytes < work_area(op):
            raise DeviceError(f"{op} with a work area of {work.nbytes} bytes")

        mark = next(self._marks) % POISON
        def begin() -> None:
            self._array(work).view(np.uint8)[...] = mark

        def run() -> None:
            x, y = self._array(source), self._array(target)
            y[...] = transformed(op, x)
            if (self._array(work).view(np.uint8) != mark).any():
                y.view(np.uint8)[...] = POISON
            if op.kind == "c2r":
                x.view(np.uint8)[...] = POISON
            self._array(work).view(np.uint8)[...] = POISON

        lengths = math.prod(max(op.source[dim], op.target[dim]) for dim in op.dims)
        count = max(source.size, target.size)
        flops = 5.0 * count * math.log2(max(2, lengths))
        passes = 4 * len(op.dims) * max(source.nbytes, target.nbytes)
        seconds = max(flops / self.profile.fft_rate(lengths), passes / self.profile.memory)
        if work.nbytes and isinstance(stream, SimulatedStream) and not self.dry:
            stream.waiting.append((lambda: True, begin))
        self._put(stream, "fft", seconds, run)

    def multiply(self, stream: Stream, op: Multiply, array: DeviceArray) -> None:
        """Multiply by computed factors when its time comes."""
        check_arrays(op, array, array)

        def run() -> None:
            x = self._array(array, np.dtype(array.dtype).itemsize)
            x[...] = multiplied(op, x)

        self._put(stream, "multiply", 2 * array.nbytes / self.profile.memory, run)

    def product(
        self, stream: Stream, op: Product, array: DeviceArray, other: DeviceArray
    ) -> None:
        """Multiply by another array when its time comes."""
        check_arrays(op, array, array)
        if other.shape != op.other or other.dtype != op.dtype:
            raise DeviceError(f"{op} by {other}")

        def run() -> None:
            self._array(array)[...] *= self._array(other)

        seconds = (2 * array.nbytes + other.nbytes) / self.profile.memory
        self._put(stream, "product", seconds, run)

    def transpose(
        self, stream: Stream, op: Transpose, source: DeviceArray, target: DeviceArray
    ) -> None:
        """Copy in another order when its time comes."""
        check_arrays(op, source, target)

        def run() -> None:
            self._array(target)[...] = self._array(source).transpose(op.axes)

        self._put(stream, "transpose", 2 * source.nbytes / self.profile.memory, run)

    def strided(
        self, stream: Stream, op: Strided, source: DeviceArray, target: DeviceArray
    ) -> None:
        """Copy elements when its time comes."""
        check_strided(op, source, target)

        def run() -> None:
            from_ = places_at(op.source_start, op.source, op.counts)
            to = places_at(op.target_start, op.target, op.counts)
            self._array(target).reshape(-1)[to] = self._array(source).reshape(-1)[from_]

        seconds = 2 * math.prod(op.counts) * np.dtype(op.dtype).itemsize / self.profile.memory
        self._put(stream, "transpose", seconds, run)


__all__ = [
    "DeviceProfile",
    "SimulatedDevice",
    "Span",
    "contiguous_runs",
    "index_of",
]
