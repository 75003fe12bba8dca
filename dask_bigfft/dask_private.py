"""All private names of dask that the library uses.

If a release of dask moves one of them, only this file has to change.
"""

import functools
import operator
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import dask
import dask.array as da
import numpy as np
from dask._task_spec import (
    Alias,
    DataNode,
    Task,
    TaskRef,
    _execute_subgraph,
    convert_legacy_graph,
)
from dask.array.backends import NumpyBackendEntrypoint, array_creation_dispatch
from dask.array.core import finalize, slices_from_chunks
from dask.array.rechunk import old_to_new
from dask.base import clone_key, named_schedulers
from dask.blockwise import Blockwise, blockwise_token
from dask.callbacks import Callback
from dask.core import flatten
from dask.highlevelgraph import HighLevelGraph, Layer, MaterializedLayer
from dask.layers import ArraySliceDep

from dask_bigfft.expressions import CalculationExpression, RecipeExpression

# names that other modules import from here
__all__ = ["Alias", "DataNode", "HighLevelGraph", "Layer", "NumpyBackendEntrypoint", "Task"]
__all__ += ["TaskRef", "array_creation_dispatch", "finalize", "old_to_new", "slices_from_chunks"]

#: Name of the package whose arrays are expressions, and which dask does not import.
DASK_ARRAY = "dask_array"

#: True if ``array.query-planning`` was on when `dask.array` was imported: arrays are expressions.
ARRAY_EXPRESSIONS: bool = da.array_expr_enabled()


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
    owners = (getattr(method, "__self__", None) for row in Callback.active for method in row)
    return any(isinstance(owner, cache.Cache) for owner in owners)


def finished_by(array: da.Array, function: Callable[..., Any], *arguments: Any) -> da.Array:
    """Return the array, whose blocks `compute` now assembles by a function.

    The function is called with nested lists of blocks and the arguments, and replaces dask's
    `finalize`. Copies of the array and arrays derived from it are not affected. A subclass would
    not work, because NumPy's functions on dask arrays accept only dask's own class.

    The array's `compute` and `persist` import distributed only if there may be a client.
    """

    def postcompute() -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (finalize, ()) if results_are_kept() else (function, arguments)

    lasting_array = _LastingArray(array, postcompute)

    def compute(scheduler: Any = None, **options: Any) -> Any:
        scheduler = _without_client(scheduler)
        return da.Array.compute(lasting_array.get(), scheduler=scheduler, **options)

    def persist(scheduler: Any = None, **options: Any) -> Any:
        scheduler = _without_client(scheduler)
        return da.Array.persist(lasting_array.get(), scheduler=scheduler, **options)

    compute.__doc__ = da.Array.compute.__doc__
    persist.__doc__ = da.Array.persist.__doc__
    vars(array)["__dask_postcompute__"] = postcompute
    vars(array)["compute"] = compute
    vars(array)["persist"] = persist
    return array


class _LastingArray:
    """Array for functions that are attributes of the array itself.

    A reference to the array would make a cycle. In ``fft(x).compute()`` the array is deleted before
    the function is called, so its parts are kept. An assignment such as ``y[0] = 1`` replaces them.
    Dask then replaces `array.dask`, which nothing else refers to, and its weak reference says so.
    """

    def __init__(self, array: da.Array, postcompute: Callable[[], Any]) -> None:
        self.graph = array.dask
        self.name = array.name
        self.chunks = array.chunks
        self.meta = array._meta
        self.postcompute = postcompute
        self.reference = weakref.ref(array)
        self.is_changed = False
        array.dask = HighLevelGraph(self.graph.layers, self.graph.dependencies)
        self.graph_reference = weakref.ref(array.dask, self._note_end_of_graph)

    def _note_end_of_graph(self, graph: Any) -> None:
        """Note that the array has been changed, unless it is deleted itself."""
        if self.reference() is not None:
            self.is_changed = True

    def get(self) -> da.Array:
        """Return the array, or an equal one if it has been deleted."""
        array = self.reference()
        if array is not None:
            return array
        if self.is_changed:
            raise RuntimeError("the array of this method has been changed and then deleted")
        array = da.Array(self.graph, self.name, self.chunks, meta=self.meta)
        vars(array)["__dask_postcompute__"] = self.postcompute
        return array


def _without_client(scheduler: Any) -> Any:
    """Return the function of a scheduler by its name, or of the default one, without a client.

    A scheduler that is not a name, or one of distributed, is returned unchanged. Dask would import
    distributed to look for a client, which takes 0.25 s. A process without it has no client.
    """
    if "distributed" in sys.modules:
        return scheduler
    chosen = dask.config.get("scheduler", None) if scheduler is None else scheduler
    if chosen is None:
        return da.Array.__dask_scheduler__
    if isinstance(chosen, str):
        return named_schedulers.get(chosen.lower(), scheduler)
    return scheduler


def with_own_tasks(array: da.Array, seed: str) -> da.Array:
    """Return an array whose blocks are computed by tasks of its own.

    Its tasks are those of the array with other keys, which depend on `seed`. An array is returned
    as it is if its graph has other layers than those of plain tasks and of functions of blocks:
    tasks of an exchange must not run twice.

    `dask.graph_manipulation.clone` leaves keys in task objects as they are.
    """
    graph = array.__dask_graph__()
    if not isinstance(graph, HighLevelGraph):
        return array
    new_keys: dict[Any, Any] = {}
    for layer in graph.layers.values():
        if not isinstance(layer, Blockwise) and type(layer) is not MaterializedLayer:
            return array
        own_keys = layer.get_output_keys() if isinstance(layer, Blockwise) else dict(layer)
        new_keys.update((key, clone_key(key, seed)) for key in own_keys)
    layers: dict[str, Layer] = {}
    dependencies = {}
    for name, layer in graph.layers.items():
        new_name = clone_key(name, seed)
        dependencies[new_name] = {clone_key(other, seed) for other in graph.dependencies[name]}
        if isinstance(layer, Blockwise):
            layers[new_name], _ = layer.clone(set(new_keys), seed)
            continue
        nodes = convert_legacy_graph(dict(layer), set(new_keys))
        layers[new_name] = MaterializedLayer(
            {
                new_keys[key]: node.substitute(new_keys, key=new_keys[key])
                for key, node in nodes.items()
            }
        )
    new_graph = HighLevelGraph(layers, dependencies)
    new_array_name = clone_key(array.name, seed)
    return da.Array(new_graph, new_array_name, array.chunks, meta=array._meta)


def original_of(x: da.Array) -> Any:
    """Return the object that `dask.array.from_array` has wrapped as this array; None if unknown.

    The blocks of the array are the slices of that object by their chunks.
    """
    if is_expression(x):  # whose graph would be made for this
        return None
    layers = getattr(getattr(x, "dask", None), "layers", {})
    layer, name = layers.get(getattr(x, "name", None)), f"original-{getattr(x, 'name', None)}"
    if not isinstance(layer, Blockwise) or name not in layers:
        return None
    cuts = [dep.chunks for dep in layer.io_deps.values() if isinstance(dep, ArraySliceDep)]
    return layers[name][name] if cuts == [x.chunks] and len(layer.indices) == 2 else None


def values_in_graph(x: Any) -> Iterator[Any]:
    """Yield the values that are arguments of a lazy array's tasks, such as stored arrays.

    Layers of other kinds than dask's own are left out: to list their tasks may be expensive.
    """
    if is_expression(x):
        for expression in x.expr.walk():
            yield from _values_in_task(expression.operands)
        return
    for layer in x.__dask_graph__().layers.values():
        if isinstance(layer, Blockwise):
            yield from _values_in_task([layer.task, layer.indices])
        elif isinstance(layer, MaterializedLayer):
            yield from _values_in_task(dict(layer))


def _values_in_task(task: Any) -> Iterator[Any]:
    """Yield the values in a task, or in nested tuples, lists and dicts of tasks."""
    children: Iterable[Any]
    match task:
        case DataNode():
            children = [task.value]
        case Task():
            children = [*task.args, *task.kwargs.values()]
        case dict():
            children = task.values()
        case tuple() | list():
            children = task
        case _:
            yield task
            return
    for child in children:
        yield from _values_in_task(child)


# --- element-wise operations ------------------------------------------------------------------


@dataclass(frozen=True)
class ArrayName:
    """Array that is an argument of an element-wise call: its name and its number of axes."""

    name: str
    ndim: int


@dataclass(frozen=True)
class ElementwiseCall:
    """Call of a function for each block, with blocks of arrays that broadcast to it.

    Parameters
    ----------
    function : callable
        The function.
    arguments : tuple
        In order; blocks of arrays are an `ArrayName`, all others are values.
    keywords : mapping
        Keywords of the function.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]


def elementwise_call(layer: Any) -> ElementwiseCall | None:
    """Return the call that a layer of a graph makes for each block.

    None if the layer is of another kind, or blocks are not at the places of their result.
    """
    if not isinstance(layer, Blockwise) or layer.io_deps or layer.new_axes or layer.concatenate:
        return None
    references = [getattr(argument, "key", None) for argument in layer.task.args]
    if references != [blockwise_token(number) for number in range(len(layer.indices))]:
        return None
    arguments: list[Any] = []
    for value, index in layer.indices:
        if index is None:
            if isinstance(value, TaskRef | Alias | DataNode | Task):
                return None  # a value that is computed
            arguments.append(value)
            continue
        first_index = len(layer.output_indices) - len(index)
        if tuple(index) != layer.output_indices[first_index:]:
            return None
        arguments.append(ArrayName(str(value), len(index)))
    return ElementwiseCall(layer.task.func, tuple(arguments), layer.task.kwargs)


def rechunk_source(graph: HighLevelGraph, name: str) -> str | None:
    """Return the name of the array from which dask's `rechunk` made another one; else None."""
    sources = graph.dependencies.get(name, ())
    if not name.startswith("rechunk-") or len(sources) != 1:
        return None
    (source,) = sources
    return source


def stored_blocks(layer: Any, name: str) -> dict[tuple[int, ...], Any] | None:
    """Return the blocks of an array that are NumPy arrays in its layer, by index; else None."""
    if layer is None or not layer.is_materialized():
        return None
    blocks: dict[tuple[int, ...], Any] = {}
    for key, node in layer.items():
        block = getattr(node, "value", node)
        if type(block) is not np.ndarray or not isinstance(key, tuple) or key[0] != name:
            return None
        blocks[key[1:]] = block
    return blocks


def array_of_layer(graph: HighLevelGraph, name: str) -> da.Array | None:
    """Return the array of NumPy blocks that a layer of a graph makes.

    None if the layer does not describe it: dask describes arrays in the layers that make them.
    """
    layer = graph.layers.get(name)
    description = getattr(layer, "collection_annotations", None) or {}
    if description.get("type") != "dask.array.core.Array":
        return None
    if description.get("chunk_type") != "numpy.ndarray":
        return None
    chunks = description["chunks"]
    return da.Array(
        graph.cull_layers({name}),
        name,
        chunks,
        meta=np.empty((0,) * len(chunks), description["dtype"]),
    )


@functools.cache
def reads_elementwise_graphs() -> bool:
    """Return whether graphs of this release of dask are read right, by a small one."""
    if ARRAY_EXPRESSIONS:
        return False
    values = np.arange(6.0).reshape(2, 3)
    array = da.from_array(values, chunks=(1, 3))
    difference = 2 - array.rechunk((2, 3))
    graph = difference.dask
    call = elementwise_call(graph.layers[difference.name])
    if call is None or call.function is not operator.sub or len(call.arguments) != 2:
        return False
    number, operand = call.arguments
    if number != 2 or not isinstance(operand, ArrayName) or operand.ndim != 2:
        return False
    if rechunk_source(graph, operand.name) != array.name:
        return False
    blocks = stored_blocks(graph.layers[array.name], array.name) or {}
    return list(blocks) == [(0, 0), (1, 0)] and np.array_equal(blocks[1, 0], values[1:])


# --- arrays that are expressions -------------------------------------------------------------


def is_lazy(x: Any) -> bool:
    """Return whether a value is an array of dask, or of the package dask-array."""
    return isinstance(x, da.Array) or is_of_dask_array(x)


def is_expression(x: Any) -> bool:
    """Return whether an array of `is_lazy` is an expression, and not a graph."""
    return ARRAY_EXPRESSIONS or is_of_dask_array(x)


def is_of_dask_array(x: Any) -> bool:
    """Return whether a value is an array of the package dask-array, without importing it."""
    kind = getattr(sys.modules.get(DASK_ARRAY), "Array", None)  # None while it is imported
    return kind is not None and isinstance(x, kind)


def uses_expressions() -> bool:
    """Return whether a graph of this process may come from an expression."""
    return ARRAY_EXPRESSIONS or DASK_ARRAY in sys.modules


def functions_of(x: Any) -> Any:
    """Return the module with the functions of arrays like a lazy one, such as `map_blocks`."""
    return sys.modules[DASK_ARRAY] if is_of_dask_array(x) else da


if ARRAY_EXPRESSIONS:
    from dask.array._array_expr._expr import ArrayExpr
    from dask.array._array_expr._slicing import SliceSlicesIntegers

    class _Transform(RecipeExpression, ArrayExpr):  # type: ignore[misc, unused-ignore]
        """Transform or shift of an array, as dask with query planning prints it."""

        array_type = da.Array
        slice_type = SliceSlicesIntegers

    class _GivenBlocks(ArrayExpr):  # type: ignore[misc, unused-ignore]
        """Array of blocks that given tasks make."""

        _parameters = ["blocks"]  # noqa: RUF012 (the base class has it so)
        operands: list[Any]

        @property
        def _name(self) -> Any:
            return self.operands[0].name

        @property
        def chunks(self) -> Any:
            """Chunks of the array."""
            return self.operands[0].chunks

        @property
        def _meta(self) -> Any:
            return self.operands[0].meta

        def _layer(self) -> Any:
            return self.operands[0].tasks


def expression_array(x: Any, recipe: Any, factor: Any = None) -> Any:
    """Return the lazy result of a recipe on an array that is an expression, of the same kind.

    The recipe may need a second array, the factor, of the same kind.

    A recipe has a `plan` with the name of the transform and the `chunks` of the result, its `meta`
    like another array, the `name` of its blocks, given a token, and its `tasks`, given a token and
    the names of both arrays.
    """
    kind: Any
    if is_of_dask_array(x):
        from dask_bigfft.dask_array_private import transform_type

        kind = transform_type(recipe.plan.spec.name)
    else:
        kind = _Transform
    return type(x)(kind(x.expr, recipe, None if factor is None else factor.expr))


def recipe_of(x: Any) -> tuple[Any, Any] | None:
    """Return the source and the recipe of a result of `expression_array`; None for others."""
    expression: Any = getattr(x, "expr", None)
    if not isinstance(expression, RecipeExpression):
        return None
    return type(x)(expression.operands[0]), expression.operands[1]


def recipes_in(x: Any) -> Iterator[tuple[str, Any]]:
    """Yield token and recipe of each result of `expression_array` in an optimized expression."""
    for expression in x.optimize().expr.walk():
        if isinstance(expression, RecipeExpression):
            yield expression.deterministic_token, expression.operands[1]


def calculated_in(x: Any) -> Iterator[da.Array]:
    """Yield the array of dask in each result of `calculated_array` in an optimized expression."""
    for expression in x.optimize().expr.walk():
        if isinstance(expression, CalculationExpression):
            yield expression.operands[0].array


def nearest_from_recipe(x: Any) -> Any:
    """Return the result of `expression_array` that is the only source of an array, or None."""
    expression: Any = getattr(x, "expr", None)
    while not isinstance(expression, RecipeExpression):
        before = [] if expression is None else expression.dependencies()
        if len(before) != 1:
            return None
        (expression,) = before
    return type(x)(expression)


# --- arrays of tasks, and their tasks --------------------------------------------------------


@dataclass(frozen=True)
class TaskBlocks:
    """Blocks of an array that tasks make.

    Parameters
    ----------
    name : str
        Name of the blocks.
    chunks : tuple of tuple of int
        Chunks of the array.
    meta : array
        Empty array like a block.
    tasks : mapping
        Tasks by key.
    """

    name: str
    chunks: tuple[tuple[int, ...], ...]
    meta: Any
    tasks: Mapping[Any, Any]

    def __dask_tokenize__(self) -> tuple[str, str]:
        return "dask_bigfft.TaskBlocks", self.name


def array_of_tasks(tasks: Mapping[Any, Any], name: str, like: Any) -> da.Array:
    """Return an array of dask, in the chunks of another array, whose blocks given tasks make."""
    if ARRAY_EXPRESSIONS:
        blocks = TaskBlocks(name, like.chunks, like._meta, tasks)
        make_expression: Any = _GivenBlocks
        make_array: Any = da.Array
        return cast("da.Array", make_array(make_expression(blocks)))
    graph = HighLevelGraph.from_collections(name, tasks, dependencies=())
    return da.Array(graph, name, chunks=like.chunks, meta=like._meta)


def optimized_tasks(array: da.Array, names: Sequence[str]) -> tuple[dict[Any, Any], str]:
    """Return the optimized tasks of an array of dask, and the name of its blocks among them.

    Blocks with one of the given names keep a task of their own.
    """
    if ARRAY_EXPRESSIONS:
        optimized: Any = array
        optimized = optimized.optimize()
        return dict(optimized.__dask_graph__()), optimized.name
    graph: Any = array.__dask_graph__()
    keys = list(flatten(array.__dask_keys__()))
    for name in names:
        keys += graph.layers.get(name, ())
    return dict(array.__dask_optimize__(graph, keys)), array.name


def calculated_array(calculation: Any, sources: Sequence[Any]) -> Any:
    """Return the result of a calculation with arrays of dask-array, of their kind.

    A calculation has the `array` of dask that is its result, a `prefix` of names, and its `tasks`,
    given the names of the result and of the blocks of each source.
    """
    from dask_bigfft.dask_array_private import Calculation

    expressions = [source.expr for source in sources]
    return type(sources[0])(Calculation(calculation, *expressions))
