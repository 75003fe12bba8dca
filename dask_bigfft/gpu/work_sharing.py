"""Hybrid rounds: CPU and device take intervals of the same block from its two ends.

A block is cut along its outermost dimension that is not transformed. The task's own thread takes
CPU tiles from the front. Once the task has a lease, a feeder thread gives tiles to the device from
the back, until both meet::

    rows   0 ..............................................................  n
           cpu cpu cpu cpu ->                    <- device device device device

The forecast says where they would meet (Chen and Li 2013). The device takes half of its forecast
share of the remaining rows at a time, so its portions shrink towards the middle (guided
self-scheduling, Polychronopoulos and Kuck, IEEE Trans. Computers C-36, 1987), and neither side
takes rows that the other one would finish sooner.

A task never waits for a lease: it asks again before each tile, so a device helps the remaining
blocks at the end of a round. Rows that a device has no memory for go back to the CPU. Blocks are
gathered part by part from sources that are only read, so a failed part can be gathered again.

Imports `decomposition`, `planner`, `kernels`, `memory`, `events`, `threads`, `errors` and this
room.
"""

import contextlib
import functools
import math
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

import numpy as np

from dask_bigfft.decomposition.layout import ROW_BYTES, tile_bytes_of
from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.events import during, emit, task_threads, working_for
from dask_bigfft.gpu.dispatch import Place, leases, takes
from dask_bigfft.gpu.engine import Engine, Part, readable
from dask_bigfft.gpu.tile_work import Array, BlockTiles, Job
from dask_bigfft.kernels.composite import Composite
from dask_bigfft.kernels.libraries import FFTLibrary
from dask_bigfft.kernels.loop import CPUExecutor
from dask_bigfft.kernels.views import BlockView
from dask_bigfft.memory import lend
from dask_bigfft.planner.cost import admitted
from dask_bigfft.planner.work_sharing import gathering_threads

#: Part of its forecast share of the remaining rows that a device takes at once.
PORTION = 0.5

#: Smallest portion of a device, in units of `TileLimits.least`: each is a call of its own.
LEAST_PORTION = 4


@dataclass
class Interval:
    """The rows of a block that are left: CPU tiles leave from the front, portions from the back.

    One thread takes tiles, and one takes portions.

    Parameters
    ----------
    dim, rows : int
        Dimension along which the block is cut, and its length.
    tile : int
        Rows of a CPU tile.
    width, least : int
        Rows of a device's tile, and of its smallest portion.
    speed : float
        Forecast rows that the device does while the CPU does one; 0: there is no device.
    """

    dim: int
    rows: int
    tile: int
    width: int
    least: int
    speed: float

    def __post_init__(self) -> None:
        self.low, self.high = 0, self.rows
        #: Rows on the device now, and rows that it has done.
        self.in_flight = self.device_rows = 0
        self._lock = threading.Lock()

    def offers(self) -> bool:
        """Return whether there is a portion for a device."""
        with self._lock:
            return self._portion() is not None

    def take_tile(self) -> slice | None:
        """Return the next CPU tile; None when no rows are left."""
        with self._lock:
            low, self.low = self.low, min(self.low + self.tile, self.high)
            return slice(low, self.low) if low < self.low else None

    def take_portion(self) -> Part | None:
        """Return the next portion for the device; None from when there is nothing more for it."""
        with self._lock:
            found = self._portion()
            if found is None:
                self.speed = 0.0
            else:
                self.high, self.in_flight = found.low, found.high - found.low
            return found

    def land(self) -> None:
        """Count the portion that is on the device as done."""
        with self._lock:
            self.device_rows, self.in_flight = self.device_rows + self.in_flight, 0

    def leave(self, to_cpu: bool) -> None:
        """Leave the portion on the device, and all other rows, to the CPU or to nobody."""
        with self._lock:
            self.high = self.high + self.in_flight if to_cpu else self.low
            self.in_flight, self.speed = 0, 0.0

    def _portion(self) -> Part | None:
        """Return the device's next portion, unless the CPU does all that is left in that time.

        Tiles are halved and not cut to any width, because each width has FFT plans of its own.
        """
        left = self.high - self.low
        wanted = int(PORTION * left * self.speed / (1 + self.speed))
        width = self.width
        while width > wanted and width // 2 >= self.least:
            width //= 2
        if width > left or width > self.speed * left:
            return None
        rows = max(1, wanted // width) * width
        return Part(self.dim, self.high - rows, self.high, width)


#: Asks for the engine of a device that is free now, else raises `TimeoutError`.
Lease = Callable[[], AbstractContextManager[Engine]]


def shared_with_device(
    job: Job, incoming: BlockView, library: FFTLibrary, filters: Mapping[int, Array], place: Place
) -> Array | None:
    """Return a block after a round that the CPU and a device share.

    None where the block is small, or its parts need each other, or no device has room for a tile.

    Parameters
    ----------
    job : Job
        The round on the block; what it rolls is rolled later.
    incoming : BlockView
        The block on its way in.
    library : FFTLibrary
        Makes the CPU's FFTs.
    filters : mapping of int to ndarray
        Spectrum of the convolution's filter, for the axes that need one.
    place : Place
        Where rounds are done.

    Raises
    ------
    DeviceError
        If a device fails.
    """
    job = replace(job, settings=place.settings)
    found = _divided(job, incoming, library, place)
    if found is None:
        return None
    interval, lease = found
    out = lend(job.round.target.shape(job.block), np.dtype(job.target))

    def feed(engine: Engine, work: tuple[str, int] | None) -> None:
        """Give portions to a device until there are none."""
        with contextlib.nullcontext() if work is None else during(*work):
            try:
                tiles, _ = engine.tiles(job, engine.within(place.nbytes))
                if not tiles.plan.divides:
                    raise DeviceMemoryError("the block falls apart on this device")
                read = _part_reader(incoming, tiles, engine, interval.dim, out)
                extent = tiles.plan.passes[0].tile[interval.dim]
                while (part := interval.take_portion()) is not None:
                    part, source = replace(part, width=min(part.width, extent)), read(part)
                    engine.run_part(tiles, part, source, out, filters, place.nbytes)
                    interval.land()
            except DeviceMemoryError:
                emit("fallback", nbytes=out.nbytes * interval.in_flight // interval.rows)
                interval.leave(to_cpu=True)
            except BaseException:
                interval.leave(to_cpu=False)
                raise

    def feeder() -> Future[None] | None:
        """Start to feed a device if one is free now."""
        try:
            return pool.submit(feed, held.enter_context(lease()), working_for())
        except DeviceMemoryError:
            interval.leave(to_cpu=True)
        except TimeoutError:
            pass
        return None

    def cpu_tiles() -> Iterator[slice]:
        """Yield CPU tiles; before each one, ask for a device while the task has none.

        When none is left, wait for the device, which may give rows back.
        """
        feeding: Future[None] | None = None
        while True:
            if feeding is None and interval.offers():
                feeding = feeder()
            tile = interval.take_tile()
            if tile is None and feeding is not None:
                feeding.result()
                tile = interval.take_tile()
            if tile is None:
                return
            yield tile

    cut = interval.dim, interval.tile
    executor = CPUExecutor(job.round, job.block, incoming, out, library, filters, cut=cut)
    with contextlib.ExitStack() as held, ThreadPoolExecutor(1, "bigfft-feeder") as pool:
        try:
            executor.run(cpu_tiles())
        finally:
            interval.leave(to_cpu=False)
    done = out.nbytes * interval.device_rows // interval.rows
    for event, nbytes in (("round_device", done), ("round_cpu", out.nbytes - done)):
        if nbytes:
            emit(event, nbytes=nbytes)
    return out


def _divided(
    job: Job, incoming: BlockView, library: FFTLibrary, place: Place
) -> tuple[Interval, Lease] | None:
    """Return the rows of a block for CPU and devices, and what asks for a device's engine.

    None where they cannot share the block.
    """
    found, before, round_ = leases(), incoming.shape, job.round
    if found is None:
        return None
    engine, limits = found.engines[0], found.engines[0].limits
    after = math.prod(round_.target.shape(job.block)) * np.dtype(job.target).itemsize
    most = max(after, math.prod(before) * incoming.dtype.itemsize)
    fixed = {round_.dim(step) for step in round_.steps}
    dim = next((dim for dim, n in enumerate(before) if dim not in fixed and n > 1), None)
    computed = takes("gpu", most, job.source, job.target) and most >= 2 * limits.least
    if not computed or dim is None or not incoming.divides(dim):
        return None
    try:
        tiles, _ = engine.tiles(job, engine.within(place.nbytes))
    except DeviceMemoryError:
        return None
    if not tiles.plan.divides:
        return None
    rows, width = before[dim], tiles.plan.passes[0].tile[dim]
    row_nbytes, outside = -(-most // rows), math.prod(before[:dim])
    inner = math.prod(before[dim + 1 :]) * np.dtype(tiles.dtype).itemsize
    run = -(-limits.run_nbytes // inner) if outside > 1 else 1
    least = min(width, max(run, -(-LEAST_PORTION * limits.least // row_nbytes)))
    tile_nbytes = min(tile_bytes_of(library.beside), limits.least)
    tile = min(rows, max(1, -(-ROW_BYTES * outside // row_nbytes), tile_nbytes // row_nbytes))
    admits = admitted(most)
    # Of the round, to rows of one task beside one lease.
    tasks = min(task_threads(), round_.source.blocks)
    leased = min(tasks, admits * len(found.engines))
    speed = place.share / max(1 - place.share, 1e-9) * tasks / leased
    interval = Interval(dim, rows, tile, width, least, speed)
    return interval, functools.partial(found.lease, admits, 0.0)


def _part_reader(
    incoming: BlockView, tiles: BlockTiles, engine: Engine, dim: int, out: Array
) -> Callable[[Part], Array | Composite]:
    """Return what makes a part of a block ready for a device, which reads it from its result.

    That is the block itself or shards of other blocks, if the device can read these, else memory
    into which some threads gather the part.
    """
    whole, dtype = incoming.array, np.dtype(tiles.job.source)
    if whole is not None and whole.flags.c_contiguous and whole.dtype == dtype:
        return lambda _: whole
    boxes = incoming.boxes(False) if whole is None or not whole.flags.c_contiguous else None
    shards = None if boxes is None else readable(tiles, boxes.around, engine.limits)
    if shards is not None:
        return lambda _: shards
    same = out.shape == incoming.shape and out.dtype == dtype
    read = out if same else lend(incoming.shape, dtype)
    fill, threads = incoming.filling(dim, read), gathering_threads(task_threads())

    def gathered(part: Part) -> Array:
        width = -(-(part.high - part.low) // threads)
        lows = range(part.low, part.high, width)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda low: fill(slice(low, min(low + width, part.high))), lows))
        return read

    return gathered
