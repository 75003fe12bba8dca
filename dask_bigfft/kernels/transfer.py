"""Products of tiles with transfer functions, which are evaluated where the tile is and not stored.

A tile may have several dimensions for an axis. They are one for the function: the frequencies of an
axis are a vector in the order of the tile.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from dask_bigfft.arrays import Array
from dask_bigfft.kernels.indices import index_table, place_of_index
from dask_bigfft.kernels.views import intervals
from dask_bigfft.tiles.program import Transfer

Slices = tuple[slice, ...]


@dataclass(frozen=True)
class AxisOnTile:
    """Frequencies of an axis in a tile.

    Parameters
    ----------
    indices : ndarray
        Indices 0 to N - 1 of the frequencies, or of the elements if the axis is not transformed, as
        int64. They have the axes of the spectrum and are broadcast along all but this one. Long
        ones are on the device of the tile, others in host memory.
    middle : int or None
        Place of the index N/2 along the axis, where the tile has it and N is even.
    """

    indices: Array
    middle: int | None


class TileTransfer(Protocol):
    """Transfer function at the frequencies of a tile."""

    def values(self, part: Slices, dtype: np.dtype[Any]) -> Array:
        """Return the values in a part of the spectrum of the tile, which broadcast against it.

        They have the precision of the spectrum's dtype, and may be real.
        """

    def require_finite(self) -> None:
        """Wait for a device, and raise an error if values there were not finite.

        Values in host memory are checked before they are returned.
        """


class TransferValues(Protocol):
    """Transfer function of an operator."""

    def on_tile(self, axes: Mapping[int, AxisOnTile], like: Array) -> TileTransfer:
        """Return the function at the frequencies of a tile.

        Parameters
        ----------
        axes : mapping of int to AxisOnTile
            Frequencies of each axis of the spectrum.
        like : array
            Array on the device of the values.
        """


#: Elements of a tile that are multiplied by a transfer function at a time. Its values in double
#: precision and those on the way to them stay in a core's cache.
TRANSFER_SIZE = 1 << 15

#: Indices of an axis in a tile from which they are computed on the device of the tile. It takes
#: longer to launch some operations than to compute fewer indices and to copy them.
LONG = 1 << 16


@dataclass(frozen=True)
class BoundTransfer:
    """Product with a transfer function, for one block or tile.

    Parameters
    ----------
    operation : Transfer
        The operation.
    transfer : TransferValues
        The transfer function.
    lows : tuple of int
        Position of the first element along each dimension.
    """

    operation: Transfer
    transfer: TransferValues
    lows: tuple[int, ...]

    def within(self, dim: int, part: slice) -> "BoundTransfer":
        """Return the operation for a tile cut along one of the block's dimensions."""
        lows = list(self.lows)
        lows[dim] += part.start
        return replace(self, lows=tuple(lows))

    def apply(self, tile: Array, size: int = TRANSFER_SIZE) -> TileTransfer:
        """Multiply a tile in place by the transfer function, `size` values at a time.

        The tile may be on a GPU, where the function is then evaluated. What is returned tells
        whether its values were finite.
        """
        first_dims = self.operation.first_dims
        shape_by_axis = [tile.shape[a:b] for a, b in itertools.pairwise(first_dims)]
        spectrum = tile.reshape([math.prod(shape) for shape in shape_by_axis])
        tile_transfer = self.transfer.on_tile(self._axes(tile), like=tile)
        for part in _parts(spectrum.shape, size):
            values = tile_transfer.values(part, spectrum.dtype)
            np.multiply(spectrum[part], values, out=spectrum[part])
        if not tile.flags.c_contiguous and not np.may_share_memory(spectrum, tile):
            tile[...] = spectrum.reshape(tile.shape)
        return tile_transfer

    def _axes(self, tile: Array) -> dict[int, AxisOnTile]:
        """Return the frequencies of a tile along each axis."""
        shape = tile.shape
        first_dims = self.operation.first_dims
        axes: dict[int, AxisOnTile] = {}
        for along in self.operation.axes:
            first = first_dims[along.axis]
            behind = first_dims[along.axis + 1]
            lows = self.lows[first:behind]
            counts = shape[first:behind]
            table = index_table(
                along.index,
                first,
                lows,
                counts,
                like=tile if math.prod(counts) >= LONG else None,
            )
            middle = None
            if along.length % 2 == 0:
                middle = place_of_index(
                    along.length // 2,
                    along.index,
                    first,
                    lows,
                    counts,
                )
            broadcast = [1] * (len(first_dims) - 1)
            broadcast[along.axis] = -1
            axes[along.axis] = AxisOnTile(table.reshape(broadcast), middle)
        return axes


def broadcast_part(part: Slices, axis: int) -> Slices:
    """Return a part of an array that is broadcast along all axes but one."""
    return tuple(cut if a == axis else slice(None) for a, cut in enumerate(part))


def _parts(shape: tuple[int, ...], size: int) -> Iterator[Slices]:
    """Yield contiguous parts of an array with about `size` elements.

    >>> list(_parts((2, 3), 2))
    [(slice(0, 1, None), slice(0, 2, None)), (slice(0, 1, None), slice(2, 3, None)), \
(slice(1, 2, None), slice(0, 2, None)), (slice(1, 2, None), slice(2, 3, None))]
    """
    widths: list[int] = []
    remaining = size
    for n in reversed(shape):
        widths.insert(0, max(1, min(n, remaining)))
        remaining //= max(n, 1)
    cuts = [list(intervals(n, width)) for n, width in zip(shape, widths, strict=True)]
    return itertools.product(*cuts)


def in_precision(values: Array, dtype: np.dtype[Any], copy: bool = False) -> Array:
    """Return real or complex values in the precision of a dtype.

    >>> in_precision(np.arange(2.0), np.dtype("c8")).dtype
    dtype('float32')
    """
    is_complex = values.dtype.kind == "c"
    return values.astype(dtype if is_complex else np.empty(0, dtype).real.dtype, copy=copy)
