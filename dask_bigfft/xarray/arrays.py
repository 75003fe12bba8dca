"""Transforms of one `DataArray` with its dimensions and coordinates."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal

import dask.array as da
import numpy as np
import xarray as xr

from dask_bigfft import config
from dask_bigfft import fft as transforms
from dask_bigfft.errors import ArgumentTypeError, parse_flag, raise_invalid
from dask_bigfft.transforms.spec import parse_length, parse_orders
from dask_bigfft.xarray.coordinates import PREFIX, refuse_parts, remembered, samples_of

Dims = Hashable | Sequence[Hashable] | None
Norm = Literal["backward", "ortho", "forward"] | None


def listed(dim: Hashable | Sequence[Hashable]) -> list[Hashable]:
    """Return dimensions as a list, from a sequence or a single name."""
    return list(dim) if isinstance(dim, Sequence) and not isinstance(dim, str) else [dim]


def parse_dims(array: Any, dim: Dims, default: Callable[[Hashable], bool]) -> list[Hashable]:
    """Return the requested dimensions; by default those for which `default` returns True."""
    if not isinstance(array, xr.DataArray):
        allowed = "an xarray.DataArray or xarray.Dataset"
        raise_invalid("array", type(array).__qualname__, allowed, kind=ArgumentTypeError)
    dims = listed(dim) if dim is not None else [found for found in array.dims if default(found)]
    named = all(isinstance(found, Hashable) for found in dims)
    if not named or not set(dims) <= set(array.dims) or not dims or len(set(dims)) < len(dims):
        raise_invalid("dim", dim, f"one or more of the dimensions {array.dims}, each once")
    return dims


def is_spectral(array: xr.DataArray) -> Callable[[Hashable], bool]:
    """Return a test for frequency dimensions made by transforms of this module."""
    return lambda dim: dim in array.coords and "direct_dim" in array.coords[dim].attrs


def _orders(extras: dict[str, Any], count: int) -> tuple[str, ...]:
    order = extras.get("order")
    return parse_orders(config.get("bigfft.order") if order is None else order, count)


def _computed(
    name: str,
    array: xr.DataArray,
    data: Any,
    dims: Sequence[Hashable],
    extras: dict[str, Any],
    **arguments: Any,
) -> Any:
    """Return the lazy transform of an array's data along some dimensions."""
    axes = [array.get_axis_num(dim) for dim in dims]
    chunks = extras.get("chunks")
    if isinstance(chunks, Mapping):
        number = {dim: axis for axis, dim in enumerate(array.dims)}
        extras = extras | {"chunks": {number.get(dim, dim): cut for dim, cut in chunks.items()}}
    return getattr(transforms, name)(data, axes=axes, **arguments, **extras)


def _rebuilt(
    array: xr.DataArray, data: Any, renamed: Mapping[Hashable, tuple[Hashable, Any]]
) -> xr.DataArray:
    """Return the array with other data, and new names and coordinates of some dimensions."""
    kept = {
        name: found for name, found in array.coords.items() if not set(found.dims) & set(renamed)
    }
    dims = [renamed[dim][0] if dim in renamed else dim for dim in array.dims]
    if len(set(dims)) < len(dims):
        raise_invalid("dim", list(renamed), f"dimensions whose new names are not in use: {dims}")
    new = {name: found for name, found in renamed.values() if found is not None}
    return _named(array, data, dims, kept | new)


def _named(
    array: xr.DataArray, data: Any, dims: Sequence[Hashable], coords: Mapping[Any, Any]
) -> xr.DataArray:
    """Return data with an array's name and attributes, lazy if the array is lazy.

    The name is set explicitly, because xarray would otherwise use the name of a dask array.
    """
    if isinstance(data, da.Array) and not isinstance(array.data, da.Array):
        data = data.compute()
    found = xr.DataArray(data, dims=dims, coords=coords, attrs=array.attrs)
    found.name = array.name
    return found


def forward(
    name: str, array: xr.DataArray, dim: Dims, shift: bool, norm: Norm, extras: dict[str, Any]
) -> xr.DataArray:
    """Return the transform into frequencies."""
    dims = parse_dims(array, dim, lambda _: True)
    half = dims[-1] if name == "rfftn" else None
    shifted = [found for found in dims if found != half] if parse_flag("shift", shift) else []
    if shifted and "transposed" in _orders(extras, len(dims)):
        raise_invalid("shift", shift, "False in transposed order")
    samples = {found: samples_of(array, found) for found in dims}
    data = _computed(name, array, array.data, dims, extras, norm=norm)
    renamed: dict[Hashable, tuple[Hashable, Any]] = {}
    for found in dims:
        lazy = transforms.frequencies_of(data, array.get_axis_num(found), samples[found].spacing)
        new, values = f"{PREFIX}{found}", lazy.compute(scheduler="sync")
        values = np.fft.fftshift(values) if found in shifted else values
        renamed[found] = new, xr.Variable((new,), values, samples[found].attrs)
    if shifted:
        data = transforms.fftshift(data, [array.get_axis_num(found) for found in shifted])
    return _rebuilt(array, data, renamed)


def inverse(
    name: str,
    array: xr.DataArray,
    dim: Dims,
    length: int | None,
    norm: Norm,
    extras: dict[str, Any],
) -> xr.DataArray:
    """Return the inverse transform; `length` is that of the halved dimension."""
    dims = parse_dims(array, dim, is_spectral(array))
    length = None if length is None else parse_length("n", length, 1)
    orders = _orders(extras, len(dims))
    half = dims[-1] if name == "irfftn" else None
    samples = {found: remembered(array, found, found == half) for found in dims}
    natural = [found for found, order in zip(dims, orders, strict=True) if order == "natural"]
    for found in natural:
        refuse_parts(array, found, samples[found], found == half)
    if half is not None:
        samples[half] = samples[half].resampled(length)
    shifted = [found for found in natural if found != half and _is_shifted(array, found)]
    data = array.data
    if shifted:
        data = transforms.ifftshift(data, [array.get_axis_num(found) for found in shifted])
    sizes = [samples[found].length if found == half else array.sizes[found] for found in dims]
    data = _computed(name, array, data, dims, extras, norm=norm, s=sizes)
    renamed: dict[Hashable, tuple[Hashable, Any]] = {}
    for found in dims:
        places, new, units = samples[found].coordinate(), samples[found].dim, samples[found].units
        attrs = {} if units is None else {"units": units}
        renamed[found] = new, None if places is None else xr.Variable((new,), places, attrs)
    return _rebuilt(array, data, renamed)


def _is_shifted(array: xr.DataArray, dim: Hashable) -> bool:
    """Return True if frequency 0 is in the middle, False if first; refuse other places."""
    if dim not in array.coords or array.sizes[dim] < 2:
        return False
    zero = np.flatnonzero(array.coords[dim].values == 0)
    middle = array.sizes[dim] // 2
    if len(zero) != 1 or zero[0] not in (0, middle):
        raise_invalid(
            f"coordinate {dim}",
            f"with the frequency 0 at {zero.tolist()}",
            f"all frequencies, 0 at place 0 or {middle}",
        )
    return bool(zero[0] == middle)


def both_shifted(name: str, array: xr.DataArray, dim: Dims) -> xr.DataArray:
    """Return the array with values and coordinates shifted along some dimensions."""
    dims = parse_dims(array, dim, is_spectral(array))
    data = getattr(transforms, name)(array.data, [array.get_axis_num(found) for found in dims])
    places = {found: getattr(np.fft, name)(np.arange(array.sizes[found])) for found in dims}
    coords = {
        key: found.isel({d: i for d, i in places.items() if d in found.dims})
        for key, found in array.coords.items()
    }
    return _named(array, data, array.dims, coords)
