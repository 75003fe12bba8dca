"""Transforms on which the cost model is held against the clock; calibration does not know them.

Imports `planning`, `planner`, `transforms` and the settings.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import dask.array as da
import numpy as np

from dask_bigfft import config
from dask_bigfft.memory_settings import machine_nbytes
from dask_bigfft.planner.plan import Machine, Plan
from dask_bigfft.planner.profile import Profile
from dask_bigfft.planner.request import Request
from dask_bigfft.planner.search import find_plan
from dask_bigfft.planning.trials import in_memory
from dask_bigfft.transforms.spec import transform_spec

__all__ = ["PROBLEMS", "Problem", "machine_of"]


@dataclass(frozen=True)
class Problem:
    """A transform that is planned and run.

    Parameters
    ----------
    name, kind : str
        What it is called, and the transform.
    shape, chunks : tuple of int
        Of the array, and of its largest chunk.
    dtype : str
        Of the array.
    axes : tuple of int or None
        The transformed axes.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str = "complex128"
    axes: tuple[int, ...] | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return math.prod(self.shape) * np.dtype(self.dtype).itemsize

    def lazy(self) -> da.Array:
        """An array of ones, lazily."""
        x: Any = da.ones(self.shape, chunks=self.chunks, dtype=self.dtype)
        return x  # type: ignore[no-any-return]

    def array(self) -> da.Array:
        """An array of ones whose blocks have memory of their own."""
        return in_memory(self.lazy())

    def scaled(self, scale: float) -> "Problem":
        """The problem with a part of its first axis."""
        if scale >= 1:
            return self
        first = max(2, round(self.shape[0] * scale))
        width = max(1, round(self.chunks[0] * scale))
        shape, chunks = (first, *self.shape[1:]), (width, *self.chunks[1:])
        return replace(self, shape=shape, chunks=chunks)

    def request(self, x: da.Array, kernel: str, carrier: str = "memory") -> Request:
        """What the planner is asked."""
        chunks = tuple(tuple(map(int, cut)) for cut in x.chunks)
        return Request(chunks, kernel=kernel, carrier=carrier, device="cpu")

    def plan(self, x: da.Array, kernel: str, on: Machine) -> Plan:
        """The plan that the model likes best."""
        spec = transform_spec(self.kind, self.shape, np.dtype(self.dtype), None, self.axes)
        return find_plan(spec, self.request(x, kernel), on)


#: None of these lengths and chunks is a probe's.
PROBLEMS = (
    Problem("line of 3 x 2^20", "fftn", (3 << 20,), (3 << 16,)),
    Problem("line of 2^22, single", "fftn", (1 << 22,), (1 << 18,), "complex64"),
    Problem("plane in rows", "fftn", (1536, 2048), (96, 2048)),
    Problem("plane in rows, single", "fftn", (3000, 1250), (250, 1250), "complex64"),
    Problem("plane in squares", "fftn", (1800, 1600), (450, 400)),
    Problem("tall plane", "fftn", (49152, 60), (4096, 60)),
    Problem("slabs", "fftn", (144, 150, 160), (12, 150, 160)),
    Problem("pencils", "fftn", (144, 144, 144), (36, 36, 144)),
    Problem("real slabs", "rfftn", (160, 180, 192), (16, 180, 192), "float64"),
    Problem("one axis of a batch", "fftn", (768, 4096), (96, 512), "complex128", (1,)),
)


def machine_of(profile: Profile, threads: int) -> Machine:
    """Return the machine that this runs on, as fast as a profile says."""
    together = config.get("bigfft.exchange.in-place")
    return Machine(machine_nbytes(), threads, 1, profile=profile, shared=together)
