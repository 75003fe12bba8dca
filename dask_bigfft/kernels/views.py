"""`BlockView`: the location of a block's values and of the result of a round.

A block is one array, or segments of other blocks. An array is read in place, or overwritten if
nobody else uses it. Segments are copied all at once, or tile by tile so that each tile is still in
cache when it is transformed. `exchange` builds views of segments.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.arrays import Array
from dask_bigfft.errors import ArgumentTypeError, has_unit, raise_invalid
from dask_bigfft.events import emit, measured
from dask_bigfft.kernels.copies import CopyTable, copy_array
from dask_bigfft.kernels.segmented import SegmentedView
from dask_bigfft.memory import allocate, fault_in

#: Size in bytes above which several threads gather a block faster than one.
SHARED_NBYTES = 1 << 22


def is_on_gpu(values: Any) -> bool:
    """Return True if an array is in the memory of a CUDA device."""
    # CuPy's arrays have the interface, and take microseconds to describe it.
    return type(values).__module__ == "cupy" or hasattr(values, "__cuda_array_interface__")


def refuse_wrapped(values: Any, index: tuple[int, ...]) -> None:
    """Raise an error for a block that is more than an array: masked, sparse, or with a unit.

    Parameters
    ----------
    values
        The block.
    index
        Its index in the dask array `a`, for the message.

    Raises
    ------
    ArgumentTypeError
        With the block and what to do.
    """
    if has_unit(values):
        text = f"block {index}, which has a unit"
        allowed = "an array without a unit, as a.map_blocks(lambda block: block.magnitude) makes "
        allowed += "it for pint; multiply the result by the unit"
    elif np.ma.is_masked(values):
        text = f"block {index}, in which values are masked"
        allowed = "an array without a mask: fill it, as dask.array.ma.filled(a, 0) does"
    elif hasattr(values, "todense"):
        text = f"block {index}, which is sparse"
        allowed = "a dense array, as a.map_blocks(lambda block: block.todense()) makes it"
    else:
        return
    raise_invalid(
        "a",
        text,
        allowed,
        kind=ArgumentTypeError,
    )


def plain_array(values: Any, index: tuple[int, ...]) -> Array:
    """Return a block in host memory as an array of numbers; arguments as in `refuse_wrapped`.

    Raises
    ------
    ArgumentTypeError
        With the block and what it has in place of numbers.
    """
    refuse_wrapped(values, index)
    try:
        block = np.asarray(values)
    except (RuntimeError, TypeError, ValueError) as error:
        kind = type(values).__qualname__
        raise_invalid(
            "a",
            f"block {index} of type {kind}",
            f"arrays ({error})",
            kind=ArgumentTypeError,
        )
    if block.dtype.kind not in "biufc":
        allowed = "numbers in every block, as the dtype of the dask array declares them"
        text = f"block {index} of dtype {block.dtype}"
        raise_invalid(
            "a",
            text,
            allowed,
            kind=ArgumentTypeError,
        )
    return block


def empty_like(like: Any, ndim: int, dtype: npt.DTypeLike) -> Any:
    """Return an empty array of some dimensions, on a GPU if `like` is."""
    shape = (0,) * ndim
    kind = np.dtype(dtype)
    return np.empty_like(like, kind, shape=shape) if is_on_gpu(like) else np.empty(shape, kind)


def allocate_like(like: Any, shape: tuple[int, ...], dtype: npt.DTypeLike) -> Any:
    """Return memory for an array: on the current GPU if `like` is on one, else in the arena."""
    if is_on_gpu(like):
        return np.empty_like(
            like,
            dtype,
            "C",
            shape=shape,
        )
    return allocate(shape, np.dtype(dtype))


def intervals(size: int, width: int) -> Iterator[slice]:
    """Yield consecutive slices of at most `width` that cover `size` elements."""
    for low in range(0, size, width):
        yield slice(low, min(size, low + width))


def prefault(block: Array, threads: int = 1) -> Array:
    """Return a block after this thread has prefaulted its share of the pages.

    Threads that call this divide the pages into large parts. Without it, threads that store tiles
    would fault the same pages at the same time. A thread that works alone on a block starts others.
    """
    started = time.perf_counter()
    nbytes = fault_in(block, threads)
    if nbytes:
        emit("prefault", nbytes=nbytes, seconds=time.perf_counter() - started)
    return block


def host_table(shape: int | tuple[int, ...], dtype: np.dtype[Any]) -> CopyTable:
    """Return an empty table of copies into a new block in host memory."""
    return CopyTable(allocate(shape, dtype))


class BlockView:
    """Block before a round.

    Parameters
    ----------
    shape, dtype
        Shape and dtype of the block.
    array : ndarray, optional
        The values of a block that is one array.
    tables : sequence of exchange.gather.SegmentTable
        Segments of a block that is no single array. Values outside all segments are zero.
    owned : bool
        True if `array` is contiguous and may be overwritten.
    target : ndarray, optional
        Memory for the result of the round; the array itself for a round in place.
    new_table : callable
        Returns an empty table of copies into a new block of a shape and dtype. A new block on a
        GPU is filled with zeros.
    boxes : callable, optional
        Returns the block as boxes of its sources, which a GPU copies without a gather, or None.
        With True the block may end within digits.
    runs : callable
        Returns the contiguous parts of blocks on a GPU that make up the block, if it has such.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        array: Array | None = None,
        tables: Sequence[Any] = (),
        *,
        owned: bool = False,
        target: Array | None = None,
        new_table: Callable[[tuple[int, ...], np.dtype[Any]], Any] = host_table,
        boxes: Callable[[bool], SegmentedView | None] = lambda partial: None,
        runs: Callable[[], Sequence[Any]] = tuple,
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self.array = array
        self.tables = tables
        self.owned = owned
        self.target = target
        self.boxes = boxes
        self.runs = runs
        self.new_table = new_table
        self.on_gpu = new_table is not host_table
        self._padded = array is None and sum(t.size for t in tables) < math.prod(shape)

    @classmethod
    def of(cls, array: Array, *, owned: bool = False, target: Array | None = None) -> "BlockView":
        """Return the view of a block that is one array."""
        return cls(
            array.shape,
            array.dtype,
            array,
            owned=owned,
            target=target,
        )

    @property
    def in_place(self) -> bool:
        """True if the result overwrites the block."""
        return self.array is not None and self.target is self.array

    def borrowed(self) -> "BlockView":
        """Return a view of the same block whose values are only read."""
        if self.array is None or not self.owned:
            return self
        return BlockView.of(self.array, target=self.target)

    def result(self, shape: tuple[int, ...], dtype: np.dtype[Any], threads: int = 1) -> Array:
        """Return memory for the block after the round: its target if it fits, else new memory.

        New memory is prefaulted by some threads.
        """
        for place in (self.array if self.owned else None, self.target):
            if place is not None and place.shape == shape and place.dtype == dtype:
                return place
        return prefault(allocate(shape, dtype), threads)

    def gather(self, out: Array | None = None, threads: int = 1) -> Array:
        """Return the block, contiguous and free to overwrite.

        A block that is not `owned` is copied to `out` or to new memory. Several threads copy a
        large block.
        """
        if self.array is not None and (self.owned or out is self.array):
            return self.array
        table = self.new_table(self.shape, self.dtype) if out is None else CopyTable(out)
        values: Array = table.target
        dim = self._shared_dim(threads, values.nbytes)
        with measured("gather", values.nbytes):
            if dim is not None:
                load = self._loader(dim, values, inside=True)
                ahead = (slice(None),) * dim
                cuts = intervals(self.shape[dim], -(-self.shape[dim] // threads))
                with ThreadPoolExecutor(threads) as pool:
                    list(pool.map(lambda cut: load(cut, values[(*ahead, cut)]), cuts))
            elif self.array is not None:
                copy_array(values, self.array)
            else:
                if self._padded and not self.on_gpu:
                    values.fill(0)
                self._enter(table, None)
                table.run()
        return values

    def _shared_dim(self, threads: int, nbytes: int) -> int | None:
        """Return the outermost dimension for dividing the copies among threads, None for one."""
        if threads == 1 or nbytes < SHARED_NBYTES or self.on_gpu:
            return None
        wide = (dim for dim, n in enumerate(self.shape) if n >= threads)
        return next((dim for dim in wide if self.divides(dim)), None)

    def divides(self, dim: int) -> bool:
        """Return True if parts along a dimension can be gathered one by one, in any order."""
        return not self.on_gpu and all(table.divides(dim) for table in self.tables)

    def filling(self, dim: int, out: Array) -> Callable[[slice], None]:
        """Return a function that gathers a part along a dimension to its place in a whole block.

        Several threads may call it.
        """
        load = self._loader(dim, out, inside=True)

        def fill(part: slice) -> None:
            place = out[(slice(None),) * dim + (part,)]
            with measured("gather", place.nbytes):
                load(part, place)

        return fill

    def tiles(
        self,
        dim: int,
        width: int,
        out: Array | None,
        cuts: Iterable[slice] | None = None,
    ) -> Iterator[tuple[slice, Array]]:
        """Yield slices along a dimension with their values, contiguous and free to overwrite.

        Tiles are parts of `out`, the block after the round, if those are contiguous. With None they
        have memory of their own. `cuts` are the requested slices, none wider than `width`; by
        default all.
        """
        if self.array is None and not self.divides(dim):
            # The whole block is gathered; a repeat must not overwrite the results in `out`.
            fits_out = cuts is None and self._fits(out, len(self.shape))
            whole = BlockView.of(self.gather(out if fits_out else None), owned=True)
            yield from whole.tiles(
                dim,
                width,
                out,
                cuts,
            )
            return
        if cuts is None:
            cuts = intervals(self.shape[dim], width)
        ahead = (slice(None),) * dim
        if self.array is not None and self.owned:
            for part in cuts:
                yield part, np.ascontiguousarray(self.array[(*ahead, part)])
            return
        if out is None or not self._may_load_into(out, dim):
            yield from self._tiles_in_buffer(dim, width, cuts)
            return
        load = self._loader(dim, out, inside=True)
        for part in cuts:
            tile = out[(*ahead, part)]
            with measured("gather", tile.nbytes):
                load(part, tile)
            yield part, tile

    def _tiles_in_buffer(
        self, dim: int, width: int, cuts: Iterable[slice]
    ) -> Iterator[tuple[slice, Array]]:
        """Yield slices along a dimension with their values, all in one buffer.

        A tile is valid until the next one is taken.
        """
        shape = (*self.shape[:dim], min(width, self.shape[dim]), *self.shape[dim + 1 :])
        buffer = allocate(shape, self.dtype)
        load_whole = self._loader(dim, buffer, inside=False)
        for part in cuts:
            tile = buffer
            load = load_whole
            count = part.stop - part.start
            if count != shape[dim]:  # a narrower tile takes the first part of the buffer
                narrow = (*shape[:dim], count, *shape[dim + 1 :])
                tile = buffer.reshape(-1)[: math.prod(narrow)].reshape(narrow)
                load = self._loader(dim, tile, inside=False)
            with measured("gather", tile.nbytes):
                load(part, tile)
            yield part, tile

    def _may_load_into(self, out: Array, dim: int) -> bool:
        """Return True if tiles along a dimension can be gathered into the result before a round."""
        if not self._fits(out, dim):
            return False
        return self.array is None or not np.may_share_memory(out, self.array)

    def _fits(self, out: Array | None, dim: int) -> bool:
        """Return True if tiles along a dimension can be gathered into the result."""
        if out is None:
            return False
        same = out.shape == self.shape and out.dtype == self.dtype and out.flags.c_contiguous
        return bool(same) and (dim == out.ndim or math.prod(self.shape[:dim]) == 1)

    def _loader(self, dim: int, target: Array, inside: bool) -> Callable[[slice, Array], None]:
        """Return a function that copies a part of the block to a tile in `target`.

        Parameters
        ----------
        dim : int
            Dimension along which the block is cut.
        target : ndarray
            Memory of the whole block if `inside` is true, else of one tile.
        inside : bool
            True if each tile has its own place in `target`, along `dim`.
        """
        array = self.array
        ahead = (slice(None),) * dim
        if array is not None:

            def copy(part: slice, tile: Array) -> None:
                copy_array(tile, array[(*ahead, part)])

            return copy
        table = CopyTable(target)
        self._enter(table, dim)

        def gather(part: slice, tile: Array) -> None:
            if self._padded:
                tile.fill(0)
            origin = 0 if inside else part.start
            table.run(part.start, part.stop, origin)

        return gather

    def _enter(self, table: Any, dim: int | None) -> None:
        """Add all copies to a table, which can be cut along a dimension if one is given."""
        for segment_table in self.tables:
            segments = segment_table.segments(table.target.strides, dim)
            table.extend(segment_table.sources, segment_table.which, segments)
