"""How large the pieces of a crossing are: what each takes on the device, and what fits there.

Pure arithmetic on shapes: imports `decomposition` and this room.
"""

import math
from collections.abc import Iterator

from dask_bigfft.decomposition.layout import even_chunks
from dask_bigfft.gpu.limits import PieceLimits
from dask_bigfft.gpu.operations import ALIGNMENT
from dask_bigfft.gpu.problem import Problem

#: Bytes of an element before and after, in one place on the device.
Register = tuple[int, int]


def aligned(nbytes: int) -> int:
    """The next multiple of the alignment of arrays.

    >>> aligned(1), aligned(256)
    (256, 256)
    """
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def run_of(shape: tuple[int, ...], extents: tuple[int, ...]) -> tuple[int, int]:
    """C and W of a box in an array: number of contiguous runs, and elements in each.

    >>> run_of((8, 16, 32), (8, 4, 32)), run_of((8, 16), (8, 1))
    ((8, 128), (8, 1))
    """
    width = 1
    for n, extent in zip(reversed(shape), reversed(extents), strict=True):
        width *= extent
        if extent < n:
            break
    return math.prod(extents) // max(1, width), width


def registers_of(
    problem: Problem,
    digits: tuple[tuple[int, int], ...],
    order: tuple[int, ...],
    factors: tuple[tuple[int, ...], ...],
) -> tuple[Register, ...]:
    """Places on the device that a piece needs: where it comes to lie, and what cannot stay there.

    Each has the bytes of an element as the piece is before and after: the larger one counts.
    """
    whole, real = problem.itemsize, problem.itemsize // 2
    lines = [(problem.lines[i].kind, j, len(factors[i]) - 1) for i, j in digits]
    kinds = {k for k, j, last in lines if (k, j) in (("r2c", 0), ("c2r", last))}
    if any(
        problem.lines[i].real and j + 1 == problem.lines[i].steps(len(factors[i]))
        for i, j in digits
    ):
        kinds.add("c2r")  # as far as places are concerned
    reorders = order != tuple(range(len(order)))
    first: Register = (real if "r2c" in kinds else whole, 0)
    second: Register = (0, 0)
    if "r2c" in kinds:
        second = (0, whole)
    if "c2r" in kinds:
        second = (0, real)
    if reorders:
        turned = (0, real if "c2r" in kinds else whole)
        if second == (0, 0):
            second = turned
        else:
            first = (first[0], turned[1])
    found = [first, second] if second != (0, 0) else [first]
    for i, j in digits:
        if problem.lines[i].filtered and j == len(factors[i]) - 1:
            found += [(whole, 0)] * (1 if j == 0 else 2)  # a spectrum in digits is turned
    # What completes half a spectrum comes, or goes, beside it.
    found += [(whole, 0) for kind, j, last in lines if kind == "c2r" and j == 0 < last]
    found += [(0, whole) for kind, j, last in lines if kind == "r2c" and j == last > 0]
    return tuple(found)


def places_of(
    registers: tuple[Register, ...], extents: tuple[int, ...], ends: tuple[int, ...]
) -> tuple[int, ...]:
    """Bytes of each place of a piece with these extents before and after."""
    before, after = math.prod(extents), math.prod(ends)
    return tuple(aligned(max(before * b, after * a)) for b, a in registers)


def priorities(ndim: int, fixed: set[int], order: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Orders in which dimensions are given room: innermost first, as read and as written."""
    read = tuple(dim for dim in reversed(range(ndim)) if dim not in fixed)
    written = tuple(dim for dim in reversed(order) if dim not in fixed)
    yield from dict.fromkeys((read, written))


def extents_of(
    view: tuple[int, ...],
    after: tuple[int, ...],
    fixed: set[int],
    priority: tuple[int, ...],
    registers: tuple[Register, ...],
    room: int,
    limits: PieceLimits,
    pieces: int,
    share: float = 1,
) -> tuple[int, ...] | None:
    """Extents of a piece, its transformed digits whole; None if not even one line fits.

    `share` is the part of the room that the first dimension of the priority takes at most.
    """
    extents = [n if dim in fixed else 1 for dim, n in enumerate(view)]
    ends = [n if dim in fixed else 1 for dim, n in enumerate(after)]
    sizes = [max(math.prod(extents) * b, math.prod(ends) * a) for b, a in registers]
    unit = sum(sizes)
    total = unit * math.prod(view[dim] for dim in priority)
    if unit > room:
        return None
    wanted = min(limits.most, max(limits.least, total // pieces))
    left = min(room, max(unit, wanted)) // max(1, unit)
    while left and sum(aligned(left * nbytes) for nbytes in sizes) > room:
        left -= 1  # what rounding up takes, of every place
    if left == 0:
        return None
    for dim in priority:
        most = left if dim != priority[0] else int(left * share)
        extents[dim] = max(1, min(view[dim], most))
        # chunks are even, so that no piece is much smaller than the others
        extents[dim] = max(even_chunks(view[dim], -(-view[dim] // extents[dim])))
        left //= extents[dim]
    return tuple(extents)
