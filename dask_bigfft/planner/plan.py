"""`Plan`, with its forecast, explanation and drawing; plans of filters and shifts; merging."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from dask_bigfft.errors import parse_count, parse_type
from dask_bigfft.planner.cost import forecast, merge_seconds, merging, task_seconds, with_forecast
from dask_bigfft.planner.explain import draw, explain, in_a_line, summary
from dask_bigfft.planner.plan_data import (
    Exchange,
    Forecast,
    Machine,
    P,
    PlanData,
    Request,
    SharedLayouts,
    block_count,
    extents,
    largest_block,
    no_shared_layouts,
    tile_nbytes,
)
from dask_bigfft.planner.profile import Profile
from dask_bigfft.planner.seconds import flops
from dask_bigfft.planner.tile_plan import AS_IS, COMPUTED, LEAST_WRITTEN_NBYTES
from dask_bigfft.transforms.factors import factorize
from dask_bigfft.transforms.layout import AxisLayout, Chunks, Layout, scaled
from dask_bigfft.transforms.rounds import Round, transformed
from dask_bigfft.transforms.spec import TransformSpec
from dask_bigfft.transforms.steps import AxisProgram, Chirp, Step, axis_program

#: Bytes of shards that a worker's shuffles hold in memory by distributed's defaults.
SHUFFLE_BUFFERS = (1 << 30) + (100 << 20)


class Plan(PlanData):
    """A transform laid out in rounds and exchanges, with its forecast: see `PlanData`."""

    def forecast(
        self,
        profile: Profile,
        *,
        workers: int = 1,
        threads: int = 1,
        gpus: int = 0,
    ) -> Forecast:
        """Return the forecast of the plan for another machine, real or imagined.

        Rounds that CPU threads and GPUs share are counted as done by GPUs alone, if there are any.

        Parameters
        ----------
        profile : Profile
            Speeds of the machine.
        workers, threads : int
            Processes, and threads of each.
        gpus : int
            GPUs of each process.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            Where a number is not whole, or below 1 (0 for `gpus`).
        """
        parse_count("workers", workers, 1)
        parse_count("threads", threads, 1)
        parse_count("gpus", gpus, 0)
        parse_type("profile", profile, Profile, "a Profile, as calibrate returns")
        machine = Machine(
            memory_limit=None,
            threads=threads,
            workers=workers,
            buffers=SHUFFLE_BUFFERS,
            profile=profile,
            gpus=gpus,
            shared=self.machine.shared and workers == 1,
        )
        return forecast(replace(self, machine=machine))

    explain = explain
    __str__ = summary
    __repr__ = in_a_line
    _repr_html_ = draw


class CpuPlan:
    """Base of plans without choices: the CPU computes their rounds, in memory of their own."""

    machine = Machine()
    device_memory_limit = None
    settings = AS_IS
    overwrite = False
    inside = False
    from_rows = False
    assembles = False
    ends_in_round = False
    device: Literal["cpu"] = "cpu"
    shares: tuple[float, ...] = ()
    rounds: tuple[Round, ...]
    dtype: str

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtype of the blocks before and after each round, and of those without rounds."""
        return (self.dtype,) * max(1, 2 * len(self.rounds))

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchanges of the plan."""
        raise NotImplementedError

    @property
    def shared_layouts(self) -> SharedLayouts:
        """No shared buffers."""
        return no_shared_layouts(len(self.exchanges), len(self.rounds))

    @property
    def moves(self) -> tuple[bool, ...]:
        """For each exchange, whether anything travels."""
        return tuple(not exchange.local for exchange in self.exchanges)


@dataclass(frozen=True)
class FilterPlan(CpuPlan):
    """Rounds that make the spectrum of the filter of one axis.

    Parameters
    ----------
    axis : int
        Axis of the array that the filter belongs to.
    chirp : Chirp
        The filter.
    rounds : tuple of Round
        Rounds of a one-dimensional array. The last one has the blocks of the axis.
    used_in : int
        Number of the plan's round that convolves (from 0).
    dtype, kernel, verify : str
        Dtype of the blocks, FFT library, and checks.
    """

    axis: int
    chirp: Chirp
    rounds: tuple[Round, ...]
    used_in: int
    dtype: str
    kernel: str
    verify: str = "none"

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchange before each round; the one before the first is never made."""
        exchanges = []
        source = self.rounds[0].source
        for round_ in self.rounds:
            exchanges.append(Exchange(source, round_.source, self.dtype, self.dtype))
            source = round_.target
        return tuple(exchanges)


def filter_plans(plan: Plan) -> tuple[FilterPlan, ...]:
    """Return the filters of the axes that use Bluestein's algorithm."""
    return tuple(_filter_plan(plan, program) for program in plan.programs if program.bluestein)


def _filter_plan(plan: Plan, program: AxisProgram) -> FilterPlan:
    """Return the plan of the filter of an axis, in the blocks of its forward FFTs."""
    count = len(program.factors)
    forward_steps = program.steps[:count]
    plain_program = axis_program(0, program.length, program.factors, bluestein=True)
    rounds = []
    used_in = 0
    for step, plain_step in zip(forward_steps, plain_program.steps[:count], strict=True):
        used_in = next(i for i, round_ in enumerate(plan.rounds) if step in round_.steps)
        layout = Layout((plan.rounds[used_in].source.axes[program.axis],))
        filter_steps = (_forward(plain_step),)
        rounds.append(Round(filter_steps, layout, transformed(layout, filter_steps)))
    chirp = forward_steps[-1].convolve
    assert chirp is not None
    return FilterPlan(
        axis=program.axis,
        chirp=chirp,
        rounds=tuple(rounds),
        used_in=used_in,
        dtype=plan.spec.work_dtype.str,
        kernel=plan.kernel,
        verify=plan.verify,
    )


def _forward(step: Step) -> Step:
    """Return the forward FFT of a step, with its twiddle but without chirp and convolution."""
    if step.convolve is None:
        return replace(step, chirp_in=None, chirp_out=None)
    target = replace(step.source, stage=1)  # only its size matters after the last round
    return replace(step, target=target, convolve=None, twiddle=None, chirp_in=None, chirp_out=None)


Offsets = Mapping[int, int]


@dataclass(frozen=True)
class ShiftPlan(CpuPlan):
    """One exchange that stores some axes in another order, without rounds.

    Parameters
    ----------
    source, result : Layout
        Blocks before and after. A shift cuts both alike and gives the result's axes offsets.
    dtype : str
        Dtype of the elements.
    part : str
        Name of its tasks.
    """

    source: Layout
    result: Layout
    dtype: str
    part: str = "shift"

    rounds = ()
    kernel = "scipy"
    verify = "none"

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The shift."""
        return (Exchange(self.source, self.result, self.dtype, self.dtype),)

    @property
    def is_shift(self) -> bool:
        """Return whether only the first elements of axes change."""
        return rolled(self.source, self.offsets) == self.result

    @property
    def offsets(self) -> dict[int, int]:
        """First element of each shifted axis of the result."""
        return offsets_of(self.result)

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Chunks of the result."""
        return tuple(axis.groups[0].chunks for axis in self.result.axes)


def offsets_of(layout: Layout) -> dict[int, int]:
    """Return the nonzero offsets by axis."""
    offsets = {a: axis.groups[0].offset for a, axis in enumerate(layout.axes)}
    return {a: offset for a, offset in offsets.items() if offset}


def rolled(layout: Layout, offsets: Offsets) -> Layout:
    """Return the layout with the offsets of some axes set.

    >>> from dask_bigfft.transforms.layout import plain
    >>> offsets_of(rolled(Layout((plain(4, (4,)), plain(6, (3, 3)))), {1: 8}))
    {1: 2}
    """
    axes = list(layout.axes)
    for a, offset in offsets.items():
        group = axes[a].groups[0]
        axes[a] = AxisLayout((replace(group, offset=offset % max(group.size, 1)),))
    return Layout(tuple(axes))


def shifted_plan(plan: Plan, before: Offsets, after: Offsets) -> Plan:
    """Return a plan for an input and a result that are stored shifted.

    Parameters
    ----------
    plan : Plan
        Plan of the same transform without shifts.
    before, after : mapping of int to int
        First element of each axis of the input and of the result. The input's axes are whole.

    Returns
    -------
    Plan
        With its forecast, and with the chunks of `plan`.
    """
    # The source, the layouts before and after each round, and the result. An exchange leads from
    # each even number to the next, and a round from each odd one.
    layouts = [plan.source]
    for round_ in plan.rounds:
        layouts += [round_.source, round_.target]
    layouts.append(plan.result)
    for axis, offset in after.items():
        for i in range(_first_like_result(plan, layouts, axis), len(layouts)):
            layouts[i] = rolled(layouts[i], {axis: offset})
    for axis, offset in before.items():
        for i in range(_last_like_source(plan, layouts, axis) + 1):
            layouts[i] = rolled(layouts[i], {axis: offset})
    rounds_in_layouts = zip(plan.rounds, layouts[1:-1:2], layouts[2:-1:2], strict=True)
    rounds = tuple(Round(r.steps, source, target) for r, source, target in rounds_in_layouts)
    return with_forecast(plan, source=layouts[0], rounds=rounds, result=layouts[-1])


def _first_like_result(plan: Plan, layouts: list[Layout], axis: int) -> int:
    """Return the number of the first layout that passes an axis on to the result unchanged."""
    last = len(layouts) - 1
    if not plan.ends_in_round or layouts[last - 1].axes[axis] != layouts[last].axes[axis]:
        return last
    first = last - 1
    while first > 1 and _is_passed_on(plan, layouts, first - 1, axis):
        first -= 1
    return first


def _last_like_source(plan: Plan, layouts: list[Layout], axis: int) -> int:
    """Return the number of the last layout of a round's result like the source along an axis.

    It is 0, that of the source, if the first round transforms the axis.
    """
    last = 0
    end = 2 * (len(plan.rounds) - plan.ends_in_round)
    while (
        last < end
        and _is_passed_on(plan, layouts, last, axis)
        and _is_passed_on(plan, layouts, last + 1, axis)
    ):
        last += 2
    return last


def _is_passed_on(plan: Plan, layouts: list[Layout], i: int, axis: int) -> bool:
    """Return whether an axis is the same in layouts i and i + 1, and its blocks stay."""
    if layouts[i].axes[axis] != layouts[i + 1].axes[axis]:
        return False
    number = i // 2
    leads_through_round = i % 2 == 1
    if leads_through_round:
        return all(step.axis != axis for step in plan.rounds[number].steps)
    return number >= len(plan.exchanges) or plan.exchanges[number].local


@dataclass(frozen=True)
class PhaseForecast:
    """Forecast of one phase of a plan.

    Parameters
    ----------
    name : str
        ``"round"`` or ``"unpack"``, or a part of a round: ``"gather"``, ``"fft"``.
    index : int
        Number of the round, or of the round that an exchange leads to, from 1.
    count : int
        Number of blocks.
    nbytes : int
        Bytes of its results.
    flops : float
        Floating point operations.
    seconds : float
        Time of one thread that does all of it.
    """

    name: str
    index: int
    count: int
    nbytes: int
    flops: float
    seconds: float

    @property
    def bytes_per_second(self) -> float:
        """Speed of one thread by the cost model; 0 without work."""
        return self.nbytes / self.seconds if self.seconds else 0.0


def phase_forecasts(plan: Plan) -> tuple[PhaseForecast, ...]:
    """Return the forecasts of the phases of a plan, in their order.

    The bytes of a round are those of its results. On CPUs a round is followed by its parts *gather*
    and *fft*, whose time is included in that of the round.
    """
    phases: list[PhaseForecast] = []
    for exchange, expected in zip(plan.exchanges, plan.expected.rounds, strict=False):
        number = expected.index
        gpu_seconds = expected.blocks * expected.device
        exchange_alone = PhaseForecast(
            name="unpack",
            index=number,
            count=expected.blocks,
            nbytes=exchange.nbytes,
            flops=0.0,
            seconds=expected.gather + expected.handling + (gpu_seconds or expected.fft),
        )
        if number > len(plan.rounds):
            phases.append(exchange_alone)
            continue
        round_ = plan.rounds[number - 1]
        itemsize = np.dtype(plan.dtypes[2 * number - 1]).itemsize
        whole_round = replace(
            exchange_alone,
            name="round",
            nbytes=round_.target.size * itemsize,
            flops=flops(round_),
        )
        phases.append(whole_round)
        if not gpu_seconds:
            phases.append(replace(exchange_alone, name="gather", seconds=expected.gather))
            phases.append(replace(whole_round, name="fft", seconds=expected.fft))
    return tuple(phases)


def plan_summary(plan: Plan) -> dict[str, object]:
    """Return the names and numbers of a plan that a page shows."""
    spec = plan.spec
    expected = plan.expected
    return {
        "name": spec.name,
        "title": spec.title,
        "shape": list(spec.shape),
        "dtype": spec.dtype,
        "nbytes": spec.nbytes,
        "rounds": plan.notation,
        "exchanges": len(plan.travelling),
        "kernel": plan.kernel,
        "variant": plan.variant,
        "forecast": {
            "flops": expected.flops,
            "seconds": expected.seconds,
            "peak_host": expected.peak_host,
            "bytes_exchanged": expected.bytes_exchanged,
        },
        "memory_limit": plan.machine.memory_limit,
    }


#: Maximum number of blocks that are never merged.
MANY = 64

#: Maximum number of blocks of an array that padding makes much longer.
MOST_PADDED = 1024

#: Minimum factor by which merging reduces the number of blocks.
FEWER = 8


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


def _is_free(request: Request) -> bool:
    """Return whether a plan may have other blocks than the input.

    Rounds and variants that the user named hold for the input's blocks, and with scratch files a
    stored array is read in its own chunks.
    """
    on_disk = request.stored is not None and request.storage == "disk"
    return request.rounds is None and request.variant == "auto" and not on_disk


def _is_in_digits(spec: TransformSpec) -> bool:
    """Return whether an axis of the input or of the result is stored in transposed order."""
    return "transposed" in (*spec.orders_in, *spec.orders_out)


def merged_request(
    spec: TransformSpec,
    request: Request,
    machine: Machine,
    nbytes: int,
) -> Request | None:
    """Return the request with tiny blocks merged; None if that does not pay.

    Merged blocks have at most `nbytes` bytes of complex values; 0 merges none.
    """
    before = block_count(request.chunks)
    if not _is_free(request) or before <= MANY:
        return None
    merged = merged_up_to(spec, request.chunks, nbytes)
    after = block_count(merged)
    if FEWER * after > before:
        return None
    saved_seconds = (before - after) * (task_seconds(machine) + machine.profile.shard)
    if merge_seconds(machine, before, after, spec.nbytes) > saved_seconds:
        return None
    wanted = request.wanted
    wanted_blocks = 0 if wanted is None else block_count(wanted)
    if wanted_blocks > MANY and spec.out_nbytes * FEWER <= wanted_blocks * nbytes:
        wanted = None  # small blocks are cut from larger ones
    return replace(request, chunks=merged, wanted=wanted, stored=None)


def whole_request(
    spec: TransformSpec,
    request: Request,
    machine: Machine,
    nbytes: int,
    tiny: int,
) -> Request:
    """Return the request with blocks that hold whole transforms, if these are small and it pays.

    One thread transforms such a block. That pays if it loses less time than the tasks of a second
    round would take.

    Parameters
    ----------
    spec, request, machine
        The transform, the choices of the caller, and the machine.
    nbytes : int
        Maximum size of such blocks in bytes of complex values; 0 changes nothing.
    tiny : int
        Size in bytes to which very many tiny blocks would be merged otherwise; 0 if they would not.
    """
    if not _is_free(request) or _is_in_digits(spec):
        return request
    whole_chunks = list(request.chunks)
    for axis in spec.axes:
        whole_chunks[axis] = (sum(request.chunks[axis]),)
    before = block_count(request.chunks)
    after = block_count(whole_chunks)
    block_size = math.prod(extents(spec, whole_chunks))
    block_nbytes = block_size * spec.work_dtype.itemsize
    if after == before or not 0 < block_nbytes <= nbytes:
        return request
    if tiny:
        before = max(after, min(before, block_nbytes * after // tiny))
    seconds = _transform_seconds(spec, request, machine, block_size * after)
    lanes = machine.threads * machine.workers
    lost_seconds = seconds / min(after, lanes) - seconds / min(before, lanes)
    saved_seconds = (2 * before - after) * task_seconds(machine)
    if machine.workers > 1:  # each pair of blocks is a task, too
        profile = machine.profile
        pairs = before**2 / after
        saved_seconds += profile.exchange + pairs * (profile.sent_task + profile.sent_shard)
    if lost_seconds > saved_seconds:
        return request
    scale = request.scale * block_size / largest_block(spec, request)
    return replace(request, scale=scale, stored=None)


def _transform_seconds(
    spec: TransformSpec,
    request: Request,
    machine: Machine,
    size: int,
) -> float:
    """Return the seconds of one thread for the FFTs of whole blocks of `size` elements together."""
    library = machine.profile.library(request.kernel, str(spec.work_dtype))
    is_smooth = all(max(factorize(n), default=1) <= 11 for n in spec.lengths)
    # 5 n log2 n operations. Real transforms do half, which Bluestein's algorithm does not.
    work = 2.5 if is_smooth and spec.kind != "c2c" else 5.0
    return work * size * math.log2(max(2, math.prod(spec.lengths))) / library.large_flops


def _exchanges_by_bus(spec: TransformSpec, request: Request, machine: Machine) -> bool:
    """Return whether GPUs of one process transform cut axes of an array in its host memory."""
    is_one_process = machine.shared and machine.workers == 1
    if not is_one_process or machine.gpus < 1 or request.device not in ("auto", "gpu"):
        return False
    if request.verify != "none" or spec.work_dtype.char not in COMPUTED:
        return False
    return any(len(request.chunks[axis]) > 1 for axis in spec.axes)


#: Minimum bytes of the blocks between rounds of GPUs: the host needs about 1 ms for one.
LEAST_BETWEEN = 1 << 26


def request_in_tiles(spec: TransformSpec, request: Request, machine: Machine) -> Request:
    """Return the request with blocks between rounds on GPUs as large as a tile at most.

    A tile is then contiguous in such a block, so that a pass over the bus has narrow rows in one
    direction only. Blocks are not cut below `LEAST_BETWEEN`. They grow up to two tiles where rows
    would else be too narrow: a first round reorders nothing, so that its tiles need half the
    memory. The chunks of the result are like the input's.
    """
    if not _is_free(request) or request.storage == "disk" or _is_in_digits(spec):
        return request
    if not _exchanges_by_bus(spec, request, machine):
        return request
    tile = tile_nbytes(request, machine)
    most = max(LEAST_BETWEEN, tile)
    nbytes = largest_block(spec, request) * spec.work_dtype.itemsize
    # Bytes of a block whose rows are wide enough, if its digits are of equal length.
    wide_nbytes = LEAST_WRITTEN_NBYTES * math.sqrt(math.prod(spec.lengths))
    if nbytes <= most and (nbytes >= wide_nbytes or wide_nbytes > 2 * tile):
        return request
    if most < wide_nbytes:
        block_nbytes: float = 2 * most
    elif nbytes > most:
        block_nbytes = most
    else:
        block_nbytes = wide_nbytes
    return replace(
        request,
        scale=request.scale * block_nbytes / nbytes,
        joined=True,
        wanted=request.wanted or _like_input(spec, request),
        storage="memory",
    )


def _like_input(spec: TransformSpec, request: Request) -> tuple[Chunks, ...]:
    """Return chunks of the result like the input's."""
    return tuple(map(scaled, request.chunks, spec.out_shape))


#: Least memory of a GPU, in units of an array, for a transform of all of it at a time.
WHOLE = 4


def fits_gpu(spec: TransformSpec, request: Request, machine: Machine) -> bool:
    """Return whether the only GPU of the only process transforms an array in host memory at once.

    That is asked for arrays whose transformed axes are cut, which would cross the bus twice.
    """
    if not _exchanges_by_bus(spec, request, machine) or machine.gpus > 1:
        return False
    nbytes = max(math.prod(spec.shape), math.prod(spec.out_shape)) * spec.work_dtype.itemsize
    return WHOLE * nbytes <= machine.devices[0].nbytes


#: Maximum number of blocks per GPU, where several transform blocks while they copy others.
BLOCKS_PER_GPU = 4

#: Minimum bytes of such a block: the host needs about 0.5 ms to enqueue one.
MIN_BLOCK_NBYTES = 1 << 30


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
        axis_chunks += (n * (i + 1) // count - n * i // count for i in range(count))
    return (*chunks[:axis], tuple(axis_chunks), *chunks[axis + 1 :])


def request_on_gpus(
    spec: TransformSpec,
    request: Request,
    count: int,
    cuts: bool = True,
) -> Request:
    """Return the request for an array on GPUs: a block for each, and finer input chunks.

    The chunks of a result on one GPU are like the input's, and parts of the block there.
    """
    if not _is_free(request):
        return request
    size = math.prod(extents(spec, [(n,) for n in spec.shape]))
    if count == 1:
        return _request_on_one_gpu(spec, request, size)
    chunks = request.chunks
    if cuts:
        most_blocks = size * spec.work_dtype.itemsize // (count * MIN_BLOCK_NBYTES)
        chunks = finer(chunks, count * min(BLOCKS_PER_GPU, most_blocks))
    block_size = math.prod(extents(spec, chunks))
    scale = size / (count * block_size) if size else 1.0
    # Twice a block has to be less than the array, which one GPU may not hold.
    scale *= 1 - 2**-20
    return replace(request, chunks=chunks, scale=scale, storage="memory")


def _request_on_one_gpu(spec: TransformSpec, request: Request, size: int) -> Request:
    """Return the request for an array of `size` elements, padding included, as one block."""
    wanted = request.wanted
    if wanted is None and block_count(request.chunks) > 1:
        wanted = _like_input(spec, request)
    block_size = math.prod(extents(spec, request.chunks))
    # Half a spectrum in digits takes a round for each of them.
    needs_rounds = spec.kind != "c2c" and _is_in_digits(spec)
    return replace(
        request,
        scale=size / block_size if size else 1.0,
        wanted=wanted,
        storage="memory",
        max_rounds=request.max_rounds if needs_rounds else 1,
    )


def roomy_request(spec: TransformSpec, request: Request, nbytes: int) -> Request:
    """Return the request with larger blocks, where padding would make very many tiny ones.

    Blocks are as large as the input's. A short filter in a few chunks that is padded to the length
    of its signal would otherwise become thousands of blocks.

    Parameters
    ----------
    spec : TransformSpec
        The transform.
    request : Request
        The choices of the caller.
    nbytes : int
        Maximum size of the larger blocks in bytes of complex values; 0 changes nothing.
    """
    lengths = zip(spec.axes, spec.lengths, strict=True)
    pads_cut_axis = any(n > spec.shape[a] and len(request.chunks[a]) > 1 for a, n in lengths)
    total_size = math.prod(extents(spec, [(n,) for n in spec.shape]))
    if not nbytes or not pads_cut_axis or total_size < FEWER * math.prod(spec.shape):
        return request
    block_size = largest_block(spec, request)
    larger_size = max(nbytes // spec.work_dtype.itemsize, total_size // MOST_PADDED)
    if total_size <= MANY * block_size or larger_size < FEWER * block_size:
        return request
    return replace(request, scale=request.scale * larger_size / block_size)


def with_merging(plan: P, incoming: tuple[Chunks, ...], outgoing: tuple[Chunks, ...] | None) -> P:
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
