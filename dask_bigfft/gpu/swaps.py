"""The crossing that puts digits into their natural order inside a block's own memory.

Digits k1, k2, k3 of a split dimension lie in the order in which they were transformed, and belong
in the reverse one. With as many values of k1 as of k3 that is an exchange of tiles: what lies at
(k1, k2, k3) belongs to (k3, k2, k1). Two tiles that belong to each other's places are on the device
together, and neither is written before both have been read::

    tile (A, k2, B) --turned--> (B, k2, A)        tile (B, k2, A) --turned--> (A, k2, B)

So a block that may be overwritten needs no other memory than its own, for one more crossing.

Imports this room.
"""

import itertools
import math
from collections.abc import Iterator

from dask_bigfft.decomposition.layout import even_chunks
from dask_bigfft.gpu.crossings import Crossing
from dask_bigfft.gpu.extents import aligned, run_of
from dask_bigfft.gpu.limits import PieceLimits
from dask_bigfft.gpu.operations import DeviceArray, Transpose
from dask_bigfft.gpu.piecework import Computation, Move, PieceWork
from dask_bigfft.gpu.ragged import HostView, Slices

#: Places of a pair of tiles: both as they come, and the first one turned.
PLACES = 3


def swap_crossing(
    view: tuple[int, ...], swap: tuple[int, int], itemsize: int, room: int, limits: PieceLimits
) -> Crossing | None:
    """Return the crossing that swaps two dimensions of a view, of equal length.

    None if not even the smallest tiles fit `room` bytes.
    """
    first, last = swap
    unit = PLACES * itemsize
    wanted = unit * math.prod(view) // limits.pieces
    left = min(room, min(limits.most, max(limits.least, wanted))) // unit
    if left == 0:
        return None
    extents = [1] * len(view)
    for dim in reversed(range(last + 1, len(view))):  # rows first, as wide as they can be
        extents[dim] = _even(view[dim], left)
        left //= extents[dim]
    extents[first] = extents[last] = _even(view[last], math.isqrt(left))
    left //= extents[last] ** 2
    for dim in reversed([d for d in range(last) if d != first]):
        extents[dim] = _even(view[dim], left)
        left //= extents[dim]
    tile = tuple(extents)
    if PLACES * aligned(itemsize * math.prod(tile)) > room:
        return None
    run, place = run_of(view, tile), aligned(itemsize * math.prod(tile))
    order = tuple(range(len(view)))
    return Crossing((), view, view, tile, order, run, run, (place,) * PLACES, swap)


def _even(n: int, most: int) -> int:
    """The extent of chunks of at most `most` that are as even as can be."""
    return max(even_chunks(n, -(-n // max(1, min(n, most)))))


def swap_works(crossing: Crossing, dtype: str) -> Iterator[PieceWork]:
    """What is done with each pair of tiles."""
    assert crossing.swap is not None
    first, last = crossing.swap
    cuts = [_slices(cut) for cut in crossing.chunks]
    order = list(crossing.order)
    order[first], order[last] = order[last], order[first]
    grid = [range(len(cut)) for cut in cuts]
    for place in itertools.product(*grid):
        if place[first] > place[last]:
            continue
        other = list(place)
        other[first], other[last] = other[last], other[first]
        parts = [tuple(cut[i] for cut, i in zip(cuts, p, strict=True)) for p in (place, other)]
        yield _pair(crossing, dtype, tuple(order), parts, place[first] == place[last])


def _pair(
    crossing: Crossing, dtype: str, order: tuple[int, ...], parts: list[Slices], alone: bool
) -> PieceWork:
    """Both tiles, or the one that is its own partner."""
    one, two = (tuple(part.stop - part.start for part in found) for found in parts)
    place = crossing.places[0]
    source, turned = DeviceArray(0, one, dtype), DeviceArray(2 * place, two, dtype)
    done = [Computation(Transpose(one, order, dtype), source, turned)]
    comes, goes = [Move(parts[0], source)], [Move(parts[1], turned)]
    if not alone:
        partner, back = DeviceArray(place, two, dtype), DeviceArray(0, one, dtype)
        done.append(Computation(Transpose(two, order, dtype), partner, back))
        comes.append(Move(parts[1], partner))
        goes.append(Move(parts[0], back))
    view = HostView(crossing.view)
    return PieceWork(view, tuple(comes), source, (), tuple(done), turned, view, tuple(goes))


def _slices(chunks: tuple[int, ...]) -> list[slice]:
    ends = list(itertools.accumulate(chunks))
    return [slice(end - n, end) for end, n in zip(ends, chunks, strict=True)]
