"""A slot of the arena, to which a piece comes while the one before it still goes.

::

    rows of a slot    piece 1 goes     1 1 1 1 1 1 1 1
                      piece 3 comes            3 3 3 3 3 3 3 3

With three slots one piece comes, one is worked on and one goes. Where a piece comes to what the one
before has left, part by part, two slots keep the three engines as busy, and pieces may be half as
large again. So a device holds little more than it works on, as Lee and Kim's ring does (Electronics
12, 2023).

Imports `kernels` and this room.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dask_bigfft.gpu.operations import Array, DeviceArray
from dask_bigfft.gpu.protocol import Device, Event, Stream
from dask_bigfft.gpu.tile_work import Move
from dask_bigfft.kernels.composite import Shards
from dask_bigfft.planner.tile_plan import LEAST_PART

#: Where a part is copied back to, and where it is.
Going = tuple[Array | Shards, DeviceArray]

#: Slots from which on a piece comes to one that is empty.
ROOMY = 3


def parts_of(move: Move, count: int) -> Iterator[Move]:
    """A move in as many moves as said, or fewer, along the first dimension of more than one value.

    What does not lie together on the device stays one.
    """
    array, count = move.array, min(count, move.array.nbytes // LEAST_PART)
    dim = next((dim for dim, n in enumerate(array.shape) if n > 1), None)
    if array.strides is not None or dim is None or count < 2:
        yield move
        return
    rows, first = array.shape[dim], move.part[dim].start
    step, width = -(-rows // count), array.nbytes // rows
    for low in range(0, rows, step):
        high = min(low + step, rows)
        part, shape = list(move.part), list(array.shape)
        part[dim], shape[dim] = slice(first + low, first + high), high - low
        at = replace(array, offset=array.offset + low * width, shape=tuple(shape))
        yield Move(tuple(part), at)


class Slot:
    """A part of the arena that holds one piece at a time, and what is known of it.

    Parameters
    ----------
    device : Device
        Whose arena it is.
    offset : int
        Where the slot begins.
    streams : tuple of Stream
        In which its pieces come, are worked on, and go.
    in_parts : bool
        Whether a piece comes as parts of the one before go, and not when all of it has gone.
    """

    def __init__(
        self,
        device: Device,
        offset: int,
        streams: tuple[Stream, Stream, Stream],
        in_parts: bool = False,
    ) -> None:
        self._device, self.offset, self._in_parts = device, offset, in_parts
        self.h2d, self.compute, self.d2h = streams
        self.loaded = device.event("loaded")
        self.done = device.event("done")
        self.free = device.event("free")
        #: What went last: where it was, and what is reached when it has gone, in order.
        self._gone: list[tuple[int, int, Event]] = []
        self._marks: list[Event] = []
        #: How many of them the next piece has waited for; whether it has for the work.
        self._seen, self._idle = 0, False

    def array(self, array: DeviceArray) -> DeviceArray:
        """An array of a piece, in this slot."""
        return replace(array, offset=array.offset + self.offset)

    def begin(self) -> None:
        """Begin with another piece: nothing of it has come yet."""
        self._seen = 0
        self._idle = False

    def make_room(self, array: DeviceArray) -> None:
        """Let nothing come to an array of the next piece before what was there has gone."""
        low, high = array.offset, array.offset + array.span
        last = self._seen
        for number, (start, end, _) in enumerate(self._gone[last:], last + 1):
            if start < high and low < end:
                self._seen = number
        if self._seen > last:
            self._device.wait(self.h2d, self._gone[self._seen - 1][2])
        elif not self._seen and not self._idle:  # nothing of this goes, but it was worked on
            self._device.wait(self.h2d, self.done)
            self._idle = True

    def wait_for_all(self) -> None:
        """Let the work on a piece wait until it is there, and the one before has gone."""
        self._device.wait(self.compute, self.loaded)
        if self._seen < len(self._gone):  # what nothing came to may still go
            self._device.wait(self.compute, self.free)

    def going(self, parts: Sequence[Going]) -> Iterator[Going]:
        """Parts of a piece that are copied back while this is iterated, each in its turn.

        A mark follows each one, or all of them; what comes next waits for those that lie where
        it comes to.
        """
        self._gone.clear()
        batches = [parts[i : i + 1] for i in range(len(parts))] if self._in_parts else []
        batches = batches or [parts]  # of a piece of which nothing goes the end is marked as well
        while len(self._marks) < len(batches) - 1:
            self._marks.append(self._device.event("gone"))
        for batch, mark in zip(batches, (*self._marks[: len(batches) - 1], self.free), strict=True):
            yield from batch
            self._device.record(mark, self.d2h, stored=self.d2h is self.h2d)
            low = min((array.offset for _, array in batch), default=0)
            high = max((array.offset + array.span for _, array in batch), default=0)
            self._gone.append((low, high, mark))
