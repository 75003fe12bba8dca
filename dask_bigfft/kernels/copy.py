"""Strided copies between blocks, many at a time and without the GIL.

A gather reads pieces of many source blocks.  Each piece is one row of a *copy table*: where
it starts in memory, and the extents and strides of both sides.  One compiled call works the
table off.  Where both sides run along the same dimension it copies lines; where they do not,
it transposes in small tiles through a buffer that stays in cache, so that every cache line
that is touched is used whole on both sides.

The tables hold addresses: whoever builds one keeps the arrays alive until the call returns.
Types that numba does not know (long double, and casts) take NumPy's own strided copy, and so does
what a process copies first: small arrays do not wait until loops are compiled (`warming`).

Imports numpy and this room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache

import numpy as np

from dask_bigfft.kernels import warming
from dask_bigfft.kernels.copy_loops import HEAD, copy_rows

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


#: A number of places that nothing has, for all of them.
_ALL = 1 << 62


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
    _tables: dict[tuple[int, int], np.ndarray] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def size(self) -> int:
        """Number of values that are copied."""
        return int(self.counts.prod(axis=1).sum())

    def table(self, size: int, item: int) -> np.ndarray:
        """A copy table for elements of `size` bytes that become such of `item`.

        With starts instead of addresses; worked out once, for copies that are done again and again.
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

    def taken(self, which: np.ndarray) -> Rows:
        """Some of the copies."""
        columns = {name: getattr(self, name)[which] for name in _COLUMNS}
        return replace(self, **columns)


#: What of `Rows` has a row, or an entry, for each copy.
_COLUMNS = (
    "counts", "source_starts", "source_strides", "target_starts", "target_strides", "firsts",
)


@cache
def _like(dtype: np.dtype) -> np.ndarray:
    """An array of a dtype, for compiled code that only asks for that."""
    return np.empty(0, dtype)


class CopyTable:
    """Strided copies collected, then done in one call, or tile by tile.

    Parameters
    ----------
    target : ndarray
        Block that is written, or a tile of it.
    """

    def __init__(self, target: np.ndarray) -> None:
        self.target = target
        self._rows: dict[tuple[np.dtype, bool], list[tuple[int, ...]]] = {}
        self._tables: list[tuple[np.dtype, bool, np.ndarray]] = []
        self._keep: list[np.ndarray] = []
        self._all = True  # whether the compiled copy takes all

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
            self._all = False
            return
        row = [source.ctypes.data + source_start, target.ctypes.data + target_start]
        row += (along, first, step // target.itemsize)
        for n, s, t in zip(counts, source_strides, target_strides, strict=True):
            row += (n, s // source.itemsize, t // target.itemsize)
        self._rows.setdefault((source.dtype, conjugate), []).append(tuple(row))
        self._keep.append(source)

    def extend(self, sources: Sequence[np.ndarray], which: np.ndarray, rows: Rows) -> None:
        """Add many strided copies of one shape; `which` names the source of each.

        All at once where the compiled copy takes all sources.
        """
        plain = [
            a.real if a.dtype.kind == "c" and self.target.dtype.kind != "c" else a for a in sources
        ]
        same = len({a.dtype for a in plain}) == 1
        if not same or not all_compile(plain, self.target.dtype):
            self._add_each(sources, which, rows)
            return
        addresses = np.array([a.ctypes.data for a in plain], np.int64)
        table = rows.table(plain[0].itemsize, self.target.itemsize).copy()
        table[:, 0] += addresses[which]
        table[:, 1] += self.target.ctypes.data
        self._enter(plain[0].dtype, rows.conjugate, table, rows.size)
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

    def run(
        self, low: int = 0, high: int = _ALL, origin: int = 0, weigh: bool = False
    ) -> float | None:
        """Do the copies, or what of them lies at `low` to `high - 1` along the tiled dimension.

        The target's first element lies at `origin` along it. May be called again. Return the sum
        of squared magnitudes of what is copied, if that is asked for, the compiled copy takes all
        of it and transposes none: it costs nothing beside such a copy.
        """
        total = 0.0
        for (dtype, conjugate), rows in self._rows.items():
            widest = max(map(len, rows))
            table = np.ones((len(rows), widest), np.int64)
            for i, row in enumerate(rows):
                table[i, : len(row)] = row
            self._enter(dtype, conjugate, table, int(table[:, HEAD::3].prod(axis=1).sum()))
        self._rows.clear()
        to = self.target.dtype
        for dtype, conjugate, table in self._tables:
            part = table, (table.shape[1] - HEAD) // 3, low, high, origin
            if warming.pays(dtype, to):
                like = _like(dtype), _like(to)
                found = copy_rows(*part, *like, conjugate or None, weigh or None)
            else:
                found = _copied_by_numpy(table, low, high, origin, dtype, to, conjugate)
            weigh, total = weigh and not found < 0, total + found
        return total if weigh and self._all else None

    def _enter(self, dtype: np.dtype, conjugate: bool, table: np.ndarray, size: int) -> None:
        warming.count(dtype, self.target.dtype, len(table), size * self.target.itemsize)
        turned = conjugate and dtype.kind == "c"  # no loop is compiled to conjugate real values
        self._tables.append((dtype, turned, table))


def compiles(source: np.ndarray, target: np.dtype, strides: Sequence[int] = ()) -> bool:
    """Whether the compiled copy takes a source; the others are copied at once, by NumPy."""
    dtype = source.dtype
    if dtype.kind == "c" and target.kind != "c":
        dtype = source.real.dtype
    return (
        (dtype, target) in COMPILED
        and source.flags.aligned
        and not [1 for stride in (*source.strides, *strides) if stride % dtype.itemsize]
    )


def all_compile(sources: Sequence[np.ndarray], target: np.dtype) -> bool:
    """Whether the compiled copy takes all of some sources, most of which are alike."""
    kinds = {(a.dtype, a.strides, a.flags.aligned): a for a in sources}
    return all(compiles(a, target) for a in kinds.values())


def copied(target: np.ndarray, source: np.ndarray, weigh: bool = False) -> float | None:
    """Copy an array into another of its shape, by the compiled copy where it takes them.

    Return its energy as `CopyTable.run` does.
    """
    dtype, to = source.dtype, target.dtype
    if to.kind != "c" and dtype.kind == "c":
        source = source.real
        dtype = source.dtype
    row = _row(dtype, to, source.shape, source.strides, target.strides)
    warming.count(dtype, to, 1, target.nbytes)
    if row is None or not source.flags.aligned or not source.size or not warming.pays(dtype, to):
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
    dtype: np.dtype, to: np.dtype, counts: tuple[int, ...], from_: tuple[int, ...],
    into: tuple[int, ...],
) -> np.ndarray | None:
    """A table of one copy but for its addresses; None where the compiled copy does not take it.

    As `CopyTable` would put it together, at a fraction of the cost, which counts for every tile.
    """
    size, item = dtype.itemsize, to.itemsize
    if (dtype, to) not in COMPILED or any(stride % size for stride in (*from_, *into)):
        return None
    row = [0, 0, -1, 0, 0]
    for n, s, t in zip(counts, from_, into, strict=True):
        row += (n, s // size, t // item)
    return np.array([row], np.int64)


def _copied_by_numpy(
    table: np.ndarray, low: int, high: int, origin: int, dtype: np.dtype, to: np.dtype,
    conjugate: bool,
) -> float:
    """Do the copies of a table as `copy_rows` does; return -1, for nothing is weighed."""
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
            "version": 3, "typestr": self._type, "shape": tuple(counts),
            "strides": tuple(strides), "data": (address, False),
        }
        return np.asarray(self)


class _Memory:
    """Strided memory from an address on, and the array that has it, which this keeps alive."""

    def __init__(
        self, dtype: np.dtype, address: int, counts: Sequence[int], strides: Sequence[int],
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
