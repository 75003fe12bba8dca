"""Filters of xarray's arrays by the names of dimensions, in the units of their coordinates.

Results have the dimensions of their source. Cutoffs, distances and derivatives are in units of the
coordinates, and in seconds for times. On grids of degrees they can be in metres: a step of latitude
is that of a sphere, and a step of longitude that at the middle latitude of the array.
"""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import dask.array as da
import numpy as np
import xarray as xr

from dask_bigfft import signal
from dask_bigfft.api.calls import transforms_by
from dask_bigfft.errors import parse_choice, parse_count, parse_flag, raise_invalid
from dask_bigfft.xarray.arrays import (
    Dims,
    computed,
    labelled_like,
    mask_of,
    over_variables,
    parse_dims,
)
from dask_bigfft.xarray.coordinates import Samples, samples_of
from dask_bigfft.xarray.keywords import refuse_unknown
from dask_bigfft.xarray.missing import with_nan_warning
from dask_bigfft.xarray.spectra import aligned, averaged
from dask_bigfft.xarray.units import unit_symbol

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

#: Metres in a degree of latitude, on a sphere of radius 6,371 km.
METRES_PER_DEGREE = 6_371_000 * math.pi / 180

#: Modes of padding.
MODES = ("constant", "edge", "linear_ramp", "reflect", "symmetric", "wrap")

#: Attribute of a coordinate: samples that were added before and after it.
PAD_WIDTH = "pad_width"


# --- distances ------------------------------------------------------------------------------


def _is_along(array: xr.DataArray, dim: Hashable, direction: str) -> bool:
    """Return True for a dimension of degrees north or east."""
    coordinate = array.coords[dim]
    units = str(coordinate.attrs.get("units", "")).lower()
    names = {"north": ("lat", "latitude"), "east": ("lon", "longitude")}
    return direction in units or str(dim).lower() in names[direction]


def _distance_in_metres(array: xr.DataArray, dim: Hashable) -> float:
    """Return the distance of two samples in metres."""
    own = samples_of(array, dim)
    units = "" if own.units is None else unit_symbol(own.units)
    in_metres = {"m": 1.0, "km": 1000.0}
    if units in in_metres:
        return abs(own.spacing) * in_metres[units]
    if dim in array.coords and _is_along(array, dim, "north"):
        return abs(own.spacing) * METRES_PER_DEGREE
    if dim in array.coords and _is_along(array, dim, "east"):
        latitudes = [name for name in array.dims if name in array.coords and name != dim]
        latitudes = [name for name in latitudes if _is_along(array, name, "north")]
        if len(latitudes) == 1:
            values = array.coords[latitudes[0]].values
            middle = math.radians(float(values.min() + values.max()) / 2)
            return abs(own.spacing) * METRES_PER_DEGREE * math.cos(middle)
    allowed = f"False: dimension {dim} has no coordinate in metres, kilometres or degrees north, "
    allowed += "or in degrees east beside one in degrees north"
    raise_invalid("metres", True, allowed)


def _distances(array: xr.DataArray, dims: Sequence[Hashable], metres: Any) -> list[float]:
    """Return the distance of two samples along each dimension."""
    if parse_flag("metres", metres):
        return [_distance_in_metres(array, dim) for dim in dims]
    return [abs(samples_of(array, dim).spacing) for dim in dims]


def _sign(array: xr.DataArray, dim: Hashable) -> float:
    """Return -1 for a coordinate that descends, else 1."""
    return math.copysign(1.0, samples_of(array, dim).spacing)


def _one(array: xr.DataArray, dim: Dims) -> Hashable:
    """Return the one dimension that is worked along."""
    dims = parse_dims(array, dim, lambda _: True)
    if len(dims) > 1:
        raise_invalid("dim", dims, "one dimension")
    return dims[0]


def _same(array: xr.DataArray, data: Any) -> xr.DataArray:
    """Return an array with other data."""
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
    """Return the result of a function of one axis along a dimension."""

    def along(data: Any, axes: Sequence[int], **extras: Any) -> Any:
        return work(data, axis=axes[0], **extras)

    return computed(
        along,
        [array],
        {dim: dim},
        keywords,
        **arguments,
    )


# --- functions that keep the shape ----------------------------------------------------------


def _passed(name: str) -> Callable[..., xr.DataArray]:
    """Return the filter of a name."""
    work = getattr(signal, name)

    def filtered(
        array: xr.DataArray,
        dim: Dims = None,
        *,
        metres: bool = False,
        **keywords: Any,
    ) -> xr.DataArray:
        dims = parse_dims(array, dim, lambda _: True)
        data = computed(
            work,
            [array],
            {along: along for along in dims},
            keywords,
            spacing=_distances(array, dims, metres),
        )
        return _same(array, data)

    return filtered


def _fill_gaps(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    mask: Any = None,
    metres: bool = False,
    **keywords: Any,
) -> xr.DataArray:
    """Return an array with band-limited values in its gaps."""
    dims = parse_dims(array, dim, lambda _: True)

    def filled(data: Any, **arguments: Any) -> Any:
        return signal.fill_gaps(data, mask_of(mask, array), **arguments)[0]

    data = computed(
        filled,
        [array],
        {name: name for name in dims},
        keywords,
        spacing=_distances(array, dims, metres),
    )
    return _same(array, data)


def _kernel_of(kernel: Any, array: xr.DataArray, dims: Sequence[Hashable]) -> Any:
    """Return a kernel with an axis for each dimension of an array."""
    values = getattr(kernel, "array", kernel)
    if isinstance(kernel, xr.DataArray):
        if set(kernel.dims) != set(dims):
            raise_invalid("kernel", f"of dimensions {kernel.dims}", f"the dimensions {dims}")
        values = kernel.transpose(*dims).data
    values = np.asarray(values)
    if values.ndim != len(dims):
        raise_invalid("kernel", f"shape {values.shape}", f"an axis for each of {dims}")
    order = np.argsort([array.get_axis_num(dim) for dim in dims])
    shape = [1] * array.ndim
    for dim, length in zip(dims, values.shape, strict=True):
        shape[array.get_axis_num(dim)] = length
    return values.transpose(order).reshape(shape)


def _convolve(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    kernel: Any,
    **keywords: Any,
) -> xr.DataArray:
    """Return the convolution with a kernel."""
    dims = parse_dims(array, dim, lambda _: True)
    values = _kernel_of(kernel, array, dims)

    def convolved(data: Any, axes: Any, **arguments: Any) -> Any:
        return signal.convolve(data, values, "same", **arguments)

    data = computed(
        convolved,
        [array],
        {name: name for name in dims},
        keywords,
    )
    return _same(array, data)


def _convolve_masked(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    kernel: Any,
    mask: Any = None,
    **keywords: Any,
) -> xr.DataArray:
    """Return the convolution of an array with holes."""
    dims = parse_dims(array, dim, lambda _: True)
    values = _kernel_of(kernel, array, dims)

    def convolved(data: Any, axes: Any, **arguments: Any) -> Any:
        return signal.convolve_masked(data, values, mask_of(mask, array), **arguments)

    data = computed(
        convolved,
        [array],
        {name: name for name in dims},
        keywords,
    )
    return _same(array, data)


def _derivative(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    order: int = 1,
    metres: bool = False,
    **keywords: Any,
) -> xr.DataArray:
    """Return the derivative along a dimension, with its unit."""
    name = _one(array, dim)
    (distance,) = _distances(array, [name], metres)
    data = _along_axis(
        signal.derivative,
        array,
        name,
        keywords,
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


def _hilbert(array: xr.DataArray, dim: Dims = None, **keywords: Any) -> xr.DataArray:
    """Return the analytic signal along a dimension."""
    name = _one(array, dim)
    data = _along_axis(
        signal.hilbert,
        array,
        name,
        keywords,
    )
    return _same(array, data.conj() if _sign(array, name) < 0 else data)


def _envelope(array: xr.DataArray, dim: Dims = None, **keywords: Any) -> xr.DataArray:
    """Return the envelope along a dimension."""
    name = _one(array, dim)
    data = _along_axis(
        signal.envelope,
        array,
        name,
        keywords,
    )
    return _same(array, data)


def _shift(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    distance: Any,
    metres: bool = False,
    **keywords: Any,
) -> xr.DataArray:
    """Return an array whose values are moved along some dimensions."""
    dims = parse_dims(array, dim, lambda _: True)
    several = np.ravel(distance)
    if several.dtype.kind == "m":
        several = several / np.timedelta64(1, "s")
    if len(several) not in (1, len(dims)):
        raise_invalid("distance", distance, f"a number, or one for each of {dims}")
    signs = np.array([_sign(array, name) for name in dims])
    data = computed(
        signal.shift,
        [array],
        {name: name for name in dims},
        keywords,
        distance=signs * several,
        spacing=_distances(array, dims, metres),
    )
    return _same(array, data)


# --- functions that change the samples ------------------------------------------------------


def _with_samples(
    array: xr.DataArray,
    data: Any,
    samples: Mapping[Hashable, Samples],
    attrs: Mapping[Hashable, Mapping[Any, Any]],
) -> xr.DataArray:
    """Return data with other samples along some dimensions."""
    coords: dict[Hashable, Any] = {}
    for name, coordinate in array.coords.items():
        if not set(coordinate.dims) & set(samples):
            coords[name] = coordinate
    for dim, own in samples.items():
        coordinate = own.coordinate(own.length)
        if coordinate is not None:
            coordinate.attrs.update(attrs.get(dim, {}))
            coords[dim] = coordinate
    return labelled_like(
        array,
        data,
        array.dims,
        coords,
    )


def _resample(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    num: int,
    **keywords: Any,
) -> xr.DataArray:
    """Return an array with another number of samples in the same interval."""
    name = _one(array, dim)
    data = _along_axis(
        signal.resample,
        array,
        name,
        keywords,
        num=num,
    )
    samples = samples_of(array, name).resampled(data.shape[array.get_axis_num(name)])
    return _with_samples(array, data, {name: samples}, {})


def _downsample(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    factor: Any,
    **keywords: Any,
) -> xr.DataArray:
    """Return every q-th sample along some dimensions."""
    dims = parse_dims(array, dim, lambda _: True)
    data = computed(
        signal.downsample,
        [array],
        {name: name for name in dims},
        keywords,
        factor=factor,
    )
    factors = [factor] * len(dims) if np.ndim(factor) == 0 else factor
    places = {}
    for name, count in zip(dims, factors, strict=True):
        places[name] = slice(None, None, int(count))
    return labelled_like(
        array,
        data,
        array.dims,
        array.isel(places).coords,
    )


def _parse_width(width: Any, dims: Sequence[Hashable]) -> dict[Hashable, tuple[int, int]]:
    """Return the samples before and after each dimension."""
    allowed = f"a number of samples, a pair of them, or one of these for each of {dims}"
    by_dim = dict(width) if isinstance(width, Mapping) else dict.fromkeys(dims, width)
    if set(by_dim) != set(dims):
        raise_invalid("width", width, allowed)
    widths = {}
    for dim, own in by_dim.items():
        pair = [own, own] if np.ndim(own) == 0 else [*own]
        if len(pair) != 2:
            raise_invalid("width", width, allowed)
        before, after = (parse_count("width", count, 0, 2**62) for count in pair)
        widths[dim] = (before, after)
    return widths


def _pad(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    width: Any,
    mode: str = "constant",
    constant_values: float = 0,
) -> xr.DataArray:
    """Return an array with more samples, and coordinates that go on evenly."""
    dims = parse_dims(array, dim, lambda _: True)
    widths = _parse_width(width, dims)
    parse_choice("mode", mode, *MODES)
    all_widths = [widths.get(name, (0, 0)) for name in array.dims]
    function: Any = da.pad if isinstance(array.data, da.Array) else np.pad
    keywords = {"constant_values": constant_values} if mode == "constant" else {}
    data = function(array.data, all_widths, mode=mode, **keywords)
    samples = {}
    attrs = {}
    for name, (before, after) in widths.items():
        own = samples_of(array, name)
        first = own.first - before * own.step
        if own.is_time or float(first).is_integer():
            first = round(first) if isinstance(own.first, int) else first
        samples[name] = replace(own, first=first, length=own.length + before + after)
        attrs[name] = {PAD_WIDTH: [before, after]}
    return _with_samples(array, data, samples, attrs)


def _unpad(array: xr.DataArray, dim: Dims = None, *, width: Any = None) -> xr.DataArray:
    """Return an array without the samples that `pad` has added."""

    def is_padded(name: Hashable) -> bool:
        return name in array.coords and PAD_WIDTH in array.coords[name].attrs

    dims = parse_dims(array, dim, lambda name: width is not None or is_padded(name))
    if width is None:
        unknown = [name for name in dims if not is_padded(name)]
        if unknown:
            allowed = f"samples before and after {unknown}, whose coordinates do not have them"
            raise_invalid("width", None, allowed)
        width = {name: array.coords[name].attrs[PAD_WIDTH] for name in dims}
    widths = _parse_width(width, dims)
    inner = {}
    for name, (before, after) in widths.items():
        size = array.sizes[name]
        if before + after >= size:
            raise_invalid("width", width, f"less than the {size} samples of {name}")
        inner[name] = slice(before, size - after)
    cropped = array.isel(inner)
    for name in widths:
        if name in cropped.coords:
            coordinate = cropped.coords[name].variable.copy()
            coordinate.attrs.pop(PAD_WIDTH, None)
            cropped = cropped.assign_coords({name: coordinate})
    return cropped


# --- two arrays -----------------------------------------------------------------------------


def coherence(
    array: xr.DataArray, other: xr.DataArray, dim: Dims = None, **keywords: Any
) -> xr.DataArray:
    """Return the squared coherence of two arrays along a dimension, from 0 to 1.

    Parameters
    ----------
    array, other : xarray.DataArray
        Of the same dimensions and coordinates.
    dim, **keywords
        As for `welch`, but for `average`, `return_onesided` and `scaling`.

    Returns
    -------
    xarray.DataArray
        Real, with dimension ``freq_x`` instead of ``x``, without a unit.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """
    refuse_unknown(keywords, signal.coherence)
    ratio = averaged(
        aligned(array, other),
        dim,
        signal.coherence,
        **keywords,
    )
    ratio.attrs.pop("units", None)
    return ratio


def transfer_function(
    array: xr.DataArray, other: xr.DataArray, dim: Dims = None, **keywords: Any
) -> xr.DataArray:
    """Return the response of a linear system along a dimension, from its input and output.

    Parameters
    ----------
    array, other : xarray.DataArray
        Input and output, of the same dimensions and coordinates.
    dim, **keywords
        As for `coherence`, and `estimator` of `dask_bigfft.signal.transfer_function`.

    Returns
    -------
    xarray.DataArray
        Complex, with dimension ``freq_x`` instead of ``x``, and the unit of the output divided by
        that of the input.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """
    refuse_unknown(keywords, signal.transfer_function)
    ratio = averaged(
        aligned(array, other),
        dim,
        signal.transfer_function,
        **keywords,
    )
    ratio.attrs.pop("units", None)
    first = array.attrs.get("units")
    second = other.attrs.get("units")
    if first is not None and second is not None and first != second:
        ratio.attrs["units"] = f"({second})/({first})"
    return ratio


# --- one array ------------------------------------------------------------------------------

#: Functions that work for each function of this module, and to which it passes keywords on.
_WORKS: dict[str, tuple[Callable[..., Any], ...]] = {
    "convolve": (_convolve, signal.convolve),
    "convolve_masked": (_convolve_masked, signal.convolve_masked),
    "derivative": (_derivative, signal.derivative),
    "downsample": (_downsample, signal.downsample),
    "envelope": (_envelope, signal.envelope),
    "fill_gaps": (_fill_gaps, signal.fill_gaps),
    "hilbert": (_hilbert, signal.hilbert),
    "pad": (_pad,),
    "resample": (_resample, signal.resample),
    "shift": (_shift, signal.shift),
    "unpad": (_unpad,),
}
for _name in ("lowpass", "highpass", "bandpass", "bandstop"):
    _WORKS[_name] = (_passed(_name), getattr(signal, _name))


@transforms_by
@partial(over_variables, spectral=False, inner=_WORKS.__getitem__)
def _of_one(
    name: str,
    array: xr.DataArray,
    dim: Dims = None,
    **keywords: Any,
) -> xr.DataArray:
    """Return the result of a function of one array by its name."""
    work = _WORKS[name][0]
    return cast("xr.DataArray", work(array, dim, **keywords))


@_of_one
def lowpass() -> None:
    """Return an array without its high frequencies.

    Parameters
    ----------
    array : xarray.DataArray or xarray.Dataset
        As for `fft`.
    dim : str or sequence of str, optional
        The dimensions, of any chunking; by default all. Of several dimensions the length of the
        frequency counts.
    metres : bool
        True for distances in metres along coordinates in degrees north and east, or in kilometres.
        The default is False.
    **keywords
        `cutoff` in the units of the coordinates, `by`, `edge` and the other arguments of
        `dask_bigfft.signal.lowpass`, with its defaults, and its options.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With the coordinates and attributes of the array.

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


@_of_one
def highpass() -> None:
    """Return an array without its low frequencies and its mean.

    Parameters
    ----------
    array, dim, metres
        As for `lowpass`.
    **keywords
        `cutoff` in the units of the coordinates, and the other arguments of
        `dask_bigfft.signal.highpass`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With the coordinates and attributes of the array.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """


@_of_one
def bandpass() -> None:
    """Return an array with the frequencies of a band alone.

    Parameters
    ----------
    array, dim, metres
        As for `lowpass`.
    **keywords
        `band`, two cutoffs in the units of the coordinates, and the other arguments of
        `dask_bigfft.signal.bandpass`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With the coordinates and attributes of the array.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """


@_of_one
def bandstop() -> None:
    """Return an array without the frequencies of a band.

    Parameters
    ----------
    array, dim, metres
        As for `lowpass`.
    **keywords
        `band`, two cutoffs in the units of the coordinates, and the other arguments of
        `dask_bigfft.signal.bandstop`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With the coordinates and attributes of the array.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """


@_of_one
def convolve() -> None:
    """Return the convolution with a kernel, in the shape of the array.

    Parameters
    ----------
    array, dim
        As for `lowpass`.
    kernel : xarray.DataArray or array-like
        With the dimensions `dim`, or with an axis for each of them in their order.
    **keywords
        `method` and the options of `dask_bigfft.signal.convolve`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With the coordinates and attributes of the array.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """


@_of_one
def convolve_masked() -> None:
    """Return the convolution of an array with holes, of which the holes are no part.

    Parameters
    ----------
    array, dim, kernel
        As for `convolve`.
    mask : xarray.DataArray or array-like, optional
        True where values are missing, beside those that are NaN.
    **keywords
        Other arguments of `dask_bigfft.signal.convolve_masked`, and its options.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With the coordinates and attributes of the array.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """


@_of_one
def fill_gaps() -> None:
    """Return an array with band-limited values in its gaps.

    Parameters
    ----------
    array, dim, metres
        As for `lowpass`.
    mask : xarray.DataArray or array-like, optional
        True in gaps; by default where values are NaN.
    **keywords
        `band`, `iterations`, `tolerance` and the options of `dask_bigfft.signal.fill_gaps`, which
        returns the convergence, too. Frequencies are in cycles per unit of the coordinates.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With the coordinates and attributes of the array.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """


@_of_one
def derivative() -> None:
    """Return the derivative along a dimension.

    Parameters
    ----------
    array, dim, metres
        As for `lowpass`; one dimension.
    order : int
        Order of the derivative, 1 by default.
    **keywords
        Options of `dask_bigfft.signal.derivative`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With the coordinates of the array, and its unit divided by that of the coordinate.

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


@_of_one
def hilbert() -> None:
    """Return the analytic signal of a real array along a dimension.

    Parameters
    ----------
    array, dim
        As for `lowpass`; one dimension.
    **keywords
        Options of `dask_bigfft.signal.hilbert`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        Complex, with the coordinates and attributes of the array.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """


@_of_one
def envelope() -> None:
    """Return the envelope of a real array along a dimension.

    Parameters
    ----------
    array, dim
        As for `lowpass`; one dimension.
    **keywords
        `squared` and the options of `dask_bigfft.signal.envelope`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        Real, with the coordinates and attributes of the array.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """


@_of_one
def shift() -> None:
    """Return an array whose values are moved by any distance, also by fractions of a step.

    Parameters
    ----------
    array, dim, metres
        As for `lowpass`.
    distance : float or sequence of float
        Distance in units of the coordinates, for all dimensions or for each; of times in seconds,
        or a `numpy.timedelta64`.
    **keywords
        Options of `dask_bigfft.signal.shift`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With the same coordinates: the value at x moves to x + distance. The array is taken to be
        periodic.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """


@_of_one
def resample() -> None:
    """Return an array with another number of samples in the same interval.

    Parameters
    ----------
    array, dim
        As for `lowpass`; one dimension.
    num : int
        Number of samples of the result.
    **keywords
        `window` and the options of `dask_bigfft.signal.resample`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With a coordinate whose steps are longer or shorter; others along `dim` are dropped.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """


@_of_one
def downsample() -> None:
    """Return every q-th sample along some dimensions, without aliases of higher frequencies.

    Parameters
    ----------
    array, dim
        As for `lowpass`.
    factor : int or sequence of int
        The number q, for all dimensions or for each.
    **keywords
        Options of `dask_bigfft.signal.downsample`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With every q-th value of the coordinates.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """


@_of_one
def pad() -> None:
    """Return an array with more samples at its ends, whose coordinates go on evenly.

    Parameters
    ----------
    array, dim
        As for `lowpass`.
    width : int, pair of int, or mapping
        Samples before and after, the same for all dimensions, or for each by its name.
    mode : {"constant", "edge", "linear_ramp", "reflect", "symmetric", "wrap"}
        Values of the samples, see `numpy.pad`.
    constant_values : number
        Value of mode "constant", 0 by default.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        Lazy if the array is. Coordinates have the attribute ``pad_width`` for `unpad`; others along
        `dim` are dropped.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """


@_of_one
def unpad() -> None:
    """Return an array without the samples that `pad` has added.

    Parameters
    ----------
    array, dim
        As for `lowpass`; by default dimensions that `pad` has padded.
    width : int, pair of int, or mapping, optional
        As for `pad`; by default from the attribute ``pad_width`` of the coordinates.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With the coordinates and attributes of the array.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """
