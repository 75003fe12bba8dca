"""Ring of pinned buffers for pageable host memory, and the host threads that copy.

Several threads gather the rows of a tile into a pinned buffer, and fill the next one while the GPU
reads it. The way back is the mirror image. The ring is sized by the device, not by the data (Lee
and Kim, Electronics 12, 2023)::

    block --threads--> buffer --GPU--> tile        tile --GPU--> buffer --threads--> block

The caller waits for a gather, but may announce the next load, which threads then start to gather.
A scatter runs in the background, and its future tells when the values have arrived.

The threads run compiled code and take shares of copies from a table, under a mutex of the operating
system. Handing out shares in Python took 40 us of the GIL each, in which a bus moves 2 MiB. Wide
rows are stored past the caches (63 GB/s against 40 with NumPy, 16 threads of the machine in
`ci/results/gpu.md`).
"""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.gpu.operations import runs
from dask_bigfft.kernels.compiled import compiled, load_numba

numba = load_numba()
cgutils = numba.core.cgutils
ir = numba.core.cgutils.ir
types = numba.core.types
intrinsic = numba.extending.intrinsic

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

#: Bytes of a share, which a thread copies at a time.
SHARE_NBYTES = 1024**2

#: Smallest row in bytes that is stored past the caches.
STREAMED_NBYTES = 2048

#: Bytes of a cache line.
LINE = 64


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


# --- compiled copies ------------------------------------------------------------------------


@intrinsic
def _stream(  # type: ignore[no-untyped-def]
    typingctx,
    target,
    source,
    lines,
):
    """Copy lines to an address that is a multiple of `LINE`."""

    def code(  # type: ignore[no-untyped-def]
        context,
        builder,
        signature,
        arguments,
    ):
        to, from_, count = arguments
        word = ir.IntType(64)
        line = ir.VectorType(word, LINE // 8).as_pointer()
        metadata = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        with cgutils.for_range(builder, count, intp=word) as loop:
            at = builder.mul(loop.index, ir.Constant(word, LINE))
            values = builder.load(builder.inttoptr(builder.add(from_, at), line), align=1)
            place = builder.inttoptr(builder.add(to, at), line)
            builder.store(values, place, align=LINE).set_metadata("nontemporal", metadata)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), code


@intrinsic
def _bytes(  # type: ignore[no-untyped-def]
    typingctx,
    target,
    source,
    count,
):
    """Copy a few bytes between addresses."""

    def code(  # type: ignore[no-untyped-def]
        context,
        builder,
        signature,
        arguments,
    ):
        byte = ir.IntType(8).as_pointer()
        to, from_ = (builder.inttoptr(address, byte) for address in arguments[:2])
        cgutils.raw_memcpy(builder, to, from_, arguments[2], 1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), code


@compiled
def copy_rows(  # type: ignore[no-untyped-def]
    target,
    source,
    width,
    counts,
    to,
    from_,
    low,
    high,
    streamed,
):
    """Copy bytes `low` to `high - 1` of rows of some width; all numbers are unsigned."""
    line = np.uint64(LINE)
    row = low // width
    skip = low - row * width
    at = low
    while at < high:
        count = min(width - skip, high - at)
        outer_row = row
        t = target + skip
        s = source + skip
        for d in range(len(counts) - 1, -1, -1):
            i = outer_row % counts[d]
            outer_row //= counts[d]
            t += i * to[d]
            s += i * from_[d]
        if streamed:
            head = min(count, (line - t % line) % line)
            _bytes(t, s, head)
            lines = (count - head) // line
            _stream(t + head, s + head, lines)
            tail = head + lines * line
            _bytes(t + tail, s + tail, count - tail)
        else:
            _bytes(t, s, count)
        at += count
        row += np.uint64(1)
        skip = np.uint64(0)


# --- threads that take shares of copies -----------------------------------------------------

#: Largest number of copies in flight; posting another one waits.
SLOTS = 64

#: Largest number of dimensions of rows, as in NumPy.
DIMS = 64

#: Columns of the table's first row.
_POSTED, _FIRST, _CLOSED = range(3)

#: Columns of a copy, followed by the counts and both strides of the rows.
_TARGET, _SOURCE, _WIDTH, _NDIM, _STREAMED, _NBYTES, _SHARE, _NEXT, _LEFT, _ROWS = range(10)

#: Addresses of the mutex and the conditions "there is something to copy" and "a copy is done", and
#: bytes for each, more than any platform needs.
_MUTEX, _SOME, _DONE = range(3)
_LOCK_NBYTES = 128

_ONE = np.uint64(1)
_NONE = np.uint64(0)
_SLOTS = np.uint64(SLOTS)


def _external(name: str, count: int) -> Any:
    """Return a function of the operating system that takes addresses and returns 0 or an error."""
    return types.ExternalFunction(name, types.int32(*(types.uintp,) * count))


_mutex_init = _external("pthread_mutex_init", 2)
_cond_init = _external("pthread_cond_init", 2)
_lock = _external("pthread_mutex_lock", 1)
_unlock = _external("pthread_mutex_unlock", 1)
_sleep = _external("pthread_cond_wait", 2)
_wake = _external("pthread_cond_broadcast", 1)


@compiled
def _init(at):  # type: ignore[no-untyped-def]
    _mutex_init(at[_MUTEX], _NONE)
    _cond_init(at[_SOME], _NONE)
    _cond_init(at[_DONE], _NONE)


@compiled
def _post(at, table, copy):  # type: ignore[no-untyped-def]
    """Append a copy to the queue, once a slot is free, and return its number."""
    _lock(at[_MUTEX])
    # Others may post meanwhile, so the slot may differ after each sleep.
    while table[_ONE + table[0, _POSTED] % _SLOTS, _LEFT] > _NONE:
        _sleep(at[_DONE], at[_MUTEX])
    number = table[0, _POSTED]
    table[_ONE + number % _SLOTS, : len(copy)] = copy
    table[0, _POSTED] = number + _ONE
    _wake(at[_SOME])
    _unlock(at[_MUTEX])
    return number


@compiled
def _serve(at, table):  # type: ignore[no-untyped-def]
    """Copy shares until the queue is closed and empty."""
    _lock(at[_MUTEX])
    while True:
        first = table[0, _FIRST]
        if first == table[0, _POSTED]:
            if table[0, _CLOSED]:
                break
            _sleep(at[_SOME], at[_MUTEX])
            continue
        copy = table[_ONE + first % _SLOTS]
        low = copy[_NEXT]
        nbytes = copy[_NBYTES]
        high = min(nbytes, low + copy[_SHARE])
        copy[_NEXT] = high
        if high == nbytes:
            table[0, _FIRST] = first + _ONE
        _unlock(at[_MUTEX])
        n = copy[_NDIM]
        rows = copy[_ROWS:]
        copy_rows(
            copy[_TARGET],
            copy[_SOURCE],
            copy[_WIDTH],
            rows[:n],
            rows[n : 2 * n],
            rows[2 * n :],
            low,
            high,
            copy[_STREAMED] > _NONE,
        )
        _lock(at[_MUTEX])  # which also orders streamed stores before later ones
        copy[_LEFT] -= high - low
        if copy[_LEFT] == _NONE:
            _wake(at[_DONE])
    _unlock(at[_MUTEX])


@compiled
def _wait(at, table, number):  # type: ignore[no-untyped-def]
    """Sleep until nothing is left of a copy, or another copy has its slot."""
    number = np.uint64(number)
    slot = _ONE + number % _SLOTS
    _lock(at[_MUTEX])
    while table[0, _POSTED] - number <= _SLOTS and table[slot, _LEFT] > _NONE:
        _sleep(at[_DONE], at[_MUTEX])
    _unlock(at[_MUTEX])


@compiled
def _close(at, table):  # type: ignore[no-untyped-def]
    _lock(at[_MUTEX])
    table[0, _CLOSED] = _ONE
    _wake(at[_SOME])
    _unlock(at[_MUTEX])


class CopyPool:
    """Thread pool that copies arrays.

    Parameters
    ----------
    threads : int
        Number of threads.

    Examples
    --------
    >>> pool, block = CopyPool(2), np.arange(12.0).reshape(3, 4)
    >>> part = np.empty((3, 2))
    >>> pool.copy(part, block[:, 1:3]).result()
    >>> part[2].tolist()
    [9.0, 10.0]
    >>> pool.close()
    """

    def __init__(self, threads: int) -> None:
        self._table = np.zeros((1 + SLOTS, _ROWS + 3 * DIMS), np.uint64)
        self._locks = np.zeros(4 * _LOCK_NBYTES, np.uint8)
        first = -(-self._locks.ctypes.data // _LOCK_NBYTES) * _LOCK_NBYTES
        self._at = np.array([first + i * _LOCK_NBYTES for i in range(3)], np.uint64)
        _init(self._at)
        self.wait(0)  # compiles the wait now, because later calls may come at interpreter exit
        self._threads = [
            threading.Thread(
                target=_serve, args=(self._at, self._table), name=f"bigfft-copy-{i}", daemon=True
            )
            for i in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def copy(self, target: Array, source: Array) -> "Copying":
        """Start to copy an array to another of its shape; waits while `SLOTS` copies are in flight.

        Wide rows are stored past the caches, because the CPU does not read them soon.
        """
        nbytes = source.nbytes
        if not nbytes:
            return Copying(self, None, target, source)
        width, rows = runs(source.shape, source.strides, source.itemsize, target.strides)
        # In the order of the columns from `_TARGET` on.
        head = (
            target.__array_interface__["data"][0],
            source.__array_interface__["data"][0],
            width,
            len(rows),
            width >= STREAMED_NBYTES,
            nbytes,
            SHARE_NBYTES,
            0,
            nbytes,
        )
        counts = [count for count, _, _ in rows]
        source_steps = [step for _, step, _ in rows]
        target_steps = [step for _, _, step in rows]
        copy = np.array((*head, *counts, *target_steps, *source_steps), np.uint64)
        return Copying(self, int(_post(self._at, self._table, copy)), target, source)

    def wait(self, number: int) -> None:
        """Wait until a copy is done."""
        _wait(self._at, self._table, number)

    def close(self) -> None:
        """End the threads after all copies are done."""
        _close(self._at, self._table)
        for thread in self._threads:
            thread.join()


class Copying:
    """Copy in flight, which keeps its arrays alive until the end."""

    def __init__(self, pool: CopyPool, number: int | None, *arrays: Array) -> None:
        self._pool = pool
        self._number = number
        self._arrays = arrays

    def result(self) -> None:
        """Wait until the copy is done."""
        if self._number is not None:
            self._pool.wait(self._number)
            self._number = None
            self._arrays = ()

    __del__ = result


# --- the ring -------------------------------------------------------------------------------


#: CuPy event after which the GPU has finished with a buffer.
Mark = Any
Marks = Callable[[], Mark]

#: Copies pinned values, a part of a numbered view, between a buffer and the GPU.
Copy = Callable[[int, Array, Part], object]


@dataclass
class _Buffer:
    """Pinned buffer with the copies in flight to and from it."""

    memory: Array
    mark: Mark | None = None
    scattered: "Future[None] | None" = None
    shares: list[Copying] = field(default_factory=list)
    staged: list[tuple[int, Array, Part]] = field(default_factory=list)

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
    buffers : list of ndarray
        Pinned bytes, half of them for each direction.
    threads : int
        Number of host threads that gather and scatter.
    """

    def __init__(self, buffers: list[Array], threads: int) -> None:
        half = len(buffers) // 2
        #: Buffers to the GPU without pending values.
        self.free = deque(_Buffer(memory) for memory in buffers[:half])
        self._out = deque(_Buffer(memory) for memory in buffers[half:])
        self.nbytes = buffers[0].nbytes
        self.pool = CopyPool(threads)
        self._waiters = ThreadPoolExecutor(GATHERED, thread_name_prefix="bigfft-scatter")
        self._ahead: deque[_Loading] = deque()

    def ahead(self, views: Iterable[Array], source: object) -> None:
        """Start to gather the views of a source for later calls of `load`, in the same order.

        Only idle buffers are used, and one is left for earlier loads.
        """
        self._ahead.append(_Loading(views, source, self.nbytes))
        self._go_ahead()

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


def unfinished(futures: "Iterable[Future[None]]") -> "tuple[Future[None], ...]":
    """Return the futures that are not done, or that have failed."""
    return tuple(f for f in futures if not (f.done() and f.exception() is None))
