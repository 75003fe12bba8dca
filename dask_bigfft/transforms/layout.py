"""Layouts: the blocks of an array whose axes are split into digits.

An axis of length N = N1*N2 is a row-major matrix, n = n1*N2 + n2: its index has two
*digits*. A transform replaces them one after the other: first n1 by k1, then n2 by k2. The
value X[k1 + N1*k2] is then at (k1, k2)::

    n1 n2  --FFT over n1-->  k1 n2  --twiddle, FFT over n2-->  k1 k2

A half-transformed axis has digits of two indices. The *stage* of a digit gives its index: 0 for
the input's, 1 for the output's. Its *stride* is the increment of that index per step of the digit.

A block is a box of digits. An `AxisLayout` describes the storage of one axis: a list of *groups*,
outermost first, and the chunks of each group. The digits of a group are flattened into one array
dimension. A `Layout` has one `AxisLayout` per axis. An ordinary dask array has one group with one
digit per axis. The rechunk between two such layouts is the exchange of a Cooley-Tukey round.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, Self

import numpy as np

from dask_bigfft.transforms.factors import transposed_digits

Order = Literal["natural", "transposed"]

Chunks = tuple[int, ...]


class NoCommonDigits(ValueError):
    """Error for two layouts of an axis without common sub-digits."""


@dataclass(frozen=True, slots=True)
class Digit:
    """One digit of an axis' index.

    Parameters
    ----------
    stage : int
        Index of the axis that the digit belongs to: 0 for the input's, one more after every
        transform of the axis (Bluestein's algorithm has two).
    stride : int
        Increment of that index per step of the digit.
    size : int
        Number of stored values, 0 to ``size - 1``.
    radix : int
        Radix of the digit; ``size < radix`` for half spectra, padding and cropping.
    """

    stage: int
    stride: int
    size: int
    radix: int

    @property
    def is_partial(self) -> bool:
        """True if values are left out (half a spectrum, or cropping)."""
        return self.size < self.radix


def size_of(digits: Iterable[Digit]) -> int:
    """Return the number of values of some digits that are stored.

    >>> size_of([Digit(1, 1, 2, 3), Digit(1, 3, 4, 4)])
    8
    """
    return math.prod(digit.size for digit in digits)


class HashedOnce:
    """Mixin of frozen dataclasses with a cached hash and fast copies, for thousands of chunks."""

    def __init_subclass__(cls) -> None:
        cls.__hash__ = HashedOnce.__hash__  # type: ignore[method-assign]  # dataclass keeps it

    def __hash__(self) -> int:
        values = self.__dict__
        number: int | None = values.get("_hash")
        if number is None:
            names: tuple[str, ...] = self.__match_args__  # type: ignore[attr-defined]
            number = hash(tuple([values[name] for name in names]))
            values["_hash"] = number
        return number

    def __getstate__(self) -> dict[str, Any]:
        # Hashes of strings differ between processes, and cached properties are cheap to remake.
        return self._fields()

    def _fields(self) -> dict[str, Any]:
        names: tuple[str, ...] = self.__match_args__  # type: ignore[attr-defined]
        values = self.__dict__
        return {name: values[name] for name in names}

    def changed(self, **changes: Any) -> Self:
        """Return a copy with other values of some fields, faster than `dataclasses.replace`."""
        values = self._fields()
        assert changes.keys() <= values.keys()
        copy = object.__new__(type(self))
        copy.__dict__.update(values | changes)
        return copy


@dataclass(frozen=True, slots=True)
class Range:
    """Equidistant values: value ``low + j`` is at ``place + j*step``, j < count."""

    low: int
    count: int
    place: int
    step: int

    def within(self, begin: int, end: int) -> tuple[int, int, int, int] | None:
        """Return the values at places ``begin`` to ``end - 1``: interval, first place and step.

        >>> Range(4, 4, 7, -2).within(2, 6)
        (5, 7, 5, -2)
        """
        # Value j is inside if begin <= place + j*step < end. The bounds of j are rounded up.
        if self.step > 0:
            first = -(-(begin - self.place) // self.step)
            stop = -(-(end - self.place) // self.step)
        else:
            first = (self.place - end) // -self.step + 1
            stop = (self.place - begin) // -self.step + 1
        first = max(first, 0)
        stop = min(stop, self.count)
        if first >= stop:
            return None
        first_place = self.place + first * self.step
        return self.low + first, self.low + stop, first_place, self.step


@dataclass(frozen=True)
class Group(HashedOnce):
    """Digits stored as one array dimension (first digit outermost), and its chunks.

    ``chunks`` are the sizes of consecutive intervals of the flattened digits.  They may end
    before the digits do (zero padding: nothing is stored there) or extend beyond them
    (cropping: the values there are not part of the transform).

    With an ``offset`` the digits are stored cyclically shifted: place p holds the flattened
    value p + offset modulo their size.  The chunks may hold fewer values than the digits have:
    a cyclic window.

    With an ``arrangement`` its runs give the place of each flattened value. One place may be read
    as several values, and some values have no place.
    """

    digits: tuple[Digit, ...]
    chunks: Chunks
    offset: int = 0
    arrangement: tuple[Range, ...] = ()

    @cached_property
    def size(self) -> int:
        """Number of values of the flattened digits."""
        return size_of(self.digits)

    @cached_property
    def bounds(self) -> Chunks:
        """Start of each chunk, and end of the last one."""
        return (0, *itertools.accumulate(self.chunks))

    @property
    def stored(self) -> int:
        """Number of places in all chunks together."""
        return self.bounds[-1]

    @property
    def is_in_order(self) -> bool:
        """True if values are stored in their order, from the first one on."""
        return not self.offset and not self.arrangement

    @property
    def is_whole(self) -> bool:
        """True if all values are stored in their order, without padding or cropping."""
        return self.is_in_order and self.stored == self.size

    def interval(self, chunk: int) -> tuple[int, int]:
        """Return the first and one-past-last place of a chunk that belong to the digits."""
        begin = min(self.bounds[chunk], self.size)
        end = min(self.bounds[chunk + 1], self.size)
        return begin, end

    def runs(self, chunk: int) -> tuple[tuple[int, int, int, int], ...]:
        """Return the intervals of flattened values in a chunk, each with its first place and step.

        >>> Group((Digit(1, 1, 8, 8),), (3, 5), offset=4).runs(1)
        ((7, 8, 0, 1), (0, 4, 1, 1))
        """
        if not self.arrangement and not self.offset:
            low, high = self.interval(chunk)
            return ((low, high, 0, 1),)
        values_to_end = self.size - self.offset
        shifted = (
            Range(
                low=self.offset,
                count=values_to_end,
                place=0,
                step=1,
            ),
            Range(
                low=0,
                count=self.offset,
                place=values_to_end,
                step=1,
            ),
        )
        begin = self.bounds[chunk]
        end = self.bounds[chunk + 1]
        intervals = []
        for values in self.arrangement or shifted:
            interval = values.within(begin, end)
            if interval is not None:
                low, high, place, step = interval
                intervals.append((low, high, place - begin, step))
        return tuple(intervals)


@dataclass(frozen=True)
class AxisLayout(HashedOnce):
    """Storage of one axis: its groups, outermost first."""

    groups: tuple[Group, ...]

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Number of chunks of each group."""
        return tuple(len(group.chunks) for group in self.groups)

    @cached_property
    def blocks(self) -> int:
        """Number of blocks along the axis."""
        return math.prod(self.grid)

    @cached_property
    def size(self) -> int:
        """Number of elements stored along the axis, all blocks together."""
        return math.prod(group.stored for group in self.groups)

    @cached_property
    def largest(self) -> int:
        """Number of elements along the axis of the largest block."""
        return math.prod(max(group.chunks, default=0) for group in self.groups)

    @cached_property
    def digits(self) -> tuple[Digit, ...]:
        """All digits in stored order."""
        return tuple(digit for group in self.groups for digit in group.digits)

    def chunk_of(self, block: int) -> tuple[int, ...]:
        """Return the chunk number in each group of a block number (row-major)."""
        return tuple(map(int, np.unravel_index(block, self.grid)))

    def block_of(self, chunks: tuple[int, ...]) -> int:
        """Return the block number of a chunk number in each group (row-major)."""
        return int(np.ravel_multi_index(chunks, self.grid))

    @cached_property
    def _shapes(self) -> dict[int, tuple[int, ...]]:
        """Cache of block shapes, which every task reads several times."""
        return {}

    def shape(self, block: int) -> tuple[int, ...]:
        """Return the shape of a block, one entry per group."""
        shape = self._shapes.get(block)
        if shape is None:
            groups_and_chunks = zip(self.groups, self.chunk_of(block), strict=True)
            shape = tuple(group.chunks[chunk] for group, chunk in groups_and_chunks)
            self._shapes[block] = shape
        return shape

    def intervals(self, block: int) -> tuple[tuple[int, int], ...]:
        """Return the interval of places of a block in each group."""
        groups_and_chunks = zip(self.groups, self.chunk_of(block), strict=True)
        return tuple(group.interval(chunk) for group, chunk in groups_and_chunks)

    def origin(self, block: int) -> tuple[int, ...]:
        """Return the first place of a block in each group."""
        return tuple(first for first, _ in self.intervals(block))


@dataclass(frozen=True)
class Layout(HashedOnce):
    """Storage of an array in blocks: one `AxisLayout` per axis."""

    axes: tuple[AxisLayout, ...]

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Number of blocks along each axis."""
        return tuple(axis.blocks for axis in self.axes)

    @cached_property
    def blocks(self) -> int:
        """Number of blocks."""
        return math.prod(self.grid)

    @cached_property
    def size(self) -> int:
        """Number of elements of all blocks."""
        return math.prod(axis.size for axis in self.axes)

    @cached_property
    def largest(self) -> int:
        """Number of elements of the largest block."""
        return math.prod(axis.largest for axis in self.axes)

    @cached_property
    def first_dims(self) -> tuple[int, ...]:
        """First dimension of a block that belongs to each axis, and the number of dimensions."""
        counts = [len(axis.groups) for axis in self.axes]
        return tuple(itertools.accumulate(counts, initial=0))

    @cached_property
    def full_shape(self) -> tuple[int, ...]:
        """Longest chunk of each dimension of a block."""
        lengths = []
        for axis in self.axes:
            lengths += [max(group.chunks, default=0) for group in axis.groups]
        return tuple(lengths)

    @cached_property
    def largest_block(self) -> tuple[int, ...]:
        """Index of the largest block; of several the first one.

        >>> Layout((plain(5, (0, 2, 3)), plain(4, (4,)))).largest_block
        (2, 0)
        """
        index = []
        for axis in self.axes:
            chunks = []
            for group in axis.groups:
                longest = max(group.chunks)
                chunks.append(group.chunks.index(longest))
            index.append(axis.block_of(tuple(chunks)))
        return tuple(index)

    def shape(self, block: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of a block as stored: one dimension per group of every axis."""
        shape: tuple[int, ...] = ()
        for axis, i in zip(self.axes, block, strict=True):
            shape += axis.shape(i)
        return shape

    def origin(self, block: tuple[int, ...]) -> tuple[int, ...]:
        """Return the first place of a block along each of its dimensions."""
        origin: tuple[int, ...] = ()
        for axis, i in zip(self.axes, block, strict=True):
            origin += axis.origin(i)
        return origin

    def indices(self) -> Iterator[tuple[int, ...]]:
        """Return an iterator over all block indices, row-major."""
        return itertools.product(*map(range, self.grid))


@lru_cache(maxsize=1024)
def even_chunks(size: int, parts: int) -> Chunks:
    """Return chunks of equal size; the last one may be smaller (as Zarr stores them).

    >>> even_chunks(10, 4)
    (3, 3, 3, 1)
    >>> even_chunks(10, 6)
    (2, 2, 2, 2, 2)
    >>> even_chunks(0, 3)
    (0,)
    """
    if size == 0:
        return (0,)
    return wide_chunks(size, even_width(size, parts))


def even_width(size: int, parts: int) -> int:
    """Return the size of the first of `even_chunks`.

    >>> even_width(10, 4), even_width(0, 3)
    (3, 0)
    """
    return -(-size // max(1, min(parts, size)))


def wide_chunks(size: int, width: int) -> Chunks:
    """Return chunks of one width; the last one may be smaller.

    >>> wide_chunks(10, 4), wide_chunks(0, 4)
    ((4, 4, 2), (0,))
    """
    if size == 0:
        return (0,)
    count, remainder = divmod(size, max(1, width))
    chunks = (width,) * count
    if remainder:
        chunks += (remainder,)
    return chunks


def scaled(chunks: tuple[int, ...], size: int) -> tuple[int, ...]:
    """Return chunks scaled to another total length.

    >>> scaled((4, 4, 2), 20)
    (8, 8, 4)
    """
    total = sum(chunks)
    if total == size:
        return tuple(map(int, chunks))
    if total == 0:
        return (size,)
    bounds = [0]
    for end in itertools.accumulate(chunks):
        bounds.append(round(end * size / total))
    widths = [high - low for low, high in itertools.pairwise(bounds)]
    widths = [width for width in widths if width > 0]
    return tuple(widths) if widths else (size,)


def plain(size: int, chunks: Chunks) -> AxisLayout:
    """Return the layout of an ordinary dask axis: one digit, cut into `chunks`."""
    digit = Digit(
        stage=0,
        stride=1,
        size=size,
        radix=size,
    )
    group = Group((digit,), chunks)
    return AxisLayout((group,))


def plain_layout(shape: Sequence[int], chunks: Sequence[Sequence[int]]) -> Layout:
    """Return the layout of an ordinary dask array."""
    axes = []
    for length, axis_chunks in zip(shape, chunks, strict=True):
        axes.append(plain(length, tuple(map(int, axis_chunks))))
    return Layout(tuple(axes))


def flattened(layout: Layout) -> Layout | None:
    """Return the layout with each axis in one dimension; None if its blocks do not allow that.

    The blocks of an axis are intervals of its flattened digits if only the first group is cut, or
    if the groups before the cut one are cut into single values.
    """
    axes: list[AxisLayout] = []
    for axis in layout.axes:
        flat_axis = _flattened(axis)
        if flat_axis is None:
            return None
        axes.append(flat_axis)
    return Layout(tuple(axes))


@lru_cache(maxsize=1024)
def _flattened(axis: AxisLayout) -> AxisLayout | None:
    """Return an axis in one group; None if its blocks are no intervals of its flattened digits.

    They are intervals if the groups before the last one that is cut have chunks of one value, and
    all groups are stored in order and in full. A single group may have any offset.
    """
    groups = axis.groups
    cut_places = [place for place, group in enumerate(groups) if len(group.chunks) > 1]
    last_cut = max(cut_places, default=0)
    outer_groups = groups[:last_cut]
    inner_groups = groups[last_cut + 1 :]
    in_single_values = all(set(group.chunks) == {1} for group in outer_groups)
    is_whole = len(groups) == 1 or all(group.is_whole for group in groups)
    if not in_single_values or not is_whole:
        return None
    inner_size = size_of(AxisLayout(inner_groups).digits)
    lengths = [length * inner_size for length in groups[last_cut].chunks]
    # The chunks of the cut group repeat for each value of the groups before it.
    repeats = size_of(AxisLayout(outer_groups).digits)
    flat_group = Group(
        axis.digits,
        chunks=tuple(lengths * repeats),
        offset=groups[0].offset,
    )
    return AxisLayout((flat_group,))


def whole(digit: Digit) -> Group:
    """Return the group of one digit in one chunk."""
    return Group((digit,), (digit.size,))


def radix_points(*layouts: AxisLayout) -> dict[int, tuple[int, ...]]:
    """Return the strides at which digits of several layouts of an axis begin and end, per stage.

    Two layouts are compared on the digits between these points.

    Raises
    ------
    NoCommonDigits
        If the points do not divide one another, so that no common digits exist.

    Examples
    --------
    >>> coarse = plain(12, (12,))
    >>> fine = AxisLayout((whole(Digit(0, 4, 3, 3)), whole(Digit(0, 1, 4, 4))))
    >>> radix_points(coarse, fine)
    {0: (1, 4, 12)}
    """
    points: dict[int, set[int]] = {}
    for layout in layouts:
        for digit in layout.digits:
            ends = {digit.stride, digit.stride * digit.radix}
            points.setdefault(digit.stage, set()).update(ends)
    ordered = {stage: tuple(sorted(strides)) for stage, strides in points.items()}
    for strides in ordered.values():
        if any(outer % inner for inner, outer in itertools.pairwise(strides) if inner):
            raise NoCommonDigits(
                f"digits that begin and end at {strides} have no common refinement"
            )
    return ordered


def sub_radices(digit: Digit, points: tuple[int, ...]) -> tuple[int, ...]:
    """Return the radices of the finer digits that make up one digit, outermost first.

    >>> sub_radices(Digit(0, 1, 12, 12), (1, 4, 12))
    (3, 4)
    """
    low = digit.stride
    high = digit.stride * digit.radix
    own_points = [point for point in points if low <= point <= high]
    radices = [outer // inner for inner, outer in itertools.pairwise(own_points)]
    if not radices:  # of a digit of one value, or of none
        return (digit.radix,)
    return tuple(reversed(radices))


def common_digits(group: Group, points: dict[int, tuple[int, ...]]) -> list[tuple[int, int, int]]:
    """Return stage, stride and size of the common digits of a group, outermost first.

    >>> common_digits(Group((Digit(0, 2, 12, 12),), (12,)), {0: (2, 8, 24)})
    [(0, 8, 3), (0, 2, 4)]
    """
    fine_digits = []
    for digit in group.digits:
        radices = sub_radices(digit, points[digit.stage])
        stride = digit.stride * math.prod(radices)
        for radix in radices:
            stride //= max(radix, 1)
            fine_digits.append((digit.stage, stride, min(radix, digit.size)))
    return fine_digits


def stored_order(digits: Sequence[Digit], variant: str, order: str) -> list[Digit]:
    """Return the digits of an axis in the order of a variant, outermost first.

    Digits of the axis before its transform are input digits, and those of later stages are output
    digits. Digits of one stage alone are output digits, unless they are those of the input array.

    Parameters
    ----------
    digits : sequence of Digit
        Digits that are not being transformed.
    variant : str
        Name of the data movement: auto, dif, dit, stockham or pease.
    order : {"natural", "transposed"}
        Order of the result, for ``auto``.

    Examples
    --------
    >>> n2, n3, k1 = Digit(0, 4, 4, 4), Digit(0, 1, 4, 4), Digit(1, 1, 4, 4)
    >>> stored_order([k1, n2, n3], "pease", "natural") == [n2, n3, k1]
    True
    >>> stored_order([k1, n2, n3], "dit", "natural") == [n3, n2, k1]
    True
    """
    stages = {digit.stage for digit in digits}
    input_stage = min(stages) if len(stages) > 1 else 0
    inputs = [digit for digit in digits if digit.stage == input_stage]
    inputs.sort(key=lambda digit: -digit.stride)
    outputs = [digit for digit in digits if digit.stage != input_stage]
    outputs.sort(key=lambda digit: (digit.stage, digit.stride))
    if variant == "auto":
        variant = "dif" if order == "transposed" else "stockham"
    orders = {
        "dif": outputs + inputs,
        "dit": inputs[::-1] + outputs[::-1],
        "stockham": inputs + outputs[::-1],
        "pease": inputs + outputs,
    }
    return orders[variant]


#: Bytes of a tile. It should stay in a core's cache from gather to store, and be wide enough for a
#: gather of long rows.
TILE_BYTES = 1 << 21

#: Threads of a process above which tiles grow, and their maximum growth. A thread needs the GIL
#: after each tile, and under contention a hand-over takes about 0.15 ms. With 16 threads, tiles
#: of 8 MiB took 0.45 to 1.01 times as long as tiles of 2 MiB; with 2 threads the times were equal.
FEW = 4
WIDEST = 8

#: Divisor of the tile size if a block changes its shape or type, because the result is then a
#: second tile in fresh memory. It falls to 1 for many threads: GIL contention costs more.
CHANGED = 4

#: Minimum bytes of a line to be transformed alone by a library that copies several lines.
LONG_BYTES = 4 << 20

#: Minimum bytes of a tile's rows.
ROW_BYTES = 1 << 8

#: Bytes of a line of a processor's cache.
CACHE_LINE = 64


def tile_bytes_of(threads: int, changes: bool = False) -> int:
    """Return the bytes of a tile for a number of concurrent threads of a process.

    Tiles are smaller for a block that `changes` its shape or type in a round.

    >>> [tile_bytes_of(threads) >> 20 for threads in (1, 4, 16, 64)]
    [2, 2, 8, 16]
    >>> [tile_bytes_of(threads, changes=True) >> 10 for threads in (1, 8, 16)]
    [512, 2048, 8192]
    """
    counted_threads = min(max(threads, FEW), WIDEST * FEW)
    nbytes = TILE_BYTES * counted_threads // FEW
    if not changes:
        return nbytes
    return nbytes // max(1, CHANGED * FEW // counted_threads)


#: Tasks that a device admits at a time: one is stored while the other is loaded. Small blocks have
#: one or two tiles, and more of them are needed to keep both directions of the bus busy.
ADMITTED = 2
ADMITTED_SMALL = 4

#: Maximum bytes of a small block in this sense.
SMALL_NBYTES = 512 << 20


def admitted(nbytes: int) -> int:
    """Return the number of tasks that a device admits at a time, by the bytes of their blocks.

    >>> admitted(256 << 20), admitted(4 << 30)
    (4, 2)
    """
    return ADMITTED_SMALL if nbytes <= SMALL_NBYTES else ADMITTED


def tiling(
    shape: tuple[int, ...],
    fixed: set[int],
    nbytes: int,
    threads: int,
    changes: bool = False,
) -> tuple[int, int] | None:
    """Return the dimension along which a block is cut into tiles, and their width, or None.

    This is the outermost dimension that is not transformed. The width is a maximum, which may
    exceed the dimension. The result is None if its slices are too large, if the rows of a tile
    would be too narrow, or if the block is empty. Tiles of a block that `changes` are smaller. A
    slice that is larger than such a tile, but not than a usual one, is a tile of its own. Rows that
    end at a cut have an odd number of cache lines. Then the columns of a tile use all sets of a
    cache, and are transformed without a copy in padded memory.

    >>> tiling((64, 8192), {1}, 64 * 8192 * 16, threads=1)
    (0, 16)
    >>> tiling((64, 1 << 17), {1}, 64 << 21, threads=1, changes=True)
    (0, 1)
    >>> tiling((8192, 512), {0}, 8192 * 512 * 8, threads=1)  # rows of five lines
    (1, 40)
    """
    if math.prod(shape) == 0:
        return None
    free_dims = [dim for dim, size in enumerate(shape) if dim not in fixed and size > 1]
    if not free_dims:
        return None
    dim = free_dims[0]
    # The nearest width, because half a spectrum is a little larger than a power of two.
    width = round(tile_bytes_of(threads, changes) * shape[dim] / nbytes)
    if width == 0 and nbytes <= tile_bytes_of(threads) * shape[dim]:
        width = 1
    row_nbytes = width * nbytes // math.prod(shape[: dim + 1])
    if width == 0 or row_nbytes < ROW_BYTES:
        return None
    if math.prod(shape[dim + 1 :]) == 1:
        line_width = round(CACHE_LINE * math.prod(shape) / nbytes)
        lines = width // line_width
        width = (lines if lines % 2 else lines + 1) * line_width
    return dim, width


def contiguous(shape: Sequence[int], extents: Sequence[int]) -> int:
    """Return the elements of each contiguous run of a box of some extents in an array.

    >>> contiguous((8, 16, 32), (8, 4, 32)), contiguous((8, 16), (8, 1))
    (128, 1)
    """
    width = 1
    for n, extent in zip(reversed(shape), reversed(extents), strict=True):
        width *= extent
        if extent < n:
            break
    return width


def half(n: int) -> int:
    """Return the entries of half a spectrum of length n: ``n // 2 + 1``."""
    return n // 2 + 1


def flat_digits(
    stage: int,
    length: int,
    order: Order,
    *,
    real: bool,
    digits: tuple[int, ...] | None = None,
) -> tuple[Digit, ...]:
    """Return the digits of an axis of the input or output in natural or transposed order.

    Transposed order stores k1 outermost, k = k1 + N1*k2, with (N1, N2) the canonical digits
    of the length, or `digits` if given; half a spectrum then is the rectangle k1 = 0..N1//2 by
    all k2. Where both sides of a transform are transposed, the output has the digits of the
    input reversed.

    >>> [d.size for d in flat_digits(1, 12, "transposed", real=False)]
    [3, 4]
    """
    if order == "natural":
        radices: tuple[int, ...] = (length,)
    elif digits is None:
        radices = transposed_digits(length)
    else:
        radices = digits
    stride = 1
    stored_digits = []
    for number, radix in enumerate(radices):
        is_halved = real and number == 0
        digit = Digit(
            stage,
            stride,
            size=half(radix) if is_halved else radix,
            radix=radix,
        )
        stored_digits.append(digit)
        stride *= radix
    return tuple(stored_digits)
