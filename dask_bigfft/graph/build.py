"""From a plan to tasks, stage by stage: an exchange of blocks, and the round after it.

A stage takes its source blocks by their name, and its carrier adds the tasks (see `carriers`).
Operands have stages of their own, whose blocks the rounds multiply by. The transfer function of an
operator may be made of another lazy array, in one task or by an exchange.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dask_bigfft.arrays import Array, Block
from dask_bigfft.carriers.base import Carrier, Stage
from dask_bigfft.carriers.choice import carrier_of, carrier_type
from dask_bigfft.carriers.names import Cut, Graph, Key, Names, block_ref
from dask_bigfft.carriers.run import ByBlock, PlanRun, generate_filter
from dask_bigfft.dask_private import DataNode, Task
from dask_bigfft.kernels.transfer import TransferValues
from dask_bigfft.planner.plan import Operand, Plan
from dask_bigfft.transforms.spec import FactorSpec

if TYPE_CHECKING:
    from dask_bigfft.exchange.scratch import ScratchPlace


@dataclass(frozen=True)
class Known:
    """Plan whose first rounds another plan shares, and its token.

    A spectrum and its shifted form share these rounds: their tasks have the same names.
    """

    plan: Plan
    token: str

    def shared(self, plan: Plan) -> int:
        """Return the number of first rounds that a plan of the same source shares with this one."""
        if self.plan.source != plan.source or self.plan.inside:
            return 0
        pairs = zip(self.plan.rounds, plan.rounds, strict=False)
        equal = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        # A last round that makes blocks of the result flattens them, and has the result's name.
        ends_in_round = self.plan.ends_in_round or plan.ends_in_round
        return equal - 1 if ends_in_round and equal == len(plan.rounds) else equal


@dataclass(frozen=True)
class TransferSource:
    """Transfer function of an operator, and the lazy array of which it is made, if any.

    Parameters
    ----------
    values : TransferValues or None
        The transfer function, without the lazy array.
    factor_name : str
        Name of the lazy array.
    """

    values: TransferValues | None = None
    factor_name: str = ""

    def task(self, factor: FactorSpec, key: Key = None) -> Task:
        """Return the task that makes the transfer function of the lazy array, which has one block.

        Without a key it is an argument of another task.
        """
        block = (0,) * len(factor.chunks)
        return Task(
            key,
            made_of,
            self.values,
            block_ref(self.factor_name, block),
        )

    def of_whole_plan(self, plan: Plan) -> Any:
        """Return the transfer function as an argument of the task of a whole plan."""
        if plan.spec.factor is None:
            return self.values
        (operand,) = plan.operands
        if operand.plan is None:
            return self.task(plan.spec.factor)
        blocks = list(operand.plan.source.indices())
        return Task(
            None,
            by_index,
            blocks,
            *[block_ref(self.factor_name, block) for block in blocks],
        )


class Builder:
    """Builder of the tasks of a plan, or of one of its operands, stage by stage.

    Parameters
    ----------
    graph : dict
        Graph to which tasks are added.
    plan : Plan
        Plan of the tasks.
    names : sequence of Names
        Names of the tasks, by exchange.
    carrier : Carrier
        Carrier of the exchanges.
    transfer : TransferSource
        Transfer function of an operator.
    """

    def __init__(
        self,
        graph: Graph,
        plan: Plan,
        names: Sequence[Names],
        carrier: Carrier,
        transfer: TransferSource,
    ) -> None:
        self.graph = graph
        self.plan = plan
        self.names = names
        self.carrier = carrier
        self.transfer = transfer
        #: Names of the operands' blocks, by number.
        self.operand_names: dict[int, str] = {}

    def add_plan(self, token: str, source_name: str) -> str:
        """Add the tasks of a plan; return the name of the blocks of its result."""
        self.carrier.add_plan(self.graph, PlanRun(self.plan, token))
        name = self.carrier.add_sources(self.graph, source_name)
        for number in range(len(self.plan.exchanges)):
            name = self.carrier.add(self.stage(number, name))
        return name

    def add_operands(self) -> None:
        """Add the tasks of all operands of the plan."""
        for index, operand in enumerate(self.plan.operands):
            self.add_operand(index, operand)

    def add_operand(self, index: int, operand: Operand) -> None:
        """Add the tasks of an operand of the plan, whose number is `index`."""
        plan = operand.plan
        if plan is None:
            self.operand_names[index] = self.names[operand.stage](operand.name)
            key = (self.operand_names[index],)
            if operand.factor is None:
                self.graph[key] = DataNode(key, self.transfer.values)
            else:
                self.graph[key] = self.transfer.task(operand.factor, key)
            return
        names = Names(self.names[operand.stage].token, f"{operand.name}_")
        names_of_exchanges = [names] * len(plan.exchanges)
        carrier = carrier_of(
            self.carrier.name,
            plan,
            names_of_exchanges,
            self.carrier.is_named,
        )
        builder = Builder(
            self.graph,
            plan,
            names_of_exchanges,
            carrier,
            TransferSource(),
        )
        token = f"{names.token}-{operand.name}"
        if operand.factor is not None:
            self.operand_names[index] = builder.add_plan(token, self.transfer.factor_name)
            return
        carrier.add_plan(self.graph, PlanRun(plan, token))
        first = builder.stage(0, source_name="")
        for block in plan.source.indices():
            carrier.add_block(
                first,
                block,
                generate_filter,
                operand.values,
            )
        name = first.name
        for number in range(1, len(plan.exchanges)):
            name = carrier.add(builder.stage(number, name))
        self.operand_names[index] = name

    def stage(self, number: int, source_name: str) -> Stage:
        """Return an exchange and its round, with the names of their blocks."""
        names = self.names[number]
        if number == len(self.plan.rounds):
            name = names("unpack")
        else:
            name = names("round", number, self.carrier.mark(number))
        return Stage(
            self.graph,
            self.plan,
            number,
            names,
            source_name,
            name,
            operands={index: self.operand_names[index] for index in self.plan.operands_of(number)},
        )


def by_index(indices: Sequence[Block], *blocks: Array) -> ByBlock:
    """Return blocks by their indices."""
    return dict(zip(indices, blocks, strict=True))


def made_of(transfer: Any, array: Array) -> TransferValues:
    """Return a transfer function that is made of an array."""
    transfer_of_array: TransferValues = replace(transfer, array=array)
    return transfer_of_array


def _names(plan: Plan, token: str) -> Names:
    return Names(token, "" if plan.is_transform else f"{plan.spec.name}_")


def output_name(plan: Plan, token: str) -> str:
    """Return the name of the result's blocks."""
    names = _names(plan, token)
    return names("round", len(plan.rounds) - 1) if plan.ends_in_round else names("unpack")


def build_graph(
    plan: Plan,
    token: str,
    source_name: str,
    carrier_name: str,
    is_named: bool,
    known: Known | None,
    place: "ScratchPlace | None",
    is_private: bool,
    cuts: Sequence[Cut] | None,
    transfer: TransferSource,
    blocks: Mapping[Key, Array] | None,
) -> Graph:
    """Return all tasks of a plan.

    Parameters
    ----------
    plan : Plan
        Plan of the tasks.
    token : str
        Unique part of the task names.
    source_name : str
        Name of the source array.
    carrier_name : str
        Name of the carrier of all exchanges, see `carriers.choice.CARRIERS`.
    is_named : bool
        Whether the user named the carrier. If not, p2p carries only exchanges for which it pays.
    known : Known or None
        Plan of the same source whose tasks are reused where they are equal.
    place : ScratchPlace or None
        Location of the scratch files.
    is_private : bool
        Whether no other plan uses tasks of this one, so that rounds may work in place.
    cuts : sequence of Cut or None
        Parts of the source array's blocks, if blocks on GPUs are still to be cut.
    transfer : TransferSource
        Transfer function of an operator.
    blocks : mapping of key to array or None
        Source blocks that are computed.
    """
    carrier_class = carrier_type(carrier_name)
    fitted_plan = carrier_class.fitted(plan, place)
    names = [_names(plan, token)] * len(plan.exchanges)
    shared_rounds = 0
    if known is not None and carrier_class.reuses_tasks:
        shared_rounds = known.shared(plan)
        names[:shared_rounds] = [Names(known.token)] * shared_rounds
    carrier = carrier_of(
        carrier_name,
        fitted_plan,
        names,
        is_named,
        is_private=is_private and known is None and not plan.inside,
        place=place,
        cuts=cuts,
    )
    whole_graph = carrier.whole_graph(
        source_name,
        output_name(plan, token),
        transfer.of_whole_plan(plan),
        blocks or {},
    )
    if whole_graph is not None:
        return whole_graph
    graph: Graph = {}
    if known is not None and shared_rounds:
        known_key = names[0]("plan")
        graph[known_key] = DataNode(known_key, PlanRun(known.plan, known.token))
    builder = Builder(
        graph,
        fitted_plan,
        names,
        carrier,
        transfer,
    )
    builder.add_operands()
    builder.add_plan(token, source_name)
    return _with_plan_in_task(graph) if len(graph) == 2 else graph


def _with_plan_in_task(graph: Graph) -> Graph:
    """Return the graph of a plan and one task as that task alone.

    On a cluster, a task that brings the plan would double the time.
    """
    node, task = graph.values()
    if not isinstance(node, DataNode) or not isinstance(task, Task):
        return graph
    return {
        task.key: Task(
            task.key,
            task.func,
            node.value,
            *task.args[1:],
        )
    }
