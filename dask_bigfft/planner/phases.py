"""Phases of a plan: rounds and exchanges, as reports and pages of a running transform show them."""

from dataclasses import dataclass, replace

import numpy as np

from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.seconds import flops


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
