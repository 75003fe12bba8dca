"""Layer of a transform or a shift in a dask graph: holds the plan and builds the tasks on demand.

The carrier depends on where the graph runs, which is known when the tasks are built (see
`carriers.choice`). Very small blocks are merged before the plan and cut after it.
"""

import threading
import uuid
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

import dask.array as da
import numpy as np
from dask.base import normalize_token, tokenize

from dask_bigfft.carriers.choice import carrier_type, requested_carrier, resolved
from dask_bigfft.carriers.names import Cut, Graph, Key
from dask_bigfft.carriers.run import PlanRun
from dask_bigfft.dask_private import (
    HighLevelGraph,
    Layer,
    calculated_in,
    expression_array,
    finished_by,
    is_expression,
    is_lazy,
    nearest_from_recipe,
    recipe_of,
    recipes_in,
    results_are_kept,
    unfused,
)
from dask_bigfft.events import running_client, schedulers_here
from dask_bigfft.gpu import dispatch
from dask_bigfft.graph.assembly import assembled
from dask_bigfft.graph.build import Known, TransferSource, build_graph, output_name
from dask_bigfft.graph.cutting import cut_blocks, cuts_of, rechunked
from dask_bigfft.kernels.transfer import LazyTransfer
from dask_bigfft.kernels.views import empty_like, is_on_gpu
from dask_bigfft.memory.paused import watch_cluster, watch_scheduler
from dask_bigfft.planner.plan import Plan

if TYPE_CHECKING:
    from dask_bigfft.exchange.scratch import ScratchPlace


@dataclass(frozen=True)
class TransformRecipe:
    """Recipe for the tasks of one plan, which a layer or an expression holds.

    Parameters
    ----------
    plan : Plan
        Plan of the tasks.
    carrier : str
        ``"auto"``, or a name in `carriers.choice.CARRIERS`.
    travelled : bool
        Whether this has been sent to another process.
    place : ScratchPlace, optional
        Location of the scratch files, with carrier ``"disk"``.
    cuts : sequence of Cut, optional
        Parts of the source array's blocks, if blocks on GPUs are still to be cut.
    transfer : TransferValues, optional
        Transfer function of an operator, of which the plan has the token. If it is made of a lazy
        array, it has its other attributes only.
    slicing : Slicing, optional
        Plans of slices of the result, where arrays are expressions.
    """

    plan: Plan
    carrier: str
    travelled: bool = False
    place: "ScratchPlace | None" = None
    cuts: Sequence[Cut] | None = None
    transfer: Any = None
    slicing: Any = None

    def __repr__(self) -> str:
        return f"{self.plan.spec.name} {self.plan.notation}".rstrip()

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (
            self.plan,
            self.carrier,
            True,
            self.place,
            self.cuts,
            self.transfer,
            self.slicing,
        )
        return TransformRecipe, arguments

    def __dask_tokenize__(self) -> Any:
        # Dask hashes the text of this value, and the texts of different plans may be equal.
        return normalize_token(("TransformRecipe", self.plan, self.carrier, *_attempt(self.place)))

    def meta(self, like: Any) -> Any:
        """Return an empty array like the result: on a GPU if `like`, of the source array, is."""
        return empty_like(like, len(self.plan.chunks), self.plan.dtypes[-1])

    def name(self, token: str) -> str:
        """Return the name of the result's blocks."""
        return output_name(self.plan, token)

    def part(
        self,
        x: Any,
        y: Any,
        index: Sequence[Any],
        only_reader: bool,
    ) -> Any:
        """Return a slice of the result `y` on a source `x` by a transform of less, or None.

        `only_reader` is true if nothing else reads the result.
        """
        if self.slicing is None or self.travelled:
            return None
        return self.slicing.part(
            x,
            y,
            self,
            index,
            only_reader,
        )

    def tasks(self, token: str, source: str, factor: str = "") -> Graph:
        """Return the tasks, given the names of the source array and of `PlanLayer.factor`."""
        layer = PlanLayer(
            self,
            token,
            source,
            factor=factor,
        )
        return layer.tasks


class PlanLayer(Layer):  # type: ignore[misc, unused-ignore]
    """All tasks of one plan.

    Parameters
    ----------
    recipe : TransformRecipe
        Recipe for the tasks.
    token : str
        Unique part of the task names.
    source : str
        Name of the source array.
    known : Known, optional
        Plan of the same source whose tasks are reused where they are equal.
    factor : str
        Name of the lazy array of which the transfer function of an operator is made.
    blocks : mapping of key to array, optional
        Blocks of the source array if it is persisted on GPUs.
    """

    plan: Any

    def __init__(
        self,
        recipe: TransformRecipe,
        token: str,
        source: str,
        known: Known | None = None,
        factor: str = "",
        blocks: Mapping[Key, Any] | None = None,
    ) -> None:
        super().__init__()
        self.recipe = recipe
        self.token = token
        self.source = source
        self.known = known
        self.factor = factor
        self.blocks = blocks
        self.plan = recipe.plan
        #: True if no other layer reads the blocks between rounds.
        self.is_private = True
        #: True if another transform of ours reads the result.
        self.is_transformed = False
        #: Layer of the same spectrum without the shift that is part of this one.
        self.unshifted: PlanLayer | None = None
        #: The array that the user has got.
        self.array: weakref.ref[da.Array] | None = None
        #: By carrier, and whether blocks between rounds are private.
        self._tasks_by_kind: dict[tuple[str, bool], Graph] = {}
        #: The graph that the current thread iterates over.
        self._current = threading.local()
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        arguments = (self.recipe, self.token, self.source, self.known, self.factor)
        state = {"annotations": self.annotations, "is_private": self.is_private}
        return type(self), arguments, state

    def __repr__(self) -> str:
        plan = self.plan
        return f"PlanLayer<{plan.spec.name}, {plan.notation}>"

    @property
    def tasks(self) -> Graph:
        """Tasks by key, for the scheduler that would compute them now."""
        recipe = self.recipe
        carrier = resolved(recipe.carrier, recipe.plan, recipe.travelled)
        place = recipe.place
        if place is not None and not place.kept:  # unique among processes
            place = replace(place, name=f"{self.token[:8]}-{uuid.uuid4().hex[:8]}")
        is_private = self.is_private and not results_are_kept()
        kind = (carrier, is_private)
        with self._lock:
            if kind not in self._tasks_by_kind:
                self._tasks_by_kind[kind] = build_graph(
                    self.plan,
                    self.token,
                    self.source,
                    carrier,
                    is_named=recipe.carrier != "auto",
                    known=self.known,
                    place=place,
                    is_private=is_private,
                    cuts=recipe.cuts,
                    transfer=TransferSource(recipe.transfer, self.factor),
                    blocks=self.blocks,
                )
                _watch_paused_workers(recipe.travelled)
            tasks = self._tasks_by_kind[kind]
        self._current.tasks = tasks
        return tasks

    def share_rounds(self) -> None:
        """Keep the blocks between rounds from now on, because another layer reads them.

        Otherwise the other layer would have to repeat these rounds.
        """
        if self.is_private:
            self.is_private = False
            self._tasks_by_kind = {}
            self._current = threading.local()

    @property
    def is_referenced(self) -> bool:
        """True if a variable still holds the array, which other functions may read then."""
        return self.array is not None and self.array() is not None

    def is_materialized(self) -> bool:
        """Return whether the tasks have been built."""
        return bool(self._tasks_by_kind)

    def get_output_keys(self) -> Set[Any]:
        """Return the keys of the result's blocks."""
        name = self.recipe.name(self.token)
        return {(name, *block) for block in self.plan.result.indices()}

    def cull(self, keys: set[Any], all_hlg_keys: Any) -> Any:
        """Return a layer with the tasks that some keys need, and their dependencies."""
        self.tasks  # noqa: B018 (chooses the graph that is then read key by key)
        return super().cull(keys, all_hlg_keys)

    def __getitem__(self, key: Any) -> Any:
        tasks: Graph | None = getattr(self._current, "tasks", None)
        return (self.tasks if tasks is None else tasks)[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)


def _watch_paused_workers(travelled: bool) -> None:
    """Let the scheduler that gets a graph watch its workers; the graph may have travelled to it."""
    client = running_client()
    if client is not None and not travelled:
        watch_cluster(client)
        return
    if travelled:
        for scheduler in schedulers_here():
            scheduler.loop.add_callback(watch_scheduler, scheduler)


def gpus_of(x: da.Array) -> int:
    """Return the number of GPUs that hold the blocks of a persisted array, else of all GPUs."""
    blocks = _blocks_on_gpus(x)
    if not blocks:
        return max(1, dispatch.device_count())

    from dask_bigfft.gpu.links import gpus

    return len(set(map(gpus().home, blocks.values())))


def _blocks_on_gpus(x: da.Array) -> dict[Key, Any]:
    """Return the blocks of a persisted array by key, if all are on GPUs; else none."""
    layer = getattr(x.dask, "layers", {}).get(x.name)
    if layer is None or not layer.is_materialized():
        return {}
    blocks = {key: getattr(value, "value", value) for key, value in layer.items()}
    return blocks if all(map(is_on_gpu, blocks.values())) else {}


def _attempt(place: "ScratchPlace | None") -> "tuple[ScratchPlace, ...]":
    """Return the part of task names that identifies the life of a run with kept scratch files.

    A resumed run only looks up the results of an earlier life. Its tasks have other dependencies,
    so they need other names: a worker that is still busy with a task of a dead client remembers the
    old dependencies. A task of the same name would wait for these for ever.
    """
    return () if place is None or not place.kept else (place,)


def transformed_array(
    x: da.Array,
    plan: Plan,
    carrier: str,
    known: Known | None = None,
    place: "ScratchPlace | None" = None,
    transfer: Any = None,
    slicing: Any = None,
) -> da.Array:
    """Return the lazy result of a plan on an array.

    Tasks that are equal to those of the plan `known` run only once. `place` is the location of the
    scratch files; None follows the settings. `transfer` is the transfer function of an operator, or
    a `LazyTransfer`. `slicing` makes plans of slices of the result, where arrays are expressions.
    Blocks on GPUs of one process are gathered from GPU to GPU unless another carrier is requested.
    Tiny blocks are merged before the plan and cut after it.
    """
    if plan.incoming is not None or plan.outgoing is not None:
        merged = rechunked(x, plan.core.chunks_in)
        core = transformed_array(
            merged,
            plan.core,
            carrier,
            known,
            place,
            transfer,
            slicing,
        )
        return _as_result_of(core, cut_blocks(core, plan.chunks))
    blocks_on_gpus = is_on_gpu(x._meta)
    carrier = requested_carrier(carrier, plan, blocks_on_gpus)
    carrier_class = carrier_type(carrier)
    cuts = None
    if blocks_on_gpus and plan.is_transform:
        if carrier_class.is_on_gpus:
            cuts = cuts_of(x.chunks, plan.chunks_in)
        if cuts is None:
            x = cut_blocks(x, plan.chunks_in)
    if place is None:
        place = carrier_class.new_place(plan)
    factor = None
    if isinstance(transfer, LazyTransfer):
        factor = _factor_blocks(transfer, plan)
        transfer = transfer.template
    recipe = TransformRecipe(
        plan,
        carrier,
        place=place,
        cuts=cuts,
        transfer=transfer,
        slicing=slicing,
    )
    if is_expression(x):
        return cast("da.Array", expression_array(x, recipe, factor))
    return _with_layer(
        x,
        recipe,
        known,
        factor,
    )


def _with_layer(
    x: da.Array,
    recipe: TransformRecipe,
    known: Known | None,
    factor: da.Array | None,
) -> da.Array:
    """Return the lazy result of a recipe on an array that is a graph, given its factor."""
    plan = recipe.plan
    token = tokenize(
        x.name,
        plan,
        recipe.carrier,
        *_attempt(recipe.place),
    )
    name = recipe.name(token)
    layer = PlanLayer(
        recipe,
        token,
        x.name,
        known,
        factor="" if factor is None else factor.name,
        blocks=_blocks_on_gpus(x) if is_on_gpu(x._meta) else None,
    )
    sources = [x] if factor is None else [x, factor]
    graph = HighLevelGraph.from_collections(name, layer, dependencies=cast("Any", sources))
    array = da.Array(
        graph,
        name,
        chunks=plan.chunks,
        meta=recipe.meta(x._meta),
    )
    _as_result_of(array, array)
    return finished_by(
        array,
        assembled,
        token,
        plan.chunks,
    )


def _factor_blocks(transfer: LazyTransfer, plan: Plan) -> Any:
    """Return the lazy array of a transfer function with the axes and blocks that a plan reads."""
    (operand,) = plan.operands
    if operand.plan is None:  # the tasks get it as a whole
        return transfer.array.rechunk(-1)
    if operand.keeps_axes:
        return transfer.array
    axes = range(len(transfer.spec.chunks))
    return transfer.array[tuple(slice(None) if axis in operand.axes else 0 for axis in axes)]


def _as_result_of(core: da.Array, array: da.Array) -> da.Array:
    """Return the array that the user gets of a plan's blocks, which their layer remembers."""
    layer = None if is_expression(core) else core.dask.layers.get(core.name)
    if isinstance(layer, PlanLayer):
        layer.array = weakref.ref(array)
    return array


@dataclass(frozen=True)
class Origin:
    """Origin of a lazy array that `transformed_array` made.

    Parameters
    ----------
    array : dask.array.Array
        Source array.
    plan, carrier
        Plan of the transform, and its requested carrier.
    known : Known or None
        Plan whose tasks another plan for the source array may reuse.
    layer : PlanLayer or None
        Layer that has these tasks.
    transfer : TransferValues or None
        Transfer function of an operator; None if it is made of a lazy array.
    slicing : Slicing or None
        Maker of plans of slices, where arrays are expressions.
    """

    array: da.Array
    plan: Plan
    carrier: str
    known: Known | None
    layer: PlanLayer | None = None
    transfer: Any = None
    slicing: Any = None

    def shared(self) -> Known | None:
        """Return the plan whose tasks another plan will reuse; its blocks are kept from now on."""
        if self.known is not None and self.layer is not None:
            self.layer.share_rounds()
        return self.known


def origin(x: da.Array) -> Origin | None:
    """Return the origin of a lazy array that is the result of a plan itself; otherwise None."""
    source_and_recipe = recipe_of(x)
    if source_and_recipe is not None:
        source, recipe = source_and_recipe
        return Origin(
            source,
            recipe.plan,
            recipe.carrier,
            None,
            transfer=recipe.transfer,
            slicing=recipe.slicing,
        )
    if is_expression(x):
        return None
    graph = x.dask
    layer = graph.layers.get(x.name) if isinstance(graph, HighLevelGraph) else None
    if not isinstance(layer, PlanLayer):
        return None
    plan = layer.plan
    layers = dict(graph.layers)
    edges = dict(graph.dependencies)
    del layers[x.name]
    del edges[x.name]
    chunks = tuple(axis.groups[0].chunks for axis in plan.source.axes)
    meta = np.empty_like(x._meta, np.dtype(plan.spec.dtype), shape=(0,) * len(chunks))
    array = da.Array(
        HighLevelGraph(layers, edges),
        layer.source,
        chunks,
        meta=meta,
    )
    known = layer.known or Known(plan, layer.token)
    return Origin(
        array,
        plan,
        layer.recipe.carrier,
        known,
        layer,
        transfer=layer.recipe.transfer,
    )


def uncut(x: da.Array) -> da.Array:
    """Return the result of a plan from which `cut_blocks` made an array; else the array.

    Names of dask arrays are deterministic: the same name means the same operation.
    """
    core = _nearest_result(x)
    if core is None or core.shape != x.shape:
        return x
    return core if cut_blocks(core, x.chunks).name == x.name else x


def _nearest_result(x: da.Array) -> da.Array | None:
    """Return the result of a plan that is the only source of an array; None if there is none."""
    if is_expression(x):
        return cast("da.Array | None", nearest_from_recipe(x))
    graph = x.dask
    name = x.name
    if not isinstance(graph, HighLevelGraph):
        return None
    while not isinstance(layer := graph.layers.get(name), PlanLayer):
        before = graph.dependencies.get(name, ())
        if len(before) != 1:
            return None
        (name,) = before
    return da.Array(
        graph,
        name,
        layer.plan.chunks,
        meta=layer.recipe.meta(x._meta),
    )


def plan_token(x: da.Array) -> str:
    """Return the token in task names of the plan that made an array, "" if there is none."""
    core = _nearest_result(x)
    return "" if core is None else str(core.name).rpartition("-")[2]


def transforms_in(collection: Any) -> dict[str, Plan]:
    """Return the plans of the transforms in a collection's graph, by their token in task names.

    Layers are not materialised.
    """
    if is_lazy(collection) and is_expression(collection):
        return _transforms_in_expression(collection)
    plans: dict[str, Plan] = {}
    graph = collection.__dask_graph__()
    for layer in getattr(graph, "layers", {"": graph}).values():
        if isinstance(layer, PlanLayer) and layer.plan.is_transform:
            plans[layer.token] = layer.plan
            if layer.known is not None:  # the first rounds may belong to it
                plans[layer.known.token] = layer.known.plan
        elif getattr(layer, "is_materialized", bool)():
            plans |= plans_among(layer.items())
    return plans


def _transforms_in_expression(array: Any) -> dict[str, Plan]:
    """Return the plans of the transforms in an expression, as `transforms_in` does."""
    plans: dict[str, Plan] = {}
    for token, recipe in recipes_in(array):
        if recipe.plan.is_transform:
            plans[token] = recipe.plan
    for calculated_array in calculated_in(array):
        plans |= transforms_in(calculated_array)
    return plans


def plans_among(tasks: Iterable[tuple[Any, Any]]) -> dict[str, Plan]:
    """Return the plans of transforms among tasks, by their token in task names."""
    plans = dict[str, Plan]()
    for key, fused_task in tasks:
        for _, task in unfused(key, fused_task):
            run = run_of(task)
            if run is not None and run.plan.is_transform:
                plans[run.token] = run.plan
    return plans


def run_of(task: Any) -> PlanRun | None:
    """Return the run of a plan that is a task's value or its first argument, or None.

    It is an argument where scratch files or one block need it.
    """
    for value in (getattr(task, "value", None), *getattr(task, "args", ())[:1]):
        if isinstance(value, PlanRun):
            return value
    return None
