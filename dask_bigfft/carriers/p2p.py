"""The carrier `p2p`: exchanges on distributed's peer-to-peer rechunk (see `shuffle`).

::

    source blocks -> pack and send -> shuffle barrier -> collect + gather + round (+ send)

A shuffle carries some connected groups of an exchange. If no other plan reads the blocks between
two shuffles, one task assembles a block, computes the round and sends the shards::

    source blocks -> send -> barrier -> (assemble + round + send) for some blocks -> barrier -> ...

Exchanges for which a shuffle does not pay use `tasks`.
"""

import itertools
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import numpy as np

from dask_bigfft.arrays import Array, Block
from dask_bigfft.carriers.base import Stage
from dask_bigfft.carriers.groups import Groups
from dask_bigfft.carriers.names import TOPIC, Names, block_ref
from dask_bigfft.carriers.run import Operands, PlanRun, TaskFunction, block_task, checked, reported
from dask_bigfft.carriers.tasks import Tasks, put_together
from dask_bigfft.dask_private import TaskRef
from dask_bigfft.errors import CarrierError, FallbackWarning
from dask_bigfft.events import current_worker, emit
from dask_bigfft.exchange.packing import packed, shard_checksum
from dask_bigfft.kernels.views import is_on_gpu
from dask_bigfft.planner.seconds import shuffled
from dask_bigfft.planner.stages import Exchange

#: Maximum number of shuffles of an exchange: each costs connections, files and a barrier.
MAX_SHUFFLES = 16

#: Maximum number of tasks that send the blocks of a round: with more blocks, each sends several.
MAX_SENDERS = 1 << 13

#: Maximum bytes of source blocks of such a task, which needs them at the same time.
MAX_SOURCE_NBYTES = 4 << 20


@cache
def _tried_shuffle() -> Any:
    """Return the module `shuffle`; warn once and return None where distributed is too different."""
    try:
        from dask_bigfft.carriers import shuffle

        shuffle.try_exchange()
    except Exception as error:  # of any kind: private names may have changed in any way
        text = "dask_bigfft does not know this version of distributed's peer-to-peer shuffle "
        text += f"({error!r}): exchanges between processes use tasks"
        warnings.warn(text, FallbackWarning, stacklevel=2)
        return None
    return shuffle


def shuffle_module() -> Any:
    """Return the module `shuffle` for new graphs, or None where shuffles do not work."""
    shuffle = _tried_shuffle()
    return None if shuffle is None or shuffle.has_failed() else shuffle


def _shuffle_of_task() -> Any:
    """Return the module `shuffle` for a task whose graph has shuffles.

    A worker without one tells the scheduler, whose later graphs then use tasks.
    """
    shuffle = _tried_shuffle()
    if shuffle is not None:
        return shuffle
    worker = current_worker()
    if worker is not None:
        worker.log_event(TOPIC, "no shuffle")
    raise CarrierError(
        "the scheduler has built a graph for the carrier p2p, which does not work with the "
        "version of distributed on this worker: use the same version everywhere, or set "
        "bigfft.exchange.carrier to 'tasks'. Exchanges of graphs that this scheduler receives from "
        "now on use tasks: compute once more"
    )


@dataclass
class Shuffle:
    """Shuffle of one or more groups of an exchange.

    Parameters
    ----------
    name : str
        Name of the shuffle.
    sources : list of block indices
        Source blocks.
    targets_along : tuple of sequences of int
        Target blocks along each axis.
    targets_before : int
        Number of target blocks in earlier shuffles that travel, so that workers take turns.
    senders : list of TaskRef
        Tasks that send source blocks.
    """

    name: str
    sources: list[Block]
    targets_along: tuple[Sequence[int], ...]
    targets_before: int
    senders: list[TaskRef] = field(default_factory=list)

    @property
    def targets(self) -> list[Block]:
        """Target blocks, row-major."""
        return list(itertools.product(*self.targets_along))

    @property
    def travels(self) -> bool:
        """True if shards are sent; otherwise the only target depends on its sources."""
        return math.prod(map(len, self.targets_along)) > 1 and bool(self.sources)


@dataclass
class Shuffles:
    """Shuffles of one exchange.

    Parameters
    ----------
    by_group : dict
        Shuffles by group.
    sent_by_round : bool
        Whether the tasks of the preceding round send its blocks.
    """

    by_group: dict[Block, Shuffle]
    sent_by_round: bool

    @classmethod
    def of(
        cls,
        names: Names,
        number: int,
        exchange: Exchange,
        may_send: bool,
    ) -> "Shuffles":
        """Return the shuffles of an exchange.

        Parameters
        ----------
        names : Names
            Names of the tasks.
        number : int
            Number of the exchange, from 0.
        exchange : Exchange
            Exchange that they carry.
        may_send : bool
            Whether the tasks of the preceding round may send its blocks; they do if all are sent.
        """
        groups = Groups(exchange, MAX_SHUFFLES)
        by_group: dict[Block, Shuffle] = {}
        targets_before = 0
        for group, sources, _ in groups:
            pairs = zip(groups.axes, group, strict=True)
            targets_along = tuple(_compact(axis.targets[i]) for axis, i in pairs)
            group_name = "_".join(map(str, group))
            shuffle = Shuffle(
                group_name,
                sources,
                targets_along,
                targets_before,
            )
            by_group[group] = shuffle
            if shuffle.travels:
                targets_before += len(shuffle.targets)
        all_used = all((axis.of_source >= 0).all() for axis in groups.axes)
        all_travel = all(shuffle.travels for shuffle in by_group.values())
        sent_by_round = may_send and all_used and all_travel
        mark = "1-" if sent_by_round else ""
        for shuffle in by_group.values():
            place = f"{names.part}{number + 1}-{mark}"
            shuffle.name = f"bigfft-{place}{names.token}-{shuffle.name}"
        return cls(by_group, sent_by_round)

    @cached_property
    def by_source(self) -> dict[Block, Shuffle]:
        """Shuffles by source block."""
        return {block: shuffle for shuffle in self.by_group.values() for block in shuffle.sources}


def _compact(members: tuple[int, ...]) -> Sequence[int]:
    """Return equally spaced numbers as a range, which is small even for thousands of blocks.

    >>> _compact((1, 3, 5)), _compact((1, 2, 5))
    (range(1, 6, 2), (1, 2, 5))
    """
    if not members:
        return range(0)
    step = members[1] - members[0] if len(members) > 1 else 1
    equally_spaced = range(members[0], members[-1] + 1, max(1, step))
    return equally_spaced if tuple(equally_spaced) == members else members


@dataclass
class SendBatch:
    """Blocks that the next task computes and sends, one after the other.

    Parameters
    ----------
    stage : Stage
        Stage of the blocks.
    shuffles : Shuffles
        Shuffles of the following exchange.
    width : int
        Maximum number of blocks.
    """

    stage: Stage
    shuffles: Shuffles
    width: int
    function: TaskFunction | None = None
    blocks: list[Block] = field(default_factory=list)
    inputs: list[Any] = field(default_factory=list)

    def add(self, block: Block, function: TaskFunction, arguments: list[Any]) -> None:
        """Add a block; tasks of one batch have the same function and number of arguments."""
        if self.blocks:
            inputs_of_block = len(self.inputs) // len(self.blocks)
            if self.function is not function or inputs_of_block != len(arguments):
                self.end()
        self.function = function
        self.blocks.append(block)
        self.inputs += arguments
        if len(self.blocks) >= self.width:
            self.end()

    def end(self) -> None:
        """Add the task of the blocks to the graph."""
        if not self.blocks:
            return
        shuffles = [self.shuffles.by_source[block] for block in self.blocks]
        sender = self.stage.put(
            self.stage.name,
            self.blocks[0],
            run_and_send_blocks,
            self.stage.run,
            self.stage.number,
            self.function,
            tuple(self.blocks),
            tuple(shuffle.name for shuffle in shuffles),
            *self.inputs,
        )
        for shuffle in {shuffle.name: shuffle for shuffle in shuffles}.values():
            shuffle.senders.append(sender)
        self.blocks = []
        self.inputs = []


class P2P(Tasks):
    """Carrier whose blocks travel through shuffles where these pay, else as `tasks`."""

    uses_shuffles = True

    def __post_init__(self) -> None:
        #: Shuffles of each exchange; None where it uses tasks, and after the last exchange.
        self.shuffles: list[Shuffles | None] = [*self._shuffles(), None]
        self._batches: dict[int, SendBatch] = {}

    def _shuffles(self) -> list[Shuffles | None]:
        """Return the shuffles of each exchange; None where it uses tasks.

        If the user did not name the carrier, shuffles carry only exchanges for which they pay. If
        no other plan reads the blocks between two exchanges, the tasks that compute them send them.
        """
        shuffles: list[Shuffles | None] = []
        round_may_send = False
        for number, exchange in enumerate(self.plan.exchanges):
            pays = not exchange.local and (self.is_named or shuffled(exchange.shape))
            if pays and shuffle_module():
                may_send = self.is_private and round_may_send
                shuffles.append(
                    Shuffles.of(
                        self.names[number],
                        number,
                        exchange,
                        may_send,
                    )
                )
            else:
                shuffles.append(None)
            round_may_send = exchange.local or shuffles[-1] is not None
        return shuffles

    def _onward(self, number: int) -> Shuffles | None:
        """Return the shuffles to which the tasks of a round send its blocks, if they do."""
        following = self.shuffles[number + 1]
        return following if following is not None and following.sent_by_round else None

    def mark(self, number: int) -> str:
        """Return the mark in the names of tasks that send their blocks."""
        return "" if self._onward(number) is None else "1-"

    def add(self, stage: Stage) -> str:
        """Add the tasks of a stage; return the name of the blocks for the next one."""
        onward = self._onward(stage.number)
        if onward is None:
            return super().add(stage)
        width = _blocks_of_sender(stage.exchange, self.shuffles[stage.number] is not None)
        batch = SendBatch(stage, onward, width)
        self._batches[stage.number] = batch
        name = super().add(stage)
        batch.end()
        return name

    def add_block(self, stage: Stage, block: Block, function: TaskFunction, *inputs: Any) -> None:
        """Add the task of a target block, or add the block to the batch of a task."""
        arguments = stage.arguments(block, *inputs)
        batch = self._batches.get(stage.number)
        if batch is None:
            stage.put_block(block, function, arguments)
        else:
            batch.add(block, function, arguments)

    def add_travelling(self, stage: Stage) -> None:
        """Add the tasks of an exchange through shuffles: these, and the gather of target blocks."""
        shuffles = self.shuffles[stage.number]
        if shuffles is None:
            super().add_travelling(stage)
            return
        for shuffle in shuffles.by_group.values():
            if not shuffle.travels:
                self.add_direct(stage, shuffle.targets, shuffle.sources)
                continue
            if not shuffles.sent_by_round:
                self._add_senders(stage, shuffle)
            self._add_shuffle(stage, shuffle)

    def _add_senders(self, stage: Stage, shuffle: Shuffle) -> None:
        """Add the tasks that send the source blocks of a shuffle."""
        pack_name = stage.names("pack", stage.number)
        for block in shuffle.sources:
            sender = stage.put(
                pack_name,
                block,
                send_block,
                stage.run,
                stage.number,
                block,
                shuffle.name,
                block_ref(stage.source_name, block),
            )
            shuffle.senders.append(sender)

    def _add_shuffle(self, stage: Stage, shuffle: Shuffle) -> None:
        """Add the barrier of a shuffle, and the tasks that assemble its target blocks."""
        batch = self._batches.get(stage.number)
        width = 1 if batch is None else batch.width
        barrier = _shuffle_of_task().barrier_task(
            shuffle.name,
            shuffle.senders,
            targets=shuffle.targets_along,
            before=shuffle.targets_before,
            plan=stage.names.token,
            number=stage.number,
            output=stage.name,
            width=width,
        )
        attempt = TaskRef(barrier.key)
        stage.graph[barrier.key] = barrier
        for count, block in enumerate(shuffle.targets, shuffle.targets_before + 1):
            self.add_block(
                stage,
                block,
                run_block_of_shuffle,
                shuffle.name,
                attempt,
            )
            if batch is not None and count % width == 0:
                batch.end()
        if batch is not None:
            batch.end()


def _blocks_of_sender(exchange: Exchange, is_shuffled: bool) -> int:
    """Return the number of blocks that a task computes and sends after an exchange.

    Source blocks that do not come from a shuffle are in memory at the same time.
    """
    width = -(-exchange.target.blocks // MAX_SENDERS)
    if is_shuffled:
        return width
    size = exchange.shape.fan_in * exchange.source.largest
    nbytes = max(1, size * np.dtype(exchange.source_dtype).itemsize)
    return max(1, min(width, MAX_SOURCE_NBYTES // nbytes))


# --- tasks ----------------------------------------------------------------------------------


@reported
def send_block(
    run: PlanRun,
    number: int,
    source: Block,
    shuffle: str,
    values: Array,
) -> dict[str, set[int]]:
    """Pack a source block and send the shards to their workers.

    Parameters
    ----------
    run : PlanRun
        Plan that is executed.
    number : int
        Number of the exchange, from 0.
    source : tuple of int
        Index of the block.
    shuffle : str
        Name of the shuffle.
    values : ndarray
        Values of the block.

    Returns
    -------
    dict
        Attempts in which the block was sent, by shuffle.
    """
    block = checked(
        run,
        number,
        source,
        values,
    )
    dtype = np.dtype(run.exchange(number).dtype)
    if is_on_gpu(block):
        raise CarrierError(
            "the carrier p2p does not support blocks on a GPU: build the graph with "
            "dask.config.set({'bigfft.exchange.carrier': 'tasks'}), which is the default if the "
            "array's meta is a CuPy array"
        )

    def pack(owner_of: Callable[[Block], Any], targets: tuple[Sequence[int], ...]) -> Any:
        """Return the message for each owner of target blocks.

        It has the blocks, their packed shards and the bounds of these, and a checksum of each
        shard, 0 if the plan does not verify by checksums.
        """
        started = time.perf_counter()
        messages = {}
        nbytes = 0
        parts = packed(
            run.map(number),
            targets,
            source,
            block,
            dtype,
            owner_of,
        )
        for owner, blocks, bounds, shards in parts:
            checksums = np.zeros(len(blocks), np.uint64)
            if run.plan.verify == "checksum":
                for i, target in enumerate(map(tuple, blocks.tolist())):
                    shard = shards[bounds[i] : bounds[i + 1]]
                    checksums[i] = shard_checksum(
                        shard,
                        number,
                        source,
                        target,
                    )
            messages[owner] = blocks, bounds, shards, checksums
            nbytes += shards.nbytes
        emit("pack", nbytes=nbytes, seconds=time.perf_counter() - started)
        return messages

    return {shuffle: {_shuffle_of_task().transfer(shuffle, source, pack)}}


def run_and_send_blocks(
    run: PlanRun,
    number: int,
    function: TaskFunction,
    blocks: Sequence[Block],
    shuffles: Sequence[str],
    *inputs: Any,
) -> dict[str, set[int]]:
    """Compute blocks and send each before the next one is computed.

    The scheduler's time depends on the number of tasks, so one task serves several blocks if there
    are very many.

    Parameters
    ----------
    run, number
        Plan that is executed, and the exchange before the round of the blocks, from 0.
    function : callable
        Task that computes a block.
    blocks, shuffles
        Indices of the blocks, and the shuffle that carries each.
    *inputs
        Inputs of `function`, equally many for each block.

    Returns
    -------
    dict
        Attempts in which blocks were sent, by shuffle.
    """
    sent: dict[str, set[int]] = {}
    inputs_of_block = len(inputs) // len(blocks)
    for i, (block, shuffle) in enumerate(zip(blocks, shuffles, strict=True)):
        first = i * inputs_of_block
        values = function(
            run,
            number,
            block,
            *inputs[first : first + inputs_of_block],
        )
        attempts = send_block(
            run,
            number + 1,
            block,
            shuffle,
            values,
        )
        del values
        sent.setdefault(shuffle, set()).update(attempts[shuffle])
    return sent


@block_task
def run_block_of_shuffle(
    run: PlanRun,
    number: int,
    block: Block,
    operands: Operands,
    shuffle: str,
    attempt: int,
) -> Array:
    """Return a block assembled from a shuffle's shards, after its round.

    Raises
    ------
    CarrierError
        If the shuffle does not have exactly the shards of the block.
    """
    started = time.perf_counter()
    shards, free = _shuffle_of_task().collect(shuffle, attempt, block)
    nbytes = sum(shard.nbytes for shard, _ in shards.values())
    emit("unpack", nbytes=nbytes, seconds=time.perf_counter() - started)
    expected = run.map(number).sources(block)
    if shards.keys() != expected:
        raise CarrierError(
            f"exchange {number}: block {block} needs shards of {len(expected)} blocks, and the "
            f"shuffle {shuffle} has {len(shards)}, {len(expected - shards.keys())} of them missing"
        )
    values = put_together(
        run,
        number,
        block,
        shards,
        operands,
    )
    free()
    return values
