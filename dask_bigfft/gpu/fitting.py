"""How blocks fit a device: their pieces, the FFT plans that these need, and the arena beside them.

All of it together takes no more of the device's memory than was allowed, at any time. FFT plans are
made while nothing runs, and what they take is known only then: where they leave too little room for
the pieces, plans of other rounds go, or the pieces are cut smaller.

Imports `planner`, `kernels` and this room.
"""

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator, Set
from dataclasses import replace

from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.gpu.convolving import convolving, is_hard
from dask_bigfft.gpu.jobs import Job
from dask_bigfft.gpu.operations import FFT, Array
from dask_bigfft.gpu.pipeline import Carve, Pipeline
from dask_bigfft.gpu.protocol import Device
from dask_bigfft.gpu.tile_work import BlockTiles
from dask_bigfft.kernels.composite import Composite
from dask_bigfft.planner.tile_plan import AS_IS, DeviceSettings, TileLimits, aligned

#: Part of a device's free memory that is used where no limit is given.
MEMORY_SHARE = 0.8

#: FFTs whose plans are kept at most, but for those of one block; a round needs a handful.
MAX_FFTS = 256

#: Work areas that are reckoned with, in units of a slot, until one is found to be enough.
WORK_AREAS = (0, 1, 2, 4)


class Fitting:
    """Pieces, FFT plans and the arena of a device, within the bytes that may be used.

    Parameters
    ----------
    device : Device
        What does the work.
    nbytes : int, optional
        Bytes of the device's memory that may be used; by default `MEMORY_SHARE` of what is free.
    limits : TileLimits, optional
        How pieces are cut; its number of bytes is replaced.
    """

    def __init__(
        self, device: Device, nbytes: int | None = None, limits: TileLimits | None = None
    ) -> None:
        if nbytes is None:
            nbytes = int(MEMORY_SHARE * device.memory().free)
        self.device = device
        self.limits = replace(limits or TileLimits(nbytes), nbytes=self._room(nbytes))
        self.pipeline = Pipeline(device)
        self._lock = threading.Lock()
        self._works: dict[FFT, int] = {}
        #: Bytes that FFT plans take beyond what is set aside, as of the last one that was made.
        self._tables = 0
        self._staged = AS_IS.ring
        self._warned: set[int] = set()

    def _room(self, nbytes: int) -> int:
        """What is left for the arena of the bytes that may be used; a tiny budget stays one."""
        return nbytes - min(self.device.libraries, nbytes // 4)

    def within(self, nbytes: int | None) -> TileLimits:
        """The engine's limits, or what fewer bytes of the device leave for pieces."""
        if nbytes is None:
            return self.limits
        self._warn(nbytes)
        return replace(self.limits, nbytes=min(self._room(nbytes), self.limits.nbytes))

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

    def links(self, job: Job, limits: TileLimits) -> tuple[Job, ...]:
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

    def _smoothed(self, job: Job, limits: TileLimits) -> Iterator[Job]:
        """One step at a time, those that do not fit as convolutions of a smooth length."""
        for one in job.singly():
            smooth = None if self._fits(one, limits) else convolving(one)
            yield one if smooth is None else smooth

    def _fits(self, job: Job, limits: TileLimits) -> bool:
        """Whether there are pieces of a job that fit the device."""
        if not is_hard(job):
            with contextlib.suppress(DeviceMemoryError):
                job.tiles(limits, 1)  # as much of a work area as most FFTs need
                return True
        with contextlib.suppress(DeviceMemoryError), self._lock:
            self.pieces(job, limits)
            return True
        return False

    def placed(
        self,
        job: Job,
        limits: TileLimits,
        arrays: Callable[[BlockTiles, TileLimits], list[Array | Composite]],
    ) -> tuple[BlockTiles, Carve, list[Array | Composite]]:
        """Return the pieces of a block, how the arena is cut, and where the block is.

        Pieces that go through the device's staging buffers are cut to fit these.

        Parameters
        ----------
        job : Job
            What to do.
        limits : TileLimits
            What pieces may need.
        arrays : callable
            Returns the block before the first crossing and after each, given the pieces and the
            limits that these are within.
        """
        tiles, carve = self._ready(job, limits)
        found = arrays(tiles, limits)
        if self._staged != job.settings.ring:
            with self._lock:
                self._stage(job.settings)
        ring = max(map(self.device.ring_nbytes, found))
        if not ring:
            return tiles, carve, found
        within = limits.staged(ring, job.settings)
        try:
            other, needed = self._ready(job, within)
        except DeviceMemoryError:
            return tiles, carve, found
        if other.plan == tiles.plan:
            return tiles, carve, found
        found.clear()  # before others are lent in their place
        try:
            found = arrays(other, within)
        except DeviceMemoryError:  # these could not be written where they were
            return tiles, carve, arrays(tiles, limits)
        if self._tables or not carve.holds(needed):
            carve = needed  # else blocks of both kinds follow one another without a pause
        return other, carve, found

    def _ready(self, job: Job, limits: TileLimits) -> tuple[BlockTiles, Carve]:
        """What `pieces` returns; without waiting for whoever submits where nothing has to be made.

        So blocks that follow can be made ready meanwhile.
        """
        for work in WORK_AREAS if not self._tables else ():
            tiles = job.tiles(limits, work)
            needs = [self._works.get(op) for op in tiles.ffts]
            if None in needs:
                break
            carve = _carved(tiles, job.settings, max((n for n in needs if n), default=0))
            if carve.nbytes <= limits.nbytes:
                return tiles, carve
        with self._lock:
            return self.pieces(job, limits)

    def pieces(self, job: Job, limits: TileLimits | None = None) -> tuple[BlockTiles, Carve]:
        """Pieces and work area that fit together; makes the plans of all FFTs."""
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
            f"FFTs need a work area of {carve.work_nbytes} bytes beside {carve.slots} pieces of "
            f"{carve.slot_nbytes}, more than {limits.nbytes} together"
        )

    def _cut(self, job: Job, limits: TileLimits, work: int) -> tuple[BlockTiles, Carve]:
        """Pieces that go with a work area of some size, and the one that they need."""
        tiles = job.tiles(limits, work)
        return tiles, _carved(tiles, job.settings, self._area(tiles.ffts))

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

    @property
    def _held(self) -> int:
        """Bytes of the device that are in use: the arena, and what libraries take."""
        return self.pipeline.arena_nbytes + self.device.libraries + self.device.tables

    def _drop(self) -> None:
        self.pipeline.release()
        self.device.synchronize_all()
        self.device.drop_caches()
        self._works.clear()
        self._tables = 0


def _carved(tiles: BlockTiles, settings: DeviceSettings, work_nbytes: int) -> Carve:
    """How the arena is cut for pieces, given the work area that their FFTs need."""
    plan, streams = tiles.plan, settings.streams or "role"
    return Carve(plan.buffers, plan.buffer_nbytes, aligned(work_nbytes), streams)
