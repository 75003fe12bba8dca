"""Blocks in fresh memory, faulted in by those who are about to fill them.

Pages that come one by one come in the order in which tiles are stored across them, where several
threads meet at the same page. So whoever has a block to fill asks here first; all threads that do
so share the pages out among them, in large parts.

Imports `events` and `memory`.
"""

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.events import emit
from dask_bigfft.memory import fault_in, lend

__all__ = ["backed", "lend_backed"]

Array = npt.NDArray[Any]


def backed(block: Array) -> Array:
    """Return a block once this thread has had its part of the pages backed by memory.

    Parameters
    ----------
    block : ndarray
        Memory of the arena, or a view of it. Others are returned as they are.
    """
    started = time.perf_counter()
    nbytes = fault_in(block)
    if nbytes:
        emit("prefault", nbytes=nbytes, seconds=time.perf_counter() - started)
    return block


def lend_backed(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return memory of the arena, with its pages there."""
    return backed(lend(shape, dtype))
