"""Blocks that are poisoned because a round failed while it overwrote them.

With `overwrite_x` a round may fail after it has overwritten part of its block. A scheduler may then
repeat the task (``compute(retries=1)``), even on another worker to which it sends the block. The
block is therefore poisoned: it is filled with a special NaN that no computation produces.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from dask_bigfft.arrays import Array, Block
from dask_bigfft.errors import CarrierError

#: Lowest bytes of the NaN that marks poisoned blocks; they are 0 in other NaNs. Complex values have
#: it as their real part.
_LOWEST = b"\x6f\xb1"


def raise_if_poisoned(number: int, block: Block, values: Array) -> None:
    """Raise if a block is poisoned: a round has failed while it overwrote the block.

    Parameters
    ----------
    number : int
        Number of the round, from 0.
    block : tuple of int
        Index of the block, for the error.
    values : ndarray
        Values of the block, or of a part of it.

    Raises
    ------
    CarrierError
        If the block is poisoned.
    """
    first = values[(slice(1),) * values.ndim]
    if first.tobytes().startswith(_LOWEST) and np.isnan(first.real).all():
        raise CarrierError(
            f"round {number + 1} failed on block {block} while it worked in its memory, so it "
            "cannot be repeated: compute the array again, or leave overwrite_x out"
        )


@contextlib.contextmanager
def poisoning(parts: Callable[[], Iterable[Array]]) -> Iterator[None]:
    """Poison a block if the round that overwrites it fails.

    Parameters
    ----------
    parts : callable
        Returns the arrays that make up the block.
    """
    try:
        yield
    except BaseException:
        for part in parts():
            mark = np.full(1, np.nan, part.dtype)
            mark.view(np.uint8)[: len(_LOWEST)] = np.frombuffer(_LOWEST, np.uint8)
            part[...] = mark
        raise
