"""What a round and the exchange before it have to do, whatever does it.

Pure: imports `decomposition`.
"""

import math
from collections.abc import Iterator

from dask_bigfft.decomposition.layout import Layout
from dask_bigfft.decomposition.rounds import ExchangeShape, Round
from dask_bigfft.decomposition.steps import Step

__all__ = ["flops", "is_real", "is_turned", "shuffled", "step_flops"]

#: Shards of a connected group from which on, between processes, a shuffle is quicker than tasks.
SHUFFLE_SHARDS = 64


def shuffled(shape: ExchangeShape) -> bool:
    """Whether an exchange between processes is large enough for a shuffle to pay."""
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


def _innermost(layout: Layout) -> tuple[int, int, int] | None:
    """Axis, stage and stride of the digit whose values lie next to each other in a block."""
    for number, axis in reversed(list(enumerate(layout.axes))):
        for group in reversed(axis.groups):
            digits = [digit for digit in group.digits if digit.size > 1]
            if digits and max(group.chunks, default=0) > 1:
                return number, digits[-1].stage, digits[-1].stride
    return None


def is_turned(before: Layout, after: Layout) -> bool:
    """Whether rows become columns in an exchange, so that its copies are transposed."""
    return _innermost(before) != _innermost(after)


def is_real(round_: Round | None, after: bool = False) -> bool:
    """Whether the blocks before a round (or after it) are real numbers."""
    kind = "c2r" if after else "r2c"
    return round_ is not None and any(step.kind == kind for step in round_.steps)
