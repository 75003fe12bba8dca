"""Batched strided copies between blocks in host memory, without the GIL.

A gather reads segments of many source blocks. Each segment is one row of a *copy table*: its
addresses, and the extents and strides of both sides. One compiled call executes the table
(`copy_rows`). If both sides are dense along the same dimension, it copies lines. Otherwise it
transposes small tiles through a buffer that stays in cache, so that both sides use complete cache
lines.

Tables hold addresses, so their arrays must stay alive until the call returns. NumPy's strided copy
does types that numba does not know (long double) and casts. It also does the first copies of a
process, because compiling a loop takes seconds once per machine. Both copy the same bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache, partial
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

#: Number of entries of a row before its dimensions: both addresses, the dimension along the tiled
#: one (-1: none), the first place of the copy along it, and the target's step along it.
HEAD = 5


#: Compiler for functions that only this file calls, without entry points for Python and C.
inner = partial(compiled, no_cpython_wrapper=True, no_cfunc_wrapper=True)


@intrinsic  # type: ignore[untyped-decorator, unused-ignore]
def _pointer(typing_context: Any, address: Any) -> Any:
    """Return an address as an untyped pointer."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.intp), codegen


@partial(inner, inline="always")
def _memory_from(address, like):  # type: ignore[no-untyped-def]
    """Return the memory at an address as values of the dtype of an array."""
    return carray(_pointer(address), (1 << 62,), like.dtype)  # type: ignore[call-arg, unused-ignore]


@inner
def _normalise(row, dims, count, source_step, target_step):  # type: ignore[no-untyped-def]
    """Sort dimensions by decreasing target stride, drop length-1 ones and merge contiguous ones."""
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


@inner
def _lines(source, target, s0, t0, n, sn, tn, m, sm, tm, conjugate):  # type: ignore[no-untyped-def]
    """Copy n lines of m values; both sides are dense along the line.

    Places are unsigned: numba tests signed ones for being negative at every access.
    """
    s0, sn, sm = np.uintp(s0), np.uintp(sn), np.uintp(sm)
    t0, tn, tm = np.uintp(t0), np.uintp(tn), np.uintp(tm)
    one = np.uintp(1)
    for i in range(n):
        s, t = s0 + np.uintp(i) * sn, t0 + np.uintp(i) * tn
        if conjugate is not None:
            for j in range(m):
                target[t + np.uintp(j) * tm] = np.conj(source[s + np.uintp(j) * sm])
        elif sm == one and tm == one:
            for j in range(m):
                target[t + np.uintp(j)] = source[s + np.uintp(j)]
        else:
            for j in range(m):
                target[t + np.uintp(j) * tm] = source[s + np.uintp(j) * sm]


@inner
def _tile(source, target, buffer, s0, t0, n, sn, tn, m, sm, tm, conjugate):  # type: ignore[no-untyped-def]
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


@partial(inner, inline="always")
def _four(source, target, s, t, sn, sm, tn, conjugate):  # type: ignore[no-untyped-def]
    """Transpose 4 x 4 values: the source is dense one way, the target the other."""
    for k in range(4):
        at = s + np.uintp(k) * sn
        a, b = source[at], source[at + sm]
        c, d = source[at + sm + sm], source[at + sm + sm + sm]
        if conjugate is not None:
            a, b, c, d = np.conj(a), np.conj(b), np.conj(c), np.conj(d)
        to = t + np.uintp(k) * tn
        target[to], target[to + np.uintp(1)] = a, b
        target[to + np.uintp(2)], target[to + np.uintp(3)] = c, d


@inner
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


@inner
def _plane(source, target, buffer, s0, t0, n, sn, tn, m, sm, tm, conjugate):  # type: ignore[no-untyped-def]
    """Copy n x m values; the source is dense along n, the target along m."""
    n_done, m_done = 0, 0
    if abs(sn) == 1 and tm == 1:
        n_done, m_done = n - n % 4, m - m % 4
        _dense_plane(source, target, s0, t0, n_done, sn, tn, m_done, sm, conjugate)
    for i0 in range(0, n, TILE):
        ni = min(TILE, n - i0)
        # Right of the rectangle that is done, and below it.
        first = m_done if i0 + ni <= n_done else 0
        for j0 in range(first, m, TILE):
            mj, s, t = min(TILE, m - j0), s0 + i0 * sn + j0 * sm, t0 + i0 * tn + j0 * tm
            _tile(source, target, buffer, s, t, ni, sn, tn, mj, sm, tm, conjugate)


@inner
def _densest(used, count, source_step):  # type: ignore[no-untyped-def]
    """Return the dimension with the smallest source stride, the last one of several."""
    found = used - 1
    for d in range(used - 1):
        if count[d] > 1 and abs(source_step[d]) < abs(source_step[found]):
            found = d
    return found


@inner
def _copy_planes(source, target, buffer, dims, used, s_at, t_at, conjugate):  # type: ignore[no-untyped-def]
    """Copy all planes; the target is dense along the last dimension of each."""
    index, count, source_step, target_step = dims
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
        if not straight:
            _plane(source, target, buffer, s_at, t_at, n, sn, tn, m, sm, tm, conjugate)
        else:
            _lines(source, target, s_at, t_at, n, sn, tn, m, sm, tm, conjugate)
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


@inner
def _clip(row, low, high, origin, source_size, target_size):  # type: ignore[no-untyped-def]
    """Crop a row to a tile in place; return False if nothing is left."""
    along, first, step = row[2], row[3], row[4]
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
def copy_rows(table, dims, low, high, origin, source_like, target_like, conjugate):  # type: ignore[no-untyped-def]
    """Do the parts of the copies of a table that are within a tile, row by row."""
    count, index = np.empty(dims + 2, np.int64), np.empty(dims + 2, np.int64)
    source_step, target_step = np.empty(dims + 2, np.int64), np.empty(dims + 2, np.int64)
    buffer = np.empty((TILE, TILE), target_like.dtype)
    row = np.empty(table.shape[1], np.int64)
    for r in range(table.shape[0]):
        for i in range(row.size):
            row[i] = table[r, i]
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
        source = _memory_from(row[0] + s_low * source_like.itemsize, source_like)
        target = _memory_from(row[1] + t_low * target_like.itemsize, target_like)
        dims_of = index, count, source_step, target_step
        _copy_planes(source, target, buffer, dims_of, used, -s_low, -t_low, conjugate)


#: Pairs (source, target) that the compiled copy takes; complex to complex may conjugate.
COMPILED = frozenset(zip(map(np.dtype, "DFdfdf"), map(np.dtype, "DFdfDF"), strict=True))

#: JIT threshold: bytes that NumPy copies between two dtypes before loops are compiled for them.
#: Each copy counts as `EACH` additional bytes, for NumPy's overhead of some microseconds.
FIRST, EACH = 1 << 29, 1 << 14

#: End of a range without a limit, more than the length of any dimension.
_ALL = 1 << 62

#: Dtypes of source and target.
Pair = tuple[np.dtype, np.dtype]

_counted: Counter[Pair] = Counter()
_left = [FIRST]


def _count(pair: Pair, copies: int, nbytes: int) -> None:
    """Count copies between two dtypes towards the JIT threshold."""
    if pair in COMPILED and not _pays(pair):
        _counted[pair] += copies * EACH + nbytes


def _pays(pair: Pair) -> bool:
    """Return True if copies between two dtypes have reached the JIT threshold."""
    return pair in COMPILED and _counted[pair] >= _left[0]


def compile_at_once() -> None:
    """Compile all copies from now on, to measure the speeds of a warm process."""
    _left[0] = 0


def regular_strides(array: np.ndarray) -> bool:
    """Return True if an array is aligned and its strides are multiples of its itemsize."""
    aligned = bool(array.flags.aligned)
    return aligned and not any(stride % array.itemsize for stride in array.strides)


@dataclass(frozen=True, eq=False)
class Segments:
    """Strided copies with the same number of dimensions; starts and strides in bytes.

    Parameters
    ----------
    counts, source_strides, target_strides : ndarray, (copies, dimensions)
        Extents and strides of each copy.
    source_starts, target_starts : ndarray, (copies,)
        Start of each in its source and in the target.
    firsts : ndarray, (copies,)
        First place of each along the tiled dimension, which `target_starts` do not include.
    conjugate : bool
        True if values are conjugated.
    along : int
        Dimension of the copies that runs along the tiled dimension; -1: none does.
    step : int
        The target's stride along the tiled dimension.
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
    _tables: dict[tuple[int, int], np.ndarray] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def size(self) -> int:
        """Number of values that are copied."""
        return int(self.counts.prod(axis=1).sum())

    def table(self, size: int, item: int) -> np.ndarray:
        """Return a copy table from elements of `size` bytes to elements of `item` bytes.

        It has starts instead of addresses, and is cached for copies that are repeated.
        """
        found = self._tables.get((size, item))
        if found is None:
            count, dims = self.counts.shape
            found = np.empty((count, HEAD + 3 * dims), np.int64)
            found[:, 0], found[:, 1] = self.source_starts, self.target_starts
            found[:, 2], found[:, 3], found[:, 4] = self.along, self.firsts, self.step // item
            found[:, HEAD::3] = self.counts
            found[:, HEAD + 1 :: 3] = self.source_strides // size
            found[:, HEAD + 2 :: 3] = self.target_strides // item
            self._tables[size, item] = found
        return found

    def taken(self, which: np.ndarray) -> Segments:
        """Return some of the copies."""
        names = [
            "counts",
            "source_starts",
            "source_strides",
            "target_starts",
            "target_strides",
            "firsts",
        ]
        return replace(self, **{name: getattr(self, name)[which] for name in names})


@cache
def _like(dtype: np.dtype) -> np.ndarray:
    """Return an empty array, which tells compiled code its dtype."""
    return np.empty(0, dtype)


class CopyTable:
    """Collection of strided copies into an array, done in one call or tile by tile.

    Parameters
    ----------
    target : ndarray
        Target block, or a tile of it.
    """

    def __init__(self, target: np.ndarray) -> None:
        self.target = target
        self._tables: list[tuple[np.dtype, bool, np.ndarray]] = []
        self._keep: list[np.ndarray] = []

    def extend(self, sources: Sequence[np.ndarray], which: np.ndarray, segments: Segments) -> None:
        """Add copies from sources with regular strides; `which` names the source of each.

        Copies of complex sources into a real target take the real part.
        """
        to, item = self.target.dtype, self.target.itemsize
        real = to.kind != "c"
        plain = [a.real if real and a.dtype.kind == "c" else a for a in sources]
        self._keep += plain
        addresses = np.array([a.__array_interface__["data"][0] for a in plain], np.int64)
        dtypes = {a.dtype for a in plain}
        for dtype in dtypes:
            mine, rows = which, segments
            if len(dtypes) > 1:
                chosen = np.array([a.dtype == dtype for a in plain])[which]
                mine, rows = which[chosen], segments.taken(chosen)
            table = rows.table(dtype.itemsize, item).copy()
            table[:, 0] += addresses[mine]
            table[:, 1] += self.target.__array_interface__["data"][0]
            _count((dtype, to), len(table), rows.size * item)
            # No loop is compiled to conjugate real values.
            self._tables.append((dtype, rows.conjugate and dtype.kind == "c", table))

    def run(self, low: int = 0, high: int = _ALL, origin: int = 0) -> None:
        """Do the copies at places `low` to `high - 1` along the tiled dimension.

        The target begins at place `origin`. Several threads may call this at the same time for
        different tiles.
        """
        to = self.target.dtype
        for dtype, conjugate, table in self._tables:
            part = table, (table.shape[1] - HEAD) // 3, low, high, origin
            if _pays((dtype, to)):
                copy_rows(*part, _like(dtype), _like(to), conjugate or None)
            else:
                _copy_by_numpy(table, low, high, origin, (dtype, to), conjugate)


def copy_array(target: np.ndarray, source: np.ndarray) -> None:
    """Copy an array into another of its shape, with the compiled copy if it takes them."""
    if target.dtype.kind != "c" and source.dtype.kind == "c":
        source = source.real
    pair = dtype, to = source.dtype, target.dtype
    row = _row(pair, source.shape, source.strides, target.strides)
    _count(pair, 1, target.nbytes)
    if row is None or not source.flags.aligned or not source.size or not _pays(pair):
        target[...] = source
        return
    table = row.copy()
    table[0, 0] = source.__array_interface__["data"][0]
    table[0, 1] = target.__array_interface__["data"][0]
    copy_rows(table, source.ndim, 0, _ALL, 0, _like(dtype), _like(to), None)


@lru_cache(maxsize=1024)  # the tiles of a block are alike
def _row(
    pair: Pair, counts: tuple[int, ...], from_: tuple[int, ...], into: tuple[int, ...]
) -> np.ndarray | None:
    """Return a table of one copy without addresses, None if the compiled copy does not take it."""
    size, item = (dtype.itemsize for dtype in pair)
    if pair not in COMPILED or any(stride % size for stride in (*from_, *into)):
        return None
    row = [0, 0, -1, 0, 0]
    for n, s, t in zip(counts, from_, into, strict=True):
        row += (n, s // size, t // item)
    return np.array([row], np.int64)


def _copy_by_numpy(
    table: np.ndarray, low: int, high: int, origin: int, pair: Pair, conjugate: bool
) -> None:
    """Do the copies of a table like `copy_rows`, with NumPy."""
    (dtype, size), (to, item) = ((one, one.itemsize) for one in pair)
    columns = table, table[:, HEAD + 1 :: 3] * size, table[:, HEAD + 2 :: 3] * item
    for row, steps, strides in zip(*(column.tolist() for column in columns), strict=True):
        from_, into, along, first, step = row[:HEAD]
        counts = row[HEAD::3]
        begin, end = max(low - first, 0), high - first
        if along >= 0:
            end = min(end, counts[along])
            counts[along] = end - begin
            from_ += begin * steps[along]
        if end <= begin or (along < 0 and begin > 0):
            continue
        into += (first + begin - origin) * step * item
        values = np.asarray(_Memory(dtype, from_, counts, steps))
        place = np.asarray(_Memory(to, into, counts, strides))
        if conjugate:
            np.conjugate(values, out=place)
        else:
            place[...] = values


class _Memory:
    """Strided memory at an address, with a reference to the array that owns it if given."""

    def __init__(
        self,
        dtype: np.dtype,
        address: int,
        counts: Sequence[int],
        strides: Sequence[int],
        array: np.ndarray | None = None,
    ) -> None:
        self.array = array
        self.__array_interface__ = {
            "version": 3,
            "typestr": dtype.str,
            "shape": tuple(counts),
            "strides": tuple(strides),
            "data": (address, array is not None and not array.flags.writeable),
        }


def strided_view(
    array: np.ndarray, start: int, counts: Sequence[int], strides: Sequence[int]
) -> np.ndarray:
    """Return a view of an array's memory that begins `start` bytes after its first element."""
    return np.asarray(_Memory(array.dtype, array.ctypes.data + start, counts, strides, array))
