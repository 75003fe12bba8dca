"""The compiled loops of strided copies, which `copies` imports when it needs them.

A plane begins at element `s0` of the source and `t0` of the target. It has `n` lines, which are
`sn` elements apart in the source and `tn` in the target. A line has `m` values, which are `sm` and
`tm` elements apart.

`conjugate` is True, or None for values that are not conjugated. It is never False: numba compiles a
loop for each type of the argument, and each loop has only the branch that it needs.
"""

from functools import partial
from typing import Any

import numpy as np
from llvmlite import ir

from dask_bigfft.kernels.compiled import compiled, load_numba
from dask_bigfft.kernels.compiler import populate_array
from dask_bigfft.kernels.copies import TILE
from dask_bigfft.kernels.multi_index import advance

numba = load_numba()
intrinsic = numba.extending.intrinsic
types = numba.core.types

#: Length of the strips in which a dense transposing copy runs: its lines stay in L1.
STRIP = 8

#: Lines that a copy prefetches ahead, and the maximum cache lines of each: for longer ones the
#: processor does. Copies of 256 bytes at a time take 0.65 of the time.
AHEAD = 8
SHORT = 16


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def _memory_from(typing_context: Any, address: Any, like: Any) -> Any:
    """Return the memory from an address on as values of the dtype of an array."""
    memory_type = types.Array(like.dtype, 1, "C")

    def codegen(
        context: Any,
        builder: Any,
        signature: Any,
        args: Any,
    ) -> Any:
        memory = context.make_array(memory_type)(context, builder)
        word = context.get_value_type(types.intp)
        itemsize = word(context.get_abi_sizeof(context.get_data_type(like.dtype)))
        populate_array(
            memory,
            data=builder.inttoptr(args[0], memory.data.type),
            shape=[word(1 << 62)],
            strides=[itemsize],
            itemsize=itemsize,
            meminfo=None,
        )
        return memory._getvalue()

    return memory_type(types.intp, like), codegen


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def _prefetch(typing_context: Any, memory: Any, place: Any) -> Any:
    """Load the cache line of a value; a place outside of the memory does no harm."""

    def codegen(
        context: Any,
        builder: Any,
        signature: Any,
        args: Any,
    ) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        kind: dict[str, Any] = {}
        if getattr(data.type, "is_opaque", False):  # newer llvmlite's pointers know no type
            kind["source_etype"] = context.get_data_type(signature.args[0].dtype)
        address = builder.gep(data, [args[1]], **kind)
        line = builder.bitcast(address, context.get_value_type(types.voidptr))
        number = ir.IntType(32)
        form = ir.FunctionType(ir.VoidType(), [line.type, number, number, number])
        call = builder.module.declare_intrinsic("llvm.prefetch", (line.type,), form)
        builder.call(call, [line, number(0), number(3), number(1)])  # to read, to L1, as data
        return context.get_dummy_value()

    return types.void(memory, place), codegen


@compiled
def _normalise(  # type: ignore[no-untyped-def]
    row,
    head,
    dims,
    count,
    source_step,
    target_step,
):
    """Sort dimensions by decreasing target stride, drop length-1 ones and merge contiguous ones."""
    used = 0
    for d in range(dims):
        n = row[head + 3 * d]
        if n == 1:
            continue
        s = row[head + 1 + 3 * d]
        t = row[head + 2 + 3 * d]
        at = used
        while at > 0 and abs(target_step[at - 1]) < abs(t):
            count[at] = count[at - 1]
            source_step[at] = source_step[at - 1]
            target_step[at] = target_step[at - 1]
            at -= 1
        count[at] = n
        source_step[at] = s
        target_step[at] = t
        used += 1
    joined = 0
    for d in range(used):
        n = count[d]
        s = source_step[d]
        t = target_step[d]
        if joined > 0 and source_step[joined - 1] == n * s and target_step[joined - 1] == n * t:
            count[joined - 1] *= n
            source_step[joined - 1] = s
            target_step[joined - 1] = t
        else:
            count[joined] = n
            source_step[joined] = s
            target_step[joined] = t
            joined += 1
    return joined


@compiled
def _lines(  # type: ignore[no-untyped-def]
    source,
    target,
    s0,
    t0,
    n,
    sn,
    tn,
    m,
    sm,
    tm,
    conjugate,
):
    """Copy n lines of m values at any strides; prefetch lines that are dense on both sides.

    Places are unsigned: numba tests signed ones for being negative at every access.
    """
    s0, sn, sm = np.uintp(s0), np.uintp(sn), np.uintp(sm)
    t0, tn, tm = np.uintp(t0), np.uintp(tn), np.uintp(tm)
    one = np.uintp(1)
    line = 64 // source.itemsize
    ahead = np.uintp(AHEAD)
    for i in range(n):
        s = s0 + np.uintp(i) * sn
        t = t0 + np.uintp(i) * tn
        if conjugate is not None:
            for j in range(m):
                target[t + np.uintp(j) * tm] = np.conj(source[s + np.uintp(j) * sm])
        elif sm == one and tm == one:
            for j in range(0, m if m <= SHORT * line else 0, line):
                _prefetch(source, s + ahead * sn + np.uintp(j))
                _prefetch(target, t + ahead * tn + np.uintp(j))
            for j in range(m):
                target[t + np.uintp(j)] = source[s + np.uintp(j)]
        else:
            for j in range(m):
                target[t + np.uintp(j) * tm] = source[s + np.uintp(j) * sm]


@compiled
def _copy_tile(  # type: ignore[no-untyped-def]
    source,
    target,
    buffer,
    s0,
    t0,
    n,
    sn,
    tn,
    m,
    sm,
    tm,
    conjugate,
):
    """Copy n x m values, at most TILE each way, through a buffer."""
    for j in range(m):
        at = s0 + j * sm
        for i in range(n):
            buffer[i, j] = source[at + i * sn]
    for i in range(n):
        at = t0 + i * tn
        for j in range(m):
            if conjugate is None:
                target[at + j * tm] = buffer[i, j]
            else:
                target[at + j * tm] = np.conj(buffer[i, j])


@partial(compiled, inline="always")
def _four(  # type: ignore[no-untyped-def]
    source,
    target,
    s,
    t,
    sn,
    sm,
    tn,
    conjugate,
):
    """Transpose 4 x 4 values: the source is dense one way, the target the other.

    They are conjugated unless `conjugate` is None, as in all loops.
    """
    for k in range(4):
        at = s + np.uintp(k) * sn
        a = source[at]
        b = source[at + sm]
        c = source[at + sm + sm]
        d = source[at + sm + sm + sm]
        if conjugate is not None:
            a, b, c, d = np.conj(a), np.conj(b), np.conj(c), np.conj(d)
        to = t + np.uintp(k) * tn
        target[to] = a
        target[to + np.uintp(1)] = b
        target[to + np.uintp(2)] = c
        target[to + np.uintp(3)] = d


@compiled
def _dense_plane(  # type: ignore[no-untyped-def]
    source,
    target,
    s0,
    t0,
    n,
    sn,
    tn,
    m,
    sm,
    conjugate,
):
    """Copy n x m values, multiples of 4; the source is dense along n, the target along m."""
    s0, t0, sn = np.uintp(s0), np.uintp(t0), np.uintp(sn)
    sm, tn = np.uintp(sm), np.uintp(tn)
    for j0 in range(0, m, STRIP):
        for i in range(0, n, 4):
            for j in range(j0, min(m, j0 + STRIP), 4):
                s = s0 + np.uintp(j) * sm + np.uintp(i) * sn
                t = t0 + np.uintp(i) * tn + np.uintp(j)
                for k in range(4):
                    _prefetch(source, s + np.uintp(STRIP + k) * sm)
                    _prefetch(target, t + np.uintp(STRIP) + np.uintp(k) * tn)
                _four(source, target, s, t, sn, sm, tn, conjugate)


@compiled
def _plane(  # type: ignore[no-untyped-def]
    source,
    target,
    buffer,
    s0,
    t0,
    n,
    sn,
    tn,
    m,
    sm,
    tm,
    conjugate,
):
    """Copy n x m values; the source is dense along n, the target along m."""
    n_done = 0
    m_done = 0
    if abs(sn) == 1 and tm == 1:
        n_done = n - n % 4
        m_done = m - m % 4
        _dense_plane(
            source,
            target,
            s0,
            t0,
            n_done,
            sn,
            tn,
            m_done,
            sm,
            conjugate,
        )
    for i0 in range(0, n, TILE):
        ni = min(TILE, n - i0)
        # Right of the rectangle that is done, and below it.
        first = m_done if i0 + ni <= n_done else 0
        for j0 in range(first, m, TILE):
            mj = min(TILE, m - j0)
            s = s0 + i0 * sn + j0 * sm
            t = t0 + i0 * tn + j0 * tm
            _copy_tile(
                source,
                target,
                buffer,
                s,
                t,
                ni,
                sn,
                tn,
                mj,
                sm,
                tm,
                conjugate,
            )


@compiled
def _densest(used, count, source_step):  # type: ignore[no-untyped-def]
    """Return the dimension with the smallest source stride, the last one of several."""
    densest = used - 1
    for d in range(used - 1):
        if count[d] > 1 and abs(source_step[d]) < abs(source_step[densest]):
            densest = d
    return densest


@compiled
def _move(values, old, new):  # type: ignore[no-untyped-def]
    """Move a value to a later place; those between come forward."""
    moved = values[old]
    for d in range(old, new):
        values[d] = values[d + 1]
    values[new] = moved


@compiled
def _copy_planes(  # type: ignore[no-untyped-def]
    source,
    target,
    buffer,
    dims,
    used,
    s_at,
    t_at,
    conjugate,
):
    """Copy all planes; the target is dense along the last dimension of each."""
    index, count, source_step, target_step = dims
    outer = used - 2
    densest = _densest(used, count, source_step)
    straight = densest == used - 1
    if not straight:
        for values in (count, source_step, target_step):
            _move(values, densest, outer)
    planes = 1
    for d in range(outer):
        index[d] = 0
        planes *= count[d]
    n = count[outer]
    sn = source_step[outer]
    tn = target_step[outer]
    m = count[used - 1]
    sm = source_step[used - 1]
    tm = target_step[used - 1]
    for _ in range(planes):
        if not straight:
            _plane(
                source,
                target,
                buffer,
                s_at,
                t_at,
                n,
                sn,
                tn,
                m,
                sm,
                tm,
                conjugate,
            )
        else:
            _lines(source, target, s_at, t_at, n, sn, tn, m, sm, tm, conjugate)
        s_change, t_change = advance(index[:outer], count, source_step, target_step)
        s_at += s_change
        t_at += t_change


@compiled
def _as_plane(used, count, source_step, target_step):  # type: ignore[no-untyped-def]
    """Make a plane of a value or a line, its last dimension; return the number of dimensions."""
    if used >= 2:
        return used
    if used == 0:
        count[0] = 1
        source_step[0] = 0
        target_step[0] = 0
    count[1] = count[0]
    source_step[1] = source_step[0]
    target_step[1] = target_step[0]
    count[0] = 1
    source_step[0] = 0
    target_step[0] = 0
    return 2


@compiled
def _lowest(used, count, step):  # type: ignore[no-untyped-def]
    """Return the offset of the lowest address of a copy from that of its first value."""
    lowest = 0
    for d in range(used):
        lowest += min(0, (count[d] - 1) * step[d])
    return lowest


@compiled
def _clip(  # type: ignore[no-untyped-def]
    row,
    head,
    low,
    high,
    origin,
    source_size,
    target_size,
):
    """Crop a row to a tile in place; return False if nothing is left.

    `HEAD` of `copies` has the entries of a row: addresses in bytes, and strides in values, which
    have the sizes in bytes `source_size` and `target_size`. The tile has the places `low` to `high`
    along its dimension, and the target begins at the place `origin`.
    """
    along = row[2]  # the row's dimension along the tiled one, -1 if it has none
    first = row[3]
    step = row[4]
    begin = max(low - first, 0)
    end = high - first
    if along < 0:
        if begin > 0 or end <= 0:
            return False
    else:
        d = head + 3 * along
        end = min(end, row[d])
        if end <= begin:
            return False
        row[0] += begin * row[d + 1] * source_size
        row[d] = end - begin
    row[1] += (first + begin - origin) * step * target_size
    return True


@compiled
def copy_rows(  # type: ignore[no-untyped-def]
    table,
    head,
    dims,
    low,
    high,
    origin,
    source_like,
    buffer,
    work,
    conjugate,
):
    """Do the parts of the copies of a table that are within a tile, row by row.

    `head` is the number of entries of a row before its dimensions, `HEAD` of `copies`.
    `source_like` has the dtype of sources, `buffer` that of the target, for a transposing tile.
    `work` has memory for five rows.
    """
    width = dims + 2
    count = work[:width]
    index = work[width : 2 * width]
    source_step = work[2 * width : 3 * width]
    target_step = work[3 * width : 4 * width]
    row = work[4 * width : 4 * width + table.shape[1]]
    for r in range(table.shape[0]):
        for i in range(row.size):
            row[i] = table[r, i]
        if not _clip(row, head, low, high, origin, source_like.itemsize, buffer.itemsize):
            continue
        used = _normalise(row, head, dims, count, source_step, target_step)
        used = _as_plane(used, count, source_step, target_step)
        # Offsets count from the lowest address touched, because carray wraps negative ones.
        s_low = _lowest(used, count, source_step)
        t_low = _lowest(used, count, target_step)
        source = _memory_from(row[0] + s_low * source_like.itemsize, source_like)
        target = _memory_from(row[1] + t_low * buffer.itemsize, buffer)
        dims_of = index, count, source_step, target_step
        _copy_planes(
            source,
            target,
            buffer,
            dims_of,
            used,
            -s_low,
            -t_low,
            conjugate,
        )
