"""Operations of a round, and of the exchange before it.

Pure: imports `decomposition`.
"""

import math
from collections.abc import Iterator

from dask_bigfft.decomposition.rounds import ExchangeShape, Round
from dask_bigfft.decomposition.steps import Step

__all__ = ["flops", "is_real", "shuffled", "step_flops"]

#: Shards of a connected group from which on, between processes, a shuffle is quicker than tasks.
SHUFFLE_SHARDS = 64


def shuffled(shape: ExchangeShape) -> bool:
    """Return whether an exchange between processes is large enough for a shuffle to pay."""
    return shape.shards >= SHUFFLE_SHARDS * shape.groups


def step_flops(round_: Round) -> Iterator[tuple[Step, float]]:
    """Floating point operations of each step: 5 n log2 n for n complex values."""
    halved = min(round_.source.size, round_.target.size)
    whole = max(round_.source.size, round_.target.size)
    for step in round_.steps:
        passes = 2 if step.convolve is not None else 1
        elements = halved if step.kind == "c2c" else whole / 2
        yield step, passes * 5 * elements * math.log2(max(step.length, 2))


def flops(round_: Round) -> float:
    """Floating point operations of a round's FFTs."""
    return sum(count for _, count in step_flops(round_))


def is_real(round_: Round | None, after: bool = False) -> bool:
    """Return whether the blocks before a round (or after it) are real numbers."""
    kind = "c2r" if after else "r2c"
    return round_ is not None and any(step.kind == kind for step in round_.steps)
