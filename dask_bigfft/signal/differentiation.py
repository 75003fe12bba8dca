r"""Derivatives of periodic arrays, and Poisson's equation, by spectra in one pass.

A derivative multiplies the spectrum by 2j*pi*f for frequency f. Spectra stay in the order that
takes the fewest exchanges for both transforms, and blocks are multiplied in place::

    x --exchange, rounds--> spectrum --factor--> --rounds, exchange--> derivative
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import dask.array as da
import numpy as np

from dask_bigfft.api.arguments import parse_array
from dask_bigfft.api.calls import applied, by_block
from dask_bigfft.arrays import Array
from dask_bigfft.errors import ArgumentTypeError, raise_invalid
from dask_bigfft.gpu.on_gpu import on_own_gpu
from dask_bigfft.kernels.views import allocate_like
from dask_bigfft.signal.arguments import (
    Axes,
    SignalOptions,
    nonempty,
    parse_signal_options,
    several_axes,
)
from dask_bigfft.signal.transforms import (
    ProductPhase,
    SpectrumAxis,
    Transforms,
    is_measured,
    planned,
    product_phase,
    spectrum_axes,
    without_measuring,
)

__all__ = ["gradient", "laplacian", "poisson"]

Spacing = float | Sequence[float]


def parse_spacing(d: Any, count: int) -> tuple[float, ...]:
    """Return the sample distance of each axis, from one number or a sequence."""
    one = np.isscalar(d) or getattr(d, "ndim", None) == 0
    several = tuple(d) if isinstance(d, Sequence | np.ndarray) and not one else (d,) * count
    allowed = "a distance of samples above 0, or one for each axis"
    if len(several) != count:
        raise_invalid("d", d, allowed)
    for step in several:
        if not isinstance(step, int | float | np.number) or isinstance(step, bool | np.timedelta64):
            raise_invalid("d", d, allowed, kind=ArgumentTypeError)
        if not 0 < float(step) < math.inf:
            raise_invalid("d", d, allowed)
    return tuple(float(step) for step in several)


def parse_samples(
    x: Any, axes: Axes, d: Any, options: SignalOptions
) -> tuple[da.Array, tuple[int, ...], tuple[float, ...]]:
    """Return an array, the axes of a transform, and the sample distance along each of them."""
    parse_signal_options(options)
    array = parse_array(x, "fft")
    along = several_axes(axes, array.ndim)
    return array, along, parse_spacing(d, len(along))


def _filtered(
    array: da.Array,
    along: tuple[int, ...],
    d: tuple[float, ...],
    factor: Any,
    options: SignalOptions,
) -> da.Array:
    """Return the inverse transform of the spectrum of `array` times a factor."""
    spacing = dict(zip(along, d, strict=True))
    axes = tuple(sorted(along, key=lambda axis: (array.numblocks[axis] == 1, axis)))
    natural = Transforms(axes, nonempty(array, axes), array.dtype.kind != "c")
    transforms, there = planned(array, natural, options)
    spectrum = applied(array, there)
    filtered = by_block(
        _times,
        spectrum,
        dtype=spectrum.dtype,
        factor=factor,
        axes=spectrum_axes(there),
        spacing=[spacing[axis] for axis in axes],
        phase=product_phase(spectrum, there),
    )
    estimated = without_measuring(options)
    back = transforms.inverse(filtered, estimated, {})
    if options.get("chunks") is None:  # the input's chunks, if they cost no exchange
        preserving = transforms.inverse(filtered, {**estimated, "chunks": array.chunks}, {})
        if len(preserving.travelling) <= len(back.travelling):
            back = preserving
            options = {**options, "chunks": array.chunks}
    if is_measured(options):
        back = transforms.inverse(filtered, options, {})
    return applied(filtered, back)


@on_own_gpu
def _times(
    block: Array,
    factor: Callable[..., Any],
    axes: Sequence[SpectrumAxis],
    spacing: Sequence[float],
    phase: ProductPhase,
    block_id: tuple[int, ...],
) -> Any:
    """Return a block of a spectrum times a factor of its frequencies, in periods per sample."""
    with phase.measured(block.nbytes):
        frequencies = [along.index(block_id, block) / along.length for along in axes]
        out = allocate_like(block, block.shape, block.dtype)
        return np.multiply(block, factor(frequencies, spacing), out=out, casting="same_kind")


def _derivative(frequencies: Sequence[Any], spacing: Sequence[float]) -> Any:
    """Return the factor 2j*pi*f of one axis, zero for frequency N/2, which has no sign."""
    (f,) = frequencies
    (d,) = spacing
    return 2j * np.pi * np.where(f == 0.5, 0, f) / d


def _laplace(frequencies: Sequence[Any], spacing: Sequence[float]) -> Any:
    """Return the factor -4 pi**2 |f|**2."""
    return -4 * np.pi**2 * sum((f / d) ** 2 for f, d in zip(frequencies, spacing, strict=True))


def _inverse_laplace(frequencies: Sequence[Any], spacing: Sequence[float]) -> Any:
    """Return the inverse of the factor `_laplace`, with zero for frequency 0."""
    factor = _laplace(frequencies, spacing)
    factor[factor == 0] = np.inf
    return np.divide(1, factor, out=factor)


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
        Distance of two samples, for all axes or for each.
    **options
        `chunks` of the result, `memory_limit`, `kernel`, `device`, `device_memory_limit`, `verify`
        and `planner`, as transforms in `fft` take them, for each of the transforms. The result has
        the input's chunks where these cost no exchange.

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
    array, along, spacing = parse_samples(x, axes, d, options)
    found = tuple(
        _filtered(array, (axis,), (step,), _derivative, options)
        for axis, step in zip(along, spacing, strict=True)
    )
    single = axes is not None and np.ndim(axes) == 0  # type: ignore[arg-type]
    return found[0] if single else found


def laplacian(
    x: Any, axes: Axes = None, *, d: Spacing = 1.0, **options: Unpack[SignalOptions]
) -> da.Array:
    """Return the sum of the second derivatives of a periodic array along some axes.

    Parameters
    ----------
    x, axes, d, **options
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
    return _filtered(*parse_samples(x, axes, d, options), _laplace, options)


def poisson(
    f: Any, axes: Axes = None, *, d: Spacing = 1.0, **options: Unpack[SignalOptions]
) -> da.Array:
    """Return the array of mean zero whose Laplacian is `f`, on a periodic box.

    Parameters
    ----------
    f : dask array or array-like
        Samples of one period along each of the axes. Its mean is ignored, because the Laplacian of
        a periodic array has mean zero.
    axes, d, **options
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
    return _filtered(*parse_samples(f, axes, d, options), _inverse_laplace, options)
