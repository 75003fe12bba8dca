"""Shifts by fractions of a sample, and other sampling rates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack

import dask.array as da
import numpy as np
import scipy  # its modules are imported at first use

from dask_bigfft import fft
from dask_bigfft.api.arguments import inner_extras, parse_array
from dask_bigfft.api.calls import by_block
from dask_bigfft.api.kinds import keeps_rows
from dask_bigfft.arrays import Array
from dask_bigfft.errors import (
    PlanError,
    parse_as,
    parse_choice,
    parse_count,
    raise_invalid,
)
from dask_bigfft.gpu.own_gpu import on_own_gpu
from dask_bigfft.signal.arguments import (
    Axes,
    SignalOptions,
    in_chunks,
    nonempty,
    parse_signal_options,
    several_axes,
    without_empty,
)
from dask_bigfft.signal.filters import Filter, Spacing, filtered_by_one_plan, fourier_filter
from dask_bigfft.signal.passbands import BoxBand
from dask_bigfft.signal.transfer import TransferInMemory
from dask_bigfft.transforms.spec import parse_axes, work_dtype

__all__ = ["downsample", "resample", "shift"]


# --- shifts ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Delay:
    """Transfer function of a shift.

    Parameters
    ----------
    distances : tuple of float
        Shift along each axis.
    """

    distances: tuple[float, ...]

    def __call__(self, *frequencies: Array) -> Array:
        """Return the phase factors at some frequencies."""
        pairs = zip(frequencies, self.distances, strict=True)
        turns: Any = sum(frequency * distance for frequency, distance in pairs)
        factor: Array = np.exp(-2j * np.pi * (turns % 1))
        return factor


@keeps_rows()
def shift(
    x: Any,
    distance: Any,
    axes: Axes = None,
    *,
    spacing: Spacing = 1.0,
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return a periodic array that is shifted by any distance, also by fractions of a sample.

    Parameters
    ----------
    x : dask array or array-like
        Samples of one period along each of the axes, of any chunking; only read.
    distance : float or sequence of float
        Shift towards higher places in units of `spacing`, for all axes or for each.
    axes : int or sequence of int, optional
        The axes, all by default.
    spacing : float or sequence of float
        Distance of two samples along all axes, or a sequence with that of each axis in `axes`.
    chunks, memory_limit, kernel, device, device_memory_limit, verify, planner : optional
        As for `fourier_filter`.

    Returns
    -------
    dask.array.Array
        Lazy: values between samples are those of the trigonometric polynomial through the samples;
        of single precision for single-precision `x`. A NaN makes its line or plane NaN.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Notes
    -----
    Frequency N/2 of an even length, whose sign the samples do not determine, is multiplied by the
    cosine of its phase for real `x`. Complex `x` has it as a negative frequency.

    Examples
    --------
    >>> shift([1.0, 2.0, 3.0, 4.0], 1).compute().round(6)
    array([4., 1., 2., 3.])
    """
    parse_signal_options(options)
    array = parse_array(x, "fft")
    along = several_axes(axes, array.ndim)
    allowed = "a finite number, or one for each axis"
    distances = parse_as(
        lambda value: np.ravel(np.asarray(value, float)),
        "distance",
        distance,
        allowed,
    )
    if distances.size == 1:
        distances = np.repeat(distances, len(along))
    if distances.size != len(along) or not np.isfinite(distances).all():
        raise_invalid("distance", distance, allowed)
    delay = Delay(tuple(distances.tolist()))
    return fourier_filter(array, delay, along, spacing=spacing, **options)


# --- sampling rates -------------------------------------------------------------------------


def _parse_spectral_window(window: Any, n: int) -> Array | None:
    """Return the factors of all frequencies, in the order of the FFT."""
    if window is None:
        return None
    allowed = f"a window of scipy.signal.get_window, {n} factors, or a function of frequencies"
    if callable(window):
        factors = np.asarray(window(np.fft.fftfreq(n)))
    elif hasattr(window, "shape"):
        factors = np.array(window)
    else:
        try:
            factors = np.fft.fftshift(scipy.signal.get_window(window, n))
        except (ValueError, TypeError):
            raise_invalid("window", window, allowed)
    if factors.shape != (n,) or factors.dtype.kind not in "biufc":
        raise_invalid("window", window, allowed)
    return factors


@on_own_gpu
def _times_values(block: Array, factors: Array) -> Array:
    """Return a block times factors that broadcast against it."""
    product: Array = block * np.asarray(factors, like=block)
    return product


def _times_factors(
    spectrum: da.Array,
    factors: Array,
    axis: int,
) -> da.Array:
    """Return a spectrum times factors along an axis."""
    shape = [1] * spectrum.ndim
    shape[axis] = -1
    chunks: list[Any] = [(1,)] * spectrum.ndim
    chunks[axis] = spectrum.chunks[axis]
    is_complex = factors.dtype.kind == "c"
    values = factors.astype(spectrum.dtype if is_complex else spectrum.real.dtype)
    return by_block(
        _times_values,
        spectrum,
        da.from_array(values.reshape(shape), chunks=tuple(chunks)),
        dtype=spectrum.dtype,
    )


def _scaled_at(
    spectrum: da.Array,
    axis: int,
    place: int,
    factor: float,
) -> da.Array:
    """Return a spectrum times a factor at one frequency."""
    factors = np.ones(spectrum.shape[axis])
    factors[place] = factor
    return _times_factors(spectrum, factors, axis)


def _resampled_by_one_plan(
    array: da.Array,
    axis: int,
    num: int,
    window: Array | None,
    options: SignalOptions,
) -> da.Array | None:
    """Return samples at another rate; None if one plan cannot make them.

    That is so for an axis that does not fit a block, and where half the rate of complex samples is
    a frequency that becomes two.
    """
    n = array.shape[axis]
    is_real = array.dtype.kind != "c"
    splits_highest = num > n and n % 2 == 0
    if splits_highest and not is_real:
        return None
    factors = np.ones(n) if window is None else window
    if is_real:
        # The result is real if both signs of a frequency have one factor: the mean of theirs.
        mean = (factors + np.roll(factors[::-1], 1)) / 2
        factors = mean[: n // 2 + 1].copy()
        if splits_highest:
            factors[-1] /= 2  # each sign of half the rate has half of the value
    shape = [1] * array.ndim
    shape[axis] = -1
    halved = axis if is_real else None
    resampling = Filter(
        TransferInMemory(factors.reshape(shape), {axis: n}, halved),
        (axis,),
        (n,),
        is_real,
        lengths_back={axis: num} if num != n else {},
    )
    try:
        return filtered_by_one_plan(array, resampling, options)
    except PlanError:
        return None


def _resampled_real(
    array: da.Array,
    axis: int,
    num: int,
    window: Array | None,
    options: SignalOptions,
) -> da.Array:
    """Return real samples at another rate, by two plans."""
    n = array.shape[axis]
    extras = inner_extras(options, norm="forward")
    spectrum = fft.rfft(array, axis=axis, **extras)
    if window is not None:
        mirrored = np.roll(window[::-1], 1)
        mean = (window + mirrored) / 2
        spectrum = _times_factors(spectrum, mean[: n // 2 + 1], axis)
    least = min(num, n)
    inner = (*(slice(None),) * axis, slice(least // 2 + 1))
    cropped = spectrum[inner]
    if least % 2 == 0 and num != n:
        cropped = _scaled_at(cropped, axis, least // 2, 2 if num < n else 0.5)
    extras = inner_extras(options, norm="forward", chunks=options.get("chunks"))
    return fft.irfft(cropped, num, axis, **extras)


@on_own_gpu
def _sum_of_two(block: Array, other: Array) -> Array:
    """Return the sum of two blocks."""
    total: Array = block + other
    return total


def _resampled_spectrum(
    spectrum: da.Array,
    axis: int,
    num: int,
    options: SignalOptions,
) -> da.Array:
    """Return complex samples at another rate, from a whole spectrum divided by its length."""
    n = spectrum.shape[axis]
    least = min(num, n)
    before = (slice(None),) * axis
    positive = spectrum[(*before, slice((least + 1) // 2))]
    negative = spectrum[(*before, slice(n - (least - 1) // 2, n))]
    highest = _highest_frequency(spectrum, axis, num)
    parts = [positive, *highest[:1]]
    zeros = num - positive.shape[axis] - len(highest) - negative.shape[axis]
    if zeros > 0:
        shape = list(spectrum.shape)
        shape[axis] = zeros
        parts.append(da.zeros_like(spectrum, shape=tuple(shape), chunks="auto"))
    parts += [*highest[1:], negative]
    whole = da.concatenate([part for part in parts if part.shape[axis]], axis=axis)
    extras = inner_extras(options, norm="forward", chunks=options.get("chunks"))
    return fft.ifft(whole, num, axis, **extras)


def _highest_frequency(spectrum: da.Array, axis: int, num: int) -> list[da.Array]:
    """Return the values of a resampled spectrum at half of the lower rate, of length 1 on the axis.

    An odd number of samples has no such frequency, and the list is empty. An even number has it
    once: both signs are one frequency. Of `num` more samples it is two frequencies, each of which
    has half of the value; in `num` fewer samples, two frequencies of the spectrum become one.
    """
    n = spectrum.shape[axis]
    least = min(num, n)
    if least % 2:
        return []
    before = (slice(None),) * axis
    place = least // 2
    highest = spectrum[(*before, slice(place, place + 1))]
    if num == n:
        return [highest]
    if num > n:
        half = _times_factors(highest, np.array([0.5]), axis)
        return [half, half]
    opposite = spectrum[(*before, slice(n - place, n - place + 1))]
    both = by_block(
        _sum_of_two,
        highest,
        opposite,
        dtype=spectrum.dtype,
    )
    return [both]


def _resampled(
    array: da.Array,
    axis: int,
    num: int,
    window: Array | None,
    options: SignalOptions,
) -> da.Array:
    """Return samples at another rate, by one plan if possible."""
    by_one_plan = _resampled_by_one_plan(
        array,
        axis,
        num,
        window,
        options,
    )
    if by_one_plan is not None:
        return by_one_plan
    if array.dtype.kind != "c":
        return _resampled_real(
            array,
            axis,
            num,
            window,
            options,
        )
    extras = inner_extras(options, norm="forward")
    spectrum = fft.fft(array, axis=axis, **extras)
    if window is not None:
        spectrum = _times_factors(spectrum, window, axis)
    return _resampled_spectrum(
        spectrum,
        axis,
        num,
        options,
    )


@keeps_rows()
def resample(
    x: Any,
    num: int,
    t: Any = None,
    axis: int = 0,
    window: Any = None,
    domain: Literal["time", "freq"] = "time",
    **options: Unpack[SignalOptions],
) -> Any:
    """Return a periodic array at another sampling rate, by cropping or padding its spectrum.

    Parameters
    ----------
    x : dask array or array-like
        Samples of one period, or their spectrum in natural order, of any chunking; only read.
    num : int
        Number of samples of the result.
    t : array-like, optional
        Two or more evenly spaced positions of the samples; those of the result are then returned.
    axis : int
        Axis of the samples.
    window : str, tuple, callable or array-like, optional
        Factors of the frequencies, as `scipy.signal.resample` takes them.
    domain : {"time", "freq"}
        The domain of `x`. Samples of a spectrum are complex.
    chunks, memory_limit, kernel, device, device_memory_limit, verify, planner : optional
        `chunks` of the result; the others as transforms in `fft` take them, for each transform.

    Returns
    -------
    dask.array.Array, or a dask.array.Array and an ndarray
        Lazy, as `scipy.signal.resample` returns it; of single precision for single-precision `x`. A
        NaN makes its line NaN. With `t`, also the positions of the samples.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Notes
    -----
    One plan has both transforms, and crops or pads the spectrum between them. Two plans are needed
    for an axis that does not fit a block. They are also needed for upsampling an even number of
    complex samples, where the frequency at half of the old rate becomes two.

    See Also
    --------
    downsample : Each q-th sample without aliases.

    Examples
    --------
    >>> resample(np.cos(np.arange(4) * np.pi / 2), 8).compute().round(3) + 0.0
    array([ 1.   ,  0.707,  0.   , -0.707, -1.   , -0.707,  0.   ,  0.707])
    """
    parse_signal_options(options)
    parse_choice("domain", domain, "time", "freq")
    array = without_empty(parse_array(x, "fft"))
    (along,) = parse_axes("axis", (axis,), array.ndim)
    (n,) = nonempty(array, (along,))
    count = parse_count("num", num, 1, 2**62)
    factors = _parse_spectral_window(window, n)
    if domain == "time":
        samples = _resampled(
            array,
            along,
            count,
            factors,
            options,
        )
    else:
        divided = np.full(n, 1 / n) if factors is None else factors / n
        samples = _resampled_spectrum(
            _times_factors(array, divided, along),
            along,
            count,
            options,
        )
    if t is None:
        return samples
    allowed = "two or more positions of samples"
    positions = parse_as(lambda values: np.asarray(values, float), "t", t, allowed)
    if positions.ndim != 1 or positions.size < 2:
        raise_invalid("t", t, allowed)
    step = (positions[1] - positions[0]) * (n / count)
    return samples, positions[0] + step * np.arange(count)


def _sample_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype of samples that were transformed forward and back.

    >>> _sample_dtype(np.dtype("int8")), _sample_dtype(np.dtype(">c8"))
    (dtype('float64'), dtype('complex64'))
    """
    spectrum = np.empty(0, work_dtype(dtype))
    return spectrum.dtype if dtype.kind == "c" else spectrum.real.dtype


def _downsampled_by_one_plan(
    array: da.Array,
    factors: Mapping[int, int],
    options: SignalOptions,
) -> da.Array | None:
    """Return every q-th sample by axis without aliases; None if one plan cannot make them.

    That is so if a length is no multiple of q, and for an axis that does not fit a block.
    """
    if any(array.shape[axis] % factor for axis, factor in factors.items()):
        return None
    # The last axis has half a spectrum.
    axes = tuple(sorted(factors, key=lambda axis: (array.numblocks[axis] == 1, axis)))
    lengths = tuple(array.shape[axis] for axis in axes)
    is_real = array.dtype.kind != "c"
    unchanged = np.ones((1,) * array.ndim)
    downsampling = Filter(
        TransferInMemory(
            unchanged,
            dict(zip(axes, lengths, strict=True)),
            axes[-1] if is_real else None,
        ),
        axes,
        lengths,
        is_real,
        lengths_back={axis: array.shape[axis] // factor for axis, factor in factors.items()},
    )
    try:
        return filtered_by_one_plan(array, downsampling, options)
    except PlanError:
        return None


def _parse_factors(factor: Any, axes: Sequence[int]) -> dict[int, int]:
    """Return the factor of each axis, from one number for all of them or a sequence."""
    try:
        factors = list(factor)
    except TypeError:
        factors = [factor] * len(axes)
    if len(factors) != len(axes):
        raise_invalid("factor", factor, "a whole number of at least 1, or one for each axis")
    counts = [parse_count("factor", count, 1, 2**62) for count in factors]
    return dict(zip(axes, counts, strict=True))


@keeps_rows()
def downsample(
    x: Any,
    factor: Any,
    axes: Axes = None,
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return every q-th sample of a periodic array, without aliases of higher frequencies.

    Parameters
    ----------
    x : dask array or array-like
        Of any chunking; only read.
    factor : int or sequence of int
        The number q, for all axes or for each.
    axes : int or sequence of int, optional
        The axes, all by default.
    chunks, memory_limit, kernel, device, device_memory_limit, verify, planner : optional
        As for `fourier_filter`; `chunks` are those of the result.

    Returns
    -------
    dask.array.Array
        Lazy, with n / q samples rounded up along each axis; the first one is the first of `x`
        without the frequencies above half of the new rate. Of single precision for single-precision
        `x`. A NaN makes its line or plane NaN.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Notes
    -----
    For a length that q divides this is `resample`: one plan, which crops the spectrum along each
    axis where it is transformed, so that less is exchanged. The result has
    the frequency at half of the new rate, in which both signs add up. Other lengths, and axes that
    do not fit a block, are filtered first.

    Examples
    --------
    >>> downsample([1.0, -1.0, 1.0, -1.0], 2).compute().round(6) + 0.0
    array([0., 0.])
    """
    parse_signal_options(options)
    array = without_empty(parse_array(x, "fft"))
    along = several_axes(axes, array.ndim)
    factors = _parse_factors(factor, along)
    reduced = {axis: count for axis, count in factors.items() if count > 1}
    if not reduced:
        unchanged = array.astype(_sample_dtype(array.dtype))
        return in_chunks(unchanged, options.get("chunks"))
    samples = _downsampled_by_one_plan(array, reduced, options)
    if samples is not None:
        return samples
    limits = tuple(0.5 / count for count in reduced.values())
    inner: Any = {**options, "chunks": None}
    filtered = fourier_filter(
        array,
        BoxBand(limits),
        list(reduced),
        **inner,
    )
    index = [slice(None)] * array.ndim
    for axis, count in reduced.items():
        index[axis] = slice(None, None, count)
    samples = filtered[tuple(index)]
    return in_chunks(samples, options.get("chunks"))
