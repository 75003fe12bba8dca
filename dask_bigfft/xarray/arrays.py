"""Transforms of one `DataArray` with its dimensions and coordinates."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import (
    Any,
    Concatenate,
    Literal,
    NoReturn,
    ParamSpec,
    TypeVar,
    cast,
)

import dask.array as da
import numpy as np
import numpy.typing as npt
import scipy  # its modules are imported at first use
import xarray as xr
from dask.graph_manipulation import bind

from dask_bigfft import fft as transforms
from dask_bigfft.api.arguments import explicit_signature
from dask_bigfft.api.keywords import refuse_unknown
from dask_bigfft.config import is_int
from dask_bigfft.dask_private import is_lazy
from dask_bigfft.errors import ArgumentTypeError, raise_invalid
from dask_bigfft.signal.arguments import without_empty
from dask_bigfft.signal.trends import line, trend_of_known
from dask_bigfft.transforms.spec import with_dims
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
)
from dask_bigfft.xarray.keywords import known_keywords, refuse_missing
from dask_bigfft.xarray.missing import with_nan_warning
from dask_bigfft.xarray.steps import PIECE

P = ParamSpec("P")

#: An array, or a dataset of arrays.
Labelled = TypeVar("Labelled", xr.DataArray, xr.Dataset)

Dims = Hashable | Sequence[Hashable] | None
Detrend = Literal["constant", "linear"] | None
WindowName = str | tuple[Any, ...] | None


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


def parse_one_dim(array: Any, dim: Dims, default: Callable[[Hashable], bool]) -> Hashable:
    """Return the one requested dimension; by default the only one for which `default` is True."""
    dims = parse_dims(array, dim, default)
    if len(dims) > 1:
        raise_invalid("dim", dims, "one dimension")
    return dims[0]


def renamed_dims(array: xr.DataArray, dim: Hashable, new_dim: Hashable) -> list[Hashable]:
    """Return the dimensions of an array, one of them by another name.

    >>> renamed_dims(xr.DataArray(np.zeros((2, 3)), dims=("y", "x")), "x", "freq_x")
    ['y', 'freq_x']
    """
    return [new_dim if name == dim else name for name in array.dims]


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
    *,
    spectral: bool,
) -> Callable[
    [Callable[Concatenate[xr.DataArray, P], xr.DataArray]],
    Callable[Concatenate[Labelled, P], Labelled],
]:
    """Return a decorator of functions of an array, which lets them take datasets, too.

    The functions have the array, its dimensions and keywords as arguments. By default the
    dimensions are all, or only those of frequencies if `spectral`. Of a dataset, all variables with
    these dimensions are transformed. Each has all of them or none, and one has all.
    """

    def decorator(
        work: Callable[Concatenate[xr.DataArray, P], xr.DataArray],
    ) -> Callable[Concatenate[Labelled, P], Labelled]:
        work_on_dims = cast("Callable[..., xr.DataArray]", work)

        @wraps(work)
        def function(array: Any, dim: Dims = None, **keywords: Any) -> Any:
            refuse_unknown(keywords, known_keywords(work))
            refuse_missing(keywords, work)
            if isinstance(array, xr.Dataset):
                return _of_variables(
                    work_on_dims,
                    array,
                    dim,
                    keywords,
                    spectral,
                )
            return work_on_dims(array, dim, **keywords)

        shown: Any = function
        shown.__signature__ = explicit_signature(work)
        return cast("Callable[Concatenate[Labelled, P], Labelled]", function)

    return decorator


def _of_variables(
    work: Callable[..., xr.DataArray],
    dataset: xr.Dataset,
    dim: Dims,
    keywords: dict[str, Any],
    spectral: bool,
) -> xr.Dataset:
    """Return a dataset whose variables with some dimensions are transformed by a function."""
    dims = _dims(dataset, dim, spectral)
    if dim is None and not dims:
        if spectral:
            _refuse_without_frequencies(dataset)
        allowed = "one or more variables with dimensions to transform"
        raise_invalid("array", f"a dataset with variables {tuple(dataset.data_vars)}", allowed)
    chunks = keywords.get("chunks")
    transformed = {}
    for key, variable in _with_all(dataset, dim, dims).items():
        if isinstance(chunks, Mapping):
            others = set(dataset.dims) - set(variable.dims)
            keywords["chunks"] = {d: cut for d, cut in chunks.items() if d not in others}
        transformed[key] = work(variable, dims, **keywords)
    return _replaced(dataset, transformed, dims)


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
    own_coords = {key for array in transformed.values() for key in array.coords}
    taken = [key for key in unchanged if key in own_coords]
    if taken:
        allowed = f"dimensions whose new names are not in use: rename the variables {taken}"
        raise_invalid("dim", list(dims), allowed)
    coords = {}
    for key, coordinate in dataset.coords.items():
        if key not in own_coords and not set(coordinate.dims) & set(dims):
            coords[key] = coordinate
    attrs = without_frequency_attrs(dataset.attrs, [*frequency_attrs(dataset).values()])
    replaced = xr.Dataset(unchanged, coords=coords, attrs=attrs).assign(transformed)
    record_variables(replaced, transformed)
    return replaced[list(dataset.data_vars)]


def called_along(
    work: Callable[..., Any],
    arrays: Sequence[xr.DataArray],
    renamed: Mapping[Hashable, Hashable],
    extras: dict[str, Any],
    **arguments: Any,
) -> Any:
    """Return what a function of arrays returns for the data of some arrays, along some dimensions.

    Functions of `fft` and `signal` return a lazy array, also for NumPy arrays. Nothing is computed
    before `labelled_like` gives it dimensions.

    Parameters
    ----------
    work : callable
        The function, which takes arrays, `axes` and keywords.
    arrays : sequence of DataArray
        Arrays with the same dimensions in the same order.
    renamed : mapping
        The dimensions to work along, and the name of each in the result.
    extras, **arguments
        Keywords of the function. `chunks` may name dimensions, by their names before and after.
    """
    axes = [arrays[0].get_axis_num(dim) for dim in renamed]
    names = [renamed.get(dim, dim) for dim in arrays[0].dims]
    data = (array.data for array in arrays)
    return with_dims(
        arrays[0].dims,
        work,
        *data,
        axes=axes,
        **arguments,
        **with_numbered_chunks(extras, arrays[0].dims, names),
    )


def with_numbered_chunks(
    keywords: Mapping[str, Any],
    before: Sequence[Hashable],
    after: Sequence[Hashable],
) -> dict[str, Any]:
    """Return keywords with `chunks` by the number of their axis, if dimensions name them.

    Parameters
    ----------
    keywords
        Keywords of a function.
    before, after
        Dimensions of its array and of its result, which both may be named.

    Examples
    --------
    >>> with_numbered_chunks({"chunks": {"y": 5, "freq_x": 8}}, ["y", "x"], ["y", "freq_x"])
    {'chunks': {0: 5, 1: 8}}
    """
    chunks = keywords.get("chunks")
    if not isinstance(chunks, Mapping):
        return dict(keywords)
    numbers = {dim: axis for axis, dim in enumerate(before)}
    numbers |= {dim: axis for axis, dim in enumerate(after)}
    for dim in chunks:
        if dim not in numbers and not is_int(dim):
            raise_invalid("chunks", chunks, f"dimensions of the result {tuple(after)}")
    return {**keywords, "chunks": {numbers.get(dim, dim): cut for dim, cut in chunks.items()}}


def rebuilt(
    array: xr.DataArray,
    data: Any,
    renamed: Mapping[Hashable, tuple[Hashable, Any]],
) -> xr.DataArray:
    """Return the array with other data, and new names and coordinates of some dimensions.

    The data are computed at once if they are lazy and the array is not, as by `labelled_like`.
    """
    dims = [renamed[dim][0] if dim in renamed else dim for dim in array.dims]
    if len(set(dims)) < len(dims):
        raise_invalid("dim", list(renamed), f"dimensions whose new names are not in use: {dims}")
    coords: dict[Hashable, Any] = {}
    for name, coordinate in array.coords.items():
        if not set(coordinate.dims) & set(renamed):
            if name in dims and name not in array.dims:
                allowed = f"dimensions whose new names are not in use: rename the coordinate {name}"
                raise_invalid("dim", list(renamed), allowed)
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
    for dim in mask.dims:
        has_both = dim in mask.indexes and dim in array.indexes
        if has_both and not mask.indexes[dim].equals(array.indexes[dim]):
            allowed = f"the array's: mask.reindex_like(array), or mask.drop_vars({dim!r})"
            raise_invalid("mask", f"with another coordinate {dim}", allowed)
    expanded = mask.expand_dims([dim for dim in array.dims if dim not in mask.dims])
    return expanded.transpose(*array.dims).data


def labelled_like(
    array: xr.DataArray,
    data: Any,
    dims: Sequence[Hashable],
    coords: Mapping[Any, Any],
) -> xr.DataArray:
    """Return data with an array's name and attributes, lazy only if the array is lazy.

    Lazy data of an array in memory are computed at once. The name is set explicitly, because xarray
    would otherwise use the name of a dask array.
    """
    if is_lazy(data) and not is_lazy(array.data):
        data = data.compute()
    new_coords = {key: value for key, value in coords.items() if isinstance(value, xr.Variable)}
    named = xr.DataArray(
        data,
        dims=dims,
        coords={key: value for key, value in coords.items() if key not in new_coords},
        attrs=array.attrs,
    )
    named.name = array.name
    return named.assign_coords(new_coords)  # the constructor would copy them once more


@dataclass(frozen=True)
class Prepared:
    """An array before its transform: without its trend, and times a window.

    Parameters
    ----------
    array : xarray.DataArray
        The array.
    windows : list of ndarray
        The window of each transformed dimension, if any.
    mask : array-like or None
        Mask of missing values that is to be used with the array.
    """

    array: xr.DataArray
    windows: list[npt.NDArray[Any]]
    mask: Any


def prepared(
    array: xr.DataArray,
    dims: Sequence[Hashable],
    detrend: Detrend,
    window: WindowName,
    mask: Any = None,
) -> Prepared:
    """Return an array without its trend along some dimensions, times a window.

    The trend is that of the values that a mask does not hide. The mask is a plain array, without
    names of dimensions.
    """
    if not isinstance(detrend, str | None) or detrend not in (None, "constant", "linear"):
        raise_invalid("detrend", detrend, "'constant', 'linear' or None")
    if array.dtype.kind not in "biufc":
        named = "" if array.name is None else f"{array.name} "
        allowed = "a number type (bool, int, float or complex)"
        raise_invalid("array", f"{named}of dtype {array.dtype}", allowed, kind=ArgumentTypeError)
    least = np.float32 if array.dtype.kind in "fc" else np.float64
    dtype = np.result_type(array.dtype, least)
    is_linear = detrend == "linear"
    if is_lazy(array.data):  # dask's products fail for an axis of length 1 with empty chunks
        array = array.copy(deep=False, data=without_empty(array.data))
    windowed = array
    if detrend is not None and mask is not None:
        windowed, mask = _detrended_where_known(
            array,
            dims,
            dtype,
            is_linear,
            mask,
        )
    elif detrend is not None:
        windowed = _detrended(
            array,
            dims,
            dtype,
            is_linear,
        )
    windows = []
    if window is not None:
        windows = [_window(window, array.sizes[dim]) for dim in dims]
        for dim, values in zip(dims, windows, strict=True):
            windowed = windowed * xr.DataArray(values.astype(dtype), dims=[dim])
    return Prepared(windowed.transpose(*array.dims), windows, mask)


def _shapes_of_trend(
    array: xr.DataArray,
    dims: Sequence[Hashable],
    dtype: np.dtype[Any],
    is_linear: bool,
) -> list[xr.DataArray]:
    """Return what a trend is a sum of: 1, and if linear a line along each of some dimensions."""
    shapes = [xr.DataArray(np.ones((), dtype))]
    if is_linear:
        for dim in dims:
            values = line(array.sizes[dim]).astype(dtype)
            shapes.append(xr.DataArray(values, dims=[dim]))
    return shapes


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
    source = array
    trends = []
    for shape in _shapes_of_trend(array, dims, dtype, is_linear):
        trend = shape * (source * shape).mean(dims, skipna=False).astype(dtype)
        if isinstance(array.data, da.Array):
            source = array.copy(deep=False, data=bind(source.data, trend.data))
        trends.append(trend)
    detrended = source
    for trend in trends:
        detrended = detrended - trend
    return detrended


def _detrended_where_known(
    array: xr.DataArray,
    dims: Sequence[Hashable],
    dtype: np.dtype[Any],
    is_linear: bool,
    mask: Any,
) -> tuple[xr.DataArray, Any]:
    """Return an array minus the trend of its known values, and the mask to use with it.

    Array and mask are read once for the trend, and again after it, as by `_detrended`.
    """
    axes = [array.get_axis_num(dim) for dim in dims]
    coefficients = trend_of_known(
        array.data,
        mask,
        axes,
        is_linear,
    )
    detrended = array
    if isinstance(array.data, da.Array):
        data, mask = bind([array.data, mask], coefficients)
        detrended = array.copy(deep=False, data=data)
    *others, last = dims
    labelled = xr.DataArray(coefficients.astype(dtype), dims=array.dims)
    by_shape = labelled.isel(dict.fromkeys(others, 0))
    for number, shape in enumerate(_shapes_of_trend(array, dims, dtype, is_linear)):
        detrended = detrended - by_shape.isel({last: number}) * shape
    return detrended, mask


def _window(window: Any, length: int) -> npt.NDArray[Any]:
    """Return the values of a window; an error for one that SciPy does not know."""
    try:
        values: npt.NDArray[Any] = scipy.signal.get_window(window, length)
    except (ValueError, TypeError) as error:
        raise_invalid("window", window, f"a window of scipy.signal.get_window ({error})")
    return values


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
            attrs["spacing"] = _smallest_distance(values)
        values = np.fft.fftshift(values) if dim in shifted else values
        renamed[dim] = new, xr.Variable((new,), values, attrs)
    if shifted:
        data = transforms.fftshift(data, [array.get_axis_num(dim) for dim in shifted])
    return rebuilt(array, data, renamed)


def _smallest_distance(values: npt.NDArray[Any]) -> float:
    """Return the distance of the first of several values from the nearest other one.

    >>> _smallest_distance(np.array([0.0, 2.0, -1.0]))
    1.0
    """
    smallest = []
    for start in range(1, len(values), PIECE):
        smallest.append(np.abs(values[start : start + PIECE] - values[0]).min())
    return float(min(smallest))
