"""One round on one block on the CPU: the loop over tiles, and the program on a tile.

::

    for tile in executor.take():               part of the block that fits a core's cache
        result = executor.transform(tile)      in place, in the result, or in new memory
        executor.store(result)                 no copy if it is in the result already

The operations on a tile are those of the round's program (`tiles.program`). `CPUProgram` lowers it
to library calls, which are the same for all blocks and tiles. Factors and products depend on the
place of a block: `bound` gives their tables. The digit of a step is the last group of its axis. A
row of a tile therefore has one value of the axis' other digits, which determines the factors of the
row.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from dask_bigfft.arrays import Array, Block
from dask_bigfft.errors import KernelError
from dask_bigfft.events import measured
from dask_bigfft.kernels.copies import copy_array
from dask_bigfft.kernels.libraries import Call, FFTLibrary, same_memory
from dask_bigfft.kernels.twiddle import factor, multiply_chirp, twiddle
from dask_bigfft.kernels.views import BlockView, intervals
from dask_bigfft.memory import allocate
from dask_bigfft.tiles.program import (
    FFT,
    ONE,
    ChirpFactor,
    Index,
    Product,
    Program,
    Twiddle,
    axis_terms,
    program_of,
)
from dask_bigfft.transforms.layout import AxisLayout, Layout, half, tiling
from dask_bigfft.transforms.rounds import Round
from dask_bigfft.transforms.steps import Divisor

Rolls = tuple[tuple[int, int], ...]


# --- the program of a round ---------------------------------------------------------------------


@dataclass(frozen=True)
class LibraryFFT:
    """Call of an FFT library, and the division that remains after it."""

    call: Call
    divisor: Divisor

    @staticmethod
    def of(fft: FFT) -> "LibraryFFT":
        """Return the call for an operation."""
        scale, divisor = fft.by_library
        return LibraryFFT(Call(fft.kind, fft.dims, fft.sign, scale, fft.lengths[-1]), divisor)


@dataclass(frozen=True)
class BoundFactor:
    """Factor or product of a program, for one block.

    Parameters
    ----------
    operation : Twiddle, ChirpFactor or Product
        The operation.
    table : ndarray
        Over the other digits of the axis: their index; for a product the spectrum, which has the
        transformed digit as its last dimension.
    first : int
        Dimension of the block of the table's first dimension.
    dim : int
        Dimension of the block that has the transformed digit, behind those of the table.
    """

    operation: Twiddle | ChirpFactor | Product
    table: Array
    first: int
    dim: int

    def within(self, dim: int, part: slice) -> "BoundFactor":
        """Return the operation for a tile cut along one of the block's dimensions."""
        if not self.first <= dim < self.dim:
            return self
        cut = (slice(None),) * (dim - self.first) + (part,)
        return replace(self, table=self.table[cut])


#: Operation of a program on one block.
BoundOperation = LibraryFFT | BoundFactor


@lru_cache(maxsize=256)
def _library_calls(program: Program) -> dict[FFT, LibraryFFT]:
    """Return the library calls of a program."""
    ffts = [operation for operation in program.operations if isinstance(operation, FFT)]
    return {fft: LibraryFFT.of(fft) for fft in ffts}


def bound_operations(
    round_: Round, block: Block, filters: Mapping[int, Array]
) -> list[BoundOperation]:
    """Return the operations of a round's program on one block.

    Parameters
    ----------
    round_, block
        Round, and index of the block.
    filters : mapping of int to ndarray
        Spectrum of the convolution's filter, for the axes that need one.

    Raises
    ------
    KernelError
        If the digit of a step is not the last group of its axis.
    """
    for step in round_.steps:
        if round_.source.axes[step.axis].groups[-1].digits != (step.source,):
            raise KernelError("the digit of a step must be the last group of its axis")
    program = program_of(round_)
    calls = _library_calls(program)
    operations: list[BoundOperation] = []
    for operation in program.operations:
        if isinstance(operation, FFT):
            operations.append(calls[operation])
        elif isinstance(operation, Product):
            shape = round_.source.shape(block)[operation.first : operation.dim]
            spectrum = filters[operation.axis].reshape(*shape, -1)
            operations.append(BoundFactor(operation, spectrum, operation.first, operation.dim))
        else:
            operations += [
                bound_factor(own_factor, round_, block) for own_factor in operation.factors
            ]
    return operations


def bound_factor(operation: Twiddle | ChirpFactor, round_: Round, block: Block) -> BoundFactor:
    """Return a twiddle or a chirp for one block."""
    dim = operation.own[0].dim
    first, lows = _places(round_.source, block, dim)
    shape = round_.source.shape(block)[first:dim]
    return BoundFactor(operation, index_table(operation.others, first, lows, shape), first, dim)


def _places(layout: Layout, block: Block, dim: int) -> tuple[int, tuple[int, ...]]:
    """Return the first dimension of an axis, given its last one, and the first place in each."""
    first = 0
    for axis, number in zip(layout.axes, block, strict=True):
        if dim < first + len(axis.groups):
            return first, tuple(low for low, _ in axis.intervals(number))
        first += len(axis.groups)
    raise KernelError(f"a block has no dimension {dim}")


def index_table(index: Index, first: int, lows: Sequence[int], shape: Sequence[int]) -> Array:
    """Return an index for all places of some dimensions of a block.

    Parameters
    ----------
    index : tuple of Term
        Terms of these dimensions.
    first : int
        The first of the dimensions.
    lows, shape : sequence of int
        First place and number of places of each dimension.
    """
    table = np.zeros((1,) * len(shape), np.int64)
    for term in index:
        at = term.dim - first
        places = np.arange(lows[at], lows[at] + shape[at], dtype=np.int64)
        if term.offset:
            places = (places + term.offset) % term.size
        values = places // term.divisor % term.modulus * term.stride
        table = table + values.reshape([-1 if d == at else 1 for d in range(len(shape))])
    return np.broadcast_to(table, shape)


def axis_index(axis: AxisLayout, block: int, stage: int, skip: int | None = None) -> Array:
    """Return the index of an axis' digits of one stage, for each place of a block as stored.

    Digits of other stages are ignored, and group number `skip` is left out.
    """
    shape = list(axis.shape(block))
    if skip is not None:
        shape[skip] = 1
    lows = [low for low, _ in axis.intervals(block)]
    return index_table(axis_terms(axis, stage, 0, skip), 0, lows, shape).ravel()


# --- one tile -------------------------------------------------------------------------------


def _divide(tile: Array, divisor: Divisor) -> None:
    """Divide a tile in place."""
    if divisor != ONE:
        tile.view(tile.real.dtype)[...] *= factor(divisor, tile.dtype)


def _rows(tile: Array, dim: int) -> Array:
    """Return the view of a contiguous tile as rows, digit and inner dimensions."""
    shape = tile.shape
    rows = tile.reshape(math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]))
    if rows.ctypes.data != tile.ctypes.data:
        raise KernelError("a tile has to be contiguous")
    return rows


def _apply(tile: Array, bound: BoundFactor) -> None:
    """Multiply a contiguous tile by a factor or by a spectrum, in place."""
    rows = _rows(tile, bound.dim)
    operation = bound.operation
    if isinstance(operation, Product):
        batch = rows.reshape(-1, *bound.table.shape, rows.shape[2])
        batch *= bound.table[..., None]
        return
    others = bound.table.ravel()
    scale = factor(operation.divisor, tile.dtype)
    if isinstance(operation, Twiddle):
        with measured("twiddle", tile.nbytes):
            repeated = np.tile(others, len(rows) // max(1, len(others)))
            twiddle(rows, repeated, operation.modulus, operation.sign, scale)
        return
    chirp = operation.chirp
    places = others * chirp.step + chirp.offset
    stride = operation.own[0].stride * chirp.step
    multiply_chirp(rows, places, stride, chirp.length, chirp.sign, scale, chirp.turns)


def _room(tile: Array, call: Call, out: Array) -> Array | None:
    """Return `out` if it has the shape and dtype of a call's result, else None."""
    if call.kind == "c2c":
        return out
    dim = call.dims[-1]
    real = tile.real.dtype
    length = call.length if call.kind == "c2r" else half(tile.shape[dim])
    dtype = real if call.kind == "c2r" else np.result_type(real, np.complex64)
    shape = (*tile.shape[:dim], length, *tile.shape[dim + 1 :])
    return out if out.shape == shape and out.dtype == dtype else None


def transform_tile(
    tile: Array,
    program: Program,
    operations: Sequence[BoundOperation],
    library: FFTLibrary,
    out: Array | None = None,
) -> Array:
    """Return a contiguous tile after all operations of a round.

    The tile may be overwritten. A library with `supports_out` writes the result of the first FFT,
    or of the last one of kind c2r, to `out`. Operations after the first FFT need a contiguous
    `out`.

    Parameters
    ----------
    tile : ndarray
        The tile.
    program : Program
        Program of the round.
    operations : sequence of LibraryFFT or BoundFactor
        Operations of the program on the tile.
    library : FFTLibrary
        FFT library.
    out : ndarray, optional
        The part of the result for the tile.
    """
    if out is not None and (not library.supports_out or np.may_share_memory(tile, out)):
        out = None
    first_out = None
    if out is not None and (program.begins_with_all or program.begins_with_r2c):
        first_out = out if program.is_one_call or out.flags.c_contiguous else None
    for number, operation in enumerate(operations):
        if isinstance(operation, BoundFactor):
            _apply(tile, operation)
            continue
        call = operation.call
        call_out = out if call.kind == "c2r" else None
        if number == 0 and call.kind != "c2r":
            call_out = first_out
        room = None if call_out is None else _room(tile, call, call_out)
        tile = library.run(call, tile, room)
        if call.kind != "c2c":
            tile = np.ascontiguousarray(tile) if room is None else room
        _divide(tile, operation.divisor)
    return tile


# --- the loop -------------------------------------------------------------------------------


class CPUExecutor:
    """Executor of a round on one block, tile by tile, in the calling thread.

    Parameters
    ----------
    round_ : Round
        The round.
    block : tuple of int
        Index of the block.
    source : BlockView
        The block in the round's source layout.
    out : ndarray
        The block after the round.
    library : FFTLibrary
        FFT library.
    filters : mapping of int to ndarray
        Spectrum of the convolution's filter, for the axes that need one.
    cut : (int, int), optional
        Dimension along which tiles are cut, and their maximum width, if the block is shared with
        other executors. The rolls of the round are then omitted.
    """

    #: True if tiles are verified, so that a tile may be repeated.
    checked = False
    #: True if tiles and their results have memory of their own until they are stored.
    apart = False

    def __init__(
        self,
        round_: Round,
        block: Block,
        source: BlockView,
        out: Array,
        library: FFTLibrary,
        filters: Mapping[int, Array],
        cut: tuple[int, int] | None = None,
    ) -> None:
        self.round = round_
        self.block = block
        self.source = source
        self.out = out
        self.library = library
        self.cut = cut
        self.rolls = round_.rolls if cut is None else ()
        self.program = program_of(round_)
        self.operations = bound_operations(round_, block, filters)
        self._choose_way()

    def _choose_way(self) -> None:
        """Choose the tiling, and if the library reads and writes in place."""
        source = self.source
        out = self.out
        program = self.program
        free = not self.rolls and not self.apart  # rolled tiles are stored in two parts
        begins = self.library.supports_out and free
        halved = begins and program.begins_with_r2c
        reads = halved or (begins and (program.begins_with_all or program.is_one_call))
        array = source.array if reads and not source.owned and not self.checked else None
        # Libraries that return new memory have two tiles in cache.
        changes = not halved and (out.shape != source.shape or out.dtype != source.dtype)
        nbytes = max(out.nbytes, math.prod(source.shape) * source.dtype.itemsize)
        dims = set(program.dims)
        self.tiling = self.cut or tiling(source.shape, dims, nbytes, self.library.beside, changes)
        dense = bool(out.flags.c_contiguous)
        if self.tiling is not None:
            dense = dense and math.prod(out.shape[: self.tiling[0]]) == 1
        #: True if the library may write its result in place.
        self.writes = free and (dense or not self.checked)
        is_one_c2c = program.is_one_call and program.begins_with_all
        if not dense and not program.is_one_call:
            array = None  # other steps need contiguous tiles
        elif dense and is_one_c2c and free and not self.checked and out is source.array:
            array = out  # any library does it in place
        #: The block if the library may read it in place, else None.
        self.reads = array
        if array is not None and program.is_one_call and len(dims) == 1 and self.cut is None:
            self.tiling = None

    def take(self, cuts: Iterable[slice] | None = None) -> Iterator[tuple[slice | None, Array]]:
        """Yield the slice and the values of each tile; None stands for the whole block.

        `cuts` are the requested slices, by default all.
        """
        if self.tiling is None:
            yield None, self._gathered() if self.reads is None else self.reads
            return
        dim, width = self.tiling
        if self.reads is None:
            place = None if self.apart else self.out
            yield from self.source.tiles(dim, width, place, cuts)
            return
        n = self.source.shape[dim]
        for part in intervals(n, width) if cuts is None else cuts:
            yield part, self.reads[(slice(None),) * dim + (part,)]

    def _gathered(self) -> Array:
        same = self.out.shape == self.source.shape and self.out.dtype == self.source.dtype
        dense = same and self.out.flags.c_contiguous and not self.apart
        return self.source.gather(self.out if dense else None)

    def place(self, part: slice | None) -> Array:
        """Return the part of the result for a tile."""
        if part is None or self.tiling is None:
            return self.out
        return self.out[(slice(None),) * self.tiling[0] + (part,)]

    def transform(self, tile: Array, part: slice | None) -> Array:
        """Return a tile after the round."""
        operations = self.operations
        if part is not None and self.tiling is not None:
            dim, _ = self.tiling
            operations = [
                operation.within(dim, part) if isinstance(operation, BoundFactor) else operation
                for operation in operations
            ]
        out = self.place(part) if self.writes else None
        return transform_tile(tile, self.program, operations, self.library, out)

    def store(self, result: Array, part: slice | None) -> None:
        """Copy a tile's result to the block's result, unless it is there."""
        _store(self.place(part), result, self.rolls)

    def run(self, cuts: Iterable[slice] | None = None) -> None:
        """Transform and store all tiles, or those of some cuts."""
        for part, tile in self.take(cuts):
            self.store(self.transform(tile, part), part)


def _store(target: Array, result: Array, rolls: Rolls) -> None:
    """Copy a tile to its target, unless it is there already.

    Along a rolled dimension, its first values go behind the others.
    """
    there = same_memory(result, target)
    if there and not rolls:
        return
    if there:
        kept = allocate(result.shape, result.dtype)
        kept[...] = result
        result = kept
    whole: tuple[slice, ...] = (slice(None),) * target.ndim
    parts = [(whole, whole)]
    for dim, first in rolls:
        rest = target.shape[dim] - first
        ends = ((slice(first, None), slice(rest)), (slice(first), slice(rest, None)))
        parts = [
            ((*a[:dim], cut, *a[dim + 1 :]), (*b[:dim], place, *b[dim + 1 :]))
            for a, b in parts
            for cut, place in ends
        ]
    with measured("scatter", target.nbytes):
        for cut, place in parts:
            copy_array(target[place], result[cut])


def roll(values: Array, rolls: Rolls) -> Array:
    """Return a block rolled along some of its dimensions."""
    out = allocate(values.shape, values.dtype)
    _store(out, values, rolls)
    return out


def run_round(
    round_: Round,
    block: Block,
    source: BlockView,
    library: FFTLibrary,
    out_dtype: np.dtype[Any],
    filters: Mapping[int, Array] | None = None,
    executor: Callable[..., CPUExecutor] = CPUExecutor,
) -> Array:
    """Return a block after a round.

    Parameters
    ----------
    round_, block, source, library, filters
        See `CPUExecutor`.
    out_dtype : dtype
        Dtype of the result.
    executor : callable
        Class or factory of the executor.

    Returns
    -------
    ndarray
        The block in the round's target layout.
    """
    if (found := _digits_last(round_)) is not None:  # two more copies, for rounds planned for a GPU
        moved, orders = found
        there, place = list[int](), list[int]()
        for old, new, i, order in zip(
            round_.source.axes, moved.source.axes, block, orders, strict=True
        ):
            first = len(there)
            there += [first + g for g in order]
            chunks = old.chunk_of(i)
            place.append(new.block_of(tuple(chunks[g] for g in order)))
        values = np.ascontiguousarray(source.gather().transpose(there))
        view = BlockView.of(values, owned=True)
        done = run_round(moved, tuple(place), view, library, out_dtype, filters, executor)
        return np.ascontiguousarray(done.transpose(np.argsort(there)))
    out = source.result(round_.target.shape(block), out_dtype)
    if out.size and math.prod(source.shape):
        executor(round_, block, source, out, library, filters or {}).run()
    return out


# --- other orders of digits ------------------------------------------------------------------


@lru_cache(maxsize=256)
def _digits_last(round_: Round) -> tuple[Round, tuple[tuple[int, ...], ...]] | None:
    """Return a round with the group of each step last in its axis, and the orders of groups.

    The result is None if the groups are last already. Only rounds for GPUs may have other orders.
    """
    steps = {step.axis: step.source for step in round_.steps}
    orders = tuple(
        tuple(sorted(range(len(a.groups)), key=lambda g: a.groups[g].digits == (steps.get(i),)))
        for i, a in enumerate(round_.source.axes)
    )
    if all(order == tuple(sorted(order)) for order in orders):
        return None
    layouts = []
    for layout in (round_.source, round_.target):
        pairs = zip(layout.axes, orders, strict=True)
        axes = (AxisLayout(tuple(axis.groups[g] for g in order)) for axis, order in pairs)
        layouts.append(Layout(tuple(axes)))
    return Round(round_.steps, *layouts), orders
