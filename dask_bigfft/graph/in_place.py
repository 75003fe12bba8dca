"""Shared buffers that rounds overwrite, and the assembly of a result.

A *shared buffer* (`SharedBuffer`) is one array that holds all blocks that an exchange connects. The
round before the exchange writes its blocks there, and the round after it reads its own blocks there
and may overwrite them. Each block's view is given out once, and each block is transformed once: a
task that runs a second time gets ordinary memory, the first result, or an error.

With `overwrite_x` a round may fail after it has overwritten part of its block. A scheduler may then
repeat the task (``compute(retries=1)``), even on another worker to which it sends the block. The
block is therefore poisoned: it is filled with a special NaN that no computation produces.

`assembled` replaces dask's `finalize`, which copies blocks one after the other into fresh memory.
Blocks that fill a shared buffer in order need no copy; others are copied by several threads into
memory of the arena. The memory returns to the arena when the array is garbage collected.
"""

import contextlib
import itertools
import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import numpy as np
from dask.core import flatten

from dask_bigfft.arrays import Array, Block, Region
from dask_bigfft.dask_private import finalize, slices_from_chunks
from dask_bigfft.errors import CarrierError
from dask_bigfft.events import current_worker, task_threads
from dask_bigfft.kernels.copies import copy_array
from dask_bigfft.kernels.libraries import same_memory
from dask_bigfft.kernels.views import prefault
from dask_bigfft.memory import allocate
from dask_bigfft.transforms.layout import Layout
from dask_bigfft.transforms.rounds import place_of

Made = TypeVar("Made")
Found = Mapping[Block, Any]


def view_in(array: Array, shared_layout: Layout, layout: Layout, block: Block) -> Array:
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
        self, token: str, shared_layout: Layout | None = None, group: Block = (), dtype: str = "c16"
    ) -> None:
        self.token, self.group, self.dtype = token, group, np.dtype(dtype)
        self.shared_layout = shared_layout
        self.array: Array | None = None
        self._given: set[Block] = set()
        self._entered: dict[int, bool] = {}
        self._made: dict[tuple[int, Block], Future[Any]] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return SharedBuffer, (self.token,)  # other processes do not share the buffer

    def place(self, layout: Layout, block: Block) -> Array | None:
        """Return the view for a block of the layout before the exchange; None after that."""
        if self.shared_layout is None:
            return None
        with self._lock:
            if block in self._given:
                return None
            if self.array is None:
                self.array = allocate(self.shared_layout.shape(self.group), self.dtype)
            self._given.add(block)
            found = view_in(self.array, self.shared_layout, layout, block)
        return prefault(found)  # in parallel with the other writing threads

    def take(self, exchange: int, shared_layout: Layout, layout: Layout, blocks: Found) -> bool:
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
        array, values = self.array, blocks.values()
        holds = array is not None and all(
            is_view(found, view_in(array, shared_layout, layout, block))
            for block, found in blocks.items()
        )
        if not holds and any(_generation(self.token, _root(found)) > exchange for found in values):
            raise CarrierError(
                f"blocks before exchange {exchange + 1} were kept from another computation, which "
                "has worked on in their memory: do not keep results of single tasks, or set "
                "bigfft.exchange.in-place to false"
            )
        with self._lock:
            decided = self._entered.setdefault(exchange, holds)
        if decided and not holds:
            raise CarrierError(
                f"blocks before exchange {exchange + 1} were made again while others are worked "
                "on in place; set bigfft.exchange.in-place to false"
            )
        if decided:
            advance(self.token, exchange + 1, values)
        return decided

    def once(self, round_: int, block: Block, work: Callable[[], Made]) -> Made:
        """Return the result of work in place on a block, which is done on the first call only.

        Dask may run a task twice in one computation, fused with two others.

        Raises
        ------
        CarrierError
            If the work has failed before, and may have overwritten the block.
        """
        with self._lock:
            mine = (round_, block) not in self._made
            found = self._made.setdefault((round_, block), Future())
        if mine:
            try:
                found.set_result(work())
            except BaseException:
                text = f"round {round_ + 1} failed on block {block} while it worked in place"
                found.set_exception(CarrierError(f"{text}, so it cannot be done again"))
                raise
        return found.result()  # type: ignore[no-any-return]


def is_view(values: Any, view: Array) -> bool:
    """Return whether an array is a certain view of memory."""
    alike = isinstance(values, np.ndarray) and values.dtype == view.dtype
    return alike and values.shape == view.shape and same_memory(values, view)


#: Generation of memory with a plan's result, and of memory that the caller has received.
RESULT, GIVEN = 1 << 30, 1 << 31

#: Memory that rounds have overwritten, by its identity: plan, generation, weak reference.
_memories: dict[int, tuple[str, int, weakref.ref[Array]]] = {}


def _root(values: Any) -> Any:
    """Return the array that owns the memory of an array."""
    while isinstance(values, np.ndarray) and isinstance(values.base, np.ndarray):
        values = values.base
    return values


def _generation(token: str, root: Any) -> int:
    """Return the generation of memory that a plan has overwritten; 0 if it has not."""
    plan, found, _ = _memories.get(id(root), ("", 0, None))
    return found if plan == token else 0


def advance(token: str, generation: int, blocks: Iterable[Any]) -> None:
    """Record the generation to which a plan has brought the memory of blocks.

    It is the number of the exchange after which they are overwritten, from 1, or `RESULT`.
    """
    for key, root in {id(root): root for root in map(_root, blocks)}.items():
        if _generation(token, root) != generation:
            gone = weakref.ref(root, lambda _, key=key: _memories.pop(key, None))  # type: ignore[misc]
            _memories[key] = token, generation, gone


def whole_result(
    token: str, blocks: Sequence[Array], cuts: Sequence[Region], shape: tuple[int, ...]
) -> Array | None:
    """Return a plan's result without a copy, if its blocks fill a shared buffer in order.

    Only the first caller gets it, because the caller may write to it.

    Parameters
    ----------
    token : str
        Token of the plan in task names.
    blocks : sequence of ndarray
        All blocks, of one dtype.
    cuts : sequence of tuple of slice
        Slices of the result for each block.
    shape : tuple of int
        Shape of the result.
    """
    root: Array = _root(blocks[0])
    dtype, size = blocks[0].dtype, math.prod(shape)
    if _generation(token, root) != RESULT or not root.flags.c_contiguous or root.dtype != dtype:
        return None
    first = (blocks[0].ctypes.data - root.ctypes.data) // dtype.itemsize
    whole = root.reshape(-1)[first : first + size]
    if not size or whole.size != size:
        return None
    whole = whole.reshape(shape)
    pairs = zip(blocks, cuts, strict=True)
    if not all(_root(block) is root and is_view(block, whole[cut]) for block, cut in pairs):
        return None
    advance(token, GIVEN, (root,))
    return whole


#: Lowest bytes of the NaN that marks poisoned blocks; they are 0 in other NaNs. Complex values have
#: it as their real part.
_LOWEST = b"\x6f\xb1"


def raise_if_poisoned(number: int, block: tuple[int, ...], values: Array) -> None:
    """Raise if a block is poisoned: a round has failed while it overwrote the block.

    Parameters
    ----------
    number : int
        Number of the round, from 0.
    block : tuple of int
        Index of the block, for the error.
    values : ndarray
        Values of the block, or of a part of it.

    Raises
    ------
    CarrierError
        If the block is poisoned.
    """
    first = values[(slice(1),) * values.ndim]
    if first.tobytes().startswith(_LOWEST) and np.isnan(first.real).all():
        raise CarrierError(
            f"round {number + 1} failed on block {block} while it worked in its memory, so it "
            "cannot be repeated: compute the array again, or leave overwrite_x out"
        )


@contextlib.contextmanager
def poisoning(parts: Callable[[], Iterable[Array]]) -> Iterator[None]:
    """Poison a block if the round that overwrites it fails.

    Parameters
    ----------
    parts : callable
        Returns the arrays that make up the block.
    """
    try:
        yield
    except BaseException:
        for part in parts():
            mark = np.full(1, np.nan, part.dtype)
            mark.view(np.uint8)[: len(_LOWEST)] = np.frombuffer(_LOWEST, np.uint8)
            part[...] = mark
        raise


#: Minimum size of a result that several threads copy, and size of a copy, in bytes.
SHARED_NBYTES, PART_NBYTES = 1 << 22, 1 << 24


def assembled(blocks: Any, token: str, chunks: tuple[tuple[int, ...], ...]) -> Any:
    """Return the blocks of a result as one array, C-contiguous and writeable.

    Dask's `finalize` does it if they are not NumPy arrays, or do not have the chunks' shapes.

    Parameters
    ----------
    blocks : nested lists of ndarray
        One level per axis, as dask passes them to the function that finishes a computation.
    token : str
        Token of the plan, whose shared buffers belong to this computation alone.
    chunks : tuple of tuple of int
        Chunks of the result.
    """
    found = list(flatten(blocks, container=(list, tuple)))
    shapes = list(itertools.product(*chunks))
    same = all(type(block) is np.ndarray and block.dtype == found[0].dtype for block in found)
    if not chunks or not same or [block.shape for block in found] != shapes:
        return finalize(blocks)
    shape, cuts = tuple(map(sum, chunks)), slices_from_chunks(chunks)
    here = current_worker() is None
    whole = whole_result(token, found, cuts, shape) if here else None
    return _copied(found, cuts, shape, task_threads() if here else 1) if whole is None else whole


def _copied(
    blocks: Sequence[Array], cuts: Sequence[Region], shape: tuple[int, ...], threads: int
) -> Array:
    """Return the blocks copied to one array, in parts small enough to balance the threads."""
    out = allocate(shape, blocks[0].dtype)
    pairs = []
    for source, cut in zip(blocks, cuts, strict=True):
        target, step = out[cut], max(1, len(source) * PART_NBYTES // max(1, source.nbytes))
        for low in range(0, len(source), step):
            pairs.append((target[low : low + step], source[low : low + step]))
    if threads == 1 or out.nbytes < SHARED_NBYTES:
        list(itertools.starmap(copy_array, pairs))
        return out
    with ThreadPoolExecutor(threads, thread_name_prefix="bigfft-result") as pool:
        list(pool.map(prefault, [out] * threads))
        list(pool.map(copy_array, *zip(*pairs, strict=True)))
    return out
