"""Spectra of xarray's arrays: `dask_bigfft.signal` with dimensions, coordinates and units."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

import numpy as np
import xarray as xr

from dask_bigfft import signal
from dask_bigfft.errors import ArgumentTypeError, parse_flag, raise_invalid
from dask_bigfft.signal.arguments import SignalOptions
from dask_bigfft.signal.segments import Average
from dask_bigfft.signal.spectra import Scaling
from dask_bigfft.xarray.arrays import (
    Detrend,
    Dims,
    WindowName,
    called_along,
    mask_of,
    over_variables,
    parse_dims,
    prepared,
    rebuilt,
    with_frequencies,
    with_numbered_chunks,
)
from dask_bigfft.xarray.attributes import ARRAY_ATTRS, ONESIDED, RECORD, attrs_as_text
from dask_bigfft.xarray.coordinates import PREFIX, Samples
from dask_bigfft.xarray.keywords import knows_keywords
from dask_bigfft.xarray.metres import samples_along
from dask_bigfft.xarray.units import same_unit, unit_symbol

__all__ = [
    "cross_spectrum",
    "csd",
    "isotropic_power_spectrum",
    "power_spectrum",
    "welch",
]


def squared_units(
    arrays: Sequence[xr.DataArray],
    frequency_units: Sequence[str | None],
    scaling: str,
) -> dict[str, Any]:
    """Return the attributes of a squared spectrum; its unit is left out if one is unknown.

    A density is divided by the unit of the frequencies of each dimension.
    """
    attrs = {key: value for key, value in arrays[0].attrs.items() if key != "units"}
    first = arrays[0].attrs.get("units")
    second = arrays[-1].attrs.get("units")
    divisors = frequency_units if scaling == "density" else []
    if first is None or second is None or None in divisors:
        return attrs
    product = f"({first})^2" if same_unit(str(first), str(second)) else f"({first})({second})"
    attrs["units"] = product + "".join(f"/({unit})" for unit in divisors)
    return attrs


def _labelled(
    arrays: Sequence[xr.DataArray],
    data: Any,
    places: Mapping[Hashable, Any],
    samples: Mapping[Hashable, Samples],
    scaling: str,
    shifted: Sequence[Hashable] = (),
    onesided: Hashable | None = None,
) -> xr.DataArray:
    """Return a squared spectrum with frequencies and units; its inverse has lags from 0 on.

    It has no inverse if it includes the power of the missing half along a dimension, `onesided`.
    """
    spectrum = with_frequencies(
        arrays[0],
        data,
        places,
        samples,
        shifted,
    )
    units = [own.frequency_units for own in samples.values()]
    spectrum.attrs = squared_units(arrays, units, scaling)
    for dim in places:
        attrs = spectrum[f"{PREFIX}{dim}"].attrs
        attrs[ARRAY_ATTRS] = attrs_as_text(spectrum.attrs)
        for key in ("first", "step", "dtype", "time_unit", "calendar"):
            attrs.pop(f"{RECORD}{key}", None)
        if dim == onesided:
            attrs[ONESIDED] = 1
    return spectrum


def aligned(array: xr.DataArray, other: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Return two arrays with the same dimensions and coordinates, the second one transposed.

    Raises
    ------
    ArgumentTypeError
        If one of them is no `xarray.DataArray`.
    ArgumentError
        If dimensions, lengths or coordinates of `other` differ from those of `array`.
    """
    for argument, value in (("array", array), ("other", other)):
        if not isinstance(value, xr.DataArray):
            raise_invalid(
                argument,
                type(value).__qualname__,
                "an xarray.DataArray",
                kind=ArgumentTypeError,
            )
    try:
        first, second = xr.align(
            array,
            other,
            join="exact",
            copy=False,
        )
        return first, second.transpose(*first.dims)
    except ValueError as error:
        raise_invalid("other", type(other).__qualname__, f"an array like the first ({error})")


def _power_or_cross_spectrum(
    work: Callable[..., Any],
    arrays: Sequence[xr.DataArray],
    dim: Dims,
    scaling: str,
    real_dim: Hashable | None,
    detrend: Detrend,
    window: WindowName,
    window_correction: bool,
    metres: bool,
    keywords: dict[str, Any],
) -> tuple[dict[Hashable, Samples], Any]:
    """Return samples by dimension, with the halved one last, and the spectrum.

    `work` is the function of `dask_bigfft.signal` that makes the power spectrum of one array, or
    the cross spectrum of two.
    """
    dims = parse_dims(arrays[0], dim, lambda _: True)
    corrects_window = parse_flag("window_correction", window_correction)
    if corrects_window and window is None:
        raise_invalid("window_correction", True, "False without a window")
    if real_dim is not None:
        dims = _with_last(dims, real_dim)
    mask = keywords.get("mask")
    sources = []
    for array in arrays:
        source = prepared(
            array,
            dims,
            detrend,
            window,
            mask,
        )
        sources.append(source.array)
    if mask is not None:
        keywords = {**keywords, "mask": source.mask, "windows": source.windows}
    samples = samples_along(arrays[0], dims, metres)
    distances = [abs(own.spacing) for own in samples.values()]
    renamed = {name: f"{PREFIX}{name}" for name in dims}
    data = called_along(
        work,
        sources,
        renamed,
        keywords,
        d=distances,
        scaling=scaling,
    )
    if not corrects_window:
        return samples, data
    return samples, data / data.dtype.type(_power_of_windows(source.windows, scaling))


def _with_last(dims: Sequence[Hashable], real_dim: Hashable) -> list[Hashable]:
    """Return dimensions with the one that gets half a spectrum at the end."""
    if real_dim not in dims:
        raise_invalid("real_dim", real_dim, f"one of the dimensions {dims}")
    others = [dim for dim in dims if dim != real_dim]
    return [*others, real_dim]


def _power_of_windows(windows: Sequence[Any], scaling: str) -> float:
    """Return the factor by which windows change a density, or a spectrum."""
    if scaling == "density":
        powers = [float(np.mean(values**2)) for values in windows]
    else:
        powers = [float(np.mean(values) ** 2) for values in windows]
    return math.prod(powers)


def _squared(
    arrays: Sequence[xr.DataArray],
    samples: Mapping[Hashable, Samples],
    data: Any,
    scaling: str,
    shift: bool,
    onesided: bool,
) -> xr.DataArray:
    """Return the power spectrum of one array, or the cross spectrum of two, with coordinates."""
    half = list(samples)[-1] if all(array.dtype.kind != "c" for array in arrays) else None
    frequencies = {}
    for name, own in samples.items():
        fftfreq = np.fft.rfftfreq if name == half else np.fft.fftfreq
        frequencies[name] = fftfreq(own.length, own.spacing)
    shifted = []
    if parse_flag("shift", shift):
        shifted = [name for name in samples if name != half]
    return _labelled(
        arrays,
        data,
        frequencies,
        samples,
        scaling,
        shifted,
        onesided=half if onesided else None,
    )


def _common_unit(samples: Mapping[Hashable, Samples]) -> str | None:
    """Return the unit of the frequencies of several dimensions; refuse unlike ones."""
    spellings = {own.frequency_units for own in samples.values()}
    if len(spellings) == 1:
        return spellings.pop()
    symbols = set()
    for own in samples.values():
        units = None if own.units is None else unit_symbol(own.units)
        symbols.add(replace(own, units=units).frequency_units)
    if len(symbols) == 1:
        return symbols.pop()
    present = [f"{dim} has {own.frequency_units or 'none'}" for dim, own in samples.items()]
    allowed = f"dimensions with one unit of frequencies ({', '.join(present)}): convert one with "
    allowed += f"assign_coords and set its attribute units, or drop_vars({list(samples)}) for "
    allowed += "cycles per sample"
    raise_invalid("dim", list(samples), allowed)


def averaged(
    work: Callable[..., Any],
    arrays: Sequence[xr.DataArray],
    dim: Dims,
    metres: bool,
    options: Mapping[str, Any],
    **keywords: Any,
) -> xr.DataArray:
    """Return averages over segments by a function of one or two arrays along a dimension.

    Parameters
    ----------
    work
        Function of `dask_bigfft.signal`.
    arrays
        Arrays of the same dimensions.
    dim
        The dimension.
    metres
        True for frequencies in cycles per metre.
    options, **keywords
        Keywords of the function. `chunks` may name dimensions.
    """
    dims = parse_dims(arrays[0], dim, lambda _: True)
    if len(dims) > 1:
        raise_invalid("dim", dims, "one dimension")
    name = dims[0]
    own = samples_along(arrays[0], dims, metres)[name]
    after = [f"{PREFIX}{old}" if old == name else old for old in arrays[0].dims]
    frequencies, data = work(
        *(array.data for array in arrays),
        fs=1 / abs(own.spacing),
        axis=arrays[0].get_axis_num(name),
        **keywords,
        **with_numbered_chunks(options, arrays[0].dims, after),
    )
    length = 1
    if len(frequencies) > 1:
        length = round(1 / abs(frequencies[1] * own.spacing))
    samples = {name: own.with_length(length)}
    signed = {name: frequencies * np.sign(own.spacing)}
    is_real = all(array.dtype.kind != "c" for array in arrays)
    is_onesided = is_real and keywords.get("return_onesided", False)
    return _labelled(
        arrays,
        data,
        signed,
        samples,
        keywords.get("scaling", "density"),
        onesided=name if is_onesided else None,
    )


@over_variables(spectral=False)
def power_spectrum(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    scaling: Scaling = "density",
    shift: bool = False,
    real_dim: Hashable | None = None,
    detrend: Detrend = None,
    window: WindowName = None,
    window_correction: bool = False,
    onesided: bool = True,
    mask: Any = None,
    metres: bool = False,
    **options: Unpack[SignalOptions],
) -> xr.DataArray:
    """Return the power spectrum along some dimensions.

    Parameters
    ----------
    array : xarray.DataArray or xarray.Dataset
        As for `fft`.
    dim : str or sequence of str, optional
        The dimensions, of any chunking; by default all. Of real data only half of the frequencies
        of the last one are returned, and the power of the other half is added to them.
    scaling : {"density", "spectrum"}
        Power per unit of frequency (the default), or power.
    shift : bool
        True to put frequency 0 in the middle, except along the halved dimension. The default is
        False.
    real_dim : str, optional
        The dimension to halve, instead of the last one.
    detrend : {"constant", "linear"}, optional
        Subtract the mean over all of the dimensions first, or a plane fitted by least squares. With
        `mask` it is that of the known values.
    window : str or tuple, optional
        Multiply by a window of `scipy.signal.get_window` along each of the dimensions.
    window_correction : bool
        True to divide by the mean square of the window ("density"), or by the square of its mean
        ("spectrum"). The default is False.
    onesided : bool
        False to leave out the power of the other half. The default is True.
    mask : xarray.DataArray or array-like, optional
        True where values are missing, see `dask_bigfft.signal.power_spectrum`. With a window, the
        weight of a known value is the square of the window there: the spectrum is divided by the
        weight of the known values over that of all. So white noise has the same expected power as
        without a mask, whatever part of the window the mask hides.
    metres : bool
        True for frequencies in cycles per metre, along coordinates in degrees north and east, in
        metres or in kilometres. Degrees east are as long as at the middle latitude of the array.
        The default is False.
    chunks, ..., planner
        `chunks` (a mapping may name dimensions), `memory_limit`, `verify` and the other options of
        `dask_bigfft.signal.power_spectrum`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        Real, with dimension ``freq_x`` instead of ``x``. The attribute ``units`` is squared, and
        divided by the units of the frequencies for a density. Lazy if the array is, otherwise
        computed at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> import xarray as xr
    >>> x = xr.DataArray([1.0, -1.0, 1.0, -1.0], dims="x", attrs={"units": "m"})
    >>> power = power_spectrum(x, scaling="spectrum")
    >>> power.values, power.units
    (array([0., 0., 1.]), '(m)^2')
    """
    samples, data = _power_or_cross_spectrum(
        signal.power_spectrum,
        [array],
        dim,
        scaling,
        real_dim,
        detrend,
        window,
        window_correction,
        metres,
        {**options, "onesided": onesided, "mask": mask_of(mask, array)},
    )
    return _squared(
        [array],
        samples,
        data,
        scaling,
        shift,
        onesided,
    )


@knows_keywords
def cross_spectrum(
    array: xr.DataArray,
    other: xr.DataArray,
    dim: Dims = None,
    *,
    scaling: Scaling = "density",
    shift: bool = False,
    real_dim: Hashable | None = None,
    detrend: Detrend = None,
    window: WindowName = None,
    window_correction: bool = False,
    onesided: bool = True,
    metres: bool = False,
    **options: Unpack[SignalOptions],
) -> xr.DataArray:
    """Return the cross spectrum of two arrays: the conjugate of the first spectrum times the other.

    Parameters
    ----------
    array, other : xarray.DataArray
        Of the same dimensions and coordinates.
    dim, scaling, shift, real_dim, detrend, window, window_correction, onesided, ..., planner
        As for `power_spectrum`.

    Returns
    -------
    xarray.DataArray
        Complex; its phase is the phase of `other` minus that of `array`. Lazy if `array` is,
        otherwise computed at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """
    arrays = aligned(array, other)
    samples, data = _power_or_cross_spectrum(
        signal.cross_spectrum,
        arrays,
        dim,
        scaling,
        real_dim,
        detrend,
        window,
        window_correction,
        metres,
        {**options, "onesided": onesided},
    )
    return _squared(
        arrays,
        samples,
        data,
        scaling,
        shift,
        onesided,
    )


@over_variables(spectral=False)
def isotropic_power_spectrum(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    scaling: Scaling = "density",
    bins: Sequence[float] | None = None,
    detrend: Detrend = None,
    window: WindowName = None,
    window_correction: bool = False,
    mask: Any = None,
    metres: bool = False,
    **options: Unpack[SignalOptions],
) -> xr.DataArray:
    """Return the mean of the power spectrum over all directions.

    Parameters
    ----------
    array, dim, scaling, detrend, window, window_correction, mask, metres, chunks, ..., planner
        As for `power_spectrum`. The coordinates of all dimensions have the same unit, unless
        `metres` is true.
    bins : sequence of float, optional
        Rising edges of the bins of frequencies, see `dask_bigfft.signal.radial_power_spectrum`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With a dimension ``freq_r``, the middles of the bins, instead of the last of `dim`, and
        without the others. It is not multiplied by ``freq_r``. Lazy if the array is, otherwise
        computed at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """
    radii = []

    def work(data: Any, **keywords: Any) -> Any:
        middles, power = signal.radial_power_spectrum(data, **keywords)
        radii.append(middles)
        return power

    samples, data = _power_or_cross_spectrum(
        work,
        [array],
        dim,
        scaling,
        None,
        detrend,
        window,
        window_correction,
        metres,
        {**options, "bins": bins, "mask": mask_of(mask, array)},
    )
    unit = _common_unit(samples)
    *others, last = samples
    transformed = [key for key, coord in array.coords.items() if {*coord.dims} & {*samples}]
    template = array.drop_vars(transformed).isel(dict.fromkeys(others, 0), drop=True)
    attrs = {} if unit is None else {"units": unit}
    new_dim = f"{PREFIX}r"
    radius = xr.Variable((new_dim,), radii[0], attrs)
    isotropic = rebuilt(template, data, {last: (new_dim, radius)})
    isotropic.attrs = squared_units([array], [unit] * len(samples), scaling)
    return isotropic


@over_variables(spectral=False)
def welch(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = "constant",
    return_onesided: bool = True,
    scaling: Scaling = "density",
    average: Average = "mean",
    metres: bool = False,
    **options: Unpack[SignalOptions],
) -> xr.DataArray:
    """Return the power spectrum along a dimension, averaged over segments.

    Parameters
    ----------
    array : xarray.DataArray or xarray.Dataset
        As for `fft`.
    dim : str, optional
        The dimension; by default the only one.
    window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, average
        See `scipy.signal.welch`. The sampling rate is that of the coordinate.
    metres
        As for `power_spectrum`.
    chunks, ..., planner
        `chunks` (a mapping may name dimensions), `memory_limit` and the other options of
        `dask_bigfft.signal.welch`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        Real, with dimension ``freq_x`` instead of ``x``, and units as `power_spectrum` has them.
        Lazy if the array is, otherwise computed at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """
    return averaged(
        signal.welch,
        [array],
        dim,
        metres,
        {**options},
        window=window,
        nperseg=nperseg,
        noverlap=noverlap,
        nfft=nfft,
        detrend=detrend,
        return_onesided=return_onesided,
        scaling=scaling,
        average=average,
    )


@knows_keywords
def csd(
    array: xr.DataArray,
    other: xr.DataArray,
    dim: Dims = None,
    *,
    window: Any = "hann",
    nperseg: int | None = None,
    noverlap: int | None = None,
    nfft: int | None = None,
    detrend: Any = "constant",
    return_onesided: bool = True,
    scaling: Scaling = "density",
    average: Average = "mean",
    metres: bool = False,
    **options: Unpack[SignalOptions],
) -> xr.DataArray:
    """Return the cross spectrum along a dimension, averaged over segments.

    Parameters
    ----------
    array, other : xarray.DataArray
        Of the same dimensions and coordinates.
    dim, window, nperseg, noverlap, nfft, detrend, return_onesided, scaling, ..., planner
        As for `welch`.

    Returns
    -------
    xarray.DataArray
        Complex, otherwise as for `cross_spectrum`. Lazy if `array` is, otherwise computed at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """
    return averaged(
        signal.csd,
        aligned(array, other),
        dim,
        metres,
        options,
        window=window,
        nperseg=nperseg,
        noverlap=noverlap,
        nfft=nfft,
        detrend=detrend,
        return_onesided=return_onesided,
        scaling=scaling,
        average=average,
    )
