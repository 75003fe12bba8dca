"""Frequencies of a spectrum in either order, as dask arrays."""

import math
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex, cast

import dask.array as da
import numpy as np
import numpy.typing as npt

from dask_bigfft import config
from dask_bigfft.api.arguments import normalized_chunks
from dask_bigfft.api.calls import transforms_by
from dask_bigfft.dask_private import functions_of, is_lazy
from dask_bigfft.errors import ArgumentTypeError, parse_as, parse_count, raise_invalid
from dask_bigfft.graph.layer import origin, uncut
from dask_bigfft.kernels.twiddle import index_of_places
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.shifted import Offsets, shift_of
from dask_bigfft.transforms.bands import Spectrum, Window
from dask_bigfft.transforms.factors import MAX_LENGTH, parse_factors, transposed_digits
from dask_bigfft.transforms.layout import Order, flat_digits, size_of
from dask_bigfft.transforms.spec import parse_axes, parse_orders


@transforms_by
def _in_order(
    name: str,
    n: SupportsIndex,
    d: float = 1.0,
    chunks: Any = "auto",
    *,
    order: Order | None = None,
    digits: Sequence[int] | None = None,
    band: tuple[float, float] | None = None,
    band_index: tuple[int, int] | None = None,
) -> da.Array:
    """Return the frequencies of a spectrum in natural or transposed order, or those of a band."""
    length, spacing = _parse_samples(n, d)
    spectrum = Spectrum(length, name == "rfftfreq")
    window = _parse_window(spectrum, spacing, band, band_index)
    chosen_order = config.get("bigfft.order") if order is None else order
    is_natural = parse_orders(chosen_order, 1) == ("natural",)
    if window is not None and not is_natural:
        allowed = "'natural' for a band, which is in ascending order"
        raise_invalid("order", chosen_order, allowed)
    if is_natural:
        if digits is not None:
            raise_invalid(
                "digits",
                digits,
                "None in natural order",
                kind=ArgumentTypeError,
            )
        parsed_digits: tuple[int, ...] = (length,)
    elif digits is None:
        parsed_digits = transposed_digits(length)
    else:
        parsed_digits = parse_factors("digits", digits, length)
    return _frequencies(
        spectrum,
        spacing,
        digits=parsed_digits,
        chunks=chunks,
        window=window,
    )


def _parse_window(
    spectrum: Spectrum,
    spacing: float,
    band: Any,
    band_index: Any,
) -> Window | None:
    """Return the window of a spectrum that a band names, None without a band."""
    if band is not None and band_index is not None:
        raise_invalid("band_index", band_index, "None with a `band`")
    if band_index is not None:
        return spectrum.parse_indices(band_index)
    return None if band is None else spectrum.parse_band(band, spacing)


@_in_order
def fftfreq() -> None:
    """Return the frequency at each place of a spectrum, in cycles per unit of `d`.

    Parameters
    ----------
    n : int
        Length of the transform.
    d : float
        Sample spacing.
    chunks : dask chunks
        Chunks of the result.
    order : {"natural", "transposed"}, optional
        Order of the spectrum; the default is the setting.
    digits : sequence of int, optional
        Digits of the spectrum, if the transform was given `digits`. By default, those of every
        spectrum of this length.
    band : (float, float), optional
        Lowest and highest frequency of a part of the spectrum in ascending order, in cycles per
        unit of `d`.
    band_index : (int, int), optional
        The same by places in ascending order, as transforms take it.

    Returns
    -------
    dask.array.Array
        Lazy, float64: k / (n d) for frequencies k below n/2, else (k - n) / (n d).

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> fftfreq(6).compute() * 6
    array([ 0.,  1.,  2., -3., -2., -1.])
    >>> fftfreq(6, order="transposed").compute() * 6
    array([ 0.,  2., -2.,  1., -3., -1.])
    >>> fftfreq(6, band=(-0.2, 0.4)).compute() * 6
    array([-1.,  0.,  1.,  2.])
    """


@_in_order
def rfftfreq() -> None:
    """Return the frequency at each place of the spectrum of real data.

    Parameters
    ----------
    n, d, chunks, order, digits, band, band_index
        Arguments of `fftfreq`; `n` is the length of the real data.

    Returns
    -------
    dask.array.Array
        Lazy, float64: k / (n d) for k = 0..n//2 in natural order. In transposed order the spectrum
        is the rectangle of N1//2 + 1 by n/N1 places of `dask_bigfft.transposed_index`. Places
        beyond k = n//2 hold conjugates of others, and have (k - n) / (n d).

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> rfftfreq(6).compute() * 6
    array([0., 1., 2., 3.])
    >>> rfftfreq(6, order="transposed").compute() * 6
    array([ 0.,  2., -2.,  1.,  3., -1.])
    """


def frequencies_of(spectrum: da.Array, axis: SupportsIndex = -1, d: float = 1.0) -> da.Array:
    """Return the frequency at each place along an axis of a transform's result.

    Parameters
    ----------
    spectrum : dask.array.Array
        Result of a transform of `dask_bigfft.fft`, possibly shifted. Its plan has the length, the
        order, the digits, half spectra and shifts.
    axis : int
        A transformed axis.
    d : float
        Sample spacing.

    Returns
    -------
    dask.array.Array
        Lazy, float64, of one axis, in the chunks of the spectrum along `axis`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For axes that were not transformed; for other arrays, including those computed from a
        spectrum; and for results of inverse real transforms such as `irfft`, which are no spectra.

    Examples
    --------
    >>> import dask.array as da
    >>> from dask_bigfft.fft import rfft
    >>> frequencies_of(rfft(da.ones(8, chunks=2)), d=0.5).compute()
    array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    if not is_lazy(spectrum):
        type_name = type(spectrum).__qualname__
        raise_invalid(
            "spectrum",
            type_name,
            "a dask.array.Array",
            kind=ArgumentTypeError,
        )
    plan, offsets = _plan_of(spectrum)
    if plan is None:
        allowed = "a spectrum as a transform returned it; for others fftfreq(n, d, "
        allowed += "spectrum.chunks[axis]), with its order"
        raise_invalid("spectrum", spectrum.name, allowed)
    spec = plan.spec
    (dim,) = parse_axes("axis", (axis,), spectrum.ndim)
    if dim not in spec.axes:
        raise_invalid("axis", axis, f"one of the axes that were transformed: {spec.axes}")
    number = spec.axes.index(dim)
    n = spec.lengths[number]
    is_natural = spec.orders_out[number] == "natural"
    _, spacing = _parse_samples(n, d)
    first = plan.result.axes[dim].groups[0].offset
    return _frequencies(
        Spectrum(n, spec.kind == "r2c" and dim == spec.real_axis),
        spacing,
        digits=(n,) if is_natural else spec.digits_of(dim),
        chunks=spectrum.chunks[dim],
        window=(first, spectrum.shape[dim]),
        shift=offsets.get(dim, 0),
        arange=functions_of(spectrum).arange,
    )


def _plan_of(spectrum: da.Array) -> tuple[Plan | None, Offsets]:
    """Return the plan of the transform that made a spectrum, and the shift of the spectrum by axis.

    The plan is None for other arrays, and for results of an inverse real transform, such as
    `irfft`, which have no frequencies. Those of `hfft` have.
    """
    array = spectrum
    offsets: Offsets = {}
    source = origin(spectrum)
    shift = None if source is None else shift_of(source.plan)
    if source is not None and shift is not None:
        array = source.array
        offsets = shift
    source = origin(uncut(array))  # small blocks are cut after the transform, before a shift
    plan = None if source is None else source.plan
    if plan is None or not plan.is_transform:
        return None, offsets
    if plan.spec.kind == "c2r" and plan.spec.sign > 0:
        return None, offsets
    return plan, offsets


def _parse_samples(n: Any, d: Any) -> tuple[int, float]:
    """Return the number of samples and their spacing."""
    length = parse_count("n", n, 1, MAX_LENGTH)
    spacing = parse_as(float, "d", d, "a number other than 0")
    if spacing == 0 or math.isnan(spacing):
        raise_invalid("d", d, "a number other than 0")
    return length, spacing


def _frequencies(
    spectrum: Spectrum,
    d: float,
    digits: tuple[int, ...],
    chunks: Any,
    window: Window | None = None,
    shift: int = 0,
    arange: Callable[..., Any] = da.arange,
) -> da.Array:
    """Return the frequencies of a spectrum by place.

    Parameters
    ----------
    spectrum : Spectrum
        The frequencies.
    d : float
        Sample spacing.
    digits : tuple of int
        Digits of the order.
    chunks
        Chunks of the result.
    window : (int, int), optional
        First place and number of places, cyclically; all by default.
    shift : int
        Place of the window that comes first, which is shifted cyclically.
    arange : callable
        Function that makes lazy arrays of the kind of the result.
    """
    n = spectrum.length
    half = spectrum.is_half
    spectrum_digits = flat_digits(0, n, "transposed", real=half, digits=digits)
    size = size_of(spectrum_digits)
    first, count = window or (0, size)
    dtype = np.dtype(float)  # dask names it faster than the class
    place_chunks = normalized_chunks(chunks, chunks, (count,), dtype)
    places = arange(count, chunks=place_chunks, dtype=np.int64)
    frequencies = places.map_blocks(
        _frequency_block,
        n,
        d,
        spectrum_digits,
        size=size,
        highest=n // 2 if half else (n - 1) // 2,
        window=(first, count),
        shift=shift,
        dtype=dtype,
    )
    return cast("da.Array", frequencies)


def _frequency_block(
    places: Any,
    n: int,
    d: float,
    digits: Any,
    *,
    size: int,
    highest: int,
    window: Window,
    shift: int,
) -> npt.NDArray[np.float64]:
    """Return the signed frequency of each place, given the digits of the axis."""
    first, count = window
    stored_places = first + (places + shift) % count
    k = index_of_places(digits, stored_places % size)
    k[k > highest] -= n
    frequency_step = 1.0 / (n * d)
    return np.asarray(k * frequency_step, dtype=np.float64)
