"""Forecasts of each phase of a plan: the cost model, unfolded.

Seconds are those of one thread, threads added up, so that they can be held against the time that
threads report. A plan's forecast in seconds has them side by side.

Pure: imports this room.
"""

import math
from dataclasses import dataclass

import numpy as np

from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.work import flops


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
        Bytes that it makes.
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
        """Speed of one thread by the cost model; 0 where nothing is to be done."""
        return self.nbytes / self.seconds if self.seconds else 0.0


def phase_forecasts(plan: Plan) -> tuple[PhaseForecast, ...]:
    """Return what each phase of a plan is expected to take, in the order in which they come.

    A round's bytes are those of its blocks afterwards. The parts *gather* and *fft* of a round
    follow it; their times are in its own.
    """
    found = []
    for exchange, expected in zip(plan.exchanges, plan.expected.rounds, strict=False):
        number, blocks, gather = expected.index, expected.blocks, expected.gather
        rest = expected.handling
        if number > len(plan.rounds):
            seconds = gather + rest
            found.append(PhaseForecast("unpack", number, blocks, exchange.nbytes, 0.0, seconds))
            continue
        round_ = plan.rounds[number - 1]
        nbytes = round_.target.size * np.dtype(plan.dtypes[2 * number - 1]).itemsize
        work, fft = flops(round_), expected.fft
        if expected.device:
            seconds = gather + rest + blocks * expected.device
            found.append(PhaseForecast("round", number, blocks, nbytes, work, seconds))
            continue
        found += [
            PhaseForecast("round", number, blocks, nbytes, work, gather + fft + rest),
            PhaseForecast("gather", number, blocks, exchange.nbytes, 0.0, gather),
            PhaseForecast("fft", number, blocks, nbytes, work, fft),
        ]
    return tuple(found)


def plan_card(plan: Plan) -> dict[str, object]:
    """Return what a page shows of a plan: names and numbers, nothing else."""
    spec, forecast = plan.spec, plan.expected
    return {
        "name": spec.name,
        "shape": list(spec.shape),
        "dtype": spec.dtype,
        "nbytes": math.prod(spec.shape) * np.dtype(spec.dtype).itemsize,
        "rounds": plan.notation,
        "exchanges": len(plan.travelling),
        "kernel": plan.kernel,
        "variant": plan.variant,
        "forecast": {
            "flops": forecast.flops,
            "seconds": forecast.seconds,
            "peak_host": forecast.peak_host,
            "bytes_exchanged": forecast.bytes_exchanged,
        },
        "memory_limit": plan.machine.memory_limit,
    }
