"""Copies of blocks in memory before and after the FFTs of a round.

A block is gathered from shards, or copied from memory that it shares with others, or read
there by the FFT library; results are made in place, or stored tile by tile. Which of
these happens follows from the plan alone, as `kernels.loop.run_round` does it.

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

__all__ = ["Traffic", "tiles_of", "traffic"]


@dataclass(frozen=True)
class Traffic:
    """Copies of a block before and after the FFTs of a round.

    Parameters
    ----------
    read : {"none", "block", "shards", "view"}
        What is copied before: nothing, the block that came in, shards of others, or the block from
        memory that it shares with others.
    stored : bool
        Whether results are copied to where they belong.
    direct : bool
        Whether the FFT library reads blocks in place.
    tiles : int
        Tiles of a block: 1 where it is not cut.
    """

    read: Literal["none", "block", "shards", "view"]
    stored: bool
    direct: bool
    tiles: int


def _contiguous(joint: Joint, layout: Layout) -> bool:
    """Return whether a block is contiguous in the memory that it shares with others."""
    place = place_of(joint.layout, layout, tuple(0 for _ in layout.axes))
    lengths = [cut.stop - cut.start for cut in place.cuts]
    first = next((d for d, n in enumerate(lengths) if n > 1), 0)
    in_order = place.order == tuple(range(len(lengths)))
    return in_order and lengths[first + 1 :] == list(place.shape[first + 1 :])


def _halved(round_: Round, supports_out: bool) -> bool:
    """Return whether a library answers FFTs of real values where their results belong."""
    return supports_out and not round_.rolls and [s.kind for s in round_.steps].count("r2c") == 1


def tiles_of(
    round_: Round, itemsize: int, supports_out: bool = False, threads: int = 1
) -> tuple[int, int] | None:
    """Return the dimension and the width of a round's tiles; None where blocks are not cut.

    `itemsize` is that of complex numbers, `supports_out` and `threads` as `traffic` takes them.
    """
    before, after = round_.source.full_shape, round_.target.full_shape
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
    """Return whether a round begins with complex FFTs of one kind, and has nothing else."""
    begins = bool(steps) and {(s.kind, s.sign, s.chirp_in) for s in steps} == {
        ("c2c", steps[0].sign, None)
    }
    plain = all(s.twiddle is None and s.convolve is None and s.chirp_out is None for s in steps)
    scaled = all(s.divisor in (Divisor(), Divisor(s.length), Divisor(1, s.length)) for s in steps)
    return begins, begins and plain and scaled


def traffic(
    round_: Round,
    itemsize: int,
    supports_out: bool,
    reads: Joint | None,
    writes: Joint | None,
    inside: bool,
    near: bool,
    threads: int = 1,
) -> Traffic:
    """Return the copies of a round's blocks.

    Parameters
    ----------
    round_ : Round
        The round.
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
    shape, after = round_.source.full_shape, round_.target.full_shape
    begins, only = _ffts_of(round_.steps)
    changes = shape != after or any(step.kind in ("r2c", "c2r") for step in round_.steps)
    found = tiles_of(round_, itemsize, supports_out, threads)
    packed = not inside and (writes is None or _contiguous(writes, round_.target))
    packed = packed and (found is None or math.prod(after[: found[0]]) == 1)
    halved = _halved(round_, supports_out)
    reachable = (near or reads is not None) and supports_out and not round_.rolls
    given = reachable and (begins or halved) and (only or packed)
    tiled = found is not None and not (given and only and len(round_.steps) == 1)
    read: Literal["none", "block", "shards", "view"] = "none"
    if not given:
        read = "view" if reads is not None else "block" if near else "shards"
    in_place = (packed and halved) or (not changes and (given or packed))
    tiles = -(-shape[found[0]] // found[1]) if found is not None and tiled else 1
    return Traffic(read, not in_place, given, tiles)
