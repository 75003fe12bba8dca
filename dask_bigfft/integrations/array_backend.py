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

from typing import Any

import dask
import dask.array as da
import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import ArgumentTypeError, refuse
from dask_bigfft.graph.dask_private import NumpyBackendEntrypoint
from dask_bigfft.memory import lend
from dask_bigfft.memory.arena import NUMERIC_KINDS, is_lent
from dask_bigfft.memory_settings import configure_arena

__all__ = ["ArenaBackend"]

Array = npt.NDArray[Any]


def _created_by(function: str, copy: bool = True) -> Any:
    """Return a creation function of dask's with blocks in the arena, initialised if `copy`."""

    def create(*args: Any, name: str | None = None, **kwargs: Any) -> da.Array:
        with dask.config.set({"array.backend": "numpy"}):
            like = getattr(da, function)(*args, **kwargs)
        return _moved(like, name=name, copy=copy)

    return staticmethod(create)


def _moved(data: da.Array, **kwargs: Any) -> da.Array:
    meta = np.empty((0,) * data.ndim, data.dtype)
    work: Any = into_arena
    found: da.Array = data.map_blocks(work, dtype=data.dtype, meta=meta, **kwargs)
    return found


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
        return _moved(data, **kwargs)

    # Dask knows arguments, dtypes and chunks; its ones, zeros and full take no memory.
    ones, zeros, full = map(_created_by, ("ones", "zeros", "full"))
    empty, arange = _created_by("empty", copy=False), _created_by("arange")


def into_arena(block: Any, copy: bool = True) -> Array:
    """Return a block of NumPy's or CuPy's in memory of the arena, itself if it lies there."""
    if isinstance(block, np.ndarray) and (is_lent(block) or block.dtype.kind not in NUMERIC_KINDS):
        return block
    configure_arena()
    out = lend(block.shape, block.dtype)
    if not isinstance(block, np.ndarray):
        block.get(out=out)
    elif copy:
        out[...] = block
    return out
