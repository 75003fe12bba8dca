"""Blocks on which a round has failed that worked in their memory, as `overwrite_x` permits.

They are neither what they were nor what they were to become, and a scheduler may do the task once
more (``compute(retries=1)``), also on another worker, which it sends the block to. So the block
itself tells: it is filled with a NaN that nothing computes.

Imports `errors`.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import CarrierError

__all__ = ["refuse_spoiled", "spoiling"]

Array = npt.NDArray[Any]

#: The lowest bytes of the NaN, which are 0 in others.
_LOWEST = b"\x6f\xb1"


@lru_cache
def _mark(dtype: np.dtype[Any]) -> Array:
    """One element of a dtype with the NaN, of complex ones as their real part."""
    found = np.full(1, np.nan, dtype)
    found.view(np.uint8)[: len(_LOWEST)] = np.frombuffer(_LOWEST, np.uint8)
    return found


def refuse_spoiled(number: int, block: tuple[int, ...], values: Array) -> None:
    """Stop before a round takes a block on which it has failed in place.

    Parameters
    ----------
    number : int
        Of the round, from 0.
    block : tuple of int
        Which block, for the error.
    values : ndarray
        The block, or a part of it.

    Raises
    ------
    CarrierError
        If it has.
    """
    first = values[(slice(1),) * values.ndim]
    if first.tobytes().startswith(_LOWEST) and np.isnan(first.real).all():
        raise CarrierError(
            f"round {number + 1} failed on block {block} while it worked in its memory, so it "
            "cannot be done again: make the array once more, or leave overwrite_x out"
        )


@contextlib.contextmanager
def spoiling(parts: Callable[[], Iterable[Array]]) -> Iterator[None]:
    """While a round works in memory of its block: what fails leaves all of it marked.

    Parameters
    ----------
    parts : callable
        Returns the arrays that the block is made of.
    """
    try:
        yield
    except BaseException:
        for part in parts():
            part[...] = _mark(part.dtype)
        raise
