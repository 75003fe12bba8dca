"""`Plan`, with its forecast, explanation and drawing; plans of filters and shifts; merging."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from dask_bigfft.decomposition.factors import factorize
from dask_bigfft.decomposition.layout import AxisLayout, Chunks, Layout, scaled
from dask_bigfft.decomposition.rounds import Round, transformed
from dask_bigfft.decomposition.steps import Chirp, Step, axis_program
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
from dask_bigfft.transforms.spec import TransformSpec

#: Bytes of shards that a worker's shuffles hold in memory by distributed's defaults.
SHUFFLE_BUFFERS = (1 << 30) + (100 << 20)


class Plan(PlanData):
    """A transform laid out in rounds and exchanges, with its forecast: see `PlanData`."""

    def forecast(
        self, profile: Profile, *, workers: int = 1, threads: int = 1, gpus: int = 0
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
        shared = self.machine.shared and workers == 1
        machine = Machine(None, threads, workers, SHUFFLE_BUFFERS, profile, gpus, shared)
        return forecast(replace(self, machine=machine))

    explain, __str__, __repr__, _repr_html_ = explain, summary, in_a_line, draw


class CpuPlan:
    """Base of plans without choices: the CPU computes their rounds, in memory of their own."""

    machine, device_memory_limit, settings = Machine(), None, AS_IS
    overwrite = inside = from_rows = assembles = ends_in_round = False
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
        befores = (self.rounds[0].source, *(r.target for r in self.rounds[:-1]))
        pairs = zip(befores, self.rounds, strict=True)
        return tuple(Exchange(a, r.source, self.dtype, self.dtype) for a, r in pairs)


def filter_plans(plan: Plan) -> tuple[FilterPlan, ...]:
    """Return the filters of the axes that use Bluestein's algorithm."""
    found = []
    for program in (program for program in plan.programs if program.bluestein):
        forward = program.steps[: len(program.factors)]
        plain = axis_program(0, program.length, program.factors, bluestein=True).steps
        rounds, used_in = [], 0
        for number, step in enumerate(forward):
            used_in = next(i for i, r in enumerate(plan.rounds) if step in r.steps)
            layout = Layout((plan.rounds[used_in].source.axes[program.axis],))
            own = (_forward(plain[number]),)
            rounds.append(Round(own, layout, transformed(layout, own)))
        chirp = forward[-1].convolve
        assert chirp is not None
        values = plan.spec.work_dtype.str, plan.kernel, plan.verify
        found.append(FilterPlan(program.axis, chirp, tuple(rounds), used_in, *values))
    return tuple(found)


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

    rounds, kernel, verify = (), "scipy", "none"

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
    found = {a: axis.groups[0].offset for a, axis in enumerate(layout.axes)}
    return {a: offset for a, offset in found.items() if offset}


def rolled(layout: Layout, offsets: Offsets) -> Layout:
    """Return the layout with the offsets of some axes set.

    >>> from dask_bigfft.decomposition.layout import plain
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
    pairs = [layout for r in plan.rounds for layout in (r.source, r.target)]
    #: The source, the layouts before and after each round, the result. An odd index is a round's
    #: source, and an exchange precedes it.
    layouts = [plan.source, *pairs, plan.result]
    last, in_round = len(layouts) - 1, plan.ends_in_round

    def passes(i: int, a: int) -> bool:
        """Return whether an axis is the same in layouts i and i + 1, and its blocks stay."""
        if layouts[i].axes[a] != layouts[i + 1].axes[a]:
            return False
        if i % 2:
            return all(step.axis != a for step in plan.rounds[i // 2].steps)
        return i // 2 >= len(plan.exchanges) or plan.exchanges[i // 2].local

    def roll(numbers: range, a: int, offset: int) -> None:
        for i in numbers:
            layouts[i] = rolled(layouts[i], {a: offset})

    for a, offset in after.items():  # of the result, and of layouts that only pass it on
        first = last
        if in_round and layouts[last - 1].axes[a] == layouts[last].axes[a]:
            first = last - 1
            while first > 1 and passes(first - 1, a):
                first -= 1
        roll(range(first, last + 1), a, offset)
    for a, offset in before.items():  # of the source, and of layouts that it is passed to
        number, most = 0, len(plan.rounds) - in_round
        while number < most and passes(2 * number, a) and passes(2 * number + 1, a):
            number += 1
        roll(range(2 * number + 1), a, offset)
    rounds = tuple(
        Round(round_.steps, *layouts[2 * i + 1 : 2 * i + 3]) for i, round_ in enumerate(plan.rounds)
    )
    return with_forecast(plan, source=layouts[0], rounds=rounds, result=layouts[-1])


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
    found = []
    for exchange, expected in zip(plan.exchanges, plan.expected.rounds, strict=False):
        number, device = expected.index, expected.blocks * expected.device
        seconds = expected.gather + expected.handling + (device or expected.fft)
        if number > len(plan.rounds):
            parts = [("unpack", exchange.nbytes, 0.0, seconds)]
        else:
            round_ = plan.rounds[number - 1]
            nbytes = round_.target.size * np.dtype(plan.dtypes[2 * number - 1]).itemsize
            work = flops(round_)
            gather = "gather", exchange.nbytes, 0.0, expected.gather
            parts = [("round", nbytes, work, seconds), gather, ("fft", nbytes, work, expected.fft)]
            parts = parts[:1] if device else parts
        for name, made, work, seconds in parts:
            found.append(PhaseForecast(name, number, expected.blocks, made, work, seconds))
    return tuple(found)


def plan_summary(plan: Plan) -> dict[str, object]:
    """Return the names and numbers of a plan that a page shows."""
    spec, forecast = plan.spec, plan.expected
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
            name: getattr(forecast, name)
            for name in ("flops", "seconds", "peak_host", "bytes_exchanged")
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
    spec: TransformSpec, chunks: tuple[Chunks, ...], nbytes: int
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
    order = [axis for axis in spec.axes if len(chunks[axis]) > 1]
    room = nbytes // spec.work_dtype.itemsize * (2 if spec.kind == "r2c" else 1)
    lengths, found = dict(zip(spec.axes, spec.lengths, strict=True)), list(chunks)

    def beside(axis: int) -> int:
        return math.prod(max(1, n) for i, n in enumerate(extents(spec, found)) if i != axis)

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


def _is_free(request: Request) -> bool:
    """Return whether a plan may have other blocks than the input.

    Rounds and variants that the user named hold for the input's blocks, and with scratch files a
    stored array is read in its own chunks.
    """
    on_disk = request.stored is not None and request.storage == "disk"
    return request.rounds is None and request.variant == "auto" and not on_disk


def merged_request(
    spec: TransformSpec, request: Request, machine: Machine, nbytes: int
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
    saved = (before - after) * (task_seconds(machine) + machine.profile.shard)
    if merge_seconds(machine, before, after, spec.nbytes) > saved:
        return None
    wanted = request.wanted
    blocks = 0 if wanted is None else block_count(wanted)
    if blocks > MANY and spec.out_nbytes * FEWER <= blocks * nbytes:
        wanted = None  # small blocks are cut from larger ones
    return replace(request, chunks=merged, wanted=wanted, stored=None)


def whole_request(
    spec: TransformSpec, request: Request, machine: Machine, nbytes: int, tiny: int
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
    free = _is_free(request) and "transposed" not in (*spec.orders_in, *spec.orders_out)
    whole = tuple((sum(c),) if a in spec.axes else c for a, c in enumerate(request.chunks))
    before, after = block_count(request.chunks), block_count(whole)
    block = math.prod(extents(spec, whole))
    size = block * spec.work_dtype.itemsize
    if not free or after == before or not 0 < size <= nbytes:
        return request
    if tiny:
        before = max(after, min(before, size * after // tiny))
    profile, lanes = machine.profile, machine.threads * machine.workers
    speed = profile.library(request.kernel, str(spec.work_dtype)).large_flops
    smooth = all(max(factorize(n), default=1) <= 11 for n in spec.lengths)
    work = 2.5 if smooth and spec.kind != "c2c" else 5.0  # real transforms do half
    seconds = work * block * after * math.log2(max(2, math.prod(spec.lengths))) / speed
    lost = seconds / min(after, lanes) - seconds / min(before, lanes)
    saved = (2 * before - after) * task_seconds(machine)
    if machine.workers > 1:  # each pair of blocks is a task, too
        saved += profile.exchange + before**2 / after * (profile.sent_task + profile.sent_shard)
    scale = request.scale * block / largest_block(spec, request)
    return replace(request, scale=scale, stored=None) if lost <= saved else request


def _exchanges_by_bus(spec: TransformSpec, request: Request, machine: Machine) -> bool:
    """Return whether GPUs of one process transform cut axes of an array in its host memory."""
    cut = any(len(request.chunks[axis]) > 1 for axis in spec.axes)
    alone = machine.shared and machine.workers == 1 <= machine.gpus and request.verify == "none"
    taken = request.device in ("auto", "gpu") and spec.work_dtype.char in COMPUTED
    return cut and alone and taken


#: Minimum bytes of the blocks between rounds of GPUs: the host needs about 1 ms for one.
LEAST_BETWEEN = 1 << 26


def request_in_tiles(spec: TransformSpec, request: Request, machine: Machine) -> Request:
    """Return the request with blocks between rounds on GPUs as large as a tile at most.

    A tile is then contiguous in such a block, so that a pass over the bus has narrow rows in one
    direction only. Blocks are not cut below `LEAST_BETWEEN`. They grow up to two tiles where rows
    would else be too narrow: a first round reorders nothing, so that its tiles need half the
    memory. The chunks of the result are like the input's.
    """
    natural = "transposed" not in (*spec.orders_in, *spec.orders_out)
    free = _is_free(request) and request.storage != "disk" and natural
    if not free or not _exchanges_by_bus(spec, request, machine):
        return request
    tile = tile_nbytes(request, machine)
    most = max(LEAST_BETWEEN, tile)
    nbytes = largest_block(spec, request) * spec.work_dtype.itemsize
    wide = LEAST_WRITTEN_NBYTES * math.sqrt(math.prod(spec.lengths))  # rows of equal digits
    if nbytes <= most and (nbytes >= wide or wide > 2 * tile):
        return request
    size = 2 * most if most < wide else most if nbytes > most else wide
    wanted = request.wanted or _like_input(spec, request)
    scale = request.scale * size / nbytes
    return replace(request, scale=scale, joined=True, wanted=wanted, storage="memory")


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


#: Blocks that each of several GPUs transforms while it copies others, and minimum bytes per block:
#: the host needs about 0.5 ms to enqueue one.
BLOCKS_EACH, LEAST_EACH = 4, 1 << 30


def finer(chunks: tuple[Chunks, ...], blocks: int) -> tuple[Chunks, ...]:
    """Return chunks cut along the axis that has most of them, into about `blocks` blocks or more.

    >>> finer(((4,), (6, 6)), 5)
    ((4,), (2, 2, 2, 2, 2, 2))
    """
    axis = max(range(len(chunks)), key=lambda axis: len(chunks[axis]))
    parts = -(-blocks // max(1, block_count(chunks)))
    cut = list[int]()
    for n in chunks[axis]:
        count = max(1, min(n, parts))
        cut += (n * (i + 1) // count - n * i // count for i in range(count))
    return (*chunks[:axis], tuple(cut), *chunks[axis + 1 :])


def request_on_gpus(
    spec: TransformSpec, request: Request, count: int, cuts: bool = True
) -> Request:
    """Return the request for an array on GPUs: a block for each, and finer input chunks.

    The chunks of a result on one GPU are like the input's, and parts of the block there.
    """
    if not _is_free(request):
        return request
    size = math.prod(extents(spec, [(n,) for n in spec.shape]))
    chunks, wanted = request.chunks, request.wanted
    if count > 1 and cuts:
        each = min(BLOCKS_EACH, size * spec.work_dtype.itemsize // (count * LEAST_EACH))
        chunks = finer(chunks, count * each)
    block = math.prod(extents(spec, chunks))
    if wanted is None and count == 1 and block_count(request.chunks) > 1:
        wanted = _like_input(spec, request)
    scale = size / (count * block) if size else 1.0
    if count > 1:
        scale *= 1 - 2**-20  # twice a block is less than the array, which one GPU may not hold
    # Half a spectrum in digits takes a round for each of them.
    in_digits = "transposed" in (*spec.orders_in, *spec.orders_out) and spec.kind != "c2c"
    rounds = request.max_rounds if count > 1 or in_digits else 1
    free = replace(request, scale=scale, wanted=wanted, storage="memory", max_rounds=rounds)
    return replace(free, chunks=chunks)


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
    lengths = dict(zip(spec.axes, spec.lengths, strict=True))
    cut = any(n > spec.shape[a] and len(request.chunks[a]) > 1 for a, n in lengths.items())
    total = math.prod(extents(spec, [(n,) for n in spec.shape]))
    block = largest_block(spec, request)
    much = cut and total >= FEWER * math.prod(spec.shape)
    wanted = max(nbytes // spec.work_dtype.itemsize, total // MOST_PADDED)
    if not much or not nbytes or total <= MANY * block or wanted < FEWER * block:
        return request
    return replace(request, scale=request.scale * wanted / block)


def with_merging(plan: P, incoming: tuple[Chunks, ...], outgoing: tuple[Chunks, ...] | None) -> P:
    """Return a plan for merged blocks with the merging and cutting of the array's own chunks.

    The plan may merge blocks itself, which is then replaced.
    """
    found, needed = replace(plan, incoming=incoming, outgoing=outgoing), plan.expected
    pairs = zip(merging(found), merging(plan), strict=True)
    nbytes, tasks, seconds = (after - before for after, before in pairs)
    expected = replace(
        needed,
        peak_host=int(needed.peak_host + nbytes),
        tasks=int(needed.tasks + tasks),
        seconds=needed.seconds + seconds,
    )
    return replace(found, expected=expected)
