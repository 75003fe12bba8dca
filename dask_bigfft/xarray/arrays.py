"""Transforms of one `DataArray` with its dimensions and coordinates."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial, wraps
from typing import Any, NoReturn

import dask.array as da
import numpy as np
import numpy.typing as npt
import scipy.signal
import xarray as xr
from dask.graph_manipulation import bind

from dask_bigfft import config
from dask_bigfft import fft as transforms
from dask_bigfft.api.calls import Norm, transforms_by
from dask_bigfft.config import is_int
from dask_bigfft.dask_private import is_lazy
from dask_bigfft.errors import ArgumentTypeError, parse_flag, raise_invalid
from dask_bigfft.transforms.bands import Spectrum
from dask_bigfft.transforms.spec import COSINES, parse_length, parse_orders, with_dims
from dask_bigfft.xarray.attributes import (
    ARRAY_ATTRS,
    attrs_as_text,
    frequency_attrs,
    record_variables,
    source_attrs,
    without_frequency_attrs,
)
from dask_bigfft.xarray.coordinates import (
    PREFIX,
    Samples,
    cosine_frequencies,
    refuse_parts,
    remembered,
    samples_of,
)
from dask_bigfft.xarray.keywords import refuse_unknown
from dask_bigfft.xarray.missing import with_nan_warning

Dims = Hashable | Sequence[Hashable] | None


def listed(dim: Hashable | Sequence[Hashable]) -> list[Hashable]:
    """Return dimensions as a list, from a sequence or a single name."""
    return list(dim) if isinstance(dim, Sequence) and not isinstance(dim, str) else [dim]


def parse_dims(array: Any, dim: Dims, default: Callable[[Hashable], bool]) -> list[Hashable]:
    """Return the requested dimensions; by default those for which `default` returns True."""
    if not isinstance(array, xr.DataArray):
        allowed = "an xarray.DataArray or xarray.Dataset"
        raise_invalid(
            "array",
            type(array).__qualname__,
            allowed,
            kind=ArgumentTypeError,
        )
    if dim is None:
        dims = [name for name in array.dims if default(name)]
        if not dims:
            _refuse_without_frequencies(array)
        return dims
    dims = listed(dim)
    are_names = all(isinstance(name, Hashable) for name in dims)
    if not dims or not are_names or not set(dims) <= set(array.dims) or len(set(dims)) < len(dims):
        raise_invalid("dim", dim, f"one or more of the dimensions {array.dims}, each once")
    return dims


def _refuse_without_frequencies(array: xr.DataArray | xr.Dataset) -> NoReturn:
    """Raise an error for an array that has no dimension to transform by default."""
    if not array.dims:
        raise_invalid("array", "of no dimensions", "one or more dimensions to transform")
    bare = [str(dim) for dim in array.dims if str(dim).startswith(PREFIX)]
    allowed = f"a spectrum by dask_bigfft.xarray, or dim= with some of {tuple(array.dims)}"
    if bare:
        allowed += f": coordinates of {', '.join(bare)} have lost the attributes direct_... of "
        allowed += "their transform; in a product, put the spectrum first"
    raise_invalid("array", "without frequencies of a transform", allowed)


def is_spectral(array: xr.DataArray) -> Callable[[Hashable], bool]:
    """Return a test for frequency dimensions made by transforms of this module."""
    return lambda dim: dim in array.coords and "direct_dim" in array.coords[dim].attrs


def _dims(dataset: xr.Dataset, dim: Dims, spectral: bool) -> list[Hashable]:
    """Return the requested dimensions, by default all in the order of the variables.

    A dataset has its coordinates' first. The last one is halved, the same way in every variable.
    """
    if dim is not None:
        return listed(dim)
    arrays = dataset.data_vars.values()
    names = list(dict.fromkeys(name for array in arrays for name in array.dims))
    if not spectral:
        return names
    return [name for name in names if any(is_spectral(array)(name) for array in arrays)]


def over_variables(
    work: Callable[..., Any],
    *,
    spectral: bool,
    inner: Callable[[str], Sequence[Callable[..., Any]]] = lambda _: (),
) -> Callable[..., Any]:
    """Return a function of an array that takes datasets, too.

    The function takes a name, the array, its dimensions and keywords. By default the dimensions are
    all, or only those of frequencies if `spectral`. Of a dataset, all variables with these
    dimensions are transformed. Each has all of them or none, and one has all. `inner` returns the
    functions to which keywords are passed on, by the name.
    """

    @wraps(work)
    def function(name: str, /, array: Any, dim: Dims = None, **keywords: Any) -> Any:
        refuse_unknown(keywords, work, *inner(name))
        if not isinstance(array, xr.Dataset):
            return work(
                name,
                array,
                dim,
                **keywords,
            )
        dims = _dims(array, dim, spectral)
        if dim is None and not dims:
            if spectral:
                _refuse_without_frequencies(array)
            allowed = "one or more variables with dimensions to transform"
            raise_invalid("array", f"a dataset with variables {tuple(array.data_vars)}", allowed)
        chunks = keywords.get("chunks")
        transformed = {}
        for key, variable in _with_all(array, dim, dims).items():
            if isinstance(chunks, Mapping):
                others = set(array.dims) - set(variable.dims)
                keywords["chunks"] = {d: cut for d, cut in chunks.items() if d not in others}
            transformed[key] = work(
                name,
                variable,
                dims,
                **keywords,
            )
        return _replaced(array, transformed, dims)

    return function


def _with_all(
    dataset: xr.Dataset,
    dim: Dims,
    dims: Sequence[Hashable],
) -> dict[Hashable, xr.DataArray]:
    """Return the variables with all of some dimensions; refuse variables with a part of them.

    `dim` is the argument that named them.
    """
    names = set(dims)
    variables = {key: array for key, array in dataset.data_vars.items() if names & set(array.dims)}
    if not variables:
        raise_invalid("dim", dim, f"some of the dimensions {tuple(dataset.dims)}")
    partly = [key for key, array in variables.items() if not names <= set(array.dims)]
    if partly:
        whole = [key for key in variables if key not in partly]
        allowed = "dimensions that each variable has all or none of, and one has all: "
        allowed += f"{partly} have some; try dataset[{whole}]"
        raise_invalid("dim", dim, allowed)
    return variables


def _replaced(
    dataset: xr.Dataset,
    transformed: Mapping[Hashable, xr.DataArray],
    dims: Sequence[Hashable],
) -> xr.Dataset:
    """Return a dataset with transformed variables in the place of those before."""
    unchanged = {key: a for key, a in dataset.data_vars.items() if key not in transformed}
    coords = {key: c for key, c in dataset.coords.items() if not set(c.dims) & set(dims)}
    attrs = without_frequency_attrs(dataset.attrs, [*frequency_attrs(dataset).values()])
    replaced = xr.Dataset(unchanged, coords=coords, attrs=attrs).assign(transformed)
    record_variables(replaced, transformed)
    return replaced[list(dataset.data_vars)]


def _orders(extras: dict[str, Any], count: int) -> tuple[str, ...]:
    order = extras.get("order")
    return parse_orders(config.get("bigfft.order") if order is None else order, count)


def computed(
    work: Callable[..., Any],
    arrays: Sequence[xr.DataArray],
    renamed: Mapping[Hashable, Hashable],
    extras: dict[str, Any],
    **arguments: Any,
) -> Any:
    """Return the lazy result of a function of dask arrays along some dimensions.

    Parameters
    ----------
    work
        The function.
    arrays
        Arrays of the same dimensions.
    renamed
        Name in the result of each of the dimensions.
    extras, **arguments
        Keywords of the function. `chunks` may name dimensions, as they were or as they will be.
    """
    axes = [arrays[0].get_axis_num(dim) for dim in renamed]
    chunks = extras.get("chunks")
    if isinstance(chunks, Mapping):
        extras = extras | {"chunks": _numbered(chunks, arrays[0].dims, renamed)}
    data = (array.data for array in arrays)
    return with_dims(
        arrays[0].dims,
        work,
        *data,
        axes=axes,
        **arguments,
        **extras,
    )


def _numbered(
    chunks: Mapping[Any, Any],
    dims: Sequence[Hashable],
    renamed: Mapping[Hashable, Hashable],
) -> dict[int, Any]:
    """Return chunks by the number of their axis, from names of dimensions."""
    names = [renamed.get(dim, dim) for dim in dims]
    numbers = {dim: axis for axis, dim in enumerate(dims)}
    numbers |= {dim: axis for axis, dim in enumerate(names)}
    for dim in chunks:
        if dim not in numbers and not is_int(dim):
            raise_invalid("chunks", chunks, f"dimensions of the result {tuple(names)}")
    return {numbers.get(dim, dim): cut for dim, cut in chunks.items()}


def rebuilt(
    array: xr.DataArray,
    data: Any,
    renamed: Mapping[Hashable, tuple[Hashable, Any]],
) -> xr.DataArray:
    """Return the array with other data, and new names and coordinates of some dimensions."""
    dims = [renamed[dim][0] if dim in renamed else dim for dim in array.dims]
    if len(set(dims)) < len(dims):
        raise_invalid("dim", list(renamed), f"dimensions whose new names are not in use: {dims}")
    coords: dict[Hashable, Any] = {}
    for name, coordinate in array.coords.items():
        if not set(coordinate.dims) & set(renamed):
            coords[name] = coordinate
    for name, variable in renamed.values():
        if variable is not None:
            coords[name] = variable
    return labelled_like(
        array,
        with_nan_warning(data),
        dims,
        coords,
    )


def mask_of(mask: Any, array: xr.DataArray) -> Any:
    """Return the data of a mask, in the order of an array's dimensions."""
    if not isinstance(mask, xr.DataArray):
        return mask
    if not set(mask.dims) <= set(array.dims):
        raise_invalid("mask", f"of dimensions {mask.dims}", f"some of {array.dims}")
    expanded = mask.expand_dims([dim for dim in array.dims if dim not in mask.dims])
    return expanded.transpose(*array.dims).data


def labelled_like(
    array: xr.DataArray,
    data: Any,
    dims: Sequence[Hashable],
    coords: Mapping[Any, Any],
) -> xr.DataArray:
    """Return data with an array's name and attributes, lazy if the array is lazy.

    The name is set explicitly, because xarray would otherwise use the name of a dask array.
    """
    if is_lazy(data) and not is_lazy(array.data):
        data = data.compute()
    named = xr.DataArray(
        data,
        dims=dims,
        coords=coords,
        attrs=array.attrs,
    )
    named.name = array.name
    return named


def _physical(
    array: xr.DataArray,
    samples: Mapping[Any, Samples],
    phase: Any,
    amplitude: Any,
    sign: int,
) -> xr.DataArray:
    """Return the spectrum of an integral from that of a sum for sign -1, the reverse for 1.

    `samples` has the samples of each dimension of frequencies.
    """
    physical = array
    if parse_flag("true_phase", phase):
        for dim, own in samples.items():
            turns = np.exp(sign * 2j * np.pi * (array[dim].values * own.start % 1))
            turns = turns.astype(np.result_type(array.dtype, np.complex64))
            physical = physical * xr.DataArray(turns, {dim: array[dim]}, [dim])
    if parse_flag("true_amplitude", amplitude):
        distances = [abs(own.spacing) for own in samples.values()]
        physical = physical * array.dtype.type(math.prod(distances) ** -sign)
    return array.copy(data=physical.data)  # products lose the name, and in older xarray attributes


def prepared(
    array: xr.DataArray,
    dims: Sequence[Hashable],
    detrend: Any,
    window: Any,
) -> tuple[xr.DataArray, list[npt.NDArray[Any]]]:
    """Return a detrended array times a window, and the window of each dimension."""
    if not isinstance(detrend, str | None) or detrend not in (None, "constant", "linear"):
        raise_invalid("detrend", detrend, "'constant', 'linear' or None")
    least = np.float32 if array.dtype.kind in "fc" else np.float64
    dtype = np.result_type(array.dtype, least)
    windowed = array
    if detrend is not None:
        windowed = _detrended(
            array,
            dims,
            dtype,
            is_linear=detrend == "linear",
        )
    windows = []
    if window is not None:
        windows = [_window(window, array.sizes[dim]) for dim in dims]
    for dim, values in zip(dims, windows, strict=False):
        windowed = windowed * xr.DataArray(values.astype(dtype), dims=[dim])
    return windowed.transpose(*array.dims), windows


def _detrended(
    array: xr.DataArray,
    dims: Sequence[Hashable],
    dtype: np.dtype[Any],
    is_linear: bool,
) -> xr.DataArray:
    """Return an array minus its mean over some dimensions, or minus the plane of least squares.

    On a regular grid the positions along different dimensions are orthogonal, so that each slope is
    a sum over the array. The source is read again for each sum, and after them: its blocks would
    otherwise stay in memory until the last of them is added.
    """
    shapes = [xr.DataArray(np.ones((), dtype))]
    if is_linear:
        for dim in dims:
            places = np.arange(array.sizes[dim]) - (array.sizes[dim] - 1) / 2
            places /= math.sqrt(np.mean(places**2)) or 1
            shapes.append(xr.DataArray(places.astype(dtype), dims=[dim]))
    source = array
    trends = []
    for shape in shapes:
        trend = shape * (source * shape).mean(dims, skipna=False).astype(dtype)
        if isinstance(array.data, da.Array):
            source = array.copy(data=bind(source.data, trend.data))
        trends.append(trend)
    detrended = source
    for trend in trends:
        detrended = detrended - trend
    return detrended


def _window(window: Any, length: int) -> npt.NDArray[Any]:
    """Return the values of a window; an error for one that SciPy does not know."""
    try:
        values: npt.NDArray[Any] = scipy.signal.get_window(window, length)
    except (ValueError, TypeError) as error:
        raise_invalid("window", window, f"a window of scipy.signal.get_window ({error})")
    return values


def _inner(name: str) -> list[Callable[..., Any]]:
    """Return the function of several axes that a transform passes keywords on to."""
    return [getattr(transforms, f"{name}n")]


@transforms_by
@partial(over_variables, spectral=False, inner=_inner)
def forward(
    name: str,
    array: xr.DataArray,
    dim: Dims = None,
    *,
    n: int | None = None,
    shift: bool = False,
    norm: Norm = None,
    detrend: str | None = None,
    window: Any = None,
    true_phase: bool = False,
    true_amplitude: bool = False,
    **extras: Any,
) -> xr.DataArray:
    """Return the transform into frequencies."""
    dims = parse_dims(array, dim, lambda _: True)
    shifted = _shifted_dims(name, dims, extras) if parse_flag("shift", shift) else []
    samples = {old: samples_of(array, old) for old in dims}
    last = dims[-1]
    if n is not None:
        samples[last] = replace(samples[last], length=parse_length("n", n, 1))
    elif name == "hfft":
        samples[last] = replace(samples[last], length=2 * (array.sizes[last] - 1))
    half = last if name == "rfft" else None
    samples = _with_bands(
        samples,
        half,
        band=extras.pop("band", None),
        band_index=extras.pop("band_index", None),
    )
    shifted = [dim for dim in shifted if samples[dim].band is None]
    source, _ = prepared(
        array,
        dims,
        detrend,
        window,
    )
    lengths = [own.length for own in samples.values()]
    renamed = {old: f"{PREFIX}{old}" for old in dims}
    (work,) = _inner(name)
    data = computed(
        work,
        [source],
        renamed,
        extras | _band_extras(array, samples),
        norm=norm,
        s=lengths,
    )
    if name in COSINES:
        kind = extras.get("type", 2)
        frequencies = {old: cosine_frequencies(own, name, kind) for old, own in samples.items()}
    else:
        frequencies = _frequencies(array, data, samples)
    spectrum = with_frequencies(
        array,
        data,
        frequencies,
        samples,
        shifted,
    )
    by_new_name = {renamed[old]: own for old, own in samples.items()}
    return _physical(
        spectrum,
        by_new_name,
        true_phase,
        true_amplitude,
        -1,
    )


def _with_bands(
    samples: Mapping[Hashable, Samples],
    half: Hashable | None,
    band: Any,
    band_index: Any,
) -> dict[Hashable, Samples]:
    """Return the samples of each dimension with the bands of their frequencies.

    Parameters
    ----------
    samples : mapping
        Samples of each dimension.
    half : hashable or None
        The dimension that has half a spectrum.
    band, band_index
        Limits in the unit of the frequencies, and by places in ascending order.
    """
    with_bands = dict(samples)
    for argument, named in (("band", band), ("band_index", band_index)):
        if named is None:
            continue
        if not isinstance(named, Mapping) and len(samples) == 1:
            named = dict.fromkeys(samples, named)
        allowed = f"a mapping of some of the dimensions {tuple(samples)}"
        if not isinstance(named, Mapping):
            raise_invalid(argument, named, allowed, kind=ArgumentTypeError)
        for dim, limits in named.items():
            if dim not in samples or with_bands[dim].band is not None:
                raise_invalid(argument, named, f"{allowed}, each once")
            own = samples[dim]
            spectrum = Spectrum(own.length, dim == half)
            if argument == "band":
                window = spectrum.parse_band(limits, own.spacing)
            else:
                window = spectrum.parse_indices(limits)
            start, stop = spectrum.indices(window)
            with_bands[dim] = replace(own, band_start=start, band_stop=stop)
    return with_bands


def _band_extras(
    array: xr.DataArray, samples: Mapping[Hashable, Samples]
) -> dict[str, dict[int, tuple[int, int]]]:
    """Return the keyword of a transform for the bands of dimensions, if they have any."""
    places = {}
    for dim, own in samples.items():
        if own.band is not None:
            places[array.get_axis_num(dim)] = (own.band.start, own.band.stop)
    return {"band_index": places} if places else {}


def _shifted_dims(
    name: str,
    dims: Sequence[Hashable],
    extras: dict[str, Any],
) -> Sequence[Hashable]:
    """Return the dimensions whose frequency 0 is put in the middle; refuse what has none there."""
    shifted = dims[:-1] if name == "rfft" else dims
    if shifted and (name in COSINES or "transposed" in _orders(extras, len(dims))):
        raise_invalid("shift", True, "False in transposed order, and for cosines and sines")
    return shifted


def _frequencies(
    array: xr.DataArray,
    data: da.Array,
    samples: Mapping[Hashable, Samples],
) -> dict[Hashable, npt.NDArray[Any]]:
    """Return the frequencies of each transformed dimension of an array, in the order of `data`."""
    frequencies = {}
    for dim, own in samples.items():
        lazy = transforms.frequencies_of(data, array.get_axis_num(dim), own.spacing)
        frequencies[dim] = lazy.compute(scheduler="sync")
    return frequencies


def with_frequencies(
    array: xr.DataArray,
    data: Any,
    places: Mapping[Hashable, npt.NDArray[Any]],
    samples: Mapping[Hashable, Samples],
    shifted: Sequence[Hashable] = (),
) -> xr.DataArray:
    """Return data of a spectrum with the frequencies of each transformed dimension."""
    renamed: dict[Hashable, tuple[Hashable, Any]] = {}
    earlier = [*frequency_attrs(array).values()]  # of dimensions that were transformed before
    source = source_attrs(array.attrs, earlier, array.name)
    for dim, values in places.items():
        new = f"{PREFIX}{dim}"
        attrs = samples[dim].attrs | {ARRAY_ATTRS: attrs_as_text(source)}
        if len(values) > 1:
            attrs["spacing"] = float(np.abs(values[1:] - values[0]).min())
        values = np.fft.fftshift(values) if dim in shifted else values
        renamed[dim] = new, xr.Variable((new,), values, attrs)
    if shifted:
        data = transforms.fftshift(data, [array.get_axis_num(dim) for dim in shifted])
    return rebuilt(array, data, renamed)


@transforms_by
@partial(over_variables, spectral=True, inner=_inner)
def inverse(
    name: str,
    array: xr.DataArray,
    dim: Dims = None,
    *,
    n: int | None = None,
    norm: Norm = None,
    true_phase: bool = False,
    true_amplitude: bool = False,
    **extras: Any,
) -> xr.DataArray:
    """Return the inverse transform; `n` is the length of the last dimension in the result."""
    dims = parse_dims(array, dim, is_spectral(array))
    length = None if n is None else parse_length("n", n, 1)
    half = dims[-1] if name == "irfft" else None
    samples = {old: remembered(array, old, old == half) for old in dims}
    if name in COSINES:
        natural = []
        _refuse_parts_of_cosines(
            array,
            samples,
            name,
            extras,
        )
    else:
        natural = _natural_dims(dims, extras)
        for old in natural:
            refuse_parts(
                array,
                old,
                samples[old],
                old == half,
            )
    spectrum = _physical(
        array,
        samples,
        true_phase,
        true_amplitude,
        1,
    )
    sizes = {old: own.spectrum_length(array.sizes[old]) for old, own in samples.items()}
    if half is not None:
        samples[half] = samples[half].resampled(length)
        sizes[half] = samples[half].length
    elif n is not None:
        raise_invalid("n", n, f"None for {name}")
    whole = [old for old in natural if old != half and samples[old].band is None]
    spectrum = _in_natural_order(spectrum, whole)
    renamed = {old: own.dim for old, own in samples.items()}
    (work,) = _inner(name)
    data = computed(
        work,
        [spectrum],
        renamed,
        extras | _band_extras(array, samples),
        norm=norm,
        s=list(sizes.values()),
    )
    coords = {}
    for old, own in samples.items():
        count = data.shape[array.get_axis_num(old)]  # of a Hermitian sequence half is stored
        coords[old] = own.dim, own.coordinate(count)
    restored = rebuilt(array, data, coords)
    coordinates = [array[old].attrs for old in dims]
    restored.attrs = source_attrs(array.attrs, coordinates, array.name)
    return restored


def _natural_dims(dims: Sequence[Hashable], extras: dict[str, Any]) -> list[Hashable]:
    """Return the dimensions along which a spectrum is in natural order."""
    orders = _orders(extras, len(dims))
    return [dim for dim, order in zip(dims, orders, strict=True) if order == "natural"]


def _refuse_parts_of_cosines(
    array: xr.DataArray,
    samples: Mapping[Hashable, Samples],
    name: str,
    extras: Mapping[str, Any],
) -> None:
    """Refuse a cosine or sine transform that has lost frequencies since it was made."""
    for dim, own in samples.items():
        waves = cosine_frequencies(own, name, extras.get("type", 2))
        refuse_parts(
            array,
            dim,
            own,
            False,
            waves,
        )


def _in_natural_order(array: xr.DataArray, dims: Sequence[Hashable]) -> xr.DataArray:
    """Return the array with the frequency 0 of some dimensions first."""
    shifted = [dim for dim in dims if _is_shifted(array, dim)]
    if not shifted:
        return array
    axes = [array.get_axis_num(dim) for dim in shifted]
    return array.copy(data=transforms.ifftshift(array.data, axes))


def _is_shifted(array: xr.DataArray, dim: Hashable) -> bool:
    """Return True if frequency 0 is in the middle, False if first; refuse other places."""
    if dim not in array.coords or array.sizes[dim] < 2:
        return False
    zero = np.flatnonzero(array.coords[dim].values == 0)
    middle = array.sizes[dim] // 2
    if len(zero) != 1 or zero[0] not in (0, middle):
        need = f"all frequencies, 0 at place 0 or {middle}"
        raise_invalid(f"coordinate {dim}", f"with the frequency 0 at {zero.tolist()}", need)
    return bool(zero[0] == middle)


@transforms_by
@partial(over_variables, spectral=True)
def both_shifted(name: str, array: xr.DataArray, dim: Dims = None) -> xr.DataArray:
    """Return the array with values and coordinates shifted along some dimensions."""
    dims = parse_dims(array, dim, is_spectral(array))
    data = getattr(transforms, name)(array.data, [array.get_axis_num(old) for old in dims])
    places = {old: getattr(np.fft, name)(np.arange(array.sizes[old])) for old in dims}
    coords = {}
    for key, coordinate in array.coords.items():
        own_places = {old: index for old, index in places.items() if old in coordinate.dims}
        coords[key] = coordinate.isel(own_places)
    return labelled_like(
        array,
        data,
        array.dims,
        coords,
    )
