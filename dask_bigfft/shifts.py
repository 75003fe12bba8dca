"""Shifts of the zero frequency to the middle and back, alone or as a part of a transform.

The last gather of a transform shifts its result, and the first gather reverts a shift of its input.
The transform then gets a new plan with cyclically shifted layouts. Any other shift is one exchange
between blocks of the same chunks.
"""

from collections.abc import Sequence
from typing import Any, SupportsIndex, cast

import dask.array as da
import numpy as np

from dask_bigfft.arguments import parse_array
from dask_bigfft.decomposition.layout import Layout, plain_layout
from dask_bigfft.front import applied
from dask_bigfft.graph.layer import Origin, origin, transformed_array
from dask_bigfft.planner.plan import Offsets, Plan, ShiftPlan, offsets_of, rolled, shifted_plan
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
        For what is not allowed.

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
        For what is not allowed.

    Examples
    --------
    >>> ifftshift([-2, -1, 0, 1, 2]).compute()
    array([ 0,  1,  2, -2, -1])
    """
    return _shifted(x, axes, up=0)


def _shifted(x: Any, axes: Any, up: int) -> da.Array:
    """Return the array with each axis rolled to begin with its element (n + up) // 2."""
    array = parse_array(x)
    axes = range(array.ndim) if axes is None else parse_several("axes", axes)
    places = parse_axes("axes", axes, array.ndim) if axes else ()
    offsets = {a: (array.shape[a] + up) // 2 % max(array.shape[a], 1) for a in places}
    found = origin(array)
    if found is not None and isinstance(found.plan, Plan):
        if (folded := _folded(array, found, found.plan, offsets)) is not None:
            return folded
    elif found is not None and isinstance(found.plan, ShiftPlan) and found.plan.is_shift:
        array, offsets = found.array, _summed(found.plan.result, offsets)
    offsets = {axis: first for axis, first in offsets.items() if first}
    if not offsets:
        return array
    if type(array._meta) is not np.ndarray or array.dtype.kind not in "biufc":
        back = [-first for first in offsets.values()]
        return cast("da.Array", da.roll(array, back, list(offsets)).rechunk(array.chunks))
    source = plain_layout(array.shape, array.chunks)
    return applied(array, ShiftPlan(source, rolled(source, offsets), array.dtype.str))


def _summed(layout: Layout, offsets: Offsets) -> dict[int, int]:
    """Return the offsets of a layout after a further shift; zero for axes back in place."""
    before = offsets_of(layout)
    sizes = {a: max(layout.axes[a].groups[0].size, 1) for a in {*before, *offsets}}
    return {a: (before.get(a, 0) + offsets.get(a, 0)) % n for a, n in sizes.items()}


def _folded(array: da.Array, found: Origin, plan: Plan, offsets: Offsets) -> da.Array | None:
    """Return a transform's result with the shift made by the transform, if memory allows it.

    The result is None for transforms that overwrite their input, because they cannot run twice, and
    for transforms that return a window of their values.
    """
    if plan.overwrite or plan.spec.windows:
        return None
    wanted = _summed(plan.result, offsets)
    nonzero = {a: first for a, first in wanted.items() if first}
    if offsets_of(plan.result) == nonzero:
        return array
    base = plan if found.known is None else found.known.plan
    back = offsets_of(base.result) == nonzero
    shifted = base if back else shifted_plan(base, {}, wanted)
    if not shifted.fits_memory:
        return None
    return transformed_array(found.array, shifted, found.carrier, found.shared())
