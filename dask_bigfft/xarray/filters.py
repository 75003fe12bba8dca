"""Filters of xarray's arrays by the names of dimensions, in the units of their coordinates.

Results have the dimensions of their source. Cutoffs, distances and derivatives are in units of the
coordinates, and in seconds for times. On grids of degrees they can be in metres: a step of latitude
is that of a sphere, and a step of longitude that at the middle latitude of the array.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal, Unpack, get_args

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr

from dask_bigfft import signal
from dask_bigfft.api.calls import transforms_by
from dask_bigfft.dask_private import is_lazy
from dask_bigfft.errors import (
    ArgumentTypeError,
    parse_as,
    parse_choice,
    raise_invalid,
)
from dask_bigfft.signal.arguments import ConvolutionOptions, SignalOptions
from dask_bigfft.signal.convolution import Method
from dask_bigfft.signal.passbands import (
    By,
    Edge,
    Passband,
    parse_passband,
    warn_above_samples,
)
from dask_bigfft.transforms.spec import work_dtype
from dask_bigfft.xarray.arrays import (
    Dims,
    called_along,
    labelled_like,
    mask_of,
    over_variables,
    parse_dims,
)
from dask_bigfft.xarray.coordinates import PAD_WIDTH, Samples, attrs_of_samples, samples_of
from dask_bigfft.xarray.keywords import knows_keywords
from dask_bigfft.xarray.metres import samples_along
from dask_bigfft.xarray.missing import with_nan_warning
from dask_bigfft.xarray.padding import Mode, pad_lazy_array, parse_constant, parse_width
from dask_bigfft.xarray.spectra import aligned, averaged

__all__ = [
    "bandpass",
    "bandstop",
    "coherence",
    "convolve",
    "convolve_masked",
    "derivative",
    "downsample",
    "envelope",
    "fill_gaps",
    "highpass",
    "hilbert",
    "lowpass",
    "pad",
    "resample",
    "shift",
    "transfer_function",
    "unpad",
]

#: A period with its unit; pandas' durations are Python's.
Duration = np.timedelta64 | timedelta


# --- distances ------------------------------------------------------------------------------


def _distances(array: xr.DataArray, dims: Sequence[Hashable], metres: Any) -> list[float]:
    """Return the distance of two samples along each dimension."""
    return [abs(own.spacing) for own in samples_along(array, dims, metres).values()]


def _sign(array: xr.DataArray, dim: Hashable) -> float:
    """Return -1 for a coordinate that descends, else 1."""
    return math.copysign(1.0, samples_of(array, dim).spacing)


def _single_dim(array: xr.DataArray, dim: Dims) -> Hashable:
    """Return the one dimension that is worked along."""
    dims = parse_dims(array, dim, lambda _: True)
    if len(dims) > 1:
        raise_invalid("dim", dims, "one dimension")
    return dims[0]


def _same(array: xr.DataArray, data: Any) -> xr.DataArray:
    """Return an array with other data, which are computed at once if the array is in memory."""
    return labelled_like(
        array,
        with_nan_warning(data),
        array.dims,
        array.coords,
    )


def _along_axis(
    work: Callable[..., Any],
    array: xr.DataArray,
    dim: Hashable,
    keywords: dict[str, Any],
    **arguments: Any,
) -> Any:
    """Return the lazy array that a function of one axis makes of an array along a dimension."""

    def along(data: Any, axes: Sequence[int], **extras: Any) -> Any:
        return work(data, axis=axes[0], **extras)

    return called_along(
        along,
        [array],
        {dim: dim},
        keywords,
        **arguments,
    )


# --- functions that keep the shape ----------------------------------------------------------


def _filtered(
    work: Callable[..., Any],
    array: xr.DataArray,
    dim: Dims,
    metres: bool,
    keywords: dict[str, Any],
) -> xr.DataArray:
    """Return an array after a filter of `dask_bigfft.signal`, lazy only if the array is lazy."""
    dims = parse_dims(array, dim, lambda _: True)
    data = called_along(
        work,
        [array],
        {along: along for along in dims},
        keywords,
        spacing=_distances(array, dims, metres),
    )
    return _same(array, data)


@transforms_by
def _by_cutoff(
    name: str,
    array: xr.DataArray,
    dim: Dims = None,
    *,
    cutoff: float | Duration,
    by: By = "frequency",
    edge: Edge = "gaussian",
    order: int = 4,
    width: float = 0.2,
    metres: bool = False,
    **options: Unpack[SignalOptions],
) -> xr.DataArray:
    """Return an array after the filter `name` with one cutoff, lazy only if the array is lazy.

    `transforms_by` turns this function into a decorator: `lowpass` below is this function with the
    name "lowpass".
    """
    dims = parse_dims(array, dim, lambda _: True)
    passband = parse_passband(
        name,
        _in_seconds("cutoff", cutoff, by, array, dims),
        by=by,
        edge=edge,
        order=order,
        width=width,
    )
    return _in_passband(array, dims, passband, by, metres, {**options})


@transforms_by
def _by_band(
    name: str,
    array: xr.DataArray,
    dim: Dims = None,
    *,
    band: tuple[float | Duration, float | Duration],
    by: By = "frequency",
    edge: Edge = "gaussian",
    order: int = 4,
    width: float = 0.2,
    metres: bool = False,
    **options: Unpack[SignalOptions],
) -> xr.DataArray:
    """Return an array after the filter `name` with two cutoffs, lazy only if the array is lazy.

    As `_by_cutoff`, a decorator: `bandpass` is this function with the name "bandpass".
    """
    dims = parse_dims(array, dim, lambda _: True)
    limits: Any = band
    if np.iterable(band):
        limits = [_in_seconds("band", limit, by, array, dims) for limit in band]
    passband = parse_passband(
        name,
        limits,
        by=by,
        edge=edge,
        order=order,
        width=width,
    )
    return _in_passband(array, dims, passband, by, metres, {**options})


def _in_seconds(
    argument: str,
    limit: Any,
    by: By,
    array: xr.DataArray,
    dims: Sequence[Hashable],
) -> Any:
    """Return a period or wavelength that is a duration in seconds; other limits unchanged."""
    if not isinstance(limit, Duration):
        return limit
    along_times = all(samples_of(array, dim).is_time for dim in dims)
    if by not in ("period", "wavelength") or not along_times:
        allowed = "a number; durations are for by='period' along times"
        raise_invalid(argument, limit, allowed, kind=ArgumentTypeError)
    try:
        return float(np.timedelta64(limit) / np.timedelta64(1, "s"))
    except TypeError:  # calendar months and years
        allowed = "a duration in units that have a length"
        raise_invalid(argument, limit, allowed, kind=ArgumentTypeError)


def _in_passband(
    array: xr.DataArray,
    dims: Sequence[Hashable],
    passband: Passband,
    by: By,
    metres: bool,
    options: dict[str, Any],
) -> xr.DataArray:
    """Return an array after a filter by name; warn of limits that its samples do not reach."""
    distances = _distances(array, dims, metres)
    units = {samples_of(array, dim).frequency_units for dim in dims}
    unit = "cycles per unit of the coordinates"
    if metres:
        unit = "1/m"
    elif len(units) == 1 and None not in units:
        unit = str(units.pop())
    warn_above_samples(
        passband,
        by,
        distances,
        unit,
        stacklevel=7,
    )
    return _filtered(
        signal.fourier_filter,
        array,
        dims,
        metres,
        {**options, "transfer": passband},
    )


@over_variables(spectral=False)
@_by_cutoff
def lowpass() -> None:
    """Return an array without its high frequencies.

    Parameters
    ----------
    array : xarray.DataArray or xarray.Dataset
        As for `fft`.
    dim : str or sequence of str, optional
        The dimensions, of any chunking; by default all. With several dimensions, the magnitude of
        the frequency counts.
    cutoff : float or numpy.timedelta64
        Highest frequency, in cycles per unit of the coordinates, or shortest wavelength, in their
        unit. Along times these are Hz and seconds, and a period may be a duration, such as
        ``np.timedelta64(2, "D")``. A warning says if the frequency is above all those of the
        samples.
    by : {"frequency", "wavelength", "period"}
        Meaning of `cutoff`.
    edge : {"gaussian", "butterworth", "cosine", "sharp"}
        Shape of the response, see `dask_bigfft.signal.lowpass`.
    order : int
        Order of a Butterworth edge, 4 by default.
    width : float
        Width of a cosine edge as a part of the cutoff, 0.2 by default.
    metres : bool
        True for distances in metres along coordinates in degrees north and east, or in kilometres.
        The default is False.
    chunks, ..., planner
        `chunks` (a mapping may name dimensions), `memory_limit` and the other options of
        `dask_bigfft.signal.lowpass`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With the coordinates and attributes of the array. Lazy if the array is, otherwise computed
        at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> import xarray as xr
    >>> x = xr.DataArray([3.0, 1.0, 3.0, 1.0], dims="x", coords={"x": [0, 10, 20, 30]})
    >>> lowpass(x, "x", cutoff=30, by="wavelength", edge="sharp").values.round(6)
    array([2., 2., 2., 2.])
    """


@over_variables(spectral=False)
@_by_cutoff
def highpass() -> None:
    """Return an array without its low frequencies and its mean.

    Parameters
    ----------
    array, dim, by, edge, order, width, metres, chunks, ..., planner
        As for `lowpass`.
    cutoff : float or numpy.timedelta64
        Lowest frequency, or longest wavelength.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With the coordinates and attributes of the array. Lazy if the array is, otherwise computed
        at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """


@over_variables(spectral=False)
@_by_band
def bandpass() -> None:
    """Return an array with only the frequencies of a band.

    Parameters
    ----------
    array, dim, by, edge, order, width, metres, chunks, ..., planner
        As for `lowpass`.
    band : pair of float or numpy.timedelta64
        Two frequencies or wavelengths, in the units of the coordinates.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With the coordinates and attributes of the array. Lazy if the array is, otherwise computed
        at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """


@over_variables(spectral=False)
@_by_band
def bandstop() -> None:
    """Return an array without the frequencies of a band.

    Parameters
    ----------
    array, dim, band, by, edge, order, width, metres, chunks, ..., planner
        As for `bandpass`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With the coordinates and attributes of the array. Lazy if the array is, otherwise computed
        at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """


def _kernel_of(kernel: Any, array: xr.DataArray, dims: Sequence[Hashable]) -> Any:
    """Return a kernel with an axis for each dimension of an array."""
    values = getattr(kernel, "array", kernel)
    if isinstance(kernel, xr.DataArray):
        if set(kernel.dims) != set(dims):
            raise_invalid("kernel", f"of dimensions {kernel.dims}", f"the dimensions {dims}")
        values = kernel.transpose(*dims).data
    values = parse_as(np.asarray, "kernel", values, "an array of numbers")
    if values.size == 0:
        raise_invalid("kernel", f"shape {values.shape}", "at least one value")
    if values.dtype.kind not in "biufc":
        allowed = "an array of numbers"
        raise_invalid("kernel", f"dtype {values.dtype}", allowed, kind=ArgumentTypeError)
    if values.ndim != len(dims):
        raise_invalid("kernel", f"shape {values.shape}", f"an axis for each of {dims}")
    axes = [array.get_axis_num(dim) for dim in dims]
    shape = [1] * array.ndim
    for axis, length in zip(axes, values.shape, strict=True):
        shape[axis] = length
    in_order_of_array = values.transpose(np.argsort(axes))
    return in_order_of_array.reshape(shape)


def _in_precision_of(array: xr.DataArray, kernel: Any) -> Any:
    """Return a kernel in the precision of an array of floating-point numbers.

    A complex kernel stays complex. For an array of integers the kernel is unchanged.

    >>> _in_precision_of(xr.DataArray(np.ones(4, "f4")), np.hanning(3)).dtype
    dtype('float32')
    """
    if array.dtype.kind not in "fc":
        return kernel
    complex_dtype = work_dtype(array.dtype)
    if kernel.dtype.kind == "c":
        return kernel.astype(complex_dtype)
    return kernel.astype(np.empty(0, complex_dtype).real.dtype)


@over_variables(spectral=False)
def convolve(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    kernel: Any,
    method: Method = "auto",
    **options: Unpack[ConvolutionOptions],
) -> xr.DataArray:
    """Return the convolution with a kernel, in the shape of the array.

    Parameters
    ----------
    array, dim
        As for `lowpass`.
    kernel : xarray.DataArray or array-like
        With the dimensions `dim`, or with an axis for each of them in their order. It is converted
        to the precision of an array of floating-point numbers.
    method : {"auto", "fft", "direct"}
        See `scipy.signal.convolve`.
    chunks, ..., planner
        As for `lowpass`, without the FFT library.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With the coordinates and attributes of the array. Lazy if the array is, otherwise computed
        at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """
    dims = parse_dims(array, dim, lambda _: True)
    values = _in_precision_of(array, _kernel_of(kernel, array, dims))

    def convolved(data: Any, axes: Any, **keywords: Any) -> Any:
        result = signal.convolve(data, values, "same", method, **keywords)
        if 0 in data.shape:  # of which `convolve` returns the shape (0,), as SciPy
            return data.astype(result.dtype)
        return result

    data = called_along(
        convolved,
        [array],
        {name: name for name in dims},
        {**options},
    )
    return _same(array, data)


@over_variables(spectral=False)
def convolve_masked(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    kernel: Any,
    mask: Any = None,
    nan_treatment: Literal["interpolate", "fill"] = "interpolate",
    boundary: Literal["fill", "wrap"] = "fill",
    fill_value: float = 0.0,
    preserve_nan: bool = False,
    normalize_kernel: bool | Callable[..., Any] = True,
    min_wt: float = 0.0,
    **options: Unpack[ConvolutionOptions],
) -> xr.DataArray:
    """Return the convolution of the known values of an array with holes.

    Parameters
    ----------
    array, dim, kernel, chunks, ..., planner
        As for `convolve`.
    mask : xarray.DataArray or array-like, optional
        True where values are missing, beside those that are NaN.
    nan_treatment, boundary, fill_value, preserve_nan, normalize_kernel, min_wt
        See `dask_bigfft.signal.convolve_masked`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With the coordinates and attributes of the array. Lazy if the array is, otherwise computed
        at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """
    dims = parse_dims(array, dim, lambda _: True)
    values = _kernel_of(kernel, array, dims)

    def convolved(data: Any, axes: Any, **keywords: Any) -> Any:
        return signal.convolve_masked(data, values, mask_of(mask, array), **keywords)

    data = called_along(
        convolved,
        [array],
        {name: name for name in dims},
        {**options},
        nan_treatment=nan_treatment,
        boundary=boundary,
        fill_value=fill_value,
        preserve_nan=preserve_nan,
        normalize_kernel=normalize_kernel,
        min_wt=min_wt,
    )
    return _same(array, data)


@over_variables(spectral=False)
def fill_gaps(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    band: Any,
    mask: Any = None,
    iterations: int = 20,
    tolerance: float = 1e-3,
    metres: bool = False,
    **options: Unpack[SignalOptions],
) -> xr.DataArray:
    """Return an array with band-limited values in its gaps.

    Parameters
    ----------
    array, dim, metres, chunks, ..., planner
        As for `lowpass`.
    band : pair of float
        Frequencies of the values, in cycles per unit of the coordinates.
    mask : xarray.DataArray or array-like, optional
        True in gaps; by default where values are NaN.
    iterations, tolerance
        See `dask_bigfft.signal.fill_gaps`, which returns the convergence, too.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With the coordinates and attributes of the array. Lazy if the array is, otherwise computed
        at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """

    def filled(data: Any, **keywords: Any) -> Any:
        return signal.fill_gaps(data, mask_of(mask, array), **keywords)[0]

    keywords: dict[str, Any] = {
        **options,
        "band": band,
        "iterations": iterations,
        "tolerance": tolerance,
    }
    return _filtered(
        filled,
        array,
        dim,
        metres,
        keywords,
    )


@over_variables(spectral=False)
def derivative(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    order: int = 1,
    metres: bool = False,
    **options: Unpack[SignalOptions],
) -> xr.DataArray:
    """Return the derivative along a dimension.

    Parameters
    ----------
    array, dim, metres, chunks, ..., planner
        As for `lowpass`; one dimension.
    order : int
        Order of the derivative, 1 by default.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With the coordinates of the array, and its unit divided by that of the coordinate. Lazy if
        the array is, otherwise computed at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> import xarray as xr
    >>> x = xr.DataArray(np.arange(8) / 8, dims="x", coords={"x": np.arange(8) / 8})
    >>> derivative(np.sin(2 * np.pi * x), "x").values[0].round(3)
    np.float64(6.283)
    """
    name = _single_dim(array, dim)
    (distance,) = _distances(array, [name], metres)
    data = _along_axis(
        signal.derivative,
        array,
        name,
        {**options},
        order=order,
        d=distance,
    )
    if order % 2 and _sign(array, name) < 0:
        data = -data
    result = _same(array, data)
    own = samples_of(array, name)
    unit = "s" if own.is_time else own.units
    if metres:
        unit = "m"
    units = array.attrs.get("units")
    if units is not None:
        result.attrs.pop("units")
    if units is not None and unit is not None:
        power = "" if order == 1 else f"^{order}"
        result.attrs["units"] = f"({units})/({unit}){power}"
    return result


@over_variables(spectral=False)
def hilbert(
    array: xr.DataArray,
    dim: Dims = None,
    **options: Unpack[SignalOptions],
) -> xr.DataArray:
    """Return the analytic signal of a real array along a dimension.

    Parameters
    ----------
    array, dim, chunks, ..., planner
        As for `lowpass`; one dimension.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        Complex, with the coordinates and attributes of the array. Lazy if the array is, otherwise
        computed at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """
    name = _single_dim(array, dim)
    data = _along_axis(
        signal.hilbert,
        array,
        name,
        {**options},
    )
    return _same(array, data.conj() if _sign(array, name) < 0 else data)


@over_variables(spectral=False)
def envelope(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    squared: bool = False,
    **options: Unpack[SignalOptions],
) -> xr.DataArray:
    """Return the envelope of a real array along a dimension: the absolute value of `hilbert`.

    Parameters
    ----------
    array, dim, chunks, ..., planner
        As for `lowpass`; one dimension.
    squared : bool
        True for the square of the envelope. The default is False.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        Real, with the coordinates and attributes of the array. Lazy if the array is, otherwise
        computed at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """
    name = _single_dim(array, dim)
    data = _along_axis(
        signal.envelope,
        array,
        name,
        {**options},
        bp_in=(None, None),
        squared=squared,
        residual=None,
    )
    return _same(array, data)


def _parse_distance(distance: Any) -> npt.NDArray[Any]:
    """Return one or several distances, which are numbers or durations."""
    allowed = "a number or a duration, or one for each dimension"
    value = np.timedelta64(distance) if isinstance(distance, timedelta) else distance
    several = parse_as(np.ravel, "distance", value, allowed)
    if several.dtype.kind not in "biufm":
        raise_invalid("distance", distance, allowed, kind=ArgumentTypeError)
    return several


@over_variables(spectral=False)
def shift(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    distance: Any,
    metres: bool = False,
    **options: Unpack[SignalOptions],
) -> xr.DataArray:
    """Return an array whose values are moved by any distance, also by fractions of a step.

    Parameters
    ----------
    array, dim, metres, chunks, ..., planner
        As for `lowpass`.
    distance : float or sequence of float
        Distance in units of the coordinates, for all dimensions or for each; of times in seconds,
        or a `numpy.timedelta64`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With the same coordinates: the value at x moves to x + distance. The array is assumed to
        be periodic. Lazy if the array is, otherwise computed at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """
    dims = parse_dims(array, dim, lambda _: True)
    several = _parse_distance(distance)
    if several.dtype.kind == "m":
        along_times = all(samples_of(array, name).is_time for name in dims)
        has_length = np.datetime_data(several.dtype)[0] not in ("Y", "M", "generic")
        if not along_times or not has_length:
            allowed = "a number; durations are for times, in units that have a length"
            raise_invalid("distance", distance, allowed, kind=ArgumentTypeError)
        several = several / np.timedelta64(1, "s")
    if len(several) not in (1, len(dims)):
        raise_invalid("distance", distance, f"a number, or one for each of {dims}")
    signs = np.array([_sign(array, name) for name in dims])
    return _filtered(
        signal.shift,
        array,
        dims,
        metres,
        {**options, "distance": signs * several},
    )


# --- functions that change the samples ------------------------------------------------------


def _with_coordinates(
    array: xr.DataArray,
    data: Any,
    coordinates: Mapping[Hashable, xr.Variable | None],
) -> xr.DataArray:
    """Return data with other coordinates of some dimensions; None stands for no coordinate."""
    coords: dict[Hashable, Any] = {}
    for name, coordinate in array.coords.items():
        if not set(coordinate.dims) & set(coordinates):
            coords[name] = coordinate
    for dim, variable in coordinates.items():
        if variable is not None:
            coords[dim] = variable
    return labelled_like(
        array,
        data,
        array.dims,
        coords,
    )


@over_variables(spectral=False)
def resample(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    num: int,
    window: Any = None,
    domain: Literal["time", "freq"] = "time",
    **options: Unpack[SignalOptions],
) -> xr.DataArray:
    """Return an array with another number of samples in the same interval.

    Parameters
    ----------
    array, dim, chunks, ..., planner
        As for `lowpass`; one dimension.
    num : int
        Number of samples of the result.
    window, domain
        See `scipy.signal.resample`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With a coordinate whose steps are longer or shorter, and which keeps its attributes. Others
        along `dim` are dropped. Lazy if the array is, otherwise computed at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """
    name = _single_dim(array, dim)
    data = _along_axis(
        signal.resample,
        array,
        name,
        {**options},
        num=num,
        window=window,
        domain=domain,
    )
    samples = samples_of(array, name).resampled(data.shape[array.get_axis_num(name)])
    coordinate = samples.coordinate(samples.length, attrs_of_samples(array, name))
    return _with_coordinates(array, with_nan_warning(data), {name: coordinate})


@over_variables(spectral=False)
def downsample(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    factor: Any,
    **options: Unpack[SignalOptions],
) -> xr.DataArray:
    """Return every q-th sample along some dimensions, without aliases of higher frequencies.

    Parameters
    ----------
    array, dim, chunks, ..., planner
        As for `lowpass`.
    factor : int or sequence of int
        The number q, for all dimensions or for each.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With every q-th value of the coordinates. Lazy if the array is, otherwise computed at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """
    dims = parse_dims(array, dim, lambda _: True)
    data = called_along(
        signal.downsample,
        [array],
        {name: name for name in dims},
        {**options},
        factor=factor,
    )
    factors = [factor] * len(dims) if np.ndim(factor) == 0 else factor
    places = {}
    for name, count in zip(dims, factors, strict=True):
        places[name] = slice(None, None, int(count))
    result = labelled_like(
        array,
        with_nan_warning(data),
        array.dims,
        array.isel(places).coords,
    )
    return result.assign_coords(_coordinates_without_width(result, dims))


@over_variables(spectral=False)
def pad(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    width: Any,
    mode: Mode = "constant",
    constant_values: float = 0,
) -> xr.DataArray:
    """Return an array with more samples at its ends, and with coordinates that continue evenly.

    Parameters
    ----------
    array, dim
        As for `lowpass`.
    width : int, pair of int, sequence of pairs, or mapping
        Samples before and after, the same for all dimensions, or for each of them in their order or
        by its name.
    mode : {"constant", "edge", "linear_ramp", "reflect", "symmetric", "wrap"}
        Values of the samples, see `numpy.pad`.
    constant_values : number
        Value of mode "constant", 0 by default. It must be real for real arrays, and a whole number
        for integers.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        Lazy if the array is. Coordinates have their values and attributes between the new ones, and
        the attribute ``pad_width`` for `unpad`. Others along `dim` are dropped. A dimension without
        a coordinate gets none, so that `unpad` needs the width.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """
    dims = parse_dims(array, dim, lambda _: True)
    widths = parse_width(width, dims)
    parse_choice("mode", mode, *get_args(Mode))
    width_of_axes = [widths.get(name, (0, 0)) for name in array.dims]
    for name, (before, after) in widths.items():
        if array.sizes[name] == 0 and before + after > 0 and mode != "constant":
            raise_invalid("mode", mode, f"'constant', because {name} has no samples")
    keywords = {}
    if mode == "constant":
        keywords["constant_values"] = parse_constant(constant_values, array.dtype)
    function: Any = pad_lazy_array if isinstance(array.data, da.Array) else np.pad
    data = function(
        array.data,
        width_of_axes,
        mode=mode,
        **keywords,
    )
    coordinates = {}
    for name, (before, after) in widths.items():
        coordinates[name] = _padded_coordinate(
            array,
            name,
            before,
            after,
        )
    return _with_coordinates(array, data, coordinates)


def _padded_coordinate(
    array: xr.DataArray,
    dim: Hashable,
    before: int,
    after: int,
) -> xr.Variable | None:
    """Return a coordinate between new positions before and after it; None without a coordinate."""
    longer = _longer(samples_of(array, dim), before, after)
    padded = longer.coordinate(longer.length, attrs_of_samples(array, dim))
    if padded is None:
        return None
    padded.values[before : before + array.sizes[dim]] = array.coords[dim].values
    padded.attrs[PAD_WIDTH] = [before, after]
    return padded


def _longer(samples: Samples, before: int, after: int) -> Samples:
    """Return the samples of a dimension with more of them before and after; whole numbers stay."""
    distance = before * samples.step
    is_whole = samples.is_time or float(distance).is_integer()
    if is_whole and isinstance(samples.first, int):
        distance = round(distance)
    length = samples.length + before + after
    first = samples.first - distance
    return replace(
        samples,
        first=first,
        length=length,
        last=None,
    )


@over_variables(spectral=False)
def unpad(array: xr.DataArray, dim: Dims = None, *, width: Any = None) -> xr.DataArray:
    """Return an array without the samples that `pad` has added.

    Parameters
    ----------
    array, dim
        As for `lowpass`; by default dimensions that `pad` has padded.
    width : int, pair of int, sequence of pairs, or mapping, optional
        As for `pad`; by default from the attribute ``pad_width`` of the coordinates.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With the coordinates and attributes of the array. Lazy if the array is, otherwise computed
        at once. Where all chunks of the array but the last one have one length, so have those of
        the result, as Zarr needs them.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """
    padded = [name for name in array.dims if _is_padded(array, name)]
    dims = parse_dims(array, dim, lambda name: width is not None or not padded or name in padded)
    if width is None:
        width = _widths_of_pad(array, dims)
    widths = parse_width(width, dims)
    inner = {}
    for name, (before, after) in widths.items():
        size = array.sizes[name]
        if before + after >= size:
            raise_invalid("width", width, f"less than the {size} samples of {name}")
        inner[name] = slice(before, size - after)
    cropped = array.isel(inner)
    if is_lazy(array.data):
        cropped = _with_even_chunks(cropped, array.chunksizes)
    return cropped.assign_coords(_coordinates_without_width(cropped, widths))


def _coordinates_without_width(
    array: xr.DataArray,
    dims: Iterable[Hashable],
) -> dict[Hashable, xr.Variable]:
    """Return the coordinates of dimensions without the attribute that `pad` has added."""
    coords = {}
    for name in dims:
        if name in array.coords:
            coordinate = array.coords[name].variable.copy()
            coordinate.attrs.pop(PAD_WIDTH, None)
            coords[name] = coordinate
    return coords


def _with_even_chunks(
    cropped: xr.DataArray,
    chunks_before: Mapping[Hashable, tuple[int, ...]],
) -> xr.DataArray:
    """Return a part of an array with even chunks where those of the array were even.

    Each of them is made of two chunks of the part at most.
    """
    even_chunks = {}
    for axis, (dim, chunks) in enumerate(cropped.chunksizes.items()):
        if _are_even(chunks_before[dim]) and not _are_even(chunks):
            even_chunks[axis] = max(chunks)
    if not even_chunks:
        return cropped
    return cropped.copy(deep=False, data=cropped.data.rechunk(even_chunks))


def _are_even(chunks: tuple[int, ...]) -> bool:
    """Return whether all chunks but the last have one length, and that is no longer.

    >>> _are_even((5, 5, 3)), _are_even((3, 5, 5)), _are_even((5, 7))
    (True, False, False)
    """
    return all(length == chunks[0] for length in chunks[:-1]) and chunks[-1] <= chunks[0]


def _is_padded(array: xr.DataArray, name: Hashable) -> bool:
    """Return whether the coordinate of a dimension says how many samples `pad` has added."""
    return name in array.coords and PAD_WIDTH in array.coords[name].attrs


def _widths_of_pad(array: xr.DataArray, dims: Sequence[Hashable]) -> dict[Hashable, Any]:
    """Return the samples that `pad` has added before and after each dimension."""
    unknown = [name for name in dims if not _is_padded(array, name)]
    if unknown:
        allowed = f"samples before and after {unknown}, whose coordinates do not have them"
        raise_invalid("width", None, allowed)
    return {name: array.coords[name].attrs[PAD_WIDTH] for name in dims}


# --- two arrays -----------------------------------------------------------------------------


@knows_keywords
def coherence(
    array: xr.DataArray,
    other: xr.DataArray,
    dim: Dims = None,
    *,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = "constant",
    metres: bool = False,
    **options: Unpack[SignalOptions],
) -> xr.DataArray:
    """Return the squared coherence of two arrays along a dimension, from 0 to 1.

    Parameters
    ----------
    array, other : xarray.DataArray
        Of the same dimensions and coordinates.
    dim, window, nperseg, noverlap, nfft, detrend, metres, chunks, ..., planner
        As for `welch`.

    Returns
    -------
    xarray.DataArray
        Real, with dimension ``freq_x`` instead of ``x``, without a unit. Lazy if `array` is,
        otherwise computed at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """
    ratio = averaged(
        signal.coherence,
        aligned(array, other),
        dim,
        metres,
        options,
        window=window,
        nperseg=nperseg,
        noverlap=noverlap,
        nfft=nfft,
        detrend=detrend,
    )
    ratio.attrs.pop("units", None)
    return ratio


@knows_keywords
def transfer_function(
    array: xr.DataArray,
    other: xr.DataArray,
    dim: Dims = None,
    *,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = "constant",
    estimator: Literal["H1", "H2"] = "H1",
    metres: bool = False,
    **options: Unpack[SignalOptions],
) -> xr.DataArray:
    """Return the response of a linear system along a dimension, from its input and output.

    Parameters
    ----------
    array, other : xarray.DataArray
        Input and output, of the same dimensions and coordinates.
    dim, window, nperseg, noverlap, nfft, detrend, metres, chunks, ..., planner
        As for `welch`.
    estimator : {"H1", "H2"}
        See `dask_bigfft.signal.transfer_function`.

    Returns
    -------
    xarray.DataArray
        Complex, with dimension ``freq_x`` instead of ``x``, and the unit of the output divided by
        that of the input. Lazy if `array` is, otherwise computed at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """
    ratio = averaged(
        signal.transfer_function,
        aligned(array, other),
        dim,
        metres,
        options,
        window=window,
        nperseg=nperseg,
        noverlap=noverlap,
        nfft=nfft,
        detrend=detrend,
        estimator=estimator,
    )
    ratio.attrs.pop("units", None)
    first = array.attrs.get("units")
    second = other.attrs.get("units")
    if first is not None and second is not None and first != second:
        ratio.attrs["units"] = f"({second})/({first})"
    return ratio
