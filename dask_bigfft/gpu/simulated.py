"""A device made of NumPy, on which whatever streams and events leave open goes wrong on purpose.

Operations run in any order that the events permit (`simulated_streams`), and no others: a pipeline
with an event too few gives a wrong answer here, where a card may give the right one for years. An
FFT whose plan was not made while streams were idle is refused, where a card would make it then.
Memory that nothing was written to holds NaN, more memory than there is is refused, and a clock
follows a profile. Of host memory that is not pinned it knows the ring that values travel through
(`simulated_ring`).

Imports `planner`, `kernels`, `errors` and this room.
"""

import itertools
import math
from collections.abc import Callable

import numpy as np

from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.gpu.numpy_operations import (
    carried,
    check_arrays,
    check_copy,
    check_strided,
    multiplied,
    places_at,
    transformed,
    work_area,
)
from dask_bigfft.gpu.operations import (
    ALIGNMENT,
    FFT,
    Array,
    DeviceArray,
    Multiply,
    Product,
    Strided,
    Transpose,
    each,
)
from dask_bigfft.gpu.protocol import DeviceMemory, Stream
from dask_bigfft.gpu.ring import BUFFER_NBYTES, BUFFERS
from dask_bigfft.gpu.simulated_ring import Copying, RingClock
from dask_bigfft.gpu.simulated_streams import SimulatedStream, SimulatedStreams
from dask_bigfft.kernels.composite import Composite, Shards
from dask_bigfft.planner.profile import DeviceProfile

#: What memory is filled with that holds nothing: as floating point numbers, NaN.
POISON = 0xFF

#: Buffers each way of the ring for what is not pinned, and bytes of each.
RING = (BUFFERS, BUFFER_NBYTES)

#: Bytes per second, each way, of host memory that is not pinned.
RING_SPEED = 1.2e10


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


class SimulatedDevice(SimulatedStreams):
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
        super().__init__(seed, DeviceProfile() if profile is None else profile, dry)
        self.total, self.refuses, self.pageable = memory, refuses, pageable
        self.ring = RingClock(RING_SPEED, *RING)
        #: How often anything went through it.
        self.staged = 0
        self.libraries, self._table = libraries, table
        self.software = {"card": self.name}
        self._plans: set[FFT] = set()
        self.peak = 0
        self.dropped = self.closed = 0
        self._arena = np.empty(0, np.uint8)
        self._marks = itertools.count()

    # --- memory -----------------------------------------------------------------------------

    @property
    def tables(self) -> int:
        """Bytes of the plans that are kept."""
        return self._table * self.planned

    @property
    def planned(self) -> int:
        """Number of FFTs whose plans are kept."""
        return len(self._plans)

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

    # --- the ring of what is not pinned -----------------------------------------------------

    def stage(self, buffers: int | None, nbytes: int | None, part: int | None = None) -> None:
        """Set the ring that the clock reckons with."""
        wanted = buffers or RING[0], nbytes or RING[1]
        if wanted != (self.ring.buffers, self.ring.nbytes):
            self.ring = RingClock(RING_SPEED, *wanted)
        self.ring.use(part)

    def ring_nbytes(self, host: Array | Composite) -> int:
        """Bytes of the ring that the clock reckons with, one way, if nothing is pinned."""
        return self.ring.buffers * self.ring.part if self.pageable else 0

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
                self.staged += 1
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
                self.staged += 1
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
            self._array(array, np.dtype(array.dtype).itemsize)[...] = 0

        self._put(stream, "clear", array.nbytes / self.profile.memory, run)

    def work_nbytes(self, op: FFT) -> int:
        """As much as the array, unless the lengths are small powers of two."""
        nbytes = work_area(op)
        if self.refuses("plan", nbytes):
            raise DeviceMemoryError(f"no plan could be made for {op}")
        if any(stream.waiting for stream in self._streams):
            raise DeviceError(f"a plan for {op} is made while streams are not idle")
        self._plans.add(op)
        self._taken()
        return nbytes

    def fft(
        self, stream: Stream, op: FFT, source: DeviceArray, target: DeviceArray, work: DeviceArray
    ) -> None:
        """Transform when its time comes, if nobody else is at the work area; NaN is left there."""
        check_arrays(op, source, target)
        if op not in self._plans:
            raise DeviceError(f"no plan was made for {op} before it is needed")
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
        seconds = max(flops / self.profile.flops, passes / self.profile.memory)
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

    def product(self, stream: Stream, op: Product, array: DeviceArray, other: DeviceArray) -> None:
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
            self._array(target)[...] = carried(op.by, self._array(source)).transpose(op.axes)

        self._put(stream, "transpose", 2 * source.nbytes / self.profile.memory, run)

    def strided(
        self, stream: Stream, op: Strided, source: DeviceArray, target: DeviceArray
    ) -> None:
        """Copy elements when its time comes."""
        check_strided(op, source, target)

        def run() -> None:
            from_ = places_at(op.source_start, op.source, op.counts)
            to = places_at(op.target_start, op.target, op.counts)
            itemsize = np.dtype(op.dtype).itemsize
            came = self._array(source, itemsize).reshape(-1)[from_]
            self._array(target, itemsize).reshape(-1)[to] = carried(op.by, came)

        seconds = 2 * math.prod(op.counts) * np.dtype(op.dtype).itemsize / self.profile.memory
        self._put(stream, "transpose", seconds, run)
