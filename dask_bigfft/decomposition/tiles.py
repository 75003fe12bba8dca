"""Tiles: how a block is cut so that a part of it stays in a core's caches.

Pure arithmetic on shapes.
"""

import math

#: Bytes of a tile: it should stay in a core's caches from being gathered to being stored, and be
#: wide enough that gathering it does not jump about.
TILE_BYTES = 1 << 21

#: Threads of a process above which tiles are larger, and how many times as large at most.
#: After each tile's copies and FFTs a thread wants the interpreter, which takes 0.15 ms to go from
#: one to the next where all wait for it. With 16 threads, tiles of 8 MiB took 0.45 to 1.01 times as
#: long as ones of 2 MiB; with 2 threads, as long.
FEW, WIDEST = 4, 8

#: How many times as small tiles are where a block changes its shape or type, since what a library
#: answers in fresh memory is another tile then. So it is with few threads; for many it matters more
#: how often they come back from one.
CHANGED = 4

#: Bytes of a line from which on a library is given one at a time where it would copy several.
LONG_BYTES = 4 << 20

#: Bytes that a tile's rows should have at least, to be worth storing apart.
ROW_BYTES = 1 << 8


def tile_bytes_of(threads: int, changes: bool = False) -> int:
    """Bytes of a tile where so many threads of a process work side by side.

    Those of a block that `changes` its shape or type in a round may be smaller.

    >>> [tile_bytes_of(threads) >> 20 for threads in (1, 4, 16, 64)]
    [2, 2, 8, 16]
    >>> [tile_bytes_of(threads, changes=True) >> 10 for threads in (1, 8, 16)]
    [512, 2048, 8192]
    """
    many = min(max(threads, FEW), WIDEST * FEW)
    found = TILE_BYTES * many // FEW
    return found // max(1, CHANGED * FEW // many) if changes else found


def tiling(
    shape: tuple[int, ...],
    fixed: set[int],
    nbytes: int,
    tile_bytes: int = TILE_BYTES,
    row_bytes: int = ROW_BYTES,
    slice_bytes: int = 0,
) -> tuple[int, int] | None:
    """Dimension along which a block is cut into tiles, and their width.

    The outermost dimension that is not transformed, if its single slices are small enough and
    its tiles have rows wide enough to be stored; None if it is not so, and for blocks of no
    elements. Slices of up to `slice_bytes` are small enough to be a tile each, if they are too
    large for `tile_bytes`.

    >>> tiling((64, 8192), {1}, 64 * 8192 * 16)
    (0, 16)
    >>> tiling((64, 8192), {1}, 64 * 8192 * 16, 1 << 16, slice_bytes=1 << 17)
    (0, 1)
    """
    for dim, size in enumerate(shape if math.prod(shape) else ()):
        if dim not in fixed and size > 1:
            width = tile_bytes * size // nbytes or int(nbytes <= slice_bytes * size)
            row = width * nbytes // math.prod(shape[: dim + 1])
            return (dim, width) if width > 0 and row >= row_bytes else None
    return None
