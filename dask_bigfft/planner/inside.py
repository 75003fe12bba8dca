"""Plans that may destroy their input: rounds that write back into its blocks."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from dask_bigfft.planner.cost import with_forecast
from dask_bigfft.planner.memory import model_of, peak_host
from dask_bigfft.planner.plan import Plan
from dask_bigfft.transforms.layout import AxisLayout, Layout, size_of


def overwriting(plan: Plan) -> Plan:
    """Return a plan that may destroy its source blocks, with the memory that it then needs."""
    overwriting_plan = replace(plan, overwrite=True)
    expected = plan.expected
    model = model_of(plan)
    peak = expected.peak_host - peak_host(plan, model) + peak_host(overwriting_plan, model)
    return replace(overwriting_plan, expected=replace(expected, peak_host=peak))


def plan_inside(plan: Plan, has_slabs: Callable[[Layout, Layout], bool]) -> Plan | None:
    """Return the plan with its rounds inside the blocks that come in; None if that is impossible.

    Every block of a round has to consist of slabs of the blocks that come in.
    """
    if plan.verify != "none":
        return None
    inside_plan = overwritten(plan)
    if inside_plan is None:
        return None
    for exchange in inside_plan.exchanges[: len(inside_plan.rounds)]:
        if not has_slabs(exchange.source, exchange.target):
            return None
    return with_forecast(inside_plan)


def overwritten(plan: Plan) -> Plan | None:
    """Return the plan with its rounds inside the input blocks; None if that is impossible.

    A round reads its blocks as shards of the input blocks and writes them back to the same places,
    where transformed digits replace the old ones. Nothing is exchanged, and no memory is needed
    beside the data (Lee and Kim, Electronics 12, 2023). The result has the input's chunks, unless
    others are wanted or a split axis has to be put into natural order.
    """
    if not _can_overwrite(plan):
        return None
    inside_plan = replace(plan, inside=True)
    last = inside_plan.input_after(len(plan.rounds))
    pairs = zip(last.axes, plan.result.axes, strict=True)
    if all(axis.digits == result_axis.digits for axis, result_axis in pairs):
        return replace(inside_plan, result=last)
    return inside_plan


def _can_overwrite(plan: Plan) -> bool:
    """Return whether the rounds of a plan can work inside the input blocks, and gain by it."""
    spec = plan.spec
    if spec.transfer or spec.windows:
        return False
    keeps_dtype = spec.kind == "c2c" and np.dtype(spec.dtype) == spec.work_dtype
    if not keeps_dtype or not all(map(_is_plain, plan.source.axes)):
        return False
    if any(program.bluestein or not program.stays for program in plan.programs):
        return False
    return bool(plan.travelling)


def _is_plain(axis: AxisLayout) -> bool:
    """Return whether an axis is flat, and neither shifted, padded nor cropped."""
    if len(axis.groups) != 1 or axis.groups[0].offset:
        return False
    return axis.size == size_of(axis.digits)
