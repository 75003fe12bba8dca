"""Data of the GPU benchmark: shapes, lazy arrays over memory that is there, and distances.

Imports the standard library, dask and NumPy.
"""

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import dask.array as da
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
MIB = 1 << 20


def even_shape(elements: int, ndim: int) -> tuple[int, ...]:
    """A shape of powers of two, as even as can be, the last ones longer.

    >>> even_shape(2**10, 3)
    (8, 8, 16)
    """
    bits, shape = elements.bit_length() - 1, []
    for left in range(ndim, 0, -1):
        shape.append(1 << (bits // left))
        bits -= bits // left
    return tuple(shape)


def lazy(memory: list[Array], shape: tuple[int, ...], dtype: str) -> da.Array:
    """A dask array whose blocks are these, cut along the first axis."""
    rows = shape[0] // len(memory)
    chunks = ((rows,) * len(memory), *((n,) for n in shape[1:]))
    name = f"bench-{id(memory)}-{shape}-{dtype}"
    rest = (0,) * (len(shape) - 1)
    graph = {
        (name, i, *rest): block.view(dtype).reshape(rows, *shape[1:])
        for i, block in enumerate(memory)
    }
    return da.Array(graph, name, chunks, dtype=dtype)


def owner(array: Array) -> Array:
    """The array whose memory this one is a part of."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def fill(memory: list[Array], dtype: str, seed: int = 1) -> None:
    """Random values, in single precision so that it does not take long."""
    real = np.empty(0, dtype).real.dtype

    def one(numbered: tuple[int, Array]) -> None:
        rng, values = np.random.default_rng((seed, numbered[0])), numbered[1].view(real)
        for low in range(0, values.size, 1 << 24):
            part = values[low : low + (1 << 24)]
            part[...] = rng.standard_normal(part.size, np.float32)

    with ThreadPoolExecutor(16) as pool:
        pieces = [
            found[low : low + 256 * MIB] for found in memory
            for low in range(0, found.nbytes, 256 * MIB)
        ]
        list(pool.map(one, enumerate(pieces)))


def distance(done: da.Array, expected: Array) -> float:
    """Relative L2 distance, block by block."""
    starts = [np.cumsum((0, *cut)) for cut in done.chunks]
    keys: Any = done.__dask_keys__()

    def squares(key: tuple[Any, ...]) -> tuple[float, float]:
        block: Any = done.dask[key]
        block, off, norm = getattr(block, "value", block), 0.0, 0.0
        place = tuple(
            slice(starts[axis][i], starts[axis][i + 1]) for axis, i in enumerate(key[1:])
        )
        wanted = expected[place]
        for a, b in zip(np.array_split(block, 64), np.array_split(wanted, 64), strict=True):
            off += float(np.linalg.norm((a - b).ravel())) ** 2
            norm += float(np.linalg.norm(b.ravel())) ** 2
        return off, norm

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(squares, _flat(keys)))
    return math.sqrt(sum(off for off, _ in found) / sum(norm for _, norm in found))


def _flat(keys: Any) -> Iterator[tuple[Any, ...]]:
    for found in keys:
        if isinstance(found, list):
            yield from _flat(found)
        else:
            yield found
