"""What many threads cost each other: how long they wait for processors, and for the interpreter.

Probes tell how long threads had a processor for what they copied and transformed, and how long it
took by the clock. What lies between has two causes. Where a machine has fewer processors than
threads that want one, or lends them elsewhere, all work takes longer by a factor. And threads wait
for the interpreter, which is slower while they do, by what it takes to wake one after each copy and
each FFT (`planner.interpreter`): that matters where blocks are small, or cut into many tiles. So
probes of many and of few tiles tell both.

Imports SciPy, `events`, the planner and this room.
"""

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from scipy.optimize import minimize
from scipy.special import huber

from dask_bigfft.calibration.cpu import HANDLED, Sample, handled
from dask_bigfft.events import SUBPHASES
from dask_bigfft.planner.interpreter import block_seconds
from dask_bigfft.planner.traffic import calls

__all__ = ["in_company"]

#: Between what a `Profile`'s `slack` may be, as there may be many more threads than processors, and
#: the seconds of its `wake`.
SLACK, WAKE = (0.9, 64.0), (1e-6, 1e-3)

#: How far off a sample may be, by its logarithm, to count in full: others were held up.
FAR = 0.3


def in_company(
    samples: Sequence[Sample], threads: int, python: Mapping[str, Any]
) -> dict[str, float]:
    """Return how long threads wait for each other, by the names of a `Profile`'s fields.

    Parameters
    ----------
    samples : sequence of Sample
        What was measured by so many threads.
    threads : int
        Of them.
    python : mapping of str to float
        Seconds of Python for a block, a shard and so on, as `HANDLED` names them.
    """
    rows = [row for sample in samples if (row := _row(sample, python))[0] > 0
            and sample.exchange.target.blocks >= threads]
    if not rows:
        return {"slack": 1.0, "wake": 0.0}

    def off(powers: Iterable[float]) -> float:
        slack, wake = (2.0**power for power in powers)
        logs = [
            math.log(block_seconds(threads, slack * free, needed, wake * often) / taken)
            for free, needed, often, taken in rows]
        return float(huber(FAR, logs).sum())

    bounds = [(math.log2(least), math.log2(most)) for least, most in (SLACK, WAKE)]
    grid = itertools.product(*(range(math.ceil(low), math.ceil(high)) for low, high in bounds))
    # Waiting has kinks, where all threads together take what the interpreter takes.
    found = minimize(off, min(grid, key=off), method="Nelder-Mead", bounds=bounds)
    slack, wake = (2.0 ** float(power) for power in found.x)
    return {"slack": slack, "wake": wake if threads > 1 else 0.0}


def _row(sample: Sample, python: Mapping[str, Any]) -> tuple[float, float, int, float]:
    """Seconds of a block with a processor and with the interpreter, its calls, and the clock's."""
    stage, blocks = sample.stage, sample.exchange.target.blocks
    free = sum(stage.work(part) for part in SUBPHASES) / blocks
    counts = handled(sample)[:-1]
    needed = sum(n * python[name] for n, name in zip(counts, HANDLED, strict=True)) / blocks
    often = 0
    if sample.round is not None and sample.flow is not None:
        often = calls(sample.round, sample.flow)
    return free, needed, often, stage.seconds / blocks
