"""Exchanges without scratch files: rows of stored arrays are read and written directly.

An array on disk can be read in any order, row by row. If the blocks of the first round consist of
wide rows, the round reads them directly, and no exchange comes before it::

    source -> write -> read + round 1          (X1 first: rows of what a block has beside it)
    source -> rows  -> round 1

The first round can also read blocks in their stored chunks directly, which saves the memory of
separate reading tasks.

Likewise the last round writes the result directly if each chunk of the result is a part of one of
its blocks. No two tasks ever write to one chunk.
"""

import math
from dataclasses import dataclass

from dask_bigfft.transforms.exchanges import exchange_shape
from dask_bigfft.transforms.factors import divisors
from dask_bigfft.transforms.layout import (
    AxisLayout,
    Chunks,
    Group,
    Layout,
    NoCommonDigits,
    common_digits,
    radix_points,
    wide_chunks,
)

#: Bytes of chunks that are decoded at a time, at least one chunk.
DECODED = 8 << 20


@dataclass(frozen=True)
class Stored:
    """Storage of an array in files, and of its transform.

    Parameters
    ----------
    unit : tuple of int
        Shape of a chunk, or of a shard, which is read whole.
    anywhere : bool
        Whether rows of a unit can be read without the others.
    row_nbytes : int
        Minimum bytes of a row that is read alone.
    decoded : int
        Bytes of a unit that is decoded when read; 0 if values are read into place.
    reopened : bool
        Whether the array can be reopened in the blocks that a plan wants, so that none are merged.
    dims : tuple of str
        Names of the dimensions, for texts; empty if they are not known.
    resumable : bool
        Whether shards go through scratch files, so that the run can be resumed.
    """

    unit: tuple[int, ...]
    anywhere: bool
    row_nbytes: int = 1 << 20
    decoded: int = 0
    reopened: bool = False
    dims: tuple[str, ...] = ()
    resumable: bool = False

    def read_beside(self, shape: tuple[int, ...]) -> int | None:
        """Return the bytes beside a block that is read a few units at a time.

        Decoded units exist three times: stored, decoded, and returned. Others are read into place
        where that is one contiguous run. Else they take as much as the block, and None is returned.

        >>> Stored((4, 6), True).read_beside((8, 6)), Stored((4, 3), True).read_beside((8, 6))
        (0, None)
        """
        if self.decoded:
            return 3 * max(DECODED, self.decoded)
        outer = next((axis for axis, length in enumerate(self.unit) if length > 1), 0)
        inner = slice(outer + 1, None)
        pairs = zip(self.unit[inner], shape[inner], strict=True)
        is_one_run = all(length >= n for length, n in pairs)
        return 0 if is_one_run else None

    def cut(self, shape: tuple[int, ...], itemsize: int) -> tuple[Chunks, ...]:
        """Return the chunks of an array in the smallest parts that are read efficiently.

        These are its units, or wide enough sets of rows where rows can be read alone.

        >>> Stored((4, 6), False).cut((8, 6), 16), Stored((4, 6), True, 192).cut((8, 6), 16)
        (((4, 4), (6,)), ((2, 2, 2, 2), (6,)))
        """
        widths = [min(n, length) for n, length in zip(shape, self.unit, strict=True)]
        if self.anywhere:
            row_nbytes = math.prod(widths[1:]) * itemsize
            widths[0] = min(widths[0], -(-self.row_nbytes // max(1, row_nbytes)))
        return tuple(wide_chunks(n, width) for n, width in zip(shape, widths, strict=True))


#: Maximum bytes of a compressor's tables for each byte of a chunk. Measured with level 22 of zstd.
ENCODER_RATIO = 16


@dataclass(frozen=True)
class ResultWriting:
    """Memory of a task that writes a chunk of the result, beside the chunk.

    Parameters
    ----------
    copies : int
        Copies of the chunk: one that is cast, or encoded and compressed.
    copies_at_ends : int
        Copies of a chunk at the end of an axis, if it is smaller than the others. It may have to be
        padded first.
    encoder_nbytes : int
        Maximum bytes that the compressor takes for its tables, which grow with the chunk.
    """

    copies: int = 1
    copies_at_ends: int = 1
    encoder_nbytes: int = 0

    def nbytes(self, chunk: int, has_ends: bool) -> int:
        """Return the bytes beside a chunk.

        Parameters
        ----------
        chunk : int
            Bytes of a chunk.
        has_ends : bool
            Whether some chunks are smaller than the others.

        Examples
        --------
        >>> ResultWriting(1, 2).nbytes(100, False), ResultWriting(1, 2).nbytes(100, True)
        (100, 200)
        """
        copies = self.copies_at_ends if has_ends else self.copies
        return copies * chunk + min(self.encoder_nbytes, ENCODER_RATIO * chunk)


#: The result is stored by the caller, with one copy.
BY_CALLER = ResultWriting()

#: An array that is not in files, or is read by dask.
NOT_STORED = Stored((), anywhere=False)


def reads_rows(
    stored: Stored,
    source: Layout,
    target: Layout,
    itemsize: int,
) -> bool:
    """Return whether blocks of a round can be read as rows of a stored array.

    Parameters
    ----------
    stored : Stored
        Storage of the array.
    source, target : Layout
        The input array, and the blocks of the round.
    itemsize : int
        Bytes of an element of the array.
    """
    axes = []
    for axis, unit in zip(source.axes, stored.unit, strict=True):
        group = axis.groups[0]
        if len(axis.groups) != 1 or not group.is_in_order:
            return False
        axes.append(AxisLayout((Group(group.digits, wide_chunks(axis.size, unit)),)))
    units = Layout(tuple(axes))
    if not units.size:
        return False
    if is_split(target, units):  # each chunk, or shard, is read once, as a whole
        return True
    if not stored.anywhere:
        return False
    return exchange_shape(units, target).width * itemsize >= stored.row_nbytes


def is_split(before: Layout, after: Layout) -> bool:
    """Return whether each block after an exchange is a part of one block before it.

    Any cuts of an axis with one group and the same digits are recognised, else only even cuts.
    """
    return all(map(_is_split, before.axes, after.axes))


def _is_split(before: AxisLayout, after: AxisLayout) -> bool:
    """Return whether each block of an axis after an exchange is a part of one block before it."""
    try:
        points = radix_points(before, after)
    except NoCommonDigits:
        return False
    if before.digits == after.digits and len(before.groups) == len(after.groups) == 1:
        return _keeps_cuts(before.groups[0], after.groups[0])
    widths_before = _widths(before, points)
    widths_after = _widths(after, points)
    if widths_before is None or widths_after is None:
        return False
    if widths_before.keys() != widths_after.keys():
        return False
    return all(width % widths_after[digit] == 0 for digit, width in widths_before.items())


def _keeps_cuts(before: Group, after: Group) -> bool:
    """Return whether a group is cut wherever it was cut before, and perhaps elsewhere, too."""
    if not before.is_in_order or not after.is_in_order:
        return False
    ends_after = set(after.bounds)
    return all(end in ends_after for end in before.bounds if end < after.stored)


def split_result(last: Layout, result: Layout, least: int = 1) -> Layout | None:
    """Return the result in the largest chunks that split the last round's blocks; None without any.

    Parameters
    ----------
    last : Layout
        The blocks after the last round.
    result : Layout
        The result, cut in another way.
    least : int
        Minimum elements of such a chunk.
    """
    widths = []
    for before, after in zip(last.axes, result.axes, strict=True):
        width = _split_width(before, after)
        if width is None:
            return None
        widths.append(width)
    if math.prod(widths) < least:
        return None
    axes = list(result.axes)
    for i, (axis, width) in enumerate(zip(result.axes, widths, strict=True)):
        if axis.largest != width:
            chunks = wide_chunks(axis.groups[0].size, width)
            axes[i] = AxisLayout((Group(axis.digits, chunks),))
    split = Layout(tuple(axes))
    return split if is_split(last, split) else None


def _split_width(before: AxisLayout, after: AxisLayout) -> int | None:
    """Return the length of the largest chunks of an axis that split its blocks; None without any.

    The innermost digits are whole in such a chunk, up to the first one that is cut in the blocks.
    """
    if _is_split(before, after):
        return after.largest
    points = radix_points(before, after)
    widths = _widths(before, points)
    digits = common_digits(after.groups[0], points)
    if widths is None or any((stage, stride) not in widths for stage, stride, _ in digits):
        return None
    length = 1
    for stage, stride, radix in reversed(digits):
        length *= widths[stage, stride]
        if widths[stage, stride] < radix:
            break
    return length


def _widths(
    axis: AxisLayout, points: dict[int, tuple[int, ...]]
) -> dict[tuple[int, int], int] | None:
    """Return the number of values of each common digit in a block; None for uneven blocks.

    Digits are named by their stage and stride.
    """
    widths: dict[tuple[int, int], int] = {}
    for group in axis.groups:
        if not _is_even(group):
            return None
        length = max(group.chunks)
        digits = common_digits(group, points)
        for stage, stride, radix in reversed(digits):
            width = min(length, radix)
            is_outermost = (stage, stride, radix) == digits[0]
            if length % width or (radix % width and not is_outermost):
                return None  # a block would be no box
            widths[stage, stride] = width
            length //= width
    return widths


def _is_even(group: Group) -> bool:
    """Return whether a group is stored whole and in order, in chunks of one length."""
    length = max(group.chunks, default=0)
    if not length or not group.is_whole:
        return False
    if any(digit.is_partial for digit in group.digits):
        return False
    return set(group.chunks[:-1]) <= {length}


def row_factors(n: int, room: int, row: int) -> list[tuple[int, int]]:
    """Return pairs of digits with one short enough that blocks with all of it have wide rows.

    Parameters
    ----------
    n : int
        Length of the axis.
    room : int
        Elements of a block.
    row : int
        Elements of a row.

    Examples
    --------
    >>> row_factors(2**29, 2**23, 2**16), row_factors(2**29, 2**16, 2**16)
    ([(128, 4194304), (4194304, 128)], [])
    """
    short_digits = [d for d in divisors(n) if d > 1 and d * d <= n and d * row <= room]
    if not short_digits:
        return []
    short = max(short_digits)
    return [(short, n // short), (n // short, short)]
