"""The search for a tile plan: the digits that each pass transforms, and its tiles.

The cost of a pass is that of its slower direction of the bus. A contiguous run costs as much as
``limits.run_nbytes`` bytes. A block takes one pass where that is enough, else the cheapest passes.

One more pass puts a block that may be overwritten into natural order, in its own memory. Digits k1,
k2, k3 of a split dimension are stored in the order of their transforms. If k1 and k3 have equal
lengths, the value at (k1, k2, k3) belongs to (k3, k2, k1). Two tiles that swap places are on the
GPU together, and neither is written before both have been read.
"""

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dask_bigfft.decomposition.factors import divisors
from dask_bigfft.decomposition.layout import contiguous, even_chunks
from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.planner.tile_plan import (
    ALIGNMENT,
    AS_IS,
    DeviceSettings,
    Line,
    Scheme,
    TileLimits,
    TilePass,
    TilePlan,
    TileRequest,
    aligned,
    apart,
    request_of,
)

#: Maximum passes of a block.
MAX_PASSES = 4

#: Maximum splits into two digits that are tried for one dimension.
MAX_SPLITS = 24

#: Approximate maximum of partitions that are tried for one number of passes.
MAX_PARTITIONS = 1500

#: Maximum fractions of a tile for its first dimension where a pass only reorders: a transposed tile
#: needs room in both directions.
SQUARER = (1, 1 / 4, 1 / 16, 1 / 64)

#: Calls for a tile besides its copies: events and kernels.
CALLS = 11

#: GPU buffers of a pair of tiles that swap: both as loaded, and the first one transposed.
SWAP_PLACES = 3

Shape = tuple[int, ...]


@lru_cache(maxsize=1024)
def find_tile_plan(request: TileRequest, limits: TileLimits, work: float = 0) -> TilePlan:
    """Return the cheapest tile plan of a round on a block.

    One pass is tried first, with ever fewer buffers, then several passes.

    Parameters
    ----------
    request : TileRequest
        The round on the block.
    limits : TileLimits
        Memory and sizes of tiles.
    work : float
        Expected work area of FFTs, in units of the largest buffer.

    Raises
    ------
    DeviceMemoryError
        If no number of passes up to `MAX_PASSES` makes tiles small enough.
    """
    for counts in ((1,), range(2, MAX_PASSES + 1)):
        for buffers in range(limits.slots, 0, -1):
            room = int(limits.nbytes / (buffers + work)) // ALIGNMENT * ALIGNMENT
            if (found := _Search(request, limits, room).cheapest(counts, buffers)) is not None:
                return found
    lengths = " x ".join(str(line.length) for line in request.lines)
    raise DeviceMemoryError(
        f"FFTs of {lengths} on a block of {request.shape} do not fit "
        f"{limits.nbytes / 2**20:.3g} MiB of the device in {MAX_PASSES} passes"
    )


@lru_cache(maxsize=1024)
def tile_plans(
    round_: Round,
    dtype: str,
    nbytes: int,
    settings: DeviceSettings = AS_IS,
    order: Shape = (),
    inside: bool = False,
) -> tuple[TilePlan, ...]:
    """Return the tile plans of a round on its largest block, mostly one.

    The result is empty if some FFT does not fit the GPU. Then the CPU does it.

    Parameters
    ----------
    round_ : Round
        The round.
    dtype : str
        Complex dtype.
    nbytes : int
        Bytes of the GPU.
    settings : DeviceSettings
        Settings by hand.
    order : tuple of int
        Dimensions in the order in which they are written, if that is possible.
    inside : bool
        Whether the round must work in the memory of the block.
    """
    limits, real = TileLimits(nbytes).tuned(settings), np.empty(0, dtype).real.dtype.name
    ways = [((round_,), order), ((round_,), ()), (apart(round_), ())]
    for rounds, written in dict.fromkeys(ways):
        with contextlib.suppress(DeviceMemoryError):
            found = []
            for one in rounds:
                kinds = {step.kind for step in one.steps}
                source, target = (real if kind in kinds else dtype for kind in ("r2c", "c2r"))
                shape = one.source.shape(one.source.largest_block)
                request = request_of(one, shape, source, target)
                request = replace(request, order=written, inside=inside)
                found.append(find_tile_plan(request, limits, 1))
            return tuple(found)
    return ()


@lru_cache(maxsize=256)
def _factorisations(n: int, digits: int, most: int) -> tuple[Shape, ...]:
    """Return the most even factorisations of a length, without factors of 1.

    >>> _factorisations(12, 2, 3)
    ((3, 4), (4, 3), (2, 6))
    """
    if digits == 1:
        return ((n,),) if n > 1 else ()
    found: list[Shape] = [
        (divisor, *rest)
        for divisor in divisors(n)[1:-1]
        for rest in _factorisations(n // divisor, digits - 1, most)
    ]
    found.sort(key=lambda factors: (max(factors), factors))
    return tuple(found[: most if digits == 2 else 4 * most])


def _runs(shape: Shape, tile: Shape) -> tuple[int, int]:
    """Return C and W of a tile in an array: contiguous runs, and elements in each.

    >>> _runs((8, 16, 32), (8, 4, 32)), _runs((8, 16), (8, 1))
    ((8, 128), (8, 1))
    """
    width = contiguous(shape, tile)
    return math.prod(tile) // max(1, width), width


def _even(n: int, most: int) -> int:
    """Return the extent of the most even chunks of at most `most`."""
    return max(1, *even_chunks(n, -(-n // max(1, min(n, most)))))


class _Shapes:
    """The shapes of a block in digits around a pass, and the GPU buffers of its tiles.

    ``view`` is the shape before and ``after`` the one after the pass. ``read`` and ``stored`` are
    those of the host block, which differ for digits of half a spectrum. ``registers`` are the GPU
    buffers, with the bytes of an element before and after: the larger one counts.
    """

    def __init__(
        self, request: TileRequest, view: Shape, firsts: list[int], scheme: Scheme, number: int
    ) -> None:
        digits, where = scheme
        pairs = ((i, j, k) for i, passes in enumerate(where) for j, k in enumerate(passes))
        steps = tuple((i, j) for i, j, k in pairs if k == number)
        whole, real = request.itemsize, request.itemsize // 2
        self.steps, self.view = steps, view
        self.first, self.last = number == 0, number == max(itertools.chain(*where), default=0)
        self.mirrored = request.mirrored and self.first
        read, after = list(view), list(view)
        order, halves = list(range(len(view))), list[tuple[int, Shape]]()
        beside, filters = list[tuple[int, int]](), 0
        widens = narrows = False
        for i, j in steps:
            line, split = request.lines[i], digits[i]
            first, last = firsts[line.dim], len(split) - 1
            if line.kind == "r2c" and j == 0:
                widens, after[first] = True, split[0] // 2 + 1
            if line.kind == "c2r" and j == last:
                narrows, after[first + j] = True, split[-1]
            if line.filtered and j == last:
                filters += 1 if j == 0 else 2  # a spectrum in digits is transposed
            # The mirror image of half a spectrum is loaded, or stored, beside it.
            if line.kind == "c2r" and j == 0 < last:
                read[first : first + len(split)] = split
                beside.append((whole, 0))
            if line.kind == "r2c" and j == last > 0:
                halves.append((first, split))
                beside.append((0, whole))
        stored = list(after)
        for first, split in halves:
            stored[first : first + len(split)] = split
        if self.last and not request.inside:
            for line, split in zip(request.lines, digits, strict=True):
                if not line.filtered:  # filtered digits are back in place
                    part = slice(firsts[line.dim], firsts[line.dim] + len(split))
                    order[part] = order[part][::-1]
        self.fixed = {
            firsts[request.lines[i].dim] + request.lines[i].digit(j, len(digits[i]))
            for i, j in steps
        }
        self.read, self.after, self.stored = tuple(read), tuple(after), tuple(stored)
        self.order = request.order or tuple(order)
        source, result = real if widens else whole, real if narrows else whole
        self.itemsizes = source, result
        changes, turned = widens or narrows, self.order != tuple(range(len(view)))
        results = [(0, result)] if changes or turned else []
        first_place = source, result if changes and turned else 0
        others = [*[(whole, 0)] * filters, *beside, *[(whole, 0)] * self.mirrored]
        self.registers = (first_place, *results, *others)

    def in_tiles(self, tile: Shape) -> TilePass:
        """Return the pass in tiles of a shape."""
        pairs = enumerate(zip(self.after, tile, strict=True))
        done = tuple(n if dim in self.fixed else extent for dim, (n, extent) in pairs)
        before, after = math.prod(tile), math.prod(done)
        stored = tuple(self.stored[d] for d in self.order)
        runs = _runs(self.read, tile), _runs(stored, tuple(done[d] for d in self.order))
        places = tuple(aligned(max(before * b, after * a)) for b, a in self.registers)
        views, mirrored = (self.view, self.after, tile, self.order), self.mirrored
        return TilePass(self.steps, *views, *runs, places, self.itemsizes, mirrored=mirrored)


@dataclass(frozen=True)
class _Search:
    """Search for the passes of a round on a block, with `room` bytes of the GPU for each tile."""

    request: TileRequest
    limits: TileLimits
    room: int

    def cheapest(self, counts: Iterable[int], buffers: int) -> TilePlan | None:
        """Return the cheapest plan of some numbers of passes, with some buffers."""
        best: TilePlan | None = None
        most = math.inf
        for count in counts:
            if most <= count:  # what as many cost at least
                break
            for scheme in self._schemes(count):
                cost, found = 0.02 * sum(map(len, scheme[0])), list[TilePass]()
                for one in self._passes(scheme, count):
                    if one is None:
                        break
                    cost += self._cost(one, not found)
                    found.append(one)
                    if cost + max(0, count - len(found)) >= most:
                        break
                else:
                    # as many buffers as tiles can fill, and two for those of other blocks
                    filled = min(buffers, max(one.tiles for one in found) + 2)
                    best, most = TilePlan(scheme[0], tuple(found), filled), cost
        return best

    # --- schemes: digits of all lines, and the pass of each ---------------------------------------

    def _schemes(self, count: int) -> Iterator[Scheme]:
        """Yield digits of each line, and the pass of each step; no pass stays empty.

        Without FFTs there is one pass, which only reorders.
        """
        request = self.request
        if request.order and count > 1:
            return
        if request.scheme is not None:
            if count == 1 + max(itertools.chain(*request.scheme[1])):
                yield request.scheme
        elif not request.lines:
            if count == 1:
                yield (), ()
        else:
            most = int(MAX_PARTITIONS ** (1 / len(request.lines)))
            choices = [
                list(itertools.islice(self._line_schemes(line, count), most))
                for line in request.lines
            ]
            for chosen in itertools.product(*choices):
                if len({number for _, where in chosen for number in where}) == count:
                    yield tuple(c[0] for c in chosen), tuple(c[1] for c in chosen)

    def _line_schemes(self, line: Line, count: int) -> Iterator[tuple[Shape, Shape]]:
        """Yield digits of a line, and the pass of each of its steps."""
        alone, inside = len(self.request.lines) == 1, self.request.inside
        if line.kind != "c2c":  # real values on one side
            yield (line.length,), (0 if line.kind == "r2c" else count - 1,)
            if not alone or inside:  # only one dimension can be mirrored
                return
        elif line.whole:
            for number in range(count):
                yield (line.length,), (number,)
        most = MAX_SPLITS if alone else MAX_SPLITS // 2
        for digits in range(2, 4):
            if line.steps(digits) > count:
                return
            for factors in _factorisations(line.length, digits, most):
                if inside and not line.filtered and factors != factors[::-1]:
                    continue
                for where in itertools.combinations(range(count), line.steps(digits)):
                    yield factors, where

    # --- one pass --------------------------------------------------------------------------------

    def _cost(self, one: TilePass, first: bool) -> float:
        """Return the time of a pass, maybe a block's first, in units of its bytes one way.

        Loading the first tile and storing the last one overlap only with neighbouring blocks.
        """
        request, limits = self.request, self.limits
        itemsize, sides = request.itemsize, (one.reads, one.writes)
        there, back = (1 + limits.run_nbytes / (width * itemsize) for _, width in sides)
        calls = CALLS + 1 + (request.shards if first else 1)
        nbytes, tiles = itemsize * max(1, math.prod(one.view)), one.tiles
        called = tiles * calls * limits.call_nbytes / nbytes
        alone = limits.ends / (tiles * min(request.blocks, limits.following))
        return max(there, back) * (1 + alone) + 0.01 * (there + back) + called

    def _passes(self, scheme: Scheme, count: int) -> Iterator[TilePass | None]:
        """Yield the passes of a scheme, then those that swap digits inside a block's own memory.

        The last item is None if a tile does not fit.
        """
        request, digits = self.request, scheme[0]
        sizes: dict[int, Shape] = {dim: (n,) for dim, n in enumerate(request.shape)}
        for line, split in zip(request.lines, digits, strict=True):
            if len(split) > 1:  # all but the last digit of half a spectrum are whole
                half = split[-1] // 2 + 1
                sizes[line.dim] = (*split[:-1], half) if line.kind == "c2r" else split
        view = tuple(itertools.chain(*sizes.values()))
        firsts = list(itertools.accumulate(map(len, sizes.values()), initial=0))
        for number in range(count):
            one = self._pass(_Shapes(request, view, firsts, scheme, number))
            yield one
            if one is None:
                return
            view = one.after
        for line, split in zip(request.lines, digits, strict=True):
            if request.inside and len(split) > 1 and not line.filtered:
                first = firsts[line.dim]
                yield self._swap(view, first, first + len(split) - 1)

    def _pass(self, shape: _Shapes) -> TilePass | None:
        """Return one pass in its cheapest tiles; None if no tile fits."""
        free = [dim for dim in reversed(range(len(shape.view))) if dim not in shape.fixed]
        written = [dim for dim in reversed(shape.order) if dim not in shape.fixed]
        # Dimensions get room innermost first, as read and as written.
        priorities = dict.fromkeys((tuple(free), tuple(written)))
        shares = SQUARER if self.request.order else (1,)
        ways = itertools.product(priorities, self.limits.finer, shares)
        tiles = dict.fromkeys(self._tile(shape, *way) for way in ways)
        found = [shape.in_tiles(tile) for tile in tiles if tile is not None]
        return min(found, key=lambda one: self._cost(one, shape.first), default=None)

    def _tile(self, shapes: _Shapes, priority: Shape, finer: float, share: float) -> Shape | None:
        """Return the shape of a tile of whole transformed digits; None if not even one line fits.

        The other dimensions get room in the order `priority`, the first one at most the fraction
        `share` of it. `finer` multiplies the number of tiles.
        """
        tile = [n if dim in shapes.fixed else 1 for dim, n in enumerate(shapes.view)]
        done = math.prod(shapes.after[dim] for dim in shapes.fixed)
        sizes = [max(math.prod(tile) * b, done * a) for b, a in shapes.registers]
        unit = sum(sizes)
        if unit > self.room:
            return None
        count = max(1, int(finer * self.limits.pieces))
        wanted = unit * math.prod(shapes.view[dim] for dim in priority) // count
        wanted = min(self.limits.most, max(self.limits.least, wanted))
        left = min(self.room, max(unit, wanted)) // max(1, unit)
        while left and sum(aligned(left * nbytes) for nbytes in sizes) > self.room:
            left -= 1  # the alignment of every buffer
        if left == 0:
            return None
        for dim in priority:
            tile[dim] = _even(shapes.view[dim], left if dim != priority[0] else int(left * share))
            left //= tile[dim]
        return tuple(tile)

    def _swap(self, view: Shape, first: int, last: int) -> TilePass | None:
        """Return the pass that swaps two dimensions of a view, of equal length.

        None if not even the smallest tiles fit.
        """
        itemsize, limits = self.request.itemsize, self.limits
        unit = SWAP_PLACES * itemsize
        wanted = unit * math.prod(view) // limits.pieces
        left = min(self.room, min(limits.most, max(limits.least, wanted))) // unit
        if left == 0:
            return None
        tile = [1] * len(view)
        for dim in reversed(range(last + 1, len(view))):  # rows first, as wide as possible
            tile[dim] = _even(view[dim], left)
            left //= tile[dim]
        tile[first] = tile[last] = _even(view[last], math.isqrt(left))
        left //= tile[last] ** 2
        for dim in reversed([d for d in range(last) if d != first]):
            tile[dim] = _even(view[dim], left)
            left //= tile[dim]
        place, order = aligned(itemsize * math.prod(tile)), tuple(range(len(view)))
        if SWAP_PLACES * place > self.room:
            return None
        runs = _runs(view, tuple(tile))
        views, places = (view, view, tuple(tile), order), (place,) * SWAP_PLACES
        return TilePass((), *views, runs, runs, places, (itemsize, itemsize), (first, last))
