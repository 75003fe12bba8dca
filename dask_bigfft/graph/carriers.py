"""Choice of the carrier for the exchanges of a plan, and the tasks of the carrier p2p.

Dask sends unmaterialised layers to a cluster, and the scheduler turns them into tasks. A layer that
has been pickled therefore knows that its blocks will be in different processes. A graph may become
tasks earlier, for example by `dask.optimize`, `dask.delayed` or `to_delayed`. It is then built for
the client, if there is one. If another scheduler computes it, as in
``compute(scheduler="threads")``, the carrier `tasks` works, and others raise an error that names
the setting.

A p2p shuffle carries some connected groups of an exchange. If no other plan reads the blocks
between two shuffles, one task assembles a block, computes the round and sends the shards::

    source blocks -> send -> barrier -> (assemble + round + send) for some blocks -> barrier -> ...
"""

import itertools
import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache
from typing import Any

import numpy as np

from dask_bigfft.arrays import Array, Block
from dask_bigfft.dask_private import ARRAY_EXPRESSIONS, TaskRef, old_to_new
from dask_bigfft.errors import CarrierError
from dask_bigfft.events import current_worker, emit, running_client, uses_clusters
from dask_bigfft.exchange.packing import packed, shard_checksum
from dask_bigfft.graph.tasks import Filters, PlanRun, block_task, checked, put_together, reported
from dask_bigfft.kernels.views import is_on_gpu
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.plan_data import Exchange, PlanData
from dask_bigfft.planner.seconds import shuffled
from dask_bigfft.transforms.rounds import AxisComponents, axis_components

Key = Any  # a dask key: a name, or a name and a block index
Graph = dict[Key, Any]
Chunks = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Names:
    """Names of a graph's tasks. Dask's dashboard shows the part before the token."""

    token: str
    part: str = ""

    def __call__(self, role: str, number: int | None = None, mark: str = "") -> str:
        """Return the name of the tasks with a role before a round, from 0, or in the whole plan.

        A mark distinguishes results that no other plan may reuse.
        """
        place = "" if number is None else number + 1
        return f"bigfft_{self.part}{role}{place}-{mark}{self.token}"


#: Prefix of the names of plan tasks of transforms; the token follows.
PLAN_NAME = Names("")("plan")


def block_ref(name: str, block: Block) -> TaskRef:
    """Return the reference to a block of an array for the inputs of a task."""
    return TaskRef((name, *block))


#: Block as a part of another one: both indices, and the part.
Cut = tuple[Block, Block, tuple[slice, ...]]


@lru_cache(maxsize=64)
def cuts_of(given: Chunks, chunks: Chunks) -> list[Cut] | None:
    """Return each block of new chunks as a part of an old one: their indices, and the part.

    None if a new block is made of several old ones.
    """
    places = old_to_new(given, chunks)
    if any(len(origins) != 1 for along in places for origins in along):
        return None
    found = []
    for block in np.ndindex(*map(len, chunks)):
        parts = [along[i][0] for along, i in zip(places, block, strict=True)]
        found.append((block, tuple(origin for origin, _ in parts), tuple(cut for _, cut in parts)))
    return found


class Groups:
    """Groups of blocks that an exchange connects.

    Parameters
    ----------
    exchange : Exchange
        Exchange between two rounds.
    most : int, optional
        Maximum number of groups; if there are more, neighbours are merged.
    """

    def __init__(self, exchange: Exchange, most: int | None = None) -> None:
        mirror = exchange.mirror
        negated = set() if mirror is None else {mirror.axis, *mirror.others}
        pairs = zip(exchange.source.axes, exchange.target.axes, strict=True)
        #: Groups along each axis; those of the array are their products.
        self.axes = [
            _one_group(a.blocks, b.blocks) if i in negated else axis_components(a, b)
            for i, (a, b) in enumerate(pairs)
        ]
        for i in sorted(range(len(self.axes)), key=lambda i: -self.axes[i].count):
            excess = math.prod(axis.count for axis in self.axes) / (most or math.inf)
            if excess > 1:
                self.axes[i] = taken_together(self.axes[i], math.ceil(excess))
        self._of_source = [axis.of_source.tolist() for axis in self.axes]  # fast to index

    def __iter__(self) -> Iterator[tuple[Block, list[Block], list[Block]]]:
        """Yield the index of each group, its source blocks and its target blocks."""
        for group in itertools.product(*(range(axis.count) for axis in self.axes)):
            sources = [axis.sources[i] for axis, i in zip(self.axes, group, strict=True)]
            yield group, list(itertools.product(*sources)), self.targets(group)

    def targets(self, group: Block) -> list[Block]:
        """Return the target blocks of a group, row-major."""
        found = [axis.targets[i] for axis, i in zip(self.axes, group, strict=True)]
        return list(itertools.product(*found))

    def group_of(self, source: Block) -> Block | None:
        """Return the group of a source block; None if the block is not used."""
        group = tuple([along[i] for along, i in zip(self._of_source, source, strict=True)])
        return None if -1 in group else group


def taken_together(axis: AxisComponents, width: int) -> AxisComponents:
    """Return groups that each merge `width` neighbours along an axis.

    >>> few = taken_together(AxisComponents(3, np.array([0, 1, 2, -1]), np.array([2, 1, 0])), 2)
    >>> few.count, few.of_source.tolist(), few.of_target.tolist()
    (2, [0, 0, 1, -1], [1, 0, 0])
    """
    return AxisComponents(-(-axis.count // width), axis.of_source // width, axis.of_target // width)


def _one_group(sources: int, targets: int) -> AxisComponents:
    return AxisComponents(1, np.zeros(sources, np.int64), np.zeros(targets, np.int64))


@dataclass(frozen=True)
class Known:
    """Plan whose first rounds another plan shares, and its token.

    A spectrum and its shifted form share these rounds: their tasks have the same names.
    """

    plan: Plan
    token: str

    def shared(self, plan: PlanData) -> int:
        """Return the number of first rounds that a plan of the same source shares with this one."""
        if self.plan.source != plan.source or self.plan.inside:
            return 0
        pairs = zip(self.plan.rounds, plan.rounds, strict=False)
        same = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
        # A last round that makes blocks of the result flattens them, and has the result's name.
        ends = self.plan.ends_in_round or plan.ends_in_round
        return same - 1 if ends and same == len(plan.rounds) else same


#: Prefix of the carriers of blocks on GPUs of one process; the transport between GPUs follows.
ON_GPUS = "gpu/"

#: Maximum number of shards of a plan that are tasks when the graph may still be renamed.
FEW_SHARDS = 1 << 16


@cache
def p2p() -> Any:
    """Return the carrier `p2p`; warn once and return None where distributed is too different."""
    try:
        from dask_bigfft.exchange import p2p
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        text = "dask_bigfft does not know this version of distributed's peer-to-peer shuffle "
        text += f"({error}): exchanges between processes use tasks"
        warnings.warn(text, RuntimeWarning, stacklevel=2)
        return None
    return p2p


def resolved(carrier: str, plan: PlanData, travelled: bool) -> str:
    """Return the carrier for tasks that are built now.

    Parameters
    ----------
    carrier : str
        Requested carrier, as in a `PlanLayer`.
    plan : PlanData
        Plan of the tasks.
    travelled : bool
        Whether the graph has been sent to another process.
    """
    on_gpus = carrier.startswith(ON_GPUS)
    if carrier != "auto" and not on_gpus:
        return carrier
    if not travelled and not _has_cluster():
        return carrier if on_gpus else "shared"
    if on_gpus:  # GPU transports only work within one process
        return "tasks"
    if travelled:  # p2p barriers must be made on the scheduler
        return "p2p" if p2p() and p2p().on_scheduler() else "tasks"
    # Tasks may be renamed and run anywhere; a shuffle finds its barrier by its name.
    shards = sum(exchange.shape.shards for exchange in plan.exchanges if not exchange.local)
    return "tasks" if shards <= FEW_SHARDS or current_worker() is not None else "p2p"


def _has_cluster() -> bool:
    """Return whether dask computes on a cluster by default here.

    It does where a client is the default, and in a task of a cluster. An expression that is sent to
    a scheduler of this process is not pickled, so the scheduler counts as well.
    """
    if not uses_clusters():
        return False
    if running_client() is not None or current_worker() is not None:
        return True
    return bool(ARRAY_EXPRESSIONS and p2p() and p2p().on_scheduler())


#: Maximum number of shuffles of an exchange: each costs connections, files and a barrier.
MOST_SHUFFLES = 16


@dataclass
class Shuffle:
    """Shuffle of one or more groups of an exchange.

    Parameters
    ----------
    name : str
        Name of the shuffle.
    sources : list of block indices
        Source blocks.
    along : tuple of sequences of int
        Target blocks along each axis.
    before : int
        Number of target blocks in earlier shuffles.
    senders : list of TaskRef
        Tasks that send source blocks.
    """

    name: str
    sources: list[Block]
    along: tuple[Sequence[int], ...]
    before: int
    senders: list[TaskRef] = field(default_factory=list)

    @property
    def targets(self) -> list[Block]:
        """Target blocks, row-major."""
        return list(itertools.product(*self.along))

    @property
    def travels(self) -> bool:
        """Return whether shards are sent; otherwise the only target depends on its sources."""
        return math.prod(map(len, self.along)) > 1 and bool(self.sources)


class Shuffles:
    """Shuffles of one exchange.

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

    def __init__(self, names: Names, number: int, exchange: Exchange, may_send: bool) -> None:
        self.number, self.groups, before = number, Groups(exchange, MOST_SHUFFLES), 0
        #: Shuffles by group.
        self.by_group: dict[Block, Shuffle] = {}
        axes = self.groups.axes
        for group, sources, _ in self.groups:
            along = tuple(_compact(a.targets[i]) for a, i in zip(axes, group, strict=True))
            self.by_group[group] = Shuffle("_".join(map(str, group)), sources, along, before)
            before += math.prod(map(len, along))
        all_used = all((axis.of_source >= 0).all() for axis in axes)
        shuffles = self.by_group.values()
        self.sent = may_send and all_used and all(shuffle.travels for shuffle in shuffles)
        for shuffle in shuffles:
            place = f"{names.part}{number + 1}-{'1-' * self.sent}"
            shuffle.name = f"bigfft-{place}{names.token}-{shuffle.name}"

    def of_source(self, block: Block) -> Shuffle:
        """Return the shuffle of a source block that is used."""
        group = self.groups.group_of(block)
        assert group is not None
        return self.by_group[group]


def shuffles_of(
    exchanges: Sequence[Exchange], names: Sequence[Names], wanted: bool, alone: bool
) -> list[Shuffles | None]:
    """Return the shuffles of each exchange; None where the carrier is `tasks`.

    If the user did not name the carrier, shuffles carry only exchanges for which they pay. If no
    other plan reads the blocks between two exchanges, the tasks that make them send them.
    """
    found: list[Shuffles | None] = []
    ready = False
    for number, exchange in enumerate(exchanges):
        pays = not exchange.local and (wanted or shuffled(exchange.shape)) and p2p()
        found.append(Shuffles(names[number], number, exchange, alone and ready) if pays else None)
        ready = exchange.local or bool(pays)
    return found


def _compact(members: tuple[int, ...]) -> Sequence[int]:
    """Return equally spaced numbers as a range, which is small even for thousands of blocks.

    >>> _compact((1, 3, 5)), _compact((1, 2, 5))
    (range(1, 6, 2), (1, 2, 5))
    """
    step = members[1] - members[0] if len(members) > 1 else 1
    found = range(members[0], members[-1] + 1, max(1, step)) if members else range(0)
    return found if tuple(found) == members else members


@reported
def send_block(
    run: PlanRun, number: int, source: Block, shuffle: str, values: Array
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
    block, dtype = checked(run, number, source, values), np.dtype(run.exchange(number).dtype)
    if is_on_gpu(block):
        raise CarrierError(
            "the carrier p2p does not support blocks on a GPU: build the graph with "
            "dask.config.set({'bigfft.exchange.carrier': 'tasks'}), which is the default if the "
            "array's meta is a CuPy array"
        )

    def pack(owner_of: Callable[[Block], Any], targets: tuple[Sequence[int], ...]) -> Any:
        started, found = time.perf_counter(), {}
        parts = packed(run.map(number), targets, source, block, dtype, owner_of)
        for owner, blocks, bounds, shards in parts:
            sums = np.zeros(len(blocks), np.uint64)
            if run.plan.verify == "checksum":
                for i, target in enumerate(map(tuple, blocks.tolist())):
                    shard = shards[bounds[i] : bounds[i + 1]]
                    sums[i] = shard_checksum(shard, number, source, target)
            found[owner] = blocks, bounds, shards, sums
        nbytes = sum(shards.nbytes for _, _, shards, _ in found.values())
        emit("pack", nbytes=nbytes, seconds=time.perf_counter() - started)
        return found

    return {shuffle: {p2p().transfer(shuffle, source, pack)}}


def run_and_send_blocks(
    run: PlanRun,
    number: int,
    make: Callable[..., Array],
    blocks: Sequence[Block],
    shuffles: Sequence[str],
    *inputs: Any,
) -> dict[str, set[int]]:
    """Make blocks and send each before the next one is made.

    The scheduler's time depends on the number of tasks, so one task serves several blocks if there
    are very many.

    Parameters
    ----------
    run, number
        Plan that is executed, and the exchange before the round that makes the blocks, from 0.
    make : callable
        Task that makes a block.
    blocks, shuffles
        Indices of the blocks, and the shuffle that carries each.
    *inputs
        Inputs of `make`, equally many for each block.

    Returns
    -------
    dict
        Attempts in which blocks were sent, by shuffle.
    """
    sent: dict[str, set[int]] = {}
    each = len(inputs) // len(blocks)
    for i, (block, shuffle) in enumerate(zip(blocks, shuffles, strict=True)):
        values = make(run, number, block, *inputs[i * each : (i + 1) * each])
        attempts = send_block(run, number + 1, block, shuffle, values)
        del values
        sent.setdefault(shuffle, set()).update(attempts[shuffle])
    return sent


@block_task
def run_block_of_shuffle(
    run: PlanRun, number: int, block: Block, filters: Filters, shuffle: str, attempt: int
) -> Array:
    """Return a block assembled from a shuffle's shards, after its round.

    Raises
    ------
    CarrierError
        If the shuffle does not have exactly the shards of the block.
    """
    started = time.perf_counter()
    shards, free = p2p().collect(shuffle, attempt, block)
    nbytes = sum(shard.nbytes for shard, _ in shards.values())
    emit("unpack", nbytes=nbytes, seconds=time.perf_counter() - started)
    expected = run.map(number).sources(block)
    if shards.keys() != expected:
        raise CarrierError(
            f"exchange {number}: block {block} needs shards of {len(expected)} blocks, and the "
            f"shuffle {shuffle} has {len(shards)}, {len(expected - shards.keys())} of them missing"
        )
    done = put_together(run, number, block, shards, filters)
    free()
    return done
