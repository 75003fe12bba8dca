"""The assembly of a result: its blocks as one array; and the copy of an input in memory.

`assembled` replaces dask's `finalize`, which copies blocks one after the other into fresh memory.
Blocks that fill a shared buffer in order need no copy; others are copied by several threads into
memory of the arena. The memory returns to the arena when the array is garbage collected.
"""

import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from dask.core import flatten

from dask_bigfft.arrays import Array, Region
from dask_bigfft.carriers.buffers import whole_result
from dask_bigfft.carriers.names import Chunks
from dask_bigfft.dask_private import finalize, slices_from_chunks
from dask_bigfft.events import current_worker, task_threads
from dask_bigfft.kernels.copies import copy_array
from dask_bigfft.kernels.views import prefault
from dask_bigfft.memory import allocate

#: Minimum size of a result that several threads copy, in bytes.
SHARED_NBYTES = 1 << 22

#: Size of a copy, in bytes.
PART_NBYTES = 1 << 24


def assembled(blocks: Any, token: str, chunks: Chunks) -> Any:
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
    arrays = list(flatten(blocks, container=(list, tuple)))
    if not chunks or not _are_plain(arrays, chunks):
        return finalize(blocks)
    shape = tuple(map(sum, chunks))
    cuts = slices_from_chunks(chunks)
    if current_worker() is not None:
        return _copied(
            arrays,
            cuts,
            shape,
            threads=1,
        )
    whole = whole_result(
        token,
        arrays,
        cuts,
        shape,
    )
    if whole is not None:
        return whole
    return _copied(
        arrays,
        cuts,
        shape,
        threads=task_threads(),
    )


def _are_plain(arrays: Sequence[Any], chunks: Chunks) -> bool:
    """Return whether all blocks are NumPy arrays of one dtype and of the chunks' shapes."""
    for array in arrays:
        if type(array) is not np.ndarray or array.dtype != arrays[0].dtype:
            return False
    return [array.shape for array in arrays] == list(itertools.product(*chunks))


def snapshot(values: Array) -> Array:
    """Return a C-contiguous copy of an array, whose pages several threads fault in and fill.

    NumPy copies, because compiled loops are no faster here, and take time to load.
    """
    return _copied(
        [values],
        [(slice(None),) * values.ndim],
        values.shape,
        threads=task_threads(),
        copy=np.copyto,
    )


def _copied(
    blocks: Sequence[Array],
    cuts: Sequence[Region],
    shape: tuple[int, ...],
    threads: int,
    copy: Callable[[Array, Array], None] = copy_array,
) -> Array:
    """Return the blocks copied to one array, in parts small enough to balance the threads."""
    out = allocate(shape, blocks[0].dtype)
    targets = []
    sources = []
    for source, cut in zip(blocks, cuts, strict=True):
        target = out[cut]
        rows = max(1, len(source) * PART_NBYTES // max(1, source.nbytes))
        for low in range(0, len(source), rows):
            targets.append(target[low : low + rows])
            sources.append(source[low : low + rows])
    if threads == 1 or out.nbytes < SHARED_NBYTES:
        for target, source in zip(targets, sources, strict=True):
            copy(target, source)
        return out
    with ThreadPoolExecutor(threads, thread_name_prefix="bigfft-result") as pool:
        list(pool.map(prefault, [out] * threads))
        list(pool.map(copy, targets, sources))
    return out
