"""A ring of pinned buffers through which blocks in ordinary memory travel, and its host threads.

What is not pinned has to be staged: several threads gather the rows of a piece into a pinned
buffer, the card takes it from there while they fill the next one, and the way back is its mirror
(Lee and Kim, Electronics 12, 2023, size such a ring by the device and not by the data). The ring
is small: data of any size goes round in it.

::

    block --threads--> buffer --card--> piece        piece --card--> buffer --threads--> block

The caller waits for a gather, but may say what it asks for next, so that threads go on with that
meanwhile; a scatter is done behind its back, and the future it gets says when the values are there.

Imports this room; what the card does is handed in.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from dask_bigfft.gpu.copiers import Copiers, Copying
from dask_bigfft.gpu.operations import Array
from dask_bigfft.gpu.transfer import slabs

#: Bytes of a buffer: the card takes a millisecond for it, and so do the threads for their shares,
#: long against what it costs to wake them. Buffers of half the size are as good for blocks in small
#: pieces; blocks of 256 MiB that are one piece take a quarter longer, if there are no more of them.
BUFFER_NBYTES = 64 * 1024**2

#: Buffers in each direction: one under way, one being filled, and some to even things out.
BUFFERS = 4

#: Buffers that are gathered or scattered at a time: while the last shares of one are copied,
#: threads that are done begin with another.
GATHERED = 2

#: Views in a buffer begin at multiples of it.
APART_NBYTES = 256


#: A part of a view.
Part = tuple[slice, ...]


class Mark(Protocol):
    """What tells that the card is done with a buffer."""

    @property
    def done(self) -> bool:
        """Whether it is."""

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

    @property
    def idle(self) -> bool:
        """Whether nobody uses it."""
        scattered = self.scattered is None or self.scattered.done()
        return scattered and (self.mark is None or self.mark.done)

    def free(self) -> None:
        """Wait until nobody uses it; what a scatter raised is for those who want its values."""
        if self.scattered is not None:
            self.scattered.exception()
            self.scattered = None
        if self.mark is not None:
            self.mark.synchronize()
            self.mark = None


@dataclass
class Filling:
    """A buffer that threads fill: their shares, what has been begun, and how much is used."""

    buffer: Staging
    shares: list[Copying] = field(default_factory=list)
    staged: list[tuple[int, Array, Part]] = field(default_factory=list)
    used: int = 0


class Loading:
    """Views on their way into buffers: threads fill as many of these as they are given."""

    def __init__(self, ring: "Ring", views: Sequence[Array], of: object = None) -> None:
        self.views, self.of, self._ring = views, of, ring
        self._parts = (
            (number, part) for number, view in enumerate(views) for part in ring.parts(view)
        )
        self._next = next(self._parts, None)
        self.filling: deque[Filling] = deque()

    @property
    def begun(self) -> bool:
        """Whether all parts have been given to threads."""
        return self._next is None

    def fill(self) -> None:
        """Give another buffer to threads, with as many parts as it holds."""
        ring = self._ring
        self.filling.append(Filling(ring.free.popleft()))
        now = self.filling[-1]
        now.buffer.free()
        while self._next is not None:
            number, part = self._next
            values = self.views[number][part]
            if now.staged and now.used + values.nbytes > ring.part:
                return
            staged = now.buffer.holding(values, now.used)
            now.used += -(-values.nbytes // APART_NBYTES) * APART_NBYTES
            now.shares.append(ring.copiers.copy(staged, values))
            now.staged.append((number, staged, part))
            self._next = next(self._parts, None)

    def take(self, copy: Callable[[int, Array, Part], object], mark: Callable[[], Mark]) -> None:
        """Let the card take the first buffer as soon as it is full."""
        now = self.filling[0]
        for share in now.shares:
            share.result()
        for staged in now.staged:
            copy(*staged)
        now.buffer.mark = mark()
        self._give_back()

    def forget(self) -> None:
        """Give the buffers back: nobody asks for these views."""
        while self.filling:
            for share in self.filling[0].shares:
                share.result()
            self._give_back()

    def _give_back(self) -> None:
        self._ring.free.append(self.filling.popleft().buffer)


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
    One thread at a time may call `load`, `ahead` and `store`; the waiting is in the caller.
    """

    def __init__(self, buffers: list[Array], threads: int) -> None:
        half = len(buffers) // 2
        #: Buffers to the card that hold nothing it has not been told of.
        self.free = deque(Staging(memory) for memory in buffers[:half])
        self._out = deque(Staging(memory) for memory in buffers[half:])
        self.nbytes = sum(memory.nbytes for memory in buffers)
        self._size = buffers[0].nbytes
        #: Bytes of a buffer that are used at a time.
        self.part = self._size
        self.copiers = Copiers(threads)
        self._waiters = ThreadPoolExecutor(GATHERED, thread_name_prefix="bigfft-scatter")
        self._ahead: deque[Loading] = deque()

    def use(self, part: int | None) -> None:
        """Use so many bytes of a buffer at a time from now on; None: all of them.

        What was begun before stays as it is.
        """
        self.part = min(part or self._size, self._size)

    def ahead(self, sources: Iterable[Array], of: object) -> None:
        """Begin to gather what `load` will be asked for later, in the order of these calls.

        As far as there are buffers that nobody uses; one is left for what comes before.
        """
        self._ahead.append(Loading(self, list(sources), of))
        self._go_ahead()

    def _go_ahead(self) -> None:
        for coming in self._ahead:
            while not coming.begun and len(self.free) > 1 and self.free[0].idle:
                coming.fill()
            if not coming.begun:
                return

    def load(
        self,
        sources: Iterable[Array],
        copy: Callable[[int, Array, Part], object],
        mark: Callable[[], Mark],
        of: object = None,
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
        of : object, optional
            What they are views of, where `ahead` has been told of it: the same object.

        Notes
        -----
        Where it is interrupted, or `copy` raises, the buffers are there again for what comes next.
        The card may still read some of them: whoever goes on has to wait for it before.
        """
        loading = self._begun(of) or Loading(self, list(sources))
        try:
            while loading.filling or not loading.begun:
                while not loading.begun and len(loading.filling) < GATHERED and self.free:
                    loading.fill()
                self._go_ahead()
                loading.take(copy, mark)
        except BaseException:
            loading.forget()
            raise

    def _begun(self, of: object) -> Loading | None:
        """What was begun of these views; what should have come before does not come any more."""
        if of is None or not any(found.of is of for found in self._ahead):
            return None
        while (found := self._ahead.popleft()).of is not of:
            found.forget()
        return found

    def forget(self) -> None:
        """Give up what was begun and not asked for."""
        while self._ahead:
            self._ahead.popleft().forget()

    def store(self, target: Array, copy: Callable[[Array, Part], Mark]) -> "list[Future[None]]":
        """Bring a view from the card; its values are there when all futures are done.

        ``copy(values, part)`` lets the card write contiguous pinned values, which are that part of
        the view, and returns a mark that tells when that is done.
        """
        found = []
        for part in self.parts(target):
            values = target[part]
            buffer = self._out[0]
            self._out.rotate(-1)
            self._go_ahead()
            buffer.free()
            mark = copy(buffer.holding(values), part)
            buffer.scattered = self._waiters.submit(self._scatter, mark, values, buffer)
            found.append(buffer.scattered)
        return found

    def _scatter(self, mark: Mark, values: Array, buffer: Staging) -> None:
        mark.synchronize()
        self.copiers.copy(values, buffer.holding(values)).result()

    def parts(self, view: Array) -> Iterator[Part]:
        """The parts of a view, none of which is larger than a buffer."""
        return (part for part, _ in slabs(view, self.part))

    def close(self) -> None:
        """Wait until all is where it belongs, and end the threads."""
        try:
            self.forget()
            for buffer in (*self.free, *self._out):
                buffer.free()
        finally:
            self._waiters.shutdown()
            self.copiers.close()


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
