"""Tasks of a plan whose rounds write their blocks back into the blocks that came in.

::

    source blocks -> own -> barrier -> round (in place) -> settle -> the same blocks -> barrier ...

A round's block is a composite of shards of the blocks that came in; all its task hands on is that
it is done. What settles gives the blocks on when every round that writes into them is done.

Imports `gpu`, `exchange`, `kernels`, `events` and this room.
"""

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from dask_bigfft.errors import PlanError, refuse
from dask_bigfft.events import emit
from dask_bigfft.exchange.parts import all_composite
from dask_bigfft.gpu.dispatch import inside_device, job_of, on_device
from dask_bigfft.graph.in_place import refuse_spoiled, spoiling
from dask_bigfft.graph.tasks import Block, Blocks, Run, block_task, checked, reported
from dask_bigfft.kernels.composite import Composite
from dask_bigfft.kernels.loop import run_round
from dask_bigfft.kernels.views import BlockView, is_on_gpu
from dask_bigfft.memory import lend
from dask_bigfft.planner.cost import forecast
from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.plan_data import Machine, overwritten

Array = npt.NDArray[Any]


def inside_blocks(plan: Plan) -> Plan:
    """Return the plan with its rounds inside the blocks that come in, if these are cut for it."""
    inside = overwritten(plan) if plan.verify == "none" else None
    if inside is None:
        return plan
    exchanges = inside.exchanges[: len(inside.rounds)]
    if not all(all_composite(exchange.source, exchange.target) for exchange in exchanges):
        return plan
    return replace(inside, expected=forecast(inside))


def plan_within(search: Callable[[Machine], Plan], machine: Machine) -> Plan:
    """Return the plan for a machine of a transform that may be done inside its blocks.

    Memory that is too little for blocks before and after a round may be enough for one of them.
    """
    found, failure, limit = None, None, machine.memory_limit
    try:
        found = search(machine)
    except PlanError as error:
        failure = error
    if limit is not None and (found is None or found.carrier == "disk"):
        roomy = search(replace(machine, memory_limit=None))
        inside = inside_blocks(roomy)
        if inside.inside and inside.expected.peak_host <= limit:
            return replace(roomy, machine=machine)
    if failure is not None:
        raise failure
    assert found is not None
    return found


@block_task
def own_block(run: Run, number: int, block: Block, filters: dict[int, Array], values: Any) -> Array:
    """Return a block that may be overwritten: the one that came in, or a copy if that is not so."""
    found = checked(run, number, block, values)
    if is_on_gpu(found):
        refuse("overwrite_x", True, "False for blocks on a card, which are transformed there")
    dtype = np.dtype(run.exchange(number).dtype)
    flags = found.flags
    if found.dtype == dtype and flags.c_contiguous and flags.aligned and flags.writeable:
        return found
    copy = lend(found.shape, dtype)
    copy[...] = found
    return copy


@reported
def run_inside(run: Run, number: int, block: Block, blocks: Blocks) -> int:
    """Take a block through the round after exchange `number`, where it lies; return its bytes."""
    started = time.perf_counter()
    round_, dtype = run.plan.rounds[number], np.dtype(run.exchange(number).dtype)
    view = run.view(number, block, blocks.__getitem__)
    found = view.boxes(False)
    assert found is not None  # as was made sure of when the graph was built
    shards = found.around
    for _, first in itertools.islice(_views(shards), 1):
        refuse_spoiled(number, block, first)
    job = job_of(round_, block, dtype, dtype, inside=True)
    with spoiling(lambda: (view for _, view in _views(shards))):
        there = inside_device(job, shards, run.place)
    if not there:
        values = view.gather()
        done = on_device(job, BlockView.of(values, owned=True), {}, run.place)
        if done is None:
            view = BlockView.of(values, owned=True)
            done = run_round(round_, block, view, run.library, dtype, {})
        _put_back(shards, done)
    emit("round", nbytes=shards.nbytes, seconds=time.perf_counter() - started)
    return shards.nbytes


def _views(shards: Composite) -> Iterator[tuple[tuple[int, ...], Array]]:
    """All shards of a block, each with its place there."""
    return shards.views(tuple(slice(0, n) for n in shards.sizes))


def _put_back(shards: Composite, done: Array) -> None:
    values = done.reshape(shards.sizes)
    for place, view in _views(shards):
        cut = zip(place, view.shape, strict=True)
        view[...] = values[tuple(slice(low, low + n) for low, n in cut)]


def settled(blocks: Blocks, *done: int) -> Blocks:
    """Return the handle of a group's blocks, now that all rounds that write into them are done."""
    return blocks


def settled_block(blocks: Blocks, block: Block) -> Array:
    """Return one of a group's blocks."""
    return blocks[block]
