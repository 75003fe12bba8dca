"""Power and cross spectra, and their averages over directions, in one pass.

Spectra are squared or multiplied block by block. For an average over directions, each block is
summed into bins at once, so that the spectrum is never in memory as a whole. The order of the
frequencies does not matter for this, so the spectrum stays in transposed order.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal, Unpack

import dask.array as da
import numpy as np

from dask_bigfft.api.arguments import parse_array
from dask_bigfft.api.calls import applied, by_block
from dask_bigfft.api.kinds import keeps_kind, keeps_rows
from dask_bigfft.arrays import Array
from dask_bigfft.errors import (
    parse_as,
    parse_choice,
    parse_flag,
    raise_invalid,
)
from dask_bigfft.gpu.own_gpu import on_own_gpu
from dask_bigfft.signal.arguments import (
    Axes,
    SignalOptions,
    nonempty,
    parse_mask,
    parse_pair,
    several_axes,
)
from dask_bigfft.signal.filters import Spacing, parse_samples
from dask_bigfft.signal.transforms import (
    ProductTimer,
    SpectrumAxis,
    Transforms,
    planned,
    product_timer,
    spectrum_axes,
)

__all__ = ["cross_spectrum", "power_spectrum", "radial_power_spectrum"]

Scaling = Literal["density", "spectrum"]

#: Relative error, at most, of the magnitude of a frequency that several axes make up.
ROUNDING = 1e-12


def _scale(lengths: Sequence[int], spacing: Sequence[float], scaling: Any) -> float:
    """Return the scale factor of a squared spectrum."""
    parse_choice(
        "scaling",
        scaling,
        "density",
        "spectrum",
    )
    pairs = zip(lengths, spacing, strict=True)
    return math.prod(d / n if scaling == "density" else 1 / (n * n) for n, d in pairs)


def _power_or_cross_spectrum(
    arrays: tuple[da.Array, ...],
    axes: Axes,
    d: Any,
    scaling: Any,
    onesided: Any,
    options: SignalOptions,
) -> da.Array:
    """Return the power spectrum of one array, or the cross spectrum of two.

    In a cross spectrum the spectrum of the first array is conjugated.
    """
    _, along, spacing = parse_samples(
        arrays[0],
        axes,
        d,
        options,
    )
    real = all(a.dtype.kind != "c" for a in arrays)
    transforms = Transforms(along, nonempty(arrays[0], along), real)
    scale = _scale(transforms.lengths, spacing, scaling)
    is_onesided = parse_flag("onesided", onesided)
    chunks = options.get("chunks")
    first_plan = transforms.forward(arrays[0], options, "auto" if chunks is None else chunks)
    plans = [first_plan]
    for a in arrays[1:]:
        plans.append(transforms.forward(a, options, chunks=first_plan.chunks))
    dtype = first_plan.spec.real_dtype
    if len(arrays) > 1:
        dtype = np.result_type(*(plan.spec.out_dtype for plan in plans))
    spectra = [applied(a, plan) for a, plan in zip(arrays, plans, strict=True)]
    return by_block(
        _crossed,
        *spectra,
        dtype=dtype,
        scale=scale,
        axes=spectrum_axes(first_plan),
        onesided=is_onesided,
        timer=product_timer(spectra[0], first_plan),
    )


@on_own_gpu
def _crossed(
    *blocks: Array,
    scale: float,
    axes: tuple[SpectrumAxis, ...],
    onesided: bool,
    timer: ProductTimer,
    block_id: Any,
) -> Array:
    """Return scaled products, which include the missing half of a spectrum if `onesided`.

    Of two blocks, the first one is conjugated; one block is multiplied by its own conjugate.
    """
    x = blocks[0]
    with timer.measured(x.nbytes):
        is_cross = len(blocks) == 2
        squared: Array = np.conjugate(x) * blocks[1] if is_cross else x.real**2 + x.imag**2
        squared *= squared.real.dtype.type(scale)
        if onesided and axes[-1].half:
            squared *= axes[-1].weights(block_id, x).astype(squared.real.dtype)
    return squared


@keeps_rows("mask")
def power_spectrum(
    x: Any,
    axes: Axes = None,
    *,
    d: Spacing = 1.0,
    scaling: Scaling = "density",
    onesided: bool = True,
    mask: Any = None,
    windows: Sequence[Any] = (),
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return the power spectrum of an array.

    Parameters
    ----------
    x : dask array or array-like
        Of any chunking; only read. Its mean is not subtracted.
    axes : int or sequence of int, optional
        The axes, all by default; half of the last one is returned for real input.
    d : float or sequence of float
        Distance of two samples along all axes, or a sequence with that of each axis in `axes`.
    scaling : {"density", "spectrum"}
        "density": power per unit of frequency, whose sum times the product of all 1/(N*d) is the
        mean square. "spectrum": power, whose sum is the mean square.
    onesided : bool
        True to include the power of the missing half of the spectrum of real input.
    mask : array-like, optional
        Booleans that broadcast against `x`, True where values are missing. They count as 0, and the
        spectrum is divided by the part of the values along the axes that are known: its sum is
        their mean square, and its expected value for white noise is the same as without a mask. The
        spectrum is still convolved with that of the mask, so that sharp lines have side lobes.
        Where no value is known it is NaN.
    windows : sequence of array-like
        Windows that `x` has been multiplied by, one along each of the axes. With `mask`, a known
        value then has the square of the window there as its weight; without, they change nothing.
    chunks, memory_limit, kernel, device, device_memory_limit, verify, planner : optional
        `chunks` of the result; the others as transforms in `fft` take them.

    Returns
    -------
    dask.array.Array
        Lazy, real; frequencies are those of `fft.fftfreq`, and of `fft.rfftfreq` along the last of
        the axes of real input.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    See Also
    --------
    welch : Average over segments.
    radial_power_spectrum : Average over directions.

    Examples
    --------
    >>> power_spectrum([1.0, -1.0, 1.0, -1.0], scaling="spectrum").compute()
    array([0., 0., 1.])
    """
    array = parse_array(x, "fft")
    along = several_axes(axes, array.ndim)
    window_values = _parse_windows(windows, [array.shape[axis] for axis in along])
    missing = parse_mask(mask, array)
    power = _power_or_cross_spectrum(
        (_with_zeros(array, missing),),
        axes,
        d,
        scaling,
        onesided,
        options,
    )
    return _power_of_known(
        power,
        missing,
        along,
        window_values,
    )


def _parse_windows(windows: Any, lengths: Sequence[int]) -> list[Array]:
    """Return a window for each length, or none if none are given."""
    allowed = f"no window, or arrays of {' and '.join(map(str, lengths))} real numbers"
    arrays = parse_as(
        lambda values: [np.array(window, float) for window in values],
        "windows",
        windows,
        allowed,
    )
    if arrays and [array.shape for array in arrays] != [(length,) for length in lengths]:
        raise_invalid("windows", windows, allowed)
    return arrays


def _with_zeros(array: Any, missing: Any) -> Any:
    """Return an array with 0 where values are missing; `missing` is None if none are."""
    if missing is None:
        return array
    return by_block(
        _zero_where_missing,
        array,
        missing,
        dtype=array.dtype,
    )


def _power_of_known(
    power: da.Array,
    missing: Any,
    along: tuple[int, ...],
    windows: Sequence[Array],
) -> da.Array:
    """Return a power divided by the weight of the values along some axes that are not missing.

    Parameters
    ----------
    power, missing : dask.array.Array
        The power, and True where values are missing. None stands for no missing values.
    along : tuple of int
        The axes.
    windows : sequence of ndarray
        Window along each of the axes, or none.
    """
    if missing is None:
        return power
    squares = [np.square(window) for window in windows]
    weights = []
    for axis, square in zip(along, squares, strict=False):  # no squares without windows
        shape = [1] * missing.ndim
        shape[axis] = len(square)
        chunks: list[Any] = [1] * missing.ndim
        chunks[axis] = missing.chunks[axis]
        weights.append(da.from_array(square.reshape(shape), tuple(chunks)))
    chunks_of_sums = list(missing.chunks)
    cuts = {axis: cut for axis, cut in enumerate(power.chunks) if axis not in along}
    for axis in along:
        chunks_of_sums[axis] = (1,) * missing.numblocks[axis]
        cuts[axis] = 1
    sums: Any = by_block(
        _weight_of_known,
        missing,
        *weights,
        dtype=float,
        chunks=tuple(chunks_of_sums),
        axes=along,
    )
    total = math.prod(missing.shape[axis] for axis in along)
    if squares:
        total = math.prod(float(square.sum()) for square in squares)
    divided: da.Array = by_block(
        _divided_by_share,
        power,
        sums.sum(axis=along, keepdims=True).rechunk(cuts),
        dtype=power.dtype,
        total=total,
    )
    return divided


@on_own_gpu
def _zero_where_missing(block: Array, missing: Array) -> Any:
    """Return a block with 0 where values are missing."""
    hidden = np.asarray(missing, like=block)
    with_zeros: Any = np.where(hidden, block.dtype.type(0), block)
    return with_zeros


@on_own_gpu
def _weight_of_known(missing: Array, *weights: Array, axes: tuple[int, ...]) -> Array:
    """Return the sum over some axes of the weights, 1 by default, of values that are known."""
    known = np.logical_not(missing)
    for weight in weights:
        known = known * np.asarray(weight, like=missing)
    total = np.sum(known, axis=axes, keepdims=True, dtype=float)
    return np.asarray(total, like=missing)


@on_own_gpu
def _divided_by_share(power: Array, known: Array, total: float) -> Array:
    """Return a power divided by the part of a total weight that is known."""
    share = np.asarray(known, like=power) / total
    with np.errstate(divide="ignore", invalid="ignore"):
        divided: Array = power / share.astype(power.dtype)
    return divided


@keeps_kind
def cross_spectrum(
    x: Any,
    y: Any,
    axes: Axes = None,
    *,
    d: Spacing = 1.0,
    scaling: Scaling = "density",
    onesided: bool = True,
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return the cross spectrum of two arrays, conj(X) times Y.

    Parameters
    ----------
    x, y : dask array or array-like
        Of one shape.
    axes, d, scaling, onesided, chunks, ..., planner
        See `power_spectrum`.

    Returns
    -------
    dask.array.Array
        Lazy, complex; its phase is the phase of `y` minus that of `x`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> x = [1.0, 0.0, 0.0, 0.0]
    >>> cross_spectrum(x, np.roll(x, 1), scaling="spectrum").compute().round(4)
    array([ 0.0625+0.j   ,  0.    -0.125j, -0.0625+0.j   ])
    """
    return _power_or_cross_spectrum(
        parse_pair(x, y),
        axes,
        d,
        scaling,
        onesided,
        options,
    )


# --- averages over directions ---------------------------------------------------------------


@on_own_gpu
def _binned(
    block: Array,
    axes: tuple[SpectrumAxis, ...],
    spacing: tuple[float, ...],
    edges: Array,
    timer: ProductTimer,
    block_id: tuple[int, ...],
) -> Array:
    """Return the power (real part) and number (imaginary part) of frequencies in each bin."""
    with timer.measured(block.nbytes):
        return _sums_of_bins(
            block,
            axes,
            spacing,
            edges,
            block_id,
        )


def _sums_of_bins(
    block: Array,
    axes: tuple[SpectrumAxis, ...],
    spacing: tuple[float, ...],
    edges: Array,
    block_id: tuple[int, ...],
) -> Array:
    """Return the result of `_binned`."""
    count = len(edges) - 1
    frequencies = [
        axis.index(block_id, block) / (axis.length * step)
        for axis, step in zip(axes, spacing, strict=True)
    ]
    radius = np.sqrt(sum(frequency**2 for frequency in frequencies))
    weights = math.prod(axis.weights(block_id, block) for axis in axes)
    above_rounding = radius * (1 + ROUNDING)
    bins = np.searchsorted(np.asarray(edges, like=block), above_rounding, side="right") - 1
    weights = np.where((bins >= 0) & (bins < count), weights, 0.0)
    bins = np.clip(bins, 0, count - 1)
    # The transformed axes come last, as one axis of all frequencies.
    along = [axis.axis for axis in axes]
    ends = range(-len(axes), 0)
    flat_bins = np.moveaxis(bins, along, ends).reshape(-1)
    flat_weights = np.moveaxis(weights, along, ends).reshape(-1)
    power = block.real.astype(float) ** 2 + block.imag.astype(float) ** 2
    power = np.moveaxis(power, along, ends)
    others = power.shape[: -len(axes)]
    rows = power.reshape(math.prod(others), len(flat_bins))  # -1 is refused for empty blocks
    number = 1j * np.bincount(flat_bins, flat_weights, count)
    sums = np.empty_like(rows, complex, shape=(len(rows), count))
    for row, row_sums in zip(rows, sums, strict=True):
        row_sums[...] = np.bincount(flat_bins, row * flat_weights, count) + number
    ones = (1,) * (len(axes) - 1)
    return np.moveaxis(sums.reshape(*others, *ones, count), ends, along)


def _edges(bins: Any, lengths: tuple[int, ...], spacing: tuple[float, ...]) -> Array:
    """Return the edges of frequency bins."""
    if bins is None:
        width = max(1 / (n * d) for n, d in zip(lengths, spacing, strict=True))
        highest = min((n // 2) / (n * d) for n, d in zip(lengths, spacing, strict=True))
        return np.asarray((np.arange(int(highest / width + 1e-9) + 2) - 0.5) * width)
    allowed = "None, or two or more rising edges"
    edges = parse_as(
        lambda values: np.asarray(values, float),
        "bins",
        bins,
        allowed,
    )
    if edges.ndim != 1 or len(edges) < 2 or not (np.diff(edges) > 0).all():
        raise_invalid("bins", bins, allowed)
    return edges


@keeps_kind
def radial_power_spectrum(
    x: Any,
    axes: Axes = None,
    *,
    d: Spacing = 1.0,
    bins: Sequence[float] | None = None,
    scaling: Scaling = "density",
    mask: Any = None,
    windows: Sequence[Any] = (),
    **options: Unpack[SignalOptions],
) -> tuple[Array, da.Array]:
    """Return the mean of the power spectrum over all directions, by the magnitude of the frequency.

    Parameters
    ----------
    x, axes, d, scaling, mask, windows, chunks, ..., planner
        See `power_spectrum`. Both halves of the spectrum of real input are included.
    bins : sequence of float, optional
        Rising edges of bins of frequencies, in cycles per unit of `d`; a frequency belongs to the
        bin that begins at or below it, also if rounding puts it below the edge. By default, bins
        are as wide as the resolution of the coarsest axis and centred on multiples of this width,
        up to the lowest of the axes' highest frequencies.

    Returns
    -------
    ndarray
        Middle of each bin.
    dask.array.Array
        Lazy: mean power of the frequencies in each bin along the last of the axes, without the
        other axes, in the precision of the input; NaN for empty bins.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Notes
    -----
    This is one pass: each block of the spectrum is summed into bins immediately.

    Examples
    --------
    >>> frequencies, power = radial_power_spectrum(np.ones((8, 8)), scaling="spectrum")
    >>> frequencies, power.compute()
    (array([0.   , 0.125, 0.25 , 0.375, 0.5  ]), array([1., 0., 0., 0., 0.]))
    """
    array, along, spacing = parse_samples(
        x,
        axes,
        d,
        options,
    )
    missing = parse_mask(mask, array)
    array = _with_zeros(array, missing)
    real = array.dtype.kind != "c"
    lengths = nonempty(array, along)
    window_values = _parse_windows(windows, lengths)
    scale = _scale(lengths, spacing, scaling)
    transforms = Transforms(along, lengths, real)
    _, plan = planned(
        array,
        transforms,
        options,
        with_inverse=False,
    )
    edges = _edges(bins, lengths, spacing)
    spectrum = applied(array, plan)
    chunks = list(spectrum.chunks)
    for axis in along:  # one bin, or all of them along the last axis, for each block
        length = len(edges) - 1 if axis == along[-1] else 1
        chunks[axis] = (length,) * len(chunks[axis])
    sums = by_block(
        _binned,
        spectrum,
        dtype=complex,
        chunks=tuple(chunks),
        axes=spectrum_axes(plan),
        spacing=spacing,
        edges=edges,
        timer=product_timer(spectrum, plan),
    )
    for axis in along:
        sums = sum_of_blocks(sums, axis)
    precision = np.empty(0, plan.spec.work_dtype).real.dtype
    means = by_block(
        _mean,
        sums,
        scale=scale,
        precision=precision,
        dtype=precision,
    )
    power = _power_of_known(
        means,
        missing,
        along,
        window_values,
    )
    summed = along[:-1]
    if summed:
        power = power[tuple(0 if axis in summed else slice(None) for axis in range(power.ndim))]
    return (edges[1:] + edges[:-1]) / 2, power


def sum_of_blocks(a: Any, axis: int) -> Any:
    """Return the elementwise sum of the blocks along an axis, which have one shape.

    An array of one block along the axis is returned itself.
    """
    if a.numblocks[axis] == 1:
        return a
    bounds = (0, *itertools.accumulate(a.chunks[axis]))
    before = (slice(None),) * axis
    blocks = [a[(*before, slice(low, high))] for low, high in itertools.pairwise(bounds)]
    return da.stack(blocks).sum(axis=0)


@on_own_gpu
def _mean(sums: Array, scale: float, precision: np.dtype[Any]) -> Any:
    count = sums.imag
    means = np.where(count > 0, sums.real * scale / np.where(count > 0, count, 1), np.nan)
    return means.astype(precision, copy=False)
