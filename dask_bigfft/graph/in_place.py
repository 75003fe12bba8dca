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
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dask_bigfft.decomposition.layout import Layout
from dask_bigfft.decomposition.rounds import place_of
from dask_bigfft.errors import CarrierError, KernelError
from dask_bigfft.events import current_worker, task_threads
from dask_bigfft.graph.dask_private import finalize
from dask_bigfft.kernels.copies import copy_array
from dask_bigfft.kernels.views import prefault
from dask_bigfft.memory import lend

Array = npt.NDArray[Any]
Made = TypeVar("Made")
Block = tuple[int, ...]


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
        self._locks: dict[tuple[int, Block], threading.Lock] = {}
        self._begun: set[tuple[int, Block]] = set()
        self._made: dict[tuple[int, Block], Any] = {}
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

    def holds(self, joint: Layout, layout: Layout, blocks: Mapping[Block, Any]) -> bool:
        """Whether blocks of a layout all lie where the joint has them."""
        if self.array is None:
            return False
        if joint is self.joint:  # before the exchange that it was taken for
            found = ((values, self._given.get(block)) for block, values in blocks.items())
            return all(view is not None and same_memory(values, view) for values, view in found)
        return all(
            same_memory(values, lying(self.array, joint, layout, block))
            for block, values in blocks.items()
        )

    def enter(self, exchange: int, holds: bool) -> bool:
        """Whether the blocks before an exchange may be worked on in place: the first asker decides.

        Parameters
        ----------
        exchange : int
            Number of the exchange.
        holds : bool
            Whether all of the asker's blocks lie here.

        Raises
        ------
        CarrierError
            If some of them do not, and the others are being worked on already.
        """
        with self._lock:
            decided = self._entered.setdefault(exchange, holds)
        if decided and not holds:
            raise CarrierError(
                f"blocks before exchange {exchange + 1} were made again while others are worked "
                "on in place; set bigfft.exchange.in-place to false"
            )
        return decided

    def once(self, round_: int, block: Block, work: Callable[[], Made]) -> Made:
        """Return what work in place on a block has made, doing it if nobody has yet.

        Dask may run a task twice in one computation, fused with two others.

        Raises
        ------
        CarrierError
            If it was begun and failed: the block is no longer what it was.
        """
        with self._lock:
            lock = self._locks.setdefault((round_, block), threading.Lock())
        with lock:
            found = self._made.get((round_, block))
            if found is None:
                if (round_, block) in self._begun:
                    raise CarrierError(
                        f"round {round_ + 1} failed on block {block} while it worked in place, so "
                        "it cannot be done again"
                    )
                self._begun.add((round_, block))
                found = self._made[round_, block] = work()
            return found


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

#: Memory that rounds have worked on in place, by its address: itself, the plan, its generation.
_memories: dict[int, tuple[weakref.ref[Array], str, int]] = {}
_books = threading.Lock()


def _root(values: Any) -> Any:
    """The array whose memory an array is a view of."""
    while isinstance(values, np.ndarray) and isinstance(values.base, np.ndarray):
        values = values.base
    return values


def _generation(token: str, root: Any) -> int:
    """The generation of memory that a plan has worked on; 0 if it has not."""
    ref, plan, found = _memories.get(id(root), (lambda: None, "", 0))
    return found if ref() is root and plan == token else 0


def advance(token: str, generation: int, blocks: Iterable[Any]) -> None:
    """Note that a plan has brought the memory of blocks to a generation.

    It is the number of the exchange after which they are worked on, from 1, or `RESULT`.
    """
    roots = {id(root): root for root in map(_root, blocks)}
    with _books:
        fresh = [key for key, root in roots.items() if _generation(token, root) != generation]
        if fresh:
            for key in [key for key, (ref, *_) in _memories.items() if ref() is None]:
                del _memories[key]
        for key in fresh:
            _memories[key] = weakref.ref(roots[key]), token, generation


def refuse_spent(token: str, exchange: int, blocks: Mapping[Block, Any]) -> None:
    """Stop before blocks are used that an earlier computation has worked on in place.

    Raises
    ------
    CarrierError
        If there are such blocks.
    """
    with _books:
        spent = any(_generation(token, _root(block)) > exchange for block in blocks.values())
    if spent:
        raise CarrierError(
            f"blocks before exchange {exchange + 1} were kept from another computation, which has "
            "worked on in their memory: do not keep results of single tasks, or set "
            "bigfft.exchange.in-place to false"
        )


def whole_result(
    token: str, blocks: Sequence[Array], cuts: Sequence[tuple[slice, ...]], shape: tuple[int, ...]
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
    if _generation(token, root) != RESULT or not math.prod(shape):
        return None
    itemsize, steps = blocks[0].itemsize, [blocks[0].itemsize]
    for n in reversed(shape[1:]):
        steps.insert(0, steps[0] * n)
    if not root.flags.c_contiguous or root.dtype != blocks[0].dtype:
        return None
    start = blocks[0].ctypes.data
    for block, cut in zip(blocks, cuts, strict=True):
        offset = sum(part.start * step for part, step in zip(cut, steps, strict=True))
        dims = zip(block.shape, block.strides, steps, strict=True)
        if _root(block) is not root or block.ctypes.data != start + offset:
            return None
        if any(found != wanted for n, found, wanted in dims if n > 1):
            return None
    first = (start - root.ctypes.data) // itemsize
    whole: Array = root.reshape(-1)[first : first + math.prod(shape)].reshape(shape)
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


Cut = tuple[slice, ...]

#: Bytes from which on a result is copied by several threads, and of what each takes at a time.
SHARED_NBYTES, PART_NBYTES = 1 << 22, 1 << 24


def assembled(blocks: Any, token: str) -> Any:
    """Return the blocks of a result as one array.

    Parameters
    ----------
    blocks : nested lists of ndarray
        As many levels as the array has axes, as dask hands them to what finishes a computation.
    token : str
        Of the plan. Blocks of its own common memory belong to this computation alone.

    Returns
    -------
    ndarray
        C-contiguous and writeable. What dask itself makes of them where the blocks are not arrays
        of NumPy.
    """
    found = list(_flat(blocks))
    if not found or not found[0].ndim or any(type(block) is not np.ndarray for block in found):
        return finalize(blocks)
    sizes = _sizes(blocks)
    cuts = list(itertools.product(*map(_slices, sizes)))
    shapes = list(itertools.product(*sizes))
    same = {block.dtype for block in found} == {found[0].dtype}
    if not same or [block.shape for block in found] != shapes:
        return finalize(blocks)
    shape = tuple(map(sum, sizes))
    here = current_worker() is None
    whole = whole_result(token, found, cuts, shape) if here else None
    return _copied(found, cuts, shape, task_threads() if here else 1) if whole is None else whole


def _flat(blocks: Any) -> Iterator[Any]:
    if isinstance(blocks, (list, tuple)):
        for inner in blocks:
            yield from _flat(inner)
    else:
        yield blocks


def _sizes(blocks: Any) -> list[tuple[int, ...]]:
    """Of each axis, the lengths of its blocks."""
    found: list[tuple[int, ...]] = []
    while isinstance(blocks, (list, tuple)):
        firsts = [next(_flat(inner)) for inner in blocks]
        found.append(tuple(block.shape[len(found)] for block in firsts))
        blocks = blocks[0]
    return found


def _slices(lengths: Sequence[int]) -> Iterator[slice]:
    ends = itertools.accumulate(lengths)
    return (slice(end - n, end) for n, end in zip(lengths, ends, strict=True))


def _copied(
    blocks: Sequence[Array], cuts: Sequence[Cut], shape: tuple[int, ...], threads: int
) -> Array:
    """The blocks, copied to their places in an array of its own."""
    out = lend(shape, blocks[0].dtype)
    pairs = [
        pair for block, cut in zip(blocks, cuts, strict=True) for pair in _parts(out[cut], block)
    ]
    if threads == 1 or out.nbytes < SHARED_NBYTES:
        for target, source in pairs:
            copy_array(target, source)
        return out
    with ThreadPoolExecutor(threads, thread_name_prefix="bigfft-result") as pool:
        list(pool.map(prefault, [out] * threads))
        list(pool.map(copy_array, *zip(*pairs, strict=True)))
    return out


def _parts(target: Array, source: Array) -> Iterator[tuple[Array, Array]]:
    """A copy cut along its first axis, so that threads end together."""
    step = max(1, len(source) * PART_NBYTES // max(1, source.nbytes))
    for low in range(0, len(source), step):
        yield target[low : low + step], source[low : low + step]
