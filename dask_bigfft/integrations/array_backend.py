"""The array backend "bigfft" of dask: blocks are NumPy arrays in memory of the process' arena.

Installing the package announces it to dask (entry point ``dask.array.backends``), so that these
work without an import::

    x.to_backend("bigfft")                          # copies blocks into the arena
    with dask.config.set({"array.backend": "bigfft"}):
        da.zeros(shape, chunks=chunks)              # makes blocks there

What it is good for: the arena's memory is reused, so blocks that come and go cost no fresh pages;
and where a worker has a GPU the arena is pinned, so that blocks cross the bus without being
staged. Transforms on CPUs are hardly faster for it: their own blocks lie in the arena anyway, and a
gather reads other memory as fast. `examples/array_backend.py` measures it; on a common machine of
two cores making blocks was 1.9 times, copying them 1.4 times and a transform 1.0 times as fast. It
is no gain where dask would not make blocks at all: `da.zeros`, `da.ones` and `da.full` ordinarily
take no memory, since all elements of a block are one. Blocks below 512 KiB are ordinary memory, and
so are random numbers, which come from NumPy's generators.

Imports `memory`.
"""

from collections.abc import Mapping
from typing import Any

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import ArgumentTypeError, refuse
from dask_bigfft.graph.dask_private import NumpyBackendEntrypoint
from dask_bigfft.memory import SMALL_NBYTES, lend
from dask_bigfft.memory.arena import NUMERIC_KINDS, is_lent
from dask_bigfft.memory_settings import configure_arena

__all__ = ["ArenaBackend"]

Array = npt.NDArray[Any]


class ArenaBackend(NumpyBackendEntrypoint):  # type: ignore[misc, unused-ignore]
    """Array creation, and `to_backend`, in memory of the arena."""

    @classmethod
    def to_backend(cls, data: da.Array, **kwargs: Any) -> da.Array:
        """Return the array with its blocks in the arena; those that lie there are not copied.

        Parameters
        ----------
        data : dask.array.Array
            With blocks of NumPy or CuPy arrays.

        Raises
        ------
        ArgumentTypeError
            If blocks have a mask or are of another kind.
        """
        kind = type(data._meta)
        if kind is not np.ndarray and kind.__module__.partition(".")[0] != "cupy":
            refuse(
                "data",
                f"blocks of {kind.__qualname__}",
                "blocks of numpy.ndarray or cupy.ndarray",
                kind=ArgumentTypeError,
            )
        meta = np.empty((0,) * data.ndim, data.dtype)
        blocks: Any = into_arena
        found: da.Array = data.map_blocks(blocks, dtype=data.dtype, meta=meta, **kwargs)
        return found

    @staticmethod
    def ones(*args: Any, **kwargs: Any) -> da.Array:
        """Return what `dask.array.ones` returns, with a memory of its own for every block."""
        return _filled(_by_dask("ones", *args, **kwargs), 1, kwargs.get("name"))

    @staticmethod
    def zeros(*args: Any, **kwargs: Any) -> da.Array:
        """Return what `dask.array.zeros` returns, with a memory of its own for every block."""
        return _filled(_by_dask("zeros", *args, **kwargs), 0, kwargs.get("name"))

    @staticmethod
    def empty(*args: Any, **kwargs: Any) -> da.Array:
        """Return an array whose blocks are not initialised."""
        return _filled(_by_dask("empty", *args, **kwargs), None, kwargs.get("name"))

    @staticmethod
    def full(shape: Any, fill_value: Any, *args: Any, **kwargs: Any) -> da.Array:
        """Return what `dask.array.full` returns, with a memory of its own for every block."""
        like = _by_dask("full", shape, fill_value, *args, **kwargs)
        return _filled(like, fill_value, kwargs.get("name"))

    @staticmethod
    def arange(*args: Any, **kwargs: Any) -> da.Array:
        """Return what `dask.array.arange` returns, moved into the arena."""
        return ArenaBackend.to_backend(_by_dask("arange", *args, **kwargs))


def _by_dask(function: str, /, *args: Any, **kwargs: Any) -> da.Array:
    """Return what dask makes with NumPy: it knows arguments, dtypes and chunks."""
    with dask.config.set({"array.backend": "numpy"}):
        found: da.Array = getattr(da, function)(*args, **kwargs)
    return found


def _filled(like: da.Array, value: Any, name: str | None) -> da.Array:
    """An array with memory of its own, where blocks are large enough for the arena."""
    largest = int(np.prod([max(cut, default=0) for cut in like.chunks], dtype=np.int64))
    if largest * like.dtype.itemsize < SMALL_NBYTES or like.dtype.kind not in NUMERIC_KINDS:
        return like
    found: da.Array = da.map_blocks(
        filled_block,
        chunks=like.chunks,
        dtype=like.dtype,
        value=value,
        name=name,
        meta=np.empty((0,) * like.ndim, like.dtype),
    )
    return found


def filled_block(value: Any, block_info: Mapping[None, Mapping[str, Any]]) -> Array:
    """Return a block of one value, or one that is not initialised."""
    configure_arena()
    block = block_info[None]
    out = lend(block["chunk-shape"], block["dtype"])
    if value is not None:
        out.fill(value)
    return out


def into_arena(block: Any) -> Array:
    """Return a block of NumPy's or CuPy's in memory of the arena, itself if it lies there."""
    if isinstance(block, np.ndarray) and (is_lent(block) or block.dtype.kind not in NUMERIC_KINDS):
        return block
    configure_arena()
    out = lend(block.shape, block.dtype)
    if isinstance(block, np.ndarray):
        out[...] = block
    else:
        block.get(out=out)
    return out
