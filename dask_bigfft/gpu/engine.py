"""The engine of a device: takes a round on a block to the device and back, and outlives tasks.

One per device and process. It owns the pipeline and keeps the arena between blocks; how blocks fit
the device is in `fitting`. When the device has no memory left it recovers in this order, and no
step of it can change the answer:

1. everything that is kept for later goes back (arena, FFT plans, pools), and the block is tried
   again;
2. pieces are halved, and halved again;
3. `DeviceMemoryError` reaches the caller, whose CPU kernel takes the block.

A block that was overwritten when something failed is gathered anew before it is used again.

Imports `planner`, `kernels`, `events`, `errors` and this room.
"""

import contextlib
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.events import emit
from dask_bigfft.gpu.busy import BusyClock
from dask_bigfft.gpu.convolving import Spectra, filter_job, filter_of
from dask_bigfft.gpu.fitting import Fitting
from dask_bigfft.gpu.jobs import Job
from dask_bigfft.gpu.operations import FFT, Array
from dask_bigfft.gpu.pipeline import Carve, Coming
from dask_bigfft.gpu.protocol import Device, Event
from dask_bigfft.gpu.sources import Part, Source
from dask_bigfft.gpu.tile_work import BlockTiles
from dask_bigfft.kernels.composite import Composite
from dask_bigfft.planner.tile_plan import DeviceSettings, TileLimits, aligned

#: Times that a block is tried: as planned, with everything given back, and with smaller pieces.
ATTEMPTS = 6


class Prepared(NamedTuple):
    """Pieces of a block, the arena cut for them, the bytes that all may take, and settings."""

    tiles: BlockTiles
    carve: Carve
    nbytes: int
    settings: DeviceSettings


class Engine(Fitting):
    """Takes blocks to a device and back. Any number of threads may call it.

    Parameters
    ----------
    device : Device
        What does the work.
    nbytes : int, optional
        Bytes of the device's memory that may be used; by default a share of what is free.
    limits : TileLimits, optional
        How pieces are cut; its number of bytes is replaced.
    number : int
        Of the device among those of the process, from 0.
    """

    def __init__(
        self,
        device: Device,
        nbytes: int | None = None,
        limits: TileLimits | None = None,
        number: int = 0,
    ) -> None:
        super().__init__(device, nbytes, limits)
        self.number = number
        #: When the device has work.
        self.busy = BusyClock()
        #: Blocks that are ready to be submitted, in the order in which they are; the first one is.
        self._coming: deque[Coming] = deque()
        self._turns = threading.Condition()
        self._spectra = Spectra()
        self._closed = False

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

    def prepared(self, job: Job, nbytes: int | None = None) -> Prepared:
        """What `run_part` needs to know of a block whose parts it is given."""
        limits = self.within(nbytes)
        return Prepared(*self._ready(job, limits), limits.nbytes, job.settings)

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
        tiles, carve, nbytes, settings = prepared
        works = list(tiles.within(part.dim, part.low, part.high, part.width))
        own = {found.op for w in works for found in w.computations if isinstance(found.op, FFT)}
        ffts = own | tiles.ffts
        with self._lock:
            if self._closed:
                raise DeviceError("the engine of this device was closed")
            self._stage(settings)
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

    def recover(self) -> None:
        """Give back everything that is kept for later."""
        with self._lock:
            self._drop()

    def close(self) -> None:
        """Give everything back; the engine is not used any more."""
        self.recover()
        with self._lock:
            if not self._closed:
                self._closed = True
                self.device.close()

    def _attempt(
        self, job: Job, source: Source, filters: Mapping[int, Array], limits: TileLimits
    ) -> Array:
        """One try: gather without the lock, submit with it, wait without it."""
        tiles, carve, arrays = self.placed(job, limits, source.arrays)
        coming = Coming(tiles, arrays, filters)
        with self._in_turn(coming), self._lock:
            if self._closed:
                raise DeviceError("the engine of this device was closed")
            self._stage(job.settings)
            self._arrange(carve, tiles.ffts, limits.nbytes)
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
        return source.done(arrays[-1], tiles.shape(len(arrays) - 2))

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
