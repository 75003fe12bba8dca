"""One round on one block on the CPU: the loop over tiles, and what is done with each.

::

    for tile in executor.take():               part of the block that stays in a core's cache
        result = executor.transform(tile)      in place, in the result, or in new memory
        executor.store(result)                 unless it is there already

On a tile::

    r2c -> [chirp] -> c2c over all digits -> [filter, c2c back] -> [twiddle] -> [chirp] -> c2r

`Calls` are the FFTs, worked out once for all blocks and tiles of a round. What is in brackets
depends on a block's place: a `Work` is one such step with its tables. The digit of a step is the
last group of its axis, so a row of a tile has one value of the axis' other digits, and the factors
of a row follow from that value alone.

Imports `decomposition`, `errors`, `events`, `memory` and this room.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from operator import mul
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.layout import ROW_BYTES, AxisLayout, Layout, tile_bytes_of, tiling
from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.decomposition.steps import Divisor, Step
from dask_bigfft.errors import KernelError
from dask_bigfft.events import measured
from dask_bigfft.kernels.copies import copy_array
from dask_bigfft.kernels.libraries import Call, FFTLibrary, Scale, same_memory
from dask_bigfft.kernels.twiddle import factor, multiply_chirp, twiddle
from dask_bigfft.kernels.views import BlockView, intervals
from dask_bigfft.memory import lend

Array = npt.NDArray[Any]
Block = tuple[int, ...]
Rolls = tuple[tuple[int, int], ...]
_Pair = tuple[Step, int]

#: Tiles that are read in place and checked are cut into so many: then most of them and of their
#: results are in a core's own cache when they are summed, and when the FFT reads them.
CHECKED_PARTS = 2


def _by_library(divisor: Divisor, n: int) -> tuple[Scale, Divisor]:
    """Return the scale that an FFT of n points applies itself, and the division that remains."""
    if divisor == Divisor(n) and n > 1:
        return "full", Divisor()
    if divisor == Divisor(1, n) and n > 1:
        return "ortho", Divisor()
    return "none", divisor


# --- the round ------------------------------------------------------------------------------


#: One call of the library, and what is to be divided by afterwards.
Divided = tuple[Call, Divisor | None]


class Calls:
    """The calls that a round makes for each tile, in their order, and what follows from them.

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
        #: FFTs that take real values, of complex ones, and that give real values.
        self.r2c = tuple(_call([*_with(pair, by_sign), pair]) for pair in real)
        self.c2c = tuple(_call(batch) for batch in by_sign.values())
        self.c2r = tuple(_call([pair]) for pair in pairs if pair[0].kind == "c2r")
        begins = {(step.kind, step.sign, step.chirp_in) for step in steps}
        #: Whether the first thing to be done is one call of the library, for all axes.
        self.begins_with_ffts = bool(steps) and begins == {("c2c", steps[0].sign, None)}
        #: Whether the first thing to be done is one FFT of real values.
        self.begins_with_r2c = len(real) == 1
        every = (*self.r2c, *self.c2c, *self.c2r)
        #: Whether one call, of whatever kind, is all that is to be done.
        self.one_call = (
            len(every) == 1 and all(map(_alike, steps)) and all(left is None for _, left in every)
        )

    def reordered(self, order: tuple[int, ...]) -> "Calls":
        """Return one complex FFT on dimensions in another order."""
        found, ((call, left),) = copy.copy(self), self.c2c
        found.dims = tuple(map(order.index, self.dims))
        found.c2c = ((call._replace(dims=tuple(map(order.index, call.dims))), left),)
        return found


calls_of = lru_cache(maxsize=256)(Calls)


def _with(real: _Pair, by_sign: dict[int, list[_Pair]]) -> list[_Pair]:
    """Take away the complex steps that one call does together with one of real values."""
    sign = real[0].sign
    if any(step.chirp_in is not None for step, _ in by_sign.get(sign, [])):
        return []
    return by_sign.pop(sign, [])


def _call(batch: Sequence[_Pair]) -> Divided:
    """One call for some steps of a sign, with the dimensions of their digits; a real one is last.

    It is of the last one's kind.
    """
    last, n = batch[-1][0], math.prod(step.length for step, _ in batch)
    scale, left = _by_library(reduce(mul, (_divisor(step) for step, _ in batch)), n)
    dims = tuple(dim for _, dim in batch)
    rest = None if left == Divisor() else left
    return Call(last.kind, dims, last.sign, scale, last.length), rest


def _divisor(step: Step) -> Divisor:
    """What the FFT has to divide by: nothing if a chirp or a twiddle does it."""
    free = step.chirp_out is not None or step.twiddle is not None
    return Divisor() if free else step.divisor


def _alike(step: Step) -> bool:
    """Whether a step is an FFT and nothing else, so that every tile is treated alike."""
    return (step.twiddle, step.convolve, step.chirp_in, step.chirp_out) == (None,) * 4


# --- one block ------------------------------------------------------------------------------


def axis_index(axis: AxisLayout, block: int, stage: int, skip: int | None = None) -> Array:
    """Index made of an axis' digits of one stage, for each place of a block in stored order.

    Digits of other stages count nothing; the group number `skip` is left out.
    """
    index = np.zeros(1, np.int64)
    groups = zip(axis.groups, axis.intervals(block), axis.shape(block), strict=True)
    for g, (group, (low, _), size) in enumerate(groups):
        if g == skip:
            continue
        place = np.arange(low, low + size, dtype=np.int64)
        if group.offset:
            place = (place + group.offset) % group.size
        part = np.zeros(size, np.int64)
        for digit in reversed(group.digits):
            place, value = np.divmod(place, max(digit.size, 1))
            if digit.stage == stage:
                part += value * digit.stride
        index = np.add.outer(index, part).ravel()
    return index


@dataclass(frozen=True)
class Factors:
    """A table over an axis' other digits, one entry (or row of entries) for each of their values.

    ``shape`` are the dimensions of these digits, ``first`` the block's dimension of the first.
    """

    table: Array
    shape: tuple[int, ...]
    first: int

    def within(self, dim: int, part: slice) -> "Factors":
        """What of the table belongs to a tile cut along one of the block's dimensions."""
        if not self.first <= dim < self.first + len(self.shape):
            return self
        inner = self.table.shape[1:]
        cut = (slice(None),) * (dim - self.first) + (part,)
        kept = self.table.reshape(*self.shape, *inner)[cut]
        return Factors(kept.reshape(-1, *inner), kept.shape[: len(self.shape)], self.first)

    def rows(self, count: int) -> Array:
        """Entries for `count` rows of a tile: the table again and again."""
        repeats = (count // max(1, len(self.table)),) + (1,) * (self.table.ndim - 1)
        return np.tile(self.table, repeats)


@dataclass(frozen=True)
class Work:
    """A step that is more than an FFT, on one block.

    Its dimension, and tables of what follows from its axis' other digits: for the chirps "in" and
    "out", the "twiddle" and the "spectrum" of a filter, where the step makes use of them.
    """

    step: Step
    dim: int
    tables: Mapping[str, Factors]

    def within(self, dim: int, part: slice) -> "Work":
        """The step on a tile cut along a dimension."""
        tables = {name: table.within(dim, part) for name, table in self.tables.items()}
        return Work(self.step, self.dim, tables)


def works_of(round_: Round, block: tuple[int, ...], filters: Mapping[int, Array]) -> list[Work]:
    """Return the steps of a round that are more than FFTs, as they are on a block.

    Parameters
    ----------
    round_, block
        The round, and which block.
    filters : mapping of int to ndarray
        Spectrum of the convolution's filter, for the axes that need one.
    """
    found = []
    for step, dim in zip(round_.steps, calls_of(round_).dims, strict=True):
        if _alike(step):
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
    """Divide in place, if there is something to divide by."""
    if divisor is not None:
        tile.view(tile.real.dtype)[...] *= factor(divisor, tile.dtype)


def _rows(tile: Array, dim: int) -> Array:
    """Return the view of a contiguous tile as rows, digit, and what is inside of the digit."""
    shape = tile.shape
    rows = tile.reshape(math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]))
    if rows.ctypes.data != tile.ctypes.data:
        raise KernelError("a tile has to be contiguous")
    return rows


def _multiply_chirp(tile: Array, work: Work, name: str) -> None:
    """Multiply with the chirp "in" or "out", which divides for the FFT, where the step has it."""
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
    """Filter (and transform back) and twiddle."""
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
    """Return `out` if a call that makes or takes real values can write its result there.

    It has to have the shape and dtype of the result, and be `dense` for what follows in place.
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

    The tile is overwritten. A library with `supports_out` writes `out` and leaves the tile alone
    where the first call may, and where the last one does, which gives real values; what follows a
    call needs `out` to be contiguous.
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
    """Takes one block through a round, tile by tile, in the thread that calls it.

    Parameters
    ----------
    round_ : Round
        What to do.
    block : tuple of int
        Which block.
    source : BlockView
        The block as the round's source layout has it.
    out : ndarray
        The block after the round.
    library : FFTLibrary
        Makes the FFTs.
    filters : mapping of int to ndarray
        Spectrum of the convolution's filter, for the axes that need one.
    cut : (int, int), optional
        Dimension along which tiles are cut, and their width at most, where the block is shared with
        others; what the round rolls is then left as it is.
    """

    #: Whether tiles are compared with their results, so that a tile may be done once more.
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
        #: Dimensions of the block as they are worked on, in terms of the round's.
        self.order = tuple(range(out.ndim))
        self._order_as_in_memory()
        self._choose_way()

    def _order_as_in_memory(self) -> None:
        """Take dimensions in the order of memory, in rounds in place that are one FFT.

        Tiles are then copied line by line and not transposed there and back, which takes twice as
        long. It pays for libraries that are as fast across lines as along them, as those with
        `supports_out` are; SciPy loses there what copies gain.
        """
        out, calls = self.out, self.calls
        order = tuple(sorted(range(out.ndim), key=lambda dim: -out.strides[dim]))
        one = self.library.supports_out and calls.one_call and not self.rolls and len(calls.c2c)
        if not one or self.cut is not None or not self.source.in_place or order == self.order:
            return
        moved, shape = calls.reordered(order), tuple(out.shape[dim] for dim in order)
        size = tile_bytes_of(self.library.beside)
        if tiling(shape, set(moved.dims), out.nbytes, size, ROW_BYTES, size) is None:
            return
        self.out, self.order = out.transpose(order), order
        self.source = BlockView.of(self.out, target=self.out)
        self.calls = moved

    def _choose_way(self) -> None:
        """Decide where tiles are cut, and whether the library reads and writes in place."""
        source, out, calls, library = self.source, self.out, self.calls, self.library
        # What is rolled is stored in two parts; what is checked may have to be done once more.
        self.aliases = self.checked and source.in_place
        free = not self.rolls and not self.aliases
        begins, only = library.supports_out and free, calls.one_call
        halved = begins and calls.begins_with_r2c
        array = source.array if source.array is not None and not source.owned else None
        if not halved and not (begins and (calls.begins_with_ffts or only)):
            array = None
        if self.checked and array is not None and not array.flags.c_contiguous:
            array = None
        # Libraries that return fresh memory have two tiles in cache.
        changes = out.shape != source.shape or out.dtype != source.dtype
        most = tile_bytes_of(library.beside)
        size = tile_bytes_of(library.beside, changes and not halved)
        nbytes = max(out.nbytes, math.prod(source.shape) * source.dtype.itemsize)
        self.tiling = self.cut
        if self.cut is None:
            self.tiling = tiling(source.shape, set(calls.dims), nbytes, size, ROW_BYTES, most)
        dense = bool(out.flags.c_contiguous)
        if self.tiling is not None:
            dense = dense and math.prod(out.shape[: self.tiling[0]]) == 1
        #: Whether the library may write its result where it belongs.
        self.writes = free and (dense or not self.checked)
        if not dense and (self.checked or not only):
            array = None  # what follows the FFTs, and what sums them, needs contiguous tiles
        #: The block where the library may read it.
        self.reads = array
        alone = self.cut is None and not self.checked
        if array is not None and only and len(calls.dims) == 1 and alone:
            self.tiling = None
        if self.tiling is not None and self.checked and array is not None:
            self.tiling = self.tiling[0], -(-self.tiling[1] // CHECKED_PARTS)

    def take(self, cuts: Iterable[slice] | None = None) -> Iterator[tuple[slice | None, Array]]:
        """Yield the tiles, and where they are; None stands for the whole block.

        `cuts` are the tiles wanted, by default all.
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
        """Return where the result of a tile belongs."""
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
        """Copy a result to where it belongs, unless it is there."""
        _store(self.place(part), result, self.rolls)

    def run(self, cuts: Iterable[slice] | None = None) -> None:
        """Take all tiles, or those of some cuts, through the round."""
        for part, tile in self.take(cuts):
            self.store(self.transform(tile, part), part)


def _store(target: Array, result: Array, rolls: Rolls) -> None:
    """Copy a tile to where it belongs, unless it is there already.

    In a dimension that is rolled, its first values go behind the others.
    """
    there = same_memory(result, target)
    if there and not rolls:
        return
    if there:
        kept = lend(result.shape, result.dtype)
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
    """Return a block stored from another element on along some of its dimensions."""
    if not rolls:
        return values
    out = lend(values.shape, values.dtype)
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
        As `CPUExecutor` takes them.
    out_dtype : dtype
        Of the block after the round.
    executor : callable
        Makes the executor.

    Returns
    -------
    ndarray
        The block as the round's target layout has it.
    """
    if (found := _digits_last(round_)) is not None:  # two copies more, for a device's round
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


# --- digits in another place ----------------------------------------------------------------


@lru_cache(maxsize=256)
def _digits_last(round_: Round) -> tuple[Round, tuple[tuple[int, ...], ...]] | None:
    """Return a round with the group of each step last in its axis, and the orders of groups.

    None if all of them are so. A device transforms a digit wherever it lies.
    """
    steps = {step.axis: step.source for step in round_.steps}
    orders = tuple(
        tuple(sorted(range(len(a.groups)), key=lambda g: a.groups[g].digits == (steps.get(i),)))
        for i, a in enumerate(round_.source.axes)
    )
    if all(order == tuple(sorted(order)) for order in orders):
        return None
    source, target = (
        Layout(tuple(_reordered(axis, g) for axis, g in zip(layout.axes, orders, strict=True)))
        for layout in (round_.source, round_.target)
    )
    return Round(round_.steps, source, target), orders


def _reordered(axis: AxisLayout, order: tuple[int, ...]) -> AxisLayout:
    return AxisLayout(tuple(axis.groups[g] for g in order))
