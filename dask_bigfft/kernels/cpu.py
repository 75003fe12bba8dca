"""One round on one block, on the CPU.

A block is worked through in tiles along its leading dimensions, so that a tile stays in cache
while `on_tile` transforms and multiplies it. Or it goes through in one go: where the library reads
and writes it as it lies, or where it is small.

May import `decomposition`, `memory` and this room.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.decomposition.tiles import ROW_BYTES, tile_bytes_of, tiling
from dask_bigfft.events import measured
from dask_bigfft.kernels.backends import same_memory
from dask_bigfft.kernels.calls import Calls, Work, calls_of, works_of
from dask_bigfft.kernels.copy import copied
from dask_bigfft.kernels.incoming import Divisible, Incoming, Watch, parts
from dask_bigfft.kernels.libraries import FFTLibrary
from dask_bigfft.kernels.on_tile import transformed
from dask_bigfft.memory import lend

#: Tiles that are weighed where a library reads them are cut into so many: then most of them and of
#: their results is in a core's own cache when they are weighed, and when the FFT reads them.
#: Smaller ones cost more in Python and in weights than they gain there.
READ_IN = 2

Array = npt.NDArray[Any]
Rolls = tuple[tuple[int, int], ...]


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
    out = incoming.place(round_.target.shape(block), out_dtype)
    if out.size == 0 or math.prod(incoming.shape) == 0:
        return out
    calls, works = calls_of(round_), works_of(round_, block, filters or {})
    done = out
    incoming, out, calls = _as_in_memory(incoming, out, calls, round_.rolls, library)
    watch: Watch | None = getattr(incoming, "watch", None)
    given, place, tiled = _way(incoming, out, calls, round_.rolls, library, watch)
    if tiled is None:
        result = _whole(incoming, out, calls, works, library, given, place, watch)
        _store(out, result, round_.rolls)
        return done
    dim, width = tiled
    if watch and given is not None:
        width = -(-width // READ_IN)
    tiles = (
        incoming.tiles(dim, width, out)
        if given is None
        else _views(given, dim, parts(given.shape[dim], width))
    )
    _tile_by_tile(tiles, dim, calls, works, library, out, place, round_.rolls, watch)
    return done


def _as_in_memory(
    incoming: Incoming, out: Array, calls: Calls, rolls: Rolls, library: FFTLibrary
) -> tuple[Incoming, Array, Calls]:
    """A block that is transformed in its place, with its dimensions in the order of its memory.

    Tiles are then copied line by line, and not transposed there and back, which takes twice as
    long. That is so where nothing but one FFT is to be done, by a library that is as fast across
    lines as along them, as those are that answer `elsewhere`: SciPy loses there what copies gain.
    """
    order = tuple(sorted(range(out.ndim), key=lambda dim: -out.strides[dim]))
    turned = getattr(incoming, "turned", None)
    one = library.elsewhere and calls.one_call and not rolls and len(calls.c2c) == 1
    if not one or turned is None or order == tuple(range(out.ndim)):
        return incoming, out, calls
    dims = tuple(map(order.index, calls.dims))
    shape = tuple(out.shape[dim] for dim in order)
    size = tile_bytes_of(library.beside)
    if tiling(shape, set(dims), out.nbytes, size, ROW_BYTES, size) is None:
        return incoming, out, calls
    found = turned(order)
    if found is None:
        return incoming, out, calls
    (call,) = calls.c2c
    c2c = (replace(call, dims=tuple(map(order.index, call.dims))),)
    return *found, replace(calls, dims=dims, c2c=c2c)


def _way(
    incoming: Incoming, out: Array, calls: Calls, rolls: Rolls, library: FFTLibrary,
    watch: Watch | None,
) -> tuple[Array | None, Array | None, tuple[int, int] | None]:
    """How a block goes through a round.

    Returns
    -------
    given : ndarray or None
        The block as it lies, where the library may read it there.
    place : ndarray or None
        The block after the round, where the library may answer there.
    tiled : (int, int) or None
        Dimension along which tiles are cut, and their width at most; None: all of it in one go.
    """
    # What is rolled is stored in two parts, and what is watched may have to be done once more.
    stays = not rolls and (watch is None or watch.stays)
    begins, only = library.elsewhere and stays, calls.one_call
    halved, given = begins and calls.begins_with_r2c, None
    if halved or (begins and (calls.begins_with_ffts or only)):
        given = incoming.as_is if watch is None else watch.given
    # Where libraries answer in fresh memory, there are two tiles.
    most = tile_bytes_of(library.beside)
    size = tile_bytes_of(library.beside, _changes(incoming, out) and not halved)
    nbytes = max(out.nbytes, math.prod(incoming.shape) * incoming.dtype.itemsize)
    tiled = tiling(incoming.shape, set(calls.dims), nbytes, size, ROW_BYTES, most)
    dense = bool(out.flags.c_contiguous)
    if tiled is not None:
        dense = dense and math.prod(out.shape[: tiled[0]]) == 1
    place = out if stays and (dense or not watch) else None
    if not dense and (watch or not only):
        given = None  # what follows the FFTs, and what weighs them, wants contiguous tiles
    if given is not None and only and len(calls.dims) == 1 and not watch:
        tiled = None
    return given, place, tiled


def _changes(incoming: Incoming, out: Array) -> bool:
    """Whether a block has another shape or dtype after the round."""
    return out.shape != incoming.shape or out.dtype != incoming.dtype


def _whole(
    incoming: Incoming, out: Array, calls: Calls, works: list[Work], library: FFTLibrary,
    given: Array | None, place: Array | None, watch: Watch | None,
) -> Array:
    """The result of a block that is not cut into tiles."""
    if given is None:
        fits = out.flags.c_contiguous and not _changes(incoming, out)
        tile = incoming.whole(out if fits else None)
    else:
        tile = given
        if watch:
            watch.before(tile)
    weigh = watch is not None and watch.weighs
    result, energy = transformed(tile, calls, works, library, place, weigh)
    if watch:
        watch.after(result, 0, None, energy)
    return result


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
    calls, works = calls_of(round_), works_of(round_, block, filters or {})
    dim, width = tiling
    given = incoming.as_is if library.elsewhere and calls.begins_with_ffts else None
    if math.prod(out.shape[:dim]) > 1 and not calls.one_call:
        given = None
    tiles = (
        incoming.tiles(dim, width, out, cuts) if given is None else _views(given, dim, cuts)
    )
    _tile_by_tile(tiles, dim, calls, works, library, out, out, ())


def _tile_by_tile(
    tiles: Iterable[tuple[slice, Array]], dim: int, calls: Calls, works: list[Work],
    library: FFTLibrary, out: Array, place: Array | None, rolls: Rolls,
    watch: Watch | None = None,
) -> None:
    """Take tiles through a round into `out`, at once where it is their `place`."""
    weigh = watch is not None and watch.weighs
    first = watch is not None and watch.stays and not rolls  # what is wrong is stored again
    again = _again(calls, library)
    for part, tile in tiles:
        if watch:
            if watch.is_done(part):
                continue
            watch.before(tile)
        target = out[(slice(None),) * dim + (part,)]
        room = None if place is None else target
        if again is not None:
            shared = room is None or np.may_share_memory(tile, room)
            result, energy = again(tile, None if shared else room), None
        else:
            inside = [work.within(dim, part) for work in works]
            result, energy = transformed(tile, calls, inside, library, room, weigh)
        if first:
            stored = _store(target, result, rolls, weigh)
            energy = stored if energy is None else energy
        if watch:
            watch.after(result, dim, part, energy)
        if not first:
            _store(target, result, rolls)


def _again(calls: Calls, library: FFTLibrary) -> Callable[[Array, Array | None], Array] | None:
    """What takes tile after tile through a round that is one complex FFT and nothing else."""
    if not calls.one_call or not calls.c2c:
        return None
    (call,) = calls.c2c
    return library.again(call.dims, call.sign, call.scale)


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


def _store(target: Array, result: Array, rolls: Rolls, weigh: bool = False) -> float | None:
    """Copy a tile to where it belongs, unless it lies there already.

    In a dimension that is rolled, its first values go behind the others. Return its energy if it
    is asked for, and the copy finds it on the way.
    """
    there = same_memory(result, target)
    if there and not rolls:
        return None
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
    total: float | None = 0.0
    with measured("scatter", target.nbytes):
        for cut, place in parts:
            found = copied(target[place], result[cut], weigh)
            total = None if total is None or found is None else total + found
    return total if weigh else None
