"""Spectra of xarray's arrays: `dask_bigfft.signal` with dimensions, coordinates and units."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, cast

import numpy as np
import xarray as xr

from dask_bigfft import signal
from dask_bigfft.api.calls import transforms_by
from dask_bigfft.errors import parse_flag, raise_invalid
from dask_bigfft.xarray import functions
from dask_bigfft.xarray.arrays import (
    Dims,
    computed,
    over_variables,
    parse_dims,
    prepared,
    rebuilt,
    with_frequencies,
)
from dask_bigfft.xarray.attributes import ARRAY_ATTRS, RECORD, attrs_as_text
from dask_bigfft.xarray.coordinates import PREFIX, Samples, samples_of
from dask_bigfft.xarray.keywords import refuse_unknown
from dask_bigfft.xarray.units import same_unit, unit_symbol

__all__ = [
    "Accessor",
    "cross_spectrum",
    "csd",
    "isotropic_power_spectrum",
    "power_spectrum",
    "welch",
]


def _units(
    arrays: Sequence[xr.DataArray], samples: Mapping[Hashable, Samples], scaling: str
) -> dict[str, Any]:
    """Return the attributes of a squared spectrum; its unit is left out if one is unknown."""
    kept = {key: value for key, value in arrays[0].attrs.items() if key != "units"}
    first = arrays[0].attrs.get("units")
    second = arrays[-1].attrs.get("units")
    per = [found.frequency_units for found in samples.values()] if scaling == "density" else []
    if first is None or second is None or None in per:
        return kept
    product = f"({first})^2" if same_unit(str(first), str(second)) else f"({first})({second})"
    return kept | {"units": product + "".join(f"/({unit})" for unit in per)}


def _labelled(
    arrays: Sequence[xr.DataArray],
    data: Any,
    places: Mapping[Hashable, Any],
    samples: Mapping[Hashable, Samples],
    scaling: str,
    shifted: Sequence[Hashable] = (),
) -> xr.DataArray:
    """Return a squared spectrum with frequencies and units; its inverse has lags from 0 on."""
    spectrum = with_frequencies(arrays[0], data, places, samples, shifted)
    spectrum.attrs = _units(arrays, samples, scaling)
    for dim in places:
        attrs = spectrum[f"{PREFIX}{dim}"].attrs
        attrs[ARRAY_ATTRS] = attrs_as_text(spectrum.attrs)
        for key in ("first", "step", "dtype", "time_unit", "calendar"):
            attrs.pop(f"{RECORD}{key}", None)
    return spectrum


def _aligned(array: xr.DataArray, other: xr.DataArray) -> tuple[xr.DataArray, xr.DataArray]:
    """Return two arrays of the same dimensions and coordinates, the second one transposed."""
    try:
        first, second = xr.align(array, other, join="exact", copy=False)
        return first, second.transpose(*first.dims)
    except (TypeError, ValueError) as error:
        raise_invalid("other", type(other).__qualname__, f"an array like the first ({error})")


def _spectrum(
    work: Callable[..., Any],
    arrays: Sequence[xr.DataArray],
    dim: Dims,
    scaling: str,
    *,
    real_dim: Hashable = None,
    detrend: Any = None,
    window: Any = None,
    window_correction: bool = False,
    **extras: Any,
) -> tuple[dict[Hashable, Samples], Any]:
    """Return samples by dimension, with the halved one last, and the spectrum by `work`."""
    dims = parse_dims(arrays[0], dim, lambda _: True)
    if real_dim is not None:
        if real_dim not in dims:
            raise_invalid("real_dim", real_dim, f"one of the dimensions {dims}")
        dims = [*(found for found in dims if found != real_dim), real_dim]
    pairs = [prepared(array, dims, detrend, window) for array in arrays]
    samples = {found: samples_of(arrays[0], found) for found in dims}
    given = {"d": [abs(found.spacing) for found in samples.values()], "scaling": scaling}
    renamed = {found: f"{PREFIX}{found}" for found in dims}
    data = computed(work, [found for found, _ in pairs], renamed, extras, **given)
    if not parse_flag("window_correction", window_correction):
        return samples, data
    if window is None:
        raise_invalid("window_correction", True, "False without a window")
    density = scaling == "density"
    powers = [np.mean(w**2) if density else np.mean(w) ** 2 for w in pairs[0][1]]
    return samples, data / data.dtype.type(math.prod(powers))


def _squared(
    arrays: Sequence[xr.DataArray],
    dim: Dims = None,
    scaling: str = "density",
    shift: bool = False,
    **extras: Any,
) -> xr.DataArray:
    """Return the power spectrum of one array, or the cross spectrum of two."""
    work = signal.power_spectrum if len(arrays) == 1 else signal.cross_spectrum
    samples, data = _spectrum(work, arrays, dim, scaling, **extras)
    half = list(samples)[-1] if all(array.dtype.kind != "c" for array in arrays) else None
    places = {
        found: (np.fft.rfftfreq if found == half else np.fft.fftfreq)(own.length, own.spacing)
        for found, own in samples.items()
    }
    shifted = [found for found in samples if found != half] if parse_flag("shift", shift) else []
    return _labelled(arrays, data, places, samples, scaling, shifted)


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


def _isotropic(
    arrays: Sequence[xr.DataArray], dim: Dims, scaling: str = "density", **extras: Any
) -> xr.DataArray:
    """Return the mean of the power spectrum over all directions."""
    (array,) = arrays
    radii = []

    def work(data: Any, **keywords: Any) -> Any:
        middles, power = signal.radial_power_spectrum(data, **keywords)
        radii.append(middles)
        return power

    samples, data = _spectrum(work, [array], dim, scaling, **extras)
    unit = _common_unit(samples)
    *others, last = samples
    gone = [key for key, found in array.coords.items() if {*found.dims} & {*samples}]
    rest = array.drop_vars(gone).isel(dict.fromkeys(others, 0), drop=True)
    attrs = {} if unit is None else {"units": unit}
    new = f"{PREFIX}r"
    result = rebuilt(rest, data, {last: (new, xr.Variable((new,), radii[0], attrs))})
    result.attrs = _units([array], samples, scaling)
    return result


def _averaged(arrays: Sequence[xr.DataArray], dim: Dims, **keywords: Any) -> xr.DataArray:
    """Return the average of the power or cross spectra of segments."""
    dims = parse_dims(arrays[0], dim, lambda _: True)
    if len(dims) > 1:
        raise_invalid("dim", dims, "one dimension")
    (dim,) = dims
    own = samples_of(arrays[0], dims[0])
    work: Any = signal.welch if len(arrays) == 1 else signal.csd
    keywords |= {"fs": 1 / abs(own.spacing), "axis": arrays[0].get_axis_num(dim)}
    found, data = work(*(array.data for array in arrays), **keywords)
    length = round(1 / abs(found[1] * own.spacing)) if len(found) > 1 else 1
    samples = {dim: replace(own, length=length)}
    places = {dim: found * np.sign(own.spacing)}
    return _labelled(arrays, data, places, samples, keywords.get("scaling", "density"))


#: Functions that work for each function of this module, and to which it passes keywords on.
_WORKS: dict[str, tuple[Callable[..., Any], ...]] = {
    "power_spectrum": (_squared, _spectrum, signal.power_spectrum),
    "cross_spectrum": (_squared, _spectrum, signal.cross_spectrum),
    "isotropic_power_spectrum": (_isotropic, _spectrum, signal.radial_power_spectrum),
    "welch": (_averaged, signal.welch),
    "csd": (_averaged, signal.csd),
}


@transforms_by
@partial(over_variables, spectral=False, inner=_WORKS.__getitem__)
def _of_one(name: str, array: xr.DataArray, dim: Dims = None, **keywords: Any) -> xr.DataArray:
    """Return a spectrum of one array by the name of its function."""
    work = _WORKS[name][0]
    return cast("xr.DataArray", work([array], dim, **keywords))


@_of_one
def power_spectrum() -> None:
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
        Subtract the mean over all of the dimensions first, or the plane of the least squares.
    window : str or tuple, optional
        Multiply by a window of `scipy.signal.get_window` along each of the dimensions.
    window_correction : bool
        True to divide by the mean square of the window ("density"), or by the square of its mean
        ("spectrum"). The default is False.
    **extras
        `onesided`, `chunks`, `memory_limit`, `verify` and the other keywords of
        `dask_bigfft.signal.power_spectrum`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        Real, with dimension ``freq_x`` instead of ``x``. The attribute ``units`` is squared, and
        divided by the units of the frequencies for a density.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> import xarray as xr
    >>> x = xr.DataArray([1.0, -1.0, 1.0, -1.0], dims="x", attrs={"units": "m"})
    >>> found = power_spectrum(x, scaling="spectrum")
    >>> found.values, found.units
    (array([0., 0., 1.]), '(m)^2')
    """


def cross_spectrum(
    array: xr.DataArray, other: xr.DataArray, dim: Dims = None, **keywords: Any
) -> xr.DataArray:
    """Return the cross spectrum of two arrays: the conjugate of the first spectrum times the other.

    Parameters
    ----------
    array, other : xarray.DataArray
        Of the same dimensions and coordinates.
    dim, scaling, shift, **extras
        See `power_spectrum`.

    Returns
    -------
    xarray.DataArray
        Complex; its phase is the phase of `other` minus that of `array`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """
    refuse_unknown(keywords, *_WORKS["cross_spectrum"])
    return _squared(_aligned(array, other), dim, **keywords)


@_of_one
def isotropic_power_spectrum() -> None:
    """Return the mean of the power spectrum over all directions.

    Parameters
    ----------
    array, dim, scaling
        As for `power_spectrum`. The coordinates of all dimensions have the same unit.
    bins : sequence of float, optional
        Rising edges of the bins of frequencies, see `dask_bigfft.signal.radial_power_spectrum`.
    detrend, window, window_correction, **extras
        As for `power_spectrum`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With a dimension ``freq_r``, the middles of the bins, instead of the last of `dim`, and
        without the others. It is not multiplied by ``freq_r``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """


@_of_one
def welch() -> None:
    """Return the power spectrum along a dimension, averaged over segments.

    Parameters
    ----------
    array : xarray.DataArray or xarray.Dataset
        As for `fft`.
    dim : str, optional
        The dimension; by default the only one.
    **keywords
        `window`, `nperseg`, `noverlap`, `nfft`, `detrend`, `return_onesided`, `scaling` and
        `average` of `dask_bigfft.signal.welch`, with its defaults, and its options, such as
        `memory_limit`. The sampling rate is that of the coordinate.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        Real, with dimension ``freq_x`` instead of ``x``, and units as `power_spectrum` has them.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """


def csd(
    array: xr.DataArray, other: xr.DataArray, dim: Dims = None, **keywords: Any
) -> xr.DataArray:
    """Return the cross spectrum along a dimension, averaged over segments.

    Parameters
    ----------
    array, other : xarray.DataArray
        Of the same dimensions and coordinates.
    dim, **keywords
        As for `welch`.

    Returns
    -------
    xarray.DataArray
        Complex, as `cross_spectrum` has it.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """
    refuse_unknown(keywords, *_WORKS["csd"])
    return _averaged(_aligned(array, other), dim, **keywords)


def _method(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the method of an accessor that calls a function on the accessor's array."""

    @wraps(function)
    def method(self: "Accessor", *args: Any, **kwargs: Any) -> Any:
        return function(self._array, *args, **kwargs)

    return method


@xr.register_dataarray_accessor("bigfft")  # type: ignore[no-untyped-call, unused-ignore]
@xr.register_dataset_accessor("bigfft")  # type: ignore[no-untyped-call, unused-ignore]
class Accessor:
    """The functions of this module as methods of an array or dataset: ``array.bigfft.fft("x")``."""

    def __init__(self, array: Any) -> None:
        self._array = array


_functions = {**vars(functions), **globals()}
for _name in {*functions.__all__, *__all__} - {"Accessor"}:
    setattr(Accessor, _name, _method(_functions[_name]))
