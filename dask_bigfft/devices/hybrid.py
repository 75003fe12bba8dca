"""Rounds on blocks done by CPU threads and devices together: who is free takes the next piece.

The thread of a task opens its block and takes tiles of it. Feeders, two for each device, take
pieces of the oldest block that is open, while they hold a lease. A thread whose own block has
nothing left takes tiles of others until its own is finished, and where there are fewer tasks than
CPU threads, helpers make up for them. What `taking` says decides who takes how much.

A part that a device had no memory for goes back, and CPU threads take it: blocks are gathered part
by part from sources that are only read, so nothing is lost.

Imports `decomposition`, `planner`, `kernels`, `memory`, `events`, `record` and this room.
"""

import contextlib
import math
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dask_bigfft.decomposition.tiles import ROW_BYTES, TILE_BYTES
from dask_bigfft.devices.engine import Engine, Job, Part, Source
from dask_bigfft.devices.leases import Leases, Need
from dask_bigfft.devices.pieces import PiecePlan
from dask_bigfft.devices.pipeline import Carve
from dask_bigfft.devices.protocol import Array
from dask_bigfft.devices.taking import KINDS, Kind, OpenBlock, Taken, Taking
from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.events import during, emit, working_for
from dask_bigfft.kernels.composite import Composite
from dask_bigfft.kernels.cpu import run_tiles
from dask_bigfft.kernels.incoming import Divisible, parts
from dask_bigfft.kernels.libraries import FFTLibrary
from dask_bigfft.memory import lend
from dask_bigfft.planner.balance import FEEDERS, gathering_threads
from dask_bigfft.record import current_worker

__all__ = ["Crew", "Pace", "Shared", "crew_of", "shared"]


#: Rounds whose speeds are remembered.
KEPT_PACES = 64

#: Tiles are so much larger than where CPU threads work alone, and no more of them work at a time:
#: each tile takes the interpreter for a while, which feeders of devices need, too.
WIDER, MOST_TILERS = 4, 8


@dataclass(frozen=True)
class Pace:
    """Seconds that one CPU thread, and one feeder of a device, need for a byte of a block."""

    cpu: float
    device: float


@dataclass(eq=False)
class Shared:
    """A round on a block that several takers work on.

    Parameters
    ----------
    job : Job
        The round on the block; what it rolls is rolled later.
    incoming : Divisible
        The block on its way in.
    library : FFTLibrary
        Makes the CPU's FFTs.
    filters : mapping
        Spectrum of the convolution's filter, for the axes that need one.
    out : ndarray
        The block after the round.
    tiling : (int, int)
        Dimension along which it is cut, and the width of a CPU thread's tile.
    open : OpenBlock
        What of it is left.
    need : Need
        What a device's part takes.
    nbytes : int or None
        Bytes of a device that may be used.
    source : Source
        The block as a device reads it, without a copy where that is possible.
    """

    job: Job
    incoming: Divisible
    library: FFTLibrary
    filters: Mapping[int, Array]
    out: Array
    tiling: tuple[int, int]
    open: OpenBlock
    need: Need
    nbytes: int | None
    source: Source
    work: tuple[str, int] | None = field(default_factory=working_for)
    error: BaseException | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _ready: dict[Engine, tuple[tuple[PiecePlan, Carve], Composite | None]] = field(
        default_factory=dict
    )
    _found: tuple[Array, Callable[[slice], None] | None, Array] | None = None

    @contextlib.contextmanager
    def telling(self) -> Iterator[None]:
        """Events of this thread carry the plan and the round."""
        with during(*self.work) if self.work is not None else contextlib.nullcontext():
            yield

    def tiles(self, cuts: Iterator[slice]) -> None:
        """Do some tiles, here and now."""
        job = self.job
        run_tiles(
            job.round, job.block, self.incoming, self.library, self.out, self.tiling, cuts,
            self.filters,
        )

    def _on(self, engine: Engine) -> tuple[tuple[PiecePlan, Carve], Composite | None]:
        """How an engine does the block, and the block as it reads it in place, if it can."""
        found = self._ready.get(engine)
        if found is None:
            prepared = engine.prepared(self.job, self.nbytes)
            found = prepared, self.source.in_place(prepared[0], engine.limits)
            self._ready[engine] = found
        return found

    def gathers(self, engine: Engine) -> bool:
        """Whether a part has to be gathered before a device can read it."""
        given = self.incoming.as_is
        if given is not None and given.dtype == self.job.source:
            return False
        return self._on(engine)[1] is None

    def on_device(self, engine: Engine, taken: Taken, threads: int) -> None:
        """Do a part, on a device."""
        (prepared, found), dim = self._on(engine), self.tiling[0]
        plan = prepared[0]
        width = min(taken.width, plan.schedule.crossings[0].extents[dim])
        part = Part(dim, taken.low, taken.high, width)
        source = found or self._gathered(slice(taken.low, taken.high), threads)
        engine.run_part(prepared, part, source, self.out, self.filters)

    def _buffers(self) -> tuple[Array, Callable[[slice], None] | None, Array]:
        """The block as it comes, what gathers a part of it, and the block as a device reads it."""
        with self._lock:
            if self._found is None:
                came, fill, dtype = self.incoming.as_is, None, np.dtype(self.job.source)
                if came is None:
                    shape, kind = self.incoming.shape, self.incoming.dtype
                    inside = self.out.shape == shape and self.out.dtype == kind
                    came = self.out if inside else lend(shape, kind)
                    fill = self.incoming.filling(self.tiling[0], came)
                read = came if came.dtype == dtype else lend(came.shape, dtype)
                self._found = came, fill, read
            return self._found

    def _gathered(self, part: slice, threads: int) -> Array:
        """Memory in which a part of the block lies in its place, by some threads."""
        came, fill, read = self._buffers()
        ahead = (slice(None),) * self.tiling[0]

        def bring(cut: slice) -> None:
            place = slice(part.start + cut.start, part.start + cut.stop)
            if fill is not None:
                fill(place)
            if read is not came:
                read[(*ahead, place)] = came[(*ahead, place)]

        rows = part.stop - part.start
        cuts = list(parts(rows, -(-rows // threads)))
        if len(cuts) == 1:
            bring(cuts[0])
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(bring, cuts))
        return read


def shared(
    job: Job, incoming: Divisible, library: FFTLibrary, filters: Mapping[int, Array],
    engine: Engine, source: Source, nbytes: int | None, pace: dict[Kind, float]
) -> Shared | None:
    """Return a round on a block, ready to be shared; None where its parts need each other.

    Parameters
    ----------
    job, incoming, library, filters, source, nbytes
        As `Shared` has them.
    engine : Engine
        A device, all of which are alike.
    pace : dict
        Seconds per byte of one taker of each kind, by the model or as measured.
    """
    round_, limits = job.round, engine.limits
    out_dtype = np.dtype(job.target)
    shape, before = round_.target.shape(job.block), incoming.shape
    nbytes_after = math.prod(shape) * out_dtype.itemsize
    largest = max(nbytes_after, math.prod(before) * incoming.dtype.itemsize)
    changes = shape != before or out_dtype != incoming.dtype
    tile_bytes = min(TILE_BYTES if changes else WIDER * TILE_BYTES, limits.least)
    found = _tiles(before, {round_.dim(step) for step in round_.steps}, largest, tile_bytes)
    if found is None or largest < 2 * limits.least or not incoming.divides(found[0]):
        return None
    try:
        plan, carve = engine.prepared(job, nbytes)
    except DeviceMemoryError:
        return None
    if not plan.divides:
        return None
    dim, rows = found[0], before[found[0]]
    row_nbytes = -(-largest // rows)
    piece = plan.schedule.crossings[0].extents[dim]
    inner = math.prod(before[dim + 1 :]) * np.dtype(plan.dtype).itemsize
    run = -(-limits.run_nbytes // inner) if math.prod(before[:dim]) > 1 else 1
    least = min(piece, max(run, -(-limits.least // row_nbytes)))
    block = OpenBlock(rows, row_nbytes, found[1], piece, least, pace)
    out = lend(shape, out_dtype)
    need = Need(carve.slots, carve.slot_nbytes)
    return Shared(job, incoming, library, filters, out, found, block, need, nbytes, source)


def _tiles(
    shape: tuple[int, ...], fixed: set[int], nbytes: int, tile_bytes: int
) -> tuple[int, int] | None:
    """Dimension along which a block is shared, and the width of a CPU thread's tile.

    The outermost dimension that is not transformed. Tiles are single rows where these are larger
    than a tile should be, and wide enough to be stored where what lies outside is transformed.
    """
    dim = next((dim for dim, n in enumerate(shape) if dim not in fixed and n > 1), None)
    if dim is None or not nbytes:
        return None
    rows, outside = shape[dim], math.prod(shape[:dim])
    widest = -(-ROW_BYTES * outside * rows // nbytes)
    return dim, min(rows, max(1, widest, tile_bytes * rows // nbytes))


class Crew:
    """The takers of a process: threads of tasks, helpers, and feeders of the devices.

    Parameters
    ----------
    leases : Leases
        The devices.
    cores : int
        CPU threads that work at a time.
    """

    def __init__(self, leases: Leases, cores: int) -> None:
        self.leases, self.cores = leases, max(1, cores)
        self._paces: OrderedDict[Any, dict[Kind, float]] = OrderedDict()
        self.taking = Taking()
        self.changed = threading.Condition()
        self.open: list[Shared] = []
        self.gathering = gathering_threads(self.cores)
        #: Threads of tasks, helpers, feeders, those that work on tiles, and that gather.
        self.tasks = self.helpers = self.feeders = self.tilers = self.gatherers = 0

    @property
    def room(self) -> int:
        """CPU threads that may work on tiles now."""
        return max(1, min(MOST_TILERS, self.cores - self.gatherers))

    @property
    def lanes(self) -> int:
        """CPU threads that there is work for, tasks and helpers."""
        return min(MOST_TILERS, self.cores)

    def _wake(self, block: OpenBlock) -> None:
        """Wake those who may go on: all, if a block is done, else one who may take a piece."""
        if block.finished:
            self.changed.notify_all()
        else:
            self.changed.notify()

    def pace(self, round_: Any, forecast: Callable[[], Pace]) -> dict[Kind, float]:
        """What is known of the speeds in a round: as measured, at first as forecast."""
        with self.changed:
            found = self._paces.get(round_)
        if found is None:
            known = forecast()
            found = {"cpu": known.cpu, "device": known.device}
        with self.changed:
            found = self._paces.setdefault(round_, found)
            self._paces.move_to_end(round_)
            while len(self._paces) > KEPT_PACES:
                self._paces.popitem(last=False)
            return found

    def run(self, shared: Shared) -> Array:
        """Return a block after a round that all have done together; called by its task."""
        with self.changed:
            self.open.append(shared)
            self.taking.open(shared.open)
            self.tasks += 1
            self._staff()
            self.changed.notify()
        try:
            self._until_done(shared)
        finally:
            with self.changed:
                self.taking.close(shared.open)
                self.open.remove(shared)
                self.tasks -= 1
                self._staff()
        if shared.error is not None:
            raise shared.error
        rows = shared.open.rows
        for kind in KINDS:
            nbytes = shared.out.nbytes * shared.open.taken[kind] // rows
            emit(f"round_{kind}", nbytes=nbytes)
        return shared.out

    def _staff(self) -> None:
        """Start as many feeders and helpers as have something to do; with the lock."""
        busy = [found for found in self.open if found.open.left]
        wanted = FEEDERS * len(self.leases.engines)
        for _ in range(wanted - self.feeders if any(s.open.piece for s in busy) else 0):
            self.feeders += 1
            threading.Thread(target=self._feed, name="bigfft-feeder", daemon=True).start()
        for _ in range(self.lanes - self.tasks - self.helpers if busy else 0):
            self.helpers += 1
            threading.Thread(target=self._help, name="bigfft-helper", daemon=True).start()

    # --- CPU threads ------------------------------------------------------------------------

    def _until_done(self, own: Shared) -> None:
        """Work on a block, and on others while somebody still works on it."""
        while True:
            with self.changed:
                while True:
                    if own.error is not None:
                        own.open.left.clear()
                    if own.open.finished:
                        return
                    found = None if own.error is not None else self._next_tile(own)
                    if found is not None:
                        break
                    self.changed.wait()
            self._tiles(*found, stop=lambda: own.open.finished or own.error is not None)

    def _next_tile(self, own: Shared | None) -> tuple[Shared, Taken] | None:
        """The next tile for a CPU thread, of its own block if there is one; with the lock."""
        if self.tilers >= self.room:
            return None
        first = [] if own is None else [own]
        for found in [*first, *self.open]:
            taken = self.taking.take("cpu", found.open)
            if taken is not None:
                self.tilers += 1
                return found, taken
        return None

    def _tiles(self, shared: Shared, taken: Taken, stop: Callable[[], bool]) -> None:
        """Work on tiles of a block, from one that is taken, until there is none or a reason."""
        hand = _Hand(self, shared, taken, stop)
        try:
            with shared.telling():
                shared.tiles(hand)
        except BaseException as error:
            hand.fail(error)
            if not isinstance(error, Exception):
                raise

    def _help(self) -> None:
        """Take tiles of any block, as long as there are too few tasks."""
        while True:
            with self.changed:
                enough = self.tasks + self.helpers > self.lanes
                found = None if enough else self._next_tile(None)
                if found is None:
                    self.helpers -= 1
                    return
            self._tiles(*found, stop=lambda: self.tasks + self.helpers > self.lanes)

    # --- devices ----------------------------------------------------------------------------

    def _feed(self) -> None:
        """Give pieces to a device until there are none for it."""
        while True:
            with self.changed:
                found = [s for s in self.open if s.open.left and s.open.piece]
            if not any(map(self._feed_one, found)):
                break
        with self.changed:
            self.feeders -= 1
            self.changed.notify_all()

    def _feed_one(self, shared: Shared) -> bool:
        """Give a device one part of a block; whether there was one for it."""
        try:
            with self.leases.lease(shared.need) as engine:
                return self._part(shared, engine)
        except DeviceMemoryError:
            with self.changed:
                shared.open.piece = 0
                self.changed.notify_all()
            return False

    def _part(self, shared: Shared, engine: Engine) -> bool:
        gatherers = self.gathering if shared.gathers(engine) else 0
        with self.changed:
            taken = self.taking.take("device", shared.open)
            if taken is None:
                return False
            self.gatherers += gatherers
        started, failed = time.perf_counter(), True
        try:
            with shared.telling():
                shared.on_device(engine, taken, self.gathering)
            failed = False
        except DeviceMemoryError:
            with shared.telling():
                emit("fallback", nbytes=taken.nbytes)  # CPU threads take the part
        except BaseException as error:  # of the task that waits, not of this thread
            shared.error = error
        with self.changed:
            self.gatherers -= gatherers
            if failed:
                self.taking.give_back(taken)
                self.changed.notify_all()
            else:
                self.taking.done(taken, time.perf_counter() - started)
                self._wake(shared.open)
        return True


class _Hand:
    """The tiles that one CPU thread takes of a block, one after the other."""

    def __init__(
        self, crew: Crew, shared: Shared, taken: Taken, stop: Callable[[], bool]
    ) -> None:
        self.crew, self.shared, self.stop = crew, shared, stop
        self.taken: Taken | None = taken
        self.started: float | None = None

    def __iter__(self) -> "_Hand":
        return self

    def __next__(self) -> slice:
        now, crew = time.perf_counter(), self.crew
        if self.taken is None:
            raise StopIteration
        if self.started is not None:  # back for more: the tile is done
            with crew.changed:
                crew.taking.done(self.taken, now - self.started)
                enough = self.stop() or crew.tilers > crew.room
                self.taken = None if enough else crew.taking.take("cpu", self.shared.open)
                if self.taken is None:
                    crew.tilers -= 1
                    crew._wake(self.shared.open)
                    raise StopIteration
        self.started = now
        return slice(self.taken.low, self.taken.high)

    def fail(self, error: BaseException) -> None:
        """The tile could not be done: the block's task says why."""
        with self.crew.changed:
            self.shared.error = error
            if self.taken is not None:
                self.crew.taking.give_back(self.taken)
                self.crew.tilers -= 1
            self.crew.changed.notify_all()


def crew_of(leases: Leases) -> Crew:
    """Return the takers for the devices of this process, or of the worker that calls."""
    worker = current_worker()
    cores = (os.cpu_count() or 1) if worker is None else int(worker.state.nthreads)
    return Crew(leases, cores)
