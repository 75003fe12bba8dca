"""The carrier `shared`: blocks stay in the memory of one process.

::

    source blocks -> barrier -> gather + round -> barrier -> gather + round -> (barrier -> unpack)

A barrier serves one connected group of an exchange: it needs p + q edges, all-to-all needs p*q. Its
result hands out the source blocks. Rounds may write their blocks into a buffer that the group
shares, and work in place there (see `buffers`).
"""

import sys
import time
from collections.abc import Sequence

from dask_bigfft import config
from dask_bigfft.arrays import Array, Block
from dask_bigfft.carriers import buffers
from dask_bigfft.carriers.base import Blocks, Carrier, Stage, finish_in_memory, target_in
from dask_bigfft.carriers.buffers import SharedBuffer
from dask_bigfft.carriers.groups import Groups
from dask_bigfft.carriers.names import block_ref
from dask_bigfft.carriers.run import Indices, Operands, PlanRun, block_task, emit_phase
from dask_bigfft.dask_private import TaskRef
from dask_bigfft.errors import CarrierError
from dask_bigfft.events import current_worker, during, emit, workers_of
from dask_bigfft.gpu import dispatch
from dask_bigfft.kernels.copies import copy_array
from dask_bigfft.kernels.views import BlockView
from dask_bigfft.planner.stages import SharedAxis
from dask_bigfft.transforms.shared_layouts import shared_blocks


class Shared(Carrier):
    """Carrier whose blocks stay in the memory of one process."""

    is_in_process = True

    def __post_init__(self) -> None:
        #: Shared buffers of the blocks of each exchange; None where there are none, and after the
        #: last exchange.
        self.shared_layouts: list[SharedAxis | None] = [None] * (len(self.plan.exchanges) + 1)
        if self.is_private and config.get("bigfft.exchange.in-place"):
            self.shared_layouts[:-1] = self.plan.shared_layouts.exchanges
        #: Shared buffer of each block along each axis, by the exchange for which it is allocated.
        self._buffers_along: dict[int, Sequence[Sequence[int]]] = {}

    def mark(self, number: int) -> str:
        """Return the mark in the names of blocks that are written into shared buffers."""
        return "" if self.shared_layouts[number + 1] is None else "0-"

    def has_few_sources(self, stage: Stage) -> bool:
        """Return whether target blocks have few source blocks, not in a shared buffer."""
        return self.shared_layouts[stage.number] is None and super().has_few_sources(stage)

    def has_one_target(self, stage: Stage) -> bool:
        """Return whether each group has one target block and no shared buffer."""
        return self.shared_layouts[stage.number] is None and super().has_one_target(stage)

    def buffer_of(self, stage: Stage, block: Block) -> TaskRef | None:
        """Return the shared buffer into which the round writes a block, if there is one."""
        following = self.shared_layouts[stage.number + 1]
        if following is None or following.home != stage.number + 1:
            return None
        along = self._buffers_along.get(following.home)
        if along is None:
            along = shared_blocks(following.layout, self.plan.rounds[stage.number].target)
            self._buffers_along[following.home] = along
        group = tuple([numbers[i] for numbers, i in zip(along, block, strict=True)])
        return self._buffer(stage, following, group)

    def _buffer(self, stage: Stage, shared: SharedAxis, group: Block) -> TaskRef:
        """Return the shared buffer of a group of blocks; add its task."""
        name = stage.names("common", shared.home)
        if (name, *group) not in stage.graph:
            stage.put(
                name,
                group,
                shared_memory,
                stage.run,
                shared.home,
                group,
            )
        return block_ref(name, group)

    def add_travelling(self, stage: Stage) -> None:
        """Add the tasks of an exchange in memory: a barrier for each group, and target blocks."""
        shared_layout = self.shared_layouts[stage.number]
        for group, sources, targets in Groups(stage.exchange):
            buffer = None
            if shared_layout is not None:
                buffer = self._buffer(stage, shared_layout, group)
            elif len(targets) == 1 or len(sources) <= 1:
                self.add_direct(stage, targets, sources)
                continue
            handle = self.add_barrier(
                stage,
                group,
                sources,
                buffer,
            )
            for block in targets:
                target_buffer = self.buffer_of(stage, block)
                self.add_block(
                    stage,
                    block,
                    run_block_of_barrier,
                    target_buffer,
                    handle,
                )

    def add_barrier(
        self,
        stage: Stage,
        group: Block,
        sources: Sequence[Block],
        buffer: TaskRef | None,
    ) -> TaskRef:
        """Add the barrier of a group of blocks; return the reference to its handle."""
        return stage.put(
            stage.names("barrier", stage.number),
            group,
            barrier,
            stage.run,
            stage.number,
            tuple(sources),
            self.is_named,
            buffer,
            *stage.refs(sources),
        )


# --- tasks ----------------------------------------------------------------------------------


def barrier(
    run: PlanRun,
    number: int,
    indices: Indices,
    is_named: bool,
    buffer: SharedBuffer | None,
    *blocks: Array,
) -> Blocks:
    """Return a handle of all source blocks of a group, all of which exist now.

    Parameters
    ----------
    run, number
        Plan, and number of the exchange from 0.
    indices : tuple of block indices
        Indices of the blocks.
    is_named : bool
        Whether the user named the `shared` carrier.
    buffer : SharedBuffer or None
        Shared buffer that may hold all of them.
    *blocks
        The blocks.

    Raises
    ------
    CarrierError
        In a task of a cluster, where sharing would move every block to every worker.
    """
    plan_token = run.token.partition("-")[0]  # a filter's token begins with its plan's
    refuse_cluster(plan_token, is_named)
    handle = Blocks(
        run,
        number,
        indices,
        blocks,
    )
    shared = run.plan.shared_layouts.exchanges[number]
    if buffer is not None and shared is not None:
        layout = run.exchange(number).source
        if buffer.take(
            number,
            shared.layout,
            layout,
            handle.by_index,
        ):
            handle.shared_buffer = buffer
    return handle


def shared_memory(run: PlanRun, number: int, group: Block) -> SharedBuffer:
    """Return a shared buffer for the blocks of a group before an exchange.

    Its memory is allocated when the first block is written. On workers of a cluster, where a task
    may be repeated, and before rounds on devices it has no places, so that blocks get memory of
    their own.
    """
    shared_layout = run.plan.shared_layouts.exchanges[number]
    may_use_devices = run.plan.device != "cpu" and number < len(run.plan.rounds)
    if may_use_devices and dispatch.missing() is None:
        shared_layout = None
    if shared_layout is None or current_worker() is not None:
        return SharedBuffer(run.token)
    with during(run.token, number):
        emit("begun")
    return SharedBuffer(
        run.token,
        shared_layout.layout,
        group,
        run.exchange(number).dtype,
    )


def refuse_cluster(token: str, is_named: bool) -> None:
    """Raise in a task of a cluster, unless it has a single worker and the user named the carrier.

    A task of a cluster may compute an array by a local scheduler. The worker then only knows the
    outer task, and blocks stay in its process.
    """
    worker = current_worker()
    try:
        if worker is None or token not in str(worker.get_current_task()):
            return
    except KeyError:
        return
    client = sys.modules["distributed"].get_client()
    if is_named and len(workers_of(client)) == 1:
        return
    raise CarrierError(
        f"this graph shares blocks inside one process, but it runs on worker {worker.address} of "
        "a cluster: it was turned into tasks before the cluster was known, or its carrier was "
        "named 'shared'. Call compute() or persist() on the unoptimised array while the client is "
        "there, or build it again with dask.config.set({'bigfft.exchange.carrier': 'tasks'})"
    )


@block_task
def run_block_of_barrier(
    run: PlanRun,
    number: int,
    block: Block,
    operands: Operands,
    target_buffer: SharedBuffer | None,
    sources: Blocks,
) -> Array:
    """Return a block gathered from the blocks of a barrier, after its round."""
    if sources.shared_buffer is not None:
        return _run_in_buffer(
            run,
            number,
            block,
            operands,
            sources.shared_buffer,
            target_buffer,
        )
    return finish_in_memory(
        run,
        number,
        block,
        operands,
        sources,
        target_buffer,
    )


def _run_in_buffer(
    run: PlanRun,
    number: int,
    block: Block,
    operands: Operands,
    buffer: SharedBuffer,
    target_buffer: SharedBuffer | None,
) -> Array:
    """Return a block in a shared buffer, after the round that follows, if there is one."""
    shared = run.plan.shared_layouts.exchanges[number]
    assert shared is not None
    assert buffer.array is not None
    target, spent = target_in(
        target_buffer,
        run,
        number,
        block,
    )
    started = time.perf_counter() - spent
    target_layout = run.exchange(number).target
    values = buffers.view_in(
        buffer.array,
        shared.layout,
        target_layout,
        block,
    )
    if number == len(run.plan.rounds):
        emit_phase("unpack", block, values.nbytes, started)
        buffers.advance(run.token, buffers.RESULT, (values,))
        return values
    layout_after = run.plan.shared_layouts.inside[number]
    if layout_after is None:
        view = BlockView.of(values, target=target)
        return run.finish(
            number,
            block,
            lambda: view,
            operands,
            spent,
        )
    block_after = values
    if number + 1 == len(run.plan.exchanges):
        block_after = buffers.view_in(
            buffer.array,
            layout_after,
            run.plan.result,
            block,
        )
        buffers.advance(run.token, buffers.RESULT, (block_after,))

    def work() -> Array:
        _overwrite(
            run,
            number,
            block,
            operands,
            values,
            started,
        )
        return block_after

    return buffer.once(number, block, work)


def _overwrite(
    run: PlanRun,
    number: int,
    block: Block,
    operands: Operands,
    values: Array,
    started: float,
) -> None:
    """Overwrite a block by its round, which began at a time."""
    view = BlockView.of(values, target=values)
    transformed = run.transformed(
        number,
        block,
        lambda: view,
        operands,
    )
    if not buffers.is_view(transformed, values):
        copy_array(values, transformed)
    emit_phase("round", block, values.nbytes, started)
