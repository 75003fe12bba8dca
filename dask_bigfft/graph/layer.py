"""The layer of a transform or a shift in a dask graph: holds the plan, makes the tasks when asked.

Which carrier fits depends on where the graph runs, and that is only known when it is turned into
tasks: see `carriers`. Where blocks are very small, neighbours are merged before the plan and cut
after it.

Dask puts the tasks of a graph in order by a loop over all pairs of a task that nothing comes before
and one that nothing comes after, where the two are connected: in a transform all are. For 16,384
blocks that are kept this took 0.25 us for each pair, more than a minute. So of the blocks that are
cut from one, the last one waits for the others, which then have something after them: these pairs
are gone, at no cost, since whoever cuts one block cuts all.

Imports `planner`, `exchange`, `gpu` and this room.
"""

import itertools
import math
import threading
import uuid
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, cast

import dask.array as da
import numpy as np
import numpy.typing as npt
from dask.base import normalize_token, tokenize

from dask_bigfft import config
from dask_bigfft.exchange.scratch import ScratchPlace
from dask_bigfft.graph.build import build_graph, output_name
from dask_bigfft.graph.carriers import ON_GPUS, PLAN_NAME, Graph, Known, resolved
from dask_bigfft.graph.dask_private import (
    HighLevelGraph,
    Layer,
    Task,
    TaskRef,
    array_expressions_enabled,
    expression_array,
    finished_by,
    nearest_from_recipe,
    recipe_of,
    results_are_kept,
)
from dask_bigfft.graph.in_place import assembled
from dask_bigfft.graph.tasks import Run
from dask_bigfft.kernels.views import is_on_gpu
from dask_bigfft.planner.plan import Plan, ShiftPlan

Chunks = tuple[tuple[int, ...], ...]
Key = Any  # a dask key: a name and a block index

#: Blocks from which on dask's order of them all takes longer than what waits costs.
MANY = 512


def _rechunked(x: da.Array, chunks: Chunks) -> da.Array:
    """Return the array with blocks merged or cut, by plain tasks."""
    if tuple(tuple(map(int, cut)) for cut in x.chunks) == chunks:
        return x
    return cast("da.Array", x.rechunk(chunks, method="tasks"))


def cut_blocks(x: da.Array, chunks: Chunks) -> da.Array:
    """Return the array with blocks cut, by plain tasks.

    Where there are very many, and each is cut from a single one, the last of those that are cut
    from the same block depends on the others.
    """
    places = [_places(old, new) for old, new in zip(x.chunks, chunks, strict=True)]
    whole = all(place is not None for along in places for place in along)
    count = math.prod(map(len, chunks))
    if count < MANY or count == x.npartitions or not whole or array_expressions_enabled():
        return _rechunked(x, chunks)
    name = f"bigfft_cut-{tokenize(x.name, chunks)}"
    graph: dict[Key, Any] = {}
    groups: dict[Key, list[Key]] = {}
    for block in itertools.product(*(range(len(along)) for along in chunks)):
        found: Any = [along[i] for along, i in zip(places, block, strict=True)]
        source: Key = (x.name, *(origin for origin, _ in found))
        key: Key = (name, *block)
        groups.setdefault(source, []).append(key)
        graph[key] = Task(key, _part, TaskRef(source), tuple(cut for _, cut in found))
    for keys in groups.values():
        last = keys.pop()
        graph[last] = Task(last, _part, *graph[last].args, *map(TaskRef, keys))
    dependencies: Any = [x]
    layers = HighLevelGraph.from_collections(name, graph, dependencies=dependencies)
    return da.Array(layers, name, chunks=chunks, meta=x._meta)


def _part(block: Any, cut: tuple[slice, ...], *_: Any) -> Any:
    """A part of a block; the others had to be there before."""
    return block[cut]


def _places(before: Sequence[int], after: Sequence[int]) -> list[tuple[int, slice] | None]:
    """Which block each one is cut from along an axis, and where; None if from several.

    >>> _places((4, 4), (2, 2, 3, 1))
    [(0, slice(0, 2, None)), (0, slice(2, 4, None)), (1, slice(0, 3, None)), (1, slice(3, 4, None))]
    >>> _places((4, 4), (3, 3, 2))
    [(0, slice(0, 3, None)), None, (1, slice(2, 4, None))]
    """
    ends = list(itertools.accumulate(before))
    found: list[tuple[int, slice] | None] = []
    low = 0
    for length in after:
        i = min(bisect_right(ends, low), len(ends) - 1)
        start, high = ends[i] - before[i], low + length
        found.append((i, slice(low - start, high - start)) if high <= ends[i] else None)
        low = high
    return found


AnyPlan = Plan | ShiftPlan


@dataclass(frozen=True)
class TransformRecipe:
    """Makes the tasks of one plan, whose result is a layer or an expression.

    Parameters
    ----------
    plan : Plan or ShiftPlan
        What to do.
    carrier : str
        ``"auto"``, ``"shared"``, ``"tasks"``, ``"p2p"`` or ``"disk"``.
    travelled : bool
        Whether this has been sent to another process.
    place : ScratchPlace, optional
        Where scratch files go, with carrier ``"disk"``.
    """

    plan: AnyPlan
    carrier: str
    travelled: bool = False
    place: ScratchPlace | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return TransformRecipe, (self.plan, self.carrier, True, self.place)

    def __dask_tokenize__(self) -> Any:
        # Dask takes the text of what this returns: that of plans that differ may be the same.
        return normalize_token(("TransformRecipe", self.plan, self.carrier, *_attempt(self.place)))

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Chunks of the result."""
        return self.plan.chunks

    def meta(self, like: Any) -> Any:
        """Return an empty array of the result's kind, given one of the array that comes in."""
        return result_meta(self.plan, like)

    def name(self, token: str) -> str:
        """Return the name of the result's blocks."""
        return output_name(self.plan, token)

    def tasks(self, token: str, source: str) -> Graph:
        """Return the tasks, given the name of the array that comes in."""
        return PlanLayer(self, token, source).tasks


class PlanLayer(Layer):  # type: ignore[misc, unused-ignore]
    """All tasks of one plan.

    Parameters
    ----------
    recipe : TransformRecipe
        Makes them.
    token : str
        Makes the task names unique.
    source : str
        Name of the array that comes in.
    known : Known, optional
        A plan of the same source, whose tasks are used where they are the same.
    """

    plan: Any

    def __init__(
        self, recipe: TransformRecipe, token: str, source: str, known: Known | None = None
    ) -> None:
        super().__init__()
        self.recipe, self.token, self.source, self.known = recipe, token, source, known
        self.plan, self.alone = recipe.plan, True
        self._forget()

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = self.recipe, self.token, self.source, self.known
        return type(self), arguments, {"annotations": self.annotations, "alone": self.alone}

    @property
    def tasks(self) -> Graph:
        """The tasks by key, as they are where they are asked for here and now."""
        recipe, place = self.recipe, self.recipe.place
        carrier = resolved(recipe.carrier, recipe.plan, recipe.travelled)
        if place is not None and not place.kept:  # a name that no other process has
            place = replace(place, name=f"{self.token[:8]}-{uuid.uuid4().hex[:8]}")
        alone = self.alone and not results_are_kept()
        with self._lock:
            if carrier not in self._made:
                what = self.plan, self.token, self.source, carrier, recipe.carrier != "auto"
                self._made[carrier] = build_graph(*what, self.known, place, alone)
            found = self._read.tasks = self._made[carrier]
        return found

    def _forget(self) -> None:
        """Have made no tasks."""
        #: Tasks by carrier; and those that a thread goes through, which it takes one by one.
        self._made: dict[str, Graph] = {}
        self._read, self._lock = threading.local(), threading.Lock()

    def share_rounds(self) -> None:
        """From now on leave the blocks between rounds as they are: another layer reads them, too.

        Else it would do these rounds once more, for itself.
        """
        if self.alone:
            self.alone = False
            self._forget()

    def is_materialized(self) -> bool:
        """Whether the tasks have been made."""
        return bool(self._made)

    def get_output_keys(self) -> Set[Any]:
        """Keys of the result's blocks."""
        name = output_name(self.plan, self.token)
        return {(name, *block) for block in self.plan.result.indices()}

    def cull(self, keys: set[Any], all_hlg_keys: Any) -> Any:
        """Return a layer of the tasks that some keys need, and what each depends on."""
        self.tasks  # noqa: B018 (those of here and now, before they are taken one by one)
        return super().cull(keys, all_hlg_keys)

    def __getitem__(self, key: Any) -> Any:
        found: Graph | None = getattr(self._read, "tasks", None)
        return (self.tasks if found is None else found)[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)


class TransformLayer(PlanLayer):
    """All tasks of one transform."""

    plan: Plan

    def __repr__(self) -> str:
        return f"TransformLayer<{self.plan.spec.name}, {self.plan.notation}>"


class ShiftLayer(PlanLayer):
    """All tasks of one cyclic shift."""

    plan: ShiftPlan

    def __repr__(self) -> str:
        return f"ShiftLayer<{self.plan.offsets}>"


def _carrier_on_gpus() -> str:
    """Return the carrier of blocks on GPUs."""
    transport = config.get("bigfft.gpu.peer-transport")
    return "tasks" if transport == "none" else ON_GPUS + transport


def result_meta(plan: AnyPlan, like: Any) -> npt.NDArray[Any]:
    """Return an empty array with the result's dtype and number of axes, on a GPU if `like` is."""
    shape = (0,) * len(plan.chunks)
    if is_on_gpu(like):
        return np.empty_like(like, np.dtype(plan.dtypes[-1]), shape=shape)
    return np.empty(shape, plan.dtypes[-1])


def scratch_place(plan: AnyPlan) -> ScratchPlace:
    """Return where the settings say that a plan's scratch files go."""
    directory, sync = config.get("bigfft.scratch.directory"), config.get("bigfft.scratch.sync")
    if isinstance(plan, ShiftPlan):
        return ScratchPlace(directory, "", sync, needed=sum(e.nbytes for e in plan.exchanges))
    forecast = plan.expected
    return ScratchPlace(directory, "", sync, False, forecast.scratch, forecast.peak_host)


def _attempt(place: ScratchPlace | None) -> tuple[ScratchPlace, ...]:
    """What task names say of scratch files: which life of a run it is, where these are kept.

    What one life has done the next only looks up: tasks of other dependencies, which must not go by
    the same names. As long as a worker is busy with a task of a run whose client has died, it
    remembers all that this was made from; asked for a task of the same name, it would wait for
    what that depended on before, which nobody makes any more.
    """
    return () if place is None or not place.kept else (place,)


def transformed_array(
    x: da.Array,
    plan: AnyPlan,
    carrier: str,
    known: Known | None = None,
    place: ScratchPlace | None = None,
) -> da.Array:
    """Return the lazy result of a plan on an array.

    With a plan that is `known`, tasks of both that are the same run once. `place` is where scratch
    files go if not where the settings say. Blocks on GPUs of one process are gathered from each
    other, unless another carrier is asked for. Tiny blocks are merged before, and cut from larger
    ones after.
    """
    if isinstance(plan, Plan) and (plan.incoming is not None or plan.outgoing is not None):
        merged = _rechunked(x, plan.core.chunks_in)
        core = transformed_array(merged, plan.core, carrier, known, place)
        return cut_blocks(core, plan.chunks)
    if carrier == "auto" and is_on_gpu(x._meta):
        carrier = _carrier_on_gpus()
    elif isinstance(plan, Plan) and plan.carrier == "disk":
        carrier = "disk"
    if carrier == "disk" and place is None:
        place = scratch_place(plan)
    recipe = TransformRecipe(plan, carrier, place=place)
    if array_expressions_enabled():
        return expression_array(x, recipe)
    token = tokenize(x.name, plan, carrier, *_attempt(place))
    name = output_name(plan, token)
    made = ShiftLayer if isinstance(plan, ShiftPlan) else TransformLayer
    layer = made(recipe, token, x.name, known)
    dependencies: Any = [x]
    graph = HighLevelGraph.from_collections(name, layer, dependencies=dependencies)
    array = da.Array(graph, name, chunks=plan.chunks, meta=result_meta(plan, x._meta))
    return finished_by(array, assembled, token, plan.chunks)


@dataclass(frozen=True)
class Origin:
    """What a lazy array was made from by `transformed_array`.

    Parameters
    ----------
    array : dask.array.Array
        What came in.
    plan, carrier
        What was done with it.
    known : Known or None
        A plan whose tasks another plan for this array may use.
    layer : PlanLayer or None
        The layer that has them.
    """

    array: da.Array
    plan: AnyPlan
    carrier: str
    known: Known | None
    layer: PlanLayer | None = None

    def shared(self) -> Known | None:
        """The plan whose tasks another plan will use: it leaves them their blocks."""
        if self.known is not None and self.layer is not None:
            self.layer.share_rounds()
        return self.known


def origin(x: da.Array) -> Origin | None:
    """Return what a lazy array was made from, if a plan made it."""
    found = recipe_of(x)
    if found is not None:
        source, recipe = found
        if not isinstance(recipe, TransformRecipe):
            return None
        return Origin(source, recipe.plan, recipe.carrier, None)
    graph = x.dask
    layer = graph.layers.get(x.name) if isinstance(graph, HighLevelGraph) else None
    if not isinstance(layer, PlanLayer):
        return None
    plan = layer.plan
    layers, edges = dict(graph.layers), dict(graph.dependencies)
    del layers[x.name], edges[x.name]
    chunks = tuple(axis.groups[0].chunks for axis in plan.source.axes)
    dtype = plan.dtype if isinstance(plan, ShiftPlan) else plan.spec.dtype
    meta = np.empty_like(x._meta, np.dtype(dtype), shape=(0,) * len(chunks))
    array = da.Array(HighLevelGraph(layers, edges), layer.source, chunks, meta=meta)
    known = Known(plan, layer.token) if isinstance(plan, Plan) else None
    return Origin(array, plan, layer.recipe.carrier, layer.known or known, layer)


def uncut(x: da.Array) -> da.Array:
    """Return the result of a plan that an array was cut from by `cut_blocks`; else the array.

    Names of dask arrays tell how they were made: what has the name that cutting gives is just that.
    """
    core = _nearest_result(x)
    if core is None or core.shape != x.shape:
        return x
    return core if cut_blocks(core, x.chunks).name == x.name else x


def _nearest_result(x: da.Array) -> da.Array | None:
    """The result of a plan from which alone an array was made, by whatever was done to it."""
    if array_expressions_enabled():
        return nearest_from_recipe(x)
    graph, name = x.dask, x.name
    if not isinstance(graph, HighLevelGraph):
        return None
    while not isinstance(layer := graph.layers.get(name), PlanLayer):
        before = graph.dependencies.get(name, ())
        if len(before) != 1:
            return None
        (name,) = before
    return da.Array(graph, name, layer.plan.chunks, meta=result_meta(layer.plan, x._meta))


def transforms_in(collection: Any) -> dict[str, Plan]:
    """Return the plans of the transforms in a collection's graph, by their token in task names.

    Layers that have not been turned into tasks stay as they are.
    """
    graph = collection.__dask_graph__()
    found: dict[str, Plan] = {}
    for layer in getattr(graph, "layers", {"": graph}).values():
        if isinstance(layer, TransformLayer):
            found[layer.token] = layer.plan
            if layer.known is not None:  # the first rounds may be its tasks
                found[layer.known.token] = layer.known.plan
        elif getattr(layer, "is_materialized", bool)():
            found |= plans_among(layer.items())
    return found


def plans_among(tasks: Iterable[tuple[Any, Any]]) -> dict[str, Plan]:
    """Return the plans of transforms among tasks, by their token in task names."""
    found = {}
    for key, task in tasks:
        if isinstance(key, str) and key.startswith(PLAN_NAME):
            # With scratch files the plan is given to a task that opens them.
            run = getattr(task, "value", None) or next(iter(getattr(task, "args", ())), None)
            if isinstance(run, Run) and isinstance(run.plan, Plan):
                found[key.removeprefix(PLAN_NAME)] = run.plan
    return found
