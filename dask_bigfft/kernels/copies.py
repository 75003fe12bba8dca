"""Strided copies between blocks in host memory, many at a time and without the GIL.

A gather reads segments of many source blocks. Each segment is one row of a *copy table*: its
addresses, and the extents and strides of both sides. One compiled call executes the table
(`copy_loops`). Where both sides run along the same dimension it copies lines; where they do not, it
transposes in small tiles through a buffer that stays in cache, so that every cache line is used
whole on both sides.

Tables hold addresses: whoever builds one keeps the arrays alive until the call returns. Types that
numba does not know (long double, and casts) take NumPy's strided copy. So does what a process
copies first, because compiling a loop takes seconds once on a machine. Both copy the same bits.

Imports numpy and this room.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache

import numpy as np

from dask_bigfft.kernels.copy_loops import HEAD, copy_rows

__all__ = [
    "CopyTable",
    "Segments",
    "compile_at_once",
    "copy_array",
    "regular_strides",
    "strided_view",
]

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

#: Bytes of a pair of types that a process leaves to NumPy before it compiles loops for them, and
#: bytes that a copy counts beside its own: NumPy takes some microseconds to begin one.
FIRST, EACH = 1 << 29, 1 << 14

#: More values than any dimension has, for all of them.
_ALL = 1 << 62

_counted: Counter[tuple[np.dtype, np.dtype]] = Counter()
_left = [FIRST]


def _count(source: np.dtype, target: np.dtype, copies: int, nbytes: int) -> None:
    """Count copies that are to be done between two types."""
    if (source, target) in COMPILED and not _pays(source, target):
        _counted[source, target] += copies * EACH + nbytes


def _pays(source: np.dtype, target: np.dtype) -> bool:
    """Return whether copies between two types are compiled by now."""
    return (source, target) in COMPILED and _counted[source, target] >= _left[0]


def compile_at_once() -> None:
    """Compile copies from now on: speeds are measured in a warm process."""
    _left[0] = 0


def regular_strides(array: np.ndarray) -> bool:
    """Return whether an array is aligned and its strides are whole elements."""
    aligned = bool(array.flags.aligned)
    return aligned and not any(stride % array.itemsize for stride in array.strides)


@dataclass(frozen=True, eq=False)
class Segments:
    """Many strided copies of the same dimensions; starts and strides in bytes.

    Parameters
    ----------
    counts, source_strides, target_strides : ndarray, (copies, dimensions)
        Extents and strides of each copy.
    source_starts, target_starts : ndarray, (copies,)
        Where each begins in its source, and in the target.
    firsts : ndarray, (copies,)
        Where each begins along the tiled dimension; `target_starts` leave that out.
    conjugate : bool
        Whether values are conjugated.
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
        """Return a copy table for elements of `size` bytes that become such of `item`.

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
        names = (
            "counts",
            "source_starts",
            "source_strides",
            "target_starts",
            "target_strides",
            "firsts",
        )
        return replace(self, **{name: getattr(self, name)[which] for name in names})


@cache
def _like(dtype: np.dtype) -> np.ndarray:
    """An array of a dtype, for compiled code that only asks for that."""
    return np.empty(0, dtype)


class CopyTable:
    """Strided copies into an array, collected, then done in one call or tile by tile.

    Parameters
    ----------
    target : ndarray
        Block that is written, or a tile of it.
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
            _count(dtype, to, len(table), rows.size * item)
            # No loop is compiled to conjugate real values.
            self._tables.append((dtype, rows.conjugate and dtype.kind == "c", table))

    def run(
        self, low: int = 0, high: int = _ALL, origin: int = 0, weigh: bool = False
    ) -> float | None:
        """Do the copies, or what of them lies at `low` to `high - 1` along the tiled dimension.

        The target's first element lies at `origin` along it. May be called again, by several
        threads at a time with different tiles. With `weigh`, return the sum of squared magnitudes
        of what is copied, if all copies are compiled and none transposes: then it costs little.
        """
        total, to = 0.0, self.target.dtype
        for dtype, conjugate, table in self._tables:
            part = table, (table.shape[1] - HEAD) // 3, low, high, origin
            if _pays(dtype, to):
                like = _like(dtype), _like(to)
                found = copy_rows(*part, *like, conjugate or None, weigh or None)
            else:
                found = _copied_by_numpy(table, low, high, origin, dtype, to, conjugate)
            weigh, total = weigh and not found < 0, total + found
        return total if weigh else None


def copy_array(target: np.ndarray, source: np.ndarray, weigh: bool = False) -> float | None:
    """Copy an array into another of its shape, by the compiled copy where that takes them.

    Return its energy as `CopyTable.run` does.
    """
    if target.dtype.kind != "c" and source.dtype.kind == "c":
        source = source.real
    dtype, to = source.dtype, target.dtype
    row = _row(dtype, to, source.shape, source.strides, target.strides)
    _count(dtype, to, 1, target.nbytes)
    if row is None or not source.flags.aligned or not source.size or not _pays(dtype, to):
        target[...] = source
        return None
    table = row.copy()
    table[0, 0] = source.__array_interface__["data"][0]
    table[0, 1] = target.__array_interface__["data"][0]
    total: float = copy_rows(
        table, source.ndim, 0, _ALL, 0, _like(dtype), _like(to), None, weigh or None
    )
    return None if total < 0 else total


@lru_cache(maxsize=1024)  # the tiles of a block are alike
def _row(
    dtype: np.dtype,
    to: np.dtype,
    counts: tuple[int, ...],
    from_: tuple[int, ...],
    into: tuple[int, ...],
) -> np.ndarray | None:
    """A table of one copy without its addresses; None where the compiled copy does not take it."""
    size, item = dtype.itemsize, to.itemsize
    if (dtype, to) not in COMPILED or any(stride % size for stride in (*from_, *into)):
        return None
    row = [0, 0, -1, 0, 0]
    for n, s, t in zip(counts, from_, into, strict=True):
        row += (n, s // size, t // item)
    return np.array([row], np.int64)


def _copied_by_numpy(
    table: np.ndarray,
    low: int,
    high: int,
    origin: int,
    dtype: np.dtype,
    to: np.dtype,
    conjugate: bool,
) -> float:
    """Do the copies of a table as `copy_rows` does; return -1, because nothing is weighed."""
    size, item = dtype.itemsize, to.itemsize
    read, written = _Views(dtype), _Views(to)
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
        values, place = read.at(from_, counts, steps), written.at(into, counts, strides)
        if conjugate:
            np.conjugate(values, out=place)
        else:
            place[...] = values
    return -1.0


class _Views:
    """Views of memory that others keep alive, each at less cost than that of a `_Memory`."""

    def __init__(self, dtype: np.dtype) -> None:
        self._type = dtype.str

    def at(self, address: int, counts: list[int], strides: list[int]) -> np.ndarray:
        """Strided memory from an address on."""
        self.__array_interface__ = {
            "version": 3,
            "typestr": self._type,
            "shape": tuple(counts),
            "strides": tuple(strides),
            "data": (address, False),
        }
        return np.asarray(self)


class _Memory:
    """Strided memory from an address on, and the array that has it, which this keeps alive."""

    def __init__(
        self,
        dtype: np.dtype,
        address: int,
        counts: Sequence[int],
        strides: Sequence[int],
        array: np.ndarray,
    ) -> None:
        self.array = array
        self.__array_interface__ = {
            "version": 3,
            "typestr": dtype.str,
            "shape": tuple(counts),
            "strides": tuple(strides),
            "data": (address, not array.flags.writeable),
        }


def strided_view(
    array: np.ndarray, start: int, counts: Sequence[int], strides: Sequence[int]
) -> np.ndarray:
    """View of an array's memory that begins `start` bytes after its first element."""
    return np.asarray(_Memory(array.dtype, array.ctypes.data + start, counts, strides, array))
