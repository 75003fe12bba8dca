"""Host threads that copy to and from pinned buffers: compiled code, and a queue of copies.

Threads take shares of copies from a table, under a mutex of the operating system. Handing out
shares in Python took 40 us of the GIL each, in which a bus moves 2 MiB. Wide rows are stored past
the caches (63 GB/s against 40 with NumPy, 16 threads of the machine in `ci/results/gpu.md`).
"""

import threading
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

#: Bytes of a share, which a thread copies at a time.
SHARE_NBYTES = 1024**2

#: Smallest row in bytes that is stored past the caches.
STREAMED_NBYTES = 2048

#: Bytes of a cache line.
LINE = 64


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
        line = ir.VectorType(word, LINE // 8)
        pointer = line.as_pointer()
        # Opaque pointers, those of newer llvmlite, do not say to what they point.
        kind = {"typ": line} if getattr(pointer, "is_opaque", False) else {}
        metadata = builder.module.add_metadata([ir.Constant(ir.IntType(32), 1)])
        with cgutils.for_range(builder, count, intp=word) as loop:
            at = builder.mul(loop.index, ir.Constant(word, LINE))
            origin = builder.inttoptr(builder.add(from_, at), pointer)
            values = builder.load(origin, align=1, **kind)
            place = builder.inttoptr(builder.add(to, at), pointer)
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
def _post(at, table, copy, out):  # type: ignore[no-untyped-def]
    """Append a copy to the queue, once a slot is free, and write its number to `out`."""
    _lock(at[_MUTEX])
    # Others may post meanwhile, so the slot may differ after each sleep.
    while table[_ONE + table[0, _POSTED] % _SLOTS, _LEFT] > _NONE:
        _sleep(at[_DONE], at[_MUTEX])
    number = table[0, _POSTED]
    slot = table[_ONE + number % _SLOTS]
    for i in range(len(copy)):
        slot[i] = copy[i]
    table[0, _POSTED] = number + _ONE
    _wake(at[_SOME])
    _unlock(at[_MUTEX])
    out[0] = number


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
        number = np.empty(1, np.uint64)
        _post(self._at, self._table, copy, number)
        return Copying(self, int(number[0]), target, source)

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
