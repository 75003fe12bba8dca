"""One crossing of a block: its pieces, what they read and write, and what they take on a device.

Pure arithmetic on shapes: imports `decomposition` and this room.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from dask_bigfft.decomposition.layout import even_chunks
from dask_bigfft.gpu.extents import extents_of, places_of, priorities, registers_of, run_of
from dask_bigfft.gpu.limits import PieceLimits
from dask_bigfft.gpu.problem import Problem

#: Parts of the room of a piece that the dimension which is given room first takes at most, where
#: nothing is transformed: a piece that is turned needs room both ways.
SQUARER = (1, 1 / 4, 1 / 16, 1 / 64)

#: Calls for a piece beside its copies: events and kernels.
CALLS = 11


@dataclass(frozen=True)
class Crossing:
    """One trip of a block over the bus and back.

    Parameters
    ----------
    digits : tuple of (int, int)
        What is transformed: the number of a line, and of a step of it.
    view, after : tuple of int
        Shape of the block in digits, before and after.
    extents : tuple of int
        Of the largest piece, in `view`.
    order : tuple of int
        Dimensions of `after` in the order in which they are written.
    reads, writes : (int, int)
        C and W: runs that a piece takes in host memory, and elements in each.
    places : tuple of int
        Bytes of each place that a piece needs on the device: where it is copied to, where what
        cannot stay there goes, and where filters are copied to.
    swap : (int, int) or None
        Dimensions that change places, in the block's own memory; nothing is transformed then.
    mirrored : bool
        Whether the last place is for what comes backwards.
    """

    digits: tuple[tuple[int, int], ...]
    view: tuple[int, ...]
    after: tuple[int, ...]
    extents: tuple[int, ...]
    order: tuple[int, ...]
    reads: tuple[int, int]
    writes: tuple[int, int]
    places: tuple[int, ...]
    swap: tuple[int, int] | None = None
    mirrored: bool = False

    @property
    def slot_nbytes(self) -> int:
        """Bytes that a piece takes on the device."""
        return sum(self.places)

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """How the dimensions of `view` are cut into pieces."""
        return tuple(
            even_chunks(n, -(-n // max(1, extent)))
            for n, extent in zip(self.view, self.extents, strict=True)
        )

    @property
    def pieces(self) -> int:
        """Number of pieces."""
        counts = list(map(len, self.chunks))
        if self.swap is None:
            return math.prod(counts)
        tiles = counts[self.swap[0]]
        return math.prod(counts) // tiles**2 * (tiles * (tiles + 1) // 2)

    @property
    def reorders(self) -> bool:
        """Whether digits are written in another order than they are read."""
        return self.order != tuple(range(len(self.order)))


def crossing_cost(
    crossing: Crossing, problem: Problem, limits: PieceLimits, first: bool, last: bool
) -> float:
    """Time of a crossing, maybe the first of a block or the last, in units of its bytes one way.

    The first piece comes alone and the last one goes alone, but for the blocks around this one.
    """
    itemsize, sides = problem.itemsize, (crossing.reads, crossing.writes)
    there, back = (1 + limits.run_nbytes / (width * itemsize) for _, width in sides)
    calls = CALLS + (problem.shards if first else 1) + (problem.stores if last else 1)
    nbytes = itemsize * max(1, math.prod(crossing.view))
    called = crossing.pieces * calls * limits.call_nbytes / nbytes
    alone = limits.ends / (crossing.pieces * min(problem.blocks, limits.following))
    return max(there, back) * (1 + alone) + 0.01 * (there + back) + called


def crossings_of(
    problem: Problem,
    limits: PieceLimits,
    room: int,
    factors: tuple[tuple[int, ...], ...],
    rounds: tuple[tuple[int, ...], ...],
) -> Iterator[Crossing | None]:
    """The crossings of a partition; ends with None where a piece does not fit."""
    digits_of: dict[int, tuple[int, ...]] = dict.fromkeys(range(len(problem.shape)), (0,))
    for line, split in zip(problem.lines, factors, strict=True):
        half = split[-1] // 2 + 1  # all but the last digit of half a spectrum are whole
        digits_of[line.dim] = (*split[:-1], half) if line.kind == "c2r" else split
    view: tuple[int, ...] = ()
    firsts: list[int] = []
    for dim, n in enumerate(problem.shape):
        firsts.append(len(view))
        view += (n,) if len(digits_of[dim]) == 1 else digits_of[dim]
    count = max((number for numbers in rounds for number in numbers), default=0) + 1
    for number in range(count):
        digits = tuple(
            (i, j)
            for i, numbers in enumerate(rounds)
            for j, other in enumerate(numbers)
            if other == number
        )
        crossing = _crossing(
            problem, limits, room, view, tuple(firsts), digits, factors, number, number == count - 1
        )
        yield crossing
        if crossing is None:
            return
        view = crossing.after


def _crossing(
    problem: Problem,
    limits: PieceLimits,
    room: int,
    view: tuple[int, ...],
    firsts: tuple[int, ...],
    digits: tuple[tuple[int, int], ...],
    factors: tuple[tuple[int, ...], ...],
    number: int,
    last: bool,
) -> Crossing | None:
    """One crossing, in the pieces that are cheapest."""
    lines = problem.lines
    fixed = {firsts[lines[i].dim] + lines[i].digit(j, len(factors[i])) for i, j in digits}
    seen, after, kept = _shapes(problem, view, firsts, digits, factors)
    natural = factors if last and not problem.inside else None
    order = _natural_order(problem, len(view), firsts, natural)
    registers, mirrored = registers_of(problem, digits, order, factors), False
    if problem.mirrored and number == 0:
        registers, mirrored = (*registers, (problem.itemsize, 0)), True
    best: tuple[float, Crossing] | None = None
    squarer = SQUARER if problem.order else (1,)
    for priority, finer, share in itertools.product(
        priorities(len(view), fixed, order), limits.finer, squarer
    ):
        pieces = max(1, int(finer * limits.pieces))
        extents = extents_of(view, after, fixed, priority, registers, room, limits, pieces, share)
        if extents is None:
            return None
        ends = tuple(
            n if dim in fixed else e for dim, (n, e) in enumerate(zip(after, extents, strict=True))
        )
        crossing = Crossing(
            digits,
            view,
            after,
            extents,
            order,
            run_of(seen, extents),
            run_of(tuple(kept[d] for d in order), tuple(ends[d] for d in order)),
            places_of(registers, extents, ends),
            mirrored=mirrored,
        )
        cost = crossing_cost(crossing, problem, limits, number == 0, last)
        if best is None or cost < best[0]:
            best = cost, crossing
    return None if best is None else best[1]


def _shapes(
    problem: Problem,
    view: tuple[int, ...],
    firsts: tuple[int, ...],
    digits: tuple[tuple[int, int], ...],
    factors: tuple[tuple[int, ...], ...],
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Shapes of the block in digits: as it is read, after the crossing, and as it is written."""
    seen, after = list(view), list(view)
    for i, j in digits:
        line, split = problem.lines[i], factors[i]
        first = firsts[line.dim]
        if line.kind == "r2c" and j == 0:
            after[first] = split[0] // 2 + 1
        if line.kind == "c2r" and j == len(split) - 1:
            after[first + j] = split[-1]
        if line.kind == "c2r" and j == 0 and len(split) > 1:
            seen[first : first + len(split)] = split
    kept = list(after)
    for i, j in digits:
        line, split = problem.lines[i], factors[i]
        if line.kind == "r2c" and j == len(split) - 1 > 0:
            first = firsts[line.dim]
            kept[first : first + len(split)] = split
    return tuple(seen), tuple(after), tuple(kept)


def _natural_order(
    problem: Problem,
    ndim: int,
    firsts: tuple[int, ...],
    factors: tuple[tuple[int, ...], ...] | None,
) -> tuple[int, ...]:
    """Dimensions in the order in which the last crossing writes them: split ones reversed."""
    if problem.order:
        return problem.order
    order = list(range(ndim))
    for line, split in zip(problem.lines, factors or (), strict=factors is not None):
        if line.filtered:
            continue  # which is back where it was
        first = firsts[line.dim]
        order[first : first + len(split)] = reversed(order[first : first + len(split)])
    return tuple(order)
