"""A GPU made of NumPy, on which whatever streams and events leave open goes wrong on purpose.

Operations wait in their streams until the host waits for something. Then they run one by one, in
any order that the events permit, drawn from a seed, and in no other: an executor with an event too
few gives a wrong answer here, where a GPU may give the right one for years. An FFT whose plan was
not made while streams were idle is refused, where a GPU would make it then. Memory that nothing was
written to holds NaN, and more memory than there is is refused.

A clock follows a profile. It knows three engines that work at the same time, each in the order of
the calls (copies each way, and computing), and the ring through which host memory travels that is
not pinned.

Imports `gpu`, `planner`, `kernels`, `decomposition` and `errors`.
"""

import itertools
import math
import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import scipy.fft

from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.gpu.executor import DeviceMemory
from dask_bigfft.gpu.operations import (
    ALIGNMENT,
    FFT,
    Array,
    ChirpFactor,
    Compute,
    DeviceArray,
    Multiply,
    Product,
    Strided,
    Term,
    Twiddle,
    dense,
)
from dask_bigfft.gpu.ring import BUFFER_NBYTES, BUFFERS, GATHERED, runs
from dask_bigfft.kernels.composite import Composite, Shards
from dask_bigfft.kernels.twiddle import chirp, phase_table
from dask_bigfft.planner.profile import DeviceProfile

#: Unwritten memory is filled with it: as floating point numbers, NaN.
POISON = 0xFF

#: Buffers each way of the ring for what is not pinned, and bytes of each.
RING = (BUFFERS, BUFFER_NBYTES)

#: Bytes per second, each way, of host memory that is not pinned.
RING_SPEED = 1.2e10


# --- operations, as NumPy does them -----------------------------------------------------------


def work_area(op: FFT) -> int:
    """Bytes of work area: as libraries have it, much for all but small powers of two."""
    lengths = [max(op.source[dim], op.target[dim]) for dim in op.dims]
    if all(n & (n - 1) == 0 and n <= 4096 for n in lengths):
        return 0
    size = max(math.prod(op.source), math.prod(op.target))
    return size * np.dtype(op.dtype).itemsize


def transformed(op: FFT, x: Array) -> Array:
    """The FFT of an array."""
    dim = op.dims[0]
    if op.kind == "r2c":
        return np.asarray(scipy.fft.rfft(x, axis=dim))
    if op.kind == "c2r":
        return np.asarray(scipy.fft.irfft(x, op.target[dim], axis=dim, norm="forward"))
    if op.sign < 0:
        return np.asarray(scipy.fft.fftn(x, axes=op.dims))
    return np.asarray(scipy.fft.ifftn(x, axes=op.dims, norm="forward"))


def index_of(terms: tuple[Term, ...], shape: tuple[int, ...]) -> Array:
    """The sum of terms at every place of an array, as integers that broadcast to its shape."""
    index = np.zeros((1,) * len(shape), np.int64)
    for term in terms:
        place = np.arange(term.start, term.start + shape[term.dim], dtype=np.int64)
        part = place // term.divisor % term.modulus * term.stride
        index = index + part.reshape([-1 if d == term.dim else 1 for d in range(len(shape))])
    return index


def _twiddle(factor: Twiddle, shape: tuple[int, ...], most: int) -> Array:
    power = index_of(factor.left, shape) * index_of(factor.right, shape)
    if power.size and power.max() >= most * factor.modulus:
        raise DeviceError(f"the product of indices reaches {most} times the modulus in {factor}")
    power %= factor.modulus
    return phase_table(factor.modulus, factor.sign).at(power)


def _chirp(factor: ChirpFactor, shape: tuple[int, ...]) -> Array:
    place = index_of(factor.place, shape)
    values = chirp(place, factor.length, factor.sign)
    if factor.half:
        values = np.where((place == 0) | (2 * place == factor.length), values, 2 * values)
    return np.where(place < factor.end, values, 0)


def factors_of(op: Multiply) -> Any:
    """What every element is multiplied with, but for the scale."""
    factors: Any = 1.0
    for twiddle in op.twiddles:
        factors = factors * _twiddle(twiddle, op.shape, 4 if op.chirps else 1)
    for found in op.chirps:
        factors = factors * _chirp(found, op.shape)
    return factors


def multiplied(op: Multiply, x: Array) -> Array:
    """An array (or its conjugate) times factors that are computed; 0 behind the end of a chirp."""
    with np.errstate(invalid="ignore"):  # whatever lies behind the end of a chirp
        found = np.asarray((np.conj(x) if op.conjugate else x) * (op.scale * factors_of(op)))
    for chirp_factor in op.chirps:
        found = np.where(index_of(chirp_factor.place, op.shape) < chirp_factor.end, found, 0)
    return found


def carried(by: Multiply | None, x: Array) -> Array:
    """What a copy takes to another place."""
    return x if by is None else multiplied(by, x)


def places_at(start: int, strides: tuple[int, ...], counts: tuple[int, ...]) -> Array:
    """Places of the elements of a box in an array: those of one side of a `Strided`."""
    places = np.full((1,) * len(counts), start, np.int64)
    for dim, (count, stride) in enumerate(zip(counts, strides, strict=True)):
        steps = np.arange(count, dtype=np.int64) * stride
        places = places + steps.reshape([-1 if d == dim else 1 for d in range(len(counts))])
    return places


def check(op: Compute, source: DeviceArray, target: DeviceArray) -> None:
    """Refuse arrays that are not what the description says, or that overlap."""
    inside = isinstance(op, Multiply) or (isinstance(op, FFT) and op.kind == "c2c")
    if isinstance(op, FFT):
        real = np.empty(0, op.dtype).real.dtype.str
        dtypes = [real if op.kind == kind else op.dtype for kind in ("r2c", "c2r")]
        shapes = [op.source, op.target]
    elif isinstance(op, Strided):
        dtypes, shapes = [op.dtype] * 2, [source.shape, target.shape]
        sides = (source, op.source_start, op.source), (target, op.target_start, op.target)
        for array, start, strides in sides:
            reach = [(n - 1) * s for n, s in zip(op.counts, strides, strict=True)]
            low = start + sum(r for r in reach if r < 0)
            high = start + sum(r for r in reach if r > 0)
            if low < 0 or (high >= array.size and all(op.counts)):
                raise DeviceError(f"{op} from {source} to {target}")
    else:
        before = op.other if isinstance(op, Product) else op.shape
        shapes, dtypes = [before, op.shape], [op.dtype] * 2
    by, counts = getattr(op, "by", None), getattr(op, "counts", getattr(op, "shape", ()))
    if by is not None and (by.shape, by.dtype) != (counts, op.dtype):
        raise DeviceError(f"{op} has factors of another array")
    if [source.shape, target.shape] != shapes or [source.dtype, target.dtype] != dtypes:
        raise DeviceError(f"{op} from {source} to {target}")
    low_, high_ = sorted((source, target), key=lambda a: a.offset)
    if not (inside and source == target) and low_.offset + low_.nbytes > high_.offset:
        raise DeviceError(f"{op} between arrays that overlap: {source}, {target}")


def each(shards: Shards, array: DeviceArray) -> Iterator[tuple[Array, DeviceArray]]:
    """Views of shards, and where in a dense array that holds their whole part each belongs."""
    strides = dense(array.shape, shards.dtype.itemsize)
    for place, view in shards.views():
        offset = array.offset + sum(i * s for i, s in zip(place, strides, strict=True))
        yield view, DeviceArray(offset, view.shape, array.dtype, strides)


def check_copy(host: Array, device: DeviceArray) -> None:
    """Refuse a copy between arrays of unlike shapes or dtypes, or of strides that do not fall."""
    if host.shape != device.shape or host.dtype.str != device.dtype:
        raise DeviceError(f"copy between {host.shape} {host.dtype.str} and {device}")
    steps = [s for n, s in zip(host.shape, host.strides, strict=True) if n > 1]
    if host.size and (any(s <= 0 for s in steps) or steps != sorted(steps, reverse=True)):
        raise DeviceError(f"a host array with strides {host.strides}: they have to fall")


#: Lets the GPU copy some bytes from a moment on: when it is done, and when the host goes on.
Copying = Callable[[int, float], tuple[float, float]]


@dataclass
class Loading:
    """A view on its way into buffers: bytes that no thread is at, and when buffers are full."""

    of: object
    left: int
    filling: deque[tuple[float, int]] = field(default_factory=deque)


class RingClock:
    """The buffers of both ways, each with the moment from which on nobody uses it.

    Parameters
    ----------
    speed : float
        Bytes per second that threads copy each way.
    buffers, nbytes : int
        Buffers each way, and bytes of each.
    """

    def __init__(self, speed: float, buffers: int, nbytes: int) -> None:
        self.speed, self.buffers, self.nbytes, self.part = speed, buffers, nbytes, nbytes
        self._in, self._out = deque([0.0] * buffers), deque([0.0] * buffers)
        self._gathered = self._scattered = 0.0
        self._told: deque[Loading] = deque()

    def use(self, part: int | None) -> None:
        """Use so many bytes of a buffer at a time from now on; None: all of them."""
        self.part = min(part or self.nbytes, self.nbytes)

    def ahead(self, of: object, nbytes: int, now: float) -> None:
        """Take in what `load` will be asked for later, and begin to gather it."""
        self._told.append(Loading(of, nbytes))
        self._go_ahead(now)

    def forget(self) -> None:
        """Give up what was begun and not asked for."""
        while self._told:
            self._give_up(self._told.popleft())

    def load(self, of: object, nbytes: int, now: float, copy: Copying) -> float:
        """Take a view to the GPU; return when the host goes on."""
        loading = self._begun(of) or Loading(of, nbytes)
        while loading.filling or loading.left:
            while loading.left and len(loading.filling) < GATHERED and self._in:
                now = self._fill(loading, now)
            self._go_ahead(now)
            full, part = loading.filling.popleft()
            copied, now = copy(part, max(now, full))
            self._in.append(copied)
        return now

    def store(self, nbytes: int, now: float, copy: Copying) -> tuple[float, float]:
        """Bring a view from the GPU; return when the values are there, and the host goes on."""
        while nbytes:
            part = min(nbytes, self.part)
            self._go_ahead(now)
            copied, now = copy(part, max(now, self._out.popleft()))
            self._scattered = max(self._scattered, copied) + part / self.speed
            self._out.append(self._scattered)
            nbytes -= part
        return self._scattered, now

    def _fill(self, loading: Loading, now: float) -> float:
        """Let threads gather into the next buffer; return when the host goes on."""
        now, part = max(now, self._in.popleft()), min(loading.left, self.part)
        self._gathered = max(self._gathered, now) + part / self.speed
        loading.filling.append((self._gathered, part))
        loading.left -= part
        return now

    def _go_ahead(self, now: float) -> None:
        """Gather what was told of, into buffers that nobody uses now; one is left."""
        for loading in self._told:
            while loading.left and len(self._in) > 1 and self._in[0] <= now:
                self._fill(loading, now)
            if loading.left:
                return

    def _begun(self, of: object) -> Loading | None:
        """What was begun of a view; what should have come before does not come any more."""
        if not any(loading.of is of for loading in self._told):
            return None
        while (found := self._told.popleft()).of is not of:
            self._give_up(found)
        return found

    def _give_up(self, loading: Loading) -> None:
        self._in.extend(full for full, _ in loading.filling)


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


class SimulatedStreams:
    """Streams, events and a clock, and nothing that runs in them yet.

    Parameters
    ----------
    seed : int
        Draws the order in which operations run.
    profile : DeviceProfile
        Speeds, for the clock.
    dry : bool
        Whether only the clock runs.
    """

    def __init__(self, seed: int, profile: DeviceProfile, dry: bool) -> None:
        self.profile, self.dry = profile, dry
        self.trace: list[Span] = []
        self._streams: list[SimulatedStream] = []
        self._lock = threading.RLock()
        self._engines = {"h2d": 0.0, "compute": 0.0, "d2h": 0.0}
        self._host_time = 0.0
        self._random = random.Random(seed)
        self._favour: dict[str, float] = {}

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

    def record(self, event: SimulatedEvent, stream: SimulatedStream, stored: bool = True) -> None:
        """Put a mark into a stream."""
        with self._lock:
            event.made += 1
            event.time = stream.time
            event.stored = max(stream.stored, stream.awaited) if stored else 0.0
            mark = event.made

            def reach() -> None:
                event.reached = max(event.reached, mark)

            stream.waiting.append((lambda: True, reach))

    def wait(self, stream: SimulatedStream, event: SimulatedEvent) -> None:
        """Let a stream wait for the event's latest mark."""
        with self._lock:
            mark = event.made
            stream.time = max(stream.time, event.time)
            stream.awaited = max(stream.awaited, event.stored)
            stream.waiting.append((lambda: event.reached >= mark, lambda: None))

    def synchronize(self, event: SimulatedEvent) -> None:
        """Run what waits until the event's latest mark is reached."""
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

    def _put(
        self, stream: SimulatedStream, operation: str, seconds: float, run: Callable[[], None]
    ) -> None:
        """Put an operation into a stream, and its time on the clock of its engine."""
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


class SimulatedGPU(SimulatedStreams):
    """A GPU in NumPy; `gpu.executor.Device` describes its methods.

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
        true stands for memory that cannot be had, as happens where others use the GPU, too.
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
        """Bytes of the plans that are cached."""
        return self._table * self.planned

    @property
    def planned(self) -> int:
        """Number of FFTs whose plans are cached."""
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

    def ahead(self, stream: SimulatedStream, source: Array | Shards) -> None:
        """Nothing but for the clock, which knows of staging."""
        if self.pageable:
            with self._lock:
                self._host_time = max(self._host_time, stream.awaited)
                self.ring.ahead(source, source.nbytes, self._host_time)

    def h2d(self, stream: SimulatedStream, source: Array | Shards, target: DeviceArray) -> None:
        """Copy to the device when its time comes."""
        pairs = list(each(source, target)) if isinstance(source, Shards) else [(source, target)]
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

    def d2h(self, stream: SimulatedStream, source: DeviceArray, target: Array | Shards) -> None:
        """Copy to the host when its time comes."""
        if isinstance(target, Shards):
            for view, place in each(target, source):
                self.d2h(stream, place, view)
            return
        check_copy(target, source)

        def run() -> None:
            target[...] = self._array(source, target.itemsize)

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
        form = host.shape, host.strides, host.itemsize, dense(host.shape, host.itemsize)
        return self.profile.bus_seconds(host.nbytes, host.nbytes // runs(*form)[0], bandwidth)

    def _staged(self, stream: SimulatedStream, operation: str, bandwidth: float) -> Copying:
        """What copies between staging buffers and the device, by the clock."""

        def copy(nbytes: int, now: float) -> tuple[float, float]:
            self._host_time = max(self._host_time, now)
            done = self._timed(stream, operation, nbytes / bandwidth)
            return done, self._host_time

        return copy

    def clear(self, stream: SimulatedStream, array: DeviceArray) -> None:
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

    def compute(
        self,
        stream: SimulatedStream,
        op: Compute,
        source: DeviceArray,
        target: DeviceArray,
        work: DeviceArray | None = None,
    ) -> None:
        """Do an operation when its time comes."""
        check(op, source, target)
        if isinstance(op, FFT):
            self._fft(stream, op, source, target, work or DeviceArray(0, (0,), "|u1"))
            return
        itemsize = np.dtype(op.dtype).itemsize
        nbytes = 2 * target.nbytes

        def run() -> None:
            x, y = self._array(source, itemsize), self._array(target, itemsize)
            if isinstance(op, Multiply):
                y[...] = multiplied(op, y)
            elif isinstance(op, Product):
                y *= x
            else:
                from_ = places_at(op.source_start, op.source, op.counts)
                to = places_at(op.target_start, op.target, op.counts)
                y.reshape(-1)[to] = carried(op.by, x.reshape(-1)[from_])

        if isinstance(op, Strided):
            nbytes = 2 * math.prod(op.counts) * itemsize
        elif isinstance(op, Product):
            nbytes += source.nbytes
        self._put(stream, "compute", nbytes / self.profile.memory, run)

    def _fft(
        self,
        stream: SimulatedStream,
        op: FFT,
        source: DeviceArray,
        target: DeviceArray,
        work: DeviceArray,
    ) -> None:
        """Transform, if nobody else is at the work area; NaN is left there."""
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
