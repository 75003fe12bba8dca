"""The engine of a device: takes a round on a block to the device and back, and outlives tasks.

One per device and process. It finds tiles that fit the device with the work area of their FFTs,
caches plans and the arena between blocks, and runs blocks in the order in which they are ready. All
of it takes no more of the device's memory than was allowed, at any time: FFT plans are made while
nothing runs, and what they take is known only then. Where they leave too little room for the tiles,
plans of other rounds go, or the tiles are cut smaller.

When the device has no memory left the engine recovers in this order, and no step of it can change
the answer:

1. all caches go back (arena, FFT plans, pools), and the block is tried again;
2. tiles are halved, and halved again;
3. `DeviceMemoryError` reaches the caller, whose CPU kernel takes the block.

A block that was overwritten when something failed is gathered again before it is used again.

Imports `planner`, `kernels`, `events`, `errors` and this room.
"""

import contextlib
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.events import emit
from dask_bigfft.gpu.executor import BlockRun, Carve, Device, GPUExecutor
from dask_bigfft.gpu.jobs import Job, Part, Source, convolving, filter_job, filter_of, is_hard
from dask_bigfft.gpu.operations import FFT, Array
from dask_bigfft.gpu.tile_work import BlockTiles
from dask_bigfft.kernels.composite import Composite
from dask_bigfft.planner.tile_plan import AS_IS, DeviceSettings, TileLimits, aligned

#: Times that a block is tried: as planned, with all caches given back, and with smaller tiles.
ATTEMPTS = 6

#: Part of a device's free memory that is used where no limit is given.
MEMORY_SHARE = 0.8

#: FFTs whose plans are cached at most, but for those of one block; a round needs a handful.
MAX_FFTS = 256

#: Sizes of the work area that are tried, in units of a buffer, until one is found to be enough.
WORK_AREAS = (0, 1, 2, 4)


class Prepared(NamedTuple):
    """Tiles of a block, the arena cut for them, the bytes that all may take, and settings."""

    tiles: BlockTiles
    carve: Carve
    nbytes: int
    settings: DeviceSettings


class _Spectrum:
    """The spectrum of a filter, and the lock under which it is made."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.values: Array | None = None


class Engine:
    """Takes blocks to a device and back. Any number of threads may call it.

    Parameters
    ----------
    device : Device
        What does the work.
    nbytes : int, optional
        Bytes of the device's memory that may be used; by default `MEMORY_SHARE` of what is free.
    limits : TileLimits, optional
        How tiles are cut; its number of bytes is replaced.
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
        if nbytes is None:
            nbytes = int(MEMORY_SHARE * device.memory().free)
        self.device, self.number = device, number
        self.limits = replace(limits or TileLimits(nbytes), nbytes=self._room(nbytes))
        self.executor = GPUExecutor(device)
        self._lock = threading.Lock()
        self._works: dict[FFT, int] = {}
        #: Bytes that FFT plans take beyond what is set aside, as of the last one that was made.
        self._tables = 0
        self._staged = AS_IS.ring
        self._warned: set[int] = set()
        #: Blocks that are ready to be run, in the order in which they are; the first one is run.
        self._ready_blocks: deque[BlockRun] = deque()
        self._turns = threading.Condition()
        #: Spectra of filters: blocks that run at the same time share them, and nobody caches one.
        self._spectra: WeakValueDictionary[object, _Spectrum] = WeakValueDictionary()
        self._closed = False
        self._using = threading.Lock()
        self._users, self._since, self._busy = 0, 0.0, 0.0

    # --- blocks -----------------------------------------------------------------------------

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
            If the device has no memory even for small tiles.
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
        job, found = last, dict(filters or {})
        if job.convolves:
            spectrum = self._spectrum(job, nbytes)
            assert spectrum.values is not None
            found = {job.round.steps[0].axis: spectrum.values}
        for attempt in range(ATTEMPTS):
            try:
                return self._attempt(job, source, found, limits)
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

    def _after(
        self, job: Job, source: Source, filters: Mapping[int, Array] | None, nbytes: int | None
    ) -> Source:
        """A block after a round, which another one follows."""
        return Source(lambda: self.run(job, source, filters, nbytes=nbytes), again=source.again)

    def _spectrum(self, job: Job, nbytes: int | None) -> _Spectrum:
        """The spectrum that a job convolves with; one thread makes it, others wait for that.

        It is as large as a block or larger, so it goes when the last block that needs it is done.
        """
        (step,) = job.round.steps
        key = step.length, step.convolve, job.source
        with self._using:
            found = self._spectra.get(key)
            if found is None:
                found = self._spectra[key] = _Spectrum()
        with found.lock:
            if found.values is None:
                source = Source(lambda: filter_of(job))
                found.values = self.run(filter_job(job), source, nbytes=nbytes)
        return found

    def _attempt(
        self, job: Job, source: Source, filters: Mapping[int, Array], limits: TileLimits
    ) -> Array:
        """One try: gather without the lock, submit with it, wait without it."""
        tiles, carve, arrays = self._placed(job, limits, source)
        block = BlockRun(tiles, arrays, filters)
        with self._in_turn(block), self._submitting(job.settings):
            self._arrange(carve, tiles.ffts, limits.nbytes)
            held = self._held
            source.let_go()
            try:
                end = self.executor.run(block, self._following)
            except BaseException:
                self.executor.release()  # nothing may go on writing into memory we let go
                raise
        self._reached(end)
        emit("device_memory", device=self.number, nbytes=held)
        emit("h2d", nbytes=sum(array.nbytes for array in arrays[:-1]))
        emit("d2h", nbytes=sum(array.nbytes for array in arrays[1:]))
        return source.done(arrays[-1], tiles.shape(len(arrays) - 2))

    def prepared(self, job: Job, nbytes: int | None = None) -> Prepared:
        """Return what `run_part` needs to know of a block whose parts it is given."""
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
            What `prepared` returned; its tiles divide.
        part : Part
            Which part, and in what tiles.
        source : ndarray or Composite
            The block before the round; what lies outside of the part is not read.
        target : ndarray
            The block after the round, may be the same array.
        filters : mapping of int to ndarray, optional
            Spectrum of the convolution's filter, for the axes that need one.

        Raises
        ------
        DeviceMemoryError
            If the device has no memory left. The part may be overwritten then; all caches have been
            given back.
        """
        tiles, carve, nbytes, settings = prepared
        works = list(tiles.within(part.dim, part.low, part.high, part.width))
        own = {found.op for w in works for found in w.computations if isinstance(found.op, FFT)}
        ffts = own | tiles.ffts
        with self._submitting(settings):
            try:
                work = max(carve.work_nbytes, aligned(self._area(ffts)))
                self._arrange(replace(carve, work_nbytes=work), ffts, nbytes)
                held = self._held
                block = BlockRun(tiles, (source, target), filters or {}, works)
                end = self.executor.run(block)
            except BaseException:
                self._drop()  # nothing may go on writing into memory we let go
                raise
        self._reached(end)
        emit("device_memory", device=self.number, nbytes=held)
        emit("h2d", nbytes=sum(work.source.nbytes for work in works))
        emit("d2h", nbytes=sum(work.result.nbytes for work in works))

    @contextlib.contextmanager
    def _submitting(self, settings: DeviceSettings) -> Iterator[None]:
        """Hold the device while work is submitted; it is busy until that is reached."""
        with self._lock:
            if self._closed:
                raise DeviceError("the engine of this device was closed")
            self._stage(settings)
            self._use(1)
            try:
                yield
            except BaseException:
                self._use(-1)
                raise

    def _reached(self, end: Any) -> None:
        """Wait for an event; nothing goes on when the waiting is interrupted."""
        try:
            self.device.synchronize(end)
        except (KeyboardInterrupt, SystemExit):
            self.recover()
            raise
        finally:
            self._use(-1)

    @contextlib.contextmanager
    def _in_turn(self, block: BlockRun) -> Iterator[None]:
        """Wait until all blocks that were ready before have been submitted."""
        with self._turns:
            self._ready_blocks.append(block)
        try:
            with self._turns:
                self._turns.wait_for(lambda: self._ready_blocks[0] is block)
            yield
        except BaseException:
            if block.opened:  # nobody asks for what may have been staged
                with self._lock:
                    self.executor.release()
            raise
        finally:
            with self._turns:
                self._ready_blocks.remove(block)
                self._turns.notify_all()

    def _following(self) -> BlockRun | None:
        """The block that is submitted next, if one is ready."""
        with self._turns:
            return self._ready_blocks[1] if len(self._ready_blocks) > 1 else None

    def _use(self, users: int) -> None:
        """Count users of the device, and the time with one or more."""
        with self._using:
            now = time.perf_counter()
            self._busy += now - self._since if self._users else 0.0
            self._users, self._since = self._users + users, now

    @property
    def busy_seconds(self) -> float:
        """How long the device has had work, up to now."""
        self._use(0)
        return self._busy

    # --- tiles that fit ---------------------------------------------------------------------

    def _room(self, nbytes: int) -> int:
        """What is left for the arena of the bytes that may be used; a tiny budget stays one."""
        return nbytes - min(self.device.libraries, nbytes // 4)

    def within(self, nbytes: int | None) -> TileLimits:
        """Return the engine's limits, or what fewer bytes of the device leave for tiles."""
        if nbytes is None:
            return self.limits
        libraries = self.device.libraries
        if nbytes < 4 * libraries and nbytes not in self._warned:
            self._warned.add(nbytes)
            warnings.warn(
                f"{nbytes} bytes of {self.device.name} may be used, but kernels and FFT plans "
                f"alone take about {libraries}: they are counted in full from {4 * libraries} "
                f"bytes on, and only as {nbytes // 4} here",
                stacklevel=2,
            )
        return replace(self.limits, nbytes=min(self._room(nbytes), self.limits.nbytes))

    def links(self, job: Job, limits: TileLimits) -> tuple[Job, ...]:
        """Return the job, or those that take its place where its tiles do not fit.

        Where a length has a large prime factor, its step alone, and as a convolution of a smooth
        length if that does not fit either.
        """
        apart = job.apart()
        if job.convolves or (len(apart) == 1 and not is_hard(job)) or self._fits(job, limits):
            return (job,)
        if not is_hard(job):
            return apart
        found = list[Job]()
        for link in apart:
            for one in (link,) if self._fits(link, limits) else link.singly():
                smooth = None if self._fits(one, limits) else convolving(one)
                found.append(smooth or one)
        return tuple(found)

    def _fits(self, job: Job, limits: TileLimits) -> bool:
        """Whether there are tiles of a job that fit the device."""
        try:
            if is_hard(job):
                with self._lock:
                    self.tiles(job, limits)
            else:
                job.tiles(limits, 1)  # as much of a work area as most FFTs need
        except DeviceMemoryError:
            return False
        return True

    def _placed(
        self, job: Job, limits: TileLimits, source: Source
    ) -> tuple[BlockTiles, Carve, list[Array | Composite]]:
        """Tiles of a block, how the arena is cut, and the block before and after each pass.

        Tiles that go through the device's ring are cut to fit its buffers.
        """
        tiles, carve = self._ready(job, limits)
        arrays = source.arrays(tiles, limits)
        if self._staged != job.settings.ring:
            with self._lock:
                self._stage(job.settings)
        ring = max(map(self.device.ring_nbytes, arrays))
        if not ring:
            return tiles, carve, arrays
        within = limits.staged(ring, job.settings)
        try:
            other, needed = self._ready(job, within)
        except DeviceMemoryError:
            return tiles, carve, arrays
        if other.plan == tiles.plan:
            return tiles, carve, arrays
        arrays.clear()  # before others are allocated in their place
        try:
            arrays = source.arrays(other, within)
        except DeviceMemoryError:  # these could not be written where they were
            return tiles, carve, source.arrays(tiles, limits)
        if self._tables or not carve.holds(needed):
            carve = needed  # else blocks of both kinds follow one another without a pause
        return other, carve, arrays

    def _ready(self, job: Job, limits: TileLimits) -> tuple[BlockTiles, Carve]:
        """What `tiles` returns; without waiting for who submits where nothing has to be made."""
        for work in WORK_AREAS if not self._tables else ():
            tiles = job.tiles(limits, work)
            needs = [self._works.get(op) for op in tiles.ffts]
            if None in needs:
                break
            carve = _carved(tiles, job.settings, max((n for n in needs if n), default=0))
            if carve.nbytes <= limits.nbytes:
                return tiles, carve
        with self._lock:
            return self.tiles(job, limits)

    def tiles(self, job: Job, limits: TileLimits | None = None) -> tuple[BlockTiles, Carve]:
        """Return tiles and a work area that fit together; makes the plans of all FFTs."""
        limits = self.limits if limits is None else limits
        for work in WORK_AREAS:
            tiles, carve = self._cut(job, limits, work)
            if carve.nbytes + self.device.tables > limits.nbytes and self.device.tables:
                self._drop()  # plans of other rounds
                tiles, carve = self._cut(job, limits, work)
                left = limits.nbytes - self.device.tables
                if 0 < left < carve.nbytes:
                    self._drop()
                    tiles, carve = self._cut(job, replace(limits, nbytes=left), work)
            if carve.nbytes + self.device.tables <= limits.nbytes:
                return tiles, carve
        raise DeviceMemoryError(
            f"FFTs need a work area of {carve.work_nbytes} bytes beside {carve.buffers} tiles of "
            f"{carve.buffer_nbytes}, more than {limits.nbytes} together"
        )

    def _cut(self, job: Job, limits: TileLimits, work: int) -> tuple[BlockTiles, Carve]:
        """Tiles that go with a work area of some size, and the arena that they need."""
        tiles = job.tiles(limits, work)
        return tiles, _carved(tiles, job.settings, self._area(tiles.ffts))

    def _stage(self, settings: DeviceSettings) -> None:
        """Tell the device what ring is wanted, if that is another one than before."""
        if settings.ring != self._staged:
            self.device.stage(*settings.ring)
            self._staged = settings.ring

    def _arrange(self, carve: Carve, ffts: Set[FFT], nbytes: int) -> None:
        """Make plans and an arena that take no more than some bytes together.

        They did when the tiles were cut; but since then other rounds' plans may have come.
        """
        self._area(ffts)
        if self.device.tables and carve.nbytes + self.device.tables > nbytes:
            self._drop()
            self._area(ffts)
        self.executor.prepare(carve, max(carve.nbytes, nbytes - self.device.tables))

    def _area(self, ffts: Set[FFT]) -> int:
        """Bytes of the work area that FFTs need, whose plans are there from now on.

        A plan may only be made while nothing runs; what it takes is not known before.
        """
        missing = ffts - self._works.keys()
        if missing and len(self._works) + len(missing) > MAX_FFTS:
            self._drop()
        for op in ffts - self._works.keys():
            self.executor.release()
            self.device.synchronize_all()
            needed = self.device.work_nbytes(op)
            self._tables = self.device.tables
            self._works[op] = needed
        return max((self._works[op] for op in ffts), default=0)

    @property
    def _held(self) -> int:
        """Bytes of the device that are in use: the arena, and what libraries take."""
        return self.executor.arena_nbytes + self.device.libraries + self.device.tables

    def _drop(self) -> None:
        self.executor.release()
        self.device.synchronize_all()
        self.device.drop_caches()
        self._works.clear()
        self._tables = 0

    def recover(self) -> None:
        """Give back all caches."""
        with self._lock:
            self._drop()

    def close(self) -> None:
        """Give everything back; the engine is not used any more."""
        self.recover()
        with self._lock:
            if not self._closed:
                self._closed = True
                self.device.close()


def _carved(tiles: BlockTiles, settings: DeviceSettings, work_nbytes: int) -> Carve:
    """How the arena is cut for tiles, given the work area that their FFTs need."""
    plan, streams = tiles.plan, settings.streams or "role"
    return Carve(plan.buffers, plan.buffer_nbytes, aligned(work_nbytes), streams)
