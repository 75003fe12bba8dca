"""The functions for arrays and datasets, and the accessor with them."""

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, TypeVar

import xarray as xr

from dask_bigfft.errors import raise_invalid
from dask_bigfft.xarray.arrays import (
    Dims,
    Norm,
    both_shifted,
    forward,
    inverse,
    is_spectral,
    listed,
)

__all__ = ["Accessor", "fft", "fftshift", "ifft", "ifftshift", "irfft", "rfft"]

Field = TypeVar("Field", xr.DataArray, xr.Dataset)

Work = Callable[[xr.DataArray, Any], xr.DataArray]


def _each(field: Field, dim: Dims, spectral: bool, work: Work) -> Field:
    """Return the result of `work` for an array, or for the variables of a dataset.

    Parameters
    ----------
    field : xarray.DataArray or xarray.Dataset
        An array, or several.
    dim : str or sequence of str, optional
        The dimensions. By default, of a dataset, all of its variables', or those of frequencies.
    spectral : bool
        True if the default is only dimensions of frequencies.
    work : callable
        Takes an array and its dimensions.

    Raises
    ------
    ArgumentError
        If a variable has some of the dimensions, or none has any.
    """
    if not isinstance(field, xr.Dataset):
        return work(field, dim)
    dims = _dims(field, dim, spectral)
    variables = {name: a for name, a in field.data_vars.items() if set(a.dims) & set(dims)}
    partly = [name for name, array in variables.items() if not set(dims) <= set(array.dims)]
    if partly or not variables:
        whole = [name for name in variables if name not in partly]
        raise_invalid(
            "dim",
            dim,
            f"dimensions that each variable has all or none of, and one has all: "
            f"{partly} have some; try dataset[{whole}]"
            if partly
            else f"some of the dimensions {tuple(field.dims)}",
        )
    found = {name: work(array, dims) for name, array in variables.items()}
    kept = {name: array for name, array in field.data_vars.items() if name not in found}
    coords = {name: c for name, c in field.coords.items() if not set(c.dims) & set(dims)}
    made = xr.Dataset(kept, coords=coords, attrs=field.attrs).assign(found)
    return made[list(field.data_vars)]


def _dims(dataset: xr.Dataset, dim: Dims, spectral: bool) -> list[Hashable]:
    """Return the requested dimensions, by default all in the order of the variables.

    A dataset has its coordinates' first. The last one is halved, the same way in every variable.
    """
    if dim is not None:
        return listed(dim)
    arrays = dataset.data_vars.values()
    named = dict.fromkeys(name for array in arrays for name in array.dims)
    return [name for name in named if not spectral or any(is_spectral(a)(name) for a in arrays)]


def fft(
    array: Field, dim: Dims = None, *, shift: bool = False, norm: Norm = None, **extras: Any
) -> Field:
    """Return the discrete Fourier transform along some dimensions.

    Parameters
    ----------
    array : xarray.DataArray or xarray.Dataset
        Arrays with evenly spaced coordinates (numbers or times), or without coordinates. In a
        dataset, variables with all of the dimensions are transformed, and variables with none of
        them do not change.
    dim : str or sequence of str, optional
        The dimensions, of any chunking; by default all.
    shift : bool
        True to put frequency 0 in the middle.
    norm : {"backward", "ortho", "forward"}, optional
        See `numpy.fft.fftn`.
    **extras
        Keywords of `dask_bigfft.fft.fftn`: `order`, `chunks` (a mapping may name dimensions),
        `memory_limit` and the others.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        Result with dimension ``freq_x`` instead of ``x``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For uneven coordinates, for variables of a dataset with some of the dimensions but not all,
        and for other invalid arguments.

    Examples
    --------
    >>> import xarray as xr
    >>> x = xr.DataArray([1.0, 0, 0, 0], dims="x", coords={"x": [0.0, 0.5, 1.0, 1.5]})
    >>> fft(x, "x").freq_x.values
    array([ 0. ,  0.5, -1. , -0.5])
    """
    return _each(array, dim, False, lambda a, dims: forward("fftn", a, dims, shift, norm, extras))


def rfft(
    array: Field, dim: Dims = None, *, shift: bool = False, norm: Norm = None, **extras: Any
) -> Field:
    """Return half the transform of real data; the half is that of the last dimension named.

    Parameters
    ----------
    array, dim, shift, norm, **extras
        As for `fft`. The last dimension is never shifted.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With frequencies from 0 on along the last dimension.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        As for `fft`.

    Examples
    --------
    >>> import xarray as xr
    >>> rfft(xr.DataArray([1.0, 0, 0, 0], dims="t"), "t").freq_t.values
    array([0.  , 0.25, 0.5 ])
    """
    return _each(array, dim, False, lambda a, dims: forward("rfftn", a, dims, shift, norm, extras))


def ifft(array: Field, dim: Dims = None, *, norm: Norm = None, **extras: Any) -> Field:
    """Return the inverse of `fft`, with the dimensions and coordinates from before.

    Parameters
    ----------
    array : xarray.DataArray or xarray.Dataset
        A spectrum, or several; whether the frequency 0 is in the middle is read off coordinates.
    dim : str or sequence of str, optional
        The dimensions of frequencies; by default those that a transform of this module has made.
    norm, **extras
        As for `fft`; `order` is that of the spectrum.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With ``x`` in the place of ``freq_x``. Where attributes do not tell its coordinate, it
        begins at 0 with the step that belongs to the frequencies.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> import xarray as xr
    >>> x = xr.DataArray([1.0, 0, 2, 0], dims="x", coords={"x": [3, 5, 7, 9]})
    >>> ifft(fft(x)).x.values
    array([3, 5, 7, 9])
    """
    return _each(array, dim, True, lambda a, dims: inverse("ifftn", a, dims, None, norm, extras))


def irfft(
    array: Field, dim: Dims = None, *, n: int | None = None, norm: Norm = None, **extras: Any
) -> Field:
    """Return the inverse of `rfft`, which is real.

    Parameters
    ----------
    array, dim, norm, **extras
        As for `ifft`; the last dimension is the one that has half its frequencies.
    n : int, optional
        Length of that dimension in the result; by default that from before, else 2 (m - 1) for m
        frequencies.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        As for `ifft`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> import xarray as xr
    >>> irfft(rfft(xr.DataArray([1.0, 0, 2], dims="x"))).values.round(12)
    array([1., 0., 2.])
    """
    return _each(array, dim, True, lambda a, dims: inverse("irfftn", a, dims, n, norm, extras))


def fftshift(array: Field, dim: Dims = None) -> Field:
    """Return the array with the frequency 0 in the middle, coordinates included.

    Parameters
    ----------
    array : xarray.DataArray or xarray.Dataset
        A spectrum in natural order, or several.
    dim : str or sequence of str, optional
        Dimensions; by default those of frequencies that a transform of this module has made.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        In the same chunks.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """
    return _each(array, dim, True, lambda a, dims: both_shifted("fftshift", a, dims))


def ifftshift(array: Field, dim: Dims = None) -> Field:
    """Return the inverse of `fftshift`; arguments and result are those of `fftshift`."""
    return _each(array, dim, True, lambda a, dims: both_shifted("ifftshift", a, dims))


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

    fft, ifft = _method(fft), _method(ifft)
    rfft, irfft = _method(rfft), _method(irfft)
    fftshift, ifftshift = _method(fftshift), _method(ifftshift)
