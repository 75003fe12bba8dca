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
import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from dask_bigfft.decomposition.layout import ROW_BYTES, tile_bytes_of
from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.events import during, emit, task_threads, working_for
from dask_bigfft.gpu.engine import Engine, Prepared
from dask_bigfft.gpu.find import Leases, Need
from dask_bigfft.gpu.jobs import Job, Part, readable
from dask_bigfft.gpu.operations import Array
from dask_bigfft.gpu.tile_work import BlockTiles
from dask_bigfft.kernels.composite import Composite
from dask_bigfft.kernels.libraries import FFTLibrary
from dask_bigfft.kernels.loop import CPUExecutor
from dask_bigfft.kernels.views import BlockView
from dask_bigfft.memory import lend
from dask_bigfft.planner.cost import admitted
from dask_bigfft.planner.work_sharing import gathering_threads

__all__ = ["Interval", "share_block", "shared_dim"]

#: Part of its forecast share of the remaining rows that a device takes at once.
PORTION = 0.5

#: Smallest portion of a device, in units of `TileLimits.least`: each is a call of its own.
LEAST_PORTION = 4


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

    def __init__(
        self, dim: int, rows: int, tile: int, width: int, least: int, speed: float
    ) -> None:
        self.dim, self.rows, self.tile, self.speed = dim, rows, tile, speed
        self.width, self.least = width, least
        self.low, self.high = 0, rows
        #: Rows on the device now, and rows that it has done.
        self.in_flight = self.device_rows = 0
        self._changed = threading.Condition()

    def offers(self) -> bool:
        """Return whether there is a portion for a device."""
        with self._changed:
            return self._portion() is not None

    def take_tile(self) -> slice | None:
        """Return the next CPU tile, as soon as there is one; None when all rows are done."""
        with self._changed:
            self._changed.wait_for(self._cpu_goes_on)
            low, self.low = self.low, min(self.low + self.tile, self.high)
            return slice(low, self.low) if low < self.low else None

    def take_portion(self) -> Part | None:
        """Return the next portion for the device; None from when there is nothing more for it."""
        with self._changed:
            found = self._portion()
            if found is None:
                self._without_device()
            else:
                self.high, self.in_flight = found.low, found.high - found.low
            return found

    def land(self) -> None:
        """Count the portion that is on the device as done."""
        with self._changed:
            self.device_rows += self.in_flight
            self.in_flight = 0
            self._changed.notify()

    def give_back(self) -> None:
        """Leave the portion on the device, and all other rows, to the CPU."""
        with self._changed:
            self.high += self.in_flight
            self._without_device()

    def stop(self) -> None:
        """Drop the rows that are left."""
        with self._changed:
            self.high = self.low
            self._without_device()

    def _without_device(self) -> None:
        self.speed, self.in_flight = 0.0, 0
        self._changed.notify()

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

    def _cpu_goes_on(self) -> bool:
        """Return whether the CPU takes a tile now, or is done.

        It waits while rows may come back, or while the device finishes all rows within one tile.
        """
        left = self.high - self.low
        if not left:
            return not self.in_flight
        if not self.in_flight or self._portion() is None:
            return True
        return min(self.tile, left) * self.speed <= left + self.in_flight


class _SharedBlock:
    """A round on a block, done by the thread of its task and by a device."""

    def __init__(
        self,
        job: Job,
        incoming: BlockView,
        filters: Mapping[int, Array],
        leases: Leases,
        nbytes: int | None,
        interval: Interval,
        need: Need,
    ) -> None:
        self.job, self.incoming, self.filters, self.leases = job, incoming, filters, leases
        self.nbytes, self.interval, self.need = nbytes, interval, need
        self.out = lend(job.round.target.shape(job.block), np.dtype(job.target))
        self.feeder: threading.Thread | None = None
        self.error: BaseException | None = None

    def run(self, library: FFTLibrary) -> Array:
        """Return the block after the round."""
        job, interval = self.job, self.interval
        with contextlib.ExitStack() as held:
            try:
                executor = CPUExecutor(
                    job.round,
                    job.block,
                    self.incoming,
                    self.out,
                    library,
                    self.filters,
                    cut=(interval.dim, interval.tile),
                )
                executor.run(self._tiles(held))
            finally:
                interval.stop()
                if self.feeder is not None:
                    self.feeder.join()
        if self.error is not None:
            raise self.error
        nbytes = self.out.nbytes * interval.device_rows // interval.rows
        if nbytes:
            emit("round_device", nbytes=nbytes)
        if nbytes < self.out.nbytes:
            emit("round_cpu", nbytes=self.out.nbytes - nbytes)
        return self.out

    def _tiles(self, held: contextlib.ExitStack) -> Iterator[slice]:
        """Yield CPU tiles; before each one, ask for a lease while the task has none."""
        while True:
            if self.feeder is None and self.interval.offers():
                self._ask(held)
            tile = self.interval.take_tile()
            if tile is None:
                return
            yield tile

    def _ask(self, held: contextlib.ExitStack) -> None:
        """Start the feeder if a device is free now."""
        try:
            engine = held.enter_context(self.leases.lease(self.need, 0.0))
        except TimeoutError:
            return
        except DeviceMemoryError:
            self.interval.give_back()
            return
        self.feeder = threading.Thread(
            target=self._feed, args=(engine, working_for()), name="bigfft-feeder", daemon=True
        )
        self.feeder.start()

    def _feed(self, engine: Engine, work: tuple[str, int] | None) -> None:
        """Give portions to a device until there are none; errors are for the task's thread."""
        interval = self.interval
        with contextlib.nullcontext() if work is None else during(*work):
            try:
                prepared = engine.prepared(self.job, self.nbytes)
                if shared_dim(prepared.tiles) is None:
                    interval.give_back()
                    return
                read = _part_reader(self.incoming, prepared, engine, interval.dim, self.out)
                extent = prepared.tiles.plan.passes[0].tile[interval.dim]
                while (found := interval.take_portion()) is not None:
                    part = replace(found, width=min(found.width, extent))
                    source = read(slice(part.low, part.high))
                    engine.run_part(prepared, part, source, self.out, self.filters)
                    interval.land()
            except DeviceMemoryError:
                emit("fallback", nbytes=self.out.nbytes * interval.in_flight // interval.rows)
                interval.give_back()
            except BaseException as error:
                self.error = error
                interval.stop()


def share_block(
    job: Job,
    incoming: BlockView,
    library: FFTLibrary,
    filters: Mapping[int, Array],
    leases: Leases,
    nbytes: int | None,
    share: float,
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
    leases : Leases
        The devices.
    nbytes : int or None
        Bytes of a device that may be used.
    share : float
        The devices' share of the whole round by the forecast, between 0 and 1.

    Raises
    ------
    DeviceError
        If a device fails.
    """
    round_, before, limits = job.round, incoming.shape, leases.engines[0].limits
    after = math.prod(round_.target.shape(job.block)) * np.dtype(job.target).itemsize
    most = max(after, math.prod(before) * incoming.dtype.itemsize)
    dim = _free_dim(before, {round_.dim(step) for step in round_.steps})
    if most < 2 * limits.least or dim is None or not incoming.divides(dim):
        return None
    try:
        tiles = leases.engines[0].prepared(job, nbytes).tiles
    except DeviceMemoryError:
        return None
    if shared_dim(tiles) is None:
        return None
    rows, width = before[dim], tiles.plan.passes[0].tile[dim]
    row_nbytes, outside = -(-most // rows), math.prod(before[:dim])
    inner = math.prod(before[dim + 1 :]) * np.dtype(tiles.dtype).itemsize
    run = -(-limits.run_nbytes // inner) if outside > 1 else 1
    least = min(width, max(run, -(-LEAST_PORTION * limits.least // row_nbytes)))
    tile_nbytes = min(tile_bytes_of(library.beside), limits.least)
    tile = min(rows, max(1, -(-ROW_BYTES * outside // row_nbytes), tile_nbytes // row_nbytes))
    need = Need(tiles.plan.buffers, tiles.plan.buffer_nbytes, admitted(most))
    # Of the round, to rows of one task beside one lease.
    tasks = min(task_threads(), round_.source.blocks)
    leased = min(tasks, need.tasks * len(leases.engines))
    speed = share / max(1 - share, 1e-9) * tasks / leased
    interval = Interval(dim, rows, tile, width, least, speed)
    return _SharedBlock(job, incoming, filters, leases, nbytes, interval, need).run(library)


def _part_reader(
    incoming: BlockView, prepared: Prepared, engine: Engine, dim: int, out: Array
) -> Callable[[slice], Array | Composite]:
    """Return what makes a part of a block ready for a device, which reads it from its result.

    That is the block itself or shards of other blocks, if the device can read these, else memory
    into which some threads gather the part.
    """
    came, dtype = incoming.array, np.dtype(prepared.tiles.source)
    if came is None or not came.flags.c_contiguous:
        boxes = incoming.boxes(False)
        found = None if boxes is None else readable(prepared.tiles, boxes.around, engine.limits)
        if found is not None:
            return lambda _: found
    fill: Callable[[slice], None] | None = None
    if came is None:
        same = out.shape == incoming.shape and out.dtype == incoming.dtype
        came = out if same else lend(incoming.shape, incoming.dtype)
        fill = incoming.filling(dim, came)
    block, read = came, came if came.dtype == dtype else lend(came.shape, dtype)
    ahead, threads = (slice(None),) * dim, gathering_threads(task_threads())

    def bring(part: slice) -> None:
        if fill is not None:
            fill(part)
        if read is not block:
            read[(*ahead, part)] = block[(*ahead, part)]

    def gathered(part: slice) -> Array:
        if fill is None and read is block:
            return block
        width = -(-(part.stop - part.start) // threads)
        lows = range(part.start, part.stop, width)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda low: bring(slice(low, min(low + width, part.stop))), lows))
        return read

    return gathered


def shared_dim(tiles: BlockTiles) -> int | None:
    """Return the dimension along which a block can be shared; None where parts need each other."""
    return (
        _free_dim(tiles.round.source.shape(tiles.block), tiles.dims) if tiles.plan.divides else None
    )


def _free_dim(shape: tuple[int, ...], fixed: Collection[int]) -> int | None:
    """Return the outermost dimension that is not transformed."""
    return next((dim for dim, n in enumerate(shape) if dim not in fixed and n > 1), None)
