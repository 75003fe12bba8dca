"""Arrays with their neighbouring blocks merged, or cut, and what that is to dask's scheduling.

Dask puts the tasks of a graph in order by a loop over all pairs of a task that nothing comes before
and one that nothing comes after, where the two are connected: in a transform all are. For 16,384
blocks that are kept this took 0.25 us for each pair, more than a minute. So of the blocks that are
cut from one, the last one waits for the others, which then have something after them: these pairs
are gone, at no cost, since whoever cuts one block cuts all.

Imports this room.
"""

import itertools
import math
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, cast

import dask.array as da
from dask.base import tokenize

from dask_bigfft.graph.dask_private import HighLevelGraph, Task, TaskRef, array_expressions_enabled

__all__ = ["cut_blocks", "merged_blocks"]

Chunks = tuple[tuple[int, ...], ...]
Key = Any  # a dask key: a name and a block index

#: Blocks from which on dask's order of them all takes longer than what waits costs.
MANY = 512


def _rechunked(x: da.Array, chunks: Chunks) -> da.Array:
    if tuple(tuple(map(int, cut)) for cut in x.chunks) == chunks:
        return x
    return cast("da.Array", x.rechunk(chunks, method="tasks"))


def merged_blocks(x: da.Array, chunks: Chunks) -> da.Array:
    """Return the array with neighbouring blocks merged, by plain tasks."""
    return _rechunked(x, chunks)


def cut_blocks(x: da.Array, chunks: Chunks) -> da.Array:
    """Return the array with blocks cut, by plain tasks.

    Where there are very many, and each is cut from a single one, the last of those that are cut
    from the same block depends on the others.
    """
    places = [_places(old, new) for old, new in zip(x.chunks, chunks, strict=True)]
    whole = all(place is not None for along in places for place in along)
    count = math.prod(map(len, chunks))
    if count < MANY or count == x.npartitions or not whole or array_expressions_enabled():
        return _rechunked(x, chunks)
    name = f"bigfft_cut-{tokenize(x.name, chunks)}"
    graph: dict[Key, Any] = {}
    groups: dict[Key, list[Key]] = {}
    for block in itertools.product(*(range(len(along)) for along in chunks)):
        found: Any = [along[i] for along, i in zip(places, block, strict=True)]
        source: Key = (x.name, *(origin for origin, _ in found))
        key: Key = (name, *block)
        groups.setdefault(source, []).append(key)
        graph[key] = Task(key, _part, TaskRef(source), tuple(cut for _, cut in found))
    for keys in groups.values():
        last = keys.pop()
        graph[last] = Task(last, _part, *graph[last].args, *map(TaskRef, keys))
    dependencies: Any = [x]
    layers = HighLevelGraph.from_collections(name, graph, dependencies=dependencies)
    return da.Array(layers, name, chunks=chunks, meta=x._meta)


def _part(block: Any, cut: tuple[slice, ...], *_: Any) -> Any:
    """A part of a block; the others had to be there before."""
    return block[cut]


def _places(before: Sequence[int], after: Sequence[int]) -> list[tuple[int, slice] | None]:
    """Which block each one is cut from along an axis, and where; None if from several.

    >>> _places((4, 4), (2, 2, 3, 1))
    [(0, slice(0, 2, None)), (0, slice(2, 4, None)), (1, slice(0, 3, None)), (1, slice(3, 4, None))]
    >>> _places((4, 4), (3, 3, 2))
    [(0, slice(0, 3, None)), None, (1, slice(2, 4, None))]
    """
    ends = list(itertools.accumulate(before))
    found: list[tuple[int, slice] | None] = []
    low = 0
    for length in after:
        i = min(bisect_right(ends, low), len(ends) - 1)
        start, high = ends[i] - before[i], low + length
        found.append((i, slice(low - start, high - start)) if high <= ends[i] else None)
        low = high
    return found
