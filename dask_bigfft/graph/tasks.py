"""What the tasks of a graph run: a round on a block, the barrier, a shard.

Each gets the plan as a `Run`. `Blocks` is what a barrier of the `shared` carrier returns.

Imports `planner`, `exchange`, `kernels` and `events`; looks a distributed worker up if there is
one.
"""

import contextlib
import functools
import itertools
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft import config
from dask_bigfft.errors import CarrierError, VerificationError
from dask_bigfft.events import current_worker, during, emit
from dask_bigfft.exchange.common import Common, lying, note_result, refuse_spent, spend
from dask_bigfft.exchange.gather import view_of
from dask_bigfft.exchange.packing import pack, shard_checksum
from dask_bigfft.exchange.spoiled import refuse_spoiled, spoiling
from dask_bigfft.exchange.tables import TRANSPORTS, transport_of
from dask_bigfft.gpu.dispatch import getting_ready
from dask_bigfft.gpu.find import missing
from dask_bigfft.gpu.on_gpu import gpus, home_of, is_on_gpu
from dask_bigfft.graph.blocks import Blocks, checked
from dask_bigfft.graph.run import Run
from dask_bigfft.kernels.views import BlockView
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.profile import DEFAULT

Array = npt.NDArray[Any]
Block = tuple[int, ...]
Task = Callable[..., Any]


def barrier(token: str, indices: tuple[Block, ...], wanted: bool, *blocks: Array) -> Blocks:
    """Return a handle of all source blocks of a group; all of them exist now.

    Parameters
    ----------
    token : str
        Of the plan in task names.
    indices : tuple of block indices
        Of the blocks.
    wanted : bool
        Whether the `shared` carrier was asked for by name.

    Raises
    ------
    CarrierError
        In a task of a cluster, where sharing would move every block to every worker.
    """
    _refuse_cluster(token, wanted)
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
    found = barrier(run.token, indices, wanted, *blocks)
    joint = run.joints.exchanges[number]
    assert joint is not None
    holds = common.holds(joint.layout, run.exchange(number).source, found.blocks)
    if not holds:
        refuse_spent(run.token, number, found.blocks)
    if common.enter(number, holds):
        found.common = common
        spend(run.token, number, found.blocks)
    return found


def barrier_on_gpus(
    run: Run,
    number: int,
    sources: tuple[Block, ...],
    targets: tuple[Block, ...],
    transport: str,
    *blocks: Array,
) -> Blocks:
    """Return a handle of all source blocks of a group, which may lie on several GPUs.

    Parameters
    ----------
    run, number
        The plan, and the exchange, from 0.
    sources, targets : tuple of block indices
        Blocks of the group before and after the exchange.
    transport : {"auto", "host", "staged", "swap", "kernel"}
        How segments travel between GPUs; "auto" as the plan's profile suggests.
    """
    found = barrier(run.token, sources, False, *blocks)
    homes = gpus().homes(found.blocks)
    used = sorted(set(homes.values()))
    if len(used) < 2:
        return found
    found.homes = {t: used[home_of(i, len(targets), len(used))] for i, t in enumerate(targets)}
    if len(sources) == len(targets):  # as much memory on each GPU after the exchange as before
        found.homes = {t: homes[s] for s, t in zip(sources, targets, strict=True)}
    named = next((known for known in TRANSPORTS if known == transport), None)
    profile = run.plan.machine.profile if isinstance(run.plan, Plan) else DEFAULT
    found.choice = lambda source, target: named or transport_of(profile, gpus(), source, target)
    return found


def _refuse_cluster(token: str, wanted: bool) -> None:
    worker = _worker_of(token)
    if worker is None:
        return
    client = sys.modules["distributed"].get_client()
    if wanted and len(client.scheduler_info(n_workers=-1)["workers"]) == 1:
        return
    raise CarrierError(
        f"this graph shares blocks inside one process, but it runs on worker {worker.address} of "
        "a cluster: it was turned into tasks before the cluster was known, or its carrier was "
        "named 'shared'. Call compute() or persist() on the unoptimised array while the client is "
        "there, or build it again with dask.config.set({'bigfft.exchange.carrier': 'tasks'})"
    )


def _worker_of(token: str) -> Any:
    """The worker that was sent the calling task of a plan, or None.

    A task of a cluster may compute an array by a scheduler of its own: then the worker knows that
    task only, and not in the threads that the scheduler starts. Blocks stay in its process.
    """
    worker = current_worker()
    if worker is None:
        return None
    try:
        key = worker.get_current_task()
    except KeyError:
        return None
    return worker if token in str(key) else None


def reported(task: Task) -> Task:
    """Return a task ``(run, number, ...)`` whose events carry the plan and the round."""

    @functools.wraps(task)
    def reporting(run: Run, number: int, *inputs: Any) -> Any:
        with during(run.token, number + 1):
            return task(run, number, *inputs)

    return reporting


@reported
def run_block(
    run: Run,
    number: int,
    block: Block,
    filter_axes: tuple[int, ...],
    sources: Any,
    into: Common | None,
    *inputs: Any,
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
    own = _own(run, number, blocks.blocks) if run.stays(number) else None

    def view() -> BlockView:
        if own is not None:
            return BlockView.of(own, target=place)
        source_of = functools.partial(blocks.checked, run, number)
        home, choice = blocks.homes.get(block), blocks.choice
        found = view_of(run.map(number), block, shape, dtype, source_of, False, home, choice)
        found.target = place
        return found

    if own is not None and run.overwrites(number):
        refuse_spoiled(number, block, own)
        if own.flags.writeable:
            here = BlockView.of(own, owned=own.flags.c_contiguous, target=own)
            with spoiling(lambda: [own]):
                return run.finish(number, block, lambda: here, filters)
    with _turn(run, number, block, blocks):
        if number < len(run.plan.rounds):
            return run.finish(number, block, view, filters)
        values = run.moved(number, view())
    emit("unpack", nbytes=values.nbytes, seconds=time.perf_counter() - started)
    return values


def _turn(
    run: Run, number: int, block: Block, blocks: Blocks
) -> contextlib.AbstractContextManager[None]:
    """The turn of a task to look at a block of host memory, if a device may take it."""
    if any(map(is_on_gpu, itertools.islice(blocks.blocks.values(), 1))):
        return contextlib.nullcontext()
    exchange = run.exchange(number)
    nbytes = math.prod(exchange.target.shape(block)) * np.dtype(exchange.dtype).itemsize
    place = run.place_of(number) if number < len(run.plan.rounds) else run.place
    return getting_ready(place, nbytes, exchange.dtype)


def _where_it_lies(
    run: Run,
    number: int,
    block: Block,
    common: Common,
    into: Array | None,
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
        here = None if after is None else values
        view = BlockView.of(values, target=into if after is None else values)
        return run.finish(number, block, lambda: view, filters, here, flat)

    return work() if after is None else common.once(number, block, work)


def _own(run: Run, number: int, blocks: Mapping[Block, Array]) -> Array | None:
    """The source block itself as the target block, if it lies in memory as that one would."""
    if len(blocks) != 1:  # an array without elements has no sources
        return None
    (index,) = blocks
    values, exchange = checked(run, number, index, blocks[index]), run.exchange(number)
    if is_on_gpu(values) or values.dtype != np.dtype(exchange.dtype):
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
    run: Run,
    number: int,
    block: Block,
    filter_axes: tuple[int, ...],
    sources: tuple[Block, ...],
    *inputs: Any,
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

    def view() -> BlockView:
        return view_of(run.map(number), block, shape, dtype, shards.__getitem__, packed=True)

    return taken_through(run, number, block, view, filters)


def taken_through(
    run: Run, number: int, block: Block, view: Callable[[], BlockView], filters: dict[int, Array]
) -> Array:
    """Return a block that is gathered, taken through the round that follows, if one does."""
    if number < len(run.plan.rounds):
        return run.finish(number, block, view, filters)
    started = time.perf_counter()
    values = view().gather()
    emit("unpack", nbytes=values.nbytes, seconds=time.perf_counter() - started)
    return values
