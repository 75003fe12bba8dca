"""Memory that rounds overwrite, and what becomes of a result.

*Common memory* is one array in which the blocks that an exchange connects lie together. The round
before the exchange writes its blocks there, the round after it finds its own there, and may leave
its result in their place. Each block's place is given out once, and each block is worked on once:
a task that runs a second time finds ordinary memory, what was made, or an error.

A block on which a round failed that worked in its memory, as `overwrite_x` permits, is neither what
it was nor what it was to become, and a scheduler may do the task once more (``compute(retries=1)``)
on another worker, which it sends the block to. So the block itself tells: it is filled with a NaN
that nothing computes.

`assembled` is what `compute()` does after the last round. Dask copies blocks one after the other
into fresh memory. Blocks that lie end to end in common memory are an array already; others are
copied by several threads into memory of the arena. Either way the array's memory goes back to the
arena when it dies, for the next transform.

Imports `decomposition`, `memory`, `kernels`, `events`, `errors` and this room.
"""

import contextlib
import itertools
import math
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
from dask.core import flatten

from dask_bigfft.decomposition.layout import Layout
from dask_bigfft.decomposition.rounds import place_of
from dask_bigfft.errors import CarrierError, KernelError
from dask_bigfft.events import current_worker, task_threads
from dask_bigfft.graph.dask_private import finalize, slices_from_chunks
from dask_bigfft.kernels.copies import copy_array
from dask_bigfft.kernels.views import prefault
from dask_bigfft.memory import lend

Array = npt.NDArray[Any]
Made = TypeVar("Made")
Block = tuple[int, ...]
Cut = tuple[slice, ...]


def lying(array: Array, joint: Layout, layout: Layout, block: Block) -> Array:
    """View of the common array in which a block of a layout lies.

    Parameters
    ----------
    array : ndarray
        One block of the joint.
    joint, layout : Layout
        How the digits lie in the array, and in the block.
    block : tuple of int
        Which block; it lies in this array.
    """
    place = place_of(joint, layout, block)
    seen = array.reshape(place.shape)
    if seen.ctypes.data != array.ctypes.data:
        raise KernelError(f"dimensions {array.shape} of common memory cannot be joined")
    return seen[place.cuts].transpose(place.order)


class Common:
    """Memory for the blocks of one connected group of an exchange, taken when first written.

    Parameters
    ----------
    joint : Layout or None
        How the blocks lie together; None where there is to be no such memory.
    group : tuple of int
        Which of the joint's blocks it is.
    dtype : str
        Of the blocks.
    """

    def __init__(self, joint: Layout | None = None, group: Block = (), dtype: str = "c16") -> None:
        self.joint, self.group, self.dtype = joint, group, np.dtype(dtype)
        self.array: Array | None = None
        self._given: dict[Block, Array] = {}
        self._entered: dict[int, bool] = {}
        self._made: dict[tuple[int, Block], Future[Any]] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> Any:
        return Common, ()  # what is sent to another process is common to nobody

    def place(self, layout: Layout, block: Block) -> Array | None:
        """Where a block of the layout before the exchange is to be written, the first time."""
        if self.joint is None:
            return None
        with self._lock:
            if block in self._given:
                return None
            if self.array is None:
                self.array = lend(self.joint.shape(self.group), self.dtype)
            found = self._given[block] = lying(self.array, self.joint, layout, block)
        return prefault(found)  # together with all who are about to write there

    def take(
        self, token: str, exchange: int, joint: Layout, layout: Layout, blocks: Mapping[Block, Any]
    ) -> bool:
        """Whether the blocks before an exchange may be worked on in place: the first asker decides.

        Parameters
        ----------
        token, exchange
            Of the plan in task names, and the number of the exchange.
        joint, layout : Layout
            How the blocks lie together, and apart.
        blocks : mapping
            The asker's blocks, by index.

        Raises
        ------
        CarrierError
            If some of them do not lie here, and the others are being worked on already, or an
            earlier computation has worked on them.
        """
        holds = self._holds(joint, layout, blocks)
        if not holds:
            refuse_spent(token, exchange, blocks)
        with self._lock:
            decided = self._entered.setdefault(exchange, holds)
        if decided and not holds:
            raise CarrierError(
                f"blocks before exchange {exchange + 1} were made again while others are worked "
                "on in place; set bigfft.exchange.in-place to false"
            )
        if decided:
            advance(token, exchange + 1, blocks.values())
        return decided

    def _holds(self, joint: Layout, layout: Layout, blocks: Mapping[Block, Any]) -> bool:
        """Whether blocks of a layout all lie where the joint has them."""
        if self.array is None:
            return False
        first = joint is self.joint  # before the exchange that it was taken for
        for block, values in blocks.items():
            view = self._given.get(block) if first else lying(self.array, joint, layout, block)
            if view is None or not same_memory(values, view):
                return False
        return True

    def once(self, round_: int, block: Block, work: Callable[[], Made]) -> Made:
        """Return what work in place on a block has made, doing it if nobody has yet.

        Dask may run a task twice in one computation, fused with two others.

        Raises
        ------
        CarrierError
            If it was begun and failed: the block is no longer what it was.
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


def same_memory(values: Any, view: Array) -> bool:
    """Whether an array is a view of the same elements."""
    if not isinstance(values, np.ndarray) or values.dtype != view.dtype:
        return False
    place = values.shape, values.ctypes.data
    if place != (view.shape, view.ctypes.data):
        return False
    steps = zip(values.shape, values.strides, view.strides, strict=True)
    return all(a == b for n, a, b in steps if n > 1)


#: Generation of the memory that a plan's result lies in, and of that which the caller has got.
RESULT, GIVEN = 1 << 30, 1 << 31

#: Memory that rounds have worked on in place, by its identity: the plan, its generation, itself.
_memories: dict[int, tuple[str, int, weakref.ref[Array]]] = {}


def _root(values: Any) -> Any:
    """The array whose memory an array is a view of."""
    while isinstance(values, np.ndarray) and isinstance(values.base, np.ndarray):
        values = values.base
    return values


def _generation(token: str, root: Any) -> int:
    """The generation of memory that a plan has worked on; 0 if it has not."""
    plan, found, _ = _memories.get(id(root), ("", 0, None))
    return found if plan == token else 0


def advance(token: str, generation: int, blocks: Iterable[Any]) -> None:
    """Note that a plan has brought the memory of blocks to a generation.

    It is the number of the exchange after which they are worked on, from 1, or `RESULT`.
    """
    for key, root in {id(root): root for root in map(_root, blocks)}.items():
        if _generation(token, root) != generation:
            gone = weakref.ref(root, lambda _, key=key: _memories.pop(key, None))  # type: ignore[misc]
            _memories[key] = token, generation, gone


def refuse_spent(token: str, exchange: int, blocks: Mapping[Block, Any]) -> None:
    """Stop before blocks are used that an earlier computation has worked on in place.

    Raises
    ------
    CarrierError
        If there are such blocks.
    """
    spent = any(_generation(token, _root(block)) > exchange for block in blocks.values())
    if spent:
        raise CarrierError(
            f"blocks before exchange {exchange + 1} were kept from another computation, which has "
            "worked on in their memory: do not keep results of single tasks, or set "
            "bigfft.exchange.in-place to false"
        )


def whole_result(
    token: str, blocks: Sequence[Array], cuts: Sequence[Cut], shape: tuple[int, ...]
) -> Array | None:
    """Return a plan's result, if its blocks lie in common memory as they do in an array.

    Only the first who asks gets it: whoever has it may write to it.

    Parameters
    ----------
    token : str
        Of the plan in task names.
    blocks : sequence of ndarray
        All blocks, of one dtype.
    cuts : sequence of tuple of slice
        Where in the result each of them belongs.
    shape : tuple of int
        Of the result.
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
    if not all(_root(block) is root and same_memory(block, whole[cut]) for block, cut in pairs):
        return None
    advance(token, GIVEN, (root,))
    return whole


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


#: Bytes from which on a result is copied by several threads, and of what each takes at a time.
SHARED_NBYTES, PART_NBYTES = 1 << 22, 1 << 24


def assembled(blocks: Any, token: str, chunks: tuple[tuple[int, ...], ...]) -> Any:
    """Return the blocks of a result as one array, C-contiguous and writeable.

    It is what dask itself makes of them where they are not arrays of NumPy, or not of the chunks.

    Parameters
    ----------
    blocks : nested lists of ndarray
        As many levels as the array has axes, as dask hands them to what finishes a computation.
    token : str
        Of the plan. Blocks of its own common memory belong to this computation alone.
    chunks : tuple of tuple of int
        Of the result.
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
    blocks: Sequence[Array], cuts: Sequence[Cut], shape: tuple[int, ...], threads: int
) -> Array:
    """The blocks, copied to an array of its own in parts so small that threads end together."""
    out = lend(shape, blocks[0].dtype)
    pairs = []
    for source, cut in zip(blocks, cuts, strict=True):
        target, step = out[cut], max(1, len(source) * PART_NBYTES // max(1, source.nbytes))
        for low in range(0, len(source), step):
            pairs.append((target[low : low + step], source[low : low + step]))
    if threads == 1 or out.nbytes < SHARED_NBYTES:
        for pair in pairs:
            copy_array(*pair)
        return out
    with ThreadPoolExecutor(threads, thread_name_prefix="bigfft-result") as pool:
        list(pool.map(prefault, [out] * threads))
        list(pool.map(copy_array, *zip(*pairs, strict=True)))
    return out
