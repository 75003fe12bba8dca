"""The pipeline of a device: pieces come, are worked on, and go, all at the same time.

Three streams and k slots. A slot's piece is loaded, computed and stored in that order, and the slot
is free again when it is stored::

    h2d      load 1 | load 2 | load 3 | load 4 (slot of 1) ...
    compute           fft 1  | fft 2  | fft 3
    d2h                        store 1| store 2 | ...

Or k streams, one for each slot, in which all that happens to a piece stands in a row. FFTs share a
work area, so that they follow one another all the same.

The pipeline outlives tasks: the first pieces of one block are loaded while the last ones of the
block before are stored. Only a crossing waits for the one before it on the same block, which writes
what it reads.

Imports `kernels` and this room.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dask_bigfft.gpu.half_spectrum import HostView
from dask_bigfft.gpu.operations import (
    FFT,
    Array,
    DeviceArray,
    Multiply,
    Product,
    Strided,
    Transpose,
    dense,
)
from dask_bigfft.gpu.protocol import Device, Event, Stream
from dask_bigfft.gpu.slots import ROOMY, Slot, parts_of
from dask_bigfft.gpu.tile_work import BlockTiles, Computation, Move, TileWork
from dask_bigfft.kernels.composite import Composite, Shards
from dask_bigfft.planner.tile_plan import PARTS


@dataclass(frozen=True)
class Carve:
    """How the arena is divided: slots of one size, then the work area of FFTs; and its streams."""

    slots: int
    slot_nbytes: int
    work_nbytes: int
    streams: Literal["role", "piece"] = "role"

    @property
    def nbytes(self) -> int:
        """Bytes of the arena."""
        return self.slots * self.slot_nbytes + self.work_nbytes

    def holds(self, other: "Carve") -> bool:
        """Whether there is as much of everything as in another one."""
        nbytes, work = self.slot_nbytes >= other.slot_nbytes, self.work_nbytes >= other.work_nbytes
        return self.slots >= other.slots and nbytes and work and self.streams == other.streams


#: What is copied, and where; None: nothing is, and zeros are put there before what follows.
Copied = tuple[Array | Shards | None, DeviceArray]


def loads(
    source: Array | Composite, work: TileWork, parts: int = 1
) -> tuple[list[Copied], list[Computation]]:
    """What is copied where for a piece, in so many parts, and what is done with it before all."""
    comes, first, used = list[Copied](), list[Computation](), 0
    for move in _apart(source, work.comes, parts):
        found = list(_copies(source, work.view, move))
        padded = isinstance(source, Composite) and not source.full
        if padded and sum(shards.nbytes for shards, _ in found) < move.array.nbytes:
            comes.append((None, move.array))
        for view, array in found:
            if not isinstance(view, Shards) or view.flipped is None:
                comes.append((view, array))
                continue
            assert work.scratch is not None
            for backwards, copy in _turned(view, array.dtype, used):
                start = work.scratch.offset + used * backwards.itemsize
                comes.append((backwards, DeviceArray(start, backwards.shape, array.dtype)))
                first.append(Computation(copy, work.scratch, array))
                used += backwards.size
    return comes, first


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
        yield (
            view,
            Strided(
                view.shape,
                dense(view.shape, 1),
                used,
                tuple(steps),
                start,
                dtype,
                Multiply(view.shape, dtype, conjugate=True),
            ),
        )
        used += view.size


def stores(
    target: Array | Composite, work: TileWork, parts: int = 1
) -> Iterator[tuple[Array | Shards, DeviceArray]]:
    """What of a piece is copied back where to, in so many parts."""
    for move in _apart(target, work.goes, parts):
        yield from _copies(target, work.stored_view, move)


def _apart(block: Array | Composite, moves: Iterable[Move], parts: int) -> Iterator[Move]:
    """Each of some moves in parts; those of a composite in its edges."""
    for move in moves:
        yield from parts_of(_in_edges(block, move), parts)


def _in_edges(block: Array | Composite, move: Move) -> Move:
    """A move in what can be cut: dimensions, or the edges that those of a composite are made of."""
    if not isinstance(block, Composite):
        return move
    cuts = block.part(move.part)
    assert cuts is not None
    return Move(cuts, replace(move.array, shape=tuple(cut.stop - cut.start for cut in cuts)))


def _copies(
    block: Array | Composite, view: HostView, move: Move
) -> Iterator[tuple[Array | Shards, DeviceArray]]:
    """What makes up a part of a block, and the array on the device that it belongs in."""
    if not isinstance(block, Composite):
        yield view.part(block, move.part), move.array
        return
    for shards in block.shards(move.part):
        yield shards, move.array


@dataclass
class Loads:
    """What comes for a piece, what is done with it before all else, and whether that was told."""

    work: TileWork
    comes: list[Copied]
    before: list[Computation]
    told: bool = False


class Coming:
    """A block whose pieces are put into the streams, now or soon.

    Parameters
    ----------
    tiles : BlockTiles
        What to do.
    arrays : sequence of ndarray
        The block (which may be a composite) before the first crossing, and after each; where a
        crossing writes what it read, the same array twice. They have to stay until all is done.
    filters : mapping of int to ndarray
        Spectrum of the convolution's filter, for the axes that need one.
    """

    def __init__(
        self, tiles: BlockTiles, arrays: Sequence[Array | Composite], filters: Mapping[int, Array]
    ) -> None:
        self.tiles, self.arrays, self.filters = tiles, arrays, filters
        self._first: Loads | None = None
        self._works = tiles.works(0)

    @property
    def opened(self) -> bool:
        """Whether the first piece has been looked at."""
        return self._first is not None

    def first(self, parts: int) -> Loads:
        """The first piece, which comes in so many parts."""
        if self._first is None:
            work = next(self._works)
            self._first = Loads(work, *loads(self.arrays[0], work, parts))
        return self._first

    def crossing(self, number: int, parts: int) -> Iterator[Loads]:
        """The pieces of a crossing, each in so many parts; those of the first one, once."""
        if number == 0:
            yield self.first(parts)
        for work in self.tiles.works(number) if number else self._works:
            yield Loads(work, *loads(self.arrays[number], work, parts))


class Pipeline:
    """Streams, arena and slots of a device.

    Used by one thread at a time.

    Parameters
    ----------
    device : Device
        What does the work.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.h2d = device.stream("h2d")
        self.compute = device.stream("compute")
        self.d2h = device.stream("d2h")
        self.carve = Carve(0, 0, 0)
        self.arena_nbytes = 0
        self._slots: list[Slot] = []
        self._by_piece: list[Stream] = []
        self._computed = device.event("computed")
        self._work = DeviceArray(0, (0,), "|u1")
        self._turn = 0

    def prepare(self, carve: Carve, limit: int) -> None:
        """Divide the arena anew, if it is divided otherwise.

        The arena is reserved anew where it is too small, or larger than `limit` bytes.

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
        else:  # pieces of another size may still be where slots begin now
            self._mark(cleared)
        self.carve = carve
        self._slots = [
            Slot(self.device, i * carve.slot_nbytes, self._streams(i), carve.slots < ROOMY)
            for i in range(carve.slots)
        ]
        self._hold(cleared)
        offset = carve.slots * carve.slot_nbytes
        self._work = DeviceArray(offset, (carve.work_nbytes,), "|u1")

    def _streams(self, slot: int) -> tuple[Stream, Stream, Stream]:
        """The streams in which a slot's piece comes, is worked on, and goes."""
        if self.carve.streams == "role":
            return self.h2d, self.compute, self.d2h
        while len(self._by_piece) <= slot:
            self._by_piece.append(self.device.stream("piece"))
        return (self._by_piece[slot],) * 3

    @property
    def _parts(self) -> int:
        """Parts in which pieces come and go."""
        return 1 if len(self._slots) >= ROOMY else PARTS

    def _mark(self, event: Event) -> None:
        """Record what is reached when all that was submitted is stored."""
        if self.carve.streams == "piece":
            for slot in self._slots:
                self.device.wait(self.d2h, slot.free)
        self.device.record(event, self.d2h)

    def _hold(self, event: Event) -> None:
        """Let no piece come from now on before an event is reached."""
        for slot in self._slots[: 1 if self.carve.streams == "role" else None]:
            self.device.wait(slot.h2d, event)

    def release(self) -> None:
        """Give the arena back when everything is done."""
        if self.arena_nbytes:
            self.device.synchronize_all()
            self.device.release()
        self.arena_nbytes, self.carve, self._slots = 0, Carve(0, 0, 0), []

    def submit(
        self, coming: Coming, following: Callable[[], Coming | None] = lambda: None
    ) -> Event:
        """Put all pieces of a block into the streams; return what is reached when it is done.

        Parameters
        ----------
        coming : Coming
            The block.
        following : callable
            Returns the block that will be submitted next, if that is known by then: the device is
            told of its first piece before the last one of this block goes.
        """
        stored = self.device.event("stored")
        numbers = range(len(coming.tiles.plan.passes))
        for number in numbers:
            if number:
                self._hold(stored)
            last = number == numbers[-1]
            self._pieces(
                coming.crossing(number, self._parts),
                coming.arrays[number + 1],
                coming.filters,
                following if last else lambda: None,
            )
            self._mark(stored)
        return stored

    def submit_works(
        self,
        works: Iterable[TileWork],
        source: Array | Composite,
        target: Array,
        filters: Mapping[int, Array],
    ) -> Event:
        """Put some pieces of one crossing into the streams; as `submit`."""
        stored = self.device.event("stored")
        pieces = (Loads(work, *loads(source, work, self._parts)) for work in works)
        self._pieces(pieces, target, filters)
        self._mark(stored)
        return stored

    def _pieces(
        self,
        pieces: Iterable[Loads],
        target: Array | Composite,
        filters: Mapping[int, Array],
        following: Callable[[], Coming | None] = lambda: None,
    ) -> None:
        """Put pieces into the streams; the device is told of each one before the one before it."""

        def nothing() -> None:
            """There is another piece of this block."""

        def told() -> None:
            """Tell the device of the next block."""
            if (coming := following()) is not None and not coming.opened:
                self._tell(coming.first(self._parts))

        before: Loads | None = None
        for piece in pieces:
            self._tell(piece)
            if before is not None:
                self._piece(before, target, filters, nothing)
            before = piece
        if before is not None:
            self._piece(before, target, filters, told)

    def _tell(self, piece: Loads) -> None:
        """Let the device begin to stage a piece, if it has not been told of it."""
        for view, _ in () if piece.told else piece.comes:
            if view is not None:
                self.device.ahead(self._slots[0].h2d, view)
        piece.told = True

    def _piece(
        self,
        piece: Loads,
        target: Array | Composite,
        filters: Mapping[int, Array],
        loaded: Callable[[], None],
    ) -> None:
        """Put a piece into the streams; `loaded` is called once it has been asked for."""
        device, work = self.device, piece.work
        slot = self._slots[self._turn % len(self._slots)]
        self._turn += 1
        slot.begin()
        for view, array in piece.comes:
            slot.make_room(array)
            if view is None:
                device.clear(slot.h2d, slot.array(array))
            else:
                device.h2d(slot.h2d, view, slot.array(array))
        for found in work.filters:
            spectrum = filters[found.axis].reshape(found.shape)[found.part]
            slot.make_room(found.array)
            device.h2d(slot.h2d, spectrum.reshape(found.array.shape), slot.array(found.array))
        device.record(slot.loaded, slot.h2d)
        loaded()
        slot.wait_for_all()
        if self.carve.streams == "piece":
            device.wait(slot.compute, self._computed)
        for computation in (*piece.before, *work.computations):
            self._run(computation, slot)
        if self.carve.streams == "piece":
            device.record(self._computed, slot.compute)
        device.record(slot.done, slot.compute)
        device.wait(slot.d2h, slot.done)
        for view, array in slot.going(list(stores(target, work, self._parts))):
            device.d2h(slot.d2h, slot.array(array), view)

    def _run(self, computation: Computation, slot: Slot) -> None:
        device, stream, op = self.device, slot.compute, computation.op
        source, target = slot.array(computation.source), slot.array(computation.target)
        if isinstance(op, FFT):
            device.fft(stream, op, source, target, self._work)
        elif isinstance(op, Multiply):
            device.multiply(stream, op, target)
        elif isinstance(op, Product):
            device.product(stream, op, target, source)
        elif isinstance(op, Transpose):
            device.transpose(stream, op, source, target)
        else:
            device.strided(stream, op, source, target)
