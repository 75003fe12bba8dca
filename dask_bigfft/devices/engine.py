"""The engine of a device: takes a round on a block to the device and back, and outlives tasks.

One per device and process. It owns the pipeline and keeps the arena between blocks. When the device
has no memory left it recovers in this order, and no step of it can change the answer:

1. everything that is kept for later goes back (arena, FFT plans, pools), and the block is tried
   again;
2. pieces are halved, and halved again;
3. `DeviceMemoryError` reaches the caller, whose CPU kernel takes the block.

A block that was overwritten when something failed is gathered anew before it is used again.

Imports `planner`, `kernels`, `events`, `memory` and this room.
"""

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.devices.crossings import PieceLimits, aligned
from dask_bigfft.devices.pieces import PiecePlan, piece_plan
from dask_bigfft.devices.pipeline import Carve, Pipeline
from dask_bigfft.devices.protocol import FFT, Array, Device, Event, dense
from dask_bigfft.devices.transfer import row_nbytes
from dask_bigfft.devices.work import Block
from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.events import emit
from dask_bigfft.kernels.composite import Composite
from dask_bigfft.memory import lend
from dask_bigfft.planner.device_settings import AS_IS, DeviceSettings

#: Part of a device's free memory that is used where no limit is given.
MEMORY_SHARE = 0.8

#: Times that a block is tried: as planned, with everything given back, and with smaller pieces.
ATTEMPTS = 6

#: Shards of other blocks are read where they lie from rows of this part of `run_nbytes` on (1 KiB:
#: a kernel reads them at the speed of the bus): below it, threads gather the block faster.
NARROWEST = 1 / 8

#: Work areas that are reckoned with, in units of a slot, until one is found to be enough.
WORK_AREAS = (0, 1, 2, 4)


@dataclass(frozen=True)
class Job:
    """A round on a block.

    Parameters
    ----------
    round : Round
        What to do.
    block : tuple of int
        Which block.
    source, target : str
        Dtype of the block before and after.
    inside : bool
        Whether to do without host memory apart from the block, where that is possible.
    order : tuple of int
        Of a round without steps: dimensions of the block in the order in which they are written.
    shards : int
        Source blocks that the block is read from.
    settings : DeviceSettings
        What is set of the pipeline.
    """

    round: Round
    block: Block
    source: str
    target: str
    inside: bool = False
    order: tuple[int, ...] = ()
    shards: int = 1
    settings: DeviceSettings = AS_IS

    @cached_property
    def _plans(self) -> dict[tuple[PieceLimits, int], PiecePlan]:
        return {}

    def plan(self, limits: PieceLimits, work: int = 0) -> PiecePlan:
        """The pieces within some limits."""
        found = self._plans.get((limits, work))
        if found is None:
            found = self._plans[limits, work] = self._planned(limits, work)
        return found

    def _planned(self, limits: PieceLimits, work: int) -> PiecePlan:
        limits = limits.tuned(self.settings)
        arguments = self.round, self.block, self.source, self.target, limits
        if self.inside:
            with contextlib.suppress(DeviceMemoryError):
                return piece_plan(*arguments, work=work, inside=True)
        return piece_plan(*arguments, work=work, order=self.order, shards=self.shards)


@dataclass(frozen=True)
class Part:
    """What of a block is taken through a round: from where to where along a dimension.

    ``width`` is that of a piece.
    """

    dim: int
    low: int
    high: int
    width: int


class Source:
    """A block that is had when it is needed, and again when it was overwritten.

    Parameters
    ----------
    gather : callable
        Returns the block, contiguous.
    again : bool
        Whether it may be called a second time.
    borrowed : bool
        Whether the block is somebody else's, and only to be read.
    composite : Composite, optional
        The block as shards of others, which are read in its place where their rows are wide.
    inside : bool
        Whether the shards are overwritten, and nothing else is done with the block.
    """

    def __init__(
        self,
        gather: Callable[[], Array],
        *,
        again: bool = True,
        borrowed: bool = False,
        composite: Composite | None = None,
        inside: bool = False,
    ) -> None:
        self.gather, self.again, self.borrowed = gather, again or borrowed, borrowed
        self.composite, self.inside = composite, inside
        self.values: Array | None = None
        self.gathered = False

    def arrays(self, plan: PiecePlan, limits: PieceLimits) -> list[Array | Composite]:
        """The block before the first crossing and after each, the same one where it can be."""
        shards = self.in_place(plan, limits)
        if shards is not None and (not self.inside or fits_inside(plan)):
            self.gathered = self.gathered or self.inside
            return _arrays(plan, shards, not self.inside)
        if self.inside:
            raise DeviceMemoryError("no pieces fit that can be written where they were")
        return _arrays(plan, self.get(), self.borrowed)

    def in_place(self, plan: PiecePlan, limits: PieceLimits) -> Composite | None:
        """The block as shards of others, if the device reads them where they lie."""
        return None if self.composite is None else readable(plan, self.composite, limits)

    def get(self) -> Array:
        """The block."""
        if self.values is None:
            self.values, self.gathered = self.gather(), True
        return self.values

    def let_go(self) -> None:
        """From here on the block may be overwritten."""
        self.values = None

    @property
    def lost(self) -> bool:
        """Whether the block was overwritten and cannot be had again."""
        return self.gathered and self.values is None and not self.again


class BusyClock:
    """How long something has been in use, however many use it at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users, self._since, self._seconds = 0, 0.0, 0.0

    def begin(self) -> None:
        """Count one more user."""
        with self._lock:
            if not self._users:
                self._since = time.perf_counter()
            self._users += 1

    def end(self) -> None:
        """Count one user less."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._seconds += time.perf_counter() - self._since

    @property
    def seconds(self) -> float:
        """Seconds with one user or more, up to now."""
        with self._lock:
            going = time.perf_counter() - self._since if self._users else 0.0
            return self._seconds + going


class Engine:
    """Takes blocks to a device and back. Any number of threads may call it.

    Parameters
    ----------
    device : Device
        What does the work.
    nbytes : int, optional
        Bytes of the device's memory that may be used; by default `MEMORY_SHARE` of what is free.
    limits : PieceLimits, optional
        How pieces are cut; its number of bytes is replaced.
    """

    def __init__(
        self, device: Device, nbytes: int | None = None, limits: PieceLimits | None = None
    ) -> None:
        if nbytes is None:
            nbytes = int(MEMORY_SHARE * device.memory().free)
        self.device = device
        self.limits = replace(limits or PieceLimits(nbytes), nbytes=self._room(nbytes))
        self.pipeline = Pipeline(device)
        #: When the device has work.
        self.busy = BusyClock()
        self._lock = threading.Lock()
        self._works: dict[FFT, int] = {}
        self._staged: tuple[int | None, int | None] = (None, None)
        self._closed = False
        self._warned: set[int] = set()

    def run(
        self,
        job: Job,
        source: Source,
        filters: Mapping[int, Array] | None = None,
        *,
        nbytes: int | None = None,
    ) -> Array:
        """Return a block after a round.

        Parameters
        ----------
        job : Job
            What to do.
        source : Source
            The block.
        filters : mapping of int to ndarray, optional
            Spectrum of the convolution's filter, for the axes that need one.
        nbytes : int, optional
            Bytes of the device that may be used, if fewer than the engine's.

        Raises
        ------
        DeviceMemoryError
            If the device has no memory even for small pieces.
        DeviceError
            If the device fails.
        """
        limits = self.within(nbytes)
        for attempt in range(ATTEMPTS):
            try:
                return self._attempt(job, source, filters or {}, limits)
            except DeviceMemoryError as error:
                if source.lost:
                    raise DeviceError(
                        "a device ran out of memory while it overwrote a block that cannot be "
                        "gathered again: compute the transform again"
                    ) from error
                if attempt == ATTEMPTS - 1:
                    raise
                emit("fallback", nbytes=limits.nbytes)
            if attempt == 0:
                self.recover()
            else:
                limits = replace(limits, nbytes=limits.nbytes // 2)
        raise AssertionError("the last attempt returns or raises")

    def _room(self, nbytes: int) -> int:
        """What is left for the arena of the bytes that may be used; a tiny budget stays one."""
        return nbytes - min(self.device.libraries, nbytes // 4)

    def _warn(self, nbytes: int) -> None:
        """Say, once, that a budget is so small that libraries take more than is set aside."""
        libraries = self.device.libraries
        if nbytes >= 4 * libraries or nbytes in self._warned:
            return
        self._warned.add(nbytes)
        warnings.warn(
            f"{nbytes} bytes of {self.device.name} may be used, but kernels and FFT plans alone "
            f"take about {libraries}: they are counted in full from {4 * libraries} bytes on, and "
            f"only as {nbytes // 4} here",
            stacklevel=2,
        )

    def prepared(self, job: Job, nbytes: int | None = None) -> tuple[PiecePlan, Carve]:
        """Pieces of a block, some of which `run_part` may be given, and how the arena is cut."""
        with self._lock:
            return self.pieces(job, self.within(nbytes))

    def within(self, nbytes: int | None) -> PieceLimits:
        """The engine's limits, or what fewer bytes of the device leave for pieces."""
        if nbytes is None:
            return self.limits
        self._warn(nbytes)
        return replace(self.limits, nbytes=min(self._room(nbytes), self.limits.nbytes))

    def run_part(
        self,
        prepared: tuple[PiecePlan, Carve],
        part: Part,
        source: Array | Composite,
        target: Array,
        filters: Mapping[int, Array] | None = None,
    ) -> None:
        """Take a part of a block through a round, from its place in one array to that in another.

        Parameters
        ----------
        prepared : tuple
            What `prepared` returned; the plan divides.
        part : Part
            Which part, and in what pieces.
        source : ndarray or Composite
            The block before the round; what lies outside of the part is not read.
        target : ndarray
            The block after the round, may be the same array.
        filters : mapping of int to ndarray, optional
            Spectrum of the convolution's filter, for the axes that need one.

        Raises
        ------
        DeviceMemoryError
            If the device has no memory left. The part may be overwritten then; what was kept for
            later has been given back.
        """
        plan, carve = prepared
        works = list(plan.within(part.dim, part.low, part.high, part.width))
        ffts = {found.op for w in works for found in w.computations if isinstance(found.op, FFT)}
        with self._lock:
            if self._closed:
                raise DeviceError("the engine of this device was closed")
            self.busy.begin()
            try:
                need = max((self._work_nbytes(op) for op in ffts | plan.ffts), default=0)
                carve = replace(carve, work_nbytes=max(carve.work_nbytes, aligned(need)))
                self.pipeline.prepare(carve, max(carve.nbytes, self.limits.nbytes))
                end = self.pipeline.submit_works(works, source, target, filters or {})
            except BaseException:
                self.busy.end()
                self._drop()  # nothing may go on writing into memory we let go
                raise
        self._reached(end)
        emit("h2d", nbytes=sum(work.source.nbytes for work in works))
        emit("d2h", nbytes=sum(work.result.nbytes for work in works))

    def _reached(self, end: Event) -> None:
        """Wait for an event; nothing goes on when the waiting is interrupted."""
        try:
            self.device.synchronize(end)
        except (KeyboardInterrupt, SystemExit):
            self.recover()
            raise
        finally:
            self.busy.end()

    def recover(self) -> None:
        """Give back everything that is kept for later."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        self.pipeline.release()
        self.device.synchronize_all()
        self.device.drop_caches()
        self._works.clear()

    def close(self) -> None:
        """Give everything back; the engine is not used any more."""
        self.recover()
        with self._lock:
            if not self._closed:
                self._closed = True
                self.device.close()

    def _attempt(
        self, job: Job, source: Source, filters: Mapping[int, Array], limits: PieceLimits
    ) -> Array:
        """One try: gather without the lock, submit with it, wait without it."""
        with self._lock:
            plan, carve = self.pieces(job, limits)
        arrays = source.arrays(plan, limits)
        with self._lock:
            if self._closed:
                raise DeviceError("the engine of this device was closed")
            for op in plan.ffts:  # whose plans may have been given back meanwhile
                self._work_nbytes(op)
            self._stage(job.settings)
            self.pipeline.prepare(carve, limits.nbytes - self.device.tables)
            source.let_go()
            self.busy.begin()
            try:
                end = self.pipeline.submit(plan, arrays, filters)
            except BaseException:
                self.busy.end()
                self.pipeline.release()  # nothing may go on writing into memory we let go
                raise
        self._reached(end)
        moved = sum(array.nbytes for array in arrays[:-1])
        emit("h2d", nbytes=moved)
        emit("d2h", nbytes=sum(array.nbytes for array in arrays[1:]))
        done = arrays[-1]
        if isinstance(done, Composite):
            return np.empty(0, done.dtype)  # it is where it was
        return done.reshape(job.round.target.shape(job.block))

    def pieces(self, job: Job, limits: PieceLimits | None = None) -> tuple[PiecePlan, Carve]:
        """Pieces and work area that fit together; makes the plans of all FFTs."""
        limits = self.limits if limits is None else limits
        for work in WORK_AREAS:
            plan, carve = self._cut(job, limits, work)
            if carve.nbytes + self.device.tables > limits.nbytes and self.device.tables:
                self._drop()  # plans of other rounds
                plan, carve = self._cut(job, limits, work)
                left = limits.nbytes - self.device.tables
                if 0 < left < carve.nbytes:
                    self._drop()
                    plan, carve = self._cut(job, replace(limits, nbytes=left), work)
            if carve.nbytes + self.device.tables <= limits.nbytes:
                return plan, carve
        raise DeviceMemoryError(
            f"FFTs need a work area of {carve.work_nbytes} bytes beside {carve.slots} pieces of "
            f"{carve.slot_nbytes}, more than {limits.nbytes} together"
        )

    def _cut(self, job: Job, limits: PieceLimits, work: int) -> tuple[PiecePlan, Carve]:
        """Pieces that go with a work area of some size, and the one that they need."""
        plan = job.plan(limits, work)
        need = max((self._work_nbytes(op) for op in plan.ffts), default=0)
        schedule, streams = plan.schedule, job.settings.streams or "role"
        return plan, Carve(schedule.slots, schedule.slot_nbytes, aligned(need), streams)

    def _stage(self, settings: DeviceSettings) -> None:
        """Tell the device what ring is wanted, if that is another one than before."""
        wanted = settings.ring_buffers, settings.ring_nbytes
        if wanted != self._staged:
            self.device.stage(*wanted)
            self._staged = wanted

    def _work_nbytes(self, op: FFT) -> int:
        found = self._works.get(op)
        if found is None:
            # A plan may only be made while nothing runs; what it takes is not known before.
            self.pipeline.release()
            self.device.synchronize_all()
            found = self._works[op] = self.device.work_nbytes(op)
        return found


def readable(plan: PiecePlan, composite: Composite, limits: PieceLimits) -> Composite | None:
    """A composite in the digits of the first crossing; None where that had better not read it."""
    if composite.dtype.str != plan.source:
        return None
    factors: list[tuple[int, ...]] = [(n,) for n in composite.shape]
    for dim, digits in zip(plan.dims, plan.schedule.factors, strict=True):
        factors[dim] = digits
    found = composite.split(tuple(factors))
    if found is None or not found.falls:
        return None
    part = found.part(tuple(slice(0, n) for n in plan.schedule.crossings[0].extents))
    if part is None:
        return None
    _, view = next(found.views(part))
    places = dense(tuple(cut.stop for cut in part), found.dtype.itemsize)
    return found if row_nbytes(view, places) >= NARROWEST * limits.run_nbytes else None


def fits_inside(plan: PiecePlan) -> bool:
    """Whether every crossing writes each piece to where one was read."""
    same = plan.source == plan.target
    return same and not any(crossing.reorders for crossing in plan.schedule.crossings)


def _arrays(plan: PiecePlan, block: Array | Composite, borrowed: bool) -> list[Array | Composite]:
    arrays = [block]
    for number, crossing in enumerate(plan.schedule.crossings):
        dtype = plan.written(number)
        shape = tuple(crossing.after[dim] for dim in crossing.order)
        read_only = borrowed and number == 0
        if crossing.reorders or read_only or dtype != arrays[-1].dtype.str:
            arrays.append(lend(shape, np.dtype(dtype)))
        else:
            arrays.append(arrays[-1])
    return arrays
