"""`BlockTiles`: descriptions of the copies and computations for each tile of a block.

They have no arrays or addresses. The operations are those of the programs of a round's passes
(`tiles.program`), in the form for devices (`tiles.device`). They are the same for all tiles of a
pass. A tile adds shapes, places in its buffer, and its origin in the array, from which the factors
of the program are computed.
"""

import contextlib
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.gpu.operations import (
    FFT,
    Block,
    Compute,
    DeviceArray,
    Multiply,
    Product,
    Strided,
    Transfer,
    dense,
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
from dask_bigfft.tiles import program as tiles_program
from dask_bigfft.tiles.device import MemoryPass, for_device
from dask_bigfft.tiles.digits import (
    BlockDigits,
    Box,
    Slices,
    cut_box,
    image_of,
    mirror_boxes,
    shape_of,
)
from dask_bigfft.tiles.program import (
    ONE,
    Program,
    SplitStep,
    Twiddle,
    constant_index,
    first_tile_dims,
    programs_of,
    split_steps,
)
from dask_bigfft.transforms.layout import half
from dask_bigfft.transforms.rounds import Round, StoredWindow

Array = npt.NDArray[Any]

#: Distance of two elements of an FFT in bytes from which cuFFT is many times slower than the memory
#: of the GPU. The first two dimensions of 1024 x 1024 x 513 complex64 take 99 ms; all three of the
#: real FFT of 1024^3 together take 8 ms (H200).
FAR_NBYTES = 1 << 20


@dataclass(frozen=True)
class Computation:
    """Operation on a tile, with its source and target."""

    op: Compute
    source: DeviceArray
    target: DeviceArray


@dataclass(frozen=True)
class Filter:
    """Part of a filter's spectrum, an operand of the plan, by which a tile is multiplied."""

    operand: int
    shape: tuple[int, ...]
    part: Slices
    array: DeviceArray


#: Copy between a part of a host block, by digits, and an array on the GPU.
Move = tuple[Slices, DeviceArray]


@dataclass(frozen=True)
class TileWork:
    """Description of a tile, in a buffer that begins at offset 0.

    Parameters
    ----------
    form : BlockDigits
        Digits of the host block before.
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
    stored_form : BlockDigits
        Digits of the host block after, with dimensions in the order of storage.
    stores : tuple of Move
        Copies back to the host.
    scratch : DeviceArray, optional
        Memory for reversed shards before they are turned.
    """

    form: BlockDigits
    loads: tuple[Move, ...]
    source: DeviceArray
    filters: tuple[Filter, ...]
    computations: tuple[Computation, ...]
    result: DeviceArray
    stored_form: BlockDigits
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
    window : BlockDigits, optional
        Digits of the block after a round without steps, if it has only a part of their values.
    scheme : Scheme, optional
        Decomposition set by hand.
    multiplies_half : bool
        True if half a spectrum is multiplied by values that are stored. Its lines cannot be split
        then, because a tile would have the frequencies of the other half, too.
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
    window: BlockDigits | None = None
    scheme: Scheme | None = None
    multiplies_half: bool = False
    #: Shapes of the block before and after.
    shapes: tuple[Block, Block] = field(init=False)

    def __post_init__(self) -> None:
        shapes = self.round.source.shape(self.block), self.round.target.shape(self.block)
        object.__setattr__(self, "shapes", shapes)

    @cached_property
    def dtype(self) -> str:
        """Dtype of complex values."""
        if any(step.kind != step.last_kind for step in self.round.steps):
            return np.result_type(self.source, np.complex64).str
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
        plan = _tile_plan(self, limits, work)
        if self.multiplies_half and any(len(digits) > 1 for digits in plan.digits):
            raise DeviceMemoryError("half a spectrum and its factors do not fit a tile")
        return BlockTiles(self, plan)

    def links(self, rounds: tuple[Round, ...]) -> tuple["Job", ...]:
        """Return the jobs of consecutive rounds that are together equivalent to this one."""
        if len(rounds) < 2:
            return (self,)
        dtypes = [self.source, *[self.dtype] * (len(rounds) - 1), self.target]
        jobs: list[Job] = []
        for number, round_ in enumerate(rounds):
            dtype, result_dtype = dtypes[number : number + 2]
            jobs.append(
                Job(
                    round_,
                    self.block,
                    dtype,
                    result_dtype,
                    settings=self.settings,
                    multiplies_half=self.multiplies_half,
                )
            )
        jobs[0] = replace(jobs[0], shards=self.shards, mirrored=self.mirrored)
        return tuple(jobs)


@lru_cache(maxsize=256)
def _tile_plan(job: Job, limits: TileLimits, work: float) -> TilePlan:
    limits = limits.tuned(job.settings)
    request = request_of(
        job.round,
        job.shapes[0],
        job.source,
        job.target,
        scheme=job.scheme,
    )
    other = replace(request, order=job.order, shards=job.shards)
    wishes = []
    if job.inside:
        wishes.append(replace(request, inside=True))
    if job.mirrored:
        wishes.append(replace(other, mirrored=True))
    if job.order and request.lines:
        wishes.append(other)
    for wish in wishes:
        with contextlib.suppress(DeviceMemoryError):
            return find_tile_plan(wish, limits, work)
    order = () if request.lines else job.order
    return find_tile_plan(replace(other, order=order), limits, work)


@dataclass(frozen=True)
class BlockTiles:
    """Round on a block, with its tile plan."""

    job: Job
    plan: TilePlan
    #: True to do a real FFT and the complex one of the dimensions before it at once.
    joins: bool = False

    @property
    def leaps(self) -> bool:
        """Return True if complex FFTs beside a real one have elements that are far apart."""
        itemsize = np.dtype(self.job.dtype).itemsize
        kinds = {op.kind for op in self.ffts}
        return kinds != {"c2c"} and any(
            op.kind == "c2c" and math.prod(op.source[op.dims[0] + 1 :]) * itemsize >= FAR_NBYTES
            for op in self.ffts
        )

    @property
    def passes(self) -> "tuple[_Pass, ...]":
        """Properties shared by all tiles of a pass, for each pass."""
        return _passes(self)

    @cached_property
    def crops(self) -> bool:
        """True if the tiles of the last pass store the windows of the round alone.

        Each window is one of a digit that is whole in the tile.
        """
        round_ = self.job.round
        if not round_.crops:
            return False
        window_dims = {window.dim for window in round_.windows}
        return all(
            len(digits) == 1
            for step, digits in zip(round_.steps, self.plan.digits, strict=True)
            if step.target.is_partial or round_.dim(step) in window_dims
        )

    def written(self, number: int) -> str:
        """Return the dtype of the result of a pass."""
        return self.job.target if number == len(self.plan.passes) - 1 else self.job.dtype

    def shape(self, number: int) -> Block:
        """Return the shape of the result of a pass."""
        tile_pass = self.plan.passes[number]
        if number < len(self.plan.passes) - 1:
            return tuple(tile_pass.after[dim] for dim in tile_pass.order)
        if self.crops:
            return self.job.shapes[1]
        if self.job.window is None:
            return self.job.round.without_windows.target.shape(self.job.block)
        return tuple(high - low for low, high in self.job.window.bounds)

    def moves(self, number: int) -> bool:
        """Return True if a pass cannot write its tiles in place.

        That holds for a pass that reorders dimensions, for one that reads or writes half a spectrum
        while its digits have all of it, and for one that stores windows.
        """
        tile_pass = self.plan.passes[number]
        digits = self.plan.digits
        if self.crops and number == len(self.plan.passes) - 1:
            return True
        halves = ((self.job.round.steps[i].kind, j, len(digits[i]) - 1) for i, j in tile_pass.steps)
        return tile_pass.reorders or any(
            last > 0 and (kind, j) in (("c2r", 0), ("r2c", last)) for kind, j, last in halves
        )

    def works(self, number: int) -> Iterator[TileWork]:
        """Yield the description of each tile in a pass."""
        common = self.passes[number]
        if common.tile_pass.swap is not None:
            return swaps(common.tile_pass, self.job.dtype)
        return self._works(common, common.cuts)

    def _works(
        self, common: "_Pass", cuts: Sequence[Iterable[tuple[int, int]]]
    ) -> Iterator[TileWork]:
        """Yield the descriptions of tiles with given bounds along each dimension."""
        return (_Tile(self, common, box).work() for box in itertools.product(*cuts))

    def extents(self, dim: int) -> list[int]:
        """Return the extent of the tiles of each pass along an untransformed dimension."""
        return [common.tile_pass.tile[common.firsts[dim]] for common in self.passes]

    def within(
        self,
        dim: int,
        low: int,
        high: int,
        width: int,
    ) -> list[list[TileWork]]:
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
        works: list[list[TileWork]] = []
        for common, extent in zip(self.passes, self.extents(dim), strict=True):
            cuts = list(common.cuts)
            step = min(width, extent)
            lows = range(low, high, step)
            cuts[common.firsts[dim]] = [(at, min(at + step, high)) for at in lows]
            works.append(list(self._works(common, cuts)))
        return works

    @property
    def ffts(self) -> frozenset[FFT]:
        """All distinct FFTs, whose plans must exist before the first tile."""
        return _ffts(self)


@lru_cache(maxsize=256)
def _ffts(tiles: BlockTiles) -> frozenset[FFT]:
    ffts: set[FFT] = set()
    for common in tiles.passes:
        if common.tile_pass.swap is None:  # one tile of each shape
            cuts = [{high - low: (low, high) for low, high in c}.values() for c in common.cuts]
            for work in tiles._works(common, cuts):
                ffts.update(c.op for c in work.computations if isinstance(c.op, FFT))
    return frozenset(ffts)


def _cuts(tile_pass: TilePass) -> list[list[tuple[int, int]]]:
    """Return the bounds of the tiles along each dimension of a pass."""
    return [list(itertools.pairwise(itertools.accumulate(c, initial=0))) for c in tile_pass.chunks]


def swaps(tile_pass: TilePass, dtype: str) -> Iterator[TileWork]:
    """Yield the description of each pair of tiles to swap, or of a tile that is its own partner.

    ::

        tile (A, k2, B) --turned--> (B, k2, A)        tile (B, k2, A) --turned--> (A, k2, B)
    """
    assert tile_pass.swap is not None
    first, last = tile_pass.swap
    order = list(range(len(tile_pass.view)))
    form = BlockDigits.of(tile_pass.view)
    order[first] = last
    order[last] = first
    for box in itertools.product(*_cuts(tile_pass)):
        if box[first] > box[last]:
            continue
        first_part = tuple(itertools.starmap(slice, box))
        second_part = tuple(first_part[dim] for dim in order)
        loads = []
        stores = []
        computations = []
        # The first tile goes to free memory, the second one to the place of the first.
        ways = ((first_part, second_part, 0, 2), (second_part, first_part, 1, 0))
        for part, other, place, new_place in ways[: 1 + (first_part != second_part)]:
            source = DeviceArray(place * tile_pass.places[0], shape_of(part), dtype)
            target = DeviceArray(new_place * tile_pass.places[0], shape_of(other), dtype)
            loads.append((part, source))
            stores.append((other, target))
            computations.append(
                Computation(transposed(source.shape, tuple(order), dtype), source, target)
            )
        ends = loads[0][1], stores[0][1]
        yield TileWork(
            form,
            tuple(loads),
            ends[0],
            (),
            tuple(computations),
            ends[1],
            form,
            tuple(stores),
        )


# --- one tile -------------------------------------------------------------------------------------


def _part_of(array: DeviceArray, part: Slices, around: Slices) -> DeviceArray:
    """Return the part of a dense array, given the enclosing part that the array holds."""
    if part == around:
        return array
    strides = dense(array.shape, np.dtype(array.dtype).itemsize)
    cuts = zip(
        part,
        around,
        strides,
        strict=True,
    )
    offset = sum((cut.start - whole.start) * step for cut, whole, step in cuts)
    return DeviceArray(
        array.offset + offset,
        shape_of(part),
        array.dtype,
        strides,
    )


def _reversed_strides(
    shape: Block,
    part: Slices,
    around: Slices,
    reversed_dims: Sequence[int],
) -> tuple[Block, int]:
    """Return the strides of a part of a dense array, and its first place, in elements.

    The array holds the part `around`. Some dimensions are read from their last value on.

    >>> _reversed_strides((4, 5), (slice(1, 3), slice(2, 4)), (slice(0, 4), slice(0, 5)), [1])
    ((5, -1), 8)
    """
    strides = list(dense(shape, 1))
    start = 0
    for dim, (cut, whole) in enumerate(zip(part, around, strict=True)):
        is_reversed = dim in reversed_dims
        first = cut.stop - 1 if is_reversed else cut.start
        start += (first - whole.start) * strides[dim]
        if is_reversed:
            strides[dim] *= -1
    return tuple(strides), start


def _mirrored_digits(
    length: int,
    radices: Block,
    part: Slices,
    before: bool,
) -> tuple[Slices, int]:
    """Return the part of the digits of a tile that are mirror images, and the end of stored ones.

    Indices from 0 to N/2 are stored, and an image N - n is made of a stored n. After a round the
    last digit goes up to half of its radix.
    """
    if before:
        return part, (length + 1) // 2
    cut = part[-1]
    halved_cut = slice(max(cut.start, 1), min(cut.stop, (radices[-1] + 1) // 2))
    return (*part[:-1], halved_cut), length // 2 + 1


class _Pass:
    """Properties shared by all tiles of a pass.

    Parameters
    ----------
    tiles : BlockTiles
        A block.
    number : int
        Number of the pass.
    program : Program
        Program of the pass.
    steps : sequence of SplitStep
        Steps of the round, of which the pass has some digits.
    first_dims : tuple of int
        First dimension of the tile for each dimension of the block.
    """

    def __init__(
        self,
        tiles: BlockTiles,
        number: int,
        program: Program,
        steps: Sequence[SplitStep],
        first_dims: Block,
    ) -> None:
        job = tiles.job
        plan = tiles.plan
        self.tile_pass = plan.passes[number]
        self.program = program
        self.firsts = first_dims
        self.operations = for_device(
            program,
            self.tile_pass.order if self.tile_pass.reorders else (),
            joins=tiles.joins,
        )
        self.cuts = _cuts(self.tile_pass)
        self.window = job.window if number == len(plan.passes) - 1 else None
        #: Steps whose first digit is transformed, and steps whose last digit is transformed.
        self.begun = [steps[i] for i, j in self.tile_pass.steps if j == 0]
        self.ended = [steps[i] for i, j in self.tile_pass.steps if j == steps[i].last_number]
        self.offsets = list(itertools.accumulate(self.tile_pass.places, initial=0))
        #: Windows that the tiles store, by dimension of the host block.
        self.windows: dict[int, StoredWindow] = {}
        if tiles.crops and number == len(plan.passes) - 1:
            for window in job.round.windows:
                stored_dim = self.tile_pass.order.index(first_dims[window.dim])
                self.windows[stored_dim] = window

    def last_twiddle(self, split_step: SplitStep) -> Twiddle | None:
        """Return the twiddle that follows a step of the round."""
        dims = range(split_step.first_dim, split_step.first_dim + len(split_step.lengths))
        for factor in self.program.factors:
            if not isinstance(factor, Twiddle) or factor.modulus != split_step.step.twiddle:
                continue
            if factor.own[0].dim in dims:
                return factor
        return None


@lru_cache(maxsize=256)
def _passes(tiles: BlockTiles) -> tuple[_Pass, ...]:
    round_ = tiles.job.round.without_windows
    plan = tiles.plan
    first_dims = first_tile_dims(round_, plan.digits)
    steps = split_steps(round_, plan.digits, first_dims)
    programs = programs_of(round_, plan.digits, tuple(tile_pass.steps for tile_pass in plan.passes))
    passes: list[_Pass] = []
    for number, program in enumerate(programs):
        passes.append(
            _Pass(
                tiles,
                number,
                program,
                steps,
                first_dims,
            )
        )
    return tuple(passes)


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
        self.tile_pass = common.tile_pass
        self.round = tiles.job.round
        self.block = tiles.job.block
        self.dtype = tiles.job.dtype
        self.part = tuple(itertools.starmap(slice, box))
        #: Position of the tile in the array, along each dimension of the tile.
        self.origin = self._origin(box)
        #: Mirror images and filters use the last parts of the buffer.
        self.scratch = common.offsets[-2]
        self.filters: list[Filter] = []
        self.filter_places = 0
        self.computations: list[Computation] = []
        self.real = np.empty(0, self.dtype).real.dtype.str
        reads_real = any(split_step.step.kind == "r2c" for split_step in common.begun)
        dtype = self.real if reads_real else self.dtype
        self.now = DeviceArray(0, shape_of(self.part), dtype)
        self.place = 0

    def _origin(self, box: Box) -> Block:
        """Return the position of the tile: its own in the block, and that of the block."""
        origin = [low for low, _ in box]
        for block_dim, first in enumerate(self.round.source.origin(self.block)):
            origin[self.common.firsts[block_dim]] += first
        return tuple(origin)

    def work(self) -> TileWork:
        """Return the description."""
        tile_pass = self.tile_pass
        common = self.common
        source = self.now
        loads, form = self._moves(
            tile_pass.view,
            self.part,
            common.begun,
            before=True,
        )
        for operation in common.operations:
            if isinstance(operation, MemoryPass):
                self._pass_over(operation)
            elif isinstance(operation, tiles_program.Product):
                self._multiply_filter(operation)
            elif isinstance(operation, tiles_program.Transfer):
                shape = self.now.shape
                self._do(Transfer(shape, self.dtype, operation, self.origin))
            else:
                self._fft(operation)
        part: list[slice] = []
        for dim in tile_pass.order:
            is_whole = tile_pass.view[dim] != tile_pass.after[dim]
            part.append(slice(0, tile_pass.after[dim]) if is_whole else self.part[dim])
        shape = tuple(tile_pass.after[dim] for dim in tile_pass.order)
        stores, stored_form = self._moves(
            shape,
            tuple(part),
            common.ended,
            before=False,
        )
        if common.windows:
            stores, stored_form = self._window_stores(shape, tuple(part))
        scratch = (
            DeviceArray(self.scratch, (source.size,), self.dtype) if tile_pass.mirrored else None
        )
        return TileWork(
            form=form,
            loads=loads,
            source=source,
            filters=tuple(self.filters),
            computations=tuple(self.computations),
            result=self.now,
            stored_form=stored_form,
            stores=stores,
            scratch=scratch,
        )

    # --- host blocks with a part of the digits --------------------------------------------------

    def _moves(
        self,
        shape: Block,
        part: Slices,
        steps: list[SplitStep],
        before: bool,
    ) -> tuple[tuple[Move, ...], BlockDigits]:
        """Return the copies of a tile and the digits of the host block.

        Half a spectrum is completed by its mirror image.

        Parameters
        ----------
        shape : tuple of int
            Shape of the host block.
        part : tuple of slice
            Part of it that the tile has.
        steps : list of SplitStep
            Steps that begin with the tile, or that end with it.
        before : bool
            True before the round, False after it.
        """
        plain = BlockDigits.of(shape)
        array = self.now
        mirrored: list[Move] = []
        mirrored_kind = "c2r" if before else "r2c"
        form = plain if before or self.common.window is None else self.common.window
        for split_step in steps:
            step = split_step.step
            digit = step.source if before else step.target
            if len(split_step.lengths) == 1 or not digit.is_partial:
                continue
            radices = split_step.lengths if before else split_step.lengths[::-1]
            form = form.joined(split_step.first_dim, radices, step.length // 2 + 1)
            if step.kind == mirrored_kind:
                mirrored += self._mirrored(
                    split_step,
                    radices,
                    part,
                    before,
                )
        if form is plain:
            return ((part, array),), form
        moves = ((inner, _part_of(array, inner, part)) for inner in form.parts(part))
        return (*moves, *mirrored), form

    def _window_stores(
        self,
        shape: Block,
        part: Slices,
    ) -> tuple[tuple[Move, ...], BlockDigits]:
        """Return the copies of the windows of a tile, and the digits of the host block with them.

        Parameters
        ----------
        shape : tuple of int
            Shape of the host block without windows.
        part : tuple of slice
            Part of it that the tile has.
        """
        stored_shape = list(shape)
        #: Parts of the tile, and their places in the host block.
        cuts = [(part, part)]
        for dim, window in self.common.windows.items():
            stored_shape[dim] = window.count
            new_cuts: list[tuple[Slices, Slices]] = []
            for own, stored in cuts:
                for source, target, _ in window.cuts:
                    new_own = (*own[:dim], source, *own[dim + 1 :])
                    new_cuts.append((new_own, (*stored[:dim], target, *stored[dim + 1 :])))
            cuts = new_cuts
        moves = tuple((stored, _part_of(self.now, own, part)) for own, stored in cuts)
        return moves, BlockDigits.of(tuple(stored_shape))

    def _mirrored(
        self,
        split_step: SplitStep,
        radices: Block,
        part: Slices,
        before: bool,
    ) -> Iterator[Move]:
        """Yield the copies that complete half a spectrum through scratch memory.

        Each copy moves the stored part of a mirror image between host and scratch memory. A
        computation turns it around and conjugates it, from scratch memory into the tile (`before`
        the round) or back.
        """
        first = split_step.first_dim
        end = first + len(radices)
        own_part, stored_end = _mirrored_digits(
            split_step.step.length,
            radices,
            part[first:end],
            before,
        )
        twiddles = () if before else self._turned_back(split_step)
        stored_origin = tuple(self.origin[dim] for dim in self.tile_pass.order)
        tile = self.now
        itemsize = np.dtype(self.dtype).itemsize
        scratch_size = 0
        copies: list[Strided] = []
        for box, image_starts, image_steps in mirror_boxes(radices, stored_end):
            own = cut_box(box, own_part)
            if not own:
                continue
            image = image_of(box, own, image_starts, image_steps)
            image_part = (*part[:first], *image, *part[end:])
            shape = shape_of(image_part)
            offset = self.scratch + scratch_size * itemsize
            yield image_part, DeviceArray(offset, shape, self.dtype)
            strides, start = _reversed_strides(
                tile.shape,
                (*part[:first], *own, *part[end:]),
                part,
                [first + digit for digit, step in enumerate(image_steps) if step < 0],
            )
            by = Multiply(
                shape,
                self.dtype,
                conjugate=True,
                factors=twiddles,
                origin=stored_origin if twiddles else (),
            )
            into_tile = Strided(
                shape,
                dense(shape, 1),
                scratch_size,
                strides,
                start,
                self.dtype,
                by,
            )
            copies.append(into_tile if before else into_tile.backwards())
            scratch_size += math.prod(shape)
        scratch = DeviceArray(self.scratch, (scratch_size,), self.dtype)
        source = scratch if before else tile
        target = tile if before else scratch
        self.computations += [Computation(copy, source, target) for copy in copies]

    # --- operations -------------------------------------------------------------------------------

    def _do(self, op: Compute, shape: Block | None = None, dtype: str | None = None) -> None:
        """Add an operation in place, or into the other buffer if the result has a shape."""
        source = self.now
        if shape is not None:
            self.place = 1 - self.place
            self.now = DeviceArray(self.common.offsets[self.place], shape, dtype or source.dtype)
        self.computations.append(Computation(op, source, self.now))

    def _pass_over(self, memory_pass: MemoryPass) -> None:
        """Apply scale, conjugation and factors, and transpose to the order of storage."""
        shape = self.now.shape
        order = memory_pass.order
        multiply = Multiply(
            shape,
            self.dtype,
            memory_pass.scale,
            memory_pass.conjugate,
            memory_pass.factors,
            self.origin if memory_pass.factors else (),
        )
        if not order:
            self._do(multiply)
            return
        changes_values = memory_pass != MemoryPass(order=order)
        by = multiply if changes_values else None
        op = transposed(
            shape,
            order,
            self.now.dtype,
            by,
        )
        self._do(op, tuple(shape[dim] for dim in order))

    def _fft(self, fft: tiles_program.FFT) -> None:
        """Transform in place, or from or to real values in the other buffer."""
        before = self.now.shape
        if fft.kind == "c2c":
            self._do(
                FFT(
                    "c2c",
                    before,
                    before,
                    fft.dims,
                    fft.sign,
                    self.dtype,
                )
            )
            return
        dim = fft.dims[-1]
        length = fft.lengths[-1]
        dtype = self.real
        if fft.kind == "r2c":
            length = half(length)
            dtype = self.dtype
        after = (*before[:dim], length, *before[dim + 1 :])
        self._do(
            FFT(
                fft.kind,
                before,
                after,
                fft.dims,
                fft.sign,
                self.dtype,
            ),
            after,
            dtype,
        )

    def _multiply_filter(self, product: tiles_program.Product) -> None:
        """Multiply by the spectrum of the chirp of Bluestein's algorithm."""
        digits = product.lengths
        begin = product.dim
        end = begin + len(digits)
        other_shape = self.round.source.axes[product.axis].shape(self.block[product.axis])[:-1]
        shape = self.now.shape
        dims = range(product.first, end)
        # The index of the spectrum has the digits from the last to the first.
        order = (*range(begin), *reversed(range(begin, end)), *range(end, len(shape)))
        own_shape = tuple(n if d in dims else 1 for d, n in enumerate(shape))
        array = self._filter_place(tuple(own_shape[d] for d in order))
        part = tuple(self.part[d] for d in order if d in dims)
        self.filters.append(
            Filter(
                product.operand,
                (*other_shape, *digits[::-1]),
                part,
                array,
            )
        )
        if len(digits) > 1:
            reversed_array = array
            array = self._filter_place(own_shape)
            op = transposed(reversed_array.shape, order, self.dtype)
            self.computations.append(Computation(op, reversed_array, array))
        op_product = Product(shape, own_shape, self.dtype)
        self.computations.append(Computation(op_product, array, self.now))

    def _filter_place(self, shape: Block) -> DeviceArray:
        """Return the next part for a filter, from the end of the buffer on."""
        self.filter_places += 1
        return DeviceArray(self.common.offsets[-1 - self.filter_places], shape, self.dtype)

    def _turned_back(self, split_step: SplitStep) -> tuple[Twiddle, ...]:
        """Return the factors for the mirror image of values multiplied by the step's twiddle.

        Of N values, conj(X[k] w^(k r)) times w^(N r) is conj(X[k]) w^((N - k) r).
        """
        twiddle = self.common.last_twiddle(split_step)
        if twiddle is None:
            return ()
        stored_dim = self.tile_pass.order.index
        others = tuple(replace(term, dim=stored_dim(term.dim)) for term in twiddle.others)
        own = constant_index(split_step.step.length)
        return (
            replace(
                twiddle,
                own=own,
                others=others,
                divisor=ONE,
            ),
        )
