"""Every name of dask's that is not public API, in one place.

If a release of dask moves one of them, this file is what has to follow.
"""

from typing import Any

import dask.array as da
from dask._task_spec import DataNode, Task, TaskRef
from dask.highlevelgraph import HighLevelGraph, Layer

__all__ = ["DataNode", "HighLevelGraph", "Layer", "Task", "TaskRef", "array_expressions_enabled"]


def array_expressions_enabled() -> bool:
    """Whether ``array.query-planning`` is on, so that dask arrays are expressions."""
    enabled: Any = getattr(da, "_array_expr_enabled", None)
    return bool(enabled is not None and enabled())
