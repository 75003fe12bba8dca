"""Hybrid rounds: CPU and device work on the same block from its two ends.

A block is cut along its outermost untransformed dimension. The task's thread takes CPU tiles from
the front. Once the task has a lease, a feeder thread gives portions from the back to the device,
until both meet::

    rows   0 ..............................................................  n
           cpu cpu cpu cpu ->                    <- device device device device

The meeting point is forecast (Chen and Li 2013). The device takes half of its forecast share of the
remaining rows at a time, so its portions shrink towards the middle (guided self-scheduling,
Polychronopoulos and Kuck, IEEE Trans. Computers C-36, 1987). Neither side takes rows that the other
one would finish sooner.

A task requests a lease before each tile, so that devices help with the remaining blocks at the end
of a round. Once the CPU has done its share of a block, the task waits for a lease for as long as
that took, or as long as it takes if the share is set by hand. If a device runs out of memory, its
rows return to the CPU. Parts are gathered from read-only sources, so a failed part can be
gathered again.
"""

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import numpy as np

from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.events import during, emit, task_threads, working_for
from dask_bigfft.gpu.dispatch import Leases, Place, leases, takes
from dask_bigfft.gpu.engine import Engine, Part, readable
from dask_bigfft.gpu.tile_work import Array, BlockTiles, Job
from dask_bigfft.kernels.libraries import FFTLibrary
from dask_bigfft.kernels.loop import CPUExecutor
from dask_bigfft.kernels.segmented import SegmentedView
from dask_bigfft.kernels.views import BlockView
from dask_bigfft.memory import allocate
from dask_bigfft.planner.work_sharing import gathering_threads
from dask_bigfft.transforms.layout import ROW_BYTES, admitted, tile_bytes_of
from dask_bigfft.transforms.rounds import Round

#: Fraction of its forecast share of the remaining rows that a device takes at once.
PORTION = 0.5

#: Wait for a device in seconds, where only a device may take the rows.
FOREVER = 1e9

#: Smallest portion of a device, in units of `TileLimits.least`, since each is a separate call.
LEAST_PORTION = 4


@dataclass
class Interval:
    """Remaining rows of a block, with CPU tiles at the front and device portions at the back.

    One thread takes tiles, another one portions.

    Parameters
    ----------
    dim, rows : int
        Dimension along which the block is cut, and its length.
    tile : int
        Rows of a CPU tile.
    width, least : int
        Rows of a device's tile, and of its smallest portion.
    speed : float
        Forecast speed of the device relative to the CPU; 0 without a device.
    share : int
        Rows of the CPU's share.
    by_hand : bool
        Whether the share is set by hand: only a device takes the rows after it.

    Examples
    --------
    A tile of 64 rows does not fit into the 48 that are left, so the portion is narrower.

    >>> left = Interval(dim=0, rows=64, tile=16, width=64, least=64, speed=4.0, share=16)
    >>> left.take_tile()
    slice(0, 16, None)
    >>> left.take_portion()
    Part(dim=0, low=32, high=64, width=32)
    """

    dim: int
    rows: int
    tile: int
    width: int
    least: int
    speed: float
    share: int
    by_hand: bool = False

    def __post_init__(self) -> None:
        self.low = 0
        self.high = self.rows
        #: Rows on the device.
        self.in_flight = 0
        #: Rows done by the device.
        self.device_rows = 0
        self._lock = threading.Lock()

    def offers(self) -> bool:
        """Return True if there is a portion for a device."""
        with self._lock:
            return self._portion() is not None

    def take_tile(self) -> slice | None:
        """Return the next CPU tile; None when no rows are left."""
        with self._lock:
            end = self.share if self.by_hand and self.speed else self.high
            low = self.low
            self.low = min(self.low + self.tile, end)
            return slice(low, self.low) if low < self.low else None

    def take_portion(self) -> Part | None:
        """Return the next portion for the device; None at the end, also later."""
        with self._lock:
            portion = self._portion()
            if portion is None:
                self.speed = 0.0
                return None
            self.high = portion.low
            self.in_flight = portion.high - portion.low
            return portion

    def land(self) -> None:
        """Count the portion on the device as done."""
        with self._lock:
            self.device_rows += self.in_flight
            self.in_flight = 0

    def leave(self, to_cpu: bool) -> None:
        """End the device's share: return its portion to the CPU, or else drop all rows."""
        with self._lock:
            self.high = self.high + self.in_flight if to_cpu else self.low
            self.in_flight = 0
            self.speed = 0.0

    def _portion(self) -> Part | None:
        """Return the device's next portion, unless the CPU finishes all rows in that time.

        Tile widths are halved only, because each width needs its own FFT plans.
        """
        if self.by_hand:
            if not self.speed or self.share >= self.high:
                return None
            return Part(self.dim, self.share, self.high, self.width)
        rows_left = self.high - self.low
        width = self.width
        fair_rows = int(PORTION * rows_left * self.speed / (1 + self.speed))
        while width > rows_left or (width > fair_rows and width // 2 >= self.least):
            width //= 2
        if not width or width > self.speed * rows_left:
            return None
        rows = max(1, fair_rows // width) * width
        return Part(self.dim, self.high - rows, self.high, width)


def shared_with_device(
    job: Job,
    incoming: BlockView,
    library: FFTLibrary,
    filters: Mapping[int, Array],
    place: Place,
) -> Array | None:
    """Return a block after a round that the CPU and a device share.

    None if there is no device at all, if the block is too small or cannot be divided, or if no
    device has memory for a tile.

    Parameters
    ----------
    job : Job
        The round on the block, without windows.
    incoming : BlockView
        The block before the round.
    library : FFTLibrary
        FFT library of the CPU.
    filters : mapping of int to ndarray
        Spectra of convolutions' filters, by their numbers among the plan's operands.
    place : Place
        Device choice.

    Raises
    ------
    DeviceError
        If a device fails.
    """
    job = replace(job, settings=place.settings, inside=False)
    devices = leases()
    if devices is None:
        return None
    division = _divided(job, incoming, library, place, devices)
    if division is None:
        return None
    interval, admits = division
    out = allocate(job.round.target.shape(job.block), np.dtype(job.target))
    executor = CPUExecutor(
        job.round,
        job.block,
        incoming,
        out,
        library,
        filters,
        cut=(interval.dim, interval.tile),
    )
    with (
        contextlib.ExitStack() as lease_stack,
        ThreadPoolExecutor(1, "bigfft-feeder") as pool,
    ):
        feeder = _Feeder(job, incoming, filters, place, interval, out)
        try:
            executor.run(_cpu_tiles(feeder, devices, admits, lease_stack, pool))
        finally:
            interval.leave(to_cpu=False)
    device_nbytes = out.nbytes * interval.device_rows // interval.rows
    cpu_nbytes = out.nbytes - device_nbytes
    if device_nbytes:
        emit("round_device", nbytes=device_nbytes)
    if cpu_nbytes:
        emit("round_cpu", nbytes=cpu_nbytes)
    return out


@dataclass(frozen=True)
class _Feeder:
    """Portions of a block for a device.

    Parameters
    ----------
    job, incoming, filters, place
        See `shared_with_device`.
    interval : Interval
        Rows of the block.
    out : ndarray
        The block after the round.
    """

    job: Job
    incoming: BlockView
    filters: Mapping[int, Array]
    place: Place
    interval: Interval
    out: Array

    def feed(self, engine: Engine, part: Part | None, work: tuple[str, int] | None) -> None:
        """Run portions on a device, from the first one on, until none is left."""
        interval = self.interval
        nbytes = self.place.nbytes
        with contextlib.nullcontext() if work is None else during(*work):
            try:
                tiles = engine.tiles(self.job, engine.within(nbytes))
                source_of = _part_reader(self.incoming, tiles, engine, interval.dim, self.out)
                while part is not None:
                    source = source_of(part)
                    engine.run_part(tiles, part, source, self.out, self.filters, nbytes)
                    interval.land()
                    part = interval.take_portion()
            except DeviceMemoryError:
                emit("fallback", nbytes=self.out.nbytes * interval.in_flight // interval.rows)
                interval.leave(to_cpu=True)
            except BaseException:
                interval.leave(to_cpu=False)
                raise


def _cpu_tiles(
    feeder: _Feeder,
    devices: Leases,
    admits: int,
    lease_stack: contextlib.ExitStack,
    pool: ThreadPoolExecutor,
) -> Iterator[slice]:
    """Yield CPU tiles, and request a device before each one until the task has one.

    At the end wait for the device, which may return rows. Rows that the CPU must not take wait for
    a lease.
    """
    interval = feeder.interval
    feeding = None
    began = time.perf_counter()
    deadline = 0.0
    while True:
        if feeding is None and interval.offers():
            now = time.perf_counter()
            if interval.low >= interval.share and not deadline:
                # Wait once, as long as the CPU took so far, or without a limit.
                deadline = now + (FOREVER if interval.by_hand else now - began)
            with contextlib.suppress(TimeoutError):
                timeout = max(0.0, deadline - now)
                engine = lease_stack.enter_context(devices.lease(admits, timeout))
                portion = interval.take_portion()
                feeding = pool.submit(feeder.feed, engine, portion, working_for())
        tile = interval.take_tile()
        if tile is None and feeding is not None:
            feeding.result()
            tile = interval.take_tile()
        if tile is None:
            return
        yield tile


def _divided(
    job: Job,
    incoming: BlockView,
    library: FFTLibrary,
    place: Place,
    devices: Leases,
) -> tuple[Interval, int] | None:
    """Return the rows of a block to share and the tasks per device; None if it is not shared."""
    round_ = job.round
    engine = devices.engines[0]
    limits = engine.limits
    nbytes_before = math.prod(incoming.shape) * incoming.dtype.itemsize
    nbytes_after = math.prod(round_.target.shape(job.block)) * np.dtype(job.target).itemsize
    nbytes = max(nbytes_before, nbytes_after)
    by_hand = place.settings.cpu_share
    if nbytes < 2 * limits.least and by_hand is None:
        return None
    dim = _free_dim(round_, incoming.shape)
    if dim is None or not incoming.divides(dim) or not takes("gpu", nbytes, job.source, job.target):
        return None
    try:
        tiles = engine.tiles(job, engine.within(place.nbytes))
    except DeviceMemoryError:
        return None
    rows = incoming.shape[dim]
    row_nbytes = -(-nbytes // rows)
    outer = math.prod(incoming.shape[:dim])
    tile_nbytes = min(tile_bytes_of(library.beside), limits.least)
    interval = Interval(
        dim,
        rows,
        tile=_rows_of_cpu_tile(rows, row_nbytes, outer, tile_nbytes),
        width=max(tiles.extents(dim)),
        least=1,
        speed=1.0,
        share=0,
    )
    admits = admitted(nbytes)
    if by_hand is not None:
        share = max(1, round(by_hand * rows))
        return replace(interval, share=share, by_hand=True), admits
    # A device's smallest portion has enough bytes, and contiguous runs that are not narrow.
    least = -(-LEAST_PORTION * limits.least // row_nbytes)
    if outer > 1:
        inner_nbytes = math.prod(incoming.shape[dim + 1 :]) * np.dtype(job.dtype).itemsize
        least = max(least, -(-limits.run_nbytes // inner_nbytes))
    # The share of the round becomes the speed ratio of one lease to one task.
    tasks = min(task_threads(), round_.source.blocks)
    leased = min(tasks, admits * len(devices.engines))
    speed = place.share / max(1 - place.share, 1e-9) * tasks / leased
    interval = replace(
        interval,
        least=min(interval.width, max(1, least)),
        speed=speed,
        share=round((1 - place.share) * rows),
    )
    return interval, admits


def _rows_of_cpu_tile(
    rows: int,
    row_nbytes: int,
    outer: int,
    tile_nbytes: int,
) -> int:
    """Return the rows of a CPU tile of about `tile_nbytes`.

    A row has `outer` parts in memory, and those of a tile are at least `ROW_BYTES` long.
    """
    rows_of_long_parts = -(-ROW_BYTES * outer // row_nbytes)
    return min(rows, max(1, rows_of_long_parts, tile_nbytes // row_nbytes))


def _free_dim(round_: Round, shape: tuple[int, ...]) -> int | None:
    """Return the outermost dimension with several values that a round does not transform."""
    fixed = {round_.dim(step) for step in round_.steps}
    return next((dim for dim, n in enumerate(shape) if dim not in fixed and n > 1), None)


def _part_reader(
    incoming: BlockView,
    tiles: BlockTiles,
    engine: Engine,
    dim: int,
    out: Array,
) -> Callable[[Part], Array | SegmentedView]:
    """Return a function that returns the host memory from which a device reads a part.

    The device reads the block itself or shards of other blocks if it can. Otherwise some threads
    gather the part.
    """
    array = incoming.array
    dtype = np.dtype(tiles.job.source)
    is_contiguous = array is not None and array.flags.c_contiguous
    if array is not None and is_contiguous and array.dtype == dtype:
        return lambda _: array
    boxes = None if is_contiguous else incoming.boxes(False)
    shards = None if boxes is None else readable(tiles, boxes, engine.limits)
    if shards is not None:
        return lambda _: shards
    fits_out = out.shape == incoming.shape and out.dtype == dtype
    block = out if fits_out else allocate(incoming.shape, dtype)
    fill = incoming.filling(dim, block)
    threads = gathering_threads(task_threads())

    def gathered(part: Part) -> Array:
        """Gather a part by several threads, and return the block."""
        width = -(-(part.high - part.low) // threads)
        slices = [
            slice(low, min(low + width, part.high)) for low in range(part.low, part.high, width)
        ]
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(fill, slices))
        return block

    return gathered
