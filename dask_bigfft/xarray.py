"""Transforms of xarray's arrays by the names of their dimensions.

A transformed dimension ``x`` becomes ``freq_x``, with a coordinate of frequencies: cycles per unit
of the coordinate of ``x`` (per second where that is a time), in natural order unless another is
asked for. What the coordinate was is kept in the attributes of the new one (``direct_...``), and
the inverse puts it back. Values are those of `numpy.fft`: neither scaled by the spacing nor turned
by the place of the first sample. Other dimensions and their coordinates, the name and the
attributes stay; coordinates along a transformed dimension that are not its own are dropped. Arrays
in chunks stay so, others are computed.

Importing this module gives every `xarray.DataArray` an attribute ``bigfft`` with the same
functions::

    import dask_bigfft.xarray
    spectrum = field.bigfft.rfft(["y", "x"])

Imports `fft`, `frequencies` and `shifts`; needs xarray.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import dask.array as da
import numpy as np

from dask_bigfft import config
from dask_bigfft import fft as transforms
from dask_bigfft.errors import ArgumentTypeError, refuse

try:
    import xarray as xr
except ImportError as error:
    text = "dask_bigfft.xarray needs xarray: pip install 'dask-bigfft[xarray]'"
    raise ImportError(text) from error

__all__ = ["Accessor", "fft", "fftshift", "ifft", "ifftshift", "irfft", "rfft"]

Dims = Hashable | Sequence[Hashable] | None
Norm = Literal["backward", "ortho", "forward"] | None

PREFIX = "freq_"

#: How far steps of a coordinate may be from their mean, as a part of it.
TOLERANCE = 1e-3


# --- coordinates --------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Samples:
    """Where the samples of a dimension are: what a frequency coordinate remembers of it.

    ``first`` and ``step`` are in the coordinate's unit, for times in nanoseconds; ``dtype`` is the
    coordinate's, None where the dimension had none.
    """

    dim: Hashable
    length: int
    first: float | int = 0
    step: float = 1.0
    units: str | None = None
    dtype: str | None = None

    @property
    def is_time(self) -> bool:
        return self.dtype is not None and np.dtype(self.dtype).kind in "mM"

    @property
    def spacing(self) -> float:
        """Distance of two samples, for times in seconds."""
        return self.step * 1e-9 if self.is_time else self.step

    @property
    def frequency_units(self) -> str | None:
        if self.dtype is None:
            return "cycles/sample"
        if self.is_time or self.units == "s":
            return "Hz"
        return None if self.units is None else f"1/{_bracketed(self.units)}"

    @property
    def attrs(self) -> dict[str, Any]:
        """Attributes of the frequency coordinate: strings and numbers, as files store them."""
        found = {
            "units": self.frequency_units,
            "direct_dim": self.dim,
            "direct_length": self.length,
            "direct_first": self.first,
            "direct_step": self.step,
            "direct_units": self.units,
            "direct_dtype": self.dtype,
        }
        return {key: value for key, value in found.items() if value is not None}

    def coordinate(self) -> Any:
        """The samples' places, None where there was no coordinate."""
        if self.dtype is None:
            return None
        dtype, places = np.dtype(self.dtype), np.arange(self.length)
        if self.is_time:
            steps = np.rint(places * self.step).astype(np.int64) + int(self.first)
            return steps.astype(f"{dtype.kind}8[ns]").astype(dtype)
        found = self.first + places * self.step
        return (np.rint(found) if dtype.kind in "iu" else found).astype(dtype)


def _bracketed(units: str) -> str:
    return units if units.isalnum() else f"({units})"


def _samples(array: xr.DataArray, dim: Hashable) -> _Samples:
    """Where the samples of a dimension are; refuses uneven ones."""
    length = array.sizes[dim]
    if dim not in array.coords:
        return _Samples(dim, length)
    coordinate = array.coords[dim]
    places, units = coordinate.values, coordinate.attrs.get("units")
    if places.dtype.kind not in "iufmM":
        refuse(f"coordinate {dim}", f"of dtype {places.dtype}", "numbers or times, or none: "
               f"drop_vars({dim!r})", kind=ArgumentTypeError)
    dtype = str(places.dtype)
    if places.dtype.kind in "mM":
        places = places.astype(f"{places.dtype.kind}8[ns]").astype(np.int64)
    first = places[0].item() if length else 0
    if length < 2:
        return _Samples(dim, length, first, 1.0, units, dtype)
    steps = np.diff(places if places.dtype.kind == "f" else places.astype(object)).astype(float)
    step = float(steps.mean())
    if not step or not np.all(np.abs(steps - step) <= TOLERANCE * abs(step)):
        refuse(f"coordinate {dim}", f"with steps of {steps.min()} to {steps.max()}",
               "evenly spaced samples")
    return _Samples(dim, length, first, step, units, dtype)


def _remembered(array: xr.DataArray, dim: Hashable, half: bool, length: int | None) -> _Samples:
    """What a frequency coordinate tells of the dimension that it came from."""
    attrs = array.coords[dim].attrs if dim in array.coords else {}
    size = array.sizes[dim]
    name = str(dim)
    direct = attrs.get("direct_dim", name[len(PREFIX):] if name.startswith(PREFIX) else f"{name}_")
    known = int(attrs.get("direct_length", 2 * (size - 1) if half else size))
    if "direct_step" in attrs:
        dtype, units = attrs.get("direct_dtype"), attrs.get("direct_units")
        first, step = attrs["direct_first"], float(attrs["direct_step"])
        return _Samples(direct, length or known, first, step, units, dtype)
    if dim not in array.coords:
        return _Samples(direct, length or known)
    frequencies = array.coords[dim].values
    spacing = float(np.abs(np.diff(frequencies)).min()) if size > 1 else 1.0
    step = 1 / (spacing * (length or known))
    return _Samples(direct, length or known, 0, step, None, "float64")


# --- transforms ---------------------------------------------------------------------------------


def _parse_dims(array: Any, dim: Dims, default: Callable[[Hashable], bool]) -> list[Hashable]:
    if not isinstance(array, xr.DataArray):
        refuse("array", type(array).__qualname__, "an xarray.DataArray", kind=ArgumentTypeError)
    if dim is None:
        dims = [found for found in array.dims if default(found)]
    elif isinstance(dim, str) or not isinstance(dim, Sequence):
        dims = [dim]
    else:
        dims = list(dim)
    unknown = [found for found in dims if found not in array.dims]
    if unknown or not dims or len(set(dims)) < len(dims):
        refuse("dim", dim, f"one or more of the dimensions {array.dims}, each once")
    return dims


def _is_spectral(array: xr.DataArray) -> Callable[[Hashable], bool]:
    """Whether a dimension is one of frequencies that a transform of ours has made."""
    return lambda dim: dim in array.coords and "direct_dim" in array.coords[dim].attrs


def _orders(extras: dict[str, Any], count: int) -> list[str]:
    order = extras.get("order")
    order = config.get("bigfft.order") if order is None else order
    return [order] * count if isinstance(order, str) else list(order)


def _computed(
    name: str, array: xr.DataArray, data: Any, dims: Sequence[Hashable], extras: dict[str, Any],
    **arguments: Any,
) -> Any:
    """The transform of an array's data along some dimensions; lazy where the array is."""
    axes = [array.get_axis_num(dim) for dim in dims]
    chunks = extras.get("chunks")
    if isinstance(chunks, Mapping):
        extras = extras | {"chunks": {
            array.get_axis_num(dim) if dim in array.dims else dim: cut
            for dim, cut in chunks.items()
        }}
    return getattr(transforms, name)(data, axes=axes, **arguments, **extras)


def _as_before(array: xr.DataArray, data: Any) -> Any:
    """Lazy data where the array was lazy, else computed."""
    lazy = isinstance(array.data, da.Array)
    return data.compute() if isinstance(data, da.Array) and not lazy else data


def _rebuilt(
    array: xr.DataArray, data: Any, renamed: Mapping[Hashable, tuple[Hashable, Any]]
) -> xr.DataArray:
    """The array with other data, and new names and coordinates of some dimensions."""
    kept = {
        name: found for name, found in array.coords.items() if not set(found.dims) & set(renamed)
    }
    dims = [renamed[dim][0] if dim in renamed else dim for dim in array.dims]
    if len(set(dims)) < len(dims):
        refuse("dim", list(renamed), f"dimensions whose new names are not in use: {dims}")
    new = {name: found for name, found in renamed.values() if found is not None}
    data = _as_before(array, data)
    return xr.DataArray(data, dims=dims, coords=kept | new, name=array.name, attrs=array.attrs)


def _forward(
    name: str, array: xr.DataArray, dim: Dims, shift: bool, norm: Norm, extras: dict[str, Any]
) -> xr.DataArray:
    dims = _parse_dims(array, dim, lambda _: True)
    orders = _orders(extras, len(dims))
    half = dims[-1] if name == "rfftn" else None
    shifted = [found for found in dims if found != half] if shift else []
    if shifted and "transposed" in orders:
        refuse("shift", shift, "False in transposed order")
    samples = {found: _samples(array, found) for found in dims}
    data = _computed(name, array, array.data, dims, extras, norm=norm)
    if shifted:
        data = transforms.fftshift(data, [array.get_axis_num(found) for found in shifted])
    renamed: dict[Hashable, tuple[Hashable, Any]] = {}
    for found, order in zip(dims, orders, strict=True):
        values = _frequencies(samples[found], found == half, order)
        values = np.fft.fftshift(values) if found in shifted else values
        new = f"{PREFIX}{found}"
        renamed[found] = new, xr.Variable((new,), values, samples[found].attrs)
    return _rebuilt(array, data, renamed)


def _frequencies(samples: _Samples, half: bool, order: str) -> Any:
    frequencies = transforms.rfftfreq if half else transforms.fftfreq
    found = frequencies(samples.length, samples.spacing, order=order)  # type: ignore[arg-type]
    return np.asarray(found.compute())


def _inverse(
    name: str, array: xr.DataArray, dim: Dims, length: int | None, norm: Norm,
    extras: dict[str, Any],
) -> xr.DataArray:
    dims = _parse_dims(array, dim, _is_spectral(array))
    orders = _orders(extras, len(dims))
    half = dims[-1] if name == "irfftn" else None
    samples = {
        found: _remembered(array, found, found == half, length if found == half else None)
        for found in dims
    }
    natural = [found for found, order in zip(dims, orders, strict=True) if order == "natural"]
    shifted = [found for found in natural if found != half and _is_shifted(array, found)]
    data = array.data
    if shifted:
        data = transforms.ifftshift(data, [array.get_axis_num(found) for found in shifted])
    sizes = [samples[found].length if found == half else array.sizes[found] for found in dims]
    data = _computed(name, array, data, dims, extras, norm=norm, s=sizes)
    renamed: dict[Hashable, tuple[Hashable, Any]] = {}
    for found in dims:
        places, new = samples[found].coordinate(), samples[found].dim
        units = samples[found].units
        attrs = {} if units is None else {"units": units}
        renamed[found] = new, None if places is None else xr.Variable((new,), places, attrs)
    return _rebuilt(array, data, renamed)


def _is_shifted(array: xr.DataArray, dim: Hashable) -> bool:
    """Whether the zero frequency is in the middle; refuses what is neither there nor first."""
    if dim not in array.coords or array.sizes[dim] < 2:
        return False
    zero = np.flatnonzero(array.coords[dim].values == 0)
    middle = array.sizes[dim] // 2
    if len(zero) != 1 or zero[0] not in (0, middle):
        refuse(f"coordinate {dim}", f"with the frequency 0 at {zero.tolist()}",
               f"all frequencies, 0 at place 0 or {middle}")
    return bool(zero[0] == middle)


def fft(
    array: xr.DataArray, dim: Dims = None, *, shift: bool = False, norm: Norm = None, **extras: Any
) -> xr.DataArray:
    """Return the discrete Fourier transform along some dimensions.

    Parameters
    ----------
    array : xarray.DataArray
        With coordinates that are evenly spaced numbers or times, or none.
    dim : str or sequence of str, optional
        The dimensions, of any chunking; by default all.
    shift : bool
        Whether the frequency 0 comes to the middle.
    norm : {"backward", "ortho", "forward"}, optional
        As `numpy.fft.fftn` takes it.
    **extras
        Keywords of `dask_bigfft.fft.fftn`: `order`, `chunks` (a mapping may name dimensions),
        `memory_limit` and the others.

    Returns
    -------
    xarray.DataArray
        With ``freq_x`` in the place of a dimension ``x``.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For uneven coordinates, and whatever else is not allowed.

    Examples
    --------
    >>> import xarray as xr
    >>> x = xr.DataArray([1.0, 0, 0, 0], dims="x", coords={"x": [0.0, 0.5, 1.0, 1.5]})
    >>> fft(x, "x").freq_x.values
    array([ 0. ,  0.5, -1. , -0.5])
    """
    return _forward("fftn", array, dim, shift, norm, extras)


def rfft(
    array: xr.DataArray, dim: Dims = None, *, shift: bool = False, norm: Norm = None, **extras: Any
) -> xr.DataArray:
    """Return half the transform of real data; the half is that of the last dimension named.

    Parameters
    ----------
    array, dim, shift, norm, **extras
        As for `fft`. The last dimension is never shifted.

    Returns
    -------
    xarray.DataArray
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
    return _forward("rfftn", array, dim, shift, norm, extras)


def ifft(
    array: xr.DataArray, dim: Dims = None, *, norm: Norm = None, **extras: Any
) -> xr.DataArray:
    """Return the inverse of `fft`, with the dimensions and coordinates from before.

    Parameters
    ----------
    array : xarray.DataArray
        A spectrum; whether the frequency 0 is in the middle is read off its coordinates.
    dim : str or sequence of str, optional
        The dimensions of frequencies; by default those that a transform of this module has made.
    norm, **extras
        As for `fft`; `order` is that of the spectrum.

    Returns
    -------
    xarray.DataArray
        With ``x`` in the place of ``freq_x``. Where attributes do not tell its coordinate, it
        begins at 0 with the step that belongs to the frequencies.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For what is not allowed.

    Examples
    --------
    >>> import xarray as xr
    >>> x = xr.DataArray([1.0, 0, 2, 0], dims="x", coords={"x": [3, 5, 7, 9]})
    >>> ifft(fft(x)).x.values
    array([3, 5, 7, 9])
    """
    return _inverse("ifftn", array, dim, None, norm, extras)


def irfft(
    array: xr.DataArray, dim: Dims = None, *, n: int | None = None, norm: Norm = None, **extras: Any
) -> xr.DataArray:
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
    xarray.DataArray
        As for `ifft`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For what is not allowed.

    Examples
    --------
    >>> import xarray as xr
    >>> irfft(rfft(xr.DataArray([1.0, 0, 2], dims="x"))).values.round(12)
    array([1., 0., 2.])
    """
    return _inverse("irfftn", array, dim, n, norm, extras)


def _both_shifted(name: str, array: xr.DataArray, dim: Dims) -> xr.DataArray:
    """Values and coordinates along some dimensions, shifted together."""
    dims = _parse_dims(array, dim, _is_spectral(array))
    data = getattr(transforms, name)(array.data, [array.get_axis_num(found) for found in dims])
    places = {
        found: getattr(np.fft, name)(np.arange(array.sizes[found])) for found in dims
    }
    coords = {key: found.isel({d: i for d, i in places.items() if d in found.dims})
              for key, found in array.coords.items()}
    data = _as_before(array, data)
    return xr.DataArray(data, dims=array.dims, coords=coords, name=array.name, attrs=array.attrs)


def fftshift(array: xr.DataArray, dim: Dims = None) -> xr.DataArray:
    """Return the array with the frequency 0 in the middle, coordinates included.

    Parameters
    ----------
    array : xarray.DataArray
        A spectrum in natural order.
    dim : str or sequence of str, optional
        Dimensions; by default those of frequencies that a transform of this module has made.

    Returns
    -------
    xarray.DataArray
        In the same chunks.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For what is not allowed.
    """
    return _both_shifted("fftshift", array, dim)


def ifftshift(array: xr.DataArray, dim: Dims = None) -> xr.DataArray:
    """Return the inverse of `fftshift`; arguments and result are those of `fftshift`."""
    return _both_shifted("ifftshift", array, dim)


@xr.register_dataarray_accessor("bigfft")  # type: ignore[no-untyped-call, unused-ignore]
class Accessor:
    """The functions of this module as methods of an array: ``array.bigfft.fft("x")``."""

    def __init__(self, array: xr.DataArray) -> None:
        self._array = array

    def fft(
        self, dim: Dims = None, *, shift: bool = False, norm: Norm = None, **extras: Any
    ) -> xr.DataArray:
        """Return the transform along some dimensions; see `dask_bigfft.xarray.fft`."""
        return fft(self._array, dim, shift=shift, norm=norm, **extras)

    def ifft(self, dim: Dims = None, *, norm: Norm = None, **extras: Any) -> xr.DataArray:
        """Return the inverse of `fft`; see `dask_bigfft.xarray.ifft`."""
        return ifft(self._array, dim, norm=norm, **extras)

    def rfft(
        self, dim: Dims = None, *, shift: bool = False, norm: Norm = None, **extras: Any
    ) -> xr.DataArray:
        """Return half the transform of real data; see `dask_bigfft.xarray.rfft`."""
        return rfft(self._array, dim, shift=shift, norm=norm, **extras)

    def irfft(
        self, dim: Dims = None, *, n: int | None = None, norm: Norm = None, **extras: Any
    ) -> xr.DataArray:
        """Return the inverse of `rfft`; see `dask_bigfft.xarray.irfft`."""
        return irfft(self._array, dim, n=n, norm=norm, **extras)

    def fftshift(self, dim: Dims = None) -> xr.DataArray:
        """Return the array with the frequency 0 in the middle."""
        return fftshift(self._array, dim)

    def ifftshift(self, dim: Dims = None) -> xr.DataArray:
        """Return the array with the frequency 0 first again."""
        return ifftshift(self._array, dim)
