"""Blocks that are merged before a plan, or cut after it.

Dask orders the tasks of a graph by a loop over all connected pairs of a root and a leaf; in a
transform all are connected. With 16,384 persisted blocks this took 0.25 us per pair, more than a
minute. Therefore the last block that is cut from a larger one depends on the others, which are then
no leaves. This costs nothing, because all of these blocks are cut at the same time.
"""

import math
from functools import lru_cache
from typing import Any, cast

import dask.array as da
import numpy as np
from dask.base import tokenize

from dask_bigfft.carriers.names import Chunks, Cut, Graph, Key
from dask_bigfft.dask_private import (
    HighLevelGraph,
    Task,
    TaskRef,
    is_expression,
    old_to_new,
)
from dask_bigfft.kernels.views import is_on_gpu

#: Minimum number of blocks for which dask's ordering takes longer than the extra dependencies.
MANY_BLOCKS = 512


@lru_cache(maxsize=64)
def cuts_of(old_chunks: Chunks, chunks: Chunks) -> list[Cut] | None:
    """Return each block of new chunks as a part of an old one: their indices, and the part.

    None if a new block is made of several old ones.
    """
    origins_along = old_to_new(old_chunks, chunks)
    if any(len(origins) != 1 for along in origins_along for origins in along):
        return None
    cuts = []
    for block in np.ndindex(*map(len, chunks)):
        parts = [along[i][0] for along, i in zip(origins_along, block, strict=True)]
        old_block = tuple(origin for origin, _ in parts)
        slices = tuple(cut for _, cut in parts)
        cuts.append((block, old_block, slices))
    return cuts


def rechunked(x: da.Array, chunks: Chunks) -> da.Array:
    """Return the array with blocks merged or cut, by plain tasks."""
    if tuple(tuple(map(int, cut)) for cut in x.chunks) == chunks:
        return x
    return cast("da.Array", x.rechunk(chunks, method="tasks"))


def cut_blocks(x: da.Array, chunks: Chunks) -> da.Array:
    """Return the array with blocks cut, by plain tasks.

    If there are very many and each is cut from a single block, the last one from the same block
    depends on the others. Blocks on GPUs are always cut this way, because dask's rechunk copies
    them to the current GPU.
    """
    count = math.prod(map(len, chunks))
    is_small = count < MANY_BLOCKS and not is_on_gpu(x._meta)
    if is_small or count == x.npartitions or is_expression(x):
        return rechunked(x, chunks)
    cuts = cuts_of(x.chunks, chunks)
    if cuts is None:
        return rechunked(x, chunks)
    name = f"bigfft_cut-{tokenize(x.name, chunks)}"
    graph: Graph = {}
    keys_of_source: dict[Key, list[Key]] = {}
    for block, old_block, slices in cuts:
        source = (x.name, *old_block)
        key = (name, *block)
        keys_of_source.setdefault(source, []).append(key)
        graph[key] = Task(
            key,
            _part,
            TaskRef(source),
            slices,
        )
    for keys in keys_of_source.values():
        last = keys.pop()
        graph[last] = Task(
            last,
            _part,
            *graph[last].args,
            *map(TaskRef, keys),
        )
    layers = HighLevelGraph.from_collections(name, graph, dependencies=cast("Any", [x]))
    return da.Array(
        layers,
        name,
        chunks=chunks,
        meta=x._meta,
    )


def _part(block: Any, cut: tuple[slice, ...], *_: Any) -> Any:
    """Return a part of a block; further arguments are only dependencies."""
    return block[cut]
