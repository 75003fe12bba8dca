"""One crossing of a block: its pieces, what they read and write, and what they take on a device.

Pure arithmetic on shapes: imports `decomposition`, `planner` and this room.
"""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from dask_bigfft.decomposition.layout import even_chunks
from dask_bigfft.devices.protocol import ALIGNMENT, Kind
from dask_bigfft.planner.device_settings import DeviceSettings

#: Multiples of the number of pieces that are tried: many narrow ones, or few that end later.
FINER = (1 / 8, 1 / 4, 1 / 2, 1, 4)

#: Parts of the room of a piece that the dimension which is given room first takes at most, where
#: nothing is transformed: a piece that is turned needs room both ways.
SQUARER = (1, 1 / 4, 1 / 16, 1 / 64)

#: Calls for a piece beside its copies: events and kernels.
CALLS = 11

#: Blocks beyond which it does not matter how many more follow.
FOLLOWING = 4

#: Part of the staging buffers of one way that a piece fills at most: the next one is gathered
#: while the card takes it, and whoever submits pieces does not wait in the midst of one.
RING_SHARE = 1 / 2

#: As `PieceLimits.run_nbytes`, `ends` and `following` where threads gather rows into staging
#: buffers. They mind narrow rows less than copy engines do; the first piece of all is gathered,
#: and the last one scattered, while nothing else is (H200, 16 cores).
STAGED_RUN_NBYTES, STAGED_ENDS, STAGED_FOLLOWING = 1024, 3, 16

#: Bytes that a piece has at least where its number of passes is set.
LEAST_PASS = 1 << 16


@dataclass(frozen=True)
class PieceLimits:
    """What pieces may need, and how large they should be.

    Parameters
    ----------
    nbytes : int
        Bytes of the device that slots and work area take together.
    slots : int
        Pieces that are on the device at a time: one that comes, one that is worked on, one that
        goes.
    most, least : int
        Bytes that a piece has at most where a smaller one is as good, and at least where the
        block is cut only to keep all three engines busy.
    pieces : int
        Number of pieces that a crossing is cut into where its block is large enough, at least.
    run_nbytes, call_nbytes : int
        Bytes that cross the bus in the time that a contiguous run costs apart from its bytes, and
        in the time that the host takes for a call.
    finer : tuple of float
        Multiples of `pieces` that are tried.
    ends : float
        Pieces in whose time nothing else crosses the bus, at the beginning and end of all blocks.
    following : int
        Blocks beyond which it does not matter how many more follow.
    """

    nbytes: int
    slots: int = 3
    most: int = 1 << 30
    least: int = 1 << 22
    pieces: int = 8
    run_nbytes: int = 8192
    call_nbytes: int = 1 << 18
    finer: tuple[float, ...] = FINER
    ends: float = 1
    following: int = FOLLOWING

    def tuned(self, settings: DeviceSettings) -> "PieceLimits":
        """The limits with what is set of them."""
        found = self
        if settings.buffers is not None:
            found = replace(found, slots=settings.buffers)
        if settings.passes is not None:
            least = min(self.least, LEAST_PASS)
            found = replace(found, pieces=settings.passes, least=least, finer=(1,))
        return found

    def staged(self, nbytes: int, settings: DeviceSettings) -> "PieceLimits":
        """The limits of a block that travels through staging buffers.

        Parameters
        ----------
        nbytes : int
            Bytes of the buffers of one way.
        settings : DeviceSettings
            What is set; a number of passes stays as it is.

        Examples
        --------
        >>> PieceLimits(1 << 31).staged(1 << 28, DeviceSettings()).most >> 20
        128
        """
        most = min(self.most, max(self.least, int(RING_SHARE * nbytes)))
        if settings.passes is not None:
            most = self.most
        return replace(
            self, most=most, run_nbytes=min(self.run_nbytes, STAGED_RUN_NBYTES),
            finer=(*self.finer, 2 * self.finer[-1]), ends=STAGED_ENDS, following=STAGED_FOLLOWING,
        )


@dataclass(frozen=True)
class Line:
    """A dimension of a block that a round transforms.

    Parameters
    ----------
    dim : int
        Dimension of the block.
    length : int
        Length of the FFTs.
    kind : {"c2c", "r2c", "c2r"}
        Of the FFTs.
    filtered : bool
        Whether the transformed digit is multiplied by a spectrum, which then is on the device, too.
    whole : bool
        Whether one FFT may be as long as the line; else it has to fall apart if it can.
    real : bool
        Whether only the real parts of what is filtered go back.
    """

    dim: int
    length: int
    kind: Kind = "c2c"
    filtered: bool = False
    whole: bool = True
    real: bool = False

    def steps(self, digits: int) -> int:
        """Steps that transform so many digits: what is filtered is transformed back as well."""
        return 2 * digits - 1 if self.filtered else digits

    def digit(self, step: int, digits: int) -> int:
        """The digit that a step transforms.

        >>> [Line(0, 8, filtered=True).digit(step, 3) for step in range(5)]
        [0, 1, 2, 1, 0]
        """
        return min(step, 2 * (digits - 1) - step)


@dataclass(frozen=True)
class Problem:
    """A round on a block, as far as its crossings depend on it.

    Parameters
    ----------
    shape : tuple of int
        Of the block before the round.
    lines : tuple of Line
        What is transformed.
    itemsize : int
        Bytes of a complex number.
    inside : bool
        Whether no memory apart from the block may be used where the round keeps its shape.
    order : tuple of int
        Where nothing is transformed: dimensions in the order in which they are written.
    blocks : int
        Blocks that are done one after the other, so that one comes while another goes.
    shards : int
        Parts in which a piece comes, about: as many calls for each.
    mirrored : bool
        Whether some of them lie backwards in host memory, and are turned on the device.
    stores : int
        Parts in which a piece goes in the end: as many calls for each.
    """

    shape: tuple[int, ...]
    lines: tuple[Line, ...]
    itemsize: int
    inside: bool = False
    order: tuple[int, ...] = ()
    blocks: int = 1
    shards: int = 1
    mirrored: bool = False
    stores: int = 1


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
    after, seen, kept = list(view), list(view), list[int]()
    for i, j in digits:
        line, split = lines[i], factors[i]
        first = firsts[line.dim]
        if line.kind == "r2c" and j == 0:
            after[first] = split[0] // 2 + 1
        if line.kind == "c2r" and j == len(split) - 1:
            after[first + j] = split[-1]
        if line.kind == "c2r" and j == 0 and len(split) > 1:
            seen[first : first + len(split)] = split
    kept = list(after)
    for i, j in digits:
        if lines[i].kind == "r2c" and j == len(factors[i]) - 1 > 0:
            first = firsts[lines[i].dim]
            kept[first : first + j + 1] = factors[i]
    natural = factors if last and not problem.inside else None
    order = _natural_order(problem, len(view), firsts, natural)
    registers, mirrored = _registers(problem, digits, order, factors), False
    if problem.mirrored and number == 0:
        registers, mirrored = (*registers, (problem.itemsize, 0)), True
    best: tuple[float, Crossing] | None = None
    squarer = SQUARER if problem.order else (1,)
    for priority, finer, share in itertools.product(
        _priorities(len(view), fixed, order), limits.finer, squarer
    ):
        pieces = max(1, int(finer * limits.pieces))
        extents = _extents(
            view, tuple(after), fixed, priority, registers, room, limits, pieces, share
        )
        if extents is None:
            return None
        ends = tuple(
            n if dim in fixed else e
            for dim, (n, e) in enumerate(zip(after, extents, strict=True))
        )
        crossing = Crossing(
            digits, view, tuple(after), extents, order,
            run_of(tuple(seen), extents),
            run_of(tuple(kept[d] for d in order), tuple(ends[d] for d in order)),
            _places(registers, extents, ends), mirrored=mirrored,
        )
        cost = crossing_cost(crossing, problem, limits, number == 0, last)
        if best is None or cost < best[0]:
            best = cost, crossing
    return None if best is None else best[1]


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


#: Bytes of an element before and after, in one place on the device.
_Register = tuple[int, int]


def _registers(
    problem: Problem,
    digits: tuple[tuple[int, int], ...],
    order: tuple[int, ...],
    factors: tuple[tuple[int, ...], ...],
) -> tuple[_Register, ...]:
    """Places on the device that a piece needs: where it comes to lie, and what cannot stay there.

    Each has the bytes of an element as the piece is before and after: the larger one counts.
    """
    whole, real = problem.itemsize, problem.itemsize // 2
    lines = [(problem.lines[i].kind, j, len(factors[i]) - 1) for i, j in digits]
    kinds = {k for k, j, last in lines if (k, j) in (("r2c", 0), ("c2r", last))}
    if any(problem.lines[i].real and j + 1 == problem.lines[i].steps(len(factors[i]))
           for i, j in digits):
        kinds.add("c2r")  # as far as places are concerned
    reorders = order != tuple(range(len(order)))
    first: _Register = (real if "r2c" in kinds else whole, 0)
    second: _Register = (0, 0)
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


def _places(
    registers: tuple[_Register, ...], extents: tuple[int, ...], ends: tuple[int, ...]
) -> tuple[int, ...]:
    before, after = math.prod(extents), math.prod(ends)
    return tuple(aligned(max(before * b, after * a)) for b, a in registers)


def _priorities(
    ndim: int, fixed: set[int], order: tuple[int, ...]
) -> Iterator[tuple[int, ...]]:
    """Orders in which dimensions are given room: innermost first, as read and as written."""
    read = tuple(dim for dim in reversed(range(ndim)) if dim not in fixed)
    written = tuple(dim for dim in reversed(order) if dim not in fixed)
    yield from dict.fromkeys((read, written))


def _extents(
    view: tuple[int, ...],
    after: tuple[int, ...],
    fixed: set[int],
    priority: tuple[int, ...],
    registers: tuple[_Register, ...],
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
