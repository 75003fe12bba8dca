"""The executor of a device: loads, transforms and stores the tiles of blocks, all at the same time.

Its loop is the one of `kernels.loop`; calls only put work into the streams of a `Device`, which
events order. The executor outlives tasks: the first tiles of one block are loaded while the last
ones of the block before are stored.

Imports `kernels` and this room.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

from dask_bigfft.gpu.operations import FFT, Compute, DeviceArray, Multiply, Strided, dense
from dask_bigfft.gpu.tile_work import Array, BlockTiles, Computation, HostView, Move, TileWork
from dask_bigfft.kernels.composite import Composite, Shards

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

    #: Bytes that libraries take beside the arena: kernels, plans of most FFTs.
    libraries: int

    @property
    def software(self) -> dict[str, str]:
        """Versions that decide about the last bit of its results, by name."""

    @property
    def tables(self) -> int:
        """Bytes that the plans made so far take beyond that, for lengths with large primes."""

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

#: A block in host memory.
HostBlock = Array | Composite


@dataclass(frozen=True)
class Carve:
    """Division of the arena: buffers of one size, then a work area for FFTs; and the streams."""

    buffers: int
    buffer_nbytes: int
    work_nbytes: int
    streams: Literal["role", "tile"] = "role"

    @property
    def nbytes(self) -> int:
        """Bytes of the arena."""
        return self.buffers * self.buffer_nbytes + self.work_nbytes


class Tile:
    """A tile of a block: its copies, and its computations.

    Parameters
    ----------
    work : TileWork
        What is done with it.
    source, target : ndarray or Composite
        The block before and after.
    """

    def __init__(self, work: TileWork, source: HostBlock, target: HostBlock) -> None:
        self.work, self._target, self.announced = work, target, False
        #: Copies to the device, where None stands for zeros, and computations before all others.
        self.comes: list[tuple[Array | Shards | None, DeviceArray]] = []
        self.before: list[Computation] = []
        used, padded = 0, isinstance(source, Composite) and not source.full
        for array, views in _copies(source, work.view, work.comes):
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

    def goes(self) -> Iterator[tuple[Array | Shards, DeviceArray]]:
        """Yield what is copied back, and where it belongs."""
        for array, views in _copies(self._target, self.work.stored_view, self.work.goes):
            for view in views:
                yield view, array


def _copies(
    block: HostBlock, view: HostView, moves: Iterable[Move]
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
        by, came = Multiply(view.shape, dtype, conjugate=True), dense(view.shape, 1)
        yield view, Strided(view.shape, came, used, tuple(steps), start, dtype, by)
        used += view.size


@dataclass(eq=False)
class BlockRun:
    """A block that is taken through a round, now or soon.

    Parameters
    ----------
    block : BlockTiles
        What to do.
    arrays : sequence of ndarray
        The block (which may be a composite) before the first pass, and after each; where a pass
        writes what it read, the same array twice. They have to stay until all is done.
    filters : mapping of int to ndarray
        Spectrum of the convolution's filter, for the axes that need one.
    part : sequence of TileWork, optional
        The tiles of a block that is done in part, in one pass; by default all.
    """

    block: BlockTiles
    arrays: Sequence[HostBlock]
    filters: Mapping[int, Array]
    part: Sequence[TileWork] | None = None

    def __post_init__(self) -> None:
        self.plan, self.ffts = self.block.plan, self.block.ffts
        #: Bytes that come to the device, and that go.
        sizes, works = [array.nbytes for array in self.arrays], self.part
        self.nbytes = sum(sizes[:-1]), sum(sizes[1:])
        if works is None:
            self.works = list(map(self.block.works, range(len(self.plan.passes))))
        else:
            self.works = [iter(works)]
            self.nbytes = sum(w.source.nbytes for w in works), sum(w.result.nbytes for w in works)
            ops = (found.op for work in works for found in work.computations)
            self.ffts |= {op for op in ops if isinstance(op, FFT)}

    @cached_property
    def first(self) -> Tile:
        """The first tile."""
        return Tile(next(self.works[0]), *self.arrays[:2])

    def tiles(self, number: int) -> Iterator[Tile]:
        """Yield the tiles of a pass, once."""
        if number == 0:
            yield self.first
        for work in self.works[number]:
            yield Tile(work, *self.arrays[number : number + 2])


class _Buffer:
    """A part of the arena that holds one tile at a time, its streams and its events."""

    def __init__(self, device: Device, offset: int, streams: Sequence[Any]) -> None:
        self.offset = offset
        self.h2d, self.compute, self.d2h = streams
        self.loaded, self.done, self.free = map(device.event, ("loaded", "done", "free"))

    def array(self, array: DeviceArray) -> DeviceArray:
        """Return an array of a tile, in this buffer."""
        return replace(array, offset=array.offset + self.offset)


# --- the executor -----------------------------------------------------------------------------


class GPUExecutor:
    """Streams, arena and buffers of a device; used by one thread at a time.

    A buffer's tile is loaded, transformed and stored in that order, and the buffer is free again
    when its tile is stored::

        h2d      load 1 | load 2 | load 3 | load 4 (buffer of 1) ...
        compute           fft 1  | fft 2  | fft 3
        d2h                        store 1| store 2 | ...

    With three buffers one tile comes, one is worked on and one goes. The number of buffers, not
    that of the tiles, says what a device holds beside a block in host memory, as in Lee and Kim's
    ring (Electronics 12, 2023).

    With streams for tiles, each buffer has one stream for all three steps, as in Gu, Siegel and Li
    (2011). FFTs share a work area, so they still run one after another.

    Only a pass waits for the one before it on the same block, whose result it reads.

    Parameters
    ----------
    device : Device
        What does the work.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.h2d, self.compute, self.d2h = map(device.stream, ("h2d", "compute", "d2h"))
        self.arena_nbytes, self.carve = 0, Carve(0, 0, 0)
        self._buffers: list[_Buffer] = []
        self._by_tile: list[Any] = []
        self._computed = device.event("computed")

    def run(self, block: BlockRun, following: Callable[[], BlockRun | None] = lambda: None) -> Any:
        """Put all tiles of a block into the streams; return the event that it is done.

        `following` returns the block that will be run next, if that is known by then: the device
        begins to gather its first tile before the last one of this block goes.
        """
        stored = self.device.event("stored")
        for number in range(len(block.works)):
            if number:
                self.fence(stored)
            for tile in self.take(block, number, following):
                buffer = next(self._next)
                self.device.wait(buffer.h2d, buffer.free)  # until its last tile has gone
                self.load(buffer, tile, block.filters)
                self.transform(buffer, tile)
                self.store(buffer, tile)
            self.finish(stored)
        return stored

    def take(
        self, block: BlockRun, number: int, following: Callable[[], BlockRun | None]
    ) -> Iterator[Tile]:
        """Yield the tiles of a pass, each after the device was told of the one after it."""
        last = number == len(block.works) - 1
        for tile, coming in itertools.pairwise(itertools.chain(block.tiles(number), (None,))):
            if coming is None and last and (after := following()) is not None:
                coming = after.first
            assert tile is not None
            self._announce(tile)
            if coming is not None:
                self._announce(coming)
            yield tile

    def _announce(self, tile: Tile) -> None:
        """Let the device begin to stage a tile, if it has not been told of it."""
        if not tile.announced:
            for view, _ in tile.comes:
                if view is not None:
                    self.device.ahead(self._buffers[0].h2d, view)
            tile.announced = True

    def load(self, buffer: _Buffer, tile: Tile, filters: Mapping[int, Array]) -> None:
        """Copy a tile to the device, and the parts of filters that it needs."""
        comes = list(tile.comes)
        for found in tile.work.filters:
            spectrum = filters[found.axis].reshape(found.shape)[found.part]
            comes.append((spectrum.reshape(found.array.shape), found.array))
        for view, array in comes:
            if view is None:
                self.device.clear(buffer.h2d, buffer.array(array))
            else:
                self.device.h2d(buffer.h2d, view, buffer.array(array))
        self.device.record(buffer.loaded, buffer.h2d)

    def transform(self, buffer: _Buffer, tile: Tile) -> None:
        """Compute what is done with a tile, when all of it is there."""
        device, stream = self.device, buffer.compute
        device.wait(stream, buffer.loaded)
        if self.carve.streams == "tile":
            device.wait(stream, self._computed)
        for found in (*tile.before, *tile.work.computations):
            ends = buffer.array(found.source), buffer.array(found.target)
            device.compute(stream, found.op, *ends, self._work)
        device.record(buffer.done, stream)
        if self.carve.streams == "tile":
            device.record(self._computed, stream)

    def store(self, buffer: _Buffer, tile: Tile) -> None:
        """Copy a tile back, and mark that its buffer is free."""
        self.device.wait(buffer.d2h, buffer.done)
        for view, array in tile.goes():
            self.device.d2h(buffer.d2h, buffer.array(array), view)
        self.device.record(buffer.free, buffer.d2h, stored=self.carve.streams == "tile")

    def fence(self, event: Any) -> None:
        """Let no tile come from now on before an event is reached."""
        for buffer in self._buffers[: None if self.carve.streams == "tile" else 1]:
            self.device.wait(buffer.h2d, event)

    def finish(self, event: Any) -> None:
        """Record an event that is reached when all that was submitted is stored."""
        if self.carve.streams == "tile":
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
        if fits:  # tiles of another size may still be where buffers begin now
            self.finish(cleared)
        else:
            self.release()
            self.device.reserve(carve.nbytes)
            self.arena_nbytes = carve.nbytes
        self.carve, size = carve, carve.buffer_nbytes
        if carve.streams == "tile":
            while len(self._by_tile) < carve.buffers:
                self._by_tile.append(self.device.stream("tile"))
            streams = [(stream,) * 3 for stream in self._by_tile]
        else:
            streams = [(self.h2d, self.compute, self.d2h)] * carve.buffers
        starts = range(0, carve.buffers * size, size)
        self._buffers = list(map(_Buffer, [self.device] * carve.buffers, starts, streams))
        self._next = itertools.cycle(self._buffers)
        self.fence(cleared)
        self._work = DeviceArray(carve.buffers * size, (carve.work_nbytes,), "|u1")

    def release(self) -> None:
        """Give the arena back when everything is done."""
        if self.arena_nbytes:
            self.device.synchronize_all()
            self.device.release()
        self.arena_nbytes, self.carve, self._buffers = 0, Carve(0, 0, 0), []
