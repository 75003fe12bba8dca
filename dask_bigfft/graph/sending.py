"""The tasks of exchanges that shuffles carry: who sends, the barriers, and who puts together.

A shuffle takes care of some connected groups of an exchange. Where nobody else looks at the blocks
between two shuffles, one task puts a block together, does the round and sends the shards on; it
does so for several blocks, one after the other, where there are very many: the time that a
scheduler takes for a graph goes with the number of tasks, and the blocks of such a task are never
in memory at the same time::

    source blocks -> send -> barrier -> (put together + round + send) * n -> barrier -> ...

Imports `planner`, `exchange`, and this room.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dask_bigfft.exchange import p2p
from dask_bigfft.exchange.turns import Turns
from dask_bigfft.graph.dask_private import Task, TaskRef
from dask_bigfft.graph.groups import Groups
from dask_bigfft.graph.names import Block, Graph, Key, Names
from dask_bigfft.graph.shuffles import Send, shuffle_barrier
from dask_bigfft.planner.plan import Exchange
from dask_bigfft.planner.work import shuffled

#: Shuffles of an exchange: each costs connections, files and a barrier on every worker.
MOST_SHUFFLES = 16

#: Tasks of an exchange from which on one does the work of several blocks.
MOST_TASKS = 1 << 13

#: Bytes of source blocks that a task may need at the same time, if it needs several.
MOST_TOGETHER = 4 << 20

#: Bytes of shards that are worth a write to a file of their own, and of all shards in a file that
#: several blocks share: whoever reads it remembers where they are.
LEAST_WRITTEN, MOST_IN_FILE = 1 << 16, 1 << 24


@dataclass(frozen=True)
class Shuffle:
    """A shuffle: its name, its blocks, and how many target blocks come before these."""

    name: str
    sources: list[Block]
    along: tuple[Sequence[int], ...]
    before: int

    @cached_property
    def targets(self) -> list[Block]:
        """Target blocks, row-major."""
        return list(itertools.product(*self.along))

    @property
    def travels(self) -> bool:
        """Whether there is anything to send: else its only target is made directly."""
        return len(self.targets) > 1 and bool(self.sources)


@dataclass
class Shuffles:
    """The shuffles of one exchange.

    Parameters
    ----------
    names : Names
        Of the tasks.
    number : int
        Exchange, from 0.
    exchange : Exchange
        What they carry.
    sent : bool
        Whether the round before sends its blocks itself.
    """

    names: Names
    number: int
    exchange: Exchange
    sent: bool = False
    #: Tasks that send, by the name of the shuffle.
    senders: dict[str, list[Key]] = field(default_factory=dict)

    @cached_property
    def groups(self) -> Groups:
        """What goes together."""
        return Groups(self.exchange, MOST_SHUFFLES)

    @cached_property
    def by_group(self) -> dict[Block, Shuffle]:
        """Shuffles by group."""
        found, before, axes = {}, 0, self.groups.axes
        for group, sources, _ in self.groups:
            along = tuple(_compact(a.targets[i]) for a, i in zip(axes, group, strict=True))
            name = self.names.shuffle(self.number, group, self.sent)
            found[group] = Shuffle(name, sources, along, before)
            before += math.prod(map(len, along))
        return found

    @property
    def all_travel(self) -> bool:
        """Whether every source block goes to a shuffle."""
        used = all(bool((axis.of_source >= 0).all()) for axis in self.groups.axes)
        return used and all(shuffle.travels for shuffle in self.by_group.values())

    def sends(self, blocks: Sequence[Block]) -> tuple[Send, ...]:
        """Where some source blocks go, by shuffle."""
        found: dict[Block | None, list[Block]] = {}
        for block in blocks:
            found.setdefault(self.groups.group_of(block), []).append(block)
        return tuple(
            Send(self.by_group[group].name, tuple(mine))
            for group, mine in found.items() if group is not None
        )

    def write(self, graph: Graph, key: Key, function: Any, number: int, sends: tuple[Send, ...],
              *rest: Any) -> None:
        """Add a task that sends blocks after what `function` does with them in an exchange."""
        graph[key] = Task(key, function, TaskRef(self.names.plan), number, sends, *rest)
        for send in sends:
            self.senders.setdefault(send.shuffle, []).append(key)

    def source_batches(self) -> Iterator[tuple[Send, ...]]:
        """Source blocks that one task sends: it needs all of them at the same time."""
        count = sum(len(shuffle.sources) for shuffle in self.by_group.values())
        width = min(_width(count), self._small())
        for shuffle in self.by_group.values():
            if shuffle.travels:
                for batch in _batches(shuffle.sources, width):
                    yield (Send(shuffle.name, tuple(batch)),)

    def _small(self) -> int:
        """How many source blocks may be in memory at the same time."""
        itemsize = np.dtype(self.exchange.source_dtype).itemsize
        each = self.exchange.source.size * itemsize // max(1, self.exchange.source.blocks)
        return max(1, MOST_TOGETHER // max(1, each))

    def turns(self, together: bool) -> Turns:
        """How workers take turns at target blocks: at those that a task may do, or at each."""
        count = self.exchange.target.blocks
        return Turns(count, _width(count) if together else 1)

    def _together(self) -> int:
        """How many target blocks' shards wait in one file: those of one may be too tiny for it."""
        exchange = self.exchange
        shard = exchange.shard_nbytes // max(1, exchange.shape.shards)
        block = exchange.shard_nbytes // max(1, exchange.target.blocks)
        return max(1, min(LEAST_WRITTEN // max(1, shard), MOST_IN_FILE // max(1, block)))

    def write_barrier(self, graph: Graph, shuffle: Shuffle, turns: Turns, output: str) -> TaskRef:
        """Add a shuffle's barrier, for tasks of a name; return what it hands on."""
        refs = [TaskRef(key) for key in self.senders[shuffle.name]]
        barrier = p2p.barrier_task(
            shuffle.name, shuffle_barrier, refs, targets=shuffle.along, before=shuffle.before,
            turns=turns, plan=self.names.token, number=self.number, together=self._together(),
            output=output,
        )
        graph[barrier.key] = barrier
        return TaskRef(barrier.key)


def shuffles_of(
    exchanges: Sequence[Exchange], names: Sequence[Names], carrier: str, unseen: bool
) -> list[Shuffles | None]:
    """The shuffles of each exchange that travels so.

    If nobody else sees the blocks between two exchanges, whoever makes them sends them.
    """
    found: list[Shuffles | None] = []
    for number, exchange in enumerate(exchanges):
        if exchange.local or not _by_shuffles(exchange, carrier):
            found.append(None)
            continue
        own = Shuffles(names[number], number, exchange)
        ready = number > 0 and (exchanges[number - 1].local or found[-1] is not None)
        if unseen and ready and own.all_travel:
            own = Shuffles(names[number], number, exchange, sent=True)
        found.append(own)
    return found


def _by_shuffles(exchange: Exchange, carrier: str) -> bool:
    """Whether shuffles carry an exchange between processes."""
    wanted = shuffled(exchange.shape) if carrier == "cluster" else carrier == "p2p"
    return wanted and p2p.usable()


def _width(count: int) -> int:
    """Blocks for each task, where there are some."""
    return -(-count // MOST_TASKS)


def _batches(blocks: Sequence[Block], width: int) -> Iterator[Sequence[Block]]:
    for start in range(0, len(blocks), width):
        yield blocks[start : start + width]


def in_turn(shuffle: Shuffle, turns: Turns) -> Iterator[Sequence[Block]]:
    """Target blocks that belong to one worker: turns are counted over all shuffles."""
    blocks, before = shuffle.targets, shuffle.before
    for first, last in turns.cuts(before, before + len(blocks)):
        yield blocks[first - before : last - before]


def _compact(members: tuple[int, ...]) -> Sequence[int]:
    """The same numbers as a range, where they are one: thousands of tasks hold them.

    >>> _compact((1, 3, 5)), _compact((1, 2, 5))
    (range(1, 6, 2), (1, 2, 5))
    """
    if not members:
        return members
    step = members[1] - members[0] if len(members) > 1 else 1
    found = range(members[0], members[-1] + 1, max(1, step))
    return found if tuple(found) == members else members
