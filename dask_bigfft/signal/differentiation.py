r"""Derivatives of periodic arrays, and Poisson's equation, through spectra in one pass.

A derivative multiplies the spectrum by 2j*pi*f, f being the frequency. Spectra stay in the order
that takes the fewest exchanges there and back, and are multiplied where their blocks lie::

    x --exchange, rounds--> spectrum --factor--> --rounds, exchange--> derivative

Imports `planning` and this room.
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack, cast

import dask.array as da
import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import ArgumentTypeError, refuse
from dask_bigfft.front import applied, by_block
from dask_bigfft.memory import lend
from dask_bigfft.planning.arguments import Options, parse_array, parse_options
from dask_bigfft.signal.arguments import Axes, are_several, nonempty, several_axes
from dask_bigfft.signal.transforms import SpectrumAxis, planned, spectrum_axes

__all__ = ["gradient", "laplacian", "parse_spacing", "poisson"]

Spacing = float | Sequence[float]
Array = npt.NDArray[Any]


def parse_spacing(d: Any, count: int) -> tuple[float, ...]:
    """Return a distance of samples for each axis, from one for all or a sequence."""
    one = np.isscalar(d) or getattr(d, "ndim", None) == 0
    several = tuple(d) if isinstance(d, Sequence | np.ndarray) and not one else (d,) * count
    allowed = "a distance of samples above 0, or one for each axis"
    if len(several) != count:
        refuse("d", d, allowed)
    for step in several:
        if not isinstance(step, int | float | np.number) or isinstance(step, bool | np.timedelta64):
            refuse("d", d, allowed, kind=ArgumentTypeError)
        if not 0 < float(step) < math.inf:
            refuse("d", d, allowed)
    return tuple(float(step) for step in several)


def _filtered(array: da.Array, axes: tuple[int, ...], factor: Any, options: Options) -> Any:
    """The array whose spectrum over some axes is that of `array` times factors."""
    real = array.dtype.kind != "c"
    in_order = tuple(sorted(axes, key=lambda axis: (array.numblocks[axis] == 1, axis)))
    lengths = nonempty(array, in_order)
    transforms, there = planned(array, in_order, lengths, real, options)
    spectrum = applied(array, there)
    where = spectrum_axes(transforms, there)
    made = by_block(_times, spectrum, dtype=spectrum.dtype, factor=factor, axes=where)
    back = transforms.inverse(made, options, {})
    if options.get("chunks") is None:  # in the chunks that came in, where that costs nothing
        kept = transforms.inverse(made, {**options, "chunks": array.chunks}, {})
        back = kept if len(kept.travelling) <= len(back.travelling) else back
    return applied(made, back)


def _times(block: Array, factor: Any, axes: tuple[SpectrumAxis, ...], block_id: Any) -> Array:
    out: Array = lend(block.shape, block.dtype)
    np.multiply(block, factor(axes, block_id, block.ndim), out=out, casting="same_kind")
    return out


def _frequency(
    along: SpectrumAxis, block: tuple[int, ...], spacing: float, ndim: int
) -> npt.NDArray[np.float64]:
    """Frequencies of a block along one axis, to be broadcast over the others."""
    found = along.index(block) / (along.length * spacing)
    return found.reshape(*(-1 if axis == along.axis else 1 for axis in range(ndim)))


def _derivative(axes: tuple[SpectrumAxis, ...], where: Any, ndim: int, spacing: float) -> Any:
    """The factor 2j*pi*f of one axis; of the frequency N/2, which has no sign, zero."""
    (along,) = axes
    factor = 2j * np.pi * _frequency(along, where, spacing, ndim)
    if along.length % 2 == 0:
        middle = along.index(where) == along.length // 2
        factor[middle.reshape(factor.shape)] = 0
    return factor


def _laplace(
    axes: tuple[SpectrumAxis, ...], where: Any, ndim: int, spacing: dict[int, float], inverse: bool
) -> Any:
    """The factor -4 pi**2 |f|**2 of several axes, or its inverse: of the frequency 0, zero."""
    squares: Any = 0.0
    for along in axes:
        squares = squares + _frequency(along, where, spacing[along.axis], ndim) ** 2
    factor = -4 * np.pi**2 * squares
    if not inverse:
        return factor
    zero = factor == 0
    factor[zero] = 1
    return np.where(zero, 0, 1 / factor)


def gradient(x: Any, axes: Axes = None, *, d: Spacing = 1.0, **options: Unpack[Options]) -> Any:
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
        `chunks` of the result, `memory_limit` and `kernel`, as transforms in `fft` take them. The
        result has the input's chunks where these cost no exchange.

    Returns
    -------
    dask.array.Array or tuple of dask.array.Array
        One lazy array for one axis (`axes` an integer), else one for each. Exact for frequencies
        below N/2; a part at N/2 itself has no derivative that the samples know, and gives 0.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For what is not allowed.

    Examples
    --------
    >>> t = np.arange(8) / 8
    >>> gradient(np.sin(2 * np.pi * t), 0, d=1 / 8).compute().round(3)[0]
    np.float64(6.283)
    """
    parse_options(options)
    array = parse_array(x, "fft")
    along = several_axes(axes, array.ndim)
    spacing = parse_spacing(d, len(along))
    found = tuple(
        _filtered(array, (axis,), partial(_derivative, spacing=step), options)
        for axis, step in zip(along, spacing, strict=True)
    )
    return found if axes is None or are_several(axes) else found[0]


def laplacian(
    x: Any, axes: Axes = None, *, d: Spacing = 1.0, **options: Unpack[Options]
) -> da.Array:
    """Return the sum of the second derivatives of a periodic array along some axes.

    Parameters
    ----------
    x, axes, d, **options
        As `gradient` takes them.

    Returns
    -------
    dask.array.Array
        Lazy; one transform there and one back, whatever the number of axes.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For what is not allowed.

    Examples
    --------
    >>> t = np.arange(8) / 8
    >>> laplacian(np.cos(2 * np.pi * t), d=1 / 8).compute().round(3)[0]
    np.float64(-39.478)
    """
    return _by_laplacian(x, axes, d, options, inverse=False)


def poisson(f: Any, axes: Axes = None, *, d: Spacing = 1.0, **options: Unpack[Options]) -> da.Array:
    """Return the array of mean zero whose Laplacian is `f`, on a periodic box.

    Parameters
    ----------
    f : dask array or array-like
        Samples of one period along each of the axes. Its mean, which no periodic array has as its
        Laplacian, is left out.
    axes, d, **options
        As `gradient` takes them.

    Returns
    -------
    dask.array.Array
        Lazy; one transform there and one back.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For what is not allowed.

    Examples
    --------
    >>> t = np.arange(8) / 8
    >>> poisson(laplacian(np.cos(2 * np.pi * t), d=1 / 8), d=1 / 8).compute().round(3)[0]
    np.float64(1.0)
    """
    return _by_laplacian(f, axes, d, options, inverse=True)


def _by_laplacian(x: Any, axes: Axes, d: Spacing, options: Options, *, inverse: bool) -> da.Array:
    parse_options(options)
    array = parse_array(x, "fft")
    along = several_axes(axes, array.ndim)
    spacing = dict(zip(along, parse_spacing(d, len(along)), strict=True))
    factor = partial(_laplace, spacing=spacing, inverse=inverse)
    return cast("da.Array", _filtered(array, along, factor, options))
