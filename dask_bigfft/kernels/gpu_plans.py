"""How FFTs along some dimensions of a dense array become calls of cuFFT.

cuFFT takes a batch of transforms at two strides: from element to element, and from transform to
transform. Dimensions in the middle of an array have three; then one plan is executed again and
again, over the rows before the dimension or over the elements after it, whichever are fewer.

Columns of a large array can be done in tiles: as many as stay in the card's cache are copied side
by side, transformed there, and put back, by kernels that ask the cache to keep nothing. What FFTs
in the array itself leave in the cache drives out what the copy engines keep in it, and then each
row that crosses the bus takes them 0.1 us longer (H200).

Pure: imports the standard library.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

#: Dimensions that one plan transforms at most.
MAX_RANK = 3

#: Bytes of the data of a batch at most, where it can be divided: cuFFT wants up to four times as
#: many for its work area.
MOST_NBYTES = 1 << 30

#: Bytes of a tile of columns; its work area may take as many. Of the 60 MiB of an H200's cache 4
#: leave what others keep in it alone, and 8 do not.
TILE_NBYTES = 1 << 22

#: Arrays of fewer bytes are transformed where they are: they, and what they drive out, are small.
TILED_NBYTES = 1 << 26

#: Bytes of a row of a tile at least, so that copies move whole sectors of memory.
TILE_ROW_NBYTES = 128

#: Numbers from here on need the 64-bit interface.
WIDE = 2**31


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of FFTs as cuFFT plans it; distances and strides in elements of their side.

    Parameters
    ----------
    kind : {"c2c", "r2c", "c2r"}
        The transform.
    n : tuple of int
        Lengths.
    source_embed, target_embed : tuple of int
        Lengths as the elements are stored.
    source_stride, target_stride : int
        From element to element along the last dimension.
    source_distance, target_distance : int
        From transform to transform.
    count : int
        Number of transforms.
    double : bool
        Whether they are in double precision.
    """

    kind: str
    n: tuple[int, ...]
    source_embed: tuple[int, ...]
    source_stride: int
    source_distance: int
    target_embed: tuple[int, ...]
    target_stride: int
    target_distance: int
    count: int
    double: bool

    @property
    def wide(self) -> bool:
        """Whether some number in it, or the place of some element, needs 64 bits."""
        sides = (
            (self.source_embed, self.source_stride, self.source_distance),
            (self.target_embed, self.target_stride, self.target_distance),
        )
        last = max(
            math.prod(embed) * stride + self.count * distance for embed, stride, distance in sides
        )
        return last >= WIDE


@dataclass(frozen=True, slots=True)
class Call:
    """A batch, and where it is executed: `times` times, so many elements apart.

    Where `staged` is not None, the real side of the array is copied to (or from) a dense array of
    that shape, whose last dimension is the transformed one and padded, and the batch works there:
    cuFFT wants real transforms to begin at an even number of real elements.

    Where `columns` is not None, the array has that shape, its middle dimension is transformed, and
    the batch works on `tiles` of it.
    """

    batch: Batch
    times: int = 1
    source_step: int = 0
    target_step: int = 0
    staged: tuple[int, int, int] | None = None
    columns: tuple[int, int, int] | None = None


#: Where a tile begins in its array, and of each dimension its length, its stride in the array and
#: its stride in the tile, in elements.
Tile = tuple[int, tuple[tuple[int, int, int], ...]]


def tiles(call: Call) -> Iterator[Tile]:
    """Yield the tiles of a call that has `columns`.

    Parameters
    ----------
    call : Call
        The call. A tile has as many columns side by side as its batch transforms; the last one of
        a row, or of all, may have fewer.

    Examples
    --------
    >>> call = Call(Batch("c2c", (8,), (8,), 4, 1, (8,), 4, 1, 4, True), 4, columns=(2, 8, 6))
    >>> list(tiles(call))[:2]
    [(0, ((8, 6, 4), (4, 1, 1))), (4, ((8, 6, 4), (2, 1, 1)))]
    """
    assert call.columns is not None
    (rows, n, inner), count = call.columns, call.batch.count
    if count <= inner:
        for row in range(rows):
            for column in range(0, inner, count):
                width = min(count, inner - column)
                yield row * n * inner + column, ((n, inner, count), (width, 1, 1))
        return
    deep = count // inner
    for row in range(0, rows, deep):
        height = min(deep, rows - row)
        yield row * n * inner, ((n, inner, count), (height, n * inner, inner), (inner, 1, 1))


def fft_calls(
    kind: str,
    source: tuple[int, ...],
    target: tuple[int, ...],
    dims: tuple[int, ...],
    double: bool,
    tiled: bool = False,
) -> tuple[Call, ...]:
    """Return the calls that transform a dense array, in order.

    The first reads the source and writes the target, those that follow work in the target.

    Parameters
    ----------
    kind : {"c2c", "r2c", "c2r"}
        The transform; the real ones have a single dimension.
    source, target : tuple of int
        Shapes before and after.
    dims : tuple of int
        The dimensions, rising.
    double : bool
        Whether in double precision.
    tiled : bool
        Whether columns of large arrays are done in tiles.

    Examples
    --------
    >>> [(call.batch.n, call.batch.count, call.times) for call in
    ...  fft_calls("c2c", (4, 8, 16), (4, 8, 16), (1, 2), True)]
    [((8, 16), 4, 1)]
    >>> [(call.batch.n, call.batch.source_stride, call.batch.count, call.times) for call in
    ...  fft_calls("c2c", (4, 8, 16), (4, 8, 16), (1,), True)]
    [((8,), 16, 16, 4)]
    """
    if math.prod(source) == 0:
        return ()
    if kind != "c2c":
        return (_along(kind, source, target, dims[0], double),)
    found: list[Call] = []
    last = len(dims)
    while last > 0:
        first = last - 1
        while (
            first > 0
            and dims[first - 1] == dims[first] - 1
            and last - first < MAX_RANK
            and _rank_pays(source, dims[first - 1], dims[last - 1])
        ):
            first -= 1
        columns = _tiled(source, dims[first], double) if tiled and last - first == 1 else None
        found.append(columns or _bounded(_together(source, dims[first], dims[last - 1], double)))
        last = first
    return tuple(found)


def _tiled(shape: tuple[int, ...], dim: int, double: bool) -> Call | None:
    """c2c along one dimension in tiles of columns; None where that is not worth it."""
    n, itemsize = shape[dim], 16 if double else 8
    rows, inner = math.prod(shape[:dim]), math.prod(shape[dim + 1 :])
    room = TILE_NBYTES // (n * itemsize)  # columns
    whole = math.prod(shape) * itemsize < TILED_NBYTES
    if whole or inner == 1 or room * itemsize < TILE_ROW_NBYTES:
        return None
    if inner > room:
        unit = TILE_ROW_NBYTES // itemsize
        count = min(room, -(-inner // -(-inner // room) // unit) * unit)
        times = rows * -(-inner // count)
    else:
        deep = room // inner
        deep = -(-rows // -(-rows // deep))
        count, times = deep * inner, -(-rows // deep)
    batch = Batch("c2c", (n,), (n,), count, 1, (n,), count, 1, count, double)
    return Call(batch, times, columns=(rows, n, inner))


def _bounded(call: Call) -> Call:
    """The same as batches whose data, and so their work area, are not too large."""
    batch = call.batch
    nbytes = math.prod(batch.n) * (16 if batch.double else 8)
    if call.times > 1 or batch.count * nbytes <= MOST_NBYTES:
        return call
    times = min(batch.count, -(-batch.count * nbytes // MOST_NBYTES))
    while batch.count % times:
        times += 1
    count = batch.count // times
    return Call(
        replace(batch, count=count),
        times,
        count * batch.source_distance,
        count * batch.target_distance,
    )


def _rank_pays(shape: tuple[int, ...], first: int, last: int) -> bool:
    """Whether neighbouring dimensions make one plan: nothing before them, or nothing after."""
    return math.prod(shape[last + 1 :]) == 1 or math.prod(shape[:first]) == 1


def _together(shape: tuple[int, ...], first: int, last: int, double: bool) -> Call:
    """c2c over neighbouring dimensions."""
    if first == last:
        return _along("c2c", shape, shape, first, double)
    n, inner = shape[first : last + 1], math.prod(shape[last + 1 :])
    rows, size = math.prod(shape[:first]), math.prod(n)
    distance, count = (size, rows) if inner == 1 else (1, inner)
    return Call(Batch("c2c", n, n, inner, distance, n, inner, distance, count, double))


def _along(
    kind: str, source: tuple[int, ...], target: tuple[int, ...], dim: int, double: bool
) -> Call:
    """Any kind along one dimension."""
    a, b = source[dim], target[dim]
    n = max(a, b) if kind != "c2c" else a
    rows, inner = math.prod(source[:dim]), math.prod(source[dim + 1 :])
    if inner == 1:
        return Call(Batch(kind, (n,), (a,), 1, a, (b,), 1, b, rows, double))
    if kind != "c2c" and rows > 1 and n * inner % 2:
        return _staged(kind, n, rows, inner, double)
    if rows <= inner or kind != "c2c":  # neighbouring transforms lie side by side
        batch = Batch(kind, (n,), (a,), inner, 1, (b,), inner, 1, inner, double)
        return Call(batch, rows, a * inner, b * inner)
    batch = Batch(kind, (n,), (a,), inner, a * inner, (b,), inner, b * inner, rows, double)
    return Call(batch, inner, 1, 1)


def _staged(kind: str, n: int, rows: int, inner: int, double: bool) -> Call:
    """A real transform in the middle of an array whose rows begin at odd places."""
    padded, half = n + n % 2, n // 2 + 1
    real = (padded,), 1, padded
    spectrum = (half,), inner, 1
    steps = inner * padded, half * inner
    sides = (real, spectrum) if kind == "r2c" else (spectrum, real)
    steps = steps if kind == "r2c" else steps[::-1]
    batch = Batch(kind, (n,), *sides[0], *sides[1], inner, double)
    return Call(batch, rows, *steps, (rows, inner, padded))
