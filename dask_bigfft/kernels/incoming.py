"""A block on its way into a round: whole, or tile by tile so that a tile is still in cache.

Imports `memory` and this room.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from dask_bigfft.kernels.composite import Composite, Windowed
from dask_bigfft.memory import lend

Array = npt.NDArray[Any]


class Incoming(Protocol):
    """A block on its way in: it can be had tile by tile, so that a tile is still in cache."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    #: The block as it lies in memory, only to be read, where nothing has to be gathered.
    as_is: Array | None
    #: Whether what is gathered is weighed on the way, which costs little there.
    weighs: bool
    #: Sum of squared magnitudes of what was gathered last, if it was weighed.
    energy: float | None

    def composite(self) -> Composite | None:
        """The block as shards of other blocks, only to be read; None where it is not that."""
        ...

    def place(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """Memory for the block after the round."""
        ...

    def whole(self, out: Array | None = None, *, threads: int = 1) -> Array:
        """The block, contiguous and free to overwrite; in `out`, of its shape, if it can be.

        Some threads gather it, if there is something to gather.
        """
        ...

    def tiles(self, dim: int, width: int, out: Array) -> Iterator[tuple[slice, Array]]:
        """Slices along a dimension, each with its values, contiguous and free to overwrite.

        Where the tile may lie in `out` already, it does.
        """
        ...


class Watch(Protocol):
    """What compares a block's tiles before and after a round, each while it is in cache.

    A tile of a round in place is stored when it has been found right, so that it can be gone on
    with.
    """

    #: Whether what goes out is to be weighed on the way, where that costs little.
    weighs: bool
    #: Whether what comes in can be had once more when its result has been stored.
    stays: bool
    #: The block as it lies in memory, contiguous, only to be read, if it stays.
    given: Array | None

    def is_done(self, part: slice) -> bool:
        """Whether a tile has been stored already."""
        ...

    def before(self, tile: Array) -> None:
        """Look at what comes in; the block on its way in knows its energy if it `weighs`."""
        ...

    def after(
        self, result: Array, dim: int, part: slice | None, energy: float | None = None
    ) -> None:
        """Compare the result of the tile that came in last, cut along `dim`.

        `energy` is its sum of squared magnitudes, where it was weighed on the way.
        """
        ...


class Placed(Incoming, Protocol):
    """A block on its way in that only has to be put together."""

    def windowed(self) -> Windowed | None:
        """The block in shards, in digits that it may end within; None where it is not that."""
        ...


class Divisible(Incoming, Protocol):
    """A block on its way in of which several threads, and devices, may each do a part."""

    def divides(self, dim: int) -> bool:
        """Whether parts along a dimension can be had in any order, each for itself."""
        ...

    def filling(self, dim: int, out: Array) -> Callable[[slice], None]:
        """Return what gathers a part along a dimension into its place in `out`, a whole block."""
        ...

    def tiles(
        self, dim: int, width: int, out: Array, cuts: Iterable[slice] | None = None
    ) -> Iterator[tuple[slice, Array]]:
        """As an incoming block has them; `cuts` are the slices that are wanted, if not all."""
        ...


class Whole:
    """A block that is there, whole, and may be overwritten."""

    as_is: Array | None = None
    weighs: bool = False
    energy: float | None = None

    def composite(self) -> Composite | None:
        """There are no shards: the block is whole."""
        return None

    def __init__(self, values: Array) -> None:
        self.values, self.shape, self.dtype = values, values.shape, values.dtype

    def place(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        """The block itself where shape and dtype stay, else lent memory."""
        same = shape == self.shape and dtype == self.dtype
        return self.values if same else lend(shape, dtype)

    def whole(self, out: Array | None = None, *, threads: int = 1) -> Array:
        """The block itself."""
        return self.values

    def tiles(self, dim: int, width: int, out: Array) -> Iterator[tuple[slice, Array]]:
        """Views where they are contiguous, else copies."""
        for part in parts(self.shape[dim], width):
            tile = self.values[(slice(None),) * dim + (part,)]
            yield part, np.ascontiguousarray(tile)


def parts(size: int, width: int) -> Iterator[slice]:
    """Slices of at most `width` that make up `size`."""
    for low in range(0, size, width):
        yield slice(low, min(size, low + width))
