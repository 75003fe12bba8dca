"""Cost of a plan: tasks by counting, memory by `memory`, seconds by the cost model (`seconds`)."""

import itertools

from dask_bigfft.planner.memory import model_of, operand_bytes, peak_host
from dask_bigfft.planner.merging import merging
from dask_bigfft.planner.plan import Forecast, Plan
from dask_bigfft.planner.seconds import Model

#: Bytes of a task in dask's graph (measured: 2.7 kB).
TASK_NBYTES = 2800

#: Memory of a plan below which a forecast leaves out dask's graph.
SMALL_PLAN_NBYTES = 16 << 20


def graph_nbytes(plan: Plan, tasks: int) -> int:
    """Return the bytes of some tasks in the process of a plan; 0 on a cluster.

    They are 0 for a small plan, too, whose memory they would exceed.
    """
    if plan.machine.workers > 1 or plan.expected.peak_host < SMALL_PLAN_NBYTES:
        return 0
    return tasks * TASK_NBYTES


def scratch_bytes(plan: Plan) -> int:
    """Return the peak bytes of scratch files: those being read and those being written."""
    if plan.storage != "disk":
        return 0
    written = []
    for exchange, moves in zip(plan.exchanges, plan.moves, strict=True):
        written.append(exchange.shard_nbytes if moves else 0)
    # A round reads the files of the exchange before it while it writes those of the next one.
    pairs = itertools.pairwise([0, *written, 0])
    return max(map(sum, pairs)) + operand_bytes(plan)


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
    factor_nbytes = sum(map(exchanged_bytes, _factor_plans(plan)))
    return factor_nbytes + sum(exchange.nbytes for exchange in plan.travelling)


def _flops_of_rounds(plan: Plan, model: Model) -> float:
    """Return the floating point operations of a plan, without those of its operands."""
    return sum(model.flops(round_) for round_ in plan.rounds)


def forecast(plan: Plan, model: Model | None = None) -> Forecast:
    """Return the forecast memory, tasks and seconds of a plan.

    `model` is the cost model of the plan (`model_of`). A search has one for all its plans, which
    have many stages in common; the default is a new one.
    """
    if model is None:
        model = model_of(plan)
    factor_plans = _factor_plans(plan)
    stages = enumerate(plan.forecast_stages, 1)
    rounds = tuple(model.stage(stage, number) for number, stage in stages)
    seconds = plan.machine.profile.start + merging(plan).seconds
    seconds += sum(round_.seconds for round_ in rounds)
    flops = _flops_of_rounds(plan, model)
    for factor_plan in factor_plans:
        factor_model = model_of(factor_plan)
        seconds += sum(factor_model.stage(stage).seconds for stage in factor_plan.forecast_stages)
        flops += _flops_of_rounds(factor_plan, factor_model)
    return Forecast(
        bytes_exchanged=exchanged_bytes(plan),
        peak_host=peak_host(plan, model),
        scratch=scratch_bytes(plan),
        tasks=task_count(plan),
        flops=flops,
        seconds=seconds,
        rounds=rounds,
    )


def with_forecast(plan: Plan, model: Model | None = None) -> Plan:
    """Return a plan with its forecast, for which see `forecast`."""
    return plan.changed(expected=forecast(plan, model))
