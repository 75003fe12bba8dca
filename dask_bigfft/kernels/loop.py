"""One round on one block on the CPU: the loop over tiles, and the program on a tile.

::

    for tile in executor.take():               part of the block that fits a core's cache
        result = executor.transform(tile)      in place, in the result, or in new memory
        executor.store(result)                 no copy if it is in the result already

The operations on a tile are those of the round's program (`tiles.program`), lowered to library
calls, which are the same for all blocks and tiles. Factors and products depend on the place of a
block: `bound_operations` gives their tables. The digit of a step is the last group of its axis. A
row of a tile therefore has one value of the axis' other digits, which determines the factors of
the row. `tiles.way` decides what is read and written in place.
"""

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from dask_bigfft.arrays import Array, Block
from dask_bigfft.errors import KernelError
from dask_bigfft.events import measured
from dask_bigfft.kernels.copies import copy_array
from dask_bigfft.kernels.indices import PlaceIndex
from dask_bigfft.kernels.libraries import Call, FFTLibrary, same_memory
from dask_bigfft.kernels.transfer import BoundTransfer
from dask_bigfft.kernels.twiddle import factor, multiply_chirp, twiddle
from dask_bigfft.kernels.views import BlockView, intervals
from dask_bigfft.memory import allocate
from dask_bigfft.tiles.program import (
    FFT,
    ONE,
    ChirpFactor,
    Product,
    Program,
    Transfer,
    Twiddle,
    program_of,
)
from dask_bigfft.tiles.way import BlockMemory, Way, WritingFFT, is_apart, way_of
from dask_bigfft.transforms.layout import AxisLayout, Layout, half
from dask_bigfft.transforms.rounds import Round, StoredWindow
from dask_bigfft.transforms.steps import Divisor

#: Windows of a block that are stored after a round.
Windows = tuple[StoredWindow, ...]

Slices = tuple[slice, ...]


# --- the program of a round ---------------------------------------------------------------------


@dataclass(frozen=True)
class LibraryFFT:
    """Call of an FFT library for some lines of a tile, and the division that remains after it."""

    call: Call
    divisor: Divisor
    lines: Windows = ()

    @staticmethod
    def of(fft: FFT) -> "LibraryFFT":
        """Return the call for an operation."""
        scale, divisor = fft.by_library
        return LibraryFFT(
            Call(
                fft.kind,
                fft.dims,
                fft.sign,
                scale,
                fft.lengths[-1],
            ),
            divisor,
            fft.lines,
        )


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


#: What a round multiplies by, by number among the operands of its plan: spectra of Bluestein
#: filters, or the transfer function of an operator.
Filters = Mapping[int, Any]

#: Operation of a program on one block.
BoundOperation = LibraryFFT | BoundFactor | BoundTransfer


@lru_cache(maxsize=256)
def _library_calls(program: Program) -> dict[FFT, LibraryFFT]:
    """Return the library calls of a program."""
    ffts = [operation for operation in program.operations if isinstance(operation, FFT)]
    return {fft: LibraryFFT.of(fft) for fft in ffts}


def bound_operations(round_: Round, block: Block, filters: Filters) -> list[BoundOperation]:
    """Return the operations of a round's program on one block.

    Parameters
    ----------
    round_, block
        Round, and index of the block.
    filters : mapping
        What the round multiplies by, see `Filters`.

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
        elif isinstance(operation, Transfer):
            origin = round_.source.origin(block)
            operations.append(BoundTransfer(operation, filters[operation.operand], origin))
        elif isinstance(operation, Product):
            shape = round_.source.shape(block)[operation.first : operation.dim]
            spectrum = filters[operation.operand].reshape(*shape, -1)
            operations.append(
                BoundFactor(
                    operation,
                    spectrum,
                    operation.first,
                    operation.dim,
                )
            )
        else:
            operations += [
                bound_factor(own_factor, round_, block) for own_factor in operation.factors
            ]
    return operations


def bound_factor(operation: Twiddle | ChirpFactor, round_: Round, block: Block) -> BoundFactor:
    """Return a twiddle or a chirp for one block, whose digit is the last group of its axis."""
    dim = operation.own[0].dim
    first_dims = round_.source.first_dims
    axis = bisect_right(first_dims, dim) - 1
    first_dim = first_dims[axis]
    layout = round_.source.axes[axis]
    other_count = dim - first_dim
    others = PlaceIndex(
        operation.others,
        first_dim,
        origin=layout.origin(block[axis])[:other_count],
        shape=layout.shape(block[axis])[:other_count],
    )
    return BoundFactor(
        operation,
        others.table(),
        first_dim,
        dim,
    )


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
            twiddle(
                rows,
                repeated,
                operation.modulus,
                operation.sign,
                scale,
            )
        return
    chirp = operation.chirp
    places = others * chirp.step + chirp.offset
    stride = operation.own[0].stride * chirp.step
    multiply_chirp(
        rows,
        places,
        stride,
        chirp.length,
        chirp.sign,
        scale,
        chirp.turns,
    )


def _fitting(out: Array, tile: Array, call: Call) -> Array | None:
    """Return `out` if it has the shape and dtype of a call's result, else None.

    For complex FFTs the caller has made it alike to the tile.
    """
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
    operations: Sequence[BoundOperation],
    library: FFTLibrary,
    out: Array | None = None,
    writing_fft: WritingFFT = "none",
) -> Array:
    """Return a contiguous tile after all operations of a round.

    The tile may be overwritten.

    Parameters
    ----------
    tile : ndarray
        The tile.
    operations : sequence of LibraryFFT, BoundFactor or BoundTransfer
        Operations of the program on the tile.
    library : FFTLibrary
        FFT library.
    out : ndarray, optional
        The part of the result for the tile.
    writing_fft : {"none", "first", "last"}
        The operation that writes to `out` by the library, see `Way`.
    """
    writer = {"none": -1, "first": 0, "last": len(operations) - 1}[writing_fft]
    if out is None or np.may_share_memory(tile, out):
        writer = -1
    for number, operation in enumerate(operations):
        if isinstance(operation, BoundTransfer):
            operation.apply(tile)
        elif isinstance(operation, BoundFactor):
            _apply(tile, operation)
        elif operation.lines:
            for part in _window_parts(tile.ndim, operation.lines):
                library.run(operation.call, tile[part.source])
            _divide(tile, operation.divisor)
        else:
            tile = _transform(tile, operation, library, out if number == writer else None)
    return tile


def _transform(
    tile: Array,
    fft: LibraryFFT,
    library: FFTLibrary,
    out: Array | None,
) -> Array:
    """Return a tile after FFTs of all lines, contiguous; it is in `out` if that fits."""
    call = fft.call
    fitting_out = None if out is None else _fitting(out, tile, call)
    transformed = library.run(call, tile, fitting_out)
    if call.kind != "c2c":
        transformed = np.ascontiguousarray(transformed) if fitting_out is None else fitting_out
    _divide(transformed, fft.divisor)
    return transformed


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
    filters : mapping
        What the round multiplies by, see `Filters`.
    cut : (int, int), optional
        Dimension along which tiles are cut, and their maximum width, if the block is shared with
        other executors.
    """

    #: True if tiles are verified, so that a tile may be repeated.
    checked = False

    def __init__(
        self,
        round_: Round,
        block: Block,
        source: BlockView,
        out: Array,
        library: FFTLibrary,
        filters: Filters,
        cut: tuple[int, int] | None = None,
    ) -> None:
        self.round = round_
        self.block = block
        self.source = source
        self.out = out
        self.library = library
        self.cut = cut
        # Sums of a tile are checked over all of its lines.
        computed_round = round_.without_windows if self.checked else round_
        self.program = program_of(computed_round)
        self.operations = bound_operations(computed_round, block, filters)
        self.way = self._way()

    def _way(self) -> Way:
        """Return the tiles of the block, and which copies are avoided."""
        source = self.source
        out = self.out
        if source.array is None:
            kind: Literal["array", "owned", "shards"] = "shards"
        else:
            kind = "owned" if source.owned else "array"
        keeps_form = out.shape == source.shape and out.dtype == source.dtype
        if self.program.changes_type:
            keeps_form = False
        memory = BlockMemory(
            shape=source.shape,
            result_shape=out.shape,
            result_strides=tuple(stride // out.itemsize for stride in out.strides),
            nbytes=max(out.nbytes, math.prod(source.shape) * source.dtype.itemsize),
            keeps_form=keeps_form,
            source=kind,
            is_overwritten=out is source.array,
        )
        overwrites = source.array is not None and np.may_share_memory(source.array, out)
        return way_of(
            self.program,
            memory,
            threads=self.library.beside,
            supports_out=self.library.supports_out,
            has_windows=bool(self.round.windows),
            checked=self.checked,
            apart=is_apart(self.checked, overwrites, self.round.keeps_energy),
            cut=self.cut,
        )

    def take(self, cuts: Iterable[slice] | None = None) -> Iterator[tuple[slice | None, Array]]:
        """Yield the slice and the values of each tile; None stands for the whole block.

        `cuts` are the requested slices, by default all.
        """
        source = self.source
        if self.way.tiling is None:
            if self.way.reads_in_place:
                assert source.array is not None
                yield None, source.array
            else:
                yield None, source.gather(self.out if self.way.fills_result else None)
            return
        dim, width = self.way.tiling
        if not self.way.reads_in_place:
            yield from source.tiles(
                dim,
                width,
                None if self.way.apart else self.out,
                cuts,
            )
            return
        assert source.array is not None
        for part in intervals(source.shape[dim], width) if cuts is None else cuts:
            yield part, source.array[(slice(None),) * dim + (part,)]

    def place(self, part: slice | None) -> Array:
        """Return the part of the result for a tile."""
        if part is None or self.way.tiling is None:
            return self.out
        return self.out[(slice(None),) * self.way.tiling[0] + (part,)]

    def operations_of(self, part: slice | None) -> list[BoundOperation]:
        """Return the operations on a tile."""
        if part is None or self.way.tiling is None:
            return self.operations
        dim, _ = self.way.tiling
        return [
            operation if isinstance(operation, LibraryFFT) else operation.within(dim, part)
            for operation in self.operations
        ]

    def transform(self, tile: Array, part: slice | None) -> Array:
        """Return a tile after the round."""
        return transform_tile(
            tile,
            self.operations_of(part),
            self.library,
            out=self.place(part),
            writing_fft=self.way.writing_fft,
        )

    def store(self, result: Array, part: slice | None) -> None:
        """Copy a tile's result to the block's result, unless it is there."""
        _store(self.place(part), result, self.round.windows)

    def run(self, cuts: Iterable[slice] | None = None) -> None:
        """Transform and store all tiles, or those of some cuts."""
        for part, tile in self.take(cuts):
            self.store(self.transform(tile, part), part)


def _store(target: Array, result: Array, windows: Windows) -> None:
    """Copy a tile, or windows of some of its dimensions, to its target unless it is there."""
    is_in_target = same_memory(result, target)
    if is_in_target and not windows:
        return
    if is_in_target:
        copy = allocate(result.shape, result.dtype)
        copy[...] = result
        result = copy
    with measured("scatter", target.nbytes):
        for part in _window_parts(target.ndim, windows):
            if part.is_added:
                target[part.target] += result[part.source]
            else:
                copy_array(target[part.target], result[part.source])


class _WindowPart(NamedTuple):
    """Part of an array that belongs to windows of it."""

    #: The part, and its place in the windows.
    source: Slices
    target: Slices
    #: True if it is added to the values there.
    is_added: bool


def _window_parts(ndim: int, windows: Windows) -> list[_WindowPart]:
    """Return the parts of an array that make cyclic windows of it; those that are added come last.

    >>> parts = _window_parts(1, (StoredWindow(0, first=3, count=4, size=5),))
    >>> [(*part.source, *part.target) for part in parts]
    [(slice(3, 5, None), slice(0, 2, None)), (slice(0, 2, None), slice(2, 4, None))]
    """
    whole: Slices = (slice(None),) * ndim
    parts = [_WindowPart(whole, whole, False)]
    for window in windows:
        dim = window.dim
        cut_parts: list[_WindowPart] = []
        for part in parts:
            for source_cut, target_cut, is_added in window.cuts:
                cut_parts.append(
                    _WindowPart(
                        (*part.source[:dim], source_cut, *part.source[dim + 1 :]),
                        (*part.target[:dim], target_cut, *part.target[dim + 1 :]),
                        part.is_added or is_added,
                    )
                )
        parts = cut_parts
    return sorted(parts, key=lambda part: part.is_added)


def in_windows(values: Array, windows: Windows) -> Array:
    """Return windows of some dimensions of a block."""
    shape = list(values.shape)
    for window in windows:
        shape[window.dim] = window.count
    out = allocate(tuple(shape), values.dtype)
    _store(out, values, windows)
    return out


def run_round(
    round_: Round,
    block: Block,
    source: BlockView,
    library: FFTLibrary,
    out_dtype: np.dtype[Any],
    filters: Filters | None = None,
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
    moved = _digits_last(round_)
    if moved is not None:
        # Two more copies, for rounds planned for a GPU.
        values = np.ascontiguousarray(source.gather().transpose(moved.dims))
        moved_result = run_round(
            moved.round_,
            moved.block(round_, block),
            BlockView.of(values, owned=True),
            library,
            out_dtype,
            filters,
            executor,
        )
        return np.ascontiguousarray(moved_result.transpose(np.argsort(moved.dims)))
    out = source.result(round_.target.shape(block), out_dtype, library.threads)
    if out.size and math.prod(source.shape):
        executor(
            round_,
            block,
            source,
            out,
            library,
            filters or {},
        ).run()
    return out


# --- other orders of digits ------------------------------------------------------------------


@dataclass(frozen=True)
class _MovedRound:
    """A round with the group of each step last in its axis.

    Parameters
    ----------
    round_ : Round
        The round after the groups have moved.
    orders : tuple of tuple of int
        For each axis, the original numbers of its groups in their new order.
    """

    round_: Round
    orders: tuple[tuple[int, ...], ...]

    @cached_property
    def dims(self) -> tuple[int, ...]:
        """Original dimensions of a block in their new order."""
        dims: list[int] = []
        for order in self.orders:
            first = len(dims)
            dims += [first + group for group in order]
        return tuple(dims)

    def block(self, original: Round, block: Block) -> Block:
        """Return the index of a block, given its index in the original round."""
        numbers: list[int] = []
        for axis, original_axis, number, order in zip(
            self.round_.source.axes,
            original.source.axes,
            block,
            self.orders,
            strict=True,
        ):
            chunks = original_axis.chunk_of(number)
            numbers.append(axis.block_of(tuple(chunks[group] for group in order)))
        return tuple(numbers)


@lru_cache(maxsize=256)
def _digits_last(round_: Round) -> _MovedRound | None:
    """Return a round with the group of each step last in its axis.

    The result is None if the groups are last already. Only rounds for GPUs may have other orders.
    """
    digits = {step.axis: step.source for step in round_.steps}
    orders: list[tuple[int, ...]] = []
    for number, axis in enumerate(round_.source.axes):
        groups = range(len(axis.groups))
        own = [group for group in groups if axis.groups[group].digits == (digits.get(number),)]
        others = [group for group in groups if group not in own]
        orders.append((*others, *own))
    if all(order == tuple(range(len(order))) for order in orders):
        return None
    source = _reordered(round_.source, orders)
    target = _reordered(round_.target, orders)
    return _MovedRound(replace(round_, source=source, target=target), tuple(orders))


def _reordered(layout: Layout, orders: Sequence[tuple[int, ...]]) -> Layout:
    """Return a layout with the groups of each axis in another order."""
    axes: list[AxisLayout] = []
    for axis, order in zip(layout.axes, orders, strict=True):
        axes.append(AxisLayout(tuple(axis.groups[group] for group in order)))
    return Layout(tuple(axes))
