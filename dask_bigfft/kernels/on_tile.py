"""All steps of a round on one tile.

::

    r2c -> chirp -> c2c over all digits -> filter, c2c back -> twiddle -> chirp -> c2r

The digit of a step is the innermost dimension of its axis, so a row of the tile has one value of
the axis' other digits, and the factors of a row follow from that value alone.

May import `decomposition` and this room.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.steps import Chirp, Divisor
from dask_bigfft.errors import KernelError
from dask_bigfft.events import measured
from dask_bigfft.kernels.calls import Call, Calls, Factors, Work, factor
from dask_bigfft.kernels.libraries import FFTLibrary
from dask_bigfft.kernels.twiddle import multiply_chirp, twiddle

Array = npt.NDArray[Any]


def _divide(tile: Array, divisor: Divisor | None) -> None:
    """Divide in place, if there is something to divide by."""
    if divisor is not None:
        tile.view(tile.real.dtype)[...] *= factor(divisor, tile.dtype)


def _rows(tile: Array, dim: int) -> Array:
    """View of a contiguous tile as rows, digit, and what is inside of the digit."""
    shape = tile.shape
    rows = tile.reshape(math.prod(shape[:dim]), shape[dim], math.prod(shape[dim + 1 :]))
    if rows.ctypes.data != tile.ctypes.data:
        raise KernelError("a tile has to be contiguous")
    return rows


def _chirped(
    tile: Array, work: Work, index: Factors | None, stride: int, chirp: Chirp, divisor: Divisor
) -> None:
    assert index is not None
    rows, scale = _rows(tile, work.dim), factor(divisor, tile.dtype)
    places = index.table * chirp.step + chirp.offset
    along = stride * chirp.step
    multiply_chirp(rows, places, along, chirp.length, chirp.sign, scale, chirp.turns)


def _multiplied(
    tile: Array, work: Work, library: FFTLibrary, weigh: bool
) -> tuple[Array, float | None]:
    """Filter (and transform back) and twiddle; and the energy of that, where it is found."""
    energy: float | None = None
    step, sign = work.step, work.step.sign
    if work.spectrum is not None:
        rows, table = _rows(tile, work.dim), work.spectrum.table
        batch = rows.reshape(-1, *table.shape, rows.shape[2])
        batch *= table[:, :, None]
        tile = library.c2c(tile, (work.dim,), -sign)
        sign = -sign
    if step.twiddle is not None:
        rows = _rows(tile, work.dim)
        assert work.index_twiddle is not None
        scale = factor(step.divisor, tile.dtype)
        with measured("twiddle", tile.nbytes):
            index = work.index_twiddle.rows(len(rows))
            energy = twiddle(rows, index, step.twiddle, sign, scale, weigh)
    return tile, energy


def _room(tile: Array, call: Call, out: Array | None, dense: bool) -> Array | None:
    """The place of a tile's result, if a call that makes or takes real values can answer there.

    That is where it has the shape and the dtype of the answer, and is `dense` if it has to be,
    for what follows to be done there.
    """
    if out is None or (dense and not out.flags.c_contiguous):
        return None
    dim, real = call.dims[-1], tile.real.dtype
    n = call.length if call.kind == "c2r" else tile.shape[dim] // 2 + 1
    dtype = real if call.kind == "c2r" else np.result_type(real, np.complex64)
    shape = (*tile.shape[:dim], n, *tile.shape[dim + 1 :])
    return out if out.shape == shape and out.dtype == dtype else None


def transformed(
    tile: Array, calls: Calls, works: list[Work], library: FFTLibrary, out: Array | None = None,
    weigh: bool = False,
) -> tuple[Array, float | None]:
    """All steps of a round on a contiguous tile, which is overwritten.

    And the energy of the result if it is asked for, and what comes last finds it on the way.

    A library that can answers in `out` and leaves the tile alone, where the first call may, and
    where the last one does, which gives real values; what follows a call needs `out` to be
    contiguous.
    """
    if out is not None and (not library.supports_out or np.may_share_memory(tile, out)):
        out = None
    place = None
    if out is not None and calls.begins_with_ffts:
        place = out if calls.one_call or out.flags.c_contiguous else None
    for call in calls.r2c:
        *others, dim = call.dims
        half = _room(tile, call, out, not calls.one_call) if calls.begins_with_r2c else None
        tile = library.r2c(tile, dim, call.sign, call.scale, half, tuple(others))
        tile = np.ascontiguousarray(tile) if half is None else half
        _divide(tile, call.left)
    for work in works:
        if (step := work.step).kind == "c2c" and step.chirp_in is not None:
            _chirped(tile, work, work.index_in, step.source.stride, step.chirp_in, Divisor())
    for call in calls.c2c:
        tile = library.c2c(tile, call.dims, call.sign, call.scale, place)
        _divide(tile, call.left)
    energy: float | None = None
    for work in works:
        if work.step.kind != "c2r":
            tile, energy = _multiplied(tile, work, library, weigh and work is works[-1])
    for work in works:
        if (step := work.step).kind == "c2c" and step.chirp_out is not None:
            energy = None
            _chirped(
                tile, work, work.index_out, step.target.stride, step.chirp_out, step.divisor
            )
    for call in calls.c2r:
        energy = None
        (dim,), real = call.dims, _room(tile, call, out, dense=False)
        tile = library.c2r(tile, dim, call.length, call.sign, call.scale, real)
        tile = np.ascontiguousarray(tile) if real is None else real
        _divide(tile, call.left)
    return tile, energy
