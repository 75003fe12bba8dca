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

Imports `decomposition`, `planner`, `kernels`, `memory`, `events`, `errors` and this room.
"""

import contextlib
import functools
import itertools
import math
import os
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol
from weakref import WeakValueDictionary

import numpy as np

from dask_bigfft.decomposition.factors import factorize, smooth_length
from dask_bigfft.decomposition.layout import AxisLayout, Digit, Layout, plain, whole
from dask_bigfft.decomposition.rounds import Round, transformed
from dask_bigfft.decomposition.steps import Step, axis_program
from dask_bigfft.errors import DeviceError, DeviceMemoryError
from dask_bigfft.events import emit
from dask_bigfft.gpu.tile_work import (
    FFT,
    Array,
    BlockTiles,
    Computation,
    Compute,
    DeviceArray,
    HostView,
    Job,
    Move,
    Multiply,
    Strided,
    TileWork,
    dense,
    runs,
)
from dask_bigfft.kernels.composite import Composite, Shards, Stacked
from dask_bigfft.kernels.twiddle import chirp_filter
from dask_bigfft.kernels.views import intervals
from dask_bigfft.memory import lend
from dask_bigfft.planner.tile_plan import (
    AS_IS,
    MOST_PRIME,
    DeviceSettings,
    TileLimits,
    aligned,
    apart,
    in_turn,
)

# --- what a device is -------------------------------------------------------------------------


class DeviceMemory(NamedTuple):
    """Bytes of a device's memory: in all, and free for us now."""

    total: int
    free: int


class Device(Protocol):
    """A device: streams and events, an arena that is reserved once, copies and computing.

    `cupy_gpu.CupyGPU` is one, `testing.simulated.SimulatedGPU` another. Operations are put into
    streams and return at once. Those of one stream run in order; those of different streams in any
    order that the events permit. Several threads call, one at a time, but for `ring_nbytes` and
    `synchronize`, which any thread may call at any time.
    """

    #: Name of the hardware.
    name: str

    @property
    def software(self) -> dict[str, str]:
        """What decides about the last bit of its results, by name."""

    @property
    def libraries(self) -> int:
        """Bytes that libraries take beside the arena: kernels, plans of most FFTs."""

    @property
    def tables(self) -> int:
        """Bytes that the plans made so far take beyond that, for lengths with large primes."""

    @property
    def staged(self) -> int:
        """How often anything has gone through the ring since the device was opened."""

    def memory(self) -> DeviceMemory:
        """Memory in all and free now. What `reserve` holds is not free."""

    def reserve(self, nbytes: int) -> None:
        """Reserve the arena, whose contents are undefined; the one before has been released."""

    def release(self) -> None:
        """Give the arena back once all that is in the streams is done."""

    def drop_caches(self) -> None:
        """Give back all memory that is cached (plans, pools); streams are idle."""

    def close(self) -> None:
        """Give everything back. The device is not used any more."""

    def stream(self, name: str) -> Any:
        """Make a stream; streams wait for each other only by events."""

    def event(self, name: str) -> Any:
        """Make an event, which stands for its latest mark in a stream."""

    def record(self, event: Any, stream: Any, stored: bool = True) -> None:
        """Put a mark into a stream.

        Who waits for it finds what was copied to the host there; unless `stored` is false: then
        only the device is done with what it was copied from.
        """

    def wait(self, stream: Any, event: Any) -> None:
        """Let what follows in a stream wait for the event's latest mark, if it has one."""

    def synchronize(self, event: Any) -> None:
        """Wait on the host for the event's latest mark, without the GIL."""

    def synchronize_all(self) -> None:
        """Wait on the host until all streams are idle."""

    def h2d(self, stream: Any, source: Array | Shards, target: DeviceArray) -> None:
        """Copy a host array of the same shape and dtype to the device, or shards of one.

        The host array may have any strides above 0 that fall from the first dimension to the last,
        and stays untouched until an event after it is reached. The target may be a part of a larger
        array; its offset is only aligned to its elements then. May wait for a buffer of the ring.
        """

    def d2h(self, stream: Any, source: DeviceArray, target: Array | Shards) -> None:
        """Copy to a host array; as `h2d`."""

    def clear(self, stream: Any, array: DeviceArray) -> None:
        """Put zeros into a dense array."""

    def work_nbytes(self, op: FFT) -> int:
        """Make the plan of an FFT, while streams are idle; return the bytes of its work area."""

    def compute(
        self,
        stream: Any,
        op: Compute,
        source: DeviceArray,
        target: DeviceArray,
        work: DeviceArray | None = None,
    ) -> None:
        """Do an operation; the work area of an FFT holds nothing before and after."""

    def stage(self, buffers: int | None, nbytes: int | None, part: int | None = None) -> None:
        """Set the ring: buffers each way, bytes of each, and how many are used at a time."""

    def ring_nbytes(self, host: Array | Composite) -> int:
        """Bytes of the ring, one way, if host memory travels through it; else 0."""

    def ahead(self, stream: Any, source: Array | Shards) -> None:
        """Begin to gather what `h2d` will copy later, in the order of these calls.

        The very same object is passed then. Its values are there when what the stream waits for now
        is reached, and nothing writes to it before it is copied.
        """

    def clock(self) -> float:
        """Seconds since some moment, as the host sees them."""


# --- tiles -----------------------------------------------------------------------------------

#: What is copied, and where; None: nothing is, and zeros are put there before what follows.
Copied = tuple[Array | Shards | None, DeviceArray]


@dataclass(frozen=True)
class Carve:
    """How the arena is divided: buffers of one size, then a work area for FFTs; its streams."""

    buffers: int
    buffer_nbytes: int
    work_nbytes: int
    streams: Literal["role", "piece"] = "role"

    @property
    def nbytes(self) -> int:
        """Bytes of the arena."""
        return self.buffers * self.buffer_nbytes + self.work_nbytes


class Tile:
    """A tile of a block: what is copied for it, and what is computed.

    Parameters
    ----------
    work : TileWork
        What is done with it.
    source, target : ndarray or Composite
        The block before and after.
    """

    def __init__(
        self, work: TileWork, source: Array | Composite, target: Array | Composite
    ) -> None:
        self.work, self._target = work, target
        self.announced = False
        #: What comes, and what is computed before all else.
        self.comes: list[Copied] = []
        self.before: list[Computation] = []
        used = 0
        for array, views in _copies(source, work.view, work.comes):
            padded = isinstance(source, Composite) and not source.full
            if padded and sum(view.nbytes for view in views) < array.nbytes:
                self.comes.append((None, array))
            for view in views:
                if not isinstance(view, Shards) or view.flipped is None:
                    self.comes.append((view, array))
                    continue
                assert work.scratch is not None
                for backwards, copy in _turned(view, array.dtype, used):
                    start = work.scratch.offset + used * backwards.itemsize
                    self.comes.append((backwards, DeviceArray(start, backwards.shape, array.dtype)))
                    self.before.append(Computation(copy, work.scratch, array))
                    used += backwards.size

    def goes(self) -> list[tuple[Array | Shards, DeviceArray]]:
        """Return what is copied back, and where it belongs."""
        found = _copies(self._target, self.work.stored_view, self.work.goes)
        return [(view, array) for array, views in found for view in views]


def _copies(
    block: Array | Composite, view: HostView, moves: Iterable[Move]
) -> Iterator[tuple[DeviceArray, Sequence[Array | Shards]]]:
    """Parts of a tile on the device, each with the views of host memory that make it up."""
    for move in moves:
        if isinstance(block, Composite):
            cuts = block.part(move.part)  # of the edges that its dimensions are made of
            assert cuts is not None
            shape = tuple(cut.stop - cut.start for cut in cuts)
            yield replace(move.array, shape=shape), list(block.shards(cuts))
        else:
            yield move.array, [view.part(block, move.part)]


def _turned(shards: Shards, dtype: str, used: int) -> Iterator[tuple[Array, Strided]]:
    """Views of what lies backwards, one after the other, and copies from there to their places.

    It belongs there conjugated.
    """
    strides = dense(tuple(cut.stop - cut.start for cut in shards.part), 1)
    for place, view in shards.views():
        ends, steps = list(place), list(strides)
        for e in shards.flipped or ():
            ends[e] += view.shape[e] - 1
            steps[e] = -steps[e]
        start = sum(i * step for i, step in zip(ends, strides, strict=True))
        by = Multiply(view.shape, dtype, conjugate=True)
        came = dense(view.shape, 1)
        yield view, Strided(view.shape, came, used, tuple(steps), start, dtype, by)
        used += view.size


class BlockRun:
    """A block that is taken through a round, now or soon.

    Parameters
    ----------
    tiles : BlockTiles
        What to do.
    arrays : sequence of ndarray
        The block (which may be a composite) before the first pass, and after each; where a pass
        writes what it read, the same array twice. They have to stay until all is done.
    filters : mapping of int to ndarray
        Spectrum of the convolution's filter, for the axes that need one.
    works : sequence of TileWork, optional
        The tiles of a block that is done in part, in one pass; by default all.
    """

    def __init__(
        self,
        tiles: BlockTiles,
        arrays: Sequence[Array | Composite],
        filters: Mapping[int, Array],
        works: Sequence[TileWork] | None = None,
    ) -> None:
        self._tiles, self.arrays, self.filters = tiles, arrays, filters
        self.settings = tiles.job.settings
        #: Bytes that come to the device, and that go.
        self.nbytes = sum(a.nbytes for a in arrays[:-1]), sum(a.nbytes for a in arrays[1:])
        self.passes = len(tiles.plan.passes)
        if works is not None:
            self.passes = 1
            self.nbytes = sum(w.source.nbytes for w in works), sum(w.result.nbytes for w in works)
        self._works = iter(tiles.works(0) if works is None else works)

    def _tile(self, work: TileWork, number: int) -> Tile:
        return Tile(work, self.arrays[number], self.arrays[number + 1])

    @cached_property
    def first(self) -> Tile:
        """The first tile."""
        return self._tile(next(self._works), 0)

    @property
    def opened(self) -> bool:
        """Whether the first tile has been looked at."""
        return "first" in self.__dict__

    def tiles(self, number: int) -> Iterator[Tile]:
        """Yield the tiles of a pass; those of the first one, once."""
        if number == 0:
            yield self.first
        for work in self._tiles.works(number) if number else self._works:
            yield self._tile(work, number)


class _Buffer:
    """A part of the arena that holds one tile at a time, and its streams and events."""

    def __init__(self, device: Device, offset: int, streams: tuple[Any, Any, Any]) -> None:
        self.offset = offset
        self.h2d, self.compute, self.d2h = streams
        self.loaded, self.done, self.free = map(device.event, ("loaded", "done", "free"))

    def array(self, array: DeviceArray) -> DeviceArray:
        """Return an array of a tile, in this buffer."""
        return replace(array, offset=array.offset + self.offset)


# --- the executor -----------------------------------------------------------------------------


class GPUExecutor:
    """Streams, arena and buffers of a device; used by one thread at a time.

    Tiles are loaded, transformed and stored at the same time, in k buffers.

    Its loop is the one of `kernels.loop`; calls only put work into streams. A buffer's tile is
    loaded, transformed and stored in that order, and the buffer is free again when its tile is
    stored::

        h2d      load 1 | load 2 | load 3 | load 4 (buffer of 1) ...
        compute           fft 1  | fft 2  | fft 3
        d2h                        store 1| store 2 | ...

    Or k streams, one for each buffer, in which all that happens to a tile stands in a row. FFTs
    share a work area, so that they follow one another all the same.

    With three buffers one tile comes, one is worked on and one goes. The number of buffers, not
    that of the tiles, says what a device holds beside a block in host memory, as in Lee and Kim's
    ring (Electronics 12, 2023).

    The executor outlives tasks: the first tiles of one block are loaded while the last ones of the
    block before are stored. Only a pass waits for the one before it on the same block, whose result
    it reads.

    Parameters
    ----------
    device : Device
        What does the work.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.h2d, self.compute, self.d2h = map(device.stream, ("h2d", "compute", "d2h"))
        self.carve = Carve(0, 0, 0)
        self.arena_nbytes = 0
        self._buffers: list[_Buffer] = []
        self._by_tile: list[Any] = []
        self._computed = device.event("computed")
        self._work = DeviceArray(0, (0,), "|u1")
        self._next = 0

    def run(self, block: BlockRun, following: Callable[[], BlockRun | None] = lambda: None) -> Any:
        """Put all tiles of a block into the streams; return the event that it is done.

        `following` returns the block that will be run next, if that is known by then: the device
        begins to gather its first tile before the last one of this block goes.
        """
        stored = self.device.event("stored")
        for number in range(block.passes):
            if number:
                self.fence(stored)
            for tile in self.take(block, number, following):
                buffer = self.acquire()
                self.load(buffer, tile, block.filters)
                self.transform(buffer, tile)
                self.store(buffer, tile)
            self.finish(stored)
        return stored

    def take(
        self, block: BlockRun, number: int, following: Callable[[], BlockRun | None]
    ) -> Iterator[Tile]:
        """Yield the tiles of a pass, each after the device was told of the one after it."""
        last = number == block.passes - 1
        for tile, coming in itertools.pairwise(itertools.chain(block.tiles(number), (None,))):
            self._announce(tile)
            if coming is None and last and (after := following()) is not None:
                coming = after.first
            if coming is not None:
                self._announce(coming)
            assert tile is not None
            yield tile

    def _announce(self, tile: Tile | None) -> None:
        """Let the device begin to stage a tile, if it has not been told of it."""
        if tile is None or tile.announced:
            return
        for view, _ in tile.comes:
            if view is not None:
                self.device.ahead(self._buffers[0].h2d, view)
        tile.announced = True

    def acquire(self) -> _Buffer:
        """Return the next buffer, to which nothing comes before its last tile has gone."""
        buffer = self._buffers[self._next % len(self._buffers)]
        self._next += 1
        self.device.wait(buffer.h2d, buffer.free)
        return buffer

    def load(self, buffer: _Buffer, tile: Tile, filters: Mapping[int, Array]) -> None:
        """Copy a tile to the device, and the parts of filters that it needs."""
        device, comes = self.device, list(tile.comes)
        for found in tile.work.filters:
            spectrum = filters[found.axis].reshape(found.shape)[found.part]
            comes.append((spectrum.reshape(found.array.shape), found.array))
        for view, array in comes:
            if view is None:
                device.clear(buffer.h2d, buffer.array(array))
            else:
                device.h2d(buffer.h2d, view, buffer.array(array))
        device.record(buffer.loaded, buffer.h2d)

    def transform(self, buffer: _Buffer, tile: Tile) -> None:
        """Compute what is done with a tile, when all of it is there."""
        device, by_tile = self.device, self.carve.streams == "piece"
        device.wait(buffer.compute, buffer.loaded)
        if by_tile:
            device.wait(buffer.compute, self._computed)
        for found in (*tile.before, *tile.work.computations):
            ends = buffer.array(found.source), buffer.array(found.target)
            device.compute(buffer.compute, found.op, *ends, self._work)
        if by_tile:
            device.record(self._computed, buffer.compute)
        device.record(buffer.done, buffer.compute)

    def store(self, buffer: _Buffer, tile: Tile) -> None:
        """Copy a tile back, and mark that its buffer is free."""
        self.device.wait(buffer.d2h, buffer.done)
        for view, array in tile.goes():
            self.device.d2h(buffer.d2h, buffer.array(array), view)
        self.device.record(buffer.free, buffer.d2h, stored=buffer.d2h is buffer.h2d)

    def fence(self, event: Any) -> None:
        """Let no tile come from now on before an event is reached."""
        for buffer in self._buffers[: 1 if self.carve.streams == "role" else None]:
            self.device.wait(buffer.h2d, event)

    def finish(self, event: Any) -> None:
        """Record what is reached when all that was submitted is stored."""
        if self.carve.streams == "piece":
            for buffer in self._buffers:
                self.device.wait(self.d2h, buffer.free)
        self.device.record(event, self.d2h)

    def prepare(self, carve: Carve, limit: int) -> None:
        """Divide the arena, if it is divided otherwise.

        It is reserved again where it is too small, or larger than `limit` bytes.

        Raises
        ------
        DeviceMemoryError
            If the device refuses another arena; there is none then.
        """
        fits = carve.nbytes <= self.arena_nbytes <= limit
        if fits and carve == self.carve:
            return
        cleared = self.device.event("cleared")
        if not fits:
            self.release()
            self.device.reserve(carve.nbytes)
            self.arena_nbytes = carve.nbytes
        else:  # tiles of another size may still be where buffers begin now
            self.finish(cleared)
        self.carve = carve
        if carve.streams == "piece":
            while len(self._by_tile) < carve.buffers:
                self._by_tile.append(self.device.stream("piece"))
        self._buffers = [
            _Buffer(
                self.device,
                i * carve.buffer_nbytes,
                (self._by_tile[i],) * 3
                if carve.streams == "piece"
                else (self.h2d, self.compute, self.d2h),
            )
            for i in range(carve.buffers)
        ]
        self.fence(cleared)
        offset = carve.buffers * carve.buffer_nbytes
        self._work = DeviceArray(offset, (carve.work_nbytes,), "|u1")

    def release(self) -> None:
        """Give the arena back when everything is done."""
        if self.arena_nbytes:
            self.device.synchronize_all()
            self.device.release()
        self.arena_nbytes, self.carve, self._buffers = 0, Carve(0, 0, 0), []


#: Shards of other blocks are read in place if the rows of a tile are this part of
#: `run_nbytes` in the mean (1 KiB: a kernel reads them at the speed of the bus): below it, threads
#: gather the block faster.
NARROWEST = 1 / 8

#: Elements that a thread converts at least.
SHARED_ELEMENTS = 1 << 18

#: Values of a filter that are made at a time.
FILTER_VALUES = 1 << 20


# --- where the block is ----------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """What of a block is taken through a round: from where to where along a dimension.

    ``width`` is that of a tile.
    """

    dim: int
    low: int
    high: int
    width: int


class Source:
    """A block that is had when it is needed, and again when it was overwritten.

    Parameters
    ----------
    gather : callable, optional
        Returns the block, contiguous; without it, only its shards are had.
    again : bool
        Whether it may be called a second time.
    borrowed : bool
        Whether the block is somebody else's, and only to be read.
    composite : Composite, optional
        The block as shards of others, which are read in its place where their rows are wide.
    inside : bool
        Whether the shards are overwritten, and nothing else is done with the block.
    stacked : Stacked, optional
        How the block had better lie in memory of its own in the end.
    """

    def __init__(
        self,
        gather: Callable[[], Array] | None,
        *,
        again: bool = True,
        borrowed: bool = False,
        composite: Composite | None = None,
        inside: bool = False,
        stacked: Stacked | None = None,
    ) -> None:
        self.gather, self.again, self.borrowed = gather, again or borrowed, borrowed
        self.composite, self.inside, self.stacked = composite, inside, stacked
        self.values: Array | None = None
        self.gathered = False

    def shards(self, tiles: BlockTiles, limits: TileLimits) -> Composite | None:
        """The block as shards that the device reads, and where it is asked writes, in place."""
        same = tiles.job.source == tiles.job.target
        fits = same and not any(one.reorders for one in tiles.plan.passes)
        if self.composite is None or (self.inside and not fits):
            return None
        return readable(tiles, self.composite, limits)

    def arrays(self, tiles: BlockTiles, limits: TileLimits) -> list[Array | Composite]:
        """The block before the first pass and after each, the same one where it can be.

        What is borrowed is only read. What is `stacked` is so if it gets memory of its own.
        """
        shards = self.shards(tiles, limits)
        arrays: list[Array | Composite] = [self.get() if shards is None else shards]
        self.gathered = self.gathered or self.inside
        only_read = self.borrowed if shards is None else not self.inside
        for number, one in enumerate(tiles.plan.passes):
            dtype, last = tiles.written(number), number == len(tiles.plan.passes) - 1
            shape, before = tiles.shape(number), arrays[-1]
            same = math.prod(shape) == math.prod(before.shape) and dtype == before.dtype.str
            if same and not tiles.moves(number) and not (only_read and number == 0):
                arrays.append(before)
                continue
            as_read = one.swap is None and not one.reorders and one.after == shape
            if self.stacked is not None and as_read and last:
                arrays.append(self.stacked.lent(shape, np.dtype(dtype)))
            else:
                arrays.append(lend(shape, np.dtype(dtype)))
        return arrays

    def done(self, last: Array | Composite, shape: tuple[int, ...]) -> Array:
        """The block after a round, from what the last of `arrays` is then."""
        if not isinstance(last, Composite):
            return last.reshape(shape)
        if self.inside or self.stacked is None:
            return np.empty(0, last.dtype)  # it is where it was
        return self.stacked.whole(last)

    def get(self) -> Array:
        """The block."""
        if self.values is None:
            if self.gather is None:
                raise DeviceMemoryError("no tiles fit whose shards are read in place")
            self.values, self.gathered = self.gather(), True
        return self.values

    def converted(self, dtype: str) -> "Source":
        """The same block in another dtype, made of it when it is needed."""

        def gather() -> Array:
            values = self.get()
            self.let_go()
            return converted(values, np.dtype(dtype), os.cpu_count() or 1)

        return Source(gather, again=self.again)

    def let_go(self) -> None:
        """From here on the block may be overwritten."""
        self.values = None

    @property
    def lost(self) -> bool:
        """Whether the block was overwritten and cannot be had again."""
        return self.gathered and self.values is None and not self.again


def readable(tiles: BlockTiles, composite: Composite, limits: TileLimits) -> Composite | None:
    """A composite in the digits of the first pass; None where that had better not read it."""
    if composite.dtype.str != tiles.job.source:
        return None
    if composite.image and not tiles.plan.passes[0].mirrored:
        return None
    factors: list[tuple[int, ...]] = [(n,) for n in composite.shape]
    for dim, digits in zip(tiles.dims, tiles.plan.digits, strict=True):
        factors[dim] = digits
        if len(digits) > 1 and math.prod(digits) != composite.shape[dim]:
            return None  # half a spectrum
    found = composite.split(tuple(factors))
    if found is None or not found.falls:
        return None
    part = found.part(tuple(slice(0, n) for n in tiles.plan.passes[0].tile))
    if part is None:
        return None
    places = dense(tuple(cut.stop - cut.start for cut in part), found.dtype.itemsize)
    nbytes = rows = 0
    for shards in found.shards(part):
        nbytes += shards.nbytes
        width, _ = runs(shards.shape, shards.strides, found.dtype.itemsize, places)
        rows += shards.nbytes // max(1, width)
    return found if nbytes >= NARROWEST * limits.run_nbytes * rows else None


def converted(values: Array, dtype: np.dtype[Any], threads: int) -> Array:
    """Return the values in another dtype, by some threads; the array itself if it has it."""
    if values.dtype == dtype:
        return values
    out = lend(values.shape, dtype)
    came, goes = values.reshape(-1), out.reshape(-1)
    width = max(SHARED_ELEMENTS, -(-came.size // threads))
    cut = list(intervals(came.size, width))
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda part: np.copyto(goes[part], came[part]), cut))
    return out


# --- lengths with nothing to split -----------------------------------------------------------
#
# A block that holds a whole axis is transformed by an FFT of just its length, whatever that is.
# Where that is larger than the GPU and has no digits that are not, Bluestein's algorithm takes its
# place: FFTs of a smooth length of at least twice as much, which fall apart. The block itself has
# only the first values of those digits, and only the first of the result go back::
#
#     block of 11 values        12 * 2 digits of 24 on the GPU, in three passes
#       x0 x1 ... x10     ->      x0  x1
#                                 ..  ..
#                                 x10  0       chirp, FFT, filter, FFT back, chirp
#
# The spectrum of the filter is made in the same way, from a chirp of the smooth length.
#
# A digit of a cut axis is no different: its own index is that of the convolution, and the digits
# that are still to come make the twiddle that follows. Half a spectrum is not completed. Real
# values are
#
#     x[n] = Re(X[0] + 2 X[1] w^n + 2 X[2] w^2n + ...),    w = exp(2i pi / N),
#
# with no factor 2 for X[N/2], so that half as many values come, and the real parts go.


def is_hard(job: Job) -> bool:
    """Whether some length of a job has a prime factor for which FFT libraries have no kernel."""
    return any(max(factorize(step.length), default=1) > MOST_PRIME for step in job.round.steps)


def convolving(job: Job) -> Job | None:
    """Return a job that does the same as a convolution; None where there is no such.

    What is a convolution already, with a filter of an axis, is none here.
    """
    if len(job.round.steps) != 1 or not is_hard(job):
        return None
    (step,) = job.round.steps
    if any(found is not None for found in (step.convolve, step.chirp_in, step.chirp_out)):
        return None
    n, padded = step.length, smooth_length(2 * step.length - 1)
    (found,) = axis_program(step.axis, n, (padded,), sign=step.sign, bluestein=True).steps
    chirped = replace(
        found,
        sign=-step.sign,  # there; back with the sign of the step, which is that of its twiddle
        source=Digit(0, 1, step.source.size, padded),
        target=Digit(found.target.stage, 1, step.target.size, padded),
        divisor=step.divisor,
        twiddle=step.twiddle,
    )
    axes = list(job.round.source.axes)
    axes[step.axis] = _beside(axes[step.axis], step, chirped)
    layout = Layout(tuple(axes))
    round_ = Round((chirped,), layout, transformed(layout, (chirped,)))
    source = max(job.source, job.target, key=lambda name: np.dtype(name).kind == "c")
    return Job(round_, job.block, source, job.target, settings=job.settings, convolves=True)


def _beside(axis: AxisLayout, step: Step, chirped: Step) -> AxisLayout:
    """An axis in which the digit of a step is one of its own, with as many stages as it needs.

    The digits that the twiddle is of are of the last stage but one, as those of all twiddles are.
    """

    def staged(digit: Digit) -> Digit:
        stage = chirped.target.stage
        return replace(digit, stage=stage - 1 if digit.stage == step.source.stage else stage + 1)

    groups = []
    for group in axis.groups:
        own = group.digits == (step.source,)
        digits = tuple(map(staged, group.digits))
        groups.append(whole(chirped.source) if own else replace(group, digits=digits))
    return AxisLayout(tuple(groups))


def filter_job(job: Job) -> Job:
    """The job that makes the spectrum of the filter of a job that convolves."""
    (step,) = job.round.steps
    layout = Layout((plain(step.length, (step.length,)),))
    (own,) = axis_program(0, step.length, (step.length,)).steps
    round_ = Round((own,), layout, transformed(layout, (own,)))
    return Job(round_, (0,), job.source, job.source, settings=job.settings)


def filter_of(job: Job) -> Array:
    """The filter of a job that convolves."""
    (step,) = job.round.steps
    assert step.convolve is not None
    found = lend((step.length,), np.dtype(job.source))
    for part in intervals(step.length, FILTER_VALUES):
        places = np.arange(part.start, part.stop, dtype=np.int64)
        found[part] = chirp_filter(
            places, step.length, step.convolve.length, step.convolve.sign, found.dtype
        )
    return found


#: Times that a block is tried: as planned, with all caches given back, and with smaller tiles.
ATTEMPTS = 6

#: Part of a device's free memory that is used where no limit is given.
MEMORY_SHARE = 0.8

#: FFTs whose plans are cached at most, but for those of one block; a round needs a handful.
MAX_FFTS = 256

#: Sizes of the work area that are tried, in units of a buffer, until one is found to be enough.
WORK_AREAS = (0, 1, 2, 4)


# --- the engine -------------------------------------------------------------------------------


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
        self._lock = threading.RLock()
        self._works: dict[FFT, int] = {}
        #: Bytes that FFT plans take beyond what is set aside, as of the last one that was made.
        self._tables = 0
        self._staged = AS_IS.ring
        self._warned: set[int] = set()
        #: Blocks that are ready to be run, in the order in which they are; the first one is run.
        self._ready_blocks: deque[BlockRun] = deque()
        self._turns = threading.Condition()
        #: Spectra of filters: blocks that run at the same time share them, and nobody caches one.
        self._spectra: WeakValueDictionary[object, Array] = WeakValueDictionary()
        self._making = threading.Lock()
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
            made = functools.partial(self.run, link, source, filters, nbytes=nbytes)
            source = Source(made, again=source.again)
        job, found = last, dict(filters or {})
        if job.convolves:
            found = {job.round.steps[0].axis: self._spectrum(job, nbytes)}
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

    def _spectrum(self, job: Job, nbytes: int | None) -> Array:
        """The spectrum that a job convolves with; one thread makes it, others wait for that.

        It is as large as a block or larger, so it goes when the last block that needs it is done.
        """
        (step,) = job.round.steps
        key = step.length, step.convolve, job.source
        with self._making:
            found = self._spectra.get(key)
            if found is None:
                source = Source(lambda: filter_of(job))
                self._spectra[key] = found = self.run(filter_job(job), source, nbytes=nbytes)
        return found

    def _attempt(
        self, job: Job, source: Source, filters: Mapping[int, Array], limits: TileLimits
    ) -> Array:
        """One try: gather without the lock, submit with it, wait without it."""
        tiles, carve, arrays = self._placed(job, limits, source)
        block = BlockRun(tiles, arrays, filters)
        self._submit(block, carve, tiles.ffts, limits.nbytes, source.let_go)
        return source.done(arrays[-1], tiles.shape(len(arrays) - 2))

    def run_part(
        self,
        tiles: BlockTiles,
        part: Part,
        source: Array | Composite,
        target: Array,
        filters: Mapping[int, Array] | None = None,
        nbytes: int | None = None,
    ) -> None:
        """Take a part of a block through a round, from its place in one array to that in another.

        Parameters
        ----------
        tiles : BlockTiles
            Of the block; they divide.
        part : Part
            Which part, and in what tiles.
        source : ndarray or Composite
            The block before the round; what lies outside of the part is not read.
        target : ndarray
            The block after the round, may be the same array.
        filters : mapping of int to ndarray, optional
            Spectrum of the convolution's filter, for the axes that need one.
        nbytes : int, optional
            Bytes of the device that may be used, if fewer than the engine's.

        Raises
        ------
        DeviceMemoryError
            If the device has no memory left. The part may be overwritten then; all caches have been
            given back.
        """
        works = list(tiles.within(part.dim, part.low, part.high, part.width))
        ffts = {found.op for w in works for found in w.computations if isinstance(found.op, FFT)}
        block = BlockRun(tiles, (source, target), filters or {}, works)
        try:
            self._submit(block, _carved(tiles, 0), tiles.ffts | ffts, self.within(nbytes).nbytes)
        except DeviceMemoryError:
            self.recover()
            raise

    def _submit(
        self,
        block: BlockRun,
        carve: Carve,
        ffts: Set[FFT],
        nbytes: int,
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        """Run a block when all that were ready before have been submitted; wait until it is done.

        `begin` is called before anything is overwritten.
        """
        with self._in_turn(block), self._lock:
            if self._closed:
                raise DeviceError("the engine of this device was closed")
            self._use(1)
            try:
                self._stage(block.settings)
                self._arrange(carve, ffts, nbytes)
                held = self.executor.arena_nbytes + self.device.libraries + self._tables
                begin()
                end = self.executor.run(block, self._following)
            except BaseException:
                self.executor.release()  # nothing may go on writing into memory we let go
                self._use(-1)
                raise
        self._reached(end)
        emit("device_memory", device=self.number, nbytes=held)
        emit("h2d", nbytes=block.nbytes[0])
        emit("d2h", nbytes=block.nbytes[1])

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
        parts = job.links(apart(job.round))
        if job.convolves or (len(parts) == 1 and not is_hard(job)) or self._fits(job, limits):
            return (job,)
        if not is_hard(job):
            return parts
        found = list[Job]()
        for part in parts:
            steps = [(step,) for step in part.round.steps]
            one_by_one = part.links(in_turn(part.round, steps))
            for one in (part,) if self._fits(part, limits) else one_by_one:
                smooth = None if self._fits(one, limits) else convolving(one)
                found.append(smooth or one)
        return tuple(found)

    def _fits(self, job: Job, limits: TileLimits) -> bool:
        """Whether there are tiles of a job that fit the device."""
        try:
            if is_hard(job):
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
        tiles, carve = self.tiles(job, limits)
        arrays = source.arrays(tiles, limits)
        if self._staged != job.settings.ring:
            with self._lock:
                self._stage(job.settings)
        ring = max(map(self.device.ring_nbytes, arrays))
        if ring:
            within = limits.staged(ring, job.settings)
            with contextlib.suppress(DeviceMemoryError):
                other, needed = self.tiles(job, within)
                if other.plan != tiles.plan:
                    arrays.clear()  # before others are allocated in their place
                    return other, needed, source.arrays(other, within)
        # Others may be tiles that could not be written where they were.
        return tiles, carve, arrays or source.arrays(tiles, limits)

    def tiles(self, job: Job, limits: TileLimits | None = None) -> tuple[BlockTiles, Carve]:
        """Return tiles and a work area that fit together; makes the plans of all FFTs."""
        limits = self.limits if limits is None else limits
        for work in WORK_AREAS:
            tiles, carve = self._cut(job, limits, work)
            if self._tables and carve.nbytes + self._tables > limits.nbytes:
                with self._lock:
                    self._drop()  # plans of other rounds
                    tiles, carve = self._cut(job, limits, work)
                    left = limits.nbytes - self._tables
                    if 0 < left < carve.nbytes:
                        self._drop()
                        tiles, carve = self._cut(job, replace(limits, nbytes=left), work)
            if carve.nbytes + self._tables <= limits.nbytes:
                return tiles, carve
        raise DeviceMemoryError(
            f"FFTs need a work area of {carve.work_nbytes} bytes beside {carve.buffers} tiles of "
            f"{carve.buffer_nbytes}, more than {limits.nbytes} together"
        )

    def _cut(self, job: Job, limits: TileLimits, work: int) -> tuple[BlockTiles, Carve]:
        """Tiles that go with a work area of some size, and the arena that they need."""
        tiles = job.tiles(limits, work)
        return tiles, _carved(tiles, self._area(tiles.ffts))

    def _stage(self, settings: DeviceSettings) -> None:
        """Tell the device what ring is wanted, if that is another one than before."""
        if settings.ring != self._staged:
            self.device.stage(*settings.ring)
            self._staged = settings.ring

    def _arrange(self, carve: Carve, ffts: Set[FFT], nbytes: int) -> None:
        """Make plans and an arena that take no more than some bytes together.

        They did when the tiles were cut; but since then other rounds' plans may have come.
        """
        work = aligned(self._area(ffts))
        if self._tables and carve.nbytes + self._tables > nbytes:
            self._drop()
            self._area(ffts)
        carve = replace(carve, work_nbytes=max(carve.work_nbytes, work))
        self.executor.prepare(carve, max(carve.nbytes, nbytes - self._tables))

    def _area(self, ffts: Set[FFT]) -> int:
        """Bytes of the work area that FFTs need, whose plans are there from now on.

        A plan may only be made while nothing runs; what it takes is not known before.
        """
        known = [self._works.get(op) for op in ffts]
        if None in known:
            with self._lock:
                missing = ffts - self._works.keys()
                if missing and len(self._works) + len(missing) > MAX_FFTS:
                    self._drop()
                for op in ffts - self._works.keys():
                    self.executor.release()
                    self.device.synchronize_all()
                    needed = self.device.work_nbytes(op)
                    self._tables = self.device.tables
                    self._works[op] = needed
                known = [self._works[op] for op in ffts]
        return max((n for n in known if n is not None), default=0)

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


def _carved(tiles: BlockTiles, work_nbytes: int) -> Carve:
    """How the arena is cut for tiles, given the work area that their FFTs need."""
    plan, streams = tiles.plan, tiles.job.settings.streams or "role"
    return Carve(plan.buffers, plan.buffer_nbytes, aligned(work_nbytes), streams)
