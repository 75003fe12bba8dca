"""Batched strided copies between blocks in host memory, without the GIL.

A gather reads segments of many source blocks. Each segment is one row of a *copy table*: its
addresses, and the extents and strides of both sides. One compiled call executes the table (see
`copy_loops`). If both sides are dense along the same dimension, it copies lines. Otherwise it
transposes small tiles through a buffer that stays in cache, so that both sides use complete cache
lines.

Tables hold addresses, so their arrays must stay alive until the call returns. NumPy's strided copy
does types that numba does not know (long double) and casts. It also does the first copies and
twiddles of a process, and all of them until another process has compiled the loops, which takes
seconds once per machine, or where numba is missing. Both ways give the same bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, lru_cache
from typing import Any, cast

import numpy as np

from dask_bigfft.kernels.compiled import compiled, import_beside
from dask_bigfft.memory.limits import fits_compiled_code

#: Number of entries of a row before its dimensions: both addresses, the dimension along the tiled
#: one (-1: none), the first place of the copy along it, and the target's step along it.
HEAD = 5

#: Pairs (source, target) that the compiled copy takes; complex to complex may conjugate.
COMPILED = frozenset(zip(map(np.dtype, "DFdfdf"), map(np.dtype, "DFdfDF"), strict=True))

#: Dtypes between which any loop is compiled: those of copies, and words of checksums.
_LOOPS = COMPILED | {(np.dtype("u4"), np.dtype("u4"))}

#: JIT threshold: bytes that NumPy works on between two dtypes before loops are compiled for them.
#: Each call counts as `EACH` additional bytes, for NumPy's overhead of some microseconds.
FIRST = 3 << 25
EACH = 1 << 14

#: Bytes of contiguous rows that NumPy copies as fast as the loop, which then need not be loaded.
WIDE_NBYTES = 512

#: Edge of the transposing tile, in elements; small, so that power-of-two strides do not evict
#: a tile from L1.
TILE = 8

#: End of a range without a limit, more than the length of any dimension.
_ALL = 1 << 62

#: Dtypes of source and target.
Pair = tuple[np.dtype, np.dtype]

_counted: Counter[Pair] = Counter()
_left = [FIRST]


def pays(pair: Pair, copies: int = 0, nbytes: int = 0) -> bool:
    """Count copies between two dtypes; return True if they have reached the JIT threshold.

    Other work of NumPy counts as the copies that take as long. On a worker with little memory the
    threshold is never reached.
    """
    _counted[pair] += copies * EACH + nbytes
    counted = _counted[pair]
    threshold = _left[0]
    if 2 * counted < threshold or pair not in _LOOPS or not fits_compiled_code():
        return False
    import_beside()  # meanwhile NumPy copies the other half
    return counted >= threshold


def compile_at_once() -> None:
    """Compile all copies from now on, to measure the speeds of a warm process."""
    _left[0] = 0


def may_compile() -> bool:
    """Return True if calls wait for the compiler, which is so after `compile_at_once`."""
    return _left[0] == 0


def regular_strides(array: np.ndarray) -> bool:
    """Return True if an array is aligned and its strides are multiples of its itemsize."""
    aligned = bool(array.flags.aligned)
    return aligned and not any(stride % array.itemsize for stride in array.strides)


@dataclass(frozen=True, eq=False)
class Segments:
    """Strided copies with the same number of dimensions; starts and strides in bytes.

    These are pieces in memory. A table of pieces (`tiles.pieces`) tells where values are in blocks,
    axis by axis, in elements, and whatever memory the blocks are in. Copies need all axes of a
    block at once, with the strides of the arrays: `exchange.shards.Product` makes segments of the
    pieces of all axes. Nothing else describes copies between several arrays, on hosts or GPUs.

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
    _parts: dict[int, Any] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def size(self) -> int:
        """Number of values that are copied."""
        return int(self.counts.prod(axis=1).sum())

    def table(self, size: int, item: int) -> np.ndarray:
        """Return a copy table from elements of `size` bytes to elements of `item` bytes.

        It has starts instead of addresses, and is cached for copies that are repeated.
        """
        table = self._tables.get((size, item))
        if table is None:
            count, dims = self.counts.shape
            table = np.empty((count, HEAD + 3 * dims), np.int64)
            table[:, 0] = self.source_starts
            table[:, 1] = self.target_starts
            table[:, 2] = self.along
            table[:, 3] = self.firsts
            table[:, 4] = self.step // item
            table[:, HEAD::3] = self.counts
            table[:, HEAD + 1 :: 3] = self.source_strides // size
            table[:, HEAD + 2 :: 3] = self.target_strides // item
            self._tables[size, item] = table
        return table

    @cached_property
    def listed(self) -> list[tuple[Any, ...]]:
        """Counts of each copy, and its start and strides in the source and in the target."""
        columns = [
            map(tuple, self.counts.tolist()),
            self.source_starts.tolist(),
            map(tuple, self.source_strides.tolist()),
            self.target_starts.tolist(),
            map(tuple, self.target_strides.tolist()),
        ]
        return list(zip(*columns, strict=True))

    def by_source(self, which: np.ndarray, count: int) -> list[Segments]:
        """Return the copies from each of some sources, given the source of each copy; cached."""
        if 0 not in self._parts:
            self._parts[0] = [self.taken(np.flatnonzero(which == i)) for i in range(count)]
        return cast("list[Segments]", self._parts[0])

    def runs(self, itemsize: int) -> list[tuple[int, int, int]]:
        """Return start in the source, in the target, and bytes of each copy; cached.

        The list is empty unless all copies are contiguous on both sides.
        """
        if itemsize not in self._parts:
            steps = itemsize * np.flip(np.cumprod(np.flip(self.counts, 1), 1), 1)
            inner = np.append(steps[:, 1:], np.full((len(steps), 1), itemsize), axis=1)
            sides = (self.source_strides, self.target_strides)
            single = self.counts == 1
            dense = all(((side == inner) | single).all() for side in sides)
            rows = np.stack([self.source_starts, self.target_starts, steps[:, 0]], axis=1)
            self._parts[itemsize] = list(map(tuple, rows.tolist())) if dense else []
        return cast("list[tuple[int, int, int]]", self._parts[itemsize])

    def taken(self, which: np.ndarray) -> Segments:
        """Return some of the copies."""
        names = "counts source_starts source_strides target_starts target_strides firsts"
        return replace(self, **{name: getattr(self, name)[which] for name in names.split()})


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
        """Add copies from sources with regular strides.

        The source of segment i is the one at place `which[i]` of `sources`. Copies of complex
        sources into a real target take the real part.
        """
        to = self.target.dtype
        item = self.target.itemsize
        is_real = to.kind != "c"
        plain = [a.real if is_real and a.dtype.kind == "c" else a for a in sources]
        self._keep += plain
        addresses = np.array([a.__array_interface__["data"][0] for a in plain], np.int64)
        dtypes = {a.dtype for a in plain}
        for dtype in dtypes:
            which_of_dtype = which
            of_dtype = segments
            if len(dtypes) > 1:
                has_dtype = np.array([a.dtype == dtype for a in plain])[which]
                which_of_dtype = which[has_dtype]
                of_dtype = segments.taken(has_dtype)
            # The cached table has starts in place of addresses.
            table = of_dtype.table(dtype.itemsize, item).copy()
            table[:, 0] += addresses[which_of_dtype]
            table[:, 1] += self.target.__array_interface__["data"][0]
            pays((dtype, to), len(table), of_dtype.size * item)
            # No loop is compiled to conjugate real values.
            conjugates = of_dtype.conjugate and dtype.kind == "c"
            self._tables.append((dtype, conjugates, table))

    def run(self, low: int = 0, high: int = _ALL, origin: int = 0) -> None:
        """Do the copies at places `low` to `high - 1` along the tiled dimension.

        The target begins at place `origin`. Several threads may call this at the same time for
        different tiles.
        """
        to = self.target.dtype
        for dtype, conjugate, table in self._tables:
            loop_pays = (dtype, to) in COMPILED and pays((dtype, to))
            is_copied = loop_pays and _copy_rows(
                table,
                low,
                high,
                origin,
                (dtype, to),
                conjugate,
            )
            if not is_copied:
                _copy_by_numpy(
                    table,
                    low,
                    high,
                    origin,
                    (dtype, to),
                    conjugate,
                )


#: The compiled loop of copies.
_loop = compiled("dask_bigfft.kernels.copy_loops:copy_rows")


def _copy_rows(
    table: np.ndarray,
    low: int,
    high: int,
    origin: int,
    pair: Pair,
    conjugate: bool,
) -> bool:
    """Do the copies of a table with the compiled loop; return False if it is not compiled."""
    dtype, to = pair
    entries = table.shape[1]
    dims = (entries - HEAD) // 3
    arguments = (
        table,
        HEAD,
        dims,
        low,
        high,
        origin,
        _like(dtype),
        np.empty((TILE, TILE), to),
        np.empty(4 * (dims + 2) + entries, np.int64),
        True if conjugate else None,  # numba compiles a loop without conjugation for None
    )
    return _loop.call(arguments, may_compile())


def copy_array(target: np.ndarray, source: np.ndarray) -> None:
    """Copy an array into another of its shape, with the compiled copy if it takes them."""
    if target.dtype.kind != "c" and source.dtype.kind == "c":
        source = source.real
    pair = (source.dtype, target.dtype)
    if source.dtype == target.dtype and _row_nbytes(target, source) >= WIDE_NBYTES:
        target[...] = source
        return
    cached_table = _table_without_addresses(pair, source.shape, source.strides, target.strides)
    reached = pays(pair, 1, target.nbytes)
    is_aligned = source.flags.aligned and target.flags.aligned
    if cached_table is not None and is_aligned and source.size and reached:
        table = cached_table.copy()
        table[0, 0] = source.__array_interface__["data"][0]
        table[0, 1] = target.__array_interface__["data"][0]
        is_copied = _copy_rows(
            table,
            low=0,
            high=_ALL,
            origin=0,
            pair=pair,
            conjugate=False,
        )
        if is_copied:
            return
    target[...] = source


def _row_nbytes(target: np.ndarray, source: np.ndarray) -> int:
    """Return the bytes of the rows that are contiguous in both of two arrays of one form.

    >>> _row_nbytes(np.ones((4, 3, 2), "c8")[:2], np.ones((2, 5, 2), "c8")[:, :3])
    48
    """
    nbytes = target.itemsize
    dims = zip(target.shape, target.strides, source.strides, strict=True)
    for size, target_stride, source_stride in reversed([*dims]):
        is_contiguous = target_stride == source_stride == nbytes
        if size > 1 and not is_contiguous:
            break
        nbytes *= size
    return nbytes


@lru_cache(maxsize=1024)  # the tiles of a block are alike
def _table_without_addresses(
    pair: Pair,
    counts: tuple[int, ...],
    source_strides: tuple[int, ...],
    target_strides: tuple[int, ...],
) -> np.ndarray | None:
    """Return a table of one copy without addresses, None if the compiled copy does not take it."""
    source_itemsize, target_itemsize = (dtype.itemsize for dtype in pair)
    is_aligned = all(stride % source_itemsize == 0 for stride in source_strides) and all(
        stride % target_itemsize == 0 for stride in target_strides
    )
    if pair not in COMPILED or not is_aligned:
        return None
    row = [0, 0, -1, 0, 0]  # both addresses; not tiled
    for count, source_stride, target_stride in zip(
        counts,
        source_strides,
        target_strides,
        strict=True,
    ):
        row += (count, source_stride // source_itemsize, target_stride // target_itemsize)
    return np.array([row], np.int64)


def _copy_by_numpy(
    table: np.ndarray,
    low: int,
    high: int,
    origin: int,
    pair: Pair,
    conjugate: bool,
) -> None:
    """Do the copies of a table like `copy_rows`, with NumPy.

    Only their parts at places `low` to ``high - 1`` of the tiled dimension are copied, to a target
    whose first place there is `origin`.
    """
    source_dtype, target_dtype = pair
    itemsize = target_dtype.itemsize
    all_source_strides = (table[:, HEAD + 1 :: 3] * source_dtype.itemsize).tolist()
    all_target_strides = (table[:, HEAD + 2 :: 3] * itemsize).tolist()
    for row, source_strides, target_strides in zip(
        table.tolist(),
        all_source_strides,
        all_target_strides,
        strict=True,
    ):
        source_address, target_address, along, first, step = row[:HEAD]
        counts = row[HEAD::3]
        # The part begins and ends at these values of dimension `along` of the copy. A copy without
        # such a dimension has one place, `first`.
        begin = max(low - first, 0)
        end = high - first
        if along >= 0:
            end = min(end, counts[along])
            counts[along] = end - begin
            source_address += begin * source_strides[along]
        if end <= begin or (along < 0 and begin > 0):
            continue
        target_address += (first + begin - origin) * step * itemsize
        source_memory = _Memory(
            source_dtype,
            source_address,
            counts,
            source_strides,
        )
        target_memory = _Memory(
            target_dtype,
            target_address,
            counts,
            target_strides,
        )
        values = np.asarray(source_memory)
        place = np.asarray(target_memory)
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
    array: np.ndarray,
    start: int,
    counts: Sequence[int],
    strides: Sequence[int],
) -> np.ndarray:
    """Return a view of an array's memory that begins `start` bytes after its first element."""
    return np.asarray(
        _Memory(
            array.dtype,
            array.ctypes.data + start,
            counts,
            strides,
            array,
        )
    )
