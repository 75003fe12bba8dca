"""Short-time transforms of xarray's arrays: frequencies and times of slices as coordinates."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
import xarray as xr

from dask_bigfft import signal
from dask_bigfft.api.calls import transforms_by
from dask_bigfft.errors import raise_invalid
from dask_bigfft.signal.short_time import parse_slices, parse_window_keywords
from dask_bigfft.xarray.arrays import (
    Dims,
    is_spectral,
    labelled_like,
    over_variables,
    parse_dims,
)
from dask_bigfft.xarray.attributes import (
    ARRAY_ATTRS,
    attrs_as_text,
    frequency_attrs,
    source_attrs,
)
from dask_bigfft.xarray.coordinates import PREFIX, Samples, remembered, samples_of
from dask_bigfft.xarray.keywords import refuse_unknown
from dask_bigfft.xarray.spectra import squared_units

__all__ = ["istft", "spectrogram", "stft"]


def _one_dim(
    array: xr.DataArray,
    dim: Dims,
    default: Callable[[Hashable], bool],
) -> Hashable:
    """Return the one dimension that is transformed."""
    dims = parse_dims(array, dim, default)
    if len(dims) > 1:
        raise_invalid("dim", dims, "one dimension")
    return dims[0]


def _moved(
    samples: Samples,
    places: float,
    every: int,
    count: int,
) -> Samples:
    """Return `count` positions, the first one some samples after the first sample.

    Parameters
    ----------
    samples : Samples
        Positions of samples.
    places : float
        Number of samples before the first position.
    every : int
        Number of samples from a position to the next one.
    count : int
        Number of positions.
    """
    distance = places * samples.step
    moved = replace(
        samples,
        length=count,
        step=samples.step * every,
        first=samples.first + distance,
    )
    if samples.dtype is None:
        return replace(moved, dtype="int64")
    if samples.is_time:
        first = int(samples.first) + round(distance)
        return replace(moved, first=first)
    has_integers = np.dtype(samples.dtype).kind in "iu"
    if has_integers and not float(moved.first).is_integer():
        return replace(moved, dtype="float64")
    return moved


def _with_slices(
    array: xr.DataArray,
    data: Any,
    dim: Hashable,
    keywords: Mapping[str, Any],
) -> xr.DataArray:
    """Return spectra of slices with the coordinates of their frequencies and times."""
    own = samples_of(array, dim)
    transform = parse_window_keywords(keywords, 1 / abs(own.spacing))
    first, end = parse_slices(
        keywords.get("p0"),
        keywords.get("p1"),
        transform,
        own.length,
    )
    start = first * transform.hop + keywords.get("k_offset", 0)
    times = _moved(
        own,
        start,
        int(transform.hop),
        end - first,
    )
    new_dim = f"{PREFIX}{dim}"
    dims = [new_dim if name == dim else name for name in array.dims]
    if new_dim in array.dims:
        raise_invalid("dim", dim, f"a dimension whose new name is not in use: {new_dim}")
    earlier = [*frequency_attrs(array).values()]
    source = source_attrs(array.attrs, earlier, array.name)
    frequencies = transform.f * np.sign(own.spacing)
    attrs = own.attrs | {ARRAY_ATTRS: attrs_as_text(source)}
    if len(frequencies) > 1:
        attrs["spacing"] = float(transform.delta_f)
    coords: dict[Hashable, Any] = {}
    for name, coordinate in array.coords.items():
        if dim not in coordinate.dims:
            coords[name] = coordinate
    coords[new_dim] = xr.Variable((new_dim,), frequencies, attrs)
    coords[dim] = times.coordinate(end - first)
    return labelled_like(
        array,
        data,
        [*dims, dim],
        coords,
    )


def _stft(array: xr.DataArray, dim: Dims = None, **keywords: Any) -> xr.DataArray:
    """Return the spectra of slices."""
    name = _one_dim(array, dim, lambda _: True)
    own = samples_of(array, name)
    data = signal.stft(
        array.data,
        fs=1 / abs(own.spacing),
        axis=array.get_axis_num(name),
        **keywords,
    )
    spectra = _with_slices(array, data, name, keywords)
    if keywords.get("scale_to") == "psd":
        spectra.attrs.pop("units", None)  # the root of a density
    return spectra


def _spectrogram(array: xr.DataArray, dim: Dims = None, **keywords: Any) -> xr.DataArray:
    """Return the squared spectra of slices."""
    name = _one_dim(array, dim, lambda _: True)
    own = samples_of(array, name)
    data = signal.spectrogram(
        array.data,
        fs=1 / abs(own.spacing),
        axis=array.get_axis_num(name),
        **keywords,
    )
    spectra = _with_slices(array, data, name, keywords)
    scaling = "density" if keywords.get("scale_to") == "psd" else "spectrum"
    spectra.attrs = squared_units([array], {name: own}, scaling)
    return spectra


#: Functions that work for each function of this module, and to which it passes keywords on.
_WORKS: dict[str, tuple[Callable[..., Any], ...]] = {
    "stft": (_stft, signal.stft),
    "spectrogram": (_spectrogram, signal.spectrogram),
}


@transforms_by
@partial(over_variables, spectral=False, inner=_WORKS.__getitem__)
def _of_one(
    name: str,
    array: xr.DataArray,
    dim: Dims = None,
    **keywords: Any,
) -> xr.DataArray:
    """Return the slices' spectra of one array by the name of their function."""
    work = _WORKS[name][0]
    return cast("xr.DataArray", work(array, dim, **keywords))


@_of_one
def stft() -> None:
    """Return the short-time Fourier transform along a dimension.

    Parameters
    ----------
    array : xarray.DataArray or xarray.Dataset
        As for `fft`.
    dim : str, optional
        The dimension; by default the only one.
    **keywords
        `win`, `hop` and the other arguments of `dask_bigfft.signal.stft`, with its defaults, and
        its options. The sampling rate is that of the coordinate.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        Complex, with dimension ``freq_x`` instead of ``x`` and a last dimension ``x``, whose
        coordinate has the middle of each slice.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> import xarray as xr
    >>> x = xr.DataArray(np.ones(100), dims="x", coords={"x": np.arange(100) / 10})
    >>> spectra = stft(x, win=np.ones(10), hop=20)
    >>> spectra.dims, spectra.x.values
    (('freq_x', 'x'), array([ 0.,  2.,  4.,  6.,  8., 10.]))
    """


@_of_one
def spectrogram() -> None:
    """Return the squared short-time Fourier transform along a dimension.

    Parameters
    ----------
    array, dim
        As for `stft`.
    **keywords
        `win`, `hop` and the other arguments of `dask_bigfft.signal.spectrogram`, with its defaults,
        and its options. The sampling rate is that of the coordinate.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        Real, as `stft` has it. The attribute ``units`` is squared, and divided by the unit of the
        frequencies for ``scale_to="psd"``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """


def istft(array: Any, dim: Dims = None, **keywords: Any) -> Any:
    """Return the inverse of `stft`, with the coordinate from before.

    Parameters
    ----------
    array : xarray.DataArray or xarray.Dataset
        What `stft` returns with its default slices, or a product with it.
    dim : str, optional
        The dimension of the frequencies.
    **keywords
        Arguments of the `stft` that has made it, and others of `dask_bigfft.signal.istft`. By
        default the result has as many samples as before.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With the dimension, coordinate and attributes from before the transform.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> import xarray as xr
    >>> x = xr.DataArray(np.arange(50.0), dims="x", coords={"x": np.arange(50) / 10})
    >>> window = {"win": np.hanning(10), "hop": 2}
    >>> istft(stft(x, **window), **window)[-2:].values.round(6)
    array([48., 49.])
    """
    refuse_unknown(keywords, signal.istft)
    if isinstance(array, xr.Dataset):
        inverses = {}
        for name, variable in array.data_vars.items():
            inverses[name] = variable
            if any(map(is_spectral(variable), variable.dims)):
                inverses[name] = istft(variable, dim, **keywords)
        return xr.Dataset(inverses, attrs=array.attrs)
    name = _one_dim(array, dim, is_spectral(array))
    own = remembered(array, name, False)
    if own.dim not in array.dims:
        raise_invalid("array", f"of dimensions {array.dims}", f"a dimension {own.dim} of slices")
    k0 = keywords.pop("k0", 0)
    k1 = keywords.pop("k1", own.length)
    data = signal.istft(
        array.data,
        fs=1 / abs(own.spacing),
        k0=k0,
        k1=k1,
        f_axis=array.get_axis_num(name),
        t_axis=array.get_axis_num(own.dim),
        **keywords,
    )
    samples = [*array.dims]
    samples.remove(name)
    samples.remove(own.dim)
    place = min(array.get_axis_num(name), len(samples))
    samples.insert(place, own.dim)
    coords: dict[Hashable, Any] = {}
    for key, coordinate in array.coords.items():
        if not {name, own.dim} & set(coordinate.dims):
            coords[key] = coordinate
    count = data.shape[place]
    if own.dtype is not None:
        moved = _moved(
            own,
            places=k0,
            every=1,
            count=count,
        )
        coords[own.dim] = moved.coordinate(count)
    restored = labelled_like(
        array,
        data,
        samples,
        coords,
    )
    restored.attrs = source_attrs(
        array.attrs,
        [array[name].attrs],
        array.name,
    )
    return restored
