"""What the first tasks of a Bluestein filter run: its blocks are made where they are needed.

Imports `planner`, `kernels`, `events` and this room.
"""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.events import during
from dask_bigfft.graph.run import Run
from dask_bigfft.kernels.loop import axis_index
from dask_bigfft.kernels.twiddle import chirp_filter
from dask_bigfft.kernels.views import BlockView
from dask_bigfft.planner.filters import FilterPlan

Array = npt.NDArray[Any]
Block = tuple[int, ...]


def generate_filter(run: Run, block: Block) -> Array:
    """Return a block of a Bluestein filter after its first round."""
    plan, known = run.plan, run.done(0, block)
    assert isinstance(plan, FilterPlan)
    if known is not None:
        return known[0]  # type: ignore[no-any-return]
    round_ = plan.rounds[0]
    axis = round_.source.axes[0]
    places = axis_index(axis, block[0], 0)
    padded = math.prod(digit.radix for digit in axis.digits)
    dtype = np.dtype(plan.dtypes[0])

    def incoming() -> BlockView:
        values = chirp_filter(
            axis.shape(block[0]),
            places,
            padded,
            plan.chirp.length,
            plan.chirp.sign,
            dtype,
            plan.chirp.step,
            plan.chirp.offset,
        )
        return BlockView.of(np.ascontiguousarray(values), owned=True)

    with during(run.token, 1):
        return run.deliver(0, block, run.finish(0, block, incoming, {}))
