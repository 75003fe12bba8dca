"""Rounds that overwrite the blocks of the input, in one process.

::

    source blocks -> own -> barrier -> round (in place) -> settled -> the same blocks -> barrier ...

A round's block is then a composite of shards of the source blocks, and its task returns only the
number of bytes. `settled` returns the source blocks after every round that writes to them. Another
carrier brings the blocks of the last round to the result.
"""

import itertools
import operator
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from dask_bigfft.arrays import Array, Block
from dask_bigfft.carriers.base import Blocks, Carrier, Stage, turn_for_device
from dask_bigfft.carriers.groups import Groups
from dask_bigfft.carriers.names import Graph, Key, block_ref
from dask_bigfft.carriers.poison import poisoning, raise_if_poisoned
from dask_bigfft.carriers.run import Operands, PlanRun, block_task, checked, emit_phase, reported
from dask_bigfft.carriers.shared import Shared
from dask_bigfft.errors import raise_invalid
from dask_bigfft.gpu import dispatch
from dask_bigfft.kernels.loop import run_round
from dask_bigfft.kernels.transfer import TransferValues
from dask_bigfft.kernels.views import BlockView, is_on_gpu
from dask_bigfft.memory import allocate


class Inside(Shared):
    """Carrier of a plan whose rounds overwrite the blocks of the input.

    Parameters
    ----------
    last : Carrier
        Carrier of the exchange after the last round.
    """

    def __init__(self, last: Carrier) -> None:
        super().__init__(
            last.name,
            last.plan,
            last.names,
            last.is_named,
            place=last.place,
        )
        self.last = last

    def whole_graph(
        self,
        source_name: str,
        output_name: str,
        transfer: TransferValues | None,
        blocks: Mapping[Key, Array],
    ) -> Graph | None:
        """Return the tasks of the whole plan, if its carrier does not add it stage by stage."""
        return self.last.whole_graph(
            source_name,
            output_name,
            transfer,
            blocks,
        )

    def add_plan(self, graph: Graph, run: PlanRun) -> None:
        """Add the plan, to which the tasks refer."""
        self.last.add_plan(graph, run)

    def add_sources(self, graph: Graph, source_name: str) -> str:
        """Add the tasks that copy source blocks that must not be overwritten."""
        names = self.names[-1]
        stage = Stage(
            graph,
            self.plan,
            number=0,
            names=names,
            source_name=source_name,
            name=names("own"),
        )
        for block in stage.exchange.source.indices():
            self.add_block(
                stage,
                block,
                own_block,
                block_ref(source_name, block),
            )
        return stage.name

    def add(self, stage: Stage) -> str:
        """Add a round that overwrites its source blocks; return the new name of these blocks."""
        if stage.is_last:
            return self.last.add(stage)
        name_after = stage.names("settled", stage.number)
        for group, sources, targets in Groups(stage.exchange):
            handle = self.add_barrier(
                stage,
                group,
                sources,
                buffer=None,
            )
            rounds = []
            for block in targets:
                task = stage.put(
                    stage.name,
                    block,
                    run_inside,
                    stage.run,
                    stage.number,
                    block,
                    handle,
                )
                rounds.append(task)
            all_settled = stage.put(
                f"{name_after}-all",
                group,
                settled,
                handle,
                *rounds,
            )
            for block in sources:
                stage.put(
                    name_after,
                    block,
                    operator.getitem,
                    all_settled,
                    block,
                )
        return name_after


# --- tasks ----------------------------------------------------------------------------------


@block_task
def own_block(
    run: PlanRun,
    number: int,
    block: Block,
    operands: Operands,
    values: Any,
) -> Array:
    """Return a block that may be overwritten: the source block, or a copy of it."""
    source = checked(
        run,
        number,
        block,
        values,
    )
    if is_on_gpu(source):
        raise_invalid("overwrite_x", True, "False for blocks on a GPU, which are transformed there")
    dtype = np.dtype(run.exchange(number).dtype)
    flags = source.flags
    if source.dtype == dtype and flags.c_contiguous and flags.aligned and flags.writeable:
        return source
    copy = allocate(source.shape, dtype)
    copy[...] = source
    return copy


@reported
def run_inside(
    run: PlanRun,
    number: int,
    block: Block,
    blocks: Blocks,
) -> int:
    """Compute the round after exchange `number` in the source blocks; return the bytes done."""
    with turn_for_device(run, number, block):
        started = time.perf_counter()
        round_ = run.plan.rounds[number]
        dtype = np.dtype(run.exchange(number).dtype)
        view = run.view(number, block, blocks.__getitem__)
        shards = view.boxes(False)
        assert shards is not None  # checked when the plan was made
        for _, first in itertools.islice(shards.views(), 1):
            raise_if_poisoned(number, block, first)
        job = dispatch.job_of(
            round_,
            block,
            dtype,
            dtype,
            inside=True,
        )
        with poisoning(lambda: (view for _, view in shards.views())):
            is_transformed = dispatch.inside_device(job, shards, run.place)
        if not is_transformed:
            gathered = BlockView.of(view.gather(), owned=True)
            values = dispatch.on_device(
                job,
                gathered,
                {},
                run.place,
            )
            if values is None:
                values = run_round(
                    round_,
                    block,
                    gathered,
                    run.library,
                    dtype,
                    {},
                )
            _scatter(values.reshape(shards.sizes), shards)
        emit_phase("round", block, shards.nbytes, started)
        return int(shards.nbytes)


def _scatter(values: Array, shards: Any) -> None:
    """Copy the values of a block into the shards that it is composed of."""
    for place, part in shards.views():
        cut = zip(place, part.shape, strict=True)
        part[...] = values[tuple(slice(low, low + size) for low, size in cut)]


def settled(blocks: Blocks, *rounds: int) -> Blocks:
    """Return the handle of a group's blocks after all rounds that write to them."""
    return blocks
