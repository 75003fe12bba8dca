"""How the blocks of a result become one array: what `compute()` does after the last round.

Dask copies blocks one after the other into fresh memory. Blocks that lie end to end in common
memory are an array already; others are copied by several threads into memory of the arena. Either
way the array's memory goes back to the arena when it dies, for the next transform.

Imports `exchange`, `kernels`, `memory`, `events`, `threads` and this room.
"""

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.events import current_worker
from dask_bigfft.exchange.common import whole_result
from dask_bigfft.graph.dask_private import finalize
from dask_bigfft.kernels.copies import copy_array
from dask_bigfft.kernels.views import prefault
from dask_bigfft.memory import lend
from dask_bigfft.memory_settings import task_threads

__all__ = ["assembled"]

Array = npt.NDArray[Any]
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
