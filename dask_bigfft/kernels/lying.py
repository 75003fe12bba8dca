"""A block that lies in common memory, as a strided view of it, on its way into a round.

Imports `memory` and this room.
"""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.events import measured
from dask_bigfft.kernels.composite import Composite
from dask_bigfft.kernels.copy import copied
from dask_bigfft.kernels.fresh import lend_backed
from dask_bigfft.kernels.incoming import Incoming, parts
from dask_bigfft.memory import lend

Array = npt.NDArray[Any]


class Lying:
    """A block to be read where it lies, or a part of it at a time from memory of its own.

    Parameters
    ----------
    values : ndarray
        The block, as the round's source layout has it.
    inside : bool
        Whether the round's result takes its place.
    into : ndarray, optional
        Where else the result goes.
    """

    def __init__(self, values: Array, inside: bool = False, into: Array | None = None) -> None:
        self.as_is: Array | None = values
        self.values, self.shape, self.dtype = values, values.shape, values.dtype
        self.into = values if inside else into
        self.weighs = False
        self.energy: float | None = None

    def composite(self) -> Composite | None:
        """There are no shards: the block is whole."""
        return None

    def place(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Memory for the block after the round."""
        return destination(self.into, shape, dtype)

    def turned(self, order: tuple[int, ...]) -> tuple[Incoming, Array] | None:
        """The block with its dimensions in another order, and where its result goes.

        For rounds in its own place only.
        """
        if self.into is not self.values:
            return None
        found = Lying(self.values.transpose(order), inside=True)
        found.weighs = self.weighs
        return found, found.values

    def whole(self, out: Array | None = None, *, threads: int = 1) -> Array:
        """The block in `out` or in memory of its own."""
        if out is self.values:
            self.energy = None
            return out
        return self._copied(lend(self.shape, self.dtype) if out is None else out, self.values)

    def tiles(self, dim: int, width: int, out: Array) -> Iterator[tuple[slice, Array]]:
        """Copies of slices along a dimension, in `out` where they are contiguous there."""
        before, rest = self.shape[:dim], self.shape[dim + 1 :]
        fits = out.shape == self.shape and out.dtype == self.dtype
        dense = fits and out.flags.c_contiguous and math.prod(before) == 1
        inside = dense and not np.may_share_memory(out, self.values)
        if not inside:
            room = lend((min(width, self.shape[dim]) * math.prod((*before, *rest)),), self.dtype)
        for part in parts(self.shape[dim], width):
            where = (slice(None),) * dim + (part,)
            values = self.values[where]
            tile = out[where] if inside else room[: values.size].reshape(values.shape)
            yield part, self._copied(tile, values)

    def _copied(self, target: Array, values: Array) -> Array:
        with measured("gather", target.nbytes):
            self.energy = copied(target, values, self.weighs)
        return target


def destination(into: Array | None, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """The memory that is meant for a block, if it is of its kind, else memory of its own."""
    if into is not None and into.shape == shape and into.dtype == dtype:
        return into
    return lend_backed(shape, dtype)
