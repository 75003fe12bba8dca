"""How a round reads and writes its blocks in memory: what of it is copied, and in which rows.

A block is gathered from shards, or copied from where it lies with others, or read there by the FFT
library itself; what the FFTs leave is where it belongs, or is stored there tile by tile. Which of
these happens follows from the plan alone, as `kernels.cpu.run_round` does it.

Pure: imports `decomposition` and this room.
"""

import math
from dataclasses import dataclass
from typing import Literal

from dask_bigfft.decomposition.joints import place_of
from dask_bigfft.decomposition.layout import Layout
from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.decomposition.steps import Divisor, Step
from dask_bigfft.decomposition.tiles import ROW_BYTES, tile_bytes_of, tiling
from dask_bigfft.planner.joints import Joint

__all__ = ["Lies", "Traffic", "block_of", "lies", "rows_of", "tiles_of", "traffic"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Lies:
    """Where a block lies in memory: lengths and steps in bytes, dimension by dimension."""

    shape: Shape
    steps: Shape

    def dense(self, itemsize: int) -> bool:
        """Whether it is contiguous."""
        return rows_of(self.shape, self.steps, itemsize) >= math.prod(self.shape) * itemsize


@dataclass(frozen=True)
class Traffic:
    """What of a block is copied before and after the FFTs of a round.

    Parameters
    ----------
    read : {"none", "block", "shards", "lying"}
        What is copied before: nothing, the block that came in, shards of others, or the block where
        it lies with others.
    row : float
        Bytes of contiguous rows that are read.
    stored : int
        Bytes of contiguous rows in which results are stored apart; 0 where they are not.
    direct : bool
        Whether the FFT library reads blocks where they lie.
    tiles : int
        Parts in which a block is worked on: 1 where it is not cut.
    """

    read: Literal["none", "block", "shards", "lying"]
    row: float
    stored: int
    direct: bool
    tiles: int


def block_of(layout: Layout) -> Shape:
    """Shape of the largest block."""
    return layout.full_shape


def lies(joint: Joint, layout: Layout, itemsize: int) -> Lies:
    """Where the first block of a layout lies with others."""
    place = place_of(joint.layout, layout, tuple(0 for _ in layout.axes))
    steps = _own(place.shape, itemsize).steps
    lengths = [cut.stop - cut.start for cut in place.cuts]
    return Lies(tuple(lengths[d] for d in place.order), tuple(steps[d] for d in place.order))


def _own(shape: Shape, itemsize: int) -> Lies:
    """Where a block lies that has memory of its own."""
    return Lies(shape, tuple(itemsize * math.prod(shape[d + 1 :]) for d in range(len(shape))))


def rows_of(shape: Shape, steps: Shape, itemsize: int) -> int:
    """Return the bytes of contiguous rows of strided memory.

    >>> rows_of((8, 16), (512, 16), 16), rows_of((8, 16), (16, 512), 16)
    (256, 128)
    """
    width = itemsize
    for step, n in sorted((step, n) for n, step in zip(shape, steps, strict=True) if n > 1):
        if step != width:
            break
        width *= n
    return width


def _cut(where: Lies, found: tuple[int, int] | None) -> Lies:
    """A tile of a block."""
    if found is None:
        return where
    dim, width = found
    return Lies((*where.shape[:dim], min(width, where.shape[dim]), *where.shape[dim + 1 :]),
                where.steps)


def _halved(round_: Round, supports_out: bool) -> bool:
    """Whether a library answers FFTs of real values where their results belong."""
    return supports_out and not round_.rolls and [s.kind for s in round_.steps].count("r2c") == 1


def tiles_of(
    round_: Round, itemsize: int, supports_out: bool = False, threads: int = 1
) -> tuple[int, int] | None:
    """How a round's blocks are cut into tiles: along which dimension, how wide; None: they are not.

    `itemsize` is that of complex numbers, `supports_out` and `threads` as `traffic` takes them.
    """
    before, after = block_of(round_.source), block_of(round_.target)
    kinds = {step.kind for step in round_.steps}
    real = itemsize // 2
    came = math.prod(before) * (real if "r2c" in kinds else itemsize)
    goes = math.prod(after) * (real if "c2r" in kinds else itemsize)
    changes = before != after or bool(kinds & {"r2c", "c2r"})
    fixed = {round_.dim(step) for step in round_.steps}
    most = tile_bytes_of(threads)
    size = tile_bytes_of(threads, changes and not _halved(round_, supports_out))
    return tiling(before, fixed, max(came, goes, 1), size, ROW_BYTES, most)


def _ffts_of(steps: tuple[Step, ...]) -> tuple[bool, bool]:
    """Whether a round begins with complex FFTs of one kind, and whether these are all of it."""
    begins = bool(steps) and {(s.kind, s.sign, s.chirp_in) for s in steps} == {
        ("c2c", steps[0].sign, None)}
    plain = all(s.twiddle is None and s.convolve is None and s.chirp_out is None for s in steps)
    scaled = all(s.divisor in (Divisor(), Divisor(s.length), Divisor(1, s.length)) for s in steps)
    return begins, begins and plain and scaled


def traffic(
    round_: Round, itemsize: int, supports_out: bool, reads: Joint | None,
    writes: Joint | None, inside: bool, near: bool, threads: int = 1,
) -> Traffic:
    """What of a round's blocks is copied.

    Parameters
    ----------
    round_ : Round
        What is done.
    itemsize : int
        Bytes of a complex number.
    supports_out : bool
        Whether the FFT library can answer in other memory than its own.
    reads, writes : Joint or None
        How blocks lie together that it reads, and those that it writes.
    inside : bool
        Whether results take the places of what was read.
    near : bool
        Whether blocks before the exchange are the round's own, as they are.
    threads : int
        Of a process that work side by side.
    """
    steps = round_.steps
    kinds = {step.kind for step in steps}
    came = itemsize // 2 if "r2c" in kinds else itemsize
    goes = itemsize // 2 if "c2r" in kinds else itemsize
    shape, after = block_of(round_.source), block_of(round_.target)
    begins, only = _ffts_of(steps)
    changes = shape != after or bool(kinds & {"r2c", "c2r"})
    source = _own(shape, came) if reads is None else lies(reads, round_.source, came)
    target = _own(after, goes)
    if inside:
        target = source
    elif writes is not None:
        target = lies(writes, round_.target, goes)
    found = tiles_of(round_, itemsize, supports_out, threads)
    packed = target.dense(goes) and (found is None or math.prod(after[: found[0]]) == 1)
    halved = _halved(round_, supports_out)
    reachable = (near or reads is not None) and supports_out and not round_.rolls
    given = reachable and (begins or halved) and (only or packed)
    tiled = found is not None and not (given and only and len(steps) == 1)
    tile = found if tiled else None
    row = rows_of(*_astuple(_cut(source, tile)), came)
    if given:
        read: Literal["none", "block", "shards", "lying"] = "none"
    else:
        read = "lying" if reads is not None else "block" if near else "shards"
    stored = rows_of(*_astuple(_cut(target, tile)), goes)
    if (packed and halved) or (not changes and (given or (packed and not inside))):
        stored = 0
    tiles = 1 if tile is None else -(-shape[tile[0]] // tile[1])
    return Traffic(read, row, stored, given, tiles)


def _astuple(where: Lies) -> tuple[Shape, Shape]:
    return where.shape, where.steps
