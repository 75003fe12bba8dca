"""Very many tiny blocks: which neighbours are merged before a plan begins.

A block costs a task in every round, and a shard for every block that it gives anything to, however
few its bytes are. So where blocks are tiny and very many, and axes are transformed that do not lie
whole in them, neighbouring ones become one, and the plan is made for these::

    source blocks -> merge -> exchange -> round -> .. -> round -> (cut) -> result

A merge is a task for each block that it makes, which does what a gather would. Axes that are
transformed become whole where that can be, which saves exchanges, too. Chunks that are wanted of
the result are cut from larger blocks in the same way.

Pure: imports `decomposition`, `transforms` and this room.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dask_bigfft.decomposition.layout import Chunks
from dask_bigfft.planner.plan_data import Machine, P, PlanData, Request, largest_block
from dask_bigfft.transforms.spec import TransformSpec

#: Blocks of which there are at most so many are left as they are.
MANY = 64

#: How many blocks of an array that padding makes much longer there are at most.
MOST_PADDED = 1024

#: How unevenly blocks are spread over processes.
UNEVEN = 1.5

#: How many times fewer blocks there have to be for merging to be worth a task for each.
FEWER = 8


def _count(chunks: Sequence[Chunks]) -> int:
    return math.prod(map(len, chunks))


def merged_chunks(
    spec: TransformSpec, chunks: tuple[Chunks, ...], nbytes: int
) -> tuple[Chunks, ...] | None:
    """Return the chunks of an array whose tiny blocks are merged; None if they stay as they are.

    Parameters
    ----------
    spec : TransformSpec
        What is asked.
    chunks : tuple of chunks
        Of the array that comes in.
    nbytes : int
        Size up to which blocks are merged, as complex values take it; 0 merges none.
    """
    if _count(chunks) <= MANY:
        return None
    found = merged_up_to(spec, chunks, nbytes)
    return found if FEWER * _count(found) <= _count(chunks) else None


def merged_up_to(
    spec: TransformSpec, chunks: tuple[Chunks, ...], nbytes: int
) -> tuple[Chunks, ...]:
    """Return the chunks of an array whose neighbouring blocks are merged up to a size.

    Axes that are not transformed stay as they are. Of the others those become whole that take the
    fewest blocks for it, the real one before; then what room there is goes to the next one.

    Parameters
    ----------
    spec : TransformSpec
        What is asked.
    chunks : tuple of chunks
        Of the array that comes in.
    nbytes : int
        Size up to which blocks are merged, as complex values take it.
    """
    order = [axis for axis in spec.axes if len(chunks[axis]) > 1]
    room = nbytes // spec.work_dtype.itemsize * (2 if spec.kind == "r2c" else 1)
    lengths, found = dict(zip(spec.axes, spec.lengths, strict=True)), list(chunks)

    def extent(axis: int) -> int:  # an axis that lies whole in a block is padded there
        cut = found[axis]
        return max(1, *cut, lengths.get(axis, 0) if len(cut) == 1 else 0)

    def beside(axis: int) -> int:
        return math.prod(extent(i) for i in range(len(found)) if i != axis)

    order.sort(key=lambda axis: (axis != spec.real_axis, len(chunks[axis]), -axis))
    for axis in order:
        if max(sum(chunks[axis]), lengths[axis]) * beside(axis) <= room:
            found[axis] = (sum(chunks[axis]),)
    for axis in order:
        if len(found[axis]) > 1:
            found[axis] = merged_cut(chunks[axis], room // beside(axis))
    return tuple(found)


def merged_cut(chunks: Chunks, room: int) -> Chunks:
    """Return chunks of an axis merged with their neighbours up to a length.

    A chunk that is longer stays as it is.

    >>> merged_cut((3,) * 10, 12), merged_cut((1, 2, 9, 1, 0, 1), 4), merged_cut((5, 5), 4)
    ((12, 12, 6), (3, 9, 2), (5, 5))
    """
    found: list[int] = []
    for length in chunks:
        if found and found[-1] + length <= room:
            found[-1] += length
        else:
            found.append(length)
    return tuple(found)


def merged_request(
    spec: TransformSpec, request: Request, machine: Machine, nbytes: int
) -> Request | None:
    """Return what is asked of the array with its tiny blocks merged; None where that would not pay.

    What the user has said of rounds or of the movement of data holds for the blocks that come in,
    and with scratch files a stored array is read as it lies in its own.
    """
    on_disk = request.stored is not None and request.carrier == "disk"
    free = request.rounds is None and request.variant == "auto" and not on_disk
    merged = merged_chunks(spec, request.chunks, nbytes) if free else None
    if merged is None:
        return None
    before, after = _count(request.chunks), _count(merged)
    saved = (before - after) * (_task(machine) + machine.profile.shard)
    if merge_seconds(machine, before, after, own_nbytes(spec)) > saved:
        return None
    tiny = request.wanted is not None and _is_tiny(spec, request.wanted, nbytes)
    wanted = None if tiny else request.wanted
    return replace(request, chunks=merged, wanted=wanted, stored=None)


def roomy_request(spec: TransformSpec, request: Request, nbytes: int) -> Request:
    """Return what is asked in larger blocks, where padding would make very many tiny ones.

    Blocks are as large as those that come in, and padding has none of its own: a short filter in a
    few chunks, as long as the signal that it is for, would become thousands of blocks.

    Parameters
    ----------
    spec : TransformSpec
        What is asked.
    request : Request
        And how.
    nbytes : int
        Size up to which tiny blocks grow, as complex values take it; 0 leaves them as they are.
    """
    lengths = dict(zip(spec.axes, spec.lengths, strict=True))
    longest = [max(n, lengths.get(axis, 0)) for axis, n in enumerate(spec.shape)]
    cut = any(n > spec.shape[a] and len(request.chunks[a]) > 1 for a, n in lengths.items())
    total, block = math.prod(longest), largest_block(spec, request)
    much = cut and total >= FEWER * math.prod(spec.shape)
    wanted = max(nbytes // spec.work_dtype.itemsize, total // MOST_PADDED)
    if not much or not nbytes or total <= MANY * block or wanted < FEWER * block:
        return request
    return replace(request, scale=request.scale * wanted / block)


def _is_tiny(spec: TransformSpec, chunks: tuple[Chunks, ...], nbytes: int) -> bool:
    """Return whether blocks of a result are small and many: they are cut from larger ones."""
    size = math.prod(spec.out_shape) * spec.out_dtype.itemsize
    blocks = _count(chunks)
    return blocks > MANY and size * FEWER <= blocks * nbytes


def own_nbytes(spec: TransformSpec) -> int:
    """Return the bytes of the array that comes in."""
    return math.prod(spec.shape) * np.dtype(spec.dtype).itemsize


def _task(machine: Machine) -> float:
    profile = machine.profile
    return profile.task if machine.workers == 1 else profile.sent_task


def merge_seconds(machine: Machine, before: int, after: int, nbytes: int) -> float:
    """Seconds in which so many blocks are merged into fewer, or cut from fewer.

    Parameters
    ----------
    machine : Machine
        Where that is done.
    before, after : int
        Number of blocks.
    nbytes : int
        Bytes of all of them.
    """
    lanes = max(1, min(after, machine.threads * machine.workers))
    copied = before * machine.profile.shard + nbytes / machine.profile.copy
    return after * _task(machine) + copied / lanes


def merge_nbytes(plan: PlanData) -> int:
    """Bytes of host memory of a process that merging and cutting take, at most.

    Somebody else may keep the blocks that come in. With scratch files they are read as they are
    needed, which is counted with what the tasks of the moment work on.
    """
    machine, spec = plan.machine, plan.spec
    found = 0
    if plan.incoming is not None and plan.carrier != "disk":
        found += own_nbytes(spec)
    if plan.outgoing is not None:
        found += math.prod(spec.out_shape) * spec.out_dtype.itemsize
    return math.ceil(found * min(1.0, UNEVEN / machine.workers))


def merge_tasks(plan: PlanData) -> int:
    """Number of tasks that merge the blocks that come in, and cut those that go out."""
    merged = plan.source.blocks if plan.merges else 0
    return merged + (0 if plan.outgoing is None else _count(plan.outgoing))


def merging_seconds(plan: PlanData) -> float:
    """Seconds of merging the blocks that come in, and of cutting those that go out."""
    seconds, spec = 0.0, plan.spec
    if plan.incoming is not None and plan.merges:
        blocks = _count(plan.incoming)
        seconds += merge_seconds(plan.machine, blocks, plan.source.blocks, own_nbytes(spec))
    if plan.outgoing is not None:
        nbytes = math.prod(spec.out_shape) * spec.out_dtype.itemsize
        blocks = _count(plan.outgoing)
        seconds += merge_seconds(plan.machine, plan.result.blocks, blocks, nbytes)
    return seconds


def with_merging(plan: P, incoming: tuple[Chunks, ...], outgoing: tuple[Chunks, ...] | None) -> P:
    """Return a plan for merged blocks as one for the array as it comes in and goes out.

    The plan may have merged some of them again.
    """
    found = replace(plan, incoming=incoming, outgoing=outgoing)
    needed = plan.expected
    return replace(
        found,
        expected=replace(
            needed,
            peak_host=needed.peak_host + merge_nbytes(found) - merge_nbytes(plan),
            tasks=needed.tasks + merge_tasks(found) - merge_tasks(plan),
            seconds=needed.seconds + merging_seconds(found) - merging_seconds(plan),
        ),
    )
