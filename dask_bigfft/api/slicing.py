"""Slices of a transform's result as transforms of less, where lazy arrays are expressions.

A library of expressions asks a node whether it can be sliced before it is computed. A slice along
an axis that is not transformed becomes a slice of the input. An interval along a transformed axis
becomes a window of the transform, as a band does. The rest of the index stays behind the
transform::

    fft(x, axis=1)[3, 10:20]  ->  fft(x[3:4], axis=1, window of 10 from 10 on)[0]
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dask_bigfft import config
from dask_bigfft.api.arguments import Extras
from dask_bigfft.api.plans import plan_of_part
from dask_bigfft.errors import PlanError
from dask_bigfft.graph.layer import TransformRecipe, transformed_array
from dask_bigfft.kernels.views import is_on_gpu
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.shifted import has_all_values, offsets_of, shifted_plan
from dask_bigfft.transforms.bands import Window, axis_windows, windows_by_axis
from dask_bigfft.transforms.layout import half
from dask_bigfft.transforms.spec import TransformSpec

#: Keywords of a transform that a slice does not take from it: its plan has them, or it sets them.
_SPECIFIED = ("order", "digits", "band", "band_index", "overwrite_x", "chunks")

#: The whole of an axis.
WHOLE = slice(None)


def slicing_of(extras: Extras) -> "Slicing":
    """Return the slicing of a transform, given its keywords.

    Keywords that are not given are read from the settings now, because these may differ when the
    expression is simplified.
    """
    keywords: Mapping[str, Any] = extras
    options = {}
    for name in Extras.__annotations__:
        if name not in _SPECIFIED:
            options[name] = config.argument(name, keywords.get(name))
    options["planner"] = "estimate"  # nothing is measured while an expression is simplified
    return Slicing(options)


@dataclass(frozen=True)
class Slicing:
    """Plans of slices of a transform's result.

    Parameters
    ----------
    options : mapping
        Keywords of the transform.
    """

    options: Mapping[str, Any]

    def part(
        self,
        x: Any,
        y: Any,
        recipe: TransformRecipe,
        index: Sequence[Any],
        only_reader: bool,
    ) -> Any:
        """Return a slice of a transform's result by a transform of less; None if there is none.

        Parameters
        ----------
        x, y : array
            Source of the transform, and its result.
        recipe : TransformRecipe
            The transform.
        index : sequence of int and slice
            Index of each axis of the result.
        only_reader : bool
            Whether nothing else reads the result. Two intervals of one spectrum would otherwise
            become two transforms of the same input.
        """
        if is_on_gpu(x._meta):
            return None
        plan = recipe.plan
        cuts = divided_index(plan, index, only_reader)
        if cuts is None:
            return None
        source = x[cuts.before(plan.spec)]
        spec = replace(
            plan.spec,
            shape=source.shape,
            windows=axis_windows(cuts.windows),
        )
        options: Any = {**self.options, "chunks": y[cuts.pushed].chunks}
        try:
            part_plan = _shifted_like(plan, plan_of_part(source, spec, **options))
        except PlanError:
            return None
        if part_plan is None:
            return None
        carrier = "auto" if recipe.carrier == "disk" else recipe.carrier
        part = transformed_array(
            source,
            part_plan,
            carrier,
            slicing=self,
        )
        return part[cuts.after]


@dataclass(frozen=True)
class Cuts:
    """Index of a transform's result, divided by the place where it is cut.

    Parameters
    ----------
    pushed : tuple of slice
        Part of the result that the new transform returns.
    windows : mapping of int to (int, int)
        Windows of the new transform by axis.
    after : tuple of int and slice
        Index of that part.
    """

    pushed: tuple[slice, ...]
    windows: Mapping[int, Window]
    after: tuple[Any, ...]

    def before(self, spec: TransformSpec) -> tuple[slice, ...]:
        """Return the index of the input: of axes that are transformed, it takes all values."""
        cuts = list(self.pushed)
        for axis in spec.axes:
            cuts[axis] = WHOLE
        return tuple(cuts)


def divided_index(plan: Plan, index: Sequence[Any], only_reader: bool) -> Cuts | None:
    """Return the parts of an index of a result; None if the transform cannot do any of them.

    An index of fewer entries than the result has axes takes the other axes whole.
    """
    if not _can_return_parts(plan):
        return None
    spec = plan.spec
    missing = len(spec.shape) - len(index)
    full_index = [*index, *itertools.repeat(WHOLE, missing)]
    offsets = offsets_of(plan.result)
    windows = windows_by_axis(spec.windows)
    pushed = []
    after = []
    for axis, cut in enumerate(full_index):
        axis_cut = _cut_of_axis(
            spec,
            axis,
            cut,
            offset=offsets.get(axis, 0),
            only_reader=only_reader,
        )
        if axis_cut is None:
            return None
        if axis_cut.window is not None:
            windows[axis] = axis_cut.window
        pushed.append(axis_cut.pushed)
        after.append(axis_cut.after)
    if all(cut == WHOLE for cut in pushed):
        return None
    return Cuts(tuple(pushed), windows, tuple(after))


def _can_return_parts(plan: Plan) -> bool:
    """Return whether a plan is one of a Fourier transform that leaves its input intact."""
    spec = plan.spec
    is_fourier = plan.is_transform and spec.waves is None and not spec.transfer
    return is_fourier and not plan.overwrite


@dataclass(frozen=True)
class AxisCut:
    """Index of one axis of a transform's result, divided by the place where it is cut.

    Parameters
    ----------
    pushed : slice
        Part of the axis that the new transform returns.
    window : (int, int) or None
        New window of a transformed axis.
    after : int or slice
        Index of that part.
    """

    pushed: slice
    window: Window | None
    after: int | slice


def _cut_of_axis(
    spec: TransformSpec,
    axis: int,
    cut: int | slice,
    offset: int,
    only_reader: bool,
) -> AxisCut | None:
    """Return the parts of an index of one axis; None if there is no transform of less.

    `offset` is the value of the spectrum that the result has first along the axis: the result of a
    transform that is shifted begins with another one than 0.
    """
    whole = range(spec.out_shape[axis])
    axis_cut = slice_and_index(cut, len(whole))
    places = whole[axis_cut.pushed]
    if not places:
        return None
    if axis not in spec.axes:
        return None if offset else axis_cut
    if not _is_possible(spec, axis, places, only_reader):
        axis_cut = AxisCut(WHOLE, None, after=cut)
        places = whole
    if places == whole and not offset:
        return axis_cut
    window = _window(spec, axis, offset + places[0], len(places))
    return None if window is None else replace(axis_cut, window=window)


def slice_and_index(cut: int | slice, length: int) -> AxisCut:
    """Return an index of an axis as a slice of the axis, and an index of that slice.

    Numbers are not negative.

    >>> slice_and_index(3, 8)
    AxisCut(pushed=slice(3, 4, None), window=None, after=0)
    >>> slice_and_index(slice(0, 8), 8)
    AxisCut(pushed=slice(None, None, None), window=None, after=slice(None, None, None))
    """
    pushed = cut if isinstance(cut, slice) else slice(cut, cut + 1)
    after = WHOLE if isinstance(cut, slice) else 0
    whole = range(length)
    if whole[pushed] == whole:
        pushed = WHOLE
    return AxisCut(pushed, None, after)


def _is_possible(
    spec: TransformSpec,
    axis: int,
    places: range,
    only_reader: bool,
) -> bool:
    """Return whether a transform can return some places of a transformed axis alone."""
    _, order = spec.orders_of(axis)
    is_interval = places.step == 1 or len(places) == 1
    return only_reader and order == "natural" and is_interval


def _window(
    spec: TransformSpec,
    axis: int,
    first: int,
    count: int,
) -> Window | None:
    """Return the cyclic window of `count` values from the value `first` on.

    None if they go beyond the end of half a spectrum, whose windows are not cyclic.
    """
    length = spec.length_of(axis)
    is_half = spec.kind == "r2c" and axis == spec.real_axis
    if not is_half:
        return first % length, count
    stored = half(length)
    start = first % stored
    return (start, count) if start + count <= stored else None


def _shifted_like(plan: Plan, part_plan: Plan) -> Plan | None:
    """Return the plan of a part whose input is shifted like that of another plan; None if none."""
    offsets = {} if plan.spec.windows_in else offsets_of(plan.source)
    if not offsets:
        return part_plan
    axes = part_plan.source.axes
    if not all(axis in plan.spec.axes and has_all_values(axes[axis]) for axis in offsets):
        return None
    shifted = shifted_plan(part_plan, offsets, {})
    return shifted if shifted.fits_memory else None
