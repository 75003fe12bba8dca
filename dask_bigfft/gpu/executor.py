"""Executor of a device: a pipeline that loads, transforms and stores the tiles of blocks.

Its loop is that of `kernels.loop`. Calls only enqueue work in the streams of a `Device`, ordered by
events. The executor outlives tasks, so that the first tiles of a block are loaded while the last
tiles of the block before are stored.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from dask_bigfft.gpu.operations import (
    FFT,
    Compute,
    DeviceArray,
    Multiply,
    PendingTransfer,
    Strided,
    Transfer,
    dense,
    pending,
)
from dask_bigfft.gpu.tile_work import Array, BlockTiles, Computation, Move, TileWork
from dask_bigfft.kernels.segmented import SegmentedView, ShardView
from dask_bigfft.tiles.digits import BlockDigits, Slices, shape_of

# --- the device protocol -------------------------------------------------------------------------


class DeviceMemory(NamedTuple):
    """Total and free memory of a device in bytes."""

    total: int
    free: int


class Device(Protocol):
    """Device with streams, events, one arena of memory, copies and computations.

    `cupy_gpu.CupyGPU` and `testing.simulated.SimulatedGPU` implement it. Operations are enqueued in
    streams and return at once. Operations of one stream run in order, those of different streams
    in any order that the events permit. Only `ring_nbytes` and `synchronize` are thread-safe; other
    calls must not overlap.
    """

    #: Name of the hardware.
    name: str

    #: Bytes that libraries use beside the arena, for kernels and the plans of most FFTs.
    libraries: int

    @property
    def software(self) -> dict[str, str]:
        """Versions that decide the last bit of results, by name."""

    @property
    def tables(self) -> int:
        """Bytes of FFT plans beyond `libraries`, for lengths with large primes."""

    def memory(self) -> DeviceMemory:
        """Return the total and free memory. The arena is not free."""

    def reserve(self, nbytes: int) -> None:
        """Reserve the arena, with undefined contents, after the former one was released."""

    def release(self) -> None:
        """Free the arena after all enqueued work is done."""

    def drop_caches(self) -> None:
        """Free all cached memory (plans, pools), while streams are idle."""

    def close(self) -> None:
        """Free everything. The device is not used afterwards."""

    def stream(self, name: str) -> Any:
        """Return a new stream. Streams wait for each other only by events."""

    def event(self, name: str) -> Any:
        """Return a new event, which stands for its latest record in a stream."""

    def record(self, event: Any, stream: Any, stored: bool = True) -> None:
        """Record an event in a stream.

        After a wait for the event, all copies to the host have arrived. If `stored` is false, only
        the device has finished reading their sources.
        """

    def wait(self, stream: Any, event: Any) -> None:
        """Let later work in a stream wait for the latest record of an event, if any."""

    def synchronize(self, event: Any) -> None:
        """Block the host until the latest record of an event, without the GIL."""

    def synchronize_all(self) -> None:
        """Block the host until all streams are idle."""

    def h2d(self, stream: Any, source: Array | ShardView, target: DeviceArray) -> None:
        """Copy a host array of the same shape and dtype to the device, or shards of one.

        The host array may have any positive strides that fall from the first dimension to the last.
        It must not change until a later event is reached. The target may be a part of a larger
        array, with an offset aligned only to its elements. The call may wait for a ring buffer.
        """

    def d2h(self, stream: Any, source: DeviceArray, target: Array | ShardView) -> None:
        """Copy from the device to a host array, as `h2d` does the other way."""

    def clear(self, stream: Any, array: DeviceArray) -> None:
        """Fill a dense array with zeros."""

    def work_nbytes(self, op: FFT) -> int:
        """Make the plan of an FFT, while streams are idle, and return the size of its work area."""

    def compute(
        self,
        stream: Any,
        op: Compute,
        source: DeviceArray,
        target: DeviceArray,
        work: DeviceArray | None = None,
    ) -> None:
        """Enqueue an operation. The work area of an FFT is scratch memory."""

    def ring_nbytes(self, host: Array | SegmentedView) -> int:
        """Return the size of the ring, one way, if host memory is staged through it, else 0."""

    def ahead(self, stream: Any, source: Array | ShardView) -> None:
        """Start to gather a source that `h2d` will copy later, in the order of these calls.

        The same object must be passed to `h2d`. Its values must be complete when the stream's
        present waits are over, and must not change before the copy.
        """

    def prepare(self, stream: Any, op: Transfer, target: DeviceArray) -> Transfer:
        """Enqueue the work of a transfer that needs no target values, and return the rest."""

    def clock(self) -> float:
        """Return the host's monotonic time in seconds."""


# --- tiles -----------------------------------------------------------------------------------

#: A block in host memory.
HostBlock = Array | SegmentedView


@dataclass(frozen=True)
class Carve:
    """Division of the arena into equal buffers and an FFT work area, and the stream scheme."""

    buffers: int
    buffer_nbytes: int
    work_nbytes: int
    streams: Literal["role", "tile"] = "role"

    @property
    def nbytes(self) -> int:
        """Size of the arena in bytes."""
        return self.buffers * self.buffer_nbytes + self.work_nbytes


class Tile:
    """Copies and computations of a tile.

    Parameters
    ----------
    work : TileWork
        Description of the tile.
    source, target : ndarray or SegmentedView
        The block before and after.
    """

    def __init__(self, work: TileWork, source: HostBlock, target: HostBlock) -> None:
        self.work = work
        self._target = target
        self.announced = False
        #: Copies to the device, where None stands for zeros, and preliminary computations.
        self.loads: list[tuple[Array | ShardView | None, DeviceArray]] = []
        self.before: list[Computation] = []
        used = 0
        padded = isinstance(source, SegmentedView) and not source.full
        for array, views in _copies(source, work.form, work.loads):
            if padded and sum(view.nbytes for view in views) < array.nbytes:
                self.loads.append((None, array))
            for view in views:
                if not isinstance(view, ShardView) or not view.conjugate:
                    self.loads.append((view, array))
                    continue
                assert work.scratch is not None
                for backwards, copy in _turned(view, array.dtype, used):
                    start = work.scratch.offset + used * backwards.itemsize
                    self.loads.append((backwards, DeviceArray(start, backwards.shape, array.dtype)))
                    self.before.append(Computation(copy, work.scratch, array))
                    used += backwards.size

    def stores(self) -> Iterator[tuple[Array | ShardView, DeviceArray]]:
        """Yield the copies back: host memory and array on the device."""
        for array, views in _copies(self._target, self.work.stored_form, self.work.stores):
            for view in views:
                yield view, array


def _copies(
    block: HostBlock, form: BlockDigits, moves: Iterable[Move]
) -> Iterator[tuple[DeviceArray, Sequence[Array | ShardView]]]:
    """Yield the parts of a tile on the device, each with its views of host memory."""
    for part, array in moves:
        if isinstance(block, SegmentedView):
            cuts = block.part(part)  # slices of the edges
            assert cuts is not None
            shape = tuple(cut.stop - cut.start for cut in cuts)
            yield replace(array, shape=shape), list(block.shards(cuts))
        else:
            yield array, [_view_of_part(block, form, part)]


def _view_of_part(block: Array, form: BlockDigits, part: Slices) -> Array:
    """Return a part of the digits of a block as a view of the block."""
    if not block.flags.c_contiguous:
        return block[part]  # it has one digit per dimension
    first, strides = form.places
    first += sum(cut.start * step for cut, step in zip(part, strides, strict=True))
    # Unlike `as_strided`, this checks bounds and keeps the owner of the memory.
    return np.ndarray(
        shape_of(part),
        block.dtype,
        block,
        offset=first * block.itemsize,
        strides=[step * block.itemsize for step in strides],
    )


def _turned(shards: ShardView, dtype: str, used: int) -> Iterator[tuple[Array, Strided]]:
    """Yield the views of reversed shards, each with the copy that turns and conjugates it."""
    strides = dense(tuple(cut.stop - cut.start for cut in shards.part), 1)
    for place, view in shards.views():
        ends = list(place)
        steps = list(strides)
        for digit in shards.flipped:
            ends[digit] += view.shape[digit] - 1
            steps[digit] = -steps[digit]
        start = sum(i * step for i, step in zip(ends, strides, strict=True))
        by = Multiply(view.shape, dtype, conjugate=True)
        dense_steps = dense(view.shape, 1)
        yield (
            view,
            Strided(
                view.shape,
                dense_steps,
                used,
                tuple(steps),
                start,
                dtype,
                by,
            ),
        )
        used += view.size


@dataclass(eq=False)
class BlockRun:
    """Round on a block, running or queued.

    Parameters
    ----------
    block : BlockTiles
        Tiles of the block.
    arrays : sequence of ndarray
        The block (maybe a composite) before the first pass and after each pass, with the same array
        twice for a pass in place. They must live until the run is done.
    filters : mapping of int to ndarray
        Spectra of convolutions' filters, by their numbers among the plan's operands.
    part : sequence of sequence of TileWork, optional
        The tiles of a part of the block in each pass; by default all tiles.
    """

    block: BlockTiles
    arrays: Sequence[HostBlock]
    filters: Mapping[int, Array]
    part: Sequence[Sequence[TileWork]] | None = None

    def __post_init__(self) -> None:
        self.filters = pending(self.filters)
        self.ffts = self.block.ffts
        #: Bytes to the device and back.
        sizes = [array.nbytes for array in self.arrays]
        self.nbytes = sum(sizes[:-1]), sum(sizes[1:])
        if self.part is None:
            self.works = list(map(self.block.works, range(len(self.block.plan.passes))))
        else:
            self.works = list(map(iter, self.part))
            works = list(itertools.chain(*self.part))
            self.nbytes = sum(w.source.nbytes for w in works), sum(w.result.nbytes for w in works)
            self.ffts |= {x.op for w in works for x in w.computations if isinstance(x.op, FFT)}

    def require_finite(self) -> None:
        """Raise an error if a transfer function had values that are not finite."""
        for operand in self.filters.values():
            if isinstance(operand, PendingTransfer):
                operand.require_finite()

    def begin(self) -> None:
        """Describe the first tile, while blocks before are submitted."""
        self.first  # noqa: B018

    @cached_property
    def first(self) -> Tile:
        """The first tile."""
        return Tile(next(self.works[0]), *self.arrays[:2])

    def tiles(self, number: int) -> Iterator[Tile]:
        """Yield the tiles of a pass. Each pass can be iterated once."""
        if number == 0:
            yield self.first
        for work in self.works[number]:
            yield Tile(work, *self.arrays[number : number + 2])


class _Buffer:
    """Part of the arena for one tile at a time, with its streams and events."""

    def __init__(self, device: Device, offset: int, streams: Sequence[Any]) -> None:
        self.offset = offset
        self.h2d, self.compute, self.d2h = streams
        self.loaded = device.event("loaded")
        self.computed = device.event("done")
        self.free = device.event("free")

    def array(self, array: DeviceArray) -> DeviceArray:
        """Return an array of a tile, placed in this buffer."""
        return replace(array, offset=array.offset + self.offset)


# --- the executor -----------------------------------------------------------------------------


class GPUExecutor:
    """Streams, arena and buffers of a device, for one thread at a time.

    A tile is loaded, transformed and stored in that order, and then its buffer is free again::

        h2d      load 1 | load 2 | load 3 | load 4 (buffer of 1) ...
        compute           fft 1  | fft 2  | fft 3
        d2h                        store 1| store 2 | ...

    With three buffers one tile is loaded while one is transformed and one is stored. The device
    memory depends on the number of buffers, not of tiles, as in Lee and Kim's ring (Electronics 12,
    2023).

    With streams per tile, each buffer has one stream for all three steps, as in Gu, Siegel and Li
    (2011). FFTs still run one after another, because they share a work area.

    A pass waits only for the pass before it on the same block, whose result it reads.

    Parameters
    ----------
    device : Device
        The device.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.h2d, self.compute, self.d2h = map(device.stream, ("h2d", "compute", "d2h"))
        self.arena_nbytes = 0
        self.carve = Carve(0, 0, 0)
        self._buffers: list[_Buffer] = []
        self._by_tile: list[Any] = []
        #: Bytes of the limit that are not in the arena.
        self._spare_nbytes = 0
        self._computed = device.event("computed")

    def run(self, block: BlockRun, following: Callable[[], BlockRun | None] = lambda: None) -> Any:
        """Enqueue all tiles of a block, and return the event of its end.

        `following` returns the next block, if it is known by the time at which the last tile of
        this block is loaded. The device then starts to gather the first tile of the next block.
        """
        stored = self.device.event("stored")
        for number in range(len(block.works)):
            if number:
                self.fence(stored)
            tiles = itertools.chain(block.tiles(number), [None])
            for tile, next_tile in itertools.pairwise(tiles):
                assert tile is not None
                self._announce(tile)
                self._announce(next_tile)
                buffer = next(self._next)
                self.device.wait(buffer.h2d, buffer.free)  # until its former tile is stored
                self.load(buffer, tile, block.filters)
                if next_tile is None and number == len(block.works) - 1:
                    next_block = following()
                    self._announce(None if next_block is None else next_block.first)
                self.transform(buffer, tile, block.filters)
                self.store(buffer, tile)
            self.finish(stored)
        return stored

    def _announce(self, tile: Tile | None) -> None:
        """Let the device start to stage a tile, unless there is none or it was announced before."""
        if tile is not None and not tile.announced:
            for view, _ in tile.loads:
                if view is not None:
                    self.device.ahead(self._buffers[0].h2d, view)
            tile.announced = True

    def load(self, buffer: _Buffer, tile: Tile, filters: Mapping[int, Array]) -> None:
        """Enqueue the copies of a tile, and of its parts of filters, to the device."""
        loads = list(tile.loads)
        for filter_part in tile.work.filters:
            spectrum = filters[filter_part.operand].reshape(filter_part.shape)
            values = spectrum[filter_part.part].reshape(filter_part.array.shape)
            loads.append((values, filter_part.array))
        for view, array in loads:
            if view is None:
                self.device.clear(buffer.h2d, buffer.array(array))
            else:
                self.device.h2d(buffer.h2d, view, buffer.array(array))
        self.device.record(buffer.loaded, buffer.h2d)

    def transform(self, buffer: _Buffer, tile: Tile, filters: Mapping[int, Any]) -> None:
        """Do the computations of a tile after it is loaded.

        Values of transfer functions are computed while it is loaded by another stream.
        """
        device = self.device
        stream = buffer.compute
        is_stream_of_tile = self.carve.streams == "tile"
        computations: list[Computation] = []
        for computation in (*tile.before, *tile.work.computations):
            operation = computation.op
            if isinstance(operation, Transfer):
                operation = replace(
                    operation,
                    function=filters[operation.product.operand],
                    spare_nbytes=self._spare_nbytes,
                )
                if not is_stream_of_tile:
                    target = buffer.array(computation.target)
                    operation = device.prepare(stream, operation, target)
            computations.append(replace(computation, op=operation))
        device.wait(stream, buffer.loaded)
        if is_stream_of_tile:
            device.wait(stream, self._computed)
        for computation in computations:
            device.compute(
                stream,
                computation.op,
                buffer.array(computation.source),
                buffer.array(computation.target),
                self._work,
            )
        device.record(buffer.computed, stream)
        if is_stream_of_tile:
            device.record(self._computed, stream)

    def store(self, buffer: _Buffer, tile: Tile) -> None:
        """Copy a tile back to the host, and record that its buffer is free."""
        self.device.wait(buffer.d2h, buffer.computed)
        for view, array in tile.stores():
            self.device.d2h(buffer.d2h, buffer.array(array), view)
        self.device.record(buffer.free, buffer.d2h, stored=self.carve.streams == "tile")

    def fence(self, event: Any) -> None:
        """Let later loads wait for an event."""
        for buffer in self._buffers[: None if self.carve.streams == "tile" else 1]:
            self.device.wait(buffer.h2d, event)

    def finish(self, event: Any) -> None:
        """Record an event after all enqueued tiles are stored."""
        if self.carve.streams == "tile":
            for buffer in self._buffers:
                self.device.wait(self.d2h, buffer.free)
        self.device.record(event, self.d2h)

    def prepare(self, carve: Carve, limit: int) -> None:
        """Divide the arena, reserving it again if it is too small or exceeds `limit` bytes.

        The limit is at least that of `carve`.

        Raises
        ------
        DeviceMemoryError
            If the device refuses a new arena; there is none afterwards.
        """
        fits = carve.nbytes <= self.arena_nbytes <= limit
        self._spare_nbytes = limit - (self.arena_nbytes if fits else carve.nbytes)
        if fits and carve == self.carve:
            return
        cleared = self.device.event("cleared")
        if fits:  # tiles of the former division may still be in use
            self.finish(cleared)
        else:
            self.release()
            self.device.reserve(carve.nbytes)
            self.arena_nbytes = carve.nbytes
        self.carve = carve
        size = carve.buffer_nbytes
        if carve.streams == "tile":
            while len(self._by_tile) < carve.buffers:
                self._by_tile.append(self.device.stream("tile"))
            streams = [(stream,) * 3 for stream in self._by_tile]
        else:
            streams = [(self.h2d, self.compute, self.d2h)] * carve.buffers
        starts = range(0, carve.buffers * size, size)
        self._buffers = list(
            map(
                _Buffer,
                [self.device] * carve.buffers,
                starts,
                streams,
            )
        )
        self._next = itertools.cycle(self._buffers)
        self.fence(cleared)
        self._work = DeviceArray(carve.buffers * size, (carve.work_nbytes,), "|u1")

    def release(self) -> None:
        """Free the arena after all work is done."""
        if self.arena_nbytes:
            self.device.synchronize_all()
            self.device.release()
        self.arena_nbytes = 0
        self.carve = Carve(0, 0, 0)
        self._buffers = []
