"""Strided copies between blocks, many at a time and without the GIL.

A gather reads pieces of many source blocks.  Each piece is one row of a *copy table*: where
it starts in memory, and the extents and strides of both sides.  One compiled call works the
table off.  Where both sides run along the same dimension it copies lines; where they do not,
it transposes in small tiles through a buffer that stays in cache, so that every cache line
that is touched is used whole on both sides.

The tables hold addresses: whoever builds one keeps the arrays alive until the call returns.
Types that numba does not know (long double, and casts) take NumPy's own strided copy.

Imports numba, numpy and `compiled`; may import `errors` beside that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numba import carray  # type: ignore[attr-defined, unused-ignore]
from numba.core import types
from numba.extending import intrinsic

from dask_bigfft.kernels.compiled import compiled

#: Edge of the transposing tile, in elements; small, so that power-of-two strides do not evict
#: a tile from L1.
TILE = 8

#: Length of the strips in which a dense transposing copy runs: its lines stay in L1.
STRIP = 16

#: Entries of a row before its dimensions: both addresses, whether to conjugate, which dimension
#: runs along the tiled one (-1: none), where along it the copy begins, and the target's step there.
HEAD = 6

#: Pairs (source, target) that the compiled copy takes; complex to complex may conjugate.
COMPILED = frozenset(
    (np.dtype(a), np.dtype(b))
    for a, b in [
        ("c16", "c16"),
        ("c8", "c8"),
        ("f8", "f8"),
        ("f4", "f4"),
        ("f8", "c16"),
        ("f4", "c8"),
    ]
)


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def _pointer(typing_context: Any, address: Any) -> Any:
    """An address as an untyped pointer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.intp), codegen


@compiled
def _normalise(row, dims, count, source_step, target_step):  # type: ignore[no-untyped-def]
    """Dimensions of a row by falling target stride, length-1 ones dropped, runs merged."""
    used = 0
    for d in range(dims):
        n = row[HEAD + 3 * d]
        if n == 1:
            continue
        s, t = row[HEAD + 1 + 3 * d], row[HEAD + 2 + 3 * d]
        at = used
        while at > 0 and abs(target_step[at - 1]) < abs(t):
            count[at] = count[at - 1]
            source_step[at] = source_step[at - 1]
            target_step[at] = target_step[at - 1]
            at -= 1
        count[at], source_step[at], target_step[at] = n, s, t
        used += 1
    kept = 0
    for d in range(used):
        n, s, t = count[d], source_step[d], target_step[d]
        if kept > 0 and source_step[kept - 1] == n * s and target_step[kept - 1] == n * t:
            count[kept - 1] *= n
            source_step[kept - 1], target_step[kept - 1] = s, t
        else:
            count[kept], source_step[kept], target_step[kept] = n, s, t
            kept += 1
    return kept


@compiled
def _lines(source, target, s0, t0, n, sn, tn, m, sm, tm, conjugate):  # type: ignore[no-untyped-def]
    """Copy n lines of m values; both sides run along the line.

    Places are unsigned: numba tests signed ones for being negative at every access.
    """
    s0, sn, sm = np.uintp(s0), np.uintp(sn), np.uintp(sm)
    t0, tn, tm = np.uintp(t0), np.uintp(tn), np.uintp(tm)
    one = np.uintp(1)
    for i in range(n):
        s, t = s0 + np.uintp(i) * sn, t0 + np.uintp(i) * tn
        if conjugate:
            for j in range(m):
                target[t + np.uintp(j) * tm] = np.conj(source[s + np.uintp(j) * sm])
        elif sm == one and tm == one:
            for j in range(m):
                target[t + np.uintp(j)] = source[s + np.uintp(j)]
        else:
            for j in range(m):
                target[t + np.uintp(j) * tm] = source[s + np.uintp(j) * sm]


@compiled
def _tile(source, target, buffer, s0, t0, n, sn, tn, m, sm, tm, conjugate):  # type: ignore[no-untyped-def]
    """Copy n x m values, at most TILE each way, through a buffer."""
    for j in range(m):
        at = s0 + j * sm
        for i in range(n):
            buffer[i, j] = source[at + i * sn]
    for i in range(n):
        at = t0 + i * tn
        for j in range(m):
            target[at + j * tm] = np.conj(buffer[i, j]) if conjugate else buffer[i, j]


@partial(compiled, inline="always")
def _four(source, target, s, t, sn, sm, tn, conjugate):  # type: ignore[no-untyped-def]
    """Transpose 4 x 4 values: the source is dense one way, the target the other."""
    for k in range(4):
        at = s + np.uintp(k) * sn
        a, b = source[at], source[at + sm]
        c, d = source[at + sm + sm], source[at + sm + sm + sm]
        if conjugate:
            a, b, c, d = np.conj(a), np.conj(b), np.conj(c), np.conj(d)
        to = t + np.uintp(k) * tn
        target[to], target[to + np.uintp(1)] = a, b
        target[to + np.uintp(2)], target[to + np.uintp(3)] = c, d


@compiled
def _dense_plane(source, target, s0, t0, n, sn, tn, m, sm, conjugate):  # type: ignore[no-untyped-def]
    """Copy n x m values, multiples of 4; the source is dense along n, the target along m."""
    s0, t0, sn = np.uintp(s0), np.uintp(t0), np.uintp(sn)
    sm, tn = np.uintp(sm), np.uintp(tn)
    for j0 in range(0, m, STRIP):
        for i in range(0, n, 4):
            for j in range(j0, min(m, j0 + STRIP), 4):
                s = s0 + np.uintp(j) * sm + np.uintp(i) * sn
                t = t0 + np.uintp(i) * tn + np.uintp(j)
                _four(source, target, s, t, sn, sm, tn, conjugate)


@compiled
def _plane(source, target, buffer, s0, t0, n, sn, tn, m, sm, tm, conjugate):  # type: ignore[no-untyped-def]
    """Copy n x m values; the source runs along n, the target along m."""
    n_done, m_done = 0, 0
    if abs(sn) == 1 and tm == 1:
        n_done, m_done = n - n % 4, m - m % 4
        _dense_plane(source, target, s0, t0, n_done, sn, tn, m_done, sm, conjugate)
    for i0 in range(0, n, TILE):
        ni = min(TILE, n - i0)
        # Right of the rectangle that is done, and below it.
        first = m_done if i0 + ni <= n_done else 0
        for j0 in range(first, m, TILE):
            mj = min(TILE, m - j0)
            _tile(
                source, target, buffer, s0 + i0 * sn + j0 * sm, t0 + i0 * tn + j0 * tm,
                ni, sn, tn, mj, sm, tm, conjugate,
            )


@compiled
def _densest(used, count, source_step):  # type: ignore[no-untyped-def]
    """Dimension in which the source runs; the last one if several do."""
    found = used - 1
    for d in range(used - 1):
        if count[d] > 1 and abs(source_step[d]) < abs(source_step[found]):
            found = d
    return found


@compiled
def _copy_planes(  # type: ignore[no-untyped-def]
    source, target, buffer, index, count, source_step, target_step, used, s_at, t_at, conjugate
):
    """Copy plane after plane: the target runs along the last dimension of each."""
    last = used - 1
    other = _densest(used, count, source_step)
    straight = other == last
    if straight:
        other = last - 1
    planes = 1
    for d in range(last):
        index[d] = 0
        if d != other:
            planes *= count[d]
    n, sn, tn = count[other], source_step[other], target_step[other]
    m, sm, tm = count[last], source_step[last], target_step[last]
    for _ in range(planes):
        if straight:
            _lines(source, target, s_at, t_at, n, sn, tn, m, sm, tm, conjugate)
        else:
            _plane(source, target, buffer, s_at, t_at, n, sn, tn, m, sm, tm, conjugate)
        for d in range(last - 1, -1, -1):
            if d == other:
                continue
            index[d] += 1
            s_at += source_step[d]
            t_at += target_step[d]
            if index[d] < count[d]:
                break
            index[d] = 0
            s_at -= count[d] * source_step[d]
            t_at -= count[d] * target_step[d]


@compiled
def _clip(row, low, high, origin, source_size, target_size):  # type: ignore[no-untyped-def]
    """Cut a row down to the part of it within a tile; whether anything is left."""
    along, first, step = row[3], row[4], row[5]
    begin, end = max(low - first, 0), high - first
    if along < 0:
        if begin > 0 or end <= 0:
            return False
    else:
        d = HEAD + 3 * along
        end = min(end, row[d])
        if end <= begin:
            return False
        row[0] += begin * row[d + 1] * source_size
        row[d] = end - begin
    row[1] += (first + begin - origin) * step * target_size
    return True


@compiled
def _copy_table(  # type: ignore[no-untyped-def]
    table, dims, low, high, origin, source_like, target_like
):
    """Do the copies of a table, row by row, as far as they lie within a tile."""
    huge = 1 << 62
    count, index = np.empty(dims + 2, np.int64), np.empty(dims + 2, np.int64)
    source_step, target_step = np.empty(dims + 2, np.int64), np.empty(dims + 2, np.int64)
    buffer = np.empty((TILE, TILE), target_like.dtype)
    row = np.empty(table.shape[1], np.int64)
    for r in range(table.shape[0]):
        row[:] = table[r]
        if not _clip(row, low, high, origin, source_like.itemsize, target_like.itemsize):
            continue
        used = _normalise(row, dims, count, source_step, target_step)
        while used < 2:  # a value, or a line: a plane all the same
            count[used], source_step[used], target_step[used] = 1, 0, 0
            if used == 1:  # the line stays the last dimension
                count[0], count[1] = 1, count[0]
                source_step[0], source_step[1] = 0, source_step[0]
                target_step[0], target_step[1] = 0, target_step[0]
            used += 1
        # Offsets count from the lowest address touched, because carray wraps negative ones.
        s_low, t_low = 0, 0
        for d in range(used):
            s_low += min(0, (count[d] - 1) * source_step[d])
            t_low += min(0, (count[d] - 1) * target_step[d])
        source = carray(
            _pointer(row[0] + s_low * source_like.itemsize),  # type: ignore[call-arg, unused-ignore]
            (huge,),
            source_like.dtype,
        )
        target = carray(
            _pointer(row[1] + t_low * target_like.itemsize),  # type: ignore[call-arg, unused-ignore]
            (huge,),
            target_like.dtype,
        )
        _copy_planes(
            source, target, buffer, index, count, source_step, target_step, used,
            -s_low, -t_low, row[2] != 0,
        )


@dataclass(frozen=True, eq=False)
class Rows:
    """Many strided copies of the same dimensions; starts and strides in bytes.

    ``counts`` and both strides have a row for each copy, the starts an entry. `along`, `firsts`
    and `step` are what `CopyTable.add` takes as along, first and step.
    """

    counts: np.ndarray
    source_starts: np.ndarray
    source_strides: np.ndarray
    target_starts: np.ndarray
    target_strides: np.ndarray
    firsts: np.ndarray
    conjugate: bool
    along: int = -1
    step: int = 0


class CopyTable:
    """Strided copies collected, then done in one call, or tile by tile.

    Parameters
    ----------
    target : ndarray
        Block that is written, or a tile of it.
    """

    def __init__(self, target: np.ndarray) -> None:
        self.target = target
        self._rows: dict[np.dtype, list[tuple[int, ...]]] = {}
        self._tables: list[tuple[np.dtype, np.ndarray]] = []
        self._keep: list[np.ndarray] = []

    def add(
        self,
        source: np.ndarray,
        counts: Sequence[int],
        source_start: int,
        source_strides: Sequence[int],
        target_start: int,
        target_strides: Sequence[int],
        conjugate: bool = False,
        along: int = -1,
        first: int = 0,
        step: int = 0,
    ) -> None:
        """Add one strided copy; starts and strides in bytes from the arrays' first elements.

        Copies of complex sources into a real target take the real part. `along` is the
        dimension of the copy that runs along the tiled dimension (-1: none does), `first` where
        along it the copy begins, which `target_start` then leaves out, and `step` the target's
        stride there, in bytes.
        """
        target = self.target
        if source.dtype.kind == "c" and target.dtype.kind != "c":
            source = source.real
        if not compiles(source, target.dtype, source_strides):
            values = strided_view(source, source_start, counts, source_strides)
            strided_view(target, target_start, counts, target_strides)[...] = (
                values.conj() if conjugate else values
            )
            return
        row = [source.ctypes.data + source_start, target.ctypes.data + target_start]
        row += (int(conjugate), along, first, step // target.itemsize)
        for n, s, t in zip(counts, source_strides, target_strides, strict=True):
            row += (n, s // source.itemsize, t // target.itemsize)
        self._rows.setdefault(source.dtype, []).append(tuple(row))
        self._keep.append(source)

    def extend(self, sources: Sequence[np.ndarray], which: np.ndarray, rows: Rows) -> None:
        """Add many strided copies of one shape; `which` names the source of each.

        All at once where the compiled copy takes all sources.
        """
        plain = [
            a.real if a.dtype.kind == "c" and self.target.dtype.kind != "c" else a for a in sources
        ]
        same = len({a.dtype for a in plain}) == 1
        if not same or not all(compiles(a, self.target.dtype) for a in plain):
            self._add_each(sources, which, rows)
            return
        addresses = np.array([a.ctypes.data for a in plain], np.int64)
        size, item = plain[0].itemsize, self.target.itemsize
        count, dims = rows.counts.shape
        table = np.empty((count, HEAD + 3 * dims), np.int64)
        table[:, 0] = addresses[which] + rows.source_starts
        table[:, 1] = self.target.ctypes.data + rows.target_starts
        table[:, 2] = rows.conjugate
        table[:, 3], table[:, 4], table[:, 5] = rows.along, rows.firsts, rows.step // item
        table[:, HEAD::3] = rows.counts
        table[:, HEAD + 1 :: 3] = rows.source_strides // size
        table[:, HEAD + 2 :: 3] = rows.target_strides // item
        self._tables.append((plain[0].dtype, table))
        self._keep += plain

    def _add_each(self, sources: Sequence[np.ndarray], which: np.ndarray, rows: Rows) -> None:
        for i, source in enumerate(which.tolist()):
            self.add(
                sources[source],
                rows.counts[i].tolist(),
                int(rows.source_starts[i]),
                rows.source_strides[i].tolist(),
                int(rows.target_starts[i]),
                rows.target_strides[i].tolist(),
                rows.conjugate,
                rows.along,
                int(rows.firsts[i]),
                rows.step,
            )

    def run(self, low: int = 0, high: int = 1 << 62, origin: int = 0) -> None:
        """Do the copies, or what of them lies at `low` to `high - 1` along the tiled dimension.

        The target's first element lies at `origin` along it. May be called again.
        """
        for dtype, rows in self._rows.items():
            widest = max(map(len, rows))
            table = np.ones((len(rows), widest), np.int64)
            for i, row in enumerate(rows):
                table[i, : len(row)] = row
            self._tables.append((dtype, table))
        self._rows.clear()
        for dtype, table in self._tables:
            _copy_table(
                table, (table.shape[1] - HEAD) // 3, low, high, origin,
                np.empty(0, dtype), np.empty(0, self.target.dtype),
            )


def compiles(source: np.ndarray, target: np.dtype, strides: Sequence[int] = ()) -> bool:
    """Whether the compiled copy takes a source; the others are copied at once, by NumPy."""
    dtype = source.dtype
    if dtype.kind == "c" and target.kind != "c":
        dtype = source.real.dtype
    return (
        (dtype, target) in COMPILED
        and source.flags.aligned
        and not any(stride % dtype.itemsize for stride in (*source.strides, *strides))
    )


def copied(target: np.ndarray, source: np.ndarray) -> None:
    """Copy an array into another of its shape, by the compiled copy where it takes them."""
    if not compiles(source, target.dtype, target.strides) or not source.size:
        target[...] = source
        return
    table = CopyTable(target)
    table.add(source, source.shape, 0, source.strides, 0, target.strides)
    table.run()


class _Memory:
    """Strided memory beside an array's first element; keeps the array alive."""

    def __init__(
        self, array: np.ndarray, start: int, counts: Sequence[int], strides: Sequence[int]
    ) -> None:
        self.array = array
        self.__array_interface__ = {
            "version": 3,
            "typestr": array.dtype.str,
            "shape": tuple(counts),
            "strides": tuple(strides),
            "data": (array.ctypes.data + start, not array.flags.writeable),
        }


def strided_view(
    array: np.ndarray, start: int, counts: Sequence[int], strides: Sequence[int]
) -> np.ndarray:
    """View of an array's memory that begins `start` bytes after its first element."""
    return np.asarray(_Memory(array, start, counts, strides))
