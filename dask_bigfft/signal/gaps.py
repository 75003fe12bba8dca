"""Filling of gaps by iterated projection.

`fill_gaps` repeats two steps (A. Papoulis, IEEE Trans. Circuits Syst. 22, 1975; R. W. Gerchberg,
Opt. Acta 21, 1974): all frequencies outside a band become 0, and the known values are put back. The
error in the gaps falls with each step by the largest eigenvalue of "set to 0 outside the gaps,
limit to the band, set to 0 outside the gaps", which power iterations estimate from the mask alone::

    known values --> filter (one plan) --> gaps, known values put back --> filter --> ...
                                  ^ x is read again, if it does not fit memory
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Unpack, cast

import dask.array as da
import numpy as np

from dask_bigfft.api.arguments import parse_array, parse_limit
from dask_bigfft.api.calls import by_block
from dask_bigfft.api.kinds import keeps_kind
from dask_bigfft.api.plans import read_directly
from dask_bigfft.arrays import Array
from dask_bigfft.errors import (
    ArgumentError,
    MemoryLimitError,
    parse_as,
    parse_count,
    raise_invalid,
)
from dask_bigfft.gpu.own_gpu import on_own_gpu
from dask_bigfft.kernels.views import allocate_like, empty_like, is_on_gpu
from dask_bigfft.planner.cost import graph_nbytes
from dask_bigfft.planner.explain import enough_bytes
from dask_bigfft.planner.plan import Plan, with_more_memory, with_reason
from dask_bigfft.planner.request import Machine
from dask_bigfft.signal.arguments import (
    Axes,
    SignalOptions,
    in_chunks,
    nonempty,
    parse_mask,
    parse_signal_options,
    several_axes,
    without_empty,
)
from dask_bigfft.signal.filters import (
    Filter,
    PlannedFilter,
    Spacing,
    parse_filter,
    parse_spacing,
    planned_filter,
)
from dask_bigfft.signal.holes import GapSources, in_larger_blocks
from dask_bigfft.signal.passbands import SAME, BoxBand
from dask_bigfft.signal.segments import machine_of
from dask_bigfft.transforms.spec import work_dtype

__all__ = ["fill_gaps"]

#: Number of power iterations that estimate the convergence of `fill_gaps`.
POWER_ITERATIONS = 4

#: Tasks of a block in an iteration (measured: 5).
TASKS_OF_BLOCK = 6

#: Memory limit in blocks of an iteration, if these are read from files.
LIMIT_IN_BLOCKS = 32


def _parse_band(
    band: Any,
    distances: tuple[float, ...],
) -> Callable[..., Any]:
    """Return the transfer function of a band; refuse frequencies above the highest one."""
    if callable(band):
        return cast("Callable[..., Any]", band)
    allowed = "a highest frequency above 0, one for each axis, or a function of frequencies"
    limits = parse_as(
        lambda value: np.ravel(np.asarray(value, float)),
        "band",
        band,
        allowed,
    )
    count = len(distances)
    if limits.size == 1:
        limits = np.repeat(limits, count)
    if limits.size != count or not (limits > 0).all():
        raise_invalid("band", band, allowed)
    for limit, distance in zip(limits, distances, strict=True):
        highest = 0.5 / distance
        if limit > highest * (1 + SAME):
            need = f"at most the highest frequency of the samples, {highest:g} for a spacing of "
            raise_invalid("band", band, f"{need}{distance:g}")
    return BoxBand(tuple(limits.tolist()))


def _filter_of_band(
    array: da.Array,
    band: Callable[..., Any],
    along: tuple[int, ...],
    distances: tuple[float, ...],
) -> Filter:
    """Return the filter that limits an array to a band.

    If the band has a highest frequency along each axis, no others are exchanged. The last axis of
    the transform is halved, for which one in a single chunk is best.
    """
    if not isinstance(band, BoxBand):
        return parse_filter(array, band, along, spacing=distances)
    places = sorted(
        range(len(along)),
        key=lambda place: (array.numblocks[along[place]] == 1, along[place]),
    )
    limits = tuple(band.limits[place] for place in places)
    spacing = tuple(distances[place] for place in places)
    chosen_filter = parse_filter(
        array,
        BoxBand(limits),
        tuple(along[place] for place in places),
        spacing=spacing,
    )
    windows = {}
    for axis, limit, distance in zip(chosen_filter.axes, limits, spacing, strict=True):
        spectrum = chosen_filter.spectrum(axis)
        highest = math.floor(limit * distance * spectrum.length * (1 + SAME))
        window = spectrum.window(max(-highest, spectrum.lowest), highest)
        if window[1] < spectrum.count:
            windows[axis] = window
    return replace(chosen_filter, windows=windows)


@on_own_gpu
def _noise(
    x: Array,
    mask: Array | None = None,
    *,
    out_dtype: np.dtype[Any],
    block_id: tuple[int, ...],
) -> Array:
    """Return random numbers in gaps, and 0 elsewhere."""
    rng = np.random.default_rng(block_id)
    noise = np.asarray(rng.standard_normal(x.shape), like=x)
    return np.where(_gaps(x, mask), noise, 0).astype(out_dtype)


@on_own_gpu
def _gaps(x: Array, mask: Array | None = None) -> Array:
    """Return True where the mask is, or without a mask where values are NaN or infinite."""
    if mask is None:
        return ~np.isfinite(x)
    return np.asarray(mask, like=x)


@on_own_gpu
def _put_back(
    limited: Array,
    x: Array,
    mask: Array | None = None,
) -> Array:
    """Return band-limited values in gaps, and known ones elsewhere."""
    filled: Array = allocate_like(limited, limited.shape, limited.dtype)
    filled[...] = x
    np.copyto(filled, limited, where=_gaps(x, mask))
    return filled


@on_own_gpu
def _only_in_gaps(
    limited: Array,
    x: Array,
    mask: Array | None = None,
) -> Array:
    """Return band-limited values in gaps, and 0 elsewhere."""
    inside: Array = allocate_like(limited, limited.shape, limited.dtype)
    inside.fill(0)
    np.copyto(inside, limited, where=_gaps(x, mask))
    return inside


@on_own_gpu
def _sum_of_squares(x: Array, *others: Array) -> Array:
    """Return the sum of squares of a block, or of its difference from another one."""
    difference = x - others[0] if others else x
    squares = np.abs(difference) ** 2
    total: Array = np.sum(squares, dtype=float)
    return np.asarray(total, like=x).reshape((1,) * x.ndim)


def _norm(x: da.Array, *others: da.Array) -> da.Array:
    """Return the root of the sum of squares of an array, or of its difference from another one."""
    squares: Any = by_block(
        _sum_of_squares,
        x,
        *others,
        dtype=float,
        chunks=tuple((1,) * count for count in x.numblocks),
    )
    return cast("da.Array", da.sqrt(squares.sum()))


@on_own_gpu
def _first_known(
    factor: Array,
    x: Array,
    mask: Array | None = None,
    *,
    out_dtype: np.dtype[Any],
    iterations: int,
    tolerance: float,
) -> Array:
    """Return known values, and 0 in gaps; raise an error if the gaps cannot be filled."""
    value = float(np.ravel(factor)[0])
    remaining = value**iterations
    if remaining > tolerance:
        needed = "more than 100000"
        if 0 < value < 1:
            needed = str(math.ceil(math.log(tolerance) / math.log(value)))
        raise ArgumentError(
            "`band` cannot fill the gaps: by a forecast convergence factor of at least "
            f"{value:.6g}, {iterations} iterations leave {remaining:.2g} of the error, above "
            f"tolerance={tolerance:g}. Need a narrower band, smaller gaps, or iterations={needed}, "
            "if not more"
        )
    zero = np.dtype(out_dtype).type(0)
    return np.where(_gaps(x, mask), zero, x.astype(out_dtype, copy=False))


def _planned(
    array: da.Array,
    missing: da.Array | None,
    dtype: np.dtype[Any],
    chosen_filter: Filter,
    options: SignalOptions,
    count: int,
) -> tuple[PlannedFilter, GapSources]:
    """Return the planned filter of `count` iterations, and the sources as iterations read them.

    Beside the plan, threads have blocks of the sources and of what is put back. The first exchange
    of an iteration begins before the last one of the iteration before has ended, so that a plan may
    take half of the memory. The forecast of the returned plan is that of all iterations, with
    dask's graph, which no memory limit counts.
    """
    machine = machine_of(options, is_on_gpu(array._meta))
    block_shape = tuple(max(cuts) for cuts in array.chunks)
    block = math.prod(block_shape)
    beside_nbytes = machine.threads * block * (2 * dtype.itemsize + 2 + array.dtype.itemsize)
    inner = cast("SignalOptions", {**options, "chunks": array.chunks})
    limit = parse_limit("memory_limit", options.get("memory_limit"))
    if limit is not None:
        least = 2 * beside_nbytes
        if limit <= least:
            need = f"more than {enough_bytes(least)} for blocks of shape {block_shape}"
            raise_invalid(
                "memory_limit",
                options["memory_limit"],
                need,
                kind=MemoryLimitError,
            )
        inner["memory_limit"] = (limit - beside_nbytes) // 2
    like: Any = da.zeros_like(array, dtype=dtype)
    planned = planned_filter(like, chosen_filter, inner)
    if planned.plan is None:
        return planned, GapSources.of(array, missing, options)
    others_nbytes = 2 * planned.plan.expected.peak_host + beside_nbytes
    sources = GapSources.of(array, missing, options, others_nbytes)
    if sources.fit_memory:
        beside_nbytes += sources.nbytes // machine.workers
    tasks = count * TASKS_OF_BLOCK * math.prod(array.numblocks)
    beside_nbytes += graph_nbytes(planned.plan, tasks)
    plan = _with_memory_of_all(planned.plan, count, beside_nbytes, machine)
    return replace(planned, plan=plan), sources


def _with_memory_of_all(
    plan: Plan,
    count: int,
    beside_nbytes: int,
    machine: Machine,
) -> Plan:
    """Return the plan of an iteration with a forecast of the memory of `count` iterations.

    Two of them may overlap, beside some bytes of all.
    """
    text = f"time is that of one of {count} equal filters, memory that of all: two may overlap"
    return with_more_memory(with_reason(plan, text), beside_nbytes, times=2).changed(
        machine=replace(plan.machine, memory_limit=machine.memory_limit),
    )


@keeps_kind
def fill_gaps(
    x: Any,
    mask: Any = None,
    *,
    band: Any,
    iterations: int = 20,
    tolerance: float = 1e-3,
    axes: Axes = None,
    spacing: Spacing = 1.0,
    **options: Unpack[SignalOptions],
) -> tuple[da.Array, da.Array]:
    """Return an array with band-limited values in its gaps, and how they converge.

    Parameters
    ----------
    x : dask array or array-like
        Of any chunking; only read. It is assumed to be periodic, and band-limited apart from noise.
    mask : array-like, optional
        Booleans that broadcast against `x`, True in gaps. By default gaps are NaN or infinite.
    band : float, sequence of float or callable
        Highest frequency of the band, for all axes or for each, or a transfer function as
        `fourier_filter` takes it.
    iterations : int
        Number of iterations, each a transform and its inverse.
    tolerance : float
        Fraction of the error that may remain by the forecast.
    axes : int or sequence of int, optional
        Axes of the transform, all by default.
    spacing : float or sequence of float
        Distance of two samples along all axes, or a sequence with that of each axis in `axes`.
    chunks, memory_limit, kernel, device, device_memory_limit, verify, planner : optional
        As for `fourier_filter`.

    Returns
    -------
    dask.array.Array
        Lazy: the values of `x`, and in gaps those of a band-limited array; of single precision for
        single-precision `x`. Known values that are not finite make their lines NaN.
    dask.array.Array
        Lazy, of one axis: misfit of the band-limited array at the known values in each iteration,
        relative to their norm. It falls to the part of `x` that is outside of the band.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments, among them a band above the highest frequency. When computed, for
        gaps that are too wide for the band: a few power iterations forecast the convergence factor
        from below, and the message has it.

    Notes
    -----
    This is the iteration of Papoulis and Gerchberg. A gap that is wider than a wave of the highest
    frequency converges slowly, and noise in the known values grows in it. A line without any known
    value is such a gap, too. Compute both results together, so that iterations run once.

    All iterations have the same plan, that of one `fourier_filter`. For highest frequencies, only
    those of the band travel between blocks. If memory is too small to keep
    `x` beside it, the tasks that make `x` run again in each iteration: store what is expensive.
    The result of another transform stays in memory. `memory_limit` does not count dask's graph, of
    about 15 kB for each block and iteration; the forecast of `dask_bigfft.plan` does.

    See Also
    --------
    convolve_masked : Means of known neighbours.

    Examples
    --------
    >>> wave = np.cos(2 * np.pi * np.arange(64) / 32)
    >>> holes = np.arange(64) % 9 == 0
    >>> filled, misfits = fill_gaps(np.where(holes, np.nan, wave), band=0.05)
    >>> bool(abs(filled - wave).max() < 1e-6), bool(misfits[-1] < 1e-6)
    (True, True)
    """
    parse_signal_options(options)
    source = without_empty(read_directly(parse_array(x, "fft")))
    memory_limit = machine_of(options, is_on_gpu(source._meta)).memory_limit
    array = source
    if memory_limit is not None:  # iterations have fewer tasks in larger blocks
        array = in_larger_blocks(source, memory_limit // LIMIT_IN_BLOCKS)
    along = several_axes(axes, array.ndim)
    nonempty(array, along)
    distances = parse_spacing("spacing", spacing, len(along))
    transfer = _parse_band(band, distances)
    count = parse_count("iterations", iterations, 1, 10_000)
    allowed = "a number above 0 and below 1"
    limit = parse_as(float, "tolerance", tolerance, allowed)
    if not 0 < limit < 1:
        raise_invalid("tolerance", tolerance, allowed)
    complex_dtype = work_dtype(array.dtype)
    is_complex = array.dtype.kind == "c"
    dtype = complex_dtype if is_complex else np.empty(0, complex_dtype).real.dtype
    missing = parse_mask(mask, array)
    like: Any = da.zeros_like(array, dtype=dtype)
    chosen_filter = _filter_of_band(
        like,
        transfer,
        along,
        distances,
    )
    planned, gap_sources = _planned(
        array,
        missing,
        dtype,
        chosen_filter,
        options,
        POWER_ITERATIONS + count,
    )
    try:
        factor = _convergence_factor(gap_sources, dtype, planned)
    except MemoryLimitError as error:
        if options.get("memory_limit") is None:
            raise
        shared = f"two iterations that overlap share `memory_limit`={options['memory_limit']!r}"
        raise MemoryLimitError(f"{shared}, and for one of them {error}") from None
    filled = by_block(
        _first_known,
        factor[(np.newaxis,) * array.ndim],
        *gap_sources.read(0),
        dtype=dtype,
        chunks=array.chunks,
        meta=empty_like(array._meta, array.ndim, dtype),
        out_dtype=dtype,
        iterations=count,
        tolerance=limit,
    )
    size = da.maximum(_norm(filled), np.finfo(float).tiny)
    misfits = []
    for turn in range(1, count + 1):
        limited = planned.applied(filled)
        filled = by_block(_put_back, limited, *gap_sources.read(turn), dtype=dtype)
        misfits.append(_norm(limited, filled) / size)  # they are equal in gaps
    filled = in_chunks(filled, source.chunks)
    return in_chunks(filled, options.get("chunks")), da.stack(misfits)


def _convergence_factor(
    gap_sources: GapSources,
    dtype: np.dtype[Any],
    planned: PlannedFilter,
) -> da.Array:
    """Return the factor by which the error in gaps falls, estimated by power iterations."""
    vector = by_block(_noise, *gap_sources.read(-1), dtype=dtype, out_dtype=dtype)
    before = _norm(vector)
    factor: Any = before
    for turn in range(POWER_ITERATIONS):
        limited = planned.applied(vector)
        vector = by_block(_only_in_gaps, limited, *gap_sources.read(-2 - turn), dtype=dtype)
        after = _norm(vector)
        factor = after / da.maximum(before, np.finfo(float).tiny)
        before = after
    return cast("da.Array", factor)
