"""The carrier `resident`: blocks stay on the GPUs of this process.

One task enqueues the whole transform, rounds and copies between GPUs, and the host does not wait.
"""

import contextlib
import functools
import operator
from collections.abc import Mapping
from typing import Any, cast

from dask_bigfft.arrays import Array, Block
from dask_bigfft.carriers.base import Blocks, Carrier
from dask_bigfft.carriers.names import ON_GPUS, Graph, Key, block_ref
from dask_bigfft.carriers.run import ByBlock, PlanRun, ViewMaker, generate_filter
from dask_bigfft.carriers.shared import refuse_cluster
from dask_bigfft.dask_private import Task, TaskRef
from dask_bigfft.errors import DeviceMemoryError
from dask_bigfft.events import during
from dask_bigfft.gpu.gather import Crossing, by_turns, crosses, spread
from dask_bigfft.gpu.links import gpus
from dask_bigfft.gpu.operations import PendingTransfer
from dask_bigfft.gpu.peers import transport_of
from dask_bigfft.kernels.transfer import TransferValues
from dask_bigfft.kernels.views import is_on_gpu
from dask_bigfft.planner.plan import Operand, Plan

#: Operands by their numbers and by block.
OperandBlocks = Mapping[int, Mapping[Block, Any]]


class Resident(Carrier):
    """Carrier of blocks on the GPUs of this process."""

    is_on_gpus = True

    def whole_graph(
        self,
        source_name: str,
        output_name: str,
        transfer: TransferValues | None,
        blocks: Mapping[Key, Array],
    ) -> Graph | None:
        """Return the task of the whole plan, and those that take the blocks of its result.

        Computed source blocks are arguments, which take dask no time. Without the reference to the
        first one, dask would keep all blocks in its graph.
        """
        cuts = self.cuts or [(block, block, ()) for block in self.plan.source.indices()]
        source_blocks = list(dict.fromkeys(origin for _, origin, _ in cuts))
        parts = tuple((block, source_blocks.index(origin), cut) for block, origin, cut in cuts)
        sources: list[Any] = []
        for number, block in enumerate(source_blocks):
            ref = block_ref(source_name, block)
            sources.append(ref if number == 0 else blocks.get(ref.key, ref))
        key = f"{output_name}-all"
        graph: Graph = {}
        graph[key] = Task(
            key,
            transform_on_gpus,
            PlanRun(self.plan, self.names[-1].token),
            parts,
            self.name.removeprefix(ON_GPUS),
            transfer,
            *sources,
        )
        for block in self.plan.result.indices():
            block_key = (output_name, *block)
            graph[block_key] = Task(
                block_key,
                operator.getitem,
                TaskRef(key),
                block,
            )
        return graph


# --- tasks ----------------------------------------------------------------------------------


def transform_on_gpus(
    run: PlanRun,
    parts: tuple[Any, ...],
    transport: str,
    transfer: TransferValues | ByBlock | None,
    *blocks: Any,
) -> ByBlock:
    """Return all blocks of a result, whose source blocks are on GPUs of this process.

    The calls enqueue work in the current streams of this thread. They are ordered with the user's
    own work there, and the host does not wait, but for the check of a transfer function.

    Parameters
    ----------
    run : PlanRun
        The plan.
    parts : tuple of (index, number, slices)
        Source blocks by index, as parts of the blocks that are given, by number.
    transport : {"auto", "host", "staged", "swap", "direct"}
        Transport between GPUs; "auto" chooses by the speed of each link.
    transfer : TransferValues or mapping of index to array or None
        Transfer function of an operator, or all blocks of the array of which a plan makes it.
    *blocks
        Blocks that are given.

    Raises
    ------
    CarrierError
        In a task of a cluster, where one worker would get all blocks.
    """
    refuse_cluster(run.token, is_named=False)
    operands: dict[int, ByBlock] = {}
    pending_transfer: PendingTransfer | None = None
    for number, operand in enumerate(run.plan.operands):
        if operand.plan is None:
            pending_transfer = PendingTransfer(cast("TransferValues", transfer))
            operands[number] = {(): pending_transfer}
        else:
            operands[number] = _operand_blocks(
                run,
                operand,
                operand.plan,
                transport,
                transfer,
            )
    sources = {index: blocks[number][cut] for index, number, cut in parts}
    results = _Transform(run, transport, operands).result(sources)
    if pending_transfer is not None:
        pending_transfer.require_finite()
    return results


def _operand_blocks(
    run: PlanRun,
    operand: Operand,
    plan: Plan,
    transport: str,
    transfer: Any,
) -> ByBlock:
    """Return the blocks of an operand that a plan makes.

    Parameters
    ----------
    run : PlanRun
        The plan that has the operand.
    operand : Operand
        The operand.
    plan : Plan
        Plan of the operand.
    transport, transfer
        Parameters of `transform_on_gpus`.
    """
    if operand.factor is not None:
        factor_run = PlanRun(plan, f"{run.token}-{operand.name}")
        return _Transform(factor_run, transport, {}).result(transfer)
    filter_run = PlanRun(plan, run.token)
    spectra: ByBlock = {}
    for block in plan.rounds[0].target.indices():
        spectra[block] = generate_filter(
            filter_run,
            0,
            block,
            (),
            operand.values,
        )
    filters = _Transform(
        filter_run,
        transport,
        {},
        first=1,
    )
    return filters.result(spectra)


class _Transform:
    """Exchanges and rounds of a plan on blocks on GPUs of this process.

    GPUs copy from each other while they compute: memory for the blocks of an exchange is allocated
    when each GPU has begun the round that makes its sources, if there is enough. Copies of a source
    follow its round, and a round follows the copies of its block.

    Parameters
    ----------
    run : PlanRun
        Plan that is executed.
    transport : str
        Transport between GPUs, or "auto".
    operands : mapping
        Blocks of the operands.
    first : int
        Number of the first exchange.
    """

    def __init__(
        self,
        run: PlanRun,
        transport: str,
        operands: OperandBlocks,
        first: int = 0,
    ) -> None:
        self.run = run
        self.operands = operands
        self.numbers = range(first, len(run.plan.exchanges))
        self._crossings = contextlib.ExitStack()
        #: Blocks of operands that were copied to another GPU, by operand, block and GPU.
        self._copied_factors: dict[tuple[int, Block, int], Any] = {}

        @functools.cache
        def transport_between(source: int, target: int) -> Any:
            return transport_of(gpus(), source, target) if transport == "auto" else transport

        self._transport_between = transport_between

    def result(self, blocks: ByBlock) -> ByBlock:
        """Return all blocks of the result, each on the GPU of its gather."""
        crossing: Crossing | None = None
        with self._crossings:
            for number in self.numbers:
                with during(self.run.token, number + 1):
                    sources = Blocks(
                        self.run,
                        number,
                        blocks,
                        blocks.values(),
                    )
                    homes = gpus().homes(blocks)
                    if crossing is None:
                        crossing = self._crossing(number, sources.by_index, homes)
                    blocks, next_crossing = self._run_stage(
                        number,
                        sources,
                        homes,
                        crossing,
                    )
                    if crossing is not None:
                        crossing.join()  # before the sources are freed
                del sources
                crossing = next_crossing
        return blocks

    def _crossing(
        self,
        number: int,
        sources: ByBlock,
        homes: Mapping[Block, int],
    ) -> Crossing | None:
        """Return the blocks after an exchange with those sources, if it goes from GPU to GPU."""
        if number not in self.numbers or not crosses(self.run.map(number), homes):
            return None
        crossing = Crossing(
            self.run.map(number),
            self.run.exchange(number),
            homes,
            sources,
            self._transport_between,
        )
        self._crossings.enter_context(crossing)
        crossing.take(sources)
        return crossing

    def _run_stage(
        self,
        number: int,
        sources: Blocks,
        source_homes: Mapping[Block, int],
        crossing: Crossing | None,
    ) -> tuple[ByBlock, Crossing | None]:
        """Return all blocks after an exchange and its round, and the next exchange if it began.

        Blocks are computed in turns, one on each GPU.
        """
        target = self.run.exchange(number).target
        homes = spread(target, source_homes)
        turns = by_turns(homes) or [[block] for block in target.indices()]
        results: ByBlock = {}
        next_crossing: Crossing | None = None
        is_first_turn = True
        for turn in turns:
            moments: ByBlock = {}
            for block in turn:
                results[block] = self._run_block(
                    number,
                    block,
                    sources,
                    homes,
                    crossing,
                )
                if crossing is None and block in homes:
                    moments[block] = gpus().now(homes[block])
            if crossing is None and is_first_turn:
                with contextlib.suppress(DeviceMemoryError):  # there may be some afterwards
                    next_crossing = self._crossing(number + 1, {}, homes)
            is_first_turn = False
            if next_crossing is not None:
                next_crossing.take({block: results[block] for block in turn}, moments)
        return {block: results[block] for block in target.indices()}, next_crossing

    def _run_block(
        self,
        number: int,
        block: Block,
        sources: Blocks,
        homes: Mapping[Block, int],
        crossing: Crossing | None,
    ) -> Array:
        """Return a block after an exchange and its round."""
        view: ViewMaker
        if crossing is not None:
            view = functools.partial(crossing.arrived, block)
        else:
            view = functools.partial(
                self.run.view,
                number,
                block,
                sources.__getitem__,
                home=homes.get(block),
            )
        factors = {}
        for index, operand in self.run.plan.operands_of(number).items():
            factors[index] = self._factor(index, operand.block(block), homes.get(block))
        return self.run.finish(
            number,
            block,
            view,
            factors,
        )

    def _factor(
        self,
        index: int,
        block: Block,
        home: int | None,
    ) -> Any:
        """Return a block of an operand, copied to the GPU where it multiplies if it is on another.

        Parameters
        ----------
        index : int
            Number of the operand.
        block : tuple of int
            Index of the block.
        home : int or None
            GPU of the block that is multiplied, if it is on one.
        """
        values = self.operands[index][block]
        if home is None or not is_on_gpu(values) or gpus().home(values) == home:
            return values
        key = (index, block, home)
        if key not in self._copied_factors:
            self._copied_factors[key] = gpus().copied_to(home, values)
        return self._copied_factors[key]
