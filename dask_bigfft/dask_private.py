"""All private names of dask that the library uses.

If a release of dask moves one of them, only this file has to change.
"""

import sys
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, cast

import dask.array as da
from dask._task_spec import Alias, DataNode, Task, TaskRef, _execute_subgraph
from dask.array.backends import NumpyBackendEntrypoint, array_creation_dispatch
from dask.array.core import finalize, slices_from_chunks
from dask.array.rechunk import old_to_new
from dask.blockwise import Blockwise
from dask.callbacks import Callback
from dask.highlevelgraph import HighLevelGraph, Layer
from dask.layers import ArraySliceDep

# names that other modules import from here
__all__ = ["Alias", "DataNode", "HighLevelGraph", "Layer", "NumpyBackendEntrypoint", "Task"]
__all__ += ["TaskRef", "array_creation_dispatch", "finalize", "old_to_new", "slices_from_chunks"]

#: True if ``array.query-planning`` was on when `dask.array` was imported: arrays are expressions.
ARRAY_EXPRESSIONS = da.array_expr_enabled()


def unfused(key: Any, task: Any) -> Iterator[tuple[Any, Any]]:
    """Yield key and task of all tasks that dask has fused into one, or of the task itself."""
    if getattr(task, "func", None) is not _execute_subgraph:
        yield key, task
        return
    inner_tasks = task.args[0]
    for inner_key, inner_task in inner_tasks.items():
        yield from unfused(inner_key, inner_task)


def results_are_kept() -> bool:
    """Return whether a `dask.cache.Cache` is active, which keeps results between computations.

    Dask lists the active callbacks as five methods of an object each.
    """
    cache = sys.modules.get("dask.cache")
    if cache is None:
        return False
    found = (getattr(method, "__self__", None) for row in Callback.active for method in row)
    return any(isinstance(owner, cache.Cache) for owner in found)


def finished_by(array: da.Array, function: Callable[..., Any], *arguments: Any) -> da.Array:
    """Return the array, whose blocks `compute` now assembles by a function.

    The function is called with nested lists of blocks and the arguments, and replaces dask's
    `finalize`. Copies of the array and arrays derived from it are not affected. A subclass would
    not work, because NumPy's functions on dask arrays accept only dask's own class.
    """

    def postcompute() -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (finalize, ()) if results_are_kept() else (function, arguments)

    vars(array)["__dask_postcompute__"] = postcompute
    return array


def original_of(x: da.Array) -> Any:
    """Return the object that `dask.array.from_array` has wrapped as this array; None if unknown.

    The blocks of the array are the slices of that object by their chunks.
    """
    layers = getattr(getattr(x, "dask", None), "layers", {})
    layer, name = layers.get(getattr(x, "name", None)), f"original-{getattr(x, 'name', None)}"
    if not isinstance(layer, Blockwise) or name not in layers:
        return None
    cuts = [dep.chunks for dep in layer.io_deps.values() if isinstance(dep, ArraySliceDep)]
    return layers[name][name] if cuts == [x.chunks] and len(layer.indices) == 2 else None


def expression_array(x: Any, recipe: Any) -> da.Array:
    """Return the lazy result of a recipe on an array, where dask arrays are expressions.

    A recipe has a `plan` with the `chunks` of the result, its `meta` like another array, the `name`
    of its blocks, given a token, and its `tasks`, given a token and the name of the source array.
    """
    expression: Any = _FromRecipe
    return cast("da.Array", new_collection(expression(x.expr, recipe)))


def recipe_of(x: da.Array) -> tuple[da.Array, Any] | None:
    """Return the source and the recipe of a result of `expression_array`; None for others."""
    expression: Any = getattr(x, "expr", None)
    if not ARRAY_EXPRESSIONS or not isinstance(expression, _FromRecipe):
        return None
    return cast("da.Array", new_collection(expression.operands[0])), expression.operands[1]


def nearest_from_recipe(x: da.Array) -> da.Array | None:
    """Return the result of `expression_array` that is the only source of an array, or None."""
    expression: Any = getattr(x, "expr", None)
    while not isinstance(expression, _FromRecipe):
        before = [] if expression is None else expression.dependencies()
        if len(before) != 1:
            return None
        (expression,) = before
    return cast("da.Array", new_collection(expression))


if ARRAY_EXPRESSIONS:
    from dask._collections import new_collection
    from dask.array._array_expr._expr import ArrayExpr

    class _FromRecipe(ArrayExpr):  # type: ignore[misc, unused-ignore]
        """Array that tasks of a recipe make from another one."""

        _parameters = ["array", "recipe"]  # noqa: RUF012 (the base class has it so)

        @cached_property
        def _name(self) -> Any:
            return self.operands[1].name(self.deterministic_token)

        @property
        def chunks(self) -> Any:
            return self.operands[1].plan.chunks

        @property
        def _meta(self) -> Any:
            return self.operands[1].meta(self.operands[0]._meta)

        def _layer(self) -> Any:
            return self.operands[1].tasks(self.deterministic_token, self.operands[0]._name)
