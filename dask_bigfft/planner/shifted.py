"""Plans that store axes in another order: shifts, and transforms of shifted arrays."""

from collections.abc import Mapping
from dataclasses import replace

from dask_bigfft.planner.cost import with_forecast
from dask_bigfft.planner.plan import NO_FORECAST, Plan
from dask_bigfft.planner.request import Machine
from dask_bigfft.transforms.layout import AxisLayout, Layout
from dask_bigfft.transforms.spec import rearranged_spec

Offsets = Mapping[int, int]


def rearranging_plan(
    source: Layout,
    result: Layout,
    dtype: str,
    name: str,
    machine: Machine,
    storage: str,
) -> Plan:
    """Return the plan of one exchange that stores some axes in another order, without rounds.

    Parameters
    ----------
    source, result : Layout
        Blocks before and after. A shift cuts both alike and gives the result's axes offsets.
    dtype : str
        Dtype of the elements.
    name : str
        Name of its tasks.
    machine : Machine
        Machine that the plan is made for.
    storage : {"memory", "disk"}
        Storage of the shards.
    """
    plan = Plan(
        spec=rearranged_spec(name, tuple(axis.size for axis in source.axes), dtype),
        programs=(),
        source=source,
        rounds=(),
        result=result,
        variant="auto",
        kernel="scipy",
        machine=machine,
        expected=NO_FORECAST,
        storage=storage,
        device="cpu",
    )
    return with_forecast(plan)


def shift_of(plan: Plan) -> Offsets | None:
    """Return the first element of each axis that a plan shifts; None if it does more than that."""
    if plan.spec.axes:
        return None
    offsets = offsets_of(plan.result)
    return offsets if rolled(plan.source, offsets) == plan.result else None


def offsets_of(layout: Layout) -> dict[int, int]:
    """Return the nonzero offsets by axis."""
    offsets = {a: axis.groups[0].offset for a, axis in enumerate(layout.axes)}
    return {a: offset for a, offset in offsets.items() if offset}


def rolled(layout: Layout, offsets: Offsets) -> Layout:
    """Return the layout with the offsets of some axes set.

    >>> from dask_bigfft.transforms.layout import plain
    >>> offsets_of(rolled(Layout((plain(4, (4,)), plain(6, (3, 3)))), {1: 8}))
    {1: 2}
    """
    axes = list(layout.axes)
    for a, offset in offsets.items():
        group = axes[a].groups[0]
        axes[a] = AxisLayout((replace(group, offset=offset % max(group.size, 1)),))
    return Layout(tuple(axes))


def has_all_values(axis: AxisLayout) -> bool:
    """Return whether an axis of an input has one group of digits, neither padded nor cropped."""
    if len(axis.groups) != 1:
        return False
    (group,) = axis.groups
    return group.stored == group.size


def shifted_plan(plan: Plan, before: Offsets, after: Offsets) -> Plan:
    """Return a plan for an input and a result that are stored shifted.

    Parameters
    ----------
    plan : Plan
        Plan of the same transform without shifts.
    before, after : mapping of int to int
        First element of each axis of the input and of the result. The input's axes are whole.

    Returns
    -------
    Plan
        With its forecast, and with the chunks of `plan`.
    """
    # The source, the layouts before and after each round, and the result. An exchange leads from
    # each even number to the next, and a round from each odd one.
    layouts = [plan.source]
    for round_ in plan.rounds:
        layouts += [round_.source, round_.target]
    layouts.append(plan.result)
    for axis, offset in after.items():
        for i in range(_first_like_result(plan, layouts, axis), len(layouts)):
            layouts[i] = rolled(layouts[i], {axis: offset})
    for axis, offset in before.items():
        for i in range(_last_like_source(plan, layouts, axis) + 1):
            layouts[i] = rolled(layouts[i], {axis: offset})
    rounds_in_layouts = zip(
        plan.rounds,
        layouts[1:-1:2],
        layouts[2:-1:2],
        strict=True,
    )
    rounds = tuple(
        replace(r, source=source, target=target) for r, source, target in rounds_in_layouts
    )
    shifted = plan.changed(
        source=layouts[0],
        rounds=rounds,
        result=layouts[-1],
    )
    return with_forecast(shifted)


def _first_like_result(plan: Plan, layouts: list[Layout], axis: int) -> int:
    """Return the number of the first layout that passes an axis on to the result unchanged."""
    last = len(layouts) - 1
    if not plan.ends_in_round or layouts[last - 1].axes[axis] != layouts[last].axes[axis]:
        return last
    first = last - 1
    while first > 1 and _is_passed_on(
        plan,
        layouts,
        first - 1,
        axis,
    ):
        first -= 1
    return first


def _last_like_source(plan: Plan, layouts: list[Layout], axis: int) -> int:
    """Return the number of the last layout of a round's result like the source along an axis.

    It is 0, that of the source, if the first round transforms the axis.
    """
    last = 0
    end = 2 * (len(plan.rounds) - plan.ends_in_round)
    while (
        last < end
        and _is_passed_on(
            plan,
            layouts,
            last,
            axis,
        )
        and _is_passed_on(
            plan,
            layouts,
            last + 1,
            axis,
        )
    ):
        last += 2
    return last


def _is_passed_on(
    plan: Plan,
    layouts: list[Layout],
    i: int,
    axis: int,
) -> bool:
    """Return whether an axis is the same in layouts i and i + 1, and its blocks stay."""
    if layouts[i].axes[axis] != layouts[i + 1].axes[axis]:
        return False
    number = i // 2
    leads_through_round = i % 2 == 1
    if leads_through_round:
        return all(step.axis != axis for step in plan.rounds[number].steps)
    return number >= len(plan.exchanges) or plan.exchanges[number].local
