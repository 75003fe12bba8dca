"""Derivatives of periodic arrays, and Poisson's equation, as filters.

A derivative multiplies the spectrum by 2j*pi*f for frequency f.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Unpack

import dask.array as da
import numpy as np

from dask_bigfft.api.arguments import parse_array
from dask_bigfft.api.kinds import keeps_rows
from dask_bigfft.arrays import Array
from dask_bigfft.errors import parse_count
from dask_bigfft.signal.arguments import (
    Axes,
    SignalOptions,
    nonempty,
)
from dask_bigfft.signal.filters import Filter, Spacing, filtered, parse_samples
from dask_bigfft.signal.transfer import TransferFunction
from dask_bigfft.transforms.spec import parse_axes

__all__ = ["derivative", "gradient", "laplacian", "poisson"]


def _filtered(
    array: da.Array,
    axes: tuple[int, ...],
    d: tuple[float, ...],
    factor: Callable[..., Any],
    options: SignalOptions,
    at_zero: complex | None = None,
) -> da.Array:
    """Return the inverse transform of the spectrum of `array` times a function of frequencies.

    At frequency N/2, which has no sign, the function's values for both signs are averaged: odd
    functions are zero there.
    """
    lengths = nonempty(array, axes)
    transfer = TransferFunction(
        factor,
        axes,
        lengths,
        d,
        at_zero,
        balanced=True,
    )
    is_real = array.dtype.kind != "c"
    derivative = Filter(
        transfer,
        axes,
        lengths,
        is_real,
    )
    return filtered(array, derivative, options)


def _derivative(f: Array) -> Any:
    """Return the factor 2j*pi*f of one axis."""
    return 2j * np.pi * f


@dataclass(frozen=True)
class PowerOfDerivative:
    """Factor of the derivative of some order.

    Parameters
    ----------
    order : int
        Order of the derivative.
    """

    order: int

    def __call__(self, frequency: Array) -> Array:
        """Return the factor at some frequencies."""
        factor: Array = _derivative(frequency) ** self.order
        return factor


def _laplace(*frequencies: Array) -> Any:
    """Return the factor -4 pi**2 |f|**2."""
    return -4 * np.pi**2 * sum(f**2 for f in frequencies)


def _inverse_laplace(*frequencies: Array) -> Any:
    """Return the inverse of the factor `_laplace`."""
    return 1 / _laplace(*frequencies)


@keeps_rows()
def gradient(
    x: Any, axes: Axes = None, *, d: Spacing = 1.0, **options: Unpack[SignalOptions]
) -> Any:
    """Return the derivatives of a periodic array along some axes.

    Parameters
    ----------
    x : dask array or array-like
        Samples of one period along each of the axes, without the end point; only read.
    axes : int or sequence of int, optional
        The axes, all by default.
    d : float or sequence of float
        Distance of two samples along all axes, or a sequence with that of each axis in `axes`.
    chunks, memory_limit, kernel, device, device_memory_limit, verify, planner : optional
        `chunks` of the result, by default the input's where these cost no exchange. The others are
        as transforms in `fft` take them, for both transforms.

    Returns
    -------
    dask.array.Array or tuple of dask.array.Array
        One lazy array for one axis (`axes` an integer), else one for each. Exact for frequencies
        below N/2. The derivative at N/2 is not determined by the samples, and is set to 0.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> t = np.arange(8) / 8
    >>> gradient(np.sin(2 * np.pi * t), 0, d=1 / 8).compute().round(3)[0]
    np.float64(6.283)
    """
    array, along, spacing = parse_samples(
        x,
        axes,
        d,
        options,
    )
    derivatives = tuple(
        _filtered(
            array,
            (axis,),
            (step,),
            _derivative,
            options,
        )
        for axis, step in zip(along, spacing, strict=True)
    )
    single = axes is not None and np.ndim(axes) == 0  # type: ignore[arg-type]
    return derivatives[0] if single else derivatives


@keeps_rows()
def derivative(
    x: Any,
    axis: int = -1,
    order: int = 1,
    *,
    d: float = 1.0,
    **options: Unpack[SignalOptions],
) -> da.Array:
    """Return the derivative of some order of a periodic array along one axis.

    Parameters
    ----------
    x : dask array or array-like
        Samples of one period along the axis, without the end point; only read.
    axis : int
        The axis.
    order : int
        Order of the derivative, at least 1.
    d : float
        Distance of two samples.
    chunks, ..., planner
        See `gradient`.

    Returns
    -------
    dask.array.Array
        Lazy, of single precision for single-precision `x`. A NaN makes its line NaN. For odd orders
        the derivative at frequency N/2, which is not determined by the samples, is set to 0.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> t = np.arange(8) / 8
    >>> derivative(np.cos(2 * np.pi * t), order=2, d=1 / 8).compute().round(3)[0]
    np.float64(-39.478)
    """
    array = parse_array(x, "fft")
    along = parse_axes("axis", (axis,), array.ndim)
    array, _, spacing = parse_samples(
        array,
        along,
        d,
        options,
    )
    return _filtered(
        array,
        along,
        spacing,
        PowerOfDerivative(parse_count("order", order, 1, 64)),
        options,
    )


@keeps_rows()
def laplacian(
    x: Any, axes: Axes = None, *, d: Spacing = 1.0, **options: Unpack[SignalOptions]
) -> da.Array:
    """Return the sum of the second derivatives of a periodic array along some axes.

    Parameters
    ----------
    x, axes, d, chunks, ..., planner
        See `gradient`.

    Returns
    -------
    dask.array.Array
        Lazy; one forward and one inverse transform for any number of axes.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> t = np.arange(8) / 8
    >>> laplacian(np.cos(2 * np.pi * t), d=1 / 8).compute().round(3)[0]
    np.float64(-39.478)
    """
    return _filtered(
        *parse_samples(
            x,
            axes,
            d,
            options,
        ),
        _laplace,
        options,
    )


@keeps_rows()
def poisson(
    f: Any, axes: Axes = None, *, d: Spacing = 1.0, **options: Unpack[SignalOptions]
) -> da.Array:
    """Return the array of mean zero whose Laplacian is `f`, on a periodic box.

    Parameters
    ----------
    f : dask array or array-like
        Samples of one period along each of the axes. Its mean is ignored, because the Laplacian of
        a periodic array has mean zero.
    axes, d, chunks, ..., planner
        See `gradient`.

    Returns
    -------
    dask.array.Array
        Lazy; one forward and one inverse transform.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> t = np.arange(8) / 8
    >>> poisson(laplacian(np.cos(2 * np.pi * t), d=1 / 8), d=1 / 8).compute().round(3)[0]
    np.float64(1.0)
    """
    return _filtered(
        *parse_samples(
            f,
            axes,
            d,
            options,
        ),
        _inverse_laplace,
        options,
        at_zero=0,
    )
