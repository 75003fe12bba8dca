"""What many threads cost each other: how long they wait for processors, and for the interpreter.

Probes tell how long threads had a processor for what they copied and transformed, and how long it
took by the clock. What lies between has two causes. Where a machine has fewer processors than
threads that want one, or lends them elsewhere, all work takes longer by a factor. And threads wait
for the interpreter, which is slower while they do, by what it takes to wake one after each copy and
each FFT (`planner.interpreter`): that matters where blocks are small, or cut into many tiles. So
probes of many and of few tiles tell both.

Imports `events`, the planner and this room.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from dask_bigfft.calibration.cpu import HANDLED, Sample, handled
from dask_bigfft.events import SUBPHASES
from dask_bigfft.planner.interpreter import block_seconds
from dask_bigfft.planner.traffic import calls

__all__ = ["in_company"]

#: What the factor may be, since there may be many more threads than processors; seconds to wake.
SLACK, WAKE = (0.9, 64.0), (1e-6, 1e-3)

#: Where one looks for something better than what is known, and how near to it one ends.
AROUND, FINE = tuple(itertools.product((-1, 0, 1), repeat=2)), 1.002

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

    def off(slack: float, wake: float) -> float:
        return sum(
            _cost(math.log(block_seconds(threads, slack * free, needed, wake * often) / taken))
            for free, needed, often, taken in rows)

    begun = itertools.product(_powers(*SLACK), _powers(*WAKE) if threads > 1 else [0.0])
    least, best = min((off(*one), one) for one in begun)
    step = math.sqrt(2)
    while step > FINE:  # it has no derivative
        near = [
            (min(SLACK[1], max(SLACK[0], best[0] * step**a)), min(WAKE[1], best[1] * step**b))
            for a, b in AROUND]
        found, place = min((off(*one), one) for one in near)
        if found < least:
            least, best = found, place
        else:
            step = math.sqrt(step)
    return {"slack": best[0], "wake": best[1]}


def _powers(least: float, most: float) -> list[float]:
    """Powers of two in a range.

    >>> _powers(0.9, 4.0)
    [1.0, 2.0, 4.0]
    """
    return [2.0**power for power in range(-32, 32) if least <= 2.0**power <= most]


def _cost(far: float) -> float:
    """Huber's: squares of what is near, and what is far in proportion."""
    return far**2 if abs(far) < FAR else FAR * (2 * abs(far) - FAR)


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
