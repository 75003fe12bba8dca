"""`BlockTiles`: what is copied and computed for each tile of a block, by its tile plan.

The steps of `kernels.loop`, as descriptions for a GPU without arrays or addresses::

    r2c -> chirp -> c2c -> filter, c2c back -> twiddle, chirp, divisor -> c2r -> transpose

Everything that follows an FFT is one `Multiply`; a transpose right behind it does that on its way,
in one pass over the GPU's memory. A pass is a round with the block's dimensions as axes and its
tiles as blocks: the steps of a dimension that was split are those of `decomposition.steps`.
Twiddles and chirps are of the index that an element has in its axis, made of the digits that the
tile has of it, along one dimension or several, and of those that its block has.

Imports `decomposition`, `planner` and this room.
"""

import contextlib
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.layout import AxisLayout, Digit, Group, Layout, interval_boxes
from dask_bigfft.decomposition.rounds import Round, transformed
from dask_bigfft.decomposition.steps import AxisProgram, Divisor, Kind, Step, axis_program
from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.planner.passes import find_tile_plan
from dask_bigfft.planner.plan_data import axis_letter
from dask_bigfft.planner.tile_plan import ALIGNMENT as ALIGNMENT
from dask_bigfft.planner.tile_plan import (
    AS_IS,
    DeviceSettings,
    Scheme,
    TileLimits,
    TilePass,
    TilePlan,
    request_of,
)

Array = npt.NDArray[Any]
Block = tuple[int, ...]

# --- operations ---------------------------------------------------------------------------------
#
# They are described without arrays or addresses, so that what is made for one (an FFT plan, a
# compiled kernel) can be cached under its description.


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """A C-ordered array in the device's arena, dense unless it says otherwise.

    Parameters
    ----------
    offset : int
        Bytes from the beginning of the arena, a multiple of `ALIGNMENT`.
    shape : tuple of int
        Lengths of the dimensions.
    dtype : str
        As ``numpy.dtype.str`` has it, such as ``"<c16"``.
    strides : tuple of int, optional
        Of a part of a larger array, in bytes; only copies to and from the host take such.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.size * np.dtype(self.dtype).itemsize

    @property
    def span(self) -> int:
        """Bytes from its first element to behind its last one."""
        if self.strides is None or not self.size:
            return self.nbytes
        last = sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))
        return last + np.dtype(self.dtype).itemsize


def dense(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    """Strides of a dense C-ordered array in bytes.

    >>> dense((8, 6, 4), 8)
    (192, 32, 8)
    """
    return tuple(itemsize * math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


def runs(shape: Block, strides: Block, itemsize: int, places: Block) -> tuple[int, list[Block]]:
    """Width in bytes of the rows that are contiguous on both sides, and how rows repeat.

    Rows repeat as (count, stride, stride on the other side), outermost first, in as few dimensions
    as can be. A view whose last dimension is not contiguous has rows of one element.

    >>> runs((8, 2, 4), (192, 32, 8), 8, (64, 32, 8))
    (64, [(8, 192, 64)])
    >>> runs((8, 6, 1), (192, 32, 8), 8, (48, 8, 8))
    (8, [(48, 32, 8)])
    """
    merged: list[Block] = []
    for count, stride, place in zip(shape, strides, places, strict=True):
        if count == 1:
            continue
        if merged and merged[-1][1:] == (count * stride, count * place):
            merged[-1] = (merged[-1][0] * count, stride, place)
        else:
            merged.append((count, stride, place))
    if merged and merged[-1][1:] == (itemsize, itemsize):
        return merged[-1][0] * itemsize, merged[:-1]
    return itemsize, merged


@dataclass(frozen=True, slots=True)
class Term:
    """What one dimension of an array adds to an index.

    The place ``i`` along dimension ``dim`` adds
    ``((start + i) // divisor % modulus) * stride``, all in exact integers.

    Parameters
    ----------
    dim : int
        Dimension of the array.
    start : int
        Place of the array's first element in what it was cut from.
    divisor, modulus : int
        Which digit of the place is meant; ``divisor`` 1 and a ``modulus`` beyond every place mean
        the place itself.
    stride : int
        What one step of the digit adds.
    """

    dim: int
    start: int
    divisor: int
    modulus: int
    stride: int


@dataclass(frozen=True, slots=True)
class Twiddle:
    """The factor exp(sign * 2j*pi * left * right / modulus).

    ``left`` and ``right`` are sums of terms; their product stays below ``modulus`` <= 2**53, and
    below four times that where a chirp makes zeros of what lies behind its end.
    """

    modulus: int
    sign: int
    left: tuple[Term, ...]
    right: tuple[Term, ...]


@dataclass(frozen=True, slots=True)
class ChirpFactor:
    """The factor exp(sign * 1j*pi * n**2 / length); where n >= `end`, 0 whatever is there.

    ``n`` is the sum of terms; ``n**2`` needs reducing mod 2*length in more than 64 bits.
    ``half`` is for half a spectrum: twice as much, but where n is 0 or half the length.
    """

    length: int
    sign: int
    place: tuple[Term, ...]
    half: bool = False

    @property
    def end(self) -> int:
        """How many values there are."""
        return self.length // 2 + 1 if self.half else self.length


@dataclass(frozen=True, slots=True)
class FFT:
    """FFTs along some dimensions of a dense array, not normalised.

    Parameters
    ----------
    kind : {"c2c", "r2c", "c2r"}
        ``c2c`` works in place or from one array to another; ``r2c`` and ``c2r`` from one array
        to another along a single dimension, and ``c2r`` may overwrite its source.
    source, target : tuple of int
        Shapes before and after.
    dims : tuple of int
        The dimensions, rising.
    sign : {-1, 1}
        Sign in the exponent: always -1 for ``r2c`` and +1 for ``c2r``.
    dtype : str
        Of the complex side.
    """

    kind: Kind
    source: tuple[int, ...]
    target: tuple[int, ...]
    dims: tuple[int, ...]
    sign: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Multiply:
    """Factors that a complex array is multiplied with in place, in one pass.

    Each element becomes ``(its conjugate, if conjugate) * scale * every twiddle * every chirp``.
    The factors are computed in double precision whatever the array's.
    """

    shape: tuple[int, ...]
    dtype: str
    scale: float = 1.0
    conjugate: bool = False
    twiddles: tuple[Twiddle, ...] = ()
    chirps: tuple[ChirpFactor, ...] = ()


@dataclass(frozen=True, slots=True)
class Product:
    """Multiply an array in place by another one, whose dimensions of length 1 are repeated."""

    shape: tuple[int, ...]
    other: tuple[int, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class Strided:
    """Copy elements of one array to places of another one, at any distances on both sides.

    Element (i, j, ...) of a box comes from ``start + i*strides[0] + j*strides[1] + ...`` of the one
    array and goes to the like place of the other, both counted in elements. No two go to one place.

    Parameters
    ----------
    counts : tuple of int
        Lengths of the box.
    source, target : tuple of int
        Strides in either array; below 0 a dimension is reversed.
    source_start, target_start : int
        Place of the first element.
    dtype : str
        Of both arrays.
    by : Multiply, optional
        Factors, of an array of shape `counts`, that elements are multiplied by on the way.
    """

    counts: tuple[int, ...]
    source: tuple[int, ...]
    source_start: int
    target: tuple[int, ...]
    target_start: int
    dtype: str
    by: Multiply | None = None


Compute = FFT | Multiply | Product | Strided


def transposed(
    shape: tuple[int, ...], axes: tuple[int, ...], dtype: str, by: Multiply | None = None
) -> Strided:
    """Return a copy with the dimensions in another order: ``target = source.transpose(axes)``.

    >>> transposed((2, 3), (1, 0), "<c16").target
    (1, 2)
    """
    target, steps = [0] * len(shape), dense(tuple(shape[axis] for axis in axes), 1)
    for axis, step in zip(axes, steps, strict=True):
        target[axis] = step
    return Strided(shape, dense(shape, 1), 0, tuple(target), 0, dtype, by)


# --- host blocks in digits: blocks that end within digits, and half spectra ----------------------
#
# Digits d1, d2, ... of a dimension, outermost first, make the index d1*s1 + d2*s2 + ...; a block in
# host memory holds the indices between two bounds. A tile is a box of digits, so it is read from,
# or written to, a few boxes of the block (`Window`). Of half a spectrum of real values, the other
# half follows from X[N - n] = conj X[n], and that is a few boxes, too, each reversed::
#
#     N = 3*4, 7 values are there      n2: 0 1 2 3      0 1 2 3
#                                n1 = 0    0 1 2 3      . . . .
#                                n1 = 1    4 5 6 .      . . . 5*
#                                n1 = 2    . . . .      4*3*2*1*

Slices = tuple[slice, ...]

#: First value and the one behind the last, of each digit.
Box = tuple[tuple[int, int], ...]

#: A part of a box, the part that it is the mirror image of, and the last digit that is reversed.
Image = tuple[Box, Box, int]


@dataclass(frozen=True)
class HostView:
    """A contiguous block in host memory, seen in digits.

    Parameters
    ----------
    shape : tuple of int
        Of the view.
    strides : tuple of int, optional
        In elements, where the block has not got all places of the view.
    first : int
        Place of the view's first element in the block: below 0 where the block has not got it.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    first: int = 0

    def part(self, block: Array, part: Slices) -> Array:
        """Return a part of the view, which the block has got; a view of the block."""
        if self.strides is None:
            return block.reshape(self.shape)[part]
        # Not by `as_strided`: this looks at the bounds, and knows whose memory it is.
        strides = [s * block.itemsize for s in self.strides]
        first = self.first * block.itemsize
        first += sum(cut.start * s for cut, s in zip(part, strides, strict=True))
        shape = tuple(cut.stop - cut.start for cut in part)
        return np.ndarray(shape, block.dtype, block, first, strides)


@dataclass(frozen=True)
class Window:
    """The part that a block has of one around it, whose dimensions are seen in digits.

    Parameters
    ----------
    digits : tuple of tuple of int
        Radices of the digits of each dimension, outermost first.
    bounds : tuple of (int, int)
        First value of the block along each dimension, and the one behind the last.
    """

    digits: tuple[tuple[int, ...], ...]
    bounds: tuple[tuple[int, int], ...]

    @classmethod
    def of_dimension(
        cls, shape: tuple[int, ...], first: int, radices: tuple[int, ...], length: int
    ) -> "Window":
        """Return the window of a block that has the first values of one dimension.

        Parameters
        ----------
        shape : tuple of int
            Of the block in digits.
        first : int
            Dimension of it in which the first digit is.
        radices : tuple of int
            Of the digits, outermost first; all of the spectrum, or of a padded axis.
        length : int
            Values that the block has.
        """
        before, behind = shape[:first], shape[first + len(radices) :]
        digits = (*((n,) for n in before), radices, *((n,) for n in behind))
        return cls(digits, tuple((0, n) for n in (*before, length, *behind)))

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the block."""
        return tuple(high - low for low, high in self.bounds)

    @cached_property
    def view(self) -> HostView:
        """The block in digits."""
        steps, first, strides = dense(self.shape, 1), 0, list[int]()
        for radices, (low, _), step in zip(self.digits, self.bounds, steps, strict=True):
            strides += [n * step for n in dense(radices, 1)]
            first -= low * step
        sizes = itertools.chain.from_iterable(self.digits)
        return HostView(tuple(sizes), tuple(strides), first)

    def parts(self, part: Slices) -> Iterator[Slices]:
        """Yield what the block has of a part of the view."""
        cuts, choices = iter(part), []
        for radices, bounds in zip(self.digits, self.bounds, strict=True):
            box = tuple((cut.start, cut.stop) for cut in itertools.islice(cuts, len(radices)))
            choices.append(list(within_bounds(box, radices, *bounds)))
        for chosen in itertools.product(*choices):
            yield tuple(slice(*pair) for pair in itertools.chain.from_iterable(chosen))


def within_bounds(box: Box, radices: tuple[int, ...], low: int, high: int) -> Iterator[Box]:
    """Yield the boxes that make up what of a box has an index from `low` to below `high`.

    >>> list(within_bounds(((0, 3), (1, 4)), (3, 4), 0, 7))
    [((0, 1), (1, 4)), ((1, 2), (1, 3))]
    """
    for other in interval_boxes(low, high, radices):
        pairs = zip(box, other, strict=True)
        found = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in pairs)
        if all(begin < end for begin, end in found):
            yield found


def _images(box: Box, radices: tuple[int, ...], length: int, last: int) -> Iterator[Image]:
    """Yield what of a box, whose last digit that is not 0 is known, has N - n below a length."""

    def negated(box: Box) -> Box:
        found = [(n - high, n - low) for (low, high), n in zip(box, radices, strict=True)]
        found[last] = found[last][0] + 1, found[last][1] + 1
        return (*found[: last + 1], *box[last + 1 :])

    for image in within_bounds(negated(box), radices, 0, length):
        yield negated(image), image, last


def missing(box: Box, radices: tuple[int, ...], length: int) -> Iterator[Image]:
    """Yield what of a box has an index of at least `length`, more than half of all.

    Examples
    --------
    >>> list(missing(((0, 3), (0, 4)), (3, 4), 7))
    [(((2, 3), (1, 4)), ((0, 1), (1, 4)), 1), (((1, 2), (3, 4)), ((1, 2), (1, 2)), 1), \
(((2, 3), (0, 1)), ((1, 2), (0, 1)), 0)]
    """
    for last in reversed(range(len(box))):
        low, high = max(box[last][0], 1), box[last][1]
        if low < high and all(first == 0 for first, _ in box[last + 1 :]):
            part = (*box[:last], (low, high), *((0, 1) for _ in box[last + 1 :]))
            yield from _images(part, radices, math.prod(radices) - length + 1, last)


def completing(box: Box, radices: tuple[int, ...], length: int) -> Iterator[Image]:
    """Yield what a box of half a spectrum gives by its mirror image to the indices below `length`.

    The last digit is there up to half of its radix. What has an index of its own below `length`,
    and so is written there, is left out.

    Examples
    --------
    >>> list(completing(((0, 4), (0, 2)), (4, 3), 7))
    [(((2, 4), (1, 2)), ((0, 2), (2, 3)), 1)]
    """
    last = len(box) - 1
    low, high = max(box[last][0], 1), min(box[last][1], (radices[last] + 1) // 2)
    if low < high:
        yield from _images((*box[:last], (low, high)), radices, length, last)


#: As the modulus of a term: the place is used as it is.
NO_MODULUS = 1 << 62


@dataclass(frozen=True)
class Computation:
    """One operation on a tile: from where to where, and for a product by what."""

    op: Compute
    source: DeviceArray
    target: DeviceArray


@dataclass(frozen=True)
class Filter:
    """The part of an axis' spectrum that a tile is multiplied with."""

    axis: int
    shape: tuple[int, ...]
    part: Slices
    array: DeviceArray


@dataclass(frozen=True)
class Move:
    """A part of a host view, and the array on the GPU that it is copied to or from."""

    part: Slices
    array: DeviceArray


@dataclass(frozen=True)
class TileWork:
    """All that is done with one tile, in a buffer that begins at offset 0.

    Parameters
    ----------
    view : HostView
        How the host block is seen before.
    comes : tuple of Move
        What of it is copied to the GPU.
    source : DeviceArray
        The tile then.
    filters : tuple of Filter
        What is copied with it.
    computations : tuple of Computation
        In order.
    result : DeviceArray
        The tile at the end.
    stored_view : HostView
        How the host block is seen afterwards, dimensions in the order in which they are stored.
    goes : tuple of Move
        What of it is copied back.
    scratch : DeviceArray, optional
        Where what lies backwards is copied to, before it is turned.
    """

    view: HostView
    comes: tuple[Move, ...]
    source: DeviceArray
    filters: tuple[Filter, ...]
    computations: tuple[Computation, ...]
    result: DeviceArray
    stored_view: HostView
    goes: tuple[Move, ...]
    scratch: DeviceArray | None = None


@dataclass(frozen=True)
class Job:
    """A round on a block.

    Parameters
    ----------
    round : Round
        What to do.
    block : tuple of int
        Which block.
    source, target : str
        Dtype of the block before and after.
    inside : bool
        Whether to do without host memory apart from the block, where that is possible.
    order : tuple of int
        Of a round without steps: dimensions of the block in the order in which they are written.
    shards : int
        Source blocks that the block is read from.
    mirrored : bool
        Whether some of these lie backwards: the mirror image of half a spectrum.
    stores : int
        Shards in which the block is written.
    settings : DeviceSettings
        What is set of the pipeline.
    convolves : bool
        Whether values are multiplied by the spectrum of a filter that the engine makes.
    window : Window, optional
        Of a round without steps: what the block has of the one around it that is read.
    scheme : Scheme, optional
        The decomposition, if it is set by hand.
    """

    round: Round
    block: Block
    source: str
    target: str
    inside: bool = False
    order: tuple[int, ...] = ()
    shards: int = 1
    mirrored: bool = False
    stores: int = 1
    settings: DeviceSettings = AS_IS
    convolves: bool = False
    window: Window | None = None
    scheme: Scheme | None = None

    def tiles(self, limits: TileLimits, work: int = 0) -> "BlockTiles":
        """Return the block in tiles within some limits, beside some work areas.

        Raises
        ------
        DeviceMemoryError
            If tiles cannot be made small enough.
        DeviceError
            If the values are not of single or double precision.
        """
        shape, limits = self.round.source.shape(self.block), limits.tuned(self.settings)
        request = request_of(self.round, shape, self.source, self.target, scheme=self.scheme)
        other = replace(request, order=self.order, shards=self.shards, stores=self.stores)
        wishes = [replace(request, inside=True)] * self.inside
        wishes += [replace(other, mirrored=True)] * self.mirrored
        for wish in wishes:
            with contextlib.suppress(DeviceMemoryError):
                return BlockTiles(self, find_tile_plan(wish, limits, work))
        return BlockTiles(self, find_tile_plan(other, limits, work))

    def links(self, rounds: tuple[Round, ...]) -> tuple["Job", ...]:
        """Return the jobs of rounds that follow one another and do the same together."""
        if len(rounds) < 2:
            return (self,)
        whole = max(self.source, self.target, key=lambda name: np.dtype(name).kind == "c")
        dtypes = [self.source, *[whole] * (len(rounds) - 1), self.target]
        found = [
            Job(round_, self.block, *ends, settings=self.settings)
            for round_, ends in zip(rounds, itertools.pairwise(dtypes), strict=True)
        ]
        return (replace(found[0], shards=self.shards, mirrored=self.mirrored), *found[1:])


@dataclass(frozen=True)
class BlockTiles:
    """A round on a block, in the tiles of a plan."""

    job: Job
    plan: TilePlan

    @cached_property
    def dtype(self) -> str:
        """Dtype of complex values."""
        return max(self.job.source, self.job.target, key=lambda name: np.dtype(name).kind == "c")

    @cached_property
    def dims(self) -> tuple[int, ...]:
        """Dimension of the block that each step transforms."""
        return tuple(self.job.round.dim(step) for step in self.job.round.steps)

    @cached_property
    def rounds(self) -> tuple[Round, ...]:
        """The passes as rounds: a block's dimensions as axes, its tiles as blocks."""
        lines = zip(self.dims, self.job.round.steps, self.plan.digits, strict=True)
        programs = [_program(*line) for line in lines]
        by_dim = dict(zip(self.dims, programs, strict=True))
        axes = []
        for dim, n in enumerate(self.job.round.source.shape(self.job.block)):
            digits: tuple[Digit, ...] = (Digit(0, 1, n, n),)
            if (program := by_dim.get(dim)) is not None:
                digits = tuple(step.source for step in program.steps[: len(program.factors)])
            axes.append(AxisLayout(tuple(Group((digit,), (digit.size,)) for digit in digits)))
        layout, found = Layout(tuple(axes)), []
        for one in self.plan.passes:
            steps = tuple(programs[i].steps[j] for i, j in one.steps)
            cut = _cut(layout, one.chunks)
            found.append(Round(steps, cut, transformed(cut, steps)))
            layout = transformed(layout, steps)
        return tuple(found)

    def written(self, number: int) -> str:
        """Return the dtype of what a pass writes."""
        return self.job.target if number == len(self.plan.passes) - 1 else self.dtype

    def shape(self, number: int) -> tuple[int, ...]:
        """Return the shape of what a pass writes."""
        if number == len(self.plan.passes) - 1:
            found = self.job.round.target.shape(self.job.block)
            return found if self.job.window is None else self.job.window.shape
        one = self.plan.passes[number]
        return tuple(one.after[dim] for dim in one.order)

    def moves(self, number: int) -> bool:
        """Return whether a pass writes tiles to other places than it read them from.

        In another order; or of a spectrum of which half comes, or goes, and the digits have the
        other half as well: that lies elsewhere, also where both are as many values.
        """
        one, digits = self.plan.passes[number], self.plan.digits
        halves = ((self.job.round.steps[i].kind, j, len(digits[i]) - 1) for i, j in one.steps)
        return one.reorders or any(
            last > 0 and (kind, j) in (("c2r", 0), ("r2c", last)) for kind, j, last in halves
        )

    def works(self, number: int) -> Iterator[TileWork]:
        """Yield what is done with each tile in a pass."""
        if self.plan.passes[number].swap is not None:
            yield from swaps(self.plan.passes[number], self.dtype)
            return
        for tile in self.rounds[number].source.indices():
            yield _Tile(self, number, self.rounds[number], tile).work()

    def within(self, dim: int, low: int, high: int, width: int) -> Iterator[TileWork]:
        """Yield what is done with a part of a block whose plan `divides`, in tiles of some width.

        Parameters
        ----------
        dim : int
            Dimension of the block that is not transformed.
        low, high : int
            Where the part begins along it, and where it ends.
        width : int
            Of a tile at most; no wider than those of the plan.
        """
        one = self.plan.passes[0]
        widths = [min(width, high - at) for at in range(low, high, width)]
        ends = [n for n in (low, one.view[dim] - high) if n]
        first = int(low > 0)
        cuts = (*ends[:first], *widths, *ends[first:])
        chunks = (*one.chunks[:dim], cuts, *one.chunks[dim + 1 :])
        steps, layout = self.rounds[0].steps, _cut(self.rounds[0].source, chunks)
        inner = Round(steps, layout, transformed(layout, steps))
        for tile in layout.indices():
            if first <= tile[dim] < first + len(widths):
                yield _Tile(self, 0, inner, tile).work()

    @cached_property
    def ffts(self) -> frozenset[FFT]:
        """All different FFTs, whose plans have to exist before the first tile comes."""
        found: set[FFT] = set()
        for number, inner in enumerate(self.rounds):
            if self.plan.passes[number].swap is None:
                # one tile of each shape
                shapes = (
                    {axis.shape(i): i for i in range(axis.blocks)} for axis in inner.source.axes
                )
                for tile in itertools.product(*(shape.values() for shape in shapes)):
                    work = _Tile(self, number, inner, tile).work()
                    found.update(c.op for c in work.computations if isinstance(c.op, FFT))
        return frozenset(found)

    @property
    def notation(self) -> str:
        """Passes in short, such as ``{Y1} {Y2, X}``; ``swap`` is one that only reorders."""
        axes = len(self.job.round.source.axes)
        letters = [axis_letter(step.axis, axes) for step in self.job.round.steps]
        return " ".join(self.plan.names(letters))


def _program(dim: int, step: Step, digits: tuple[int, ...]) -> AxisProgram:
    """The steps of a dimension in digits; of a convolution: there, filtered, and back."""
    filtered = step.convolve is not None
    program = axis_program(
        dim, step.length, digits, kind=step.kind, sign=step.sign, bluestein=filtered
    )
    if not filtered or step.sign == program.steps[0].sign:
        return program
    turned = tuple(replace(found, sign=-found.sign) for found in program.steps)
    return replace(program, steps=turned)


def _cut(layout: Layout, chunks: tuple[tuple[int, ...], ...]) -> Layout:
    cuts = iter(chunks)
    return Layout(
        tuple(
            AxisLayout(tuple(Group(group.digits, next(cuts)) for group in axis.groups))
            for axis in layout.axes
        )
    )


# --- the pass that swaps tiles -------------------------------------------------------------------


def swaps(one: TilePass, dtype: str) -> Iterator[TileWork]:
    """Yield what is done with each pair of tiles, or one that is its own partner.

    ::

        tile (A, k2, B) --turned--> (B, k2, A)        tile (B, k2, A) --turned--> (A, k2, B)
    """
    assert one.swap is not None
    first, last = one.swap
    ends = [list(itertools.accumulate(cut)) for cut in one.chunks]
    order, view = list(one.order), HostView(one.view)
    order[first], order[last] = order[last], order[first]

    def part(place: Sequence[int]) -> Slices:
        chosen = zip(one.chunks, ends, place, strict=True)
        return tuple(slice(end[i] - cut[i], end[i]) for cut, end, i in chosen)

    for place in itertools.product(*(range(len(cut)) for cut in one.chunks)):
        if place[first] > place[last]:
            continue
        other = list(place)
        other[first], other[last] = other[last], other[first]
        there, back = part(place), part(other)
        here, partner = _shape_of(there), _shape_of(back)
        source, turned = DeviceArray(0, here, dtype), DeviceArray(2 * one.places[0], partner, dtype)
        done = [Computation(transposed(here, tuple(order), dtype), source, turned)]
        comes, goes = [Move(there, source)], [Move(back, turned)]
        if place[first] != place[last]:
            second = DeviceArray(one.places[0], partner, dtype)
            target = DeviceArray(0, here, dtype)
            done.append(Computation(transposed(partner, tuple(order), dtype), second, target))
            comes.append(Move(back, second))
            goes.append(Move(there, target))
        yield TileWork(view, tuple(comes), source, (), tuple(done), turned, view, tuple(goes))


def _shape_of(part: Slices) -> tuple[int, ...]:
    return tuple(cut.stop - cut.start for cut in part)


# --- one tile -------------------------------------------------------------------------------------


def _part_of(array: DeviceArray, part: Slices, around: Slices) -> DeviceArray:
    """Return a part of a dense array that holds the part around it."""
    strides = dense(array.shape, np.dtype(array.dtype).itemsize)
    cuts = zip(part, around, strides, strict=True)
    offset = sum((cut.start - whole.start) * step for cut, whole, step in cuts)
    return DeviceArray(array.offset + offset, _shape_of(part), array.dtype, strides)


def _digit_terms(group: Group, start: int, stage: int, dim: int, stride: int = 1) -> Iterator[Term]:
    """Yield what one dimension, that holds a group of digits, adds to the index of a stage."""
    divisor = 1
    for place, digit in reversed(list(enumerate(group.digits))):
        if digit.stage == stage and digit.size > 1:
            modulus = digit.size if place else NO_MODULUS
            yield Term(dim, start, divisor, modulus, digit.stride * stride)
        divisor *= max(digit.size, 1)


class _Tile:
    """One tile in one pass, while what is done with it is written down.

    Parameters
    ----------
    tiles : BlockTiles
        The block.
    number : int
        Of the pass.
    inner : Round
        The pass, as a round on tiles.
    tile : tuple of int
        Which tile.
    """

    def __init__(self, tiles: BlockTiles, number: int, inner: Round, tile: Block) -> None:
        self.round, self.block, self.dims = tiles.job.round, tiles.job.block, tiles.dims
        self.digits, self.dtype, self.inner = tiles.plan.digits, tiles.dtype, inner
        self.one = tiles.plan.passes[number]
        self.window = tiles.job.window if number == len(tiles.plan.passes) - 1 else None
        axes, steps = inner.source.axes, self.round.steps
        #: Dimension of the tile at which each dimension of the block begins.
        self.firsts = list(itertools.accumulate((len(a.groups) for a in axes), initial=0))[:-1]
        intervals = [axis.intervals(i) for axis, i in zip(axes, tile, strict=True)]
        #: First element of the tile in the block, along each dimension of the tile.
        self.starts = [low for found in intervals for low, _ in found]
        #: Whether the block after the round is the real parts of a convolution.
        self.real_parts = tiles.job.target != self.dtype and any(
            s.convolve is not None for s in steps
        )
        done = [(steps[i], j, len(self.digits[i]) - 1) for i, j in self.one.steps]
        self.begun = [step for step, j, _ in done if j == 0]
        self.ended = [s for s, j, last in done if j == (1 + (s.convolve is not None)) * last]
        self.filtered = [s for s, j, last in done if s.convolve is not None and j == last]
        self.offsets = list(itertools.accumulate(self.one.places, initial=0))
        #: Mirror images and filters are in the last places of the buffer.
        self.scratch = self.offsets[-2]
        self.filters: list[Filter] = []
        self.filter_places = 0
        self.done: list[Computation] = []
        self.real = np.empty(0, self.dtype).real.dtype.str
        comes = self.real if any(step.kind == "r2c" for step in self.begun) else self.dtype
        self.source = DeviceArray(0, inner.source.shape(tile), comes)
        self.now, self.place = self.source, 0

    def work(self) -> TileWork:
        """Return all that is done."""
        one, steps = self.one, self.inner.steps
        pairs = zip(self.starts, self.source.shape, strict=True)
        part = tuple(slice(low, low + n) for low, n in pairs)
        comes, view = self._comes(part)
        for step in steps:
            if step.kind == "r2c":
                self._real_fft(step, self.dtype)
        self._multiply(self._before())
        self._ffts([step for step in steps if step.kind == "c2c"])
        for step in self.filtered:
            self._convolve(step)
        self._multiply(self._after())
        for step in steps:
            if step.kind == "c2r":
                self._real_fft(step, self.real)
        if self.real_parts and self.ended:
            self._real_parts()
        if one.reorders:
            self._reorder(one.order)
        ends = [
            slice(0, n) if n != before else cut
            for n, before, cut in zip(one.after, one.view, part, strict=True)
        ]
        goes, stored_view = self._goes(tuple(ends[dim] for dim in one.order))
        scratch = None
        if one.mirrored:
            scratch = DeviceArray(self.scratch, (self.source.size,), self.dtype)
        filters, done = tuple(self.filters), tuple(self.done)
        return TileWork(
            view, comes, self.source, filters, done, self.now, stored_view, goes, scratch
        )

    # --- host blocks that have only some digits --------------------------------------------------

    def _partial(
        self, steps: list[Step], side: Literal["source", "target"], shape: tuple[int, ...]
    ) -> tuple[Window, Step] | None:
        """The dimension of which the block has only some of the digits that a pass takes."""
        for step in steps:
            radices = self.digits[self.round.steps.index(step)]
            digit = step.source if side == "source" else step.target
            if len(radices) > 1 and digit.is_partial:
                turned = side == "target" and step.convolve is None
                length = step.length // 2 + 1 if step.convolve is None else digit.size
                radices = radices[::-1] if turned else radices
                return Window.of_dimension(shape, self._dim(step), radices, length), step
        return None

    def _comes(self, part: Slices) -> tuple[tuple[Move, ...], HostView]:
        """Copies of what the host block has; of half a spectrum also what is missing of it.

        What is convolved has zeros in its place, which the chirp makes.
        """
        partial = self._partial(self.begun, "source", self.one.view)
        if partial is None:
            return (Move(part, self.source),), HostView(self.one.view)
        window, step = partial
        moves = [Move(p, _part_of(self.source, p, part)) for p in window.parts(part)]
        if step.kind == "c2r":
            moves += self._mirrored(window, step, part, comes=True)
        return tuple(moves), window.view

    def _goes(self, part: Slices) -> tuple[tuple[Move, ...], HostView]:
        """Copies to what the host block has; to half a spectrum also from the mirror image."""
        shape = tuple(self.one.after[dim] for dim in self.one.order)
        partial = self._partial(self.ended, "target", shape)
        if partial is None and self.window is None:
            return (Move(part, self.now),), HostView(shape)
        window, step = partial or (self.window, None)
        assert window is not None
        moves = [Move(p, _part_of(self.now, p, part)) for p in window.parts(part)]
        if step is not None and step.kind == "r2c":
            moves += self._mirrored(window, step, part, comes=False)
        return tuple(moves), window.view

    def _mirrored(self, window: Window, step: Step, part: Slices, comes: bool) -> Iterator[Move]:
        """Copies of what completes half a spectrum, by way of a place where it is turned."""
        first, itemsize, at = self._dim(step), np.dtype(self.dtype).itemsize, 0
        radices, (_, length) = window.digits[first], window.bounds[first]
        behind = first + len(radices)
        box = tuple((cut.start, cut.stop) for cut in part[first:behind])
        digits = self.source if comes else self.now
        twiddles = () if comes else self._turned_back(step)
        copies = []
        for own, image, last in (missing if comes else completing)(box, radices, length):
            cut = (*part[:first], *(slice(*pair) for pair in image), *part[behind:])
            shape = _shape_of(cut)
            yield Move(cut, DeviceArray(self.scratch + at * itemsize, shape, self.dtype))
            start, strides = 0, list(dense(digits.shape, 1))
            lows = [*part[:first], *(slice(*pair) for pair in own), *part[behind:]]
            for dim, (low, around) in enumerate(zip(lows, part, strict=True)):
                backwards = first <= dim <= first + last
                start += ((low.stop - 1 if backwards else low.start) - around.start) * strides[dim]
                strides[dim] *= -1 if backwards else 1
            here, there = (dense(shape, 1), at), (tuple(strides), start)
            by = Multiply(shape, self.dtype, conjugate=True, twiddles=twiddles)
            if comes:
                copies.append(Strided(shape, *here, *there, self.dtype, by))
            else:
                copies.append(Strided(shape, *there, *here, self.dtype, by))
            at += math.prod(shape)
        beside = DeviceArray(self.scratch, (at,), self.dtype)
        ends = (beside, digits) if comes else (digits, beside)
        self.done += [Computation(copy, *ends) for copy in copies]

    # --- operations -------------------------------------------------------------------------------

    def _in_place(self, op: Compute) -> None:
        self.done.append(Computation(op, self.now, self.now))

    def _multiply(self, op: Multiply) -> None:
        if op != Multiply(op.shape, op.dtype):
            self._in_place(op)

    def _out_of_place(self, op: Compute, shape: tuple[int, ...], dtype: str) -> None:
        """An operation whose result cannot lie where its source does."""
        source = self._next_place(shape, dtype)
        self.done.append(Computation(op, source, self.now))

    def _next_place(self, shape: tuple[int, ...], dtype: str) -> DeviceArray:
        """Go on in the other place; returns the array before."""
        source, self.place = self.now, 1 - self.place
        self.now = DeviceArray(self.offsets[self.place], shape, dtype)
        return source

    def _reorder(self, order: Block) -> None:
        """Put dimensions in the order in which they are stored.

        What the tile is multiplied by just before is multiplied by on the way: one pass over the
        GPU's memory instead of two.
        """
        last = self.done[-1].op if self.done else None
        by = last if isinstance(last, Multiply) else None
        if by is not None:
            self.done.pop()
        op = transposed(self.now.shape, order, self.now.dtype, by)
        self._out_of_place(op, tuple(self.now.shape[dim] for dim in order), self.now.dtype)

    def _real_fft(self, step: Step, dtype: str) -> None:
        dim, before = self.inner.dim(step), self.now.shape
        n = step.length if step.kind == "c2r" else step.length // 2 + 1
        after = (*before[:dim], n, *before[dim + 1 :])
        sign = 1 if step.kind == "c2r" else -1
        self._out_of_place(FFT(step.kind, before, after, (dim,), sign, self.dtype), after, dtype)

    def _real_parts(self) -> None:
        """Copy the real parts to where they are dense."""
        count = self.now.size
        source = self._next_place(self.now.shape, self.real)
        copy = Strided((count,), (2,), 0, (1,), 0, self.real)
        both = replace(source, shape=(2 * count,), dtype=self.real)
        self.done.append(Computation(copy, both, self.now))

    def _ffts(self, steps: list[Step]) -> None:
        """Complex FFTs of one sign together."""
        by_sign: dict[int, list[int]] = {}
        for step in steps:
            by_sign.setdefault(step.sign, []).append(self.inner.dim(step))
        shape = self.now.shape
        for sign, dims in by_sign.items():
            self._in_place(FFT("c2c", shape, shape, tuple(sorted(dims)), sign, self.dtype))

    def _convolve(self, step: Step) -> None:
        """Multiply by the spectrum of a filter, and transform the last digit back."""
        number = self.round.steps.index(step)
        axis, own = self.round.source.axes[step.axis], self.dims[number]
        digits, others = self.digits[number], axis.shape(self.block[step.axis])[:-1]
        if step.alone:  # the spectrum is of this digit, whatever is beside it
            others = ()
        first = self.firsts[own - len(others)]
        begin, end = self.firsts[own], self.firsts[own] + len(digits)
        dims, shape = range(first, end), self.now.shape
        # The spectrum has its index whole, which is that of the digits from the last to the first.
        order = (*range(begin), *reversed(range(begin, end)), *range(end, len(shape)))
        kept = tuple(n if d in dims else 1 for d, n in enumerate(shape))
        array = self._filter_place(tuple(kept[d] for d in order))
        part = tuple(slice(self.starts[d], self.starts[d] + shape[d]) for d in order if d in dims)
        self.filters.append(Filter(step.axis, (*others, *digits[::-1]), part, array))
        if len(digits) > 1:
            turned = self._filter_place(kept)
            self.done.append(Computation(transposed(array.shape, order, self.dtype), array, turned))
            array = turned
        self.done.append(Computation(Product(shape, kept, self.dtype), array, self.now))
        self._in_place(FFT("c2c", shape, shape, (end - 1,), -step.sign, self.dtype))

    def _filter_place(self, shape: tuple[int, ...]) -> DeviceArray:
        """The next place for a filter, from the last one of the buffer on."""
        self.filter_places += 1
        return DeviceArray(self.offsets[-1 - self.filter_places], shape, self.dtype)

    # --- factors: twiddles, chirps and a scale ----------------------------------------------------

    def _before(self) -> Multiply:
        """The factors before complex FFTs, where some steps begin."""
        conjugate = any(step.kind == "r2c" and step.sign > 0 for step in self.begun)
        chirps = []
        for step in self.begun:
            if (chirp := step.chirp_in) is not None:
                place = self._index(self.round.source, step, step.source.stage)
                place += self._own(step, self.inner.source, 0, step.source.stride)
                chirps.append(ChirpFactor(chirp.length, chirp.sign, place, self.real_parts))
        shape = self.now.shape
        return Multiply(shape, self.dtype, conjugate=conjugate, chirps=tuple(chirps))

    def _after(self) -> Multiply:
        """The factors after complex FFTs, where some steps end."""
        divisor, target, made = Divisor(), self.round.target, self.inner.target
        twiddles, chirps = [], []
        for inner in self.inner.steps:
            if inner.twiddle is not None:
                left = Term(self.inner.dim(inner), 0, 1, NO_MODULUS, 1)
                # Of the digits of a split dimension that are still to be transformed.
                right = self._group_terms(made, inner.axis, inner.target.stage - 1, 1)
                sign = inner.sign if inner.convolve is None else -inner.sign
                twiddles.append(Twiddle(inner.twiddle, sign, (left,), right))
        for step in self.ended:
            filtered = step.convolve is not None
            sign, stage = (-step.sign, 2) if filtered else (step.sign, 1)
            divisor *= step.divisor
            if step.twiddle is not None:
                right = self._index(target, step, step.target.stage - 1)
                left_terms = self._own(step, made, stage, 1)
                twiddles.append(Twiddle(step.twiddle, sign, left_terms, right))
            if (chirp := step.chirp_out) is not None:
                place = self._index(target, step, step.target.stage)
                place += self._own(step, made, stage, step.target.stride)
                chirps.append(ChirpFactor(chirp.length, chirp.sign, place))
        conjugate = any(step.kind == "c2r" and step.sign < 0 for step in self.ended)
        if conjugate:  # of the product: the factors' signs turn as well
            twiddles = [replace(found, sign=-found.sign) for found in twiddles]
            chirps = [replace(found, sign=-found.sign) for found in chirps]
        scale, shape = 1.0 / (divisor.whole * math.sqrt(divisor.root)), self.now.shape
        return Multiply(shape, self.dtype, scale, conjugate, tuple(twiddles), tuple(chirps))

    def _turned_back(self, step: Step) -> tuple[Twiddle, ...]:
        """Factors of the conjugate of values that were multiplied by the step's twiddle.

        Of N values, conj(X[k] w^(k r)) times w^(N r) is conj(X[k]) w^((N - k) r).
        """
        if step.twiddle is None:
            return ()
        right = self._index(self.round.target, step, step.target.stage - 1)
        stored = self.one.order.index
        behind = tuple(replace(term, dim=stored(term.dim)) for term in right)
        length = Term(0, NO_MODULUS, NO_MODULUS, NO_MODULUS, step.length)  # at every place
        return (Twiddle(step.twiddle, step.sign, (length,), behind),)

    def _dim(self, step: Step) -> int:
        """Dimension of the tile at which the digits of a step of the round begin."""
        return self.firsts[self.dims[self.round.steps.index(step)]]

    def _own(self, step: Step, layout: Layout, stage: int, stride: int) -> tuple[Term, ...]:
        """Index of a step's digit, of which the tile may have several digits."""
        return self._group_terms(layout, self.dims[self.round.steps.index(step)], stage, stride)

    def _group_terms(self, layout: Layout, dim: int, stage: int, stride: int) -> tuple[Term, ...]:
        """Index made of the digits of one stage that the tile has of a dimension of the block."""
        return tuple(
            term
            for place, group in enumerate(layout.axes[dim].groups, self.firsts[dim])
            for term in _digit_terms(group, self.starts[place], stage, place, stride)
        )

    def _index(self, layout: Layout, step: Step, stage: int) -> tuple[Term, ...]:
        """Index made of the digits of one stage of the other dimensions of a step's axis."""
        axis, block = layout.axes[step.axis], self.block[step.axis]
        first = sum(len(other.groups) for other in layout.axes[: step.axis])
        own = self.dims[self.round.steps.index(step)]
        found: list[Term] = []
        pairs = zip(axis.groups, axis.intervals(block), strict=True)
        for dim, (group, (low, _)) in enumerate(pairs, first):
            if dim != own:
                place = self.firsts[dim]
                found += _digit_terms(group, low + self.starts[place], stage, place)
        return tuple(found)
