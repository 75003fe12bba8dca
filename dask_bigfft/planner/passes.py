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
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

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
    digit_of_step,
    request_of,
)
from dask_bigfft.transforms.factors import divisors
from dask_bigfft.transforms.layout import contiguous, even_width
from dask_bigfft.transforms.rounds import Round

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

#: Calls that take as long as a product with a transfer function, which Python code evaluates for
#: each tile (0.3 ms on an H200).
PRODUCT_CALLS = 50

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
            tile_plan = _Search(request, limits, room).cheapest(counts, buffers)
            if tile_plan is not None:
                return tile_plan

    from dask.utils import format_bytes

    lengths = " x ".join(str(line.length) for line in request.lines)
    raise DeviceMemoryError(
        f"FFTs of {lengths} on a block of {request.shape} do not fit "
        f"{format_bytes(limits.nbytes)} of the device in {MAX_PASSES} passes"
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
    limits = TileLimits(nbytes).tuned(settings)
    # The round at once, then without the wanted order, then real FFTs in rounds of their own.
    ways = [((round_,), order), ((round_,), ()), (apart(round_), ())]
    for rounds, written in dict.fromkeys(ways):
        requests = [_largest_request(part, dtype) for part in rounds]
        requests = [replace(request, order=written, inside=inside) for request in requests]
        with contextlib.suppress(DeviceMemoryError):
            return tuple(find_tile_plan(request, limits, 1) for request in requests)
    return ()


def _largest_request(round_: Round, dtype: str) -> TileRequest:
    """Return the request of a round on its largest block, for a complex dtype."""
    real_dtype = np.empty(0, dtype).real.dtype.name
    source_dtype = dtype
    target_dtype = dtype
    if round_.takes_real:
        source_dtype = real_dtype
    if round_.makes_real:
        target_dtype = real_dtype
    shape = round_.source.shape(round_.source.largest_block)
    return request_of(
        round_,
        shape,
        source_dtype,
        target_dtype,
    )


@lru_cache(maxsize=256)
def _factorisations(n: int, digit_count: int, most: int) -> tuple[Shape, ...]:
    """Return the most even factorisations of a length, without factors of 1.

    There are at most `most` of two digits, and four times as many of three. A prime has none.

    >>> _factorisations(12, 2, 3)
    ((3, 4), (4, 3), (2, 6))
    """
    if digit_count == 1:
        return ((n,),) if n > 1 else ()
    factorisations: list[Shape] = []
    for divisor in divisors(n)[1:-1]:
        for other_factors in _factorisations(n // divisor, digit_count - 1, most):
            factorisations.append((divisor, *other_factors))
    factorisations.sort(key=lambda factors: (max(factors), factors))
    return tuple(factorisations[: most if digit_count == 2 else 4 * most])


def _runs_of_tile(shape: Shape, tile: Shape) -> tuple[int, int]:
    """Return C and W of a tile in an array: contiguous runs, and elements in each.

    >>> _runs_of_tile((8, 16, 32), (8, 4, 32)), _runs_of_tile((8, 16), (8, 1))
    ((8, 128), (8, 1))
    """
    width = contiguous(shape, tile)
    return math.prod(tile) // max(1, width), width


def _even(n: int, most: int) -> int:
    """Return the extent of the most even chunks of at most `most`."""
    return max(1, even_width(n, -(-n // max(1, min(n, most)))))


def _tile(
    view: Shape,
    line: Sequence[int],
    priority: Shape,
    units: int,
    share: float,
) -> Shape:
    """Return the shape of a tile of up to `units` lines in a view.

    Parameters
    ----------
    view : tuple of int
        Shape of the block.
    line : sequence of int
        Shape of a line: dimensions that are transformed are whole, the others 1.
    priority : tuple of int
        The other dimensions, in the order in which they get room.
    units : int
        Maximum number of lines.
    share : float
        Fraction of them that the first of these dimensions gets at most.
    """
    tile = list(line)
    for dim in priority:
        most = int(units * share) if dim == priority[0] else units
        tile[dim] = _even(view[dim], most)
        units //= tile[dim]
    return tuple(tile)


@dataclass(frozen=True)
class _PassShapes:
    """The shapes of a block around a pass, in digits, and the GPU buffers of its tiles.

    Parameters
    ----------
    steps : tuple of (int, int)
        Line and digit of each step of the pass.
    view, after : tuple of int
        Shape of the block before and after the pass.
    read, stored : tuple of int
        Shape of the host block that is read and of the one that is written. They differ from `view`
        and `after` in digits of half a spectrum.
    order : tuple of int
        Dimensions in the order in which they are written.
    fixed : frozenset of int
        Dimensions that a tile contains whole, because they are transformed.
    itemsizes : (int, int)
        Bytes of an element before and after the pass.
    buffers : tuple of (int, int)
        Bytes of an element before and after the pass in each GPU buffer; the larger one counts.
    is_first : bool
        Whether this is the first pass of a block.
    mirrored : bool
        Whether the mirror image of half a spectrum is loaded, too.
    """

    steps: tuple[tuple[int, int], ...]
    view: Shape
    after: Shape
    read: Shape
    stored: Shape
    order: Shape
    fixed: frozenset[int]
    itemsizes: tuple[int, int]
    buffers: tuple[tuple[int, int], ...]
    is_first: bool
    mirrored: bool

    def in_tiles(self, tile: Shape) -> TilePass:
        """Return the pass in tiles of a shape."""
        after = list(tile)
        for dim in self.fixed:
            after[dim] = self.after[dim]
        size_before = math.prod(tile)
        size_after = math.prod(after)
        places = []
        for itemsize_before, itemsize_after in self.buffers:
            nbytes = max(size_before * itemsize_before, size_after * itemsize_after)
            places.append(aligned(nbytes))
        stored = tuple(self.stored[dim] for dim in self.order)
        tile_stored = tuple(after[dim] for dim in self.order)
        return TilePass(
            steps=self.steps,
            view=self.view,
            after=self.after,
            tile=tile,
            order=self.order,
            reads=_runs_of_tile(self.read, tile),
            writes=_runs_of_tile(stored, tile_stored),
            places=tuple(places),
            itemsizes=self.itemsizes,
            mirrored=self.mirrored,
        )


@dataclass(frozen=True)
class _PassStep:
    """One step of a pass: a digit of a line, and the dimensions of the line in the block."""

    line: Line
    number: int
    digit: int
    split: Shape
    first_dim: int

    @property
    def dims(self) -> slice:
        """Dimensions of all digits of the line."""
        return slice(self.first_dim, self.first_dim + len(self.split))

    @property
    def fixed_dim(self) -> int:
        """Dimension that is transformed, which a tile contains whole."""
        return self.first_dim + digit_of_step(self.digit, len(self.split))

    @property
    def is_last(self) -> bool:
        """True for the last digit of the line."""
        return self.digit == len(self.split) - 1

    @property
    def reads_real(self) -> bool:
        """True if the step reads real values, and makes half a spectrum."""
        return self.line.kind == "r2c" and self.digit == 0

    @property
    def makes_real(self) -> bool:
        """True if the step makes real values."""
        if self.line.multiplied and self.reads_real:
            return True
        return self.line.kind == "c2r" and self.is_last

    @property
    def loads_mirror(self) -> bool:
        """True if the mirror image of half a spectrum is loaded beside it."""
        return self.line.kind == "c2r" and self.digit == 0 and not self.is_last

    @property
    def stores_mirror(self) -> bool:
        """True if the mirror image of half a spectrum is stored beside it."""
        return self.line.kind == "r2c" and self.digit > 0 and self.is_last

    @property
    def spectrum_buffers(self) -> int:
        """Number of buffers for the spectrum of a filter. In digits, it has to be transposed."""
        if not self.line.filtered or not self.is_last:
            return 0
        return 1 if self.digit == 0 else 2


def _pass_shapes(
    request: TileRequest,
    view: Shape,
    firsts: list[int],
    scheme: Scheme,
    number: int,
) -> _PassShapes:
    """Return the shapes around one pass of a scheme.

    Parameters
    ----------
    request : TileRequest
        The round on the block.
    view : tuple of int
        Shape of the block before the pass, in digits.
    firsts : list of int
        Dimension of the first digit of each dimension of the block, and the number of dimensions.
    scheme : Scheme
        Digits of all lines, and the pass of each step.
    number : int
        Number of the pass.
    """
    digits, passes = scheme
    steps = _steps_of_pass(
        request,
        firsts,
        scheme,
        number,
    )
    is_first = number == 0
    is_last = number == max(itertools.chain(*passes), default=0)
    order = _order_of_pass(
        request,
        firsts,
        digits,
        is_last,
    )
    read, after, stored = _block_shapes(view, steps)
    mirrored = request.mirrored and is_first
    itemsizes = _itemsizes(request.itemsize, steps)
    buffers = _pass_buffers(
        request.itemsize,
        steps,
        transposes=order != tuple(range(len(view))),
    )
    if mirrored:
        buffers.append((request.itemsize, 0))
    return _PassShapes(
        steps=tuple((step.number, step.digit) for step in steps),
        view=view,
        after=after,
        read=read,
        stored=stored,
        order=order,
        fixed=frozenset(step.fixed_dim for step in steps),
        itemsizes=itemsizes,
        buffers=tuple(buffers),
        is_first=is_first,
        mirrored=mirrored,
    )


def _steps_of_pass(
    request: TileRequest,
    firsts: list[int],
    scheme: Scheme,
    number: int,
) -> list[_PassStep]:
    """Return the steps of a pass; parameters are those of `_pass_shapes`."""
    digits, passes = scheme
    steps: list[_PassStep] = []
    for i, line in enumerate(request.lines):
        for digit, own_pass in enumerate(passes[i]):
            if own_pass == number:
                steps.append(
                    _PassStep(
                        line,
                        i,
                        digit,
                        digits[i],
                        firsts[line.dim],
                    )
                )
    return steps


def _block_shapes(view: Shape, steps: list[_PassStep]) -> tuple[Shape, Shape, Shape]:
    """Return the shape of the block as read, after the steps of a pass, and as stored."""
    read = list(view)
    after = list(view)
    for step in steps:
        if step.reads_real:
            after[step.first_dim] = step.split[0] // 2 + 1
        if step.makes_real:
            after[step.first_dim + step.digit] = step.split[-1]
        if step.loads_mirror:
            read[step.dims] = step.split
    stored = list(after)
    for step in steps:
        if step.stores_mirror:
            stored[step.dims] = step.split
    return tuple(read), tuple(after), tuple(stored)


def _itemsizes(itemsize: int, steps: list[_PassStep]) -> tuple[int, int]:
    """Return the bytes of an element before and after a pass, given those of a complex one."""
    before = itemsize // 2 if any(step.reads_real for step in steps) else itemsize
    after = itemsize // 2 if any(step.makes_real for step in steps) else itemsize
    return before, after


def _order_of_pass(
    request: TileRequest,
    firsts: list[int],
    digits: tuple[Shape, ...],
    is_last: bool,
) -> Shape:
    """Return the order in which a pass stores the dimensions of a block in digits.

    It is the requested one, if there is one. Otherwise the last pass puts the digits of each line
    into natural order, which reverses them, unless the round writes where it reads.
    """
    if request.order:
        return request.order
    order = list(range(firsts[-1]))
    if not is_last or request.inside:
        return tuple(order)
    for line, split in zip(request.lines, digits, strict=True):
        if not line.turns_back:  # whose digits are back in place
            line_dims = slice(firsts[line.dim], firsts[line.dim] + len(split))
            order[line_dims] = reversed(order[line_dims])
    return tuple(order)


def _pass_buffers(
    itemsize: int,
    steps: list[_PassStep],
    transposes: bool,
) -> list[tuple[int, int]]:
    """Return the bytes of an element before and after a pass in each of its buffers.

    `itemsize` is that of a complex element.
    """
    itemsizes = _itemsizes(itemsize, steps)
    changes_type = itemsizes != (itemsize, itemsize)
    buffers = _tile_buffers(itemsizes, changes_type, transposes)
    for step in steps:
        if step.reads_real and step.makes_real:  # and has half a spectrum between them
            spectrum = itemsize // 2 + -(-itemsize // step.line.length)
            buffers = [(max(itemsizes), 0), (spectrum, 0)]
    return buffers + _extra_buffers(itemsize, steps)


def _tile_buffers(
    itemsizes: tuple[int, int], changes_type: bool, transposes: bool
) -> list[tuple[int, int]]:
    """Return the bytes of an element before and after a pass in the buffers of a tile.

    Without a change the pass works in one buffer. A change of type or a transposition has a second
    buffer for its result; with both, the first one also holds the result before it is transposed.

    >>> _tile_buffers((16, 16), False, False), _tile_buffers((8, 16), True, True)
    ([(16, 0)], [(8, 16), (0, 16)])
    """
    before, after = itemsizes
    if changes_type and transposes:
        return [(before, after), (0, after)]
    if changes_type or transposes:
        return [(before, 0), (0, after)]
    return [(before, 0)]


def _extra_buffers(itemsize: int, steps: list[_PassStep]) -> list[tuple[int, int]]:
    """Return the buffers for spectra of filters and for mirror images, as `_tile_buffers`."""
    spectra = sum(step.spectrum_buffers for step in steps)
    buffers = [(itemsize, 0)] * spectra
    for step in steps:
        if step.loads_mirror:
            buffers.append((itemsize, 0))
        if step.stores_mirror:
            buffers.append((0, itemsize))
    return buffers


def _sizes_in_digits(request: TileRequest, digits: tuple[Shape, ...]) -> list[Shape]:
    """Return the size of each dimension of a block, in the digits of its line if it has some."""
    sizes: list[Shape] = [(n,) for n in request.shape]
    for line, split in zip(request.lines, digits, strict=True):
        if len(split) > 1:
            # All but the last digit of half a spectrum are whole.
            last = split[-1] // 2 + 1 if line.kind == "c2r" else split[-1]
            sizes[line.dim] = (*split[:-1], last)
    return sizes


@dataclass(frozen=True)
class _Search:
    """Search for the passes of a round on a block, with `room` bytes of the GPU for each tile."""

    request: TileRequest
    limits: TileLimits
    room: int

    def cheapest(self, counts: Iterable[int], buffers: int) -> TilePlan | None:
        """Return the cheapest plan of some numbers of passes, with some buffers."""
        best: TilePlan | None = None
        best_cost = math.inf
        for count in counts:
            if best_cost <= count:  # a pass costs at least 1
                break
            for scheme in self._schemes(count):
                passes, cost = self._cheaper_passes(scheme, count, best_cost)
                if passes:
                    most_tiles = max(tile_pass.tiles for tile_pass in passes)
                    digits, _ = scheme
                    # As many buffers as tiles can fill, and two for those of other blocks.
                    best = TilePlan(digits, passes, buffers=min(buffers, most_tiles + 2))
                    best_cost = cost
        return best

    def _cheaper_passes(
        self, scheme: Scheme, count: int, bound: float
    ) -> tuple[tuple[TilePass, ...], float]:
        """Return the passes of a scheme and their cost; no passes if they cost `bound` or more.

        Every digit costs a little, so that of equal schemes the one with fewer digits is taken.
        """
        digits, _ = scheme
        cost = 0.02 * sum(map(len, digits))
        passes: list[TilePass] = []
        for tile_pass in self._passes(scheme, count):
            if tile_pass is None:
                return (), math.inf
            cost += self._cost(tile_pass, is_first=not passes)
            passes.append(tile_pass)
            remaining_cost = max(0, count - len(passes))
            if cost + remaining_cost >= bound:
                return (), math.inf
        return tuple(passes), cost

    # --- schemes: digits of all lines, and the pass of each ---------------------------------------

    def _schemes(self, count: int) -> Iterator[Scheme]:
        """Yield each way to split lines into digits, and to spread their FFTs over `count` passes.

        Lines are the transformed dimensions. Each pass has FFTs. Without lines there is one pass,
        which only reorders.
        """
        request = self.request
        if request.order and count > 1:
            return
        if request.scheme is not None:
            if count == 1 + max(itertools.chain(*request.scheme[1])):
                yield request.scheme
        elif request.lines:
            yield from self._schemes_of_lines(count)
        elif count == 1:
            yield (), ()

    def _schemes_of_lines(self, count: int) -> Iterator[Scheme]:
        """Yield the schemes of `_schemes` if there are lines."""
        lines = self.request.lines
        most = int(MAX_PARTITIONS ** (1 / len(lines)))
        choices = []
        for line in lines:
            line_schemes = self._line_schemes(line, count)
            choices.append(list(itertools.islice(line_schemes, most)))
        for chosen in itertools.product(*choices):
            digits = tuple(line_digits for line_digits, _ in chosen)
            passes = tuple(line_passes for _, line_passes in chosen)
            is_full = len(set(itertools.chain(*passes))) == count
            if is_full and self._has_one_product(digits, passes):
                yield digits, passes

    def _has_one_product(self, digits: tuple[Shape, ...], passes: tuple[Shape, ...]) -> bool:
        """Return whether lines around a transfer function are in one pass where it multiplies."""
        middles = set()
        for line, own_digits, own_passes in zip(self.request.lines, digits, passes, strict=True):
            if line.multiplied:
                middles.add(own_passes[len(own_digits) - 1])
        return len(middles) < 2

    def _line_schemes(self, line: Line, count: int) -> Iterator[tuple[Shape, Shape]]:
        """Yield each way to split a line into digits, and to spread its FFTs over passes."""
        yield from self._whole_line_schemes(line, count)
        is_alone = len(self.request.lines) == 1
        has_real_side = line.kind != "c2c"
        if has_real_side and (not is_alone or self.request.inside or line.multiplied):
            return  # only one dimension can be mirrored, and not in two directions
        most = MAX_SPLITS if is_alone else MAX_SPLITS // 2
        for digit_count in range(2, 4):
            steps = line.steps(digit_count)
            if steps > count:
                return
            for factors in self._factors(line, digit_count, most):
                for passes in itertools.combinations(range(count), steps):
                    yield factors, passes

    def _whole_line_schemes(self, line: Line, count: int) -> Iterator[tuple[Shape, Shape]]:
        """Yield the passes in which a line can be transformed at once."""
        if line.kind == "r2c":  # real values come first, and may come last, too
            if count == 1 or not line.multiplied:
                yield (line.length,), (0,)
        elif line.kind == "c2r":
            yield (line.length,), (count - 1,)
        elif line.whole:
            for number in range(count):
                yield (line.length,), (number,)

    def _factors(self, line: Line, digit_count: int, most: int) -> list[Shape]:
        """Return up to `most` splits of a line into a number of digits."""
        factors = list(_factorisations(line.length, digit_count, most))
        if self.request.inside and not line.turns_back:
            # Tiles swap in place only between digits of equal lengths.
            return [lengths for lengths in factors if lengths == lengths[::-1]]
        return factors

    # --- one pass --------------------------------------------------------------------------------

    def _cost(self, tile_pass: TilePass, is_first: bool) -> float:
        """Return the time of a pass, maybe a block's first, in units of its bytes one way.

        Loading the first tile and storing the last one overlap only with neighbouring blocks.
        """
        request = self.request
        limits = self.limits
        nbytes = request.itemsize * max(1, math.prod(tile_pass.view))
        load = self._run_cost(tile_pass.reads)
        store = self._run_cost(tile_pass.writes)
        calls = CALLS + 1 + (request.shards if is_first else 1)
        if any(request.lines[line].multiplied for line, _ in tile_pass.steps):
            calls += PRODUCT_CALLS
        call_cost = tile_pass.tiles * calls * limits.call_nbytes / nbytes
        no_overlap = limits.ends / (tile_pass.tiles * min(request.blocks, limits.following))
        return max(load, store) * (1 + no_overlap) + 0.01 * (load + store) + call_cost

    def _run_cost(self, runs: tuple[int, int]) -> float:
        """Return the time of one direction of a pass, given C and W, in units of its bytes."""
        _, width = runs
        return 1 + self.limits.run_nbytes / (width * self.request.itemsize)

    def _passes(self, scheme: Scheme, count: int) -> Iterator[TilePass | None]:
        """Yield the passes of a scheme, then those that swap digits inside a block's own memory.

        The last item is None if a tile does not fit.
        """
        request = self.request
        digits, _ = scheme
        sizes = _sizes_in_digits(request, digits)
        view = tuple(itertools.chain(*sizes))
        firsts = list(itertools.accumulate(map(len, sizes), initial=0))
        for number in range(count):
            shapes = _pass_shapes(
                request,
                view,
                firsts,
                scheme,
                number,
            )
            tile_pass = self._pass(shapes)
            yield tile_pass
            if tile_pass is None:
                return
            view = tile_pass.after
        for line, split in zip(request.lines, digits, strict=True):
            if request.inside and len(split) > 1 and not line.turns_back:
                first = firsts[line.dim]
                yield self._swap(view, first, first + len(split) - 1)

    def _pass(self, shapes: _PassShapes) -> TilePass | None:
        """Return one pass in its cheapest tiles; None if no tile fits."""
        free = [dim for dim in reversed(range(len(shapes.view))) if dim not in shapes.fixed]
        written = [dim for dim in reversed(shapes.order) if dim not in shapes.fixed]
        line = [n if dim in shapes.fixed else 1 for dim, n in enumerate(shapes.view)]
        size_before = math.prod(line)
        size_after = math.prod(shapes.after[dim] for dim in shapes.fixed)
        buffer_nbytes = [
            max(size_before * before, size_after * after) for before, after in shapes.buffers
        ]
        lines = math.prod(shapes.view[dim] for dim in free)
        lines_of_tiles = [
            self._lines_of_tile(buffer_nbytes, lines, finer) for finer in self.limits.finer
        ]
        # Dimensions get room innermost first, as read and as written.
        priorities = dict.fromkeys((tuple(free), tuple(written)))
        shares = SQUARER if self.request.order else (1,)
        tiles: dict[Shape, None] = {}
        for priority, units, share in itertools.product(priorities, lines_of_tiles, shares):
            if units:
                tiles[_tile(shapes.view, line, priority, units, share)] = None
        passes = [shapes.in_tiles(tile) for tile in tiles]
        return min(passes, key=lambda way: self._cost(way, shapes.is_first), default=None)

    def _lines_of_tile(self, buffer_nbytes: list[int], size: int, finer: float) -> int:
        """Return the largest number of lines in a tile, 0 if not even one fits.

        Parameters
        ----------
        buffer_nbytes : list of int
            Bytes of each buffer for one line.
        size : int
            Number of lines of the block.
        finer : float
            Factor of the number of tiles.
        """
        limits = self.limits
        unit = sum(buffer_nbytes)
        if unit > self.room:
            return 0
        count = max(1, int(finer * limits.pieces))
        tile_nbytes = min(limits.most, max(limits.least, unit * size // count))
        units = min(self.room, max(unit, tile_nbytes)) // max(1, unit)
        while units and sum(aligned(units * nbytes) for nbytes in buffer_nbytes) > self.room:
            units -= 1  # for the alignment of every buffer
        return units

    def _swap(self, view: Shape, first: int, last: int) -> TilePass | None:
        """Return the pass that swaps two dimensions of a view, of equal length.

        None if not even the smallest tiles fit.
        """
        itemsize = self.request.itemsize
        limits = self.limits
        unit = SWAP_PLACES * itemsize
        tile_nbytes = unit * math.prod(view) // limits.pieces
        tile_nbytes = min(limits.most, max(limits.least, tile_nbytes))
        units = min(self.room, tile_nbytes) // unit
        if units == 0:
            return None
        tile = [1] * len(view)
        for dim in reversed(range(last + 1, len(view))):  # rows first, as wide as possible
            tile[dim] = _even(view[dim], units)
            units //= tile[dim]
        side = _even(view[last], math.isqrt(units))
        tile[first] = side
        tile[last] = side
        units //= side**2
        for dim in reversed(range(last)):
            if dim != first:
                tile[dim] = _even(view[dim], units)
                units //= tile[dim]
        buffer_nbytes = aligned(itemsize * math.prod(tile))
        if SWAP_PLACES * buffer_nbytes > self.room:
            return None
        runs = _runs_of_tile(view, tuple(tile))
        return TilePass(
            steps=(),
            view=view,
            after=view,
            tile=tuple(tile),
            order=tuple(range(len(view))),
            reads=runs,
            writes=runs,
            places=(buffer_nbytes,) * SWAP_PLACES,
            itemsizes=(itemsize, itemsize),
            swap=(first, last),
        )
