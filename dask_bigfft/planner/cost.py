"""Cost of a plan: tasks by counting, memory by `memory`, seconds by the cost model (`seconds`)."""

import itertools
from dataclasses import replace
from typing import Any

from dask_bigfft.planner.memory import model_of, operand_bytes, peak_host
from dask_bigfft.planner.merging import merging
from dask_bigfft.planner.plan import Forecast, Plan
from dask_bigfft.planner.seconds import flops


def scratch_bytes(plan: Plan) -> int:
    """Return the peak bytes of scratch files: those being read and those being written."""
    if plan.storage != "disk":
        return 0
    spilled = [0]
    for exchange, moves in zip(plan.exchanges, plan.moves, strict=True):
        spilled.append(exchange.shard_nbytes if moves else 0)
    spilled.append(0)
    return max(map(sum, itertools.pairwise(spilled))) + operand_bytes(plan)


def task_count(plan: Plan) -> int:
    """Return the number of tasks of the graph."""
    total = 1 + merging(plan).tasks
    if plan.storage == "disk" and plan.moves[0]:
        total += plan.source.blocks  # each writes its shards
    for exchange, moves in zip(plan.exchanges, plan.moves, strict=True):
        total += exchange.shape.blocks_out
        if moves:
            total += exchange.shape.groups
    for number, stage in enumerate(plan.forecast_stages):
        if stage.reads is not None and stage.reads.home == number:
            total += stage.reads.layout.blocks
    return total + sum(map(task_count, _factor_plans(plan)))


def _factor_plans(plan: Plan) -> list[Plan]:
    """Return the plans that bring lazy arrays to the round that multiplies by them."""
    return [
        operand.plan
        for operand in plan.operands
        if operand.plan is not None and operand.factor is not None
    ]


def exchanged_bytes(plan: Plan) -> int:
    """Return the bytes that all exchanges together move, without the padding of bands."""
    if plan.spec.windows_in or plan.spec.windows_between:
        return sum(exchange.moved_nbytes for exchange in plan.travelling)
    of_factors = sum(map(exchanged_bytes, _factor_plans(plan)))
    return of_factors + sum(exchange.nbytes for exchange in plan.travelling)


def forecast(plan: Plan) -> Forecast:
    """Return the forecast memory, tasks and seconds of a plan."""
    model = model_of(plan)
    stages = enumerate(plan.forecast_stages, 1)
    rounds = tuple(model.stage(stage, number) for number, stage in stages)
    start = plan.machine.profile.start
    for factor_plan in _factor_plans(plan):
        factor_model = model_of(factor_plan)
        start += sum(factor_model.stage(stage).seconds for stage in factor_plan.forecast_stages)
    return Forecast(
        bytes_exchanged=exchanged_bytes(plan),
        peak_host=peak_host(plan),
        scratch=scratch_bytes(plan),
        tasks=task_count(plan),
        flops=sum(sum(map(flops, p.rounds)) for p in (plan, *_factor_plans(plan))),
        seconds=start + merging(plan).seconds + sum(round_.seconds for round_ in rounds),
        rounds=rounds,
    )


def with_forecast(plan: Plan, **changes: Any) -> Plan:
    """Return a plan with some changes, and with its forecast."""
    changed_plan = replace(plan, **changes)
    return replace(changed_plan, expected=forecast(changed_plan))
