"""Products of tiles with transfer functions, which are evaluated where the tile is and not stored.

A tile may have several dimensions for an axis. They are one for the function: the frequencies of an
axis are a vector in the order of the tile. The values of a lazy array come with the block
(`TransferBlock`), in the order of the block.
"""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from dask_bigfft.arrays import Array, Block
from dask_bigfft.errors import raise_invalid
from dask_bigfft.kernels.indices import axis_index, index_table, place_of_index
from dask_bigfft.kernels.views import intervals
from dask_bigfft.tiles.program import Transfer, axis_terms
from dask_bigfft.transforms.layout import Layout
from dask_bigfft.transforms.spec import FactorSpec

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


class TileTransfer:
    """Transfer function at the frequencies of a tile.

    A subclass has the `values` that multiply the spectrum, or replaces it by another function of it
    in `multiply`.
    """

    def values(self, part: Slices, dtype: np.dtype[Any]) -> Array:
        """Return the values in a part of the spectrum of the tile, which broadcast against it.

        They have the precision of the spectrum's dtype, and may be real.
        """
        raise NotImplementedError

    def multiply(self, spectrum: Array, part: Slices) -> None:
        """Multiply a part of the spectrum of the tile, in place."""
        values = self.values(part, spectrum.dtype)
        np.multiply(spectrum[part], values, out=spectrum[part])

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


@dataclass(frozen=True, eq=False)
class LazyTransfer:
    """Transfer function of an operator that is made of a lazy array when the graph runs.

    Parameters
    ----------
    array : lazy array
        The array.
    spec : FactorSpec
        The array in the plan of the operator.
    template : TransferValues
        The transfer function without its attribute `array`, which it gets where a task makes it of
        the array as a whole.
    """

    array: Any
    spec: FactorSpec
    template: Any


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
        axes, bands = self._axes(tile)
        tile_transfer = self.transfer.on_tile(axes, like=tile)
        for part in _parts(spectrum.shape, size):
            if bands.is_outside(part):
                spectrum[part] = 0
                continue
            tile_transfer.multiply(spectrum, part)
        bands.clear_others(spectrum)
        if not tile.flags.c_contiguous and not np.may_share_memory(spectrum, tile):
            tile[...] = spectrum.reshape(tile.shape)
        return tile_transfer

    def _axes(self, tile: Array) -> tuple[dict[int, AxisOnTile], "BandsOnTile"]:
        """Return the frequencies of a tile along each axis, and which of them are in a band.

        The function is not evaluated outside of a band: it gets a frequency of the band there.
        """
        shape = tile.shape
        first_dims = self.operation.first_dims
        axes: dict[int, AxisOnTile] = {}
        is_inside: dict[int, Array] = {}
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
            index = table.reshape(broadcast)
            if along.band is not None:
                is_in_band = along.band.contains(index)
                is_inside[along.axis] = is_in_band
                index = np.where(is_in_band, index, along.band.start)
                if not along.band.contains(np.array(along.length // 2)):
                    middle = None
            axes[along.axis] = AxisOnTile(index, middle)
        return axes, BandsOnTile(is_inside)


@dataclass(frozen=True)
class BandsOnTile:
    """Bands of a product at the frequencies of a tile.

    Parameters
    ----------
    is_inside : mapping of int to ndarray
        Whether each frequency along an axis is in its band, in the shape of `AxisOnTile.indices`.
    """

    is_inside: Mapping[int, Array]

    def is_outside(self, part: Slices) -> bool:
        """Return True if no frequency of a part is in all bands, as far as the host knows."""
        return any(
            isinstance(inside, np.ndarray) and not inside[broadcast_part(part, axis)].any()
            for axis, inside in self.is_inside.items()
        )

    def clear_others(self, spectrum: Array) -> None:
        """Set the values outside of the bands to 0."""
        for inside in self.is_inside.values():
            np.copyto(spectrum, 0, where=np.asarray(~inside, like=spectrum))


def broadcast_part(part: Slices, axis: int) -> Slices:
    """Return a part of an array that is broadcast along all axes but one."""
    return tuple(cut if a == axis else slice(None) for a, cut in enumerate(part))


@dataclass(frozen=True)
class OwnSpectrum:
    """Spectrum of the input as its own transfer function.

    Parameters
    ----------
    conjugated : bool
        Whether the function has the conjugates.
    scale : float
        Number by which the spectrum of the rounds is multiplied, which have divided it.
    """

    conjugated: bool
    scale: float

    def on_tile(self, axes: Mapping[int, AxisOnTile], like: Array) -> "OwnTile":
        """Return the values of a tile of the spectrum."""
        shape = [axes[axis].indices.size for axis in sorted(axes)]
        return OwnTile(like.reshape(shape), self)


@dataclass(frozen=True, eq=False)
class OwnTile(TileTransfer):
    """Values of a tile of the spectrum, before the product.

    Parameters
    ----------
    tile : ndarray
        The tile.
    transfer : OwnSpectrum
        The transfer function.
    """

    tile: Array
    transfer: OwnSpectrum

    def values(self, part: Slices, dtype: np.dtype[Any]) -> Array:
        """Return the values in a part of the spectrum of the tile."""
        values: Array = self.tile[part] * dtype.type(self.transfer.scale).real
        return np.conj(values) if self.transfer.conjugated else values


# --- values that are stored -------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TransferBlock:
    """Transfer function whose values in a block are stored, in the order of the block.

    Parameters
    ----------
    array : ndarray
        The values. It has the dimensions of the block for each of `axes`.
    layout : Layout
        All blocks of the spectrum.
    block : tuple of int
        Index of the block.
    axes : tuple of int
        Axes along which the values differ.
    factor : FactorSpec
        Lazy array of which the values are made.
    """

    array: Array
    layout: Layout
    block: Block
    axes: tuple[int, ...]
    factor: FactorSpec

    def on_tile(self, axes: Mapping[int, AxisOnTile], like: Array) -> "StoredOnTile":
        """Return the values in a tile of the block."""
        places: dict[int, Array] = {}
        for axis, own in axes.items():
            index = in_host_memory(own.indices)
            places[axis] = self._places(axis, index) if axis in self.axes else index
        return StoredOnTile(
            self._values,
            places,
            like,
            self.factor,
        )

    @cached_property
    def _values(self) -> Array:
        """The values with one dimension for each axis of the spectrum."""
        shape = [1] * len(self.block)
        for axis in self.axes:
            shape[axis] = math.prod(self.layout.axes[axis].shape(self.block[axis]))
        return self.array.reshape(shape)

    def _places(self, axis: int, index: Array) -> Array:
        """Return the places in the block of the frequencies of a tile along an axis."""
        layout = self.layout.axes[axis]
        number = self.block[axis]
        stage = max(digit.stage for digit in layout.digits)
        of_tile = index.ravel()
        terms = axis_terms(layout, stage, 0)
        lows = [low for low, _ in layout.intervals(number)]
        shape = list(layout.shape(number))
        first = place_of_index(
            int(of_tile[0]),
            terms,
            0,
            lows,
            shape,
        )
        assert first is not None
        cut = next((dim for dim, size in enumerate(shape) if size > 1), 0)
        inner = math.prod(shape[cut + 1 :])
        lows[cut] += first // inner
        shape[cut] = of_tile.size // inner
        table = index_table(
            terms,
            0,
            lows,
            shape,
        ).ravel()
        if first % inner == 0 and np.array_equal(table, of_tile):  # consecutive places
            places = np.arange(first, first + of_tile.size)
        else:
            of_block = axis_index(layout, number, stage)
            order = np.argsort(of_block)
            places = order[np.searchsorted(of_block, of_tile, sorter=order)]
        return places.reshape(index.shape)


@dataclass(frozen=True, eq=False)
class StoredOnTile(TileTransfer):
    """Values of an array at the places of a tile.

    Parameters
    ----------
    array : ndarray
        The values; along axes of length 1 they are the same.
    places : mapping of int to ndarray
        Place in the array for each place of the tile, along each axis.
    like : array
        Array on the device of the tile.
    factor : FactorSpec
        Lazy array of which the values are made.
    """

    array: Array
    places: Mapping[int, Array]
    like: Array
    factor: FactorSpec

    def values(self, part: Slices, dtype: np.dtype[Any]) -> Array:
        """Return the values in a part of the spectrum of the tile; see `TileTransfer`."""
        own_places = {axis: own[broadcast_part(part, axis)] for axis, own in self.places.items()}
        values = taken(self.array, own_places)
        if self.factor.role == "values":
            require_finite(values)
        on_device: Array = np.asarray(in_precision(values, dtype), like=self.like)
        return np.conj(on_device) if self.factor.conjugated else on_device


def require_finite(values: Array) -> None:
    """Raise an error if values of a transfer function that is an array are not finite."""
    if not np.isfinite(values).all():
        raise_invalid("transfer", "an array with values that are not finite", "finite values")


def taken(array: Array, places: Mapping[int, Array]) -> Array:
    """Return the values of an array at places along each axis, but for axes of length 1.

    Consecutive places are not copied.
    """
    values = array
    scattered: list[tuple[int, Array]] = []
    for axis, size in enumerate(array.shape):
        if size == 1:
            continue
        own = places[axis].ravel()
        low = int(own[0]) if own.size else 0
        if np.array_equal(own, np.arange(low, low + own.size)):
            values = values[(*(slice(None),) * axis, slice(low, low + own.size))]
        else:
            scattered.append((axis, own))
    for axis, own in scattered:
        values = values.take(own, axis)
    return values


def in_host_memory(index: Any) -> Array:
    """Return an array as a NumPy array."""
    host: Array = index.get() if hasattr(index, "get") else index
    return host


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
