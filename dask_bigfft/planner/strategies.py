"""Strategies: the ways to choose the blocks of a plan, and the steps that follow, in one list.

Each strategy proposes plans for a problem. `choose_plan` goes through `STRATEGIES` once and keeps
the best plan. Its reason has the sentence of each strategy that it comes from, and why the plans of
others were refused::

    blocks where the data lives     GPUs hold the input: a block for each
    one block on a GPU              the only GPU has room for the array: one trip over the bus
    one block each                  whole transforms are small
    merge tiny blocks               the input has very many tiny blocks
    roomier blocks                  padding would make very many tiny blocks
    the input's blocks              everything else
    larger blocks between rounds    rounds have very many tasks
    as large as a device's tiles    rounds on GPUs cut the blocks between them
    shared by CPU and GPU           the plan for both found that GPUs are faster alone
    settings by hand                buffers, tiles and streams of GPUs
    overwriting                     the caller allows it
    inside the input                rounds on GPUs that write back into the input's blocks

A new strategy is an entry of the list, and a subclass of `BlockStrategy` if it chooses blocks whose
plan is taken wherever it suits. Otherwise it is a subclass of `Strategy`: if its plan may not fit
or not pay, so that the next strategy is tried, or if it changes the best plan so far.
"""

import contextlib
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from dask_bigfft.errors import MemoryLimitError, PlanError
from dask_bigfft.planner.inside import overwriting, plan_inside
from dask_bigfft.planner.merging import (
    FEWER,
    MANY,
    MOST_PADDED,
    merge_seconds,
    merged_up_to,
    task_seconds,
    with_merging,
)
from dask_bigfft.planner.plan import Plan, with_reason
from dask_bigfft.planner.request import (
    Machine,
    Request,
    block_count,
    extents,
    largest_block,
    tile_nbytes,
)
from dask_bigfft.planner.search import changes_that_fit, find_plan
from dask_bigfft.planner.tile_plan import (
    AS_IS,
    COMPUTED,
    LEAST_WRITTEN_NBYTES,
    DeviceSettings,
)
from dask_bigfft.planner.work_sharing import decided
from dask_bigfft.transforms.factors import factorize
from dask_bigfft.transforms.layout import Chunks, Layout, even_chunks, scaled
from dask_bigfft.transforms.spec import TransformSpec

#: Cached search for a plan by the model.
find_cached_plan = lru_cache(maxsize=128)(find_plan)

# --- problems -------------------------------------------------------------------------------


@dataclass(frozen=True)
class PlannerSettings:
    """Settings that strategies read.

    Parameters
    ----------
    whole_nbytes : int
        Maximum bytes of a block that holds whole transforms without need; 0 for none.
    merged_nbytes : int
        Bytes to which very many tiny blocks are merged; 0 merges none.
    min_speedup : float
        Minimum forecast speed-up over the faster device for a round to be shared.
    cpu_share : float or None
        The CPU's share of the rows of each block, if it was set by hand.
    pipeline : DeviceSettings
        Settings of GPU pipelines by hand.
    cuts_gpu_blocks : bool
        Whether blocks on GPUs may be cut without a copy.
    """

    whole_nbytes: int
    merged_nbytes: int
    min_speedup: float
    cpu_share: float | None = None
    pipeline: DeviceSettings = AS_IS
    cuts_gpu_blocks: bool = True


@dataclass(frozen=True)
class Problem:
    """A transform to plan, and the best plan so far.

    Parameters
    ----------
    spec, request
        The transform, and the choices of the caller.
    machine, gpu_machine : Machine
        Machine with the GPUs that the requested devices may use, and with those that GPUs alone
        may use.
    may_overwrite : bool
        Whether the contents of the input may be destroyed.
    settings : PlannerSettings
        Settings of the planner.
    search : callable
        Returns the best plan for a request on a machine.
    has_slabs : callable
        Returns whether every block of a layout consists of slabs of the blocks of another.
    best : Plan or None
        The best plan so far.
    strategy : Strategy or None
        The strategy that proposed it.
    sentences : tuple of str
        Sentences of the strategies that the best plan comes from.
    refusals : tuple of str
        Plans that were refused, each with the reason.
    """

    spec: TransformSpec
    request: Request
    machine: Machine
    gpu_machine: Machine
    may_overwrite: bool
    settings: PlannerSettings
    search: Callable[[Request, Machine], Plan]
    has_slabs: Callable[[Layout, Layout], bool]
    best: Plan | None = None
    strategy: "Strategy | None" = None
    sentences: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()

    @property
    def works_inside(self) -> bool:
        """Return whether rounds may write into the blocks of the input."""
        return self.may_overwrite and self.machine.workers == 1

    @property
    def keeps_blocks(self) -> bool:
        """Return whether a plan has to have the input's blocks.

        Rounds and variants that the user named hold for these. With scratch files a stored array is
        read in its own chunks.
        """
        request = self.request
        on_disk = request.stored is not None and request.storage == "disk"
        return request.rounds is not None or request.variant != "auto" or on_disk

    @property
    def has_digits(self) -> bool:
        """Return whether an axis of the input or of the result is stored in transposed order."""
        return "transposed" in (*self.spec.orders_in, *self.spec.orders_out)

    @property
    def crosses_bus(self) -> bool:
        """Return whether GPUs of one process transform cut axes of an array in its host memory."""
        machine = self.machine
        request = self.request
        is_one_process = machine.shared and machine.workers == 1
        if not is_one_process or machine.gpus < 1 or request.device not in ("auto", "gpu"):
            return False
        if request.verify != "none" or self.spec.work_dtype.char not in COMPUTED:
            return False
        return any(len(request.chunks[axis]) > 1 for axis in self.spec.axes)

    @property
    def padded_size(self) -> int:
        """Elements of the array, padding included."""
        return math.prod(extents(self.spec, [(n,) for n in self.spec.shape]))

    @property
    def chunks_like_input(self) -> tuple[Chunks, ...]:
        """Chunks of the result like the input's."""
        return tuple(map(scaled, self.request.chunks, self.spec.out_shape))


class Strategy:
    """Base of strategies."""

    #: Name of the proposed plan, in refusals.
    name: ClassVar[str]

    #: Sentence of `Plan.explain` for a plan that is taken.
    sentence: ClassVar[str]

    #: True if another strategy has a plan, too, so that the proposed one may be refused.
    is_optional: ClassVar[bool] = False

    #: True if the strategy changes the best plan, and searches for no other one.
    is_step: ClassVar[bool] = False

    def applies(self, problem: Problem) -> bool:
        """Return whether the strategy has a plan to propose."""
        raise NotImplementedError

    def candidates(self, problem: Problem) -> Iterator[Plan]:
        """Yield the proposed plans.

        Raises
        ------
        PlanError
            If there is no plan for the problem.
        """
        raise NotImplementedError

    def is_better(self, plan: Plan, best: Plan) -> bool:
        """Return whether a proposed plan is better than the best one so far."""
        return True

    def refusal(self, plan: Plan, problem: Problem) -> str:
        """Return what a proposed plan would do, if that is why it is not taken; else nothing."""
        if self.is_optional and not plan.fits_memory:
            return "need more memory than the limit"
        if self.is_optional and plan.storage == "disk" and problem.request.storage == "auto":
            return "need scratch files"
        if problem.best is not None and not self.is_better(plan, problem.best):
            return "save no time"
        return ""

    def request(self, problem: Problem) -> Request | None:
        """Return the request for blocks that may be cut into a GPU's tiles; None for others."""
        return None


class BlockStrategy(Strategy):
    """Base of strategies that choose the size of blocks before a plan is searched for.

    The first one that suits a problem chooses. If no plan has such blocks, that is an error.
    """

    def suits(self, problem: Problem) -> bool:
        """Return whether a plan in these blocks is wanted."""
        raise NotImplementedError

    def request(self, problem: Problem) -> Request:
        """Return the request for a plan in these blocks."""
        raise NotImplementedError

    def applies(self, problem: Problem) -> bool:
        """Return whether no strategy has chosen blocks yet, and these are wanted."""
        return problem.best is None and self.suits(problem)

    def candidates(self, problem: Problem) -> Iterator[Plan]:
        """Yield the best plan in these blocks, on CPU threads alone if only these have the memory.

        Raises
        ------
        MemoryLimitError
            If no plan meets the memory limit, with the changes that would make one possible.
        """
        request = self.request(problem)
        machine = problem.machine
        try:
            plan = problem.search(request, machine)
        except MemoryLimitError as error:
            cpu_plan = _plan_without_gpus(problem, request)
            if cpu_plan is None:
                if request.device == "hybrid":
                    machine = replace(machine, gpus=0)
                changes = changes_that_fit(problem.spec, request, machine)
                text = "".join([str(error), *(f", or {change}" for change in changes)])
                raise MemoryLimitError(text) from None
            plan = cpu_plan
        yield plan


def _plan_without_gpus(problem: Problem, request: Request) -> Plan | None:
    """Return the plan for CPU threads alone, if the device is open; None if it does not fit."""
    machine = problem.machine
    if request.device != "auto" or machine.gpus == 0:
        return None
    try:
        return problem.search(replace(request, device="cpu"), replace(machine, gpus=0))
    except MemoryLimitError:
        return None


# --- blocks on GPUs -------------------------------------------------------------------------

#: Maximum number of blocks per GPU, where several transform blocks while they copy others.
BLOCKS_PER_GPU = 4

#: Minimum bytes of such a block: the host needs about 0.5 ms to enqueue one.
MIN_BLOCK_NBYTES = 1 << 30

#: Least memory of a GPU, in units of an array, for a transform of all of it at a time.
WHOLE = 4


class BlocksOnGpus(BlockStrategy):
    """Blocks where the data lives: a block for each GPU that holds a part of the input."""

    name = "blocks on GPUs"
    sentence = "one block for each GPU that holds data"

    def suits(self, problem: Problem) -> bool:
        """Return whether GPUs of this process hold the input."""
        return problem.machine.holding > 0

    def request(self, problem: Problem) -> Request:
        """Return the request for a block on each GPU, and finer input chunks."""
        request = problem.request
        spec = problem.spec
        count = problem.machine.holding
        if problem.keeps_blocks:
            return request
        if count == 1:
            return request_for_one_block(problem)
        size = problem.padded_size
        chunks = request.chunks
        if problem.settings.cuts_gpu_blocks:
            most_blocks = size * spec.work_dtype.itemsize // (count * MIN_BLOCK_NBYTES)
            chunks = finer(chunks, count * min(BLOCKS_PER_GPU, most_blocks))
        block_size = math.prod(extents(spec, chunks))
        scale = size / (count * block_size) if size else 1.0
        # Twice a block has to be less than the array, which one GPU may not hold.
        scale *= 1 - 2**-20
        return replace(
            request,
            chunks=chunks,
            scale=scale,
            storage="memory",
        )


def finer(chunks: tuple[Chunks, ...], blocks: int) -> tuple[Chunks, ...]:
    """Return chunks cut along the axis that has most of them, into about `blocks` blocks or more.

    >>> finer(((4,), (6, 6)), 5)
    ((4,), (2, 2, 2, 2, 2, 2))
    """
    axis = max(range(len(chunks)), key=lambda axis: len(chunks[axis]))
    parts = -(-blocks // max(1, block_count(chunks)))
    axis_chunks: list[int] = []
    for n in chunks[axis]:
        count = max(1, min(n, parts))
        bounds = [n * i // count for i in range(count + 1)]
        axis_chunks += [high - low for low, high in itertools.pairwise(bounds)]
    return (*chunks[:axis], tuple(axis_chunks), *chunks[axis + 1 :])


def request_for_one_block(problem: Problem) -> Request:
    """Return the request for the whole array as one block.

    The chunks of the result are like the input's.
    """
    request = problem.request
    wanted_chunks = request.wanted_chunks
    if wanted_chunks is None and block_count(request.chunks) > 1:
        wanted_chunks = problem.chunks_like_input
    size = problem.padded_size
    block_size = math.prod(extents(problem.spec, request.chunks))
    # Half a spectrum in digits takes a round for each of them.
    needs_rounds = problem.spec.kind != "c2c" and problem.has_digits
    return replace(
        request,
        scale=size / block_size if size else 1.0,
        wanted_chunks=wanted_chunks,
        storage="memory",
        max_rounds=request.max_rounds if needs_rounds else 1,
    )


class OneBlockOnGpu(BlockStrategy):
    """One block on a GPU: an array whose cut axes would otherwise cross the bus twice."""

    name = "one block"
    sentence = "one block, which fits a GPU: data are copied there and back once"

    def suits(self, problem: Problem) -> bool:
        """Return whether the only GPU has the memory for the array, its result and more."""
        if problem.may_overwrite or not problem.crosses_bus or problem.machine.gpus > 1:
            return False
        spec = problem.spec
        size = max(math.prod(spec.shape), math.prod(spec.out_shape))
        nbytes = size * spec.work_dtype.itemsize
        return WHOLE * nbytes <= problem.machine.devices[0].nbytes

    def request(self, problem: Problem) -> Request:
        """Return the request for one block, unless blocks have to stay."""
        return problem.request if problem.keeps_blocks else request_for_one_block(problem)


# --- blocks of small transforms, and tiny blocks --------------------------------------------


class OneBlockEach(Strategy):
    """One block each: blocks that hold whole transforms, if these are small and it pays.

    One thread transforms such a block. That pays if it loses less time than the tasks of a second
    round would take.
    """

    name = "blocks of whole transforms"
    sentence = "each block holds whole transforms, which saves the tasks of a second step"
    is_optional = True

    def applies(self, problem: Problem) -> bool:
        """Return whether no strategy has chosen blocks, and blocks may hold whole transforms."""
        if problem.best is not None or problem.keeps_blocks or problem.has_digits:
            return False
        return problem.settings.whole_nbytes > 0

    def candidates(self, problem: Problem) -> Iterator[Plan]:
        """Yield the plan in blocks that hold whole transforms, if it pays."""
        request = self._request(problem)
        if request is None:
            return
        with contextlib.suppress(PlanError):
            yield problem.search(request, problem.machine)

    def _request(self, problem: Problem) -> Request | None:
        """Return the request for blocks that hold whole transforms; None if that does not pay."""
        spec = problem.spec
        request = problem.request
        machine = problem.machine
        settings = problem.settings
        whole_chunks = list(request.chunks)
        for axis in spec.axes:
            whole_chunks[axis] = (sum(request.chunks[axis]),)
        before = block_count(request.chunks)
        after = block_count(whole_chunks)
        block_size = math.prod(extents(spec, whole_chunks))
        block_nbytes = block_size * spec.work_dtype.itemsize
        if after == before or not 0 < block_nbytes <= settings.whole_nbytes:
            return None
        if settings.merged_nbytes:  # very many tiny blocks would be merged otherwise
            merged_blocks = block_nbytes * after // settings.merged_nbytes
            before = max(after, min(before, merged_blocks))
        seconds = _transform_seconds(problem, block_size * after)
        lanes = machine.threads * machine.workers
        lost_seconds = seconds / min(after, lanes) - seconds / min(before, lanes)
        saved_seconds = (2 * before - after) * task_seconds(machine)
        if machine.workers > 1:  # each pair of blocks is a task, too
            profile = machine.profile
            pairs = before**2 / after
            saved_seconds += profile.exchange + pairs * (profile.sent_task + profile.sent_shard)
        if lost_seconds > saved_seconds:
            return None
        scale = request.scale * block_size / largest_block(spec, request)
        return replace(request, scale=scale, stored=None)


def _transform_seconds(problem: Problem, size: int) -> float:
    """Return the seconds of one thread for the FFTs of whole blocks of `size` elements together."""
    spec = problem.spec
    profile = problem.machine.profile
    library = profile.library(problem.request.kernel, str(spec.work_dtype))
    is_smooth = all(max(factorize(n), default=1) <= 11 for n in spec.lengths)
    # 5 n log2 n operations. Real transforms do half, which Bluestein's algorithm does not.
    work = 2.5 if is_smooth and spec.kind != "c2c" else 5.0
    return work * size * math.log2(max(2, math.prod(spec.lengths))) / library.large_flops


class RoomierBlocks(BlockStrategy):
    """Roomier blocks than the input's, where padding would make very many tiny ones.

    A short filter in a few chunks that is padded to the length of its signal would otherwise become
    thousands of blocks.
    """

    name = "larger blocks"
    sentence = "blocks are larger than the input's chunks, since padding would make too many"

    def suits(self, problem: Problem) -> bool:
        """Return whether padding would make very many blocks of the input's size."""
        spec = problem.spec
        request = problem.request
        lengths = zip(spec.axes, spec.lengths, strict=True)
        pads_cut_axis = any(n > spec.shape[a] and len(request.chunks[a]) > 1 for a, n in lengths)
        if not problem.settings.merged_nbytes or not pads_cut_axis:
            return False
        if problem.padded_size < FEWER * math.prod(spec.shape):
            return False
        block_size = largest_block(spec, request)
        if problem.padded_size <= MANY * block_size:
            return False
        return self._size(problem) >= FEWER * block_size

    def request(self, problem: Problem) -> Request:
        """Return the request in larger blocks."""
        request = problem.request
        scale = self._size(problem) / largest_block(problem.spec, request)
        return replace(request, scale=request.scale * scale)

    def _size(self, problem: Problem) -> int:
        """Return the elements of a larger block."""
        merged_size = problem.settings.merged_nbytes // problem.spec.work_dtype.itemsize
        return max(merged_size, problem.padded_size // MOST_PADDED)


ROOMIER_BLOCKS = RoomierBlocks()


class MergedBlocks(Strategy):
    """Merge tiny blocks: fewer shards and tasks, if the plan fits into the same memory."""

    name = "joined chunks"
    sentence = "small chunks of the input are joined, which saves tasks"
    is_optional = True

    def applies(self, problem: Problem) -> bool:
        """Return whether no strategy has chosen blocks, and the input has very many."""
        if problem.best is not None or problem.keeps_blocks:
            return False
        return block_count(problem.request.chunks) > MANY

    def candidates(self, problem: Problem) -> Iterator[Plan]:
        """Yield the plan in merged blocks, if it pays."""
        request = problem.request
        if ROOMIER_BLOCKS.suits(problem):
            request = ROOMIER_BLOCKS.request(problem)
        merged = self._request(problem, request)
        if merged is None:
            return
        with contextlib.suppress(PlanError):
            plan = problem.search(merged, problem.machine)
            outgoing = request.wanted_chunks
            if outgoing in (merged.wanted_chunks, plan.chunks):
                outgoing = None  # nothing has to be cut
            yield with_merging(plan, request.chunks, outgoing)

    def _request(self, problem: Problem, request: Request) -> Request | None:
        """Return a request with tiny blocks merged; None if that does not pay."""
        spec = problem.spec
        machine = problem.machine
        nbytes = problem.settings.merged_nbytes
        before = block_count(request.chunks)
        merged = merged_up_to(spec, request.chunks, nbytes)
        after = block_count(merged)
        if FEWER * after > before:
            return None
        saved_seconds = (before - after) * (task_seconds(machine) + machine.profile.shard)
        added_seconds = merge_seconds(
            machine,
            before,
            after,
            spec.nbytes,
        )
        if added_seconds > saved_seconds:
            return None
        wanted_chunks = request.wanted_chunks
        wanted_blocks = 0 if wanted_chunks is None else block_count(wanted_chunks)
        if wanted_blocks > MANY and spec.out_nbytes * FEWER <= wanted_blocks * nbytes:
            wanted_chunks = None  # small blocks are cut from larger ones
        return replace(
            request,
            chunks=merged,
            wanted_chunks=wanted_chunks,
            stored=None,
        )


class InputBlocks(BlockStrategy):
    """Blocks about as large as the input's."""

    name = "the input's blocks"
    sentence = "blocks are about as large as the input's chunks"

    def suits(self, problem: Problem) -> bool:
        """Return True: every array has chunks."""
        return True

    def request(self, problem: Problem) -> Request:
        """Return the request of the caller."""
        return problem.request


#: Maximum bytes of larger blocks between rounds. Beyond it, tasks take long enough.
LARGEST_NBYTES = 1 << 25

#: Maximum time of a plan with larger blocks between rounds, in units of that of other blocks. It
#: needs up to twice the memory.
WORTHWHILE = 0.9


class FewerBlocks(Strategy):
    """Fewer blocks between the rounds of an input that has very many of them.

    Every round has tasks for each block. In larger blocks there are fewer rounds, too, because more
    axes are whole in a block. Tasks gather the first ones from the input's blocks. The result has
    as many chunks as it would have otherwise: they are views of larger blocks.
    """

    name = "larger blocks between rounds"
    sentence = "blocks are larger than the input's chunks, which saves tasks"
    is_optional = True

    def applies(self, problem: Problem) -> bool:
        """Return whether CPU threads of one process transform very many blocks."""
        if not isinstance(problem.strategy, InputBlocks):
            return False
        request = problem.request
        if problem.keeps_blocks or request.stored is not None or request.storage == "disk":
            return False
        best = problem.best
        assert best is not None
        machine = best.machine
        if machine.gpus or machine.workers > 1 or best.storage != "memory" or not best.travelling:
            return False
        return block_count(request.chunks) >= FEWER * MANY

    def candidates(self, problem: Problem) -> Iterator[Plan]:
        """Yield the plan in larger blocks, if chunks of the result may be parts of them."""
        request = problem.request
        best = problem.best
        assert best is not None
        block_nbytes = largest_block(problem.spec, request) * problem.spec.work_dtype.itemsize
        factor = min(block_count(request.chunks) / MANY, LARGEST_NBYTES / block_nbytes)
        if factor < 2:
            return
        larger = replace(request, scale=request.scale * factor)
        with contextlib.suppress(PlanError):
            plan = problem.search(larger, problem.machine)
            if request.wanted_chunks is not None and plan.chunks != best.chunks:
                return
            parts = round(block_count(best.chunks) / block_count(plan.chunks))
            if parts > 1:
                axes = [axis for axis, own in enumerate(best.chunks) if len(own) > 1]
                plan = with_merging(plan, plan.incoming, cut(plan.chunks, parts, axes))
            yield plan

    def is_better(self, plan: Plan, best: Plan) -> bool:
        """Return whether a plan is expected to take much less time."""
        return plan.expected.seconds < WORTHWHILE * best.expected.seconds


def cut(chunks: tuple[Chunks, ...], parts: int, axes: Sequence[int]) -> tuple[Chunks, ...]:
    """Return chunks that are cut into parts along the one of some axes where they are longest.

    >>> cut(((2, 2), (8,), (16,)), 4, axes=(0, 1))
    ((2, 2), (2, 2, 2, 2), (16,))
    """
    longest = max(axes, key=lambda axis: max(chunks[axis]))
    pieces: Chunks = ()
    for size in chunks[longest]:
        pieces += even_chunks(size, parts)
    return (*chunks[:longest], pieces, *chunks[longest + 1 :])


# --- blocks for GPUs that cut an array in host memory ---------------------------------------

#: Minimum bytes of the blocks between rounds of GPUs: the host needs about 1 ms for one.
LEAST_BETWEEN = 1 << 26


class BlocksAsTiles(Strategy):
    """Blocks between rounds on GPUs as large as a device's tiles at most.

    A tile is then contiguous in such a block, so that a pass over the bus has narrow rows in one
    direction only. Blocks are not cut below `LEAST_BETWEEN`. They grow up to two tiles where rows
    would else be too narrow: a first round reorders nothing, so that its tiles need half the
    memory. The chunks of the result are like the input's.
    """

    name = "blocks like a GPU's tiles"
    sentence = "blocks are as large as a GPU works on, in rows that are copied fast"
    is_optional = True

    def applies(self, problem: Problem) -> bool:
        """Return whether GPUs cut an array whose blocks no strategy has made whole or merged."""
        strategy = problem.strategy
        if strategy is None or strategy.request(problem) is None or problem.works_inside:
            return False
        if problem.keeps_blocks or problem.request.storage == "disk" or problem.has_digits:
            return False
        return problem.crosses_bus

    def candidates(self, problem: Problem) -> Iterator[Plan]:
        """Yield the plan in such blocks, if the base's are not like them."""
        assert problem.strategy is not None
        request = problem.strategy.request(problem)
        assert request is not None
        block_nbytes = largest_block(problem.spec, request) * problem.spec.work_dtype.itemsize
        nbytes = self._nbytes(problem, block_nbytes)
        if nbytes is None:
            return
        request = replace(
            request,
            scale=request.scale * nbytes / block_nbytes,
            joined=True,
            wanted_chunks=request.wanted_chunks or problem.chunks_like_input,
            storage="memory",
        )
        with contextlib.suppress(PlanError):
            yield problem.search(request, problem.machine)

    def _nbytes(self, problem: Problem, block_nbytes: int) -> float | None:
        """Return the bytes of a block between rounds; None for blocks as they are."""
        tile = tile_nbytes(problem.request, problem.machine)
        most = max(LEAST_BETWEEN, tile)
        # Bytes of a block whose rows are wide enough, if its digits are of equal length.
        wide_nbytes = LEAST_WRITTEN_NBYTES * math.sqrt(math.prod(problem.spec.lengths))
        if block_nbytes <= most and (block_nbytes >= wide_nbytes or wide_nbytes > 2 * tile):
            return None
        if most < wide_nbytes:
            return 2 * most
        return most if block_nbytes > most else wide_nbytes

    def is_better(self, plan: Plan, best: Plan) -> bool:
        """Return whether a plan saves a crossing of the bus, or costs none where an axis is split.

        A plan that pads an axis for Bluestein's algorithm is not better.
        """
        if any(program.bluestein for program in plan.programs):
            return False
        is_split = any(len(program.factors) > 1 for program in best.programs)
        return _crossings(plan) < _crossings(best) + is_split


def _crossings(plan: Plan) -> int:
    """Return the number of trips of all data over the bus."""
    written_in_order = sum(shared is not None for shared in plan.shared_layouts.exchanges)
    return len(plan.exchanges) - written_in_order


class SharedByCpuAndGpu(Strategy):
    """Rounds that CPU threads and GPUs share, where GPUs alone turned out to be faster.

    The search of a hybrid request decides that. GPUs alone may have other blocks: data that fits
    into one crosses the bus once.
    """

    name = "rounds on GPUs alone"
    sentence = "GPUs alone are faster than with CPU threads"

    def applies(self, problem: Problem) -> bool:
        """Return whether GPUs do all rounds of a plan that might have shared them."""
        best = problem.best
        return problem.request.device == "hybrid" and best is not None and best.device == "gpu"

    def candidates(self, problem: Problem) -> Iterator[Plan]:
        """Yield the plan for GPUs alone."""
        gpus_alone = replace(
            problem,
            request=replace(problem.request, device="gpu"),
            machine=problem.gpu_machine,
            best=None,
            strategy=None,
            sentences=(),
            refusals=(),
        )
        plan = choose_plan(gpus_alone)
        yield replace(plan, shares=(1.0,) * len(plan.rounds))


# --- steps that follow ----------------------------------------------------------------------


class PipelineByHand(Strategy):
    """Buffers, tiles and streams of GPUs as set by hand."""

    name = "settings by hand"
    sentence = "pipelines of GPUs as set by hand"
    is_step = True

    def applies(self, problem: Problem) -> bool:
        """Return whether GPUs take part, and a setting is set."""
        best = problem.best
        if best is None or problem.settings.pipeline == AS_IS:
            return False
        return best.machine.gpus > 0 or bool(best.shares)

    def candidates(self, problem: Problem) -> Iterator[Plan]:
        """Yield the plan with the settings."""
        assert problem.best is not None
        cpu_share = problem.best.settings.cpu_share
        settings = replace(problem.settings.pipeline, cpu_share=cpu_share)
        yield replace(problem.best, settings=settings)


class Overwriting(Strategy):
    """A plan that may destroy its source blocks, with the memory that it then needs."""

    name = "overwriting"
    sentence = "results replace the input if that saves memory"
    is_step = True

    def applies(self, problem: Problem) -> bool:
        """Return whether the caller allows it."""
        best = problem.best
        return problem.may_overwrite and best is not None and not best.overwrite

    def candidates(self, problem: Problem) -> Iterator[Plan]:
        """Yield the plan that may overwrite."""
        assert problem.best is not None
        yield overwriting(problem.best)


class InsideInput(Strategy):
    """Rounds on GPUs inside the blocks of the input, if these are cut for it."""

    name = "rounds inside the input"
    sentence = "each step writes into the blocks of the input"
    is_step = True

    def applies(self, problem: Problem) -> bool:
        """Return whether GPUs do rounds of a plan in memory that may overwrite its input."""
        best = problem.best
        if best is None or best.inside or not problem.works_inside:
            return False
        return best.machine.gpus > 0 and best.storage == "memory"

    def candidates(self, problem: Problem) -> Iterator[Plan]:
        """Yield the plan inside the input, if there is one."""
        assert problem.best is not None
        plan = plan_inside(problem.best, problem.has_slabs)
        if plan is not None:
            yield plan


#: All strategies, in the order in which they are tried.
STRATEGIES: tuple[Strategy, ...] = (
    BlocksOnGpus(),
    OneBlockOnGpu(),
    OneBlockEach(),
    MergedBlocks(),
    ROOMIER_BLOCKS,
    InputBlocks(),
    FewerBlocks(),
    BlocksAsTiles(),
    SharedByCpuAndGpu(),
    PipelineByHand(),
    Overwriting(),
    InsideInput(),
)


# --- the choice -----------------------------------------------------------------------------


def choose_plan(problem: Problem) -> Plan:
    """Return the plan for a problem.

    Raises
    ------
    PlanError
        If no plan meets the memory limit.
    """
    for strategy in STRATEGIES:
        if not strategy.applies(problem):
            continue
        for plan in strategy.candidates(problem):
            refusal = strategy.refusal(plan, problem)
            if refusal:
                refusals = (*problem.refusals, f"{strategy.name} would {refusal}")
                problem = replace(problem, refusals=refusals)
                continue
            sentences = (*problem.sentences, strategy.sentence)
            if not strategy.is_step:
                sentences = (strategy.sentence,)
            problem = replace(
                problem,
                best=plan,
                strategy=strategy,
                sentences=sentences,
            )
    assert problem.best is not None  # the input's blocks have a plan, or raise an error
    return _with_verdicts(problem.best, (*problem.sentences, *problem.refusals))


@lru_cache(maxsize=128)  # a plan of an earlier call has its stages and its text
def _with_verdicts(plan: Plan, verdicts: tuple[str, ...]) -> Plan:
    """Return a plan with the verdicts of strategies in its reason."""
    return with_reason(plan, *verdicts)


def find_plan_by_model(
    spec: TransformSpec,
    request: Request,
    machine: Machine,
    settings: PlannerSettings,
    has_slabs: Callable[[Layout, Layout], bool] | None,
) -> Plan:
    """Return the cheapest plan of a request, in blocks of its own choice.

    Parameters
    ----------
    spec, request, machine
        The arguments of `find_plan`.
    settings : PlannerSettings
        Settings for rounds that CPU threads and GPUs share.
    has_slabs : callable or None
        For a plan that may write inside the blocks of its input, see `Problem`.
    """
    if request.device == "hybrid":
        return decided(
            spec,
            request,
            replace(machine, gpus=0),
            machine.gpus,
            settings.min_speedup,
            settings.cpu_share,
        )
    if has_slabs is not None:
        plan = _plan_that_fits_inside(
            spec,
            request,
            machine,
            has_slabs,
        )
        if plan is not None:
            return plan
    return find_cached_plan(spec, request, machine)


def _plan_that_fits_inside(
    spec: TransformSpec,
    request: Request,
    machine: Machine,
    has_slabs: Callable[[Layout, Layout], bool],
) -> Plan | None:
    """Return the plan without a memory limit if it meets the limit by overwriting its input.

    It is None if it does not, or if there is no limit. Memory that is too little for blocks before
    and after a round may be enough for one of them.
    """
    limit = machine.memory_limit
    if limit is None:
        return None
    with contextlib.suppress(PlanError):
        roomy_plan = find_cached_plan(spec, request, replace(machine, memory_limit=None))
        inside_plan = overwriting(roomy_plan)
        if inside_plan.machine.gpus:
            inside_plan = plan_inside(inside_plan, has_slabs) or inside_plan
        if inside_plan.expected.peak_host <= limit:
            return replace(roomy_plan, machine=machine)
    return None
