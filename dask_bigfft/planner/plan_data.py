"""The data of a plan: rounds, blocks and exchanges, the request and the machine.

`SharedLayouts` are the shared buffers of blocks, and the rounds that work in them. Between tasks of
one process an exchange need not copy. The round before it writes its blocks into one array of a
connected group, and the round after it reads its blocks there as strided views. A round that keeps
the shape of its blocks can work in place, and the next exchange may use the same buffer again. A
one-dimensional transform in natural order then comes out in order without a copy::

    (n2, k1)  --FFT over n2, in place-->  (k2, k1) = k1 + N1 k2, flat
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, Self, TypeVar

import numpy as np

from dask_bigfft.errors import raise_invalid
from dask_bigfft.planner.profile import DEFAULT, DeviceProfile, Profile, decode, encode
from dask_bigfft.planner.rows import BY_CALLER, NOT_STORED, ResultWriting, Stored, is_split
from dask_bigfft.planner.tile_plan import AS_IS, LEAST_WRITTEN_NBYTES, DeviceSettings
from dask_bigfft.tiles.program import program_of
from dask_bigfft.transforms.layout import (
    AxisLayout,
    Chunks,
    Digit,
    Group,
    Layout,
    flattened,
)
from dask_bigfft.transforms.rounds import (
    ExchangeShape,
    Mirror,
    Place,
    Round,
    exchange_shape,
    fits,
    packed_dtype,
    place_of,
    shared_layout_of,
    transformed,
)
from dask_bigfft.transforms.spec import TransformSpec, rearranged_spec
from dask_bigfft.transforms.steps import AxisProgram, Chirp, Step, axis_program

#: Kind of executor of the rounds.
DeviceChoice = Literal["auto", "cpu", "gpu", "hybrid"]


@dataclass(frozen=True)
class Exchange:
    """Exchange between two rounds: blocks of `source` become blocks of `target`.

    Parameters
    ----------
    source, target : Layout
        Blocks before and after.
    dtype, source_dtype : str
        Dtypes of the target's blocks and of the source's.
    mirror : Mirror or None
        Mirror image that completes half a spectrum in the exchange.
    """

    source: Layout
    target: Layout
    dtype: str
    source_dtype: str
    mirror: Mirror | None = None

    @cached_property
    def shape(self) -> ExchangeShape:
        """Fan-in, C, W and groups."""
        return exchange_shape(self.source, self.target)

    @cached_property
    def local(self) -> bool:
        """Return whether nothing travels."""
        return self.shape.local and (self.mirror is None or self.source.blocks == 1)

    @property
    def nbytes(self) -> int:
        """Bytes of all target blocks."""
        return self.target.size * np.dtype(self.dtype).itemsize

    @property
    def shard_dtype(self) -> np.dtype[Any]:
        """Dtype of packed shards."""
        return packed_dtype(np.dtype(self.source_dtype), np.dtype(self.dtype))

    @property
    def shard_nbytes(self) -> int:
        """Bytes of all packed shards."""
        return self.target.size * self.shard_dtype.itemsize


@dataclass(frozen=True)
class SharedAxis:
    """Shared memory of the blocks before and after an exchange.

    Parameters
    ----------
    layout : Layout
        One block for each connected group. The blocks before and after are views of it.
    home : int
        Exchange for which the memory was allocated: this one, or an earlier one whose blocks were
        transformed in place.
    """

    layout: Layout
    home: int

    def place(self, layout: Layout) -> Place:
        """Return the position of the first block of a layout."""
        return place_of(self.layout, layout, (0,) * len(layout.axes))


@dataclass(frozen=True)
class SharedLayouts:
    """The shared layouts of a plan.

    Parameters
    ----------
    exchanges : tuple of (SharedAxis or None)
        For each exchange.
    inside : tuple of (Layout or None)
        For each round that works in place, the layout of its shared buffer afterwards.
    """

    exchanges: tuple[SharedAxis | None, ...]
    inside: tuple[Layout | None, ...]


def no_shared_layouts(exchanges: int, rounds: int) -> SharedLayouts:
    """Return the shared layouts of a plan whose blocks have memory of their own."""
    return SharedLayouts((None,) * exchanges, (None,) * rounds)


def _shared(exchange: Exchange, home: int, layout: Layout | None = None) -> SharedAxis | None:
    """Return the shared buffer of an exchange, or None; `layout` if its source blocks have one."""
    converts = exchange.mirror is not None or exchange.dtype != exchange.source_dtype
    if exchange.local or converts:
        return None
    shared_layout = shared_layout_of(exchange.source, exchange.target, layout)
    return None if shared_layout is None else SharedAxis(shared_layout, home)


def written_in_order(rounds: Sequence[Round], last: Exchange) -> SharedLayouts:
    """Return the shared layouts of rounds on GPUs: where rows are wide, one for the result.

    The last round then writes in natural order, so that the exchange after it, `last`, moves
    nothing.
    """
    count = len(rounds)
    last_round = rounds[-1]
    shared = None if last_round.rolls else _shared(last, count)
    if shared is not None:
        row_nbytes = shared.place(last_round.target).width * np.dtype(last.dtype).itemsize
        if row_nbytes < LEAST_WRITTEN_NBYTES:
            shared = None
    separate = (None,) * count
    return SharedLayouts((*separate, shared), separate)


def _after(shared_layout: Layout, round_: Round) -> Layout | None:
    """Return the shared layout after a round in place; None if the round cannot work in place."""
    if round_.rolls:
        return None
    for step in round_.steps:
        if step.kind != "c2c" or step.source.size != step.target.size:
            return None
    after = transformed(shared_layout, round_.steps)
    return after if fits(after, round_.target) else None


@dataclass(frozen=True)
class Machine:
    """Processes, memory and speeds that a plan is made for.

    Parameters
    ----------
    memory_limit : int or None
        Bytes that one process may use; None if unknown.
    threads : int
        Tasks that run at a time in one process.
    workers : int
        Number of processes.
    buffers : int or None
        Bytes of shards that a process may hold in memory during a shuffle; None without shuffles.
    profile : Profile
        Measured speeds.
    gpus : int
        GPUs of each process that may be used.
    shared : bool
        Whether all tasks run in one process, so that blocks may share buffers.
    holding : int
        GPUs of this process that hold the blocks; 0 for blocks in host memory.
    """

    memory_limit: int | None = None
    threads: int = 1
    workers: int = 1
    buffers: int | None = None
    profile: Profile = DEFAULT
    gpus: int = 0
    shared: bool = False
    holding: int = 0

    @property
    def devices(self) -> tuple[DeviceProfile, ...]:
        """Speeds of each GPU of a process. An unmeasured one is assumed to be like the others."""
        known = self.profile.devices or (DeviceProfile(),)
        return tuple(known[min(i, len(known) - 1)] for i in range(self.gpus))


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


_LETTERS = "XYZWVU"


def axis_letter(axis: int, ndim: int) -> str:
    """Return the name of an axis as in the papers: X is the last, Y the one before.

    >>> axis_letter(1, 2), axis_letter(0, 3), axis_letter(0, 9)
    ('X', 'Z', 'A0')
    """
    place = ndim - 1 - axis
    return _LETTERS[place] if place < len(_LETTERS) else f"A{axis}"


#: A plan, or a plan with methods.
P = TypeVar("P", bound="PlanData")


def block_dtypes(spec: TransformSpec, rounds: Sequence[Round]) -> tuple[str, ...]:
    """Return the dtype of the blocks before and after each round, and of the result."""
    real = spec.real_dtype.str
    work = spec.work_dtype.str
    before = work
    if any(step.kind == "r2c" for round_ in rounds for step in round_.steps):
        before = real
    elif rounds and program_of(rounds[0]).begins_with_all and spec.kind == "c2c":
        # The first FFTs of a complex transform may take real values directly.
        before = work if np.dtype(spec.dtype).kind == "c" else real
    dtypes: list[str] = []
    for round_ in rounds:
        after = real if any(step.kind == "c2r" for step in round_.steps) else work
        dtypes += [before, after]
        before = after
    return (*dtypes, spec.out_dtype.str)


@dataclass(frozen=True)
class Operand:
    """Values that a round of a plan multiplies by, and the plan that makes them.

    Parameters
    ----------
    plan : PlanData
        Plan of a one-dimensional transform, whose last round has the blocks of the axis.
    values : Chirp
        Function of the index that is transformed, in place of an array.
    axis : int
        Axis of the product.
    number : int
        Number of the round that multiplies, from 0.
    """

    plan: "PlanData"
    values: Chirp
    axis: int
    number: int


@dataclass(frozen=True)
class PlanData:
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
    variant, kernel : str
        Data movement within an axis, and the FFT library.
    machine : Machine
        Machine that the plan was made for.
    expected : Forecast
        Forecast time and memory.
    rejected : tuple of (str, Forecast)
        The runners-up: their rounds and forecasts.
    reason : str
        Reason for this plan.
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
    """

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

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchange before each round, and the one after the last unless it is not needed."""
        sources = [self.source]
        targets = []
        for number, round_ in enumerate(self.rounds, 1):
            targets.append(round_.source)
            sources.append(self.input_after(number) if self.inside else round_.target)
        targets.append(self.result)
        source_dtypes = (self.spec.dtype, *self.dtypes[1::2])
        target_dtypes = self.dtypes[::2]
        exchanges = []
        for number, (source, target) in enumerate(zip(sources, targets, strict=True)):
            exchange = Exchange(
                source,
                target,
                dtype=target_dtypes[number],
                source_dtype=source_dtypes[number],
                mirror=self._mirror(source, target),
            )
            exchanges.append(exchange)
        if self.ends_in_round:
            exchanges.pop()
        return tuple(exchanges)

    @cached_property
    def operands(self) -> tuple[Operand, ...]:
        """The operands of products in rounds: filters of axes that use Bluestein's algorithm."""
        programs = [program for program in self.programs if program.bluestein]
        return tuple(_filter_operand(self, program) for program in programs)

    @cached_property
    def shared_layouts(self) -> SharedLayouts:
        """The shared buffers of blocks, if all tasks run in one process."""
        if self.storage == "disk":
            return no_shared_layouts(len(self.exchanges), len(self.rounds))
        if self.machine.gpus > 0 and self.device != "cpu":
            return self._shared_layouts_on_gpus()
        return self._shared_layouts_on_cpu()

    def _shared_layouts_on_gpus(self) -> SharedLayouts:
        """Return the shared buffers of blocks if GPUs do the rounds.

        GPUs read shards directly and write new blocks. Only before an exchange without a round they
        write to a shared buffer, if rows are wide: such blocks need not cross the bus again.
        """
        rounds = self.rounds
        exchanges = self.exchanges
        ends_in_exchange = bool(rounds) and len(exchanges) > len(rounds)
        if not ends_in_exchange or self.device == "hybrid" or self.verify != "none":
            return no_shared_layouts(len(exchanges), len(rounds))
        return written_in_order(rounds, exchanges[-1])

    def _shared_layouts_on_cpu(self) -> SharedLayouts:
        """Return the shared buffers of blocks if CPU threads do the rounds.

        The input's blocks exist already, so that the first exchange shares none.
        """
        shared_axes: list[SharedAxis | None] = [None]
        inside: list[Layout | None] = [None] if self.rounds else []
        reused: SharedAxis | None = None  # buffer of the exchange before, in which a round worked
        for number, exchange in enumerate(self.exchanges[1:], 1):
            shared = reused or _shared(exchange, number)
            shared_axes.append(shared)
            if number == len(self.rounds):
                break
            after, reused = self._inside_shared(number, shared)
            inside.append(after)
        return SharedLayouts(tuple(shared_axes), tuple(inside))

    def _inside_shared(
        self, number: int, shared: SharedAxis | None
    ) -> tuple[Layout | None, SharedAxis | None]:
        """Return the shared layout after a round in place, and the buffer of the next exchange.

        Both are None if the round cannot work in its shared buffer, or if neither the next exchange
        nor the result can use that afterwards.
        """
        changes_dtype = self.dtypes[2 * number] != self.dtypes[2 * number + 1]
        if shared is None or changes_dtype:
            return None, None
        after = _after(shared.layout, self.rounds[number])
        if after is None:
            return None, None
        if number + 1 < len(self.exchanges):
            reused = _shared(self.exchanges[number + 1], shared.home, after)
            return (None, None) if reused is None else (after, reused)
        return (after if fits(after, self.result) else None), None

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
            return None
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
        """The rounds in short, such as ``{Y1} {Y2, X}``: first digit of Y; its second, and X."""
        steps_of_axis = {program.axis: program.steps for program in self.programs}

        def name(step: Step) -> str:
            letter = axis_letter(step.axis, len(self.spec.shape))
            steps = steps_of_axis[step.axis]
            if len(steps) == 1:
                return letter
            star = "" if step.convolve is None else "*"
            return f"{letter}{steps.index(step) + 1}{star}"

        return " ".join(f"{{{', '.join(map(name, round_.steps))}}}" for round_ in self.rounds)

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
        return plan

    @cached_property
    def in_full(self) -> str:
        """Text with all fields of the plan, so that it is unique."""
        return PlanData.__repr__(self)

    def __dask_tokenize__(self) -> tuple[str, str]:
        return "dask_bigfft.Plan", self.in_full


def _filter_operand(plan: PlanData, program: AxisProgram) -> Operand:
    """Return the filter of an axis of a plan, in the blocks of the axis' forward FFTs."""
    count = len(program.factors)
    forward_steps = program.steps[:count]
    plain_program = axis_program(0, program.length, program.factors, bluestein=True)
    rounds: list[Round] = []
    number = 0
    for step, plain_step in zip(forward_steps, plain_program.steps[:count], strict=True):
        number = next(i for i, round_ in enumerate(plan.rounds) if step in round_.steps)
        layout = Layout((plan.rounds[number].source.axes[program.axis],))
        filter_steps = (_forward(plain_step),)
        rounds.append(Round(filter_steps, layout, transformed(layout, filter_steps)))
    chirp = forward_steps[-1].convolve
    assert chirp is not None
    filter_plan = PlanData(
        spec=rearranged_spec("filter", (math.prod(program.factors),), plan.spec.work_dtype.str),
        programs=(),
        source=rounds[0].source,
        rounds=tuple(rounds),
        result=rounds[-1].target,
        variant=plan.variant,
        kernel=plan.kernel,
        machine=Machine(),
        expected=Forecast(0, 0, 0, 0, 0.0, 0.0),
        device="cpu",
        verify=plan.verify,
    )
    return Operand(filter_plan, chirp, program.axis, number)


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


@dataclass(frozen=True)
class Request:
    """Choices of the caller that a plan respects, beside the transform itself.

    Parameters
    ----------
    chunks : tuple of chunks
        Chunks of the input array.
    wanted : tuple of chunks or None
        Chunks of the result; None takes those of the last round.
    rounds : tuple of dict or None
        Factor of each axis in each round, named by the user.
    variant, kernel : str
        Data movement within an axis, and FFT library.
    max_rounds : int
        Rounds that a plan may have.
    floor_bytes : int
        Size of a block below which an awkward axis is gathered whole.
    storage : {"auto", "memory", "disk"}
        Storage of blocks between rounds. ``"auto"`` takes the disk if memory is too small.
    verify : str
        Checks of the running transform.
    device : {"auto", "cpu", "gpu", "hybrid"}
        Kind of executor of the rounds.
    scale : float
        Size of blocks in units of the input blocks.
    joined : bool
        Whether input chunks that are far smaller than blocks should be are joined in the rounds.
    device_nbytes : int or None
        Bytes of a GPU that may be used, if not all.
    stored : Stored or None
        Storage of an input array in files that the first round can read directly. The result then
        goes to files, too.
    writing : ResultWriting
        Memory that writing a chunk of the result takes.
    reopened : bool
        Whether the stored array is reopened in these chunks.
    piece_nbytes : int
        Minimum bytes of a write to a scratch file, if larger blocks can reach it; 0 keeps the
        blocks.
    """

    chunks: tuple[Chunks, ...]
    wanted: tuple[Chunks, ...] | None = None
    rounds: tuple[tuple[tuple[int, int], ...], ...] | None = None
    variant: str = "auto"
    kernel: str = "scipy"
    max_rounds: int = 4
    floor_bytes: int = 4 << 20
    storage: str = "memory"
    verify: str = "none"
    device: DeviceChoice = "auto"
    scale: float = 1.0
    joined: bool = False
    device_nbytes: int | None = None
    stored: Stored | None = None
    writing: ResultWriting = BY_CALLER
    reopened: bool = False
    piece_nbytes: int = 0


def block_count(chunks: Sequence[Chunks]) -> int:
    """Return the number of blocks of an array with these chunks."""
    return math.prod(map(len, chunks))


def extents(spec: TransformSpec, chunks: Sequence[Chunks]) -> list[int]:
    """Return the longest chunk of each axis; axes that are whole in a block are padded there."""
    lengths = dict(zip(spec.axes, spec.lengths, strict=True))
    longest = []
    for axis, axis_chunks in enumerate(chunks):
        padded_length = lengths.get(axis, 0) if len(axis_chunks) == 1 else 0
        longest.append(max(0, padded_length, *axis_chunks))
    return longest


#: Maximum bytes of a tile, and number of tiles that a GPU holds, FFT work areas included.
MOST_TILE = 1 << 28
TILES_HELD = 8


def tile_nbytes(request: Request, machine: Machine) -> int:
    """Return the bytes of a tile on a GPU."""
    smallest_gpu = min((device.nbytes for device in machine.devices), default=0)
    return min(MOST_TILE, (request.device_nbytes or smallest_gpu) // TILES_HELD)


def largest_block(spec: TransformSpec, request: Request) -> int:
    """Return the size of the largest input block in complex elements (a real one counts half)."""
    size = math.prod(extents(spec, request.chunks))
    return max(1, size // 2 if spec.kind == "r2c" else size)
