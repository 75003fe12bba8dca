"""Short-time transforms of xarray's arrays: frequencies and times of slices as coordinates."""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any, Unpack

import numpy as np
import xarray as xr

from dask_bigfft import signal
from dask_bigfft.errors import raise_invalid
from dask_bigfft.signal.arguments import SignalOptions
from dask_bigfft.signal.short_time import (
    FFTMode,
    Padding,
    Scaling,
    parse_slices,
    parse_window_keywords,
)
from dask_bigfft.xarray.arrays import (
    Dims,
    is_spectral,
    labelled_like,
    over_variables,
    parse_one_dim,
    renamed_dims,
    with_numbered_chunks,
)
from dask_bigfft.xarray.attributes import (
    ARRAY_ATTRS,
    attrs_as_text,
    frequency_attrs,
    source_attrs,
)
from dask_bigfft.xarray.coordinates import (
    PREFIX,
    Samples,
    attrs_of_samples,
    remembered,
    samples_of,
)
from dask_bigfft.xarray.missing import with_nan_warning
from dask_bigfft.xarray.spectra import squared_units
from dask_bigfft.xarray.steps import TOLERANCE

__all__ = ["istft", "spectrogram", "stft"]


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
    is_same = places == 0 and every == 1 and count == samples.length
    moved = replace(
        samples,
        length=count,
        step=samples.step * every,
        rate=samples.rate if every == 1 else None,
        last=samples.last if is_same else None,
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
    own: Samples,
    keywords: Mapping[str, Any],
) -> xr.DataArray:
    """Return spectra of slices with the coordinates of their frequencies and times.

    `own` are the samples of the dimension that was transformed.
    """
    dim = own.dim
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
    dims = renamed_dims(array, dim, new_dim)
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
    coords[dim] = times.coordinate(end - first, attrs_of_samples(array, dim))
    return labelled_like(
        array,
        with_nan_warning(data),
        [*dims, dim],
        coords,
    )


def _slices(
    work: Callable[..., Any],
    array: xr.DataArray,
    own: Samples,
    options: Mapping[str, Any],
    keywords: Mapping[str, Any],
) -> xr.DataArray:
    """Return spectra of slices by a function of `dask_bigfft.signal` along a dimension."""
    dim = own.dim
    new_dims = renamed_dims(array, dim, f"{PREFIX}{dim}")
    others = [name for name in array.dims if name != dim]
    data = work(
        array.data,
        fs=1 / abs(own.spacing),
        axis=array.get_axis_num(dim),
        **keywords,
        **with_numbered_chunks(options, others, [*new_dims, dim]),
    )
    return _with_slices(array, data, own, keywords)


@over_variables(spectral=False)
def stft(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    win: Any,
    hop: int,
    fft_mode: FFTMode = "onesided",
    mfft: int | None = None,
    scale_to: Scaling | None = None,
    phase_shift: int | None = 0,
    p0: int | None = None,
    p1: int | None = None,
    k_offset: int = 0,
    padding: Padding = "zeros",
    **options: Unpack[SignalOptions],
) -> xr.DataArray:
    """Return the short-time Fourier transform along a dimension.

    Parameters
    ----------
    array : xarray.DataArray or xarray.Dataset
        As for `fft`.
    dim : str, optional
        The dimension; by default the only one.
    win : array-like
        Values of the window.
    hop : int
        Number of samples from a slice to the next one.
    fft_mode, mfft, scale_to, phase_shift
        See `scipy.signal.ShortTimeFFT`. The sampling rate is that of the coordinate.
    p0, p1, k_offset, padding
        See `scipy.signal.ShortTimeFFT.stft`.
    chunks, ..., planner
        `chunks` (a mapping may name dimensions of the result), `memory_limit` and the other options
        of `dask_bigfft.signal.stft`. By default chunks differ in their number of slices: for Zarr
        give one, as ``chunks={"x": 1000}``.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        Complex, with dimension ``freq_x`` instead of ``x`` and a last dimension ``x``, whose
        coordinate has the middle of each slice. Lazy if the array is, otherwise computed at once.

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
    name = parse_one_dim(array, dim, lambda _: True)
    keywords = {
        "win": win,
        "hop": hop,
        "fft_mode": fft_mode,
        "mfft": mfft,
        "scale_to": scale_to,
        "phase_shift": phase_shift,
        "p0": p0,
        "p1": p1,
        "k_offset": k_offset,
        "padding": padding,
    }
    spectra = _slices(
        signal.stft,
        array,
        samples_of(array, name),
        {**options},
        keywords,
    )
    if scale_to == "psd":
        spectra.attrs.pop("units", None)  # the root of a density
    return spectra


@over_variables(spectral=False)
def spectrogram(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    win: Any,
    hop: int,
    detr: Any = None,
    fft_mode: FFTMode = "onesided",
    mfft: int | None = None,
    scale_to: Scaling | None = None,
    phase_shift: int | None = 0,
    p0: int | None = None,
    p1: int | None = None,
    k_offset: int = 0,
    padding: Padding = "zeros",
    **options: Unpack[SignalOptions],
) -> xr.DataArray:
    """Return the squared short-time Fourier transform along a dimension.

    Parameters
    ----------
    array, dim, win, hop, fft_mode, mfft, scale_to, phase_shift, p0, p1, k_offset, padding
        As for `stft`.
    detr : {"linear", "constant"} or function, optional
        See `scipy.signal.ShortTimeFFT.spectrogram`.
    chunks, ..., planner
        As for `stft`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        Real, otherwise as for `stft`. The attribute ``units`` is squared, and divided by the
        unit of the frequencies for ``scale_to="psd"``. Lazy if the array is, otherwise computed
        at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.
    """
    name = parse_one_dim(array, dim, lambda _: True)
    keywords = {
        "win": win,
        "hop": hop,
        "detr": detr,
        "fft_mode": fft_mode,
        "mfft": mfft,
        "scale_to": scale_to,
        "phase_shift": phase_shift,
        "p0": p0,
        "p1": p1,
        "k_offset": k_offset,
        "padding": padding,
    }
    own = samples_of(array, name)
    spectra = _slices(
        signal.spectrogram,
        array,
        own,
        {**options},
        keywords,
    )
    scaling = "density" if scale_to == "psd" else "spectrum"
    spectra.attrs = squared_units([array], [own.frequency_units], scaling)
    return spectra


def _refuse_other_slices(
    array: xr.DataArray,
    own: Samples,
    first: int,
    hop: int,
) -> None:
    """Refuse spectra whose slices are not the first ones of a record, one every `hop` samples.

    An inverse would take them for these. A coordinate of slices that was dropped, or has become one
    of another kind in a file, is not compared.

    Parameters
    ----------
    array : DataArray
        Spectra of slices.
    own : Samples
        Samples of the record.
    first : int
        Number of the first slice. The middle of slice 0 is sample 0.
    hop : int
        Number of samples from a slice to the next one.
    """
    dim = own.dim
    count = array.sizes[dim]
    if dim not in array.coords or count == 0:
        return
    times = _moved(
        own,
        first * hop,
        hop,
        count,
    )
    expected: Any = times.coordinate(count)
    present = array.coords[dim].values
    both_numbers = {present.dtype.kind, expected.dtype.kind} <= {"i", "u", "f"}
    if not both_numbers and present.dtype.kind != expected.dtype.kind:
        return
    unit: Any = 1
    if own.is_time:
        unit = np.timedelta64(1, "s") if own.calendar is None else timedelta(seconds=1)
    distances = np.abs(((present - expected.values) / unit).astype(float))
    if np.all(distances <= TOLERANCE * hop * abs(own.spacing)):
        return
    allowed = "the slices of stft without p0 and k_offset in their order, from "
    allowed += f"{expected.values[0]} on and {hop=} samples apart, or no coordinate: "
    allowed += f"drop_vars({dim!r})"
    raise_invalid(f"coordinate {dim}", f"of {count} slices from {present[0]} on", allowed)


@over_variables(spectral=True)
def istft(
    array: xr.DataArray,
    dim: Dims = None,
    *,
    win: Any,
    hop: int,
    fft_mode: FFTMode = "onesided",
    mfft: int | None = None,
    dual_win: Any = None,
    scale_to: Scaling | None = None,
    phase_shift: int | None = 0,
    k0: int = 0,
    k1: int | None = None,
    **options: Unpack[SignalOptions],
) -> xr.DataArray:
    """Return the inverse of `stft`, with the coordinate from before.

    Parameters
    ----------
    array : xarray.DataArray or xarray.Dataset
        What `stft` returns without `p0` and `k_offset`, or a product with it. Slices may lack at
        the end if `k1` is given.
    dim : str, optional
        The dimension of the frequencies.
    win, hop, fft_mode, mfft, scale_to, phase_shift
        Arguments of the `stft` that has made it.
    dual_win, k0, k1
        See `dask_bigfft.signal.istft`. By default the result has as many samples as before.
    chunks, ..., planner
        As for `stft`.

    Returns
    -------
    xarray.DataArray or xarray.Dataset
        With the dimension, coordinate and attributes from before the transform. Lazy if the array
        is, otherwise computed at once.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments, and for slices at other positions of their coordinate: selected,
        reversed, or made with `p0`, `k_offset` or another `hop`.

    Examples
    --------
    >>> import xarray as xr
    >>> x = xr.DataArray(np.arange(50.0), dims="x", coords={"x": np.arange(50) / 10})
    >>> window = {"win": np.hanning(10), "hop": 2}
    >>> istft(stft(x, **window), **window)[-2:].values.round(6)
    array([48., 49.])
    """
    name = parse_one_dim(array, dim, is_spectral(array))
    own = remembered(array, name, False)
    if own.dim not in array.dims:
        raise_invalid("array", f"of dimensions {array.dims}", f"a dimension {own.dim} of slices")
    samples = [*array.dims]
    samples.remove(name)
    samples.remove(own.dim)
    place = min(array.get_axis_num(name), len(samples))
    samples.insert(place, own.dim)
    transform = parse_window_keywords({"win": win, "hop": hop, "mfft": mfft}, 1 / abs(own.spacing))
    _refuse_other_slices(
        array,
        own,
        first=transform.p_min,
        hop=transform.hop,
    )
    data = signal.istft(
        array.data,
        win,
        hop,
        fs=1 / abs(own.spacing),
        fft_mode=fft_mode,
        mfft=mfft,
        dual_win=dual_win,
        scale_to=scale_to,
        phase_shift=phase_shift,
        k0=k0,
        k1=own.length if k1 is None else k1,
        f_axis=array.get_axis_num(name),
        t_axis=array.get_axis_num(own.dim),
        **with_numbered_chunks({**options}, samples, samples),
    )
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
        coords[own.dim] = moved.coordinate(count, attrs_of_samples(array, own.dim))
    restored = labelled_like(
        array,
        with_nan_warning(data),
        samples,
        coords,
    )
    restored.attrs = source_attrs(
        array.attrs,
        [array[name].attrs],
        array.name,
    )
    return restored
