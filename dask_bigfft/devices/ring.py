"""A ring of pinned buffers through which blocks in ordinary memory travel, and its host threads.

What is not pinned has to be staged: several threads gather the rows of a piece into a pinned
buffer, the card takes it from there while they fill the next one, and the way back is its mirror
(Lee and Kim, Electronics 12, 2023, size such a ring by the device and not by the data). The ring
is small: data of any size goes round in it.

::

    block --threads--> buffer --card--> piece        piece --card--> buffer --threads--> block

A gather is done by the caller, who so waits for a free buffer; a scatter is done behind its back,
and the future it gets says when the values are there.

Imports `kernels` and this room; what the card does is handed in.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from dask_bigfft.devices.protocol import Array
from dask_bigfft.devices.transfer import runs, slabs
from dask_bigfft.kernels.streaming import stream_rows

#: Bytes of a buffer: the card takes a millisecond for it, and so do the threads for their shares,
#: long against what it costs to hand them out.
BUFFER_NBYTES = 64 * 1024**2

#: Buffers in each direction: one under way, one being filled, and some to even things out.
BUFFERS = 4

#: Buffers that are gathered or scattered at a time: while the last shares of one are copied,
#: threads that are done begin with another.
GATHERED = 2

#: Bytes below which a share of the copying is not worth a thread.
SHARE_NBYTES = 4 * 1024**2

#: Bytes of a row from which on it is stored around the caches.
STREAMED_NBYTES = 2048

#: Views in a buffer begin at multiples of it.
APART_NBYTES = 256


#: A part of a view.
Part = tuple[slice, ...]


class Mark(Protocol):
    """What tells that the card is done with a buffer."""

    def synchronize(self) -> None:
        """Wait for it."""


@dataclass
class Staging:
    """One pinned buffer: its bytes, and what is still to happen with it."""

    memory: Array
    mark: Mark | None = None
    scattered: "Future[None] | None" = field(default=None)

    def holding(self, part: Array, at: int = 0) -> Array:
        """Its bytes from a place on as an array like `part`."""
        return self.memory[at : at + part.nbytes].view(part.dtype).reshape(part.shape)

    def free(self) -> None:
        """Wait until nobody uses it."""
        if self.scattered is not None:
            self.scattered.result()
            self.scattered = None
        if self.mark is not None:
            self.mark.synchronize()
            self.mark = None


@dataclass
class Filling:
    """A buffer that threads fill: their shares, what has been begun, and how much is used."""

    buffer: Staging
    shares: "list[Future[None]]" = field(default_factory=list)
    staged: list[tuple[int, Array, Part]] = field(default_factory=list)
    used: int = 0

    def fits(self, nbytes: int) -> bool:
        """Whether there is room for so much more."""
        return self.used + nbytes <= self.buffer.memory.nbytes


class Ring:
    """Pinned buffers for both directions, and threads that copy.

    Parameters
    ----------
    buffers : list of ndarray
        Pinned memory, bytes; half of them serve each direction.
    threads : int
        Host threads that gather and scatter.

    Notes
    -----
    One thread at a time may call `load` and `store`; the waiting is in the caller.
    """

    def __init__(self, buffers: list[Array], threads: int) -> None:
        half = len(buffers) // 2
        self._in = deque(Staging(memory) for memory in buffers[:half])
        self._out = deque(Staging(memory) for memory in buffers[half:])
        self.nbytes = sum(memory.nbytes for memory in buffers)
        self._threads = threads
        self._copiers = ThreadPoolExecutor(threads, thread_name_prefix="bigfft-ring")
        self._waiters = ThreadPoolExecutor(GATHERED, thread_name_prefix="bigfft-scatter")

    def load(
        self, sources: Iterable[Array], copy: Callable[[int, Array, Part], object],
        mark: Callable[[], Mark],
    ) -> None:
        """Take views to the card, several in one buffer where they are small.

        Parameters
        ----------
        sources : iterable of ndarray
            The views.
        copy : callable
            ``copy(number, values, part)`` lets the card take contiguous pinned values, which are
            that part of the view of that number.
        mark : callable
            Returns a mark that tells when all that was copied so far is there.
        """
        filling: deque[Filling] = deque()
        for number, source in enumerate(sources):
            for part in self._parts(source):
                values = source[part]
                if not filling or not filling[-1].fits(values.nbytes):
                    if len(filling) == min(GATHERED, len(self._in)):
                        self._taken(copy, mark, filling.popleft())
                    buffer = self._in[0]
                    self._in.rotate(-1)
                    buffer.free()
                    filling.append(Filling(buffer))
                now = filling[-1]
                staged = now.buffer.holding(values, now.used)
                now.used += -(-values.nbytes // APART_NBYTES) * APART_NBYTES
                now.shares += self._shared(staged, values)
                now.staged.append((number, staged, part))
        while filling:
            self._taken(copy, mark, filling.popleft())

    @staticmethod
    def _taken(
        copy: Callable[[int, Array, Part], object], mark: Callable[[], Mark], now: Filling
    ) -> None:
        """Let the card take a buffer as soon as it is full."""
        for future in now.shares:
            future.result()
        for staged in now.staged:
            copy(*staged)
        now.buffer.mark = mark()

    def store(
        self, target: Array, copy: Callable[[Array, Part], Mark]
    ) -> "list[Future[None]]":
        """Bring a view from the card; its values are there when all futures are done.

        ``copy(values, part)`` lets the card write contiguous pinned values, which are that part of
        the view, and returns a mark that tells when that is done.
        """
        found = []
        for part in self._parts(target):
            values = target[part]
            buffer = self._out[0]
            self._out.rotate(-1)
            buffer.free()
            mark = copy(buffer.holding(values), part)
            buffer.scattered = self._waiters.submit(self._scatter, mark, values, buffer)
            found.append(buffer.scattered)
        return found

    def _scatter(self, mark: Mark, values: Array, buffer: Staging) -> None:
        mark.synchronize()
        for future in self._shared(values, buffer.holding(values)):
            future.result()

    def _parts(self, view: Array) -> Iterator[Part]:
        return (part for part, _ in slabs(view, self._in[0].memory.nbytes))

    def _shared(self, target: Array, source: Array) -> "list[Future[None]]":
        """Have threads copy, a share each, without the interpreter's lock."""
        share = max(SHARE_NBYTES, math.ceil(source.nbytes / self._threads))
        parts = [part for part, _ in slabs(source, share)]
        return [self._copiers.submit(_copied, target[part], source[part]) for part in parts]

    def close(self) -> None:
        """Wait until all is where it belongs, and end the threads."""
        for buffer in (*self._in, *self._out):
            buffer.free()
        self._waiters.shutdown()
        self._copiers.shutdown()


def _copied(target: Array, source: Array) -> None:
    """Copy an array, around the caches where its rows are wide: both belong to the card."""
    width, outer = runs(source, target.strides)
    if width < STREAMED_NBYTES:
        np.copyto(target, source)
        return
    stream_rows(target, source, width, [(run.count, run.place, run.stride) for run in outer])


class Pending:
    """Futures that have to be done before something may be used; a lock's worth of bookkeeping."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._futures: list[Future[None]] = []

    def add(self, futures: "list[Future[None]] | tuple[Future[None], ...]") -> None:
        """Take futures up, and forget those that are done well."""
        with self._lock:
            self._futures = [f for f in self._futures if not _fine(f)] + list(futures)

    def now(self) -> "tuple[Future[None], ...]":
        """What is not done."""
        with self._lock:
            self._futures = [future for future in self._futures if not _fine(future)]
            return tuple(self._futures)

    def wait(self) -> None:
        """Wait for all of it, and raise what one of them raised."""
        with self._lock:
            futures, self._futures = self._futures, []
        for future in futures:
            future.result()


def _fine(future: "Future[Any]") -> bool:
    return future.done() and future.exception() is None
