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

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from dask_bigfft.decomposition.layout import AxisLayout, Digit, Group, Layout
from dask_bigfft.decomposition.rounds import Round, transformed
from dask_bigfft.decomposition.steps import AxisProgram, Divisor, Step, axis_program
from dask_bigfft.gpu.half_spectrum import HostView, Slices, Window, completing, missing
from dask_bigfft.gpu.operations import (
    FFT,
    ChirpFactor,
    Compute,
    DeviceArray,
    Multiply,
    Product,
    Strided,
    Term,
    Twiddle,
    dense,
    transposed,
)
from dask_bigfft.planner.plan_data import axis_letter
from dask_bigfft.planner.tile_plan import TilePass, TilePlan

Block = tuple[int, ...]

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
class BlockTiles:
    """A round on a block, in the tiles of a plan.

    Parameters
    ----------
    round : Round
        What to do.
    block : tuple of int
        Which block.
    source, target : str
        Dtype of the block before and after.
    plan : TilePlan
        The passes.
    window : Window or None
        What the block has of one around it that the last pass would write.
    """

    round: Round
    block: Block
    source: str
    target: str
    plan: TilePlan
    window: Window | None = None

    @cached_property
    def dtype(self) -> str:
        """Dtype of complex values."""
        return max(self.source, self.target, key=lambda name: np.dtype(name).kind == "c")

    @cached_property
    def dims(self) -> tuple[int, ...]:
        """Dimension of the block that each step transforms."""
        return tuple(self.round.dim(step) for step in self.round.steps)

    @cached_property
    def rounds(self) -> tuple[Round, ...]:
        """The passes as rounds: a block's dimensions as axes, its tiles as blocks."""
        lines = zip(self.dims, self.round.steps, self.plan.digits, strict=True)
        programs = [_program(*line) for line in lines]
        by_dim = dict(zip(self.dims, programs, strict=True))
        axes = []
        for dim, n in enumerate(self.round.source.shape(self.block)):
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
        return self.target if number == len(self.plan.passes) - 1 else self.dtype

    def shape(self, number: int) -> tuple[int, ...]:
        """Return the shape of what a pass writes."""
        if number == len(self.plan.passes) - 1:
            found = self.round.target.shape(self.block)
            return found if self.window is None else self.window.shape
        one = self.plan.passes[number]
        return tuple(one.after[dim] for dim in one.order)

    def moves(self, number: int) -> bool:
        """Return whether a pass writes tiles to other places than it read them from.

        In another order; or of a spectrum of which half comes, or goes, and the digits have the
        other half as well: that lies elsewhere, also where both are as many values.
        """
        one, digits = self.plan.passes[number], self.plan.digits
        halves = ((self.round.steps[i].kind, j, len(digits[i]) - 1) for i, j in one.steps)
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
        axes = len(self.round.source.axes)
        letters = [axis_letter(step.axis, axes) for step in self.round.steps]
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
        self.round, self.block, self.dims = tiles.round, tiles.block, tiles.dims
        self.digits, self.dtype, self.inner = tiles.plan.digits, tiles.dtype, inner
        self.one = tiles.plan.passes[number]
        self.window = tiles.window if number == len(tiles.plan.passes) - 1 else None
        axes, steps = inner.source.axes, self.round.steps
        #: Dimension of the tile at which each dimension of the block begins.
        self.firsts = list(itertools.accumulate((len(a.groups) for a in axes), initial=0))[:-1]
        intervals = [axis.intervals(i) for axis, i in zip(axes, tile, strict=True)]
        #: First element of the tile in the block, along each dimension of the tile.
        self.starts = [low for found in intervals for low, _ in found]
        #: Whether the block after the round is the real parts of a convolution.
        self.real_parts = tiles.target != self.dtype and any(s.convolve is not None for s in steps)
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
