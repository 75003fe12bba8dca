"""How a block crosses the bus: which digits are transformed in each crossing, in which pieces.

A block whose round fits a piece takes one crossing. A larger one falls apart once more: the same
partition of digits into rounds as between blocks, with pieces in the place of blocks and the host
block, which takes strided reads and writes, in the place of the exchange (Gu, Siegel and Li 2011)::

    block of (Y, X)   {Y1}: piece = all of Y1, some of (Y2, X)   ->  written where it was read
                      {Y2, X}: piece = some of Y1, all of (Y2, X) ->  written as (Y2, Y1, X)

A digit stays where it lies, transformed; only the last crossing writes the digits of a split
dimension in their natural order, which needs memory apart from the block.

Pure arithmetic on shapes: imports `errors` and this room.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.gpu.crossings import Crossing, crossing_cost, crossings_of
from dask_bigfft.gpu.limits import LEAST_PART, PARTS, PieceLimits
from dask_bigfft.gpu.operations import ALIGNMENT
from dask_bigfft.gpu.problem import Line, Problem
from dask_bigfft.gpu.swaps import swap_crossing

#: Crossings that a block may take at most.
MAX_CROSSINGS = 4

#: Bytes of a run from which on wider ones are not worth fewer slots: 16 KiB move at 40 to 42 GB/s
#: beside kernels, 32 KiB at 49 of 51 (H200).
WIDE = 32 << 10

#: Splits into two digits that are tried for one dimension.
MAX_SPLITS = 24

#: Partitions that are tried for one number of crossings, about.
MAX_PARTITIONS = 1500


@dataclass(frozen=True)
class Schedule:
    """All crossings of a round on a block.

    ``factors`` are the digits of each line, in the order in which they are transformed.
    """

    factors: tuple[tuple[int, ...], ...]
    crossings: tuple[Crossing, ...]
    slots: int

    @property
    def slot_nbytes(self) -> int:
        """Bytes of a slot, which has to hold the largest piece of any crossing."""
        return max(crossing.slot_nbytes for crossing in self.crossings)

    @property
    def narrowest(self) -> int:
        """Elements of the shortest run that a piece takes in host memory."""
        return min(min(one.reads[1], one.writes[1]) for one in self.crossings)


@lru_cache(maxsize=512)
def find_schedule(problem: Problem, limits: PieceLimits, work: int = 0) -> Schedule:
    """Return the crossings of a round on a block.

    As few as possible where one is enough, else those that the bus is estimated to take the least
    time for: a crossing counts as much as its slower direction, and a run of ``limits.run_nbytes``
    counts twice. Where runs are narrow, fewer slots than ``limits.slots``, down to
    ``limits.fewest``, make pieces larger, and so runs wider.

    Parameters
    ----------
    problem : Problem
        The round on the block.
    limits : PieceLimits
        What pieces may need.
    work : int
        Work area that FFTs are expected to need, in units of the largest slot.

    Raises
    ------
    DeviceMemoryError
        If no number of crossings up to `MAX_CROSSINGS` makes pieces small enough.
    """
    for counts in ((1,), range(2, MAX_CROSSINGS + 1)):
        best: tuple[float, Schedule] | None = None
        for slots in range(limits.slots, 0, -1):
            if best is not None and (
                slots < limits.fewest or best[1].narrowest * problem.itemsize >= WIDE
            ):
                break
            most = math.inf if best is None else best[0]
            found = _cheapest(problem, limits, slots, work, counts, most)
            if best is None or (found is not None and found[1].slot_nbytes >= PARTS * LEAST_PART):
                best = found
        if best is not None:
            return best[1]
    lengths = " x ".join(str(line.length) for line in problem.lines)
    raise DeviceMemoryError(
        f"FFTs of {lengths} on a block of {problem.shape} do not fit {limits.nbytes} bytes of "
        f"the device in {MAX_CROSSINGS} crossings"
    )


def arranged(
    problem: Problem,
    limits: PieceLimits,
    factors: tuple[tuple[int, ...], ...],
    rounds: tuple[tuple[int, ...], ...],
    work: int = 0,
) -> Schedule:
    """Return the schedule of a decomposition that is given.

    Parameters
    ----------
    problem, limits, work
        As `find_schedule` takes them.
    factors : tuple of tuple of int
        Digits of each line, in the order in which they are transformed.
    rounds : tuple of tuple of int
        Crossing in which each digit is transformed, from 0.

    Raises
    ------
    DeviceMemoryError
        If a piece does not fit.
    """
    for slots in range(limits.slots, 0, -1):
        found = list(_all_crossings(problem, limits, _room(limits, slots, work), factors, rounds))
        if None not in found:
            return _schedule(factors, [c for c in found if c is not None], slots)
    raise DeviceMemoryError(f"no piece of {factors} fits {limits.nbytes} bytes of the device")


def _schedule(
    factors: tuple[tuple[int, ...], ...], crossings: list[Crossing], slots: int
) -> Schedule:
    """A schedule with as many slots as its pieces can fill, and two for those of other blocks."""
    most = max(crossing.pieces for crossing in crossings)
    return Schedule(factors, tuple(crossings), min(slots, most + 2))


def _room(limits: PieceLimits, slots: int, work: int) -> int:
    """Bytes of a slot."""
    return limits.nbytes // (slots + work) // ALIGNMENT * ALIGNMENT


def _cheapest(
    problem: Problem, limits: PieceLimits, slots: int, work: int, counts: Iterable[int], most: float
) -> tuple[float, Schedule] | None:
    """Cheapest schedule of some numbers of crossings, with its cost, if that is below a bound."""
    best: tuple[float, Schedule] | None = None
    for crossings in counts:
        if most <= crossings:  # what as many cost at least
            break
        found = _best(problem, limits, slots, work, crossings)
        if found is not None and found[0] < most:
            best, most = found, found[0]
    return best


def _best(
    problem: Problem, limits: PieceLimits, slots: int, work: int, crossings: int
) -> tuple[float, Schedule] | None:
    """Cheapest schedule of a number of crossings, with its cost."""
    room = _room(limits, slots, work)
    best: tuple[float, Schedule] | None = None
    for factors, rounds in _partitions(problem, crossings):
        cost, found = 0.02 * sum(map(len, factors)), list[Crossing]()
        for crossing in _all_crossings(problem, limits, room, factors, rounds):
            if crossing is None:
                break
            cost += crossing_cost(crossing, problem, limits, not found, len(found) == crossings - 1)
            found.append(crossing)
            if best is not None and cost + max(0, crossings - len(found)) >= best[0]:
                break
        else:
            best = cost, _schedule(factors, found, slots)
    return best


def _all_crossings(
    problem: Problem,
    limits: PieceLimits,
    room: int,
    factors: tuple[tuple[int, ...], ...],
    rounds: tuple[tuple[int, ...], ...],
) -> Iterator[Crossing | None]:
    """The crossings of a partition and, inside a block's own memory, those that reorder it."""
    view: tuple[int, ...] = ()
    for crossing in crossings_of(problem, limits, room, factors, rounds):
        yield crossing
        if crossing is None:
            return
        view = crossing.after
    digits = dict.fromkeys(range(len(problem.shape)), 1)
    digits |= {line.dim: len(f) for line, f in zip(problem.lines, factors, strict=True)}
    for line, split in zip(problem.lines, factors, strict=True):
        if problem.inside and len(split) > 1 and not line.filtered:
            first = sum(digits[dim] for dim in range(line.dim))
            swap = first, first + len(split) - 1
            yield swap_crossing(view, swap, problem.itemsize, room, limits)


def _partitions(
    problem: Problem, crossings: int
) -> Iterator[tuple[tuple[tuple[int, ...], ...], tuple[tuple[int, ...], ...]]]:
    """Digits of each line, and the crossing of each digit; no crossing stays empty.

    Where nothing is transformed there is one crossing, that only reorders.
    """
    if not problem.lines:
        if crossings == 1:
            yield (), ()
        return
    most = int(MAX_PARTITIONS ** (1 / max(1, len(problem.lines))))
    choices = [
        list(itertools.islice(_line_partitions(problem, line, crossings), most))
        for line in problem.lines
    ]
    for chosen in itertools.product(*choices):
        used = {number for _, rounds in chosen for number in rounds}
        if len(used) == crossings:
            yield tuple(c[0] for c in chosen), tuple(c[1] for c in chosen)


def _line_partitions(
    problem: Problem, line: Line, crossings: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    if line.kind != "c2c":  # all but real values are complex
        yield (line.length,), (0 if line.kind == "r2c" else crossings - 1,)
        if len(problem.lines) > 1 or problem.inside:  # the mirror image is of one dimension
            return
    elif line.whole:
        for number in range(crossings):
            yield (line.length,), (number,)
    most = MAX_SPLITS if len(problem.lines) == 1 else MAX_SPLITS // 2
    for digits in range(2, 4):
        if line.steps(digits) > crossings:
            return
        for factors in _factorisations(line.length, digits, most):
            if problem.inside and not line.filtered and factors != factors[::-1]:
                continue
            for rounds in itertools.combinations(range(crossings), line.steps(digits)):
                yield factors, rounds


@lru_cache(maxsize=256)
def _factorisations(n: int, digits: int, most: int) -> tuple[tuple[int, ...], ...]:
    """Ways to write a length as a product, none of them 1; the most even ones.

    >>> _factorisations(12, 2, 3)
    ((3, 4), (4, 3), (2, 6))
    """
    if digits == 1:
        return ((n,),) if n > 1 else ()
    found: list[tuple[int, ...]] = [
        (divisor, *rest)
        for divisor in _divisors(n)
        if 1 < divisor < n
        for rest in _factorisations(n // divisor, digits - 1, most)
    ]
    found.sort(key=lambda factors: (max(factors), factors))
    return tuple(found[: most if digits == 2 else 4 * most])


def _divisors(n: int) -> list[int]:
    """All divisors, rising."""
    low = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return sorted({*low, *(n // d for d in low)})
