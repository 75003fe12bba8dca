"""Stages of a plan, the base of all carriers, and blocks that tasks get directly.

A target block whose exchange needs no communication, or whose group has no other target block,
depends on its source blocks with any carrier. It is gathered from them in memory (`run_block`).
"""

import contextlib
import itertools
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dask_bigfft.arrays import Array, Block
from dask_bigfft.carriers.buffers import SharedBuffer
from dask_bigfft.carriers.groups import Groups
from dask_bigfft.carriers.names import Cut, Graph, Key, Names, block_ref
from dask_bigfft.carriers.poison import poisoning, raise_if_poisoned
from dask_bigfft.carriers.run import (
    Indices,
    Operands,
    PlanRun,
    TaskFunction,
    block_task,
    checked,
)
from dask_bigfft.dask_private import Alias, DataNode, Task, TaskRef
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.gpu import dispatch
from dask_bigfft.kernels.transfer import TransferValues
from dask_bigfft.kernels.views import BlockView, is_on_gpu
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.stages import Exchange

if TYPE_CHECKING:
    from dask_bigfft.exchange.scratch import ScratchPlace

#: Maximum number of source blocks on which a target block depends directly.
FEW_SOURCES = 8


@dataclass
class Stage:
    """Exchange of a plan and the round after it, whose tasks are added to a graph.

    Parameters
    ----------
    graph : dict
        Graph to which tasks are added.
    plan : Plan
        Plan of the tasks.
    number : int
        Number of the exchange, from 0; -1 for the tasks that take the source blocks to it.
    names : Names
        Names of the tasks.
    source_name, name : str
        Names of the source blocks and of the target blocks.
    operands : mapping of int to str
        Names of the operands by which the round multiplies, by their numbers.
    """

    graph: Graph
    plan: Plan
    number: int
    names: Names
    source_name: str
    name: str
    operands: Mapping[int, str] = field(default_factory=dict)

    @cached_property
    def exchange(self) -> Exchange:
        """The exchange."""
        return self.plan.exchanges[self.number]

    @cached_property
    def run(self) -> TaskRef:
        """Reference to the plan where it is executed."""
        return TaskRef(self.names("plan"))

    @property
    def is_last(self) -> bool:
        """True if no round follows the exchange."""
        return self.number == len(self.plan.rounds)

    def refs(self, sources: Iterable[Block]) -> list[TaskRef]:
        """Return the references to some source blocks."""
        return [block_ref(self.source_name, block) for block in sources]

    def put(self, name: str, index: Block, function: TaskFunction, *inputs: Any) -> TaskRef:
        """Add a task; return the reference to its result."""
        key: Key = (name, *index)
        self.graph[key] = Task(key, function, *inputs)
        return TaskRef(key)

    def arguments(self, block: Block, *inputs: Any) -> list[Any]:
        """Return the arguments of a `block_task` after the block: its operands, and its inputs."""
        if not self.operands:
            return [(), *inputs]
        factors = []
        for number, name in self.operands.items():
            index = self.plan.operands[number].block(block)
            factors.append(block_ref(name, index))
        return [tuple(self.operands), *factors, *inputs]

    def put_block(self, block: Block, function: TaskFunction, arguments: Sequence[Any]) -> None:
        """Add the task of a target block: a `block_task` with its arguments after the block."""
        key: Key = (self.name, *block)
        self.graph[key] = Task(
            key,
            function,
            self.run,
            self.number,
            block,
            *arguments,
        )


@dataclass(eq=False)
class Carrier:
    """Carrier of the exchanges of one plan: adds their tasks to a graph.

    Parameters
    ----------
    name : str
        Name of the carrier, as the user gives it.
    plan : Plan
        Plan of the tasks.
    names : sequence of Names
        Names of the tasks, by exchange.
    is_named : bool
        Whether the user named the carrier.
    is_private : bool
        Whether only this plan reads the blocks between two rounds.
    place : ScratchPlace, optional
        Location of scratch files. A filter has none.
    cuts : sequence of Cut, optional
        Parts of the source array's blocks, if blocks on GPUs are still to be cut.
    """

    name: str
    plan: Plan
    names: Sequence[Names]
    is_named: bool
    is_private: bool = False
    place: "ScratchPlace | None" = None
    cuts: Sequence[Cut] | None = None

    #: True if blocks stay in the memory of one process.
    is_in_process: ClassVar[bool] = False

    #: True if blocks stay on the GPUs of one process, which also cut them.
    is_on_gpus: ClassVar[bool] = False

    #: True if exchanges may be shuffles, whose buffers are outside of the memory of tasks.
    uses_shuffles: ClassVar[bool] = False

    #: Storage of blocks between rounds: "memory", "disk", or "auto" if the planner may choose.
    storage: ClassVar[str] = "memory"

    #: True if tasks of another plan may be used for the first rounds.
    reuses_tasks: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Work out what the tasks of several stages share; a subclass may need it."""

    @staticmethod
    def new_place(plan: Plan) -> "ScratchPlace | None":
        """Return the location of a plan's scratch files, if this carrier needs them."""
        return None

    @staticmethod
    def fitted(plan: Plan, place: "ScratchPlace | None") -> Plan:
        """Return the plan as this carrier can execute it."""
        return plan

    def whole_graph(
        self,
        source_name: str,
        output_name: str,
        transfer: TransferValues | None,
        blocks: Mapping[Key, Array],
    ) -> Graph | None:
        """Return the tasks of the whole plan, if this carrier does not add it stage by stage.

        `transfer` is the transfer function of an operator. `blocks` are source blocks that are
        computed, by key, maybe none.
        """
        return None

    def add_plan(self, graph: Graph, run: PlanRun) -> None:
        """Add the plan, to which the tasks refer."""
        key = self.names[-1]("plan")
        graph[key] = DataNode(key, run)

    def add_sources(self, graph: Graph, source_name: str) -> str:
        """Add the tasks that take the source blocks; return the name of their results."""
        return source_name

    def mark(self, number: int) -> str:
        """Return the mark in the names of blocks after an exchange that no other plan may reuse."""
        return ""

    def add(self, stage: Stage) -> str:
        """Add the tasks of a stage; return the name of the blocks for the next one."""
        if self.has_few_sources(stage):
            self.add_few_sources(stage)
        elif stage.exchange.local or self.has_one_target(stage):
            self.add_groups(stage)
        else:
            self.add_travelling(stage)
        return stage.name

    def add_travelling(self, stage: Stage) -> None:
        """Add the tasks of an exchange whose blocks travel, and of its round."""
        raise NotImplementedError

    def add_block(self, stage: Stage, block: Block, function: TaskFunction, *inputs: Any) -> None:
        """Add the task of a target block: a call of a `block_task` with some inputs."""
        stage.put_block(block, function, stage.arguments(block, *inputs))

    def buffer_of(self, stage: Stage, block: Block) -> TaskRef | None:
        """Return the shared buffer into which the round writes a block, if there is one."""
        return None

    # --- blocks that depend on their source blocks

    def has_few_sources(self, stage: Stage) -> bool:
        """Return whether target blocks have few source blocks and no round follows."""
        exchange = stage.exchange
        is_near = self.is_in_process or exchange.local
        if not is_near or not stage.is_last or exchange.mirror is not None:
            return False
        for before, after in zip(exchange.source.axes, exchange.target.axes, strict=True):
            if before.digits != after.digits or len(before.groups) != 1:
                return False
        return exchange.shape.fan_in <= FEW_SOURCES

    def has_one_target(self, stage: Stage) -> bool:
        """Return whether each group has one target block."""
        pairs = zip(Groups(stage.exchange).axes, stage.exchange.target.axes, strict=True)
        return all(axis.count == after.blocks for axis, after in pairs)

    def add_few_sources(self, stage: Stage) -> None:
        """Add all target blocks of a stage each of which has few sources; copies are aliases."""
        shards = ExchangeMap(stage.exchange.source, stage.exchange.target)
        for block in stage.exchange.target.indices():
            sources = sorted(shards.sources(block))
            if len(sources) == 1 and _is_copy(shards, block, sources[0]):
                key: Key = (stage.name, *block)
                stage.graph[key] = Alias(key, *stage.refs(sources))
            else:
                self.add_direct(stage, [block], sources)

    def add_groups(self, stage: Stage) -> None:
        """Add target blocks that depend on all source blocks of their group."""
        for _, sources, targets in Groups(stage.exchange):
            self.add_direct(stage, targets, sources)

    def add_direct(self, stage: Stage, targets: Sequence[Block], sources: Sequence[Block]) -> None:
        """Add target blocks that depend on source blocks."""
        indices = tuple(sources)
        refs = stage.refs(sources)
        for block in targets:
            self.add_block(
                stage,
                block,
                run_block,
                indices,
                self.buffer_of(stage, block),
                *refs,
            )


class Auto(Carrier):
    """Stand-in for the carrier that is chosen later; a plan may use what any of them offers."""

    is_in_process = True
    uses_shuffles = True
    storage = "auto"


def _is_copy(shards: ExchangeMap, block: Block, source: Block) -> bool:
    """Return whether a target block equals its only source block."""
    ((axes, _),) = shards.pieces(block)
    for pieces in axes:
        before, after = pieces.sides
        if len(pieces) != 1 or (before.steps != after.steps).any():
            return False
    shape = tuple(pieces.size for pieces in axes)
    return shards.source.shape(source) == shards.target.shape(block) == shape


# --- tasks ----------------------------------------------------------------------------------


class Blocks:
    """Blocks of this process by their index, `checked`.

    The attribute `shared_buffer` is the buffer of all blocks if rounds may overwrite it, or None.
    """

    def __init__(
        self,
        run: PlanRun,
        number: int,
        indices: Iterable[Block],
        blocks: Iterable[Any],
    ) -> None:
        pairs = zip(indices, blocks, strict=True)
        self.by_index = {
            index: checked(
                run,
                number,
                index,
                values,
            )
            for index, values in pairs
        }
        self.shared_buffer: SharedBuffer | None = None

    def __getitem__(self, block: Block) -> Array:
        return self.by_index[block]

    @property
    def on_gpu(self) -> bool:
        """True if the blocks are on GPUs."""
        return any(map(is_on_gpu, itertools.islice(self.by_index.values(), 1)))


@block_task
def run_block(
    run: PlanRun,
    number: int,
    block: Block,
    operands: Operands,
    sources: Indices,
    target_buffer: SharedBuffer | None,
    *blocks: Array,
) -> Array:
    """Return a block gathered from source blocks in memory, after its round.

    The round writes the block into the shared buffer `target_buffer`, if there is one.
    """
    source_blocks = Blocks(
        run,
        number,
        sources,
        blocks,
    )
    return finish_in_memory(
        run,
        number,
        block,
        operands,
        source_blocks,
        target_buffer,
    )


def finish_in_memory(
    run: PlanRun,
    number: int,
    block: Block,
    operands: Operands,
    sources: Blocks,
    target_buffer: SharedBuffer | None,
) -> Array:
    """Return a block gathered from source blocks in memory, after its round.

    The round may overwrite a source block that is the same block of the target layout, if the plan
    says so. Otherwise it writes the block into `target_buffer`, if there is one.
    """
    if sources.on_gpu:
        return run.finish(
            number,
            block,
            lambda: run.view(number, block, sources.__getitem__),
            operands,
        )
    target, spent = target_in(
        target_buffer,
        run,
        number,
        block,
    )
    source = _unchanged_block(run, number, sources.by_index)

    def view() -> BlockView:
        if source is not None:
            return BlockView.of(source, target=target)
        gathered = run.view(number, block, sources.__getitem__)
        gathered.target = target
        return gathered

    if source is not None and target is None and run.overwrites(number):
        raise_if_poisoned(number, block, source)
        if source.flags.writeable:
            overwritten = BlockView.of(source, owned=source.flags.c_contiguous, target=source)
            with poisoning(lambda: [source]):
                return run.finish(
                    number,
                    block,
                    lambda: overwritten,
                    operands,
                )
    with turn_for_device(run, number, block):
        return run.finish(
            number,
            block,
            view,
            operands,
            spent,
        )


def target_in(
    buffer: SharedBuffer | None,
    run: PlanRun,
    number: int,
    block: Block,
) -> tuple[Array | None, float]:
    """Return memory in a shared buffer for a block after its round, and the seconds spent on it."""
    if buffer is None:
        return None, 0.0
    started = time.perf_counter()
    layout = run.plan.rounds[number].target
    target = buffer.place(layout, block, run.plan.machine.threads)
    return target, time.perf_counter() - started


def _unchanged_block(run: PlanRun, number: int, blocks: Mapping[Block, Array]) -> Array | None:
    """Return the source block as the target block, if both have the same memory layout."""
    if not run.stays(number) or len(blocks) != 1:  # an array without elements has no sources
        return None
    (values,) = blocks.values()
    has_dtype = values.dtype == np.dtype(run.exchange(number).dtype)
    return values if has_dtype and values.flags.aligned else None


def turn_for_device(
    run: PlanRun, number: int, block: Block
) -> contextlib.AbstractContextManager[object]:
    """Wait for a task's turn to prepare a block for a device, if one may take it."""
    if not run.on_devices(number):
        return contextlib.nullcontext()
    exchange = run.exchange(number)
    nbytes = math.prod(exchange.target.shape(block)) * np.dtype(exchange.dtype).itemsize
    return dispatch.getting_ready(run.places[number], nbytes, exchange.dtype)
