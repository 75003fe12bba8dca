"""Slices of a transform's result as transforms of less, where lazy arrays are expressions.

A library of expressions asks a node whether it can be sliced before it is computed. A slice along
an axis that is not transformed becomes a slice of the input. An interval along a transformed axis
becomes a window of the transform, as a band does. The rest of the index stays behind the
transform::

    fft(x, axis=1)[3, 10:20]  ->  fft(x[3:4], axis=1, window of 10 from 10 on)[0]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

from dask_bigfft import config
from dask_bigfft.api.arguments import Extras
from dask_bigfft.api.plans import plan_of_part
from dask_bigfft.errors import PlanError
from dask_bigfft.graph.layer import TransformRecipe, transformed_array
from dask_bigfft.kernels.views import is_on_gpu
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.shifted import is_whole, offsets_of, shifted_plan
from dask_bigfft.transforms.bands import Window
from dask_bigfft.transforms.layout import half
from dask_bigfft.transforms.spec import TransformSpec

#: Keywords of a transform that its specification has.
_SPECIFIED = ("order", "digits", "band", "band_index", "overwrite_x", "chunks")

#: The whole of an axis.
WHOLE = slice(None)


def slicing_of(extras: Extras) -> "Slicing":
    """Return the slicing of a transform with some keywords; other ones have the settings of now."""
    given: Mapping[str, Any] = extras
    options = {}
    for name in Extras.__annotations__:
        if name not in _SPECIFIED:
            options[name] = config.argument(name, given.get(name))
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
        plan = recipe.plan
        cuts = None
        if not is_on_gpu(x._meta):
            cuts = divided_index(plan, index, only_reader)
        if cuts is None:
            return None
        source = x[cuts.before(plan.spec)]
        spec = replace(
            plan.spec,
            shape=source.shape,
            windows=tuple((axis, *window) for axis, window in sorted(cuts.windows.items())),
        )
        options: Any = {**self.options, "chunks": y[cuts.pushed].chunks}
        try:
            part_plan = _shifted_like(plan, plan_of_part(source, spec, **options))
        except PlanError:
            return None
        if part_plan is None:
            return None
        part = transformed_array(
            source,
            part_plan,
            "auto" if recipe.carrier == "disk" else recipe.carrier,
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
        """Return the index of the input of a transform."""
        pushed = enumerate(self.pushed)
        return tuple(WHOLE if axis in spec.axes else cut for axis, cut in pushed)


def divided_index(plan: Plan, index: Sequence[Any], only_reader: bool) -> Cuts | None:
    """Return the parts of an index of a result; None if the transform cannot do any of them."""
    spec = plan.spec
    if not plan.is_transform or plan.overwrite or spec.waves is not None or spec.transfer:
        return None
    offsets = offsets_of(plan.result)
    windows = {axis: (start, count) for axis, start, count in spec.windows}
    pushed = []
    after = []
    for axis in range(len(spec.shape)):
        cut = index[axis] if axis < len(index) else WHOLE
        axis_cut = _cut_of_axis(
            spec,
            axis,
            cut,
            offsets.get(axis, 0),
            only_reader,
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
    after: Any


def _cut_of_axis(
    spec: TransformSpec,
    axis: int,
    cut: Any,
    offset: int,
    only_reader: bool,
) -> AxisCut | None:
    """Return the parts of an index of one axis; None if the transform cannot be made anew.

    `offset` is the element that the result has first along the axis.
    """
    whole = range(spec.out_shape[axis])
    is_number = isinstance(cut, Integral)
    interval = slice(cut, cut + 1) if is_number else cut
    places = whole[interval]
    after = 0 if is_number else WHOLE
    if not places or (offset and axis not in spec.axes):
        return None
    if axis in spec.axes and not _is_possible(spec, axis, places, only_reader):
        places = whole
        after = cut
    if places == whole:
        interval = WHOLE
    if axis not in spec.axes or (places == whole and not offset):
        return AxisCut(interval, None, after)
    window = _window(spec, axis, offset + places[0], len(places))
    return None if window is None else AxisCut(interval, window, after)


def _is_possible(
    spec: TransformSpec,
    axis: int,
    places: range,
    only_reader: bool,
) -> bool:
    """Return whether a transform can return some places of a transformed axis alone."""
    is_natural = spec.orders_out[spec.axes.index(axis)] == "natural"
    is_interval = places.step == 1 or len(places) == 1
    return only_reader and is_natural and is_interval


def _window(
    spec: TransformSpec,
    axis: int,
    first: int,
    count: int,
) -> Window | None:
    """Return the cyclic window of some values from a place on; None if half a spectrum wraps."""
    length = spec.lengths[spec.axes.index(axis)]
    if spec.kind != "r2c" or axis != spec.real_axis:
        return first % length, count
    places = half(length)
    start = first % places
    return (start, count) if start + count <= places else None


def _shifted_like(plan: Plan, part_plan: Plan) -> Plan | None:
    """Return the plan of a part whose input is shifted like that of another plan; None if none."""
    offsets = {} if plan.spec.windows_in else offsets_of(plan.source)
    if not offsets:
        return part_plan
    axes = part_plan.source.axes
    if not all(axis in plan.spec.axes and is_whole(axes[axis]) for axis in offsets):
        return None
    shifted = shifted_plan(part_plan, offsets, {})
    return shifted if shifted.fits_memory else None
