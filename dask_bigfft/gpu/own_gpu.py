"""Functions of blocks that work on the GPU of their block.

Functions that users call are decorated when they are imported, so this module imports others of the
room only for a block on a GPU.
"""

import functools
from collections.abc import Callable
from typing import Any

from dask_bigfft.gpu.cuda import cupy, current, errors_of_cuda, synchronize
from dask_bigfft.kernels.views import is_on_gpu


def on_own_gpu(work: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of blocks that works on the GPU of the first one, if that is on a GPU.

    Blocks on other GPUs are copied there.
    """

    @functools.wraps(work)
    def function(block: Any, *others: Any, **kwargs: Any) -> Any:
        if not is_on_gpu(block):
            return work(block, *others, **kwargs)

        from dask_bigfft.gpu.links import gpus

        homes = {gpus().home(x) for x in (block, *others) if is_on_gpu(x)}
        with current(block.device), errors_of_cuda():
            gpus().join(homes)
            near = [cupy().asarray(x) if is_on_gpu(x) else x for x in others]
            result = work(block, *near, **kwargs)
            gpus().join(homes)
            synchronize()
            return result

    return function
