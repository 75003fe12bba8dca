r"""Filters by name: low, high, in a band, or outside it.

A filter of several axes depends on the length of the frequency alone, so that it is the same in all
directions. The response at the cutoff is 1/2, that of a Butterworth filter the root of 1/2, and
that of a sharp edge 1::

    1 ------.                  sharp, gaussian, butterworth, cosine: the shape of the edge
             \
              + 1/2
               \
    0           `------
              cutoff
"""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Unpack

import dask.array as da
import numpy as np

from dask_bigfft.api.arguments import parse_array
from dask_bigfft.api.kinds import keeps_rows
from dask_bigfft.arrays import Array
from dask_bigfft.errors import (
    ArgumentTypeError,
    parse_as,
    parse_choice,
    parse_count,
    raise_invalid,
)
from dask_bigfft.signal.arguments import Axes, SignalOptions, several_axes
from dask_bigfft.signal.filters import Spacing, fourier_filter, parse_spacing

__all__ = ["bandpass", "bandstop", "highpass", "lowpass"]

Edge = Literal["sharp", "gaussian", "butterworth", "cosine"]
By = Literal["frequency", "wavelength", "period"]

#: Relative difference of a frequency and a sharp cutoff that counts as none.
SAME = 1e-9


@dataclass(frozen=True)
class EdgeShape:
    """Shape of the edge of a filter.

    Parameters
    ----------
    kind : {"sharp", "gaussian", "butterworth", "cosine"}
        Shape.
    order : int
        Order of a Butterworth filter.
    width : float
        Width of a cosine edge, relative to the cutoff.
    """

    kind: str
    order: int
    width: float

    def low(self, radius: Array, cutoff: float) -> Array:
        """Return the response of a low-pass filter at lengths of frequencies."""
        ratio = radius / cutoff
        if self.kind == "sharp":
            return np.where(ratio <= 1 + SAME, 1.0, 0.0)
        if self.kind == "gaussian":
            return np.asarray(np.exp(-math.log(2) * ratio**2), like=radius)
        if self.kind == "butterworth":
            with np.errstate(over="ignore"):
                return np.asarray(1 / np.sqrt(1 + ratio ** (2 * self.order)), like=radius)
        place = np.clip((ratio - 1) / self.width, -0.5, 0.5)
        return np.asarray((1 - np.sin(np.pi * place)) / 2, like=radius)

    def high(self, radius: Array, cutoff: float) -> Array:
        """Return the response of a high-pass filter at lengths of frequencies."""
        if self.kind == "sharp":  # keeps its cutoff, as a low-pass filter does
            return np.where(radius / cutoff >= 1 - SAME, 1.0, 0.0)
        if self.kind != "butterworth":
            return 1 - self.low(radius, cutoff)
        with np.errstate(over="ignore", divide="ignore"):
            ratio = cutoff / radius
            return np.asarray(1 / np.sqrt(1 + ratio ** (2 * self.order)), like=radius)


@dataclass(frozen=True)
class Passband:
    """Transfer function of a filter by name.

    Parameters
    ----------
    edge : EdgeShape
        Shape of its edges.
    low, high : float, optional
        Cutoffs: frequencies below `low` and above `high` are removed, those at sharp edges kept.
    stops : bool
        True to remove what it would keep.
    """

    edge: EdgeShape
    low: float | None
    high: float | None
    stops: bool = False

    def __call__(self, *frequencies: Array) -> Array:
        """Return the response at some frequencies."""
        radius: Any = np.sqrt(sum(frequency**2 for frequency in frequencies))
        response: Any = np.ones_like(radius)
        if self.low is not None:
            response = response * self.edge.high(radius, self.low)
        if self.high is not None:
            response = response * self.edge.low(radius, self.high)
        return np.asarray(1 - response if self.stops else response, like=radius)


@dataclass(frozen=True)
class BoxBand:
    """Transfer function that is 1 for frequencies up to a limit along each axis, else 0.

    Parameters
    ----------
    limits : tuple of float
        Highest frequency along each axis.
    """

    limits: tuple[float, ...]

    def __call__(self, *frequencies: Array) -> Array:
        """Return 1 within the limits and 0 outside."""
        inside: Any = True
        for frequency, limit in zip(frequencies, self.limits, strict=True):
            inside = inside & (np.abs(frequency) <= limit * (1 + SAME))
        return np.where(inside, 1.0, 0.0)


def _parse_edge(edge: Any, order: Any, width: Any) -> EdgeShape:
    """Return the shape of the edge of a filter."""
    kind = parse_choice(
        "edge",
        edge,
        "sharp",
        "gaussian",
        "butterworth",
        "cosine",
    )
    allowed = "a number above 0 and at most 2"
    relative = parse_as(float, "width", width, allowed)
    if not 0 < relative <= 2:
        raise_invalid("width", width, allowed)
    return EdgeShape(kind, parse_count("order", order, 1, 1000), relative)


def _parse_cutoff(name: str, cutoff: Any, by: Any) -> float:
    """Return a cutoff as a frequency."""
    parse_choice(
        "by",
        by,
        "frequency",
        "wavelength",
        "period",
    )
    allowed = "a positive number"
    if isinstance(cutoff, np.timedelta64):  # of some units float returns the number alone
        raise_invalid(name, cutoff, allowed, kind=ArgumentTypeError)
    number = parse_as(float, name, cutoff, allowed)
    if not 0 < number < math.inf:
        raise_invalid(name, cutoff, allowed)
    return number if by == "frequency" else 1 / number


def _parse_band(band: Any, by: Any) -> tuple[float, float]:
    """Return the two cutoffs of a band as frequencies, the lower one first."""
    allowed = "two positive numbers that differ"
    try:
        ends = list(band)
    except TypeError:
        ends = []
    if len(ends) != 2:
        raise_invalid("band", band, allowed)
    low, high = sorted(_parse_cutoff("band", end, by) for end in ends)
    if low == high:
        raise_invalid("band", band, allowed)
    return low, high


def parse_passband(
    name: str,
    limits: Any,
    *,
    by: Any,
    edge: Any,
    order: Any,
    width: Any,
) -> Passband:
    """Return the transfer function of a filter.

    Parameters
    ----------
    name : {"lowpass", "highpass", "bandpass", "bandstop"}
        The filter.
    limits
        Its cutoff or its band.
    by, edge, order, width
        Arguments of the filter.
    """
    edge_shape = _parse_edge(edge, order, width)
    if name == "lowpass":
        return Passband(edge_shape, low=None, high=_parse_cutoff("cutoff", limits, by))
    if name == "highpass":
        return Passband(edge_shape, low=_parse_cutoff("cutoff", limits, by), high=None)
    low, high = _parse_band(limits, by)
    return Passband(
        edge_shape,
        low=low,
        high=high,
        stops=name == "bandstop",
    )


def warn_above_samples(
    passband: Passband,
    by: By,
    distances: Sequence[float],
    unit: str,
    stacklevel: int = 5,
) -> None:
    """Warn of a cutoff or band that reaches above the highest frequency of the samples.

    Along several axes that is the magnitude of the frequency at the corner of the spectrum.

    Parameters
    ----------
    passband : Passband
        The filter.
    by : {"frequency", "wavelength", "period"}
        What the caller has named, which the warning repeats.
    distances : sequence of float
        Distance of two samples along each axis.
    unit : str
        Unit of the frequencies.
    stacklevel : int
        Frames from the warning to the line of the user who has called the filter.
    """
    highest = math.hypot(*(1 / (2 * distance) for distance in distances))
    cutoffs = [cutoff for cutoff in (passband.low, passband.high) if cutoff is not None]
    if max(cutoffs) <= highest * (1 + SAME):
        return
    argument = "cutoff" if len(cutoffs) == 1 else "band"
    frequencies = " to ".join(f"{cutoff:g}" for cutoff in cutoffs)
    given = ""
    shortest = ""
    if by != "frequency":
        lengths = " to ".join(f"{1 / cutoff:g}" for cutoff in cutoffs)
        given = f"a {by} of {lengths}, "
        shortest = f", a {by} of {1 / highest:g}"
    text = f"`{argument}` is {given}{frequencies} {unit} as a frequency, above the highest "
    text += f"frequency of the samples, which is {highest:g} {unit}{shortest}"
    warnings.warn(text, stacklevel=stacklevel)


def _filtered(
    x: Any,
    passband: Passband,
    by: By,
    axes: Axes,
    spacing: Spacing,
    options: SignalOptions,
) -> da.Array:
    """Return an array after a filter, whose limits the caller has named by `by`."""
    array = parse_array(x, "fft")
    if array.ndim == 0:
        raise_invalid("x", x, "an array with one or more axes")
    distances = parse_spacing("spacing", spacing, len(several_axes(axes, array.ndim)))
    warn_above_samples(passband, by, distances, "cycles per unit of spacing")
    return fourier_filter(array, passband, axes, spacing=spacing, **options)


@keeps_rows()
def lowpass(
    x: Any,
    cutoff: float,
    axes: Axes = None,
    *,
    spacing: Spacing = 1.0,
    by: By = "frequency",
    edge: Edge = "gaussian",
    order: int = 4,
    width: float = 0.2,
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return an array without its high frequencies.

    Parameters
    ----------
    x : dask array or array-like
        Of any chunking; only read. It is assumed to be periodic.
    cutoff : float
        Frequency in cycles per unit of `spacing`, or wavelength or period in units of `spacing`.
        For several axes it is a limit of the magnitude of the frequency. A warning says if it is
        above all frequencies that samples at this distance have.
    axes : int or sequence of int, optional
        Axes of the transform, all by default.
    spacing : float or sequence of float
        Distance of two samples along all axes, or a sequence with that of each axis in `axes`.
    by : {"frequency", "wavelength", "period"}
        Meaning of the cutoff.
    edge : {"gaussian", "sharp", "butterworth", "cosine"}
        Shape of the edge. The response at the cutoff is 1/2, of "butterworth" the root of 1/2, of
        "sharp" 1.
    order : int
        Order of "butterworth".
    width : float
        Width of "cosine" from 1 to 0, relative to the frequency of the cutoff.
    chunks, memory_limit, kernel, device, device_memory_limit, verify, planner : optional
        As for `fourier_filter`.

    Returns
    -------
    dask.array.Array
        Lazy, of single precision for single-precision `x`. A NaN makes its line or plane NaN.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    See Also
    --------
    fourier_filter : Any function of frequencies.
    highpass, bandpass, bandstop : The other filters by name.

    Examples
    --------
    >>> x = da.ones(8, chunks=4) + da.from_array([1.0, -1.0] * 4, chunks=4)
    >>> lowpass(x, 0.1, edge="sharp").compute().round(6)
    array([1., 1., 1., 1., 1., 1., 1., 1.])
    """
    passband = parse_passband(
        "lowpass",
        cutoff,
        by=by,
        edge=edge,
        order=order,
        width=width,
    )
    return _filtered(
        x,
        passband,
        by,
        axes,
        spacing,
        options,
    )


@keeps_rows()
def highpass(
    x: Any,
    cutoff: float,
    axes: Axes = None,
    *,
    spacing: Spacing = 1.0,
    by: By = "frequency",
    edge: Edge = "gaussian",
    order: int = 4,
    width: float = 0.2,
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return an array without its low frequencies and its mean.

    Parameters
    ----------
    x, cutoff, axes, spacing, by, edge, order, width, chunks, ..., planner
        See `lowpass`. Both filters add up to 1, but for "butterworth" and, with "sharp", for the
        cutoff itself, which both of them keep.

    Returns
    -------
    dask.array.Array
        Lazy, of single precision for single-precision `x`. A NaN makes its line or plane NaN.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> highpass([3.0, 1.0, 3.0, 1.0], 0.1, edge="sharp").compute().round(6)
    array([ 1., -1.,  1., -1.])
    """
    passband = parse_passband(
        "highpass",
        cutoff,
        by=by,
        edge=edge,
        order=order,
        width=width,
    )
    return _filtered(
        x,
        passband,
        by,
        axes,
        spacing,
        options,
    )


@keeps_rows()
def bandpass(
    x: Any,
    band: Any,
    axes: Axes = None,
    *,
    spacing: Spacing = 1.0,
    by: By = "frequency",
    edge: Edge = "gaussian",
    order: int = 4,
    width: float = 0.2,
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return an array with only the frequencies of a band.

    Parameters
    ----------
    x, axes, spacing, by, edge, order, width, chunks, ..., planner
        See `lowpass`.
    band : sequence of two floats
        Both cutoffs, in any order. With the edge "sharp" the band includes both of them.

    Returns
    -------
    dask.array.Array
        Lazy, of single precision for single-precision `x`. A NaN makes its line or plane NaN.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Notes
    -----
    The response is the product of those of `highpass` and `lowpass`.

    Examples
    --------
    >>> bandpass([3.0, 1.0, 3.0, 1.0], (2.0, 3.0), by="period", edge="sharp").compute().round(6)
    array([ 1., -1.,  1., -1.])
    """
    passband = parse_passband(
        "bandpass",
        band,
        by=by,
        edge=edge,
        order=order,
        width=width,
    )
    return _filtered(
        x,
        passband,
        by,
        axes,
        spacing,
        options,
    )


@keeps_rows()
def bandstop(
    x: Any,
    band: Any,
    axes: Axes = None,
    *,
    spacing: Spacing = 1.0,
    by: By = "frequency",
    edge: Edge = "gaussian",
    order: int = 4,
    width: float = 0.2,
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return an array without the frequencies of a band.

    Parameters
    ----------
    x, band, axes, spacing, by, edge, order, width, chunks, ..., planner
        See `bandpass`.

    Returns
    -------
    dask.array.Array
        Lazy: `x` minus what `bandpass` returns, of single precision for single-precision `x`. A NaN
        makes its line or plane NaN.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> bandstop([3.0, 1.0, 3.0, 1.0], (0.4, 0.5), edge="sharp").compute().round(6)
    array([2., 2., 2., 2.])
    """
    passband = parse_passband(
        "bandstop",
        band,
        by=by,
        edge=edge,
        order=order,
        width=width,
    )
    return _filtered(
        x,
        passband,
        by,
        axes,
        spacing,
        options,
    )
