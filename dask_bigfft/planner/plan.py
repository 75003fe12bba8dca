"""`Plan`: the stages of a transform, their operands, and the forecast.

Texts, drawings and forecasts of plans are functions of other files (`explain`, `cost`), which
import this one. The methods that users call import them at first use.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

from dask_bigfft.arrays import Block
from dask_bigfft.errors import parse_count, parse_flag, parse_type, raise_invalid
from dask_bigfft.planner.operators import blocks_before_next
from dask_bigfft.planner.profile import Profile, decode, encode
from dask_bigfft.planner.request import DeviceChoice, Machine
from dask_bigfft.planner.rows import BY_CALLER, NOT_STORED, ResultWriting, Stored, is_split
from dask_bigfft.planner.stages import (
    Exchange,
    SharedLayouts,
    Stage,
    block_dtypes,
    no_shared_layouts,
    shared_on_cpu,
    stages_of,
    with_buffers,
    written_in_order,
)
from dask_bigfft.planner.tile_plan import AS_IS, DeviceSettings
from dask_bigfft.transforms.exchanges import Mirror
from dask_bigfft.transforms.layout import (
    AxisLayout,
    Chunks,
    Digit,
    Group,
    HashedOnce,
    Layout,
    flattened,
    scaled,
)
from dask_bigfft.transforms.rounds import Round, numbered, transformed
from dask_bigfft.transforms.spec import FactorSpec, TransformSpec, rearranged_spec
from dask_bigfft.transforms.steps import (
    OPTIONAL,
    AxisProgram,
    Chirp,
    Divisor,
    Step,
    axis_program,
)

#: Bytes of shards that a worker's shuffles hold in memory by distributed's defaults.
SHUFFLE_BUFFERS = (1 << 30) + (100 << 20)


@dataclass(frozen=True)
class RoundForecast:
    """Forecast seconds of an exchange and the round that follows it.

    Parameters
    ----------
    index : int
        Number of the round, from 1. The last exchange alone has one more than the last round.
    blocks : int
        Number of blocks after the exchange.
    seconds : float
        Wall-clock time.
    gather, fft, handling : float
        Sums over threads: gathering blocks and storing tiles; FFTs with their twiddles; Python's
        work for blocks, shards and tiles.
    device : float
        Seconds of a GPU per block, or for its share of a block; 0 on the CPU.
    travel : float
        Seconds of the network or the disk.
    scheduling : float
        Seconds of the scheduler, and of waiting for the last block.
    bound : str
        Name of the longest part.
    share : float
        Fraction of the round that GPUs do.
    """

    index: int
    blocks: int
    seconds: float
    gather: float
    fft: float
    handling: float
    device: float
    travel: float
    scheduling: float
    bound: str
    share: float = 0.0


@dataclass(frozen=True)
class Forecast:
    """Forecast memory, tasks and seconds of a plan.

    Parameters
    ----------
    bytes_exchanged : int
        Bytes that all exchanges together move (local ones move nothing).
    peak_host : int
        Peak bytes of host memory per process.
    scratch : int
        Bytes of scratch files.
    tasks : int
        Tasks in the graph.
    flops : float
        Floating point operations of all FFTs, 5 n log2 n each.
    seconds : float
        Time by the cost model, from the machine's profile.
    rounds : tuple of RoundForecast
        Forecast of each round and of the last exchange.
    """

    bytes_exchanged: int
    peak_host: int
    scratch: int
    tasks: int
    flops: float
    seconds: float
    rounds: tuple[RoundForecast, ...] = ()


#: Forecast of a plan that is a part of another one.
NO_FORECAST = Forecast(
    bytes_exchanged=0,
    peak_host=0,
    scratch=0,
    tasks=0,
    flops=0.0,
    seconds=0.0,
)

_LETTERS = "XYZWVU"


def axis_letter(axis: int, ndim: int) -> str:
    """Return the name of an axis as in the papers: X is the last, Y the one before.

    >>> axis_letter(1, 2), axis_letter(0, 3), axis_letter(0, 9)
    ('X', 'Z', 'A0')
    """
    place = ndim - 1 - axis
    return _LETTERS[place] if place < len(_LETTERS) else f"A{axis}"


@dataclass(frozen=True)
class Operand:
    """Values that a round of a plan multiplies by.

    A product names its operand by the number in `Plan.operands`.

    Parameters
    ----------
    name : str
        Name in those of tasks and files.
    stage : int
        Number of the stage whose round multiplies, from 0.
    axes : tuple of int
        Axes of the multiplied blocks that the operand has, in order. It is the same along others.
    plan : Plan or None
        Plan that makes the operand, in the blocks of the round; None for a transfer function, which
        is evaluated in the round.
    values : Chirp or str
        Function of the index that is the plan's input, in place of an array; token of a transfer
        function.
    factor : FactorSpec or None
        Lazy array of which a transfer function is made: the input of the plan, or an array that
        each task of the round gets as a whole.
    """

    name: str
    stage: int
    axes: tuple[int, ...]
    plan: "Plan | None"
    values: Chirp | str
    factor: FactorSpec | None = None

    def block(self, block: Block) -> Block:
        """Return the index of the operand's block that multiplies a block of the round."""
        if self.keeps_axes:
            return tuple(number if axis in self.axes else 0 for axis, number in enumerate(block))
        return tuple(block[axis] for axis in self.axes)

    @property
    def keeps_axes(self) -> bool:
        """True if blocks of the operand have length 1 along axes on which it is the same.

        Otherwise they do not have these axes.
        """
        return self.factor is not None and self.factor.role == "samples"

    @property
    def nbytes(self) -> int:
        """Bytes of the operand."""
        if self.factor is None:
            return 0 if self.plan is None else self.plan.spec.nbytes
        if self.plan is None or not self.plan.rounds:
            return self.factor.nbytes
        return self.plan.result.size * self.plan.spec.work_dtype.itemsize


class PublicNames:
    """Mixin of objects whose completion shows public names alone: `dir` and the reference.

    A class lists them in `_public_names`. Without a list, they are all names without an underscore.
    The other attributes serve the package itself and may change.
    """

    _public_names: ClassVar[tuple[str, ...]] = ()

    def __dir__(self) -> list[str]:
        if self._public_names:
            return list(self._public_names)
        return [name for name in super().__dir__() if not name.startswith("_")]


#: Fields of a plan that its stages and operands do not depend on.
NOTES = frozenset({"expected", "rejected", "reason", "fallback"})


@dataclass(frozen=True)
class Plan(PublicNames, HashedOnce):
    """A transform laid out in rounds and exchanges, with its forecast.

    A plan without transformed axes rearranges blocks in one exchange, or makes an operand of
    another plan.

    Parameters
    ----------
    spec : TransformSpec
        The transform.
    programs : tuple of AxisProgram
        The steps of each transformed axis, in the order of ``spec.axes``.
    source : Layout
        The blocks of the input array.
    rounds : tuple of Round
        In order.
    result : Layout
        The blocks of the result.
    variant : str
        Data movement within an axis.
    kernel : str
        FFT library.
    machine : Machine
        Machine that the plan was made for.
    expected : Forecast
        Forecast time and memory.
    rejected : tuple of (str, Forecast)
        The runners-up: their rounds and forecasts.
    reason : str
        Reason for this plan, without the comparison with the runners-up.
    device : {"auto", "cpu", "gpu", "hybrid"}
        Kind of executor of the rounds.
    device_memory_limit : int or None
        Bytes of a GPU that may be used; None lets the process that runs the graph decide.
    shares : tuple of float
        Modelled fraction of each round for the GPUs of a process, where CPU threads may share it.
    overwrite : bool
        Whether the input blocks may be overwritten.
    inside : bool
        Whether rounds write their results back into the input blocks (`overwritten`).
    storage : {"memory", "disk"}
        Storage of blocks between rounds: memory, or scratch files.
    verify : {"none", "energy", "checksum"}
        Checks of the running transform.
    from_rows : bool
        Whether the first round, with scratch files, reads its blocks from the stored array
        directly.
    settings : DeviceSettings
        Settings of the GPU pipelines.
    stored : Stored
        Layout of the input array in files.
    writing : ResultWriting
        Memory that writing a chunk of the result takes.
    assembles : bool
        Whether tasks assemble blocks while shards, or rows, arrive from files. This is slower than
        one gather of all shards, but takes memory for one block less.
    reopened : bool
        Whether the stored array is reopened in larger blocks, which are read a few chunks at a
        time.
    incoming : tuple of chunks or None
        Chunks of the input array, if its tiny blocks are merged into those of `source`.
    outgoing : tuple of chunks or None
        Chunks of the returned array, if they are cut from the blocks of `result`.
    fallback : str
        Reason why a faster FFT library is not used; empty without a fallback.
    mirror : Mirror or None
        Mirror image that completes half a spectrum, for a plan of one exchange without rounds.
    """

    _public_names = (
        "spec",
        "rounds",
        "exchanges",
        "travelling",
        "chunks",
        "notation",
        "kernel",
        "device",
        "storage",
        "machine",
        "expected",
        "rejected",
        "reason",
        "explain",
        "forecast",
        "to_json",
        "from_json",
    )

    spec: TransformSpec
    programs: tuple[AxisProgram, ...]
    source: Layout
    rounds: tuple[Round, ...]
    result: Layout
    variant: str
    kernel: str
    machine: Machine
    expected: Forecast
    rejected: tuple[tuple[str, Forecast], ...] = ()
    reason: str = ""
    device: DeviceChoice = "auto"
    device_memory_limit: int | None = None
    shares: tuple[float, ...] = ()
    overwrite: bool = False
    inside: bool = False
    storage: str = "memory"
    verify: str = "none"
    from_rows: bool = False
    settings: DeviceSettings = AS_IS
    stored: Stored = NOT_STORED
    writing: ResultWriting = BY_CALLER
    assembles: bool = False
    reopened: bool = False
    incoming: tuple[Chunks, ...] | None = None
    outgoing: tuple[Chunks, ...] | None = None
    fallback: str = ""
    mirror: Mirror | None = field(default=None, metadata=OPTIONAL)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The exchange before each round with the round, and the last exchange if it is needed."""
        sources = [self.source]
        if self.inside:
            sources += [self.input_after(number) for number in range(1, len(self.rounds) + 1)]
        else:
            sources += blocks_before_next(self.rounds, self.spec.lengths_back)
        stages = stages_of(
            sources,
            self.rounds,
            None if self.ends_in_round else self.result,
            dtypes=(self.spec.dtype, *self.dtypes),
        )
        return tuple(map(self._mirrored, stages))

    @cached_property
    def forecast_stages(self) -> tuple[Stage, ...]:
        """The stages with the shared buffers and scratch files on the plan's machine."""
        shared_layouts = no_shared_layouts(len(self.stages), len(self.rounds))
        if self.machine.shared and self.machine.workers == 1:
            shared_layouts = self.shared_layouts
        return with_buffers(self.stages, shared_layouts, self.moves)

    def _mirrored(self, stage: Stage) -> Stage:
        """Return a stage with the mirror image that completes half a spectrum, if it needs one."""
        exchange = stage.exchange
        mirror = self._mirror(exchange.source, exchange.target)
        if mirror is None:
            return stage
        return replace(stage, exchange=replace(exchange, mirror=mirror))

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchange before each round, and the one after the last unless it is not needed."""
        return tuple(stage.exchange for stage in self.stages)

    def __getstate__(self) -> dict[str, Any]:
        # Tasks on workers need the stages and operands that have been worked out.
        state = self.__dict__.copy()
        state.pop("_hash", None)
        state.pop("forecast_stages", None)
        return state

    def changed(self, **changes: Any) -> Self:
        """Return a copy with other values of some fields, faster than `dataclasses.replace`.

        If these are notes, the copy has the stages and operands that have been worked out.
        """
        if not NOTES.issuperset(changes):
            return super().changed(**changes)
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__ | changes)
        copy.__dict__.pop("_hash", None)
        copy.__dict__.pop("in_full", None)
        return copy

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """The operands of products in rounds.

        They are the transfer function of an operator, or the filters of axes that use Bluestein's
        algorithm.
        """
        if self.spec.transfer:
            return (_transfer_operand(self),)
        programs = [program for program in self.programs if program.bluestein]
        return tuple(_filter_operand(self, program) for program in programs)

    def operands_of(self, number: int) -> dict[int, Operand]:
        """Return the operands by which the round of a stage multiplies, by their numbers."""
        operands = enumerate(self.operands)
        return {index: operand for index, operand in operands if operand.stage == number}

    @cached_property
    def shared_layouts(self) -> SharedLayouts:
        """The shared buffers of blocks, if all tasks run in one process."""
        stages = self.stages
        if self.storage == "disk":
            return no_shared_layouts(len(stages), len(self.rounds))
        if self.machine.gpus == 0 or self.device == "cpu":
            return shared_on_cpu(stages, self.result)
        # GPUs read shards directly and write new blocks. Only before an exchange without a round
        # they write to a shared buffer, if rows are wide: these blocks do not cross the bus again.
        ends_in_exchange = bool(self.rounds) and stages[-1].round_ is None
        if not ends_in_exchange or self.device == "hybrid" or self.verify != "none":
            return no_shared_layouts(len(stages), len(self.rounds))
        return written_in_order(self.rounds, stages[-1].exchange)

    @cached_property
    def ends_in_round(self) -> bool:
        """Return whether the last round's blocks are the result's, so that no exchange follows."""
        if not self.rounds or self.inside:
            return False
        last = self.rounds[-1].target
        return self.result in (last, flattened(last))

    def input_after(self, number: int) -> Layout:
        """Return the layout of the input blocks after some rounds were written back into them."""
        if number == 0:
            return self.source
        step_axes = [step.axis for round_ in self.rounds[:number] for step in round_.steps]
        axes = list(self.source.axes)
        for program in self.programs:
            digits = program.in_place(step_axes.count(program.axis))
            chunks = axes[program.axis].groups[0].chunks
            axes[program.axis] = AxisLayout((Group(digits, chunks),))
        return Layout(tuple(axes))

    @cached_property
    def dtypes(self) -> tuple[str, ...]:
        """Dtype of the blocks before and after each round, and of the result."""
        return block_dtypes(self.spec, self.rounds)

    def _mirror(self, source: Layout, target: Layout) -> Mirror | None:
        """Return the mirror image of an exchange in which half a spectrum changes its digits."""
        axis = self.spec.real_axis
        if axis is None:
            return self.mirror
        program = self.programs[-1]
        halved_before = _halved_digits(source.axes[axis])
        halved_after = _halved_digits(target.axes[axis])
        if program.mirror is None or not halved_before or halved_before == halved_after:
            return None
        spectrum_stage = 0 if self.spec.kind == "c2r" else program.target[0].stage
        if halved_before[0].stage != spectrum_stage:
            return None
        others = tuple(a for a in self.spec.axes if a != axis)
        return Mirror(axis, program.length, others)

    @property
    def is_transform(self) -> bool:
        """Return whether axes are transformed, not only rearranged."""
        return bool(self.spec.axes)

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]:
        """Chunks of the returned array."""
        if self.outgoing is not None:
            return self.outgoing
        return tuple(axis.groups[0].chunks for axis in self.result.axes)

    @property
    def chunks_in(self) -> tuple[Chunks, ...]:
        """Chunks of the input array."""
        if self.incoming is not None:
            return self.incoming
        return tuple(axis.groups[0].chunks for axis in self.source.axes)

    @property
    def fits_memory(self) -> bool:
        """Return whether the forecast memory is within the machine's limit, if there is one."""
        limit = self.machine.memory_limit
        return limit is None or self.expected.peak_host <= limit

    @property
    def merges(self) -> bool:
        """Return whether input blocks are merged, which they are not where rows are read."""
        return self.incoming is not None and not self.from_rows

    @property
    def core(self) -> Self:
        """The plan between merged blocks, without merging and cutting."""
        return replace(self, incoming=None, outgoing=None)

    @cached_property
    def moves(self) -> tuple[bool, ...]:
        """For each exchange, whether shards travel; on disk, whether it takes scratch files.

        No scratch files are needed where the first round reads rows of the stored array, and where
        each chunk of the result is a part of one block of the last round.
        """
        moves = [not exchange.local for exchange in self.exchanges]
        if self.storage == "disk" and self.rounds:
            if self.from_rows:
                moves[0] = False
            if not self.ends_in_round and moves[-1] and self.exchanges[-1].mirror is None:
                moves[-1] = not is_split(self.rounds[-1].target, self.result)
        return tuple(moves)

    @property
    def travelling(self) -> tuple[Exchange, ...]:
        """The exchanges in which shards travel."""
        return tuple(e for e, moves in zip(self.exchanges, self.moves, strict=True) if moves)

    @property
    def piece_nbytes(self) -> float:
        """Smallest mean shard size of all exchanges in bytes; infinite without shards."""
        shards = [e.shard_nbytes / e.shape.shards for e in self.travelling if e.shape.shards]
        return min(shards, default=math.inf)

    @property
    def notation(self) -> str:
        """The rounds in short, such as ``{Y1} {Y2, X}``.

        The first round has the first digit of Y. The second one has its second digit, and X.

        A prime marks steps of the inverse transform of an operator, H its transfer function.
        """
        return " ".join(f"{{{self._round_in_short(round_)}}}" for round_ in self.rounds)

    def _round_in_short(self, round_: Round) -> str:
        """Return the steps of a round in short."""
        names = ", ".join(map(self._step_in_short, round_.steps))
        if not round_.multiplies:
            return names
        turning = [step for step in round_.steps if step.between is not None]
        names_back = ", ".join(f"{self._step_in_short(step)}'" for step in turning)
        return f"{names} H {names_back}".rstrip()

    def _step_in_short(self, step: Step) -> str:
        """Return the axis and the number of the digit of a step."""
        letter = axis_letter(step.axis, len(self.spec.shape))
        (program,) = (program for program in self.programs if program.axis == step.axis)
        number = program.steps.index(step) + 1
        mark = "" if step.convolve is None else "*"
        if self.spec.transfer and number > len(program.factors):  # a step of the inverse transform
            number = len(program.steps) + 1 - number
            mark = "'"
        has_one_digit = len(program.factors) == 1 and not program.bluestein
        return f"{letter}{mark}" if has_one_digit else f"{letter}{number}{mark}"

    def to_json(self) -> str:
        """Return the plan as JSON, from which `from_json` makes it again."""
        return json.dumps(self, default=encode)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the plan that `to_json` wrote.

        Raises
        ------
        ArgumentError
            If the text is not such a plan.
        """
        try:
            plan: Self = decode(cls, json.loads(text))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise_invalid("text", text, f"the JSON of a plan ({error})")
        # Texts of earlier versions have no numbers of operands.
        programs, rounds = numbered(plan.programs, plan.rounds)
        return replace(plan, programs=programs, rounds=rounds)

    @cached_property
    def in_full(self) -> str:
        """Text with all fields of the plan, so that it is unique."""
        texts = [f"{field.name}={getattr(self, field.name)!r}" for field in fields(self)]
        return f"Plan({', '.join(texts)})"

    def __dask_tokenize__(self) -> tuple[str, str]:
        return "dask_bigfft.Plan", self.in_full

    # --- functions of other files, as methods ------------------------------------------------

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
        from dask_bigfft.planner.cost import forecast

        parse_count("workers", workers, 1)
        parse_count("threads", threads, 1)
        parse_count("gpus", gpus, 0)
        parse_type(
            "profile",
            profile,
            Profile,
            "a Profile, as calibrate returns",
        )
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

    def explain(self, details: bool = False) -> str:
        """Return the steps of the plan, its memory and time, and the reason for it as text.

        Parameters
        ----------
        details : bool
            True for the decomposition, the time of each step, and the plans that were not taken.
            The default is False.
        """
        from dask_bigfft.planner import explain, overview

        is_detailed = parse_flag("details", details)
        return explain.details(self) if is_detailed else overview.overview(self)

    def __str__(self) -> str:
        return self.explain()

    def __repr__(self) -> str:
        from dask_bigfft.planner.explain import in_a_line

        return in_a_line(self)

    def _repr_html_(self) -> str:
        from dask_bigfft.planner.drawing import draw

        return draw(self)


def with_reason(plan: Plan, *sentences: str) -> Plan:
    """Return a plan with more sentences in the reason for it."""
    return plan.changed(reason="; ".join(filter(None, [plan.reason, *sentences])))


def with_more_memory(plan: Plan, nbytes: int, times: int = 1) -> Plan:
    """Return a plan whose forecasts of memory are `times` as large, and some bytes larger."""

    def enlarged(forecast: Forecast) -> Forecast:
        return replace(forecast, peak_host=times * forecast.peak_host + nbytes)

    return plan.changed(
        expected=enlarged(plan.expected),
        rejected=tuple((name, enlarged(forecast)) for name, forecast in plan.rejected),
    )


# --- operands -------------------------------------------------------------------------------

#: Maximum bytes of a lazy transfer function that each task of a round gets as a whole, if a block
#: of the round is not larger.
WHOLE_NBYTES = 1 << 20


def _transfer_operand(plan: Plan) -> Operand:
    """Return the transfer function of an operator.

    The values of a large array are exchanged into the blocks of the round that multiplies.
    """
    (stage,) = (i for i, round_ in enumerate(plan.rounds) if round_.multiplies)
    factor = plan.spec.factor
    operand = Operand(
        "transfer",
        stage,
        axes=(),
        plan=None,
        values=plan.spec.transfer,
        factor=factor,
    )
    if factor is None or factor.role in ("kernel", "whole"):
        return operand
    blocks = plan.rounds[stage].spectrum
    if factor.role == "samples":
        axes = tuple(
            axis
            for axis, (size, own_size) in enumerate(zip(plan.spec.shape, factor.shape, strict=True))
            if axis in plan.spec.axes or own_size == size
        )
        return replace(operand, axes=axes, plan=_forward_plan(plan, factor, stage))
    holding = plan.machine.holding
    block_nbytes = blocks.largest * plan.spec.work_dtype.itemsize
    # Several GPUs would each copy a whole array from the GPU that has it.
    most_nbytes = WHOLE_NBYTES if holding else max(WHOLE_NBYTES, block_nbytes)
    if holding == 1 or factor.nbytes <= most_nbytes:
        return operand
    axes = tuple(axis for axis, size in enumerate(factor.shape) if size > 1)
    return replace(operand, axes=axes, plan=_exchanged_factor(plan, factor, blocks, axes))


def _forward_plan(plan: Plan, factor: FactorSpec, stage: int) -> Plan:
    """Return the plan of the forward transform of a second array, in the blocks of an operator.

    Parameters
    ----------
    plan : Plan
        Plan of the operator.
    factor : FactorSpec
        The array. It has the length of the input, or length 1, along axes that are not transformed.
    stage : int
        Number of the round that multiplies.
    """
    spec = plan.spec
    programs: list[AxisProgram] = []
    for program in plan.programs:
        first_step = program.steps[0]
        programs.append(
            axis_program(
                program.axis,
                program.length,
                program.factors,
                kind=first_step.kind,
                sign=first_step.sign,
            )
        )
    source = _of_samples(plan.source, plan.programs, factor, factor.chunks)
    rounds: list[Round] = []
    for round_ in plan.rounds[: stage + 1]:
        layout = _of_samples(round_.source, plan.programs, factor, None)
        steps = tuple(map(_of_forward_transform, round_.steps))
        rounds.append(Round(steps, layout, transformed(layout, steps)))
    return Plan(
        spec=replace(
            spec,
            name="rfftn" if spec.kind == "r2c" else "fftn",
            shape=factor.shape,
            dtype=factor.dtype,
            scale="none",
            windows=(),
            transfer="",
            factor=None,
        ),
        programs=tuple(programs),
        source=source,
        rounds=tuple(rounds),
        result=rounds[-1].target,
        variant=plan.variant,
        kernel=plan.kernel,
        machine=plan.machine,
        expected=NO_FORECAST,
        device=plan.device,
        device_memory_limit=plan.device_memory_limit,
        shares=plan.shares[: stage + 1],
        storage=plan.storage,
        verify=plan.verify,
        settings=plan.settings,
        assembles=plan.assembles,
    )


def _of_samples(
    layout: Layout,
    programs: Sequence[AxisProgram],
    factor: FactorSpec,
    chunks: tuple[Chunks, ...] | None,
) -> Layout:
    """Return a layout of the input of an operator, for an array of other lengths.

    Parameters
    ----------
    layout : Layout
        Blocks of the input before or between the forward rounds. Along axes that are not yet
        transformed, they need not have the zeros with which the array is padded.
    programs : sequence of AxisProgram
        Program of each transformed axis.
    factor : FactorSpec
        The other array.
    chunks : tuple of chunks or None
        Its chunks for all axes, or None for chunks like those of the layout.
    """
    axes = list(layout.axes)
    transformed_axes = [program.axis for program in programs]
    for axis, size in enumerate(factor.shape):
        if axis not in transformed_axes and size == 1:
            axes[axis] = AxisLayout((Group((Digit(0, 1, 1, 1),), (1,)),))
    if chunks is not None:
        for number, own_chunks in enumerate(chunks):
            (group,) = axes[number].groups
            axes[number] = AxisLayout((replace(group, chunks=own_chunks),))
        return Layout(tuple(axes))
    for program in programs:
        groups = axes[program.axis].groups
        if len(groups) != 1 or groups[0].digits != program.source:
            continue
        (group,) = groups
        if group.stored != group.size:
            own_chunks = scaled(group.chunks, factor.shape[program.axis])
            axes[program.axis] = AxisLayout((replace(group, chunks=own_chunks),))
    return Layout(tuple(axes))


def _of_forward_transform(step: Step) -> Step:
    """Return the forward FFT of a step of an operator, without a divisor."""
    if step.between is None:
        return replace(step, divisor=Divisor())
    forward_step, _ = step.halves
    return forward_step


def _exchanged_factor(
    plan: Plan,
    factor: FactorSpec,
    blocks: Layout,
    axes: tuple[int, ...],
) -> Plan:
    """Return the plan that brings values in natural order to the places of a spectrum.

    Parameters
    ----------
    plan : Plan
        Plan of the operator.
    factor : FactorSpec
        The values.
    blocks : Layout
        Blocks of the spectrum.
    axes : tuple of int
        Axes along which the values differ.
    """
    spec = plan.spec
    source_axes = []
    for axis in axes:
        size = factor.shape[axis]
        digit = Digit(0, 1, size, size)
        if axis in spec.axes:
            digit = Digit(1, 1, size, spec.length_of(axis))
        source_axes.append(AxisLayout((Group((digit,), factor.chunks[axis]),)))
    source = Layout(tuple(source_axes))
    result = Layout(tuple(blocks.axes[axis] for axis in axes))
    shape = tuple(factor.shape[axis] for axis in axes)
    return Plan(
        spec=rearranged_spec("transfer", shape, factor.dtype),
        programs=(),
        source=source,
        rounds=(),
        result=result,
        variant=plan.variant,
        kernel=plan.kernel,
        machine=replace(plan.machine, gpus=0),
        expected=NO_FORECAST,
        device="cpu",
        storage=plan.storage,
        verify=plan.verify,
        mirror=_mirror_of_values(spec, axes, source, result),
    )


def _mirror_of_values(
    spec: TransformSpec,
    axes: tuple[int, ...],
    source: Layout,
    result: Layout,
) -> Mirror | None:
    """Return the mirror image that completes values of half a spectrum; None if none is needed.

    Parameters
    ----------
    spec : TransformSpec
        The operator.
    axes : tuple of int
        Its axes that the values have.
    source, result : Layout
        Layouts of the values, before and after they are exchanged.
    """
    real_axis = spec.real_axis
    if real_axis is None or real_axis not in axes:
        return None
    real = axes.index(real_axis)
    if _halved_digits(source.axes[real]) == _halved_digits(result.axes[real]):
        return None
    others = tuple(i for i, axis in enumerate(axes) if axis in spec.axes and i != real)
    return Mirror(real, spec.length_of(real_axis), others)


def _filter_operand(plan: Plan, program: AxisProgram) -> Operand:
    """Return the filter of an axis of a plan, in the blocks of the axis' forward FFTs.

    The filter has an axis alone, axis 0, and a plan of its own with the forward FFTs of the axis.
    Its values are multiplied in the round of the last one of them.
    """
    count = len(program.factors)
    forward_steps = program.steps[:count]
    filter_program = axis_program(
        0,
        program.length,
        program.factors,
        bluestein=True,
    )
    rounds: list[Round] = []
    stage = 0
    for step, filter_step in zip(forward_steps, filter_program.steps[:count], strict=True):
        stage = next(i for i, round_ in enumerate(plan.rounds) if step in round_.steps)
        layout = Layout((plan.rounds[stage].source.axes[program.axis],))
        filter_steps = (_forward(filter_step),)
        rounds.append(Round(filter_steps, layout, transformed(layout, filter_steps)))
    chirp = forward_steps[-1].convolve
    assert chirp is not None
    filter_plan = Plan(
        spec=rearranged_spec("filter", (math.prod(program.factors),), plan.spec.work_dtype.str),
        programs=(),
        source=rounds[0].source,
        rounds=tuple(rounds),
        result=rounds[-1].target,
        variant=plan.variant,
        kernel=plan.kernel,
        machine=Machine(),
        expected=NO_FORECAST,
        device="cpu",
        verify=plan.verify,
    )
    return Operand(
        f"filter{program.axis}",
        stage=stage,
        axes=(program.axis,),
        plan=filter_plan,
        values=chirp,
    )


def _forward(step: Step) -> Step:
    """Return the forward FFT of a step, with its twiddle but without chirp and convolution."""
    if step.convolve is None:
        return replace(step, chirp_in=None, chirp_out=None)
    target = replace(step.source, stage=1)  # only its size matters after the last round
    return replace(
        step,
        target=target,
        convolve=None,
        twiddle=None,
        chirp_in=None,
        chirp_out=None,
    )


def _halved_digits(axis: AxisLayout) -> list[Digit]:
    """Return the digits of an axis of which only half is stored."""
    return [digit for digit in axis.digits if digit.stride == 1 and digit.is_partial]
