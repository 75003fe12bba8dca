"""`Exchange`: what travels between two rounds.

Pure: imports `decomposition`.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from dask_bigfft.decomposition.layout import Layout
from dask_bigfft.decomposition.rounds import ExchangeShape, Mirror, exchange_shape, packed_dtype

__all__ = ["Exchange"]


@dataclass(frozen=True)
class Exchange:
    """Exchange between two rounds: blocks of `source` become blocks of `target`.

    Parameters
    ----------
    source, target : Layout
        Blocks before and after.
    dtype, source_dtype : str
        Of the target's blocks, and of the source's.
    mirror : Mirror or None
        How half a spectrum is completed on the way.
    """

    source: Layout
    target: Layout
    dtype: str
    source_dtype: str
    mirror: Mirror | None = None

    @cached_property
    def shape(self) -> ExchangeShape:
        """Fan-in, C, W and groups."""
        return exchange_shape(self.source, self.target)

    @cached_property
    def local(self) -> bool:
        """Return whether nothing travels."""
        return self.shape.local and (self.mirror is None or self.source.blocks == 1)

    @property
    def nbytes(self) -> int:
        """Bytes of all target blocks."""
        return self.target.size * np.dtype(self.dtype).itemsize

    @property
    def shard_dtype(self) -> np.dtype[Any]:
        """Dtype of the shards, where they are packed."""
        return packed_dtype(np.dtype(self.source_dtype), np.dtype(self.dtype))

    @property
    def shard_nbytes(self) -> int:
        """Bytes of all packed shards."""
        return self.target.size * self.shard_dtype.itemsize
