"""Transforms of one `DataArray` with its dimensions and coordinates, forward and inverse."""

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, Unpack

import dask.array as da
import numpy as np
import numpy.typing as npt
import xarray as xr

from dask_bigfft import config
from dask_bigfft import fft as transforms
from dask_bigfft.api.arguments import Extras, Options
from dask_bigfft.api.calls import Norm, transforms_by
from dask_bigfft.api.keywords import refuse_unknown
from dask_bigfft.errors import ArgumentTypeError, parse_flag, raise_invalid
from dask_bigfft.planner.plan import Plan
from dask_bigfft.plans import plan as plan_of_array
from dask_bigfft.transforms.bands import Spectrum
from dask_bigfft.transforms.spec import FAMILIES, parse_length, parse_orders
from dask_bigfft.xarray.arrays import (
    Detrend,
    Dims,
    WindowName,
    called_along,
    is_spectral,
    labelled_like,
    parse_dims,
    prepared,
    rebuilt,
    with_frequencies,
)
from dask_bigfft.xarray.attributes import ONESIDED, source_attrs
from dask_bigfft.xarray.coordinates import (
    PREFIX,
    Samples,
    cosine_frequencies,
    refuse_parts,
    remembered,
    samples_of,
)
from dask_bigfft.xarray.keywords import known_keywords

#: Names of `FAMILIES`.
TransformName = Literal["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]


@transforms_by
def forward(
    name: str,
    array: xr.DataArray,
    dim: Dims = None,
    *,
    n: int | None = None,
    shift: bool = False,
    norm: Norm = None,
    detrend: Detrend = None,
    window: WindowName = None,
    true_phase: bool = False,
    true_amplitude: bool = False,
    **extras: Unpack[Extras],
) -> xr.DataArray:
    """Return the transform `name` into frequencies.

    `transforms_by` turns this function into a decorator of `functions`: `fft` is this function with
    the name "fft".
    """
    keywords: dict[str, Any] = {**extras}
    dims = parse_dims(array, dim, lambda _: True)
    shifted = _shifted_dims(name, dims, keywords) if parse_flag("shift", shift) else []
    samples = _with_bands(
        _samples_before(name, array, dims, n),
        half=dims[-1] if name == "rfft" else None,
        band=keywords.pop("band", None),
        band_index=keywords.pop("band_index", None),
    )
    source = prepared(
        array,
        dims,
        detrend,
        window,
    ).array
    data = _spectrum_of(
        getattr(transforms, f"{name}n"),
        source,
        samples,
        norm,
        keywords,
    )
    spectrum = with_frequencies(
        array,
        data,
        _frequencies(array, data, samples),
        samples,
        shifted=[dim for dim in shifted if samples[dim].band is None],
    )
    return _physical(
        spectrum,
        {f"{PREFIX}{old}": own for old, own in samples.items()},
        true_phase,
        true_amplitude,
        -1,
    )


@transforms_by
def forward_waves(
    name: str,
    array: xr.DataArray,
    dim: Dims = None,
    *,
    type: Literal[1, 2, 3, 4] = 2,
    n: int | None = None,
    norm: Norm = None,
    detrend: Detrend = None,
    window: WindowName = None,
    orthogonalize: bool | None = None,
    overwrite_x: bool = False,
    **options: Unpack[Options],
) -> xr.DataArray:
    """Return the transform `name` into cosines or sines; a decorator like `forward`."""
    dims = parse_dims(array, dim, lambda _: True)
    samples = _samples_before(name, array, dims, n)
    source = prepared(
        array,
        dims,
        detrend,
        window,
    ).array
    keywords = {
        **options,
        "type": type,
        "orthogonalize": orthogonalize,
        "overwrite_x": overwrite_x,
    }
    data = _spectrum_of(
        getattr(transforms, f"{name}n"),
        source,
        samples,
        norm,
        keywords,
    )
    frequencies = {old: cosine_frequencies(own, name, type) for old, own in samples.items()}
    return with_frequencies(
        array,
        data,
        frequencies,
        samples,
    )


def _samples_before(
    name: str,
    array: xr.DataArray,
    dims: Sequence[Hashable],
    n: Any,
) -> dict[Hashable, Samples]:
    """Return the samples of the dimensions of a forward transform; `n` is the last one's length."""
    samples = {old: samples_of(array, old) for old in dims}
    last = dims[-1]
    if n is not None:
        samples[last] = samples[last].with_length(parse_length("n", n, 1))
    elif name == "hfft":
        samples[last] = samples[last].with_length(2 * (array.sizes[last] - 1))
    return samples


def _spectrum_of(
    work: Callable[..., Any],
    array: xr.DataArray,
    samples: Mapping[Hashable, Samples],
    norm: Norm,
    keywords: dict[str, Any],
) -> Any:
    """Return what a function of dask arrays makes of an array and the samples of its dimensions.

    `work` is a forward transform, or the function that plans it.
    """
    return called_along(
        work,
        [array],
        {old: f"{PREFIX}{old}" for old in samples},
        keywords | _band_extras(array, samples),
        norm=norm,
        s=[own.length for own in samples.values()],
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
    if shifted and "transposed" in _orders(extras, len(dims)):
        raise_invalid("shift", True, "False in transposed order")
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


def _orders(extras: dict[str, Any], count: int) -> tuple[str, ...]:
    order = extras.get("order")
    return parse_orders(config.get("bigfft.order") if order is None else order, count)


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
    # products lose the name, and in older xarray attributes
    return array.copy(deep=False, data=physical.data)


@transforms_by
def inverse(
    name: str,
    array: xr.DataArray,
    dim: Dims = None,
    *,
    n: int | None = None,
    norm: Norm = None,
    true_phase: bool = False,
    true_amplitude: bool = False,
    **extras: Unpack[Extras],
) -> xr.DataArray:
    """Return the inverse transform `name`; `n` is the length of the last dimension in the result.

    A decorator like `forward`.
    """
    keywords: dict[str, Any] = {**extras}
    dims = parse_dims(array, dim, is_spectral(array))
    half = dims[-1] if name == "irfft" else None
    samples, resampled = _samples_after(name, array, dims, n)
    natural = _natural_dims(dims, keywords)
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
    whole = [old for old in natural if old != half and samples[old].band is None]
    data = _samples_of_spectrum(
        getattr(transforms, f"{name}n"),
        _in_natural_order(spectrum, whole),
        resampled,
        half,
        norm,
        keywords,
    )
    return _restored(array, data, resampled)


@transforms_by
def inverse_waves(
    name: str,
    array: xr.DataArray,
    dim: Dims = None,
    *,
    type: Literal[1, 2, 3, 4] = 2,
    norm: Norm = None,
    orthogonalize: bool | None = None,
    overwrite_x: bool = False,
    **options: Unpack[Options],
) -> xr.DataArray:
    """Return the inverse of a transform into cosines or sines; a decorator like `forward`."""
    dims = parse_dims(array, dim, is_spectral(array))
    samples, _ = _samples_after(name, array, dims, None)
    for old, own in samples.items():
        waves = cosine_frequencies(own, name, type)
        refuse_parts(
            array,
            old,
            own,
            False,
            waves,
        )
    keywords = {
        **options,
        "type": type,
        "orthogonalize": orthogonalize,
        "overwrite_x": overwrite_x,
    }
    data = _samples_of_spectrum(
        getattr(transforms, f"{name}n"),
        array,
        samples,
        None,
        norm,
        keywords,
    )
    return _restored(array, data, samples)


def _samples_after(
    name: str,
    array: xr.DataArray,
    dims: Sequence[Hashable],
    n: Any,
) -> tuple[dict[Hashable, Samples], dict[Hashable, Samples]]:
    """Return the samples that dimensions of frequencies remember, and those of the inverse.

    They differ for "irfft" alone, which may be told the number of samples `n`.
    """
    for dim in dims:
        if array[dim].attrs.get(ONESIDED):
            allowed = "a spectrum without the power of the missing half: that of fft or rfft, or "
            allowed += "power with onesided=False (of welch and csd, return_onesided=False), whose "
            allowed += "inverse is a correlation"
            raise_invalid("array", f"one-sided power along {dim}", allowed)
    length = None if n is None else parse_length("n", n, 1)
    half = dims[-1] if name == "irfft" else None
    samples = {old: remembered(array, old, old == half) for old in dims}
    if half is not None:
        return samples, samples | {half: samples[half].resampled(length)}
    if n is not None:
        raise_invalid("n", n, f"None for {name}")
    return samples, samples


def _samples_of_spectrum(
    work: Callable[..., Any],
    spectrum: xr.DataArray,
    samples: Mapping[Hashable, Samples],
    half: Hashable | None,
    norm: Norm,
    keywords: dict[str, Any],
) -> Any:
    """Return what a function of dask arrays makes of a spectrum and the samples of its inverse.

    `work` is an inverse transform, or the function that plans it. The dimension `half` has half of
    its frequencies; None if all dimensions have all of them.
    """
    lengths = []
    for old, own in samples.items():
        lengths.append(own.length if old == half else own.spectrum_length(spectrum.sizes[old]))
    return called_along(
        work,
        [spectrum],
        {old: own.dim for old, own in samples.items()},
        keywords | _band_extras(spectrum, samples),
        norm=norm,
        s=lengths,
    )


def _restored(
    array: xr.DataArray,
    data: Any,
    samples: Mapping[Hashable, Samples],
) -> xr.DataArray:
    """Return the inverse of a spectrum with the dimensions and coordinates of the original array.

    Its attributes are those of the original array, too. They are taken from the attributes of the
    spectrum and its frequencies.

    Parameters
    ----------
    array : DataArray
        The spectrum.
    data : array
        Its inverse transform.
    samples : mapping
        Samples of the original array by the dimension of frequencies that has replaced theirs.
    """
    dims_and_coords = {}
    for freq_dim, own in samples.items():
        count = data.shape[array.get_axis_num(freq_dim)]  # of a Hermitian sequence half is stored
        dims_and_coords[freq_dim] = (own.dim, own.coordinate(count))
    restored = rebuilt(array, data, dims_and_coords)
    coordinates = [array[freq_dim].attrs for freq_dim in samples]
    restored.attrs = source_attrs(array.attrs, coordinates, array.name)
    return restored


def _natural_dims(dims: Sequence[Hashable], extras: dict[str, Any]) -> list[Hashable]:
    """Return the dimensions along which a spectrum is in natural order."""
    orders = _orders(extras, len(dims))
    return [dim for dim, order in zip(dims, orders, strict=True) if order == "natural"]


def _in_natural_order(array: xr.DataArray, dims: Sequence[Hashable]) -> xr.DataArray:
    """Return the array with the frequency 0 of some dimensions first."""
    shifted = [dim for dim in dims if _is_shifted(array, dim)]
    if not shifted:
        return array
    axes = [array.get_axis_num(dim) for dim in shifted]
    return array.copy(deep=False, data=transforms.ifftshift(array.data, axes))


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
def both_shifted(name: str, array: xr.DataArray, dim: Dims = None) -> xr.DataArray:
    """Return the array with values and coordinates shifted; a decorator like `forward`."""
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


def planned(
    array: xr.DataArray,
    name: TransformName,
    dim: Dims = None,
    *,
    n: int | None = None,
    norm: Norm = None,
    **extras: Unpack[Extras],
) -> Plan:
    """Return the plan of a transform of an array.

    `n` is the length of the last dimension; inverse transforms other than irfft refuse it.
    """
    keywords: dict[str, Any] = {**extras}
    refuse_unknown(keywords, known_keywords(planned))
    work = partial(plan_of_array, kind=f"{name}n")
    _, _, is_forward = FAMILIES[name]
    if not is_forward:
        dims = parse_dims(array, dim, is_spectral(array))
        half = dims[-1] if name == "irfft" else None
        _, samples = _samples_after(name, array, dims, n)
        inverse_plan: Plan = _samples_of_spectrum(
            work,
            array,
            samples,
            half,
            norm,
            keywords,
        )
        return inverse_plan
    dims = parse_dims(array, dim, lambda _: True)
    samples = _with_bands(
        _samples_before(name, array, dims, n),
        half=dims[-1] if name == "rfft" else None,
        band=keywords.pop("band", None),
        band_index=keywords.pop("band_index", None),
    )
    forward_plan: Plan = _spectrum_of(
        work,
        array,
        samples,
        norm,
        keywords,
    )
    return forward_plan
