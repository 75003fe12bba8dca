"""Shared buffers that rounds overwrite, and the generations of their memory.

A *shared buffer* (`SharedBuffer`) is one array that holds all blocks that an exchange connects. The
round before the exchange writes its blocks there, and the round after it reads its own blocks there
and may overwrite them. Each block's view is given out once, and each block is transformed once: a
task that runs a second time gets ordinary memory, the first result, or an error.
"""

import math
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import numpy as np

from dask_bigfft.arrays import Array, Block, Region
from dask_bigfft.errors import CarrierError
from dask_bigfft.kernels.libraries import same_memory
from dask_bigfft.kernels.views import prefault
from dask_bigfft.memory import allocate
from dask_bigfft.transforms.layout import Layout
from dask_bigfft.transforms.shared_layouts import place_of

Values = TypeVar("Values")


def view_in(
    array: Array,
    shared_layout: Layout,
    layout: Layout,
    block: Block,
) -> Array:
    """Return the view of a block of a layout in a shared buffer.

    Parameters
    ----------
    array : ndarray
        Shared buffer: one block of the layout `shared_layout`.
    shared_layout, layout : Layout
        Layouts of the shared buffer and of the block.
    block : tuple of int
        Index of a block in this buffer.
    """
    place = place_of(shared_layout, layout, block)
    return array.reshape(place.shape)[place.cuts].transpose(place.order)


class SharedBuffer:
    """Shared buffer of one connected group of an exchange, allocated on the first write.

    Parameters
    ----------
    token : str
        Token of the plan in task names.
    shared_layout : Layout or None
        Layout of the shared buffer; None for no buffer.
    group : tuple of int
        Index of the buffer in this layout.
    dtype : str
        Dtype of the blocks.
    """

    def __init__(
        self,
        token: str,
        shared_layout: Layout | None = None,
        group: Block = (),
        dtype: str = "c16",
    ) -> None:
        self.token = token
        self.shared_layout = shared_layout
        self.group = group
        self.dtype = np.dtype(dtype)
        self.array: Array | None = None
        #: Blocks whose views have been given out.
        self._placed: set[Block] = set()
        #: True if the blocks before an exchange are overwritten, by its number.
        self._overwrites: dict[int, bool] = {}
        self._results: dict[tuple[int, Block], Future[Any]] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return SharedBuffer, (self.token,)  # other processes do not share the buffer

    def place(self, layout: Layout, block: Block, threads: int = 1) -> Array | None:
        """Return the view for a block of the layout before the exchange; None after that.

        This thread prefaults its pages while other threads do so for other blocks of the buffer. If
        there are fewer blocks than `threads`, it shares the work with threads that it starts.
        """
        if self.shared_layout is None:
            return None
        with self._lock:
            if block in self._placed:
                return None
            if self.array is None:
                self.array = allocate(self.shared_layout.shape(self.group), self.dtype)
            self._placed.add(block)
            view = view_in(
                self.array,
                self.shared_layout,
                layout,
                block,
            )
        blocks_of_buffer = layout.blocks // self.shared_layout.blocks
        return prefault(view, max(1, threads // blocks_of_buffer))

    def take(
        self,
        exchange: int,
        shared_layout: Layout,
        layout: Layout,
        blocks: Mapping[Block, Any],
    ) -> bool:
        """Return whether the blocks before an exchange may be overwritten; the first call decides.

        Parameters
        ----------
        exchange : int
            Number of the exchange.
        shared_layout, layout : Layout
            Layouts of the shared buffer and of the blocks.
        blocks : mapping
            Blocks of the caller by index.

        Raises
        ------
        CarrierError
            If some blocks are not in this buffer while others are already overwritten, or if an
            earlier computation has overwritten them.
        """
        holds_all = self._holds(shared_layout, layout, blocks)
        if not holds_all and self._are_overwritten(exchange, blocks.values()):
            raise CarrierError(
                f"blocks before exchange {exchange + 1} were kept from another computation, which "
                "has worked on in their memory: do not keep results of single tasks, or set "
                "bigfft.exchange.in-place to false"
            )
        with self._lock:
            overwrites = self._overwrites.setdefault(exchange, holds_all)
        if overwrites and not holds_all:
            raise CarrierError(
                f"blocks before exchange {exchange + 1} were made again while others are worked "
                "on in place; set bigfft.exchange.in-place to false"
            )
        if overwrites:
            advance(self.token, exchange + 1, blocks.values())
        return overwrites

    def _holds(self, shared_layout: Layout, layout: Layout, blocks: Mapping[Block, Any]) -> bool:
        """Return whether all blocks are views of this buffer."""
        array = self.array
        return array is not None and all(
            is_view(
                values,
                view_in(
                    array,
                    shared_layout,
                    layout,
                    block,
                ),
            )
            for block, values in blocks.items()
        )

    def _are_overwritten(self, exchange: int, blocks: Iterable[Any]) -> bool:
        """Return whether rounds after an exchange have worked in the memory of some blocks."""
        return any(_generation(self.token, _root(values)) > exchange for values in blocks)

    def once(self, round_: int, block: Block, work: Callable[[], Values]) -> Values:
        """Return the result of work in place on a block, which is done on the first call only.

        Dask may run a task twice in one computation, fused with two others.

        Raises
        ------
        CarrierError
            If the work has failed before, and may have overwritten the block.
        """
        with self._lock:
            is_first = (round_, block) not in self._results
            future = self._results.setdefault((round_, block), Future())
        if is_first:
            try:
                future.set_result(work())
            except BaseException:
                text = f"round {round_ + 1} failed on block {block} while it worked in place"
                future.set_exception(CarrierError(f"{text}, so it cannot be done again"))
                raise
        return future.result()  # type: ignore[no-any-return]


def is_view(values: Any, view: Array) -> bool:
    """Return whether an array is a certain view of memory."""
    is_alike = isinstance(values, np.ndarray) and values.dtype == view.dtype
    return is_alike and values.shape == view.shape and same_memory(values, view)


#: Generation of memory with a plan's result.
RESULT = 1 << 30

#: Generation of memory that the caller has received.
DELIVERED = 1 << 31

#: Memory that rounds have overwritten, by its identity: plan, generation, weak reference.
_memories: dict[int, tuple[str, int, weakref.ref[Array]]] = {}


def _root(values: Any) -> Any:
    """Return the array that owns the memory of an array."""
    while isinstance(values, np.ndarray) and isinstance(values.base, np.ndarray):
        values = values.base
    return values


def _generation(token: str, root: Any) -> int:
    """Return the generation of memory that a plan has overwritten; 0 if it has not."""
    plan_token, generation, _ = _memories.get(id(root), ("", 0, None))
    return generation if plan_token == token else 0


def advance(token: str, generation: int, blocks: Iterable[Any]) -> None:
    """Record the generation to which a plan has brought the memory of blocks.

    It is the number of the exchange after which they are overwritten, from 1, or `RESULT`.
    """
    roots = {id(root): root for root in map(_root, blocks)}
    for key, root in roots.items():
        if _generation(token, root) != generation:
            reference = weakref.ref(root, lambda _, key=key: _memories.pop(key, None))  # type: ignore[misc]
            _memories[key] = token, generation, reference


def whole_result(
    token: str,
    blocks: Sequence[Array],
    cuts: Sequence[Region],
    shape: tuple[int, ...],
) -> Array | None:
    """Return a plan's result without a copy, if its blocks fill a shared buffer in order.

    Only the first caller gets it, because the caller may write to it.

    Parameters
    ----------
    token : str
        Token of the plan in task names.
    blocks : sequence of ndarray
        All blocks, at least one, of one dtype.
    cuts : sequence of tuple of slice
        Slices of the result for each block.
    shape : tuple of int
        Shape of the result.
    """
    root: Array = _root(blocks[0])
    dtype = blocks[0].dtype
    size = math.prod(shape)
    if _generation(token, root) != RESULT or not root.flags.c_contiguous or root.dtype != dtype:
        return None
    first = (blocks[0].ctypes.data - root.ctypes.data) // dtype.itemsize
    flat = root.reshape(-1)[first : first + size]
    if not size or flat.size != size:
        return None
    whole = flat.reshape(shape)
    for block, cut in zip(blocks, cuts, strict=True):
        if _root(block) is not root or not is_view(block, whole[cut]):
            return None
    advance(token, DELIVERED, (root,))
    return whole
