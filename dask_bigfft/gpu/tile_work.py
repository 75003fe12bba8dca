"""`BlockTiles`: descriptions of the copies and computations for each tile of a block.

They have no arrays or addresses, and follow the steps of `kernels.loop`::

    r2c -> chirp -> c2c -> filter, c2c back -> twiddle, chirp, divisor -> c2r -> transpose

All factors after an FFT are one `Multiply`, which a following transpose applies in the same pass
over the GPU's memory. A pass is a round with the block's dimensions as axes and its tiles as
blocks. The steps of a split dimension are those of `transforms.steps`. Twiddles and chirps
depend on the index of an element in its axis, made of the digits of the tile and of its block.
"""

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.gpu.operations import (
    FFT,
    Block,
    ChirpFactor,
    Compute,
    DeviceArray,
    HostView,
    Multiply,
    Product,
    Slices,
    Strided,
    Term,
    Twiddle,
    cut_box,
    dense,
    image_of,
    shape_of,
    transposed,
)
from dask_bigfft.planner.passes import find_tile_plan
from dask_bigfft.planner.tile_plan import (
    AS_IS,
    DeviceSettings,
    Scheme,
    TileLimits,
    TilePass,
    TilePlan,
    request_of,
)
from dask_bigfft.tiles.digits import Box, mirror_boxes
from dask_bigfft.transforms.layout import AxisLayout, Digit, Group, Layout, whole
from dask_bigfft.transforms.rounds import Round, transformed
from dask_bigfft.transforms.steps import AxisProgram, Divisor, Kind, Step, axis_program

Array = npt.NDArray[Any]

#: Modulus of a term without reduction.
NO_MODULUS = 1 << 62


@dataclass(frozen=True)
class Computation:
    """Operation on a tile, with its source and target."""

    op: Compute
    source: DeviceArray
    target: DeviceArray


@dataclass(frozen=True)
class Filter:
    """Part of a filter's spectrum by which a tile is multiplied."""

    axis: int
    shape: tuple[int, ...]
    part: Slices
    array: DeviceArray


#: Copy between a part of a host view and an array on the GPU.
Move = tuple[Slices, DeviceArray]


@dataclass(frozen=True)
class TileWork:
    """Description of a tile, in a buffer that begins at offset 0.

    Parameters
    ----------
    view : HostView
        View of the host block before.
    loads : tuple of Move
        Copies to the GPU.
    source : DeviceArray
        The tile after these copies.
    filters : tuple of Filter
        Parts of filters to copy.
    computations : tuple of Computation
        Computations in order.
    result : DeviceArray
        The tile at the end.
    stored_view : HostView
        View of the host block after, with dimensions in the order of storage.
    stores : tuple of Move
        Copies back to the host.
    scratch : DeviceArray, optional
        Memory for reversed shards before they are turned.
    """

    view: HostView
    loads: tuple[Move, ...]
    source: DeviceArray
    filters: tuple[Filter, ...]
    computations: tuple[Computation, ...]
    result: DeviceArray
    stored_view: HostView
    stores: tuple[Move, ...]
    scratch: DeviceArray | None = None


@dataclass(frozen=True)
class Job:
    """Round on a block.

    Jobs on blocks of the same shapes are equal. Their tiles differ only in the indices of twiddles
    and chirps, so all else is found once for each shape.

    Parameters
    ----------
    round : Round
        The round.
    block : tuple of int
        Index of the block.
    source, target : str
        Dtype of the block before and after.
    inside : bool
        True to use no host memory beside the block, where possible.
    order : tuple of int
        Order in which the dimensions of the block are written, in a single pass.
    shards : int
        Number of source blocks from which the block is read.
    mirrored : bool
        True if some shards are reversed: the mirror image of half a spectrum.
    settings : DeviceSettings
        Settings of the pipeline.
    window : HostView, optional
        Part of the enclosing block that a round without steps stores.
    scheme : Scheme, optional
        Decomposition set by hand.
    """

    round: Round
    block: Block = field(compare=False)
    source: str
    target: str
    inside: bool = False
    order: tuple[int, ...] = ()
    shards: int = 1
    mirrored: bool = False
    settings: DeviceSettings = AS_IS
    window: HostView | None = None
    scheme: Scheme | None = None
    #: Shapes of the block before and after.
    shapes: tuple[Block, Block] = field(init=False)

    def __post_init__(self) -> None:
        shapes = self.round.source.shape(self.block), self.round.target.shape(self.block)
        object.__setattr__(self, "shapes", shapes)

    @cached_property
    def dtype(self) -> str:
        """Dtype of complex values."""
        return max(self.source, self.target, key=lambda name: np.dtype(name).kind == "c")

    def tiles(self, limits: TileLimits, work: float = 0) -> "BlockTiles":
        """Return the tiles of the block within limits, beside a work area.

        Raises
        ------
        DeviceMemoryError
            If tiles cannot be made small enough.
        DeviceError
            If the values are not of single or double precision.
        """
        return BlockTiles(self, _tile_plan(self, limits, work))

    def links(self, rounds: tuple[Round, ...]) -> tuple["Job", ...]:
        """Return the jobs of consecutive rounds that are together equivalent to this one."""
        if len(rounds) < 2:
            return (self,)
        dtypes = [self.source, *[self.dtype] * (len(rounds) - 1), self.target]
        found = [
            Job(round_, self.block, *ends, settings=self.settings)
            for round_, ends in zip(rounds, itertools.pairwise(dtypes), strict=True)
        ]
        return (replace(found[0], shards=self.shards, mirrored=self.mirrored), *found[1:])


@lru_cache(maxsize=256)
def _tile_plan(job: Job, limits: TileLimits, work: float) -> TilePlan:
    limits = limits.tuned(job.settings)
    request = request_of(job.round, job.shapes[0], job.source, job.target, scheme=job.scheme)
    other = replace(request, order=job.order, shards=job.shards)
    wishes = [replace(request, inside=True)] * job.inside
    wishes += [replace(other, mirrored=True)] * job.mirrored
    wishes += [other] * bool(job.order and request.lines)
    for wish in wishes:
        with contextlib.suppress(DeviceMemoryError):
            return find_tile_plan(wish, limits, work)
    return find_tile_plan(replace(other, order=() if request.lines else job.order), limits, work)


@dataclass(frozen=True)
class BlockTiles:
    """Round on a block, with its tile plan."""

    job: Job
    plan: TilePlan

    @property
    def passes(self) -> "tuple[_Pass, ...]":
        """Properties shared by all tiles of a pass, for each pass."""
        return _passes(self)

    def written(self, number: int) -> str:
        """Return the dtype of the result of a pass."""
        return self.job.target if number == len(self.plan.passes) - 1 else self.job.dtype

    def shape(self, number: int) -> Block:
        """Return the shape of the result of a pass."""
        one = self.plan.passes[number]
        if number < len(self.plan.passes) - 1:
            return tuple(one.after[dim] for dim in one.order)
        if self.job.window is None:
            return self.job.shapes[1]
        return tuple(high - low for low, high in self.job.window.bounds)

    def moves(self, number: int) -> bool:
        """Return True if a pass cannot write its tiles in place.

        That holds for a pass that reorders dimensions, and for one that reads or writes half a
        spectrum while its digits have all of it.
        """
        one = self.plan.passes[number]
        digits = self.plan.digits
        halves = ((self.job.round.steps[i].kind, j, len(digits[i]) - 1) for i, j in one.steps)
        return one.reorders or any(
            last > 0 and (kind, j) in (("c2r", 0), ("r2c", last)) for kind, j, last in halves
        )

    def works(self, number: int) -> Iterator[TileWork]:
        """Yield the description of each tile in a pass."""
        common = self.passes[number]
        if common.one.swap is not None:
            return swaps(common.one, self.job.dtype)
        return self._works(common, common.cuts)

    def _works(
        self, common: "_Pass", cuts: Sequence[Iterable[tuple[int, int]]]
    ) -> Iterator[TileWork]:
        """Yield the descriptions of tiles with given bounds along each dimension."""
        return (_Tile(self, common, box).work() for box in itertools.product(*cuts))

    def extents(self, dim: int) -> list[int]:
        """Return the extent of the tiles of each pass along an untransformed dimension."""
        return [common.one.tile[common.firsts[dim]] for common in self.passes]

    def within(self, dim: int, low: int, high: int, width: int) -> list[list[TileWork]]:
        """Return the descriptions of the tiles of a part of a block, for each pass.

        Parameters
        ----------
        dim : int
            Untransformed dimension of the block.
        low, high : int
            Begin and end of the part along it.
        width : int
            Largest width of a tile.
        """
        found = []
        for common, extent in zip(self.passes, self.extents(dim), strict=True):
            cuts = list(common.cuts)
            step = min(width, extent)
            lows = range(low, high, step)
            cuts[common.firsts[dim]] = [(at, min(at + step, high)) for at in lows]
            found.append(list(self._works(common, cuts)))
        return found

    @property
    def ffts(self) -> frozenset[FFT]:
        """All distinct FFTs, whose plans must exist before the first tile."""
        return _ffts(self)


@lru_cache(maxsize=256)
def _ffts(tiles: BlockTiles) -> frozenset[FFT]:
    found: set[FFT] = set()
    for common in tiles.passes:
        if common.one.swap is None:  # one tile of each shape
            cuts = [{high - low: (low, high) for low, high in c}.values() for c in common.cuts]
            for work in tiles._works(common, cuts):
                found.update(c.op for c in work.computations if isinstance(c.op, FFT))
    return frozenset(found)


def _program(dim: int, step: Step, digits: Block) -> AxisProgram:
    """Return the steps of a dimension in digits; a convolution transforms forth and back."""
    filtered = step.convolve is not None
    program = axis_program(
        dim, step.length, digits, kind=step.kind, sign=step.sign, bluestein=filtered
    )
    if not filtered or step.sign == program.steps[0].sign:
        return program
    turned = tuple(replace(found, sign=-found.sign) for found in program.steps)
    return replace(program, steps=turned)


def _cuts(one: TilePass) -> list[list[tuple[int, int]]]:
    """Return the bounds of the tiles along each dimension of a pass."""
    return [list(itertools.pairwise(itertools.accumulate(c, initial=0))) for c in one.chunks]


def swaps(one: TilePass, dtype: str) -> Iterator[TileWork]:
    """Yield the description of each pair of tiles to swap, or of a tile that is its own partner.

    ::

        tile (A, k2, B) --turned--> (B, k2, A)        tile (B, k2, A) --turned--> (A, k2, B)
    """
    assert one.swap is not None
    first, last = one.swap
    order = list(range(len(one.view)))
    view = HostView.of(one.view)
    order[first] = last
    order[last] = first
    for box in itertools.product(*_cuts(one)):
        if box[first] > box[last]:
            continue
        here = tuple(itertools.starmap(slice, box))
        there = tuple(here[dim] for dim in order)
        loads = []
        stores = []
        done = []
        # The first tile goes to free memory, the second one to the place of the first.
        ways = ((here, there, 0, 2), (there, here, 1, 0))
        for part, other, place, new_place in ways[: 1 + (here != there)]:
            source = DeviceArray(place * one.places[0], shape_of(part), dtype)
            target = DeviceArray(new_place * one.places[0], shape_of(other), dtype)
            loads.append((part, source))
            stores.append((other, target))
            done.append(Computation(transposed(source.shape, tuple(order), dtype), source, target))
        ends = loads[0][1], stores[0][1]
        yield TileWork(view, tuple(loads), ends[0], (), tuple(done), ends[1], view, tuple(stores))


# --- one tile -------------------------------------------------------------------------------------


def _part_of(array: DeviceArray, part: Slices, around: Slices) -> DeviceArray:
    """Return the part of a dense array, given the enclosing part that the array holds."""
    if part == around:
        return array
    strides = dense(array.shape, np.dtype(array.dtype).itemsize)
    cuts = zip(part, around, strides, strict=True)
    offset = sum((cut.start - whole.start) * step for cut, whole, step in cuts)
    return DeviceArray(array.offset + offset, shape_of(part), array.dtype, strides)


def _terms(group: Group, start: int, stage: int, dim: int, stride: int = 1) -> Iterator[Term]:
    """Yield the terms of a dimension with a group of digits in the index of a stage."""
    divisor = 1
    for place, digit in reversed(list(enumerate(group.digits))):
        if digit.stage == stage and digit.size > 1:
            modulus = digit.size if place else NO_MODULUS
            yield Term(dim, start, divisor, modulus, digit.stride * stride)
        divisor *= max(digit.size, 1)


class _Line(NamedTuple):
    """Step of a round, its digits, and their first dimensions in the block and the tile."""

    step: Step
    digits: Block
    dim: int
    first: int

    @property
    def filtered(self) -> bool:
        """True if the step is a convolution with a filter."""
        return self.step.convolve is not None


class _Pass:
    """Properties shared by all tiles of a pass.

    Parameters
    ----------
    tiles : BlockTiles
        A block.
    number : int
        Number of the pass.
    inner : Round
        The pass as a round, with the block's dimensions as axes and a group for each digit.
    dims : tuple of int
        Dimension of the block that each step of the round transforms.
    """

    def __init__(self, tiles: BlockTiles, number: int, inner: Round, dims: Block) -> None:
        job = tiles.job
        plan = tiles.plan
        self.one = plan.passes[number]
        self.inner = inner
        self.cuts = _cuts(plan.passes[number])
        self.window = job.window if number == len(plan.passes) - 1 else None
        counts = (len(axis.groups) for axis in inner.source.axes)
        #: First dimension of the tile for each dimension of the block.
        self.firsts = list(itertools.accumulate(counts, initial=0))
        pairs = zip(job.round.steps, plan.digits, dims, strict=True)
        self.lines = [_Line(step, digits, dim, self.firsts[dim]) for step, digits, dim in pairs]
        done = [(self.lines[i], j, len(self.lines[i].digits) - 1) for i, j in self.one.steps]
        self.begun = [line for line, j, _ in done if j == 0]
        self.ended = [line for line, j, last in done if j == (1 + line.filtered) * last]
        self.filtered = [line for line, j, last in done if line.filtered and j == last]
        self.offsets = list(itertools.accumulate(self.one.places, initial=0))
        #: Steps with the dimensions of the tile that they transform.
        self.steps = [(step, inner.dim(step)) for step in inner.steps]
        complex_steps = [(step.sign, dim) for step, dim in self.steps if step.kind == "c2c"]
        #: Dimensions of complex FFTs by their sign.
        self.signs = {
            sign: sorted(dim for other, dim in complex_steps if other == sign)
            for sign, _ in complex_steps
        }
        divisor = Divisor()
        for line in self.ended:
            divisor *= line.step.divisor
        self.scale = 1.0 / (divisor.whole * math.sqrt(divisor.root))


@lru_cache(maxsize=256)
def _passes(tiles: BlockTiles) -> tuple[_Pass, ...]:
    round_ = tiles.job.round
    dims = tuple(map(round_.dim, round_.steps))
    lines = zip(dims, round_.steps, tiles.plan.digits, strict=True)
    programs = [_program(*line) for line in lines]
    by_dim = dict(zip(dims, programs, strict=True))
    axes = []
    found = []
    for dim, n in enumerate(tiles.job.shapes[0]):
        digits: tuple[Digit, ...] = (Digit(0, 1, n, n),)
        if (program := by_dim.get(dim)) is not None:
            digits = tuple(step.source for step in program.steps[: len(program.factors)])
        axes.append(AxisLayout(tuple(whole(digit) for digit in digits)))
    layout = Layout(tuple(axes))
    for number, one in enumerate(tiles.plan.passes):
        steps = tuple(programs[i].steps[j] for i, j in one.steps)
        inner = Round(steps, layout, transformed(layout, steps))
        found.append(_Pass(tiles, number, inner, dims))
        layout = inner.target
    return tuple(found)


class _Tile:
    """Builder of the description of a tile.

    Parameters
    ----------
    tiles : BlockTiles
        The block.
    common : _Pass
        The pass.
    box : tuple of (int, int)
        Bounds of the tile along each dimension of the pass.
    """

    def __init__(self, tiles: BlockTiles, common: _Pass, box: Box) -> None:
        self.common = common
        self.one = common.one
        self.inner = common.inner
        self.round = tiles.job.round
        self.block = tiles.job.block
        self.dtype = tiles.job.dtype
        self.part = tuple(itertools.starmap(slice, box))
        self.starts = [low for low, _ in box]
        #: Mirror images and filters use the last parts of the buffer.
        self.scratch = common.offsets[-2]
        self.filters: list[Filter] = []
        self.filter_places = 0
        self.done: list[Computation] = []
        self.real = np.empty(0, self.dtype).real.dtype.str
        r2c = any(line.step.kind == "r2c" for line in common.begun)
        self.now = DeviceArray(0, shape_of(self.part), self.real if r2c else self.dtype)
        self.place = 0

    def work(self) -> TileWork:
        """Return the description."""
        one = self.one
        common = self.common
        source = self.now
        loads, view = self._moves(one.view, self.part, common.begun, before=True)
        for step, dim in common.steps:
            if step.kind == "r2c":
                self._real_fft("r2c", dim, step.length // 2 + 1, self.dtype)
        self._multiply(self._before())
        for sign, dims in common.signs.items():
            self._fft(dims, sign)
        for line in common.filtered:
            self._convolve(line)
        self._multiply(self._after())
        for step, dim in common.steps:
            if step.kind == "c2r":
                self._real_fft("c2r", dim, step.length, self.real)
        if one.reorders:
            self._reorder()
        changed = zip(self.part, one.view, one.after, strict=True)
        ends = [cut if before == n else slice(0, n) for cut, before, n in changed]
        part = tuple(ends[d] for d in one.order)
        shape = tuple(one.after[d] for d in one.order)
        stores, stored_view = self._moves(shape, part, common.ended, before=False)
        scratch = DeviceArray(self.scratch, (source.size,), self.dtype) if one.mirrored else None
        filters = tuple(self.filters)
        done = tuple(self.done)
        return TileWork(view, loads, source, filters, done, self.now, stored_view, stores, scratch)

    # --- host blocks with a part of the digits --------------------------------------------------

    def _moves(
        self, shape: Block, part: Slices, lines: list[_Line], before: bool
    ) -> tuple[tuple[Move, ...], HostView]:
        """Return the copies of a tile and the view of the host block.

        Half a spectrum is completed by its mirror image.
        """
        plain = HostView.of(shape)
        array = self.now
        mirrored = list[Move]()
        view = plain if before or self.common.window is None else self.common.window
        for line in lines:
            digit = line.step.source if before else line.step.target
            if len(line.digits) == 1 or not digit.is_partial:
                continue
            radices = line.digits if before else line.digits[::-1]
            view = view.joined(line.first, radices, line.step.length // 2 + 1)
            if line.step.kind == ("c2r" if before else "r2c"):
                mirrored = list(self._mirrored(line, radices, part, before))
        if view is plain:
            return ((part, array),), view
        moves = ((found, _part_of(array, found, part)) for found in view.parts(part))
        return (*moves, *mirrored), view

    def _mirrored(self, line: _Line, radices: Block, part: Slices, before: bool) -> Iterator[Move]:
        """Yield the copies that complete half a spectrum through scratch memory."""
        n = line.step.length
        first = line.first
        behind = line.first + len(radices)
        own_part = part[first:behind]
        end = (n + 1) // 2
        twiddles = tuple[Twiddle, ...]()
        if not before:  # the last digit goes up to half of its radix
            cut = own_part[-1]
            half = slice(max(cut.start, 1), min(cut.stop, (radices[-1] + 1) // 2))
            own_part = (*own_part[:-1], half)
            end = n // 2 + 1
            twiddles = self._turned_back(line)
        digits = self.now
        itemsize = np.dtype(self.dtype).itemsize
        at = 0
        copies = []
        for box, image_starts, image_steps in mirror_boxes(radices, end):
            own = cut_box(box, own_part)
            if not own:
                continue
            image = image_of(box, own, image_starts, image_steps)
            here = (*part[:first], *own, *part[behind:])
            there = (*part[:first], *image, *part[behind:])
            shape = shape_of(there)
            steps = list(dense(digits.shape, 1))
            yield there, DeviceArray(self.scratch + at * itemsize, shape, self.dtype)
            start = 0
            for dim, (cut, around) in enumerate(zip(here, part, strict=True)):
                backwards = first <= dim < behind and image_steps[dim - first] < 0
                start += ((cut.stop - 1 if backwards else cut.start) - around.start) * steps[dim]
                steps[dim] *= -1 if backwards else 1
            by = Multiply(shape, self.dtype, conjugate=True, twiddles=twiddles)
            ways = (dense(shape, 1), at), (tuple(steps), start)
            copies.append((shape, ways if before else ways[::-1], by))
            at += math.prod(shape)
        beside = DeviceArray(self.scratch, (at,), self.dtype)
        ends = (beside, digits) if before else (digits, beside)
        for shape, (source, target), by in copies:
            self.done.append(Computation(Strided(shape, *source, *target, self.dtype, by), *ends))

    # --- operations -------------------------------------------------------------------------------

    def _do(self, op: Compute, shape: Block | None = None, dtype: str | None = None) -> None:
        """Add an operation in place, or into the other buffer if the result has a shape."""
        source = self.now
        if shape is not None:
            self.place = 1 - self.place
            self.now = DeviceArray(self.common.offsets[self.place], shape, dtype or source.dtype)
        self.done.append(Computation(op, source, self.now))

    def _multiply(self, op: Multiply) -> None:
        if op != Multiply(op.shape, op.dtype):
            self._do(op)

    def _reorder(self) -> None:
        """Transpose the dimensions to the order of storage, with the preceding factors.

        That takes one pass over the GPU's memory instead of two.
        """
        last = self.done[-1].op if self.done else None
        order = self.one.order
        shape = self.now.shape
        by = last if isinstance(last, Multiply) else None
        if by is not None:
            self.done.pop()
        op = transposed(shape, order, self.now.dtype, by)
        self._do(op, tuple(shape[dim] for dim in order))

    def _fft(self, dims: Sequence[int], sign: int) -> None:
        shape = self.now.shape
        self._do(FFT("c2c", shape, shape, tuple(dims), sign, self.dtype))

    def _real_fft(self, kind: Kind, dim: int, n: int, dtype: str) -> None:
        before = self.now.shape
        after = (*before[:dim], n, *before[dim + 1 :])
        sign = 1 if kind == "c2r" else -1
        self._do(FFT(kind, before, after, (dim,), sign, self.dtype), after, dtype)

    def _convolve(self, line: _Line) -> None:
        """Multiply by the spectrum of a filter, then transform the last digit back."""
        step, digits, own, begin = line
        others = self.round.source.axes[step.axis].shape(self.block[step.axis])[:-1]
        end = begin + len(digits)
        shape = self.now.shape
        dims = range(self.common.firsts[own - len(others)], end)
        # The index of the spectrum has the digits from the last to the first.
        order = (*range(begin), *reversed(range(begin, end)), *range(end, len(shape)))
        kept = tuple(n if d in dims else 1 for d, n in enumerate(shape))
        array = self._filter_place(tuple(kept[d] for d in order))
        part = tuple(self.part[d] for d in order if d in dims)
        self.filters.append(Filter(step.axis, (*others, *digits[::-1]), part, array))
        if len(digits) > 1:
            turned = self._filter_place(kept)
            self.done.append(Computation(transposed(array.shape, order, self.dtype), array, turned))
            array = turned
        self.done.append(Computation(Product(shape, kept, self.dtype), array, self.now))
        self._fft((end - 1,), -step.sign)

    def _filter_place(self, shape: Block) -> DeviceArray:
        """Return the next part for a filter, from the end of the buffer on."""
        self.filter_places += 1
        return DeviceArray(self.common.offsets[-1 - self.filter_places], shape, self.dtype)

    # --- factors: twiddles, chirps and a scale ----------------------------------------------------

    def _before(self) -> Multiply:
        """Return the factors before complex FFTs, where some steps begin."""
        conjugate = any(
            line.step.kind == "r2c" and line.step.sign > 0 for line in self.common.begun
        )
        chirps = []
        for line in self.common.begun:
            if (chirp := line.step.chirp_in) is not None:
                digit = line.step.source
                place = self._index(self.round.source, line, digit.stage)
                place += self._own(self.inner.source, line.dim, 0, digit.stride)
                chirps.append(ChirpFactor(chirp.length, chirp.sign, place))
        shape = self.now.shape
        return Multiply(shape, self.dtype, conjugate=conjugate, chirps=tuple(chirps))

    def _after(self) -> Multiply:
        """Return the factors after complex FFTs, where some steps end."""
        common = self.common
        target = self.round.target
        made = self.inner.target
        twiddles = []
        chirps = []
        for inner, dim in common.steps:
            if inner.twiddle is not None:
                left = Term(dim, 0, 1, NO_MODULUS, 1)
                # of the digits of a split dimension that are still to be transformed
                right = self._own(made, inner.axis, inner.target.stage - 1, 1)
                sign = inner.sign if inner.convolve is None else -inner.sign
                twiddles.append(Twiddle(inner.twiddle, sign, (left,), right))
        for line in common.ended:
            step = line.step
            digit = line.step.target
            sign, stage = (-step.sign, 2) if line.filtered else (step.sign, 1)
            if step.twiddle is not None:
                own = self._own(made, line.dim, stage, 1)
                right = self._index(target, line, digit.stage - 1)
                twiddles.append(Twiddle(step.twiddle, sign, own, right))
            if (chirp := step.chirp_out) is not None:
                place = self._index(target, line, digit.stage)
                place += self._own(made, line.dim, stage, digit.stride)
                chirps.append(ChirpFactor(chirp.length, chirp.sign, place))
        conjugate = any(line.step.kind == "c2r" and line.step.sign < 0 for line in common.ended)
        if conjugate:  # of the product, so the signs of the factors change
            twiddles = [replace(found, sign=-found.sign) for found in twiddles]
            chirps = [replace(found, sign=-found.sign) for found in chirps]
        factors = common.scale, conjugate, tuple(twiddles), tuple(chirps)
        return Multiply(self.now.shape, self.dtype, *factors)

    def _turned_back(self, line: _Line) -> tuple[Twiddle, ...]:
        """Return the factors for the mirror image of values multiplied by the step's twiddle.

        Of N values, conj(X[k] w^(k r)) times w^(N r) is conj(X[k]) w^((N - k) r).
        """
        step = line.step
        stored = self.one.order.index
        if step.twiddle is None:
            return ()
        right = self._index(self.round.target, line, step.target.stage - 1)
        behind = tuple(replace(term, dim=stored(term.dim)) for term in right)
        length = Term(0, NO_MODULUS, NO_MODULUS, NO_MODULUS, step.length)  # at every place
        return (Twiddle(step.twiddle, step.sign, (length,), behind),)

    def _own(self, layout: Layout, dim: int, stage: int, stride: int) -> tuple[Term, ...]:
        """Return the index of a stage from the tile's digits of a dimension of the block."""
        return tuple(
            term
            for place, group in enumerate(layout.axes[dim].groups, self.common.firsts[dim])
            for term in _terms(group, self.starts[place], stage, place, stride)
        )

    def _index(self, layout: Layout, line: _Line, stage: int) -> tuple[Term, ...]:
        """Return the index of a stage from the other dimensions of a step's axis."""
        axis = layout.axes[line.step.axis]
        block = self.block[line.step.axis]
        firsts = self.common.firsts
        first = sum(len(other.groups) for other in layout.axes[: line.step.axis])
        groups = enumerate(zip(axis.groups, axis.intervals(block), strict=True), first)
        return tuple(
            term
            for dim, (group, (low, _)) in groups
            if dim != line.dim
            for term in _terms(group, low + self.starts[firsts[dim]], stage, firsts[dim])
        )
