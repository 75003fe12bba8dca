"""Ring of pinned buffers for pageable host memory, and the host threads that copy.

Several threads gather the rows of a tile into a pinned buffer, and fill the next one while the GPU
reads it. The way back is the mirror image. The ring is sized by the device, not by the data (Lee
and Kim, Electronics 12, 2023)::

    block --threads--> buffer --GPU--> tile        tile --GPU--> buffer --threads--> block

The caller waits for a gather, but may announce the next load, which threads then start to gather.
A scatter runs in the background, and its future tells when the values have arrived.

The threads run compiled code (`copy_threads`). Until another process has compiled it, and where
numba is missing, they run NumPy's.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.gpu.copy_threads import CopyPool, loops_are_loaded

Array = npt.NDArray[Any]
Ints = tuple[int, ...]

#: A part of a view.
Part = tuple[slice, ...]

#: Size of a buffer in bytes: a millisecond of the bus, long compared with waking threads. With half
#: the size, blocks of 256 MiB in one tile take a quarter longer.
BUFFER_NBYTES = 64 * 1024**2

#: Number of buffers in each direction: one in flight, one being filled, and some reserve.
BUFFERS = 4

#: Number of buffers gathered or scattered at a time, so that no thread waits for the last shares.
GATHERED = 2

#: Alignment of views in a buffer.
APART_NBYTES = 256


# --- strided views --------------------------------------------------------------------------


def slabs(view: Array, nbytes: int) -> Iterator[Part]:
    """Yield the parts of a view of at most `nbytes` each (or one element), in C order.

    >>> [part[0] for part in slabs(np.zeros((3, 4), "f8"), 64)]
    [slice(0, 2, None), slice(2, 3, None)]
    """
    if view.nbytes <= nbytes or not view.ndim:
        if view.size:
            yield (slice(None),) * view.ndim
        return
    row = view[0].nbytes
    width = max(1, nbytes // row)
    for low in range(0, len(view), width):
        cut = slice(low, min(len(view), low + width))
        inner = slabs(view[low], nbytes) if row > nbytes else [(slice(None),) * (view.ndim - 1)]
        for part in inner:
            yield (cut, *part)


# --- the ring -------------------------------------------------------------------------------


class NumPyPool:
    """Thread pool that copies arrays like `CopyPool`, without compiled code."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="bigfft-copy")

    def copy(self, target: Array, source: Array) -> "Future[None]":
        """Start to copy an array to another of its shape."""
        return self._pool.submit(np.copyto, target, source)

    def close(self) -> None:
        """End the threads after all copies are done."""
        self._pool.shutdown()


def copy_pool(threads: int) -> CopyPool | NumPyPool:
    """Return a `CopyPool`, or a `NumPyPool` while its loops are not compiled."""
    return CopyPool(threads) if loops_are_loaded() else NumPyPool(threads)


#: CuPy event after which the GPU has finished with a buffer.
Mark = Any
Marks = Callable[[], Mark]

#: Copies pinned values, a part of a numbered view, between a buffer and the GPU.
Copy = Callable[[int, Array, Part], object]


@dataclass
class _Buffer:
    """Pinned buffer with the copies in flight to and from it, allocated at its first use."""

    nbytes: int
    allocate: Callable[[int], Array]
    mark: Mark | None = None
    scattered: "Future[None] | None" = None
    shares: list[Any] = field(default_factory=list)
    staged: list[tuple[int, Array, Part]] = field(default_factory=list)

    @cached_property
    def memory(self) -> Array:
        """Pinned bytes."""
        return self.allocate(self.nbytes)

    def array_like(self, values: Array, offset: int = 0) -> Array:
        """Return the bytes from an offset on as an array of the shape and dtype of `values`."""
        return self.memory[offset : offset + values.nbytes].view(values.dtype).reshape(values.shape)

    def free(self) -> None:
        """Wait until the buffer is unused; errors of a scatter are raised by its future."""
        if self.scattered is not None:
            self.scattered.exception()
        if self.mark is not None:
            self.mark.synchronize()
        self.mark = self.scattered = None


class _Loading:
    """Views of a source that threads gather into ring buffers of some bytes."""

    def __init__(self, views: Iterable[Array], source: object, nbytes: int) -> None:
        self.views = list(views)
        self.source = source
        #: Parts of numbered views that are not gathered yet.
        self.parts: deque[tuple[int, Part]] = deque()
        for number, view in enumerate(self.views):
            self.parts.extend((number, part) for part in slabs(view, nbytes))
        #: Buffers that are being filled, or that the GPU has not begun to read.
        self.buffers: deque[_Buffer] = deque()


class Ring:
    """Ring of pinned buffers for both directions, with a thread pool that copies.

    One thread at a time may call `load`, `ahead` and `store`. The caller passes the functions that
    start the GPU's copies.

    Parameters
    ----------
    allocate : callable
        Returns as many pinned bytes as its argument says. It is called for each buffer at its first
        use, because pinning takes longer than the copies of a small block.
    threads : int
        Number of host threads that gather and scatter.
    buffers : int
        Number of buffers for each direction.
    nbytes : int
        Size of a buffer in bytes.
    """

    def __init__(
        self,
        allocate: Callable[[int], Array],
        threads: int,
        buffers: int,
        nbytes: int,
    ) -> None:
        #: Buffers to the GPU without pending values.
        self.free = deque(_Buffer(nbytes, allocate) for _ in range(buffers))
        self._out = deque(_Buffer(nbytes, allocate) for _ in range(buffers))
        self.nbytes = nbytes
        self._threads = threads
        self.pool = copy_pool(threads)
        #: Pool before the loops were compiled, which may still be at work.
        self._earlier_pool: NumPyPool | None = None
        self._waiters = ThreadPoolExecutor(GATHERED, thread_name_prefix="bigfft-scatter")
        self._ahead: deque[_Loading] = deque()

    def ahead(self, views: Iterable[Array], source: object) -> None:
        """Start to gather the views of a source for later calls of `load`, in the same order.

        Only idle buffers are used, and one is left for earlier loads.
        """
        self._use_compiled_pool()
        self._ahead.append(_Loading(views, source, self.nbytes))
        self._go_ahead()

    def _use_compiled_pool(self) -> None:
        """Take a `CopyPool` for later copies once its loops are compiled."""
        if isinstance(self.pool, NumPyPool) and loops_are_loaded():
            self._earlier_pool = self.pool
            self.pool = CopyPool(self._threads)

    def _go_ahead(self) -> None:
        """Let threads fill idle buffers with announced views, and leave one for earlier loads."""
        for loading in self._ahead:
            while loading.parts and len(self.free) > 1:
                mark = self.free[0].mark
                if mark is not None and not mark.done:
                    return
                self._fill(loading)
            if loading.parts:
                return

    def _fill(self, loading: _Loading) -> None:
        """Let threads fill another buffer with as many parts as fit."""
        buffer = self.free.popleft()
        used = 0
        loading.buffers.append(buffer)
        buffer.free()
        while loading.parts:
            number, part = loading.parts[0]
            values = loading.views[number][part]
            if buffer.staged and used + values.nbytes > self.nbytes:
                return
            staged = buffer.array_like(values, used)
            used += -(-values.nbytes // APART_NBYTES) * APART_NBYTES
            buffer.shares.append(self.pool.copy(staged, values))
            buffer.staged.append((number, staged, part))
            loading.parts.popleft()

    def load(
        self,
        views: Iterable[Array],
        copy: Copy,
        mark: Marks,
        source: object = None,
    ) -> None:
        """Copy views to the GPU, several in one buffer if they are small.

        After an error or an interrupt the buffers are free again. The GPU may still read some of
        them, so the caller must wait for it before it continues.

        Parameters
        ----------
        views : iterable of ndarray
            The views.
        copy : callable
            ``copy(number, values, part)`` starts the GPU's copy of contiguous pinned values, a part
            of the view of that number.
        mark : callable
            Returns an event after all copies so far.
        source : object, optional
            The object that was passed to `ahead` with these views.
        """
        self._use_compiled_pool()
        loading = self._begun(source) or _Loading(views, source, self.nbytes)
        try:
            while loading.buffers or loading.parts:
                while loading.parts and len(loading.buffers) < GATHERED and self.free:
                    self._fill(loading)
                self._go_ahead()
                buffer = loading.buffers[0]
                for share in buffer.shares:
                    share.result()
                for staged in buffer.staged:
                    copy(*staged)
                buffer.mark = mark()
                self._give_back(loading)
        except BaseException:
            self._forget(loading)
            raise

    def _begun(self, source: object) -> _Loading | None:
        """Return the announced loading of a source, if any; earlier ones are cancelled."""
        if source is None or not any(loading.source is source for loading in self._ahead):
            return None
        while True:
            loading = self._ahead.popleft()
            if loading.source is source:
                return loading
            self._forget(loading)

    def _give_back(self, loading: _Loading) -> None:
        """Free the first buffer of a loading, once threads are done with it."""
        buffer = loading.buffers.popleft()
        for share in buffer.shares:
            share.result()
        buffer.shares = []
        buffer.staged = []
        self.free.append(buffer)

    def _forget(self, loading: _Loading) -> None:
        """Free all buffers of a loading."""
        while loading.buffers:
            self._give_back(loading)

    def forget(self) -> None:
        """Cancel announced loadings."""
        while self._ahead:
            self._forget(self._ahead.popleft())

    def store(self, targets: Iterable[Array], copy: Copy, mark: Marks) -> "Iterator[Future[None]]":
        """Copy views from the GPU part by part; yield a future for the arrival of each part.

        `copy` and `mark` are as in `load`, but the GPU writes the pinned values.
        """
        for number, target in enumerate(targets):
            for part in slabs(target, self.nbytes):
                values = target[part]
                buffer = self._out[0]
                self._out.rotate(-1)
                self._go_ahead()
                buffer.free()
                copy(number, buffer.array_like(values), part)
                buffer.scattered = self._waiters.submit(self._scatter, mark(), values, buffer)
                yield buffer.scattered

    def _scatter(self, mark: Mark, values: Array, buffer: _Buffer) -> None:
        """Copy a buffer to its place after the GPU has written it."""
        mark.synchronize()
        self.pool.copy(values, buffer.array_like(values)).result()

    def close(self) -> None:
        """Wait for all copies, and end the threads."""
        try:
            self.forget()
            for buffer in (*self.free, *self._out):
                buffer.free()
        finally:
            self._waiters.shutdown()
            self.pool.close()
            if self._earlier_pool is not None:
                self._earlier_pool.close()


def unfinished(futures: "Iterable[Future[None]]") -> "tuple[Future[None], ...]":
    """Return the futures that are not done, or that have failed."""
    return tuple(f for f in futures if not (f.done() and f.exception() is None))
