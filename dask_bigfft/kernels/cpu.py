"""One round on one block, on the CPU.

A block is worked through in tiles along its leading dimensions, so that a tile stays in cache
while it is transformed and multiplied::

    for each tile:  r2c -> chirp -> c2c over all digits
                    -> filter, c2c back -> twiddle -> chirp -> c2r

The digit of a step is the innermost dimension of its axis, so a row of the tile has one value of
the axis' other digits, and the factors of a row follow from that value alone.

May import `decomposition`, `memory` and this room.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, reduce
from operator import mul
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.layout import AxisLayout
from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.decomposition.steps import Chirp, Divisor, Step
from dask_bigfft.decomposition.tiles import ROW_BYTES, TILE_BYTES, tiling
from dask_bigfft.errors import KernelError
from dask_bigfft.events import measured
from dask_bigfft.kernels.copy import copied
from dask_bigfft.kernels.incoming import Divisible, Incoming, Watch, parts
from dask_bigfft.kernels.libraries import FFTLibrary, Scale
from dask_bigfft.kernels.twiddle import multiply_chirp, twiddle
from dask_bigfft.memory import lend

Array = npt.NDArray[Any]
Rolls = tuple[tuple[int, int], ...]

def factor(divisor: Divisor, dtype: np.dtype[Any]) -> Any:
    """The number to multiply values of a dtype with, in double precision or better."""
    real = np.longdouble if dtype.char in "gG" else float
    return 1 / (real(divisor.whole) * np.sqrt(real(divisor.root)))


def _by_library(divisor: Divisor, n: int) -> tuple[Scale, Divisor]:
    """What of a division an FFT of n points in all does for nothing, and what is left."""
    if divisor == Divisor(n) and n > 1:
        return "full", Divisor()
    if divisor == Divisor(1, n) and n > 1:
        return "ortho", Divisor()
    return "none", divisor


def _divide(tile: Array, divisor: Divisor) -> None:
    """Divide in place."""
    if divisor != Divisor():
        tile.view(tile.real.dtype)[...] *= factor(divisor, tile.dtype)


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
class _Factors:
    """A table over an axis' other digits, one entry (or row of entries) for each of their values.

    ``shape`` are the dimensions of these digits, ``first`` the block's dimension of the first.
    """

    table: Array
    shape: tuple[int, ...]
    first: int

    def within(self, dim: int, part: slice) -> "_Factors":
        """What of the table belongs to a tile cut along one of the block's dimensions."""
        if not self.first <= dim < self.first + len(self.shape):
            return self
        inner = self.table.shape[1:]
        cut = (slice(None),) * (dim - self.first) + (part,)
        kept = self.table.reshape(*self.shape, *inner)[cut]
        return _Factors(kept.reshape(-1, *inner), kept.shape[: len(self.shape)], self.first)

    def rows(self, count: int) -> Array:
        """Entries for `count` rows of a tile: the table again and again."""
        repeats = (count // max(1, len(self.table)),) + (1,) * (self.table.ndim - 1)
        return np.tile(self.table, repeats)


def _alike(step: Step) -> bool:
    """Whether a step is an FFT and nothing else, so that every tile is treated alike."""
    return (
        step.twiddle is None and step.convolve is None
        and step.chirp_in is None and step.chirp_out is None
    )


@dataclass(frozen=True)
class _Work:
    """A step on one block: its dimension, and what follows from its axis' other digits."""

    step: Step
    dim: int
    index_in: _Factors
    index_twiddle: _Factors
    index_out: _Factors
    spectrum: _Factors | None

    @cached_property
    def divisor(self) -> Divisor:
        """What the FFT has to divide by: nothing if a chirp or a twiddle does it."""
        free = self.step.chirp_out is not None or self.step.twiddle is not None
        return Divisor() if free else self.step.divisor

    def within(self, dim: int, part: slice) -> "_Work":
        """The step on a tile cut along a dimension."""
        if _alike(self.step):
            return self
        return _Work(
            self.step,
            self.dim,
            self.index_in.within(dim, part),
            self.index_twiddle.within(dim, part),
            self.index_out.within(dim, part),
            None if self.spectrum is None else self.spectrum.within(dim, part),
        )


def _works(round_: Round, block: tuple[int, ...], filters: Mapping[int, Array]) -> list[_Work]:
    found = []
    for step in round_.steps:
        dim = round_.dim(step)
        before, after = round_.source.axes[step.axis], round_.target.axes[step.axis]
        last = len(before.groups) - 1
        if before.groups[last].digits != (step.source,):
            raise KernelError("the digit of a step must be the last group of its axis")
        i = block[step.axis]
        place = (before.shape(i)[:last], dim - last)
        spectrum = None
        if step.convolve is not None:
            spectrum = _Factors(filters[step.axis].reshape(-1, step.length), *place)
        if _alike(step):
            found.append(_Work(step, dim, *(_Factors(np.zeros(1, np.int64), *place),) * 3, None))
            continue
        found.append(
            _Work(
                step,
                dim,
                _Factors(axis_index(before, i, step.source.stage, last), *place),
                _Factors(axis_index(after, i, step.target.stage - 1, last), *place),
                _Factors(axis_index(after, i, step.target.stage, last), *place),
                spectrum,
            )
        )
    return found


def _rows(tile: Array, dim: int) -> Array:
    """View of a contiguous tile as rows, digit, and what is inside of the digit."""
    shape = tile.shape
    rows = tile.reshape(math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]))
    if rows.ctypes.data != tile.ctypes.data:
        raise KernelError("a tile has to be contiguous")
    return rows


def _chirped(
    tile: Array, work: _Work, index: _Factors, stride: int, chirp: Chirp, divisor: Divisor
) -> None:
    rows, scale = _rows(tile, work.dim), factor(divisor, tile.dtype)
    places = index.table * chirp.step + chirp.offset
    along = stride * chirp.step
    multiply_chirp(rows, places, along, chirp.length, chirp.sign, scale, chirp.turns)


def _multiplied(tile: Array, work: _Work, library: FFTLibrary) -> Array:
    """Filter (and transform back) and twiddle."""
    step, sign = work.step, work.step.sign
    if work.spectrum is not None:
        rows, table = _rows(tile, work.dim), work.spectrum.table
        batch = rows.reshape(-1, *table.shape, rows.shape[2])
        batch *= table[:, :, None]
        tile = library.c2c(tile, (work.dim,), -sign)
        sign = -sign
    if step.twiddle is not None:
        rows = _rows(tile, work.dim)
        scale = factor(step.divisor, tile.dtype)
        with measured("twiddle", tile.nbytes):
            twiddle(rows, work.index_twiddle.rows(len(rows)), step.twiddle, sign, scale)
    return tile


def _scale(works: list[_Work]) -> tuple[Scale, Divisor]:
    """What FFTs over the digits of some steps scale by, and what is left to divide by."""
    divisor = reduce(mul, (work.divisor for work in works))
    return _by_library(divisor, math.prod(work.step.length for work in works))


def _begins_with_ffts(works: list[_Work]) -> bool:
    """Whether the first thing to be done is one call of the library, for all axes."""
    steps = [work.step for work in works]
    same = {(step.kind, step.sign, step.chirp_in) for step in steps}
    return same == {("c2c", steps[0].sign, None)}


def _begins_with_r2c(works: list[_Work]) -> bool:
    """Whether the first thing to be done is one FFT of real values."""
    return [work.step.kind for work in works].count("r2c") == 1


def _only_ffts(works: list[_Work]) -> bool:
    """Whether nothing else is to be done."""
    rest = {(w.step.twiddle, w.step.convolve, w.step.chirp_out) for w in works}
    alone = _begins_with_ffts(works) and rest == {(None, None, None)}
    return alone and _scale(works)[1] == Divisor()


def _halves(tile: Array, works: list[_Work], out: Array) -> bool:
    """Whether the FFT of a tile's real values, which comes first, has its result's place in `out`.

    What follows is then done there.
    """
    if not _begins_with_r2c(works) or not out.flags.c_contiguous:
        return False
    (dim,) = (work.dim for work in works if work.step.kind == "r2c")
    shape = (*tile.shape[:dim], tile.shape[dim] // 2 + 1, *tile.shape[dim + 1 :])
    return out.shape == shape and out.dtype == np.result_type(tile.dtype, np.complex64)


def _transformed(
    tile: Array, works: list[_Work], library: FFTLibrary, out: Array | None = None
) -> Array:
    """All steps of a round on a contiguous tile, which is overwritten.

    Where the FFTs come first, a library that can answers in `out` and leaves the tile alone; what
    follows them needs `out` to be contiguous.
    """
    place = half = None
    if out is not None and not np.may_share_memory(tile, out):
        half = out if library.elsewhere and _halves(tile, works, out) else None
        contiguous = _begins_with_ffts(works) and out.flags.c_contiguous
        place = out if contiguous or _only_ffts(works) else None
    complex_works = [work for work in works if work.step.kind == "c2c"]
    for work in works:
        if (step := work.step).kind == "r2c":
            scale, left = _by_library(work.divisor, step.length)
            tile = np.ascontiguousarray(library.r2c(tile, work.dim, step.sign, scale, half))
            _divide(tile, left)
    batches: dict[int, list[_Work]] = {}
    for work in complex_works:
        if (step := work.step).chirp_in is not None:
            _chirped(tile, work, work.index_in, step.source.stride, step.chirp_in, Divisor())
        batches.setdefault(step.sign, []).append(work)
    for sign, batch in batches.items():
        scale, left = _scale(batch)
        tile = library.c2c(tile, tuple(work.dim for work in batch), sign, scale, place)
        _divide(tile, left)
    for work in works:
        if work.step.kind != "c2r":
            tile = _multiplied(tile, work, library)
    for work in complex_works:
        if (step := work.step).chirp_out is not None:
            _chirped(
                tile, work, work.index_out, step.target.stride, step.chirp_out, step.divisor
            )
    for work in works:
        if (step := work.step).kind == "c2r":
            scale, left = _by_library(work.divisor, step.length)
            tile = np.ascontiguousarray(
                library.c2r(tile, work.dim, step.length, step.sign, scale)
            )
            _divide(tile, left)
    return tile


def run_round(
    round_: Round,
    block: tuple[int, ...],
    incoming: Incoming,
    library: FFTLibrary,
    out_dtype: np.dtype[Any],
    filters: Mapping[int, Array] | None = None,
) -> Array:
    """Return a block after a round.

    Parameters
    ----------
    round_ : Round
        What to do.
    block : tuple of int
        Which block.
    incoming : Incoming
        The block as the round's source layout has it.
    library : FFTLibrary
        Makes the FFTs.
    out_dtype : dtype
        Of the block after the round.
    filters : dict of int to ndarray, optional
        Spectrum of the convolution's filter, for the axes that need one.

    Returns
    -------
    ndarray
        The block as the round's target layout has it.
    """
    shape = round_.target.shape(block)
    out = incoming.place(shape, out_dtype)
    before = math.prod(incoming.shape)
    if out.size == 0 or before == 0:
        return out
    works = _works(round_, block, filters or {})
    nbytes = max(out.nbytes, before * incoming.dtype.itemsize)
    changes = shape != incoming.shape or out_dtype != incoming.dtype
    watch: Watch | None = getattr(incoming, "watch", None)
    # What is rolled is stored in two parts, what is watched when it has been found right.
    place = None if round_.rolls or watch else out
    halved = library.elsewhere and place is not None and _begins_with_r2c(works)
    direct = (library.elsewhere and place is not None and _begins_with_ffts(works)) or halved
    given, only = incoming.as_is if direct else None, _only_ffts(works)
    # Where libraries answer in fresh memory, there are two tiles.
    tile_bytes = TILE_BYTES // 4 if changes and not halved else TILE_BYTES
    found = tiling(incoming.shape, {work.dim for work in works}, nbytes, tile_bytes, ROW_BYTES)
    dense = bool(out.flags.c_contiguous)
    if found is not None:
        dense = dense and math.prod(shape[: found[0]]) == 1
    if not only and not dense:
        given = None  # what follows the FFTs needs contiguous tiles
    if found is None or (given is not None and only and len(works) == 1):
        own = None if changes or not dense else out
        tile = incoming.whole(own) if given is None else given
        result = _transformed(tile, works, library, place)
        if watch:
            watch.after(result, 0, None)
        _store(out, result, round_.rolls)
        return out
    dim, width = found
    tiles = (
        incoming.tiles(dim, width, out)
        if given is None
        else _views(given, dim, parts(given.shape[dim], width))
    )
    _tile_by_tile(tiles, dim, works, library, out, round_.rolls, watch)
    return out


def in_one_call(
    round_: Round, block: tuple[int, ...], incoming: Incoming, library: FFTLibrary
) -> bool:
    """Whether tiles of any size are one call of the library, which reads them where they lie.

    Parameters
    ----------
    round_, block, incoming, library
        As `run_round` takes them.
    """
    if not library.elsewhere or incoming.as_is is None or len(round_.steps) != 1:
        return False
    (step,) = round_.steps
    return step.convolve is None and _only_ffts(_works(round_, block, {}))


def run_tiles(
    round_: Round,
    block: tuple[int, ...],
    incoming: Divisible,
    library: FFTLibrary,
    out: Array,
    tiling: tuple[int, int],
    cuts: Iterable[slice],
    filters: Mapping[int, Array] | None = None,
) -> None:
    """Take those tiles of a block through a round that are asked for, into their places in `out`.

    Any number of threads may do so with the same block and different tiles.

    Parameters
    ----------
    round_, block, incoming, library, filters
        As `run_round` takes them; what the round rolls is left as it is.
    out : ndarray
        The block after the round.
    tiling : (int, int)
        Dimension along which tiles are cut, and their width at most.
    cuts : iterable of slice
        The tiles.
    """
    works, (dim, width) = _works(round_, block, filters or {}), tiling
    given = incoming.as_is if library.elsewhere and _begins_with_ffts(works) else None
    if math.prod(out.shape[:dim]) > 1 and not _only_ffts(works):
        given = None
    tiles = (
        incoming.tiles(dim, width, out, cuts) if given is None else _views(given, dim, cuts)
    )
    _tile_by_tile(tiles, dim, works, library, out, ())


def _tile_by_tile(
    tiles: Iterable[tuple[slice, Array]], dim: int, works: list[_Work], library: FFTLibrary,
    out: Array, rolls: Rolls, watch: Watch | None = None
) -> None:
    for part, tile in tiles:
        if watch and watch.is_done(part):
            continue
        inside = [work.within(dim, part) for work in works]
        target = out[(slice(None),) * dim + (part,)]
        place = None if rolls or watch else target
        if watch:
            watch.before(tile)
        result = _transformed(tile, inside, library, place)
        if watch:
            watch.after(result, dim, part)
        _store(target, result, rolls)


def rolled(values: Array, rolls: Rolls) -> Array:
    """Return a block stored from another element on along some of its dimensions.

    For blocks that something else than `run_round` has made, in host memory or on a card.
    """
    if not rolls:
        return values
    if not isinstance(values, np.ndarray):
        return np.roll(values, [-first for _, first in rolls], [dim for dim, _ in rolls])
    out = lend(values.shape, values.dtype)
    _store(out, values, rolls)
    return out


def _views(values: Array, dim: int, cuts: Iterable[slice]) -> Iterator[tuple[slice, Array]]:
    """Slices of an array along a dimension, and where they are."""
    for part in cuts:
        yield part, values[(slice(None),) * dim + (part,)]


def _store(target: Array, result: Array, rolls: Rolls) -> None:
    """Copy a tile to where it belongs, unless it lies there already.

    In a dimension that is rolled, its first values go behind the others.
    """
    there = result.ctypes.data == target.ctypes.data and result.strides == target.strides
    if there and rolls:
        kept = lend(result.shape, result.dtype)
        kept[...] = result
        result = kept
    elif there:
        return
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
            copied(target[place], result[cut])
