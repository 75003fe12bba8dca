"""Engine of a device: runs rounds on blocks in host memory.

There is one engine per device and process. It finds tiles that fit the device together with the
work area of their FFTs, caches FFT plans and the arena between blocks, and runs blocks in the order
in which they are ready. Its memory never exceeds the limit. The size of an FFT plan is known only
after it is made, so plans are made while nothing runs. If they leave too little memory for the
tiles, plans of other rounds are dropped, or the tiles are cut smaller.

When the device runs out of memory the engine recovers in these steps, none of which changes the
result:

1. drop all caches (arena, FFT plans, pools), and retry the block;
2. halve the tiles, several times;
3. raise `DeviceMemoryError`, after which the CPU takes the block.

A block that was overwritten before a failure is gathered again.
"""

import contextlib
import functools
import math
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from dask.system import CPU_COUNT
from dask.utils import format_bytes

from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.events import emit
from dask_bigfft.gpu.executor import BlockRun, Carve, Device, GPUExecutor
from dask_bigfft.gpu.operations import FFT, dense, runs
from dask_bigfft.gpu.tile_work import Array, BlockTiles, Job
from dask_bigfft.kernels.segmented import SegmentedView
from dask_bigfft.kernels.views import BlockView
from dask_bigfft.memory import allocate
from dask_bigfft.planner.tile_plan import TileLimits, aligned, apart

#: Smallest mean row of a tile, in units of `run_nbytes`, for shards to be read in place (1 KiB: a
#: kernel reads such rows at bus speed). Threads gather blocks with shorter rows faster.
NARROWEST = 1 / 8


# --- blocks in host memory ----------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """Interval of a dimension of a block, to be done in tiles of some width."""

    dim: int
    low: int
    high: int
    width: int


@dataclass
class Source:
    """Block that is gathered on demand, and again after it was overwritten.

    Parameters
    ----------
    gather : callable, optional
        Returns the block, contiguous. Without it only the shards are available.
    again : bool
        True if `gather` may be called again.
    borrowed : bool
        True if the block belongs to others and must not be overwritten.
    segmented : SegmentedView, optional
        The block as shards of other blocks, which are read in place if their rows are wide.
    inside : bool
        True if the round is done in place on the shards.
    target : ndarray, optional
        Memory for the result, with dimensions in the order of the job.
    ready : callable, optional
        Called when the device has the work of the block, or before threads gather the block.
    """

    gather: Callable[[], Array] | None
    again: bool = True
    borrowed: bool = False
    segmented: SegmentedView | None = None
    inside: bool = False
    target: Array | None = None
    ready: Callable[[], None] = lambda: None
    values: Array | None = field(default=None, init=False)
    gathered: bool = field(default=False, init=False)
    _shards: tuple[object, SegmentedView | None] = field(default=(None, None), init=False)

    def shards(self, tiles: BlockTiles, limits: TileLimits) -> SegmentedView | None:
        """Return the shards that the device reads in place; None if it needs the whole block."""
        if self.segmented is None:
            return None
        same_dtype = tiles.job.source == tiles.job.target
        reorders = any(tile_pass.reorders for tile_pass in tiles.plan.passes)
        if self.inside and (reorders or not same_dtype):
            return None
        key = tiles.plan, limits.run_nbytes
        if self._shards[0] != key:
            self._shards = key, readable(tiles, self.segmented, limits)
        return self._shards[1]

    def arrays(self, tiles: BlockTiles, limits: TileLimits) -> list[Array | SegmentedView]:
        """Return the block before the first pass and after each pass, in place where possible.

        A borrowed block is only read.
        """
        shards = self.shards(tiles, limits)
        arrays: list[Array | SegmentedView] = [
            self.get(np.dtype(tiles.job.source)) if shards is None else shards
        ]
        self.gathered = self.gathered or self.inside
        only_read = self.borrowed if shards is None else not self.inside
        is_single_pass = len(tiles.plan.passes) == 1
        for number, tile_pass in enumerate(tiles.plan.passes):
            in_target_order = tile_pass.order == tiles.job.order
            if self.target is not None and is_single_pass and in_target_order:
                return [*arrays, self.target]
            may_overwrite = number > 0 or not only_read
            if may_overwrite and _works_in_place(tiles, number, arrays[-1]):
                arrays.append(arrays[-1])
            else:
                dtype = np.dtype(tiles.written(number))
                arrays.append(allocate(tiles.shape(number), dtype))
        return arrays

    def result(self, last: Array | SegmentedView, shape: tuple[int, ...]) -> Array:
        """Return the block after a round, given the last of `arrays`."""
        if isinstance(last, SegmentedView):
            return np.empty(0, last.dtype)  # the shards hold the result
        return last if last is self.target else last.reshape(shape)

    def get(self, dtype: np.dtype[Any]) -> Array:
        """Return the block, converted to another dtype in new memory if need be."""
        if self.values is None:
            if self.gather is None:
                raise DeviceMemoryError("no tiles fit whose shards are read in place")
            self.ready()
            self.values = self.gather()
            self.gathered = True
            if self.values.dtype != dtype:
                view = BlockView.of(self.values)
                self.borrowed = False
                self.values = view.gather(allocate(view.shape, dtype), CPU_COUNT)
        return self.values

    def let_go(self) -> None:
        """Forget the block, because it may be overwritten from now on."""
        self.values = None

    @property
    def lost(self) -> bool:
        """Return True if the block was overwritten and cannot be gathered again."""
        return self.gathered and self.values is None and not self.again


def _works_in_place(tiles: BlockTiles, number: int, before: Array | SegmentedView) -> bool:
    """Return whether a pass may write its tiles to the places from which it has read them."""
    same_size = math.prod(tiles.shape(number)) == math.prod(before.shape)
    same_dtype = tiles.written(number) == before.dtype.str
    return same_size and same_dtype and not tiles.moves(number)


def readable(
    tiles: BlockTiles, segmented: SegmentedView, limits: TileLimits
) -> SegmentedView | None:
    """Return the view of shards in digits of the first pass, or None.

    It is None if a gather is needed, or faster.
    """
    first_pass = tiles.plan.passes[0]
    if segmented.dtype.str != tiles.job.source:
        return None
    if segmented.is_mirrored and not first_pass.mirrored:
        return None
    in_digits = _in_digits_of_tiles(tiles, segmented)
    if in_digits is None or not in_digits.falls:
        return None
    part = in_digits.part(tuple(slice(0, n) for n in first_pass.tile))
    if part is None:
        return None
    # Shards of the first tile: a gather is faster if the rows on the bus are narrow.
    itemsize = in_digits.dtype.itemsize
    strides = dense(tuple(cut.stop - cut.start for cut in part), itemsize)
    nbytes = 0
    rows = 0
    for shards in in_digits.shards(part):
        nbytes += shards.nbytes
        width, _ = runs(shards.shape, shards.strides, itemsize, strides)
        rows += shards.nbytes // max(1, width)
    return in_digits if nbytes >= NARROWEST * limits.run_nbytes * rows else None


def _in_digits_of_tiles(tiles: BlockTiles, segmented: SegmentedView) -> SegmentedView | None:
    """Return a block with a dimension for each digit of the tiles, or None.

    It is None if digits of the tiles have another product than the length of their dimension, as
    those of a whole spectrum of which the block has half. It is None, too, if a dimension to be
    split already has several digits in the block. A dimension with one digit stays as it is, even
    if that digit has another length.
    """
    shape = segmented.shape
    factors: list[tuple[int, ...]] = [(n,) for n in shape]
    round_ = tiles.job.round
    for step, digits in zip(round_.steps, tiles.plan.digits, strict=True):
        dim = round_.dim(step)
        factors[dim] = digits
        if len(digits) > 1 and math.prod(digits) != shape[dim]:
            return None  # half a spectrum
    return segmented.split(tuple(factors))


#: Number of halvings of the tile limit in each attempt. The first failure drops all caches.
HALVINGS = (0, 0, 1, 2, 3, 4)

#: Share of the free device memory that is used by default.
MEMORY_SHARE = 0.8

#: Largest number of cached FFT plans, except that one block may need more.
MAX_FFTS = 256

#: Sizes of the work area to try in order, in units of a buffer. Forecasts assume 1, so that tiles
#: are rather larger than they say.
WORK_AREAS = (0, 1 / 2, 1, 2, 4)


# --- the engine -------------------------------------------------------------------------------


class Engine:
    """Pipeline of rounds on one device; thread-safe.

    Parameters
    ----------
    device : Device
        What does the work.
    nbytes : int, optional
        Memory limit in bytes; by default `MEMORY_SHARE` of the free memory.
    limits : TileLimits, optional
        Limits for tiles; the number of bytes is replaced.
    number : int
        Number of the device in the process, from 0.
    max_ffts : int
        Number of FFTs whose plans are kept between blocks.
    """

    def __init__(
        self,
        device: Device,
        nbytes: int | None = None,
        limits: TileLimits | None = None,
        number: int = 0,
        max_ffts: int = MAX_FFTS,
    ) -> None:
        if nbytes is None:
            nbytes = int(MEMORY_SHARE * device.memory().free)
        self.device = device
        self.number = number
        self.max_ffts = max_ffts
        self.limits = replace(limits or TileLimits(nbytes), nbytes=self._room(nbytes))
        self.executor = GPUExecutor(device)
        self._lock = threading.RLock()
        self._works: dict[FFT, int] = {}
        #: Bytes of FFT plans beyond `libraries`, as of the last plan.
        self._tables = 0
        self._warned: set[int] = set()
        #: Queue of ready blocks, of which the first one runs.
        self._ready: deque[BlockRun] = deque()
        self._turns = threading.Condition()
        self._closed = False
        self._using = threading.Lock()
        self._users = 0
        self._since = 0.0
        self._busy = 0.0

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
            The round on the block.
        source : Source
            The block.
        filters : mapping of int to ndarray, optional
            Spectra of convolutions' filters, by their numbers among the plan's operands.
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
        *before, last = self.links(job, limits)
        for link in before:
            gather = functools.partial(self.run, link, source, filters, nbytes=nbytes)
            source = Source(gather, again=source.again)
        for attempt, halvings in enumerate(HALVINGS):
            within = replace(limits, nbytes=limits.nbytes >> halvings)
            try:
                tiles, arrays = self._placed(last, within, source)
                self._submit(BlockRun(tiles, arrays, filters or {}), within.nbytes, source)
                return source.result(arrays[-1], tiles.shape(len(arrays) - 2))
            except DeviceMemoryError as error:
                if source.lost:
                    raise DeviceError(
                        "a device ran out of memory while it overwrote a block that cannot be "
                        "gathered again: compute the transform again"
                    ) from error
                if attempt == len(HALVINGS) - 1:
                    raise
                emit("fallback", nbytes=within.nbytes)
            if attempt == 0:
                self.recover()
        raise AssertionError("the last attempt returns or raises")

    def run_part(
        self,
        tiles: BlockTiles,
        part: Part,
        source: Array | SegmentedView,
        target: Array,
        filters: Mapping[int, Array] | None = None,
        nbytes: int | None = None,
    ) -> None:
        """Do a round on a part of a block, from one array to another.

        Parameters
        ----------
        tiles : BlockTiles
            Tiles of the block.
        part : Part
            The part, and the width of its tiles.
        source : ndarray or SegmentedView
            The block before the round; only the part is read.
        target : ndarray
            The block after the round, may be the same array.
        filters : mapping of int to ndarray, optional
            Spectra of convolutions' filters, by their numbers among the plan's operands.
        nbytes : int, optional
            Bytes of the device that may be used, if fewer than the engine's.

        Raises
        ------
        DeviceMemoryError
            If the device has no memory left. The part may be overwritten then, and all caches
            have been dropped.
        """
        works = tiles.within(part.dim, part.low, part.high, part.width)
        arrays: list[Array | SegmentedView] = [source]
        for number in range(len(works) - 1):  # only the part of it is used
            if number == 0 or tiles.moves(number):
                arrays.append(allocate(tiles.shape(number), np.dtype(tiles.written(number))))
            else:
                arrays.append(arrays[-1])
        block = BlockRun(tiles, (*arrays, target), filters or {}, works)
        try:
            self._submit(block, self.within(nbytes).nbytes)
        except DeviceMemoryError:
            self.recover()
            raise

    def _submit(self, block: BlockRun, nbytes: int, source: Source | None = None) -> None:
        """Run a block after all earlier ones have been submitted, and wait for its end."""
        self._use(1)
        try:
            block.begin()
            with self._turn(block):
                carve = self.carve(block.block, block.ffts)
                if self._tables and carve.nbytes + self._tables > nbytes:
                    self.recover()  # other rounds have made plans since the tiles were cut
                    carve = self.carve(block.block, block.ffts)
                self.executor.prepare(carve, max(carve.nbytes, nbytes - self._tables))
                used = self.executor.arena_nbytes + self.device.libraries + self._tables
                if source is not None:
                    source.let_go()
                end = self.executor.run(block, self._following)
            if source is not None:
                source.ready()
            self.device.synchronize(end)
            block.require_finite()
        except (KeyboardInterrupt, SystemExit):
            self.recover()  # stop all work if the wait is interrupted
            raise
        finally:
            self._use(-1)
        emit("device_memory", device=self.number, nbytes=used)
        for direction, moved in zip(("h2d", "d2h"), block.nbytes, strict=True):
            emit(direction, nbytes=moved)

    @contextlib.contextmanager
    def _turn(self, block: BlockRun) -> Iterator[None]:
        """Lock the device after all earlier blocks have been submitted."""
        with self._turns:
            self._ready.append(block)
        try:
            with self._turns:
                self._turns.wait_for(lambda: self._ready[0] is block)
            with self._lock:
                if self._closed:
                    raise DeviceError("the engine of this device was closed")
                yield
        except BaseException:
            with self._lock:
                self.executor.release()  # nothing may write to memory that is freed
            raise
        finally:
            with self._turns:
                self._ready.remove(block)
                self._turns.notify_all()

    def _following(self) -> BlockRun | None:
        """Return the next ready block, if any."""
        with self._turns:
            return self._ready[1] if len(self._ready) > 1 else None

    def _use(self, users: int) -> None:
        """Update the number of users, and the time with at least one."""
        with self._using:
            now = time.perf_counter()
            if self._users:
                self._busy += now - self._since
            self._users += users
            self._since = now

    @property
    def busy_seconds(self) -> float:
        """Total time in which the device has had work, in seconds."""
        self._use(0)
        return self._busy

    # --- tiles that fit ---------------------------------------------------------------------

    def _room(self, nbytes: int) -> int:
        """Return the bytes left for the arena, at least three quarters of the limit."""
        return nbytes - min(self.device.libraries, nbytes // 4)

    def within(self, nbytes: int | None) -> TileLimits:
        """Return the limits for tiles under a memory limit; by default those of the engine."""
        if nbytes is None:
            return self.limits
        libraries = self.device.libraries
        if nbytes < 4 * libraries and nbytes not in self._warned:
            self._warned.add(nbytes)
            warnings.warn(
                f"the limit of {format_bytes(nbytes)} for {self.device.name} may be exceeded: "
                f"kernels and FFT plans need about {format_bytes(libraries)}, for which the limit "
                f"leaves {format_bytes(nbytes // 4)}",
                stacklevel=2,
            )
        return replace(self.limits, nbytes=min(self._room(nbytes), self.limits.nbytes))

    def links(self, job: Job, limits: TileLimits) -> tuple[Job, ...]:
        """Return the job if its tiles fit, else jobs that give the same one after the other."""
        parts = job.links(apart(job.round.without_windows))
        if len(parts) > 1:
            with contextlib.suppress(DeviceMemoryError):
                job.tiles(limits, 1)  # as much of a work area as most FFTs need
                return (job,)
        return parts

    def _placed(
        self, job: Job, limits: TileLimits, source: Source
    ) -> tuple[BlockTiles, list[Array | SegmentedView]]:
        """Return the tiles of a block, and the block before and after each pass.

        Tiles that are staged through the ring are cut to fit its buffers.
        """
        tiles = self.tiles(job, limits)
        arrays = source.arrays(tiles, limits)
        ring_nbytes = max(map(self.device.ring_nbytes, arrays))
        if not ring_nbytes:
            return tiles, arrays
        staged_limits = limits.staged(ring_nbytes, job.settings)
        with contextlib.suppress(DeviceMemoryError):
            staged_tiles = self.tiles(job, staged_limits)
            if staged_tiles.plan != tiles.plan:
                arrays.clear()  # before others are allocated in their place
                return staged_tiles, source.arrays(staged_tiles, staged_limits)
        # The staged tiles may need more memory, since they cannot be written in place.
        return tiles, arrays or source.arrays(tiles, limits)

    def tiles(self, job: Job, limits: TileLimits | None = None) -> BlockTiles:
        """Return tiles that fit the limit with a work area, and make all FFT plans.

        The memory of FFT plans is known only when they are made. If it is too much, the plans of
        other rounds are dropped, and then tiles are cut for the memory that is left.
        """
        limits = self.limits if limits is None else limits
        for work in WORK_AREAS:
            tiles = job.tiles(limits, work)
            if tiles.leaps:
                joined = replace(tiles, joins=True)
                if self.carve(joined, joined.ffts).nbytes + self._tables <= limits.nbytes:
                    return joined
            carve = self.carve(tiles, tiles.ffts)
            if self._tables and carve.nbytes + self._tables > limits.nbytes:
                with self._lock:
                    self.recover()  # drops all plans; `carve` makes those of these tiles
                    carve = self.carve(tiles, tiles.ffts)
                    left = limits.nbytes - self._tables
                    if 0 < left < carve.nbytes:
                        self.recover()
                        tiles = job.tiles(replace(limits, nbytes=left), work)
                        carve = self.carve(tiles, tiles.ffts)
            if carve.nbytes + self._tables <= limits.nbytes:
                return tiles
        raise DeviceMemoryError(
            f"FFTs need a work area of {format_bytes(carve.work_nbytes)}, and "
            f"{carve.buffers} tiles {format_bytes(carve.buffer_nbytes)}: "
            f"more than {format_bytes(limits.nbytes)} together"
        )

    def carve(self, tiles: BlockTiles, ffts: Set[FFT]) -> Carve:
        """Return the division of the arena for tiles, and make the missing plans of their FFTs."""
        plan = tiles.plan
        streams = tiles.job.settings.streams or "role"
        return Carve(plan.buffers, plan.buffer_nbytes, self._area(ffts), streams)

    def _area(self, ffts: Set[FFT]) -> int:
        """Return the size of the work area of FFTs in bytes, and make missing plans.

        Plans are made while nothing runs, because their size is unknown before.
        """
        with contextlib.suppress(KeyError):  # without the lock, which a submitting thread holds
            return max((self._works[op] for op in ffts), default=0)
        with self._lock:
            if len(ffts | self._works.keys()) > self.max_ffts:
                self.recover()
            self.executor.release()
            self.device.synchronize_all()
            for op in ffts - self._works.keys():
                needed = aligned(self.device.work_nbytes(op))
                self._tables = self.device.tables
                self._works[op] = needed
            return max(self._works[op] for op in ffts)

    def recover(self) -> None:
        """Drop all caches."""
        with self._lock:
            self.executor.release()
            self.device.synchronize_all()
            self.device.drop_caches()
            self._works.clear()
            self._tables = 0

    def close(self) -> None:
        """Free all memory and close the device."""
        with self._lock:
            self.recover()
            if not self._closed:
                self._closed = True
                self.device.close()
