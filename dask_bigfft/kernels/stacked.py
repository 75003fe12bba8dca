"""`Stacked`: a block in whose memory the shards of the next exchange lie one after the other.

::

    block, rows x columns         its memory, of which each target block reads one run
      | a a | b b | c c |           a a a a ...  b b b b ...  c c c c ...

Whoever writes a block piece by piece, as a device does, may as well write it so: the rows of a
shard then lie apart on the device only, which costs little, and not in host memory, where each
takes a copy engine longer. The block is a view with one dimension more, the cut one in two.

Imports `memory` and this room.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dask_bigfft.kernels.composite import Array, Block, Composite, Edge, Stretches
from dask_bigfft.kernels.copies import strided_view
from dask_bigfft.memory import lend


@dataclass(frozen=True)
class Stacked:
    """How a block is stacked.

    Parameters
    ----------
    dim : int
        Dimension of the block that is cut.
    width : int
        Of a shard along it; divides the block.
    """

    dim: int
    width: int

    def shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Of the view, from that of the block.

        >>> Stacked(1, 8).shape((5, 32, 2))
        (5, 4, 8, 2)
        """
        count = shape[self.dim] // self.width
        return (*shape[: self.dim], count, self.width, *shape[self.dim + 1 :])

    def lent(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Composite:
        """A block of some shape in lent memory, as its shards, to be written to."""
        whole = self.shape(shape)
        memory = lend((whole[self.dim], *whole[: self.dim], *whole[self.dim + 1 :]), dtype)
        return self.composite(memory)

    def whole(self, block: Composite) -> Array:
        """The block as a view of its memory, from its shards."""
        first = next(iter(block.sources.values()))
        shape, step = (len(block.sources), *first.shape), first.nbytes
        memory = strided_view(first, 0, shape, (step, *first.strides))
        return np.moveaxis(memory, 0, self.dim)

    def composite(self, memory: Array) -> Composite:
        """The block as its shards, to be written to."""
        shape = list(memory.shape[1:])
        shape[self.dim] *= len(memory)
        axes, sources = list[Stretches](), dict[Block, Array]()
        for dim, n in enumerate(shape):
            width = self.width if dim == self.dim else n
            lows = np.arange(0, n, width)[:, None]
            starts = np.zeros_like(lows)
            axes.append(Stretches((dim,), lows, lows + width, np.arange(len(lows)), (dim,), starts))
        for i, shard in enumerate(memory):
            sources[tuple(i if dim == self.dim else 0 for dim in range(len(shape)))] = shard
        edges = tuple(Edge(n, dim, dim, 1) for dim, n in enumerate(shape))
        return Composite(edges, (1,) * len(shape), tuple(axes), sources)
