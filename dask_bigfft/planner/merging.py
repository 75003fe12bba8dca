"""Merging of tiny blocks into larger ones before a transform, and its cost."""

import math
from dataclasses import replace
from typing import NamedTuple

from dask_bigfft.planner.plan import Plan
from dask_bigfft.planner.request import Machine, block_count, extents
from dask_bigfft.transforms.layout import Chunks
from dask_bigfft.transforms.spec import TransformSpec

#: Maximum number of blocks that are never merged.
MANY = 64

#: Maximum number of blocks of an array that padding makes much longer.
MOST_PADDED = 1024

#: Minimum factor by which merging reduces the number of blocks.
FEWER = 8

#: Largest share of a process in units of the even share, where the scheduler places blocks.
UNEVEN = 1.5


def merged_up_to(
    spec: TransformSpec,
    chunks: tuple[Chunks, ...],
    nbytes: int,
) -> tuple[Chunks, ...]:
    """Return the chunks of an array whose neighbouring blocks are merged up to a size.

    Axes that are not transformed keep their chunks. Of the others, the real axis and then
    those with the fewest blocks become whole. The next axis gets the remaining room.

    Parameters
    ----------
    spec : TransformSpec
        The transform.
    chunks : tuple of chunks
        Chunks of the input array.
    nbytes : int
        Maximum size of a merged block in bytes of complex values.
    """
    max_size = nbytes // spec.work_dtype.itemsize * (2 if spec.kind == "r2c" else 1)
    lengths = dict(zip(spec.axes, spec.lengths, strict=True))
    merged = list(chunks)

    def other_extents(axis: int) -> int:
        """Return the product of the extents of a block along all other axes."""
        return math.prod(max(1, n) for i, n in enumerate(extents(spec, merged)) if i != axis)

    order = [axis for axis in spec.axes if len(chunks[axis]) > 1]
    order.sort(key=lambda axis: (axis != spec.real_axis, len(chunks[axis]), -axis))
    for axis in order:
        whole = sum(chunks[axis])
        if max(whole, lengths[axis]) * other_extents(axis) <= max_size:
            merged[axis] = (whole,)
    for axis in order:
        if len(merged[axis]) > 1:
            merged[axis] = merged_cut(chunks[axis], max_size // other_extents(axis))
    return tuple(merged)


def merged_cut(chunks: Chunks, max_length: int) -> Chunks:
    """Return chunks of an axis merged with their neighbours up to a length.

    A chunk that is longer stays as it is.

    >>> merged_cut((3,) * 10, 12), merged_cut((1, 2, 9, 1, 0, 1), 4), merged_cut((5, 5), 4)
    ((12, 12, 6), (3, 9, 2), (5, 5))
    """
    merged: list[int] = []
    for length in chunks:
        if merged and merged[-1] + length <= max_length:
            merged[-1] += length
        else:
            merged.append(length)
    return tuple(merged)


def task_seconds(machine: Machine) -> float:
    """Return the overhead of a task in seconds."""
    profile = machine.profile
    return profile.task if machine.workers == 1 else profile.sent_task


def merge_seconds(
    machine: Machine,
    before: int,
    after: int,
    nbytes: int,
) -> float:
    """Return the seconds of merging blocks into fewer, or of cutting them from fewer.

    Parameters
    ----------
    machine : Machine
        Machine of the plan.
    before, after : int
        Number of blocks.
    nbytes : int
        Bytes of all of them.
    """
    lanes = max(1, min(after, machine.threads * machine.workers))
    copied = before * machine.profile.shard + nbytes / machine.profile.copy
    return after * task_seconds(machine) + copied / lanes


class Merging(NamedTuple):
    """Cost of merging incoming blocks and cutting outgoing ones."""

    #: Bytes of host memory per process.
    nbytes: int
    tasks: int
    seconds: float


def merging(plan: Plan) -> Merging:
    """Return the cost of merging incoming blocks and cutting outgoing ones.

    The bytes are host memory of a process: others may keep the input blocks. With scratch
    files these are read as needed and counted with the tasks of the moment.
    """
    machine = plan.machine
    spec = plan.spec
    nbytes = 0
    tasks = 0
    seconds = 0.0
    if plan.incoming is not None and plan.storage != "disk":
        nbytes += spec.nbytes
    if plan.incoming is not None and plan.merges:
        tasks += plan.source.blocks
        incoming_blocks = block_count(plan.incoming)
        seconds += merge_seconds(
            machine,
            incoming_blocks,
            plan.source.blocks,
            spec.nbytes,
        )
    if plan.outgoing is not None:
        nbytes += spec.out_nbytes
        outgoing_blocks = block_count(plan.outgoing)
        tasks += outgoing_blocks
        seconds += merge_seconds(
            machine,
            plan.result.blocks,
            outgoing_blocks,
            spec.out_nbytes,
        )
    share = min(1.0, UNEVEN / machine.workers)
    return Merging(math.ceil(nbytes * share), tasks, seconds)


def with_merging(
    plan: Plan,
    incoming: tuple[Chunks, ...] | None,
    outgoing: tuple[Chunks, ...] | None,
) -> Plan:
    """Return a plan for merged blocks with the merging and cutting of the array's own chunks.

    The plan may merge blocks itself, which is then replaced.
    """
    merged_plan = replace(plan, incoming=incoming, outgoing=outgoing)
    old_nbytes, old_tasks, old_seconds = merging(plan)
    new_nbytes, new_tasks, new_seconds = merging(merged_plan)
    expected = replace(
        plan.expected,
        peak_host=plan.expected.peak_host + new_nbytes - old_nbytes,
        tasks=plan.expected.tasks + new_tasks - old_tasks,
        seconds=plan.expected.seconds + (new_seconds - old_seconds),
    )
    return replace(merged_plan, expected=expected)
