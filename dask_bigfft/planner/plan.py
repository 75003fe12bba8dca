"""`Plan`, with its forecast, explanation and drawing; plans of shifts, and inside the input."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from dask_bigfft.errors import parse_count, parse_type
from dask_bigfft.planner.cost import forecast, with_forecast
from dask_bigfft.planner.explain import draw, explain, in_a_line, summary
from dask_bigfft.planner.plan_data import (
    Forecast,
    Machine,
    PlanData,
)
from dask_bigfft.planner.profile import Profile
from dask_bigfft.planner.seconds import flops
from dask_bigfft.transforms.layout import AxisLayout, Layout
from dask_bigfft.transforms.rounds import Round
from dask_bigfft.transforms.spec import rearranged_spec

#: Bytes of shards that a worker's shuffles hold in memory by distributed's defaults.
SHUFFLE_BUFFERS = (1 << 30) + (100 << 20)


class Plan(PlanData):
    """A transform laid out in rounds and exchanges, with its forecast: see `PlanData`."""

    def forecast(
        self,
        profile: Profile,
        *,
        workers: int = 1,
        threads: int = 1,
        gpus: int = 0,
    ) -> Forecast:
        """Return the forecast of the plan for another machine, real or imagined.

        Rounds that CPU threads and GPUs share are counted as done by GPUs alone, if there are any.

        Parameters
        ----------
        profile : Profile
            Speeds of the machine.
        workers, threads : int
            Processes, and threads of each.
        gpus : int
            GPUs of each process.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            Where a number is not whole, or below 1 (0 for `gpus`).
        """
        parse_count("workers", workers, 1)
        parse_count("threads", threads, 1)
        parse_count("gpus", gpus, 0)
        parse_type(
            "profile",
            profile,
            Profile,
            "a Profile, as calibrate returns",
        )
        machine = Machine(
            memory_limit=None,
            threads=threads,
            workers=workers,
            buffers=SHUFFLE_BUFFERS,
            profile=profile,
            gpus=gpus,
            shared=self.machine.shared and workers == 1,
        )
        return forecast(replace(self, machine=machine))

    explain = explain
    __str__ = summary
    __repr__ = in_a_line
    _repr_html_ = draw


Offsets = Mapping[int, int]


def rearranging_plan(
    source: Layout,
    result: Layout,
    dtype: str,
    name: str = "shift",
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
    """
    nbytes = result.size * np.dtype(dtype).itemsize
    return Plan(
        spec=rearranged_spec(name, tuple(axis.size for axis in source.axes), dtype),
        programs=(),
        source=source,
        rounds=(),
        result=result,
        variant="auto",
        kernel="scipy",
        machine=Machine(),
        expected=Forecast(
            bytes_exchanged=nbytes,
            peak_host=0,
            scratch=nbytes,
            tasks=result.blocks,
            flops=0.0,
            seconds=0.0,
        ),
        device="cpu",
    )


def shift_of(plan: PlanData) -> Offsets | None:
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
    rounds_in_layouts = zip(plan.rounds, layouts[1:-1:2], layouts[2:-1:2], strict=True)
    rounds = tuple(Round(r.steps, source, target) for r, source, target in rounds_in_layouts)
    return with_forecast(
        plan,
        source=layouts[0],
        rounds=rounds,
        result=layouts[-1],
    )


def _first_like_result(plan: Plan, layouts: list[Layout], axis: int) -> int:
    """Return the number of the first layout that passes an axis on to the result unchanged."""
    last = len(layouts) - 1
    if not plan.ends_in_round or layouts[last - 1].axes[axis] != layouts[last].axes[axis]:
        return last
    first = last - 1
    while first > 1 and _is_passed_on(plan, layouts, first - 1, axis):
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
        and _is_passed_on(plan, layouts, last, axis)
        and _is_passed_on(plan, layouts, last + 1, axis)
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


def _can_overwrite(plan: PlanData) -> bool:
    """Return whether the rounds of a plan can work inside the input blocks, and gain by it."""
    spec = plan.spec
    if spec.kind != "c2c" or spec.windows or np.dtype(spec.dtype) != spec.work_dtype:
        return False
    if any(program.bluestein or not program.stays for program in plan.programs):
        return False
    for axis in plan.source.axes:
        if len(axis.groups) != 1 or axis.groups[0].offset:
            return False
        if axis.size != math.prod(digit.size for digit in axis.digits):  # padded or cropped
            return False
    return bool(plan.travelling)


@dataclass(frozen=True)
class PhaseForecast:
    """Forecast of one phase of a plan.

    Parameters
    ----------
    name : str
        ``"round"`` or ``"unpack"``, or a part of a round: ``"gather"``, ``"fft"``.
    index : int
        Number of the round, or of the round that an exchange leads to, from 1.
    count : int
        Number of blocks.
    nbytes : int
        Bytes of its results.
    flops : float
        Floating point operations.
    seconds : float
        Time of one thread that does all of it.
    """

    name: str
    index: int
    count: int
    nbytes: int
    flops: float
    seconds: float

    @property
    def bytes_per_second(self) -> float:
        """Speed of one thread by the cost model; 0 without work."""
        return self.nbytes / self.seconds if self.seconds else 0.0


def phase_forecasts(plan: Plan) -> tuple[PhaseForecast, ...]:
    """Return the forecasts of the phases of a plan, in their order.

    The bytes of a round are those of its results. On CPUs a round is followed by its parts *gather*
    and *fft*, whose time is included in that of the round.
    """
    phases: list[PhaseForecast] = []
    for exchange, expected in zip(plan.exchanges, plan.expected.rounds, strict=False):
        number = expected.index
        gpu_seconds = expected.blocks * expected.device
        exchange_alone = PhaseForecast(
            name="unpack",
            index=number,
            count=expected.blocks,
            nbytes=exchange.nbytes,
            flops=0.0,
            seconds=expected.gather + expected.handling + (gpu_seconds or expected.fft),
        )
        if number > len(plan.rounds):
            phases.append(exchange_alone)
            continue
        round_ = plan.rounds[number - 1]
        itemsize = np.dtype(plan.dtypes[2 * number - 1]).itemsize
        whole_round = replace(
            exchange_alone,
            name="round",
            nbytes=round_.target.size * itemsize,
            flops=flops(round_),
        )
        phases.append(whole_round)
        if not gpu_seconds:
            phases.append(replace(exchange_alone, name="gather", seconds=expected.gather))
            phases.append(replace(whole_round, name="fft", seconds=expected.fft))
    return tuple(phases)


def plan_summary(plan: Plan) -> dict[str, object]:
    """Return the names and numbers of a plan that a page shows."""
    spec = plan.spec
    expected = plan.expected
    return {
        "name": spec.name,
        "title": spec.title,
        "shape": list(spec.shape),
        "dtype": spec.dtype,
        "nbytes": spec.nbytes,
        "rounds": plan.notation,
        "exchanges": len(plan.travelling),
        "kernel": plan.kernel,
        "variant": plan.variant,
        "forecast": {
            "flops": expected.flops,
            "seconds": expected.seconds,
            "peak_host": expected.peak_host,
            "bytes_exchanged": expected.bytes_exchanged,
        },
        "memory_limit": plan.machine.memory_limit,
    }
