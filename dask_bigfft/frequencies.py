"""Frequencies of a spectrum in either order, as dask arrays."""

import math
from collections.abc import Sequence
from typing import Any, SupportsIndex, cast

import dask.array as da
import numpy as np
import numpy.typing as npt

from dask_bigfft import config
from dask_bigfft.arguments import normalized_chunks
from dask_bigfft.decomposition.factors import MAX_LENGTH, parse_factors, transposed_digits
from dask_bigfft.decomposition.layout import Order, flat_digits
from dask_bigfft.errors import ArgumentTypeError, parse_as, parse_count, raise_invalid
from dask_bigfft.front import transforms_by
from dask_bigfft.graph.layer import origin, uncut
from dask_bigfft.kernels.twiddle import index_of_places
from dask_bigfft.planner.plan import Plan, ShiftPlan
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
) -> da.Array:
    """Return the frequencies of a spectrum in natural or transposed order."""
    length, step = _parse_samples(n, d)
    named = config.get("bigfft.order") if order is None else order
    if parse_orders(named, 1) == ("natural",):
        if digits is not None:
            raise_invalid("digits", digits, "None in natural order", kind=ArgumentTypeError)
        found: tuple[int, ...] = (length,)
    elif digits is None:
        found = transposed_digits(length)
    else:
        found = parse_factors("digits", digits, length)
    return _frequencies(length, step, found, chunks, name == "rfftfreq")


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
        Digits of the spectrum, if the transform was given `digits`. The default are the digits of
        every spectrum of this length.

    Returns
    -------
    dask.array.Array
        Lazy, float64: k / (n d) for frequencies k below n/2, else (k - n) / (n d).

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For what is not allowed.

    Examples
    --------
    >>> fftfreq(6).compute() * 6
    array([ 0.,  1.,  2., -3., -2., -1.])
    >>> fftfreq(6, order="transposed").compute() * 6
    array([ 0.,  2., -2.,  1., -3., -1.])
    """


@_in_order
def rfftfreq() -> None:
    """Return the frequency at each place of the spectrum of real data.

    Parameters
    ----------
    n, d, chunks, order, digits
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
        For what is not allowed.

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
        For axes that were not transformed, and for other arrays, including those computed from a
        spectrum.

    Examples
    --------
    >>> import dask.array as da
    >>> from dask_bigfft.fft import rfft
    >>> frequencies_of(rfft(da.ones(8, chunks=2)), d=0.5).compute()
    array([0.  , 0.25, 0.5 , 0.75, 1.  ])
    """
    if not isinstance(spectrum, da.Array):
        found = type(spectrum).__qualname__
        raise_invalid("spectrum", found, "a dask.array.Array", kind=ArgumentTypeError)
    array, shifted, made = spectrum, dict[int, int](), origin(spectrum)
    if made is not None and isinstance(made.plan, ShiftPlan) and made.plan.is_shift:
        array, shifted = made.array, made.plan.offsets
    made = origin(uncut(array))  # small blocks are cut after the transform, before a shift
    plan = None if made is None else made.plan
    if not isinstance(plan, Plan) or (plan.spec.kind == "c2r" and plan.spec.sign > 0):
        allowed = "a spectrum as a transform returned it; for others fftfreq(n, d, "
        raise_invalid("spectrum", spectrum.name, f"{allowed}spectrum.chunks[axis]), with its order")
    spec = plan.spec
    (place,) = parse_axes("axis", (axis,), spectrum.ndim)
    if place not in spec.axes:
        raise_invalid("axis", axis, f"one of the axes that were transformed: {spec.axes}")
    i = spec.axes.index(place)
    n, natural = spec.lengths[i], spec.orders_out[i] == "natural"
    digits = (n,) if natural else spec.digits_of(place)
    half = spec.kind == "r2c" and place == spec.real_axis
    first = plan.result.axes[place].groups[0].offset + shifted.get(place, 0)
    return _frequencies(*_parse_samples(n, d), digits, spectrum.chunks[place], half, first)


def _parse_samples(n: Any, d: Any) -> tuple[int, float]:
    length = parse_count("n", n, 1, MAX_LENGTH)
    step = parse_as(float, "d", d, "a number other than 0")
    if step == 0 or step != step:
        raise_invalid("d", d, "a number other than 0")
    return length, step


def _frequencies(
    n: int, d: float, digits: tuple[int, ...], chunks: Any, half: bool, first: int = 0
) -> da.Array:
    """Return the frequencies of a spectrum by place, cyclically from place `first` on."""
    stored = flat_digits(0, n, "transposed", real=half, digits=digits)
    count = math.prod(digit.size for digit in stored)
    dtype = np.dtype(float)  # dask names it faster than the class
    cut = normalized_chunks(chunks, chunks, (count,), dtype)
    places = da.arange(count, chunks=cut, dtype=np.int64)
    highest = n // 2 if half else (n - 1) // 2
    arguments = n, d, stored, count, highest, first
    return cast("da.Array", places.map_blocks(_frequency_block, *arguments, dtype=dtype))


def _frequency_block(
    places: Any, n: int, d: float, digits: Any, count: int, highest: int, first: int
) -> npt.NDArray[np.float64]:
    """Return the signed frequency of each place, given the digits of the axis."""
    k = index_of_places(digits, (places + first) % count)
    k[k > highest] -= n
    return np.asarray(k * (1.0 / (n * d)), dtype=np.float64)
