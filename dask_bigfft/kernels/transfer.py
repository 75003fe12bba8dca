"""Products of tiles with transfer functions, which are evaluated where the tile is and not stored.

A tile may have several dimensions for an axis. They are one for the function: the frequencies of an
axis are a vector in the order of the tile. The values of a lazy array come with the block
(`TransferBlock`), in the order of the block.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, NoReturn, Protocol

import numpy as np

from dask_bigfft.arrays import Array, Block
from dask_bigfft.errors import raise_invalid
from dask_bigfft.kernels.indices import PlaceIndex, axis_index
from dask_bigfft.kernels.products import Slices, in_precision
from dask_bigfft.kernels.views import intervals
from dask_bigfft.tiles.program import AxisFrequencies, Transfer
from dask_bigfft.transforms.layout import Layout
from dask_bigfft.transforms.spec import FactorSpec


@dataclass(frozen=True, eq=False)
class AxisOnTile:
    """Frequencies of an axis in a tile.

    Those of short axes are the same object for all tiles that have them.

    Parameters
    ----------
    shape : tuple of int
        Shape of `indices`: as many axes as the spectrum has, with length 1 but for this one.
    middle : int or None
        Place of the index N/2 along the axis, where the tile has it and N is even.
    values : ndarray, optional
        The indices, where they are known as an array.
    is_in_band : ndarray, optional
        Whether each frequency is in the band of the product, in the shape of `indices`; None if
        there is no band.
    place_index : PlaceIndex, optional
        The indices by the digits of their places, where they are not known as an array.
    like : array, optional
        Array on the device of long indices.
    """

    shape: Block
    middle: int | None
    values: Array | None = None
    is_in_band: Array | None = None
    place_index: PlaceIndex | None = None
    like: Array | None = None

    @property
    def size(self) -> int:
        """Number of frequencies."""
        return math.prod(self.shape)

    @cached_property
    def indices(self) -> Array:
        """Indices 0 to N - 1 of the frequencies, or of elements of an axis that stays, as int64.

        They have the axes of the spectrum and are broadcast along all but this one. Long ones are
        on the device of the tile, others in host memory. Outside of a band they are replaced by the
        first index of the band.
        """
        if self.values is not None:
            return self.values
        assert self.place_index is not None
        table = self.place_index.table(like=self.like if self.size >= LONG else None)
        return table.reshape(self.shape)

    @property
    def host_indices(self) -> Array:
        """The indices in host memory."""
        return in_host_memory(self.indices)


def indices_of_part(
    indices: Mapping[int, Array],
    part: Slices,
) -> dict[int, Array]:
    """Return the indices of a part of a tile along each axis, given those of the tile."""
    return {axis: own[broadcast_part(part, axis)] for axis, own in indices.items()}


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

    def multiply(
        self,
        spectrum: Array,
        part: Slices,
        out: Array,
        scale: float = 1.0,
    ) -> None:
        """Multiply a part of the spectrum of the tile.

        The product, times the scale, is the same part of `out`, which may be the spectrum.
        """
        values = self.values(part, spectrum.dtype)
        product = out[part]
        np.multiply(spectrum[part], values, out=product)
        if scale != 1:
            np.multiply(product, scale, out=product)

    def prepare(self, part: Slices) -> None:
        """Compute values for a part of a tile on a GPU, before the spectrum is there.

        `multiply` follows for the same parts in the same order. Without a call before, `multiply`
        computes them.
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


#: Elements of a tile that are multiplied by a transfer function at a time: all those of a usual
#: tile. Each call of the function needs the GIL a dozen times. With parts of an eighth two threads
#: took 1.04 to 1.18 times as long for a filter, although their values stay in cache.
TRANSFER_SIZE = 1 << 18

#: Frequencies of an axis in a tile up to which they are cached: the next tiles often have the same.
SHORT = 1 << 13

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
    origin : tuple of int
        Position of the first element along each dimension.
    """

    operation: Transfer
    transfer: TransferValues
    origin: tuple[int, ...]

    def within(self, dim: int, part: slice) -> "BoundTransfer":
        """Return the operation for a tile cut along one of the block's dimensions."""
        origin = list(self.origin)
        origin[dim] += part.start
        return replace(self, origin=tuple(origin))

    def on_tile(self, tile: Array, size: int = TRANSFER_SIZE) -> "TileProduct":
        """Return the product with a tile, `size` values at a time.

        The tile may be on a GPU, where the function is then evaluated.
        """
        dims_of_axes = itertools.pairwise(self.operation.first_dims)
        lengths = [math.prod(tile.shape[first:end]) for first, end in dims_of_axes]
        axes: dict[int, AxisOnTile] = {}
        is_in_bands: dict[int, Array] = {}
        for frequencies in self.operation.axes:
            on_tile = self._on_tile(frequencies, tile)
            axes[frequencies.axis] = on_tile
            if on_tile.is_in_band is not None:
                is_in_bands[frequencies.axis] = on_tile.is_in_band
        parts: list[Slices] = []
        outside: list[Slices] = []
        for part in contiguous_parts(lengths, size):
            if _is_outside_bands(is_in_bands, part):
                outside.append(part)
            else:
                parts.append(part)
        return TileProduct(
            tile,
            tuple(lengths),
            self.transfer.on_tile(axes, like=tile),
            is_in_bands,
            parts,
            outside,
            self.operation.scale,
        )

    def apply(self, tile: Array) -> None:
        """Multiply a tile in place by the transfer function."""
        self.on_tile(tile).apply()

    def _on_tile(self, frequencies: AxisFrequencies, tile: Array) -> AxisOnTile:
        """Return the frequencies of an axis in a tile."""
        first_dims = self.operation.first_dims
        dims = slice(first_dims[frequencies.axis], first_dims[frequencies.axis + 1])
        shape = tile.shape[dims]
        place_index = PlaceIndex(
            frequencies.index,
            dims.start,
            self.origin[dims],
            shape,
        )
        ndim = len(first_dims) - 1
        if math.prod(shape) <= SHORT and isinstance(tile, np.ndarray):
            return _short_axis_on_tile(frequencies, place_index, ndim)
        return _axis_on_tile(
            frequencies,
            place_index,
            ndim,
            like=tile,
        )


def _axis_on_tile(
    frequencies: AxisFrequencies,
    place_index: PlaceIndex,
    ndim: int,
    like: Array | None = None,
) -> AxisOnTile:
    """Return the frequencies of an axis in a tile.

    The function is not evaluated outside of a band: it gets a frequency of the band there.

    Parameters
    ----------
    frequencies : AxisFrequencies
        The axis.
    place_index : PlaceIndex
        Indices of the frequencies.
    ndim : int
        Number of axes of the spectrum.
    like : array, optional
        The tile, which may be on a GPU.
    """
    shape = [1] * ndim
    shape[frequencies.axis] = math.prod(place_index.shape)
    middle = None
    if frequencies.length % 2 == 0:
        middle = place_index.place_of(frequencies.length // 2)
    on_tile = AxisOnTile(tuple(shape), middle, place_index=place_index, like=like)
    band = frequencies.band
    if band is None:
        return on_tile
    is_in_band = band.contains(on_tile.indices)
    if not band.contains(np.array(frequencies.length // 2)):
        middle = None
    values = np.where(is_in_band, on_tile.indices, band.start)
    return AxisOnTile(on_tile.shape, middle, values, is_in_band)


#: Frequencies of short axes on the last tiles in host memory, at most 2 MiB of indices.
_short_axis_on_tile = lru_cache(maxsize=32)(_axis_on_tile)


@dataclass(frozen=True, eq=False)
class TileProduct:
    """Product of a tile with a transfer function.

    Parameters
    ----------
    tile : array
        The tile, which is multiplied in place.
    lengths : tuple of int
        Shape of the tile with one dimension for each axis.
    transfer : TileTransfer
        The function at the frequencies of the tile.
    is_in_bands : mapping of int to ndarray
        `AxisOnTile.is_in_band` of each axis with a band.
    parts, outside : sequence of tuple of slice
        Parts that are multiplied at a time, and parts outside of the bands, which become zero.
    scale : float
        Number by which the product is multiplied.
    """

    tile: Array
    lengths: tuple[int, ...]
    transfer: TileTransfer
    is_in_bands: Mapping[int, Array]
    parts: Sequence[Slices]
    outside: Sequence[Slices]
    scale: float

    def prepare(self) -> None:
        """Compute values of the function on a GPU, before the spectrum is there."""
        for part in self.parts:
            self.transfer.prepare(part)

    def apply(self) -> None:
        """Multiply the tile."""
        spectrum = self.tile.reshape(self.lengths)
        for part in self.parts:
            self.transfer.multiply(spectrum, part, out=spectrum, scale=self.scale)
        for part in self.outside:
            spectrum[part] = 0
        for is_in_band in self.is_in_bands.values():
            np.copyto(spectrum, 0, where=np.asarray(~is_in_band, like=spectrum))
        is_copy = not self.tile.flags.c_contiguous and not np.may_share_memory(spectrum, self.tile)
        if is_copy:
            self.tile[...] = spectrum.reshape(self.tile.shape)


def _is_outside_bands(is_in_bands: Mapping[int, Array], part: Slices) -> bool:
    """Return True if a part of a tile has no frequency of some band, as far as the host knows.

    Parameters
    ----------
    is_in_bands : mapping of int to ndarray
        `AxisOnTile.is_in_band` of each axis with a band.
    part : tuple of slice
        The part of the tile.
    """
    for axis, is_in_band in is_in_bands.items():
        is_on_host = isinstance(is_in_band, np.ndarray)
        if is_on_host and not is_in_band[broadcast_part(part, axis)].any():
            return True
    return False


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
        shape = [axes[axis].size for axis in sorted(axes)]
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
        return StoredOnTile(
            self._values,
            places={axis: self._places(axis, axes[axis]) for axis in self.axes},
            like=like,
            factor=self.factor,
        )

    @cached_property
    def _values(self) -> Array:
        """The values with one dimension for each axis of the spectrum."""
        shape = [1] * len(self.block)
        for axis in self.axes:
            shape[axis] = math.prod(self.layout.axes[axis].shape(self.block[axis]))
        return self.array.reshape(shape)

    def _places(self, axis: int, on_tile: AxisOnTile) -> slice | Array:
        """Return the places in the block of the frequencies of a tile along an axis.

        Most tiles are rows of the block: then they are a slice, and no index is looked up. On a
        device that is what makes a long axis fast.
        """
        layout = self.layout.axes[axis]
        stage = max(digit.stage for digit in layout.digits)
        block_index = axis_index(layout, self.block[axis], stage)
        size = on_tile.size
        tile_index = on_tile.place_index
        if tile_index is not None:
            first = block_index.place_of(tile_index.first_value())
            assert first is not None  # the block has all frequencies of the tile
            rows = block_index.rows(first, size)
            if rows is not None and rows.has_terms_of(tile_index):
                return slice(first, first + size)
        indices = on_tile.host_indices.ravel()
        block_indices = block_index.table().ravel()
        order = np.argsort(block_indices)
        places: Array = order[np.searchsorted(block_indices, indices, sorter=order)]
        if np.array_equal(places, np.arange(places[0], places[0] + size)):
            return slice(int(places[0]), int(places[0]) + size)
        return places


@dataclass(frozen=True, eq=False)
class StoredOnTile(TileTransfer):
    """Values of an array at the places of a tile.

    Parameters
    ----------
    array : ndarray
        The values; along axes of length 1 they are the same.
    places : mapping of int to slice or ndarray
        Place in the array for each place of the tile, along the axes that the values depend on.
    like : array
        Array on the device of the tile.
    factor : FactorSpec
        Lazy array of which the values are made.
    """

    array: Array
    places: Mapping[int, slice | Array]
    like: Array
    factor: FactorSpec

    def values(self, part: Slices, dtype: np.dtype[Any]) -> Array:
        """Return the values in a part of the spectrum of the tile; see `TileTransfer`."""
        values = self.array
        for axis, places in self.places.items():
            if isinstance(places, slice):
                start, stop, _ = part[axis].indices(places.stop - places.start)
                cut = slice(places.start + start, places.start + stop)
                values = values[(*(slice(None),) * axis, cut)]
            else:
                values = values.take(np.asarray(places[part[axis]], like=values), axis)
        if self.factor.role == "values":
            require_finite(values)
        on_device: Array = np.asarray(in_precision(values, dtype), like=self.like)
        return np.conj(on_device) if self.factor.conjugated else on_device


def require_finite(values: Array) -> None:
    """Raise an error if values of a transfer function that is an array are not finite."""
    if not np.isfinite(values).all():
        raise_not_finite()


def raise_not_finite() -> NoReturn:
    """Raise the error for a transfer function that is an array with values that are not finite."""
    raise_invalid("transfer", "an array with values that are not finite", "finite values")


def in_host_memory(array: Any) -> Array:
    """Return an array of any device as a NumPy array."""
    host: Array = array.get() if hasattr(array, "get") else array
    return host


def values_at(array: Array, places: Mapping[int, Array]) -> Array:
    """Return the values of an array at places along each axis, but for axes of length 1.

    Consecutive places are not copied. All places are within the array.
    """
    values = array
    scattered: dict[int, Array] = {}
    for axis, size in enumerate(array.shape):
        if size == 1:
            continue
        axis_places = places[axis].ravel()
        first = int(axis_places[0]) if axis_places.size else 0
        end = first + axis_places.size
        if np.array_equal(axis_places, np.arange(first, end)):
            outer_axes = (slice(None),) * axis
            values = values[(*outer_axes, slice(first, end))]
        else:
            scattered[axis] = axis_places
    for axis, axis_places in scattered.items():
        values = values.take(np.asarray(axis_places, like=values), axis)
    return values


def contiguous_parts(shape: Sequence[int], size: int) -> Iterator[Slices]:
    """Yield contiguous parts of an array, equally large ones of at most `size` elements.

    >>> list(contiguous_parts((2, 3), 2))
    [(slice(0, 1, None), slice(0, 2, None)), (slice(0, 1, None), slice(2, 3, None)), \
(slice(1, 2, None), slice(0, 2, None)), (slice(1, 2, None), slice(2, 3, None))]
    """
    widths: list[int] = []
    remaining = size
    for length in reversed(shape):
        width = max(1, min(length, remaining))
        widths.append(width)
        remaining //= max(length, 1)
    widths.reverse()
    cuts: list[list[slice]] = []
    for length, width in zip(shape, widths, strict=True):
        count = -(-length // width)
        cuts.append(list(intervals(length, -(-length // count))))
    return itertools.product(*cuts)
