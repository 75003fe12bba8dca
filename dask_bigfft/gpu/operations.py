"""Descriptions of operations on a device's arena and views of blocks, without arrays or addresses.

The operations are keys for cached FFT plans and compiled kernels. Offsets count from the start of
a tile's buffer until the executor places the tile in the arena.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dask_bigfft.kernels.transfer import BoundTransfer, TileProduct, TransferValues
from dask_bigfft.tiles.program import ChirpFactor, Term, Twiddle
from dask_bigfft.tiles.program import Transfer as TransferProduct
from dask_bigfft.transforms.steps import Kind

Block = tuple[int, ...]

#: Minimum number of elements that are multiplied by a transfer function at a time. In smaller
#: parts, launches take longer than the work.
LEAST_TRANSFER_SIZE = 1 << 22

#: Maximum number of elements that are multiplied by a transfer function at a time.
MOST_TRANSFER_SIZE = 1 << 26

#: Bytes beside the arena for an element: of its value in double precision, and of those on the way
#: to it.
TRANSFER_NBYTES = 64

#: Bytes of an element's value that is computed before the tile is loaded.
VALUE_NBYTES = 16


@dataclass(frozen=True, slots=True)
class DeviceArray:
    """C-ordered array in the device's arena, dense by default.

    Parameters
    ----------
    offset : int
        Bytes from the start of the arena, a multiple of `ALIGNMENT`.
    shape : tuple of int
        Lengths of the dimensions.
    dtype : str
        As in ``numpy.dtype.str``, such as ``"<c16"``.
    strides : tuple of int, optional
        Strides of a part of a larger array in bytes, for copies to and from the host only.
    """

    offset: int
    shape: Block
    dtype: str
    strides: Block | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return self.size * np.dtype(self.dtype).itemsize

    @property
    def span(self) -> int:
        """Bytes from the first element to the end of the last one."""
        if self.strides is None or not self.size:
            return self.nbytes
        steps = zip(self.shape, self.strides, strict=True)
        last_offset = sum((length - 1) * stride for length, stride in steps)
        return last_offset + np.dtype(self.dtype).itemsize


def dense(shape: Block, itemsize: int) -> Block:
    """Return the strides of a dense C-ordered array in bytes.

    >>> dense((8, 6, 4), 8)
    (192, 32, 8)
    """
    return tuple(itemsize * math.prod(shape[dim + 1 :]) for dim in range(len(shape)))


#: Dimension of a copy: its length, the strides on both sides, and the array axes that it joins.
Dim = tuple[int, int, int, Block]


def joined(dims: Iterable[Dim]) -> list[Dim]:
    """Return the fewest dimensions, without those of length 1.

    Two neighbours are one dimension if the inner one has all places between those of the outer one,
    on both sides.

    >>> joined([(2, 12, 3, (0,)), (3, 4, 1, (1,)), (1, 9, 9, (2,))])
    [(6, 4, 1, (0, 1))]
    """
    joined_dims: list[Dim] = []
    for length, stride, other_stride, axes in dims:
        if length == 1:
            continue
        if joined_dims:
            outer_length, outer_stride, outer_other_stride, outer_axes = joined_dims[-1]
            is_dense = outer_stride == length * stride
            if is_dense and outer_other_stride == length * other_stride:
                joined_dims[-1] = (outer_length * length, stride, other_stride, outer_axes + axes)
                continue
        joined_dims.append((length, stride, other_stride, axes))
    return joined_dims


def offsets(repetition: Iterable[Block]) -> list[tuple[int, int]]:
    """Return the offsets of all repeated rows on both sides, given a repetition as `runs` has it.

    >>> offsets([(2, 100, 10), (3, 5, 1)])
    [(0, 0), (5, 1), (10, 2), (100, 10), (105, 11), (110, 12)]
    """
    pairs = [(0, 0)]
    for count, stride, other_stride in repetition:
        pairs = [
            (start + i * stride, other_start + i * other_stride)
            for start, other_start in pairs
            for i in range(count)
        ]
    return pairs


def runs(
    shape: Block,
    strides: Block,
    itemsize: int,
    other_strides: Block,
) -> tuple[int, list[Block]]:
    """Return the width in bytes of rows that are contiguous on both sides, and their repetition.

    The repetition is (count, stride, stride on the other side), outermost first, in the fewest
    dimensions. A view with a non-contiguous last dimension has rows of one element.

    Parameters
    ----------
    shape : tuple of int
        Shape of the view.
    strides, other_strides : tuple of int
        Strides on both sides in bytes.
    itemsize : int
        Bytes of an element.

    Examples
    --------
    >>> runs((8, 2, 4), (192, 32, 8), 8, (64, 32, 8))
    (64, [(8, 192, 64)])
    >>> runs((8, 6, 1), (192, 32, 8), 8, (48, 8, 8))
    (8, [(48, 32, 8)])
    """
    dims: list[Dim] = []
    for length, stride, other_stride in zip(shape, strides, other_strides, strict=True):
        dims.append((length, stride, other_stride, ()))
    repetition: list[Block] = [dim[:3] for dim in joined(dims)]
    if repetition:
        length, stride, other_stride = repetition[-1]
        if stride == itemsize and other_stride == itemsize:
            return length * itemsize, repetition[:-1]
    return itemsize, repetition


@dataclass(frozen=True, slots=True)
class FFT:
    """FFTs along some dimensions of a dense array, not normalised.

    Parameters
    ----------
    kind : {"c2c", "r2c", "c2r"}
        ``c2c`` works in place or from one array to another; ``r2c`` and ``c2r`` from one array
        to another, and ``c2r`` may overwrite its source.
    source, target : tuple of int
        Shapes before and after.
    dims : tuple of int
        Transformed dimensions in ascending order; the last one is halved.
    sign : {-1, 1}
        Sign in the exponent: always -1 for ``r2c`` and +1 for ``c2r``.
    dtype : str
        Dtype of the complex side.
    """

    kind: Kind
    source: Block
    target: Block
    dims: Block
    sign: int
    dtype: str


@dataclass(frozen=True, slots=True)
class Multiply:
    """Factors of a complex array, applied in place in one pass.

    Each element becomes ``(its conjugate, if conjugate) * scale * every factor``; 0 behind the end
    of a chirp, even for NaN. Factors are computed in double precision. They divide by nothing: that
    is part of the scale.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array.
    dtype : str
        Dtype of the array.
    scale : float
        Factor of all elements.
    conjugate : bool
        True to conjugate the elements first.
    factors : tuple of Twiddle or ChirpFactor
        Factors that depend on the positions of the elements. The product of the indices of a
        twiddle is below its modulus <= 2**53, or below four times that where a chirp zeroes the
        values behind its end.
    origin : tuple of int
        Position of the first element along each dimension; empty for zeros.
    """

    shape: Block
    dtype: str
    scale: float = 1.0
    conjugate: bool = False
    factors: tuple[Twiddle | ChirpFactor, ...] = ()
    origin: Block = ()

    def start(self, term: Term) -> int:
        """Return the position of the first element along the dimension of a term."""
        return self.origin[term.dim] + term.offset if self.origin else term.offset


@dataclass(frozen=True, slots=True)
class Product:
    """Product in place with another array, whose dimensions of length 1 are broadcast."""

    shape: Block
    other: Block
    dtype: str


@dataclass(frozen=True, slots=True)
class Strided:
    """Strided copy of elements between two arrays.

    Element (i, j, ...) of a box is read from ``start + i*strides[0] + j*strides[1] + ...`` of one
    array and written to the like position of the other, in elements. Targets are distinct.

    Parameters
    ----------
    counts : tuple of int
        Shape of the box.
    source, target : tuple of int
        Strides in each array; negative for a reversed dimension.
    source_start, target_start : int
        Position of the first element.
    dtype : str
        Dtype of both arrays.
    by : Multiply, optional
        Factors for an array of shape `counts`, applied during the copy.
    """

    counts: Block
    source: Block
    source_start: int
    target: Block
    target_start: int
    dtype: str
    by: Multiply | None = None

    def backwards(self) -> "Strided":
        """Return the copy in the other direction, with the same factors."""
        return replace(
            self,
            source=self.target,
            source_start=self.target_start,
            target=self.source,
            target_start=self.source_start,
        )


@dataclass(frozen=True, eq=False)
class PendingTransfer:
    """Transfer function whose values on a device are checked when all work has been enqueued.

    Parameters
    ----------
    transfer : TransferValues
        The transfer function.

    Attributes
    ----------
    products : list of TileProduct
        The products whose values are still to be checked.
    """

    transfer: TransferValues
    products: list[TileProduct] = field(default_factory=list, init=False)

    def require_finite(self) -> None:
        """Wait for the products, and raise an error for values on a device that are not finite."""
        while self.products:
            self.products.pop().transfer.require_finite()


def pending(operands: Mapping[int, Any]) -> dict[int, Any]:
    """Return the operands of a round, with transfer functions to be checked by `require_finite`."""
    return {
        number: PendingTransfer(operand) if hasattr(operand, "on_tile") else operand
        for number, operand in operands.items()
    }


@dataclass(frozen=True, slots=True)
class Transfer:
    """Product in place with a transfer function of the frequencies.

    Parameters
    ----------
    shape : tuple of int
        Shape of the array.
    dtype : str
        Dtype of the array.
    product : tiles.program.Transfer
        The frequencies, by their positions.
    origin : tuple of int
        Position of the first element along each dimension.
    function : PendingTransfer, optional
        The transfer function, which is known when the operation is done.
    spare_nbytes : int, optional
        Bytes that its values may need if they are many, by default half of those of the array.
    prepared : TileProduct, optional
        The product, if values of the function were computed before.
    """

    shape: Block
    dtype: str
    product: TransferProduct
    origin: Block
    function: PendingTransfer | None = None
    spare_nbytes: int | None = None
    prepared: TileProduct | None = None

    def prepare(self, values: Any) -> "Transfer":
        """Return the operation, after its function is computed for an array that is not yet loaded.

        Nothing is computed if spare memory is too small for the values.
        """
        spare_nbytes = self._spare_nbytes(values) - VALUE_NBYTES * values.size
        if spare_nbytes < TRANSFER_NBYTES * min(LEAST_TRANSFER_SIZE, values.size):
            return self
        product = self._product(values, spare_nbytes)
        product.prepare()
        return replace(self, prepared=product)

    def apply(self, values: Any) -> None:
        """Multiply an array in memory of the device, in as many parts as spare memory requires."""
        assert self.function is not None
        product = self.prepared
        if product is None:
            product = self._product(values, self._spare_nbytes(values))
        product.apply()
        self.function.products.append(product)

    def _spare_nbytes(self, values: Any) -> int:
        """Return the bytes that values of the function may need."""
        return int(values.nbytes // 2) if self.spare_nbytes is None else self.spare_nbytes

    def _product(self, values: Any, spare_nbytes: int) -> TileProduct:
        """Return the product of an array with the function, in parts that fit spare memory."""
        assert self.function is not None
        bound = BoundTransfer(self.product, self.function.transfer, self.origin)
        size = max(LEAST_TRANSFER_SIZE, spare_nbytes // TRANSFER_NBYTES)
        return bound.on_tile(values, min(size, MOST_TRANSFER_SIZE))


Compute = FFT | Multiply | Product | Strided | Transfer


def transposed(
    shape: Block,
    axes: Block,
    dtype: str,
    by: Multiply | None = None,
) -> Strided:
    """Return a copy with the dimensions in another order: ``target = source.transpose(axes)``.

    >>> transposed((2, 3), (1, 0), "<c16").target
    (1, 2)
    """
    target = [0] * len(shape)
    steps = dense(tuple(shape[axis] for axis in axes), 1)
    for axis, step in zip(axes, steps, strict=True):
        target[axis] = step
    return Strided(
        counts=shape,
        source=dense(shape, 1),
        source_start=0,
        target=tuple(target),
        target_start=0,
        dtype=dtype,
        by=by,
    )
