"""Arrays with holes: convolution that leaves them out, and filling by iterated projection.

A single NaN makes a whole spectrum NaN. `convolve_masked` convolves the values with zeros in their
holes, and the array of their weights, which is 0 in holes and 1 elsewhere. The ratio is the mean of
the values that are known::

    x ------> known values -> convolution -+
        `---> weights ------> convolution -+--> ratio

`fill_gaps` repeats two steps (A. Papoulis, IEEE Trans. Circuits Syst. 22, 1975; R. W. Gerchberg,
Opt. Acta 21, 1974): all frequencies outside a band become 0, and the known values are put back. The
error in the gaps falls with each step by the largest eigenvalue of "set to 0 outside the gaps,
limit to the band, set to 0 outside the gaps", which power iterations estimate from the mask alone.
"""

import math
from collections.abc import Callable
from typing import Any, Literal, Unpack, cast

import dask.array as da
import numpy as np

from dask_bigfft.api.arguments import parse_array
from dask_bigfft.api.calls import by_block
from dask_bigfft.api.kinds import keeps_kind
from dask_bigfft.arrays import Array
from dask_bigfft.errors import (
    ArgumentError,
    ArgumentTypeError,
    parse_as,
    parse_choice,
    parse_count,
    parse_flag,
    raise_invalid,
)
from dask_bigfft.gpu.own_gpu import on_own_gpu
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
from dask_bigfft.signal.convolution import convolve
from dask_bigfft.signal.filters import Spacing, fourier_filter, parse_spacing
from dask_bigfft.signal.passbands import BoxBand
from dask_bigfft.transforms.spec import work_dtype

__all__ = ["convolve_masked", "fill_gaps"]

#: Sums of a kernel below which astropy refuses to divide by them.
LEAST_SUM = 1e-2

#: Sums of a kernel that count as 0 where it is not normalized.
ZERO_SUM = 1e-8

#: Number of power iterations that estimate the convergence of `fill_gaps`.
POWER_ITERATIONS = 4


def _parse_real_array(x: Any, name: str) -> da.Array:
    """Return an array of real floating-point numbers without empty chunks."""
    array = parse_array(x, "fft")
    if array.dtype.kind == "c":
        raise_invalid(name, f"dtype {array.dtype}", "real numbers", kind=ArgumentTypeError)
    dtype = np.empty(0, work_dtype(array.dtype)).real.dtype
    return without_empty(array.astype(dtype))


@on_own_gpu
def _missing(x: Array, mask: Array | None = None) -> Array:
    """Return True where values are masked, NaN or infinite."""
    missing: Array = ~np.isfinite(x)
    if mask is not None:
        missing |= np.asarray(mask, like=x)
    return missing


# --- convolution ----------------------------------------------------------------------------


@on_own_gpu
def _known(
    x: Array,
    mask: Array | None = None,
    *,
    in_holes: float,
    offset: float,
) -> Array:
    """Return values minus an offset, with another value in holes."""
    values = np.where(_missing(x, mask), x.dtype.type(in_holes), x)
    values -= x.dtype.type(offset)
    return values


@on_own_gpu
def _holes(x: Array, mask: Array | None = None) -> Array:
    """Return 1 in holes and 0 elsewhere."""
    holes: Array = _missing(x, mask).astype(x.dtype)
    return holes


@on_own_gpu
def _ratio(sums: Array, weights: Array, least: float) -> Array:
    """Return weighted means: sums divided by their weights.

    Where the weight is below `least`, the mean is NaN. If `least` is 0, it is 0 where the weight is
    that of rounding errors.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        means: Array = sums / weights
    if least > 0:
        means[weights < least] = np.nan
    else:
        means[weights < 10 * np.finfo(sums.dtype).eps] = 0
    return means


@on_own_gpu
def _with_nan(values: Array, x: Array, mask: Array | None = None) -> Array:
    """Return values with NaN where those of x are missing."""
    return np.where(_missing(x, mask), values.dtype.type(np.nan), values)


def _parse_kernel(
    kernel: Any,
    array: da.Array,
    normalize_kernel: Any,
    interpolates: bool,
) -> tuple[Array, float]:
    """Return the kernel whose sum is 1 if it can be, and the factor of the result."""
    allowed = f"an array in memory of {array.ndim} axes of real numbers"
    values = getattr(kernel, "array", kernel)  # of astropy's kernels
    if isinstance(values, da.Array):
        raise_invalid("kernel", kernel, allowed, kind=ArgumentTypeError)
    parsed = parse_as(lambda numbers: np.array(numbers), "kernel", values, allowed)
    if parsed.dtype.kind not in "biuf":
        raise_invalid("kernel", f"dtype {parsed.dtype}", allowed, kind=ArgumentTypeError)
    if parsed.ndim != array.ndim or parsed.size == 0:
        raise_invalid("kernel", f"shape {parsed.shape}", allowed)
    numbers = parsed.astype(float)
    numbers[~np.isfinite(numbers)] = 0
    total = float(numbers.sum())
    if callable(normalize_kernel):
        divisor = parse_as(
            float,
            "normalize_kernel",
            normalize_kernel(numbers),
            "a function that returns a number",
        )
        return numbers / divisor, divisor
    if parse_flag("normalize_kernel", normalize_kernel):
        if total < LEAST_SUM:
            need = f"a sum of at least {LEAST_SUM}, or normalize_kernel=False"
            raise_invalid("kernel", f"sum {total}", need)
        return numbers / total, 1.0
    if abs(total) >= ZERO_SUM:
        return numbers / total, total
    if interpolates:
        need = "a sum other than 0 for nan_treatment='interpolate'"
        raise_invalid("kernel", f"sum {total}", need)
    return numbers, 1.0


def _convolved(
    x: da.Array,
    kernel: Array,
    boundary: str,
    options: dict[str, Any],
) -> da.Array:
    """Return the convolution with a kernel whose middle is place n // 2, in the shape of x."""
    widths = [(0, 1 - n % 2) for n in kernel.shape]  # the middle of an odd length
    centred = np.pad(kernel, widths).astype(x.dtype)
    like = np.asarray(centred, like=x._meta)
    if boundary == "fill":
        return convolve(x, like, mode="same", **options)
    halo = [(n // 2, n // 2) for n in centred.shape]
    padded = da.pad(x, halo, mode="wrap")
    inner = {**options, "chunks": None}
    result: Any = convolve(padded, like, mode="valid", **inner)
    return in_chunks(result.rechunk(x.chunks), options.get("chunks"))


@keeps_kind
def convolve_masked(
    x: Any,
    kernel: Any,
    mask: Any = None,
    nan_treatment: Literal["interpolate", "fill"] = "interpolate",
    boundary: Literal["fill", "wrap"] = "fill",
    fill_value: float = 0.0,
    preserve_nan: bool = False,
    normalize_kernel: bool | Callable[..., Any] = True,
    min_wt: float = 0.0,
    **options: Any,
) -> da.Array:
    """Return the convolution of an array with holes, of which the holes are no part.

    Parameters
    ----------
    x : dask array or array-like
        Real, of any chunking; only read. Holes are NaN or infinite, or masked.
    kernel : array-like
        In memory, real, with as many axes as `x`. Its middle is place n // 2 of n along each axis.
    mask : array-like, optional
        Booleans that broadcast against `x`, True where values are missing.
    nan_treatment : {"interpolate", "fill"}
        Divide by the convolution of the weights, which are 0 in holes, or put `fill_value` there.
    boundary : {"fill", "wrap"}
        Values outside the array: `fill_value`, or those at the opposite end.
    fill_value : float
        Value outside the array, and in holes for ``nan_treatment="fill"``. With NaN and
        "interpolate", values outside the array are missing, too.
    preserve_nan : bool
        True to make holes NaN again.
    normalize_kernel : bool or callable
        True to divide the kernel by its sum, or a function that returns the divisor.
    min_wt : float
        Weights below it make the result NaN. With 0, results without any weight are 0.
    **options
        Options of `convolve`, without the FFT library `kernel`, which `bigfft.kernel` sets.

    Returns
    -------
    dask.array.Array
        Lazy, in the shape of `x`, as `astropy.convolution.convolve_fft` returns it; of single
        precision for single-precision `x`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments; for a kernel whose sum is 0 where it has to be divided by it.

    Notes
    -----
    The values and the weights take a convolution each. Without holes and with a finite
    `fill_value` the weights are 1.

    See Also
    --------
    fill_gaps : Band-limited values in the holes.

    Examples
    --------
    >>> convolve_masked([1.0, np.nan, 3.0], [1.0, 1.0, 1.0]).compute().round(6)
    array([0.5, 2. , 1.5])
    """
    parse_signal_options(options)
    array = _parse_real_array(x, "x")
    missing = parse_mask(mask, array)
    parse_choice("nan_treatment", nan_treatment, "interpolate", "fill")
    parse_choice("boundary", boundary, "fill", "wrap")
    parse_flag("preserve_nan", preserve_nan)
    fill = parse_as(float, "fill_value", fill_value, "a number")
    least = parse_as(float, "min_wt", min_wt, "a number")
    interpolates = nan_treatment == "interpolate"
    if not interpolates and not math.isfinite(fill):
        raise_invalid("fill_value", fill_value, "a finite number for nan_treatment='fill'")
    numbers, factor = _parse_kernel(
        kernel,
        array,
        normalize_kernel,
        interpolates,
    )
    if boundary == "wrap" and any(n > m for n, m in zip(numbers.shape, array.shape, strict=True)):
        need = f"at most the shape of x, {array.shape}, for boundary='wrap'"
        raise_invalid("kernel", f"shape {numbers.shape}", need)
    is_known_outside = boundary == "wrap" or math.isfinite(fill)
    offset = fill if boundary == "fill" and is_known_outside else 0.0
    sources = (array,) if missing is None else (array, missing)
    values = by_block(
        _known,
        *sources,
        dtype=array.dtype,
        in_holes=0.0 if interpolates else fill,
        offset=offset,
    )
    sums: Any = _convolved(
        values,
        numbers * factor,
        boundary,
        options,
    )
    outside = array.dtype.type(offset * numbers.sum() * factor)
    result = sums + outside if outside else sums
    if interpolates:
        weights = _weights(
            sources,
            numbers,
            boundary,
            is_known_outside,
            options,
        )
        result = by_block(
            _ratio,
            result,
            weights,
            dtype=array.dtype,
            least=least,
        )
    if preserve_nan:
        aligned = (source.rechunk(result.chunks) for source in sources)
        result = by_block(_with_nan, result, *aligned, dtype=array.dtype)
    return cast("da.Array", result)


def _weights(
    sources: tuple[da.Array, ...],
    kernel: Array,
    boundary: str,
    is_known_outside: bool,
    options: dict[str, Any],
) -> da.Array:
    """Return the convolution of the weights of known values.

    If values outside the array are known, it is the sum of the kernel minus the convolution of the
    holes.
    """
    array = sources[0]
    holes = by_block(_holes, *sources, dtype=array.dtype)
    one = array.dtype.type(1)
    convolved: Any = _convolved(
        holes if is_known_outside else one - holes,
        kernel,
        boundary,
        options,
    )
    if not is_known_outside:
        return cast("da.Array", convolved)
    return cast("da.Array", array.dtype.type(kernel.sum()).item() - convolved)


# --- filling --------------------------------------------------------------------------------


def _parse_band(band: Any, count: int) -> Callable[..., Any]:
    """Return the transfer function of a band."""
    if callable(band):
        return cast("Callable[..., Any]", band)
    allowed = "a highest frequency above 0, one for each axis, or a function of frequencies"
    limits = parse_as(
        lambda value: np.ravel(np.asarray(value, float)),
        "band",
        band,
        allowed,
    )
    if limits.size == 1:
        limits = np.repeat(limits, count)
    if limits.size != count or not (limits > 0).all():
        raise_invalid("band", band, allowed)
    return BoxBand(tuple(limits.tolist()))


@on_own_gpu
def _noise(missing: Array, out_dtype: np.dtype[Any], block_id: tuple[int, ...]) -> Array:
    """Return random numbers in gaps, and 0 elsewhere."""
    rng = np.random.default_rng(block_id)
    noise = rng.standard_normal(missing.shape)
    return np.where(missing, np.asarray(noise, like=missing), 0).astype(out_dtype)


@on_own_gpu
def _put_back(filtered: Array, known: Array, missing: Array) -> Array:
    """Return filtered values in gaps, and known ones elsewhere."""
    return np.where(missing, filtered, known)


@on_own_gpu
def _like_x(x: Array, mask: Array) -> Array:
    """Return a mask on the device of an array."""
    return np.asarray(mask, like=x)


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
def _refuse_slow(
    known: Array,
    factor: Array,
    iterations: int,
    tolerance: float,
) -> Array:
    """Return a block if the gaps can be filled; raise an error if they cannot."""
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
    return known


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
        Of any chunking; only read. It is taken to be periodic, and band-limited but for noise.
    mask : array-like, optional
        Booleans that broadcast against `x`, True in gaps. By default gaps are NaN or infinite.
    band : float, sequence of float or callable
        Highest frequency of the band, for all axes or for each, or a transfer function as
        `fourier_filter` takes it.
    iterations : int
        Number of iterations, each a transform and its inverse.
    tolerance : float
        Part of the error that may remain by the forecast.
    axes : int or sequence of int, optional
        Axes of the transform, all by default.
    spacing : float or sequence of float
        Distance of two samples, for all axes or for each.
    **options
        Keywords of `fourier_filter`.

    Returns
    -------
    dask.array.Array
        Lazy: the values of `x`, and in gaps those of a band-limited array; of single precision for
        single-precision `x`. Known values that are not finite make their lines NaN.
    dask.array.Array
        Lazy, of one axis: change of the values in gaps by each iteration, relative to their norm.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments. When computed, for gaps that are too wide for the band: a few power
        iterations forecast the convergence factor from below, and the message has it.

    Notes
    -----
    This is the iteration of Papoulis and Gerchberg. A gap that is wider than a wave of the highest
    frequency converges slowly, and noise in the known values grows in it. A
    line without any known value is such a gap, too. Compute both results together, so that
    iterations run once.

    See Also
    --------
    convolve_masked : Means of known neighbours.

    Examples
    --------
    >>> wave = np.cos(2 * np.pi * np.arange(64) / 32)
    >>> holes = np.arange(64) % 9 == 0
    >>> filled, changes = fill_gaps(np.where(holes, np.nan, wave), band=0.05)
    >>> bool(abs(filled - wave).max() < 1e-6)
    True
    """
    parse_signal_options(options)
    array = parse_array(x, "fft")
    along = several_axes(axes, array.ndim)
    nonempty(array, along)
    distances = parse_spacing("spacing", spacing, len(along))
    transfer = _parse_band(band, len(along))
    count = parse_count("iterations", iterations, 1, 10_000)
    allowed = "a number above 0 and below 1"
    limit = parse_as(float, "tolerance", tolerance, allowed)
    if not 0 < limit < 1:
        raise_invalid("tolerance", tolerance, allowed)
    is_complex = array.dtype.kind == "c"
    complex_dtype = work_dtype(array.dtype)
    dtype = complex_dtype if is_complex else np.empty(0, complex_dtype).real.dtype
    array = without_empty(array.astype(dtype))
    missing = parse_mask(mask, array)
    sources = (array,) if missing is None else (array, missing)
    gaps = by_block(
        _missing if missing is None else _like_x,
        *sources,
        dtype=bool,
    )
    inner: Any = {**options, "chunks": array.chunks}

    def limited(values: Any) -> Any:
        return fourier_filter(values, transfer, along, spacing=distances, **inner)

    factor = _convergence_factor(gaps, dtype, limited)
    known = by_block(_known_or_zero, array, gaps, dtype=dtype)
    known = by_block(
        _refuse_slow,
        known,
        factor[(np.newaxis,) * array.ndim],
        dtype=dtype,
        iterations=count,
        tolerance=limit,
    )
    filled = known
    changes = []
    for _ in range(count):
        better = by_block(_put_back, limited(filled), known, gaps, dtype=dtype)
        change = _norm(better, filled)
        size = _norm(by_block(_in_gaps, better, gaps, dtype=dtype))
        changes.append(change / da.maximum(size, np.finfo(float).tiny))
        filled = better
    return in_chunks(filled, options.get("chunks")), da.stack(changes)


@on_own_gpu
def _known_or_zero(x: Array, missing: Array) -> Array:
    """Return known values, and 0 in gaps."""
    return np.where(missing, x.dtype.type(0), x)


@on_own_gpu
def _in_gaps(x: Array, missing: Array) -> Array:
    """Return values in gaps, and 0 elsewhere."""
    return np.where(missing, x, x.dtype.type(0))


def _convergence_factor(
    missing: da.Array,
    dtype: np.dtype[Any],
    limited: Callable[[Any], Any],
) -> da.Array:
    """Return the factor by which the error in gaps falls, estimated by power iterations."""
    vector = by_block(_noise, missing, dtype=dtype, out_dtype=dtype)
    before = _norm(vector)
    factor: Any = before
    for _ in range(POWER_ITERATIONS):
        vector = by_block(_in_gaps, limited(vector), missing, dtype=dtype)
        after = _norm(vector)
        factor = after / da.maximum(before, np.finfo(float).tiny)
        before = after
    return cast("da.Array", factor)
