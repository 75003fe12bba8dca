"""A GPU simulated with NumPy, which exposes missing synchronisation between streams.

Operations stay in their streams until the host waits. Then they run one by one, in a random order
that the events permit. An executor with a missing event therefore gives wrong results, which may
be rare on a real GPU. An FFT is refused if its plan was not made while streams were idle. Memory
that was not written holds NaN, and allocations beyond the GPU's memory fail.

A clock follows a profile. It models three engines that overlap: copies in each direction, and
computation. Each engine works in the order of the calls. Pageable host memory is copied at the
speed of the pinned ring.
"""

import itertools
import math
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import scipy.fft

from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.gpu.executor import DeviceMemory
from dask_bigfft.gpu.operations import (
    FFT,
    Compute,
    DeviceArray,
    Multiply,
    Product,
    Strided,
    Term,
    Twiddle,
    dense,
    runs,
)
from dask_bigfft.gpu.ring import BUFFER_NBYTES, BUFFERS
from dask_bigfft.gpu.tile_work import NO_MODULUS, Array
from dask_bigfft.kernels.segmented import SegmentedView, ShardView
from dask_bigfft.kernels.twiddle import chirp, unit_roots
from dask_bigfft.kernels.views import intervals
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.planner.tile_plan import ALIGNMENT

#: Byte that fills unwritten memory, so that floating point numbers are NaN.
POISON = 0xFF

#: Bytes per second, each way, for pageable host memory.
RING_SPEED = 1.2e10


# --- operations in NumPy ----------------------------------------------------------------------


def work_area(op: FFT) -> int:
    """Return the bytes of work area: none for small powers of two, else the size of the array."""
    lengths = [max(op.source[dim], op.target[dim]) for dim in op.dims]
    if all(n & (n - 1) == 0 and n <= 4096 for n in lengths):
        return 0
    size = max(math.prod(op.source), math.prod(op.target))
    return size * np.dtype(op.dtype).itemsize


def transformed(op: FFT, x: Array) -> Array:
    """Return the FFT of an array."""
    if op.kind == "r2c":
        return np.asarray(scipy.fft.rfftn(x, axes=op.dims))
    if op.kind == "c2r":
        lengths = [op.target[dim] for dim in op.dims]
        return np.asarray(scipy.fft.irfftn(x, lengths, op.dims, norm="forward"))
    if op.sign < 0:
        return np.asarray(scipy.fft.fftn(x, axes=op.dims))
    return np.asarray(scipy.fft.ifftn(x, axes=op.dims, norm="forward"))


def index_of(terms: tuple[Term, ...], shape: tuple[int, ...]) -> Array:
    """Return the sum of terms at every place of an array, as broadcastable integers."""
    index = np.zeros((1,) * len(shape), np.int64)
    for term in terms:
        place = np.arange(term.start, term.start + shape[term.dim], dtype=np.int64)
        part = place // term.divisor % term.modulus * term.stride
        index = index + part.reshape([-1 if d == term.dim else 1 for d in range(len(shape))])
    return index


def _in_parts(function: Callable[[Array], Array], index: Array) -> Array:
    """Return a function of an array, computed in parts: tests measure the memory of rounds."""
    found = np.empty(index.shape, complex)
    for part in intervals(index.size, 4096):
        found.reshape(-1)[part] = function(index.reshape(-1)[part])
    return found


def _twiddle(factor: Twiddle, shape: tuple[int, ...], most: int) -> Array:
    power = index_of(factor.left, shape) * index_of(factor.right, shape)
    if power.size and power.max() >= most * factor.modulus:
        raise DeviceError(f"the product of indices reaches {most} times the modulus in {factor}")
    return _in_parts(lambda part: unit_roots(part, factor.modulus, factor.sign), power)


def multiplied(op: Multiply | None, x: Array) -> Array:
    """Return an array (or its conjugate) times computed factors, zero behind the end of a chirp.

    Without an operation the array is returned unchanged.
    """
    if op is None:
        return x
    factors: Any = op.scale
    for twiddle in op.twiddles:
        factors = factors * _twiddle(twiddle, op.shape, 4 if op.chirps else 1)
    places = [index_of(found.place, op.shape) for found in op.chirps]
    for found, place in zip(op.chirps, places, strict=True):
        factors = factors * _in_parts(partial(chirp, length=found.length, sign=found.sign), place)
    with np.errstate(invalid="ignore"):  # values beyond the end of a chirp
        product = np.asarray((np.conj(x) if op.conjugate else x) * factors)
    for found, place in zip(op.chirps, places, strict=True):
        product = np.where(place < found.length, product, 0)
    return product


def places_at(start: int, strides: tuple[int, ...], counts: tuple[int, ...]) -> Array:
    """Return the places of the elements of one side of a `Strided` in its array."""
    terms = (Term(dim, 0, 1, NO_MODULUS, stride) for dim, stride in enumerate(strides))
    return start + index_of(tuple(terms), counts)


def computed(op: Multiply | Product | Strided, x: Array, y: Array) -> None:
    """Do an operation from one array to another, or in place in the second."""
    if isinstance(op, Multiply):
        y[...] = multiplied(op, y)
    elif isinstance(op, Product):
        y *= x
    else:
        from_ = places_at(op.source_start, op.source, op.counts)
        to = places_at(op.target_start, op.target, op.counts)
        y.reshape(-1)[to] = multiplied(op.by, x.reshape(-1)[from_])


def check(op: Compute, source: DeviceArray, target: DeviceArray) -> None:
    """Refuse arrays that do not match the operation, or that overlap."""
    shapes, dtypes, fits = [source.shape, target.shape], [op.dtype, op.dtype], True
    inside = isinstance(op, Multiply)
    if isinstance(op, FFT):
        real = np.empty(0, op.dtype).real.dtype.str
        dtypes = [real if op.kind == kind else op.dtype for kind in ("r2c", "c2r")]
        shapes, inside = [op.source, op.target], op.kind == "c2c"
    elif isinstance(op, Strided):
        sides = (source, op.source_start, op.source), (target, op.target_start, op.target)
        for array, start, strides in sides:
            reach = [(n - 1) * s for n, s in zip(op.counts, strides, strict=True)]
            low, high = (start + sum(pick(0, r) for r in reach) for pick in (min, max))
            fits &= (low >= 0 and high < array.size) or not all(op.counts)
        fits &= op.by is None or (op.by.shape, op.by.dtype) == (op.counts, op.dtype)
    else:
        shapes = [op.other if isinstance(op, Product) else op.shape, op.shape]
    if not fits or [source.shape, target.shape, source.dtype, target.dtype] != [*shapes, *dtypes]:
        raise DeviceError(f"{op} from {source} to {target}")
    low_, high_ = sorted((source, target), key=lambda a: a.offset)
    if not (inside and source == target) and low_.offset + low_.nbytes > high_.offset:
        raise DeviceError(f"{op} between arrays that overlap: {source}, {target}")


def views_of(host: Array | ShardView, array: DeviceArray) -> Iterator[tuple[Array, DeviceArray]]:
    """Yield views of host memory, each with its part of the device array.

    Arrays with different shapes or dtypes are refused, and so are strides that do not decrease.
    """
    pairs = [(host, array)] if not isinstance(host, ShardView) else []
    if isinstance(host, ShardView):
        steps = dense(array.shape, host.dtype.itemsize)
        for place, view in host.views():
            offset = array.offset + sum(i * s for i, s in zip(place, steps, strict=True))
            pairs.append((view, DeviceArray(offset, view.shape, array.dtype, steps)))
    for view, part in pairs:
        if view.shape != part.shape or view.dtype.str != part.dtype:
            raise DeviceError(f"copy between {view.shape} {view.dtype.str} and {part}")
        strides = [s for n, s in zip(view.shape, view.strides, strict=True) if n > 1]
        if view.size and (any(s <= 0 for s in strides) or strides != sorted(strides)[::-1]):
            raise DeviceError(f"a host array with strides {view.strides}: they have to fall")
        yield view, part


class Span(NamedTuple):
    """Operation of an engine (``h2d``, ``compute`` or ``d2h``), with its times by the clock."""

    engine: str
    operation: str
    start: float
    end: float


@dataclass
class SimulatedEvent:
    """Event: number of times recorded and reached, and the time of the latest record."""

    name: str
    made: int = 0
    reached: int = 0
    time: float = 0.0


@dataclass
class SimulatedStream:
    """Queue of operations, and the simulated time at which they are done.

    `favour` is the weight of the stream when the next operation is drawn.
    """

    name: str
    favour: float
    waiting: deque[tuple[Callable[[], bool], Callable[[], None]]] = field(default_factory=deque)
    time: float = 0.0


@dataclass(eq=False)
class SimulatedGPU:
    """GPU in NumPy; `gpu.executor.Device` describes its methods.

    Parameters
    ----------
    total : int
        Bytes of its memory.
    seed : int
        Seed of the random order in which operations run.
    profile : DeviceProfile
        Speeds for the clock.
    refuses : callable
        Called with ``"reserve"`` or ``"plan"`` and a number of bytes for each allocation. If it
        returns true the allocation fails, as it may on a GPU with other users.
    libraries, table : int
        Bytes used beside the arena: from the beginning, and for each plan.
    dry : bool
        True if only the clock runs. Nothing is copied or computed, so arrays may have any size.
    pageable : bool
        True if host memory is not pinned and is copied through a ring of buffers.
    """

    name = "simulated device"
    total: int
    seed: int = 0
    profile: DeviceProfile = field(default_factory=DeviceProfile)
    refuses: Callable[[str, int], bool] = lambda operation, nbytes: False
    dry: bool = False
    libraries: int = 0
    table: int = 0
    pageable: bool = False

    def __post_init__(self) -> None:
        self.trace: list[Span] = []
        self._streams: list[SimulatedStream] = []
        self._lock = threading.RLock()
        self._engines = {"h2d": 0.0, "compute": 0.0, "d2h": 0.0}
        self._host_time = 0.0
        self._random = random.Random(self.seed)
        #: Bytes of the ring, one way.
        self.ring = BUFFERS * BUFFER_NBYTES
        self.software = {"card": self.name}
        self._plans: set[FFT] = set()
        self.peak = self.dropped = self.closed = 0
        self._arena = np.empty(0, np.uint8)
        self._marks = itertools.count()

    # --- memory -----------------------------------------------------------------------------

    @property
    def tables(self) -> int:
        """Bytes of the cached plans."""
        return self.table * self.planned

    @property
    def planned(self) -> int:
        """Number of cached FFT plans."""
        return len(self._plans)

    def _taken(self) -> int:
        taken = self.libraries + self.tables + self._arena.nbytes
        self.peak = max(self.peak, taken)
        return taken

    def memory(self) -> DeviceMemory:
        """Return the total and the free memory."""
        return DeviceMemory(self.total, self.total - self._taken())

    def reserve(self, nbytes: int) -> None:
        """Allocate the arena, filled with NaN."""
        if self._arena.nbytes:
            raise DeviceError("an arena is reserved already")
        if nbytes > self.total - self._taken() or self.refuses("reserve", nbytes):
            raise DeviceMemoryError(f"{nbytes} bytes asked of a device with {self.total}")
        self._arena = np.empty(nbytes, np.uint8)  # takes no memory until it is written
        if not self.dry:
            self._arena.fill(POISON)
        self._taken()

    def release(self) -> None:
        """Run all queued operations, and free the arena."""
        self.synchronize_all()
        self._arena = np.empty(0, np.uint8)

    def drop_caches(self) -> None:
        """Drop the plans, and count the call."""
        self._plans.clear()
        self.dropped += 1

    def close(self) -> None:
        """Free the arena."""
        self.release()
        self.closed += 1

    def _array(self, array: DeviceArray, alignment: int = ALIGNMENT) -> Array:
        """Return the values of an array, which must be inside the arena."""
        end = array.offset + array.span
        if array.offset < 0 or array.offset % alignment or end > self._arena.nbytes:
            raise DeviceError(f"{array} does not lie in an arena of {self._arena.nbytes} bytes")
        return np.ndarray(array.shape, array.dtype, self._arena, array.offset, array.strides)

    # --- streams, events and the clock ---------------------------------------------------

    def stream(self, name: str) -> SimulatedStream:
        """Return a new stream."""
        with self._lock:
            # Some streams run far ahead of others, depending on the seed.
            stream = SimulatedStream(name, self._random.choice((0.01, 1.0, 100.0)))
            self._streams.append(stream)
            return stream

    def event(self, name: str) -> SimulatedEvent:
        """Return a new event."""
        return SimulatedEvent(name)

    def record(self, event: SimulatedEvent, stream: SimulatedStream, stored: bool = True) -> None:
        """Record an event in a stream."""
        with self._lock:
            event.made += 1
            event.time = stream.time
            mark = event.made

            def reach() -> None:
                event.reached = max(event.reached, mark)

            stream.waiting.append((lambda: True, reach))

    def wait(self, stream: SimulatedStream, event: SimulatedEvent) -> None:
        """Let a stream wait for the latest record of an event."""
        with self._lock:
            mark = event.made
            stream.time = max(stream.time, event.time)
            stream.waiting.append((lambda: event.reached >= mark, lambda: None))

    def synchronize(self, event: SimulatedEvent) -> None:
        """Run queued operations until the latest record of an event is reached."""
        mark = event.made
        while True:
            with self._lock:
                if event.reached >= mark:
                    self._host_time = max(self._host_time, event.time)
                    return
                self._run_one()

    def synchronize_all(self) -> None:
        """Run all queued operations."""
        with self._lock:
            while any(stream.waiting for stream in self._streams):
                self._run_one()
            self._host_time = max([self._host_time, *(stream.time for stream in self._streams)])

    def _run_one(self) -> None:
        """Run one of the operations that may be next."""
        ready = [s for s in self._streams if s.waiting and s.waiting[0][0]()]
        if not ready:
            raise DeviceError("streams wait for each other, or for a mark that was never made")
        stream = self._random.choices(ready, [stream.favour for stream in ready])[0]
        stream.waiting.popleft()[1]()

    def _put(
        self, stream: SimulatedStream, operation: str, seconds: float, run: Callable[[], None]
    ) -> None:
        """Queue an operation in a stream, and add its time to the clock of its engine.

        Sometimes one of all queued operations is run.
        """
        with self._lock:
            engine = operation if operation in self._engines else "compute"
            self._host_time += self.profile.call
            start = max(self._engines[engine], stream.time, self._host_time)
            self._engines[engine] = stream.time = start + seconds
            self.trace.append(Span(engine, operation, start, start + seconds))
            stream.waiting.append((lambda: True, (lambda: None) if self.dry else run))
            if self._random.random() < 0.1:
                self._run_one()

    def clock(self) -> float:
        """Return the seconds of simulated time that have passed for the host."""
        with self._lock:
            return self._host_time

    # --- copies -----------------------------------------------------------------------------

    def ring_nbytes(self, host: Array | SegmentedView) -> int:
        """Return the bytes of the ring, one way, or 0 if host memory is pinned."""
        return self.ring if self.pageable else 0

    def ahead(self, stream: SimulatedStream, source: Array | ShardView) -> None:
        """Do nothing, since values are read when they are copied."""

    def h2d(self, stream: SimulatedStream, source: Array | ShardView, target: DeviceArray) -> None:
        """Queue a copy to the device."""
        for view, place in views_of(source, target):
            self._copy(stream, "h2d", view, place)

    def d2h(self, stream: SimulatedStream, source: DeviceArray, target: Array | ShardView) -> None:
        """Queue a copy to the host."""
        for view, place in views_of(target, source):
            self._copy(stream, "d2h", view, place)

    def _copy(self, stream: SimulatedStream, way: str, host: Array, device: DeviceArray) -> None:
        def run() -> None:
            values = self._array(device, host.itemsize)
            if way == "h2d":
                values[...] = host
            else:
                host[...] = values

        width, _ = runs(host.shape, host.strides, host.itemsize, dense(host.shape, host.itemsize))
        rows = host.nbytes // width
        seconds = host.nbytes / getattr(self.profile, way) + (rows - 1) * self.profile.run
        if self.pageable:
            seconds = max(seconds, host.nbytes / RING_SPEED)
        self._put(stream, way, seconds, run)

    def clear(self, stream: SimulatedStream, array: DeviceArray) -> None:
        """Queue filling an array with zeros."""

        def run() -> None:
            self._array(array, np.dtype(array.dtype).itemsize)[...] = 0

        self._put(stream, "clear", array.nbytes / self.profile.memory, run)

    def work_nbytes(self, op: FFT) -> int:
        """Return the bytes of work area of an FFT, after making its plan."""
        nbytes = work_area(op)
        if self.refuses("plan", nbytes):
            raise DeviceMemoryError(f"no plan could be made for {op}")
        if any(stream.waiting for stream in self._streams):
            raise DeviceError(f"a plan for {op} is made while streams are not idle")
        self._plans.add(op)
        self._taken()
        return nbytes

    def compute(
        self,
        stream: SimulatedStream,
        op: Compute,
        source: DeviceArray,
        target: DeviceArray,
        work: DeviceArray | None = None,
    ) -> None:
        """Queue an operation; an FFT leaves NaN in its work area."""
        check(op, source, target)
        if not isinstance(op, FFT):
            itemsize = np.dtype(op.dtype).itemsize
            nbytes = 2 * math.prod(op.counts if isinstance(op, Strided) else op.shape) * itemsize
            nbytes += source.nbytes if isinstance(op, Product) else 0

            def do() -> None:
                computed(op, self._array(source, itemsize), self._array(target, itemsize))

            self._put(stream, "compute", nbytes / self.profile.memory, do)
            return
        work = work or DeviceArray(0, (0,), "|u1")
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
        if work.nbytes and not self.dry:
            stream.waiting.append((lambda: True, begin))
        self._put(stream, "fft", seconds, run)
