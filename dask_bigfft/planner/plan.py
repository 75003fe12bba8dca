"""`Plan`: what the planner returns, with its forecast, its explanation and its drawing.

Pure: imports this room.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from dask_bigfft.decomposition.layout import AxisLayout, Chunks, Layout
from dask_bigfft.decomposition.rounds import Round, transformed
from dask_bigfft.decomposition.steps import Chirp, Step, axis_program
from dask_bigfft.errors import ArgumentTypeError, parse_count, refuse
from dask_bigfft.planner.cost import (
    block_count,
    forecast,
    merge_seconds,
    merging,
    task_seconds,
    with_forecast,
)
from dask_bigfft.planner.explain import draw, in_a_line, summary
from dask_bigfft.planner.explain import explain as explained
from dask_bigfft.planner.plan_data import (
    Exchange,
    Forecast,
    Machine,
    P,
    PlanData,
    Request,
    largest_block,
)
from dask_bigfft.planner.profile import Profile
from dask_bigfft.planner.seconds import flops
from dask_bigfft.transforms.spec import TransformSpec

#: Bytes of shards that a worker's shuffles hold in memory, as distributed is set by itself.
SHUFFLE_BUFFERS = (1 << 30) + (100 << 20)


class Plan(PlanData):
    """A transform laid out in rounds and exchanges, with its forecast: see `PlanData`."""

    def forecast(
        self, profile: Profile, *, workers: int = 1, threads: int = 1, cards: int = 0
    ) -> Forecast:
        """Return what the plan would need on another machine, which nobody has to have.

        What CPU threads and devices share is reckoned as done by devices alone, where there are
        some.

        Parameters
        ----------
        profile : Profile
            How fast it is.
        workers, threads : int
            Processes, and threads of each.
        cards : int
            Devices of each process.

        Raises
        ------
        ArgumentError, ArgumentTypeError
            Where a number is not whole, or below 1 (0 for `cards`).
        """
        parse_count("workers", workers, 1)
        parse_count("threads", threads, 1)
        parse_count("cards", cards, 0)
        if not isinstance(profile, Profile):
            refuse("profile", profile, "a Profile, as calibrate returns", kind=ArgumentTypeError)
        shared = self.machine.shared and workers == 1
        machine = Machine(None, threads, workers, SHUFFLE_BUFFERS, profile, cards, shared)
        return forecast(replace(self, machine=machine))

    def explain(self) -> str:
        """Return what was chosen, why, what it will need, and what else was considered."""
        return explained(self)

    def __str__(self) -> str:
        return summary(self)

    def __repr__(self) -> str:
        return in_a_line(self)

    def _repr_html_(self) -> str:
        return draw(self)


@dataclass(frozen=True)
class FilterPlan:
    """Rounds that make the spectrum of one axis' filter.

    Parameters
    ----------
    axis : int
        Axis of the array that the filter belongs to.
    chirp : Chirp
        The filter.
    rounds : tuple of Round
        Of a one-dimensional array; the last one's blocks are the axis' blocks.
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

    #: A filter's last round leaves its digits where they are.
    ends_in_round = False

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtype of the blocks before and after each round."""
        return (self.dtype,) * (2 * len(self.rounds))

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchange before each round; the one before the first is never made."""
        befores = (self.rounds[0].source, *(r.target for r in self.rounds[:-1]))
        pairs = zip(befores, self.rounds, strict=True)
        return tuple(Exchange(a, r.source, self.dtype, self.dtype) for a, r in pairs)

    @property
    def moves(self) -> tuple[bool, ...]:
        """For each exchange, whether anything travels."""
        return tuple(not exchange.local for exchange in self.exchanges)


def filter_plans(plan: Plan) -> tuple[FilterPlan, ...]:
    """Filters of a plan's axes that use Bluestein's algorithm."""
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
    """The forward FFT of a step, with its twiddle but without chirp and convolution."""
    if step.convolve is None:
        return replace(step, chirp_in=None, chirp_out=None)
    target = replace(step.source, stage=1)  # only its size matters after the last round
    return replace(step, target=target, convolve=None, twiddle=None, chirp_in=None, chirp_out=None)


Offsets = Mapping[int, int]


@dataclass(frozen=True)
class ShiftPlan:
    """One exchange that stores some axes in another order: no round at all.

    Parameters
    ----------
    source, result : Layout
        Blocks before and after; for a shift cut alike, and axes of the result have offsets.
    dtype : str
        Of the elements.
    part : str
        What its tasks are called.
    """

    source: Layout
    result: Layout
    dtype: str
    part: str = "shift"

    rounds: tuple[Round, ...] = ()
    kernel: str = "scipy"
    verify: str = "none"

    #: The result's blocks come from an exchange.
    ends_in_round = False

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Dtype of the blocks."""
        return (self.dtype,)

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The shift."""
        return (Exchange(self.source, self.result, self.dtype, self.dtype),)

    @property
    def moves(self) -> tuple[bool, ...]:
        """For each exchange, whether anything travels."""
        return tuple(not exchange.local for exchange in self.exchanges)

    @property
    def is_shift(self) -> bool:
        """Return whether nothing but the first element of axes changes."""
        return rolled(self.source, self.offsets) == self.result

    @property
    def offsets(self) -> dict[int, int]:
        """Element with which each shifted axis of the result begins."""
        return offsets_of(self.result)

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Chunks of the result."""
        return tuple(axis.groups[0].chunks for axis in self.result.axes)


def offsets_of(layout: Layout) -> dict[int, int]:
    """Offsets of the axes that have one."""
    found = {a: axis.groups[0].offset for a, axis in enumerate(layout.axes)}
    return {a: offset for a, offset in found.items() if offset}


def rolled(layout: Layout, offsets: Offsets) -> Layout:
    """The layout with the offsets of some axes set.

    >>> from dask_bigfft.decomposition.layout import plain
    >>> offsets_of(rolled(Layout((plain(4, (4,)), plain(6, (3, 3)))), {1: 8}))
    {1: 2}
    """
    axes = list(layout.axes)
    for a, offset in offsets.items():
        group = axes[a].groups[0]
        axes[a] = AxisLayout((replace(group, offset=offset % max(group.size, 1)),))
    return Layout(tuple(axes))


def whole_axes(layout: Layout) -> set[int]:
    """Axes of flat blocks that hold all of their digits, neither padded nor cropped."""
    return {
        a
        for a, axis in enumerate(layout.axes)
        if len(axis.groups) == 1 and axis.groups[0].bounds[-1] == axis.groups[0].size
    }


def shifted_plan(plan: Plan, before: Offsets, after: Offsets) -> Plan:
    """A plan for an input, and a result, that are stored shifted.

    Parameters
    ----------
    plan : Plan
        Of the same transform without shifts.
    before, after : mapping of int to int
        Element with which each axis of the input begins, and of the result. The input's axes
        are whole.

    Returns
    -------
    Plan
        With the forecast of what it does. Its chunks are those of `plan`.
    """
    pairs = [layout for r in plan.rounds for layout in (r.source, r.target)]
    #: Of the source, before and after the steps of each round, of the result. An odd number is that
    #: of a round's blocks before its steps; an exchange lies before it.
    layouts = [plan.source, *pairs, plan.result]
    last, in_round = len(layouts) - 1, plan.ends_in_round

    def passes(i: int, a: int) -> bool:
        """Return whether an axis comes from layout i to i + 1 as it is, in blocks that stay."""
        if layouts[i].axes[a] != layouts[i + 1].axes[a]:
            return False
        if i % 2:
            return all(step.axis != a for step in plan.rounds[i // 2].steps)
        return i // 2 >= len(plan.exchanges) or plan.exchanges[i // 2].local

    def roll(numbers: range, a: int, offset: int) -> None:
        for i in numbers:
            layouts[i] = rolled(layouts[i], {a: offset})

    for a, offset in after.items():  # of the result, and of the layouts that only hand it on
        first = last
        if in_round and layouts[last - 1].axes[a] == layouts[last].axes[a]:
            first = last - 1
            while first > 1 and passes(first - 1, a):
                first -= 1
        roll(range(first, last + 1), a, offset)
    for a, offset in before.items():  # of the source, and of those to which it is handed on
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
        Bytes that it makes.
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
        """Speed of one thread by the cost model; 0 where nothing is to be done."""
        return self.nbytes / self.seconds if self.seconds else 0.0


def phase_forecasts(plan: Plan) -> tuple[PhaseForecast, ...]:
    """Return what each phase of a plan is expected to take, in the order in which they come.

    A round's bytes are those of its blocks afterwards. The parts *gather* and *fft* of a round
    follow it; their times are in its own.
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


def plan_card(plan: Plan) -> dict[str, object]:
    """Return what a page shows of a plan: names and numbers, nothing else."""
    spec, forecast = plan.spec, plan.expected
    return {
        "name": spec.name,
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


#: Blocks of which there are at most so many are left as they are.
MANY = 64

#: How many blocks of an array that padding makes much longer there are at most.
MOST_PADDED = 1024

#: How many times fewer blocks there have to be for merging to be worth a task for each.
FEWER = 8


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

    Rounds and variants that the user named hold for the blocks that come in, and with scratch files
    a stored array is read in its own chunks. Blocks of at most `nbytes` are made, as complex values
    take it; 0 merges none.
    """
    on_disk = request.stored is not None and request.carrier == "disk"
    free = request.rounds is None and request.variant == "auto" and not on_disk
    before = block_count(request.chunks)
    if not free or before <= MANY:
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


def with_merging(plan: P, incoming: tuple[Chunks, ...], outgoing: tuple[Chunks, ...] | None) -> P:
    """Return a plan for merged blocks as one for the array as it comes in and goes out.

    The plan may have merged some of them again.
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
