"""What the tasks of a graph run: a round on a block, the barrier, a shard.

A `Run` is a plan where it is executed: it keeps the exchange maps and the FFT library, which are
made on first use and never travel. `Blocks` is what a barrier of the `shared` carrier returns.

Imports `planner`, `exchange`, `kernels` and `events`; looks a distributed worker up if there is
one.
"""

import functools
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft import config
from dask_bigfft.decomposition.rounds import Round
from dask_bigfft.devices.dispatch import Pace, Place, job_of, moved_on_device, on_device, together
from dask_bigfft.devices.find import missing
from dask_bigfft.devices.on_card import is_on_card, roll_on_card, round_on_card
from dask_bigfft.errors import CarrierError, VerificationError, refuse
from dask_bigfft.events import during, emit
from dask_bigfft.exchange.common import (
    Common,
    lying,
    note_result,
    refuse_spent,
    same_memory,
    spend,
)
from dask_bigfft.exchange.gather import Gathering
from dask_bigfft.exchange.packing import Packing, pack, shard_checksum
from dask_bigfft.exchange.shards import ExchangeMap
from dask_bigfft.graph.blocks import Blocks, checked
from dask_bigfft.graph.spare import with_spare_threads
from dask_bigfft.kernels.copy import copied
from dask_bigfft.kernels.cpu import rolled
from dask_bigfft.kernels.in_place import run_round
from dask_bigfft.kernels.incoming import Incoming, Whole
from dask_bigfft.kernels.libraries import FFTLibrary, get_library
from dask_bigfft.kernels.lying import Lying
from dask_bigfft.kernels.verify import verified_round
from dask_bigfft.memory_settings import configure_arena
from dask_bigfft.planner.balance import paces
from dask_bigfft.planner.filters import FilterPlan
from dask_bigfft.planner.joints import Joints, no_joints
from dask_bigfft.planner.plan import Exchange, Plan
from dask_bigfft.planner.shifts import ShiftPlan
from dask_bigfft.record import current_worker

Array = npt.NDArray[Any]
Block = tuple[int, ...]
Task = Callable[..., Any]


class Run:
    """A plan, one of its filters or a shift, where it is executed.

    Parameters
    ----------
    plan : Plan, FilterPlan or ShiftPlan
        What is executed.
    token : str
        Of the plan in task names; events carry it.
    """

    #: Bytes that the arena may keep for this run; None where the settings alone decide.
    arena_most: int | None = None

    def __init__(self, plan: Plan | FilterPlan | ShiftPlan, token: str = "") -> None:
        self.plan, self.token = plan, token
        self._maps: dict[int, ExchangeMap] = {}
        self._packings: dict[tuple[int, Any], Packing] = {}
        self._places: dict[int, Place] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[type["Run"], tuple[Plan | FilterPlan | ShiftPlan, str]]:
        return Run, (self.plan, self.token)

    def __dask_tokenize__(self) -> tuple[str, str, str]:
        plan = self.plan.in_full() if isinstance(self.plan, Plan) else repr(self.plan)
        return "dask_bigfft.Run", plan, self.token

    @cached_property
    def library(self) -> FFTLibrary:
        """FFT library of the plan."""
        return get_library(self.plan.kernel)

    @property
    def place(self) -> Place:
        """Where rounds are done. Filters are small, and made once."""
        plan = self.plan if isinstance(self.plan, Plan) else None
        if plan is None:
            return Place("cpu")
        return Place(plan.device, plan.device_memory_limit, plan.settings)

    def place_of(self, number: int) -> Place:
        """Where a round is done."""
        found = self._places.get(number)
        if found is None:
            found = self.place
            if isinstance(self.plan, Plan):
                found = found.for_share(self.plan.shares[number : number + 1])
            self._places[number] = found
        return found

    @cached_property
    def _paces(self) -> tuple[tuple[float, float], ...]:
        return paces(self.plan) if isinstance(self.plan, Plan) else ()

    def pace(self, number: int) -> Pace:
        """How fast a CPU thread and a feeder of a device are in a round, by the model."""
        return Pace(*self._paces[number])

    def exchange(self, number: int) -> Exchange:
        """An exchange of the plan."""
        return self.plan.exchanges[number]

    def stays(self, number: int) -> bool:
        """Whether an exchange leaves each block as it is."""
        exchange = self.exchange(number)
        return exchange.local and exchange.mirror is None and exchange.source == exchange.target

    def overwrites(self, number: int) -> bool:
        """Whether a round may work in the memory of the blocks that come in.

        What is verified may have to be done once more, which takes what came in.
        """
        plan = self.plan
        asked = isinstance(plan, Plan) and plan.overwrite and plan.verify == "none"
        return asked and number == 0 and self.stays(number)

    def map(self, number: int) -> ExchangeMap:
        """The shards of an exchange, worked out once in this process."""
        configure_arena(most=self.arena_most)
        with self._lock:
            found = self._maps.get(number)
            if found is None:
                exchange = self.exchange(number)
                found = ExchangeMap(exchange.source, exchange.target, exchange.mirror)
                self._maps[number] = found
            return found

    def packing(self, number: int, targets: tuple[Sequence[int], ...]) -> Packing:
        """What source blocks give to some targets in an exchange, worked out once."""
        exchange = self.map(number)
        with self._lock:
            return self._packings.setdefault((number, targets), Packing(exchange, targets))

    @property
    def joints(self) -> Joints:
        """Which blocks lie together."""
        plan = self.plan
        if isinstance(plan, Plan):
            return plan.joints
        return no_joints(len(plan.exchanges), len(plan.rounds))

    def finish(
        self,
        number: int,
        block: Block,
        incoming_of: Callable[[], Incoming],
        filters: Mapping[int, Array],
        here: Array | None = None,
        flat: Array | None = None,
    ) -> Array:
        """The block after the round that follows an exchange, verified if the plan says so.

        `here` is where it has to lie, `flat` the same place as a block of the result has it.
        """
        round_ = self.plan.rounds[number]
        started = time.perf_counter()
        done = self.transformed(number, round_, block, incoming_of, filters, (block,))
        if here is not None and not same_memory(done, here):
            copied(here, done)
            done = here
        if number == len(self.plan.rounds) - 1 and self.plan.ends_in_round:
            done = done.reshape(round_.target.flat_shape(block)) if flat is None else flat
        emit("round", nbytes=done.nbytes, seconds=time.perf_counter() - started)
        return done

    def transformed(
        self, number: int, round_: Round, block: Block, incoming_of: Callable[[], Incoming],
        filters: Mapping[int, Array], blocks: tuple[Block, ...],
    ) -> Array:
        """The block after a round, verified if the plan says so.

        `round_` is that of the plan, or done on `blocks` of it together, which errors name.
        """
        mode, dtype = self.plan.verify, np.dtype(self.plan.dtypes[2 * number + 1])
        arguments = self.library, dtype, filters
        if mode == "none":
            return self.worked(number, round_, block, incoming_of(), *arguments)
        run = functools.partial(self.worked, number)
        host = functools.partial(_in_host_memory, mode, incoming_of)
        return verified_round(
            mode, round_, block, host, *arguments, number=number + 1, names=blocks, run=run
        )

    def worked(
        self, number: int, round_: Round, block: Block, incoming: Incoming, library: FFTLibrary,
        dtype: np.dtype[Any], filters: Mapping[int, Array]
    ) -> Array:
        """The block after a round, done on a device or here."""
        on_card, place = getattr(incoming, "on_card", False), self.place_of(number)
        done: Array | None = None
        none = place.device == "cpu" or (place.device == "auto" and missing() is not None)
        if on_card or not none:
            job = job_of(round_, block, incoming.dtype, dtype, inside=self.overwrites(number))
            if on_card:
                done = round_on_card(job, incoming.whole, filters)
            elif place.device == "hybrid" and isinstance(incoming, Gathering):
                pace = functools.partial(self.pace, number)
                done = together(job, incoming, library, filters, place, pace)
            if done is None:
                done = on_device(job, incoming, filters, place)
        if done is None:
            with with_spare_threads(library, round_.target.blocks) as own:
                return run_round(round_, block, incoming, own, dtype, filters)
        roll = roll_on_card if is_on_card(done) else rolled
        return roll(done, round_.rolls)

    def moved(self, number: int, incoming: Gathering) -> Array:
        """The block after the last exchange, put together on the way over a device or here."""
        found = None
        if not incoming.on_card:
            blocks = self.exchange(number).target.blocks
            found = moved_on_device(incoming, self.place, blocks)
        return incoming.whole() if found is None else found

    def done(self, number: int, block: Block) -> tuple[Any] | None:
        """What the task of a block after exchange `number` would return, if that is known."""
        return None

    def deliver(self, number: int, block: Block, values: Array) -> Array:
        """Hand on what a task has made of a block after exchange `number`: here, the block."""
        return values


def _in_host_memory(mode: str, incoming_of: Callable[[], Incoming]) -> Incoming:
    """A block on its way in, refused on a card, where nothing is verified."""
    incoming = incoming_of()
    if getattr(incoming, "on_card", False):
        refuse("verify", mode, "'none' for blocks on a card, or blocks in host memory")
    return incoming


def barrier(indices: tuple[Block, ...], wanted: bool, *blocks: Array) -> Blocks:
    """Return a handle of all source blocks of a group; all of them exist now.

    Parameters
    ----------
    indices : tuple of block indices
        Of the blocks.
    wanted : bool
        Whether the `shared` carrier was asked for by name.

    Raises
    ------
    CarrierError
        On a worker of a cluster, where sharing would move every block to every worker.
    """
    _refuse_cluster(wanted)
    return Blocks(dict(zip(indices, blocks, strict=True)))


def common_memory(run: Run, number: int, group: Block) -> Common:
    """Return memory for the blocks of a group before an exchange; none where it does not help.

    That is on workers of a cluster, where a task may be done again, and where devices do rounds.
    """
    joint = run.joints.exchanges[number]
    used = isinstance(run.plan, Plan) and run.plan.device != "cpu" and missing() is None
    wanted = config.get("bigfft.exchange.in-place")
    if joint is None or used or not wanted or current_worker() is not None:
        return Common()
    with during(run.token, number):
        emit("begun")
    return Common(joint.layout, group, run.exchange(number).dtype)


def barrier_in_common(
    run: Run, number: int, indices: tuple[Block, ...], wanted: bool, common: Common, *blocks: Array
) -> Blocks:
    """Return a handle of all source blocks of a group, which may lie in common memory.

    Parameters
    ----------
    run, number
        The plan, and the exchange, from 0.
    indices, wanted
        As `barrier` takes them.
    common : Common
        The group's memory.
    """
    found = barrier(indices, wanted, *blocks)
    joint = run.joints.exchanges[number]
    assert joint is not None
    holds = common.holds(joint.layout, run.exchange(number).source, found.blocks)
    if not holds:
        refuse_spent(run.token, number, found.blocks)
    if common.enter(number, holds):
        found.common = common
        spend(run.token, number, found.blocks)
    return found


def _refuse_cluster(wanted: bool) -> None:
    worker = current_worker()
    if worker is None:
        return
    client = sys.modules["distributed"].get_client()
    if wanted and len(client.scheduler_info(n_workers=-1)["workers"]) == 1:
        return
    raise CarrierError(
        f"this graph shares blocks inside one process, but it runs on worker {worker.address} of "
        "a cluster: it was turned into tasks before the cluster was known. Call compute() or "
        "persist() on the unoptimised array while the client is there, or build it again with "
        "dask.config.set({'bigfft.exchange.carrier': 'tasks'})"
    )


def reported(task: Task) -> Task:
    """Return a task ``(run, number, ...)`` whose events carry the plan and the round."""

    @functools.wraps(task)
    def reporting(run: Run, number: int, *inputs: Any) -> Any:
        with during(run.token, number + 1):
            return task(run, number, *inputs)

    return reporting


@reported
def run_block(
    run: Run, number: int, block: Block, filter_axes: tuple[int, ...], sources: Any,
    into: Common | None, *inputs: Any
) -> Array:
    """Return a block gathered in exchange `number` and taken through the round that follows.

    Parameters
    ----------
    run : Run
        The plan.
    number : int
        Exchange, from 0.
    block : tuple of int
        Which block.
    filter_axes : tuple of int
        Axes whose filters come first among the inputs.
    sources : tuple of block indices or None
        What the other inputs are: source blocks of these indices; None for a handle.
    into : Common or None
        Memory in which the block is to lie with others, after the round.
    """
    filters = dict(zip(filter_axes, inputs, strict=False))
    given = inputs[len(filter_axes) :]
    exchange = run.exchange(number)
    place = None if into is None else into.place(run.plan.rounds[number].target, block)
    if sources is None and given[0].common is not None:
        return _where_it_lies(run, number, block, given[0].common, place, filters)
    shape, dtype = exchange.target.shape(block), np.dtype(exchange.dtype)
    started = time.perf_counter()
    blocks = given[0] if sources is None else Blocks(dict(zip(sources, given, strict=True)))
    own = _own(run, number, block, blocks.blocks) if run.stays(number) else None

    def gathering() -> Gathering:
        source_of = functools.partial(blocks.checked, run, number)
        found = Gathering(run.map(number), block, shape, dtype, source_of)
        found.as_is, found.into = own, place
        return found

    if own is not None and run.overwrites(number) and own.flags.writeable:
        here = Whole(own) if own.flags.c_contiguous else Lying(own, inside=True)
        return run.finish(number, block, lambda: here, filters)
    if number < len(run.plan.rounds):
        # What CPU threads or devices alone take as it is need not be prepared for being gathered.
        alone = own if run.place.device in ("cpu", "gpu") or missing() is not None else None
        coming = gathering if alone is None else functools.partial(Lying, alone, into=place)
        return run.finish(number, block, coming, filters)
    values = run.moved(number, gathering())
    emit("unpack", nbytes=values.nbytes, seconds=time.perf_counter() - started)
    return values


def _where_it_lies(
    run: Run, number: int, block: Block, common: Common, into: Array | None,
    filters: dict[int, Array],
) -> Array:
    """A block that lies in common memory, taken through the round that follows, if one does."""
    joint, exchange = run.joints.exchanges[number], run.exchange(number)
    assert joint is not None
    assert common.array is not None
    started = time.perf_counter()
    values = lying(common.array, joint.layout, exchange.target, block)
    if number == len(run.plan.rounds):
        emit("unpack", nbytes=values.nbytes, seconds=time.perf_counter() - started)
        note_result(run.token, values)
        return values
    after, flat = run.joints.inside[number], None
    if after is not None and isinstance(run.plan, Plan) and number + 1 == len(run.plan.exchanges):
        flat = lying(common.array, after, run.plan.result, block)
        note_result(run.token, flat)

    def work() -> Array:
        incoming = Lying(values, inside=after is not None, into=into)
        here = None if after is None else values
        return run.finish(number, block, lambda: incoming, filters, here, flat)

    return work() if after is None else common.once(number, block, work)


def _own(run: Run, number: int, block: Block, blocks: Mapping[Block, Array]) -> Array | None:
    """The source block itself as the target block, if it lies in memory as that one would."""
    if len(blocks) != 1:  # an array without elements has no sources
        return None
    (index,) = blocks
    values, exchange = checked(run, number, index, blocks[index]), run.exchange(number)
    if is_on_card(values) or values.dtype != np.dtype(exchange.dtype):
        return None
    return values if values.flags.aligned else None


@reported
def pack_shard(
    run: Run, number: int, block: Block, source: Block, values: Array
) -> Array | tuple[Array, int]:
    """Return what a source block gives to a target block, packed; its checksum, too, if wanted."""
    started = time.perf_counter()
    values = checked(run, number, source, values)
    packed = pack(run.map(number), block, source, values, np.dtype(run.exchange(number).dtype))
    if run.plan.verify == "checksum":
        found = packed, shard_checksum(packed, number, source, block)
    emit("pack", nbytes=packed.nbytes, seconds=time.perf_counter() - started)
    return found if run.plan.verify == "checksum" else packed


@reported
def run_block_of_shards(
    run: Run, number: int, block: Block, filter_axes: tuple[int, ...],
    sources: tuple[Block, ...], *inputs: Any
) -> Array:
    """Return a block put together from packed shards and taken through the round that follows."""
    filters = dict(zip(filter_axes, inputs, strict=False))
    shards = dict(zip(sources, inputs[len(filter_axes) :], strict=True))
    if run.plan.verify == "checksum":
        compare(number, block, shards)
        shards = {source: shard for source, (shard, _) in shards.items()}
    return put_together(run, number, block, shards, filters)


def compare(number: int, block: Block, shards: Mapping[Block, tuple[Array, int]]) -> None:
    """Raise if a shard is not what was packed for a block."""
    for source, (shard, known) in shards.items():
        found = shard_checksum(shard, number, source, block)
        if found != int(known):
            emit("mismatch", nbytes=shard.nbytes)
            raise VerificationError(
                f"exchange {number + 1}, block {block}: the shard of block {source} is not what "
                f"was packed (checksum {found:016x}, not {known:016x})"
            )


def put_together(
    run: Run, number: int, block: Block, shards: Mapping[Block, Array], filters: dict[int, Array]
) -> Array:
    """Return a block put together from packed shards and taken through the round that follows."""
    exchange = run.exchange(number)
    shape, dtype = exchange.target.shape(block), np.dtype(exchange.dtype)
    started = time.perf_counter()

    def gathering() -> Gathering:
        return Gathering(run.map(number), block, shape, dtype, shards.__getitem__, packed=True)

    if number < len(run.plan.rounds):
        return run.finish(number, block, gathering, filters)
    values = gathering().whole()
    emit("unpack", nbytes=values.nbytes, seconds=time.perf_counter() - started)
    return values
