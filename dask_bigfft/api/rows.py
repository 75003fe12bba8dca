"""Slices of the result of a function of rows, where lazy arrays are expressions.

A function of rows computes each row of an array by itself: all values along the axes that its
argument `axes` or `axis` names, at one place of the other axes. A slice along these other axes
becomes the result for a slice of the array. The rest of the index stays behind the function::

    stft(x, axis=1)[3, :, 5]  ->  stft(x[3:4], axis=1)[0, :, 5]
"""

import copy
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import dask
import numpy as np

from dask_bigfft.api.slicing import WHOLE, slice_and_index
from dask_bigfft.dask_private import is_of_dask_array
from dask_bigfft.errors import ArgumentError
from dask_bigfft.kernels.views import is_on_gpu
from dask_bigfft.transforms.spec import parse_axes, parse_several


@dataclass(frozen=True)
class RowCall:
    """Call of a function of rows with an array of dask-array.

    Parameters
    ----------
    function : callable
        The function, which takes arrays of dask-array. Its result has the axes of its first
        argument at the same places.
    arguments : mapping
        Its other arguments by name, without `chunks`.
    sliceable_axes : tuple of int
        Axes that are not those of rows. A slice along them is one of the array, too.
    settings : mapping
        Settings of the package at the time of the call.
    number : int or None
        Number of the array in a tuple that the function returns.
    """

    function: Callable[..., Any]
    arguments: Mapping[str, Any]
    sliceable_axes: tuple[int, ...]
    settings: Mapping[str, Any]
    number: int | None = None

    def of_tuple(self, number: int) -> "RowCall":
        """Return the call for one of the arrays that it returns."""
        return replace(self, number=number)

    def part(self, x: Any, y: Any, index: Sequence[Any]) -> Any:
        """Return a slice of the result by a call for a slice of the array; None if it takes all.

        Parameters
        ----------
        x, y : array
            The first argument of the function, and its result.
        index : sequence of int and slice
            Index of each axis of the result. An index of fewer entries takes other axes whole.
        """
        before = [WHOLE] * y.ndim
        after = [*index, *[WHOLE] * (y.ndim - len(index))]
        for axis in self.sliceable_axes:
            axis_cut = slice_and_index(after[axis], y.shape[axis])
            before[axis] = axis_cut.pushed
            after[axis] = axis_cut.after
        if all(cut == WHOLE for cut in before):
            return None
        pushed = y[tuple(before)]
        if pushed.size == 0:
            return None
        source = x[tuple(before[: x.ndim])]
        try:
            with dask.config.set({"bigfft": self.settings}):
                part = self.function(source, **self.arguments, chunks=pushed.chunks)
        except ArgumentError:  # such as a memory limit that these chunks do not meet
            return None
        if self.number is not None:
            part = part[self.number]
        return part[tuple(after)] if part.chunks == pushed.chunks else None


def row_call(
    function: Callable[..., Any],
    signature: inspect.Signature,
    by_row: tuple[str, ...],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> RowCall | None:
    """Return a call of a function of rows; None if slices of its result are made of all rows.

    They are if the array is not of dask-array or is on a GPU, if the call names no axes, and if an
    argument has other values for each row.

    Parameters
    ----------
    function, signature
        The function, and its signature with each keyword of its options.
    by_row : tuple of str
        Names of arguments that may be arrays with other values for each row.
    args, kwargs
        Its arguments.
    """
    bound = signature.bind(*args, **kwargs)
    first = next(iter(signature.parameters))
    arguments = dict(bound.arguments)
    x = arguments.pop(first)
    bound.apply_defaults()
    named_axes = bound.arguments.get("axes", bound.arguments.get("axis"))
    if named_axes is None or not is_of_dask_array(x) or is_on_gpu(x._meta):
        return None
    row_axes = parse_axes("axes", parse_several("axes", named_axes), x.ndim)
    sliceable_axes = tuple(axis for axis in range(x.ndim) if axis not in row_axes)
    values_by_row = [arguments.get(name) for name in by_row]
    if not all(_is_same_for_rows(values, x.ndim, sliceable_axes) for values in values_by_row):
        return None
    arguments.pop("chunks", None)
    arguments.pop("planner", None)
    settings = copy.deepcopy(dask.config.get("bigfft"))
    # Nothing is measured while an expression is simplified.
    settings["planner"] = {**settings.get("planner", {}), "mode": "estimate"}
    return RowCall(
        function,
        arguments,
        sliceable_axes,
        settings,
    )


def _is_same_for_rows(values: Any, ndim: int, axes: tuple[int, ...]) -> bool:
    """Return whether values that broadcast against an array are the same along some axes of it.

    >>> _is_same_for_rows(np.ones(5), 2, (0,)), _is_same_for_rows([[1], [2]], 2, (0,))
    (True, False)
    """
    lengths = np.shape(values)
    missing = ndim - len(lengths)
    return all(axis < missing or lengths[axis - missing] == 1 for axis in axes)
