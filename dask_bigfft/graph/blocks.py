"""Blocks that come into an exchange: those of a group together, each as what the plan expects.

Imports `gpu`, `exchange`, `planner` and `errors`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import ArgumentTypeError, refuse
from dask_bigfft.exchange.common import Common
from dask_bigfft.exchange.tables import Choice
from dask_bigfft.gpu.on_gpu import as_block
from dask_bigfft.planner.plan import Plan

if TYPE_CHECKING:
    from dask_bigfft.graph.run import Run

Array = npt.NDArray[Any]
Block = tuple[int, ...]


class Blocks:
    """Handle of a barrier: blocks that lie in this process, by their index.

    `common` is the memory in which all of them lie together, if they do. `homes` are the GPUs on
    which target blocks are gathered, where source blocks lie on several, and `choice` the transport
    from one GPU to another.
    """

    def __init__(self, blocks: Mapping[Block, Array]) -> None:
        self.blocks = dict(blocks)
        self.common: Common | None = None
        self.homes: dict[Block, int] = {}
        self.choice: Choice | None = None
        self._checked: dict[Block, Array] = {}

    def __getitem__(self, block: Block) -> Array:
        return self.blocks[block]

    def checked(self, run: "Run", number: int, index: Block) -> Array:
        """Return a block as `checked` does, which is asked once for all that are made of it."""
        found = self._checked.get(index)
        if found is None:
            found = self._checked[index] = checked(run, number, index, self.blocks[index])
        return found


def checked(run: "Run", number: int, index: Block, values: Any) -> Array:
    """Return a source block as an array, if it is what the plan was made for.

    Copies go by the plan's shapes: a block that is smaller than its metadata say would be read
    beyond its end.

    Raises
    ------
    ArgumentError, ArgumentTypeError
        If it is not: the metadata of the dask array that came in are wrong.
    """
    if np.ma.is_masked(values):
        refuse(
            "a",
            f"block {index}, in which values are masked",
            "an array without a mask: fill it, as dask.array.ma.filled(a, 0) does",
            kind=ArgumentTypeError,
        )
    block: Array = as_block(values)
    exchange = run.exchange(number)
    expected = exchange.source.shape(index)
    if block.shape != expected and block.shape != run.stored(number).shape(index):
        refuse(
            "a",
            f"block {index} of shape {block.shape}",
            f"the shape {expected} that the dask "
            "array's chunks declare; compute_chunk_sizes() corrects them",
        )
    if number == 0 and isinstance(run.plan, Plan) and block.dtype.kind == "c":
        declared = np.dtype(run.plan.spec.dtype)
        if declared.kind != "c":
            refuse(
                "a",
                f"block {index} of dtype {block.dtype}",
                f"the real dtype {declared} that the dask array declares",
            )
    return block.reshape(run.stored(number).shape(index))
