"""The compiled loops of `copy_threads`: copies of rows, and a queue under a mutex of the system."""

from typing import Any

import numpy as np

from dask_bigfft.gpu.copy_threads import (
    CLOSED,
    DONE,
    FIRST,
    LEFT,
    LINE,
    MUTEX,
    NBYTES,
    NDIM,
    NEXT,
    POSTED,
    ROWS,
    SHARE,
    SLOTS,
    SOME,
    SOURCE,
    STREAMED,
    TARGET,
    WIDTH,
)
from dask_bigfft.kernels.compiled import compiled, load_numba

numba = load_numba()
cgutils = numba.core.cgutils
ir = numba.core.cgutils.ir
types = numba.core.types
intrinsic = numba.extending.intrinsic


# --- rows ------------------------------------------------------------------------


@intrinsic
def _stream(  # type: ignore[no-untyped-def]
    typingctx,
    target,
    source,
    lines,
):
    """Copy `lines` lines of `LINE` bytes to an address that is a multiple of `LINE`."""

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
def _copy_bytes(  # type: ignore[no-untyped-def]
    typingctx,
    target,
    source,
    count,
):
    """Copy `count` bytes from one address to another."""

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
            _copy_bytes(t, s, head)
            lines = (count - head) // line
            _stream(t + head, s + head, lines)
            tail = head + lines * line
            _copy_bytes(t + tail, s + tail, count - tail)
        else:
            _copy_bytes(t, s, count)
        at += count
        row += np.uint64(1)
        skip = np.uint64(0)


# --- the queue ------------------------------------------------------------------------------

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
def init(at):  # type: ignore[no-untyped-def]
    """Make the mutex and the conditions."""
    _mutex_init(at[MUTEX], _NONE)
    _cond_init(at[SOME], _NONE)
    _cond_init(at[DONE], _NONE)


@compiled
def post(at, table, copy, out):  # type: ignore[no-untyped-def]
    """Append a copy to the queue, once a slot is free, and write its number to `out`."""
    _lock(at[MUTEX])
    # Others may post meanwhile, so the slot may differ after each sleep.
    while table[_ONE + table[0, POSTED] % _SLOTS, LEFT] > _NONE:
        _sleep(at[DONE], at[MUTEX])
    number = table[0, POSTED]
    slot = table[_ONE + number % _SLOTS]
    for i in range(len(copy)):
        slot[i] = copy[i]
    table[0, POSTED] = number + _ONE
    _wake(at[SOME])
    _unlock(at[MUTEX])
    out[0] = number


@compiled
def serve(at, table):  # type: ignore[no-untyped-def]
    """Copy shares until the queue is closed and empty."""
    _lock(at[MUTEX])
    while True:
        first = table[0, FIRST]
        if first == table[0, POSTED]:
            if table[0, CLOSED]:
                break
            _sleep(at[SOME], at[MUTEX])
            continue
        copy = table[_ONE + first % _SLOTS]
        low = copy[NEXT]
        nbytes = copy[NBYTES]
        high = min(nbytes, low + copy[SHARE])
        copy[NEXT] = high
        if high == nbytes:
            table[0, FIRST] = first + _ONE
        _unlock(at[MUTEX])
        n = copy[NDIM]
        rows = copy[ROWS:]
        copy_rows(
            copy[TARGET],
            copy[SOURCE],
            copy[WIDTH],
            rows[:n],
            rows[n : 2 * n],
            rows[2 * n :],
            low,
            high,
            copy[STREAMED] > _NONE,
        )
        _lock(at[MUTEX])  # which also orders streamed stores before later ones
        copy[LEFT] -= high - low
        if copy[LEFT] == _NONE:
            _wake(at[DONE])
    _unlock(at[MUTEX])


@compiled
def wait(at, table, number):  # type: ignore[no-untyped-def]
    """Sleep until nothing is left of a copy, or another copy has its slot."""
    number = np.uint64(number)
    slot = _ONE + number % _SLOTS
    _lock(at[MUTEX])
    while table[0, POSTED] - number <= _SLOTS and table[slot, LEFT] > _NONE:
        _sleep(at[DONE], at[MUTEX])
    _unlock(at[MUTEX])


@compiled
def close(at, table):  # type: ignore[no-untyped-def]
    """Tell the threads to end once the queue is empty."""
    _lock(at[MUTEX])
    table[0, CLOSED] = _ONE
    _wake(at[SOME])
    _unlock(at[MUTEX])
