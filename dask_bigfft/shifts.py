"""Shifts of the zero frequency to the middle and back, alone or as a part of a transform.

The last gather of a transform shifts its result, and the first gather reverts a shift of its input.
The transform then gets a new plan with cyclically shifted layouts. Any other shift is one exchange
between blocks of the same chunks.
"""

from collections.abc import Sequence
from typing import Any, SupportsIndex

import dask.array as da
import numpy as np

from dask_bigfft.api.arguments import parse_array
from dask_bigfft.api.calls import rearranged
from dask_bigfft.graph.captured import spectrum_layer
from dask_bigfft.graph.layer import Origin, origin, transformed_array
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.shifted import (
    Offsets,
    offsets_of,
    rolled,
    shift_of,
    shifted_plan,
)
from dask_bigfft.transforms.layout import Layout, plain_layout
from dask_bigfft.transforms.spec import parse_axes, parse_several

Axes = SupportsIndex | Sequence[SupportsIndex] | None


def fftshift(x: Any, axes: Axes = None) -> da.Array:
    """Return the array with the zero frequency in the middle of each axis.

    Parameters
    ----------
    x : dask array or array-like
        A spectrum in natural order, of any dtype.
    axes : int or sequence of int, optional
        The axes to shift, by default all.

    Returns
    -------
    dask.array.Array
        Lazy, in the chunks of `x`.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Notes
    -----
    The last gather of a transform shifts its result, or the store of its blocks does. The transform
    gets a new plan for this, and shares all earlier rounds with `x`.

    Examples
    --------
    >>> fftshift([0, 1, 2, -2, -1]).compute()
    array([-2, -1,  0,  1,  2])
    """
    return _shifted(x, axes, up=1)


def ifftshift(x: Any, axes: Axes = None) -> da.Array:
    """Return the inverse of `fftshift`.

    Parameters
    ----------
    x : dask array or array-like
        A spectrum with the zero frequency in the middle.
    axes : int or sequence of int, optional
        The axes to shift, by default all.

    Returns
    -------
    dask.array.Array
        Lazy, in the chunks of `x`. The first gather of a transform of it reverts the shift.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        For invalid arguments.

    Examples
    --------
    >>> ifftshift([-2, -1, 0, 1, 2]).compute()
    array([ 0,  1,  2, -2, -1])
    """
    return _shifted(x, axes, up=0)


def _shifted(x: Any, axes: Any, up: int) -> da.Array:
    """Return the array with each axis rolled to begin with its element (n + up) // 2."""
    array = parse_array(x)
    offsets = {}
    for axis in _parse_axes(axes, array.ndim):
        n = array.shape[axis]
        offsets[axis] = (n + up) // 2 % max(n, 1)
    source = origin(array)
    if source is not None and source.plan.is_transform:
        folded = _folded(array, source, source.plan, offsets)
        if folded is not None:
            return folded
    elif source is not None and shift_of(source.plan) is not None:
        array = source.array
        offsets = _summed(source.plan.result, offsets)
    return _rolled(array, _nonzero(offsets))


def _parse_axes(axes: Any, ndim: int) -> Sequence[int]:
    """Return the axes to shift, by default all."""
    if axes is None:
        return range(ndim)
    several = parse_several("axes", axes)
    return parse_axes("axes", several, ndim) if several else ()


def _rolled(array: da.Array, offsets: Offsets) -> da.Array:
    """Return the array, rolled to begin with the given element of some axes, by an exchange."""
    if not offsets:
        return array
    if type(array._meta) is not np.ndarray or array.dtype.kind not in "biufc":
        shifts = [-first for first in offsets.values()]
        result: da.Array = da.roll(array, shifts, list(offsets)).rechunk(array.chunks)
        return result
    source = plain_layout(array.shape, array.chunks)
    return rearranged(array, source, rolled(source, offsets))


def _summed(layout: Layout, offsets: Offsets) -> dict[int, int]:
    """Return the offsets of a layout after a further shift; zero for axes back in place."""
    before = offsets_of(layout)
    sums = {}
    for axis in {*before, *offsets}:
        n = max(layout.axes[axis].groups[0].size, 1)
        sums[axis] = (before.get(axis, 0) + offsets.get(axis, 0)) % n
    return sums


def _nonzero(offsets: Offsets) -> dict[int, int]:
    """Return the offsets that are not zero."""
    return {axis: first for axis, first in offsets.items() if first}


def _folded(
    array: da.Array,
    source: Origin,
    plan: Plan,
    offsets: Offsets,
) -> da.Array | None:
    """Return a transform's result with the shift made by the transform, if memory allows it.

    The result is None for transforms that overwrite their input, because they cannot run twice, for
    transforms that return a window of their values, and for operators on two lazy arrays.
    """
    if plan.overwrite or plan.spec.windows or plan.spec.factor is not None:
        return None
    summed = _summed(plan.result, offsets)
    nonzero = _nonzero(summed)
    if offsets_of(plan.result) == nonzero:
        return array
    shifted = plan if source.known is None else source.known.plan
    if offsets_of(shifted.result) != nonzero:
        shifted = shifted_plan(shifted, {}, summed)
    if not shifted.fits_memory:
        return None
    result = transformed_array(
        source.array,
        shifted,
        source.carrier,
        source.shared(),
        transfer=source.transfer,
        slicing=source.slicing,
    )
    layer = spectrum_layer(result)
    if layer is not None:
        layer.unshifted = source.layer
    return result
