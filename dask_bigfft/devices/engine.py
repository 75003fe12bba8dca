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
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import replace
from typing import NamedTuple

from dask_bigfft.devices.busy import BusyClock
from dask_bigfft.devices.convolving import (
    Spectra,
    convolving,
    filter_job,
    filter_of,
    is_hard,
)
from dask_bigfft.devices.extents import aligned
from dask_bigfft.devices.jobs import Job, Part, Source
from dask_bigfft.devices.limits import PieceLimits
from dask_bigfft.devices.pieces import PiecePlan
from dask_bigfft.devices.pipeline import Carve, Coming, Pipeline
from dask_bigfft.devices.protocol import FFT, Array, Device, Event
from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.events import emit
from dask_bigfft.kernels.composite import Composite
from dask_bigfft.planner.device_settings import AS_IS, DeviceSettings

#: Part of a device's free memory that is used where no limit is given.
MEMORY_SHARE = 0.8

#: Times that a block is tried: as planned, with everything given back, and with smaller pieces.
ATTEMPTS = 6

#: FFTs whose plans are kept at most, but for those of one block; a round needs a handful.
MAX_FFTS = 256

#: Work areas that are reckoned with, in units of a slot, until one is found to be enough.
WORK_AREAS = (0, 1, 2, 4)


class Prepared(NamedTuple):
    """Pieces of a block, how the arena is cut for them, and the bytes that all of it may take."""

    plan: PiecePlan
    carve: Carve
    nbytes: int


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
    number : int
        Of the device among those of the process, from 0.
    """

    def __init__(
        self, device: Device, nbytes: int | None = None, limits: PieceLimits | None = None,
        number: int = 0,
    ) -> None:
        self.number = number
        if nbytes is None:
            nbytes = int(MEMORY_SHARE * device.memory().free)
        self.device = device
        self.limits = replace(limits or PieceLimits(nbytes), nbytes=self._room(nbytes))
        self.pipeline = Pipeline(device)
        #: When the device has work.
        self.busy = BusyClock()
        self._lock = threading.Lock()
        #: Blocks that are ready to be submitted, in the order in which they are; the first one is.
        self._coming: deque[Coming] = deque()
        self._turns = threading.Condition()
        self._works: dict[FFT, int] = {}
        self._spectra = Spectra()
        #: Bytes that FFT plans take beyond what is set aside, as of the last one that was made.
        self._tables = 0
        self._staged = AS_IS.ring
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
        *before, last = links = self.links(job, limits)
        if before:
            source.stacked = None  # these blocks are not the round's
        if links[0].source != job.source:
            source = source.converted(links[0].source)
        for link in before:
            source = self._after(link, source, filters, nbytes)
        job, filters = last, dict(filters or {})
        if job.convolves:
            filters = self._filters(job, nbytes)
        for attempt in range(ATTEMPTS):
            try:
                return self._attempt(job, source, filters, limits)
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

    def links(self, job: Job, limits: PieceLimits) -> tuple[Job, ...]:
        """The job, or those that take its place where its pieces do not fit."""
        apart = job.apart()
        if job.convolves or (len(apart) == 1 and not is_hard(job)) or self._fits(job, limits):
            return (job,)
        if not is_hard(job):
            return apart
        found = list[Job]()
        for link in apart:
            found += (link,) if self._fits(link, limits) else self._smoothed(link, limits)
        return tuple(found)

    def _smoothed(self, job: Job, limits: PieceLimits) -> Iterator[Job]:
        """One step at a time, those that do not fit as convolutions of a smooth length."""
        for one in job.singly():
            smooth = None if self._fits(one, limits) else convolving(one)
            yield one if smooth is None else smooth

    def _fits(self, job: Job, limits: PieceLimits) -> bool:
        """Whether there are pieces of a job that fit the device."""
        if not is_hard(job):
            with contextlib.suppress(DeviceMemoryError):
                job.plan(limits, 1)  # as much of a work area as most FFTs need
                return True
        with contextlib.suppress(DeviceMemoryError), self._lock:
            self.pieces(job, limits)
            return True
        return False

    def _filters(self, job: Job, nbytes: int | None) -> dict[int, Array]:
        """The spectrum that a job convolves with, by the dimension that it belongs to."""
        def make() -> Array:
            return self.run(filter_job(job), Source(lambda: filter_of(job)), nbytes=nbytes)

        return {job.round.steps[0].axis: self._spectra.of(job, make)}

    def _after(
        self, job: Job, source: Source, filters: Mapping[int, Array] | None, nbytes: int | None
    ) -> Source:
        """A block after a round, which another one follows."""
        def gather() -> Array:
            return self.run(job, source, filters, nbytes=nbytes)

        return Source(gather, again=source.again)

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

    def prepared(self, job: Job, nbytes: int | None = None) -> Prepared:
        """What `run_part` needs to know of a block whose parts it is given."""
        limits = self.within(nbytes)
        with self._lock:
            return Prepared(*self.pieces(job, limits), limits.nbytes)

    def within(self, nbytes: int | None) -> PieceLimits:
        """The engine's limits, or what fewer bytes of the device leave for pieces."""
        if nbytes is None:
            return self.limits
        self._warn(nbytes)
        return replace(self.limits, nbytes=min(self._room(nbytes), self.limits.nbytes))

    def run_part(
        self,
        prepared: Prepared,
        part: Part,
        source: Array | Composite,
        target: Array,
        filters: Mapping[int, Array] | None = None,
    ) -> None:
        """Take a part of a block through a round, from its place in one array to that in another.

        Parameters
        ----------
        prepared : Prepared
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
        plan, carve, nbytes = prepared
        works = list(plan.within(part.dim, part.low, part.high, part.width))
        own = {found.op for w in works for found in w.computations if isinstance(found.op, FFT)}
        ffts = own | plan.ffts
        with self._lock:
            if self._closed:
                raise DeviceError("the engine of this device was closed")
            self.busy.begin()
            try:
                work = max(carve.work_nbytes, aligned(self._area(ffts)))
                carve = replace(carve, work_nbytes=work)
                self._arrange(carve, ffts, nbytes)
                held = self._held
                end = self.pipeline.submit_works(works, source, target, filters or {})
            except BaseException:
                self.busy.end()
                self._drop()  # nothing may go on writing into memory we let go
                raise
        self._reached(end)
        emit("device_memory", device=self.number, nbytes=held)
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

    @property
    def _held(self) -> int:
        """Bytes of the device that are in use: the arena, and what libraries take."""
        return self.pipeline.arena_nbytes + self.device.libraries + self.device.tables

    def recover(self) -> None:
        """Give back everything that is kept for later."""
        with self._lock:
            self._drop()

    def _drop(self) -> None:
        self.pipeline.release()
        self.device.synchronize_all()
        self.device.drop_caches()
        self._works.clear()
        self._tables = 0

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
        plan, carve, arrays = self.placed(job, limits, source.arrays)
        coming = Coming(plan, arrays, filters)
        with self._in_turn(coming), self._lock:
            if self._closed:
                raise DeviceError("the engine of this device was closed")
            self._stage(job.settings)
            self._arrange(carve, plan.ffts, limits.nbytes)
            held = self._held
            source.let_go()
            self.busy.begin()
            try:
                end = self.pipeline.submit(coming, self._following)
            except BaseException:
                self.busy.end()
                self.pipeline.release()  # nothing may go on writing into memory we let go
                raise
        self._reached(end)
        emit("device_memory", device=self.number, nbytes=held)
        moved = sum(array.nbytes for array in arrays[:-1])
        emit("h2d", nbytes=moved)
        emit("d2h", nbytes=sum(array.nbytes for array in arrays[1:]))
        return source.done(arrays[-1], plan.shape(len(arrays) - 2))

    @contextlib.contextmanager
    def _in_turn(self, coming: Coming) -> Iterator[None]:
        """Wait until all blocks that were ready before have been submitted."""
        with self._turns:
            self._coming.append(coming)
        try:
            with self._turns:
                self._turns.wait_for(lambda: self._coming[0] is coming)
            yield
        except BaseException:
            if coming.opened:  # nobody asks for what may have been staged
                with self._lock:
                    self.pipeline.release()
            raise
        finally:
            with self._turns:
                self._coming.remove(coming)
                self._turns.notify_all()

    def _following(self) -> Coming | None:
        """The block that is submitted next, if one is ready."""
        with self._turns:
            return self._coming[1] if len(self._coming) > 1 else None

    def placed(
        self, job: Job, limits: PieceLimits,
        arrays: Callable[[PiecePlan, PieceLimits], list[Array | Composite]],
    ) -> tuple[PiecePlan, Carve, list[Array | Composite]]:
        """Return the pieces of a block, how the arena is cut, and where the block is.

        Pieces that go through the device's staging buffers are cut to fit these.

        Parameters
        ----------
        job : Job
            What to do.
        limits : PieceLimits
            What pieces may need.
        arrays : callable
            Returns the block before the first crossing and after each, given the pieces and the
            limits that these are within.
        """
        plan, carve = self._ready(job, limits)
        found = arrays(plan, limits)
        if self._staged != job.settings.ring:
            with self._lock:
                self._stage(job.settings)
        ring = max(map(self.device.ring_nbytes, found))
        if not ring:
            return plan, carve, found
        within = limits.staged(ring, job.settings)
        try:
            other, needed = self._ready(job, within)
        except DeviceMemoryError:
            return plan, carve, found
        if other.schedule == plan.schedule:
            return plan, carve, found
        found.clear()  # before others are lent in their place
        try:
            found = arrays(other, within)
        except DeviceMemoryError:  # these could not be written where they were
            return plan, carve, arrays(plan, limits)
        if self._tables or not carve.holds(needed):
            carve = needed  # else blocks of both kinds follow one another without a pause
        return other, carve, found

    def _ready(self, job: Job, limits: PieceLimits) -> tuple[PiecePlan, Carve]:
        """What `pieces` returns; without waiting for whoever submits where nothing has to be made.

        So blocks that follow can be made ready meanwhile.
        """
        for work in WORK_AREAS if not self._tables else ():
            plan = job.plan(limits, work)
            needs = [self._works.get(op) for op in plan.ffts]
            if None in needs:
                break
            carve = _carved(plan, job.settings, max((n for n in needs if n), default=0))
            if carve.nbytes <= limits.nbytes:
                return plan, carve
        with self._lock:
            return self.pieces(job, limits)

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
        return plan, _carved(plan, job.settings, self._area(plan.ffts))

    def _stage(self, settings: DeviceSettings) -> None:
        """Tell the device what ring is wanted, if that is another one than before."""
        wanted = settings.ring
        if wanted != self._staged:
            self.device.stage(*wanted)
            self._staged = wanted

    def _arrange(self, carve: Carve, ffts: Set[FFT], nbytes: int) -> None:
        """Make plans and an arena that take no more than some bytes together.

        They did when the pieces were cut; but since then other rounds' plans may have come.
        """
        self._area(ffts)
        if self.device.tables and carve.nbytes + self.device.tables > nbytes:
            self._drop()
            self._area(ffts)
        self.pipeline.prepare(carve, max(carve.nbytes, nbytes - self.device.tables))

    def _area(self, ffts: Set[FFT]) -> int:
        """Bytes of the work area that FFTs need, whose plans are there from now on."""
        missing = len(ffts - self._works.keys())
        if missing and len(self._works) + missing > MAX_FFTS:
            self._drop()
        return max((self._work_nbytes(op) for op in ffts), default=0)

    def _work_nbytes(self, op: FFT) -> int:
        found = self._works.get(op)
        if found is None:
            # A plan may only be made while nothing runs; what it takes is not known before.
            self.pipeline.release()
            self.device.synchronize_all()
            found = self.device.work_nbytes(op)
            self._tables = self.device.tables
            self._works[op] = found
        return found


def _carved(plan: PiecePlan, settings: DeviceSettings, work_nbytes: int) -> Carve:
    """How the arena is cut for pieces, given the work area that their FFTs need."""
    schedule, streams = plan.schedule, settings.streams or "role"
    return Carve(schedule.slots, schedule.slot_nbytes, aligned(work_nbytes), streams)
