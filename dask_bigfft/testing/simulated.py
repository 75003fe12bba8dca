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

from dask_bigfft.arrays import Array, Block
from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.gpu.executor import DeviceMemory
from dask_bigfft.gpu.operations import (
    FFT,
    Compute,
    DeviceArray,
    Multiply,
    Product,
    Strided,
    Transfer,
    dense,
    runs,
)
from dask_bigfft.gpu.ring import BUFFER_NBYTES, BUFFERS
from dask_bigfft.kernels.segmented import SegmentedView, ShardView
from dask_bigfft.kernels.twiddle import chirp, unit_roots
from dask_bigfft.kernels.views import intervals
from dask_bigfft.planner.profile import DeviceProfile
from dask_bigfft.planner.tile_plan import ALIGNMENT
from dask_bigfft.tiles.program import ChirpFactor, Index, Twiddle

#: Byte that fills unwritten memory, so that floating point numbers are NaN.
POISON = 0xFF

#: Bytes per second, each way, for pageable host memory.
RING_SPEED = 1.2e10


# --- operations in NumPy ----------------------------------------------------------------------


def work_area(op: FFT) -> int:
    """Return the bytes of work area: none for small powers of two, else the size of the array."""
    lengths = [max(op.source[dim], op.target[dim]) for dim in op.dims]
    if all(_is_power_of_two(length) and length <= 4096 for length in lengths):
        return 0
    size = max(math.prod(op.source), math.prod(op.target))
    return size * np.dtype(op.dtype).itemsize


def _is_power_of_two(n: int) -> bool:
    return n & (n - 1) == 0


def transformed(op: FFT, x: Array) -> Array:
    """Return the FFT of an array, without scaling; real ones have the sign of their kind."""
    if op.kind == "r2c":
        return np.asarray(scipy.fft.rfftn(x, axes=op.dims))
    if op.kind == "c2r":
        lengths = [op.target[dim] for dim in op.dims]
        values = scipy.fft.irfftn(
            x,
            s=lengths,
            axes=op.dims,
            norm="forward",
        )
        return np.asarray(values)
    if op.sign < 0:
        return np.asarray(scipy.fft.fftn(x, axes=op.dims))
    return np.asarray(scipy.fft.ifftn(x, axes=op.dims, norm="forward"))


def index_of(index: Index, op: Multiply) -> Array:
    """Return an index at every place of an array, as broadcastable integers."""
    ndim = len(op.shape)
    values = np.zeros((1,) * ndim, np.int64)
    for term in index:
        start = op.start(term)
        end = start + op.shape[term.dim]
        positions = np.arange(start, end, dtype=np.int64) % term.size
        digits = positions // term.divisor % term.modulus
        values = values + _along_dim(digits * term.stride, term.dim, ndim)
    return values


def _along_dim(values: Array, dim: int, ndim: int) -> Array:
    """Return a vector as an array of `ndim` dimensions that is broadcast along all but one."""
    shape = [1] * ndim
    shape[dim] = -1
    return values.reshape(shape)


def _in_parts(function: Callable[[Array], Array], index: Array) -> Array:
    """Return a function of an array, computed in parts: tests measure the memory of rounds."""
    values = np.empty(index.size, complex)
    flat_index = index.reshape(-1)
    for part in intervals(index.size, 4096):
        values[part] = function(flat_index[part])
    return values.reshape(index.shape)


def _twiddle(
    factor: Twiddle,
    op: Multiply,
    most: int,
) -> Array:
    """Return twiddles; an error is raised for a power of at least `most` times the modulus."""
    power = index_of(factor.own, op) * index_of(factor.others, op)
    if power.size and power.max() >= most * factor.modulus:
        raise DeviceError(f"the product of indices reaches {most} times the modulus in {factor}")
    return _in_parts(lambda part: unit_roots(part, factor.modulus, factor.sign), power)


def multiplied(op: Multiply | None, x: Array) -> Array:
    """Return an array (or its conjugate) times computed factors, zero behind the end of a chirp.

    Without an operation the array is returned unchanged.
    """
    if op is None:
        return x
    chirp_factors = [factor for factor in op.factors if isinstance(factor, ChirpFactor)]
    twiddles = [factor for factor in op.factors if isinstance(factor, Twiddle)]
    most = 4 if chirp_factors else 1
    product_of_factors: Any = op.scale
    for twiddle in twiddles:
        product_of_factors = product_of_factors * _twiddle(twiddle, op, most)
    is_behind: Any = False
    for chirp_factor in chirp_factors:
        wave = chirp_factor.chirp
        index = index_of(chirp_factor.own + chirp_factor.others, op)
        places = index * wave.step + wave.offset
        values_at = partial(chirp, length=wave.length, sign=wave.sign)
        product_of_factors = product_of_factors * _in_parts(values_at, places) * 1j**wave.turns
        is_behind = is_behind | (places >= wave.length)
    values = np.conj(x) if op.conjugate else x
    with np.errstate(invalid="ignore"):  # values beyond the end of a chirp
        product = np.asarray(values * product_of_factors)
    return np.where(is_behind, 0, product) if chirp_factors else product


def places_at(
    start: int,
    strides: Block,
    counts: Block,
) -> Array:
    """Return the places of the elements of one side of a `Strided` in its array."""
    ndim = len(counts)
    places = np.full((1,) * ndim, start, np.int64)
    for dim, stride in enumerate(strides):
        offsets = np.arange(counts[dim], dtype=np.int64) * stride
        places = places + _along_dim(offsets, dim, ndim)
    return places


def computed(
    op: Multiply | Product | Strided | Transfer,
    x: Array,
    y: Array,
) -> None:
    """Do an operation from one array to another, or in place in the second."""
    if isinstance(op, Multiply):
        y[...] = multiplied(op, y)
    elif isinstance(op, Product):
        y *= x
    elif isinstance(op, Transfer):
        op.apply(y)
    else:
        source_places = places_at(op.source_start, op.source, op.counts)
        target_places = places_at(op.target_start, op.target, op.counts)
        values = x.reshape(-1)[source_places]
        y.reshape(-1)[target_places] = multiplied(op.by, values)


def check(
    op: Compute,
    source: DeviceArray,
    target: DeviceArray,
) -> None:
    """Raise an error for arrays that do not match the operation, or that overlap."""
    if isinstance(op, Strided):
        fits = _fits_strided(op, source, target)
    else:
        sides = [(source.shape, source.dtype), (target.shape, target.dtype)]
        fits = sides == _sides(op)
    if not fits:
        raise DeviceError(f"{op} from {source} to {target}")
    if isinstance(op, Multiply | Transfer):
        if source != target:
            raise DeviceError(f"{op} works in place, not from {source} to {target}")
        return
    may_be_in_place = isinstance(op, FFT) and op.kind == "c2c"
    if may_be_in_place and source == target:
        return
    lower, upper = sorted((source, target), key=lambda array: array.offset)
    if lower.offset + lower.nbytes > upper.offset:
        raise DeviceError(f"{op} between arrays that overlap: {source}, {target}")


def _sides(op: FFT | Multiply | Product | Transfer) -> list[tuple[Block, str]]:
    """Return the shapes and dtypes of the source and the target of an operation."""
    if isinstance(op, FFT):
        real_dtype = np.empty(0, op.dtype).real.dtype.str
        source = (op.source, real_dtype if op.kind == "r2c" else op.dtype)
        target = (op.target, real_dtype if op.kind == "c2r" else op.dtype)
        return [source, target]
    target = (op.shape, op.dtype)
    source = (op.other, op.dtype) if isinstance(op, Product) else target
    return [source, target]


def _fits_strided(
    op: Strided,
    source: DeviceArray,
    target: DeviceArray,
) -> bool:
    """Return True if arrays and factors match an operation."""
    if (source.dtype, target.dtype) != (op.dtype, op.dtype):
        return False
    by = op.by
    if by is not None and (by.shape, by.dtype) != (op.counts, op.dtype):
        return False
    if not all(op.counts):
        return True
    has_source = _contains(source, op.source_start, op.source, op.counts)
    has_target = _contains(target, op.target_start, op.target, op.counts)
    return has_source and has_target


def _contains(
    array: DeviceArray,
    start: int,
    strides: Block,
    counts: Block,
) -> bool:
    """Return True if all elements of one side of a `Strided` lie inside an array."""
    low = start
    high = start
    for stride, n in zip(strides, counts, strict=True):
        reach = (n - 1) * stride
        low += min(0, reach)
        high += max(0, reach)
    return low >= 0 and high < array.size


def views_of(host: Array | ShardView, array: DeviceArray) -> Iterator[tuple[Array, DeviceArray]]:
    """Yield views of host memory, each with its part of the device array.

    Arrays with different shapes or dtypes are refused, and so are strides that do not decrease.
    """
    for view, part in _parts_of(host, array):
        if view.shape != part.shape or view.dtype.str != part.dtype:
            raise DeviceError(f"copy between {view.shape} {view.dtype.str} and {part}")
        if view.size and not _has_falling_strides(view):
            raise DeviceError(f"a host array with strides {view.strides}: they have to fall")
        yield view, part


def _has_falling_strides(view: Array) -> bool:
    """Return True if the strides of the dimensions with several values are positive and fall."""
    strides = []
    for length, stride in zip(view.shape, view.strides, strict=True):
        if length > 1:
            strides.append(stride)
    is_falling = strides == sorted(strides, reverse=True)
    return is_falling and min(strides, default=1) > 0


def _parts_of(host: Array | ShardView, array: DeviceArray) -> Iterator[tuple[Array, DeviceArray]]:
    """Yield views of host memory, each with its part of the device array, unchecked."""
    if not isinstance(host, ShardView):
        yield host, array
        return
    strides = dense(array.shape, host.dtype.itemsize)
    for place, view in host.views():
        offset = array.offset
        for number, stride in zip(place, strides, strict=True):
            offset += number * stride
        part = DeviceArray(
            offset,
            view.shape,
            array.dtype,
            strides,
        )
        yield view, part


def _always() -> bool:
    """Return True: the condition of an operation that waits for no event."""
    return True


def _do_nothing() -> None:
    """Do nothing: an operation without values."""


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
    recorded: int = 0
    reached: int = 0
    time: float = 0.0


#: Condition for the start of an operation, and function that does it.
QueuedOperation = tuple[Callable[[], bool], Callable[[], None]]


@dataclass
class SimulatedStream:
    """Queue of operations, and the simulated time at which they are done.

    `favour` is the weight of the stream when the next operation is drawn.
    """

    name: str
    favour: float
    waiting: deque[QueuedOperation] = field(default_factory=deque)
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
        self.peak = 0
        self.dropped = 0
        self.closed = 0
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

    def _used_nbytes(self) -> int:
        """Return the bytes in use, and count their maximum."""
        nbytes = self.libraries + self.tables + self._arena.nbytes
        self.peak = max(self.peak, nbytes)
        return nbytes

    def memory(self) -> DeviceMemory:
        """Return the total and the free memory."""
        return DeviceMemory(self.total, self.total - self._used_nbytes())

    def reserve(self, nbytes: int) -> None:
        """Allocate the arena, filled with NaN."""
        if self._arena.nbytes:
            raise DeviceError("an arena is reserved already")
        if nbytes > self.total - self._used_nbytes() or self.refuses("reserve", nbytes):
            raise DeviceMemoryError(f"{nbytes} bytes asked of a device with {self.total}")
        self._arena = np.empty(nbytes, np.uint8)  # takes no memory until it is written
        if not self.dry:
            self._arena.fill(POISON)
        self._used_nbytes()

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
        return np.ndarray(
            shape=array.shape,
            dtype=array.dtype,
            buffer=self._arena,
            offset=array.offset,
            strides=array.strides,
        )

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

    def record(
        self,
        event: SimulatedEvent,
        stream: SimulatedStream,
        stored: bool = True,
    ) -> None:
        """Record an event in a stream."""
        with self._lock:
            event.recorded += 1
            event.time = stream.time
            mark = event.recorded

            def reach() -> None:
                event.reached = max(event.reached, mark)

            stream.waiting.append((_always, reach))

    def wait(self, stream: SimulatedStream, event: SimulatedEvent) -> None:
        """Let a stream wait for the latest record of an event."""
        with self._lock:
            mark = event.recorded
            stream.time = max(stream.time, event.time)
            stream.waiting.append((lambda: event.reached >= mark, _do_nothing))

    def synchronize(self, event: SimulatedEvent) -> None:
        """Run queued operations until the latest record of an event is reached."""
        mark = event.recorded
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
            stream_times = [stream.time for stream in self._streams]
            self._host_time = max([self._host_time, *stream_times])

    def _run_one(self) -> None:
        """Run one of the operations that may be next."""
        ready = []
        for stream in self._streams:
            if stream.waiting:
                may_start, _ = stream.waiting[0]
                if may_start():
                    ready.append(stream)
        if not ready:
            text = "streams wait for each other, or for a mark that was never made, or nothing is "
            raise DeviceError(f"{text}queued")
        (stream,) = self._random.choices(ready, [stream.favour for stream in ready])
        _, run = stream.waiting.popleft()
        run()

    def _put(
        self,
        stream: SimulatedStream,
        operation: str,
        seconds: float,
        run: Callable[[], None],
    ) -> None:
        """Queue an operation in a stream, and add its time to the clock of its engine.

        Sometimes one of all queued operations is run.
        """
        with self._lock:
            engine = operation if operation in self._engines else "compute"
            self._host_time += self.profile.call
            start = max(self._engines[engine], stream.time, self._host_time)
            end = start + seconds
            self._engines[engine] = end
            stream.time = end
            self.trace.append(Span(engine, operation, start, end))
            stream.waiting.append((_always, _do_nothing if self.dry else run))
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

    def h2d(
        self,
        stream: SimulatedStream,
        source: Array | ShardView,
        target: DeviceArray,
    ) -> None:
        """Queue a copy to the device."""
        for view, place in views_of(source, target):
            self._copy(stream, "h2d", view, place)

    def d2h(
        self,
        stream: SimulatedStream,
        source: DeviceArray,
        target: Array | ShardView,
    ) -> None:
        """Queue a copy to the host."""
        for view, place in views_of(target, source):
            self._copy(stream, "d2h", view, place)

    def _copy(
        self,
        stream: SimulatedStream,
        direction: str,
        host: Array,
        device: DeviceArray,
    ) -> None:
        """Queue a copy of a view, ``h2d`` or ``d2h``."""

        def run() -> None:
            values = self._array(device, alignment=host.itemsize)
            if direction == "h2d":
                values[...] = host
            else:
                host[...] = values

        device_strides = dense(host.shape, host.itemsize)
        width, _ = runs(host.shape, host.strides, host.itemsize, device_strides)
        rows = host.nbytes // width
        speed = getattr(self.profile, direction)
        seconds = host.nbytes / speed + (rows - 1) * self.profile.run
        if self.pageable:
            seconds = max(seconds, host.nbytes / RING_SPEED)
        self._put(stream, direction, seconds, run)

    def clear(self, stream: SimulatedStream, array: DeviceArray) -> None:
        """Queue filling an array with zeros."""

        def run() -> None:
            itemsize = np.dtype(array.dtype).itemsize
            values = self._array(array, alignment=itemsize)
            values[...] = 0

        seconds = array.nbytes / self.profile.memory
        self._put(stream, "clear", seconds, run)

    def work_nbytes(self, op: FFT) -> int:
        """Return the bytes of work area of an FFT, after making its plan."""
        nbytes = work_area(op)
        if self.refuses("plan", nbytes):
            raise DeviceMemoryError(f"no plan could be made for {op}")
        if any(stream.waiting for stream in self._streams):
            raise DeviceError(f"a plan for {op} is made while streams are not idle")
        self._plans.add(op)
        self._used_nbytes()
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
        if isinstance(op, FFT):
            if work is None:
                work = DeviceArray(0, (0,), "|u1")
            self._compute_fft(stream, op, source, target, work)
            return
        itemsize = np.dtype(op.dtype).itemsize
        counts = op.counts if isinstance(op, Strided) else op.shape
        nbytes = 2 * math.prod(counts) * itemsize
        if isinstance(op, Product):
            nbytes += source.nbytes

        def run() -> None:
            x = self._array(source, alignment=itemsize)
            y = self._array(target, alignment=itemsize)
            computed(op, x, y)

        self._put(stream, "compute", nbytes / self.profile.memory, run)

    def prepare(self, stream: SimulatedStream, op: Transfer, target: DeviceArray) -> Transfer:
        """Return the operation itself: nothing of it is done before `compute`."""
        return op

    def _compute_fft(
        self,
        stream: SimulatedStream,
        op: FFT,
        source: DeviceArray,
        target: DeviceArray,
        work: DeviceArray,
    ) -> None:
        """Queue an FFT with a work area.

        The result is NaN if something else writes to the work area before the FFT.
        """
        if op not in self._plans:
            raise DeviceError(f"no plan was made for {op} before it is needed")
        wrong_sign = (op.kind, op.sign) in (("r2c", 1), ("c2r", -1))
        if wrong_sign or work.nbytes < work_area(op):
            raise DeviceError(f"{op} with a work area of {work.nbytes} bytes")
        mark = next(self._marks) % POISON

        def begin() -> None:
            self._array(work).view(np.uint8)[...] = mark

        def run() -> None:
            x = self._array(source)
            y = self._array(target)
            y[...] = transformed(op, x)
            work_bytes = self._array(work).view(np.uint8)
            if (work_bytes != mark).any():
                y.view(np.uint8)[...] = POISON
            if op.kind == "c2r":
                x.view(np.uint8)[...] = POISON
            work_bytes[...] = POISON

        if work.nbytes and not self.dry:
            stream.waiting.append((_always, begin))
        self._put(stream, "fft", self._fft_seconds(op, source, target), run)

    def _fft_seconds(
        self,
        op: FFT,
        source: DeviceArray,
        target: DeviceArray,
    ) -> float:
        """Return the seconds of an FFT by the profile."""
        lengths = [max(op.source[dim], op.target[dim]) for dim in op.dims]
        points = max(2, math.prod(lengths))
        elements = max(source.size, target.size)
        flops = 5.0 * elements * math.log2(points)
        nbytes = 4 * len(op.dims) * max(source.nbytes, target.nbytes)
        flop_seconds = flops / self.profile.flops
        memory_seconds = nbytes / self.profile.memory
        return max(flop_seconds, memory_seconds)
