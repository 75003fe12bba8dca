"""One round on one block on the CPU: the loop over tiles, and the steps on a tile.

::

    for tile in executor.take():               part of the block that fits a core's cache
        result = executor.transform(tile)      in place, in the result, or in new memory
        executor.store(result)                 no copy if it is in the result already

On a tile::

    r2c -> [chirp] -> c2c over all digits -> [filter, c2c back] -> [twiddle] -> [chirp] -> c2r

`Calls` are the FFTs, which are the same for all blocks and tiles of a round. Steps in brackets
depend on the place of a block: a `Work` is one such step with its tables. The digit of a step is
the last group of its axis. A row of a tile therefore has one value of the axis' other digits, which
determines the factors of the row.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import mul
from typing import Any

import numpy as np

from dask_bigfft.arrays import Array, Block
from dask_bigfft.decomposition.layout import AxisLayout, Layout, tiling
from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.decomposition.steps import Divisor, Step
from dask_bigfft.errors import KernelError
from dask_bigfft.events import measured
from dask_bigfft.kernels.copies import copy_array
from dask_bigfft.kernels.libraries import Call, FFTLibrary, Scale, same_memory
from dask_bigfft.kernels.twiddle import factor, index_of_places, multiply_chirp, twiddle
from dask_bigfft.kernels.views import BlockView, intervals
from dask_bigfft.memory import allocate

Rolls = tuple[tuple[int, int], ...]
_Pair = tuple[Step, int]


def _by_library(divisor: Divisor, n: int) -> tuple[Scale, Divisor]:
    """Return the scale that an FFT of n points applies itself, and the division that remains."""
    if divisor == Divisor(n) and n > 1:
        return "full", Divisor()
    if divisor == Divisor(1, n) and n > 1:
        return "ortho", Divisor()
    return "none", divisor


# --- the round ------------------------------------------------------------------------------


#: One call of the library, and a division after it.
Divided = tuple[Call, Divisor | None]


class Calls:
    """Library calls of a round for each tile in order, and their properties.

    Raises
    ------
    KernelError
        If the digit of a step is not the last group of its axis.
    """

    def __init__(self, round_: Round) -> None:
        steps = round_.steps
        for step in steps:
            if round_.source.axes[step.axis].groups[-1].digits != (step.source,):
                raise KernelError("the digit of a step must be the last group of its axis")
        #: The dimension of every step's digit.
        self.dims = tuple(round_.dim(step) for step in steps)
        pairs = list(zip(steps, self.dims, strict=True))
        by_sign: dict[int, list[_Pair]] = {}
        for step, dim in pairs:
            if step.kind == "c2c":
                by_sign.setdefault(step.sign, []).append((step, dim))
        real = [pair for pair in pairs if pair[0].kind == "r2c"]
        #: FFTs of real values, of complex values, and with real results.
        self.r2c = tuple(_call([*_with(pair, by_sign), pair]) for pair in real)
        self.c2c = tuple(_call(batch) for batch in by_sign.values())
        self.c2r = tuple(_call([pair]) for pair in pairs if pair[0].kind == "c2r")
        #: True if the first operation is one library call for all axes.
        self.begins_with_ffts = round_.begins_with_ffts
        #: True if the first operation is one FFT of real values.
        self.begins_with_r2c = len(real) == 1
        #: True if one call of any kind is the whole round.
        self.one_call = round_.is_one_call


calls_of = lru_cache(maxsize=256)(Calls)


def _with(real: _Pair, by_sign: dict[int, list[_Pair]]) -> list[_Pair]:
    """Remove and return the complex steps that share a call with a step of real values."""
    sign = real[0].sign
    if any(step.chirp_in is not None for step, _ in by_sign.get(sign, [])):
        return []
    return by_sign.pop(sign, [])


def _call(batch: Sequence[_Pair]) -> Divided:
    """Return one call for steps of one sign, with the dimensions of their digits.

    A real step comes last, and determines the kind of the call.
    """
    last, n = batch[-1][0], math.prod(step.length for step, _ in batch)
    scale, left = _by_library(reduce(mul, (_divisor(step) for step, _ in batch)), n)
    dims = tuple(dim for _, dim in batch)
    rest = None if left == Divisor() else left
    return Call(last.kind, dims, last.sign, scale, last.length), rest


def _divisor(step: Step) -> Divisor:
    """Return the divisor of an FFT, which is 1 if a chirp or a twiddle divides."""
    free = step.chirp_out is not None or step.twiddle is not None
    return Divisor() if free else step.divisor


# --- one block ------------------------------------------------------------------------------


def axis_index(axis: AxisLayout, block: int, stage: int, skip: int | None = None) -> Array:
    """Return the index of an axis' digits of one stage, for each place of a block as stored.

    Digits of other stages are ignored, and group number `skip` is left out.
    """
    index = np.zeros(1, np.int64)
    groups = zip(axis.groups, axis.intervals(block), axis.shape(block), strict=True)
    for g, (group, (low, _), size) in enumerate(groups):
        if g == skip:
            continue
        place = np.arange(low, low + size, dtype=np.int64)
        if group.offset:
            place = (place + group.offset) % group.size
        index = np.add.outer(index, index_of_places(group.digits, place, stage)).ravel()
    return index


@dataclass(frozen=True)
class Factors:
    """Table over an axis' other digits with an entry (or row of entries) for each value.

    ``shape`` are the dimensions of these digits, ``first`` the block's dimension of the first.
    """

    table: Array
    shape: tuple[int, ...]
    first: int

    def within(self, dim: int, part: slice) -> "Factors":
        """Return the part of the table for a tile cut along one of the block's dimensions."""
        if not self.first <= dim < self.first + len(self.shape):
            return self
        inner = self.table.shape[1:]
        cut = (slice(None),) * (dim - self.first) + (part,)
        kept = self.table.reshape(*self.shape, *inner)[cut]
        return Factors(kept.reshape(-1, *inner), kept.shape[: len(self.shape)], self.first)

    def rows(self, count: int) -> Array:
        """Return entries for `count` rows of a tile by repeating the table."""
        repeats = (count // max(1, len(self.table)),) + (1,) * (self.table.ndim - 1)
        return np.tile(self.table, repeats)


@dataclass(frozen=True)
class Work:
    """Step that is more than an FFT, for one block.

    It has a dimension and tables over its axis' other digits. These are for the chirps "in" and
    "out", the "twiddle" and the "spectrum" of a filter, if the step uses them.
    """

    step: Step
    dim: int
    tables: Mapping[str, Factors]

    def within(self, dim: int, part: slice) -> "Work":
        """Return the step for a tile cut along a dimension."""
        tables = {name: table.within(dim, part) for name, table in self.tables.items()}
        return Work(self.step, self.dim, tables)


def works_of(round_: Round, block: tuple[int, ...], filters: Mapping[int, Array]) -> list[Work]:
    """Return the steps of a round that are more than FFTs, for one block.

    Parameters
    ----------
    round_, block
        Round, and index of the block.
    filters : mapping of int to ndarray
        Spectrum of the convolution's filter, for the axes that need one.
    """
    found = []
    for step, dim in zip(round_.steps, calls_of(round_).dims, strict=True):
        if not step.factors:  # the same for all tiles
            continue
        before, after = round_.source.axes[step.axis], round_.target.axes[step.axis]
        last, i, made = len(before.groups) - 1, block[step.axis], dict[str, Array]()
        if step.convolve is not None:
            made["spectrum"] = filters[step.axis].reshape(-1, step.length)
        if step.chirp_in is not None:
            made["in"] = axis_index(before, i, step.source.stage, last)
        if step.twiddle is not None:
            made["twiddle"] = axis_index(after, i, step.target.stage - 1, last)
        if step.chirp_out is not None:
            made["out"] = axis_index(after, i, step.target.stage, last)
        place = (before.shape(i)[:last], dim - last)
        found.append(Work(step, dim, {name: Factors(t, *place) for name, t in made.items()}))
    return found


# --- one tile -------------------------------------------------------------------------------


def _divide(tile: Array, divisor: Divisor | None) -> None:
    """Divide in place unless the divisor is None."""
    if divisor is not None:
        tile.view(tile.real.dtype)[...] *= factor(divisor, tile.dtype)


def _rows(tile: Array, dim: int) -> Array:
    """Return the view of a contiguous tile as rows, digit and inner dimensions."""
    shape = tile.shape
    rows = tile.reshape(math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]))
    if rows.ctypes.data != tile.ctypes.data:
        raise KernelError("a tile has to be contiguous")
    return rows


def _multiply_chirp(tile: Array, work: Work, name: str) -> None:
    """Multiply by the chirp "in" or "out" of a step, if it has one; "out" includes the divisor."""
    step, divisor = work.step, Divisor()
    chirp, stride = step.chirp_in, step.source.stride
    if name == "out":
        chirp, stride, divisor = step.chirp_out, step.target.stride, step.divisor
    if chirp is None or step.kind != "c2c":
        return
    rows, scale = _rows(tile, work.dim), factor(divisor, tile.dtype)
    places = work.tables[name].table * chirp.step + chirp.offset
    along = stride * chirp.step
    multiply_chirp(rows, places, along, chirp.length, chirp.sign, scale, chirp.turns)


def _multiply(tile: Array, work: Work, library: FFTLibrary) -> Array:
    """Return the tile after the filter with its inverse FFT, and the twiddles, if any."""
    step, sign = work.step, work.step.sign
    if step.convolve is not None:
        rows, table = _rows(tile, work.dim), work.tables["spectrum"].table
        batch = rows.reshape(-1, *table.shape, rows.shape[2])
        batch *= table[:, :, None]
        tile = library.c2c(tile, (work.dim,), -sign)
        sign = -sign
    if step.twiddle is not None:
        rows = _rows(tile, work.dim)
        scale = factor(step.divisor, tile.dtype)
        with measured("twiddle", tile.nbytes):
            index = work.tables["twiddle"].rows(len(rows))
            twiddle(rows, index, step.twiddle, sign, scale)
    return tile


def _room(tile: Array, call: Call, out: Array | None, dense: bool) -> Array | None:
    """Return `out` if a call of a real kind can write its result there, else None.

    It must have the shape and dtype of the result, and be contiguous if `dense`.
    """
    if out is None or (dense and not out.flags.c_contiguous):
        return None
    dim, real = call.dims[-1], tile.real.dtype
    n = call.length if call.kind == "c2r" else tile.shape[dim] // 2 + 1
    dtype = real if call.kind == "c2r" else np.result_type(real, np.complex64)
    shape = (*tile.shape[:dim], n, *tile.shape[dim + 1 :])
    return out if out.shape == shape and out.dtype == dtype else None


def transform_tile(
    tile: Array, calls: Calls, works: list[Work], library: FFTLibrary, out: Array | None = None
) -> Array:
    """Return a contiguous tile after all steps of a round.

    The tile may be overwritten. A library with `supports_out` writes the result of the first call,
    or of the last call of kind c2r, to `out`. Operations after a call need a contiguous `out`.
    """
    if out is not None and (not library.supports_out or np.may_share_memory(tile, out)):
        out = None
    place = None
    if out is not None and calls.begins_with_ffts:
        place = out if calls.one_call or out.flags.c_contiguous else None
    for call, left in calls.r2c:
        half = _room(tile, call, out, not calls.one_call) if calls.begins_with_r2c else None
        tile = library.run(call, tile, half)
        tile = np.ascontiguousarray(tile) if half is None else half
        _divide(tile, left)
    for work in works:
        _multiply_chirp(tile, work, "in")
    for call, left in calls.c2c:
        tile = library.run(call, tile, place)
        _divide(tile, left)
    for work in works:
        if work.step.kind != "c2r":
            tile = _multiply(tile, work, library)
    for work in works:
        _multiply_chirp(tile, work, "out")
    for call, left in calls.c2r:
        real = _room(tile, call, out, dense=False)
        tile = library.run(call, tile, real)
        tile = np.ascontiguousarray(tile) if real is None else real
        _divide(tile, left)
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
        self.round, self.block = round_, block
        self.rolls, self.cut = round_.rolls if cut is None else (), cut
        self.source, self.out, self.library = source, out, library
        self.calls, self.works = calls_of(round_), works_of(round_, block, filters)
        self._choose_way()

    def _choose_way(self) -> None:
        """Choose the tiling, and if the library reads and writes in place."""
        source, out, calls, library = self.source, self.out, self.calls, self.library
        # Rolled tiles are stored in two parts, and verified tiles may be repeated.
        self.aliases = self.checked and source.in_place
        free = not self.rolls and not self.aliases
        begins, only = library.supports_out and free, calls.one_call
        halved = begins and calls.begins_with_r2c
        reads = halved or (begins and (calls.begins_with_ffts or only))
        array = source.array if reads and not source.owned and not self.checked else None
        # Libraries that return new memory have two tiles in cache.
        changes = not halved and (out.shape != source.shape or out.dtype != source.dtype)
        nbytes = max(out.nbytes, math.prod(source.shape) * source.dtype.itemsize)
        dims = set(calls.dims)
        self.tiling = self.cut or tiling(source.shape, dims, nbytes, library.beside, changes)
        dense = bool(out.flags.c_contiguous)
        if self.tiling is not None:
            dense = dense and math.prod(out.shape[: self.tiling[0]]) == 1
        #: True if the library may write its result in place.
        self.writes = free and (dense or not self.checked)
        if not dense and not only:
            array = None  # other steps need contiguous tiles
        elif dense and only and calls.c2c and free and not self.checked and out is source.array:
            array = out  # any library does it in place
        #: The block if the library may read it in place, else None.
        self.reads = array
        if array is not None and only and len(calls.dims) == 1 and self.cut is None:
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
            yield from self.source.tiles(dim, width, self.out, cuts)
            return
        n = self.source.shape[dim]
        for part in intervals(n, width) if cuts is None else cuts:
            yield part, self.reads[(slice(None),) * dim + (part,)]

    def _gathered(self) -> Array:
        same = self.out.shape == self.source.shape and self.out.dtype == self.source.dtype
        dense = same and self.out.flags.c_contiguous and not self.aliases
        return self.source.gather(self.out if dense else None)

    def place(self, part: slice | None) -> Array:
        """Return the part of the result for a tile."""
        if part is None or self.tiling is None:
            return self.out
        return self.out[(slice(None),) * self.tiling[0] + (part,)]

    def transform(self, tile: Array, part: slice | None) -> Array:
        """Return a tile after the round."""
        room = self.place(part) if self.writes else None
        works = self.works
        if part is not None and self.tiling is not None:
            works = [work.within(self.tiling[0], part) for work in works]
        return transform_tile(tile, self.calls, works, self.library, room)

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
